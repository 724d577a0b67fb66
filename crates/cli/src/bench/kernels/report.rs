//! What `bench kernels` found, and the ways to print it.

use backend::DeviceInfo;
use backend::profile::Cost;
use lab::statistics::Summary;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::report::{Device, Facts, quoted};
use crate::ceiling::Peak;
use crate::units;

/// The rows with what they are worth nothing without.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct KernelReport {
    #[serde(default)]
    pub(crate) profiled: bool,
    pub(crate) device: Device,
    pub(crate) run: Facts,
    /// The model whose shapes these are.
    pub(crate) model: String,
    pub(crate) rotation: Rotation,
    pub(crate) rows: Vec<KernelRow>,
}

/// How much weights rotate through, so that no cache holds those that come next.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Rotation {
    pub(crate) bytes: u64,
    /// Why so much.
    pub(crate) reason: String,
}

/// One op in one shape, format and number of rows at one instruction set.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct KernelRow {
    pub(crate) op: String,
    pub(crate) shape: String,
    /// Of the matrices; of the cache or the activations where there are none.
    pub(crate) format: String,
    pub(crate) device: String,
    pub(crate) isa: String,
    pub(crate) threads: usize,
    pub(crate) rows: usize,
    /// Which of several ways the device took, in its words; a rung's name on the ladder.
    pub(crate) variants: Vec<String>,
    /// Of the op once, in microseconds; none where it could not be told from its surroundings.
    pub(crate) time_us: Option<Summary>,
    /// Copies of the op, with weights and cache of their own, that one replay goes through.
    pub(crate) copies: usize,
    /// Whether caches were emptied between replays: an op that cannot be copied.
    pub(crate) evicted: bool,
    /// Weights and cache, each byte once; activations where there are neither.
    pub(crate) bytes: u64,
    pub(crate) flops: u64,
    pub(crate) bandwidth_gb_s: Option<f64>,
    pub(crate) flops_per_s: Option<f64>,
    /// What the same threads read of a buffer as large as the rotation, measured just before.
    pub(crate) read_bandwidth_gb_s: Option<f64>,
    /// What they compute with the best vector instructions for the format.
    pub(crate) peak_flops_per_s: Option<f64>,
    pub(crate) peak_class: Option<String>,
    /// `memory` or `compute`: which of the two takes longer at its best.
    pub(crate) bound: Option<String>,
    /// The longer of those two times by the measured one.
    pub(crate) roofline_share: Option<f64>,
    /// Largest difference from the f64 reference by the largest magnitude of a result.
    pub(crate) max_error: Option<f64>,
}

impl KernelRow {
    /// The cells of a table for people.
    pub(crate) fn cells(&self) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
        let bound = self.bound.as_deref().unwrap_or_default();
        vec![
            self.op.clone(),
            self.shape.clone(),
            self.format.clone(),
            self.rows.to_string(),
            self.isa.clone(),
            self.threads.to_string(),
            or_dash((!self.variants.is_empty()).then(|| self.variants.join("; "))),
            or_dash(self.time_us.as_ref().map(|time| format!("{:.2}", time.median))),
            or_dash(self.time_us.as_ref().map(|time| format!("{:.2}", time.stdev))),
            or_dash(self.bandwidth_gb_s.map(|value| format!("{value:.1}"))),
            or_dash(self.flops_per_s.map(|value| format!("{:.1}", value / 1e9))),
            or_dash(self.roofline_share.map(|share| format!("{:.0} % {bound}", 100.0 * share))),
            or_dash(self.max_error.map(|error| format!("{error:.1e}"))),
            if self.evicted { "evicted".to_owned() } else { self.copies.to_string() },
        ]
    }

    /// The figures of `seconds` for `cost`, beside the ceilings; what was measured is filled in by the caller.
    pub(super) fn of(seconds: Option<&Summary>, cost: Cost, read: Option<f64>, peak: Option<Peak>) -> Self {
        let median = seconds.map(|seconds| seconds.median);
        let per_s = |count: u64| median.filter(|_| count > 0).map(|seconds| count as f64 / seconds);
        let by_memory = read.map(|read| cost.bytes as f64 / read).filter(|seconds| *seconds > 0.0);
        let by_compute = peak.map(|peak| cost.flops as f64 / peak.ops_per_s).filter(|seconds| *seconds > 0.0);
        let floor = match (by_memory, by_compute) {
            (Some(memory), Some(compute)) if compute > memory => Some((compute, "compute")),
            (Some(memory), _) => Some((memory, "memory")),
            (None, Some(compute)) => Some((compute, "compute")),
            (None, None) => None,
        };
        let microseconds = |seconds: &Summary| Summary {
            median: seconds.median * 1e6,
            mean: seconds.mean * 1e6,
            min: seconds.min * 1e6,
            max: seconds.max * 1e6,
            stdev: seconds.stdev * 1e6,
        };
        Self {
            op: String::new(),
            shape: String::new(),
            format: String::new(),
            device: String::new(),
            isa: String::new(),
            threads: 0,
            rows: 0,
            variants: Vec::new(),
            time_us: seconds.map(microseconds),
            copies: 0,
            evicted: false,
            bytes: cost.bytes,
            flops: cost.flops,
            bandwidth_gb_s: per_s(cost.bytes).map(|bytes_per_s| bytes_per_s / 1e9),
            flops_per_s: per_s(cost.flops),
            read_bandwidth_gb_s: read.map(|bytes_per_s| bytes_per_s / 1e9),
            peak_flops_per_s: peak.map(|peak| peak.ops_per_s),
            peak_class: peak.map(|peak| peak.class.to_owned()),
            bound: floor.map(|(_, bound)| bound.to_owned()),
            roofline_share: floor.zip(median).map(|((floor, _), seconds)| floor / seconds),
            max_error: None,
        }
    }
}

impl KernelReport {
    pub(super) fn new(device: &DeviceInfo, run: Facts, model: String, rotation: Rotation) -> Self {
        Self { profiled: false, device: device.into(), run, model, rotation, rows: Vec::new() }
    }

    pub(super) fn as_json(&self) -> String {
        format!("{:#}\n", json!(self))
    }

    /// A row that says by itself where it comes from.
    pub(super) fn as_json_line(&self, row: &KernelRow) -> String {
        let mut line = json!(row);
        line["profiled"] = json!(self.profiled);
        line["machine"] = json!(self.device);
        line["run"] = json!(self.run);
        line["model"] = json!(self.model);
        line["rotation"] = json!(self.rotation);
        format!("{line}\n")
    }

    pub(super) fn as_csv(&self) -> String {
        let mut out = String::from(
            "op,shape,format,device,isa,threads,rows,variants,time_us_median,time_us_min,time_us_max,time_us_stdev,\
             copies,evicted,bytes,flops,bandwidth_gb_s,flops_per_s,read_bandwidth_gb_s,peak_flops_per_s,peak_class,\
             bound,roofline_share,max_error,model,repetitions,version,commit,date\n",
        );
        let optional = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
        for row in &self.rows {
            let time = |part: fn(&Summary) -> f64| optional(row.time_us.as_ref().map(part));
            let cells = [
                row.op.clone(),
                quoted(&row.shape),
                row.format.clone(),
                row.device.clone(),
                row.isa.clone(),
                row.threads.to_string(),
                row.rows.to_string(),
                quoted(&row.variants.join("; ")),
                time(|time| time.median),
                time(|time| time.min),
                time(|time| time.max),
                time(|time| time.stdev),
                row.copies.to_string(),
                row.evicted.to_string(),
                row.bytes.to_string(),
                row.flops.to_string(),
                optional(row.bandwidth_gb_s),
                optional(row.flops_per_s),
                optional(row.read_bandwidth_gb_s),
                optional(row.peak_flops_per_s),
                row.peak_class.clone().unwrap_or_default(),
                row.bound.clone().unwrap_or_default(),
                optional(row.roofline_share),
                optional(row.max_error),
                quoted(&self.model),
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

    pub(super) fn as_markdown(&self) -> String {
        let mut out = String::from(
            "| op | shape | format | rows | isa | threads | variant | µs | ± | GB/s | GFLOP/s | of ceiling | max error | \
             copies |\n\
             | --- | --- | --- | ---: | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
        );
        for row in &self.rows {
            out.push_str(&format!("| {} |\n", row.cells().join(" | ")));
        }
        out.push_str(&format!(
            "\n{}; shapes of {}; weights rotate through {} ({})\n",
            self.run.line(&self.device),
            self.model,
            units::bytes(self.rotation.bytes),
            self.rotation.reason
        ));
        out
    }
}
