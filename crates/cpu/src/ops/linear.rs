//! One projection.

use plan::{Linear, Value};

use crate::program::{Compiler, Work};
use crate::projection::{self, projection};

pub(super) fn compile(compiler: &mut Compiler<'_>, x: Value, linear: Linear, out: Value) -> Box<dyn Work> {
    let projections = vec![projection(compiler, linear, out)];
    projection::compile(compiler, x, None, false, projections)
}
