//! What is quantised: a GGUF file, or a checkpoint in safetensors under GGUF's names.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use formats::gguf::{GgmlType, GgufTensor, GgufWriter, nvfp4};
use formats::{
    Checkpoint, Completeness, FormatError, GgufParts, TokenizerSource,
    gguf_names::{self, Names},
};
use mapped::FileIdentity;
use sha2::{Digest, Sha256};
use tensor::{Tensor, WeightFormat};

use super::convert::{damaged, write_and_release};
use super::gguf_metadata;
use crate::load::find;
use crate::load::plan::plan_of;
use crate::{gguf_architectures, units};

/// The embeddings in GGUF files.
pub(super) const EMBEDDINGS: &str = "token_embd.weight";

/// A model file or folder.
#[derive(Clone)]
pub(super) enum Source {
    Gguf(Rc<GgufParts>),
    /// With the names of the model that is computed: `config.json` may name its class alone.
    Checkpoint(Rc<Checkpoint>, Names),
}

/// A tensor of a source, as a GGUF file has it: of experts all of a layer.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    /// GGUF's name.
    pub(super) name: String,
    /// Dimensions, outermost first; experts are the outermost.
    pub(super) shape: Vec<u64>,
    /// The published name of its type; where parts have several, that of the first.
    pub(super) type_name: &'static str,
    /// What it is read as; the same.
    pub(super) format: Option<WeightFormat>,
    /// Its size in the files.
    pub(super) bytes: u64,
    /// The checkpoint's tensors that it consists of, in order: one, or one of each expert. Of a GGUF file none.
    parts: Vec<String>,
    /// Whether all parts are read as `format`.
    is_uniform: bool,
}

impl Matrix {
    /// Tensors that are read one after another, so that memory is for one: the matrices of a stack.
    pub(super) fn num_parts(&self) -> usize {
        match (self.parts.len(), &self.shape[..]) {
            (0, [matrices, _, _, ..]) => usize::try_from(*matrices).unwrap_or(usize::MAX),
            (parts, _) => parts.max(1),
        }
    }

    /// Whether nothing is multiplied with its rows: vectors, and the biases of experts, which are a tensor of two
    /// dimensions.
    pub(super) fn is_vector(&self) -> bool {
        self.shape.len() < 2 || self.name.ends_with(".bias")
    }

    /// Its type, and bytes of it, in a file that keeps it as it is.
    pub(super) fn kept(&self) -> Result<(GgmlType, u64)> {
        let found = GgmlType::all().find(|ggml| ggml.name() == self.type_name);
        if let Some(ggml_type) = found {
            return Ok((ggml_type, self.bytes));
        }
        // A vector that was quantised has no type of GGUF.
        let name = self.type_name;
        let format = self.format.with_context(|| format!("`{}` is of type {name}, which is not read", self.name))?;
        stored(format, &self.name, &self.shape)
    }
}

/// The type of GGUF that a format is stored as.
pub(super) fn ggml_type(format: WeightFormat) -> Result<GgmlType> {
    let remedy = "choose q8_0, or write safetensors (--format fp8)";
    GgmlType::holding(format).with_context(|| format!("{format} is no type of GGUF: {remedy}"))
}

/// What becomes of a weight in a GGUF file: its type, and its size there.
pub(super) fn stored(format: WeightFormat, name: &str, shape: &[u64]) -> Result<(GgmlType, u64)> {
    let ggml_type = ggml_type(format)?;
    let len = ggml_type.byte_len(shape);
    Ok((ggml_type, len.with_context(|| format!("`{name}` of the shape {shape:?} has no size in {format}"))?))
}

/// A small tensor that belongs to a matrix.
pub(super) struct CompanionTensor {
    pub(super) name: String,
    pub(super) ggml_type: GgmlType,
    pub(super) dims: Vec<u64>,
    pub(super) bytes: Bytes,
}

impl Source {
    /// Opens what `name` stands for. NVFP4 is read as that where it `becomes` that, so that its bytes stay the same.
    pub(super) fn open(name: &str, becomes: WeightFormat) -> Result<Self> {
        let path = find::locate(name)?;
        let read = || format!("cannot read `{name}`");
        let is_file =
            path.is_file() && !path.extension().is_some_and(|ending| ending == "safetensors" || ending == "json");
        if is_file {
            return Ok(Self::Gguf(Rc::new(read_gguf(&path).with_context(read)?)));
        }
        let (mut checkpoint, _) = find::open(Some(name), false)?;
        if matches!(checkpoint.tokenizer, TokenizerSource::Gguf(_)) {
            let file = path.join(checkpoint.weight_files().next().unwrap_or_default());
            return Ok(Self::Gguf(Rc::new(read_gguf(&file).with_context(read)?)));
        }
        // GGUF has no FP8, and what is packed anew should be rounded once.
        checkpoint.expand_unless(|format| format == WeightFormat::NVFP4 && becomes == format);
        let plan = plan_of(&checkpoint)?;
        // The order of k's rows follows from it, and a configuration may leave it to the model's default.
        if let (Some(config), Some(layer)) = (checkpoint.config.as_object_mut(), plan.kv_layers.first()) {
            let heads = config.entry("num_key_value_heads").or_insert(serde_json::Value::Null);
            if heads.is_null() {
                *heads = layer.kv_heads().into();
            }
        }
        let names = gguf_architectures::names(&plan.model_type);
        Ok(Self::Checkpoint(Rc::new(checkpoint), names))
    }

    /// What GGUF files of the model call its parts.
    pub(super) fn names(&self) -> Result<Names> {
        match self {
            Self::Gguf(gguf) => Ok(Names::of_file(gguf.metadata(), gguf_architectures::all())?),
            Self::Checkpoint(_, names) => Ok(*names),
        }
    }

    /// Every tensor, in the order in which it is written.
    pub(super) fn matrices(&self) -> Result<Vec<Matrix>> {
        match self {
            Self::Gguf(gguf) => Ok(gguf
                .iter()
                .flat_map(|part| part.tensors().iter().filter(|info| nvfp4::owner(part, info.name()).is_none()))
                .map(|info| Matrix {
                    name: info.name().to_owned(),
                    shape: info.shape(),
                    type_name: info.ggml_type().name(),
                    format: info.ggml_type().weight_format(),
                    bytes: info.range().len(),
                    parts: Vec::new(),
                    is_uniform: true,
                })
                .collect()),
            Self::Checkpoint(checkpoint, names) => {
                let plan = plan_of(checkpoint)?;
                // The plan's order is that of use; of tied embeddings only one is kept.
                let infos: Vec<_> = checkpoint.tensor_infos().collect();
                let weights: Vec<&str> = plan.weights.iter().map(|weight| weight.name.as_str()).collect();
                let info = |&index: &usize| {
                    let name = weights[index];
                    let at = infos.binary_search_by(|info| info.name.as_str().cmp(name));
                    at.ok().and_then(|at| infos.get(at)).with_context(|| format!("no `{name}`"))
                };
                let matrix = |(name, parts): (String, Vec<usize>)| {
                    let parts = parts.iter().map(info).collect::<Result<Vec<_>>>()?;
                    let first = *parts.first().with_context(|| format!("`{name}` has no part"))?;
                    let shape = match names.gguf_expert(&first.name) {
                        Some(_) => [&[parts.len() as u64], &first.shape[..]].concat(),
                        None => names.shape_in_file(&name, &first.shape),
                    };
                    // One that is not read is refused when the stack is.
                    let format = parts.iter().find(|part| part.format.is_none()).map_or(first.format, |_| None);
                    Ok(Matrix {
                        shape,
                        type_name: first.type_name,
                        format,
                        bytes: parts.iter().map(|part| part.bytes).sum(),
                        is_uniform: parts.iter().all(|part| part.format == first.format),
                        parts: parts.iter().map(|part| part.name.clone()).collect(),
                        name,
                    })
                };
                names.gguf_tensors(&weights)?.into_iter().map(matrix).collect()
            }
        }
    }

    /// What vectors become: in GGUF files of a model they are F32. `None` keeps them.
    pub(super) fn vector_format(&self) -> Option<WeightFormat> {
        match self {
            Self::Gguf(_) => None,
            Self::Checkpoint(..) => Some(WeightFormat::F32),
        }
    }

    /// A file with everything but these.
    pub(super) fn metadata(&self, name: &str) -> Result<GgufWriter> {
        match self {
            Self::Gguf(gguf) => {
                let mut writer = GgufWriter::new();
                // What is written is one file, whatever was read.
                for (key, value) in gguf.metadata().iter().filter(|(key, _)| !key.starts_with("split.")) {
                    writer.metadata(key, value.clone());
                }
                Ok(writer)
            }
            Self::Checkpoint(checkpoint, _) => {
                let name = name.trim_end_matches('/').rsplit('/').next().unwrap_or(name);
                gguf_metadata::metadata(checkpoint, name.trim_end_matches(".safetensors"))
            }
        }
    }

    /// A part of a tensor, its rows in the order of GGUF files.
    pub(super) fn tensor(&self, matrix: &Matrix, part: usize) -> Result<Tensor> {
        match self {
            Self::Gguf(gguf) => {
                let (file, info) = gguf.tensor_info(&matrix.name).with_context(|| format!("no `{}`", matrix.name))?;
                match matrix.shape.len() {
                    0..=2 => Ok(file.read_tensor(info)?),
                    _ => Ok(file.read_matrix(info, part as u64)?),
                }
            }
            Self::Checkpoint(checkpoint, names) => {
                let name = matrix.parts.get(part).with_context(|| format!("no part {part} of `{}`", matrix.name))?;
                let tensor = checkpoint.tensor(name)?;
                // A copy: decoded, or an expert that was transposed. Its bytes in the file are not needed again.
                if mapped::identity(tensor.bytes()).is_none() {
                    checkpoint.weight_bytes().for_each(|bytes| mapped::release(bytes));
                }
                let config = checkpoint.config.as_object();
                match config.and_then(|config| names.reordered_heads(&matrix.name, config)) {
                    Some(heads) => {
                        let copy = gguf_names::in_file_order(&matrix.name, &tensor, heads)?;
                        // Nobody sees this one's pages again, who would give them back: 40 MiB of each layer of 8B.
                        mapped::release(tensor.bytes());
                        Ok(copy)
                    }
                    None => Ok(tensor),
                }
            }
        }
    }

    /// What lies beside a matrix of a GGUF file that is kept, and is nothing without it: scales of NVFP4.
    pub(super) fn beside(&self, matrix: &Matrix) -> Result<Vec<CompanionTensor>> {
        let Self::Gguf(gguf) = self else { return Ok(Vec::new()) };
        let Some((part, _)) = gguf.tensor_info(&matrix.name) else { return Ok(Vec::new()) };
        let is_of = |info: &&GgufTensor| nvfp4::owner(part, info.name()).is_some_and(|of| of.name() == matrix.name);
        let beside = |info: &GgufTensor| {
            let (name, dims) = (info.name().to_owned(), info.dims().to_vec());
            Ok(CompanionTensor { name, ggml_type: info.ggml_type(), dims, bytes: part.tensor_bytes(info)? })
        };
        part.tensors().iter().filter(is_of).map(beside).collect()
    }

    /// Whether the bytes of a matrix are those of a GGUF file of this format.
    pub(super) fn has(&self, matrix: &Matrix, format: WeightFormat) -> bool {
        let is_it = matrix.is_uniform && matrix.format == Some(format);
        is_it && (matches!(self, Self::Gguf(_)) || format != WeightFormat::NVFP4)
    }

    /// Writes the bytes of a tensor that is kept.
    pub(super) fn write_kept(&self, matrix: &Matrix, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Gguf(gguf) => {
                let no_such = || damaged(format!("no `{}`", matrix.name));
                let (part, info) = gguf.tensor_info(&matrix.name).ok_or_else(no_such)?;
                write_and_release(&part.tensor_bytes(info).map_err(damaged)?, out)
            }
            Self::Checkpoint(..) => (0..matrix.num_parts())
                .try_for_each(|part| write_and_release(self.tensor(matrix, part).map_err(damaged)?.bytes(), out)),
        }
    }

    /// Refuses a file with this header that would not be read as the source is, as far as a header tells.
    pub(super) fn check_header(&self, header: Vec<u8>) -> Result<()> {
        let Self::Checkpoint(source, _) = self else { return Ok(()) };
        gguf_metadata::check_header(source, header)
    }

    /// Refuses a file that is not read as the source is.
    pub(super) fn check(&self, path: &Path) -> Result<()> {
        let Self::Checkpoint(source, _) = self else { return Ok(()) };
        let open = |path: &Path| mapped::map(path).map_err(Into::into);
        let written = Checkpoint::open(path, &open, gguf_architectures::all()).map_err(|error| anyhow!(error))?;
        gguf_metadata::check(source, &written)
    }

    /// A hash of everything that the bytes of the file follow from but its own header: names, types, which bytes the
    /// tensors are, and what `scales` says of how scales are chosen.
    pub(super) fn identity(&self, scales: &str) -> Result<String> {
        let mut hash = Sha256::new();
        hash.update(format!("{} {scales}", env!("CARGO_PKG_VERSION")));
        match self {
            Self::Gguf(gguf) => {
                let mut contents = Contents::default();
                for (part, info) in gguf.iter().flat_map(|part| part.tensors().iter().map(move |info| (part, info))) {
                    hash.update(format!("{} {:?} {}", info.name(), info.dims(), info.ggml_type().name()));
                    contents.add(&part.tensor_bytes(info)?);
                }
                hash.update(contents.finish());
            }
            Self::Checkpoint(checkpoint, _) => hash.update(identity(checkpoint)),
        }
        Ok(units::hex(&hash.finalize()))
    }
}

/// The model of which this GGUF file is the whole or a part.
fn read_gguf(path: &Path) -> Result<GgufParts> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let open = |path: &Path| mapped::map(path).map_err(|error| FormatError::Open(error.into()));
    let sibling = |file: &str| {
        let path = path.with_file_name(file);
        path.exists().then(|| open(&path)).transpose()
    };
    Ok(GgufParts::read(&name, open(path)?, Completeness::Whole, &sibling)?)
}

/// A hash of what the weights of a checkpoint are: configuration, names, types, sizes, and which bytes they are.
pub(super) fn identity(checkpoint: &Checkpoint) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{} {:?}", checkpoint.config, checkpoint.quantization));
    for info in checkpoint.tensor_infos() {
        hash.update(format!("{info:?}"));
    }
    let mut contents = Contents::default();
    checkpoint.weight_bytes().for_each(|bytes| contents.add(bytes));
    hash.update(contents.finish());
    units::hex(&hash.finalize())
}

/// Hashes weights. Bytes of a file are represented by the file's identity, because hashing 16 GB takes longer than
/// loading the model, and a sample misses a change of one weight.
#[derive(Default)]
struct Contents {
    hash: Sha256,
    last: Option<FileIdentity>,
}

impl Contents {
    fn add(&mut self, bytes: &[u8]) {
        match mapped::identity(bytes) {
            // Which part of the file it is follows from the names, types and sizes, which are hashed beside this.
            Some(file) if self.last != Some(file) => {
                self.hash.update(format!("file {file} "));
                self.last = Some(file);
            }
            Some(_) => {}
            // Of no file, but the model inside the program or weights that were put together: they are small.
            None => {
                self.hash.update((bytes.len() as u64).to_le_bytes());
                self.hash.update(bytes);
                self.last = None;
            }
        }
    }

    fn finish(self) -> [u8; 32] {
        self.hash.finalize().into()
    }
}

/// Bytes of a file, or zero.
pub(super) fn file_len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}
