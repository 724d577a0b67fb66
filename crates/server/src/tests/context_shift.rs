//! Texts that go on where their context is full.

use serde_json::{Value, json};

use super::*;
use crate::Keep;

const COMPLETION: &str = "/completion";
/// Of the context of these servers.
const CONTEXT_LEN: usize = 64;

fn shifting(context_shift: Option<Keep>) -> App {
    let app = loading(Options { context_shift, ..Options::default() });
    serve_on(&app, EngineConfig { context_len: CONTEXT_LEN, ..config() }, None);
    app
}

fn greedy(prompt: &[u64], tokens: usize) -> Value {
    json!({"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": true, "return_tokens": true})
}

fn with(mut body: Value, change: Value) -> Value {
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    body
}

fn tokens(answer: &Value) -> Vec<u64> {
    answer["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// The tokens behind a shift are those of a prompt that is what the shift has left.
#[tokio::test]
async fn a_text_goes_on_without_half_of_its_older_tokens() {
    let prompt: Vec<u64> = (10..30).collect();
    let plain = shifting(None);
    for (keep, kept) in [(Keep::First(0), 0), (Keep::First(5), 5), (Keep::Prompt, 20)] {
        let app = shifting(Some(keep));
        let answer = ok(&app, COMPLETION, &greedy(&prompt, 100)).await;
        let text = tokens(&answer);
        assert_eq!(
            (text.len(), &answer["tokens_predicted"], &answer["stop_type"]),
            (100, &json!(100), &json!("limit"))
        );
        assert_eq!((&answer["truncated"], &answer["tokens_evaluated"]), (&json!(true), &json!(20)));
        assert_eq!(answer["timings"]["predicted_n"], 100, "{answer}");
        let mut context = prompt.clone();
        let (mut expected, mut shifts) = (Vec::new(), 0);
        while expected.len() < 100 {
            let next = (CONTEXT_LEN - context.len()).min(100 - expected.len());
            let more = tokens(&ok(&plain, COMPLETION, &greedy(&context, next)).await);
            context.extend(&more);
            expected.extend(more);
            if expected.len() < 100 {
                let left_out = (context.len() - kept) / 2;
                context.drain(kept..kept + left_out);
                shifts += 1;
            }
        }
        assert_eq!(text, expected, "{keep:?}");
        assert_eq!(answer["x_hotmetal"]["context_shifts"], shifts, "{answer}");
        assert!(answer["x_hotmetal"]["max_tokens_used"].is_null(), "{answer}");
        idle(&app).await;
    }
}

#[tokio::test]
async fn a_stream_and_every_route_go_on_too_and_the_same_seed_says_the_same() {
    let app = shifting(Some(Keep::First(0)));
    let body = json!({"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 150, "seed": 5,
                      "ignore_eos": true});
    let whole = ok(&app, CHAT, &body).await;
    assert_eq!(whole["usage"]["completion_tokens"], 150, "{whole}");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let events = stream(&app, CHAT, &with(body.clone(), json!({"stream_options": {"include_usage": true}}))).await;
    let text: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(whole["choices"][0]["message"]["content"], text);
    // The prompt is in the cache by now, but for its last tokens.
    let usage = &events.last().unwrap()["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&whole["usage"]["prompt_tokens"], &json!(150)));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 8, "of its own prompt, and of none behind a shift");
    let facts: Vec<&Value> = events.iter().filter(|event| !event["x_hotmetal"].is_null()).collect();
    assert_eq!(facts.len(), 1, "the facts come once, at the end");
    assert!(facts[0]["x_hotmetal"]["context_shifts"].as_u64() > Some(0));
    let messages = json!({"messages": body["messages"], "max_tokens": 150, "seed": 5});
    let answer = ok(&app, MESSAGES, &messages).await;
    assert!(answer["usage"]["output_tokens"].as_u64() > Some(0), "{answer}");
    idle(&app).await;
}

#[tokio::test]
async fn a_text_has_a_limit_all_the_same_and_some_texts_end() {
    let app = shifting(Some(Keep::First(0)));
    let prompt: Vec<u64> = (10..30).collect();
    // Without a limit, as many tokens as the context.
    let answer = ok(&app, COMPLETION, &with(greedy(&prompt, 1), json!({"n_predict": -1}))).await;
    assert_eq!(answer["tokens_predicted"], CONTEXT_LEN);
    // Several texts, and one that a rule about tokens holds, end where the context does.
    for change in [json!({"n": 2}), json!({"min_tokens": 2})] {
        let answer = ok(&app, COMPLETION, &with(greedy(&prompt, 100), change.clone())).await;
        let text = if answer.is_array() { &answer[0] } else { &answer };
        assert_eq!(
            (&text["tokens_predicted"], &text["truncated"]),
            (&json!(CONTEXT_LEN - 20), &json!(true)),
            "{change}"
        );
        assert!(text["x_hotmetal"]["context_shifts"].is_null());
    }
    // A request says what stays, and a server that shifts nothing says that this has no effect.
    let kept = ok(&app, COMPLETION, &with(greedy(&prompt, 100), json!({"n_keep": 5}))).await;
    let other = ok(&shifting(Some(Keep::First(5))), COMPLETION, &greedy(&prompt, 100)).await;
    assert_eq!(tokens(&kept), tokens(&other));
    let raw = |options: Value| {
        let options = with(json!({"temperature": 0, "num_predict": 100, "repeat_penalty": 1}), options);
        json!({"prompt": "Once upon a time, there was a girl. ".repeat(5), "raw": true, "stream": false, "options": options})
    };
    let kept = ok(&app, "/api/generate", &raw(json!({"num_keep": 5}))).await;
    let other = ok(&shifting(Some(Keep::First(5))), "/api/generate", &raw(json!({}))).await;
    assert!(kept["x_hotmetal"]["context_shifts"].as_u64() > Some(0), "{kept}");
    assert_eq!((&kept["response"], &kept["x_hotmetal"]["ignored"]), (&other["response"], &Value::Null));
    let unshifted = ok(&shifting(None), COMPLETION, &with(greedy(&prompt, 8), json!({"n_keep": 5}))).await;
    assert_eq!((&unshifted["x_hotmetal"]["ignored"], &unshifted["truncated"]), (&json!(["n_keep"]), &json!(false)));
    idle(&app).await;
}

/// Who goes away while a text goes on leaves nothing behind.
#[tokio::test]
async fn a_client_that_leaves_frees_what_its_text_goes_on_in() {
    let app = shifting(Some(Keep::First(0)));
    let prompt: Vec<u64> = (10..30).collect();
    let body = with(greedy(&prompt, 100_000), json!({"stream": true})).to_string();
    let mut response = send(&app, request(Method::POST, COMPLETION, &body)).await;
    let mut bytes = 0;
    while bytes < 40_000 {
        bytes += response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap().len();
    }
    drop(response);
    idle(&app).await;
}
