//! Several models in one server: who answers whom, and whom a failure takes along.

use super::*;
use crate::ReadyError;

const OTHER: &str = "org/other";

/// A server of two models that differ in their context.
fn loading_two(options: Options) -> App {
    App::new(options, &[MODEL, OTHER])
}

fn other(faults: Option<Faults>) -> ServedModel {
    let config = EngineConfig { context_len: 128, ..config() };
    ServedModel { name: OTHER.to_owned(), ..served(config, faults, chat_template()) }
}

fn two_with(options: Options, faults: Option<Faults>) -> App {
    let app = loading_two(options);
    serve_on(&app, config(), None);
    app.ready(other(faults)).unwrap();
    app
}

fn two() -> App {
    two_with(Options::default(), None)
}

fn with_model(mut body: Value, model: &str) -> Value {
    body["model"] = json!(model);
    body
}

/// A body for each route that takes one.
fn bodies() -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "user", "content": "Hello there"}]);
    vec![
        (CHAT, hello()),
        (TEXT, json!({"prompt": "Once", "max_tokens": 4, "seed": 1})),
        (MESSAGES, json!({"messages": messages, "max_tokens": 4})),
        (COUNT, json!({"messages": messages})),
        (RESPONSES, json!({"input": "Hello", "max_output_tokens": 4})),
        (EMBED, json!({"input": "Hello"})),
        (POOLING, json!({"input": "Hello"})),
        ("/tokenize", json!({"prompt": "Hello"})),
        ("/detokenize", json!({"tokens": [5, 6]})),
        ("/apply-template", json!({"messages": messages})),
        ("/v1/chat/completions/input_tokens", json!({"messages": messages})),
        (OLLAMA, json!({"messages": messages, "stream": false, "options": {"num_predict": 4}})),
        ("/api/generate", json!({"prompt": "Once", "stream": false, "options": {"num_predict": 4}})),
        ("/api/embed", json!({"input": "Hello"})),
        ("/api/embeddings", json!({"prompt": "Hello"})),
        ("/api/show", json!({})),
    ]
}

#[tokio::test]
async fn each_route_takes_the_model_that_the_request_names() {
    let app = two();
    for (path, body) in bodies() {
        ok(&app, path, &body).await;
        for name in [MODEL, OTHER] {
            let answer = ok(&app, path, &with_model(body.clone(), name)).await;
            if !answer["model"].is_null() {
                assert_eq!(answer["model"], name, "{path}");
            }
            if !answer["max_model_len"].is_null() {
                assert_eq!(answer["max_model_len"], if name == OTHER { 128 } else { 256 });
            }
        }
        let (status, _, answer) = post(&app, path, &with_model(body.clone(), "gpt-4")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}: {answer}");
        let is_text = answer["error"].is_string();
        let error = if is_text { &answer } else { &answer["error"] };
        assert_eq!((&error["param"], &error["code"]), (&json!("model"), &json!("model_not_found")), "{path}");
        let message = if is_text { &error["error"] } else { &error["message"] };
        let message = message.as_str().unwrap();
        assert!(message.contains("`gpt-4`") && message.contains("`tiny`, `org/other` are"), "{message}");
        // What is no name is a wrong field, as with one model.
        let mut wrong = body;
        wrong["model"] = json!(7);
        let (status, _, answer) = post(&app, path, &wrong).await;
        let error = if is_text { &answer } else { &answer["error"] };
        assert_eq!((status, &error["param"]), (StatusCode::BAD_REQUEST, &json!("model")), "{path}");
    }
    // The first, where none is named.
    assert_eq!(ok(&app, CHAT, &hello()).await["model"], MODEL);
    let streamed = stream(&app, CHAT, &with_model(hello(), OTHER)).await;
    assert!(streamed.iter().all(|chunk| chunk["model"] == OTHER), "{streamed:?}");
    assert_eq!(get(&app, "/tokenizer_info").await.1["model_max_length"], 256);
    assert_eq!(get(&app, "/tokenizer_info?model=org%2Fother").await.1["model_max_length"], 128);
    assert_eq!(get(&app, "/tokenizer_info?model=x").await.0, StatusCode::NOT_FOUND);
}

/// Programs have a name of OpenAI's or Anthropic's written in, and one model has no other that could be meant.
#[tokio::test]
async fn one_model_answers_to_any_name_and_says_so() {
    let (app, strict) = (app(), strict());
    for (path, body) in bodies() {
        let body = with_model(body, "gpt-4");
        let (status, _, refusal) = post(&strict, path, &body).await;
        let code = if refusal["error"].is_string() { &refusal["code"] } else { &refusal["error"]["code"] };
        assert_eq!((status, code), (StatusCode::NOT_FOUND, &json!("model_not_found")), "{path}");
        let (status, _, answer) = post(&app, path, &body).await;
        // Whoever asks what a model is asks about no other.
        if path == "/api/show" {
            assert_eq!((status, answer), (StatusCode::NOT_FOUND, refusal));
            continue;
        }
        assert_eq!(status, StatusCode::OK, "{path}: {answer}");
        assert_eq!(answer["x_hotmetal"]["ignored"], json!(["model"]), "{path}");
        // Ollama's names have a tag.
        let name = answer["model"].as_str().unwrap_or(MODEL);
        assert!([MODEL, "tiny:latest"].contains(&name), "{path}: {answer}");
    }
    let streamed = stream(&app, CHAT, &with_model(hello(), "gpt-4")).await;
    assert!(streamed.iter().all(|chunk| chunk["model"] == MODEL), "{streamed:?}");
    assert_eq!(streamed.last().unwrap()["x_hotmetal"]["ignored"], json!(["model"]));
    let unnamed = ok(&app, CHAT, &with_model(hello(), MODEL)).await;
    assert!(unnamed["x_hotmetal"]["ignored"].is_null());
    assert_eq!(get(&app, "/v1/models/gpt-4").await.0, StatusCode::NOT_FOUND);
    // The only one of a list that is loaded on demand was to be chosen.
    let offered = App::with_offered(Options::default(), &[], &[MODEL]);
    assert_eq!(offered.serving(Some("gpt-4")).map(|_| ()).unwrap_err().code(), Some("model_not_found"));
}

#[tokio::test]
async fn all_are_listed_and_counted_each_for_itself() {
    let app = two();
    let (_, list) = get(&app, "/v1/models").await;
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [MODEL, OTHER]);
    assert_eq!(get(&app, "/v1/models/org/other").await.1["max_model_len"], 128);
    assert_eq!(get(&app, "/v1/models/third").await.1["error"]["code"], "model_not_found");
    assert_eq!(get(&app, "/version").await.1["version"], "0");
    ok(&app, CHAT, &with_model(hello(), OTHER)).await;
    ok(&app, EMBED, &json!({"input": "Hello", "model": MODEL})).await;
    let text = String::from_utf8(bytes(send(&app, request(Method::GET, "/metrics", "")).await).await.to_vec()).unwrap();
    for line in [
        "vllm:generation_tokens_total{model_name=\"tiny\"} 0",
        "vllm:generation_tokens_total{model_name=\"org/other\"} 8",
        "vllm:e2e_request_latency_seconds_count{model_name=\"tiny\"} 1",
        "hotmetal_model_ready{model_name=\"org/other\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
    // Each name once with all its values: what reads the page refuses anything else.
    let mut names: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[tokio::test]
async fn what_is_loaded_answers_while_the_rest_is_being_loaded() {
    let app = loading_two(Options::default());
    assert_eq!(post(&app, CHAT, &hello()).await.2["error"]["code"], "loading");
    app.ready(other(None)).unwrap();
    let (status, health) = get(&app, "/health").await;
    assert_eq!(
        (status, &health["status"], &health["model"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("loading"), &json!(MODEL))
    );
    assert_eq!(health["models"], json!({MODEL: "loading", OTHER: "ok"}));
    assert_eq!(get(&app, "/health?model=org/other").await.0, StatusCode::OK);
    assert_eq!(get(&app, "/health?model=tiny").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(get(&app, "/health?model=third").await.0, StatusCode::NOT_FOUND);
    ok(&app, CHAT, &with_model(hello(), OTHER)).await;
    let (status, _, answer) = post(&app, CHAT, &hello()).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("loading")));
    serve_on(&app, config(), None);
    assert_eq!(get(&app, "/health").await.0, StatusCode::OK);
    // A name that nobody waits for, and one that is there.
    for name in ["third", OTHER] {
        let again = ServedModel { name: name.to_owned(), ..other(None) };
        assert!(matches!(app.ready(again), Err(ReadyError::Unexpected { .. })), "{name}");
    }
    // One that is missing for good is no server.
    let app = loading_two(Options::default());
    serve_on(&app, config(), None);
    app.failed("the file is damaged");
    assert_eq!(get(&app, "/health").await.1["status"], "failed");
    assert_eq!(app.failure().as_deref(), Some("the file is damaged"));
}

#[tokio::test]
async fn a_model_that_is_stuck_or_broken_leaves_the_other_alive() {
    let stuck = || -> Faults {
        Box::new(|step, _| {
            if step == 3 {
                std::thread::sleep(Duration::from_secs(60));
            }
            None
        })
    };
    let broken = || -> Faults { Box::new(|step, _| if step == 3 { panic!("planted") } else { None }) };
    for (faults, code) in [(stuck(), "step_stuck"), (broken(), "engine_failed")] {
        let app = two_with(Options { step_time_max: Duration::from_millis(200), ..Options::default() }, Some(faults));
        let before = ok(&app, CHAT, &hello()).await;
        let dies = {
            let app = app.clone();
            tokio::spawn(async move { post(&app, CHAT, &with_model(hello(), OTHER)).await })
        };
        // Beside it, too.
        assert_eq!(ok(&app, CHAT, &hello()).await["choices"], before["choices"]);
        let (status, _, answer) = tokio::time::timeout(Duration::from_secs(20), dies).await.expect("told").unwrap();
        assert_eq!((status, &answer["error"]["code"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!(code)));
        assert_eq!(ok(&app, CHAT, &hello()).await["choices"], before["choices"]);
        let (status, health) = get(&app, "/health").await;
        assert_eq!((status, &health["status"]), (StatusCode::OK, &json!("degraded")));
        assert_eq!(health["models"], json!({MODEL: "ok", OTHER: "failed"}));
        let (status, of_it) = get(&app, "/health?model=org/other").await;
        assert_eq!((status, &of_it["status"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("failed")));
        let (status, _, answer) = post(&app, CHAT, &with_model(hello(), OTHER)).await;
        assert_eq!((status, &answer["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("failed")));
        assert_eq!(get(&app, "/v1/models").await.1["data"].as_array().unwrap().len(), 1);
        assert_eq!(app.failure(), None, "the server goes on");
        idle(&app).await;
    }
    // A value that is no number fails its request alone.
    let faults: Faults = Box::new(|step, _| (step == 3).then_some(engine::null::Fault::NotANumber { output: 0 }));
    let app = two_with(Options::default(), Some(faults));
    let (_, _, answer) = post(&app, CHAT, &with_model(hello(), OTHER)).await;
    assert_eq!(answer["error"]["code"], "numeric_fault");
    ok(&app, CHAT, &with_model(hello(), OTHER)).await;
    assert_eq!(get(&app, "/health").await.1["status"], "ok");
}

#[tokio::test]
async fn who_leaves_frees_the_blocks_of_the_model_asked_and_all_failed_is_the_end() {
    let slow: Faults = Box::new(|_, _| {
        std::thread::sleep(Duration::from_millis(20));
        None
    });
    let app = two_with(Options::default(), Some(slow));
    let body = json!({"model": OTHER, "prompt": "Once", "max_tokens": 100, "ignore_eos": true, "stream": true});
    let mut frames = send(&app, request(Method::POST, TEXT, &body.to_string())).await.into_body();
    frames.frame().await.unwrap().unwrap();
    let engine_of = |name| app.serving(Some(name)).unwrap().engine.stats();
    assert_eq!((engine_of(MODEL).num_running, engine_of(OTHER).num_running), (0, 1));
    drop(frames);
    let begun = std::time::Instant::now();
    while engine_of(OTHER).num_free_blocks < engine_of(OTHER).num_blocks {
        assert!(begun.elapsed() < Duration::from_secs(20), "blocks are held for nobody");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let broken = || -> Option<Faults> { Some(Box::new(|_, _| panic!("planted"))) };
    let app = loading_two(Options::default());
    serve_on(&app, config(), broken());
    app.ready(other(broken())).unwrap();
    for name in [MODEL, OTHER] {
        assert_eq!(app.failure(), None);
        post(&app, CHAT, &with_model(hello(), name)).await;
    }
    assert!(app.failure().is_some_and(|why| why.contains("bug")));
    assert_eq!(get(&app, "/health").await.0, StatusCode::SERVICE_UNAVAILABLE);
}
