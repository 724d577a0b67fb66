//! What tensors lose when their weights become another format.

use serde::{Deserialize, Serialize};

/// What a tensor lost.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Loss {
    pub(crate) name: String,
    pub(crate) from: String,
    /// The name of a format.
    pub(crate) to: String,
    /// Σ w², and Σ of the squares of what was lost.
    pub(crate) squares: f64,
    pub(crate) lost: f64,
    pub(crate) largest: f32,
    /// Whether scales were chosen by importance.
    #[serde(default)]
    pub(crate) weighted: bool,
}

impl Loss {
    /// Of a tensor of which nothing is added yet.
    pub(crate) fn none(name: &str, from: &str, to: &str) -> Self {
        let (name, from, to) = (name.to_owned(), from.to_owned(), to.to_owned());
        Self { name, from, to, squares: 0.0, lost: 0.0, largest: 0.0, weighted: false }
    }

    /// Adds what became of some weights.
    pub(crate) fn add(&mut self, values: &[f32], back: &[f32]) {
        for (value, back) in values.iter().zip(back) {
            let error = value - back;
            self.squares += f64::from(*value) * f64::from(*value);
            self.lost += f64::from(error) * f64::from(error);
            self.largest = self.largest.max(error.abs());
        }
    }

    /// Adds what `part` lost.
    pub(crate) fn merge(&mut self, part: &Self) {
        (self.squares, self.lost) = (self.squares + part.squares, self.lost + part.lost);
        self.largest = self.largest.max(part.largest);
    }

    /// The root of the mean square that was lost, relative to that of the weights.
    pub(crate) fn relative(&self) -> f64 {
        if self.squares > 0.0 { (self.lost / self.squares).sqrt() } else { 0.0 }
    }
}

/// What is lost where all `values` stay what they are.
pub(super) fn exact(values: &[f32]) -> Loss {
    let mut lost = Loss::none("", "", "");
    lost.add(values, values);
    lost
}
