//! Where the parts meet: name → checkpoint → plan → weights, packed anew where `--quant` asks for it → device → engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use backend::{Backend, DeviceInfo, Executable};
use engine::{Engine, EngineConfig};
use formats::{Checkpoint, EmbeddingConfig, TokenizerSource};
use plan::Plan;
use serde_json::Value;
use server::{LoadStage, ModelFiles};
use sha2::{Digest, Sha256};
use tensor::Tensor;
use tokenizer::Tokenizer;

use super::settings::ModelSettings;
use crate::files;
use crate::load::facts::main_format;
use crate::load::neighbours::DeviceShare;
use crate::load::place::{PlacedModel, place};
use crate::load::plan::{optimised, plan_of};
use crate::load::rope::RopeSettings;
use crate::load::sizes::{DeviceRegion, EngineSizes};
use crate::load::text::{ChatTemplates, load_tokenizer};
use crate::load::unchecked::Unchecked;
use crate::load::watch::{LoadBar, Unwatched, Watch};
use crate::load::weights::{check_tensors, weights};
use crate::load::{device, find};
use crate::output::note;
use crate::packing::on_load;
use crate::units;

/// A loaded model, ready to generate.
pub(crate) struct Model {
    /// As the user named it.
    pub(crate) name: String,
    /// What it runs on, in words.
    pub(crate) device: String,
    /// What it was given of the device's memory.
    pub(crate) share: DeviceShare,
    /// Tokens that a sequence may have.
    pub(crate) context_len: usize,
    /// Why so many sequences run at a time as do.
    pub(crate) sequences_why: &'static str,
    /// From the start of the load to its end.
    pub(crate) load_time: Duration,
    /// `generation_config.json`.
    pub(crate) generation_config: Value,
    /// How it was trained to make vectors of texts, if it was.
    pub(crate) embedding: EmbeddingConfig,
    pub(crate) engine: Engine,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) templates: ChatTemplates,
    /// Whether it generates, and does not only make vectors of texts.
    pub(crate) has_head: bool,
    pub(crate) files: ModelFiles,
    /// The weights that were not looked at.
    pub(crate) unchecked: Unchecked,
}

/// Loads the model that `name` stands for, the built-in one without a name, for one text at a time.
pub(crate) fn load(name: Option<&str>, settings: &ModelSettings) -> Result<Model> {
    load_with(name, settings, &EngineSizes { watch: &LoadBar::new(), ..EngineSizes::SINGLE })
}

/// As [`load`], for as much at a time as `sizes` says.
pub(crate) fn load_with(name: Option<&str>, settings: &ModelSettings, sizes: &EngineSizes<'_>) -> Result<Model> {
    let begun = Instant::now();
    sizes.watch.stage(LoadStage::Opening);
    let (mut checkpoint, name) = find::open(name, false)?;
    let in_model = || format!("cannot load `{name}`");
    // The vocabulary takes as long as everything else together, so it is built beside it.
    let vocabulary = std::mem::replace(&mut checkpoint.tokenizer, TokenizerSource::None);
    let (tokenizer, rest) = std::thread::scope(|scope| {
        let tokenizer = scope.spawn(|| load_tokenizer(vocabulary, settings.allow_unknown_patterns));
        let rest = load_all_but_tokenizer(&mut checkpoint, settings, sizes);
        sizes.watch.stage(LoadStage::Vocabulary);
        (tokenizer.join().unwrap_or_else(|_| Err(anyhow!("the tokenizer failed in a way that is a bug"))), rest)
    });
    let AllButTokenizer { executable, device, vocab_size, region, templates, files, unchecked } =
        rest.with_context(in_model)?;
    let share = DeviceShare { device: device.name.clone(), had: device.memory_bytes, bytes: region.bytes };
    let DeviceInfo { name: device_name, description: device, .. } = device;
    let mut tokenizer = tokenizer.with_context(in_model)?;
    tokenizer.add_eos_ids(&checkpoint.eos_token_ids()?);
    let surplus = tokenizer.vocab_size().saturating_sub(vocab_size);
    if (1..=SURPLUS_MAX).contains(&surplus) {
        note(&format!(
            "the tokenizer has {} tokens and the model logits for {vocab_size}: the model never produces the others, and \
             a prompt that contains one is refused",
            tokenizer.vocab_size()
        ));
    } else if surplus > 0 {
        bail!(
            "{}: the tokenizer has {} tokens and the model logits for {vocab_size}: they do not belong together",
            in_model(),
            tokenizer.vocab_size(),
        );
    }
    let config = sizes.config(&device_name, region, vocab_size);
    let engine = Engine::new(executable, EngineConfig { eos_token_ids: tokenizer.eos_ids().to_vec(), ..config })?;
    Ok(Model {
        name,
        device,
        share,
        context_len: region.context_len,
        sequences_why: region.sequences_why,
        load_time: begun.elapsed(),
        generation_config: checkpoint.generation_config,
        embedding: checkpoint.embedding,
        has_head: checkpoint.has_head,
        engine,
        tokenizer: Arc::new(tokenizer),
        templates,
        files,
        unchecked,
    })
}

/// Tokens that were added to a vocabulary after the model was trained are few.
const SURPLUS_MAX: usize = 1024;

/// All of a model but its tokenizer.
struct AllButTokenizer {
    executable: Box<dyn Executable>,
    device: DeviceInfo,
    vocab_size: usize,
    region: DeviceRegion,
    templates: ChatTemplates,
    files: ModelFiles,
    unchecked: Unchecked,
}

fn load_all_but_tokenizer(
    checkpoint: &mut Checkpoint,
    settings: &ModelSettings,
    sizes: &EngineSizes<'_>,
) -> Result<AllButTokenizer> {
    let (plan, weights) = plan_and_weights(checkpoint, settings, sizes.watch)?;
    sizes.watch.stage(LoadStage::Placing);
    // Who stretches the context says how far, and is told where that is not far enough.
    let cache = match settings.rope == RopeSettings::default() {
        true => settings.cache.within(plan.context_len),
        false => settings.cache,
    };
    let PlacedModel { backend, region } = place(&settings.device, cache, sizes, &plan, &weights)?;
    let device = backend.device().clone();
    let vocab_size = plan.vocab_size;
    let files = ModelFiles {
        architecture: plan.model_type.clone(),
        parameters: weights.iter().map(|weight| weight.shape().iter().product::<usize>() as u64).sum(),
        format: main_format(&weights).to_string(),
        identity: sizes.identifies.then(|| identity(&plan, &weights)),
    };
    let unchecked = match settings.check_tensors {
        true => Unchecked::default(),
        false => {
            let names = plan.weights.iter().map(|weight| weight.name.as_str());
            Unchecked::of(names.zip(&weights), device.name == device::CPU)
        }
    };
    let mut copied = |bytes, total| sizes.watch.bytes(bytes, total);
    let executable = backend.load_watched(Arc::new(plan), weights, region.kv, &mut copied)?;
    let templates = ChatTemplates::load(checkpoint, settings.chat_template.as_deref())?;
    Ok(AllButTokenizer { executable, device, vocab_size, region, templates, files, unchecked })
}

/// What tells a model from others, as it was loaded: a hash of its plan's rotations, and of the name, shape, format and ends of
/// each weight. To hash all bytes would take as long as to read them.
fn identity(plan: &Plan, weights: &[Tensor]) -> String {
    const END_BYTES: usize = 64;
    let mut hash = Sha256::new();
    hash.update(format!("{} {:?} {}", plan.model_type, plan.ropes, plan.context_len));
    for (info, weight) in plan.weights.iter().zip(weights) {
        let bytes = weight.bytes();
        hash.update(format!("{} {:?} {}", info.name, weight.shape(), weight.format()));
        hash.update(&bytes[..bytes.len().min(END_BYTES)]);
        hash.update(&bytes[bytes.len() - bytes.len().min(END_BYTES)..]);
    }
    units::hex(&hash.finalize())
}

/// Plan, backend and weights of a checkpoint, ready for [`Backend::load`].
pub(crate) fn load_weights(
    checkpoint: &mut Checkpoint,
    settings: &ModelSettings,
) -> Result<(Plan, Box<dyn Backend>, Vec<Tensor>)> {
    let (plan, weights) = plan_and_weights(checkpoint, settings, &Unwatched)?;
    Ok((plan, device::backend(&settings.device)?, weights))
}

fn plan_and_weights(
    checkpoint: &mut Checkpoint,
    settings: &ModelSettings,
    watch: &dyn Watch,
) -> Result<(Plan, Vec<Tensor>)> {
    watch.stage(LoadStage::Weights);
    checkpoint.notes.iter().for_each(|line| note(line));
    settings.rope.apply(&mut checkpoint.config, settings.cache.ctx_size)?;
    if settings.check_tensors {
        check_tensors(checkpoint)?;
    }
    if settings.quant.is_none() {
        checkpoint.sort_features();
    }
    let textbook = plan_of(checkpoint)?;
    let weights = if let Some(mix) = settings.quant {
        // What is quantised anew is made of plain numbers.
        checkpoint.expand_unless(|_| false);
        let folder = files::cache_folder().map(|cache| cache.join("quantized"));
        on_load::weights(checkpoint, &textbook, mix, folder.as_deref())?
    } else {
        weights(checkpoint, &textbook, watch)?
    };
    let formats: Vec<_> = weights.iter().map(Tensor::format).collect();
    Ok((optimised(textbook, &formats, &settings.without_passes), weights))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::load::device::{DeviceSettings, REFERENCE, SIM};

    #[test]
    fn whoever_watches_is_told_the_stages_and_all_of_the_bytes() {
        /// Each stage, with the bytes that were told in it.
        type Stage = (LoadStage, Vec<(u64, u64)>);
        #[derive(Debug, Default)]
        struct StageRecorder(Mutex<Vec<Stage>>);
        impl Watch for StageRecorder {
            fn stage(&self, stage: LoadStage) {
                self.0.lock().unwrap().push((stage, vec![]));
            }

            fn bytes(&self, loaded: u64, total: u64) {
                self.0.lock().unwrap().last_mut().unwrap().1.push((loaded, total));
            }
        }
        // A GPU has weights copied to it (the simulator those that it cannot read where they are), the reference none.
        for (device, copies) in [(REFERENCE, false), (SIM, true)] {
            let told = StageRecorder::default();
            let sizes = EngineSizes { watch: &told, ..EngineSizes::SINGLE };
            load_with(None, &ModelSettings::on(DeviceSettings::on(device)), &sizes).unwrap();
            let told = told.0.into_inner().unwrap();
            let expected = [
                (LoadStage::Opening, false),
                (LoadStage::Weights, true),
                (LoadStage::Placing, copies),
                (LoadStage::Vocabulary, false),
            ];
            let found: Vec<_> = told.iter().map(|(stage, bytes)| (*stage, !bytes.is_empty())).collect();
            assert_eq!(found, expected, "{device}");
            for (stage, bytes) in told.iter().filter(|(_, bytes)| !bytes.is_empty()) {
                let (first, last) = (bytes[0], bytes[bytes.len() - 1]);
                assert!(first.0 == 0 && last.0 == last.1 && last.1 > 0, "{stage:?}: {first:?} to {last:?}");
                assert!(bytes.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 == pair[1].1), "{stage:?}");
            }
        }
    }
}
