//! Archives whose bytes depend on nothing but what is in them: files in the order given, one date, no owner.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Command;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};

/// The mode of a file that everybody may read, and of one that everybody may run.
const READ: u32 = 0o644;
const RUN: u32 = 0o755;

/// A file of a package.
#[derive(Clone, Debug)]
pub(super) struct File {
    /// Where it is in the package, with `/` and without one at the beginning.
    pub(super) path: String,
    pub(super) bytes: Vec<u8>,
    pub(super) is_program: bool,
}

impl File {
    pub(super) fn new(path: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), bytes: bytes.into(), is_program: false }
    }

    pub(super) fn program(path: impl Into<String>, bytes: &[u8]) -> Self {
        Self { path: path.into(), bytes: bytes.to_vec(), is_program: true }
    }

    pub(super) fn mode(&self) -> u32 {
        if self.is_program { RUN } else { READ }
    }
}

/// Packs bytes by gzip, without a name and a date.
pub(super) fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    // "Unknown", so that no byte says on which system it was packed.
    let mut packed = GzBuilder::new().mtime(0).operating_system(255).write(Vec::new(), Compression::default());
    packed.write_all(bytes)?;
    Ok(packed.finish()?)
}

/// A `.tar.gz` of the files and of the folders above them. `date` is in seconds since 1970.
pub(super) fn tar_gz(files: &[File], date: u64) -> Result<Vec<u8>> {
    let header = |size: usize, mode: u32, kind: tar::EntryType| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size as u64);
        header.set_mode(mode);
        header.set_mtime(date);
        header.set_uid(0);
        header.set_gid(0);
        header
    };
    let mut archive = tar::Builder::new(Vec::new());
    let mut folders = BTreeSet::new();
    for file in files {
        for (end, _) in file.path.match_indices('/') {
            let folder = &file.path[..=end];
            if folders.insert(folder) {
                archive.append_data(&mut header(0, RUN, tar::EntryType::Directory), folder, &b""[..])?;
            }
        }
        let mut header = header(file.bytes.len(), file.mode(), tar::EntryType::Regular);
        archive
            .append_data(&mut header, &file.path, &file.bytes[..])
            .with_context(|| format!("cannot pack {}", file.path))?;
    }
    gzip(&archive.into_inner()?)
}

/// The date of everything in a package, in seconds since 1970: `SOURCE_DATE_EPOCH`, or else that of the last commit. A
/// source without its history has the first date that archives of every kind can hold.
pub(super) fn source_date(root: &std::path::Path) -> Result<u64> {
    /// 1980-01-01, before which a zip archive has no date.
    const FIRST: u64 = 315_532_800;
    if let Ok(given) = std::env::var("SOURCE_DATE_EPOCH") {
        return given.parse().with_context(|| format!("SOURCE_DATE_EPOCH is `{given}`, expected seconds since 1970"));
    }
    let output = Command::new("git").current_dir(root).args(["log", "-1", "--format=%ct"]).output();
    let said = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    let date = said.and_then(|said| String::from_utf8(said).ok()?.trim().parse().ok());
    Ok(date.unwrap_or(FIRST).max(FIRST))
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Read;

    use super::*;

    /// What is in a `.tar.gz`: name, mode, bytes.
    pub(crate) fn unpacked(archive: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(archive));
        let entry = |entry: std::io::Result<tar::Entry<'_, _>>| {
            let mut entry = entry.unwrap();
            let (mut bytes, path) = (Vec::new(), entry.path().unwrap().display().to_string());
            std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
            (path, entry.header().mode().unwrap(), bytes)
        };
        archive.entries().unwrap().map(entry).collect()
    }

    #[test]
    fn an_archive_has_its_folders_once_and_the_same_bytes_each_time() {
        let files = [File::program("usr/bin/x", b"run"), File::new("usr/bin/y", "read"), File::new("z", "")];
        let archive = tar_gz(&files, 1_700_000_000).unwrap();
        assert_eq!(archive, tar_gz(&files, 1_700_000_000).unwrap());
        let expected: [(&str, u32, &[u8]); 5] = [
            ("usr/", 0o755, b""),
            ("usr/bin/", 0o755, b""),
            ("usr/bin/x", 0o755, b"run"),
            ("usr/bin/y", 0o644, b"read"),
            ("z", 0o644, b""),
        ];
        assert_eq!(unpacked(&archive), expected.map(|(path, mode, bytes)| (path.to_owned(), mode, bytes.to_vec())));
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(&gzip(b"text").unwrap()[..]).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"text");
        // Neither a date nor a system is in its header.
        assert_eq!(gzip(b"text").unwrap()[4..10], [0, 0, 0, 0, 0, 255]);
    }
}
