//! Calls as a template of each family writes them are read back, however the text comes in pieces.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tokenizer::chat_template::{ChatTemplate, RenderInput};

use super::parrot::Parrot;
use super::small_templates::{FAMILIES, Family};
use super::structure::{app_with, weather};
use super::{CHAT, Options, ok};
use crate::clock::local_now;
use crate::dialect::{Function, Part, Reasoning};
use crate::reply::{ReplyReader, ToolSyntax};
use crate::template_profile::TemplateProfile;

/// What the template writes behind the prompt for an answer with these calls.
pub(super) fn written(template: &ChatTemplate, thought: &str, content: &str, calls: &[(String, Value)]) -> String {
    let call = |(index, (name, arguments)): (usize, &(String, Value))| {
        let id = format!("functions.{name}:{index}");
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    };
    let calls: Vec<Value> = calls.iter().enumerate().map(call).collect();
    let mut answer = json!({"role": "assistant", "content": content, "tool_calls": calls});
    if !thought.is_empty() {
        answer["reasoning_content"] = thought.into();
    }
    let messages = [json!({"role": "user", "content": "x"}), answer];
    let input = RenderInput { add_generation_prompt: false, ..RenderInput::new(&messages, local_now()) };
    let text = template.render(&input).unwrap();
    let (_, answer) = text.split_once("<|assistant|>\n").unwrap();
    answer.strip_suffix("<|over|>").unwrap().to_owned()
}

/// Calls with their arguments as text, thoughts and content, of a text that comes in these pieces. Each state of the
/// last call's arguments on the way is a beginning of the next.
fn read(family: &Family, profile: &TemplateProfile, pieces: &[&str]) -> (Vec<(String, String)>, String, String) {
    let function = |name: &str| Function { name: name.to_owned(), strings: vec!["s".to_owned(), "é t".to_owned()] };
    let reasoning = profile.reasoning("x");
    let mut reader = ReplyReader::new(reasoning, Some(family.syntax), vec![function("get_it"), function("a.b-c")])
        .thinking_in(profile.thought_tags());
    let (mut calls, mut thought, mut content) = (Vec::<(String, String)>::new(), String::new(), String::new());
    let mut parts = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        reader.push(piece, &mut parts);
        if index + 1 == pieces.len() {
            reader.finish(&mut parts, false);
        }
        for part in parts.drain(..) {
            match part {
                Part::Content(text) => content.push_str(&text),
                Part::Reasoning(text) => thought.push_str(&text),
                Part::Call { name } => calls.push((name, String::new())),
                Part::Arguments(text) => calls.last_mut().unwrap().1.push_str(&text),
                Part::NoCall(text) => panic!("{}: {text} was no call after all", family.name),
            }
        }
    }
    assert_eq!(reader.num_calls(), calls.len(), "{}", family.name);
    assert!(reader.warnings().is_empty(), "{}: {:?}", family.name, reader.warnings());
    (calls, thought, content)
}

/// Texts in which no family's marker is, and all that is escaped somewhere.
fn text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a", "Z", "7", " ", "é", "😀", "\n", "\t", "\"", "'", "\\", "{", "}", "[", "]", "(", ")", ",", ":", ";", "=",
        "/", "<b>", "</", "&", "|", "True", "null", "}]", "\\n", "#",
    ]);
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

/// A text that no family takes for a value of another kind.
fn word() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["word", "two words", "x-1", "ünï"]).prop_map(str::to_owned)
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![any::<i32>().prop_map(Value::from), (-1000i32..1000).prop_map(|n| json!(f64::from(n) / 8.0))]
}

fn arguments() -> impl Strategy<Value = Value> {
    let list = prop::collection::vec(
        prop_oneof![number(), any::<bool>().prop_map(Value::from), word().prop_map(Value::from)],
        0..3,
    );
    let members = (
        prop::option::of(text()),
        prop::option::of(number()),
        prop::option::of(any::<bool>()),
        prop::option::of(list),
        prop::option::of((word(), number())),
    );
    members.prop_map(|(s, n, b, l, o)| {
        let mut arguments = Map::new();
        s.map(|s| arguments.insert("s".to_owned(), s.into()));
        n.map(|n| arguments.insert("n".to_owned(), n));
        b.map(|b| arguments.insert("flag".to_owned(), b.into()));
        l.map(|l| arguments.insert("l_2".to_owned(), l.into()));
        o.map(|(word, n)| arguments.insert("o".to_owned(), json!({"k": word, "m": {"n": n}})));
        Value::Object(arguments)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn what_is_written_is_read_back(
        which in 0..FAMILIES.len(),
        calls in prop::collection::vec((prop::sample::select(vec!["get_it".to_owned(), "a.b-c".to_owned()]), arguments()), 1..3),
        thinks in any::<bool>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let family = &FAMILIES[which];
        let template = ChatTemplate::new(&family.template()).unwrap();
        let profile = TemplateProfile::of(&template);
        prop_assert_eq!(profile.tools, Some(family.syntax), "{}", family.name);
        let thought = if thinks && profile.thinks { "Let me see.\nWell" } else { "" };
        let answer = written(&template, thought, "", &calls);
        let (whole, thought_read, content) = read(family, &profile, &[&answer]);
        let found: Vec<(String, Value)> = whole.iter().map(|(name, text)| {
            (name.clone(), serde_json::from_str(text).unwrap_or_else(|error| panic!("{}: {error}: {text}", family.name)))
        }).collect();
        prop_assert_eq!(&found, &calls, "{}: {}", family.name, &answer);
        prop_assert_eq!(thought_read, thought, "{}: {}", family.name, &answer);
        prop_assert_eq!(content.trim(), "", "{}: {}", family.name, &answer);
        // Any split of the text gives the same.
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(answer.len() + 1)).collect();
        places.retain(|&place| answer.is_char_boundary(place));
        places.extend([0, answer.len()]);
        places.sort_unstable();
        let pieces: Vec<&str> = places.windows(2).map(|pair| &answer[pair[0]..pair[1]]).collect();
        let (cut, _, _) = read(family, &profile, &pieces);
        prop_assert_eq!(&cut, &whole, "{}: {:?}", family.name, pieces);
    }
}

/// Every dialect has a family here, but for gpt-oss's, whose templates are long and tested in other places.
#[test]
fn every_dialect_is_written_and_read_back() {
    for syntax in ToolSyntax::ALL {
        let is_here = FAMILIES.iter().any(|family| family.syntax == *syntax);
        assert!(is_here || *syntax == ToolSyntax::Harmony, "{syntax:?}");
    }
    for family in FAMILIES {
        let profile = TemplateProfile::of(&ChatTemplate::new(&family.template()).unwrap());
        assert_eq!(profile.tools, Some(family.syntax), "{}", family.name);
        assert_eq!(profile.names_in_ids, family.name == "Kimi K2", "{}", family.name);
        assert!(profile.reasoning("x") != Reasoning::Channels);
    }
}

/// Over the interface: a call is read, streamed and shown again where the answer is sent back; one that breaks off is the
/// text that it was, with a warning.
#[tokio::test]
async fn a_server_reads_each_family_and_shows_its_calls_again() {
    for family in FAMILIES {
        let (source, name) = (family.template(), family.name);
        let template = ChatTemplate::new(&source).unwrap();
        let model = Parrot::new(&source, family.tokens, Options::default());
        let text = written(&template, "", "", &[("get_weather".to_owned(), json!({"unit": "C"}))]);
        let mut body = json!({"messages": [{"role": "user", "content": "x"}], "tools": weather(), "max_tokens": 1000});
        let answer = model.say(&text, CHAT, &body).await;
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{name}: {answer}");
        let call = &choice["message"]["tool_calls"][0];
        assert_eq!(call["function"]["name"], "get_weather", "{name}");
        assert_eq!(call["function"]["arguments"].as_str().unwrap().replace(' ', ""), "{\"unit\":\"C\"}", "{name}");
        assert_eq!(answer["x_hotmetal"]["warnings"], Value::Null, "{name}: {answer}");

        let messages = body["messages"].as_array_mut().unwrap();
        messages.push(choice["message"].clone());
        messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "12 degrees"}));
        let asked = json!({"messages": messages, "tools": body["tools"]});
        let prompt = ok(&model.app, "/apply-template", &asked).await["prompt"].as_str().unwrap().to_owned();
        // Some show the id, and each call has an id of its own; Kimi's have a form.
        let has_id = text.contains("functions.get_weather:0") && name != "Kimi K2";
        assert!(has_id || prompt.contains(text.trim()), "{name}: {text} is not in {prompt}");

        body["messages"].as_array_mut().unwrap().truncate(1);
        let broken = format!("{}unit?", text.split_once("unit").unwrap().0);
        let answer = model.say(&broken, CHAT, &body).await;
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{name}: {answer}");
        assert_eq!(choice["message"]["content"].as_str().unwrap().trim(), broken.trim(), "{name}");
        let warning = answer["x_hotmetal"]["warnings"][0].as_str().unwrap_or_default();
        assert!(warning.contains("could not be read"), "{name}: {answer}");
    }
}

/// Templates that describe tools and show no calls have them as part of the text, in the form that they tell of.
#[tokio::test]
async fn calls_are_text_where_a_template_only_tells_of_them() {
    let messages = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}";
    let lfm2 = "{% if tools %}<|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>{% endif %}";
    let granite = "{% if tools %}Respond only with <|tool_call|> followed by a JSON list of tools used.\
                   {{ tools | tojson }}{% endif %}";
    for (shown, call, syntax) in [
        (lfm2, "<|tool_call_start|>[get_weather(unit=\"C\")]<|tool_call_end|>", ToolSyntax::Lfm2),
        (granite, "<|tool_call|>[{\"name\":\"get_weather\",\"arguments\":{\"unit\":\"C\"}}]", ToolSyntax::Phi4),
    ] {
        let source = format!("{shown}{messages}");
        let profile = TemplateProfile::of(&ChatTemplate::new(&source).unwrap());
        assert_eq!((profile.tools, profile.calls_are_text), (Some(syntax), true));
        let app = app_with(&source);
        let function = json!({"name": "get_weather", "arguments": "{\"unit\": \"C\"}"});
        let body = json!({"tools": weather(), "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "Sure.", "tool_calls": [{"id": "a", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "a", "content": "12"},
        ]});
        let prompt = ok(&app, "/apply-template", &body).await["prompt"].as_str().unwrap().to_owned();
        assert!(prompt.contains(&format!("<|assistant|>Sure.\n{call}<|tool|>12")), "{prompt}");
    }
}

/// The calls that are read of what a published template writes for one, with all that it writes around it.
pub(super) fn read_back(template: &ChatTemplate, syntax: ToolSyntax) -> Vec<(String, Value)> {
    let arguments = json!({"s": "5 o'clock", "n": 5, "l": ["x", 1.5]});
    let call = json!({"id": "call00001", "type": "function", "function": {"name": "get_it", "arguments": arguments}});
    let messages = [
        json!({"role": "user", "content": "mark5f1d0c"}),
        json!({"role": "assistant", "content": "", "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "call00001", "name": "get_it", "content": "y"}),
    ];
    let tools = weather();
    let input = RenderInput {
        bos_token: Some(""),
        eos_token: Some(""),
        tools: tools.as_array().map(Vec::as_slice),
        ..RenderInput::new(&messages, local_now())
    };
    let text = template.render(&input).unwrap();
    let (_, text) = text.split_once("mark5f1d0c").unwrap();
    let function = Function { name: "get_it".to_owned(), strings: vec!["s".to_owned()] };
    let mut reader = ReplyReader::new(Reasoning::None, Some(syntax), vec![function]);
    let (mut parts, mut calls) = (Vec::new(), Vec::<(String, String)>::new());
    reader.push(text, &mut parts);
    reader.finish(&mut parts, false);
    for part in parts {
        match part {
            Part::Call { name } => calls.push((name, String::new())),
            Part::Arguments(text) => calls.last_mut().unwrap().1.push_str(&text),
            _ => {}
        }
    }
    calls.into_iter().map(|(name, text)| (name, serde_json::from_str(&text).unwrap())).collect()
}
