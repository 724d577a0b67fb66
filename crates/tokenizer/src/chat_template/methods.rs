//! The methods of Python's `str`, `list`, `tuple` and `dict` that templates call.
//!
//! Those that change their object (`append`, `update`, …) exist and fail, as they do in Jinja's immutable sandbox.

use std::collections::HashSet;

use minijinja::{Error, ErrorKind, Value};

use super::args::Args;
use super::functions::is_cased;
use super::ops::join_strings;
use super::printf::{self, MAX_WIDTH};
use super::value::{
    TRANSFORMED_PER_COPIED, as_dict, as_int, as_list, as_str, charge, charge_elements, equal, fail, iterate, list,
    tuple, type_name,
};

const STR: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];
const DICT: &[&str] = &["copy", "get", "items", "keys", "values"];
const DICT_CHANGING: &[&str] = &["clear", "pop", "popitem", "setdefault", "update"];
const SEQUENCE: &[&str] = &["copy", "count", "index"];
const LIST_CHANGING: &[&str] = &["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];

/// Whether `name` is a method of any type; every other attribute is a plain item.
pub(super) fn is_method_name(name: &str) -> bool {
    [STR, DICT, DICT_CHANGING, SEQUENCE, LIST_CHANGING].iter().any(|names| names.contains(&name))
}

/// Whether `value` has a method `name`.
pub(super) fn exists(value: &Value, name: &str) -> bool {
    if value.as_str().is_some() {
        STR.contains(&name)
    } else if as_dict(value).is_some() {
        DICT.contains(&name) || DICT_CHANGING.contains(&name)
    } else if let Some(list) = as_list(value) {
        let named = SEQUENCE.contains(&name) && !(list.is_tuple() && name == "copy");
        named || (!list.is_tuple() && LIST_CHANGING.contains(&name))
    } else {
        false
    }
}

/// Calls `value.name(args)`.
pub(super) fn call(value: &Value, name: &str, args: Args) -> Result<Value, Error> {
    if !exists(value, name) {
        // The engine then tries an item of that name, which may be something that can be called.
        return Err(Error::new(ErrorKind::UnknownMethod, format!("a {} has no method `{name}`", type_name(value))));
    }
    if let Some(text) = value.as_str() {
        charge(text.len())?;
        return str_method(text, name, args);
    }
    if DICT_CHANGING.contains(&name) && as_dict(value).is_some() || LIST_CHANGING.contains(&name) {
        return Err(fail(format!("a template cannot change a {}: `{name}` is not allowed", type_name(value))));
    }
    match as_dict(value) {
        Some(_) => dict_method(value, name, args),
        None => sequence_method(value, name, args),
    }
}

fn dict_method(value: &Value, name: &str, args: Args) -> Result<Value, Error> {
    let Some(dict) = as_dict(value) else { return Err(fail("not a dict")) };
    charge_elements(dict.entries().len())?;
    match name {
        "get" => {
            let [key, default] = args.bind(1, ["key", "default"])?;
            let found = dict.get(&key.unwrap_or_default())?.cloned();
            Ok(found.or(default).unwrap_or_else(|| Value::from(())))
        }
        "items" => {
            let [] = args.bind(0, [])?;
            items(value)
        }
        "keys" => {
            let [] = args.bind(0, [])?;
            list(dict.entries().keys().cloned().collect())
        }
        "values" => {
            let [] = args.bind(0, [])?;
            list(dict.entries().values().cloned().collect())
        }
        _ => Ok(value.clone()),
    }
}

/// The pairs of a dict, as a list of tuples.
pub(super) fn items(value: &Value) -> Result<Value, Error> {
    let entries = as_dict(value).into_iter().flat_map(|dict| dict.entries());
    list(entries.map(|(key, value)| tuple(vec![key.clone(), value.clone()])).collect::<Result<_, _>>()?)
}

fn sequence_method(value: &Value, name: &str, args: Args) -> Result<Value, Error> {
    let items = as_list(value).map_or(&[][..], |list| list.items());
    charge_elements(items.len())?;
    if name == "copy" {
        return Ok(value.clone());
    }
    let [wanted] = args.bind(1, ["value"])?;
    let wanted = wanted.unwrap_or_default();
    let mut places = Vec::new();
    for (index, item) in items.iter().enumerate() {
        if equal(item, &wanted)? {
            places.push(index);
        }
    }
    match (name, places.first()) {
        ("index", Some(&first)) => Ok(Value::from(first)),
        ("index", None) => Err(fail("index(): the value is not in the list")),
        _ => Ok(Value::from(places.len())),
    }
}

fn str_method(text: &str, name: &str, args: Args) -> Result<Value, Error> {
    match name {
        "strip" => return stripped(text, args, true, true),
        "lstrip" => return stripped(text, args, true, false),
        "rstrip" => return stripped(text, args, false, true),
        "split" => return split(text, args, false),
        "rsplit" => return split(text, args, true),
        "startswith" => return affix(text, args, |text, affix| text.starts_with(affix)),
        "endswith" => return affix(text, args, |text, affix| text.ends_with(affix)),
        "find" | "rfind" | "index" | "rindex" => return find(text, name, args),
        "center" | "ljust" | "rjust" => return justify(text, name, args),
        "replace" => {
            let [old, new, count] = args.bind(2, ["old", "new", "count"])?;
            let count = count.map_or(Ok(-1), |count| as_int(&count))?;
            return replace(text, as_str(&old.unwrap_or_default())?, as_str(&new.unwrap_or_default())?, count)
                .map(Value::from);
        }
        "format" => {
            let (mut positional, keyword) = args.into_parts();
            if !keyword.is_empty() {
                positional.push(Value::from(keyword.into_iter().collect::<minijinja::value::Kwargs>()));
            }
            return printf::braces(text, &positional);
        }
        "count" => {
            let [part] = args.bind(1, ["sub"])?;
            let part = part.unwrap_or_default();
            let part = as_str(&part)?;
            let count = if part.is_empty() { text.chars().count() + 1 } else { text.matches(part).count() };
            return Ok(Value::from(count));
        }
        "join" => {
            let [parts] = args.bind(1, ["iterable"])?;
            let parts = iterate(&parts.unwrap_or_default())?;
            let parts = parts.iter().map(|part| as_str(part).map(str::to_owned)).collect::<Result<Vec<_>, _>>()?;
            return join_strings(&parts, text).map(Value::from);
        }
        "partition" | "rpartition" => {
            let [separator] = args.bind(1, ["sep"])?;
            let separator = separator.unwrap_or_default();
            let separator = as_str(&separator)?;
            if separator.is_empty() {
                return Err(fail("partition() needs a separator that is not empty"));
            }
            let found = if name == "partition" { text.split_once(separator) } else { text.rsplit_once(separator) };
            let parts = match found {
                Some((before, after)) => [before, separator, after],
                None if name == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            return tuple(parts.map(Value::from).to_vec());
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = args.bind(1, ["affix"])?;
            let affix = affix.unwrap_or_default();
            let affix = as_str(&affix)?;
            let rest = if name == "removeprefix" { text.strip_prefix(affix) } else { text.strip_suffix(affix) };
            return Ok(Value::from(rest.unwrap_or(text)));
        }
        "splitlines" => {
            let [keep_ends] = args.bind(0, ["keepends"])?;
            let keep_ends = keep_ends.is_some_and(|flag| flag.is_true());
            return list(split_lines(text, keep_ends).into_iter().map(Value::from).collect());
        }
        "zfill" => {
            let [width] = args.bind(1, ["width"])?;
            let missing = width_of(&width.unwrap_or_default())?.saturating_sub(text.chars().count());
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            return Ok(Value::from(format!("{sign}{}{digits}", "0".repeat(missing))));
        }
        _ => {}
    }
    let [] = args.bind(0, [])?;
    charge(text.len().saturating_mul(TRANSFORMED_PER_COPIED))?;
    let all = |test: fn(char) -> bool| Value::from(!text.is_empty() && text.chars().all(test));
    Ok(match name {
        "lower" => Value::from(text.to_lowercase()),
        "casefold" => Value::from(text.to_lowercase().replace('ß', "ss")),
        "upper" => Value::from(text.to_uppercase()),
        "capitalize" => Value::from(capitalize(text)),
        "title" => Value::from(title(text)),
        "swapcase" => Value::from(text.chars().map(swap_case).collect::<String>()),
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => Value::from(text.is_ascii()),
        "isdecimal" | "isdigit" | "isnumeric" => all(char::is_numeric),
        "isspace" => all(is_space),
        "islower" => Value::from(is_cased(text, char::is_lowercase)),
        "isupper" => Value::from(is_cased(text, char::is_uppercase)),
        "istitle" => Value::from(text.chars().any(char::is_alphabetic) && title(text) == text),
        _ => return Err(fail(format!("a str has no method `{name}`"))),
    })
}

/// Python's idea of whitespace: Unicode's, and the four ASCII separators.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `text.strip(chars)` on the given sides; without `chars`, of whitespace.
pub(super) fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let set: Option<HashSet<char>> = chars.map(|chars| chars.chars().collect());
    let matches = |c: char| set.as_ref().map_or_else(|| is_space(c), |set| set.contains(&c));
    let text = if left { text.trim_start_matches(matches) } else { text };
    if right { text.trim_end_matches(matches) } else { text }
}

fn stripped(text: &str, args: Args, left: bool, right: bool) -> Result<Value, Error> {
    let [chars] = args.bind(0, ["chars"])?;
    strip_charged(text, chars, left, right)
}

/// [`strip`] of characters that a template gives, charged for the set made of them and each one looked up in it.
pub(super) fn strip_charged(text: &str, chars: Option<Value>, left: bool, right: bool) -> Result<Value, Error> {
    let chars = chars.filter(|chars| !chars.is_none());
    let chars = chars.as_ref().map(as_str).transpose()?;
    let set_bytes = chars.map_or(0, |chars| chars.len().saturating_mul(4 * TRANSFORMED_PER_COPIED));
    let looked_up = if chars.is_some() { text.len().saturating_mul(TRANSFORMED_PER_COPIED) } else { text.len() };
    charge(set_bytes.saturating_add(looked_up))?;
    Ok(Value::from(strip(text, chars, left, right)))
}

fn split(text: &str, args: Args, from_right: bool) -> Result<Value, Error> {
    let [separator, limit] = args.bind(0, ["sep", "maxsplit"])?;
    let limit = limit.map_or(Ok(-1), |limit| as_int(&limit))?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let separator = separator.filter(|separator| !separator.is_none());
    let parts = match &separator {
        Some(separator) => {
            let separator = as_str(separator)?;
            if separator.is_empty() {
                return Err(fail("split() needs a separator that is not empty"));
            }
            charge_elements(text.matches(separator).count())?;
            if from_right {
                let mut parts: Vec<&str> = text.rsplitn(limit.saturating_add(1), separator).collect();
                parts.reverse();
                parts
            } else {
                text.splitn(limit.saturating_add(1), separator).collect()
            }
        }
        None => split_at_spaces(text, limit, from_right),
    };
    list(parts.into_iter().map(Value::from).collect())
}

/// `text.split()`: runs of whitespace separate, and none is left at the ends.
pub(super) fn split_at_spaces(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = strip(text, None, true, true);
    while !rest.is_empty() {
        let cut = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = cut.filter(|_| parts.len() < limit) else { break };
        let width = rest[at..].chars().next().map_or(1, char::len_utf8);
        let (before, after) = (&rest[..at], &rest[at + width..]);
        let (part, remainder) = if from_right { (after, before) } else { (before, after) };
        parts.push(part);
        rest = strip(remainder, None, !from_right, from_right);
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    if from_right {
        parts.reverse();
    }
    parts
}

fn affix(text: &str, args: Args, has: fn(&str, &str) -> bool) -> Result<Value, Error> {
    let [affix, start, end] = args.bind(1, ["affix", "start", "end"])?;
    let affix = affix.unwrap_or_default();
    let text = window(text, start, end)?.1;
    if let Some(affixes) = as_list(&affix).filter(|list| list.is_tuple()) {
        for affix in affixes.items() {
            if has(text, as_str(affix)?) {
                return Ok(Value::from(true));
            }
        }
        return Ok(Value::from(false));
    }
    Ok(Value::from(has(text, as_str(&affix)?)))
}

/// The part of `text` between two character positions, with the characters before it.
fn window(text: &str, start: Option<Value>, end: Option<Value>) -> Result<(usize, &str), Error> {
    let length = text.chars().count();
    let position = |value: Option<Value>, default: usize| -> Result<usize, Error> {
        let Some(value) = value.filter(|value| !value.is_none()) else { return Ok(default) };
        let at = as_int(&value)?;
        let at = if at < 0 { at.saturating_add(i64::try_from(length).unwrap_or(i64::MAX)) } else { at };
        Ok(usize::try_from(at).unwrap_or(0).min(length))
    };
    let (start, end) = (position(start, 0)?, position(end, length)?);
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    Ok((start, text.get(byte(start)..byte(end)).unwrap_or("")))
}

fn find(text: &str, name: &str, args: Args) -> Result<Value, Error> {
    let [part, start, end] = args.bind(1, ["sub", "start", "end"])?;
    let part = part.unwrap_or_default();
    let (before, text) = window(text, start, end)?;
    let at = if name.starts_with('r') { text.rfind(as_str(&part)?) } else { text.find(as_str(&part)?) };
    match at.and_then(|at| text.get(..at)) {
        Some(head) => Ok(Value::from(before + head.chars().count())),
        None if name.ends_with("find") => Ok(Value::from(-1)),
        None => Err(fail(format!("{name}(): the part is not in the string"))),
    }
}

/// A width, bounded.
pub(super) fn width_of(width: &Value) -> Result<usize, Error> {
    match usize::try_from(as_int(width)?).unwrap_or(0) {
        width @ 0..=MAX_WIDTH => Ok(width),
        width => Err(fail(format!("a width of {width} was asked for, at most {MAX_WIDTH} is allowed"))),
    }
}

fn justify(text: &str, name: &str, args: Args) -> Result<Value, Error> {
    let [width, fill] = args.bind(1, ["width", "fillchar"])?;
    let fill = fill.unwrap_or_else(|| Value::from(" "));
    let fill = as_str(&fill)?;
    let width = width_of(&width.unwrap_or_default())?;
    let missing = width.saturating_sub(text.chars().count());
    let left = match name {
        "ljust" => 0,
        "rjust" => missing,
        // CPython gives the odd space to the left when the width is odd.
        _ => missing / 2 + (missing & width & 1),
    };
    Ok(Value::from(format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left))))
}

/// `text.replace(old, new, count)`; a negative count replaces all.
pub(super) fn replace(text: &str, old: &str, new: &str, count: i64) -> Result<String, Error> {
    let limit = usize::try_from(count).unwrap_or(usize::MAX);
    let times = text.matches(old).count().min(limit);
    charge(text.len().saturating_add(times.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, limit))
}

/// `text.splitlines()`: Python ends a line at more characters than a newline.
pub(super) fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    let ends_line = |c: char| {
        matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    while let Some(at) = rest.find(ends_line) {
        let tail = &rest[at..];
        let width = if tail.starts_with("\r\n") { 2 } else { tail.chars().next().map_or(1, char::len_utf8) };
        lines.push(&rest[..if keep_ends { at + width } else { at }]);
        rest = &rest[at + width..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// `text.capitalize()`.
pub(super) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    first + &chars.as_str().to_lowercase()
}

/// `text.title()`: a letter after no letter is upper case, every other lower case.
fn title(text: &str) -> String {
    let mut out = String::new();
    let mut in_word = false;
    for c in text.chars() {
        if in_word {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        in_word = c.is_alphabetic();
    }
    out
}

fn swap_case(c: char) -> char {
    let mut swapped = if c.is_uppercase() { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() };
    if swapped.chars().count() == 1 { swapped.pop().unwrap_or(c) } else { c }
}
