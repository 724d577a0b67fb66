//! `hotmetal bench impact`: what the documents claim for each technique, beside what it is worth on this device.

mod args;
mod claims;

use std::fmt::Write;

use anyhow::{Result, bail};
use lab::patterns::SEED;
use lab::statistics::Summary;
use serde::Serialize;
use serde_json::json;

pub(super) use args::ImpactArgs;
use args::ImpactFormat;
use claims::{CLAIMS, Claim, Here, Pair, Side};

use super::args::{TargetArgs, Test};
use super::progress::progress;
use super::report::{Device, Facts, SCHEMA};
use super::run::Source;
use crate::load::args::GpuArgs;
use crate::load::device;
use crate::load::sizes;
use crate::output::stdout;

/// A claim, and the factor that was measured.
#[derive(Serialize)]
struct Row {
    /// `fusion: qwen2.5-0.5b decode`.
    name: String,
    /// Of the factors.
    unit: &'static str,
    /// How many times as fast the model is with the technique: by the medians of both sides.
    value: f64,
    /// The same by the slowest repetition with it and the fastest without, and the other way round.
    worst: f64,
    best: f64,
    claim: &'static str,
    what: &'static str,
    claimed: [f64; 2],
    with: Measured,
    without: Measured,
}

/// One side of a claim.
#[derive(Serialize)]
struct Measured {
    label: String,
    tokens_per_s: Summary,
}

/// A claim that this device cannot check.
#[derive(Serialize)]
struct NotMeasurable {
    claim: &'static str,
    what: &'static str,
    claimed: [f64; 2],
    reason: String,
}

/// What weights a side needs.
type WeightsOf<'a> = (&'a str, &'a str);

/// Runs `hotmetal bench impact`.
pub(super) fn impact(args: &ImpactArgs) -> Result<()> {
    let claims = chosen(&args.only)?;
    if args.repetitions == 0 || args.n_gen() == 0 || args.n_prompt == 0 {
        bail!("nothing to measure: expected 1 repetition or more (-r) of 1 token or more (-n, -p)");
    }
    let name = args.device();
    if name == device::REFERENCE {
        bail!("--device reference computes in plain f64, which no claim is about: expected cpu, cuda, metal or sim");
    }
    let of_device = device::DeviceSettings { threads: args.threads, ..device::DeviceSettings::on(name) };
    // Asks for the device before anything large is made.
    let device: Device = device::backend(&of_device)?.device().into();
    let facts = Facts::collect(args.repetitions, Some(SEED));
    let here = Here {
        device: name,
        threads: args.threads,
        shape: &args.shape,
        moe_shape: args.moe_shape(),
        n_prompt: args.n_prompt,
        n_gen: args.n_gen(),
    };
    let mut pairs: Vec<(&Claim, Pair)> = Vec::new();
    let mut not_measurable = Vec::new();
    for claim in claims {
        match claim.pair(&here) {
            Ok(pair) => pairs.push((claim, pair)),
            Err(reason) => {
                let Claim { name, what, claimed, .. } = *claim;
                not_measurable.push(NotMeasurable { claim: name, what, claimed, reason });
            }
        }
    }
    let rows = measure(args, &pairs)?;
    let result = json!({
        "schema": SCHEMA,
        "device": device,
        "run": facts,
        "rows": rows,
        "not_measurable": not_measurable,
    });
    match args.output {
        ImpactFormat::Md => stdout(&as_markdown(&rows, &not_measurable, &facts.line(&device)))?,
        ImpactFormat::Json => stdout(&format!("{result:#}\n"))?,
    }
    args.record.keep(&result, &device, &facts, None)
}

/// The claims that were asked for.
fn chosen(only: &[String]) -> Result<Vec<&'static Claim>> {
    let is_known = |name: &&String| CLAIMS.iter().any(|claim| claim.name == **name);
    if let Some(unknown) = only.iter().find(|name| !is_known(name)) {
        let known: Vec<_> = CLAIMS.iter().map(|claim| claim.name).collect();
        bail!("there is no claim `{unknown}`; there are: {}", known.join(", "));
    }
    Ok(CLAIMS.iter().filter(|claim| only.is_empty() || only.iter().any(|name| name == claim.name)).collect())
}

/// Measures both sides of each pair. Weights are made once for all sides that need the same, one after another: a device
/// need not hold two models.
fn measure(args: &ImpactArgs, pairs: &[(&Claim, Pair)]) -> Result<Vec<Row>> {
    let progress = progress(2 * pairs.len() * args.repetitions, "making weights");
    let sides = || pairs.iter().flat_map(|(_, pair)| [&pair.with, &pair.without].map(|side| (pair, side)));
    let needed = |(pair, side): (&'_ Pair, &'_ Side)| (pair.shape.clone(), side.format);
    let mut all_weights: Vec<(String, &str)> = Vec::new();
    for weights in sides().map(needed) {
        if !all_weights.contains(&weights) {
            all_weights.push(weights);
        }
    }
    let mut measured: Vec<Option<Summary>> = sides().map(|_| None).collect();
    for (shape, format) in &all_weights {
        progress.set_message(format!("making {shape} {format}"));
        let target = target(args, (shape, format));
        let source = Source::new(&target)?;
        let of_these = |(_, (pair, side)): &(usize, (&Pair, &Side))| pair.shape == *shape && side.format == *format;
        for (index, (pair, side)) in sides().enumerate().filter(of_these) {
            progress.set_message(format!("{} {}", pair.test.name(), side.label));
            let tests: [Test; 1] = [pair.test];
            let mut loaded = source.load(&side.settings, &tests, sizes::batch_tokens(args.device()))?;
            // Of a few steps the first are slower, because a mixture of experts meets some of its experts then.
            loaded.driver.measure(&pair.test, 1, &mut || ())?;
            let times = loaded.driver.measure(&pair.test, args.repetitions, &mut || progress.inc(1))?;
            let rates: Vec<f64> =
                times.repetitions.iter().map(|seconds| pair.test.num_tokens() as f64 / seconds).collect();
            measured[index] = Some(Summary::of(&rates));
        }
    }
    progress.finish_and_clear();
    let mut measured = measured.into_iter().flatten();
    let mut row = |(claim, pair): &(&Claim, Pair)| {
        let with = Measured { label: pair.with.label.clone(), tokens_per_s: measured.next()? };
        let without = Measured { label: pair.without.label.clone(), tokens_per_s: measured.next()? };
        Some(Row::new(claim, pair, with, without))
    };
    Ok(pairs.iter().filter_map(&mut row).collect())
}

/// The flags of `bench` for these weights.
fn target(args: &ImpactArgs, (shape, format): WeightsOf<'_>) -> TargetArgs {
    TargetArgs {
        model: None,
        shape: Some(shape.to_owned()),
        format: Some(format.to_owned()),
        device: args.device().to_owned(),
        gpu: GpuArgs::default(),
        isa: None,
        no_repack: false,
        kv_type: None,
        batch_tokens: None,
    }
}

impl Row {
    fn new(claim: &Claim, pair: &Pair, with: Measured, without: Measured) -> Self {
        let (fast, slow) = (&with.tokens_per_s, &without.tokens_per_s);
        let what = if pair.test.generate > 0 { "decode" } else { "prefill" };
        Self {
            name: format!("{}: {} {what}", claim.name, pair.shape),
            unit: "times",
            value: fast.median / slow.median,
            worst: fast.min / slow.max,
            best: fast.max / slow.min,
            claim: claim.name,
            what: claim.what,
            claimed: claim.claimed,
            with,
            without,
        }
    }
}

/// `2.40`, or `1.15 to 1.20`.
fn claimed([least, most]: [f64; 2]) -> String {
    if least == most { format!("{least:.2}") } else { format!("{least:.2} to {most:.2}") }
}

fn as_markdown(rows: &[Row], not_measurable: &[NotMeasurable], run: &str) -> String {
    let mut out = String::from(
        "| claim | | claimed | measured | worst to best | of | with | t/s | without | t/s |\n\
         | --- | --- | ---: | ---: | ---: | --- | --- | ---: | --- | ---: |\n",
    );
    for row in rows {
        let Row { name, value, worst, best, claim, what, with, without, .. } = row;
        let of = name.split_once(": ").map_or("", |(_, of)| of);
        let _ = writeln!(
            out,
            "| {claim} | {what} | {} | {value:.2} | {worst:.2} to {best:.2} | {of} | {} | {:.2} | {} | {:.2} |",
            claimed(row.claimed),
            with.label,
            with.tokens_per_s.median,
            without.label,
            without.tokens_per_s.median,
        );
    }
    for NotMeasurable { claim, what, claimed: factor, reason } in not_measurable {
        let _ = writeln!(
            out,
            "| {claim} | {what} | {} | not measurable here | | {} | | | | |",
            claimed(*factor),
            reason.replace('|', "\\|")
        );
    }
    let _ = write!(
        out,
        "\nA factor says how many times as fast the whole model is with the technique, in this run. Claims are those of the \
         documents that this project grew from, on other devices.\n{run}\n",
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_is_of_medians_and_its_range_of_the_ends() {
        let claim = &CLAIMS[0];
        let here = Here { device: "cpu", threads: None, shape: "s", moe_shape: "m", n_prompt: 8, n_gen: 2 };
        let pair = claim.pair(&here).unwrap();
        let side = |samples: &[f64]| Measured { label: "x".to_owned(), tokens_per_s: Summary::of(samples) };
        let row = Row::new(claim, &pair, side(&[20.0, 24.0, 30.0]), side(&[10.0, 12.0, 15.0]));
        assert_eq!((row.value, row.worst, row.best), (2.0, 20.0 / 15.0, 3.0));
        assert_eq!(row.name, "fp4: s decode");
        let table = as_markdown(&[row], &[], "run");
        assert!(
            table.contains("| fp4 | FP4 multiplied from its codes | 2.40 | 2.00 | 1.33 to 3.00 | s decode |"),
            "{table}"
        );
        assert_eq!(claimed([1.15, 1.20]), "1.15 to 1.20");
    }

    #[test]
    fn a_claim_that_nobody_made_is_named_with_those_that_there_are() {
        let error = chosen(&["fusoin".to_owned()]).err().unwrap().to_string();
        assert!(error.starts_with("there is no claim `fusoin`; there are: fp4, "), "{error}");
        assert_eq!(chosen(&["fusion".to_owned()]).unwrap().len(), 1);
        assert_eq!(chosen(&[]).unwrap().len(), CLAIMS.len());
    }
}
