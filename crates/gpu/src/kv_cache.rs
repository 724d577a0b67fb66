//! The paged cache on the device: one allocation; of each layer the keys, then the values, each
//! (blocks, kv_heads, block_len, head_dim).

use plan::{KvLayer, KvLayout};

use crate::driver::{Driver, DriverError};
use crate::launch::Region;

/// Where the keys of a layer begin, and its values: bulk copies and 16-byte loads are happy with it.
const ALIGN: u64 = 256;

/// One layer's part of the cache.
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
    pub(crate) fn bytes(layers: &[KvLayer], layout: &KvLayout) -> Option<u64> {
        layers.iter().try_fold(0u64, |bytes, layer| {
            bytes.checked_add(plane_bytes(layer, layout)?.checked_next_multiple_of(ALIGN)?.checked_mul(2)?)
        })
    }

    /// An empty cache, whose size [`KvCache::bytes`] said.
    pub(crate) fn allocate(
        driver: &mut dyn Driver,
        layers: &[KvLayer],
        layout: KvLayout,
        bytes: u64,
    ) -> Result<Self, DriverError> {
        Ok(Self::at(Region { address: driver.allocate(bytes)?, bytes }, layers, layout))
    }

    /// The cache that lies in `all`.
    pub(crate) fn at(all: Region, layers: &[KvLayer], layout: KvLayout) -> Self {
        let mut start = 0;
        let layers = layers
            .iter()
            .map(|&layer| {
                let bytes = plane_bytes(&layer, &layout).expect("`bytes` added them up");
                let keys = all.part(start, bytes);
                let values = all.part(start + bytes.next_multiple_of(ALIGN), bytes);
                start += 2 * bytes.next_multiple_of(ALIGN);
                LayerCache { layer, keys, values }
            })
            .collect();
        Self { layout, layers }
    }
}

impl LayerCache {
    /// Bytes of one block of keys, or of values.
    pub(crate) fn block_bytes(&self, layout: &KvLayout) -> usize {
        self.layer.kv_heads * self.layer.head_dim * layout.block_len * layout.format.bytes()
    }
}

/// Bytes of the keys, or of the values, of one layer.
fn plane_bytes(layer: &KvLayer, layout: &KvLayout) -> Option<u64> {
    let elements = layer.kv_heads.checked_mul(layer.head_dim)?.checked_mul(layout.block_len)?;
    let elements = elements.checked_mul(layout.num_blocks)?.checked_mul(layout.format.bytes())?;
    u64::try_from(elements).ok()
}
