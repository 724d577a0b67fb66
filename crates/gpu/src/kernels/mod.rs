//! One file for each file of `kernels` that has entry points: which variants there are, which is taken for which shape,
//! and how it is launched. Nothing here knows ops: `ops` chooses kernels and gives them their operands.

use plan::{Activation, Linear, Norm, Rows};

use crate::formats::DeviceFormat;
use crate::launch::Region;
use crate::site::{DeviceRows, Site};
use crate::weights::DeviceWeight;

pub(crate) mod attention;
mod attention_f16;
mod attention_prefill;
pub(crate) mod attention_tiles;
pub(crate) mod choose;
pub(crate) mod elementwise;
pub(crate) mod embed;
pub(crate) mod experts;
pub(crate) mod experts_rows;
pub(crate) mod experts_stream;
pub(crate) mod gemm_mma;
mod gemm_simdgroup;
pub(crate) mod head_linear;
pub(crate) mod linear;
pub(crate) mod linear_batch;
pub(crate) mod linear_stream;
pub(crate) mod mla_attention;
pub(crate) mod operand;
pub(crate) mod rms_norm;
pub(crate) mod rope_kv_write;
pub(crate) mod route;
pub(crate) mod sample;
pub(crate) mod sm90;
pub(crate) mod weight_norms;

/// Weights that one launch multiplies the same rows by, at most.
pub(crate) const SEGMENTS: usize = 3;

/// The up projection of a gated unit, and what the gate goes through before the two are multiplied.
pub(crate) type Up = (Linear, Activation);

/// A projection, and where its result goes.
#[derive(Clone, Copy)]
pub(crate) struct Projection {
    pub(crate) linear: Linear,
    /// Where `linear` is the gate of a gated unit.
    pub(crate) up: Option<Up>,
    pub(crate) out: DeviceRows,
}

impl Projection {
    /// Its weights on the device, the gate's before those of the up projection.
    pub(crate) fn weights<'a>(&self, site: &Site<'a>) -> impl Iterator<Item = &'a DeviceWeight> + use<'a> {
        let weights = site.loaded.weights;
        [Some(self.linear), self.up.map(|(up, _)| up)].into_iter().flatten().map(|linear| weights.get(linear.weight))
    }
}

/// Projections of the same rows, with what is done to the rows before and to the results after.
#[derive(Clone, Copy)]
pub(crate) struct Projections<'a> {
    pub(crate) x: DeviceRows,
    /// Which rows of `x` results are made of: all of them, or those that are outputs.
    pub(crate) rows: Rows,
    /// The norm that rows go through first.
    pub(crate) norm: Option<Norm>,
    pub(crate) list: &'a [Projection],
    /// What is added to the result, where there is one.
    pub(crate) residual: Option<DeviceRows>,
}

impl Projections<'_> {
    /// Which rows of `x` are wanted, i32; absent where all are.
    pub(crate) fn select(&self, site: &Site<'_>) -> Region {
        site.select(self.x.rows, self.rows)
    }

    /// The gain of the norm, or an absent operand.
    pub(crate) fn gain(&self, site: &Site<'_>) -> Region {
        site.vector(self.norm.map(|norm| norm.weight))
    }

    /// The epsilon of the norm.
    pub(crate) fn eps(&self) -> f32 {
        self.norm.map_or(0.0, |norm| norm.eps)
    }

    /// Where the residual lies, or an absent operand.
    pub(crate) fn residual_region(&self) -> Region {
        self.residual.map_or(Region::default(), |residual| residual.region)
    }

    /// The format of the first weight, which is that of all where a kernel takes one format.
    pub(crate) fn format(&self, site: &Site<'_>) -> DeviceFormat {
        site.loaded.weights.get(self.list[0].linear.weight).format
    }

    /// Output features of each.
    pub(crate) fn features(&self, site: &Site<'_>) -> Vec<usize> {
        self.list.iter().map(|projection| site.loaded.weights.get(projection.linear.weight).rows).collect()
    }

    /// What kernels are chosen by, with [`Projections::features`]; all weights are in one format.
    pub(crate) fn shape<'f>(&self, site: &Site<'_>, features: &'f [usize]) -> ProjectionsShape<'f> {
        let glu = self.list.iter().any(|projection| projection.up.is_some());
        let (format, rows) = (self.format(site), site.num_rows(self.rows));
        ProjectionsShape { format, rows, k: self.x.width, glu, features }
    }

    /// Pieces of as many projections as one launch takes.
    pub(crate) fn in_launches(&self) -> impl Iterator<Item = Self> {
        self.list.chunks(SEGMENTS).map(|list| Self { list, ..*self })
    }
}

/// Projections of the same rows, all with weights of one format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProjectionsShape<'a> {
    pub(crate) format: DeviceFormat,
    pub(crate) rows: usize,
    /// Input features.
    pub(crate) k: usize,
    /// Whether gate and up are computed at once.
    pub(crate) glu: bool,
    /// Output features of each projection.
    pub(crate) features: &'a [usize],
}

impl ProjectionsShape<'_> {
    /// What choices for `kernel` are called: `gemm_narrow Q4_0 rows=8 k=4096 n=4096+1024+1024`; of gated units `glu` too.
    pub(crate) fn key(&self, kernel: &str) -> String {
        let features: Vec<_> = self.features.iter().map(usize::to_string).collect();
        let glu = if self.glu { " glu" } else { "" };
        format!("{kernel} {:?} rows={} k={} n={}{glu}", self.format, self.rows, self.k, features.join("+"))
    }
}
