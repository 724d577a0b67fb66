//! Tiles (AMX): sixteen rows of 64 bytes in a register, and products of two of them added to a third.
//!
//! The assembler writes what stable Rust has no intrinsics for. A tile holds data within one block of assembly only; between
//! blocks just their configuration stays, which compilers know nothing of, and which is given back at the end.

use std::arch::asm;

use half::bf16;

use super::{LANES, PairBlock, TILE_FEATURES, TILE_PAIR_ROWS};

/// The shapes of the eight tiles: what `ldtilecfg` reads.
#[repr(C, align(64))]
pub(crate) struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}
const _: () = assert!(size_of::<TileConfig>() == 64);

impl TileConfig {
    /// Tiles of so many rows, each of 64 bytes.
    pub(crate) const fn new(tile_rows: [u8; 8]) -> Self {
        let (mut row_bytes, mut rows, mut tile) = ([0; 16], [0; 16], 0);
        while tile < tile_rows.len() {
            (row_bytes[tile], rows[tile]) = (64, tile_rows[tile]);
            tile += 1;
        }
        Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
    }
}

/// Tiles of x in a piece: two rows of them are 32 KiB, which stay in the first-level cache while the panels pass.
const PIECE_BLOCKS: usize = 16;

/// Asks for what lies two blocks on, while weights pass once on their way from memory.
macro_rules! prefetch_ahead {
    () => {
        concat!(
            "prefetcht0 [{w} + 2048]\n",
            "prefetcht0 [{w} + 2112]\n",
            "prefetcht0 [{w} + 2176]\n",
            "prefetcht0 [{w} + 2240]\n",
            "prefetcht0 [{w} + 2304]\n",
            "prefetcht0 [{w} + 2368]\n",
            "prefetcht0 [{w} + 2432]\n",
            "prefetcht0 [{w} + 2496]\n",
            "prefetcht0 [{w} + 2560]\n",
            "prefetcht0 [{w} + 2624]\n",
            "prefetcht0 [{w} + 2688]\n",
            "prefetcht0 [{w} + 2752]\n",
            "prefetcht0 [{w} + 2816]\n",
            "prefetcht0 [{w} + 2880]\n",
            "prefetcht0 [{w} + 2944]\n",
            "prefetcht0 [{w} + 3008]",
        )
    };
}

/// [`super::Simd::tile_products`] by `tdpbf16ps`, whose order that is.
///
/// Tiles 0 and 1 are sums of the first sixteen rows with two panels, 2 and 3 of the other rows; 4 and 5 are those rows of x,
/// 6 and 7 the panels. Four products for four loads: the loads of one hide behind the products of another.
///
/// # Safety
///
/// The CPU has AMX with bfloat16, and the system lets the process use it.
pub(super) unsafe fn tile_products(x: &[bf16], blocks: usize, panels: &[PairBlock], sums: &mut [f32]) {
    let features = blocks * TILE_FEATURES;
    let (rows, num_panels) = (x.len() / features, panels.len() / blocks);
    let columns = num_panels * LANES;
    assert!((1..=TILE_PAIR_ROWS).contains(&rows) && x.len() == rows * features, "{} of {features}", x.len());
    assert!(panels.len() == num_panels * blocks && sums.len() == rows * columns, "{} of {blocks}", panels.len());
    let upper = rows.min(LANES);
    let lower = rows - upper;
    // A tile that is not used needs a valid shape.
    let (u, l) = (upper as u8, lower.max(1) as u8);
    let config = TileConfig::new([u, u, l, l, u, l, 16, 16]);
    // SAFETY: 64 bytes of a valid configuration; the caller may use tiles.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, preserves_flags, readonly)) };
    let strides = Strides { x: features * size_of::<bf16>(), sums: columns * size_of::<f32>() };
    sums.fill(0.0);
    // Pieces of equal length.
    let piece = if lower > 0 { blocks.div_ceil(blocks.div_ceil(PIECE_BLOCKS)) } else { blocks };
    for first in (0..blocks).step_by(piece) {
        let len = piece.min(blocks - first);
        let x = [x, &x[upper * features..]].map(|x| x.get(first * TILE_FEATURES..).unwrap_or_default());
        let mut panel = 0;
        while panel < num_panels {
            let w = &panels[panel * blocks + first..];
            let (sums, sums_1) = sums.split_at_mut(upper * columns);
            let sums = [&mut sums[panel * LANES..], sums_1.get_mut(panel * LANES..).unwrap_or_default()];
            // SAFETY: the configuration above; `len` tiles of x and of each panel are read, and a tile of the columns of each
            // panel is read and written, all within the slices by the assertions.
            unsafe {
                if lower == 0 {
                    one_by_one(x[0], w, len, sums, strides);
                    panel += 1;
                } else if panel + 1 < num_panels {
                    two_by_two(x, [w, &w[blocks..]], len, sums, strides);
                    panel += 2;
                } else {
                    two_by_one(x, w, len, sums, strides);
                    panel += 1;
                }
            }
        }
    }
    // SAFETY: nothing is left in tiles.
    unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
}

/// Bytes from a row to the next.
#[derive(Clone, Copy)]
struct Strides {
    x: usize,
    sums: usize,
}

/// Adds the products of up to sixteen rows with one panel, whose way from memory is the bound.
///
/// # Safety
///
/// Tiles are configured; `blocks` of them lie in `x` and `w`, and one in the first of `sums`.
#[inline(always)]
unsafe fn one_by_one(x: &[bf16], w: &[PairBlock], blocks: usize, sums: [&mut [f32]; 2], strides: Strides) {
    // SAFETY: what the caller owes. Every tile used is named as overwritten.
    unsafe {
        asm!(
            "tileloadd tmm0, [{sums} + {sums_stride}]",
            "2:",
            prefetch_ahead!(),
            "tileloadd tmm4, [{x} + {x_stride}]",
            "tileloadd tmm6, [{w} + {w_stride}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "add {x}, 64",
            "add {w}, 1024",
            "dec {blocks}",
            "jnz 2b",
            "tilestored [{sums} + {sums_stride}], tmm0",
            x = inout(reg) x.as_ptr() => _, x_stride = in(reg) strides.x,
            w = inout(reg) w.as_ptr() => _, w_stride = in(reg) 64usize,
            sums = in(reg) sums[0].as_mut_ptr(), sums_stride = in(reg) strides.sums,
            blocks = inout(reg) blocks => _,
            out("tmm0") _, out("tmm4") _, out("tmm6") _,
            options(nostack),
        );
    }
}

/// Adds the products of two tiles of rows with two panels. Those stream: their loads say so (`t1`), and leave the rows in the
/// first-level cache.
///
/// # Safety
///
/// Tiles are configured; `blocks` of them lie in each of `x` and `w`, and two side by side in each of `sums`.
#[inline(always)]
unsafe fn two_by_two(x: [&[bf16]; 2], w: [&[PairBlock]; 2], blocks: usize, sums: [&mut [f32]; 2], strides: Strides) {
    // SAFETY: what the caller owes. Every tile used is named as overwritten.
    unsafe {
        asm!(
            "tileloadd tmm0, [{sums} + {sums_stride}]",
            "tileloadd tmm1, [{sums} + {sums_stride} + 64]",
            "tileloadd tmm2, [{sums_1} + {sums_stride}]",
            "tileloadd tmm3, [{sums_1} + {sums_stride} + 64]",
            "2:",
            "tileloadd tmm4, [{x} + {x_stride}]",
            "tileloaddt1 tmm6, [{w} + {w_stride}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloaddt1 tmm7, [{w_1} + {w_stride}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{x_1} + {x_stride}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {x}, 64",
            "add {x_1}, 64",
            "add {w}, 1024",
            "add {w_1}, 1024",
            "dec {blocks}",
            "jnz 2b",
            "tilestored [{sums} + {sums_stride}], tmm0",
            "tilestored [{sums} + {sums_stride} + 64], tmm1",
            "tilestored [{sums_1} + {sums_stride}], tmm2",
            "tilestored [{sums_1} + {sums_stride} + 64], tmm3",
            x = inout(reg) x[0].as_ptr() => _, x_stride = in(reg) strides.x,
            x_1 = inout(reg) x[1].as_ptr() => _,
            w = inout(reg) w[0].as_ptr() => _, w_stride = in(reg) 64usize,
            w_1 = inout(reg) w[1].as_ptr() => _,
            sums = in(reg) sums[0].as_mut_ptr(), sums_stride = in(reg) strides.sums,
            sums_1 = in(reg) sums[1].as_mut_ptr(),
            blocks = inout(reg) blocks => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Adds the products of two tiles of rows with one panel.
///
/// # Safety
///
/// As [`two_by_two`], with one tile in each of `sums`.
#[inline(always)]
unsafe fn two_by_one(x: [&[bf16]; 2], w: &[PairBlock], blocks: usize, sums: [&mut [f32]; 2], strides: Strides) {
    // SAFETY: what the caller owes. Every tile used is named as overwritten.
    unsafe {
        asm!(
            "tileloadd tmm0, [{sums} + {sums_stride}]",
            "tileloadd tmm2, [{sums_1} + {sums_stride}]",
            "2:",
            "tileloadd tmm4, [{x} + {x_stride}]",
            "tileloaddt1 tmm6, [{w} + {w_stride}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{x_1} + {x_stride}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "add {x}, 64",
            "add {x_1}, 64",
            "add {w}, 1024",
            "dec {blocks}",
            "jnz 2b",
            "tilestored [{sums} + {sums_stride}], tmm0",
            "tilestored [{sums_1} + {sums_stride}], tmm2",
            x = inout(reg) x[0].as_ptr() => _, x_stride = in(reg) strides.x,
            x_1 = inout(reg) x[1].as_ptr() => _,
            w = inout(reg) w.as_ptr() => _, w_stride = in(reg) 64usize,
            sums = in(reg) sums[0].as_mut_ptr(), sums_stride = in(reg) strides.sums,
            sums_1 = in(reg) sums[1].as_mut_ptr(),
            blocks = inout(reg) blocks => _,
            out("tmm0") _, out("tmm2") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
            options(nostack),
        );
    }
}
