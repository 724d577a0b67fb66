//! How far the load of a model is: whoever waits for it is told, a command by a bar on stderr where that is a terminal.

use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use server::{LoadStage, Loading};

/// Is told how far the load of a model is.
pub(crate) trait Watch: Debug + Sync {
    /// What is done now.
    fn stage(&self, stage: LoadStage);

    /// This stage is done with so many bytes of the weights, of so many.
    fn bytes(&self, loaded: u64, total: u64);
}

impl Watch for Loading {
    fn stage(&self, stage: LoadStage) {
        self.stage(stage);
    }

    fn bytes(&self, loaded: u64, total: u64) {
        self.bytes(loaded, total);
    }
}

/// Of a load that nobody watches.
#[derive(Debug)]
pub(crate) struct Unwatched;

impl Watch for Unwatched {
    fn stage(&self, _: LoadStage) {}

    fn bytes(&self, _: u64, _: u64) {}
}

/// What takes no longer needs no bar.
const PATIENCE: Duration = Duration::from_millis(500);

/// A bar for each stage of a load that takes its time.
#[derive(Debug)]
pub(crate) struct LoadBar {
    patience: Duration,
    shown: Mutex<Shown>,
}

#[derive(Debug)]
struct Shown {
    stage: LoadStage,
    begun: Instant,
    bar: Option<ProgressBar>,
}

impl LoadBar {
    pub(crate) fn new() -> Self {
        Self::after(PATIENCE)
    }

    /// Of stages that take longer than this.
    fn after(patience: Duration) -> Self {
        Self { patience, shown: Mutex::new(Shown { stage: LoadStage::default(), begun: Instant::now(), bar: None }) }
    }
}

impl Shown {
    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Watch for LoadBar {
    fn stage(&self, stage: LoadStage) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.clear();
        *shown = Shown { stage, begun: Instant::now(), bar: None };
    }

    fn bytes(&self, loaded: u64, total: u64) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded >= total {
            // Whatever is said next has the line for itself.
            shown.clear();
        } else if shown.begun.elapsed() >= self.patience {
            let stage = shown.stage;
            shown.bar.get_or_insert_with(|| bar(stage, total)).set_position(loaded);
        }
    }
}

fn bar(stage: LoadStage, total: u64) -> ProgressBar {
    let what = if stage == LoadStage::Placing { "copying weights to the device" } else { "reading weights" };
    let style = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes}, {msg}").expect("a valid template");
    ProgressBar::new(total).with_style(style).with_message(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_that_takes_its_time_has_a_bar_that_goes_with_it() {
        let seen = |watch: &LoadBar| {
            let shown = watch.shown.lock().unwrap();
            shown.bar.as_ref().map(|bar| (bar.position(), bar.length(), bar.message()))
        };
        let watch = LoadBar::after(Duration::ZERO);
        watch.stage(LoadStage::Weights);
        assert_eq!(seen(&watch), None);
        watch.bytes(10, 100);
        watch.bytes(40, 100);
        assert_eq!(seen(&watch), Some((40, Some(100), "reading weights".to_owned())));
        watch.bytes(100, 100);
        assert_eq!(seen(&watch), None);
        watch.stage(LoadStage::Placing);
        watch.bytes(50, 80);
        assert_eq!(seen(&watch), Some((50, Some(80), "copying weights to the device".to_owned())));
        watch.stage(LoadStage::Vocabulary);
        assert_eq!(seen(&watch), None);
        let quick = LoadBar::after(Duration::from_secs(3600));
        quick.stage(LoadStage::Weights);
        quick.bytes(10, 100);
        assert_eq!(seen(&quick), None);
    }
}
