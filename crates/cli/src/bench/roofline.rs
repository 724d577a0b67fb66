//! `hotmetal bench --roofline`: what the memory gives, by threads and by size of the buffer.

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::args::{MeasureArgs, OutputFormat};
use super::report::{Device, Facts};
use super::{CPU, progress};
use crate::load;
use crate::output::stdout;
use crate::units;

/// From what a core's own cache holds to what no cache holds.
const SIZES_MIB: [usize; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// One measurement, in 10⁹ bytes per second.
struct Point {
    kind: &'static str,
    threads: usize,
    buffer_bytes: usize,
    bandwidth_gb_s: f64,
}

/// Runs `hotmetal bench --roofline`.
pub(super) fn roofline(args: &MeasureArgs) -> Result<()> {
    if args.target.device != CPU {
        bail!(
            "--roofline measures the memory of the processors: expected --device {CPU}, found `{}`",
            args.target.device
        );
    }
    let facts = Facts::collect(1, None);
    let device: Device = load::backend(&args.target.model_args(None))?.device().into();
    let counts = thread_counts(args)?;
    let progress = progress(counts.len() * SIZES_MIB.len() * 2, "reading and copying");
    let mut points = Vec::new();
    for threads in counts {
        let cpu = load::cpu_backend(&args.target.model_args(Some(threads)))?;
        for buffer_bytes in SIZES_MIB.map(|mib| mib << 20) {
            let read = cpu.read_bandwidth_of(buffer_bytes);
            progress.inc(1);
            let copy = cpu.copy_bandwidth(buffer_bytes);
            progress.inc(1);
            for (kind, bandwidth) in [("read", read), ("copy", copy)] {
                points.push(Point { kind, threads, buffer_bytes, bandwidth_gb_s: bandwidth / 1e9 });
            }
        }
    }
    progress.finish_and_clear();
    stdout(&match args.output {
        OutputFormat::Md => as_markdown(&device, &points),
        OutputFormat::Csv => as_csv(&points),
        OutputFormat::Json => {
            let rows: Vec<_> = points.iter().map(as_json).collect();
            format!("{:#}\n", json!({"device": device, "run": facts, "rows": rows}))
        }
        OutputFormat::Jsonl => points.iter().map(|point| format!("{}\n", as_json(point))).collect(),
    })?;
    Ok(())
}

/// Those asked for, or 1, 2, 4 and so on up to all.
fn thread_counts(args: &MeasureArgs) -> Result<Vec<usize>> {
    if !args.threads.is_empty() {
        return Ok(args.threads.clone());
    }
    let all = load::cpu_backend(&args.target.model_args(None))?.threads();
    let mut counts: Vec<_> = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|&n| n < all).collect();
    counts.push(all);
    Ok(counts)
}

fn as_json(point: &Point) -> Value {
    let Point { kind, threads, buffer_bytes, bandwidth_gb_s } = point;
    json!({"kind": kind, "threads": threads, "buffer_bytes": buffer_bytes, "bandwidth_gb_s": bandwidth_gb_s})
}

fn as_csv(points: &[Point]) -> String {
    let lines = points.iter().map(|Point { kind, threads, buffer_bytes, bandwidth_gb_s }| {
        format!("{kind},{threads},{buffer_bytes},{bandwidth_gb_s}\n")
    });
    std::iter::once("kind,threads,buffer_bytes,bandwidth_gb_s\n".to_owned()).chain(lines).collect()
}

/// A row for each size, a column for each kind and number of threads.
fn as_markdown(device: &Device, points: &[Point]) -> String {
    let mut columns: Vec<_> = points.iter().map(|point| (point.kind, point.threads)).collect();
    columns.sort_by_key(|&(kind, threads)| (kind != "read", threads));
    columns.dedup();
    let headers: String = columns.iter().map(|(kind, threads)| format!(" {kind} GB/s, {threads} t |")).collect();
    let mut out = format!("| buffer |{headers}\n| ---: |{}\n", " ---: |".repeat(columns.len()));
    for buffer_bytes in SIZES_MIB.map(|mib| mib << 20) {
        out.push_str(&format!("| {} |", units::bytes(buffer_bytes as u64)));
        for &(kind, threads) in &columns {
            let found = points.iter().find(|p| (p.kind, p.threads, p.buffer_bytes) == (kind, threads, buffer_bytes));
            out.push_str(&format!(" {:.1} |", found.map_or(0.0, |point| point.bandwidth_gb_s)));
        }
        out.push('\n');
    }
    out.push_str(&format!("\n{}; a copied byte counts once, best of four passes\n", device.description));
    out
}
