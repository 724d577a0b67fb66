//! Weights laid out as kernels stream them, made by the first steps: those in blocks, and BF16 where it is multiplied in
//! tiles.
//!
//! Layout    blocks: panels of sixteen rows ([`crate::panels`]). BF16: panels, too, of a [`PairBlock`] for each 32 features, the
//!           last filled up with zeros; rows beyond the last are zero.
//! Cost      one pass over the weights by all threads; twice their size in address space, of which the file's half is
//!           page cache that the system takes back when it needs it.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use half::bf16;
use plan::{Op, Plan, WeightId};
use tensor::{Tensor, WeightFormat};

use crate::isa::reads_one_stream_best;
use crate::memory::read_in_order;
use crate::panels::{PackPanel, Panel, PanelFormat, with_panel_format};
use crate::pool::{Team, WorkerPanic};
use crate::shared::{AlignedBuffer, SharedSlice};
use crate::simd::{Kernel, PANEL_ROWS, PairBlock, PanelCodes, Simd, TILE_FEATURES, Words};
use crate::{Isa, memory};

/// Bytes of each row that packing asks for ahead of use.
const PREFETCH_BYTES: usize = 512;

/// Copies sixteen rows of bfloat16 into a panel; `None` is a row of zeros.
pub(crate) struct PackPairs<'a> {
    pub(crate) rows: [Option<&'a [bf16]>; PANEL_ROWS],
    /// One for each [`TILE_FEATURES`] features.
    pub(crate) out: &'a mut [PairBlock],
}

impl Kernel for PackPairs<'_> {
    type Output = ();
    const WORDS: Words = Words::Floats;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Blocks that sixteen rows have whole.
        let len = self.rows[0].unwrap_or_default().len();
        let is_full = self.rows.iter().all(|row| row.is_some_and(|row| row.len() == len));
        let whole = if is_full { len / TILE_FEATURES } else { 0 };
        // Cut to one known length, so that the loop needs no checks.
        let mut rows: [&[bf16]; PANEL_ROWS] = [&[]; PANEL_ROWS];
        for (cut, row) in rows.iter_mut().zip(self.rows) {
            *cut = &row.unwrap_or_default()[..whole * TILE_FEATURES];
        }
        let in_order = reads_one_stream_best();
        if in_order {
            read_in_order(&self.rows);
        }
        let (whole_blocks, rest) = self.out.split_at_mut(whole);
        for (block, out) in whole_blocks.iter_mut().enumerate() {
            let features = block * TILE_FEATURES..(block + 1) * TILE_FEATURES;
            if !in_order {
                for row in &rows {
                    s.prefetch(row.as_ptr().wrapping_add(features.start).cast::<u8>().wrapping_add(PREFETCH_BYTES));
                }
            }
            let halves: &mut [PanelCodes; 2] = bytemuck::cast_mut(out);
            for (index, half) in halves.iter_mut().enumerate() {
                let mut lanes = [&[0; 32]; PANEL_ROWS];
                for (lane, row) in lanes.iter_mut().zip(&rows) {
                    let bytes: &[u8] = bytemuck::cast_slice(&row[features.clone()]);
                    *lane = bytes[32 * index..32 * index + 32].as_array().expect("half a block");
                }
                s.interleave(lanes, 0, half);
            }
        }
        for (block, out) in (whole..).zip(rest) {
            pack_part(&self.rows, block, out);
        }
    }
}

/// A block of a panel of which some rows are not there, or not all features.
fn pack_part(rows: &[Option<&[bf16]>; PANEL_ROWS], block: usize, out: &mut PairBlock) {
    for (lane, row) in rows.iter().enumerate() {
        let row = row.unwrap_or_default();
        for (pair, pairs) in out.iter_mut().enumerate() {
            for odd in 0..2 {
                let value = row.get(block * TILE_FEATURES + 2 * pair + odd);
                pairs[2 * lane + odd] = value.copied().unwrap_or(bf16::ZERO);
            }
        }
    }
}

/// A weight in panels.
pub(crate) struct Packed {
    panel_bytes: usize,
    bytes: AlignedBuffer<u8>,
}

impl Packed {
    /// Room for `tensor`, not filled; `None` when the system does not give the memory, or its format has no panels.
    pub(crate) fn reserve(tensor: &Tensor) -> Option<Self> {
        let panel_bytes = panel_bytes(tensor)?;
        Some(Self { panel_bytes, bytes: AlignedBuffer::zeroed_in_large_pages(bytes_of(tensor))? })
    }

    /// All panels.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Panel `index` of a weight of `blocks` blocks a row.
    #[inline(always)]
    pub(crate) fn panel<F: PanelFormat>(&self, index: usize, blocks: usize) -> Panel<'_, F> {
        Panel::new(&self.bytes[index * self.panel_bytes..(index + 1) * self.panel_bytes], blocks)
    }

    /// Some consecutive panels of a BF16 weight.
    pub(crate) fn pairs(&self, panels: Range<usize>) -> &[PairBlock] {
        bytemuck::cast_slice(&self.bytes[panels.start * self.panel_bytes..panels.end * self.panel_bytes])
    }

    /// The memory, to be filled panel by panel by several threads.
    pub(crate) fn share(&mut self) -> SharedSlice<'_, u8> {
        SharedSlice::new(&mut self.bytes)
    }
}

/// Bytes of one panel of `tensor`; `None` where its format has none.
fn panel_bytes(tensor: &Tensor) -> Option<usize> {
    let format = tensor.format();
    with_panel_format!(format, F => Some(Panel::<F>::bytes(tensor.row_len() / format.block_len())), else {
        let pairs = tensor.row_len().div_ceil(TILE_FEATURES) * size_of::<PairBlock>();
        (format == WeightFormat::BF16).then_some(pairs)
    })
}

/// Bytes for a panel of a weight in blocks that is packed on the way, where it is: with `packs`, or because its format has no
/// other way.
pub(crate) fn room_bytes(tensor: &Tensor, packs: bool) -> usize {
    let format = tensor.format();
    with_panel_format!(format, F => {
        let is_packed = packs || !F::HAS_DIRECT;
        if is_packed { Panel::<F>::bytes(tensor.row_len() / format.block_len()) } else { 0 }
    }, else 0)
}

/// Bytes that `tensor` takes in panels.
fn bytes_of(tensor: &Tensor) -> usize {
    tensor.num_rows().div_ceil(PANEL_ROWS) * panel_bytes(tensor).unwrap_or(0)
}

/// The rows of panel `index` of a weight of `row_len` elements a row.
#[inline(always)]
pub(crate) fn panel_rows<T>(weights: &[T], row_len: usize, index: usize) -> [Option<&[T]>; PANEL_ROWS] {
    std::array::from_fn(|lane| {
        let row = index * PANEL_ROWS + lane;
        weights.get(row * row_len..(row + 1) * row_len)
    })
}

/// Fills panel `index` of a weight's shared memory.
///
/// # Safety
///
/// As [`SharedSlice::write`], for this panel.
pub(crate) unsafe fn pack_panel(isa: Isa, tensor: &Tensor, into: &SharedSlice<'_, u8>, index: usize) {
    let Some(bytes) = panel_bytes(tensor) else { return };
    // SAFETY: what the caller owes.
    let out = unsafe { into.write(index * bytes..(index + 1) * bytes) };
    let format = tensor.format();
    with_panel_format!(format, F => {
        let rows = panel_rows(tensor.as_slice(), tensor.row_len() / format.block_len(), index);
        if reads_one_stream_best() {
            read_in_order(&rows);
        }
        isa.run(PackPanel::<F> { rows, out });
    }, else {
        let rows = panel_rows(tensor.as_slice(), tensor.row_len(), index);
        isa.run(PackPairs { rows, out: bytemuck::cast_slice_mut(out) });
    });
}

/// The weights of projections, and which of them are in panels by now.
///
/// Packing all of them before the first step would make the first token wait for twice the weights' bytes. So the first
/// short step uses them where the file has them, and every later one packs some more before it begins: a generation pays
/// for it over some tens of tokens, a long prompt at once. No bit depends on how far it has come.
pub(crate) struct Repacking {
    packed: Vec<Option<Packed>>,
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
    pub(crate) fn new(isa: Isa, plan: &Plan, weights: &[Tensor]) -> Self {
        let mut this = Self::never(weights);
        let projections = plan.ops.iter().filter(|op| !matches!(op, Op::Embed { .. }));
        let mut seen = BTreeSet::new();
        let in_tiles = |format| format == WeightFormat::BF16 && isa.has_tiles();
        let is_packed = |tensor: &Tensor| {
            tensor.shape().len() == 2 && (tensor.format().is_quantized() || in_tiles(tensor.format()))
        };
        this.waiting = projections
            .flat_map(Op::weights)
            .map(WeightId::index)
            .filter(|&index| is_packed(&weights[index]) && seen.insert(index))
            .collect();
        let bytes: u64 = this.waiting.iter().map(|&index| bytes_of(&weights[index]) as u64).sum();
        // Activations and other programs need a tenth of what is left.
        if !memory::has_room(bytes.saturating_add(bytes / 9)) {
            this.waiting.clear();
        }
        this
    }

    /// The weights in panels, by their place in the plan.
    pub(crate) fn packed(&self) -> &[Option<Packed>] {
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
            budget = budget.saturating_sub(bytes_of(tensor));
        }
        Ok(())
    }
}

/// `tensor` in panels, made by all threads; `None` when the system does not give the memory.
fn pack(isa: Isa, team: &mut Team, tensor: &Tensor) -> Result<Option<Packed>, WorkerPanic> {
    /// Panels in a turn.
    const TURN: usize = 4;
    let Some(mut packed) = Packed::reserve(tensor) else { return Ok(None) };
    let panels = tensor.num_rows().div_ceil(PANEL_ROWS);
    let into = packed.share();
    // A page lies on the node of the thread that fills it, and steps hand out columns by the same ranges.
    let turns = team.turns();
    team.run(&|worker| {
        for turn in worker.take_turns(&turns, panels.div_ceil(TURN)) {
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
    use half::f16;
    use tensor::quant::q8_0;
    use testing::random::Rng;

    use super::*;
    use crate::panels::Q8_0;

    #[test]
    fn every_code_and_scale_is_in_its_lane() {
        let mut rng = Rng::new(3);
        for (n, blocks) in [(1, 1), (16, 3), (17, 2), (40, 5)] {
            let values: Vec<f32> = (0..n * blocks * 32).map(|_| rng.normal()).collect();
            let tensor =
                Tensor::from_f32(tensor::WeightFormat::Q8_0, vec![n, blocks * 32], &values).expect("whole blocks");
            let rows: &[q8_0::Block] = tensor.as_slice();
            for isa in Isa::available() {
                let mut packed = Packed::reserve(&tensor).expect("memory");
                let shared = packed.share();
                for panel in 0..n.div_ceil(PANEL_ROWS) {
                    // SAFETY: one thread.
                    unsafe { pack_panel(isa, &tensor, &shared, panel) };
                }
                let xor = isa.run(XorOf);
                for row in 0..n.next_multiple_of(PANEL_ROWS) {
                    let panel = packed.panel::<Q8_0>(row / PANEL_ROWS, blocks);
                    let lane = row % PANEL_ROWS;
                    for block in 0..blocks {
                        let zero = q8_0::Block { scale: f16::ZERO, codes: [0; 32] };
                        let expected = if row < n { rows[row * blocks + block] } else { zero };
                        assert_eq!(panel.blocks[block].scales[lane], expected.scale);
                        for (k, &code) in expected.codes.iter().enumerate() {
                            let found = panel.blocks[block].codes[k / 4][4 * lane + k % 4] ^ xor;
                            assert_eq!(found, code.cast_unsigned(), "{isa} row {row} block {block} code {k}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_pair_is_in_its_lane_and_the_rest_is_zero() {
        for (n, k) in [(1, 1), (16, 32), (17, 33), (40, 100)] {
            let values: Vec<f32> = (0..n * k).map(|index| index as f32).collect();
            let tensor = Tensor::from_f32(WeightFormat::BF16, vec![n, k], &values).expect("any length");
            let rows: &[bf16] = tensor.as_slice();
            for isa in Isa::available() {
                let mut packed = Packed::reserve(&tensor).expect("memory");
                let (shared, panels) = (packed.share(), n.div_ceil(PANEL_ROWS));
                for panel in 0..panels {
                    // SAFETY: one thread.
                    unsafe { pack_panel(isa, &tensor, &shared, panel) };
                }
                let blocks = k.div_ceil(TILE_FEATURES);
                let pairs = packed.pairs(0..panels);
                assert_eq!(pairs.len(), panels * blocks);
                for row in 0..panels * PANEL_ROWS {
                    for feature in 0..blocks * TILE_FEATURES {
                        let block = &pairs[row / PANEL_ROWS * blocks + feature / TILE_FEATURES];
                        let found = block[feature % TILE_FEATURES / 2][row % PANEL_ROWS * 2 + feature % 2];
                        let expected = if row < n && feature < k { rows[row * k + feature] } else { bf16::ZERO };
                        assert_eq!(found, expected, "{isa} ({n}, {k}) row {row} feature {feature}");
                    }
                }
            }
        }
    }

    struct XorOf;
    impl Kernel for XorOf {
        type Output = u8;
        const WORDS: Words = Words::Bytes;
        #[inline(always)]
        fn run<S: Simd>(self, _: S) -> u8 {
            S::PANEL_XOR
        }
    }
}
