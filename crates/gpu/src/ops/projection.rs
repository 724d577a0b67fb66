//! Projections, with the norm before them, the activation of a gated unit and the residual after them: which kernel
//! takes which rows and weights.

use backend::Tuned;
use plan::{KvFormat, Linear, Op, Rope, Rows, StepShape, Value};

use crate::forced::Kernel;
use crate::formats::DeviceFormat;
use crate::kernels::experts::ExpertSum;
use crate::kernels::linear_stream::{self, StreamKind, StreamVariant};
use crate::kernels::operand::GemmOperand;
use crate::kernels::sm90::gemm;
use crate::kernels::{
    Projection, Projections, ProjectionsShape, SEGMENTS, Up, gemm_mma, linear, linear_batch, rms_norm,
};
use crate::launch::{Access, Launch};
use crate::ops::attention;
use crate::params::LinearStreamParams;
use crate::site::{DirectOperand, F32, LoadedPlan, ROW_ALIGN, Site, index, num_rows};
use crate::target::{Matrix, Target};
use crate::weights::DeviceWeight;

/// Whether rows are normalised by the kernel that multiplies them, and not by one before it: every group does it again,
/// which pays for one row.
fn normalises_on_the_way(rows: usize) -> bool {
    rows == 1
}

/// The target for projections of `shape`, which wants another kernel where that was measured better.
fn tuned_for(target: &Target, shape: ProjectionsShape<'_>) -> Target {
    if target.kernel.is_some() || target.tuned.is_none() || target.matrix < Matrix::SimdGroup || shape.rows < 2 {
        return *target;
    }
    // Most shapes are in no table, and what follows is asked for every op in every format.
    let key = shape.key("projection");
    if !target.tuned.is_asked(&key) {
        return *target;
    }
    let is_there = |&kernel: &Kernel| {
        let target = Target { kernel: Some(kernel), tuned: Tuned::NONE, ..*target };
        match kernel {
            Kernel::Gemm => gemm::variant(&target, shape).is_some(),
            Kernel::GemmMma => gemm_mma::variant(&target, shape).is_some(),
            _ => linear_batch::variant(&target, shape).is_some(),
        }
    };
    let kernels: Vec<_> = on_matrices(target).iter().copied().filter(is_there).collect();
    let usual = kernels.first().copied();
    let label = |kernel: &Kernel| kernel.name().to_owned();
    let kernel = target.tuned.pick(|| key, kernels, label, 0);
    Target { kernel: kernel.filter(|_| kernel != usual), ..*target }
}

/// Input features of rows of 16 bits that are short for two rows, and output features of a head over a vocabulary.
const SHORT_K: usize = 2048;
const HEAD_FEATURES: usize = 65_536;

/// The variant that streams the weights of two rows, where it is there: as one row does, without launches before and behind
/// it. Never where another kernel is forced, or was measured better.
fn streams_two(
    target: &Target,
    shape: ProjectionsShape<'_>,
    variant: impl FnOnce() -> Option<StreamVariant>,
) -> Option<StreamVariant> {
    if shape.rows != 2 || target.kernel.is_some() {
        return None;
    }
    let variant = variant()?;
    // On an H200 a head of short rows in 16 bits is faster on matrix instructions, because two rows in f32 are four times as
    // many bytes of group memory as the weights that meet them: Llama-3.2-1B takes 0.87 ms a step, and 0.95 with a stream.
    let is_short = shape.format.chunk_len() == 8 && shape.k <= SHORT_K;
    let usual = !(is_short && shape.features.iter().sum::<usize>() >= HEAD_FEATURES);
    let label = |streams: &bool| if *streams { "stream" } else { "matrices" }.to_owned();
    let streams = target.tuned.pick(|| shape.key("two_rows"), vec![usual, !usual], label, 0);
    (streams == Some(true)).then_some(variant)
}

/// Kernels of projections on matrix instructions, in the order in which they are tried.
fn on_matrices(target: &Target) -> &'static [Kernel] {
    match target.kernel {
        Some(Kernel::Linear) => &[],
        Some(Kernel::LinearBatch) => &[Kernel::LinearBatch, Kernel::Gemm, Kernel::GemmMma],
        Some(Kernel::GemmMma) => &[Kernel::GemmMma, Kernel::Gemm, Kernel::LinearBatch],
        _ => &[Kernel::Gemm, Kernel::LinearBatch, Kernel::GemmMma],
    }
}

/// The launches of projections: those by weights in one format together.
pub(crate) fn launches(site: &Site<'_>, projections: &Projections<'_>) -> Vec<Launch> {
    let format = |projection: &Projection| site.loaded.weights.get(projection.linear.weight).format;
    let mut list = projections.list.to_vec();
    // Stable, so that a model's own order stays where there is one format.
    list.sort_by_key(|projection| format(projection) as u8);
    let of_one_format = list.chunk_by(|a, b| format(a) == format(b));
    of_one_format.flat_map(|list| of_one_format_launches(site, &Projections { list, ..*projections })).collect()
}

fn of_one_format_launches(site: &Site<'_>, projections: &Projections<'_>) -> Vec<Launch> {
    let features = projections.features(site);
    if let Some(variant) =
        streams_two(&site.target, projections.shape(site, &features), || linear_stream::variant_for(site, projections))
    {
        return vec![linear_stream::launch(site, &variant, projections, LinearStreamParams::default())];
    }
    let site = &Site { target: tuned_for(&site.target, projections.shape(site, &features)), ..*site };
    let on_matrices = on_matrices(&site.target).iter().find_map(|kernel| match kernel {
        Kernel::Gemm => gemm::launches(site, projections, None),
        Kernel::GemmMma => gemm_mma::launches(site, projections),
        _ => linear_batch::launches(site, projections),
    });
    if let Some(launches) = on_matrices {
        return launches;
    }
    let &Projections { x, rows, norm, .. } = projections;
    match norm {
        Some(norm) if !normalises_on_the_way(site.num_rows(rows)) => {
            let normed = site.normed(x, rows);
            let linears = Projections { x: normed, norm: None, ..*projections };
            let linears: Vec<_> = linears.in_launches().map(|some| without_matrices(site, &some)).collect();
            std::iter::once(rms_norm::launch(site, x, norm, normed)).chain(linears).collect()
        }
        _ => projections.in_launches().map(|some| without_matrices(site, &some)).collect(),
    }
}

/// The same of the rows of `sum`, which the kernel that makes their operand adds up; `None` where no kernel does.
pub(crate) fn launches_of_sum(site: &Site<'_>, projections: &Projections<'_>, sum: &ExpertSum) -> Option<Vec<Launch>> {
    let features = projections.features(site);
    let shape = projections.shape(site, &features);
    let in_one_format = projections.list.iter().all(|projection| {
        let format = |weight: &DeviceWeight| weight.format == shape.format;
        projection.weights(site).all(format)
    });
    let site = &Site { target: tuned_for(&site.target, shape), ..*site };
    let is_gemm = on_matrices(&site.target).first() == Some(&Kernel::Gemm);
    (in_one_format && is_gemm).then(|| gemm::launches(site, projections, Some(sum))).flatten()
}

fn without_matrices(site: &Site<'_>, projections: &Projections<'_>) -> Launch {
    if site.num_rows(projections.rows) == 1
        && let Some(variant) = linear_stream::variant_for(site, projections)
    {
        return linear_stream::launch(site, &variant, projections, LinearStreamParams::default());
    }
    linear::launch(site, projections)
}

/// Projections of an op: their input, its rows in a step, whether they are a gated unit, and the output features of each.
struct OpProjections {
    x: Value,
    rows: usize,
    glu: bool,
    features: Vec<usize>,
}

impl OpProjections {
    fn of(loaded: &LoadedPlan<'_>, op: &Op, shape: StepShape) -> Option<Self> {
        let plan = loaded.plan;
        let (x, rows, glu, linears) = match *op {
            Op::Linear { x, linear, .. } | Op::LinearResidual { x, linear, .. } => {
                (x, plan.value(x).rows, false, vec![linear])
            }
            Op::NormLinear { x, ref projections, .. } => {
                (x, plan.value(x).rows, false, projections.iter().map(|&(linear, _)| linear).collect())
            }
            Op::NormGlu { x, gate, .. } => (x, plan.value(x).rows, true, vec![gate]),
            Op::Logits { x, head, .. } => (x, Rows::Outputs, false, vec![head]),
            _ => return None,
        };
        let features = linears.iter().map(|linear| plan.weight(linear.weight).shape[0]).collect();
        Some(Self { x, rows: num_rows(rows, shape), glu, features })
    }
}

/// Bytes of messages of an op's projections, whatever format their weights are in: there may be none yet.
pub(crate) fn messages_bytes(loaded: &LoadedPlan<'_>, op: &Op, shape: StepShape) -> u64 {
    let Some(OpProjections { x, rows, glu, features }) = OpProjections::of(loaded, op, shape) else { return 0 };
    let k = loaded.plan.value(x).width;
    let target = loaded.target.supposed();
    let bytes = |format| {
        features.chunks(SEGMENTS).filter_map(move |features| {
            let variant = linear_batch::variant(&target, ProjectionsShape { format, rows, k, glu, features })?;
            Some(variant.partials_bytes + variant.squares_bytes)
        })
    };
    DeviceFormat::ALL.into_iter().flat_map(bytes).max().unwrap_or(0)
}

/// Bytes of an op's rows between its kernels: normalised, or as the operand of a gemm.
pub(crate) fn scratch_bytes(loaded: &LoadedPlan<'_>, op: &Op, shape: StepShape) -> u64 {
    let plan = loaded.plan;
    let (x, normed, rows) = match *op {
        Op::NormLinear { x, .. } | Op::NormGlu { x, .. } => (x, true, plan.value(x).rows),
        Op::Logits { x, .. } => (x, true, Rows::Outputs),
        Op::Linear { x, .. } | Op::LinearResidual { x, .. } => (x, false, plan.value(x).rows),
        _ => return 0,
    };
    let (rows, width) = (num_rows(rows, shape), plan.value(x).width);
    // Which of the two it is may depend on weights, and there may be none yet.
    let normed = normed && !normalises_on_the_way(rows);
    let normed = if normed { (rows * width.next_multiple_of(ROW_ALIGN)) as u64 * F32 } else { 0 };
    let gemm = if gemm::may_be(&loaded.target.of(op.name()), rows) { GemmOperand::bytes(rows, width) } else { 0 };
    normed.max(gemm).max(mma_bytes(loaded, op, shape))
}

/// Bytes of the operand of a `gemm_mma`, and of what slices of its input features leave. Weights in several formats are
/// several launches.
fn mma_bytes(loaded: &LoadedPlan<'_>, op: &Op, shape: StepShape) -> u64 {
    let target = loaded.target.of(op.name()).supposed();
    let Some(OpProjections { x, rows, glu, features }) = OpProjections::of(loaded, op, shape) else { return 0 };
    let k = loaded.plan.value(x).width;
    let of = |features: &[usize]| {
        let bytes = |format| {
            let shape = ProjectionsShape { format, rows, k, glu, features };
            gemm_mma::scratch_bytes(&tuned_for(&target, shape), shape)
        };
        DeviceFormat::ALL.into_iter().map(bytes).max().unwrap_or(0)
    };
    let runs =
        (0..features.len()).flat_map(|from| (from + 1..=features.len().min(from + SEGMENTS)).map(move |to| from..to));
    runs.map(|run| of(&features[run])).max().unwrap_or(0)
}

/// Bytes of the rows that the first op of `pair` may write as the operand of the second, whatever format weights are
/// in.
pub(crate) fn direct_operand_bytes(loaded: &LoadedPlan<'_>, pair: &[Op], shape: StepShape) -> u64 {
    let Some((out, next)) = activation_of_next(&pair[0], &pair[1]) else { return 0 };
    let value = loaded.plan.value(out);
    let rows = num_rows(value.rows, shape);
    let target = loaded.target.of(next);
    let may_be = gemm::may_be(&target, rows) && !target.batch_invariant;
    if may_be { GemmOperand::row_bytes(rows, value.width) } else { 0 }
}

/// The result of `op` that is the activation of the projection `next`, whose name is given.
fn activation_of_next(op: &Op, next: &Op) -> Option<(Value, &'static str)> {
    let (Op::Attention { out, .. } | Op::NormGlu { out, .. }) = *op else { return None };
    let (Op::Linear { x, .. } | Op::LinearResidual { x, .. }) = *next else { return None };
    (x == out).then(|| (out, next.name()))
}

/// Where `op` can write its result as the operand of the gemm of `next`.
pub(crate) fn direct_operand(site: &Site<'_>, op: &Op, next: &Op) -> Option<DirectOperand> {
    let plan = site.loaded.plan;
    let (out, name) = activation_of_next(op, next).filter(|&(out, _)| site.is_read_once(out))?;
    let (Op::Linear { linear, .. } | Op::LinearResidual { linear, .. }) = *next else { return None };
    let next = Site { target: site.loaded.target.of(name), ..*site };
    let (rows, k) = (site.num_rows(plan.value(out).rows), plan.value(out).width);
    let format = site.loaded.weights.get(linear.weight).format;
    // Zeros would be wanted behind other rows.
    if next.target.batch_invariant || k != GemmOperand::stride(k) || !is_gemm(&next, rows, k, (linear, None)) {
        return None;
    }
    let factor = match *op {
        // Means of values of the cache, which are f16.
        Op::Attention { ref attention, .. } => {
            let cache = site.loaded.cache;
            let fits = cache.layout.format == KvFormat::F16 || format == DeviceFormat::BF16;
            (fits && attention::leaves_operands(site, attention)).then_some(1.0)
        }
        Op::NormGlu { x, gate, up, activation, .. } => {
            let k = plan.value(x).width;
            let bounded = || site.loaded.glu_bounds.f16_factor(gate.weight, activation);
            let factor = || if format == DeviceFormat::BF16 { Some(1.0) } else { bounded() };
            is_gemm(site, rows, k, (gate, Some((up, activation)))).then(factor).flatten()
        }
        _ => None,
    };
    let (at, bytes) = site.layout.direct_operand;
    let rows = site.arena.part(at, bytes.min(GemmOperand::row_bytes(rows, k)));
    factor.map(|factor| DirectOperand { rows, format, factor })
}

/// Whether a projection is a gemm of `kernels/sm90`.
fn is_gemm(site: &Site<'_>, num_rows: usize, k: usize, projection: (Linear, Option<Up>)) -> bool {
    let (linear, up) = projection;
    let weight = site.loaded.weights.get(linear.weight);
    let features = &[weight.rows];
    let shape = ProjectionsShape { format: weight.format, rows: num_rows, k, glu: up.is_some(), features };
    // Gated units normalise their rows, and what they are read by does not.
    let kind = if up.is_some() { StreamKind::Glu } else { StreamKind::Plain };
    let stream = || linear_stream::variant(&site.target, None, kind, up.is_some(), shape);
    streams_two(&site.target, shape, stream).is_none()
        && on_matrices(&tuned_for(&site.target, shape)).first() == Some(&Kernel::Gemm)
        && gemm::variants(site, num_rows, k, &[projection]).is_some()
}

/// Q, K and V, and what `rope_kv_write` does with them, in one launch: for one row or two, where the two ops follow each
/// other, heads turn whole, Q and K are in one format and `linear_stream` has a kernel for it and that of V.
pub(crate) fn norm_linear_rope(site: &Site<'_>, op: &Op, next: &Op) -> Option<Launch> {
    let Op::NormLinear { x, norm, ref projections } = *op else { return None };
    let Op::RopeKvWrite { q, k, v, q_norm: None, k_norm: None, rope, layer, q_out } = *next else { return None };
    let [(q_linear, q_to), (k_linear, k_to), (v_linear, v_to)] = projections[..] else { return None };
    let cache = &site.loaded.cache.layers[layer];
    let Rope { head_dim, dims, .. } = site.loaded.plan.ropes[rope];
    let [x, q_to, k_to, v_to, q_out] = [x, q_to, k_to, v_to, q_out].map(|value| site.place(value));
    let follows = [q, k, v].map(|value| site.place(value).region) == [q_to, k_to, v_to].map(|to| to.region);
    // The turned queries are written while the op ahead reads its row: that must not be the same memory.
    let apart = q_out.region.is_apart(x.region);
    let rows = site.num_rows(x.rows);
    if !follows || !apart || rows > linear_stream::ROWS_MAX || [head_dim, dims] != [cache.layer.head_dim; 2] {
        return None;
    }
    if site.loaded.cache.layout.format != KvFormat::F16 {
        return None;
    }
    let weights = [q_linear, k_linear, v_linear].map(|linear| site.loaded.weights.get(linear.weight));
    let [format, k_format, v_format] = weights.map(|weight: &DeviceWeight| weight.format);
    if k_format != format {
        return None;
    }
    let other = (v_format != format).then_some(v_format);
    let features = &weights.map(|weight| weight.rows);
    let shape = ProjectionsShape { format, rows, k: x.width, glu: false, features };
    let variant = || linear_stream::variant(&site.target, other, StreamKind::Rope, true, shape);
    let variant = if rows == 1 { variant() } else { streams_two(&site.target, shape, variant) }?;
    let angles = site.loaded.angles[rope];
    let params = LinearStreamParams {
        angles: angles.address,
        positions: site.step.positions.address,
        slots: site.step.slots.address,
        q_out: q_out.region.address,
        q_stride: index(q_out.stride),
        keys: cache.keys.address,
        values: cache.values.address,
        head_dim: index(head_dim),
        kv_heads: index(cache.layer.kv_heads),
        block_len: index(site.loaded.cache.layout.block_len),
        ..LinearStreamParams::default()
    };
    let list = [(q_linear, q_to), (k_linear, k_to), (v_linear, v_to)];
    let list = list.map(|(linear, out)| Projection { linear, up: None, out });
    let projections = Projections { x, rows: x.rows, norm: Some(norm), list: &list, residual: None };
    let launch = linear_stream::launch(site, &variant, &projections, params)
        .with(Access::Constant, angles)
        .with(Access::Constant, site.step.positions)
        .with(Access::Constant, site.step.slots)
        .with(Access::Write, q_out.region)
        .with(Access::Update, cache.keys)
        .with(Access::Update, cache.values);
    Some(launch)
}

#[cfg(test)]
mod tests {
    use plan::KvLayout;

    use super::*;
    use crate::kernels::attention::{self, AttentionShape};
    use crate::kernels::attention_tiles;
    use crate::target::tests::H200;

    #[test]
    fn one_row_is_normalised_on_the_way() {
        assert!(normalises_on_the_way(1) && !normalises_on_the_way(2));
    }

    #[test]
    fn what_is_forced_is_taken_where_it_can_be() {
        let target = |forced: &[&str]| {
            let forced = forced.iter().map(|text| text.parse().unwrap()).collect();
            Target { forced, ..H200 }
        };
        let of = |forced: &str, op| target(&[forced]).of(op);
        assert_eq!(target(&["norm_glu=gemm"]).of("logits").kernel, None);
        assert_eq!(on_matrices(&H200), [Kernel::Gemm, Kernel::LinearBatch, Kernel::GemmMma]);
        for (forced, first) in [("logits=linear_batch", Kernel::LinearBatch), ("logits=gemm_mma", Kernel::GemmMma)] {
            assert_eq!(on_matrices(&of(forced, "logits"))[0], first);
        }
        let plain = of("norm_glu=linear", "norm_glu");
        assert!(on_matrices(&plain).is_empty());
        let features = &[14_336];
        let shape = ProjectionsShape { format: DeviceFormat::F16, rows: 1, k: 4096, glu: true, features };
        assert_eq!(linear_stream::variant(&plain, None, StreamKind::Glu, true, shape), None);
        let shape = AttentionShape { rows: 1, heads: 32, kv_heads: 8, head_dim: 128, max_positions: 256 };
        let kernel = |forced| attention::variant(&of(forced, "attention"), KvFormat::F16, shape).kernel;
        assert_eq!(kernel("attention=attention"), "attention_f16");
        assert_eq!(kernel("attention=attention_f16"), "attention_f16_d128_wide");
        let kv = KvLayout { format: KvFormat::F16, block_len: 32, num_blocks: 8 };
        let tiles = attention_tiles::variant(&of("attention=attention_tiles", "attention"), &kv, 128);
        assert_eq!(tiles.map(|variant| variant.kernel), Some("attention_tiles_d128"));
        for forced in ["attention=attention", "attention=attention_f16"] {
            assert_eq!(attention_tiles::variant(&of(forced, "attention"), &kv, 128), None);
        }
        assert_eq!(H200.kernels_of("linear").len(), 5);
        let alike = Target { batch_invariant: true, ..H200 };
        assert_eq!(alike.kernels_of("linear"), [Kernel::Linear, Kernel::Gemm, Kernel::GemmMma]);
        let older = Target { matrix: Matrix::SimdGroup, bulk_copies: false, ..H200 };
        assert_eq!(older.kernels_of("norm_glu"), [Kernel::Linear, Kernel::LinearBatch, Kernel::GemmMma]);
    }
}
