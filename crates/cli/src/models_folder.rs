//! `--models-dir`: which models a folder holds, and what clients call them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::output::note;

/// The models of a folder, each by its name, with its path.
///
/// # Errors
/// A folder that cannot be read, that holds no model, or in which two would have the same name.
pub(crate) fn models_in(folder: &Path) -> Result<Vec<(String, String)>> {
    let cannot = || format!("cannot read the folder `{}` of --models-dir", folder.display());
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        let Some(name) = name_of(&path) else { continue };
        let Some(text) = path.to_str() else {
            note(&format!("`{}` is left out, because its name is not UTF-8", path.display()));
            continue;
        };
        if let Some(other) = found.insert(name.clone(), text.to_owned()) {
            bail!("two models of --models-dir would be called `{name}`: rename `{other}` or `{text}`");
        }
    }
    if found.is_empty() {
        bail!(
            "the folder `{}` of --models-dir holds no model: expected .gguf files, and folders that hold a .gguf file or \
             a config.json",
            folder.display()
        );
    }
    Ok(found.into_iter().collect())
}

/// What clients call the model at this path; nothing of what is no model.
fn name_of(path: &Path) -> Option<String> {
    let file_name = path.file_name()?.to_string_lossy();
    if file_name.starts_with('.') {
        return None;
    }
    if path.is_dir() {
        let mut names = fs::read_dir(path).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        return names.any(|name| name == "config.json" || is_model_file(&name)).then(|| file_name.into_owned());
    }
    let stem = file_name.strip_suffix(".gguf").filter(|_| is_model_file(&file_name))?;
    // A model in parts has the name that stands before their numbers, and its first part leads to the others.
    match formats::gguf_name_parts(&file_name) {
        Some((whole, 1, _)) => Some(whole.to_owned()),
        Some(_) => None,
        None => Some(stem.to_owned()),
    }
}

/// Whether a file of this name is a model: a projector of images is a part of one.
fn is_model_file(name: &str) -> bool {
    name.ends_with(".gguf") && !name.starts_with("mmproj")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_of_models_are_found_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let files = [
            "b.gguf",
            "mmproj-b.gguf",
            "big-00001-of-00002.gguf",
            "big-00002-of-00002.gguf",
            "notes.txt",
            ".hidden.gguf",
            "a/config.json",
            "c/c-Q4.gguf",
            "d/mmproj-d.gguf",
            "e/readme.md",
        ];
        for name in files {
            fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            fs::write(path(name), "x").unwrap();
        }
        let found = models_in(folder.path()).unwrap();
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b", "big", "c"]);
        assert_eq!(found[2].1, path("big-00001-of-00002.gguf").to_str().unwrap());
        fs::write(path("a.gguf"), "x").unwrap();
        let clash = models_in(folder.path()).unwrap_err().to_string();
        assert!(clash.contains("would be called `a`") && clash.contains("a.gguf"), "{clash}");
        let empty = models_in(&path("e")).unwrap_err().to_string();
        assert!(empty.contains("holds no model") && empty.contains("config.json"), "{empty}");
        let missing = models_in(&path("nowhere")).unwrap_err().to_string();
        assert!(missing.contains("nowhere") && missing.contains("--models-dir"), "{missing}");
    }
}
