//! Files that are read and not mapped. A program of its own, because the choice is the whole program's.

use std::fs;

use mapped::{MapError, map, read_instead_of_mapping};

#[test]
fn a_file_that_is_read_is_not_seen_to_change() {
    read_instead_of_mapping();
    let file = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = (0..100_000u32).map(|index| index as u8).collect();
    fs::write(file.path(), &bytes).unwrap();
    let read = map(file.path()).unwrap();
    assert_eq!(read.as_ptr() as usize % 4096, 0, "aligned as a mapping is");
    assert!(mapped::identity(&read).is_some());
    // Truncated and written again: a mapping would show it, or raise SIGBUS.
    fs::write(file.path(), b"short").unwrap();
    assert_eq!(read, bytes);
    assert_ne!(mapped::identity(&map(file.path()).unwrap()), mapped::identity(&read));
}

/// Files of sysfs have a size and no `mmap`, and hold fewer bytes than they say.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_ends_before_its_size_is_refused() {
    let path = std::path::Path::new("/sys/devices/system/cpu/online");
    assert!(matches!(map(path), Err(MapError::Read { .. })), "{:?}", map(path));
}
