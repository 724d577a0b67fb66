//! Malformed files, each with its exact message. The files are built here, by name, so that each one says what is
//! wrong with it; the snapshots beside this file are the messages as a user reads them.

mod folder;
mod gguf;
mod raw;
mod safetensors;
#[path = "../valid/mod.rs"]
mod valid;

use std::{error::Error, fmt::Write};

use bytes::Bytes;
use formats::{Checkpoint, FormatError};

/// One line per case: its name and the chain of messages.
struct Report(String);

impl Report {
    fn new() -> Self {
        Self(String::new())
    }

    /// Opens the files as a checkpoint and reads every tensor in it: something of that must fail.
    fn refuses(&mut self, what: &str, files: &[(&str, Bytes)]) {
        let outcome = Checkpoint::from_bytes(files, &valid::ARCHITECTURES)
            .and_then(|checkpoint| checkpoint.tensor_names().try_for_each(|name| checkpoint.tensor(name).map(|_| ())));
        self.error(what, &outcome.expect_err(what));
    }

    fn error(&mut self, what: &str, error: &FormatError) {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            write!(message, ": {error}").unwrap();
            cause = error.source();
        }
        assert!(!message.contains('\n'), "{what}: a message is one line");
        writeln!(self.0, "{what}\n    {message}").unwrap();
    }
}
