//! Each head of a row by a matrix of its own: to the kernels, experts that every row has.

use plan::{Experts, Value};

use crate::program::{Compiler, Work};
use crate::projection::experts::{self, ExpertProjections, ExpertResult, Slots};

pub(super) fn compile(compiler: &mut Compiler<'_>, x: Value, heads: Experts, out: Value) -> Box<dyn Work> {
    let (slots, result) = (Slots::Every(compiler.place(x).rows), ExpertResult::Slots(out));
    experts::compile(compiler, ExpertProjections { x, norm: None, slots, experts: heads, up: None, result })
}
