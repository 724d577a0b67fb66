//! What a model file declares of its architecture beside the plan: how files name it.

use serde_json::Value;

/// An architecture, by its names in Hugging Face's checkpoints and in GGUF files.
#[derive(Clone, Copy, Debug)]
pub struct Architecture {
    /// `model_type` in config.json.
    pub model_type: &'static str,
    /// The class in `architectures` of config.json.
    pub class: &'static str,
    /// What is of its GGUF files alone.
    pub gguf: GgufNames,
}

/// What llama.cpp's converter calls an architecture and its parts, as far as not all decoders share the names: those that
/// they share are the business of whoever reads the files.
#[derive(Clone, Copy, Debug)]
pub struct GgufNames {
    /// What `general.architecture` is in the model's files; files that are written have the first. Where models share a
    /// name, those of this one have the key `{architecture}.KEY` with a number above 0.
    pub architectures: &'static [(&'static str, Option<&'static str>)],
    /// Metadata: the key `{architecture}.X`, a number or a flag, is `Y` in config.json.
    pub keys: &'static [(&'static str, &'static str)],
    /// Tensors of layer N: `blk.N.X.weight` is `model.layers.N.Y.weight`, and the same for `bias`.
    pub layer_tensors: &'static [(&'static str, &'static str)],
    /// Fields of config.json that hold of these files where their keys do not say otherwise: an object, or null.
    pub implied: fn() -> Value,
    /// Whether the rows of q_proj and k_proj lie in the order of the pairs that RoPE rotates, as in files of Llama.
    pub pairs_rows: bool,
}

impl GgufNames {
    /// Nothing but the shared names.
    pub(crate) const SHARED: Self =
        Self { architectures: &[], keys: &[], layer_tensors: &[], implied: || Value::Null, pairs_rows: false };
}
