//! Every field of every route is applied, taken without effect and reported, or refused by name: the matrix is made from the
//! routes' own lists.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::fields::{Field, Rule};
use crate::router::BODY_ROUTES;
use crate::{anthropic, chat, completions, embeddings, grammar, infill, responses, sampling, tokens, tools};

/// A route, its fields, and a body that it answers.
struct Route {
    path: &'static str,
    known: Vec<&'static [Field]>,
    body: Value,
}

fn routes() -> Vec<Route> {
    let conversation = json!([{"role": "user", "content": "Hello there"}]);
    vec![
        Route {
            path: CHAT,
            known: vec![
                sampling::COMMON,
                sampling::FIELDS,
                grammar::FIELDS,
                tools::FIELDS,
                chat::PROMPT_FIELDS,
                chat::FIELDS,
            ],
            body: hello(),
        },
        Route {
            path: TEXT,
            known: vec![sampling::COMMON, sampling::FIELDS, grammar::FIELDS, completions::FIELDS],
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
            known: vec![sampling::COMMON, grammar::FIELDS, infill::FIELDS],
            body: json!({"input_prefix": "Once upon a time", "input_suffix": " and so", "n_predict": 8, "seed": 3}),
        },
        Route { path: EMBED, known: vec![embeddings::FIELDS], body: json!({"input": "Once upon a time"}) },
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
    ]
}

/// What a route does about a field: other fields to send with it, its value, and whether the answer shows it.
struct Case {
    with: Value,
    value: Value,
    shows: fn(&Value, &Value) -> bool,
}

fn case(value: Value, shows: fn(&Value, &Value) -> bool) -> Option<Case> {
    Some(Case { with: json!({}), value, shows })
}

fn case_with(with: Value, value: Value, shows: fn(&Value, &Value) -> bool) -> Option<Case> {
    Some(Case { with, value, shows })
}

/// A field whose value comes back as it was among the sampling parameters.
macro_rules! reported {
    ($name:literal, $value:expr) => {
        case(json!($value), |_, answer| {
            let found = &answer["x_hotmetal"]["sampling"][$name];
            let value = json!($value);
            match (found.as_f64(), value.as_f64()) {
                (Some(found), Some(value)) => (found - value).abs() < 1e-6,
                _ => *found == value,
            }
        })
    };
}

/// The case of an applied field. A field without one fails the test. `before` is the answer without the field.
fn applied_case(path: &str, name: &str) -> Option<Case> {
    match (path, name) {
        (MESSAGES, "seed") => case(json!(77), |before, answer| before["content"] != answer["content"]),
        (MESSAGES, "priority") => case(json!(5), |before, answer| before["content"] == answer["content"]),
        (MESSAGES, "stop_sequences") => case(json!(["e"]), |_, answer| answer["stop_sequence"] == "e"),
        (MESSAGES, "max_tokens") => case(json!(5), |_, answer| answer["usage"]["output_tokens"] == 5),
        (MESSAGES, "system") => case(json!("Be brief."), |before, answer| before["content"] != answer["content"]),
        (COUNT, "system") => {
            case(json!("Be brief."), |before, answer| answer["input_tokens"].as_u64() > before["input_tokens"].as_u64())
        }
        (COUNT, "messages") => {
            case(json!([{"role": "user", "content": "Many more words than that"}]), |before, answer| {
                answer["input_tokens"].as_u64() > before["input_tokens"].as_u64()
            })
        }
        (MESSAGES | COUNT, "tool_choice") => {
            case(json!({"type": "none"}), |before, answer| before["content"] == answer["content"])
        }
        (MESSAGES | COUNT, "thinking") => None, // refused by name here, applied in `turns`
        // The other routes' prompts are the same, and their salts must not be.
        (MESSAGES, "cache_salt") => case(json!("yours"), |_, answer| answer["x_hotmetal"]["cached_tokens"] == 0),
        (RESPONSES, "cache_salt") => case(json!("ours"), |_, answer| answer["x_hotmetal"]["cached_tokens"] == 0),
        (RESPONSES, "seed") => {
            case(json!(77), |before, answer| before["output"][0]["content"] != answer["output"][0]["content"])
        }
        (RESPONSES, "priority") => {
            case(json!(5), |before, answer| before["output"][0]["content"] == answer["output"][0]["content"])
        }
        (RESPONSES, "input") => case(json!("Other words"), |before, answer| {
            before["output"][0]["content"] != answer["output"][0]["content"]
        }),
        (RESPONSES, "instructions") => case(json!("Be brief."), |before, answer| {
            answer["usage"]["input_tokens"].as_u64() > before["usage"]["input_tokens"].as_u64()
        }),
        (RESPONSES, "max_output_tokens") => case(json!(5), |_, answer| answer["usage"]["output_tokens"] == 5),
        (RESPONSES, "text") => case(json!({"format": {"type": "json_object"}}), |before, answer| {
            before["output"][0]["content"] != answer["output"][0]["content"]
        }),
        (RESPONSES, "reasoning") => case(json!({"summary": "auto"}), |_, answer| answer["status"] == "incomplete"),
        (RESPONSES, "tool_choice") => case(json!("none"), |_, answer| answer["tool_choice"] == "none"),
        (INFILL, "input_prefix" | "input_suffix" | "prompt") => {
            case(json!("Many more words, and then some, than those before"), |before, answer| {
                answer["tokens_evaluated"].as_u64() > before["tokens_evaluated"].as_u64()
                    && before["content"] != answer["content"]
            })
        }
        (INFILL, "input_extra") => case(json!([{"text": "a"}]), |before, answer| {
            answer["tokens_evaluated"].as_u64() > before["tokens_evaluated"].as_u64()
        }),
        (INFILL, "n_predict") => {
            case(json!(5), |_, answer| answer["tokens_predicted"] == 5 && answer["stop_type"] == "limit")
        }
        (INFILL, "max_tokens") => {
            case_with(json!({"n_predict": null}), json!(5), |_, answer| answer["tokens_predicted"] == 5)
        }
        // Of lines and of time, which tests of their own have.
        (INFILL, "n_indent" | "t_max_predict_ms") => None,
        (INFILL, "stop") => {
            case(json!(["e"]), |_, answer| answer["stop_type"] == "word" && answer["stopping_word"] == "e")
        }
        (INFILL, "ignore_eos") => {
            case_with(json!({"logit_bias": {"2": 100}, "n_predict": 3}), json!(true), |_, answer| {
                answer["stop_type"] == "limit"
            })
        }
        (INFILL, "seed") => case(json!(77), |before, answer| before["content"] != answer["content"]),
        (INFILL, "priority") => case(json!(5), |before, answer| before["content"] == answer["content"]),
        (INFILL, "return_tokens") => case(json!(true), |_, answer| answer["tokens"].as_array().unwrap().len() == 8),
        (INFILL, "response_fields") => {
            case(json!(["timings/predicted_n"]), |_, answer| answer["timings/predicted_n"] == 8)
        }
        (_, "model") => case(json!(MODEL), |_, answer| answer["error"].is_null()),
        (_, "stream") => None, // sent by `stream`, in tests of its own: the answer is no JSON
        (_, "stream_options") => None,
        (_, "n") => case(json!(3), |_, answer| answer["choices"].as_array().unwrap().len() == 3),
        (_, "stop") => case(json!(["e"]), |before, answer| text(before) != text(answer)),
        (_, "stop_token_ids") => {
            case(json!((0..2000).collect::<Vec<u32>>()), |_, answer| answer["choices"][0]["stop_reason"].is_u64())
        }
        (_, "ignore_eos") => case_with(json!({"logit_bias": {"2": 100}, "max_tokens": 3}), json!(true), |_, answer| {
            answer["choices"][0]["finish_reason"] == "length"
        }),
        (_, "include_stop_str_in_output") => case_with(json!({"stop": ["e"]}), json!(true), |_, answer| {
            let choice = &answer["choices"][0];
            let text = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap();
            choice["finish_reason"] == "stop" && text.ends_with('e')
        }),
        ("/detokenize", "skip_special_tokens") => {
            case(json!(true), |before, answer| before["prompt"].as_str() > answer["prompt"].as_str())
        }
        (_, "skip_special_tokens") => case_with(json!({"logit_bias": {"1": 100}}), json!(false), |_, answer| {
            answer.to_string().contains("<|im_start|>")
        }),
        (_, "return_token_ids") => {
            case(json!(true), |_, answer| answer["choices"][0]["token_ids"].as_array().unwrap().len() == 8)
        }
        (_, "seed") => {
            case(json!(77), |before, answer| answer["x_hotmetal"]["seed"] == 77 && text(before) != text(answer))
        }
        (_, "temperature") => reported!("temperature", 0.25),
        (_, "top_p") => reported!("top_p", 0.5),
        (_, "top_k") => reported!("top_k", 7),
        (_, "min_p") => reported!("min_p", 0.125),
        (_, "typical_p") => reported!("typical_p", 0.75),
        (_, "presence_penalty") => reported!("presence_penalty", 0.5),
        (_, "frequency_penalty") => reported!("frequency_penalty", -0.5),
        (_, "repetition_penalty") => reported!("repetition_penalty", 1.25),
        (_, "repeat_penalty") => {
            case(json!(1.25), |_, answer| answer["x_hotmetal"]["sampling"]["repetition_penalty"] == 1.25)
        }
        (_, "repeat_last_n") => reported!("repeat_last_n", 33),
        (_, "dry_multiplier") => reported!("dry_multiplier", 0.5),
        (_, "dry_base") => reported!("dry_base", 2.0),
        (_, "dry_allowed_length") => reported!("dry_allowed_length", 3),
        (_, "dry_penalty_last_n") => reported!("dry_penalty_last_n", 44),
        (_, "dry_sequence_breakers") => case(json!(["\n"]), |_, answer| {
            answer["x_hotmetal"]["sampling"]["dry_sequence_breakers"].as_array().unwrap().len() == 1
        }),
        (_, "xtc_probability") => reported!("xtc_probability", 0.5),
        (_, "xtc_threshold") => reported!("xtc_threshold", 0.25),
        (_, "samplers") => reported!("samplers", ["top_p", "temperature"]),
        (_, "logit_bias") => {
            case(json!({"300": 100}), |_, answer| answer["x_hotmetal"]["sampling"]["logit_bias"]["300"] == 100.0)
        }
        // Who goes first shows where requests wait: `load` holds it; here, that it is read.
        (EMBED, "priority") => case(json!(5), |before, answer| before["data"] == answer["data"]),
        (_, "priority") => case(json!(5), |before, answer| before["choices"] == answer["choices"]),
        (_, "cache_salt") => case(json!("mine"), |_, answer| answer["x_hotmetal"]["cached_tokens"] == 0),
        (_, "user") => case(json!("somebody"), |_, answer| answer["x_hotmetal"]["user"] == "somebody"),
        (_, "metadata") => case(json!({"a": "b"}), |_, answer| answer["x_hotmetal"]["metadata"]["a"] == "b"),
        (CHAT, "max_tokens" | "max_completion_tokens") => {
            case_with(json!({"max_tokens": null}), json!(5), |_, answer| answer["usage"]["completion_tokens"] == 5)
        }
        (_, "max_tokens") => case(json!(5), |_, answer| answer["usage"]["completion_tokens"] == 5),
        (CHAT, "logprobs") => {
            case(json!(true), |_, answer| answer["choices"][0]["logprobs"]["content"].as_array().unwrap().len() == 8)
        }
        (CHAT, "top_logprobs") => case_with(json!({"logprobs": true}), json!(4), |_, answer| {
            answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"].as_array().unwrap().len() == 4
        }),
        (TEXT, "logprobs") => case(json!(2), |_, answer| {
            answer["choices"][0]["logprobs"]["top_logprobs"][0].as_object().unwrap().len() >= 2
        }),
        (TEXT, "echo") => case(json!(true), |_, answer| {
            answer["choices"][0]["text"].as_str().unwrap().starts_with("Once upon a time")
        }),
        (TEXT, "suffix") => case(json!(" and so it was."), |before, answer| {
            answer["usage"]["prompt_tokens"].as_u64() > before["usage"]["prompt_tokens"].as_u64()
                && text(before) != text(answer)
        }),
        (TEXT, "prompt") => case(json!("Another beginning of a tale"), |before, answer| text(before) != text(answer)),
        // The vocabulary has nothing to put before a text, so that it is read shows where it contradicts.
        (TEXT, "add_special_tokens") => case(json!(false), |before, answer| before["choices"] == answer["choices"]),
        (EMBED, "input") => case(json!(["Once upon a time", [5, 6, 7]]), |before, answer| {
            before["data"][0] == answer["data"][0] && answer["data"][1]["index"] == 1
        }),
        (EMBED, "encoding_format") => {
            case(json!("base64"), |_, answer| answer["data"][0]["embedding"].as_str().unwrap().len() == 44)
        }
        (EMBED, "dimensions") => {
            case(json!(NULL_HIDDEN_SIZE), |_, answer| answer["x_hotmetal"]["dimensions"] == NULL_HIDDEN_SIZE)
        }
        (EMBED, "pooling") => case(json!("last"), |before, answer| {
            answer["x_hotmetal"]["pooling"] == "last" && before["data"] != answer["data"]
        }),
        (EMBED, "normalize") => case(json!(false), |before, answer| {
            answer["x_hotmetal"]["normalized"] == false && before["data"] != answer["data"]
        }),
        (EMBED, "add_special_tokens") => case(json!(false), |before, answer| before["data"] == answer["data"]),
        ("/tokenize", "prompt") => {
            case_with(json!({"messages": null}), json!("a b"), |_, answer| answer["count"].as_u64() > Some(0))
        }
        ("/tokenize", "content") => {
            case_with(json!({"messages": null}), json!("a b"), |_, answer| answer["count"].as_u64() > Some(0))
        }
        ("/tokenize", "add_special_tokens") => {
            case_with(json!({"messages": null, "prompt": "a"}), json!(false), |_, answer| answer["count"] == 1)
        }
        ("/tokenize", "add_special") => {
            case_with(json!({"messages": null, "content": "a"}), json!(true), |_, answer| answer["count"] == 1)
        }
        ("/tokenize", "parse_special") => {
            case_with(json!({"messages": null, "content": "<|im_end|>"}), json!(false), |_, answer| {
                answer["count"].as_u64() > Some(1)
            })
        }
        (TEXT, "parse_special") => case_with(json!({"prompt": "<|im_end|>"}), json!(false), |_, answer| {
            answer["usage"]["prompt_tokens"].as_u64() > Some(2)
        }),
        (EMBED, "parse_special") => case_with(json!({"input": "<|im_end|>"}), json!(false), |_, answer| {
            answer["usage"]["prompt_tokens"].as_u64() > Some(2)
        }),
        ("/tokenize", "return_token_strs") => case(json!(true), |_, answer| answer["token_strs"][0] == "<|im_start|>"),
        ("/tokenize", "with_pieces") => case(json!(true), |_, answer| answer["tokens"][0]["piece"] == "<|im_start|>"),
        ("/detokenize", "tokens") => case(json!([5, 7]), |before, answer| before["prompt"] != answer["prompt"]),
        (_, "messages") => case(json!([{"role": "user", "content": "Other words"}]), |before, answer| before != answer),
        // The built-in template looks at nothing of it: names are refused, and applied in `structure`.
        (_, "chat_template_kwargs") => case(json!({}), |_, answer| answer.get("error").is_none()),
        (_, "response_format") => case(json!({"type": "json_object"}), |before, answer| text(before) != text(answer)),
        (_, "structured_outputs") => case(json!({"regex": "[ab]{4}"}), |before, answer| text(before) != text(answer)),
        (_, "guided_json" | "json_schema") => {
            case(json!({"type": "boolean"}), |before, answer| text(before) != text(answer))
        }
        (_, "guided_regex") => case(json!("[ab]{4}"), |before, answer| text(before) != text(answer)),
        (_, "guided_choice") => case(json!(["yes", "no"]), |before, answer| text(before) != text(answer)),
        (_, "grammar") => case(json!("root ::= [ab]{4}"), |before, answer| text(before) != text(answer)),
        (_, "guided_grammar") => case(json!("start: /[ab]{4}/"), |before, answer| text(before) != text(answer)),
        // The built-in template shows none: they are refused by name here, and applied in `structure`.
        (_, "tools" | "parallel_tool_calls") => None,
        (_, "tool_choice") => case(json!("none"), |before, answer| before["choices"] == answer["choices"]),
        (_, "reasoning_effort") => None, // without effect here, below
        (_, "output_config") => case(json!({}), |before, answer| before["content"] == answer["content"]),
        // Of a last message of the assistant's, which a test of its own has.
        (_, "continue_final_message") => None,
        (CHAT, "add_generation_prompt") => case(json!(false), |before, answer| {
            before["usage"]["prompt_tokens"].as_u64() > answer["usage"]["prompt_tokens"].as_u64()
        }),
        (_, "add_generation_prompt") => {
            case(json!(false), |before, answer| before.to_string().len() > answer.to_string().len())
        }
        _ => panic!("`{name}` of {path} is applied, and no case shows it"),
    }
}

/// What was generated, in the words of the route.
fn text(answer: &Value) -> [&Value; 2] {
    [&answer["choices"], &answer["content"]]
}

/// Names that other servers know and no route here does.
const FOREIGN: [&str; 11] = [
    "prompt_cache_key",
    "x-vendor",
    "temprature",
    "best",
    "num_predict",
    "mirostat",
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
                        ["choices", "content", "data", "tokens", "prompt", "input_tokens"]
                            .map(|name| answer[name].clone())
                    };
                    assert_eq!(all(&before), all(&answer), "{path} {name}");
                }
                None => {
                    assert_eq!(status, StatusCode::BAD_REQUEST, "{path} {name}: {answer}");
                    assert_eq!(answer["error"]["param"], *name, "{path}: {answer}");
                    assert_eq!(answer["error"]["code"], "unsupported_parameter");
                }
            }
            // A null is as good as none.
            body[name] = Value::Null;
            let (status, _, answer) = post(&app, path, &body).await;
            let is_needed = (*path == MESSAGES && *name == "max_tokens")
                || ["messages", "tokens", "prompt", "input", "input_prefix", "input_suffix"].contains(name);
            if !FOREIGN.contains(name) && !is_needed {
                assert!(status == StatusCode::OK || answer["error"]["param"] != *name, "{path} {name}: null: {answer}");
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
            if ["metadata", "chat_template_kwargs", "output_config", "text", "reasoning", "guided_json", "json_schema"]
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
                if path != EMBED
                    && ["add_special", "parse_special", "add_special_tokens", "content", "prompt"].contains(&field.name)
                {
                    body.as_object_mut().unwrap().remove("messages");
                    if field.name.starts_with("add") || field.name.starts_with("parse") {
                        let text = if field.name == "add_special_tokens" { "prompt" } else { "content" };
                        body[text] = json!("a");
                    }
                }
                let (status, _, answer) = post(&app, path, &body).await;
                let is_other_model = field.name == "model" && value.is_string();
                let expected = if is_other_model { StatusCode::NOT_FOUND } else { StatusCode::BAD_REQUEST };
                assert_eq!(status, expected, "{path} {} {value}: {answer}", field.name);
                let param = answer["error"]["param"].as_str().unwrap_or_default();
                let names_it = param.split(['.', '[']).next() == Some(field.name);
                assert!(names_it || param == "messages[0]", "{path} {} {value}: {answer}", field.name);
            }
        }
    }
}

#[tokio::test]
async fn fields_that_contradict_each_other_are_refused() {
    let app = app();
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
        (CHAT, json!({"mirostat": 2}), "mirostat"),
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
