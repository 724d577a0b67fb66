//! Whether a finished answer is of its schema, for keywords that no grammar holds a text to.
//!
//! A library for this (`jsonschema`) would add more to the program than its limit of 50 MiB leaves, and reads schemas from
//! anywhere; here it is what a request can have: one document, references within it, and bounds on what one check takes.
//! Keywords that depend on what others have looked at (`unevaluatedProperties`, `$dynamicRef`) are not looked at.

use std::collections::{HashMap, HashSet};

use fancy_regex::{Regex, RegexBuilder};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

/// Schemas that are looked at for one answer. Those of alternatives in alternatives multiply.
const STEPS_MAX: usize = 20_000;
/// What a regular expression counts for when it is first looked at.
const PATTERN_STEPS: usize = 100;
/// Places at which one match may try again, and bytes of its automaton.
const BACKTRACK_MAX: usize = 10_000;
const AUTOMATON_BYTES_MAX: usize = 1 << 20;
/// Schemas in schemas, and references after references.
const DEPTH_MAX: usize = 128;
/// What is wrong with an answer, beyond the first so many, is of no use.
const FAULTS_MAX: usize = 8;

/// What is wrong with `text` as an answer of `schema`: places in it and keywords, as `/list/3: uniqueItems`. Nothing where all
/// is right, and where it takes too long to find out.
pub(crate) fn faults(schema: &Value, text: &str) -> Vec<String> {
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        // A number may be larger than any that a value holds; of the rest nothing is known then.
        let is_json = serde_json::from_str::<IgnoredAny>(text).is_ok();
        return if is_json { Vec::new() } else { vec!["/: it is no JSON".to_owned()] };
    };
    let mut check = Check { root: schema, steps: 0, faults: Vec::new(), patterns: HashMap::new() };
    match check.is_of(schema, &value, "", 0) {
        Ok(_) => check.faults,
        Err(TooMuch) => Vec::new(),
    }
}

/// It would take too long.
#[derive(Debug)]
struct TooMuch;

struct Check<'a> {
    root: &'a Value,
    steps: usize,
    faults: Vec<String>,
    /// Those that cannot be read say nothing.
    patterns: HashMap<&'a str, Option<Regex>>,
}

impl<'a> Check<'a> {
    /// Whether it is, and notes what is wrong.
    fn is_of(&mut self, schema: &'a Value, value: &Value, at: &str, depth: usize) -> Result<bool, TooMuch> {
        self.count(if depth > DEPTH_MAX { STEPS_MAX } else { 1 })?;
        let keywords = match schema {
            Value::Bool(false) => return Ok(self.fault(at, "false")),
            Value::Object(keywords) => keywords,
            _ => return Ok(true),
        };
        if value.is_null() && keywords.get("nullable") == Some(&Value::Bool(true)) {
            return Ok(true);
        }
        let mut is_right = true;
        for (keyword, wanted) in keywords {
            let holds = self.holds(keywords, keyword, wanted, value, at, depth)?;
            is_right &= holds;
        }
        Ok(is_right)
    }

    /// Whether it would be, and notes nothing.
    fn would_be(&mut self, schema: &'a Value, value: &Value, depth: usize) -> Result<bool, TooMuch> {
        let known = self.faults.len();
        let is_right = self.is_of(schema, value, "", depth + 1)?;
        self.faults.truncate(known);
        Ok(is_right)
    }

    fn count(&mut self, steps: usize) -> Result<(), TooMuch> {
        self.steps += steps;
        if self.steps > STEPS_MAX { Err(TooMuch) } else { Ok(()) }
    }

    /// Whether a text has what the pattern looks for. Where that takes too long it is taken to have it.
    fn is_match(&mut self, pattern: &'a str, text: &str) -> Result<bool, TooMuch> {
        let is_known = self.patterns.contains_key(pattern);
        self.count(if is_known { 1 } else { PATTERN_STEPS })?;
        let read = self.patterns.entry(pattern).or_insert_with(|| {
            let mut builder = RegexBuilder::new(pattern);
            builder.backtrack_limit(BACKTRACK_MAX).delegate_size_limit(AUTOMATON_BYTES_MAX);
            builder.build().ok()
        });
        Ok(read.as_ref().and_then(|read| read.is_match(text).ok()).unwrap_or(true))
    }

    /// Whether one of `patterns`, members of a schema, looks for this name.
    fn is_matched(&mut self, patterns: Option<&'a Map<String, Value>>, name: &str) -> Result<bool, TooMuch> {
        for pattern in patterns.into_iter().flat_map(Map::keys) {
            if self.is_match(pattern, name)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn fault(&mut self, at: &str, keyword: &str) -> bool {
        if self.faults.len() < FAULTS_MAX {
            let place = if at.is_empty() { "/" } else { at };
            self.faults.push(format!("{place}: {keyword}"));
        }
        false
    }

    fn holds(
        &mut self,
        keywords: &'a Map<String, Value>,
        keyword: &str,
        wanted: &'a Value,
        value: &Value,
        at: &str,
        depth: usize,
    ) -> Result<bool, TooMuch> {
        let holds = match keyword {
            "type" => match wanted {
                Value::Array(kinds) => kinds.iter().any(|kind| is_kind(value, kind)),
                kind => is_kind(value, kind),
            },
            "enum" => wanted.as_array().is_none_or(|values| values.iter().any(|wanted| equal(wanted, value))),
            "const" => equal(wanted, value),
            "minimum" => both(value, wanted).is_none_or(|(value, least)| value >= least),
            "maximum" => both(value, wanted).is_none_or(|(value, most)| value <= most),
            // In OpenAPI's older schemas these are true or false.
            "exclusiveMinimum" => both(value, wanted).is_none_or(|(value, least)| value > least),
            "exclusiveMaximum" => both(value, wanted).is_none_or(|(value, most)| value < most),
            "multipleOf" => both(value, wanted).is_none_or(|(value, of)| {
                let times = value / of;
                (times - times.round()).abs() <= 1e-9 * times.abs().max(1.0)
            }),
            "minLength" => sized(value.as_str().map(|text| text.chars().count()), wanted, |size, least| size >= least),
            "maxLength" => sized(value.as_str().map(|text| text.chars().count()), wanted, |size, most| size <= most),
            "minItems" => sized(value.as_array().map(Vec::len), wanted, |size, least| size >= least),
            "maxItems" => sized(value.as_array().map(Vec::len), wanted, |size, most| size <= most),
            "minProperties" => sized(value.as_object().map(Map::len), wanted, |size, least| size >= least),
            "maxProperties" => sized(value.as_object().map(Map::len), wanted, |size, most| size <= most),
            "pattern" => match value.as_str().zip(wanted.as_str()) {
                Some((text, pattern)) => self.is_match(pattern, text)?,
                None => true,
            },
            "uniqueItems" if *wanted == Value::Bool(true) => value.as_array().is_none_or(|items| {
                let mut seen = HashSet::new();
                items.iter().all(|item| seen.insert(canonical(item)))
            }),
            "required" => value.as_object().is_none_or(|members| has_all(members, wanted)),
            "dependentRequired" => value.as_object().is_none_or(|members| {
                let mut present =
                    wanted.as_object().into_iter().flatten().filter(|(name, _)| members.contains_key(*name));
                present.all(|(_, names)| has_all(members, names))
            }),
            "not" => !self.would_be(wanted, value, depth)?,
            "anyOf" | "oneOf" => {
                let mut count = 0;
                for schema in wanted.as_array().into_iter().flatten() {
                    count += usize::from(self.would_be(schema, value, depth)?);
                }
                wanted.as_array().is_none() || if keyword == "oneOf" { count == 1 } else { count > 0 }
            }
            "contains" => match value {
                Value::Array(items) => {
                    let mut count = 0;
                    for item in items {
                        count += u64::from(self.would_be(wanted, item, depth)?);
                    }
                    let bound = |name: &str| keywords.get(name).and_then(Value::as_u64);
                    count >= bound("minContains").unwrap_or(1) && bound("maxContains").is_none_or(|most| count <= most)
                }
                _ => true,
            },
            // These say themselves what is wrong, each at its place.
            _ => return self.inner_holds(keywords, keyword, wanted, value, at, depth + 1),
        };
        Ok(holds || self.fault(at, keyword))
    }

    /// Of keywords whose schemas are of the same value, or of its parts.
    fn inner_holds(
        &mut self,
        keywords: &'a Map<String, Value>,
        keyword: &str,
        wanted: &'a Value,
        value: &Value,
        at: &str,
        depth: usize,
    ) -> Result<bool, TooMuch> {
        let mut is_right = true;
        match (keyword, value) {
            ("$ref", _) => {
                let target = wanted.as_str().and_then(|path| path.strip_prefix('#'));
                if let Some(target) = target.and_then(|path| self.root.pointer(path)) {
                    is_right = self.is_of(target, value, at, depth)?;
                }
            }
            ("allOf", _) => {
                for schema in wanted.as_array().into_iter().flatten() {
                    is_right &= self.is_of(schema, value, at, depth)?;
                }
            }
            ("if", _) => {
                let then = if self.would_be(wanted, value, depth)? { "then" } else { "else" };
                if let Some(schema) = keywords.get(then) {
                    is_right = self.is_of(schema, value, at, depth)?;
                }
            }
            ("dependentSchemas" | "dependencies", Value::Object(members)) => {
                let present = wanted.as_object().into_iter().flatten().filter(|(name, _)| members.contains_key(*name));
                for (_, schema) in present {
                    // In older schemas either a schema or names.
                    is_right &= match schema {
                        Value::Array(_) => has_all(members, schema) || self.fault(at, keyword),
                        schema => self.is_of(schema, value, at, depth)?,
                    };
                }
            }
            ("propertyNames", Value::Object(members)) => {
                for name in members.keys() {
                    if !self.would_be(wanted, &Value::String(name.clone()), depth)? {
                        is_right = self.fault(&member(at, name), keyword);
                    }
                }
            }
            ("properties", Value::Object(members)) => {
                for (name, schema) in wanted.as_object().into_iter().flatten() {
                    if let Some(value) = members.get(name) {
                        is_right &= self.is_of(schema, value, &member(at, name), depth)?;
                    }
                }
            }
            ("patternProperties", Value::Object(members)) => {
                for (pattern, schema) in wanted.as_object().into_iter().flatten() {
                    for (name, value) in members {
                        if self.is_match(pattern, name)? {
                            is_right &= self.is_of(schema, value, &member(at, name), depth)?;
                        }
                    }
                }
            }
            ("additionalProperties", Value::Object(members)) => {
                let of = |name: &str| keywords.get(name).and_then(Value::as_object);
                let (named, patterns) = (of("properties"), of("patternProperties"));
                for (name, value) in members {
                    if !named.is_some_and(|named| named.contains_key(name)) && !self.is_matched(patterns, name)? {
                        is_right &= self.is_of(wanted, value, &member(at, name), depth)?;
                    }
                }
            }
            ("prefixItems" | "items", Value::Array(items)) if wanted.is_array() => {
                for (index, (schema, item)) in wanted.as_array().into_iter().flatten().zip(items).enumerate() {
                    is_right &= self.is_of(schema, item, &format!("{at}/{index}"), depth)?;
                }
            }
            ("items" | "additionalItems", Value::Array(items)) => {
                let listed = if keyword == "items" { "prefixItems" } else { "items" };
                let listed = keywords.get(listed).and_then(Value::as_array).map(Vec::len);
                // Without a list before it, `additionalItems` says nothing.
                let first = listed.unwrap_or(if keyword == "items" { 0 } else { items.len() });
                for (index, item) in items.iter().enumerate().skip(first) {
                    is_right &= self.is_of(wanted, item, &format!("{at}/{index}"), depth)?;
                }
            }
            _ => {}
        }
        Ok(is_right)
    }
}

fn member(at: &str, name: &str) -> String {
    format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"))
}

fn has_all(members: &Map<String, Value>, names: &Value) -> bool {
    names.as_array().into_iter().flatten().filter_map(Value::as_str).all(|name| members.contains_key(name))
}

fn is_kind(value: &Value, kind: &Value) -> bool {
    match kind.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some("number") => value.is_number(),
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => true,
    }
}

fn both(value: &Value, wanted: &Value) -> Option<(f64, f64)> {
    value.as_f64().zip(wanted.as_f64())
}

fn sized(size: Option<usize>, wanted: &Value, holds: impl Fn(f64, f64) -> bool) -> bool {
    size.zip(wanted.as_f64()).is_none_or(|(size, wanted)| holds(size as f64, wanted))
}

/// To JSON Schema, 1 and 1.0 are one value, and members have no order.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(_), Value::Number(_)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}

/// The same text for values that are [`equal`].
fn canonical(value: &Value) -> String {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() || float.abs() < 9e15 => format!("{float:?}"),
            _ => number.to_string(),
        },
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        Value::Object(members) => {
            let mut members: Vec<_> =
                members.iter().map(|(name, value)| format!("{name:?}:{}", canonical(value))).collect();
            members.sort_unstable();
            format!("{{{}}}", members.join(","))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wrong(schema: Value, value: Value) -> Vec<String> {
        faults(&schema, &value.to_string())
    }

    #[test]
    fn each_keyword_finds_what_is_wrong_and_where() {
        let of = |kind: &str| json!({"type": kind});
        for (schema, right, wrong_one, expected) in [
            (
                json!({"uniqueItems": true}),
                json!([1, "1", [1], {"a": 1}]),
                json!([{"a": 1, "b": 2}, {"b": 2, "a": 1.0}]),
                "/: uniqueItems",
            ),
            (json!({"not": {"const": 3}}), json!(4), json!(3.0), "/: not"),
            (json!({"contains": of("integer"), "maxContains": 1}), json!(["a", 1]), json!(["a"]), "/: contains"),
            (json!({"contains": of("integer"), "minContains": 2}), json!([1, 2]), json!([1]), "/: contains"),
            (
                json!({"propertyNames": {"pattern": "^[a-z]+$"}}),
                json!({"ab": 1}),
                json!({"a/B": 1}),
                "/a~1B: propertyNames",
            ),
            (json!({"dependentRequired": {"a": ["b"]}}), json!({"b": 1}), json!({"a": 1}), "/: dependentRequired"),
            (json!({"dependencies": {"a": ["b"]}}), json!({"a": 1, "b": 2}), json!({"a": 1}), "/: dependencies"),
            (
                json!({"dependentSchemas": {"a": {"maxProperties": 1}}}),
                json!({"a": 1}),
                json!({"a": 1, "b": 2}),
                "/: maxProperties",
            ),
            (
                json!({"if": of("string"), "then": {"minLength": 2}, "else": {"minimum": 2}}),
                json!("éé"),
                json!(1),
                "/: minimum",
            ),
            (json!({"oneOf": [of("integer"), of("number")]}), json!(1.5), json!(1), "/: oneOf"),
            (json!({"anyOf": [of("integer"), of("null")]}), json!(null), json!("a"), "/: anyOf"),
            (json!({"allOf": [{"minimum": 2}, {"multipleOf": 0.1}]}), json!(2.3), json!(2.35), "/: multipleOf"),
            (
                json!({"properties": {"a": {"items": {"maxLength": 1}}}}),
                json!({"a": ["b"]}),
                json!({"a": ["b", "cc"]}),
                "/a/1: maxLength",
            ),
            (
                json!({"items": {"$ref": "#/$defs/d"}, "$defs": {"d": {"enum": [1, {"a": 2}]}}}),
                json!([{"a": 2.0}]),
                json!([2]),
                "/0: enum",
            ),
            (
                json!({"prefixItems": [of("string")], "items": of("integer")}),
                json!(["a", 1]),
                json!(["a", "b"]),
                "/1: type",
            ),
            (json!({"items": [of("string")], "additionalItems": false}), json!(["a"]), json!(["a", 1]), "/1: false"),
            (
                json!({"properties": {"a": true}, "patternProperties": {"^x": of("integer")}, "additionalProperties": of("null")}),
                json!({"a": 1, "x": 2, "c": null}),
                json!({"a": 1, "x": 2, "c": 3}),
                "/c: type",
            ),
            (json!({"required": ["a"]}), json!({"a": 1}), json!({}), "/: required"),
            (json!({"type": ["integer", "null"], "exclusiveMaximum": 3}), json!(2.0), json!(3), "/: exclusiveMaximum"),
            (json!({"type": "string", "nullable": true}), json!(null), json!(1), "/: type"),
        ] {
            assert_eq!(wrong(schema.clone(), right), [""; 0], "{schema}");
            assert_eq!(wrong(schema.clone(), wrong_one), [expected], "{schema}");
        }
        assert_eq!(faults(&json!({}), "{\"a\": "), ["/: it is no JSON"]);
        assert_eq!(faults(&json!({"uniqueItems": true}), "[0.26E19117, 1, 1]"), [""; 0]);
    }

    #[test]
    fn what_takes_too_long_says_nothing() {
        // Alternatives in alternatives, and a schema that is itself.
        let alternatives = |index: usize| json!({"oneOf": vec![json!({"$ref": format!("#/$defs/d{index}")}); 5]});
        let mut defs: Map<String, Value> =
            (0..12).map(|index| (format!("d{index}"), alternatives(index + 1))).collect();
        defs.insert("d12".to_owned(), json!({"type": "null"}));
        let mut deep = alternatives(0);
        deep["$defs"] = defs.into();
        assert_eq!(wrong(deep, json!(1)), [""; 0]);
        assert_eq!(wrong(json!({"allOf": [{"$ref": "#"}]}), json!(1)), [""; 0]);
        assert_eq!(wrong(json!({"not": {"$ref": "#/nowhere"}}), json!(1)), ["/: not"]);
    }
}
