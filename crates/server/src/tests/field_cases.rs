//! What shows that a route applies a field.

use super::*;

/// What a route does about a field: other fields to send with it, its value, and whether the answer shows it.
pub(super) struct Case {
    pub(super) with: Value,
    pub(super) value: Value,
    pub(super) shows: fn(&Value, &Value) -> bool,
}

pub(super) fn case(value: Value, shows: fn(&Value, &Value) -> bool) -> Option<Case> {
    Some(Case { with: json!({}), value, shows })
}

pub(super) fn case_with(with: Value, value: Value, shows: fn(&Value, &Value) -> bool) -> Option<Case> {
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
pub(super) fn applied_case(path: &str, name: &str) -> Option<Case> {
    if path.starts_with("/api/") {
        return ollama::applied_case(path, name);
    }
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
        ("/completion", "prompt") => {
            case(json!("Another beginning of a tale"), |before, answer| before["content"] != answer["content"])
        }
        ("/completion", "n" | "n_cmpl") => case(json!(3), |_, answer| answer.as_array().unwrap().len() == 3),
        ("/completion", "parse_special") => case_with(json!({"prompt": "<|im_end|>"}), json!(false), |_, answer| {
            answer["tokens_evaluated"].as_u64() > Some(1)
        }),
        ("/completion", "stop_token_ids") => case(json!((0..2000).collect::<Vec<u32>>()), |_, answer| {
            answer["stop_type"] == "eos" && answer["tokens_predicted"].as_u64() < Some(8)
        }),
        ("/completion", "include_stop_str_in_output") => case_with(json!({"stop": ["e"]}), json!(true), |_, answer| {
            answer["content"].as_str().unwrap().ends_with('e')
        }),
        ("/completion", "skip_special_tokens") => {
            case_with(json!({"logit_bias": {"1": 100}}), json!(false), |_, answer| {
                answer["content"].as_str().unwrap().contains("<|im_start|>")
            })
        }
        (INFILL | "/completion", "n_probs") => case(json!(2), |_, answer| {
            answer["completion_probabilities"][0]["top_logprobs"].as_array().unwrap().len() == 2
        }),
        // Of streams, which tests of their own have; whole answers have the times anyway.
        (INFILL | "/completion", "timings_per_token") => {
            case(json!(true), |before, answer| before["content"] == answer["content"])
        }
        ("/v1/score", "text_1") => case(json!("Other words"), |before, answer| before["data"] != answer["data"]),
        ("/v1/score", "text_2") => case(json!("Twice"), |before, answer| {
            answer["data"].as_array().unwrap().len() == 1 && answer["data"][0] == before["data"][0]
        }),
        ("/v1/rerank", "query") => case(json!("Other words"), |before, answer| before["results"] != answer["results"]),
        ("/v1/rerank", "documents") => {
            case(json!(["Twice"]), |_, answer| answer["results"].as_array().unwrap().len() == 1)
        }
        ("/v1/rerank", "top_n") => case(json!(2), |before, answer| {
            before["results"].as_array().unwrap()[..2] == answer["results"].as_array().unwrap()[..]
        }),
        ("/v1/rerank", "return_documents") => case(json!(false), |before, answer| {
            !before["results"][0]["document"].is_null() && answer["results"][0]["document"].is_null()
        }),
        ("/v1/score" | "/v1/rerank", "truncate_prompt_tokens") => {
            case(json!(1), |_, answer| !answer["x_hotmetal"]["truncated"].is_null())
        }
        ("/v1/score" | "/v1/rerank", "add_special_tokens") => case(json!(false), |before, answer| {
            before["data"] == answer["data"] && before["results"] == answer["results"]
        }),
        ("/v1/score" | "/v1/rerank", "parse_special") => {
            let with = json!({"text_1": "<|im_end|>", "query": "<|im_end|>"});
            case_with(with, json!(false), |before, answer| {
                answer["usage"]["prompt_tokens"].as_u64() > before["usage"]["prompt_tokens"].as_u64()
            })
        }
        ("/v1/score" | "/v1/rerank", "priority") => {
            case(json!(5), |before, answer| before["data"] == answer["data"] && before["results"] == answer["results"])
        }
        // The token that ends a text is the likeliest by far.
        (_, "min_tokens") => case_with(json!({"logit_bias": {"2": 100}}), json!(3), |_, answer| {
            let found = [&answer["usage"]["completion_tokens"], &answer["tokens_predicted"]];
            found.into_iter().find_map(Value::as_u64) == Some(4)
        }),
        (_, "bad_words") => {
            let id = |letter| tokenizer().encode(letter, tokenizer::ParseSpecial::No).unwrap()[0];
            let with = json!({"allowed_token_ids": [id("a"), id("b")]});
            case_with(with, json!(["a"]), |_, answer| answer.to_string().contains("\"bbbbbbbb\""))
        }
        (_, "allowed_token_ids") => case(json!([300, 301]), |before, answer| text(before) != text(answer)),
        (TEXT, "truncate_prompt_tokens") => case(json!(2), |_, answer| {
            answer["usage"]["prompt_tokens"] == 2 && answer["x_hotmetal"]["prompt_truncated"] == true
        }),
        (CHAT, "truncate_prompt_tokens") => case(json!(5), |_, answer| {
            answer["usage"]["prompt_tokens"] == 5 && answer["x_hotmetal"]["prompt_truncated"] == true
        }),
        (EMBED | POOLING, "truncate_prompt_tokens") => case(json!(2), |_, answer| {
            answer["usage"]["prompt_tokens"] == 2 && answer["x_hotmetal"]["truncated"] == json!([0])
        }),
        (CHAT, "prompt_logprobs") => case(json!(2), |_, answer| {
            let tokens = answer["prompt_logprobs"].as_array().unwrap();
            tokens.len() as u64 == answer["usage"]["prompt_tokens"].as_u64().unwrap() && tokens[1].is_object()
        }),
        (TEXT, "prompt_logprobs") => case(json!(2), |_, answer| {
            let tokens = answer["choices"][0]["prompt_logprobs"].as_array().unwrap();
            tokens.len() as u64 == answer["usage"]["prompt_tokens"].as_u64().unwrap() && tokens[1].is_object()
        }),
        (CHAT | TEXT, "id_slot") => {
            case_with(json!({"verbose": true}), json!(3), |_, answer| answer["__verbose"]["id_slot"] == 3)
        }
        (INFILL | "/completion", "id_slot") => {
            case(json!(3), |before, answer| (&before["id_slot"], &answer["id_slot"]) == (&json!(0), &json!(3)))
        }
        (INFILL | "/completion", "post_sampling_probs") => {
            case_with(json!({"n_probs": 2}), json!(true), |_, answer| {
                let token = &answer["completion_probabilities"][0];
                token["prob"].is_number() && token["top_probs"].is_array() && token["logprob"].is_null()
            })
        }
        (CHAT | TEXT, "n_predict") => {
            case_with(json!({"max_tokens": null}), json!(5), |_, answer| answer["usage"]["completion_tokens"] == 5)
        }
        (CHAT | TEXT, "verbose") => case(json!(true), |before, answer| {
            before["__verbose"].is_null() && answer["__verbose"]["generation_settings"]["n_predict"] == 8
        }),
        (_, "timings_per_token") => case(json!(true), |_, answer| answer["timings"]["predicted_n"] == 8),
        (_, "return_progress") => case(json!(true), |before, answer| text(before) == text(answer)),
        (INFILL | "/completion", "n_predict") => {
            case(json!(5), |_, answer| answer["tokens_predicted"] == 5 && answer["stop_type"] == "limit")
        }
        (INFILL | "/completion", "max_tokens") => {
            case_with(json!({"n_predict": null}), json!(5), |_, answer| answer["tokens_predicted"] == 5)
        }
        // Without effect here; servers that shift contexts have a test of their own.
        (_, "n_keep") => None,
        // Of lines and of time, which tests of their own have.
        (INFILL | "/completion", "n_indent" | "t_max_predict_ms") => None,
        (INFILL | "/completion", "stop") => {
            case(json!(["e"]), |_, answer| answer["stop_type"] == "word" && answer["stopping_word"] == "e")
        }
        (INFILL | "/completion", "ignore_eos") => {
            case_with(json!({"logit_bias": {"2": 100}, "n_predict": 3}), json!(true), |_, answer| {
                answer["stop_type"] == "limit"
            })
        }
        (INFILL | "/completion", "seed") => case(json!(77), |before, answer| before["content"] != answer["content"]),
        (INFILL | "/completion", "priority") => case(json!(5), |before, answer| before["content"] == answer["content"]),
        (INFILL | "/completion", "return_tokens") => {
            case(json!(true), |_, answer| answer["tokens"].as_array().unwrap().len() == 8)
        }
        (INFILL | "/completion", "response_fields") => {
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
        (_, "top_n_sigma") => reported!("top_n_sigma", 1.5),
        (_, "dynatemp_range") => reported!("dynatemp_range", 0.25),
        (_, "dynatemp_exponent") => reported!("dynatemp_exponent", 1.5),
        (_, "mirostat") => reported!("mirostat", 2),
        (_, "mirostat_tau") => reported!("mirostat_tau", 3.5),
        (_, "mirostat_eta") => reported!("mirostat_eta", 0.25),
        (_, "samplers") => reported!("samplers", ["top_p", "temperature"]),
        (_, "logit_bias") => {
            case(json!({"300": 100}), |_, answer| answer["x_hotmetal"]["sampling"]["logit_bias"]["300"] == 100.0)
        }
        // Who goes first shows where requests wait: `load` holds it; here, that it is read.
        (EMBED | POOLING, "priority") => case(json!(5), |before, answer| before["data"] == answer["data"]),
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
        (EMBED | POOLING, "input") => case(json!(["Once upon a time", [5, 6, 7]]), |before, answer| {
            before["data"][0] == answer["data"][0] && answer["data"][1]["index"] == 1
        }),
        (EMBED, "encoding_format") => {
            case(json!("base64"), |_, answer| answer["data"][0]["embedding"].as_str().unwrap().len() == 44)
        }
        (POOLING, "encoding_format") => {
            case(json!("base64"), |_, answer| answer["data"][0]["data"].as_str().unwrap().len() == 44)
        }
        (EMBED | POOLING, "dimensions") => {
            case(json!(NULL_HIDDEN_SIZE), |_, answer| answer["x_hotmetal"]["dimensions"] == NULL_HIDDEN_SIZE)
        }
        (EMBED | POOLING, "pooling") => case(json!("last"), |before, answer| {
            answer["x_hotmetal"]["pooling"] == "last" && before["data"] != answer["data"]
        }),
        (EMBED | POOLING, "normalize") => case(json!(false), |before, answer| {
            answer["x_hotmetal"]["normalized"] == false && before["data"] != answer["data"]
        }),
        (EMBED | POOLING, "add_special_tokens") => {
            case(json!(false), |before, answer| before["data"] == answer["data"])
        }
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
        (EMBED | POOLING, "parse_special") => case_with(json!({"input": "<|im_end|>"}), json!(false), |_, answer| {
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
