//! The fields of a request body. Each field of each route is in one of three classes, which its route's list says:
//!
//! - **applied**: the route acts on it ([`Rule::Applied`], and of [`Rule::Only`] the values that ask for what is done anyway);
//! - **taken without effect** ([`Rule::Hint`]): a hint, an identity, an echo or an annotation that cannot change the text
//!   here. The answer lists it under `x_hotmetal.ignored`;
//! - **refused by name** (other values of [`Rule::Only`], [`FOREIGN`], and a misspelt name of an applied field): it would
//!   change the text, and cannot be honoured.
//!
//! A name that no list has is taken without effect too, unless the server is started with `--strict-fields`. So a
//! client that sends what its own vendor added last week is served, and a typo in `temperature` is told.

use std::cell::RefCell;
use std::fmt::Display;

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::quoting::{kind_of, shortened, shown};

/// Paths of one request that are listed, at most, and bytes of each.
const IGNORED_MAX: usize = 64;
const PATH_BYTES_MAX: usize = 160;

/// Fields of one object that no list has, at most.
const UNKNOWN_MAX: usize = 256;

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
    /// Taken without effect, and reported, because of this.
    Hint { why: &'static str },
}

/// A field that is acted on.
pub(crate) const fn applied(name: &'static str) -> Field {
    Field { name, rule: Rule::Applied }
}

/// A field of which only some values ask for what is done anyway.
pub(crate) const fn only(name: &'static str, accepts: fn(&Value) -> bool, why: &'static str) -> Field {
    Field { name, rule: Rule::Only { accepts, why } }
}

/// A field that cannot change the text here.
pub(crate) const fn hint(name: &'static str, why: &'static str) -> Field {
    Field { name, rule: Rule::Hint { why } }
}

/// Names by which other servers take what would change the text, with what to do instead.
pub(crate) const FOREIGN: &[(&str, &str)] = &[
    ("smoothing_factor", "this sampler is not here"),
    ("tfs_z", "this sampler is not here; `typical_p` or `min_p` come close"),
    ("top_a", "this sampler is not here; `min_p` comes close"),
    ("epsilon_cutoff", "this sampler is not here; `min_p` comes close"),
    ("eta_cutoff", "this sampler is not here; `min_p` comes close"),
    ("penalty_alpha", "contrastive search is not here"),
    ("no_repeat_ngram_size", "`dry_multiplier` keeps a text from repeating itself"),
    ("guidance_scale", "a text is generated from one prompt"),
    ("cfg_scale", "a text is generated from one prompt"),
    ("negative_prompt", "a text is generated from one prompt"),
    ("num_beams", "texts are sampled"),
    ("lora", "adapters are not loaded here"),
    ("lora_request", "adapters are not loaded here"),
    ("logits_processors", "no code of a client is run here"),
    ("custom_logit_processor", "no code of a client is run here"),
    ("bad_words", "`logit_bias` with -100 bans a token"),
    ("allowed_token_ids", "`structured_outputs` says which texts are allowed"),
    ("min_new_tokens", "a text ends where the model ends it; `ignore_eos` goes on"),
    ("max_new_tokens", "`max_tokens` says it"),
    ("n_predict", "`max_tokens` says it"),
    ("num_predict", "`max_tokens` says it"),
    ("options", "each option is a field of its own here: `temperature`, `top_k`, `max_tokens` …"),
    ("guided_decoding", "`structured_outputs` says it"),
    ("ebnf", "`structured_outputs.grammar` takes a grammar, in Lark's form"),
    ("image_data", "this model takes text only"),
    ("images", "this model takes text only"),
    ("multi_modal_data", "this model takes text only"),
    ("prompt_embeds", "a prompt is text, or token ids"),
    ("input_audio", "this model takes text only"),
];

/// Applied fields whose misspellings are not refused: they are labels, or say how the answer is sent.
const NO_TEXT: &[&str] = &[
    "model",
    "user",
    "metadata",
    "stream",
    "stream_options",
    "priority",
    "cache_salt",
    "n_keep",
    "type",
    "role",
    "id",
    "text",
    "return_tokens",
    "response_fields",
    // When to give up, which clients of llama.cpp send with every request.
    "t_max_predict_ms",
    "timings_per_token",
    "return_progress",
    "verbose",
];

thread_local! {
    /// The request that this thread reads, if it reads one: see [`reading`].
    static READING: RefCell<Option<Reading>> = const { RefCell::new(None) };
}

/// What is done about fields that the list of their route does not have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldPolicy {
    /// Each is refused.
    pub(crate) strict: bool,
    /// Whether a route that generates applies a field of this name: another such route refuses it, because it would
    /// change the text there. The router says it, which alone knows all routes.
    pub(crate) is_generation_field: fn(&str) -> bool,
}

impl From<bool> for FieldPolicy {
    /// Strict or not, as if there were no other routes.
    fn from(strict: bool) -> Self {
        Self { strict, is_generation_field: |_| false }
    }
}

/// What is noted while a request is read.
#[derive(Debug)]
struct Reading {
    policy: FieldPolicy,
    notes: Notes,
}

/// What a client is told of its request besides the answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes {
    /// Paths of fields that were taken without effect.
    pub(crate) ignored: Vec<String>,
    /// Paths of keywords of schemas that the text is not held to.
    pub(crate) unchecked: Vec<String>,
}

impl Notes {
    /// Adds what there is to `x_hotmetal`.
    pub(crate) fn report(self, facts: &mut Map<String, Value>) {
        for (name, paths) in [("ignored", self.ignored), ("schema_unchecked", self.unchecked)] {
            if !paths.is_empty() {
                facts.insert(name.to_owned(), paths.into());
            }
        }
    }

    /// Adds what there is to an answer that has no other facts.
    pub(crate) fn attach(self, answer: &mut Value) {
        let mut facts = Map::new();
        self.report(&mut facts);
        if !facts.is_empty() {
            answer["x_hotmetal"] = facts.into();
        }
    }
}

/// Runs `read`, which reads one request on this thread, and returns with its result the paths of the fields that were
/// taken without effect. The policy says what is done about a field that its route's list does not have.
///
/// The list is the thread's for that long, and not handed from reader to reader: each member of each message, part,
/// tool and schema is read by a function of its own, some six calls deep.
pub(crate) fn reading<T>(policy: impl Into<FieldPolicy>, read: impl FnOnce() -> T) -> (T, Notes) {
    let begun = Reading { policy: policy.into(), notes: Notes::default() };
    let before = READING.with(|reading| reading.replace(Some(begun)));
    let made = read();
    let notes = READING.with(|reading| reading.replace(before)).map_or_else(Notes::default, |reading| reading.notes);
    (made, notes)
}

/// Notes that the field at this path was taken without effect.
pub(crate) fn ignore(path: impl Into<String>) {
    note(path.into(), |notes| &mut notes.ignored);
}

/// Notes that the text is not held to the keyword of a schema at this path.
pub(crate) fn unchecked(path: impl Into<String>) {
    note(path.into(), |notes| &mut notes.unchecked);
}

fn note(mut path: String, list: fn(&mut Notes) -> &mut Vec<String>) {
    if let Some((end, _)) = path.char_indices().find(|(at, _)| *at >= PATH_BYTES_MAX) {
        path.truncate(end);
        path.push('…');
    }
    READING.with_borrow_mut(|reading| {
        let Some(Reading { notes, .. }) = reading else { return };
        let list = list(notes);
        if list.len() < IGNORED_MAX && !list.contains(&path) {
            list.push(path);
        }
    });
}

/// Reads the request that another interface's became. What is wrong with it, and without effect in it, goes by the
/// names of that interface.
pub(crate) fn inner<T>(
    rename: impl Fn(&str) -> String,
    read: impl FnOnce() -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let (made, notes) = reading(policy(), read);
    notes.ignored.iter().for_each(|path| ignore(rename(path)));
    notes.unchecked.iter().for_each(|path| unchecked(rename(path)));
    made.map_err(|error| error.map_param(rename))
}

fn policy() -> FieldPolicy {
    READING.with_borrow(|reading| reading.as_ref().map_or(false.into(), |reading| reading.policy))
}

/// The fields of one body, taken out one by one. A `null` is as good as none.
pub(crate) struct Fields(Map<String, Value>);

/// A whole number; some clients write one with a point (`5.0`).
fn whole(value: &Value) -> Option<i64> {
    // Beyond that, a number with a point may stand for another one.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let with_point = |found: f64| (found.fract() == 0.0 && found.abs() <= EXACT).then_some(found as i64);
    value.as_i64().or_else(|| value.as_f64().and_then(with_point))
}

impl Fields {
    /// Those of a body.
    pub(crate) fn new(body: Value, known: &[&[Field]]) -> Result<Self, ApiError> {
        Self::read("", body, known)
    }

    /// Those of an object inside a body, at this path.
    pub(crate) fn inside(at: &str, object: Value, known: &[&[Field]]) -> Result<Self, ApiError> {
        Self::read(at, object, known).map_err(|error| error.within(at))
    }

    fn read(at: &str, object: Value, known: &[&[Field]]) -> Result<Self, ApiError> {
        let Value::Object(mut map) = object else {
            // The whole body, or what a field of it holds.
            return Err(ApiError::bad_request(format!("found {} where an object is expected", kind_of(&object))));
        };
        map.retain(|_, value| !value.is_null());
        let (mut refused, mut num_unknown) = (None, 0);
        map.retain(|name, value| {
            match known.iter().copied().flatten().find(|field| field.name == name).map(|field| field.rule) {
                Some(Rule::Applied) => return true,
                Some(Rule::Only { accepts, .. }) if accepts(value) => return true,
                Some(Rule::Only { why, .. }) => {
                    let message = format!("`{}` cannot be {}: {why}", shown(name), shortened(value));
                    refused.get_or_insert_with(|| ApiError::unsupported(shown(name), message));
                }
                Some(Rule::Hint { .. }) => take_without_effect(at, name, value),
                // Each is compared with all that are known.
                None if num_unknown == UNKNOWN_MAX => {
                    let message = format!("there are more than {UNKNOWN_MAX} fields that this server does not know");
                    refused.get_or_insert_with(|| ApiError::unsupported(shown(name), message));
                }
                None => match unknown(at, name, known, &mut num_unknown) {
                    Some(error) => drop(refused.get_or_insert(error)),
                    None => take_without_effect(at, name, value),
                },
            }
            false
        });
        refused.map_or(Ok(Self(map)), Err)
    }

    /// Whether a field is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The number that a field has, if it is there and is one. The field stays.
    pub(crate) fn number_of(&self, name: &str) -> Option<f64> {
        self.0.get(name).and_then(Value::as_f64)
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
            let found = whole(&value).filter(|found| (least..=most).contains(found));
            found.ok_or_else(|| wrong(name, &value, expected()))
        };
        self.take(name).map(read).transpose()
    }

    /// A count that fits the memory of this machine; the engine knows the narrower bound.
    pub(crate) fn count(&mut self, name: &'static str) -> Result<Option<usize>, ApiError> {
        Ok(self.integer(name, 0, i64::from(u32::MAX))?.map(|count| count as usize))
    }

    /// A count of tokens to generate; -1 (llama.cpp, LM Studio) is no limit, and neither is one that no context has.
    pub(crate) fn token_limit(&mut self, name: &'static str, least: i64) -> Result<Option<usize>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        if value.as_u64().is_some_and(|found| found > u64::from(u32::MAX)) {
            return Ok(Some(u32::MAX as usize));
        }
        match whole(&value) {
            Some(-1) => Ok(None),
            Some(count) if count >= least => Ok(Some(count as usize)),
            Some(0) => Err(wrong(name, &value, format!("at least {least}, or -1"))),
            _ => Err(wrong(name, &value, format!("a whole number, at least {least}, or -1"))),
        }
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

/// Why a field that no list has is refused, if it is.
fn unknown(at: &str, name: &str, known: &[&[Field]], num_unknown: &mut usize) -> Option<ApiError> {
    *num_unknown += 1;
    let refuse = |why: String| Some(ApiError::unsupported(shown(name), format!("`{}` {why}", shown(name))));
    // Inside messages and tools the same names are others' annotations.
    if let Some((_, why)) = FOREIGN.iter().find(|(foreign, _)| at.is_empty() && *foreign == name) {
        return refuse(format!("would change the text, and is not applied here: {why}"));
    }
    if of_other_routes(name, known) {
        return refuse(
            "would change the text, and is a field of other routes: see /openapi.json for this one's".to_owned(),
        );
    }
    let mut names = known.iter().copied().flatten().filter(|field| matches!(field.rule, Rule::Applied));
    if let Some(field) = names.find(|field| !NO_TEXT.contains(&field.name) && is_misspelt(name, field.name)) {
        return refuse(format!("is no field here; did you mean `{}`?", field.name));
    }
    policy().strict.then(|| refuse("is no field that this server applies here; leave it out".to_owned())).flatten()
}

/// Whether a route that generates is given what another one knows by this name, and this one does not.
fn of_other_routes(name: &str, known: &[&[Field]]) -> bool {
    /// Asking for what depends on the model anyway.
    const HINTS: &[&str] = &["thinking", "reasoning", "reasoning_effort", "output_config"];
    // Ollama's interface has them all in `options`.
    let is_temperature =
        |field: &Field| matches!(field.name, "temperature" | "options") && matches!(field.rule, Rule::Applied);
    known.iter().copied().flatten().any(is_temperature)
        && !NO_TEXT.contains(&name)
        && !HINTS.contains(&name)
        && (policy().is_generation_field)(name)
}

fn take_without_effect(at: &str, name: &str, value: &Value) {
    let says_nothing = match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    };
    // As answers have them that come back.
    if !says_nothing {
        ignore(if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") });
    }
}

/// Whether somebody who wrote `name` meant `meant`: the same letters in another case or without underscores
/// (`maxTokens`), or, of longer names, one or two letters of difference.
pub(crate) fn is_misspelt(name: &str, meant: &str) -> bool {
    if name.len() > 2 * meant.len() {
        return false;
    }
    let letters = |name: &str| name.chars().filter(|c| c.is_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect();
    let (name, meant): (String, String) = (letters(name), letters(meant));
    let most = match meant.chars().count() {
        ..5 => 0,
        5..10 => 1,
        _ => 2,
    };
    // Two letters that changed places are one difference.
    strsim::osa_distance(&name, &meant) <= most
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KNOWN: &[&[Field]] = &[&[
        applied("temperature"),
        applied("max_tokens"),
        applied("stop"),
        applied("seed"),
        applied("user"),
        only("n", |value| value == 1, "one is enough"),
        hint("store", "nothing is stored"),
    ]];

    #[test]
    fn a_field_is_applied_or_reported_or_refused() {
        let read = |strict, body: Value| reading(strict, || Fields::new(body, KNOWN).map(|fields| fields.0));
        let (fields, Notes { ignored, .. }) =
            read(false, json!({"seed": 1, "n": 1, "store": true, "wibble": 2, "x": null, "y": []}));
        assert_eq!(Value::from(fields.unwrap()), json!({"seed": 1, "n": 1}));
        assert_eq!(ignored, ["store", "wibble"]);
        for (name, hint) in [
            ("temprature", "temperature"),
            ("maxTokens", "max_tokens"),
            ("max_token", "max_tokens"),
            ("temperatuer", "temperature"),
            ("n", "one is enough"),
            ("smoothing_factor", "sampler"),
        ] {
            let error = read(false, json!({name: 2})).0.unwrap_err().to_json().to_string();
            assert!(error.contains(hint) && error.contains(&format!("\"param\":\"{name}\"")), "{name}: {error}");
        }
        // Short names and labels resemble much that is meant as it is.
        for name in ["step", "seat", "users", "usage", "stamp"] {
            assert!(read(false, json!({name: 2})).0.is_ok(), "{name}");
            assert!(read(true, json!({name: 2})).0.is_err(), "{name}");
        }
        assert!(read(true, json!({"store": true})).0.is_ok(), "a hint is known");
    }

    #[test]
    fn paths_that_are_reported_are_few_and_short() {
        let many: Map<String, Value> =
            (0..200).map(|index| (format!("{index}{}", "é".repeat(500)), json!(1))).collect();
        let (read, Notes { ignored, .. }) = reading(false, || Fields::inside("a[0]", many.into(), KNOWN).is_ok());
        assert!(read && ignored.len() == IGNORED_MAX);
        assert!(ignored.iter().all(|path| path.starts_with("a[0].") && path.len() <= PATH_BYTES_MAX + 4));
        let flood: Map<String, Value> = (0..100_000).map(|index| (format!("wibble{index}"), json!(1))).collect();
        let begun = std::time::Instant::now();
        let error = reading(false, || Fields::inside("a", flood.into(), KNOWN).err()).0.expect("too many");
        assert!(error.to_json().to_string().contains("more than 256"));
        assert!(begun.elapsed().as_secs() < 5, "names are compared with all that are known, and few are");
    }
}
