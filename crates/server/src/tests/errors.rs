//! What is turned away, and how; what fails, and whom it takes with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::null::Fault;
use serde_json::json;

use super::*;
use crate::ApiKey;

#[tokio::test]
async fn malformed_requests_get_the_right_status_in_the_right_form() {
    let app = app_on(config(), None);
    let cases = [
        (Method::POST, CHAT, "{", StatusCode::BAD_REQUEST),
        (Method::POST, CHAT, "", StatusCode::BAD_REQUEST),
        (Method::POST, CHAT, "[1]", StatusCode::BAD_REQUEST),
        (Method::POST, CHAT, "null", StatusCode::BAD_REQUEST),
        (Method::POST, CHAT, "{}", StatusCode::BAD_REQUEST),
        (Method::POST, TEXT, "{\"prompt\": \"a\", \"max_tokens\": 1, \"max_tokens\": 2}", StatusCode::BAD_REQUEST),
        (Method::POST, CHAT, "{\"messages\": \"\\ud800\"}", StatusCode::BAD_REQUEST),
        (Method::GET, CHAT, "", StatusCode::METHOD_NOT_ALLOWED),
        (Method::POST, "/v1/models", "{}", StatusCode::METHOD_NOT_ALLOWED),
        (Method::POST, EMBED, "{}", StatusCode::BAD_REQUEST),
        (Method::POST, "/v1/images", "{}", StatusCode::NOT_FOUND),
        (Method::GET, "//v1/models", "", StatusCode::NOT_FOUND),
        (Method::GET, "/v1/%6Dodels/../x", "", StatusCode::NOT_FOUND),
        (Method::DELETE, "/x", "", StatusCode::NOT_FOUND),
    ];
    for (method, path, body, expected) in cases {
        let response = send(&app, request(method.clone(), path, body)).await;
        assert_eq!(response.status(), expected, "{method} {path} {body}");
        assert!(response.headers().contains_key("x-request-id"));
        let error = json_of(response).await["error"].clone();
        assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
        assert!(error.as_object().unwrap().contains_key("param") && error.as_object().unwrap().contains_key("code"));
    }
    let deep = format!("{{\"messages\": {}{}}}", "[".repeat(80), "]".repeat(80));
    let response = send(&app, request(Method::POST, CHAT, &deep)).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    let invalid_utf8 = Request::builder().method("POST").uri(CHAT).header("host", "localhost");
    let invalid_utf8 =
        invalid_utf8.header("content-type", "application/json").body(Body::from(&b"{\"a\": \"\xff\"}"[..]));
    assert_eq!(send(&app, invalid_utf8.unwrap()).await.status(), StatusCode::BAD_REQUEST);
    for content_type in [None, Some("text/plain"), Some("application/x-www-form-urlencoded")] {
        let mut request = request(Method::POST, CHAT, &hello().to_string());
        request.headers_mut().remove("content-type");
        content_type.map(|value| request.headers_mut().insert("content-type", value.parse().unwrap()));
        assert_eq!(send(&app, request).await.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE, "{content_type:?}");
    }
}

#[tokio::test]
async fn bodies_are_bounded_in_size_and_time() {
    let options = Options { body_bytes_max: 1000, body_time_max: Duration::from_millis(50), ..Options::default() };
    let app = loading(options);
    serve_on(&app, config(), None);
    for bytes in [1001, 100_000] {
        let response = send(&app, request(Method::POST, CHAT, &" ".repeat(bytes))).await;
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(json_of(response).await["error"]["code"], "body_too_large");
    }
    let padded = hello().to_string() + &" ".repeat(1000 - hello().to_string().len());
    assert_eq!(send(&app, request(Method::POST, CHAT, &padded)).await.status(), StatusCode::OK);
    // A body that does not come.
    let (_sender, body) = tokio::sync::mpsc::channel(1);
    let request = Request::builder().method("POST").uri(CHAT).header("host", "localhost");
    let request = request.header("content-type", "application/json").body(Body::new(crate::sse::EventBody(body)));
    assert_eq!(send(&app, request.unwrap()).await.status(), StatusCode::REQUEST_TIMEOUT);
}

#[tokio::test]
async fn a_key_is_asked_for_on_every_route_but_the_open_one() {
    let key = "a-key-of-some-length";
    let app = loading(Options { api_keys: vec![ApiKey::new(key).unwrap()], ..Options::default() });
    serve_on(&app, config(), None);
    let routes = [
        (Method::POST, CHAT),
        (Method::POST, TEXT),
        (Method::POST, EMBED),
        (Method::POST, RESPONSES),
        (Method::GET, "/v1/models"),
        (Method::GET, "/v1/models/tiny"),
        (Method::POST, "/tokenize"),
        (Method::POST, "/detokenize"),
        (Method::GET, "/tokenizer_info"),
        (Method::POST, "/apply-template"),
        (Method::GET, "/version"),
        (Method::GET, "/metrics"),
        (Method::POST, OLLAMA),
        (Method::POST, "/api/generate"),
        (Method::POST, "/api/embed"),
        (Method::POST, "/api/show"),
        (Method::GET, "/api/tags"),
        (Method::GET, "/api/ps"),
        (Method::GET, "/api/version"),
        (Method::POST, "/api/pull"),
        (Method::DELETE, "/api/delete"),
        (Method::GET, "/nothing"),
        (Method::PUT, CHAT),
        (Method::GET, "//v1/models"),
        (Method::GET, "/health/x"),
        (Method::GET, "/%68ealth"),
    ];
    for (method, path) in routes {
        for shown in [None, Some("Bearer wrong-key-of-a-length"), Some("Basic a-key-of-some-length"), Some(key)] {
            let mut request = request(method.clone(), path, "{}");
            shown.map(|shown| request.headers_mut().insert("authorization", shown.parse().unwrap()));
            let response = send(&app, request).await;
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{method} {path} {shown:?}");
            let answer = json_of(response).await;
            let error = if path.starts_with("/api/") { &answer } else { &answer["error"] };
            assert_eq!(error["code"], "invalid_api_key");
        }
        let mut good = request(method.clone(), path, "{}");
        good.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        assert_ne!(send(&app, good).await.status(), StatusCode::UNAUTHORIZED, "{method} {path}");
    }
    assert_eq!(get(&app, "/health").await.0, StatusCode::OK);
    let mut anthropic = request(Method::GET, "/v1/models", "");
    anthropic.headers_mut().insert("x-api-key", key.parse().unwrap());
    assert_eq!(send(&app, anthropic).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn pages_of_others_are_kept_out_and_listed_ones_let_in() {
    let listed = "https://app.example";
    let app = loading(Options { cors_origins: vec![listed.parse().unwrap()], ..Options::default() });
    serve_on(&app, config(), None);
    let from = async |origin: &str, method: Method, host: &str| {
        let mut request = request(method, CHAT, &hello().to_string());
        request.headers_mut().insert("origin", origin.parse().unwrap());
        request.headers_mut().insert("host", host.parse().unwrap());
        send(&app, request).await
    };
    let response = from(listed, Method::POST, "localhost:8080").await;
    assert_eq!(
        (response.status(), response.headers()["access-control-allow-origin"] == listed),
        (StatusCode::OK, true)
    );
    let response = from(listed, Method::OPTIONS, "localhost:8080").await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!response.headers().contains_key("access-control-allow-credentials"));
    let response = from("http://evil.example", Method::POST, "localhost:8080").await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert!(!response.headers().contains_key("access-control-allow-origin"));
    assert_eq!(from("http://evil.example", Method::OPTIONS, "localhost:8080").await.status(), StatusCode::FORBIDDEN);
    // DNS rebinding: the page's own name points here.
    let response = from("http://evil.example:8080", Method::POST, "evil.example:8080").await;
    assert_eq!(response.status(), StatusCode::MISDIRECTED_REQUEST);
}

#[tokio::test]
async fn a_full_queue_says_try_again_and_takes_nothing() {
    let kv = KvLayout { num_blocks: 64, ..config().kv };
    let config = EngineConfig { max_sequences: 1, max_waiting: 2, kv, ..config() };
    let app = app_on(
        config,
        Some(Box::new(|_, _| {
            std::thread::sleep(Duration::from_millis(2));
            None
        })),
    );
    let body = json!({"prompt": "Once", "max_tokens": 60, "ignore_eos": true});
    let clients: Vec<_> = (0..6)
        .map(|_| {
            let (app, body) = (app.clone(), body.clone());
            tokio::spawn(async move { post(&app, TEXT, &body).await })
        })
        .collect();
    let mut answers = Vec::new();
    for client in clients {
        answers.push(client.await.unwrap());
    }
    let count = |status: StatusCode| answers.iter().filter(|answer| answer.0 == status).count();
    assert_eq!(count(StatusCode::OK) + count(StatusCode::TOO_MANY_REQUESTS), 6);
    assert!(count(StatusCode::TOO_MANY_REQUESTS) >= 3 && count(StatusCode::OK) >= 2, "{answers:?}");
    for (_, headers, answer) in answers.iter().filter(|answer| answer.0 == StatusCode::TOO_MANY_REQUESTS) {
        assert_eq!((headers["retry-after"] == "1", &answer["error"]["code"]), (true, &json!("queue_full")));
    }
    // Of several prompts, all are taken or none.
    let (status, _, _) = post(&app, TEXT, &json!({"prompt": ["a", "b", "c", "d"], "max_tokens": 2})).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    idle(&app).await;
}

#[tokio::test]
async fn a_step_that_fails_takes_its_requests_and_nobody_else() {
    for fault in [Fault::Error, Fault::NotANumber { output: 0 }] {
        let armed = Arc::new(AtomicBool::new(false));
        let is_armed = Arc::clone(&armed);
        let app = app_on(config(), Some(Box::new(move |_, _| is_armed.swap(false, Ordering::SeqCst).then_some(fault))));
        let before = ok(&app, CHAT, &hello()).await;
        // A step that was submitted ahead for a request that has ended may take the fault, and nobody is there to see it: then once
        // more.
        let (mut status, mut answer) = (StatusCode::OK, Value::Null);
        for _ in 0..3 {
            armed.store(true, Ordering::SeqCst);
            (status, _, answer) = post(&app, CHAT, &hello()).await;
            if status != StatusCode::OK {
                break;
            }
        }
        let code = if fault == Fault::Error { "step_failed" } else { "numeric_fault" };
        assert_eq!((status, &answer["error"]["code"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!(code)));
        let mut events = vec![];
        for _ in 0..3 {
            armed.store(true, Ordering::SeqCst);
            events = stream(&app, CHAT, &hello()).await;
            if !events.last().unwrap()["error"].is_null() {
                break;
            }
        }
        assert_eq!(events.last().unwrap()["error"]["code"], code, "an error in a stream is an event");
        let after = ok(&app, CHAT, &hello()).await;
        assert_eq!(before["choices"], after["choices"]);
        idle(&app).await;
    }
}

#[tokio::test]
async fn a_bug_in_the_engine_is_told_to_all_and_shown_by_health() {
    let app = app_on(config(), Some(Box::new(|step, _| if step == 3 { panic!("planted") } else { None })));
    let (status, _, answer) = post(&app, CHAT, &hello()).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!("engine_failed")));
    assert_eq!(get(&app, "/health").await.1["status"], "failed");
    let (status, _, answer) = post(&app, CHAT, &hello()).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("failed")));
}

/// A device whose third step does not return while a test runs.
fn stuck() -> engine::null::Faults {
    Box::new(|step, _| {
        if step == 3 {
            std::thread::sleep(Duration::from_secs(60));
        }
        None
    })
}

#[tokio::test]
async fn a_step_that_does_not_return_ends_who_runs_who_waits_and_who_asks() {
    let app = loading(Options { step_time_max: Duration::from_millis(400), ..Options::default() });
    serve_on(&app, EngineConfig { max_sequences: 1, ..config() }, Some(stuck()));
    let body = json!({"prompt": "Once", "max_tokens": 60, "ignore_eos": true});

    let runs = {
        let (app, body) = (app.clone(), body.clone());
        tokio::spawn(async move { stream(&app, TEXT, &body).await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(get(&app, "/health").await.0, StatusCode::OK, "a step may take its time");
    // The engine's thread cannot even say whether it takes these.
    let wait: Vec<_> = (0..2)
        .map(|_| {
            let (app, body) = (app.clone(), body.clone());
            tokio::spawn(async move { post(&app, TEXT, &body).await })
        })
        .collect();
    let events = tokio::time::timeout(Duration::from_secs(20), runs).await.expect("whoever runs is told").unwrap();
    assert_eq!(events.last().unwrap()["error"]["code"], "step_stuck");
    for waits in wait {
        let (status, _, answer) = tokio::time::timeout(Duration::from_secs(20), waits).await.expect("told").unwrap();
        assert_eq!((status, &answer["error"]["code"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!("step_stuck")));
        assert!(answer["error"]["message"].as_str().unwrap().contains("longer than 0.4 s"), "{answer}");
    }
    let (status, health) = get(&app, "/health").await;
    assert_eq!((status, &health["status"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("failed")));
    assert!(health["reason"].as_str().unwrap().contains("stuck"), "{health}");
    let (status, _, answer) = post(&app, TEXT, &body).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("failed")));
}

#[tokio::test]
async fn an_answer_may_take_for_ever_if_the_server_says_so() {
    let app = loading(Options { request_time_max: Duration::MAX, ..Options::default() });
    serve_on(&app, config(), None);
    assert_eq!(ok(&app, CHAT, &hello()).await["usage"]["completion_tokens"], 8);
}

/// On one thread, so that nothing else of this test goes on while it reads.
#[tokio::test]
async fn a_large_body_holds_up_nobody() {
    let app = app();
    // As slow to read as can be, and no JSON in the end: nothing follows but the refusal.
    let body = format!("[{}", "[],".repeat(2 << 20));
    let mut others = 0;
    let refused = send(&app, request(Method::POST, CHAT, &body));
    tokio::pin!(refused);
    let refused = loop {
        tokio::select! {
            biased;
            refused = &mut refused => break refused.status(),
            () = tokio::task::yield_now() => others += 1,
        }
    };
    assert_eq!(refused, StatusCode::BAD_REQUEST);
    assert!(others > 100, "others went on {others} times");
}

#[tokio::test]
async fn who_is_turned_away_for_a_limit_is_told_what_to_do() {
    let app = loading(Options { body_bytes_max: 100, request_time_max: Duration::ZERO, ..Options::default() });
    serve_on(&app, config(), None);
    let said = async |path: &str, body: String| {
        json_of(send(&app, request(Method::POST, path, &body)).await).await["error"]["message"].to_string()
    };
    assert!(said(TEXT, " ".repeat(101)).await.contains("--max-body-bytes"));
    assert!(said(TEXT, json!({"prompt": "Once"}).to_string()).await.contains("--request-timeout"));
    assert!(said("/v1/complete", "{}".to_owned()).await.contains("/openapi.json"));
    let nested = said(TEXT, json!({"prompt": "Once", "stream": true, "stream_options": "x"}).to_string()).await;
    assert!(nested.contains("a string where an object is expected"), "{nested}");
}

#[tokio::test]
async fn an_answer_that_takes_too_long_is_ended() {
    let app = loading(Options { request_time_max: Duration::from_millis(60), ..Options::default() });
    let slow: engine::null::Faults = Box::new(|_, _| {
        std::thread::sleep(Duration::from_millis(5));
        None
    });
    serve_on(&app, config(), Some(slow));
    let body = json!({"prompt": "Once", "max_tokens": 200, "ignore_eos": true});
    let (status, _, answer) = post(&app, TEXT, &body).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::GATEWAY_TIMEOUT, &json!("timeout")));
    let events = stream(&app, TEXT, &body).await;
    assert_eq!(events.last().unwrap()["error"]["code"], "timeout");
    idle(&app).await;
}

/// Whatever the interface calls the prompt; and what is asked is the memory and the time of a text that has to be refused.
#[tokio::test]
async fn a_prompt_that_cannot_fit_is_refused_before_all_of_it_is_tokenised() {
    let app = app();
    let text = "qzjxkvbwpygf".repeat(40_000);
    let message = json!([{"role": "user", "content": text}]);
    let cases = [
        (TEXT, json!({"prompt": text}), "prompt"),
        (TEXT, json!({"prompt": ["Once", text]}), "prompt"),
        (CHAT, json!({"messages": message}), "messages"),
        (RESPONSES, json!({"input": text}), "input"),
        (MESSAGES, json!({"messages": message, "max_tokens": 8}), "messages"),
        (EMBED, json!({"input": ["Once", text]}), "input"),
    ];
    for (path, body, field) in cases {
        let (status, _, answer) = post(&app, path, &body).await;
        let error = &answer["error"];
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}: {error}");
        assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!(field)), "{path}");
        let message = error["message"].as_str().unwrap();
        let at_least = message.split_once("has at least ").unwrap().1.split_once(' ').unwrap().0;
        let at_least: usize = at_least.parse().unwrap();
        // The context has 256, and the text some 400,000: it was not encoded.
        assert!((257..100_000).contains(&at_least), "{path}: {message}");
    }
    // Who counts tokens wants to know how many there are.
    let counted = ok(&app, COUNT, &json!({"messages": message})).await["input_tokens"].as_u64().unwrap();
    assert!(counted > 100_000, "{counted}");
    let counted = ok(&app, "/tokenize", &json!({"prompt": text})).await["count"].as_u64().unwrap();
    assert!(counted > 100_000, "{counted}");
}
