//! `hotmetal doctor`: what this machine is, and the proof that the text is right on it.

use anyhow::{Result, bail};
use backend::Backend;
use clap::Args;

use crate::load::{self, ModelArgs};
use crate::output::stdout;
use crate::{generate, hub, units};

/// Check this machine: processor, memory, cache, and that the built-in model says what it must
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    model_args: ModelArgs,
}

/// The greedy continuation of the built-in model, made by Hugging Face transformers.
const GOLDEN: &str = include_str!("../builtin/golden.json");

/// One line of the report.
struct Check {
    what: &'static str,
    found: String,
    ok: bool,
}

/// Runs `hotmetal doctor`. Fails if a check does.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<()> {
    let mut checks = vec![note("version", env!("CARGO_PKG_VERSION"))];
    let backend = load::backend(&args.model_args)?;
    let device = backend.device();
    checks.push(note("device", &device.description));
    checks.push(note("memory", &units::bytes(device.memory_bytes)));
    checks.extend(gpus());
    let bandwidth = load::cpu_backend(&args.model_args)?.read_bandwidth();
    checks.push(note("bandwidth", &format!("{:.1} GB/s reading, measured just now", bandwidth / 1e9)));
    checks.push(cache());
    checks.push(golden_text(&args.model_args));
    for Check { what, found, ok } in &checks {
        stdout(&format!("{} {what:<10} {found}\n", if *ok { "✓" } else { "✗" }))?;
    }
    let failed = checks.iter().filter(|check| !check.ok).count();
    if failed > 0 {
        bail!("{failed} of {} checks failed", checks.len());
    }
    Ok(())
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
    load::all_gpus().into_iter().map(of).collect()
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
fn golden_text(args: &ModelArgs) -> Check {
    let (found, ok) = match generate::compare_with_golden(GOLDEN, args) {
        Ok(equal) => (format!("{equal} greedy tokens of the built-in model equal those of transformers"), true),
        Err(error) => (format!("{error:#}"), false),
    };
    Check { what: "text", found, ok }
}
