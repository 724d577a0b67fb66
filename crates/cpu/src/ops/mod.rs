//! One file for each op: how it is compiled to an instruction, and what a worker does of it. The ops that multiply by
//! weights share [`crate::projection`].

mod add;
pub(crate) mod attention;
mod combine;
mod embed;
mod expert_linear;
mod gate_rows;
mod gather_columns;
mod glu;
mod head_linear;
mod kv_write;
mod latent_rope_write;
mod latent_write;
mod linear;
mod linear_residual;
mod logits;
pub(crate) mod mla_attention;
mod moe_down;
mod moe_glu;
mod moe_route;
mod norm_glu;
mod norm_linear;
mod rms_norm;
mod rope;
mod rope_kv_write;
mod route;
mod select_outputs;

use plan::Op;

use crate::program::{Compiler, Work};
use crate::projection::experts::shared_len;

/// f32 of the arena that `op` needs for what its experts share between barriers.
pub(crate) fn shared_by_experts(compiler: &Compiler<'_>, op: &Op) -> usize {
    let plan = compiler.source.plan;
    let of = |experts, ids| {
        let ids = plan.value(ids);
        shared_len(compiler.rows(ids.rows), experts, ids.width, plan)
    };
    match op {
        Op::MoeRoute { x, gate, .. } => compiler.rows(plan.value(*x).rows) * plan.weight(gate.weight).shape[0],
        Op::ExpertLinear { experts, ids, .. } => of(experts, *ids),
        Op::HeadLinear { x, heads, .. } => shared_len(compiler.rows(plan.value(*x).rows), heads, heads.count, plan),
        Op::MoeGlu { gate, ids, .. } => of(gate, *ids),
        Op::MoeDown { down, ids, .. } => of(down, *ids),
        _ => 0,
    }
}

/// The instruction of an op.
pub(crate) fn compile(compiler: &mut Compiler<'_>, op: &Op) -> Box<dyn Work> {
    match *op {
        Op::Embed { table, out } => embed::compile(compiler, table, out),
        Op::RmsNorm { x, norm, out } => rms_norm::compile(compiler, x, norm, out),
        Op::Linear { x, linear, out } => linear::compile(compiler, x, linear, out),
        Op::NormLinear { x, norm, ref projections } => norm_linear::compile(compiler, x, norm, projections),
        Op::NormGlu { x, norm, gate, up, activation, out } => {
            norm_glu::compile(compiler, x, norm, (gate, up), activation, out)
        }
        Op::LinearResidual { x, linear, residual, out } => linear_residual::compile(compiler, x, linear, residual, out),
        Op::Logits { x, norm, head, out } => logits::compile(compiler, x, norm, head, out),
        Op::Rope { x, rope, out } => rope::compile(compiler, x, rope, out),
        Op::KvWrite { layer, k, v } => kv_write::compile(compiler, layer, k, v),
        Op::RopeKvWrite { q, k, v, q_norm, k_norm, rope, layer, q_out } => {
            rope_kv_write::compile(compiler, [q, k, v, q_out], [q_norm, k_norm], rope, layer)
        }
        Op::LatentRopeWrite { q, kv, columns, norm, rope, layer, q_nope, q_rope } => {
            latent_rope_write::compile(compiler, [q, kv, q_nope, q_rope], columns, norm, rope, layer)
        }
        Op::Attention { q, attention, out } => attention::compile(compiler, q, attention, out),
        Op::Glu { gate, up, activation, out } => glu::compile(compiler, [gate, up], activation, out),
        Op::Add { a, b, out } => add::compile(compiler, a, b, out),
        Op::GatherColumns { x, order, out } => gather_columns::compile(compiler, x, order, out),
        Op::Route { logits, router, ids, weights } => route::compile(compiler, logits, router, [ids, weights]),
        Op::ExpertLinear { x, ids, experts, out } => expert_linear::compile(compiler, [x, ids], experts, out),
        Op::HeadLinear { x, heads, out } => head_linear::compile(compiler, x, heads, out),
        Op::LatentWrite { layer, latent, rope } => latent_write::compile(compiler, layer, latent, rope),
        Op::MlaAttention { q_latent, q_rope, attention, out } => {
            mla_attention::compile(compiler, [q_latent, q_rope], attention, out)
        }
        Op::Combine { x, weights, out } => combine::compile(compiler, [x, weights], out),
        Op::GateRows { x, gate, out } => gate_rows::compile(compiler, [x, gate], out),
        Op::MoeRoute { x, norm, gate, router, ids, weights } => {
            moe_route::compile(compiler, x, norm, gate, router, [ids, weights])
        }
        Op::MoeGlu { x, norm, ids, gate, up, activation, out } => {
            moe_glu::compile(compiler, [x, ids], norm, (gate, up), activation, out)
        }
        Op::MoeDown { x, ids, weights, down, residual, out } => {
            moe_down::compile(compiler, [x, ids, weights, residual], down, out)
        }
        Op::SelectOutputs { x, out } => select_outputs::compile(compiler, x, out),
    }
}
