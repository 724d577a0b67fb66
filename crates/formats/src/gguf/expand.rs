//! Expanding weights whose format has no kernels of its own.

use std::num::NonZero;
use std::thread;

use bytes::Bytes;
use half::f16;
use tensor::quant::{PackedFormat, q8_0};

/// Blocks of a tensor that are worth a thread.
const BLOCKS_MIN: usize = 1 << 14;

/// Blocks as bytes that others may share.
struct Blocks(Vec<q8_0::Block>);

impl AsRef<[u8]> for Blocks {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// The same weights as blocks of Q8_0; `None` where they are more than memory can address.
pub(super) fn to_q8_0(format: PackedFormat, packed: &[u8]) -> Option<Bytes> {
    let (block_bytes, each) = (format.block_bytes(), format.block_len() / q8_0::BLOCK_LEN);
    let blocks = packed.len() / block_bytes;
    let empty = q8_0::Block { scale: f16::ZERO, codes: [0; q8_0::BLOCK_LEN] };
    let mut expanded = Vec::new();
    expanded.try_reserve_exact(blocks.checked_mul(each)?).ok()?;
    expanded.resize(blocks * each, empty);
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(blocks.div_ceil(BLOCKS_MIN)).max(1);
    let share = blocks.div_ceil(threads).max(1);
    thread::scope(|scope| {
        for (packed, expanded) in packed.chunks(share * block_bytes).zip(expanded.chunks_mut(share * each)) {
            scope.spawn(move || format.to_q8_0(packed, expanded));
        }
    });
    Some(Bytes::from_owner(Blocks(expanded)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_change_nothing() {
        let format = PackedFormat::Q4_0;
        let packed: Vec<u8> = (0..(2 * BLOCKS_MIN + 7) * format.block_bytes()).map(|i| (i * 7 % 61) as u8).collect();
        let mut expected = vec![q8_0::pack(&[0.0; 32]); 2 * BLOCKS_MIN + 7];
        format.to_q8_0(&packed, &mut expected);
        assert!(to_q8_0(format, &packed).unwrap() == bytemuck::cast_slice::<_, u8>(&expected));
        assert!(to_q8_0(format, &[]).unwrap().is_empty());
    }
}
