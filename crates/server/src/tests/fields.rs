//! Every field of every route is applied, taken without effect and reported, or refused by name: the matrix is made from the
//! routes' own lists.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::field_cases::{Case, applied_case};
use super::*;
use crate::fields::{Field, Rule};
use crate::router::BODY_ROUTES;
use crate::{
    anthropic, chat, completions, embeddings, grammar, infill, llama_cpp, ollama, responses, sampling, score,
    token_rules, tokens, tools,
};

/// A route, its fields, and a body that it answers.
pub(super) struct Route {
    pub(super) path: &'static str,
    pub(super) known: Vec<&'static [Field]>,
    pub(super) body: Value,
}

pub(super) fn routes() -> Vec<Route> {
    let conversation = json!([{"role": "user", "content": "Hello there"}]);
    vec![
        Route {
            path: CHAT,
            known: vec![
                sampling::COMMON,
                sampling::FIELDS,
                grammar::FIELDS,
                token_rules::FIELDS,
                tools::FIELDS,
                chat::PROMPT_FIELDS,
                chat::FIELDS,
            ],
            body: hello(),
        },
        Route {
            path: TEXT,
            known: vec![sampling::COMMON, sampling::FIELDS, grammar::FIELDS, token_rules::FIELDS, completions::FIELDS],
            body: json!({"prompt": "Once upon a time", "max_tokens": 8, "seed": 3}),
        },
        Route {
            path: MESSAGES,
            known: vec![anthropic::PROMPT_FIELDS, anthropic::FIELDS],
            body: json!({"messages": conversation, "max_tokens": 8, "seed": 3}),
        },
        Route { path: COUNT, known: vec![anthropic::PROMPT_FIELDS], body: json!({"messages": conversation}) },
        Route {
            path: RESPONSES,
            known: vec![responses::FIELDS],
            body: json!({"input": "Hello there", "max_output_tokens": 8, "seed": 3}),
        },
        Route {
            path: INFILL,
            known: vec![sampling::COMMON, llama_cpp::COMMON, grammar::FIELDS, infill::FIELDS],
            body: json!({"input_prefix": "Once upon a time", "input_suffix": " and so", "n_predict": 8, "seed": 3}),
        },
        Route {
            path: "/completion",
            known: vec![sampling::COMMON, llama_cpp::COMMON, grammar::FIELDS, token_rules::FIELDS, llama_cpp::FIELDS],
            body: json!({"prompt": "Once upon a time", "n_predict": 8, "seed": 3}),
        },
        Route { path: EMBED, known: vec![embeddings::FIELDS], body: json!({"input": "Once upon a time"}) },
        Route {
            path: POOLING,
            known: vec![embeddings::FIELDS, embeddings::POOLING],
            body: json!({"input": "Once upon a time"}),
        },
        Route {
            path: OLLAMA,
            known: vec![ollama::COMMON, ollama::CHAT],
            body: json!({
                "messages": conversation, "stream": false, "options": {"num_predict": 8, "seed": 3},
            }),
        },
        Route {
            path: "/api/generate",
            known: vec![ollama::COMMON, ollama::GENERATE],
            body: json!({"prompt": "Once upon", "stream": false, "options": {"num_predict": 8, "seed": 3}}),
        },
        Route { path: "/api/embed", known: vec![ollama::EMBED], body: json!({"input": "Once upon a time"}) },
        Route { path: "/api/embeddings", known: vec![ollama::EMBEDDINGS], body: json!({"prompt": "Once upon a time"}) },
        Route { path: "/api/show", known: vec![ollama::SHOW], body: json!({"model": MODEL}) },
        Route {
            path: "/v1/score",
            known: vec![score::COMMON, score::SCORE],
            body: json!({"text_1": "Once upon a time", "text_2": ["Twice", "Once upon"]}),
        },
        Route {
            path: "/v1/rerank",
            known: vec![score::COMMON, score::RERANK],
            body: json!({"query": "Once upon a time", "documents": ["Twice", "Once upon", "far"]}),
        },
        Route {
            path: "/tokenize",
            known: vec![tokens::TOKENIZE, chat::PROMPT_FIELDS],
            body: json!({"messages": conversation}),
        },
        Route { path: "/detokenize", known: vec![tokens::DETOKENIZE], body: json!({"tokens": [5, 2, 6]}) },
        Route {
            path: "/apply-template",
            known: vec![tokens::APPLY_TEMPLATE, chat::PROMPT_FIELDS],
            body: json!({"messages": conversation}),
        },
        Route {
            path: "/v1/chat/completions/input_tokens",
            known: vec![tokens::APPLY_TEMPLATE, chat::PROMPT_FIELDS],
            body: json!({"messages": conversation}),
        },
    ]
}

/// Names that other servers know and no route here does.
const FOREIGN: [&str; 11] = [
    "prompt_cache_key",
    "x-vendor",
    "temprature",
    "best",
    "num_predict",
    "cfg_scale",
    "grammar_lazy",
    "lora",
    "cachePrompt",
    "Model",
    "",
];

/// The document is made of the same lists, and of no other route.
#[test]
fn the_matrix_and_the_document_have_the_same_routes() {
    let names = |known: &[&[Field]]| known.iter().copied().flatten().map(|field| field.name).collect::<BTreeSet<_>>();
    let tested: Vec<_> = routes().iter().map(|route| (route.path, names(&route.known))).collect();
    assert_eq!(tested.len(), BODY_ROUTES.len());
    for route in BODY_ROUTES {
        assert!(tested.contains(&(route.path, names(route.known))), "{}", route.path);
    }
}

/// Every path of the document is a route, which takes that method and no other.
#[tokio::test]
async fn the_document_is_served_and_its_paths_are_routes() {
    let app = app();
    let (status, document) = get(&app, "/openapi.json").await;
    assert_eq!(status, StatusCode::OK);
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{model}", MODEL);
        for (method, taken) in [(Method::GET, "get"), (Method::POST, "post")] {
            let status = send(&app, request(method, &path, "{}")).await.status();
            assert_eq!(status != StatusCode::METHOD_NOT_ALLOWED, !methods[taken].is_null(), "{taken} {path}");
            assert_ne!(status, StatusCode::NOT_FOUND, "{path}");
        }
    }
}

/// The object of an error that has its parameter and its code.
fn error_of(answer: &Value) -> &Value {
    if answer["error"].is_object() { &answer["error"] } else { answer }
}

#[tokio::test]
async fn every_field_of_every_route_is_applied_reported_or_refused_by_name() {
    let app = super::infill::app_with_marks();
    let routes = routes();
    let mut all: BTreeSet<&str> = FOREIGN.into();
    all.extend(routes.iter().flat_map(|route| route.known.iter().copied().flatten()).map(|field| field.name));
    for Route { path, known, body } in &routes {
        let before = ok(&app, path, body).await;
        for name in &all {
            let field = known.iter().copied().flatten().find(|field| field.name == *name);
            let rule = field.map(|field| field.rule);
            let (with, value, shows) = match rule {
                Some(Rule::Applied) => match applied_case(path, name) {
                    Some(Case { with, value, shows }) => (with, value, Some(shows)),
                    None => continue,
                },
                _ => (json!({}), json!(12345), None),
            };
            let mut body = body.clone();
            body.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
            body[name] = value;
            let (status, _, answer) = post(&app, path, &body).await;
            match shows {
                Some(shows) => {
                    assert_eq!(status, StatusCode::OK, "{path} {name}: {answer}");
                    assert!(shows(&before, &answer), "{path} does not show `{name}`: {answer}");
                }
                None if matches!(rule, Some(Rule::Hint { .. })) || (field.is_none() && status == StatusCode::OK) => {
                    assert_eq!(status, StatusCode::OK, "{path} {name}: {answer}");
                    let ignored = answer["x_hotmetal"]["ignored"].as_array();
                    assert!(ignored.is_some_and(|names| names.contains(&json!(name))), "{path} {name}: {answer}");
                    // And it had no effect.
                    let all = |answer: &Value| {
                        [
                            "choices",
                            "content",
                            "data",
                            "tokens",
                            "prompt",
                            "input_tokens",
                            "message",
                            "response",
                            "embeddings",
                            "embedding",
                            "template",
                            "results",
                        ]
                        .map(|name| answer[name].clone())
                    };
                    assert_eq!(all(&before), all(&answer), "{path} {name}");
                }
                None => {
                    assert_eq!(status, StatusCode::BAD_REQUEST, "{path} {name}: {answer}");
                    let error = error_of(&answer);
                    assert_eq!(error["param"], *name, "{path}: {answer}");
                    assert_eq!(error["code"], "unsupported_parameter");
                }
            }
            // A null is as good as none.
            body[name] = Value::Null;
            let (status, _, answer) = post(&app, path, &body).await;
            let is_needed = (*path == MESSAGES && *name == "max_tokens")
                || [
                    "messages",
                    "tokens",
                    "prompt",
                    "input",
                    "input_prefix",
                    "input_suffix",
                    "text_1",
                    "text_2",
                    "query",
                    "documents",
                ]
                .contains(name);
            if !FOREIGN.contains(name) && !is_needed {
                assert!(
                    status == StatusCode::OK || error_of(&answer)["param"] != *name,
                    "{path} {name}: null: {answer}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_field_of_the_wrong_type_or_range_is_named() {
    let app = super::infill::app_with_marks();
    for Route { path, known, body } in routes() {
        for field in known.iter().copied().flatten().filter(|field| matches!(field.rule, Rule::Applied)) {
            let mut wrong = vec![json!({"a": {"b": [1]}}), json!([[null]]), json!(1e300), json!("\u{0}x")];
            if [
                "prompt",
                "input",
                "system",
                "instructions",
                "content",
                "stop",
                "suffix",
                "input_prefix",
                "input_suffix",
                "response_fields",
                "user",
                "cache_salt",
                "reasoning_effort",
                "guided_regex",
                "guided_choice",
                "bad_words",
                "text_1",
                "text_2",
                "query",
                "documents",
                "grammar",
                "dry_sequence_breakers",
            ]
            .contains(&field.name)
            {
                wrong.pop(); // text is what they are
            }
            if field.name == "stream_options" {
                continue; // without effect but in a stream
            }
            if [
                "options",
                "format",
                "metadata",
                "chat_template_kwargs",
                "output_config",
                "text",
                "reasoning",
                "guided_json",
                "json_schema",
            ]
            .contains(&field.name)
            {
                wrong.remove(0);
            }
            for value in wrong {
                let mut body = body.clone();
                body[field.name] = value.clone();
                if field.name == "top_logprobs" {
                    body["logprobs"] = json!(true);
                }
                if ![EMBED, POOLING].contains(&path)
                    && ["add_special", "parse_special", "add_special_tokens", "content", "prompt"].contains(&field.name)
                {
                    body.as_object_mut().unwrap().remove("messages");
                    if field.name.starts_with("add") || field.name.starts_with("parse") {
                        let text = if field.name == "add_special_tokens" { "prompt" } else { "content" };
                        body[text] = json!("a");
                    }
                }
                let (status, _, answer) = post(&app, path, &body).await;
                let is_other_model = ["model", "name"].contains(&field.name) && value.is_string();
                let expected = if is_other_model { StatusCode::NOT_FOUND } else { StatusCode::BAD_REQUEST };
                assert_eq!(status, expected, "{path} {} {value}: {answer}", field.name);
                let param = error_of(&answer)["param"].as_str().unwrap_or_default();
                let names_it = param.split(['.', '[']).next() == Some(field.name);
                assert!(names_it || param == "messages[0]", "{path} {} {value}: {answer}", field.name);
            }
        }
    }
}

#[tokio::test]
async fn fields_that_contradict_each_other_are_refused() {
    let app = strict();
    let cases = [
        (CHAT, json!({"max_tokens": 3, "max_completion_tokens": 4}), "max_tokens"),
        (CHAT, json!({"top_logprobs": 3}), "top_logprobs"),
        (CHAT, json!({"repeat_penalty": 1.1, "repetition_penalty": 1.2}), "repeat_penalty"),
        (CHAT, json!({"response_format": {"type": "yaml"}}), "response_format.type"),
        (CHAT, json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
        (CHAT, json!({"response_format": {"type": "text", "json_schema": {"a": 1}}}), "response_format.json_schema"),
        (CHAT, json!({"guided_json": {"properties": {"a": {"maxLenght": 2}}}}), "guided_json.properties.a.maxLenght"),
        (CHAT, json!({"guided_jsn": {"type": "object"}}), "guided_jsn"),
        (CHAT, json!({"structured_outputs": {"regex": "("}}), "structured_outputs"),
        (CHAT, json!({"structured_outputs": {"grammar": "start: nothing"}}), "structured_outputs"),
        (CHAT, json!({"structured_outputs": {"regex": "a", "choice": ["b"]}}), "structured_outputs.choice"),
        (CHAT, json!({"structured_outputs": {"json": {"type": "object", "minProperties": "x"}}}), "structured_outputs"),
        (
            CHAT,
            json!({"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}}),
            "structured_outputs",
        ),
        (CHAT, json!({"structured_outputs": {"regex": "a"}, "ignore_eos": true}), "ignore_eos"),
        (CHAT, json!({"model": "gpt-4"}), "model"),
        (CHAT, json!({"tool_choice": "required"}), "tool_choice"),
        (CHAT, json!({"tools": [{"type": "web_search"}]}), "tools"),
        (CHAT, json!({"best_of": 2}), "best_of"),
        (CHAT, json!({"mirostat": 3}), "mirostat"),
        (CHAT, json!({"mirostat_eta": -1}), "mirostat_eta"),
        (CHAT, json!({"dynatemp_range": 200}), "dynatemp_range"),
        (CHAT, json!({"top_n_sigma": "x"}), "top_n_sigma"),
        (MESSAGES, json!({"mirostat": 2}), "mirostat"),
        (CHAT, json!({"Temperature": 2}), "Temperature"),
        (RESPONSES, json!({"max_tokens": 20}), "max_tokens"),
        (MESSAGES, json!({"max_completion_tokens": 20}), "max_completion_tokens"),
        (CHAT, json!({"samplers": ["top_k", "top_k"]}), "samplers"),
        (CHAT, json!({"samplers": ["mirostat"]}), "samplers"),
        (CHAT, json!({"samplers": ["top_k"]}), "samplers"),
        (CHAT, json!({"logit_bias": {"99999": 1}}), "logit_bias"),
        (CHAT, json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (CHAT, json!({"stop_token_ids": [99999]}), "stop_token_ids"),
        (CHAT, json!({"n": 17}), "n"),
        (CHAT, json!({"temperature": -0.1}), "temperature"),
        (CHAT, json!({"max_tokens": 0}), "max_tokens"),
        (CHAT, json!({"messages": [{"role": "user", "content": "x".repeat(4000)}]}), "messages"),
        (TEXT, json!({"prompt": vec![7; 300]}), "prompt"),
        (TEXT, json!({"prompt": []}), "prompt"),
        (TEXT, json!({"prompt": ""}), "prompt"),
        (TEXT, json!({"prompt": [[1], []]}), "prompt"),
        (TEXT, json!({"prompt": [99999]}), "prompt"),
        (TEXT, json!({"prompt": [1], "add_special_tokens": true}), "add_special_tokens"),
        (TEXT, json!({"prompt": vec!["a"; 65]}), "prompt"),
        (TEXT, json!({"max_tokens": 0}), "max_tokens"),
        (TEXT, json!({"logprobs": 21}), "logprobs"),
        (EMBED, json!({"dimensions": 4}), "dimensions"),
        (EMBED, json!({"pooling": "max"}), "pooling"),
        (EMBED, json!({"encoding_format": "int8"}), "encoding_format"),
        (EMBED, json!({"input": []}), "input"),
        (EMBED, json!({"input": [[1], []]}), "input"),
        (EMBED, json!({"input": [99999]}), "input"),
        (EMBED, json!({"input": ["a", vec![7; 257]]}), "input"),
        (EMBED, json!({"input": vec!["a"; 2049]}), "input"),
        (EMBED, json!({"input": [1], "add_special_tokens": true}), "add_special_tokens"),
        ("/detokenize", json!({"tokens": [4096]}), "tokens"),
        ("/tokenize", json!({"prompt": "a", "content": "b", "messages": null}), "content"),
        ("/tokenize", json!({"parse_special": true}), "parse_special"),
    ];
    for (path, change, param) in cases {
        let mut body = routes().into_iter().find(|route| route.path == path).unwrap().body;
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let (status, _, answer) = post(&app, path, &body).await;
        let expected = if param == "model" { StatusCode::NOT_FOUND } else { StatusCode::BAD_REQUEST };
        assert_eq!(status, expected, "{change}: {answer}");
        assert_eq!(answer["error"]["param"], param, "{change}: {answer}");
    }
}

#[tokio::test]
async fn messages_are_checked_field_by_field() {
    let app = app();
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let cases = [
        (json!([]), "messages"),
        (json!({"role": "user"}), "messages"),
        (json!(["hi"]), "messages[0]"),
        (json!([{"content": "x"}]), "messages[0].role"),
        (json!([{"role": "wizard", "content": "x"}]), "messages[0].role"),
        (json!([{"role": "user"}]), "messages[0].content"),
        (user(json!(7)), "messages[0].content"),
        (user(json!([{"type": "image_url", "image_url": {"url": "http://x/"}}])), "messages[0].content[0]"),
        (
            json!([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{}]}]),
            "messages[1].tool_calls[0]",
        ),
        (json!([{"role": "user", "content": "x", "name": 7}]), "messages[0].name"),
    ];
    for (messages, param) in cases {
        let mut body = hello();
        body["messages"] = messages.clone();
        let (status, _, answer) = post(&app, CHAT, &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{messages}: {answer}");
        assert_eq!(answer["error"]["param"], param, "{messages}: {answer}");
    }
    // What OpenAI's own answers hold may come back.
    let mut body = hello();
    body["messages"] = json!([
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "y", "refusal": null, "annotations": [], "tool_calls": null, "audio": null},
        {"role": "user", "content": "z"},
    ]);
    let rendered = ok(&app, "/apply-template", &json!({"messages": body["messages"]})).await;
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\ny<|im_end|>\n\
                    <|im_start|>user\nz<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(rendered["prompt"], expected);
    ok(&app, CHAT, &body).await;
}

/// `x_hotmetal.ignored` of the answer to a request that has to be answered.
async fn ignored(app: &App, path: &str, body: &Value) -> Vec<String> {
    let answer = ok(app, path, body).await;
    serde_json::from_value(answer["x_hotmetal"]["ignored"].clone()).unwrap_or_default()
}

#[tokio::test]
async fn what_clients_send_by_default_costs_them_nothing() {
    let app = app();
    let with = |base: &Value, more: Value| {
        let mut body = base.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let messages = json!([
        {"role": "system", "content": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "name": "bob", "content": "hi", "wibble": 1},
    ]);
    let body = with(
        &hello(),
        json!({
            "messages": messages, "parallel_tool_calls": true, "tool_choice": "auto", "store": true, "service_tier": "flex",
            "stream_options": {"include_usage": true}, "reasoning_effort": "high", "top_logprobs": 0, "verbosity": "low",
            "chat_template_kwargs": {"enable_thinking": false}, "prompt_cache_key": "k", "x-trace": "t",
        }),
    );
    let found = ignored(&app, CHAT, &body).await;
    for path in [
        "messages[0].content[0].cache_control",
        "messages[1].name",
        "messages[1].wibble",
        "parallel_tool_calls",
        "tool_choice",
        "store",
        "service_tier",
        "stream_options",
        "reasoning_effort",
        "verbosity",
        "chat_template_kwargs.enable_thinking",
        "prompt_cache_key",
        "x-trace",
    ] {
        assert!(found.iter().any(|found| found == path), "{path}: {found:?}");
    }
    // What Claude Code sends.
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral", "ttl": "5m"}}]},
        {"role": "assistant", "content": [
            {"type": "redacted_thinking", "data": "x"},
            {"type": "tool_use", "id": "toolu_01", "name": "f", "input": {}, "caller": {"type": "direct"}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_01", "content": "done"}]},
    ]);
    let tool = json!({"name": "f", "input_schema": {"type": "object"}, "eager_input_streaming": true, "strict": true});
    let body = json!({
        "messages": messages, "max_tokens": 8, "thinking": {"type": "adaptive"}, "context_management": {"edits": []},
        "output_config": {"effort": "medium"}, "tools": [tool, {"type": "web_search_20250305", "name": "web_search"}],
        "metadata": {"user_id": "u"},
    });
    let roomy = {
        let kv = KvLayout { format: KvFormat::F32, block_len: 8, num_blocks: 256 };
        app_on(EngineConfig::new(kv, 1024, VOCAB_SIZE, vec![2, 0]), None)
    };
    let found = ignored(&roomy, MESSAGES, &body).await;
    for path in [
        "messages[0].content[0].cache_control",
        "messages[1].content[0]",
        "messages[1].content[1].caller",
        "context_management",
        "output_config.effort",
        "tools[0].strict",
        "tools[0].eager_input_streaming",
        "tools[1]",
    ] {
        assert!(found.iter().any(|found| found == path), "{path}: {found:?}");
    }
    let body = json!({
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}], "phase": "x"},
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "e"},
            {"type": "web_search_call", "id": "w", "status": "completed"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""},
            {"type": "function_call_output", "call_id": "c", "output": "done"}],
        "tools": [{"type": "function", "name": "f", "parameters": null, "strict": true}, {"type": "web_search"}],
        "store": true, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "truncation": "auto",
        "text": {"verbosity": "low"}, "reasoning": {"effort": "medium", "summary": "detailed"}, "max_output_tokens": 8,
        "client_metadata": {"a": "b"},
    });
    let found = ignored(&roomy, RESPONSES, &body).await;
    for path in [
        "input[0].phase",
        "input[1].summary",
        "input[2]",
        "tools[0].strict",
        "tools[1]",
        "store",
        "include",
        "truncation",
        "text.verbosity",
        "reasoning.effort",
        "reasoning.summary",
        "client_metadata",
    ] {
        assert!(found.iter().any(|found| found == path), "{path}: {found:?}");
    }
    // In a stream, the last chunk says it.
    let events = stream(&app, CHAT, &with(&hello(), json!({"store": true}))).await;
    assert_eq!(events.last().unwrap()["x_hotmetal"]["ignored"], json!(["store"]), "{events:?}");
}

#[tokio::test]
async fn with_strict_fields_only_what_the_server_knows_is_taken() {
    let app = loading(Options { strict_fields: true, ..Options::default() });
    serve_on(&app, config(), None);
    let mut body = hello();
    body["store"] = json!(true);
    assert_eq!(ignored(&app, CHAT, &body).await, ["store"], "a hint is known");
    body["wibble"] = json!(1);
    let (status, _, answer) = post(&app, CHAT, &body).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("wibble")));
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": "x", "wibble": 1}]}]);
    let (status, _, answer) = post(&app, CHAT, &json!({"messages": messages})).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("messages[0].content[0].wibble")));
}

#[tokio::test]
async fn a_server_has_a_limit_and_a_seed_for_requests() {
    let app = loading(Options { seed: Some(7), max_tokens: Some(5), ..Options::default() });
    serve_with(&app, config(), None, ChatTemplate::new(super::structure::HERMES).unwrap());
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": true});
    let ask = async |change: Value| {
        let mut body = body.clone();
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        ok(&app, CHAT, &body).await
    };
    let of = |answer: &Value| (answer["usage"]["completion_tokens"].clone(), answer["x_hotmetal"].clone());
    for (change, expected, used, seed) in [
        (json!({}), 5, Value::Null, 7),
        (json!({"max_tokens": 3}), 3, Value::Null, 7),
        (json!({"max_tokens": 8, "seed": 2}), 5, json!(5), 2),
        (json!({"max_tokens": -1, "seed": -1}), 5, Value::Null, 7),
    ] {
        let (tokens, said) = of(&ask(change.clone()).await);
        assert_eq!(
            (tokens, &said["max_tokens_used"], &said["seed"]),
            (json!(expected), &used, &json!(seed)),
            "{change}"
        );
    }
    // One that is larger than the context is as good as none.
    let roomy = loading(Options { max_tokens: Some(1_000_000), ..Options::default() });
    serve_with(&roomy, config(), None, ChatTemplate::new(super::structure::HERMES).unwrap());
    let answer = ok(&roomy, CHAT, &body).await;
    assert_eq!(answer["usage"]["total_tokens"], config().context_len, "{answer}");
    let native = json!({"prompt": "Once", "n_predict": 9, "ignore_eos": true});
    let settings = ok(&app, "/completion", &native).await["generation_settings"].take();
    assert_eq!((&settings["n_predict"], &settings["seed"]), (&json!(5), &json!(7)), "{settings}");
    let props = send(&app, request(Method::GET, "/props", "")).await;
    let props: Value = serde_json::from_slice(&bytes(props).await).unwrap();
    let params = &props["default_generation_settings"]["params"];
    assert_eq!((&params["n_predict"], &params["seed"]), (&json!(5), &json!(7)), "{props}");
}

#[tokio::test]
async fn no_limit_is_taken_in_the_words_of_other_servers() {
    let app = app();
    let context = config().context_len;
    let mut body = hello();
    let changes = json!({"max_tokens": 32000, "stop": "", "seed": -1, "top_p": 0, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let answer = ok(&app, CHAT, &body).await;
    let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], context - prompt);
    assert_eq!(answer["x_hotmetal"]["max_tokens_used"], context - prompt);
    // JavaScript's largest whole number, and the largest that there is.
    for limit in [json!(-1), json!(9_007_199_254_740_991_u64), json!(u64::MAX), json!(-1.0)] {
        for path in [CHAT, TEXT] {
            let mut body = if path == CHAT { hello() } else { json!({"prompt": "Once"}) };
            body["max_tokens"] = limit.clone();
            body["ignore_eos"] = json!(true);
            assert_eq!(ok(&app, path, &body).await["usage"]["total_tokens"], context, "{path} {limit}");
        }
    }
    // Whole numbers with a point, as languages without integers write them.
    let mut body = hello();
    body.as_object_mut()
        .unwrap()
        .extend(json!({"max_tokens": 5.0, "n": 2.0, "seed": 7.0}).as_object().unwrap().clone());
    let answer = ok(&app, CHAT, &body).await;
    assert_eq!(answer["choices"].as_array().map(Vec::len), Some(2));
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() <= 10, "{answer}");
    for (name, value) in [("max_tokens", 5.5), ("max_tokens", -2.0), ("max_tokens", 0.0), ("seed", 1e17), ("n", 1.5)] {
        let mut body = hello();
        body[name] = json!(value);
        let (status, _, answer) = post(&app, CHAT, &body).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(name)), "{value}: {answer}");
    }
    let mut body = json!({"messages": hello()["messages"], "max_tokens": 32000});
    body["seed"] = json!(-1);
    ok(&app, MESSAGES, &body).await;
    ok(&app, RESPONSES, &json!({"input": "hi", "max_output_tokens": 32000})).await;
}
