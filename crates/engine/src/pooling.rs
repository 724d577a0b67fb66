//! Embeddings: one vector of a text, made of what the final norm makes of its tokens.

use crate::Failure;

/// How the states of a text's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean over all tokens.
    Mean,
    /// That of the last token, which has seen all others.
    Last,
}

impl Pooling {
    /// Its name in requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Last => "last",
        }
    }
}

/// States so far. Added up in the order of positions and in f64, so that the result does not depend on how the prompt was
/// cut into steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pooled {
    /// (hidden_size,); empty before the first row.
    sum: Vec<f64>,
    num_rows: usize,
}

impl Pooled {
    /// Adds `rows`, (rows, `width`), of the tokens from `position`.
    pub(crate) fn add(&mut self, rows: &[f32], width: usize, position: usize) -> Result<(), Failure> {
        self.sum.resize(width, 0.0);
        for (index, row) in rows.chunks_exact(width).enumerate() {
            if let Some(&faulty) = row.iter().find(|state| !state.is_finite()) {
                let value = if faulty.is_nan() { "NaN" } else { "an infinite value" };
                return Err(Failure::NumericState { position: position + index, value });
            }
            self.sum.iter_mut().zip(row).for_each(|(sum, &state)| *sum += f64::from(state));
            self.num_rows += 1;
        }
        Ok(())
    }

    /// The mean of the rows that were added, (hidden_size,).
    pub(crate) fn mean(&self) -> Vec<f32> {
        self.sum.iter().map(|sum| (sum / self.num_rows.max(1) as f64) as f32).collect()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
