//! `hotmetal bench compare`: what changed between two results, and what is noise. Two profiles are compared op by op
//! (`crate::profile`).

use std::path::Path;

use anyhow::{Context, Result, bail};
use lab::statistics::Summary;
use records::{Change, Spread};
use serde_json::Value;

use super::Profiles;
use super::args::CompareArgs;
use super::report::{Device, Facts, Report, Row};
use crate::files;
use crate::output::{note, stdout};

/// A memory that has become so much faster or slower is said: on virtual machines it does so by itself.
const SAME_MEMORY: f64 = 0.05;

/// Runs `hotmetal bench compare`.
pub(super) fn compare(args: &CompareArgs, profiles: &Profiles) -> Result<()> {
    let (before, after) = (value(&args.before)?, value(&args.after)?);
    let table = match ((profiles.is_profile)(&before), (profiles.is_profile)(&after)) {
        (true, true) => {
            let [first, second] = [&args.before, &args.after].map(|path| path.display().to_string());
            (profiles.compared)((&first, before), (&second, after))?
        }
        (false, false) => {
            let (before, after) = (report(&args.before, before)?, report(&args.after, after)?);
            warn_of_difference((&before.device, &before.run), (&after.device, &after.run));
            table(&before, &after)?
        }
        (is_profile, _) => {
            let (profile, other) = if is_profile { (&args.before, &args.after) } else { (&args.after, &args.before) };
            bail!(
                "`{}` is a profile (`hotmetal profile -o json`), and `{}` is not: a profile is compared with a \
                 profile, and a result of `hotmetal bench` with another",
                profile.display(),
                other.display()
            );
        }
    };
    Ok(stdout(&table)?)
}

/// Says where two results are not of the same machine, or not of one that was idle.
pub(crate) fn warn_of_difference(before: (&Device, &Facts), after: (&Device, &Facts)) {
    let [(first, _), (second, _)] = [before, after];
    if first != second {
        note(&format!("warning: the machines differ: {} and {}", first.description, second.description));
    }
    for (which, (_, run)) in [("first", before), ("second", after)] {
        if let Some(load) = run.busy_load() {
            note(&format!(
                "warning: other programs ran while the {which} result was measured (load average {load:.2}): a difference may be \
                 theirs"
            ));
        }
    }
}

fn foreign(path: &Path) -> String {
    format!("`{}` is not a result of `hotmetal bench -o json`", path.display())
}

fn value(path: &Path) -> Result<Value> {
    let text = files::read_text(path, "", files::RESULT_BYTES_MAX)?;
    serde_json::from_str(&text).with_context(|| foreign(path))
}

/// The result of `bench` that `value`, read from `path`, is.
fn report(path: &Path, value: Value) -> Result<Report> {
    if value["profiled"] == true {
        bail!(
            "`{}` was measured while a profiler looked on, which slows it down: compare results without",
            path.display()
        );
    }
    serde_json::from_value(value).with_context(|| foreign(path))
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
    let under_load = match before.run.busy_load().or(after.run.busy_load()) {
        Some(_) => ", under load",
        None => "",
    };
    let share = |row: &Row| row.roofline_share.map_or("–".to_owned(), |share| format!("{:.0} %", 100.0 * share));
    for (a, b) in &pairs {
        let compared = Compared::new(a, b);
        let cells = [
            format!("{} {}", a.model.replace('|', "\\|"), a.format.to_ascii_uppercase()),
            a.threads.to_string(),
            a.label(),
            format!("{:.2}", a.tokens_per_s.median),
            format!("{:.2}", b.tokens_per_s.median),
            format!("{:.3}", compared.change.ratio),
            compared.change.band.map_or("unknown".to_owned(), |band| format!("± {:.1} %", 100.0 * band)),
            format!("{}{under_load}", compared.verdict()),
            share(a),
            share(b),
            compared.ceiling.map_or("–".to_owned(), |ratio| format!("× {ratio:.2}")),
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

/// How much faster a row is, beside how much the machine changed.
struct Compared {
    change: Change,
    /// What the machine gave beside the second test by what it gave beside the first.
    ceiling: Option<f64>,
}

impl Compared {
    fn new(a: &Row, b: &Row) -> Self {
        let ceiling = |row: &Row| row.read_bandwidth_gb_s.or(row.peak_flops_per_s);
        Self {
            change: Change::between(&spread(a), &spread(b), false),
            ceiling: ceiling(b).zip(ceiling(a)).map(|(after, before)| after / before),
        }
    }

    fn verdict(&self) -> String {
        let verdict = self.change.verdict();
        let is_noise = |ratio: f64| self.change.is_noise(ratio) != Some(false);
        // The machine may have changed instead of the program.
        let as_the_ceiling =
            |ceiling: &f64| (ceiling - 1.0).abs() > SAME_MEMORY && is_noise(self.change.ratio / ceiling);
        let is_the_machine = !is_noise(self.change.ratio) && self.ceiling.as_ref().is_some_and(as_the_ceiling);
        format!("{verdict}{}", if is_the_machine { ", as the machine is" } else { "" })
    }
}

/// Of the tokens per second.
fn spread(row: &Row) -> Spread {
    let Summary { median, mean, min, max, stdev } = row.tokens_per_s;
    let deviation = (row.samples.len() > 1).then(|| stdev / mean);
    // One repetition has no limits that say anything.
    let range = if deviation.is_some() { (min, max) } else { (median, median) };
    Spread { median, range, deviation }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_faster_memory_is_not_taken_for_a_faster_program() {
        let at =
            |rate: f64, bandwidth: f64| Row { read_bandwidth_gb_s: Some(bandwidth), ..Row::of_samples(&[rate, rate]) };
        let verdict = |a, b| Compared::new(&a, &b).verdict();
        assert_eq!(verdict(at(100.0, 15.0), at(120.0, 18.0)), "20.0 % faster, as the machine is");
        assert_eq!(verdict(at(100.0, 15.0), at(120.0, 15.0)), "20.0 % faster");
        assert_eq!(verdict(at(100.0, 15.0), at(80.0, 12.0)), "20.0 % slower, as the machine is");
        assert_eq!(verdict(at(100.0, 15.0), at(120.0, 12.0)), "20.0 % faster");
        let once = |rate| Row { samples: vec![rate], ..at(rate, 15.0) };
        assert_eq!(verdict(once(100.0), once(200.0)), "one repetition says nothing");
    }
}
