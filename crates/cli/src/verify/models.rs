//! Models op by op and token by token, on two devices.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use backend::conformance::checkpoints::{self, Checkpoint, Comparison, InPlace, Place, Side, Work};
use backend::conformance::parity::{self, Parity, Parting};
use backend::conformance::{MODEL_TYPES, side_by_side};
use backend::reference::ReferenceBackend;
use formats::TokenizerSource;
use indicatif::ProgressBar;
use plan::{KvFormat, KvLayout, Plan};
use serde::Serialize;
use tensor::{Tensor, WeightFormat};
use tokenizer::ParseSpecial;

use super::args::VerifyArgs;
use super::devices::{self, Named};
use crate::load::facts::KV_BLOCK_LEN;
use crate::load::find;
use crate::load::plan::{plan_of, with_shared_slots};
use crate::load::text::load_tokenizer;
use crate::units;

/// Long enough for a step of many tokens.
const PROMPT: &str = "Once upon a time, in a green valley in the hills, there was a little fox who counted the stars. One \
                      evening she met";
/// Tokens of a prompt for a model that has no tokenizer.
const RANDOM_PROMPT_LEN: usize = 24;

/// A model to compare.
pub(super) struct Subject {
    pub(super) name: String,
    format: String,
    pub(super) textbook: Arc<Plan>,
    work: Work,
    /// What a text begins with; none for models whose text means nothing.
    prompt: Option<Vec<u32>>,
}

/// What came of one model on one pair of devices.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ModelResult {
    pub(super) model: String,
    pub(super) format: String,
    pub(super) kv_type: String,
    pub(super) device: String,
    pub(super) against: String,
    pub(super) steps: usize,
    /// Every result of every op, each in the step where it was worst.
    pub(super) checkpoints: Vec<CheckpointRow>,
    pub(super) first_beyond: Option<CheckpointRow>,
    /// Every result of every op from the operands that the device had.
    pub(super) in_place: Vec<InPlaceRow>,
    pub(super) first_out_of_bound: Option<InPlaceRow>,
    /// Choices of experts that were compared with the reference's; the rest is compared on the device's own choices.
    pub(super) expert_choices: usize,
    /// Those that went the other way, between scores that the device's rounding cannot tell apart.
    pub(super) expert_flips: usize,
    pub(super) parity: Option<ParityRow>,
    /// In words.
    pub(super) faults: Vec<String>,
}

impl ModelResult {
    /// Whether the two devices have to give the same bits, and do.
    pub(super) fn is_bit_for_bit(&self) -> bool {
        self.faults.is_empty() && self.checkpoints.iter().all(|checkpoint| checkpoint.nmse_max == 0.0)
    }
}

/// Which result of which op.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PlaceRow {
    pub(super) index: usize,
    pub(super) op: &'static str,
    pub(super) layer: Option<usize>,
    pub(super) result: Option<String>,
    #[serde(skip)]
    pub(super) name: String,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct CheckpointRow {
    #[serde(flatten)]
    pub(super) place: PlaceRow,
    pub(super) step: usize,
    pub(super) max_abs: f64,
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) found: f32,
    pub(super) expected: f32,
    pub(super) cosine: f64,
    pub(super) nmse: f64,
    pub(super) nmse_max: f64,
    pub(super) not_finite: Option<&'static str>,
    pub(super) beyond: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct InPlaceRow {
    #[serde(flatten)]
    pub(super) place: PlaceRow,
    pub(super) step: usize,
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) found: f32,
    pub(super) expected: f64,
    pub(super) bound: f64,
    pub(super) share: f64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ParityRow {
    pub(super) prompt_token_ids: Vec<u32>,
    pub(super) token_ids: Vec<u32>,
    pub(super) equal: usize,
    pub(super) ties: Vec<PartingRow>,
    pub(super) mismatches: Vec<PartingRow>,
    pub(super) worst_nmse: f64,
    pub(super) worst_nmse_position: usize,
    pub(super) nmse_max: f64,
    pub(super) first_beyond: Option<usize>,
    pub(super) first_not_finite: Option<usize>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct PartingRow {
    position: usize,
    found: u32,
    expected: u32,
    margin: f64,
    noise: f64,
}

/// The models that the flags ask for.
pub(super) fn subjects(args: &VerifyArgs) -> Result<Vec<Subject>> {
    let mut subjects = Vec::new();
    if args.model.is_none() {
        let formats = WeightFormat::ALL.into_iter().filter(|&format| args.wants_format(format));
        let tiny: Vec<_> = formats.flat_map(|format| MODEL_TYPES.map(|model_type| (format, model_type))).collect();
        // To pack their weights takes seconds of a processor.
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        subjects = side_by_side(&tiny, threads, |&(format, model_type)| {
            let (textbook, work) = Work::tiny(model_type, format, kv_format(args, &[format]));
            let name = format!("tiny {model_type}");
            Ok::<_, anyhow::Error>(Subject { name, format: format.name().to_owned(), textbook, work, prompt: None })
        })?;
    }
    let of_file = checkpoint(args)?;
    if args.model.is_some() || of_file.work.weights.iter().any(|tensor| args.wants_format(tensor.format())) {
        subjects.push(of_file);
    }
    Ok(subjects)
}

/// The model of MODEL, or the built-in one.
fn checkpoint(args: &VerifyArgs) -> Result<Subject> {
    let (mut checkpoint, name) = find::open(args.model.as_deref(), false)?;
    let in_model = || format!("cannot load `{name}`");
    // As the commands that run models read it.
    checkpoint.sort_features();
    let textbook = plan_of(&checkpoint).with_context(in_model)?;
    let weights = textbook.weights.iter().map(|weight| checkpoint.tensor(&weight.name));
    let weights: Vec<Tensor> = weights.collect::<Result<_, _>>().with_context(in_model)?;
    let mut formats: Vec<_> = weights.iter().filter(|tensor| tensor.shape().len() > 1).map(Tensor::format).collect();
    formats.sort_unstable();
    formats.dedup();
    let vocabulary = std::mem::replace(&mut checkpoint.tokenizer, TokenizerSource::None);
    let prompt = match load_tokenizer(vocabulary, false) {
        Ok(tokenizer) => {
            let mut ids = tokenizer.prefix_ids().to_vec();
            ids.extend(tokenizer.encode(args.prompt.as_deref().unwrap_or(PROMPT), ParseSpecial::No)?);
            if let Some(id) = ids.iter().find(|&&id| id as usize >= textbook.vocab_size) {
                bail!(
                    "{}: the tokenizer has a token {id}, but the model only {}: they do not belong together",
                    in_model(),
                    textbook.vocab_size
                );
            }
            ids
        }
        Err(error) if args.prompt.is_some() => {
            return Err(error.context(format!("{}: no --prompt without a tokenizer", in_model())));
        }
        Err(error) => {
            tracing::info!("random token ids in place of a prompt: {error:#}");
            checkpoints::random_prompt(RANDOM_PROMPT_LEN, textbook.vocab_size)
        }
    };
    if prompt.is_empty() {
        bail!("the prompt has no tokens");
    }
    // The same experts as the commands that run models.
    let textbook = with_shared_slots(textbook, &weights.iter().map(Tensor::format).collect::<Vec<_>>(), &[]);
    let kv_len = prompt.len() + args.n_predict;
    if kv_len > textbook.context_len {
        bail!(
            "{} tokens of prompt and -n {} are more than the {} tokens that `{name}` was made for",
            prompt.len(),
            args.n_predict,
            textbook.context_len
        );
    }
    let num_blocks = kv_len.div_ceil(KV_BLOCK_LEN);
    let kv = KvLayout { format: kv_format(args, &formats), block_len: KV_BLOCK_LEN, num_blocks };
    Ok(Subject {
        name,
        format: formats.iter().map(|format| format.name()).collect::<Vec<_>>().join("+"),
        textbook: Arc::new(textbook),
        work: Work::of_prompt(&prompt, weights, kv),
        prompt: Some(prompt),
    })
}

/// As the commands that run models choose it.
fn kv_format(args: &VerifyArgs, formats: &[WeightFormat]) -> KvFormat {
    let exact = formats.iter().all(|&format| format == WeightFormat::F32);
    args.kv_type.map_or(if exact { KvFormat::F32 } else { KvFormat::F16 }, Into::into)
}

impl Subject {
    /// How far the progress goes while it is compared.
    pub(super) fn num_steps(&self, args: &VerifyArgs, device: &Named, other: &Named) -> usize {
        let (device, other) = self.sides(device, other);
        checkpoints::num_ops(&device, &other, &self.work) + self.prompt.as_ref().map_or(0, |_| args.n_predict)
    }

    /// Whether it is one of the tiny random models, which take no time.
    pub(super) fn is_small(&self) -> bool {
        self.prompt.is_none()
    }

    pub(super) fn weights(&self) -> &[Tensor] {
        &self.work.weights
    }

    fn sides<'a>(&self, device: &'a Named, other: &'a Named) -> (Side<'a>, Side<'a>) {
        (Side::new(&*device.backend, &self.textbook), Side::new(&*other.backend, &self.textbook))
    }

    /// Whether `device` computes from all of its matrices as they are.
    pub(super) fn is_computed_as_it_is(&self, device: &Named) -> bool {
        let is_kept = kept_by(device);
        self.weights().iter().all(is_kept)
    }

    /// What is compared: matrices as `device` computes from them.
    fn work_on(&self, device: &Named) -> Work {
        let is_kept = kept_by(device);
        let as_computed = |tensor: &Tensor| if is_kept(tensor) { tensor.clone() } else { tensor.to_q8_0() };
        let Work { kv, ref steps, .. } = self.work;
        Work { weights: self.weights().iter().map(as_computed).collect(), kv, steps: steps.clone() }
    }

    /// Compares `device` with `other`.
    pub(super) fn compare(
        &self,
        args: &VerifyArgs,
        device: &Named,
        other: &Named,
        progress: &ProgressBar,
    ) -> Result<ModelResult> {
        self.check_memory(args, device, other)?;
        let work = self.work_on(device);
        let in_model = || format!("cannot compare `{}` on {} with {}", self.name, device.name, other.name);
        let (on_device, on_other) = self.sides(device, other);
        progress.set_message(format!("{} in {}", self.name, self.format));
        let comparison = checkpoints::compare(&on_device, &on_other, &work, &mut || progress.inc(1));
        let comparison = comparison.with_context(in_model)?;
        let parity = match &self.prompt {
            Some(prompt) if args.n_predict > 0 => {
                progress.set_message(format!("{}: greedy text", self.name));
                let parity =
                    parity::greedy(&on_device, &on_other, &work, prompt, args.n_predict, &mut || progress.inc(1));
                Some((prompt, parity.with_context(in_model)?))
            }
            _ => None,
        };
        let mut faults = faults_of(&comparison);
        faults.extend(parity.iter().flat_map(|(_, parity)| faults_of_text(parity)));
        Ok(ModelResult {
            model: self.name.clone(),
            format: self.format.clone(),
            kv_type: format!("{:?}", self.work.kv.format).to_ascii_lowercase(),
            device: device.name.clone(),
            against: other.name.clone(),
            steps: self.work.steps.len(),
            checkpoints: comparison.checkpoints.iter().map(CheckpointRow::from).collect(),
            first_beyond: comparison.first_beyond.as_ref().map(CheckpointRow::from),
            in_place: comparison.in_place.iter().map(InPlaceRow::from).collect(),
            first_out_of_bound: comparison.first_out_of_bound.as_ref().map(InPlaceRow::from),
            expert_choices: comparison.experts.compared,
            expert_flips: comparison.experts.flips,
            parity: parity.map(|(prompt, parity)| ParityRow::new(prompt, parity)),
            faults,
        })
    }

    /// The reference holds every weight as f32: better to say so than to be killed.
    fn check_memory(&self, args: &VerifyArgs, device: &Named, other: &Named) -> Result<()> {
        let uses_reference = [device, other].iter().any(|named| named.name == ReferenceBackend::NAME);
        let num_weights: usize = self.work.weights.iter().map(|tensor| tensor.shape().iter().product::<usize>()).sum();
        let (needed, found) = (num_weights as u64 * 4, devices::memory_bytes(args)?);
        if uses_reference && needed > found {
            bail!(
                "the reference holds the weights of `{}` as f32, which takes {} of this machine's {}: compare with an \
                 instruction set, --against avx2",
                self.name,
                units::bytes(needed),
                units::bytes(found)
            );
        }
        Ok(())
    }
}

/// Whether a tensor is computed from as it is, and not as the Q8_0 that comes nearest.
fn kept_by(device: &Named) -> impl Fn(&Tensor) -> bool {
    let formats = device.backend.claims().formats;
    move |tensor| tensor.shape().len() < 2 || formats.contains(&tensor.format())
}

fn faults_of(comparison: &Comparison) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some(first) = &comparison.first_beyond {
        let Checkpoint { place, step, max_abs, at, found, expected, cosine, nmse, nmse_max, not_finite, .. } = first;
        faults.push(match not_finite {
            Some(who) => format!("{place} in step {step}: {who} made numbers that are not finite"),
            None if *nmse_max == 0.0 => format!(
                "{place} in step {step} is the first to differ: {found:e} where {expected:e} has to be the same bits, at row \
                 {} column {} (L∞ {max_abs:.1e}, cosine {cosine:.6})",
                at.0, at.1
            ),
            None => format!(
                "{place} in step {step} is the first beyond its tolerance: NMSE {nmse:.1e}, at most {nmse_max:.1e} (L∞ \
                 {max_abs:.1e} at row {} column {}: {found:e} for {expected:e}; cosine {cosine:.6})",
                at.0, at.1
            ),
        });
    }
    if let Some(wrong) = &comparison.experts.fault {
        faults.push(format!("a router: {wrong}"));
    }
    if let Some(first) = &comparison.first_out_of_bound {
        let InPlace { place, step, at, found, expected, bound, .. } = first;
        faults.push(format!(
            "{place} in step {step} is wrong in itself: from its own operands row {} column {} is {found:e}, expected \
             {expected:e} ± {bound:.1e}",
            at.0, at.1
        ));
    }
    faults
}

fn faults_of_text(parity: &Parity) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some(position) = parity.first_not_finite {
        faults.push(format!("logits of greedy token {position} are not finite"));
    }
    if let Some(Parting { position, found, expected, margin, noise }) = parity.mismatches.first() {
        faults.push(format!(
            "greedy token {position} is {found}, the other's {expected}: decided by {margin:.1e}, with noise up to {noise:.1e}"
        ));
    }
    if let Some(position) = parity.first_beyond {
        let Parity { worst_nmse: (nmse, worst), nmse_max, .. } = parity;
        faults.push(format!(
            "logits from greedy token {position} on are beyond their tolerance: NMSE up to {nmse:.1e} at {worst}, at most \
             {nmse_max:.1e}"
        ));
    }
    faults
}

impl From<&Place> for PlaceRow {
    fn from(place: &Place) -> Self {
        let &Place { index, op, layer, ref result, .. } = place;
        Self { index, op, layer, result: result.clone(), name: place.to_string() }
    }
}

impl From<&Checkpoint> for CheckpointRow {
    fn from(checkpoint: &Checkpoint) -> Self {
        let &Checkpoint { ref place, step, max_abs, at: (row, column), found, expected, cosine, .. } = checkpoint;
        let &Checkpoint { nmse, nmse_max, not_finite, beyond, .. } = checkpoint;
        let place = place.into();
        Self { place, step, max_abs, row, column, found, expected, cosine, nmse, nmse_max, not_finite, beyond }
    }
}

impl From<&InPlace> for InPlaceRow {
    fn from(in_place: &InPlace) -> Self {
        let &InPlace { ref place, step, at: (row, column), found, expected, bound, share } = in_place;
        Self { place: place.into(), step, row, column, found, expected, bound, share }
    }
}

impl ParityRow {
    fn new(prompt: &[u32], parity: Parity) -> Self {
        let rows = |partings: Vec<Parting>| {
            let row = |Parting { position, found, expected, margin, noise }| PartingRow {
                position,
                found,
                expected,
                margin,
                noise,
            };
            partings.into_iter().map(row).collect()
        };
        Self {
            prompt_token_ids: prompt.to_vec(),
            token_ids: parity.token_ids,
            equal: parity.equal,
            ties: rows(parity.ties),
            mismatches: rows(parity.mismatches),
            worst_nmse: parity.worst_nmse.0,
            worst_nmse_position: parity.worst_nmse.1,
            nmse_max: parity.nmse_max,
            first_beyond: parity.first_beyond,
            first_not_finite: parity.first_not_finite,
        }
    }
}
