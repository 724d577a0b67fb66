//! The paged cache on the device: one allocation; of each layer the keys, then the values, each (blocks, kv_heads,
//! block_len, head_dim). Of a latent layer there are rows alone, (blocks, block_len, numbers of a row), in the place of
//! keys.

use plan::{CacheLayer, KvLayer, KvLayout};

use crate::driver::{Driver, DriverError};
use crate::launch::Region;

/// Where the keys of a layer begin, and its values: bulk copies and 16-byte loads are happy with it.
const ALIGN: u64 = 256;

/// One layer's part of the cache. A latent layer has one head, whose keys are the rows, and no values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerCache {
    pub(crate) layer: KvLayer,
    pub(crate) keys: Region,
    pub(crate) values: Region,
}

/// The cache of all layers.
pub(crate) struct KvCache {
    pub(crate) layout: KvLayout,
    pub(crate) layers: Vec<LayerCache>,
}

impl KvCache {
    /// The bytes that the cache takes; `None` where that is beyond all bounds.
    pub(crate) fn bytes(layers: &[CacheLayer], layout: &KvLayout) -> Option<u64> {
        let mut planes = layers.iter().flat_map(|layer| layer.widths());
        planes.try_fold(0u64, |bytes, width| {
            bytes.checked_add(plane_bytes(width, layout)?.checked_next_multiple_of(ALIGN)?)
        })
    }

    /// An empty cache, whose size [`KvCache::bytes`] said.
    pub(crate) fn allocate(
        driver: &mut dyn Driver,
        layers: &[CacheLayer],
        layout: KvLayout,
        bytes: u64,
    ) -> Result<Self, DriverError> {
        Ok(Self::at(Region { address: driver.allocate(bytes)?, bytes }, layers, layout))
    }

    /// The cache that lies in `all`.
    pub(crate) fn at(all: Region, layers: &[CacheLayer], layout: KvLayout) -> Self {
        let mut start = 0;
        let layers = layers
            .iter()
            .map(|&layer| {
                let [keys, values] = layer.widths().map(|width| {
                    let bytes = plane_bytes(width, &layout).expect("`bytes` added them up");
                    let plane = all.part(start, bytes);
                    start += bytes.next_multiple_of(ALIGN);
                    plane
                });
                let layer = KvLayer { kv_heads: layer.kv_heads(), head_dim: layer.key_dim() };
                LayerCache { layer, keys, values }
            })
            .collect();
        Self { layout, layers }
    }
}

impl KvCache {
    /// Where the parts of a block lie: of each layer that of the keys, then that of the values.
    pub(crate) fn block(&self, block: u32) -> impl Iterator<Item = Region> {
        let planes = self.layers.iter().flat_map(|layer| [layer.keys, layer.values].map(|plane| (layer, plane)));
        planes.filter(|(_, plane)| plane.bytes > 0).map(move |(layer, plane)| {
            let bytes = layer.block_bytes(&self.layout) as u64;
            plane.part(u64::from(block) * bytes, bytes)
        })
    }
}

impl LayerCache {
    /// Bytes of one block of keys, or of values.
    pub(crate) fn block_bytes(&self, layout: &KvLayout) -> usize {
        self.layer.kv_heads * self.layer.head_dim * layout.block_len * layout.format.bytes()
    }
}

/// Bytes of the keys, or of the values, of one layer that keeps so many of their numbers of a token.
fn plane_bytes(width: usize, layout: &KvLayout) -> Option<u64> {
    let elements = width.checked_mul(layout.block_len)?;
    let elements = elements.checked_mul(layout.num_blocks)?.checked_mul(layout.format.bytes())?;
    u64::try_from(elements).ok()
}
