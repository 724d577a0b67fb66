//! Python's values as templates see them: lists, tuples, dicts, namespaces, bound methods; `str`, `repr`, `==`, `<`.
//!
//! Every container knows how deep it is and refuses to grow past [`MAX_DEPTH`], so dropping, comparing or printing
//! one never overflows a stack. Every byte copied and every element visited is charged to the render's budget
//! ([`charge`]), so no template can take memory or time without bound.

use std::cell::Cell;
use std::cmp::Ordering;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::args::Args;
use super::methods;

/// How deep containers may nest. JSON arrives at most 128 deep; templates wrap a few more levels around it.
pub(super) const MAX_DEPTH: u16 = 256;
/// What one element of a list is charged.
const ELEMENT_BYTES: usize = size_of::<Value>();
/// What one entry of a dict is charged: two values, a hash and a share of the table.
const ENTRY_BYTES: usize = 3 * ELEMENT_BYTES;
/// Comparing is charged less than copying: it takes no memory.
const COMPARED_PER_COPIED: usize = 16;
/// Going through text character by character is charged more.
pub(super) const TRANSFORMED_PER_COPIED: usize = 4;

thread_local! {
    /// Bytes that the render on this thread may still copy. Renders own their thread, so this is one render's.
    static BUDGET_BYTES: Cell<u64> = const { Cell::new(0) };
    /// Bytes that it may still print, into its output or into what a macro or block captures.
    static EMISSION_BYTES: Cell<u64> = const { Cell::new(0) };
}

/// The budget of bytes copied is spent; found again in the chain of sources of the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("the template copies more bytes than a render may")]
pub(super) struct BudgetSpent;

/// More was printed than the output may hold.
#[derive(Debug, thiserror::Error)]
#[error("the template prints more bytes than its output may have")]
pub(super) struct EmittedTooMuch;

/// Sets what the render that starts on this thread may copy and print.
pub(super) fn set_budget(copied_bytes: u64, emitted_bytes: u64) {
    BUDGET_BYTES.set(copied_bytes);
    EMISSION_BYTES.set(emitted_bytes);
}

/// Takes `bytes` from both budgets, before they are printed.
pub(super) fn charge_emission(bytes: usize) -> Result<(), Error> {
    charge(bytes)?;
    let left =
        EMISSION_BYTES.get().checked_sub(bytes as u64).ok_or_else(|| fail("output").with_source(EmittedTooMuch))?;
    EMISSION_BYTES.set(left);
    Ok(())
}

/// Takes `bytes` from the budget of this thread's render, before they are copied.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    let left = BUDGET_BYTES.get().checked_sub(bytes as u64);
    BUDGET_BYTES.set(left.unwrap_or(0));
    left.map(|_| ()).ok_or_else(|| Error::from(ErrorKind::OutOfFuel).with_source(BudgetSpent))
}

/// Charges for visiting or copying `count` elements.
pub(super) fn charge_elements(count: usize) -> Result<(), Error> {
    charge(count.saturating_mul(ELEMENT_BYTES))
}

/// The error of a template that does what Python refuses.
pub(super) fn fail(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// A Python `list`, or a `tuple`.
pub(super) struct List {
    items: Vec<Value>,
    is_tuple: bool,
    depth: u16,
}

impl List {
    pub(super) fn items(&self) -> &[Value] {
        &self.items
    }

    pub(super) fn is_tuple(&self) -> bool {
        self.is_tuple
    }
}

/// Makes a list; charged, and refused when it nests too deep.
pub(super) fn list(items: Vec<Value>) -> Result<Value, Error> {
    sequence(items, false)
}

/// Makes a tuple, under the rules of [`list`].
pub(super) fn tuple(items: Vec<Value>) -> Result<Value, Error> {
    sequence(items, true)
}

/// Makes a list or a tuple, under the rules of [`list`].
pub(super) fn sequence(items: Vec<Value>, is_tuple: bool) -> Result<Value, Error> {
    charge_elements(items.len())?;
    let depth = depth_around(items.iter())?;
    Ok(Value::from_object(List { items, is_tuple, depth }))
}

/// A Python `dict`: keys in order of insertion, and only scalars as keys.
pub(super) struct Dict {
    entries: IndexMap<Value, Value>,
    depth: u16,
}

impl Dict {
    pub(super) fn entries(&self) -> &IndexMap<Value, Value> {
        &self.entries
    }

    /// The value under `key`. `1`, `1.0` and `True` are one key, as in Python.
    pub(super) fn get(&self, key: &Value) -> Result<Option<&Value>, Error> {
        charge(key.as_str().map_or(0, str::len))?;
        let place = find_key(&self.entries, key)?;
        Ok(place.and_then(|index| self.entries.get_index(index)).map(|(_, value)| value))
    }
}

/// Makes a dict; a key that comes twice keeps its first place and its last value.
pub(super) fn dict(pairs: Vec<(Value, Value)>) -> Result<Value, Error> {
    charge(pairs.len().saturating_mul(ENTRY_BYTES))?;
    let depth = depth_around(pairs.iter().map(|(_, value)| value))?;
    let mut entries = IndexMap::with_capacity(pairs.len());
    for (key, value) in pairs {
        if as_list(&key).is_some() || !is_scalar(&key) {
            return Err(fail(format!("a value of type {} cannot be a key of a dict", type_name(&key))));
        }
        match find_key(&entries, &key)?.and_then(|index| entries.get_index_mut(index)) {
            Some((_, entry)) => *entry = value,
            None => drop(entries.insert(key, value)),
        }
    }
    Ok(Value::from_object(Dict { entries, depth }))
}

/// Where `key` is. Strings are found by their hash; other keys are few, and found by comparing.
fn find_key(entries: &IndexMap<Value, Value>, key: &Value) -> Result<Option<usize>, Error> {
    if key.as_str().is_some() {
        return Ok(entries.get_index_of(key));
    }
    if key.as_object().is_some() {
        return Ok(None);
    }
    charge_elements(entries.len())?;
    for (index, other) in entries.keys().enumerate() {
        if other.as_str().is_none() && equal(other, key)? {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// `namespace(...)`: the one value that a template may change.
#[derive(Default)]
pub(super) struct Namespace {
    attributes: Mutex<IndexMap<String, Value>>,
}

impl Namespace {
    /// Stores `value` under `name`; what could make a cycle or an endless chain (a namespace, a macro) is refused.
    pub(super) fn set(&self, name: &str, value: Value) -> Result<(), Error> {
        if name.starts_with('_') {
            return Err(fail(format!(
                "a namespace cannot hold `{name}`: names that start with an underscore are reserved"
            )));
        }
        depth_around(std::iter::once(&value))?;
        let mut attributes = self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
        attributes.insert(name.to_owned(), value);
        Ok(())
    }

    fn get(&self, name: &str) -> Option<Value> {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
}

/// A method taken from a value without calling it, as in `{% set strip = text.strip %}`.
pub(super) struct BoundMethod {
    receiver: Value,
    name: String,
}

impl BoundMethod {
    pub(super) fn bind(receiver: &Value, name: &str) -> Value {
        Value::from_object(BoundMethod { receiver: receiver.clone(), name: name.to_owned() })
    }
}

pub(super) fn as_list(value: &Value) -> Option<&List> {
    value.downcast_object_ref::<List>()
}

pub(super) fn as_dict(value: &Value) -> Option<&Dict> {
    value.downcast_object_ref::<Dict>()
}

pub(super) fn as_namespace(value: &Value) -> Option<&Namespace> {
    value.downcast_object_ref::<Namespace>()
}

/// A value that is not a container or callable.
fn is_scalar(value: &Value) -> bool {
    value.as_object().is_none()
}

fn depth_around<'a>(items: impl Iterator<Item = &'a Value>) -> Result<u16, Error> {
    let mut deepest = 0;
    for item in items {
        let depth = match (as_list(item), as_dict(item), item.downcast_object_ref::<BoundMethod>()) {
            (Some(list), ..) => list.depth,
            (_, Some(dict), _) => dict.depth,
            (_, _, Some(method)) => depth_around(std::iter::once(&method.receiver))?,
            _ if is_scalar(item) => 0,
            // A loop or a macro may hold what holds it; nothing that nests may contain one.
            _ => return Err(fail(format!("a {} cannot be stored in a list, dict or namespace", type_name(item)))),
        };
        deepest = deepest.max(depth + 1);
    }
    if deepest > MAX_DEPTH {
        return Err(fail(format!("a value nests more than {MAX_DEPTH} deep")));
    }
    Ok(deepest)
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items.get(key.as_usize()?).cloned()
    }

    fn get_value_by_str(self: &Arc<Self>, _key: &str) -> Option<Value> {
        None
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }

    fn call_method(self: &Arc<Self>, _: &mut State, name: &str, args: &[Value]) -> Result<Value, Error> {
        methods::call(&Value::from_dyn_object(self.clone()), name, Args::new(name, args))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(&Value::from_dyn_object(self.clone()), f)
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.entries.get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.entries.keys().cloned().collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries.len())
    }

    fn call_method(self: &Arc<Self>, _: &mut State, name: &str, args: &[Value]) -> Result<Value, Error> {
        methods::call(&Value::from_dyn_object(self.clone()), name, Args::new(name, args))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(&Value::from_dyn_object(self.clone()), f)
    }
}

impl Object for Namespace {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get(key.as_str()?)
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<Namespace>")
    }
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        methods::call(&self.receiver, &self.name, Args::new(&self.name, args))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {} of {} object>", self.name, type_name(&self.receiver))
    }
}

fn render(value: &Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut text = String::new();
    write_repr(&mut text, value).map_err(|_| fmt::Error)?;
    f.write_str(&text)
}

// The engine prints values only into error messages, where the kind is enough and a conversation is too much.
macro_rules! debug_as_kind {
    ($($object:ident $kind:literal),+) => {$(
        impl fmt::Debug for $object {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($kind)
            }
        }
    )+};
}
debug_as_kind!(List "<list>", Dict "<dict>", Namespace "<namespace>", BoundMethod "<method>");

/// What Python calls the type of a value.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "undefined",
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        _ if as_list(value).is_some_and(List::is_tuple) => "tuple",
        _ if as_list(value).is_some() => "list",
        _ if as_dict(value).is_some() => "dict",
        _ if as_namespace(value).is_some() => "namespace",
        _ if value.downcast_object_ref::<BoundMethod>().is_some() => "method",
        _ => "function, macro or loop",
    }
}

/// JSON as the template sees it. Numbers beyond 64 bits arrive as floats, as `serde_json` reads them.
pub(super) fn from_json(json: &serde_json::Value) -> Result<Value, Error> {
    use serde_json::Value as Json;
    Ok(match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (_, Some(value)) => Value::from(value),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => {
            charge(text.len())?;
            Value::from(text.as_str())
        }
        Json::Array(items) => list(items.iter().map(from_json).collect::<Result<_, _>>()?)?,
        Json::Object(entries) => {
            let pairs = entries.iter().map(|(key, value)| Ok((Value::from(key.as_str()), from_json(value)?)));
            dict(pairs.collect::<Result<_, Error>>()?)?
        }
    })
}

/// A number in Python's two kinds; `True` and `False` count as 1 and 0.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(super) fn to_float(self) -> f64 {
        match self {
            Number::Int(value) => value as f64,
            Number::Float(value) => value,
        }
    }

    pub(super) fn to_value(self) -> Value {
        match self {
            Number::Int(value) => i64::try_from(value).map_or_else(|_| Value::from(value), Value::from),
            Number::Float(value) => Value::from(value),
        }
    }
}

pub(super) fn as_number(value: &Value) -> Option<Number> {
    match value.kind() {
        ValueKind::Bool => Some(Number::Int(i128::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok().map(Number::Int),
        ValueKind::Number => f64::try_from(value.clone()).ok().map(Number::Float),
        _ => None,
    }
}

/// An integer argument, as Python's `operator.index` takes it.
pub(super) fn as_int(value: &Value) -> Result<i64, Error> {
    match as_number(value) {
        Some(Number::Int(int)) => i64::try_from(int).map_err(|_| fail(format!("{int} is too large an integer here"))),
        _ => Err(fail(format!("expected an integer, found {}", type_name(value)))),
    }
}

/// A string argument.
pub(super) fn as_str(value: &Value) -> Result<&str, Error> {
    value.as_str().ok_or_else(|| fail(format!("expected a string, found {}", type_name(value))))
}

/// Everything that iterating a value gives: characters, items, keys; nothing for an undefined value.
pub(super) fn iterate(value: &Value) -> Result<Vec<Value>, Error> {
    let items: Vec<Value> = if let Some(text) = value.as_str() {
        charge_elements(text.len())?;
        text.chars().map(Value::from).collect()
    } else if let Some(list) = as_list(value) {
        charge_elements(list.items.len())?;
        list.items.clone()
    } else if let Some(dict) = as_dict(value) {
        charge_elements(dict.entries.len())?;
        dict.entries.keys().cloned().collect()
    } else if value.is_undefined() {
        Vec::new()
    } else {
        return Err(fail(format!("a {} cannot be iterated over", type_name(value))));
    };
    Ok(items)
}

/// `str(value)`, appended to `out`.
pub(super) fn write_str(out: &mut String, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => push(out, text),
        None if value.is_undefined() => Ok(()),
        None => write_repr(out, value),
    }
}

/// `str(value)`.
pub(super) fn to_str(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_str(&mut out, value)?;
    Ok(out)
}

/// `repr(value)`, appended to `out`.
pub(super) fn write_repr(out: &mut String, value: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        return write_repr_of_str(out, text);
    }
    if let Some(list) = as_list(value) {
        charge_elements(list.items.len())?;
        push(out, if list.is_tuple { "(" } else { "[" })?;
        for (index, item) in list.items.iter().enumerate() {
            push(out, if index > 0 { ", " } else { "" })?;
            write_repr(out, item)?;
        }
        let closing = match (list.is_tuple, list.items.len()) {
            (true, 1) => ",)",
            (true, _) => ")",
            (false, _) => "]",
        };
        return push(out, closing);
    }
    if let Some(dict) = as_dict(value) {
        charge_elements(dict.entries.len())?;
        push(out, "{")?;
        for (index, (key, item)) in dict.entries.iter().enumerate() {
            push(out, if index > 0 { ", " } else { "" })?;
            write_repr(out, key)?;
            push(out, ": ")?;
            write_repr(out, item)?;
        }
        return push(out, "}");
    }
    match value.kind() {
        ValueKind::Undefined => push(out, "Undefined"),
        ValueKind::None => push(out, "None"),
        ValueKind::Bool => push(out, if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => match as_number(value) {
            Some(Number::Float(float)) => push(out, &float_repr(float)),
            _ => push(out, &value.to_string()),
        },
        _ => push(out, &value.to_string()),
    }
}

/// Appends `text` to `out`, charged.
pub(super) fn push(out: &mut String, text: &str) -> Result<(), Error> {
    charge(text.len())?;
    out.push_str(text);
    Ok(())
}

fn write_repr_of_str(out: &mut String, text: &str) -> Result<(), Error> {
    charge(text.len().saturating_mul(TRANSFORMED_PER_COPIED))?;
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => match u32::from(c) {
                code @ ..=0xff => out.push_str(&format!("\\x{code:02x}")),
                code @ ..=0xffff => out.push_str(&format!("\\u{code:04x}")),
                code => out.push_str(&format!("\\U{code:08x}")),
            },
        }
    }
    out.push(quote);
    Ok(())
}

/// Python's `str.isprintable` for one character, as far as the standard library's tables know: controls, separators
/// other than the space, format characters and unassigned ones are not.
fn is_printable(c: char) -> bool {
    // Rust's own escaping also covers combining marks, which Python prints.
    c == ' ' || c.is_ascii_graphic() || c.escape_debug().len() == 1 || is_combining_mark(c)
}

fn is_combining_mark(c: char) -> bool {
    matches!(u32::from(c), 0x300..=0x36f | 0x483..=0x489 | 0x591..=0x5bd | 0x610..=0x61a | 0x64b..=0x65f
        | 0x900..=0xdff | 0xe31..=0xe4e | 0x1ab0..=0x1aff | 0x1dc0..=0x1dff | 0x20d0..=0x20ff | 0x302a..=0x302f
        | 0x3099..=0x309a | 0xfe00..=0xfe0f | 0xfe20..=0xfe2f | 0xe0100..=0xe01ef)
}

/// `repr(float)`: the shortest digits that read back the same, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        _ => {
            let fixed = format!("{value}");
            if fixed.contains('.') { fixed } else { fixed + ".0" }
        }
    }
}

/// `a == b`.
pub(super) fn equal(a: &Value, b: &Value) -> Result<bool, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        charge(a.len().min(b.len()) / COMPARED_PER_COPIED)?;
        return Ok(a == b);
    }
    if let (Some(a), Some(b)) = (as_number(a), as_number(b)) {
        return Ok(match (a, b) {
            (Number::Int(a), Number::Int(b)) => a == b,
            (a, b) => a.to_float() == b.to_float(),
        });
    }
    if let (Some(a), Some(b)) = (as_list(a), as_list(b)) {
        if a.is_tuple != b.is_tuple || a.items.len() != b.items.len() {
            return Ok(false);
        }
        charge_elements(a.items.len())?;
        for (a, b) in a.items.iter().zip(&b.items) {
            if !equal(a, b)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    if let (Some(a), Some(b)) = (as_dict(a), as_dict(b)) {
        if a.entries.len() != b.entries.len() {
            return Ok(false);
        }
        charge_elements(a.entries.len())?;
        for (key, a) in &a.entries {
            match b.get(key)? {
                Some(b) if equal(a, b)? => {}
                _ => return Ok(false),
            }
        }
        return Ok(true);
    }
    Ok(match (a.kind(), b.kind()) {
        (ValueKind::None, ValueKind::None) | (ValueKind::Undefined, ValueKind::Undefined) => true,
        _ => same(a, b),
    })
}

/// Python's `is`, for values that are not numbers or strings: the same object.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    let lists = as_list(a).zip(as_list(b)).is_some_and(|(a, b)| std::ptr::eq(a, b));
    let dicts = as_dict(a).zip(as_dict(b)).is_some_and(|(a, b)| std::ptr::eq(a, b));
    lists || dicts || as_namespace(a).zip(as_namespace(b)).is_some_and(|(a, b)| std::ptr::eq(a, b))
}

/// The order of two values; an error where Python has none.
pub(super) fn compare(a: &Value, b: &Value) -> Result<Ordering, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        charge(a.len().min(b.len()) / COMPARED_PER_COPIED)?;
        return Ok(a.cmp(b));
    }
    if let (Some(a), Some(b)) = (as_number(a), as_number(b)) {
        return Ok(match (a, b) {
            (Number::Int(a), Number::Int(b)) => a.cmp(&b),
            (a, b) => a.to_float().partial_cmp(&b.to_float()).unwrap_or(Ordering::Greater),
        });
    }
    if let (Some(a), Some(b)) = (as_list(a), as_list(b))
        && a.is_tuple == b.is_tuple
    {
        charge_elements(a.items.len())?;
        for (a, b) in a.items.iter().zip(&b.items) {
            if !equal(a, b)? {
                return compare(a, b);
            }
        }
        return Ok(a.items.len().cmp(&b.items.len()));
    }
    Err(fail(format!("{} and {} have no order", type_name(a), type_name(b))))
}
