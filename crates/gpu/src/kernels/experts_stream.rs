//! `kernels/experts_stream.h`: projections by the experts of one row or two, whose weights stream through group memory.

use plan::{Activation, Experts, Linear, Norm, Router, Scores};

use crate::formats::DeviceFormat;
use crate::kernels::experts::with_stack;
use crate::kernels::linear_stream::{NORM_K_MAX, NORM_SHARE, PLAIN_SHARE, SIMDS, STAGES_MAX, StreamedFormat, THREADS};
use crate::kernels::route;
use crate::launch::{Access, Launch, Region};
use crate::params::{ExpertStreamParams, LinearSegment, LinearStreamParams};
use crate::site::{DeviceRows, F32, ROW_ALIGN, RoutedLayer, Site, index};
use crate::target::Target;
use crate::weights::DeviceExperts;

/// As in `kernels/experts_stream.h`: rows, bytes ahead of those of x, and slots of all of them.
pub(crate) const ROWS_MAX: usize = 2;

const HEADER: [usize; ROWS_MAX] = [2304, 3456];

pub(crate) const SLOTS_MAX: usize = 16;

/// Rows that are multiplied at once, `STREAM_ROWS` of `kernels/linear_stream.h`.
const ROWS: usize = 4;

/// Experts among which the kernel chooses that has the router too.
const ROUTED_EXPERTS_MAX: usize = 128;

/// Formats of routers that it takes.
const ROUTER_FORMATS: [DeviceFormat; 2] = [DeviceFormat::F32, DeviceFormat::BF16];

/// Percent of group memory for activations that leave no room for weights in the share of a projection.
const WHOLE_SHARE: usize = 99;

/// Bytes of the messages in which a router sends logits: all layers of a step share them. Then of those in which it sends
/// ids: each layer has its own.
const LOGITS_BYTES: u64 = (ROWS_MAX * ROUTED_EXPERTS_MAX) as u64 * F32;

const IDS_BYTES: u64 = SLOTS_MAX as u64 * F32;

/// Bytes of the messages of the routers of so many layers.
pub(crate) fn messages_bytes(layers: usize) -> u64 {
    if layers == 0 { 0 } else { LOGITS_BYTES + layers as u64 * IDS_BYTES }
}

/// The messages about logits, about a layer's ids, and about those of the layer before it, which for the first is the
/// last of the step before. One layer alone would find its own.
fn messages(site: &Site<'_>, layer: RoutedLayer) -> (Region, Option<[Region; 2]>) {
    let RoutedLayer { index, layers } = layer;
    let bytes = messages_bytes(layers);
    let all = site.messages.part(site.messages.bytes - bytes, bytes);
    let ids = |index: usize| all.part(LOGITS_BYTES + index as u64 * IDS_BYTES, IDS_BYTES);
    let before = ids((index + layers - 1) % layers);
    (all.part(0, LOGITS_BYTES), (layers > 1).then(|| [ids(index), before]))
}

/// The name of a kernel for one row or for two.
macro_rules! by_rows {
    ($rows:expr, $format:expr, $name:literal) => {
        if $rows > 1 { named!($format, $name, "_m2") } else { named!($format, $name, "") }
    };
}

/// How group memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertsVariant {
    stages: usize,
    stage_rows: usize,
    x_at: usize,
    ring_at: usize,
    /// Bytes of a row of x, or of a slot of it.
    x_slot: usize,
    parts_at: usize,
    group_bytes: usize,
}

/// What experts are, and how many rows there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertsShape {
    pub(crate) format: DeviceFormat,
    /// Output and input features of one expert.
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) rows: usize,
    /// Of each row.
    pub(crate) slots: usize,
}

impl ExpertsShape {
    pub(crate) fn new(stack: &DeviceExperts, rows: usize, slots: usize) -> Self {
        Self { format: stack.first.format, n: stack.first.rows, k: stack.first.row_len, rows, slots }
    }

    /// The down projections behind these gated units.
    fn behind(self) -> Self {
        Self { n: self.k, k: self.n, ..self }
    }

    /// Whether these down projections have the smaller share of group memory, and the gated units ahead of them the
    /// larger one: where that is faster, and there is room for two stages.
    fn is_smaller(self, target: &Target) -> bool {
        let is_faster =
            self.rows == 1 && self.format.facts().streamed.is_some_and(|streamed| streamed.units_are_larger);
        is_faster && down_of_share(target, self, NORM_SHARE).is_some_and(|variant| variant.stages > 1)
    }

    fn can_stream(self, target: &Target) -> bool {
        let workers = target.multiprocessors * THREADS as usize / 32;
        let slots = self.rows * self.slots;
        let products = (self.n * slots) as u64 * (workers as u64 + 1);
        // Slices of rows are read in vectors, and eight lanes make a block.
        let whole = self.k.is_multiple_of(if self.format.chunk_len() > 8 { 32 } else { 8 });
        target.kernel.is_none()
            && target.bulk_copies
            && !target.batch_invariant
            && (1..=ROWS_MAX).contains(&self.rows)
            && slots <= SLOTS_MAX
            && whole
            && products <= u64::from(u32::MAX)
    }
}

/// Gated units of one row or two, where copies run by themselves and results may depend on the batch.
pub(crate) fn glu_variant(target: &Target, shape: ExpertsShape) -> Option<ExpertsVariant> {
    if !shape.can_stream(target) || shape.k * shape.rows > NORM_K_MAX {
        return None;
    }
    let format = StreamedFormat::new(shape.format, shape.k, 2)?;
    let share = if shape.behind().is_smaller(target) { PLAIN_SHARE } else { NORM_SHARE };
    let group_bytes = target.group_bytes_max as usize * share / 100 / 1024 * 1024;
    let (x_at, x_slot) = (HEADER[shape.rows - 1], format.x_bytes.next_multiple_of(128));
    let ring_at = x_at + shape.rows * x_slot;
    let stages = (group_bytes.checked_sub(ring_at)? / (SIMDS * 2 * format.plane())).min(STAGES_MAX);
    let stage_rows = format.stage_rows();
    (stages > 0).then_some(ExpertsVariant { stages, stage_rows, x_at, ring_at, x_slot, parts_at: 0, group_bytes })
}

/// The weighted sums of the down projections of one row or two: likewise.
pub(crate) fn down_variant(target: &Target, shape: ExpertsShape) -> Option<ExpertsVariant> {
    if !shape.can_stream(target) {
        return None;
    }
    let two_stages = |share| down_of_share(target, shape, share).filter(|variant| variant.stages > 1);
    let smaller = two_stages(NORM_SHARE).filter(|_| shape.is_smaller(target));
    let variant = smaller.or_else(|| two_stages(PLAIN_SHARE)).or_else(|| down_of_share(target, shape, WHOLE_SHARE));
    variant.filter(|variant| variant.stages > 0)
}

/// The same in so many percent of group memory, though it may have no room for a stage.
fn down_of_share(target: &Target, shape: ExpertsShape, share: usize) -> Option<ExpertsVariant> {
    let format = StreamedFormat::new(shape.format, shape.k, 1)?;
    let x_slot = format.x_bytes.next_multiple_of(128);
    let (x_at, slots) = (HEADER[shape.rows - 1], shape.rows * shape.slots);
    let parts_at = x_at + slots * x_slot;
    let outputs = shape.n.div_ceil(target.multiprocessors);
    // Short rows are multiplied several at once.
    let stage_rows = if format.stage_rows() > ROWS { ROWS } else { format.stage_rows() };
    let ring_at = (parts_at + slots * outputs * F32 as usize).next_multiple_of(128);
    let group_bytes = target.group_bytes_max as usize * share / 100 / 1024 * 1024;
    let stages = (group_bytes.checked_sub(ring_at)? / (SIMDS * format.plane())).min(STAGES_MAX);
    Some(ExpertsVariant { stages, stage_rows, x_at, ring_at, x_slot, parts_at, group_bytes })
}

/// The router of the experts whose gated units are computed.
#[derive(Clone, Copy)]
pub(crate) struct RouterPlace<'a> {
    pub(crate) gate: Linear,
    pub(crate) router: &'a Router,
    pub(crate) weights: DeviceRows,
    pub(crate) layer: RoutedLayer,
}

/// Whether groups can wait for each other and there is one for each expert.
pub(crate) fn can_route(site: &Site<'_>, gate: Linear, router: &Router) -> bool {
    let weight = site.loaded.weights.get(gate.weight);
    site.target.groups_meet
        && site.target.kernel.is_none()
        && ROUTER_FORMATS.contains(&weight.format)
        && weight.row_len.is_multiple_of(8)
        && weight.rows <= ROUTED_EXPERTS_MAX.min(site.target.multiprocessors)
        && router.slots() <= SLOTS_MAX
        && router.groups.is_none()
        // Experts are ordered by logits, as their scores are.
        && (router.scores != Scores::Softmax || router.correction.is_none())
}

/// The gated units of the experts of one row or two, which are normalised on the way; with a router, `ids` is written and not
/// read.
pub(crate) fn glu(
    site: &Site<'_>,
    variant: &ExpertsVariant,
    [x, ids, out]: [DeviceRows; 3],
    norm: Norm,
    [gate, up]: [&Experts; 2],
    activation: Activation,
    router: Option<RouterPlace<'_>>,
) -> Launch {
    let weights = site.loaded.weights;
    let (stack, up_stack) = (weights.stack(gate), weights.stack(up));
    let gain = site.vector(Some(norm.weight));
    let (n, rows) = (stack.first.rows, site.num_rows(x.rows));
    let segment = LinearSegment {
        up: up_stack.first.values.address,
        up_scales: up_stack.first.scales.address,
        up_bias: up_stack.biases.address,
        activation: activation as i32,
        ..segment(&stack, out)
    };
    let mut params = ExpertStreamParams {
        linear: LinearStreamParams {
            segments: [segment, LinearSegment::default(), LinearSegment::default()],
            x: x.region.address,
            gain: gain.address,
            units: index(n * rows * ids.width),
            eps: norm.eps,
            ..linear(site, variant, &stack, x)
        },
        up_matrix_scales: up_stack.matrix_scales.address,
        ..of_stack(&stack, rows, ids)
    };
    let format = stack.first.format;
    let mut kernel = by_rows!(rows, format, "norm_expert_glu_stream_");
    let mut operands = vec![(Access::Read, x.region), (Access::Constant, gain), (Access::Write, out.region)];
    match router {
        None => {
            params.ids = ids.region.address;
            operands.push((Access::Read, ids.region));
        }
        Some(RouterPlace { gate, router, weights: of_slots, layer }) => {
            let (gates, bias) = (weights.get(gate.weight), site.vector(gate.bias));
            let (messages, ids_sent) = messages(site, layer);
            let [ids_sent, _] = ids_sent.unwrap_or_default();
            params.sent_ids = ids_sent.address;
            kernel = by_rows!(rows, format, "route_expert_glu_stream_");
            params.router = route::router(site, router, gates.rows);
            if gates.format == DeviceFormat::BF16 {
                params.router_bf16 = gates.values.address;
            } else {
                params.router_f32 = gates.values.address;
            }
            params.router_bias = bias.address;
            (params.logits, params.logit) = (messages.address, messages.address);
            (params.ids_out, params.weights_out) = (ids.region.address, of_slots.region.address);
            params.weights_stride = index(of_slots.stride);
            operands
                .extend([gates.values, bias, site.vector(router.correction)].map(|region| (Access::Constant, region)));
            operands.extend([
                (Access::Write, ids.region),
                (Access::Write, of_slots.region),
                (Access::Update, messages),
                (Access::Update, ids_sent),
            ]);
        }
    }
    let launch = launch(site, kernel, variant, &params, operands);
    with_stack(with_stack(launch, &stack), &up_stack)
}

/// The weighted sums of the down projections of the experts of one row or two, and the residual; `routed`: the gated units came
/// of a kernel with the router, whose messages are read and forgotten.
pub(crate) fn down(
    site: &Site<'_>,
    variant: &ExpertsVariant,
    [x, ids, weights]: [DeviceRows; 3],
    down: &Experts,
    residual: DeviceRows,
    routed: Option<RoutedLayer>,
    out: DeviceRows,
) -> Launch {
    let (stack, rows) = (site.loaded.weights.stack(down), site.num_rows(x.rows));
    let (messages, ids_sent) = routed.map(|layer| messages(site, layer)).unwrap_or_default();
    let [ids_sent, ids_before] = ids_sent.unwrap_or_default();
    let params = ExpertStreamParams {
        linear: LinearStreamParams {
            segments: [segment(&stack, out), LinearSegment::default(), LinearSegment::default()],
            x: x.region.address,
            residual: residual.region.address,
            residual_stride: index(residual.stride),
            ..linear(site, variant, &stack, x)
        },
        ids: ids.region.address,
        weights: weights.region.address,
        logits: messages.address,
        sent_ids: ids_sent.address,
        old_ids: ids_before.address,
        x_slot: index(variant.x_slot),
        parts_at: index(variant.parts_at),
        weights_stride: index(weights.stride),
        ..of_stack(&stack, rows, ids)
    };
    let reads = [x, ids, weights, residual].map(|rows| (Access::Read, rows.region));
    let updates = [messages, ids_sent, ids_before].map(|region| (Access::Update, region));
    let operands = reads.into_iter().chain([(Access::Write, out.region)]).chain(updates).collect();
    let kernel = by_rows!(rows, stack.first.format, "expert_down_stream_");
    with_stack(launch(site, kernel, variant, &params, operands), &stack)
}

fn segment(stack: &DeviceExperts, out: DeviceRows) -> LinearSegment {
    LinearSegment {
        weight: stack.first.values.address,
        scales: stack.first.scales.address,
        bias: stack.biases.address,
        y: out.region.address,
        y_stride: index(out.stride),
        n: index(stack.first.rows),
        matrix_scale: 1.0,
        up_matrix_scale: 1.0,
        ..LinearSegment::default()
    }
}

fn linear(site: &Site<'_>, variant: &ExpertsVariant, stack: &DeviceExperts, x: DeviceRows) -> LinearStreamParams {
    LinearStreamParams {
        k: index(stack.first.row_len),
        x_stride: index(x.stride / ROW_ALIGN),
        x_row: index(variant.x_slot),
        stages: index(variant.stages),
        stage_rows: index(variant.stage_rows),
        x_at: index(variant.x_at),
        ring_at: index(variant.ring_at),
        groups: index(site.target.multiprocessors),
        ..LinearStreamParams::default()
    }
}

fn of_stack(stack: &DeviceExperts, rows: usize, ids: DeviceRows) -> ExpertStreamParams {
    let of_kernel = crate::kernels::experts::stack_params(stack);
    ExpertStreamParams {
        matrix_scales: stack.matrix_scales.address,
        slots: index(rows * ids.width),
        row_slots: index(ids.width),
        ids_stride: index(ids.stride),
        experts: index(stack.count),
        stride: of_kernel.stride,
        bias_stride: of_kernel.bias_stride,
        ..ExpertStreamParams::default()
    }
}

fn launch(
    site: &Site<'_>,
    kernel: &'static str,
    variant: &ExpertsVariant,
    params: &ExpertStreamParams,
    operands: Vec<(Access, Region)>,
) -> Launch {
    let group_bytes = u32::try_from(variant.group_bytes).expect("group memory is smaller than 2^32 bytes");
    let launch = Launch::new(kernel, [site.target.multiprocessors, 1, 1], params).with_groups_of(THREADS, group_bytes);
    operands.into_iter().fold(launch, |launch, (access, region)| launch.with(access, region))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::tests::H200;

    #[test]
    fn kernels_of_a_layer_share_a_multiprocessor_two_by_two() {
        let qwen = |format, n, k| ExpertsShape { format, n, k, rows: 1, slots: 8 };
        for format in DeviceFormat::ALL.into_iter().filter(|format| format.facts().streamed.is_some()) {
            let glu = glu_variant(&H200, qwen(format, 768, 2048)).unwrap();
            let down = down_variant(&H200, qwen(format, 2048, 768)).unwrap();
            assert!(glu.stages > 0 && down.stages > 0 && down.parts_at > down.x_at && down.ring_at > down.parts_at);
            // A multiprocessor has a KiB more than a group may have, and keeps one for each group.
            let two = glu.group_bytes + down.group_bytes + (2 << 10);
            assert!(two <= (H200.group_bytes_max as usize) + (1 << 10), "{format:?}: {two} bytes");
        }
    }

    #[test]
    fn rows_that_leave_no_room_take_the_whole_group_or_another_kernel() {
        let shape = ExpertsShape { format: DeviceFormat::BF16, n: 4096, k: 14_336, rows: 1, slots: 2 };
        let whole = down_variant(&H200, shape).unwrap();
        assert!(whole.group_bytes > H200.group_bytes_max as usize * PLAIN_SHARE / 100, "{whole:?}");
        assert_eq!(down_variant(&H200, ExpertsShape { slots: 4, ..shape }), None);
        assert_eq!(glu_variant(&H200, ExpertsShape { k: NORM_K_MAX + 32, ..shape }), None);
        assert_eq!(glu_variant(&H200, ExpertsShape { slots: SLOTS_MAX + 1, k: 4096, ..shape }), None);
        let alike = Target { batch_invariant: true, ..H200 };
        assert_eq!(glu_variant(&alike, ExpertsShape { k: 4096, ..shape }), None);
        let without = Target { bulk_copies: false, ..H200 };
        assert_eq!(down_variant(&without, shape), None);
    }
}
