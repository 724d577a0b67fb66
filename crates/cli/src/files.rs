//! Small files that a user names: read with a bound, and written whole or not at all.
//!
//! `/dev/zero`, or a wrong file of many gigabytes, as a prompt or a template would fill the memory before anything is said.
//! A report or a receipt that is written in place is half there when the disk is full or the program is ended, and the
//! one that was there before is gone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::units;

/// The most bytes of a text that is prompted with, scored or learned from.
pub(crate) const TEXT_BYTES_MAX: u64 = 1 << 30;
/// The most bytes of a JSON result of ours.
pub(crate) const RESULT_BYTES_MAX: u64 = 256 << 20;
/// The most bytes of a file of settings: keys, a template.
pub(crate) const SETTINGS_BYTES_MAX: u64 = 4 << 20;

/// The folder of what can be made again: `hotmetal` in the user's cache folder, where one is known.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("hotmetal"))
}

/// The file that keeps the lines typed into conversations: `hotmetal/history` in the user's folder of state, if there is
/// one.
pub(crate) fn history_file() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").filter(|state| !state.is_empty()).map(PathBuf::from);
    let state = state.or_else(|| std::env::home_dir().map(|home| home.join(".local/state")));
    state.map(|state| state.join("hotmetal/history"))
}

/// The bytes of the file at `path`, which has at most `most` bytes, and in messages `what` before its name: `the prompt
/// file`, or nothing. It may be a pipe.
pub(crate) fn read(path: &Path, what: &str, most: u64) -> Result<Vec<u8>> {
    read_with(File::options().read(true), path, what, most)
}

/// See [`read`].
fn read_with(options: &OpenOptions, path: &Path, what: &str, most: u64) -> Result<Vec<u8>> {
    let name = named(path, what);
    let failed = || format!("cannot read {name}");
    let mut bytes = Vec::new();
    options.open(path).with_context(failed)?.take(most + 1).read_to_end(&mut bytes).with_context(failed)?;
    if bytes.len() as u64 > most {
        let most = units::bytes(most);
        bail!("cannot read {name}: it has more than {most}, which is the most that is read; is it the right file?");
    }
    Ok(bytes)
}

/// The text of the file at `path`: see [`read`].
pub(crate) fn read_text(path: &Path, what: &str, most: u64) -> Result<String> {
    text_of(read(path, what, most)?, path, what)
}

/// The text of the file at `path`, which this program has written into its cache: see [`read`]. A link in its place is
/// refused.
pub(crate) fn read_own_text(path: &Path, what: &str, most: u64) -> Result<String> {
    text_of(read_with(mapped::refuse_links(File::options().read(true)), path, what, most)?, path, what)
}

fn text_of(bytes: Vec<u8>, path: &Path, what: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow::anyhow!("cannot read {}: it is no UTF-8 text, from byte {at} on", named(path, what))
    })
}

fn named(path: &Path, what: &str) -> String {
    let space = if what.is_empty() { "" } else { " " };
    format!("{what}{space}`{}`", path.display())
}

/// Writes a file whole: under another name first, which becomes `path` once all is on disk. What `path` held before stays
/// until then. A pipe or device is written to as it is.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    try_write(path, bytes).with_context(|| format!("cannot write `{}`", path.display()))
}

/// Writes a file of the cache whole, into a folder that is made if needed. A link in its place is replaced, and none is
/// written through.
pub(crate) fn write_own(path: &Path, bytes: &[u8]) -> Result<()> {
    let begun = match path.parent().map(fs::create_dir_all) {
        Some(Err(error)) => Err(error),
        _ => Begun::create_own(path),
    };
    let write = |mut begun: Begun| {
        begun.file().write_all(bytes)?;
        begun.finish()
    };
    begun.and_then(write).with_context(|| format!("cannot write `{}`", path.display()))
}

/// See [`write()`].
pub(crate) fn try_write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut begun = Begun::create(path)?;
    begun.file().write_all(bytes)?;
    begun.finish()
}

/// A file that is being written, and is at its path once it is whole. Dropped before that, it leaves nothing.
pub(crate) struct Begun {
    file: File,
    /// The name until then, and that of after; none of a pipe or a device, which is written to as it is.
    names: Option<(PathBuf, PathBuf)>,
}

impl Begun {
    /// Begins the file for `path`.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Ok(Self { file: File::options().write(true).open(path)?, names: None });
        }
        // A link stays one: what it points to is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let partial = partial_name(&path)?;
        let file = File::create(&partial)?;
        let begun = Self { file, names: Some((partial, path)) };
        if let Some(before) = begun.names.as_ref().and_then(|(_, path)| fs::metadata(path).ok()) {
            begun.file.set_permissions(before.permissions())?;
        }
        Ok(begun)
    }

    /// Begins the file of the cache for `path`, under a name that is new.
    fn create_own(path: &Path) -> io::Result<Self> {
        let partial = partial_name(path)?;
        // Of a process that had this number and was ended.
        match fs::remove_file(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = File::create_new(&partial)?;
        Ok(Self { file, names: Some((partial, path.to_owned())) })
    }

    /// Where to write.
    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Puts the whole file in its place.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        if let Some((partial, path)) = &self.names {
            self.file.sync_all()?;
            fs::rename(partial, path)?;
            self.names = None;
        }
        Ok(())
    }
}

/// What the file for `path` is called until it is whole.
fn partial_name(path: &Path) -> io::Result<PathBuf> {
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{}.partial", std::process::id()));
    Ok(path.with_file_name(name))
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some((partial, _)) = &self.names {
            // Best effort: the error that matters is the one that kept the file from being finished.
            let _ = fs::remove_file(partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_end_is_refused_with_its_name() {
        #[cfg(unix)]
        {
            let error = read(Path::new("/dev/zero"), "the prompt file", 1 << 20).unwrap_err().to_string();
            assert!(error.contains("the prompt file `/dev/zero`") && error.contains("more than"), "{error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        fs::write(&path, "four").unwrap();
        assert_eq!(read_text(&path, "", 4).unwrap(), "four");
        assert!(read_text(&path, "", 3).is_err());
        fs::write(&path, b"ab\xff").unwrap();
        assert!(read_text(&path, "", 4).unwrap_err().to_string().contains("byte 2"));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_of_the_cache_is_neither_read_nor_written_through_a_link() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let (other, path) = (folder.path().join("other"), folder.path().join("cache/kept"));
        fs::write(&other, "another's").unwrap();
        fs::create_dir(folder.path().join("cache")).unwrap();
        symlink(&other, &path).unwrap();
        symlink(&other, partial_name(&path).unwrap()).unwrap();
        let error = format!("{:#}", read_own_text(&path, "what is kept", 100).unwrap_err());
        assert!(error.contains("cannot read what is kept `") && error.contains("kept`: "), "{error}");
        write_own(&path, b"own").unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"another's");
        assert!(!path.is_symlink() && read_own_text(&path, "", 100).unwrap() == "own");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        write(&path, b"old").unwrap();
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        // Where the last step cannot be done, nothing is left beside it.
        let busy = folder.path().join("busy");
        fs::create_dir(&busy).unwrap();
        assert!(write(&busy, b"x").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        #[cfg(unix)]
        {
            let link = folder.path().join("link");
            std::os::unix::fs::symlink(&path, &link).unwrap();
            write(&link, b"through").unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(fs::read(&path).unwrap(), b"through");
            write(Path::new("/dev/null"), b"x").unwrap();
        }
    }
}
