//! Drives a model step by step and takes the time of each: the backend alone, without sampling, text or scheduling.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use backend::{Backend, BackendError, Counters, Executable};
use lab::patterns::Random;
use plan::{FED, KvFormat, KvLayout, Plan, StepInput, StepShape};
use tensor::{Tensor, WeightFormat};

use super::args::{TargetArgs, Test};
use super::clock::Clock;
use super::report::HostWork;
use super::shapes::{self, MatrixFormats};
use crate::builtin;
use crate::load::facts::{KV_BLOCK_LEN, kv_format_of, main_format};
use crate::load::fits::check_fits;
use crate::load::plan::optimised;
use crate::load::tuned::TunedFrom;
use crate::load::{device, find};
use crate::model::load_weights;
use crate::model::settings::ModelSettings;

/// Decode steps of a warm-up; with them, everything has been compiled, mapped and touched.
const WARM_UP_STEPS: usize = 2;

/// Where a model's weights come from.
pub(crate) enum Source<'a> {
    /// A checkpoint, the built-in one without a name.
    Checkpoint(Option<&'a str>),
    /// Random ones, in the shapes of this plan of textbook ops.
    Random { name: &'a str, formats: MatrixFormats, textbook: Box<Plan>, weights: Vec<Tensor> },
}

/// What a model on a device is made of.
pub(crate) struct Parts {
    pub(crate) plan: Arc<Plan>,
    pub(crate) backend: Box<dyn Backend>,
    /// In the order of the plan.
    pub(crate) weights: Vec<Tensor>,
}

/// A model on a device, ready to be measured.
pub(super) struct Loaded {
    /// As the user named it.
    pub(super) model: String,
    /// The format that most of the matrices' bytes are in.
    pub(super) format: WeightFormat,
    /// As a result calls it.
    pub(super) format_name: String,
    pub(super) plan: Arc<Plan>,
    pub(super) kv_format: KvFormat,
    pub(super) num_parameters: u64,
    pub(super) weight_bytes: u64,
    /// Bytes that the device reads of each weight, as it lays it out.
    pub(super) bytes_on_device: Vec<u64>,
    pub(super) device: backend::DeviceInfo,
    /// From opening the files to being able to run a step; of random weights, without the time to make them.
    pub(super) load_time: Duration,
    pub(super) driver: Driver,
}

impl<'a> Source<'a> {
    pub(crate) fn new(args: &'a TargetArgs) -> Result<Self> {
        let Some(name) = &args.shape else { return Ok(Self::Checkpoint(args.model.as_deref())) };
        let formats = MatrixFormats::named(args.format.as_deref().unwrap_or("q8_0"))?;
        let textbook = Box::new(shapes::plan_of(name)?);
        // Of any number of threads, and a table is of one.
        let mut settings = args.device_settings(None);
        settings.gpu.tuned = TunedFrom::Nowhere;
        let memory_bytes = device::backend(&settings)?.device().memory_bytes;
        let weights = shapes::random_weights(&textbook, formats, memory_bytes)?;
        Ok(Self::Random { name, formats, textbook, weights })
    }

    /// Plan and weights, and the backend that `settings` name.
    pub(crate) fn open(&self, settings: &ModelSettings) -> Result<Parts> {
        match self {
            Self::Checkpoint(name) => {
                let (mut checkpoint, name) = find::open(*name, false)?;
                let (plan, backend, weights) =
                    load_weights(&mut checkpoint, settings).with_context(|| format!("cannot load `{name}`"))?;
                Ok(Parts { plan: Arc::new(plan), backend, weights })
            }
            Self::Random { textbook, weights, .. } => {
                let formats: Vec<_> = weights.iter().map(Tensor::format).collect();
                let plan = Arc::new(optimised((**textbook).clone(), &formats, &settings.without_passes));
                Ok(Parts { plan, backend: device::backend(&settings.device)?, weights: weights.clone() })
            }
        }
    }

    /// Loads the model for as many sequences of as many tokens as `tests` have, and prompts in steps of up to `batch_tokens`.
    pub(super) fn load(&self, settings: &ModelSettings, tests: &[Test], batch_tokens: usize) -> Result<Loaded> {
        let begun = Instant::now();
        self.load_parts(self.open(settings)?, begun, settings, tests, batch_tokens)
    }

    /// The same of parts that were opened already, from `begun` on.
    pub(super) fn load_parts(
        &self,
        Parts { plan, backend, weights }: Parts,
        begun: Instant,
        settings: &ModelSettings,
        tests: &[Test],
        batch_tokens: usize,
    ) -> Result<Loaded> {
        let model = self.name().to_owned();
        for test in tests {
            if test.kv_len() > plan.context_len {
                bail!(
                    "{} at depth {} needs a context of {} tokens, but `{model}` was made for {}",
                    test.name(),
                    test.depth,
                    test.kv_len(),
                    plan.context_len
                );
            }
        }
        let kv_len = tests.iter().map(Test::kv_len).max().unwrap_or(1);
        let num_sequences = tests.iter().map(|test| test.batch).max().unwrap_or(1);
        let blocks_per_sequence = kv_len.div_ceil(KV_BLOCK_LEN);
        let kv_format = kv_format_of(settings.cache.format, &weights);
        let num_blocks = blocks_per_sequence * num_sequences;
        let kv = KvLayout { format: kv_format, block_len: KV_BLOCK_LEN, num_blocks };
        let weight_bytes = weights.iter().map(|weight| weight.bytes().len() as u64).sum();
        let bytes_on_device = backend.weight_bytes(&weights);
        let format = main_format(&weights);
        let device = backend.device().clone();
        let largest = StepShape { tokens: batch_tokens.min(kv_len), sequences: num_sequences, outputs: num_sequences };
        let remedy = |fits: usize| {
            let sequences =
                if num_sequences == 1 { "one sequence".to_owned() } else { format!("{num_sequences} sequences") };
            format!(
                "{fits} tokens in {sequences} would fit: --batch says how many sequences, --depth, -p and -n how long"
            )
        };
        check_fits(&*backend, &plan, &weights, &kv, largest, &remedy)?;
        let mut executable = backend.load(plan.clone(), weights, kv).with_context(|| {
            format!("cannot run `{model}` with {num_sequences} sequences of {kv_len} tokens (--batch, --depth)")
        })?;
        let load_time = begun.elapsed();
        // What first steps do for later ones is done now; `--startup` measures the first step of a new process.
        executable.settle()?;
        Ok(Loaded {
            model,
            format,
            format_name: match self {
                Self::Checkpoint(_) => format.name().to_ascii_lowercase(),
                Self::Random { formats, .. } => formats.name(),
            },
            kv_format,
            num_parameters: plan.weights.iter().map(|weight| weight.shape.iter().product::<usize>() as u64).sum(),
            weight_bytes,
            bytes_on_device,
            device,
            load_time,
            driver: Driver::new(executable, plan.vocab_size, blocks_per_sequence, num_sequences, batch_tokens),
            plan,
        })
    }

    /// As it will be named in the result.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Checkpoint(name) => name.unwrap_or(builtin::NAME),
            Self::Random { name, .. } => name,
        }
    }
}

/// What the clock said of one test.
#[derive(Default)]
pub(super) struct Times {
    /// Of each repetition, in seconds.
    pub(super) repetitions: Vec<f64>,
    /// Of each decode step of all repetitions, in milliseconds.
    pub(super) decode_steps_ms: Vec<f64>,
    /// From the start of a prompt to its logits, in milliseconds.
    pub(super) prompts_ms: Vec<f64>,
    /// What the device had been asked before the first repetition, after the warm-up, and after the last.
    before: Counters,
    after: Counters,
}

impl Times {
    /// What a step asked of the device on average; `None` where nobody counts.
    pub(super) fn host_work(&self) -> Option<HostWork> {
        let steps = self.after.steps - self.before.steps;
        let per_step = |of: fn(&Counters) -> u64| (of(&self.after) - of(&self.before)) as f64 / steps as f64;
        (steps > 0).then(|| HostWork {
            waits: per_step(|counters| counters.waits),
            allocations: per_step(|counters| counters.allocations),
            launches_one_by_one: per_step(|counters| counters.launches),
        })
    }
}

/// What a step is made of.
#[derive(Default)]
pub(super) struct StepKernels {
    /// `op: variant`, each once; none where the device does not say.
    pub(super) names: Vec<String>,
    /// Kernels that a step starts, but for those that choose tokens; `None` on CPUs.
    pub(super) launches: Option<usize>,
}

/// Runs steps on sequences that each have their own part of the cache.
pub(super) struct Driver {
    executable: Box<dyn Executable>,
    vocab_size: usize,
    blocks_per_sequence: usize,
    sequences: Vec<Sequence>,
    /// Tokens of a prompt that a step computes at most.
    batch_tokens: usize,
    input: StepInput,
    /// Those that the repetitions of the last test chose, in order.
    tokens: Vec<u32>,
    /// What times a step.
    pub(super) clock: Clock,
}

#[derive(Clone, Debug, Default)]
struct Sequence {
    blocks: Vec<u32>,
    /// How many tokens in the cache are still the first ones of its text.
    filled: usize,
    /// The likeliest token after the last step.
    next: u32,
}

impl Driver {
    fn new(
        executable: Box<dyn Executable>,
        vocab_size: usize,
        blocks_per_sequence: usize,
        num_sequences: usize,
        batch_tokens: usize,
    ) -> Self {
        let blocks = |index: usize| {
            let first = index * blocks_per_sequence;
            (first..first + blocks_per_sequence).map(|block| block as u32).collect()
        };
        let sequence = |index| Sequence { blocks: blocks(index), filled: 0, next: 0 };
        let sequences = (0..num_sequences).map(sequence).collect();
        let (input, tokens, clock) = (StepInput::default(), vec![], Clock::Wall);
        Self { executable, vocab_size, blocks_per_sequence, sequences, batch_tokens, input, tokens, clock }
    }

    /// Warms up, then runs `test` as often as asked; `on_repetition` hears of each.
    pub(super) fn measure(
        &mut self,
        test: &Test,
        repetitions: usize,
        on_repetition: &mut dyn FnMut(),
    ) -> Result<Times> {
        assert!(test.kv_len() <= self.blocks_per_sequence * KV_BLOCK_LEN, "the cache was made for all tests");
        for index in 0..test.batch {
            self.fill(index, test.depth)?;
        }
        let warm_up = Test { generate: test.generate.min(WARM_UP_STEPS), ..*test };
        self.repetition(&warm_up, &mut Times::default())?;
        self.tokens.clear();
        let mut times = Times { before: self.executable.counters(), ..Times::default() };
        for _ in 0..repetitions {
            self.repetition(test, &mut times)?;
            on_repetition();
        }
        times.after = self.executable.counters();
        Ok(times)
    }

    fn repetition(&mut self, test: &Test, times: &mut Times) -> Result<()> {
        let mut total = Duration::ZERO;
        let prompt_end = test.depth + test.prompt;
        if test.prompt > 0 {
            for index in 0..test.batch {
                let time = self.prefill(index, test.depth..prompt_end)?;
                times.prompts_ms.push(milliseconds(time));
                total += time;
            }
            self.keep_tokens(test.batch);
        }
        // The clock of one thread does not see what a device does beside it.
        if self.clock == Clock::Wall && self.executable.can_queue() {
            total += self.decode_ahead(test.batch, prompt_end..test.kv_len(), &mut times.decode_steps_ms)?;
        } else {
            for position in prompt_end..test.kv_len() {
                let time = self.decode(test.batch, position)?;
                times.decode_steps_ms.push(milliseconds(time));
                total += time;
                self.keep_tokens(test.batch);
            }
        }
        times.repetitions.push(total.as_secs_f64());
        Ok(())
    }

    /// The tokens that the repetitions of the last test chose, in order.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Keeps what the last step of the first `batch` sequences chose.
    fn keep_tokens(&mut self, batch: usize) {
        self.tokens.extend(self.sequences[..batch].iter().map(|sequence| sequence.next));
    }

    /// Has programs compiled anew, with the choices of a tuner.
    pub(super) fn forget_programs(&mut self) {
        self.executable.forget_programs();
    }

    /// What the steps of `test` are made of.
    pub(super) fn kernels(&mut self, test: &Test) -> Result<StepKernels> {
        let shape = match test.generate {
            0 => StepShape { tokens: test.prompt.min(self.batch_tokens), sequences: 1, outputs: 1 },
            _ => StepShape { tokens: test.batch, sequences: test.batch, outputs: test.batch },
        };
        let infos = match self.executable.variants(shape.bucket()) {
            Ok(infos) => infos,
            Err(BackendError::NotRecorded { .. }) => return Ok(StepKernels::default()),
            Err(error) => return Err(error.into()),
        };
        let mut kernels = StepKernels::default();
        for info in infos {
            let kernel = format!("{}: {}", info.name, info.variant);
            if !kernels.names.contains(&kernel) {
                kernels.names.push(kernel);
            }
            if let Some(launches) = info.launches {
                *kernels.launches.get_or_insert(0) += launches;
            }
        }
        Ok(kernels)
    }

    /// Has the first `depth` tokens of the sequence's text in the cache.
    fn fill(&mut self, index: usize, depth: usize) -> Result<()> {
        let filled = self.sequences[index].filled.min(depth);
        if filled < depth {
            self.prefill(index, filled..depth)?;
        }
        Ok(())
    }

    /// Computes the tokens at `positions` of the sequence's text, in chunks. Returns how long the steps took.
    fn prefill(&mut self, index: usize, positions: Range<usize>) -> Result<Duration> {
        let mut total = Duration::ZERO;
        let mut begin = positions.start;
        while begin < positions.end {
            let end = positions.end.min(begin + self.batch_tokens);
            let tokens: Vec<u32> = (begin..end).map(|position| self.token_at(index, position)).collect();
            self.input.clear();
            self.input.push_sequence(&tokens, begin, &self.sequences[index].blocks);
            if end == positions.end {
                self.input.output_rows.push((tokens.len() - 1) as u32);
            }
            total += self.step(index..index + 1)?;
            begin = end;
        }
        self.sequences[index].filled = positions.end;
        Ok(total)
    }

    /// Computes the next token of the first `batch` sequences at `position`, all in one step.
    fn decode(&mut self, batch: usize, position: usize) -> Result<Duration> {
        self.input.clear();
        for (row, sequence) in self.sequences[..batch].iter_mut().enumerate() {
            self.input.push_sequence(&[sequence.next], position, &sequence.blocks);
            self.input.output_rows.push(row as u32);
            sequence.filled = sequence.filled.min(position);
        }
        self.step(0..batch)
    }

    /// As [`Driver::decode`] for each of `positions`, where the device chooses the tokens: as the engine does, each step is
    /// submitted before the tokens of the one before are read. The time of a step is that from the tokens before it to its
    /// own.
    fn decode_ahead(&mut self, batch: usize, positions: Range<usize>, steps_ms: &mut Vec<f64>) -> Result<Duration> {
        let mut total = Duration::ZERO;
        let mut last = Instant::now();
        for position in positions.clone() {
            if position == positions.start {
                self.queue(batch, position, false)?;
            }
            if position + 1 < positions.end {
                self.queue(batch, position + 1, true)?;
            }
            let choices = self.executable.collect()?;
            let elapsed = last.elapsed();
            last += elapsed;
            for (sequence, choice) in self.sequences[..batch].iter_mut().zip(choices) {
                if let Some((_, logit)) = choice.fault {
                    bail!("the logits are not finite ({logit}): these weights cannot be measured");
                }
                sequence.next = choice.token_id;
            }
            steps_ms.push(milliseconds(elapsed));
            total += elapsed;
            self.keep_tokens(batch);
        }
        Ok(total)
    }

    /// Submits a step of the first `batch` sequences at `position`, fed by the step before or from their last tokens.
    fn queue(&mut self, batch: usize, position: usize, fed: bool) -> Result<()> {
        self.input.clear();
        for (row, sequence) in (0..).zip(&mut self.sequences[..batch]) {
            let token = if fed { FED | row } else { sequence.next };
            self.input.push_sequence(&[token], position, &sequence.blocks);
            self.input.output_rows.push(row);
            sequence.filled = sequence.filled.min(position);
        }
        self.executable.compile(self.input.shape().bucket())?;
        Ok(self.executable.enqueue(&self.input)?)
    }

    /// Runs the step of `self.input`, whose logits are those of `sequences`. Choosing the tokens is not timed.
    fn step(&mut self, sequences: Range<usize>) -> Result<Duration> {
        // A program that an earlier, larger step left would do, but one of the step's own size is what is measured.
        self.executable.compile(self.input.shape().bucket())?;
        let begun = self.clock.start();
        let logits = self.executable.replay(&self.input)?;
        let elapsed = begun.elapsed();
        for (sequence, logits) in self.sequences[sequences].iter_mut().zip(logits.chunks_exact(self.vocab_size)) {
            let likeliest = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            let Some((token, logit)) = likeliest else { bail!("the device returned no logits") };
            // A fault would make the figures those of another computation.
            if !logit.is_finite() {
                bail!("the logits are not finite ({logit}): these weights cannot be measured");
            }
            sequence.next = token as u32;
        }
        Ok(elapsed)
    }

    /// A text that nobody wrote, the same each time.
    fn token_at(&self, index: usize, position: usize) -> u32 {
        let mut random = Random(((index as u64) << 32) ^ position as u64);
        (random.next() % self.vocab_size as u64) as u32
    }
}

pub(super) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
