//! Latent attention: what stands between its projections, the matrices of its heads, and attention itself.

use plan::{Experts, MlaAttention, Op, Plan, StepShape, Value};

use crate::kernels::experts::{Inputs, Routed, RowGroups};
use crate::kernels::head_linear;
use crate::kernels::mla_attention::{self, LatentWrite};
use crate::kernels::sm90::gemm_experts;
use crate::launch::Launch;
use crate::site::{DeviceRows, LoadedPlan, Site, num_rows};

/// Rows from which the matrices of heads are multiplied on matrix instructions, where there are any for them.
const GEMM_ROWS_MIN: usize = 17;

/// The rows of an op whose heads have matrices of their own, as rows that every expert takes.
fn routed(loaded: &LoadedPlan<'_>, op: &Op, shape: StepShape) -> Option<Routed> {
    let Op::HeadLinear { x, ref heads, .. } = *op else { return None };
    let rows = num_rows(loaded.plan.value(x).rows, shape);
    let may_be = rows >= GEMM_ROWS_MIN && gemm_experts::may_be(&loaded.target.of(op.name()), rows);
    may_be.then_some(Routed { rows, slots: heads.count, experts: heads.count })
}

/// Bytes of an op's rows as the operand of a gemm.
pub(crate) fn scratch_bytes(loaded: &LoadedPlan<'_>, op: &Op, shape: StepShape) -> u64 {
    let Op::HeadLinear { x, ref heads, .. } = *op else { return 0 };
    let k = loaded.plan.value(x).width / heads.count;
    routed(loaded, op, shape).map_or(0, |of| gemm_experts::operand_bytes(of, k))
}

/// Bytes that say which rows of an op are of which heads.
pub(crate) fn row_groups_bytes(loaded: &LoadedPlan<'_>, op: &Op, shape: StepShape) -> u64 {
    routed(loaded, op, shape).map_or(0, RowGroups::bytes)
}

/// Each head of the rows of `x` by a matrix of its own.
pub(crate) fn head_launches(site: &Site<'_>, op: &Op, x: Value, heads: &Experts, out: Value) -> Vec<Launch> {
    let (x, out) = (site.place(x), site.place(out));
    by_gemm(site, op, x, heads, out).unwrap_or_else(|| vec![head_linear::launch(site, x, heads, out)])
}

/// The same on matrix instructions, heads as experts that every row has.
fn by_gemm(site: &Site<'_>, op: &Op, x: DeviceRows, heads: &Experts, out: DeviceRows) -> Option<Vec<Launch>> {
    let of = routed(site.loaded, op, site.shape)?;
    let stack = site.loaded.weights.stack(heads);
    let (n, k) = (stack.first.rows, stack.first.row_len);
    let rows_follow = x.stride == of.slots * k && out.stride == of.slots * n;
    if !rows_follow || !gemm_experts::can_be(&site.target, of.rows, &stack, None) {
        return None;
    }
    let (at, _) = site.layout.row_groups;
    let groups = RowGroups::new(site.arena.part(at, RowGroups::bytes(of)), of, gemm_experts::tile_rows(of));
    // The ids of every row are the same.
    let region = site.loaded.head_ids.part(0, (of.slots * size_of::<f32>()) as u64);
    let ids = DeviceRows { region, width: of.slots, stride: 0, rows: x.rows };
    let inputs = Inputs { x, shared: false, norm: None };
    let launches = gemm_experts::launches(site, inputs, heads, None, &groups, (out.region, n));
    Some([gemm_experts::group_rows(site, ids, &groups)].into_iter().chain(launches).collect())
}

/// The numbers of heads, as ids of experts: as many as the op with the most has.
pub(crate) fn head_ids(plan: &Plan) -> Vec<f32> {
    let counts = plan.ops.iter().map(|op| if let Op::HeadLinear { heads, .. } = op { heads.count } else { 0 });
    (0..counts.max().unwrap_or(0)).map(|head| head as f32).collect()
}

/// The launches of latent attention.
pub(crate) fn attention(site: &Site<'_>, q: [Value; 2], of: &MlaAttention, out: Value) -> Vec<Launch> {
    mla(site, q, of, out).with_fold()
}

fn mla(site: &Site<'_>, q: [Value; 2], of: &MlaAttention, out: Value) -> mla_attention::MlaLaunch {
    // No kernel takes many rows of a sequence together, so that all are for themselves.
    let singles = site.layout.step.attention.singles;
    mla_attention::launch(site, q.map(|value| site.place(value)), of, site.place(out), singles)
}

/// Attention, and the matrices of heads on its result, which fold its splits on the way: where the one follows the other,
/// nobody else reads the result, and there are splits.
pub(crate) fn attention_heads(site: &Site<'_>, op: &Op, next: &Op) -> Option<[Launch; 2]> {
    let Op::MlaAttention { q_latent, q_rope, ref attention, out } = *op else { return None };
    let Op::HeadLinear { x, ref heads, out: of_heads } = *next else { return None };
    let of_next = Site { target: site.loaded.target.of(next.name()), ..*site };
    let is_few = routed(site.loaded, next, site.shape).is_none();
    if x != out || !is_few || !site.is_read_once(out) {
        return None;
    }
    let place = |value| site.place(value);
    mla(site, [q_latent, q_rope], attention, out).with_heads(&of_next, place(out), heads, place(of_heads))
}

/// What stands between the projections of latent attention, and the matrices of heads on what no position turns, in one
/// launch: where the one follows the other, and nobody else reads what it reads.
pub(crate) fn write_heads(site: &Site<'_>, op: &Op, next: &Op) -> Option<Launch> {
    let Op::LatentRopeWrite { q_nope, q_rope, .. } = *op else { return None };
    let Op::HeadLinear { x, ref heads, out } = *next else { return None };
    let of = write(site, op)?;
    let [q_rope, out] = [q_rope, out].map(|value| site.place(value));
    // The result may lie where the op ahead still reads.
    let apart = [of.q, of.kv].iter().all(|rows| rows.region.is_apart(out.region));
    let is_few = routed(site.loaded, next, site.shape).is_none();
    if x != q_nope || !apart || !is_few || !site.is_read_once(q_nope) {
        return None;
    }
    mla_attention::latent_head_linear(site, &of, q_rope, heads, out)
}

fn write(site: &Site<'_>, op: &Op) -> Option<LatentWrite> {
    let Op::LatentRopeWrite { q, kv, columns, norm, rope, layer, .. } = *op else { return None };
    Some(LatentWrite { q: site.place(q), kv: site.place(kv), columns, norm, rope, layer })
}

/// What stands between the projections of latent attention.
pub(crate) fn rope_write(site: &Site<'_>, op: &Op, q_nope: Value, q_rope: Value) -> Vec<Launch> {
    let of = write(site, op).expect("the op is one");
    vec![mla_attention::latent_rope_write(site, &of, site.place(q_nope), site.place(q_rope))]
}

/// The values that [`write_heads`] reads until the matrices of heads have been multiplied, if it may take the place of
/// these two ops.
pub(crate) fn read_to_the_end(op: &Op, next: &Op) -> Vec<Value> {
    match (op, next) {
        (&Op::LatentRopeWrite { q, kv, .. }, Op::HeadLinear { .. }) => vec![q, kv],
        _ => vec![],
    }
}
