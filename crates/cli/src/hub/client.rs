//! Asking a hub over HTTP: what a revision holds, what a file is, and its bytes from an offset on.
//!
//! Redirects are followed by hand, because each hop decides whether the token may go along: it is for the endpoint's
//! own scheme, host and port, and no other.

use std::io::Read;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use ureq::http::{HeaderMap, Response, Uri};

use super::checksum::is_checksum;
use super::error::{HubError, shown};
use super::names::{self, RepoId};
use super::settings::{Settings, Token};
use super::store::{Body, RemoteFile, Retries};
use crate::{output, units};

const REDIRECTS_MAX: usize = 8;
const LISTING_BYTES_MAX: u64 = 16 << 20;
const MESSAGE_BYTES_MAX: u64 = 4 << 10;
/// Everything but RFC 3986's unreserved characters.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

pub(super) struct Client {
    agent: ureq::Agent,
    endpoint: String,
    origin: Origin,
    token: Option<Token>,
    token_path: std::path::PathBuf,
    retries: Retries,
}

/// A revision as listed by the hub.
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<String>,
}

/// How far a request follows redirects.
#[derive(Clone, Copy, PartialEq)]
enum Follow {
    /// To the bytes.
    Always,
    /// Up to the answer that describes the file; where its bytes are is of no interest.
    UntilDescribed,
}

impl Client {
    pub(super) fn new(settings: &Settings, retries: Retries) -> Result<Self, HubError> {
        let bad_endpoint = || HubError::Endpoint { endpoint: settings.endpoint.clone() };
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("hotmetal/", env!("CARGO_PKG_VERSION")))
            // Ranges and sizes are those of the file itself.
            .accept_encoding("identity")
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_recv_response(Some(settings.timeout))
            .timeout_per_read(Some(settings.timeout))
            .build();
        Ok(Self {
            agent: config.into(),
            endpoint: settings.endpoint.clone(),
            origin: settings.endpoint.parse().ok().as_ref().and_then(Origin::of).ok_or_else(bad_endpoint)?,
            token: settings.token.clone(),
            token_path: settings.token_path.clone(),
            retries,
        })
    }

    /// The commit that `revision` is at, and the files it holds. Names are checked.
    pub(super) fn list(&self, repo: &RepoId, revision: &str) -> Result<Listing, HubError> {
        #[derive(Deserialize)]
        struct Answer {
            sha: String,
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }
        let url = format!("{}/api/models/{repo}/revision/{}", self.endpoint, escape(revision));
        let answer: Answer = self.retrying(|| {
            let response = self.send("GET", &url, 0, Follow::Always)?;
            let response = self.check(response, &url, repo, revision)?;
            let reader = response.into_body().into_with_config().limit(LISTING_BYTES_MAX).reader();
            let text = std::io::read_to_string(reader)
                .map_err(|source| HubError::Network { url: url.clone(), source: ureq::Error::Io(source) })?;
            serde_json::from_str(&text).map_err(|error| self.answer(&url, error.to_string()))
        })?;
        if !names::is_plain_component(&answer.sha) {
            return Err(self.answer(&url, format!("commit `{}`", shown(&answer.sha))));
        }
        let files: Vec<String> = answer.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        files.iter().try_for_each(|file| names::check_file_name(file))?;
        Ok(Listing { commit: answer.sha, files })
    }

    /// Checksum and size of a file.
    pub(super) fn describe(&self, repo: &RepoId, commit: &str, file: &str) -> Result<RemoteFile, HubError> {
        let url = self.file_url(repo, commit, file);
        self.retrying(|| {
            let response = self.send("HEAD", &url, 0, Follow::UntilDescribed)?;
            let response =
                if response.status().is_redirection() { response } else { self.check(response, &url, repo, commit)? };
            let headers = response.headers();
            let found = header(headers, "x-repo-commit");
            if found.is_some_and(|found| found != commit) {
                let found = shown(found.unwrap_or_default());
                return Err(self.answer(&url, format!("commit {found} instead of {commit}")));
            }
            let etag = header(headers, "x-linked-etag").or_else(|| header(headers, "etag")).unwrap_or_default();
            let etag = etag.trim_start_matches("W/").trim_matches('"');
            if !names::is_plain_component(etag) {
                return Err(self.answer(&url, format!("etag `{}`", shown(etag))));
            }
            let etag = match is_checksum(etag) {
                true => etag.to_owned(),
                // Two files may have the same such etag, here or at another hub, so it alone is no name.
                false => format!("unchecked-{}", units::hex(&Sha256::digest(format!("{url} {etag}")))),
            };
            let size = header(headers, "x-linked-size").or_else(|| header(headers, "content-length"));
            let size = size.and_then(|size| size.parse().ok());
            let size = size.ok_or_else(|| self.answer(&url, "no size".to_owned()))?;
            Ok(RemoteFile { name: file.to_owned(), etag, size })
        })
    }

    /// The bytes of a file from `offset` on. Tried once: whoever reads them knows how far it came.
    pub(super) fn read(&self, repo: &RepoId, commit: &str, file: &str, offset: u64) -> Result<Body, HubError> {
        let url = self.file_url(repo, commit, file);
        let response = self.send("GET", &url, offset, Follow::Always)?;
        if response.status() == 416 && offset > 0 {
            return self.read(repo, commit, file, 0); // a server that cannot continue there is asked for all
        }
        let response = self.check(response, &url, repo, commit)?;
        let begins_at = match response.status().as_u16() {
            206 => {
                let range = header(response.headers(), "content-range").unwrap_or_default();
                let start = range.strip_prefix("bytes ").and_then(|range| range.split('-').next()?.parse().ok());
                start.ok_or_else(|| self.answer(&url, format!("range `{}`", shown(range))))?
            }
            _ => 0,
        };
        if begins_at != 0 && begins_at != offset {
            return Err(self.answer(&url, format!("bytes from {begins_at} instead of {offset}")));
        }
        Ok(Body { offset: begins_at, reader: Box::new(response.into_body().into_reader()) })
    }

    fn file_url(&self, repo: &RepoId, commit: &str, file: &str) -> String {
        let path: Vec<String> = file.split('/').map(escape).collect();
        format!("{}/{repo}/resolve/{}/{}", self.endpoint, escape(commit), path.join("/"))
    }

    /// Repeats what failed for a passing reason.
    fn retrying<T>(&self, request: impl Fn() -> Result<T, HubError>) -> Result<T, HubError> {
        let mut done = 0;
        loop {
            let error = match request() {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            done += 1;
            let Some(pause) = self.retries.pause(done, &error) else { return Err(error) };
            output::note(&format!("{error}; trying again"));
            std::thread::sleep(pause);
        }
    }

    /// Sends a request, and again to wherever it is redirected.
    fn send(&self, method: &str, url: &str, offset: u64, follow: Follow) -> Result<Response<ureq::Body>, HubError> {
        let mut url = url.to_owned();
        for _ in 0..REDIRECTS_MAX {
            let network = |source| HubError::Network { url: without_query(&url), source };
            let uri: Uri =
                url.parse().map_err(|error: ureq::http::uri::InvalidUri| network(ureq::Error::Http(error.into())))?;
            let mut request = if method == "HEAD" { self.agent.head(&uri) } else { self.agent.get(&uri) };
            if offset > 0 {
                request = request.header("Range", format!("bytes={offset}-"));
            }
            if let Some(token) = self.token.as_ref().filter(|_| Origin::of(&uri).as_ref() == Some(&self.origin)) {
                request = request.header("Authorization", format!("Bearer {}", token.0));
            }
            let response = request.call().map_err(network)?;
            let described = follow == Follow::UntilDescribed && response.headers().contains_key("x-linked-etag");
            let target = header(response.headers(), "location");
            match target {
                Some(target) if response.status().is_redirection() && !described => {
                    url = redirected(&uri, target).map_err(|why| HubError::Redirect {
                        url: without_query(&url),
                        target: shown(&without_query(target)),
                        why,
                    })?;
                }
                _ => return Ok(response),
            }
        }
        Err(HubError::Redirect {
            url: without_query(&url),
            target: "yet another".to_owned(),
            why: "there are too many",
        })
    }

    /// Turns a refusal into an error that says what to do about it.
    fn check(
        &self,
        response: Response<ureq::Body>,
        url: &str,
        repo: &RepoId,
        revision: &str,
    ) -> Result<Response<ureq::Body>, HubError> {
        let status = response.status().as_u16();
        if response.status().is_success() {
            return Ok(response);
        }
        let headers = response.headers();
        let code = header(headers, "x-error-code").unwrap_or_default().to_owned();
        let page = format!("{}/{repo}", self.endpoint);
        let refused = |why| Err(HubError::Refused { repo: repo.to_string(), status, why });
        match (status, code.as_str(), &self.token) {
            (401 | 403, _, None) => refused(format!(
                "the repository is gated, private, or does not exist: check its name, accept its terms at {page} if it \
                 is gated, and set HF_TOKEN or write your token to `{}`",
                self.token_path.display()
            )),
            (403, _, Some(_)) | (401, "GatedRepo", Some(_)) => refused(format!(
                "your token does not give access: ask for it at {page}, and see that the token may read gated repositories"
            )),
            (401, _, Some(_)) => refused(format!(
                "the repository does not exist, or your token is not valid: check the name, and HF_TOKEN or `{}`",
                self.token_path.display()
            )),
            (404, "RevisionNotFound", _) => refused(format!("there is no revision `{revision}`: see {page}")),
            (404, "EntryNotFound", _) => refused(format!("a listed file is gone: {url}")),
            (404, ..) => refused(format!("no such repository or revision (`{revision}`): check the name at {page}")),
            _ => {
                let retry_after = header(headers, "retry-after").and_then(|s| s.parse().ok()).map(Duration::from_secs);
                let message = header(headers, "x-error-message").map(shown);
                let mut body = String::new();
                let message = message.or_else(|| {
                    let reader = response.into_body().into_reader();
                    reader.take(MESSAGE_BYTES_MAX).read_to_string(&mut body).ok()?;
                    Some(shown(body.trim())).filter(|text| !text.is_empty())
                });
                Err(HubError::Status { url: without_query(url), status, message, retry_after })
            }
        }
    }

    fn answer(&self, url: &str, what: String) -> HubError {
        HubError::Answer { url: without_query(url), what }
    }
}

/// Scheme, host and port: what a token belongs to.
#[derive(Debug, PartialEq)]
struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    fn of(uri: &Uri) -> Option<Self> {
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        Some(Self { host: uri.host()?.to_ascii_lowercase(), scheme, port })
    }
}

/// The absolute URL that `target`, the Location of an answer from `base`, means.
fn redirected(base: &Uri, target: &str) -> Result<String, &'static str> {
    let scheme = base.scheme_str().unwrap_or("https");
    let authority = base.authority().map(|authority| authority.as_str()).unwrap_or_default();
    let url = if target.contains("://") && !target.starts_with('/') {
        target.to_owned()
    } else if target.starts_with("//") {
        format!("{scheme}:{target}")
    } else if target.starts_with('/') {
        format!("{scheme}://{authority}{target}")
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{target}")
    };
    match url.split("://").next().map(str::to_ascii_lowercase).as_deref() {
        Some("https") => Ok(url),
        Some("http") if scheme == "http" => Ok(url),
        Some("http") => Err("it would leave encryption"),
        _ => Err("it is no web address"),
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn escape(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// A URL for a message: a query may hold a signature, which is a secret.
fn without_query(url: &str) -> String {
    url.split('?').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_is_resolved_against_its_page_and_never_leaves_encryption() {
        let base: Uri = "https://hub.example:8443/a/b?c=d".parse().unwrap();
        let to = |target: &str| redirected(&base, target);
        assert_eq!(to("https://cdn.example/x?y").unwrap(), "https://cdn.example/x?y");
        assert_eq!(to("/x/y?next=https://z").unwrap(), "https://hub.example:8443/x/y?next=https://z");
        assert_eq!(to("//cdn.example/x").unwrap(), "https://cdn.example/x");
        assert_eq!(to("x").unwrap(), "https://hub.example:8443/a/x");
        assert!(to("http://hub.example/x").is_err());
        assert!(to("file:///etc/passwd").is_err());
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let origin = |url: &str| Origin::of(&url.parse().unwrap()).unwrap();
        assert_eq!(origin("https://Hub.example/a"), origin("https://hub.example:443/b"));
        for other in
            ["http://hub.example", "https://hub.example:444", "https://hub.example.evil", "https://evil/hub.example"]
        {
            assert_ne!(origin("https://hub.example"), origin(other));
        }
    }

    #[test]
    fn names_are_escaped_in_addresses_and_signatures_left_out_of_messages() {
        assert_eq!(escape("refs/pr/1"), "refs%2Fpr%2F1");
        assert_eq!(escape("a b#c?d%é~_-."), "a%20b%23c%3Fd%25%C3%A9~_-.");
        assert_eq!(without_query("https://cdn/x?Signature=secret"), "https://cdn/x");
    }
}
