//! Calls as a template of each family writes them are read back, however the text comes in pieces.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tokenizer::chat_template::{ChatTemplate, RenderInput};

use super::small_templates::{FAMILIES, Family};
use crate::clock::local_now;
use crate::dialect::{Function, Part, Reasoning};
use crate::reply::ReplyReader;
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

/// Calls with their arguments as text, thoughts and content, of a text that comes in these pieces; and each state of the
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
    use crate::reply::ToolSyntax;
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
