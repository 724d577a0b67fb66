//! `kernels/sm90/expanded_attention.h`: latent attention of many rows of a sequence to keys and values of every head, which
//! are made of the latent cache for the step.

use std::mem::offset_of;

use plan::{Attention, Experts, KvFormat, MlaAttention};

use crate::formats::DeviceFormat;
use crate::kernels::attention;
use crate::kernels::experts::{stack_params, with_stack};
use crate::kernels::mla_attention::{DIM_MAX, ROW_MAX};
use crate::kernels::sm90::prompt_attention;
use crate::launch::{Access, GROUP_THREADS, Launch, Region};
use crate::params::{AttentionParams, ExpandLatentParams, ExpandedParams, HeadWeightsParams, PromptParams};
use crate::site::{DeviceRows, LoadedPlan, Site, index};
use crate::step_input::Tiles;
use crate::target::{Matrix, Target};
use crate::weights::DeviceExperts;

/// Rows of a sequence from which keys and values are made for them.
const ROWS_MIN: usize = 64;

/// Bytes of keys and values at most: of longer texts, rows attend to the latent cache. GLM-4.7-Flash has 104,000 positions in
/// them.
const BYTES_MAX: u64 = 2 << 30;

/// Numbers of a row of the cache that positions turn.
const ROPE: usize = ROW_MAX - DIM_MAX;

/// Barriers; rows of 128 positions; three stages of 64 numbers of up to 256 features.
const EXPAND_GROUP_BYTES: u32 = 1024 + (128 * DIM_MAX as u32 * 2) + 3 * (256 * 128);
const EXPAND_THREADS: u32 = 384;

/// Rows of a copied tile of matrices.
const MATRIX_TILE: usize = 64;

/// Kernels for heads of so many features: of keys, those that no position turns, and of values.
struct HeadsKernel {
    nope: usize,
    value: usize,
    expand: &'static str,
    attention: &'static str,
    /// Positions of a stage of attention.
    positions: usize,
}

const KERNELS: [HeadsKernel; 2] = [
    HeadsKernel {
        nope: 192,
        value: 256,
        expand: "expand_latent_d192_v256",
        attention: "expanded_attention_d192_v256",
        positions: 64,
    },
    HeadsKernel {
        nope: 128,
        value: 128,
        expand: "expand_latent_d128_v128",
        attention: "expanded_attention_d128_v128",
        positions: 128,
    },
];

/// The matrices of keys and of values of a layer's heads.
#[derive(Clone, Copy)]
pub(crate) struct HeadMatrices<'a> {
    pub(crate) keys: &'a Experts,
    pub(crate) values: &'a Experts,
}

/// The kernels for these heads, if there are any.
fn kernels(loaded: &LoadedPlan<'_>, of: HeadMatrices<'_>) -> Option<&'static HeadsKernel> {
    let heads = [of.keys, of.values];
    let has_biases = heads.iter().any(|heads| heads.bias.is_some());
    // F32, which has no gemm, has more than F16 can hold.
    let is_wide = |format: DeviceFormat| format.facts().gemm.is_none();
    let is_wide = heads.iter().filter_map(|heads| loaded.weights.stack_format(heads)).any(is_wide);
    let [keys, values] = heads.map(|heads| &loaded.plan.weight(heads.first).shape[..]);
    let &[keys_to, nope] = keys else { return None };
    let &[value, values_from] = values else { return None };
    // Matrices of keys bring queries into the latent space, those of values results out of it.
    let are_latent = [keys_to, values_from] == [DIM_MAX; 2];
    let of_widths = |kernel: &&HeadsKernel| [nope, value] == [kernel.nope, kernel.value];
    KERNELS.iter().find(of_widths).filter(|_| are_latent && !has_biases && !is_wide)
}

/// Bytes of what a launch works with: of the matrices of heads, of a block's keys, and of its values.
struct Sizes {
    matrices: u64,
    keys: u64,
    values: u64,
}

impl Sizes {
    fn new(kernel: &HeadsKernel, heads: usize, block_len: usize) -> Self {
        let bytes = |numbers: usize| (numbers * KvFormat::F16.bytes()) as u64;
        Self {
            matrices: bytes(heads * (kernel.nope + kernel.value) * DIM_MAX),
            keys: bytes(heads * block_len * (kernel.nope + ROPE)),
            values: bytes(heads * block_len * kernel.value),
        }
    }
}

/// How rows of all of these layers are taken where a step has up to `sequences` sequences, and bytes that this needs; `None`
/// where there is no kernel for one of them.
pub(crate) fn tiles<'a>(
    loaded: &LoadedPlan<'_>,
    layers: impl IntoIterator<Item = HeadMatrices<'a>>,
    sequences: usize,
) -> Option<(Tiles, u64)> {
    let Target { matrix, batch_invariant, kernel: forced, .. } = loaded.target.of("mla_attention");
    let (format, block_len) = (loaded.cache.layout.format, loaded.cache.layout.block_len);
    let may_be = matrix == Matrix::FourSimdGroups && !batch_invariant && forced.is_none() && format == KvFormat::F16;
    if !may_be || prompt_attention::copied_positions(block_len) < prompt_attention::COPIED_POSITIONS_MIN {
        return None;
    }
    let sizes = |of: HeadMatrices<'_>| {
        let sizes = Sizes::new(kernels(loaded, of)?, of.keys.count, block_len);
        (EXPAND_GROUP_BYTES <= loaded.target.group_bytes_max).then_some(sizes)
    };
    let sizes: Vec<_> = layers.into_iter().map(sizes).collect::<Option<_>>()?;
    let most = |bytes: fn(&Sizes) -> u64| sizes.iter().map(bytes).max().filter(|&bytes| bytes > 0);
    let (block, matrices) = (most(|sizes| sizes.keys + sizes.values)?, most(|sizes| sizes.matrices)?);
    let blocks = (sequences * loaded.max_positions().div_ceil(block_len)).min((BYTES_MAX / block) as usize);
    Some((Tiles::Expanded { rows_min: ROWS_MIN, blocks }, matrices + blocks as u64 * block))
}

/// Latent attention of the rows in tiles of a step: their queries `q_nope`, before the matrices of keys, and `q_rope`; `out`
/// is what the matrices of values make.
pub(crate) fn launches(
    site: &Site<'_>,
    [q_nope, q_rope]: [DeviceRows; 2],
    of: &MlaAttention,
    matrices: HeadMatrices<'_>,
    out: DeviceRows,
) -> Vec<Launch> {
    let &MlaAttention { layer, heads, scale } = of;
    let kernel = kernels(site.loaded, matrices).expect("there are tiles where there is a kernel");
    let cache = site.loaded.cache.layers[layer].keys;
    let block_len = site.loaded.cache.layout.block_len;
    let Tiles::Expanded { blocks, .. } = site.layout.step.tiles else { unreachable!("tiles of another kind") };
    let sizes = Sizes::new(kernel, heads, block_len);
    let (at, bytes) = site.layout.expanded;
    let all = site.arena.part(at, bytes);
    let in_f16 = all.part(0, sizes.matrices);
    let keys = all.part(sizes.matrices, blocks as u64 * sizes.keys);
    let values = all.part(sizes.matrices + keys.bytes, blocks as u64 * sizes.values);
    let copied = prompt_attention::copied_positions(block_len);
    let features = kernel.nope + kernel.value;

    let of_stack = |heads: &Experts, turned: bool| {
        let stack = site.loaded.weights.stack(heads);
        head_weights(&stack, in_f16, features, if turned { 0 } else { kernel.nope }, turned)
    };
    let params = ExpandLatentParams {
        cache: cache.address,
        blocks: site.step.blocks.address,
        num_blocks: site.step.num_blocks_in_tiles.address,
        keys: keys.address,
        values: values.address,
        heads: index(heads),
        block_len: index(block_len),
        chunk: index(copied),
        groups: index(site.loaded.target.multiprocessors),
        ..ExpandLatentParams::default()
    };
    let expand = Launch {
        maps: vec![
            prompt_attention::rows_map(offset_of!(ExpandLatentParams, latents), cache, ROW_MAX, copied),
            prompt_attention::rows_map(offset_of!(ExpandLatentParams, weights), in_f16, DIM_MAX, MATRIX_TILE),
        ],
        ..Launch::new(kernel.expand, [site.loaded.target.multiprocessors, 1, 1], &params)
    };
    let expand = expand
        .with_groups_of(EXPAND_THREADS, EXPAND_GROUP_BYTES)
        .with(Access::Read, cache)
        .with(Access::Read, in_f16)
        .with(Access::Constant, site.step.blocks)
        .with(Access::Constant, site.step.num_blocks_in_tiles)
        .with(Access::Write, keys)
        .with(Access::Write, values);

    let as_attention = Attention { layer, heads, scale, window: None, sinks: None };
    let of = AttentionParams {
        keys: keys.address,
        values: values.address,
        num_items: site.step.num_tiles.address,
        items: site.step.tiles.address,
        kv_heads: index(heads),
        head_dim: index(kernel.nope + ROPE),
        ..attention::params(site, q_nope, &as_attention, out)
    };
    let params = ExpandedParams {
        prompt: PromptParams { of, chunk: index(copied), align: index(copied), ..PromptParams::default() },
        q_rope: q_rope.region.address,
        q_rope_stride: index(q_rope.stride),
        ..ExpandedParams::default()
    };
    let prompt = offset_of!(ExpandedParams, prompt);
    let group_bytes = prompt_attention::group_bytes(kernel.nope + ROPE, kernel.value, kernel.positions);
    let attend = Launch {
        maps: vec![
            prompt_attention::rows_map(prompt + offset_of!(PromptParams, keys), keys, kernel.nope + ROPE, copied),
            prompt_attention::rows_map(prompt + offset_of!(PromptParams, values), values, kernel.value, copied),
        ],
        ..Launch::new(kernel.attention, [heads, site.layout.step.attention.tiles, 1], &params)
    };
    let operands = [q_nope.region, q_rope.region, keys, values].map(|region| (Access::Read, region));
    let steps = [site.step.positions, site.step.table_starts, site.step.num_tiles, site.step.tiles];
    let steps = steps.map(|region| (Access::Constant, region));
    // Rows that are not in tiles keep what is there.
    let attend = attend.with_groups_of(prompt_attention::THREADS, group_bytes as u32).with(Access::Update, out.region);
    let all = operands.into_iter().chain(steps);
    let attend = all.fold(attend, |launch, (access, region)| launch.with(access, region));
    vec![of_stack(matrices.keys, true), of_stack(matrices.values, false), expand, attend]
}

/// Writes the matrices of a stack in F16, as features from `first` on of each head. `turned`: features are numbers of a row.
fn head_weights(stack: &DeviceExperts, to: Region, features: usize, first: usize, turned: bool) -> Launch {
    let of_stack = stack_params(stack);
    let (n, k, format) = (stack.first.rows, stack.first.row_len, stack.first.format);
    let params = HeadWeightsParams {
        weight: of_stack.weight,
        scales: of_stack.scales,
        matrix_scales: of_stack.matrix_scales,
        y: to.address,
        n: index(n),
        k: index(k),
        stride: of_stack.stride,
        features: index(features),
        first: index(first),
        dim: index(DIM_MAX),
    };
    let kernel = match turned {
        true => named!(format, "head_weights_turned_", ""),
        false => named!(format, "head_weights_", ""),
    };
    let items = n * k.div_ceil(format.chunk_len());
    let launch = Launch::new(kernel, [items.div_ceil(GROUP_THREADS as usize), stack.count, 1], &params);
    with_stack(launch.with(Access::Update, to), stack)
}
