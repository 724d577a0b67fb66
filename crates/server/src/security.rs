//! The layer outside the router: every request passes it, whatever its route. Host, origin, key; and the name under
//! which the request is found in the log.

use std::net::IpAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};

use crate::app::App;
use crate::error::{ApiError, ErrorForm};
use crate::ids::random_id;
use crate::options::Options;

/// Which key was shown, as [`Options::authenticate`] counts them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyNumber(pub(crate) u64);

/// What the layer goes by.
#[derive(Clone)]
struct Gate {
    app: App,
    /// Whether the route at a path needs no key.
    is_open: fn(&str) -> bool,
}

/// Puts the layer around `routes`, of which those need no key for whose path `is_open` holds.
pub(crate) fn protect(routes: Router, app: &App, is_open: fn(&str) -> bool) -> Router {
    // Around each route, where the router has said which one it is; and the fallbacks, which belong to it too.
    routes.layer(from_fn_with_state(Gate { app: app.clone(), is_open }, check))
}

async fn check(State(Gate { app, is_open }): State<Gate>, mut request: Request<Body>, next: Next) -> Response {
    let options = &app.inner.options;
    let id = random_id("req");
    let origin = request.headers().get(header::ORIGIN).cloned();
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let request_path = request.uri().path().to_owned();
    let method = request.method().clone();
    let begun = std::time::Instant::now();
    let asked_headers = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let response = match admit(&request, options, is_open) {
        Ok(Admitted::Preflight) => preflight(asked_headers),
        Ok(Admitted::Request(key)) => {
            request.extensions_mut().insert(key);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    };
    let mut response = response;
    if let Some(error) = response.extensions().get::<ApiError>() {
        app.note_refusal(&id, &route, error);
        let form = ErrorForm::of(&request_path);
        if form != ErrorForm::OpenAi {
            response = error.clone().into_response_in(form);
        }
    }
    if let Some(origin) = origin.filter(|origin| is_listed(origin, options)) {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
    }
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert("x-request-id", id);
    }
    let status = response.status();
    app.inner.metrics.answered(&route, status);
    // Never what was said: names, sizes and times alone.
    tracing::info!(%id, %method, route, status = status.as_u16(), ms = begun.elapsed().as_millis() as u64, "answered");
    response
}

enum Admitted {
    /// A browser asks whether a listed origin may ask.
    Preflight,
    Request(KeyNumber),
}

fn admit(request: &Request<Body>, options: &Options, is_open: fn(&str) -> bool) -> Result<Admitted, ApiError> {
    let headers = request.headers();
    check_head_len(request)?;
    if headers.get_all(header::HOST).iter().nth(1).is_some() {
        // A gateway may have looked at the other one.
        return Err(ApiError::bad_request("the request has two Host headers"));
    }
    let host = request.uri().authority().map(|authority| authority.as_str());
    check_host(host.or(headers.get(header::HOST).and_then(|host| host.to_str().ok())), options)?;
    check_origin(request.method(), headers, options)?;
    if request.method() == Method::OPTIONS
        && headers.get(header::ORIGIN).is_some_and(|origin| is_listed(origin, options))
    {
        return Ok(Admitted::Preflight);
    }
    if is_open(request.uri().path()) {
        return Ok(Admitted::Request(KeyNumber(0)));
    }
    match options.authenticate(shown_key(headers)) {
        Some(key) => Ok(Admitted::Request(KeyNumber(key))),
        None => {
            let message = "this server wants a key: send it as `Authorization: Bearer KEY`";
            Err(ApiError::refused(StatusCode::UNAUTHORIZED, "invalid_api_key", message))
        }
    }
}

/// The most bytes of a request's first line and its headers.
pub(crate) const HEAD_BYTES_MAX: usize = 32 << 10;

/// Counted here, because the bound of the connection is on what is read at a time.
fn check_head_len(request: &Request<Body>) -> Result<(), ApiError> {
    let uri = request.uri();
    let target = uri.path_and_query().map_or(0, |path| path.as_str().len());
    // ` HTTP/1.1`, and an end of line behind it and behind the last header.
    let first = request.method().as_str().len() + " ".len() + target + " HTTP/1.1\r\n\r\n".len();
    let length = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + ": \r\n".len();
    let total = first + request.headers().iter().map(length).sum::<usize>();
    if total <= HEAD_BYTES_MAX {
        return Ok(());
    }
    let message = format!("the request's first line and headers have {total} bytes; at most {HEAD_BYTES_MAX} are read");
    Err(ApiError::refused(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", message))
}

fn shown_key(headers: &HeaderMap) -> Option<&str> {
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = authorization.and_then(|value| value.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key.trim());
    bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()))
}

/// A page whose name was made to point here (DNS rebinding) sends its own name as the host. An address is no name.
fn check_host(host: Option<&str>, options: &Options) -> Result<(), ApiError> {
    let name = host.and_then(host_name);
    let known = name.as_deref().is_some_and(|name| {
        name == "localhost"
            // Names that no DNS of others can point here: they are answered by this machine, its network, or its containers.
            || LOCAL_ENDINGS.iter().any(|ending| name.len() > ending.len() && name.ends_with(ending))
            || CONTAINER_HOSTS.contains(&name)
            || name.parse::<IpAddr>().is_ok()
            || options.allowed_hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
    });
    if known {
        return Ok(());
    }
    let message = "this server does not answer under this host name; --allowed-host NAME lets it";
    Err(ApiError::refused(StatusCode::MISDIRECTED_REQUEST, "unknown_host", message))
}

/// RFC 6761's names for this machine, and RFC 6762's for those on the same link.
const LOCAL_ENDINGS: [&str; 2] = [".localhost", ".local"];
/// What containers call the machine that they run on.
const CONTAINER_HOSTS: [&str; 3] = ["host.docker.internal", "gateway.docker.internal", "host.containers.internal"];

/// The name in `name:port`, in lower case, an IPv6 address without its brackets; nothing of what is neither.
fn host_name(host: &str) -> Option<String> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (name, rest) = rest.split_once(']')?;
            name.parse::<std::net::Ipv6Addr>().ok()?;
            (name, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return None;
    }
    Some(name.to_ascii_lowercase())
}

/// A page of another origin may ask nothing that acts, unless its origin is listed.
fn check_origin(method: &Method, headers: &HeaderMap, options: &Options) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let is_safe = matches!(*method, Method::GET | Method::HEAD);
    if is_safe || is_listed(origin, options) || is_own(origin, headers) {
        return Ok(());
    }
    let message = "pages of this origin may not use the server; --cors-origin ORIGIN lets them";
    Err(ApiError::refused(StatusCode::FORBIDDEN, "foreign_origin", message))
}

/// Whether the page comes from this server: its origin is a scheme and the host that it asks.
fn is_own(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let origin = origin.to_str().unwrap_or_default();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let own = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    !host.is_empty() && own.is_some_and(|own| own.eq_ignore_ascii_case(host))
}

fn is_listed(origin: &HeaderValue, options: &Options) -> bool {
    options.cors_origins.iter().any(|listed| listed.admits(origin.as_bytes()))
}

/// Whatever headers a page of a listed origin wants to send, it may: clients send their own (`x-stainless-os`).
fn preflight(asked: Option<HeaderValue>) -> Response {
    let mut response = StatusCode::OK.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    let allowed = asked.unwrap_or(HeaderValue::from_static("authorization, content-type, x-api-key"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_localhost_or_listed() {
        let options = Options { allowed_hosts: vec!["my.box".to_owned()], ..Options::default() };
        let good = [
            "localhost",
            "localhost:8080",
            "LOCALHOST:80",
            "127.0.0.1",
            "127.0.0.1:8080",
            "192.168.1.7:8080",
            "[::1]",
            "[::1]:8080",
            "my.box",
            "My.Box:443",
            "host.docker.internal:8080",
            "studio.local",
            "app.localhost:8080",
        ];
        let bad = [
            "",
            "evil.com",
            "localhost.evil.com",
            "evil.com:8080",
            "localhost:8080:1",
            "localhost:",
            "localhost:x",
            "[::1",
            "[::1]x",
            "[evil]",
            "127.0.0.1.evil.com",
            "localhost/",
            "my.box.evil",
            "user@localhost",
            "a b",
            ".local",
            "x.local.evil.com",
            "host.docker.internal.evil.com",
        ];
        for host in good {
            check_host(Some(host), &options).unwrap_or_else(|_| panic!("{host} is refused"));
        }
        for host in bad {
            assert!(check_host(Some(host), &options).is_err(), "{host} is let in");
        }
        assert!(check_host(None, &options).is_err());
    }

    #[test]
    fn origins_are_none_our_own_or_listed() {
        let options = Options { cors_origins: vec!["https://app.example".parse().unwrap()], ..Options::default() };
        let admitted = |method: Method, origin: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("localhost:8080"));
            headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
            check_origin(&method, &headers, &options).is_ok()
        };
        for origin in ["http://localhost:8080", "https://app.example"] {
            assert!(admitted(Method::POST, origin), "{origin} is refused");
        }
        for origin in
            ["null", "http://evil.com", "http://localhost", "http://localhost:8081", "https://app.example.evil", ""]
        {
            assert!(!admitted(Method::POST, origin) && !admitted(Method::OPTIONS, origin), "{origin} is let in");
            assert!(admitted(Method::GET, origin));
        }
    }
}
