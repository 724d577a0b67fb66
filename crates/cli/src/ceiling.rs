//! What a device gives at most, measured in the same minutes: the ceilings that figures are shares of.

use anyhow::Result;
use backend::BackendError;
use tensor::WeightFormat;

use crate::load::device::{self, CPU, DeviceSettings};
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
