//! The final `rms_norm`, `select_outputs` and the head's `linear`, in whichever order they were written, become
//! `logits`: only the rows that are wanted are normalised and projected.

use super::rewrite::Rewrite;
use crate::{Op, Plan};

pub(super) fn run(plan: &mut Plan) {
    let mut rewrite = Rewrite::new(plan);
    let (mut selects, mut head, mut norm) = (false, None, None);
    let mut replaced = Vec::new();
    let mut x = plan.logits;
    // Backwards from the logits, which the caller alone may read, as long as there is something to take.
    while let Some((index, op)) = rewrite.sole_producer(x) {
        match *op {
            Op::SelectOutputs { x: inner, .. } if !selects => {
                selects = true;
                x = inner;
            }
            Op::Linear { x: inner, linear, .. } if head.is_none() && norm.is_none() => {
                head = Some(linear);
                x = inner;
            }
            Op::RmsNorm { x: inner, norm: found, .. }
                if head.is_some() && norm.is_none() && rewrite.is_row_norm(inner, found) =>
            {
                norm = Some(found);
                x = inner;
            }
            _ => break,
        }
        replaced.push(index);
    }
    if let (true, Some(head), Some(norm), [last, others @ ..]) = (selects, head, norm, &replaced[..]) {
        rewrite.replace(*last, Op::Logits { x, norm, head, out: plan.logits }, others);
    }
    plan.ops = rewrite.finish();
}
