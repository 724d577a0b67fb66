//! The oracle of `http`.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use engine::null::NullExecutable;
use engine::{Engine, EngineConfig};
use http_body_util::BodyExt;
use plan::{KvFormat, KvLayout};
use serde_json::Value;
use server::{App, Options, ServedModel};
use tokenizer::chat_template::ChatTemplate;
use tokenizer::{LoadOptions, Tokenizer};
use tower::ServiceExt;

const VOCAB_SIZE: usize = 4096;
/// No request takes longer: its text has 256 tokens at most, and its grammar has a time of its own.
const TIME_MAX: Duration = Duration::from_secs(30);
/// What may be answered where the document has no such operation: by the layer before the routes, or by none of them.
const WITHOUT_ROUTE: [u16; 8] = [400, 401, 403, 404, 405, 413, 415, 421];

/// Shows tools and calls as Hermes' templates do, and thinks.
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}\n{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}{{ m.content }}\
    {% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": \
    {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A server that goes on from input to input, as servers do.
struct Served {
    router: Router,
    runtime: tokio::runtime::Runtime,
    /// Statuses by method and path, as the server's document declares them.
    declared: HashMap<(String, String), HashSet<u16>>,
}

static SERVED: LazyLock<Served> = LazyLock::new(|| {
    let config = include_bytes!("../../crates/cli/builtin/tokenizer_config.json");
    let json = include_bytes!("../../crates/cli/builtin/tokenizer.json");
    let mut tokenizer = Tokenizer::from_json(json, Some(config), &LoadOptions::default()).expect("the built-in one");
    tokenizer.add_eos_ids(&[2, 0]);
    let kv = KvLayout { format: KvFormat::F32, block_len: 8, num_blocks: 96 };
    let config = EngineConfig::new(kv, 256, VOCAB_SIZE, vec![2, 0]);
    let executable = NullExecutable::new(kv, VOCAB_SIZE).with_queue();
    let app = App::new(Options::default(), &["tiny"]);
    let engine = Engine::new(Box::new(executable), config).expect("a configuration");
    app.ready(ServedModel {
        chat_template: Some(ChatTemplate::new(TEMPLATE).expect("a template")),
        ..ServedModel::new("tiny", Arc::new(tokenizer), engine)
    })
    .expect("a model that was waited for");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let request = Request::get("/openapi.json").header("host", "localhost").body(Body::empty()).expect("a request");
    let router = app.router();
    let (status, _, document) = runtime.block_on(answer(&router, request));
    assert_eq!(status, StatusCode::OK);
    let document: Value = serde_json::from_slice(&document).expect("the document is JSON");
    let mut declared = HashMap::new();
    for (path, operations) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in operations.as_object().into_iter().flatten() {
            let statuses = operation["responses"].as_object().into_iter().flatten();
            let mut statuses: HashSet<u16> = statuses.filter_map(|(status, _)| status.parse().ok()).collect();
            // A step of this backend does not fail.
            statuses.remove(&500);
            declared.insert((method.to_uppercase(), path.clone()), statuses);
        }
    }
    assert!(declared.len() > 10, "{declared:?}");
    Served { router, runtime, declared }
});

/// A request to the router of a server whose model computes nothing but remembers everything. The answer has a status
/// that the server's own document declares, never 500; what is said to be JSON is, and so is each event and each line
/// of a stream; an error says what is wrong, in the form of its path.
///
/// The input is a line `METHOD path`, lines of headers, an empty line and the body. Host and content type are those of
/// a client that is welcome where the input says nothing of them.
pub(crate) fn http(data: &[u8]) {
    let end = data.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = end.map_or((data, &[][..]), |end| (&data[..end], &data[end + 2..]));
    let head = String::from_utf8_lossy(head);
    let mut lines = head.lines();
    let Some((method, path)) = lines.next().unwrap_or_default().split_once(' ') else { return };
    let mut request = Request::builder().method(method).uri(path);
    let (mut has_host, mut has_type) = (false, false);
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        has_host |= name.eq_ignore_ascii_case("host");
        has_type |= name.eq_ignore_ascii_case("content-type");
        request = request.header(name, value);
    }
    if !has_host {
        request = request.header("host", "localhost:8080");
    }
    if !has_type {
        request = request.header("content-type", "application/json");
    }
    // What is no request comes from no connection.
    let Ok(request) = request.body(Body::from(Bytes::copy_from_slice(body))) else { return };
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let served = &*SERVED;
    let (status, headers, answer) = served.runtime.block_on(answer(&served.router, request));
    check_status(served, &method, &path, status, &answer);
    if method != Method::HEAD {
        check_body(&path, status, &headers, &answer);
    }
}

async fn answer(router: &Router, request: Request<Body>) -> (StatusCode, HeaderMap, Bytes) {
    let answered = async {
        let response = router.clone().oneshot(request).await.expect("the router always answers");
        let (status, headers) = (response.status(), response.headers().clone());
        // A stream ends by itself.
        let body = response.into_body().collect().await.expect("a body that ends").to_bytes();
        (status, headers, body)
    };
    tokio::time::timeout(TIME_MAX, answered).await.expect("an answer in time")
}

/// Routes that are also there without `/v1`; the document has each route under one name.
const ALSO_WITHOUT_V1: [&str; 9] = [
    "/chat/completions",
    "/chat/completions/input_tokens",
    "/responses",
    "/messages",
    "/messages/count_tokens",
    "/embeddings",
    "/score",
    "/rerank",
    "/models",
];

/// The name that the document has for a route.
fn documented(path: &str) -> String {
    match path {
        "/completions" => "/completion".to_owned(),
        "/v1/health" | "/ping" => "/health".to_owned(),
        "/v1/pooling" => "/pooling".to_owned(),
        "/v2/rerank" | "/reranking" | "/v1/reranking" => "/v1/rerank".to_owned(),
        _ if ALSO_WITHOUT_V1.contains(&path) || path.starts_with("/models/") => format!("/v1{path}"),
        _ => path.to_owned(),
    }
}

fn check_status(served: &Served, method: &Method, path: &str, status: StatusCode, answer: &[u8]) {
    let name = documented(path);
    let matches = |declared: &str| match declared.split_once('{') {
        Some((before, _)) => name.strip_prefix(before).is_some_and(|rest| !rest.is_empty()),
        None => declared == name,
    };
    let as_declared = if *method == Method::HEAD { "GET" } else { method.as_str() };
    let operation = served.declared.iter().find(|((method, path), _)| method == as_declared && matches(path));
    let is_declared = match operation {
        Some((_, statuses)) => statuses.contains(&status.as_u16()),
        // The files of the page are for the page alone.
        None if path.starts_with("/page/") && matches!(*method, Method::GET | Method::HEAD) => {
            [200, 304].contains(&status.as_u16()) || WITHOUT_ROUTE.contains(&status.as_u16())
        }
        // What browsers ask before they ask.
        None if *method == Method::OPTIONS && status.is_success() => true,
        None => WITHOUT_ROUTE.contains(&status.as_u16()),
    };
    assert!(is_declared, "{status} is not declared for {method} {path}: {}", String::from_utf8_lossy(answer));
}

/// What an error says: Ollama's clients read a text, those of the others an object, which Anthropic's know by its type.
fn message_of<'a>(path: &str, answer: &'a Value) -> Option<&'a str> {
    let inner = path.strip_prefix("/v1").unwrap_or(path);
    if inner.starts_with("/api/") {
        return answer["error"].as_str();
    }
    let is_of_anthropic = inner.starts_with("/messages");
    assert!(!is_of_anthropic || answer["type"] == "error", "{answer} for {path}");
    answer["error"]["message"].as_str()
}

fn check_body(path: &str, status: StatusCode, headers: &HeaderMap, body: &[u8]) {
    let kind = headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let shown = || String::from_utf8_lossy(body);
    if kind.starts_with("application/json") {
        let answer: Value = serde_json::from_slice(body).unwrap_or_else(|error| panic!("{error}: {}", shown()));
        if status.is_client_error() || status.is_server_error() {
            let message = message_of(path, &answer).unwrap_or_default();
            assert!(!message.is_empty(), "{status} without a message for {path}: {answer}");
        }
    } else if kind.starts_with("text/event-stream") {
        assert_eq!(status, StatusCode::OK);
        let text = std::str::from_utf8(body).unwrap_or_else(|error| panic!("{error}: {}", shown()));
        assert!(text.ends_with("\n\n"), "a stream ends with an event: {text}");
        for line in text.lines().filter(|line| !line.is_empty()) {
            let Some(data) = line.strip_prefix("data: ") else {
                assert!(line.starts_with("event: ") || line.starts_with(':'), "`{line}` in a stream");
                continue;
            };
            let is_json = serde_json::from_str::<Value>(data).is_ok();
            assert!(is_json || data == "[DONE]", "an event that is no JSON: {data}");
        }
    } else if kind.starts_with("application/x-ndjson") {
        assert_eq!(status, StatusCode::OK);
        let text = std::str::from_utf8(body).unwrap_or_else(|error| panic!("{error}: {}", shown()));
        assert!(text.ends_with('\n'), "a stream ends with a line: {text}");
        for line in text.lines() {
            assert!(serde_json::from_str::<Value>(line).is_ok(), "a line that is no JSON: {line}");
        }
    } else {
        assert!(!status.is_client_error() && !status.is_server_error(), "{status} as `{kind}`: {}", shown());
    }
}
