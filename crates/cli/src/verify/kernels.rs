//! The kernels of a device against the reference: the suite that its tests run, on this machine.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;

use anyhow::{Result, bail};
use backend::Backend;
use backend::conformance::{self, Case, Measure, Outcome, Part};
use indicatif::ProgressBar;
use serde::Serialize;

use super::args::VerifyArgs;
use super::devices::Named;

/// What came of one form of one case on one variant of the device.
#[derive(Clone, Debug, Serialize)]
pub(super) struct KernelResult {
    pub(super) part: &'static str,
    /// The ops that ran.
    pub(super) ops: Vec<&'static str>,
    /// Shapes in words, or an architecture.
    pub(super) case: String,
    pub(super) format: &'static str,
    pub(super) kv_type: String,
    pub(super) block_len: usize,
    pub(super) variant: String,
    /// What `error` and `tolerance` are: of one element, or normalised mean squares of all.
    pub(super) measure: Option<&'static str>,
    pub(super) error: Option<f64>,
    pub(super) tolerance: Option<f64>,
    /// The error as a share of the tolerance.
    pub(super) share: Option<f64>,
    pub(super) fault: Option<String>,
}

impl std::fmt::Display for KernelResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { ops, case, format, kv_type, block_len, variant, .. } = self;
        let ops = shown_ops(ops).join(" + ");
        write!(f, "{ops} ({case}) in {format}, cache {kv_type} in blocks of {block_len}, on {variant}")
    }
}

/// Ops without those that are in every case to make its input and show its result.
pub(super) fn shown_ops(ops: &[&'static str]) -> Vec<&'static str> {
    let is_frame = |op: &&'static str| matches!(*op, "embed" | "select_outputs");
    let shown: Vec<_> = ops.iter().filter(|op| !is_frame(op)).copied().collect();
    if shown.is_empty() { ops.to_vec() } else { shown }
}

/// The cases that the flags ask for.
pub(super) fn cases(args: &VerifyArgs, variants: &[Named]) -> Result<Vec<Case>> {
    let Some(first) = variants.first() else { return Ok(Vec::new()) };
    let mut claims = first.backend.claims();
    claims.formats.retain(|&format| args.wants_format(format));
    let mut cases = conformance::cases(&claims, args.quick);
    if !args.op.is_empty() {
        let mut known: Vec<_> = cases.iter().flat_map(|case| &case.ops).copied().collect();
        known.sort_unstable();
        known.dedup();
        if let Some(unknown) = args.op.iter().find(|op| !known.contains(&op.as_str())) {
            bail!("there is no op `{unknown}` among the cases; there are: {}", known.join(", "));
        }
        cases.retain(|case| case.part == Part::Ops);
        let counts = counts(&cases);
        let own: HashSet<_> = cases.iter().map(|case| own_op(case, &counts)).collect();
        let fewest = |op: &str| {
            let sizes = cases.iter().map(|case| shown_ops(&case.ops)).filter(|ops| ops.contains(&op));
            sizes.map(|ops| ops.len()).min()
        };
        let fewest: HashMap<&str, _> = args.op.iter().map(|op| (op.as_str(), fewest(op))).collect();
        let is_of = |case: &Case, op: &str| {
            let ops = shown_ops(&case.ops);
            match args.quick {
                true if own.contains(op) => own_op(case, &counts) == op,
                true => ops.contains(&op) && Some(ops.len()) == fewest[op],
                false => ops.contains(&op),
            }
        };
        cases.retain(|case| args.op.iter().any(|op| is_of(case, op)));
    }
    if cases.is_empty() {
        bail!("the flags leave no kernel to check");
    }
    Ok(cases)
}

/// How many cases have each op.
fn counts(cases: &[Case]) -> HashMap<&'static str, usize> {
    let mut counts = HashMap::new();
    for op in cases.iter().flat_map(|case| shown_ops(&case.ops)) {
        *counts.entry(op).or_default() += 1;
    }
    counts
}

/// The op that a case is there for: the one that fewest cases have. A case of many ops takes long, and with `--quick` it is
/// run for this one alone; an op that no case is there for has the cases with fewest others.
fn own_op(case: &Case, counts: &HashMap<&'static str, usize>) -> &'static str {
    shown_ops(&case.ops).into_iter().min_by_key(|&op| (counts[op], op)).expect("every case shows an op")
}

fn wants_op(args: &VerifyArgs, op: &str) -> bool {
    args.op.is_empty() || args.op.iter().any(|wanted| wanted == op)
}

/// Runs `cases` on all `variants`, up to `at_once` cases at a time. The results are in the order of the cases.
pub(super) fn run(
    args: &VerifyArgs,
    cases: &[Case],
    variants: &[Named],
    at_once: usize,
    progress: &ProgressBar,
) -> Vec<KernelResult> {
    let backends: Vec<&dyn Backend> = variants.iter().map(|variant| &*variant.backend).collect();
    let run_case = |case: &Case| {
        progress.set_message(case.name.clone());
        let outcomes = variants.iter().zip(case.run(&backends));
        progress.inc(1);
        let of_variant = |(variant, outcomes)| results(args, case, variant, outcomes);
        Ok::<Vec<_>, Infallible>(outcomes.flat_map(of_variant).collect())
    };
    let Ok(results) = conformance::side_by_side(cases, at_once, run_case);
    results.into_iter().flatten().collect()
}

/// What came of `case` on `variant`. Of a case with several forms, only those with the op that is asked for.
fn results(args: &VerifyArgs, case: &Case, variant: &Named, outcomes: Vec<Outcome>) -> Vec<KernelResult> {
    let is_wanted = |outcome: &Outcome| shown_ops(&outcome.ops).iter().any(|op| wants_op(args, op));
    let result = |outcome: Outcome| KernelResult {
        part: case.part.name(),
        ops: outcome.ops,
        case: case.name.clone(),
        format: case.format.name(),
        kv_type: format!("{:?}", case.kv.format).to_ascii_lowercase(),
        block_len: case.kv.block_len,
        variant: variant.name.clone(),
        measure: outcome.worst.map(|worst| match worst.measure {
            Measure::Element => "element",
            Measure::Nmse => "nmse",
        }),
        error: outcome.worst.map(|worst| worst.error),
        tolerance: outcome.worst.map(|worst| worst.tolerance),
        share: outcome.worst.map(|worst| worst.share()),
        fault: outcome.fault,
    };
    outcomes.into_iter().filter(is_wanted).map(result).collect()
}
