//! JSON from a file nobody vouches for: bounded depth, a bounded number of values, no key twice.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::{
    FormatError,
    error::shown,
    limits::{Budget, DEPTH_MAX, JSON_VALUES_MAX, at_most},
};

/// Reads one JSON object; `what` names it in errors.
pub(crate) fn parse_object(bytes: &[u8], what: &str) -> Result<Map<String, Value>, FormatError> {
    match parse(bytes, what)? {
        Value::Object(map) => Ok(map),
        other => Err(FormatError::NotAnObject { found: kind(&other) }),
    }
}

/// Reads one JSON value; `what` names it in errors.
pub(crate) fn parse(bytes: &[u8], what: &str) -> Result<Value, FormatError> {
    let mut values_left = JSON_VALUES_MAX;
    let bytes = without_python_numbers(bytes);
    let mut json = serde_json::Deserializer::from_slice(&bytes);
    let value = Bounded::new(DEPTH_MAX, &mut values_left).deserialize(&mut json);
    let value = value.and_then(|value| json.end().map(|()| value));
    value.map_err(|source| FormatError::Json { what: what.into(), source })
}

/// Replaces the words `NaN`, `Infinity` and `-Infinity`, which Python's `json` writes and reads and JSON lacks: `NaN` becomes
/// null, and an infinity the finite number of the largest magnitude.
fn without_python_numbers(bytes: &[u8]) -> Cow<'_, [u8]> {
    const WORDS: [(&[u8], &[u8]); 3] =
        [(b"NaN", b"null"), (b"-Infinity", b"-1.7976931348623157e308"), (b"Infinity", b"1.7976931348623157e308")];
    let mut written: Option<Vec<u8>> = None;
    let (mut at, mut copied, mut in_string) = (0, 0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if in_string => at += 1,
            b'"' => in_string = !in_string,
            b'N' | b'I' | b'-' if !in_string => {
                if let Some((word, number)) = WORDS.iter().find(|(word, _)| bytes[at..].starts_with(word)) {
                    let written = written.get_or_insert_default();
                    written.extend_from_slice(&bytes[copied..at]);
                    written.extend_from_slice(number);
                    at += word.len();
                    copied = at;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    match written {
        None => Cow::Borrowed(bytes),
        Some(mut written) => {
            written.extend_from_slice(&bytes[copied..]);
            Cow::Owned(written)
        }
    }
}

/// What a JSON value is, for messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Builds a [`Value`] as serde_json does, within bounds.
pub(crate) struct Bounded<'a> {
    depth_left: u32,
    values_left: &'a mut u64,
}

impl<'a> Bounded<'a> {
    /// A value of at most `depth` containers in each other and `values_left` values, which it takes away.
    pub(crate) fn new(depth: u32, values_left: &'a mut u64) -> Self {
        Self { depth_left: depth, values_left }
    }

    fn inner<E: serde::de::Error>(&mut self) -> Result<Bounded<'_>, E> {
        let depth_left = self.depth_left.checked_sub(1);
        let depth_left = depth_left.ok_or_else(|| E::custom(format_args!("nested more than {DEPTH_MAX} deep")))?;
        Ok(Bounded { depth_left, values_left: self.values_left })
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let values_left = self.values_left.checked_sub(1);
        *self.values_left =
            values_left.ok_or_else(|| D::Error::custom(format_args!("more than {JSON_VALUES_MAX} values")))?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(self.inner()?)? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("key `{}` occurs twice", shown(&key))));
            }
            let value = entries.next_value_seed(self.inner()?)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// An object whose values are all strings, in its order; at most `limit` of them, and no key twice.
pub(crate) struct StringMap<'a> {
    /// What the entries are, in the plural, for errors.
    pub(crate) what: &'static str,
    pub(crate) limit: u64,
    pub(crate) budget: &'a mut Budget,
}

impl<'de> DeserializeSeed<'de> for StringMap<'_> {
    type Value = Vec<(String, String)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for StringMap<'_> {
    type Value = Vec<(String, String)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        // Twice: a vector that grows holds its old and new half for a moment. Then the sorted keys.
        let entry_bytes = 2 * size_of::<(String, String)>() + size_of::<&str>();
        let mut entries: Vec<(String, String)> = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            at_most(self.limit, entries.len() as u64 + 1, &self.what).map_err(A::Error::custom)?;
            let bytes = entry_bytes + key.len() + value.len();
            self.budget.take(bytes as u64, &self.what).map_err(A::Error::custom)?;
            entries.push((key, value));
        }
        let mut keys: Vec<&str> = entries.iter().map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        match keys.array_windows().find(|[a, b]| a == b) {
            Some([key, _]) => Err(A::Error::custom(format_args!("key `{}` occurs twice", shown(key)))),
            None => Ok(entries),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_read_as_python_writes_them() {
        let text =
            br#"{"a": NaN, "limits": [-Infinity, Infinity, -1], "text": "NaN \"Infinity\" -Infinity", "NaN": 1}"#;
        let expected =
            json!({"a": null, "limits": [f64::MIN, f64::MAX, -1], "text": "NaN \"Infinity\" -Infinity", "NaN": 1});
        assert_eq!(parse(text, "config.json").unwrap(), expected);
        for bad in [&b"{\"a\": Nan}"[..], b"{\"a\": NaNN}", b"{NaN: 1}", b"{\"a\": +Infinity}", b"NaN NaN", b"\"\\"] {
            assert!(parse(bad, "config.json").is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }
}
