//! What `map` accepts, and its message for everything else.

use std::{error::Error, fs, path::Path};

use mapped::{map, map_own};

#[test]
fn a_file_is_mapped_whole_and_slices_keep_it_alive() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), b"0123456789").unwrap();
    let tail = map(file.path()).unwrap().slice(7..);
    drop(file);
    assert_eq!(tail, &b"789"[..]);
}

#[test]
fn everything_else_has_a_clear_message() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let message = |path: &Path| {
        let error = map(path).unwrap_err();
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{error}{cause}").replace(&folder.path().display().to_string(), "DIR")
    };
    fs::write(at("empty"), b"").unwrap();
    assert_eq!(message(&at("absent")), "there is no file `DIR/absent`: check the spelling and the current directory");
    assert_eq!(message(folder.path()), "`DIR` is a directory, where a file was expected");
    assert_eq!(message(&at("empty")), "`DIR/empty` is empty: is the download complete?");
    assert_eq!(
        message(Path::new("/dev/null")),
        "`/dev/null` is not a regular file (a pipe, socket or device cannot be mapped): copy it to a file first"
    );
    assert_eq!(message(&at("empty/inside")), "cannot open `DIR/empty/inside`: Not a directory (os error 20)");
}

#[cfg(unix)]
#[test]
fn a_fifo_is_refused_without_waiting_for_a_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert!(map(&path).unwrap_err().to_string().contains("is not a regular file"));
}

#[cfg(unix)]
#[test]
fn a_link_in_the_place_of_an_own_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    fs::write(&file, b"0123").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    assert_eq!(map(&link).unwrap(), &b"0123"[..]);
    assert_eq!(map_own(&file).unwrap(), &b"0123"[..]);
    assert!(map_own(&link).is_err());
    let mut options = fs::OpenOptions::new();
    mapped::refuse_links(options.read(true));
    assert!(options.open(&file).is_ok());
    assert!(options.open(&link).is_err());
}

#[cfg(unix)]
#[test]
#[expect(clippy::print_stderr, reason = "a skipped test says why")]
fn an_unreadable_file_says_so() {
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), b"secret").unwrap();
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(file.path()).is_ok() {
        eprintln!("skipped: this user may read every file");
        return;
    }
    let error = map(file.path()).unwrap_err();
    assert!(error.to_string().starts_with("cannot open `"), "{error}");
    assert_eq!(error.source().unwrap().to_string(), "Permission denied (os error 13)");
}

/// KiB of mapped files that this process has in memory.
#[cfg(target_os = "linux")]
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn what_is_released_leaves_memory_and_is_read_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let data: Vec<u8> = (0..64u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(file.path(), &data).unwrap();
    let bytes = map(file.path()).unwrap();
    let before = resident_kib();
    assert_eq!(bytes, &data[..]);
    let touched = resident_kib();
    assert!(touched > before + (56 << 10), "{touched} after {before}");
    // But for a page at each end.
    mapped::release(&bytes[1..bytes.len() - 1]);
    let released = resident_kib();
    assert!(released < before + (8 << 10), "{released} after {touched}");
    assert_eq!(bytes, &data[..]);
    // What is no mapping stays what it is, and so does what is too small for a page.
    let copy = data.clone();
    mapped::release(&copy);
    mapped::release(&bytes[5..9]);
    mapped::release(&[]);
    assert_eq!(copy, data);
    assert_eq!(bytes, &data[..]);
}

#[cfg(unix)]
#[test]
fn a_file_has_the_same_identity_until_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    fs::write(&path, vec![7; 5000]).unwrap();
    let (first, second) = (map(&path).unwrap(), map(&path).unwrap());
    let identity = mapped::identity(&first).expect("of a file");
    assert_eq!(mapped::identity(&second.slice(100..200)), Some(identity));
    assert_eq!(mapped::identity(&[1, 2, 3]), None);
    assert_eq!(mapped::identity(&first.slice(..0)), None);
    // One byte in the middle, and the old time of modification restored.
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[8], 2500).unwrap();
    file.set_modified(modified).unwrap();
    drop(file);
    assert_ne!(mapped::identity(&map(&path).unwrap()), Some(identity));
    // Another file with the same bytes under the same name.
    let other = folder.path().join("other");
    fs::write(&other, vec![7; 5000]).unwrap();
    fs::rename(&other, &path).unwrap();
    assert_ne!(mapped::identity(&map(&path).unwrap()), Some(identity));
}
