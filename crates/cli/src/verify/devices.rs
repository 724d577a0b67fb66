//! The devices that can be verified, by name: the one place of this command that knows which there are.

use anyhow::{Context, Result, bail};
use backend::Backend;

use super::args::VerifyArgs;
use crate::load::device::{self, CPU, DeviceSettings, GpuSettings};
use crate::load::sizes::CacheSettings;
use crate::model::settings::ModelSettings;

/// A device, or one of the ways in which a device computes.
pub(super) struct Named {
    /// `avx2, 1 thread`
    pub(super) name: String,
    pub(super) backend: Box<dyn Backend>,
}

/// What `--device` names, in every way that it computes: the CPU at each instruction set on one thread, and at its best
/// with the weights as the file has them, and on one thread for each core.
pub(super) fn variants(args: &VerifyArgs) -> Result<Vec<Named>> {
    let device = device::resolve(&args.device);
    if device != CPU {
        if !args.isa.is_empty() {
            bail!("--isa chooses instruction sets of the CPU: expected --device {CPU}, found `{device}`");
        }
        return Ok(vec![named(device, args)?]);
    }
    let levels: Vec<_> = match args.isa.as_slice() {
        [] => cpu::Isa::available().into_iter().map(cpu::Isa::level).collect(),
        chosen => chosen.to_vec(),
    };
    let mut variants = Vec::new();
    let threads = args.threads.or(Some(1));
    for &level in &levels {
        variants.push(processors(Some(level), threads, true)?);
    }
    // The best of those listed, or of all.
    let best = args.isa.last().copied();
    variants.push(processors(best, threads, false)?);
    if args.threads.is_none() {
        let team = processors(best, None, true)?;
        if variants.iter().all(|variant| variant.name != team.name) {
            variants.push(team);
        }
    }
    Ok(variants)
}

/// What `--device` names, in the ways in which models are compared: the instruction sets that `--isa` lists, or the best.
pub(super) fn for_models(args: &VerifyArgs) -> Result<Vec<Named>> {
    let device = device::resolve(&args.device);
    let devices = match device == CPU && !args.isa.is_empty() {
        true => args.isa.iter().map(|&level| processors(Some(level), args.threads, true)).collect::<Result<_>>()?,
        false => vec![named(device, args)?],
    };
    #[cfg(debug_assertions)]
    let devices = devices
        .into_iter()
        .map(|Named { name, backend }| Named { name, backend: crate::planted::wrong_bit(backend) })
        .collect();
    Ok(devices)
}

/// The device of that name; an instruction set is the CPU with it.
pub(super) fn named(name: &str, args: &VerifyArgs) -> Result<Named> {
    let level = cpu::IsaLevel::ALL.into_iter().find(|level| level.name() == name);
    if level.is_some() || name == CPU {
        return processors(level, args.threads, true);
    }
    let backend = device::backend(&DeviceSettings {
        name: name.to_owned(),
        gpu: if device::is_gpu(name) { args.gpu.settings() } else { GpuSettings::default() },
        ..processor_settings(None, args.threads, true)
    });
    let backend = backend.with_context(|| {
        let levels: Vec<_> = cpu::Isa::available().into_iter().map(|isa| isa.level().name()).collect();
        format!("`{name}` is neither a device nor an instruction set of this processor ({})", levels.join(", "))
    })?;
    Ok(Named { name: name.to_owned(), backend })
}

/// The flags as the loader takes them.
pub(super) fn as_loaded(args: &VerifyArgs) -> ModelSettings {
    let device = DeviceSettings {
        name: args.device.clone(),
        gpu: args.gpu.settings(),
        ..processor_settings(args.isa.last().copied(), args.threads, true)
    };
    let cache = CacheSettings { ctx_size: None, format: args.kv_type.map(Into::into) };
    ModelSettings { cache, ..ModelSettings::on(device) }
}

/// Bytes of memory that this machine has.
pub(super) fn memory_bytes(args: &VerifyArgs) -> Result<u64> {
    Ok(named(CPU, args)?.backend.device().memory_bytes)
}

fn processors(isa: Option<cpu::IsaLevel>, threads: Option<usize>, repack: bool) -> Result<Named> {
    let backend = device::cpu_backend(&processor_settings(isa, threads, repack))?;
    let plural = if backend.threads() == 1 { "" } else { "s" };
    let unpacked = if repack { "" } else { ", not repacked" };
    let name = format!("{}, {} thread{plural}{unpacked}", backend.isa(), backend.threads());
    Ok(Named { name, backend: Box::new(backend) })
}

fn processor_settings(isa: Option<cpu::IsaLevel>, threads: Option<usize>, repack: bool) -> DeviceSettings {
    DeviceSettings { threads, isa, repack, ..DeviceSettings::on(CPU) }
}
