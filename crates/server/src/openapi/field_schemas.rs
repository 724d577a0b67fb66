//! What each field of a body may hold, as the document says it.

use serde_json::{Value, json};

use crate::llama_cpp::samplers;

/// The same, or null.
pub(super) fn or_null(mut schema: Value) -> Value {
    schema["enum"].as_array_mut().into_iter().for_each(|values| values.push(Value::Null));
    if schema["enum"].is_null()
        && let Some(schema) = schema.as_object_mut()
    {
        schema.shift_remove("enum");
    }
    match schema["type"].take() {
        Value::String(kind) if kind == "null" => json!({"type": "null", "description": schema["description"]}),
        Value::String(kind) => {
            schema["type"] = json!([kind, "null"]);
            schema
        }
        _ => {
            let description = schema["description"].take();
            if let Some(schema) = schema.as_object_mut() {
                schema.shift_remove("type");
                schema.shift_remove("description");
            }
            let mut either = json!({"oneOf": [schema, {"type": "null"}]});
            if !description.is_null() {
                either["description"] = description;
            }
            either
        }
    }
}

/// What a field of which only some values are taken may hold.
pub(super) fn only_schema(name: &str) -> Value {
    match name {
        "best_of" | "length_penalty" | "num_beams" | "guidance_scale" | "tfs" | "tfs_z" => {
            json!({"type": "integer", "enum": [1]})
        }
        "n" => json!({"type": "integer", "enum": [1]}),
        "min_keep" => json!({"type": "integer", "enum": [0, 1]}),
        "top_logprobs"
        | "smoothing_factor"
        | "top_a"
        | "epsilon_cutoff"
        | "eta_cutoff"
        | "penalty_alpha"
        | "no_repeat_ngram_size"
        | "nsigma" => json!({"type": "integer", "enum": [0]}),
        "use_beam_search" | "background" | "echo" | "logprobs" | "truncate" | "shift" => {
            json!({"type": "boolean", "enum": [false]})
        }
        "documents" | "functions" | "mcp_servers" | "context" | "images" | "lora" => {
            json!({"type": "array", "maxItems": 0, "items": {"type": "string"}})
        }
        "modalities" => {
            json!({"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "string", "enum": ["text"]}})
        }
        "function_call" => json!({"type": "string", "enum": ["none"]}),
        "grammar" | "template" | "negative_prompt" => json!({"type": "string", "enum": [""]}),
        // Nothing but null.
        _ => json!({"type": "null"}),
    }
}

pub(super) fn one_of(schemas: Vec<Value>) -> Value {
    json!({"anyOf": schemas})
}

pub(super) fn object(properties: Value, required: &[&str]) -> Value {
    // Other members are taken without effect.
    json!({"type": "object", "properties": properties, "required": required})
}

pub(super) fn ids() -> Value {
    json!({"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": u32::MAX}})
}

pub(super) fn number(least: f64, most: f64) -> Value {
    json!({"type": "number", "minimum": least, "maximum": most})
}

pub(super) fn count(least: i64) -> Value {
    json!({"type": "integer", "minimum": least, "maximum": u32::MAX})
}

pub(super) fn share() -> Value {
    json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1})
}

pub(super) fn text() -> Value {
    json!({"type": "string"})
}

pub(super) fn boolean() -> Value {
    json!({"type": "boolean"})
}

pub(super) fn texts() -> Value {
    one_of(vec![text(), json!({"type": "array", "items": text()})])
}

/// What an applied field may hold. One without an entry fails the test that makes the document.
pub(super) fn schema_of(path: &str, name: &str) -> Value {
    let is_anthropic = path.starts_with("/v1/messages");
    let is_responses = path == "/v1/responses";
    let is_ollama = path.starts_with("/api/");
    match name {
        "model" => json!({
            "type": "string", "description": "A name that `/v1/models` lists; without it the first model answers, unless it is loaded on demand beside others.",
        }),
        "query" | "cache_salt" | "instructions" | "content" | "user" | "reasoning_effort" | "suffix" => text(),
        "input_prefix" | "input_suffix" => text(),
        "prompt" if path == "/infill" => text(),
        "prompt" if path == "/completion" => {
            let piece =
                one_of(vec![text(), count(0), json!({"type": "object"}), json!({"type": "array", "items": {}})]);
            let list = json!({"type": "array", "minItems": 1, "items": piece});
            one_of(vec![json!({"type": "string", "minLength": 1}), list, json!({"type": "object"})])
        }
        "logit_bias" if path == "/completion" => {
            one_of(vec![json!({"type": "object"}), json!({"type": "array", "items": {"type": "array", "items": {}}})])
        }
        "text_1" | "text_2" => {
            let list = json!({"type": "array", "minItems": 1, "maxItems": 2048, "items": json!({"type": "string", "minLength": 1})});
            one_of(vec![json!({"type": "string", "minLength": 1}), list])
        }
        "documents" => json!({"type": "array", "minItems": 1, "maxItems": 2048, "items": one_of(vec![
            json!({"type": "string", "minLength": 1}),
            json!({"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}),
        ])}),
        "min_tokens" | "top_n" => count(0),
        "truncate_prompt_tokens" => count(-1),
        "bad_words" => json!({"type": "array", "maxItems": 256, "items": text()}),
        "allowed_token_ids" => ids(),
        "prompt_logprobs" => json!({"type": "integer", "minimum": 0, "maximum": 20}),
        "n_probs" => json!({"type": "integer", "minimum": 0, "maximum": 20}),
        "input_extra" => {
            let chunk = object(json!({"text": text(), "filename": or_null(text())}), &["text"]);
            json!({"type": "array", "maxItems": 1024, "items": chunk})
        }
        "prompt" if path == "/tokenize" => text(),
        "prompt" | "system" if is_ollama => text(),
        "input" if is_ollama => {
            let some = json!({"type": "string", "minLength": 1});
            let list = |item: Value, least: usize| json!({"type": "array", "minItems": least, "maxItems": 2048, "items": item});
            one_of(vec![text(), ids(), list(some, 0), list(ids(), 1)])
        }
        "input" | "prompt" if !is_responses => {
            let list = |item: Value| json!({"type": "array", "minItems": 1, "maxItems": 2048, "items": item});
            let some = json!({"type": "string", "minLength": 1});
            one_of(vec![some.clone(), ids(), list(some), list(ids())])
        }
        "options" => json!({"type": "object"}),
        "format" => one_of(vec![json!({"type": "string", "enum": ["", "json"]}), json!({"type": "object"})]),
        "think" => one_of(vec![boolean(), json!({"type": "string", "enum": ["low", "medium", "high"]})]),
        "truncate" | "raw" => boolean(),
        "name" => text(),
        "messages" if is_ollama => json!({"type": "array", "maxItems": 4096, "items": {"type": "object"}}),
        "input" => {
            let item = json!({"type": "object"});
            one_of(vec![text(), json!({"type": "array", "minItems": 1, "items": item})])
        }
        "stream"
        | "ignore_eos"
        | "include_stop_str_in_output"
        | "skip_special_tokens"
        | "return_token_ids"
        | "add_generation_prompt"
        | "continue_final_message"
        | "add_special_tokens"
        | "add_special"
        | "parse_special"
        | "return_token_strs"
        | "with_pieces"
        | "parallel_tool_calls"
        | "normalize"
        | "return_tokens"
        | "timings_per_token"
        | "return_documents"
        | "return_progress"
        | "verbose"
        | "post_sampling_probs"
        | "echo" => boolean(),
        "logprobs" if path == "/v1/completions" => json!({"type": "integer", "minimum": 0, "maximum": 20}),
        "logprobs" => boolean(),
        "top_logprobs" => json!({"type": "integer", "minimum": 0, "maximum": 20}),
        "stream_options" if is_responses => {
            json!({"type": "object"})
        }
        "stream_options" => object(
            json!({
                "include_usage": or_null(boolean()), "continuous_usage_stats": or_null(boolean()),
            }),
            &[],
        ),
        "n" | "n_cmpl" => json!({"type": "integer", "minimum": 1, "maximum": 1024}),
        "stop" | "dry_sequence_breakers" | "response_fields" => texts(),
        "stop_sequences" => json!({"type": "array", "items": text()}),
        "stop_token_ids" => json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": u32::MAX}}),
        "tokens" => json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": u32::MAX}}),
        "seed" => json!({"type": "integer", "minimum": -1, "maximum": i64::MAX}),
        "temperature" => number(0.0, 100.0),
        "top_p" => number(0.0, 1.0),
        "typical_p" => share(),
        "top_k" | "repeat_last_n" | "dry_penalty_last_n" => count(-1),
        "min_p" | "xtc_probability" | "xtc_threshold" => number(0.0, 1.0),
        "presence_penalty" | "frequency_penalty" => number(-2.0, 2.0),
        "repetition_penalty" | "repeat_penalty" => number(0.01, 100.0),
        "top_n_sigma" => number(-1.0, 100.0),
        "dynatemp_range" | "dynatemp_exponent" | "mirostat_tau" | "mirostat_eta" => number(0.0, 100.0),
        "mirostat" => json!({"type": "integer", "minimum": 0, "maximum": 2}),
        "dry_multiplier" => number(0.0, 100.0),
        "dry_base" => number(1.0, 100.0),
        "dry_allowed_length" => count(1),
        "samplers" => {
            let mut names = sampler_names();
            if matches!(path, "/infill" | "/completion") {
                // Other names, and samplers that are taken without effect there.
                names.extend(samplers::ABSENT.into_iter().chain(["typ_p", "temp"]));
            }
            json!({"type": "array", "uniqueItems": true, "items": {"type": "string", "enum": names}})
        }
        "logit_bias" => json!({"type": "object", "additionalProperties": number(-100.0, 100.0)}),
        "priority" => json!({"type": "integer", "minimum": -127, "maximum": 127}),
        "metadata" | "chat_template_kwargs" => json!({"type": "object"}),
        "max_tokens" | "max_completion_tokens" | "max_output_tokens" | "n_predict" | "t_max_predict_ms" => count(-1),
        "n_indent" => count(0),
        "n_keep" => count(-1),
        "id_slot" => json!({"type": "integer", "minimum": -1, "maximum": u16::MAX}),
        "output_config" => json!({"type": "object"}),
        "dimensions" => count(1),
        "pooling" => json!({"type": "string", "enum": ["mean", "last"]}),
        "encoding_format" => json!({"type": "string", "enum": ["float", "base64"]}),
        "system" => one_of(vec![text(), json!({"type": "array", "items": {"$ref": "#/components/schemas/TextBlock"}})]),
        "messages" if is_anthropic => messages("AnthropicMessage"),
        "messages" => messages("ChatMessage"),
        "thinking" => object(
            json!({"type": {"type": "string", "enum": ["enabled", "disabled", "adaptive"]}, "budget_tokens": or_null(count(1))}),
            &["type"],
        ),
        "tools" => json!({"type": "array", "maxItems": 128, "items": tool()}),
        "tool_choice" if is_anthropic => object(
            json!({
                "type": {"type": "string", "enum": ["auto", "any", "tool", "none"]}, "name": or_null(text()),
                "disable_parallel_tool_use": or_null(boolean()),
            }),
            &["type"],
        ),
        "tool_choice" => {
            let function = match is_responses {
                true => {
                    object(json!({"type": {"type": "string", "enum": ["function"]}, "name": text()}), &["type", "name"])
                }
                false => object(
                    json!({
                        "type": {"type": "string", "enum": ["function"]},
                        "function": object(json!({"name": text()}), &["name"]),
                    }),
                    &["type", "function"],
                ),
            };
            one_of(vec![json!({"type": "string", "enum": ["none", "auto", "required"]}), function])
        }
        "text" => json!({"type": "object", "properties": {"format": or_null(json!({"type": "object"}))}}),
        "reasoning" => json!({"type": "object", "properties": {"effort": or_null(text())}}),
        "response_format" => json!({"type": "object", "required": ["type"],
            "properties": {"type": {"type": "string", "enum": ["text", "json_object", "json_schema"]},
                "json_schema": {"type": ["object", "null"]}}}),
        "guided_json" => one_of(vec![text(), json!({"type": "object"}), boolean()]),
        "json_schema" => one_of(vec![json!({"type": "object"}), boolean()]),
        "guided_regex" | "guided_grammar" | "grammar" => text(),
        "guided_choice" => texts(),
        "structured_outputs" => json!({"type": "object", "minProperties": 1,
            "properties": {"json": {"type": ["object", "boolean", "null"]}, "regex": or_null(text()),
                "choice": or_null(texts()), "grammar": or_null(text())}}),
        other => unreachable!("`{other}` of {path} has no schema: a test makes the whole document"),
    }
}

pub(super) fn messages(schema: &str) -> Value {
    let item = json!({"$ref": format!("#/components/schemas/{schema}")});
    json!({"type": "array", "minItems": 1, "maxItems": 4096, "items": item})
}

pub(super) fn sampler_names() -> Vec<&'static str> {
    engine::SamplerStep::ALL.map(engine::SamplerStep::name).to_vec()
}

/// A tool; those of a kind that the server does not run are left out where others remain.
pub(super) fn tool() -> Value {
    json!({"type": "object"})
}

/// A message of a conversation, by its role: only an assistant's may be without content.
pub(super) fn chat_message() -> Value {
    let part = json!({"type": "object", "required": ["type"]});
    let nothing = || json!({"type": ["array", "null"], "maxItems": 0, "items": text()});
    let or_nothing = |schema: Value| one_of(vec![schema, nothing()]);
    let content = || vec![text(), json!({"type": "array", "maxItems": 256, "items": part})];
    let call = object(json!({"function": object(json!({"name": text()}), &["name"])}), &["function"]);
    let of_role = |roles: &[&str], required: &[&str], more: Value| {
        let mut properties = json!({
            "role": {"type": "string", "enum": roles}, "content": one_of(content()), "name": or_nothing(text()),
        });
        more.as_object().into_iter().flatten().for_each(|(name, schema)| properties[name] = schema.clone());
        json!({"type": "object", "required": required, "properties": properties})
    };
    let mut absent = content();
    absent.push(json!({"type": "null"}));
    let assistant = json!({
        "content": one_of(absent.clone()), "reasoning": or_nothing(text()), "reasoning_content": or_nothing(text()),
        "tool_calls": json!({"type": ["array", "null"], "items": call}),
    });
    let result = json!({"content": one_of(absent), "tool_call_id": or_nothing(text())});
    one_of(vec![
        of_role(&["system", "developer", "user"], &["role", "content"], json!({})),
        of_role(&["assistant"], &["role"], assistant),
        of_role(&["tool"], &["role"], result),
    ])
}
