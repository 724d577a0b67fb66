//! Documents name no chore that `cargo xtask` does not have.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn markdown(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && !["target", ".git"].iter().any(|skipped| name == *skipped) {
            markdown(&path, pages);
        } else if path.extension().is_some_and(|ending| ending == "md") {
            pages.push(path);
        }
    }
}

#[test]
fn documents_name_chores_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut pages = Vec::new();
    markdown(root, &mut pages);
    // Each chore with the pages that name it.
    let mut chores = BTreeMap::<String, Vec<&Path>>::new();
    for page in &pages {
        for behind in std::fs::read_to_string(page).unwrap().split("cargo xtask ").skip(1) {
            let chore = behind.split(|c: char| !(c.is_ascii_lowercase() || c == '-')).next().unwrap_or_default();
            if !chore.is_empty() && !chore.starts_with('-') {
                chores.entry(chore.to_owned()).or_default().push(page);
            }
        }
    }
    assert!(chores.len() > 4, "{chores:?}");
    let program = env!("CARGO_BIN_EXE_xtask");
    let is_known = |chore: &str| Command::new(program).args([chore, "--help"]).output().unwrap().status.success();
    assert!(!is_known("alphabetise"));
    for (chore, pages) in chores {
        assert!(is_known(&chore), "`cargo xtask {chore}` is in {pages:?}");
    }
}
