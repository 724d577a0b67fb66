//! Names that come from outside (arguments, a server's answers) and become paths or parts of URLs: each is checked
//! once, here, when the type is made.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::error::{HubError, shown};

/// The longest name of a repository, revision or file that is accepted, in bytes.
const NAME_BYTES_MAX: usize = 1024;

/// `ORG/REPO`, or the single name that a few early repositories have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RepoId(String);

impl RepoId {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of its folder in the cache.
    pub(super) fn folder(&self) -> String {
        format!("models--{}", self.0.replace('/', "--"))
    }

    /// The inverse of [`Self::folder`].
    pub(super) fn from_folder(folder: &str) -> Option<Self> {
        folder.strip_prefix("models--")?.replacen("--", "/", 1).parse().ok()
    }
}

impl FromStr for RepoId {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let part_is_fine = |part: &str| {
            !part.is_empty()
                && part.len() <= 96
                && !part.starts_with(['.', '-'])
                && !part.ends_with(['.', '-'])
                && !part.contains("--")
                && !part.contains("..")
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        if text.split('/').count() <= 2 && text.split('/').all(part_is_fine) {
            Ok(Self(text.to_owned()))
        } else {
            Err(HubError::RepoName { name: text.to_owned() })
        }
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a command is asked for: `ORG/REPO`, `ORG/REPO:FILE` or `ORG/REPO:QUANT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelRef {
    pub(crate) repo: RepoId,
    /// A file's name or that of a quantization, such as `Q8_0`.
    pub(crate) file: Option<String>,
}

impl FromStr for ModelRef {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let (repo, file) = match text.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (text, None),
        };
        if let Some(file) = file {
            check_file_name(file)?;
        }
        Ok(Self { repo: repo.parse()?, file: file.map(str::to_owned) })
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}:{file}", self.repo),
            None => write!(f, "{}", self.repo),
        }
    }
}

/// Refuses a file name that could leave its folder, here or on another system, or garble a terminal.
pub(super) fn check_file_name(name: &str) -> Result<(), HubError> {
    let component_is_fine =
        |c: &str| !c.is_empty() && c != "." && c != ".." && c.len() <= 255 && !c.contains(['\\', ':']);
    if name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control) && name.split('/').all(component_is_fine) {
        Ok(())
    } else {
        Err(HubError::FileName { name: shown(name) })
    }
}

/// A branch, tag or `refs/pr/1`; also checked as a path, since `refs/` holds a file of that name.
pub(super) fn check_revision(revision: &str) -> Result<(), HubError> {
    if check_file_name(revision).is_ok() && !revision.starts_with('-') {
        Ok(())
    } else {
        Err(HubError::Revision { revision: shown(revision) })
    }
}

/// A commit or an etag as one path component: letters, digits, `-`, `_` and dots inside.
pub(super) fn is_plain_component(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && !text.starts_with('.')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

/// A checked file name as a path.
pub(super) fn to_path(name: &str) -> PathBuf {
    name.split('/').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_names_round_trip_through_their_folder() {
        for name in ["Qwen/Qwen3-0.6B", "org/a_b.c-d", "gpt2"] {
            let repo: RepoId = name.parse().unwrap();
            assert_eq!(RepoId::from_folder(&repo.folder()), Some(repo));
        }
        assert_eq!("org/repo".parse::<RepoId>().unwrap().folder(), "models--org--repo");
    }

    #[test]
    fn what_is_no_repository_name_is_refused() {
        for name in
            ["", "/", "a/", "/a", "a/b/c", "../a", "a/..", "./a", "a/b--c", "a b/c", "a/b\n", "a/-b", "ä/b", "~/a"]
        {
            assert!(name.parse::<RepoId>().is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_file_name_cannot_leave_its_folder() {
        for name in ["config.json", "Q8_0/model-00001-of-00002.gguf", "a/..b", "été.txt"] {
            check_file_name(name).unwrap();
        }
        let long = "a/".repeat(600) + "a";
        for name in
            ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/.", "a\\..\\b", "C:x", "a\0b", "a\x1b[2Jb", "a/", &long]
        {
            assert!(check_file_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_model_reference_splits_at_the_first_colon() {
        let model: ModelRef = "org/repo:Q8_0/a.gguf".parse().unwrap();
        assert_eq!((model.repo.as_str(), model.file.as_deref()), ("org/repo", Some("Q8_0/a.gguf")));
        assert!("org/repo:".parse::<ModelRef>().is_err());
        assert!("org/repo:../x".parse::<ModelRef>().is_err());
        assert!("C:\\model".parse::<ModelRef>().is_err());
    }
}
