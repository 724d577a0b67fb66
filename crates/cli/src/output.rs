//! Data to stdout, everything else to stderr. A reader that goes away (`hotmetal run | head`) ends the program quietly.

use std::io::{self, Write};

/// Why nothing more can be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    /// Whoever read our output has gone: nobody is left to tell.
    #[error("the reader of the output went away")]
    ReaderGone,
    /// Anything else, such as a full disk behind a redirection.
    #[error("cannot write the output: {0}; is the disk full?")]
    Failed(io::Error),
}

impl From<io::Error> for OutputError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::ReaderGone } else { Self::Failed(error) }
    }
}

/// Writes `text` to stdout at once, so that a stream reads as it comes.
pub(crate) fn stdout(text: &str) -> Result<(), OutputError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes a line to stderr. A closed stderr is nobody's loss.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
