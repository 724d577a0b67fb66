//! Where one op runs, and what it is compared with there.

use anyhow::Result;
use tensor::WeightFormat;

use crate::bench::args::KernelsArgs;
use crate::ceiling::{Meter, Peak};
use crate::load::device::{self, CPU};

/// The name of the ladder among ops.
pub(super) const GEMV: &str = "gemv";

/// Where and how one op runs.
pub(super) struct KernelDevice {
    pub(super) isa: Option<cpu::IsaLevel>,
    pub(super) threads: usize,
    pub(super) backend: Box<dyn backend::Backend>,
}

/// Each instruction set with each number of threads, or the device alone where it has neither.
pub(super) fn kernel_devices(args: &KernelsArgs) -> Result<Vec<KernelDevice>> {
    if args.device() != CPU {
        let backend = device::backend(&args.device_settings(None, None))?;
        return Ok(vec![KernelDevice { isa: None, threads: 1, backend }]);
    }
    let levels = match args.isa.as_slice() {
        [] if args.all => cpu::Isa::available().into_iter().map(cpu::Isa::level).collect(),
        [] => vec![cpu::Isa::best().level()],
        levels => levels.to_vec(),
    };
    let counts = if args.threads.is_empty() { vec![None] } else { args.threads.iter().copied().map(Some).collect() };
    let mut devices = Vec::new();
    for threads in counts {
        for &level in &levels {
            let cpu = device::cpu_backend(&args.device_settings(threads, Some(level)))?;
            devices.push(KernelDevice { isa: Some(level), threads: cpu.threads(), backend: Box::new(cpu) });
        }
    }
    Ok(devices)
}

/// What an op is compared with, measured just before it.
pub(super) struct Ceiling {
    /// Bytes per second of reading as much as weights rotate through.
    pub(super) read: Option<f64>,
    pub(super) peak: Option<Peak>,
}

impl Ceiling {
    pub(super) fn measure(
        args: &KernelsArgs,
        device: &KernelDevice,
        format: WeightFormat,
        rotation_bytes: u64,
    ) -> Result<Self> {
        // The machine's ceiling, not the instruction set's.
        let meter = Meter::new(&args.device_settings(Some(device.threads), None))?;
        let read = match &meter {
            Meter::Cpu(cpu) => Some(cpu.read_bandwidth_of(usize::try_from(rotation_bytes).unwrap_or(usize::MAX))),
            meter => meter.read_bandwidth()?,
        };
        Ok(Self { read, peak: meter.peak_of_format(format)? })
    }
}
