//! Latent attention: what stands between its projections, the matrices of its heads, and attention itself.

use plan::{Experts, MlaAttention, Op, Plan, Rows, StepShape, Value};

use crate::kernels::elementwise::{self, SecondOperand};
use crate::kernels::experts::{Inputs, Routed, RowGroups};
use crate::kernels::head_linear;
use crate::kernels::mla_attention::{self, LatentWrite};
use crate::kernels::sm90::expanded_attention::{self, HeadMatrices};
use crate::kernels::sm90::{gemm_experts, mla_cluster};
use crate::launch::Launch;
use crate::site::{DeviceRows, F32, LoadedPlan, Site, num_rows};
use crate::step_input::{AttentionItems, StepRegions, StepRows, Tiles};

/// Rows from which the matrices of heads are multiplied on matrix instructions, where there are any for them.
const GEMM_ROWS_MIN: usize = 17;

/// The rows of an op whose heads have matrices of their own, as rows that every expert takes.
fn routed(loaded: &LoadedPlan<'_>, op: &Op, shape: StepShape) -> Option<Routed> {
    let Op::HeadLinear { x, ref heads, .. } = *op else { return None };
    routed_rows(loaded, num_rows(loaded.plan.value(x).rows, shape), heads)
}

/// The same of so many rows.
fn routed_rows(loaded: &LoadedPlan<'_>, rows: usize, heads: &Experts) -> Option<Routed> {
    let target = loaded.target.of("head_linear");
    let may_be = rows >= GEMM_ROWS_MIN && !target.batch_invariant && gemm_experts::may_be(&target, rows);
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
pub(crate) fn head_launches(site: &Site<'_>, x: DeviceRows, heads: &Experts, out: DeviceRows) -> Vec<Launch> {
    by_gemm(site, x, heads, out).unwrap_or_else(|| vec![head_linear::launch(site, x, heads, out)])
}

/// The same on matrix instructions, heads as experts that every row has.
fn by_gemm(site: &Site<'_>, x: DeviceRows, heads: &Experts, out: DeviceRows) -> Option<Vec<Launch>> {
    let of = routed_rows(site.loaded, site.num_rows(x.rows), heads)?;
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

/// Ops of latent attention that follow each other: the matrices of keys, attention, where few rows of a step are wanted the
/// choice of these, and the matrices of values. Nobody else reads what is between them.
pub(crate) struct LatentOps<'a> {
    /// Their places in [`Plan::ops`].
    first: usize,
    len: usize,
    /// Queries, those before the matrices of keys and those that positions turn.
    pub(crate) q: [Value; 2],
    q_latent: Value,
    attention: &'a MlaAttention,
    attended: Value,
    selected: Option<Value>,
    matrices: HeadMatrices<'a>,
    out: Value,
}

impl LatentOps<'_> {
    /// The place behind them.
    pub(crate) fn end(&self) -> usize {
        self.first + self.len
    }
}

/// Those that begin at `first`.
fn latent_ops(plan: &Plan, first: usize) -> Option<LatentOps<'_>> {
    let Op::HeadLinear { x: q_nope, heads: ref keys, out: q_latent } = *plan.ops.get(first)? else { return None };
    let Op::MlaAttention { q_latent: of_keys, q_rope, ref attention, out: attended } = *plan.ops.get(first + 1)? else {
        return None;
    };
    let selected = match *plan.ops.get(first + 2)? {
        Op::SelectOutputs { x, out } if x == attended => Some(out),
        _ => None,
    };
    let last = first + 2 + usize::from(selected.is_some());
    let Op::HeadLinear { x, heads: ref values, out } = *plan.ops.get(last)? else { return None };
    let between: Vec<_> = [Some(q_latent), Some(attended), selected].into_iter().flatten().collect();
    let is_read_once = |&value: &Value| plan.ops.iter().filter(|op| op.inputs().contains(&value)).count() == 1;
    let follow = of_keys == q_latent && x == selected.unwrap_or(attended) && between.iter().all(is_read_once);
    follow.then_some(LatentOps {
        first,
        len: last + 1 - first,
        q: [q_nope, q_rope],
        q_latent,
        attention,
        attended,
        selected,
        matrices: HeadMatrices { keys, values },
        out,
    })
}

/// Those of every layer that has them.
pub(crate) fn layers(plan: &Plan) -> impl Iterator<Item = LatentOps<'_>> {
    (0..plan.ops.len()).filter_map(|first| latent_ops(plan, first))
}

/// How rows of latent attention are taken in steps of up to `shape` if they attend to keys and values of their own, and
/// bytes that this needs: where every layer has kernels for it, and rows may be many enough.
pub(crate) fn expanded_tiles(loaded: &LoadedPlan<'_>, shape: StepShape) -> Option<(Tiles, u64)> {
    let attentions = loaded.plan.ops.iter().filter(|op| matches!(op, Op::MlaAttention { .. })).count();
    let of_layers: Vec<_> = layers(loaded.plan).collect();
    if attentions == 0 || of_layers.len() != attentions || loaded.plan.kv_layers.len() != attentions {
        return None;
    }
    let matrices = of_layers.iter().map(|layer| layer.matrices);
    let (tiles, bytes) = expanded_attention::tiles(loaded, matrices, shape.sequences)?;
    // Where few rows are selected, the results of all rows need a place of their own first.
    let of_rows = |layer: &LatentOps<'_>| (shape.tokens * loaded.plan.value(layer.out).width) as u64 * F32;
    let rows = of_layers.iter().filter(|layer| layer.selected.is_some()).map(of_rows).max().unwrap_or(0);
    (AttentionItems::new(shape, tiles, StepRows::Expanded).tiles > 0).then_some((tiles, bytes + rows))
}

/// The launches of each of the ops of latent attention that begin at `first`, where rows of a sequence that are many attend
/// to keys and values of their own. The others, if there may be any, go the usual way before, all rows with them: what
/// comes of those in tiles is lost.
pub(crate) fn expanded(site: &Site<'_>, first: usize) -> Option<Vec<Vec<Launch>>> {
    let Tiles::Expanded { .. } = site.layout.step.tiles else { return None };
    let of = latent_ops(site.loaded.plan, first)?;
    let [q_nope, q_rope] = of.q.map(|value| site.place(value));
    let out = site.place(of.out);
    // Behind the matrices, keys and values.
    let all_rows = of.selected.map(|_| {
        let (at, bytes) = site.layout.expanded;
        let len = (site.num_rows(Rows::Tokens) * out.stride) as u64 * F32;
        DeviceRows { region: site.arena.part(at + bytes - len, len), rows: Rows::Tokens, ..out }
    });
    let to = all_rows.unwrap_or(out);
    let mut launches = vec![vec![]; of.len];
    let last = of.len - 1;
    let singles = site.layout.step.attention.singles;
    if singles > 0 {
        // Where no row is for itself, these have no live rows.
        let step = StepRegions { num_tokens: site.step.num_rows_of_singles, ..site.step };
        let of_heads = Site { step, target: site.loaded.target.of("head_linear"), ..*site };
        let [q_latent, attended] = [of.q_latent, of.attended].map(|value| site.place(value));
        launches[0] = head_launches(&of_heads, q_nope, of.matrices.keys, q_latent);
        let of_attention = Site { target: site.loaded.target.of("mla_attention"), ..*site };
        launches[1] =
            mla_attention::launch(&of_attention, [q_latent, q_rope], of.attention, attended, singles).with_fold();
        launches[last] = head_launches(&of_heads, attended, of.matrices.values, to);
    }
    let tiles = expanded_attention::launches(site, [q_nope, q_rope], of.attention, of.matrices, to);
    launches[if singles > 0 { last } else { 1 }].extend(tiles);
    if all_rows.is_some() {
        let rows = SecondOperand::Indices(site.step.output_rows);
        launches[last].push(elementwise::launch(site, "select_outputs_f32", to, rows, None, out));
    }
    Some(launches)
}

/// Whether rows that attend to few positions may have a kernel of their own.
pub(crate) fn has_near(loaded: &LoadedPlan<'_>) -> bool {
    let is_latent = loaded.plan.kv_layers.iter().any(|layer| layer.latent().is_some());
    is_latent && mla_cluster::is_here(&loaded.target.of("mla_attention"))
}

/// The launches of each of the ops of latent attention that begin at `first`, what stands between its projections: all in one, where
/// each row is alone in its sequence and attends to few positions, nobody else reads what is between, and there is a kernel for it.
pub(crate) fn in_one(site: &Site<'_>, first: usize) -> Option<Vec<Vec<Launch>>> {
    let plan = site.loaded.plan;
    let op = plan.ops.get(first)?;
    let Op::LatentRopeWrite { q_nope, q_rope, layer, .. } = *op else { return None };
    let of = latent_ops(plan, first + 1).filter(|of| of.selected.is_none())?;
    let are_read_once = site.is_read_once(q_nope) && site.is_read_once(q_rope);
    let follows = of.q == [q_nope, q_rope] && of.attention.layer == layer && are_read_once;
    let write = write(site, op)?;
    let out = site.place(of.out);
    let is_apart = [write.q, write.kv].iter().all(|rows| rows.region.is_apart(out.region));
    if !follows || !is_apart || site.layout.step.rows != StepRows::Near {
        return None;
    }
    let HeadMatrices { keys, values } = of.matrices;
    let launch = mla_cluster::launch(site, &write, site.place(q_rope), [keys, values], of.attention, out)?;
    let mut launches = vec![vec![]; 1 + of.len];
    launches[0].push(launch);
    Some(launches)
}

/// The values that [`in_one`] reads until the last of its ops, and the place of that one, of each layer.
pub(crate) fn read_by_all(rows: StepRows, plan: &Plan) -> Vec<(usize, [Value; 2])> {
    let before = |layer: LatentOps<'_>| match *plan.ops.get(layer.first.checked_sub(1)?)? {
        Op::LatentRopeWrite { q, kv, .. } if rows == StepRows::Near => Some((layer.end() - 1, [q, kv])),
        _ => None,
    };
    layers(plan).filter_map(before).collect()
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
