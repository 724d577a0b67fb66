//! `hotmetal verify`: whether kernels and models compute on this machine what they should.
//!
//! What is checked, and how near is near enough, is `backend::conformance`; here are the names of devices, what is run for
//! which flags, and how it is told.

mod args;
mod devices;
mod kernels;
mod models;
mod report;

use std::collections::BTreeSet;

use anyhow::{Result, anyhow, bail};
use backend::conformance;
use backend::reference::ReferenceBackend;
use indicatif::{ProgressBar, ProgressStyle};
use plan::Kind;

pub(crate) use args::VerifyArgs;

use crate::explain;
use crate::load::{device, find};
use crate::output::{note, stdout};
use args::OutputFormat;
use devices::Named;
use models::Subject;
use report::Report;

/// Runs `hotmetal verify`. Fails when anything is not as it should be.
pub(crate) fn verify(args: &VerifyArgs) -> Result<()> {
    if args.explain_dispatch {
        let (mut checkpoint, name) = find::open(args.model.as_deref(), false)?;
        return explain::of_checkpoint(&mut checkpoint, &name, &devices::as_loaded(args));
    }
    args.gpu.settings().check(&[&args.device, &args.against])?;
    let other = devices::named(&args.against, args)?;
    // Kernels are those of the device, whatever the model.
    let (variants, cases) = match args.model {
        _ if args.only_models => (Vec::new(), Vec::new()),
        Some(_) => (Vec::new(), Vec::new()),
        None => {
            let variants = devices::variants(args)?;
            let cases = kernels::cases(args, &variants)?;
            (variants, cases)
        }
    };
    let for_models = devices::for_models(args)?;
    let subjects = if args.op.is_empty() { models::subjects(args)? } else { Vec::new() };
    let mut pairs = pairs(args, &subjects, &for_models, &other, &variants)?;
    if args.model.is_none() {
        let mut left_out = BTreeSet::new();
        pairs.retain(|(subject, device, other)| {
            let why = lacking(subject, device, other).or_else(|| incomparable(subject, device, other));
            let is_compared = why.is_none();
            left_out.extend(why);
            is_compared
        });
        left_out.iter().for_each(|words| note(words));
    } else if let Some(why) = pairs.iter().find_map(|(subject, device, other)| incomparable(subject, device, other)) {
        bail!(why);
    }
    let steps: usize = pairs.iter().map(|(subject, device, other)| subject.num_steps(args, device, other)).sum();

    let progress = progress(cases.len() + steps);
    let at_once = at_once(args);
    let of_kernels = kernels::run(args, &cases, &variants, at_once, &progress);
    let compare =
        |&(subject, device, other): &(&Subject, &Named, &Named)| subject.compare(args, device, other, &progress);
    let of_models = conformance::side_by_side(&pairs, at_once, compare)?;
    progress.finish_and_clear();

    let first = for_models.first().ok_or_else(|| anyhow!("there is no device to verify"))?;
    let names = variants.iter().map(|variant| variant.name.clone()).collect();
    let report = Report::new(first.backend.device(), names, of_kernels, of_models);
    match args.output {
        OutputFormat::Text => stdout(&report.as_text())?,
        OutputFormat::Json => stdout(&report.as_json())?,
    }
    report.verdict().map_or(Ok(()), |verdict| Err(anyhow!(verdict)))
}

/// How many cases run at a time: with `--threads 1` one on each processor that the process may use, and otherwise one.
///
/// A team of several threads spins at its barriers, and beside another case it waits for threads that do not run. GPUs
/// run one case at a time. So do models that a user names, because several of them may not fit in memory.
fn at_once(args: &VerifyArgs) -> usize {
    let has_gpu = [&args.device, &args.against].into_iter().any(|name| device::is_gpu(name));
    if has_gpu || args.model.is_some() || args.threads != Some(1) {
        return 1;
    }
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Why mixtures of experts are not compared on two devices of other arithmetic.
const FLIPS: &str = "each chooses experts for itself, and rounding may choose others; use --against reference, which \
                     follows the device's choices";

/// In words, which of two devices cannot load a model, and why; `None` where both can.
fn lacking(subject: &Subject, device: &Named, other: &Named) -> Option<String> {
    let of = |side: &Named| {
        let feature = side.backend.claims().lacking(&subject.textbook)?;
        Some(format!("{} is not compared on {}, which lacks {}", subject.name, side.name, feature.words()))
    };
    of(device).or_else(|| of(other))
}

/// In words, why two devices need not make the same numbers of a model: of a mixture, only the reference follows the
/// other's choices of experts. `None` where they must.
fn incomparable(subject: &Subject, device: &Named, other: &Named) -> Option<String> {
    let arithmetic = |named: &Named| named.backend.claims().same_bits;
    let is_mixture = subject.textbook.values.iter().any(|value| value.kind == Kind::Index);
    let same = arithmetic(device).is_some() && arithmetic(device) == arithmetic(other);
    let comparable = !is_mixture || same || other.name == ReferenceBackend::NAME;
    let words = || format!("{} is not compared on {} with {}: {FLIPS}", subject.name, device.name, other.name);
    (!comparable).then(words)
}

/// Which model is compared on which two devices: each of `for_models` with `other`, and small models also on all other
/// ways in which the device computes.
fn pairs<'a>(
    args: &VerifyArgs,
    subjects: &'a [Subject],
    for_models: &'a [Named],
    other: &'a Named,
    variants: &'a [Named],
) -> Result<Vec<(&'a Subject, &'a Named, &'a Named)>> {
    let mut pairs = Vec::new();
    for subject in subjects {
        for device in for_models {
            if device.name == other.name && args.model.is_some() {
                bail!("{} is both the device and what it is compared with: choose another --against", device.name);
            }
            // What a device computes as another format, it is held to in that one.
            let is_another = subject.is_small() && !subject.is_computed_as_it_is(device);
            if device.name != other.name && !is_another {
                pairs.push((subject, device, other));
            }
        }
        if !subject.is_small() {
            continue;
        }
        // Ways to compute that claim the same arithmetic have to give the same bits: one of them beside `other` is enough.
        let mut seen: Vec<&Named> = for_models.iter().collect();
        let is_seen = |variant: &&Named| for_models.iter().any(|device| device.name == variant.name);
        let others = variants.iter().filter(|variant| !is_seen(variant) && subject.is_computed_as_it_is(variant));
        for variant in others {
            let arithmetic_of = |named: &Named| named.backend.claims().arithmetic(subject.weights());
            let arithmetic = arithmetic_of(variant);
            let twin = seen.iter().find(|named| arithmetic.is_some() && arithmetic_of(named) == arithmetic);
            if twin.is_some() || variant.name != other.name {
                pairs.push((subject, variant, twin.copied().unwrap_or(other)));
            }
            seen.push(variant);
        }
    }
    Ok(pairs)
}

/// A bar on stderr; nothing where that is not a terminal.
fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:48!} {wide_bar} {percent:>3}% {eta:>4}")
        .expect("the template is a constant and well formed");
    ProgressBar::new(steps as u64).with_style(style)
}
