//! `rms_norm` → gate and up `linear` → `glu` becomes `norm_glu`.

use super::rewrite::Rewrite;
use crate::{Op, Plan};

pub(super) fn run(plan: &mut Plan) {
    let mut rewrite = Rewrite::new(plan);
    for (index, op) in plan.ops.iter().enumerate() {
        let &Op::Glu { gate, up, activation, out } = op else { continue };
        let Some((gate_index, &Op::Linear { x: normed, linear: gate, .. })) = rewrite.sole_producer(gate) else {
            continue;
        };
        let Some((up_index, &Op::Linear { x: also_normed, linear: up, .. })) = rewrite.sole_producer(up) else {
            continue;
        };
        let Some((norm_index, &Op::RmsNorm { x, norm, .. })) = rewrite.producer(normed) else { continue };
        let readers = rewrite.consumers(normed).len();
        if normed == also_normed && readers == 2 && rewrite.is_row_norm(x, norm) {
            let fused = Op::NormGlu { x, norm, gate, up, activation, out };
            rewrite.replace(index, fused, &[norm_index, gate_index, up_index]);
        }
    }
    plan.ops = rewrite.finish();
}
