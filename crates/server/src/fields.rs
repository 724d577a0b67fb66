//! The fields of a request body: a route lists those it knows, and each is applied or refused by name.

use std::fmt::Display;

use serde_json::{Map, Value};

use crate::error::ApiError;

/// A field that a route knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) rule: Rule,
}

/// What is done about a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// The route acts on it.
    Applied,
    /// Values that ask for what is done anyway are taken; others are refused, with the reason.
    Only { accepts: fn(&Value) -> bool, why: &'static str },
}

/// A field that is acted on.
pub(crate) const fn applied(name: &'static str) -> Field {
    Field { name, rule: Rule::Applied }
}

/// A field of which only some values ask for what is done anyway.
pub(crate) const fn only(name: &'static str, accepts: fn(&Value) -> bool, why: &'static str) -> Field {
    Field { name, rule: Rule::Only { accepts, why } }
}

/// The fields of one body, taken out one by one. A `null` is as good as none.
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// Those of a body, all of which `known` lists.
    pub(crate) fn new(body: Value, known: &[&[Field]]) -> Result<Self, ApiError> {
        let Value::Object(mut map) = body else {
            // The whole body, or what a field of it holds.
            return Err(ApiError::bad_request(format!("found {} where an object is expected", kind_of(&body))));
        };
        map.retain(|_, value| !value.is_null());
        for (name, value) in &map {
            match known.iter().copied().flatten().find(|field| field.name == name).map(|field| field.rule) {
                Some(Rule::Applied) => {}
                Some(Rule::Only { accepts, .. }) if accepts(value) => {}
                Some(Rule::Only { why, .. }) => {
                    return Err(ApiError::unsupported(name, format!("`{name}` cannot be {}: {why}", shortened(value))));
                }
                None => {
                    let message = format!("`{name}` is no field that this server applies here; leave it out");
                    return Err(ApiError::unsupported(name, message));
                }
            }
        }
        Ok(Self(map))
    }

    /// The value of a field, if it is there.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name)
    }

    /// A value that must be there.
    pub(crate) fn required(&mut self, name: &'static str) -> Result<Value, ApiError> {
        self.take(name).ok_or_else(|| ApiError::invalid(name, format!("`{name}` is missing")))
    }

    pub(crate) fn string(&mut self, name: &'static str) -> Result<Option<String>, ApiError> {
        self.take(name).map(|value| string(name, value)).transpose()
    }

    pub(crate) fn boolean(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        let read = |value: Value| value.as_bool().ok_or_else(|| wrong(name, &value, "true or false"));
        self.take(name).map(read).transpose()
    }

    /// A whole number from `least` to `most`.
    pub(crate) fn integer(&mut self, name: &'static str, least: i64, most: i64) -> Result<Option<i64>, ApiError> {
        let expected = || format!("a whole number from {least} to {most}");
        let read = |value: Value| {
            let found = value.as_i64().filter(|found| (least..=most).contains(found));
            found.ok_or_else(|| wrong(name, &value, expected()))
        };
        self.take(name).map(read).transpose()
    }

    /// A count that fits the memory of this machine; the engine knows the narrower bound.
    pub(crate) fn count(&mut self, name: &'static str) -> Result<Option<usize>, ApiError> {
        Ok(self.integer(name, 0, i64::from(u32::MAX))?.map(|count| count as usize))
    }

    pub(crate) fn number(&mut self, name: &'static str) -> Result<Option<f32>, ApiError> {
        let read = |value: Value| {
            let found = value.as_f64().map(|found| found as f32).filter(|found| found.is_finite());
            found.ok_or_else(|| wrong(name, &value, "a number"))
        };
        self.take(name).map(read).transpose()
    }

    pub(crate) fn object(&mut self, name: &'static str) -> Result<Option<Map<String, Value>>, ApiError> {
        let read = |value: Value| match value {
            Value::Object(map) => Ok(map),
            other => Err(wrong(name, &other, "an object")),
        };
        self.take(name).map(read).transpose()
    }

    /// A list of strings; one string alone is a list of it.
    pub(crate) fn strings(&mut self, name: &'static str) -> Result<Option<Vec<String>>, ApiError> {
        let read = |value: Value| match value {
            Value::String(text) => Ok(vec![text]),
            Value::Array(items) => items.into_iter().map(|item| string(name, item)).collect(),
            other => Err(wrong(name, &other, "a string or a list of strings")),
        };
        self.take(name).map(read).transpose()
    }

    /// A list of token ids.
    pub(crate) fn token_ids(&mut self, name: &'static str) -> Result<Option<Vec<u32>>, ApiError> {
        self.take(name).map(|value| token_ids(name, &value)).transpose()
    }

    /// Ends the reading: a field that a route lists and does not take would be silently ignored.
    pub(crate) fn finish(self, known: &[&[Field]]) -> Result<(), ApiError> {
        let applied = |name: &str| {
            let field = known.iter().copied().flatten().find(|field| field.name == name);
            field.is_none_or(|field| matches!(field.rule, Rule::Applied))
        };
        match self.0.keys().find(|name| applied(name)) {
            Some(name) => {
                Err(ApiError::unsupported(name, format!("`{name}` has no effect with the other fields given")))
            }
            None => Ok(()),
        }
    }
}

pub(crate) fn string(name: &str, value: Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(wrong(name, &other, "a string")),
    }
}

pub(crate) fn token_ids(name: &str, value: &Value) -> Result<Vec<u32>, ApiError> {
    let id = |item: &Value| item.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = value.as_array().and_then(|items| items.iter().map(id).collect());
    ids.ok_or_else(|| wrong(name, value, "a list of token ids"))
}

/// A field of the wrong type or out of its range.
pub(crate) fn wrong(name: &str, found: &Value, expected: impl Display) -> ApiError {
    ApiError::invalid(name, format!("`{name}` is {}, expected {expected}", shortened(found)))
}

/// A value in a message: what a client sent may be long.
fn shortened(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => kind_of(value).to_owned(),
        Value::String(text) if text.len() > 40 => format!("a string of {} bytes", text.len()),
        short => short.to_string(),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
