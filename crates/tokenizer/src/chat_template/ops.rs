//! Operators, subscripts and slices with Python's meaning; lowering replaces the engine's own by calls of these.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr};
use minijinja::{Error, State, Value};

use super::value::{
    BoundMethod, Number, as_dict, as_int, as_list, as_namespace, as_number, as_str, charge, charge_elements, compare,
    dict, equal, fail, iterate, list, push, sequence, tuple, type_name, write_repr, write_str,
};
use super::{methods, printf};

/// An operator: its operands in order, already evaluated.
pub(super) type Operator = fn(&[Value]) -> Result<Value, Error>;

/// A function of ours that compiled templates call without looking up a name.
pub(super) struct Native {
    name: &'static str,
    function: Operator,
}

impl Native {
    pub(super) fn value(name: &'static str, function: Operator) -> Value {
        Value::from_object(Native { name, function })
    }
}

impl Object for Native {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        (self.function)(args)
    }
}

impl fmt::Debug for Native {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<function {}>", self.name)
    }
}

/// The two operands of a binary operator; lowering passes exactly two.
fn operands(args: &[Value]) -> Result<(&Value, &Value), Error> {
    match args {
        [a, b] => Ok((a, b)),
        _ => Err(fail("an operator takes two operands")),
    }
}

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    fail(format!("operator {operator} has no meaning between {} and {}", type_name(a), type_name(b)))
}

/// `a + b + …`, from the left; strings are joined in one piece, so a chain of n costs n copies and not n².
pub(super) fn add(args: &[Value]) -> Result<Value, Error> {
    if args.iter().all(|arg| arg.as_str().is_some()) {
        return concat(args);
    }
    let (first, rest) = args.split_first().ok_or_else(|| fail("an operator takes two operands"))?;
    rest.iter().try_fold(first.clone(), |sum, term| add_two(&sum, term))
}

fn add_two(a: &Value, b: &Value) -> Result<Value, Error> {
    if a.as_str().is_some() && b.as_str().is_some() {
        return concat(&[a.clone(), b.clone()]);
    }
    if let (Some(a), Some(b)) = (as_list(a), as_list(b))
        && a.is_tuple() == b.is_tuple()
    {
        charge_elements(a.items().len().saturating_add(b.items().len()))?;
        return sequence([a.items(), b.items()].concat(), a.is_tuple());
    }
    arithmetic("+", a, b, i128::checked_add, |a, b| a + b)
}

/// `a ~ b ~ …`: the strings of all, joined.
pub(super) fn concat(args: &[Value]) -> Result<Value, Error> {
    let mut out = String::new();
    for arg in args {
        write_str(&mut out, arg)?;
    }
    Ok(Value::from(out))
}

pub(super) fn subtract(args: &[Value]) -> Result<Value, Error> {
    let (a, b) = operands(args)?;
    arithmetic("-", a, b, i128::checked_sub, |a, b| a - b)
}

pub(super) fn multiply(args: &[Value]) -> Result<Value, Error> {
    let (a, b) = operands(args)?;
    match (a, b) {
        (a, n) | (n, a) if a.as_str().is_some() && as_number(n).is_some() => {
            let text = as_str(a)?;
            let times = usize::try_from(as_int(n)?).unwrap_or(0);
            charge(text.len().saturating_mul(times))?;
            Ok(Value::from(text.repeat(times)))
        }
        (a, n) | (n, a) if as_list(a).is_some() && as_number(n).is_some() => {
            let items = as_list(a).map_or(&[][..], |list| list.items());
            let times = usize::try_from(as_int(n)?).unwrap_or(0);
            charge_elements(items.len().saturating_mul(times))?;
            // Nothing, however often, is nothing: do not count to `times`.
            let times = if items.is_empty() { 0 } else { times };
            let repeated = std::iter::repeat_n(items, times).flatten().cloned().collect();
            sequence(repeated, as_list(a).is_some_and(|list| list.is_tuple()))
        }
        _ => arithmetic("*", a, b, i128::checked_mul, |a, b| a * b),
    }
}

/// `a / b`, always a float.
pub(super) fn divide(args: &[Value]) -> Result<Value, Error> {
    let (a, b) = operands(args)?;
    match (as_number(a), as_number(b)) {
        (Some(_), Some(divisor)) if divisor.to_float() == 0.0 => Err(fail("division by zero")),
        (Some(a), Some(b)) => Ok(Value::from(a.to_float() / b.to_float())),
        _ => Err(unsupported("/", a, b)),
    }
}

/// `a // b`, rounded down.
pub(super) fn floor_divide(args: &[Value]) -> Result<Value, Error> {
    let (a, b) = operands(args)?;
    nonzero("//", a, b)?;
    let int = |a: i128, b: i128| {
        let rounds_up = a.checked_rem(b)? != 0 && (a < 0) != (b < 0);
        a.checked_div(b)?.checked_sub(i128::from(rounds_up))
    };
    arithmetic("//", a, b, int, |a, b| (a / b).floor())
}

/// `a % b` with the sign of `b`; of a string, `%` formatting.
pub(super) fn modulo(args: &[Value]) -> Result<Value, Error> {
    let (a, b) = operands(args)?;
    if let Some(format) = a.as_str() {
        let arguments = match as_list(b) {
            Some(list) if list.is_tuple() => list.items().to_vec(),
            _ => vec![b.clone()],
        };
        return printf::percent(format, &arguments);
    }
    nonzero("%", a, b)?;
    let int = |a: i128, b: i128| {
        let rest = a.checked_rem(b)?;
        Some(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
    };
    arithmetic("%", a, b, int, |a, b| a - (a / b).floor() * b)
}

fn nonzero(operator: &str, a: &Value, b: &Value) -> Result<(), Error> {
    match (as_number(a), as_number(b)) {
        (Some(_), Some(divisor)) if divisor.to_float() == 0.0 => Err(fail("division by zero")),
        (Some(_), Some(_)) => Ok(()),
        _ => Err(unsupported(operator, a, b)),
    }
}

pub(super) fn power(args: &[Value]) -> Result<Value, Error> {
    let (a, b) = operands(args)?;
    let int = |a: i128, b: i128| a.checked_pow(u32::try_from(b).ok()?);
    match as_number(b) {
        Some(Number::Int(exponent)) if exponent < 0 => match as_number(a) {
            Some(base) => Ok(Value::from(base.to_float().powf(exponent as f64))),
            None => Err(unsupported("**", a, b)),
        },
        _ => arithmetic("**", a, b, int, f64::powf),
    }
}

fn arithmetic(
    operator: &str,
    a: &Value,
    b: &Value,
    int: impl Fn(i128, i128) -> Option<i128>,
    float: impl Fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    match (as_number(a), as_number(b)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => int(a, b)
            .map(|result| Number::Int(result).to_value())
            .ok_or_else(|| fail(format!("{a} {operator} {b} is too large an integer"))),
        (Some(a), Some(b)) => Ok(Value::from(float(a.to_float(), b.to_float()))),
        _ => Err(unsupported(operator, a, b)),
    }
}

pub(super) fn negate(args: &[Value]) -> Result<Value, Error> {
    match args.first().map(|value| (value, as_number(value))) {
        Some((_, Some(Number::Int(int)))) => {
            let negated = int.checked_neg().ok_or_else(|| fail(format!("-{int} is too large an integer")))?;
            Ok(Number::Int(negated).to_value())
        }
        Some((_, Some(Number::Float(float)))) => Ok(Value::from(-float)),
        Some((value, None)) => Err(fail(format!("a {} has no negative", type_name(value)))),
        None => Err(fail("an operator takes an operand")),
    }
}

pub(super) fn eq(args: &[Value]) -> Result<Value, Error> {
    let (a, b) = operands(args)?;
    Ok(Value::from(equal(a, b)?))
}

pub(super) fn ne(args: &[Value]) -> Result<Value, Error> {
    let (a, b) = operands(args)?;
    Ok(Value::from(!equal(a, b)?))
}

pub(super) fn lt(args: &[Value]) -> Result<Value, Error> {
    let (a, b) = operands(args)?;
    Ok(Value::from(compare(a, b)?.is_lt()))
}

pub(super) fn le(args: &[Value]) -> Result<Value, Error> {
    let (a, b) = operands(args)?;
    Ok(Value::from(compare(a, b)?.is_le()))
}

pub(super) fn gt(args: &[Value]) -> Result<Value, Error> {
    let (a, b) = operands(args)?;
    Ok(Value::from(compare(a, b)?.is_gt()))
}

pub(super) fn ge(args: &[Value]) -> Result<Value, Error> {
    let (a, b) = operands(args)?;
    Ok(Value::from(compare(a, b)?.is_ge()))
}

/// `a in b`.
pub(super) fn contained(args: &[Value]) -> Result<Value, Error> {
    let (needle, container) = operands(args)?;
    if let Some(text) = container.as_str() {
        let needle = needle.as_str();
        charge(text.len())?;
        return needle
            .map(|needle| Value::from(text.contains(needle)))
            .ok_or_else(|| fail(format!("`in` a string takes a string, found {}", type_name(&args[0]))));
    }
    if let Some(dict) = as_dict(container) {
        return Ok(Value::from(dict.get(needle)?.is_some()));
    }
    if let Some(list) = as_list(container) {
        charge_elements(list.items().len())?;
        for item in list.items() {
            if equal(item, needle)? {
                return Ok(Value::from(true));
            }
        }
        return Ok(Value::from(false));
    }
    if container.is_undefined() {
        return Ok(Value::from(false));
    }
    Err(fail(format!("`in` needs something to search in, found {}", type_name(container))))
}

pub(super) fn not_contained(args: &[Value]) -> Result<Value, Error> {
    Ok(Value::from(!contained(args)?.is_true()))
}

/// `a < b <= c …`: operands at even places, the operators' spellings at odd ones.
pub(super) fn compare_chain(args: &[Value]) -> Result<Value, Error> {
    for window in args.windows(3).step_by(2) {
        let [a, operator, b] = window else { continue };
        let pair = [a.clone(), b.clone()];
        let holds = match operator.as_str() {
            Some("==") => eq(&pair),
            Some("!=") => ne(&pair),
            Some("<") => lt(&pair),
            Some("<=") => le(&pair),
            Some(">") => gt(&pair),
            Some(">=") => ge(&pair),
            Some("in") => contained(&pair),
            _ => not_contained(&pair),
        }?;
        if !holds.is_true() {
            return Ok(Value::from(false));
        }
    }
    Ok(Value::from(true))
}

pub(super) fn build_list(args: &[Value]) -> Result<Value, Error> {
    list(args.to_vec())
}

pub(super) fn build_tuple(args: &[Value]) -> Result<Value, Error> {
    tuple(args.to_vec())
}

/// A dict of the arguments, taken as key, value, key, value.
pub(super) fn build_dict(args: &[Value]) -> Result<Value, Error> {
    dict(args.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
}

/// What a `for` loops over, as a list.
pub(super) fn iterable(args: &[Value]) -> Result<Value, Error> {
    match args {
        [value] if as_list(value).is_some() => Ok(value.clone()),
        [value] => list(iterate(value)?),
        _ => Err(fail("a loop takes one value")),
    }
}

/// `repr` of each argument, for `loop.changed`, so that the engine compares strings and not containers.
pub(super) fn representation(args: &[Value]) -> Result<Value, Error> {
    let mut out = String::new();
    for arg in args {
        write_repr(&mut out, arg)?;
    }
    Ok(Value::from(out))
}

/// `a.name`: a method of the value, else its item. Only names that are methods of some type come here.
pub(super) fn attribute(args: &[Value]) -> Result<Value, Error> {
    let (value, name) = operands(args)?;
    get_attribute(value, as_str(name)?)
}

/// `getattr(value, name)`, then `value[name]`, else undefined: Jinja's rule for `value.name`.
pub(super) fn get_attribute(value: &Value, name: &str) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(fail(format!("an undefined value has no attribute `{name}`")));
    }
    if methods::exists(value, name) {
        return Ok(BoundMethod::bind(value, name));
    }
    if let Some(dict) = as_dict(value) {
        return Ok(dict.get(&Value::from(name))?.cloned().unwrap_or_default());
    }
    if value.as_object().is_some() {
        return Ok(value.get_attr(name).unwrap_or_default());
    }
    Ok(Value::UNDEFINED)
}

/// `a[key]`, then, for a string key, the method of that name: Jinja's rule, and what `schema['items']` rests on.
pub(super) fn item(args: &[Value]) -> Result<Value, Error> {
    let (value, key) = operands(args)?;
    if value.is_undefined() {
        return Err(fail("an undefined value has no items"));
    }
    if let Some(dict) = as_dict(value) {
        if let Some(found) = dict.get(key)? {
            return Ok(found.clone());
        }
    } else if let Some(Number::Int(_)) = as_number(key) {
        let index = as_int(key)?;
        if let Some(list) = as_list(value) {
            return Ok(position(index, list.items().len())
                .and_then(|at| list.items().get(at))
                .cloned()
                .unwrap_or_default());
        }
        if let Some(text) = value.as_str() {
            charge(text.len())?;
            let length = if index < 0 { text.chars().count() } else { text.len() };
            return Ok(position(index, length)
                .and_then(|at| text.chars().nth(at))
                .map(Value::from)
                .unwrap_or_default());
        }
    }
    match key.as_str() {
        Some(name) => get_attribute(value, name),
        None => Ok(Value::UNDEFINED),
    }
}

/// Where an index that may count from the end points, if inside.
fn position(index: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    let at = if index < 0 { index.checked_add(length)? } else { index };
    (0..length).contains(&at).then(|| usize::try_from(at).ok()).flatten()
}

/// `a[start:stop:step]`; missing bounds come as `none`.
pub(super) fn slice(args: &[Value]) -> Result<Value, Error> {
    let [value, start, stop, step] = args else { return Err(fail("a slice takes a value and three bounds")) };
    if let Some(text) = value.as_str() {
        charge(text.len().saturating_mul(4))?;
        let chars: Vec<char> = text.chars().collect();
        let kept = indices(chars.len(), start, stop, step)?;
        return Ok(Value::from(kept.filter_map(|at| chars.get(at)).collect::<String>()));
    }
    let Some(list) = as_list(value) else {
        return Err(fail(format!("a {} cannot be sliced", type_name(value))));
    };
    let kept = indices(list.items().len(), start, stop, step)?;
    sequence(kept.filter_map(|at| list.items().get(at)).cloned().collect(), list.is_tuple())
}

/// The indices that a slice of `length` elements takes, in order (Python's `slice.indices`).
fn indices(length: usize, start: &Value, stop: &Value, step: &Value) -> Result<impl Iterator<Item = usize>, Error> {
    let length = i64::try_from(length).map_err(|_| fail("too long a sequence to slice"))?;
    let step = if step.is_none() { 1 } else { as_int(step)? };
    if step == 0 {
        return Err(fail("a slice cannot have a step of zero"));
    }
    let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let bound = |value: &Value, default: i64| -> Result<i64, Error> {
        if value.is_none() {
            return Ok(default);
        }
        let at = as_int(value)?;
        Ok((if at < 0 { at.saturating_add(length) } else { at }).clamp(lowest, highest))
    };
    let (start, stop) = if step > 0 {
        (bound(start, lowest)?, bound(stop, highest)?)
    } else {
        (bound(start, highest)?, bound(stop, lowest)?)
    };
    let more = move |at: &i64| if step > 0 { *at < stop } else { *at > stop };
    let steps = std::iter::successors(Some(start), move |at| at.checked_add(step)).take_while(more);
    Ok(steps.filter_map(|at| usize::try_from(at).ok()))
}

/// `namespace.name = value`; prints as nothing.
pub(super) fn set_attribute(args: &[Value]) -> Result<Value, Error> {
    let [target, name, value] = args else { return Err(fail("an assignment takes a namespace, a name and a value")) };
    match as_namespace(target) {
        Some(namespace) => namespace.set(as_str(name)?, value.clone())?,
        None => return Err(fail(format!("only attributes of a namespace can be set, not of a {}", type_name(target)))),
    }
    Ok(Value::from(""))
}

/// Joins `parts` with `separator`, charged.
pub(super) fn join_strings(parts: &[String], separator: &str) -> Result<String, Error> {
    let mut out = String::new();
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            push(&mut out, separator)?;
        }
        push(&mut out, part)?;
    }
    Ok(out)
}
