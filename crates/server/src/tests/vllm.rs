//! What vLLM's clients send and ask besides: rules about single tokens, prompts that are cut and scored, and the server's
//! state.

use super::parrot::Parrot;
use super::structure::HERMES;
use super::*;

fn once() -> Value {
    json!({"prompt": "Once upon a time", "max_tokens": 8, "seed": 3})
}

fn with(body: &Value, change: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    body
}

async fn refused(app: &App, path: &str, body: &Value) -> Value {
    let (status, _, answer) = post(app, path, body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {answer}");
    answer["error"]["param"].clone()
}

/// A model that ends its text at once is made to go on, and no further than it is asked to.
#[tokio::test]
async fn a_text_has_at_least_so_many_tokens() {
    let app = app();
    // The token that ends a text is the likeliest by far.
    let ends = with(&once(), json!({"logit_bias": {"2": 100}}));
    let answer = ok(&app, TEXT, &ends).await;
    assert_eq!((&answer["choices"][0]["finish_reason"], &answer["choices"][0]["text"]), (&json!("stop"), &json!("")));
    for (path, body) in [(TEXT, ends.clone()), (CHAT, with(&hello(), json!({"logit_bias": {"2": 100}})))] {
        let answer = ok(&app, path, &with(&body, json!({"min_tokens": 5, "return_token_ids": true}))).await;
        let choice = &answer["choices"][0];
        let ids = choice["token_ids"].as_array().unwrap();
        assert_eq!((&choice["finish_reason"], ids.len()), (&json!("stop"), 6), "{answer}");
        assert!(ids[..5].iter().all(|id| ![0, 2].contains(&id.as_u64().unwrap())) && ids[5] == 2, "{ids:?}");
    }
    // The tokens that a request names as ends wait, too.
    let all: Vec<u32> = (0..2000).collect();
    let answer =
        ok(&app, TEXT, &with(&once(), json!({"stop_token_ids": all, "min_tokens": 3, "return_token_ids": true}))).await;
    let ids = answer["choices"][0]["token_ids"].as_array().unwrap();
    assert!(ids.len() > 3 && ids[..3].iter().all(|id| id.as_u64() >= Some(2000)), "{ids:?}");
    // Where a grammar has ended, nothing else can come.
    let answer = ok(&app, TEXT, &with(&once(), json!({"grammar": "root ::= \"ab\"", "min_tokens": 8}))).await;
    assert_eq!(answer["choices"][0]["text"], "ab");
    assert_eq!(refused(&app, TEXT, &with(&once(), json!({"min_tokens": 9}))).await, "min_tokens");
    assert_eq!(refused(&app, TEXT, &with(&once(), json!({"min_tokens": -1}))).await, "min_tokens");
}

#[tokio::test]
async fn words_never_come_and_others_alone_may() {
    let app = app();
    let answer =
        ok(&app, TEXT, &with(&once(), json!({"allowed_token_ids": [300, 301], "return_token_ids": true}))).await;
    let ids: Vec<u64> =
        answer["choices"][0]["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    assert!(ids.len() == 8 && ids.iter().all(|id| [300, 301].contains(id)), "{ids:?}");
    // With a grammar, a token has to be in both.
    let tokenizer = tokenizer();
    let a = tokenizer.encode("a", tokenizer::ParseSpecial::No).unwrap()[0];
    let both = json!({"allowed_token_ids": [a, 2], "grammar": "root ::= [ab]{3}"});
    assert_eq!(ok(&app, TEXT, &with(&once(), both)).await["choices"][0]["text"], "aaa");

    // A model that would say a word does not, and says the rest.
    let model = Parrot::new(HERMES, &[], Options::default());
    let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 20, "seed": 1});
    let text = "The moon was out.";
    let said = model.say(text, CHAT, &body).await["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert_eq!(said, text);
    for word in ["moon", " moon", "was out"] {
        let body = with(&body, json!({"bad_words": [word]}));
        let said = model.say(text, CHAT, &body).await["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        assert!(!said.contains(word.trim()) && said.starts_with("The"), "{word}: {said}");
    }
    let other = with(&body, json!({"bad_words": ["sun", "moons"]}));
    assert_eq!(model.say(text, CHAT, &other).await["choices"][0]["message"]["content"], text);
    for (change, param) in [
        (json!({"bad_words": [""]}), "bad_words[0]"),
        (json!({"bad_words": ["a", "  "]}), "bad_words[1]"),
        (json!({"bad_words": ["far ".repeat(100)]}), "bad_words[0]"),
        (json!({"bad_words": vec!["a"; 257]}), "bad_words"),
        (json!({"bad_words": 7}), "bad_words"),
        (json!({"allowed_token_ids": []}), "allowed_token_ids"),
        (json!({"allowed_token_ids": [99999]}), "allowed_token_ids"),
    ] {
        assert_eq!(refused(&app, TEXT, &with(&once(), change.clone())).await, param, "{change}");
    }
}

#[tokio::test]
async fn a_prompt_keeps_its_end() {
    let app = app();
    let long = "far ".repeat(300);
    assert_eq!(refused(&app, TEXT, &with(&once(), json!({"prompt": long}))).await, "prompt");
    // -1 keeps as much as fits.
    let answer = ok(&app, TEXT, &with(&once(), json!({"prompt": long, "truncate_prompt_tokens": -1}))).await;
    assert_eq!(answer["usage"]["prompt_tokens"], config().context_len - 1);
    assert_eq!(answer["x_hotmetal"]["prompt_truncated"], true);
    let ids: Vec<u32> = (100..140).collect();
    let cut = ok(&app, TEXT, &with(&once(), json!({"prompt": ids, "truncate_prompt_tokens": 7}))).await;
    let end = ok(&app, TEXT, &with(&once(), json!({"prompt": ids[33..]}))).await;
    assert_eq!(cut["choices"][0]["text"], end["choices"][0]["text"]);
    // One that is short enough is whole.
    let whole = ok(&app, TEXT, &with(&once(), json!({"truncate_prompt_tokens": 200}))).await;
    assert_eq!(whole["choices"], ok(&app, TEXT, &once()).await["choices"]);
    assert!(whole["x_hotmetal"]["prompt_truncated"].is_null());
    assert_eq!(
        refused(&app, TEXT, &with(&once(), json!({"truncate_prompt_tokens": 0}))).await,
        "truncate_prompt_tokens"
    );
}

/// The log-probabilities of a prompt are those that `echo` gives.
#[tokio::test]
async fn a_prompt_is_scored() {
    let app = app();
    let echoed = ok(&app, TEXT, &with(&once(), json!({"echo": true, "logprobs": 2}))).await;
    let expected = echoed["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    let answer = ok(&app, TEXT, &with(&once(), json!({"prompt_logprobs": 2}))).await;
    let scored = answer["choices"][0]["prompt_logprobs"].as_array().unwrap();
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("Once upon a time", tokenizer::ParseSpecial::No).unwrap();
    assert_eq!((scored.len(), &scored[0]), (ids.len(), &Value::Null));
    for (index, id) in ids.iter().enumerate().skip(1) {
        let token = &scored[index][id.to_string()];
        assert_eq!(token["logprob"], expected[index], "{index}");
        assert_eq!(token["decoded_token"], json!(tokenizer.decode(&[*id], false)));
        let ranks: Vec<&Value> = scored[index].as_object().unwrap().values().map(|token| &token["rank"]).collect();
        assert!(ranks.contains(&&json!(1)) && ranks.contains(&&json!(2)), "{ranks:?}");
    }
    assert!(echoed["choices"][0]["prompt_logprobs"].is_null());
    for change in [
        json!({"prompt_logprobs": 2, "stream": true}),
        json!({"prompt_logprobs": 2, "echo": true, "logprobs": 1}),
        json!({"prompt_logprobs": 2000}),
    ] {
        assert_eq!(refused(&app, TEXT, &with(&once(), change.clone())).await, "prompt_logprobs", "{change}");
    }
}

#[tokio::test]
async fn the_state_of_the_server_is_there_under_vllms_names() {
    let app = app();
    assert_eq!(get(&app, "/ping").await, get(&app, "/health").await);
    assert_eq!(get(&app, "/load").await.1, json!({"server_load": 0}));
    assert_eq!(get(&app, "/load?model=x").await.0, StatusCode::NOT_FOUND);
    let (_, info) = get(&app, "/tokenizer_info").await;
    assert!(info["chat_template"].as_str().unwrap().contains("<|im_start|>"), "{info}");
    assert_eq!(info["chat_template_capabilities"]["system"], true);
    let waiting = loading(Options::default());
    assert_eq!(get(&waiting, "/ping").await.0, StatusCode::SERVICE_UNAVAILABLE);
    // A key protects what is said of the texts of others.
    let key = crate::ApiKey::new("a-key-of-some-length").unwrap();
    let locked = loading(Options { api_keys: vec![key], ..Options::default() });
    serve_on(&locked, config(), None);
    assert_eq!(
        (get(&locked, "/ping").await.0, get(&locked, "/load").await.0),
        (StatusCode::OK, StatusCode::UNAUTHORIZED)
    );
}

/// A model that was trained to make vectors of texts.
fn vectors() -> App {
    let app = loading(Options::default());
    app.ready(ServedModel { pooling: Some("last".to_owned()), ..served(config(), None, chat_template()) }).unwrap();
    app
}

#[tokio::test]
async fn texts_are_scored_and_put_in_order() {
    let app = vectors();
    let embedding = async |text: &str| -> Vec<f64> {
        let answer = ok(&app, EMBED, &json!({"input": text})).await;
        answer["data"][0]["embedding"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    };
    let texts = ["Twice", "Once upon a time", "far away"];
    let query = embedding("Once upon a time").await;
    let mut expected = Vec::new();
    for text in texts {
        let other = embedding(text).await;
        // Vectors have length 1.
        expected.push(query.iter().zip(other).map(|(a, b)| a * b).sum::<f64>());
    }
    let body = json!({"text_1": "Once upon a time", "text_2": texts});
    for path in ["/v1/score", "/score"] {
        let answer = ok(&app, path, &body).await;
        let data = answer["data"].as_array().unwrap();
        assert_eq!(data.len(), 3);
        for (index, (found, expected)) in data.iter().zip(&expected).enumerate() {
            assert_eq!(found["index"], index);
            assert!((found["score"].as_f64().unwrap() - expected).abs() < 1e-5, "{found}, and {expected}");
        }
        assert!(answer["usage"]["prompt_tokens"].as_u64() > Some(4));
    }
    // Pairs.
    let pairs = ok(&app, "/v1/score", &json!({"text_1": texts, "text_2": texts})).await;
    assert!(pairs["data"].as_array().unwrap().iter().all(|pair| (pair["score"].as_f64().unwrap() - 1.0).abs() < 1e-6));
    let body = json!({"query": "Once upon a time", "documents": ["Twice", {"text": "Once upon a time"}, "far away"]});
    for path in ["/v1/rerank", "/rerank", "/v2/rerank", "/reranking", "/v1/reranking"] {
        let answer = ok(&app, path, &body).await;
        let results = answer["results"].as_array().unwrap();
        assert_eq!((&results[0]["index"], &results[0]["document"]["text"]), (&json!(1), &json!("Once upon a time")));
        let scores: Vec<f64> = results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
        assert!(scores.len() == 3 && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
        for result in results {
            let index = result["index"].as_u64().unwrap() as usize;
            assert!((result["relevance_score"].as_f64().unwrap() - expected[index]).abs() < 1e-5, "{result}");
        }
    }
    for (path, body, param) in [
        ("/v1/score", json!({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}), json!("text_1")),
        ("/v1/score", json!({"text_1": "a", "text_2": []}), json!("text_2")),
        ("/v1/score", json!({"text_1": "a", "text_2": [""]}), json!("text_2")),
        ("/v1/score", json!({"text_1": "a", "text_2": "far ".repeat(300)}), json!("text_2")),
        ("/v1/rerank", json!({"query": "a", "documents": [7]}), json!("documents")),
        ("/v1/rerank", json!({"query": "a", "documents": ["b"], "top_n": -1}), json!("top_n")),
    ] {
        assert_eq!(refused(&app, path, &body).await, param, "{body}");
    }
    // A model that was trained to write does not judge how near texts are.
    let writer = super::app();
    for (path, body) in [
        ("/v1/score", json!({"text_1": "a", "text_2": "b"})),
        ("/v1/rerank", json!({"query": "a", "documents": ["b"]})),
    ] {
        let (status, _, answer) = post(&writer, path, &body).await;
        assert_eq!((status, &answer["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("no_embeddings")), "{answer}");
    }
}

/// What is said at the start counts before the model's own files, and a request's own word before that; who says it has
/// a model that makes vectors.
#[tokio::test]
async fn a_server_is_told_how_vectors_are_pooled() {
    let app = loading(Options { pooling: Some(engine::Pooling::Last), ..Options::default() });
    app.ready(ServedModel { pooling: Some("cls".to_owned()), ..served(config(), None, chat_template()) }).unwrap();
    let pooled = async |body: Value| {
        let answer = ok(&app, EMBED, &body).await;
        [answer["x_hotmetal"]["pooling"].clone(), answer["x_hotmetal"]["pooling_from"].clone()]
    };
    assert_eq!(pooled(json!({"input": "Once"})).await, ["last", "server"]);
    assert_eq!(pooled(json!({"input": "Once", "pooling": "mean"})).await, ["mean", "request"]);
    let writer = loading(Options { pooling: Some(engine::Pooling::Mean), ..Options::default() });
    writer.ready(served(config(), None, chat_template())).unwrap();
    ok(&writer, "/v1/rerank", &json!({"query": "a", "documents": ["b"]})).await;
}

/// The vectors are those of `/v1/embeddings`.
#[tokio::test]
async fn vectors_have_vllms_form_on_its_own_route() {
    let app = app();
    let texts = json!({"input": ["Once upon a time", "far away"], "normalize": false, "pooling": "last"});
    let expected = ok(&app, EMBED, &texts).await;
    for path in [POOLING, "/v1/pooling"] {
        let answer = ok(&app, path, &with(&texts, json!({"task": "embed", "use_activation": true}))).await;
        assert!(answer["id"].as_str().unwrap().starts_with("pool-") && answer["created"].is_u64(), "{answer}");
        assert_eq!(answer["x_hotmetal"]["ignored"], json!(["use_activation"]));
        for (found, expected) in answer["data"].as_array().unwrap().iter().zip(expected["data"].as_array().unwrap()) {
            assert_eq!((&found["object"], &found["data"]), (&json!("pooling"), &expected["embedding"]));
        }
        assert_eq!(refused(&app, path, &with(&texts, json!({"task": "token_embed"}))).await, "task");
    }
}
