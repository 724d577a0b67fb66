//! `cargo xtask kernels`: compiles the kernels for every CUDA architecture that the binary carries, and writes them to
//! `crates/gpu/kernels/cuda`. Says what each kernel takes of the registers, and fails where one spills over the budget,
//! takes more than leave room for the kernel beside it or, for lack of them, waits for each matrix instruction.

use std::fmt::Write;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail};
use clap::Args;
use gpu::kernel_source::{ARCHITECTURES, SOURCE_HASH_FILE, cuda, source_hash};
use gpu::nvrtc::{self, Usage};

/// Bytes of registers that a kernel may store to memory. What spills more is too much for a thread: make it do less. The
/// most is that of `expert_glu_rows_mxfp4` on sm_120, which nobody has run yet.
const SPILL_BUDGET: u32 = 100;

/// What kernels may take whose groups must lie on one multiprocessor beside those of the kernel behind: with one register more
/// that begins when they have ended, which no test of results sees.
struct RegisterBudget {
    /// Which kernels, by their names.
    is_for: fn(&str) -> bool,
    /// Registers of a thread, at most.
    registers: u32,
    /// A group's threads, and those beside them: a multiprocessor has 65,536 registers for them together.
    beside: &'static str,
}

const REGISTER_BUDGETS: [RegisterBudget; 2] = [
    RegisterBudget {
        is_for: |kernel| kernel == "attention_f16_d64_wide",
        registers: 128,
        beside: "256 threads beside the 512 of a projection",
    },
    RegisterBudget {
        is_for: |kernel| kernel.contains("linear_") && kernel.contains("stream_"),
        registers: 64,
        beside: "512 threads beside the 512 of the next projection",
    },
];

/// Its groups are alone, for lack of group memory.
const ALONE: &str = "sm_120";

/// Compile the kernels for every CUDA architecture. Needs NVRTC 12.9 and no GPU: `pip install nvidia-cuda-nvrtc-cu12==12.9.86`
/// and LD_LIBRARY_PATH at its `nvidia/cuda_nvrtc/lib`
#[derive(Args)]
pub(crate) struct KernelsArgs {
    /// Write nothing; fail where the files in the tree are not what the kernels compile to
    #[arg(long)]
    check: bool,

    /// Print the text that is compiled, and no more
    #[arg(long, conflicts_with = "check")]
    source: bool,

    /// Only architectures whose name begins with this, for example sm_90; nothing is written but for `--try`, and `--check`
    /// looks at these alone
    #[arg(long, value_name = "TARGET", conflicts_with = "source")]
    only: Option<String>,

    /// With `--only`: write what it compiles, to try it on a device. Tests fail until all architectures are made
    #[arg(long = "try", requires = "only", conflicts_with = "check")]
    is_trial: bool,

    /// Every kernel, not only those that spill
    #[arg(long, short)]
    verbose: bool,
}

/// Runs `cargo xtask kernels`.
pub(crate) fn kernels(args: &KernelsArgs) -> Result<()> {
    let text = cuda();
    if args.source {
        print!("{text}");
        return Ok(());
    }
    let folder = folder();
    let is_asked = |target: &str| args.only.as_ref().is_none_or(|only| target.starts_with(only.as_str()));
    let asked: Vec<_> = ARCHITECTURES.iter().filter(|architecture| is_asked(architecture.target)).collect();
    let targets: Vec<_> = asked.iter().map(|architecture| architecture.target).collect();
    let (mut total, mut over) = (0, Vec::new());
    for (architecture, made) in asked.into_iter().zip(compile_all(&text, &targets)) {
        let Made { image, usages } = made?;
        total += image.len();
        println!("{}", summary(architecture.target, image.len(), &usages));
        for usage in &usages {
            if args.verbose || usage.spilled_bytes > 0 {
                println!("  {}", line(usage));
            }
        }
        over.extend(faults(architecture.target, &usages));
        if args.only.is_none() || args.is_trial || args.check {
            keep(&folder.join(architecture.file), &image, args.check)?;
        }
    }
    if !over.is_empty() {
        bail!("too few registers: {}", over.join("; "));
    }
    println!("together {total} bytes");
    if args.only.is_none() {
        keep(&folder.join(SOURCE_HASH_FILE), format!("{:016x}\n", source_hash()).as_bytes(), args.check)?;
    }
    Ok(())
}

/// Where the images are.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/gpu/kernels/cuda")
}

/// What is too much of the kernels for `target`, a sentence each.
fn faults(target: &str, usages: &[Usage]) -> Vec<String> {
    let mut faults = vec![];
    for usage in usages {
        let Usage { kernel, registers, spilled_bytes, is_serialized } = usage;
        if *spilled_bytes > SPILL_BUDGET {
            faults.push(format!("`{kernel}` for {target} spills {spilled_bytes} bytes, {SPILL_BUDGET} may"));
        }
        if *is_serialized {
            faults.push(format!("`{kernel}` for {target} runs its matrix instructions one by one"));
        }
        for budget in REGISTER_BUDGETS.iter().filter(|budget| target != ALONE && (budget.is_for)(kernel)) {
            if *registers > budget.registers {
                let RegisterBudget { registers: most, beside, .. } = budget;
                faults.push(format!("`{kernel}` for {target} takes {registers} registers, {most} may ({beside})"));
            }
        }
    }
    faults
}

/// What the kernels compile to for one architecture.
struct Made {
    image: Vec<u8>,
    usages: Vec<Usage>,
}

/// Compiles for every target, on as many processors as there are; results are in the order of targets.
fn compile_all(text: &str, targets: &[&str]) -> Vec<Result<Made>> {
    let compile = |target: &str| {
        let compiled = nvrtc::compile(text, target)?;
        let usages = compiled.usages();
        Ok(Made { image: compiled.image, usages })
    };
    let mut made: Vec<Option<Result<Made>>> = targets.iter().map(|_| None).collect();
    let queue = Mutex::new(targets.iter().zip(&mut made));
    let take = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some((target, made)) = take() {
                    *made = Some(compile(target));
                }
            });
        }
    });
    made.into_iter().flatten().collect()
}

/// Writes a file of the tree, or fails where it is another.
fn keep(path: &Path, bytes: &[u8], check: bool) -> Result<()> {
    if !check {
        return std::fs::write(path, bytes).with_context(|| format!("cannot write `{}`", path.display()));
    }
    let found = std::fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    if found != bytes {
        bail!("{} is not what the kernels compile to: run `cargo xtask kernels`", path.display());
    }
    Ok(())
}

fn summary(target: &str, bytes: usize, usages: &[Usage]) -> String {
    let mut out = format!("{target}: {bytes} bytes");
    if let Some(most) = usages.iter().max_by_key(|usage| usage.registers) {
        let spilling = usages.iter().filter(|usage| usage.spilled_bytes > 0).count();
        let _ = write!(
            out,
            "; {} kernels, {spilling} spill, most registers {} ({})",
            usages.len(),
            most.registers,
            most.kernel
        );
    }
    out
}

fn line(usage: &Usage) -> String {
    let Usage { kernel, registers, spilled_bytes, .. } = usage;
    format!("{kernel:<40} {registers:>3} registers, {spilled_bytes:>3} bytes spilled")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(kernel: &str, registers: u32) -> Usage {
        Usage { kernel: kernel.to_owned(), registers, spilled_bytes: 0, is_serialized: false }
    }

    #[test]
    fn one_register_more_than_lie_beside_another_kernel_is_refused() {
        for (kernel, most, beside) in [
            ("attention_f16_d64_wide", 128, "256 threads beside the 512 of a projection"),
            ("linear_stream_q8_0", 64, "512 threads beside the 512 of the next projection"),
            ("norm_linear_rope_stream_q4_k_q6_k", 64, "512 threads beside the 512 of the next projection"),
        ] {
            assert!(faults("sm_90a", &[usage(kernel, most)]).is_empty());
            let expected = format!("`{kernel}` for sm_90a takes {} registers, {most} may ({beside})", most + 1);
            assert_eq!(faults("sm_90a", &[usage(kernel, most), usage(kernel, most + 1)]), [expected]);
            assert!(faults(ALONE, &[usage(kernel, 255)]).is_empty());
        }
        assert!(faults("sm_90a", &[usage("attention_f16_d128_wide", 176), usage("linear_f16", 80)]).is_empty());
    }

    #[test]
    fn spills_over_the_budget_and_waits_are_refused() {
        let kernel = |spilled_bytes, is_serialized| Usage { spilled_bytes, is_serialized, ..usage("sample", 40) };
        assert!(faults("sm_80", &[kernel(SPILL_BUDGET, false)]).is_empty());
        assert_eq!(
            faults("sm_80", &[kernel(SPILL_BUDGET + 4, false)]),
            ["`sample` for sm_80 spills 104 bytes, 100 may"]
        );
        let expected = "`sample` for sm_80 runs its matrix instructions one by one";
        assert_eq!(faults("sm_80", &[kernel(0, true)]), [expected]);
    }

    #[test]
    fn the_kernels_in_the_tree_keep_their_budgets_and_every_budget_has_kernels() {
        let mut met = [false; REGISTER_BUDGETS.len()];
        for architecture in ARCHITECTURES.iter().filter(|architecture| architecture.is_machine_code()) {
            let image = std::fs::read(folder().join(architecture.file)).unwrap();
            let usages = nvrtc::Compiled { image, log: String::new() }.usages();
            assert!(usages.len() > 40, "{}: {usages:?}", architecture.target);
            assert_eq!(faults(architecture.target, &usages), Vec::<String>::new());
            for (met, budget) in met.iter_mut().zip(&REGISTER_BUDGETS) {
                *met |= usages.iter().any(|usage| (budget.is_for)(&usage.kernel));
            }
        }
        assert_eq!(met, [true; REGISTER_BUDGETS.len()]);
    }
}
