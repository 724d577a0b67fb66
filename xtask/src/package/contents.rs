//! What packages hold besides the program: licences, pages of `man`, completions, the bill of materials.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::archive::File;
use super::program::Needs;

/// The shells whose completions packages carry: as clap names them, and what the file of its script is called.
const SHELLS: [(&str, &str); 3] = [("bash", "hotmetal"), ("zsh", "_hotmetal"), ("fish", "hotmetal.fish")];

/// What is packed.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    /// Of the program and of each package of it.
    pub(super) version: String,
    pub(super) program: Vec<u8>,
    pub(super) needs: Needs,
    /// Pages of `man`, by their file names.
    pub(super) pages: Vec<File>,
    /// Scripts of completions, in the order of [`SHELLS`].
    pub(super) completions: Vec<File>,
    /// The texts that the program's licences ask to go with it: ours, and those of what it is made of.
    pub(super) licences: Vec<File>,
    /// The line of our licence that says whose the program is.
    pub(super) copyright: String,
    /// The bill of materials, in CycloneDX.
    pub(super) bill: Vec<u8>,
    pub(super) readme: String,
    pub(super) changelog: Vec<u8>,
    /// The unit of systemd.
    pub(super) unit: String,
    /// Of every file, in seconds since 1970.
    pub(super) date: u64,
}

/// Runs the program with `args`, and returns what it prints.
fn printed(program: &Path, args: &[&str]) -> Result<Vec<u8>> {
    let what = || format!("`{} {}`", program.display(), args.join(" "));
    let output = Command::new(program).args(args).output().with_context(|| format!("cannot run {}", what()))?;
    ensure!(output.status.success(), "{} fails: {}", what(), String::from_utf8_lossy(&output.stderr).trim());
    Ok(output.stdout)
}

/// The version that a program says it has.
///
/// # Errors
/// A program that is not Hotmetal, or is one of another version than this source.
pub(super) fn check_version(program: &Path, version: &str) -> Result<()> {
    let said = String::from_utf8_lossy(&printed(program, &["--version"])?).trim().to_owned();
    ensure!(
        said == format!("hotmetal {version}"),
        "`{} --version` says `{said}`, and this source is `hotmetal {version}`: build it again, or leave --binary out",
        program.display()
    );
    Ok(())
}

/// The pages of `man` that the program writes about itself, in the order of their names.
pub(super) fn pages(program: &Path) -> Result<Vec<File>> {
    let folder = std::env::temp_dir().join(format!("hotmetal-man-{}", std::process::id()));
    let written = printed(program, &["man", &folder.to_string_lossy()]).and_then(|_| read_all(&folder));
    let _ = fs::remove_dir_all(&folder);
    let pages = written?;
    ensure!(!pages.is_empty(), "`{} man` wrote no page", program.display());
    Ok(pages)
}

/// The files of a folder, in the order of their names.
fn read_all(folder: &Path) -> Result<Vec<File>> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    paths.sort();
    let file = |path: PathBuf| {
        let name = path.file_name().context("a folder's entry has a name")?.to_string_lossy().into_owned();
        Ok(File::new(name, fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?))
    };
    paths.into_iter().map(file).collect()
}

/// The completions that the program prints, in the order of [`SHELLS`].
pub(super) fn completions(program: &Path) -> Result<Vec<File>> {
    SHELLS.iter().map(|(shell, name)| Ok(File::new(*name, printed(program, &["completions", shell])?))).collect()
}

/// The texts of our licences.
pub(super) fn own_licences(root: &Path) -> Result<Vec<File>> {
    let read = |name: &str| {
        let path = root.join(name);
        Ok(File::new(name, fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?))
    };
    ["LICENSE-APACHE", "LICENSE-MIT"].into_iter().map(read).collect()
}

/// The line of a licence that says whose the program is, without "Copyright (c)".
pub(super) fn copyright(licences: &[File]) -> Result<String> {
    let lines = licences.iter().flat_map(|file| std::str::from_utf8(&file.bytes).unwrap_or_default().lines());
    let found = lines.filter_map(|line| line.strip_prefix("Copyright (c) ")).next();
    Ok(found.context("LICENSE-MIT has no line that begins with `Copyright (c)`")?.to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::program::Machine;
    use super::*;

    /// A small program that is none, with a little of everything.
    pub(crate) fn small() -> Contents {
        let own = own_licences(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
        let unit = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/hotmetal.service"));
        Contents {
            version: "1.2.3".into(),
            program: b"#!/bin/sh\necho hotmetal 1.2.3\n".to_vec(),
            needs: Needs { machine: Machine::X86_64, glibc: Some((2, 34)), libgcc: true },
            pages: vec![File::new("hotmetal-run.1", "run"), File::new("hotmetal.1", "all")],
            completions: SHELLS.map(|(shell, name)| File::new(name, shell)).to_vec(),
            copyright: copyright(&own).unwrap(),
            licences: own.into_iter().chain([File::new("THIRD_PARTY_LICENSES.txt", "theirs")]).collect(),
            bill: b"{}".to_vec(),
            readme: "# Hotmetal\n\nRuns.\n".into(),
            changelog: b"# Changelog\n".to_vec(),
            unit: unit.unwrap(),
            date: 1_700_000_000,
        }
    }

    #[test]
    fn the_licence_says_whose_it_is() {
        let contents = small();
        assert!(contents.copyright.ends_with("The Hotmetal authors"), "{}", contents.copyright);
        assert!(copyright(&[File::new("LICENSE-MIT", "MIT License")]).is_err());
    }

    #[test]
    #[cfg(unix)]
    fn a_program_of_another_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(&path, small().program).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, mode).unwrap();
        check_version(&path, "1.2.3").unwrap();
        let error = check_version(&path, "1.2.4").unwrap_err().to_string();
        assert!(error.contains("says `hotmetal 1.2.3`, and this source is `hotmetal 1.2.4`"), "{error}");
        // It writes no page, whatever it is asked for.
        assert!(pages(&path).is_err());
        assert_eq!(completions(&path).unwrap().len(), SHELLS.len());
    }
}
