//! The binary as a process, for the tests of its commands.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// A cache of this test program's own, which is empty when the first of its tests begins: in the user's lies what other
/// programs measured, and a program says so.
fn cache() -> &'static Path {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    CACHE.get_or_init(|| {
        let program = std::env::current_exe().expect("this program has a path");
        let name = program.file_name().expect("of a file");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("caches").join(name);
        // It is not there the first time.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("room for a folder");
        folder
    })
}

/// Runs it offline, with nothing to read.
pub(crate) fn output(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmetal"));
    let command = command.args(args).stdin(Stdio::null()).env("HF_HUB_OFFLINE", "1").env("XDG_CACHE_HOME", cache());
    command.output().expect("the binary starts")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

/// Runs, expects success with nothing on stderr, and returns stdout.
pub(crate) fn succeed(args: &[&str]) -> String {
    let output = output(args);
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    assert_eq!(stderr, "", "{args:?}: no bar where nobody sees it");
    text(&output.stdout)
}
