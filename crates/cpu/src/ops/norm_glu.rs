//! A gated unit: gate and up of normalised rows, and their product.

use plan::{Activation, Linear, Norm, Value};

use crate::program::{Compiler, Work};
use crate::projection::{self, Projection, projection};

pub(super) fn compile(
    compiler: &mut Compiler<'_>,
    x: Value,
    norm: Norm,
    (gate, up): (Linear, Linear),
    activation: Activation,
    out: Value,
) -> Box<dyn Work> {
    let projections = vec![Projection { up: Some((up.into(), activation)), ..projection(compiler, gate, out) }];
    projection::compile(compiler, x, Some(norm), false, projections)
}
