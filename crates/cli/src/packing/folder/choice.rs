//! Which tensors of a folder of safetensors become what.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use formats::gguf_names::Names;
use formats::{Checkpoint, PackedLayout, TensorInfo};
use plan::{Plan, Value};
use tensor::WeightFormat;

use crate::gguf_architectures;
use crate::packing::importance::{ImportanceOf, Importances, projections};
use crate::packing::job::{FormatOverride, PackingJob, SafetensorsTarget};
use crate::packing::scales::Scales;

/// What becomes of a tensor.
pub(super) enum TensorFate {
    /// The same bytes.
    Kept,
    Plain(WeightFormat),
    Packed(HowPacked),
}

/// Matrices that are multiplied with the same input, as q, k and v are, or gate and up of an expert: runtimes make one of
/// them, so they have one scale of a matrix. It is found when the first is packed.
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
    /// Matrices that rows are multiplied with, sorted, and those that are given the same rows; not those that choose
    /// experts, because a rounding may choose others.
    projections: Vec<(String, Siblings)>,
    /// Which of how many experts of a layer a matrix is.
    experts: HashMap<String, (usize, usize)>,
    /// Matrices that choose experts, and what weighs an expert that all rows are given to.
    routers: HashSet<String>,
    /// What plain numbers are where the source has none.
    plain: WeightFormat,
    /// Modules that are not packed.
    pub(super) ignored: Vec<String>,
    packed: usize,
}

impl<'a> TensorChoice<'a> {
    pub(super) fn new(job: &'a PackingJob, target: SafetensorsTarget, checkpoint: &Checkpoint, plan: &Plan) -> Self {
        let (mut experts, mut routers) = (HashMap::new(), HashSet::new());
        let mut inputs: BTreeMap<(Value, Option<usize>), Vec<String>> = BTreeMap::new();
        for projection in projections(plan) {
            let weight = plan.weight(projection.weight);
            let name = weight.name.clone();
            // A gate of one number for a row.
            if projection.routes || weight.shape.first() == Some(&1) {
                routers.insert(name);
                continue;
            }
            let expert = projection.expert.map(|(expert, _)| expert);
            inputs.entry((projection.input, expert)).or_default().push(name.clone());
            experts.extend(projection.expert.map(|of| (name, of)));
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
        Self {
            target,
            overrides,
            is_tied,
            names,
            used,
            scales,
            projections,
            experts,
            routers,
            plain,
            ignored,
            packed: 0,
        }
    }

    /// What a tensor becomes.
    pub(super) fn of(&mut self, info: &TensorInfo, importance: &mut Importances) -> Result<TensorFate> {
        let own =
            info.format.with_context(|| format!("`{}` is of type {}, which is not read", info.name, info.type_name))?;
        let plain = |format: WeightFormat| if format == own { TensorFate::Kept } else { TensorFate::Plain(format) };
        let gguf_name = self.names.gguf_tensor(&info.name).unwrap_or_else(|| info.name.clone());
        let is_matrix = info.shape.len() > 1;
        let projection = self.projections.binary_search_by(|(name, _)| name.cmp(&info.name)).ok();
        let is_projection = projection.is_some() || self.routers.contains(&info.name);
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
            // The head is in the list from the start.
            if is_projection && module != "lm_head" {
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
                    let (expert, experts) = self.experts.get(&info.name).copied().unzip();
                    let features = info.shape.last().map_or(0, |&features| features as usize);
                    let of = ImportanceOf { name: &gguf_name, features, experts: experts.unwrap_or(1), expert };
                    let scales = importance.scales(&of, true)?.unwrap_or_else(|| self.scales.clone());
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
