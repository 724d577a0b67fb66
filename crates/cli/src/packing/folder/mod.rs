//! Writing a folder of safetensors, as Hugging Face has them: quantised in a published layout, or in plain numbers.
//!
//! Layout    `config.json` with `quantization_config`, `model.safetensors` or shards with their index, and the source's
//!           tokenizer and other small files. Projections are packed; the head, embeddings and vectors stay what they
//!           are. All of it is written to `.NAME.partial` first, shard by shard; an interrupted run is continued in
//!           there.

mod choice;
mod tensors;

use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, anyhow, bail};
use formats::{Checkpoint, SafetensorsWriter, TensorInfo, TokenizerSource};
use indicatif::ProgressBar;
use plan::Plan;
use serde_json::{Value as Json, json};
use tensor::WeightFormat;

use super::gguf_metadata::NO_TOKENIZER;
use super::importance::Importances;
use super::job::{PackedModel, PackingJob, SafetensorsTarget};
use super::loss::Loss;
use super::source::{self, file_len};
use super::work::{Work, beside, is_of_disk, progress_bar};
use crate::gguf_architectures;
use crate::load::find;
use crate::load::plan::plan_of;
use crate::output::note;
use choice::TensorChoice;
use tensors::TensorToWrite;

/// Larger files of a source are no part of its tokenizer.
const COPIED_BYTES_MAX: u64 = 256 << 20;
/// Endings of what is copied, and files that say what is no longer so.
const COPIED: [&str; 4] = ["json", "txt", "jinja", "model"];
const NOT_COPIED: [&str; 5] = [
    "config.json",
    "model.safetensors.index.json",
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
];

/// Folders of which the same is copied: other chat templates, and how vectors of texts are made.
const COPIED_FOLDERS: [&str; 3] = ["additional_chat_templates", "1_Pooling", "2_Normalize"];

/// Writes the folder.
pub(crate) fn write(job: &PackingJob, target: SafetensorsTarget, importance: &mut Importances) -> Result<PackedModel> {
    let folder = find::locate(&job.source)?;
    let (mut checkpoint, name) = find::open(Some(&job.source), false)?;
    checkpoint.expand_unless(|_| false);
    let has_tokenizer = !matches!(checkpoint.tokenizer, TokenizerSource::Gguf(_) | TokenizerSource::None);
    if !folder.is_dir() {
        bail!(
            "`{name}` is no folder with config.json and tokenizer.json, which a folder of safetensors takes over from it; a \
             GGUF file can be made of it (-o NAME.gguf)"
        );
    }
    if !has_tokenizer {
        bail!(NO_TOKENIZER);
    }
    if job.output.exists() {
        check_replaceable(&job.output)?;
    }
    let checkpoint = Rc::new(checkpoint);
    let plan = plan_of(&checkpoint)?;
    note_experts(&plan);
    let bytes_in = checkpoint.total_bytes();
    let progress = progress_bar(bytes_in);
    let losses = Rc::new(RefCell::new(Vec::new()));
    let mut choice = TensorChoice::new(job, target, &checkpoint, &plan);
    let last_packed = Rc::new(RefCell::new(None));
    // The tensors of each weight, and how many bytes they have.
    let mut shards: Vec<(SafetensorsWriter, u64)> = Vec::new();
    let infos: Vec<TensorInfo> = checkpoint.tensor_infos().collect();
    for weight in &plan.weights {
        let at = infos.binary_search_by(|info| info.name.cmp(&weight.name));
        let info = at.ok().and_then(|at| infos.get(at)).with_context(|| format!("no tensor `{}`", weight.name))?;
        let becomes = choice.of(info, importance)?;
        let unit = TensorToWrite {
            checkpoint: checkpoint.clone(),
            name: info.name.clone(),
            type_name: info.type_name,
            bytes: info.bytes,
            progress: progress.clone(),
            losses: losses.clone(),
            last_packed: last_packed.clone(),
        };
        let mut tensors = SafetensorsWriter::new();
        tensors::add(&mut tensors, unit, info, becomes)?;
        let bytes = tensors.data_len();
        let fits = |shard: &(SafetensorsWriter, u64)| shard.1.saturating_add(bytes) <= job.shard_bytes_max;
        match shards.last_mut().filter(|shard| fits(shard)) {
            Some((shard, size)) => {
                shard.append(tensors);
                *size += bytes;
            }
            None => shards.push((tensors, bytes)),
        }
    }
    choice.check(&job.source)?;
    importance.check(&job.source)?;
    let identity = format!("{} {}", source::identity(&checkpoint), importance.identity(job.plain));
    let partial = beside(&job.output, "partial")?;
    fs::create_dir_all(&partial).with_context(|| format!("cannot write `{}`", partial.display()))?;
    let written = write_shards(&partial, shards, &identity, &losses, &progress).and_then(|index| {
        progress.set_message("checking");
        write_rest(&folder, &partial, &checkpoint, &choice, index)?;
        check(&partial, &plan)?;
        replace(&partial, &job.output)
    });
    if let Err(error) = written {
        // What is wrong with the source stays wrong. A full disk does not.
        if !is_of_disk(&error) {
            let _ = fs::remove_dir_all(&partial);
        }
        return Err(error.context(format!("cannot write `{}`", job.output.display())));
    }
    progress.finish_and_clear();
    let bytes_out = weight_bytes(&job.output)?;
    let losses = losses.borrow().clone();
    Ok(PackedModel { bytes_in, bytes_out, losses })
}

/// Says where a model that is published with the experts of a layer in one tensor gets a tensor for each.
fn note_experts(plan: &Plan) {
    let model = models::architectures().find(|model| model.model_type == plan.model_type);
    if model.is_some_and(|model| model.gguf.alternates_experts) {
        note(&format!(
            "each expert is written as tensors of its own, as other mixtures have them: programs that expect those of \
             `{}` in one tensor do not read the folder",
            plan.model_type
        ));
    }
}

/// Bytes of the safetensors files in a folder.
pub(crate) fn weight_bytes(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "safetensors") {
            bytes += file_len(&path);
        }
    }
    Ok(bytes)
}

/// The name of each tensor with its shard, where there are several, and the size of all.
struct ShardIndex {
    weight_map: Vec<(String, String)>,
    total_size: u64,
    files: Vec<String>,
}

fn write_shards(
    partial: &Path,
    shards: Vec<(SafetensorsWriter, u64)>,
    identity: &str,
    losses: &Rc<RefCell<Vec<Loss>>>,
    progress: &ProgressBar,
) -> Result<ShardIndex> {
    let count = shards.len();
    let mut index = ShardIndex { weight_map: Vec::new(), total_size: 0, files: Vec::new() };
    for (number, (mut writer, bytes)) in (1..).zip(shards) {
        writer.metadata("format", "pt").align();
        let file = match count {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{number:05}-of-{count:05}.safetensors"),
        };
        let path = partial.join(&file);
        let work = Work { path: &path, writer: &writer, losses, identity: identity.to_owned(), is_part: true };
        work.write(progress, |_| Ok(()))?;
        index.total_size += bytes;
        index.weight_map.extend((0..writer.len()).filter_map(|at| Some((writer.name(at)?.to_owned(), file.clone()))));
        index.files.push(file);
    }
    Ok(index)
}

/// Everything but the weights.
fn write_rest(
    source: &Path,
    partial: &Path,
    checkpoint: &Checkpoint,
    choice: &TensorChoice<'_>,
    index: ShardIndex,
) -> Result<()> {
    // What an interrupted run left there. Journals go last, since they say that shards are whole.
    let files: Vec<_> = index.files.iter().map(|file| partial.join(file)).collect();
    let journals = files.iter().map(|file| beside(file, "journal")).collect::<Result<Vec<_>>>()?;
    for entry in fs::read_dir(partial)? {
        let path = entry?.path();
        if !files.contains(&path) && !journals.contains(&path) {
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }?;
        }
    }
    let mut config = checkpoint.config.clone();
    if !checkpoint.has_head {
        // It was tied for the plan alone.
        config["tie_word_embeddings"] = false.into();
    }
    match choice.target {
        SafetensorsTarget::Packed(layout) => config["quantization_config"] = layout.config(&choice.ignored),
        SafetensorsTarget::Plain(format) => {
            let name = match format {
                WeightFormat::F16 => "float16",
                WeightFormat::F32 => "float32",
                _ => "bfloat16",
            };
            let key = if config.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
            config[key] = name.into();
        }
    }
    let write = |name: &str, json: &Json| fs::write(partial.join(name), format!("{json:#}\n"));
    write("config.json", &config)?;
    if index.files.len() > 1 {
        let map: serde_json::Map<_, _> = index.weight_map.into_iter().map(|(name, file)| (name, file.into())).collect();
        let json = json!({"metadata": {"total_size": index.total_size}, "weight_map": map});
        write("model.safetensors.index.json", &json)?;
    }
    copy_small_files(source, partial, &NOT_COPIED)?;
    for folder in COPIED_FOLDERS {
        if source.join(folder).is_dir() {
            copy_small_files(&source.join(folder), &partial.join(folder), &[])?;
        }
    }
    for journal in journals.iter().filter(|journal| journal.exists()) {
        fs::remove_file(journal)?;
    }
    Ok(())
}

/// Copies what is beside weights, but for some; makes the folder if there is something.
fn copy_small_files(from: &Path, to: &Path, but: &[&str]) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let has_ending = path.extension().is_some_and(|ending| COPIED.iter().any(|known| ending == *known));
        let is_other = !has_ending || name.starts_with('.') || but.contains(&name);
        if is_other || !path.is_file() || file_len(&path) > COPIED_BYTES_MAX {
            continue;
        }
        fs::create_dir_all(to)?;
        fs::copy(&path, to.join(name)).with_context(|| format!("cannot copy `{}`", path.display()))?;
    }
    Ok(())
}

/// Refuses a folder that is not read as the source is.
fn check(folder: &Path, plan: &Plan) -> Result<()> {
    let open = |path: &Path| mapped::map(path).map_err(Into::into);
    let written = Checkpoint::open(folder, &open, gguf_architectures::all()).map_err(|error| anyhow!(error))?;
    if plan_of(&written)? != *plan {
        bail!("what was written is not read as the model that it was made of: please report it");
    }
    Ok(())
}

/// Refuses a folder that has something else than a model in it: it would be removed.
fn check_replaceable(folder: &Path) -> Result<()> {
    if !folder.is_dir() {
        bail!("`{}` is a file, and safetensors are written as a folder: choose another -o", folder.display());
    }
    let refuse = |path: &Path| {
        let (folder, path) = (folder.display(), path.display());
        Err(anyhow!(
            "`{folder}` has more in it than a model (`{path}`), so --force does not replace it: choose another -o"
        ))
    };
    let mut is_empty = true;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let has_ending = path
            .extension()
            .is_some_and(|ending| ending == "safetensors" || COPIED.iter().any(|known| ending == *known));
        let is_folder = path.is_dir() && COPIED_FOLDERS.iter().any(|name| path.ends_with(name));
        let is_file = path.is_file() && has_ending;
        if !is_folder && !is_file {
            return refuse(&path);
        }
        is_empty = false;
    }
    if !is_empty && !folder.join("config.json").exists() {
        return refuse(&folder.join("config.json"));
    }
    Ok(())
}

/// Gives the folder its name; one that has it is removed after.
fn replace(partial: &Path, output: &Path) -> Result<()> {
    let old = beside(output, "old")?;
    if output.exists() {
        fs::rename(output, &old)?;
    }
    fs::rename(partial, output)?;
    if old.exists() {
        fs::remove_dir_all(&old)?;
    }
    Ok(())
}
