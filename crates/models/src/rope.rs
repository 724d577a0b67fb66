//! The rotary embedding of `config.json`, and the context that it opens.
//!
//! Both spellings are read: `rope_theta` with `rope_scaling`, and `rope_parameters` (transformers 5). What each kind
//! computes is transformers' `modeling_rope_utils.py`, with one difference. There, `dynamic` and `longrope` change the
//! frequencies while a text grows, so that keys of one cache were turned in two ways. Here the context that was asked
//! for ([`CTX_SIZE`]) decides once, as in llama.cpp and vLLM: a text never depends on what it is followed by.

use plan::{Rope, RopeScaling};
use serde_json::{Map, Value};

use crate::ConfigError;
use crate::config::{CONTEXT_MAX, Fields, Neutral, invalid, positive_f32, show};

/// The field of a configuration that holds the context that the user asked for, in tokens. Not a field of transformers.
pub const CTX_SIZE: &str = "ctx_size";

/// Parameters that change what is computed and that none of these kinds has, with the value that changes nothing.
const NEUTRAL: [(&str, Neutral); 4] = [
    ("llama_4_scaling_beta", Neutral::Number(0.0)),
    ("attn_factor", Neutral::Number(1.0)),
    ("alpha", Neutral::Null),
    // llama.cpp's share of extrapolation, which is all of it.
    ("ext_factor", Neutral::Number(1.0)),
];

/// A parameter of YaRN and LongRoPE, which transformers does not look at in the other kinds and llama.cpp does.
const ATTENTION_FACTOR: (&str, Neutral) = ("attention_factor", Neutral::Number(1.0));

/// Where the parameters are: in transformers 5, and before.
const PARAMETERS: [&str; 2] = ["rope_parameters", "rope_scaling"];

/// What `rope_type` may be; `su` is the older name of `longrope`.
const KINDS: [&str; 7] = ["default", "linear", "llama3", "yarn", "dynamic", "longrope", "su"];

/// A rotary embedding, and the longest sequence that it is for.
pub(crate) struct Rotary {
    pub(crate) rope: Rope,
    /// `max_position_embeddings`, or more where the rotary embedding is stretched.
    pub(crate) context_len: usize,
}

impl Rotary {
    pub(crate) fn read(fields: &Fields<'_>, head_dim: usize) -> Result<Self, ConfigError> {
        let max_position_embeddings = fields.required("max_position_embeddings", 1..=CONTEXT_MAX)?;
        read(fields, [head_dim; 2], max_position_embeddings)
    }

    /// As [`Rotary::read`], of an architecture that turns the part `partial_rotary_factor` of each head.
    pub(crate) fn read_partial(fields: &Fields<'_>, head_dim: usize) -> Result<Self, ConfigError> {
        const FIELD: &str = "partial_rotary_factor";
        let max_position_embeddings = fields.required("max_position_embeddings", 1..=CONTEXT_MAX)?;
        let parameters = fields.get("rope_parameters").and_then(|parameters| parameters.get(FIELD));
        let factor = parameters.or(fields.get(FIELD));
        let dims = match factor {
            None => head_dim,
            Some(value) => {
                let dims = value.as_f64().map(|factor| (factor * head_dim as f64) as usize);
                let fits = |dims: &usize| (2..=head_dim).contains(dims) && dims.is_multiple_of(2);
                dims.filter(fits).ok_or_else(|| {
                    invalid(
                        FIELD,
                        show(value),
                        format!("a part of `head_dim`, {head_dim}, of an even number of features"),
                    )
                })?
            }
        };
        read(fields, [head_dim, dims], max_position_embeddings)
    }
}

/// What latent attention multiplies its scores by beside 1/√head_dim: the square of what `mscale_all_dim` gives, where
/// the embedding is stretched and has it (`yarn_apply_mscale` in transformers), or GGUF's `yarn_log_multiplier`, which
/// is a tenth of it.
pub(crate) fn score_factor(fields: &Fields<'_>) -> Result<f64, ConfigError> {
    let empty = Value::Object(Map::new());
    let path = PARAMETERS.into_iter().find(|path| fields.get(path).is_some_and(Value::is_object));
    let Some(path) = path else { return Ok(1.0) };
    let parameters = Fields { config: fields.get(path).unwrap_or(&empty), defaults: &empty, path };
    let kind = ["rope_type", "type"].into_iter().find_map(|field| parameters.get(field)?.as_str()).unwrap_or("default");
    if kind == "default" {
        return Ok(1.0);
    }
    let given = |fields: &Fields<'_>, field: &str| match fields.get(field).is_some_and(|x| x.as_f64() != Some(0.0)) {
        true => fields.positive(field).map(|scale| Some(f64::from(scale))),
        false => Ok(None),
    };
    let of_gguf = given(fields, "yarn_log_multiplier")?.map(|multiplier| 10.0 * multiplier);
    let Some(scale) = given(&parameters, "mscale_all_dim")?.or(of_gguf) else { return Ok(1.0) };
    Ok(yarn_attention_factor(parameters.positive("factor")?.into(), scale).powi(2))
}

/// Reads `rope_parameters` if it is there, otherwise `rope_scaling` beside `rope_theta`, for heads of `head_dim` features of
/// which the first `dims` are turned. `max_position_embeddings` is that of config.json.
fn read(
    fields: &Fields<'_>,
    [head_dim, dims]: [usize; 2],
    max_position_embeddings: usize,
) -> Result<Rotary, ConfigError> {
    let path = PARAMETERS.into_iter().find(|path| fields.get(path).is_some());
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
    for fields in [fields, &parameters].into_iter().filter(|_| dims == head_dim) {
        if let Some(found) = fields.get("partial_rotary_factor").filter(|found| found.as_f64() != Some(1.0)) {
            return Err(invalid(fields.name("partial_rotary_factor"), show(found), "1"));
        }
    }
    parameters.refuse_unless_neutral(&NEUTRAL)?;
    let theta = match parameters.get("rope_theta") {
        Some(_) => parameters.positive("rope_theta")?,
        None => fields.positive("rope_theta")?,
    };
    let type_field = if parameters.get("rope_type").is_some() { "rope_type" } else { "type" };
    let kind = parameters.one_of(type_field, &KINDS, "default")?;
    if !["yarn", "longrope", "su"].contains(&kind) {
        parameters.refuse_unless_neutral(&[ATTENTION_FACTOR])?;
    }
    let asked = fields.optional(CTX_SIZE, 0..=CONTEXT_MAX)?;
    let reader = Reader { fields, parameters: &parameters, dims, max_position_embeddings, asked };
    let plain = Rope { head_dim, dims, theta, scaling: RopeScaling::None, attention_factor: 1.0 };
    let mut rotary = match kind {
        "linear" => {
            let scaling = RopeScaling::Linear { factor: parameters.positive("factor")? };
            Rotary { rope: Rope { scaling, ..plain }, context_len: max_position_embeddings }
        }
        "llama3" => reader.llama3(plain)?,
        "yarn" => reader.yarn(plain)?,
        "dynamic" => reader.dynamic(plain)?,
        "longrope" | "su" => reader.longrope(plain)?,
        _ => Rotary { rope: plain, context_len: max_position_embeddings },
    };
    if let Some(factors) = reader.factors(fields, "rope_freq_factors")? {
        if rotary.rope.scaling != RopeScaling::None {
            let expected = format!("none beside the scaling of `{}`", parameters.path);
            return Err(invalid("rope_freq_factors", "given", expected));
        }
        rotary.rope.scaling = RopeScaling::Factors(factors);
    }
    Ok(rotary)
}

/// What the kinds are read from.
struct Reader<'a> {
    fields: &'a Fields<'a>,
    parameters: &'a Fields<'a>,
    /// Features of a head that are turned.
    dims: usize,
    max_position_embeddings: usize,
    /// The context that the user asked for.
    asked: Option<usize>,
}

impl Reader<'_> {
    /// The trained context: beside the parameters as Phi-3 has it, among them, or else all that the model has.
    fn original(&self) -> Result<usize, ConfigError> {
        const FIELD: &str = "original_max_position_embeddings";
        let beside = self.fields.optional(FIELD, 1..=CONTEXT_MAX)?;
        let among = self.parameters.optional(FIELD, 1..=CONTEXT_MAX)?;
        Ok(beside.or(among).unwrap_or(self.max_position_embeddings))
    }

    /// How far the context is stretched: `factor`, or else what the two contexts say.
    fn factor(&self, original: usize) -> Result<f32, ConfigError> {
        match self.parameters.get("factor") {
            Some(_) => self.parameters.positive("factor"),
            None => Ok((self.max_position_embeddings as f64 / original as f64) as f32),
        }
    }

    /// A positive parameter; `default` where it is not given, or 0.
    fn or(&self, field: &str, default: f32) -> Result<f32, ConfigError> {
        match self.parameters.get(field) {
            None => Ok(default),
            Some(value) if value.as_f64() == Some(0.0) => Ok(default),
            Some(_) => self.parameters.positive(field),
        }
    }

    fn llama3(&self, plain: Rope) -> Result<Rotary, ConfigError> {
        let parameters = self.parameters;
        let (low, high) = (parameters.positive("low_freq_factor")?, parameters.positive("high_freq_factor")?);
        if low >= high {
            let expected = format!("less than `high_freq_factor`, {high}");
            return Err(invalid(parameters.name("low_freq_factor"), low, expected));
        }
        let scaling = RopeScaling::Llama3 {
            factor: parameters.positive("factor")?,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: parameters.positive("original_max_position_embeddings")?,
        };
        Ok(Rotary { rope: Rope { scaling, ..plain }, context_len: self.max_position_embeddings })
    }

    fn yarn(&self, plain: Rope) -> Result<Rotary, ConfigError> {
        let parameters = self.parameters;
        if plain.theta <= 1.0 {
            return Err(invalid("rope_theta", plain.theta, "more than 1, because YaRN divides by its logarithm"));
        }
        let original = self.original()?;
        let factor = self.factor(original)?;
        let (beta_fast, beta_slow) = (self.or("beta_fast", 32.0)?, self.or("beta_slow", 1.0)?);
        let truncate = parameters.get("truncate").is_none() || parameters.flag("truncate")?;
        let grown = |scale: f32| yarn_attention_factor(factor.into(), scale.into());
        let scales = ["mscale", "mscale_all_dim"]
            .map(|field| parameters.get(field).is_some_and(|value| value.as_f64() != Some(0.0)));
        let attention_factor = match parameters.get(ATTENTION_FACTOR.0) {
            Some(_) => parameters.positive(ATTENTION_FACTOR.0)?,
            None if scales == [true, true] => {
                (grown(parameters.positive("mscale")?) / grown(parameters.positive("mscale_all_dim")?)) as f32
            }
            None => grown(1.0) as f32,
        };
        let original_max_position_embeddings = original as f32;
        let scaling = RopeScaling::Yarn { factor, original_max_position_embeddings, beta_fast, beta_slow, truncate };
        let context_len = self.max_position_embeddings.max(stretched(original, factor));
        Ok(Rotary { rope: Rope { scaling, attention_factor, ..plain }, context_len })
    }

    /// NTK-aware scaling of the base by the context that was asked for; the trained context is not changed.
    fn dynamic(&self, plain: Rope) -> Result<Rotary, ConfigError> {
        let (trained, dims) = (self.max_position_embeddings, self.dims as f64);
        let factor = self.parameters.positive("factor")?;
        let Some(context_len) = self.asked.filter(|&asked| asked > trained) else {
            return Ok(Rotary { rope: plain, context_len: trained });
        };
        let context_len = context_len.min(stretched(trained, factor).max(trained));
        if self.dims == 2 {
            return Err(invalid("head_dim", 2, "more than 2, because a dynamic base has the power dims / (dims - 2)"));
        }
        let (factor, share) = (f64::from(factor), context_len as f64 / trained as f64);
        let theta = f64::from(plain.theta) * (factor * share - (factor - 1.0)).powf(dims / (dims - 2.0));
        let theta = Some(theta as f32).filter(|theta| theta.is_finite() && *theta > 0.0).ok_or_else(|| {
            invalid(self.parameters.name("factor"), factor, "one that gives a base within the numbers of f32")
        })?;
        Ok(Rotary { rope: Rope { theta, ..plain }, context_len })
    }

    fn longrope(&self, plain: Rope) -> Result<Rotary, ConfigError> {
        let parameters = self.parameters;
        let original = self.original()?;
        let factor = self.factor(original)?;
        let list = |field: &str| {
            let expected = || format!("{} positive numbers, one for each pair of a head", self.dims / 2);
            let found = self.factors(parameters, field)?;
            found.ok_or_else(|| ConfigError::Missing { field: parameters.name(field), expected: expected() })
        };
        let (short, long) = (list("short_factor")?, list("long_factor")?);
        let attention_factor = match parameters.get(ATTENTION_FACTOR.0) {
            Some(_) => parameters.positive(ATTENTION_FACTOR.0)?,
            None if factor <= 1.0 || original == 1 => 1.0,
            None => (1.0 + f64::from(factor).ln() / (original as f64).ln()).sqrt() as f32,
        };
        let is_long = self.asked.unwrap_or(self.max_position_embeddings) > original;
        let scaling = RopeScaling::Factors(if is_long { long } else { short });
        let context_len = match is_long {
            true => self.max_position_embeddings,
            false => original.min(self.max_position_embeddings),
        };
        Ok(Rotary { rope: Rope { scaling, attention_factor, ..plain }, context_len })
    }

    /// One divisor for each frequency.
    fn factors(&self, fields: &Fields<'_>, field: &str) -> Result<Option<Vec<f32>>, ConfigError> {
        let Some(value) = fields.get(field) else { return Ok(None) };
        let pairs = self.dims / 2;
        let factors = value.as_array().map(|list| list.iter().map(positive_f32).collect::<Option<Vec<_>>>());
        match factors {
            Some(Some(factors)) if factors.len() == pairs => Ok(Some(factors)),
            _ => {
                let expected = format!("{pairs} positive numbers, one for each pair of a head");
                Err(invalid(fields.name(field), show(value), expected))
            }
        }
    }
}

/// What cosines and sines grow by under YaRN, if a model's files do not say it: the paper's √(1/t) = 0.1 · ln(factor) + 1,
/// on queries and on keys, with the logarithm times `scale` (DeepSeek's `mscale`).
pub fn yarn_attention_factor(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}

/// Tokens of a context of `original` that is stretched by `factor`.
fn stretched(original: usize, factor: f32) -> usize {
    // A cast of a float stops at the bounds of the integer.
    ((original as f64 * f64::from(factor)) as usize).clamp(1, CONTEXT_MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The rotary embedding and the context of heads of 6 features, trained for 99 tokens.
    fn rotary(config: Value) -> Result<Rotary, ConfigError> {
        let defaults = json!({ "rope_theta": 10000 });
        read(&Fields { config: &config, defaults: &defaults, path: "" }, [6, 6], 99)
    }

    fn near(found: &[f64], expected: &[f64]) -> bool {
        found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs())
    }

    #[test]
    fn both_spellings_are_read() {
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 64.0,
        };
        let parameters = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64, "rope_theta": 500000.0,
        });
        let rope = |config| rotary(config).unwrap().rope;
        let expected = Rope { head_dim: 6, dims: 6, theta: 500_000.0, scaling: llama3, attention_factor: 1.0 };
        assert_eq!(rope(json!({ "rope_parameters": parameters })), expected);
        assert_eq!(rope(json!({ "rope_scaling": parameters, "rope_theta": 500000 })), expected);
        // The key of transformers before 4.43.
        let linear = rope(json!({ "rope_scaling": { "type": "linear", "factor": 2.0 } }));
        let scaling = RopeScaling::Linear { factor: 2.0 };
        assert_eq!(linear, Rope { head_dim: 6, dims: 6, theta: 10000.0, scaling, attention_factor: 1.0 });
        let factors = rope(json!({ "rope_freq_factors": [1.0, 2.0, 8.5] }));
        assert_eq!(factors.scaling, RopeScaling::Factors(vec![1.0, 2.0, 8.5]));
    }

    /// The parameters are transformers': the numbers here were computed by hand from the published formulas, and a
    /// golden holds a whole model to transformers.
    #[test]
    fn yarn_has_the_defaults_of_transformers() {
        let read = |scaling| rotary(json!({ "rope_scaling": scaling })).unwrap();
        let plain = json!({ "rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64 });
        let found = read(plain.clone());
        assert_eq!(found.context_len, 256);
        assert_eq!(
            found.rope.scaling,
            RopeScaling::Yarn {
                factor: 4.0,
                original_max_position_embeddings: 64.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                truncate: true,
            }
        );
        assert!((f64::from(found.rope.attention_factor) - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-6);
        let with = |field: &str, value: Value| {
            let mut scaling = plain.clone();
            scaling[field] = value;
            read(scaling)
        };
        assert_eq!(with("attention_factor", json!(1.5)).rope.attention_factor, 1.5);
        assert_eq!(with("beta_fast", json!(0)).rope, found.rope);
        assert_ne!(with("beta_fast", json!(16)).rope, found.rope);
        // One of the two says nothing; both make a ratio.
        assert_eq!(with("mscale", json!(0.7)).rope, found.rope);
        let mut both = plain.clone();
        (both["mscale"], both["mscale_all_dim"]) = (json!(1.0), json!(0.5));
        let expected = (0.1 * 4f64.ln() + 1.0) / (0.05 * 4f64.ln() + 1.0);
        assert!((f64::from(read(both).rope.attention_factor) - expected).abs() < 1e-6);
        // Without a factor the two contexts say it, and a context that is larger already stays.
        let scaling = json!({ "rope_type": "yarn", "original_max_position_embeddings": 33 });
        let found = read(scaling);
        assert!(matches!(found.rope.scaling, RopeScaling::Yarn { factor: 3.0, .. }), "{:?}", found.rope);
        assert_eq!(found.context_len, 99);
    }

    #[test]
    fn dynamic_is_plain_within_the_trained_context_and_grows_its_base_beyond() {
        let read = |asked: Option<usize>| {
            let mut config = json!({ "rope_scaling": { "type": "dynamic", "factor": 4.0 } });
            if let Some(asked) = asked {
                config[CTX_SIZE] = asked.into();
            }
            rotary(config).unwrap()
        };
        for asked in [None, Some(7), Some(99)] {
            let found = read(asked);
            assert_eq!((found.rope.theta, found.context_len), (10000.0, 99), "{asked:?}");
        }
        let found = read(Some(198));
        // 4 · 2 - 3, to the power of 6 / 4.
        assert_eq!((found.rope.theta, found.context_len), ((10000.0 * 5f64.powf(1.5)) as f32, 198));
        // No further than the factor says.
        assert_eq!(read(Some(100_000)).context_len, 396);
    }

    #[test]
    fn longrope_chooses_by_the_context_that_was_asked_for() {
        let scaling = json!({
            "type": "longrope", "short_factor": [1, 1, 2], "long_factor": [1, 4, 8], "original_max_position_embeddings": 33,
        });
        let read = |asked: Option<usize>| {
            let mut config = json!({ "rope_scaling": scaling });
            if let Some(asked) = asked {
                config[CTX_SIZE] = asked.into();
            }
            rotary(config).unwrap()
        };
        let (short, long) = (read(Some(33)), read(Some(34)));
        assert_eq!((short.context_len, long.context_len, read(None).context_len), (33, 99, 99));
        let plain = Rope { head_dim: 6, dims: 6, theta: 10000.0, scaling: RopeScaling::None, attention_factor: 1.0 };
        let frequencies = plain.frequencies();
        assert!(near(&short.rope.frequencies(), &[frequencies[0], frequencies[1], frequencies[2] / 2.0]));
        assert!(near(&long.rope.frequencies(), &[frequencies[0], frequencies[1] / 4.0, frequencies[2] / 8.0]));
        assert_eq!(read(None).rope, long.rope);
        let expected = (1.0 + 3f64.ln() / 33f64.ln()).sqrt();
        assert!((f64::from(long.rope.attention_factor) - expected).abs() < 1e-6);
        assert_eq!(short.rope.attention_factor, long.rope.attention_factor);
    }

    #[test]
    fn each_fault_is_named() {
        for (scaling, expected) in [
            (
                json!({ "type": "longrope", "short_factor": [1, 1, 2] }),
                "config.json has no `rope_scaling.long_factor`, expected 3 positive numbers, one for each pair of a head",
            ),
            (
                json!({ "type": "su", "short_factor": [1, 0, 2], "long_factor": [1, 1, 1] }),
                "config.json: `rope_scaling.short_factor` is [1,0,2], expected 3 positive numbers, one for each pair of a \
                 head",
            ),
            (json!({ "type": "dynamic" }), "config.json has no `rope_scaling.factor`, expected a positive number"),
            (
                json!({ "type": "dynamic", "factor": 2, "alpha": 1000 }),
                "config.json: `rope_scaling.alpha` is 1000, expected null: what another value computes is not implemented",
            ),
            (
                json!({ "type": "linear", "factor": 2, "attention_factor": 1.2 }),
                "config.json: `rope_scaling.attention_factor` is 1.2, expected 1: what another value computes is not \
                 implemented",
            ),
            (
                json!({ "type": "yarn", "factor": 2, "rope_theta": 1 }),
                "config.json: `rope_theta` is 1, expected more than 1, because YaRN divides by its logarithm",
            ),
            (
                json!({ "type": "yarn", "factor": 2, "truncate": 1 }),
                "config.json: `rope_scaling.truncate` is 1, expected true or false",
            ),
        ] {
            let error = rotary(json!({ "rope_scaling": scaling })).err().expect(expected).to_string();
            assert_eq!(error, expected, "{scaling}");
        }
    }
}
