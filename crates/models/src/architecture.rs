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
    /// name, those of this one have the key `{architecture}.KEY` with a number above 0, or with N where it is `KEY=N`.
    pub architectures: &'static [(&'static str, Option<&'static str>)],
    /// Metadata: the key `{architecture}.X`, a number or a flag, is `Y` in config.json.
    pub keys: &'static [(&'static str, &'static str)],
    /// Tensors of layer N: `blk.N.X.weight` is `model.layers.N.Y.weight`, and the same for `bias`. An X that ends in
    /// `.weight` or `.bias` is all of it, and Y too: `("attn_sinks.weight", "self_attn.sinks")`.
    pub layer_tensors: &'static [(&'static str, &'static str)],
    /// Experts of layer N, which GGUF files have in one tensor: expert E of `blk.N.X.weight` is
    /// `model.layers.N.Y.weight` with E for the `{}` in Y, and the same for `bias`. The tensors X are `ffn_gate_exps`,
    /// `ffn_up_exps` and `ffn_down_exps`; and those of the heads of latent attention, `attn_k_b` and `attn_v_b`, which
    /// files may have in one tensor, too: `attn_kv_b` of `layer_tensors`, `kv_b_proj` in checkpoints.
    pub expert_tensors: &'static [(&'static str, &'static str)],
    /// Whether safetensors that have the experts of a layer in one tensor have them as gpt-oss: outputs of gate and up
    /// alternate, and what is not quantised is transposed. Others have the rows of gate, then those of up.
    pub alternates_experts: bool,
    /// Fields of config.json that are true where layer 0 of these files has the tensor, else false: `blk.0.X`, and the field.
    pub tensor_flags: &'static [(&'static str, &'static str)],
    /// Fields of config.json that hold of these files where their keys do not say otherwise: an object, or null. An object
    /// in it adds its fields to the one that the file has; where it has none, it adds nothing.
    pub implied: fn() -> Value,
    /// Whether the rows of q_proj and k_proj lie in the order of the pairs that RoPE rotates, as in files of Llama.
    pub pairs_rows: bool,
}

/// What most mixtures call the matrices of their experts: see [`GgufNames::expert_tensors`].
pub(crate) const MLP_EXPERTS: &[(&str, &str)] = &[
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
];

impl GgufNames {
    /// Nothing but the shared names.
    pub(crate) const SHARED: Self = Self {
        architectures: &[],
        keys: &[],
        layer_tensors: &[],
        expert_tensors: &[],
        alternates_experts: false,
        tensor_flags: &[],
        implied: || Value::Null,
        pairs_rows: false,
    };
}
