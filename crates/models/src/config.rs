//! `config.json` as these models read it: every field typed, bounded and checked against the others before a plan is
//! built from it.
//!
//! Field names and defaults are those of Hugging Face transformers; what differs between architectures is given by each
//! model file as its defaults. Both spellings of the rotary embedding are read: `rope_theta` with `rope_scaling`, and
//! `rope_parameters` (transformers 5).

use std::ops::RangeInclusive;

use plan::{Heads, Rope, RopeScaling};
use serde_json::{Map, Value};

/// A field of config.json that is missing, out of its bounds, or asks for something that is not implemented.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No such field and no default.
    #[error("config.json has no `{field}`, expected {expected}")]
    Missing {
        /// The field.
        field: String,
        /// What it must be.
        expected: String,
    },
    /// A field with a value that is not what it must be.
    #[error("config.json: `{field}` is {found}, expected {expected}")]
    Invalid {
        /// The field.
        field: String,
        /// Its value.
        found: String,
        /// What it must be.
        expected: String,
    },
}

/// The most that a count or width may be: above every published model, and small enough that no product of two
/// overflows.
const WIDTH_MAX: usize = 1 << 24;
const LAYERS_MAX: usize = 1 << 10;
const CONTEXT_MAX: usize = 1 << 32;
/// The longest value that an error message repeats.
const SHOWN_MAX: usize = 80;

/// The hyperparameters of a decoder, under their names in config.json.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Features of the residual stream.
    pub hidden_size: usize,
    /// Features inside the MLP.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Features of a head; even.
    pub head_dim: usize,
    /// The longest sequence, in tokens.
    pub max_position_embeddings: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f32,
    /// Whether the head is the embedding table.
    pub tie_word_embeddings: bool,
    /// Whether the attention projections have biases, where the architecture leaves it open.
    pub attention_bias: bool,
    /// Whether the MLP projections have biases, where the architecture leaves it open.
    pub mlp_bias: bool,
    /// Positions that a token of a sliding layer sees, itself included.
    pub sliding_window: Option<usize>,
    /// Whether `sliding_window` is in use, where the architecture asks.
    pub use_sliding_window: bool,
    /// The first layer that slides, where `layer_types` does not say.
    pub max_window_layers: usize,
    /// For each layer, whether it slides (`sliding_attention`) or sees all (`full_attention`).
    pub layer_types: Option<Vec<bool>>,
    /// Rotary embedding of q and k.
    pub rope: Rope,
}

impl Config {
    /// Reads `config`; a field that it lacks is taken from `defaults`. A null is a value (no window, for one), not a
    /// lack.
    pub fn read(config: &Value, defaults: &Value) -> Result<Self, ConfigError> {
        let fields = Fields { config, defaults, path: "" };
        fields.refuse_unless_null("quantization_config", "no pre-quantised weights")?;
        fields.one_of("hidden_act", &["silu", "swish"], "silu")?;

        let width = 1..=WIDTH_MAX;
        let hidden_size = fields.required("hidden_size", width.clone())?;
        let num_hidden_layers = fields.required("num_hidden_layers", 1..=LAYERS_MAX)?;
        let num_attention_heads = fields.required("num_attention_heads", width.clone())?;
        let num_key_value_heads = fields.optional("num_key_value_heads", width.clone())?.unwrap_or(num_attention_heads);
        if !num_attention_heads.is_multiple_of(num_key_value_heads) {
            let expected = format!("a divisor of `num_attention_heads`, {num_attention_heads}");
            return Err(invalid("num_key_value_heads", num_key_value_heads, expected));
        }
        let head_dim = match fields.optional("head_dim", width.clone())? {
            Some(head_dim) => head_dim,
            None if hidden_size.is_multiple_of(num_attention_heads) => hidden_size / num_attention_heads,
            None => {
                let expected =
                    format!("a multiple of `num_attention_heads`, {num_attention_heads}, without `head_dim`");
                return Err(invalid("hidden_size", hidden_size, expected));
            }
        };
        if !head_dim.is_multiple_of(2) {
            return Err(invalid("head_dim", head_dim, "an even number, which the rotary embedding pairs up"));
        }
        if num_attention_heads * head_dim > WIDTH_MAX {
            let expected = format!("at most {WIDTH_MAX} features over {num_attention_heads} heads");
            return Err(invalid("head_dim", head_dim, expected));
        }
        Ok(Self {
            vocab_size: fields.required("vocab_size", width.clone())?,
            hidden_size,
            intermediate_size: fields.required("intermediate_size", width.clone())?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            max_position_embeddings: fields.required("max_position_embeddings", 1..=CONTEXT_MAX)?,
            rms_norm_eps: fields.positive("rms_norm_eps")?,
            tie_word_embeddings: fields.flag("tie_word_embeddings")?,
            attention_bias: fields.flag("attention_bias")?,
            mlp_bias: fields.flag("mlp_bias")?,
            sliding_window: fields.optional("sliding_window", 1..=CONTEXT_MAX)?,
            use_sliding_window: fields.flag("use_sliding_window")?,
            max_window_layers: fields.optional("max_window_layers", 0..=CONTEXT_MAX)?.unwrap_or(num_hidden_layers),
            layer_types: layer_types(&fields, num_hidden_layers)?,
            rope: rope(&fields, head_dim)?,
        })
    }

    /// The attention of a layer with this window: scores are scaled by 1/√head_dim.
    pub fn heads(&self, window: Option<usize>) -> Heads {
        Heads {
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            window,
        }
    }

    /// The window of `layer` in the architectures that choose for each layer (Qwen): what `layer_types` says, or else
    /// layers from `max_window_layers` on slide; none unless `use_sliding_window`.
    pub fn window_of_layer(&self, layer: usize) -> Result<Option<usize>, ConfigError> {
        let window = self.sliding_window.filter(|_| self.use_sliding_window);
        match &self.layer_types {
            None => Ok(window.filter(|_| layer >= self.max_window_layers)),
            Some(sliding) if !sliding[layer] => Ok(None),
            Some(_) if window.is_none() => {
                let expected = "full_attention, because there is no `sliding_window` in use";
                Err(invalid(format!("layer_types[{layer}]"), "sliding_attention", expected))
            }
            Some(_) => Ok(window),
        }
    }
}

fn layer_types(fields: &Fields<'_>, num_hidden_layers: usize) -> Result<Option<Vec<bool>>, ConfigError> {
    let field = "layer_types";
    let Some(value) = fields.get(field) else { return Ok(None) };
    let list = value.as_array().filter(|list| list.len() == num_hidden_layers).ok_or_else(|| {
        let found = value.as_array().map_or_else(|| show(value), |list| format!("a list of {}", list.len()));
        invalid(field, found, format!("a list of {num_hidden_layers}, one for each layer"))
    })?;
    let sliding = |(layer, value): (usize, &Value)| match value.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(invalid(format!("{field}[{layer}]"), show(value), "full_attention or sliding_attention")),
    };
    list.iter().enumerate().map(sliding).collect::<Result<_, _>>().map(Some)
}

/// `rope_parameters` if it is there, otherwise `rope_scaling` beside `rope_theta`.
fn rope(fields: &Fields<'_>, head_dim: usize) -> Result<Rope, ConfigError> {
    let path = ["rope_parameters", "rope_scaling"].into_iter().find(|path| fields.get(path).is_some());
    let empty = Value::Object(Map::new());
    let parameters = match path.and_then(|path| Some((path, fields.get(path)?))) {
        None => Fields { config: &empty, defaults: &empty, path: "" },
        Some((path, object)) if object.is_object() => Fields { config: object, defaults: &empty, path },
        Some((path, found)) => return Err(invalid(path, show(found), "an object or null")),
    };
    // transformers 5 writes one object for each kind of layer where they differ; none of these models has that.
    for kind in ["full_attention", "sliding_attention"] {
        parameters.refuse_unless_null(kind, "one rotary embedding for all layers")?;
    }
    for fields in [fields, &parameters] {
        if let Some(found) = fields.get("partial_rotary_factor").filter(|found| found.as_f64() != Some(1.0)) {
            return Err(invalid(fields.name("partial_rotary_factor"), show(found), "1"));
        }
    }
    let theta = match parameters.get("rope_theta") {
        Some(_) => parameters.positive("rope_theta")?,
        None => fields.positive("rope_theta")?,
    };
    let type_field = if parameters.get("rope_type").is_some() { "rope_type" } else { "type" };
    let scaling = match parameters.one_of(type_field, &["default", "linear", "llama3"], "default")? {
        "linear" => RopeScaling::Linear { factor: parameters.positive("factor")? },
        "llama3" => {
            let (low, high) = (parameters.positive("low_freq_factor")?, parameters.positive("high_freq_factor")?);
            if low >= high {
                let expected = format!("less than `high_freq_factor`, {high}");
                return Err(invalid(parameters.name("low_freq_factor"), low, expected));
            }
            RopeScaling::Llama3 {
                factor: parameters.positive("factor")?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: parameters.positive("original_max_position_embeddings")?,
            }
        }
        _ => RopeScaling::None,
    };
    let scaling = match rope_freq_factors(fields, head_dim)? {
        None => scaling,
        Some(factors) if scaling == RopeScaling::None => RopeScaling::Factors(factors),
        Some(_) => {
            return Err(invalid(
                "rope_freq_factors",
                "given",
                format!("none beside the scaling of `{}`", parameters.path),
            ));
        }
    };
    Ok(Rope { head_dim, theta, scaling })
}

/// One divisor for each frequency; not a field of transformers but what GGUF stores instead of `rope_scaling`.
fn rope_freq_factors(fields: &Fields<'_>, head_dim: usize) -> Result<Option<Vec<f32>>, ConfigError> {
    let field = "rope_freq_factors";
    let Some(value) = fields.get(field) else { return Ok(None) };
    let factors = value.as_array().map(|list| list.iter().map(positive_f32).collect::<Option<Vec<_>>>());
    match factors {
        Some(Some(factors)) if factors.len() == head_dim / 2 => Ok(Some(factors)),
        _ => {
            Err(invalid(field, show(value), format!("{} positive numbers, one for each pair of a head", head_dim / 2)))
        }
    }
}

/// The fields of one object of config.json.
#[derive(Clone, Copy)]
struct Fields<'a> {
    config: &'a Value,
    defaults: &'a Value,
    path: &'a str,
}

impl<'a> Fields<'a> {
    /// The value of `field`, or its default; `None` where either is null.
    fn get(&self, field: &str) -> Option<&'a Value> {
        self.config.get(field).or_else(|| self.defaults.get(field)).filter(|value| !value.is_null())
    }

    fn name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    fn optional(&self, field: &str, bounds: RangeInclusive<usize>) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| bounds.contains(n)) {
            Some(n) => Ok(Some(n)),
            None => Err(invalid(self.name(field), show(value), integer(&bounds))),
        }
    }

    fn required(&self, field: &str, bounds: RangeInclusive<usize>) -> Result<usize, ConfigError> {
        let expected = integer(&bounds);
        self.optional(field, bounds)?.ok_or_else(|| ConfigError::Missing { field: self.name(field), expected })
    }

    fn positive(&self, field: &str) -> Result<f32, ConfigError> {
        let expected = "a positive number".to_owned();
        match self.get(field) {
            None => Err(ConfigError::Missing { field: self.name(field), expected }),
            Some(value) => positive_f32(value).ok_or_else(|| invalid(self.name(field), show(value), expected)),
        }
    }

    /// False where it is not given.
    fn flag(&self, field: &str) -> Result<bool, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(false) };
        value.as_bool().ok_or_else(|| invalid(self.name(field), show(value), "true or false"))
    }

    fn one_of(&self, field: &str, known: &[&'a str], default: &'a str) -> Result<&'a str, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(default) };
        let found = known.iter().copied().find(|&known| value.as_str() == Some(known));
        found.ok_or_else(|| {
            invalid(self.name(field), show(value), format!("{}; others are not implemented", known.join(", ")))
        })
    }

    fn refuse_unless_null(&self, field: &str, expected: &str) -> Result<(), ConfigError> {
        match self.get(field) {
            None => Ok(()),
            Some(value) => Err(invalid(self.name(field), show(value), format!("{expected}: it is not implemented"))),
        }
    }
}

fn positive_f32(value: &Value) -> Option<f32> {
    value.as_f64().map(|x| x as f32).filter(|x| x.is_finite() && *x > 0.0)
}

fn integer(bounds: &RangeInclusive<usize>) -> String {
    format!("an integer from {} to {}", bounds.start(), bounds.end())
}

/// A value as JSON, cut where it would fill the screen.
fn show(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn invalid(field: impl Into<String>, found: impl ToString, expected: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { field: field.into(), found: found.to_string(), expected: expected.into() }
}
