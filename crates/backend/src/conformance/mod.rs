//! What every backend must pass: each op and each architecture in each weight format, on ragged shapes, in batches, over
//! paged caches in any order, against the reference interpreter; and where a backend claims it, the same bits however
//! the tokens are cut into steps.
//!
//! A backend calls [`run`], or the parts of it in tests of their own, with what it [`Claims`]. A failure names the case;
//! all cases run before the panic.

mod op_cases;

use std::sync::Arc;

use plan::reference::Interpreter;
use plan::{BlockCopy, KvFormat, KvLayout, Plan, StepInput, StepShape, fuse, restrict_outputs};
use tensor::{Tensor, WeightFormat};
use testing::tolerance::{self, nmse};
use testing::{ActivationRounding, BlockPool, ErrorAnalysis, MODEL_TYPES, Rng, Sequence, tiny_model};

use crate::{Backend, BackendError, Executable};
use op_cases::{OpCase, SHORT, weighted_op_cases, weightless_op_cases};

/// What a backend says it can do, and is held to.
#[derive(Clone, Debug)]
pub struct Claims {
    /// Weight formats that it computes from.
    pub formats: Vec<WeightFormat>,
    /// Formats that its cache comes in.
    pub kv_formats: Vec<KvFormat>,
    /// Block lengths that its cache comes in.
    pub block_lens: Vec<usize>,
    /// What it does to the activations that meet weights of each format.
    pub activations: fn(WeightFormat) -> ActivationRounding,
    /// Whether a token's logits are the same bits however the step around it is cut: in one piece, in chunks, token by
    /// token, alone and in any batch.
    pub bit_exact: bool,
}

/// Runs the whole suite.
///
/// # Panics
/// When a case fails, with all failures.
pub fn run(backend: &dyn Backend, claims: &Claims) {
    ops(backend, claims);
    models(backend, claims);
    caches(backend, claims);
    batches(backend, claims);
    refusals(backend, claims);
}

/// Every op alone, textbook and fused, in every weight format at ragged sizes, within derived bounds.
pub fn ops(backend: &dyn Backend, claims: &Claims) {
    let mut suite = Suite::new(backend, claims);
    for (index, &format) in claims.formats.iter().enumerate() {
        let mut cases = weighted_op_cases(format);
        if index == 0 {
            cases.extend(weightless_op_cases());
        }
        for case in cases {
            for &kv in &suite.kv_layouts(if case.lens == SHORT { 1 } else { usize::MAX }) {
                suite.op_case(&case, format, kv);
            }
        }
    }
    suite.finish("ops");
}

/// Every architecture in every weight and cache format: mixed batches of prefill chunks and decodes, against the
/// reference.
pub fn models(backend: &dyn Backend, claims: &Claims) {
    let mut suite = Suite::new(backend, claims);
    for (format, model_type, kv) in suite.model_cases() {
        let (textbook, weights) = tiny_model(model_type, 1, format);
        let plans = [
            ("fused", fuse((*textbook).clone())),
            ("restricted and fused", fuse(restrict_outputs((*textbook).clone()))),
        ];
        for (what, plan) in plans {
            let case = format!("{model_type} in {format}, {what}, {kv:?}");
            suite.model_case(&case, &Arc::new(plan), &weights, kv);
        }
    }
    suite.finish("models");
}

/// Blocks in any order, garbage in every slot that was not written, and copies of shared blocks.
pub fn caches(backend: &dyn Backend, claims: &Claims) {
    let mut suite = Suite::new(backend, claims);
    for (format, model_type, kv) in suite.model_cases() {
        let (textbook, weights) = tiny_model(model_type, 2, format);
        suite.cache_case(
            &format!("{model_type} in {format}, {kv:?}"),
            &Arc::new(fuse((*textbook).clone())),
            &weights,
            kv,
        );
    }
    suite.finish("caches");
}

/// The same bits from the same batch twice; and where [`Claims::bit_exact`] says so, from every way to cut the tokens
/// into steps.
pub fn batches(backend: &dyn Backend, claims: &Claims) {
    let mut suite = Suite::new(backend, claims);
    for (format, model_type, kv) in suite.model_cases() {
        let (textbook, weights) = tiny_model(model_type, 3, format);
        suite.batch_case(
            &format!("{model_type} in {format}, {kv:?}"),
            &Arc::new(fuse((*textbook).clone())),
            &weights,
            kv,
        );
    }
    suite.finish("batches");
}

/// What must be refused with an error, after which the next step runs as if nothing had been.
pub fn refusals(backend: &dyn Backend, claims: &Claims) {
    let mut suite = Suite::new(backend, claims);
    let Some(&(format, model_type, kv)) = suite.model_cases().first() else { return };
    let (textbook, weights) = tiny_model(model_type, 4, format);
    suite.refusal_case(&Arc::new(fuse((*textbook).clone())), &weights, kv);
    suite.finish("refusals");
}

/// Tokens of the cache that cases run in, whatever its block length.
const CACHE_TOKENS: usize = 480;
/// Tokens of the sequences that are cut in many ways: several blocks of any length that is common, and a multiple of none;
/// and for the first case of each architecture's format, more positions than a kernel takes at once.
const SEQUENCE_LEN: usize = 75;
const SEQUENCE_LEN_LONG: usize = 301;

struct Suite<'a> {
    backend: &'a dyn Backend,
    claims: &'a Claims,
    cases: usize,
    failures: Vec<String>,
}

impl<'a> Suite<'a> {
    fn new(backend: &'a dyn Backend, claims: &'a Claims) -> Self {
        Self { backend, claims, cases: 0, failures: Vec::new() }
    }

    fn finish(self, part: &str) {
        let Self { cases, failures, .. } = self;
        assert!(cases > 0, "{part}: the claims leave nothing to run");
        assert!(failures.is_empty(), "{part}: {} failures in {cases} cases:\n{}", failures.len(), failures.join("\n"));
    }

    fn fail(&mut self, case: &str, what: impl std::fmt::Display) {
        self.failures.push(format!("{case}: {what}"));
    }

    /// The first `count` combinations of cache format and block length.
    fn kv_layouts(&self, count: usize) -> Vec<KvLayout> {
        let formats = self.claims.kv_formats.iter();
        let layouts = formats.flat_map(|&format| {
            self.claims.block_lens.iter().map(move |&block_len| KvLayout {
                format,
                block_len,
                num_blocks: CACHE_TOKENS.div_ceil(block_len),
            })
        });
        layouts.take(count.max(1)).collect()
    }

    /// Architectures × weight formats; the cache layouts take turns.
    fn model_cases(&self) -> Vec<(WeightFormat, &'static str, KvLayout)> {
        let layouts = self.kv_layouts(usize::MAX);
        let formats = self.claims.formats.iter();
        let models = formats.flat_map(|&format| MODEL_TYPES.map(|model_type| (format, model_type)));
        models.zip(layouts.iter().cycle()).map(|((format, model_type), &kv)| (format, model_type, kv)).collect()
    }

    /// The plan on the backend, or a failure.
    fn load(&mut self, case: &str, plan: &Arc<Plan>, weights: &[Tensor], kv: KvLayout) -> Option<Box<dyn Executable>> {
        match self.backend.load(plan.clone(), weights.to_vec(), kv) {
            Ok(executable) => Some(executable),
            Err(error) => {
                self.fail(case, error);
                None
            }
        }
    }

    /// One step, or a failure.
    fn replay(&mut self, case: &str, executable: &mut dyn Executable, input: &StepInput) -> Option<Vec<f32>> {
        match executable.replay(input) {
            Ok(logits) => Some(logits.to_vec()),
            Err(error) => {
                self.fail(case, format!("{:?}: {error}", input.shape()));
                None
            }
        }
    }

    /// The op in its textbook and its fused form, on random steps, within the bound of its error analysis.
    fn op_case(&mut self, op: &OpCase, format: WeightFormat, kv: KvLayout) {
        let mut rng = Rng::new(op.seed);
        let textbook = Arc::new(op.plan());
        let weights = op.weights(&textbook, &mut rng, format);
        let mut analysis = ErrorAnalysis::new(textbook.clone(), &weights, kv, self.claims.activations);
        let steps = random_steps(&mut rng, textbook.vocab_size, &kv, &op.lens);
        let expected: Vec<_> = steps.iter().map(|input| analysis.run(input)).collect();
        let fused = Arc::new(fuse((*textbook).clone()));
        let forms = if fused == textbook { vec![textbook] } else { vec![textbook, fused] };
        for plan in forms {
            let names: Vec<_> = plan.ops.iter().map(|op| op.name()).collect();
            let case = format!("{} in {format} with {kv:?} as [{}]", op.name, names.join(" "));
            self.cases += 1;
            let Some(mut executable) = self.load(&case, &plan, &weights, kv) else { continue };
            for (input, (expected, bound)) in steps.iter().zip(&expected) {
                let Some(found) = self.replay(&case, &mut *executable, input) else { break };
                if let Some(fault) = outside(&found, expected, bound) {
                    self.fail(&case, format!("{:?}: {fault}", input.shape()));
                    break;
                }
            }
        }
    }

    fn model_case(&mut self, case: &str, plan: &Arc<Plan>, weights: &[Tensor], kv: KvLayout) {
        self.cases += 1;
        let Some(mut executable) = self.load(case, plan, weights, kv) else { return };
        // A program that is made before it is needed runs smaller steps too.
        if let Err(error) = executable.compile(StepShape { tokens: 32, sequences: 4, outputs: 32 }) {
            return self.fail(case, format!("compile: {error}"));
        }
        let mut interpreter = interpreter(plan, weights, kv);
        let mut rng = Rng::new(5);
        for input in random_steps(&mut rng, plan.vocab_size, &kv, &[1, 3, 9, 40]) {
            let expected = interpreter.run(&input).expect("a well-formed step");
            let Some(found) = self.replay(case, &mut *executable, &input) else { return };
            if let Some(fault) = self.far(weights, kv, &found, &expected) {
                return self.fail(case, format!("{:?}: {fault}", input.shape()));
            }
        }
    }

    /// What is wrong with the logits of a whole model.
    fn far(&self, weights: &[Tensor], kv: KvLayout, found: &[f32], expected: &[f64]) -> Option<String> {
        if found.len() != expected.len() {
            return Some(format!("{} logits, expected {}", found.len(), expected.len()));
        }
        let most = |tensor: &Tensor| tolerance::model_nmse_max((self.claims.activations)(tensor.format()), kv.format);
        let most = weights.iter().map(most).fold(0.0, f64::max);
        let error = nmse(found.iter().map(|&x| f64::from(x)), expected);
        // Written so that NaN is a failure.
        let near = error <= most;
        (!near).then(|| format!("NMSE {error:.1e}, at most {most:.1e}"))
    }

    fn cache_case(&mut self, case: &str, plan: &Arc<Plan>, weights: &[Tensor], kv: KvLayout) {
        self.cases += 1;
        let mut rng = Rng::new(6);
        let Some(mut executable) = self.load(case, plan, weights, kv) else { return };
        // Every slot holds something that nobody may read; the reference's unwritten slots hold NaN.
        let everywhere: Vec<u32> = (0..kv.num_blocks as u32).collect();
        let mut garbage = StepInput::default();
        garbage.push_sequence(&rng.tokens(kv.num_blocks * kv.block_len, plan.vocab_size), 0, &everywhere);
        if self.replay(case, &mut *executable, &garbage).is_none_or(|logits| !logits.is_empty()) {
            return self.fail(case, "a step without outputs does not give an empty result");
        }

        let mut interpreter = interpreter(plan, weights, kv);
        let mut pool = BlockPool::new(&kv, &mut rng);
        let shared = rng.tokens(kv.block_len + kv.block_len / 2 + 1, plan.vocab_size);
        let mut parent = pool.sequence([shared.clone(), rng.tokens(20, plan.vocab_size)].concat());
        let prompt = parent.next_step(shared.len());
        // The child shares the parent's full block and writes into a copy of the one that is in use.
        let mut child =
            Sequence { done: parent.done, ..pool.sequence([shared, rng.tokens(20, plan.vocab_size)].concat()) };
        let (full, partial) = (parent.done / kv.block_len, parent.done % kv.block_len);
        child.table[..full].copy_from_slice(&parent.table[..full]);
        let mut fork = StepInput::default();
        if partial > 0 {
            fork.block_copies.push(BlockCopy { from: parent.table[full], to: child.table[full] });
        }
        child.push_next(&mut fork, 1);
        parent.push_next(&mut fork, 3);
        let mut both = StepInput::default();
        parent.push_next(&mut both, 1);
        child.push_next(&mut both, 19);
        for input in [prompt, fork, both] {
            let expected = interpreter.run(&input).expect("a well-formed step");
            let Some(found) = self.replay(case, &mut *executable, &input) else { return };
            if let Some(fault) = self.far(weights, kv, &found, &expected) {
                return self.fail(case, format!("{:?}: {fault}", input.shape()));
            }
        }
    }

    fn batch_case(&mut self, case: &str, plan: &Arc<Plan>, weights: &[Tensor], kv: KvLayout) {
        self.cases += 1;
        let mut rng = Rng::new(7);
        let len = if self.cases == 1 { SEQUENCE_LEN_LONG } else { SEQUENCE_LEN };
        let tokens = rng.tokens(len, plan.vocab_size);
        let others: Vec<_> = [1, 7, 30].iter().map(|&len| rng.tokens(len, plan.vocab_size)).collect();
        let mut first: Option<Vec<f32>> = None;
        let cuts: &[(&str, usize, bool)] = if self.claims.bit_exact {
            &[
                ("token by token", 1, false),
                ("in chunks of 7", 7, false),
                ("in chunks of 64", 64, false),
                ("whole", usize::MAX, false),
                ("whole in a batch", usize::MAX, true),
                ("in chunks of 7 in a batch", 7, true),
                ("token by token in a batch", 1, true),
            ]
        } else {
            &[("in a batch", 7, true), ("in the same batch again", 7, true)]
        };
        for &(cut, chunk, batched) in cuts {
            // Other blocks each time, but in the same order for the same batch: a seed of its own.
            let mut rng = Rng::new(if self.claims.bit_exact { 8 ^ chunk as u64 } else { 8 });
            let others = if batched { &others[..] } else { &[] };
            let Some(mut executable) = self.load(case, plan, weights, kv) else { return };
            let Some(found) = self.drive(case, &mut *executable, &tokens, chunk, others, &mut rng, kv) else { return };
            match &first {
                None => first = Some(found),
                Some(first) => {
                    let vocab = plan.vocab_size;
                    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
                    if let Some(at) = first.iter().zip(&found).position(|pair| !same(pair)) {
                        let (position, id) = (at / vocab, at % vocab);
                        let (a, b) = (first[at], found[at]);
                        self.fail(
                            case,
                            format!("{cut}: logit {id} at position {position} is {b:e}, {}: {a:e}", cuts[0].0),
                        );
                    }
                }
            }
        }
    }

    /// The logits at every position of `tokens`, in steps of `chunk` tokens; `others` come along, in chunks of sizes that
    /// change, first in one step and last in the next.
    #[expect(clippy::too_many_arguments, reason = "one private call, each argument a different kind of thing")]
    fn drive(
        &mut self,
        case: &str,
        executable: &mut dyn Executable,
        tokens: &[u32],
        chunk: usize,
        others: &[Vec<u32>],
        rng: &mut Rng,
        kv: KvLayout,
    ) -> Option<Vec<f32>> {
        let mut pool = BlockPool::new(&kv, rng);
        let mut sequence = pool.sequence(tokens.to_vec());
        let mut others: Vec<_> = others.iter().map(|tokens| pool.sequence(tokens.clone())).collect();
        let mut logits = Vec::new();
        let mut step = 0;
        while sequence.remaining() > 0 {
            let mut input = StepInput::default();
            let count = chunk.min(sequence.remaining());
            let ours_first = step % 2 == 0;
            let mut ours = 0;
            if ours_first {
                sequence.push_next(&mut input, count);
            }
            for (index, other) in others.iter_mut().enumerate().filter(|(_, other)| other.remaining() > 0) {
                let count = (1 + (step + index) % 5).min(other.remaining());
                other.push_next(&mut input, count);
            }
            if !ours_first {
                ours = input.output_rows.len();
                sequence.push_next(&mut input, count);
            }
            let found = self.replay(case, executable, &input)?;
            let vocab = found.len() / input.output_rows.len();
            logits.extend_from_slice(&found[ours * vocab..(ours + count) * vocab]);
            step += 1;
        }
        Some(logits)
    }

    fn refusal_case(&mut self, plan: &Arc<Plan>, weights: &[Tensor], kv: KvLayout) {
        self.cases += 1;
        let case = "refusals";
        let mut wrong = weights.to_vec();
        let other_shape = weights.iter().find(|tensor| tensor.shape() != weights[0].shape()).expect("shapes differ");
        wrong[0] = other_shape.clone();
        for wrong in [wrong, weights[1..].to_vec()] {
            match self.backend.load(plan.clone(), wrong, kv) {
                Err(BackendError::WrongWeight { .. }) => {}
                Err(error) => self.fail(case, format!("a wrong weight is refused as something else: {error}")),
                Ok(_) => self.fail(case, "a wrong weight is loaded"),
            }
        }
        let Some(mut executable) = self.load(case, plan, weights, kv) else { return };
        let mut good = StepInput::default();
        good.push_sequence(&[1, 2, 3], 0, &[0]);
        good.output_rows.push(2);
        let Some(expected) = self.replay(case, &mut *executable, &good) else { return };
        type Fault = fn(&mut StepInput);
        let faults: [(&str, Fault); 4] = [
            ("a token outside the vocabulary", |input| input.token_ids[1] = u32::MAX),
            ("a block outside the cache", |input| input.block_tables[0] = u32::MAX),
            ("a table that is too short", |input| input.sequences[0].first_position = 1 << 20),
            ("an output row outside the step", |input| input.output_rows[0] = 3),
        ];
        for (what, fault) in faults {
            let mut input = good.clone();
            fault(&mut input);
            match executable.replay(&input) {
                Err(BackendError::Step(_)) => {}
                Err(error) => self.fail(case, format!("{what} is refused as something else: {error}")),
                Ok(_) => self.fail(case, format!("{what} is run")),
            }
        }
        let again = self.replay(case, &mut *executable, &good);
        if again.as_ref() != Some(&expected) {
            self.fail(case, "a step after refused ones gives other logits");
        }
    }
}

fn interpreter(plan: &Arc<Plan>, weights: &[Tensor], kv: KvLayout) -> Interpreter {
    Interpreter::new(plan.clone(), weights.to_vec(), kv).expect("a verified plan")
}

/// Steps that mix sequences: `lens` tokens each, in shuffled blocks, cut into random chunks, some sequences resting in
/// some steps, the logits of all rows wanted; then one step that wants few.
fn random_steps(rng: &mut Rng, vocab_size: usize, kv: &KvLayout, lens: &[usize]) -> Vec<StepInput> {
    let mut pool = BlockPool::new(kv, rng);
    let mut sequences: Vec<_> = lens.iter().map(|&len| pool.sequence(rng.tokens(len + 2, vocab_size))).collect();
    let mut steps = Vec::new();
    // A long chunk first, so that wide kernels run, then ever shorter ones.
    while sequences.iter().any(|sequence| sequence.remaining() > 2) {
        let mut input = StepInput::default();
        rng.shuffle(&mut sequences);
        for sequence in sequences.iter_mut().filter(|sequence| sequence.remaining() > 2) {
            let most = sequence.remaining() - 2;
            match rng.below(4) {
                0 if !steps.is_empty() => {}
                1 => sequence.push_next(&mut input, 1),
                _ => sequence.push_next(&mut input, 1 + most / 2),
            }
        }
        if !input.token_ids.is_empty() {
            steps.push(input);
        }
    }
    let mut last = StepInput::default();
    sequences.iter_mut().for_each(|sequence| sequence.push_next(&mut last, 2));
    last.output_rows.retain(|row| row % 3 == 1);
    steps.push(last);
    steps
}

/// The first element that is further from `expected` than `bound`, in words.
fn outside(found: &[f32], expected: &[f64], bound: &[f64]) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("{} results, expected {}", found.len(), expected.len()));
    }
    let within = |&index: &usize| {
        let error = (f64::from(found[index]) - expected[index]).abs();
        // The bounds leave out terms of second order, and the result itself is rounded to f32.
        error <= 1.01 * bound[index] + expected[index].abs() * f64::from(f32::EPSILON) + f64::from(f32::MIN_POSITIVE)
    };
    let index = (0..found.len()).find(|index| !within(index))?;
    let (found, expected, bound) = (found[index], expected[index], bound[index]);
    Some(format!("element {index} is {found:e}, expected {expected:e} ± {bound:.1e}"))
}
