//! The global functions of a chat template, and the tests behind `is`.

use std::cell::Cell;

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, Value};
use time::PrimitiveDateTime;

use super::args::Args;
use super::ops;
use super::value::{
    Namespace, Number, as_dict, as_int, as_list, as_number, as_str, dict, equal, fail, iterate, list, same, to_str,
};
use super::{filters, json, methods, strftime};

thread_local! {
    /// The clock of the render on this thread. Renders own their thread.
    static NOW: Cell<PrimitiveDateTime> = const { Cell::new(PrimitiveDateTime::MIN) };
}

/// The longest `range`, as in Jinja's sandbox.
const MAX_RANGE: i64 = 100_000;

/// The template called `raise_exception`; found again in the chain of sources of the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// Sets the time that `strftime_now` tells on this thread.
pub(super) fn set_clock(now: PrimitiveDateTime) {
    NOW.set(now);
}

/// Puts every global, filter, test and method that templates may use into an empty environment.
pub(super) fn install(env: &mut Environment<'_>) {
    type Global = fn(Args) -> Result<Value, Error>;
    let globals: [(&str, Global); 6] = [
        ("range", range),
        ("dict", make_dict),
        ("namespace", namespace),
        ("raise_exception", raise_exception),
        ("strftime_now", strftime_now),
        ("from_json", json::loads),
    ];
    for (name, function) in globals {
        env.add_function(name, move |args: Rest<ValueOrKwargs>| function(Args::new(name, &args.into_values())));
    }
    for &name in filters::NAMES {
        env.add_filter(name, move |args: Rest<ValueOrKwargs>| {
            filters::apply(Args::new(name, &args.into_values()), name)
        });
    }
    for &name in TESTS {
        env.add_test(name, move |args: Rest<Value>| holds(name, &args));
    }
    env.set_unknown_method_callback(|_, value, name, args| methods::call(value, name, Args::new(name, args)));
}

fn range(args: Args) -> Result<Value, Error> {
    let [first, second, step] = args.bind(1, ["start", "stop", "step"])?;
    let first = as_int(&first.unwrap_or_default())?;
    let (start, stop) = match second {
        Some(stop) => (first, as_int(&stop)?),
        None => (0, first),
    };
    let step = step.map_or(Ok(1), |step| as_int(&step))?;
    if step == 0 {
        return Err(fail("range() cannot step by zero"));
    }
    let distance = if step > 0 { i128::from(stop) - i128::from(start) } else { i128::from(start) - i128::from(stop) };
    let length = distance.max(0).div_euclid(i128::from(step.unsigned_abs()))
        + i128::from(distance.max(0).rem_euclid(i128::from(step.unsigned_abs())) > 0);
    if length > i128::from(MAX_RANGE) {
        return Err(fail(format!("range() of {length} numbers, at most {MAX_RANGE} are allowed")));
    }
    let numbers = std::iter::successors(Some(start), |at| at.checked_add(step));
    list(numbers.take(usize::try_from(length).unwrap_or(0)).map(Value::from).collect())
}

fn make_dict(args: Args) -> Result<Value, Error> {
    let (positional, keyword) = args.into_parts();
    let mut pairs = match positional.as_slice() {
        [] => Vec::new(),
        [value] => match as_dict(value) {
            Some(dict) => dict.entries().iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
            None => iterate(value)?.iter().map(pair).collect::<Result<_, _>>()?,
        },
        _ => return Err(fail("dict() takes one value and keywords")),
    };
    pairs.extend(keyword.into_iter().map(|(name, value)| (Value::from(name), value)));
    dict(pairs)
}

fn pair(item: &Value) -> Result<(Value, Value), Error> {
    match iterate(item)?.as_slice() {
        [key, value] => Ok((key.clone(), value.clone())),
        _ => Err(fail("dict() takes pairs of a key and a value")),
    }
}

fn namespace(args: Args) -> Result<Value, Error> {
    let attributes = make_dict(args)?;
    let namespace = Namespace::default();
    for (name, value) in as_dict(&attributes).into_iter().flat_map(|dict| dict.entries()) {
        namespace.set(as_str(name)?, value.clone())?;
    }
    Ok(Value::from_object(namespace))
}

fn raise_exception(args: Args) -> Result<Value, Error> {
    let [message] = args.bind(1, ["message"])?;
    let message = to_str(&message.unwrap_or_default())?;
    Err(fail("raise_exception").with_source(Raised(message)))
}

fn strftime_now(args: Args) -> Result<Value, Error> {
    let [format] = args.bind(1, ["format"])?;
    Ok(Value::from(strftime::strftime(NOW.get(), as_str(&format.unwrap_or_default())?)))
}

/// The names of all tests.
const TESTS: &[&str] = &[
    "defined",
    "undefined",
    "none",
    "boolean",
    "true",
    "false",
    "integer",
    "float",
    "number",
    "string",
    "mapping",
    "sequence",
    "iterable",
    "callable",
    "sameas",
    "escaped",
    "in",
    "odd",
    "even",
    "divisibleby",
    "lower",
    "upper",
    "eq",
    "equalto",
    "==",
    "ne",
    "!=",
    "lt",
    "lessthan",
    "<",
    "le",
    "<=",
    "gt",
    "greaterthan",
    ">",
    "ge",
    ">=",
];

/// Whether `args[0] is name(args[1..])`.
pub(super) fn holds(name: &str, args: &[Value]) -> Result<bool, Error> {
    let Some((value, rest)) = args.split_first() else { return Err(fail(format!("test `{name}` needs a value"))) };
    let int = || as_int(value);
    let other = || rest.first().ok_or_else(|| fail(format!("test `{name}` needs an argument")));
    let number = as_number(value);
    let is_bool = value.kind() == ValueKind::Bool;
    let is_container = value.as_str().is_some() || as_list(value).is_some() || as_dict(value).is_some();
    let truth = |result: Result<Value, Error>| result.map(|value| value.is_true());
    Ok(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => value.is_none(),
        "boolean" => is_bool,
        "true" => is_bool && value.is_true(),
        "false" => is_bool && !value.is_true(),
        "integer" => !is_bool && matches!(number, Some(Number::Int(_))),
        "float" => matches!(number, Some(Number::Float(_))),
        "number" => number.is_some(),
        "string" => value.as_str().is_some(),
        "mapping" => as_dict(value).is_some(),
        // An undefined value has a length and can be iterated over, so for Python it is both.
        "sequence" | "iterable" => is_container || value.is_undefined(),
        "callable" => value.is_undefined() || (value.as_object().is_some() && !is_container),
        "sameas" => {
            let other = other()?;
            same(value, other) || (value.kind() == other.kind() && value.as_object().is_none() && equal(value, other)?)
        }
        "escaped" => false,
        "in" => ops::contained(args)?.is_true(),
        "odd" => int()?.rem_euclid(2) == 1,
        "even" => int()?.rem_euclid(2) == 0,
        "divisibleby" => match as_int(other()?)? {
            0 => return Err(fail("division by zero")),
            divisor => int()?.checked_rem(divisor).unwrap_or(0) == 0,
        },
        "lower" => is_cased(&to_str(value)?, char::is_lowercase),
        "upper" => is_cased(&to_str(value)?, char::is_uppercase),
        "eq" | "equalto" | "==" => truth(ops::eq(args))?,
        "ne" | "!=" => truth(ops::ne(args))?,
        "lt" | "lessthan" | "<" => truth(ops::lt(args))?,
        "le" | "<=" => truth(ops::le(args))?,
        "gt" | "greaterthan" | ">" => truth(ops::gt(args))?,
        "ge" | ">=" => truth(ops::ge(args))?,
        _ => return Err(fail(format!("there is no test `{name}`"))),
    })
}

/// Whether a string has cased characters and all of them are of `case` (`str.islower`, `str.isupper`).
pub(super) fn is_cased(text: &str, case: fn(char) -> bool) -> bool {
    let mut cased = text.chars().filter(|c| c.is_lowercase() || c.is_uppercase()).peekable();
    cased.peek().is_some() && cased.all(case)
}
