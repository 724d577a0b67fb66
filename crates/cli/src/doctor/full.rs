//! The full report on a device: commands of this program, from the simplest on, each as a process of its own.

use std::fmt::Write;
use std::time::Instant;

use anyhow::{Result, bail};
use backend::Claims;
use backend::conformance;

use super::args::DoctorArgs;
use crate::load::args::{DeviceArgs, GpuArgs, RopeArgs};
use crate::load::device::{self, CPU, SIM};
use crate::load::tuned::TunedFrom;
use crate::model::args::ModelArgs;
use crate::output::stdout;
use crate::program::{self, Outcome};

/// What is measured on a GPU: small enough for any, and known elsewhere.
const SHAPE: &str = "qwen2.5-0.5b";
/// Ops without which no other can be tried.
const FIRST: [&str; 2] = ["embed", "select_outputs"];

/// One command, and what it shows.
struct Section {
    what: String,
    args: Vec<String>,
    /// Whether its last line is enough where it succeeds.
    brief: bool,
}

/// Prints the report. Fails if a section does.
pub(super) fn report(args: &DoctorArgs) -> Result<()> {
    let sections = sections(args)?;
    stdout(&format!(
        "hotmetal {} on {} {}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH,
    ))?;
    let (mut passed, mut failed) = (0, Vec::new());
    for (index, Section { what, args, brief }) in sections.iter().enumerate() {
        stdout(&format!("\n{}/{} {what}\n$ hotmetal {}\n", index + 1, sections.len(), args.join(" ")))?;
        let begun = Instant::now();
        let Outcome { ok, ended, stdout: printed, stderr } = program::run(args)?;
        let seconds = begun.elapsed().as_secs_f64();
        if ok && *brief {
            stdout(&format!("{}\n", printed.lines().last().unwrap_or_default()))?;
        } else {
            stdout(&printed)?;
            stdout(&stderr)?;
        }
        stdout(&format!("{} {ended} in {seconds:.1} s\n", if ok { "✓" } else { "✗" }))?;
        if ok {
            passed += 1;
        } else {
            failed.push(what.as_str());
        }
        if !ok && index == 0 {
            // All the others would say the same.
            break;
        }
    }
    let mut verdict = format!("\n{passed} of {} sections passed", sections.len());
    for what in &failed {
        let _ = write!(verdict, "\n✗ {what}");
    }
    stdout(&format!("{verdict}\n"))?;
    match failed.first() {
        Some(first) => bail!("{passed} of {} sections passed, and not: {first}", sections.len()),
        None => Ok(()),
    }
}

/// What there is to find out, in the order in which it can be wrong.
fn sections(args: &DoctorArgs) -> Result<Vec<Section>> {
    let model = &args.model_args;
    let device = if args.metal { "metal" } else { device::resolve(&model.device.device) };
    let is_gpu = device::is_gpu(device);
    let flags = flags(args)?;
    let mut sections = Vec::new();
    let mut add = |what: &str, brief: bool, command: &[&str]| {
        let mut args: Vec<_> = command.iter().map(|&arg| arg.to_owned()).collect();
        args.extend(["--device".to_owned(), device.to_owned()]);
        args.extend_from_slice(&flags);
        sections.push(Section { what: what.to_owned(), args, brief });
    };
    add("the device", false, &["doctor", "--part", "device"]);
    add("copies", false, &["doctor", "--part", "copies"]);
    for op in ops() {
        let what = format!("the kernels of {op} against the reference");
        add(&what, true, &["verify", "--quick", "--op", &op]);
    }
    // The CPU is held to the reference, all others to the CPU.
    let against = if device == CPU { "reference" } else { CPU };
    let models = ["verify", "--only-models", "--against", against];
    add("one step of many tokens and some of one, op by op", false, &[&models[..], &["-n", "0"]].concat());
    // Of the built-in model alone, because the tiny ones would be compared a second time. It is in this format.
    add("128 greedy tokens", true, &[&models[..], &["--format", "bf16", "-n", "128"]].concat());
    let text = ["doctor", "--part", "text"];
    add("the text of the built-in model through the engine", false, &text);
    let ways = || ["indirect", "copied"].into_iter().filter(|_| device.starts_with("metal"));
    for way in ways() {
        add(&format!("the same, {way}"), false, &[&text[..], &["--metal-way", way]].concat());
    }
    if is_gpu {
        add("batches, caches and refusals", true, &["verify", "--quick", "--against", against]);
        add("what its memory and its instructions give", false, &["bench", "--roofline"]);
    }
    let measured = ["bench", "-r", "3", "-p", "128", "-n", "64"];
    add("how fast the built-in model is", false, &measured);
    // The simulator would take days.
    let shape = args.shape.as_deref().or((is_gpu && device != SIM).then_some(SHAPE));
    for format in ["f16", "q8_0"] {
        if let Some(shape) = shape {
            let what = format!("how fast {shape} is in {format}");
            let of_shape = [&measured[..], &["--shape", shape, "--format", format]].concat();
            add(&what, false, &of_shape);
            for way in ways() {
                add(&format!("{what}, {way}"), false, &[&of_shape[..], &["--metal-way", way]].concat());
            }
        }
    }
    Ok(sections)
}

/// The flags that every command of the report has. Refuses those that some lack.
fn flags(args: &DoctorArgs) -> Result<Vec<String>> {
    let ModelArgs {
        ctx_size,
        rope,
        device:
            DeviceArgs {
                device: _,
                gpu: GpuArgs { batch_invariant, force_variant, tuned, metal_way, capture },
                threads,
                isa,
                no_repack,
            },
        quant,
        kv_type,
        chat_template,
        check_tensors,
        allow_unknown_patterns,
    } = &args.model_args;
    let refused = [
        ("--ctx-size", ctx_size.is_some()),
        ("--rope-… or --yarn-…", *rope != RopeArgs::default()),
        ("--force-variant", !force_variant.is_empty()),
        ("--tuned", *tuned != TunedFrom::Usual),
        ("--metal-way", !metal_way.is_empty()),
        ("--capture", capture.is_some()),
        ("--no-repack", *no_repack),
        ("--quant", quant.is_some()),
        ("--kv-type", kv_type.is_some()),
        ("--chat-template", chat_template.is_some()),
        ("--check-tensors", *check_tensors),
        ("--allow-unknown-patterns", *allow_unknown_patterns),
    ];
    if let Some((flag, _)) = refused.iter().find(|(_, is_given)| *is_given) {
        bail!("the full report takes no {flag}: it is one report, whoever makes it");
    }
    let mut flags = Vec::new();
    if let Some(isa) = isa {
        flags.extend(["--isa".to_owned(), isa.name().to_owned()]);
    }
    if let Some(threads) = threads {
        flags.extend(["--threads".to_owned(), threads.to_string()]);
    }
    if *batch_invariant {
        flags.push("--batch-invariant".to_owned());
    }
    Ok(flags)
}

/// Every op that kernels compute, the simplest first.
fn ops() -> Vec<String> {
    let cases = conformance::cases(&Claims::default(), true);
    let mut ops: Vec<_> =
        cases.iter().filter(|case| case.part == conformance::Part::Ops).flat_map(|case| &case.ops).collect();
    ops.sort_unstable_by_key(|op| (!FIRST.contains(op), *op));
    ops.dedup();
    ops.into_iter().map(|&op| op.to_owned()).collect()
}
