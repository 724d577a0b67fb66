//! The readers that model files share for `config.json`: every field typed, bounded and checked against the others before
//! a plan is built from it.
//!
//! A model file has a `Config` of its own, made of what it computes with: the parts here, the rotary embedding of `rope`,
//! and fields that it alone has. Names and defaults are those of Hugging Face transformers. Fields that change what a
//! decoder computes and that no model here reads are refused ([`Fields::new`]).

use std::ops::RangeInclusive;

use plan::{Activation, Heads};
use serde_json::Value;

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

/// Of transformers' activations those that gated units have; an exact GELU (`gelu`) is not among them.
const HIDDEN_ACTS: &[&str] = &["silu", "swish", "gelu_pytorch_tanh", "gelu_new", "relu"];
/// The most that a count or width may be: above every published model, and small enough that no product of two
/// overflows.
pub(crate) const WIDTH_MAX: usize = 1 << 24;
/// The most layers.
const LAYERS_MAX: usize = 1 << 10;
/// The most tokens of a context or window.
pub(crate) const CONTEXT_MAX: usize = 1 << 32;
/// Fields that change what a decoder computes and that none of these models has, with the value that changes nothing.
/// Any other value is refused, because the text would be wrong without a word. Null always changes nothing.
///
/// Granite, Cohere, Gemma, OLMo, DBRX, MPT and Mistral 4 have one or the other, and so do checkpoints that reuse the
/// name of an architecture here.
const NEUTRAL: [(&str, Neutral); 22] = [
    ("is_causal", Neutral::Flag(true)),
    ("use_bidirectional_attention", Neutral::Flag(false)),
    ("clip_qkv", Neutral::Null),
    ("attn_logit_softcapping", Neutral::Number(0.0)),
    ("final_logit_softcapping", Neutral::Number(0.0)),
    ("qk_layernorm", Neutral::Flag(false)),
    ("use_qk_norm", Neutral::Flag(false)),
    ("embedding_multiplier", Neutral::Number(1.0)),
    ("residual_multiplier", Neutral::Number(1.0)),
    ("attention_multiplier", Neutral::Null),
    ("query_pre_attn_scalar", Neutral::Null),
    ("attention_chunk_size", Neutral::Null),
    ("attn_temperature_tuning", Neutral::Flag(false)),
    ("logits_scaling", Neutral::Number(1.0)),
    ("logit_scale", Neutral::Number(1.0)),
    ("scale_emb", Neutral::Number(1.0)),
    ("scale_depth", Neutral::Null),
    ("dim_model_base", Neutral::Null),
    ("alibi", Neutral::Flag(false)),
    ("use_alibi", Neutral::Flag(false)),
    ("parallel_attn", Neutral::Flag(false)),
    ("use_parallel_residual", Neutral::Flag(false)),
];

/// A value that changes nothing.
#[derive(Clone, Copy)]
pub(crate) enum Neutral {
    Flag(bool),
    Number(f64),
    /// None but null.
    Null,
}

impl Neutral {
    fn is(self, value: &Value) -> bool {
        match self {
            Self::Flag(flag) => value.as_bool() == Some(flag),
            Self::Number(number) => value.as_f64() == Some(number),
            Self::Null => value.is_null(),
        }
    }

    fn words(self) -> String {
        match self {
            Self::Flag(flag) => flag.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Null => "null".to_owned(),
        }
    }
}

/// The longest value that an error message repeats.
const SHOWN_MAX: usize = 80;

/// What stands around the layers of a decoder, and how many those are.
pub(crate) struct Decoder {
    /// Tokens in the vocabulary.
    pub(crate) vocab_size: usize,
    /// Features of the residual stream.
    pub(crate) hidden_size: usize,
    pub(crate) num_hidden_layers: usize,
    /// Added to the mean square in every norm.
    pub(crate) rms_norm_eps: f32,
    /// Whether the head is the embedding table.
    pub(crate) tie_word_embeddings: bool,
}

impl Decoder {
    pub(crate) fn read(fields: &Fields<'_>) -> Result<Self, ConfigError> {
        let decoder = Self {
            hidden_size: fields.required("hidden_size", 1..=WIDTH_MAX)?,
            num_hidden_layers: fields.required("num_hidden_layers", 1..=LAYERS_MAX)?,
            vocab_size: fields.required("vocab_size", 1..=WIDTH_MAX)?,
            rms_norm_eps: fields.positive("rms_norm_eps")?,
            tie_word_embeddings: fields.flag("tie_word_embeddings")?,
        };
        fields.check_optional(decoder.num_hidden_layers)?;
        Ok(decoder)
    }
}

/// The gated MLP of a layer.
pub(crate) struct Mlp {
    /// Features inside.
    pub(crate) intermediate_size: usize,
    /// What multiplies.
    pub(crate) hidden_act: Activation,
    /// Whether the projections have biases.
    pub(crate) bias: bool,
}

impl Mlp {
    /// `bias` is `mlp_bias` in the architectures that leave it open.
    pub(crate) fn read(fields: &Fields<'_>, bias: bool) -> Result<Self, ConfigError> {
        let intermediate_size = fields.required("intermediate_size", 1..=WIDTH_MAX)?;
        Ok(Self { intermediate_size, hidden_act: hidden_act(fields)?, bias })
    }
}

/// What gates are sent through.
pub(crate) fn hidden_act(fields: &Fields<'_>) -> Result<Activation, ConfigError> {
    Ok(match fields.one_of("hidden_act", HIDDEN_ACTS, "silu")? {
        "relu" => Activation::Relu,
        "gelu_pytorch_tanh" | "gelu_new" => Activation::GeluTanh,
        _ => Activation::Silu,
    })
}

/// The heads of attention.
pub(crate) struct HeadSizes {
    /// Query heads.
    pub(crate) num_attention_heads: usize,
    /// Key and value heads; divides `num_attention_heads`.
    pub(crate) num_key_value_heads: usize,
    /// Features of a head; even.
    pub(crate) head_dim: usize,
}

impl HeadSizes {
    /// Where config.json does not say it, each query head has its own keys and values, and the heads share `hidden_size`
    /// out among themselves.
    pub(crate) fn read(fields: &Fields<'_>, hidden_size: usize) -> Result<Self, ConfigError> {
        let width = 1..=WIDTH_MAX;
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
        if let Some(value) = fields.optional("v_head_dim", width)?.filter(|&value| value != head_dim) {
            return Err(invalid("v_head_dim", value, format!("`head_dim`, {head_dim}: values are as wide as keys")));
        }
        if num_attention_heads * head_dim > WIDTH_MAX {
            let expected = format!("at most {WIDTH_MAX} features over {num_attention_heads} heads");
            return Err(invalid("head_dim", head_dim, expected));
        }
        Ok(Self { num_attention_heads, num_key_value_heads, head_dim })
    }

    /// Features of all query heads.
    pub(crate) fn q_width(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Features of all key heads, and of all value heads.
    pub(crate) fn kv_width(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// The attention of a layer with this window: scores are scaled by 1/√head_dim.
    pub(crate) fn attention(&self, window: Option<usize>) -> Heads {
        Heads {
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            window,
            sinks: None,
        }
    }
}

/// The sliding windows of the architectures that choose for each layer.
pub(crate) struct Windows {
    /// Positions that a token of a sliding layer sees, itself included: `sliding_window`, if `use_sliding_window`.
    pub(crate) window: Option<usize>,
    /// The first layer that slides, where `layer_types` does not say.
    max_window_layers: usize,
    /// For each layer, whether it slides (`sliding_attention`) or sees all (`full_attention`).
    pub(crate) layer_types: Option<Vec<bool>>,
}

impl Windows {
    pub(crate) fn read(fields: &Fields<'_>, num_hidden_layers: usize) -> Result<Self, ConfigError> {
        let is_used = fields.flag("use_sliding_window")?;
        Ok(Self {
            window: fields.sliding_window()?.filter(|_| is_used),
            max_window_layers: fields.max_window_layers()?.unwrap_or(num_hidden_layers),
            layer_types: fields.layer_types(num_hidden_layers)?,
        })
    }

    /// The window of `layer`: what `layer_types` says, or else layers from `max_window_layers` on slide.
    pub(crate) fn of_layer(&self, layer: usize) -> Result<Option<usize>, ConfigError> {
        match &self.layer_types {
            None => Ok(self.window.filter(|_| layer >= self.max_window_layers)),
            Some(sliding) if !sliding[layer] => Ok(None),
            Some(_) if self.window.is_none() => {
                let expected = "full_attention, because there is no `sliding_window` in use";
                Err(invalid(format!("layer_types[{layer}]"), "sliding_attention", expected))
            }
            Some(_) => Ok(self.window),
        }
    }
}

/// The fields of one object of config.json. A field that it lacks is taken from `defaults`; a null is a value (no window,
/// for one), not a lack.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    pub(crate) config: &'a Value,
    pub(crate) defaults: &'a Value,
    pub(crate) path: &'a str,
}

impl<'a> Fields<'a> {
    /// The fields of a whole config.json. Refuses those that ask for what no model here computes.
    pub(crate) fn new(config: &'a Value, defaults: &'a Value) -> Result<Self, ConfigError> {
        Self::with_own(config, defaults, &[])
    }

    /// As [`Fields::new`], of an architecture that computes what the fields `own` ask for.
    pub(crate) fn with_own(config: &'a Value, defaults: &'a Value, own: &[&str]) -> Result<Self, ConfigError> {
        let fields = Fields { config, defaults, path: "" };
        fields.refuse_unless_null("quantization_config", "no pre-quantised weights")?;
        for neutral in NEUTRAL.iter().filter(|(field, _)| !own.contains(field)) {
            fields.refuse_unless_neutral(std::slice::from_ref(neutral))?;
        }
        Ok(fields)
    }

    /// Refuses values that are none of what these fields may be. Only some models read them; the others refuse them too,
    /// because such a file is damaged, or means something else by the name.
    fn check_optional(&self, num_hidden_layers: usize) -> Result<(), ConfigError> {
        for field in ["attention_bias", "mlp_bias", "use_sliding_window"] {
            self.flag(field)?;
        }
        self.sliding_window()?;
        self.max_window_layers()?;
        self.layer_types(num_hidden_layers)?;
        Ok(())
    }

    /// Positions that a token of a sliding layer sees, itself included.
    pub(crate) fn sliding_window(&self) -> Result<Option<usize>, ConfigError> {
        self.optional("sliding_window", 1..=CONTEXT_MAX)
    }

    fn max_window_layers(&self) -> Result<Option<usize>, ConfigError> {
        self.optional("max_window_layers", 0..=CONTEXT_MAX)
    }

    /// For each layer, whether it slides.
    fn layer_types(&self, num_hidden_layers: usize) -> Result<Option<Vec<bool>>, ConfigError> {
        let field = "layer_types";
        let Some(value) = self.get(field) else { return Ok(None) };
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

    /// The value of `field`, or its default; `None` where either is null.
    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        self.config.get(field).or_else(|| self.defaults.get(field)).filter(|value| !value.is_null())
    }

    pub(crate) fn name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    pub(crate) fn optional(&self, field: &str, bounds: RangeInclusive<usize>) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| bounds.contains(n)) {
            Some(n) => Ok(Some(n)),
            None => Err(invalid(self.name(field), show(value), integer(&bounds))),
        }
    }

    pub(crate) fn required(&self, field: &str, bounds: RangeInclusive<usize>) -> Result<usize, ConfigError> {
        let expected = integer(&bounds);
        self.optional(field, bounds)?.ok_or_else(|| ConfigError::Missing { field: self.name(field), expected })
    }

    pub(crate) fn positive(&self, field: &str) -> Result<f32, ConfigError> {
        let expected = "a positive number".to_owned();
        match self.get(field) {
            None => Err(ConfigError::Missing { field: self.name(field), expected }),
            Some(value) => positive_f32(value).ok_or_else(|| invalid(self.name(field), show(value), expected)),
        }
    }

    /// False where it is not given.
    pub(crate) fn flag(&self, field: &str) -> Result<bool, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(false) };
        value.as_bool().ok_or_else(|| invalid(self.name(field), show(value), "true or false"))
    }

    pub(crate) fn one_of(&self, field: &str, known: &[&'a str], default: &'a str) -> Result<&'a str, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(default) };
        let found = known.iter().copied().find(|&known| value.as_str() == Some(known));
        found.ok_or_else(|| {
            invalid(self.name(field), show(value), format!("{}; others are not implemented", known.join(", ")))
        })
    }

    pub(crate) fn refuse_unless_neutral(&self, table: &[(&str, Neutral)]) -> Result<(), ConfigError> {
        for &(field, neutral) in table {
            if let Some(value) = self.get(field).filter(|value| !neutral.is(value)) {
                let expected = format!("{}: what another value computes is not implemented", neutral.words());
                return Err(invalid(self.name(field), show(value), expected));
            }
        }
        Ok(())
    }

    pub(crate) fn refuse_unless_null(&self, field: &str, expected: &str) -> Result<(), ConfigError> {
        match self.get(field) {
            None => Ok(()),
            Some(value) => Err(invalid(self.name(field), show(value), format!("{expected}: it is not implemented"))),
        }
    }
}

pub(crate) fn positive_f32(value: &Value) -> Option<f32> {
    value.as_f64().map(|x| x as f32).filter(|x| x.is_finite() && *x > 0.0)
}

fn integer(bounds: &RangeInclusive<usize>) -> String {
    format!("an integer from {} to {}", bounds.start(), bounds.end())
}

/// A value as JSON, cut where it would fill the screen.
pub(crate) fn show(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

pub(crate) fn invalid(field: impl Into<String>, found: impl ToString, expected: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { field: field.into(), found: found.to_string(), expected: expected.into() }
}

#[cfg(test)]
mod tests {
    use plan::{Rope, RopeScaling};
    use serde_json::json;

    use super::*;
    use crate::rope::Rotary;

    fn tiny() -> Value {
        json!({
            "vocab_size": 16, "hidden_size": 24, "intermediate_size": 12, "num_hidden_layers": 3,
            "num_attention_heads": 4, "max_position_embeddings": 99, "rms_norm_eps": 1e-6, "rope_theta": 10000,
        })
    }

    fn changed(changes: &Value) -> Value {
        let mut config = tiny();
        for (field, value) in changes.as_object().unwrap() {
            config[field] = value.clone();
        }
        config
    }

    /// What each architecture says of a configuration, whose heads are those of no default.
    fn build(changes: &Value) -> Vec<Result<plan::Plan, crate::ModelError>> {
        let build = |model_type: &&str| {
            let mut config = json!({
                "num_key_value_heads": null, "head_dim": null, "partial_rotary_factor": 1, "num_experts_per_tok": 2,
                "qk_rope_head_dim": 6,
            });
            for (field, value) in changed(changes).as_object().unwrap() {
                config[field] = value.clone();
            }
            config["model_type"] = json!(model_type);
            crate::build_plan(&config, &plan::AnyShape)
        };
        crate::SUPPORTED.iter().map(build).collect()
    }

    #[test]
    fn what_is_absent_follows_from_the_rest_as_in_transformers() {
        let (config, none) = (tiny(), json!({}));
        let fields = Fields::new(&config, &none).unwrap();
        let heads = HeadSizes::read(&fields, 24).unwrap();
        assert_eq!((heads.head_dim, heads.num_key_value_heads), (6, 4));
        assert_eq!(
            Rotary::read(&fields, heads.head_dim).unwrap().rope,
            Rope { head_dim: 6, dims: 6, theta: 10000.0, scaling: RopeScaling::None, attention_factor: 1.0 }
        );
        assert!(!Decoder::read(&fields).unwrap().tie_word_embeddings && !fields.flag("attention_bias").unwrap());
        assert_eq!(fields.sliding_window(), Ok(None));
    }

    #[test]
    fn a_null_is_a_value_and_a_lack_takes_the_default() {
        let defaults = json!({ "sliding_window": 4096, "num_key_value_heads": 2 });
        let read = |config: &Value| {
            let fields = Fields::new(config, &defaults).unwrap();
            (fields.sliding_window().unwrap(), HeadSizes::read(&fields, 24).unwrap().num_key_value_heads)
        };
        assert_eq!(read(&tiny()), (Some(4096), 2));
        assert_eq!(read(&changed(&json!({ "sliding_window": null, "num_key_value_heads": null }))), (None, 4));
    }

    #[test]
    fn the_window_of_a_layer_is_that_of_its_type() {
        let sliding = |changes: &Value| {
            let (config, none) = (changed(changes), json!({}));
            let windows = Windows::read(&Fields::new(&config, &none).unwrap(), 3).unwrap();
            (0..3).map(|layer| windows.of_layer(layer)).collect::<Result<Vec<_>, _>>()
        };
        let window = json!({ "use_sliding_window": true, "sliding_window": 7, "max_window_layers": 1 });
        assert_eq!(sliding(&window).unwrap(), [None, Some(7), Some(7)]);
        let mut unused = window.clone();
        unused["use_sliding_window"] = json!(false);
        assert_eq!(sliding(&unused).unwrap(), [None; 3]);
        let types = json!(["sliding_attention", "full_attention", "full_attention"]);
        let mut typed = window;
        typed["layer_types"] = types.clone();
        assert_eq!(sliding(&typed).unwrap(), [Some(7), None, None]);
        unused["layer_types"] = types;
        let expected = "config.json: `layer_types[0]` is sliding_attention, expected full_attention, because there is \
                        no `sliding_window` in use";
        assert_eq!(sliding(&unused).unwrap_err().to_string(), expected);
    }

    #[test]
    fn each_fault_is_named_with_what_was_found_and_expected() {
        let llama3 = json!({ "rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4 });
        let faults = [
            (json!({ "vocab_size": null }), "config.json has no `vocab_size`, expected an integer from 1 to 16777216"),
            (json!({ "hidden_size": -1 }), "config.json: `hidden_size` is -1, expected an integer from 1 to 16777216"),
            (
                json!({ "hidden_size": "24" }),
                "config.json: `hidden_size` is \"24\", expected an integer from 1 to 16777216",
            ),
            (
                json!({ "num_hidden_layers": 1e9 as u64 }),
                "config.json: `num_hidden_layers` is 1000000000, expected an integer from 1 to 1024",
            ),
            (
                json!({ "num_key_value_heads": 3 }),
                "config.json: `num_key_value_heads` is 3, expected a divisor of `num_attention_heads`, 4",
            ),
            (
                json!({ "num_attention_heads": 5 }),
                "config.json: `hidden_size` is 24, expected a multiple of `num_attention_heads`, 5, without `head_dim`",
            ),
            (
                json!({ "head_dim": 7 }),
                "config.json: `head_dim` is 7, expected an even number, which the rotary embedding pairs up",
            ),
            (
                json!({ "head_dim": 16777216 }),
                "config.json: `head_dim` is 16777216, expected at most 16777216 features over 4 heads",
            ),
            (json!({ "rms_norm_eps": 0 }), "config.json: `rms_norm_eps` is 0, expected a positive number"),
            (json!({ "rms_norm_eps": 1e-60 }), "config.json: `rms_norm_eps` is 1e-60, expected a positive number"),
            (json!({ "rope_theta": "big" }), "config.json: `rope_theta` is \"big\", expected a positive number"),
            (json!({ "tie_word_embeddings": 1 }), "config.json: `tie_word_embeddings` is 1, expected true or false"),
            (
                json!({ "hidden_act": "gelu" }),
                "config.json: `hidden_act` is \"gelu\", expected silu, swish, gelu_pytorch_tanh, gelu_new, relu; others are not implemented",
            ),
            (
                json!({ "quantization_config": { "quant_method": "gptq" } }),
                "config.json: `quantization_config` is {\"quant_method\":\"gptq\"}, expected no pre-quantised weights: it is not implemented",
            ),
            (json!({ "rope_scaling": "yarn" }), "config.json: `rope_scaling` is \"yarn\", expected an object or null"),
            (
                json!({ "rope_scaling": { "rope_type": "proportional" } }),
                "config.json: `rope_scaling.rope_type` is \"proportional\", expected default, linear, llama3, yarn, dynamic, longrope, su; others are not implemented",
            ),
            (
                json!({ "rope_scaling": { "type": "linear" } }),
                "config.json has no `rope_scaling.factor`, expected a positive number",
            ),
            (
                json!({ "rope_scaling": llama3 }),
                "config.json: `rope_scaling.low_freq_factor` is 4, expected less than `high_freq_factor`, 4",
            ),
            (
                json!({ "rope_parameters": { "full_attention": {} } }),
                "config.json: `rope_parameters.full_attention` is {}, expected one rotary embedding for all layers: it is not implemented",
            ),
            (
                json!({ "is_causal": false }),
                "config.json: `is_causal` is false, expected true: what another value computes is not implemented",
            ),
            (
                json!({ "clip_qkv": 8.0 }),
                "config.json: `clip_qkv` is 8.0, expected null: what another value computes is not implemented",
            ),
            (
                json!({ "final_logit_softcapping": 30 }),
                "config.json: `final_logit_softcapping` is 30, expected 0: what another value computes is not implemented",
            ),
            (
                json!({ "v_head_dim": 8 }),
                "config.json: `v_head_dim` is 8, expected `head_dim`, 6: values are as wide as keys",
            ),
            (
                json!({ "rope_parameters": { "llama_4_scaling_beta": 0.1 } }),
                "config.json: `rope_parameters.llama_4_scaling_beta` is 0.1, expected 0: what another value computes is not implemented",
            ),
            (json!({ "partial_rotary_factor": 0.5 }), "config.json: `partial_rotary_factor` is 0.5, expected 1"),
            (
                json!({ "rope_freq_factors": [1.0, 2.0] }),
                "config.json: `rope_freq_factors` is [1.0,2.0], expected 3 positive numbers, one for each pair of a head",
            ),
            (
                json!({ "rope_freq_factors": [1, 2, 3], "rope_scaling": { "type": "linear", "factor": 2 } }),
                "config.json: `rope_freq_factors` is given, expected none beside the scaling of `rope_scaling`",
            ),
            (
                json!({ "layer_types": ["full_attention"] }),
                "config.json: `layer_types` is a list of 1, expected a list of 3, one for each layer",
            ),
            (
                json!({ "layer_types": [1, 2, 3] }),
                "config.json: `layer_types[0]` is 1, expected full_attention or sliding_attention",
            ),
            (
                json!({ "sliding_window": 0 }),
                "config.json: `sliding_window` is 0, expected an integer from 1 to 4294967296",
            ),
        ];
        for (changes, expected) in faults {
            let is_changed = |field: &str| changes.get(field).is_some();
            // One architecture turns a part of each head, and latent attention has sizes of its own.
            let is_taken = |model_type: &str| match model_type {
                "glm4_moe" => is_changed("partial_rotary_factor"),
                "deepseek_v2" | "deepseek_v3" | "glm4_moe_lite" => {
                    ["num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim"]
                        .iter()
                        .any(|&f| is_changed(f))
                }
                _ => false,
            };
            for (outcome, model_type) in build(&changes).into_iter().zip(crate::SUPPORTED) {
                if is_taken(model_type) {
                    continue;
                }
                assert_eq!(outcome.expect_err(expected).to_string(), expected, "{changes}");
            }
        }
    }

    /// A number is neutral however it is written, and null always is.
    #[test]
    fn a_field_that_changes_nothing_is_taken() {
        for (field, neutral) in NEUTRAL {
            let is_taken = |value: Value| build(&json!({ field: value })).iter().all(Result::is_ok);
            assert!(is_taken(Value::Null), "{field}");
            let value = match neutral {
                Neutral::Flag(flag) => json!(flag),
                Neutral::Number(number) => json!(number as u64),
                Neutral::Null => continue,
            };
            assert!(is_taken(value), "{field}");
        }
    }

    #[test]
    fn a_long_value_is_cut_in_the_message() {
        for outcome in build(&json!({ "rope_scaling": "é".repeat(1000) })) {
            let error = outcome.unwrap_err().to_string();
            assert!(error.len() < 250 && error.contains("…"), "{error}");
        }
    }

    /// Any JSON in any field gives a configuration or an error.
    #[test]
    fn no_value_of_any_field_panics() {
        let odd = [
            json!(null),
            json!(true),
            json!(0),
            json!(1),
            json!(2),
            json!(3),
            json!(-1),
            json!(0.5),
            json!(1e300),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(1e-300),
            json!(""),
            json!("silu"),
            json!([]),
            json!([1, 2, 3]),
            json!({}),
            json!({ "rope_type": "linear", "factor": 1e-300 }),
            json!({ "rope_type": "yarn", "factor": 1e300, "beta_slow": 1e-300 }),
            json!({ "rope_type": "dynamic", "factor": 1e30, "rope_theta": 1e-30 }),
            json!({ "rope_type": "longrope", "long_factor": [1, 2, 3], "short_factor": [1, 2, 3] }),
            json!({ "rope_type": null }),
        ];
        let mut config = tiny();
        for field in [
            "head_dim",
            "num_key_value_heads",
            "rope_parameters",
            "rope_scaling",
            "rope_freq_factors",
            "ctx_size",
            "layer_types",
            "sliding_window",
            "hidden_act",
        ] {
            config[field] = Value::Null;
        }
        let fields: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
        for a in &fields {
            for b in &fields {
                for (x, y) in odd.iter().flat_map(|x| odd.iter().map(move |y| (x, y))) {
                    let mut config = config.clone();
                    config[a] = x.clone();
                    config[b] = y.clone();
                    for model_type in crate::SUPPORTED {
                        config["model_type"] = json!(model_type);
                        // Tables, not tensors: a plan of a thousand layers is small.
                        if config["num_hidden_layers"].as_u64().is_none_or(|layers| layers < 10) {
                            let _ = crate::build_plan(&config, &plan::AnyShape);
                        }
                    }
                }
            }
        }
    }
}
