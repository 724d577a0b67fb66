//! Mixtures of experts: the choice of experts, and the projections by those that were chosen.

use plan::{Activation, Experts, Linear, Norm, Op, Router, StepShape, Value};

use crate::formats::OperandKind;
use crate::kernels::experts::{self, ExpertSum, ExpertsKind, Inputs, Routed, RowGroups};
use crate::kernels::experts_rows::{self, Choice, RowsVariant};
use crate::kernels::experts_stream::{self, ExpertsShape, RouterPlace};
use crate::kernels::operand::GemmOperand;
use crate::kernels::sm90::experts_mma::{self, SlabVariant};
use crate::kernels::sm90::{gemm, gemm_experts};
use crate::kernels::{Projection, Projections, linear, rms_norm, route};
use crate::launch::{Launch, Region};
use crate::ops::projection;
use crate::site::{DeviceRows, DirectOperand, F32, LoadedPlan, ROW_ALIGN, RoutedLayer, Site, num_rows};
use crate::weights::DeviceExperts;

/// Bytes of an op's rows between its kernels: normalised, and behind them the router's logits; or as the operand of a gemm,
/// and behind it what is to be added up.
pub(crate) fn scratch_bytes(loaded: &LoadedPlan<'_>, op: &Op, shape: StepShape) -> u64 {
    let plan = loaded.plan;
    let (x, experts) = match *op {
        Op::MoeRoute { x, gate, .. } => (x, plan.weight(gate.weight).shape[0]),
        Op::MoeGlu { x, .. } => (x, 0),
        Op::MoeDown { ref down, .. } => {
            let [features, k] = plan.weight(down.first).shape[..] else { return 0 };
            return routed(loaded, op, shape).map_or(0, |(ids, of)| {
                let [operand, parts] = down_bytes(of, k, features);
                operand.max(routing_bytes(loaded, ids, shape)) + parts
            });
        }
        _ => return 0,
    };
    let info = plan.value(x);
    let widths = info.width.next_multiple_of(ROW_ALIGN) + experts.next_multiple_of(ROW_ALIGN);
    let plain = (num_rows(info.rows, shape) * widths) as u64 * F32;
    plain.max(routed(loaded, op, shape).map_or(0, |(_, of)| gemm_experts::operand_bytes(of, info.width)))
}

/// Bytes that the choice of these experts and their gated units need between kernels. A launch that does the down projections, too,
/// leaves their results behind that: some groups make them while others still choose.
fn routing_bytes(loaded: &LoadedPlan<'_>, chosen: Value, shape: StepShape) -> u64 {
    let chooses = |op: &&Op| matches!(**op, Op::MoeRoute { ids, .. } if ids == chosen);
    let route = loaded.plan.ops.iter().find(chooses);
    route.map_or(0, |op| scratch_bytes(loaded, op, shape)).next_multiple_of(256)
}

/// Bytes of the operand of down projections, and of their results.
fn down_bytes(of: Routed, k: usize, features: usize) -> [u64; 2] {
    [gemm_experts::operand_bytes(of, k).next_multiple_of(256), experts::parts_bytes(of, features)]
}

/// The ids by which experts take the rows of an op, and how many there are of each, where they may come in their order.
fn routed(loaded: &LoadedPlan<'_>, op: &Op, shape: StepShape) -> Option<(Value, Routed)> {
    let (ids, experts) = match *op {
        Op::MoeGlu { ids, ref gate, .. } => (ids, gate.count),
        Op::MoeDown { ids, ref down, .. } => (ids, down.count),
        _ => return None,
    };
    let info = loaded.plan.value(ids);
    let of = Routed { rows: num_rows(info.rows, shape), slots: info.width, experts };
    let target = loaded.target.of(op.name());
    (gemm_experts::may_be(&target, of.rows) || experts_rows::may_be(&target, of)).then_some((ids, of))
}

/// Bytes that say which rows of an op are of which experts.
pub(crate) fn row_groups_bytes(loaded: &LoadedPlan<'_>, op: &Op, shape: StepShape) -> u64 {
    routed(loaded, op, shape).map_or(0, |(_, of)| RowGroups::bytes(of))
}

/// Kernels that take rows in the order of their experts.
#[derive(Clone, Copy, Debug)]
enum ByExperts {
    Stream(RowsVariant),
    /// `pair`: of gated units, whose launch chooses the experts and does their down projections, too, unless results are kept.
    Slabs {
        variant: SlabVariant,
        pair: bool,
    },
    Gemm,
}

impl ByExperts {
    /// All that can take these rows, first the one that is fastest on the device where it was measured; the gemm alone where bits
    /// must not depend on how many rows there are. `None` stands for kernels that leave rows in their own order; it is there where
    /// `alone` is set, because one row or two may stream without an order. `down` is the stack behind gated units, where one launch
    /// may do the work of both.
    fn ways(
        site: &Site<'_>,
        ids: Value,
        of: Routed,
        (stack, up, down): (&DeviceExperts, Option<&DeviceExperts>, Option<&DeviceExperts>),
        alone: bool,
    ) -> Vec<Option<Self>> {
        let (target, format) = (&site.target, stack.first.format);
        let has_gemm = gemm_experts::can_be(target, of.rows, stack, up);
        if target.batch_invariant {
            return has_gemm.then_some(Some(Self::Gemm)).into_iter().collect();
        }
        let stream = experts_rows::variant(target, of, stack, up)
            // The router has made groups, or there is a kernel that does.
            .filter(|_| is_grouped(site, ids) || gemm_experts::may_be(target, of.rows))
            .map(Self::Stream);
        let slabs_of = |rows, pair| Self::Slabs { variant: experts_mma::variant(format, rows), pair };
        let can_be_slabs = experts_mma::can_be(target, of, stack, up);
        let slabs = experts_mma::ROWS.map(|rows| can_be_slabs.then(|| slabs_of(rows, false)));
        let gemm = has_gemm.then_some(Self::Gemm);
        let best = if stream.is_some() && (!has_gemm || experts_rows::is_faster(of, format, up.is_some())) {
            0
        } else {
            let place = |rows| experts_mma::ROWS.iter().position(|&own| own == rows);
            experts_mma::best(of, format).and_then(place).map_or(3, |place| 1 + place)
        };
        let [low, high] = slabs;
        let mut ways = [stream, low, high, gemm];
        ways[..=best].rotate_right(1);
        let pair = up.zip(down).filter(|(up, down)| best < 2 && experts_mma::can_pair(target, of, [stack, up], down));
        let pair = pair.map(|_| slabs_of(experts_mma::ROWS[0], true));
        alone.then_some(None).into_iter().chain(pair.into_iter().chain(ways.into_iter().flatten()).map(Some)).collect()
    }

    /// What a table of choices calls one of these ways.
    fn label(way: &Option<Self>) -> String {
        match way {
            None => "alone".to_owned(),
            Some(Self::Stream(_)) => "stream".to_owned(),
            Some(Self::Slabs { pair: true, .. }) => "pair".to_owned(),
            Some(Self::Slabs { variant, .. }) => format!("mma rows={}", variant.rows),
            Some(Self::Gemm) => "gemm".to_owned(),
        }
    }
}

/// How experts take the rows of an op, where they do so in their order.
struct InOrder {
    ids: Value,
    of: Routed,
    by: ByExperts,
}

impl InOrder {
    fn new(site: &Site<'_>, op: &Op) -> Option<Self> {
        let (ids, of) = routed(site.loaded, op, site.shape)?;
        let place = |experts: &Experts| site.loaded.weights.stack(experts);
        let (stack, up, rows_follow) = match *op {
            Op::MoeGlu { ref gate, ref up, out, .. } => {
                let gates = place(gate);
                let rows_follow = site.place(out).stride == of.slots * gates.first.rows;
                (gates, Some(place(up)), rows_follow && gate.bias.is_some() == up.bias.is_some())
            }
            Op::MoeDown { x, ref down, .. } => {
                let downs = place(down);
                let rows_follow = site.place(x).stride == of.slots * downs.first.row_len;
                (downs, None, rows_follow)
            }
            _ => return None,
        };
        let key = || {
            let (first, glu) = (&stack.first, if up.is_some() { " glu" } else { "" });
            let Routed { rows, slots, experts } = of;
            let (format, k, n) = (first.format, first.row_len, first.rows);
            format!("experts {format:?} rows={rows} slots={slots} of={experts} k={k} n={n}{glu}")
        };
        let shape = ExpertsShape::new(&stack, of.rows, of.slots);
        let alone = of.rows <= experts_stream::ROWS_MAX
            && match *op {
                Op::MoeGlu { ref gate, ref up, .. } => glu_variant(site, of.rows, of.slots, gate, up).is_some(),
                _ => experts_stream::down_variant(&site.target, shape).is_some(),
            };
        let down = down_of_pair(site, op).map(place);
        let ways = ByExperts::ways(site, ids, of, (&stack, up.as_ref(), down.as_ref()), alone);
        let by = site.target.tuned.pick(key, ways, ByExperts::label, 0)??;
        rows_follow.then_some(Self { ids, of, by })
    }

    /// Where rows are put in the order of their experts.
    fn groups(&self, site: &Site<'_>) -> RowGroups {
        let tile_rows = match self.by {
            ByExperts::Stream(_) => experts_rows::TILE_ROWS,
            // Tiles that gated units have streamed do for what is behind them: few experts have more rows than that.
            ByExperts::Slabs { .. } if is_grouped(site, self.ids) => experts_rows::TILE_ROWS,
            ByExperts::Slabs { variant, .. } => variant.rows,
            ByExperts::Gemm => gemm_experts::tile_rows(self.of),
        };
        let (at, _) = site.layout.row_groups;
        RowGroups::new(site.arena.part(at, RowGroups::bytes(self.of)), self.of, tile_rows)
    }

    /// The same, and the launch that makes it, unless an op ahead has.
    fn grouping(&self, site: &Site<'_>) -> (RowGroups, Option<Launch>) {
        let groups = self.groups(site);
        let launch = || gemm_experts::group_rows(site, site.place(self.ids), &groups);
        (groups, (site.grouped != Some((self.ids, groups.tile_rows))).then(launch))
    }

    /// What the experts of each row make of it, a row of `y` for each pair.
    fn launches(
        &self,
        site: &Site<'_>,
        inputs: Inputs,
        stack: &Experts,
        up: Option<(&Experts, Activation)>,
        groups: &RowGroups,
        y: (Region, usize),
    ) -> Vec<Launch> {
        match &self.by {
            ByExperts::Stream(variant) => {
                vec![experts_rows::launch(site, variant, inputs, stack, up, groups, y, None)]
            }
            ByExperts::Slabs { variant, .. } => {
                let k = site.loaded.weights.stack(stack).first.row_len;
                let made = site.reads.map(|direct| GemmOperand::direct(direct, self.of.pairs(), k));
                experts_mma::launches(site, *variant, inputs, stack, up, groups, y, made)
            }
            ByExperts::Gemm => gemm_experts::launches(site, inputs, stack, up, groups, y),
        }
    }
}

/// The down projections behind the gated units `op`, where one launch may choose the experts and do the work of both: the router
/// ahead of them reads the same rows, and gated units can leave an operand.
fn down_of_pair<'a>(site: &Site<'a>, op: &Op) -> Option<&'a Experts> {
    let Op::MoeGlu { x, norm, ids, ref gate, activation, out, .. } = *op else { return None };
    let loaded = site.loaded;
    let (router, down) = loaded.plan.ops.windows(3).find_map(|ops| match ops {
        [
            Op::MoeRoute { x: routed, norm: by, ids: chosen, gate: router, .. },
            Op::MoeGlu { out: units, .. },
            Op::MoeDown { x: read, ids: taken, down, .. },
        ] if (*routed, *by, *chosen, *units, *read, *taken) == (x, norm, ids, out, out, ids) => Some((router, down)),
        _ => None,
    })?;
    let router = loaded.weights.get(router.weight);
    let may_choose = router.rows <= experts_rows::SMALL_EXPERTS_MAX && experts_mma::can_be_router(router);
    (may_choose && operand_factor(site, gate, activation, out, down).is_some()).then_some(down)
}

/// Whether rows are in the order of the experts that `ids` names, in tiles for weights that are streamed.
fn is_grouped(site: &Site<'_>, ids: Value) -> bool {
    site.grouped == Some((ids, experts_rows::TILE_ROWS))
}

/// The ids by whose experts an op has put rows in order, and rows of a tile.
pub(crate) fn groups_rows(site: &Site<'_>, op: &Op) -> Option<(Value, usize)> {
    let in_order = match *op {
        Op::MoeRoute { ids, .. } => grouped_behind(site, ids),
        _ => InOrder::new(site, op),
    };
    in_order.map(|in_order| (in_order.ids, in_order.groups(site).tile_rows))
}

/// How gated units take the experts that a router chooses, where the router puts rows in order for them.
fn grouped_behind(site: &Site<'_>, chosen: Value) -> Option<InOrder> {
    let reads = |op: &&Op| matches!(**op, Op::MoeGlu { ids, .. } if ids == chosen);
    let glu = site.loaded.plan.ops.iter().find(reads)?;
    let target = site.loaded.target.of(glu.name());
    let in_order = InOrder::new(&Site { target, grouped: Some((chosen, experts_rows::TILE_ROWS)), ..*site }, glu);
    in_order.filter(|in_order| match in_order.by {
        ByExperts::Stream(_) => true,
        ByExperts::Slabs { .. } => experts_rows::can_route(in_order.of),
        ByExperts::Gemm => false,
    })
}

/// RMSNorm, the router's projection and the choice. The projection is without matrix instructions, because what they round
/// could change the choice; where results must not depend on the rows of a step, its sums are the same however many there
/// are.
pub(crate) fn route(
    site: &Site<'_>,
    x: Value,
    norm: Norm,
    gate: Linear,
    router: &Router,
    chosen: [Value; 2],
) -> Vec<Launch> {
    let choice = Choice::of(site, x, gate, router, chosen);
    let mut launches = logits(site, x, norm, gate);
    launches.push(choose(site, &choice, grouped_behind(site, chosen[0]).as_ref()));
    launches
}

/// RMSNorm and the router's projection.
fn logits(site: &Site<'_>, x: Value, norm: Norm, gate: Linear) -> Vec<Launch> {
    let x = site.place(x);
    let (normed, logits) = (site.normed(x, x.rows), logits_of(site, x, gate));
    if let Some(launch) = route::logits(site, x, norm, gate, logits) {
        return vec![launch];
    }
    let list = &[Projection { linear: gate, up: None, out: logits }];
    let of_normed = Projections { x: normed, rows: x.rows, norm: None, list, residual: None };
    vec![rms_norm::launch(site, x, norm, normed), linear::launch(site, &of_normed)]
}

/// Where the logits of the experts of `gate` go: behind normalised rows.
fn logits_of(site: &Site<'_>, x: DeviceRows, gate: Linear) -> DeviceRows {
    let experts = site.loaded.plan.weight(gate.weight).shape[0];
    let stride = experts.next_multiple_of(ROW_ALIGN);
    let bytes = (site.num_rows(x.rows) * stride) as u64 * F32;
    let region = site.arena.part(site.layout.scratch.0 + site.normed(x, x.rows).region.bytes, bytes);
    DeviceRows { region, width: experts, stride, rows: x.rows }
}

/// The choice of experts, which puts rows in their order where the gated units behind it want that.
fn choose(site: &Site<'_>, choice: &Choice<'_>, grouped: Option<&InOrder>) -> Launch {
    match grouped {
        Some(in_order) => experts_rows::route(site, choice, &in_order.groups(site)),
        None => route::launch(site, choice.logits, choice.router, choice.chosen),
    }
}

impl<'a> Choice<'a> {
    fn of(site: &Site<'_>, x: Value, gate: Linear, router: &'a Router, chosen: [Value; 2]) -> Self {
        let logits = logits_of(site, site.place(x), gate);
        Self { logits, router, chosen: chosen.map(|value| site.place(value)) }
    }
}

/// Bytes of the rows that gated units may write as the operand of the down projections behind them.
pub(crate) fn direct_operand_bytes(loaded: &LoadedPlan<'_>, pair: &[Op], shape: StepShape) -> u64 {
    let (Op::MoeGlu { out, .. }, Op::MoeDown { x, .. }) = (&pair[0], &pair[1]) else { return 0 };
    let of = routed(loaded, &pair[1], shape).filter(|_| x == out && gemm::may_be(&loaded.target, 2));
    of.map_or(0, |(_, of)| GemmOperand::row_bytes(of.pairs(), loaded.plan.value(*out).width / of.slots))
}

/// Where the gated units `op` can write the operand of the down projections `next`, if those are on matrix instructions and read
/// nothing else.
pub(crate) fn direct_operand(site: &Site<'_>, op: &Op, next: &Op) -> Option<DirectOperand> {
    let Op::MoeGlu { ref gate, activation, out, .. } = *op else { return None };
    let Op::MoeDown { x, ref down, .. } = *next else { return None };
    let of_op = |op: &Op| {
        let target = site.loaded.target.of(op.name());
        InOrder::new(&Site { target, ..*site }, op)
    };
    let (units, downs) = (of_op(op)?, of_op(next)?);
    let fits = !matches!(units.by, ByExperts::Gemm) && matches!(downs.by, ByExperts::Slabs { .. });
    if x != out || !fits {
        return None;
    }
    let factor = operand_factor(site, gate, activation, out, down)?;
    let weight = site.loaded.weights.stack(down).first;
    let (at, bytes) = site.layout.direct_operand;
    let rows = site.arena.part(at, bytes.min(GemmOperand::row_bytes(downs.of.pairs(), weight.row_len)));
    Some(DirectOperand { rows, format: weight.format, factor })
}

/// What gated units of `gate` are multiplied by as an f16 operand of `down`, where they can be one and nothing else reads `out`.
fn operand_factor(site: &Site<'_>, gate: &Experts, activation: Activation, out: Value, down: &Experts) -> Option<f32> {
    let weight = site.loaded.weights.stack(down).first;
    // Zeros would be wanted behind other rows.
    let is_whole = weight.row_len == GemmOperand::stride(weight.row_len);
    let fits = is_whole && weight.format.facts().operand != OperandKind::BF16 && site.is_read_once(out);
    fits.then(|| site.loaded.glu_bounds.f16_factor(gate.first, activation)).flatten()
}

/// A router and the gated units behind it, where these choose the experts themselves, or where the router's first launch makes
/// their operand. `writes` is where the gated units leave the operand of the op behind them.
pub(crate) fn route_rows_glu(
    site: &Site<'_>,
    op: &Op,
    next: &Op,
    writes: Option<DirectOperand>,
) -> Option<[Vec<Launch>; 2]> {
    let Op::MoeRoute { x, norm, gate, ref router, ids, weights } = *op else { return None };
    let Op::MoeGlu { x: glu_x, norm: glu_norm, ids: glu_ids, gate: ref gates, ref up, activation, out } = *next else {
        return None;
    };
    if (glu_x, glu_norm, glu_ids) != (x, norm, ids) {
        return None;
    }
    let of_glu = Site { target: site.loaded.target.of(next.name()), writes, ..*site };
    let weight = site.loaded.weights.stack(gates).first;
    let (up, y) = (Some((up, activation)), (site.place(out).region, weight.rows));
    let choice = Choice::of(site, x, gate, router, [ids, weights]);
    let grouped = grouped_behind(site, ids);
    if let Some(in_order) = grouped.as_ref().filter(|_| choice.is_small())
        && let ByExperts::Stream(variant) = &in_order.by
    {
        let groups = in_order.groups(site);
        let inputs = Inputs { x: site.place(x), shared: true, norm: Some(norm) };
        let units = experts_rows::launch(&of_glu, variant, inputs, gates, up, &groups, y, Some(&choice));
        return Some([logits(site, x, norm, gate).into_iter().chain([units]).collect(), vec![]]);
    }
    let in_order = InOrder::new(&of_glu, next)?;
    let ByExperts::Slabs { variant, .. } = in_order.by else { return None };
    let inputs = Inputs { x: site.place(x), shared: true, norm: Some(norm) };
    let operand = experts_mma::operand(site, in_order.of, true, weight.row_len);
    let first = experts_mma::router_rows(site, inputs, gate, choice.logits, weight.format, &operand)?;
    let chosen = choose(site, &choice, grouped.as_ref());
    let grouped = grouped.map(|in_order| (ids, in_order.groups(site).tile_rows));
    let (groups, grouping) = in_order.grouping(&Site { grouped: grouped.or(site.grouped), ..of_glu });
    let launches = experts_mma::launches(&of_glu, variant, inputs, gates, up, &groups, y, Some(operand));
    Some([vec![first, chosen], grouping.into_iter().chain(launches).collect()])
}

/// RMSNorm and the gated units of the experts of each row.
pub(crate) fn glu(
    site: &Site<'_>,
    op: &Op,
    [x, ids]: [Value; 2],
    norm: Norm,
    [gate, up]: [&Experts; 2],
    activation: Activation,
    out: Value,
) -> Vec<Launch> {
    if let Some(in_order) = InOrder::new(site, op) {
        let (groups, grouping) = in_order.grouping(site);
        let inputs = Inputs { x: site.place(x), shared: true, norm: Some(norm) };
        let y = (site.place(out).region, site.loaded.weights.stack(gate).first.rows);
        let launches = in_order.launches(site, inputs, gate, Some((up, activation)), &groups, y);
        return grouping.into_iter().chain(launches).collect();
    }
    let [x, ids, out] = [x, ids, out].map(|value| site.place(value));
    if let Some(variant) = glu_variant(site, site.num_rows(x.rows), ids.width, gate, up) {
        return vec![experts_stream::glu(site, &variant, [x, ids, out], norm, [gate, up], activation, None)];
    }
    let normed = site.normed(x, x.rows);
    let kind = ExpertsKind::Glu(*up, activation);
    vec![rms_norm::launch(site, x, norm, normed), experts::launch(site, normed, ids, gate, kind, out)]
}

/// A router, the gated units and the down projections behind it, and what reads their sum, where one launch chooses the experts and
/// does the work of both stacks: the launches of these ops, three or four. `writes` is where gated units leave the operand of down
/// projections.
pub(crate) fn experts_in_one(site: &Site<'_>, at: usize, writes: Option<DirectOperand>) -> Option<Vec<Vec<Launch>>> {
    let ops = &site.loaded.plan.ops;
    let [op, glu, after] = ops.get(at..at + 3)? else { return None };
    let Op::MoeRoute { x, norm, gate, ref router, ids, weights } = *op else { return None };
    let Op::MoeGlu { gate: ref gates, ref up, activation, .. } = *glu else { return None };
    let Op::MoeDown { ref down, .. } = *after else { return None };
    let between = writes?;
    let of_op = |op: &Op| Site { target: site.loaded.target.of(op.name()), ..*site };
    let of_glu = of_op(glu);
    let in_order = InOrder::new(&of_glu, glu)?;
    let ByExperts::Slabs { variant, pair: true } = in_order.by else { return None };
    let choice = Choice::of(site, x, gate, router, [ids, weights]);
    let weight = site.loaded.weights.stack(gates).first;
    let inputs = Inputs { x: site.place(x), shared: true, norm: Some(norm) };
    let operand = experts_mma::operand(site, in_order.of, true, weight.row_len);
    let logits = experts_mma::router_rows(site, inputs, gate, choice.logits, weight.format, &operand)?;
    let sum = sum_of(site, after, in_order.of)?;
    debug_assert!(
        sum.parts.is_apart(operand.rows) && sum.parts.is_apart(choice.logits.region),
        "others read them still"
    );
    let y = (sum.parts, experts::parts_stride(sum.out.width));
    let stacks = (gates, (up, activation), down);
    let pair = experts_mma::pair(&of_glu, variant, &choice, in_order.of, (&operand, between), stacks, y);
    let behind = ops.get(at + 3).and_then(|next| norm_linear_of_sum(&of_op(next), after, next, &sum));
    let sums = if behind.is_some() { vec![] } else { vec![sum.launch(site)] };
    Some([vec![logits, pair], vec![], sums].into_iter().chain(behind).collect())
}

/// What is left to add up behind down projections.
fn sum_of(site: &Site<'_>, op: &Op, of: Routed) -> Option<ExpertSum> {
    let Op::MoeDown { ids, weights, ref down, residual, out, .. } = *op else { return None };
    let [weights, residual, out] = [weights, residual, out].map(|value| site.place(value));
    let [operand, bytes] = down_bytes(of, site.loaded.weights.stack(down).first.row_len, out.width);
    let before = operand.max(routing_bytes(site.loaded, ids, site.shape));
    let parts: Region = site.arena.part(site.layout.scratch.0 + before, bytes);
    Some(ExpertSum { parts, of, weights, residual, out })
}

/// The down projections of the experts of each row, where they take rows in their order, and what is then left to add up.
fn down_pairs(site: &Site<'_>, op: &Op) -> Option<(Vec<Launch>, ExpertSum)> {
    let Op::MoeDown { x, ref down, .. } = *op else { return None };
    let in_order = InOrder::new(site, op)?;
    let (groups, grouping) = in_order.grouping(site);
    let sum = sum_of(site, op, in_order.of)?;
    let inputs = Inputs { x: site.place(x), shared: false, norm: None };
    let y = (sum.parts, experts::parts_stride(sum.out.width));
    let launches = in_order.launches(site, inputs, down, None, &groups, y);
    Some((grouping.into_iter().chain(launches).collect(), sum))
}

/// The down projections of a mixture and the projections of the rows behind it, whose operand is made by the kernel that adds up
/// the experts of each row, where there is one.
pub(crate) fn down_norm_linear(site: &Site<'_>, op: &Op, next: &Op) -> Option<[Vec<Launch>; 2]> {
    // Whether that kernel is taken depends on where the step's rows are, and its sums have an order of their own.
    if site.target.batch_invariant {
        return None;
    }
    let (pairs, sum) = down_pairs(site, op)?;
    let of_next = Site { target: site.loaded.target.of(next.name()), ..*site };
    Some([pairs, norm_linear_of_sum(&of_next, op, next, &sum)?])
}

/// The projections `next` of what the down projections `op` leave to add up.
fn norm_linear_of_sum(site: &Site<'_>, op: &Op, next: &Op, sum: &ExpertSum) -> Option<Vec<Launch>> {
    let (&Op::MoeDown { out, .. }, &Op::NormLinear { x, norm, ref projections }) = (op, next) else { return None };
    if x != out {
        return None;
    }
    let list: Vec<_> =
        projections.iter().map(|&(linear, out)| Projection { linear, up: None, out: site.place(out) }).collect();
    let x = site.place(x);
    let projections = Projections { x, rows: x.rows, norm: Some(norm), list: &list, residual: None };
    projection::launches_of_sum(&Site { reads: None, ..*site }, &projections, sum)
}

/// The weighted sum of the down projections of the experts of each row, and the residual.
pub(crate) fn down(
    site: &Site<'_>,
    op: &Op,
    [x, ids, weights]: [Value; 3],
    down: &Experts,
    residual: Value,
    out: Value,
) -> Vec<Launch> {
    if let Some((mut launches, sum)) = down_pairs(site, op) {
        launches.push(sum.launch(site));
        return launches;
    }
    let [x, ids, weights, residual, out] = [x, ids, weights, residual, out].map(|value| site.place(value));
    let shape = ExpertsShape::new(&site.loaded.weights.stack(down), site.num_rows(x.rows), ids.width);
    if let Some(variant) = experts_stream::down_variant(&site.target, shape) {
        return vec![experts_stream::down(site, &variant, [x, ids, weights], down, residual, site.routed, out)];
    }
    vec![experts::launch(site, x, ids, down, ExpertsKind::Down { weights, residual }, out)]
}

/// How the gated units of one row or two are streamed, where they are: gates and ups at the same distances.
fn glu_variant(
    site: &Site<'_>,
    rows: usize,
    slots: usize,
    gate: &Experts,
    up: &Experts,
) -> Option<experts_stream::ExpertsVariant> {
    let (gates, ups) = (site.loaded.weights.stack(gate), site.loaded.weights.stack(up));
    let alike = gates.stride == ups.stride && (up.bias.is_none() || gates.bias_stride == ups.bias_stride);
    if !alike || gate.bias.is_some() != up.bias.is_some() {
        return None;
    }
    experts_stream::glu_variant(&site.target, ExpertsShape::new(&gates, rows, slots))
}

/// Router and gated units of one row or two in one launch, where the one follows the other, the sum of the experts reads and
/// forgets the router's messages, and there is a kernel for it.
pub(crate) fn route_glu(site: &Site<'_>, at: usize) -> Option<Launch> {
    let ops = &site.loaded.plan.ops;
    let [op, next, after] = ops.get(at..at + 3)? else { return None };
    let Op::MoeRoute { x, norm, gate: router_gate, ref router, ids, weights } = *op else { return None };
    let Op::MoeGlu { x: glu_x, norm: glu_norm, ids: glu_ids, ref gate, ref up, activation, out } = *next else {
        return None;
    };
    let Op::MoeDown { ids: down_ids, ref down, .. } = *after else { return None };
    if (glu_x, glu_norm, glu_ids, down_ids) != (x, norm, ids, ids) {
        return None;
    }
    let [x, ids, weights, out] = [x, ids, weights, out].map(|value| site.place(value));
    let rows = site.num_rows(x.rows);
    let variant = glu_variant(site, rows, ids.width, gate, up)?;
    let shape = ExpertsShape::new(&site.loaded.weights.stack(down), rows, ids.width);
    // Where rows are put in the order of experts, the router does that.
    let in_order = |op: &Op| InOrder::new(&Site { target: site.loaded.target.of(op.name()), ..*site }, op).is_some();
    if in_order(next) || in_order(after) {
        return None;
    }
    // The results are written while the op ahead may still read its rows.
    let apart = [ids, weights, out].iter().all(|rows| rows.region.is_apart(x.region));
    if !apart
        || experts_stream::down_variant(&site.target, shape).is_none()
        || !experts_stream::can_route(site, router_gate, router)
    {
        return None;
    }
    let router = RouterPlace { gate: router_gate, router, weights, layer: routed_layer(ops, at) };
    Some(experts_stream::glu(site, &variant, [x, ids, out], norm, [gate, up], activation, Some(router)))
}

/// Whether all routers of a plan are in one launch with gated units: messages of one layer are forgotten by the next.
pub(crate) fn routes_with_glu(site: &Site<'_>) -> bool {
    has_messages(site.loaded, site.shape)
        && site.has_experts()
        && routers(&site.loaded.plan.ops).all(|at| route_glu(site, at).is_some())
}

/// The places of routers.
fn routers(ops: &[Op]) -> impl Iterator<Item = usize> {
    ops.iter().enumerate().filter(|(_, op)| matches!(op, Op::MoeRoute { .. })).map(|(at, _)| at)
}

/// The layer whose router is the last up to `at`.
pub(crate) fn routed_layer(ops: &[Op], at: usize) -> RoutedLayer {
    let index = routers(ops).take_while(|&router| router <= at).count().saturating_sub(1);
    RoutedLayer { index, layers: routers(ops).count() }
}

/// Whether routers may send messages: the last layer may have one row, of outputs, where the others have more.
fn has_messages(loaded: &LoadedPlan<'_>, shape: StepShape) -> bool {
    loaded.target.groups_meet && shape.tokens <= experts_stream::ROWS_MAX
}

/// Bytes of the messages of routers.
pub(crate) fn messages_bytes(loaded: &LoadedPlan<'_>, shape: StepShape) -> u64 {
    if has_messages(loaded, shape) { experts_stream::messages_bytes(routers(&loaded.plan.ops).count()) } else { 0 }
}
