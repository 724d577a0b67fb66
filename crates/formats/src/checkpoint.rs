//! A whole checkpoint: configuration, tokenizer, chat templates and named tensors, whatever files it comes in.
//!
//! Names and configuration are those of Hugging Face checkpoints; a GGUF file is translated by `gguf_names`. Files
//! are opened by the caller's function, so that nothing here maps memory; a checkpoint inside the binary or a test is
//! a list of named bytes.

use std::{error::Error, fs, io, path::Path};

use bytes::Bytes;
use serde_json::Value as Json;
use tensor::{Tensor, WeightFormat};

use crate::{
    Completeness, EmbeddingConfig, FormatError,
    config::{ChatTemplates, ModelConfig},
    embedding,
    error::shown,
    experts::{self, ExpertNames, Source, Stack},
    gguf::{Gguf, GgufTensor, Metadata, nvfp4, vocabulary::GgufVocabulary},
    gguf_names::{self, Architecture, Names},
    gguf_parts::{Parts, name_parts},
    heads::{self, Half, HeadHalves},
    json,
    limits::{Budget, TENSORS_MAX, at_most},
    quantized::{self, Files, Named, QuantizedWeight, Scheme},
    safetensors::{Safetensors, SafetensorsTensor},
    shards::ShardIndex,
};

const CONFIG: &str = "config.json";
/// The key of it that says how weights were quantised, and the file in which ModelOpt says so.
const QUANTIZATION: &str = "quantization_config";
const MODELOPT_CONFIG: &str = "hf_quant_config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The folder of chat templates beside the usual one: `tool_use.jinja` is the one called `tool_use`.
const ADDITIONAL_TEMPLATES: &str = "additional_chat_templates";

/// Opens a file and returns all of its bytes, usually as a mapping.
pub type OpenFile<'a> = dyn Fn(&Path) -> Result<Bytes, Box<dyn Error + Send + Sync>> + 'a;

/// An open checkpoint. Tensors are read when they are asked for; until then a mapped file costs no memory.
#[derive(Debug)]
pub struct Checkpoint {
    /// `config.json`, or what it would be: always an object.
    pub config: Json,
    /// `generation_config.json`, or what it would be; an empty object when there is none.
    pub generation_config: Json,
    /// How it was trained to make vectors of texts, if it was.
    pub embedding: EmbeddingConfig,
    /// The vocabulary, in the form the checkpoint has it.
    pub tokenizer: TokenizerSource,
    /// The chat templates.
    pub chat_templates: ChatTemplates,
    /// What else the files say of themselves, for reports: keys and values in words, in the file's order.
    pub metadata: Vec<(String, String)>,
    /// How the weights were quantised: `quantization_config`, which is obeyed here and is not in `config` any more.
    pub quantization: Option<Json>,
    /// What of the configuration is not obeyed, because the tensors tell otherwise: sentences for the user.
    pub notes: Vec<String>,
    /// Whether there is a head, so that the model generates. One that was saved without is for vectors of texts; `config` then
    /// ties a head to the embedding, because a plan has one, and its logits mean nothing.
    pub has_head: bool,
    files: Vec<WeightFile>,
    /// Sorted by name.
    tensors: Vec<Location>,
    /// Those that several tensors make.
    quantized: Vec<QuantizedWeight>,
    /// Tensors that hold a matrix or a bias of each expert.
    stacks: Vec<Stack>,
    /// Halves of the heads of latent attention, of tensors that have both.
    halves: Vec<HeadHalves>,
    ignored: Vec<String>,
}

/// Where the vocabulary is.
#[derive(Clone, Debug)]
pub enum TokenizerSource {
    /// `tokenizer.json`, and `tokenizer_config.json` (an empty object when there is none).
    HuggingFace {
        /// The file, unread.
        tokenizer_json: Bytes,
        /// Which special tokens there are and what is added to a prompt.
        tokenizer_config: Json,
    },
    /// Mistral's `tekken.json`.
    Tekken {
        /// The file, unread.
        tekken_json: Bytes,
    },
    /// `vocab.json` and `merges.txt`.
    VocabMerges {
        /// `vocab.json`, unread.
        vocab_json: Bytes,
        /// `merges.txt`, unread.
        merges_txt: Bytes,
        /// The configuration files of the same folder.
        beside: TokenizerFiles,
    },
    /// SentencePiece's `tokenizer.model`.
    SentencePiece {
        /// The file, unread.
        model: Bytes,
        /// The configuration files of the same folder.
        beside: TokenizerFiles,
    },
    /// The keys of a GGUF file.
    Gguf(Box<GgufVocabulary>),
    /// There is none.
    None,
}

/// Files beside a vocabulary that is not in `tokenizer.json`.
#[derive(Clone, Debug)]
pub struct TokenizerFiles {
    /// `tokenizer_config.json`. Where it has no `tokenizer_class`, that of `config.json` is put in, or the one that its
    /// `model_type` stands for.
    pub tokenizer_config: Json,
    /// `added_tokens.json`, unread.
    pub added_tokens: Option<Bytes>,
    /// `special_tokens_map.json`, unread.
    pub special_tokens_map: Option<Bytes>,
}

/// What is known of a tensor before it is read.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// The checkpoint's name.
    pub name: String,
    /// The name in the file.
    pub source_name: String,
    /// The published name of its type.
    pub type_name: &'static str,
    /// The format it is computed from; `None` for types that [`Checkpoint::tensor`] refuses.
    pub format: Option<WeightFormat>,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Its size in the file.
    pub bytes: u64,
    /// The file it lies in.
    pub file: String,
    /// Whether `format` is exactly what it means; so it is of what is not expanded.
    pub exact: bool,
}

impl TensorInfo {
    /// The format that it is expanded to when it is read; `None` where it stays what it is, or is refused.
    pub fn expanded_to(&self) -> Option<WeightFormat> {
        self.format.filter(|format| format.name() != self.type_name)
    }
}

#[derive(Debug)]
struct WeightFile {
    name: String,
    container: Container,
}

#[derive(Debug)]
enum Container {
    /// `expands` NVFP4 to F16 or BF16.
    Gguf {
        gguf: Box<Gguf>,
        names: Names,
        expands: bool,
    },
    Safetensors(Safetensors),
}

/// Where a tensor is. There may be hundreds of thousands, so this is small.
#[derive(Debug)]
struct Location {
    /// The checkpoint's name.
    name: Box<str>,
    place: Place,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    /// In the table of a file.
    File { file: u32, index: u32 },
    /// In the list of quantised weights.
    Quantized(u32),
    /// One of a stack, by its place in their list.
    Expert { stack: u32, expert: u32 },
    /// One of the heads in a tensor, by the place of its half in their list.
    Head { halves: u32, head: u32 },
}

impl Checkpoint {
    /// Opens a folder (safetensors, single or sharded, with `config.json`; or one GGUF model), a `.gguf` file or any part
    /// of one that was split, or a `.safetensors` file with `config.json` beside it. `architectures` tells which model a
    /// GGUF file is of, and what is called otherwise in its files; nothing else is asked of it.
    pub fn open(
        path: &Path,
        open_file: &OpenFile<'_>,
        architectures: &'static [Architecture],
    ) -> Result<Self, FormatError> {
        Self::open_as(path, open_file, architectures, Completeness::Whole)
    }

    /// As [`Checkpoint::open`], for files of which the data may be missing: tells names, shapes and configuration.
    pub fn open_headers(
        path: &Path,
        open_file: &OpenFile<'_>,
        architectures: &'static [Architecture],
    ) -> Result<Self, FormatError> {
        Self::open_as(path, open_file, architectures, Completeness::HeaderOnly)
    }

    /// A checkpoint in memory, as the files a folder would hold.
    pub fn from_bytes(files: &[(&str, Bytes)], architectures: &'static [Architecture]) -> Result<Self, FormatError> {
        let read = |name: &str| {
            let found = files.iter().find(|(file, _)| *file == name);
            found.map(|(_, bytes)| bytes.clone()).ok_or_else(|| missing_file(name, ""))
        };
        let names = files.iter().map(|(name, _)| (*name).into()).collect();
        Folder { path: "memory".into(), names, read: &read, architectures, completeness: Completeness::Whole }.open()
    }

    /// The `config.json` of a GGUF file, or of one part of a model, from its first bytes.
    ///
    /// # Errors
    /// Also where these bytes are not all of the header.
    pub fn config_of_gguf_header(
        first_bytes: Bytes,
        architectures: &'static [Architecture],
    ) -> Result<Json, FormatError> {
        let gguf = Parts::one(Gguf::read_header(first_bytes)?);
        let vocabulary = GgufVocabulary::read(gguf.metadata())?;
        let names = Names::of_file(gguf.metadata(), architectures)?;
        Ok(gguf_names::config(&gguf, names, vocabulary.as_ref(), Completeness::HeaderOnly)?.into())
    }

    fn open_as(
        path: &Path,
        open_file: &OpenFile<'_>,
        architectures: &'static [Architecture],
        completeness: Completeness,
    ) -> Result<Self, FormatError> {
        let shown_path = shown(&path.display().to_string());
        let is_dir = match path.metadata() {
            Ok(metadata) => metadata.is_dir(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(FormatError::MissingPath { path: shown_path });
            }
            Err(source) => return Err(FormatError::Path { path: shown_path, source }),
        };
        let folder_path = if is_dir { path } else { path.parent().unwrap_or(Path::new("")) };
        let read = |name: &str| open_file(&folder_path.join(name)).map_err(FormatError::Open);
        let folder_name = shown(&folder_path.display().to_string());
        let folder = |names| Folder { path: folder_name.clone(), names, read: &read, architectures, completeness };
        if is_dir {
            return folder(list(path).map_err(|source| FormatError::Path { path: shown_path, source })?).open();
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.ends_with(".safetensors") || name == INDEX {
            let listing_path = if folder_path.as_os_str().is_empty() { Path::new(".") } else { folder_path };
            let names = list(listing_path).map_err(|source| FormatError::Path { path: shown_path, source })?;
            return folder(names).open_safetensors(&name);
        }
        let bytes = open_file(path).map_err(FormatError::Open)?;
        check_placeholder(&bytes).map_err(|error| error.in_file(&name))?;
        // Whatever it is called: a file in a content-addressed cache has no extension.
        if name.ends_with(".gguf") || bytes.starts_with(b"GGUF") {
            let beside = folder(Vec::new());
            let sibling = |file: &str| folder_path.join(file).exists().then(|| beside.read(file)).transpose();
            return Self::from_gguf(&name, bytes, &beside, &sibling);
        }
        Err(FormatError::UnknownExtension { path: shown_path })
    }

    /// The tensor with this checkpoint name: a view of the file, except where rows have to be put back in the
    /// checkpoint's order (q and k of the GGUF architecture `llama`). Vectors (norms, biases) are checked to be
    /// finite; matrices by [`Checkpoint::check_finite`], because that reads them.
    pub fn tensor(&self, name: &str) -> Result<Tensor, FormatError> {
        let (tensor, file) = self.read(name)?;
        if tensor.shape().len() <= 1 {
            finite(name, &tensor).map_err(|error| error.in_file(file))?;
        }
        Ok(tensor)
    }

    /// From now on gives F16 or BF16, whichever is nearer, where it would give FP8 or NVFP4 and `is_computed` says no to that:
    /// for what is packed anew, and files that have no such type. What is given then is rounded once, from the
    /// file's own scales. Returns whether some tensor is given in another format than before.
    pub fn expand_unless(&mut self, is_computed: impl Fn(WeightFormat) -> bool) -> bool {
        let Self { files, quantized, .. } = self;
        let mut is_other = false;
        for file in files.iter_mut() {
            is_other |= file.expand(!is_computed(WeightFormat::NVFP4));
        }
        for weight in quantized {
            is_other |= weight.expand_unless(&files.as_slice(), &is_computed);
        }
        is_other
    }

    /// From now on gives matrices whose features each list their group of scales (GPTQ's "act-order") with the features in the
    /// order of their groups, where they stay packed so; until then they become F16. [`Checkpoint::order`] has the order.
    pub fn sort_features(&mut self) {
        let Self { files, quantized, .. } = self;
        quantized.iter_mut().for_each(|weight| weight.sort_features(&files.as_slice()));
    }

    /// The order of a matrix's features, where [`Checkpoint::sort_features`] changed it: feature i of the tensor multiplies
    /// this one of a row. `in_features` numbers, each of those below it once.
    pub fn order(&self, name: &str) -> Option<&[u32]> {
        let at = self.tensors.binary_search_by(|location| (*location.name).cmp(name)).ok()?;
        match self.tensors.get(at)?.place {
            Place::File { .. } | Place::Expert { .. } | Place::Head { .. } => None,
            Place::Quantized(index) => self.quantized.get(index as usize)?.order(),
        }
    }

    /// Reads a tensor and says where the first NaN or infinity is, if there is one.
    pub fn check_finite(&self, name: &str) -> Result<(), FormatError> {
        let (tensor, file) = self.read(name)?;
        finite(name, &tensor).map_err(|error| error.in_file(file))
    }

    /// The checkpoint's names of all tensors, sorted.
    pub fn tensor_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.iter().map(|location| &*location.name)
    }

    /// What is known of every tensor, sorted by name.
    pub fn tensor_infos(&self) -> impl ExactSizeIterator<Item = TensorInfo> {
        self.tensors.iter().map(|location| {
            let info = match location.place {
                Place::File { file, index } => {
                    self.files.get(file as usize).and_then(|file| file.info(&location.name, index))
                }
                Place::Quantized(index) => self.quantized.get(index as usize).map(|weight| self.quantized_info(weight)),
                Place::Expert { stack, expert } => {
                    self.stacks.get(stack as usize).and_then(|stack| self.expert_info(&location.name, stack, expert))
                }
                Place::Head { halves, .. } => {
                    self.halves.get(halves as usize).and_then(|halves| self.head_info(&location.name, halves))
                }
            };
            info.expect("locations are made from the tables of these files")
        })
    }

    /// Tensors in the files that are no weights of the model: RoPE tables that the configuration implies, scales of
    /// activations, layers that predict further tokens.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// Bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        self.tensor_infos().map(|info| info.bytes).sum()
    }

    /// The files that hold the tensors.
    pub fn weight_files(&self) -> impl ExactSizeIterator<Item = &str> {
        self.files.iter().map(|file| file.name.as_str())
    }

    /// All bytes of each of these files.
    pub fn weight_bytes(&self) -> impl Iterator<Item = &Bytes> {
        self.files.iter().map(|file| match &file.container {
            Container::Safetensors(file) => file.file(),
            Container::Gguf { gguf, .. } => gguf.file(),
        })
    }

    /// The configuration with typed getters.
    pub fn model_config(&self) -> ModelConfig {
        ModelConfig::new(CONFIG, self.config.as_object().cloned().unwrap_or_default())
    }

    /// The ids that end a generation: those of `generation_config.json`, or else of `config.json`.
    pub fn eos_token_ids(&self) -> Result<Vec<u32>, FormatError> {
        let generation = self.generation_config.as_object().cloned().unwrap_or_default();
        let ids = ModelConfig::new("generation_config.json", generation).token_ids("eos_token_id")?;
        if ids.is_empty() { self.model_config().token_ids("eos_token_id") } else { Ok(ids) }
    }

    /// The tensor with this name, and the file that an error is about.
    fn read(&self, name: &str) -> Result<(Tensor, &str), FormatError> {
        let missing = || FormatError::MissingTensor { tensor: shown(name), found: self.tensors.len() };
        let at = self.tensors.binary_search_by(|location| (*location.name).cmp(name)).map_err(|_| missing())?;
        let place = self.tensors.get(at).ok_or_else(missing)?.place;
        let (source, part) = match place {
            Place::Head { halves, head } => {
                return self.read_head(self.halves.get(halves as usize).ok_or_else(missing)?, head as usize);
            }
            Place::File { file, index } => (Source::File { file, index }, None),
            Place::Quantized(index) => (Source::Quantized(index), None),
            Place::Expert { stack, expert } => {
                let stack = self.stacks.get(stack as usize).ok_or_else(missing)?;
                (stack.source, Some((stack, expert)))
            }
        };
        let weight = match source {
            Source::File { .. } => None,
            Source::Quantized(index) => Some(self.quantized.get(index as usize).ok_or_else(missing)?),
        };
        let file = match (source, weight) {
            (Source::File { file, .. }, _) => Some(file),
            (Source::Quantized(_), weight) => weight.map(|weight| weight.file),
        };
        let file = file.and_then(|file| self.files.get(file as usize)).ok_or_else(missing)?;
        let tensor = match (source, weight, part) {
            (Source::Quantized(_), Some(weight), None) => weight.read(&self.files.as_slice()),
            (Source::Quantized(_), Some(weight), Some((stack, expert))) => {
                weight.read_expert(stack, expert, &self.files.as_slice())
            }
            (Source::Quantized(_), None, _) => Err(missing()),
            (Source::File { index, .. }, _, None) => file.tensor(index, &self.config),
            (Source::File { index, .. }, _, Some((stack, expert))) => file.expert(index, stack, expert),
        };
        Ok((tensor.map_err(|error| error.in_file(&file.name))?, &file.name))
    }

    /// One half of a head, and the file that an error is about.
    fn read_head(&self, halves: &HeadHalves, head: usize) -> Result<(Tensor, &str), FormatError> {
        let missing = || FormatError::MissingTensor { tensor: head.to_string(), found: self.tensors.len() };
        let of_file = |file: u32| self.files.get(file as usize).ok_or_else(missing);
        let (tensor, file) = match halves.source {
            Source::File { file, index } => {
                let file = of_file(file)?;
                let name = file.info("", index).map_or_else(String::new, |info| info.source_name);
                let whole = file.tensor(index, &self.config);
                (whole.and_then(|whole| halves.of_whole(&name, &whole, head)), file)
            }
            Source::Quantized(index) => {
                let weight = self.quantized.get(index as usize).ok_or_else(missing)?;
                let format = if halves.half == Half::Keys { halves.keys_format } else { Some(weight.format) };
                let rows = weight.read_rows(halves.rows(head), format.ok_or_else(missing)?, &self.files.as_slice());
                (rows.and_then(|rows| halves.finished(&weight.name, rows)), of_file(weight.file)?)
            }
        };
        Ok((tensor.map_err(|error| error.in_file(&file.name))?, &file.name))
    }

    /// What is known of one half of a head; its file has it as a part of another.
    fn head_info(&self, name: &str, halves: &HeadHalves) -> Option<TensorInfo> {
        let whole = match halves.source {
            Source::File { file, index } => self.files.get(file as usize)?.info(name, index)?,
            Source::Quantized(index) => self.quantized_info(self.quantized.get(index as usize)?),
        };
        let (shape, bytes) = (halves.shape(), halves.bytes(whole.bytes));
        let (format, exact) = match halves.half {
            Half::Keys => (halves.keys_format, whole.exact && whole.format == halves.keys_format),
            Half::Values => (whole.format, whole.exact),
        };
        Some(TensorInfo { name: name.into(), shape, bytes, format, exact, ..whole })
    }

    fn quantized_info(&self, weight: &QuantizedWeight) -> TensorInfo {
        TensorInfo {
            name: weight.name.clone(),
            source_name: weight.source_name.clone(),
            type_name: weight.type_name,
            format: Some(weight.format),
            shape: weight.shape.clone(),
            bytes: weight.bytes,
            file: self.files.get(weight.file as usize).map_or_else(String::new, |file| file.name.clone()),
            exact: weight.exact,
        }
    }

    /// What is known of an expert's tensor; its file has it as a part of another.
    fn expert_info(&self, name: &str, stack: &Stack, expert: u32) -> Option<TensorInfo> {
        let whole = match stack.source {
            Source::File { file, index } => self.files.get(file as usize)?.info_of(name, index, |gguf, info| {
                nvfp4::scale_of(gguf, info, expert.into(), info.dims().last().copied().unwrap_or(1))
            })?,
            Source::Quantized(index) => self.quantized_info(self.quantized.get(index as usize)?),
        };
        let (shape, bytes) = (stack.shape(&whole.shape), stack.bytes(&whole.shape, whole.bytes));
        Some(TensorInfo { name: name.into(), shape, bytes, ..whole })
    }

    /// Opens a GGUF model. The file `name` holds all of it or one part; `sibling` gives another file of the same folder.
    fn from_gguf(
        name: &str,
        bytes: Bytes,
        folder: &Folder<'_>,
        sibling: &dyn Fn(&str) -> Result<Option<Bytes>, FormatError>,
    ) -> Result<Self, FormatError> {
        let parts = Parts::read(name, bytes, folder.completeness, sibling)?;
        let first = parts.first().to_owned();
        Self::of_gguf(parts, folder).map_err(|error| error.in_file(&first))
    }

    fn of_gguf(gguf: Parts, folder: &Folder<'_>) -> Result<Self, FormatError> {
        let vocabulary = GgufVocabulary::read(gguf.metadata())?;
        let names = Names::of_file(gguf.metadata(), folder.architectures)?;
        let config = gguf_names::config(&gguf, names, vocabulary.as_ref(), folder.completeness)?;
        let config = Json::from(config);
        let file_len = gguf.iter().map(|part| part.file().len() as u64).sum();
        let mut locations = Locations::new(file_len, names.experts(&config), &config);
        locations.tensors.reserve(gguf.iter().map(|part| part.tensors().len()).sum());
        let mut ignored = Vec::new();
        for (file, part) in (0..).zip(gguf.iter()) {
            for (index, info) in (0..).zip(part.tensors()) {
                let is_part = nvfp4::owner(part, info.name()).is_some();
                if gguf_names::is_configuration(info)
                    || is_part && info.name().ends_with(".input_scale")
                    || gguf_names::predicts_further(info.name(), &config)
                {
                    ignored.push(info.name().into());
                } else if !is_part {
                    // Some files have the heads of latent attention together and apart.
                    let halves = names.halves_of(info.name());
                    if halves.is_some_and(|halves| halves.iter().all(|half| gguf.tensor_info(half).is_some())) {
                        ignored.push(info.name().into());
                        continue;
                    }
                    let stacked = names.stacked(info.name());
                    if stacked.is_empty() {
                        let name = names.checkpoint_name(info.name());
                        let format = info.ggml_type().weight_format();
                        let source = Source::File { file, index };
                        match names.split_heads(&name) {
                            None => locations.add(name, Place::File { file, index })?,
                            Some(of_heads) => {
                                let format = format.map(heads::keys_format);
                                locations.add_heads(source, &of_heads, info.name(), &info.shape(), format)?;
                            }
                        }
                    }
                    for names in stacked {
                        let stack =
                            Stack { source: Source::File { file, index }, take: names.take, is_transposed: false };
                        locations.add_stack(stack, &names, info.name(), &info.shape())?;
                    }
                }
            }
        }
        let Locations { mut tensors, stacks, halves, .. } = locations;
        sort_by_name(&mut tensors)?;
        let metadata = gguf.metadata().iter().map(|(key, value)| (shown(key), value.summary())).collect();
        let generation_config = gguf_names::generation_config(vocabulary.as_ref());
        let chat_templates = gguf_chat_templates(gguf.metadata())?;
        let embedding = EmbeddingConfig::from_gguf(gguf.metadata(), gguf_names::architecture(gguf.metadata())?)?;
        let container = |gguf| Container::Gguf { gguf: Box::new(gguf), names, expands: false };
        let files = gguf.into_iter().map(|(name, gguf)| WeightFile { name, container: container(gguf) }).collect();
        Ok(Self {
            config,
            generation_config: generation_config.into(),
            embedding,
            tokenizer: vocabulary.map_or(TokenizerSource::None, |v| TokenizerSource::Gguf(Box::new(v))),
            chat_templates,
            metadata,
            quantization: None,
            notes: Vec::new(),
            has_head: true,
            files,
            tensors,
            quantized: Vec::new(),
            stacks,
            halves,
            ignored,
        })
    }
}

/// A folder on disk or in memory: the names in it, and a way to read one.
struct Folder<'a> {
    /// For messages.
    path: String,
    names: Vec<String>,
    read: &'a dyn Fn(&str) -> Result<Bytes, FormatError>,
    architectures: &'static [Architecture],
    completeness: Completeness,
}

impl Folder<'_> {
    /// Chooses the weights: `model.safetensors`, else the index, else the one GGUF file, else the one safetensors file.
    fn open(&self) -> Result<Checkpoint, FormatError> {
        if let Some(name) = [SINGLE, INDEX].into_iter().find(|name| self.has(name)) {
            return self.open_safetensors(name);
        }
        let with = |end: &str| self.names.iter().filter(|name| name.ends_with(end)).map(String::as_str).collect();
        let mut ggufs: Vec<&str> = with(".gguf");
        ggufs.retain(|name| !name.starts_with("mmproj")); // the vision part of a model, never the whole
        // Of a model in parts any one leads to the others.
        ggufs.dedup_by_key(|name| name_parts(name).map_or((*name, 0), |(stem, _, count)| (stem, count)));
        let safetensors: Vec<&str> = with(".safetensors");
        match (ggufs.as_slice(), safetensors.as_slice()) {
            ([name], _) => Checkpoint::from_gguf(name, self.read(name)?, self, &|file| self.optional(file)),
            ([], [name]) => self.open_safetensors(name),
            ([], []) => Err(FormatError::NoWeights { path: self.path.clone(), found: self.other_weights() }),
            ([], many) | (many, _) => {
                Err(FormatError::SeveralModels { path: self.path.clone(), files: shown(&many.join(", ")) })
            }
        }
    }

    /// What else is there, when there are no weights that can be read.
    fn other_weights(&self) -> &'static str {
        let any = |ends: &[&str]| self.names.iter().any(|name| ends.iter().any(|end| name.ends_with(end)));
        if any(&[".bin", ".pt", ".pth", ".ckpt"]) {
            "; it has weights as Python pickles, which can run code when they are read: convert them to safetensors"
        } else if any(&[".safetensors.part", ".gguf.part", ".incomplete"]) {
            "; it has a download that was not finished: start it again"
        } else if self.names.is_empty() {
            "; it is empty"
        } else {
            ""
        }
    }

    /// The checkpoint whose weights are in the file `name`, or in the shards of the index that lists it.
    fn open_safetensors(&self, name: &str) -> Result<Checkpoint, FormatError> {
        let index = if name != SINGLE && self.has(INDEX) {
            let index = ShardIndex::read(&self.read(INDEX)?).map_err(|error| error.in_file(INDEX))?;
            Some(index).filter(|index| name == INDEX || index.shards().contains_key(name))
        } else {
            None
        };
        // The configuration first: its absence is the more telling message.
        if !self.has(CONFIG) {
            return Err(missing_file(CONFIG, ", and says what model they are"));
        }
        let mut config = self.json(CONFIG)?.into_value();
        let quantization = config.as_object_mut().and_then(|config| config.remove(QUANTIZATION));
        let quantization = match quantization.filter(|quantization| !quantization.is_null()) {
            None => self.optional_json(MODELOPT_CONFIG)?.map(ModelConfig::into_value),
            found => found,
        };
        let mut files = Vec::new();
        match &index {
            None => files.push(self.weights(name, None)?),
            Some(index) => {
                for (shard, listed) in index.shards() {
                    if !self.has(shard) {
                        return Err(missing_file(shard, &format!(" ({listed} tensors are listed there): fetch it")));
                    }
                    files.push(self.weights(shard, Some((index, listed)))?);
                }
            }
        }
        let tokenizer_config = self.optional_json("tokenizer_config.json")?;
        let jinja = self.optional("chat_template.jinja")?;
        let template_json = self.optional_json("chat_template.json")?;
        let mut chat_templates = ChatTemplates::read(
            tokenizer_config.as_ref().unwrap_or(&ModelConfig::default()),
            jinja.as_ref(),
            template_json.as_ref(),
        )?;
        for file in &self.names {
            let named = file.strip_prefix(ADDITIONAL_TEMPLATES).and_then(|name| name.strip_prefix('/'));
            if let Some(name) = named.and_then(|name| name.strip_suffix(".jinja")) {
                chat_templates.insert(name, file, &self.read(file)?)?;
            }
        }
        let tokenizer = self.tokenizer(tokenizer_config.unwrap_or_default().into_value(), &config)?;
        let generation_config = self.optional_json("generation_config.json")?.unwrap_or_default();
        let trained = match self.optional(embedding::MODULES)? {
            // A folder of a download may lack the folder in it: then its pooling is unknown.
            Some(modules) => EmbeddingConfig::from_modules(&modules, |name| self.read(name).ok())?,
            None => EmbeddingConfig::default(),
        };
        let mut checkpoint = Checkpoint {
            config,
            generation_config: generation_config.into_value(),
            embedding: trained,
            tokenizer,
            chat_templates,
            metadata: Vec::new(),
            quantization,
            notes: Vec::new(),
            has_head: true,
            files,
            tensors: Vec::new(),
            quantized: Vec::new(),
            stacks: Vec::new(),
            halves: Vec::new(),
            ignored: Vec::new(),
        };
        checkpoint.index_safetensors(self.architectures)?;
        checkpoint.settle_head();
        Ok(checkpoint)
    }

    /// Chooses the vocabulary: the file that says most of how text is read comes first.
    fn tokenizer(&self, tokenizer_config: Json, config: &Json) -> Result<TokenizerSource, FormatError> {
        if let Some(tokenizer_json) = self.optional("tokenizer.json")? {
            return Ok(TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config });
        }
        if let Some(tekken_json) = self.optional("tekken.json")? {
            return Ok(TokenizerSource::Tekken { tekken_json });
        }
        let beside = || -> Result<TokenizerFiles, FormatError> {
            Ok(TokenizerFiles {
                tokenizer_config: with_class(tokenizer_config, config),
                added_tokens: self.optional("added_tokens.json")?,
                special_tokens_map: self.optional("special_tokens_map.json")?,
            })
        };
        if let (Some(vocab_json), Some(merges_txt)) = (self.optional("vocab.json")?, self.optional("merges.txt")?) {
            return Ok(TokenizerSource::VocabMerges { vocab_json, merges_txt, beside: beside()? });
        }
        match self.optional("tokenizer.model")? {
            Some(model) => Ok(TokenizerSource::SentencePiece { model, beside: beside()? }),
            None => Ok(TokenizerSource::None),
        }
    }

    /// A file of weights; for a shard, with its index and how many tensors that lists in it.
    fn weights(&self, name: &str, index: Option<(&ShardIndex, usize)>) -> Result<WeightFile, FormatError> {
        let bytes = self.read(name)?;
        let read = || {
            let file = Safetensors::read_as(bytes, self.completeness)?;
            index.map_or(Ok(()), |(index, listed)| index.check(name, listed, &file))?;
            Ok(WeightFile { name: name.into(), container: Container::Safetensors(file) })
        };
        read().map_err(|error: FormatError| error.in_file(name))
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|file| file == name)
    }

    /// The bytes of a file that must be one of ours: not a placeholder that a failed download left behind.
    fn read(&self, name: &str) -> Result<Bytes, FormatError> {
        let bytes = (self.read)(name)?;
        check_placeholder(&bytes).map_err(|error| error.in_file(name))?;
        Ok(bytes)
    }

    fn optional(&self, name: &str) -> Result<Option<Bytes>, FormatError> {
        if self.has(name) { self.read(name).map(Some) } else { Ok(None) }
    }

    fn json(&self, name: &str) -> Result<ModelConfig, FormatError> {
        ModelConfig::read(name, &self.read(name)?)
    }

    fn optional_json(&self, name: &str) -> Result<Option<ModelConfig>, FormatError> {
        if self.has(name) { self.json(name).map(Some) } else { Ok(None) }
    }
}

/// `tokenizer_config.json` with a `tokenizer_class`, as far as `config.json` tells.
fn with_class(mut tokenizer_config: Json, config: &Json) -> Json {
    let class = config.get("tokenizer_class").and_then(Json::as_str);
    let class = class.or_else(|| match config.get("model_type")?.as_str()? {
        "gpt2" => Some("GPT2Tokenizer"),
        "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe" => Some("Qwen2Tokenizer"),
        _ => None,
    });
    if let (Some(object), Some(class)) = (tokenizer_config.as_object_mut(), class)
        && object.get("tokenizer_class").is_none_or(Json::is_null)
    {
        object.insert("tokenizer_class".into(), class.into());
    }
    tokenizer_config
}

impl Checkpoint {
    fn index_safetensors(&mut self, architectures: &'static [Architecture]) -> Result<(), FormatError> {
        let prefix = self.prefix();
        let of_model = Names::of_config(&self.config, architectures);
        let mut names = Vec::new();
        for (file, weights) in (0..).zip(&self.files) {
            let Container::Safetensors(safetensors) = &weights.container else { continue };
            names.reserve(safetensors.tensors().len());
            for (index, info) in (0..).zip(safetensors.tensors()) {
                let name = with_prefix(info.name(), prefix.as_deref());
                if is_rope_table(info.name()) || gguf_names::predicts_further(&name, &self.config) {
                    self.ignored.push(info.name().into());
                } else {
                    names.push(Named { name, file, index });
                }
            }
            if file == 0 {
                self.metadata = safetensors.metadata().iter().map(|(k, v)| (shown(k), shown(v))).collect();
            }
        }
        if let Some(quantization) = &self.quantization {
            let Some(map) = quantization.as_object() else {
                let (expected, found) = ("an object".into(), json::kind(quantization).into());
                return Err(FormatError::WrongValue { key: QUANTIZATION.into(), expected, found }.in_file(CONFIG));
            };
            let scheme = Scheme::read(map).map_err(|error| error.in_file(CONFIG))?;
            names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            let gathered = quantized::gather(&scheme, &names, &self.files.as_slice())?;
            (names, self.quantized) = (gathered.plain, gathered.weights);
            self.ignored.extend(gathered.ignored);
        }
        let file_len = self.weight_bytes().map(|bytes| bytes.len() as u64).sum();
        let mut locations = Locations::new(file_len, of_model.experts(&self.config), &self.config);
        locations.tensors.reserve(names.len() + self.quantized.len());
        let files = self.files.as_slice();
        for Named { name, file, index } in names {
            let weights = self.files.get(file as usize);
            let info = files.info(file, index);
            let shape = info.map_or(&[][..], SafetensorsTensor::shape);
            if let Some(of_heads) = of_model.split_heads(&name) {
                let format = info.and_then(SafetensorsTensor::weight_format).map(heads::keys_format);
                let added = locations.add_heads(Source::File { file, index }, &of_heads, &name, shape, format);
                added.map_err(|error| error.in_file(weights.map_or(CONFIG, |weights| &weights.name)))?;
                continue;
            }
            let fused = of_model.fused(&name);
            if fused.is_empty() {
                locations.add(name, Place::File { file, index })?;
                continue;
            }
            for names in fused {
                let is_transposed = of_model.alternates_experts() && !names.is_bias;
                let stack = Stack { source: Source::File { file, index }, take: names.take, is_transposed };
                let added = locations.add_stack(stack, &names, &name, shape);
                added.map_err(|error| error.in_file(weights.map_or(CONFIG, |weights| &weights.name)))?;
            }
        }
        for (at, weight) in (0..).zip(&self.quantized) {
            if let Some(of_heads) = of_model.split_heads(&weight.name) {
                let (format, _) = weight.nearest_float(&files);
                let source = Source::Quantized(at);
                locations.add_heads(source, &of_heads, &weight.source_name, &weight.shape, Some(format))?;
                continue;
            }
            let fused = of_model.fused(&weight.name);
            if fused.is_empty() {
                locations.add(weight.name.clone(), Place::Quantized(at))?;
            }
            for names in fused {
                let stack = Stack { source: Source::Quantized(at), take: names.take, is_transposed: false };
                locations.add_stack(stack, &names, &weight.source_name, &weight.shape)?;
            }
        }
        (self.tensors, self.stacks, self.halves) = (locations.tensors, locations.stacks, locations.halves);
        sort_by_name(&mut self.tensors)
    }
}

/// Tensors of a checkpoint while they are listed: bounded, because a small file may have many experts.
struct Locations<'a> {
    tensors: Vec<Location>,
    stacks: Vec<Stack>,
    halves: Vec<HeadHalves>,
    /// How many experts the model has.
    experts: Option<u64>,
    config: &'a Json,
    budget: Budget,
}

/// The number in a name, and what an allocation costs beside its bytes.
const NAME_BYTES: usize = 8 + 16;

impl<'a> Locations<'a> {
    /// For files of so many bytes together.
    fn new(file_len: u64, experts: Option<u64>, config: &'a Json) -> Self {
        let budget = Budget::for_names(file_len);
        Self { tensors: Vec::new(), stacks: Vec::new(), halves: Vec::new(), experts, config, budget }
    }

    fn add(&mut self, name: String, place: Place) -> Result<(), FormatError> {
        at_most(TENSORS_MAX, self.tensors.len() as u64 + 1, &"tensors")?;
        self.tensors.push(Location { name: name.into(), place });
        Ok(())
    }

    /// Adds each expert of a tensor that has this name and shape in its file.
    fn add_stack(&mut self, stack: Stack, names: &ExpertNames, tensor: &str, shape: &[u64]) -> Result<(), FormatError> {
        let heads = || self.config.get("num_attention_heads").and_then(Json::as_u64);
        let of_model = if names.are_heads { heads() } else { self.experts };
        let experts = stack.experts(names, tensor, shape, of_model)?;
        self.take_room(experts, names, tensor)?;
        let at = self.stacks.len() as u32;
        self.stacks.push(stack);
        for (expert, index) in (0..experts).zip(0u32..) {
            let place = Place::Expert { stack: at, expert: index };
            self.tensors.push(Location { name: names.of(expert).into(), place });
        }
        Ok(())
    }

    /// Adds both halves of each head of a tensor of latent attention that has this name and shape in its file.
    /// `keys_format` is what its keys become.
    fn add_heads(
        &mut self,
        source: Source,
        names: &[ExpertNames; 2],
        tensor: &str,
        shape: &[u64],
        keys_format: Option<WeightFormat>,
    ) -> Result<(), FormatError> {
        let both = HeadHalves::both(source, tensor, shape, keys_format, self.config)?;
        for (halves, names) in both.into_iter().zip(names) {
            self.take_room(halves.count() as u64, names, tensor)?;
            let at = self.halves.len() as u32;
            self.halves.push(halves);
            for (head, index) in (0..halves.count() as u64).zip(0u32..) {
                let place = Place::Head { halves: at, head: index };
                self.tensors.push(Location { name: names.of(head).into(), place });
            }
        }
        Ok(())
    }

    /// Takes the memory that so many more tensors need from what the files may have.
    fn take_room(&mut self, count: u64, names: &ExpertNames, tensor: &str) -> Result<(), FormatError> {
        at_most(TENSORS_MAX, count.saturating_add(self.tensors.len() as u64), &"tensors")?;
        // Twice: a vector that grows holds its old and new half for a moment.
        let name_bytes = names.before.len() + names.after.len() + NAME_BYTES;
        let bytes = (2 * size_of::<Location>() + name_bytes) as u64;
        let what = if names.are_heads { "heads" } else { "experts" };
        self.budget.take_items(count, bytes, &format_args!("the {what} of `{}`", shown(tensor)))
    }
}

impl Checkpoint {
    /// What stands where the published names have `model.`, if it is something else: nothing in checkpoints that were
    /// saved without their head (`embed_tokens.weight`), more in those that were cut out of a larger model.
    fn prefix(&self) -> Option<String> {
        let names = self.files.iter().filter_map(|weights| match &weights.container {
            Container::Safetensors(file) => Some(file.tensors().iter().map(SafetensorsTensor::name)),
            Container::Gguf { .. } => None,
        });
        let mut prefixes = names.flatten().filter_map(|name| {
            let prefix = name.rsplit_once("embed_tokens.").map(|(prefix, _)| prefix);
            prefix.filter(|prefix| prefix.is_empty() || prefix.ends_with('.'))
        });
        let first = prefixes.next()?;
        (first != MODEL && prefixes.all(|prefix| prefix == first)).then(|| first.to_owned())
    }

    /// Uses the head in the file where it differs from the embedding, even if the configuration ties both, because
    /// fine-tuned models were saved so. A head that equals the embedding stays tied: one copy is enough. Finds out whether
    /// there is one at all.
    fn settle_head(&mut self) {
        const TIED: &str = "tie_word_embeddings";
        let says = self.config.get(TIED).and_then(Json::as_bool);
        let (head, embedding) = ("lm_head.weight", "model.embed_tokens.weight");
        let has = |wanted| self.tensor_names().any(|name| name == wanted);
        if !has(head) {
            // `Qwen3Model` beside `Qwen3ForCausalLM`: the class of what is before a head.
            let class = self.config.pointer("/architectures/0").and_then(Json::as_str);
            let is_headless =
                says == Some(false) || says.is_none() && class.is_some_and(|class| class.ends_with("Model"));
            if is_headless && has(embedding) {
                self.has_head = false;
                self.notes.push(format!(
                    "there is no `{head}`, and config.json does not tie the head to the embedding: the model makes vectors of \
                     texts, and generates none"
                ));
                if let Some(config) = self.config.as_object_mut() {
                    config.insert(TIED.into(), true.into());
                }
            }
            return;
        }
        if says == Some(false) {
            return;
        }
        // A tensor that cannot be read is reported when its numbers are needed.
        let (Ok(a), Ok(b)) = (self.tensor(head), self.tensor(embedding)) else { return };
        if (a.format(), a.shape(), a.bytes()) == (b.format(), b.shape(), b.bytes()) {
            return;
        }
        if let Some(config) = self.config.as_object_mut() {
            config.insert(TIED.into(), false.into());
        }
        if says == Some(true) {
            self.notes.push(format!(
                "config.json ties the head to the embedding, but `{head}` is there and differs: the one in the file is used"
            ));
        }
    }
}

/// What the published names of all tensors but the head start with.
const MODEL: &str = "model.";

/// The published name of a tensor in a checkpoint that has `prefix` for `model.`.
fn with_prefix(name: &str, prefix: Option<&str>) -> String {
    let Some(prefix) = prefix else { return name.into() };
    let is_head = |name: &str| name.starts_with("lm_head.");
    match name.strip_prefix(prefix) {
        Some(rest) if prefix.is_empty() && is_head(rest) => rest.into(),
        Some(rest) => format!("{MODEL}{rest}"),
        // `language_model.model.` beside `language_model.lm_head`.
        None => match name.strip_prefix(prefix.strip_suffix(MODEL).unwrap_or(prefix)) {
            Some(rest) if is_head(rest) => rest.into(),
            _ => name.into(),
        },
    }
}

impl Files for &[WeightFile] {
    fn info(&self, file: u32, index: u32) -> Option<&SafetensorsTensor> {
        match &self.get(file as usize)?.container {
            Container::Safetensors(safetensors) => safetensors.tensors().get(index as usize),
            Container::Gguf { .. } => None,
        }
    }

    fn bytes(&self, file: u32, index: u32) -> Result<Bytes, FormatError> {
        match self.get(file as usize).map(|file| &file.container) {
            Some(Container::Safetensors(safetensors)) => match safetensors.tensors().get(index as usize) {
                Some(info) => safetensors.tensor_bytes(info),
                None => Err(FormatError::MissingTensor { tensor: index.to_string(), found: 0 }),
            },
            _ => Err(FormatError::MissingTensor { tensor: index.to_string(), found: 0 }),
        }
    }
}

/// Also refuses a name that occurs twice, in one file or in two.
fn sort_by_name(tensors: &mut [Location]) -> Result<(), FormatError> {
    tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    match tensors.array_windows().find(|[a, b]| a.name == b.name) {
        Some([twice, _]) => Err(FormatError::DuplicateTensor { tensor: shown(&twice.name) }),
        None => Ok(()),
    }
}

impl WeightFile {
    fn tensor(&self, index: u32, config: &Json) -> Result<Tensor, FormatError> {
        let no_such = || FormatError::MissingTensor { tensor: index.to_string(), found: 0 };
        match &self.container {
            Container::Safetensors(file) => file.read_tensor(file.tensors().get(index as usize).ok_or_else(no_such)?),
            Container::Gguf { gguf, names, expands } => {
                let info = gguf.tensors().get(index as usize).ok_or_else(no_such)?;
                let mut tensor = gguf.read_tensor(info)?;
                if *expands && info.ggml_type().is_nvfp4() {
                    tensor = nvfp4::expanded(info.name(), &tensor, nvfp4::nearest(nvfp4::scale(gguf, info)?).0)?;
                }
                let config = config.as_object();
                match config.and_then(|config| names.reordered_heads(info.name(), config)) {
                    Some(heads) => gguf_names::in_checkpoint_order(&shown(info.name()), &tensor, heads),
                    None => experts::as_in_checkpoint(info.name(), tensor),
                }
            }
        }
    }

    /// One expert of the tensor at `index`.
    fn expert(&self, index: u32, stack: &Stack, expert: u32) -> Result<Tensor, FormatError> {
        let no_such = || FormatError::MissingTensor { tensor: index.to_string(), found: 0 };
        match &self.container {
            Container::Safetensors(file) => {
                let info = file.tensors().get(index as usize).ok_or_else(no_such)?;
                let Some(format) = info.weight_format() else { return file.read_tensor(info) };
                stack.tensor(info.name(), format, info.shape(), &file.tensor_bytes(info)?, expert)
            }
            Container::Gguf { gguf, expands, .. } => {
                let info = gguf.tensors().get(index as usize).ok_or_else(no_such)?;
                let Some(format) = info.ggml_type().weight_format() else { return gguf.read_tensor(info) };
                let (shape, bytes) = (info.shape(), gguf.tensor_bytes(info)?);
                if !info.ggml_type().is_nvfp4() {
                    return stack.tensor(info.name(), format, &shape, &bytes, expert);
                }
                let overflow = || FormatError::Overflow { what: format!("tensor `{}`", shown(info.name())) };
                let scale = nvfp4::scale_of(gguf, info, expert.into(), shape.first().copied().unwrap_or(1))?;
                let data = stack.data(format, &shape, &bytes, expert).ok_or_else(overflow)?;
                let dims = stack.shape(&shape).into_iter().map(|dim| usize::try_from(dim).ok());
                let dims = dims.collect::<Option<_>>().ok_or_else(overflow)?;
                let tensor = nvfp4::tensor(info.name(), dims, scale, &data)?;
                match expands {
                    true => nvfp4::expanded(info.name(), &tensor, nvfp4::nearest(scale).0),
                    false => Ok(tensor),
                }
            }
        }
    }

    /// From now on gives NVFP4 of a GGUF file as F16 or BF16, or no more. Returns whether that changes something.
    fn expand(&mut self, to: bool) -> bool {
        let Container::Gguf { gguf, expands, .. } = &mut self.container else { return false };
        let changes = *expands != to && gguf.tensors().iter().any(|info| info.ggml_type().is_nvfp4());
        *expands = to;
        changes
    }

    fn info(&self, name: &str, index: u32) -> Option<TensorInfo> {
        self.info_of(name, index, nvfp4::scale)
    }

    /// As [`WeightFile::info`], where `scale` tells that of NVFP4.
    fn info_of(
        &self,
        name: &str,
        index: u32,
        scale: impl Fn(&Gguf, &GgufTensor) -> Result<f32, FormatError>,
    ) -> Option<TensorInfo> {
        let mut expanded_exactly = false;
        let (source_name, type_name, format, shape, bytes) = match &self.container {
            Container::Safetensors(file) => {
                let info = file.tensors().get(index as usize)?;
                (info.name(), info.dtype(), info.weight_format(), info.shape().to_vec(), info.range().len())
            }
            Container::Gguf { gguf, expands, .. } => {
                let info = gguf.tensors().get(index as usize)?;
                let ggml_type = info.ggml_type();
                let mut format = ggml_type.weight_format();
                if *expands && ggml_type.is_nvfp4() {
                    // Where the scale has not arrived, what it is without one.
                    let (nearest, exact) = nvfp4::nearest(scale(gguf, info).unwrap_or(1.0));
                    (format, expanded_exactly) = (Some(nearest), exact);
                }
                let shape = match info.shape().as_slice() {
                    [len] if gguf_names::is_row(info.name()) => vec![1, *len],
                    shape => shape.to_vec(),
                };
                (info.name(), ggml_type.name(), format, shape, info.range().len())
            }
        };
        let (name, source_name, file) = (name.into(), source_name.into(), self.name.clone());
        let exact = expanded_exactly || format.is_some_and(|format| format.name() == type_name);
        Some(TensorInfo { name, source_name, type_name, format, shape, bytes, file, exact })
    }
}

/// `tokenizer.chat_template`, and `tokenizer.chat_template.NAME` for others.
fn gguf_chat_templates(metadata: &Metadata) -> Result<ChatTemplates, FormatError> {
    const KEY: &str = "tokenizer.chat_template";
    let mut templates = ChatTemplates { default: metadata.str(KEY)?.map(String::from), named: Vec::new() };
    for (key, _) in metadata.iter() {
        if let Some(name) = key.strip_prefix(KEY).and_then(|rest| rest.strip_prefix('.'))
            && let Some(template) = metadata.str(key)?
        {
            templates.named.push((name.into(), template.into()));
        }
    }
    Ok(templates)
}

/// Buffers that old checkpoints hold beside the weights, and that follow from the configuration.
fn is_rope_table(name: &str) -> bool {
    [".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached"].iter().any(|end| name.ends_with(end))
}

/// What a failed download leaves under the name of a model.
fn check_placeholder(bytes: &[u8]) -> Result<(), FormatError> {
    if bytes.is_empty() {
        return Err(FormatError::Empty);
    }
    if bytes.starts_with(b"version https://git-lfs.github.com/spec/") {
        return Err(FormatError::LfsPointer);
    }
    let start: Vec<u8> = bytes.trim_ascii_start().iter().take(14).map(u8::to_ascii_lowercase).collect();
    if start.starts_with(b"<!doctype html") || start.starts_with(b"<html") {
        return Err(FormatError::WebPage);
    }
    Ok(())
}

fn missing_file(name: &str, why: &str) -> FormatError {
    FormatError::MissingFile { file: shown(name), why: why.into() }
}

/// The names in a folder and of the chat templates in its [`ADDITIONAL_TEMPLATES`], sorted.
fn list(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    let templates = path.join(ADDITIONAL_TEMPLATES);
    if templates.is_dir() {
        for entry in fs::read_dir(templates)? {
            names.push(format!("{ADDITIONAL_TEMPLATES}/{}", entry?.file_name().to_string_lossy()));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// An error that names the first NaN or infinity. In block formats only scales can be one, and codes of FP8.
fn finite(name: &str, tensor: &Tensor) -> Result<(), FormatError> {
    match tensor.first_not_finite() {
        Some((index, value)) => Err(FormatError::NotFinite { tensor: shown(name), value, index }),
        None => Ok(()),
    }
}
