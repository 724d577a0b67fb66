//! `linear`: a projection, x · Wᵀ + b.

use std::borrow::Cow;

use tensor::ActivationRounding;

use super::{Definition, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::{Bounded, Bounds, gamma, rounding_error};
use crate::reference::Reference;
use crate::shapes::{Checked, Shapes};
use crate::{Op, StepCost, Value, WeightId};

/// y = x · weightᵀ + bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// (out_features, in_features).
    pub weight: WeightId,
    /// (out_features,).
    pub bias: Option<WeightId>,
}

impl Linear {
    /// The weight and, where there is one, the bias.
    pub(crate) fn weights(&self) -> impl Iterator<Item = WeightId> + use<> {
        [Some(self.weight), self.bias].into_iter().flatten()
    }
}

/// The fields of [`Op::Linear`].
pub(crate) struct LinearOp {
    pub(crate) x: Value,
    pub(crate) linear: Linear,
    pub(crate) out: Value,
}

impl Meaning for LinearOp {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn operands(&self) -> Operands {
        let weights = self.linear.weights().collect();
        Operands { inputs: vec![self.x], outputs: vec![self.out], weights, ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::Linear { x: map(self.x), linear: self.linear, out: map(self.out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        shapes.linear(self.x, self.linear, self.out)
    }

    fn is_row_by_row(&self) -> bool {
        true
    }

    fn cost(&self, prices: &Prices<'_>) -> StepCost {
        prices.products(prices.plan.value(self.out).rows, &self.operands().weights)
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Textbook(self)
    }
}

impl Textbook for LinearOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let product = linear(env.value(self.x), &env.linear(self.linear));
        env.set(self.out, product);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        let rounding = env.state.rounding[self.linear.weight.index()];
        let product = linear_bound(env.value(self.x), &env.linear(self.linear), rounding);
        env.set(self.out, product);
    }
}

/// What a projection reads.
pub(crate) struct LinearWeights<'a> {
    /// (out_features, in_features).
    pub(crate) weight: Cow<'a, [f32]>,
    /// Weights in a row.
    pub(crate) in_features: usize,
    /// (out_features,).
    pub(crate) bias: Option<Cow<'a, [f32]>>,
}

/// x · weightᵀ + bias: (rows, in_features) to (rows, out_features).
pub(super) fn linear(x: &[f64], linear: &LinearWeights<'_>) -> Vec<f64> {
    x.chunks_exact(linear.in_features)
        .flat_map(|x| {
            let rows = linear.weight.chunks_exact(linear.in_features).enumerate();
            rows.map(move |(out, w)| dot(x, w, |w| w) + linear.bias.as_ref().map_or(0.0, |bias| f64::from(bias[out])))
        })
        .collect()
}

/// Σ x · of(w), in eight sums: in a single sum each addition waits for the one before, and half of the time of the tests
/// was spent waiting here.
fn dot(x: &[f64], w: &[f32], of: impl Fn(f32) -> f32) -> f64 {
    let (x_eights, x_rest) = x.as_chunks::<8>();
    let (w_eights, w_rest) = w.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (x, w) in x_eights.iter().zip(w_eights) {
        for ((sum, x), &w) in sums.iter_mut().zip(x).zip(w) {
            *sum += x * f64::from(of(w));
        }
    }
    let rest: f64 = x_rest.iter().zip(w_rest).map(|(x, &w)| x * f64::from(of(w))).sum();
    sums.iter().sum::<f64>() + rest
}

/// `rounding` is what activations are rounded to before they meet the weight.
pub(super) fn linear_bound(x: &Bounded, weights: &LinearWeights<'_>, rounding: ActivationRounding) -> Bounded {
    let value = linear(&x.value, weights);
    let &LinearWeights { ref weight, in_features, ref bias } = weights;
    let mut error = Vec::with_capacity(value.len());
    for (x, e) in x.value.chunks_exact(in_features).zip(x.error.chunks_exact(in_features)) {
        let rounded: Vec<f64> = rounding_error(rounding, x, e).iter().zip(e).map(|(r, e)| r + e).collect();
        let largest: Vec<f64> = x.iter().zip(&rounded).map(|(x, e)| x.abs() + e).collect();
        for (out, row) in weight.chunks_exact(in_features).enumerate() {
            let magnitude = dot(&largest, row, f32::abs) + bias.as_ref().map_or(0.0, |bias| f64::from(bias[out]).abs());
            let moved = dot(&rounded, row, f32::abs);
            // k · ε · Σ|w·x|, the sum with its bias, and what x itself was off by.
            error.push(moved + gamma(in_features + 2) * magnitude);
        }
    }
    Bounded::zip(value, error)
}
