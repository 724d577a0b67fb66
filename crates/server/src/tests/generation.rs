//! What comes out: whole and streamed, echoed, scored, stopped.

use serde_json::{Value, json};

use super::*;

/// The choices of a stream, put together as a client does.
fn joined(events: &[Value], num_choices: usize) -> Vec<(String, Value, Vec<Value>)> {
    let mut choices = vec![(String::new(), Value::Null, Vec::new()); num_choices];
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        let (text, finish, logprobs) = &mut choices[choice["index"].as_u64().unwrap() as usize];
        assert!(finish.is_null(), "a choice goes on after its end: {choice}");
        text.push_str(choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default());
        *finish = choice["finish_reason"].clone();
        logprobs.extend(choice["logprobs"]["content"].as_array().into_iter().flatten().cloned());
    }
    choices
}

fn texts(answer: &Value) -> Vec<String> {
    let choices = answer["choices"].as_array().unwrap();
    let text = |choice: &Value| choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap().to_owned();
    choices.iter().map(text).collect()
}

#[tokio::test]
async fn a_stream_says_what_the_whole_answer_says() {
    let app = app();
    let variants = [
        json!({}),
        json!({"n": 3, "temperature": 1.5}),
        json!({"logprobs": true, "top_logprobs": 2, "stop": ["e", "th"]}),
        json!({"n": 2, "stop": [" a"], "max_tokens": 60, "logprobs": true}),
        json!({"temperature": 0, "return_token_ids": true}),
    ];
    for change in variants {
        let mut body = hello();
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let whole = ok(&app, CHAT, &body).await;
        body["stream_options"] = json!({"include_usage": true});
        let events = stream(&app, CHAT, &body).await;
        let num_choices = whole["choices"].as_array().unwrap().len();
        for (choice, (text, finish, logprobs)) in
            whole["choices"].as_array().unwrap().iter().zip(joined(&events, num_choices))
        {
            assert_eq!(choice["message"]["content"], text);
            assert_eq!(choice["finish_reason"], finish);
            assert_eq!(choice["logprobs"]["content"].as_array().cloned().unwrap_or_default(), logprobs);
        }
        let (last, before) = events.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
        assert!(before.iter().all(|event| event["usage"].is_null() && event["object"] == "chat.completion.chunk"));
        let facts = before.iter().find(|event| !event["x_hotmetal"].is_null()).expect("what was used is said");
        assert_eq!(facts["x_hotmetal"]["seed"], 3);
        assert_eq!(facts["x_hotmetal"]["sampling"], whole["x_hotmetal"]["sampling"]);
        assert_eq!(before[0]["choices"][0]["delta"]["role"], "assistant");
    }
}

#[tokio::test]
async fn a_stop_string_ends_a_text_before_it_and_its_tokens_have_no_logprobs() {
    let app = app();
    let mut body = hello();
    body["max_tokens"] = json!(100);
    body["logprobs"] = json!(true);
    let free = texts(&ok(&app, CHAT, &body).await).remove(0);
    // A stop string from the middle of the text, so that it is found.
    let characters: Vec<char> = free.chars().collect();
    let stop: String = characters[20..24].iter().collect();
    let expected = &free[..free.find(&stop).unwrap()];
    body["stop"] = json!(stop);
    let answer = ok(&app, CHAT, &body).await;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(expected), &json!("stop")));
    assert_eq!(choice["stop_reason"], stop);
    let bytes: Vec<u8> = choice["logprobs"]["content"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|token| token["bytes"].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8))
        .collect();
    let bytes = String::from_utf8_lossy(&bytes);
    // The last token may reach into the stop string, and a part of a character may be whole by what follows.
    let whole = expected.trim_end_matches('\u{FFFD}');
    assert!(bytes.starts_with(whole) && bytes.len() < free.len(), "{expected:?} {bytes:?}");
    idle(&app).await;
}

#[tokio::test]
async fn prompts_come_in_four_shapes_and_answers_in_their_order() {
    let app = app();
    let ids = |text: &str| tokenizer().encode(text, tokenizer::ParseSpecial::No).unwrap();
    let (a, b) = ("Once upon a time", "The moon");
    let run = async |prompt: Value, n: usize| {
        let body = json!({"prompt": prompt, "max_tokens": 6, "seed": 9, "n": n, "temperature": 1});
        texts(&ok(&app, TEXT, &body).await)
    };
    let (alone_a, alone_b) = (run(json!(a), 2).await, run(json!(b), 2).await);
    assert_ne!(alone_a[0], alone_a[1], "completions have random choices of their own");
    assert_eq!(run(json!([a, b]), 2).await, [alone_a.clone(), alone_b.clone()].concat());
    assert_eq!(run(json!(ids(a)), 2).await, alone_a);
    assert_eq!(run(json!([ids(b), ids(a)]), 2).await, [alone_b, alone_a].concat());
}

#[tokio::test]
async fn a_prompt_is_echoed_and_scored_as_lm_eval_wants_it() {
    let app = app();
    let prompt = "Once upon a time, there was a cheerful little kangaroo";
    let ids = tokenizer().encode(prompt, tokenizer::ParseSpecial::No).unwrap();
    let request = |change: Value| {
        let mut body = json!({"prompt": ids, "echo": true, "logprobs": 2, "max_tokens": 0, "temperature": 0});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        body
    };
    let scored = ok(&app, TEXT, &request(json!({}))).await;
    let choice = &scored["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(prompt), &json!("length")));
    assert_eq!(
        (&scored["usage"]["prompt_tokens"], &scored["usage"]["completion_tokens"]),
        (&json!(ids.len()), &json!(0))
    );
    let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), ids.len());
    // The engine's logits are a known function of the tokens before.
    assert!(logprobs[0].is_null() && choice["logprobs"]["top_logprobs"][0].is_null());
    for (index, found) in logprobs.iter().enumerate().skip(1) {
        let logits = engine::null::null_logits(&ids[..index], VOCAB_SIZE);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let expected = f64::from(logits[ids[index] as usize]) - sum.ln();
        assert!((found.as_f64().unwrap() - expected).abs() < 1e-4, "token {index}: {found}, expected {expected}");
        let top = choice["logprobs"]["top_logprobs"][index].as_object().unwrap();
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let most = top.values().map(|value| value.as_f64().unwrap()).fold(f64::NEG_INFINITY, f64::max);
        assert!((most - (f64::from(best) - sum.ln())).abs() < 1e-4);
    }
    let offsets: Vec<u64> =
        choice["logprobs"]["text_offset"].as_array().unwrap().iter().map(|at| at.as_u64().unwrap()).collect();
    let tokens = choice["logprobs"]["tokens"].as_array().unwrap();
    for (offset, token) in offsets.iter().zip(tokens) {
        assert!(prompt[*offset as usize..].starts_with(token.as_str().unwrap()));
    }

    // With text after it, from a request of its own and in a stream.
    let more = ok(&app, TEXT, &request(json!({"max_tokens": 5, "n": 2}))).await;
    let plain = ok(&app, TEXT, &json!({"prompt": ids, "max_tokens": 5, "n": 2, "temperature": 0})).await;
    for (more, plain) in more["choices"].as_array().unwrap().iter().zip(plain["choices"].as_array().unwrap()) {
        assert_eq!(more["text"], format!("{prompt}{}", plain["text"].as_str().unwrap()));
        let found = more["logprobs"]["token_logprobs"].as_array().unwrap();
        assert_eq!(found[..ids.len()], logprobs[..]);
        assert!(found.len() > ids.len());
        assert_eq!(more["logprobs"]["text_offset"][ids.len()], prompt.chars().count());
    }
    let events = stream(&app, TEXT, &request(json!({"max_tokens": 5, "n": 2}))).await;
    let streamed: Vec<String> = joined(&events, 2).into_iter().map(|choice| choice.0).collect();
    assert_eq!(streamed, texts(&more));
    let count = |events: &[Value], list: &str| -> Vec<Value> {
        let of_first =
            events.iter().flat_map(|event| event["choices"].as_array().unwrap()).filter(|choice| choice["index"] == 0);
        of_first.flat_map(|choice| choice["logprobs"][list].as_array().unwrap().clone()).collect()
    };
    for list in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
        assert_eq!(json!(count(&events, list)), more["choices"][0]["logprobs"][list], "{list}");
    }
}

/// Without log-probabilities, too: of each prompt as the request has it, once, and in front of each of its completions.
#[tokio::test]
async fn an_echoed_prompt_stands_once_before_each_completion() {
    let app = app();
    let prompts = ["Once upon a time", "<|im_start|>The moon"];
    let body = json!({"prompt": prompts, "max_tokens": 6, "seed": 9, "n": 2, "temperature": 1});
    let plain = texts(&ok(&app, TEXT, &body).await);
    let expected: Vec<String> =
        plain.iter().enumerate().map(|(index, text)| format!("{}{text}", prompts[index / 2])).collect();
    let mut echoed = body.clone();
    echoed["echo"] = json!(true);
    let answer = ok(&app, TEXT, &echoed).await;
    assert_eq!(texts(&answer), expected);
    assert!(answer["choices"].as_array().unwrap().iter().all(|choice| choice["logprobs"].is_null()), "{answer}");
    let streamed: Vec<String> =
        joined(&stream(&app, TEXT, &echoed).await, 4).into_iter().map(|choice| choice.0).collect();
    assert_eq!(streamed, expected);
    // Nothing but the prompt, where nothing is to be generated; a stream says it once, too.
    echoed["max_tokens"] = json!(0);
    let alone = ok(&app, TEXT, &echoed).await;
    let prompt_of = |index: usize| prompts[index / 2].to_owned();
    assert_eq!(texts(&alone), (0..4).map(prompt_of).collect::<Vec<_>>());
    assert_eq!(alone["usage"]["completion_tokens"], 0);
    let streamed: Vec<String> =
        joined(&stream(&app, TEXT, &echoed).await, 4).into_iter().map(|choice| choice.0).collect();
    assert_eq!(streamed, texts(&alone));
}

#[tokio::test]
async fn lm_evals_one_token_is_the_last_entry_even_where_it_ends_the_text() {
    let app = app();
    let prompts = [vec![7, 300, 41, 1000], vec![9; 30]];
    let request = |max_tokens: usize, change: Value| {
        let mut body = json!({
            "model": MODEL, "prompt": prompts, "temperature": 0, "max_tokens": max_tokens, "logprobs": 1, "seed": 1234,
            "echo": true,
        });
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        body
    };
    let lists = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
    let scored = ok(&app, TEXT, &request(0, json!({}))).await;
    let going_on = ok(&app, TEXT, &request(1, json!({}))).await;
    let ending = ok(&app, TEXT, &request(1, json!({"logit_bias": {"2": 100}}))).await;
    for (index, prompt) in prompts.iter().enumerate() {
        let of = |answer: &Value, list: &str| answer["choices"][index]["logprobs"][list].as_array().unwrap().clone();
        assert_eq!(ending["choices"][index]["finish_reason"], "stop");
        assert_eq!(ending["choices"][index]["text"], scored["choices"][index]["text"]);
        for list in lists {
            assert_eq!(of(&scored, list).len(), prompt.len(), "{list}");
            for answer in [&going_on, &ending] {
                let found = of(answer, list);
                assert_eq!(found.len(), prompt.len() + 1, "{list}");
                assert_eq!(found[..prompt.len()], of(&scored, list), "{list}");
            }
        }
        let likeliest = of(&going_on, "token_logprobs")[prompt.len()].as_f64().unwrap();
        assert!(of(&ending, "token_logprobs")[prompt.len()].as_f64().unwrap() <= likeliest);
    }
    let events = stream(&app, TEXT, &request(1, json!({"logit_bias": {"2": 100}, "prompt": prompts[0]}))).await;
    let count = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["tokens"].as_array().map(Vec::len));
    assert_eq!(count.sum::<usize>(), prompts[0].len() + 1);
}

#[tokio::test]
async fn a_prompt_that_was_seen_is_counted_as_cached_within_its_domain() {
    let app = app();
    let request = |salt: Value| json!({"prompt": vec![7; 60], "max_tokens": 2, "cache_salt": salt});
    let cached = async |salt: Value| {
        let answer = ok(&app, TEXT, &request(salt)).await;
        assert_eq!(answer["x_hotmetal"]["cached_tokens"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]);
        answer["x_hotmetal"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached(json!("a")).await, 0);
    assert_eq!(cached(json!("a")).await, 56);
    assert_eq!(cached(json!("b")).await, 0);
    assert_eq!(cached(Value::Null).await, 0);
    assert_eq!(cached(Value::Null).await, 56);
}

#[tokio::test]
async fn a_seed_that_nobody_chose_is_reported_and_gives_the_same_text_again() {
    let app = app();
    let mut body = hello();
    body["seed"] = Value::Null;
    let first = ok(&app, CHAT, &body).await;
    body["seed"] = first["x_hotmetal"]["seed"].clone();
    assert_eq!(texts(&ok(&app, CHAT, &body).await), texts(&first));
}

#[tokio::test]
async fn tokens_and_texts_go_both_ways() {
    let app = app();
    let text = "The cat sat — über alles 🙂.";
    let found = ok(&app, "/tokenize", &json!({"prompt": text})).await;
    assert_eq!(found["count"].as_u64().unwrap() as usize, found["tokens"].as_array().unwrap().len());
    let back = ok(&app, "/detokenize", &json!({"tokens": found["tokens"]})).await;
    assert_eq!((&back["prompt"], &back["content"]), (&json!(text), &json!(text)));
    let pieces = ok(&app, "/tokenize", &json!({"content": text, "with_pieces": true})).await;
    let bytes: Vec<u8> = pieces["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|token| match &token["piece"] {
            Value::String(text) => text.as_bytes().to_vec(),
            bytes => bytes.as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8).collect(),
        })
        .collect();
    assert_eq!(bytes, text.as_bytes());
    let info = get(&app, "/tokenizer_info").await.1;
    assert_eq!((&info["vocab_size"], &info["eos"][0]["token"]), (&json!(4096), &json!("<|im_end|>")));
    assert_eq!((&info["eos_token"], &info["bos_token"]), (&json!("<|im_end|>"), &Value::Null));
    // Special tokens in a raw text are themselves, in both dialects, unless the request says otherwise.
    let raw = "<|im_start|>user\nhi<|im_end|>\n";
    let ids = async |name: &str, text: &str, parses: Value| {
        let answer = ok(&app, "/tokenize", &json!({name: text, "parse_special": parses})).await;
        serde_json::from_value::<Vec<u32>>(answer["tokens"].clone()).unwrap()
    };
    for name in ["prompt", "content"] {
        assert_eq!(ids(name, "<|im_end|>", Value::Null).await, [2]);
        let parsed = ids(name, raw, Value::Null).await;
        assert!(parsed.starts_with(&[1]) && parsed.contains(&2), "{parsed:?}");
        let plain = ids(name, raw, json!(false)).await;
        assert!(plain.len() > parsed.len() && !plain.contains(&1) && !plain.contains(&2), "{plain:?}");
    }
    let prompt_tokens = async |path: &str, name: &str, parses: Value| {
        let body = json!({name: raw, "parse_special": parses, "max_tokens": if path == TEXT { json!(1) } else { Value::Null }});
        ok(&app, path, &body).await["usage"]["prompt_tokens"].as_u64().unwrap() as usize
    };
    for (path, name) in [(TEXT, "prompt"), (EMBED, "input")] {
        assert_eq!(
            prompt_tokens(path, name, Value::Null).await,
            ids("content", raw, Value::Null).await.len(),
            "{path}"
        );
        assert_eq!(
            prompt_tokens(path, name, json!(false)).await,
            ids("content", raw, json!(false)).await.len(),
            "{path}"
        );
    }
}

#[tokio::test]
async fn the_server_says_what_it_serves_and_how_it_fares() {
    let app = loading(Options::default());
    let (status, body) = get(&app, "/health").await;
    assert_eq!(
        (status, &body["status"], &body["model"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("loading"), &json!(MODEL))
    );
    assert_eq!((&body["stage"], &body["share"]), (&json!("waiting"), &Value::Null), "no size is known yet");
    let loading = app.loading(MODEL);
    loading.stage(crate::LoadStage::Weights);
    loading.bytes(50, 150);
    let (status, body) = get(&app, "/health").await;
    let found = ["stage", "bytes_loaded", "bytes_total", "share"].map(|name| body[name].clone());
    assert_eq!(
        (status, found),
        (StatusCode::SERVICE_UNAVAILABLE, [json!("weights"), json!(50), json!(150), json!(0.3333)])
    );
    // Each stage begins anew.
    loading.stage(crate::LoadStage::Placing);
    let body = get(&app, "/health").await.1;
    assert_eq!((&body["stage"], &body["share"]), (&json!("placing"), &Value::Null));
    loading.bytes(100, 200);
    let body = get(&app, "/health").await.1;
    assert_eq!((&body["bytes_loaded"], &body["share"]), (&json!(100), &json!(0.5)));
    let (status, headers, answer) = post(&app, CHAT, &hello()).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("loading")));
    assert!(headers.contains_key("retry-after"));
    serve_on(&app, config(), None);
    assert_eq!(get(&app, "/health").await, (StatusCode::OK, json!({"status": "ok"})));
    assert_eq!(get(&app, "/v1/models").await.1["data"][0]["id"], MODEL);
    assert_eq!(get(&app, "/v1/models/tiny").await.1["max_model_len"], 256);
    assert_eq!(get(&app, "/v1/models/other/x").await.1["error"]["code"], "model_not_found");
    assert_eq!(get(&app, "/version").await.1["version"], "0");
    ok(&app, CHAT, &hello()).await;
    let response = send(&app, request(Method::GET, "/metrics", "")).await;
    let text = String::from_utf8(bytes(response).await.to_vec()).unwrap();
    for line in [
        "vllm:num_requests_running{model_name=\"tiny\"} 0",
        "vllm:kv_cache_usage_perc{model_name=\"tiny\"} 0",
        "vllm:generation_tokens_total{model_name=\"tiny\"} 8",
        "vllm:request_success_total{model_name=\"tiny\",finished_reason=\"length\"} 1",
        "vllm:time_to_first_token_seconds_count{model_name=\"tiny\"} 1",
        "vllm:inter_token_latency_seconds_count{model_name=\"tiny\"} 7",
        "vllm:request_queue_time_seconds_count{model_name=\"tiny\"} 1",
        "vllm:request_prefill_time_seconds_count{model_name=\"tiny\"} 1",
        "vllm:request_decode_time_seconds_count{model_name=\"tiny\"} 1",
        "vllm:cache_config_info{model_name=\"tiny\",block_size=\"8\",num_gpu_blocks=\"64\",enable_prefix_caching=\"True\"} 1",
        "vllm:prefix_cache_hits_total{model_name=\"tiny\"} 0",
        "hotmetal_http_answers_total{route=\"/v1/chat/completions\",status=\"503\"} 1",
        "hotmetal_http_answers_total{route=\"/v1/models/{*model}\",status=\"404\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
    // The last step is counted once its outputs are handed out.
    for name in ["hotmetal_step_seconds", "hotmetal_step_host_seconds"] {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}_count{{model_name=\"tiny\"}} ")));
        assert!(line.is_some_and(|count| (7..=8).contains(&count.parse::<u64>().unwrap())), "{name}: {line:?}");
    }
    app.drain();
    assert_eq!(get(&app, "/health").await.1["status"], "draining");
    assert_eq!(post(&app, CHAT, &hello()).await.2["error"]["code"], "draining");
}

/// What a request waited, read and wrote is told apart: one waits for another's twenty slow steps, and finds its prompt.
#[tokio::test]
async fn the_parts_of_a_request_are_measured_each() {
    const STEP_S: f64 = 0.01;
    let slow: Faults = Box::new(|_, _| {
        std::thread::sleep(Duration::from_secs_f64(STEP_S));
        None
    });
    let app = app_on(EngineConfig { max_sequences: 1, ..config() }, Some(slow));
    let metric = async |name: &str| -> f64 {
        let text = bytes(send(&app, request(Method::GET, "/metrics", "")).await).await;
        let text = String::from_utf8(text.to_vec()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}{{model_name=\"tiny\"}} ")));
        line.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
    };
    let body = json!({"prompt": "Once upon a time there was a moon and nobody saw it, ", "max_tokens": 20, "ignore_eos": true});
    let (first, second) = tokio::join!(ok(&app, TEXT, &body), ok(&app, TEXT, &body));
    let prompt = first["usage"]["prompt_tokens"].as_f64().unwrap();
    let [queue, prefill, decode] =
        ["queue", "prefill", "decode"].map(|part| format!("vllm:request_{part}_time_seconds_sum"));
    let (queue, prefill, decode) = (metric(&queue).await, metric(&prefill).await, metric(&decode).await);
    // Both write nineteen tokens behind their first; one of them waits for the other.
    assert!(queue > 19.0 * STEP_S, "{queue} s in the queue");
    assert!(decode > 2.0 * 19.0 * STEP_S * 0.9, "{decode} s of decode");
    assert!(prefill >= 2.0 * STEP_S && prefill < decode, "{prefill} s of prefill");
    assert_eq!(metric("vllm:prefix_cache_queries_total").await, 2.0 * prompt);
    let cached = [first, second].map(|answer| answer["x_hotmetal"]["cached_tokens"].as_f64().unwrap());
    assert!(cached.iter().sum::<f64>() > 0.0);
    assert_eq!(metric("vllm:prefix_cache_hits_total").await, cached.iter().sum::<f64>());
}
