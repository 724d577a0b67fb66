//! What every backend must pass: each op and each architecture in each weight format, on ragged shapes, in batches, over
//! paged caches in any order, against the reference interpreter; and where a backend claims it, the same bits however
//! the tokens are cut into steps.
//!
//! The suite is data: [`cases`] lists what there is to run, [`Case::run`] runs one and says how far off the worst result
//! was, in numbers. A backend's tests call [`run`], or a part of it, which panics with every fault that was found;
//! `hotmetal verify` runs the same cases on the machine in front of it. Backends are held to what they [claim](Claims).
//!
//! Two devices are compared op by op, on any model, by [`checkpoints`], and token by token by [`parity`].

pub mod checkpoints;
mod copied_blocks;
mod meaning;
mod model_cases;
mod op_cases;
pub mod parity;
mod side_by_side;
mod trial;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use plan::{KvLayout, Op, Plan};
use tensor::WeightFormat;

use crate::{Backend, Claims};
use model_cases::ModelCase;
use op_cases::{OpCase, weighted_op_cases, weightless_op_cases};

pub use copied_blocks::copied_blocks_give_the_same_bits;
pub use side_by_side::side_by_side;
pub use testing::{MODEL_TYPES, Sample};
pub use trial::{Measure, Worst};

/// A part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Every op alone, textbook and fused, in every weight format at ragged sizes, within derived bounds.
    Ops,
    /// Every architecture in every weight and cache format: mixed batches of prefill chunks and decodes.
    Models,
    /// Blocks in any order, garbage in every slot that was not written, and copies of shared blocks.
    Caches,
    /// The same bits from the same batch twice; and where [`Claims::bit_exact`] says so, from every way to cut the tokens
    /// into steps.
    Batches,
    /// What must be refused with an error, after which the next step runs as if nothing had been.
    Refusals,
}

impl Part {
    /// All parts, in the order in which they are run.
    pub const ALL: [Self; 5] = [Self::Ops, Self::Models, Self::Caches, Self::Batches, Self::Refusals];

    /// The name that reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ops => "ops",
            Self::Models => "models",
            Self::Caches => "caches",
            Self::Batches => "batches",
            Self::Refusals => "refusals",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One thing to try.
pub struct Case {
    /// The part that it is of.
    pub part: Part,
    /// Its shape in words: `linear 33 to 130, bias true`, or an architecture.
    pub name: String,
    /// Format of the matrices.
    pub format: WeightFormat,
    /// The cache that it runs in.
    pub kv: KvLayout,
    /// The ops that it runs, in any of its forms.
    pub ops: Vec<&'static str>,
    kind: Kind,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KvLayout { format, block_len, .. } = self.kv;
        write!(f, "{} in {}, cache {format:?} in blocks of {block_len}", self.name, self.format)
    }
}

enum Kind {
    Op(OpCase),
    Model(ModelCase),
}

/// What came of one form of a case, textbook or fused, on one backend.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The ops that ran, each once.
    pub ops: Vec<&'static str>,
    /// The result that was nearest to its tolerance, or furthest beyond; `None` where nothing was compared by size.
    pub worst: Option<Worst>,
    /// What is wrong.
    pub fault: Option<String>,
}

/// What backends of these claims have to pass. With `quick` a fixed sample of the op cases: every op in every format, at a
/// quarter of the shapes.
pub fn cases(claims: &Claims, quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut names = OpNames::default();
    for (index, &format) in claims.formats.iter().enumerate() {
        let mut ops = weighted_op_cases(format);
        if index == 0 {
            ops.extend(weightless_op_cases());
        }
        // Only where something may be left out, because the forms of a case take long to build.
        if !claims.lacks.is_empty() {
            ops.retain(|op| op.forms().iter().all(|plan| claims.lacking(plan).is_none()));
        }
        for op in ops.into_iter().filter(|op| !quick || op.seed % 4 == 0) {
            // Ops that treat each row alone are not the cache's business.
            let layouts = kv_layouts(claims, if op.is_row_by_row() { 1 } else { usize::MAX });
            let ops = names.of(Part::Ops, &op.name, format, || op.forms());
            for kv in layouts {
                cases.push(Case {
                    part: Part::Ops,
                    name: op.name.clone(),
                    format,
                    kv,
                    ops: ops.clone(),
                    kind: Kind::Op(op.clone()),
                });
            }
        }
    }
    let models = models_of(claims);
    for part in [Part::Models, Part::Caches, Part::Batches, Part::Refusals] {
        let count = if part == Part::Refusals { 1 } else { models.len() };
        let models = models.iter().take(count);
        cases.extend(models.map(|&(format, model, kv)| {
            let (name, plans) = (model.model_type.to_owned(), || model.plans(part, format));
            let ops = names.of(part, &name, format, plans);
            Case { part, name, format, kv, ops, kind: Kind::Model(model) }
        }));
    }
    cases
}

/// The names of the ops that cases run. Formats with blocks of one length have the same plans under the same name, and
/// each plan is built for one of them alone, because building those of all formats took a third of a second.
#[derive(Default)]
struct OpNames(HashMap<(Part, String, usize), Vec<&'static str>>);

impl OpNames {
    /// Those of all `plans` of a case.
    fn of(
        &mut self,
        part: Part,
        case: &str,
        format: WeightFormat,
        plans: impl FnOnce() -> Vec<Arc<Plan>>,
    ) -> Vec<&'static str> {
        let key = (part, case.to_owned(), format.block_len());
        self.0.entry(key).or_insert_with(|| distinct(plans().iter().flat_map(|plan| &plan.ops))).clone()
    }
}

impl Case {
    /// Runs the case on each of `backends`, which compute from the same formats; those that claim the same arithmetic are
    /// held to the same bits. Returns for each an outcome for each form.
    pub fn run(&self, backends: &[&dyn Backend]) -> Vec<Vec<Outcome>> {
        match &self.kind {
            Kind::Op(op) => op.run(self.format, self.kv, backends),
            Kind::Model(model) => model.run(self, backends),
        }
    }
}

/// Runs the suite, or a sample of it, on backends that share their claims; together, because what is expected takes longer
/// to compute than what is found.
///
/// # Panics
/// When a case fails, with all faults.
pub fn run(backends: &[&dyn Backend], sample: Sample) {
    Part::ALL.into_iter().for_each(|part| run_part(backends, part, sample));
}

/// Runs one part, on all processors; panics as [`run`].
pub fn run_part(backends: &[&dyn Backend], part: Part, sample: Sample) {
    let (num_cases, faults) = faults(backends, part, sample, false);
    let count = faults.len();
    assert!(faults.is_empty(), "{part}, {sample}: {count} faults in {num_cases} cases:\n{}", faults.join("\n"));
}

/// Whether a part finds a fault; it ends with the first.
pub fn finds_fault(backends: &[&dyn Backend], part: Part) -> bool {
    !faults(backends, part, Sample::ALL, true).1.is_empty()
}

/// Runs cases of one part on all processors, with `until_first` until one has a fault. Returns how many cases there are, and
/// the faults.
fn faults(backends: &[&dyn Backend], part: Part, sample: Sample, until_first: bool) -> (usize, Vec<String>) {
    let cases = sampled(&backends[0].claims(), part, sample);
    assert!(!cases.is_empty(), "{part}: the claims leave nothing to run");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let run = |case: &Case| {
        let faults = faults_of(case, backends);
        if until_first && !faults.is_empty() { Err(faults) } else { Ok(faults) }
    };
    let faults = side_by_side(&cases, threads, run).map(|faults| faults.concat());
    (cases.len(), faults.unwrap_or_else(|first| first))
}

/// What is wrong with a case, in words.
fn faults_of(case: &Case, backends: &[&dyn Backend]) -> Vec<String> {
    let mut faults = Vec::new();
    for (backend, outcomes) in backends.iter().zip(case.run(backends)) {
        let device = &backend.device().description;
        for Outcome { ops, fault, .. } in outcomes {
            let of = |fault| format!("{device}: {case} as [{}]: {fault}", ops.join(" "));
            faults.extend(fault.map(of));
        }
    }
    faults
}

/// The cases of one part that `sample` contains. A sample also contains at least one case of each op, and of each
/// weight format (of ops) or each architecture (of models), because a fault in one of them has to be found on any day.
/// Where the day's share has no such case, the case whose day comes next is taken.
pub fn sampled(claims: &Claims, part: Part, sample: Sample) -> Vec<Case> {
    let mut cases = cases(claims, false);
    cases.retain(|case| case.part == part);
    if cases.len() <= LIST_MIN {
        return cases;
    }
    let mut order: Vec<usize> = (0..cases.len()).collect();
    order.sort_by_key(|&index| sample.days_until(index));
    let (mut ops, mut kinds) = (HashSet::new(), HashSet::new());
    let mut is_run = vec![false; cases.len()];
    for index in order {
        let case = &cases[index];
        let kind = if part == Part::Ops { case.format.to_string() } else { case.name.clone() };
        let mut is_new = kinds.insert(kind);
        for &op in &case.ops {
            is_new |= ops.insert(op);
        }
        is_run[index] = is_new || sample.has(index);
    }
    let mut is_run = is_run.into_iter();
    cases.retain(|_| is_run.next() == Some(true));
    cases
}

/// A part with no more cases than this runs all of them, whatever the sample.
const LIST_MIN: usize = 10;

/// Tokens of the cache that cases run in, whatever its block length.
const CACHE_TOKENS: usize = 480;

/// The first `count` combinations of cache format and block length.
fn kv_layouts(claims: &Claims, count: usize) -> Vec<KvLayout> {
    let layouts = claims.kv_formats.iter().flat_map(|&format| {
        claims.block_lens.iter().map(move |&block_len| KvLayout {
            format,
            block_len,
            num_blocks: CACHE_TOKENS.div_ceil(block_len),
        })
    });
    layouts.take(count).collect()
}

/// Weight formats × architectures; the cache layouts take turns.
fn models_of(claims: &Claims) -> Vec<(WeightFormat, ModelCase, KvLayout)> {
    let layouts = kv_layouts(claims, usize::MAX);
    let computes = |model_type: &&str| {
        claims.lacks.is_empty() || claims.lacking(&testing::tiny_plan(model_type, 1, WeightFormat::F32)).is_none()
    };
    let model_types: Vec<&str> = MODEL_TYPES.into_iter().filter(computes).collect();
    let models =
        claims.formats.iter().flat_map(|&format| model_types.iter().map(move |&model_type| (format, model_type)));
    models
        .zip(layouts.iter().cycle())
        .enumerate()
        .map(|(index, ((format, model_type), &kv))| (format, ModelCase { model_type, first: index == 0 }, kv))
        .collect()
}

/// The names of `ops`, each once, in order.
fn distinct<'a>(ops: impl Iterator<Item = &'a Op>) -> Vec<&'static str> {
    let mut names = Vec::new();
    for op in ops {
        if !names.contains(&op.name()) {
            names.push(op.name());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_of_one_name_and_block_length_have_the_same_ops() {
        let mut names = OpNames::default();
        let mut check = |part, case: &str, format, plans: Vec<Arc<Plan>>| {
            let own = distinct(plans.iter().flat_map(|plan| &plan.ops));
            assert_eq!(names.of(part, case, format, || plans), own, "{case} in {format}");
        };
        for format in WeightFormat::ALL {
            for op in weighted_op_cases(format) {
                check(Part::Ops, &op.name, format, op.forms());
            }
            for (part, model_type) in
                [Part::Models, Part::Caches].into_iter().flat_map(|part| MODEL_TYPES.map(|model| (part, model)))
            {
                let model = ModelCase { model_type, first: false };
                check(part, model_type, format, model.plans(part, format));
            }
        }
        for op in weightless_op_cases() {
            check(Part::Ops, &op.name, WeightFormat::F32, op.forms());
        }
    }
}
