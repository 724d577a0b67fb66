//! Lowering: a plan and a step shape become a list of kernel launches with every operand placed. What an op launches
//! stands in the file of its family, or here where it is one launch.

mod attention;
pub(crate) mod glu_bounds;
pub(crate) mod latent;
mod moe;
mod projection;

use plan::{MemoryPlan, Op, Plan, Rows, StepShape};

use crate::kernels::elementwise::{self, SecondOperand};
use crate::kernels::experts::{self, ExpertsKind};
use crate::kernels::{Projection, Projections, choose, embed, mla_attention, rms_norm, rope_kv_write, route};
use crate::launch::{Launch, Region};
use crate::site::{ArenaLayout, F32, LoadedPlan, ROW_ALIGN, Site};
use crate::step_input::{StepLayout, StepRows, Tiles};

/// The launches of one op; none where those of the op ahead do its work too.
#[derive(Clone, Debug)]
pub(crate) struct OpLaunches {
    /// Its place in [`Plan::ops`].
    pub(crate) op: usize,
    pub(crate) launches: Vec<Launch>,
}

/// Lays out the arena for steps of up to `shape`.
pub(crate) fn lay_out(loaded: &LoadedPlan<'_>, shape: StepShape, rows: StepRows) -> ArenaLayout {
    let LoadedPlan { plan, cache, .. } = *loaded;
    let expanded =
        Some(shape).filter(|_| rows == StepRows::Expanded).and_then(|shape| latent::expanded_tiles(loaded, shape));
    let (tiles, expanded_bytes) = match expanded {
        Some(found) => found,
        None if attention::has_tiles(loaded) => {
            (if loaded.target.batch_invariant { Tiles::All } else { Tiles::Cached }, 0)
        }
        None => (Tiles::None, 0),
    };
    let step = StepLayout::new(shape, plan, &cache.layout, tiles, rows);
    let mut padded = plan.clone();
    padded.values.iter_mut().for_each(|value| value.width = value.width.next_multiple_of(ROW_ALIGN));
    keep_operands(&mut padded, rows, expanded.is_some());
    let memory = MemoryPlan::new(&padded, shape);
    let most = |bytes: &dyn Fn(&Op) -> u64| plan.ops.iter().map(bytes).max().unwrap_or(0);
    let mut end = (memory.len as u64 * F32).next_multiple_of(256);
    let mut reserve = |bytes: u64| {
        let start = end;
        end += bytes.next_multiple_of(256);
        (start, bytes)
    };
    let scratch = reserve(most(&|op| {
        let of_op = [projection::scratch_bytes, moe::scratch_bytes, latent::scratch_bytes];
        of_op.iter().map(|bytes| bytes(loaded, op, shape)).max().unwrap_or(0)
    }));
    let pairs = plan.ops.windows(2);
    let direct_bytes = |pair: &[Op]| {
        projection::direct_operand_bytes(loaded, pair, shape).max(moe::direct_operand_bytes(loaded, pair, shape))
    };
    let direct_operand = reserve(pairs.map(direct_bytes).max().unwrap_or(0));
    let partials = reserve(most(&|op| attention::partials_bytes(loaded, op, step.attention.singles)));
    let row_groups =
        reserve(most(&|op| moe::row_groups_bytes(loaded, op, shape).max(latent::row_groups_bytes(loaded, op, shape))));
    let expanded = reserve(expanded_bytes);
    let choose_parts = reserve(choose::parts_bytes(plan.vocab_size, shape.outputs));
    ArenaLayout {
        step,
        memory,
        scratch,
        direct_operand,
        partials,
        row_groups,
        expanded,
        choose_parts,
        bytes: end,
        messages: most(&|op| projection::messages_bytes(loaded, op, shape)) + moe::messages_bytes(loaded, shape),
    }
}

/// Lets what a launch in the place of several ops reads live until the last has ended, for those who place values: behind
/// that one stand ops that read it once more. Whether latent attention is `expanded`.
fn keep_operands(plan: &mut Plan, rows: StepRows, expanded: bool) {
    let mut kept = vec![vec![]; plan.ops.len()];
    for (at, pair) in plan.ops.windows(2).enumerate() {
        kept[at + 1].extend(attention::read_to_the_end(rows, &pair[0], &pair[1]));
        kept[at + 1].extend(latent::read_to_the_end(&pair[0], &pair[1]));
    }
    for (last, values) in latent::read_by_all(rows, plan) {
        kept[last].extend(values);
    }
    for layer in latent::layers(plan).filter(|_| expanded) {
        kept[layer.end() - 1].extend(layer.q);
    }
    let ops = std::mem::take(&mut plan.ops);
    for (op, values) in ops.into_iter().zip(kept) {
        plan.ops.push(op);
        // Any op that only reads would do.
        plan.ops.extend(values.into_iter().map(|value| Op::KvWrite { layer: 0, k: value, v: value }));
    }
}

/// The launches of every op, with the arena, the step's input and messages in these places. Where values are to be
/// kept, all are written, for those who look at them; otherwise a kernel may do without one that only it reads.
pub(crate) fn lower(
    loaded: &LoadedPlan<'_>,
    layout: &ArenaLayout,
    [arena, step, messages]: [Region; 3],
    keep: bool,
) -> Vec<OpLaunches> {
    let (step, shape) = (layout.step.place(step), layout.step.shape);
    let (target, writes, reads) = (loaded.target, None, None);
    let (routed, grouped) = (None, None);
    let mut site = Site { loaded, target, layout, arena, step, shape, messages, writes, reads, routed, grouped };
    let routes_with_glu = moe::routes_with_glu(&site);
    let mut ops = Vec::with_capacity(loaded.plan.ops.len());
    while let Some(op) = loaded.plan.ops.get(ops.len()) {
        let index = ops.len();
        let next = loaded.plan.ops.get(index + 1);
        site.target = loaded.target.of(op.name());
        site.reads = site.writes;
        let direct_operand = |site: &Site<'_>, at: usize| {
            let [op, next] = loaded.plan.ops.get(at..at + 2).filter(|_| !keep)? else { return None };
            projection::direct_operand(site, op, next).or_else(|| moe::direct_operand(site, op, next))
        };
        site.writes = direct_operand(&site, index);
        // Of the next op, which this one may be launched with.
        let next_writes = direct_operand(&site, index + 1);
        let expanded = || latent::expanded(&site, index);
        let latent = || latent::in_one(&site, index);
        let experts = || moe::experts_in_one(&site, index, next_writes);
        if let Some(of_ops) = (!keep).then(|| expanded().or_else(latent).or_else(experts)).flatten() {
            ops.extend(of_ops.into_iter().zip(index..).map(|(launches, op)| OpLaunches { op, launches }));
            continue;
        }
        let in_one = next.and_then(|next| {
            let rope_attention = || {
                let site = Site { target: loaded.target.of("attention"), writes: next_writes, ..site };
                (!keep).then(|| attention::rope_attention(&site, op, next)).flatten()
            };
            let write_heads = || (!keep).then(|| latent::write_heads(&site, op, next)).flatten();
            projection::norm_linear_rope(&site, op, next).or_else(rope_attention).or_else(write_heads)
        });
        if let Some(launch) = in_one {
            site.writes = next_writes;
            ops.push(OpLaunches { op: index, launches: vec![launch] });
            ops.push(OpLaunches { op: index + 1, launches: vec![] });
        } else if let Some([launch, heads]) =
            next.filter(|_| !keep).and_then(|next| latent::attention_heads(&site, op, next))
        {
            ops.push(OpLaunches { op: index, launches: vec![launch] });
            ops.push(OpLaunches { op: index + 1, launches: vec![heads] });
        } else if let Some([route, glu]) = next.and_then(|next| moe::route_rows_glu(&site, op, next, next_writes)) {
            site.writes = next_writes;
            ops.push(OpLaunches { op: index, launches: route });
            ops.push(OpLaunches { op: index + 1, launches: glu });
            let of_next = |next: &Op| moe::groups_rows(&Site { target: loaded.target.of(next.name()), ..site }, next);
            site.grouped = moe::groups_rows(&site, op).or_else(|| next.and_then(of_next));
        } else if let Some(launch) = Some(index).filter(|_| routes_with_glu).and_then(|at| moe::route_glu(&site, at)) {
            ops.push(OpLaunches { op: index, launches: vec![launch] });
            ops.push(OpLaunches { op: index + 1, launches: vec![] });
            site.routed = Some(moe::routed_layer(&loaded.plan.ops, index));
        } else if let Some([pairs, projections]) =
            next.filter(|_| !keep).and_then(|next| moe::down_norm_linear(&site, op, next))
        {
            site.grouped = moe::groups_rows(&site, op).or(site.grouped);
            ops.push(OpLaunches { op: index, launches: pairs });
            ops.push(OpLaunches { op: index + 1, launches: projections });
        } else {
            ops.push(OpLaunches { op: index, launches: launches(&site, op) });
            site.grouped = moe::groups_rows(&site, op).or(site.grouped);
            site.routed = site.routed.filter(|_| !matches!(op, Op::MoeDown { .. }));
        }
    }
    ops
}

/// The launches of one op for itself.
fn launches(site: &Site<'_>, op: &Op) -> Vec<Launch> {
    let place = |value| site.place(value);
    let plain = |linear, out| Projection { linear, up: None, out: place(out) };
    match *op {
        Op::Embed { table, out } => vec![embed::launch(site, table, place(out))],
        Op::RmsNorm { x, norm, out } => vec![rms_norm::launch(site, place(x), norm, place(out))],
        Op::Linear { x, linear, out } => {
            let x = place(x);
            let list = &[plain(linear, out)];
            projection::launches(site, &Projections { x, rows: x.rows, norm: None, list, residual: None })
        }
        Op::LinearResidual { x, linear, residual, out } => {
            let (x, residual) = (place(x), Some(place(residual)));
            let list = &[plain(linear, out)];
            projection::launches(site, &Projections { x, rows: x.rows, norm: None, list, residual })
        }
        Op::NormLinear { x, norm, ref projections } => {
            let (x, norm) = (place(x), Some(norm));
            let list: Vec<_> = projections.iter().map(|&(linear, out)| plain(linear, out)).collect();
            projection::launches(site, &Projections { x, rows: x.rows, norm, list: &list, residual: None })
        }
        Op::NormGlu { x, norm, gate, up, activation, out } => {
            let (x, norm) = (place(x), Some(norm));
            let list = &[Projection { up: Some((up, activation)), ..plain(gate, out) }];
            projection::launches(site, &Projections { x, rows: x.rows, norm, list, residual: None })
        }
        Op::Logits { x, norm, head, out } => {
            let (x, norm) = (place(x), Some(norm));
            let list = &[plain(head, out)];
            projection::launches(site, &Projections { x, rows: Rows::Outputs, norm, list, residual: None })
        }
        Op::Rope { x, rope, out } => vec![rope_kv_write::rope(site, place(x), rope, place(out))],
        Op::KvWrite { layer, k, v } => vec![rope_kv_write::kv_write(site, layer, place(k), place(v))],
        Op::RopeKvWrite { q, k, v, q_norm, k_norm, rope, layer, q_out } => {
            let rows = [q, k, v, q_out].map(place);
            vec![rope_kv_write::rope_kv_write(site, rows, [q_norm, k_norm], rope, layer)]
        }
        Op::Attention { q, ref attention, out } => attention::launches(site, place(q), attention, place(out)),
        Op::Glu { gate, up, activation, out } => {
            let up = SecondOperand::Rows(place(up));
            vec![elementwise::launch(site, "glu_f32", place(gate), up, Some(activation), place(out))]
        }
        Op::Add { a, b, out } => {
            vec![elementwise::launch(site, "add_f32", place(a), SecondOperand::Rows(place(b)), None, place(out))]
        }
        Op::Route { logits, ref router, ids, weights } => {
            vec![route::launch(site, place(logits), router, [ids, weights].map(place))]
        }
        Op::ExpertLinear { x, ids, ref experts, out } => {
            vec![experts::launch(site, place(x), place(ids), experts, ExpertsKind::Linear, place(out))]
        }
        Op::Combine { x, weights, out } => {
            vec![elementwise::launch(
                site,
                "combine_f32",
                place(x),
                SecondOperand::Rows(place(weights)),
                None,
                place(out),
            )]
        }
        Op::GateRows { x, gate, out } => {
            vec![elementwise::launch(
                site,
                "gate_rows_f32",
                place(x),
                SecondOperand::Rows(place(gate)),
                None,
                place(out),
            )]
        }
        Op::MoeRoute { x, norm, gate, ref router, ids, weights } => {
            moe::route(site, x, norm, gate, router, [ids, weights])
        }
        Op::MoeGlu { x, norm, ids, ref gate, ref up, activation, out } => {
            moe::glu(site, op, [x, ids], norm, [gate, up], activation, out)
        }
        Op::MoeDown { x, ids, weights, ref down, residual, out } => {
            moe::down(site, op, [x, ids, weights], down, residual, out)
        }
        Op::HeadLinear { x, ref heads, out } => latent::head_launches(site, place(x), heads, place(out)),
        Op::LatentWrite { layer, latent, rope } => {
            vec![mla_attention::latent_write(site, layer, place(latent), place(rope))]
        }
        Op::LatentRopeWrite { q_nope, q_rope, .. } => latent::rope_write(site, op, q_nope, q_rope),
        Op::MlaAttention { q_latent, q_rope, ref attention, out } => {
            latent::attention(site, [q_latent, q_rope], attention, out)
        }
        Op::GatherColumns { x, order, out } => {
            let order = SecondOperand::Indices(site.loaded.orders[order]);
            vec![elementwise::launch(site, "gather_columns_f32", place(x), order, None, place(out))]
        }
        Op::SelectOutputs { x, out } => {
            let rows = SecondOperand::Indices(site.step.output_rows);
            vec![elementwise::launch(site, "select_outputs_f32", place(x), rows, None, place(out))]
        }
    }
}
