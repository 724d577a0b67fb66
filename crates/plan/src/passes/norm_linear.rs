//! `rms_norm` → one or more `linear` becomes `norm_linear`: Q, K and V from one read of the normalised row.

use super::rewrite::Rewrite;
use crate::{Op, Plan};

pub(super) fn run(plan: &mut Plan) {
    let mut rewrite = Rewrite::new(plan);
    for (index, op) in plan.ops.iter().enumerate() {
        let &Op::RmsNorm { x, norm, out: normed } = op else { continue };
        let consumers = rewrite.consumers(normed).to_vec();
        let projections: Vec<_> = consumers
            .iter()
            .filter_map(|&consumer| match plan.ops.get(consumer) {
                Some(&Op::Linear { linear, out, .. }) => Some((linear, out)),
                _ => None,
            })
            .collect();
        let only_linears = !consumers.is_empty() && projections.len() == consumers.len();
        if only_linears && rewrite.is_row_norm(x, norm) {
            rewrite.replace(index, Op::NormLinear { x, norm, projections }, &consumers);
        }
    }
    plan.ops = rewrite.finish();
}
