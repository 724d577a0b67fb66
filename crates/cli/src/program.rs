//! This program, started again as a process of its own.

use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result};

/// How a process of this program ended, and what it said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Whether it ended with 0.
    pub(crate) ok: bool,
    /// How it ended, in words.
    pub(crate) ended: String,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Why it failed: its own last words, if it had any.
    pub(crate) fn why(&self) -> String {
        let error = self.stderr.lines().rev().find(|line| line.starts_with("error: "));
        let last = || self.stderr.lines().rev().find(|line| !line.trim().is_empty());
        match error.map(|line| &line["error: ".len()..]).or_else(last) {
            Some(words) => format!("{}: {words}", self.ended),
            None => self.ended.clone(),
        }
    }
}

/// Runs this program with `args`.
pub(crate) fn run(args: &[String]) -> Result<Outcome> {
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.context("this program cannot be started again")?;
    Ok(Outcome {
        ok: output.status.success(),
        ended: ended(output.status),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// How a process ended, in words.
fn ended(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("killed by signal {signal}");
    }
    match status.code() {
        Some(0) => "passed".to_owned(),
        Some(code) => format!("failed with {code}"),
        None => "failed".to_owned(),
    }
}
