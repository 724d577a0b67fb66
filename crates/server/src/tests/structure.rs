//! Texts that keep to a grammar, calls of tools, reasoning.

use serde_json::{Value, json};

use super::*;
use crate::choice::{Choice, TextOptions};
use crate::dialect::{Controls, THINK_TAGS};
use crate::reply::{Part, Reasoning, ReplyReader, ToolSyntax};
use crate::template_profile::TemplateProfile;

/// A template that shows tools and calls as Hermes' does, and thinks.
pub(super) const HERMES: &str = r#"{% if tools %}Tools: {{ tools | tojson }}
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>
{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"#;

const LLAMA: &str = r#"{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"#;

pub(super) fn app_with(template: &str) -> App {
    let app = loading(Options::default());
    let kv = KvLayout { num_blocks: 128, ..config().kv };
    let config = EngineConfig::new(kv, 1024, VOCAB_SIZE, vec![2, 0]);
    serve_with(&app, config, None, ChatTemplate::new(template).unwrap());
    app
}

fn text_of(answer: &Value) -> &str {
    let choice = &answer["choices"][0];
    choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap()
}

fn with(change: Value) -> Value {
    let mut body = hello();
    body["max_tokens"] = json!(120);
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_text_keeps_to_its_grammar_whatever_the_model_would_say() {
    let app = app();
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["ok", "n"],
        "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2, 3]}},
    });
    let mut whole = 0;
    for seed in 0..8 {
        let ask = async |change: Value| {
            let mut body = with(change);
            body["seed"] = json!(seed);
            let answer = ok(&app, CHAT, &body).await;
            (text_of(&answer).to_owned(), answer["choices"][0]["finish_reason"] == "stop")
        };
        let (text, ended) = ask(json!({"structured_outputs": {"regex": "[a-c]{3}-[0-9]{2}"}})).await;
        let bytes = text.as_bytes();
        assert!(
            ended && bytes.len() == 6 && bytes[..3].iter().all(|b| (b'a'..=b'c').contains(b)) && bytes[3] == b'-',
            "{text}"
        );
        let (text, _) = ask(json!({"structured_outputs": {"choice": ["red", "gre|en", "(<blue>)"]}})).await;
        assert!(["red", "gre|en", "(<blue>)"].contains(&text.as_str()), "{text}");
        let (text, _) =
            ask(json!({"structured_outputs": {"grammar": "start: \"x\" y\ny: \"1\" | \"2\""}, "temperature": 0})).await;
        assert!(["x1", "x2"].contains(&text.as_str()), "{text}");
        let format = json!({"type": "json_schema", "json_schema": {"name": "s", "strict": true, "schema": schema}});
        let (text, ended) = ask(json!({"response_format": format})).await;
        if ended {
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(value["ok"].is_boolean() && [1, 2, 3].iter().any(|n| value["n"] == *n), "{value}");
            whole += 1;
        }
    }
    assert!(whole >= 4, "{whole} of 8 objects were whole");
    // Each of several completions, in a stream, and in completions.
    let body =
        json!({"prompt": "x", "n": 3, "structured_outputs": {"regex": "[01]{5}"}, "seed": 1, "temperature": 1.5});
    let answer = ok(&app, TEXT, &body).await;
    for choice in answer["choices"].as_array().unwrap() {
        let text = choice["text"].as_str().unwrap();
        assert!(text.len() == 5 && text.bytes().all(|byte| byte == b'0' || byte == b'1'), "{text}");
    }
}

pub(super) fn weather() -> Value {
    json!([{"type": "function", "function": {
        "name": "get_weather", "description": "The weather somewhere.",
        "parameters": {
            "type": "object", "additionalProperties": false, "required": ["unit"],
            "properties": {"unit": {"enum": ["C", "F"]}},
        },
    }}])
}

#[tokio::test]
async fn a_model_that_has_to_call_calls_and_its_stream_says_the_same() {
    for template in [HERMES, LLAMA] {
        let app = app_with(template);
        for choice in [json!("required"), json!({"type": "function", "function": {"name": "get_weather"}})] {
            let mut ended = 0;
            for seed in 0..4 {
                let mut body = with(json!({"tools": weather(), "tool_choice": choice, "seed": seed}));
                let answer = ok(&app, CHAT, &body).await;
                let answer = &answer["choices"][0];
                if answer["finish_reason"] != "tool_calls" {
                    assert_eq!(answer["finish_reason"], "length");
                    continue;
                }
                ended += 1;
                let call = &answer["message"]["tool_calls"][0];
                assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("get_weather")));
                let arguments = call["function"]["arguments"].as_str().unwrap();
                let value: Value = serde_json::from_str(arguments).unwrap();
                assert!(["C", "F"].iter().any(|unit| value["unit"] == *unit), "{arguments}");
                assert!(answer["message"]["content"].is_null(), "{answer}");

                body["stream"] = json!(true);
                let (mut name, mut streamed, mut finish) = (String::new(), String::new(), Value::Null);
                for event in stream(&app, CHAT, &body).await {
                    let choice = &event["choices"][0];
                    for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                        assert_eq!(call["index"], 0);
                        name.push_str(call["function"]["name"].as_str().unwrap_or_default());
                        streamed.push_str(call["function"]["arguments"].as_str().unwrap());
                        assert!(arguments.starts_with(&streamed), "{streamed} begins {arguments}");
                    }
                    finish = choice["finish_reason"].clone();
                }
                assert_eq!((name.as_str(), streamed.as_str(), finish), ("get_weather", arguments, json!("tool_calls")));
            }
            assert!(ended > 0, "no call was whole");
        }
        idle(&app).await;
    }
}

#[tokio::test]
async fn tools_are_shown_checked_and_answered() {
    let app = app_with(HERMES);
    let rendered = ok(&app, "/apply-template", &json!({"messages": hello()["messages"], "tools": weather()})).await;
    assert!(rendered["prompt"].as_str().unwrap().contains("get_weather"));
    let tokens = |body: &Value| body["usage"]["prompt_tokens"].as_u64().unwrap();
    let offered = ok(&app, CHAT, &with(json!({"tools": weather(), "max_tokens": 2}))).await;
    let hidden = ok(&app, CHAT, &with(json!({"tools": weather(), "tool_choice": "none", "max_tokens": 2}))).await;
    assert!(tokens(&offered) > tokens(&hidden));
    // A call and its result come back.
    let call = json!({"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": "{\"unit\": \"C\"}"}});
    let messages = json!([
        {"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "12"},
    ]);
    ok(&app, CHAT, &with(json!({"messages": messages.clone(), "tools": weather(), "max_tokens": 2}))).await;
    // A call that comes back is taken as other servers and cut answers have it; what is lost of it is reported.
    let empty = |arguments: Value| json!({"function": {"name": "get_weather", "arguments": arguments}});
    for (change, ignored) in [
        (json!({"index": 0}), Some(".index")),
        (json!({"id": null}), None),
        (json!({"id": ""}), None),
        (json!({"type": "custom"}), Some(".type")),
        (json!({"function": {"name": "get_weather", "arguments": "{}", "strict": true}}), Some(".function.strict")),
        (json!({"function": {"name": "get_weather"}}), None),
        (empty(json!("")), None),
        (empty(json!({"unit": "C"})), None),
        (empty(json!("{\"a\": 1, \"a\": 2}")), None),
        (empty(json!("{\"unit\": ")), Some(".function.arguments")),
        (empty(json!("[1]")), Some(".function.arguments")),
        (empty(json!(3)), Some(".function.arguments")),
    ] {
        let mut messages = messages.clone();
        messages[1]["tool_calls"][0].as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let answer = ok(&app, CHAT, &with(json!({"messages": messages, "tools": weather(), "max_tokens": 2}))).await;
        let expected = ignored.map_or(Value::Null, |path| json!([format!("messages[1].tool_calls[0]{path}")]));
        assert_eq!(answer["x_hotmetal"]["ignored"], expected, "{change}");
    }
    // Without `content`, as some clients write it.
    let mut bare = messages.clone();
    bare[1].as_object_mut().unwrap().remove("content");
    let prompt = async |messages: &Value| {
        ok(&app, "/apply-template", &json!({"messages": messages, "tools": weather()})).await["prompt"].clone()
    };
    assert_eq!(prompt(&bare).await, prompt(&messages).await);
    for (change, param) in [
        (json!({"id": 7}), ".id"),
        (json!({"function": null}), ""),
        (json!({"function": {"name": null, "arguments": "{}"}}), ".function.name"),
    ] {
        let mut messages = messages.clone();
        messages[1]["tool_calls"][0].as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let (status, _, answer) = post(&app, CHAT, &with(json!({"messages": messages, "tools": weather()}))).await;
        let param = format!("messages[1].tool_calls[0]{param}");
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)), "{change}: {answer}");
    }
    let unoffered = json!({"tools": weather(), "tool_choice": "none", "structured_outputs": {"regex": "ab"}});
    assert_eq!(text_of(&ok(&app, CHAT, &with(unoffered)).await), "ab");
    let function = |change: Value| {
        let mut tools = weather();
        tools[0]["function"].as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        json!({"tools": tools})
    };
    for (change, param) in [
        (json!({"tools": [{"type": "retrieval"}]}), "tools"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (function(json!({"name": "two words"})), "tools[0].function.name"),
        (
            json!({"tools": weather(), "tool_choice": {"type": "function", "function": {"name": "other"}}}),
            "tool_choice",
        ),
        (json!({"tools": weather(), "tool_choice": "sometimes"}), "tool_choice"),
        // The model could not call what it is offered.
        (
            json!({"tools": weather(), "tool_choice": "auto", "structured_outputs": {"regex": "a"}}),
            "structured_outputs",
        ),
    ] {
        let (status, _, answer) = post(&app, CHAT, &with(change.clone())).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)), "{change}: {answer}");
    }
}

/// A message's members that no prompt would show are reported where the template shows none, and shown where it does.
#[tokio::test]
async fn names_and_thoughts_of_earlier_turns_are_shown_or_reported() {
    const NAMED: &str = "{% for m in messages %}{{ m.role }}{% if m.role == 'user' and m.name %} {{ m.name }}{% endif %}: \
                         {{ m.content }}\n{% endfor %}";
    let (plain, named, thinks) = (app(), app_with(NAMED), app_with(HERMES));
    let conversation = |index: usize, field: &str| {
        let mut messages = json!([
            {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"},
        ]);
        messages[index][field] = json!("Ada");
        json!({"messages": messages})
    };
    let shown = async |app: &App, index: usize, field: &str| {
        let (status, _, answer) = post(app, "/apply-template", &conversation(index, field)).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let shown = answer["prompt"].as_str().unwrap().contains("Ada");
        let ignored = &answer["x_hotmetal"]["ignored"];
        let expected = if shown { Value::Null } else { json!([format!("messages[{index}].{field}")]) };
        assert_eq!(*ignored, expected, "{answer}");
        shown
    };
    for (app, index, field, expected) in [
        (&plain, 0, "name", false),
        (&plain, 1, "name", false),
        (&plain, 1, "reasoning_content", false),
        (&plain, 1, "reasoning", false),
        (&named, 0, "name", true),
        (&named, 1, "name", false),
        (&thinks, 0, "name", false),
        (&thinks, 1, "reasoning_content", true),
        (&thinks, 1, "reasoning", true),
    ] {
        assert_eq!(shown(app, index, field).await, expected, "{field} of {index}");
    }
    let mut both = conversation(1, "reasoning");
    both["messages"][1]["reasoning_content"] = json!("Eve");
    let answer = ok(&thinks, "/apply-template", &both).await;
    assert_eq!(answer["x_hotmetal"]["ignored"], json!(["messages[1].reasoning"]), "{answer}");
    assert!(answer["prompt"].as_str().unwrap().contains("Eve"));
}

#[tokio::test]
async fn a_variable_for_the_template_is_one_that_it_looks_at() {
    let app =
        app_with("{% for m in messages %}{{ m.content }}{% endfor %}{% if false %}{{ rare }}{% endif %}{{ tone }}");
    let render = async |kwargs: Value| {
        let body = json!({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": kwargs});
        let (_, _, answer) = post(&app, "/apply-template", &body).await;
        answer
    };
    assert_eq!(render(json!({"tone": "soft", "rare": 1})).await["prompt"], "xsoft");
    for name in ["enable_thinking", "Tone"] {
        let answer = render(json!({"tone": "soft", name: true})).await;
        assert_eq!(answer["prompt"], "xsoft");
        assert_eq!(answer["x_hotmetal"]["ignored"], json!([format!("chat_template_kwargs.{name}")]), "{answer}");
    }
    for name in ["messages", "tools", "documents", "add_generation_prompt"] {
        let answer = render(json!({"tone": "soft", name: true})).await;
        assert_eq!(answer["error"]["param"], format!("chat_template_kwargs.{name}"), "{answer}");
    }
}

#[tokio::test]
async fn a_server_has_defaults_for_the_variables_of_templates() {
    let template_defaults = Options::read_template_defaults(r#"{"tone": "soft", "unread": 1}"#).unwrap();
    let app = loading(Options { template_defaults, ..Options::default() });
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tone }}";
    serve_with(&app, config(), None, ChatTemplate::new(template).unwrap());
    let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
    let answer = ok(&app, "/apply-template", &body).await;
    assert_eq!((&answer["prompt"], &answer["x_hotmetal"]["ignored"]), (&json!("xsoft"), &Value::Null), "{answer}");
    body["chat_template_kwargs"] = json!({"tone": "loud"});
    assert_eq!(ok(&app, "/apply-template", &body).await["prompt"], "xloud");
    for (wrong, because) in [("[]", "an object in JSON"), ("{", "an object in JSON"), (r#"{"tools": []}"#, "`tools`")] {
        let error = Options::read_template_defaults(wrong).unwrap_err().to_string();
        assert!(error.contains(wrong) && error.contains(because), "{error}");
    }
}

/// The token that begins a call, and the same letters in other tokens: one is a call, the other is text.
#[test]
fn a_call_begins_with_a_token_and_not_with_its_letters() {
    let json = include_str!("../../../cli/builtin/tokenizer.json");
    let json = json.replace("<|im_start|>", "[TOOL_CALLS]").replace("<|endoftext|>", "[ARGS]");
    let tokenizer = Arc::new(Tokenizer::from_json(json.as_bytes(), None, &LoadOptions::default()).unwrap());
    let syntax = Some(ToolSyntax::MistralArgs);
    let without = Controls::of(Reasoning::None, &THINK_TAGS, syntax, &super::tokenizer());
    assert_eq!(without.tokens, [], "a vocabulary without them");
    let controls = Controls::of(Reasoning::None, &THINK_TAGS, syntax, &tokenizer);
    assert_eq!(controls.tokens, [(0, "[ARGS]".to_owned()), (1, "[TOOL_CALLS]".to_owned())]);
    assert!(controls.by_id.calls && !controls.by_id.reasoning);
    let options = Arc::new(TextOptions {
        stop: vec!["s".repeat(20)],
        stop_token_ids: Vec::new(),
        include_stop: false,
        list_end: false,
        skip_special: false,
        reply: Some(ReplyReader::new(Reasoning::None, syntax, Vec::new()).by_id(controls.by_id)),
        controls: controls.tokens,
        one_call: false,
        reasoning_max: None,
        checked: None,
    });
    let say = |ids: &[u32]| {
        let mut engine = Engine::new(Box::new(NullExecutable::new(config().kv, VOCAB_SIZE)), config()).unwrap();
        let request = engine::Request {
            max_tokens: Some(ids.len()),
            ignore_eos: true,
            ..engine::Request::new(vec![5], SamplingParams::default())
        };
        engine.submit(request).unwrap();
        let mut choice = Choice::new(Arc::clone(&tokenizer), Arc::clone(&options)).unwrap();
        let mut whole = crate::choice::Delta::default();
        for &id in ids {
            let mut output = engine.step().remove(0);
            output.token.as_mut().unwrap().id = id;
            whole.append(choice.push(output));
        }
        whole
    };
    let spell = |text: &str| tokenizer.encode(text, tokenizer::ParseSpecial::No).unwrap();
    let called = [spell("So: "), vec![1], spell("look"), vec![0], spell("{\"at\": \"é\"}")].concat();
    let called = say(&called);
    let parts = [
        Part::Content("So: ".to_owned()),
        Part::Call { name: "look".to_owned() },
        Part::Arguments("{\"at\": \"é\"}".to_owned()),
    ];
    assert_eq!(called.parts, parts);
    assert_eq!(called.text, "So: [TOOL_CALLS]look[ARGS]{\"at\": \"é\"}");
    let spelled = say(&spell("So: [TOOL_CALLS]look[ARGS]{} \u{fdd0}[TOOL_CALLS]"));
    assert_eq!(spelled.parts, [Part::Content("So: [TOOL_CALLS]look[ARGS]{} \u{fffd}[TOOL_CALLS]".to_owned())]);
}

#[test]
fn what_a_template_makes_of_a_call_says_how_the_model_writes_one() {
    let dialect = |source: &str| TemplateProfile::of(&ChatTemplate::new(source).unwrap());
    assert_eq!(dialect(HERMES).tools, Some(ToolSyntax::Hermes));
    assert_eq!(dialect(LLAMA).tools, Some(ToolSyntax::Llama3));
    assert_eq!(TemplateProfile::of(&chat_template()).tools, None);
    assert_eq!(dialect(HERMES).reasoning("<|im_start|>assistant\n"), Reasoning::Tagged);
    assert_eq!(dialect(HERMES).reasoning("<|im_start|>assistant\n<think>\n"), Reasoning::Open);
    assert_eq!(dialect(LLAMA).reasoning("<|im_start|>assistant\n"), Reasoning::None);
}

#[test]
fn real_templates_are_recognised() {
    for (file, tools, thinks) in [
        ("Qwen-Qwen2.5-7B-Instruct", Some(ToolSyntax::Hermes), false),
        ("Qwen-Qwen3-0.6B", Some(ToolSyntax::Hermes), true),
        ("Qwen-QwQ-32B", Some(ToolSyntax::Hermes), true),
        ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", Some(ToolSyntax::Hermes), false),
        ("meta-llama-Llama-3.1-8B-Instruct", Some(ToolSyntax::Llama3), false),
        ("meta-llama-Llama-3.2-3B-Instruct", Some(ToolSyntax::Llama3), false),
        ("mistralai-Mistral-Nemo-Instruct-2407", Some(ToolSyntax::MistralList), false),
        ("unsloth-mistral-Devstral-Small-2507", Some(ToolSyntax::MistralArgs), false),
        ("tekken.json v7", Some(ToolSyntax::MistralList), false),
        ("tekken.json v11", Some(ToolSyntax::MistralIds), false),
        ("tekken.json v13", Some(ToolSyntax::MistralArgs), false),
        ("GLM-4.7-Flash", Some(ToolSyntax::Glm), true),
        ("openai-gpt-oss-120b", Some(ToolSyntax::Harmony), false),
        ("deepseek-ai-DeepSeek-V3.1", Some(ToolSyntax::DeepSeek), true),
        ("ibm-granite-granite-3.3-2B-Instruct", Some(ToolSyntax::Phi4), false),
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", Some(ToolSyntax::Command), true),
        // More of llama.cpp's collection, for who puts them there.
        ("Apertus-8B-Instruct", Some(ToolSyntax::Apertus), false),
        ("Apriel-1.6-15b-Thinker-fixed", Some(ToolSyntax::Apriel), false),
        ("Bielik-11B-v3.0-Instruct", Some(ToolSyntax::Hermes), true),
        ("ByteDance-Seed-OSS", Some(ToolSyntax::SeedOss), true),
        ("Cohere2MoE", Some(ToolSyntax::Command), true),
        ("GLM-4.6", Some(ToolSyntax::Glm), true),
        ("LFM2.5-8B-A1B", Some(ToolSyntax::Lfm2), true),
        ("LFM2-8B-A1B", Some(ToolSyntax::Lfm2), false),
        ("MiniMax-M2", Some(ToolSyntax::MiniMax), true),
        ("Mistral-Small-3.2-24B-Instruct-2506", Some(ToolSyntax::MistralIds), false),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", Some(ToolSyntax::Qwen3Coder), true),
        ("NVIDIA-Nemotron-Nano-v2", Some(ToolSyntax::Nemotron), true),
        ("Qwen3-Coder", Some(ToolSyntax::Qwen3Coder), false),
        ("Qwen3.5-4B", Some(ToolSyntax::Qwen3Coder), true),
        ("StepFun3.5-Flash", Some(ToolSyntax::Qwen3Coder), true),
        ("deepseek-ai-DeepSeek-V3.2", Some(ToolSyntax::DeepSeekV32), true),
        ("deepseek-ai-DeepSeek-V4", Some(ToolSyntax::DeepSeekV4), true),
        ("google-gemma-4-31B-it", Some(ToolSyntax::Gemma4), true),
        ("ibm-granite-granite-4.0", Some(ToolSyntax::Hermes), false),
        ("llama-cpp-deepseek-r1", Some(ToolSyntax::DeepSeekFenced), true),
        ("meetkai-functionary-medium-v3.1", Some(ToolSyntax::Functionary), false),
        ("meetkai-functionary-medium-v3.2", Some(ToolSyntax::Recipients), false),
        ("mistralai-Ministral-3-14B-Reasoning-2512", Some(ToolSyntax::MistralArgs), true),
        ("moonshotai-Kimi-K2", Some(ToolSyntax::Kimi), false),
        // Forms that are not read yet are none, so that tools are told in words and calls are not misread.
        ("HuggingFaceTB-SmolLM3-3B", None, true),
        ("MiniMax-M3", None, false),
        ("google-gemma-2-2b-it", None, false),
        ("microsoft-Phi-3.5-mini-instruct", None, false),
    ] {
        let Some(source) = forced_calls::template(file) else { continue };
        let template = ChatTemplate::new(&source).unwrap();
        let dialect = TemplateProfile::of(&template);
        assert_eq!(dialect.tools, tools, "{file}");
        // Where all of a text is a call or messages, what stands around them would not be text.
        let is_text = |syntax: &ToolSyntax| [ToolSyntax::Llama3, ToolSyntax::Harmony].contains(syntax);
        let shown = tools.filter(|syntax| !is_text(syntax) && !dialect.calls_are_text);
        // Ids with names in them are Kimi's, and here they are none.
        if let Some(syntax) = shown.filter(|syntax| *syntax != ToolSyntax::Kimi) {
            let read = round_trips::read_back(&template, syntax);
            let arguments = json!({"s": "5 o'clock", "n": 5, "l": ["x", 1.5]});
            // LFM2.5's template writes a quote within a string as it is, which ends the string.
            let is_call = syntax != ToolSyntax::Lfm2;
            let expected = is_call.then(|| ("get_it".to_owned(), arguments));
            assert_eq!(read, expected.into_iter().collect::<Vec<_>>(), "{file}");
        }
        assert_eq!(dialect.reasoning("x") == Reasoning::Tagged, thinks, "{file}");
    }
}

/// What a schema says is held to, or is reported, or is refused where it is misspelt.
#[tokio::test]
async fn a_keyword_of_a_schema_is_held_to_or_told_by_its_place() {
    let app = app();
    let ask = async |schema: Value| post(&app, CHAT, &with(json!({"structured_outputs": {"json": schema}}))).await;
    let annotated = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "x", "title": "T", "description": "D",
        "type": "object", "default": {"maxLenght": 1}, "examples": [{"foo": {"bar": 1}}], "deprecated": false,
        "additionalProperties": false, "required": ["maxLenght"],
        "properties": {"maxLenght": {"$ref": "#/$defs/short", "$comment": "a property may be called anything"}},
        "$defs": {"short": {"enum": ["a", "b", {"foo": 1}], "example": "a"}},
    });
    let (status, _, answer) = ask(annotated).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    for (schema, place) in [
        (json!({"type": "string", "maxLenght": 3}), "maxLenght"),
        (json!({"type": "array", "prefixItems": [{}, {"Type": "string"}]}), "prefixItems[1].Type"),
        (json!({"anyOf": [{"properties": {"a": {"require": []}}}]}), "anyOf[0].properties.a.require"),
        (json!({"$defs": {"a": {"minimun": 1}}, "type": "object"}), "$defs.a.minimun"),
    ] {
        let (status, _, answer) = ask(schema.clone()).await;
        let param = format!("structured_outputs.json.{place}");
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)), "{schema}: {answer}");
    }
    for (schema, list, place) in [
        (json!({"type": "string", "maxLength": 4, "x-guidance": {"lenient": true}}), "ignored", "x-guidance"),
        (
            json!({"type": "object", "additionalProperties": {"type": "null", "foo": 1}, "maxProperties": 1}),
            "ignored",
            "additionalProperties.foo",
        ),
        (json!({"type": "boolean", "not": {"const": true}}), "schema_unchecked", "not"),
        (
            json!({"type": "array", "maxItems": 1, "items": {"type": "array", "maxItems": 1, "uniqueItems": true}}),
            "schema_unchecked",
            "items.uniqueItems",
        ),
    ] {
        let (status, _, answer) = ask(schema.clone()).await;
        assert_eq!(status, StatusCode::OK, "{schema}: {answer}");
        assert_eq!(answer["x_hotmetal"][list], json!([format!("structured_outputs.json.{place}")]), "{answer}");
    }
    // What no grammar holds the answer to is looked at when it is whole.
    let twice = json!({"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2, "uniqueItems": true});
    let (_, _, answer) = ask(twice.clone()).await;
    assert_eq!(answer["x_hotmetal"]["schema_failed"], json!(["/: uniqueItems"]), "{answer}");
    let once = json!({"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 1, "uniqueItems": true});
    let (_, _, answer) = ask(once).await;
    assert_eq!(answer["x_hotmetal"]["schema_failed"], Value::Null, "{answer}");
    let both = with(json!({"response_format": {"type": "json_object", "schema": twice}, "n": 2, "stream": true}));
    let events = stream(&app, CHAT, &both).await;
    let failed = events.iter().find_map(|event| event["x_hotmetal"].get("schema_failed"));
    let expected = json!(["choices[0]/: uniqueItems", "choices[1]/: uniqueItems"]);
    assert_eq!(failed, Some(&expected), "{events:?}");
    // Of a call that the model has to make, too.
    let app = app_with(HERMES);
    let mut tools = weather();
    tools[0]["function"]["parameters"]["properties"]["unit"]["pattrn"] = json!(["C"]);
    let (status, _, answer) = post(&app, CHAT, &with(json!({"tools": tools, "tool_choice": "required"}))).await;
    let param = "tools[0].function.parameters.properties.unit.pattrn";
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)), "{answer}");
}

/// Whatever a grammar asks for, the answer comes in bounded time, and the server stays.
#[tokio::test]
async fn hostile_grammars_are_refused_or_honoured_in_bounded_time() {
    let app = app();
    let nested = (0..20).fold(json!({"type": "string"}), |inner, _| json!({"type": "array", "items": inner}));
    let wide: Vec<String> = (0..3000).map(|i| format!("choice number {i}")).collect();
    let taken = (StatusCode::OK, Value::Null);
    let refused = |code: &str| (StatusCode::BAD_REQUEST, json!(code));
    let unsupported = || refused("unsupported_parameter");
    let cases = [
        (json!({"structured_outputs": {"regex": "((a{0,100}){0,100}){0,100}"}}), taken.clone()),
        (json!({"structured_outputs": {"regex": "(.*a){60}.*(b|c){90}"}}), taken.clone()),
        (json!({"structured_outputs": {"regex": "[a-z]{1,1000000}"}}), taken.clone()),
        (json!({"structured_outputs": {"regex": "(a|aa)+$"}}), taken.clone()),
        (json!({"structured_outputs": {"regex": "x".repeat(70_000)}}), (StatusCode::BAD_REQUEST, Value::Null)),
        (json!({"structured_outputs": {"grammar": "start: start"}}), refused("grammar_failed")),
        (json!({"structured_outputs": {"grammar": "start: start start | \"a\""}}), taken.clone()),
        (json!({"structured_outputs": {"grammar": "start: a*\na: b*\nb: start*"}}), taken.clone()),
        (json!({"structured_outputs": {"grammar": "start: /(/"}}), unsupported()),
        (json!({"structured_outputs": {"choice": wide}}), taken.clone()),
        (json!({"structured_outputs": {"json": {"$ref": "#"}}}), refused("grammar_failed")),
        (json!({"structured_outputs": {"json": {"$ref": "http://example.com/schema"}}}), unsupported()),
        (json!({"structured_outputs": {"json": nested}}), taken.clone()),
        (json!({"json_schema": {"type": "string", "pattern": "(a*)*b", "minLength": 100_000}}), unsupported()),
        (json!({"structured_outputs": {"json": {"type": "array", "minItems": 1_000_000_000}}}), taken.clone()),
    ];
    let mut wrong = Vec::new();
    for (case, expected) in cases {
        let begun = std::time::Instant::now();
        let mut body = with(case.clone());
        body["max_tokens"] = json!(6);
        let (status, _, answer) = post(&app, CHAT, &body).await;
        let time = begun.elapsed();
        // Slow where tests run without optimisation; unbounded is something else.
        assert!(time < Duration::from_secs(20), "{time:?} for {:.80}", case.to_string());
        let made = (status, answer["error"]["code"].clone());
        if made != expected {
            wrong.push(format!(
                "{made:?}, not {expected:?}, for {:.80}: {:.300}",
                case.to_string(),
                answer.to_string()
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Of a grammar without any text, the message says what to look for, and not what the library calls it.
    let (_, _, answer) = post(&app, CHAT, &with(json!({"structured_outputs": {"grammar": "start: start"}}))).await;
    let message = "the grammar failed: no text keeps to it; look for a rule that needs itself";
    assert_eq!(answer["error"]["message"], message);
    ok(&app, CHAT, &hello()).await;
    idle(&app).await;
}

/// Kept, a grammar is at its beginning for each text; what is kept is bounded.
#[tokio::test]
async fn a_grammar_that_is_asked_for_again_is_not_compiled_again() {
    let app = app();
    let body = |number: usize| with(json!({"structured_outputs": {"regex": format!("[ab]{{4}}{number}")}}));
    let serving = app.serving(None).unwrap();
    for _ in 0..3 {
        let answer = ok(&app, CHAT, &body(0)).await;
        assert!(text_of(&answer).ends_with('0'), "{answer}");
        assert_eq!(serving.grammars.num_kept(), 1);
    }
    for number in 1..80 {
        let change = json!({"max_tokens": 1});
        let mut body = body(number);
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        ok(&app, CHAT, &body).await;
    }
    assert_eq!(serving.grammars.num_kept(), 80);
    // Refused ones are not kept.
    let (status, _, _) = post(&app, CHAT, &with(json!({"structured_outputs": {"regex": "("}}))).await;
    assert_eq!((status, serving.grammars.num_kept()), (StatusCode::BAD_REQUEST, 80));
    // It is bytes that count: these take megabytes each.
    for number in 0..9 {
        let regex = format!("({})", format!("[a-z]{{1,40}}{number}|").repeat(1500));
        let body = json!({"structured_outputs": {"regex": regex}, "max_tokens": 1});
        let (status, _, answer) = post(&app, CHAT, &with(body)).await;
        assert!(status == StatusCode::OK || answer["error"]["code"] == "grammar_too_complex", "{answer}");
        assert!(serving.grammars.is_within_bound());
    }
}

/// Tools and a schema in one request: the text is a call, or an answer of that schema, and nothing else.
#[tokio::test]
async fn a_text_calls_a_tool_or_keeps_to_the_schema_of_the_answer() {
    let app = app_with(HERMES);
    let schema = json!({"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}});
    let (mut calls, mut answers) = (0, 0);
    for seed in 0..24 {
        let body = with(
            json!({"tools": weather(), "response_format": format, "seed": seed, "temperature": 100, "top_p": 1, "max_tokens": 200}),
        );
        let message = ok(&app, CHAT, &body).await["choices"][0]["message"].clone();
        match message["tool_calls"].as_array() {
            Some(made) => {
                assert_eq!(made[0]["function"]["name"], "get_weather");
                calls += 1;
            }
            None => {
                let answer: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
                assert!(answer["yes"].is_boolean() && answer.as_object().unwrap().len() == 1, "{answer}");
                answers += 1;
            }
        }
    }
    assert!(calls > 0 && answers > 0, "{calls} calls and {answers} answers");
    let forced =
        with(json!({"tools": weather(), "tool_choice": "required", "response_format": format, "max_tokens": 200}));
    let answer = ok(&app, CHAT, &forced).await;
    assert_eq!(answer["x_hotmetal"]["ignored"], json!(["response_format"]));
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
}

/// Pydantic's discriminated union, in the forms in which schemas come; objects end, since they are closed.
#[tokio::test]
async fn a_discriminated_union_is_held_to_wherever_a_schema_may_stand() {
    let app = app();
    let of_kind = |kind: &str, more: &str| {
        json!({"type": "object", "properties": {"kind": {"const": kind, "type": "string"}, more: {"type": "boolean"}},
            "required": ["kind", more]})
    };
    let schema = json!({
        "$defs": {"Cat": of_kind("cat", "purrs"), "Dog": of_kind("dog", "barks")},
        "properties": {"pet": {"discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"},
            "propertyName": "kind"}, "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}},
        "required": ["pet"], "title": "Owner", "type": "object",
    });
    for (name, value) in [
        ("response_format", json!({"type": "json_schema", "json_schema": {"name": "o", "schema": schema}})),
        ("response_format", json!({"type": "json_schema", "schema": schema})),
        ("response_format", json!({"type": "json_object", "schema": schema})),
        ("structured_outputs", json!({"json": schema})),
        ("guided_json", schema.clone()),
        ("guided_json", schema.to_string().into()),
        ("json_schema", schema.clone()),
    ] {
        for seed in 0..3 {
            let answer = ok(&app, CHAT, &with(json!({name: value, "seed": seed, "max_tokens": 150}))).await;
            assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
            assert_eq!(answer["x_hotmetal"]["schema_unchecked"], Value::Null);
            let pet = serde_json::from_str::<Value>(text_of(&answer)).unwrap()["pet"].clone();
            let member = if pet["kind"] == "cat" { "purrs" } else { "barks" };
            assert!(pet[member].is_boolean() && pet.as_object().unwrap().len() == 2, "{pet}");
        }
    }
    let unique = json!({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": true, "maxItems": 2});
    let answer = ok(&app, CHAT, &with(json!({"json_schema": unique, "max_tokens": 60}))).await;
    assert_eq!(answer["x_hotmetal"]["schema_unchecked"], json!(["json_schema.uniqueItems"]));
}

/// Each of these ended the process, ran for ever, or held up everybody's step; now each is refused or honoured in time.
#[tokio::test]
async fn deep_and_endless_grammars_end_no_server() {
    let app = app();
    let refs: serde_json::Map<String, Value> = (0..1000)
        .map(|index| {
            (format!("d{index}"), json!({"anyOf": [{"$ref": format!("#/$defs/d{}", index + 1)}, {"type": "null"}]}))
        })
        .chain([("d1000".to_owned(), json!({"type": "integer"}))])
        .collect();
    let rules: String = (0..2500).map(|index| format!("r{index}: \"a\" r{}\n", index + 1)).collect();
    let terminals: String = (0..2500).map(|index| format!("T{index}: \"a\" T{}\n", index + 1)).collect();
    let multiples: Vec<Value> = [7, 11, 13, 17, 19, 23].map(|of| json!({"type": "integer", "multipleOf": of})).into();
    let taken = (StatusCode::OK, Value::Null);
    let complex = (StatusCode::BAD_REQUEST, json!("grammar_too_complex"));
    let lark = |text: String| json!({"structured_outputs": {"grammar": text}});
    let double: String = (0..40).map(|index| format!("T{index}: T{} T{}\n", index + 1, index + 1)).collect();
    let meeting: Vec<String> = (0..8).map(|index| format!("/(.{{{}}})*x/", index + 2)).collect();
    let bodies = [
        (
            json!({"json_schema": {"$defs": refs, "$ref": "#/$defs/d0"}}),
            (StatusCode::BAD_REQUEST, json!("grammar_failed")),
        ),
        (lark(format!("start: r0\n{rules}r2500: \"b\"\n")), taken.clone()),
        (lark(format!("start: T0\n{terminals}T2500: \"b\"\n")), taken.clone()),
        (json!({"json_schema": {"allOf": multiples}}), complex.clone()),
        (json!({"json_schema": {"multipleOf": 1_000_003, "type": "integer"}}), complex.clone()),
        (lark(format!("start: %json {}", json!({"allOf": multiples}))), complex.clone()),
        (lark(format!("start: T0\n{double}T40: \"b\"\n")), complex.clone()),
        // This one only the automaton's first step finds out.
        (
            lark(format!("start: T\nT: {}", meeting.join(" & "))),
            (StatusCode::BAD_REQUEST, json!("unsupported_parameter")),
        ),
        (json!({"structured_outputs": {"regex": "a?".repeat(20_000)}}), complex.clone()),
        (lark(format!("start: {}", "\"a\"? ".repeat(4000))), taken.clone()),
        (json!({"structured_outputs": {"regex": format!("({})", "[a-z]{1,40}x|".repeat(2000))}}), taken.clone()),
    ];
    let mut wrong = Vec::new();
    for (body, expected) in bodies {
        let begun = std::time::Instant::now();
        let (status, _, answer) = post(&app, CHAT, &with(with_tokens(body.clone(), 20))).await;
        let text = body.to_string();
        let text = &text[..text.len().min(80)];
        assert!(begun.elapsed() < Duration::from_secs(60), "{text}");
        assert!(answer.to_string().len() < 4000, "{text}");
        let made = (status, answer["error"]["code"].clone());
        if made != expected {
            wrong.push(format!("{made:?}, not {expected:?}, for {text}: {:.300}", answer.to_string()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Time ends this one, on a slow machine sooner than its tokens do.
    let body = with(with_tokens(lark("start: s\ns: s s s | s s | /[a-z ]/".to_owned()), 20));
    let (status, _, answer) = post(&app, CHAT, &body).await;
    assert!(status == StatusCode::OK || answer["error"]["code"] == "grammar_failed", "{answer}");
    // And the server goes on.
    ok(&app, CHAT, &hello()).await;
}

/// Five grammars that took all time there is, at once; a good one is compiled all the same, and no place stays taken.
#[tokio::test]
async fn grammars_that_take_too_long_keep_no_good_one_out() {
    let app = app();
    let multiples = |offset: u64| -> Vec<Value> {
        [7, 11, 13, 17, 19, 23].map(|of| json!({"type": "integer", "multipleOf": of, "minimum": offset})).into()
    };
    let asks = (0..5).map(|index| {
        let meeting: Vec<String> = (0..8).map(|part| format!("/(.{{{}}})*x{index}/", part + 2)).collect();
        let text = if index % 2 == 0 {
            format!("start: T\nT: {}", meeting.join(" & "))
        } else {
            format!("start: %json {}", json!({"allOf": multiples(index)}))
        };
        let (app, body) = (app.clone(), with(json!({"structured_outputs": {"grammar": text}})));
        tokio::spawn(async move { post(&app, CHAT, &body).await })
    });
    let asks: Vec<_> = asks.collect();
    for ask in asks {
        let (status, _, answer) = ask.await.unwrap();
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    }
    let begun = std::time::Instant::now();
    let answer = ok(&app, CHAT, &with(json!({"structured_outputs": {"regex": "good"}}))).await;
    assert_eq!(text_of(&answer), "good");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

fn with_tokens(mut body: Value, max_tokens: usize) -> Value {
    body["max_tokens"] = max_tokens.into();
    body
}

/// A model with two templates is shown tools by the one that is named for them, and its calls are read as that one writes
/// them.
#[tokio::test]
async fn a_template_for_tools_is_for_conversations_with_tools() {
    const PLAIN: &str = "{% for m in messages %}plain {{ m.role }}: {{ m.content }}\n{% endfor %}";
    let app = loading(Options { generic_tools: false, ..Options::default() });
    let model = served(config(), None, ChatTemplate::new(PLAIN).unwrap());
    app.ready(ServedModel { tool_template: Some(ChatTemplate::new(HERMES).unwrap()), ..model }).unwrap();
    let messages = json!([{"role": "user", "content": "weather?"}]);
    let prompt = async |body: Value| ok(&app, "/apply-template", &body).await["prompt"].as_str().unwrap().to_owned();
    assert_eq!(prompt(json!({"messages": messages})).await, "plain user: weather?\n");
    let with_tools = prompt(json!({"messages": messages, "tools": weather()})).await;
    assert!(with_tools.starts_with("Tools: ") && !with_tools.contains("plain"), "{with_tools}");
    // An empty list offers nothing.
    assert!(prompt(json!({"messages": messages, "tools": []})).await.starts_with("plain"));
    let body =
        json!({"messages": messages, "tools": weather(), "tool_choice": "required", "max_tokens": 200, "seed": 1});
    let answer = ok(&app, "/v1/chat/completions", &body).await;
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "get_weather", "{answer}");
}
