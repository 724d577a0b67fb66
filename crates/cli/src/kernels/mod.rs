//! `hotmetal kernels`: the GPU kernels that this program carries, by target, and the code of each.

mod args;
mod disassembler;
mod near;

use std::fmt::Write;

use anyhow::{Context, Result, bail};
use gpu::kernel_source::{ARCHITECTURES, Image};
use gpu::{CubinKernel, cubin_kernels, ptx_kernels, ptx_of};
use serde_json::{Value, json};

use crate::output::stdout;
pub(crate) use args::KernelsArgs;
use args::{DumpArgs, KernelsCommand, ListFormat};

/// What is disassembled where no target is named: it has kernels that others lack.
const USUAL_TARGET: &str = "sm_90a";

/// How to see the kernels that are not of a GPU.
const OF_THE_CPU: &str = "hint: kernels of the CPU are part of this program's own machine code. In a \
    build with the names of functions, `CARGO_PROFILE_RELEASE_STRIP=none cargo build --release`, `objdump -d --demangle \
    --no-show-raw-insn target/release/hotmetal` prints them: look for `cpu::`";

/// Runs `hotmetal kernels`.
pub(crate) fn kernels(args: &KernelsArgs) -> Result<()> {
    match &args.command {
        Some(KernelsCommand::Dump(args)) => dump(args),
        None => list(args),
    }
}

/// The kernels of one target.
enum Carried {
    MachineCode(Vec<CubinKernel>),
    Ptx(Vec<String>),
}

impl Carried {
    fn of(image: &Image) -> Result<Self> {
        if image.is_machine_code() {
            let broken = || format!("the kernels for {} cannot be read: this program is damaged", image.target);
            return Ok(Self::MachineCode(cubin_kernels(&image.bytes()).with_context(broken)?));
        }
        Ok(Self::Ptx(ptx_kernels(&ptx_text(image)?).into_iter().map(str::to_owned).collect()))
    }

    fn keep(&mut self, wanted: impl Fn(&str) -> bool) {
        match self {
            Self::MachineCode(kernels) => kernels.retain(|kernel| wanted(&kernel.name)),
            Self::Ptx(names) => names.retain(|name| wanted(name)),
        }
    }

    fn names(&self) -> Vec<&str> {
        match self {
            Self::MachineCode(kernels) => kernels.iter().map(|kernel| kernel.name.as_str()).collect(),
            Self::Ptx(names) => names.iter().map(String::as_str).collect(),
        }
    }
}

/// The text of the image of PTX.
fn ptx_text(image: &Image) -> Result<String> {
    let text = String::from_utf8(image.bytes());
    text.with_context(|| format!("the PTX for {} is not text: this program is damaged", image.target))
}

fn list(args: &KernelsArgs) -> Result<()> {
    let images = ARCHITECTURES.iter().filter(|image| args.target.is_none_or(|target| target == **image));
    let mut targets = Vec::new();
    for image in images {
        let mut carried = Carried::of(image)?;
        carried.keep(|name| args.only.is_empty() || args.only.iter().any(|part| name.contains(part.as_str())));
        targets.push((image, carried));
    }
    if targets.iter().all(|(_, carried)| carried.names().is_empty()) {
        bail!("no kernel has `{}` in its name; `hotmetal kernels` lists all", args.only.join("` or `"));
    }
    Ok(stdout(&match args.output {
        ListFormat::Text => as_text(&targets),
        ListFormat::Json => format!("{:#}\n", as_json(&targets)),
    })?)
}

fn as_text(targets: &[(&Image, Carried)]) -> String {
    let mut out = String::new();
    for (image, carried) in targets {
        let names = carried.names();
        let (major, minor) = image.capability;
        let what = if image.is_machine_code() { "machine code for" } else { "PTX from" };
        let plural = if names.len() == 1 { "" } else { "s" };
        let _ = writeln!(
            out,
            "{}, {what} compute capability {major}.{minor}: {} kernel{plural}",
            image.target,
            names.len()
        );
        let width = names.iter().map(|name| name.len()).max().unwrap_or_default();
        match carried {
            Carried::MachineCode(kernels) => {
                let _ = writeln!(out, "  {:width$}  registers  shared B  local B  code B", "kernel");
                for CubinKernel { name, registers, shared_bytes, local_bytes, code_bytes, .. } in kernels {
                    let _ = writeln!(
                        out,
                        "  {name:width$}  {registers:>9}  {shared_bytes:>8}  {local_bytes:>7}  {code_bytes:>6}"
                    );
                }
            }
            Carried::Ptx(names) => names.iter().for_each(|name| out += &format!("  {name}\n")),
        }
        out.push('\n');
    }
    out.push_str(
        "registers: of each thread. shared B: bytes of a group, to which a launch may add. local B: bytes of each thread in\n\
         local memory: spilled registers, and arrays that are indexed at run time. `hotmetal kernels dump NAME` prints the\n\
         code of a kernel.\n",
    );
    out
}

fn as_json(targets: &[(&Image, Carried)]) -> Value {
    let machine_code = |kernel: &CubinKernel| {
        json!({
            "name": kernel.name,
            "registers": kernel.registers,
            "shared_bytes": kernel.shared_bytes,
            "local_bytes": kernel.local_bytes,
            "code_bytes": kernel.code_bytes,
        })
    };
    let target = |(image, carried): &(&Image, Carried)| {
        let kernels: Vec<_> = match carried {
            Carried::MachineCode(kernels) => kernels.iter().map(machine_code).collect(),
            Carried::Ptx(names) => names.iter().map(|name| json!({"name": name})).collect(),
        };
        let (major, minor) = image.capability;
        json!({
            "target": image.target,
            "compute_capability": format!("{major}.{minor}"),
            "is_machine_code": image.is_machine_code(),
            "kernels": kernels,
        })
    };
    json!({"targets": targets.iter().map(target).collect::<Vec<_>>()})
}

fn dump(args: &DumpArgs) -> Result<()> {
    if args.isa {
        return dump_isa(args);
    }
    let image = ARCHITECTURES.iter().find(|image| !image.is_machine_code()).context("this program carries no PTX")?;
    let text = ptx_text(image)?;
    if let Some(kernel) = ptx_of(&text, &args.name) {
        return Ok(stdout(&kernel)?);
    }
    let targets = targets_of(&args.name)?;
    bail!(
        "there is no PTX of `{}`, because it is for {} alone; --isa prints its instructions",
        args.name,
        targets.join(" and ")
    )
}

fn dump_isa(args: &DumpArgs) -> Result<()> {
    let targets = targets_of(&args.name)?;
    let usual = || targets.iter().find(|&&target| target == USUAL_TARGET).or(targets.first());
    let target = args.target.map(|image| image.target).or_else(|| usual().copied()).unwrap_or(USUAL_TARGET);
    let image = ARCHITECTURES.iter().find(|image| image.target == target && image.is_machine_code());
    let Some(image) = image else { bail!("{target} is PTX: --ptx prints it") };
    if !targets.contains(&target) {
        bail!("there is no `{}` for {target}; it is for {}", args.name, targets.join(", "));
    }
    let bytes = image.bytes();
    let kernels = cubin_kernels(&bytes).unwrap_or_default();
    let kernel = kernels.iter().find(|kernel| kernel.name == args.name).context("it was there a moment ago")?;
    Ok(stdout(&disassembler::disassemble(&bytes, kernel)?)?)
}

/// The targets whose machine code has the kernel of that name. An error with what there is in its place where none does.
fn targets_of(name: &str) -> Result<Vec<&'static str>> {
    let mut known: Vec<String> = Vec::new();
    let mut targets = Vec::new();
    for image in ARCHITECTURES.iter().filter(|image| image.is_machine_code()) {
        let carried = Carried::of(image)?;
        if carried.names().contains(&name) {
            targets.push(image.target);
        }
        known.extend(carried.names().into_iter().map(str::to_owned));
    }
    if !targets.is_empty() {
        return Ok(targets);
    }
    known.sort_unstable();
    known.dedup();
    let near = near::matches(name, &known);
    let nearest = match near.is_empty() {
        true => String::new(),
        false => format!("; near it: {}", near.join(", ")),
    };
    bail!("there is no GPU kernel `{name}` in this program{nearest}; `hotmetal kernels` lists all\n{OF_THE_CPU}")
}
