//! Whether a finished answer is of its schema, for keywords that no grammar holds a text to.
//!
//! A library for this (`jsonschema`) would add more to the program than its limit leaves, and reads schemas from
//! anywhere; here it is what a request can have: one document, references within it, and bounds on what one check takes.
//! Keywords that depend on what others have looked at (`unevaluatedProperties`, `$dynamicRef`) are not looked at.

use std::collections::{HashMap, HashSet};

use fancy_regex::{Regex, RegexBuilder};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

/// Schemas that are looked at for one answer, values that are compared, and pieces of long texts. Those of alternatives
/// in alternatives multiply.
const STEPS_MAX: usize = 20_000;
/// Bytes of a text that count for one more.
const TEXT_STEP_BYTES: usize = 64;
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
    match check.is_of(schema, Instance { value: &value, at: "", depth: 0 }) {
        Ok(_) => check.faults,
        Err(TooMuch) => Vec::new(),
    }
}

/// It would take too long.
#[derive(Debug)]
struct TooMuch;

/// A part of the answer, and where it stands.
#[derive(Clone, Copy)]
struct Instance<'v> {
    value: &'v Value,
    at: &'v str,
    /// Schemas and references that led here.
    depth: usize,
}

impl<'v> Instance<'v> {
    /// A part of this one, or all of it.
    fn part<'p>(&self, value: &'p Value, at: &'p str) -> Instance<'p> {
        Instance { value, at, depth: self.depth + 1 }
    }
}

/// A keyword of a schema, with what it wants.
#[derive(Clone, Copy)]
struct Keyword<'a> {
    schema: &'a Map<String, Value>,
    name: &'a str,
    wanted: &'a Value,
}

struct Check<'a> {
    root: &'a Value,
    steps: usize,
    faults: Vec<String>,
    /// Those that cannot be read say nothing.
    patterns: HashMap<&'a str, Option<Regex>>,
}

impl<'a> Check<'a> {
    /// Whether it is, and notes what is wrong.
    fn is_of(&mut self, schema: &'a Value, instance: Instance<'_>) -> Result<bool, TooMuch> {
        let Instance { value, at, depth } = instance;
        let size = 1 + value.as_str().map_or(0, str::len) / TEXT_STEP_BYTES;
        self.count(if depth > DEPTH_MAX { STEPS_MAX } else { size })?;
        let keywords = match schema {
            Value::Bool(false) => return Ok(self.fault(at, "false")),
            Value::Object(keywords) => keywords,
            _ => return Ok(true),
        };
        if value.is_null() && keywords.get("nullable") == Some(&Value::Bool(true)) {
            return Ok(true);
        }
        let mut is_right = true;
        for (name, wanted) in keywords {
            is_right &= self.holds(Keyword { schema: keywords, name, wanted }, instance)?;
        }
        Ok(is_right)
    }

    /// Whether it would be, and notes nothing.
    fn would_be(&mut self, schema: &'a Value, instance: Instance<'_>) -> Result<bool, TooMuch> {
        let known = self.faults.len();
        let is_right = self.is_of(schema, instance)?;
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

    /// The same text for values that are equal: to JSON Schema, 1 and 1.0 are one value, and members have no order.
    fn canonical(&mut self, value: &Value) -> Result<String, TooMuch> {
        self.count(1 + value.as_str().map_or(0, str::len) / TEXT_STEP_BYTES)?;
        Ok(match value {
            Value::Number(number) => match number.as_f64() {
                Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e19 => {
                    format!("{:.0}", float + 0.0)
                }
                _ => number.to_string(),
            },
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| self.canonical(item)).collect::<Result<_, _>>()?;
                format!("[{}]", items.join(","))
            }
            Value::Object(members) => {
                let member = |(name, value)| Ok(format!("{name:?}:{}", self.canonical(value)?));
                let mut members: Vec<String> = members.iter().map(member).collect::<Result<_, _>>()?;
                members.sort_unstable();
                format!("{{{}}}", members.join(","))
            }
            other => other.to_string(),
        })
    }

    fn fault(&mut self, at: &str, keyword: &str) -> bool {
        if self.faults.len() < FAULTS_MAX {
            let place = if at.is_empty() { "/" } else { at };
            self.faults.push(format!("{place}: {keyword}"));
        }
        false
    }

    fn holds(&mut self, keyword: Keyword<'a>, instance: Instance<'_>) -> Result<bool, TooMuch> {
        let (Keyword { schema, name, wanted }, Instance { value, at, .. }) = (keyword, instance);
        let holds = match name {
            "type" => match wanted {
                Value::Array(kinds) => kinds.iter().any(|kind| is_kind(value, kind)),
                kind => is_kind(value, kind),
            },
            "enum" => match wanted {
                Value::Array(values) => {
                    let found = self.canonical(value)?;
                    let mut is_one = false;
                    for wanted in values {
                        is_one = is_one || self.canonical(wanted)? == found;
                    }
                    is_one
                }
                _ => true,
            },
            "const" => self.canonical(wanted)? == self.canonical(value)?,
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
            "uniqueItems" if *wanted == Value::Bool(true) => {
                let mut seen = HashSet::new();
                let mut are_unique = true;
                for item in value.as_array().into_iter().flatten() {
                    are_unique &= seen.insert(self.canonical(item)?);
                }
                are_unique
            }
            "required" => value.as_object().is_none_or(|members| has_all(members, wanted)),
            "dependentRequired" => value.as_object().is_none_or(|members| {
                let mut present =
                    wanted.as_object().into_iter().flatten().filter(|(name, _)| members.contains_key(*name));
                present.all(|(_, names)| has_all(members, names))
            }),
            "not" => !self.would_be(wanted, instance.part(value, at))?,
            "anyOf" | "oneOf" => {
                let mut count = 0;
                for schema in wanted.as_array().into_iter().flatten() {
                    count += usize::from(self.would_be(schema, instance.part(value, at))?);
                }
                wanted.as_array().is_none() || if name == "oneOf" { count == 1 } else { count > 0 }
            }
            "contains" => match value {
                Value::Array(items) => {
                    let mut count = 0;
                    for item in items {
                        count += u64::from(self.would_be(wanted, instance.part(item, at))?);
                    }
                    let bound = |name: &str| schema.get(name).and_then(Value::as_u64);
                    count >= bound("minContains").unwrap_or(1) && bound("maxContains").is_none_or(|most| count <= most)
                }
                _ => true,
            },
            // These say themselves what is wrong, each at its place.
            _ => return self.inner_holds(keyword, instance),
        };
        Ok(holds || self.fault(at, name))
    }

    /// Of keywords whose schemas are of the same value, or of its parts.
    fn inner_holds(&mut self, keyword: Keyword<'a>, instance: Instance<'_>) -> Result<bool, TooMuch> {
        let (Keyword { schema: keywords, name: keyword, wanted }, Instance { value, at, .. }) = (keyword, instance);
        let mut is_right = true;
        match (keyword, value) {
            ("$ref", _) => {
                let target = wanted.as_str().and_then(|path| path.strip_prefix('#'));
                if let Some(target) = target.and_then(|path| self.root.pointer(path)) {
                    is_right = self.is_of(target, instance.part(value, at))?;
                }
            }
            ("allOf", _) => {
                for schema in wanted.as_array().into_iter().flatten() {
                    is_right &= self.is_of(schema, instance.part(value, at))?;
                }
            }
            ("if", _) => {
                let then = if self.would_be(wanted, instance.part(value, at))? { "then" } else { "else" };
                if let Some(schema) = keywords.get(then) {
                    is_right = self.is_of(schema, instance.part(value, at))?;
                }
            }
            ("dependentSchemas" | "dependencies", Value::Object(members)) => {
                let present = wanted.as_object().into_iter().flatten().filter(|(name, _)| members.contains_key(*name));
                for (_, schema) in present {
                    // In older schemas either a schema or names.
                    is_right &= match schema {
                        Value::Array(_) => has_all(members, schema) || self.fault(at, keyword),
                        schema => self.is_of(schema, instance.part(value, at))?,
                    };
                }
            }
            ("propertyNames", Value::Object(members)) => {
                for name in members.keys() {
                    if !self.would_be(wanted, instance.part(&Value::String(name.clone()), at))? {
                        is_right = self.fault(&member(at, name), keyword);
                    }
                }
            }
            ("properties", Value::Object(members)) => {
                for (name, schema) in wanted.as_object().into_iter().flatten() {
                    if let Some(value) = members.get(name) {
                        is_right &= self.is_of(schema, instance.part(value, &member(at, name)))?;
                    }
                }
            }
            ("patternProperties", Value::Object(members)) => {
                for (pattern, schema) in wanted.as_object().into_iter().flatten() {
                    for (name, value) in members {
                        if self.is_match(pattern, name)? {
                            is_right &= self.is_of(schema, instance.part(value, &member(at, name)))?;
                        }
                    }
                }
            }
            ("additionalProperties", Value::Object(members)) => {
                let of = |name: &str| keywords.get(name).and_then(Value::as_object);
                let (named, patterns) = (of("properties"), of("patternProperties"));
                for (name, value) in members {
                    if !named.is_some_and(|named| named.contains_key(name)) && !self.is_matched(patterns, name)? {
                        is_right &= self.is_of(wanted, instance.part(value, &member(at, name)))?;
                    }
                }
            }
            ("prefixItems" | "items", Value::Array(items)) if wanted.is_array() => {
                for (index, (schema, item)) in wanted.as_array().into_iter().flatten().zip(items).enumerate() {
                    is_right &= self.is_of(schema, instance.part(item, &format!("{at}/{index}")))?;
                }
            }
            ("items" | "additionalItems", Value::Array(items)) => {
                let listed = if keyword == "items" { "prefixItems" } else { "items" };
                let listed = keywords.get(listed).and_then(Value::as_array).map(Vec::len);
                // Without a list before it, `additionalItems` says nothing.
                let first = listed.unwrap_or(if keyword == "items" { 0 } else { items.len() });
                for (index, item) in items.iter().enumerate().skip(first) {
                    is_right &= self.is_of(wanted, instance.part(item, &format!("{at}/{index}")))?;
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
    fn numbers_are_equal_by_their_values() {
        let is =
            |a: &str, b: &str| faults(&serde_json::from_str(&format!("{{\"const\": {a}}}")).unwrap(), b).is_empty();
        assert!(is("1", "1.0") && is("-0.0", "0") && is("1e16", "10000000000000000") && is("0.5", "5e-1"));
        assert!(!is("9007199254740993", "9007199254740992") && !is("1", "\"1\"") && !is("1", "1.5"));
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
        // A large answer that is compared again and again.
        let twice = json!({"anyOf": vec![json!({"not": {"uniqueItems": true}}); 100]});
        assert_eq!(wrong(twice, (0..1_000).collect()), [""; 0]);
    }
}
