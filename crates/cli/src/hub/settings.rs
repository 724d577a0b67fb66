//! The `HF_*` environment variables, read here and nowhere else, with the meaning that `huggingface_hub` gives them.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::error::HubError;

/// Where the cache lies, whom to ask, and as whom.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The folder that holds `models--*`.
    pub(crate) cache: PathBuf,
    /// Scheme and host of the hub, without a slash at the end.
    pub(crate) endpoint: String,
    /// Sent to the endpoint's own host only.
    pub(crate) token: Option<Token>,
    /// Where `token` is looked for when `HF_TOKEN` is not set; named in messages.
    pub(crate) token_path: PathBuf,
    /// Nothing is asked of the network.
    pub(crate) offline: bool,
    /// How long the network may stay silent.
    pub(crate) timeout: Duration,
    /// `HF_HUB_DISABLE_PROGRESS_BARS`: plain lines instead.
    pub(crate) plain_progress: bool,
}

/// An access token, which no message and no log shows.
#[derive(Clone)]
pub(crate) struct Token(pub(super) String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

impl Settings {
    /// Reads the environment of this process.
    pub(crate) fn from_env() -> Result<Self, HubError> {
        Self::from_lookup(|name| env::var_os(name), env::home_dir())
    }

    /// As [`Self::from_env`], with the variables given by `lookup`. An empty variable counts as unset.
    fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Result<Self, HubError> {
        let var = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let path = |name: &str| {
            let value = PathBuf::from(var(name)?);
            Some(match (value.strip_prefix("~"), &home) {
                (Ok(rest), Some(home)) => home.join(rest),
                _ => value,
            })
        };
        let text = |name: &str| var(name).and_then(|value| value.into_string().ok());
        let is_true = |name: &str| {
            text(name).is_some_and(|v| ["1", "ON", "YES", "TRUE"].contains(&v.to_ascii_uppercase().as_str()))
        };

        let hf_home = path("HF_HOME")
            .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
            .or_else(|| home.as_ref().map(|home| home.join(".cache/huggingface")));
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| hf_home.as_ref().map(|home| home.join("hub")))
            .ok_or(HubError::NoCacheFolder)?;

        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        if !(endpoint.starts_with("https://") || endpoint.starts_with("http://")) {
            return Err(HubError::Endpoint { endpoint });
        }

        let token_path = path("HF_TOKEN_PATH").or_else(|| hf_home.map(|home| home.join("token"))).unwrap_or_default();
        let token = if is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            None
        } else {
            text("HF_TOKEN")
                .or_else(|| text("HUGGING_FACE_HUB_TOKEN"))
                .or_else(|| fs::read_to_string(&token_path).ok())
                .map(|token| token.trim().to_owned())
                .filter(|token| !token.is_empty())
                .map(Token)
        };

        let seconds = text("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|s| s.parse().ok()).filter(|&s: &u64| s > 0);
        Ok(Self {
            cache,
            endpoint,
            token,
            token_path,
            offline: is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE"),
            timeout: Duration::from_secs(seconds.unwrap_or(30)),
            plain_progress: is_true("HF_HUB_DISABLE_PROGRESS_BARS"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(vars: &[(&str, &str)]) -> Settings {
        let lookup = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value));
        Settings::from_lookup(lookup, Some(PathBuf::from("/home/ada"))).unwrap()
    }

    #[test]
    fn the_cache_is_where_hugging_face_has_it() {
        let cache = |vars: &[(&str, &str)]| settings(vars).cache;
        assert_eq!(cache(&[]), PathBuf::from("/home/ada/.cache/huggingface/hub"));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/x")]), PathBuf::from("/x/huggingface/hub"));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/hf")]), PathBuf::from("/home/ada/hf/hub"));
        assert_eq!(cache(&[("HF_HOME", "/h"), ("HUGGINGFACE_HUB_CACHE", "/old")]), PathBuf::from("/old"));
        assert_eq!(cache(&[("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "/new")]), PathBuf::from("/new"));
        assert_eq!(cache(&[("HF_HUB_CACHE", ""), ("HF_HOME", "/h")]), PathBuf::from("/h/hub"));
        assert!(matches!(Settings::from_lookup(|_| None, None), Err(HubError::NoCacheFolder)));
    }

    #[test]
    fn the_token_comes_from_the_variable_then_the_file_and_is_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let token = |vars: &[(&str, &str)]| settings(vars).token.map(|token| token.0);
        assert_eq!(token(&[("HF_HOME", home)]).as_deref(), Some("hf_file"));
        assert_eq!(token(&[("HF_HOME", home), ("HF_TOKEN", " hf_var ")]).as_deref(), Some("hf_var"));
        assert_eq!(token(&[("HF_HOME", home), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
        assert_eq!(token(&[("HF_HOME", "/nonexistent")]), None);
        let shown = format!("{:?}", settings(&[("HF_TOKEN", "hf_secret")]));
        assert!(!shown.contains("hf_secret"), "{shown}");
    }

    #[test]
    fn flags_and_the_endpoint_are_read_as_hugging_face_reads_them() {
        assert!(settings(&[("HF_HUB_OFFLINE", "yes")]).offline);
        assert!(!settings(&[("HF_HUB_OFFLINE", "0")]).offline);
        assert_eq!(settings(&[("HF_ENDPOINT", "http://mirror:8000/")]).endpoint, "http://mirror:8000");
        assert_eq!(settings(&[]).endpoint, "https://huggingface.co");
        let odd = |name: &str| (name == "HF_ENDPOINT").then(|| OsString::from("mirror.example"));
        assert!(matches!(Settings::from_lookup(odd, Some("/h".into())), Err(HubError::Endpoint { .. })));
    }
}
