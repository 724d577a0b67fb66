//! Normalised rows, projected by one or more weights.

use plan::{Linear, Norm, Value};

use crate::program::{Compiler, Work};
use crate::projection::{self, projection};

pub(super) fn compile(
    compiler: &mut Compiler<'_>,
    x: Value,
    norm: Norm,
    projections: &[(Linear, Value)],
) -> Box<dyn Work> {
    let projections = projections.iter().map(|&(linear, out)| projection(compiler, linear, out)).collect();
    projection::compile(compiler, x, Some(norm), false, projections)
}
