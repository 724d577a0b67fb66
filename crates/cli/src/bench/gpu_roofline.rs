//! `hotmetal bench --roofline --device cuda`: what a GPU's memory gives, what its instructions compute, and what it costs to
//! come from one kernel to the next.

use anyhow::Result;
use gpu::{Bandwidth, Cost, GpuBackend, Peak, Roofline};
use serde_json::{Value, json};

use super::args::{MeasureArgs, OutputFormat};
use super::report::{Device, Facts, SCHEMA, quoted};
use crate::output::stdout;
use crate::{ceiling, units};

/// Measures `gpu`, prints the result and keeps it where `args` say.
pub(super) fn measure(gpu: &GpuBackend, device: &Device, facts: &Facts, args: &MeasureArgs) -> Result<()> {
    let roofline = gpu.roofline()?;
    ceiling::keep_roofline(gpu, &roofline);
    let result = json!({"schema": SCHEMA, "device": device, "run": facts, "rows": rows(&roofline)});
    stdout(&match args.output() {
        OutputFormat::Md => as_markdown(&roofline, device, facts),
        OutputFormat::Csv => as_csv(&roofline),
        OutputFormat::Json => format!("{result:#}\n"),
        OutputFormat::Jsonl => rows(&roofline).iter().map(|row| format!("{row}\n")).collect(),
    })?;
    args.record.keep(&result, device, facts, None)
}

/// An object for each measurement, told apart by `kind`.
fn rows(roofline: &Roofline) -> Vec<Value> {
    let memory = roofline.bandwidths.iter().map(|Bandwidth { kind, way, buffer_bytes, bytes_per_s }| {
        json!({"kind": kind, "way": way, "buffer_bytes": buffer_bytes, "bandwidth_gb_s": bytes_per_s / 1e9})
    });
    let peaks = roofline.peaks.iter().map(|Peak { class, instruction, ops_per_s }| {
        json!({"kind": "peak", "class": class, "instruction": instruction, "ops_per_s": ops_per_s})
    });
    let costs =
        roofline.costs.iter().map(|Cost { what, seconds }| json!({"kind": "cost", "what": what, "us": seconds * 1e6}));
    memory.chain(peaks).chain(costs).collect()
}

fn as_csv(roofline: &Roofline) -> String {
    let mut out = String::from("kind,what,buffer_bytes,bandwidth_gb_s,ops_per_s,us\n");
    for Bandwidth { kind, way, buffer_bytes, bytes_per_s } in &roofline.bandwidths {
        out.push_str(&format!("{kind},{way},{buffer_bytes},{},,\n", bytes_per_s / 1e9));
    }
    for Peak { class, ops_per_s, instruction } in &roofline.peaks {
        out.push_str(&format!("peak,{class} {instruction},,,{ops_per_s},\n"));
    }
    for Cost { what, seconds } in &roofline.costs {
        out.push_str(&format!("cost,{},,,,{}\n", quoted(what), seconds * 1e6));
    }
    out
}

fn as_markdown(roofline: &Roofline, device: &Device, facts: &Facts) -> String {
    let mut out = String::from("| memory | way | buffer | GB/s |\n| --- | --- | ---: | ---: |\n");
    for Bandwidth { kind, way, buffer_bytes, bytes_per_s } in &roofline.bandwidths {
        out.push_str(&format!("| {kind} | {way} | {} | {:.0} |\n", units::bytes(*buffer_bytes), bytes_per_s / 1e9));
    }
    out.push_str("\n| class | instruction | TOP/s |\n| --- | --- | ---: |\n");
    for Peak { class, instruction, ops_per_s } in &roofline.peaks {
        out.push_str(&format!("| {class} | {instruction} | {:.1} |\n", ops_per_s / 1e12));
    }
    out.push_str("\n| between kernels | µs |\n| --- | ---: |\n");
    for Cost { what, seconds } in &roofline.costs {
        out.push_str(&format!("| {what} | {:.2} |\n", seconds * 1e6));
    }
    out.push_str(&format!(
        "\n{}; best of some passes; a copied byte counts once, a multiplication and an addition are two operations\n",
        facts.line(device)
    ));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_in_every_form() {
        let roofline = Roofline {
            bandwidths: vec![Bandwidth {
                kind: "read",
                way: "bulk copies",
                buffer_bytes: 1 << 30,
                bytes_per_s: 4.7e12,
            }],
            peaks: vec![Peak { class: "f16_matrix", instruction: "mma", ops_per_s: 6.0e14 }],
            costs: vec![Cost { what: "launch in a graph, early start", seconds: 7.5e-7 }],
        };
        let csv = as_csv(&roofline);
        let lines: Vec<_> = csv.lines().collect();
        assert_eq!(lines[1], "read,bulk copies,1073741824,4700,,");
        assert_eq!(lines[2], "peak,f16_matrix mma,,,600000000000000,");
        assert_eq!(lines[3], "cost,\"launch in a graph, early start\",,,,0.75");
        let device = Device { name: "cuda".to_owned(), description: "a GPU".to_owned(), memory_bytes: 1, driver: None };
        let table = as_markdown(&roofline, &device, &Facts::collect(1, None));
        for line in ["| read | bulk copies | 1.00 GiB | 4700 |", "| f16_matrix | mma | 600.0 |", "start | 0.75 |"] {
            assert!(table.contains(line), "{line}: {table}");
        }
        let kinds: Vec<_> = rows(&roofline).iter().map(|row| row["kind"].clone()).collect();
        assert_eq!(kinds, ["read", "peak", "cost"]);
    }
}
