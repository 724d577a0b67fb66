//! Importance: how much each feature of a projection's input counts when scales are searched for.
//!
//! It comes from a file of llama.cpp's (`--imatrix`), or from a text (`--imatrix-text`): the source predicts it on the
//! CPU, in windows as `eval` cuts them, and the squares of what each projection is given are added up. The plan as the
//! model file wrote it is what runs, so that every projection's input is a value of its own. Weights stay where the
//! file is mapped.

use std::collections::{BTreeMap, HashMap, HashSet};
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

/// The matrix, or the stack of a layer's experts, whose importance is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImportanceOf<'a> {
    /// GGUF's name.
    pub(super) name: &'a str,
    /// Weights of a row.
    pub(super) features: usize,
    /// Matrices that have this name: the experts of a stack, otherwise 1.
    pub(super) experts: usize,
    /// The one of them that is meant; `None` for all.
    pub(super) expert: Option<usize>,
}

impl<'a> From<&'a Matrix> for ImportanceOf<'a> {
    fn from(matrix: &'a Matrix) -> Self {
        let features = matrix.shape.last().map_or(0, |&features| features as usize);
        let experts = matrix.shape.iter().rev().skip(2).product::<u64>() as usize;
        Self { name: &matrix.name, features, experts, expert: None }
    }
}

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
    pub(super) fn scales(&mut self, matrix: &ImportanceOf<'_>, chooses: bool) -> Result<Option<Scales>> {
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
    fn scales(&mut self, matrix: &ImportanceOf<'_>, chooses: bool) -> Result<Option<Scales>> {
        let &ImportanceOf { name, features, experts, expert } = matrix;
        let Some(found) = self.imatrix.entries.get(name) else {
            // Embeddings are looked up, and nothing is multiplied with them.
            if chooses && name != EMBEDDINGS && self.missing.last().is_none_or(|last| last != name) {
                self.missing.push(name.to_owned());
            }
            return Ok(None);
        };
        let (values, matrices) = (found.sums.len(), found.counts.len());
        if values != features.saturating_mul(matrices) || ![1, experts].contains(&matrices) {
            bail!(
                "the importance matrix `{}` is of another model: it has {values} values in {matrices} matrices for `{name}`, \
                 whose rows have {features} weights; make one with --imatrix-text",
                self.about.name,
            );
        }
        self.used += 1;
        let all = Scales::Weighted { importance: normalised(found), matrices };
        Ok(Some(expert.map_or_else(|| all.clone(), |expert| all.of_part(expert, experts))))
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

/// What a plan multiplies with weights, as the model file wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Projection {
    /// What it is given.
    pub(super) input: Value,
    /// Of experts, which of them each row is given to.
    pub(super) ids: Option<Value>,
    pub(super) weight: WeightId,
    /// Which of how many experts it is.
    pub(super) expert: Option<(usize, usize)>,
    /// Whether it chooses experts.
    pub(super) routes: bool,
}

/// The projections of a plan. A matrix that rows are looked up in too, as embeddings are, is left out: what is looked
/// up is not weighted, and is not packed.
pub(super) fn projections(plan: &Plan) -> impl Iterator<Item = Projection> {
    let (mut looked_up, mut chosen_by) = (Vec::new(), HashSet::new());
    for op in &plan.ops {
        match op {
            Op::Embed { table, .. } => looked_up.push(*table),
            Op::Route { logits, .. } => drop(chosen_by.insert(*logits)),
            _ => {}
        }
    }
    plan.ops.iter().flat_map(move |op| match *op {
        Op::Linear { x, linear, out } if !looked_up.contains(&linear.weight) => {
            let routes = chosen_by.contains(&out);
            vec![Projection { input: x, ids: None, weight: linear.weight, expert: None, routes }]
        }
        Op::ExpertLinear { x, ids, experts, .. } => {
            let projection = |expert: usize| {
                let weight = experts.linear(expert).weight;
                let expert = Some((expert, experts.count));
                Projection { input: x, ids: Some(ids), weight, expert, routes: false }
            };
            (0..experts.count).map(projection).collect()
        }
        _ => vec![],
    })
}

/// What projections are given, summed up. Experts each have sums of their own.
struct Input {
    /// The projections, by the names of their matrices in GGUF files.
    names: Vec<String>,
    /// (matrices, features).
    sums: Vec<f64>,
    /// (matrices,).
    rows: Vec<u64>,
    /// Features.
    width: usize,
}

impl Input {
    fn add(&mut self, matrix: usize, row: &[f32]) {
        let sums = &mut self.sums[matrix * self.width..(matrix + 1) * self.width];
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
        self.rows[matrix] += 1;
    }
}

/// The inputs of all projections of a plan: the value, and of experts the ids of those that each row is given to.
fn inputs(plan: &Plan) -> HashMap<(Value, Option<Value>), Input> {
    let gguf_names = gguf_architectures::names(&plan.model_type);
    let mut inputs: HashMap<(Value, Option<Value>), Input> = HashMap::new();
    for Projection { input, ids, weight, expert, .. } in projections(plan) {
        // One entry for all experts.
        if expert.is_some_and(|(expert, _)| expert > 0) {
            continue;
        }
        let (weight, matrices) = (plan.weight(weight), expert.map_or(1, |(_, count)| count));
        let width = weight.shape.last().copied().unwrap_or(0);
        let input = inputs.entry((input, ids)).or_insert_with(|| Input {
            names: Vec::new(),
            sums: vec![0.0; matrices * width],
            rows: vec![0; matrices],
            width,
        });
        input.names.push(gguf_names.gguf_tensor(&weight.name).unwrap_or_else(|| weight.name.clone()));
    }
    inputs
}

/// What the projections of a plan were given so far.
struct Seen<'a> {
    plan: &'a Plan,
    inputs: HashMap<(Value, Option<Value>), Input>,
    /// Values that experts are given, and ids of experts, as they were shown last.
    of_experts: HashMap<Value, Vec<f32>>,
    /// The first op that is given such a value: gate and up are given the same, which is added once.
    first: HashMap<(Value, Value), usize>,
}

impl<'a> Seen<'a> {
    fn new(plan: &'a Plan) -> Self {
        let (mut of_experts, mut first) = (HashMap::new(), HashMap::new());
        for (index, op) in plan.ops.iter().enumerate() {
            if let Op::ExpertLinear { x, ids, .. } = *op {
                of_experts.extend([(x, Vec::new()), (ids, Vec::new())]);
                first.entry((x, ids)).or_insert(index);
            }
        }
        Self { plan, inputs: inputs(plan), of_experts, first }
    }

    /// Takes in a result of op `index`.
    fn observe(&mut self, index: usize, which: Observed, elements: &[f32]) {
        let Observed::Value(value) = which else { return };
        if let Some(kept) = self.of_experts.get_mut(&value) {
            kept.clear();
            kept.extend_from_slice(elements);
        }
        if let Some(input) = self.inputs.get_mut(&(value, None)) {
            elements.chunks_exact(input.width.max(1)).for_each(|row| input.add(0, row));
        }
        // Now the value and the ids have both been shown, whichever came first.
        let Some(&Op::ExpertLinear { x, ids, .. }) = self.plan.ops.get(index) else { return };
        if self.first.get(&(x, ids)) != Some(&index) {
            return;
        }
        let (Some(rows), Some(chosen)) = (self.of_experts.get(&x), self.of_experts.get(&ids)) else { return };
        let Some(input) = self.inputs.get_mut(&(x, Some(ids))) else { return };
        let (top_k, width) = (self.plan.value(ids).width, self.plan.value(x).width);
        for (row, chosen) in rows.chunks_exact(width.max(1)).zip(chosen.chunks_exact(top_k.max(1))) {
            // The same row for all of its experts, or a slice for each.
            let is_shared = width == input.width;
            for (slot, &expert) in chosen.iter().enumerate() {
                let start = if is_shared { 0 } else { slot * input.width };
                input.add(expert as usize, &row[start..start + input.width]);
            }
        }
    }

    /// By the names of matrices.
    fn into_entries(self) -> Result<BTreeMap<String, Importance>> {
        let mut entries = BTreeMap::new();
        for Input { names, sums, rows, .. } in self.inputs.into_values() {
            if let Some(sum) = sums.iter().find(|sum| !sum.is_finite() || **sum > f64::from(f32::MAX)) {
                bail!("`{}` is given features whose squares add up to {sum}: the model is damaged", names.join("`, `"));
            }
            let sums = sums.iter().map(|&sum| sum as f32).collect();
            let importance = Importance { sums, counts: rows.iter().map(|&rows| rows as f32).collect() };
            entries.extend(names.into_iter().map(|name| (name, importance.clone())));
        }
        Ok(entries)
    }
}

/// Says how many experts no token of the text was given to: their features count alike.
fn note_unseen(entries: &BTreeMap<String, Importance>) {
    let experts = entries.iter().filter(|(_, entry)| entry.counts.len() > 1).map(|(name, entry)| (name, &entry.counts));
    // Of the matrices of an expert, one tells of all.
    let gates = experts.filter(|(name, _)| name.contains("ffn_gate_exps"));
    let (mut unseen, mut all) = (0, 0);
    for (_, counts) in gates {
        all += counts.len();
        unseen += counts.iter().filter(|&&count| count == 0.0).count();
    }
    if unseen > 0 {
        note(&format!(
            "no token of the text was given to {unseen} of {all} experts, so that the features of these count alike: a \
             longer text reaches more"
        ));
    }
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
    let mut seen = Seen::new(&plan);
    // The head's input has a row for each output; where the head is the embeddings, nobody asks for it.
    let all_outputs = seen.inputs.keys().any(|&(value, _)| plan.value(value).rows == plan::Rows::Outputs);
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
            executable.replay_observed(&input, &mut |index, which, elements| seen.observe(index, which, elements))?;
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    let entries = seen.into_entries()?;
    note_unseen(&entries);
    let (chunks, chunk_len) = (windows.len() as u64, window as u64);
    Ok(Imatrix { datasets: vec![dataset.to_owned()], chunks, chunk_len, entries })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_expert_is_given_the_rows_that_chose_it() {
        let config = json!({
            "model_type": "qwen3_moe", "vocab_size": 16, "hidden_size": 4, "intermediate_size": 12, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "num_experts": 3,
            "num_experts_per_tok": 2, "moe_intermediate_size": 2, "norm_topk_prob": true,
        });
        let plan = models::build_plan(&config, &plan::AnyShape).unwrap();
        let of_experts: Vec<(usize, Value, Value)> = (0..)
            .zip(&plan.ops)
            .filter_map(|(index, op)| match *op {
                Op::ExpertLinear { x, ids, .. } => Some((index, x, ids)),
                _ => None,
            })
            .collect();
        let [(gate, h, ids), (up, ..), (down, glu, _)] = of_experts[..] else { panic!("{plan}") };
        let mut seen = Seen::new(&plan);
        let defined = |value: Value| plan.ops.iter().position(|op| op.outputs().contains(&value)).unwrap();
        let out = |index: usize| plan.ops[index].outputs()[0];
        // Two rows: the first takes experts 2 and 0, the second 2 and 1.
        for (index, value, elements) in [
            (defined(h), h, &[1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 1.0, 0.0][..]),
            (defined(ids), ids, &[2.0, 0.0, 2.0, 1.0]),
            (gate, out(gate), &[0.0; 8]),
            (up, out(up), &[0.0; 8]),
            (defined(glu), glu, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
            (down, out(down), &[0.0; 16]),
        ] {
            seen.observe(index, Observed::Value(value), elements);
        }
        let entries = seen.into_entries().unwrap();
        let entry = |sums: &[f32]| Importance { sums: sums.into(), counts: vec![1.0, 1.0, 2.0] };
        let of_h = entry(&[1.0, 4.0, 9.0, 16.0, 0.0, 0.0, 1.0, 0.0, 1.0, 4.0, 10.0, 16.0]);
        assert_eq!(entries["blk.0.ffn_gate_exps.weight"], of_h);
        assert_eq!(entries["blk.0.ffn_up_exps.weight"], of_h);
        assert_eq!(entries["blk.0.ffn_down_exps.weight"], entry(&[9.0, 16.0, 49.0, 64.0, 26.0, 40.0]));
        let router = &entries["blk.0.ffn_gate_inp.weight"];
        assert_eq!((&router.sums[..], &router.counts[..]), (&[1.0, 4.0, 10.0, 16.0][..], &[2.0][..]));
    }
}
