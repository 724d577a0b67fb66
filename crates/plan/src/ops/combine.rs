//! `combine`: the sum of what the experts of a row made of it, each times its weight.

use super::{Definition, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::{Bounded, Bounds, gamma};
use crate::reference::Reference;
use crate::shapes::{Checked, Shapes};
use crate::{Op, StepCost, Value, ValueInfo};

/// The fields of [`Op::Combine`].
pub(crate) struct CombineOp {
    pub(crate) x: Value,
    pub(crate) weights: Value,
    pub(crate) out: Value,
}

impl Meaning for CombineOp {
    fn name(&self) -> &'static str {
        "combine"
    }

    fn operands(&self) -> Operands {
        Operands { inputs: vec![self.x, self.weights], outputs: vec![self.out], ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::Combine { x: map(self.x), weights: map(self.weights), out: map(self.out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        let ValueInfo { rows, width: top_k, .. } = shapes.plan.value(self.weights);
        shapes.rows("x", self.x, rows)?;
        shapes.rows("out", self.out, rows)?;
        shapes.width_is("x", self.x, top_k * shapes.width(self.out))
    }

    fn is_row_by_row(&self) -> bool {
        true
    }

    fn cost(&self, _prices: &Prices<'_>) -> StepCost {
        StepCost::nothing()
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Textbook(self)
    }
}

impl Textbook for CombineOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let sum = combine(env.value(self.x), env.value(self.weights), env.width(self.out), env.width(self.weights));
        env.set(self.out, sum);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        let (width, top_k) = (env.width(self.out), env.width(self.weights));
        let sum = combine_bound(env.value(self.x), env.value(self.weights), width, top_k);
        env.set(self.out, sum);
    }
}

/// `out[t] = Σ_s weights[t][s] · x[t][s]`: (rows, top_k · width) to (rows, width).
fn combine(x: &[f64], weights: &[f64], width: usize, top_k: usize) -> Vec<f64> {
    let rows = x.chunks_exact(top_k * width).zip(weights.chunks_exact(top_k));
    rows.flat_map(|(x, weights)| {
        let term = move |(slice, weight): (&[f64], &f64), i: usize| slice[i] * weight;
        (0..width).map(move |i| x.chunks_exact(width).zip(weights).map(|pair| term(pair, i)).sum::<f64>())
    })
    .collect()
}

fn combine_bound(x: &Bounded, weights: &Bounded, width: usize, top_k: usize) -> Bounded {
    let value = combine(&x.value, &weights.value, width, top_k);
    let abs = |values: &[f64]| values.iter().map(|v| v.abs()).collect::<Vec<_>>();
    let plus =
        |bounded: &Bounded| bounded.value.iter().zip(&bounded.error).map(|(v, e)| v.abs() + e).collect::<Vec<_>>();
    // Σ |w|·e(x) + (|x| + e(x))·e(w), and the rounding of products and sums.
    let moved_x = combine(&x.error, &abs(&weights.value), width, top_k);
    let moved_w = combine(&plus(x), &weights.error, width, top_k);
    let magnitude = combine(&plus(x), &plus(weights), width, top_k);
    let terms = moved_x.into_iter().zip(moved_w).zip(magnitude);
    let error = terms.map(|((x, w), all)| x + w + gamma(top_k + 2) * all).collect();
    Bounded::zip(value, error)
}
