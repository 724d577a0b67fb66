//! What can go wrong with the hub and its cache, in words that say what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::units;

/// Why a model could not be found, brought here or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HubError {
    #[error("no folder for models is known: set HOME, HF_HOME or HF_HUB_CACHE")]
    NoCacheFolder,

    #[error("HF_ENDPOINT is `{endpoint}`, but must start with https:// or http://")]
    Endpoint { endpoint: String },

    #[error(
        "`{}` is not the name of a repository: expected ORG/REPO, of letters, digits, `-`, `_` and `.`",
        shown(name)
    )]
    RepoName { name: String },

    #[error("file name `{name}` is refused: it could lead outside the cache")]
    FileName { name: String },

    #[error("`{revision}` cannot be a revision: expected a branch, a tag or a commit")]
    Revision { revision: String },

    #[error("{repo} has no file and no single quantization `{wanted}`; it has:{choice}")]
    NoSuchFile { repo: String, wanted: String, choice: String },

    #[error(
        "{repo} holds several models{}: choose one, as in `{repo}:FILE` or `{repo}:Q8_0`, from:{choice}",
        wanted.as_ref().map(|wanted| format!(" that are called `{wanted}`")).unwrap_or_default()
    )]
    Ambiguous { repo: String, wanted: Option<String>, choice: String },

    #[error("{repo} has only {found} of {count} parts of `{stem}`: pull it again to complete it")]
    MissingParts { repo: String, stem: String, found: usize, count: usize },

    #[error(
        "{repo} has no weights in safetensors or GGUF{}",
        found.as_ref().map(|file| format!(", but `{file}`, which is not read: convert it")).unwrap_or_default()
    )]
    NoWeights { repo: String, found: Option<String> },

    #[error("{what} is not in the cache `{}`, and HF_HUB_OFFLINE is set: unset it to download", cache.display())]
    Offline { what: String, cache: PathBuf },

    #[error("{repo}: {why} (the hub answered {status})")]
    Refused { repo: String, status: u16, why: String },

    #[error("{url} answered {status}{}", message.as_ref().map(|m| format!(": {m}")).unwrap_or_default())]
    Status { url: String, status: u16, message: Option<String>, retry_after: Option<Duration> },

    #[error("cannot reach {url}: {source}; is there a network, or is HF_ENDPOINT or a proxy to be set?")]
    Network { url: String, source: ureq::Error },

    #[error("{url} gave an answer that is not understood: {what}")]
    Answer { url: String, what: String },

    #[error("{url} redirects to {target}, which is refused: {why}")]
    Redirect { url: String, target: String, why: &'static str },

    #[error("`{file}`: the connection ended after {} of {} bytes: {source}", units::count(*have), units::count(*size))]
    Cut { file: String, have: u64, size: u64, source: io::Error },

    #[error("`{file}` arrived with the wrong checksum, twice: expected {expected}, found {found}; nothing was kept")]
    Checksum { file: String, expected: String, found: String },

    #[error(
        "not enough space in `{}`: {} bytes ({}) are needed, {} ({}) are free; free some or set HF_HUB_CACHE to \
         another disk",
        folder.display(), units::count(*needed), units::bytes(*needed), units::count(*free), units::bytes(*free)
    )]
    NoSpace { folder: PathBuf, needed: u64, free: u64 },

    #[error(
        "cannot write `{}`: {source}; {} bytes ({}) of it are missing: free some space or set HF_HUB_CACHE to another \
         disk, then pull again, which resumes",
        path.display(), units::count(*missing), units::bytes(*missing)
    )]
    Write { path: PathBuf, missing: u64, source: io::Error },

    #[error("cannot {action} `{}`: {source}", path.display())]
    Disk { action: &'static str, path: PathBuf, source: io::Error },

    #[error(
        "`{file}` of {repo} is of a model that this program does not compute: {why}. Its weights were not fetched; \
         --anyway fetches them"
    )]
    NotComputed { repo: String, file: String, why: String },
    #[error("{repo} is being pulled by another process: wait for it, or end it first")]
    Busy { repo: String },

    #[error("{what} is not in the cache `{}`: `hotmetal list` shows what is", cache.display())]
    NotCached { what: String, cache: PathBuf },
}

impl HubError {
    /// Whether the same request may succeed in a moment.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Cut { .. } => true,
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
            // A name that does not resolve or a certificate that does not verify will not do so in a second either.
            Self::Network { source, .. } => matches!(
                source,
                ureq::Error::Io(_) | ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed | ureq::Error::Protocol(_)
            ),
            _ => false,
        }
    }

    /// How long the server asked to be left alone.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// An error of the file or folder at `path`, for `map_err`.
pub(super) fn disk_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HubError {
    let path = path.to_owned();
    move |source| HubError::Disk { action, path, source }
}

/// Untrusted text for a message: escaped and cut.
pub(super) fn shown(text: &str) -> String {
    let mut escaped: String = text.chars().take(120).flat_map(char::escape_debug).collect();
    if text.chars().count() > 120 {
        escaped.push('…');
    }
    escaped
}
