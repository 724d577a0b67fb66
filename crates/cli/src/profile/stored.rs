//! Profiles that were kept: `bench report` prints one again, and `bench compare` lays two beside each other, op by op.

use std::fmt::Write;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::report::Report;
use super::summary::{OpRow, Summary};
use crate::bench::{Profiles, warn_of_difference};

/// What `bench` reads them with.
pub(crate) const STORED: Profiles = Profiles { is_profile, printed, compared };

/// Whether `value` is what `hotmetal profile -o json` prints.
fn is_profile(value: &Value) -> bool {
    value["profiled"] == true && value["phases"].is_array()
}

/// The profile that `value`, read from the file called `name`, is.
fn read(name: &str, value: Value) -> Result<Report> {
    let report: Report = serde_json::from_value(value)
        .with_context(|| format!("`{name}` is not a result of `hotmetal profile -o json` as this program prints it"))?;
    if let Some(phase) = report.phases.iter().find(|phase| phase.steps == 0) {
        bail!("`{name}` has no step of {}", phase.test);
    }
    Ok(report)
}

/// The table of the profile that is `value`, as `profile` printed it.
fn printed(name: &str, value: Value) -> Result<String> {
    Ok(read(name, value)?.as_markdown())
}

/// What changed from one profile to another, each with the name of its file.
fn compared(before: (&str, Value), after: (&str, Value)) -> Result<String> {
    let (before, after) = (read(before.0, before.1)?, read(after.0, after.1)?);
    warn_of_difference((&before.device, &before.run), (&after.device, &after.run));
    tables(&before, &after)
}

fn tables(before: &Report, after: &Report) -> Result<String> {
    let subject = |report: &Report| {
        let plural = if report.threads == 1 { "" } else { "s" };
        format!("{} {}, {} thread{plural}", report.model, report.format.to_ascii_uppercase(), report.threads)
    };
    let mut out = match (subject(before), subject(after)) {
        (before, after) if before == after => format!("{before}\n"),
        (before, after) => format!("before: {before}; after: {after}\n"),
    };
    let name = |phase: &Summary| format!("{} @ d{}", phase.test, phase.depth);
    let names = |report: &Report| report.phases.iter().map(name).collect::<Vec<_>>().join(", ");
    let mut pairs = 0;
    for a in &before.phases {
        let Some(b) = after.phases.iter().find(|b| name(b) == name(a)) else {
            let _ = writeln!(out, "\n### {}: only in the first profile", name(a));
            continue;
        };
        pairs += 1;
        let _ = writeln!(out, "\n### {}\n\n{}", name(a), phase_table(a, b).trim_end());
    }
    for b in after.phases.iter().filter(|b| before.phases.iter().all(|a| name(a) != name(b))) {
        let _ = writeln!(out, "\n### {}: only in the second profile", name(b));
    }
    if pairs == 0 {
        bail!("the profiles have no phase in common: the first has {}, the second {}", names(before), names(after));
    }
    out.push_str(
        "\nTimes are of all ops of a kind in one step; a change below zero is less time. One profile says nothing of \
         its own noise: `hotmetal bench compare` of two results of `bench` does.\n",
    );
    Ok(out)
}

/// The ops of two profiles of a phase, in pairs; one that only a profile has stands alone.
fn pairs<'a>(before: &'a [OpRow], after: &'a [OpRow]) -> Vec<(Option<&'a OpRow>, Option<&'a OpRow>)> {
    let mut taken = vec![false; after.len()];
    let mut found: Vec<Option<usize>> = vec![None; before.len()];
    // First with the same kernel, then those that another one computes now.
    for same_kernel in [true, false] {
        for (a, found) in before.iter().zip(&mut found).filter(|(_, found)| found.is_none()) {
            let is_same = |b: &OpRow| {
                (&a.op, &a.shape, &a.format) == (&b.op, &b.shape, &b.format) && (!same_kernel || a.variant == b.variant)
            };
            let of_same = after.iter().enumerate().position(|(index, b)| !taken[index] && is_same(b));
            if let Some(index) = of_same {
                (*found, taken[index]) = (Some(index), true);
            }
        }
    }
    let both = before.iter().zip(found).map(|(a, found)| (Some(a), found.map(|index| &after[index])));
    let alone = after.iter().zip(taken).filter(|(_, taken)| !taken).map(|(b, _)| (None, Some(b)));
    both.chain(alone).collect()
}

fn phase_table(before: &Summary, after: &Summary) -> String {
    let mut out = String::from(
        "| op | shape | format | µs a step before | after | change | kernel |\n\
         | --- | --- | --- | ---: | ---: | ---: | --- |\n",
    );
    let mut line = |what: &str, before: Option<f64>, after: Option<f64>, kernel: &str| {
        let time = |us: Option<f64>| us.map_or_else(|| "–".to_owned(), |us| format!("{us:.1}"));
        let change = match (before, after) {
            (Some(before), Some(after)) if before > 0.0 => format!("{:+.1} %", 100.0 * (after / before - 1.0)),
            (Some(_), Some(_)) => "–".to_owned(),
            (Some(_), None) => "only before".to_owned(),
            (None, _) => "only after".to_owned(),
        };
        let _ = writeln!(out, "| {what} | {} | {} | {change} | {kernel} |", time(before), time(after));
    };
    let a_step = |total_ms: f64, phase: &Summary| 1e3 * total_ms / phase.steps as f64;
    for (a, b) in pairs(&before.ops, &after.ops) {
        let Some(of) = a.or(b) else { continue };
        let kernel = match (a, b) {
            (Some(a), Some(b)) if a.variant != b.variant => format!("{}, then {}", a.variant, b.variant),
            _ => of.variant.clone(),
        };
        let (a, b) = (a.map(|op| a_step(op.total_ms, before)), b.map(|op| a_step(op.total_ms, after)));
        line(&format!("{} | {} | {}", of.op, of.shape, of.format), a, b, &kernel);
    }
    let rest = |phase: &Summary, part: &str| {
        phase.rest.iter().find(|row| row.part == part).map(|row| a_step(row.total_ms, phase))
    };
    let parts = before.rest.iter().map(|row| &row.part);
    let new_parts = after.rest.iter().map(|row| &row.part).filter(|part| rest(before, part).is_none());
    for part in parts.chain(new_parts) {
        line(&format!("*{part}* | |"), rest(before, part), rest(after, part), "");
    }
    let sum = |phase: &Summary| Some(a_step(phase.wall_ms, phase));
    line("**wall** | |", sum(before), sum(after), "");
    let rates = [before, after].map(|phase| phase.unrecorded_tokens_per_s);
    let _ = writeln!(
        out,
        "\n- in the runs between, which were not recorded: {:.2} tok/s before, {:.2} after ({:+.1} %)",
        rates[0],
        rates[1],
        100.0 * (rates[1] / rates[0] - 1.0)
    );
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A profile of two steps with these ops: name, kernel and milliseconds of both.
    fn profile(ops: &[(&str, &str, f64)], sample_ms: f64) -> Value {
        let op = |&(op, variant, total_ms): &(&str, &str, f64)| {
            json!({
                "op": op, "shape": "1 × 4 → 4", "format": "f16", "variant": variant, "count": 2, "total_ms": total_ms,
                "mean_us": 500.0 * total_ms, "p95_us": 500.0 * total_ms, "alone_us": null, "wait_ms": 0.0,
                "bandwidth_gb_s": null, "flops_per_s": 1e9, "roofline_share": 0.5, "wall_share": 0.5,
            })
        };
        let ops: Vec<_> = ops.iter().map(op).collect();
        let phase = json!({
            "test": "tg2", "depth": 1, "repetitions": 1, "steps": 2, "tokens": 2, "wall_ms": 10.0, "parts_share": 1.0,
            "tokens_per_s": 200.0, "unrecorded_tokens_per_s": 100.0 / sample_ms, "bandwidth_gb_s": 1.0,
            "flops_per_s": 1e9, "roofline_share": 0.5, "ops": ops, "threads": [],
            "rest": [{"part": "sample", "total_ms": sample_ms, "mean_us": 1.0, "wall_share": 0.1}],
            "recording": {"clock_readings": 2.0, "clock_reading_ns": 20.0, "wall_share": 0.0},
            "ceiling": {"read_bandwidth_gb_s": 10.0, "peaks": []},
        });
        let device = json!({"name": "cpu", "description": "a machine", "memory_bytes": 1});
        let run = json!({"version": "1", "commit": null, "date": "2026-11-29T00:00:00Z", "command": [],
            "repetitions": 1, "load_average": null, "weights_seed": null});
        json!({"profiled": true, "device": device, "run": run, "model": "m", "format": "f16", "threads": 1,
            "sampling": "greedy", "decodes_text": true, "phases": [phase]})
    }

    #[test]
    fn ops_stand_in_pairs_and_one_that_only_a_profile_has_is_listed() {
        let before = profile(&[("linear", "plain", 4.0), ("linear", "wide", 3.0), ("glu", "plain", 2.0)], 1.0);
        let after = profile(&[("linear", "wide", 6.0), ("linear", "tall", 1.0), ("norm_glu", "plain", 1.0)], 2.0);
        assert!(is_profile(&before));
        let table = compared(("a", before), ("b", after)).unwrap();
        for line in [
            "m F16, 1 thread\n\n### tg2 @ d1\n\n| op |",
            // Milliseconds of two steps.
            "\n| linear | 1 × 4 → 4 | f16 | 2000.0 | 500.0 | -75.0 % | plain, then tall |\n",
            "\n| linear | 1 × 4 → 4 | f16 | 1500.0 | 3000.0 | +100.0 % | wide |\n",
            "\n| glu | 1 × 4 → 4 | f16 | 1000.0 | – | only before | plain |\n",
            "\n| norm_glu | 1 × 4 → 4 | f16 | – | 500.0 | only after | plain |\n",
            "\n| *sample* | | | 500.0 | 1000.0 | +100.0 % |  |\n",
            "\n| **wall** | | | 5000.0 | 5000.0 | +0.0 % |  |\n",
            "100.00 tok/s before, 50.00 after (-50.0 %)",
        ] {
            assert!(table.contains(line), "{line} in {table}");
        }
    }

    #[test]
    fn phases_that_only_a_profile_has_are_named() {
        let of = |tests: &[&str]| {
            let mut value = profile(&[("linear", "plain", 4.0)], 1.0);
            let phases = tests.iter().map(|test| {
                let mut phase = value["phases"][0].clone();
                phase["test"] = json!(test);
                phase
            });
            value["phases"] = phases.collect();
            value
        };
        let table = compared(("a", of(&["pp8", "tg2"])), ("b", of(&["tg2", "tg9"]))).unwrap();
        assert!(
            table.contains("### pp8 @ d1: only in the first") && table.contains("### tg9 @ d1: only in the second")
        );
        let error = compared(("a", of(&["pp8"])), ("b", of(&["tg9"]))).unwrap_err().to_string();
        assert!(error.contains("no phase in common: the first has pp8 @ d1, the second tg9 @ d1"), "{error}");
        let mut damaged = of(&["tg2"]);
        damaged["phases"][0]["steps"] = json!(0);
        assert!(printed("p.json", damaged).unwrap_err().to_string().contains("`p.json` has no step of tg2"));
        let error = format!("{:#}", printed("p.json", json!({"profiled": true, "phases": []})).unwrap_err());
        assert!(error.contains("`p.json` is not a result of `hotmetal profile") && error.contains("device"), "{error}");
    }
}
