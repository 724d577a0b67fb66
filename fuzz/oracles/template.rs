//! The oracle of `template`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use time::PrimitiveDateTime;
use tokenizer::chat_template::{ChatTemplate, Limits, RenderInput, TemplateError};

/// Stands between the template and what it is given.
const NEXT: u8 = 0xff;
/// Less than by default, so that an input takes milliseconds.
const LIMITS: Limits = Limits { source_bytes: 16 << 10, fuel: 20_000, budget_bytes: 4 << 20, output_bytes: 64 << 10 };
/// All renders of one template together, those that find out what it can show included.
const TIME_MAX: Duration = Duration::from_secs(5);

/// A chat template from anybody, and a conversation. Each is refused with an error that is not the engine's failure, or
/// gives a text within its bounds, in its time; the same text again, and the same whether or not an answer is to follow
/// if the template does not ask.
///
/// The input is the template, and behind a byte 255 the render's input as JSON: `messages`, `tools`, `documents`,
/// `enable_thinking` and further variables.
pub(crate) fn template(data: &[u8]) {
    let (source, given) = match data.iter().position(|byte| *byte == NEXT) {
        Some(end) => (&data[..end], serde_json::from_slice(&data[end + 1..]).unwrap_or_default()),
        None => (data, Value::Null),
    };
    let source = String::from_utf8_lossy(source);
    let begun = Instant::now();
    let template = match ChatTemplate::with_limits(&source, LIMITS) {
        Ok(template) => template,
        Err(error) => return check_error(&error, begun),
    };
    let hello = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]);
    let messages = given["messages"].as_array().or(hello.as_array()).map(Vec::as_slice).unwrap_or_default();
    let mut extra = given.as_object().cloned().unwrap_or_default();
    extra.retain(|name, _| !matches!(name.as_str(), "messages" | "tools" | "documents" | "enable_thinking"));
    let input = RenderInput {
        tools: given["tools"].as_array().map(Vec::as_slice),
        documents: given["documents"].as_array().map(Vec::as_slice),
        bos_token: Some("<s>"),
        enable_thinking: given["enable_thinking"].as_bool(),
        extra,
        ..RenderInput::new(messages, PrimitiveDateTime::MIN)
    };
    let text = match template.render(&input) {
        Ok(text) => text,
        Err(error) => return check_error(&error, begun),
    };
    assert!(begun.elapsed() < TIME_MAX, "{:?} to render", begun.elapsed());
    let bytes_max = LIMITS.output_bytes + 4 * (4 * data.len() as u64 + 4096);
    assert!(text.len() as u64 <= bytes_max, "{} bytes of output, of {} of input", text.len(), data.len());
    let again = template.render(&input);
    assert_eq!(again.ok().as_ref(), Some(&text), "rendered again");
    if !template.reads("add_generation_prompt") {
        let without = template.render(&RenderInput { add_generation_prompt: false, ..input });
        assert_eq!(without.ok(), Some(text), "without a prompt to answer, which the template does not read");
    }
}

fn check_error(error: &TemplateError, begun: Instant) {
    assert!(!matches!(error, TemplateError::Panicked | TemplateError::Thread { .. }), "{error}");
    assert!(!error.to_string().is_empty());
    assert!(begun.elapsed() < TIME_MAX, "{:?} to refuse: {error}", begun.elapsed());
}
