//! The paged cache of the reference.

use crate::{KvLayer, KvLayout};

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
        let empty = |layer: &KvLayer| vec![f64::NAN; slots * layer.width()];
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

    /// The key and the value of `layer` at `slot`, each (kv_heads · head_dim,).
    pub(crate) fn slot_mut(&mut self, layer: usize, slot: usize) -> (&mut [f64], &mut [f64]) {
        let LayerCache { layer, k, v } = &mut self.layers[layer];
        let place = slot * layer.width()..(slot + 1) * layer.width();
        (&mut k[place.clone()], &mut v[place])
    }

    /// Copies block `from` over block `to`, in every layer.
    pub fn copy_block(&mut self, from: usize, to: usize) {
        for LayerCache { layer, k, v } in &mut self.layers {
            let block = self.layout.block_len * layer.width();
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
