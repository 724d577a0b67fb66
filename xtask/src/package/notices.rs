//! The licences of what the program is made of, as one text: MIT and BSD licences ask that their words go with a copy.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::sbom::CrateInProgram;

/// How the names of files with licences begin, in capitals.
const BEGINNINGS: [&str; 6] = ["COPYING", "COPYRIGHT", "LICENCE", "LICENSE", "NOTICE", "UNLICENSE"];
/// Where the licences of the chat page's libraries are.
const OF_PAGE: &str = "crates/server/src/page/vendor/LICENSES.txt";

/// The text for the crates that are in the program, and for the libraries of the chat page.
pub(super) fn notices(root: &Path, crates: &[CrateInProgram]) -> Result<String> {
    let path = root.join(OF_PAGE);
    let page = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut found = Vec::new();
    for one in crates {
        found.push((one, texts_in(&one.folder)?));
    }
    Ok(format!("{}\n{RULE}\nThe libraries of the chat page\n{RULE}\n\n{page}", of_crates(&found)))
}

/// The licence files of a crate's folder, in the order of their names.
fn texts_in(folder: &Path) -> Result<Vec<String>> {
    let context = || format!("cannot read the licences in {}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(context)? {
        let path = entry.with_context(context)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        // Some have code of that name.
        let is_code = path.extension().is_some_and(|ending| ending == "rs" || ending == "toml");
        if path.is_file() && !is_code && BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)) {
            paths.push(path);
        }
    }
    paths.sort();
    let read = |path| Ok(String::from_utf8_lossy(&fs::read(path).with_context(context)?).trim_end().to_owned());
    paths.iter().map(read).collect()
}

const RULE: &str = "--------------------------------------------------------------------------------";

/// A list of the crates, and each text once, below the names of those that have it.
fn of_crates(crates: &[(&CrateInProgram, Vec<String>)]) -> String {
    let mut all =
        "Hotmetal is made of the following crates, and of Rust's standard library (MIT OR Apache-2.0).\n\n".to_owned();
    let mut by_text: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (one, texts) in crates {
        let name = format!("{} {}", one.name, one.version);
        let none = if texts.is_empty() { " (its package has no text of it)" } else { "" };
        let _ = writeln!(all, "{name}: {}{none}", one.license);
        for text in texts {
            by_text.entry(text).or_default().push(name.clone());
        }
    }
    let mut sorted: Vec<_> = by_text.into_iter().collect();
    sorted.sort_by(|(_, one), (_, other)| one.cmp(other));
    for (text, names) in sorted {
        let _ = write!(all, "\n{RULE}\n{}\n{RULE}\n\n{text}\n", names.join(", "));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, folder: &Path) -> CrateInProgram {
        let (name, version, license) = (name.to_owned(), "1.0.0".to_owned(), "MIT".to_owned());
        CrateInProgram { name, version, license, folder: folder.to_owned() }
    }

    #[test]
    fn each_text_stands_once_below_all_that_have_it() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("one/LICENSE-MIT", "words of MIT\n");
        write("one/license-apache.txt", "words of Apache\n");
        write("one/licenses.rs", "code");
        write("two/LICENSE", "words of MIT");
        write("three/README.md", "none");
        write(OF_PAGE, "marked.js: marked 1.0.0 (MIT)\n");
        let crates = ["one", "two", "three"].map(|name| package(name, &folder.path().join(name)));
        let text = notices(folder.path(), &crates).unwrap();
        assert_eq!(text.matches("words of MIT").count(), 1, "{text}");
        assert!(text.contains(&format!("{RULE}\none 1.0.0, two 1.0.0\n{RULE}\n\nwords of MIT\n")), "{text}");
        assert!(text.contains("words of Apache") && !text.contains("code"), "{text}");
        assert!(text.contains("\nthree 1.0.0: MIT (its package has no text of it)\n"), "{text}");
        assert!(text.ends_with("marked.js: marked 1.0.0 (MIT)\n"), "{text}");
    }
}
