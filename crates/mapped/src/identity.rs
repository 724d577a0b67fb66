//! Which file bytes came from: what tells a file that was changed from the one that was read before.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::Metadata;
use std::sync::{Mutex, PoisonError};
#[cfg(not(unix))]
use std::time::SystemTime;

/// A file as it was when it was read: its place on the device, its size, and when its content and its inode last changed,
/// to the nanosecond. A file that was written to, replaced or restored from elsewhere has another identity, whether or not
/// its bytes differ; one with the same identity has the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
    len: u64,
    modified_ns: i128,
    changed_ns: i128,
}

impl FileIdentity {
    #[cfg(unix)]
    pub(crate) fn of(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            modified_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            // No program can set this one: a write cannot hide behind a restored time.
            changed_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    #[cfg(not(unix))]
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let ns = |time: std::io::Result<SystemTime>| {
            time.ok()
                .and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok())
                .map_or(0, |since| since.as_nanos())
        };
        let (modified, created) = (ns(metadata.modified()), ns(metadata.created()));
        let signed = |ns: u128| i128::try_from(ns).unwrap_or(i128::MAX);
        Self { device: 0, inode: 0, len: metadata.len(), modified_ns: signed(modified), changed_ns: signed(created) }
    }
}

impl fmt::Display for FileIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, inode, len, modified_ns, changed_ns } = self;
        write!(f, "{device}:{inode} {len} {modified_ns} {changed_ns}")
    }
}

/// By first address: the end, and the file.
static READ: Mutex<BTreeMap<usize, (usize, FileIdentity)>> = Mutex::new(BTreeMap::new());

/// Bytes in memory that came from a file, known by their addresses until they are dropped.
pub(crate) struct Known<T: AsRef<[u8]>>(T);

impl<T: AsRef<[u8]>> Known<T> {
    pub(crate) fn new(bytes: T, file: FileIdentity) -> Self {
        let range = bytes.as_ref().as_ptr_range();
        lock().insert(range.start as usize, (range.end as usize, file));
        Self(bytes)
    }
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Known<T> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl<T: AsRef<[u8]>> Drop for Known<T> {
    fn drop(&mut self) {
        lock().remove(&(self.0.as_ref().as_ptr() as usize));
    }
}

/// See [`crate::identity`].
pub(crate) fn identity(bytes: &[u8]) -> Option<FileIdentity> {
    let range = bytes.as_ptr_range();
    let (start, end) = (range.start as usize, range.end as usize);
    let known = lock();
    let (_, &(last, file)) = known.range(..=start).next_back()?;
    (!bytes.is_empty() && end <= last).then_some(file)
}

fn lock() -> std::sync::MutexGuard<'static, BTreeMap<usize, (usize, FileIdentity)>> {
    READ.lock().unwrap_or_else(PoisonError::into_inner)
}
