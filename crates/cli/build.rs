//! Tells the binary which source and compiler it was built from, so that a figure of `hotmetal bench` says what it
//! measured. The same checkout gives the same binary; without git or outside a checkout there is just no commit.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=HOTMETAL_COMMIT");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    if let Some(version) = output(Command::new(rustc).arg("--version")) {
        println!("cargo::rustc-env=HOTMETAL_RUSTC={version}");
    }
    // Sources first: with any line of this kind, cargo runs this program for the paths named only.
    println!("cargo::rerun-if-changed=build.rs");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if std::env::var_os("HOTMETAL_COMMIT").is_some() || !root.join(".git").exists() {
        return;
    }
    let git = |args: &[&str]| output(Command::new("git").arg("-C").arg(&root).args(args));
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return };
    // The branch moves, or another is checked out: `logs/HEAD` changes in both cases.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--path-format=absolute", "--git-path", name]);
        // A path that does not exist would count as changed each time.
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    // An edited source is compiled again in any case; then it is also seen here.
    let folders = std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    for source in folders.map(|folder| folder.path().join("src")).filter(|source| source.exists()) {
        println!("cargo::rerun-if-changed={}", source.display());
    }
    let is_edited = git(&["status", "--porcelain", "--untracked-files=no", "--", "crates", "Cargo.lock"]);
    let mark = if is_edited.is_some() { "+" } else { "" };
    println!("cargo::rustc-env=HOTMETAL_COMMIT={commit}{mark}");
}

/// What the program prints, trimmed; `None` if it fails or prints nothing.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
