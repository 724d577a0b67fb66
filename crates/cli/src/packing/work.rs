//! Writing the file: beside its name first, tensor by tensor, and on from where an interrupted run came to.
//!
//! Layout    `.NAME.partial` is the file so far; `.NAME.journal` has a line of JSON for what is being made, then one
//!           for each tensor whose bytes are on the disk. Of a run for something else, both are thrown away.

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result};
use formats::SafetensorsWriter;
use formats::gguf::GgufWriter;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::loss::Loss;
use super::source::file_len;
use crate::output::note;
use crate::units;

/// Bytes of tensors that are brought to the disk together: waiting for it after each of 50,000 small ones takes
/// minutes. An interrupted run writes so many again.
const SYNC_BYTES: u64 = 1 << 18;

/// Hears of each tensor that was written, by its index.
type Done<'a> = dyn FnMut(&mut BufWriter<File>, usize) -> io::Result<()> + 'a;

/// What goes into a file, of either container.
pub(super) trait TensorFile {
    /// Everything before the data.
    fn header(&self) -> Vec<u8>;
    /// Bytes of the file before the data of each tensor, and all of them at the end.
    fn offsets(&self) -> Vec<u64>;
    /// Tensors.
    fn len(&self) -> usize;
    /// Writes the file from a tensor on, where what is before it is written already: none for 0.
    fn write_from(&self, first: usize, out: &mut BufWriter<File>, done: &mut Done<'_>) -> io::Result<()>;
}

/// Both writers have these by the same names.
macro_rules! tensor_file {
    ($($writer:ty),*) => {$(
        impl TensorFile for $writer {
            fn header(&self) -> Vec<u8> {
                self.header()
            }

            fn offsets(&self) -> Vec<u64> {
                self.offsets()
            }

            fn len(&self) -> usize {
                self.len()
            }

            fn write_from(&self, first: usize, out: &mut BufWriter<File>, done: &mut Done<'_>) -> io::Result<()> {
                self.write_from(first, out, done)
            }
        }
    )*};
}
tensor_file!(GgufWriter, SafetensorsWriter);

/// `.NAME.ending` beside `path`.
pub(super) fn beside(path: &Path, ending: &str) -> Result<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().and_then(|name| name.to_str()).context("it has no file name")?;
    Ok(folder.join(format!(".{name}.{ending}")))
}

/// Whether an error is one of writing, and not of what is read: the same command may go on later.
pub(super) fn is_of_disk(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(|e: &io::Error| e.kind() != io::ErrorKind::InvalidData)
}

/// A bar that counts bytes of the source.
pub(super) fn progress_bar(bytes: u64) -> ProgressBar {
    ProgressBar::new(bytes).with_style(
        ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes}, {eta} left, {msg}").expect("a valid template"),
    )
}

/// A file to be written.
pub(super) struct Work<'a> {
    pub(super) path: &'a Path,
    pub(super) writer: &'a dyn TensorFile,
    /// What tensors lost so far; those of an interrupted run are added.
    pub(super) losses: &'a Rc<RefCell<Vec<Loss>>>,
    /// What the bytes of tensors follow from.
    pub(super) identity: String,
    /// Whether it is one of several files: its journal stays, and tells a later run that it is whole.
    pub(super) is_part: bool,
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
        let (partial, journal) = (beside(self.path, "partial")?, beside(self.path, "journal")?);
        if self.is_part && self.path.exists() {
            let before = self.interrupted(self.path, &journal, &self.described());
            if before.len() == self.writer.len() {
                self.losses.borrow_mut().extend(before.into_iter().flatten());
                return Ok(());
            }
        }
        let written = self.write_partial(&partial, &journal).and_then(|()| {
            progress.set_message("checking");
            check(&partial)
        });
        match written {
            Ok(()) => {
                fs::rename(&partial, self.path)?;
                if !self.is_part {
                    let _ = fs::remove_file(&journal);
                }
                Ok(())
            }
            Err(error) => {
                // What is wrong with the source stays wrong. A full disk does not.
                if is_of_disk(&error) {
                    return Err(error.context("it is continued by the same command"));
                }
                // Best effort: the error that matters is the one above.
                let _ = fs::remove_file(&partial);
                let _ = fs::remove_file(&journal);
                Err(error)
            }
        }
    }

    /// What is made: the header and the identity of the source.
    fn described(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.writer.header());
        hash.update(&self.identity);
        units::hex(&hash.finalize())
    }

    /// Tensors of an interrupted run whose bytes are there, with what they lost.
    fn interrupted(&self, partial: &Path, journal: &Path, described: &str) -> Vec<Option<Loss>> {
        let Ok(text) = fs::read_to_string(journal) else { return Vec::new() };
        let mut lines = text.lines().map_while(|line| serde_json::from_str::<Line>(line).ok());
        if !matches!(lines.next(), Some(Line::Of(found)) if found == described) {
            return Vec::new();
        }
        let (len, offsets) = (file_len(partial), self.writer.offsets());
        let is_there = |index: usize| offsets.get(index + 1).is_some_and(|&end| end <= len);
        let mut losses = Vec::new();
        for line in lines {
            match line {
                Line::Tensor { index, loss } if index == losses.len() && is_there(index) => losses.push(loss),
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
        if first > 0 {
            note(&format!("{first} tensors were written by a run that was interrupted"));
            self.losses.borrow_mut().extend(before.iter().flatten().cloned());
        }
        // Written anew, so that a line that was cut off stays out.
        let mut lines = File::create(journal)?;
        writeln!(lines, "{}", serde_json::to_string(&Line::Of(described))?)?;
        for (index, loss) in before.into_iter().enumerate() {
            writeln!(lines, "{}", serde_json::to_string(&Line::Tensor { index, loss })?)?;
        }
        let mut out = BufWriter::with_capacity(1 << 20, file);
        if first > 0 {
            let start = self.writer.offsets()[first];
            out.get_ref().set_len(start)?;
            out.seek(SeekFrom::Start(start))?;
        }
        let mut known = self.losses.borrow().len();
        let offsets = self.writer.offsets();
        let mut on_disk = offsets[first];
        let mut waiting = String::new();
        self.writer.write_from(first, &mut out, &mut |out, index| {
            let losses = self.losses.borrow();
            let loss = losses.last().cloned().filter(|_| losses.len() > known);
            known = losses.len();
            waiting.push_str(&serde_json::to_string(&Line::Tensor { index, loss })?);
            waiting.push('\n');
            let end = offsets[index + 1];
            if end - on_disk < SYNC_BYTES && index + 1 < self.writer.len() {
                return Ok(());
            }
            // The bytes first, then the lines that say that they are there.
            out.flush()?;
            out.get_ref().sync_data()?;
            on_disk = end;
            lines.write_all(std::mem::take(&mut waiting).as_bytes())
        })?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(())
    }
}
