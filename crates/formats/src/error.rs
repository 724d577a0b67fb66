//! Everything that can be wrong with a model file, as one enum.

use std::error::Error;

/// What is wrong with the bytes of a checkpoint. Messages name the tensor, key or file, what was found, what was
/// expected, and the remedy where there is one. Names from the file are escaped and cut to a line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// An error inside one file of a checkpoint.
    #[error("cannot read `{file}`")]
    File {
        /// The file's name, as the user gave it or as the folder lists it.
        file: String,
        /// What is wrong in it.
        source: Box<FormatError>,
    },
    /// The file could not be opened or mapped; the message is the mapper's own.
    #[error(transparent)]
    Open(Box<dyn Error + Send + Sync>),

    // Sizes and counts.
    /// Something reaches past the end of the file.
    #[error("{what} ends at byte {end}, but the file has {file_len}: is the download complete?")]
    Truncated {
        /// What is cut off.
        what: String,
        /// The byte after its last one.
        end: u64,
        /// Bytes in the file.
        file_len: u64,
    },
    /// A length or offset that no file can have.
    #[error("the size of {what} overflows 64 bits: the file is damaged or hostile")]
    Overflow {
        /// What has that size.
        what: String,
    },
    /// A count above its limit.
    #[error("{found} {what}, where at most {limit} are read")]
    TooMany {
        /// What is counted, in the plural.
        what: String,
        /// How many the file claims.
        found: u64,
        /// How many are allowed here.
        limit: u64,
    },
    /// A count of things that the rest of the file cannot hold.
    #[error(
        "{found} {what} are announced, which the {left} bytes that are left cannot hold: is the download complete?"
    )]
    TooManyForFile {
        /// What is counted, in the plural.
        what: String,
        /// How many the file claims.
        found: u64,
        /// Bytes up to the end of the file.
        left: u64,
    },
    /// Memory out of proportion to the file.
    #[error(
        "reading {what} needs more memory than a file of {file_len} bytes may ask for: the file is damaged or hostile"
    )]
    OverBudget {
        /// What was being read.
        what: String,
        /// Bytes in the file.
        file_len: u64,
    },
    /// Nesting above the limit.
    #[error("{what} is nested more than {limit} deep")]
    TooDeep {
        /// What is nested.
        what: String,
        /// The limit.
        limit: u32,
    },

    // Names and values.
    /// Text that is not UTF-8.
    #[error("{what} is not valid UTF-8")]
    NotUtf8 {
        /// The text's place.
        what: String,
    },
    /// A key that occurs twice.
    #[error("key `{key}` occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A key that must be there and is not.
    #[error("key `{key}` is missing: expected {expected}")]
    MissingKey {
        /// The key.
        key: String,
        /// What it should hold.
        expected: String,
    },
    /// An importance matrix whose entries cannot be what they should be.
    #[error("{entry}: {what}; make it again, with `llama-imatrix` or `hotmetal quantize --imatrix-text`")]
    Imatrix {
        /// The entry, or the file.
        entry: String,
        /// What is wrong with it.
        what: String,
    },
    /// A key whose value is of another type or outside its range.
    #[error("key `{key}` must be {expected}, found {found}")]
    WrongValue {
        /// The key.
        key: String,
        /// What it should hold.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("{what} is the byte {found}, where a boolean is 0 or 1")]
    NotBoolean {
        /// The key or element.
        what: String,
        /// The byte found.
        found: u8,
    },
    /// JSON of another kind than an object.
    #[error("the JSON is {found}, where an object is expected")]
    NotAnObject {
        /// What it is.
        found: &'static str,
    },
    /// Not the JSON that was expected here.
    #[error("{what} is not valid")]
    Json {
        /// Which text.
        what: String,
        /// The parser's message, with line and column.
        source: serde_json::Error,
    },

    // Tensors, in every format.
    /// A tensor that occurs twice.
    #[error("tensor `{tensor}` occurs twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// A shape with a zero, or without dimensions where the format has none such.
    #[error("tensor `{tensor}` has no elements (shape {shape:?})")]
    NoElements {
        /// The tensor.
        tensor: String,
        /// Dimensions, outermost first.
        shape: Vec<u64>,
    },
    /// More dimensions than the format has, or none.
    #[error("tensor `{tensor}` has {found} dimensions, where 1 to {limit} are allowed")]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// How many it has.
        found: u64,
        /// The most there may be.
        limit: u64,
    },
    /// A row that is not a whole number of blocks.
    #[error("tensor `{tensor}` has rows of {row_len}, which do not divide into {type_name} blocks of {block_len}")]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Elements in a row.
        row_len: u64,
        /// The storage type.
        type_name: String,
        /// Elements in a block.
        block_len: u64,
    },
    /// Elements smaller than a byte that end inside one.
    #[error("tensor `{tensor}` of type {type_name} and shape {shape:?} does not fill whole bytes")]
    PartialByte {
        /// The tensor.
        tensor: String,
        /// The storage type.
        type_name: String,
        /// Dimensions, outermost first.
        shape: Vec<u64>,
    },
    /// The byte range does not follow from type and shape.
    #[error("tensor `{tensor}` has {found} bytes of data, where {type_name} of shape {shape:?} takes {expected}")]
    DataLength {
        /// The tensor.
        tensor: String,
        /// The storage type.
        type_name: String,
        /// Dimensions, outermost first.
        shape: Vec<u64>,
        /// Bytes the file gives it.
        found: u64,
        /// Bytes it takes.
        expected: u64,
    },
    /// An offset that is not a multiple of the file's alignment.
    #[error("tensor `{tensor}` starts at offset {offset}, which is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors `{first}` and `{second}` overlap in the file")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The other.
        second: String,
    },
    /// Bytes that belong to no tensor, in a format that allows none.
    #[error("bytes {start} to {end} belong to no tensor: the file is damaged")]
    Hole {
        /// The first of them.
        start: u64,
        /// The byte after the last.
        end: u64,
    },
    /// A type id or name that the format's specification does not have.
    #[error("tensor `{tensor}` is of type {type_name}, which is not a published type of this format")]
    UnknownType {
        /// The tensor.
        tensor: String,
        /// The id or name found.
        type_name: String,
    },
    /// A type that existed once.
    #[error("tensor `{tensor}` is of type {type_name}, which was removed from the format: convert the model again")]
    RemovedType {
        /// The tensor.
        tensor: String,
        /// Its id and former name.
        type_name: String,
    },
    /// A type that is known, but not computed with.
    #[error("tensor `{tensor}` is of type {type_name}, which no reader here covers; covered are {covered}")]
    UnsupportedType {
        /// The tensor.
        tensor: String,
        /// Its type.
        type_name: String,
        /// The types that work in this file format.
        covered: &'static str,
    },
    /// A weight that is not a number.
    #[error("tensor `{tensor}` holds {value} at element {index}: the file is damaged, fetch it again")]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// NaN or an infinity.
        value: f32,
        /// The first such element, counted row-major (for block formats: the first element of the block).
        index: usize,
    },
    /// A tensor that the checkpoint does not have.
    #[error("there is no tensor `{tensor}` among the {found} of this checkpoint")]
    MissingTensor {
        /// The tensor.
        tensor: String,
        /// How many there are.
        found: usize,
    },
    /// A shape that the rows of attention heads do not divide into.
    #[error("tensor `{tensor}` has {rows} rows, which do not divide into {heads} heads of an even size")]
    Heads {
        /// The tensor.
        tensor: String,
        /// Rows found.
        rows: usize,
        /// Heads the metadata claims.
        heads: usize,
    },

    /// Experts in one tensor that has another shape than the model's.
    #[error(
        "tensor `{tensor}` has the shape {shape:?}, not {expected}: the file is damaged, or of another model than it says"
    )]
    Experts {
        /// The tensor.
        tensor: String,
        /// Dimensions, outermost first.
        shape: Vec<u64>,
        /// What it should be.
        expected: String,
    },

    // Quantised safetensors.
    /// A quantisation that is not read.
    #[error(
        "quantization_config of {method}: `{key}` is {found}, where {expected} is read: \
         use a checkpoint that was quantised so, or a GGUF file of the model"
    )]
    Quantization {
        /// Its `quant_method`.
        method: String,
        /// Which field it is about.
        key: String,
        /// What it holds.
        found: String,
        /// What is read.
        expected: String,
    },
    /// Tensors that do not make the weight that the configuration says they are.
    #[error(
        "weight `{weight}` does not fit its quantization_config: {what}; the files may be of different checkpoints"
    )]
    QuantizedWeight {
        /// The weight.
        weight: String,
        /// What is wrong with which tensor.
        what: String,
    },

    // GGUF.
    /// A tensor that GGUF files of the model have not.
    #[error("GGUF has no name for the tensor `{tensor}`")]
    NoGgufName {
        /// The checkpoint's name.
        tensor: String,
    },
    /// Not a GGUF file.
    #[error("not a GGUF file: it starts with {found}, where \"GGUF\" is expected")]
    NotGguf {
        /// The first bytes, escaped.
        found: String,
    },
    /// A big-endian GGUF file.
    #[error("a big-endian GGUF file (version {version}): convert it to little-endian with gguf_convert_endian.py")]
    BigEndian {
        /// The version, read big-endian.
        version: u32,
    },
    /// A GGUF version that is not read here.
    #[error("GGUF version {version}, where 2 or 3 is expected: {remedy}")]
    GgufVersion {
        /// The version found.
        version: u32,
        /// What to do.
        remedy: &'static str,
    },
    /// A metadata type id that does not exist.
    #[error("{what} has the value type {id}, which GGUF does not define")]
    ValueType {
        /// The key or element.
        what: String,
        /// The id found.
        id: u32,
    },
    /// One part of a GGUF file that was split, under a name that does not tell the others'.
    #[error(
        "part {part} of a GGUF file split into {parts}, and its name does not lead to the others: keep all in one folder as \
         NAME-{part:05}-of-{parts:05}.gguf and so on"
    )]
    SplitGguf {
        /// This part, from 1.
        part: u64,
        /// Parts in all.
        parts: u64,
    },

    // Files and folders.
    /// A Git LFS pointer instead of the file.
    #[error(
        "this is a Git LFS pointer, not the file itself: run `git lfs pull` in the clone, or download the file again"
    )]
    LfsPointer,
    /// A web page saved under the name of a model.
    #[error("this is a web page, not a model: the download was redirected or refused; fetch it again")]
    WebPage,
    /// Nothing to read.
    #[error("the file is empty: is the download complete?")]
    Empty,
    /// A file name that is not one of ours.
    #[error("`{path}` is neither a .gguf nor a .safetensors file, nor a folder that holds one")]
    UnknownExtension {
        /// The path asked for.
        path: String,
    },
    /// Nothing at this path.
    #[error("there is no file or folder `{path}`: check the spelling and the current directory")]
    MissingPath {
        /// The path asked for.
        path: String,
    },
    /// A path that could not be looked at.
    #[error("cannot open `{path}`")]
    Path {
        /// The path asked for.
        path: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A folder without weights.
    #[error(
        "there are no weights in `{path}`: expected model.safetensors, model.safetensors.index.json or one .gguf file{found}"
    )]
    NoWeights {
        /// The folder.
        path: String,
        /// What is there instead, with the remedy.
        found: &'static str,
    },
    /// A folder with several candidates.
    #[error("`{path}` holds several models ({files}): name one of them")]
    SeveralModels {
        /// The folder.
        path: String,
        /// The candidates.
        files: String,
    },
    /// A file that must be in the folder.
    #[error("`{file}` is missing: it belongs beside the weights{why}")]
    MissingFile {
        /// Its name.
        file: String,
        /// Who asks for it.
        why: String,
    },
    /// A shard whose name is not a plain .safetensors file name.
    #[error(
        "tensor `{tensor}` is listed in shard `{shard}`, which is not the name of a .safetensors file in this folder"
    )]
    ShardName {
        /// The tensor.
        tensor: String,
        /// The shard's name.
        shard: String,
    },
    /// The index lists a tensor that its shard does not have.
    #[error(
        "tensor `{tensor}` is listed in shard `{shard}`, but is not there: index and shards are of different checkpoints"
    )]
    NotInShard {
        /// The tensor.
        tensor: String,
        /// The shard.
        shard: String,
    },
    /// A shard has a tensor that the index does not list there.
    #[error(
        "shard `{shard}` holds tensor `{tensor}`, which the index does not list there: index and shards are of different checkpoints"
    )]
    NotInIndex {
        /// The tensor.
        tensor: String,
        /// The shard.
        shard: String,
    },
}

impl FormatError {
    /// This error, said of `file`.
    pub(crate) fn in_file(self, file: &str) -> Self {
        match self {
            // These name their file or folder already.
            Self::File { .. } | Self::Open(_) => self,
            source => Self::File { file: shown(file), source: Box::new(source) },
        }
    }
}

/// A name from the file, made fit for a message: control characters escaped, at most 80 characters.
pub(crate) fn shown(name: &str) -> String {
    const LEN_MAX: usize = 80;
    let mut text: String = name.chars().take(LEN_MAX).flat_map(shown_char).collect();
    if name.chars().nth(LEN_MAX).is_some() {
        text.push('…');
    }
    text
}

/// Keeps quotes readable; everything else that does not print is escaped.
fn shown_char(c: char) -> impl Iterator<Item = char> {
    let (plain, escaped) =
        if matches!(c, '"' | '\'' | '\\') { (Some(c), None) } else { (None, Some(c.escape_debug())) };
    plain.into_iter().chain(escaped.into_iter().flatten())
}
