//! How far a model is that is being loaded.

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
    /// They are copied to a device that has memory of its own, and the cache is made.
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
pub struct Loading(Arc<Mutex<State>>);

#[derive(Clone, Copy, Debug, Default)]
struct State {
    stage: LoadStage,
    /// Bytes of the weights that it is done with, of how many: 0 as long as that is not known.
    loaded: u64,
    total: u64,
    /// Bytes of all weights, once they are being read.
    weights: u64,
}

impl Loading {
    /// Says what is done now; nothing of it is yet.
    pub fn stage(&self, stage: LoadStage) {
        let State { weights, .. } = self.get();
        self.set(State { stage, weights, ..State::default() });
    }

    /// Says how many bytes of the weights this stage is done with, of how many.
    pub fn bytes(&self, loaded: u64, total: u64) {
        let State { stage, weights, .. } = self.get();
        let weights = if stage == LoadStage::Weights { total } else { weights };
        self.set(State { stage, loaded: loaded.min(total), total, weights });
    }

    /// Bytes of the model's weights, if whoever loaded it has said how many there are.
    pub(crate) fn weight_bytes(&self) -> Option<u64> {
        Some(self.get().weights).filter(|&bytes| bytes > 0)
    }

    fn get(&self) -> State {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Adds it to what `/health` says.
    pub(crate) fn write(&self, health: &mut Value) {
        let State { stage, loaded, total, .. } = self.get();
        health["stage"] = stage.name().into();
        if total > 0 {
            health["bytes_loaded"] = loaded.into();
            health["bytes_total"] = total.into();
            health["share"] = json!((loaded as f64 / total as f64 * 1e4).floor() / 1e4);
        }
    }
}
