//! `docs/dialects.md`, made from the list of dialects and from what they do with a call.

use serde_json::{Value, json};
use tokenizer::Tokenizer;
use tokenizer::chat_template::ChatTemplate;

use super::round_trips::written;
use super::small_templates::FAMILIES;
use crate::dialect::{Callable, Controls, Function, Part, Reasoning, THINK_TAGS, forced_call};
use crate::reply::{ReplyReader, ToolSyntax};

/// A call with a long string, as the dialect writes it, and how a text that has it may begin.
fn long_call(syntax: ToolSyntax) -> (String, Reasoning) {
    let arguments = json!({"s": "a long text ".repeat(20)});
    let Some(family) = FAMILIES.iter().find(|family| family.syntax == syntax) else {
        return (format!("<|channel|>commentary to=functions.f<|message|>{arguments}<|call|>"), Reasoning::Channels);
    };
    let template = ChatTemplate::new(&family.template()).unwrap();
    (written(&template, "", "", &[("f".to_owned(), arguments)]), Reasoning::None)
}

/// How much of an argument comes at once, if its text comes letter by letter.
fn streams(syntax: ToolSyntax) -> &'static str {
    let (text, reasoning) = long_call(syntax);
    let function = Function { name: "f".to_owned(), strings: vec!["s".to_owned()] };
    let mut reader = ReplyReader::new(reasoning, Some(syntax), vec![function]);
    let (mut parts, mut pieces) = (Vec::new(), 0);
    for character in text.chars() {
        reader.push(&character.to_string(), &mut parts);
        pieces += parts.drain(..).filter(|part| matches!(part, Part::Arguments(_))).count();
    }
    reader.finish(&mut parts, false);
    assert_eq!(reader.num_calls(), 1, "{syntax:?}: {text}");
    if pieces > 100 { "as it is written" } else { "an argument at a time" }
}

/// What arguments can be held to where a call is forced.
fn forces(syntax: ToolSyntax, tokenizer: &Tokenizer) -> &'static str {
    let takes = |parameters: Value| {
        let tools = [Callable { name: "f".to_owned(), at: String::new(), parameters }];
        let controls = Controls::of(Reasoning::None, &THINK_TAGS, Some(syntax), tokenizer);
        forced_call(&tools, None, syntax, (Reasoning::None, &THINK_TAGS), &controls).is_ok()
    };
    let of_string = |schema: Value| takes(json!({"type": "object", "properties": {"a": schema}}));
    assert!(of_string(json!({"type": "string"})), "{syntax:?}");
    match (takes(json!({"type": "object", "minProperties": 1})), of_string(json!({"type": "string", "pattern": "x"}))) {
        (true, true) => "any schema",
        (false, true) => "each argument to any schema",
        (false, false) => "each argument to any schema, strings to values and lengths",
        (true, false) => panic!("{syntax:?}"),
    }
}

/// Text in a cell of a table.
fn code(text: &str) -> String {
    let text = text.trim_end().replace('|', "\\|");
    if text.contains('`') { format!("```` {text} ````") } else { format!("`{text}`") }
}

fn page() -> String {
    let tokenizer = super::tokenizer();
    let mut page = String::from(
        "# Chat dialects\n\nHow families of models write calls of tools, and what the server does with them. Made from the \
         list in\n`crates/server/src/dialect/mod.rs` by a test; [serving.md](serving.md) says how tools are used. The server \
         finds out from a\nmodel's chat template which of these it writes. Models of other families are told tools in words, and \
         write Hermes' form.\n\n- Thoughts: what stands around the thoughts of models that have them.\n- Markers: whether they \
         count as tokens, where the vocabulary has all of them, or by their text.\n- Stream: how much of the arguments comes at \
         once.\n- Forced: what `tool_choice: required`, or with a name, holds the arguments to. Every form can be forced.\n\n\
         | models | a call | thoughts | markers | stream | forced |\n|---|---|---|---|---|---|\n",
    );
    for &syntax in ToolSyntax::ALL {
        let dialect = syntax.dialect();
        let family = FAMILIES.iter().find(|family| family.syntax == syntax);
        let thoughts = match family.map(|family| family.thought[0]) {
            Some("") => "–".to_owned(),
            Some(open) => code(open),
            None => code("<|channel|>analysis"),
        };
        let markers = if dialect.has_special_tokens { "tokens" } else { "text" };
        page.push_str(&format!(
            "| {} | {} | {thoughts} | {markers} | {} | {} |\n",
            dialect.families,
            code(dialect.written),
            streams(syntax),
            forces(syntax, &tokenizer)
        ));
    }
    page
}

#[test]
fn the_page_of_dialects_is_that_of_the_list() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/dialects.md");
    let page = page();
    let found = std::fs::read_to_string(path).unwrap_or_default();
    if found != page {
        let right = std::env::temp_dir().join("dialects.md");
        std::fs::write(&right, &page).unwrap();
        panic!("docs/dialects.md is not what the list says; `{}` is: copy it", right.display());
    }
}
