//! The memory between socket and queue, measured: many large requests at a time stay within what the server was given, clients
//! that leave keep nobody waiting, and what was taken comes back.

#![expect(clippy::print_stdout, reason = "tests say what they measured")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use engine::null::NullExecutable;
use engine::{Engine, EngineConfig};
use http_body_util::BodyExt;
use hyper::body::Frame;
use plan::{KvFormat, KvLayout};
use serde_json::{Value, json};
use server::{App, Options, ServedModel};
use tokenizer::chat_template::ChatTemplate;
use tokenizer::{LoadOptions, Tokenizer};
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

/// Counts what the program holds.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn add(bytes: usize) {
    let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(held, Ordering::Relaxed);
}

// SAFETY: every method passes its arguments on to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // The old and the new block exist together for a moment.
        add(new_size);
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The tests of this file, one at a time: they measure what the program holds.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bytes that `work` held at most, besides those that were held before.
fn peak<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let made = work();
    (PEAK.load(Ordering::Relaxed).saturating_sub(before), made)
}

const MIB: usize = 1 << 20;
const VOCAB_SIZE: usize = 4096;

/// A server whose engine computes nothing, with the built-in model's vocabulary and chat template.
fn app(options: Options) -> App {
    let config = include_bytes!("../../cli/builtin/tokenizer_config.json");
    let json = include_bytes!("../../cli/builtin/tokenizer.json");
    let tokenizer = Tokenizer::from_json(json, Some(config), &LoadOptions::default()).unwrap();
    let template: Value = serde_json::from_slice(config).unwrap();
    let kv = KvLayout { format: KvFormat::F32, block_len: 8, num_blocks: 64 };
    let config = EngineConfig::new(kv, 256, VOCAB_SIZE, vec![2, 0]);
    let app = App::new(options, &["tiny"]);
    let engine = Engine::new(Box::new(NullExecutable::new(kv, VOCAB_SIZE).with_queue()), config).unwrap();
    app.ready(ServedModel {
        chat_template: Some(ChatTemplate::new(template["chat_template"].as_str().unwrap()).unwrap()),
        ..ServedModel::new("tiny", Arc::new(tokenizer), engine)
    })
    .unwrap();
    app
}

/// A body that is made while it is read, so that the client's side of it is not counted: `piece`, so many times, between two
/// ends.
#[derive(Clone)]
struct Long {
    begin: &'static str,
    piece: &'static [u8],
    times: usize,
    end: &'static str,
}

impl Long {
    /// A member of so many bytes: of letters that make no words if it is a text, of ids if it is a list.
    fn new(begin: &'static str, pattern: &str, bytes: usize, end: &'static str) -> Self {
        let piece = pattern.repeat((64 << 10) / pattern.len()).into_bytes();
        let times = bytes / piece.len();
        Self { begin, piece: piece.leak(), times, end }
    }

    fn request(&self, path: &str) -> Request<Body> {
        let len = self.begin.len() + self.piece.len() * self.times + self.end.len();
        let request = Request::post(path).header("host", "localhost").header("content-type", "application/json");
        let pieces = std::iter::once(self.begin.as_bytes())
            .chain(std::iter::repeat_n(self.piece, self.times))
            .chain([self.end.as_bytes()]);
        let body = Pieces(Box::new(pieces.map(Bytes::from_static)));
        request.header("content-length", len).body(Body::new(body)).unwrap()
    }
}

struct Pieces(Box<dyn Iterator<Item = Bytes> + Send>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|bytes| Ok(Frame::data(bytes))))
    }
}

const WORD: &str = "qzjxkvbwpygf";

fn text(bytes: usize) -> Long {
    Long::new("{\"content\": \"", WORD, bytes, "\"}")
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

async fn send(app: &App, request: Request<Body>) -> Response {
    app.router().oneshot(request).await.unwrap()
}

/// The statuses of so many of these requests at a time, whose answers are read to their ends.
fn all_at_once(runtime: &Runtime, app: &App, path: &'static str, body: &Long, count: usize) -> Vec<StatusCode> {
    runtime.block_on(async {
        let answers: Vec<_> = (0..count)
            .map(|_| {
                let (app, request) = (app.clone(), body.request(path));
                tokio::spawn(async move {
                    let response = send(&app, request).await;
                    let status = response.status();
                    let mut body = response.into_body();
                    while let Some(frame) = body.frame().await {
                        frame.unwrap();
                    }
                    status
                })
            })
            .collect();
        let mut statuses = Vec::new();
        for answer in answers {
            statuses.push(answer.await.unwrap());
        }
        statuses
    })
}

/// What requests hold according to the server itself.
async fn held(app: &App) -> usize {
    let request = Request::get("/metrics").header("host", "localhost").body(Body::empty()).unwrap();
    let page = send(app, request).await.into_body().collect().await.unwrap().to_bytes();
    let page = String::from_utf8(page.to_vec()).unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix("hotmetal_prepare_bytes "));
    line.expect("the gauge is there").parse().unwrap()
}

/// Waits until requests hold nothing.
async fn all_is_given_back(app: &App) {
    let begun = Instant::now();
    while held(app).await > 0 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{} bytes are held", held(app).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What the server has besides: its threads, the engine, caches of automata.
const BESIDES: usize = 8 * MIB;

#[test]
fn large_requests_stay_within_the_memory_for_them() {
    let _alone = alone();
    let runtime = runtime();
    let (given, wait) = (64 * MIB, Duration::from_secs(120));
    let options = Options { prepare_bytes_max: given, prepare_time_max: wait, ..Options::default() };
    let app = app(options);
    let ids = |begin| Long::new(begin, "1, 23,", MIB, "3]}");
    let cases: [(&str, &str, Long, usize, StatusCode); 6] = [
        ("texts", "/tokenize", text(MIB), 16, StatusCode::OK),
        ("spaces", "/tokenize", Long::new("{\"content\": \"", " ", MIB, "\"}"), 16, StatusCode::OK),
        (
            "pieces",
            "/tokenize",
            Long::new("{\"with_pieces\": true, \"return_token_strs\": true, \"content\": \"", WORD, MIB / 4, "\"}"),
            8,
            StatusCode::OK,
        ),
        ("lists of ids", "/v1/completions", ids("{\"prompt\": ["), 64, StatusCode::BAD_REQUEST),
        ("ids to text", "/detokenize", ids("{\"tokens\": ["), 32, StatusCode::OK),
        (
            "conversations",
            "/v1/chat/completions",
            Long::new("{\"messages\": [{\"role\": \"user\", \"content\": \"", WORD, MIB, "\"}]}"),
            16,
            StatusCode::BAD_REQUEST,
        ),
    ];
    // What is made once.
    all_at_once(&runtime, &app, "/tokenize", &text(64 << 10), 2);
    for (name, path, body, count, expected) in cases {
        let begun = Instant::now();
        let (bytes, statuses) = peak(|| all_at_once(&runtime, &app, path, &body, count));
        println!("{name}: {:.1} MiB at most, {:?}", bytes as f64 / MIB as f64, begun.elapsed());
        assert!(bytes <= given + BESIDES, "{name}: {bytes} bytes");
        // An answer that is longer than its request may have found no room; all else waits for its turn.
        let is_right = |status: &StatusCode| *status == expected || *status == StatusCode::SERVICE_UNAVAILABLE;
        assert!(statuses.iter().all(is_right) && statuses.contains(&expected), "{name}: {statuses:?}");
        runtime.block_on(all_is_given_back(&app));
    }
}

#[test]
fn who_finds_no_memory_is_told_to_come_again() {
    let _alone = alone();
    let runtime = runtime();
    let wait = Duration::from_millis(20);
    let app = app(Options { prepare_bytes_max: 24 * MIB, prepare_time_max: wait, ..Options::default() });
    runtime.block_on(async {
        let requests: Vec<_> = (0..12)
            .map(|_| {
                let (app, request) = (app.clone(), text(MIB).request("/tokenize"));
                tokio::spawn(async move { send(&app, request).await })
            })
            .collect();
        let (mut done, mut told) = (0, 0);
        for request in requests {
            let response = request.await.unwrap();
            if response.status() == StatusCode::OK {
                done += 1;
                continue;
            }
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert!(response.headers().contains_key("retry-after"));
            let error = response.into_body().collect().await.unwrap().to_bytes();
            let error: Value = serde_json::from_slice(&error).unwrap();
            assert_eq!(error["error"]["code"], "busy");
            told += 1;
        }
        assert!(done > 0 && told > 0, "{done} were answered and {told} were not");
        all_is_given_back(&app).await;
        assert_eq!(send(&app, text(MIB).request("/tokenize")).await.status(), StatusCode::OK);
    });
}

/// Two threads for what blocks: what those who left had asked for would keep them for half a minute.
#[test]
fn what_those_who_left_had_asked_for_keeps_nobody_waiting() {
    let _alone = alone();
    let runtime = Builder::new_multi_thread().worker_threads(2).max_blocking_threads(2).enable_all().build().unwrap();
    let app = app(Options::default());
    runtime.block_on(async {
        let leaving: Vec<_> = (0..16)
            .map(|index| {
                let body = match index % 3 {
                    0 => text(4 * MIB),
                    1 => Long::new("{\"content\": \"", "it was the best of times, ", 4 * MIB, "\"}"),
                    _ => Long::new("{\"content\": \"", "7 ", 4 * MIB, "\"}"),
                };
                let (app, request) = (app.clone(), body.request("/tokenize"));
                tokio::spawn(async move { send(&app, request).await })
            })
            .collect();
        // Until some of them are being encoded.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(held(&app).await > 100 * MIB);
        leaving.iter().for_each(tokio::task::JoinHandle::abort);
        let begun = Instant::now();
        let small = json!({"content": "Once upon a time"}).to_string();
        let request = Request::post("/tokenize").header("host", "localhost").header("content-type", "application/json");
        let response = send(&app, request.body(Body::from(small)).unwrap()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        drop(response);
        all_is_given_back(&app).await;
    });
}

#[test]
fn what_was_taken_comes_back_whatever_became_of_the_request() {
    let _alone = alone();
    let runtime = runtime();
    let app = app(Options { body_bytes_max: 2 * MIB, strict_model: true, ..Options::default() });
    let bodies = [
        ("is no JSON", Long::new("{\"content\": \"", "a", MIB, "\""), 400),
        ("nests too deep", Long::new("{\"content\": ", "[", MIB, "}"), 400),
        ("is too large", text(3 * MIB), 413),
        ("names an unknown model", Long::new("{\"model\": \"other\", \"content\": \"", "a", MIB, "\"}"), 404),
        ("lacks its field", Long::new("{\"unknown\": \"", "a", MIB, "\"}"), 400),
        ("is good", text(MIB), 200),
    ];
    for (name, body, expected) in bodies {
        let statuses = all_at_once(&runtime, &app, "/tokenize", &body, 2);
        assert_eq!(statuses, [expected; 2].map(|status| StatusCode::from_u16(status).unwrap()), "{name}");
        runtime.block_on(all_is_given_back(&app));
    }
    runtime.block_on(async {
        // A body that ends before it is whole, and an answer that nobody reads.
        let short = Long { end: "", ..text(MIB) };
        assert_eq!(send(&app, short.request("/tokenize")).await.status(), StatusCode::BAD_REQUEST);
        all_is_given_back(&app).await;
        let unread = send(&app, text(MIB).request("/tokenize")).await;
        assert!(held(&app).await > MIB, "an answer is held until it is sent");
        drop(unread);
        all_is_given_back(&app).await;
    });
}
