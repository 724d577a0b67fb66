//! The binary as a process, for the tests of its commands.

use std::process::{Command, Output, Stdio};

/// Runs it offline, with nothing to read.
pub(crate) fn output(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmetal"));
    command.args(args).stdin(Stdio::null()).env("HF_HUB_OFFLINE", "1").output().expect("the binary starts")
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
