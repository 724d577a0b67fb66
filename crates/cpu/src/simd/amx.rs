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

/// Bytes of a panel that are asked for ahead of use while its weights pass once.
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
    let x_stride = features * size_of::<bf16>();
    let sums_stride = columns * size_of::<f32>();
    let mut panel = 0;
    while panel < num_panels {
        let w = &panels[panel * blocks..];
        let sums = &mut sums[panel * LANES..];
        if lower == 0 {
            // SAFETY: `blocks` tiles of x and of one panel are read, and a tile of its columns is written: all within the
            // slices by the assertions. Every tile used is named as overwritten.
            unsafe {
                asm!(
                    "tilezero tmm0",
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
                    x = inout(reg) x.as_ptr() => _, x_stride = in(reg) x_stride,
                    w = inout(reg) w.as_ptr() => _, w_stride = in(reg) 64usize,
                    sums = in(reg) sums.as_mut_ptr(), sums_stride = in(reg) sums_stride,
                    blocks = inout(reg) blocks => _,
                    out("tmm0") _, out("tmm4") _, out("tmm6") _,
                    options(nostack),
                );
            }
            panel += 1;
        } else if panel + 1 < num_panels {
            // SAFETY: as above, for two tiles of rows and two panels.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "2:",
                    "tileloadd tmm4, [{x} + {x_stride}]",
                    "tileloadd tmm6, [{w} + {w_stride}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{w_1} + {w_stride}]",
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
                    x = inout(reg) x.as_ptr() => _, x_stride = in(reg) x_stride,
                    x_1 = inout(reg) x[upper * features..].as_ptr() => _,
                    w = inout(reg) w.as_ptr() => _, w_stride = in(reg) 64usize,
                    w_1 = inout(reg) w[blocks..].as_ptr() => _,
                    sums = in(reg) sums.as_mut_ptr(), sums_stride = in(reg) sums_stride,
                    sums_1 = in(reg) sums[upper * columns..].as_mut_ptr(),
                    blocks = inout(reg) blocks => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
            panel += 2;
        } else {
            // SAFETY: as above, for two tiles of rows and one panel.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm2",
                    "2:",
                    "tileloadd tmm4, [{x} + {x_stride}]",
                    "tileloadd tmm6, [{w} + {w_stride}]",
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
                    x = inout(reg) x.as_ptr() => _, x_stride = in(reg) x_stride,
                    x_1 = inout(reg) x[upper * features..].as_ptr() => _,
                    w = inout(reg) w.as_ptr() => _, w_stride = in(reg) 64usize,
                    sums = in(reg) sums.as_mut_ptr(), sums_stride = in(reg) sums_stride,
                    sums_1 = in(reg) sums[upper * columns..].as_mut_ptr(),
                    blocks = inout(reg) blocks => _,
                    out("tmm0") _, out("tmm2") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
                    options(nostack),
                );
            }
            panel += 1;
        }
    }
    // SAFETY: nothing is left in tiles.
    unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
}
