//! Two devices op by op: what each op of a model made on one, beside what it made on the other, and which op is the first
//! that differs by more than it may.
//!
//! Both run the same steps, each in its own form of the plan; a fused result is compared with the textbook value that it
//! stands for. What went before an op is in its result, so differences grow on their way through a model; a second
//! comparison, *in place*, gives each op the operands that the device itself had, and holds its result to the bound that
//! follows from them: it says which op is wrong, not only from where on the values are.

use std::collections::BTreeMap;
use std::sync::Arc;

use plan::reference::{Choices, Chosen, Seen};
use plan::{Kind, KvFormat, KvLayout, Op, Plan, StepInput, Value, WeightId, fuse, restrict_outputs};
use tensor::{Tensor, WeightFormat};
use testing::tolerance::{self, Bounded};
use testing::{BlockPool, ErrorAnalysis, Rng, tiny_model};

use super::meaning::{Counterpart, counterparts};
use super::model_cases::random_steps;
use super::trial::router_noise;
use crate::reference::ReferenceBackend;
use crate::{Backend, BackendError, Claims, Observed};

/// A device and the form in which it runs the model.
#[derive(Clone)]
pub struct Side<'a> {
    /// The device.
    pub backend: &'a dyn Backend,
    /// Its plan.
    pub plan: Arc<Plan>,
}

impl<'a> Side<'a> {
    /// The device `backend` with the plan that a user of it gets, made from `textbook`: fused and with only the rows that
    /// are wanted; but textbook as it is on the reference, whose part is to say what the model means.
    pub fn new(backend: &'a dyn Backend, textbook: &Plan) -> Self {
        let textbook = textbook.clone();
        let plan =
            if backend.device().name == ReferenceBackend::NAME { textbook } else { fuse(restrict_outputs(textbook)) };
        Self { backend, plan: Arc::new(plan) }
    }
}

/// What both devices load, and the steps that they run.
#[derive(Clone, Debug)]
pub struct Work {
    /// In the order of the plan.
    pub weights: Vec<Tensor>,
    /// The cache.
    pub kv: KvLayout,
    /// In this order.
    pub steps: Vec<StepInput>,
}

impl Work {
    /// A tiny random model of an architecture, one of [`MODEL_TYPES`](super::MODEL_TYPES): its textbook plan, and
    /// [`Work::mixed`] for it.
    pub fn tiny(model_type: &str, format: WeightFormat, kv_format: KvFormat) -> (Arc<Plan>, Self) {
        let (textbook, weights) = tiny_model(model_type, 20, format);
        let kv = KvLayout { format: kv_format, block_len: 16, num_blocks: 30 };
        let work = Self::mixed(&textbook, weights, kv);
        (textbook, work)
    }

    /// Steps that mix several sequences of random tokens in blocks in any order: prefill chunks and decodes, with the
    /// logits of many rows wanted.
    pub fn mixed(plan: &Plan, weights: Vec<Tensor>, kv: KvLayout) -> Self {
        let steps = random_steps(&mut Rng::new(21), plan.vocab_size, &kv, &[1, 3, 9, 40]);
        Self { weights, kv, steps }
    }

    /// One sequence: most of `tokens` in one step, then two, then the last one by one, with the last row's logits wanted.
    pub fn of_prompt(tokens: &[u32], weights: Vec<Tensor>, kv: KvLayout) -> Self {
        let mut sequence = BlockPool::new(&kv, &mut Rng::new(22)).sequence(tokens.to_vec());
        let mut steps = Vec::new();
        while sequence.remaining() > 0 {
            let count = match sequence.remaining() {
                remaining @ 5.. => remaining - 4,
                3 | 4 => 2,
                _ => 1,
            };
            let mut step = sequence.next_step(count);
            step.output_rows.drain(..count - 1);
            steps.push(step);
        }
        Self { weights, kv, steps }
    }
}

/// A text that nobody wrote, the same each time.
pub fn random_prompt(num_tokens: usize, vocab_size: usize) -> Vec<u32> {
    Rng::new(23).tokens(num_tokens, vocab_size)
}

/// One result of one op, in the step where it was worst.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Which result it is.
    pub place: Place,
    /// The step, from 0.
    pub step: usize,
    /// The largest difference (L∞).
    pub max_abs: f64,
    /// The row and the column where it is.
    pub at: (usize, usize),
    /// The element there on the device.
    pub found: f32,
    /// And on the other.
    pub expected: f32,
    /// Cosine of the angle between the two results; 1 where both are zero.
    pub cosine: f64,
    /// Normalised mean square error: Σ(found - expected)² / Σ expected². A result of few elements is divided by what
    /// that is in the mean of the steps so far, where it is less.
    pub nmse: f64,
    /// What that may be; 0 where the bits have to be the same.
    pub nmse_max: f64,
    /// Which device made something that is not a number, or infinite.
    pub not_finite: Option<&'static str>,
    /// Whether it is not what it should be.
    pub beyond: bool,
}

/// One result of one op on the device's own operands, in the step where it was worst.
#[derive(Clone, Debug)]
pub struct InPlace {
    /// Which result it is.
    pub place: Place,
    /// The step, from 0.
    pub step: usize,
    /// The row and the column of the element that is nearest to its bound, or furthest beyond.
    pub at: (usize, usize),
    /// The element there.
    pub found: f32,
    /// What it is in exact arithmetic.
    pub expected: f64,
    /// How far off it may be.
    pub bound: f64,
    /// How far off it is, as a share of that: over 1 is too much.
    pub share: f64,
}

/// Which result of which op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The op's place in the device's plan.
    pub index: usize,
    /// The op's name.
    pub op: &'static str,
    /// The layer that it is in; `None` before the first and after the last.
    pub layer: Option<usize>,
    /// What it made: the weight that it is a projection by, `keys`, `values`, or nothing more to say.
    pub result: Option<String>,
    /// Elements in a row.
    pub width: usize,
}

impl std::fmt::Display for Place {
    /// `layer 3 norm_linear (self_attn.q_proj)`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(layer) = self.layer {
            write!(f, "layer {layer} ")?;
        }
        write!(f, "{}", self.op)?;
        self.result.as_ref().map_or(Ok(()), |result| write!(f, " ({result})"))
    }
}

/// What came of a comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Every result of every op of the device, in the order of its plan.
    pub checkpoints: Vec<Checkpoint>,
    /// The first that is not what it should be: in the earliest step, of the earliest op.
    pub first_beyond: Option<Checkpoint>,
    /// The same results in place; none where the other device is not the reference.
    pub in_place: Vec<InPlace>,
    /// The first of these that is out of its bound.
    pub first_out_of_bound: Option<InPlace>,
    /// The experts that the device chose, beside those that the reference chooses of the same rows; nothing where the other
    /// device is not the reference. All later results are compared on the device's own choices.
    pub experts: Seen,
}

/// Runs `work` on `device` and on `other` and compares what their ops made; `on_op` hears of each op that has been run.
/// Where `other` is the reference, each op is also compared in place.
///
/// # Errors
/// A device cannot load or run the model, or does not show what its ops make.
pub fn compare(
    device: &Side<'_>,
    other: &Side<'_>,
    work: &Work,
    on_op: &mut dyn FnMut(),
) -> Result<Comparison, BackendError> {
    let Work { weights, kv, steps } = work;
    let load = |side: &Side<'_>| side.backend.load(side.plan.clone(), weights.clone(), *kv);
    let (mut on_device, mut on_other) = (load(device)?, load(other)?);
    let claims = device.backend.claims();
    let nmse_max = nmse_max(&claims, &other.backend.claims(), &device.plan, work);
    let places = places(&device.plan, &other.plan);
    let is_reference = other.backend.device().name == ReferenceBackend::NAME;
    let mut analysis = is_reference.then(|| {
        let analysis = ErrorAnalysis::new(device.plan.clone(), weights, *kv, claims.activations);
        analysis.with_attention((claims.attention)(kv.format))
    });

    let mut checkpoints: BTreeMap<Key, Checkpoint> = BTreeMap::new();
    let mut in_place: BTreeMap<Key, InPlace> = BTreeMap::new();
    let (mut first_beyond, mut first_out_of_bound) = (None, None);
    let mut experts = Seen::default();
    let mut usual: BTreeMap<Key, Energy> = BTreeMap::new();
    for (step, input) in steps.iter().enumerate() {
        let mut found = Shown::new();
        on_device.replay_observed(input, &mut |op, what, elements| {
            found.insert((op, what), elements.to_vec());
            on_op();
        })?;
        if is_reference {
            on_other.choose(Some(choices(&places, &found, &device.plan, input, nmse_max)));
        }
        let mut expected = Shown::new();
        on_other.replay_observed(input, &mut |op, what, elements| {
            expected.insert((op, what), elements.to_vec());
            on_op();
        })?;
        if let Some(seen) = on_other.choose(None) {
            experts.add(seen);
        }
        for (key, (place, counterpart)) in &places {
            let Some(found) = found.get(key) else { continue };
            let Some(expected) = counterpart.elements(&expected, input, place.width) else { continue };
            let usual = usual.entry(*key).or_default();
            usual.add(&expected);
            let checkpoint = checkpoint(place, step, found, &expected, *usual, nmse_max);
            if checkpoint.beyond && first_beyond.is_none() {
                first_beyond = Some(checkpoint.clone());
            }
            keep_worst(&mut checkpoints, *key, checkpoint, |checkpoint| checkpoint.nmse);
        }
        if let Some(analysis) = &mut analysis {
            for (key, share) in check_in_place(analysis, &device.plan, input, &found, on_op) {
                let Some((place, _)) = places.get(&key) else { continue };
                let result = share.of(place.clone(), step);
                if result.share > 1.0 && first_out_of_bound.is_none() {
                    first_out_of_bound = Some(result.clone());
                }
                keep_worst(&mut in_place, key, result, |result| result.share);
            }
        }
    }
    let (checkpoints, in_place) = (checkpoints.into_values().collect(), in_place.into_values().collect());
    Ok(Comparison { checkpoints, first_beyond, in_place, first_out_of_bound, experts })
}

/// What the device chose, for the reference to choose the same; rows that only the reference has are left to it.
fn choices(
    places: &BTreeMap<Key, (Place, Elsewhere)>,
    found: &Shown,
    plan: &Plan,
    input: &StepInput,
    nmse_max: f64,
) -> Choices {
    let chosen = places.iter().filter_map(|(key, (_, elsewhere))| {
        let Observed::Value(value) = key.1 else { return None };
        let (theirs, rows) = match elsewhere {
            Elsewhere::Same(theirs) => (theirs, None),
            Elsewhere::OutputRowsOf(theirs) => (theirs, Some(input.output_rows.clone())),
        };
        let (Observed::Value(ids), Kind::Index) = (theirs.1, plan.value(value).kind) else { return None };
        Some((ids, Chosen { ids: found.get(key)?.clone(), rows }))
    });
    Choices::new(chosen, router_noise(nmse_max))
}

/// How often [`compare`] calls `on_op`.
pub fn num_ops(device: &Side<'_>, other: &Side<'_>, work: &Work) -> usize {
    let planes = |layer: &plan::CacheLayer| layer.widths().iter().filter(|&&width| width > 0).count();
    let shown = |plan: &Plan| plan.values.len() + plan.kv_layers.iter().map(planes).sum::<usize>();
    let in_place = if other.backend.device().name == ReferenceBackend::NAME { device.plan.ops.len() } else { 0 };
    work.steps.len() * (shown(&device.plan) + shown(&other.plan) + in_place)
}

/// What two devices may differ by: nothing where both claim the same arithmetic, otherwise what each claims.
pub(super) fn nmse_max(a: &Claims, b: &Claims, plan: &Plan, work: &Work) -> f64 {
    let arithmetic = a.arithmetic(&work.weights);
    if arithmetic.is_some() && arithmetic == b.arithmetic(&work.weights) {
        return 0.0;
    }
    let attention = |claims: &Claims| (claims.attention)(work.kv.format);
    let rounding = |claims: &Claims| tolerance::coarsest(&work.weights, claims.activations, attention(claims));
    let of = |claims| {
        let rounding = rounding(claims);
        tolerance::checkpoint_factor(plan, rounding) * tolerance::checkpoint_nmse_max(rounding, work.kv.format)
    };
    of(a) + of(b)
}

/// A result: the op's place in the plan, and which of its results.
type Key = (usize, Observed);
type Shown = BTreeMap<Key, Vec<f32>>;

/// Where the same result is on the other device.
enum Elsewhere {
    Same(Key),
    OutputRowsOf(Key),
}

impl Elsewhere {
    fn elements(&self, shown: &Shown, input: &StepInput, width: usize) -> Option<Vec<f32>> {
        match self {
            Self::Same(key) => shown.get(key).cloned(),
            Self::OutputRowsOf(key) => {
                let all = shown.get(key)?;
                let row = |&row: &u32| &all[row as usize * width..(row as usize + 1) * width];
                Some(input.output_rows.iter().flat_map(row).copied().collect())
            }
        }
    }
}

/// Each result of `plan`, with where it is in `other`.
fn places(plan: &Plan, other: &Plan) -> BTreeMap<Key, (Place, Elsewhere)> {
    let definition: BTreeMap<Value, usize> = other
        .ops
        .iter()
        .enumerate()
        .flat_map(|(index, op)| op.outputs().into_iter().map(move |v| (v, index)))
        .collect();
    let writer = |wanted: usize| other.ops.iter().position(|op| op.written_layer() == Some(wanted));
    let counterparts = counterparts(plan, other);
    let key_of = |value: Value| definition.get(&value).map(|&index| (index, Observed::Value(value)));
    let mut places = BTreeMap::new();
    let mut layer = None;
    for (index, op) in plan.ops.iter().enumerate() {
        let weights = op.weights();
        if !weights.is_empty() {
            layer = weights.iter().find_map(|&weight| layer_of(plan, weight));
        }
        let place = |result, width| Place { index, op: op.name(), layer, result, width };
        for value in op.outputs() {
            let elsewhere = match counterparts[value.index()] {
                Some(Counterpart::Same(value)) => key_of(value).map(Elsewhere::Same),
                Some(Counterpart::OutputRowsOf(value)) => key_of(value).map(Elsewhere::OutputRowsOf),
                None => None,
            };
            if let Some(elsewhere) = elsewhere {
                let result = projection_of(plan, op, value);
                places.insert((index, Observed::Value(value)), (place(result, plan.value(value).width), elsewhere));
            }
        }
        if let Some(kv_layer) = op.written_layer()
            && let Some(writer) = writer(kv_layer)
        {
            let planes = [(Observed::CacheKeys, "keys"), (Observed::CacheValues, "values")];
            let widths = plan.kv_layers[kv_layer].widths();
            for ((what, name), width) in planes.into_iter().zip(widths).filter(|&(_, width)| width > 0) {
                let place = place(Some(name.to_owned()), width);
                places.insert((index, what), (place, Elsewhere::Same((writer, what))));
            }
        }
    }
    places
}

/// The N of `model.layers.N.self_attn.q_proj.weight`.
fn layer_of(plan: &Plan, weight: WeightId) -> Option<usize> {
    let (_, rest) = plan.weight(weight).name.split_once("layers.")?;
    rest.split('.').next()?.parse().ok()
}

/// What `value` is projected by, without its layer: `self_attn.q_proj`.
fn projection_of(plan: &Plan, op: &Op, value: Value) -> Option<String> {
    let weight = match op {
        Op::NormLinear { projections, .. } => projections.iter().find(|(_, out)| *out == value)?.0.weight,
        Op::Linear { linear, .. } | Op::LinearResidual { linear, .. } => linear.weight,
        _ => return None,
    };
    let name = &plan.weight(weight).name;
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let after_layer = name.split_once("layers.").and_then(|(_, rest)| rest.split_once('.'));
    Some(after_layer.map_or(name, |(_, rest)| rest).to_owned())
}

fn checkpoint(place: &Place, step: usize, found: &[f32], expected: &[f32], usual: Energy, nmse_max: f64) -> Checkpoint {
    // A few numbers are a small sample of noise, and one may be near zero by chance; many keep their bound.
    let few = expected.len() < FEW_ELEMENTS;
    let nmse_max = if few { nmse_max * (1.0 + 8.0 / expected.len().max(1) as f64) } else { nmse_max };
    let (mut error, mut found_square, mut expected_square, mut product) = (0.0, 0.0, 0.0, 0.0);
    let (mut max_abs, mut at) = (0.0, 0);
    for (index, (&a, &b)) in found.iter().zip(expected).enumerate() {
        let (a, b) = (f64::from(a), f64::from(b));
        error += (a - b) * (a - b);
        found_square += a * a;
        expected_square += b * b;
        product += a * b;
        let difference = if a == b { 0.0 } else { (a - b).abs() };
        // Not a number is further off than any number.
        if difference > max_abs || (difference.is_nan() && !f64::is_nan(max_abs)) {
            (max_abs, at) = (difference, index);
        }
    }
    let all_zero = found_square == 0.0 && expected_square == 0.0;
    let square = if few { expected_square.max(usual.of(expected.len())) } else { expected_square };
    let nmse = if error == 0.0 { 0.0 } else { error / f64::max(square, f64::MIN_POSITIVE) };
    let is_not_finite = |side: &[f32]| side.iter().any(|element| !element.is_finite());
    let not_finite = match (is_not_finite(found), is_not_finite(expected)) {
        (false, false) => None,
        (true, false) => Some("the device"),
        (false, true) => Some("the other device"),
        (true, true) => Some("both devices"),
    };
    let same_bits = || found.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
    // Written so that NaN is beyond.
    let within = if nmse_max == 0.0 { same_bits() } else { nmse <= nmse_max };
    Checkpoint {
        place: place.clone(),
        step,
        max_abs,
        at: (at / place.width, at % place.width),
        found: found.get(at).copied().unwrap_or_default(),
        expected: expected.get(at).copied().unwrap_or_default(),
        cosine: if all_zero { 1.0 } else { product / (found_square * expected_square).sqrt() },
        nmse,
        nmse_max,
        not_finite,
        beyond: !within || not_finite.is_some() || found.len() != expected.len(),
    }
}

/// Results of fewer elements than this are judged by what they are in the mean of the steps so far: the weights of a router, the
/// gate of a shared expert.
const FEW_ELEMENTS: usize = 16;

/// How large a result is in the mean over the steps so far.
#[derive(Clone, Copy, Debug, Default)]
struct Energy {
    square: f64,
    len: usize,
}

impl Energy {
    fn add(&mut self, elements: &[f32]) {
        self.square += elements.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        self.len += elements.len();
    }

    /// The sum of squares of so many elements.
    fn of(self, len: usize) -> f64 {
        self.square / self.len.max(1) as f64 * len as f64
    }
}

/// One result beside its bound.
struct Share {
    index: usize,
    found: f32,
    expected: f64,
    bound: f64,
    share: f64,
}

impl Share {
    fn of(self, place: Place, step: usize) -> InPlace {
        let Self { index, found, expected, bound, share } = self;
        InPlace { at: (index / place.width, index % place.width), place, step, found, expected, bound, share }
    }
}

/// Each op's results from the operands that the device had, beside what the device made of them.
fn check_in_place(
    analysis: &mut ErrorAnalysis,
    plan: &Plan,
    input: &StepInput,
    found: &Shown,
    on_op: &mut dyn FnMut(),
) -> Vec<(Key, Share)> {
    let wide = |elements: &[f32]| -> Vec<f64> { elements.iter().map(|&element| f64::from(element)).collect() };
    let mut values = vec![Bounded::default(); plan.values.len()];
    let mut shares = Vec::new();
    let mut hold = |key: Key, expected: &Bounded| {
        let Some(found) = found.get(&key).filter(|found| found.len() == expected.value.len()) else { return };
        let Some((index, share)) = expected.worst(found) else { return };
        let (value, bound) = (expected.value[index], expected.error[index]);
        shares.push((key, Share { index, found: found[index], expected: value, bound, share }));
    };
    let rows = analysis.begin(input);
    for (index, op) in plan.ops.iter().enumerate() {
        analysis.run_op(op, input, &rows, &mut values);
        for value in op.outputs() {
            let key = (index, Observed::Value(value));
            hold(key, &values[value.index()]);
            if let Some(found) = found.get(&key) {
                values[value.index()] = Bounded::exact(wide(found));
            }
        }
        if let Some(layer) = op.written_layer() {
            let (keys, cached_values) = analysis.written(layer, &rows);
            let [key, value] = [Observed::CacheKeys, Observed::CacheValues].map(|what| (index, what));
            hold(key, &keys);
            hold(value, &cached_values);
            // A latent layer has rows, which are shown as keys, and no values beside them.
            let none = vec![];
            let values = found.get(&value).or(plan.kv_layers[layer].latent().map(|_| &none));
            if let (Some(keys), Some(values)) = (found.get(&key), values) {
                analysis.overwrite(layer, &wide(keys), &wide(values), &rows);
            }
        }
        on_op();
    }
    shares
}

/// Puts `new` in the place of what is there if its error is larger, or not a number.
fn keep_worst<T>(worst: &mut BTreeMap<Key, T>, key: Key, new: T, error: impl Fn(&T) -> f64) {
    let is_worse = worst.get(&key).is_none_or(|old| error(&new).is_nan() || error(&new) > error(old));
    if is_worse {
        worst.insert(key, new);
    }
}
