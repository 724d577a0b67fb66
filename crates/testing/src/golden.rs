//! Goldens: tiny checkpoints of each architecture with what Hugging Face transformers computes from them
//! (`crates/models/tests/golden`, made by `tools/goldens/tiny_models.py`; provenance in each `source.toml`).

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use plan::{KvFormat, KvLayout, Plan, StepInput};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use tensor::{Tensor, WeightFormat};

use crate::tolerance::LOGITS_RELATIVE;

/// A cache that holds the prompt or the greedy text of any golden.
pub const GOLDEN_KV: KvLayout = KvLayout { format: KvFormat::F32, block_len: 16, num_blocks: 16 };

/// Greedy tokens that were decided by less than this may go either way.
const MARGIN_MIN: f32 = 1e-3;

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

    /// Holds the logits that `replay` gives for the prompt in one step to those of the published implementation. Returns by
    /// how much they are off at most; the error says by how much too much, or what `replay` said.
    pub fn check_logits(&self, replay: impl FnOnce(&StepInput) -> Result<Vec<f32>, String>) -> Result<f32, String> {
        let tokens = &self.expected.prompt_token_ids;
        let expected: Vec<f32> = self.expected.logits.iter().flatten().copied().collect();
        let found = replay(&golden_step(tokens, 0, 0..tokens.len() as u32))?;
        if found.len() != expected.len() {
            return Err(format!("{}: {} logits, expected {}", self.name, found.len(), expected.len()));
        }
        let largest = expected.iter().fold(0f32, |max, x| max.max(x.abs()));
        let bound = LOGITS_RELATIVE as f32 * largest;
        let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        // The largest, or NaN where one is.
        let worst = off.reduce(|a, b| if b > a || b.is_nan() { b } else { a }).unwrap_or(0.0);
        if worst <= bound {
            return Ok(worst);
        }
        Err(format!("{}: logits are off by {worst:e}, {bound:e} allowed", self.name))
    }

    /// Holds the first `tokens` of the greedy text to the published implementation's: `replay` gives the last row's logits
    /// for steps that follow each other. The error names the token that went another way, or is what `replay` said.
    pub fn check_greedy(
        &self,
        tokens: usize,
        mut replay: impl FnMut(&StepInput) -> Result<Vec<f32>, String>,
    ) -> Result<(), String> {
        let Greedy { prompt_token_ids, token_ids, margins } = &self.expected.greedy;
        let (mut next, mut position) = (prompt_token_ids.clone(), 0);
        for (index, (&token, &margin)) in token_ids.iter().zip(margins).enumerate().take(tokens) {
            let logits = replay(&golden_step(&next, position, std::iter::once(next.len() as u32 - 1)))?;
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
            if best != Some(token as usize) && margin > MARGIN_MIN {
                return Err(format!("{}: token {index} is {best:?}, expected {token}", self.name));
            }
            position += next.len();
            next = vec![token];
        }
        Ok(())
    }
}

/// A step of one sequence in [`GOLDEN_KV`], whose blocks lie in reverse.
pub fn golden_step(tokens: &[u32], position: usize, output_rows: impl Iterator<Item = u32>) -> StepInput {
    let table: Vec<u32> = (0..GOLDEN_KV.num_blocks as u32).rev().collect();
    let mut step = StepInput::default();
    step.push_sequence(tokens, position, &table);
    step.output_rows = output_rows.collect();
    step
}
