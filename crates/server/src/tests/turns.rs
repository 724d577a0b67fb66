//! Turns in blocks: Anthropic's messages and OpenAI's responses, on what chat does.

use serde_json::{Value, json};

use super::structure::{HERMES, app_with, weather};
use super::*;
use crate::anthropic;
use crate::choice::Finish;
use crate::error::ApiError;
use crate::generation::Progress;
use crate::reply::Part;
use crate::responses;
use crate::turn::{Block, Blocks, Change, NamedEvent, TurnFormat};

fn messages() -> Value {
    json!({"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 8, "seed": 3})
}

fn input() -> Value {
    json!({"input": "Hello there", "max_output_tokens": 8, "seed": 3})
}

fn with(mut body: Value, change: Value) -> Value {
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    body
}

/// The events of a stream with names, which are their types.
async fn named_events(app: &App, path: &str, body: &Value) -> Vec<Value> {
    let body = with(body.clone(), json!({"stream": true}));
    let response = send(app, request(Method::POST, path, &body.to_string())).await;
    assert_eq!(response.status(), StatusCode::OK, "{body}");
    let bytes = bytes(response).await;
    let text = std::str::from_utf8(&bytes).unwrap();
    let event = |event: &str| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        data
    };
    text.split_terminator("\n\n").map(event).collect()
}

/// What a client of Anthropic's interface makes of a stream.
fn joined_message(events: &[Value]) -> Value {
    let (start, rest) = events.split_first().unwrap();
    assert_eq!(start["type"], "message_start");
    let mut message = start["message"].clone();
    let mut open: Option<usize> = None;
    let mut arguments = String::new();
    for event in rest {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!((event["index"].as_u64(), open), (Some(content.len() as u64), None));
                open = Some(content.len());
                content.push(event["content_block"].clone());
                arguments.clear();
            }
            "content_block_delta" => {
                let index = open.unwrap();
                assert_eq!(event["index"], index);
                let delta = &event["delta"];
                let (field, text) = match delta["type"].as_str().unwrap() {
                    "text_delta" => ("text", &delta["text"]),
                    "thinking_delta" => ("thinking", &delta["thinking"]),
                    "input_json_delta" => {
                        arguments.push_str(delta["partial_json"].as_str().unwrap());
                        continue;
                    }
                    other => panic!("{other}"),
                };
                chat::append(&mut message["content"][index], field, text.as_str().unwrap());
            }
            "content_block_stop" => {
                let index = open.take().unwrap();
                assert_eq!(event["index"], index);
                if message["content"][index]["type"] == "tool_use" {
                    match serde_json::from_str(&arguments) {
                        Ok(input) => message["content"][index]["input"] = input,
                        Err(_) => message["content"][index]["x_hotmetal"] = json!({"partial_json": arguments}),
                    }
                }
            }
            "message_delta" => {
                for field in ["stop_reason", "stop_sequence"] {
                    message[field] = event["delta"][field].clone();
                }
                message["usage"] = event["usage"].clone();
                message["x_hotmetal"] = event["x_hotmetal"].clone();
            }
            "message_stop" => assert_eq!(open, None),
            other => panic!("{other}"),
        }
    }
    assert_eq!(rest.last().unwrap()["type"], "message_stop");
    message
}

/// What a client of OpenAI's responses makes of a stream: the last event has all; the deltas say the same.
fn joined_response(events: &[Value]) -> Value {
    let mut items: Vec<Value> = Vec::new();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
        let index = event["output_index"].as_u64().map(|index| index as usize);
        match event["type"].as_str().unwrap() {
            "response.created" | "response.in_progress" => {
                assert_eq!(event["response"]["status"], "in_progress");
                assert!(number < 2);
            }
            "response.output_item.added" => {
                assert_eq!(index, Some(items.len()));
                items.push(event["item"].clone());
            }
            "response.content_part.added" => items[index.unwrap()]["content"] = json!([event["part"]]),
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                let item = &mut items[index.unwrap()];
                assert_eq!(event["item_id"], item["id"]);
                chat::append(&mut item["content"][0], "text", event["delta"].as_str().unwrap());
            }
            "response.function_call_arguments.delta" => {
                chat::append(&mut items[index.unwrap()], "arguments", event["delta"].as_str().unwrap());
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(event["text"], items[index.unwrap()]["content"][0]["text"]);
            }
            "response.function_call_arguments.done" => {
                assert_eq!(event["arguments"], items[index.unwrap()]["arguments"]);
            }
            "response.content_part.done" => assert_eq!(event["part"], items[index.unwrap()]["content"][0]),
            "response.output_item.done" => {
                let item = &mut items[index.unwrap()];
                item["status"] = json!("completed");
                assert_eq!(event["item"], *item);
            }
            "response.completed" | "response.incomplete" => {
                assert_eq!(number + 1, events.len());
                let output = event["response"]["output"].as_array().unwrap();
                assert_eq!(output.len(), items.len());
                for (found, item) in output.iter().zip(&mut items) {
                    item["status"] = found["status"].clone();
                    assert_eq!(found, item);
                }
            }
            other => panic!("{other}"),
        }
    }
    events.last().unwrap()["response"].clone()
}

/// Without what differs from answer to answer.
fn comparable(mut answer: Value) -> Value {
    answer["x_hotmetal"] = answer["x_hotmetal"]["sampling"].take();
    for name in ["id", "created_at"] {
        answer[name] = Value::Null;
    }
    // What was cached is how often one asked.
    answer["usage"] = json!(answer["usage"]["output_tokens"]);
    for list in ["content", "output"] {
        for item in answer[list].as_array_mut().into_iter().flatten() {
            item["id"] = Value::Null;
            item["call_id"] = Value::Null;
        }
    }
    answer
}

#[tokio::test]
async fn a_turn_says_what_chat_says_whole_and_streamed() {
    let app = app();
    for change in [json!({}), json!({"temperature": 0}), json!({"seed": 12, "top_k": 40, "top_p": 0.9})] {
        let spoken = ok(&app, CHAT, &with(hello(), change.clone())).await;
        let text = &spoken["choices"][0]["message"]["content"];

        let body = with(messages(), change.clone());
        let whole = ok(&app, MESSAGES, &body).await;
        assert_eq!(whole["content"], json!([{"type": "text", "text": text}]));
        assert_eq!((&whole["type"], &whole["role"]), (&json!("message"), &json!("assistant")));
        assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("max_tokens"), &Value::Null));
        let usage = &whole["usage"];
        let counted = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
        assert_eq!(spoken["usage"]["prompt_tokens"], counted);
        let streamed = joined_message(&named_events(&app, MESSAGES, &body).await);
        assert_eq!(comparable(streamed), comparable(whole));

        let body = with(input(), change);
        let whole = ok(&app, RESPONSES, &body).await;
        assert_eq!(whole["output"][0]["content"][0]["text"], *text);
        assert_eq!(
            (&whole["status"], &whole["incomplete_details"]["reason"]),
            (&json!("incomplete"), &json!("max_output_tokens"))
        );
        assert_eq!(whole["usage"]["input_tokens"], spoken["usage"]["prompt_tokens"]);
        let streamed = joined_response(&named_events(&app, RESPONSES, &body).await);
        assert_eq!(comparable(streamed), comparable(whole));
    }
    idle(&app).await;
}

#[tokio::test]
async fn a_stop_sequence_is_named() {
    let app = app();
    let body = with(messages(), json!({"max_tokens": 100, "stop_sequences": ["e", "zq"]}));
    let whole = ok(&app, MESSAGES, &body).await;
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("stop_sequence"), &json!("e")));
    assert!(!whole["content"][0]["text"].as_str().unwrap_or_default().contains('e'));
    let streamed = joined_message(&named_events(&app, MESSAGES, &body).await);
    assert_eq!(comparable(streamed), comparable(whole));
}

#[tokio::test]
async fn a_model_that_has_to_call_calls_in_each_form() {
    let app = app_with(HERMES);
    let function = &weather()[0]["function"];
    let (mut used, mut called) = (0, 0);
    for seed in 0..6 {
        let tool =
            json!({"name": function["name"], "description": "The weather.", "input_schema": function["parameters"]});
        for choice in [json!({"type": "any"}), json!({"type": "tool", "name": "get_weather"})] {
            let change = json!({"tools": [tool], "tool_choice": choice, "seed": seed, "max_tokens": 120});
            let body = with(messages(), change);
            let whole = ok(&app, MESSAGES, &body).await;
            let streamed = joined_message(&named_events(&app, MESSAGES, &body).await);
            assert_eq!(comparable(streamed), comparable(whole.clone()));
            if whole["stop_reason"] == "tool_use" {
                used += 1;
                let call = &whole["content"][0];
                assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("get_weather")));
                assert!(["C", "F"].iter().any(|unit| call["input"]["unit"] == *unit), "{call}");
                assert!(call["id"].as_str().unwrap().starts_with("toolu_"));
            }
        }
        let tool = with(function.clone(), json!({"type": "function"}));
        for choice in [json!("required"), json!({"type": "function", "name": "get_weather"})] {
            let change = json!({"tools": [tool], "tool_choice": choice, "seed": seed, "max_output_tokens": 120});
            let body = with(input(), change);
            let whole = ok(&app, RESPONSES, &body).await;
            let streamed = joined_response(&named_events(&app, RESPONSES, &body).await);
            assert_eq!(comparable(streamed), comparable(whole.clone()));
            if whole["status"] == "completed" {
                called += 1;
                let call = &whole["output"][0];
                assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("get_weather")));
                let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
                assert!(["C", "F"].iter().any(|unit| arguments["unit"] == *unit), "{call}");
            }
        }
    }
    assert!(used > 0 && called > 0, "{used} {called}");
    idle(&app).await;
}

/// A conversation with all that there is, in the three forms: the model sees the same, which is what its template shows.
#[tokio::test]
async fn a_conversation_is_the_same_prompt_in_each_form() {
    let named = HERMES.replace("{{ m.content }}", "{% if m.role == 'tool' %}{{ m.name }}: {% endif %}{{ m.content }}");
    let thoughtless = HERMES.replace("{% if m.reasoning_content %}", "{% if false %}");
    for (template, unshown) in
        [(HERMES, &[(3, "name")][..]), (&named, &[]), (&thoughtless, &[(2, "reasoning_content"), (3, "name")])]
    {
        the_same_prompt_in_each_form(&app_with(template), unshown).await;
    }
}

/// `unshown` are fields of the conversation that the template does not show.
async fn the_same_prompt_in_each_form(app: &App, unshown: &[(usize, &str)]) {
    let function = weather()[0]["function"].clone();
    let mut chat = json!({"tools": weather(), "messages": [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "Weather?\nToday?"},
        {"role": "assistant", "reasoning_content": "I ask.", "content": "One moment.", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{\"unit\":\"C\"}"}}]},
        {"role": "tool", "tool_call_id": "a", "name": "get_weather", "content": "12"},
        {"role": "user", "content": "Thanks."},
    ]});
    for &(index, field) in unshown {
        let answer = ok(app, "/tokenize", &chat).await;
        let ignored = answer["x_hotmetal"]["ignored"].as_array().unwrap();
        assert!(ignored.contains(&json!(format!("messages[{index}].{field}"))), "{answer}");
        chat["messages"][index].as_object_mut().unwrap().remove(field);
    }
    let expected = ok(app, "/tokenize", &chat).await["count"].clone();
    let text = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    let anthropic = json!({
        "system": [text("Be brief."), text("Be kind.")],
        "tools": [{"name": "get_weather", "description": function["description"], "input_schema": function["parameters"]}],
        "messages": [
            {"role": "user", "content": [text("Weather?")]}, {"role": "user", "content": "Today?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "I ask.", "signature": ""}, text("One moment."),
                {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"unit": "C"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [text("12")]}, text("Thanks.")]},
        ],
    });
    assert_eq!(ok(app, COUNT, &anthropic).await["input_tokens"], expected);
    let answer = ok(app, MESSAGES, &with(anthropic, json!({"max_tokens": 2}))).await;
    assert_eq!(answer["usage"]["input_tokens"], expected);
    let tool = with(function, json!({"type": "function"}));
    let responses = json!({
        "instructions": "Be brief.\nBe kind.", "tools": [tool], "max_output_tokens": 2,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?\nToday?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "I ask."}]},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [
                {"type": "output_text", "text": "One moment.", "annotations": [], "logprobs": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "get_weather", "arguments": "{\"unit\":\"C\"}"},
            {"type": "function_call_output", "call_id": "a", "output": "12"},
            {"role": "user", "content": "Thanks."},
        ],
    });
    assert_eq!(ok(app, RESPONSES, &responses).await["usage"]["input_tokens"], expected);
    // A result that is an error says so.
    let failed = json!({"messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": true}]},
    ]});
    let mut fine = failed.clone();
    fine["messages"][2]["content"][0]["is_error"] = json!(false);
    assert_ne!(ok(app, COUNT, &failed).await, ok(app, COUNT, &fine).await);
}

/// Programs tell the model more between two turns: Claude Code behind the user's first text, in a message with the role
/// `system`, and Codex in several of `developer` before it. A template that refuses or drops those still shows the words.
#[tokio::test]
async fn instructions_may_stand_anywhere() {
    const CHECKS: &str = "{% if messages[0].role == 'system' %}S:{{ messages[0].content }};{% set rest = messages[1:] %}\
        {% else %}{% set rest = messages %}{% endif %}{% for m in rest %}{% if m.role == 'system' %}REFUSES{% endif %}\
        {% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('take turns') }}{% endif %}\
        {{ m.role[0] }}:{{ m.content }};{% endfor %}";
    let refuses = CHECKS.replace("REFUSES", "{{ raise_exception('the system speaks first') }}");
    let drops = "{% for m in messages %}{% if loop.first or m.role != 'system' %}{{ m.role[0] }}:{{ m.content }};\
        {% endif %}{% endfor %}";
    let none =
        "{% for m in messages %}{% if m.role != 'system' %}{{ m.role[0] }}:{{ m.content }};{% endif %}{% endfor %}";
    let all = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}";
    let messages = |roles: &[(&str, &str)]| -> Value {
        roles.iter().map(|(role, text)| json!({"role": role, "content": text})).collect()
    };
    let codex = messages(&[("developer", "A"), ("developer", "B"), ("user", "c"), ("user", "d")]);
    let claude = messages(&[("system", "A"), ("user", "b"), ("system", "C")]);
    let between = messages(&[("user", "a"), ("assistant", "b"), ("system", "C"), ("user", "d")]);
    for (template, shown) in [
        (&*refuses, ["S:A\n\nB;u:c\nd;", "S:A;u:b\nC;", "u:a;a:b;u:C\nd;"]),
        (drops, ["s:A\n\nB;u:c;u:d;", "s:A;u:b;u:C;", "u:a;a:b;u:C;u:d;"]),
        (none, ["u:A\n\nB\n\nc;u:d;", "u:A\n\nb;u:C;", "u:a;a:b;u:C\n\nd;"]),
        (all, ["s:A;s:B;u:c;u:d;", "s:A;u:b;s:C;", "u:a;a:b;s:C;u:d;"]),
    ] {
        let app = app_with(template);
        for (conversation, shown) in [&codex, &claude, &between].into_iter().zip(shown) {
            let prompt = ok(&app, "/apply-template", &json!({"messages": conversation})).await;
            assert_eq!(prompt["prompt"], shown, "{template}");
        }
        let expected = ok(&app, "/tokenize", &json!({"messages": claude})).await["count"].clone();
        let rest = messages(&[("user", "b"), ("system", "C")]);
        let anthropic = json!({"system": "A", "messages": rest});
        assert_eq!(ok(&app, COUNT, &anthropic).await["input_tokens"], expected, "{template}");
        assert_eq!(ok(&app, COUNT, &json!({"messages": claude})).await["input_tokens"], expected, "{template}");
        let expected = ok(&app, "/tokenize", &json!({"messages": codex})).await["count"].clone();
        let answer = ok(&app, RESPONSES, &json!({"input": codex, "max_output_tokens": 2})).await;
        assert_eq!(answer["usage"]["input_tokens"], expected, "{template}");
    }
    // Nobody else speaks: what would be answered?
    let (status, _, answer) = post(&app_with(none), CHAT, &json!({"messages": messages(&[("system", "A")])})).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("messages")));
}

#[tokio::test]
async fn a_wrong_part_of_a_turn_is_named_in_its_own_words() {
    let app = app_with(HERMES);
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let user_says = |text: &str| json!({"role": "user", "content": text});
    let said =
        |block: Value| json!({"messages": [user_says("x"), {"role": "assistant", "content": [block]}, user_says("y")]});
    let tools = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    for (change, param) in [
        (json!({"messages": []}), "messages"),
        (json!({"messages": ["x"]}), "messages[0]"),
        (json!({"messages": [{"role": "wizard", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "system", "content": [{"type": "image"}]}]}), "messages[0].content[0]"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (user(json!([{"type": "image", "source": {}}])), "messages[0].content[0]"),
        (user(json!([{"type": "text"}])), "messages[0].content[0].text"),
        (user(json!([{"type": "tool_result", "content": "x"}])), "messages[0].content[0].tool_use_id"),
        (said(json!({"type": "tool_use", "name": "f", "input": {}})), "messages[1].content[0].id"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": null}), "max_tokens"),
        (user(json!("x ".repeat(4000))), "messages"),
        (json!({"stop_sequences": "x"}), "stop_sequences"),
        (json!({"system": [{"type": "image"}]}), "system[0]"),
        (json!({"thinking": {"type": "sometimes"}}), "thinking.type"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 8}}), "thinking.budget_tokens"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"tools": [{"name": "two words", "input_schema": {}}]}), "tools[0].name"),
        (json!({"tools": [{"name": "f", "input_schema": 7}]}), "tools[0].input_schema"),
        (json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}), "tools"),
        (json!({"tools": tools, "tool_choice": {"type": "tool", "name": "g"}}), "tool_choice"),
        (json!({"tools": tools, "tool_choice": {"type": "auto", "name": "f"}}), "tool_choice.name"),
    ] {
        let (status, _, answer) = post(&app, MESSAGES, &with(messages(), change.clone())).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{change}: {answer}");
        assert_eq!((&answer["type"], &answer["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
        assert_eq!(answer["error"]["param"], param, "{change}: {answer}");
    }
    for (change, param) in [
        (json!({"input": []}), "input"),
        (json!({"input": ["x"]}), "input[0]"),
        (json!({"input": [{"role": "wizard", "content": "x"}]}), "input[0].role"),
        (json!({"input": [{"role": "user"}]}), "input[0].content"),
        (json!({"input": [{"type": 7, "role": "user", "content": "x"}]}), "input[0].type"),
        (json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}), "input[0].content[0]"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0]"),
        (json!({"input": "x ".repeat(4000)}), "input"),
        (json!({"tools": [{"type": "web_search"}]}), "tools"),
        (json!({"tools": [{"type": "function", "name": "two words"}]}), "tools[0].name"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"text": {"format": {"type": "yaml"}}}), "text.format.type"),
        (json!({"text": {"format": {"type": "json_schema", "name": "x"}}}), "text.format.schema"),
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
    ] {
        let (status, _, answer) = post(&app, RESPONSES, &with(input(), change.clone())).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{change}: {answer}");
        assert_eq!(answer["error"]["param"], param, "{change}: {answer}");
    }
}

/// However many calls there were: what costs a time for each pair of them keeps a processor for minutes with one body.
#[tokio::test]
async fn the_call_of_a_result_is_found_at_once() {
    let app = app();
    let seconds = async |calls: usize, results: usize| {
        let uses: Vec<_> = (0..calls)
            .map(|index| json!({"type": "tool_use", "id": format!("{index:06}"), "name": "f", "input": {}}))
            .collect();
        let results: Vec<_> =
            (0..results).map(|index| json!({"type": "tool_result", "tool_use_id": format!("x{index:05}")})).collect();
        let body = with(
            messages(),
            json!({"messages": [
                {"role": "user", "content": "x"}, {"role": "assistant", "content": uses}, {"role": "user", "content": results},
            ]}),
        );
        let begun = std::time::Instant::now();
        let (status, _, answer) = post(&app, MESSAGES, &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
        begun.elapsed().as_secs_f64()
    };
    // As many blocks, with few pairs and with many.
    let (few, many) = (seconds(10, 60_000).await + seconds(60_000, 10).await, seconds(60_000, 60_000).await);
    assert!(many < 5.0 * few, "{many} s, and apart from each other {few} s");
}

#[tokio::test]
async fn errors_on_anthropics_routes_have_its_form() {
    let app = strict();
    let (status, _, answer) = post(&app, MESSAGES, &with(messages(), json!({"model": "claude"}))).await;
    assert_eq!((status, &answer["error"]["type"]), (StatusCode::NOT_FOUND, &json!("not_found_error")));
    for (method, path, kind) in
        [(Method::GET, MESSAGES, "invalid_request_error"), (Method::POST, "/v1/messages/batches", "not_found_error")]
    {
        let answer = json_of(send(&app, request(method, path, "{}")).await).await;
        assert_eq!((&answer["type"], &answer["error"]["type"]), (&json!("error"), &json!(kind)), "{path}");
    }
    let key = "a-key-of-some-length";
    let app = loading(Options { api_keys: vec![crate::ApiKey::new(key).unwrap()], ..Options::default() });
    serve_on(&app, config(), None);
    let ask = |shown: Option<&str>| {
        let mut request = request(Method::POST, MESSAGES, &messages().to_string());
        shown.map(|shown| request.headers_mut().insert("x-api-key", shown.parse().unwrap()));
        request
    };
    let refused = send(&app, ask(None)).await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(json_of(refused).await["error"]["type"], "authentication_error");
    assert_eq!(send(&app, ask(Some(key))).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn an_error_in_a_stream_is_an_event_in_each_form() {
    let fault = || -> Option<engine::null::Faults> {
        Some(Box::new(|step, _| (step == 3).then_some(engine::null::Fault::Error)))
    };
    let events = named_events(&app_on(config(), fault()), MESSAGES, &messages()).await;
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("api_error")));
    let events = named_events(&app_on(config(), fault()), RESPONSES, &input()).await;
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]["error"]["code"]), (&json!("response.failed"), &json!("step_failed")));
}

#[tokio::test]
async fn a_text_keeps_to_its_schema_in_responses() {
    let app = app();
    let properties = json!({"yes": {"type": "boolean"}});
    let schema =
        json!({"type": "object", "properties": properties, "required": ["yes"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "name": "answer", "schema": schema, "strict": true});
    let body = with(input(), json!({"text": {"format": format}, "max_output_tokens": 60}));
    let answer = ok(&app, RESPONSES, &body).await;
    assert_eq!(
        answer["text"]["format"],
        json!({"name": "answer", "schema": schema, "strict": true, "type": "json_schema"})
    );
    if answer["status"] == "completed" {
        let value: Value = serde_json::from_str(answer["output"][0]["content"][0]["text"].as_str().unwrap()).unwrap();
        assert!(value["yes"].is_boolean());
    }
}

/// A reply of all kinds of parts, in pieces: what a stream's client puts together is the whole answer.
#[test]
fn blocks_of_all_kinds_are_streamed_as_they_are_whole() {
    let call = |name: &str| Part::Call { name: name.to_owned() };
    let replies: [Vec<Part>; 5] = [
        vec![],
        vec![Part::Reasoning("a".into()), Part::Reasoning("b".into()), Part::Content("c".into())],
        vec![Part::Content("x".into()), call("f"), Part::Arguments("{\"k\":".into()), Part::Arguments("1}".into())],
        vec![call("f"), Part::Arguments("{}".into()), call("f"), Part::Arguments("{\"a\": [2]}".into())],
        vec![Part::Reasoning("t".into()), call("g"), Part::Arguments("{\"cut".into())],
    ];
    let progress = Progress {
        prompt_tokens: 7,
        cached_tokens: 2,
        generated_tokens: 5,
        reasoning_tokens: 3,
        total_time: Duration::from_millis(3),
        prompt_time: Duration::from_millis(1),
        decode_time: Duration::from_millis(2),
        facts: json!({"sampling": {}}),
    };
    for reply in replies {
        for reason in ["stop", "length", "tool_calls"] {
            let finish = Finish { reason, stop: Value::Null, failure: None };
            let (streamed, whole) = run(anthropic::tests_format(), &reply, &finish, &progress);
            assert_eq!(comparable(joined_message(&streamed)), comparable(whole), "{reply:?}");
            let (streamed, whole) = run(responses::tests_format(), &reply, &finish, &progress);
            let joined = joined_response(&streamed);
            assert_eq!(joined["usage"]["output_tokens_details"]["reasoning_tokens"], 3);
            assert_eq!(comparable(joined), comparable(whole), "{reply:?}");
        }
    }
    let error = ApiError::unavailable("draining", "x");
    assert_eq!(anthropic::tests_format().failed(&[], &error)[0].data["error"]["type"], "overloaded_error");
}

fn run(mut format: impl TurnFormat, reply: &[Part], finish: &Finish, progress: &Progress) -> (Vec<Value>, Value) {
    let mut events = format.begin();
    let mut blocks = Blocks::default();
    let mut changed = |blocks: &[Block], change: Change| events.extend(format.changed(blocks, change, progress));
    reply.iter().for_each(|part| blocks.push(part.clone(), &mut changed));
    blocks.close(&mut changed);
    events.extend(format.end(blocks.all(), finish, progress));
    let data = |NamedEvent { name, data }: NamedEvent| {
        assert_eq!(data["type"], name);
        data
    };
    (events.into_iter().map(data).collect(), format.whole(blocks.all(), finish, progress))
}

/// A template that has opened the thought: all that the model says is one.
#[tokio::test]
async fn thoughts_are_blocks_of_their_own_and_end_with_their_budget() {
    let app =
        app_with(&HERMES.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}"));
    let body = with(messages(), json!({"thinking": {"type": "enabled", "budget_tokens": 3}, "max_tokens": 20}));
    let whole = ok(&app, MESSAGES, &body).await;
    assert_eq!((&whole["stop_reason"], &whole["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(3)));
    assert_eq!((&whole["content"][0]["type"], whole["content"].as_array().unwrap().len()), (&json!("thinking"), 1));
    let streamed = joined_message(&named_events(&app, MESSAGES, &body).await);
    assert_eq!(comparable(streamed), comparable(whole));
    let answer = ok(&app, RESPONSES, &input()).await;
    assert_eq!(answer["output"][0]["type"], "reasoning");
    assert_eq!(answer["usage"]["output_tokens_details"]["reasoning_tokens"], answer["usage"]["output_tokens"]);
    idle(&app).await;
}

const THINKS_ALWAYS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                             {% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";

/// As Mistral's templates do, of which Nemo's is one.
const NINE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.tool_calls %}\
                    {% for c in m.tool_calls %}{% if c.id is not defined or c.id | length != 9 %}\
                    {{ raise_exception('ids of calls have 9 letters') }}{% endif %}[TOOL_CALLS][{\"name\": \
                    \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}, \"id\": \"{{ c.id }}\"}]\
                    {% endfor %}{% elif m.role == 'tool' %}{% if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}\
                    {{ raise_exception('ids of results have 9 letters') }}{% endif %}[RESULT {{ m.tool_call_id }}]{{ m.content }}\
                    {% else %}{{ m.role }}: {{ m.content }}\n{% endif %}{% endfor %}";

/// Whatever a model says on whatever route, its client can send it back as it came and go on.
#[tokio::test]
async fn what_a_route_emits_every_route_takes_back() {
    let gemma = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}\
                 <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";
    let call = |arguments: Value| {
        json!({"id": "call_0123456789abcdef", "type": "function", "index": 0,
            "function": {"name": "get_weather", "arguments": arguments}})
    };
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "name": "get_weather", "content": "12"});
    let long = "call_0123456789abcdef";
    let said: Vec<Vec<Value>> = vec![
        vec![json!({"role": "assistant", "content": "Fine.", "refusal": null, "annotations": [], "tool_calls": []})],
        vec![json!({"role": "assistant", "content": "Fine.", "reasoning_content": "Hm.", "reasoning": "Hm."})],
        vec![json!({"role": "assistant", "content": null, "refusal": "I will not."})],
        vec![json!({"role": "assistant", "content": null})],
        vec![
            json!({"role": "assistant", "content": null, "tool_calls": [call(json!("{\"unit\": \"C\"}"))]}),
            result(long),
        ],
        vec![json!({"role": "assistant", "tool_calls": [call(json!(""))]}), result(long)],
        vec![json!({"role": "assistant", "content": "", "tool_calls": [call(json!("{\"unit\": "))]}), result(long)],
        vec![
            json!({"role": "assistant", "content": [], "tool_calls": [call(json!({})), {"id": "b", "function": {"name": "get_weather"}}]}),
            result(long),
            result("b"),
        ],
    ];
    for template in [HERMES, THINKS_ALWAYS, NINE, gemma] {
        let app = app_with(template);
        for said in &said {
            let mut messages = vec![json!({"role": "user", "content": "Weather?"})];
            messages.extend(said.iter().cloned());
            messages.push(json!({"role": "user", "content": "And now?"}));
            let body = json!({"messages": messages, "tools": weather(), "max_tokens": 2, "seed": 1});
            let answer = ok(&app, CHAT, &body).await;
            // And the answer to that.
            messages.push(answer["choices"][0]["message"].clone());
            messages.push(json!({"role": "user", "content": "x"}));
            ok(&app, CHAT, &json!({"messages": messages, "max_tokens": 2, "seed": 1})).await;
        }
        let tool_use = json!({"type": "tool_use", "id": "toolu_0123456789", "name": "get_weather", "input": {}});
        let messages = json!([
            {"role": "user", "content": "x"}, {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "y"}, tool_use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_0123456789", "content": "12"}]},
        ]);
        let answer = ok(&app, MESSAGES, &json!({"messages": messages, "max_tokens": 2, "seed": 1})).await;
        let again = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": answer["content"]},
            {"role": "user", "content": "y"}]);
        ok(&app, MESSAGES, &json!({"messages": again, "max_tokens": 2, "seed": 1})).await;
        let input = json!([{"role": "user", "content": "x"},
            {"type": "function_call", "id": "fc_1", "call_id": "call_0123456789abcdef", "name": "get_weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_0123456789abcdef", "output": "12"}]);
        let answer = ok(&app, RESPONSES, &json!({"input": input, "max_output_tokens": 2, "seed": 1})).await;
        let mut again = vec![json!({"role": "user", "content": "x"})];
        again.extend(answer["output"].as_array().unwrap().iter().cloned());
        again.push(json!({"role": "user", "content": "y"}));
        ok(&app, RESPONSES, &json!({"input": again, "max_output_tokens": 2, "seed": 1})).await;
    }
}

#[tokio::test]
async fn ids_of_calls_are_brought_into_the_form_that_the_template_takes() {
    let app = app_with(NINE);
    let prompt = async |id: &str| {
        let call = json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let messages = json!([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": id, "content": "y"}]);
        ok(&app, "/apply-template", &json!({"messages": messages})).await["prompt"].as_str().unwrap().to_owned()
    };
    assert!(prompt("abcdefgh9").await.contains("[RESULT abcdefgh9]"));
    let long = prompt("call_0123456789abcdef").await;
    assert_eq!(long, prompt("call_0123456789abcdef").await);
    let id = long.split_once("[RESULT ").unwrap().1.split(']').next().unwrap();
    assert!(long.contains(&format!("\"id\": \"{id}\"")), "a call and its result agree: {long}");
}

#[tokio::test]
async fn an_answer_goes_on_with_given_words_on_every_route() {
    let app = app_with(HERMES);
    let messages = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "Once upon a "}]);
    let body = json!({"messages": messages, "continue_final_message": true, "add_generation_prompt": false});
    let rendered = ok(&app, "/apply-template", &body).await["prompt"].clone();
    assert_eq!(rendered, "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\nOnce upon a ");
    let more = json!({"max_tokens": 6, "seed": 4, "temperature": 1});
    let chat = ok(&app, CHAT, &with(body, more.clone())).await;
    let text = ok(&app, TEXT, &with(more.clone(), json!({"prompt": rendered}))).await;
    assert_eq!(chat["choices"][0]["message"]["content"], text["choices"][0]["text"]);
    let turn = ok(&app, MESSAGES, &with(more.clone(), json!({"messages": messages}))).await;
    assert_eq!(turn["content"][0]["text"], text["choices"][0]["text"]);
    let asked =
        json!({"input": messages, "continue_final_message": true, "max_output_tokens": 6, "seed": 4, "temperature": 1});
    let turn = ok(&app, RESPONSES, &asked).await;
    assert_eq!(turn["output"][0]["content"][0]["text"], text["choices"][0]["text"]);
    for (messages, prompted) in [(json!([{"role": "user", "content": "x"}]), false), (messages.clone(), true)] {
        let body = json!({"messages": messages, "continue_final_message": true, "add_generation_prompt": prompted});
        let (status, _, answer) = post(&app, CHAT, &body).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("continue_final_message")));
    }
}

#[tokio::test]
async fn tools_are_told_in_words_where_the_template_shows_none() {
    const PLAIN: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                         {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let app = app_with(PLAIN);
    let call =
        json!({"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{\"unit\":\"C\"}"}});
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "12"}, {"role": "tool", "tool_call_id": "a", "content": "13"}]);
    let rendered = ok(&app, "/apply-template", &json!({"messages": messages, "tools": weather()})).await;
    let prompt = rendered["prompt"].as_str().unwrap();
    assert!(prompt.starts_with("<|im_start|>system\nBe brief.\n\nYou may call functions"), "{prompt}");
    let calls =
        "Let me see.\n<tool_call>\n{\"name\":\"get_weather\",\"arguments\":{\"unit\":\"C\"}}\n</tool_call><|im_end|>";
    assert!(prompt.contains(calls), "{prompt}");
    let results = "user\n<tool_response>\n12\n</tool_response>\n<tool_response>\n13\n</tool_response><|im_end|>";
    assert!(prompt.contains(results), "{prompt}");
    // A model that has to call does, in that form, and its client gets a call.
    let body = json!({"messages": [{"role": "user", "content": "x"}], "tools": weather(), "tool_choice": "required",
        "max_tokens": 200, "seed": 1});
    let answer = ok(&app, CHAT, &body).await;
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "get_weather", "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    // Or not at all.
    let strict = loading(Options { generic_tools: false, ..Options::default() });
    serve_with(&strict, config(), None, ChatTemplate::new(PLAIN).unwrap());
    let (status, _, answer) = post(&strict, CHAT, &body).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("tools")));
    assert!(answer.to_string().contains("--no-generic-tools"));
}
