//! `tojson` and `from_json`: Python's `json.dumps` and `json.loads` as templates see them.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::args::Args;
use super::printf::MAX_WIDTH;
use super::value::{
    Number, as_dict, as_int, as_list, as_number, as_str, charge, charge_elements, compare, fail, float_repr, from_json,
    push, type_name,
};

/// The filter `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, whose defaults are
/// those of transformers; unlike Jinja's own it escapes nothing for HTML.
pub(super) fn tojson(args: Args) -> Result<Value, Error> {
    let names = ["value", "ensure_ascii", "indent", "separators", "sort_keys"];
    let [value, ensure_ascii, indent, separators, sort_keys] = args.bind(1, names)?;
    let indent = indent.filter(|indent| !indent.is_none()).map(|indent| indentation(&indent)).transpose()?;
    let (item_separator, key_separator) = match separators.filter(|separators| !separators.is_none()) {
        Some(separators) => match as_list(&separators).map(|list| list.items()) {
            Some([item, key]) => (as_str(item)?.to_owned(), as_str(key)?.to_owned()),
            _ => return Err(fail("tojson() takes separators as a pair of strings")),
        },
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let mut writer = Writer {
        out: String::new(),
        ensure_ascii: ensure_ascii.is_some_and(|flag| flag.is_true()),
        sort_keys: sort_keys.is_some_and(|flag| flag.is_true()),
        indent,
        item_separator,
        key_separator,
    };
    writer.write(&value.unwrap_or_default(), 0)?;
    Ok(Value::from(writer.out))
}

/// The filter and function `from_json(text)`.
pub(super) fn loads(args: Args) -> Result<Value, Error> {
    let [text] = args.bind(1, ["text"])?;
    let text = text.unwrap_or_default();
    let json: serde_json::Value =
        serde_json::from_str(as_str(&text)?).map_err(|error| fail(format!("from_json(): {error}")))?;
    from_json(&json)
}

fn indentation(indent: &Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.to_owned());
    }
    match usize::try_from(as_int(indent)?).unwrap_or(0) {
        spaces @ 0..=MAX_WIDTH => Ok(" ".repeat(spaces)),
        spaces => Err(fail(format!("tojson() was asked to indent by {spaces}, at most {MAX_WIDTH} is allowed"))),
    }
}

/// What one escaped character is charged.
const ESCAPE_BYTES: usize = 16;

struct Writer {
    out: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

impl Writer {
    fn write(&mut self, value: &Value, level: usize) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            return self.write_str(text);
        }
        if let Some(list) = as_list(value) {
            charge_elements(list.items().len())?;
            push(&mut self.out, "[")?;
            for (index, item) in list.items().iter().enumerate() {
                self.begin_item(index, level + 1)?;
                self.write(item, level + 1)?;
            }
            return self.end("]", list.items().is_empty(), level);
        }
        if let Some(dict) = as_dict(value) {
            charge_elements(dict.entries().len())?;
            push(&mut self.out, "{")?;
            let mut entries: Vec<(&Value, &Value)> = dict.entries().iter().collect();
            if self.sort_keys {
                sort_by_key(&mut entries)?;
            }
            for (index, (key, item)) in entries.into_iter().enumerate() {
                self.begin_item(index, level + 1)?;
                match key.as_str() {
                    Some(key) => self.write_str(key)?,
                    // Scalar keys are written as their JSON, in quotes.
                    None => {
                        push(&mut self.out, "\"")?;
                        self.write(key, level)?;
                        push(&mut self.out, "\"")?;
                    }
                }
                let separator = self.key_separator.clone();
                push(&mut self.out, &separator)?;
                self.write(item, level + 1)?;
            }
            return self.end("}", dict.entries().is_empty(), level);
        }
        let text = match (value.kind(), as_number(value)) {
            (ValueKind::None, _) => "null".to_owned(),
            (ValueKind::Bool, _) => value.is_true().to_string(),
            (ValueKind::Number, Some(Number::Float(float))) => match float_repr(float).as_str() {
                "nan" => "NaN".to_owned(),
                "inf" => "Infinity".to_owned(),
                "-inf" => "-Infinity".to_owned(),
                finite => finite.to_owned(),
            },
            (ValueKind::Number, _) => value.to_string(),
            _ => return Err(fail(format!("tojson() cannot write a value of type {}", type_name(value)))),
        };
        push(&mut self.out, &text)
    }

    fn begin_item(&mut self, index: usize, level: usize) -> Result<(), Error> {
        if index > 0 {
            let separator = self.item_separator.clone();
            push(&mut self.out, &separator)?;
        }
        self.new_line(level)
    }

    fn end(&mut self, bracket: &str, empty: bool, level: usize) -> Result<(), Error> {
        if !empty {
            self.new_line(level)?;
        }
        push(&mut self.out, bracket)
    }

    fn new_line(&mut self, level: usize) -> Result<(), Error> {
        let Some(indent) = self.indent.clone() else { return Ok(()) };
        push(&mut self.out, "\n")?;
        for _ in 0..level {
            push(&mut self.out, &indent)?;
        }
        Ok(())
    }

    fn write_str(&mut self, text: &str) -> Result<(), Error> {
        push(&mut self.out, "\"")?;
        let (mut copied, ensure_ascii) = (0, self.ensure_ascii);
        for (at, c) in text.char_indices().filter(|(_, c)| is_escaped(*c, ensure_ascii)) {
            // Runs without escapes are copied whole; an escape takes as long as many bytes of a run.
            push(&mut self.out, text.get(copied..at).unwrap_or(""))?;
            charge(ESCAPE_BYTES)?;
            write_escape(&mut self.out, c);
            copied = at + c.len_utf8();
        }
        push(&mut self.out, text.get(copied..).unwrap_or(""))?;
        push(&mut self.out, "\"")
    }
}

fn is_escaped(c: char, ensure_ascii: bool) -> bool {
    c < ' ' || c == '"' || c == '\\' || (ensure_ascii && c > '~')
}

fn write_escape(out: &mut String, c: char) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        c => out.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}"))),
    }
}

fn sort_by_key(entries: &mut [(&Value, &Value)]) -> Result<(), Error> {
    let mut failure = None;
    entries.sort_by(|(a, _), (b, _)| {
        compare(a, b).unwrap_or_else(|error| {
            failure.get_or_insert(error);
            std::cmp::Ordering::Equal
        })
    });
    failure.map_or(Ok(()), Err)
}
