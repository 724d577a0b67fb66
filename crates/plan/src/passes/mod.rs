//! Passes: plan in, plan with the same meaning out. Model files write textbook ops; what is fused, and when, is here.
//!
//! Each pass is one file that finds groups of ops whose intermediates nobody else reads. The meaning of a fused op is
//! the ops it replaces, in the same order of arithmetic: the reference interpreter gives the same bits for both.

mod linear_residual;
mod logits;
mod norm_glu;
mod norm_linear;
mod restrict_outputs;
mod rewrite;
mod rope_kv_write;

use crate::{Plan, verify};

/// Replaces textbook ops by the fused ops that backends are fast at. `plan` must pass [`verify`](verify()); the result
/// does, has the same weights in the same order, and computes the same numbers.
pub fn fuse(plan: Plan) -> Plan {
    // `logits` before `norm_linear`, which would take the final norm and the head; `norm_glu` before it for the same
    // reason, and before `linear_residual` only by habit: they share no op.
    let passes = [logits::run, norm_glu::run, norm_linear::run, rope_kv_write::run, linear_residual::run];
    passes.into_iter().fold(plan, run)
}

/// Computes only the rows whose logits are wanted as soon as nothing else is: after the last layer's attention. Saves
/// the last layer's projections for all other rows of a prefill. Runs on textbook ops, before [`fuse`].
///
/// No op is changed but by the rows it is given, so a backend whose rows do not depend on their neighbours gives the
/// same bits with and without.
pub fn restrict_outputs(plan: Plan) -> Plan {
    run(plan, restrict_outputs::run)
}

fn run(mut plan: Plan, pass: fn(&mut Plan)) -> Plan {
    pass(&mut plan);
    rewrite::compact(&mut plan);
    if let Err(error) = verify(&plan) {
        panic!("a pass broke the plan: {error}\n{plan}");
    }
    plan
}
