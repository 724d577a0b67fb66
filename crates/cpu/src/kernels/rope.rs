//! `rope`: each head turned by its token's position, feature i paired with i + dims / 2, the features from dims on as
//! they are.
//!
//! Shapes    x (head_dim,) in place; angles (dims / 2,) of cosines, then as many sines, for the token.
//! Accuracy  angles in f64, rounded to f32 once; two products and a sum in f32.
//! Versions  plain Rust, vectorised by the compiler: the angles of a token are computed once a step for all its heads
//!           and layers, and what is left is a few thousand multiplications.

use plan::Rope;

/// One rotary embedding, with its frequencies.
#[derive(Clone, Debug)]
pub(crate) struct RopeTable {
    rope: Rope,
    frequencies: Vec<f64>,
}

impl RopeTable {
    pub(crate) fn new(rope: &Rope) -> Self {
        Self { rope: rope.clone(), frequencies: rope.frequencies() }
    }

    /// Writes cosines and sines for a token at `position`, times the attention factor.
    pub(crate) fn angles(&self, position: usize, out: &mut [f32]) {
        let (cos, sin) = out.split_at_mut(self.frequencies.len());
        for ((&frequency, cos), sin) in self.frequencies.iter().zip(cos).zip(sin) {
            let (c, s) = self.rope.angle(frequency, position);
            (*cos, *sin) = (c as f32, s as f32);
        }
    }
}

/// Turns one head in place.
#[inline(always)]
pub(crate) fn rotate(head: &mut [f32], angles: &[f32]) {
    let half = angles.len() / 2;
    let (cos, sin) = angles.split_at(half);
    let (first, second) = head[..2 * half].split_at_mut(half);
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
