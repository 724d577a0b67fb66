//! How the scales of a tensor's blocks are chosen.

use tensor::quant::Packing;

/// How the scales of a tensor are chosen.
#[derive(Clone, Debug)]
pub(crate) enum Scales {
    /// The scale at which the largest weight of a block just fits.
    Plain,
    /// The one that loses least.
    Searched,
    /// As that, where features count by their importance, (matrices, features).
    Weighted { importance: Vec<f32>, matrices: usize },
}

impl Scales {
    /// Those of matrix `part` of `count`, where each is packed alone.
    pub(crate) fn of_part(&self, part: usize, count: usize) -> Self {
        match self {
            Self::Weighted { importance, matrices } if *matrices == count => {
                let features = importance.len() / count.max(1);
                let importance = importance[part * features..(part + 1) * features].to_vec();
                Self::Weighted { importance, matrices: 1 }
            }
            other => other.clone(),
        }
    }

    /// Rows that have the same importance, of `rows`.
    pub(crate) fn rows_alike(&self, rows: usize) -> usize {
        match self {
            Self::Weighted { matrices, .. } => rows.div_ceil((*matrices).max(1)).max(1),
            _ => rows.max(1),
        }
    }

    /// How rows from `row` on are packed, of `rows` of `row_len` weights.
    pub(crate) fn packing(&self, row: usize, rows: usize, row_len: usize) -> Packing<'_> {
        match self {
            Self::Plain => Packing::Plain,
            Self::Searched => Packing::Searched,
            Self::Weighted { importance, .. } => {
                let matrix = row / self.rows_alike(rows);
                Packing::Weighted(&importance[matrix * row_len..(matrix + 1) * row_len])
            }
        }
    }
}
