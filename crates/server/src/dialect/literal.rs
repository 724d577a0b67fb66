//! Values as a model writes them that calls functions as Python does, or as Gemma 4 does: what a call's arguments are
//! made of where they are no JSON.

use serde_json::{Map, Number, Value};

/// Lists and objects within each other; a text that opens more is no value.
const DEPTH_MAX: usize = 64;

/// What is not the same in all notations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notation {
    /// What strings stand between; the longer of two that begin alike comes first.
    pub(super) quotes: &'static [&'static str],
    /// A backslash escapes within the first so many of `quotes`.
    pub(super) num_escaping: usize,
    /// Keys of objects may stand without quotes.
    pub(super) bare_keys: bool,
}

/// Python's literals. What JSON calls `true`, `false` and `null` is taken too, because models mix them up.
pub(super) const PYTHON: Notation =
    Notation { quotes: &["\"\"\"", "'''", "\"", "'"], num_escaping: 4, bare_keys: false };

/// Why there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoValue {
    /// The text ends within it, or more of it may come.
    Cut,
    /// No value is written like this.
    Wrong,
}

/// Reads values from the beginning of a text.
#[derive(Clone, Debug)]
pub(super) struct Scanner<'t> {
    rest: &'t str,
    notation: Notation,
}

impl<'t> Scanner<'t> {
    pub(super) fn new(text: &'t str, notation: Notation) -> Self {
        Self { rest: text, notation }
    }

    /// What was not read yet.
    pub(super) fn rest(&self) -> &'t str {
        self.rest
    }

    pub(super) fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Takes `text`, if it comes next; `Err` if nothing comes, or no more than its beginning.
    pub(super) fn take(&mut self, text: &str) -> Result<bool, NoValue> {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                Ok(true)
            }
            None if text.starts_with(self.rest) => Err(NoValue::Cut),
            None => Ok(false),
        }
    }

    /// Takes all characters of which `is_part` holds; `Err` if the text ends there, because more may come.
    pub(super) fn word(&mut self, is_part: impl Fn(char) -> bool) -> Result<&'t str, NoValue> {
        let end = self.rest.find(|character| !is_part(character)).ok_or(NoValue::Cut)?;
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(word)
    }

    /// Takes a value, with the space before it.
    pub(super) fn value(&mut self) -> Result<Value, NoValue> {
        self.value_within(0)
    }

    fn value_within(&mut self, depth: usize) -> Result<Value, NoValue> {
        self.skip_space();
        if depth > DEPTH_MAX {
            return Err(NoValue::Wrong);
        }
        if let Some(text) = self.string()? {
            return Ok(Value::String(text));
        }
        match self.rest.chars().next().ok_or(NoValue::Cut)? {
            '[' => self.list(']', depth),
            '(' => self.list(')', depth),
            '{' => self.object(depth),
            _ => {
                let word = self.word(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '+' | '-'))?;
                constant(word).ok_or(NoValue::Wrong)
            }
        }
    }

    fn list(&mut self, close: char, depth: usize) -> Result<Value, NoValue> {
        self.rest = &self.rest[1..];
        let mut values = Vec::new();
        loop {
            self.skip_space();
            if self.take(close.encode_utf8(&mut [0; 4]))? {
                return Ok(Value::Array(values));
            }
            values.push(self.value_within(depth + 1)?);
            self.skip_space();
            if !self.take(",")? && !self.rest.starts_with(close) {
                return Err(NoValue::Wrong);
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, NoValue> {
        self.rest = &self.rest[1..];
        let mut members = Map::new();
        loop {
            self.skip_space();
            if self.take("}")? {
                return Ok(Value::Object(members));
            }
            let key = self.key()?;
            members.insert(key, self.value_within(depth + 1)?);
            self.skip_space();
            if !self.take(",")? && !self.rest.starts_with('}') {
                return Err(NoValue::Wrong);
            }
        }
    }

    /// Takes a key and the colon behind it.
    pub(super) fn key(&mut self) -> Result<String, NoValue> {
        let key = match self.string()? {
            Some(key) => key,
            None if self.notation.bare_keys => {
                let key = self.word(|c| !c.is_whitespace() && !matches!(c, ':' | ',' | '{' | '}' | '[' | ']' | '<'))?;
                if key.is_empty() {
                    return Err(NoValue::Wrong);
                }
                key.to_owned()
            }
            None => return Err(NoValue::Wrong),
        };
        self.skip_space();
        if self.take(":")? { Ok(key) } else { Err(NoValue::Wrong) }
    }

    /// Takes a string, if one comes next.
    fn string(&mut self) -> Result<Option<String>, NoValue> {
        let mut may_come = false;
        for (index, quote) in self.notation.quotes.iter().enumerate() {
            if let Some(text) = self.rest.strip_prefix(quote) {
                // Two quotes at the end are an empty string, or the beginning of three.
                if may_come {
                    return Err(NoValue::Cut);
                }
                return self.string_behind(text, quote, index < self.notation.num_escaping).map(Some);
            }
            may_come |= quote.starts_with(self.rest);
        }
        if may_come { Err(NoValue::Cut) } else { Ok(None) }
    }

    fn string_behind(&mut self, text: &'t str, quote: &str, escapes: bool) -> Result<String, NoValue> {
        let mut read = String::new();
        let mut rest = text;
        loop {
            let end = rest.find(quote);
            let escape = if escapes { rest[..end.unwrap_or(rest.len())].find('\\') } else { None };
            match (escape, end) {
                (Some(at), _) => {
                    read.push_str(&rest[..at]);
                    rest = unescape(&rest[at + 1..], &mut read)?;
                }
                (None, Some(end)) => {
                    read.push_str(&rest[..end]);
                    self.rest = &rest[end + quote.len()..];
                    return Ok(read);
                }
                (None, None) => return Err(NoValue::Cut),
            }
        }
    }
}

/// Appends what an escape means, of which `text` is what stands behind the backslash; returns what follows. An escape
/// that does not exist means what stands there, as in Python.
fn unescape<'t>(text: &'t str, read: &mut String) -> Result<&'t str, NoValue> {
    let escaped = text.chars().next().ok_or(NoValue::Cut)?;
    let rest = &text[escaped.len_utf8()..];
    let hex = |text: &'t str, digits: usize| {
        let found = text.bytes().take(digits).take_while(u8::is_ascii_hexdigit).count();
        if found == digits {
            return Ok(u32::from_str_radix(&text[..digits], 16).ok().map(|code| (code, &text[digits..])));
        }
        if found == text.len() { Err(NoValue::Cut) } else { Ok(None) }
    };
    let plain = match escaped {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        '\\' | '\'' | '"' | '/' => escaped,
        '\n' => return Ok(rest),
        'x' | 'u' | 'U' => {
            let digits = if escaped == 'x' {
                2
            } else if escaped == 'u' {
                4
            } else {
                8
            };
            let Some((code, mut rest)) = hex(rest, digits)? else {
                read.extend(['\\', escaped]);
                return Ok(rest);
            };
            let mut code = code;
            // JSON writes a character beyond the first 65,536 as two.
            if (0xd800..0xdc00).contains(&code) {
                if "\\u".starts_with(rest) {
                    return Err(NoValue::Cut);
                }
                if let Some(low) = rest.strip_prefix("\\u")
                    && let Some((low, behind)) = hex(low, 4)?
                    && (0xdc00..0xe000).contains(&low)
                {
                    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                    rest = behind;
                }
            }
            read.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            return Ok(rest);
        }
        other => {
            read.push('\\');
            other
        }
    };
    read.push(plain);
    Ok(rest)
}

/// A number, or a word that means a value.
fn constant(word: &str) -> Option<Value> {
    match word {
        "True" | "true" => return Some(Value::Bool(true)),
        "False" | "false" => return Some(Value::Bool(false)),
        "None" | "null" => return Some(Value::Null),
        _ => {}
    }
    let digits = word.replace('_', "");
    if let Ok(value @ Value::Number(_)) = serde_json::from_str(&digits) {
        return Some(value);
    }
    // As Python has them and JSON does not: `.5`, `1.`, `+1`. `inf` and `nan` are words, and no JSON has them.
    let begins = digits.trim_start_matches(['+', '-']).starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let number = digits.parse::<f64>().ok().filter(|_| begins)?;
    Number::from_f64(number).map(Value::Number)
}

/// The value that a text is as a whole, if it is a list, an object or a constant of Python's.
pub(super) fn python_value(text: &str) -> Option<Value> {
    let is_plain = text.starts_with(['[', '{', '(']) || matches!(text, "True" | "False" | "None");
    if !is_plain {
        return None;
    }
    // A word ends where something else comes.
    let text = format!("{text}\n");
    let mut scanner = Scanner::new(&text, PYTHON);
    let value = scanner.value().ok()?;
    scanner.rest().trim().is_empty().then_some(value)
}

/// A value as Python writes it.
pub(super) fn python(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(_) | Value::String(_) => value.to_string(),
        Value::Array(values) => format!("[{}]", joined(values.iter().map(python).collect())),
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| format!("{}: {}", Value::from(key.as_str()), python(value));
            format!("{{{}}}", joined(members.iter().map(member).collect()))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Value, NoValue> {
        Scanner::new(text, PYTHON).value()
    }

    #[test]
    fn values_are_read_as_python_writes_them() {
        for (text, value) in [
            ("1,", json!(1)),
            ("-2.5e3)", json!(-2500.0)),
            ("1_000 ", json!(1000)),
            (".5,", json!(0.5)),
            ("True,", json!(true)),
            ("None)", json!(null)),
            ("null)", json!(null)),
            ("'it\\'s',", json!("it's")),
            ("\"a\\n\\u00e9\\x41\\q\"", json!("a\né\u{41}\\q")),
            ("\"\\ud83d\\ude00\"", json!("😀")),
            ("'''a 'b' c''' ", json!("a 'b' c")),
            ("'' ", json!("")),
            ("[1, 'a', (2,), [],] ", json!([1, "a", [2], []])),
            ("{'a': {\"b\": None}, 'c': [True]}", json!({"a": {"b": null}, "c": [true]})),
        ] {
            assert_eq!(read(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_is_no_value_is_wrong_and_what_may_become_one_is_cut() {
        for text in ["x,", "f(1)", "[1 2]", "{a: 1}", "{'a' 1}", "nan,", "-,", "1x,"] {
            assert_eq!(read(text), Err(NoValue::Wrong), "{text}");
        }
        for text in ["", " ", "1", "'a", "''", "'a\\", "'\\u00", "[", "[1", "[1,", "{'a'", "{'a':", "{'a': 1", "Tr"] {
            assert_eq!(read(text), Err(NoValue::Cut), "{text}");
        }
        let deep = "[".repeat(100);
        assert_eq!(read(&deep), Err(NoValue::Wrong));
    }

    #[test]
    fn a_whole_text_is_a_value_of_python_or_a_text() {
        assert_eq!(python_value("['a', 1]"), Some(json!(["a", 1])));
        assert_eq!(python_value("True"), Some(json!(true)));
        assert_eq!(python_value("[1] and more"), None);
        assert_eq!(python_value("plain"), None);
    }
}
