//! llama.cpp's own routes: texts in its form, and what its clients ask besides.

use super::*;

const COMPLETION: &str = "/completion";

fn once() -> Value {
    json!({"prompt": "Once upon a time", "n_predict": 8, "seed": 3})
}

fn with(body: &Value, change: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    body
}

/// The events of a stream, which ends without `[DONE]`.
async fn events(app: &App, path: &str, body: &Value) -> Vec<Value> {
    let body = with(body, json!({"stream": true}));
    let response = send(app, request(Method::POST, path, &body.to_string())).await;
    assert_eq!(response.status(), StatusCode::OK, "{body}");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let bytes = bytes(response).await;
    let text = std::str::from_utf8(&bytes).unwrap();
    let events = text.split_terminator("\n\n").filter(|event| !event.starts_with(':'));
    events.map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap()).collect()
}

async fn refused(app: &App, body: &Value) -> Value {
    let (status, _, answer) = post(app, COMPLETION, body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {answer}");
    answer["error"]["param"].clone()
}

/// The text is that of the route of texts, whole and in events, at both paths.
#[tokio::test]
async fn a_text_goes_on_in_the_native_form() {
    let app = app();
    let text = ok(&app, TEXT, &json!({"prompt": "Once upon a time", "max_tokens": 8, "seed": 3})).await;
    let expected = &text["choices"][0]["text"];
    for path in [COMPLETION, "/completions"] {
        let answer = ok(&app, path, &once()).await;
        assert_eq!(answer["content"], *expected, "{path}");
        assert_eq!(
            (&answer["stop"], &answer["stop_type"], &answer["index"]),
            (&json!(true), &json!("limit"), &json!(0))
        );
        assert_eq!(
            (&answer["tokens_predicted"], &answer["tokens_evaluated"]),
            (&json!(8), &text["usage"]["prompt_tokens"])
        );
        assert_eq!((&answer["prompt"], &answer["tokens"]), (&json!("Once upon a time"), &json!([])));
        assert_eq!(answer["generation_settings"]["n_predict"], 8);
        assert_eq!(answer["timings"]["predicted_n"], 8);
        assert_eq!(answer["system_fingerprint"], "hotmetal-0");
        assert!(answer["completion_probabilities"].is_null());
    }
    let streamed = events(&app, COMPLETION, &once()).await;
    let (last, pieces) = streamed.split_last().unwrap();
    let content: String = pieces.iter().map(|event| event["content"].as_str().unwrap()).collect();
    assert_eq!(json!(content), *expected);
    assert!(pieces.iter().all(|event| event["stop"] == false && event["timings"].is_null()), "{pieces:?}");
    assert_eq!((&last["stop"], &last["content"], &last["tokens_predicted"]), (&json!(true), &json!(""), &json!(8)));
    // A word ends a text, and says so.
    let word = &expected.as_str().unwrap()[2..4];
    let answer = ok(&app, COMPLETION, &with(&once(), json!({"stop": [word]}))).await;
    assert_eq!((&answer["stop_type"], &answer["stopping_word"]), (&json!("word"), &json!(word)));
    // Nothing but the prompt.
    let answer = ok(&app, COMPLETION, &with(&once(), json!({"n_predict": 0}))).await;
    assert_eq!((&answer["content"], &answer["tokens_predicted"]), (&json!(""), &json!(0)));
    // No limit.
    let answer = ok(&app, COMPLETION, &with(&once(), json!({"n_predict": -1, "ignore_eos": true}))).await;
    assert_eq!(answer["stop_type"], "limit");
    assert!(answer["tokens_predicted"].as_u64() > Some(200), "{}", answer["tokens_predicted"]);
}

#[tokio::test]
async fn a_prompt_is_a_text_or_ids_or_both_or_several() {
    let app = app();
    let tokenizer = tokenizer();
    let ids = |text: &str| tokenizer.encode(text, tokenizer::ParseSpecial::No).unwrap();
    let expected = ok(&app, COMPLETION, &once()).await["content"].clone();
    let whole = ids("Once upon a time");
    let (front, rest) = (
        ids("Once upon"),
        tokenizer.encode_inside(" a time", tokenizer::ParseSpecial::No, &crate::abandoned::bounds(usize::MAX)).unwrap(),
    );
    let ask = async |prompt: Value| ok(&app, COMPLETION, &with(&once(), json!({"prompt": prompt}))).await;
    assert_eq!(ask(json!(whole)).await["content"], expected);
    assert_eq!(ask(json!({"prompt_string": "Once upon a time"})).await["content"], expected);
    assert_eq!([front.clone(), rest.clone()].concat(), whole, "the words divide here");
    let mut mixed: Vec<Value> = front.iter().map(|id| json!(id)).collect();
    mixed.push(json!(" a time"));
    assert_eq!(ask(json!(mixed)).await["content"], expected);
    let mut mixed: Vec<Value> = vec![json!("Once upon")];
    mixed.extend(rest.iter().map(|id| json!(id)));
    assert_eq!(ask(json!(mixed)).await["content"], expected);
    // Several: a list, each with its own counts.
    let several = ask(json!(["Twice", whole, mixed])).await;
    let several = several.as_array().unwrap();
    assert_eq!(several.len(), 3);
    assert_eq!((&several[1]["content"], &several[2]["content"]), (&expected, &expected));
    assert_ne!(several[0]["content"], expected);
    for (index, answer) in several.iter().enumerate() {
        assert_eq!((&answer["index"], &answer["tokens_predicted"]), (&json!(index), &json!(8)));
    }
    assert!(several[0]["tokens_evaluated"].as_u64() < several[1]["tokens_evaluated"].as_u64());
    let texts = ok(&app, COMPLETION, &with(&once(), json!({"n_cmpl": 3}))).await;
    let texts = texts.as_array().unwrap();
    assert_eq!((texts.len(), &texts[0]["content"]), (3, &expected));
    assert_ne!(texts[0]["content"], texts[1]["content"]);
    let streamed = events(&app, COMPLETION, &with(&once(), json!({"prompt": ["Twice", whole]}))).await;
    for (index, whole) in several.iter().take(2).enumerate() {
        let own = streamed.iter().filter(|event| event["index"] == index);
        let content: String = own.clone().map(|event| event["content"].as_str().unwrap()).collect();
        assert_eq!(json!(content), whole["content"]);
        assert_eq!(own.filter(|event| event["stop"] == true).count(), 1);
    }
    for (prompt, param) in [
        (json!([]), "prompt"),
        (json!(""), "prompt"),
        (json!([[]]), "prompt"),
        (json!([1, -2]), "prompt"),
        (json!([1, {"a": 2}]), "prompt"),
        (json!([99999]), "prompt"),
        (json!(7), "prompt"),
        (json!(vec![7; 300]), "prompt"),
        (json!("far ".repeat(300)), "prompt"),
        (json!({"prompt_string": "x", "multimodal_data": ["aGk="]}), "prompt.multimodal_data"),
        (json!({"prompt_string": 7}), "prompt.prompt_string"),
        (json!(vec!["a"; 65]), "prompt"),
    ] {
        assert_eq!(refused(&app, &with(&once(), json!({"prompt": prompt}))).await, param, "{prompt}");
    }
}

#[tokio::test]
async fn tokens_come_with_probabilities_ids_times_and_progress_where_they_are_asked_for() {
    let app = app();
    let asked =
        with(&once(), json!({"n_probs": 3, "return_tokens": true, "timings_per_token": true, "return_progress": true}));
    let answer = ok(&app, COMPLETION, &asked).await;
    let tokens = answer["completion_probabilities"].as_array().unwrap();
    assert_eq!((tokens.len(), answer["tokens"].as_array().unwrap().len()), (8, 8));
    let mut text = String::new();
    for (token, id) in tokens.iter().zip(answer["tokens"].as_array().unwrap()) {
        assert_eq!((&token["id"], token["top_logprobs"].as_array().unwrap().len()), (id, 3), "{token}");
        assert!(token["logprob"].as_f64() <= Some(0.0) && token["bytes"].is_array(), "{token}");
        assert!(token["top_logprobs"][0]["id"].is_u64() && token["top_logprobs"][0]["token"].is_string());
        text.push_str(token["token"].as_str().unwrap());
    }
    assert_eq!(json!(text), answer["content"]);
    let streamed = events(&app, COMPLETION, &asked).await;
    let (progress, rest): (Vec<&Value>, Vec<&Value>) =
        streamed.iter().partition(|event| !event["prompt_progress"].is_null());
    let total = &answer["tokens_evaluated"];
    assert_eq!((progress.len(), &progress[1]["prompt_progress"]["processed"]), (2, total), "{progress:?}");
    assert!(progress.iter().all(|event| event["prompt_progress"]["total"] == *total && event["content"] == ""));
    assert!(!streamed[0]["prompt_progress"].is_null(), "it comes first");
    let (last, pieces) = rest.split_last().unwrap();
    let sent: Vec<Value> =
        pieces.iter().flat_map(|event| event["completion_probabilities"].as_array().unwrap().clone()).collect();
    assert_eq!(json!(sent), answer["completion_probabilities"]);
    for (index, event) in pieces.iter().enumerate() {
        assert_eq!(event["timings"]["predicted_n"], index + 1, "{event}");
        assert_eq!(event["tokens"].as_array().unwrap().len(), 1);
    }
    let timings = &progress[0]["timings"];
    assert_eq!(
        (&timings["prompt_n"], &timings["prompt_ms"], &timings["predicted_n"]),
        (&json!(0), &json!(0.0), &json!(0))
    );
    assert_eq!(progress[1]["timings"]["prompt_n"], *total);
    // The first token comes out of the prompt's last step, and no number is missing where there is no time.
    let each = |timings: &Value| ["predicted_ms", "predicted_per_token_ms"].map(|name| timings[name].as_f64().unwrap());
    let [all, per_token] = each(&answer["timings"]);
    assert!(all > 0.0 && (per_token * 7.0 - all).abs() < 1e-6, "{all} {per_token}");
    let one = ok(&app, COMPLETION, &with(&once(), json!({"n_predict": 1}))).await;
    assert!(one["timings"].as_object().unwrap().values().all(Value::is_number), "{one}");
    assert_eq!((each(&one["timings"]), &one["timings"]["predicted_per_second"]), ([0.0, 0.0], &json!(0.0)));
    assert!(last["completion_probabilities"].is_null() && last["timings"]["predicted_n"] == 8, "{last}");
    assert_eq!(refused(&app, &with(&once(), json!({"n_probs": 2000}))).await, "n_probs");
    // Probabilities behind the samplers are of few tokens, which are certain together, and the text is the same.
    let after = with(&once(), json!({"n_probs": 4, "post_sampling_probs": true, "top_k": 2, "temperature": 0.5}));
    let plain = with(&after, json!({"post_sampling_probs": false}));
    let [after, plain] = [ok(&app, COMPLETION, &after).await, ok(&app, COMPLETION, &plain).await];
    assert_eq!(after["content"], plain["content"]);
    for token in after["completion_probabilities"].as_array().unwrap() {
        let top: Vec<f64> =
            token["top_probs"].as_array().unwrap().iter().map(|top| top["prob"].as_f64().unwrap()).collect();
        assert!(top.len() <= 2 && (top.iter().sum::<f64>() - 1.0).abs() < 1e-5, "{token}");
        assert!(top.contains(&token["prob"].as_f64().unwrap()) && token["top_logprobs"].is_null(), "{token}");
    }
    let without = ok(&app, COMPLETION, &with(&once(), json!({"post_sampling_probs": true}))).await;
    assert_eq!(without["x_hotmetal"]["ignored"], json!(["post_sampling_probs"]));
    // The routes of OpenAI's interface give times and progress too, where they are asked for.
    for (path, body) in [(CHAT, hello()), (TEXT, json!({"prompt": "Once", "max_tokens": 8, "seed": 3}))] {
        assert!(ok(&app, path, &body).await["timings"].is_null());
        let body = with(&body, json!({"timings_per_token": true, "return_progress": true}));
        assert_eq!(ok(&app, path, &body).await["timings"]["predicted_n"], 8);
        let chunks = stream(&app, path, &body).await;
        assert_eq!(chunks.last().unwrap()["timings"]["predicted_n"], 8);
        let progress: Vec<&Value> = chunks.iter().filter(|chunk| !chunk["prompt_progress"].is_null()).collect();
        assert_eq!(progress.len(), 2, "{path}");
        assert_eq!(progress[1]["prompt_progress"]["processed"], progress[1]["prompt_progress"]["total"]);
        assert_eq!(progress[0]["timings"]["prompt_n"], 0);
        assert_eq!(chunks[0]["system_fingerprint"], "hotmetal-0");
    }
}

#[tokio::test]
async fn a_long_prompt_says_after_each_step_how_much_of_it_is_read() {
    let app = app_on(EngineConfig { max_sequences: 4, max_batch_tokens: 8, ..config() }, None);
    let prompt = "Once upon a time there was a little fox who counted the stars.";
    let asked = json!({"prompt": prompt, "max_tokens": 2, "return_progress": true});
    let chat = json!({"messages": [{"role": "user", "content": prompt}], "max_tokens": 2, "return_progress": true});
    let read = |events: &[Value]| {
        let progress = events.iter().map(|event| &event["prompt_progress"]).filter(|progress| !progress.is_null());
        progress.map(|progress| ["processed", "total"].map(|name| progress[name].as_u64().unwrap())).collect::<Vec<_>>()
    };
    let check = |read: Vec<[u64; 2]>| {
        let total = read[0][1];
        // At the beginning, after each step but the last, and once all is read.
        assert_eq!(read.len() as u64, total.div_ceil(8) + 1, "{read:?}");
        assert!(read.is_sorted() && read.iter().all(|[_, of]| *of == total), "{read:?}");
        assert_eq!((read[0][0], read[read.len() - 1][0]), (0, total));
    };
    check(read(&events(&app, COMPLETION, &asked).await));
    // The cache holds the beginning of the prompt now, so other texts come first.
    check(read(&stream(&app, TEXT, &with(&asked, json!({"prompt": format!("And {prompt}")}))).await));
    check(read(&stream(&app, CHAT, &chat).await));
    // A whole answer, and one that was not asked, says nothing of it.
    assert!(read(&stream(&app, TEXT, &json!({"prompt": prompt, "max_tokens": 2})).await).is_empty());
    assert!(ok(&app, TEXT, &asked).await["prompt_progress"].is_null());
}

#[tokio::test]
async fn grammars_biases_and_samplers_have_llama_cpps_forms() {
    let app = app();
    let text = async |change: Value| {
        ok(&app, COMPLETION, &with(&once(), change)).await["content"].as_str().unwrap().to_owned()
    };
    let gbnf = text(json!({"grammar": "root ::= [ab]{4}"})).await;
    assert!(gbnf.len() == 4 && gbnf.bytes().all(|byte| b"ab".contains(&byte)), "{gbnf}");
    let schema = text(json!({"json_schema": {"type": "boolean"}})).await;
    assert!(["true", "false"].contains(&schema.as_str()), "{schema}");
    assert_eq!(text(json!({"grammar": ""})).await, text(json!({})).await);
    let used = async |bias: Value| {
        let answer = ok(&app, COMPLETION, &with(&once(), json!({"logit_bias": bias}))).await;
        answer["generation_settings"]["logit_bias"].clone()
    };
    assert_eq!(used(json!([[300, 1.5], [301, false]])).await, json!({"300": 1.5, "301": -100}));
    assert_eq!(used(json!({"300": 1.5, "301": false})).await, json!({"300": 1.5, "301": -100}));
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("Once upon", tokenizer::ParseSpecial::No).unwrap();
    let named = used(json!([["Once upon", -1]])).await;
    assert_eq!(named.as_object().unwrap().len(), ids.len());
    assert!(ids.iter().all(|id| named[id.to_string()] == -1.0), "{named}");
    assert_eq!(used(json!([])).await, json!({}));
    for bias in [
        json!([300]),
        json!([[300]]),
        json!([[300, "x"]]),
        json!([[300, true]]),
        json!(7),
        json!([[[1], 2]]),
        json!([[99999, 1]]),
    ] {
        assert_eq!(refused(&app, &with(&once(), json!({"logit_bias": bias}))).await, "logit_bias", "{bias}");
    }
    let answer = ok(
        &app,
        COMPLETION,
        &with(&once(), json!({"samplers": ["dry", "top_k", "typ_p", "top_n_sigma", "tfs_z", "temperature"]})),
    )
    .await;
    assert_eq!(
        answer["generation_settings"]["samplers"],
        json!(["dry", "top_k", "typical_p", "top_n_sigma", "temperature"])
    );
    assert_eq!(answer["generation_settings"]["top_p"], 1.0);
    assert_eq!(answer["x_hotmetal"]["ignored"], json!(["samplers.tfs_z"]));
    for (change, param) in [
        (json!({"mirostat": 3}), "mirostat"),
        (json!({"mirostat_tau": 101}), "mirostat_tau"),
        (json!({"top_n_sigma": -2}), "top_n_sigma"),
        (json!({"nsigma": 1.5}), "nsigma"),
        (json!({"dynatemp_range": -0.5}), "dynatemp_range"),
        (json!({"dynatemp_exponent": -1}), "dynatemp_exponent"),
        (json!({"lora": [{"id": 0, "scale": 1}]}), "lora"),
        (json!({"n": 2, "n_cmpl": 3}), "n"),
        (json!({"n_cmpl": 0}), "n_cmpl"),
        (json!({"max_tokens": 7}), "max_tokens"),
        (json!({"grammar": "root ::= ["}), "grammar"),
        (json!({"image_data": [{"id": 1}]}), "image_data"),
    ] {
        assert_eq!(refused(&app, &with(&once(), change.clone())).await, param, "{change}");
    }
}

#[tokio::test]
async fn mirostat_leaves_filters_without_effect_and_says_so() {
    let app = app();
    let answer = |change: Value| {
        let (app, body) = (&app, with(&once(), change));
        async move { ok(app, COMPLETION, &body).await }
    };
    let mirostat = json!({"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.2});
    let alone = answer(mirostat.clone()).await;
    let settings = &alone["generation_settings"];
    assert_eq!((&settings["mirostat"], &settings["mirostat_eta"]), (&json!(2), &json!(0.2)));
    let filters = json!({
        "top_k": 1, "top_p": 0.1, "min_p": 0, "typical_p": 1.0, "top_n_sigma": -1, "dynatemp_range": 0.5, "samplers": ["top_k"],
    });
    let filtered = answer(with(&mirostat, filters)).await;
    assert_eq!(filtered["content"], alone["content"]);
    let ignored = filtered["x_hotmetal"]["ignored"].as_array().unwrap();
    assert_eq!(ignored, &["samplers", "top_k", "top_p", "dynatemp_range"].map(Value::from));
    // The samplers change the text, and a seed gives it again.
    for change in [
        mirostat,
        json!({"mirostat": 1, "mirostat_tau": 1}),
        json!({"dynatemp_range": 0.5, "temperature": 1.5}),
        json!({"top_n_sigma": 0.5, "temperature": 1.5}),
    ] {
        let change = with(&change, json!({"n_predict": 24}));
        let [once, again] = [answer(change.clone()).await, answer(change.clone()).await];
        assert_eq!(once["content"], again["content"], "{change}");
        let plain = json!({"n_predict": 24, "temperature": once["generation_settings"]["temperature"]});
        assert_ne!(once["content"], answer(plain).await["content"], "{change}");
    }
}

#[tokio::test]
async fn properties_and_places_are_shown() {
    let app = app();
    let (status, props) = get(&app, "/props").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(props["default_generation_settings"]["n_ctx"], 256);
    assert_eq!(props["default_generation_settings"]["params"]["temperature"], 0.7);
    assert_eq!((&props["build_info"], &props["model_alias"]), (&json!("hotmetal-0"), &json!(MODEL)));
    assert!(props["chat_template"].as_str().unwrap().contains("<|im_start|>"));
    assert_eq!(props["chat_template_caps"]["supports_system_role"], true);
    assert_eq!(props["modalities"]["vision"], false);
    let (_, slots) = get(&app, "/slots").await;
    let slots = slots.as_array().unwrap();
    assert_eq!(json!(slots.len()), props["total_slots"]);
    assert!(slots.iter().all(|slot| slot["is_processing"] == false && slot["n_ctx"] == 256), "{slots:?}");
    assert_eq!(get(&app, "/slots?fail_on_no_slot=1").await.0, StatusCode::OK);
    assert_eq!(get(&app, "/props?model=x").await.0, StatusCode::NOT_FOUND);
    let closed = loading(Options { has_slots: false, ..Options::default() });
    let (status, refusal) = get(&closed, "/slots").await;
    assert_eq!((status, &refusal["error"]["type"]), (StatusCode::NOT_IMPLEMENTED, &json!("not_supported_error")));
    assert!(refusal["error"]["message"].as_str().unwrap().contains("--no-slots"));
    // The page of counts has llama.cpp's names beside the others.
    let long = json!({"prompt": vec![7; 100], "n_predict": 4, "seed": 3, "ignore_eos": true});
    let mut timings = Vec::new();
    for body in [&long, &long] {
        timings.push(ok(&app, COMPLETION, body).await["timings"].clone());
    }
    let sum = |name: &str| timings.iter().map(|timings| timings[name].as_u64().unwrap()).sum::<u64>();
    assert!(sum("cache_n") > 0, "{timings:?}");
    let page = send(&app, request(Method::GET, "/metrics", "")).await;
    assert!(page.headers()["process-start-time-unix"].to_str().unwrap().parse::<u64>().unwrap() > 0);
    let page = String::from_utf8(bytes(page).await.to_vec()).unwrap();
    for line in [
        &format!("llamacpp:prompt_tokens_total{{model_name=\"tiny\"}} {}", sum("prompt_n")),
        &format!("llamacpp:prompt_tokens_cached_total{{model_name=\"tiny\"}} {}", sum("cache_n")),
        "llamacpp:tokens_predicted_total{model_name=\"tiny\"} 8",
        "llamacpp:requests_processing{model_name=\"tiny\"} 0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is missing in\n{page}");
    }
    // While a model loads, a client of llama.cpp reads that it does.
    let waiting = loading(Options::default());
    let (status, health) = get(&waiting, "/health").await;
    assert_eq!((status, &health["error"]["message"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("Loading model")));
    assert_eq!((&health["error"]["code"], &health["error"]["type"]), (&json!(503), &json!("unavailable_error")));
}

/// All slots are taken while a text runs on a server of one.
#[tokio::test]
async fn no_place_is_free_while_all_texts_run() {
    let config = EngineConfig { max_sequences: 1, ..config() };
    let app = app_on(config, None);
    let body = with(&once(), json!({"n_predict": -1, "ignore_eos": true, "stream": true}));
    let response = send(&app, request(Method::POST, COMPLETION, &body.to_string())).await;
    let mut status = StatusCode::OK;
    for _ in 0..1000 {
        status = get(&app, "/slots?fail_on_no_slot=1").await.0;
        if status == StatusCode::SERVICE_UNAVAILABLE || stats(&app).num_running + stats(&app).num_waiting == 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
    // The text may have been written before anybody looked.
    assert!(status == StatusCode::SERVICE_UNAVAILABLE || bytes(response).await.len() > 200, "{status}");
}

/// Its clients look for the type, and OpenAI's for the code.
#[tokio::test]
async fn a_prompt_that_is_too_long_is_told_in_both_forms() {
    let app = app();
    let long = "x".repeat(4000);
    let chat = json!({"messages": [{"role": "user", "content": long}]});
    let text = json!({"prompt": vec![7; 300]});
    for (path, body, kind, prompt) in [
        (CHAT, &chat, "invalid_request_error", 257),
        ("/chat/completions", &chat, "exceed_context_size_error", 257),
        (TEXT, &text, "invalid_request_error", 300),
        (COMPLETION, &text, "exceed_context_size_error", 300),
        (EMBED, &json!({"input": vec![7; 300]}), "invalid_request_error", 300),
    ] {
        for stream in [false, true].into_iter().take(if path == EMBED { 1 } else { 2 }) {
            let body = if stream { with(body, json!({"stream": true})) } else { body.clone() };
            let (status, _, answer) = post(&app, path, &body).await;
            let error = &answer["error"];
            assert_eq!((status, &error["type"]), (StatusCode::BAD_REQUEST, &json!(kind)), "{path}: {answer}");
            assert_eq!((&error["code"], &error["n_ctx"]), (&json!("context_length_exceeded"), &json!(256)), "{path}");
            // Of a text at least, because it is not encoded to its end.
            assert!(error["n_prompt_tokens"].as_u64() >= Some(prompt), "{path}: {answer}");
        }
    }
    let (_, _, other) = post(&app, COMPLETION, &json!({"prompt": 7})).await;
    assert_eq!((&other["error"]["type"], &other["error"]["n_ctx"]), (&json!("invalid_request_error"), &Value::Null));
}

/// What llama.cpp's own route says of a text, where a request of OpenAI's interface asks for it.
#[tokio::test]
async fn an_answer_has_its_details_where_they_are_asked_for() {
    let app = app();
    let native = ok(&app, COMPLETION, &once()).await;
    let body = json!({"prompt": once()["prompt"], "n_predict": 8, "seed": once()["seed"], "verbose": true});
    let answer = ok(&app, TEXT, &body).await;
    let details = &answer["__verbose"];
    for name in ["content", "prompt", "tokens_predicted", "tokens_evaluated", "stop", "stop_type", "stopping_word"] {
        assert_eq!(details[name], native[name], "{name}");
    }
    assert_eq!(details["generation_settings"]["seed"], native["generation_settings"]["seed"]);
    assert_eq!(details["tokens"].as_array().unwrap().len(), 8);
    let chat = with(&hello(), json!({"verbose": true}));
    let details = &ok(&app, CHAT, &chat).await["__verbose"];
    let rendered = ok(&app, "/apply-template", &json!({"messages": hello()["messages"]})).await;
    assert_eq!(details["prompt"], rendered["prompt"]);
    // A stream has it in its last chunk alone.
    let chunks = stream(&app, CHAT, &chat).await;
    let (last, before) = chunks.split_last().unwrap();
    assert_eq!((&last["__verbose"]["prompt"], &last["__verbose"]["content"]), (&rendered["prompt"], &json!("")));
    assert!(before.iter().all(|chunk| chunk["__verbose"].is_null()), "{before:?}");
    assert!(ok(&app, CHAT, &with(&hello(), json!({"verbose": false}))).await["__verbose"].is_null());
}

/// llama-server takes its own name of the limit on the routes of OpenAI's interface, too.
#[tokio::test]
async fn a_limit_has_llama_cpps_name_on_every_route() {
    let app = app();
    let chat = json!({"messages": hello()["messages"], "seed": 3});
    let text = json!({"prompt": "Once", "seed": 3, "ignore_eos": true});
    for (path, body) in [(CHAT, &chat), (TEXT, &text)] {
        let generated =
            async |change: Value| ok(&app, path, &with(body, change)).await["usage"]["completion_tokens"].clone();
        assert_eq!(generated(json!({"n_predict": 5})).await, 5, "{path}");
        assert_eq!(generated(json!({"n_predict": 5, "max_tokens": 5})).await, 5, "{path}");
        let (status, _, answer) = post(&app, path, &with(body, json!({"n_predict": 5, "max_tokens": 6}))).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("n_predict")), "{path}");
    }
    // No limit, where OpenAI's interface has one if nothing is said.
    let whole = ok(&app, TEXT, &with(&text, json!({"n_predict": -1}))).await;
    assert!(whole["usage"]["completion_tokens"].as_u64() > Some(16), "{whole}");
}

/// Each route is there without `/v1`, too.
#[tokio::test]
async fn routes_are_there_without_their_version() {
    let app = app();
    let same = async |path: &str, body: &Value, part: &str| {
        let (with, without) = (ok(&app, &format!("/v1{path}"), body).await, ok(&app, path, body).await);
        assert!(!with[part].is_null() && with[part] == without[part], "{path}: {without}");
    };
    same("/chat/completions", &hello(), "choices").await;
    same("/embeddings", &json!({"input": "Once"}), "data").await;
    same("/messages", &json!({"messages": hello()["messages"], "max_tokens": 4, "seed": 3}), "content").await;
    same("/messages/count_tokens", &json!({"messages": hello()["messages"]}), "input_tokens").await;
    same("/responses", &json!({"input": "Hello", "max_output_tokens": 4, "seed": 3}), "status").await;
    same("/chat/completions/input_tokens", &json!({"messages": hello()["messages"]}), "input_tokens").await;
    let counted = ok(&app, "/chat/completions/input_tokens", &json!({"messages": hello()["messages"]})).await;
    assert_eq!(counted["input_tokens"], ok(&app, CHAT, &hello()).await["usage"]["prompt_tokens"]);
    assert_eq!(get(&app, "/models").await, get(&app, "/v1/models").await);
    assert_eq!(get(&app, "/models/tiny").await, get(&app, "/v1/models/tiny").await);
    assert_eq!(get(&app, "/v1/health").await.0, StatusCode::OK);
    // The errors of an interface stay its own.
    let (status, _, error) = post(&app, "/messages", &json!({})).await;
    assert_eq!((status, &error["type"]), (StatusCode::BAD_REQUEST, &json!("error")));
    // Health needs no key by either name, and all else does.
    let key = crate::ApiKey::new("a-key-of-some-length").unwrap();
    let locked = loading(Options { api_keys: vec![key], ..Options::default() });
    serve_on(&locked, config(), None);
    assert_eq!(get(&locked, "/v1/health").await.0, StatusCode::OK);
    for path in ["/models", "/props", "/slots"] {
        assert_eq!(get(&locked, path).await.0, StatusCode::UNAUTHORIZED, "{path}");
    }
    for path in ["/completion", "/completions", "/chat/completions", "/embeddings", "/messages"] {
        assert_eq!(post(&locked, path, &json!({})).await.0, StatusCode::UNAUTHORIZED, "{path}");
    }
}

/// What llama.vim and SillyTavern send, as they send it.
#[tokio::test]
async fn recorded_requests_of_clients_are_answered() {
    let vim = json!({
        "input_prefix": "int f(int a) {\n", "input_suffix": "}\n", "input_extra": [{"filename": "a.c", "text": "int x;\n", "time": [1, 2]}],
        "prompt": "    return", "n_predict": 128, "stop": [], "n_indent": 0, "top_k": 40, "top_p": 0.9,
        "samplers": ["top_k", "top_p", "infill"], "stream": false, "cache_prompt": true, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000, "response_fields": ["content", "timings/prompt_n", "timings/predicted_n", "truncated", "tokens_cached"],
    });
    let coder = super::infill::app_with_marks();
    let answer = ok(&coder, INFILL, &vim).await;
    assert!(answer["content"].is_string() && answer["timings/predicted_n"].is_u64(), "{answer}");
    // It warms the cache while nobody types.
    let warm = with(&vim, json!({"n_predict": 0, "t_max_predict_ms": 1, "response_fields": [""], "samplers": []}));
    ok(&coder, INFILL, &warm).await;

    let app = app();
    let tavern: Value = serde_json::from_str(
        r#"{
        "prompt": "Once upon a time", "max_new_tokens": 20, "max_tokens": 20, "temperature": 0.7, "top_p": 0.9, "typical_p": 1,
        "typical": 1, "sampler_seed": -1, "min_p": 0.05, "repetition_penalty": 1.1, "frequency_penalty": 0, "presence_penalty": 0,
        "top_k": 40, "skew": 0, "min_length": 0, "min_tokens": 0, "num_beams": 1, "length_penalty": 1, "early_stopping": false,
        "add_bos_token": true, "dynamic_temperature": false, "dynatemp_low": 1, "dynatemp_high": 1, "dynatemp_range": 0,
        "dynatemp_exponent": 1, "smoothing_factor": 0, "smoothing_curve": 1, "dry_allowed_length": 2, "dry_multiplier": 0,
        "dry_base": 1.75, "dry_sequence_breakers": ["\n", ":", "\"", "*"], "dry_penalty_last_n": 0, "max_tokens_second": 0,
        "sampler_priority": ["temperature"], "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "tfs_z", "typical_p", "top_p", "min_p", "xtc", "temperature"],
        "stopping_strings": ["\nUser:"], "stop": ["\nUser:"], "truncation_length": 256, "ban_eos_token": false,
        "skip_special_tokens": true, "include_reasoning": true, "top_a": 0, "tfs": 1, "mirostat": 0, "mirostat_mode": 0, "mirostat_tau": 5,
        "mirostat_eta": 0.1, "custom_token_bans": "", "banned_strings": [], "api_type": "llamacpp", "api_server": "http://127.0.0.1:8080/",
        "xtc_threshold": 0.1, "xtc_probability": 0, "nsigma": 0, "top_n_sigma": 0, "min_keep": 0, "n_predict": 20, "num_predict": 20,
        "num_ctx": 256, "rep_pen": 1.1, "rep_pen_range": 0, "repetition_penalty_range": 0, "encoder_repetition_penalty": 1,
        "no_repeat_ngram_size": 0, "penalty_alpha": 0, "temperature_last": true, "do_sample": true, "seed": 7, "guidance_scale": 1,
        "negative_prompt": "", "grammar_string": "", "repeat_penalty": 1.1, "repeat_last_n": 0, "n_probs": 0, "cache_prompt": true,
        "logit_bias": [], "ignore_eos": false, "trim_stop": true, "epsilon_cutoff": 0, "eta_cutoff": 0}"#,
    )
    .unwrap();
    let answer = ok(&app, COMPLETION, &tavern).await;
    assert!(answer["tokens_predicted"].as_u64() <= Some(20), "{answer}");
    assert_eq!(answer["generation_settings"]["temperature"], 0.7);
    let streamed = events(&app, COMPLETION, &tavern).await;
    assert_eq!(streamed.last().unwrap()["stop"], true);
}
