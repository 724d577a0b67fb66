//! The reference interpreter: the meaning of every op, in f64, one short file each. Plain, slow, and the oracle of every
//! kernel on every backend.
//!
//! All matrices are row-major slices. Weights are what their stored bytes mean, as f32; everything else is f64, so that
//! a kernel's own rounding is all that stands between it and the reference. A row's result does not depend on the other
//! rows of the step: prefill in one piece, in chunks and token by token give the same bits.

mod add;
mod attention;
mod embed;
mod gather_columns;
mod glu;
mod kv_write;
mod linear;
mod linear_residual;
mod logits;
mod norm_glu;
mod norm_linear;
mod rms_norm;
mod rope;
mod rope_kv_write;
mod select_outputs;

use std::sync::Arc;

use tensor::Tensor;

use crate::{
    BlockCopy, KvLayout, Linear, Norm, Op, Plan, StepError, StepInput, Value, VerifyError, WeightId, hidden_states,
    verify,
};

pub use add::add;
pub use attention::attention;
pub use embed::embed;
pub use gather_columns::gather_columns;
pub use glu::glu;
pub use kv_write::{KvCache, kv_write};
pub use linear::{LinearWeights, linear};
pub use linear_residual::linear_residual;
pub use logits::logits;
pub use norm_glu::norm_glu;
pub use norm_linear::norm_linear;
pub use rms_norm::{NormWeights, rms_norm};
pub use rope::rope;
pub use rope_kv_write::{RopeKvWriteWeights, rope_kv_write};
pub use select_outputs::select_outputs;

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
        Ok(Self { plan, weights: weights.iter().map(Tensor::to_f32).collect(), cache })
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
        for (index, op) in self.plan.clone().ops.iter().enumerate() {
            let results = self.run_op(op, &values, input, &rows);
            for (value, result) in op.outputs().into_iter().zip(results) {
                trace(index, op, value, &result);
                values[value.index()] = result;
            }
        }
        Ok(std::mem::take(&mut values[self.plan.logits.index()]))
    }

    /// The values that `op` defines, in the order of [`Op::outputs`].
    fn run_op(&mut self, op: &Op, values: &[Vec<f64>], input: &StepInput, rows: &[RowPlace]) -> Vec<Vec<f64>> {
        let value = |v: Value| values[v.index()].as_slice();
        let width = |v: Value| self.plan.value(v).width;
        match *op {
            Op::Embed { table, out } => vec![embed(self.weight(table), width(out), &input.token_ids)],
            Op::RmsNorm { x, norm, .. } => vec![rms_norm(value(x), self.norm(norm))],
            Op::Linear { x, linear: w, .. } => vec![linear(value(x), self.linear(w))],
            Op::Rope { x, rope: index, .. } => vec![rope(value(x), &self.plan.ropes[index], rows)],
            Op::KvWrite { layer, k, v } => {
                kv_write(&mut self.cache, layer, value(k), value(v), rows);
                vec![]
            }
            Op::Attention { q, attention: ref attend, .. } => {
                vec![attention(value(q), attend, &self.cache, rows)]
            }
            Op::Glu { gate, up, activation, .. } => vec![glu(value(gate), value(up), activation)],
            Op::Add { a, b, .. } => vec![add(value(a), value(b))],
            Op::GatherColumns { x, order, .. } => {
                vec![gather_columns(value(x), width(x), &self.plan.orders[order])]
            }
            Op::SelectOutputs { x, .. } => vec![select_outputs(value(x), width(x), &input.output_rows)],
            Op::NormLinear { x, norm, ref projections } => {
                let projections: Vec<_> = projections.iter().map(|&(w, _)| self.linear(w)).collect();
                norm_linear(value(x), self.norm(norm), &projections)
            }
            Op::NormGlu { x, norm, gate, up, activation, .. } => {
                vec![norm_glu(value(x), self.norm(norm), self.linear(gate), self.linear(up), activation)]
            }
            Op::LinearResidual { x, linear: w, residual, .. } => {
                vec![linear_residual(value(x), self.linear(w), value(residual))]
            }
            Op::RopeKvWrite { q, k, v, q_norm, k_norm, rope, layer, .. } => {
                let norm = |norm: Option<Norm>| {
                    norm.map(|norm| NormWeights { weight: &self.weights[norm.weight.index()], eps: norm.eps })
                };
                let weights =
                    RopeKvWriteWeights { q_norm: norm(q_norm), k_norm: norm(k_norm), rope: &self.plan.ropes[rope] };
                vec![rope_kv_write(&mut self.cache, layer, value(q), value(k), value(v), weights, rows)]
            }
            Op::Logits { x, norm, head, .. } => {
                vec![logits(value(x), self.norm(norm), self.linear(head), &input.output_rows)]
            }
        }
    }

    fn weight(&self, weight: WeightId) -> &[f32] {
        &self.weights[weight.index()]
    }

    fn norm(&self, norm: Norm) -> NormWeights<'_> {
        NormWeights { weight: self.weight(norm.weight), eps: norm.eps }
    }

    fn linear(&self, linear: Linear) -> LinearWeights<'_> {
        LinearWeights {
            weight: self.weight(linear.weight),
            in_features: self.plan.weight(linear.weight).shape[1],
            bias: linear.bias.map(|bias| self.weight(bias)),
        }
    }
}
