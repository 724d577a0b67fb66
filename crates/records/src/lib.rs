//! Records of measurements: one file is one command on one machine, `<machine>/<date>-<commit>.json`.
//!
//! A record is what `hotmetal bench … -o json` prints, as it is, or a file of the same shape that was written by hand;
//! `docs/performance/records/README.md` lists the fields. This crate reads the text of a record, names its file and its
//! machine, and says what changed between two records and what is noise. Its callers open the files.

#![forbid(unsafe_code)]

mod change;
mod history;
mod names;
mod record;
mod row;

pub use change::{Change, Spread};
pub use history::{History, Point, Quantity};
pub use names::{file_name, machine_name};
pub use record::{Record, RecordError};
pub use row::Row;
