use half::f16;

use super::RowPlace;
use crate::{KvFormat, KvLayer, KvLayout};

/// The paged cache of all layers. A slot that was never written holds NaN, so that reading one shows.
#[derive(Clone, Debug)]
pub struct KvCache {
    layout: KvLayout,
    layers: Vec<LayerCache>,
}

/// Keys and values of one layer, each (slots, kv_heads · head_dim).
#[derive(Clone, Debug)]
struct LayerCache {
    layer: KvLayer,
    k: Vec<f64>,
    v: Vec<f64>,
}

impl KvCache {
    /// An empty cache.
    pub fn new(layers: &[KvLayer], layout: KvLayout) -> Self {
        let slots = layout.num_blocks * layout.block_len;
        let empty = |layer: &KvLayer| vec![f64::NAN; slots * layer.kv_heads * layer.head_dim];
        let layers = layers.iter().map(|&layer| LayerCache { layer, k: empty(&layer), v: empty(&layer) }).collect();
        Self { layout, layers }
    }

    /// Its blocks.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The heads of `layer`.
    pub fn layer(&self, layer: usize) -> KvLayer {
        self.layers[layer].layer
    }

    /// The key head of `layer` at `slot`: (head_dim,).
    pub fn k(&self, layer: usize, slot: usize, kv_head: usize) -> &[f64] {
        self.layers[layer].head(&self.layers[layer].k, slot, kv_head)
    }

    /// The value head of `layer` at `slot`: (head_dim,).
    pub fn v(&self, layer: usize, slot: usize, kv_head: usize) -> &[f64] {
        self.layers[layer].head(&self.layers[layer].v, slot, kv_head)
    }

    /// Copies block `from` over block `to`, in every layer.
    pub fn copy_block(&mut self, from: usize, to: usize) {
        for LayerCache { layer, k, v } in &mut self.layers {
            let block = self.layout.block_len * layer.kv_heads * layer.head_dim;
            k.copy_within(from * block..(from + 1) * block, to * block);
            v.copy_within(from * block..(from + 1) * block, to * block);
        }
    }
}

impl LayerCache {
    fn head<'a>(&self, cache: &'a [f64], slot: usize, kv_head: usize) -> &'a [f64] {
        let start = (slot * self.layer.kv_heads + kv_head) * self.layer.head_dim;
        &cache[start..start + self.layer.head_dim]
    }
}

/// Stores each row's key and value, (tokens, kv_heads · head_dim), in the row's own slot, rounded to the cache's format
/// where that is narrower than f32.
pub fn kv_write(cache: &mut KvCache, layer: usize, k: &[f64], v: &[f64], rows: &[RowPlace]) {
    let round = |x: &f64| match cache.layout.format {
        KvFormat::F32 => *x,
        KvFormat::F16 => f16::from_f64(*x).to_f64(),
    };
    let LayerCache { layer, k: k_cache, v: v_cache } = &mut cache.layers[layer];
    let width = layer.kv_heads * layer.head_dim;
    for ((k, v), row) in k.chunks_exact(width).zip(v.chunks_exact(width)).zip(rows) {
        let slot = row.slot() * width..(row.slot() + 1) * width;
        k_cache[slot.clone()].iter_mut().zip(k).for_each(|(out, x)| *out = round(x));
        v_cache[slot].iter_mut().zip(v).for_each(|(out, x)| *out = round(x));
    }
}
