//! The calls through which a pull changes the disk. They are a trait so that tests can make each one fail, and can end
//! the program at each one with only what was synced left.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use mapped::refuse_links;

use super::error::{HubError, disk_error};

/// See the module.
pub(super) trait Disk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Opens for reading, and for writing at the end; makes the file if it is missing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Replaces `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Makes `link` show the file that `target`, relative to the link's folder, names.
    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()>;
    /// Makes the names in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Bytes that this user may still write in `dir`, which exists.
    fn available(&self, dir: &Path) -> io::Result<u64>;
}

/// An open file, written only at its end.
pub(super) trait DiskFile: Read + Write {
    fn len(&mut self) -> io::Result<u64>;
    fn rewind(&mut self) -> io::Result<()>;
    fn truncate(&mut self) -> io::Result<()>;
    /// Makes the content durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// The disk itself.
pub(super) struct RealDisk;

impl Disk for RealDisk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(refuse_links(OpenOptions::new().read(true).append(true).create(true)).open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    #[cfg(unix)]
    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(target, link)
    }

    #[cfg(windows)]
    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        std::os::windows::fs::symlink_file(target, link)
    }

    #[cfg(unix)]
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    #[cfg(windows)]
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(()) // a folder cannot be opened there; NTFS keeps its own journal of names
    }

    fn available(&self, dir: &Path) -> io::Result<u64> {
        fs4::available_space(dir)
    }
}

/// Opens, and makes if needed, a file whose only purpose is to be locked.
pub(super) fn open_lock(path: &Path) -> Result<File, HubError> {
    let open = || refuse_links(OpenOptions::new().write(true).create(true).truncate(false)).open(path);
    open().map_err(disk_error("open the lock", path))
}

impl DiskFile for File {
    fn len(&mut self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn rewind(&mut self) -> io::Result<()> {
        self.seek(SeekFrom::Start(0)).map(drop)
    }

    fn truncate(&mut self) -> io::Result<()> {
        self.set_len(0)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}
