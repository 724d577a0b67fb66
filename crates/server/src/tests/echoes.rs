//! What a route emits, every route takes back: models that say a given text, and clients that send back what they got.

use super::forced_calls::template;
use super::parrot::{Client, Parrot, ROUTES};
use super::structure::{HERMES, app_with, weather};
use super::*;

/// A template that counts the characters of ids, wants roles to alternate, and takes no system message.
const MISTRAL: &str = r#"{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- set ns = namespace(index=0) %}
{%- for m in messages %}
  {%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
    {%- if (m.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
    {%- set ns.index = ns.index + 1 %}
  {%- endif %}
  {%- if m.role == 'user' %}[INST]{{ m.content }}[/INST]
  {%- elif m.role == 'tool' %}
    {%- if m.tool_call_id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}[TOOL_RESULTS]{{ m.content }}|{{ m.tool_call_id }}[/TOOL_RESULTS]
  {%- elif m.tool_calls %}[TOOL_CALLS][
    {%- for c in m.tool_calls %}
      {%- if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}
    {%- endfor %}]
  {%- elif m.role == 'assistant' %}{{ m.content }}
  {%- else %}{{ raise_exception('no such role') }}{% endif %}
{%- endfor %}"#;

const LLAMA: &str = r#"{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"#;

/// Opens a thought, and shows no earlier one.
const OPENS: &str = r#"{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content.split('</think>')[-1] if m.content else '' }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"#;

/// How a family of models writes calls with these arguments.
fn written(form: &str, calls: &[&str]) -> String {
    let each = |write: &dyn Fn(&str) -> String| calls.iter().map(|call| write(call)).collect::<Vec<_>>();
    match form {
        "hermes" => {
            let object =
                |call: &str| format!("<tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {call}}}\n</tool_call>");
            each(&object).join("\n")
        }
        "llama" => each(&|call| format!("{{\"name\": \"get_weather\", \"parameters\": {call}}}")).join("; "),
        "list" => {
            let calls = each(&|call| format!("{{\"name\": \"get_weather\", \"arguments\": {call}}}"));
            format!("[TOOL_CALLS][{}]", calls.join(", "))
        }
        "granite" => {
            let calls = each(&|call| format!("{{\"name\": \"get_weather\", \"arguments\": {call}}}"));
            format!("<|tool_call|>[{}]", calls.join(", "))
        }
        "command" => {
            let calls = each(&|call| {
                format!("{{\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {call}}}")
            });
            format!("<|START_ACTION|>[\n    {}\n]<|END_ACTION|>", calls.join(",\n    "))
        }
        "ids" => each(&|call| format!("[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{call}")).concat(),
        "args" => each(&|call| format!("[TOOL_CALLS]get_weather[ARGS]{call}")).concat(),
        "deepseek" => {
            let calls =
                each(&|call| format!("<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{call}<｜tool▁call▁end｜>"))
                    .concat();
            format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")
        }
        "glm" => each(&|call| {
            let value: Value = serde_json::from_str(call).unwrap();
            // It has no other way to write them.
            let object = value.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or(value);
            let members = object.as_object().into_iter().flatten();
            let members = members.map(|(name, value)| {
                format!("<arg_key>{name}</arg_key><arg_value>{}</arg_value>", value.as_str().unwrap())
            });
            format!("<tool_call>get_weather{}</tool_call>", members.collect::<String>())
        })
        .join("\n"),
        "channels" => {
            let call = |call: &str| {
                format!("<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{call}<|call|>")
            };
            each(&call).join("<|start|>assistant")
        }
        other => panic!("{other}"),
    }
}

/// Every route × template × kind of answer: it is sent back as SDKs do it, and the conversation goes on.
#[tokio::test]
async fn what_a_route_emits_every_route_takes_back() {
    let own = [
        (HERMES.to_owned(), "hermes", &[][..]),
        (HERMES.to_owned(), "hermes", &["<tool_call>", "</tool_call>"]),
        (LLAMA.to_owned(), "llama", &[]),
        (OPENS.to_owned(), "hermes", &["<think>", "</think>"]),
        (MISTRAL.to_owned(), "list", &["[TOOL_CALLS]"]),
        // Shows no tools.
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}".to_owned(), "hermes", &[]),
    ];
    let real = [
        ("mistralai-Mistral-Nemo-Instruct-2407", "list", &["[TOOL_CALLS]"][..]),
        ("unsloth-mistral-Devstral-Small-2507", "args", &["[TOOL_CALLS]", "[ARGS]"]),
        ("tekken.json v7", "list", &["[TOOL_CALLS]"]),
        ("tekken.json v11", "ids", &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"]),
        ("tekken.json v13", "args", &["[TOOL_CALLS]", "[ARGS]"]),
        (
            "openai-gpt-oss-120b",
            "channels",
            &["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>"],
        ),
        (
            "GLM-4.7-Flash",
            "glm",
            &[
                "<tool_call>",
                "</tool_call>",
                "<arg_key>",
                "</arg_key>",
                "<arg_value>",
                "</arg_value>",
                "<think>",
                "</think>",
            ],
        ),
        ("deepseek-ai-DeepSeek-V3.1", "hermes", &["<think>", "</think>"]),
        ("Qwen-Qwen3-0.6B", "hermes", &["<think>", "</think>", "<tool_call>", "</tool_call>"]),
        ("Qwen-QwQ-32B", "hermes", &["<think>", "</think>"]),
        ("Qwen-Qwen2.5-7B-Instruct", "hermes", &[]),
        ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes", &[]),
        ("meta-llama-Llama-3.1-8B-Instruct", "llama", &[]),
        ("meta-llama-Llama-3.2-3B-Instruct", "llama", &[]),
        ("google-gemma-2-2b-it", "hermes", &[]),
        ("microsoft-Phi-3.5-mini-instruct", "hermes", &[]),
        ("HuggingFaceTB-SmolLM3-3B", "hermes", &[]),
        ("ibm-granite-granite-3.3-2B-Instruct", "granite", &[]),
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "command", &["<|START_ACTION|>", "<|END_ACTION|>"]),
    ];
    let real = real.iter().filter_map(|&(file, form, tokens)| Some((template(file)?, form, tokens)));
    for (source, form, tokens) in own.into_iter().chain(real) {
        let model = Parrot::new(&source, tokens, Options::default());
        let city = r#"{"unit": "C"}"#;
        let mut cases = vec![
            ("Good morning.".to_owned(), "Good morning.", Vec::new()),
            (String::new(), "", Vec::new()),
            (written(form, &[city]), "", vec![json!({"unit": "C"})]),
            (written(form, &["{}"]), "", vec![json!({})]),
            (written(form, &[r#""{\"unit\": \"C\"}""#]), "", vec![json!({"unit": "C"})]),
            (written(form, &["null"]), "", vec![json!({})]),
            (written(form, &[r#""""#]), "", vec![json!({})]),
            (written(form, &[city, "{}"]), "", vec![json!({"unit": "C"}), json!({})]),
        ];
        if form == "channels" {
            cases.push((
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.".to_owned(),
                "Yes.",
                Vec::new(),
            ));
        } else if tokens.contains(&"<think>") {
            cases.push(("<think>\nHm.\n</think>\n\nYes.".to_owned(), "Yes.", Vec::new()));
            cases.push((
                format!("<think>\nHm.\n</think>\n\n{}", written(form, &[city])),
                "",
                vec![json!({"unit": "C"})],
            ));
        }
        // A thought that the prompt has opened has to end before anything is said.
        let asked = json!({"messages": [{"role": "user", "content": "x"}], "tools": weather()});
        let prompt = ok(&model.app, "/apply-template", &asked).await["prompt"].clone();
        let opens = prompt.as_str().unwrap().trim_end().ends_with("<think>");
        for path in ROUTES {
            for (text, content, calls) in &cases {
                let mut client = Client::new(path);
                let opened = text.starts_with("<think>");
                let text = if opens && !opened { format!("Hm.</think>{text}") } else { text.clone() };
                let answer = model.say(&text, path, &client.body).await;
                let said = client.keep(&answer);
                let found: Vec<&Value> = said.calls.iter().map(|(_, arguments)| arguments).collect();
                assert_eq!(found, calls.iter().collect::<Vec<_>>(), "{path} {text}: {answer}\n{source}");
                assert_eq!(said.text, *content, "{path} {text}: {answer}\n{source}");
                let expected = match (path, calls.is_empty()) {
                    (CHAT, true) => "stop",
                    (CHAT, false) => "tool_calls",
                    (MESSAGES, true) => "end_turn",
                    (MESSAGES, false) => "tool_use",
                    (OLLAMA, _) => "stop",
                    _ => "completed",
                };
                assert_eq!(said.finish, expected, "{path} {text}: {answer}");
                // The conversation goes on, twice.
                let answer = model.say("Hm.</think>So it is.", path, &client.body).await;
                client.keep(&answer);
                model.say("Good.", path, &client.body).await;
            }
            // An answer that was cut goes back as it is.
            let mut client = Client::new(path);
            for most in [1, 6, 14, 20] {
                client.limit(most);
                let answer = model.say(&written(form, &[city]), path, &client.body).await;
                client.limit(100);
                client.keep(&answer);
                let next = model.say("Hm.</think>So it is.", path, &client.body).await;
                client.keep(&next);
            }
        }
    }
}

/// Agents send the user's words behind results, which templates that count turns refuse; and several calls in one message,
/// of which some templates show one.
#[tokio::test]
async fn messages_follow_each_other_as_the_template_wants() {
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let body = json!({"messages": [
        {"role": "user", "content": "a"}, {"role": "user", "content": "b"},
        {"role": "assistant", "content": null, "tool_calls": [call("call00001"), call("call00002")]},
        {"role": "tool", "tool_call_id": "call00002", "content": "12"},
        {"role": "tool", "tool_call_id": "call00001", "content": "13"},
        {"role": "user", "content": "c"},
    ]});
    let prompt = async |template: &str| {
        let app = app_with(template);
        ok(&app, "/apply-template", &body).await["prompt"].as_str().unwrap().to_owned()
    };
    let counted = prompt(MISTRAL).await;
    assert!(counted.contains("[INST]a\nb[/INST]"), "{counted}");
    assert!(
        counted.ends_with("[TOOL_RESULTS]12|call00002[/TOOL_RESULTS][TOOL_RESULTS]13\nc|call00001[/TOOL_RESULTS]"),
        "{counted}"
    );
    let single = LLAMA.replace(
        "{% for c in m.tool_calls or [] %}",
        "{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one call') }}{% endif %}{% for c in m.tool_calls or [] %}",
    );
    let single = prompt(&single).await;
    let call = "<|im_start|>assistant\n{\"name\": \"f\", \"parameters\": {}}<|im_end|>\n";
    let result = |text: &str| format!("<|im_start|>tool\n{text}<|im_end|>\n");
    assert!(single.contains(&format!("{call}{}{call}{}", result("13"), result("12"))), "{single}");
}

/// Calls whose arguments cannot be read are text: on every route, with a warning, and never a call without arguments.
#[tokio::test]
async fn a_call_that_cannot_be_read_is_given_back_as_text() {
    let model = Parrot::new(HERMES, &[], Options::default());
    for text in [
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {unit: C}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"unit\": \"C\"",
        "<tool_call>get_weather(C)</tool_call>",
    ] {
        for path in ROUTES {
            let mut client = Client::new(path);
            model.prepare(text).await;
            let answer = ok(&model.app, path, &client.body).await;
            let said = client.keep(&answer);
            assert_eq!((said.text.as_str(), said.calls.len()), (text, 0), "{path}: {answer}");
            assert!(["stop", "end_turn", "completed"].contains(&said.finish.as_str()), "{answer}");
            let warning = answer["x_hotmetal"]["warnings"][0].as_str().unwrap();
            assert!(warning.contains("could not be read"), "{warning}");
            model.say("So.", path, &client.body).await;
        }
    }
    // A name that nobody offered is the client's to judge.
    let mut client = Client::new(CHAT);
    let answer =
        model.say("<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>", CHAT, &client.body).await;
    let said = client.keep(&answer);
    assert_eq!(said.calls, [("get_time".to_owned(), json!({}))]);
    assert!(answer["x_hotmetal"]["warnings"][0].as_str().unwrap().contains("`get_time`"), "{answer}");
}

/// Thoughts that the model opens itself, though its template knows none: its vocabulary has them.
#[tokio::test]
async fn a_thought_that_the_model_opens_itself_is_reasoning() {
    let model = Parrot::new(LLAMA, &["<think>", "</think>"], Options::default());
    let mut client = Client::new(CHAT);
    let answer = model.say("<think>\nHm.</think>\nYes.", CHAT, &client.body).await;
    let message = &answer["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("Hm."), &json!("Yes.")));
    client.keep(&answer);
    let next = model.say("Good.", CHAT, &client.body).await;
    assert_eq!(next["x_hotmetal"]["ignored"], json!(["messages[1].reasoning_content"]));
}

/// Ids of any form become what the template takes, the same in the call and in its result.
#[tokio::test]
async fn ids_have_nine_characters_where_the_template_counts_them() {
    let model = Parrot::new(MISTRAL, &["[TOOL_CALLS]"], Options::default());
    let prompt = async |id: &str| {
        let call = json!({"id": id, "type": "function", "function": {"name": "f", "arguments": ""}});
        let body = json!({"messages": [
            {"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": id, "content": "12"},
        ]});
        ok(&model.app, "/apply-template", &body).await["prompt"].as_str().unwrap().to_owned()
    };
    let kept = prompt("AbCdEfGh9").await;
    assert!(kept.contains("\"id\": \"AbCdEfGh9\"") && kept.contains("12|AbCdEfGh9["), "{kept}");
    let id_of = |prompt: &str| prompt.split_once("12|").unwrap().1[..9].to_owned();
    let (one, other) = (prompt("toolu_01A09q90qw90lq917835lq9").await, prompt("call_x").await);
    assert!(one.contains(&format!("\"id\": \"{}\"", id_of(&one))), "{one}");
    assert_ne!(id_of(&one), id_of(&other));
    assert_eq!(one, prompt("toolu_01A09q90qw90lq917835lq9").await);
    // Elsewhere they stay as they are.
    let hermes = app_with(&HERMES.replace("{{ m.content }}", "{{ m.tool_call_id }}{{ m.content }}"));
    let call = json!({"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let body = json!({"messages": [
        {"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "12"},
    ]});
    let shown = ok(&hermes, "/apply-template", &body).await;
    assert!(shown["prompt"].as_str().unwrap().contains("toolu_112"), "{shown}");
}

/// Results without ids belong to their calls in order, and a message without content is one with none.
#[tokio::test]
async fn what_clients_leave_out_of_a_message_is_filled_in() {
    let app = app_with(&HERMES.replace("{{ m.content }}", "{{ m.tool_call_id }}{{ m.content }}"));
    let render = async |messages: Value| {
        ok(&app, "/apply-template", &json!({"messages": messages})).await["prompt"].as_str().unwrap().to_owned()
    };
    let call = |arguments: Value| {
        let function = json!({"name": "f", "arguments": arguments});
        json!([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"function": function}]}])
    };
    let empty = render(call(json!({}))).await;
    for arguments in [json!(""), json!("{}"), json!(null), json!(" "), json!("null"), json!("\"{}\"")] {
        assert_eq!(render(call(arguments.clone())).await, empty, "{arguments}");
    }
    let mut without = call(json!({}));
    without[1]["tool_calls"][0]["function"].as_object_mut().unwrap().remove("arguments");
    assert_eq!(render(without).await, empty);
    for content in [json!(null), json!([]), json!("")] {
        let mut with = call(json!({}));
        with[1]["content"] = content;
        // What the template makes of no content and of an empty one is its own.
        render(with).await;
    }
    let mut answered = call(json!({}));
    let messages = answered.as_array_mut().unwrap();
    messages.push(json!({"role": "tool", "content": "12"}));
    let prompt = render(answered.clone()).await;
    assert!(prompt.contains("call0000012"), "{prompt}");
    // What an assistant refused with is what it said.
    let refused = render(json!([
        {"role": "user", "content": "x"}, {"role": "assistant", "content": null, "refusal": "I will not."},
        {"role": "user", "content": "y"},
    ]));
    assert!(refused.await.contains("I will not."));
}

#[tokio::test]
async fn tools_are_described_where_the_template_shows_none() {
    let plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    let model = Parrot::new(plain, &[], Options::default());
    let call =
        json!({"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{\"unit\": \"C\"}"}});
    let body = json!({"tools": weather(), "messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"},
        {"role": "assistant", "content": null, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "a", "content": "12"}, {"role": "tool", "tool_call_id": "a", "content": "13"},
    ]});
    let shown = ok(&model.app, "/apply-template", &body).await;
    let prompt = shown["prompt"].as_str().unwrap();
    assert!(prompt.starts_with("system: Be brief.\n\nYou may call functions"), "{prompt}");
    assert!(prompt.contains("\"name\":\"get_weather\",\"description\":\"The weather somewhere.\""), "{prompt}");
    let calls = "<tool_call>\n{\"name\":\"get_weather\",\"arguments\":{\"unit\":\"C\"}}\n</tool_call>";
    let results = "<tool_response>\n12\n</tool_response>\n<tool_response>\n13\n</tool_response>";
    let tail = format!("user: x\nassistant: {calls}\n{calls}\nuser: {results}\n");
    assert!(prompt.ends_with(&tail), "{prompt}");
    // Without tools, nothing is added.
    let bare = json!({"messages": [{"role": "user", "content": "x"}]});
    assert_eq!(ok(&model.app, "/apply-template", &bare).await["prompt"], "user: x\n");

    // The model has to call where it is told to.
    let app = app_with(plain);
    let mut whole = 0;
    for seed in 0..6 {
        let body = json!({
            "messages": [{"role": "user", "content": "x"}], "tools": weather(), "tool_choice": "required",
            "max_tokens": 120, "seed": seed,
        });
        let answer = ok(&app, CHAT, &body).await;
        if answer["choices"][0]["finish_reason"] == "tool_calls" {
            let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
            let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
            assert!(["C", "F"].iter().any(|unit| arguments["unit"] == *unit), "{call}");
            whole += 1;
        }
    }
    assert!(whole > 0, "no call was whole");

    let strict = Parrot::new(plain, &[], Options { generic_tools: false, ..Options::default() });
    for path in ROUTES {
        let (status, _, answer) = post(&strict.app, path, &Client::new(path).body).await;
        let error = if path == OLLAMA { &answer } else { &answer["error"] };
        assert_eq!((status, &error["param"]), (StatusCode::BAD_REQUEST, &json!("tools")), "{answer}");
    }
}

/// The answer goes on with the last words of the conversation, on every route: the prompt ends with them.
#[tokio::test]
async fn an_answer_goes_on_with_given_words() {
    let trims = HERMES.replace("{{ m.content }}", "{{ m.content | trim }}");
    for (template, given, shown) in [
        (HERMES, "Once upon", "Once upon"),
        (HERMES, "Once upon ", "Once upon "),
        (&trims, "Once upon ", "Once upon"),
        (HERMES, "x", "x"),
        (HERMES, "assistant", "assistant"),
    ] {
        let model = Parrot::new(template, &[], Options::default());
        let messages = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": given}]);
        let go_on = json!({"messages": messages, "continue_final_message": true, "add_generation_prompt": false});
        let prompt = ok(&model.app, "/apply-template", &go_on).await;
        let expected = format!("<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n{shown}");
        assert_eq!(prompt["prompt"], expected, "{given}");
        let count = ok(&model.app, "/tokenize", &go_on).await["count"].as_u64().unwrap();

        let mut body = go_on.clone();
        body["max_tokens"] = json!(20);
        let answer = model.say(" a time", CHAT, &body).await;
        assert_eq!(answer["choices"][0]["message"]["content"], " a time");
        assert_eq!(answer["usage"]["prompt_tokens"], count);
        let answer = model.say(" a time", MESSAGES, &json!({"messages": messages, "max_tokens": 20})).await;
        assert_eq!(answer["content"][0]["text"], " a time");
        let counted = |answer: &Value| {
            let usage = &answer["usage"];
            usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap_or(0)
        };
        assert_eq!(counted(&answer), count);
        let answer = model.say(" a time", RESPONSES, &json!({"input": messages, "max_output_tokens": 20})).await;
        assert_eq!(answer["output"][0]["content"][0]["text"], " a time");
        assert_eq!(counted(&answer), count);
    }
    // The message may say so itself, in other interfaces' words.
    let model = Parrot::new(HERMES, &[], Options::default());
    for name in ["prefix", "partial"] {
        let said = |value: Value| {
            json!({"max_tokens": 20, "messages": [
                {"role": "user", "content": "x"}, {"role": "assistant", "content": "Once upon", name: value},
            ]})
        };
        let prompt = ok(&model.app, "/apply-template", &said(json!(true))).await;
        assert_eq!(prompt["prompt"], "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\nOnce upon", "{name}");
        let answer = model.say(" a time", CHAT, &said(json!(true))).await;
        assert_eq!(answer["choices"][0]["message"]["content"], " a time");
        let prompt = ok(&model.app, "/apply-template", &said(json!(false))).await;
        assert!(prompt["prompt"].as_str().unwrap().ends_with("<|im_start|>assistant\n"), "{prompt}");
        let (status, _, answer) = post(&model.app, CHAT, &said(json!(1))).await;
        let param = format!("messages[1].{name}");
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)), "{answer}");
    }
    // A thought that the given words have begun goes on as one.
    let model = Parrot::new(HERMES, &["<think>", "</think>"], Options::default());
    let messages = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>\nI"}]);
    let body = json!({"messages": messages, "continue_final_message": true, "max_tokens": 20});
    let answer = model.say(" see.</think>Yes.", CHAT, &body).await;
    let message = &answer["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!(" see."), &json!("Yes.")));
    for (change, param) in [
        (json!({"add_generation_prompt": true}), "continue_final_message"),
        (json!({"messages": [{"role": "user", "content": "x"}]}), "continue_final_message"),
    ] {
        let mut body = body.clone();
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let (status, _, answer) = post(&model.app, CHAT, &body).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)), "{answer}");
    }
}
