//! A result: its rows, the facts that it is worth nothing without, and the ways to print it.

use std::fmt::Write;

use backend::DeviceInfo;
use serde::{Deserialize, Serialize};
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::statistics::{Percentiles, Summary};
use crate::units;

/// What `bench -o json` prints and `bench compare` reads.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Report {
    pub(super) device: Device,
    pub(super) run: Facts,
    pub(super) rows: Vec<Row>,
}

/// The machine.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) memory_bytes: u64,
}

/// What the run was.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Facts {
    pub(super) version: String,
    /// Of the source, where the build was told it in `HOTMETAL_COMMIT`.
    pub(super) commit: Option<String>,
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
    /// Over the repetitions.
    pub(super) tokens_per_s: Summary,
    /// Tokens per second of each repetition, in order.
    pub(super) samples: Vec<f64>,
    /// Of a decode step; of a whole prompt where nothing is decoded.
    pub(super) latency_ms: Percentiles,
    /// From the start of a prompt to the logits of its first new token.
    pub(super) ttft_ms: Option<f64>,
    pub(super) load_ms: f64,
    /// Bytes that a step reads at least: each weight once, and the cache of each sequence.
    pub(super) active_bytes: u64,
    /// Active bytes by the median step; none where nothing is decoded.
    pub(super) bandwidth_gb_s: Option<f64>,
    pub(super) flops_per_s: f64,
    /// What the same threads read from memory, measured beside this test.
    pub(super) read_bandwidth_gb_s: Option<f64>,
    /// `bandwidth_gb_s / read_bandwidth_gb_s`. More than 1 where the weights stay in a cache.
    pub(super) roofline_share: Option<f64>,
    pub(super) weight_bytes: u64,
    pub(super) num_parameters: u64,
    pub(super) variants: Variants,
}

/// Which of several ways was taken.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Variants {
    pub(super) isa: String,
    pub(super) kv_type: String,
}

impl Facts {
    pub(super) fn collect(repetitions: usize, weights_seed: Option<u64>) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("HOTMETAL_COMMIT").map(str::to_owned),
            date: OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
            command: std::env::args().collect(),
            repetitions,
            load_average: load_average(),
            weights_seed,
        }
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
        Self { name: device.name.clone(), description: device.description.clone(), memory_bytes: device.memory_bytes }
    }
}

impl Report {
    pub(super) fn new(device: &DeviceInfo, run: Facts) -> Self {
        Self { device: device.into(), run, rows: Vec::new() }
    }

    pub(super) fn as_json(&self) -> String {
        format!("{:#}\n", json!(self))
    }

    /// A row that says by itself where it comes from.
    pub(super) fn as_json_line(&self, row: &Row) -> String {
        let mut line = json!(row);
        line["machine"] = json!(self.device);
        line["run"] = json!(self.run);
        format!("{line}\n")
    }

    pub(super) fn as_csv(&self) -> String {
        let mut out = String::from(
            "test,model,format,device,threads,batch,depth,tokens_per_s_median,tokens_per_s_mean,tokens_per_s_min,\
             tokens_per_s_max,tokens_per_s_stdev,latency_ms_p50,latency_ms_p95,latency_ms_p99,latency_ms_max,ttft_ms,\
             load_ms,active_bytes,bandwidth_gb_s,flops_per_s,read_bandwidth_gb_s,roofline_share,isa,kv_type,\
             repetitions,version,commit,date\n",
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
                optional(row.roofline_share),
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

    /// The columns of llama-bench, then ours.
    pub(super) fn as_markdown(&self) -> String {
        let mut out = String::from(
            "| model | size | params | backend | threads | test | t/s | median | ms p50 | ms p95 | ms p99 | ms max | \
             GB/s | of read | GFLOP/s | ttft ms | load ms |\n\
             | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | \
             ---: | ---: |\n",
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
                format!("{:.2}", latency.p50),
                format!("{:.2}", latency.p95),
                format!("{:.2}", latency.p99),
                format!("{:.2}", latency.max),
                or_dash(row.bandwidth_gb_s.map(|value| format!("{value:.1}"))),
                or_dash(row.roofline_share.map(|value| format!("{:.0} %", 100.0 * value))),
                format!("{:.0}", row.flops_per_s / 1e9),
                or_dash(row.ttft_ms.map(|value| format!("{value:.1}"))),
                format!("{:.1}", row.load_ms),
            ];
            out.push_str(&format!("| {} |\n", cells.join(" | ")));
        }
        let run = &self.run;
        write!(out, "\n{}; hotmetal {}", self.device.description, run.version).expect("a string takes any text");
        if let Some(commit) = &run.commit {
            out.push_str(&format!(" ({commit})"));
        }
        if let Some([load, ..]) = run.load_average {
            out.push_str(&format!("; load average {load:.2}"));
        }
        let plural = if run.repetitions == 1 { "" } else { "s" };
        out.push_str(&format!("; {}; {} repetition{plural}\n", run.date, run.repetitions));
        out
    }
}

impl Row {
    /// As llama-bench writes it, and the batch where there is one: `tg128 @ d2048 x8`.
    pub(super) fn label(&self) -> String {
        let mut label = self.test.clone();
        if self.depth > 0 {
            label.push_str(&format!(" @ d{}", self.depth));
        }
        if self.batch > 1 {
            label.push_str(&format!(" x{}", self.batch));
        }
        label
    }
}

/// `494.03 M`, as llama-bench writes it.
fn parameters(n: u64) -> String {
    let n = n as f64;
    if n >= 1e9 { format!("{:.2} B", n / 1e9) } else { format!("{:.2} M", n / 1e6) }
}

/// A cell of a CSV file (RFC 4180).
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
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
    }
}
