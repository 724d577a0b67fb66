//! The down projections of each row's experts, and their weighted sum with the residual.

use plan::{Experts, Value};

use crate::program::{Compiler, Work};
use crate::projection::experts::{self, ExpertProjections, ExpertResult, Slots};

pub(super) fn compile(
    compiler: &mut Compiler<'_>,
    [x, ids, weights, residual]: [Value; 4],
    experts: Experts,
    out: Value,
) -> Box<dyn Work> {
    let result = ExpertResult::Sum { weights, residual, out };
    experts::compile(
        compiler,
        ExpertProjections { x, norm: None, slots: Slots::Chosen(ids), experts, up: None, result },
    )
}
