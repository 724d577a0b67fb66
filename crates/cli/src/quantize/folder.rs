//! Writing a folder of safetensors, as Hugging Face has them: quantised in a published layout, or in plain numbers.
//!
//! Layout    `config.json` with `quantization_config`, `model.safetensors` or shards with their index, and the source's
//!           tokenizer and other small files. Projections are packed; the head, embeddings and vectors stay what they are.
//!           All of it is written to `.NAME.partial` first, shard by shard; an interrupted run is continued in there.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, anyhow, bail};
use formats::{Checkpoint, PackedLayout, PackedPart, SafetensorsWriter, TensorInfo, TokenizerSource, gguf_names};
use indicatif::ProgressBar;
use plan::{Plan, Value};
use serde_json::{Value as Json, json};
use tensor::quant::Packing;
use tensor::{Tensor, WeightFormat};

use super::importance::{Importances, Scales, projections};
use super::source::{self, Matrix, file_len};
use super::work::{Work, beside, is_of_disk};
use super::{
    Loss, Override, QuantizeArgs, Target, Written, convert, damaged, in_pieces, largest, progress_bar, values,
    write_and_release,
};
use crate::load::find;
use crate::load::plan::plan_of;

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

/// What becomes of a tensor.
enum Becomes {
    /// The same bytes.
    Kept,
    Plain(WeightFormat),
    Packed(HowPacked),
}

/// Matrices that are multiplied with the same input, as q, k and v are: runtimes make one of them, so they have one scale of a
/// matrix. It is found when the first is packed.
#[derive(Clone)]
struct Siblings {
    names: Rc<[String]>,
    global: Rc<Cell<Option<f32>>>,
}

/// A tensor to be written, with what is needed when its turn comes.
#[derive(Clone)]
struct Unit {
    checkpoint: Rc<Checkpoint>,
    name: String,
    type_name: &'static str,
    /// In the source.
    bytes: u64,
    progress: ProgressBar,
    losses: Rc<RefCell<Vec<Loss>>>,
    /// What was made with the codes that were written last: it comes right after them.
    made: Made,
}

/// The bytes of the scales and the zero points of a matrix, by its name.
type Made = Rc<RefCell<Option<(String, Vec<u8>, Vec<u8>)>>>;

/// How a matrix is packed.
#[derive(Clone)]
struct HowPacked {
    layout: PackedLayout,
    scales: Scales,
    siblings: Siblings,
}

impl Unit {
    fn tensor(&self) -> io::Result<Tensor> {
        self.checkpoint.tensor(&self.name).map_err(damaged)
    }

    fn keep(&self, out: &mut dyn Write) -> io::Result<()> {
        write_and_release(self.tensor()?.bytes(), out)?;
        self.progress.inc(self.bytes);
        Ok(())
    }

    fn convert(&self, format: WeightFormat, out: &mut dyn Write) -> io::Result<()> {
        let tensor = self.tensor()?;
        let mut loss = Loss::none(&self.name, self.type_name, format.name());
        convert(&tensor, format, 1.0, &Scales::Plain, out, &mut loss, &mut |_| ())?;
        if tensor.shape().len() > 1 {
            self.losses.borrow_mut().push(loss);
        }
        self.progress.inc(self.bytes);
        Ok(())
    }

    /// Writes one of the tensors of the packed matrix.
    fn part(&self, part: PackedPart, how: &HowPacked, shape: [u64; 2], out: &mut dyn Write) -> io::Result<()> {
        match part {
            PackedPart::Codes => self.codes(how, out),
            PackedPart::Scales => out.write_all(&self.made(how)?.0),
            PackedPart::Zeros => out.write_all(&self.made(how)?.1),
            PackedPart::GlobalScale => out.write_all(&self.global(how)?.to_le_bytes()),
            PackedPart::Shape => out.write_all(&shape.map(u64::to_le_bytes).concat()),
        }
    }

    /// Writes the codes, and keeps scales and zero points for [`Unit::made`].
    fn codes(&self, how: &HowPacked, out: &mut dyn Write) -> io::Result<()> {
        self.progress.set_message(self.name.clone());
        let mut loss = Loss::none(&self.name, self.type_name, how.layout.name());
        loss.weighted = matches!(how.scales, Scales::Weighted { .. });
        let (scales, zeros) = self.pack(how, out, &mut loss)?;
        self.losses.borrow_mut().push(loss);
        *self.made.borrow_mut() = Some((self.name.clone(), scales, zeros));
        self.progress.inc(self.bytes);
        Ok(())
    }

    /// The bytes of scales and zero points; where the codes of another matrix were written since, they are made again.
    fn made(&self, how: &HowPacked) -> io::Result<(Vec<u8>, Vec<u8>)> {
        if let Some((_, scales, zeros)) = self.made.borrow().as_ref().filter(|(name, ..)| *name == self.name) {
            return Ok((scales.clone(), zeros.clone()));
        }
        self.pack(how, &mut io::sink(), &mut Loss::none(&self.name, self.type_name, how.layout.name()))
    }

    /// What the scales of the matrix and its siblings are divided by.
    fn global(&self, how: &HowPacked) -> io::Result<f32> {
        if !how.layout.has_global_scale() {
            return Ok(1.0);
        }
        if let Some(found) = how.siblings.global.get() {
            return Ok(found);
        }
        let mut most = 0f32;
        for name in how.siblings.names.iter() {
            let tensor = self.checkpoint.tensor(name).map_err(damaged)?;
            most = most.max(largest(&tensor).map_err(|error| damaged(format!("`{name}`: {error}")))?);
        }
        let found = how.layout.global_scale(most);
        how.siblings.global.set(Some(found));
        Ok(found)
    }

    /// Packs the matrix piece by piece; returns the bytes of all its scales, and of its zero points.
    fn pack(&self, how: &HowPacked, out: &mut dyn Write, loss: &mut Loss) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let (layout, global) = (how.layout, self.global(how)?);
        let tensor = self.tensor()?;
        // What it was decoded from, if it was.
        self.checkpoint.weight_bytes().for_each(|bytes| mapped::release(bytes));
        let (row_len, rows) = (tensor.row_len(), tensor.num_rows());
        let (mut scales, mut zeros, mut codes) = (Vec::new(), Vec::new(), Vec::new());
        let pack = |rows: Range<usize>, packing: Packing<'_>| {
            let values = values(&tensor, rows)?;
            let packed = layout.pack(&values, row_len, global, packing).map_err(damaged)?;
            let mut lost = Loss::none("", "", "");
            lost.add(&values, &packed.weights);
            Ok((packed, lost))
        };
        in_pieces(&tensor, &how.scales, layout.rows_together(), pack, &mut |(packed, lost), _| {
            // A matrix that is turned is written when it is whole: its codes are held till then.
            if layout.is_turned() {
                codes.extend_from_slice(&packed.codes)
            } else {
                out.write_all(&packed.codes)?
            }
            scales.extend_from_slice(&packed.scales);
            zeros.extend_from_slice(&packed.zeros);
            loss.merge(&lost);
            Ok(())
        })?;
        out.write_all(&layout.arranged(PackedPart::Codes, codes, rows))?;
        Ok((layout.arranged(PackedPart::Scales, scales, rows), layout.arranged(PackedPart::Zeros, zeros, rows)))
    }
}

/// Writes the folder.
pub(super) fn write(args: &QuantizeArgs, target: Target, importance: &mut Importances) -> Result<Written> {
    let folder = find::locate(&args.source)?;
    let (mut checkpoint, name) = find::open(Some(&args.source), false)?;
    checkpoint.expand_unless(|_| false);
    let has_tokenizer = !matches!(checkpoint.tokenizer, TokenizerSource::Gguf(_) | TokenizerSource::None);
    if !folder.is_dir() {
        bail!(
            "`{name}` is no folder with config.json and tokenizer.json, which a folder of safetensors takes over from it; a \
             GGUF file can be made of it (-o NAME.gguf)"
        );
    }
    if !has_tokenizer {
        bail!(super::NO_TOKENIZER);
    }
    if args.output.exists() {
        check_replaceable(&args.output)?;
    }
    let checkpoint = Rc::new(checkpoint);
    let plan = plan_of(&checkpoint)?;
    let bytes_in = checkpoint.total_bytes();
    let progress = progress_bar(bytes_in);
    let losses = Rc::new(RefCell::new(Vec::new()));
    let mut choice = Choice::new(args, target, &checkpoint, &plan);
    let made = Rc::new(RefCell::new(None));
    // The tensors of each weight, and how many bytes they have.
    let mut shards: Vec<(SafetensorsWriter, u64)> = Vec::new();
    let infos: Vec<TensorInfo> = checkpoint.tensor_infos().collect();
    for weight in &plan.weights {
        let at = infos.binary_search_by(|info| info.name.cmp(&weight.name));
        let info = at.ok().and_then(|at| infos.get(at)).with_context(|| format!("no tensor `{}`", weight.name))?;
        let becomes = choice.of(info, importance)?;
        let unit = Unit {
            checkpoint: checkpoint.clone(),
            name: info.name.clone(),
            type_name: info.type_name,
            bytes: info.bytes,
            progress: progress.clone(),
            losses: losses.clone(),
            made: made.clone(),
        };
        let mut tensors = SafetensorsWriter::new();
        add(&mut tensors, unit, info, becomes)?;
        let bytes = tensors.data_len();
        let fits = |shard: &(SafetensorsWriter, u64)| shard.1.saturating_add(bytes) <= args.max_shard_size.0;
        match shards.last_mut().filter(|shard| fits(shard)) {
            Some((shard, size)) => {
                shard.append(tensors);
                *size += bytes;
            }
            None => shards.push((tensors, bytes)),
        }
    }
    choice.check(args)?;
    importance.check(&args.source)?;
    let identity = format!("{} {}", source::identity(&checkpoint), importance.identity(args));
    let partial = beside(&args.output, "partial")?;
    fs::create_dir_all(&partial).with_context(|| format!("cannot write `{}`", partial.display()))?;
    let written = write_shards(&partial, shards, &identity, &losses, &progress).and_then(|index| {
        progress.set_message("checking");
        write_rest(&folder, &partial, &checkpoint, &choice, index)?;
        check(&partial, &plan)?;
        replace(&partial, &args.output)
    });
    if let Err(error) = written {
        // What is wrong with the source stays wrong. A full disk does not.
        if !is_of_disk(&error) {
            let _ = fs::remove_dir_all(&partial);
        }
        return Err(error.context(format!("cannot write `{}`", args.output.display())));
    }
    progress.finish_and_clear();
    let bytes_out = weight_bytes(&args.output)?;
    let losses = losses.borrow().clone();
    Ok(Written { bytes_in, bytes_out, losses })
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

/// Which tensors become what.
struct Choice<'a> {
    target: Target,
    overrides: &'a [Override],
    is_tied: bool,
    used: Vec<bool>,
    scales: Scales,
    /// Matrices that rows are multiplied with, sorted, and those that are given the same rows.
    projections: Vec<(String, Siblings)>,
    /// What plain numbers are where the source has none.
    plain: WeightFormat,
    /// Modules that are not packed.
    ignored: Vec<String>,
    packed: usize,
}

impl<'a> Choice<'a> {
    fn new(args: &'a QuantizeArgs, target: Target, checkpoint: &Checkpoint, plan: &Plan) -> Self {
        let mut inputs: BTreeMap<Value, Vec<String>> = BTreeMap::new();
        for (input, weight) in projections(plan) {
            inputs.entry(input).or_default().push(plan.weight(weight).name.clone());
        }
        let mut projections = Vec::new();
        for names in inputs.into_values() {
            let siblings = Siblings { names: names.into(), global: Rc::default() };
            projections.extend(siblings.names.iter().map(|name| (name.clone(), siblings.clone())));
        }
        projections.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let dtype = ["dtype", "torch_dtype"].into_iter().find_map(|key| checkpoint.config.get(key)?.as_str());
        let plain = match dtype {
            Some("float16") => WeightFormat::F16,
            Some("float32") => WeightFormat::F32,
            _ => WeightFormat::BF16,
        };
        let is_tied = plan.weights.iter().all(|weight| weight.name != "lm_head.weight");
        let (overrides, used) = (&args.tensor[..], vec![false; args.tensor.len()]);
        let scales = if args.plain { Scales::Plain } else { Scales::Searched };
        // What layouts are asked for by name stays as it is for readers that look at nothing but the list.
        let ignored = vec!["lm_head".to_owned()];
        Self { target, overrides, is_tied, used, scales, projections, plain, ignored, packed: 0 }
    }

    fn of(&mut self, info: &TensorInfo, importance: &mut Importances) -> Result<Becomes> {
        let own =
            info.format.with_context(|| format!("`{}` is of type {}, which is not read", info.name, info.type_name))?;
        let plain = |format: WeightFormat| if format == own { Becomes::Kept } else { Becomes::Plain(format) };
        let gguf_name = gguf_names::gguf_name(&info.name).unwrap_or_else(|| info.name.clone());
        let is_matrix = info.shape.len() > 1;
        let projection = self.projections.binary_search_by(|(name, _)| name.cmp(&info.name)).ok();
        let is_projection = projection.is_some();
        let module = info.name.strip_suffix(".weight").unwrap_or(&info.name).to_owned();
        let mut chosen = None;
        for (chosen_by, used) in self.overrides.iter().zip(&mut self.used) {
            if is_matrix && (info.name.contains(&chosen_by.name) || chosen_by.is_of(&gguf_name, self.is_tied)) {
                *used = true;
                chosen = Some(chosen_by.format);
            }
        }
        let ignore = |ignored: &mut Vec<String>| {
            if is_projection && !ignored.contains(&module) {
                ignored.push(module.clone());
            }
        };
        if let Some(format) = chosen {
            if format.is_quantized() {
                bail!("--tensor {}={format}: of safetensors, single matrices can be f16, bf16 or f32", info.name);
            }
            ignore(&mut self.ignored);
            return Ok(plain(format));
        }
        match self.target {
            Target::Plain(format) => Ok(plain(format)),
            Target::Packed(layout) => {
                let divides = match info.shape[..] {
                    [rows, cols] => layout.divides(usize::try_from(rows)?, usize::try_from(cols)?),
                    _ => false,
                };
                if let Some(at) = projection.filter(|_| module != "lm_head" && divides) {
                    self.packed += 1;
                    let siblings = self.projections[at].1.clone();
                    let (shape, type_name) = (info.shape.clone(), info.type_name);
                    let matrix = Matrix { name: gguf_name, shape, type_name, format: info.format, bytes: info.bytes };
                    let scales = importance.scales(&matrix, true)?.unwrap_or_else(|| self.scales.clone());
                    return Ok(Becomes::Packed(HowPacked { layout, scales, siblings }));
                }
                ignore(&mut self.ignored);
                Ok(plain(if own.is_quantized() { self.plain } else { own }))
            }
        }
    }

    /// Refuses what was asked for in vain.
    fn check(&self, args: &QuantizeArgs) -> Result<()> {
        if let Some((unused, _)) = self.overrides.iter().zip(&self.used).find(|(_, used)| !**used) {
            bail!("--tensor {}: no matrix of `{}` has that in its name", unused.name, args.source);
        }
        if let (Target::Packed(layout), 0) = (self.target, self.packed) {
            bail!("no projection of `{}` divides into {}: choose another --format", args.source, layout.name());
        }
        Ok(())
    }
}

/// The tensors that a weight becomes.
fn add(writer: &mut SafetensorsWriter, unit: Unit, info: &TensorInfo, becomes: Becomes) -> Result<()> {
    let shape = info.shape.iter().map(|&dim| usize::try_from(dim)).collect::<Result<Vec<_>, _>>()?;
    let name = info.name.clone();
    match becomes {
        Becomes::Kept => {
            let format = info.format.context("a type that is read")?;
            let len = Tensor::byte_len(format, &shape)? as u64;
            writer.made_tensor(&name, format.name(), &info.shape, len, move |out| unit.keep(out));
        }
        Becomes::Plain(format) => {
            let len = Tensor::byte_len(format, &shape)? as u64;
            writer.made_tensor(&name, format.name(), &info.shape, len, move |out| unit.convert(format, out));
        }
        Becomes::Packed(how) => {
            let [rows, cols] = shape[..] else { bail!("`{name}` has {} dimensions, not two", shape.len()) };
            let stem = name.strip_suffix(".weight").unwrap_or(&name);
            for tensor in how.layout.tensors(rows, cols) {
                let (unit, how, part) = (unit.clone(), how.clone(), tensor.part);
                let make = move |out: &mut dyn Write| unit.part(part, &how, [rows as u64, cols as u64], out);
                writer.made_tensor(&format!("{stem}{}", tensor.end), tensor.dtype, &tensor.shape, tensor.bytes, make);
            }
        }
    }
    Ok(())
}

/// The name of each tensor with its shard, where there are several, and the size of all.
struct Index {
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
) -> Result<Index> {
    let count = shards.len();
    let mut index = Index { weight_map: Vec::new(), total_size: 0, files: Vec::new() };
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
fn write_rest(source: &Path, partial: &Path, checkpoint: &Checkpoint, choice: &Choice<'_>, index: Index) -> Result<()> {
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
        Target::Packed(layout) => config["quantization_config"] = layout.config(&choice.ignored),
        Target::Plain(format) => {
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
    let written = Checkpoint::open(folder, &open).map_err(|error| anyhow!(error))?;
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
