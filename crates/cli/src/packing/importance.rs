//! Importance: how much each feature of a projection's input counts when scales are searched for.
//!
//! It comes from a file of llama.cpp's (`--imatrix`), or from a text (`--imatrix-text`): the source predicts it on the
//! CPU, in windows as `eval` cuts them, and the squares of what each projection is given are added up. The plan as the
//! model file wrote it is what runs, so that every projection's input is a value of its own. Weights stay where the
//! file is mapped.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use backend::{Backend, Observed};
use formats::gguf::{GgufWriter, Value as GgufValue};
use formats::{Imatrix, Importance};
use indicatif::{ProgressBar, ProgressStyle};
use plan::{KvFormat, KvLayout, Op, Plan, StepInput, Value, WeightId};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::scales::Scales;
use super::source::{EMBEDDINGS, Matrix};
use crate::load::device::{self, CPU, DeviceSettings};
use crate::load::facts::{KV_BLOCK_LEN, WINDOW, text_windows};
use crate::load::find;
use crate::load::plan::plan_of;
use crate::load::text::load_tokenizer;
use crate::output::note;
use crate::{files, gguf_architectures, units};

/// Tokens of a step.
const STEP_TOKENS: usize = 64;

/// Where importance is taken from.
#[derive(Clone, Debug)]
pub(crate) enum ImportanceSource {
    /// A file of llama.cpp's.
    Imatrix(PathBuf),
    /// A text that the model predicts.
    Text(PathBuf),
}

/// What importance is asked for.
#[derive(Clone, Debug)]
pub(crate) struct ImportanceSettings {
    pub(crate) source: Option<ImportanceSource>,
    /// Where the importance that a text gives is kept.
    pub(crate) keep_in: Option<PathBuf>,
    /// Whether a file there is replaced.
    pub(crate) replaces: bool,
    /// Tokens in a window of the text.
    pub(crate) window: Option<usize>,
    /// Windows of the text at most.
    pub(crate) windows_max: Option<usize>,
}

/// Where importance is from, as a receipt tells it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ImportanceOrigin {
    /// The file, as the user named it.
    name: String,
    /// `text` or `imatrix`.
    kind: &'static str,
    /// Of the file's bytes.
    sha256: String,
    /// What the model was given; of a file that does not say, nothing.
    tokens: Option<u64>,
    windows: u64,
    /// The texts.
    datasets: Vec<String>,
    /// Matrices that have importance.
    entries: usize,
}

/// What importance there is: none, or what `--imatrix` or `--imatrix-text` give.
pub(crate) struct Importances(Option<GivenImportance>);

/// The importance that a file or a text gives.
struct GivenImportance {
    imatrix: Imatrix,
    about: ImportanceOrigin,
    /// Matrices that were asked for and had none.
    missing: Vec<String>,
    used: usize,
}

/// The importance that `settings` ask for, of the model named `model`.
fn given(model: &str, settings: &ImportanceSettings) -> Result<Option<GivenImportance>> {
    if let Some(path) = settings.keep_in.as_ref().filter(|path| path.exists() && !settings.replaces) {
        bail!("`{}` exists; --force replaces it", path.display());
    }
    let (imatrix, name, kind, bytes) = match &settings.source {
        Some(ImportanceSource::Imatrix(path)) => {
            let read = || format!("cannot read the importance matrix `{}`", path.display());
            let bytes = files::read(path, "the importance matrix", files::TEXT_BYTES_MAX)?;
            let imatrix = Imatrix::read(bytes.clone().into()).with_context(read)?;
            (imatrix, path, "imatrix", bytes)
        }
        Some(ImportanceSource::Text(path)) => {
            let text = files::read_text(path, "", files::TEXT_BYTES_MAX)?;
            let collected = collect(model, settings, &text, &file_name(path));
            let imatrix = collected.with_context(|| format!("--imatrix-text: cannot use `{}`", path.display()))?;
            if let Some(path) = &settings.keep_in {
                files::write(path, &imatrix.to_gguf().to_bytes())?;
            }
            (imatrix, path, "text", text.into_bytes())
        }
        None => return Ok(None),
    };
    let about = ImportanceOrigin {
        name: name.display().to_string(),
        kind,
        sha256: units::hex(&Sha256::digest(&bytes)),
        tokens: Some(imatrix.chunks * imatrix.chunk_len).filter(|&tokens| tokens > 0),
        windows: imatrix.chunks,
        datasets: imatrix.datasets.clone(),
        entries: imatrix.entries.len(),
    };
    Ok(Some(GivenImportance { imatrix, about, missing: Vec::new(), used: 0 }))
}

impl Importances {
    /// What `settings` ask for, of the model named `model`.
    pub(crate) fn of(model: &str, settings: &ImportanceSettings) -> Result<Self> {
        given(model, settings).map(Self)
    }

    /// Whether there is any.
    pub(super) fn is_given(&self) -> bool {
        self.0.is_some()
    }

    /// The scales of `matrix` by its importance, if it has one; `chooses` where what it becomes has scales to choose.
    /// Refuses importance that is not of its features.
    pub(super) fn scales(&mut self, matrix: &Matrix, chooses: bool) -> Result<Option<Scales>> {
        self.0.as_mut().map_or(Ok(None), |given| given.scales(matrix, chooses))
    }

    /// Says which matrices have no importance, and refuses importance that is of none.
    pub(super) fn check(&self, source: &str) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |given| given.check(source))
    }

    /// What it is from.
    pub(super) fn about(&self) -> Option<&ImportanceOrigin> {
        self.0.as_ref().map(|given| &given.about)
    }

    /// What scales follow from besides weights, where `plain` ones are taken without importance or others searched for.
    pub(super) fn identity(&self, plain: bool) -> String {
        match &self.0 {
            Some(given) => given.identity(),
            None => if plain { "plain" } else { "searched" }.to_owned(),
        }
    }

    /// The keys that llama.cpp's quantiser writes; of files their names without folders.
    pub(super) fn write_metadata(&self, settings: &ImportanceSettings, writer: &mut GgufWriter) {
        if let Some(given) = &self.0 {
            given.write_metadata(settings, writer);
        }
    }
}

impl GivenImportance {
    fn scales(&mut self, matrix: &Matrix, chooses: bool) -> Result<Option<Scales>> {
        let Some(found) = self.imatrix.entries.get(&matrix.name) else {
            // Embeddings are looked up, and nothing is multiplied with them.
            if chooses && matrix.name != EMBEDDINGS {
                self.missing.push(matrix.name.clone());
            }
            return Ok(None);
        };
        let features = matrix.shape.last().map_or(0, |&features| features as usize);
        let experts = matrix.shape.iter().rev().skip(2).product::<u64>() as usize;
        let (values, matrices) = (found.sums.len(), found.counts.len());
        if values != features.saturating_mul(matrices) || ![1, experts].contains(&matrices) {
            bail!(
                "the importance matrix `{}` is of another model: it has {values} values in {matrices} matrices for `{}`, \
                 whose rows have {features} weights; make one with --imatrix-text",
                self.about.name,
                matrix.name,
            );
        }
        self.used += 1;
        Ok(Some(Scales::Weighted { importance: normalised(found), matrices }))
    }

    fn check(&self, source: &str) -> Result<()> {
        if self.used == 0 {
            bail!(
                "the importance matrix `{}` is of another model: none of its {} entries is of a matrix of `{source}`; make \
                 one with --imatrix-text",
                self.about.name,
                self.about.entries,
            );
        }
        if let Some(first) = self.missing.first() {
            let count = self.missing.len();
            note(&format!("`{}` has no importance for {count} matrices, the first `{first}`", self.about.name));
        }
        Ok(())
    }

    /// A hash of all of it.
    fn identity(&self) -> String {
        let mut hash = Sha256::new();
        for (name, importance) in &self.imatrix.entries {
            hash.update(name);
            importance.means().iter().for_each(|mean| hash.update(mean.to_le_bytes()));
        }
        units::hex(&hash.finalize())
    }

    fn write_metadata(&self, settings: &ImportanceSettings, writer: &mut GgufWriter) {
        let key = |name: &str| format!("quantize.imatrix.{name}");
        let number = |number: u64| GgufValue::U32(u32::try_from(number).unwrap_or(u32::MAX));
        let imatrix = match &settings.source {
            Some(ImportanceSource::Imatrix(path)) => Some(path),
            _ => settings.keep_in.as_ref(),
        };
        if let Some(path) = imatrix {
            writer.set_metadata(&key("file"), GgufValue::String(file_name(path)));
        }
        if let Some(dataset) = self.imatrix.datasets.first() {
            writer.set_metadata(&key("dataset"), GgufValue::String(dataset.clone()));
        }
        writer.set_metadata(&key("entries_count"), number(self.imatrix.entries.len() as u64));
        writer.set_metadata(&key("chunks_count"), number(self.imatrix.chunks));
    }
}

/// Mean squares over their mean, so that sums of them stay within f32 whatever the model's scale; all alike are all
/// one.
fn normalised(importance: &Importance) -> Vec<f32> {
    let means = importance.means();
    let mean = means.iter().map(|&mean| f64::from(mean)).sum::<f64>() / means.len().max(1) as f64;
    match mean > 0.0 && mean.is_finite() {
        true => means.iter().map(|&value| (f64::from(value) / mean) as f32).collect(),
        false => vec![1.0; means.len()],
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// A value that projections are given, and what was added up of it.
struct Input {
    /// The projections, by the names of their matrices in GGUF files.
    names: Vec<String>,
    sums: Vec<f64>,
    rows: u64,
}

/// What a plan multiplies with weights, and these; the plan as the model file wrote it. A matrix that rows are looked
/// up in too, as embeddings are, is left out: what is looked up is not weighted, and is not packed.
pub(super) fn projections(plan: &Plan) -> impl Iterator<Item = (Value, WeightId)> {
    let looked_up: Vec<WeightId> = plan
        .ops
        .iter()
        .filter_map(|op| match op {
            Op::Embed { table, .. } => Some(*table),
            _ => None,
        })
        .collect();
    plan.ops.iter().filter_map(move |op| match op {
        Op::Linear { x, linear, .. } if !looked_up.contains(&linear.weight) => Some((*x, linear.weight)),
        _ => None,
    })
}

/// The inputs of all projections of a plan.
fn inputs(plan: &Plan) -> HashMap<Value, Input> {
    let gguf_names = gguf_architectures::names(&plan.model_type);
    let mut inputs: HashMap<Value, Input> = HashMap::new();
    for (x, weight) in projections(plan) {
        let name = &plan.weight(weight).name;
        let width = plan.value(x).width;
        let input = inputs.entry(x).or_insert_with(|| Input { names: Vec::new(), sums: vec![0.0; width], rows: 0 });
        input.names.push(gguf_names.gguf_name(name).unwrap_or_else(|| name.clone()));
    }
    inputs
}

/// Has the model predict `text` and adds up the squares of what each of its projections is given.
fn collect(model: &str, settings: &ImportanceSettings, text: &str, dataset: &str) -> Result<Imatrix> {
    let (mut checkpoint, name) = find::open(Some(model), false)?;
    checkpoint.expand_unless(|_| false);
    let plan = plan_of(&checkpoint).with_context(|| format!("`{name}` cannot be computed"))?;
    let window = settings.window.unwrap_or(WINDOW.min(plan.context_len));
    if window < 4 || window > plan.context_len {
        bail!("--imatrix-ctx-size {window}: expected 4 to {}, which the model was made for", plan.context_len);
    }
    let tokenizer = load_tokenizer(checkpoint.tokenizer.clone(), false)?;
    let windows = text_windows(&tokenizer, text, window, settings.windows_max)?;
    let weights = plan.weights.iter().map(|weight| checkpoint.tensor(&weight.name)).collect::<Result<Vec<_>, _>>()?;
    // In place: a faster layout would be a copy of the model in memory.
    let backend = device::cpu_backend(&DeviceSettings { repack: false, ..DeviceSettings::on(CPU) })?;
    let kv = KvLayout { format: KvFormat::F32, block_len: KV_BLOCK_LEN, num_blocks: window.div_ceil(KV_BLOCK_LEN) };
    let table: Vec<u32> = (0..kv.num_blocks as u32).collect();
    let plan = Arc::new(plan);
    let mut executable = backend.load(plan.clone(), weights, kv)?;
    let mut inputs = inputs(&plan);
    // The head's input has a row for each output; where the head is the embeddings, nobody asks for it.
    let all_outputs = inputs.keys().any(|&value| plan.value(value).rows == plan::Rows::Outputs);
    let progress = ProgressBar::new(windows.len() as u64).with_style(
        ProgressStyle::with_template("importance {bar:30} {pos}/{len} windows, {eta} left").expect("a valid template"),
    );
    let mut input = StepInput::default();
    for tokens in &windows {
        for start in (0..tokens.len()).step_by(STEP_TOKENS) {
            let end = (start + STEP_TOKENS).min(tokens.len());
            input.clear();
            input.push_sequence(&tokens[start..end], start, &table[..end.div_ceil(KV_BLOCK_LEN)]);
            let len = (end - start) as u32;
            input.output_rows.extend(if all_outputs { 0..len } else { len - 1..len });
            executable.replay_observed(&input, &mut |_, which, elements| {
                let Observed::Value(value) = which else { return };
                let Some(Input { sums, rows, .. }) = inputs.get_mut(&value) else { return };
                for row in elements.chunks_exact(sums.len()) {
                    sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
                    *rows += 1;
                }
            })?;
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    let mut entries = BTreeMap::new();
    for Input { names, sums, rows } in inputs.into_values() {
        if let Some(sum) = sums.iter().find(|sum| !sum.is_finite() || **sum > f64::from(f32::MAX)) {
            bail!("`{}` is given features whose squares add up to {sum}: the model is damaged", names.join("`, `"));
        }
        let importance = Importance { sums: sums.iter().map(|&sum| sum as f32).collect(), counts: vec![rows as f32] };
        entries.extend(names.into_iter().map(|name| (name, importance.clone())));
    }
    let (chunks, chunk_len) = (windows.len() as u64, window as u64);
    Ok(Imatrix { datasets: vec![dataset.to_owned()], chunks, chunk_len, entries })
}
