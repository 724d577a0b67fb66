//! `hotmetal bench compare`: what changed between two results, and what is noise.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::args::CompareArgs;
use super::report::{Report, Row};
use crate::files;
use crate::output::{note, stdout};

/// A difference below this is never one: two runs of the same program differ as much.
const MIN_BAND: f64 = 0.01;
/// Standard deviations of one repetition that the band is wide.
const BAND_DEVIATIONS: f64 = 2.0;
/// A memory that has become so much faster or slower is said: on virtual machines it does so by itself.
const SAME_MEMORY: f64 = 0.05;

/// Runs `hotmetal bench compare`.
pub(super) fn compare(args: &CompareArgs) -> Result<()> {
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    if before.device != after.device {
        note(&format!("warning: the machines differ: {} and {}", before.device.description, after.device.description));
    }
    stdout(&table(&before, &after)?)?;
    Ok(())
}

fn read(path: &Path) -> Result<Report> {
    let text = files::read_text(path, "", files::RESULT_BYTES_MAX)?;
    let foreign = || format!("`{}` is not a result of `hotmetal bench -o json`", path.display());
    // Asked first, so that a result of `hotmetal profile`, which has other rows, is told from a foreign file.
    let Marked { profiled } = serde_json::from_str(&text).with_context(foreign)?;
    if profiled {
        bail!(
            "`{}` was measured while a profiler looked on, which slows it down: compare results without",
            path.display()
        );
    }
    serde_json::from_str(&text).with_context(foreign)
}

/// The one field that every result has.
#[derive(Deserialize)]
struct Marked {
    #[serde(default)]
    profiled: bool,
}

fn table(before: &Report, after: &Report) -> Result<String> {
    let is_same = |a: &Row, b: &Row| key(a) == key(b);
    let pairs: Vec<_> =
        before.rows.iter().filter_map(|a| Some((a, after.rows.iter().find(|b| is_same(a, b))?))).collect();
    if pairs.is_empty() {
        bail!(
            "the results have no row in common: rows pair by test, model, format, device, threads, batch, depth and clock; the \
             first has {}, the second {}",
            before.subjects(),
            after.subjects()
        );
    }
    let mut out = String::from(
        "| model | threads | test | t/s before | t/s after | ratio | noise | verdict | of ceiling before | after | ceiling |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: |\n",
    );
    let share = |row: &Row| row.roofline_share.map_or("–".to_owned(), |share| format!("{:.0} %", 100.0 * share));
    for (a, b) in &pairs {
        let change = Change::between(a, b);
        let cells = [
            format!("{} {}", a.model.replace('|', "\\|"), a.format.to_ascii_uppercase()),
            a.threads.to_string(),
            a.label(),
            format!("{:.2}", a.tokens_per_s.median),
            format!("{:.2}", b.tokens_per_s.median),
            format!("{:.3}", change.ratio),
            change.band.map_or("unknown".to_owned(), |band| format!("± {:.1} %", 100.0 * band)),
            change.verdict(),
            share(a),
            share(b),
            change.ceiling.map_or("–".to_owned(), |ratio| format!("× {ratio:.2}")),
        ];
        out.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    let alone = |rows: &[Row]| rows.iter().filter(|&a| !pairs.iter().any(|(b, _)| is_same(a, b))).count();
    for (what, count) in [("first", alone(&before.rows)), ("second", alone(&after.rows))] {
        if count > 0 {
            out.push_str(&format!("\nRows only in the {what} result: {count}\n"));
        }
    }
    Ok(out)
}

/// What makes two rows the same measurement.
fn key(row: &Row) -> (&str, &str, &str, &str, usize, usize, usize, &str) {
    (&row.test, &row.model, &row.format, &row.device, row.threads, row.batch, row.depth, &row.clock)
}

/// How much faster, and how sure that is.
struct Change {
    /// Median tokens per second, after by before.
    ratio: f64,
    /// A ratio this far from 1 is still noise; unknown where a side has one repetition only.
    band: Option<f64>,
    /// What the machine gave beside the second test by what it gave beside the first.
    ceiling: Option<f64>,
}

impl Change {
    /// The band takes the spread of single repetitions, not of their mean: repetitions of one run are not independent,
    /// and two runs differ by more than their means' errors say. A deviation of few repetitions is easily too small, so
    /// the band is also no narrower than the distances from each median to its furthest repetition.
    fn between(a: &Row, b: &Row) -> Self {
        let deviation = |row: &Row| row.tokens_per_s.stdev / row.tokens_per_s.mean;
        let reach = |row: &Row| {
            let rate = &row.tokens_per_s;
            (rate.max - rate.median).max(rate.median - rate.min) / rate.median
        };
        let known = a.samples.len() > 1 && b.samples.len() > 1;
        let band = (BAND_DEVIATIONS * deviation(a).hypot(deviation(b))).max(reach(a).hypot(reach(b)));
        let ceiling = |row: &Row| row.read_bandwidth_gb_s.or(row.peak_flops_per_s);
        Self {
            ratio: b.tokens_per_s.median / a.tokens_per_s.median,
            band: known.then(|| band.max(MIN_BAND)),
            ceiling: ceiling(b).zip(ceiling(a)).map(|(after, before)| after / before),
        }
    }

    fn verdict(&self) -> String {
        let Some(band) = self.band else { return "one repetition says nothing".to_owned() };
        let is_noise = |ratio: f64| (ratio - 1.0).abs() <= band;
        let percent = 100.0 * (self.ratio - 1.0);
        if is_noise(self.ratio) {
            return "no difference".to_owned();
        }
        let direction = if percent > 0.0 { "faster" } else { "slower" };
        // The machine may have changed instead of the program.
        let as_the_ceiling = |ceiling: &f64| (ceiling - 1.0).abs() > SAME_MEMORY && is_noise(self.ratio / ceiling);
        let why = if self.ceiling.as_ref().is_some_and(as_the_ceiling) { ", as the machine is" } else { "" };
        format!("{:.1} % {direction}{why}", percent.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Variants;
    use super::super::statistics::{Percentiles, Summary};
    use super::*;

    fn row(samples: &[f64]) -> Row {
        Row {
            test: "tg128".to_owned(),
            model: "m".to_owned(),
            format: "q8_0".to_owned(),
            device: "cpu".to_owned(),
            threads: 1,
            batch: 1,
            depth: 0,
            clock: "wall".to_owned(),
            tokens_per_s: Summary::of(samples),
            samples: samples.to_vec(),
            default_tokens_per_s: None,
            latency_ms: Percentiles::of(&[1.0]),
            latency_quantiles_ms: vec![],
            ttft_ms: None,
            load_ms: 0.0,
            active_bytes: 0,
            bandwidth_gb_s: None,
            flops_per_s: 0.0,
            read_bandwidth_gb_s: None,
            peak_flops_per_s: None,
            peak_class: None,
            roofline_share: None,
            weight_bytes: 0,
            num_parameters: 0,
            variants: Variants { isa: "scalar".to_owned(), kv_type: "f16".to_owned(), kernels: vec![] },
        }
    }

    fn verdict(a: &[f64], b: &[f64]) -> String {
        Change::between(&row(a), &row(b)).verdict()
    }

    #[test]
    fn a_change_counts_when_it_is_larger_than_the_spread() {
        assert_eq!(verdict(&[100.0, 100.0, 100.0], &[120.0, 120.0, 120.0]), "20.0 % faster");
        assert_eq!(verdict(&[100.0, 100.0, 100.0], &[80.0, 80.0, 80.0]), "20.0 % slower");
        // Deviations of 10 % each: a band of 28 %.
        assert_eq!(verdict(&[90.0, 100.0, 110.0], &[108.0, 120.0, 132.0]), "no difference");
        assert_eq!(verdict(&[100.0, 100.0], &[100.9, 100.9]), "no difference");
        assert_eq!(verdict(&[100.0], &[200.0, 200.0]), "one repetition says nothing");
        // One repetition of five that far away: a deviation of 4.5 %, but a reach of 10 %.
        assert_eq!(verdict(&[100.0, 100.0, 100.0, 100.0, 90.0], &[109.0; 5]), "no difference");
    }

    #[test]
    fn a_faster_memory_is_not_taken_for_a_faster_program() {
        let at = |rate: f64, bandwidth: f64| Row { read_bandwidth_gb_s: Some(bandwidth), ..row(&[rate, rate]) };
        let verdict = |a, b| Change::between(&a, &b).verdict();
        assert_eq!(verdict(at(100.0, 15.0), at(120.0, 18.0)), "20.0 % faster, as the machine is");
        assert_eq!(verdict(at(100.0, 15.0), at(120.0, 15.0)), "20.0 % faster");
        assert_eq!(verdict(at(100.0, 15.0), at(80.0, 12.0)), "20.0 % slower, as the machine is");
        assert_eq!(verdict(at(100.0, 15.0), at(120.0, 12.0)), "20.0 % faster");
    }
}
