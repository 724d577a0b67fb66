//! `hotmetal doctor`: what this machine is, and the proof that the text is right on it.

mod args;
mod full;

use anyhow::{Result, bail};
use backend::Backend;

use crate::ceiling::Meter;
use crate::load::device::{self, CPU, DeviceSettings};
use crate::model::settings::ModelSettings;
use crate::output::stdout;
use crate::{generate, hub, units};
pub(crate) use args::DoctorArgs;
use args::ReportPart;

/// The greedy continuation of the built-in model, made by Hugging Face transformers.
const GOLDEN: &str = include_str!("../../builtin/golden.json");

/// One line of the report.
struct Check {
    what: &'static str,
    found: String,
    ok: bool,
}

/// Runs `hotmetal doctor`. Fails if a check does.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<()> {
    if args.full || args.metal {
        return full::report(args);
    }
    if args.shape.is_some() {
        bail!("--shape is for the full report: expected --full or --metal beside it");
    }
    let settings = args.model_args.settings();
    let checks = match args.part {
        None => {
            let mut checks = vec![note("version", env!("CARGO_PKG_VERSION"))];
            checks.extend(device_checks(&settings.device)?);
            checks.extend(gpus());
            checks.extend(bandwidths(&settings.device, args.measure)?);
            checks.push(cache());
            checks.push(golden_text(&settings));
            checks
        }
        Some(ReportPart::Device) => device_checks(&settings.device)?,
        Some(ReportPart::Copies) => vec![copies(&settings.device)?],
        Some(ReportPart::Text) => vec![golden_text(&settings)],
    };
    for Check { what, found, ok } in &checks {
        stdout(&format!("{} {what:<10} {found}\n", if *ok { "✓" } else { "✗" }))?;
    }
    let failed = checks.iter().filter(|check| !check.ok).count();
    if failed > 0 {
        bail!("{failed} of {} checks failed", checks.len());
    }
    Ok(())
}

fn device_checks(settings: &DeviceSettings) -> Result<Vec<Check>> {
    let backend = device::backend(settings)?;
    let device = backend.device();
    Ok(vec![note("device", &device.description), note("memory", &units::bytes(device.memory_bytes))])
}

/// What the processors read, and, if it is another one, the device.
fn bandwidths(settings: &DeviceSettings, anew: bool) -> Result<Vec<Check>> {
    let cpu = DeviceSettings { name: CPU.to_owned(), ..settings.clone() };
    let others = device::is_gpu(&settings.name).then_some(settings);
    let mut checks = vec![];
    for settings in std::iter::once(&cpu).chain(others) {
        if let Some(known) = Meter::new(settings)?.known(anew)? {
            checks.push(note("bandwidth", &format!("{}: {}", device::resolve(&settings.name), known.read_line())));
        }
    }
    Ok(checks)
}

fn copies(settings: &DeviceSettings) -> Result<Check> {
    Ok(match device::gpu_backend(settings)? {
        None => note("copies", "none: it computes in this memory"),
        Some(gpu) => note("copies", &format!("{} went there and came back", units::bytes(gpu.check_copies()?))),
    })
}

fn note(what: &'static str, found: &str) -> Check {
    Check { what, found: found.to_owned(), ok: true }
}

/// A line for each GPU, or why there is none.
fn gpus() -> Vec<Check> {
    let of = |(name, found): (String, Result<gpu::GpuBackend, gpu::GpuError>)| match found {
        Ok(found) => {
            let device = found.device();
            note("gpu", &format!("{name}, {}, {} free", device.description, units::bytes(device.memory_bytes)))
        }
        Err(error) => note("gpu", &format!("{name} cannot be used: {error}")),
    };
    device::all_gpus().into_iter().map(of).collect()
}

fn cache() -> Check {
    match hub::Settings::from_env().and_then(|settings| {
        let repos = hub::Cache::new(&settings.cache).repos()?;
        Ok(format!("{} models in {}", repos.len(), settings.cache.display()))
    }) {
        Ok(found) => Check { what: "cache", found, ok: true },
        Err(error) => Check { what: "cache", found: error.to_string(), ok: false },
    }
}

/// Runs the built-in model on a prompt whose answer Hugging Face transformers gave, and compares token by token.
fn golden_text(settings: &ModelSettings) -> Check {
    let (found, ok) = match generate::compare_with_golden(GOLDEN, settings) {
        Ok(equal) => (format!("{equal} greedy tokens of the built-in model equal those of transformers"), true),
        Err(error) => (format!("{error:#}"), false),
    };
    Check { what: "text", found, ok }
}
