//! A request's body: bounded in bytes, time and depth before anything is made of it.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use serde_json::Value;
use tokio::time::timeout;

use crate::error::ApiError;
use crate::options::Options;

/// How deep JSON may nest.
const DEPTH_MAX: usize = 64;

/// The JSON in a request's body.
pub(crate) async fn read_json(request: Request<Body>, options: &Options) -> Result<Value, ApiError> {
    check_type(request.headers())?;
    let limit = options.body_bytes_max;
    let too_large = || {
        let message = format!("the body has more than {limit} bytes");
        ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()).and_then(|length| length.parse().ok());
    if length.is_some_and(|length: usize| length > limit) {
        return Err(too_large());
    }
    let read = timeout(options.body_time_max, axum::body::to_bytes(request.into_body(), limit)).await;
    let bytes = match read {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) => {
            let is_limit = std::error::Error::source(&error).is_some_and(|source| source.to_string().contains("limit"));
            return Err(if is_limit {
                too_large()
            } else {
                ApiError::bad_request("the body ended before it was whole")
            });
        }
        Err(_) => {
            let message = format!("the body did not come within {} s", options.body_time_max.as_secs());
            return Err(ApiError::refused(StatusCode::REQUEST_TIMEOUT, "body_timeout", message));
        }
    };
    check_depth(&bytes)?;
    serde_json::from_slice(&bytes).map_err(|error| ApiError::bad_request(format!("the body is not JSON: {error}")))
}

/// A page of another site can send text without asking, but not JSON.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let found = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("missing");
    let essence = found.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = format!("the Content-Type is {found}, expected application/json");
    Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
}

/// Refuses what nests too deep, before a parser that recurses sees it.
fn check_depth(bytes: &[u8]) -> Result<(), ApiError> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Err(ApiError::bad_request(format!("the body nests more than {DEPTH_MAX} deep")));
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_brackets_outside_of_strings() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        check_depth(nested(64).as_bytes()).unwrap();
        check_depth(nested(65).as_bytes()).unwrap_err();
        check_depth(format!("{:?}", "[".repeat(100)).as_bytes()).unwrap();
        check_depth(format!("[{:?}, {}]", r#"\"["#, nested(63)).as_bytes()).unwrap();
        check_depth(format!("[{:?}, {}]", r#"\"["#, nested(64)).as_bytes()).unwrap_err();
    }
}
