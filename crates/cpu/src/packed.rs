//! Q8_0 weights laid out as kernels stream them, made by the first steps.
//!
//! Sixteen rows of a weight are a *panel*, one row in each lane: no sum crosses lanes, several rows of activations share
//! what is loaded, and a projection reads one stream of memory instead of sixteen.
//!
//! Layout    panel p holds rows 16p to 16p + 16 and begins on a cache line: first the codes of its k / 32 blocks, 512 bytes
//!           each ([`PanelCodes`]), then their scales, sixteen f16 each. Rows beyond the last are zero. The same bytes as in
//!           the file in all, up to the last panel and the rounding to cache lines.
//! Cost      one pass over the weights by all threads; twice their size in address space, of which the file's half is
//!           page cache that the system takes back when it needs it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::AtomicUsize;

use half::f16;
use plan::{Op, Plan, WeightId};
use tensor::quant::q8_0;
use tensor::{Tensor, WeightFormat};

use crate::pool::{Team, WorkerPanic};
use crate::shared::{AlignedBuffer, SharedSlice};
use crate::simd::{Kernel, LANES, PANEL_ROWS, PanelCodes, Simd};
use crate::{Isa, memory};

/// A cache line.
const LINE: usize = 64;

/// Blocks of each row that packing asks for ahead of use.
const PREFETCH_BLOCKS: usize = 16;

/// Sixteen rows of a weight, side by side.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    /// (blocks,).
    pub(crate) codes: &'a [PanelCodes],
    /// (blocks,), a scale for each row.
    pub(crate) scales: &'a [[f16; LANES]],
}

impl<'a> Panel<'a> {
    /// Bytes of a panel of `blocks` blocks a row.
    pub(crate) fn bytes(blocks: usize) -> usize {
        (blocks * (size_of::<PanelCodes>() + size_of::<[f16; LANES]>())).next_multiple_of(LINE)
    }

    /// A panel in memory of [`Panel::bytes`].
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8], blocks: usize) -> Self {
        let (codes, rest) = bytes.split_at(blocks * size_of::<PanelCodes>());
        let scales = &rest[..blocks * size_of::<[f16; LANES]>()];
        Self { codes: bytemuck::cast_slice(codes), scales: bytemuck::cast_slice(scales) }
    }
}

/// Copies sixteen rows into a panel; `None` is a row of zeros.
pub(crate) struct PackPanel<'a> {
    pub(crate) rows: [Option<&'a [q8_0::Block]>; PANEL_ROWS],
    /// [`Panel::bytes`] of the rows' blocks.
    pub(crate) out: &'a mut [u8],
}

impl Kernel for PackPanel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let zero = q8_0::Block { scale: f16::ZERO, codes: [0; q8_0::BLOCK_LEN] };
        let blocks = self.rows.iter().flatten().map(|row| row.len()).next().unwrap_or(0);
        let full = self.rows.iter().all(|row| row.is_some_and(|row| row.len() == blocks));
        let (codes, rest) = self.out.split_at_mut(blocks * size_of::<PanelCodes>());
        let codes: &mut [PanelCodes] = bytemuck::cast_slice_mut(codes);
        let scales: &mut [[f16; LANES]] = bytemuck::cast_slice_mut(&mut rest[..blocks * size_of::<[f16; LANES]>()]);
        let rows = self.rows.map(Option::unwrap_or_default);
        for block in 0..blocks {
            let mut lanes = [&zero; PANEL_ROWS];
            for (lane, row) in lanes.iter_mut().zip(&rows) {
                if full {
                    s.prefetch(row.as_ptr().wrapping_add(block + PREFETCH_BLOCKS));
                    *lane = &row[block];
                } else if let Some(found) = row.get(block) {
                    *lane = found;
                }
            }
            s.interleave(lanes.map(|lane| bytemuck::cast_ref(&lane.codes)), S::PANEL_XOR, &mut codes[block]);
            for (scale, lane) in scales[block].iter_mut().zip(lanes) {
                *scale = lane.scale;
            }
        }
    }
}

/// A Q8_0 weight in panels.
pub(crate) struct PackedQ8 {
    blocks: usize,
    bytes: AlignedBuffer<u8>,
}

impl PackedQ8 {
    /// Bytes that `tensor` takes in panels.
    pub(crate) fn bytes_of(tensor: &Tensor) -> usize {
        tensor.num_rows().div_ceil(PANEL_ROWS) * Panel::bytes(tensor.row_len() / q8_0::BLOCK_LEN)
    }

    /// Room for `tensor`, not filled; `None` when the system does not give the memory.
    pub(crate) fn reserve(tensor: &Tensor) -> Option<Self> {
        let bytes = AlignedBuffer::zeroed_in_large_pages(Self::bytes_of(tensor))?;
        Some(Self { blocks: tensor.row_len() / q8_0::BLOCK_LEN, bytes })
    }

    /// Panel `index`.
    #[inline(always)]
    pub(crate) fn panel(&self, index: usize) -> Panel<'_> {
        let bytes = Panel::bytes(self.blocks);
        Panel::new(&self.bytes[index * bytes..(index + 1) * bytes], self.blocks)
    }

    /// The memory, to be filled panel by panel by several threads.
    pub(crate) fn share(&mut self) -> SharedSlice<'_, u8> {
        SharedSlice::new(&mut self.bytes)
    }
}

/// The rows of panel `index` of a weight of `blocks` blocks a row.
#[inline(always)]
pub(crate) fn panel_rows(weights: &[q8_0::Block], blocks: usize, index: usize) -> [Option<&[q8_0::Block]>; PANEL_ROWS] {
    std::array::from_fn(|lane| {
        let row = index * PANEL_ROWS + lane;
        weights.get(row * blocks..(row + 1) * blocks)
    })
}

/// Fills panel `index` of a weight's shared memory.
///
/// # Safety
///
/// As [`SharedSlice::write`], for this panel.
pub(crate) unsafe fn pack_panel(isa: Isa, tensor: &Tensor, into: &SharedSlice<'_, u8>, index: usize) {
    let blocks = tensor.row_len() / q8_0::BLOCK_LEN;
    let bytes = Panel::bytes(blocks);
    // SAFETY: what the caller owes.
    let out = unsafe { into.write(index * bytes..(index + 1) * bytes) };
    isa.run(PackPanel { rows: panel_rows(tensor.as_slice(), blocks, index), out });
}

/// The Q8_0 weights of projections, and which of them are in panels by now.
///
/// Packing all of them before the first step would make the first token wait for twice the weights' bytes. So the first
/// short step uses them where the file has them, and every later one packs some more before it begins: a generation pays
/// for it over some tens of tokens, a long prompt at once. No bit depends on how far it has come.
pub(crate) struct Repacking {
    packed: Vec<Option<PackedQ8>>,
    /// Weights still to be packed, in the order of their use.
    waiting: VecDeque<usize>,
    /// Whether a step has run.
    begun: bool,
}

impl Repacking {
    /// Bytes packed before a step, at least, and for each of its rows: a tenth of the time of the step.
    const STEP_BYTES: usize = 32 << 20;
    const ROW_BYTES: usize = 1 << 20;

    /// Nothing is packed, and nothing will be.
    pub(crate) fn never(weights: &[Tensor]) -> Self {
        Self { packed: weights.iter().map(|_| None).collect(), waiting: VecDeque::new(), begun: false }
    }

    /// Nothing is packed yet; nothing will be where memory does not hold the copy.
    pub(crate) fn new(plan: &Plan, weights: &[Tensor]) -> Self {
        let mut this = Self::never(weights);
        let projections = plan.ops.iter().filter(|op| !matches!(op, Op::Embed { .. }));
        let mut seen = BTreeSet::new();
        let is_matrix = |tensor: &Tensor| tensor.format() == WeightFormat::Q8_0 && tensor.shape().len() == 2;
        this.waiting = projections
            .flat_map(Op::weights)
            .map(WeightId::index)
            .filter(|&index| is_matrix(&weights[index]) && seen.insert(index))
            .collect();
        let bytes: u64 = this.waiting.iter().map(|&index| PackedQ8::bytes_of(&weights[index]) as u64).sum();
        // Activations and other programs need some of what is left.
        if memory::available_bytes().is_some_and(|available| bytes > available / 10 * 9) {
            this.waiting.clear();
        }
        this
    }

    /// The weights in panels, by their place in the plan.
    pub(crate) fn packed(&self) -> &[Option<PackedQ8>] {
        &self.packed
    }

    /// Packs what a step of `rows` rows can bear.
    pub(crate) fn before_step(
        &mut self,
        isa: Isa,
        team: &mut Team,
        weights: &[Tensor],
        rows: usize,
    ) -> Result<(), WorkerPanic> {
        let for_rows = rows.saturating_mul(Self::ROW_BYTES);
        let mut budget = if self.begun || for_rows >= Self::STEP_BYTES { for_rows.max(Self::STEP_BYTES) } else { 0 };
        self.begun = true;
        while budget > 0 {
            let Some(&index) = self.waiting.front() else { break };
            let tensor = &weights[index];
            let Some(packed) = pack(isa, team, tensor)? else {
                // The system has no more memory: what is left stays where it is.
                self.waiting.clear();
                break;
            };
            self.packed[index] = Some(packed);
            self.waiting.pop_front();
            budget = budget.saturating_sub(PackedQ8::bytes_of(tensor));
        }
        Ok(())
    }
}

/// `tensor` in panels, made by all threads; `None` when the system does not give the memory.
fn pack(isa: Isa, team: &mut Team, tensor: &Tensor) -> Result<Option<PackedQ8>, WorkerPanic> {
    /// Panels in a turn.
    const TURN: usize = 4;
    let Some(mut packed) = PackedQ8::reserve(tensor) else { return Ok(None) };
    let panels = tensor.num_rows().div_ceil(PANEL_ROWS);
    let into = packed.share();
    let next = AtomicUsize::new(0);
    team.run(&|worker| {
        for turn in worker.take_turns(&next, panels.div_ceil(TURN)) {
            for panel in turn * TURN..((turn + 1) * TURN).min(panels) {
                // SAFETY: each panel is in one worker's turn.
                unsafe { pack_panel(isa, tensor, &into, panel) };
            }
        }
    })?;
    Ok(Some(packed))
}

#[cfg(test)]
mod tests {
    use testing::random::Rng;

    use super::*;

    #[test]
    fn every_code_and_scale_is_in_its_lane() {
        let mut rng = Rng::new(3);
        for (n, blocks) in [(1, 1), (16, 3), (17, 2), (40, 5)] {
            let values: Vec<f32> = (0..n * blocks * 32).map(|_| rng.normal()).collect();
            let tensor =
                Tensor::from_f32(tensor::WeightFormat::Q8_0, vec![n, blocks * 32], &values).expect("whole blocks");
            let rows: &[q8_0::Block] = tensor.as_slice();
            for isa in Isa::available() {
                let mut packed = PackedQ8::reserve(&tensor).expect("memory");
                let shared = packed.share();
                for panel in 0..n.div_ceil(PANEL_ROWS) {
                    // SAFETY: one thread.
                    unsafe { pack_panel(isa, &tensor, &shared, panel) };
                }
                let xor = isa.run(XorOf);
                for row in 0..n.next_multiple_of(PANEL_ROWS) {
                    let panel = packed.panel(row / PANEL_ROWS);
                    let lane = row % PANEL_ROWS;
                    for block in 0..blocks {
                        let zero = q8_0::Block { scale: f16::ZERO, codes: [0; 32] };
                        let expected = if row < n { rows[row * blocks + block] } else { zero };
                        assert_eq!(panel.scales[block][lane], expected.scale);
                        for (k, &code) in expected.codes.iter().enumerate() {
                            let found = panel.codes[block][k / 4][4 * lane + k % 4] ^ xor;
                            assert_eq!(found, code.cast_unsigned(), "{isa} row {row} block {block} code {k}");
                        }
                    }
                }
            }
        }
    }

    struct XorOf;
    impl Kernel for XorOf {
        type Output = u8;
        #[inline(always)]
        fn run<S: Simd>(self, _: S) -> u8 {
            S::PANEL_XOR
        }
    }
}
