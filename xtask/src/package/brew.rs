//! A formula of Homebrew, for macOS and Linux: it builds the program from an archive of the source.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use super::archive::{self, File};

/// The formula; what is between braces is filled in.
const FORMULA: &str = include_str!("../../../packaging/hotmetal.rb.in");

/// The source of the last commit, with its file name.
pub(super) fn source(root: &Path, version: &str) -> Result<File> {
    let prefix = format!("--prefix=hotmetal-{version}/");
    let mut git = Command::new("git");
    let output = git.current_dir(root).args(["archive", "--format=tar", &prefix, "HEAD"]).output();
    let output = output.context("cannot run `git`, which makes the archive of the source for the formula")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`git archive` fails: {}; the formula needs the repository", said.trim());
    Ok(File::new(format!("hotmetal-{version}.tar.gz"), archive::gzip(&output.stdout)?))
}

/// The formula of a source archive that will be at `url`, a folder.
pub(super) fn formula(source: &File, version: &str, url: &str) -> File {
    let digest: String = Sha256::digest(&source.bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let url = url.trim_end_matches('/');
    let fields = [
        ("{summary}", super::SUMMARY),
        ("{homepage}", url),
        ("{url}", &format!("{url}/{}", source.path)),
        ("{version}", version),
        ("{sha256}", &digest),
    ];
    let text = fields.iter().fold(FORMULA.to_owned(), |text, (field, value)| text.replace(field, value));
    File::new("hotmetal.rb", text)
}

#[cfg(test)]
mod tests {
    use super::super::archive::tests::unpacked;
    use super::*;

    #[test]
    fn a_formula_names_its_archive_with_its_digest() {
        let source = File::new("hotmetal-1.2.3.tar.gz", "abc");
        let formula = formula(&source, "1.2.3", "https://example.org/releases/");
        assert_eq!(formula.path, "hotmetal.rb");
        let text = String::from_utf8(formula.bytes).unwrap();
        for line in [
            "url \"https://example.org/releases/hotmetal-1.2.3.tar.gz\"",
            "homepage \"https://example.org/releases\"",
            "version \"1.2.3\"",
            "sha256 \"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"",
        ] {
            assert!(text.lines().any(|found| found.trim() == line), "{line}: {text}");
        }
        // The braces that are left are Ruby's.
        assert!(!text.contains("{summary}") && !text.contains("{url}"), "{text}");
    }

    #[test]
    fn the_source_is_that_of_the_last_commit_without_a_date_of_today() {
        let folder = tempfile::tempdir().unwrap();
        let error = source(folder.path(), "1.2.3").unwrap_err().to_string();
        assert!(error.contains("the formula needs the repository"), "{error}");
        std::fs::write(folder.path().join("a"), "text").unwrap();
        let name = ["-c", "user.name=a", "-c", "user.email=a@example.invalid"];
        for args in [&["init", "--quiet"][..], &["add", "a"], &["commit", "--quiet", "-m", "one"]] {
            assert!(Command::new("git").current_dir(folder.path()).args(name).args(args).status().unwrap().success());
        }
        std::fs::write(folder.path().join("b"), "not committed").unwrap();
        let archive = source(folder.path(), "1.2.3").unwrap();
        assert_eq!(archive.path, "hotmetal-1.2.3.tar.gz");
        assert_eq!(archive.bytes, source(folder.path(), "1.2.3").unwrap().bytes);
        let names: Vec<_> = unpacked(&archive.bytes).into_iter().map(|(name, ..)| name).collect();
        // The first entry is git's own: it has the commit.
        assert_eq!(names, ["pax_global_header", "hotmetal-1.2.3/", "hotmetal-1.2.3/a"]);
    }
}
