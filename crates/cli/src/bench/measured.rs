//! One row of a result: a test that was run, beside what the device gave at most in the same minutes.

use anyhow::Result;
use lab::statistics::{Percentiles, Summary, median, twentieths};
use tensor::WeightFormat;

use super::args::Test;
use super::clock::{self, Clock};
use super::report::{Row, Variants};
use super::run::{Loaded, StepKernels, Times, milliseconds};
use super::work::Work;
use crate::ceiling::{Meter, Peak};
use crate::load::device::DeviceSettings;

/// What the device that is measured reads and computes at most, taken before and after each test: on virtual machines
/// it changes within minutes, so a test is judged by the better of its two neighbours.
pub(super) struct Ceiling {
    meter: Meter,
    clock: Clock,
    last_read: Option<f64>,
    last_peak: Option<Peak>,
    /// The best of all of them.
    best_read: Option<f64>,
    best_peak: Option<Peak>,
}

/// The ceilings of one test; `None` where nothing is to be compared with it.
struct TestCeilings {
    /// Bytes per second, where tokens are decoded.
    read: Option<f64>,
    /// Where a prompt is computed alone.
    peak: Option<Peak>,
}

impl Ceiling {
    /// Measures the device before the first of `tests`.
    pub(super) fn new(settings: &DeviceSettings, clock: Clock, tests: &[Test], format: WeightFormat) -> Result<Self> {
        let meter = Meter::new(settings)?;
        let mut ceiling = Self { meter, clock, last_read: None, last_peak: None, best_read: None, best_peak: None };
        if tests.iter().any(|test| test.generate > 0) {
            ceiling.last_read = ceiling.read()?;
        }
        if tests.iter().any(|test| test.generate == 0) {
            ceiling.last_peak = ceiling.peak(format)?;
        }
        Ok(ceiling)
    }

    /// The ceilings of `test`, just after it.
    fn beside(&mut self, test: &Test, format: WeightFormat) -> Result<TestCeilings> {
        if test.generate > 0 {
            let now = self.read()?;
            let before = std::mem::replace(&mut self.last_read, now);
            return Ok(TestCeilings { read: before.into_iter().chain(now).reduce(f64::max), peak: None });
        }
        let now = self.peak(format)?;
        let before = std::mem::replace(&mut self.last_peak, now);
        let best = before.into_iter().chain(now).max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s));
        Ok(TestCeilings { read: None, peak: best })
    }

    /// In the time of the clock that steps are measured by.
    fn read(&mut self) -> Result<Option<f64>> {
        let (meter, clock) = (&self.meter, self.clock);
        if let (Meter::Cpu(_), Clock::Cpu) = (meter, clock) {
            return Ok(Some(clock::read_bandwidth_of_this_thread()));
        }
        let now = meter.read_bandwidth()?;
        self.best_read = self.best_read.into_iter().chain(now).reduce(f64::max);
        Ok(now)
    }

    fn peak(&mut self, format: WeightFormat) -> Result<Option<Peak>> {
        let now = self.meter.peak_of_format(format)?;
        self.best_peak = self.best_peak.into_iter().chain(now).max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s));
        Ok(now)
    }

    /// Stores the best figures for later predictions. Call it when all runs are over: a GPU's cost models use the stored
    /// bandwidth, and all compared runs must choose the same kernels.
    pub(super) fn keep(&self) {
        self.meter.refresh(self.best_read, self.best_peak.as_slice());
    }
}

/// Runs a test, and says what it gave beside what the device can do.
pub(super) fn measured_row(
    loaded: &mut Loaded,
    test: &Test,
    repetitions: usize,
    ceiling: &mut Ceiling,
    on_repetition: &mut dyn FnMut(),
) -> Result<Row> {
    let times = loaded.driver.measure(test, repetitions, on_repetition)?;
    let kernels = loaded.driver.kernels(test)?;
    let beside = ceiling.beside(test, loaded.format)?;
    Ok(row(loaded, test, &times, &beside, ceiling, kernels))
}

fn row(
    loaded: &Loaded,
    test: &Test,
    times: &Times,
    beside: &TestCeilings,
    ceiling: &Ceiling,
    kernels: StepKernels,
) -> Row {
    let work = Work::new(&loaded.plan, loaded.kv_format, &loaded.bytes_on_device);
    let samples: Vec<f64> = times.repetitions.iter().map(|seconds| test.num_tokens() as f64 / seconds).collect();
    let decodes = !times.decode_steps_ms.is_empty();
    let latencies = if decodes { &times.decode_steps_ms } else { &times.prompts_ms };
    let active_bytes = work.active_bytes(test);
    let bandwidth = decodes.then(|| active_bytes as f64 / (median(&times.decode_steps_ms) / 1e3));
    let flops_per_s = work.flops(test) / median(&times.repetitions);
    let of_read = bandwidth.zip(beside.read).map(|(bandwidth, read)| bandwidth / read);
    Row {
        test: test.name(),
        model: loaded.model.clone(),
        format: loaded.format_name.clone(),
        device: loaded.device.name.clone(),
        threads: ceiling.meter.threads(),
        batch: test.batch,
        depth: test.depth,
        clock: ceiling.clock.name().to_owned(),
        tokens_per_s: Summary::of(&samples),
        samples,
        default_tokens_per_s: None,
        has_default_tokens: None,
        latency_ms: Percentiles::of(latencies),
        latency_quantiles_ms: twentieths(latencies),
        ttft_ms: (test.prompt > 0).then(|| median(&times.prompts_ms)),
        load_ms: milliseconds(loaded.load_time),
        active_bytes,
        bandwidth_gb_s: bandwidth.map(|bytes_per_s| bytes_per_s / 1e9),
        flops_per_s,
        read_bandwidth_gb_s: beside.read.map(|bytes_per_s| bytes_per_s / 1e9),
        peak_flops_per_s: beside.peak.map(|peak| peak.ops_per_s),
        peak_class: beside.peak.map(|peak| peak.class.to_owned()),
        roofline_share: of_read.or_else(|| beside.peak.map(|peak| flops_per_s / peak.ops_per_s)),
        weight_bytes: loaded.weight_bytes,
        num_parameters: loaded.num_parameters,
        variants: Variants {
            isa: ceiling.meter.isa().to_owned(),
            kv_type: format!("{:?}", loaded.kv_format).to_ascii_lowercase(),
            kernels: kernels.names,
        },
        launches_per_step: kernels.launches,
        host_work_per_step: times.host_work(),
    }
}
