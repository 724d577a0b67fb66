//! Values: matrices of f32 activations. Rows are the tokens of the step (or the rows whose logits are wanted), columns
//! are features.

use std::fmt;

use crate::StepShape;

/// A value of the plan: the result of exactly one op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub(crate) u32);

impl Value {
    /// Its place in [`Plan::values`](crate::Plan::values).
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

/// What the rows of a value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One row for each token of the step.
    Tokens,
    /// One row for each entry of [`StepInput::output_rows`](crate::StepInput::output_rows).
    Outputs,
}

impl Rows {
    /// How many there are in a step of `shape`.
    pub fn count(self, shape: StepShape) -> usize {
        match self {
            Self::Tokens => shape.tokens,
            Self::Outputs => shape.outputs,
        }
    }
}

/// What the numbers of a value stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Activations.
    Activation,
    /// The ids of experts. They are stored as f32 as well, which holds every whole number below 2^24, so that whatever
    /// copies, shows or compares values needs no second case for them.
    Index,
}

/// The shape of a value: (rows, width), f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueInfo {
    /// What the rows are.
    pub rows: Rows,
    /// Features in a row.
    pub width: usize,
    /// What these numbers stand for.
    pub kind: Kind,
}

impl ValueInfo {
    /// Activations: (rows, width).
    pub fn activations(rows: Rows, width: usize) -> Self {
        Self { rows, width, kind: Kind::Activation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_their_space() {
        let shape = StepShape { tokens: 7, sequences: 2, outputs: 3 };
        assert_eq!([Rows::Tokens, Rows::Outputs].map(|rows| rows.count(shape)), [7, 3]);
    }
}
