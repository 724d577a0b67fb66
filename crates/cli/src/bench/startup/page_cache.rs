//! Takes a file out of the system's cache, so that the next process reads it from disk.

use std::path::Path;

use anyhow::Result;

/// Whether the file is out of the cache.
pub(super) enum Dropped {
    Yes,
    /// It is not, and why.
    No(String),
}

/// Asks the system to forget what it holds of the file, and looks whether it did.
#[cfg(target_os = "linux")]
pub(super) fn drop_file(path: &Path) -> Result<Dropped> {
    use anyhow::Context;
    use rustix::fs::{Advice, fadvise};
    use rustix::io::{Errno, ReadWriteFlags, preadv2};

    let cannot = || format!("cannot take `{}` out of the cache", path.display());
    let file = std::fs::File::open(path).with_context(cannot)?;
    // Pages that are not on disk yet cannot be forgotten.
    file.sync_all().with_context(cannot)?;
    fadvise(&file, 0, None, Advice::DontNeed).with_context(cannot)?;
    let len = file.metadata().with_context(cannot)?.len();
    let mut byte = [0];
    for place in [0, len / 2, len.saturating_sub(1)] {
        // Reads only what needs no disk. The file system may not be able to tell; then nothing can be claimed.
        match preadv2(&file, &mut [std::io::IoSliceMut::new(&mut byte)], place, ReadWriteFlags::NOWAIT) {
            Err(Errno::AGAIN) => {}
            Ok(_) => {
                let reason = format!("the system keeps `{}` in memory although asked to forget it", path.display());
                return Ok(Dropped::No(reason));
            }
            Err(error) => {
                let reason =
                    format!("the file system of `{}` does not say what is in the cache: {error}", path.display());
                return Ok(Dropped::No(reason));
            }
        }
    }
    Ok(Dropped::Yes)
}

/// Nobody has tried on other systems yet.
#[cfg(not(target_os = "linux"))]
pub(super) fn drop_file(_: &Path) -> Result<Dropped> {
    Ok(Dropped::No("this system has no word for it that we know".to_owned()))
}
