//! Writing the file: beside its name first, tensor by tensor, and on from where an interrupted run came to.
//!
//! Layout    `.NAME.partial` is the file so far; `.NAME.journal` has a line of JSON for what is being made, then one for each
//!           tensor whose bytes are on the disk. Of a run for something else, both are thrown away.

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result};
use formats::gguf::GgufWriter;
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Loss;
use super::source::file_len;
use crate::output::note;

/// A file to be written.
pub(super) struct Work<'a> {
    pub(super) path: &'a Path,
    pub(super) writer: &'a GgufWriter,
    /// What tensors lost so far; those of an interrupted run are added.
    pub(super) losses: &'a Rc<RefCell<Vec<Loss>>>,
    /// What the bytes of tensors follow from.
    pub(super) identity: String,
}

/// A line of the journal.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The first: what is being made.
    Of(String),
    /// A tensor is written, and what it lost, if it was converted.
    Tensor { index: usize, loss: Option<Loss> },
}

impl Work<'_> {
    /// Writes the file, has it checked, and gives it its name.
    pub(super) fn write(&self, progress: &ProgressBar, check: impl Fn(&Path) -> Result<()>) -> Result<()> {
        let (partial, journal) = (self.beside("partial")?, self.beside("journal")?);
        let written = self.write_partial(&partial, &journal).and_then(|()| {
            progress.set_message("checking");
            check(&partial)
        });
        match written {
            Ok(()) => {
                fs::rename(&partial, self.path)?;
                let _ = fs::remove_file(&journal);
                Ok(())
            }
            Err(error) => {
                // What is wrong with the source stays wrong. A full disk does not.
                let is_of_disk =
                    error.downcast_ref().is_some_and(|e: &io::Error| e.kind() != io::ErrorKind::InvalidData);
                if is_of_disk {
                    return Err(error.context("it is continued by the same command"));
                }
                // Best effort: the error that matters is the one above.
                let _ = fs::remove_file(&partial);
                let _ = fs::remove_file(&journal);
                Err(error)
            }
        }
    }

    fn beside(&self, ending: &str) -> Result<PathBuf> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = self.path.file_name().and_then(|name| name.to_str()).context("it has no file name")?;
        Ok(folder.join(format!(".{name}.{ending}")))
    }

    /// What is made: the header and the identity of the source.
    fn described(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.writer.header());
        hash.update(&self.identity);
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Tensors of an interrupted run whose bytes are there, with what they lost.
    fn interrupted(&self, partial: &Path, journal: &Path, described: &str) -> Vec<Option<Loss>> {
        let Ok(text) = fs::read_to_string(journal) else { return Vec::new() };
        let mut lines = text.lines().map_while(|line| serde_json::from_str::<Line>(line).ok());
        if !matches!(lines.next(), Some(Line::Of(found)) if found == described) {
            return Vec::new();
        }
        let len = file_len(partial);
        let mut losses = Vec::new();
        for line in lines {
            match line {
                Line::Tensor { index, loss } if index == losses.len() && self.writer.bytes_before(index + 1) <= len => {
                    losses.push(loss);
                }
                _ => break,
            }
        }
        losses
    }

    fn write_partial(&self, partial: &Path, journal: &Path) -> Result<()> {
        let described = self.described();
        let before = self.interrupted(partial, journal, &described);
        let first = before.len();
        let file = OpenOptions::new().write(true).create(true).truncate(first == 0).open(partial)?;
        let mut lines = if first == 0 {
            let mut lines = File::create(journal)?;
            writeln!(lines, "{}", serde_json::to_string(&Line::Of(described))?)?;
            lines
        } else {
            note(&format!("{first} tensors were written by a run that was interrupted"));
            self.losses.borrow_mut().extend(before.iter().flatten().cloned());
            // A line that was cut off stays out.
            let mut lines = File::create(journal)?;
            writeln!(lines, "{}", serde_json::to_string(&Line::Of(described))?)?;
            for (index, loss) in before.into_iter().enumerate() {
                writeln!(lines, "{}", serde_json::to_string(&Line::Tensor { index, loss })?)?;
            }
            lines
        };
        let mut out = BufWriter::with_capacity(1 << 20, file);
        if first > 0 {
            let start = self.writer.bytes_before(first);
            out.get_ref().set_len(start)?;
            out.seek(SeekFrom::Start(start))?;
        }
        self.writer.write_from(first, &mut out, &mut |out, index| {
            // The bytes first, then the line that says that they are there.
            out.flush()?;
            out.get_ref().sync_data()?;
            let loss = self.losses.borrow().last().cloned().filter(|loss| self.writer.name(index) == Some(&loss.name));
            writeln!(lines, "{}", serde_json::to_string(&Line::Tensor { index, loss })?)
        })?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(())
    }
}
