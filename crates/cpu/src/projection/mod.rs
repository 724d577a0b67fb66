//! Projections, with the rows that go into them and what is made of the result: the ops that multiply by weights share
//! this.

pub(crate) mod experts;
mod prepare;
mod run;

use backend::num_peaks;
use plan::{Activation, Linear, Norm, Value};
use tensor::{Tensor, WeightFormat};

use crate::kernels::linear_blocks::{self, PANEL_MIN_ROWS, Streaming};
use crate::kernels::quantize::BLOCK_LEN;
use crate::kernels::{linear, linear_tiles};
use crate::packed;
use crate::panels::{PanelFormat, with_panel_format};
use crate::pool::{Turns, Worker};
use crate::profile::Facts;
use crate::program::{Compiler, End, NormRef, Place, Sizes, Source, Work};
use crate::simd::LANES;
use crate::step::{Scratch, Step};
use backend::PEAK_GROUP;

/// Rows up to which every worker normalises and quantises all of them for itself: cheaper than a barrier. Guessed.
const REDUNDANT_ROWS: usize = 4;

/// Rows up to which a tuner tries both who prepares them.
const REDUNDANT_ROWS_TRIED: usize = 16;

/// Results of a chunk of columns at most that a tuner tries: workers have room for those of gated units.
const CHUNK_NUMBERS_MAX: usize = 1 << 20;

/// (Rows chosen, then) normalised, then projected by one or more weights.
#[derive(Clone, Debug)]
pub(crate) struct Project {
    pub(crate) x: Place,
    /// Whether only the output rows of `x` are taken.
    pub(crate) select: bool,
    pub(crate) norm: Option<NormRef>,
    pub(crate) projections: Vec<Projection>,
    /// Whether some weight multiplies quantised rows.
    pub(crate) quantized: bool,
    /// Whether some weight multiplies rows rounded to bfloat16.
    pub(crate) rounded: bool,
    pub(crate) variant: ProjectVariant,
    /// How weights in blocks pass.
    pub(crate) streaming: Streaming,
    /// Where shared normalised rows are.
    pub(crate) rows_start: usize,
}

impl Project {
    /// Whether rows are changed before they are multiplied; otherwise they are read where they are.
    pub(crate) fn prepares(&self) -> bool {
        self.norm.is_some() || self.quantized || self.rounded
    }
}

/// One weight of a projection.
#[derive(Clone, Debug)]
pub(crate) struct Projection {
    pub(crate) linear: LinearRef,
    /// The projection by another weight of the same shape that the activation of this one multiplies (a gated linear
    /// unit).
    pub(crate) up: Option<(LinearRef, Activation)>,
    pub(crate) out: Place,
    pub(crate) residual: Option<usize>,
    /// Whether it is what the step returns.
    pub(crate) makes_logits: bool,
    /// Where the [peaks](backend::peak) of its rows begin, if they are kept.
    pub(crate) peaks: Option<usize>,
}

impl Projection {
    /// Its weights.
    pub(crate) fn linears(&self) -> impl Iterator<Item = LinearRef> + use<> {
        [Some(self.linear), self.up.map(|(up, _)| up)].into_iter().flatten()
    }
}

/// A weight, (out_features, in_features), and its bias.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinearRef {
    pub(crate) weight: usize,
    pub(crate) bias: Option<usize>,
}

impl From<Linear> for LinearRef {
    fn from(linear: Linear) -> Self {
        Self { weight: linear.weight.index(), bias: linear.bias.map(|bias| bias.index()) }
    }
}

/// How a projection is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProjectVariant {
    /// Every worker prepares all rows for itself; otherwise they share the work and meet at one more barrier.
    pub(crate) redundant: bool,
    /// Weights in blocks that are not in panels already are packed on the way, whatever their format.
    pub(crate) panel: bool,
    /// Columns that a worker takes at a time: a multiple of sixteen.
    pub(crate) chunk_columns: usize,
}

/// What weights are multiplied by, as far as that decides how many of them a worker takes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Multiplied {
    /// f32 or bfloat16 vectors.
    Floats,
    /// Quantised blocks.
    Blocks,
    /// bfloat16 in tiles.
    Tiles,
}

impl Multiplied {
    /// Weights of a chunk, which stay in the second-level cache while all rows pass. Where these are read as fast as
    /// the weights, so that each chunk costs a pass over them, it is a larger part of the cache.
    fn chunk_bytes(self) -> usize {
        match self {
            Self::Floats => 256 << 10,
            Self::Blocks => 512 << 10,
            Self::Tiles => 1280 << 10,
        }
    }
}

/// The forms of a row that weights multiply, and whether they do so in tiles.
#[derive(Clone, Copy, Debug)]
struct Forms {
    floats: bool,
    quantized: bool,
    /// To bfloat16.
    rounded: bool,
    tiles: bool,
}

impl Forms {
    fn of(source: &Source<'_>, weights: &[&Tensor]) -> Self {
        let rounds = source.isa.rounds_to_bf16();
        let mut forms = Self { floats: false, quantized: false, rounded: false, tiles: false };
        for weight in weights {
            match weight.format() {
                format if format.is_quantized() => forms.quantized = true,
                WeightFormat::BF16 if rounds => forms.rounded = true,
                _ => forms.floats = true,
            }
        }
        forms.tiles = forms.rounded && source.isa.has_tiles();
        forms
    }

    fn multiplied(self) -> Multiplied {
        match self.quantized {
            _ if self.tiles => Multiplied::Tiles,
            true => Multiplied::Blocks,
            false => Multiplied::Floats,
        }
    }

    /// Makes room for `prepared` rows of `k` features, quantised and rounded, and for what weights need that multiply up to
    /// `rows` of them at a time.
    fn reserve(
        self,
        sizes: &mut Sizes,
        weights: &[&Tensor],
        variant: ProjectVariant,
        [prepared, rows]: [usize; 2],
        k: usize,
    ) {
        let blocks = if self.quantized { prepared * (k / BLOCK_LEN) } else { 0 };
        let halves = if self.rounded { prepared * linear_tiles::padded(k) } else { 0 };
        let worker = &mut sizes.worker;
        let (quantized, rounded) = match variant.redundant {
            true => (&mut worker.quantized, &mut worker.rounded),
            false => (&mut sizes.quantized, &mut sizes.rounded),
        };
        *quantized = blocks.max(*quantized);
        *rounded = halves.max(*rounded);
        for weight in weights {
            worker.panel = worker.panel.max(packed::room_bytes(weight, variant.panel));
        }
        if self.quantized {
            worker.sums = worker.sums.max(linear_blocks::sums_len(rows, variant.chunk_columns));
        }
        if self.tiles {
            worker.panel = worker.panel.max(linear_tiles::group_bytes(k));
            worker.sums = worker.sums.max(linear_tiles::SUMS_LEN);
        }
        let widens = weights.iter().any(|weight| match weight.format() {
            WeightFormat::F16 => true,
            WeightFormat::BF16 => !self.rounded,
            _ => false,
        });
        if widens && rows >= linear::WIDEN_MIN_ROWS {
            worker.widened = worker.widened.max(variant.chunk_columns * k);
        }
        if rows > 1 {
            worker.sums = worker.sums.max(linear::sums_len(variant.chunk_columns, k));
        }
    }
}

/// What rows are multiplied as, in words.
fn operand_words(quantized: bool, rounded: bool) -> &'static str {
    match (quantized, rounded) {
        (false, false) => "f32",
        (true, false) => "int8",
        (false, true) => "bf16",
        (true, true) => "int8 and bf16",
    }
}

/// Chooses how `columns` outputs in all are computed for `rows` rows by `threads` workers, with weights of `row_bytes`
/// a column.
fn choose_project(rows: usize, columns: usize, row_bytes: usize, threads: usize, by: Multiplied) -> ProjectVariant {
    /// Chunks a worker takes in an op, so that one that is interrupted costs little.
    const TURNS: usize = 8;
    let for_cache = if rows <= REDUNDANT_ROWS { usize::MAX } else { by.chunk_bytes() / row_bytes.max(1) };
    let for_balance = if threads == 1 { usize::MAX } else { columns.div_ceil(threads * TURNS) };
    let for_scratch = if rows <= REDUNDANT_ROWS { 4096 } else { 128 };
    let columns = for_cache.min(for_balance).min(for_scratch);
    // Prompts in tiles: to the nearest number of four panels, which rows pass over together.
    let chunk_columns = match by {
        Multiplied::Tiles if rows > REDUNDANT_ROWS && columns >= 3 * LANES => {
            (columns + 2 * LANES) / (4 * LANES) * 4 * LANES
        }
        _ => columns.max(LANES) / LANES * LANES,
    };
    ProjectVariant { redundant: rows <= REDUNDANT_ROWS && threads > 1, panel: rows >= PANEL_MIN_ROWS, chunk_columns }
}

/// One way to compute a projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    variant: ProjectVariant,
    streaming: Streaming,
}

impl Way {
    /// The usual way, and others with one thing changed in each: what a worker takes at a time, who prepares rows, how far
    /// ahead weights are asked for, how they pass. All of them have the same bits.
    fn all(usual: ProjectVariant, rows: usize, threads: usize, blocks: Option<WeightFormat>) -> Vec<Self> {
        let with = |variant| Self { variant, streaming: Streaming::default() };
        let mut ways = vec![with(usual)];
        let columns = usual.chunk_columns;
        for chunk_columns in [columns / 4, columns / 2, columns * 2] {
            let chunk_columns = chunk_columns.max(LANES) / LANES * LANES;
            if rows.saturating_mul(chunk_columns) <= CHUNK_NUMBERS_MAX {
                ways.push(with(ProjectVariant { chunk_columns, ..usual }));
            }
        }
        if threads > 1 && rows <= REDUNDANT_ROWS_TRIED {
            ways.push(with(ProjectVariant { redundant: !usual.redundant, ..usual }));
        }
        if let Some(format) = blocks {
            let in_place = with_panel_format!(format, F => F::HAS_TILES_IN_PLACE, else false);
            let others = Streaming::others(rows, in_place);
            ways.extend(others.into_iter().map(|streaming| Self { variant: usual, streaming }));
        }
        let mut kept: Vec<Self> = vec![];
        ways.into_iter().for_each(|way| {
            if !kept.contains(&way) {
                kept.push(way);
            }
        });
        kept
    }

    fn label(&self) -> String {
        let Self { variant: ProjectVariant { redundant, chunk_columns, .. }, streaming } = self;
        let by = if *redundant { "each" } else { "all" };
        let ahead = streaming.ahead.map(|bytes| format!(" ahead={bytes}")).unwrap_or_default();
        let rows = streaming.in_turns.map(|turns| if turns { " rows=turns" } else { " rows=tiles" });
        format!("columns={chunk_columns} prepared_by={by}{ahead}{}", rows.unwrap_or_default())
    }
}

/// As many columns as `columns` in whole groups of peaks; `None` where these would change too much.
fn in_peak_groups(columns: usize) -> Option<usize> {
    // Weights of a few columns more still stay in the cache.
    let most = columns + columns / 2;
    (most >= PEAK_GROUP).then(|| columns.max(PEAK_GROUP) / PEAK_GROUP * PEAK_GROUP)
}

/// A projection whose result goes to `out`, before anything is added to it.
pub(crate) fn projection(compiler: &Compiler<'_>, linear: Linear, out: Value) -> Projection {
    let makes_logits = compiler.end == End::Logits && out == compiler.source.plan.logits;
    Projection { linear: linear.into(), up: None, out: compiler.place(out), residual: None, makes_logits, peaks: None }
}

/// Projections of the rows of `x`, which are normalised first where there is a norm; with `select`, of those rows alone
/// that are outputs.
pub(crate) fn compile(
    compiler: &mut Compiler<'_>,
    x: Value,
    norm: Option<Norm>,
    select: bool,
    projections: Vec<Projection>,
) -> Box<dyn Work> {
    let mut projections = projections;
    let x = compiler.place(x);
    let k = x.width;
    let source = compiler.source;
    let linears = projections.iter().flat_map(Projection::linears);
    let tensors: Vec<&Tensor> = linears.map(|linear| &source.weights[linear.weight]).collect();
    let forms = Forms::of(source, &tensors);
    let rows = if select { compiler.shape.outputs } else { compiler.rows(x.rows) };
    let columns = projections.iter().map(|projection| projection.out.width).sum();
    let row_bytes = tensors.iter().map(|tensor| tensor.row_bytes()).max().unwrap_or(0);
    let usual = choose_project(rows, columns, row_bytes, source.threads, forms.multiplied());
    let blocks = tensors.iter().map(|tensor| tensor.format()).find(|format| format.is_quantized());
    let key = || {
        let formats: Vec<_> = tensors.iter().map(|tensor| tensor.format().name().to_ascii_lowercase()).collect();
        let widths: Vec<_> = projections.iter().map(|projection| projection.out.width.to_string()).collect();
        let glu = if projections.iter().any(|projection| projection.up.is_some()) { " glu" } else { "" };
        let mut formats = formats;
        formats.dedup();
        format!("project {} rows={rows} k={k} n={}{glu}", formats.join("+"), widths.join("+"))
    };
    let ways = match source.tuned.is_none() {
        true => vec![Way { variant: usual, streaming: Streaming::default() }],
        false => Way::all(usual, rows, source.threads, blocks),
    };
    let way = source.tuned.pick(key, ways, Way::label, 0);
    let Way { mut variant, streaming } = way.unwrap_or(Way { variant: usual, streaming: Streaming::default() });
    for projection in projections.iter_mut().filter(|projection| projection.makes_logits) {
        let Some(columns) = in_peak_groups(variant.chunk_columns) else { break };
        variant.chunk_columns = columns;
        let start = compiler.shared(rows * num_peaks(projection.out.width));
        (projection.peaks, compiler.peaks) = (Some(start), Some(start));
    }
    forms.reserve(&mut compiler.sizes, &tensors, variant, [rows, rows], k);
    let worker = &mut compiler.sizes.worker;
    if variant.redundant {
        worker.rows = worker.rows.max(rows * k);
    }
    if projections.iter().any(|projection| projection.up.is_some()) {
        worker.up = worker.up.max(rows * variant.chunk_columns);
    }
    let norm = norm.map(NormRef::from);
    let Forms { quantized, rounded, .. } = forms;
    let rows_start = compiler.rows_start;
    Box::new(Project { x, select, norm, projections, quantized, rounded, variant, streaming, rows_start })
}

impl Work for Project {
    fn run(&self, step: &Step<'_>, turns: &Turns, worker: &Worker<'_>, scratch: &mut Scratch) {
        run::project(step, self, turns, worker, scratch);
    }

    fn variant(&self, facts: &Facts<'_>) -> String {
        let operand = operand_words(self.quantized, self.rounded);
        let prepared = match self.prepares() {
            false => "",
            true if self.variant.redundant => " made by each thread",
            true => " made once",
        };
        let (isa, layout, columns) = (facts.isa, self.layout(facts), self.variant.chunk_columns);
        let Streaming { ahead, in_turns } = self.streaming;
        let ahead = ahead.map(|bytes| format!(", {bytes} bytes ahead")).unwrap_or_default();
        let passed =
            in_turns.map(|turns| if turns { ", rows in turns" } else { ", rows in tiles" }).unwrap_or_default();
        format!("{isa}{layout}, rows in {operand}{prepared}, {columns} columns a turn{ahead}{passed}")
    }
}

impl Project {
    /// How its weights lie that come in panels; empty where it has none.
    fn layout(&self, facts: &Facts<'_>) -> &'static str {
        let tiles = facts.isa.has_tiles();
        let in_panels = |weight: &usize| match facts.weights[*weight].format() {
            WeightFormat::BF16 => tiles,
            format => format.is_quantized(),
        };
        let linears = self.projections.iter().flat_map(Projection::linears);
        let mut weights = linears.map(|linear| linear.weight).filter(in_panels).peekable();
        if weights.peek().is_none() {
            return "";
        }
        match weights.all(|weight| facts.packed[weight].is_some()) {
            true => ", packed panels",
            false if self.packs_on_the_way(facts) => ", panels packed on the way",
            false => ", rows of the file",
        }
    }

    /// Whether some weight is laid out anew in each step that it is not in panels yet.
    fn packs_on_the_way(&self, facts: &Facts<'_>) -> bool {
        let mut linears = self.projections.iter().flat_map(Projection::linears);
        let in_tiles = facts.isa.has_tiles() && self.rounded;
        in_tiles || linears.any(|linear| packed::room_bytes(&facts.weights[linear.weight], self.variant.panel) > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_whole_lanes_and_small_enough() {
        for rows in [1, 4, 5, 64, 512] {
            for threads in [1, 2, 16] {
                for (columns, row_bytes) in [(1, 4), (64, 128), (4864, 1792), (151_936, 952)] {
                    let variant = choose_project(rows, columns, row_bytes, threads, Multiplied::Floats);
                    assert!(variant.chunk_columns >= LANES && variant.chunk_columns.is_multiple_of(LANES));
                    assert!(
                        rows <= REDUNDANT_ROWS
                            || variant.chunk_columns * row_bytes <= (256 << 10).max(LANES * row_bytes)
                    );
                    assert_eq!(variant.redundant, threads > 1 && rows <= REDUNDANT_ROWS);
                    assert_eq!(variant.panel, rows >= PANEL_MIN_ROWS);
                }
            }
        }
        // Decode on two threads: about eight turns each.
        assert_eq!(choose_project(1, 4864, 1792, 2, Multiplied::Floats).chunk_columns, 304);
    }

    #[test]
    fn groups_of_peaks_are_whole_in_a_chunk_and_change_it_little() {
        assert_eq!([80, 96, 128, 297, 4096].map(in_peak_groups), [None, Some(128), Some(128), Some(256), Some(4096)]);
        assert_eq!(in_peak_groups(16), None);
    }
}
