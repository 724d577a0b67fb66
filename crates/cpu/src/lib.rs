//! The CPU backend: plans compiled to instruction lists, run by a team of threads with one barrier an op.
//!
//! Weights stay where they are, mapped; the cache is one allocation. Every kernel is written once over the vectors of
//! `simd`, whose levels (scalar, AVX2, AVX-512, NEON) give the same bits; see `kernels` for the order of accumulation that
//! makes results independent of batch, chunking and threads as well.
//!
//! Knows nothing of models, files, flags or the environment.

mod bandwidth;
mod control_group;
mod isa;
mod kernels;
mod kv_cache;
pub mod ladder;
mod memory;
mod numa;
mod observe;
mod ops;
mod own_work;
mod packed;
mod panels;
mod peaks;
mod pool;
mod processors;
mod profile;
mod program;
mod projection;
mod resident;
#[cfg(test)]
mod same_programs;
mod shared;
mod simd;
mod step;

use std::ops::Range;
use std::sync::Arc;

use backend::profile::{OpInfo, Recorder};
use backend::{
    Backend, BackendError, BlockLayout, Claims, DeviceInfo, Executable, Logits, Observer, ResidentWeight, Tuned,
    check_load, num_peaks,
};
use half::bf16;
use plan::{KvLayout, Op, Plan, StepInput, StepShape};
use tensor::{ActivationRounding, Tensor, WeightFormat};

pub use isa::{Isa, IsaLevel};
pub use memory::available_bytes;
pub use peaks::{Peak, PeakClass, peak, peak_of_format, peaks};

use kernels::quantize::QuantizedBlock;
use kernels::rope::RopeTable;
use kv_cache::{CachePlace, KvCache};
use packed::Repacking;
use pool::{Team, Turns, WorkerPanic};
use profile::Recording;
use program::{End, Program, Sizes, Source};
use shared::{AlignedBuffer, SharedSlice};
use step::{RowPlace, Scratch, Step};

/// The device's name in flags and reports.
const DEVICE: &str = "cpu";

/// How the backend uses the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads of a step, the caller included; `None` uses every processor that the process may run on.
    pub threads: Option<usize>,
    /// The instruction set; `None` uses the richest.
    pub isa: Option<IsaLevel>,
    /// Whether worker threads keep to one processor each, by turns on each node of memory where there are several. The calling
    /// thread is never moved.
    pub pin: bool,
    /// Whether weights in blocks, and BF16 ones that are multiplied in tiles, are copied during the first steps into the layout that streams best (see `packed`). Where the
    /// memory that is left does not hold the copy, and with `false`, they are used where they are: no copy, slower steps,
    /// the same bits.
    pub repack: bool,
    /// What was measured best on these processors: other ways, the same bits.
    pub tuned: Tuned,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { threads: None, isa: None, pin: true, repack: true, tuned: Tuned::NONE }
    }
}

/// Why the backend could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    /// An instruction set that this processor lacks.
    #[error("this processor has no {wanted}; it has {}", .available.join(", "))]
    NoIsa {
        /// The level asked for.
        wanted: IsaLevel,
        /// The levels that it has.
        available: Vec<&'static str>,
    },
    /// A thread count outside what makes sense.
    #[error("{threads} threads asked for; between 1 and {max} are possible")]
    Threads {
        /// The count asked for.
        threads: usize,
        /// The largest count.
        max: usize,
    },
}

/// The processors of this machine.
#[derive(Clone, Debug)]
pub struct CpuBackend {
    device: DeviceInfo,
    isa: Isa,
    threads: usize,
    pin: bool,
    repack: bool,
    tuned: Tuned,
}

impl CpuBackend {
    /// The largest team: beyond any machine, so a mistyped number does not start a million threads.
    pub const MAX_THREADS: usize = 1024;

    /// The backend with `options`. Starts no threads: each executable has its own team.
    pub fn new(options: CpuOptions) -> Result<Self, CpuError> {
        let isa = match options.isa {
            None => Isa::best(),
            Some(wanted) => Isa::new(wanted).ok_or_else(|| CpuError::NoIsa {
                wanted,
                available: Isa::available().into_iter().map(|isa| isa.level().name()).collect(),
            })?,
        };
        let threads = match options.threads {
            None => std::thread::available_parallelism().map_or(1, usize::from).min(Self::MAX_THREADS),
            Some(threads) if (1..=Self::MAX_THREADS).contains(&threads) => threads,
            Some(threads) => return Err(CpuError::Threads { threads, max: Self::MAX_THREADS }),
        };
        let plural = if threads == 1 { "" } else { "s" };
        let nodes = match pool::nodes_of(threads, options.pin) {
            1 => String::new(),
            nodes => format!(" on {nodes} nodes of memory"),
        };
        let tuned = options.tuned.num_choices();
        let tuned = tuned.map(|shapes| format!(", tuned for {shapes} shapes")).unwrap_or_default();
        let device = DeviceInfo {
            name: DEVICE.to_owned(),
            description: format!("{}, {isa}, {threads} thread{plural}{nodes}{tuned}", isa::processor_name()),
            memory_bytes: memory::total_bytes(),
            driver: None,
        };
        let CpuOptions { pin, repack, tuned, .. } = options;
        Ok(Self { device, isa, threads, pin, repack, tuned })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads of a step, the caller included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Whether weights like these are brought into the layout that streams best: where nothing else was measured, always.
    fn is_repacked(&self, weights: &[Tensor]) -> bool {
        let label = |is_repacked: &bool| if *is_repacked { Self::IN_PANELS } else { Self::IN_ROWS }.to_owned();
        self.tuned.pick(|| Self::layout_key(weights), vec![true, false], label, 0).unwrap_or(true)
    }

    /// What [`backend::Tuning`] calls the layout of weights in these formats.
    pub fn layout_key(weights: &[Tensor]) -> String {
        let matrices = weights.iter().filter(|weight| weight.shape().len() > 1);
        let mut formats: Vec<_> = matrices.map(|weight| weight.format().name().to_ascii_lowercase()).collect();
        formats.sort_unstable();
        formats.dedup();
        format!("layout {}", formats.join("+"))
    }

    /// The layout of weights that are brought into panels, and of those that stay as the file has them.
    pub const IN_PANELS: &str = "panels";
    /// See [`Self::IN_PANELS`].
    pub const IN_ROWS: &str = "rows";
}

impl Backend for CpuBackend {
    fn device(&self) -> &DeviceInfo {
        &self.device
    }

    fn supports(&self, op: &Op, _formats: &[WeightFormat]) -> bool {
        // Every op in every format; a match without a wildcard, so that a new one is decided here.
        match op {
            Op::Embed { .. }
            | Op::RmsNorm { .. }
            | Op::Linear { .. }
            | Op::Rope { .. }
            | Op::KvWrite { .. }
            | Op::Attention { .. }
            | Op::Glu { .. }
            | Op::Add { .. }
            | Op::GatherColumns { .. }
            | Op::HeadLinear { .. }
            | Op::LatentWrite { .. }
            | Op::LatentRopeWrite { .. }
            | Op::MlaAttention { .. }
            | Op::SelectOutputs { .. }
            | Op::NormLinear { .. }
            | Op::NormGlu { .. }
            | Op::LinearResidual { .. }
            | Op::RopeKvWrite { .. }
            | Op::Logits { .. }
            | Op::Route { .. }
            | Op::ExpertLinear { .. }
            | Op::Combine { .. }
            | Op::GateRows { .. }
            | Op::MoeRoute { .. }
            | Op::MoeGlu { .. }
            | Op::MoeDown { .. } => true,
        }
    }

    fn claims(&self) -> Claims {
        /// `bf16` is what happens to activations that meet BF16 weights.
        const fn rounding(format: WeightFormat, bf16: ActivationRounding) -> ActivationRounding {
            match format {
                WeightFormat::BF16 => bf16,
                WeightFormat::F32 | WeightFormat::F16 => ActivationRounding::F32,
                _ => ActivationRounding::Q8Blocks,
            }
        }
        let rounds = self.isa.rounds_to_bf16();
        let activations: fn(WeightFormat) -> ActivationRounding = match rounds {
            false => |format| rounding(format, ActivationRounding::F32),
            true => |format| rounding(format, ActivationRounding::BF16),
        };
        let own_bits = self.isa.own_order().map(|name| (WeightFormat::BF16, name));
        Claims { activations, bit_exact: true, same_bits: Some(DEVICE), own_bits, ..Claims::default() }
    }

    fn load(&self, plan: Arc<Plan>, weights: Vec<Tensor>, kv: KvLayout) -> Result<Box<dyn Executable>, BackendError> {
        check_load(self, &plan, &weights)?;
        let layout_error = || out_of_memory("a KV cache", u64::MAX);
        let (layers, len) = kv_cache::place_layers(&plan.kv_layers, kv).ok_or_else(layout_error)?;
        let bytes = (len as u64).saturating_mul(kv.format.bytes() as u64);
        if !memory::has_room(bytes) {
            return Err(out_of_memory("a KV cache", bytes));
        }
        let cache = KvCache::zeroed(kv.format, len).ok_or_else(|| out_of_memory("a KV cache", bytes))?;
        let team = Team::new(self.threads, self.pin).map_err(|error| BackendError::Device {
            device: DEVICE.to_owned(),
            reason: format!("cannot start {} threads: {error}", self.threads),
        })?;
        let mut vectors = vec![vec![]; weights.len()];
        for weight in vector_weights(&plan) {
            if vectors[weight].is_empty() {
                vectors[weight] = weights[weight].to_f32();
            }
        }
        let repacking = match self.repack && self.is_repacked(&weights) {
            true => Repacking::new(self.isa, &plan, &weights),
            false => Repacking::never(&weights),
        };
        let ropes = plan.ropes.iter().map(RopeTable::new).collect();
        Ok(Box::new(CpuExecutable {
            isa: self.isa,
            tuned: self.tuned,
            hidden: plan::hidden_states(&plan).map(Arc::new),
            plan,
            kv,
            weights,
            repacking,
            vectors,
            ropes,
            layers,
            cache,
            team,
            programs: vec![],
            memory: Memory::default(),
            rows: vec![],
            recording: None,
        }))
    }
}

/// Weights of one dimension: norms, biases and what else kernels read as f32 vectors.
fn vector_weights(plan: &Plan) -> impl Iterator<Item = usize> {
    (0..plan.weights.len()).filter(|&weight| plan.weights[weight].shape.len() == 1)
}

fn kernel_panicked(WorkerPanic(message): WorkerPanic) -> BackendError {
    BackendError::Device { device: DEVICE.to_owned(), reason: format!("a kernel panicked: {message}") }
}

fn out_of_memory(what: &'static str, needed_bytes: u64) -> BackendError {
    BackendError::OutOfMemory { device: DEVICE.to_owned(), what, needed_bytes, free_bytes: available_bytes() }
}

/// A plan with its weights, cache and threads.
struct CpuExecutable {
    isa: Isa,
    tuned: Tuned,
    plan: Arc<Plan>,
    /// The same without the head.
    hidden: Option<Arc<Plan>>,
    kv: KvLayout,
    weights: Vec<Tensor>,
    repacking: Repacking,
    vectors: Vec<Vec<f32>>,
    ropes: Vec<RopeTable>,
    layers: Vec<CachePlace>,
    cache: KvCache,
    team: Team,
    /// By end and shape, ascending.
    programs: Vec<Program>,
    memory: Memory,
    /// Where each row of the current step stands; kept for its memory.
    rows: Vec<RowPlace>,
    /// Of steps, for a recorder that asked for it.
    recording: Option<Recording>,
}

/// The memory of steps, as large as the largest program needs.
#[derive(Default)]
struct Memory {
    sizes: Sizes,
    arena: AlignedBuffer<f32>,
    quantized: AlignedBuffer<QuantizedBlock>,
    rounded: AlignedBuffer<bf16>,
    scratch: Vec<Scratch>,
}

impl Memory {
    fn new(sizes: Sizes, threads: usize) -> Option<Self> {
        Some(Self {
            sizes,
            arena: AlignedBuffer::zeroed_in_large_pages(sizes.arena)?,
            quantized: AlignedBuffer::zeroed_in_large_pages(sizes.quantized)?,
            rounded: AlignedBuffer::zeroed_in_large_pages(sizes.rounded)?,
            scratch: (0..threads).map(|_| Scratch::new(sizes.worker)).collect::<Option<_>>()?,
        })
    }
}

impl Executable for CpuExecutable {
    fn compile(&mut self, shape: StepShape) -> Result<(), BackendError> {
        self.compile_to(End::Logits, shape).map(drop)
    }

    fn replay(&mut self, input: &StepInput) -> Result<&[f32], BackendError> {
        self.replay_with_peaks(input).map(|made| made.values)
    }

    fn replay_with_peaks(&mut self, input: &StepInput) -> Result<Logits<'_>, BackendError> {
        let recorded = self.recording.as_ref().and_then(Recording::begin);
        let program = self.begin(End::Logits, input)?;
        match recorded {
            None => self.run(program, input, |step, worker, scratch| step.run(worker, scratch))?,
            Some(begin_ns) => profile::run(self, begin_ns, program, input)?,
        }
        Ok(Logits { values: self.result(program, input), peaks: self.peaks(program, input) })
    }

    fn hidden_size(&self) -> Option<usize> {
        self.hidden.as_ref().map(|hidden| hidden.value(hidden.logits).width)
    }

    fn replay_hidden(&mut self, input: &StepInput) -> Result<&[f32], BackendError> {
        let program = self.begin(End::Hidden, input)?;
        self.run(program, input, |step, worker, scratch| step.run(worker, scratch))?;
        Ok(self.result(program, input))
    }

    fn replay_observed(&mut self, input: &StepInput, observer: &mut Observer<'_>) -> Result<&[f32], BackendError> {
        observe::replay(self, input, observer)
    }

    fn forget_programs(&mut self) {
        self.programs.clear();
    }

    fn settle(&mut self) -> Result<(), BackendError> {
        // What a step of no end of rows can bear.
        let Self { isa, team, weights, .. } = self;
        self.repacking.before_step(*isa, team, weights, usize::MAX).map_err(kernel_panicked)
    }

    fn variants(&mut self, shape: StepShape) -> Result<Vec<OpInfo>, BackendError> {
        profile::variants(self, shape.bucket())
    }

    fn resident_weights(&self) -> Vec<ResidentWeight> {
        resident::list(self)
    }

    fn read_weight(
        &mut self,
        resident: &ResidentWeight,
        range: Range<u64>,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), BackendError> {
        let range = range.start as usize..range.end as usize;
        if let Some(bytes) = resident::bytes(self, resident).and_then(|bytes| bytes.get(range)) {
            read(bytes);
        }
        Ok(())
    }

    fn block_layout(&self) -> Option<BlockLayout> {
        let KvLayout { format, block_len, .. } = self.kv;
        Some(BlockLayout {
            name: format!("cpu {format:?} {block_len} {:?}", self.plan.kv_layers),
            bytes: self.layers.iter().map(|layer| layer.block(0).len()).sum::<usize>() * format.bytes(),
        })
    }

    fn read_block(&mut self, block: u32, to: &mut Vec<u8>) -> Result<(), BackendError> {
        for layer in &self.layers {
            to.extend_from_slice(self.cache.bytes_mut(layer.block(block)));
        }
        Ok(())
    }

    fn write_block(&mut self, block: u32, from: &[u8]) -> Result<(), BackendError> {
        let mut rest = from;
        for layer in &self.layers {
            let to = self.cache.bytes_mut(layer.block(block));
            let (own, others) = rest.split_at(to.len());
            to.copy_from_slice(own);
            rest = others;
        }
        Ok(())
    }

    fn record(&mut self, recorder: Recorder) -> Result<(), BackendError> {
        self.recording = Some(Recording::new(recorder, self.team.count()));
        Ok(())
    }
}

impl CpuExecutable {
    /// The place of the program for steps of up to `shape` that end so; makes it if there is none.
    fn compile_to(&mut self, end: End, shape: StepShape) -> Result<usize, BackendError> {
        let key = |program: &Program| (program.end, program.shape);
        let place = match self.programs.binary_search_by_key(&(end, shape), key) {
            Ok(place) => return Ok(place),
            Err(place) => place,
        };
        let plan = match (end, &self.hidden) {
            (End::Logits, _) => &self.plan,
            (End::Hidden, Some(hidden)) => hidden,
            (End::Hidden, None) => return Err(BackendError::NoHiddenStates),
        };
        let source = Source {
            plan,
            weights: &self.weights,
            layers: &self.layers,
            max_positions: self.kv.num_blocks.saturating_mul(self.kv.block_len).min(self.plan.context_len),
            threads: self.team.count(),
            turns: &|| self.team.turns(),
            isa: self.isa,
            tuned: self.tuned,
        };
        let program = source.compile(end, shape);
        let sizes = self.memory.sizes.max(program.sizes);
        if sizes != self.memory.sizes {
            // The old memory goes first: nothing in it outlives a step, and two would not fit where one does.
            self.memory = Memory::default();
            let bytes = (sizes.arena as u64).saturating_mul(size_of::<f32>() as u64);
            if !memory::has_room(bytes) {
                self.programs.clear();
                return Err(out_of_memory("activations", bytes));
            }
            let Some(memory) = Memory::new(sizes, self.team.count()) else {
                self.programs.clear();
                return Err(out_of_memory("activations", bytes));
            };
            self.memory = memory;
        }
        self.rows.reserve(shape.tokens.saturating_sub(self.rows.len()));
        self.programs.insert(place, program);
        Ok(place)
    }

    /// Checks `input` and makes ready for it. Returns the place of its program.
    fn begin(&mut self, end: End, input: &StepInput) -> Result<usize, BackendError> {
        input.check(self.plan.vocab_size, &self.kv)?;
        // The program of the step's own size, never a larger one that would hold it too: kernels are chosen for the size,
        // and those for a long prompt take more than twice the time for one token.
        let index = self.compile_to(end, input.shape().bucket())?;
        self.repacking
            .before_step(self.isa, &mut self.team, &self.weights, input.token_ids.len())
            .map_err(kernel_panicked)?;
        place_rows(input, self.kv.block_len, &mut self.rows);
        self.programs[index].turns.iter().for_each(Turns::reset);
        Ok(index)
    }

    /// Runs `work` on every worker, each with its own memory, on the step that [`Self::begin`] made ready.
    fn run(
        &mut self,
        program: usize,
        input: &StepInput,
        work: impl Fn(&Step<'_>, &pool::Worker<'_>, &mut Scratch) + Sync,
    ) -> Result<(), BackendError> {
        let step = Step {
            isa: self.isa,
            program: &self.programs[program],
            input,
            rows: &self.rows,
            weights: &self.weights,
            packed: self.repacking.packed(),
            vectors: &self.vectors,
            ropes: &self.ropes,
            orders: &self.plan.orders,
            layers: &self.layers,
            arena: SharedSlice::new(&mut self.memory.arena),
            quantized: SharedSlice::new(&mut self.memory.quantized),
            rounded: SharedSlice::new(&mut self.memory.rounded),
            kv: self.cache.share(),
        };
        let scratch = SharedSlice::new(&mut self.memory.scratch);
        let job = |worker: &pool::Worker<'_>| {
            // SAFETY: each worker has the element of its own index.
            let own = unsafe { scratch.write(worker.index..worker.index + 1) };
            work(&step, worker, &mut own[0]);
        };
        self.team.run(&job).map_err(kernel_panicked)
    }

    /// The result of the step that has run.
    fn result(&self, program: usize, input: &StepInput) -> &[f32] {
        let Program { result, result_width, .. } = self.programs[program];
        &self.memory.arena[result..result + input.output_rows.len() * result_width]
    }

    /// The peaks of that result, if the program keeps them.
    fn peaks(&self, program: usize, input: &StepInput) -> Option<&[f32]> {
        let Program { peaks, result_width, .. } = self.programs[program];
        peaks.map(|start| &self.memory.arena[start..start + input.output_rows.len() * num_peaks(result_width)])
    }
}

/// Where each row of `input` stands.
fn place_rows(input: &StepInput, block_len: usize, rows: &mut Vec<RowPlace>) {
    rows.clear();
    for sequence in &input.sequences {
        let table = input.table(sequence);
        rows.extend(
            (sequence.first_position..sequence.kv_len())
                .map(|position| RowPlace { position, slot: (table[position / block_len], position % block_len) }),
        );
    }
}
