//! Takes the time of one op, and compares its results with the reference.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use backend::profile::{Cost, CostModel};
use backend::reference::ReferenceBackend;
use backend::{Backend, BackendError, Executable};
use plan::{BlockCopy, KvFormat, KvLayout, Plan, StepInput, WeightInfo};
use tensor::{Tensor, WeightFormat};

use crate::KV_BLOCK_LEN;
use crate::cases::{Case, is_of_op};
use crate::patterns::{Pattern, Random, SEED};
use crate::statistics::{Summary, median};

/// Copies of an op in one plan: beyond this, planning takes longer than measuring.
const MAX_COPIES: usize = 512;
/// Copies of an op without weights to speak of: enough to make a replay long.
const COPIES_WITHOUT_WEIGHTS: usize = 64;
/// An op whose weights and cache are smaller than this is not bound by reading them.
const WEIGHTLESS_BYTES: u64 = 64 << 10;
/// A replay of all copies may take this long; longer ones are of a single copy, which arithmetic then bounds.
const MAX_REPLAY_SECONDS: f64 = 0.5;
/// A sample is of so many replays that it takes this long at least.
const MIN_SAMPLE_SECONDS: f64 = 2e-3;
/// Samples of this length are taken three times at most.
const LONG_SAMPLE_SECONDS: f64 = 0.2;
/// Tokens in the cache when results are compared: the reference is slow.
const CHECK_DEPTH: usize = 128;
/// Blocks of the cache that are computed when it is filled; the others are copies of these.
const FILLED_BLOCKS: usize = 4;
/// Rows whose results are compared, at most.
const CHECK_ROWS: usize = 3;

/// One op in one weight format, with its weights and what the reference says.
pub struct Subject<'a> {
    case: &'a Case,
    kv_format: KvFormat,
    /// Tokens in the cache before the step, where the op has one.
    depth: usize,
    copies: usize,
    weights: Weights,
    /// By number of rows.
    expected: HashMap<usize, Vec<f32>>,
}

/// What was measured of one op with some number of rows.
pub struct Measured {
    /// Seconds that the op takes once; `None` where its plan takes no longer with it than without.
    pub seconds: Option<Summary>,
    /// Copies of the op that the plan went through in turn.
    pub copies: usize,
    /// Whether caches were emptied before each replay instead.
    pub evicted: bool,
    /// What the op reads, writes and computes.
    pub cost: Cost,
    /// Which kernels the device says it used, each once.
    pub variants: Vec<String>,
}

impl<'a> Subject<'a> {
    /// `case` with matrices in `format`, in as many copies as take `rotation_bytes`.
    pub fn new(
        case: &'a Case,
        format: WeightFormat,
        kv_format: KvFormat,
        depth: usize,
        rotation_bytes: u64,
    ) -> Result<Self> {
        let depth = if case.has_cache() { depth.next_multiple_of(KV_BLOCK_LEN) } else { 0 };
        let weights = Weights::new(format);
        let mut subject = Self { case, kv_format, depth, copies: 1, weights, expected: HashMap::new() };
        let plan = subject.timed_plan(1, true).context("every op has a plan")?;
        let mut bytes = (plan.kv_bytes_per_token(kv_format) * depth) as u64;
        for weight in plan.weights.iter().filter(|weight| is_of_op(&weight.name)) {
            bytes += Tensor::byte_len(subject.format_of(weight), &weight.shape)? as u64;
        }
        subject.copies = match bytes {
            _ if !case.can_be_copied() => 1,
            0..WEIGHTLESS_BYTES => COPIES_WITHOUT_WEIGHTS,
            bytes => usize::try_from(rotation_bytes.div_ceil(bytes)).unwrap_or(usize::MAX).clamp(1, MAX_COPIES),
        };
        Ok(subject)
    }

    fn format_of(&self, weight: &WeightInfo) -> WeightFormat {
        self.weights.format_of(weight)
    }

    fn timed_plan(&self, copies: usize, with_op: bool) -> Option<Plan> {
        self.case.timed_plan(0..copies, with_op)
    }

    fn layout(&self, rows: usize, depth: usize) -> KvLayout {
        let num_blocks = (depth + rows).div_ceil(KV_BLOCK_LEN);
        KvLayout { format: self.kv_format, block_len: KV_BLOCK_LEN, num_blocks }
    }

    /// The largest difference between results of `backend` and of the reference for `rows` rows, by the largest magnitude
    /// of the reference's.
    pub fn max_error(&mut self, backend: &dyn Backend, rows: usize) -> Result<f64> {
        let plan = Arc::new(self.case.checked_plan(0));
        let weights = self.weights.of(&plan)?;
        let depth = self.depth.min(CHECK_DEPTH);
        let kv = self.layout(rows, depth);
        let mut outputs: Vec<usize> = (0..CHECK_ROWS).map(|part| part * (rows - 1) / (CHECK_ROWS - 1)).collect();
        outputs.dedup();
        let run = |backend: &dyn Backend, input: &StepInput| -> Result<Vec<f32>> {
            let mut executable = backend.load(plan.clone(), weights.clone(), kv)?;
            fill(&mut *executable, self.case, &plan, &kv, depth)?;
            Ok(executable.replay(input)?.to_vec())
        };
        let input = self.case.step(&plan, &kv, rows, depth, &outputs);
        let all = run(backend, &input)?;
        let width = plan.vocab_size;
        // A head gives results for every row of the step.
        let found: Vec<f32> = if input.output_rows.len() == outputs.len() {
            all
        } else {
            outputs.iter().flat_map(|row| &all[row * width..(row + 1) * width]).copied().collect()
        };
        if !self.expected.contains_key(&rows) {
            let input = self.case.reference_step(&plan, &kv, rows, depth, &outputs);
            self.expected.insert(rows, run(&ReferenceBackend::new(), &input)?);
        }
        let expected = &self.expected[&rows];
        if found.len() != expected.len() {
            bail!("the device returned {} results where the reference has {}", found.len(), expected.len());
        }
        let largest = expected.iter().fold(0.0f64, |largest, value| largest.max(f64::from(value.abs())));
        // Not `max`, which would pass over a NaN.
        let worse = |worst: f64, error: f64| if error <= worst { worst } else { error };
        let errors = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs());
        Ok(errors.fold(0.0, worse) / largest.max(f64::MIN_POSITIVE))
    }
}

/// The programs of one subject on one backend.
pub struct Timer<'s, 'a> {
    subject: &'s mut Subject<'a>,
    backend: &'s dyn Backend,
    repetitions: usize,
    max_rows: usize,
    /// Once a replay of all copies takes too long, as it then does for more rows.
    single: bool,
    /// The plans with the op and without, of one copy and of all.
    loaded: Vec<Loaded>,
    /// Read to empty the caches of an op that cannot be copied.
    eviction: Vec<u8>,
}

struct Loaded {
    copies: usize,
    with_op: Program,
    glue: Option<Program>,
}

struct Program {
    plan: Arc<Plan>,
    executable: Box<dyn Executable>,
}

impl<'s, 'a> Timer<'s, 'a> {
    /// Of steps of up to `max_rows` rows on `backend`, `repetitions` samples each; where an op has no copies, as many bytes
    /// are written before each sample as take its weights out of the caches.
    pub fn new(
        subject: &'s mut Subject<'a>,
        backend: &'s dyn Backend,
        repetitions: usize,
        max_rows: usize,
        rotation_bytes: u64,
    ) -> Self {
        let eviction = if subject.case.can_be_copied() { 0 } else { rotation_bytes };
        let eviction = vec![1; usize::try_from(eviction).unwrap_or(0)];
        Self { subject, backend, repetitions, max_rows, single: false, loaded: Vec::new(), eviction }
    }

    /// The time of the op with `rows` rows.
    pub fn measure(&mut self, rows: usize) -> Result<Measured> {
        let all = self.subject.copies;
        if all > 1 && !self.single {
            let (one, _) = self.samples(1, rows, 1)?;
            self.single = median(&one) * all as f64 > MAX_REPLAY_SECONDS;
            if self.single {
                self.loaded.retain(|loaded| loaded.copies == 1);
            }
        }
        let copies = if self.single { 1 } else { all };
        let (with_op, glue) = self.samples(copies, rows, self.repetitions)?;
        let glue_seconds = median(&glue);
        let per_copy: Vec<f64> = with_op.iter().map(|seconds| (seconds - glue_seconds) / copies as f64).collect();
        let summary = Summary::of(&per_copy);
        // What two measurements of the same thing differ by is no time of an op.
        let is_seen = summary.median * copies as f64 > 0.02 * glue_seconds;
        let (cost, variants) = self.facts(copies, rows)?;
        Ok(Measured { seconds: is_seen.then_some(summary), copies, evicted: !self.eviction.is_empty(), cost, variants })
    }

    /// Seconds of a replay of `copies` of the op, and of the same without it.
    fn samples(&mut self, copies: usize, rows: usize, repetitions: usize) -> Result<(Vec<f64>, Vec<f64>)> {
        let place = self.load(copies)?;
        let subject = &*self.subject;
        let kv = subject.layout(self.max_rows, subject.depth);
        let eviction = &self.eviction;
        let loaded = &mut self.loaded[place];
        let sample = |program: &mut Program| -> Result<Vec<f64>> {
            let input = subject.case.step(&program.plan, &kv, rows, subject.depth, &[rows - 1]);
            samples_of(&mut *program.executable, &input, repetitions, eviction)
        };
        let with_op = sample(&mut loaded.with_op)?;
        let glue = loaded.glue.as_mut().map(sample).transpose()?;
        Ok((with_op, glue.unwrap_or_default()))
    }

    /// Where in `self.loaded` the programs with `copies` are; they are there from now on.
    fn load(&mut self, copies: usize) -> Result<usize> {
        if let Some(place) = self.loaded.iter().position(|loaded| loaded.copies == copies) {
            return Ok(place);
        }
        let with_op = self.program(copies, true)?.context("every op has a plan")?;
        let glue = self.program(copies, false)?;
        self.loaded.push(Loaded { copies, with_op, glue });
        Ok(self.loaded.len() - 1)
    }

    fn program(&mut self, copies: usize, with_op: bool) -> Result<Option<Program>> {
        let Some(plan) = self.subject.timed_plan(copies, with_op) else { return Ok(None) };
        let plan = Arc::new(plan);
        let weights = self.subject.weights.of(&plan)?;
        let kv = self.subject.layout(self.max_rows, self.subject.depth);
        let mut executable = self.backend.load(plan.clone(), weights, kv)?;
        if !plan.kv_layers.is_empty() {
            fill(&mut *executable, self.subject.case, &plan, &kv, self.subject.depth)?;
        }
        // Else what is timed is the packing of weights, a part of which comes before each step.
        executable.settle()?;
        Ok(Some(Program { plan, executable }))
    }

    /// What one copy of the op must do with `rows` rows, and how the device says that it does it.
    fn facts(&mut self, copies: usize, rows: usize) -> Result<(Cost, Vec<String>)> {
        let place = self.load(copies)?;
        let subject = &*self.subject;
        let kv = subject.layout(self.max_rows, subject.depth);
        let plan = subject.timed_plan(1, true).context("every op has a plan")?;
        let input = subject.case.step(&plan, &kv, rows, subject.depth, &[rows - 1]);
        let weight_bytes = |id: plan::WeightId| {
            let weight = plan.weight(id);
            Tensor::byte_len(subject.format_of(weight), &weight.shape).unwrap_or(0) as u64
        };
        let model = CostModel::new(&plan, &weight_bytes, subject.kv_format);
        let mut cost = Cost::default();
        for (index, _) in plan.ops.iter().enumerate().filter(|(_, op)| subject.case.is_measured(&plan, op)) {
            let of_op = model.of_op(index, &input);
            cost.bytes += of_op.bytes;
            cost.flops += of_op.flops;
        }
        let loaded = &mut self.loaded[place];
        let input = subject.case.step(&loaded.with_op.plan, &kv, rows, subject.depth, &[rows - 1]);
        let infos = match loaded.with_op.executable.variants(input.shape().bucket()) {
            Ok(infos) => infos,
            Err(BackendError::NotRecorded { .. }) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let is_it = |info: &&backend::profile::OpInfo| {
            info.name == subject.case.op() && (info.rows == plan::Rows::Tokens || !subject.case.can_be_copied())
        };
        let mut variants: Vec<String> = infos.iter().filter(is_it).map(|info| info.variant.clone()).collect();
        variants.sort();
        variants.dedup();
        Ok((cost, variants))
    }
}

/// Seconds of a replay, in `repetitions` samples, after one that warms up.
fn samples_of(
    executable: &mut dyn Executable,
    input: &StepInput,
    repetitions: usize,
    eviction: &[u8],
) -> Result<Vec<f64>> {
    executable.compile(input.shape().bucket())?;
    let mut replay = || -> Result<f64> {
        // One byte of each cache line.
        black_box(eviction.iter().step_by(64).fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
        let begun = Instant::now();
        black_box(executable.replay(input)?);
        Ok(begun.elapsed().as_secs_f64())
    };
    replay()?;
    let once = replay()?.max(1e-9);
    let replays = if eviction.is_empty() { (MIN_SAMPLE_SECONDS / once).clamp(1.0, 1e4).ceil() as usize } else { 1 };
    let repetitions = if once > LONG_SAMPLE_SECONDS { repetitions.min(3) } else { repetitions };
    let mut samples = Vec::with_capacity(repetitions);
    for _ in 0..repetitions {
        let mut total = 0.0;
        for _ in 0..replays {
            total += replay()?;
        }
        samples.push(total / replays as f64);
    }
    Ok(samples)
}

/// Has `depth` tokens in the cache of every layer: the first blocks are computed, the others are copies of them.
fn fill(executable: &mut dyn Executable, case: &Case, plan: &Plan, kv: &KvLayout, depth: usize) -> Result<()> {
    if depth == 0 {
        return Ok(());
    }
    let computed = depth.min(FILLED_BLOCKS * kv.block_len);
    executable.replay(&case.step(plan, kv, computed, 0, &[0]))?;
    let num_computed = computed.div_ceil(kv.block_len);
    let mut input = case.step(plan, kv, 1, computed, &[0]);
    let copies = (num_computed..depth / kv.block_len).map(|block| (block % num_computed, block));
    input.block_copies.extend(copies.map(|(from, to)| BlockCopy { from: from as u32, to: to as u32 }));
    if !input.block_copies.is_empty() {
        // The step itself writes into the block after the computed ones, which is copied before.
        executable.replay(&input)?;
    }
    Ok(())
}

/// Makes weights on demand, each once: many plans of a subject have them in common.
pub struct Weights {
    format: WeightFormat,
    pattern: Pattern,
    random: Random,
    made: HashMap<(String, Vec<usize>), Tensor>,
}

impl Weights {
    /// With matrices of the op in `format`.
    pub fn new(format: WeightFormat) -> Self {
        Self { format, pattern: Pattern::new(format), random: Random(SEED), made: HashMap::new() }
    }

    /// Matrices of the op are in its format; norms, biases and all glue in F32.
    fn format_of(&self, weight: &WeightInfo) -> WeightFormat {
        if is_of_op(&weight.name) && weight.shape.len() > 1 { self.format } else { WeightFormat::F32 }
    }

    /// In the order of `plan`.
    fn of(&mut self, plan: &Plan) -> Result<Vec<Tensor>> {
        plan.weights.iter().map(|weight| self.tensor(weight)).collect()
    }

    /// The weight, the same each time.
    pub fn tensor(&mut self, weight: &WeightInfo) -> Result<Tensor> {
        let key = (weight.name.clone(), weight.shape.clone());
        if let Some(tensor) = self.made.get(&key) {
            return Ok(tensor.clone());
        }
        let format = self.format_of(weight);
        let tensor = if is_of_op(&weight.name) && weight.shape.len() > 1 {
            let len = Tensor::byte_len(format, &weight.shape)?;
            Tensor::new(format, weight.shape.clone(), self.pattern.cut(len, self.random.next())?)?
        } else {
            // Norms are near 1; inputs between -1 and 1; projections small enough for sums of them to stay there.
            let len: usize = weight.shape.iter().product();
            let (offset, scale) = match weight.shape.as_slice() {
                [_] => (1.0, 0.1),
                [_, width] if !weight.name.starts_with("input") => (0.0, 1.0 / (*width as f32)),
                _ => (0.0, 1.0),
            };
            // A pattern of odd length, so that no row is like the next.
            let period = 8191.min(len);
            let mut value = || (self.random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0;
            let pattern: Vec<f32> = (0..period).map(|_| offset + scale * value()).collect();
            let values: Vec<f32> = pattern.iter().copied().cycle().take(len).collect();
            Tensor::from_f32(format, weight.shape.clone(), &values)?
        };
        self.made.insert(key, tensor.clone());
        Ok(tensor)
    }
}
