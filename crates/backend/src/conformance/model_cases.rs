//! Whole tiny models: against the reference, over caches in any order, in every way to cut them into steps, and what
//! must be refused.

use std::sync::Arc;

use plan::reference::{Choices, Chosen, Interpreter};
use plan::{BlockCopy, Kind, KvLayout, Plan, StepInput, StepShape, fuse, restrict_outputs, share_slots};
use tensor::{Tensor, WeightFormat};
use testing::{BlockPool, Rng, Sequence, tiny_model, tiny_plan};

use super::trial::{Trial, Twins, replay, router_noise};
use super::{Case, Outcome, Part, distinct};
use crate::{Backend, BackendError, Executable, Observed};

/// Tokens of the sequences that are cut in many ways: several blocks of any length that is common, and a multiple of none;
/// and for the first case, more positions than a kernel takes at once.
const SEQUENCE_LEN: usize = 75;
const SEQUENCE_LEN_LONG: usize = 301;

/// A tiny random model of an architecture.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelCase {
    pub(super) model_type: &'static str,
    /// Whether it is the first of its part, which takes longer sequences.
    pub(super) first: bool,
}

/// Other weights for each part.
fn seed_of(part: Part) -> u64 {
    1 + part as u64
}

/// What `part` runs of a plan in textbook ops.
fn plans_of(textbook: &Plan, part: Part) -> Vec<Arc<Plan>> {
    let fused = Arc::new(fuse(textbook.clone()));
    match part {
        Part::Models => {
            // All matrices of these models are in one format.
            let shared = share_slots(restrict_outputs(textbook.clone()), |_| true);
            vec![fused, Arc::new(fuse(shared))]
        }
        _ => vec![fused],
    }
}

impl ModelCase {
    /// The plans that `part` runs.
    pub(super) fn plans(&self, part: Part, format: WeightFormat) -> Vec<Arc<Plan>> {
        plans_of(&tiny_plan(self.model_type, seed_of(part), format), part)
    }

    /// The same, with the weights of each.
    fn forms(&self, part: Part, format: WeightFormat) -> Vec<(Vec<Tensor>, Arc<Plan>)> {
        let (textbook, weights) = tiny_model(self.model_type, seed_of(part), format);
        plans_of(&textbook, part).into_iter().map(|plan| (weights.clone(), plan)).collect()
    }

    pub(super) fn run(&self, case: &Case, backends: &[&dyn Backend]) -> Vec<Vec<Outcome>> {
        let forms = self.forms(case.part, case.format);
        let mut twins = Twins::default();
        let mut outcome = |backend, form: usize, weights: &[Tensor], plan: &Arc<Plan>| {
            let mut trial = Trial::new(backend, case.kv);
            let result = match case.part {
                Part::Models | Part::Ops => {
                    trial.model(plan, weights).and_then(|found| twins.check(backend, form, weights, found))
                }
                Part::Caches => trial.cache(plan, weights),
                Part::Batches => trial.batch(plan, weights, if self.first { SEQUENCE_LEN_LONG } else { SEQUENCE_LEN }),
                Part::Refusals => trial.refusals(plan, weights),
            };
            Outcome { ops: distinct(plan.ops.iter()), worst: trial.worst, fault: result.err() }
        };
        let mut outcomes = Vec::with_capacity(backends.len());
        for &backend in backends {
            let of_form =
                |(form, (weights, plan)): (usize, &(Vec<Tensor>, Arc<Plan>))| outcome(backend, form, weights, plan);
            outcomes.push(forms.iter().enumerate().map(of_form).collect());
        }
        outcomes
    }
}

impl Trial<'_> {
    fn model(&mut self, plan: &Arc<Plan>, weights: &[Tensor]) -> Result<Vec<Vec<f32>>, String> {
        let mut executable = self.load(plan, weights)?;
        // A program that is made before it is needed runs smaller steps too.
        let shape = StepShape { tokens: 32, sequences: 4, outputs: 32 };
        executable.compile(shape).map_err(|error| format!("compile: {error}"))?;
        let mut interpreter = interpreter(plan, weights, self.kv);
        let mut all = Vec::new();
        for input in random_steps(&mut Rng::new(5), plan.vocab_size, &self.kv, &[1, 3, 9, 40]) {
            let found = self.step(plan, weights, &input, &mut *executable, &mut interpreter)?;
            all.push(found);
            // The same step once more, without the head: the cache holds the same keys and values after it.
            if executable.hidden_size().is_some() {
                let expected = interpreter.run_hidden(&input).expect("a well-formed step");
                interpreter.choose(None);
                let expected = expected.expect("whoever gives states runs a plan that has them");
                let found = executable.replay_hidden(&input).map(<[f32]>::to_vec);
                let found = found.map_err(|error| format!("hidden states, {:?}: {error}", input.shape()))?;
                self.near(weights, &input, &found, &expected).map_err(|fault| format!("hidden states, {fault}"))?;
                all.push(found);
            }
        }
        Ok(all)
    }

    /// The logits of a step, which must be near those of the reference. A mixture's experts are those that the device
    /// chose, as long as its noise explains where they are not the reference's own.
    fn step(
        &mut self,
        plan: &Plan,
        weights: &[Tensor],
        input: &StepInput,
        executable: &mut dyn Executable,
        interpreter: &mut Interpreter,
    ) -> Result<Vec<f32>, String> {
        let mut chosen = Vec::new();
        if plan.values.iter().any(|value| value.kind == Kind::Index) {
            let mut observe = |_: usize, what: Observed, elements: &[f32]| match what {
                Observed::Value(value) if plan.value(value).kind == Kind::Index => {
                    chosen.push((value, Chosen { ids: elements.to_vec(), rows: None }));
                }
                _ => {}
            };
            let found = executable.replay_observed(input, &mut observe).map_err(|error| error.to_string())?.to_vec();
            let choices = Choices::new(chosen, router_noise(self.nmse_max(weights)));
            interpreter.choose(Some(choices));
            let expected = interpreter.run(input).expect("a well-formed step");
            // The choices are kept, because the hidden states of this step may be asked for next.
            let seen = interpreter.choices_seen();
            if let Some(fault) = seen.fault {
                return Err(format!("{:?}: {fault}", input.shape()));
            }
            self.near(weights, input, &found, &expected)?;
            if !self.claims.bit_exact {
                return Ok(found);
            }
            let again = replay(executable, input)?;
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
            return match found.iter().zip(&again).all(same) {
                true => Ok(found),
                false => Err(format!("{:?}: other bits while it is watched", input.shape())),
            };
        }
        let expected = interpreter.run(input).expect("a well-formed step");
        let found = replay(executable, input)?;
        self.near(weights, input, &found, &expected)?;
        Ok(found)
    }

    fn cache(&mut self, plan: &Arc<Plan>, weights: &[Tensor]) -> Result<(), String> {
        let kv = self.kv;
        let mut rng = Rng::new(6);
        let mut executable = self.load(plan, weights)?;
        // Every slot holds something that nobody may read; the reference's unwritten slots hold NaN.
        let everywhere: Vec<u32> = (0..kv.num_blocks as u32).collect();
        let mut garbage = StepInput::default();
        garbage.push_sequence(&rng.tokens(kv.num_blocks * kv.block_len, plan.vocab_size), 0, &everywhere);
        if !replay(&mut *executable, &garbage)?.is_empty() {
            return Err("a step without outputs does not give an empty result".to_owned());
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
            self.step(plan, weights, &input, &mut *executable, &mut interpreter)?;
        }
        Ok(())
    }

    fn batch(&mut self, plan: &Arc<Plan>, weights: &[Tensor], len: usize) -> Result<(), String> {
        let mut rng = Rng::new(7);
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
            let mut executable = self.load(plan, weights)?;
            let found = drive(&mut *executable, &tokens, chunk, others, BlockPool::new(&self.kv, &mut rng))?;
            let first = first.get_or_insert_with(|| found.clone());
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
            if let Some(at) = first.iter().zip(&found).position(|pair| !same(pair)) {
                let (position, id) = (at / plan.vocab_size, at % plan.vocab_size);
                let (a, b) = (first[at], found[at]);
                return Err(format!("{cut}: logit {id} at position {position} is {b:e}, {}: {a:e}", cuts[0].0));
            }
        }
        Ok(())
    }

    fn refusals(&mut self, plan: &Arc<Plan>, weights: &[Tensor]) -> Result<(), String> {
        let mut wrong = weights.to_vec();
        let other_shape = weights.iter().find(|tensor| tensor.shape() != weights[0].shape()).expect("shapes differ");
        wrong[0] = other_shape.clone();
        for wrong in [wrong, weights[1..].to_vec()] {
            match self.backend.load(plan.clone(), wrong, self.kv) {
                Err(BackendError::WrongWeight { .. }) => {}
                Err(error) => return Err(format!("a wrong weight is refused as something else: {error}")),
                Ok(_) => return Err("a wrong weight is loaded".to_owned()),
            }
        }
        let mut executable = self.load(plan, weights)?;
        let mut good = StepInput::default();
        good.push_sequence(&[1, 2, 3], 0, &[0]);
        good.output_rows.push(2);
        let expected = replay(&mut *executable, &good)?;
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
                Err(error) => return Err(format!("{what} is refused as something else: {error}")),
                Ok(_) => return Err(format!("{what} is run")),
            }
        }
        if replay(&mut *executable, &good)? != expected {
            return Err("a step after refused ones gives other logits".to_owned());
        }
        Ok(())
    }
}

/// The logits at every position of `tokens`, in steps of `chunk` tokens; `others` come along, in chunks of sizes that
/// change, first in one step and last in the next.
fn drive(
    executable: &mut dyn Executable,
    tokens: &[u32],
    chunk: usize,
    others: &[Vec<u32>],
    mut pool: BlockPool,
) -> Result<Vec<f32>, String> {
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
        let found = replay(executable, &input)?;
        let vocab = found.len() / input.output_rows.len();
        logits.extend_from_slice(&found[ours * vocab..(ours + count) * vocab]);
        step += 1;
    }
    Ok(logits)
}

fn interpreter(plan: &Arc<Plan>, weights: &[Tensor], kv: KvLayout) -> Interpreter {
    Interpreter::new(plan.clone(), weights.to_vec(), kv).expect("a verified plan")
}

/// Steps that mix sequences: `lens` tokens each, in shuffled blocks, cut into random chunks, some sequences resting in
/// some steps, the logits of all rows wanted; then one step that wants few.
pub(super) fn random_steps(rng: &mut Rng, vocab_size: usize, kv: &KvLayout, lens: &[usize]) -> Vec<StepInput> {
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
