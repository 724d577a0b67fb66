//! Which tensors of a folder of safetensors become what.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use formats::gguf_names::Names;
use formats::{Checkpoint, PackedLayout, TensorInfo};
use plan::{Plan, Value};
use tensor::WeightFormat;

use crate::gguf_architectures;
use crate::packing::importance::{Importances, projections};
use crate::packing::job::{FormatOverride, PackingJob, SafetensorsTarget};
use crate::packing::scales::Scales;
use crate::packing::source::Matrix;

/// What becomes of a tensor.
pub(super) enum TensorFate {
    /// The same bytes.
    Kept,
    Plain(WeightFormat),
    Packed(HowPacked),
}

/// Matrices that are multiplied with the same input, as q, k and v are: runtimes make one of them, so they have one
/// scale of a matrix. It is found when the first is packed.
#[derive(Clone)]
pub(super) struct Siblings {
    pub(super) names: Rc<[String]>,
    pub(super) global: Rc<Cell<Option<f32>>>,
}

/// How a matrix is packed.
#[derive(Clone)]
pub(super) struct HowPacked {
    pub(super) layout: PackedLayout,
    pub(super) scales: Scales,
    pub(super) siblings: Siblings,
}

/// Which tensors become what.
pub(super) struct TensorChoice<'a> {
    pub(super) target: SafetensorsTarget,
    overrides: &'a [FormatOverride],
    is_tied: bool,
    /// GGUF's, by which matrices may be meant.
    names: Names,
    used: Vec<bool>,
    scales: Scales,
    /// Matrices that rows are multiplied with, sorted, and those that are given the same rows.
    projections: Vec<(String, Siblings)>,
    /// What plain numbers are where the source has none.
    plain: WeightFormat,
    /// Modules that are not packed.
    pub(super) ignored: Vec<String>,
    packed: usize,
}

impl<'a> TensorChoice<'a> {
    pub(super) fn new(job: &'a PackingJob, target: SafetensorsTarget, checkpoint: &Checkpoint, plan: &Plan) -> Self {
        let mut inputs: BTreeMap<Value, Vec<String>> = BTreeMap::new();
        for (input, weight) in projections(plan) {
            inputs.entry(input).or_default().push(plan.weight(weight).name.clone());
        }
        let mut projections = Vec::new();
        for names in inputs.into_values() {
            let siblings = Siblings { names: names.into(), global: Rc::default() };
            projections.extend(siblings.names.iter().map(|name| (name.clone(), siblings.clone())));
        }
        projections.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let dtype = ["dtype", "torch_dtype"].into_iter().find_map(|key| checkpoint.config.get(key)?.as_str());
        let plain = match dtype {
            Some("float16") => WeightFormat::F16,
            Some("float32") => WeightFormat::F32,
            _ => WeightFormat::BF16,
        };
        let is_tied = plan.weights.iter().all(|weight| weight.name != "lm_head.weight");
        let (overrides, used) = (&job.overrides[..], vec![false; job.overrides.len()]);
        let scales = if job.plain { Scales::Plain } else { Scales::Searched };
        // What layouts are asked for by name stays as it is for readers that look at nothing but the list.
        let ignored = vec!["lm_head".to_owned()];
        let names = gguf_architectures::names(&plan.model_type);
        Self { target, overrides, is_tied, names, used, scales, projections, plain, ignored, packed: 0 }
    }

    /// What a tensor becomes.
    pub(super) fn of(&mut self, info: &TensorInfo, importance: &mut Importances) -> Result<TensorFate> {
        let own =
            info.format.with_context(|| format!("`{}` is of type {}, which is not read", info.name, info.type_name))?;
        let plain = |format: WeightFormat| if format == own { TensorFate::Kept } else { TensorFate::Plain(format) };
        let gguf_name = self.names.gguf_tensor(&info.name).unwrap_or_else(|| info.name.clone());
        let is_matrix = info.shape.len() > 1;
        let projection = self.projections.binary_search_by(|(name, _)| name.cmp(&info.name)).ok();
        let is_projection = projection.is_some();
        let module = info.name.strip_suffix(".weight").unwrap_or(&info.name).to_owned();
        let mut chosen = None;
        for (chosen_by, used) in self.overrides.iter().zip(&mut self.used) {
            if is_matrix
                && (info.name.contains(&chosen_by.name) || chosen_by.is_of(&gguf_name, self.names, self.is_tied))
            {
                *used = true;
                chosen = Some(chosen_by.format);
            }
        }
        let ignore = |ignored: &mut Vec<String>| {
            if is_projection && !ignored.contains(&module) {
                ignored.push(module.clone());
            }
        };
        if let Some(format) = chosen {
            if format.is_quantized() {
                bail!("--tensor {}={format}: of safetensors, single matrices can be f16, bf16 or f32", info.name);
            }
            ignore(&mut self.ignored);
            return Ok(plain(format));
        }
        match self.target {
            SafetensorsTarget::Plain(format) => Ok(plain(format)),
            SafetensorsTarget::Packed(layout) => {
                let divides = match info.shape[..] {
                    [rows, cols] => layout.divides(usize::try_from(rows)?, usize::try_from(cols)?),
                    _ => false,
                };
                if let Some(at) = projection.filter(|_| module != "lm_head" && divides) {
                    self.packed += 1;
                    let siblings = self.projections[at].1.clone();
                    let (shape, type_name) = (info.shape.clone(), info.type_name);
                    let matrix = Matrix { name: gguf_name, shape, type_name, format: info.format, bytes: info.bytes };
                    let scales = importance.scales(&matrix, true)?.unwrap_or_else(|| self.scales.clone());
                    return Ok(TensorFate::Packed(HowPacked { layout, scales, siblings }));
                }
                ignore(&mut self.ignored);
                Ok(plain(if own.is_quantized() { self.plain } else { own }))
            }
        }
    }

    /// Refuses what was asked for in vain.
    pub(super) fn check(&self, source: &str) -> Result<()> {
        if let Some((unused, _)) = self.overrides.iter().zip(&self.used).find(|(_, used)| !**used) {
            bail!("--tensor {}: no matrix of `{}` has that in its name", unused.name, source);
        }
        if let (SafetensorsTarget::Packed(layout), 0) = (self.target, self.packed) {
            bail!("no projection of `{}` divides into {}: choose another --format", source, layout.name());
        }
        Ok(())
    }
}
