//! The page at `/`: files in the binary, which hold nothing that a key protects, and the rule that a browser loads
//! nothing else for them.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use sha2::{Digest, Sha256};

use crate::app::App;
use crate::error::ApiError;
use crate::{info, ollama};

/// Besides what may be loaded, it forbids every way by which a script makes HTML of a text: the page makes its elements
/// one by one, and browsers that know Trusted Types refuse the others.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// A file that the page loads.
#[derive(Debug)]
pub(crate) struct PageFile {
    pub(crate) path: &'static str,
    content_type: &'static str,
    text: &'static str,
}

/// A file of the folder `page`, at `/page/NAME`.
macro_rules! page_file {
    ($name:literal, $content_type:expr) => {
        PageFile {
            path: concat!("/page/", $name),
            content_type: $content_type,
            text: include_str!(concat!("page/", $name)),
        }
    };
}

/// All files that the page loads, without the page itself.
pub(crate) const FILES: &[PageFile] = &[
    page_file!("page.css", STYLE),
    page_file!("main.js", SCRIPT),
    page_file!("answer.js", SCRIPT),
    page_file!("composer.js", SCRIPT),
    page_file!("conversation.js", SCRIPT),
    page_file!("conversations.js", SCRIPT),
    page_file!("dom.js", SCRIPT),
    page_file!("markdown.js", SCRIPT),
    page_file!("messages.js", SCRIPT),
    page_file!("server.js", SCRIPT),
    page_file!("settings.js", SCRIPT),
    page_file!("storage.js", SCRIPT),
    // Libraries that tools/serving/vendor_page.sh fetches.
    page_file!("vendor/highlight.js", SCRIPT),
    page_file!("vendor/marked.js", SCRIPT),
    page_file!("vendor/temml.js", SCRIPT),
    page_file!("vendor/LICENSES.txt", TEXT),
];

/// The page, where the server has one.
pub(crate) async fn index(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Result<Response, ApiError> {
    if ollama::is_running_probe(&headers) {
        return Ok(answer(TEXT, ollama::RUNNING));
    }
    if !app.inner.options.has_page {
        return Err(info::not_found(uri).await);
    }
    Ok(answer("text/html; charset=utf-8", include_str!("page/index.html")))
}

impl PageFile {
    /// The file, or 304 where the browser has this one.
    pub(crate) fn response(&self, headers: &HeaderMap) -> Response {
        let digest = Sha256::digest(self.text);
        let tag = digest.iter().take(8).fold(String::from("\""), |tag, byte| tag + &format!("{byte:02x}")) + "\"";
        let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
        let mut response = answer(self.content_type, if is_known { "" } else { self.text });
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            response.headers_mut().insert(header::ETAG, tag);
        }
        response
    }
}

fn answer(content_type: &'static str, text: &'static str) -> Response {
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    // With the next version of the program comes the next version of the page: the browser asks each time.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}
