//! Blocks of every weight format, and bytes that are a trace of requests.

use tensor::WeightFormat;

use crate::save;

/// Pseudorandom bytes (splitmix64), the same ever again.
fn bytes(mut state: u64, len: usize) -> Vec<u8> {
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as u8
    };
    (0..len).map(|_| next()).collect()
}

pub(crate) fn save_all() {
    for (choice, format) in (0u8..).zip(WeightFormat::ALL) {
        // Two blocks of any bytes, and one of zeros.
        let mut seed = vec![choice];
        seed.extend(bytes(u64::from(choice), 2 * format.block_bytes()));
        seed.resize(seed.len() + format.block_bytes(), 0);
        save("quant_blocks", format.name(), &seed);
    }
    for world in 0..16 {
        save("traces", &format!("world_{world}"), &bytes(1000 + world, 60 + 40 * world as usize));
    }
}
