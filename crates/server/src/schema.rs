//! JSON schemas as a grammar can hold a text to them.
//!
//! - An object is closed unless its schema opens it, as llama.cpp and vLLM have it: a model that may add members goes on
//!   adding them. Parts of an intersection (`allOf`, or alternatives beside properties) stay open, since each names only
//!   some of the members.
//! - `nullable` is the union with null that OpenAPI means by it, and `oneOf` is `anyOf`: exactly where its schemas differ in
//!   a constant member or in their type, as Pydantic's unions do, and reported where they may overlap.
//! - A keyword that no grammar holds a text to (`uniqueItems`, `not` …) is left out and listed in
//!   `x_hotmetal.schema_unchecked`; `schema_check` looks at the finished answer. One that is misspelt is refused, because a
//!   text would not be held to what it means.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{ignore, is_misspelt, unchecked, wrong};
use crate::places;
use crate::quoting::shown;
use crate::schema_keywords::{ANNOTATIONS, FORMATS, HELD, INNER, UNCHECKED};

/// Bytes of a grammar, or of a schema as JSON.
pub(crate) const GRAMMAR_BYTES_MAX: usize = 64 << 10;

/// A schema as a grammar can hold a text to it.
pub(crate) struct Prepared {
    pub(crate) schema: Value,
    /// Whether that is all of the schema: no keyword was left out.
    pub(crate) is_whole: bool,
}

/// The schema at this path of a request, as a grammar is made of it.
pub(crate) fn prepared(at: &str, schema: &Value) -> Result<Prepared, ApiError> {
    let mut open = HashSet::new();
    find_open(schema, &mut open, 0);
    let writer = Writer { root: schema, open: &open, is_whole: Cell::new(true) };
    let written = writer.schema(at, schema, false)?;
    places::check(at, &written)?;
    Ok(Prepared { schema: written, is_whole: writer.is_whole.get() })
}

/// A schema of a request.
pub(crate) struct AskedSchema {
    /// As a grammar can hold a text to it.
    pub(crate) held: Value,
    /// As it was asked for, where that says more.
    pub(crate) checked: Option<Arc<Value>>,
}

/// A schema of a request, as a grammar can hold a text to it.
pub(crate) fn schema_of(at: &str, schema: Value) -> Result<Value, ApiError> {
    Ok(asked_schema(at, schema)?.held)
}

/// A schema of a request, at this path of it.
pub(crate) fn asked_schema(at: &str, schema: Value) -> Result<AskedSchema, ApiError> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(wrong(at, &schema, "a JSON schema"));
    }
    let bytes = schema.to_string().len();
    if bytes > GRAMMAR_BYTES_MAX {
        return Err(too_long(at, bytes));
    }
    let Prepared { schema: held, is_whole } = prepared(at, &schema)?;
    Ok(AskedSchema { held, checked: (!is_whole).then(|| Arc::new(schema)) })
}

/// A schema whose JSON may have a space or a new line, with its indentation, between its parts: where any space may
/// stand, a model can go on with that until it is cut.
pub(crate) fn bounded_space(mut schema: Value) -> Value {
    if let Value::Object(map) = &mut schema {
        // The library's own options; a client's would replace them.
        map.insert("x-guidance".to_owned(), json!({"whitespace_pattern": "(?: |\\n[ \\t]{0,32})?"}));
    }
    schema
}

/// Refuses a grammar, or a schema, of so many bytes.
pub(crate) fn too_long(at: &str, bytes: usize) -> ApiError {
    ApiError::invalid(at, format!("`{at}` has {bytes} bytes, at most {GRAMMAR_BYTES_MAX} are taken"))
}

/// Whether a schema says several things of the members of one object.
fn is_intersection(schema: &Map<String, Value>) -> bool {
    let parts = ["properties", "allOf", "anyOf", "oneOf", "$ref"];
    parts.iter().filter(|part| schema.contains_key(**part)).count() > 1
}

/// The alternatives and parts of a schema.
fn branches(schema: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    ["allOf", "anyOf", "oneOf"].iter().filter_map(|name| schema.get(*name)?.as_array()).flatten()
}

/// Finds the definitions, by their `$ref`, that are parts of intersections. A part is written only when all are known.
fn find_open(schema: &Value, open: &mut HashSet<String>, depth: usize) {
    /// A body does not nest deeper.
    const DEPTH_MAX: usize = 64;
    let (Value::Object(map), true) = (schema, depth < DEPTH_MAX) else {
        if let Value::Array(items) = schema {
            items.iter().for_each(|item| find_open(item, open, depth));
        }
        return;
    };
    let parts_meet = map.get("allOf").and_then(Value::as_array).is_some_and(|parts| parts.len() > 1);
    if parts_meet || is_intersection(map) {
        let own = map.get("$ref").into_iter();
        let refs = branches(map).filter_map(|branch| branch.get("$ref")).chain(own);
        open.extend(refs.filter_map(Value::as_str).map(str::to_owned));
    }
    map.values().for_each(|inner| find_open(inner, open, depth + 1));
}

struct Writer<'a> {
    root: &'a Value,
    open: &'a HashSet<String>,
    /// No keyword was left out.
    is_whole: Cell<bool>,
}

impl Writer<'_> {
    /// `is_part`: of an intersection, so that it stays open.
    fn schema(&self, at: &str, schema: &Value, is_part: bool) -> Result<Value, ApiError> {
        let Value::Object(schema) = schema else { return Ok(schema.clone()) };
        let parts_meet = schema.get("allOf").and_then(Value::as_array).is_some_and(|parts| parts.len() > 1);
        let is_composed = is_intersection(schema);
        let mut written = Map::with_capacity(schema.len() + 1);
        for (keyword, value) in schema {
            let at = format!("{at}.{keyword}");
            let is = |kind: usize| INNER[kind].contains(&keyword.as_str());
            let inner = match value {
                Value::Array(items) if is(1) => {
                    let stays = is_part || is_composed || (keyword == "allOf" && parts_meet);
                    let stays = stays && matches!(keyword.as_str(), "allOf" | "anyOf" | "oneOf");
                    let item = |(index, item)| self.schema(&format!("{at}[{index}]"), item, stays);
                    items.iter().enumerate().map(item).collect::<Result<Value, _>>()?
                }
                Value::Object(named) if is(2) => {
                    let is_definition = matches!(keyword.as_str(), "$defs" | "definitions");
                    let mut inner = Map::with_capacity(named.len());
                    for (name, schema) in named {
                        let stays = is_definition && self.open.contains(&format!("#/{keyword}/{name}"));
                        inner.insert(name.clone(), self.schema(&format!("{at}.{name}"), schema, stays)?);
                    }
                    inner.into()
                }
                // Of the wrong type, they are refused when the schema is compiled.
                inner if is(0) || is(1) || is(2) => self.schema(&at, inner, false)?,
                value if keyword == "format" => match value.as_str() {
                    Some(form) if FORMATS.contains(&form) => value.clone(),
                    _ => {
                        ignore(at);
                        continue;
                    }
                },
                value if HELD.contains(&keyword.as_str()) => value.clone(),
                _ if ANNOTATIONS.contains(&keyword.as_str()) => continue,
                _ if UNCHECKED.contains(&keyword.as_str()) => {
                    self.leave_out(at);
                    continue;
                }
                _ => {
                    let mut known = HELD.iter().chain(INNER.iter().copied().flatten());
                    if let Some(meant) = known.find(|known| is_misspelt(keyword, known)) {
                        let message =
                            format!("`{}` is no keyword of a schema; did you mean `{meant}`?", shown(keyword));
                        return Err(ApiError::unsupported(at, message));
                    }
                    ignore(at);
                    continue;
                }
            };
            written.insert(keyword.clone(), inner);
        }
        self.one_of(at, schema, &mut written);
        let opens = ["additionalProperties", "patternProperties", "unevaluatedProperties"];
        let has_members =
            schema.get("properties").and_then(Value::as_object).is_some_and(|members| !members.is_empty());
        if has_members && !is_part && !is_composed && !opens.iter().any(|name| schema.contains_key(*name)) {
            written.insert("additionalProperties".to_owned(), false.into());
        }
        if schema.get("nullable") == Some(&json!(true)) {
            return Ok(or_null(written));
        }
        Ok(written.into())
    }

    fn leave_out(&self, at: String) {
        self.is_whole.set(false);
        unchecked(at);
    }

    /// Writes `oneOf` as `anyOf`.
    fn one_of(&self, at: &str, schema: &Map<String, Value>, written: &mut Map<String, Value>) {
        let Some(one_of) = written.shift_remove("oneOf") else { return };
        let alternatives = schema.get("oneOf").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if !self.differ(alternatives) {
            self.leave_out(format!("{at}.oneOf"));
        }
        if !written.contains_key("anyOf") {
            written.insert("anyOf".to_owned(), one_of);
            return;
        }
        let part = json!({"anyOf": one_of});
        match written.get_mut("allOf").and_then(Value::as_array_mut) {
            Some(parts) => parts.push(part),
            None => drop(written.insert("allOf".to_owned(), json!([part]))),
        }
    }

    /// Whether no value is of two of these schemas: each pair differs in its type, or in a constant member that both
    /// require.
    fn differ(&self, schemas: &[Value]) -> bool {
        let schemas: Vec<&Value> = schemas.iter().map(|schema| self.resolved(schema)).collect();
        let constants = |schema: &Value| -> Vec<(String, Value)> {
            let members = schema["properties"].as_object().into_iter().flatten();
            let constant = |(name, member): (&String, &Value)| {
                let only = member["enum"].as_array().filter(|values| values.len() == 1).map(|values| &values[0]);
                let value = member.get("const").or(only)?;
                Some((name.clone(), value.clone()))
            };
            members.filter_map(constant).collect()
        };
        schemas.iter().enumerate().all(|(index, a)| {
            schemas[..index].iter().all(|b| {
                let types = a["type"].is_string() && b["type"].is_string() && a["type"] != b["type"];
                let number = ["integer", "number"].iter().all(|kind| a["type"] == *kind || b["type"] == *kind);
                let values = a.get("const").zip(b.get("const")).is_some_and(|(a, b)| a != b);
                let others = constants(b);
                let tagged = constants(a)
                    .iter()
                    .any(|(name, value)| others.iter().any(|(other, found)| other == name && found != value));
                (types && !number) || values || tagged
            })
        })
    }

    fn resolved<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'));
        target.and_then(|path| self.root.pointer(path)).unwrap_or(schema)
    }
}

/// The same, or null.
fn or_null(mut schema: Map<String, Value>) -> Value {
    let kind = schema.get("type").and_then(Value::as_str).map(str::to_owned);
    if let Some(kind) = kind.filter(|_| !schema.contains_key("enum") && !schema.contains_key("const")) {
        schema.insert("type".to_owned(), json!([kind, "null"]));
        return schema.into();
    }
    let mut either = Map::new();
    for name in ["$defs", "definitions"] {
        either.extend(schema.shift_remove(name).map(|inner| (name.to_owned(), inner)));
    }
    either.insert("anyOf".to_owned(), json!([schema, {"type": "null"}]));
    either.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::reading;

    fn written(schema: Value) -> Value {
        prepared("s", &schema).unwrap().schema
    }

    #[test]
    fn an_object_is_closed_unless_its_schema_opens_it() {
        let member = json!({"type": "string"});
        let open = json!({"type": "object", "properties": {"a": member}});
        assert_eq!(written(open.clone())["additionalProperties"], false);
        // Dictionaries, and what says itself.
        assert_eq!(written(json!({"type": "object"})), json!({"type": "object"}));
        for (name, value) in [
            ("additionalProperties", json!(true)),
            ("additionalProperties", json!({"type": "integer"})),
            ("patternProperties", json!({"^x": true})),
        ] {
            let mut schema = open.clone();
            schema[name] = value.clone();
            let expected = if name == "additionalProperties" { value } else { Value::Null };
            assert_eq!(written(schema)["additionalProperties"], expected);
        }
        let nested = written(json!({"type": "array", "items": open, "$defs": {"d": open}}));
        assert_eq!(nested["items"]["additionalProperties"], false);
        assert_eq!(nested["$defs"]["d"]["additionalProperties"], false);
        // The parts of an intersection name some of the members each.
        let parts = written(json!({"allOf": [{"$ref": "#/$defs/a"}, open], "$defs": {"a": open, "b": open}}));
        assert_eq!(parts["allOf"][1]["additionalProperties"], Value::Null);
        assert_eq!(parts["$defs"]["a"]["additionalProperties"], Value::Null);
        assert_eq!(parts["$defs"]["b"]["additionalProperties"], false);
        let alone = written(json!({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": open}}));
        assert_eq!(alone["$defs"]["a"]["additionalProperties"], false);
    }

    #[test]
    fn keywords_are_held_or_reported_or_refused() {
        let schema = json!({"type": "object", "title": "t", "x-order": 1, "properties": {
            "list": {"type": "array", "uniqueItems": true, "items": {"type": "string", "format": "date"}},
            "name": {"type": "string", "format": "person", "nullable": true}}});
        let (made, notes) = reading(false, || written(schema));
        assert_eq!(notes.unchecked, ["s.properties.list.uniqueItems"]);
        assert_eq!(notes.ignored, ["s.x-order", "s.properties.name.format"]);
        assert_eq!(made["properties"]["name"]["type"], json!(["string", "null"]));
        assert_eq!(made["properties"]["list"]["items"]["format"], "date");
        let error = prepared("s", &json!({"properties": {"a": {"maxLenght": 3}}})).err().unwrap().to_json();
        assert_eq!(error["error"]["param"], "s.properties.a.maxLenght");
        let multiples: Vec<_> = [7, 11, 13, 17, 19, 23].map(|of| json!({"type": "integer", "multipleOf": of})).into();
        assert!(prepared("s", &json!({"allOf": multiples})).is_err());
        assert!(prepared("s", &json!({"type": "number", "multipleOf": 0.01})).is_ok());
    }

    #[test]
    fn alternatives_that_differ_in_a_constant_are_held_to() {
        let of_kind =
            |kind: &str| json!({"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]});
        let defs = json!({"Cat": of_kind("cat"), "Dog": of_kind("dog")});
        let pets = json!({"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], "$defs": defs,
            "discriminator": {"propertyName": "kind"}});
        let (made, notes) = reading(false, || written(pets));
        assert!(notes.unchecked.is_empty() && made["anyOf"].is_array() && made["oneOf"].is_null(), "{made}");
        let (_, notes) = reading(false, || written(json!({"oneOf": [{"type": "integer"}, {"type": "number"}]})));
        assert_eq!(notes.unchecked, ["s.oneOf"]);
    }
}
