//! The gated units of each row's experts, of normalised rows.

use plan::{Activation, Experts, Norm, Value};

use crate::program::{Compiler, Work};
use crate::projection::experts::{self, ExpertProjections, ExpertResult, Slots};

pub(super) fn compile(
    compiler: &mut Compiler<'_>,
    [x, ids]: [Value; 2],
    norm: Norm,
    (gate, up): (Experts, Experts),
    activation: Activation,
    out: Value,
) -> Box<dyn Work> {
    let (up, result) = (Some((up, activation)), ExpertResult::Slots(out));
    experts::compile(
        compiler,
        ExpertProjections { x, norm: Some(norm), slots: Slots::Chosen(ids), experts: gate, up, result },
    )
}
