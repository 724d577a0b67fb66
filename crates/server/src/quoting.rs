//! What messages quote of a request. A name, a value or a path of a client's may be megabytes long, and an error that
//! repeats it costs as much again in the answer and in the log.

use serde_json::Value;

/// A name of a client's in a message.
pub(crate) fn shown(name: &str) -> String {
    clipped(name, 64)
}

/// At most so many characters of a text: a client's may be megabytes.
pub(crate) fn clipped(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The beginning and the end of a text that has more than `most` bytes, with an ellipsis between them; other texts as
/// they are. Two thirds of what is kept are the beginning. The end of a message says what to do.
pub(crate) fn without_middle(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let begin = text.floor_char_boundary(most * 2 / 3);
    let end = text.ceil_char_boundary(text.len() - most / 3);
    format!("{}…{}", &text[..begin], &text[end..])
}

/// A value in a message: what a client sent may be long.
pub(crate) fn shortened(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => kind_of(value).to_owned(),
        Value::String(text) if text.len() > 40 => format!("a string of {} bytes", text.len()),
        short => short.to_string(),
    }
}

/// What a value is, in a message.
pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_keeps_its_beginning_and_its_end() {
        assert_eq!(without_middle("short".to_owned(), 5), "short");
        let cut = without_middle(format!("begin{}end", "é".repeat(1000)), 30);
        assert!(cut.starts_with("beginé") && cut.ends_with("éend") && cut.contains('…'), "{cut}");
        assert!(cut.len() <= 30 + "…".len(), "{cut}");
        assert_eq!(clipped("ééé", 2), "éé…");
    }
}
