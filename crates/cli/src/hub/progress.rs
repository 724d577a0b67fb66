//! What a pull says while it works, on stderr: a bar where that is a terminal, plain lines otherwise.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;
use crate::units;

/// The progress of one file.
pub(super) struct FileProgress {
    name: String,
    started: Instant,
    /// Bytes that an earlier pull left; `None` until the first position is known.
    resumed_at: Cell<Option<u64>>,
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    Lines,
    #[cfg(test)]
    Nothing,
}

impl FileProgress {
    /// `plain` forbids the bar even on a terminal.
    pub(super) fn new(name: &str, size: u64, plain: bool) -> Self {
        let shown = if plain || !io::stderr().is_terminal() {
            Shown::Lines
        } else {
            let style =
                "{msg:32!} {wide_bar} {binary_bytes:>9}/{binary_total_bytes} {binary_bytes_per_sec:>11} {eta:>4}";
            let style = ProgressStyle::with_template(style).expect("the template is a constant and well formed");
            let bar = ProgressBar::with_draw_target(Some(size), ProgressDrawTarget::stderr()).with_style(style);
            Shown::Bar(bar.with_message(name.to_owned()))
        };
        Self { name: name.to_owned(), started: Instant::now(), resumed_at: Cell::new(None), shown }
    }

    #[cfg(test)]
    pub(super) fn silent() -> Self {
        let resumed_at = Cell::new(None);
        Self { name: String::new(), started: Instant::now(), resumed_at, shown: Shown::Nothing }
    }

    pub(super) fn position(&self, bytes: u64) {
        let is_first = self.resumed_at.get().is_none();
        if is_first {
            self.resumed_at.set(Some(bytes));
        }
        match &self.shown {
            Shown::Bar(bar) => {
                bar.set_position(bytes);
                if is_first {
                    bar.reset_eta(); // what an earlier pull brought says nothing about this one's speed
                }
            }
            _ if is_first && bytes > 0 => self.note(&format!("{}: resumed at {}", self.name, units::bytes(bytes))),
            _ => {}
        }
    }

    pub(super) fn verifying(&self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.set_message(format!("{} (verifying)", self.name));
        }
    }

    /// A line that stays.
    pub(super) fn note(&self, line: &str) {
        match &self.shown {
            Shown::Bar(bar) => bar.suspend(|| output::note(line)),
            Shown::Lines => output::note(line),
            #[cfg(test)]
            Shown::Nothing => {}
        }
    }

    /// The file is complete: one line remains of it.
    pub(super) fn done(self, size: u64) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
        let elapsed = self.started.elapsed();
        let received = size - self.resumed_at.get().unwrap_or(size).min(size);
        let rate = if elapsed >= Duration::from_millis(100) && received > 0 {
            format!(" ({}/s)", units::bytes((received as f64 / elapsed.as_secs_f64()) as u64))
        } else {
            String::new()
        };
        output::note(&format!("{}: {}{rate}", self.name, units::bytes(size)));
    }
}
