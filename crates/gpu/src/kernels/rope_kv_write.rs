//! `kernels/rope_kv_write.h`: heads are turned by their positions, keys and values go to the cache, and blocks of it
//! are copied.

use plan::{KvFormat, Norm, Rope};

use crate::kv_cache::KvCache;
use crate::launch::{Access, GROUP_SIMDS, GROUP_THREADS, Launch};
use crate::params::{BlockCopyParams, KvWriteParams, RopeKvWriteParams, RopeParams};
use crate::site::{DeviceRows, Site, index};

/// Turns each head of `x`.
pub(crate) fn rope(site: &Site<'_>, x: DeviceRows, rope: usize, out: DeviceRows) -> Launch {
    let Rope { head_dim, dims, .. } = site.loaded.plan.ropes[rope];
    let heads = x.width / head_dim;
    let angles = site.loaded.angles[rope];
    let params = RopeParams {
        x: x.region.address,
        angles: angles.address,
        rows: site.live(x.rows).address,
        positions: site.step.positions.address,
        y: out.region.address,
        heads: index(heads),
        head_dim: index(head_dim),
        x_stride: index(x.stride),
        y_stride: index(out.stride),
        turned: index(dims / 2),
        padding: 0,
    };
    Launch::new("rope_f32", [heads.div_ceil(GROUP_SIMDS), site.num_rows(x.rows), 1], &params)
        .with(Access::Read, x.region)
        .with(Access::Constant, angles)
        .with(Access::Constant, site.live(x.rows))
        .with(Access::Constant, site.step.positions)
        .with(Access::Write, out.region)
}

/// Writes keys and values to the cache of `layer`.
pub(crate) fn kv_write(site: &Site<'_>, layer: usize, k: DeviceRows, v: DeviceRows) -> Launch {
    let cache = &site.loaded.cache.layers[layer];
    let params = KvWriteParams {
        k: k.region.address,
        v: v.region.address,
        rows: site.live(k.rows).address,
        slots: site.step.slots.address,
        keys: cache.keys.address,
        values: cache.values.address,
        kv_heads: index(cache.layer.kv_heads),
        head_dim: index(cache.layer.head_dim),
        block_len: index(site.loaded.cache.layout.block_len),
        kv_stride: index(k.stride),
    };
    let kernel = match site.loaded.cache.layout.format {
        KvFormat::F32 => "kv_write_f32",
        KvFormat::F16 => "kv_write_f16",
    };
    Launch::new(kernel, [k.width.div_ceil(GROUP_THREADS as usize), site.num_rows(k.rows), 1], &params)
        .with(Access::Read, k.region)
        .with(Access::Read, v.region)
        .with(Access::Constant, site.live(k.rows))
        .with(Access::Constant, site.step.slots)
        .with(Access::Update, cache.keys)
        .with(Access::Update, cache.values)
}

/// Normalises heads where there are norms, turns queries and keys, and writes keys and values to the cache of `layer`.
pub(crate) fn rope_kv_write(
    site: &Site<'_>,
    [q, k, v, q_out]: [DeviceRows; 4],
    norms: [Option<Norm>; 2],
    rope: usize,
    layer: usize,
) -> Launch {
    let cache = &site.loaded.cache.layers[layer];
    let heads = q.width / cache.layer.head_dim;
    let gains = norms.map(|norm| site.vector(norm.map(|norm| norm.weight)));
    let [q_eps, k_eps] = norms.map(|norm| norm.map_or(0.0, |norm| norm.eps));
    let angles = site.loaded.angles[rope];
    let params = RopeKvWriteParams {
        q: q.region.address,
        k: k.region.address,
        v: v.region.address,
        q_gain: gains[0].address,
        k_gain: gains[1].address,
        angles: angles.address,
        rows: site.live(q.rows).address,
        positions: site.step.positions.address,
        slots: site.step.slots.address,
        q_out: q_out.region.address,
        keys: cache.keys.address,
        values: cache.values.address,
        heads: index(heads),
        kv_heads: index(cache.layer.kv_heads),
        head_dim: index(cache.layer.head_dim),
        block_len: index(site.loaded.cache.layout.block_len),
        q_stride: index(q.stride),
        kv_stride: index(k.stride),
        q_out_stride: index(q_out.stride),
        turned: index(site.loaded.plan.ropes[rope].dims / 2),
        q_eps,
        k_eps,
    };
    let kernel = match site.loaded.cache.layout.format {
        KvFormat::F32 => "rope_kv_write_f32",
        KvFormat::F16 => "rope_kv_write_f16",
    };
    let groups = (heads + 2 * cache.layer.kv_heads).div_ceil(GROUP_SIMDS);
    Launch::new(kernel, [groups, site.num_rows(q.rows), 1], &params)
        .with(Access::Read, q.region)
        .with(Access::Read, k.region)
        .with(Access::Read, v.region)
        .with(Access::Constant, gains[0])
        .with(Access::Constant, gains[1])
        .with(Access::Constant, angles)
        .with(Access::Constant, site.live(q.rows))
        .with(Access::Constant, site.step.positions)
        .with(Access::Constant, site.step.slots)
        .with(Access::Write, q_out.region)
        .with(Access::Update, cache.keys)
        .with(Access::Update, cache.values)
}

/// The launch that copies one block of one layer over another.
pub(crate) fn block_copy(cache: &KvCache, layer: usize, from: u32, to: u32) -> Launch {
    let layer = &cache.layers[layer];
    let halves = layer.block_bytes(&cache.layout) / 2;
    let params = BlockCopyParams {
        keys: layer.keys.address,
        values: layer.values.address,
        from: index(from as usize),
        to: index(to as usize),
        block_halves: index(halves),
        padding: 0,
    };
    // A latent layer has rows alone.
    let planes = if layer.values.bytes > 0 { 2 } else { 1 };
    Launch::new("block_copy", [halves.div_ceil(GROUP_THREADS as usize), planes, 1], &params)
        .with(Access::Update, layer.keys)
        .with(Access::Update, layer.values)
}
