//! Calls that a model has to make, in each family's form, with the templates of real models where they are.

use std::path::Path;

use super::small_templates::FAMILIES;
use super::structure::weather;
use super::*;

/// The built-in vocabulary, with these tokens behind its own; returns the ids.
pub(super) fn tokenizer_with(tokens: &[&str]) -> (Arc<Tokenizer>, usize) {
    let mut json: Value = serde_json::from_slice(include_bytes!("../../../cli/builtin/tokenizer.json")).unwrap();
    let added = json["added_tokens"].as_array_mut().unwrap();
    for (index, token) in tokens.iter().enumerate() {
        // Of each kind: models have them as special and as plain ones.
        added.push(json!({
            "id": VOCAB_SIZE + index, "content": token, "special": index % 2 == 0, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false,
        }));
    }
    let mut tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), None, &LoadOptions::default()).unwrap();
    tokenizer.add_eos_ids(&[2, 0]);
    (Arc::new(tokenizer), VOCAB_SIZE + tokens.len())
}

fn app_of(template: &str, tokens: &[&str]) -> App {
    let (tokenizer, vocab_size) = tokenizer_with(tokens);
    let kv = KvLayout { num_blocks: 1024, ..config().kv };
    let config = EngineConfig::new(kv, 4096, vocab_size, vec![2, 0]);
    let template = ChatTemplate::new(template).unwrap();
    let app = loading(Options::default());
    app.ready(ServedModel { tokenizer, ..served(config, None, template) }).unwrap();
    app
}

#[expect(clippy::print_stderr, reason = "a skipped test says why")]
/// A published template, Mistral's own of a version (`tekken.json v13`), or one of [`FAMILIES`].
pub(super) fn template(file: &str) -> Option<String> {
    if let Some(family) = FAMILIES.iter().find(|family| family.name == file) {
        return Some(family.template());
    }
    if let Some(version) = file.strip_prefix("tekken.json ") {
        let tokens = ["<s>", "</s>", "[SYSTEM_PROMPT]", "[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]"];
        let tokens: Vec<Value> =
            tokens.iter().enumerate().map(|(rank, text)| json!({"rank": rank, "token_str": text})).collect();
        let config =
            json!({"pattern": "x", "default_vocab_size": 6, "default_num_special_tokens": 6, "version": version});
        let file = json!({"config": config, "vocab": [], "special_tokens": tokens}).to_string();
        return tokenizer::tekken_chat_template(file.as_bytes()).unwrap();
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/templates");
    let path = folder.join(format!("{file}.jinja"));
    if !path.exists() {
        eprintln!("skipped: no {}", path.display());
        return None;
    }
    Some(std::fs::read_to_string(path).unwrap())
}

const THINKS: [&str; 2] = ["<think>", "</think>"];
const MISTRAL: &[&str] = &["[TOOL_CALLS]", "[ARGS]"];
const DEEPSEEK: &[&str] = &[
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    THINKS[0],
    THINKS[1],
];
const GLM: &[&str] =
    &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", THINKS[0], THINKS[1]];
const HARMONY: &[&str] =
    &["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"];

/// Two tools, so that one can be named; the second has a member of each kind.
fn tools() -> Value {
    let mut tools = weather();
    tools.as_array_mut().unwrap().push(json!({"type": "function", "function": {
        "name": "search.web", "description": "Looks something up.",
        "parameters": {
            "type": "object", "additionalProperties": false, "required": ["kind", "pages", "exact"],
            "properties": {
                "kind": {"type": "string", "enum": ["new <b>", "old \"c\""]},
                "pages": {"type": "array", "items": {"$ref": "#/$defs/page"}, "minItems": 1, "maxItems": 2},
                "exact": {"type": "boolean"}, "tag": {"type": "string", "maxLength": 3},
            },
            "$defs": {"page": {"enum": [1, 2]}},
        },
    }}));
    tools
}

/// Whether a call is one of [`tools`], with arguments that its schema allows.
fn is_allowed(name: &str, arguments: &Value) -> bool {
    let is_one_of = |value: &Value, values: &[&str]| values.iter().any(|allowed| value == allowed);
    match name {
        "get_weather" => is_one_of(&arguments["unit"], &["C", "F"]),
        "search.web" => {
            let pages = arguments["pages"].as_array().unwrap();
            is_one_of(&arguments["kind"], &["new <b>", "old \"c\""])
                && (1..3).contains(&pages.len())
                && pages.iter().all(|page| *page == 1 || *page == 2)
                && arguments["exact"].is_boolean()
                && arguments.get("tag").is_none_or(|tag| tag.as_str().is_some_and(|tag| tag.chars().count() < 4))
        }
        _ => false,
    }
}

#[tokio::test]
async fn a_model_of_each_family_that_has_to_call_calls() {
    let families = [
        ("mistralai-Mistral-Nemo-Instruct-2407", &MISTRAL[..1]),
        ("unsloth-mistral-Devstral-Small-2507", MISTRAL),
        ("tekken.json v7", &MISTRAL[..1]),
        ("tekken.json v11", &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"]),
        ("tekken.json v11", &[]),
        ("tekken.json v13", MISTRAL),
        ("deepseek-ai-DeepSeek-V3.1", DEEPSEEK),
        ("GLM-4.7-Flash", GLM),
        ("openai-gpt-oss-120b", HARMONY),
        ("Qwen-QwQ-32B", &THINKS),
        // A vocabulary in which the same are texts like any other.
        ("deepseek-ai-DeepSeek-V3.1", &[]),
        ("openai-gpt-oss-120b", &[]),
        ("mistralai-Mistral-Nemo-Instruct-2407", &[]),
    ];
    // Each as tokens and as texts.
    let small = FAMILIES.iter().flat_map(|family| [(family.name, family.tokens), (family.name, &[])]);
    for (file, tokens) in families.into_iter().chain(small) {
        let Some(source) = template(file) else { continue };
        // DeepSeek's template leaves it to the system message to show tools, which a template of one's own mends.
        let shows = ChatTemplate::new(&source).unwrap().supports_tools();
        let source =
            if shows { source } else { format!("{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}{source}") };
        let app = app_of(&source, tokens);
        // A model that never stops thinking, or never ends a string, is cut like any other.
        let ends = ["</think>", "<|end|>", "</arg_value>"];
        let place = |end: &&str| tokens.iter().position(|token| token == end).map(|at| (VOCAB_SIZE + at).to_string());
        let bias: serde_json::Map<_, _> = ends.iter().filter_map(place).map(|id| (id, json!(100))).collect();
        let mut whole = 0;
        // Some templates show the date, so every day has texts of its own, and on some days the first are all cut.
        for (seed, choice) in (0..64).flat_map(|seed| {
            let named = json!({"type": "function", "function": {"name": "search.web"}});
            [(seed, json!("required")), (seed, named)]
        }) {
            if seed >= 4 && whole > 0 {
                break;
            }
            let mut body = json!({
                "messages": [{"role": "user", "content": "Hello there"}], "tools": tools(), "tool_choice": choice,
                "max_tokens": 200, "seed": seed, "logit_bias": bias,
            });
            let answer = ok(&app, CHAT, &body).await;
            let answered = &answer["choices"][0];
            if answered["finish_reason"] != "tool_calls" {
                assert_eq!(answered["finish_reason"], "length", "{file}: {answer}");
                continue;
            }
            whole += 1;
            let call = &answered["message"]["tool_calls"][0]["function"];
            let (name, text) = (call["name"].as_str().unwrap(), call["arguments"].as_str().unwrap());
            let arguments: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{file}: {error}: {text}"));
            assert!(is_allowed(name, &arguments), "{file}: {name} {text}");
            assert!(choice == "required" || name == "search.web", "{file}: {name}");
            assert!(answered["message"]["content"].is_null(), "{file}: {answer}");
            // Streamed, arguments are always a beginning of what they are in the end.
            body["stream"] = json!(true);
            let mut streamed = String::new();
            for event in stream(&app, CHAT, &body).await {
                for call in event["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten() {
                    streamed.push_str(call["function"]["arguments"].as_str().unwrap());
                    assert!(text.starts_with(&streamed), "{file}: {streamed} begins {text}");
                }
            }
            assert_eq!(streamed, text, "{file}");
        }
        assert!(whole > 0, "{file} {tokens:?}: no call was whole");
        idle(&app).await;
    }
}

#[tokio::test]
async fn what_glm_cannot_be_held_to_is_refused_by_its_place() {
    let Some(source) = template("GLM-4.7-Flash") else { return };
    let app = app_of(&source, GLM);
    for (parameters, place) in [
        (json!({"type": "object", "minProperties": 1}), "minProperties"),
        (json!({"type": "array"}), "type"),
        (json!({"type": "object", "anyOf": [{"required": ["a"]}]}), "anyOf"),
        (json!({"type": "object", "required": ["a"]}), "required"),
        (json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}}), "properties.a.pattern"),
        (json!({"type": "object", "properties": {"a": {"type": "string", "enum": [1]}}}), "properties.a.enum"),
    ] {
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
        let body = json!({"messages": hello()["messages"], "tools": tools, "tool_choice": "required", "max_tokens": 4});
        let (status, _, answer) = post(&app, CHAT, &body).await;
        let param = format!("tools[0].function.parameters.{place}");
        assert_eq!(
            (status, &answer["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!(param)),
            "{parameters}: {answer}"
        );
    }
}
