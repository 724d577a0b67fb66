//! The head: output rows, normalised and projected.

use plan::{Linear, Norm, Value};

use crate::program::{Compiler, Work};
use crate::projection::{self, projection};

pub(super) fn compile(compiler: &mut Compiler<'_>, x: Value, norm: Norm, head: Linear, out: Value) -> Box<dyn Work> {
    let projections = vec![projection(compiler, head, out)];
    projection::compile(compiler, x, Some(norm), true, projections)
}
