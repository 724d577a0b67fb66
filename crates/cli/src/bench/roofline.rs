//! `hotmetal bench --roofline`: what the memory gives, by threads and by size of the buffer, and what each class of
//! instructions computes. Of a GPU: `gpu_roofline`.

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::args::{MeasureArgs, OutputFormat};
use super::gpu_roofline;
use super::progress::progress;
use super::report::{Device, Facts, SCHEMA};
use crate::ceiling::Meter;
use crate::load::device::{self, CPU};
use crate::output::stdout;
use crate::units;

/// From what a core's own cache holds to what no cache holds.
const SIZES_MIB: [usize; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// What was measured.
struct Roofline {
    memory: Vec<Point>,
    /// Each with its number of threads.
    peaks: Vec<(usize, cpu::Peak)>,
}

/// One measurement of the memory, in 10⁹ bytes per second.
struct Point {
    kind: &'static str,
    threads: usize,
    buffer_bytes: usize,
    bandwidth_gb_s: f64,
}

/// Runs `hotmetal bench --roofline`.
pub(super) fn roofline(args: &MeasureArgs) -> Result<()> {
    let facts = Facts::collect(1, None);
    let settings = args.target.device_settings(None);
    let device: Device = device::backend(&settings)?.device().into();
    if let Some(gpu) = device::gpu_backend(&settings)? {
        return gpu_roofline::measure(&gpu, &device, &facts, args);
    }
    if args.target.device() != CPU {
        bail!(
            "--roofline measures processors and GPUs, and `{}` is neither: expected --device {CPU}, cuda or metal",
            device.name
        );
    }
    let counts = thread_counts(args)?;
    let progress = progress(counts.len() * (SIZES_MIB.len() * 2 + 1), "reading, copying, computing");
    let mut roofline = Roofline { memory: Vec::new(), peaks: Vec::new() };
    for threads in counts {
        let cpu = device::cpu_backend(&args.target.device_settings(Some(threads)))?;
        for buffer_bytes in SIZES_MIB.map(|mib| mib << 20) {
            let read = cpu.read_bandwidth_of(buffer_bytes);
            progress.inc(1);
            let copy = cpu.copy_bandwidth(buffer_bytes);
            progress.inc(1);
            for (kind, bandwidth) in [("read", read), ("copy", copy)] {
                roofline.memory.push(Point { kind, threads, buffer_bytes, bandwidth_gb_s: bandwidth / 1e9 });
            }
        }
        let peaks = cpu::peaks(threads);
        // The largest buffer is the one that no cache holds.
        let read = roofline.memory.iter().rfind(|point| point.kind == "read").map(|point| point.bandwidth_gb_s * 1e9);
        Meter::Cpu(cpu).refresh(read, &peaks.iter().map(|&peak| peak.into()).collect::<Vec<_>>());
        roofline.peaks.extend(peaks.into_iter().map(|peak| (threads, peak)));
        progress.inc(1);
    }
    progress.finish_and_clear();
    let result = json!({"schema": SCHEMA, "device": device, "run": facts, "rows": roofline.rows()});
    stdout(&match args.output() {
        OutputFormat::Md => roofline.as_markdown(&device, &facts),
        OutputFormat::Csv => roofline.as_csv(),
        OutputFormat::Json => format!("{result:#}\n"),
        OutputFormat::Jsonl => roofline.rows().iter().map(|row| format!("{row}\n")).collect(),
    })?;
    args.record.keep(&result, &device, &facts, None)
}

/// Those asked for, or 1, 2, 4 and so on up to all.
fn thread_counts(args: &MeasureArgs) -> Result<Vec<usize>> {
    if !args.threads.is_empty() {
        return Ok(args.threads.clone());
    }
    let all = device::cpu_backend(&args.target.device_settings(None))?.threads();
    let mut counts: Vec<_> = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|&n| n < all).collect();
    counts.push(all);
    Ok(counts)
}

impl Roofline {
    /// An object for each measurement, told apart by `kind`.
    fn rows(&self) -> Vec<Value> {
        let memory = self.memory.iter().map(|Point { kind, threads, buffer_bytes, bandwidth_gb_s }| {
            json!({"kind": kind, "threads": threads, "buffer_bytes": buffer_bytes, "bandwidth_gb_s": bandwidth_gb_s})
        });
        let peaks = self.peaks.iter().map(|(threads, peak)| {
            json!({
                "kind": "peak",
                "threads": threads,
                "class": peak.class.name(),
                "instruction": peak.instruction,
                "ops_per_s": peak.ops_per_s,
                "ops_per_s_per_thread": peak.ops_per_s / *threads as f64,
            })
        });
        memory.chain(peaks).collect()
    }

    fn as_csv(&self) -> String {
        let mut out = String::from("kind,threads,buffer_bytes,bandwidth_gb_s,class,ops_per_s\n");
        for Point { kind, threads, buffer_bytes, bandwidth_gb_s } in &self.memory {
            out.push_str(&format!("{kind},{threads},{buffer_bytes},{bandwidth_gb_s},,\n"));
        }
        for (threads, peak) in &self.peaks {
            out.push_str(&format!("peak,{threads},,,{},{}\n", peak.class.name(), peak.ops_per_s));
        }
        out
    }

    /// A row for each size, a column for each kind and number of threads; then a row for each class of instructions.
    fn as_markdown(&self, device: &Device, facts: &Facts) -> String {
        let mut columns: Vec<_> = self.memory.iter().map(|point| (point.kind, point.threads)).collect();
        columns.sort_by_key(|&(kind, threads)| (kind != "read", threads));
        columns.dedup();
        let headers: String = columns.iter().map(|(kind, threads)| format!(" {kind} GB/s, {threads} t |")).collect();
        let mut out = format!("| buffer |{headers}\n| ---: |{}\n", " ---: |".repeat(columns.len()));
        for buffer_bytes in SIZES_MIB.map(|mib| mib << 20) {
            out.push_str(&format!("| {} |", units::bytes(buffer_bytes as u64)));
            for &(kind, threads) in &columns {
                let is_cell = |p: &&Point| (p.kind, p.threads, p.buffer_bytes) == (kind, threads, buffer_bytes);
                let found = self.memory.iter().find(is_cell);
                out.push_str(&format!(" {:.1} |", found.map_or(0.0, |point| point.bandwidth_gb_s)));
            }
            out.push('\n');
        }
        let mut threads: Vec<_> = self.peaks.iter().map(|&(threads, _)| threads).collect();
        threads.dedup();
        let headers: String = threads.iter().map(|threads| format!(" GOP/s a thread, {threads} t |")).collect();
        out.push_str(&format!(
            "\n| class | instruction |{headers}\n| --- | --- |{}\n",
            " ---: |".repeat(threads.len())
        ));
        for (_, peak) in self.peaks.iter().filter(|(count, _)| Some(count) == threads.first()) {
            out.push_str(&format!("| {} | {} |", peak.class.name(), peak.instruction));
            for &count in &threads {
                let found = self.peaks.iter().find(|(threads, other)| *threads == count && other.class == peak.class);
                let per_thread = found.map_or(0.0, |(_, peak)| peak.ops_per_s / count as f64);
                out.push_str(&format!(" {:.0} |", per_thread / 1e9));
            }
            out.push('\n');
        }
        out.push_str(&format!(
            "\n{}; best of some passes; a copied byte counts once, a multiplication and an addition are two operations\n",
            facts.line(device)
        ));
        out
    }
}
