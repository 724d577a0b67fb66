//! Jinja's filters, with Python's results.

use std::cmp::Ordering;

use minijinja::{Error, Value};

use super::args::Args;
use super::functions::holds;
use super::methods::{self, capitalize, replace, split_at_spaces, split_lines, strip, strip_charged, width_of};
use super::ops::{self, get_attribute, join_strings};
use super::value::{
    Number, TRANSFORMED_PER_COPIED, as_dict, as_int, as_list, as_number, as_str, charge, charge_elements, compare,
    equal, fail, iterate, list, to_str, tuple, type_name,
};
use super::{json, printf};

/// The names of all filters.
pub(super) const NAMES: &[&str] = &[
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "from_json",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "unique",
    "upper",
    "wordcount",
];

/// Applies filter `name`: the first argument is the filtered value.
pub(super) fn apply(args: Args, name: &str) -> Result<Value, Error> {
    match name {
        "abs" => abs(args),
        "attr" => attr(args),
        "batch" => batch(args),
        "capitalize" => text(args, capitalize),
        "center" => center(args),
        "count" | "length" => length(args),
        "d" | "default" => default(args),
        "dictsort" => dictsort(args),
        "e" | "escape" | "forceescape" => escape(args),
        "first" => first(args),
        "float" => float(args),
        "format" => format(args),
        "from_json" => json::loads(args),
        "groupby" => groupby(args),
        "indent" => indent(args),
        "int" => int(args),
        "items" => items(args),
        "join" => join(args),
        "last" => last(args),
        "list" => list(iterate(&only(args)?)?),
        "lower" => text(args, str::to_lowercase),
        "map" => map(args),
        "max" => extreme(args, Ordering::Greater),
        "min" => extreme(args, Ordering::Less),
        "reject" => select(args, false, false),
        "rejectattr" => select(args, true, false),
        "replace" => replaced(args),
        "reverse" => reverse(args),
        "round" => round(args),
        "safe" | "string" => Ok(Value::from(to_str(&only(args)?)?)),
        "select" => select(args, false, true),
        "selectattr" => select(args, true, true),
        "slice" => slice(args),
        "sort" => sort(args),
        "sum" => sum(args),
        "title" => text(args, title),
        "tojson" => json::tojson(args),
        "trim" => trim(args),
        "unique" => unique(args),
        "upper" => text(args, str::to_uppercase),
        "wordcount" => {
            let text = to_str(&only(args)?)?;
            Ok(Value::from(split_at_spaces(&text, usize::MAX, false).len()))
        }
        _ => Err(fail(format!("there is no filter `{name}`"))),
    }
}

fn only(args: Args) -> Result<Value, Error> {
    let [value] = args.bind(1, ["value"])?;
    Ok(value.unwrap_or_default())
}

/// A filter of the value's string alone.
fn text(args: Args, filter: fn(&str) -> String) -> Result<Value, Error> {
    let text = to_str(&only(args)?)?;
    charge(text.len().saturating_mul(TRANSFORMED_PER_COPIED))?;
    Ok(Value::from(filter(&text)))
}

fn flag(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}

fn abs(args: Args) -> Result<Value, Error> {
    let value = only(args)?;
    match as_number(&value) {
        Some(Number::Int(int)) => Ok(Number::Int(int.checked_abs().ok_or_else(|| fail("abs() overflows"))?).to_value()),
        Some(Number::Float(float)) => Ok(Value::from(float.abs())),
        None => Err(fail(format!("abs() takes a number, found {}", type_name(&value)))),
    }
}

fn attr(args: Args) -> Result<Value, Error> {
    let [value, name] = args.bind(2, ["value", "name"])?;
    let value = value.unwrap_or_default();
    // Unlike a dot, this never looks at items.
    if as_dict(&value).is_some() {
        return Ok(Value::UNDEFINED);
    }
    get_attribute(&value, as_str(&name.unwrap_or_default())?)
}

fn batch(args: Args) -> Result<Value, Error> {
    let [value, count, fill] = args.bind(2, ["value", "linecount", "fill_with"])?;
    let items = iterate(&value.unwrap_or_default())?;
    let count = width_of(&count.unwrap_or_default())?.max(1);
    let rows = items.chunks(count).map(|row| {
        let mut row = row.to_vec();
        if let Some(fill) = fill.as_ref().filter(|fill| !fill.is_none()) {
            charge_elements(count)?;
            row.resize(count, fill.clone());
        }
        list(row)
    });
    list(rows.collect::<Result<_, _>>()?)
}

fn slice(args: Args) -> Result<Value, Error> {
    let [value, slices, fill] = args.bind(2, ["value", "slices", "fill_with"])?;
    let items = iterate(&value.unwrap_or_default())?;
    let slices = width_of(&slices.unwrap_or_default())?;
    if slices == 0 {
        return Err(fail("slice() needs at least one slice"));
    }
    let (each, longer) = (items.len() / slices, items.len() % slices);
    let mut rest = items.as_slice();
    let mut columns = Vec::new();
    for index in 0..slices {
        let (column, tail) = rest.split_at((each + usize::from(index < longer)).min(rest.len()));
        rest = tail;
        let mut column = column.to_vec();
        if let Some(fill) = fill.as_ref().filter(|fill| !fill.is_none() && longer > 0 && index >= longer) {
            column.push(fill.clone());
        }
        columns.push(list(column)?);
    }
    list(columns)
}

fn center(args: Args) -> Result<Value, Error> {
    let [value, width] = args.bind(1, ["value", "width"])?;
    let text = Value::from(to_str(&value.unwrap_or_default())?);
    let width = width.unwrap_or_else(|| Value::from(80));
    methods::call(&text, "center", Args::forward("center", vec![width], Vec::new()))
}

fn length(args: Args) -> Result<Value, Error> {
    let value = only(args)?;
    if let Some(text) = value.as_str() {
        charge(text.len())?;
        return Ok(Value::from(text.chars().count()));
    }
    let items = as_list(&value).map(|list| list.items().len());
    match items.or_else(|| as_dict(&value).map(|dict| dict.entries().len())) {
        Some(length) => Ok(Value::from(length)),
        None if value.is_undefined() => Ok(Value::from(0)),
        None => Err(fail(format!("a {} has no length", type_name(&value)))),
    }
}

fn default(args: Args) -> Result<Value, Error> {
    let [value, default, boolean] = args.bind(1, ["value", "default_value", "boolean"])?;
    let value = value.unwrap_or_default();
    let replaced = value.is_undefined() || (flag(boolean) && !value.is_true());
    Ok(if replaced { default.unwrap_or_else(|| Value::from("")) } else { value })
}

fn dictsort(args: Args) -> Result<Value, Error> {
    let [value, case_sensitive, by, reverse] = args.bind(1, ["value", "case_sensitive", "by", "reverse"])?;
    let value = value.unwrap_or_default();
    let Some(dict) = as_dict(&value) else {
        return Err(fail(format!("dictsort() takes a dict, found {}", type_name(&value))));
    };
    let by_value = match by.as_ref().map(as_str).transpose()? {
        None | Some("key") => false,
        Some("value") => true,
        Some(other) => return Err(fail(format!("dictsort() sorts by \"key\" or \"value\", not \"{other}\""))),
    };
    let fold = !flag(case_sensitive);
    let mut keyed = Vec::new();
    for (key, value) in dict.entries() {
        let sorted_by = folded(if by_value { value } else { key }, fold)?;
        keyed.push((sorted_by, tuple(vec![key.clone(), value.clone()])?));
    }
    list(sorted(keyed, flag(reverse))?)
}

fn escape(args: Args) -> Result<Value, Error> {
    let text = to_str(&only(args)?)?;
    charge(text.len().saturating_mul(6))?;
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    Ok(Value::from(text.replace('\'', "&#39;").replace('"', "&#34;")))
}

fn first(args: Args) -> Result<Value, Error> {
    Ok(iterate(&only(args)?)?.into_iter().next().unwrap_or_default())
}

fn last(args: Args) -> Result<Value, Error> {
    Ok(iterate(&only(args)?)?.pop().unwrap_or_default())
}

fn int(args: Args) -> Result<Value, Error> {
    let [value, default, base] = args.bind(1, ["value", "default", "base"])?;
    let value = value.unwrap_or_default();
    let default = default.unwrap_or_else(|| Value::from(0));
    let base = base.map_or(Ok(10), |base| as_int(&base))?;
    let parsed = match (value.as_str(), as_number(&value)) {
        (Some(text), _) => parse_int(text, base).or_else(|| parse_float(text).and_then(truncate)),
        (_, Some(Number::Int(int))) => Some(int),
        (_, Some(Number::Float(float))) => truncate(float),
        _ => None,
    };
    Ok(parsed.map_or(default, |int| Number::Int(int).to_value()))
}

fn parse_int(text: &str, base: i64) -> Option<i128> {
    let text = strip(text, None, true, true).replace('_', "");
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(&text)),
    };
    let prefix = match base {
        16 => ["0x", "0X"],
        8 => ["0o", "0O"],
        2 => ["0b", "0B"],
        _ => ["", ""],
    };
    let digits = digits.strip_prefix(prefix[0]).or_else(|| digits.strip_prefix(prefix[1])).unwrap_or(digits);
    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base))?;
    // `from_str_radix` would take a second sign.
    let plain = digits.starts_with(|c: char| c.is_ascii_alphanumeric());
    plain.then(|| i128::from_str_radix(digits, base).ok()).flatten().map(|int| sign * int)
}

fn parse_float(text: &str) -> Option<f64> {
    strip(text, None, true, true).replace('_', "").parse().ok()
}

fn truncate(float: f64) -> Option<i128> {
    (float.abs() < 1e38).then_some(float.trunc() as i128)
}

fn float(args: Args) -> Result<Value, Error> {
    let [value, default] = args.bind(1, ["value", "default"])?;
    let value = value.unwrap_or_default();
    let parsed = value.as_str().and_then(parse_float).or_else(|| as_number(&value).map(Number::to_float));
    Ok(parsed.map(Value::from).or(default).unwrap_or_else(|| Value::from(0.0)))
}

fn format(args: Args) -> Result<Value, Error> {
    let (mut positional, keyword) = args.into_parts();
    if positional.is_empty() {
        return Err(fail("format() needs a value"));
    }
    let template = to_str(&positional.remove(0))?;
    if !keyword.is_empty() {
        positional.push(Value::from(keyword.into_iter().collect::<minijinja::value::Kwargs>()));
    }
    printf::percent(&template, &positional)
}

fn groupby(args: Args) -> Result<Value, Error> {
    let [value, attribute, default, case_sensitive] =
        args.bind(2, ["value", "attribute", "default", "case_sensitive"])?;
    let attribute = attribute.unwrap_or_default();
    let fold = !flag(case_sensitive);
    let mut keyed = Vec::new();
    for item in iterate(&value.unwrap_or_default())? {
        let mut group = path(&item, &attribute)?;
        if group.is_undefined() {
            group = default.clone().unwrap_or(group);
        }
        keyed.push((folded(&group, fold)?, tuple(vec![group, item])?));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for entry in sorted(keyed, false)? {
        let Some([group, item]) = as_list(&entry).map(|pair| pair.items()) else { continue };
        match groups.last_mut() {
            Some((last, items)) if equal(&folded(last, fold)?, &folded(group, fold)?)? => items.push(item.clone()),
            _ => groups.push((group.clone(), vec![item.clone()])),
        }
    }
    list(groups.into_iter().map(|(group, items)| tuple(vec![group, list(items)?])).collect::<Result<_, _>>()?)
}

fn indent(args: Args) -> Result<Value, Error> {
    let [value, width, first, blank] = args.bind(1, ["s", "width", "first", "blank"])?;
    let text = to_str(&value.unwrap_or_default())?;
    let indention = match width.as_ref().map(|width| (width, width.as_str())) {
        None => "    ".to_owned(),
        Some((_, Some(text))) => text.to_owned(),
        Some((width, None)) => " ".repeat(width_of(width)?),
    };
    // Jinja adds a newline first, so that text that ends in one keeps an empty last line.
    let text = text + "\n";
    let lines = split_lines(&text, false);
    charge(text.len().saturating_add(lines.len().saturating_mul(indention.len())))?;
    let blank = flag(blank);
    let mut out = if flag(first) { indention.clone() } else { String::new() };
    for (index, line) in lines.into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
            out.push_str(if blank || !line.is_empty() { &indention } else { "" });
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

fn items(args: Args) -> Result<Value, Error> {
    let value = only(args)?;
    match as_dict(&value) {
        Some(_) => methods::items(&value),
        None if value.is_undefined() => list(Vec::new()),
        None => Err(fail(format!("items() takes a dict, found {}", type_name(&value)))),
    }
}

fn join(args: Args) -> Result<Value, Error> {
    let [value, separator, attribute] = args.bind(1, ["value", "d", "attribute"])?;
    let separator = separator.map_or(Ok(String::new()), |separator| to_str(&separator))?;
    let mut parts = Vec::new();
    for item in iterate(&value.unwrap_or_default())? {
        let item = attribute
            .as_ref()
            .filter(|attribute| !attribute.is_none())
            .map_or(Ok(item.clone()), |at| path(&item, at))?;
        parts.push(to_str(&item)?);
    }
    join_strings(&parts, &separator).map(Value::from)
}

/// `item.a.0.b` for the attribute `"a.0.b"`, or `item[n]` for an integer.
fn path(item: &Value, attribute: &Value) -> Result<Value, Error> {
    let Some(names) = attribute.as_str() else { return ops::item(&[item.clone(), attribute.clone()]) };
    names.split('.').try_fold(item.clone(), |value, name| {
        let key = name.parse::<u32>().map_or_else(|_| Value::from(name), Value::from);
        ops::item(&[value, key])
    })
}

/// What to sort by: strings without case, unless asked otherwise.
fn folded(value: &Value, fold: bool) -> Result<Value, Error> {
    match value.as_str().filter(|_| fold) {
        Some(text) => {
            charge(text.len())?;
            Ok(Value::from(text.to_lowercase()))
        }
        None => Ok(value.clone()),
    }
}

/// The values in the order of their keys; equal ones keep their order, also in reverse.
fn sorted(mut keyed: Vec<(Value, Value)>, reverse: bool) -> Result<Vec<Value>, Error> {
    // Each comparison of n·log(n) is charged as part of an element visited.
    charge_elements(keyed.len().saturating_mul(keyed.len().max(2).ilog2() as usize) / 2)?;
    let mut failure = None;
    keyed.sort_by(|(a, _), (b, _)| {
        let order = compare(a, b).unwrap_or_else(|error| {
            failure.get_or_insert(error);
            Ordering::Equal
        });
        if reverse { order.reverse() } else { order }
    });
    match failure {
        Some(error) => Err(error),
        None => Ok(keyed.into_iter().map(|(_, value)| value).collect()),
    }
}

fn sort(args: Args) -> Result<Value, Error> {
    let [value, reverse, case_sensitive, attribute] =
        args.bind(1, ["value", "reverse", "case_sensitive", "attribute"])?;
    let fold = !flag(case_sensitive);
    let attribute = attribute.filter(|attribute| !attribute.is_none());
    let mut keyed = Vec::new();
    for item in iterate(&value.unwrap_or_default())? {
        let key = match attribute.as_ref().map(|attribute| (attribute, attribute.as_str())) {
            None => folded(&item, fold)?,
            Some((_, Some(names))) if names.contains(',') => {
                let keys = names.split(',').map(|name| folded(&path(&item, &Value::from(name))?, fold));
                list(keys.collect::<Result<_, _>>()?)?
            }
            Some((attribute, _)) => folded(&path(&item, attribute)?, fold)?,
        };
        keyed.push((key, item));
    }
    list(sorted(keyed, flag(reverse))?)
}

fn unique(args: Args) -> Result<Value, Error> {
    let [value, case_sensitive, attribute] = args.bind(1, ["value", "case_sensitive", "attribute"])?;
    let fold = !flag(case_sensitive);
    let attribute = attribute.filter(|attribute| !attribute.is_none());
    let (mut seen, mut kept) = (Vec::new(), Vec::new());
    for item in iterate(&value.unwrap_or_default())? {
        let key = attribute.as_ref().map_or(Ok(item.clone()), |attribute| path(&item, attribute))?;
        let key = folded(&key, fold)?;
        charge_elements(seen.len())?;
        let mut is_new = true;
        for other in &seen {
            is_new &= !equal(other, &key)?;
        }
        if is_new {
            seen.push(key);
            kept.push(item);
        }
    }
    list(kept)
}

fn extreme(args: Args, wanted: Ordering) -> Result<Value, Error> {
    let [value, case_sensitive, attribute] = args.bind(1, ["value", "case_sensitive", "attribute"])?;
    let fold = !flag(case_sensitive);
    let attribute = attribute.filter(|attribute| !attribute.is_none());
    let mut best: Option<(Value, Value)> = None;
    for item in iterate(&value.unwrap_or_default())? {
        let key = attribute.as_ref().map_or(Ok(item.clone()), |attribute| path(&item, attribute))?;
        let key = folded(&key, fold)?;
        let better = best.as_ref().map_or(Ok(true), |(best, _)| compare(&key, best).map(|order| order == wanted))?;
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map(|(_, item)| item).unwrap_or_default())
}

fn map(args: Args) -> Result<Value, Error> {
    let (mut positional, mut keyword) = args.into_parts();
    if positional.is_empty() {
        return Err(fail("map() needs a value"));
    }
    let items = items_if_any(&positional.remove(0))?;
    let mapped =
        if let Some(at) = keyword.iter().position(|(name, _)| name == "attribute").filter(|_| positional.is_empty()) {
            let (_, attribute) = keyword.remove(at);
            let default = keyword.into_iter().find(|(name, _)| name == "default").map(|(_, default)| default);
            let take = |item: &Value| {
                let found = path(item, &attribute)?;
                Ok(if found.is_undefined() { default.clone().unwrap_or(found) } else { found })
            };
            items.iter().map(take).collect::<Result<_, Error>>()?
        } else {
            if positional.is_empty() {
                return Err(fail("map() needs a filter or an attribute"));
            }
            let filter = positional.remove(0);
            let filter = as_str(&filter)?;
            let mut out = Vec::new();
            for item in items {
                charge_elements(positional.len() + keyword.len())?;
                let arguments = [vec![item], positional.clone()].concat();
                out.push(apply(Args::forward(filter, arguments, keyword.clone()), filter)?);
            }
            out
        };
    list(mapped)
}

/// The items of what map, select and their kin are given. As in Jinja, a value that is false has none, whatever it is:
/// templates filter `message.tool_calls` where it is null.
fn items_if_any(value: &Value) -> Result<Vec<Value>, Error> {
    if value.is_true() { iterate(value) } else { Ok(Vec::new()) }
}

fn select(args: Args, by_attribute: bool, keep: bool) -> Result<Value, Error> {
    let (mut positional, _) = args.into_parts();
    if positional.len() < 1 + usize::from(by_attribute) {
        return Err(fail("select() and reject() need a value, selectattr() and rejectattr() an attribute too"));
    }
    let items = items_if_any(&positional.remove(0))?;
    let attribute = by_attribute.then(|| positional.remove(0));
    let test = if positional.is_empty() { None } else { Some(positional.remove(0)) };
    let mut kept = Vec::new();
    for item in items {
        let subject = attribute.as_ref().map_or(Ok(item.clone()), |attribute| path(&item, attribute))?;
        charge_elements(positional.len())?;
        let passes = match &test {
            None => subject.is_true(),
            Some(test) => holds(as_str(test)?, &[vec![subject], positional.clone()].concat())?,
        };
        if passes == keep {
            kept.push(item);
        }
    }
    list(kept)
}

fn replaced(args: Args) -> Result<Value, Error> {
    let [value, old, new, count] = args.bind(3, ["s", "old", "new", "count"])?;
    let count = count.filter(|count| !count.is_none()).map_or(Ok(-1), |count| as_int(&count))?;
    let (text, old, new) =
        (to_str(&value.unwrap_or_default())?, to_str(&old.unwrap_or_default())?, to_str(&new.unwrap_or_default())?);
    replace(&text, &old, &new, count).map(Value::from)
}

fn reverse(args: Args) -> Result<Value, Error> {
    let value = only(args)?;
    if let Some(text) = value.as_str() {
        charge(text.len())?;
        return Ok(Value::from(text.chars().rev().collect::<String>()));
    }
    let mut items = iterate(&value)?;
    items.reverse();
    list(items)
}

fn round(args: Args) -> Result<Value, Error> {
    let [value, precision, method] = args.bind(1, ["value", "precision", "method"])?;
    let value = value.unwrap_or_default();
    let precision = precision.map_or(Ok(0), |precision| as_int(&precision))?;
    let precision = i32::try_from(precision.clamp(-308, 308)).unwrap_or(0);
    let method = method.unwrap_or_else(|| Value::from("common"));
    let Some(number) = as_number(&value) else {
        return Err(fail(format!("round() takes a number, found {}", type_name(&value))));
    };
    let scale = 10f64.powi(precision);
    match (as_str(&method)?, number) {
        ("common", Number::Int(_)) if precision >= 0 => Ok(value),
        ("common", Number::Int(int)) => {
            let tens = 10i128.pow(precision.unsigned_abs().min(38));
            Ok(Number::Int(((int as f64 * scale).round_ties_even() as i128).saturating_mul(tens)).to_value())
        }
        // Formatting rounds the exact decimal value half to even, as Python's `round` does.
        ("common", Number::Float(float)) if precision >= 0 => {
            let rounded = format!("{float:.*}", usize::try_from(precision).unwrap_or(0));
            Ok(Value::from(rounded.parse::<f64>().unwrap_or(float)))
        }
        ("common", Number::Float(float)) => Ok(Value::from((float * scale).round_ties_even() / scale)),
        ("ceil", number) => Ok(Value::from((number.to_float() * scale).ceil() / scale)),
        ("floor", number) => Ok(Value::from((number.to_float() * scale).floor() / scale)),
        (other, _) => Err(fail(format!("round() knows the methods common, ceil and floor, not {other}"))),
    }
}

fn sum(args: Args) -> Result<Value, Error> {
    let [value, attribute, start] = args.bind(1, ["iterable", "attribute", "start"])?;
    let mut total = start.unwrap_or_else(|| Value::from(0));
    for item in iterate(&value.unwrap_or_default())? {
        let item = attribute
            .as_ref()
            .filter(|attribute| !attribute.is_none())
            .map_or(Ok(item.clone()), |at| path(&item, at))?;
        total = ops::add(&[total, item])?;
    }
    Ok(total)
}

/// Jinja's `title`, which starts words after spaces, hyphens and opening brackets only.
fn title(text: &str) -> String {
    let mut out = String::new();
    let mut starts_word = true;
    for c in text.chars() {
        let separates = c == '-' || methods::is_space(c) || "({[<".contains(c);
        if starts_word && !separates {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        starts_word = separates;
    }
    out
}

fn trim(args: Args) -> Result<Value, Error> {
    let [value, chars] = args.bind(1, ["value", "chars"])?;
    strip_charged(&to_str(&value.unwrap_or_default())?, chars, true, true)
}
