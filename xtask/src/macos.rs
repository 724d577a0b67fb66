//! `cargo xtask check-macos`: type-checks what is compiled on macOS alone, on any machine. Nothing is linked or run.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

const TARGET: &str = "aarch64-apple-darwin";

/// Fetches Debian's compiler with all that it is linked to, and its sources, and unpacks them beside this folder.
const UNPACK: &str = r#"
    apt-get -qq update
    libraries=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
        --no-enhances rustc-web | grep -oE '^(libllvm|libstd-rust-web-)[0-9.]+$' | sort -u)
    apt-get -qq download rustc-web libstd-rust-web-dev rust-web-src $libraries || exit 1
    for package in *.deb; do dpkg -x "$package" unpacked || exit 1; done
    mv unpacked ../debian
"#;

/// Type-check the code for macOS: the Metal driver with every set of features, and the whole program. Takes Rust's
/// libraries for that system from rustup, with lints; or else Debian's compiler and its sources, for the driver alone. Where
/// neither can be had, it says so and checks nothing
#[derive(Args)]
pub(crate) struct CheckMacosArgs {
    /// Fail where there is no compiler for macOS
    #[arg(long)]
    required: bool,

    /// Debian's compiler, whatever rustup has
    #[arg(long)]
    debian: bool,
}

/// Runs `cargo xtask check-macos`.
pub(crate) fn check_macos(args: &CheckMacosArgs) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/macos");
    std::fs::create_dir_all(&folder)?;
    let folder = folder.canonicalize()?;
    let from_rustup = if args.debian { None } else { Compiler::from_rustup() };
    let Some(compiler) = from_rustup.or_else(|| Compiler::from_debian(&folder)) else {
        ensure!(!args.required, "no compiler for {TARGET} can be had here");
        println!("skipped: no compiler for {TARGET} can be had here");
        return Ok(());
    };
    println!("{}", if compiler.of_debian.is_some() { "Debian's compiler" } else { "rustup's compiler, with lints" });
    let tools = Tools::write(&folder)?;
    for features in ["built_kernels,src_kernels", "built_kernels", "src_kernels"] {
        println!("gpu, {features}");
        // Apple's compiler is not here, and a library that it made is only included.
        tools.check(&compiler, &["-p", "gpu", "--no-default-features", "--features", features], true)?;
    }
    println!("gpu, as where Apple's compiler is missing");
    tools.check(&compiler, &["-p", "gpu"], false)?;
    if compiler.of_debian.is_some() {
        // It would be built from the ground up, by a compiler that is used for nothing else.
        return Ok(());
    }
    println!("the program");
    tools.check(&compiler, &["-p", "hotmetal"], false)
}

/// What knows the target.
struct Compiler {
    /// The folder that Debian's packages were unpacked to.
    of_debian: Option<PathBuf>,
}

impl Compiler {
    /// The toolchain of this repository, with the libraries for the target.
    fn from_rustup() -> Option<Self> {
        let has_libraries = || {
            let output = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output();
            output.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
        };
        if !has_libraries() {
            // It is not there on machines whose Rust is their system's, and without network it fails.
            let _ = Command::new("rustup").args(["target", "add", TARGET]).status();
        }
        has_libraries().then_some(Self { of_debian: None })
    }

    /// The compiler and the sources of its libraries that Debian packs for its browsers: one version of both.
    fn from_debian(folder: &Path) -> Option<Self> {
        let root = folder.join("debian");
        if !root.join("usr/bin/rustc").exists() {
            let packed = folder.join("packed");
            std::fs::create_dir_all(&packed).ok()?;
            let status = Command::new("sh").arg("-c").arg(UNPACK).current_dir(&packed).status();
            status.ok().filter(ExitStatus::success)?;
        }
        Some(Self { of_debian: Some(root) })
    }

    /// Cargo, to check for the target.
    fn cargo(&self, args: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let common = ["--target", TARGET, "--locked", "--quiet"];
        match &self.of_debian {
            None => command.arg("clippy").args(args).args(common).args(["--", "-D", "warnings"]),
            Some(root) => {
                command.arg("check").args(args).args(common).arg("-Zbuild-std=std,panic_abort");
                command.env("RUSTC", root.join("usr/bin/rustc")).env("RUSTC_BOOTSTRAP", "1");
                command.env("LD_LIBRARY_PATH", root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH)));
                // Another compiler's results are of no use to this one.
                command.env("CARGO_TARGET_DIR", root.with_file_name("target"))
            }
        };
        command
    }
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
        // Each leaves an empty file where its result would be.
        write_script(&tools.compiler, "while [ $# -gt 0 ]; do [ \"$1\" = -o ] && : > \"$2\"; shift; done; true")?;
        write_script(&tools.archiver, "for file; do case \"$file\" in *.a) : > \"$file\";; esac; done")?;
        std::fs::write(&tools.metallib, b"")?;
        Ok(tools)
    }

    /// Checks for macOS; with lints, warnings are errors.
    fn check(&self, compiler: &Compiler, args: &[&str], has_metallib: bool) -> Result<()> {
        let mut command = compiler.cargo(args);
        command.env("CC_aarch64_apple_darwin", &self.compiler).env("AR_aarch64_apple_darwin", &self.archiver);
        // Where macOS has its headers: nothing looks into it.
        command.env("SDKROOT", "/");
        if has_metallib {
            command.env("HOTMETAL_METALLIB", &self.metallib);
        }
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
