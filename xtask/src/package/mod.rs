//! `cargo xtask package`: what people install. The same program and the same commit give the same bytes.

mod archive;
mod brew;
mod contents;
mod deb;
mod notices;
mod program;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use self::archive::File;
use self::contents::Contents;
use self::program::Needs;
use crate::sbom;

/// What the program does, on one line.
const SUMMARY: &str = "Runs open-weight language models at the speed of memory";
/// Its licence, as SPDX has it.
const LICENCE: &str = "MIT OR Apache-2.0";
/// The version of all packages.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Make packages of the program: a wheel, a Debian package, pages of man, completions, a formula of Homebrew
#[derive(Args)]
pub(crate) struct PackageArgs {
    /// What to make
    #[arg(value_enum)]
    kind: Kind,

    /// The program to pack [default: target/release/hotmetal, which is built if it is not there]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,

    /// The folder to write to
    #[arg(long, value_name = "FOLDER", default_value = "target/packages")]
    out: PathBuf,

    /// With brew: where the archive of the source will be, without its name [default: a file URL of the output folder, with
    /// which the formula can be tried on this machine]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// For Python's installers: `pip install`, `uvx`
    Wheel,
    /// For Debian and Ubuntu, with a unit of systemd
    Deb,
    /// A page for man(1) of the program and of each command
    Man,
    /// Scripts for bash, zsh and fish
    Completions,
    /// A formula, and the archive of the source that it builds
    Brew,
    /// A program for CPUs that is linked to no library, in a .tar.gz; it is built for x86_64-unknown-linux-musl, which takes
    /// musl-gcc and `rustup target add`
    Musl,
    /// All but musl, which needs a program of its own
    All,
}

/// The target of a program that is linked to no library.
const MUSL: &str = "x86_64-unknown-linux-musl";

/// Runs `cargo xtask package`.
pub(crate) fn package(args: &PackageArgs) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let is = |kind: Kind| args.kind == kind || (args.kind == Kind::All && kind != Kind::Musl);
    ensure!(
        args.url.is_none() || is(Kind::Brew),
        "--url is about the formula: expected `package brew`, or leave it out"
    );
    fs::create_dir_all(&args.out).with_context(|| format!("cannot make the folder {}", args.out.display()))?;
    if is(Kind::Brew) {
        let source = brew::source(&root, VERSION)?;
        let url = match &args.url {
            Some(url) => url.clone(),
            None => format!("file://{}", args.out.canonicalize()?.display()),
        };
        let formula = brew::formula(&source, VERSION, &url);
        write_all(&args.out, &[source, formula])?;
    }
    if args.kind == Kind::Brew {
        return Ok(());
    }
    let binary = binary(&root, args)?;
    contents::check_version(&binary, VERSION)?;
    if is(Kind::Man) {
        write_all(&args.out.join("man"), &contents::pages(&binary)?)?;
    }
    if is(Kind::Completions) {
        write_all(&args.out.join("completions"), &contents::completions(&binary)?)?;
    }
    if is(Kind::Wheel) || is(Kind::Deb) || is(Kind::Musl) {
        let contents = read(&root, &binary).with_context(|| format!("cannot pack {}", binary.display()))?;
        for (kind, pack) in [
            (Kind::Wheel, wheel::wheel as fn(&Contents) -> Result<File>),
            (Kind::Deb, deb::deb),
            (Kind::Musl, static_archive),
        ] {
            if is(kind) {
                write_all(&args.out, &[pack(&contents)?])?;
            }
        }
    }
    Ok(())
}

/// The program that was named, or the one that is built by default.
fn binary(root: &Path, args: &PackageArgs) -> Result<PathBuf> {
    if let Some(binary) = &args.binary {
        return binary.canonicalize().with_context(|| format!("--binary: there is no `{}`", binary.display()));
    }
    let metadata = Command::new("cargo")
        .current_dir(root)
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .output()
        .context("cannot run `cargo`")?;
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).context("`cargo metadata` fails")?;
    let target = metadata["target_directory"].as_str().context("`cargo metadata` names no target folder")?;
    let is_static = args.kind == Kind::Musl;
    let folder = if is_static { Path::new(target).join(MUSL) } else { PathBuf::from(target) };
    let binary = folder.join("release/hotmetal");
    if !binary.exists() {
        println!("{} is not there, and is built", binary.display());
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root).args(["build", "--release", "--locked", "--package", "hotmetal"]);
        if is_static {
            cargo.args(["--target", MUSL]);
        }
        let built = cargo.status().context("cannot run `cargo`")?.success();
        let needs = "`rustup target add x86_64-unknown-linux-musl`, and musl-gcc (Debian: musl-tools)";
        ensure!(
            built,
            "the program cannot be built{}",
            if is_static { format!("; it needs {needs}") } else { String::new() }
        );
    }
    Ok(binary)
}

/// Reads what the packages of `binary` hold.
fn read(root: &Path, binary: &Path) -> Result<Contents> {
    let file = |name: &str| fs::read(root.join(name)).with_context(|| format!("cannot read {name}"));
    let text = |name: &str| Ok::<_, anyhow::Error>(String::from_utf8(file(name)?)?);
    let program = fs::read(binary)?;
    let needs = Needs::of(&program)?;
    let target = match needs.glibc {
        Some(_) => format!("{}-unknown-linux-gnu", needs.machine.name()),
        None => format!("{}-unknown-linux-musl", needs.machine.name()),
    };
    let (bill, crates) = sbom::of_program(root, &target)?;
    let mut licences = contents::own_licences(root)?;
    let copyright = contents::copyright(&licences)?;
    licences.push(File::new("THIRD_PARTY_LICENSES.txt", notices::notices(root, &crates)?));
    Ok(Contents {
        version: VERSION.to_owned(),
        program,
        needs,
        pages: contents::pages(binary)?,
        completions: contents::completions(binary)?,
        licences,
        copyright,
        bill: bill.into(),
        readme: text("README.md")?,
        changelog: file("CHANGELOG.md")?,
        unit: text("packaging/hotmetal.service")?,
        date: archive::source_date(root)?,
    })
}

/// A folder with the program, its pages, completions and licences, for a program that is linked to no library.
fn static_archive(contents: &Contents) -> Result<File> {
    ensure!(
        contents.needs.glibc.is_none(),
        "the program is linked to glibc: `cargo xtask package wheel` or `deb` packs it, and `musl` packs one for {MUSL}"
    );
    let name = format!("hotmetal-{}-{}-unknown-linux-musl", contents.version, contents.needs.machine.name());
    let within = |folder: &str, file: &File| File { path: format!("{name}/{folder}{}", file.path), ..file.clone() };
    let mut files = vec![File::program(format!("{name}/hotmetal"), &contents.program)];
    files.push(File::new(format!("{name}/README.md"), contents.readme.as_bytes()));
    files.extend(contents.licences.iter().map(|file| within("", file)));
    files.push(File::new(format!("{name}/hotmetal.cdx.json"), &contents.bill[..]));
    files.extend(contents.completions.iter().map(|file| within("completions/", file)));
    files.extend(contents.pages.iter().map(|file| within("man/", file)));
    Ok(File::new(format!("{name}.tar.gz"), archive::tar_gz(&files, contents.date)?))
}

/// Writes files and says each with its size.
fn write_all(folder: &Path, files: &[File]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    for file in files {
        let path = folder.join(&file.path);
        fs::write(&path, &file.bytes).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}: {} bytes", path.display(), file.bytes.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_program_is_packed_with_its_licences_and_another_is_refused() {
        let mut contents = contents::tests::small();
        let error = static_archive(&contents).unwrap_err().to_string();
        assert!(error.contains("linked to glibc"), "{error}");
        contents.needs.glibc = None;
        let archive = static_archive(&contents).unwrap();
        assert_eq!(archive.path, "hotmetal-1.2.3-x86_64-unknown-linux-musl.tar.gz");
        assert_eq!(archive.bytes, static_archive(&contents).unwrap().bytes);
        let files = archive::tests::unpacked(&archive.bytes);
        let mode = |name: &str| {
            let path = format!("hotmetal-1.2.3-x86_64-unknown-linux-musl/{name}");
            files.iter().find(|(found, ..)| *found == path).map(|(_, mode, _)| *mode)
        };
        assert_eq!(mode("hotmetal"), Some(0o755));
        for name in ["LICENSE-MIT", "THIRD_PARTY_LICENSES.txt", "man/hotmetal.1", "completions/_hotmetal"] {
            assert_eq!(mode(name), Some(0o644), "{name}");
        }
    }
}
