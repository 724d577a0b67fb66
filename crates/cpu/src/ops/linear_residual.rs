//! A projection that is added to what there is.

use plan::{Linear, Value};

use crate::program::{Compiler, Work};
use crate::projection::{self, Projection, projection};

pub(super) fn compile(
    compiler: &mut Compiler<'_>,
    x: Value,
    linear: Linear,
    residual: Value,
    out: Value,
) -> Box<dyn Work> {
    let residual = Some(compiler.place(residual).start);
    let projections = vec![Projection { residual, ..projection(compiler, linear, out) }];
    projection::compile(compiler, x, None, false, projections)
}
