//! Embeddings: what the device's states make, in each form that a client may ask for.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use engine::null::{Fault, null_state};
use serde_json::{Value, json};

use super::*;

/// What the null device's states make of `ids`.
fn expected(ids: &[u32], last: bool, normalized: bool) -> Vec<f64> {
    let states: Vec<Vec<f32>> = (1..=ids.len()).map(|len| null_state(&ids[..len])).collect();
    let states = if last { &states[ids.len() - 1..] } else { &states[..] };
    let sum = |index: usize| states.iter().map(|state| f64::from(state[index])).sum::<f64>();
    let mean: Vec<f64> = (0..NULL_HIDDEN_SIZE).map(|index| sum(index) / states.len() as f64).collect();
    let length = mean.iter().map(|x| x * x).sum::<f64>().sqrt();
    mean.iter().map(|x| if normalized { x / length } else { *x }).collect()
}

fn assert_near(found: &Value, expected: &[f64]) {
    let found: Vec<f64> = found.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
}

#[tokio::test]
async fn a_vector_is_what_the_states_make_in_each_form() {
    let app = app();
    let ids = json!([5, 6, 7, 300, 12]);
    for (pooling, last) in [("mean", false), ("last", true)] {
        for normalized in [true, false] {
            let body = json!({"input": ids, "pooling": pooling, "normalize": normalized});
            let answer = ok(&app, EMBED, &body).await;
            let expected = expected(&[5, 6, 7, 300, 12], last, normalized);
            assert_near(&answer["data"][0]["embedding"], &expected);
            assert_eq!(answer["usage"], json!({"prompt_tokens": 5, "total_tokens": 5}));
            // What OpenAI's client asks for: the same numbers as bytes.
            let mut body = body.clone();
            body["encoding_format"] = json!("base64");
            let text = ok(&app, EMBED, &body).await["data"][0]["embedding"].as_str().unwrap().to_owned();
            let bytes = BASE64_STANDARD.decode(text).unwrap();
            let (numbers, rest) = bytes.as_chunks::<4>();
            assert!(rest.is_empty());
            let numbers: Vec<f64> = numbers.iter().map(|&bytes| f32::from_le_bytes(bytes).into()).collect();
            assert_near(&answer["data"][0]["embedding"], &numbers);
        }
    }
    idle(&app).await;
}

#[tokio::test]
async fn a_model_that_was_trained_for_it_says_how_its_vectors_are_made() {
    let ids = [5, 6, 7, 300, 12];
    let app = |pooling: &str, normalize| {
        let app = loading(Options::default());
        let model = served(config(), None, chat_template());
        app.ready(ServedModel { pooling: Some(pooling.to_owned()), normalize, ..model }).unwrap();
        app
    };
    let facts = |answer: &Value| {
        let facts = &answer["x_hotmetal"];
        [facts["pooling"].clone(), facts["pooling_from"].clone(), facts["normalized"].clone()]
    };
    let last = app("last", Some(false));
    let answer = ok(&last, EMBED, &json!({"input": ids})).await;
    assert_near(&answer["data"][0]["embedding"], &expected(&ids, true, false));
    assert_eq!(facts(&answer), [json!("last"), json!("model"), json!(false)]);
    // A request has the last word.
    let answer = ok(&last, EMBED, &json!({"input": ids, "pooling": "mean", "normalize": true})).await;
    assert_near(&answer["data"][0]["embedding"], &expected(&ids, false, true));
    assert_eq!(facts(&answer), [json!("mean"), json!("request"), json!(true)]);
    let answer = ok(&app("mean", None), EMBED, &json!({"input": ids})).await;
    assert_eq!(facts(&answer), [json!("mean"), json!("model"), json!(true)]);
    let answer = ok(&super::app(), EMBED, &json!({"input": ids})).await;
    assert_eq!(facts(&answer), [json!("mean"), json!("default"), json!(true)]);
    // One that cannot be made is not replaced by another.
    let cls = app("cls", None);
    let (status, _, answer) = post(&cls, EMBED, &json!({"input": ids})).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("no_embeddings")));
    assert!(answer["error"]["message"].as_str().unwrap().contains("`cls`"), "{answer}");
    ok(&cls, EMBED, &json!({"input": ids, "pooling": "last"})).await;
}

#[tokio::test]
async fn many_texts_are_answered_in_their_order_beside_others() {
    let app = app();
    let texts: Vec<String> = (0..100).map(|i| format!("Text number {i} and {}", "so on ".repeat(i % 40))).collect();
    let talking = {
        let app = app.clone();
        tokio::spawn(async move { ok(&app, CHAT, &hello()).await })
    };
    let answer = ok(&app, EMBED, &json!({"input": texts})).await;
    assert_eq!(answer["object"], "list");
    for (index, text) in texts.iter().enumerate() {
        let entry = &answer["data"][index];
        assert_eq!((&entry["index"], &entry["object"]), (&json!(index), &json!("embedding")));
        let alone = ok(&app, EMBED, &json!({"input": text})).await;
        assert_eq!(entry["embedding"], alone["data"][0]["embedding"], "{text}");
    }
    assert_eq!(talking.await.unwrap()["choices"], ok(&app, CHAT, &hello()).await["choices"]);
    idle(&app).await;
}

#[tokio::test]
async fn a_failed_step_is_an_error_and_frees_all() {
    for (fault, code) in [(Fault::Error, "step_failed"), (Fault::NotANumber { output: 0 }, "numeric_fault")] {
        let app = app_on(config(), Some(Box::new(move |step, _| (step == 0).then_some(fault))));
        let (status, _, answer) = post(&app, EMBED, &json!({"input": ["a b c", "d e f"]})).await;
        assert_eq!((status, &answer["error"]["code"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!(code)));
        ok(&app, EMBED, &json!({"input": ["a b c", "d e f"]})).await;
        idle(&app).await;
    }
}

/// A model that was saved without its head makes vectors, and says of everything else why it cannot.
#[tokio::test]
async fn a_model_without_a_head_makes_vectors_and_nothing_else() {
    let app = loading(Options::default());
    app.ready(ServedModel { has_head: false, ..served(config(), None, chat_template()) }).unwrap();
    ok(&app, EMBED, &json!({"input": "a"})).await;
    ok(&app, "/tokenize", &json!({"prompt": "a"})).await;
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}]})),
        ("/v1/messages", json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 3})),
        ("/v1/responses", json!({"input": "a"})),
        ("/v1/completions", json!({"prompt": "a"})),
    ] {
        let (status, _, answer) = post(&app, path, &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("/v1/embeddings"), "{path}: {answer}");
    }
}
