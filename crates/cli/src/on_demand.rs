//! The loader of `hotmetal serve --models-dir` and `--sleep-idle-seconds`: loads a model of the server when its thread
//! says so, and counts what memory each has.

use std::collections::HashMap;

use anyhow::Result;
use server::{LoadFailure, Loading, ModelLoader, ServedModel};

use crate::load::find;
use crate::load::fits::TooLargeBeside;
use crate::load::neighbours::{DeviceShare, Neighbours};
use crate::load::plan::plan_of;
use crate::output::note;

/// A model that was loaded, with what it was given, and what to say of it.
pub(crate) struct Loaded {
    pub(crate) model: ServedModel,
    pub(crate) share: DeviceShare,
    pub(crate) note: String,
}

/// How a model is loaded: its path or name, none for the built-in one; what clients call it; beside whom; who watches.
pub(crate) type Load = Box<dyn Fn(Option<&str>, &str, &Neighbours, &Loading) -> Result<Loaded> + Send>;

/// Loads the models of a server on demand.
pub(crate) struct Loader {
    /// What clients call each model, and the path or name by which it is found, none for the built-in one.
    models: Vec<(String, Option<String>)>,
    /// Models that may be loaded at a time.
    loaded_max: usize,
    load: Load,
    /// What each model has that is loaded.
    shares: Vec<(String, DeviceShare)>,
    /// The most that each device had free.
    had: HashMap<String, u64>,
}

impl Loader {
    /// A loader for these models, of which those with a share are loaded.
    pub(crate) fn new(
        models: Vec<(String, Option<String>)>,
        loaded_max: usize,
        shares: Vec<(String, DeviceShare)>,
        load: Load,
    ) -> Self {
        let mut loader = Self { models, loaded_max, load, shares: Vec::new(), had: HashMap::new() };
        shares.into_iter().for_each(|(name, share)| loader.give(&name, share));
        loader
    }

    fn give(&mut self, name: &str, share: DeviceShare) {
        let had = self.had.entry(share.device.clone()).or_default();
        *had = share.had.max(*had);
        self.shares.push((name.to_owned(), share));
    }

    /// The models that are loaded, as the next one finds them.
    fn neighbours(&self) -> Neighbours {
        let mut neighbours = Neighbours::of(self.loaded_max.min(self.models.len()));
        for (_, share) in &self.shares {
            // What a model found free was less where another was loaded that is not any more.
            let had = self.had.get(&share.device).copied().unwrap_or(share.had);
            neighbours.give(DeviceShare { had, ..share.clone() });
        }
        neighbours
    }

    fn path_of(&self, name: &str) -> Option<String> {
        self.models.iter().find(|(known, _)| known == name).and_then(|(_, path)| path.clone())
    }
}

impl ModelLoader for Loader {
    fn check(&mut self, name: &str) -> Result<(), String> {
        let path = self.path_of(name);
        let found = find::open(path.as_deref(), false).and_then(|(checkpoint, _)| plan_of(&checkpoint));
        found.map(drop).map_err(|error| told(&error, path.as_deref(), name))
    }

    fn load(&mut self, name: &str, loading: &Loading) -> Result<ServedModel, LoadFailure> {
        let path = self.path_of(name);
        let loaded = (self.load)(path.as_deref(), name, &self.neighbours(), loading);
        let Loaded { model, share, note: ready } = loaded.map_err(|error| {
            let why = told(&error, path.as_deref(), name);
            if TooLargeBeside::is_in(&error) { LoadFailure::Beside(why) } else { LoadFailure::Always(why) }
        })?;
        self.give(name, share);
        note(&ready);
        Ok(model)
    }

    fn unloaded(&mut self, name: &str) {
        let before = self.shares.len();
        self.shares.retain(|(known, _)| known != name);
        mapped::give_back_free_memory();
        if self.shares.len() < before {
            note(&format!("unloaded: {name}"));
        }
    }
}

/// What clients are told of a failure: where the files lie is nobody's business.
fn told(error: &anyhow::Error, path: Option<&str>, name: &str) -> String {
    let text = format!("{error:#}");
    path.map_or(text.clone(), |path| text.replace(path, name))
}
