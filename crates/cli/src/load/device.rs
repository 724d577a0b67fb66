//! From the name of a device to its backend: the one place that names concrete backends.

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Result, bail};
use backend::{Backend, Tuned};

use super::device_facts;
use super::tuned::{self, TunedFrom};
use crate::files;
use crate::output::note;

/// The first GPU if a model fits it, else the CPU.
pub(crate) const AUTO: &str = "auto";
pub(crate) const CPU: &str = "cpu";
/// The first NVIDIA GPU; `cuda:N` is another.
pub(crate) const CUDA: &str = "cuda";
/// The first Apple GPU; `metal:N` is another.
const METAL: &str = "metal";
/// The simulator, which `auto` never is.
pub(crate) const SIM: &str = "sim";
/// Plain f64.
pub(crate) const REFERENCE: &str = "reference";

/// Whether this program is linked to no library: a program that is so cannot load one either.
const IS_STATIC: bool = cfg!(all(target_env = "musl", target_feature = "crt-static"));

/// A device and how it computes.
#[derive(Clone, Debug)]
pub(crate) struct DeviceSettings {
    /// As `--device` takes it.
    pub(crate) name: String,
    pub(crate) gpu: GpuSettings,
    /// CPU threads; one for each core if nothing is said.
    pub(crate) threads: Option<usize>,
    /// The instruction set of the CPU kernels; the best there is if nothing is said.
    pub(crate) isa: Option<cpu::IsaLevel>,
    /// Whether the CPU copies weights into the layout that streams fastest.
    pub(crate) repack: bool,
}

impl DeviceSettings {
    /// The device of that name, as it computes without any flag.
    pub(crate) fn on(name: impl Into<String>) -> Self {
        Self { name: name.into(), gpu: GpuSettings::default(), threads: None, isa: None, repack: true }
    }

    /// The same device with each launch of a step submitted by itself. Refused where steps are not recorded, because
    /// nothing could be left out there.
    pub(crate) fn without_recording(mut self) -> Result<Self> {
        match parse_gpu(resolve(&self.name)) {
            Some((METAL, _)) if self.gpu.indirect => self.gpu.indirect = false,
            Some((METAL, _)) => bail!(
                "--without recording: an Apple GPU encodes each launch of a step anew; with --metal-way indirect steps \
                 are recorded, and both are compared"
            ),
            Some(_) => self.gpu.eager = true,
            None => bail!(
                "--without recording: steps are not recorded on `{}`: expected --device cuda, sim, or metal with \
                 --metal-way indirect",
                resolve(&self.name)
            ),
        }
        Ok(self)
    }
}

/// How a GPU computes.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuSettings {
    /// Whether a text does not depend on those computed beside it, bit for bit.
    pub(crate) batch_invariant: bool,
    /// Kernels that compute an op wherever they can.
    pub(crate) force_variant: Vec<gpu::ForcedVariant>,
    /// Where it is said how kernels are launched.
    pub(crate) tuned: TunedFrom,
    /// Apple GPU: whether steps are replayed from an indirect command buffer.
    pub(crate) indirect: bool,
    /// Apple GPU: whether weights are copied, and not read where the file is mapped.
    pub(crate) copied: bool,
    /// Apple GPU: where the trace of one step goes.
    pub(crate) capture: Option<PathBuf>,
    /// Whether each launch of a step is submitted by itself, and not as part of a recording.
    pub(crate) eager: bool,
}

impl GpuSettings {
    /// Refuses what is about GPUs alone where none of `devices` is one.
    pub(crate) fn check(&self, devices: &[&str]) -> Result<()> {
        if !self.force_variant.is_empty() && !devices.iter().any(|device| is_gpu(device)) {
            bail!(
                "--force-variant is about the kernels of GPUs: expected --device cuda, metal or sim, found `{}`",
                devices.join("`, `")
            );
        }
        self.check_metal(devices)
    }

    /// Refuses what is about Apple GPUs alone where none of `devices` is one.
    pub(crate) fn check_metal(&self, devices: &[&str]) -> Result<()> {
        let names_metal = |device: &&str| matches!(parse_gpu(device), Some((METAL, _)));
        let asks_for_metal = self.indirect || self.copied || self.capture.is_some();
        if asks_for_metal && !devices.iter().any(names_metal) {
            bail!(
                "--metal-way and --capture are about Apple GPUs: expected --device metal, found `{}`",
                devices.join("`, `")
            );
        }
        Ok(())
    }

    fn metal_options(&self) -> gpu::MetalOptions {
        gpu::MetalOptions {
            source: kernel_folder(),
            cache: kernel_cache(),
            indirect: self.indirect,
            copied: self.copied,
            capture: self.capture.clone(),
        }
    }

    /// `gpu` as it is to compute: a table that cannot be read is an error of the device.
    fn applied_to(&self, gpu: gpu::GpuBackend) -> Result<gpu::GpuBackend, gpu::GpuError> {
        let forced = self.force_variant.iter().copied().collect();
        let tuned = tuned::for_gpu(&gpu, &self.tuned);
        let tuned = tuned.map_err(|error| gpu::GpuError::Table { reason: format!("{error:#}") })?;
        // Where no table counts, nothing counts that was measured on this machine.
        let is_measured = self.tuned != TunedFrom::Nowhere;
        let read_bytes_per_ns = is_measured.then(|| device_facts::read_bytes_per_ns(&gpu)).flatten();
        let GpuSettings { batch_invariant, eager, .. } = *self;
        gpu.with_options(gpu::GpuOptions { batch_invariant, forced, tuned, eager, read_bytes_per_ns })
    }
}

/// The first GPU. It is opened once, because its context takes a third of a second to make.
pub(super) fn first_gpu(settings: &GpuSettings) -> Result<gpu::GpuBackend, gpu::GpuError> {
    static FIRST: OnceLock<Result<gpu::GpuBackend, gpu::GpuError>> = OnceLock::new();
    let found = FIRST.get_or_init(|| cuda(0)).clone()?;
    settings.applied_to(found)
}

/// An NVIDIA GPU, with the kernels of this binary, or with those of the folder `HOTMETAL_KERNEL_SRC`, compiled now.
fn cuda(ordinal: usize) -> Result<gpu::GpuBackend, gpu::GpuError> {
    let options = gpu::GpuOptions::default();
    let Some(folder) = kernel_folder() else {
        return gpu::GpuBackend::cuda(ordinal, options);
    };
    let compiling = |target: &str| {
        note(&format!(
            "compiling the kernels of HOTMETAL_KERNEL_SRC for {target}, which takes some minutes; the next start finds them"
        ));
    };
    gpu::GpuBackend::cuda_from_source(ordinal, options, &gpu::KernelSource { folder, cache: kernel_cache(), compiling })
}

/// An Apple GPU, with kernels from where [`cuda`] has them. It is opened once in each way, because compiling them takes
/// seconds.
fn metal(ordinal: usize, settings: &GpuSettings) -> Result<gpu::GpuBackend, gpu::GpuError> {
    type Found = (usize, gpu::MetalOptions, gpu::GpuBackend);
    static FOUND: Mutex<Vec<Found>> = Mutex::new(Vec::new());
    let wanted = settings.metal_options();
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((.., backend)) = found.iter().find(|(number, options, _)| *number == ordinal && *options == wanted) {
        return settings.applied_to(backend.clone());
    }
    let backend = gpu::GpuBackend::metal(ordinal, gpu::GpuOptions::default(), &wanted)?;
    found.push((ordinal, wanted, backend.clone()));
    settings.applied_to(backend)
}

/// Where kernels are read as text, if not those of the binary are used.
fn kernel_folder() -> Option<PathBuf> {
    std::env::var_os("HOTMETAL_KERNEL_SRC").filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Where kernels are kept that were compiled on this machine.
fn kernel_cache() -> Option<PathBuf> {
    files::cache_folder().map(|cache| cache.join("kernels"))
}

/// Every GPU of this machine with its name, or why it cannot be used; and for a kind of which there is none, why.
pub(crate) fn all_gpus() -> Vec<(String, Result<gpu::GpuBackend, gpu::GpuError>)> {
    let options = gpu::GpuOptions::default();
    let kinds = [
        (CUDA, gpu::GpuBackend::all_cuda(options)),
        (METAL, gpu::GpuBackend::all_metal(options, &GpuSettings::default().metal_options())),
    ];
    let of = |(kind, found): (&str, Result<Vec<_>, gpu::GpuError>)| match found {
        Ok(found) => found.into_iter().enumerate().map(|(number, gpu)| (format!("{kind}:{number}"), gpu)).collect(),
        // Nobody expects one there.
        Err(gpu::GpuError::NotMacos) => vec![],
        Err(error) => vec![(kind.to_owned(), Err(error))],
    };
    kinds.into_iter().flat_map(of).collect()
}

/// The device that a name stands for where no model has a say: `auto` is the first GPU, the CPU without one.
pub(crate) fn resolve(device: &str) -> &str {
    match device {
        AUTO if first_gpu(&GpuSettings::default()).is_ok() => CUDA,
        AUTO => CPU,
        other => other,
    }
}

/// The backend that `settings` name.
pub(crate) fn backend(settings: &DeviceSettings) -> Result<Box<dyn Backend>> {
    settings.gpu.check(&[&settings.name])?;
    if let Some(gpu) = gpu_backend(settings)? {
        return Ok(Box::new(gpu));
    }
    match resolve(&settings.name) {
        CPU => Ok(Box::new(cpu_backend(settings)?)),
        REFERENCE => Ok(Box::new(backend::reference::ReferenceBackend::new())),
        other => bail!(
            "there is no device `{other}`; this build has: auto, cpu, cuda, cuda:N, {}reference{}",
            if cfg!(target_os = "macos") { "metal, metal:N, " } else { "" },
            if gpu::HAS_SIMULATOR { ", sim" } else { "" },
        ),
    }
}

/// Whether a name is that of a GPU.
pub(crate) fn is_gpu(device: &str) -> bool {
    parse_gpu(resolve(device)).is_some()
}

/// Whether a name is that of an NVIDIA GPU; `auto` is not.
pub(super) fn is_cuda(device: &str) -> bool {
    matches!(parse_gpu(device), Some((CUDA, _)))
}

/// The kind and the number of a GPU. There is one simulator.
fn parse_gpu(device: &str) -> Option<(&'static str, usize)> {
    if device == SIM {
        return Some((SIM, 0));
    }
    let (kind, number) = device.split_once(':').unwrap_or((device, "0"));
    let kind = [CUDA, METAL].into_iter().find(|&known| known == kind)?;
    Some((kind, number.parse().ok()?))
}

/// Refuses an NVIDIA GPU where its driver cannot be loaded.
fn check_driver_loads(device: &str, is_static: bool) -> Result<()> {
    if is_static && is_cuda(device) {
        bail!(
            "--device {device}: this program is linked to no library and cannot load the driver of a GPU, which is one: \
             take --device cpu, or a program that is linked to glibc (`cargo build --release`, the wheel, the Debian package)"
        );
    }
    Ok(())
}

/// The GPU that `settings` name, if they name one.
pub(crate) fn gpu_backend(settings: &DeviceSettings) -> Result<Option<gpu::GpuBackend>> {
    check_driver_loads(&settings.name, IS_STATIC)?;
    Ok(match parse_gpu(resolve(&settings.name)) {
        None => None,
        Some((CUDA, 0)) => Some(first_gpu(&settings.gpu)?),
        Some((CUDA, ordinal)) => Some(settings.gpu.applied_to(cuda(ordinal)?)?),
        Some((SIM, _)) => Some(settings.gpu.applied_to(gpu::GpuBackend::simulated(gpu::GpuOptions::default())?)?),
        Some((_, ordinal)) => Some(metal(ordinal, &settings.gpu)?),
    })
}

/// The processors, whatever device `settings` name.
pub(crate) fn cpu_backend(settings: &DeviceSettings) -> Result<cpu::CpuBackend> {
    let options = cpu::CpuOptions {
        threads: settings.threads,
        isa: settings.isa,
        pin: true,
        repack: settings.repack,
        tuned: Tuned::NONE,
    };
    let cpu = cpu::CpuBackend::new(options)?;
    // A file is of the device that was named.
    let tuned = match &settings.gpu.tuned {
        TunedFrom::File(_) if ![AUTO, CPU].contains(&settings.name.as_str()) => Tuned::NONE,
        from => tuned::for_cpu(&cpu, from)?,
    };
    if tuned == Tuned::NONE { Ok(cpu) } else { Ok(cpu::CpuBackend::new(cpu::CpuOptions { tuned, ..options })?) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_libraries_says_that_it_loads_no_driver() {
        for device in ["cuda", "cuda:1"] {
            let error = check_driver_loads(device, true).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--device {device}: ")) && error.contains("--device cpu"), "{error}");
            check_driver_loads(device, false).unwrap();
        }
        for device in ["auto", "cpu", "reference"] {
            check_driver_loads(device, true).unwrap();
        }
    }
}
