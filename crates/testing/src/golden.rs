//! Goldens: tiny checkpoints of each architecture with what Hugging Face transformers computes from them
//! (`crates/models/tests/golden`, made by `tools/goldens/tiny_models.py`; provenance in each `source.toml`).

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use plan::Plan;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use tensor::{Tensor, WeightFormat};

/// One checkpoint and its expected results.
#[derive(Clone, Debug)]
pub struct Golden {
    /// The name of its folder.
    pub name: String,
    /// `config.json`.
    pub config: serde_json::Value,
    /// `model.safetensors`, all F32.
    pub tensors: HashMap<String, Tensor>,
    /// `golden.json`.
    pub expected: Expected,
}

/// `golden.json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Expected {
    /// A prompt.
    pub prompt_token_ids: Vec<u32>,
    /// Logits at every position of the prompt: (tokens, vocab_size).
    pub logits: Vec<Vec<f32>>,
    /// A greedy text.
    pub greedy: Greedy,
}

/// What greedy decoding gives after a short prompt.
#[derive(Clone, Debug, Deserialize)]
pub struct Greedy {
    /// The prompt.
    pub prompt_token_ids: Vec<u32>,
    /// The tokens that follow.
    pub token_ids: Vec<u32>,
    /// How far the logit of each token was ahead of the next best.
    pub margins: Vec<f32>,
}

/// The folder that holds the goldens.
pub fn golden_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden")
}

/// A file or folder of the test data that is too large or too foreign for the source tree: below `HOTMETAL_TEST_DATA`,
/// or beside the checkout. The error is the reason why it is not there.
pub fn test_data(relative: &str) -> Result<PathBuf, String> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let root = std::env::var_os("HOTMETAL_TEST_DATA").map_or_else(beside, PathBuf::from);
    let path = root.join(relative);
    if path.exists() { Ok(path) } else { Err(format!("no {}; HOTMETAL_TEST_DATA may say where it is", path.display())) }
}

/// All goldens whose checkpoint lies beside them, by name.
///
/// # Panics
/// When a file is missing or malformed: they are part of the source tree.
pub fn goldens() -> Vec<Golden> {
    let entries = fs::read_dir(golden_folder()).expect("the golden folder is part of the source tree");
    let mut folders: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    folders.retain(|folder| folder.join("model.safetensors").exists());
    folders.sort();
    assert!(!folders.is_empty(), "no golden in {}", golden_folder().display());
    folders.iter().map(|folder| Golden::read(folder, folder)).collect()
}

impl Golden {
    /// What is expected of the golden called `name`, without its checkpoint.
    ///
    /// # Panics
    /// When the file is missing or malformed.
    pub fn read_expected(name: &str) -> Expected {
        let path = golden_folder().join(name).join("golden.json");
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_slice(&bytes).expect("golden.json as documented")
    }

    /// The golden in `folder` of the checkpoint in `checkpoint`, which may be another folder.
    ///
    /// # Panics
    /// When a file is missing or malformed.
    pub fn read(folder: &Path, checkpoint: &Path) -> Self {
        let read = |path: PathBuf| fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let config = serde_json::from_slice(&read(checkpoint.join("config.json"))).expect("config.json is JSON");
        let expected = serde_json::from_slice(&read(folder.join("golden.json"))).expect("golden.json as documented");
        let file = read(checkpoint.join("model.safetensors"));
        let tensors = SafeTensors::deserialize(&file).expect("a valid safetensors file");
        let tensors = tensors
            .iter()
            .map(|(name, view)| {
                let format = match view.dtype() {
                    Dtype::F32 => WeightFormat::F32,
                    Dtype::F16 => WeightFormat::F16,
                    Dtype::BF16 => WeightFormat::BF16,
                    other => panic!("{name} is {other:?}"),
                };
                let tensor = Tensor::new(format, view.shape().to_vec(), Bytes::copy_from_slice(view.data()));
                (name.to_owned(), tensor.expect("safetensors checked the size"))
            })
            .collect();
        let name = folder.file_name().expect("a folder has a name").to_string_lossy().into_owned();
        Self { name, config, tensors, expected }
    }

    /// Its plan in textbook ops, and its weights in the order of the plan.
    pub fn model(&self) -> (Arc<Plan>, Vec<Tensor>) {
        let shapes: HashMap<_, _> =
            self.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shape().to_vec())).collect();
        let plan = models::build_plan(&self.config, &shapes).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        assert_eq!(models::unread(&plan, self.tensors.keys().map(String::as_str)), [""; 0], "{}", self.name);
        let weights = plan.weights.iter().map(|weight| self.tensors[&weight.name].clone()).collect();
        (Arc::new(plan), weights)
    }
}
