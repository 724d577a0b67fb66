//! `options` of Ollama's interface: what the other routes have as fields of their own.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Field, Fields, Rule, applied, hint, only, wrong};

/// Why options of loading have no effect.
const LOADED: &str = "the model is loaded; flags of `hotmetal serve` say how";

/// The members of `options`.
pub(crate) const OPTIONS: &[Field] = &[
    applied("num_predict"),
    applied("num_keep"),
    applied("temperature"),
    applied("top_k"),
    applied("top_p"),
    applied("min_p"),
    applied("typical_p"),
    applied("seed"),
    applied("stop"),
    applied("repeat_penalty"),
    applied("repeat_last_n"),
    applied("presence_penalty"),
    applied("frequency_penalty"),
    applied("top_n_sigma"),
    applied("dynatemp_range"),
    applied("dynatemp_exponent"),
    applied("mirostat"),
    applied("mirostat_tau"),
    applied("mirostat_eta"),
    hint("num_ctx", "the context is the server's: --ctx-size says how long it is"),
    hint("num_batch", LOADED),
    hint("num_gpu", LOADED),
    hint("main_gpu", LOADED),
    hint("num_thread", LOADED),
    hint("numa", LOADED),
    hint("low_vram", LOADED),
    hint("f16_kv", LOADED),
    hint("logits_all", LOADED),
    hint("vocab_only", LOADED),
    hint("embedding_only", LOADED),
    hint("use_mmap", LOADED),
    hint("use_mlock", LOADED),
    only("penalize_newline", |value| value == true, "penalties count all tokens"),
    only("tfs_z", |value| value.as_f64() == Some(1.0), "this sampler is not here; `typical_p` or `min_p` come close"),
];

/// Options that the inner request calls by another name.
const RENAMED: [(&str, &str); 2] = [("num_predict", "max_tokens"), ("num_keep", "n_keep")];

/// Takes `options` into the inner request.
pub(super) fn take(fields: &mut Fields, inner: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(options) = fields.take("options") else { return Ok(()) };
    if !options.is_object() {
        return Err(wrong("options", &options, "an object with `temperature`, `num_predict` …"));
    }
    let mut options = Fields::inside("options", options, &[OPTIONS])?;
    for field in OPTIONS.iter().filter(|field| matches!(field.rule, Rule::Applied)) {
        let Some(value) = options.take(field.name) else { continue };
        let name = RENAMED.iter().find(|(outer, _)| *outer == field.name).map_or(field.name, |(_, inner)| inner);
        let value = whole(value);
        // -2 fills the context, which a text without a limit does, too.
        let value = if name == "max_tokens" && value == -2 { Value::from(-1) } else { value };
        inner.insert(name.to_owned(), value);
    }
    Ok(())
}

/// The path of an option by its name in the inner request, if it is one.
pub(super) fn outer_name(name: &str) -> Option<String> {
    let renamed = RENAMED.iter().find(|(_, inner)| *inner == name).map(|(outer, _)| *outer);
    let known = OPTIONS.iter().find(|field| field.name == name).map(|field| field.name);
    renamed.or(known).map(|name| format!("options.{name}"))
}

/// A number without a fraction as a whole number: some clients keep every option as a float.
fn whole(value: Value) -> Value {
    /// All whole numbers up to this are floats, too.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value.as_f64() {
        Some(number) if value.is_f64() && number.fract() == 0.0 && number.abs() <= EXACT => (number as i64).into(),
        _ => value,
    }
}
