//! The cache of keys and values: what a layer keeps of a token, in which format, in which blocks.

/// The heads of one attention layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// `num_key_value_heads`.
    pub kv_heads: usize,
    /// Features of a key or value head.
    pub head_dim: usize,
}

impl KvLayer {
    /// Elements of a token's key, and of its value: kv_heads · head_dim.
    pub fn width(self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Bytes that a token takes in it, key and value together.
    pub fn bytes(self, format: KvFormat) -> usize {
        2 * self.width() * format.bytes()
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
        let layer = KvLayer { kv_heads: 3, head_dim: 4 };
        assert_eq!(layer.width(), 12);
        assert_eq!([KvFormat::F32, KvFormat::F16].map(|format| layer.bytes(format)), [96, 48]);
    }
}
