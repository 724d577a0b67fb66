//! Texts of each family, taken apart.

use proptest::prelude::*;

use super::*;

/// A reply put together: reasoning, content, calls with their arguments.
#[derive(Clone, Debug, Default, PartialEq)]
struct Reply {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
}

fn read(reader: ReplyReader, pieces: &[&str]) -> Reply {
    read_to(reader, pieces, true)
}

/// Of a text that is cut behind them, or one that the model has ended.
fn read_to(mut reader: ReplyReader, pieces: &[&str], cut: bool) -> Reply {
    let mut reply = Reply::default();
    let mut parts = Vec::new();
    for piece in pieces {
        reader.push(piece, &mut parts);
        add(&mut reply, &mut parts);
    }
    reader.finish(&mut parts, cut);
    add(&mut reply, &mut parts);
    reply
}

fn add(reply: &mut Reply, parts: &mut Vec<Part>) {
    for part in parts.drain(..) {
        match part {
            Part::Content(text) => reply.content.push_str(&text),
            Part::Reasoning(text) => reply.reasoning.push_str(&text),
            Part::Call { name } => reply.calls.push((name, String::new())),
            Part::Arguments(text) => reply.calls.last_mut().unwrap().1.push_str(&text),
            Part::NoCall(text) => {
                reply.calls.pop().unwrap();
                reply.content.push_str(&text);
            }
        }
    }
}

fn reader(reasoning: Reasoning, syntax: Option<ToolSyntax>) -> ReplyReader {
    let function = |name: &str| Function { name: name.to_owned(), strings: vec!["s".to_owned()] };
    ReplyReader::new(reasoning, syntax, vec![function("f"), function("g_2")])
}

fn reply(reasoning: &str, content: &str, calls: &[(&str, &str)]) -> Reply {
    let calls = calls.iter().map(|&(name, arguments)| (name.to_owned(), arguments.to_owned())).collect();
    Reply { reasoning: reasoning.to_owned(), content: content.to_owned(), calls }
}

/// Where control tokens are known by their ids, text that looks like one is text, however it is cut. Here `*` is what
/// stands before a token.
#[test]
fn a_control_token_that_is_spelled_begins_nothing() {
    use Reasoning::{Channels, None as Plain, Open, Tagged};
    use ToolSyntax::{DeepSeek, Glm, Harmony, MistralArgs, MistralIds, MistralList};
    let list = r#"[{"name": "f", "arguments": {"x": "[TOOL_CALLS]"}}]"#;
    let cases = [
        (Plain, MistralArgs, "a *[TOOL_CALLS]f*[ARGS]{\"x\": 1}".to_owned(), reply("", "a ", &[("f", "{\"x\": 1}")])),
        (Plain, MistralArgs, "[TOOL_CALLS]f[ARGS]{}".to_owned(), reply("", "[TOOL_CALLS]f[ARGS]{}", &[])),
        (Plain, MistralArgs, "[TOOL_CALLS]f*[ARGS]{}".to_owned(), reply("", "[TOOL_CALLS]f[ARGS]{}", &[])),
        (Plain, MistralArgs, "*[TOOL_CALLS]f[ARGS]{}".to_owned(), reply("", "[TOOL_CALLS]f[ARGS]{}", &[])),
        (Plain, MistralArgs, "*[ARGS]{}".to_owned(), reply("", "[ARGS]{}", &[])),
        (
            Plain,
            MistralIds,
            "a *[TOOL_CALLS]f*[CALL_ID]a1B2c3D4e*[ARGS]{\"x\": 1}*[TOOL_CALLS]g_2*[CALL_ID]a1B2c3D4f*[ARGS]{}".to_owned(),
            reply("", "a ", &[("f", "{\"x\": 1}"), ("g_2", "{}")]),
        ),
        (Plain, MistralIds, "[TOOL_CALLS]f[CALL_ID]a[ARGS]{}".to_owned(), reply("", "[TOOL_CALLS]f[CALL_ID]a[ARGS]{}", &[])),
        (Plain, MistralList, format!("*[TOOL_CALLS]{list}"), reply("", "", &[("f", r#"{"x": "[TOOL_CALLS]"}"#)])),
        (Plain, MistralList, format!("[TOOL_CALLS]{list}"), reply("", &format!("[TOOL_CALLS]{list}"), &[])),
        (
            Plain,
            MistralList,
            format!("[TOOL_CALLS] is how I call. *[TOOL_CALLS]{list}"),
            reply("", "[TOOL_CALLS] is how I call. ", &[("f", r#"{"x": "[TOOL_CALLS]"}"#)]),
        ),
        (
            Tagged,
            DeepSeek,
            "*<think>It ends with </think>, I think.*</think>I write <｜tool▁calls▁begin｜>: *<｜tool▁calls▁begin｜>\
             *<｜tool▁call▁begin｜>f*<｜tool▁sep｜>{\"x\": \"<｜tool▁call▁end｜>\"}*<｜tool▁call▁end｜>*<｜tool▁calls▁end｜>"
                .to_owned(),
            reply(
                "It ends with </think>, I think.",
                "I write <｜tool▁calls▁begin｜>: ",
                &[("f", "{\"x\": \"<｜tool▁call▁end｜>\"}")],
            ),
        ),
        (Tagged, DeepSeek, "<think>aloud</think>".to_owned(), reply("", "<think>aloud</think>", &[])),
        (
            Plain,
            DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}".to_owned(),
            reply("", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", &[]),
        ),
        (
            Open,
            Glm,
            "Not </think> but*</think>Sure: <tool_call>f</tool_call> is *<tool_call>f\n*<arg_key>s*</arg_key>\n\
             *<arg_value></arg_value> & </tool_call>*</arg_value>*<arg_key>n*</arg_key>*<arg_value>5*</arg_value>*</tool_call>"
                .to_owned(),
            reply(
                "Not </think> but",
                "Sure: <tool_call>f</tool_call> is ",
                &[("f", "{\"s\": \"</arg_value> & </tool_call>\", \"n\": 5}")],
            ),
        ),
        (Plain, Glm, "*<tool_call>f</tool_call>".to_owned(), reply("", "<tool_call>f</tool_call>", &[])),
        (Plain, Glm, "*<tool_call>]*<tool_call>f*</tool_call>".to_owned(), reply("", "<tool_call>]", &[("f", "{}")])),
        (
            Channels,
            Harmony,
            "*<|channel|>analysis*<|message|>It is <|end|><|start|>assistant<|channel|>final<|message|>x.*<|end|>*<|start|>\
             assistant*<|channel|>commentary to=functions.f *<|constrain|>json*<|message|>{\"x\": \"<|call|>\"}*<|call|>"
                .to_owned(),
            reply(
                "It is <|end|><|start|>assistant<|channel|>final<|message|>x.",
                "",
                &[("f", "{\"x\": \"<|call|>\"}")],
            ),
        ),
        (
            Channels,
            Harmony,
            "<|channel|>analysis<|message|>x".to_owned(),
            reply("", "<|channel|>analysis<|message|>x", &[]),
        ),
    ];
    for (reasoning, syntax, text, expected) in cases {
        let text = text.replace('*', "\u{fdd0}");
        let reader = || reader(reasoning, Some(syntax)).by_id(ById { calls: true, reasoning: true });
        assert_eq!(read(reader(), &[&text]), expected, "{text}");
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        assert_eq!(read(reader(), &pieces), expected, "{text} in pieces");
    }
}

/// Texts of each family, with what they are made of.
fn cases() -> Vec<(Reasoning, Option<ToolSyntax>, &'static str, Reply)> {
    use Reasoning::Channels;
    use Reasoning::{None as Plain, Open, Tagged};
    use ToolSyntax::{DeepSeek, Glm, Harmony, Hermes, Llama3, MistralArgs, MistralIds, MistralList};
    let f = r#"{"a": [1, {"b": "}\"]"}], "c": "\\"}"#;
    vec![
        (Plain, None, "<think>a</think> b", reply("", "<think>a</think> b", &[])),
        (Tagged, None, "<think>\na < b\n</think>\n\nSo.", reply("a < b\n", "So.", &[])),
        (Tagged, None, "\n<think>\n\n</think>\n\nSo.", reply("", "So.", &[])),
        (Tagged, None, "No thought, <b>", reply("", "No thought, <b>", &[])),
        (Tagged, None, "<thin", reply("", "<thin", &[])),
        (Open, None, "I think</thi</think>yes", reply("I think</thi", "yes", &[])),
        (Open, None, "never ends </th", reply("never ends </th", "", &[])),
        (
            Plain,
            Some(Hermes),
            "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>",
            reply("", "Let me see.\n", &[("f", "{\"x\": 1}")]),
        ),
        (
            Tagged,
            Some(Hermes),
            "<think>hm</think>\n<tool_call>{\"arguments\": {} , \"name\": \"f\"}</tool_call>\n<tool_call>\n{\"name\": \"g_2\", \"arguments\": {\"k\": \"</tool_call>\"}}\n</tool_call>",
            reply("hm", "", &[("f", "{}"), ("g_2", "{\"k\": \"</tool_call>\"}")]),
        ),
        (Plain, Some(Hermes), "<tool_call>not json</tool_call>", reply("", "<tool_call>not json</tool_call>", &[])),
        (Plain, Some(Hermes), "a <tool_cal b", reply("", "a <tool_cal b", &[])),
        (
            Plain,
            Some(Hermes),
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"cut",
            reply("", "", &[("f", "{\"x\": \"cut")]),
        ),
        (Plain, Some(Hermes), "<tool_call>{\"name\": 7}", reply("", "<tool_call>{\"name\": 7}", &[])),
        (
            Plain,
            Some(Llama3),
            "{\"name\": \"f\", \"parameters\": {\"x\": \"{\"}}",
            reply("", "", &[("f", "{\"x\": \"{\"}")]),
        ),
        (
            Plain,
            Some(Llama3),
            "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g_2\", \"parameters\": {}}",
            reply("", "", &[("f", "{}"), ("g_2", "{}")]),
        ),
        (
            Plain,
            Some(Llama3),
            "{\"name\": \"unknown\", \"parameters\": {}}",
            reply("", "{\"name\": \"unknown\", \"parameters\": {}}", &[]),
        ),
        (Plain, Some(Llama3), "{\"answer\": 42}", reply("", "{\"answer\": 42}", &[])),
        (Plain, Some(Llama3), "Plain {\"name\": \"f\"}", reply("", "Plain {\"name\": \"f\"}", &[])),
        (
            Plain,
            Some(MistralList),
            "Sure. [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": [1]}}, {\"name\": \"g_2\", \"arguments\": {}}]",
            reply("", "Sure. ", &[("f", "{\"x\": [1]}"), ("g_2", "{}")]),
        ),
        (
            Plain,
            Some(MistralArgs),
            "[TOOL_CALLS]f[ARGS]{\"x\": {\"y\": 1}}[TOOL_CALLS]g_2[ARGS]{}",
            reply("", "", &[("f", "{\"x\": {\"y\": 1}}"), ("g_2", "{}")]),
        ),
        (Plain, Some(MistralArgs), "[TOOL_CALLS]f", reply("", "[TOOL_CALLS]f", &[])),
        (
            Plain,
            Some(MistralIds),
            "Hm.[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{\"x\": 1}[TOOL_CALLS]g_2[ARGS]{}",
            reply("", "Hm.", &[("f", "{\"x\": 1}"), ("g_2", "{}")]),
        ),
        (Plain, Some(MistralIds), "[TOOL_CALLS]f[CALL_ID]a1", reply("", "[TOOL_CALLS]f[CALL_ID]a1", &[])),
        (Plain, Some(MistralIds), "[TOOL_CALLS]f[CALL_ID]a[ARGS]no", reply("", "[TOOL_CALLS]f[CALL_ID]a[ARGS]no", &[])),
        (
            Tagged,
            Some(DeepSeek),
            "<think>hm</think>Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"x\": \"<｜tool▁call▁end｜>\"}\
             <｜tool▁call▁end｜><｜tool▁call▁begin｜>g_2<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            reply("hm", "Sure.", &[("f", "{\"x\": \"<｜tool▁call▁end｜>\"}"), ("g_2", "{}")]),
        ),
        (
            Tagged,
            Some(Glm),
            "<think>hm</think>Sure.\n<tool_call>f<arg_key>s</arg_key><arg_value>5</arg_value><arg_key>n</arg_key>\
             <arg_value>5</arg_value><arg_key>t</arg_key><arg_value>a \"b\"</arg_value></tool_call>\n<tool_call>g_2\n</tool_call>",
            reply("hm", "Sure.\n", &[("f", "{\"s\": \"5\", \"n\": 5, \"t\": \"a \\\"b\\\"\"}"), ("g_2", "{}")]),
        ),
        (
            Plain,
            Some(Glm),
            "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>{\"a\": [1]}</arg_value>\n</tool_call>",
            reply("", "", &[("f", "{\"n\": {\"a\":[1]}}")]),
        ),
        (Plain, Some(Glm), "<tool_call>two words</tool_call>", reply("", "<tool_call>two words</tool_call>", &[])),
        (
            Plain,
            Some(Glm),
            "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value><arg_key>m</arg_key><arg_va",
            reply("", "", &[("f", "{\"n\": 1")]),
        ),
        (
            Channels,
            Some(Harmony),
            "<|channel|>analysis<|message|>I < think<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>\
             <|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{\"x\": \"<|\"}",
            reply("I < think", "Let me see.", &[("f", "{\"x\": \"<|\"}")]),
        ),
        (
            Channels,
            Some(Harmony),
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>commentary \
             to=functions.g_2<|message|>{\"a\": 1}<|call|>",
            reply("", "", &[("f", "{}"), ("g_2", "{\"a\": 1}")]),
        ),
        (Channels, None, "<|channel|>final<|message|>So.<|return|>", reply("", "So.", &[])),
        (Channels, None, "<|channel|>analysis<|message|>cut <|e", reply("cut <|e", "", &[])),
        (Channels, None, "No channel at all", reply("", "No channel at all", &[])),
        (Channels, None, "<|chan", reply("", "<|chan", &[])),
        (Plain, Some(DeepSeek), "a <｜tool▁cal b", reply("", "a <｜tool▁cal b", &[])),
        (
            Plain,
            Some(DeepSeek),
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"cut",
            reply("", "", &[("f", "{\"cut")]),
        ),
        (
            Plain,
            Some(Hermes),
            Box::leak(format!("<tool_call>{{\"name\": \"f\", \"arguments\": {f}}}</tool_call>").into_boxed_str()),
            reply("", "", &[("f", f)]),
        ),
    ]
}

#[test]
fn texts_are_taken_apart() {
    for (reasoning, syntax, text, expected) in cases() {
        assert_eq!(read(reader(reasoning, syntax), &[text]), expected, "{text}");
    }
}

#[test]
fn the_parts_do_not_depend_on_how_the_text_was_cut() {
    for (reasoning, syntax, text, expected) in cases() {
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        assert_eq!(read(reader(reasoning, syntax), &characters), expected, "{text}");
        for cut in (0..=text.len()).filter(|&cut| text.is_char_boundary(cut)) {
            assert_eq!(read(reader(reasoning, syntax), &[&text[..cut], &text[cut..]]), expected, "{text} at {cut}");
        }
    }
}

/// Calls that are not as templates show them, in answers that the model has ended.
fn ended_cases() -> Vec<(Reasoning, ToolSyntax, &'static str, Reply)> {
    use Reasoning::{Channels, None as Plain, Open, Tagged};
    use ToolSyntax::{DeepSeek, Glm, Harmony, Hermes, Llama3, MistralArgs, MistralList};
    let called = |arguments: &str| reply("", "", &[("f", arguments)]);
    let text = |text: &str| reply("", text, &[]);
    vec![
        // Arguments as a string, as nothing, and left out, in each form.
        (
            Plain,
            Hermes,
            r#"<tool_call>{"name": "f", "arguments": "{\"x\": \"A\"}"}</tool_call>"#,
            called(r#"{"x": "A"}"#),
        ),
        (Plain, Hermes, r#"<tool_call>{"arguments": "{\"x\": 1}", "name": "f"}</tool_call>"#, called(r#"{"x": 1}"#)),
        (Plain, Hermes, r#"<tool_call>{"name": "f", "arguments": null}</tool_call>"#, called("{}")),
        (Plain, Hermes, r#"<tool_call>{"name": "f", "arguments": ""}</tool_call>"#, called("{}")),
        (Plain, Hermes, r#"<tool_call>{"name": "f"}</tool_call>"#, called("{}")),
        (Plain, Hermes, r#"<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>"#, called(r#"{"x": 1}"#)),
        (Plain, Llama3, r#"{"name": "f", "parameters": "{\"x\": 1}"}"#, called(r#"{"x": 1}"#)),
        (Plain, Llama3, r#"{"name": "f", "arguments": {"x": 1}}"#, called(r#"{"x": 1}"#)),
        (Plain, Llama3, r#"{"type": "function", "name": "f", "parameters": null}"#, called("{}")),
        (Plain, Llama3, r#"{"name": "f"}"#, called("{}")),
        (
            Plain,
            MistralList,
            r#"[TOOL_CALLS][{"name": "f", "arguments": "{\"x\": 1}"}, {"name": "g_2", "arguments": null}]"#,
            reply("", "", &[("f", r#"{"x": 1}"#), ("g_2", "{}")]),
        ),
        (Plain, MistralList, r#"[TOOL_CALLS]{"name": "f", "arguments": {}}"#, called("{}")),
        (Plain, MistralArgs, r#"[TOOL_CALLS]f[ARGS]"{\"x\": 1}""#, called(r#"{"x": 1}"#)),
        (Plain, MistralArgs, "[TOOL_CALLS]f[ARGS]null", called("{}")),
        (Plain, MistralArgs, "[TOOL_CALLS]f[ARGS] ", called("{}")),
        (
            Plain,
            MistralArgs,
            "[TOOL_CALLS]f[ARGS][TOOL_CALLS]g_2[ARGS]{}",
            reply("", "", &[("f", "{}"), ("g_2", "{}")]),
        ),
        (
            Tagged,
            DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁call▁begin｜>g_2<｜tool▁sep｜>\"{}\"\
             <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            reply("", "", &[("f", "{}"), ("g_2", "{}")]),
        ),
        (Channels, Harmony, "<|channel|>commentary to=functions.f<|message|><|call|>", called("{}")),
        (Channels, Harmony, "<|channel|>commentary to=f<|message|>\"{\\\"x\\\": 1}\"", called(r#"{"x": 1}"#)),
        // What ends a call is missing.
        (Plain, Hermes, r#"<tool_call>{"name": "f", "arguments": {"x": 1}}"#, called(r#"{"x": 1}"#)),
        (Plain, Hermes, r#"<tool_call>{"name": "f", "arguments": {"x": 1}"#, called(r#"{"x": 1}"#)),
        (Plain, Hermes, r#"<tool_call>{"name": "f", "arguments": "{}""#, called("{}")),
        (
            Plain,
            Hermes,
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n<tool_call>\n{\"name\": \"g_2\", \"arguments\": {}}",
            reply("", "", &[("f", "{}"), ("g_2", "{}")]),
        ),
        (Plain, MistralList, r#"[TOOL_CALLS][{"name": "f", "arguments": {}}"#, called("{}")),
        (Plain, Glm, "<tool_call>f<arg_key>n</arg_key><arg_value>5</arg_value>", called("{\"n\": 5}")),
        (Plain, Glm, "<tool_call>f", called("{}")),
        (Plain, Glm, "<tool_call>f<tool_call>g_2</tool_call>", reply("", "", &[("f", "{}"), ("g_2", "{}")])),
        // A function that nobody offered: a marker says that it was to be a call.
        (Plain, Hermes, r#"<tool_call>{"name": "h", "arguments": {}}</tool_call>"#, reply("", "", &[("h", "{}")])),
        (Plain, Llama3, r#"{"name": "h", "parameters": {}}"#, text(r#"{"name": "h", "parameters": {}}"#)),
        // Thoughts that are opened twice, or by nobody but the model.
        (Open, Hermes, "<think>\nhm</think>So.", reply("hm", "So.", &[])),
        (Tagged, Hermes, "<think>hm</think>So.", reply("hm", "So.", &[])),
        // What cannot be read is what the model wrote.
        (
            Plain,
            Hermes,
            r#"<tool_call>{"name": "f", "arguments": {x: 1}}</tool_call>"#,
            text(r#"<tool_call>{"name": "f", "arguments": {x: 1}}</tool_call>"#),
        ),
        (
            Plain,
            Hermes,
            r#"<tool_call>{"name": "f", "arguments": "x"}</tool_call>"#,
            text(r#"<tool_call>{"name": "f", "arguments": "x"}</tool_call>"#),
        ),
        (
            Plain,
            Hermes,
            r#"<tool_call>{"name": "f", "arguments": [1]}</tool_call>"#,
            text(r#"<tool_call>{"name": "f", "arguments": [1]}</tool_call>"#),
        ),
        (
            Plain,
            Hermes,
            r#"<tool_call>{"name": "f", "arguments": {"x": "lo"#,
            text(r#"<tool_call>{"name": "f", "arguments": {"x": "lo"#),
        ),
        (Plain, Hermes, r#"<tool_call>{"name": "f""#, text(r#"<tool_call>{"name": "f""#)),
        (Plain, Hermes, "a <tool_call>", text("a <tool_call>")),
        // Members that are no JSON, names that contradict each other, and no name.
        (
            Plain,
            Hermes,
            r#"<tool_call>{"name": "f", x y z}</tool_call>"#,
            text(r#"<tool_call>{"name": "f", x y z}</tool_call>"#),
        ),
        (Plain, Hermes, r#"<tool_call>{"name": "f", "x": y}"#, text(r#"<tool_call>{"name": "f", "x": y}"#)),
        (Plain, Hermes, r#"<tool_call>{"name": "f", "arguments": {},}</tool_call>"#, called("{}")),
        (
            Plain,
            Hermes,
            r#"<tool_call>{"name": "f", "arguments": {}, "name": "g_2"}"#,
            text(r#"<tool_call>{"name": "f", "arguments": {}, "name": "g_2"}"#),
        ),
        (
            Plain,
            Hermes,
            r#"<tool_call>{"name": "", "arguments": {}}"#,
            text(r#"<tool_call>{"name": "", "arguments": {}}"#),
        ),
        (Plain, MistralArgs, "[TOOL_CALLS] [ARGS]{}", text("[TOOL_CALLS] [ARGS]{}")),
        (Plain, Llama3, r#"{"name": "f", "parameters": {"x": 1,}}"#, text(r#"{"name": "f", "parameters": {"x": 1,}}"#)),
        (Plain, MistralList, "[TOOL_CALLS] [", text("[TOOL_CALLS] [")),
        (Plain, MistralList, "[TOOL_CALLS][{\"name\": 1}]", text("[TOOL_CALLS][{\"name\": 1}]")),
        (Plain, MistralArgs, "[TOOL_CALLS]f[ARGS]{x}", text("[TOOL_CALLS]f[ARGS]{x}")),
        (Plain, MistralArgs, "[TOOL_CALLS]f[ARGS]no", text("[TOOL_CALLS]f[ARGS]no")),
        (Plain, Glm, "<tool_call>f<arg_key>n</arg_key><arg", reply("", "<tool_call>f<arg_key>n</arg_key><arg", &[])),
        (
            Channels,
            Harmony,
            "<|channel|>commentary to=functions.f<|message|>{x}<|call|>",
            text("<|channel|>commentary to=functions.f<|message|>{x}"),
        ),
        (
            Plain,
            Hermes,
            r#"<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": "g_2", "arguments": {x}}</tool_call>"#,
            reply("", r#"<tool_call>{"name": "g_2", "arguments": {x}}</tool_call>"#, &[("f", "{}")]),
        ),
    ]
}

#[test]
fn calls_are_read_as_models_write_them_however_they_are_cut() {
    for (reasoning, syntax, text, expected) in ended_cases() {
        let reader = || reader(reasoning, Some(syntax));
        assert_eq!(read_to(reader(), &[text], false), expected, "{syntax:?}: {text}");
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        assert_eq!(read_to(reader(), &characters, false), expected, "{syntax:?}: {text} by characters");
        for cut in (0..=text.len()).filter(|&cut| text.is_char_boundary(cut)) {
            let pieces = [&text[..cut], &text[cut..]];
            assert_eq!(read_to(reader(), &pieces, false), expected, "{syntax:?}: {text} at {cut}");
        }
    }
}

/// A call that was shown and then could not be read is none any more, and the answer says so.
#[test]
fn a_call_that_cannot_be_read_is_text_with_a_warning() {
    let texts = [
        ("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", 1, None),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {x}}</tool_call>", 0, Some("could not be read")),
        ("<tool_call>f()</tool_call>", 0, Some("could not be read")),
        ("<tool_call>{\"name\": \"h\"}</tool_call>", 1, Some("`h`, which is none of the tools")),
        ("I call nothing.", 0, None),
    ];
    for (text, calls, warning) in texts {
        let mut reader = reader(Reasoning::None, Some(ToolSyntax::Hermes));
        let mut parts = Vec::new();
        for character in text.chars() {
            let mut new = Vec::new();
            reader.push(&character.to_string(), &mut new);
            new.into_iter().for_each(|part| push_part(&mut parts, part));
        }
        let mut new = Vec::new();
        reader.finish(&mut new, false);
        new.into_iter().for_each(|part| push_part(&mut parts, part));
        assert_eq!(reader.num_calls(), calls, "{text}");
        let found: Vec<&str> = reader.warnings().iter().map(String::as_str).collect();
        assert_eq!(found.len(), usize::from(warning.is_some()), "{text}: {found:?}");
        assert!(warning.is_none_or(|warning| found[0].contains(warning)), "{text}: {found:?}");
        if calls == 0 {
            assert_eq!(parts, [Part::Content(text.to_owned())]);
        }
    }
}

#[test]
fn a_call_is_shown_as_soon_as_it_is_certain() {
    let mut reader = reader(Reasoning::None, Some(ToolSyntax::Hermes));
    let mut parts = Vec::new();
    reader.push("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"lo", &mut parts);
    assert_eq!(parts, [Part::Call { name: "f".to_owned() }, Part::Arguments("{\"x\": \"lo".to_owned())]);
    assert_eq!(reader.num_calls(), 0);
    parts.clear();
    reader.push("ng\"}}", &mut parts);
    assert_eq!(parts, [Part::Arguments("ng\"}".to_owned())]);
    assert_eq!(reader.num_calls(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn any_text_in_any_pieces_is_taken_apart_alike(
        pieces in prop::collection::vec(
            prop::sample::select(vec![
                "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "{", "}", "[", "]", "\"", "\\",
                ":", ",", ";", "\"name\"", "\"f\"", "\"arguments\"", "\"parameters\"", " ", "\n", "a", "é", "<", "<t", "1",
                "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜", "null",
                "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|channel|>", "analysis", "final", " to=functions.f",
                "<|message|>", "<|end|>", "<|start|>", "<|call|>",
            ]), 0..24),
        which in 0usize..9,
        reasoning in 0usize..4,
        marks in prop::collection::vec(any::<bool>(), 24),
        calls in any::<bool>(),
        thoughts in any::<bool>(),
    ) {
        use ToolSyntax::{DeepSeek, Glm, Harmony, Hermes, Llama3, MistralArgs, MistralIds, MistralList};
        let known = [Hermes, Llama3, MistralList, MistralArgs, MistralIds, DeepSeek, Glm, Harmony];
        let syntax = which.checked_sub(1).map(|which| known[which]);
        let reasoning = [Reasoning::None, Reasoning::Tagged, Reasoning::Open, Reasoning::Channels][reasoning];
        let text = pieces.concat();
        for cut in [true, false] {
            let whole = read_to(reader(reasoning, syntax), &[&text], cut);
            prop_assert_eq!(read_to(reader(reasoning, syntax), &pieces, cut), whole);
        }
        // As tokens, too, or some of them.
        let marked: Vec<String> = pieces.iter().zip(marks.iter().cycle()).map(|(piece, mark)| {
            let is_token = *mark && piece.starts_with(['<', '[']) && piece.len() > 2;
            if is_token { format!("{CONTROL}{piece}") } else { (*piece).to_owned() }
        }).collect();
        let pieces: Vec<&str> = marked.iter().map(String::as_str).collect();
        let reader = || reader(reasoning, syntax).by_id(ById { calls, reasoning: thoughts });
        prop_assert_eq!(read(reader(), &pieces), read(reader(), &[&pieces.concat()]));
    }
}
