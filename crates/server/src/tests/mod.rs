//! The interface as clients meet it, without a socket: the engine computes nothing but remembers everything
//! (`engine::null`), with the built-in model's vocabulary and chat template.

mod context_shift;
mod dialects_page;
mod echoes;
mod embeddings;
mod errors;
mod field_cases;
mod fields;
mod forced_calls;
mod fuzz_seeds;
mod generation;
mod infill;
mod listen;
mod llama_cpp;
mod load;
mod models;
mod ollama;
mod on_demand;
mod page;
mod parrot;
mod quoting;
mod recorded;
mod roles;
mod round_trips;
mod slots;
mod small_templates;
mod structure;
mod turns;
mod vllm;

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::response::Response;
use engine::null::{Faults, NULL_HIDDEN_SIZE, NullExecutable};
use engine::{Engine, EngineConfig, EngineStats, SamplingParams};
use http_body_util::BodyExt;
use plan::{KvFormat, KvLayout};
use serde_json::{Value, json};
use tokenizer::chat_template::ChatTemplate;
use tokenizer::{LoadOptions, Tokenizer};
use tower::ServiceExt;

use crate::{App, Options, ServedModel, chat};

const VOCAB_SIZE: usize = 4096;
const MODEL: &str = "tiny";

fn tokenizer() -> Arc<Tokenizer> {
    let config = include_bytes!("../../../cli/builtin/tokenizer_config.json");
    let json = include_bytes!("../../../cli/builtin/tokenizer.json");
    let mut tokenizer = Tokenizer::from_json(json, Some(config), &LoadOptions::default()).unwrap();
    tokenizer.add_eos_ids(&[2, 0]);
    Arc::new(tokenizer)
}

fn chat_template() -> ChatTemplate {
    let config: Value = serde_json::from_slice(include_bytes!("../../../cli/builtin/tokenizer_config.json")).unwrap();
    ChatTemplate::new(config["chat_template"].as_str().unwrap()).unwrap()
}

fn config() -> EngineConfig {
    let kv = KvLayout { format: KvFormat::F32, block_len: 8, num_blocks: 64 };
    EngineConfig::new(kv, 256, VOCAB_SIZE, vec![2, 0])
}

/// A server whose model is being loaded.
fn loading(options: Options) -> App {
    App::new(options, &[MODEL])
}

fn serve_on(app: &App, config: EngineConfig, faults: Option<Faults>) {
    serve_with(app, config, faults, chat_template());
}

fn serve_with(app: &App, config: EngineConfig, faults: Option<Faults>, template: ChatTemplate) {
    app.ready(served(config, faults, template)).unwrap();
}

fn served(config: EngineConfig, faults: Option<Faults>, template: ChatTemplate) -> ServedModel {
    let executable = NullExecutable::new(config.kv, config.vocab_size).with_queue();
    let executable = match faults {
        Some(faults) => executable.with_faults(faults),
        None => executable,
    };
    served_by(executable, config, template)
}

fn served_by(executable: NullExecutable, config: EngineConfig, template: ChatTemplate) -> ServedModel {
    let engine = Engine::new(Box::new(executable), config).unwrap();
    ServedModel {
        device: "nothing".to_owned(),
        version: "0",
        defaults: SamplingParams { temperature: 0.7, top_p: 0.95, ..SamplingParams::default() },
        chat_template: Some(template),
        ..ServedModel::new(MODEL, tokenizer(), engine)
    }
}

fn app() -> App {
    app_on(config(), None)
}

/// One that does not answer for other models.
fn strict() -> App {
    let app = loading(Options { strict_model: true, ..Options::default() });
    serve_on(&app, config(), None);
    app
}

fn app_on(config: EngineConfig, faults: Option<Faults>) -> App {
    let app = loading(Options::default());
    serve_on(&app, config, faults);
    app
}

fn request(method: Method, path: &str, body: &str) -> Request<Body> {
    let request = Request::builder().method(method).uri(path).header("host", "localhost:8080");
    request.header("content-type", "application/json").body(Body::from(body.to_owned())).unwrap()
}

async fn send(app: &App, request: Request<Body>) -> Response {
    app.router().oneshot(request).await.unwrap()
}

async fn bytes(response: Response) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

async fn json_of(response: Response) -> Value {
    let bytes = bytes(response).await;
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{error}: {bytes:?}"))
}

async fn post(app: &App, path: &str, body: &Value) -> (StatusCode, HeaderMap, Value) {
    let response = send(app, request(Method::POST, path, &body.to_string())).await;
    (response.status(), response.headers().clone(), json_of(response).await)
}

async fn ok(app: &App, path: &str, body: &Value) -> Value {
    let (status, _, answer) = post(app, path, body).await;
    assert_eq!(status, StatusCode::OK, "{body}: {answer}");
    answer
}

async fn get(app: &App, path: &str) -> (StatusCode, Value) {
    let response = send(app, request(Method::GET, path, "")).await;
    (response.status(), json_of(response).await)
}

/// The events of a stream, but for the last, which is `[DONE]`.
async fn stream(app: &App, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let response = send(app, request(Method::POST, path, &body.to_string())).await;
    assert_eq!(response.status(), StatusCode::OK, "{body}");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    events(&bytes(response).await)
}

fn events(bytes: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(bytes).unwrap();
    let mut data: Vec<&str> = text
        .split_terminator("\n\n")
        .filter(|event| !event.starts_with(':'))
        .map(|event| event.strip_prefix("data: ").unwrap_or_else(|| panic!("an event `{event}`")))
        .collect();
    assert_eq!(data.pop(), Some("[DONE]"));
    data.into_iter().map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn stats(app: &App) -> EngineStats {
    app.serving(None).unwrap().engine.stats()
}

/// Waits until no sequence holds a block.
async fn idle(app: &App) -> EngineStats {
    for _ in 0..500 {
        let stats = stats(app);
        if stats.num_running + stats.num_waiting == 0 && stats.num_free_blocks == stats.num_blocks {
            return stats;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("requests are left: {:?}", stats(app));
}

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const RESPONSES: &str = "/v1/responses";
const EMBED: &str = "/v1/embeddings";
const POOLING: &str = "/pooling";
const INFILL: &str = "/infill";
const OLLAMA: &str = "/api/chat";

fn hello() -> Value {
    json!({"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 8, "seed": 3})
}
