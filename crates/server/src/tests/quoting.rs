//! An error never repeats what it quotes: a client's name, value or path may be megabytes long.

use serde_json::json;

use super::fields::routes;
use super::*;

/// Far more than any error may have.
const LONG: usize = 6_000;
/// The message, the path of the field and what is always there.
const ERROR_BYTES_MAX: usize = 2048;

/// The value with a long text in the place of each text, number and name of a member, one at a time.
fn with_long_texts(value: &Value, long: &str) -> Vec<Value> {
    match value {
        Value::Object(members) => {
            let mut made = vec![json!(long)];
            for (name, member) in members {
                let replaced = with_long_texts(member, long).into_iter().map(|member| {
                    let mut members = members.clone();
                    members.insert(name.clone(), member);
                    Value::Object(members)
                });
                made.extend(replaced);
                let mut renamed = members.clone();
                renamed.remove(name);
                renamed.insert(long.to_owned(), member.clone());
                made.push(renamed.into());
            }
            made
        }
        Value::Array(items) => {
            let replaced = items.iter().enumerate().flat_map(|(index, item)| {
                with_long_texts(item, long).into_iter().map(move |item| {
                    let mut items = items.clone();
                    items[index] = item;
                    Value::Array(items)
                })
            });
            [json!(long), json!([long])].into_iter().chain(replaced).collect()
        }
        _ => vec![json!(long)],
    }
}

/// A body with `more` members.
fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    let members = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(members);
    body
}

/// What conversations and grammars have inside, in the form of each interface.
fn rich(path: &str, body: &Value) -> Vec<Value> {
    let schema = json!({
        "type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}, "b": {"$ref": "#/$defs/c"}},
        "required": ["a"], "$defs": {"c": {"type": "integer", "multipleOf": 7}},
    });
    let function = json!({"name": "look", "description": "Looks.", "parameters": schema});
    let tools = json!([{"type": "function", "function": function}]);
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    let messages = json!([
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "name": "ann", "content": "Hello there"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "5"},
    ]);
    let format = json!({"type": "json_schema", "json_schema": {"name": "shape", "schema": schema}});
    let made = match path {
        CHAT | "/tokenize" | "/apply-template" | "/v1/chat/completions/input_tokens" => vec![
            json!({
                "messages": messages, "tools": tools,
                "tool_choice": {"type": "function", "function": {"name": "look"}},
            }),
            json!({"messages": messages, "response_format": format}),
            json!({"chat_template_kwargs": {"enable_thinking": true, "tools": 1}}),
        ],
        MESSAGES | COUNT => vec![json!({
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {"a": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "5"}]},
            ],
            "tools": [{"name": "look", "description": "Looks.", "input_schema": schema}],
            "tool_choice": {"type": "tool", "name": "look"},
        })],
        RESPONSES => vec![json!({
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
                {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": "5"},
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]},
            ],
            "tools": [{"type": "function", "name": "look", "parameters": schema}],
            "tool_choice": {"type": "function", "name": "look"},
            "text": {"format": {"type": "json_schema", "name": "shape", "schema": schema}},
        })],
        OLLAMA => vec![json!({
            "messages": messages, "tools": tools, "format": schema, "think": "low", "keep_alive": "5m",
            "options": {"num_predict": 8, "stop": ["x"], "seed": 3},
        })],
        TEXT | "/completion" | INFILL => vec![
            json!({"response_format": format}),
            json!({"structured_outputs": {"choice": ["a", "b"]}}),
            json!({"logit_bias": {"5": 1}, "samplers": ["top_k"], "stop": ["x"], "dry_sequence_breakers": ["y"]}),
        ],
        _ => Vec::new(),
    };
    made.iter().map(|more| with(body, more)).collect()
}

#[tokio::test]
async fn no_error_repeats_a_long_text() {
    let app = app();
    let mut num_errors = 0;
    for route in routes() {
        let mut longest = (0, String::new());
        for letter in ["m", "é"] {
            let long = letter.repeat(LONG);
            let mut bodies: Vec<Value> = rich(route.path, &route.body);
            bodies.push(route.body.clone());
            let mut bodies: Vec<Value> = bodies.iter().flat_map(|body| with_long_texts(body, &long)).collect();
            for field in route.known.iter().copied().flatten() {
                let values = [json!(long), json!([long]), json!({long.as_str(): long}), json!([{"type": long}])];
                bodies.extend(values.into_iter().map(|value| with(&route.body, &json!({field.name: value}))));
            }
            let grammars = [format!("root ::= {long}"), format!("{long} ::= \"a\""), format!("start: {long}")];
            bodies.extend(grammars.map(|grammar| with(&route.body, &json!({"grammar": grammar}))));
            for body in bodies {
                let response = send(&app, request(Method::POST, route.path, &body.to_string())).await;
                if response.status().is_success() {
                    continue;
                }
                num_errors += 1;
                let bytes = bytes(response).await;
                if bytes.len() > longest.0 {
                    longest = (bytes.len(), String::from_utf8_lossy(&bytes).chars().take(3000).collect());
                }
            }
        }
        assert!(longest.0 <= ERROR_BYTES_MAX, "{}: {} bytes: {}", route.path, longest.0, longest.1);
    }
    assert!(num_errors > 1000, "{num_errors}");
    for (method, path) in [
        (Method::GET, format!("/v1/{}", "m".repeat(LONG))),
        (Method::POST, format!("/v1/models/{}", "m".repeat(LONG))),
        (Method::GET, format!("/v1/models/{}", "m".repeat(LONG))),
        (Method::from_bytes("M".repeat(LONG).as_bytes()).unwrap(), CHAT.to_owned()),
    ] {
        let response = send(&app, request(method, &path, "{}")).await;
        assert!(response.status().is_client_error(), "{}", response.status());
        let bytes = bytes(response).await;
        assert!(bytes.len() <= ERROR_BYTES_MAX, "{}", String::from_utf8_lossy(&bytes));
    }
}

#[tokio::test]
async fn a_shortened_error_says_what_is_wrong_and_what_to_do() {
    let app = app();
    let samplers = json!({"prompt": "a", "samplers": ["m".repeat(1_000_000)]});
    let (_, _, answer) = post(&app, TEXT, &samplers).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("there is no sampler `mmm") && message.contains("there are: "), "{message}");
    let items = json!({"input": [{"type": "m".repeat(1_000_000)}]});
    let (_, _, answer) = post(&app, RESPONSES, &items).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("`input[0]` is an item") && message.ends_with("reasoning are taken"), "{message}");
}
