//! The flags that say where and how a model is loaded: the only file of this folder that knows clap. Each group of
//! flags gives the plain struct that the other files take.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use plan::KvFormat;

use super::device::{AUTO, DeviceSettings, GpuSettings};
use super::rope::{RopeKind, RopeSettings};
use super::tuned::TunedFrom;

/// Flags of the device.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeviceArgs {
    /// Where to compute: auto (the first NVIDIA GPU if the model fits it, else the CPU), cpu, cuda or cuda:N (an NVIDIA
    /// GPU), metal or metal:N (an Apple GPU), reference (plain f64, for comparison), or sim (a GPU simulated, in builds
    /// for it)
    #[arg(long, value_name = "DEVICE", default_value = AUTO)]
    pub(crate) device: String,

    #[command(flatten)]
    pub(crate) gpu: GpuArgs,

    /// CPU threads [default: one for each core]
    #[arg(long, short = 't', value_name = "N")]
    pub(crate) threads: Option<usize>,

    /// Instruction set of the CPU kernels [default: the best there is]
    #[arg(long, value_name = "LEVEL", value_parser = parse_isa)]
    pub(crate) isa: Option<cpu::IsaLevel>,

    /// Use Q8_0 weights where the file has them: loads at once and takes half the memory, steps are slower
    #[arg(long)]
    pub(crate) no_repack: bool,
}

impl DeviceArgs {
    /// What the flags say.
    pub(crate) fn settings(&self) -> DeviceSettings {
        DeviceSettings {
            name: self.device.clone(),
            gpu: self.gpu.settings(),
            threads: self.threads,
            isa: self.isa,
            repack: !self.no_repack,
        }
    }
}

/// Flags of GPUs.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct GpuArgs {
    /// GPU: a text does not depend on those computed beside it, bit for bit, as on the CPU; steps take longer, on Hopper
    /// GPUs up to twice as long, with latent attention and on other GPUs several times as long
    #[arg(long)]
    pub(crate) batch_invariant: bool,

    /// GPU: compute OP with this kernel wherever it can, for example norm_glu=linear; may be given for several ops
    #[arg(long, value_name = "OP=KERNEL", value_delimiter = ',')]
    pub(crate) force_variant: Vec<gpu::ForcedVariant>,

    /// The table of `hotmetal tune` by which kernels are launched: auto (the program's own, and the one measured on this
    /// machine), off (cost models choose, by nothing that was measured here), or a file
    #[arg(long, value_name = "TABLE", default_value = "auto", value_parser = TunedFrom::parse)]
    pub(crate) tuned: TunedFrom,

    /// Apple GPU: do this in another way, for comparison; may be given for both
    #[arg(long, value_name = "WAY", value_enum, value_delimiter = ',')]
    pub(crate) metal_way: Vec<MetalWay>,

    /// Apple GPU: write a trace of one step to FILE, which Xcode opens; needs MTL_CAPTURE_ENABLED=1 in the environment
    #[arg(long, value_name = "FILE.gputrace")]
    pub(crate) capture: Option<PathBuf>,
}

/// Ways in which an Apple GPU is used besides the usual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MetalWay {
    /// Replay steps from an indirect command buffer, and do not encode each.
    Indirect,
    /// Copy weights, and do not read them where the file is mapped.
    Copied,
}

impl GpuArgs {
    /// The flags again, for another command of this program: every one that was given, but for --capture, which is of
    /// one step of one process.
    pub(crate) fn words(&self) -> Vec<String> {
        // Each by name, so that a new flag is not forgotten here.
        let Self { batch_invariant, force_variant, tuned, metal_way, capture: _ } = self;
        let mut out = Vec::new();
        let mut push = |flag: &str, value: &str| out.extend([flag.to_owned(), value.to_owned()]);
        let forced: gpu::ForcedVariants = force_variant.iter().copied().collect();
        if forced != gpu::ForcedVariants::NONE {
            push("--force-variant", &forced.to_string().replace(", ", ","));
        }
        match tuned {
            TunedFrom::Usual => {}
            TunedFrom::Nowhere => push("--tuned", "off"),
            TunedFrom::File(path) => push("--tuned", &path.to_string_lossy()),
            TunedFrom::Tried(_) => unreachable!("no flag says what a tuner tries"),
        }
        for way in metal_way.iter().filter_map(ValueEnum::to_possible_value) {
            push("--metal-way", way.get_name());
        }
        if *batch_invariant {
            out.push("--batch-invariant".to_owned());
        }
        out
    }

    /// What the flags say.
    pub(crate) fn settings(&self) -> GpuSettings {
        GpuSettings {
            batch_invariant: self.batch_invariant,
            force_variant: self.force_variant.clone(),
            tuned: self.tuned.clone(),
            indirect: self.metal_way.contains(&MetalWay::Indirect),
            copied: self.metal_way.contains(&MetalWay::Copied),
            capture: self.capture.clone(),
            eager: false,
        }
    }
}

/// Element types of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvType {
    /// Exact.
    F32,
    /// Half the bytes.
    F16,
}

impl From<KvType> for KvFormat {
    fn from(kv: KvType) -> Self {
        match kv {
            KvType::F32 => Self::F32,
            KvType::F16 => Self::F16,
        }
    }
}

/// How `--rope-scaling` stretches positions beyond the trained context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RopeScalingArg {
    /// As trained, whatever the file says
    None,
    /// All frequencies divided by the scale
    Linear,
    /// Slow frequencies divided by the scale, fast ones kept (YaRN)
    Yarn,
}

impl From<RopeScalingArg> for RopeKind {
    fn from(kind: RopeScalingArg) -> Self {
        match kind {
            RopeScalingArg::None => Self::Default,
            RopeScalingArg::Linear => Self::Linear,
            RopeScalingArg::Yarn => Self::Yarn,
        }
    }
}

/// Flags of the rotary embedding, as llama.cpp names them.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub(crate) struct RopeArgs {
    /// Stretch the context this way [default: what the model's files say]
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) rope_scaling: Option<RopeScalingArg>,

    /// Stretch the context N times
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) rope_scale: Option<f32>,

    /// The same as --rope-scale 1/N
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "rope_scale")]
    pub(crate) rope_freq_scale: Option<f32>,

    /// The base of the rotary embedding, `rope_theta` [default: what the model's files say]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) rope_freq_base: Option<f32>,

    /// YaRN: tokens of the trained context, which the scale multiplies [default: what the model's files say]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) yarn_orig_ctx: Option<u32>,

    /// YaRN: multiply what it gives attention scores
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) yarn_attn_factor: Option<f32>,

    /// YaRN: frequencies that turn so often in the trained context are kept [default: 32]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) yarn_beta_fast: Option<f32>,

    /// YaRN: frequencies that turn no more often in the trained context are stretched fully [default: 1]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) yarn_beta_slow: Option<f32>,
}

impl RopeArgs {
    /// What the flags say.
    pub(crate) fn settings(&self) -> RopeSettings {
        RopeSettings {
            kind: self.rope_scaling.map(Into::into),
            scale: self.rope_scale.or(self.rope_freq_scale.map(|scale| 1.0 / scale)),
            freq_base: self.rope_freq_base,
            original_context: self.yarn_orig_ctx,
            attention_factor: self.yarn_attn_factor,
            beta_fast: self.yarn_beta_fast,
            beta_slow: self.yarn_beta_slow,
        }
    }
}

fn positive(text: &str) -> Result<f32, String> {
    text.parse().ok().filter(|n: &f32| n.is_finite() && *n > 0.0).ok_or_else(|| "expected a positive number".to_owned())
}

/// The instruction set of that name.
pub(crate) fn parse_isa(name: &str) -> Result<cpu::IsaLevel, String> {
    let known = cpu::IsaLevel::ALL.map(cpu::IsaLevel::name);
    let level = cpu::IsaLevel::ALL.into_iter().find(|level| level.name() == name);
    level.ok_or_else(|| format!("expected one of {}", known.join(", ")))
}
