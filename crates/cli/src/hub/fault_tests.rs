//! Every call on the disk fails once, and from then on, and is the last before a crash: SQLite's method. After each, a
//! final name is absent or its content is right, a revision's name leads to a whole snapshot or nowhere, and the next
//! pull completes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::cache::{Cache, RepoCache};
use super::disk::{Disk, DiskFile, RealDisk};
use super::error::HubError;
use super::progress::PullProgress;
use super::store::{self, Body, RemoteFile, Retries};
use crate::units::hex;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What happens at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Once(io::ErrorKind),
    Sticky(io::ErrorKind),
    /// A write takes only half of its bytes; other calls are left alone.
    ShortWrite,
    /// Nothing works from here on, and then the power is gone.
    Crash,
}

/// What the disk holds after the power is gone.
#[derive(Clone, Copy, Debug)]
struct Loss {
    /// Unsynced bytes are zeros instead of missing: the length was written before the content.
    torn: bool,
    /// New names in folders that were not synced are lost.
    names: bool,
}

/// The real disk, with a fault at one call.
struct FaultyDisk {
    state: Rc<RefCell<State>>,
}

struct State {
    calls: usize,
    fault_at: usize,
    fault: Fault,
    /// How much of each open file is certainly on the disk.
    synced: BTreeMap<PathBuf, u64>,
    /// Names given since their folder was last synced: the new one, and the old one of a rename.
    unsynced_names: Vec<(PathBuf, Option<PathBuf>)>,
}

impl State {
    /// Counts a call; `Ok(true)` if a write is to be short.
    fn call(&mut self, is_write: bool) -> io::Result<bool> {
        self.calls += 1;
        match self.fault {
            Fault::Once(kind) if self.calls == self.fault_at => Err(kind.into()),
            Fault::Sticky(kind) if self.calls >= self.fault_at => Err(kind.into()),
            Fault::Crash if self.calls >= self.fault_at => Err(io::Error::other("crashed")),
            Fault::ShortWrite => Ok(is_write && self.calls == self.fault_at),
            _ => Ok(false),
        }
    }

    fn fired(&self) -> bool {
        self.calls >= self.fault_at
    }

    /// Leaves on the disk what a crash leaves.
    fn lose(&self, loss: Loss) {
        for (path, &synced) in &self.synced {
            let Ok(metadata) = fs::metadata(path) else { continue };
            let file = OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(synced.min(metadata.len())).unwrap();
            if loss.torn {
                file.set_len(metadata.len()).unwrap();
            }
        }
        if loss.names {
            for (new, old) in self.unsynced_names.iter().rev() {
                match old {
                    Some(old) => fs::rename(new, old).unwrap(),
                    None => fs::remove_file(new).unwrap(),
                }
            }
        }
    }
}

impl FaultyDisk {
    fn new(fault_at: usize, fault: Fault) -> Self {
        let state = State { calls: 0, fault_at, fault, synced: BTreeMap::new(), unsynced_names: Vec::new() };
        Self { state: Rc::new(RefCell::new(state)) }
    }

    fn call(&self) -> io::Result<()> {
        self.state.borrow_mut().call(false).map(drop)
    }
}

impl Disk for FaultyDisk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.call()?;
        RealDisk.create_dir_all(dir)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.call()?;
        let mut file = RealDisk.open(path)?;
        let len = file.len()?;
        self.state.borrow_mut().synced.entry(path.to_owned()).or_insert(len);
        Ok(Box::new(FaultyFile { state: Rc::clone(&self.state), path: path.to_owned(), file }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call()?;
        RealDisk.rename(from, to)?;
        let mut state = self.state.borrow_mut();
        if let Some(synced) = state.synced.remove(from) {
            state.synced.insert(to.to_owned(), synced);
        }
        state.unsynced_names.push((to.to_owned(), Some(from.to_owned())));
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.call()?;
        self.state.borrow_mut().synced.remove(path);
        RealDisk.remove_file(path)
    }

    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        self.call()?;
        RealDisk.symlink(target, link)?;
        self.state.borrow_mut().unsynced_names.push((link.to_owned(), None));
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.call()?;
        self.state.borrow_mut().unsynced_names.retain(|(new, _)| new.parent() != Some(dir));
        Ok(())
    }

    fn available(&self, dir: &Path) -> io::Result<u64> {
        self.call()?;
        RealDisk.available(dir)
    }
}

struct FaultyFile {
    state: Rc<RefCell<State>>,
    path: PathBuf,
    file: Box<dyn DiskFile>,
}

impl Read for FaultyFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.state.borrow_mut().call(false)?;
        self.file.read(buffer)
    }
}

impl Write for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let short = self.state.borrow_mut().call(true)?;
        let count = if short { bytes.len().div_ceil(2) } else { bytes.len() };
        self.file.write(&bytes[..count])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl DiskFile for FaultyFile {
    fn len(&mut self) -> io::Result<u64> {
        self.state.borrow_mut().call(false)?;
        self.file.len()
    }

    fn rewind(&mut self) -> io::Result<()> {
        self.state.borrow_mut().call(false)?;
        self.file.rewind()
    }

    fn truncate(&mut self) -> io::Result<()> {
        self.state.borrow_mut().call(false)?;
        self.state.borrow_mut().synced.insert(self.path.clone(), 0);
        self.file.truncate()
    }

    fn sync(&mut self) -> io::Result<()> {
        self.state.borrow_mut().call(false)?;
        let len = self.file.len()?;
        self.state.borrow_mut().synced.insert(self.path.clone(), len);
        Ok(()) // the real sync would only cost time
    }
}

/// A body that comes in pieces, and breaks off once in the middle of the file.
struct Pieces {
    bytes: Cursor<Vec<u8>>,
    breaks_at: Option<u64>,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.breaks_at.is_some_and(|at| self.bytes.position() >= at) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let wanted = buffer.len().min(100);
        self.bytes.read(&mut buffer[..wanted])
    }
}

/// A file in large-file storage and one in git, with their contents.
fn remote_files() -> [(RemoteFile, Vec<u8>); 2] {
    let weights: Vec<u8> = (0..450_u32).map(|i| (i * 7 + 1) as u8).collect();
    let config = b"{\"model_type\": \"llama\"}".to_vec();
    let sha1 = Sha1::new_with_prefix(format!("blob {}\0", config.len())).chain_update(&config).finalize();
    let file =
        |name: &str, etag: String, bytes: &[u8]| RemoteFile { name: name.into(), etag, size: bytes.len() as u64 };
    [
        (file("model.safetensors", hex(&Sha256::digest(&weights)), &weights), weights),
        (file("sub/config.json", hex(&sha1), &config), config),
    ]
}

fn pull(disk: &dyn Disk, repo: &RepoCache) -> Result<(), HubError> {
    let retries = Retries { first_pause: Duration::ZERO, attempts: 3 };
    for (file, bytes) in remote_files() {
        let mut broken = false;
        let mut source = |offset: u64| {
            let breaks_at = (!broken).then_some(bytes.len() as u64 / 2 - offset.min(bytes.len() as u64 / 2));
            broken = true;
            let rest = bytes.get(offset as usize..).unwrap_or_default().to_vec();
            Ok(Body { offset, reader: Box::new(Pieces { bytes: Cursor::new(rest), breaks_at }) })
        };
        store::store_blob(disk, repo, &file, &mut source, retries, &PullProgress::silent())?;
        store::place(disk, repo, COMMIT, &file)?;
    }
    store::write_ref(disk, repo, "main", COMMIT)
}

fn new_cache() -> (tempfile::TempDir, RepoCache) {
    let folder = tempfile::tempdir().unwrap();
    let repo = Cache::new(folder.path()).repo(&"org/repo".parse().unwrap());
    (folder, repo)
}

/// Final names are absent or right; with a revision's name, everything is there.
fn check_invariants(repo: &RepoCache, case: &str) {
    for (file, bytes) in remote_files() {
        if let Ok(found) = fs::read(repo.blob(&file.etag)) {
            assert!(found == bytes, "{case}: the blob of {} is wrong", file.name);
        }
    }
    if let Ok(commit) = fs::read_to_string(repo.reference("main")) {
        assert_eq!(commit, COMMIT, "{case}");
        for (file, bytes) in remote_files() {
            let found = fs::read(repo.pointer(COMMIT, &file.name));
            assert!(found.is_ok_and(|found| found == bytes), "{case}: {} is not there", file.name);
        }
    }
}

fn check_complete(repo: &RepoCache, case: &str) {
    pull(&FaultyDisk::new(usize::MAX, Fault::Crash), repo)
        .unwrap_or_else(|error| panic!("{case}: the next pull fails: {error}"));
    assert_eq!(fs::read_to_string(repo.reference("main")).unwrap(), COMMIT, "{case}");
    check_invariants(repo, case);
    for (file, _) in remote_files() {
        assert!(!repo.incomplete(&file.etag).exists(), "{case}: rubbish is left");
    }
}

/// Runs a pull with `fault` at call 1, 2, … until it is over before the fault. Returns the number of calls.
fn at_every_call(fault: Fault, after: impl Fn(&State, &RepoCache, Result<(), HubError>, &str)) -> usize {
    for k in 1.. {
        let (_folder, repo) = new_cache();
        let disk = FaultyDisk::new(k, fault);
        let result = pull(&disk, &repo);
        let state = disk.state.borrow();
        if !state.fired() {
            result.unwrap();
            return k - 1;
        }
        let case = format!("{fault:?} at call {k}");
        after(&state, &repo, result, &case);
        check_invariants(&repo, &case);
        check_complete(&repo, &case);
    }
    unreachable!("a pull ends")
}

#[test]
fn a_failing_call_leaves_nothing_half_and_the_next_pull_completes() {
    use io::ErrorKind::{Interrupted, Other, StorageFull};
    for fault in [
        Fault::Once(Other),
        Fault::Sticky(Other),
        Fault::Once(StorageFull),
        Fault::Sticky(StorageFull),
        Fault::Once(Interrupted),
        Fault::ShortWrite,
    ] {
        let calls = at_every_call(fault, |_, _, result, case| {
            if fault == Fault::ShortWrite {
                result.unwrap();
            } else if let (Fault::Sticky(_), Err(error)) = (fault, &result) {
                assert!(error.to_string().contains('`'), "{case}: the message names no file: {error}");
            }
        });
        assert!(calls > 35, "{fault:?} reached only {calls} calls");
    }
}

#[test]
fn a_crash_at_any_call_is_resumed_whatever_the_disk_kept() {
    for (torn, names) in [(false, false), (false, true), (true, false), (true, true)] {
        let loss = Loss { torn, names };
        at_every_call(Fault::Crash, |state, _, result, case| {
            assert!(result.is_err(), "{case}");
            state.lose(loss);
        });
    }
}

#[test]
fn a_finished_pull_survives_a_power_cut() {
    for (torn, names) in [(false, false), (false, true), (true, false), (true, true)] {
        let (_folder, repo) = new_cache();
        let disk = FaultyDisk::new(usize::MAX, Fault::Crash);
        pull(&disk, &repo).unwrap();
        let loss = Loss { torn, names };
        disk.state.borrow().lose(loss);
        assert!(repo.reference("main").exists(), "{loss:?}");
        check_invariants(&repo, &format!("{loss:?}"));
    }
}

#[test]
fn a_full_disk_is_told_with_the_file_and_the_missing_bytes() {
    let mut messages = Vec::new();
    for k in 1.. {
        let (_folder, repo) = new_cache();
        match pull(&FaultyDisk::new(k, Fault::Sticky(io::ErrorKind::StorageFull)), &repo) {
            Ok(()) => break,
            Err(error) => messages.push(error.to_string()),
        }
    }
    let etag = &remote_files()[0].0.etag;
    assert!(
        messages.iter().any(|m| m.contains(etag) && m.contains("350 bytes") && m.contains("pull again")),
        "{messages:?}"
    );
}

#[test]
fn a_file_is_shown_by_a_link_or_by_a_copy() {
    for without_links in [false, true] {
        let (_folder, repo) = new_cache();
        pull(&RealDisk, &repo).unwrap();
        let (file, bytes) = &remote_files()[0];
        let pointer = repo.pointer(COMMIT, &file.name);
        fs::remove_file(&pointer).unwrap();
        let disk = FaultyDisk::new(2, Fault::Sticky(io::ErrorKind::Unsupported));
        let real: &dyn Disk = &RealDisk;
        let result = store::place(if without_links { &disk } else { real }, &repo, COMMIT, file);
        assert_eq!(fs::read(&pointer).unwrap(), *bytes);
        // Here the folder could not be synced either, which is told; the file is there all the same.
        assert_eq!(result.is_err(), without_links);
        assert_eq!(pointer.is_symlink(), !without_links);
    }
}
