//! Files mapped into memory, as reference-counted [`Bytes`]: the only place where files meet `unsafe`. The allocator's
//! settings ([`keep_few_arenas`], [`give_back_free_memory`]) are here too, since they take calls of the system's library.
//!
//! Knows nothing of what the bytes mean. A mapping is read only and shared, so several processes that use one model
//! share one copy of it in memory.
//!
//! The one promise a mapping cannot keep: if another process truncates the file, reading what is gone raises SIGBUS.
//! [`install_sigbus_message`] turns that into a message and an exit code instead of a bare crash. After
//! [`read_instead_of_mapping`], and by itself where the file system cannot map, a file is read into memory whole.

mod arenas;
mod identity;
#[cfg(unix)]
mod sigbus;

use std::{
    fs::{File, Metadata, OpenOptions},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use memmap2::{Mmap, MmapMut};

pub use arenas::{give_back_free_memory, keep_few_arenas};
pub use identity::FileIdentity;
use identity::Known;
#[cfg(unix)]
pub use sigbus::{TRUNCATED_EXIT_CODE, install_sigbus_message};

/// Why a file could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// There is nothing at this path.
    #[error("there is no file `{}`: check the spelling and the current directory", path.display())]
    Missing {
        /// The path asked for.
        path: PathBuf,
    },
    /// The path is a directory.
    #[error("`{}` is a directory, where a file was expected", path.display())]
    Directory {
        /// The path asked for.
        path: PathBuf,
    },
    /// A fifo, socket or device: such a file has no length to map.
    #[error("`{}` is not a regular file (a pipe, socket or device cannot be mapped): copy it to a file first", path.display())]
    NotRegular {
        /// The path asked for.
        path: PathBuf,
    },
    /// The file has no bytes.
    #[error("`{}` is empty: is the download complete?", path.display())]
    Empty {
        /// The path asked for.
        path: PathBuf,
    },
    /// The operating system refused to open the file.
    #[error("cannot open `{}`", path.display())]
    Open {
        /// The path asked for.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file cannot be read whole, or the memory for it is not there.
    #[error("cannot read the {len} bytes of `{}` into memory", path.display())]
    Read {
        /// The path asked for.
        path: PathBuf,
        /// The file's length in bytes.
        len: u64,
        /// What the operating system said.
        source: io::Error,
    },
}

/// Whether [`map`] reads files.
static READS: AtomicBool = AtomicBool::new(false);

/// From now on [`map`] reads files into memory of this process and maps none: for file systems over a network whose pages
/// come slowly, and where a file may be truncated while it is used. Takes the file's size in memory, and the time to read
/// it all at the start. Like an allocator, it is the whole program's choice.
pub fn read_instead_of_mapping() {
    READS.store(true, Ordering::Relaxed);
}

/// The whole of the regular file at `path`, read only. It is mapped: pages are read from disk as they are touched, and the
/// mapping lives as long as the last slice of the returned bytes. Where it cannot be mapped (some file systems of FUSE, 9p
/// and of networks have no `mmap`), or is not to be ([`read_instead_of_mapping`]), it is read.
pub fn map(path: &Path) -> Result<Bytes, MapError> {
    map_at(path, Links::Followed)
}

/// As [`map`], of a file that this program itself has written under this name. A symbolic link in its place is refused,
/// because whoever can write to the folder could show another file by it.
pub fn map_own(path: &Path) -> Result<Bytes, MapError> {
    map_at(path, Links::Refused)
}

/// What is done where the path itself is a symbolic link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    Followed,
    Refused,
}

fn map_at(path: &Path, links: Links) -> Result<Bytes, MapError> {
    let open_error = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => MapError::Missing { path: path.into() },
        _ => MapError::Open { path: path.into(), source },
    };
    // Looked at before it is opened, because opening some devices has effects; and again after, because it may have
    // been replaced in between.
    let seen = if links == Links::Followed { path.metadata() } else { path.symlink_metadata() };
    regular_file_len(path, &seen.map_err(open_error)?)?;
    let file = open(path, links).map_err(open_error)?;
    let metadata = file.metadata().map_err(open_error)?;
    let len = regular_file_len(path, &metadata)?;
    let identity = FileIdentity::of(&metadata);
    if !READS.load(Ordering::Relaxed) {
        // SAFETY: the mapping is read only and we hand out shared slices of it. That nobody else writes to the file while
        // it is mapped cannot be enforced: every reader of these bytes checks what it reads and keeps no assumption about
        // bytes it has read before, and a file that shrinks ends the process (see `sigbus`).
        match unsafe { Mmap::map(&file) } {
            Ok(map) => {
                #[cfg(unix)]
                let map = sigbus::Watched::new(map);
                return Ok(Bytes::from_owner(Known::new(map, identity)));
            }
            Err(error) => {
                tracing::warn!("`{}` cannot be mapped ({error}), so all of it is read into memory", path.display());
            }
        }
    }
    let read = read_whole(file, len).map_err(|source| MapError::Read { path: path.into(), len, source })?;
    Ok(Bytes::from_owner(Known::new(read, identity)))
}

/// The file that these bytes came from by [`map`], if they did and are still part of what it returned.
pub fn identity(bytes: &[u8]) -> Option<FileIdentity> {
    identity::identity(bytes)
}

/// The `len` bytes of a file, in pages of their own: aligned as a mapping is, and refused and not overcommitted by an
/// allocator that ends the program.
fn read_whole(mut file: File, len: u64) -> io::Result<Mmap> {
    let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let mut memory = MmapMut::map_anon(len)?;
    file.read_exact(&mut memory)?;
    memory.make_read_only()
}

/// Lets go of what memory holds of these bytes, if they are of a mapped file; they are read from the file again if they are
/// needed. For a program that goes through a file once, and is to stay small. Of other bytes, and on other systems than Unix,
/// nothing happens.
pub fn release(bytes: &[u8]) {
    #[cfg(unix)]
    sigbus::release(bytes);
    #[cfg(not(unix))]
    let _ = bytes;
}

fn regular_file_len(path: &Path, metadata: &Metadata) -> Result<u64, MapError> {
    let path = || path.to_path_buf();
    if metadata.is_dir() {
        return Err(MapError::Directory { path: path() });
    }
    if !metadata.is_file() {
        return Err(MapError::NotRegular { path: path() });
    }
    if metadata.len() == 0 {
        return Err(MapError::Empty { path: path() });
    }
    Ok(metadata.len())
}

/// The same options, but opening fails where the path itself is a symbolic link: for files that this program writes under
/// names of its own, as in a cache. It makes no links there, so one was put there by somebody who would have another file
/// read or written. Only Unix can refuse them while opening.
pub fn refuse_links(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NOFOLLOW);
    options
}

/// Opens for reading, without waiting: a file that became a fifo since it was looked at must not block.
fn open(path: &Path, links: Links) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        let no_links = if links == Links::Refused { libc::O_NOFOLLOW } else { 0 };
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | no_links);
    }
    #[cfg(not(unix))]
    let _ = links;
    options.open(path)
}
