//! `quantization_config`: what it says of the weights, obeyed or refused by name.
//!
//! Only what bears on the meaning of the weights is read. How activations and the cache were to be quantised is left out:
//! they are computed with as every other model's are, which loses less. What the configuration says of a weight is held
//! against the tensors themselves in `gather`.

use std::fmt::Display;

use serde_json::{Map, Value};

use crate::{FormatError, config::ModelConfig, error::shown};

/// How weights of a checkpoint were quantised.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scheme {
    /// Integers along the features of a column, zero points and the group of each feature.
    Gptq { bits: u32, steps: Steps, zeros: StoredZeros },
    /// Four bits, eight columns a word in AutoAWQ's order.
    Awq { steps: Steps },
    /// The schemes of its `config_groups`, one of which fits each weight.
    CompressedTensors(Vec<WeightScheme>),
    /// E4M3 with scales.
    Fp8 { steps: Steps },
    /// gpt-oss: `_blocks` and `_scales`.
    Mxfp4,
    /// E2M1 with E4M3 scales of sixteen and one of the tensor.
    ModelOptNvfp4,
    /// E4M3 with a scale of the tensor.
    ModelOptFp8,
}

/// What a `config_group` of compressed-tensors says of weights.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WeightScheme {
    pub(super) numbers: Numbers,
    pub(super) steps: Steps,
    pub(super) symmetric: bool,
}

/// What codes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// Integers of so many bits.
    Int(u32),
    E4m3,
    /// E2M1 with scales that are themselves quantised to E4M3.
    Nvfp4,
    /// E2M1 with powers of two, or in the groups of 32 of that with numbers as scales.
    Mxfp4,
    /// E2M1 with numbers as scales.
    E2m1,
}

/// Which weights share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steps {
    Tensor,
    /// All of a row.
    Channel,
    /// So many features of a row.
    Group(u64),
    /// So many rows of so many features.
    Block(u64, u64),
}

/// How GPTQ stores zero points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredZeros {
    /// Less one, the first layout.
    LessOne,
    /// As they are: `gptq_v2`.
    Plain,
}

impl Scheme {
    /// Reads the object under `quantization_config`.
    pub(crate) fn read(map: &Map<String, Value>) -> Result<Self, FormatError> {
        let config = ModelConfig::new("quantization_config", map.clone());
        let method = config.str("quant_method")?;
        match method {
            Some("gptq") => gptq(&config),
            Some("awq") => awq(&config),
            Some("compressed-tensors") => compressed_tensors(&config),
            Some("fp8") => fp8(&config),
            Some("mxfp4") => Ok(Self::Mxfp4),
            Some("modelopt" | "modelopt_fp4") => modelopt(&config),
            // Old files of ModelOpt and compressed-tensors leave it out.
            None if config.get("quant_algo").is_some() || config.get("quantization").is_some() => modelopt(&config),
            None if config.get("config_groups").is_some() => compressed_tensors(&config),
            other => Err(FormatError::Quantization {
                method: other.map_or("no method".into(), shown),
                key: "quant_method".into(),
                found: other.map_or("missing".into(), shown),
                expected: "gptq, awq, compressed-tensors, fp8, mxfp4 or modelopt".into(),
            }),
        }
    }
}

fn refused(method: &str, key: &str, found: &dyn Display, expected: &str) -> FormatError {
    let (method, key, expected) = (method.into(), key.into(), expected.into());
    FormatError::Quantization { method, key, found: shown(&found.to_string()), expected }
}

/// Refuses a key whose value is none of `allowed`; one that is missing or null is fine.
fn only(config: &ModelConfig, method: &str, key: &str, allowed: &[Value], expected: &str) -> Result<(), FormatError> {
    match config.get(key) {
        Some(value) if !allowed.contains(value) => Err(refused(method, key, value, expected)),
        _ => Ok(()),
    }
}

/// Refuses a key that holds anything.
fn nothing(config: &ModelConfig, method: &str, key: &str) -> Result<(), FormatError> {
    let empty = [Value::Object(Map::new()), Value::Array(Vec::new()), Value::Bool(false)];
    only(config, method, key, &empty, "nothing")
}

/// `group_size`: -1 is a whole row.
fn group_size(config: &ModelConfig, method: &str) -> Result<Steps, FormatError> {
    match config.get("group_size").map(|value| (value, value.as_i64())) {
        None | Some((_, Some(-1))) => Ok(Steps::Channel),
        Some((_, Some(size))) if size > 0 => Ok(Steps::Group(size.unsigned_abs())),
        Some((value, _)) => Err(refused(method, "group_size", value, "a positive number, or -1 for whole rows")),
    }
}

fn gptq(config: &ModelConfig) -> Result<Scheme, FormatError> {
    const METHOD: &str = "gptq";
    let bits = config.u64("bits")?.unwrap_or(4);
    let bits = match bits {
        2 | 3 | 4 | 8 => bits as u32,
        _ => return Err(refused(METHOD, "bits", &bits, "2, 3, 4 or 8")),
    };
    // What changes the layout or the meaning.
    for key in ["dynamic", "rotation", "is_marlin_format", "adapter"] {
        nothing(config, METHOD, key)?;
    }
    only(config, METHOD, "pack_dtype", &["int32".into()], "int32")?;
    let format = config.str("checkpoint_format")?.or(config.str("format")?);
    let zeros = match format {
        None | Some("gptq") => StoredZeros::LessOne,
        Some("gptq_v2") => StoredZeros::Plain,
        Some(other) => return Err(refused(METHOD, "checkpoint_format", &other, "gptq or gptq_v2")),
    };
    Ok(Scheme::Gptq { bits, steps: group_size(config, METHOD)?, zeros })
}

fn awq(config: &ModelConfig) -> Result<Scheme, FormatError> {
    const METHOD: &str = "awq";
    let bits = if config.get("bits").is_some() { "bits" } else { "w_bit" };
    only(config, METHOD, bits, &[4.into()], "4")?;
    let version = config.str("version")?.unwrap_or("gemm");
    if !version.eq_ignore_ascii_case("gemm") {
        return Err(refused(METHOD, "version", &version, "gemm"));
    }
    Ok(Scheme::Awq { steps: group_size(config, METHOD)? })
}

fn fp8(config: &ModelConfig) -> Result<Scheme, FormatError> {
    const METHOD: &str = "fp8";
    only(config, METHOD, "fmt", &["e4m3".into(), "float8_e4m3fn".into()], "e4m3")?;
    let steps = match config.get("weight_block_size") {
        None => Steps::Tensor,
        Some(size) => block(size).ok_or_else(|| refused(METHOD, "weight_block_size", size, "two positive numbers"))?,
    };
    Ok(Scheme::Fp8 { steps })
}

fn block(size: &Value) -> Option<Steps> {
    match size.as_array()?.as_slice() {
        [rows, cols] => {
            let (rows, cols) = (rows.as_u64()?, cols.as_u64()?);
            (rows > 0 && cols > 0).then_some(Steps::Block(rows, cols))
        }
        _ => None,
    }
}

fn modelopt(config: &ModelConfig) -> Result<Scheme, FormatError> {
    const METHOD: &str = "modelopt";
    // `hf_quant_config.json` has it one level down.
    let inner = config.get("quantization").and_then(Value::as_object);
    let inner = inner.map(|inner| ModelConfig::new("quantization_config", inner.clone()));
    let config = inner.as_ref().unwrap_or(config);
    match config.str("quant_algo")? {
        Some("NVFP4") => {
            only(config, METHOD, "group_size", &[16.into()], "16")?;
            Ok(Scheme::ModelOptNvfp4)
        }
        Some("FP8") => Ok(Scheme::ModelOptFp8),
        other => Err(refused(METHOD, "quant_algo", &other.unwrap_or("missing"), "NVFP4 or FP8")),
    }
}

fn compressed_tensors(config: &ModelConfig) -> Result<Scheme, FormatError> {
    const METHOD: &str = "compressed-tensors";
    // `fp4-pack-quantized` is this program's alone: nobody has published what is of float 4 with numbers as scales.
    const FORMATS: [&str; 8] = [
        "pack-quantized",
        "int-quantized",
        "float-quantized",
        "naive-quantized",
        "nvfp4-pack-quantized",
        "mxfp4-pack-quantized",
        "fp4-pack-quantized",
        "mixed-precision",
    ];
    let formats = FORMATS.map(Value::from);
    let expected = FORMATS.join(", ");
    only(config, METHOD, "format", &formats, &expected)?;
    only(config, METHOD, "quantization_status", &["compressed".into()], "compressed")?;
    // Rotations that have to be computed beside the weights.
    nothing(config, METHOD, "transform_config")?;
    if let Some(sparsity) = config.get("sparsity_config").and_then(Value::as_object) {
        let sparsity = ModelConfig::new("sparsity_config", sparsity.clone());
        only(&sparsity, METHOD, "format", &["dense".into()], "dense")?;
    }
    let groups = config.get("config_groups").and_then(Value::as_object);
    let groups = groups.ok_or_else(|| refused(METHOD, "config_groups", &"missing", "an object of schemes"))?;
    let mut schemes = Vec::new();
    for (name, group) in groups {
        let key = format!("config_groups.{name}");
        let Some(group) = group.as_object() else {
            return Err(refused(METHOD, &key, group, "a scheme that is written out"));
        };
        let group = ModelConfig::new("quantization_config", group.clone());
        only(&group, METHOD, "format", &formats, &expected)?;
        let Some(weights) = group.get("weights") else { continue };
        let Some(weights) = weights.as_object() else {
            return Err(refused(METHOD, &format!("{key}.weights"), weights, "an object"));
        };
        let scheme = weight_scheme(&ModelConfig::new("quantization_config", weights.clone()))?;
        if !schemes.contains(&scheme) {
            schemes.push(scheme);
        }
    }
    Ok(Scheme::CompressedTensors(schemes))
}

fn weight_scheme(weights: &ModelConfig) -> Result<WeightScheme, FormatError> {
    const METHOD: &str = "compressed-tensors";
    nothing(weights, METHOD, "dynamic")?;
    let bits = weights.u64("num_bits")?.unwrap_or(8);
    let kind = weights.str("type")?.unwrap_or("int");
    let group_size = weights.get("group_size").filter(|size| size.as_i64() != Some(-1));
    let group = || {
        let size = group_size.and_then(Value::as_u64).filter(|&size| size > 0);
        let found = group_size.map_or("missing".into(), Value::to_string);
        size.ok_or_else(|| refused(METHOD, "group_size", &found, "a positive number"))
    };
    let block_structure = weights.get("block_structure");
    let strategy = weights.str("strategy")?.unwrap_or(if group_size.is_some() { "group" } else { "tensor" });
    let steps = match strategy {
        "tensor" => Steps::Tensor,
        "channel" => Steps::Channel,
        "group" | "tensor_group" => Steps::Group(group()?),
        "block" => block_structure.and_then(block).ok_or_else(|| {
            let found = block_structure.map_or("missing".into(), Value::to_string);
            refused(METHOD, "block_structure", &found, "two positive numbers")
        })?,
        other => return Err(refused(METHOD, "strategy", &other, "tensor, channel, group, tensor_group or block")),
    };
    let symmetric = weights.bool("symmetric")?.unwrap_or(true);
    let numbers = match (kind, bits, steps) {
        ("int", 4, _) => Numbers::Int(4),
        ("int", 8, _) => Numbers::Int(8),
        ("float", 8, _) => Numbers::E4m3,
        ("float", 4, Steps::Group(16)) => Numbers::Nvfp4,
        ("float", 4, Steps::Group(32)) => Numbers::Mxfp4,
        ("float", 4, Steps::Group(_)) => Numbers::E2m1,
        ("int" | "float", ..) => {
            let found = format!("{bits} bits of type {kind}, {strategy}");
            return Err(refused(METHOD, "num_bits", &found, "int 4 or 8, float 8, or float 4 in groups"));
        }
        (other, ..) => return Err(refused(METHOD, "type", &other, "int or float")),
    };
    if !symmetric && !matches!(numbers, Numbers::Int(_)) {
        return Err(refused(METHOD, "symmetric", &"false", "true where weights are floating-point numbers"));
    }
    Ok(WeightScheme { numbers, steps, symmetric })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: &Value) -> Result<Scheme, String> {
        Scheme::read(config.as_object().unwrap()).map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            format!("{error}{}", cause.unwrap_or_default())
        })
    }

    #[test]
    fn published_configurations_are_understood() {
        let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true, "sym": true,
            "damp_percent": 0.01, "true_sequential": true, "model_file_base_name": "model", "dynamic": {}});
        let zeros = StoredZeros::LessOne;
        assert_eq!(read(&gptq), Ok(Scheme::Gptq { bits: 4, steps: Steps::Group(128), zeros }));
        let awq = json!({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": true});
        assert_eq!(read(&awq), Ok(Scheme::Awq { steps: Steps::Group(64) }));
        let fp8 = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
            "activation_scheme": "dynamic"});
        assert_eq!(read(&fp8), Ok(Scheme::Fp8 { steps: Steps::Block(128, 128) }));
        let nvfp4 =
            json!({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}});
        assert_eq!(read(&nvfp4), Ok(Scheme::ModelOptNvfp4));
        let group = |weights: Value| {
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
            "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": null}}})
        };
        let int4 =
            group(json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": false,
            "dynamic": false, "actorder": null, "observer": "minmax"}));
        let scheme = WeightScheme { numbers: Numbers::Int(4), steps: Steps::Group(32), symmetric: false };
        assert_eq!(read(&int4), Ok(Scheme::CompressedTensors(vec![scheme])));
    }

    #[test]
    fn what_is_not_read_is_refused_by_name_with_what_is() {
        let weights = |weights: Value| {
            let group = json!({"group_0": {"weights": weights}});
            json!({"quant_method": "compressed-tensors", "config_groups": group})
        };
        let cases = [
            (json!({"quant_method": "bitsandbytes"}), "`quant_method` is bitsandbytes"),
            (json!({}), "`quant_method` is missing"),
            (json!({"quant_method": "gptq", "bits": 5}), "`bits` is 5, where 2, 3, 4 or 8 is read"),
            (json!({"quant_method": "gptq", "bits": 4, "group_size": 0}), "`group_size` is 0"),
            (json!({"quant_method": "gptq", "checkpoint_format": "marlin"}), "`checkpoint_format` is marlin"),
            (json!({"quant_method": "gptq", "dynamic": {"-:x": {}}}), "`dynamic` is"),
            (json!({"quant_method": "awq", "bits": 3}), "`bits` is 3, where 4"),
            (json!({"quant_method": "awq", "version": "gemv"}), "`version` is gemv, where gemm"),
            (json!({"quant_method": "fp8", "fmt": "e5m2"}), "`fmt` is \"e5m2\", where e4m3"),
            (json!({"quant_method": "fp8", "weight_block_size": [128]}), "`weight_block_size` is [128]"),
            (json!({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}), "`quant_algo` is W4A8_AWQ"),
            (json!({"quant_method": "compressed-tensors", "format": "marlin-24"}), "`format` is \"marlin-24\""),
            (json!({"quant_method": "compressed-tensors"}), "`config_groups` is missing"),
            (weights(json!({"num_bits": 6})), "`num_bits` is 6 bits of type int, tensor"),
            (weights(json!({"num_bits": 4, "strategy": "group"})), "`group_size` is missing"),
            (weights(json!({"num_bits": 4, "strategy": "token"})), "`strategy` is token"),
            (weights(json!({"num_bits": 8, "type": "float", "symmetric": false})), "`symmetric` is false"),
            (weights(json!({"num_bits": "4"})), "key `num_bits` must be a non-negative integer"),
        ];
        for (config, expected) in cases {
            let error = read(&config).unwrap_err();
            assert!(error.contains(expected), "{config}: {error}");
        }
    }
}
