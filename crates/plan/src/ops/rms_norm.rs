//! `rms_norm`: normalises each slice of a row that is as wide as the norm's weight.

use std::borrow::Cow;

use super::{Definition, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::{Bounded, Bounds, gamma};
use crate::reference::Reference;
use crate::shapes::{Checked, Shapes};
use crate::{Op, StepCost, Value, WeightId};

/// RMSNorm over slices as wide as the weight: y = x / sqrt(mean(x²) + eps) · weight (Zhang and Sennrich, 2019).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// (width,) — the width of a slice: the whole row, or one head of it.
    pub weight: WeightId,
    /// Added to the mean square.
    pub eps: f32,
}

/// The fields of [`Op::RmsNorm`].
pub(crate) struct RmsNormOp {
    pub(crate) x: Value,
    pub(crate) norm: Norm,
    pub(crate) out: Value,
}

impl Meaning for RmsNormOp {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn operands(&self) -> Operands {
        let weights = vec![self.norm.weight];
        Operands { inputs: vec![self.x], outputs: vec![self.out], weights, ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::RmsNorm { x: map(self.x), norm: self.norm, out: map(self.out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        shapes.norm_slices(self.x, self.norm)?;
        shapes.like("out", self.out, self.x)
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

impl Textbook for RmsNormOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let normed = rms_norm(env.value(self.x), &env.norm(self.norm));
        env.set(self.out, normed);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        let normed = rms_norm_bound(env.value(self.x), &env.norm(self.norm));
        env.set(self.out, normed);
    }
}

/// What an RMSNorm reads.
pub(crate) struct NormWeights<'a> {
    /// (width of a slice,).
    pub(crate) weight: Cow<'a, [f32]>,
    /// Added to the mean square.
    pub(crate) eps: f32,
}

/// x / sqrt(mean(x²) + eps) · weight for each slice of `x` that is as wide as the weight (Zhang and Sennrich, 2019).
fn rms_norm(x: &[f64], norm: &NormWeights<'_>) -> Vec<f64> {
    let width = norm.weight.len();
    x.chunks_exact(width)
        .flat_map(|slice| {
            let mean_square = slice.iter().map(|x| x * x).sum::<f64>() / width as f64;
            let scale = 1.0 / (mean_square + f64::from(norm.eps)).sqrt();
            slice.iter().zip(&*norm.weight).map(move |(x, &weight)| x * scale * f64::from(weight))
        })
        .collect()
}

fn rms_norm_bound(x: &Bounded, norm: &NormWeights<'_>) -> Bounded {
    let width = norm.weight.len();
    let value = rms_norm(&x.value, norm);
    let slices = x.value.chunks_exact(width).zip(x.error.chunks_exact(width)).zip(value.chunks_exact(width));
    let error = slices.flat_map(|((x, e), y)| {
        let square = x.iter().map(|x| x * x).sum::<f64>() / width as f64;
        let square_error = x.iter().zip(e).map(|(x, e)| 2.0 * x.abs() * e + e * e).sum::<f64>() / width as f64;
        let square_error = square_error + gamma(width + 2) * (square + square_error);
        let eps = f64::from(norm.eps);
        let scale = 1.0 / (square + eps).sqrt();
        // d(s^-1/2) / s^-1/2 = -ds / 2s, at the least s there may be.
        let scale_relative = 0.5 * square_error / (square - square_error).max(0.0).mul_add(1.0, eps);
        let relative = scale_relative + gamma(6);
        let element = move |((e, y), w): ((&f64, &f64), &f32)| {
            (f64::from(*w).abs() * scale * e) * (1.0 + relative) + y.abs() * relative
        };
        e.iter().zip(y).zip(&*norm.weight).map(element).collect::<Vec<_>>()
    });
    let error = error.collect();
    Bounded::zip(value, error)
}
