//! `expert_linear`: the projections of a row by the experts that were chosen for it.

use std::collections::HashMap;

use super::linear::{linear, linear_bound};
use super::{Definition, LinearWeights, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::{Bounded, Bounds};
use crate::reference::Reference;
use crate::shapes::{Checked, Shapes};
use crate::{Cost, Linear, Op, StepCost, Value, ValueInfo, WeightId};

/// A projection for each expert, all of one shape. Their weights stand one after another in
/// [`Plan::weights`](crate::Plan::weights).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// That of expert 0, (out_features, in_features).
    pub first: WeightId,
    /// The bias of expert 0, (out_features,).
    pub bias: Option<WeightId>,
    /// Experts; at least one.
    pub count: usize,
}

impl Experts {
    /// The projection of one expert.
    pub fn linear(&self, expert: usize) -> Linear {
        let expert = u32::try_from(expert).expect("a plan has fewer than 2^32 weights");
        let of = |first: WeightId| WeightId(first.0 + expert);
        Linear { weight: of(self.first), bias: self.bias.map(of) }
    }

    /// All matrices, then all biases.
    pub fn weights(&self) -> impl Iterator<Item = WeightId> + use<> {
        let run = |first: WeightId, count| (0..count as u32).map(move |expert| WeightId(first.0 + expert));
        let count = self.count;
        run(self.first, count).chain(self.bias.into_iter().flat_map(move |bias| run(bias, count)))
    }
}

/// The fields of [`Op::ExpertLinear`].
pub(crate) struct ExpertLinearOp {
    pub(crate) x: Value,
    pub(crate) ids: Value,
    pub(crate) experts: Experts,
    pub(crate) out: Value,
}

impl Meaning for ExpertLinearOp {
    fn name(&self) -> &'static str {
        "expert_linear"
    }

    fn operands(&self) -> Operands {
        Operands {
            inputs: vec![self.x, self.ids],
            outputs: vec![self.out],
            weights: self.experts.weights().collect(),
            indices: vec![self.ids],
            ..Operands::default()
        }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::ExpertLinear { x: map(self.x), ids: map(self.ids), experts: self.experts, out: map(self.out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        let ValueInfo { rows, width: top_k, .. } = shapes.plan.value(self.ids);
        shapes.rows("x", self.x, rows)?;
        shapes.rows("out", self.out, rows)?;
        let out = shapes.width(self.out);
        if !out.is_multiple_of(top_k) {
            return Err(format!("`out` ({}) has width {out}, expected a multiple of {top_k} experts", self.out));
        }
        let in_features = shapes.expert_width(&self.experts)?;
        let x = shapes.width(self.x);
        if x != in_features && x != top_k * in_features {
            let times = top_k * in_features;
            return Err(format!("`x` ({}) has width {x}, expected {in_features} or {times}", self.x));
        }
        shapes.experts(&self.experts, in_features, out / top_k)
    }

    fn is_row_by_row(&self) -> bool {
        true
    }

    fn cost(&self, prices: &Prices<'_>) -> StepCost {
        prices.experts(self.ids, &[self.experts])
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Textbook(self)
    }
}

impl Shapes<'_> {
    /// Features that the experts multiply.
    pub(crate) fn expert_width(&self, experts: &Experts) -> Checked<usize> {
        let first = self.plan.weight(experts.first);
        match first.shape[..] {
            [_, in_features] => Ok(in_features),
            ref shape => Err(format!("weight `{}` has shape {shape:?}, expected a matrix", first.name)),
        }
    }

    /// Every expert's matrix and bias have the shapes of a projection.
    pub(crate) fn experts(&self, experts: &Experts, in_features: usize, out_features: usize) -> Checked {
        (0..experts.count).try_for_each(|expert| self.projection(experts.linear(expert), in_features, out_features))
    }
}

impl Prices<'_> {
    /// Each row multiplies the matrices of those experts of each of `stacks` that `ids` names. Weights are read once where
    /// some row chose their expert: of rows that choose evenly and on their own, as many as are expected of a step's;
    /// and those of shared experts, which stand last in their stack.
    pub(crate) fn experts(&self, ids: Value, stacks: &[Experts]) -> StepCost {
        let ValueInfo { rows, width: slots, .. } = self.plan.value(ids);
        let shared = self.plan.router_of(ids).map_or(0, |router| router.shared);
        let of_stack = |stack: &Experts| {
            let bytes: u64 = stack.weights().map(|weight| (self.weight_bytes)(weight)).sum();
            let elements: usize = self.plan.weight(stack.first).shape.iter().product();
            (bytes, stack.count, 2 * (slots * elements) as u64)
        };
        let stacks: Vec<_> = stacks.iter().map(of_stack).collect();
        StepCost::new(move |input| {
            let rows = rows.count(input.shape());
            stacks.iter().fold(Cost::default(), |sum, &(bytes, count, flops_per_row)| {
                let routed = count - shared;
                let missed = (1.0 - (slots - shared) as f64 / routed as f64).powf(rows as f64);
                let experts_read = routed as f64 * (1.0 - missed) + if rows > 0 { shared as f64 } else { 0.0 };
                let read = (bytes as f64 * experts_read / count as f64).round() as u64;
                Cost { bytes: sum.bytes + read, flops: sum.flops + rows as u64 * flops_per_row }
            })
        })
    }
}

/// For each row of `x` and each of its experts, (`expert`, its slice of the row), what `project` makes of it.
fn by_expert<T>(ids: &[f64], top_k: usize, mut project: impl FnMut(usize, usize, usize) -> Vec<T>) -> Vec<T> {
    ids.iter().enumerate().flat_map(|(place, &id)| project(place / top_k, place % top_k, id as usize)).collect()
}

impl ExpertLinearOp {
    /// Where the slice that `slot` multiplies begins in a row of `x`, and its width.
    fn slice(width: usize, in_features: usize, row: usize, slot: usize) -> std::ops::Range<usize> {
        let start = row * width + if width == in_features { 0 } else { slot * in_features };
        start..start + in_features
    }
}

impl Textbook for ExpertLinearOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let (width, top_k) = (env.width(self.x), env.width(self.ids));
        let x = env.value(self.x);
        let mut known = HashMap::new();
        let out = by_expert(env.value(self.ids), top_k, |row, slot, id| {
            let weights = known.entry(id).or_insert_with(|| env.linear(self.experts.linear(id)));
            linear(&x[Self::slice(width, weights.in_features, row, slot)], weights)
        });
        env.set(self.out, out);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        let (width, top_k) = (env.width(self.x), env.width(self.ids));
        let (x, ids) = (env.value(self.x), env.value(self.ids));
        let mut known: HashMap<usize, LinearWeights<'_>> = HashMap::new();
        let out = by_expert(&ids.value, top_k, |row, slot, id| {
            let weights = known.entry(id).or_insert_with(|| env.linear(self.experts.linear(id)));
            let slice = Self::slice(width, weights.in_features, row, slot);
            let x = Bounded::zip(x.value[slice.clone()].to_vec(), x.error[slice].to_vec());
            let rounding = env.state.rounding[self.experts.linear(id).weight.index()];
            let Bounded { value, error } = linear_bound(&x, weights, rounding);
            // Of an expert that may be another one, anything.
            let is_certain = ids.error[row * top_k + slot] == 0.0;
            value.into_iter().zip(error).map(|(v, e)| (v, if is_certain { e } else { f64::INFINITY })).collect()
        });
        let (value, error) = out.into_iter().unzip();
        env.set(self.out, Bounded::zip(value, error));
    }
}
