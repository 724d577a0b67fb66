//! The reference interpreter: runs plans by the f64 reference of each op, which stands in the op's file in `ops`.
//! Plain, slow, and the oracle of every kernel on every backend.
//!
//! All matrices are row-major slices. Weights are what their stored bytes mean, as f32; everything else is f64, so that
//! a kernel's own rounding is all that stands between it and the reference. A row's result does not depend on the other
//! rows of the step: prefill in one piece, in chunks and token by token give the same bits.

mod choices;
mod env;
mod kv_cache;

use std::borrow::Cow;
use std::sync::Arc;

use tensor::Tensor;

use crate::{BlockCopy, KvLayout, Op, Plan, StepError, StepInput, Value, VerifyError, WeightId, hidden_states, verify};

pub use choices::{Choices, Chosen, Seen, WrongChoice};
pub(crate) use env::Env;
pub use kv_cache::KvCache;

/// What the reference of an op is evaluated in: matrices in f64, and the cache.
pub(crate) type Reference<'a> = Env<'a, Vec<f64>, &'a mut KvCache>;

/// Where a row of the step stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowPlace {
    /// Its position in its sequence.
    pub position: usize,
    /// The place in the cache of each position up to and including its own.
    pub slots: Arc<[usize]>,
}

impl RowPlace {
    /// The rows of `input`, in order. A slot is `block · block_len + place in the block`.
    pub fn of_step(input: &StepInput, kv: &KvLayout) -> Vec<Self> {
        let mut rows = Vec::with_capacity(input.token_ids.len());
        for sequence in &input.sequences {
            let table = input.table(sequence);
            let slot =
                |position: usize| table[position / kv.block_len] as usize * kv.block_len + position % kv.block_len;
            let slots: Arc<[usize]> = (0..sequence.kv_len()).map(slot).collect();
            rows.extend(
                (sequence.first_position..sequence.kv_len()).map(|position| Self { position, slots: slots.clone() }),
            );
        }
        rows
    }

    /// The place in the cache of the row's own key and value.
    pub fn slot(&self) -> usize {
        self.slots[self.position]
    }
}

/// Runs plans, op by op. Holds weights as f32 and the cache as f64: for small models.
pub struct Interpreter {
    plan: Arc<Plan>,
    weights: Vec<Vec<f32>>,
    cache: KvCache,
    /// What routers choose, where it is not left to them.
    choices: Option<Choices>,
}

impl Interpreter {
    /// An interpreter of `plan` with `weights` in the order of [`Plan::weights`] and an empty cache.
    ///
    /// # Errors
    /// The plan does not verify.
    ///
    /// # Panics
    /// When a tensor has another shape than the plan says.
    pub fn new(plan: Arc<Plan>, weights: Vec<Tensor>, kv: KvLayout) -> Result<Self, VerifyError> {
        verify(&plan)?;
        assert_eq!(weights.len(), plan.weights.len(), "one tensor for each weight of the plan");
        for (tensor, info) in weights.iter().zip(&plan.weights) {
            assert_eq!(tensor.shape(), info.shape, "tensor for `{}`", info.name);
        }
        let cache = KvCache::new(&plan.kv_layers, kv);
        Ok(Self { plan, weights: weights.iter().map(Tensor::to_f32).collect(), cache, choices: None })
    }

    /// The plan that it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The cache as the last step left it.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Runs a step. Returns the logits, (outputs, vocab_size).
    pub fn run(&mut self, input: &StepInput) -> Result<Vec<f64>, StepError> {
        self.run_traced(input, |_, _, _, _| {})
    }

    /// What came of the choices so far.
    pub fn choices_seen(&self) -> Seen {
        self.choices.as_ref().map(Choices::seen).unwrap_or_default()
    }

    /// Has routers choose as `choices` says in the steps to come. Returns what came of the choices before these.
    pub fn choose(&mut self, choices: Option<Choices>) -> Option<Seen> {
        std::mem::replace(&mut self.choices, choices).map(|choices| choices.seen())
    }

    /// Runs a step. Returns what the final norm makes of the output rows, (outputs, hidden_size), in place of logits; the
    /// cache is written as by [`Interpreter::run`]. `None` where the plan has no such states.
    pub fn run_hidden(&mut self, input: &StepInput) -> Result<Option<Vec<f64>>, StepError> {
        let Some(hidden) = hidden_states(&self.plan) else { return Ok(None) };
        let plan = std::mem::replace(&mut self.plan, Arc::new(hidden));
        let states = self.run(input);
        self.plan = plan;
        states.map(Some)
    }

    /// Runs a step and shows every value as soon as its op has made it: the op's place in the plan, the op, the value,
    /// its elements (rows, width).
    pub fn run_traced(
        &mut self,
        input: &StepInput,
        mut trace: impl FnMut(usize, &Op, Value, &[f64]),
    ) -> Result<Vec<f64>, StepError> {
        input.check(self.plan.vocab_size, self.cache.layout())?;
        for &BlockCopy { from, to } in &input.block_copies {
            self.cache.copy_block(from as usize, to as usize);
        }
        let rows = RowPlace::of_step(input, self.cache.layout());
        let mut values = vec![Vec::new(); self.plan.values.len()];
        let weight = |weight: WeightId| Cow::Borrowed(&self.weights[weight.index()][..]);
        let mut env = Env::new(&self.plan, input, &rows, &weight, &mut values, &mut self.cache);
        env.choices = self.choices.as_ref();
        for (index, op) in self.plan.ops.iter().enumerate() {
            env.run(op, |op, env| op.reference(env));
            for value in op.outputs() {
                trace(index, op, value, env.value(value));
            }
        }
        Ok(std::mem::take(&mut values[self.plan.logits.index()]))
    }
}
