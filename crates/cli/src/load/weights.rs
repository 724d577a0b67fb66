//! The tensors of a plan, read from its checkpoint, and the check that none of them holds a NaN or an infinity.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;
use formats::Checkpoint;
use plan::Plan;
use tensor::{Tensor, WeightFormat};

use super::watch::Watch;
use crate::output::note;
use crate::units;

/// Refuses a checkpoint with a number that is NaN or infinite, by the name of its tensor. It runs on all processors
/// because it reads everything.
pub(crate) fn check_tensors(checkpoint: &Checkpoint) -> Result<()> {
    let names: Vec<&str> = checkpoint.tensor_names().collect();
    let (next, fault) = (AtomicUsize::new(0), Mutex::new(None));
    let check = || {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = checkpoint.check_finite(name) {
                // The error names the first faulty tensor by name. Another thread may still be reading an earlier one.
                let mut fault = fault.lock().unwrap_or_else(PoisonError::into_inner);
                if fault.as_ref().is_none_or(|(found, _)| name < found) {
                    *fault = Some((*name, error));
                }
                next.store(names.len(), Ordering::Relaxed);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(check))));
    match fault.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, error)) => Err(anyhow::Error::from(error).context("--check-tensors")),
        None => Ok(()),
    }
}

/// The tensors of `plan`; says what they became where they are decoded to another format than the file's.
pub(crate) fn weights(checkpoint: &Checkpoint, plan: &Plan, watch: &dyn Watch) -> Result<Vec<Tensor>> {
    let begun = Instant::now();
    let bytes: HashMap<_, _> = checkpoint.tensor_infos().map(|info| (info.name, info.bytes)).collect();
    let bytes_of = |name: &str| bytes.get(name).copied().unwrap_or_default();
    let total = plan.weights.iter().map(|weight| bytes_of(&weight.name)).sum();
    let mut loaded = 0;
    let mut weights = Vec::with_capacity(plan.weights.len());
    for weight in &plan.weights {
        watch.bytes(loaded, total);
        weights.push(checkpoint.tensor(&weight.name)?);
        loaded += bytes_of(&weight.name);
    }
    watch.bytes(loaded, total);
    let expanded: BTreeSet<_> = checkpoint
        .tensor_infos()
        .filter_map(|info| info.expanded_to().map(|format| (info.type_name, format, info.exact)))
        .collect();
    if !expanded.is_empty() {
        let words = |(name, format, exact): (&str, WeightFormat, bool)| {
            format!("{name} {} {format}", if exact { "as" } else { "rounded to" })
        };
        let names = expanded.into_iter().map(words).collect::<Vec<_>>().join(", ");
        let bytes = weights.iter().map(|weight| weight.bytes().len() as u64).sum();
        let (seconds, bytes) = (begun.elapsed().as_secs_f64(), units::bytes(bytes));
        note(&format!("weights: {names}, in {seconds:.1} s; {bytes} in memory"));
    }
    Ok(weights)
}
