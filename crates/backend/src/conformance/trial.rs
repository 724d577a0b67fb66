//! One attempt: what was run, and how far off the worst of it was.

use std::collections::HashMap;
use std::sync::Arc;

use plan::{KvLayout, Plan, StepInput};
use tensor::Tensor;
use testing::tolerance::{self, Bounded, nmse};

use crate::{Backend, Claims, Executable, PEAK_GROUP, peak};

/// The result that came nearest to its tolerance, or went furthest beyond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worst {
    /// How far off it was.
    pub error: f64,
    /// How far off it might have been.
    pub tolerance: f64,
    /// What the two are.
    pub measure: Measure,
}

/// What an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Of one element, with a bound derived for that element.
    Element,
    /// Normalised mean square error of all elements: Σ(found - expected)² / Σ expected².
    Nmse,
}

impl Worst {
    /// The error as a share of the tolerance: over 1 is too much.
    pub fn share(&self) -> f64 {
        match self.error / self.tolerance {
            _ if self.error == 0.0 => 0.0,
            share if share.is_nan() => f64::INFINITY,
            share => share,
        }
    }
}

/// A backend with what it claims, the cache of the case, and the worst so far.
pub(super) struct Trial<'a> {
    pub(super) backend: &'a dyn Backend,
    pub(super) claims: Claims,
    pub(super) kv: KvLayout,
    pub(super) worst: Option<Worst>,
}

impl<'a> Trial<'a> {
    pub(super) fn new(backend: &'a dyn Backend, kv: KvLayout) -> Self {
        Self { backend, claims: backend.claims(), kv, worst: None }
    }

    pub(super) fn load(&self, plan: &Arc<Plan>, weights: &[Tensor]) -> Result<Box<dyn Executable>, String> {
        self.backend.load(plan.clone(), weights.to_vec(), self.kv).map_err(|error| error.to_string())
    }

    /// Whether every element of `found` is within its bound.
    pub(super) fn within(&mut self, input: &StepInput, found: &[f32], expected: &Bounded) -> Result<(), String> {
        same_len(input, found.len(), expected.value.len())?;
        let Some((index, share)) = expected.worst(found) else { return Ok(()) };
        let (value, bound) = (expected.value[index], expected.error[index]);
        let error = (f64::from(found[index]) - value).abs();
        // A bound of nothing leaves the rounding of the result, which is in the share.
        self.note(Worst {
            error,
            tolerance: if share > 0.0 { error / share } else { bound },
            measure: Measure::Element,
        });
        if share <= 1.0 {
            return Ok(());
        }
        Err(format!("{:?}: element {index} is {:e}, expected {value:e} ± {bound:.1e}", input.shape(), found[index]))
    }

    /// Whether the logits of a whole model are near enough.
    pub(super) fn near(
        &mut self,
        weights: &[Tensor],
        input: &StepInput,
        found: &[f32],
        expected: &[f64],
    ) -> Result<(), String> {
        same_len(input, found.len(), expected.len())?;
        let tolerance = self.nmse_max(weights);
        let error = nmse(found.iter().map(|&x| f64::from(x)), expected);
        let worst = Worst { error, tolerance, measure: Measure::Nmse };
        self.note(worst);
        if worst.share() <= 1.0 {
            return Ok(());
        }
        Err(format!("{:?}: NMSE {error:.1e}, at most {tolerance:.1e}", input.shape()))
    }

    /// What the logits of a whole model with these weights may differ by.
    pub(super) fn nmse_max(&self, weights: &[Tensor]) -> f64 {
        let attention = (self.claims.attention)(self.kv.format);
        let rounding = tolerance::coarsest(weights, self.claims.activations, attention);
        tolerance::model_nmse_max(rounding, self.kv.format)
    }

    fn note(&mut self, worst: Worst) {
        if self.worst.is_none_or(|so_far| so_far.share() < worst.share()) {
            self.worst = Some(worst);
        }
    }
}

/// How far a router's logit may be off, as a share of its row's root mean square, where a result of the model may differ
/// by `nmse_max`: some more than that, because a logit is a part of one row.
pub(super) fn router_noise(nmse_max: f64) -> f64 {
    4.0 * nmse_max.sqrt()
}

/// What the first backend of each arithmetic found, so that others of the same can be held to its bits.
#[derive(Default)]
pub(super) struct Twins {
    /// By arithmetic and form.
    first: HashMap<((&'static str, Option<&'static str>), usize), Twin>,
}

/// A backend in words, and what it found in each step.
type Twin = (String, Vec<Vec<f32>>);

impl Twins {
    /// Holds what `backend` found in each step with form `form` of the case to what its twins found.
    pub(super) fn check(
        &mut self,
        backend: &dyn Backend,
        form: usize,
        weights: &[Tensor],
        found: Vec<Vec<f32>>,
    ) -> Result<(), String> {
        let Some(arithmetic) = backend.claims().arithmetic(weights) else { return Ok(()) };
        let description = || backend.device().description.clone();
        let (twin, expected) = self.first.entry((arithmetic, form)).or_insert_with(|| (description(), found.clone()));
        for (step, (found, expected)) in found.iter().zip(&*expected).enumerate() {
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
            if let Some(at) = found.iter().zip(expected).position(|pair| !same(pair)) {
                let (found, expected) = (found[at], expected[at]);
                return Err(format!("step {step}: element {at} is {found:e}, but {expected:e} on {twin}, to the bit"));
            }
        }
        Ok(())
    }
}

/// One step's logits. Peaks that come with them are held to what they are of.
pub(super) fn replay(executable: &mut dyn Executable, input: &StepInput) -> Result<Vec<f32>, String> {
    let made = executable.replay_with_peaks(input).map_err(|error| format!("{:?}: {error}", input.shape()))?;
    if let Some(peaks) = made.peaks {
        check_peaks(input, made.values, peaks)?;
    }
    Ok(made.values.to_vec())
}

fn check_peaks(input: &StepInput, logits: &[f32], peaks: &[f32]) -> Result<(), String> {
    let width = logits.len() / input.output_rows.len().max(1);
    let rows = logits.chunks_exact(width.max(1));
    let expected: Vec<f32> = rows.flat_map(|row| row.chunks(PEAK_GROUP).map(peak)).collect();
    if peaks.len() != expected.len() {
        return Err(format!("{:?}: {} peaks, expected {}", input.shape(), peaks.len(), expected.len()));
    }
    let same = |(found, expected): (&f32, &f32)| found == expected || (found.is_nan() && expected.is_nan());
    match peaks.iter().zip(&expected).position(|pair| !same(pair)) {
        None => Ok(()),
        Some(at) => {
            Err(format!("{:?}: peak {at} is {:e}, that of its logits {:e}", input.shape(), peaks[at], expected[at]))
        }
    }
}

fn same_len(input: &StepInput, found: usize, expected: usize) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{:?}: {found} results, expected {expected}", input.shape()))
}
