//! A result: its rows, the facts that it is worth nothing without, and the ways to print it.

use backend::DeviceInfo;
use lab::statistics::{Percentiles, Summary};
use serde::{Deserialize, Serialize};
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::units;

/// The form of results, which grows when a field changes its meaning. Fields that are added do not change it.
pub(crate) const SCHEMA: u32 = 1;

/// What `bench -o json` prints and `bench compare` reads.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Report {
    /// [`SCHEMA`]; results before 2026-11-27 say none, and have the same form.
    #[serde(default = "schema")]
    pub(super) schema: u32,
    /// Whether a profiler looked on: such figures are never compared.
    #[serde(default)]
    pub(super) profiled: bool,
    pub(super) device: Device,
    pub(super) run: Facts,
    pub(super) rows: Vec<Row>,
}

/// The machine.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Device {
    pub(super) name: String,
    pub(crate) description: String,
    pub(super) memory_bytes: u64,
    /// `driver 580.95.05, CUDA 13.0`: of a GPU, where its driver says so.
    #[serde(default)]
    pub(super) driver: Option<String>,
}

/// What the run was.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Facts {
    pub(super) version: String,
    /// Of the source that was built: from `HOTMETAL_COMMIT`, or from the checkout, with `+` where it had been edited.
    pub(super) commit: Option<String>,
    /// The compiler, and how it was to optimise: `release` or `debug`.
    #[serde(default)]
    pub(super) rustc: Option<String>,
    #[serde(default)]
    pub(super) build: Option<String>,
    /// System and architecture.
    #[serde(default)]
    pub(super) system: Option<String>,
    /// Processors that the process may run on.
    #[serde(default)]
    pub(super) processors: Option<usize>,
    /// When it began, UTC.
    pub(super) date: String,
    pub(super) command: Vec<String>,
    pub(super) repetitions: usize,
    /// Over 1, 5 and 15 minutes, when it began: others that used the machine.
    pub(super) load_average: Option<[f64; 3]>,
    /// What random weights follow from.
    pub(super) weights_seed: Option<u64>,
}

/// One test with one number of threads.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) test: String,
    pub(super) model: String,
    pub(super) format: String,
    pub(super) device: String,
    pub(super) threads: usize,
    pub(super) batch: usize,
    pub(super) depth: usize,
    /// What timed the steps: `wall`, or `cpu` for the processor time of the one thread.
    #[serde(default = "wall")]
    pub(super) clock: String,
    /// Over the repetitions.
    pub(super) tokens_per_s: Summary,
    /// Tokens per second of each repetition, in order.
    pub(super) samples: Vec<f64>,
    /// The median of the same test without `--batch-invariant` and `--without`, where one was given and has a price.
    #[serde(default)]
    pub(super) default_tokens_per_s: Option<f64>,
    /// Whether every repetition chose the same tokens as that test did.
    #[serde(default)]
    pub(super) has_default_tokens: Option<bool>,
    /// Of a decode step; of a whole prompt where nothing is decoded.
    pub(super) latency_ms: Percentiles,
    /// The same times from the 0th to the 100th percentile, in steps of five.
    #[serde(default)]
    pub(super) latency_quantiles_ms: Vec<f64>,
    /// From the start of a prompt to the logits of its first new token.
    pub(super) ttft_ms: Option<f64>,
    pub(super) load_ms: f64,
    /// Bytes that a step reads at least: each weight once, and the cache of each sequence.
    pub(super) active_bytes: u64,
    /// Active bytes by the median step; none where nothing is decoded.
    pub(super) bandwidth_gb_s: Option<f64>,
    pub(super) flops_per_s: f64,
    /// What the same device, with the same threads, reads from memory, measured beside this test.
    pub(super) read_bandwidth_gb_s: Option<f64>,
    /// What the same threads compute with the class of instructions that the format's products are made of, measured
    /// beside this test; where nothing is decoded.
    #[serde(default)]
    pub(super) peak_flops_per_s: Option<f64>,
    /// The name of that class.
    #[serde(default)]
    pub(super) peak_class: Option<String>,
    /// Where tokens are decoded, `bandwidth_gb_s / read_bandwidth_gb_s`, more than 1 where the weights stay in a cache;
    /// of a prompt, `flops_per_s / peak_flops_per_s`.
    pub(super) roofline_share: Option<f64>,
    pub(super) weight_bytes: u64,
    pub(super) num_parameters: u64,
    pub(super) variants: Variants,
    /// Kernels that a step starts, but for those that choose tokens; none on CPUs.
    #[serde(default)]
    pub(super) launches_per_step: Option<usize>,
    /// What a step asked of the device; none where nobody counts.
    #[serde(default)]
    pub(super) host_work_per_step: Option<HostWork>,
}

/// What the host asked of the device in a step, on average. A recorded step is one wait and nothing else.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct HostWork {
    /// Times that the host waited for the device.
    pub(super) waits: f64,
    /// Allocations, on the device and of memory that it copies from and to.
    pub(super) allocations: f64,
    /// Kernels that were launched one by one, and not as part of a recorded step.
    pub(super) launches_one_by_one: f64,
}

fn wall() -> String {
    "wall".to_owned()
}

fn schema() -> u32 {
    SCHEMA
}

/// Which of several ways was taken.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Variants {
    pub(super) isa: String,
    pub(super) kv_type: String,
    /// What the device says that it computes each op with, `op: variant`, each once; empty where it does not say.
    #[serde(default)]
    pub(super) kernels: Vec<String>,
}

impl Facts {
    pub(crate) fn collect(repetitions: usize, weights_seed: Option<u64>) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("HOTMETAL_COMMIT").map(str::to_owned),
            rustc: option_env!("HOTMETAL_RUSTC").map(str::to_owned),
            build: Some(if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned()),
            system: Some(format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
            processors: std::thread::available_parallelism().ok().map(usize::from),
            date: OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
            command: std::env::args().collect(),
            repetitions,
            load_average: load_average(),
            weights_seed,
        }
    }
}

impl Facts {
    /// The load average before the measurement, if more threads wanted to run than there are processors. Such a measurement
    /// says little.
    pub(crate) fn busy_load(&self) -> Option<f64> {
        let [load, ..] = self.load_average?;
        (load > self.processors? as f64).then_some(load)
    }

    /// The flags of the command that have a price, as they were given.
    fn priced_flags(&self) -> String {
        let mut flags = Vec::new();
        for (index, word) in self.command.iter().enumerate() {
            match word.as_str() {
                "--without" => flags.push(format!("--without {}", self.command.get(index + 1).map_or("", |word| word))),
                word if word == "--batch-invariant" || word.starts_with("--without=") => flags.push(word.to_owned()),
                _ => {}
            }
        }
        flags.join(" ")
    }

    /// What a figure is worth nothing without, on one line.
    pub(super) fn line(&self, device: &Device) -> String {
        let mut out = format!("{}; hotmetal {}", device.description, self.version);
        if let Some(commit) = &self.commit {
            out.push_str(&format!(" ({commit})"));
        }
        if self.build.as_deref() == Some("debug") {
            out.push_str(", built without optimisation");
        }
        if let Some([load, ..]) = self.load_average {
            out.push_str(&format!("; load average {load:.2}"));
        }
        let plural = if self.repetitions == 1 { "" } else { "s" };
        out.push_str(&format!("; {}; {} repetition{plural}", self.date, self.repetitions));
        out
    }
}

/// Where the system says so.
fn load_average() -> Option<[f64; 3]> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
    Some([numbers.next()?, numbers.next()?, numbers.next()?])
}

impl From<&DeviceInfo> for Device {
    fn from(device: &DeviceInfo) -> Self {
        let DeviceInfo { name, description, memory_bytes, driver } = device.clone();
        Self { name, description, memory_bytes, driver }
    }
}

impl Report {
    pub(super) fn new(device: &DeviceInfo, run: Facts) -> Self {
        Self { schema: SCHEMA, profiled: false, device: device.into(), run, rows: Vec::new() }
    }

    /// Which models in which formats on which devices: `qwen2.5-0.5b q8_0 on cpu`.
    pub(super) fn subjects(&self) -> String {
        let mut names: Vec<_> =
            self.rows.iter().map(|row| format!("{} {} on {}", row.model, row.format, row.device)).collect();
        names.sort();
        names.dedup();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }

    pub(super) fn as_json(&self) -> String {
        format!("{:#}\n", json!(self))
    }

    /// A row that says by itself where it comes from.
    pub(super) fn as_json_line(&self, row: &Row) -> String {
        let mut line = json!(row);
        line["profiled"] = json!(self.profiled);
        line["machine"] = json!(self.device);
        line["run"] = json!(self.run);
        format!("{line}\n")
    }

    pub(super) fn as_csv(&self) -> String {
        let mut out = String::from(
            "test,model,format,device,threads,batch,depth,clock,tokens_per_s_median,tokens_per_s_mean,tokens_per_s_min,\
             tokens_per_s_max,tokens_per_s_stdev,latency_ms_p50,latency_ms_p95,latency_ms_p99,latency_ms_max,ttft_ms,\
             load_ms,active_bytes,bandwidth_gb_s,flops_per_s,read_bandwidth_gb_s,peak_flops_per_s,peak_class,\
             roofline_share,default_tokens_per_s,isa,kv_type,repetitions,version,commit,date\n",
        );
        let optional = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
        for row in &self.rows {
            let (rate, latency) = (&row.tokens_per_s, &row.latency_ms);
            let cells = [
                quoted(&row.test),
                quoted(&row.model),
                row.format.clone(),
                row.device.clone(),
                row.threads.to_string(),
                row.batch.to_string(),
                row.depth.to_string(),
                row.clock.clone(),
                rate.median.to_string(),
                rate.mean.to_string(),
                rate.min.to_string(),
                rate.max.to_string(),
                rate.stdev.to_string(),
                latency.p50.to_string(),
                latency.p95.to_string(),
                latency.p99.to_string(),
                latency.max.to_string(),
                optional(row.ttft_ms),
                row.load_ms.to_string(),
                row.active_bytes.to_string(),
                optional(row.bandwidth_gb_s),
                row.flops_per_s.to_string(),
                optional(row.read_bandwidth_gb_s),
                optional(row.peak_flops_per_s),
                row.peak_class.clone().unwrap_or_default(),
                optional(row.roofline_share),
                optional(row.default_tokens_per_s),
                row.variants.isa.clone(),
                row.variants.kv_type.clone(),
                self.run.repetitions.to_string(),
                self.run.version.clone(),
                self.run.commit.clone().unwrap_or_default(),
                self.run.date.clone(),
            ];
            out.push_str(&cells.join(","));
            out.push('\n');
        }
        out
    }

    /// Eight columns that stand under each other on a terminal.
    pub(super) fn as_columns(&self) -> String {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
        let head = ["model", "device", "test", "tokens/s", "ms p50", "ms p99", "GB/s", "of ceiling"].map(str::to_owned);
        let row = |row: &Row| {
            [
                format!("{} {}", row.model, row.format.to_ascii_uppercase()),
                format!("{} × {}", row.device, row.threads),
                row.label(),
                format!("{:.2} ± {:.2}", row.tokens_per_s.mean, row.tokens_per_s.stdev),
                format!("{:.2}", row.latency_ms.p50),
                format!("{:.2}", row.latency_ms.p99),
                or_dash(row.bandwidth_gb_s.map(|value| format!("{value:.1}"))),
                or_dash(row.ceiling()),
            ]
        };
        let lines: Vec<[String; 8]> = std::iter::once(head).chain(self.rows.iter().map(row)).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
        let widths: Vec<usize> = (0..8).map(width).collect();
        let mut out = String::new();
        for line in &lines {
            let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
                // Words begin under each other, and numbers end so.
                0..3 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            out.push('\n');
        }
        out.push_str(&self.prices());
        out.push_str(&format!("\n{}\n-v shows all columns.\n", self.run.line(&self.device)));
        out
    }

    /// What `--batch-invariant` or `--without` costs, where that was measured.
    fn prices(&self) -> String {
        let prices: String = self.rows.iter().filter_map(Row::price).map(|price| format!("- {price}\n")).collect();
        if prices.is_empty() { prices } else { format!("\nThe price of {}:\n{prices}", self.run.priced_flags()) }
    }

    /// The kernels of a GPU's step, and what the host asks of the GPU in it.
    fn step_work(&self) -> String {
        let line = |row: &Row| {
            let (launches, work) = (row.launches_per_step?, row.host_work_per_step?);
            let HostWork { waits, allocations, launches_one_by_one } = work;
            Some(format!(
                "- {}: {launches} kernels, {waits:.2} waits, {allocations:.2} allocations, {launches_one_by_one:.2} launches one \
                 by one\n",
                row.label()
            ))
        };
        let lines: String = self.rows.iter().filter_map(line).collect();
        if lines.is_empty() { lines } else { format!("\nA step is:\n{lines}") }
    }

    /// The columns of llama-bench, then ours.
    pub(super) fn as_markdown(&self) -> String {
        let mut out = String::from(
            "| model | size | params | backend | threads | test | t/s | median | min | max | ms p50 | ms p95 | ms p99 | ms max | \
             GB/s | GFLOP/s | of ceiling | ttft ms | load ms |\n\
             | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | \
             ---: | ---: | ---: | ---: |\n",
        );
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
        for row in &self.rows {
            let (rate, latency) = (&row.tokens_per_s, &row.latency_ms);
            let cells = [
                format!("{} {}", row.model.replace('|', "\\|"), row.format.to_ascii_uppercase()),
                units::bytes(row.weight_bytes),
                parameters(row.num_parameters),
                row.device.to_ascii_uppercase(),
                row.threads.to_string(),
                row.label(),
                format!("{:.2} ± {:.2}", rate.mean, rate.stdev),
                format!("{:.2}", rate.median),
                format!("{:.2}", rate.min),
                format!("{:.2}", rate.max),
                format!("{:.2}", latency.p50),
                format!("{:.2}", latency.p95),
                format!("{:.2}", latency.p99),
                format!("{:.2}", latency.max),
                or_dash(row.bandwidth_gb_s.map(|value| format!("{value:.1}"))),
                format!("{:.0}", row.flops_per_s / 1e9),
                or_dash(row.ceiling()),
                or_dash(row.ttft_ms.map(|value| format!("{value:.1}"))),
                format!("{:.1}", row.load_ms),
            ];
            out.push_str(&format!("| {} |\n", cells.join(" | ")));
        }
        out.push_str(&self.prices());
        out.push_str(&self.step_work());
        out.push_str(&format!("\n{}\n", self.run.line(&self.device)));
        out
    }
}

impl Row {
    /// `82 % of read`, `61 % of int8_dot`: how near the measured ceiling, and which it is.
    pub(super) fn ceiling(&self) -> Option<String> {
        let which = self.peak_class.as_deref().unwrap_or("read");
        self.roofline_share.map(|share| format!("{:.0} % of {which}", 100.0 * share))
    }

    /// What the flags cost, where that was measured: `tg128 x8: 1.31 × the time, 520.3 t/s instead of 681.9`.
    fn price(&self) -> Option<String> {
        let default = self.default_tokens_per_s?;
        let tokens = match self.has_default_tokens {
            Some(true) => ", the same tokens",
            Some(false) => ", other tokens",
            None => "",
        };
        Some(price_line(&self.label(), self.tokens_per_s.median, default) + tokens)
    }

    /// As llama-bench writes it, and the batch where there is one: `tg128 @ d2048 x8`.
    pub(super) fn label(&self) -> String {
        let mut label = self.test.clone();
        if self.depth > 0 {
            label.push_str(&format!(" @ d{}", self.depth));
        }
        if self.batch > 1 {
            label.push_str(&format!(" x{}", self.batch));
        }
        if self.clock != wall() {
            label.push_str(&format!(", {} time", self.clock));
        }
        label
    }
}

fn price_line(label: &str, tokens_per_s: f64, default: f64) -> String {
    format!("{label}: {:.2} × the time, {tokens_per_s:.1} t/s instead of {default:.1}", default / tokens_per_s)
}

/// `494.03 M`, as llama-bench writes it.
fn parameters(n: u64) -> String {
    let n = n as f64;
    if n >= 1e9 { format!("{:.2} B", n / 1e9) } else { format!("{:.2} M", n / 1e6) }
}

/// A cell of a CSV file (RFC 4180).
pub(super) fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
impl Row {
    /// A row of these repetitions, which says nothing else.
    pub(super) fn of_samples(samples: &[f64]) -> Self {
        Self {
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
            has_default_tokens: None,
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
            launches_per_step: None,
            host_work_per_step: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_cells_read_as_elsewhere() {
        assert_eq!(parameters(494_032_768), "494.03 M");
        assert_eq!(parameters(8_030_261_248), "8.03 B");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("pg512+128"), "pg512+128");
        assert_eq!(price_line("tg128 x8", 500.0, 650.0), "tg128 x8: 1.30 × the time, 500.0 t/s instead of 650.0");
    }
}
