//! The paged cache of the reference.

use crate::{CacheLayer, KvLayout};

/// The paged cache of all layers. A slot that was never written holds NaN, so that reading one shows.
#[derive(Clone, Debug)]
pub struct KvCache {
    layout: KvLayout,
    layers: Vec<LayerCache>,
}

/// What one layer keeps: (slots, numbers of keys), and (slots, numbers of values beside them).
#[derive(Clone, Debug)]
struct LayerCache {
    layer: CacheLayer,
    k: Vec<f64>,
    v: Vec<f64>,
}

impl KvCache {
    /// An empty cache.
    pub fn new(layers: &[CacheLayer], layout: KvLayout) -> Self {
        let slots = layout.num_blocks * layout.block_len;
        let empty = |&layer: &CacheLayer| {
            let [k, v] = layer.widths().map(|width| vec![f64::NAN; slots * width]);
            LayerCache { layer, k, v }
        };
        Self { layout, layers: layers.iter().map(empty).collect() }
    }

    /// Its blocks.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// What `layer` keeps of a token.
    pub fn layer(&self, layer: usize) -> CacheLayer {
        self.layers[layer].layer
    }

    /// The key head of `layer` at `slot`: as many numbers as its keys have features. In a latent layer, the whole row.
    pub fn k(&self, layer: usize, slot: usize, kv_head: usize) -> &[f64] {
        let LayerCache { layer, k, .. } = &self.layers[layer];
        let start = (slot * layer.kv_heads() + kv_head) * layer.key_dim();
        &k[start..start + layer.key_dim()]
    }

    /// The value head of `layer` at `slot`: as many numbers as its values have features. In a latent layer, the first
    /// of the row.
    pub fn v(&self, layer: usize, slot: usize, kv_head: usize) -> &[f64] {
        let LayerCache { layer: shape, v, .. } = &self.layers[layer];
        if shape.latent().is_some() {
            return &self.k(layer, slot, kv_head)[..shape.value_dim()];
        }
        let start = (slot * shape.kv_heads() + kv_head) * shape.value_dim();
        &v[start..start + shape.value_dim()]
    }

    /// All keys of `layer` at `slot`, and the values beside them ([`CacheLayer::widths`]).
    pub(crate) fn slot_mut(&mut self, layer: usize, slot: usize) -> (&mut [f64], &mut [f64]) {
        let LayerCache { layer, k, v } = &mut self.layers[layer];
        let [k_place, v_place] = layer.widths().map(|width| slot * width..(slot + 1) * width);
        (&mut k[k_place], &mut v[v_place])
    }

    /// Copies block `from` over block `to`, in every layer.
    pub fn copy_block(&mut self, from: usize, to: usize) {
        for LayerCache { layer, k, v } in &mut self.layers {
            for (cache, width) in [k, v].into_iter().zip(layer.widths()) {
                let block = self.layout.block_len * width;
                cache.copy_within(from * block..(from + 1) * block, to * block);
            }
        }
    }
}
