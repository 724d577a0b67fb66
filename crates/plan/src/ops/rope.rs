//! `rope`: rotary position embedding of each head.

use super::{Definition, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::{Bounded, Bounds, ROUNDOFF, gamma};
use crate::reference::{Reference, RowPlace};
use crate::shapes::{Checked, Shapes};
use crate::{Op, StepCost, Value};

/// How rotary frequencies are stretched beyond the trained context.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Frequencies as trained.
    None,
    /// Every frequency divided by `factor` (Chen et al., 2023).
    Linear {
        /// The stretch.
        factor: f32,
    },
    /// Llama 3.1: long wavelengths are divided by `factor`, short ones kept, those between interpolated.
    Llama3 {
        /// The stretch of long wavelengths.
        factor: f32,
        /// Wavelengths over `original_max_position_embeddings / low_freq_factor` are stretched fully.
        low_freq_factor: f32,
        /// Wavelengths under `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// The trained context, in tokens.
        original_max_position_embeddings: f32,
    },
    /// YaRN (Peng et al., 2023): pairs that turn often in the trained context are kept, those that turn seldom are
    /// divided by `factor`, those between are interpolated along the pairs' indices.
    Yarn {
        /// The stretch of slow pairs.
        factor: f32,
        /// The trained context, in tokens.
        original_max_position_embeddings: f32,
        /// Pairs that turn at least so often in the trained context are kept.
        beta_fast: f32,
        /// Pairs that turn at most so often in it are stretched fully.
        beta_slow: f32,
        /// Whether the first and the last pair between are rounded outwards to whole indices.
        truncate: bool,
    },
    /// Each pair's frequency divided by its own factor (GGUF's `rope_freqs` tensor, LongRoPE's lists): `dims / 2`
    /// factors.
    Factors(Vec<f32>),
}

/// Rotary position embedding on halves (the `rotate_half` pairing of the checkpoints: feature i with i + dims / 2).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Features in a head.
    pub head_dim: usize,
    /// The first features of a head, which are turned; the others stay as they are. Even.
    pub dims: usize,
    /// The base: pair i turns by position · theta^(-2i / dims).
    pub theta: f32,
    /// The stretch of the frequencies.
    pub scaling: RopeScaling,
    /// What cosines and sines are multiplied by: scores grow with its square, as YaRN and LongRoPE ask. 1 for others.
    pub attention_factor: f32,
}

impl Rope {
    /// Radians that each pair turns in one position: `dims / 2` frequencies, in f64 so that every backend rounds
    /// the same numbers.
    pub fn frequencies(&self) -> Vec<f64> {
        let half = self.dims / 2;
        let theta = f64::from(self.theta);
        let yarn = self.yarn_ramp();
        (0..half)
            .map(|pair| {
                let frequency = theta.powf(-2.0 * pair as f64 / self.dims as f64);
                match &self.scaling {
                    RopeScaling::None => frequency,
                    RopeScaling::Linear { factor } => frequency / f64::from(*factor),
                    &RopeScaling::Llama3 {
                        factor,
                        low_freq_factor,
                        high_freq_factor,
                        original_max_position_embeddings,
                    } => {
                        let turns = f64::from(original_max_position_embeddings) * frequency / std::f64::consts::TAU;
                        let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
                        // 0 for the slow pairs that are stretched fully, 1 for the fast ones that are kept.
                        let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                        frequency * (keep + (1.0 - keep) / f64::from(factor))
                    }
                    &RopeScaling::Yarn { factor, .. } => {
                        // 0 for the pairs that are kept, 1 for those that are stretched fully.
                        let stretch = ((pair as f64 - yarn.0) / (yarn.1 - yarn.0)).clamp(0.0, 1.0);
                        frequency * (1.0 - stretch + stretch / f64::from(factor))
                    }
                    RopeScaling::Factors(factors) => frequency / f64::from(factors[pair]),
                }
            })
            .collect()
    }

    /// Cosines and sines of the frequencies at `position`, times [`Self::attention_factor`], in f64.
    pub fn angle(&self, frequency: f64, position: usize) -> (f64, f64) {
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        let factor = f64::from(self.attention_factor);
        (cos * factor, sin * factor)
    }

    /// The pairs, as real numbers, between which YaRN goes from kept to stretched; (0, 1) for other kinds.
    fn yarn_ramp(&self) -> (f64, f64) {
        let &RopeScaling::Yarn { original_max_position_embeddings, beta_fast, beta_slow, truncate, .. } = &self.scaling
        else {
            return (0.0, 1.0);
        };
        let (dims, theta) = (self.dims as f64, f64::from(self.theta));
        // The pair that turns so often in the trained context.
        let pair_of = |turns: f32| {
            let wavelength = f64::from(original_max_position_embeddings) / (f64::from(turns) * std::f64::consts::TAU);
            dims * wavelength.ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (pair_of(beta_fast), pair_of(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(dims - 1.0));
        // Where both are one pair, a step between it and the next.
        (low, if low == high { high + 0.001 } else { high })
    }
}

/// The fields of [`Op::Rope`].
pub(crate) struct RopeOp {
    pub(crate) x: Value,
    pub(crate) rope: usize,
    pub(crate) out: Value,
}

impl Meaning for RopeOp {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn operands(&self) -> Operands {
        Operands { inputs: vec![self.x], outputs: vec![self.out], rope: Some(self.rope), ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::Rope { x: map(self.x), rope: self.rope, out: map(self.out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        shapes.heads("x", self.x, shapes.plan.ropes[self.rope].head_dim)?;
        shapes.like("out", self.out, self.x)
    }

    fn is_row_by_row(&self) -> bool {
        // A row also depends on its token's position, which is not an operand.
        false
    }

    fn cost(&self, _prices: &Prices<'_>) -> StepCost {
        StepCost::nothing()
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Textbook(self)
    }
}

impl Textbook for RopeOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let turned = rope(env.value(self.x), &env.plan.ropes[self.rope], env.rows);
        env.set(self.out, turned);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        let turned = rope_bound(env.value(self.x), &env.plan.ropes[self.rope], env.rows);
        env.set(self.out, turned);
    }
}

/// Each head of each row of `x`, (tokens, heads · head_dim), turned by the row's position: features i and
/// i + dims / 2 are a point in the plane that turns by position · frequency(i) (Su et al., 2021; `rotate_half` in
/// the checkpoints' code), and grows by the attention factor.
fn rope(x: &[f64], rope: &Rope, rows: &[RowPlace]) -> Vec<f64> {
    let half = rope.dims / 2;
    let frequencies = rope.frequencies();
    let heads_per_row = x.len() / rope.head_dim / rows.len().max(1);
    let mut out = x.to_vec();
    for (index, head) in out.chunks_exact_mut(rope.head_dim).enumerate() {
        let position = rows[index / heads_per_row].position;
        for (pair, frequency) in frequencies.iter().enumerate() {
            let (cos, sin) = rope.angle(*frequency, position);
            let (a, b) = (head[pair], head[pair + half]);
            head[pair] = a * cos - b * sin;
            head[pair + half] = b * cos + a * sin;
        }
    }
    out
}

fn rope_bound(x: &Bounded, rotation: &Rope, rows: &[RowPlace]) -> Bounded {
    let value = rope(&x.value, rotation, rows);
    let (head_dim, dims) = (rotation.head_dim, rotation.dims);
    let half = dims / 2;
    let frequencies = rotation.frequencies();
    let heads_per_row = x.value.len() / head_dim / rows.len().max(1);
    let mut error = Vec::with_capacity(value.len());
    let heads = x.value.chunks_exact(head_dim).zip(x.error.chunks_exact(head_dim));
    for (index, (x, e)) in heads.enumerate() {
        let position = rows[index / heads_per_row].position as f64;
        error.extend((0..head_dim).map(|i| {
            if i >= dims {
                return e[i];
            }
            let (pair, other) = (i % half, (i + half) % dims);
            // Sine and cosine of an angle that may itself be rounded to f32.
            let turned = gamma(4) + 2.0 * position * frequencies[pair] * ROUNDOFF;
            let (a, b) = (x[i].abs() + e[i], x[other].abs() + e[other]);
            e[i] + e[other] + turned * (a + b)
        }));
    }
    Bounded::zip(value, error)
}
