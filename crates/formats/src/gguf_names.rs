//! From GGUF's names to those of Hugging Face checkpoints: tensors, and metadata to `config.json` keys.
//!
//! Here are the names that all decoders share. What an architecture has of its own, and which model a file is of, is
//! given by the caller as a list of [`Architecture`]: this crate knows no models.
//!
//! Sources   llama.cpp's `gguf-py/gguf/constants.py` and `tensor_mapping.py` for GGUF's names; `config.json` of the
//!           published checkpoints for the others.
//! Rows      llama.cpp's converter stores the rows of `q_proj` and `k_proj` of the `llama` architecture, and of those
//!           whose converter is derived from it, in another order (pairs that RoPE rotates lie beside each other);
//!           [`Architecture::pairs_rows`] says which, and the checkpoint reader undoes it. Others keep the checkpoint's
//!           order.
//! Experts   files have all experts of a layer in one tensor; in a checkpoint each has a name of its own. `experts` says
//!           how they lie, [`Architecture::expert_tensors`] what they are called.

use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};
use tensor::Tensor;

use crate::{
    Completeness, FormatError,
    error::shown,
    experts::{ExpertNames, Take},
    gguf::{GgufTensor, Metadata, Value, vocabulary::GgufVocabulary},
    gguf_parts::Parts,
};

/// Tensors outside the layers.
const MODEL_TENSORS: [(&str, &str); 3] = [
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// Tensors of layer N: `blk.N.X.weight` is `model.layers.N.Y.weight`, and the same for `bias`.
const LAYER_TENSORS: [(&str, &str); 10] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
];

/// Tensors of a layer that are vectors in GGUF files, and matrices of one row in checkpoints.
const ROWS: [&str; 1] = ["ffn_gate_inp_shexp"];

/// The ends of the names of the stacks of experts in GGUF files.
const EXPERTS: &str = "_exps";
/// The stacks of the experts' three matrices, and the one of gate and up together that newer files may have.
const GATE_EXPERTS: &str = "ffn_gate_exps";
const UP_EXPERTS: &str = "ffn_up_exps";
const DOWN_EXPERTS: &str = "ffn_down_exps";
const GATE_UP_EXPERTS: &str = "ffn_gate_up_exps";

/// The heads of latent attention, which files have in one tensor each way (`attn_k_b`, `attn_v_b`: stacks, as of
/// experts), or both ways in one, as checkpoints.
const KEY_HEADS: &str = "attn_k_b";
const VALUE_HEADS: &str = "attn_v_b";
const HEADS: &str = "attn_kv_b";

/// Experts of a layer, in `{architecture}.X`.
const EXPERT_COUNT: &str = "expert_count";
/// Layers beyond those of the model that predict further tokens; `block_count` counts them.
const NEXTN_LAYERS: (&str, &str) = ("nextn_predict_layers", "num_nextn_predict_layers");
/// How the scores of experts are made of the router's, `{architecture}.X` and `Y`.
const GATING: (&str, &str) = ("expert_gating_func", "scoring_func");
const GATINGS: [&str; 4] = ["softmax", "sigmoid", "softmax_weight", "sqrtsoftplus"];

/// What each RoPE frequency is divided by (Llama 3): part of the configuration here, not a weight.
pub const ROPE_FREQS: &str = "rope_freqs.weight";
/// The same of LongRoPE, for contexts up to the trained one.
pub const ROPE_FACTORS_SHORT: &str = "rope_factors_short.weight";
/// The same of LongRoPE, for contexts beyond the trained one.
pub const ROPE_FACTORS_LONG: &str = "rope_factors_long.weight";

/// Keys that are copied, `{architecture}.X` to `Y`, when they are there.
const COPIED_INTEGERS: [(&str, &str); 7] = [
    ("block_count", "num_hidden_layers"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("context_length", "max_position_embeddings"),
    ("attention.key_length", "head_dim"),
    ("attention.value_length", "v_head_dim"),
    ("attention.sliding_window", "sliding_window"),
];

/// Floats that are copied in the same way.
const COPIED_FLOATS: [(&str, &str); 2] =
    [("attention.layer_norm_rms_epsilon", "rms_norm_eps"), ("rope.freq_base", "rope_theta")];

/// Floats that change what the model computes, under the names that `config.json` has for them; 0 means none, as in
/// llama.cpp. The crate `models` refuses what it does not compute.
const FACTORS: [(&str, &str); 8] = [
    ("attention.clamp_kqv", "clip_qkv"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("attention.scale", "attention_multiplier"),
    ("logit_scale", "logit_scale"),
    ("expert_weights_scale", "routed_scaling_factor"),
];

/// Flags of the same kind.
const FLAGS: [(&str, &str); 2] =
    [("attention.causal", "is_causal"), ("use_parallel_residual", "use_parallel_residual")];

/// Features of a head that are turned.
const ROPE_DIMS: &str = "rope.dimension_count";
/// What scores grow by with YaRN's logarithm. Of latent attention it is a factor of its own, and cosines are as they
/// are.
const LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";

/// What `rope.freq_base` is when it is not there.
const ROPE_THETA_DEFAULT: f64 = 10_000.0;

/// An architecture: what its GGUF files say it is, and what is called in its files as in no others.
#[derive(Clone, Copy, Debug)]
pub struct Architecture {
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// The class in `architectures` of `config.json`.
    pub class: &'static str,
    /// What `general.architecture` is in its files; files that are written have the first. Where models share a name,
    /// those of this one have the key `{architecture}.KEY` with a number above 0, or with N where it is `KEY=N`.
    pub names: &'static [(&'static str, Option<&'static str>)],
    /// Metadata: numbers and flags that are copied, `{architecture}.X` to `Y`.
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
    /// Fields of `config.json` that are true where layer 0 has the tensor, else false: `blk.0.X` and the field.
    pub tensor_flags: &'static [(&'static str, &'static str)],
    /// Fields of `config.json` that hold of these files where they do not say otherwise. An object adds its fields to the
    /// one that the file has; where it has none, it adds nothing.
    pub implied: fn() -> Json,
    /// Whether the rows of q and k lie in the order of RoPE's pairs.
    pub pairs_rows: bool,
}

impl Architecture {
    /// Nothing but the names that all decoders share.
    pub const SHARED: Self = Self {
        model_type: "",
        class: "",
        names: &[],
        keys: &[],
        layer_tensors: &[],
        expert_tensors: &[],
        alternates_experts: false,
        tensor_flags: &[],
        implied: || Json::Null,
        pairs_rows: false,
    };
}

/// The names of one model's tensors and keys: those of its own architecture, or else the common ones, or else those of
/// the other architectures, so that a tensor that the model does not have is reported by the name that is published.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    own: Option<&'static Architecture>,
    all: &'static [Architecture],
}

impl Names {
    /// Those of the model with this `model_type`, which need not be one of `all`.
    pub fn of_model(model_type: &str, all: &'static [Architecture]) -> Self {
        Self { own: all.iter().find(|architecture| architecture.model_type == model_type), all }
    }

    /// Those of the model that `config`, a `config.json`, says it is of: by its `model_type`, or else by its class.
    pub(crate) fn of_config(config: &Json, all: &'static [Architecture]) -> Self {
        let model_type = config.get("model_type").and_then(Json::as_str);
        let class = config.pointer("/architectures/0").and_then(Json::as_str);
        let is_own = |architecture: &&Architecture| match model_type {
            Some(model_type) => architecture.model_type == model_type,
            None => class == Some(architecture.class),
        };
        Self { own: all.iter().find(is_own), all }
    }

    /// Those of a file. An architecture that shares its name is recognised by its key, the first in `all` that is.
    pub fn of_file(metadata: &Metadata, all: &'static [Architecture]) -> Result<Self, FormatError> {
        let found = architecture(metadata)?;
        let mut own = None;
        for candidate in all {
            for (_, key) in candidate.names.iter().filter(|(name, _)| *name == found) {
                match key {
                    None => own = own.or(Some(candidate)),
                    Some(key) => {
                        let (key, wanted) = key.split_once('=').map_or((*key, None), |(key, n)| (key, Some(n)));
                        let value = metadata.u64(&format!("{found}.{key}"))?;
                        if value.is_some_and(|value| wanted.map_or(value > 0, |wanted| wanted == value.to_string())) {
                            return Ok(Self { own: Some(candidate), all });
                        }
                    }
                }
            }
        }
        Ok(Self { own, all })
    }

    /// What `general.architecture` is in files that are written; `None` for a model that is not in the list.
    pub fn architecture(&self) -> Option<&'static str> {
        self.own?.names.first().map(|(name, _)| *name)
    }

    /// Whether the model's own files have the key `{architecture}.KEY`, beside those that all decoders share.
    pub fn has_key(&self, key: &str) -> bool {
        self.own.is_some_and(|own| own.keys.iter().any(|(known, _)| *known == key))
    }

    /// The checkpoint's name of a GGUF tensor; a name that nobody knows stays as it is, so that it is reported by
    /// the name the user can find in the file.
    pub fn checkpoint_name(&self, gguf_name: &str) -> String {
        if let Some((_, name)) = MODEL_TENSORS.iter().find(|(gguf, _)| *gguf == gguf_name) {
            return (*name).into();
        }
        self.checkpoint_name_in_layer(gguf_name).unwrap_or_else(|| gguf_name.into())
    }

    fn checkpoint_name_in_layer(&self, gguf_name: &str) -> Option<String> {
        let (layer, rest) = gguf_name.strip_prefix("blk.")?.split_once('.')?;
        let layer = plain_number(layer)?;
        if let Some((_, name)) = self.layer_tensors().find(|(gguf, _)| *gguf == rest) {
            return Some(format!("model.layers.{layer}.{name}"));
        }
        let (tensor, kind) = rest.rsplit_once('.').filter(|(_, kind)| ["weight", "bias"].contains(kind))?;
        // `ffn_gate.5`, as files had it when each expert was a tensor.
        if let Some((tensor, expert)) = tensor.rsplit_once('.') {
            let (before, after) = self.expert_tensor(&format!("{tensor}{EXPERTS}"))?;
            return Some(format!("model.layers.{layer}.{before}{}{after}.{kind}", plain_number(expert)?));
        }
        let (_, name) = self.layer_tensors().find(|(gguf, _)| *gguf == tensor)?;
        Some(format!("model.layers.{layer}.{name}.{kind}"))
    }

    /// The GGUF name of a checkpoint's tensor: the inverse of [`Names::checkpoint_name`]; `None` for one that GGUF has
    /// no name for, and for experts, which are a part of a tensor: [`Names::gguf_expert`].
    pub fn gguf_name(&self, checkpoint_name: &str) -> Option<String> {
        if let Some((name, _)) = MODEL_TENSORS.iter().find(|(_, name)| *name == checkpoint_name) {
            return Some((*name).into());
        }
        let (layer, rest) = checkpoint_name.strip_prefix(LAYERS)?.split_once('.')?;
        let whole = self.layer_tensors().find(|(gguf, name)| gguf.contains('.') && *name == rest);
        let gguf_name = match whole {
            Some((name, _)) => format!("blk.{layer}.{name}"),
            None => {
                let (tensor, kind) = rest.rsplit_once('.')?;
                let (name, _) = self.layer_tensors().find(|(_, name)| *name == tensor)?;
                format!("blk.{layer}.{name}.{kind}")
            }
        };
        Some(gguf_name).filter(|name| self.checkpoint_name(name) == checkpoint_name)
    }

    /// The GGUF tensor that an expert's weight or bias is a part of, and which of its experts it is; `None` for what is
    /// no expert's. The tensor has the experts in order: (experts, out, in) of weights, (experts, out) of biases.
    pub fn gguf_expert(&self, checkpoint_name: &str) -> Option<(String, u32)> {
        let (layer, rest) = checkpoint_name.strip_prefix(LAYERS)?.split_once('.')?;
        let (rest, kind) = rest.rsplit_once('.').filter(|(_, kind)| ["weight", "bias"].contains(kind))?;
        let (layer, own) = (plain_number(layer)?, self.own?);
        own.expert_tensors.iter().find_map(|(gguf, name)| {
            let (before, after) = name.split_once("{}")?;
            let expert = plain_number(rest.strip_prefix(before)?.strip_suffix(after)?)?;
            Some((format!("blk.{layer}.{gguf}.{kind}"), expert))
        })
    }

    /// The GGUF tensor that a checkpoint's tensor is, or that it is an expert of.
    pub fn gguf_tensor(&self, checkpoint_name: &str) -> Option<String> {
        self.gguf_name(checkpoint_name).or_else(|| Some(self.gguf_expert(checkpoint_name)?.0))
    }

    /// The GGUF tensors that a checkpoint's tensors of these names make, in the order of their first parts: the name, and
    /// which of `checkpoint_names` are its parts. Of experts these are all of a layer in order, of everything else one.
    ///
    /// # Errors
    /// A name that GGUF has no tensor for; an expert that is missing, or twice there.
    pub fn gguf_tensors(&self, checkpoint_names: &[&str]) -> Result<Vec<(String, Vec<usize>)>, FormatError> {
        let mut tensors: Vec<(String, Vec<(u32, usize)>)> = Vec::new();
        let mut stacks = HashMap::new();
        for (index, &name) in checkpoint_names.iter().enumerate() {
            if let Some(gguf) = self.gguf_name(name) {
                tensors.push((gguf, vec![(0, index)]));
                continue;
            }
            let (gguf, expert) =
                self.gguf_expert(name).ok_or_else(|| FormatError::NoGgufName { tensor: shown(name) })?;
            let at = *stacks.entry(gguf.clone()).or_insert(tensors.len());
            if at == tensors.len() {
                tensors.push((gguf, Vec::new()));
            }
            tensors[at].1.push((expert, index));
        }
        let in_order = |(gguf, mut parts): (String, Vec<(u32, usize)>)| {
            parts.sort_unstable();
            if let Some((expected, (found, index))) = (0u32..).zip(&parts).find(|(at, (expert, _))| at != expert) {
                let missing = self.checkpoint_expert(&gguf, expected).filter(|_| *found > expected);
                return Err(match missing {
                    Some(tensor) => FormatError::MissingTensor { tensor, found: checkpoint_names.len() },
                    None => FormatError::DuplicateTensor { tensor: shown(checkpoint_names[*index]) },
                });
            }
            Ok((gguf, parts.into_iter().map(|(_, index)| index).collect()))
        };
        tensors.into_iter().map(in_order).collect()
    }

    /// The checkpoint's name of an expert in a GGUF tensor: the inverse of [`Names::gguf_expert`]; `None` for a tensor that
    /// is not one of experts, or in which an expert has no tensor of its own.
    pub fn checkpoint_expert(&self, gguf_name: &str, expert: u32) -> Option<String> {
        match self.stacked(gguf_name).as_slice() {
            [names] => Some(names.of(expert.into())),
            _ => None,
        }
    }

    /// What the experts in a GGUF tensor are called; empty for a tensor that is not one of experts.
    pub(crate) fn stacked(&self, gguf_name: &str) -> Vec<ExpertNames> {
        let parsed = || {
            let (layer, rest) = gguf_name.strip_prefix("blk.")?.split_once('.')?;
            let (tensor, kind) = rest.rsplit_once('.').filter(|(_, kind)| ["weight", "bias"].contains(kind))?;
            Some((plain_number(layer)?, tensor, kind))
        };
        let Some((layer, tensor, kind)) = parsed() else { return Vec::new() };
        let parts = match tensor {
            GATE_UP_EXPERTS => &[(GATE_EXPERTS, Take::FirstHalf), (UP_EXPERTS, Take::SecondHalf)][..],
            _ => &[(tensor, Take::All)][..],
        };
        self.expert_names(layer, parts, kind)
    }

    /// What the experts in a tensor of safetensors are called; empty for a tensor that is not one of experts. `name` is the
    /// checkpoint's, of a weight that was quantised the one that it would have without.
    pub(crate) fn fused(&self, name: &str) -> Vec<ExpertNames> {
        let parsed = || {
            let (layer, rest) = name.strip_prefix(LAYERS)?.split_once('.')?;
            let (before, _) = self.expert_tensor(GATE_EXPERTS)?;
            let tensor = rest.strip_prefix(before)?;
            let (tensor, kind) = match tensor.strip_suffix("_bias") {
                Some(tensor) => (tensor, "bias"),
                None => (tensor, "weight"),
            };
            Some((plain_number(layer)?, tensor, kind))
        };
        let Some((layer, tensor, kind)) = parsed() else { return Vec::new() };
        let (gate, up) =
            if self.alternates_experts() { (Take::Even, Take::Odd) } else { (Take::FirstHalf, Take::SecondHalf) };
        let parts = match tensor {
            "gate_up_proj" => &[(GATE_EXPERTS, gate), (UP_EXPERTS, up)][..],
            "down_proj" => &[(DOWN_EXPERTS, Take::All)][..],
            _ => &[],
        };
        self.expert_names(layer, parts, kind)
    }

    /// What the heads in a checkpoint's tensor are called: their keys' halves, and their values'. `None` for a tensor
    /// that is not both halves of all heads of latent attention.
    pub(crate) fn split_heads(&self, name: &str) -> Option<[ExpertNames; 2]> {
        let (layer, rest) = name.strip_prefix(LAYERS)?.split_once('.')?;
        let (_, whole) = self.own?.layer_tensors.iter().find(|(gguf, _)| *gguf == HEADS)?;
        if rest.strip_suffix(".weight")? != *whole {
            return None;
        }
        let parts = [(KEY_HEADS, Take::All), (VALUE_HEADS, Take::All)];
        self.expert_names(plain_number(layer)?, &parts, "weight").try_into().ok()
    }

    /// The GGUF tensors that have the halves of the same heads as this one has together, if it is one that does.
    pub(crate) fn halves_of(&self, gguf_name: &str) -> Option<[String; 2]> {
        let (layer, rest) = gguf_name.strip_prefix("blk.")?.split_once('.')?;
        let is_whole = rest.strip_suffix(".weight") == Some(HEADS) && self.expert_tensor(KEY_HEADS).is_some();
        is_whole.then(|| [KEY_HEADS, VALUE_HEADS].map(|half| format!("blk.{layer}.{half}.weight")))
    }

    /// Names of the experts of a layer, for each of these GGUF tensors that the model has.
    fn expert_names(&self, layer: u32, parts: &[(&str, Take)], kind: &str) -> Vec<ExpertNames> {
        let names = |&(gguf, take): &(&str, Take)| {
            let (before, after) = self.expert_tensor(gguf)?;
            Some(ExpertNames {
                before: format!("{LAYERS}{layer}.{before}"),
                after: format!("{after}.{kind}"),
                take,
                is_bias: kind == "bias",
                are_heads: [KEY_HEADS, VALUE_HEADS].contains(&gguf),
            })
        };
        let found: Option<Vec<_>> = parts.iter().map(names).collect();
        found.unwrap_or_default()
    }

    /// Before and after the number of an expert in its name.
    fn expert_tensor(&self, gguf: &str) -> Option<(&'static str, &'static str)> {
        self.own?.expert_tensors.iter().find(|(known, _)| *known == gguf)?.1.split_once("{}")
    }

    /// As [`Architecture::alternates_experts`].
    pub(crate) fn alternates_experts(&self) -> bool {
        self.own.is_some_and(|own| own.alternates_experts)
    }

    /// How many experts a layer has, by a `config.json`.
    pub(crate) fn experts(&self, config: &Json) -> Option<u64> {
        let (_, field) = self.own?.keys.iter().find(|(key, _)| *key == EXPERT_COUNT)?;
        config.get(field)?.as_u64()
    }

    /// The shape that a tensor of a checkpoint, of this shape, has in a GGUF file: another where it is a matrix of one row,
    /// and a vector there.
    pub fn shape_in_file(&self, gguf_name: &str, shape: &[u64]) -> Vec<u64> {
        match shape {
            [1, len] if is_row(gguf_name) => vec![*len],
            _ => shape.to_vec(),
        }
    }

    /// How many heads the rows of this tensor were reordered by, or `None` when its rows are as in the checkpoint.
    /// `config` is the checkpoint's `config.json`.
    pub fn reordered_heads(&self, gguf_name: &str, config: &Map<String, Json>) -> Option<usize> {
        if !self.own?.pairs_rows {
            return None;
        }
        let key = match gguf_name.strip_prefix("blk.")?.split_once('.')?.1.split_once('.')?.0 {
            "attn_q" => "num_attention_heads",
            "attn_k" => "num_key_value_heads",
            _ => return None,
        };
        config.get(key)?.as_u64()?.try_into().ok()
    }

    fn layer_tensors(&self) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        let own = self.own.map_or(&[][..], |own| own.layer_tensors);
        own.iter().chain(&LAYER_TENSORS).chain(self.all.iter().flat_map(|other| other.layer_tensors))
    }

    /// The keys that are not common to all.
    fn keys(&self) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        let own = self.own.map_or(&[][..], |own| own.keys);
        let is_own = |key: &str| own.iter().any(|(known, _)| *known == key);
        let others = self.all.iter().flat_map(|other| other.keys).filter(move |(key, _)| !is_own(key));
        own.iter().chain(others)
    }
}

/// What the names of all layers' tensors start with in checkpoints.
const LAYERS: &str = "model.layers.";

/// A number in its plain decimal form, so that no two names of a file become one.
fn plain_number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

/// Whether a tensor is a vector in GGUF files and a matrix of one row in checkpoints.
pub(crate) fn is_row(gguf_name: &str) -> bool {
    let in_layer = || gguf_name.strip_prefix("blk.")?.split_once('.')?.1.strip_suffix(".weight");
    in_layer().is_some_and(|tensor| ROWS.contains(&tensor))
}

/// Whether a tensor, by its name in either kind of file, is in a layer that predicts further tokens: it comes after those
/// of the model, which do without. `config` is the checkpoint's `config.json`.
pub(crate) fn predicts_further(name: &str, config: &Json) -> bool {
    let number = |field: &str| config.get(field).and_then(Json::as_u64);
    let layer = || ["blk.", LAYERS].into_iter().find_map(|start| name.strip_prefix(start))?.split('.').next();
    let (Some(more), Some(layers)) = (number(NEXTN_LAYERS.1), number("num_hidden_layers")) else { return false };
    let layer = layer().and_then(plain_number).map(u64::from);
    layer.is_some_and(|layer| (layers..layers.saturating_add(more)).contains(&layer))
}

/// For each row of the checkpoint, the row of the GGUF tensor that holds it. Within a head of `2h` rows the checkpoint
/// has the first halves of all RoPE pairs, then the second halves; the file has pair after pair.
pub(crate) fn checkpoint_row_order(rows: usize, heads: usize) -> Option<impl Iterator<Item = usize>> {
    let head_dim = rows.checked_div(heads)?;
    let divides = head_dim.checked_mul(heads) == Some(rows) && head_dim.is_multiple_of(2);
    divides.then(|| {
        (0..heads).flat_map(move |head| {
            (0..2).flat_map(move |half| (0..head_dim / 2).map(move |pair| head * head_dim + 2 * pair + half))
        })
    })
}

/// The `config.json` that a checkpoint of this file would have. `rope_freq_factors` holds [`ROPE_FREQS`], one for each
/// pair of a head: the frequency of pair i is divided by factor i.
///
/// Without the data section there are no factors, and the configuration is complete but for them.
pub(crate) fn config(
    gguf: &Parts,
    names: Names,
    vocabulary: Option<&GgufVocabulary>,
    completeness: Completeness,
) -> Result<Map<String, Json>, FormatError> {
    let metadata = gguf.metadata();
    let architecture = architecture(metadata)?;
    let key = |name: &str| format!("{architecture}.{name}");
    let mut config = Map::new();
    for (gguf_key, name) in COPIED_INTEGERS {
        if let Some(value) = metadata.u64(&key(gguf_key))? {
            config.insert(name.into(), value.into());
        }
    }
    for (gguf_key, name) in names.keys() {
        insert(&mut config, name, number_or_flag(metadata, &key(gguf_key))?);
    }
    for (gguf_key, name) in COPIED_FLOATS {
        if let Some(value) = metadata.f64(&key(gguf_key))? {
            config.insert(name.into(), value.into());
        }
    }
    for (gguf_key, name) in FACTORS {
        if let Some(value) = metadata.f64(&key(gguf_key))?.filter(|&value| value != 0.0) {
            config.insert(name.into(), value.into());
        }
    }
    for (gguf_key, name) in FLAGS {
        insert(&mut config, name, metadata.bool(&key(gguf_key))?);
    }
    config.entry("rope_theta").or_insert(ROPE_THETA_DEFAULT.into());
    if let Some(further) = metadata.u64(&key(NEXTN_LAYERS.0))?.filter(|&further| further > 0) {
        let blocks = metadata.u64(&key("block_count"))?;
        let layers = blocks.and_then(|blocks| blocks.checked_sub(further)).filter(|&layers| layers > 0);
        let layers = layers.ok_or_else(|| FormatError::WrongValue {
            key: key(NEXTN_LAYERS.0),
            expected: "less than `block_count`, which counts these layers too".into(),
            found: further.to_string(),
        })?;
        config.insert("num_hidden_layers".into(), layers.into());
        config.insert(NEXTN_LAYERS.1.into(), further.into());
    }
    if let Some(gating) = metadata.u64(&key(GATING.0))?.filter(|&gating| gating > 0) {
        let known = usize::try_from(gating - 1).ok().and_then(|index| GATINGS.get(index));
        config.insert(GATING.1.into(), known.map_or_else(|| format!("type {gating}"), |&name| name.into()).into());
    }
    let heads = per_layer(metadata, &key("attention.head_count"))?;
    let kv_heads = per_layer(metadata, &key("attention.head_count_kv"))?.or(heads);
    let head_dim = metadata.u64(&key("attention.key_length"))?;
    let head_dim = head_dim.or_else(|| metadata.u64(&key("embedding_length")).ok()??.checked_div(heads?));
    insert(&mut config, "num_attention_heads", heads);
    insert(&mut config, "num_key_value_heads", kv_heads);
    insert(&mut config, "head_dim", head_dim);
    // Latent attention turns a part of its own, whose width is a field.
    if let (Some(rope_dims), Some(head_dim)) = (metadata.u64(&key(ROPE_DIMS))?, head_dim)
        && rope_dims != head_dim
        && !names.has_key(ROPE_DIMS)
    {
        config.insert("partial_rotary_factor".into(), json!(rope_dims as f64 / head_dim as f64));
    }
    let embedding_rows = gguf.tensor_info("token_embd.weight").and_then(|(_, info)| info.shape().first().copied());
    let vocab_size = match embedding_rows {
        Some(rows) => Some(rows),
        None => metadata.u64(&key("vocab_size"))?.or(vocabulary.map(|v| v.tokens.len() as u64)),
    };
    insert(&mut config, "vocab_size", vocab_size);
    let implied = names.own.map_or(Json::Null, |own| (own.implied)());
    // No key says it: llama.cpp's graph of the architecture has it.
    config.insert("hidden_act".into(), implied.get("hidden_act").cloned().unwrap_or_else(|| "silu".into()));
    config.insert("tie_word_embeddings".into(), gguf.tensor_info("output.weight").is_none().into());
    config.insert("attention_bias".into(), gguf.tensor_info("blk.0.attn_q.bias").is_some().into());
    config.insert("mlp_bias".into(), gguf.tensor_info("blk.0.ffn_up.bias").is_some().into());
    for (tensor, field) in names.own.map_or(&[][..], |own| own.tensor_flags) {
        config.insert((*field).into(), gguf.tensor_info(&format!("blk.0.{tensor}")).is_some().into());
    }
    insert(&mut config, "bos_token_id", vocabulary.and_then(|v| v.bos_token_id));
    insert(&mut config, "eos_token_id", vocabulary.and_then(|v| v.eos_token_id));
    let mut rope_scaling = rope_scaling(metadata, &key, names.has_key(LOG_MULTIPLIER))?;
    if completeness == Completeness::Whole {
        insert(&mut config, "rope_freq_factors", rope_factors(gguf, ROPE_FREQS)?);
        if let Some(scaling) = &mut rope_scaling {
            insert(scaling, "short_factor", rope_factors(gguf, ROPE_FACTORS_SHORT)?);
            insert(scaling, "long_factor", rope_factors(gguf, ROPE_FACTORS_LONG)?);
        }
    }
    insert(&mut config, "rope_scaling", rope_scaling);
    for (field, value) in implied.as_object().into_iter().flatten() {
        match value {
            Json::Object(more) => {
                let Some(there) = config.get_mut(field).and_then(Json::as_object_mut) else { continue };
                for (field, value) in more {
                    there.entry(field).or_insert_with(|| value.clone());
                }
            }
            value => {
                config.entry(field).or_insert_with(|| value.clone());
            }
        }
    }
    // A name that nobody knows is left as it is: whoever builds the model says which architectures there are.
    config.insert("model_type".into(), names.own.map_or(architecture, |own| own.model_type).into());
    insert(&mut config, "architectures", names.own.map(|own| json!([own.class])));
    Ok(config)
}

/// `generation_config.json` as the vocabulary implies it: every token that ends a turn ends the generation.
pub(crate) fn generation_config(vocabulary: Option<&GgufVocabulary>) -> Map<String, Json> {
    let mut config = Map::new();
    let Some(vocabulary) = vocabulary else { return config };
    insert(&mut config, "bos_token_id", vocabulary.bos_token_id);
    insert(&mut config, "pad_token_id", vocabulary.padding_token_id);
    let mut ends = Vec::new();
    for id in [vocabulary.eos_token_id, vocabulary.eot_token_id, vocabulary.eom_token_id].into_iter().flatten() {
        if !ends.contains(&id) {
            ends.push(id);
        }
    }
    insert(&mut config, "eos_token_id", (!ends.is_empty()).then(|| json!(ends)));
    config
}

pub(crate) fn architecture(metadata: &Metadata) -> Result<&str, FormatError> {
    const KEY: &str = "general.architecture";
    metadata
        .str(KEY)?
        .ok_or_else(|| FormatError::MissingKey { key: KEY.into(), expected: "the architecture's name".into() })
}

/// A number or a flag, of the type that the file gives it.
fn number_or_flag(metadata: &Metadata, key: &str) -> Result<Option<Json>, FormatError> {
    Ok(match metadata.get(key) {
        Some(Value::Bool(_)) => metadata.bool(key)?.map(Json::from),
        Some(Value::F32(_) | Value::F64(_)) => metadata.f64(key)?.map(Json::from),
        _ => metadata.u64(key)?.map(Json::from),
    })
}

/// A number, or a list with one number per layer that are all the same.
fn per_layer(metadata: &Metadata, key: &str) -> Result<Option<u64>, FormatError> {
    if !matches!(metadata.get(key), Some(Value::Array(_))) {
        return metadata.u64(key);
    }
    let layers = metadata.i32s(key)?.unwrap_or_default();
    let same = layers.first().filter(|first| layers.iter().all(|layer| layer == *first));
    let same = same.and_then(|&layer| u64::try_from(layer).ok());
    same.map(Some).ok_or_else(|| FormatError::WrongValue {
        key: key.into(),
        expected: "the same positive number in every layer".into(),
        found: "a list of different ones".into(),
    })
}

/// `rope_scaling` in `config.json`'s form, when the file has one.
fn rope_scaling(
    metadata: &Metadata,
    key: &dyn Fn(&str) -> String,
    is_latent: bool,
) -> Result<Option<Map<String, Json>>, FormatError> {
    // `rope.scale_linear` is from before `rope.scaling.*` existed.
    let factor = match metadata.f64(&key("rope.scaling.factor"))? {
        None => metadata.f64(&key("rope.scale_linear"))?,
        factor => factor,
    };
    let rope_type = match metadata.str(&key("rope.scaling.type"))? {
        // A factor without a type is linear, in llama.cpp too.
        None if factor.is_some_and(|factor| factor != 1.0 && factor != 0.0) => "linear",
        // Models refuse a factor of attention that no scaling explains, by name.
        None | Some("none") => {
            let alone = metadata.f64(&key("rope.scaling.attn_factor"))?.filter(|&value| value != 1.0);
            let scaling = |factor| Map::from_iter([("attention_factor".to_owned(), json!(factor))]);
            return Ok(alone.map(scaling));
        }
        Some(rope_type) => rope_type,
    };
    let mut scaling = Map::new();
    scaling.insert("rope_type".into(), rope_type.into());
    insert(&mut scaling, "factor", factor);
    let original = metadata.u64(&key("rope.scaling.original_context_length"))?;
    insert(&mut scaling, "original_max_position_embeddings", original);
    let attn_factor = metadata.f64(&key("rope.scaling.attn_factor"))?;
    let attention_factor = match rope_type {
        "yarn" if is_latent => Some(attn_factor.unwrap_or(1.0)),
        // The key multiplies what YaRN gives by itself, which config.json replaces.
        "yarn" => {
            let log_multiplier = metadata.f64(&key(LOG_MULTIPLIER))?.filter(|&value| value != 0.0);
            let grown = |scale: f64| factor.filter(|&factor| factor > 1.0).map_or(1.0, |f| 0.1 * scale * f.ln() + 1.0);
            let own = grown(1.0) / log_multiplier.map_or(1.0, grown);
            let said = attn_factor.is_some_and(|value| value != 1.0) || log_multiplier.is_some();
            said.then(|| own * attn_factor.unwrap_or(1.0))
        }
        // And LongRoPE has none by itself there.
        "longrope" => Some(attn_factor.unwrap_or(1.0)),
        _ => attn_factor,
    };
    insert(&mut scaling, "attention_factor", attention_factor);
    insert(&mut scaling, "beta_fast", metadata.f64(&key("rope.scaling.yarn_beta_fast"))?);
    insert(&mut scaling, "beta_slow", metadata.f64(&key("rope.scaling.yarn_beta_slow"))?);
    insert(&mut scaling, "ext_factor", metadata.f64(&key("rope.scaling.yarn_ext_factor"))?);
    Ok(Some(scaling))
}

/// The divisors of the frequencies in the tensor `name`.
fn rope_factors(gguf: &Parts, name: &str) -> Result<Option<Json>, FormatError> {
    /// Far above half of any head's size.
    const FACTORS_MAX: u64 = 1 << 12;
    let Some((gguf, info)) = gguf.tensor_info(name) else { return Ok(None) };
    let wrong = |found: String| FormatError::WrongValue {
        key: name.into(),
        expected: format!("up to {FACTORS_MAX} positive finite factors"),
        found,
    };
    let len: u64 = info.dims().iter().fold(1, |len, &dim| len.saturating_mul(dim));
    if len > FACTORS_MAX {
        return Err(wrong(format!("{len} elements")));
    }
    let factors = gguf.tensor(name)?.to_f32();
    match factors.iter().find(|&&factor| !(factor.is_finite() && factor > 0.0)) {
        Some(factor) => Err(wrong(factor.to_string())),
        None => Ok(Some(json!(factors))),
    }
}

fn insert(map: &mut Map<String, Json>, key: &str, value: Option<impl Into<Json>>) {
    if let Some(value) = value {
        map.insert(key.into(), value.into());
    }
}

/// Whether a tensor is part of the configuration rather than a weight.
pub(crate) fn is_configuration(info: &GgufTensor) -> bool {
    [ROPE_FREQS, ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG].contains(&info.name())
}

/// The rows of `tensor` in the order of GGUF files, copied: the inverse of what the checkpoint's reader does.
pub fn in_file_order(name: &str, tensor: &Tensor, heads: usize) -> Result<Tensor, FormatError> {
    let rows = tensor.shape().first().copied().unwrap_or(1);
    let order = checkpoint_row_order(rows, heads);
    let order = order.ok_or_else(|| FormatError::Heads { tensor: name.into(), rows, heads })?;
    let mut inverse = vec![0; rows];
    order.enumerate().for_each(|(row, of_file)| inverse[of_file] = row);
    in_order(name, tensor, heads, inverse.into_iter())
}

/// The rows of `tensor` in the checkpoint's order, copied. A vector is a column of one-element rows.
pub(crate) fn in_checkpoint_order(name: &str, tensor: &Tensor, heads: usize) -> Result<Tensor, FormatError> {
    let rows = tensor.shape().first().copied().unwrap_or(1);
    let order = checkpoint_row_order(rows, heads);
    in_order(name, tensor, heads, order.ok_or_else(|| FormatError::Heads { tensor: name.into(), rows, heads })?)
}

/// The rows of `tensor` in this order, copied.
fn in_order(
    name: &str,
    tensor: &Tensor,
    heads: usize,
    order: impl Iterator<Item = usize>,
) -> Result<Tensor, FormatError> {
    let bytes = tensor.bytes();
    let (rows, row_bytes) = match tensor.shape() {
        [len] => (*len, bytes.len().checked_div(*len).unwrap_or(0)),
        _ => (tensor.num_rows(), tensor.row_bytes()),
    };
    let wrong = || FormatError::Heads { tensor: name.into(), rows, heads };
    let mut reordered = Vec::with_capacity(bytes.len());
    for row in order {
        let start = row.checked_mul(row_bytes).ok_or_else(wrong)?;
        let end = start.checked_add(row_bytes).ok_or_else(wrong)?;
        reordered.extend_from_slice(bytes.get(start..end).ok_or_else(wrong)?);
    }
    Tensor::new(tensor.format(), tensor.shape().to_vec(), reordered.into()).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{Gguf, GgufWriter};

    const COMMON: Architecture = Architecture {
        model_type: "plain",
        class: "PlainForCausalLM",
        names: &[("plain", None)],
        ..Architecture::SHARED
    };

    static ARCHITECTURES: [Architecture; 3] = [
        COMMON,
        Architecture {
            model_type: "other",
            names: &[("first", None), ("plain", Some("expert_count"))],
            keys: &[("expert_count", "num_experts"), ("expert_scale", "routed_scaling_factor")],
            layer_tensors: &[("attn_q_norm", "self_attn.q_norm"), ("ffn_norm", "pre_feedforward_layernorm")],
            implied: || json!({ "hidden_act": "relu", "num_experts": 3, "is_odd": true }),
            ..COMMON
        },
        Architecture { model_type: "third", keys: &[("expert_count", "num_local_experts")], ..COMMON },
    ];

    #[test]
    fn names_are_the_models_own_then_common_then_other_models() {
        let (plain, other) = (Names::of_model("plain", &ARCHITECTURES), Names::of_model("other", &ARCHITECTURES));
        let unknown = Names::of_model("unknown", &ARCHITECTURES);
        for (gguf, expected) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("blk.3.attn_q.weight", "model.layers.3.self_attn.q_proj.weight"),
            ("blk.12.attn_k.bias", "model.layers.12.self_attn.k_proj.bias"),
            ("blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight"),
            ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
            ("blk.03.attn_q.weight", "blk.03.attn_q.weight"),
            ("blk.3.attn_q.scale", "blk.3.attn_q.scale"),
            ("blk.3.ffn_gate_exps.weight", "blk.3.ffn_gate_exps.weight"),
            ("blk.x.attn_q.weight", "blk.x.attn_q.weight"),
        ] {
            for names in [plain, unknown] {
                assert_eq!(names.checkpoint_name(gguf), expected);
                let known = expected.starts_with("model.");
                assert_eq!(names.gguf_name(expected).as_deref(), known.then_some(gguf));
            }
        }
        assert_eq!(plain.gguf_name("model.layers.03.mlp.up_proj.weight"), None);
        let (gguf, expected) = ("blk.0.ffn_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight");
        assert_eq!((other.checkpoint_name(gguf), other.gguf_name(expected)), (expected.into(), Some(gguf.into())));
        // The common name of the same tensor is another's there.
        assert_eq!(other.gguf_name("model.layers.0.post_attention_layernorm.weight"), None);
        assert_eq!([plain, other, unknown].map(|names| names.architecture()), [Some("plain"), Some("first"), None]);
    }

    #[test]
    fn a_file_is_of_the_architecture_that_its_keys_tell() {
        let config = |architecture: &str, keys: &[(&str, Value)]| {
            let mut writer = GgufWriter::new();
            writer.metadata("general.architecture", Value::String(architecture.into()));
            for (key, value) in keys {
                writer.metadata(&format!("{architecture}.{key}"), value.clone());
            }
            let gguf = Parts::one(Gguf::read(writer.to_bytes()).unwrap());
            let names = Names::of_file(gguf.metadata(), &ARCHITECTURES).unwrap();
            let config = super::config(&gguf, names, None, Completeness::Whole).unwrap();
            let fields =
                ["model_type", "num_experts", "num_local_experts", "routed_scaling_factor", "hidden_act", "is_odd"];
            fields.map(|field| config.get(field).cloned().unwrap_or_default())
        };
        let expected = |fields: Json| -> [Json; 6] { fields.as_array().unwrap().clone().try_into().unwrap() };
        let (experts, scale) = (("expert_count", Value::U32(8)), ("expert_scale", Value::F32(2.5)));
        assert_eq!(config("plain", &[]), expected(json!(["plain", null, null, null, "silu", null])));
        let found = config("plain", &[experts.clone(), scale.clone()]);
        assert_eq!(found, expected(json!(["other", 8, null, 2.5, "relu", true])));
        assert_eq!(config("first", &[]), expected(json!(["other", 3, null, null, "relu", true])));
        // Of an architecture that nobody knows, everything that some model reads is there.
        let found = config("unknown", &[experts, scale]);
        assert_eq!(found, expected(json!(["unknown", 8, 8, 2.5, "silu", null])));
    }

    #[test]
    fn rows_go_to_the_order_of_files_and_back() {
        let values: Vec<f32> = (0..12 * 3).map(|value| value as f32).collect();
        let tensor = Tensor::from_f32(tensor::WeightFormat::F32, vec![12, 3], &values).unwrap();
        let stored = in_file_order("q", &tensor, 2).unwrap();
        assert_eq!(stored.to_f32()[3..6], [9.0, 10.0, 11.0]);
        assert_eq!(in_checkpoint_order("q", &stored, 2).unwrap().to_f32(), values);
        assert!(in_file_order("q", &tensor, 5).is_err());
    }

    #[test]
    fn row_order_is_the_inverse_of_the_converter() {
        // The converter views the rows as (heads, 2, head_dim / 2), swaps the last two axes and flattens.
        let (heads, head_dim) = (3, 8);
        let mut stored = Vec::new();
        for head in 0..heads {
            for pair in 0..head_dim / 2 {
                for half in 0..2 {
                    stored.push(head * head_dim + half * head_dim / 2 + pair);
                }
            }
        }
        let restored: Vec<usize> =
            checkpoint_row_order(heads * head_dim, heads).unwrap().map(|row| stored[row]).collect();
        assert_eq!(restored, (0..heads * head_dim).collect::<Vec<_>>());
        assert!(checkpoint_row_order(9, 3).is_none() && checkpoint_row_order(8, 0).is_none());
        assert!(checkpoint_row_order(10, 4).is_none());
    }
}
