//! One blob of the cache: bytes come in, are checked, and appear under their final name all at once.
//!
//! The order makes a stop at any point harmless: bytes are appended to `<etag>.incomplete`, synced, read back and
//! hashed, and only then renamed; the next pull appends to what is there. What a crash tore is found by the hash, since
//! it is the file that is hashed, not the stream; then the file is begun anew, once.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use super::cache::RepoCache;
use super::checksum::checksum_as;
use super::disk::{Disk, DiskFile, open_lock};
use super::error::{HubError, disk_error};
use super::progress::PullProgress;

/// A file as the hub announces it.
#[derive(Clone, Debug)]
pub(super) struct RemoteFile {
    /// Its name in the repository.
    pub(super) name: String,
    /// The name of its blob, and its checksum where it has the form of one.
    pub(super) etag: String,
    pub(super) size: u64,
}

/// The rest of a file, from `offset` on; a server may choose to begin at 0 again.
pub(super) struct Body {
    pub(super) offset: u64,
    pub(super) reader: Box<dyn Read>,
}

/// How often, and after which pauses, something that failed is tried again.
#[derive(Clone, Copy)]
pub(super) struct Retries {
    pub(super) first_pause: Duration,
    pub(super) attempts: u32,
}

impl Retries {
    /// Six attempts within about six seconds. A download that moves forward starts counting anew.
    pub(super) const DEFAULT: Self = Self { first_pause: Duration::from_millis(200), attempts: 6 };

    /// The pause before attempt `done + 1`, doubling, or what the server asked for; `None` to give up.
    pub(super) fn pause(&self, done: u32, error: &HubError) -> Option<Duration> {
        const ASKED_MAX: Duration = Duration::from_secs(60);
        if !error.is_transient() || done >= self.attempts {
            return None;
        }
        let own = self.first_pause * 2u32.saturating_pow(done.saturating_sub(1));
        Some(error.retry_after().map_or(own, |asked| asked.min(ASKED_MAX).max(own)))
    }
}

/// Fills the blob of `file` from `source`, which is asked for the bytes from an offset on. Holds the blob's lock, so
/// that a second process waits and then finds it done.
pub(super) fn store_blob(
    disk: &dyn Disk,
    repo: &RepoCache,
    file: &RemoteFile,
    source: &mut dyn FnMut(u64) -> Result<Body, HubError>,
    retries: Retries,
    progress: &PullProgress,
) -> Result<(), HubError> {
    let lock_path = repo.lock(&file.etag);
    create_parent(disk, &lock_path)?;
    let _lock = lock_exclusive(&lock_path, progress)?;
    let blob = repo.blob(&file.etag);
    if is_complete(&blob, file) {
        return Ok(()); // by another process while this one waited
    }
    create_parent(disk, &blob)?;

    let path = repo.incomplete(&file.etag);
    let mut begun_anew = false;
    loop {
        let mut part = disk.open(&path).map_err(disk_error("open", &path))?;
        fill(part.as_mut(), &path, file, source, retries, progress)?;
        part.sync().map_err(|source| HubError::Write { path: path.clone(), missing: 0, source })?;
        progress.verifying();
        let found = checksum(part.as_mut(), file).map_err(disk_error("read", &path))?;
        if found.as_ref().is_none_or(|found| *found == file.etag) {
            if found.is_none() {
                progress.note(&format!("{}: the hub gave no checksum, only its size was checked", file.name));
            }
            break;
        }
        drop(part);
        disk.remove_file(&path).map_err(disk_error("remove", &path))?;
        if begun_anew {
            let found = found.unwrap_or_default();
            return Err(HubError::Checksum { file: file.name.clone(), expected: file.etag.clone(), found });
        }
        begun_anew = true;
        progress.note(&format!("{}: wrong checksum, downloading it again", file.name));
    }
    disk.rename(&path, &blob).map_err(disk_error("rename to its final name", &path))?;
    sync_parent(disk, &blob)
}

/// Whether the blob is there in full. Its content was checked before it got this name.
pub(super) fn is_complete(blob: &Path, file: &RemoteFile) -> bool {
    fs::metadata(blob).is_ok_and(|found| found.is_file() && found.len() == file.size)
}

/// Appends until the file has its size.
fn fill(
    part: &mut dyn DiskFile,
    path: &Path,
    file: &RemoteFile,
    source: &mut dyn FnMut(u64) -> Result<Body, HubError>,
    retries: Retries,
    progress: &PullProgress,
) -> Result<(), HubError> {
    let write_error = |have: u64, source| HubError::Write { path: path.to_owned(), missing: file.size - have, source };
    let mut have = part.len().map_err(disk_error("read", path))?;
    if have > file.size {
        part.truncate().map_err(disk_error("truncate", path))?;
        have = 0;
    }
    let mut furthest = have;
    let mut failures = 0;
    let mut buffer = vec![0; 1 << 18];
    while have < file.size {
        progress.position(have);
        let result = source(have).and_then(|mut body| {
            if body.offset != have {
                part.truncate().map_err(disk_error("truncate", path))?;
                have = 0;
            }
            while have < file.size {
                let wanted = buffer.len().min(usize::try_from(file.size - have).unwrap_or(usize::MAX));
                let cut = |have, source| HubError::Cut { file: file.name.clone(), have, size: file.size, source };
                let count = match body.reader.read(&mut buffer[..wanted]) {
                    Ok(0) => return Err(cut(have, io::ErrorKind::UnexpectedEof.into())),
                    Ok(count) => count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(cut(have, error)),
                };
                part.write_all(&buffer[..count]).map_err(|source| write_error(have, source))?;
                have += count as u64;
                progress.position(have);
            }
            Ok(())
        });
        let Err(error) = result else { break };
        failures = if have > furthest { 1 } else { failures + 1 };
        furthest = furthest.max(have);
        let Some(pause) = retries.pause(failures, &error) else { return Err(error) };
        progress.note(&format!("{error}; trying again"));
        std::thread::sleep(pause);
    }
    Ok(())
}

/// The checksum of the kind that the etag is: SHA-256 of files in large-file storage, git's blob SHA-1 of others.
/// `None` if it is of neither kind.
fn checksum(part: &mut dyn DiskFile, file: &RemoteFile) -> io::Result<Option<String>> {
    part.rewind()?;
    checksum_as(&file.etag, file.size, &mut |buffer| part.read(buffer))
}

/// Shows the blob under its name in a snapshot: by a symbolic link, as `huggingface_hub` does it; where the file system
/// has none by a hard link; or else by a copy.
pub(super) fn place(disk: &dyn Disk, repo: &RepoCache, commit: &str, file: &RemoteFile) -> Result<(), HubError> {
    let (blob, pointer) = (repo.blob(&file.etag), repo.pointer(commit, &file.name));
    let is_shown =
        || fs::canonicalize(&pointer).is_ok_and(|shown| fs::canonicalize(&blob).is_ok_and(|blob| shown == blob));
    if is_shown() {
        return Ok(());
    }
    create_parent(disk, &pointer)?;
    // Asked again, for another process may have made the link since, and may be removing an old one just now.
    if fs::symlink_metadata(&pointer).is_ok() && !is_shown() {
        match disk.remove_file(&pointer) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(disk_error("replace", &pointer)(error));
            }
            _ => {}
        }
    }
    let up = "../".repeat(file.name.split('/').count() + 1);
    let target = Path::new(&up).join("blobs").join(&file.etag);
    let linked = match disk.symlink(&target, &pointer) {
        // Another process made the same link in the meantime.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(_) => fs::hard_link(&blob, &pointer).or_else(|_| copy(disk, repo, &file.etag, &blob, &pointer)),
        Ok(()) => Ok(()),
    };
    linked.map_err(disk_error("link", &pointer))?;
    sync_parent(disk, &pointer)
}

/// A copy that appears all at once. Its first name is one that `huggingface_hub` knows as unfinished.
fn copy(disk: &dyn Disk, repo: &RepoCache, etag: &str, blob: &Path, pointer: &Path) -> io::Result<()> {
    let unfinished = repo.incomplete(&format!("{etag}.copy"));
    fs::copy(blob, &unfinished)?;
    disk.rename(&unfinished, pointer)
}

/// Notes that `revision` is `commit`: the last act of a pull, so that a name never leads to half a model.
pub(super) fn write_ref(disk: &dyn Disk, repo: &RepoCache, revision: &str, commit: &str) -> Result<(), HubError> {
    let path = repo.reference(revision);
    if fs::read_to_string(&path).is_ok_and(|old| old == commit) {
        return Ok(());
    }
    create_parent(disk, &path)?;
    // Not beside it: every file under refs/ is a revision.
    let unfinished = repo.incomplete(&format!("ref.{}", std::process::id()));
    let write = || {
        let mut file = disk.open(&unfinished)?;
        file.truncate()?;
        file.write_all(commit.as_bytes())?;
        file.sync()?;
        disk.rename(&unfinished, &path)
    };
    write().map_err(disk_error("write", &path))?;
    sync_parent(disk, &path)
}

/// Waits for a lock, telling so; the same lock as `huggingface_hub`'s. File systems without locks go without: then two
/// pulls may spoil each other's unfinished file, which the checksum finds.
fn lock_exclusive(path: &Path, progress: &PullProgress) -> Result<File, HubError> {
    let file = open_lock(path)?;
    match file.try_lock() {
        Err(fs::TryLockError::WouldBlock) => {
            progress.note("waiting for another process that downloads this file");
            file.lock().map_err(disk_error("lock", path))?;
        }
        Ok(()) | Err(fs::TryLockError::Error(_)) => {}
    }
    Ok(file)
}

fn create_parent(disk: &dyn Disk, path: &Path) -> Result<(), HubError> {
    let parent = path.parent().unwrap_or(path);
    disk.create_dir_all(parent).map_err(disk_error("create", parent))
}

fn sync_parent(disk: &dyn Disk, path: &Path) -> Result<(), HubError> {
    let parent = path.parent().unwrap_or(path);
    disk.sync_dir(parent).map_err(disk_error("sync", parent))
}
