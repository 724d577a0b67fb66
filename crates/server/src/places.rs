//! What of a schema meets at one place, and whether it is too much there.
//!
//! The library intersects the schemas of one place (a schema, its `allOf`, what its `$ref` names, one of each `anyOf`).
//! This file finds out first what meets, because the library does not look at what that takes:
//! - It takes the least common multiple in 32 bits, which may overflow, and its automaton has a state for each
//!   remainder.
//! - Patterns that meet multiply their states.
//! - Members of an object take the square of their number in time.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::regex_weight::check_pattern;
use crate::schema_keywords::inner;

/// The most that a number may have to be a multiple of, without its point.
const MULTIPLE_MAX: u64 = 10_000;
/// Patterns and forms that one text is held to at once.
const PATTERNS_MAX: usize = 8;
/// Bounds on the squares of how many members, and how many patterns of names, meet at a place, summed over all places.
const MEMBERS_MAX: usize = 4_000_000;
const NAMES_MAX: usize = 3_000;
/// Members of a whole schema of which nobody needs to know where they meet.
const FEW_MEMBERS: usize = 100;
/// The same before trailing zeros behind the point are dropped: the library multiplies two of them in 32 bits.
const UNREDUCED_MAX: u64 = u16::MAX as u64;
/// Digits behind the point: the library multiplies a digit by this power of ten in 32 bits.
const SCALE_MAX: u32 = 8;
/// Choices of alternatives that are looked at by themselves; where there are more, all their schemas are taken to meet.
const CHOICES_MAX: usize = 64;
/// Schemas that are looked at; where there are more, all of them are taken to meet.
const LOOKS_MAX: usize = 50_000;
/// References and parts of intersections within each other.
const DEPTH_MAX: usize = 256;

/// Refuses the schema at `at` if too much of it meets at a place.
pub(crate) fn check(at: &str, schema: &Value) -> Result<(), ApiError> {
    let mut all = Vec::new();
    collect(schema, &mut all);
    for pattern in all.iter().flat_map(|schema| patterns(schema)) {
        check_pattern(&format!("{at}.pattern"), pattern)?;
    }
    let multiples = all.iter().filter_map(|schema| schema.get("multipleOf"));
    let decimals = multiples.map(|value| decimal(at, value)).collect::<Result<Vec<_>, _>>()?;
    // Where all of it may meet, nobody needs to know what does.
    let num_members: usize = all.iter().map(|schema| num_named(schema, "properties")).sum();
    let num_patterns = all.iter().flat_map(|schema| patterns(schema)).count();
    if is_little(&decimals) && num_patterns <= PATTERNS_MAX && num_members <= FEW_MEMBERS {
        return Ok(());
    }
    let mut search = Search { root: schema, looks: 0, members: 0, names: 0, seen: HashSet::new() };
    search.place(&[schema]).map_err(|TooMuch(what)| {
        let message = format!("this schema would have to hold {what}; ask for less");
        ApiError::refused_field(at, "grammar_too_complex", message)
    })
}

fn num_named(schema: &Map<String, Value>, keyword: &str) -> usize {
    schema.get(keyword).and_then(Value::as_object).map_or(0, Map::len)
}

/// The regular expressions of a schema: of its text, and of the names of its members.
fn patterns(schema: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let names = schema.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
    schema.get("pattern").and_then(Value::as_str).into_iter().chain(names.map(String::as_str))
}

/// A number as the library has it: digits, and how many of them stand behind the point.
type Decimal = (u64, u32);

/// The library's own way to a decimal: what it rounds is rounded here too.
fn decimal(at: &str, value: &Value) -> Result<Decimal, ApiError> {
    let wrong = |what: &str| ApiError::invalid(format!("{at}.multipleOf"), format!("`multipleOf` {what}"));
    let Some(number) = value.as_f64().map(f64::abs) else { return Err(wrong("has to be a number")) };
    if number == 0.0 {
        return Err(wrong("has to be more than 0"));
    }
    let (mut digits, mut scale) = (number, 0);
    while digits.fract() != 0.0 {
        digits *= 10.0;
        scale += 1;
    }
    if digits > f64::from(u32::MAX) || scale > SCALE_MAX {
        return Err(wrong(&format!("has too many digits: {number}")));
    }
    Ok(reduced((digits as u64, scale)))
}

fn reduced((mut digits, mut scale): Decimal) -> Decimal {
    while scale > 0 && digits.is_multiple_of(10) {
        digits /= 10;
        scale -= 1;
    }
    (digits, scale)
}

/// Whether a number may have to be a multiple of all of them.
fn is_little(decimals: &[Decimal]) -> bool {
    let scale = decimals.iter().map(|(_, scale)| *scale).max().unwrap_or_default();
    let mut multiple = 1;
    for (digits, own) in decimals {
        // At most 2^32 times 10^8, and a multiple that is at most that times 2^16 fits in 128 bits.
        let digits = u128::from(*digits) * 10_u128.pow(scale - own);
        multiple = multiple / gcd(multiple, digits) * digits;
        if decimals.len() > 1 && multiple > u128::from(UNREDUCED_MAX) {
            return false;
        }
    }
    u64::try_from(multiple).is_ok_and(|multiple| reduced((multiple, scale)).0 <= MULTIPLE_MAX)
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// All schemas in a schema, and itself.
fn collect<'a>(schema: &'a Value, all: &mut Vec<&'a Map<String, Value>>) {
    let Some(schema) = schema.as_object() else { return };
    all.push(schema);
    inner(schema).for_each(|schema| collect(schema, all));
}

/// What a schema would have to hold that is too much.
struct TooMuch(&'static str);

/// There are more schemas to look at than are looked at.
const TOO_MANY: TooMuch = TooMuch("too many schemas that meet in too many ways");

struct Search<'a> {
    root: &'a Value,
    looks: usize,
    members: usize,
    names: usize,
    /// Schemas that have met, by where they are in memory.
    seen: HashSet<BTreeSet<usize>>,
}

/// Schemas that hold one value at once.
type Choice<'a> = Vec<&'a Map<String, Value>>;

impl<'a> Search<'a> {
    /// Looks at a place that all of these schemas hold, and at the places in it.
    fn place(&mut self, schemas: &[&'a Value]) -> Result<(), TooMuch> {
        let mut waiting = vec![schemas.to_vec()];
        while let Some(schemas) = waiting.pop() {
            let place = schemas.iter().map(|schema| std::ptr::from_ref(*schema) as usize).collect();
            if schemas.is_empty() || !self.seen.insert(place) {
                continue;
            }
            let mut choices = vec![Vec::new()];
            for schema in schemas {
                choices = product(choices, self.choices(schema, &mut Vec::new())?);
            }
            for choice in choices {
                self.look(choice.len())?;
                self.meet(&choice)?;
                waiting.extend(members(&choice));
                waiting.extend(items(&choice));
            }
        }
        Ok(())
    }

    /// Refuses schemas that meet if they are too much.
    fn meet(&mut self, choice: &[&'a Map<String, Value>]) -> Result<(), TooMuch> {
        let multiples = choice.iter().filter_map(|schema| decimal("", schema.get("multipleOf")?).ok());
        if !is_little(&multiples.collect::<Vec<_>>()) {
            return Err(TooMuch("multiples of too much at once"));
        }
        let is_pattern =
            |schema: &&&Map<String, Value>| schema.contains_key("pattern") || schema.contains_key("format");
        if choice.iter().filter(is_pattern).count() > PATTERNS_MAX {
            return Err(TooMuch("a text to too many patterns at once"));
        }
        let squared = |keyword| choice.iter().map(|schema| num_named(schema, keyword)).sum::<usize>().pow(2);
        self.members += squared("properties");
        self.names += squared("patternProperties");
        if self.members > MEMBERS_MAX || self.names > NAMES_MAX {
            return Err(TooMuch("too many members"));
        }
        Ok(())
    }

    fn look(&mut self, count: usize) -> Result<(), TooMuch> {
        self.looks += count;
        if self.looks > LOOKS_MAX { Err(TOO_MANY) } else { Ok(()) }
    }

    /// The schemas that hold a value of this one at once, for each choice of alternatives. `under` are those around it.
    fn choices(&mut self, schema: &'a Value, under: &mut Vec<usize>) -> Result<Vec<Choice<'a>>, TooMuch> {
        let address = std::ptr::from_ref(schema) as usize;
        let Some(map) = schema.as_object() else { return Ok(vec![Vec::new()]) };
        // A schema that is a part of itself says nothing more by it.
        if under.contains(&address) {
            return Ok(vec![Vec::new()]);
        }
        self.look(1)?;
        if under.len() >= DEPTH_MAX {
            return Err(TOO_MANY);
        }
        under.push(address);
        let mut choices = vec![vec![map]];
        for part in map.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            choices = product(choices, self.choices(part, under)?);
        }
        if let Some(target) = map.get("$ref").and_then(Value::as_str) {
            let pointer = target.strip_prefix('#').and_then(|path| self.root.pointer(path));
            // What is not found here the library may find, or may refuse.
            choices = product(choices, self.choices(pointer.ok_or(TOO_MANY)?, under)?);
        }
        for name in ["anyOf", "oneOf"] {
            let Some(alternatives) = map.get(name).and_then(Value::as_array) else { continue };
            let mut either = Vec::new();
            for alternative in alternatives {
                either.extend(self.choices(alternative, under)?);
            }
            choices = product(choices, either);
        }
        under.pop();
        self.look(choices.iter().map(Vec::len).sum())?;
        Ok(choices)
    }
}

/// One of the left with one of the right, each with each.
fn product<'a>(left: Vec<Choice<'a>>, right: Vec<Choice<'a>>) -> Vec<Choice<'a>> {
    if right.is_empty() || right.iter().all(Vec::is_empty) {
        return left;
    }
    if left.len().saturating_mul(right.len()) > CHOICES_MAX && left.len().min(right.len()) > 1 {
        let mut all: Choice<'a> = left.into_iter().chain(right).flatten().collect();
        all.sort_by_key(|schema| std::ptr::from_ref(*schema) as usize);
        all.dedup_by(|a, b| std::ptr::eq(*a, *b));
        return vec![all];
    }
    let mut both: Vec<Choice<'a>> = Vec::new();
    for one in &left {
        for other in &right {
            let mut choice = one.clone();
            choice.extend(other.iter().filter(|schema| !one.iter().any(|known| std::ptr::eq(*known, **schema))));
            both.push(choice);
        }
    }
    both
}

/// The schemas that meet at the members of an object that all of `choice` hold.
fn members<'a>(choice: &[&'a Map<String, Value>]) -> Vec<Vec<&'a Value>> {
    let named = |schema: &'a Map<String, Value>, keyword: &str| schema.get(keyword).and_then(Value::as_object);
    let others = |schema: &'a Map<String, Value>| -> Vec<&'a Value> {
        let patterns = named(schema, "patternProperties").into_iter().flat_map(Map::values);
        patterns.chain(schema.get("additionalProperties")).collect()
    };
    let names: BTreeSet<&String> =
        choice.iter().filter_map(|schema| named(schema, "properties")).flat_map(Map::keys).collect();
    let at = |name: &String| {
        let of = |schema: &&'a Map<String, Value>| match named(schema, "properties").and_then(|all| all.get(name)) {
            Some(own) => vec![own],
            None => others(schema),
        };
        choice.iter().flat_map(of).collect()
    };
    let mut places: Vec<Vec<&Value>> = names.into_iter().map(at).collect();
    let rest: Vec<Vec<&Value>> = choice.iter().map(|schema| others(schema)).filter(|rest| !rest.is_empty()).collect();
    match rest.as_slice() {
        [one] => places.extend(one.iter().map(|schema| vec![*schema])),
        several => places.push(several.concat()),
    }
    places
}

/// The schemas that meet at the items of an array that all of `choice` hold.
fn items<'a>(choice: &[&'a Map<String, Value>]) -> Vec<Vec<&'a Value>> {
    let list = |schema: &'a Map<String, Value>| -> &'a [Value] {
        let list = |keyword: &str| schema.get(keyword).and_then(Value::as_array).map(Vec::as_slice);
        list("prefixItems").or_else(|| list("items")).unwrap_or_default()
    };
    let rest = |schema: &'a Map<String, Value>| {
        let items = schema.get("items").filter(|items| !items.is_array());
        items.or_else(|| schema.get("additionalItems"))
    };
    let longest = choice.iter().map(|schema| list(schema).len()).max().unwrap_or_default();
    let at =
        |index: usize| choice.iter().filter_map(|schema| list(schema).get(index).or_else(|| rest(schema))).collect();
    (0..=longest).map(at).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn is_taken(schema: Value) -> bool {
        check("s", &schema).is_ok()
    }

    fn of(multiple: impl Into<Value>) -> Value {
        json!({"type": "number", "multipleOf": multiple.into()})
    }

    #[test]
    fn a_number_is_bounded_with_the_zeros_of_an_integer() {
        for taken in [json!(1), json!(10_000), json!(0.01), json!(0.5), json!(2.50), json!(0.0001), json!(-3)] {
            assert!(is_taken(of(taken.clone())), "{taken}");
        }
        for refused in [
            json!(10_001),
            json!(30_000_000),
            json!(1_000_003),
            json!(4_294_967_296_u64),
            json!(1e300),
            json!(5e-324),
            json!(0),
            json!(1.00001),
            json!("2"),
        ] {
            assert!(!is_taken(of(refused.clone())), "{refused}");
        }
    }

    #[test]
    fn only_what_meets_counts_together() {
        let (a, b) = (|| of(9_973), || of(9_967));
        let defs = json!({"a": a(), "b": b(), "loop": {"properties": {"n": {"$ref": "#/$defs/loop"}, "m": a()}}});
        for apart in [
            json!({"properties": {"a": a(), "b": b()}}),
            json!({"anyOf": [a(), b()]}),
            json!({"anyOf": [a(), b()], "multipleOf": 1}),
            json!({"prefixItems": [a(), b()], "items": of(9_949)}),
            json!({"patternProperties": {"^a": a(), "^b": b()}, "additionalProperties": of(9_949)}),
            json!({"anyOf": [{"properties": {"n": a()}}, {"properties": {"n": b()}}]}),
            json!({"allOf": [{"properties": {"n": a()}}, {"properties": {"m": b()}}]}),
            json!({"properties": {"a": {"$ref": "#/$defs/a"}, "b": {"$ref": "#/$defs/b"}}, "$defs": defs}),
            json!({"$ref": "#/$defs/loop", "properties": {"k": b()}, "$defs": defs}),
            json!({"allOf": [of(10), of(25), of(0.5)]}),
            // No keyword here: a member of that name, and a value.
            json!({"properties": {"multipleOf": a(), "n": b()}, "const": {"multipleOf": 1_000_003}}),
        ] {
            assert!(is_taken(apart.clone()), "{apart}");
        }
        for together in [
            json!({"allOf": [a(), b()]}),
            json!({"allOf": [a()], "multipleOf": 9_967}),
            json!({"anyOf": [of(1), b()], "multipleOf": 9_973}),
            json!({"oneOf": [of(1), b()], "multipleOf": 9_973}),
            json!({"$ref": "#/$defs/a", "multipleOf": 9_967, "$defs": defs}),
            json!({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": defs}),
            json!({"allOf": [{"properties": {"n": a()}}, {"properties": {"n": b()}}]}),
            json!({"properties": {"n": a()}, "allOf": [{"additionalProperties": b()}]}),
            json!({"patternProperties": {"^a": a()}, "allOf": [{"patternProperties": {"a$": b()}}]}),
            json!({"items": a(), "allOf": [{"prefixItems": [of(1), b()]}]}),
            json!({"properties": {"n": a()}, "$ref": "#/$defs/c", "$defs": {"c": {"properties": {"n": b()}}}}),
            // What overflows 32 bits on the way, though what is left is little.
            json!({"allOf": [of(0.000_000_01), of(4_294_967_295_u64)]}),
            json!({"allOf": [of(65_537), of(65_539)]}),
            json!({"allOf": ([7, 11, 13, 17, 19, 23].map(of))}),
        ] {
            assert!(!is_taken(together.clone()), "{together}");
        }
    }

    #[test]
    fn patterns_and_members_are_bounded_where_they_meet() {
        let patterns = |count: usize| -> Vec<Value> {
            (0..count).map(|i| json!({"type": "string", "pattern": format!("([a-z]{{{i}}})*x")})).collect()
        };
        let members =
            |count: usize| -> Map<String, Value> { (0..count).map(|i| (format!("p{i}"), json!({}))).collect() };
        let named =
            |count: usize| -> Map<String, Value> { (0..count).map(|i| (format!("^p{i}"), json!({}))).collect() };
        for apart in [
            json!({"allOf": patterns(8)}),
            json!({"anyOf": patterns(300)}),
            json!({"prefixItems": patterns(300)}),
            json!({"properties": members(1_500)}),
            json!({"patternProperties": named(50)}),
            json!({"properties": {"a": {"properties": members(700)}, "b": {"properties": members(700)}}}),
        ] {
            assert!(is_taken(apart.clone()), "{apart}");
        }
        for together in [
            json!({"allOf": patterns(9)}),
            json!({"allOf": patterns(600)}),
            json!({"properties": members(2_500)}),
            json!({"patternProperties": named(60)}),
            json!({"prefixItems": (0..9).map(|_| json!({"properties": members(700)})).collect::<Vec<_>>()}),
            json!({"type": "string", "pattern": "a?".repeat(6_000)}),
        ] {
            assert!(!is_taken(together.clone()), "{together}");
        }
    }

    #[test]
    fn schemas_that_fan_out_are_looked_at_in_bounded_time() {
        let fan = |keyword: &str| -> Value {
            let mut defs: Map<String, Value> = (0..40)
                .map(|i| {
                    let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
                    (format!("d{i}"), json!({keyword: [next, next, of(2 + i)]}))
                })
                .collect();
            defs.insert("d40".to_owned(), of(10_007));
            json!({"$ref": "#/$defs/d0", "$defs": defs})
        };
        for keyword in ["allOf", "anyOf", "oneOf", "prefixItems"] {
            let begun = std::time::Instant::now();
            assert!(!is_taken(fan(keyword)), "{keyword}");
            assert!(begun.elapsed().as_secs() < 5, "{keyword}: {:?}", begun.elapsed());
        }
    }
}
