//! What is to be packed, and what came of it.

use std::path::PathBuf;
use std::str::FromStr;

use formats::PackedLayout;
use formats::gguf_names::Names;
use tensor::WeightFormat;

use super::importance::ImportanceSettings;
use super::loss::Loss;
use super::source::EMBEDDINGS;
use crate::expert_names::of_any_expert;
use crate::load::facts::parse_weight_format;

/// A model that is to be written with its matrices in another format.
#[derive(Clone, Debug)]
pub(crate) struct PackingJob {
    /// The name of the model that is read.
    pub(crate) source: String,
    /// The file or folder that is written.
    pub(crate) output: PathBuf,
    /// Matrices that become a format of their own; of several that mean a matrix the last counts.
    pub(crate) overrides: Vec<FormatOverride>,
    /// Whether scales are those at which the largest weight of a block just fits, and none are searched for.
    pub(crate) plain: bool,
    pub(crate) importance: ImportanceSettings,
    /// The most bytes of weights in a file of safetensors.
    pub(crate) shard_bytes_max: u64,
}

/// What matrices of safetensors become.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SafetensorsTarget {
    /// Plain numbers.
    Plain(WeightFormat),
    /// A published layout of several tensors.
    Packed(PackedLayout),
}

/// A model that was written.
pub(crate) struct PackedModel {
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) losses: Vec<Loss>,
}

/// `--tensor NAME=FORMAT`.
#[derive(Clone, Debug)]
pub(crate) struct FormatOverride {
    pub(crate) name: String,
    pub(crate) format: WeightFormat,
}

impl FromStr for FormatOverride {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, format)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err("expected NAME=FORMAT, for example token_embd=q8_0".to_owned());
        };
        Ok(Self { name: name.to_owned(), format: parse_weight_format(format)? })
    }
}

impl FormatOverride {
    /// Whether it means the matrix with this GGUF name, by that or by the checkpoint's. A model without a head of its
    /// own has one matrix for both, which is meant by the names of either. The experts of a layer are one matrix there,
    /// which checkpoints would call `mlp.experts.*.up_proj`.
    pub(crate) fn is_of(&self, gguf_name: &str, names: Names, is_tied: bool) -> bool {
        let means = |name: &str| name.contains(&self.name);
        let is_head = is_tied && gguf_name == EMBEDDINGS;
        let experts = names.checkpoint_expert(gguf_name, 0).and_then(|name| of_any_expert(&name));
        means(gguf_name)
            || means(&names.checkpoint_name(gguf_name))
            || experts.is_some_and(|name| means(&name))
            || is_head && means("lm_head.weight")
    }
}
