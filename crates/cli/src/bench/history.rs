//! `hotmetal bench history`: what each change did to each quantity, from the records.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use records::{Change, History, Point, Quantity};
use serde_json::json;

use super::args::OutputFormat;
use super::record::{self, RecordArgs};
use crate::output::stdout;

/// Print what changed from record to record, and what of it is noise
#[derive(Args, Debug)]
pub(super) struct HistoryArgs {
    /// The folder that `bench --record` wrote
    #[arg(value_name = "FOLDER", default_value = RecordArgs::FOLDER)]
    folder: PathBuf,

    /// Only the records of this machine
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,

    /// Only quantities with one of these in their names, for example 'q8_0 decode'
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    only: Vec<String>,

    /// Only the newest N records of each quantity
    #[arg(long, value_name = "N")]
    last: Option<usize>,

    /// How to print the result
    #[arg(long, short = 'o', value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Md)]
    output: OutputFormat,
}

/// A quantity that is printed.
struct Shown<'a> {
    quantity: Quantity<'a>,
    /// Each with what changed since the one before, and since the first that is shown.
    points: Vec<(Point<'a>, Option<Change>, Option<Change>)>,
}

/// Runs `hotmetal bench history`.
pub(super) fn history(args: &HistoryArgs) -> Result<()> {
    let records = record::read_all(&args.folder)?;
    let history = History::of(&records);
    let is_asked = |quantity: &Quantity<'_>| {
        args.machine.as_deref().is_none_or(|machine| machine == quantity.machine)
            && (args.only.is_empty() || args.only.iter().any(|only| quantity.name.contains(only.as_str())))
    };
    let asked = history.quantities.iter().filter(|(quantity, _)| is_asked(quantity));
    let shown: Vec<Shown<'_>> = asked.map(|(quantity, points)| Shown::new(*quantity, points, args.last)).collect();
    if shown.is_empty() {
        let machines: std::collections::BTreeSet<_> = records.iter().map(|record| record.machine.as_str()).collect();
        bail!(
            "no record in `{}` has a figure of that kind: it holds {} records of {}",
            args.folder.display(),
            records.len(),
            if machines.is_empty() {
                "no machine".to_owned()
            } else {
                machines.into_iter().collect::<Vec<_>>().join(", ")
            }
        );
    }
    match args.output {
        OutputFormat::Md => stdout(&as_markdown(&shown))?,
        OutputFormat::Json => stdout(&format!("{:#}\n", json!(lines(&shown))))?,
        OutputFormat::Jsonl => stdout(&lines(&shown).iter().map(|line| format!("{line}\n")).collect::<String>())?,
        OutputFormat::Csv => bail!("the history is printed as md, json or jsonl"),
    }
    Ok(())
}

impl<'a> Shown<'a> {
    fn new(quantity: Quantity<'a>, points: &[Point<'a>], last: Option<usize>) -> Self {
        let begin = last.map_or(0, |last| points.len().saturating_sub(last));
        let shown = &points[begin..];
        let changes = shown.iter().enumerate().map(|(index, point)| {
            let before = (begin + index).checked_sub(1).and_then(|before| point.since(&points[before]));
            let first = (index > 0).then(|| point.since(&shown[0])).flatten();
            (*point, before, first)
        });
        Self { quantity, points: changes.collect() }
    }
}

/// Makes a table for each machine. It only counts the quantities that were measured once, because they have no history.
fn as_markdown(shown: &[Shown<'_>]) -> String {
    let mut out = String::new();
    for of_machine in shown.chunk_by(|a, b| a.quantity.machine == b.quantity.machine) {
        let _ = write!(
            out,
            "## {}\n\n| quantity | day | commit | figure | change | noise | verdict | since the first |\n\
             | --- | --- | --- | ---: | ---: | ---: | --- | ---: |\n",
            of_machine[0].quantity.machine
        );
        let (many, once): (Vec<_>, Vec<_>) = of_machine.iter().partition(|shown| shown.points.len() > 1);
        for shown in many {
            for (index, (point, change, first)) in shown.points.iter().enumerate() {
                // A name stands at its first line only, so that it is seen where the next one begins.
                let name = if index == 0 { shown.quantity.name } else { "" };
                let ratio = |change: &Option<Change>| change.map_or("–".to_owned(), |change| times(change.ratio));
                let band = change.map_or("–".to_owned(), |change| {
                    change.band.map_or("unknown".to_owned(), |band| format!("± {:.1} %", 100.0 * band))
                });
                let verdict = change.map_or("–".to_owned(), |change| change.verdict());
                let figure = point.row.spread().map_or("–".to_owned(), |spread| figure(spread.median));
                let _ = writeln!(
                    out,
                    "| {} | {} | {} | {figure} {} | {} | {band} | {verdict} | {} |",
                    name.replace('|', "\\|"),
                    point.record.day(),
                    point.record.build(),
                    shown.quantity.unit,
                    ratio(change),
                    ratio(first),
                );
            }
        }
        if !once.is_empty() {
            let _ = write!(out, "\nMeasured once, so without a history: {}\n", once.len());
        }
        out.push('\n');
    }
    out
}

/// `× 1.05`, how many times as good as before.
fn times(ratio: f64) -> String {
    format!("× {ratio:.3}")
}

fn figure(value: f64) -> String {
    if value.abs() < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// An object for each point.
fn lines(shown: &[Shown<'_>]) -> Vec<serde_json::Value> {
    let of = |shown: &Shown<'_>| {
        let Quantity { machine, name, unit } = shown.quantity;
        let line = |(point, change, first): &(Point<'_>, Option<Change>, Option<Change>)| {
            json!({
                "machine": machine, "name": name, "unit": unit,
                "date": point.record.date, "commit": point.record.build(), "file": point.record.file,
                "value": point.row.spread().map(|spread| spread.median),
                "ratio": change.map(|change| change.ratio), "noise": change.and_then(|change| change.band),
                "verdict": change.map(|change| change.verdict()), "ratio_to_first": first.map(|change| change.ratio),
            })
        };
        shown.points.iter().map(line).collect::<Vec<_>>()
    };
    shown.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use records::Record;

    use super::*;

    #[test]
    fn a_change_is_told_from_noise_and_the_last_ones_can_be_asked_for() {
        let record = |day: &str, rate: f64| {
            let row =
                json!({"name": "m q8_0 decode", "unit": "tokens/s", "value": rate, "samples": [rate, rate * 1.001]});
            let value = json!({"device": {"description": "d"}, "run": {"date": day, "commit": "abc"}, "rows": [row]});
            Record::read("h200", &format!("{day}-abc.json"), &value.to_string()).unwrap()
        };
        let records = [record("2026-11-25", 100.0), record("2026-11-26", 88.0), record("2026-11-27", 88.2)];
        let history = History::of(&records);
        let (quantity, points) = history.quantities.iter().next().unwrap();
        let all = as_markdown(&[Shown::new(*quantity, points, None)]);
        assert!(all.contains("| m q8_0 decode | 2026-11-25 | abc | 100 tokens/s | – | – | – | – |"), "{all}");
        assert!(all.contains("|  | 2026-11-26 | abc | 88.04 tokens/s | × 0.880 | ± 1.0 % | 12.0 % slower |"), "{all}");
        assert!(all.contains("| no difference | × 0.882 |"), "{all}");
        let last = lines(&[Shown::new(*quantity, points, Some(1))]);
        assert_eq!(last.len(), 1);
        assert_eq!((&last[0]["verdict"], &last[0]["ratio_to_first"]), (&json!("no difference"), &json!(null)));
    }
}
