//! Texts taken apart; what the tests of each dialect share.

use proptest::prelude::*;

use super::*;

/// A reply put together: reasoning, content, calls with their arguments.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reply {
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

/// An answer of these parts.
pub(crate) fn reply(reasoning: &str, content: &str, calls: &[(&str, &str)]) -> Reply {
    let calls = calls.iter().map(|&(name, arguments)| (name.to_owned(), arguments.to_owned())).collect();
    Reply { reasoning: reasoning.to_owned(), content: content.to_owned(), calls }
}

/// An answer that is one call of `f`.
pub(crate) fn called(arguments: &str) -> Reply {
    reply("", "", &[("f", arguments)])
}

/// An answer that is text alone.
pub(crate) fn text(text: &str) -> Reply {
    reply("", text, &[])
}

/// A text, how it may begin with reasoning, and what it is made of.
type Case<'a> = (Reasoning, &'a str, Reply);

/// Texts of a dialect that are cut at their end are taken apart, however they come in pieces.
pub(crate) fn check<'a>(syntax: impl Into<Option<ToolSyntax>>, cases: &[Case<'a>]) {
    let syntax = syntax.into();
    check_pieces(cases, true, |reasoning| reader(reasoning, syntax));
}

/// The same of texts that the model has ended.
pub(crate) fn check_ended(syntax: ToolSyntax, cases: &[Case]) {
    check_pieces(cases, false, |reasoning| reader(reasoning, Some(syntax)));
}

/// Where control tokens are known by their ids, text that looks like one is text, however it is cut. In these texts `*`
/// is what stands before a token.
pub(crate) fn check_by_id(syntax: ToolSyntax, cases: &[Case]) {
    let marked: Vec<_> =
        cases.iter().map(|(reasoning, text, expected)| (*reasoning, text.replace('*', "\u{fdd0}"), expected)).collect();
    let cases: Vec<Case> =
        marked.iter().map(|(reasoning, text, expected)| (*reasoning, text.as_str(), (*expected).clone())).collect();
    let by_id = ById { calls: true, reasoning: true };
    check_pieces(&cases, true, |reasoning| reader(reasoning, Some(syntax)).by_id(by_id));
}

fn check_pieces(cases: &[Case], cut: bool, reader: impl Fn(Reasoning) -> ReplyReader) {
    for (reasoning, text, expected) in cases {
        assert_eq!(read_to(reader(*reasoning), &[text], cut), *expected, "{text}");
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        assert_eq!(read_to(reader(*reasoning), &characters, cut), *expected, "{text} by characters");
        for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
            assert_eq!(read_to(reader(*reasoning), &[&text[..at], &text[at..]], cut), *expected, "{text} at {at}");
        }
    }
}

/// Texts without calls; those of each dialect are in its file.
#[test]
fn reasoning_and_content_are_taken_apart() {
    use Reasoning::{Channels, None as Plain, Open, Tagged};
    check(
        None,
        &[
            (Plain, "<think>a</think> b", reply("", "<think>a</think> b", &[])),
            (Tagged, "<think>\na < b\n</think>\n\nSo.", reply("a < b\n", "So.", &[])),
            (Tagged, "\n<think>\n\n</think>\n\nSo.", reply("", "So.", &[])),
            (Tagged, "No thought, <b>", reply("", "No thought, <b>", &[])),
            (Tagged, "<thin", reply("", "<thin", &[])),
            (Open, "I think</thi</think>yes", reply("I think</thi", "yes", &[])),
            (Open, "never ends </th", reply("never ends </th", "", &[])),
            (Channels, "<|channel|>final<|message|>So.<|return|>", reply("", "So.", &[])),
            (Channels, "<|channel|>analysis<|message|>cut <|e", reply("cut <|e", "", &[])),
            (Channels, "No channel at all", reply("", "No channel at all", &[])),
            (Channels, "<|chan", reply("", "<|chan", &[])),
        ],
    );
}

/// Thoughts between tags of other families, with what stands around the answers of one, and what begins the thoughts of
/// another.
#[test]
fn each_family_has_tags_of_its_own() {
    let cases = [
        (Reasoning::Tagged, "<seed:think>hm</seed:think>So.", "hm", "So."),
        (Reasoning::Tagged, "<|channel>thought\nhm\n<channel|>So.", "hm\n", "So."),
        (Reasoning::Open, "thought\nhm<channel|>So.", "hm", "So."),
        (Reasoning::Tagged, "<|channel>thou<channel|>So.", "thou", "So."),
        (Reasoning::Tagged, "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>So.<|END_RESPONSE|>", "hm", "So."),
        (Reasoning::Tagged, "<|START_RESPONSE|>So", "", "So"),
        (Reasoning::Tagged, "[THINK]hm[/THINK]\nSo.", "hm", "So."),
    ];
    for (reasoning, text, thought, answer) in cases {
        let tags =
            ["<seed:think>", "<channel|>", "<|START_RESPONSE|>", "[THINK]"].map(|mark| (mark, text.contains(mark)));
        let (mark, _) = tags.into_iter().find(|(_, is_there)| *is_there).unwrap();
        let shown = if mark == "<|START_RESPONSE|>" { "<|START_THINKING|>" } else { mark };
        let tags = ThoughtTags::shown_in(&[shown.to_owned()]).unwrap();
        check_pieces(&[(reasoning, text, reply(thought, answer, &[]))], false, |reasoning| {
            reader(reasoning, None).thinking_in(tags)
        });
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
fn what_looks_like_a_thought_or_a_call_is_text_with_a_warning() {
    let call = r#"{"name": "f", "arguments": {"a": 1}}"#;
    let thought = ["Hm. So.</think>\n\nYes."];
    let fenced = format!("Sure:\n```json\n{call}\n```\n");
    let list = format!("[{call}]");
    let looks_like = |text: &str, reasoning| {
        let mut reader = reader(reasoning, Some(ToolSyntax::Hermes));
        let mut parts = Vec::new();
        // In pieces: a marker may be cut.
        for piece in text.split_inclusive(['<', '`', ' ']) {
            reader.push(piece, &mut parts);
        }
        reader.finish(&mut parts, false);
        let mut reply = Reply::default();
        add(&mut reply, &mut parts);
        assert_eq!(reply, super::tests::text(text), "what is shown does not change");
        reader.warnings().to_vec()
    };
    for reasoning in [Reasoning::None, Reasoning::Tagged] {
        let warnings = looks_like(thought[0], reasoning);
        assert!(warnings.len() == 1 && warnings[0].contains("`</think>`"), "{warnings:?}");
        for text in [call, &fenced, &list] {
            let warnings = looks_like(text, reasoning);
            assert!(warnings.len() == 1 && warnings[0].contains("`<tool_call>`"), "{text}: {warnings:?}");
        }
        for text in
            [r#"{"name": "other", "arguments": {}}"#, r#"{"name": "f"}"#, "f", "```json\n{}\n```", "a <think>b</think>"]
        {
            assert_eq!(looks_like(text, reasoning), Vec::<String>::new(), "{text}");
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
                "<|message|>", "<|end|>", "<|start|>", "<|call|>", "<function=", "f>", "</function>", "<parameter=", "s>", "n>",
                "</parameter>", "<seed:tool_call>", "<minimax:tool_call>", "</minimax:tool_call>", "<invoke name=", "</invoke>",
                "<parameter name=", "<｜DSML｜tool_calls>", "<｜DSML｜invoke name=", "</｜DSML｜invoke>", "f(", "=", ")", "(", "'",
                "<|tool_call>", "call:f{", "<|\"|>", "<tool_call|>", "<|START_ACTION|>", "\"tool_name\"", "<|tools_prefix|>",
                "<|tool_call_start|>", "<|tool_call_end|>", "<TOOLCALL>", "<tool_calls>", "<|tool_call|>",
                "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.f:0", "<|tool_call_argument_begin|>",
            ]), 0..24),
        which in 0..=ToolSyntax::ALL.len(),
        reasoning in 0usize..4,
        marks in prop::collection::vec(any::<bool>(), 24),
        calls in any::<bool>(),
        thoughts in any::<bool>(),
    ) {
        let syntax = which.checked_sub(1).map(|which| ToolSyntax::ALL[which]);
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
