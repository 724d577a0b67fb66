//! How far a model is that is being loaded.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

/// What is being done to load a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadStage {
    /// Nothing yet: others are loaded before.
    #[default]
    Waiting,
    /// Its files are found, and what stands before the weights is read.
    Opening,
    /// Its weights are read, and made into what is computed with.
    Weights,
    /// They are placed on the device, and the cache beside them.
    Placing,
    /// All is there but its vocabulary.
    Vocabulary,
}

impl LoadStage {
    /// All of them, in their order.
    pub(crate) const ALL: [Self; 5] = [Self::Waiting, Self::Opening, Self::Weights, Self::Placing, Self::Vocabulary];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Opening => "opening",
            Self::Weights => "weights",
            Self::Placing => "placing",
            Self::Vocabulary => "vocabulary",
        }
    }
}

/// How far a model is. Whoever loads it says so, and `/health` shows it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Loading(Arc<State>);

#[derive(Debug, Default)]
struct State {
    stage: Mutex<LoadStage>,
    loaded: AtomicU64,
    total: AtomicU64,
}

impl Loading {
    /// Says what is done now.
    pub fn stage(&self, stage: LoadStage) {
        *self.0.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    /// Says how many bytes of the weights are read, of how many.
    pub fn bytes(&self, loaded: u64, total: u64) {
        self.0.total.store(total, Ordering::Relaxed);
        self.0.loaded.store(loaded.min(total), Ordering::Relaxed);
    }

    /// Adds it to what `/health` says.
    pub(crate) fn write(&self, health: &mut Value) {
        let stage = *self.0.stage.lock().unwrap_or_else(PoisonError::into_inner);
        health["stage"] = stage.name().into();
        let (loaded, total) = (self.0.loaded.load(Ordering::Relaxed), self.0.total.load(Ordering::Relaxed));
        if total > 0 {
            health["bytes_loaded"] = loaded.into();
            health["bytes_total"] = total.into();
            health["share"] = json!((loaded as f64 / total as f64 * 1e4).floor() / 1e4);
        }
    }
}
