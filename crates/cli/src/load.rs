//! Where the parts meet: name → file → weights → model → plan → backend → engine.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use backend::{Backend, DeviceInfo, Executable, Footprint, check_load};
use clap::{Args, ValueEnum};
use engine::{Engine, EngineConfig};
use formats::{Checkpoint, EmbeddingConfig, TokenizerFiles, TokenizerSource};
use plan::{KvFormat, KvLayout, Plan, StepShape, WeightSource};
use serde_json::Value;
use server::{LoadStage, Loading};
use tensor::{Tensor, WeightFormat};
use time::OffsetDateTime;
use tokenizer::chat_template::{ChatTemplate, RenderInput};
use tokenizer::{
    Bounds, FimIds, FimTexts, GgufVocabulary, LoadOptions, ParseSpecial, Prompt, SideFiles, Texts, Tokenizer,
    TokenizerError,
};

use crate::load_bar::LoadBar;
use crate::neighbours::{ALONE, Given, Neighbours};
use crate::output::note;
use crate::quantize::{mix::Mix, on_load};
use crate::rope::RopeArgs;
use crate::{builtin, files, hub, units};

/// Tokens in a block of the KV cache.
pub(crate) const KV_BLOCK_LEN: usize = 32;
/// The most of the free memory that the cache takes when no `--ctx-size` is given.
const KV_MEMORY_SHARE: u64 = 4;
/// What a device's system takes for kernels and recorded programs. Guessed.
const RESERVE_BYTES: u64 = 256 << 20;

/// Tokens that a step computes at most.
const BATCH_TOKENS: usize = 512;
/// The same on an NVIDIA GPU, which with so many rows multiplies at its full speed (`docs/performance/gpu.md`). Not on others: a
/// step of a laptop's would take seconds, and a client that goes away is seen between steps.
const BATCH_TOKENS_ON_CUDA: usize = 2048;

/// Tokens of a step of a GPU in which texts go on too, and wait for its end: those of prompts and of as many texts as may run
/// together. One row more than products have tiles of rows for takes as long as a whole tile.
const MIXED_STEP_TOKENS: usize = 1024;
/// Tokens of prompts in such a step of a CPU: they then take about as long as the decodes beside them.
const MIXED_TOKENS_ON_CPU: usize = 64;

/// What `--device` may be besides `cuda:N` and `metal:N`.
pub(crate) const AUTO: &str = "auto";
pub(crate) const CPU: &str = "cpu";
const CUDA: &str = "cuda";
const METAL: &str = "metal";
/// The simulator, which `auto` never is.
pub(crate) const SIM: &str = "sim";
const REFERENCE: &str = "reference";

/// Flags that say where and how a model runs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// Tokens that prompt and text may have together [default: what the model was made for, if memory allows]
    #[arg(long, short = 'c', alias = "max-model-len", value_name = "N")]
    pub(crate) ctx_size: Option<usize>,

    #[command(flatten)]
    pub(crate) rope: RopeArgs,

    /// Where to compute: auto (the first NVIDIA GPU if the model fits it, else the CPU), cpu, cuda or cuda:N (an NVIDIA
    /// GPU), metal or metal:N (an Apple GPU), reference (plain f64, for comparison), or sim (a GPU simulated, in builds for it)
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

    /// Compute with the matrices in this format: q4 (q4_k_m), q5 (q5_k_m), q6 (q6_k), q8 (q8_0) or another of `hotmetal
    /// quantize`; made when the model is loaded for the first time, and kept in the cache folder
    #[arg(long, value_name = "FORMAT")]
    pub(crate) quant: Option<Mix>,

    /// Element type of the KV cache [default: f32 for F32 weights, f16 for all others]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) kv_type: Option<KvType>,

    /// A Jinja file to use in place of the model's chat template
    #[arg(long, alias = "chat-template-file", value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,

    /// Read all weights first, and refuse a model in which one is NaN or infinite; without it norms and biases are looked at
    #[arg(long)]
    pub(crate) check_tensors: bool,

    /// Accept tokenizers whose patterns can take very long on hostile text
    #[arg(long)]
    pub(crate) allow_unknown_patterns: bool,
}

impl ModelArgs {
    /// As without any flag, but on `device`.
    pub(crate) fn on(device: impl Into<String>) -> Self {
        Self {
            ctx_size: None,
            rope: RopeArgs::default(),
            device: device.into(),
            gpu: GpuArgs::default(),
            threads: None,
            isa: None,
            no_repack: false,
            quant: None,
            kv_type: None,
            chat_template: None,
            check_tensors: false,
            allow_unknown_patterns: false,
        }
    }
}

/// Flags of GPUs.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct GpuArgs {
    /// GPU: a text does not depend on those computed beside it, bit for bit, as on the CPU; batches and prompts take longer
    #[arg(long)]
    pub(crate) batch_invariant: bool,

    /// GPU: compute OP with this kernel wherever it can, for example norm_glu=linear; may be given for several ops
    #[arg(long, value_name = "OP=KERNEL", value_delimiter = ',')]
    pub(crate) force_variant: Vec<gpu::ForcedVariant>,

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
    /// Refuses what is about GPUs alone where none of `devices` is one.
    pub(crate) fn check(&self, devices: &[&str]) -> Result<()> {
        if !self.force_variant.is_empty() && !devices.iter().any(|device| is_gpu(device)) {
            bail!(
                "--force-variant is about the kernels of GPUs: expected --device cuda, metal or sim, found `{}`",
                devices.join("`, `")
            );
        }
        self.check_metal(devices)
    }

    /// Refuses what is about Apple GPUs alone where none of `devices` is one.
    fn check_metal(&self, devices: &[&str]) -> Result<()> {
        let names_metal = |device: &&str| matches!(parse_gpu(device), Some((METAL, _)));
        if (!self.metal_way.is_empty() || self.capture.is_some()) && !devices.iter().any(names_metal) {
            bail!(
                "--metal-way and --capture are about Apple GPUs: expected --device metal, found `{}`",
                devices.join("`, `")
            );
        }
        Ok(())
    }

    fn metal_options(&self) -> gpu::MetalOptions {
        gpu::MetalOptions {
            source: kernel_folder(),
            cache: kernel_cache(),
            indirect: self.metal_way.contains(&MetalWay::Indirect),
            copied: self.metal_way.contains(&MetalWay::Copied),
            capture: self.capture.clone(),
        }
    }

    fn options(&self) -> gpu::GpuOptions {
        let forced = self.force_variant.iter().copied().collect();
        gpu::GpuOptions { batch_invariant: self.batch_invariant, forced }
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

/// How much an engine does at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineSizes<'a> {
    /// Sequences that run at a time.
    pub(crate) max_sequences: usize,
    /// Tokens computed in one step; what suits the device and its memory if nothing is said.
    pub(crate) max_batch_tokens: Option<usize>,
    /// Of these, tokens of prompts in a step in which texts go on too; what suits the device if nothing is said.
    pub(crate) max_mixed_tokens: Option<usize>,
    /// Sequences that may wait.
    pub(crate) max_waiting: usize,
    /// Tokens of all sequences that the KV cache holds.
    pub(crate) kv_tokens: KvTokens,
    /// Who else has memory of the device.
    pub(crate) neighbours: &'a Neighbours,
    /// Who is told how far it is.
    pub(crate) watch: &'a dyn Watch,
}

/// Is told how far a model is that is being loaded.
pub(crate) trait Watch: Debug + Sync {
    /// What is done now.
    fn stage(&self, stage: LoadStage);

    /// This stage is done with so many bytes of the weights, of so many.
    fn bytes(&self, loaded: u64, total: u64);
}

impl Watch for Loading {
    fn stage(&self, stage: LoadStage) {
        self.stage(stage);
    }

    fn bytes(&self, loaded: u64, total: u64) {
        self.bytes(loaded, total);
    }
}

/// Nobody.
#[derive(Debug)]
pub(crate) struct Unwatched;

impl Watch for Unwatched {
    fn stage(&self, _: LoadStage) {}

    fn bytes(&self, _: u64, _: u64) {}
}

/// Tokens of all sequences that a KV cache holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KvTokens {
    /// Those of one context.
    OneContext,
    /// A context for each sequence, as far as a share of the memory holds them.
    AsMemoryAllows,
    /// So many, or one context if that is more.
    AtLeast(usize),
}

impl EngineSizes<'static> {
    /// For one text at a time.
    const SINGLE: Self = Self {
        max_sequences: 16,
        max_batch_tokens: None,
        max_mixed_tokens: None,
        max_waiting: 256,
        kv_tokens: KvTokens::OneContext,
        neighbours: &ALONE,
        watch: &Unwatched,
    };
}

impl EngineSizes<'_> {
    /// Rows of logits in a step: one for each sequence, and some for prompts that are scored.
    fn max_batch_outputs(&self) -> usize {
        self.max_sequences.saturating_add(48)
    }

    fn largest_step(&self, tokens: usize) -> StepShape {
        StepShape { tokens, sequences: self.max_sequences, outputs: self.max_batch_outputs() }
    }

    /// For a device of this name.
    fn config(&self, device: &str, room: Room, vocab_size: usize) -> EngineConfig {
        // A GPU computes some hundred tokens in little more time than one, a CPU does not.
        let mixed = match device {
            CPU | REFERENCE => MIXED_TOKENS_ON_CPU,
            _ => MIXED_STEP_TOKENS.saturating_sub(self.max_sequences).max(MIXED_TOKENS_ON_CPU),
        };
        let Room { kv, context_len, batch_tokens, bytes: _ } = room;
        EngineConfig {
            max_sequences: self.max_sequences,
            max_batch_tokens: batch_tokens,
            max_mixed_tokens: self.max_mixed_tokens.unwrap_or(mixed),
            max_batch_outputs: self.max_batch_outputs(),
            max_waiting: self.max_waiting,
            ..EngineConfig::new(kv, context_len, vocab_size, Vec::new())
        }
    }
}

/// Tokens that a step computes at most on a device of this name, if nothing is said.
pub(crate) fn batch_tokens(device: &str) -> usize {
    match parse_gpu(device) {
        Some((CUDA, _)) => BATCH_TOKENS_ON_CUDA,
        _ => BATCH_TOKENS,
    }
}

/// A loaded model, ready to generate.
pub(crate) struct Model {
    /// As the user named it.
    pub(crate) name: String,
    /// What it runs on, in words.
    pub(crate) device: String,
    /// What it was given of the device's memory.
    pub(crate) given: Given,
    /// Tokens that a sequence may have.
    pub(crate) context_len: usize,
    /// From the start of the load to its end.
    pub(crate) load_time: Duration,
    /// `generation_config.json`.
    pub(crate) generation_config: Value,
    /// How it was trained to make vectors of texts, if it was.
    pub(crate) embedding: EmbeddingConfig,
    pub(crate) engine: Engine,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) chat_template: Option<ChatTemplate>,
    /// The template of conversations with tools, if the model's files have one for them.
    pub(crate) tool_template: Option<ChatTemplate>,
    /// Why the template in the model's files cannot be used, if it cannot.
    pub(crate) template_fault: Option<String>,
    /// Whether it generates, and does not only make vectors of texts.
    pub(crate) has_head: bool,
}

/// Whether a positional argument is meant as a model: a path that exists or looks like one, or ORG/REPO.
pub(crate) fn names_a_model(text: &str) -> bool {
    let is_one_word = !text.is_empty() && !text.contains(char::is_whitespace);
    let has_ending = text.ends_with(".gguf") || text.ends_with(".safetensors");
    let is_path = text.starts_with(['/', '.', '~']) && text.contains('/');
    let is_repo = text.contains('/') && text.parse::<hub::ModelRef>().is_ok();
    is_one_word && (Path::new(text).exists() || has_ending || is_path || is_repo)
}

/// Opens the checkpoint that `name` stands for (the built-in one without a name); with `headers_only`, files whose data
/// has not arrived yet are enough. Returns it with its name for messages.
pub(crate) fn open(name: Option<&str>, headers_only: bool) -> Result<(Checkpoint, String)> {
    let Some(name) = name else {
        return Ok((
            builtin::open().context("the built-in model is damaged: please report it")?,
            builtin::NAME.to_owned(),
        ));
    };
    let path = locate(name)?;
    let open_file = |path: &Path| mapped::map(path).map_err(Into::into);
    let checkpoint = match headers_only {
        true => Checkpoint::open_headers(&path, &open_file),
        false => Checkpoint::open(&path, &open_file),
    };
    let mut checkpoint = checkpoint.with_context(|| format!("cannot load `{name}`"))?;
    settle_chat_template(&mut checkpoint);
    Ok((checkpoint, name.to_owned()))
}

/// Mistral's own format, for a model that has tekken.json and no chat template.
fn settle_chat_template(checkpoint: &mut Checkpoint) {
    if let (None, TokenizerSource::Tekken { tekken_json }) = (&checkpoint.chat_templates.default, &checkpoint.tokenizer)
    {
        // The tokenizer says what is wrong with the file when it is loaded.
        checkpoint.chat_templates.default = tokenizer::tekken_chat_template(tekken_json).ok().flatten();
    }
}

/// Bytes of the weights that `name` stands for, as its file has them.
pub(crate) fn weight_bytes(name: &str) -> Result<u64> {
    let (checkpoint, _) = open(Some(name), true)?;
    Ok(checkpoint.tensor_infos().map(|info| info.bytes).sum())
}

/// The path that a model's name stands for.
pub(crate) fn locate(name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.exists() {
        return Ok(path.to_owned());
    }
    if [".gguf", ".safetensors"].iter().any(|ending| name.ends_with(ending)) && !name.contains(':') {
        bail!("there is no model at `{name}`: no such file; check the spelling and the current directory");
    }
    let is_repo = name.parse::<hub::ModelRef>().is_ok();
    if is_repo {
        if let Some(path) = hub::resolve(name)? {
            return Ok(path);
        }
        bail!("`{name}` is neither a path nor a model in the cache; `hotmetal pull {name}` downloads it");
    }
    bail!(
        "there is no model at `{name}`: expected a folder, a .gguf or .safetensors file, or the ORG/REPO of a cached \
         model (`hotmetal list` shows them)"
    );
}

/// What the model files ask a checkpoint.
struct Headers<'a> {
    shapes: HashMap<String, Vec<usize>>,
    checkpoint: &'a Checkpoint,
}

impl<'a> Headers<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Self {
        // A dimension beyond the address space fits no configuration, and is refused as the wrong shape that it is.
        let dimension = |&d: &u64| usize::try_from(d).unwrap_or(usize::MAX);
        let shapes = checkpoint.tensor_infos().map(|info| (info.name, info.shape.iter().map(dimension).collect()));
        Self { shapes: shapes.collect(), checkpoint }
    }
}

impl WeightSource for Headers<'_> {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.shapes.get(name).cloned()
    }

    fn order(&self, name: &str) -> Option<&[u32]> {
        self.checkpoint.order(name)
    }
}

/// Refuses a model without a head, for what needs one.
pub(crate) fn check_head(has_head: bool, name: &str) -> Result<()> {
    if !has_head {
        bail!(
            "`{name}` was saved without its head, so it generates no text: `hotmetal serve` makes vectors of texts with it \
             (/v1/embeddings)"
        );
    }
    Ok(())
}

/// The textbook plan of a checkpoint. Every tensor must be read by some op.
pub(crate) fn plan_of(checkpoint: &Checkpoint) -> Result<Plan> {
    let plan = models::build_plan(&checkpoint.config, &Headers::of(checkpoint))?;
    let mut unread = models::unread(&plan, checkpoint.tensor_names());
    if checkpoint.quantization.is_some() {
        // AutoGPTQ gives every projection a bias, of zeros where the model has none.
        unread.retain(|name| !(name.ends_with(".bias") && is_zero(checkpoint, name)));
    }
    if let Some(first) = unread.first() {
        bail!(
            "{} tensors are not part of a `{}` model as its configuration describes it, the first of them `{first}`: \
             the configuration or the weights are another model's",
            unread.len(),
            plan.model_type,
        );
    }
    Ok(plan)
}

/// Whether a tensor can be read and is nothing but zeros.
fn is_zero(checkpoint: &Checkpoint, name: &str) -> bool {
    checkpoint.tensor(name).is_ok_and(|tensor| tensor.to_f32().iter().all(|&value| value == 0.0))
}

/// The first GPU. Found once: its context takes a third of a second to make.
fn first_gpu(args: &GpuArgs) -> Result<gpu::GpuBackend, gpu::GpuError> {
    static FIRST: OnceLock<Result<gpu::GpuBackend, gpu::GpuError>> = OnceLock::new();
    let found = FIRST.get_or_init(|| cuda(0, gpu::GpuOptions::default())).clone()?;
    found.with_options(args.options())
}

/// An NVIDIA GPU, with the kernels of this binary, or with those of the folder `HOTMETAL_KERNEL_SRC`, compiled now.
fn cuda(ordinal: usize, options: gpu::GpuOptions) -> Result<gpu::GpuBackend, gpu::GpuError> {
    let Some(folder) = kernel_folder() else {
        return gpu::GpuBackend::cuda(ordinal, options);
    };
    gpu::GpuBackend::cuda_from_source(ordinal, options, &gpu::KernelSource { folder, cache: kernel_cache() })
}

/// An Apple GPU, with kernels from where [`cuda`] has them. Found once in each way: to compile them takes seconds.
fn metal(ordinal: usize, args: &GpuArgs) -> Result<gpu::GpuBackend, gpu::GpuError> {
    type Found = (usize, gpu::MetalOptions, gpu::GpuBackend);
    static FOUND: Mutex<Vec<Found>> = Mutex::new(Vec::new());
    let wanted = args.metal_options();
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((.., backend)) = found.iter().find(|(number, options, _)| *number == ordinal && *options == wanted) {
        return backend.clone().with_options(args.options());
    }
    let backend = gpu::GpuBackend::metal(ordinal, gpu::GpuOptions::default(), &wanted)?;
    found.push((ordinal, wanted, backend.clone()));
    backend.with_options(args.options())
}

/// Where kernels are read as text, if not those of the binary are used.
fn kernel_folder() -> Option<PathBuf> {
    std::env::var_os("HOTMETAL_KERNEL_SRC").filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Where kernels are kept that were compiled on this machine.
fn kernel_cache() -> Option<PathBuf> {
    cache_folder().map(|cache| cache.join("kernels"))
}

/// Where what can be made again is kept.
fn cache_folder() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("hotmetal"))
}

/// Every GPU of this machine with its name, or why it cannot be used; and for a kind of which there is none, why.
pub(crate) fn all_gpus() -> Vec<(String, Result<gpu::GpuBackend, gpu::GpuError>)> {
    let options = gpu::GpuOptions::default();
    let kinds = [
        (CUDA, gpu::GpuBackend::all_cuda(options)),
        (METAL, gpu::GpuBackend::all_metal(options, &GpuArgs::default().metal_options())),
    ];
    let of = |(kind, found): (&str, Result<Vec<_>, gpu::GpuError>)| match found {
        Ok(found) => found.into_iter().enumerate().map(|(number, gpu)| (format!("{kind}:{number}"), gpu)).collect(),
        // Nobody expects one there.
        Err(gpu::GpuError::NotMacos) => vec![],
        Err(error) => vec![(kind.to_owned(), Err(error))],
    };
    kinds.into_iter().flat_map(of).collect()
}

/// The device that `--device` stands for where no model has a say: `auto` is the first GPU, the CPU without one.
pub(crate) fn resolve(device: &str) -> &str {
    match device {
        AUTO if first_gpu(&GpuArgs::default()).is_ok() => CUDA,
        AUTO => CPU,
        other => other,
    }
}

/// The backend that `--device`, `--threads` and `--isa` name.
pub(crate) fn backend(args: &ModelArgs) -> Result<Box<dyn Backend>> {
    args.gpu.check(&[&args.device])?;
    if let Some(gpu) = gpu_backend(args)? {
        return Ok(Box::new(gpu));
    }
    match resolve(&args.device) {
        CPU => Ok(Box::new(cpu_backend(args)?)),
        REFERENCE => Ok(Box::new(backend::reference::ReferenceBackend::new())),
        other => bail!(
            "there is no device `{other}`; this build has: auto, cpu, cuda, cuda:N, {}reference{}",
            if cfg!(target_os = "macos") { "metal, metal:N, " } else { "" },
            if gpu::HAS_SIMULATOR { ", sim" } else { "" },
        ),
    }
}

/// Whether `--device` names a GPU.
pub(crate) fn is_gpu(device: &str) -> bool {
    parse_gpu(resolve(device)).is_some()
}

/// The kind and the number of a GPU. There is one simulator.
fn parse_gpu(device: &str) -> Option<(&'static str, usize)> {
    if device == SIM {
        return Some((SIM, 0));
    }
    let (kind, number) = device.split_once(':').unwrap_or((device, "0"));
    let kind = [CUDA, METAL].into_iter().find(|&known| known == kind)?;
    Some((kind, number.parse().ok()?))
}

/// The GPU that `--device` names, if it names one.
pub(crate) fn gpu_backend(args: &ModelArgs) -> Result<Option<gpu::GpuBackend>> {
    Ok(match parse_gpu(resolve(&args.device)) {
        None => None,
        Some((CUDA, 0)) => Some(first_gpu(&args.gpu)?),
        Some((CUDA, ordinal)) => Some(cuda(ordinal, args.gpu.options())?),
        Some((SIM, _)) => Some(gpu::GpuBackend::simulated(args.gpu.options())?),
        Some((_, ordinal)) => Some(metal(ordinal, &args.gpu)?),
    })
}

/// The processors, as `--threads` and `--isa` say.
pub(crate) fn cpu_backend(args: &ModelArgs) -> Result<cpu::CpuBackend> {
    Ok(cpu::CpuBackend::new(cpu::CpuOptions {
        threads: args.threads,
        isa: args.isa,
        pin: true,
        repack: !args.no_repack,
    })?)
}

/// The weight format of that name, in any case.
pub(crate) fn parse_weight_format(name: &str) -> Result<WeightFormat, String> {
    let known = WeightFormat::ALL;
    let format = known.into_iter().find(|format| format.name().eq_ignore_ascii_case(name));
    format
        .ok_or_else(|| format!("expected one of {}", known.map(|format| format.name().to_ascii_lowercase()).join(", ")))
}

pub(crate) fn parse_isa(name: &str) -> Result<cpu::IsaLevel, String> {
    let known = cpu::IsaLevel::ALL.map(cpu::IsaLevel::name);
    let level = cpu::IsaLevel::ALL.into_iter().find(|level| level.name() == name);
    level.ok_or_else(|| format!("expected one of {}", known.join(", ")))
}

/// Loads the model that `name` stands for, the built-in one without a name, for one text at a time.
pub(crate) fn load(name: Option<&str>, args: &ModelArgs) -> Result<Model> {
    load_with(name, args, &EngineSizes { watch: &LoadBar::new(), ..EngineSizes::SINGLE })
}

/// As [`load`], for as much at a time as `sizes` says.
pub(crate) fn load_with(name: Option<&str>, args: &ModelArgs, sizes: &EngineSizes<'_>) -> Result<Model> {
    let begun = Instant::now();
    sizes.watch.stage(LoadStage::Opening);
    let (mut checkpoint, name) = open(name, false)?;
    let in_model = || format!("cannot load `{name}`");
    // The vocabulary takes as long as everything else together, so it is built beside it.
    let vocabulary = std::mem::replace(&mut checkpoint.tokenizer, TokenizerSource::None);
    let (tokenizer, rest) = std::thread::scope(|scope| {
        let tokenizer = scope.spawn(|| load_tokenizer(vocabulary, args.allow_unknown_patterns));
        let rest = load_all_but_tokenizer(&mut checkpoint, args, sizes);
        sizes.watch.stage(LoadStage::Vocabulary);
        (tokenizer.join().unwrap_or_else(|_| Err(anyhow!("the tokenizer failed in a way that is a bug"))), rest)
    });
    let Loaded { executable, device, vocab_size, room, given, chat_template, tool_template, template_fault } =
        rest.with_context(in_model)?;
    let DeviceInfo { name: device_name, description: device, .. } = device;
    let mut tokenizer = tokenizer.with_context(in_model)?;
    tokenizer.add_eos_ids(&checkpoint.eos_token_ids()?);
    let surplus = tokenizer.vocab_size().saturating_sub(vocab_size);
    if (1..=SURPLUS_MAX).contains(&surplus) {
        note(&format!(
            "the tokenizer has {} tokens and the model logits for {vocab_size}: the model never produces the others, and \
             a prompt that contains one is refused",
            tokenizer.vocab_size()
        ));
    } else if surplus > 0 {
        bail!(
            "{}: the tokenizer has {} tokens and the model logits for {vocab_size}: they do not belong together",
            in_model(),
            tokenizer.vocab_size(),
        );
    }
    let config = sizes.config(&device_name, room, vocab_size);
    let engine = Engine::new(executable, EngineConfig { eos_token_ids: tokenizer.eos_ids().to_vec(), ..config })?;
    Ok(Model {
        name,
        device,
        given,
        context_len: room.context_len,
        load_time: begun.elapsed(),
        generation_config: checkpoint.generation_config,
        embedding: checkpoint.embedding,
        has_head: checkpoint.has_head,
        engine,
        tokenizer: Arc::new(tokenizer),
        chat_template,
        tool_template,
        template_fault,
    })
}

/// Tokens that were added to a vocabulary after the model was trained are few.
const SURPLUS_MAX: usize = 1024;

/// All of a model but its tokenizer.
struct Loaded {
    executable: Box<dyn Executable>,
    device: DeviceInfo,
    vocab_size: usize,
    room: Room,
    given: Given,
    chat_template: Option<ChatTemplate>,
    tool_template: Option<ChatTemplate>,
    template_fault: Option<String>,
}

fn load_all_but_tokenizer(checkpoint: &mut Checkpoint, args: &ModelArgs, sizes: &EngineSizes<'_>) -> Result<Loaded> {
    let (plan, weights) = plan_and_weights(checkpoint, args, sizes.watch)?;
    sizes.watch.stage(LoadStage::Placing);
    let Placed { backend, room } = place(args, sizes, &plan, &weights)?;
    let device = backend.device().clone();
    let vocab_size = plan.vocab_size;
    let given = Given { device: device.name.clone(), had: device.memory_bytes, bytes: room.bytes };
    let mut copied = |bytes, total| sizes.watch.bytes(bytes, total);
    let executable = backend.load_watched(Arc::new(plan), weights, room.kv, &mut copied)?;
    let (chat_template, template_fault) = match load_chat_template(checkpoint, args.chat_template.as_deref()) {
        Ok(template) => (template, None),
        // `--chat-template` asks for this template, so it must work. A template in the model's files need not, because
        // continuing text needs none.
        Err(error) if args.chat_template.is_some() => return Err(error),
        Err(error) => {
            note(&format!("{error:#}"));
            (None, error.source().map(ToString::to_string))
        }
    };
    let tool_template = match args.chat_template {
        // It is for all conversations.
        Some(_) => None,
        None => load_tool_template(checkpoint),
    };
    Ok(Loaded { executable, device, vocab_size, room, given, chat_template, tool_template, template_fault })
}

/// Plan, backend and weights of a checkpoint, ready for [`Backend::load`].
pub(crate) fn load_weights(
    checkpoint: &mut Checkpoint,
    args: &ModelArgs,
) -> Result<(Plan, Box<dyn Backend>, Vec<Tensor>)> {
    let (plan, weights) = plan_and_weights(checkpoint, args, &Unwatched)?;
    Ok((plan, backend(args)?, weights))
}

fn plan_and_weights(checkpoint: &mut Checkpoint, args: &ModelArgs, watch: &dyn Watch) -> Result<(Plan, Vec<Tensor>)> {
    watch.stage(LoadStage::Weights);
    checkpoint.notes.iter().for_each(|line| note(line));
    args.rope.apply(&mut checkpoint.config, args.ctx_size)?;
    if args.check_tensors {
        check_tensors(checkpoint)?;
    }
    if args.quant.is_none() {
        checkpoint.sort_features();
    }
    let plan = plan::fuse(plan::restrict_outputs(plan_of(checkpoint)?));
    if let Some(mix) = args.quant {
        // What is quantised anew is made of plain numbers.
        checkpoint.expand_unless(|_| false);
        let folder = cache_folder().map(|cache| cache.join("quantized"));
        let weights = on_load::weights(checkpoint, &plan, mix, folder.as_deref())?;
        return Ok((plan, weights));
    }
    let weights = weights(checkpoint, &plan, watch)?;
    Ok((plan, weights))
}

/// Refuses a checkpoint with a number that is NaN or infinite, by the name of its tensor. On all processors: it reads
/// everything.
fn check_tensors(checkpoint: &Checkpoint) -> Result<()> {
    let names: Vec<&str> = checkpoint.tensor_names().collect();
    let (next, fault) = (AtomicUsize::new(0), Mutex::new(None));
    let check = || {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = checkpoint.check_finite(name) {
                // The error names the first faulty tensor by name. Another thread may still be reading an earlier one.
                let mut fault = fault.lock().unwrap_or_else(PoisonError::into_inner);
                if fault.as_ref().is_none_or(|(found, _)| name < found) {
                    *fault = Some((*name, error));
                }
                next.store(names.len(), Ordering::Relaxed);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(check))));
    match fault.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, error)) => Err(anyhow::Error::from(error).context("--check-tensors")),
        None => Ok(()),
    }
}

/// The tensors of `plan`; says what they are, where that is not what the file has.
fn weights(checkpoint: &Checkpoint, plan: &Plan, watch: &dyn Watch) -> Result<Vec<Tensor>> {
    let begun = Instant::now();
    let bytes: HashMap<_, _> = checkpoint.tensor_infos().map(|info| (info.name, info.bytes)).collect();
    let bytes_of = |name: &str| bytes.get(name).copied().unwrap_or_default();
    let total = plan.weights.iter().map(|weight| bytes_of(&weight.name)).sum();
    let mut loaded = 0;
    let mut weights = Vec::with_capacity(plan.weights.len());
    for weight in &plan.weights {
        watch.bytes(loaded, total);
        weights.push(checkpoint.tensor(&weight.name)?);
        loaded += bytes_of(&weight.name);
    }
    watch.bytes(loaded, total);
    let expanded: BTreeSet<_> = checkpoint
        .tensor_infos()
        .filter_map(|info| info.expanded_to().map(|format| (info.type_name, format, info.exact)))
        .collect();
    if !expanded.is_empty() {
        let words = |(name, format, exact): (&str, WeightFormat, bool)| {
            format!("{name} {} {format}", if exact { "as" } else { "rounded to" })
        };
        let names = expanded.into_iter().map(words).collect::<Vec<_>>().join(", ");
        let bytes = weights.iter().map(|weight| weight.bytes().len() as u64).sum();
        let (seconds, bytes) = (begun.elapsed().as_secs_f64(), units::bytes(bytes));
        note(&format!("weights: {names}, in {seconds:.1} s; {bytes} in memory"));
    }
    Ok(weights)
}

/// A device with room for a model.
struct Placed {
    backend: Box<dyn Backend>,
    room: Room,
}

/// What a device has room for beside the weights of a model.
#[derive(Clone, Copy, Debug)]
struct Room {
    kv: KvLayout,
    /// What the model takes of the device with it.
    bytes: u64,
    /// Tokens that a sequence may have.
    context_len: usize,
    /// Tokens that a step may compute.
    batch_tokens: usize,
}

/// Where `--device` says, or for `auto` on the first GPU if the model fits it, else on the CPU; says which and why.
fn place(args: &ModelArgs, sizes: &EngineSizes<'_>, plan: &Plan, weights: &[Tensor]) -> Result<Placed> {
    if args.device != AUTO {
        return place_on(backend(args)?, args, sizes, plan, weights);
    }
    args.gpu.check_metal(&[AUTO])?;
    let on_gpu = first_gpu(&args.gpu).map_err(anyhow::Error::from).and_then(|gpu| {
        check_load(&gpu, plan, weights)?;
        place_on(Box::new(gpu), args, sizes, plan, weights)
    });
    match on_gpu {
        Ok(placed) => {
            let device = placed.backend.device();
            note(&format!("device: {CUDA} ({}), where the model fits; --device chooses another", device.description));
            Ok(placed)
        }
        // What is forced is refused where it cannot be, and not left out.
        Err(why) if !args.gpu.force_variant.is_empty() => Err(why),
        Err(why) => {
            let line = format!("device: {CPU}, because {why:#}");
            // A machine without a GPU has no choice, and nothing to explain.
            if matches!(why.downcast_ref(), Some(gpu::GpuError::NoDriver)) {
                tracing::info!("{line}");
            } else {
                note(&line);
            }
            place_on(Box::new(cpu_backend(args)?), args, sizes, plan, weights)
        }
    }
}

/// The room that a model gets on this device. Refuses what does not fit. Steps are as large as suits the device, unless their
/// activations would take from the context.
fn place_on(
    backend: Box<dyn Backend>,
    args: &ModelArgs,
    sizes: &EngineSizes<'_>,
    plan: &Plan,
    weights: &[Tensor],
) -> Result<Placed> {
    let with_steps_of = |tokens| room_on(&*backend, args, sizes, plan, weights, tokens);
    let has_all = |room: &Room| room.context_len == args.ctx_size.unwrap_or(plan.context_len);
    let most = sizes.max_batch_tokens.unwrap_or_else(|| batch_tokens(&backend.device().name));
    let mut room = with_steps_of(most);
    if sizes.max_batch_tokens.is_none() && most > BATCH_TOKENS && !room.as_ref().is_ok_and(has_all) {
        let with_small_steps = with_steps_of(BATCH_TOKENS)?;
        if room.as_ref().map_or(0, |room| room.context_len) < with_small_steps.context_len {
            room = Ok(with_small_steps);
        }
    }
    let room = room?;
    if args.ctx_size.is_none() && room.context_len < plan.context_len {
        tracing::info!(
            "context of {} tokens: the model's {} would take {} of cache; --ctx-size sets another",
            room.context_len,
            plan.context_len,
            units::bytes((plan.kv_bytes_per_token(room.kv.format) * plan.context_len) as u64),
        );
    }
    Ok(Placed { backend, room })
}

/// The room that a model gets with steps of up to `batch_tokens` tokens.
fn room_on(
    backend: &dyn Backend,
    args: &ModelArgs,
    sizes: &EngineSizes<'_>,
    plan: &Plan,
    weights: &[Tensor],
    batch_tokens: usize,
) -> Result<Room> {
    let largest_step = sizes.largest_step(batch_tokens);
    let format = kv_format(args, weights.iter().map(|weight| Some(weight.format())));
    let layout =
        |tokens: usize| KvLayout { format, block_len: KV_BLOCK_LEN, num_blocks: tokens.div_ceil(KV_BLOCK_LEN) };
    let (device, neighbours) = (backend.device(), sizes.neighbours);
    let free = neighbours.free(device);
    // Activations grow with the context, so what they leave at the model's own is left at any.
    let most = backend.footprint(plan, weights, &layout(plan.context_len), largest_step);
    let room = most.map_or(free, |most| room_for_cache(free, &most));
    let affordable = affordable_tokens(plan, format, neighbours.cache_bytes(device, room, KV_MEMORY_SHARE));
    let context_len = context_len(plan, args.ctx_size, affordable)?;
    let kv = layout(match sizes.kv_tokens {
        KvTokens::OneContext => context_len,
        KvTokens::AsMemoryAllows => context_len.saturating_mul(sizes.max_sequences).min(affordable).max(context_len),
        KvTokens::AtLeast(tokens) => tokens.max(context_len),
    });
    let remedy = |fits| sizes.remedy(context_len, fits);
    let bytes = bytes_beside(neighbours, backend, plan, weights, &kv, largest_step, &remedy)?;
    Ok(Room { kv, bytes, context_len, batch_tokens })
}

/// Bytes that weights and activations leave for a cache.
fn room_for_cache(memory_bytes: u64, footprint: &Footprint) -> u64 {
    memory_bytes.saturating_sub(footprint.weights).saturating_sub(footprint.activations).saturating_sub(RESERVE_BYTES)
}

/// What to do about a cache, if so many tokens would fit; not called where there is no room for weights.
type Remedy<'a> = &'a dyn Fn(usize) -> String;

/// Where `--ctx-size` alone says how large the cache is.
pub(crate) fn smaller_context(fits: usize) -> String {
    match fits {
        0 => format!("weights and activations leave nothing for a cache: {SMALLER_MODEL}"),
        _ => format!("--ctx-size {fits} would fit"),
    }
}

const SMALLER_MODEL: &str = "use a more strongly quantised file, a smaller model, or --device cpu";

impl EngineSizes<'_> {
    /// The flags that ask for too much, with what would fit; sequences may have `context_len` tokens.
    fn remedy(&self, context_len: usize, fits: usize) -> String {
        let kv_tokens = match self.kv_tokens {
            KvTokens::AtLeast(tokens) if tokens > fits && fits > 0 => Some(format!("--kv-tokens {fits}")),
            _ => None,
        };
        match kv_tokens {
            None if fits == 0 && self.max_batch_tokens.is_some() => {
                format!("{}, or a smaller --batch-tokens", smaller_context(0))
            }
            None => smaller_context(fits),
            Some(flag) if context_len > fits => format!("--ctx-size {fits} with {flag} would fit"),
            Some(flag) => format!("{flag} would fit"),
        }
    }
}

/// Refuses a model that does not fit `backend` with a cache of `kv` and steps of up to `largest`, with the sizes and what
/// would fit.
pub(crate) fn check_fits(
    backend: &dyn Backend,
    plan: &Plan,
    weights: &[Tensor],
    kv: &KvLayout,
    largest: StepShape,
    remedy: Remedy<'_>,
) -> Result<()> {
    bytes_beside(&ALONE, backend, plan, weights, kv, largest, remedy).map(drop)
}

/// What a cache may take of this device besides weights that are mapped.
fn available(device: &DeviceInfo) -> u64 {
    let known = if device.name == CPU { cpu::available_bytes() } else { None };
    known.unwrap_or(u64::MAX)
}

/// As [`check_fits`], in what `neighbours` leave; returns what the model takes of the device.
fn bytes_beside(
    neighbours: &Neighbours,
    backend: &dyn Backend,
    plan: &Plan,
    weights: &[Tensor],
    kv: &KvLayout,
    largest: StepShape,
    remedy: Remedy<'_>,
) -> Result<u64> {
    let found = backend.footprint(plan, weights, kv, largest);
    let has_to_fit = found.is_some() || neighbours.is_any();
    let footprint = found.unwrap_or_else(|| {
        let tokens = (kv.num_blocks * kv.block_len) as u64;
        let kv_cache = tokens.saturating_mul(plan.kv_bytes_per_token(kv.format) as u64);
        Footprint { kv_cache, ..Footprint::default() }
    });
    let device = backend.device();
    // Alone, a model whose weights are mapped takes memory for its cache, and nothing else that could be refused.
    let (free, reserve) = if has_to_fit { (neighbours.free(device), RESERVE_BYTES) } else { (available(device), 0) };
    if footprint.total().saturating_add(reserve) <= free {
        return Ok(footprint.total());
    }
    let room = room_for_cache(free, &footprint);
    let per_token = plan.kv_bytes_per_token(kv.format).max(1) as u64;
    let tokens = usize::try_from(room / per_token).unwrap_or(usize::MAX) / KV_BLOCK_LEN * KV_BLOCK_LEN;
    let remedy = match found {
        Some(found) if found.weights.saturating_add(RESERVE_BYTES) > free => {
            format!("the weights alone do not fit: {SMALLER_MODEL}")
        }
        None if tokens == 0 => "hardly any memory is left: end other programs, or use a smaller model".to_owned(),
        _ => remedy(tokens),
    };
    let beside = match neighbours.bytes_on(&device.name) {
        0 => String::new(),
        bytes => format!(" beside the {} of the models before", units::bytes(bytes)),
    };
    let cache = format!("{} of KV cache for {} tokens", units::bytes(footprint.kv_cache), kv.num_blocks * kv.block_len);
    let what = match found {
        Some(Footprint { weights, activations, .. }) => {
            format!("{} of weights, {cache} and {} of activations do", units::bytes(weights), units::bytes(activations))
        }
        None => format!("{cache} does"),
    };
    bail!("{what} not fit the {} that are free on `{}`{beside}; {remedy}", units::bytes(free), device.name);
}

pub(crate) fn load_tokenizer(vocabulary: TokenizerSource, allow_unknown_patterns: bool) -> Result<Tokenizer> {
    let texts = |strings: formats::gguf::Strings| {
        let (text, ends) = strings.into_parts();
        Texts::from_parts(text, ends).expect("the parts of whole strings")
    };
    let options = LoadOptions { allow_unknown_patterns };
    let hinted = |error: TokenizerError| {
        let hint = "; --allow-unknown-patterns accepts such a pattern from a source that you trust";
        let hint = if matches!(error, TokenizerError::UnknownPattern { .. }) { hint } else { "" };
        anyhow!("{error}{hint}")
    };
    match vocabulary {
        TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config } => {
            let config = serde_json::to_vec(&tokenizer_config)?;
            Tokenizer::from_json(&tokenizer_json, Some(&config), &options).map_err(hinted)
        }
        TokenizerSource::Tekken { tekken_json } => Tokenizer::from_tekken(&tekken_json, &options).map_err(hinted),
        TokenizerSource::VocabMerges { vocab_json, merges_txt, beside } => with_side_files(&beside, |beside| {
            Tokenizer::from_vocab_merges(&vocab_json, &merges_txt, beside, &options).map_err(hinted)
        }),
        TokenizerSource::SentencePiece { model, beside } => {
            with_side_files(&beside, |beside| Ok(Tokenizer::from_sentence_piece(&model, beside)?))
        }
        TokenizerSource::Gguf(v) => Ok(Tokenizer::from_gguf(GgufVocabulary {
            model: v.model,
            pre: v.pre.unwrap_or_default(),
            tokens: texts(v.tokens),
            scores: v.scores,
            token_types: v.token_types,
            merges: texts(v.merges),
            bos_id: v.bos_token_id,
            eos_id: v.eos_token_id,
            eot_id: v.eot_token_id,
            eom_id: v.eom_token_id,
            unk_id: v.unknown_token_id,
            pad_id: v.padding_token_id,
            add_bos: v.add_bos_token,
            add_eos: v.add_eos_token,
            add_space_prefix: v.add_space_prefix,
            fim: FimIds {
                prefix: v.fim.prefix,
                suffix: v.fim.suffix,
                middle: v.fim.middle,
                pad: v.fim.pad,
                repo: v.fim.repo,
                file_sep: v.fim.file_sep,
            },
        })?),
        TokenizerSource::None => bail!(
            "the model has no tokenizer: a folder needs tokenizer.json beside the weights (or tekken.json, vocab.json \
             with merges.txt, or tokenizer.model), a GGUF file its tokenizer.ggml keys"
        ),
    }
}

/// Calls `read` with the files beside a vocabulary.
pub(crate) fn with_side_files<T>(beside: &TokenizerFiles, read: impl FnOnce(SideFiles<'_>) -> Result<T>) -> Result<T> {
    let config = serde_json::to_vec(&beside.tokenizer_config)?;
    read(SideFiles {
        tokenizer_config: Some(&config),
        added_tokens: beside.added_tokens.as_deref(),
        special_tokens_map: beside.special_tokens_map.as_deref(),
    })
}

fn load_chat_template(checkpoint: &Checkpoint, file: Option<&Path>) -> Result<Option<ChatTemplate>> {
    let source = match file {
        Some(path) => Some(files::read_text(path, "the chat template", files::SETTINGS_BYTES_MAX)?),
        None => checkpoint.chat_templates.default.clone(),
    };
    let Some(source) = source else { return Ok(None) };
    let template = ChatTemplate::new(&source)
        .context("cannot use the model's chat template (--raw works without it, --chat-template replaces it)")?;
    for warning in template.warnings() {
        tracing::info!("{warning}");
    }
    Ok(Some(template))
}

/// The template that the model has for conversations with tools (`tool_use`, as transformers names it). One that cannot be
/// used is reported, and the other is used for them.
fn load_tool_template(checkpoint: &Checkpoint) -> Option<ChatTemplate> {
    let named = &checkpoint.chat_templates.named;
    let (_, source) = named.iter().find(|(name, _)| name == "tool_use")?;
    match ChatTemplate::new(source) {
        Ok(template) => Some(template),
        Err(error) => {
            note(&format!("the model's template for tools (`tool_use`) cannot be used: {error}"));
            None
        }
    }
}

/// What `--kv-type` says, or exact where the weights are, and half precision otherwise.
pub(crate) fn kv_format(args: &ModelArgs, mut weights: impl Iterator<Item = Option<WeightFormat>>) -> KvFormat {
    let all_f32 = weights.all(|format| format == Some(WeightFormat::F32));
    args.kv_type.map_or(if all_f32 { KvFormat::F32 } else { KvFormat::F16 }, Into::into)
}

/// Tokens whose cache so many bytes hold.
fn affordable_tokens(plan: &Plan, kv: KvFormat, bytes: u64) -> usize {
    let per_token = plan.kv_bytes_per_token(kv).max(1) as u64;
    usize::try_from(bytes / per_token).unwrap_or(usize::MAX) / KV_BLOCK_LEN * KV_BLOCK_LEN
}

/// What `--ctx-size` says, or what the model was made for as far as memory affords its cache.
fn context_len(plan: &Plan, asked: Option<usize>, affordable: usize) -> Result<usize> {
    if let Some(asked) = asked {
        if asked > plan.context_len {
            bail!(
                "--ctx-size {asked} is more than the {} tokens that the model was made for; text beyond them would be \
                 noise (--rope-scaling yarn --rope-scale {:.0} stretches its positions so far, at some cost in quality)",
                plan.context_len,
                (asked as f64 / plan.context_len as f64).ceil(),
            );
        }
        if asked < 2 {
            bail!("--ctx-size {asked} leaves no room: one token of prompt and one to generate make 2");
        }
        return Ok(asked);
    }
    Ok(plan.context_len.min(affordable.max(2 * KV_BLOCK_LEN)))
}

impl Model {
    /// The ids of a text to continue, with what the model expects before one.
    pub(crate) fn encode_raw(&self, text: &str, special: ParseSpecial) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode_after_prefix(text, special)?)
    }

    /// The ids that ask for the text between two others, and those that end it.
    pub(crate) fn encode_gap(&self, before: &str, behind: &str) -> Result<(Vec<u32>, Vec<u32>)> {
        let Some(markers) = self.tokenizer.fim() else {
            bail!(
                "--suffix asks for the text of a gap, and the vocabulary of `{}` has no tokens that mark one",
                self.name
            );
        };
        // The letters of a mark in a file are letters.
        let before = self.tokenizer.encode(before, ParseSpecial::No)?;
        let behind = self.tokenizer.encode_inside(behind, ParseSpecial::No, &Bounds::NONE)?;
        let texts = FimTexts { prefix: &before, suffix: &behind, ..FimTexts::default() };
        Ok((markers.prompt(self.tokenizer.prefix_ids(), &texts), markers.ids().collect()))
    }

    /// The ids of a conversation that the model is to answer, through its chat template.
    pub(crate) fn encode_chat(&self, messages: &[Value], think: Option<bool>) -> Result<Vec<u32>> {
        let Some(template) = &self.chat_template else {
            if let Some(fault) = &self.template_fault {
                bail!(
                    "cannot use the chat template of `{}`: {fault} (--raw works without it, --chat-template replaces it)",
                    self.name
                );
            }
            bail!(
                "`{}` has no chat template: use --raw to continue text, or give one with --chat-template FILE",
                self.name
            );
        };
        let now = OffsetDateTime::now_local().unwrap_or_else(|_| OffsetDateTime::now_utc());
        let now = time::PrimitiveDateTime::new(now.date(), now.time());
        let text_of = |id: Option<u32>| id.and_then(|id| self.tokenizer.id_to_token(id));
        // Most templates call it `enable_thinking`, which has a field of its own; DeepSeek and Granite `thinking`.
        let extra = think.map(|think| ("thinking".to_owned(), Value::Bool(think))).into_iter().collect();
        let input = RenderInput {
            extra,
            bos_token: text_of(self.tokenizer.bos_id()),
            eos_token: text_of(self.tokenizer.eos_ids().first().copied()),
            enable_thinking: think,
            ..RenderInput::new(messages, now)
        };
        // Special tokens in a message are text: `--raw` is for prompts that are written with them.
        let prompt = Prompt::render(template, &input, &self.tokenizer, ParseSpecial::No)?;
        Ok(prompt.encode(&self.tokenizer)?)
    }
}

#[cfg(test)]
mod tests {
    use backend::{BackendError, DeviceInfo};
    use plan::{AnyShape, Op};

    use super::*;

    /// A device on which the weights take 1 MiB and activations of 512 tokens half of that.
    struct Device(DeviceInfo);

    impl Backend for Device {
        fn device(&self) -> &DeviceInfo {
            &self.0
        }

        fn supports(&self, _: &Op, _: &[WeightFormat]) -> bool {
            true
        }

        fn footprint(&self, plan: &Plan, _: &[Tensor], kv: &KvLayout, step: StepShape) -> Option<Footprint> {
            let kv_cache = (plan.kv_bytes_per_token(kv.format) * kv.num_blocks * kv.block_len) as u64;
            Some(Footprint { weights: 1 << 20, kv_cache, activations: 1024 * step.tokens as u64 })
        }

        fn load(&self, _: Arc<Plan>, _: Vec<Tensor>, _: KvLayout) -> Result<Box<dyn Executable>, BackendError> {
            Err(BackendError::Unobservable)
        }
    }

    /// With so many bytes more than the reserve.
    fn device(bytes: u64) -> Box<dyn Backend> {
        named("small", bytes)
    }

    fn named(name: &str, bytes: u64) -> Box<dyn Backend> {
        let memory_bytes = RESERVE_BYTES + bytes;
        Box::new(Device(DeviceInfo { name: name.to_owned(), description: String::new(), memory_bytes }))
    }

    fn small_plan() -> Plan {
        let config = serde_json::json!({
            "model_type": "llama", "vocab_size": 64, "hidden_size": 256, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        });
        models::build_plan(&config, &AnyShape).unwrap()
    }

    fn args(ctx_size: Option<usize>) -> ModelArgs {
        ModelArgs { ctx_size, ..ModelArgs::on(CPU) }
    }

    #[test]
    fn what_does_not_fit_a_device_is_refused_with_the_sizes_and_what_would() {
        let plan = small_plan();
        let per_token = plan.kv_bytes_per_token(KvFormat::F32) as u64;
        let error = |bytes, ctx_size| {
            place_on(device(bytes), &args(ctx_size), &EngineSizes::SINGLE, &plan, &[])
                .map(|placed| placed.room.context_len)
                .unwrap_err()
                .to_string()
        };
        let found = error((3 << 19) + 100 * per_token, Some(128));
        assert!(found.starts_with("1.00 MiB of weights, 512 KiB of KV cache for 128 tokens and 512 KiB of"), "{found}");
        assert!(found.ends_with("that are free on `small`; --ctx-size 96 would fit"), "{found}");
        assert!(error((1 << 20) - 1, Some(32)).contains("the weights alone do not fit"));
        assert!(error(1 << 20, Some(32)).contains("weights and activations leave nothing for a cache"));
        // Without a size asked for, the cache takes what is there.
        let placed = |bytes, kv_tokens| {
            let sizes = EngineSizes { kv_tokens, ..EngineSizes::SINGLE };
            let Room { context_len, kv, .. } = place_on(device(bytes), &args(None), &sizes, &plan, &[]).unwrap().room;
            (context_len, kv.num_blocks)
        };
        assert_eq!(placed((3 << 19) + 100 * per_token, KvTokens::OneContext), (96, 3));
        assert_eq!(placed((3 << 19) + 100 * per_token, KvTokens::AsMemoryAllows), (96, 3));
        assert_eq!(placed(1 << 40, KvTokens::OneContext), (4096, 128));
        // A context for each sequence, where there is memory for that.
        assert_eq!(placed(1 << 40, KvTokens::AsMemoryAllows), (4096, 16 * 128));
        assert_eq!(placed(1 << 40, KvTokens::AtLeast(5000)), (4096, 157));
        assert_eq!(placed(1 << 40, KvTokens::AtLeast(7)), (4096, 128));
    }

    /// What is advised is taken, and does fit.
    #[test]
    fn what_asks_for_too_large_a_cache_is_named_with_a_size_that_fits() {
        let plan = small_plan();
        let per_token = plan.kv_bytes_per_token(KvFormat::F32) as u64;
        let place = |ctx_size, kv_tokens: Option<usize>, max_batch_tokens| {
            let kv_tokens = kv_tokens.map_or(KvTokens::AsMemoryAllows, KvTokens::AtLeast);
            let sizes = EngineSizes { kv_tokens, max_batch_tokens, ..EngineSizes::SINGLE };
            let device = device((3 << 19) + 100 * per_token);
            place_on(device, &args(ctx_size), &sizes, &plan, &[]).map(drop).map_err(|error| error.to_string())
        };
        for (ctx_size, kv_tokens, advice) in [
            (Some(128), None, "; --ctx-size 96 would fit"),
            (Some(64), Some(5000), "; --kv-tokens 96 would fit"),
            (None, Some(5000), "; --kv-tokens 96 would fit"),
            (Some(128), Some(64), "; --ctx-size 96 would fit"),
            (Some(128), Some(5000), "; --ctx-size 96 with --kv-tokens 96 would fit"),
        ] {
            let error = place(ctx_size, kv_tokens, None).unwrap_err();
            assert!(error.ends_with(advice), "{ctx_size:?} {kv_tokens:?}: {error}");
            let advised = |flag, asked| if advice.contains(flag) { Some(96) } else { asked };
            place(advised("--ctx-size", ctx_size), advised("--kv-tokens", kv_tokens), None).unwrap();
        }
        let error = place(Some(32), None, Some(4096)).unwrap_err();
        assert!(error.ends_with("or a smaller --batch-tokens"), "{error}");
        place(Some(32), None, Some(64)).unwrap();
    }

    #[test]
    fn a_cache_beyond_the_memory_of_the_processors_is_refused_by_its_flag() {
        let plan = small_plan();
        let place = |kv_tokens| {
            let sizes = EngineSizes { kv_tokens: KvTokens::AtLeast(kv_tokens), ..EngineSizes::SINGLE };
            let backend = Box::new(cpu_backend(&args(Some(64))).unwrap());
            place_on(backend, &args(Some(64)), &sizes, &plan, &[]).map(drop).map_err(|error| error.to_string())
        };
        // A petabyte.
        let error = place((1 << 50) / plan.kv_bytes_per_token(KvFormat::F32)).unwrap_err();
        let advised = error.split("; --kv-tokens ").nth(1).and_then(|rest| rest.strip_suffix(" would fit"));
        let advised = advised.unwrap_or_else(|| panic!("{error}")).parse().unwrap();
        assert!(error.contains(" of KV cache for ") && error.contains(" free on `cpu`"), "{error}");
        place(advised).unwrap();
    }

    #[test]
    fn whoever_watches_is_told_the_stages_and_all_of_the_bytes() {
        /// Each stage, with the bytes that were told in it.
        type Stage = (LoadStage, Vec<(u64, u64)>);
        #[derive(Debug, Default)]
        struct Told(Mutex<Vec<Stage>>);
        impl Watch for Told {
            fn stage(&self, stage: LoadStage) {
                self.0.lock().unwrap().push((stage, vec![]));
            }

            fn bytes(&self, loaded: u64, total: u64) {
                self.0.lock().unwrap().last_mut().unwrap().1.push((loaded, total));
            }
        }
        // A GPU has weights copied to it (the simulator those that it cannot read where they are), the reference none.
        for (device, copies) in [(REFERENCE, false), (SIM, true)] {
            let told = Told::default();
            let sizes = EngineSizes { watch: &told, ..EngineSizes::SINGLE };
            load_with(None, &ModelArgs::on(device), &sizes).unwrap();
            let told = told.0.into_inner().unwrap();
            let expected = [
                (LoadStage::Opening, false),
                (LoadStage::Weights, true),
                (LoadStage::Placing, copies),
                (LoadStage::Vocabulary, false),
            ];
            let found: Vec<_> = told.iter().map(|(stage, bytes)| (*stage, !bytes.is_empty())).collect();
            assert_eq!(found, expected, "{device}");
            for (stage, bytes) in told.iter().filter(|(_, bytes)| !bytes.is_empty()) {
                let (first, last) = (bytes[0], bytes[bytes.len() - 1]);
                assert!(first.0 == 0 && last.0 == last.1 && last.1 > 0, "{stage:?}: {first:?} to {last:?}");
                assert!(bytes.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 == pair[1].1), "{stage:?}");
            }
        }
    }

    #[test]
    fn a_second_model_gets_what_the_first_has_left_and_is_refused_with_the_sizes() {
        const MEMORY: u64 = 600 << 20;
        let plan = small_plan();
        let per_token = plan.kv_bytes_per_token(KvFormat::F32) as u64;
        let placed = |neighbours: &Neighbours, ctx_size| {
            let sizes = EngineSizes { kv_tokens: KvTokens::AsMemoryAllows, neighbours, ..EngineSizes::SINGLE };
            place_on(device(MEMORY), &args(ctx_size), &sizes, &plan, &[])
                .map(|placed| placed.room.kv.num_blocks * KV_BLOCK_LEN)
                .map_err(|error| error.to_string())
        };
        // Alone a fourth of the memory; one of two an eighth.
        let alone = placed(&ALONE, None).unwrap();
        let mut neighbours = Neighbours::of(2);
        let first = placed(&neighbours, None).unwrap();
        assert!(first.abs_diff(alone / 2) <= KV_BLOCK_LEN, "{first} of {alone}");
        let had = device(MEMORY).device().memory_bytes;
        neighbours.give(Given { device: "small".to_owned(), had, bytes: (3 << 19) + first as u64 * per_token });
        assert_eq!(placed(&neighbours, None).unwrap(), first);
        neighbours.give(Given { device: "small".to_owned(), had, bytes: 500 << 20 });
        let refused = placed(&neighbours, Some(2048)).unwrap_err();
        assert!(refused.contains("do not fit the") && refused.contains("of the models before; "), "{refused}");
    }

    #[test]
    fn steps_are_large_where_that_takes_nothing_from_the_context() {
        let plan = small_plan();
        let per_token = plan.kv_bytes_per_token(KvFormat::F32) as u64;
        let placed = |name, bytes, ctx_size, max_batch_tokens| {
            let sizes = EngineSizes { max_batch_tokens, ..EngineSizes::SINGLE };
            let placed = place_on(named(name, bytes), &args(ctx_size), &sizes, &plan, &[]);
            placed.map(|Placed { room, .. }| (room.batch_tokens, room.context_len)).map_err(|error| error.to_string())
        };
        assert_eq!(placed("small", 1 << 40, None, None), Ok((512, 4096)));
        assert_eq!(placed(CUDA, 1 << 40, None, None), Ok((2048, 4096)));
        // 1 MiB of weights, half of activations: no room for more of those than 512 tokens have.
        let little = (3 << 19) + 128 * per_token;
        assert_eq!(placed(CUDA, little, None, None), Ok((512, 128)));
        assert_eq!(placed(CUDA, little, Some(128), None), Ok((512, 128)));
        assert_eq!(placed(CUDA, little + 3 * (1 << 19), Some(128), None), Ok((2048, 128)));
        let mixed = |device, max_sequences| {
            let sizes = EngineSizes { max_sequences, ..EngineSizes::SINGLE };
            let room = place_on(device, &args(None), &sizes, &plan, &[]).unwrap().room;
            sizes.config(CUDA, room, 64).max_mixed_tokens
        };
        assert_eq!([16, 64, 1024].map(|sequences| mixed(named(CUDA, 1 << 40), sequences)), [1008, 960, 64]);
        // What is asked for is not made smaller in silence.
        assert!(placed(CUDA, little, Some(128), Some(2048)).is_err_and(|error| error.contains("do not fit")));
        assert_eq!(placed(CUDA, little, Some(96), Some(256)), Ok((256, 96)));
    }
}
