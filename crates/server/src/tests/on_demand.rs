//! Models on demand: who waits for whom, who is unloaded, and what is never cut off.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::*;
use crate::{LoadFailure, Loading, ModelLoader, OnDemand};

/// What a loader did, and how it is to behave.
#[derive(Default)]
struct Shelf {
    log: Mutex<Vec<String>>,
    /// How long a load takes.
    load_time: Duration,
    /// How long a step takes.
    step_time: Duration,
    /// Models whose engine is alive.
    alive: Mutex<Vec<String>>,
    /// Whether a model was said to be unloaded while its engine was alive.
    was_early: AtomicBool,
}

/// Leaves its name among those alive as long as it is.
struct Alive(Arc<Shelf>, String);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.alive.lock().unwrap().retain(|name| *name != self.1);
    }
}

struct ShelfLoader(Arc<Shelf>);

impl ModelLoader for ShelfLoader {
    fn check(&mut self, name: &str) -> Result<(), String> {
        if name == "garbage" { Err("it is no model file".to_owned()) } else { Ok(()) }
    }

    fn load(&mut self, name: &str, _: &Loading) -> Result<ServedModel, LoadFailure> {
        self.0.log.lock().unwrap().push(format!("load {name}"));
        std::thread::sleep(self.0.load_time);
        match name {
            "large" => return Err(LoadFailure::Always("it does not fit".to_owned())),
            "wide" if !self.0.alive.lock().unwrap().is_empty() => {
                return Err(LoadFailure::Beside("it does not fit beside others".to_owned()));
            }
            "bug" => panic!("planted"),
            _ => {}
        }
        self.0.alive.lock().unwrap().push(name.to_owned());
        let (alive, step_time) = (Alive(Arc::clone(&self.0), name.to_owned()), self.0.step_time);
        let faults: Faults = Box::new(move |_, _| {
            let _held = &alive;
            std::thread::sleep(step_time);
            None
        });
        Ok(served(config(), Some(faults), chat_template()))
    }

    fn unloaded(&mut self, name: &str) {
        self.0.log.lock().unwrap().push(format!("unloaded {name}"));
        if self.0.alive.lock().unwrap().iter().any(|alive| alive == name) {
            self.0.was_early.store(true, Ordering::SeqCst);
        }
    }
}

const OFFERED: [&str; 6] = ["a", "b", "garbage", "large", "bug", "wide"];

struct Library {
    app: App,
    shelf: Arc<Shelf>,
}

impl Library {
    fn of(shelf: Shelf, loaded_max: usize, idle_time_max: Option<Duration>) -> Self {
        let (app, shelf) = (App::with_offered(Options::default(), &[], &OFFERED), Arc::new(shelf));
        let loader = Box::new(ShelfLoader(Arc::clone(&shelf)));
        app.load_on_demand(OnDemand { loader, loaded_max: Some(loaded_max), idle_time_max, version: "0" }).unwrap();
        Self { app, shelf }
    }

    fn log(&self) -> Vec<String> {
        self.shelf.log.lock().unwrap().clone()
    }

    async fn states(&self) -> Vec<String> {
        let (_, list) = get(&self.app, "/v1/models").await;
        let state =
            |model: &Value| format!("{} {}", model["id"].as_str().unwrap(), model["status"]["value"].as_str().unwrap());
        list["data"].as_array().unwrap().iter().take(2).map(state).collect()
    }

    /// Asks a model in a task of its own.
    fn ask(&self, model: &str, max_tokens: usize) -> tokio::task::JoinHandle<(StatusCode, Value)> {
        let (app, body) = (self.app.clone(), named(model, max_tokens));
        tokio::spawn(async move {
            let (status, _, answer) = post(&app, TEXT, &body).await;
            (status, answer)
        })
    }

    async fn await_log(&self, count: usize) -> Vec<String> {
        let begun = Instant::now();
        while self.log().len() < count {
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", self.log());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.log()
    }
}

fn named(model: &str, max_tokens: usize) -> Value {
    json!({"model": model, "prompt": "Once upon a time", "max_tokens": max_tokens, "ignore_eos": true, "seed": 1})
}

#[tokio::test]
async fn a_model_is_loaded_for_its_first_request_and_leaves_for_another() {
    let library = Library::of(Shelf::default(), 1, None);
    let app = &library.app;
    assert_eq!(get(app, "/health").await.1["status"], "ok");
    assert_eq!(library.states().await, ["a unloaded", "b unloaded"]);
    assert_eq!(get(app, "/version").await.1["version"], "0");
    assert_eq!(get(app, "/props").await.1["is_sleeping"], true);
    assert_eq!(get(app, "/props?model=a").await.1["is_sleeping"], true);
    assert_eq!(get(app, "/props?model=x").await.0, StatusCode::NOT_FOUND);
    assert_eq!(get(app, "/v1/models/a").await.1["status"], json!({"value": "unloaded"}));
    // Nothing of this has loaded one.
    assert_eq!(library.log(), [""; 0]);
    let first = ok(app, TEXT, &named("a", 8)).await;
    assert_eq!(first["model"], "a");
    assert_eq!(library.states().await, ["a loaded", "b unloaded"]);
    assert_eq!(get(app, "/props?model=a").await.1["is_sleeping"], false);
    ok(app, OLLAMA, &json!({"model": "b:latest", "messages": [{"role": "user", "content": "x"}], "stream": false}))
        .await;
    assert_eq!(library.states().await, ["a unloaded", "b loaded"]);
    assert_eq!(ok(app, TEXT, &named("a", 8)).await["choices"], first["choices"]);
    assert_eq!(library.log(), ["load a", "unloaded a", "load b", "unloaded b", "load a"]);
    assert!(!library.shelf.was_early.load(Ordering::SeqCst), "its memory was not free yet");
    let names = |list: &Value| {
        let models = list["models"].as_array().unwrap().iter();
        models.map(|model| model["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (_, tags) = get(app, "/api/tags").await;
    assert_eq!(names(&tags), ["a:latest", "b:latest", "garbage:latest", "large:latest", "bug:latest", "wide:latest"]);
    assert_eq!(names(&get(app, "/api/ps").await.1), ["a:latest"]);
    let (_, health) = get(app, "/health").await;
    assert_eq!((&health["models"]["a"], &health["models"]["b"]), (&json!("ok"), &json!("unloaded")));
    // Tokens of a vocabulary take its model, too, and so does what it can.
    assert_eq!(ok(app, "/api/show", &json!({"name": "a"})).await["modelfile"], "FROM a");
    assert_eq!(get(app, "/tokenizer_info?model=b").await.0, StatusCode::OK);
    // Of several none is meant by a request that names none.
    let (status, _, answer) = post(app, TEXT, &json!({"prompt": "x"})).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("model")));
    let (status, _, answer) = post(app, TEXT, &named("c", 8)).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
}

#[tokio::test]
async fn the_one_that_was_used_least_lately_leaves() {
    let library = Library::of(Shelf::default(), 2, None);
    for model in ["a", "b", "a"] {
        ok(&library.app, TEXT, &named(model, 2)).await;
    }
    assert_eq!(library.log(), ["load a", "load b"]);
    post(&library.app, TEXT, &named("large", 2)).await;
    assert_eq!(library.log()[2..], ["unloaded b", "load large", "unloaded large"]);
    assert_eq!(library.states().await, ["a loaded", "b unloaded"]);
}

#[tokio::test]
async fn a_model_that_cannot_be_loaded_fails_its_request_and_no_other() {
    let library = Library::of(Shelf::default(), 2, None);
    ok(&library.app, TEXT, &named("a", 2)).await;
    for (model, why) in [("garbage", "it is no model file"), ("large", "it does not fit"), ("bug", "a bug")] {
        let (status, _, answer) = post(&library.app, TEXT, &named(model, 2)).await;
        assert_eq!((status, &answer["error"]["code"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!("model_not_loaded")));
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("`{model}`")) && message.contains(why), "{message}");
        let (_, of_it) = get(&library.app, &format!("/v1/models/{model}")).await;
        assert_eq!(of_it["status"], json!({"value": "unloaded", "failed": true}));
        ok(&library.app, TEXT, &named("a", 2)).await;
    }
    // Nobody made room for what its files tell of.
    assert!(!library.log().contains(&"unloaded a".to_owned()), "{:?}", library.log());
    assert_eq!(get(&library.app, "/health").await.1["status"], "ok");
}

#[tokio::test]
async fn models_that_nobody_uses_leave_for_one_that_does_not_fit_beside_them() {
    let library = Library::of(Shelf { step_time: Duration::from_millis(5), ..Shelf::default() }, 4, None);
    for model in ["a", "b", "wide"] {
        ok(&library.app, TEXT, &named(model, 2)).await;
    }
    let leaves = ["unloaded wide", "unloaded a", "load wide", "unloaded wide", "unloaded b", "load wide"];
    assert_eq!(library.log()[2..], [&["load wide"][..], &leaves].concat());
    assert!(!library.shelf.was_early.load(Ordering::SeqCst), "its memory was not free yet");
    // One that is in use stays, and the request is told why.
    let library = Library::of(Shelf { step_time: Duration::from_millis(5), ..Shelf::default() }, 4, None);
    let under_way = library.ask("a", 60);
    library.await_log(1).await;
    tokio::time::sleep(Duration::from_millis(40)).await;
    let (status, _, answer) = post(&library.app, TEXT, &named("wide", 2)).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!("model_not_loaded")));
    assert_eq!(under_way.await.unwrap().0, StatusCode::OK);
    ok(&library.app, TEXT, &named("wide", 2)).await;
}

#[tokio::test]
async fn all_who_wait_are_served_by_one_load() {
    let library = Library::of(Shelf { load_time: Duration::from_millis(100), ..Shelf::default() }, 1, None);
    let asked: Vec<_> = (0..6).map(|index| library.ask(["a", "b"][index % 2], 4)).collect();
    library.await_log(1).await;
    let (_, health) = get(&library.app, "/health").await;
    assert_eq!(health["status"], "ok");
    assert!(library.states().await.iter().any(|state| state.ends_with("loading")));
    for asked in asked {
        let (status, answer) = asked.await.unwrap();
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
    assert_eq!(library.log().iter().filter(|line| line.starts_with("load ")).count(), 2, "{:?}", library.log());
}

#[tokio::test]
async fn a_request_under_way_is_never_cut_off_and_others_have_their_turn() {
    let library = Library::of(Shelf { step_time: Duration::from_millis(5), ..Shelf::default() }, 1, None);
    let whole = ok(&library.app, TEXT, &named("a", 60)).await;
    let under_way = library.ask("a", 60);
    tokio::time::sleep(Duration::from_millis(40)).await;
    let other = library.ask("b", 4);
    tokio::time::sleep(Duration::from_millis(40)).await;
    // Whoever comes now waits until the other has had its turn.
    let late = library.ask("a", 60);
    let (status, answer) = under_way.await.unwrap();
    assert_eq!((status, &answer["choices"]), (StatusCode::OK, &whole["choices"]));
    assert_eq!(other.await.unwrap().0, StatusCode::OK);
    assert_eq!(late.await.unwrap().1["choices"], whole["choices"]);
    assert_eq!(library.log(), ["load a", "unloaded a", "load b", "unloaded b", "load a"]);
    assert!(!library.shelf.was_early.load(Ordering::SeqCst), "its memory was not free yet");
}

#[tokio::test]
async fn a_model_without_requests_is_unloaded_and_comes_again() {
    let shelf = Shelf { step_time: Duration::from_millis(5), ..Shelf::default() };
    let library = Library::of(shelf, 4, Some(Duration::from_millis(120)));
    let begun = Instant::now();
    // An answer that takes longer than a model may idle.
    let answer = ok(&library.app, TEXT, &named("a", 60)).await;
    assert!(begun.elapsed() >= Duration::from_millis(240), "the steps are slow");
    assert_eq!(library.log(), ["load a"]);
    let (_, running) = get(&library.app, "/api/ps").await;
    assert_eq!(running["models"].as_array().unwrap().len(), 1);
    assert_eq!(library.await_log(2).await, ["load a", "unloaded a"]);
    assert!(library.shelf.alive.lock().unwrap().is_empty());
    assert_eq!(get(&library.app, "/api/ps").await.1["models"], json!([]));
    assert_eq!(ok(&library.app, TEXT, &named("a", 60)).await["choices"], answer["choices"]);
}

#[tokio::test]
async fn a_model_that_is_loaded_at_the_start_sleeps_too_and_its_counts_go_on() {
    let (app, shelf) = (loading(Options::default()), Arc::new(Shelf::default()));
    let of_first = |app: &App| {
        let app = app.clone();
        async move { get(&app, "/health").await.1 }
    };
    assert_eq!(of_first(&app).await["status"], "loading");
    serve_on(&app, config(), None);
    let loader = Box::new(ShelfLoader(Arc::clone(&shelf)));
    let idle_time_max = Some(Duration::from_millis(60));
    app.load_on_demand(OnDemand { loader, loaded_max: None, idle_time_max, version: "0" }).unwrap();
    ok(&app, CHAT, &hello()).await;
    let library = Library { app, shelf };
    assert_eq!(library.await_log(1).await, ["unloaded tiny"]);
    assert_eq!(get(&library.app, "/slots").await.1["error"]["code"], "not_loaded");
    ok(&library.app, CHAT, &hello()).await;
    assert_eq!(library.log()[1], "load tiny");
    let text = bytes(send(&library.app, request(Method::GET, "/metrics", "")).await).await;
    let line = "vllm:generation_tokens_total{model_name=\"tiny\"} 16";
    assert!(std::str::from_utf8(&text).unwrap().lines().any(|found| found == line));
}

#[tokio::test]
async fn who_waits_while_the_server_shuts_down_is_told_so() {
    let library = Library::of(Shelf { load_time: Duration::from_secs(3), ..Shelf::default() }, 1, None);
    let (first, second) = (library.ask("a", 4), library.ask("b", 4));
    library.await_log(1).await;
    let begun = Instant::now();
    library.app.drain();
    for waiting in [first, second] {
        let (status, answer) = waiting.await.unwrap();
        assert_eq!((status, &answer["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("draining")));
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "nobody waits for the load");
    assert_eq!(post(&library.app, TEXT, &named("b", 4)).await.0, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn nothing_is_loaded_for_who_has_gone() {
    let library = Library::of(Shelf { load_time: Duration::from_millis(200), ..Shelf::default() }, 1, None);
    let first = library.ask("a", 4);
    library.await_log(1).await;
    let gone = library.ask("b", 4);
    tokio::time::sleep(Duration::from_millis(50)).await;
    gone.abort();
    assert_eq!(first.await.unwrap().0, StatusCode::OK);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(library.log(), ["load a"]);
}
