//! The OpenAPI document at `/openapi.json`, made from the routes' own lists of fields: a field that a route applies or
//! refuses is in it, with its type and range, and nothing else is.

use serde_json::{Map, Value, json};

mod field_schemas;

use axum::routing::MethodRouter;

use crate::app::App;
use crate::error::ErrorForm;
use crate::fields::{Field, Rule};
use crate::loading::LoadStage;
use field_schemas::{chat_message, count, one_of, only_schema, or_null, schema_of, text};

/// A route that takes a body.
pub(crate) struct BodyRoute {
    pub(crate) path: &'static str,
    /// Other paths at which it is.
    pub(crate) aliases: &'static [&'static str],
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
    /// The media type of the stream by which it can answer, if it can.
    pub(crate) stream: Option<&'static str>,
}

/// A route that is only read.
pub(crate) struct ReadRoute {
    /// As the router has it: a rest of several segments is `{*name}`.
    pub(crate) path: &'static str,
    /// Other paths at which it is.
    pub(crate) aliases: &'static [&'static str],
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

/// The document of these routes. `.ci/run` holds it to OpenAPI's own schema.
pub(crate) fn document(version: &str, body_routes: &[BodyRoute], read_routes: &[ReadRoute]) -> Value {
    let mut paths = Map::new();
    for route in body_routes {
        paths.insert(route.path.to_owned(), json!({"post": body_operation(route)}));
    }
    for &ReadRoute { path, summary, answer, model_query, .. } in read_routes {
        let path = path.replace("{*", "{");
        let path = path.as_str();
        let mut operation = json!({"summary": summary, "operationId": operation_id(path), "responses": errors(path)});
        operation["responses"]["200"] = match answer {
            Ok(schema) => json_answer(summary, schema),
            Err(kinds) => {
                let kinds = kinds.split(", ").map(|kind| (kind.to_owned(), json!({"schema": {"type": "string"}})));
                json!({"description": summary, "content": Map::from_iter(kinds)})
            }
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
    paths.insert(
        "/slots/{id_slot}".to_owned(),
        json!({"post": slot_operation("Save, restore or erase a slot, in llama.cpp's form")}),
    );
    json!({
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
    })
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

fn errors(path: &str) -> Value {
    let schema = ErrorForm::of(path).schema();
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
    let mut responses = errors(route.path);
    responses["200"] = json_answer(route.summary, route.answer);
    if let Some(media_type) = route.stream {
        // No schema: some readers hold it to the whole text, others to each event.
        responses["200"]["content"][media_type] = json!({});
    }
    json!({
        "summary": route.summary, "operationId": operation_id(route.path),
        "requestBody": {"required": true, "content": {"application/json": {"schema": body}}},
        "responses": responses,
    })
}

/// The one route that takes both a query and a body, which one of its actions has not.
fn slot_operation(summary: &str) -> Value {
    let path = "/slots/{id_slot}";
    let mut responses = errors(path);
    responses["200"] = json_answer(summary, "Object");
    responses["501"] = json_answer("the server was started without --slot-save-path, or with several keys", "Error");
    let name = json!({"type": "string", "maxLength": 128, "pattern": "^[A-Za-z0-9_-][A-Za-z0-9._-]*$"});
    let body = json!({"type": "object", "properties": {"filename": or_null(name)}});
    let actions = json!({"type": "string", "enum": ["save", "restore", "erase"]});
    json!({
        "summary": summary, "operationId": operation_id(path), "responses": responses,
        "parameters": [
            {"name": "id_slot", "in": "path", "required": true, "schema": {"type": "integer", "minimum": 0}},
            {"name": "action", "in": "query", "required": true, "schema": actions},
        ],
        "requestBody": {"required": false, "content": {"application/json": {"schema": body}}},
    })
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
    let mut of_openai = error.clone();
    for (name, meaning) in
        [("n_prompt_tokens", "Of a prompt that is too long, at least."), ("n_ctx", "The context's, then.")]
    {
        of_openai["properties"][name] = json!({"type": "integer", "description": meaning});
    }
    let answer = |required: &[&str]| json!({"type": "object", "required": required});
    let block = json!({"type": "object", "required": ["type"], "properties": {
        "type": {"type": "string"}}});
    json!({
        "Error": {"type": "object", "required": ["error"], "properties": {"error": of_openai}},
        "AnthropicError": {"type": "object", "required": ["type", "error"], "properties": {
            "type": {"type": "string", "enum": ["error"]}, "error": error}},
        "OllamaError": {"type": "object", "required": ["error", "param", "code"], "properties": {
            "error": text(), "param": error["properties"]["param"], "code": error["properties"]["code"]}},
        "OllamaChat": answer(&["model", "created_at", "message", "done", "x_hotmetal"]),
        "OllamaText": answer(&["model", "created_at", "response", "done", "x_hotmetal"]),
        "OllamaVectors": answer(&["model", "embeddings", "prompt_eval_count", "x_hotmetal"]),
        "OllamaVector": answer(&["embedding", "x_hotmetal"]),
        "OllamaModel": answer(&["details", "model_info", "capabilities"]),
        "OllamaModels": answer(&["models"]),
        "Object": {"type": "object"},
        "Health": health(),
        "Version": answer(&["version"]),
        "Model": answer(&["id", "object", "created", "owned_by", "status"]),
        "ModelList": {"type": "object", "required": ["object", "data"], "properties": {
            "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
        "ChatCompletion": answer(&["id", "object", "created", "model", "choices", "usage", "x_hotmetal"]),
        "Completion": answer(&["id", "object", "created", "model", "choices", "usage", "x_hotmetal"]),
        "Infill": answer(&["x_hotmetal"]),
        "List": {"type": "array", "items": {"type": "object"}},
        "Response": answer(&["id", "object", "created_at", "status", "output", "usage", "x_hotmetal"]),
        "Message": answer(&["id", "type", "role", "model", "content", "stop_reason", "usage", "x_hotmetal"]),
        "TokenCount": {"type": "object", "required": ["input_tokens"], "properties": {"input_tokens": count(0)}},
        "EmbeddingList": answer(&["object", "data", "model", "usage", "x_hotmetal"]),
        "Scores": answer(&["id", "object", "created", "model", "data", "usage", "x_hotmetal"]),
        "Ranking": answer(&["id", "model", "results", "usage", "x_hotmetal"]),
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
    use crate::{anthropic, grammar, infill, messages, ollama, responses, sampling, tools};

    /// The objects inside bodies: whose they are, where they stand, and what they may hold. What a message of a chat may
    /// hold depends on its role, and is listed beside them.
    const INSIDE: &[(&str, &str, &[&[Field]])] = &[
        ("chat", "messages[].content[]`, of type `text", messages::TEXT_PART),
        ("chat", "messages[].content[]`, of type `refusal", messages::REFUSAL_PART),
        ("chat", "messages[].tool_calls[]", messages::CALL),
        ("chat", "messages[].tool_calls[].function", messages::CALLED),
        ("chat", "tools[]", tools::TOOL),
        ("chat", "tools[].function", tools::FUNCTION),
        ("chat and completions", "stream_options", sampling::STREAM_OPTIONS),
        ("chat and completions", "response_format", grammar::RESPONSE_FORMAT),
        ("chat and completions", "response_format.json_schema", grammar::JSON_SCHEMA),
        ("chat and completions", "structured_outputs", grammar::STRUCTURED_OUTPUTS),
        ("responses", "input[]`, of type `message", responses::items::MESSAGE),
        ("responses", "input[].content[]", responses::items::PART),
        ("responses", "input[]`, of type `function_call", responses::items::CALL),
        ("responses", "input[]`, of type `function_call_output", responses::items::RESULT),
        ("responses", "input[]`, of type `reasoning", responses::items::REASONING),
        ("responses", "tools[]", responses::TOOL),
        ("responses", "text", responses::TEXT),
        ("responses", "reasoning", responses::REASONING),
        ("responses", "stream_options", responses::STREAM_OPTIONS),
        ("Anthropic's messages", "messages[]", anthropic::MESSAGE),
        ("Anthropic's messages", "messages[].content[]`, of type `text", anthropic::TEXT_BLOCK),
        ("Anthropic's messages", "messages[].content[]`, of type `thinking", anthropic::THINKING_BLOCK),
        ("Anthropic's messages", "messages[].content[]`, of type `tool_use", anthropic::USE_BLOCK),
        ("Anthropic's messages", "messages[].content[]`, of type `tool_result", anthropic::RESULT_BLOCK),
        ("Anthropic's messages", "tools[]", anthropic::TOOL),
        ("Anthropic's messages", "tool_choice", anthropic::CHOICE),
        ("Anthropic's messages", "thinking", anthropic::THINKING),
        ("Anthropic's messages", "output_config", anthropic::OUTPUT_CONFIG),
        ("Ollama's routes", "messages[]", ollama::request::MESSAGE),
        ("Ollama's routes", "options", &[ollama::options::OPTIONS]),
        ("infill", "input_extra[]", infill::CHUNK),
    ];

    /// Rows of a table: the fields of `known` that are not applied.
    fn rows_of(known: &[&[Field]], first: &str) -> String {
        let row = |field: &&Field| match field.rule {
            Rule::Applied => None,
            Rule::Hint { why } => Some(format!("|{first} `{}` | taken without effect | {why} |\n", field.name)),
            Rule::Only { why, .. } => {
                Some(format!("|{first} `{}` | other values than the usual are refused | {why} |\n", field.name))
            }
        };
        let fields: Vec<&Field> = known.iter().copied().flatten().collect();
        fields.iter().filter_map(row).collect()
    }

    fn applied_of(known: &[&[Field]]) -> String {
        let fields = known.iter().copied().flatten().filter(|field| matches!(field.rule, Rule::Applied));
        fields.map(|field| format!("`{}`", field.name)).collect::<Vec<_>>().join(", ")
    }

    /// `docs/fields.md`: each field of each route in its class.
    fn fields_page() -> String {
        let mut page = String::from(
            "# Fields of each route\n\nMade from the lists by which the server reads a request; [serving.md](serving.md) says \
             what the fields mean. A name that is not\nhere is taken without effect and reported, or refused where it would change \
             the text.\n",
        );
        for route in BODY_ROUTES {
            page.push_str(&format!("\n## `POST {}`\n\nApplied: {}.\n", route.path, applied_of(route.known)));
            let rows = rows_of(route.known, "");
            if !rows.is_empty() {
                page.push_str(&format!("\n| field | class | because |\n|---|---|---|\n{rows}"));
            }
        }
        page.push_str(
            "\n## Inside bodies\n\nA name that is not here is taken without effect and reported.\n\n\
             | routes | object | applied |\n|---|---|---|\n",
        );
        for (member, roles) in messages::MEMBERS {
            let roles = roles.iter().map(|role| format!("`{role}`")).collect::<Vec<_>>().join(", ");
            page.push_str(&format!("| chat | `messages[]`, of the roles {roles} | `{member}` |\n"));
        }
        for (routes, at, known) in INSIDE {
            page.push_str(&format!("| {routes} | `{at}` | {} |\n", applied_of(known)));
        }
        page.push_str("\n| routes | field | class | because |\n|---|---|---|---|\n");
        for (routes, at, known) in INSIDE {
            page.push_str(&rows_of(known, &format!(" {routes} | `{at}`:")));
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
        let document = document("0", BODY_ROUTES, READ_ROUTES);
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
            assert_eq!(answer.as_object().unwrap().len(), 1 + usize::from(route.stream.is_some()), "{}", route.path);
            assert!(route.stream.is_none_or(|media_type| answer[media_type].is_object()), "{}", route.path);
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
