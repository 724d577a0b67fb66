//! `cargo xtask kernels`: compiles the kernels for every CUDA architecture that the binary carries, and writes them to
//! `crates/gpu/kernels/cuda`. Says what each kernel takes of the registers, and fails where one spills over the budget
//! or, for lack of them, waits for each matrix instruction.

use std::fmt::Write;
use std::num::NonZero;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail};
use clap::Args;
use gpu::kernel_source::{ARCHITECTURES, SOURCE_HASH_FILE, cuda, source_hash};
use gpu::nvrtc::{self, Usage};

/// Bytes of registers that a kernel may store to memory. What spills more is too much for a thread: make it do less.
const SPILL_BUDGET: u32 = 72;

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

    /// Only architectures whose name begins with this, for example sm_90; nothing is written but for `--try`
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
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/gpu/kernels/cuda");
    let is_asked = |target: &str| args.only.as_ref().is_none_or(|only| target.starts_with(only.as_str()));
    let asked: Vec<_> = ARCHITECTURES.iter().filter(|architecture| is_asked(architecture.target)).collect();
    let targets: Vec<_> = asked.iter().map(|architecture| architecture.target).collect();
    let (mut total, mut over) = (0, Vec::new());
    for (architecture, made) in asked.into_iter().zip(compile_all(&text, &targets)) {
        let Made { image_len, packed, usages } = made?;
        total += packed.len();
        println!("{}", summary(architecture.target, image_len, packed.len(), &usages));
        for usage in &usages {
            if args.verbose || usage.spilled_bytes > 0 {
                println!("  {}", line(usage));
            }
            if usage.spilled_bytes > SPILL_BUDGET {
                over.push(format!("{} for {} spills {} bytes", usage.kernel, architecture.target, usage.spilled_bytes));
            }
            if usage.is_serialized {
                over.push(format!(
                    "{} for {} runs its matrix instructions one by one",
                    usage.kernel, architecture.target
                ));
            }
        }
        if args.only.is_none() || args.is_trial {
            keep(&folder.join(architecture.file), &packed, args.check)?;
        }
    }
    if !over.is_empty() {
        bail!("too few registers (a budget of {SPILL_BUDGET} bytes may spill): {}", over.join(", "));
    }
    println!("together {total} bytes");
    if args.only.is_none() {
        keep(&folder.join(SOURCE_HASH_FILE), format!("{:016x}\n", source_hash()).as_bytes(), args.check)?;
    }
    Ok(())
}

/// What the kernels compile to for one architecture.
struct Made {
    image_len: usize,
    packed: Vec<u8>,
    usages: Vec<Usage>,
}

/// Compiles for every target, on as many processors as there are; results are in the order of targets.
fn compile_all(text: &str, targets: &[&str]) -> Vec<Result<Made>> {
    let compile = |target: &str| {
        let compiled = nvrtc::compile(text, target)?;
        let packed = miniz_oxide::deflate::compress_to_vec(&compiled.image, 9);
        Ok(Made { image_len: compiled.image.len(), packed, usages: compiled.usages() })
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

fn summary(target: &str, bytes: usize, packed: usize, usages: &[Usage]) -> String {
    let mut out = format!("{target}: {bytes} bytes, {packed} packed");
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
