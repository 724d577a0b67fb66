//! The OpenAPI document at `/openapi.json`, made from the routes' own lists of fields: a field that a route applies or
//! refuses is in it, with its type and range, and nothing else is.

use serde_json::{Map, Value, json};
use utoipa::openapi::{OpenApi, OpenApiVersion};

use axum::routing::MethodRouter;

use crate::app::App;
use crate::fields::{Field, Rule};
use crate::loading::LoadStage;

/// A route that takes a body.
pub(crate) struct BodyRoute {
    pub(crate) path: &'static str,
    /// What answers it.
    pub(crate) handler: fn() -> MethodRouter<App>,
    /// What it does, in a line.
    pub(crate) summary: &'static str,
    /// The fields that it knows.
    pub(crate) known: &'static [&'static [Field]],
    /// Fields without which it is refused.
    pub(crate) required: &'static [&'static str],
    /// The schema of its answer.
    pub(crate) answer: &'static str,
    /// Whether it can answer by a stream of events.
    pub(crate) streams: bool,
}

/// A route that is only read.
pub(crate) struct ReadRoute {
    /// As the router has it: a rest of several segments is `{*name}`.
    pub(crate) path: &'static str,
    /// What answers it.
    pub(crate) handler: fn() -> MethodRouter<App>,
    /// What it shows, in a line.
    pub(crate) summary: &'static str,
    /// The schema of the answer if it is JSON, otherwise its type.
    pub(crate) answer: Result<&'static str, &'static str>,
    /// What it is about if its query names a model, where it may.
    pub(crate) model_query: Option<&'static str>,
    /// Whether it is answered without a key, because it tells nothing: load balancers have none, and browsers cannot
    /// show one before they have the page that asks for it.
    pub(crate) is_open: bool,
}

/// Statuses of refusals, with what they mean.
const ERRORS: &[(&str, &str)] = &[
    ("400", "a field that cannot be used, named in `param`"),
    ("401", "no key, or a wrong one"),
    ("403", "a page of another origin asks"),
    ("404", "no such model, or no such route"),
    ("405", "the route does not take this method"),
    ("408", "the body did not come in time"),
    ("413", "the body is too large"),
    ("415", "the body is not declared to be JSON"),
    ("421", "the server does not answer under this host name"),
    ("429", "the queue is full: try again after `Retry-After`"),
    ("431", "the headers are too long, or too many"),
    ("500", "a step failed"),
    ("503", "the model is being loaded, or the server is shutting down"),
    ("504", "the answer took too long"),
];

/// The document of these routes.
pub(crate) fn document(version: &str, body_routes: &[BodyRoute], read_routes: &[ReadRoute]) -> OpenApi {
    let mut paths = Map::new();
    for route in body_routes {
        paths.insert(route.path.to_owned(), json!({"post": body_operation(route)}));
    }
    for &ReadRoute { path, summary, answer, model_query, .. } in read_routes {
        let path = path.replace("{*", "{");
        let path = path.as_str();
        let mut operation = json!({"summary": summary, "operationId": operation_id(path), "responses": errors(false)});
        operation["responses"]["200"] = match answer {
            Ok(schema) => json_answer(summary, schema),
            Err(kind) => json!({"description": summary, "content": {kind: {"schema": {"type": "string"}}}}),
        };
        if path.contains("{model}") {
            let parameter = json!({"name": "model", "in": "path", "required": true, "schema": {"type": "string"}});
            operation["parameters"] = json!([parameter]);
        }
        if let Some(meaning) = model_query {
            let schema = json!({"type": "string"});
            let parameter = json!({
                "name": "model", "in": "query", "required": false, "schema": schema, "description": meaning,
            });
            operation["parameters"] = json!([parameter]);
        }
        if path == "/health" {
            operation["responses"]["503"] = json_answer("Not yet, or not any more", "Health");
        }
        paths.insert(path.to_owned(), json!({"get": operation}));
    }
    let document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Hotmetal", "version": version,
            "description": "OpenAI's interface, Anthropic's messages, and what goes with them. Each field is applied or \
                            refused by name; `null` is as good as none.",
        },
        "paths": paths,
        "components": {
            "schemas": components(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"x-api-key": []}],
    });
    let mut document: OpenApi = serde_json::from_value(document).expect("a document of OpenAPI: a test makes it");
    document.openapi = OpenApiVersion::Version31;
    document
}

fn operation_id(path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let id = words.collect::<Vec<_>>().join("_");
    if id.is_empty() { "page".to_owned() } else { id }
}

fn json_answer(description: &str, schema: &str) -> Value {
    let schema = json!({"$ref": format!("#/components/schemas/{schema}")});
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

fn errors(is_anthropic: bool) -> Value {
    let schema = if is_anthropic { "AnthropicError" } else { "Error" };
    let entry = |&(status, meaning): &(&str, &str)| (status.to_owned(), json_answer(meaning, schema));
    ERRORS.iter().map(entry).collect::<Map<_, _>>().into()
}

fn body_operation(route: &BodyRoute) -> Value {
    let mut properties = Map::new();
    for field in route.known.iter().copied().flatten() {
        let mut schema = match field.rule {
            Rule::Applied => schema_of(route.path, field.name),
            Rule::Hint { why } => {
                let description = format!("Taken without effect, and reported: {why}.");
                let any = ["string", "number", "boolean", "object", "array", "null"];
                properties.insert(field.name.to_owned(), json!({"type": any, "description": description}));
                continue;
            }
            Rule::Only { why, .. } => {
                let mut schema = only_schema(field.name);
                schema["description"] = format!("Other values are refused: {why}.").into();
                schema
            }
        };
        if !route.required.contains(&field.name) {
            schema = or_null(schema);
        }
        properties.insert(field.name.to_owned(), schema);
    }
    let body = json!({
        "type": "object", "properties": properties, "required": route.required,
        // Other fields have no effect, and the answer says so; some names are refused, because they would change the
        // text on other servers.
        "additionalProperties": true,
    });
    let mut responses = errors(route.path.starts_with("/v1/messages"));
    responses["200"] = json_answer(route.summary, route.answer);
    if route.streams {
        // No schema: some readers hold it to the whole text, others to each event.
        responses["200"]["content"]["text/event-stream"] = json!({});
    }
    json!({
        "summary": route.summary, "operationId": operation_id(route.path),
        "requestBody": {"required": true, "content": {"application/json": {"schema": body}}},
        "responses": responses,
    })
}

/// The same, or null.
fn or_null(mut schema: Value) -> Value {
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
fn only_schema(name: &str) -> Value {
    match name {
        "best_of" | "length_penalty" => json!({"type": "integer", "enum": [1]}),
        "min_tokens" => json!({"type": "integer", "enum": [0]}),
        "n" => json!({"type": "integer", "enum": [1]}),
        "min_keep" => json!({"type": "integer", "enum": [0, 1]}),
        "n_probs" | "mirostat" | "dynatemp_range" => json!({"type": "integer", "enum": [0]}),
        "use_beam_search" | "background" | "echo" | "post_sampling_probs" => {
            json!({"type": "boolean", "enum": [false]})
        }
        "documents" | "functions" | "mcp_servers" => {
            json!({"type": "array", "maxItems": 0, "items": {"type": "string"}})
        }
        "modalities" => {
            json!({"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "string", "enum": ["text"]}})
        }
        "function_call" => json!({"type": "string", "enum": ["none"]}),
        "grammar" => json!({"type": "string", "enum": [""]}),
        // Nothing but null.
        _ => json!({"type": "null"}),
    }
}

fn one_of(schemas: Vec<Value>) -> Value {
    json!({"anyOf": schemas})
}

fn object(properties: Value, required: &[&str]) -> Value {
    // Other members are taken without effect.
    json!({"type": "object", "properties": properties, "required": required})
}

fn ids() -> Value {
    json!({"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": u32::MAX}})
}

fn number(least: f64, most: f64) -> Value {
    json!({"type": "number", "minimum": least, "maximum": most})
}

fn count(least: i64) -> Value {
    json!({"type": "integer", "minimum": least, "maximum": u32::MAX})
}

fn share() -> Value {
    json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn boolean() -> Value {
    json!({"type": "boolean"})
}

fn texts() -> Value {
    one_of(vec![text(), json!({"type": "array", "items": text()})])
}

/// What an applied field may hold. One without an entry fails the test that makes the document.
fn schema_of(path: &str, name: &str) -> Value {
    let is_anthropic = path.starts_with("/v1/messages");
    let is_responses = path == "/v1/responses";
    match name {
        "model" => json!({
            "type": "string", "description": "A name that `/v1/models` lists; the first model answers where it is left out.",
        }),
        "cache_salt" | "instructions" | "content" | "user" | "reasoning_effort" | "suffix" => text(),
        "input_prefix" | "input_suffix" => text(),
        "prompt" if path == "/infill" => text(),
        "input_extra" => {
            let chunk = object(json!({"text": text(), "filename": or_null(text())}), &["text"]);
            json!({"type": "array", "maxItems": 1024, "items": chunk})
        }
        "prompt" if path == "/tokenize" => text(),
        "prompt" | "input" if !is_responses => {
            let list = |item: Value| json!({"type": "array", "minItems": 1, "maxItems": 2048, "items": item});
            let some = json!({"type": "string", "minLength": 1});
            one_of(vec![some.clone(), ids(), list(some), list(ids())])
        }
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
        "n" => json!({"type": "integer", "minimum": 1, "maximum": 1024}),
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
        "dry_multiplier" => number(0.0, 100.0),
        "dry_base" => number(1.0, 100.0),
        "dry_allowed_length" => count(1),
        "samplers" => {
            let mut names = sampler_names();
            // Taken without effect there.
            names.extend((path == "/infill").then_some("infill"));
            json!({"type": "array", "uniqueItems": true, "items": {"type": "string", "enum": names}})
        }
        "logit_bias" => json!({"type": "object", "additionalProperties": number(-100.0, 100.0)}),
        "priority" => json!({"type": "integer", "minimum": -127, "maximum": 127}),
        "metadata" | "chat_template_kwargs" => json!({"type": "object"}),
        "max_tokens" | "max_completion_tokens" | "max_output_tokens" | "n_predict" | "t_max_predict_ms" => count(-1),
        "n_indent" => count(0),
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

fn messages(schema: &str) -> Value {
    let item = json!({"$ref": format!("#/components/schemas/{schema}")});
    json!({"type": "array", "minItems": 1, "maxItems": 4096, "items": item})
}

fn sampler_names() -> Vec<&'static str> {
    engine::SamplerStep::ALL.map(engine::SamplerStep::name).to_vec()
}

/// A tool; those of a kind that the server does not run are left out where others remain.
fn tool() -> Value {
    json!({"type": "object"})
}

/// A message of a conversation, by its role: only an assistant's may be without content.
fn chat_message() -> Value {
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

/// The schemas that others refer to.
fn components() -> Value {
    let message = json!({"type": "string"});
    let error = json!({
        "type": "object", "required": ["message", "type", "param", "code"],
        "properties": {
            "message": message, "type": text(),
            "param": {"type": ["string", "null"], "description": "The field at fault."},
            "code": {"type": ["string", "null"], "description": "For programs to compare."},
        },
    });
    let answer = |required: &[&str]| json!({"type": "object", "required": required});
    let block = json!({"type": "object", "required": ["type"], "properties": {
        "type": {"type": "string"}}});
    json!({
        "Error": {"type": "object", "required": ["error"], "properties": {"error": error}},
        "AnthropicError": {"type": "object", "required": ["type", "error"], "properties": {
            "type": {"type": "string", "enum": ["error"]}, "error": error}},
        "Object": {"type": "object"},
        "Health": health(),
        "Version": answer(&["version"]),
        "Model": answer(&["id", "object", "created", "owned_by", "max_model_len", "x_hotmetal"]),
        "ModelList": {"type": "object", "required": ["object", "data"], "properties": {
            "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
        "ChatCompletion": answer(&["id", "object", "created", "model", "choices", "usage", "x_hotmetal"]),
        "Completion": answer(&["id", "object", "created", "model", "choices", "usage", "x_hotmetal"]),
        "Infill": answer(&["x_hotmetal"]),
        "Response": answer(&["id", "object", "created_at", "status", "output", "usage", "x_hotmetal"]),
        "Message": answer(&["id", "type", "role", "model", "content", "stop_reason", "usage", "x_hotmetal"]),
        "TokenCount": {"type": "object", "required": ["input_tokens"], "properties": {"input_tokens": count(0)}},
        "EmbeddingList": answer(&["object", "data", "model", "usage", "x_hotmetal"]),
        "Tokens": answer(&["count", "max_model_len", "tokens"]),
        "Detokenized": answer(&["prompt", "content"]),
        "Rendered": answer(&["prompt"]),
        "TextBlock": {"type": "object", "required": ["type", "text"], "properties": {
            "type": {"type": "string", "enum": ["text"]}, "text": text()}},
        "AnthropicMessage": {"type": "object", "required": ["role", "content"],
            "properties": {
                "role": {"type": "string", "enum": ["user", "assistant"]},
                "content": one_of(vec![text(), json!({"type": "array", "items": block})])}},
        "ChatMessage": chat_message(),
    })
}

/// Whether requests are answered, and if not all are, how far it is.
fn health() -> Value {
    let status = json!({"type": "string", "enum": ["ok", "degraded", "loading", "draining", "failed"]});
    let word = json!({"type": "string", "enum": ["ok", "loading", "failed"]});
    json!({"type": "object", "required": ["status"], "properties": {
        "status": status,
        "model": {"type": "string", "description": "What is being loaded."},
        "elapsed_s": {"type": "number", "description": "Seconds since the start."},
        "stage": {"type": "string", "enum": LoadStage::ALL.map(LoadStage::name), "description": "What is done to load it."},
        "bytes_loaded": {"type": "integer", "minimum": 0, "description": "Bytes of its weights that this stage is done with."},
        "bytes_total": {"type": "integer", "minimum": 1, "description": "Of so many, once that is known."},
        "share": {"type": "number", "minimum": 0, "maximum": 1, "description": "The one by the other."},
        "reason": {"type": "string", "description": "Why nothing is answered any more."},
        "models": {
            "type": "object", "additionalProperties": word,
            "description": "How each of several models is; `degraded` means that some have failed and others answer.",
        },
    }})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::{BODY_ROUTES, READ_ROUTES};

    /// `docs/fields.md`: each field of each route in its class.
    fn fields_page() -> String {
        let mut page = String::from(
            "# Fields of each route\n\nMade from the lists by which the server reads a request; [serving.md](serving.md) says \
             what the fields mean. A name that is not\nhere is taken without effect and reported, or refused where it would change \
             the text.\n",
        );
        for route in BODY_ROUTES {
            let fields = || route.known.iter().copied().flatten();
            let names: Vec<String> = fields()
                .filter(|field| matches!(field.rule, Rule::Applied))
                .map(|field| format!("`{}`", field.name))
                .collect();
            page.push_str(&format!("\n## `POST {}`\n\nApplied: {}.\n", route.path, names.join(", ")));
            let mut rows = String::new();
            for field in fields() {
                match field.rule {
                    Rule::Applied => {}
                    Rule::Hint { why } => {
                        rows.push_str(&format!("| `{}` | taken without effect | {why} |\n", field.name))
                    }
                    Rule::Only { why, .. } => {
                        rows.push_str(&format!(
                            "| `{}` | other values than the usual are refused | {why} |\n",
                            field.name
                        ));
                    }
                }
            }
            if !rows.is_empty() {
                page.push_str(&format!("\n| field | class | because |\n|---|---|---|\n{rows}"));
            }
        }
        page.push_str("\n## Refused on every route that does not list it\n\nNames by which other servers take what would change the text.\n\n| field | instead |\n|---|---|\n");
        for (name, why) in crate::fields::FOREIGN {
            page.push_str(&format!("| `{name}` | {why} |\n"));
        }
        page
    }

    #[test]
    fn the_page_of_fields_is_that_of_the_lists() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fields.md");
        let page = fields_page();
        let found = std::fs::read_to_string(path).unwrap_or_default();
        if found != page {
            let right = std::env::temp_dir().join("fields.md");
            std::fs::write(&right, &page).unwrap();
            panic!("docs/fields.md is not what the lists say; `{}` is: copy it", right.display());
        }
    }

    #[test]
    fn every_route_and_field_is_in_the_document() {
        let document: Value = serde_json::to_value(document("0", BODY_ROUTES, READ_ROUTES)).unwrap();
        assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
        for route in BODY_ROUTES {
            let operation = &document["paths"][route.path]["post"];
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let found: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
            let fields: Vec<&str> = route.known.iter().copied().flatten().map(|field| field.name).collect();
            assert_eq!(found.len(), fields.len(), "{}", route.path);
            for field in fields {
                let schema = &schema["properties"][field];
                let says =
                    ["type", "enum", "anyOf", "oneOf", "$ref", "description"].iter().any(|key| !schema[*key].is_null());
                assert!(says, "{} {field}: {schema}", route.path);
            }
            assert_eq!(schema["additionalProperties"], true, "{}", route.path);
            for (status, _) in ERRORS {
                assert!(operation["responses"][*status]["content"].is_object(), "{} {status}", route.path);
            }
            let answer = &operation["responses"]["200"]["content"];
            assert_eq!(answer["text/event-stream"].is_object(), route.streams, "{}", route.path);
        }
        // An assistant's message, and a result, may be without content.
        let messages = document["components"]["schemas"]["ChatMessage"]["anyOf"].as_array().unwrap();
        for message in messages {
            let is_users = message["properties"]["role"]["enum"][0] == "system";
            assert_eq!(message["required"].as_array().unwrap().contains(&"content".into()), is_users, "{message}");
        }
        // What is referred to is there.
        let text = document.to_string();
        for reference in text.split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }
}
