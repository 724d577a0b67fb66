//! A request's body: bounded in bytes, time and depth before anything is made of it, and read as JSON in which no key stands
//! twice.

use std::fmt::Formatter;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use tokio::time::timeout;

use crate::abandoned;
use crate::app::App;
use crate::blocking::blocking;
use crate::error::ApiError;
use crate::memory::{Contents, Permit, Pool, SHORT_BODY_BYTES};

/// How deep JSON may nest.
const DEPTH_MAX: usize = 64;
/// A body of more bytes is read where that holds up nobody: of eight megabytes it takes a tenth of a second.
const SHORT_BYTES: usize = 64 << 10;
/// Items of a list after which it is asked again whether the client still waits.
const ASK_ITEMS: usize = 4096;

/// The JSON in a request's body, and the memory that the request may take until the engine has it. The key with number `key`
/// was shown with it.
pub(crate) async fn read_json(request: Request<Body>, app: &App, key: u64) -> Result<(Value, Permit), ApiError> {
    check_type(request.uri().path(), request.headers())?;
    let (options, memory) = (&app.inner.options, &app.inner.memory);
    let limit = options.body_bytes_max;
    let too_large = || {
        let message =
            format!("the body has more than {limit} bytes; send less, or serve with a larger --max-body-bytes");
        ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()).and_then(|length| length.parse().ok());
    if length.is_some_and(|length: usize| length > limit) {
        pass_over(request.into_body(), limit).await;
        return Err(too_large());
    }
    let read = timeout(options.body_time_max, received(request.into_body(), length, limit, &memory.bodies, key)).await;
    let received = match read {
        Ok(Ok(received)) => received,
        Ok(Err(NotReceived::TooLarge)) => return Err(too_large()),
        Ok(Err(NotReceived::Ended)) => return Err(ApiError::bad_request("the body ended before it was whole")),
        Ok(Err(NotReceived::NoMemory(error))) => return Err(error),
        Err(_) => {
            let seconds = options.body_time_max.as_secs();
            let message = format!("the body did not come within {seconds} s; send less, or over a faster connection");
            return Err(ApiError::refused(StatusCode::REQUEST_TIMEOUT, "body_timeout", message));
        }
    };
    let is_short = received.bytes.len() <= SHORT_BYTES;
    let look = move || contents(&received.bytes).map(|contents| (received, contents));
    let (received, contents) = if is_short { look() } else { blocking(look).await }?;
    let permit = memory.work.acquire(key, contents.memory(app.encoding_bytes())).await?;
    let read = move || {
        let value = parse(&received.bytes).map_err(|error| match abandoned::is_abandoned() {
            true => ApiError::abandoned(),
            false => ApiError::bad_request(format!("the body is not JSON: {error}")),
        })?;
        Ok((value, permit))
    };
    if is_short { read() } else { blocking(read).await }
}

/// A body that was received, and the memory that it takes.
struct Received {
    bytes: Vec<u8>,
    _permit: Option<Permit>,
}

enum NotReceived {
    TooLarge,
    /// Before it was whole.
    Ended,
    NoMemory(ApiError),
}

/// Receives a body of at most `limit` bytes, of `length` if that is known.
async fn received(
    mut body: Body,
    length: Option<usize>,
    limit: usize,
    memory: &Pool,
    key: u64,
) -> Result<Received, NotReceived> {
    let mut bytes: Vec<u8> = Vec::new();
    let mut permit: Option<Permit> = None;
    let mut room = SHORT_BODY_BYTES;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| NotReceived::Ended)?.into_data() else { continue };
        let len = bytes.len() + data.len();
        if len > limit {
            return Err(NotReceived::TooLarge);
        }
        if len > room {
            // All of it at once, where its length is known: of bodies that each have a part, none might get the rest. A
            // body without a length takes the memory that it may need at most.
            room = length.filter(|&length| length >= len).unwrap_or(limit);
            if permit.is_none() {
                permit = Some(memory.acquire(key, room).await.map_err(NotReceived::NoMemory)?);
            }
        }
        if bytes.capacity() < len {
            bytes.reserve_exact((2 * bytes.capacity()).clamp(len, room.max(len)) - bytes.len());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(Received { bytes, _permit: permit })
}

/// The value in JSON text. A key that stands twice in an object is an error: of two values one would be ignored, and not
/// every reader on the way here ignores the same one.
pub(crate) fn parse(json: &[u8]) -> serde_json::Result<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = Unique.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Makes a value whose objects have each key once.
struct Unique;

impl<'de> DeserializeSeed<'de> for Unique {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Value;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Unique)? {
            list.push(item);
            if list.len().is_multiple_of(ASK_ITEMS) && abandoned::is_abandoned() {
                return Err(A::Error::custom("nobody waits for it any more"));
            }
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(Unique)?;
            if map.contains_key(&key) {
                let name = if key.len() > 40 { "a key" } else { &key };
                return Err(A::Error::custom(format!("`{name}` stands twice in one object")));
            }
            map.insert(key, value);
        }
        Ok(map.into())
    }
}

/// Reads some more of a body that is refused. A client that is still sending when the connection is closed may lose the answer
/// that says why, since the system then tells it that nobody read what it sent.
async fn pass_over(body: Body, limit: usize) {
    const TIME: Duration = Duration::from_secs(2);
    let read = async {
        let (mut body, mut left) = (body, limit.saturating_mul(4));
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len()));
            if left == 0 {
                break;
            }
        }
    };
    let _ = timeout(TIME, read).await;
}

/// Headers of which a browser sends at least one with what a page posts.
const OF_BROWSERS: [&str; 3] = ["origin", "referer", "sec-fetch-site"];

/// A page of another site can send text without asking, but not JSON. Ollama asks for no type, and its examples are sent with
/// the one that `curl -d` makes up: its routes take that and none, if no browser sends it.
fn check_type(path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    let found = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("missing");
    let refused =
        |message| Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message));
    let encoding = headers.get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("unknown").trim());
    if let Some(encoding) = encoding.filter(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        return refused(format!("the Content-Encoding is {}, and bodies are taken as they are", shown(encoding)));
    }
    let mut parameters = found.split(';').map(str::trim);
    let essence = parameters.next().unwrap_or_default();
    let is_untyped = !headers.contains_key(header::CONTENT_TYPE)
        || essence.eq_ignore_ascii_case("application/x-www-form-urlencoded");
    let is_free = path.starts_with("/api/") && !OF_BROWSERS.iter().any(|name| headers.contains_key(*name));
    let is_json = essence.eq_ignore_ascii_case("application/json");
    if !(is_json || is_free && is_untyped) {
        return refused(format!("the Content-Type is {}, expected application/json", shown(found)));
    }
    let charset = parameters
        .filter_map(|parameter| parameter.split_once('='))
        .find(|(name, _)| name.eq_ignore_ascii_case("charset"));
    match charset.map(|(_, charset)| charset.trim_matches('"')) {
        Some(charset) if !["utf-8", "utf8", "us-ascii"].iter().any(|known| charset.eq_ignore_ascii_case(known)) => {
            refused(format!("the charset is {}, and JSON is UTF-8", shown(charset)))
        }
        _ => Ok(()),
    }
}

/// A client's words in a message.
fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

/// What a body holds. Refuses what nests too deep, before a parser that recurses sees it.
fn contents(bytes: &[u8]) -> Result<Contents, ApiError> {
    let mut contents = Contents::default();
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in bytes {
        contents.text_bytes += usize::from(in_string);
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                contents.num_containers += 1;
                if depth > DEPTH_MAX {
                    return Err(ApiError::bad_request(format!("the body nests more than {DEPTH_MAX} deep")));
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => contents.num_items += 1,
            b':' => contents.num_members += 1,
            _ => {}
        }
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_what_serde_json_reads_unless_a_key_stands_twice() {
        for text in [
            "null",
            " true",
            "-3",
            "18446744073709551615",
            "1e3",
            "-0.0",
            "\"\\u00e9\"",
            "[]",
            "{}",
            "[1, [2, {\"a\": null}], \"x\"]",
            "{\"a\": {\"b\": 1}, \"b\": {\"b\": 2}}",
            "",
            "{",
            "[1,]",
            "1 2",
            "{\"a\"}",
            "nul",
            "\"\\ud800\"",
            "1e999",
            "{1: 2}",
        ] {
            let (found, expected) = (parse(text.as_bytes()), serde_json::from_str::<Value>(text));
            assert_eq!(found.ok(), expected.ok(), "{text}");
        }
        for text in ["{\"a\": 1, \"a\": 1}", "[{\"b\": {\"a\": 1, \"c\": 2, \"\\u0061\": null}}]"] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("`a` stands twice"), "{error}");
        }
    }

    #[test]
    fn contents_are_counted_outside_of_strings() {
        let found = contents(br#"{"a": [1, 2, "x,:[\\\""], "b": {}}"#).unwrap();
        let expected = Contents { text_bytes: 13, num_items: 3, num_members: 2, num_containers: 3 };
        assert_eq!(found, expected);
    }

    #[test]
    fn depth_counts_brackets_outside_of_strings() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        contents(nested(64).as_bytes()).unwrap();
        contents(nested(65).as_bytes()).unwrap_err();
        contents(format!("{:?}", "[".repeat(100)).as_bytes()).unwrap();
        contents(format!("[{:?}, {}]", r#"\"["#, nested(63)).as_bytes()).unwrap();
        contents(format!("[{:?}, {}]", r#"\"["#, nested(64)).as_bytes()).unwrap_err();
    }
}
