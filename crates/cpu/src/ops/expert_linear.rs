//! The projections of each row by its experts.

use plan::{Experts, Value};

use crate::program::{Compiler, Work};
use crate::projection::experts::{self, ExpertProjections, ExpertResult, Slots};

pub(super) fn compile(
    compiler: &mut Compiler<'_>,
    [x, ids]: [Value; 2],
    experts: Experts,
    out: Value,
) -> Box<dyn Work> {
    let result = ExpertResult::Slots(out);
    experts::compile(
        compiler,
        ExpertProjections { x, norm: None, slots: Slots::Chosen(ids), experts, up: None, result },
    )
}
