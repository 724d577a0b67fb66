//! `cargo xtask check-macos`: type-checks what is compiled on macOS alone, on any machine. Nothing is linked or run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

const TARGET: &str = "aarch64-apple-darwin";

/// Type-check and lint the code for macOS: the Metal driver with every set of features, and the whole program. Fetches
/// Rust's libraries for that system; says so and does nothing where they cannot be had
#[derive(Args)]
pub(crate) struct CheckMacosArgs {
    /// Fail where Rust's libraries for macOS cannot be had
    #[arg(long)]
    required: bool,
}

/// Runs `cargo xtask check-macos`.
pub(crate) fn check_macos(args: &CheckMacosArgs) -> Result<()> {
    if !has_libraries()? {
        // It is not there on machines whose Rust is their system's.
        let added = Command::new("rustup").args(["target", "add", TARGET]).status();
        if !added.is_ok_and(|status| status.success()) || !has_libraries()? {
            ensure!(!args.required, "Rust's libraries for {TARGET} cannot be had here");
            println!("skipped: Rust's libraries for {TARGET} cannot be had here");
            return Ok(());
        }
    }
    let tools = Tools::write(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/macos"))?;
    for features in ["built_kernels,src_kernels", "built_kernels", "src_kernels"] {
        println!("gpu, {features}");
        // Apple's compiler is not here, and a library that it made is only included.
        tools.clippy(&["-p", "gpu", "--no-default-features", "--features", features], true)?;
    }
    println!("gpu, as where Apple's compiler is missing");
    tools.clippy(&["-p", "gpu"], false)?;
    println!("the program");
    tools.clippy(&["-p", "hotmetal"], false)
}

fn has_libraries() -> Result<bool> {
    let mut command = Command::new("rustc");
    let output =
        command.args(["--print", "target-libdir", "--target", TARGET]).output().context("rustc cannot be run")?;
    ensure!(output.status.success(), "rustc knows no {TARGET}");
    Ok(Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

/// What stands for tools of macOS where only types are checked: dependencies have C and assembly, which are not needed then.
struct Tools {
    compiler: PathBuf,
    archiver: PathBuf,
    metallib: PathBuf,
}

impl Tools {
    fn write(folder: &Path) -> Result<Self> {
        let tools = Self {
            compiler: folder.join("compiler"),
            archiver: folder.join("archiver"),
            metallib: folder.join("empty.metallib"),
        };
        std::fs::create_dir_all(folder)?;
        // Each leaves an empty file where its result would be.
        write_script(&tools.compiler, "while [ $# -gt 0 ]; do [ \"$1\" = -o ] && : > \"$2\"; shift; done; true")?;
        write_script(&tools.archiver, "for file; do case \"$file\" in *.a) : > \"$file\";; esac; done")?;
        std::fs::write(&tools.metallib, b"")?;
        Ok(tools)
    }

    /// Checks and lints for macOS; warnings are errors.
    fn clippy(&self, args: &[&str], has_metallib: bool) -> Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.arg("clippy").args(args).args(["--target", TARGET, "--locked", "--quiet"]);
        command.env("CC_aarch64_apple_darwin", &self.compiler).env("AR_aarch64_apple_darwin", &self.archiver);
        // Where macOS has its headers: nothing looks into it.
        command.env("SDKROOT", "/");
        if has_metallib {
            command.env("HOTMETAL_METALLIB", &self.metallib);
        }
        command.args(["--", "-D", "warnings"]);
        if !command.status().context("cargo cannot be run")?.success() {
            bail!("the code for macOS does not pass: cargo clippy {} --target {TARGET}", args.join(" "));
        }
        Ok(())
    }
}

fn write_script(path: &Path, line: &str) -> Result<()> {
    std::fs::write(path, format!("#!/bin/sh\n{line}\n"))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}
