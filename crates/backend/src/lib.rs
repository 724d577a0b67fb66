//! What a device backend is: it says what it supports, loads a plan with its weights, compiles it for step shapes, and
//! replays.
//!
//! Knows nothing of models: only plans, tensors and step inputs.

#![forbid(unsafe_code)]

mod claims;
#[cfg(feature = "conformance")]
pub mod conformance;
mod logits;
pub mod profile;
pub mod reference;
mod tuned;
mod tuning;
mod weight_check;

use std::ops::Range;
use std::sync::Arc;

use plan::reference::{Choices, Seen};
use plan::{KvLayout, Op, Plan, StepError, StepInput, StepShape, Value};
use tensor::{Tensor, WeightFormat};

use crate::profile::{OpInfo, Recorder};

pub use claims::{Claims, Feature};
pub use logits::{Logits, PEAK_GROUP, num_peaks, peak};
pub use tuned::Tuned;
pub use tuning::{Tunable, Tuning};
pub use weight_check::{ChangedWeight, ResidentWeight, WeightCheck, WeightFault};

/// Why a backend could not load, compile or run.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// An op, or a format in it, that the backend has no kernel for.
    #[error("device `{device}` has no kernel for `{op}` with {formats}; choose another --device or weight format")]
    Unsupported {
        /// The device's name.
        device: String,
        /// The op's name.
        op: &'static str,
        /// The formats of the op's weights.
        formats: String,
    },
    /// Something that the model asks for and the backend does not compute yet.
    #[error("device `{device}` does not compute {} yet; `--device cpu` does", feature.words())]
    Lacks {
        /// The device's name.
        device: String,
        /// What it lacks.
        feature: Feature,
    },
    /// Tensors that do not match the plan.
    #[error("weight `{name}` of the plan has shape {expected:?}, but the tensor given has {found:?}")]
    WrongWeight {
        /// The weight's name.
        name: String,
        /// The plan's shape.
        expected: Vec<usize>,
        /// The tensor's shape.
        found: Vec<usize>,
    },
    /// The device's memory does not hold what was asked for.
    #[error(
        "device `{device}` cannot hold {what} of {}{}; use a smaller --ctx-size or model",
        mebibytes(*needed_bytes),
        free_words(*free_bytes)
    )]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// What did not fit: the KV cache, the activations.
        what: &'static str,
        /// Its size.
        needed_bytes: u64,
        /// What is free of the device's memory, where the device says it.
        free_bytes: Option<u64>,
    },
    /// A backend without the means to say what its steps do.
    #[error("this device does not record {what}; `--device cpu` does")]
    NotRecorded {
        /// What was asked for.
        what: &'static str,
    },
    /// A device that steps cannot be queued on, or a step that was not.
    #[error("no step is under way on this device: a bug of the caller")]
    NotQueued,
    /// A plan whose head is no projection of normalised rows, or a device that gives logits only.
    #[error("no hidden states, and so no embeddings: the head of this model is no projection of normalised rows")]
    NoHiddenStates,
    /// A device whose cache cannot be copied block by block.
    #[error("this device gives no blocks of its KV cache out")]
    NoBlocks,
    /// A step input that contradicts the plan or the cache: a bug of the caller.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A device that does not show what single ops made.
    #[error("this device does not show the results of single ops: its kernels can only be compared by their logits")]
    Unobservable,
    /// The device failed in a way of its own.
    #[error("device `{device}` failed: {reason}")]
    Device {
        /// The device's name.
        device: String,
        /// What it said.
        reason: String,
    },
}

/// A size for people: `1536` → `1536 bytes`, `1572864` → `1.5 MiB`.
fn mebibytes(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    if bytes < MIB { format!("{bytes} bytes") } else { format!("{:.1} MiB", bytes as f64 / MIB as f64) }
}

fn free_words(free_bytes: Option<u64>) -> String {
    free_bytes.map_or(String::new(), |free| format!(": {} of its memory are free", mebibytes(free)))
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The name that flags and reports use: `cpu`.
    pub name: String,
    /// What it is to a person: processor, instruction set, threads.
    pub description: String,
    /// Memory that weights and cache can use, in bytes.
    pub memory_bytes: u64,
    /// The versions of what stands between the program and the device: `driver 580.95.05, CUDA 13.0`. `None` where nothing
    /// does, or where nobody says.
    pub driver: Option<String>,
}

/// What a model takes of a device's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Weights, as the device lays them out.
    pub weights: u64,
    /// The cache of all layers.
    pub kv_cache: u64,
    /// Activations of the largest step, its input, rotary angles.
    pub activations: u64,
}

impl Footprint {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv_cache).saturating_add(self.activations)
    }
}

/// A device that can run plans. Several threads may load plans at a time.
pub trait Backend: Sync {
    /// What the device is.
    fn device(&self) -> &DeviceInfo;

    /// Whether there is a kernel for `op` with weights in these formats (in the order of [`Op::weights`]).
    fn supports(&self, op: &Op, formats: &[WeightFormat]) -> bool;

    /// What it says of its results.
    fn claims(&self) -> Claims {
        Claims::default()
    }

    /// What [`Backend::load`] and steps of up to `largest` take of the device's memory. `None` where nothing has to fit,
    /// because weights are used where the file is mapped.
    fn footprint(&self, _plan: &Plan, _weights: &[Tensor], _kv: &KvLayout, _largest: StepShape) -> Option<Footprint> {
        None
    }

    /// Bytes that the device reads of each of `weights` where it reads all of it: as it lays them out.
    fn weight_bytes(&self, weights: &[Tensor]) -> Vec<u64> {
        weights.iter().map(|tensor| tensor.bytes().len() as u64).collect()
    }

    /// Places weights (in the order of [`Plan::weights`]) and cache on the device. Every op must be supported:
    /// [`check_load`] says so by name.
    fn load(&self, plan: Arc<Plan>, weights: Vec<Tensor>, kv: KvLayout) -> Result<Box<dyn Executable>, BackendError>;

    /// As [`Backend::load`]. Where weights are copied to the device, `copied` is told how many of their bytes are there, of how
    /// many: from none to all, and never fewer than before. A device that reads them where they are tells nothing.
    fn load_watched(
        &self,
        plan: Arc<Plan>,
        weights: Vec<Tensor>,
        kv: KvLayout,
        copied: Copied<'_>,
    ) -> Result<Box<dyn Executable>, BackendError> {
        let _ = copied;
        self.load(plan, weights, kv)
    }
}

/// Is told how many bytes were copied, of how many.
pub type Copied<'a> = &'a mut dyn FnMut(u64, u64);

/// What a device says of an output row when it is the device that chooses the token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The id that [`plan::sampling::choose`] chooses, as [`StepInput::sampling`] says: without it the id with the largest logit,
    /// the lowest of equals. Some id of the vocabulary where a logit is not finite.
    pub token_id: u32,
    /// The first logit that is not finite, with its id.
    pub fault: Option<(u32, f32)>,
}

/// What a device was asked to do since it was loaded; in steady state only `steps` and `waits` grow, both by one a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps that were submitted.
    pub steps: u64,
    /// Times that the host waited for the device.
    pub waits: u64,
    /// Allocations, on the device and of memory that it copies from and to.
    pub allocations: u64,
    /// Kernels that were looked up by name.
    pub look_ups: u64,
    /// Kernels that were launched one by one, and not as part of a recorded step.
    pub launches: u64,
}

/// How a block of the KV cache lies in a device's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// All that it depends on. A block of one layout can be written where the layout has the same name.
    pub name: String,
    /// Bytes of a block, of all layers.
    pub bytes: usize,
}

/// A plan on a device, with its weights and its cache.
pub trait Executable: Send {
    /// Makes the program for steps of up to `shape`, a [`StepShape::bucket`], so that no later step pays for it.
    fn compile(&mut self, shape: StepShape) -> Result<(), BackendError>;

    /// Runs one step with the program of its bucket (compiled now if there is none). Returns the logits,
    /// (outputs, vocab_size) row-major, valid until the next step.
    fn replay(&mut self, input: &StepInput) -> Result<&[f32], BackendError>;

    /// As [`Executable::replay`], with the peaks of the logits where the device finds them as it makes these.
    fn replay_with_peaks(&mut self, input: &StepInput) -> Result<Logits<'_>, BackendError> {
        Ok(Logits { values: self.replay(input)?, peaks: None })
    }

    /// The width of what [`Executable::replay_hidden`] returns; `None` where the device does not give it.
    fn hidden_size(&self) -> Option<usize> {
        None
    }

    /// As [`Executable::replay`], over the same cache, but returns what the final norm makes of the output rows, (outputs,
    /// hidden_size) row-major, valid until the next step: what the head would make logits of. [`plan::hidden_states`] is its
    /// meaning.
    fn replay_hidden(&mut self, _input: &StepInput) -> Result<&[f32], BackendError> {
        Err(BackendError::NoHiddenStates)
    }

    /// Has routers choose as `choices` says in the steps to come, and returns what came of the choices before these. Only the
    /// reference does it, so that what another device makes of its own choices can be compared.
    fn choose(&mut self, _choices: Option<Choices>) -> Option<Seen> {
        None
    }

    /// Whether steps can be queued now. It may change from step to step; what is under way can always be collected.
    fn can_queue(&self) -> bool {
        false
    }

    /// Queues a step whose tokens the device chooses, as [`StepInput::sampling`] says. Its token ids may be
    /// [`plan::FED`] by the step queued before it, so that it can be queued while the host does not know them yet. At most
    /// two steps are under way; neither [`Executable::replay`] nor the like may be called meanwhile.
    fn enqueue(&mut self, _input: &StepInput) -> Result<(), BackendError> {
        Err(BackendError::NotQueued)
    }

    /// Waits for the oldest step under way. Returns its choices, (outputs,), valid until the next call. They are those that
    /// the logits of [`Executable::replay`] give.
    fn collect(&mut self) -> Result<&[Choice], BackendError> {
        Err(BackendError::NotQueued)
    }

    /// What the device was asked to do; all zero where nobody counts.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// As [`Executable::replay`], with the same kernels and the same result, and shows `observer` what each op made. For
    /// comparing devices: it may be much slower, and a device may not have it.
    fn replay_observed(&mut self, input: &StepInput, observer: &mut Observer<'_>) -> Result<&[f32], BackendError> {
        let _ = (input, observer);
        Err(BackendError::Unobservable)
    }

    /// Forgets the programs that were made so far, so that later steps are compiled with the choices that
    /// [`Tuning`] has by then. Steps must not be under way.
    fn forget_programs(&mut self) {}

    /// Does now what later steps would do little by little, such as bringing weights into a faster layout: what is measured
    /// after it is the steady state.
    fn settle(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// The memory that holds weights and that nothing changes as long as the model is loaded, for [`WeightCheck`]. Steps
    /// may add to it, where they bring weights into a faster layout. Empty where nobody can read it back.
    fn resident_weights(&self) -> Vec<ResidentWeight> {
        vec![]
    }

    /// Shows `read` this range of one of [`Executable::resident_weights`], in order. Not to be called while steps are
    /// under way.
    fn read_weight(
        &mut self,
        _resident: &ResidentWeight,
        _range: Range<u64>,
        _read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), BackendError> {
        Ok(())
    }

    /// How blocks of the cache lie here; `None` where they cannot be copied out and in.
    fn block_layout(&self) -> Option<BlockLayout> {
        None
    }

    /// Adds a block of the cache to `to`: what each layer keeps of it, layer after layer, as it lies here. Steps may be under
    /// way that do not write it.
    fn read_block(&mut self, _block: u32, _to: &mut Vec<u8>) -> Result<(), BackendError> {
        Err(BackendError::NoBlocks)
    }

    /// Makes a block of the cache what [`Executable::read_block`] gave: [`BlockLayout::bytes`] of them. Steps may be under
    /// way that do not touch it.
    fn write_block(&mut self, _block: u32, _from: &[u8]) -> Result<(), BackendError> {
        Err(BackendError::NoBlocks)
    }

    /// What the program for steps of `shape` consists of, in its order, and how each op is computed. Compiles it if there
    /// is none.
    fn variants(&mut self, _shape: StepShape) -> Result<Vec<OpInfo>, BackendError> {
        Err(BackendError::NotRecorded { what: "which kernels its programs use" })
    }

    /// Records each later step for as long as `recorder` is on. One that is off costs next to nothing.
    fn record(&mut self, _recorder: Recorder) -> Result<(), BackendError> {
        Err(BackendError::NotRecorded { what: "its steps" })
    }
}

/// Is shown the results of a step: the place of an op in [`Plan::ops`], which of its results, and the elements. Every
/// result of every op is shown once; those of an op that writes the cache may come after those of later ops.
pub type Observer<'a> = dyn FnMut(usize, Observed, &[f32]) + 'a;

/// One result of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Observed {
    /// A value of the plan: (rows, width).
    Value(Value),
    /// The keys of the step's tokens as they now stand in the cache of the op's layer: (tokens, kv_heads · head_dim),
    /// or the rows of a latent layer.
    CacheKeys,
    /// The values of the step's tokens, likewise. Nothing in a latent layer.
    CacheValues,
}

/// The checks that every backend's `load` makes first: each weight has the plan's shape, each op has a kernel.
pub fn check_load(backend: &dyn Backend, plan: &Plan, weights: &[Tensor]) -> Result<(), BackendError> {
    for (index, info) in plan.weights.iter().enumerate() {
        let found = weights.get(index).map(|tensor| tensor.shape().to_vec()).unwrap_or_default();
        if found != info.shape {
            return Err(BackendError::WrongWeight { name: info.name.clone(), expected: info.shape.clone(), found });
        }
    }
    if let Some(feature) = backend.claims().lacking(plan) {
        return Err(BackendError::Lacks { device: backend.device().name.clone(), feature });
    }
    for op in &plan.ops {
        let formats: Vec<_> = op.weights().iter().map(|weight| weights[weight.index()].format()).collect();
        if !backend.supports(op, &formats) {
            let mut names = formats.iter().map(|format| format.name()).collect::<Vec<_>>();
            // Hundreds of experts have one format.
            names.dedup();
            return Err(BackendError::Unsupported {
                device: backend.device().name.clone(),
                op: op.name(),
                formats: if names.is_empty() { "no weights".to_owned() } else { names.join(", ") },
            });
        }
    }
    Ok(())
}
