//! `linear` + `add` becomes `linear_residual`: the output and down projections end in the residual stream.

use super::rewrite::Rewrite;
use crate::{Op, Plan};

pub(super) fn run(plan: &mut Plan) {
    let mut rewrite = Rewrite::new(plan);
    for (index, op) in plan.ops.iter().enumerate() {
        let &Op::Add { a, b, out } = op else { continue };
        for (sum, residual) in [(b, a), (a, b)] {
            if let Some((linear_index, &Op::Linear { x, linear, .. })) = rewrite.sole_producer(sum) {
                rewrite.replace(index, Op::LinearResidual { x, linear, residual, out }, &[linear_index]);
                break;
            }
        }
    }
    plan.ops = rewrite.finish();
}
