//! The cache of attention: what a layer keeps of a token, in which format, in which blocks.

/// What one layer of attention keeps of each token. The one place where its numbers are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLayer {
    /// A key and a value of each head.
    Heads(KvLayer),
    /// One row that all heads share (latent attention, MLA).
    Latent(LatentLayer),
}

/// The heads of one attention layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// `num_key_value_heads`.
    pub kv_heads: usize,
    /// Features of a key or value head.
    pub head_dim: usize,
}

/// A row of a latent layer: the latent numbers, then the turned ones. The whole row is the key of every head, and the
/// latent numbers are its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentLayer {
    /// `kv_lora_rank`.
    pub dim: usize,
    /// `qk_rope_head_dim`: features that the token's position has turned.
    pub rope: usize,
}

impl CacheLayer {
    /// The heads, where each has keys and values of its own.
    pub fn heads(self) -> Option<KvLayer> {
        match self {
            Self::Heads(heads) => Some(heads),
            Self::Latent(_) => None,
        }
    }

    /// The row, where all heads share one.
    pub fn latent(self) -> Option<LatentLayer> {
        match self {
            Self::Heads(_) => None,
            Self::Latent(latent) => Some(latent),
        }
    }

    /// Heads that have keys and values.
    pub fn kv_heads(self) -> usize {
        self.heads().map_or(1, |heads| heads.kv_heads)
    }

    /// Features of a head's key.
    pub fn key_dim(self) -> usize {
        match self {
            Self::Heads(heads) => heads.head_dim,
            Self::Latent(latent) => latent.width(),
        }
    }

    /// Features of a head's value.
    pub fn value_dim(self) -> usize {
        match self {
            Self::Heads(heads) => heads.head_dim,
            Self::Latent(latent) => latent.dim,
        }
    }

    /// Numbers of a token's keys, and those beside them that its values take: none in a latent layer, whose values are
    /// a part of its keys.
    pub fn widths(self) -> [usize; 2] {
        match self {
            Self::Heads(heads) => [heads.width(); 2],
            Self::Latent(latent) => [latent.width(), 0],
        }
    }

    /// Bytes that a token takes in it.
    pub fn bytes(self, format: KvFormat) -> usize {
        self.widths().iter().sum::<usize>() * format.bytes()
    }
}

impl KvLayer {
    /// Elements of a token's key, and of its value: kv_heads · head_dim.
    pub fn width(self) -> usize {
        self.kv_heads * self.head_dim
    }
}

impl LatentLayer {
    /// Elements of a row.
    pub fn width(self) -> usize {
        self.dim + self.rope
    }
}

impl From<KvLayer> for CacheLayer {
    fn from(heads: KvLayer) -> Self {
        Self::Heads(heads)
    }
}

impl From<LatentLayer> for CacheLayer {
    fn from(latent: LatentLayer) -> Self {
        Self::Latent(latent)
    }
}

/// How keys and values are stored in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// Exact.
    F32,
    /// IEEE 754 binary16, rounded to nearest even on write.
    F16,
}

impl KvFormat {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

/// The paged cache that a backend holds: `num_blocks` blocks, each with room for `block_len` tokens of every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Element format.
    pub format: KvFormat,
    /// Tokens in a block.
    pub block_len: usize,
    /// Blocks in the pool.
    pub num_blocks: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_takes_a_key_and_a_value_in_each_layer() {
        let layer = CacheLayer::from(KvLayer { kv_heads: 3, head_dim: 4 });
        assert_eq!(layer.widths(), [12; 2]);
        assert_eq!([KvFormat::F32, KvFormat::F16].map(|format| layer.bytes(format)), [96, 48]);
    }

    /// GLM-4.7-Flash: 576 numbers, whatever the number of heads.
    #[test]
    fn a_token_takes_one_row_in_a_latent_layer() {
        let layer = CacheLayer::from(LatentLayer { dim: 512, rope: 64 });
        assert_eq!((layer.kv_heads(), layer.key_dim(), layer.value_dim()), (1, 576, 512));
        assert_eq!([KvFormat::F32, KvFormat::F16].map(|format| layer.bytes(format)), [2304, 1152]);
    }
}
