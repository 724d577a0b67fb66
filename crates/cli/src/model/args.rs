//! The flags of commands that load a model: those of `load`, and `--quant`, which names a mixture of `packing`.

use std::path::PathBuf;

use clap::Args;

use super::settings::ModelSettings;
use crate::load::args::{DeviceArgs, KvType, RopeArgs};
use crate::load::sizes::CacheSettings;
use crate::packing::mix::Mix;

/// Flags that say where and how a model runs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// Tokens that prompt and text may have together [default: what the model was made for, if memory allows]
    #[arg(long, short = 'c', alias = "max-model-len", value_name = "N")]
    pub(crate) ctx_size: Option<usize>,

    #[command(flatten)]
    pub(crate) rope: RopeArgs,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    /// Compute with the matrices in this format: q4 (q4_k_m), q5 (q5_k_m), q6 (q6_k), q8 (q8_0) or another of `hotmetal
    /// quantize`; made when the model is loaded for the first time, and kept in the cache folder
    #[arg(long, value_name = "FORMAT")]
    pub(crate) quant: Option<Mix>,

    /// Element type of the KV cache [default: f32 for F32 weights, f16 for all others]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) kv_type: Option<KvType>,

    /// A Jinja file to use in place of the model's chat template; or the text of one, or one of
    /// llama.cpp's names: chatml, llama3, gemma, mistral-v7 …
    #[arg(long, alias = "chat-template-file", value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,

    /// Read all weights first, and refuse a model in which one is NaN or infinite; without it norms and biases are
    /// looked at
    #[arg(long)]
    pub(crate) check_tensors: bool,

    /// Accept tokenizers whose patterns can take very long on hostile text
    #[arg(long)]
    pub(crate) allow_unknown_patterns: bool,
}

impl ModelArgs {
    /// What the flags say.
    pub(crate) fn settings(&self) -> ModelSettings {
        ModelSettings {
            cache: CacheSettings { ctx_size: self.ctx_size, format: self.kv_type.map(Into::into) },
            rope: self.rope.settings(),
            device: self.device.settings(),
            quant: self.quant,
            chat_template: self.chat_template.clone(),
            check_tensors: self.check_tensors,
            without_passes: Vec::new(),
            allow_unknown_patterns: self.allow_unknown_patterns,
        }
    }
}
