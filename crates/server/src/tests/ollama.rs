//! Ollama's interface: what its clients send and read, on the same prompts, tools, grammars and samplers as the others.

use engine::null::Fault;

use super::field_cases::{Case, case, case_with};
use super::parrot::Parrot;
use super::structure::{HERMES, app_with, weather};
use super::*;
use crate::ModelFiles;

const GENERATE: &str = "/api/generate";

/// What shows that a route of this interface applies a field.
pub(super) fn applied_case(path: &str, name: &str) -> Option<Case> {
    match (path, name) {
        (_, "model") => case(json!("tiny:latest"), |_, answer| answer["error"].is_null()),
        ("/api/show", "name") => case(json!(MODEL), |before, answer| before["template"] == answer["template"]),
        // Its answer is no JSON value: tests of their own send it.
        (_, "stream") => None,
        (_, "options") => case(json!({"num_predict": 5, "top_k": 7.0}), |_, answer| {
            answer["eval_count"] == 5 && answer["x_hotmetal"]["sampling"]["top_k"] == 7
        }),
        (_, "format") => case(json!("json"), |before, answer| said(before) != said(answer)),
        // The built-in template has no switch for it, and shows no tools: applied in tests below.
        (_, "think" | "tools") => None,
        (_, "messages") => {
            case(json!([{"role": "user", "content": "Other words"}]), |before, answer| said(before) != said(answer))
        }
        (GENERATE, "prompt") => case(json!("Other words"), |before, answer| said(before) != said(answer)),
        (GENERATE, "suffix") => case(json!(" and so it was."), |before, answer| said(before) != said(answer)),
        (GENERATE, "system") => case(json!("Be brief."), |before, answer| {
            answer["prompt_eval_count"].as_u64() > before["prompt_eval_count"].as_u64()
        }),
        (GENERATE, "raw") => case(json!(true), |before, answer| {
            answer["prompt_eval_count"].as_u64() < before["prompt_eval_count"].as_u64()
        }),
        ("/api/embed", "input") => case(json!(["Once upon a time", "x"]), |before, answer| {
            before["embeddings"][0] == answer["embeddings"][0] && answer["embeddings"].as_array().unwrap().len() == 2
        }),
        ("/api/embed", "dimensions") => {
            case(json!(NULL_HIDDEN_SIZE), |before, answer| before["embeddings"] == answer["embeddings"])
        }
        ("/api/embed", "truncate") => case_with(json!({"input": "far ".repeat(300)}), json!(true), |_, answer| {
            answer["prompt_eval_count"] == config().context_len && answer["x_hotmetal"]["truncated"] == json!([0])
        }),
        ("/api/embeddings", "prompt") => {
            case(json!("Other words"), |before, answer| before["embedding"] != answer["embedding"])
        }
        _ => panic!("`{name}` of {path} is applied, and no case shows it"),
    }
}

/// The text of an answer, on either route.
fn said(answer: &Value) -> [&Value; 2] {
    [&answer["message"]["content"], &answer["response"]]
}

/// The lines of a streamed answer.
async fn lines(app: &App, path: &str, body: &Value) -> Vec<Value> {
    let response = send(app, request(Method::POST, path, &body.to_string())).await;
    assert_eq!(response.status(), StatusCode::OK, "{body}");
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let bytes = bytes(response).await;
    let text = std::str::from_utf8(&bytes).unwrap();
    assert!(text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn with(body: &Value, change: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    body
}

fn whole(body: &Value) -> Value {
    with(body, json!({"stream": false}))
}

fn conversation() -> Value {
    json!({"messages": [{"role": "user", "content": "Hello there"}], "options": {"num_predict": 8, "seed": 3}})
}

async fn refused(app: &App, path: &str, body: &Value) -> (StatusCode, Value) {
    let (status, _, answer) = post(app, path, body).await;
    assert!(status.is_client_error(), "{body}: {answer}");
    // A client shows this text.
    assert!(answer["error"].as_str().is_some_and(|text| !text.is_empty()), "{answer}");
    (status, answer["param"].clone())
}

/// The same words come by every route, whole and in lines.
#[tokio::test]
async fn a_conversation_is_answered_as_the_chat_route_does() {
    let app = app();
    let expected = ok(&app, CHAT, &hello()).await;
    let expected = &expected["choices"][0]["message"]["content"];
    let answer = ok(&app, OLLAMA, &whole(&conversation())).await;
    assert_eq!(answer["message"], json!({"role": "assistant", "content": expected}));
    assert_eq!(
        (&answer["model"], &answer["done"], &answer["done_reason"]),
        (&json!("tiny:latest"), &json!(true), &json!("length"))
    );
    assert_eq!(answer["eval_count"], 8);
    for name in ["total_duration", "prompt_eval_duration", "eval_duration", "prompt_eval_count"] {
        assert!(answer[name].as_u64().unwrap() > 0, "{name}: {answer}");
    }
    let created = answer["created_at"].as_str().unwrap();
    assert!(created.starts_with("20") && created.contains('T') && created.ends_with('Z'), "{created}");
    // Streams are the default.
    let streamed = lines(&app, OLLAMA, &conversation()).await;
    let (last, pieces) = streamed.split_last().unwrap();
    assert!(pieces.len() > 1, "{streamed:?}");
    let text: String = pieces.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(json!(text), *expected);
    for line in pieces {
        assert_eq!((&line["done"], &line["message"]["role"]), (&json!(false), &json!("assistant")), "{line}");
        assert!(line["eval_count"].is_null(), "{line}");
    }
    assert_eq!((&last["done"], &last["eval_count"], &last["done_reason"]), (&json!(true), &json!(8), &json!("length")));
    assert_eq!(last["message"]["content"], "");
    assert_eq!(last["prompt_eval_count"], answer["prompt_eval_count"]);

    // A prompt is a user's message, and a raw one is a text.
    let prompt = json!({"prompt": "Hello there", "options": {"num_predict": 8, "seed": 3}});
    assert_eq!(ok(&app, GENERATE, &whole(&prompt)).await["response"], *expected);
    let streamed = lines(&app, GENERATE, &prompt).await;
    let text: String = streamed.iter().map(|line| line["response"].as_str().unwrap()).collect();
    assert_eq!(json!(text), *expected);
    let text = ok(&app, TEXT, &json!({"prompt": "Hello there", "max_tokens": 8, "seed": 3})).await;
    let raw = with(&prompt, json!({"raw": true}));
    assert_eq!(ok(&app, GENERATE, &whole(&raw)).await["response"], text["choices"][0]["text"]);
    let streamed = lines(&app, GENERATE, &raw).await;
    let streamed: String = streamed.iter().map(|line| line["response"].as_str().unwrap()).collect();
    assert_eq!(json!(streamed), text["choices"][0]["text"]);
    // Without a limit a text ends where the context does: 16 tokens are another interface's default.
    let endless = json!({"prompt": "Hello", "raw": true, "stream": false, "options": {"seed": 3, "num_predict": -2}});
    assert!(ok(&app, GENERATE, &endless).await["eval_count"].as_u64() > Some(16));
}

#[tokio::test]
async fn without_a_prompt_the_model_is_loaded() {
    let app = app();
    for (path, body) in [
        (GENERATE, json!({"model": MODEL})),
        (GENERATE, json!({"model": MODEL, "prompt": "", "keep_alive": -1})),
        (OLLAMA, json!({"model": MODEL})),
        (OLLAMA, json!({"model": MODEL, "messages": [], "keep_alive": 0})),
    ] {
        let answer = ok(&app, path, &body).await;
        assert_eq!((&answer["done"], &answer["done_reason"]), (&json!(true), &json!("load")), "{body}");
        assert_eq!(answer["model"], MODEL);
        let ignored = if body["keep_alive"].is_null() { Value::Null } else { json!(["keep_alive"]) };
        assert_eq!(answer["x_hotmetal"]["ignored"], ignored);
    }
    assert_eq!(ok(&app, "/api/embed", &json!({"input": ""})).await["embeddings"], json!([]));
    assert_eq!(ok(&app, "/api/embeddings", &json!({})).await["embedding"], json!([]));
    let other = json!({"model": "llama3.2"});
    assert_eq!(ok(&app, GENERATE, &other).await["x_hotmetal"]["ignored"], json!(["model"]));
    assert_eq!(refused(&strict(), GENERATE, &other).await, (StatusCode::NOT_FOUND, json!("model")));
}

#[tokio::test]
async fn options_are_the_fields_of_other_routes() {
    let app = app();
    let options = json!({
        "temperature": 0.5, "top_k": 20.0, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.7, "seed": 42.0,
        "repeat_penalty": 1.25, "repeat_last_n": 33, "presence_penalty": 0.5, "frequency_penalty": 1, "num_predict": 4,
        "stop": ["\n"], "penalize_newline": true, "top_n_sigma": 2.5, "dynatemp_range": 0.25,
        "dynatemp_exponent": 2, "mirostat": 0.0, "mirostat_tau": 0.75, "mirostat_eta": 0.5, "tfs_z": 1.0, "num_ctx": 1024,
        "num_batch": 2, "num_gpu": 1, "main_gpu": 0, "use_mmap": true, "num_thread": 8, "num_keep": 5,
    });
    let answer = ok(&app, OLLAMA, &with(&whole(&conversation()), json!({"options": options}))).await;
    let used = &answer["x_hotmetal"]["sampling"];
    for (name, value) in [
        ("temperature", 0.5),
        ("top_k", 20.0),
        ("top_p", 0.9),
        ("min_p", 0.05),
        ("typical_p", 0.7),
        ("repetition_penalty", 1.25),
        ("repeat_last_n", 33.0),
        ("presence_penalty", 0.5),
        ("frequency_penalty", 1.0),
        ("top_n_sigma", 2.5),
        ("dynatemp_range", 0.25),
        ("dynatemp_exponent", 2.0),
        ("mirostat", 0.0),
        ("mirostat_tau", 0.75),
        ("mirostat_eta", 0.5),
    ] {
        assert_eq!(used[name].as_f64(), Some(value), "{name}: {used}");
    }
    assert_eq!(answer["x_hotmetal"]["seed"], 42);
    let ignored = answer["x_hotmetal"]["ignored"].as_array().unwrap();
    for name in ["num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread", "num_keep"] {
        assert!(ignored.contains(&json!(format!("options.{name}"))), "{name}: {ignored:?}");
    }
    for (options, param) in [
        (json!({"temperature": -1}), "options.temperature"),
        (json!({"temperature": "hot"}), "options.temperature"),
        (json!({"num_predict": 0}), "options.num_predict"),
        (json!({"num_predict": 2.5}), "options.num_predict"),
        (json!({"top_p": 2}), "options.top_p"),
        (json!({"repeat_penalty": -1}), "options.repeat_penalty"),
        (json!({"mirostat": 3}), "options.mirostat"),
        (json!({"mirostat_tau": -1}), "options.mirostat_tau"),
        (json!({"tfs_z": 0.5}), "options.tfs_z"),
        (json!({"penalize_newline": false}), "options.penalize_newline"),
        (json!({"temprature": 0}), "options.temprature"),
        (json!({"max_tokens": 5}), "options.max_tokens"),
        (json!([]), "options"),
    ] {
        for (path, body) in [(OLLAMA, conversation()), (GENERATE, json!({"prompt": "x", "raw": true}))] {
            let body = with(&body, json!({"options": options}));
            assert_eq!(refused(&app, path, &body).await, (StatusCode::BAD_REQUEST, json!(param)), "{body}");
        }
    }
    // Beside `options` they have no place, and would have changed the text.
    assert_eq!(refused(&app, OLLAMA, &with(&conversation(), json!({"temperature": 0}))).await.1, "temperature");
}

#[tokio::test]
async fn a_format_holds_the_text_to_json() {
    let app = app();
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
        "additionalProperties": false});
    let mut options = json!({"options": {"num_predict": 60, "temperature": 0, "seed": 1}});
    options["format"] = schema;
    for (path, body) in
        [(OLLAMA, conversation()), (GENERATE, json!({"prompt": "x"})), (GENERATE, json!({"prompt": "x", "raw": true}))]
    {
        let answer = ok(&app, path, &whole(&with(&body, options.clone()))).await;
        let text = said(&answer).into_iter().find_map(Value::as_str).unwrap();
        let parsed: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(parsed["a"].is_boolean(), "{text}");
        let object = with(&options, json!({"format": "json"}));
        let answer = ok(&app, path, &whole(&with(&body, object))).await;
        assert!(said(&answer).into_iter().find_map(Value::as_str).unwrap().trim_start().starts_with('{'), "{answer}");
        for (format, param) in [
            (json!("yaml"), "format"),
            (json!(true), "format"),
            (json!({"type": "object", "properties": {"a": {"maxLenght": 2}}}), "format.properties.a.maxLenght"),
        ] {
            let body = with(&body, json!({"format": format}));
            assert_eq!(refused(&app, path, &body).await, (StatusCode::BAD_REQUEST, json!(param)), "{body}");
        }
        ok(&app, path, &whole(&with(&body, json!({"format": "", "options": {"num_predict": 2}})))).await;
    }
}

/// Calls have objects as arguments, and a stream sends a call when it is whole.
#[tokio::test]
async fn calls_of_tools_are_whole() {
    let model = Parrot::new(HERMES, &[], Options::default());
    let body = json!({"messages": [{"role": "user", "content": "x"}], "tools": weather()});
    let call = |unit: &str| {
        format!("<tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {{\"unit\": \"{unit}\"}}}}\n</tool_call>")
    };
    let text = format!("Look: {}\n{}", call("C"), call("F"));
    let answer = model.say(&text, OLLAMA, &whole(&body)).await;
    let calls = answer["message"]["tool_calls"].as_array().unwrap();
    let function = |index: usize| calls[index]["function"].clone();
    assert_eq!(function(0), json!({"index": 0, "name": "get_weather", "arguments": {"unit": "C"}}));
    assert_eq!(function(1), json!({"index": 1, "name": "get_weather", "arguments": {"unit": "F"}}));
    assert_eq!(answer["done_reason"], "stop");
    assert!(answer["message"]["content"].as_str().unwrap().starts_with("Look:"), "{answer}");
    model.prepare(&text).await;
    let streamed = lines(&model.app, OLLAMA, &body).await;
    let sent: Vec<Value> =
        streamed.iter().filter_map(|line| line["message"]["tool_calls"].as_array()).flatten().cloned().collect();
    let functions: Vec<&Value> = sent.iter().map(|call| &call["function"]).collect();
    assert_eq!(functions, [&function(0), &function(1)]);
    // Half a call is none, and the end says what there is of it.
    let cut = with(&body, json!({"options": {"num_predict": 20}}));
    let answer = model.say(&call("C"), OLLAMA, &whole(&cut)).await;
    assert_eq!((&answer["message"]["tool_calls"], &answer["done_reason"]), (&Value::Null, &json!("length")));
    if answer["message"]["content"] == "" {
        assert_eq!(answer["x_hotmetal"]["cut_call"]["name"], "get_weather", "{answer}");
    }
    // What is no call comes back as text in a stream, too.
    let broken = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {unit: C}}\n</tool_call>";
    model.prepare(broken).await;
    let streamed = lines(&model.app, OLLAMA, &body).await;
    let text: String = streamed.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, broken);
    assert!(streamed.iter().all(|line| line["message"]["tool_calls"].is_null()), "{streamed:?}");
}

/// A result belongs to the call that its id or its function's name says, and to the next one where it says neither.
#[tokio::test]
async fn results_find_their_calls() {
    let template = HERMES.replace("{{ m.content }}", "{{ m.tool_call_id }}{{ m.content }}");
    let model = Parrot::new(&template, &[], Options::default());
    let call = |name: &str| json!({"function": {"name": name, "arguments": {}}});
    let conversation = |results: Value| {
        let mut messages = vec![
            json!({"role": "user", "content": "x"}),
            json!({"role": "assistant", "content": "", "tool_calls": [call("a"), call("b")]}),
        ];
        messages.extend(results.as_array().unwrap().iter().cloned());
        json!({"messages": messages, "stream": false})
    };
    let count =
        async |results: Value| model.say("Good.", OLLAMA, &conversation(results)).await["prompt_eval_count"].clone();
    let expected = ok(
        &model.app,
        "/tokenize",
        &json!({"messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "call00000", "function": {"name": "a", "arguments": {}}},
                {"id": "call00001", "function": {"name": "b", "arguments": {}}}]},
            {"role": "tool", "tool_call_id": "call00001", "content": "b b b b b"},
            {"role": "tool", "tool_call_id": "call00000", "content": "a"},
        ]}),
    )
    .await;
    let named = json!([{"role": "tool", "tool_name": "b", "content": "b b b b b"}, {"role": "tool", "tool_name": "a", "content": "a"}]);
    assert_eq!(count(named).await, expected["count"]);
    let counted = json!([{"role": "tool", "content": "a"}, {"role": "tool", "content": "b b b b b"}]);
    assert_eq!(count(counted).await, expected["count"]);
    let body = conversation(json!([{"role": "tool", "tool_name": 7, "content": ""}]));
    assert_eq!(refused(&model.app, OLLAMA, &body).await.1, "messages[2].tool_name");
}

#[tokio::test]
async fn thoughts_stand_apart_and_can_be_switched() {
    const SWITCHES: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}";
    let model = Parrot::new(SWITCHES, &["<think>", "</think>"], Options::default());
    let body = json!({"messages": [{"role": "user", "content": "x"}]});
    let text = "<think>\nHm.\n</think>\n\nYes.";
    for (path, body) in [(OLLAMA, body.clone()), (GENERATE, json!({"prompt": "x"}))] {
        let body = with(&body, json!({"think": true}));
        let answer = model.say(text, path, &whole(&body)).await;
        let place = if path == OLLAMA { &answer["message"] } else { &answer };
        assert_eq!((&place["thinking"], said(&answer).contains(&&json!("Yes."))), (&json!("Hm.\n"), true), "{answer}");
        model.prepare(text).await;
        let streamed = lines(&model.app, path, &body).await;
        let join = |name: &str| -> String {
            let place = |line: &Value| if path == OLLAMA { line["message"].clone() } else { line.clone() };
            streamed.iter().filter_map(|line| place(line)[name].as_str().map(str::to_owned)).collect()
        };
        let name = if path == OLLAMA { "content" } else { "response" };
        assert_eq!((join("thinking").as_str(), join(name).as_str()), ("Hm.\n", "Yes."));
        // What was thought comes back.
        let off = model.say("Yes.", path, &whole(&with(&body, json!({"think": false})))).await;
        let on = model.say("Yes.", path, &whole(&body)).await;
        assert!(off["prompt_eval_count"].as_u64() > on["prompt_eval_count"].as_u64(), "{off}");
        let levels = model.say("Yes.", path, &whole(&with(&body, json!({"think": "low"})))).await;
        assert_eq!(levels["x_hotmetal"]["ignored"], json!(["think"]), "the template knows no effort: {levels}");
        assert_eq!(refused(&model.app, path, &with(&body, json!({"think": "hard"}))).await.1, "think");
    }
    let kept = json!({"messages": [{"role": "user", "content": "x"},
        {"role": "assistant", "content": "Yes.", "thinking": "Hm, hm, hm."}, {"role": "user", "content": "y"}]});
    let mut forgotten = kept.clone();
    forgotten["messages"][1].as_object_mut().unwrap().remove("thinking");
    let kept = model.say("Yes.", OLLAMA, &whole(&kept)).await;
    let forgotten = model.say("Yes.", OLLAMA, &whole(&forgotten)).await;
    assert!(kept["prompt_eval_count"].as_u64() > forgotten["prompt_eval_count"].as_u64());
    // A model without a switch says so.
    let plain = app();
    let answer = ok(&plain, OLLAMA, &whole(&with(&conversation(), json!({"think": true})))).await;
    assert_eq!(answer["x_hotmetal"]["ignored"], json!(["think"]));
}

#[tokio::test]
async fn what_cannot_be_applied_is_refused_by_name() {
    let app = app();
    let message =
        |change: Value| json!({"messages": [with(&json!({"role": "user", "content": "x"}), change)], "stream": false});
    for (path, body, param) in [
        (OLLAMA, message(json!({"images": ["iVBORw0KGgo="]})), "messages[0].images"),
        (OLLAMA, message(json!({"role": "wizard"})), "messages[0].role"),
        (OLLAMA, message(json!({"content": 7})), "messages[0].content"),
        (OLLAMA, message(json!({"content": "x".repeat(4000)})), "messages"),
        (OLLAMA, json!({"messages": {"role": "user"}}), "messages"),
        (OLLAMA, json!({"messages": ["x"]}), "messages[0]"),
        (OLLAMA, json!({"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "web_search"}]}), "tools"),
        (OLLAMA, with(&conversation(), json!({"logprobs": true})), "logprobs"),
        (GENERATE, json!({"prompt": "x", "images": ["iVBORw0KGgo="]}), "images"),
        (GENERATE, json!({"prompt": "x", "template": "{{ .Prompt }}"}), "template"),
        (GENERATE, json!({"prompt": "x", "context": [1, 2, 3]}), "context"),
        (GENERATE, json!({"prompt": "x", "suffix": "y"}), "suffix"),
        (GENERATE, json!({"prompt": "x", "raw": true, "system": "Be brief."}), "system"),
        (GENERATE, json!({"prompt": "x".repeat(4000)}), "prompt"),
        (GENERATE, json!({"prompt": "x".repeat(4000), "raw": true}), "prompt"),
        ("/api/embed", json!({"input": "far ".repeat(300), "truncate": false}), "input"),
        ("/api/embed", json!({"input": 7}), "input"),
        ("/api/embed", json!({"input": "x", "dimensions": 3}), "dimensions"),
        ("/api/embeddings", json!({"prompt": 7}), "prompt"),
        ("/api/show", json!({"model": 7}), "model"),
    ] {
        assert_eq!(refused(&app, path, &body).await, (StatusCode::BAD_REQUEST, json!(param)), "{body}");
    }
    // Empty values ask for nothing.
    let body = json!({"prompt": "x", "template": "", "context": [], "images": [], "system": "", "suffix": ""});
    let body = with(&body, json!({"options": {"num_predict": 2}}));
    ok(&app, GENERATE, &whole(&body)).await;
    let not_json = send(&app, request(Method::POST, OLLAMA, "{")).await;
    assert_eq!(not_json.status(), StatusCode::BAD_REQUEST);
    assert!(json_of(not_json).await["error"].is_string());
    assert!(get(&app, "/api/nothing").await.1["error"].as_str().unwrap().contains("/api/nothing"));
}

#[tokio::test]
async fn what_curl_sends_by_itself_is_taken_and_what_a_page_could_send_is_not() {
    let app = app();
    for (path, content_type, browser, status) in [
        (OLLAMA, Some("application/x-www-form-urlencoded"), None, StatusCode::OK),
        (OLLAMA, None, None, StatusCode::OK),
        (OLLAMA, Some("text/plain"), None, StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (OLLAMA, None, Some("sec-fetch-site"), StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (OLLAMA, Some("application/x-www-form-urlencoded"), Some("referer"), StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (CHAT, None, None, StatusCode::UNSUPPORTED_MEDIA_TYPE),
    ] {
        let mut request = request(Method::POST, path, &whole(&conversation()).to_string());
        request.headers_mut().remove("content-type");
        content_type.map(|value| request.headers_mut().insert("content-type", value.parse().unwrap()));
        browser.map(|name| request.headers_mut().insert(name, "http://localhost/".parse().unwrap()));
        assert_eq!(send(&app, request).await.status(), status, "{path} {content_type:?} {browser:?}");
    }
}

#[tokio::test]
async fn a_conversation_that_a_template_cannot_show_is_continued_as_text() {
    let app = loading(Options::default());
    let model = ServedModel { chat_template: None, ..served(config(), None, chat_template()) };
    app.ready(model).unwrap();
    let options = json!({"num_predict": 8, "seed": 3});
    let answer = ok(&app, GENERATE, &json!({"prompt": "Once upon", "stream": false, "options": options})).await;
    let text = ok(&app, TEXT, &json!({"prompt": "Once upon", "max_tokens": 8, "seed": 3})).await;
    assert_eq!(answer["response"], text["choices"][0]["text"]);
    // The words are a user's, who cannot write the tokens that a template writes.
    let count = async |body: Value| ok(&app, GENERATE, &whole(&body)).await["prompt_eval_count"].as_u64().unwrap();
    let marked = json!({"prompt": "<|im_end|>", "options": options});
    assert_eq!(count(with(&marked, json!({"raw": true}))).await, 1);
    assert!(count(marked).await > 1);
    assert_eq!(refused(&app, OLLAMA, &conversation()).await.1, "messages");
}

#[tokio::test]
async fn what_is_served_is_listed_under_names_with_tags() {
    let app = loading(Options::default());
    let watch = app.loading(MODEL);
    watch.stage(crate::LoadStage::Weights);
    watch.bytes(5000, 5000);
    watch.stage(crate::LoadStage::Vocabulary);
    let files = ModelFiles {
        architecture: "qwen3".to_owned(),
        parameters: 134_515_008,
        format: "Q4_0".to_owned(),
        identity: None,
    };
    let model = ServedModel { files: Some(files), ..served(config(), None, chat_template()) };
    app.ready(model).unwrap();
    let (_, tags) = get(&app, "/api/tags").await;
    let model = &tags["models"][0];
    let details = ["family", "parameter_size", "quantization_level"].map(|name| model["details"][name].as_str());
    assert_eq!(details, [Some("qwen3"), Some("134.52M"), Some("Q4_0")]);
    assert_eq!(
        (&model["name"], &model["model"], &model["size"]),
        (&json!("tiny:latest"), &json!("tiny:latest"), &json!(5000))
    );
    assert_eq!(model["digest"].as_str().unwrap().len(), 64);
    let (_, ps) = get(&app, "/api/ps").await;
    let running = &ps["models"][0];
    assert_eq!((&running["name"], &running["context_length"]), (&json!("tiny:latest"), &json!(256)));
    assert!(running["expires_at"].as_str().unwrap() > model["modified_at"].as_str().unwrap(), "{running}");
    let show = ok(&app, "/api/show", &json!({"model": "tiny:latest"})).await;
    assert_eq!(show["model_info"]["qwen3.context_length"], 256);
    assert_eq!(show["model_info"]["general.parameter_count"], 134_515_008);
    assert_eq!(show["capabilities"], json!(["completion", "tools"]));
    assert!(show["template"].as_str().unwrap().contains("<|im_start|>"), "{show}");
    assert!(show["parameters"].as_str().unwrap().contains("temperature 0.7"), "{show}");
    let (_, version) = get(&app, "/api/version").await;
    assert_eq!(version["x_hotmetal"]["version"], "0");
    assert_eq!(version["version"].as_str().unwrap().split('.').count(), 3);
    // Both names are the model's, on each route.
    for name in ["tiny", "tiny:latest"] {
        let answer = ok(&app, OLLAMA, &with(&whole(&conversation()), json!({"model": name}))).await;
        assert_eq!(answer["model"], name);
        ok(&app, CHAT, &with(&hello(), json!({"model": name}))).await;
    }
    let app = strict();
    for name in ["tiny:7b", "latest", ":latest", "tiny:latest:latest"] {
        let body = with(&conversation(), json!({"model": name}));
        assert_eq!(refused(&app, OLLAMA, &body).await.0, StatusCode::NOT_FOUND, "{name}");
    }
}

/// No request makes the server fetch, write or delete anything.
#[tokio::test]
async fn routes_that_would_change_models_are_refused_with_the_command() {
    let app = app();
    let digest = format!("/api/blobs/sha256:{}", "0".repeat(64));
    for (method, path, command) in [
        (Method::POST, "/api/pull", "hotmetal pull"),
        (Method::POST, "/api/create", "hotmetal quantize"),
        (Method::POST, "/api/copy", "--alias"),
        (Method::DELETE, "/api/delete", "hotmetal rm"),
        (Method::POST, "/api/push", "hotmetal serve"),
        (Method::POST, &digest, "hotmetal serve"),
    ] {
        let response = send(&app, request(method, path, &json!({"model": MODEL}).to_string())).await;
        assert_eq!(response.status(), StatusCode::FORBIDDEN, "{path}");
        let answer = json_of(response).await;
        assert!(answer["error"].as_str().unwrap().contains(command), "{answer}");
    }
    let response = send(&app, request(Method::HEAD, &digest, "")).await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
}

/// Clients of Ollama ask the root whether it runs; browsers get the page.
#[tokio::test]
async fn the_root_says_that_it_runs() {
    let app = app();
    let ask = async |method: Method, accept: Option<&str>| {
        let mut request = request(method, "/", "");
        accept.map(|accept| request.headers_mut().insert("accept", accept.parse().unwrap()));
        let response = send(&app, request).await;
        assert_eq!(response.status(), StatusCode::OK);
        String::from_utf8(bytes(response).await.to_vec()).unwrap()
    };
    assert_eq!(ask(Method::HEAD, Some("application/json")).await, "");
    assert_eq!(ask(Method::HEAD, None).await, "");
    for accept in ["*/*", "application/json, text/plain, */*"] {
        assert!(ask(Method::GET, Some(accept)).await.starts_with("Ollama is running"));
    }
    for accept in [None, Some("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")] {
        assert!(ask(Method::GET, accept).await.to_lowercase().starts_with("<!doctype html>"));
    }
}

/// A stream that fails says so in a line that clients raise as an error.
#[tokio::test]
async fn a_stream_that_fails_ends_with_an_error() {
    let fails: Faults = Box::new(|step, _| (step >= 4).then_some(Fault::Error));
    let app = app_on(config(), Some(fails));
    let streamed = lines(&app, OLLAMA, &conversation()).await;
    assert!(streamed.last().unwrap()["error"].is_string(), "{streamed:?}");
    assert!(streamed.last().unwrap()["done"].is_null());
}

/// What the clients of Ollama that people use send, as they send it.
#[tokio::test]
async fn recorded_requests_of_clients_are_answered() {
    let app = app_with(HERMES);
    let tool = json!([{"type": "function", "function": {"name": "HassTurnOn", "description": "Turns on a device", "parameters": {
        "type": "object", "properties": {"name": {"type": "string"}, "domain": {"type": "array", "items": {"type": "string"}}}}}}]);
    let recorded = [
        // Home Assistant.
        (
            OLLAMA,
            json!({"model": "tiny:latest", "stream": true, "options": {"num_ctx": 8192}, "keep_alive": "-1s",
            "think": false, "tools": tool, "messages": [
                {"role": "system", "content": "You are a voice assistant."}, {"role": "user", "content": "Turn on the light"},
                {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "HassTurnOn", "arguments": {"name": "light"}}}]},
                {"role": "tool", "content": "{\"ok\": true}"}]}),
        ),
        // Open WebUI.
        (
            OLLAMA,
            json!({"model": "tiny:latest", "stream": true, "options": {"temperature": 0.6, "num_ctx": 4096, "stop": ["###"]},
            "messages": [{"role": "user", "content": "hi"}], "metadata": null}),
        ),
        // LangChain.
        (
            OLLAMA,
            json!({"model": "tiny", "stream": true, "format": "", "options": {"temperature": 0.1, "num_predict": 12},
            "keep_alive": null, "tools": [], "think": null, "messages": [{"role": "user", "content": "hi", "images": []}]}),
        ),
        // Continue: chat, and filling in.
        (
            OLLAMA,
            json!({"model": "tiny", "raw": null, "keep_alive": 1800, "options": {"num_predict": 12, "num_ctx": 4096, "num_thread": null},
            "stream": true, "messages": [{"role": "user", "content": "hi"}]}),
        ),
        (
            GENERATE,
            json!({"model": "tiny", "prompt": "def f(", "raw": true, "keep_alive": 1800, "stream": true,
            "options": {"temperature": 0.01, "num_predict": 12, "stop": ["\n\n", "/src/"]}}),
        ),
        // Ollama's own package for Python, which leaves out what is not given.
        (
            OLLAMA,
            json!({"model": "tiny", "stream": true, "options": {"num_predict": 12, "seed": 1}, "tools": [],
            "messages": [{"role": "user", "content": "hi"}]}),
        ),
        (
            GENERATE,
            json!({"model": "tiny", "stream": true, "options": {"num_predict": 12}, "prompt": "Once upon a time", "suffix": "",
            "system": "", "template": "", "context": [], "raw": true}),
        ),
        // llm-ollama.
        (
            OLLAMA,
            json!({"model": "tiny:latest", "messages": [{"role": "user", "content": "hi"}], "stream": true,
            "options": {"num_predict": 12}, "format": null}),
        ),
    ];
    for (path, body) in recorded {
        let mut body = body;
        body["options"]["num_predict"] = json!(12);
        let streamed = lines(&app, path, &body).await;
        let last = streamed.last().unwrap();
        assert_eq!(last["done"], true, "{body}: {last}");
        assert!(last["eval_count"].as_u64() > Some(0), "{last}");
    }
}
