//! How far a measurement is.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on stderr; nothing where that is not a terminal.
pub(super) fn progress(steps: usize, message: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:32!} {wide_bar} {pos}/{len} {eta:>4}")
        .expect("the template is a constant and well formed");
    // Drawn between repetitions only: a thread that animates it would take a processor from what is measured.
    ProgressBar::new(steps as u64).with_style(style).with_message(message)
}
