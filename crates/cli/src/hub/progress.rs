//! What a pull says while it works, on stderr: one line that counts where that is a terminal, and otherwise a line at the
//! end, besides what happens on the way.

use std::cell::{Cell, RefCell};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;
use crate::units;

/// The progress of a pull, file by file.
pub(super) struct PullProgress {
    /// What is pulled.
    what: String,
    /// Files that are fetched, and how many of them were begun.
    files: usize,
    begun: Cell<usize>,
    /// The file that is being fetched.
    name: RefCell<String>,
    /// Bytes of that file that are here; `None` until the first position is known.
    position: Cell<Option<u64>>,
    /// Bytes that came in this pull.
    received: Cell<u64>,
    started: Instant,
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    Lines,
    #[cfg(test)]
    Nothing,
}

impl PullProgress {
    /// Of so many files with so many bytes that are missing. `plain` forbids the bar even on a terminal.
    pub(super) fn new(what: String, files: usize, missing: u64, plain: bool) -> Self {
        let shown = if plain || !io::stderr().is_terminal() {
            Shown::Lines
        } else {
            Shown::Bar(bar(missing, ProgressDrawTarget::stderr()))
        };
        Self::shown(what, files, shown)
    }

    fn shown(what: String, files: usize, shown: Shown) -> Self {
        Self {
            what,
            files,
            begun: Cell::new(0),
            name: RefCell::default(),
            position: Cell::new(None),
            received: Cell::new(0),
            started: Instant::now(),
            shown,
        }
    }

    #[cfg(test)]
    pub(super) fn silent() -> Self {
        Self::shown(String::new(), 1, Shown::Nothing)
    }

    /// The next file.
    pub(super) fn begin(&self, name: &str) {
        self.begun.set(self.begun.get() + 1);
        name.clone_into(&mut self.name.borrow_mut());
        self.position.set(None);
        self.say("");
    }

    /// Names the file on the line that counts.
    fn say(&self, what_else: &str) {
        if let Shown::Bar(bar) = &self.shown {
            bar.set_message(format!("{}/{} {}{what_else}", self.begun.get(), self.files, self.name.borrow()));
        }
    }

    /// So many bytes of the file are here.
    pub(super) fn position(&self, bytes: u64) {
        match self.position.replace(Some(bytes)) {
            None if bytes > 0 && matches!(self.shown, Shown::Lines) => {
                self.note(&format!("{}: resumed at {}", self.name.borrow(), units::bytes(bytes)));
            }
            None => {}
            Some(before) => {
                self.received.set(self.received.get() + bytes.saturating_sub(before));
                if let Shown::Bar(bar) = &self.shown {
                    // The server sends the lost bytes again.
                    bar.inc_length(before.saturating_sub(bytes));
                    bar.set_position(self.received.get());
                }
            }
        }
    }

    pub(super) fn verifying(&self) {
        self.say(" (verifying)");
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

    /// All files are complete: one line remains of them, unless nothing had to be fetched.
    pub(super) fn done(self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
        if let Some(line) = self.last_line(self.started.elapsed()) {
            output::note(&line);
        }
    }

    fn last_line(&self, elapsed: Duration) -> Option<String> {
        let received = self.received.get();
        // So short a time says nothing about the speed.
        let rate = if elapsed >= Duration::from_millis(100) {
            format!(" ({}/s)", units::bytes((received as f64 / elapsed.as_secs_f64()) as u64))
        } else {
            String::new()
        };
        let line = || format!("{}: {} in {}{rate}", self.what, units::bytes(received), units::duration(elapsed));
        (received > 0).then(line)
    }
}

/// The line that counts: file, bytes, rate, time left.
fn bar(missing: u64, target: ProgressDrawTarget) -> ProgressBar {
    let style = "{msg:32!} {wide_bar} {binary_bytes:>9}/{binary_total_bytes} {binary_bytes_per_sec:>11} {eta:>4}";
    let style = ProgressStyle::with_template(style).expect("the template is a constant and well formed");
    ProgressBar::with_draw_target(Some(missing), target).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_counts_what_comes_of_all_files() {
        let progress = PullProgress::shown("org/repo".into(), 2, Shown::Bar(bar(150, ProgressDrawTarget::hidden())));
        let seen = || {
            let Shown::Bar(bar) = &progress.shown else { panic!("a bar") };
            (bar.message(), bar.position(), bar.length())
        };
        progress.begin("a.gguf");
        assert_eq!(seen(), ("1/2 a.gguf".into(), 0, Some(150)));
        // What an earlier pull left was not counted as missing.
        progress.position(50);
        progress.position(80);
        assert_eq!(seen(), ("1/2 a.gguf".into(), 30, Some(150)));
        progress.verifying();
        assert_eq!(seen().0, "1/2 a.gguf (verifying)");
        // A server that starts from the beginning sends these bytes again.
        progress.position(0);
        progress.position(20);
        assert_eq!(seen(), ("1/2 a.gguf (verifying)".into(), 50, Some(230)));
        progress.begin("b.json");
        progress.position(0);
        progress.position(180);
        assert_eq!(seen(), ("2/2 b.json".into(), 230, Some(230)));
        let line = progress.last_line(Duration::from_secs(2));
        assert_eq!(line.as_deref(), Some("org/repo: 230 B in 2.00 s (115 B/s)"));
        assert_eq!(progress.last_line(Duration::from_millis(1)).as_deref(), Some("org/repo: 230 B in 1.0 ms"));
        assert_eq!(PullProgress::silent().last_line(Duration::from_secs(1)), None);
    }
}
