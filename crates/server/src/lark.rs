//! Grammars in Lark's notation as a client writes them, read as far as it takes to know what they cost.
//!
//! A schema that stands in one (`%json { … }`) is prepared as a schema of a request is. To the library a terminal is
//! one regular expression, with all terminals that it names in it. The sum of their parts is counted here, because the
//! library builds the expression before it counts anything.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Deserializer, Value};

use crate::error::ApiError;
use crate::regex_weight::{Weight, too_complex};
use crate::schema::{bounded_space, schema_of};

/// Schemas, and texts of `%regex`, in one grammar.
const INLINE_MAX: usize = 64;
/// Bytes of all texts of `%regex`.
const SUBSTRING_BYTES_MAX: usize = 8 << 10;

/// The grammar at `at`, with its schemas as a grammar can hold a text to them.
pub(crate) fn prepared(at: &str, text: &str) -> Result<String, ApiError> {
    let mut reader = Reader { at, text, place: 0, written: String::with_capacity(text.len()), ..Reader::default() };
    reader.parts.push(GrammarPart::default());
    reader.read()?;
    reader.check()?;
    Ok(reader.written)
}

/// A rule, a terminal, or a statement.
#[derive(Default)]
struct GrammarPart {
    own: Weight,
    /// Terminals that it names, and how often.
    named: BTreeMap<String, usize>,
    /// Whether all of it is one regular expression.
    is_one: bool,
}

#[derive(Default)]
struct Reader<'a> {
    at: &'a str,
    text: &'a str,
    place: usize,
    written: String,
    parts: Vec<GrammarPart>,
    /// Terminals by their names.
    terminals: HashMap<String, Vec<usize>>,
    num_inline: usize,
    substring_bytes: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.place..).unwrap_or_default()
    }

    fn take(&mut self, length: usize) -> &'a str {
        let taken = self.rest().get(..length).unwrap_or_default();
        self.place += taken.len();
        self.written.push_str(taken);
        taken
    }

    fn part(&mut self) -> &mut GrammarPart {
        // There is one from the beginning on.
        let last = self.parts.len() - 1;
        &mut self.parts[last]
    }

    /// What the library cannot read either, or might read otherwise than it is read here.
    fn wrong(&self, what: &str) -> ApiError {
        let before = self.text.get(..self.place).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        ApiError::invalid(self.at, format!("`{}` cannot be read at line {line}, column {column}: {what}", self.at))
    }

    fn read(&mut self) -> Result<(), ApiError> {
        let mut begins_line = true;
        while let Some(first) = self.rest().chars().next() {
            let rest = self.rest();
            let was_beginning = begins_line;
            begins_line = first == '\n' || (begins_line && " \t\r".contains(first));
            match first {
                '#' => drop(self.take(rest.find('\n').unwrap_or(rest.len()))),
                '/' if rest.starts_with("//") => drop(self.take(rest.find('\n').unwrap_or(rest.len()))),
                '"' | '/' => {
                    let length = quoted(rest, first).ok_or_else(|| self.wrong("it is not closed"))?;
                    let taken = self.take(length);
                    let weight =
                        if first == '/' { Weight::of(taken) } else { Weight { bytes: length, ..Weight::default() } };
                    if weight.is_heavy() {
                        return Err(too_complex(self.at, "a regular expression"));
                    }
                    self.part().own.add(weight);
                }
                '<' => {
                    let end = rest.find('>').filter(|end| {
                        let inner = &rest[1..*end];
                        !inner.is_empty() && !inner.contains(|c: char| c == '<' || c.is_whitespace())
                    });
                    let end = end.ok_or_else(|| self.wrong("a special token is written <name>"))?;
                    self.take(end + 1);
                }
                '%' => self.directive()?,
                'a'..='z' | 'A'..='Z' | '_' | '!' => self.name(was_beginning),
                '?' if was_beginning => drop(self.take(1)),
                '?' | '*' | '[' | '{' | '|' => {
                    self.take(1);
                    self.part().own.marks += 1;
                }
                '&' => {
                    self.take(1);
                    self.part().own.meets += 1;
                }
                '~' => {
                    self.take(1);
                    let next = self.rest().trim_start_matches([' ', '\t']).chars().next();
                    // `~ 2..3` says how often, `~ T` is what T is not.
                    if !next.is_some_and(|next| next.is_ascii_digit() || next == '+' || next == '-') {
                        let part = self.part();
                        part.own.meets += 1;
                        part.is_one = true;
                    }
                }
                other => drop(self.take(other.len_utf8())),
            }
        }
        Ok(())
    }

    /// A name, which begins a part where it stands first in a line or before a colon.
    fn name(&mut self, begins_line: bool) {
        let rest = self.rest();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let length = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len()).max(1);
        let name = self.take(length);
        let is_terminal = name.trim_start_matches('_').starts_with(|c: char| c.is_ascii_uppercase());
        let behind = self.rest().trim_start_matches([' ', '\t']);
        let behind = behind.strip_prefix('.').map_or(behind, |priority| {
            priority.trim_start_matches(|c: char| c.is_ascii_digit() || " \t+-".contains(c))
        });
        let is_defined = behind.starts_with(':') && (is_terminal || !behind.starts_with("::"));
        if begins_line || is_defined {
            // A rule with attributes is one regular expression.
            self.parts.push(GrammarPart { is_one: is_terminal || behind.starts_with('['), ..GrammarPart::default() });
            if is_terminal {
                let index = self.parts.len() - 1;
                self.terminals.entry(name.to_owned()).or_default().push(index);
            }
        } else if is_terminal {
            *self.part().named.entry(name.to_owned()).or_default() += 1;
        }
    }

    /// What begins with `%`. JSON may stand behind it, with anything in its texts.
    fn directive(&mut self) -> Result<(), ApiError> {
        let rest = self.rest();
        if rest.starts_with("%ignore") {
            self.take("%ignore".len());
            self.parts.push(GrammarPart { is_one: true, ..GrammarPart::default() });
            return Ok(());
        }
        let Some(name) = ["%json", "%llguidance", "%regex"].into_iter().find(|name| rest.starts_with(name)) else {
            // Others that may stand in the middle of a line, and end a part.
            self.take(1);
            return Ok(());
        };
        self.take(name.len());
        let mut values = Deserializer::from_str(self.rest()).into_iter::<Value>();
        let value = match values.next() {
            Some(Ok(value)) if value.is_object() => value,
            Some(Err(error)) => return Err(self.wrong(&format!("the JSON of `{name}` is none: {error}"))),
            _ => return Err(self.wrong(&format!("`{name}` has to have an object behind it"))),
        };
        let length = values.byte_offset();
        if name == "%llguidance" {
            self.take(length);
            return Ok(());
        }
        let number = self.num_inline;
        self.num_inline += 1;
        if self.num_inline > INLINE_MAX {
            return Err(too_complex(self.at, "schemas or texts"));
        }
        if name == "%regex" {
            self.substring_bytes += length;
            if self.substring_bytes > SUBSTRING_BYTES_MAX {
                return Err(too_complex(self.at, "texts of `%regex`"));
            }
            self.take(length);
            self.part().own.add(Weight { bytes: length, ..Weight::default() });
            return Ok(());
        }
        let schema = bounded_space(schema_of(&format!("{}.%json[{number}]", self.at), value)?).to_string();
        // As many lines as before, so that the library's messages name the right ones.
        let lines = self.rest().get(..length).unwrap_or_default().matches('\n').count();
        self.written.push(' ');
        self.written.push_str(schema.strip_suffix('}').unwrap_or(&schema));
        self.written.push_str(&"\n".repeat(lines));
        self.written.push('}');
        self.place += length;
        Ok(())
    }

    /// Refuses terminals that come to too much with all that they name.
    fn check(&self) -> Result<(), ApiError> {
        let mut whole: Vec<Option<Weight>> = vec![None; self.parts.len()];
        for (index, part) in self.parts.iter().enumerate() {
            if part.is_one && self.weight(index, &mut whole).is_heavy() {
                return Err(too_complex(self.at, "a terminal"));
            }
        }
        Ok(())
    }

    /// What a part comes to. Without recursion, because names may be a chain of thousands.
    fn weight(&self, index: usize, whole: &mut [Option<Weight>]) -> Weight {
        let mut waiting = vec![(index, false)];
        while let Some((index, is_ready)) = waiting.pop() {
            let part = &self.parts[index];
            let named = |name: &String| self.terminals.get(name).map(Vec::as_slice).unwrap_or_default();
            if is_ready {
                let mut sum = part.own;
                for (name, count) in &part.named {
                    // What is imported is a few characters.
                    let mut one = Weight { bytes: 16, marks: 1, meets: 0 };
                    named(name).iter().filter_map(|index| whole[*index]).for_each(|weight| one.add(weight));
                    sum.add(Weight {
                        bytes: one.bytes.saturating_mul(*count),
                        marks: one.marks.saturating_mul(*count),
                        meets: one.meets.saturating_mul(*count),
                    });
                }
                whole[index] = Some(sum);
            } else if whole[index].is_none() {
                // A terminal in itself is refused by the library; until then it counts for nothing.
                whole[index] = Some(Weight::default());
                waiting.push((index, true));
                waiting.extend(part.named.keys().flat_map(named).map(|index| (*index, false)));
            }
        }
        whole[index].unwrap_or_default()
    }
}

/// The length of a text or regular expression with its ends, as the library reads it.
fn quoted(text: &str, end: char) -> Option<usize> {
    let mut characters = text.char_indices().skip(1);
    while let Some((place, character)) = characters.next() {
        match character {
            '\\' => {
                let (_, escaped) = characters.next()?;
                if escaped == '\n' {
                    return None;
                }
            }
            found if found == end => return Some(place + 1),
            control if end == '"' && (control < ' ' || control == '\x7f') => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Option<&'static str> {
        prepared("g", text).err().map(|error| error.code().unwrap_or("invalid"))
    }

    #[test]
    fn what_is_read_is_written_again() {
        for text in [
            "start: a B?\na: \"x\" | /[\"%]\\/json/ | <[1-3]> -> y // %json\n",
            "start: B\nB: \"%json {\"i & ~/a/ # \"\n%ignore /[ \\t]+/\n",
            "start[lazy]: /a+/\n| \"b\"~2..3\n%llguidance {\"no_forcing\": true}\n%import common.INT",
            "start: %lark { start: \"a\" }\n",
        ] {
            assert_eq!(prepared("g", text).unwrap(), text);
        }
        for text in ["start: \"a", "start: /a", "start: <a b>", "start: \"a\nb\"", "start: %json {", "start: %json 1"] {
            assert_eq!(code(text), Some("invalid"), "{text}");
        }
        let error = prepared("g", "start: x\nx: \"a\" <b").unwrap_err().to_json();
        assert!(error["error"]["message"].as_str().unwrap().contains("line 2, column 8"), "{error}");
    }

    #[test]
    fn a_schema_in_a_grammar_is_prepared_as_any_other() {
        let text = "start: %json {\n \"properties\": {\"a\": {\"type\": \"integer\"}}} \"x\"\nb: \"c\"\n";
        let made = prepared("g", text).unwrap();
        assert!(made.contains("\"additionalProperties\":false") && made.contains("whitespace_pattern"), "{made}");
        assert_eq!(made.matches('\n').count(), text.matches('\n').count());
        assert!(made.ends_with(" \"x\"\nb: \"c\"\n"), "{made}");
        assert_eq!(code("start: %json {\"type\": \"integer\", \"multipleOf\": 1000003}"), Some("grammar_too_complex"));
        assert_eq!(code("start: %json {\"maxLenght\": 3}"), Some("unsupported_parameter"));
        assert_eq!(code("start: %lark { start: %json {\"multipleOf\": 1000003} }"), Some("grammar_too_complex"));
        let error = prepared("g", "start: %json {} %json {\"a\": {\"multipleOf\": 0}, \"multipleOf\": 0}").unwrap_err();
        assert_eq!(error.param(), Some("g.%json[1].multipleOf"));
        assert_eq!(code(&format!("start: {}", "%json {} ".repeat(70))), Some("grammar_too_complex"));
    }

    #[test]
    fn a_terminal_is_weighed_with_all_that_it_names() {
        let double = |separator: &str, count: usize| -> String {
            let rules = (0..count).map(|i| format!("T{i}: T{}{separator}T{}\n", i + 1, i + 1)).collect::<String>();
            format!("start: T0\n{rules}T{count}: \"b\"\n")
        };
        let same_line = double(" ", 40).replace('\n', " -> x ");
        let ands: Vec<String> = (0..12).map(|i| format!("/(.{{{}}})*x/", i + 2)).collect();
        for text in [
            double(" ", 40),
            double(" ", 2_500),
            double(" & ", 5),
            same_line,
            format!("start: \"a\"\n%ignore {}", "A ".repeat(6_000)),
            format!("start: T\nT: {}", "\"a\"? ".repeat(6_000)),
            format!("start[lazy]: {}", "\"a\"? ".repeat(6_000)),
            format!("start: /{}/", "a?".repeat(6_000)),
            format!("start: T\nT: {}", ands.join(" & ")),
            format!("start: ~({})", ands.join(" & ")),
            format!("start: %regex {{\"substring_chars\": \"{}\"}}", "ab".repeat(5_000)),
        ] {
            assert_eq!(code(&text), Some("grammar_too_complex"), "{:.60}", text);
        }
        for text in [
            double(" ", 8),
            format!("start: {}", "\"a\"? ".repeat(6_000)),
            "start: T\nT: T".to_owned(),
            (0..2_500).map(|i| format!("T{i}: \"a\" T{}\n", i + 1)).collect(),
            format!("start: T\nT: {}", ands[..8].join(" & ")),
        ] {
            assert_eq!(code(&text), None, "{:.60}", text);
        }
    }
}
