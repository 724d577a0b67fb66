//! What a device gives at most: measured in the same minutes, for the ceilings that figures are shares of; measured once
//! and kept, for predictions.

use anyhow::Result;
use backend::{Backend, BackendError};
use tensor::WeightFormat;

use crate::load::device::{self, CPU, DeviceSettings};
use crate::load::device_facts::{DeviceFacts, DeviceKey, KeptPeak, Measured};
use crate::output::note;

/// Measures a device.
pub(crate) enum Meter {
    /// The processors that the settings name.
    Cpu(cpu::CpuBackend),
    /// A GPU.
    Gpu(gpu::GpuBackend),
    /// A device that nothing is to be compared with.
    None,
}

/// What a device computes at most with one class of instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peak {
    /// Its name in results.
    pub(crate) class: &'static str,
    /// The instruction that gave the figure.
    pub(crate) instruction: &'static str,
    /// A multiplication and an addition are two operations.
    pub(crate) ops_per_s: f64,
}

impl From<cpu::Peak> for Peak {
    fn from(peak: cpu::Peak) -> Self {
        Self { class: peak.class.name(), instruction: peak.instruction, ops_per_s: peak.ops_per_s }
    }
}

impl From<gpu::Peak> for Peak {
    fn from(peak: gpu::Peak) -> Self {
        Self { class: peak.class, instruction: peak.instruction, ops_per_s: peak.ops_per_s }
    }
}

impl Meter {
    /// Of the device that `settings` name.
    pub(crate) fn new(settings: &DeviceSettings) -> Result<Self> {
        Ok(match (device::gpu_backend(settings)?, device::resolve(&settings.name)) {
            (Some(gpu), _) => Self::Gpu(gpu),
            (None, CPU) => Self::Cpu(device::cpu_backend(settings)?),
            (None, _) => Self::None,
        })
    }

    /// Threads that compute at once, as results count them: those of the processors alone.
    pub(crate) fn threads(&self) -> usize {
        match self {
            Self::Cpu(cpu) => cpu.threads(),
            Self::Gpu(_) | Self::None => 1,
        }
    }

    /// The instruction set of the processors.
    pub(crate) fn isa(&self) -> &'static str {
        match self {
            Self::Cpu(cpu) => cpu.isa().level().name(),
            Self::Gpu(_) | Self::None => "none",
        }
    }

    /// Bytes per second that are read from memory.
    pub(crate) fn read_bandwidth(&self) -> Result<Option<f64>> {
        match self {
            Self::Cpu(cpu) => Ok(Some(cpu.read_bandwidth())),
            Self::Gpu(gpu) => if_there_is_room(gpu.read_bandwidth()),
            Self::None => Ok(None),
        }
    }

    /// The peak of products with weights in `format`.
    pub(crate) fn peak_of_format(&self, format: WeightFormat) -> Result<Option<Peak>> {
        match self {
            Self::Cpu(cpu) => Ok(cpu::peak_of_format(format, cpu.threads()).map(Peak::from)),
            Self::Gpu(gpu) => Ok(if_there_is_room(gpu.peak_of_format(format))?.map(Peak::from)),
            Self::None => Ok(None),
        }
    }
}

/// What is known of a device for predictions.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    facts: DeviceFacts,
    is_new: bool,
}

impl Known {
    /// Bytes per second that are read from memory.
    pub(crate) fn read_bandwidth(&self) -> Option<f64> {
        self.facts.read_bandwidth.as_ref().map(|read| read.value)
    }

    /// Seconds from one kernel of a step to the next.
    pub(crate) fn boundary(&self) -> Option<f64> {
        self.facts.boundary.as_ref().map(|boundary| boundary.value)
    }

    /// The best of the peaks of these classes.
    pub(crate) fn peak(&self, classes: &[&str]) -> Option<&KeptPeak> {
        let peaks = self.facts.peaks.iter().filter(|peak| classes.contains(&peak.class.as_str()));
        peaks.max_by(|a, b| a.ops_per_s.value.total_cmp(&b.ops_per_s.value))
    }

    /// When the bandwidth was measured; `None` where that was a moment ago.
    pub(crate) fn read_at(&self) -> Option<&str> {
        self.facts.read_bandwidth.as_ref().filter(|_| !self.is_new).map(|read| read.at.as_str())
    }

    /// The bandwidth, and when it was measured: `4700.0 GB/s reading, measured on 2026-11-29`.
    pub(crate) fn read_line(&self) -> String {
        let Some(read) = self.read_bandwidth() else { return "not measured on this device".to_owned() };
        let when = match self.read_at() {
            None => "just now".to_owned(),
            Some(at) => format!("on {}", at.split('T').next().unwrap_or(at)),
        };
        format!("{:.1} GB/s reading, measured {when}", read / 1e9)
    }
}

impl Meter {
    /// The device that facts are of; none of a device that is no hardware.
    fn key(&self) -> Option<DeviceKey> {
        match self {
            Self::Cpu(cpu) => Some(DeviceKey::of_cpu(cpu.device(), self.threads(), self.isa())),
            Self::Gpu(gpu) => Some(DeviceKey::of_gpu(gpu)),
            Self::None => None,
        }
    }

    /// What the device gives at most, as it was measured before. Where it was not, or with `anew`, it is measured now and
    /// kept.
    pub(crate) fn known(&self, anew: bool) -> Result<Option<Known>> {
        let Some(key) = self.key() else { return Ok(None) };
        let kept = DeviceFacts::kept(&key);
        if !anew && kept.read_bandwidth.is_some() && !kept.peaks.is_empty() {
            return Ok(Some(Known { facts: kept, is_new: false }));
        }
        let Some(facts) = self.measured(key)? else { return Ok(None) };
        facts.keep();
        Ok(Some(Known { facts, is_new: true }))
    }

    /// All that is measured of the device; `None` where it has no room for that now.
    fn measured(&self, key: DeviceKey) -> Result<Option<DeviceFacts>> {
        let mut facts = DeviceFacts::nothing_of(key);
        match self {
            Self::Cpu(cpu) => {
                facts.read_bandwidth = measured_now(cpu.read_bandwidth());
                cpu::peaks(cpu.threads()).into_iter().for_each(|peak| set_peak(&mut facts, &peak.into()));
            }
            Self::Gpu(gpu) => {
                let Some(roofline) = if_there_is_room(gpu.roofline())? else { return Ok(None) };
                set_roofline(&mut facts, &roofline);
            }
            Self::None => return Ok(None),
        }
        Ok(Some(facts))
    }

    /// Replaces the known figures by these, which a benchmark has measured; other figures stay.
    pub(crate) fn refresh(&self, read_bandwidth: Option<f64>, peaks: &[Peak]) {
        let Some(key) = self.key().filter(|_| read_bandwidth.is_some() || !peaks.is_empty()) else { return };
        let mut facts = DeviceFacts::kept(&key);
        facts.read_bandwidth = read_bandwidth.and_then(measured_now).or(facts.read_bandwidth);
        peaks.iter().for_each(|peak| set_peak(&mut facts, peak));
        facts.keep();
    }

    /// The names of the classes of instructions that products with weights in `format` can be made of.
    pub(crate) fn peak_classes_of(&self, format: WeightFormat) -> Vec<&'static str> {
        match self {
            Self::Cpu(_) => cpu::PeakClass::of(format).iter().map(|class| class.name()).collect(),
            Self::Gpu(gpu) => vec![gpu.peak_class_of(format)],
            Self::None => vec![],
        }
    }
}

/// Keeps a whole roofline of `gpu`.
pub(crate) fn keep_roofline(gpu: &gpu::GpuBackend, roofline: &gpu::Roofline) {
    let mut facts = DeviceFacts::kept(&DeviceKey::of_gpu(gpu));
    set_roofline(&mut facts, roofline);
    facts.keep();
}

fn set_roofline(facts: &mut DeviceFacts, roofline: &gpu::Roofline) {
    facts.read_bandwidth = roofline.read_bandwidth().and_then(measured_now);
    facts.boundary = roofline.boundary().and_then(measured_now);
    roofline.peaks.iter().for_each(|&peak| set_peak(facts, &peak.into()));
}

/// A figure that was measured now; `None` where the clock stood still, which says nothing.
fn measured_now(value: f64) -> Option<Measured> {
    (value.is_finite() && value > 0.0).then(|| Measured::now(value))
}

fn set_peak(facts: &mut DeviceFacts, &Peak { class, instruction, ops_per_s }: &Peak) {
    if let Some(ops_per_s) = measured_now(ops_per_s) {
        facts.set_peak(KeptPeak { class: class.to_owned(), instruction: instruction.to_owned(), ops_per_s });
    }
}

/// A model may leave too little memory on a device to measure it: then there is no ceiling, and no share of it.
fn if_there_is_room<T>(measured: Result<T, BackendError>) -> Result<Option<T>> {
    match measured {
        Ok(measured) => Ok(Some(measured)),
        Err(error @ BackendError::OutOfMemory { .. }) => {
            note(&format!("without a ceiling: {error}"));
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}
