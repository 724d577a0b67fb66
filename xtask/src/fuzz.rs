//! `cargo xtask fuzz`: builds the fuzz targets and runs them one after the other.
//!
//! libFuzzer needs a compiler that counts edges and a sanitizer. The toolchain of this repository has both, behind
//! options that only `RUSTC_BOOTSTRAP` unlocks, so neither a nightly toolchain nor `cargo-fuzz` has to be installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

/// What a target may take, beside what all share.
struct Target {
    name: &'static str,
    /// Bytes of an input.
    len_max: u32,
    /// MiB of one allocation: no allocation is out of proportion to such inputs.
    malloc_limit_mb: u32,
    /// Seconds that one input may take.
    timeout: u32,
}

const fn target(name: &'static str, len_max: u32, malloc_limit_mb: u32, timeout: u32) -> Target {
    Target { name, len_max, malloc_limit_mb, timeout }
}

const TARGETS: &[Target] = &[
    target("gguf_header", 16 << 10, 64, 10),
    target("safetensors_header", 16 << 10, 64, 10),
    target("model_open", 16 << 10, 64, 10),
    target("stream", 4 << 10, 16, 10),
    target("grammar", 16 << 10, 512, 60),
    target("tokenizer", 16 << 10, 64, 10),
    target("template", 16 << 10, 64, 10),
    target("quant_blocks", 4 << 10, 16, 10),
    target("http", 8 << 10, 512, 40),
    target("traces", 2 << 10, 16, 10),
];

/// What libFuzzer needs: counters at edges, the values that are compared, and an allocator that sees bad accesses.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Ccodegen-units=1";

/// What is freed stays unusable until 8 MiB more are freed, and not 256: such a queue pushes all else out of the
/// processor's caches. Stacks of allocations and the search for uses of frames after their function's return cost a
/// tenth to a third of the time; all crates of this repository that the targets reach forbid `unsafe`. An input that
/// fails can be given to the target without these options.
const ASAN_OPTIONS: &str =
    "detect_odr_violation=0:quarantine_size_mb=8:malloc_context_size=0:detect_stack_use_after_return=0";

/// Build the fuzz targets with the address sanitizer and run them one after the other, from their seeds and past
/// crashes. A run ends with its row for the table in `fuzz/README.md`; an input that fails is left in
/// `fuzz/artifacts/<target>`
#[derive(Args)]
pub(crate) struct FuzzArgs {
    /// The targets to run; all of them where none is named
    targets: Vec<String>,

    /// How long each target runs
    #[arg(long, default_value_t = 15)]
    seconds: u64,

    /// Where libFuzzer's random numbers begin
    #[arg(long, default_value_t = 1)]
    seed: u32,

    /// Bytes of an input, where that is less than the target takes: more inputs in the same time, and shorter ones
    #[arg(long)]
    max_len: Option<u32>,

    /// Keep the inputs that reach new code in `fuzz/corpus/<target>`, and begin with those that are there
    #[arg(long)]
    corpus: bool,
}

/// Runs `cargo xtask fuzz`.
pub(crate) fn fuzz(args: &FuzzArgs) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz").canonicalize()?;
    let known = |name: &String| TARGETS.iter().any(|target| target.name == name);
    if let Some(unknown) = args.targets.iter().find(|name| !known(name)) {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        bail!("`{unknown}` is no fuzz target; there are {}", names.join(", "));
    }
    let asked = |target: &&Target| args.targets.is_empty() || args.targets.iter().any(|name| name == target.name);
    let targets: Vec<&Target> = TARGETS.iter().filter(asked).collect();
    let binaries = build(&folder, &targets)?;
    for target in targets {
        run(&folder, &binaries.join(target.name), target, args)?;
    }
    Ok(())
}

/// Builds what is asked for; returns the folder of the programs.
fn build(folder: &Path, targets: &[&Target]) -> Result<PathBuf> {
    let begun = Instant::now();
    let version = Command::new("rustc").arg("-vV").output().context("cannot run `rustc`")?;
    let version = String::from_utf8(version.stdout)?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("`rustc -vV` names no host")?;
    let mut cargo = Command::new("cargo");
    // Naming the target keeps the options away from build scripts.
    cargo.current_dir(folder).args(["build", "--release", "--locked", "--quiet", "--target", host]);
    for target in targets {
        cargo.args(["--bin", target.name]);
    }
    cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", RUSTFLAGS);
    let target_folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| folder.join("target"), PathBuf::from);
    cargo.env("CARGO_TARGET_DIR", &target_folder);
    ensure!(cargo.status()?.success(), "the fuzz targets cannot be built; cargo says above why");
    println!("built in {} s", begun.elapsed().as_secs());
    Ok(target_folder.join(host).join("release"))
}

fn run(folder: &Path, binary: &Path, target: &Target, args: &FuzzArgs) -> Result<()> {
    let name = target.name;
    let artifacts = folder.join("artifacts").join(name);
    fs::create_dir_all(&artifacts)?;
    let mut fuzzer = Command::new(binary);
    fuzzer.arg(format!("-max_total_time={}", args.seconds)).arg(format!("-seed={}", args.seed));
    let len_max = args.max_len.map_or(target.len_max, |len| len.min(target.len_max));
    fuzzer.arg(format!("-max_len={len_max}")).arg(format!("-malloc_limit_mb={}", target.malloc_limit_mb));
    fuzzer.arg(format!("-timeout={}", target.timeout)).args(["-rss_limit_mb=2048", "-print_final_stats=1"]);
    // Without it, the few inputs that take seconds take nearly all of the time.
    fuzzer.arg("-entropic_scale_per_exec_time=1");
    // Each name of new code starts a program that reads all symbols, for a log that nobody reads.
    fuzzer.arg("-print_funcs=0");
    fuzzer.arg(format!("-artifact_prefix={}/", artifacts.display()));
    let words = folder.join("dictionaries").join(name);
    if words.exists() {
        fuzzer.arg(format!("-dict={}", words.display()));
    }
    if args.corpus {
        let corpus = folder.join("corpus").join(name);
        fs::create_dir_all(&corpus)?;
        fuzzer.arg(corpus);
    } else {
        // What comes first is where new inputs are written.
        let new = artifacts.join("new");
        let _ = fs::remove_dir_all(&new);
        fs::create_dir_all(&new)?;
        fuzzer.arg(new);
    }
    let given = ["seeds", "crashes"].map(|kind| folder.join(kind).join(name));
    fuzzer.args(given.iter().filter(|folder| folder.is_dir()));
    fuzzer.stdout(Stdio::null()).stderr(Stdio::piped()).env("ASAN_OPTIONS", ASAN_OPTIONS);
    let begun = Instant::now();
    let output = fuzzer.output().with_context(|| format!("cannot run {}", binary.display()))?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let lines: Vec<&str> = log.lines().collect();
        println!("{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        bail!("`{name}` fails; its input is in {}", artifacts.display());
    }
    let mut from = format!("{}, seed {}", if args.corpus { "the corpus" } else { "seeds" }, args.seed);
    if len_max < target.len_max {
        from += &format!(", at most {len_max} bytes");
    }
    println!("{}", row(name, &revision(), &from, begun.elapsed().as_secs(), &log));
    Ok(())
}

/// The commit that the working tree is based on.
fn revision() -> String {
    let output = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let revision = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    revision.ok().filter(|revision| !revision.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

/// A row for the table in `fuzz/README.md`, from what libFuzzer prints at the end.
fn row(name: &str, revision: &str, from: &str, seconds: u64, log: &str) -> String {
    let last = log.lines().rev().find(|line| line.contains(" cov: ")).unwrap_or_default();
    let words: Vec<&str> = last.split_whitespace().collect();
    let behind = |word: &str| {
        let place = words.iter().position(|found| *found == word);
        place.and_then(|place| words.get(place + 1)).map_or("?", |found| found.split('/').next().unwrap_or("?"))
    };
    let stat = log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let executions: u64 = stat.and_then(|executions| executions.trim().parse().ok()).unwrap_or(0);
    let per_second = executions / seconds.max(1);
    let (edges, features, kept) = (behind("cov:"), behind("ft:"), behind("corp:"));
    format!(
        "| `{name}` | `{revision}` | {from} | {seconds} | {executions} | {per_second} | {edges} | {features} | {kept} |"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_the_fuzzer_said() {
        let log = "INFO: Loaded\n#2\tINITED cov: 11 ft: 12 corp: 1/1b\n\
                   #9\tDONE   cov: 40 ft: 90 corp: 7/33Kb lim: 4 exec/s: 3\nstat::number_of_executed_units: 9\n";
        let row = row("stream", "abc", "seeds, seed 5", 3, log);
        assert_eq!(row, "| `stream` | `abc` | seeds, seed 5 | 3 | 9 | 3 | 40 | 90 | 7 |");
    }

    /// A target that is built, run here and replayed by no test would rot.
    #[test]
    fn every_target_is_run() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/fuzz_targets");
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut files: Vec<String> = files.map(|file| file.trim_end_matches(".rs").to_owned()).collect();
        let mut names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        files.sort();
        names.sort_unstable();
        assert_eq!(files, names);
    }
}
