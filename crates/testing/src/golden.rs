//! Goldens: tiny checkpoints of each architecture with what Hugging Face transformers computes from them
//! (`crates/models/tests/golden`, made by `tools/goldens/tiny_models.py`; provenance in each `source.toml`).

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use formats::Checkpoint;
use plan::{KvFormat, KvLayout, Plan, StepInput};
use serde::Deserialize;
use tensor::{Tensor, WeightFormat};

use crate::tolerance::LOGITS_RELATIVE;

#[path = "../../cli/src/gguf_architectures.rs"]
#[expect(dead_code, reason = "these are read by name alone")]
mod gguf_architectures;

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
    /// `model.safetensors`, in F32, whatever it is stored in: exactly what the stored numbers mean.
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
    /// Which experts the tokens of the prompt take in each layer that has any; empty for models without.
    #[serde(default)]
    pub routing: Vec<Routing>,
}

/// What the router of a layer chooses.
#[derive(Clone, Debug, Deserialize)]
pub struct Routing {
    /// The layer.
    pub layer: usize,
    /// The experts of each token, the best first.
    pub ids: Vec<Vec<u32>>,
    /// How much each of them counts.
    pub weights: Vec<Vec<f32>>,
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
        let expected = serde_json::from_slice(&read(folder.join("golden.json"))).expect("golden.json as documented");
        let open_file = |path: &Path| Ok(Bytes::from(fs::read(path)?));
        let opened = Checkpoint::open(checkpoint, &open_file, gguf_architectures::all());
        let opened = opened.unwrap_or_else(|error| panic!("{}: {error}", checkpoint.display()));
        let in_f32 = |name: &str| {
            let tensor = opened.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
            Tensor::from_f32(WeightFormat::F32, tensor.shape().to_vec(), &tensor.to_f32()).expect("as many numbers")
        };
        let tensors = opened.tensor_names().map(|name| (name.to_owned(), in_f32(name))).collect();
        let name = folder.file_name().expect("a folder has a name").to_string_lossy().into_owned();
        Self { name, config: opened.config.clone(), tensors, expected }
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

    /// Holds the experts that a device chose for the prompt, layer after layer, and their weights, to the published
    /// implementation's. Every choice there is further from the next than rounding goes.
    pub fn check_routing(&self, found: &[(Vec<f32>, Vec<f32>)]) -> Result<(), String> {
        let Expected { routing, .. } = &self.expected;
        if found.len() != routing.len() {
            return Err(format!("{}: {} layers choose experts, expected {}", self.name, found.len(), routing.len()));
        }
        for ((ids, weights), expected) in found.iter().zip(routing) {
            let expected_ids: Vec<f32> = expected.ids.iter().flatten().map(|&id| id as f32).collect();
            let layer = expected.layer;
            if let Some(at) = (0..expected_ids.len()).find(|&at| ids.get(at) != Some(&expected_ids[at])) {
                let (found, expected) = (ids.get(at), expected_ids[at]);
                return Err(format!("{}: layer {layer}, choice {at} is {found:?}, expected {expected}", self.name));
            }
            let off = weights.iter().zip(expected.weights.iter().flatten()).map(|(a, b)| (a - b).abs());
            // A NaN is further off than anything.
            let worst = off.fold(0.0, |worst: f32, off| if off.is_nan() { f32::INFINITY } else { worst.max(off) });
            if weights.len() != ids.len() || worst > 1e-4 {
                return Err(format!("{}: weights of layer {layer} are off by {worst:e}", self.name));
            }
        }
        Ok(())
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
