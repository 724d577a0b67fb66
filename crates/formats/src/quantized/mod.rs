//! Weights that a safetensors checkpoint holds quantised: several tensors that make one.
//!
//! `scheme` reads what the configuration says; here tensors are gathered to weights, their shapes and types held against
//! it, and a [`WeightFormat`] is found that holds what they mean; `matrix` decodes. A weight is decoded when it is read,
//! one at a time.
//!
//! Formats   integers of up to four bits with f16 scales for whole multiples of 32 features are Q4_0 or, with zero points,
//!           Q5_0 (codes less zero: -15 to 15, which Q4_1 has only where f16 has scale times zero); of eight bits without
//!           zero points Q8_0; MXFP4 is MXFP4; E2M1 with f16 scales is Q5_0, twice its numbers being integers up to 12: all exactly. E4M3 with scales for whole multiples of 32 features is FP8, whose
//!           scales are rounded where f16 has them not. NVFP4 is NVFP4, up to the rounding of a division. Everything else becomes
//!           F16 or BF16, whichever loses less for the scales at hand, and so do FP8 and NVFP4 on demand. So does what lists the
//!           group of each feature ("act-order"), unless its features are sorted by group first: then it is as any other, and
//!           the rows that it multiplies are gathered in that order.
//! Source    the decoders of GPTQ (AutoGPTQ), AutoAWQ, compressed-tensors, transformers (fp8, mxfp4) and ModelOpt;
//!           `tools/goldens/quantized_weights.py` compares.

mod group;
mod matrix;
mod pack;
mod scheme;

use std::sync::Arc;

use bytes::Bytes;
use tensor::quant::nvfp4;
use tensor::{Tensor, WeightFormat};

use crate::{FormatError, error::shown, experts::Stack, safetensors::SafetensorsTensor};

pub(crate) use matrix::nearest_float;
use matrix::{Codes, Dtype, Features, Grid, Matrix, RowSet, Zeros, sorted};
pub use pack::{PackedLayout, PackedPart, PackedRows, PackedTensor};
pub(crate) use scheme::Scheme;
use scheme::{Numbers, Steps, StoredZeros, WeightScheme};

/// Tensors beside weights that are about activations and the cache, which are not quantised here.
const OF_ACTIVATIONS: [&str; 8] = [
    ".input_scale",
    ".input_zero_point",
    ".input_global_scale",
    ".output_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".prob_scale",
];

/// A tensor of some file of the checkpoint.
pub(crate) trait Files {
    /// What the header says of it.
    fn info(&self, file: u32, index: u32) -> Option<&SafetensorsTensor>;
    /// Its bytes; an error where the file ends before.
    fn bytes(&self, file: u32, index: u32) -> Result<Bytes, FormatError>;
}

/// A name, and where the tensor is.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) file: u32,
    pub(crate) index: u32,
}

/// What the tensors of a checkpoint are.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) weights: Vec<QuantizedWeight>,
    /// Not part of one.
    pub(crate) plain: Vec<Named>,
    /// About activations.
    pub(crate) ignored: Vec<String>,
}

/// A weight that several tensors make.
#[derive(Debug)]
pub(crate) struct QuantizedWeight {
    /// The checkpoint's name for it, were it not quantised.
    pub(crate) name: String,
    /// The tensor with its codes.
    pub(crate) source_name: String,
    /// What it is, in a word or two.
    pub(crate) type_name: &'static str,
    /// Dimensions, outermost first.
    pub(crate) shape: Vec<u64>,
    /// Bytes of all its tensors.
    pub(crate) bytes: u64,
    /// The file of its codes.
    pub(crate) file: u32,
    /// What it is read as.
    pub(crate) format: WeightFormat,
    /// Whether that is exactly what it means.
    pub(crate) exact: bool,
    parts: Parts,
    rows: usize,
    cols: usize,
    coding: Coding,
    steps: Steps,
    /// The features in the order of their groups, where it is read so: the place of each in the tensors.
    order: Option<Arc<[u32]>>,
}

/// How codes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Gptq {
        bits: u32,
        zeros: StoredZeros,
    },
    Awq,
    /// compressed-tensors: words along a row.
    Packed {
        bits: u32,
    },
    /// Signed bytes.
    Int8,
    E4m3,
    /// Two a byte, the first in the lower half; the scale of the tensor is divided by, or multiplied with.
    Nvfp4 {
        divides: bool,
    },
    Mxfp4,
    /// As [`Coding::Mxfp4`], with numbers as scales.
    Fp4,
}

/// The tensors of a weight.
#[derive(Clone, Copy, Debug)]
struct Parts {
    codes: Part,
    scales: Part,
    zeros: Option<Part>,
    /// The group of each feature.
    order: Option<Part>,
    /// What all scales are multiplied with, or divided by.
    global: Option<Part>,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    file: u32,
    index: u32,
}

/// Looks for tensors of a weight, and remembers which it took.
struct Search<'a, F> {
    files: &'a F,
    /// Sorted by name.
    names: &'a [Named],
    taken: Vec<bool>,
}

impl<'a, F: Files> Search<'a, F> {
    fn find(&self, name: &str) -> Option<usize> {
        self.names.binary_search_by(|named| named.name.as_str().cmp(name)).ok()
    }

    fn info(&self, at: usize) -> Option<&'a SafetensorsTensor> {
        self.names.get(at).and_then(|named| self.files.info(named.file, named.index))
    }
}

/// The tensors of one weight, while it is put together.
struct Draft<'a, 'b, F> {
    search: &'b Search<'a, F>,
    stem: &'b str,
    used: Vec<usize>,
}

impl<'a, F: Files> Draft<'a, '_, F> {
    /// `stem` with `end`, if it is there.
    fn part(&mut self, end: &str) -> Option<(Part, &'a SafetensorsTensor)> {
        let at = self.search.find(&format!("{}{end}", self.stem))?;
        let info = self.search.info(at)?;
        let named = &self.search.names[at];
        self.used.push(at);
        Some((Part { file: named.file, index: named.index }, info))
    }

    fn needed(&mut self, end: &str) -> Result<(Part, &'a SafetensorsTensor), FormatError> {
        let missing = || self.misfit(format!("there is no `{}`", shown(&format!("{}{end}", self.stem))));
        match self.search.find(&format!("{}{end}", self.stem)) {
            None => Err(missing()),
            Some(_) => self.part(end).ok_or_else(|| self.misfit(format!("there is no `{end}`"))),
        }
    }

    /// The tensor that lists a group for each of `cols` features, if there is one.
    fn order(&mut self, end: &str, cols: u64) -> Result<Option<Part>, FormatError> {
        let Some((part, info)) = self.part(end) else { return Ok(None) };
        self.check(info, &["I32"], &[&[cols]])?;
        Ok(Some(part))
    }

    fn misfit(&self, what: String) -> FormatError {
        FormatError::QuantizedWeight { weight: shown(self.stem), what }
    }

    /// Holds type and shape of a tensor against what they must be.
    fn check(&self, info: &SafetensorsTensor, dtypes: &[&str], shapes: &[&[u64]]) -> Result<(), FormatError> {
        if !dtypes.contains(&info.dtype()) {
            let expected = dtypes.join(" or ");
            return Err(self.misfit(format!("`{}` is {}, not {expected}", shown(info.name()), info.dtype())));
        }
        if !shapes.contains(&info.shape()) {
            let expected = shapes.iter().map(|shape| format!("{shape:?}")).collect::<Vec<_>>().join(" or ");
            let found = info.shape();
            return Err(self.misfit(format!("`{}` has the shape {found:?}, not {expected}", shown(info.name()))));
        }
        Ok(())
    }
}

const FLOATS: [&str; 3] = ["F16", "BF16", "F32"];

/// Finds the weights that tensors make. `names` are sorted.
pub(crate) fn gather(scheme: &Scheme, names: &[Named], files: &impl Files) -> Result<Gathered, FormatError> {
    let mut search = Search { files, names, taken: vec![false; names.len()] };
    let mut gathered = Gathered::default();
    for (at, named) in names.iter().enumerate() {
        let Some((stem, end)) = primary(scheme, named, files) else { continue };
        let mut draft = Draft { search: &search, stem, used: Vec::new() };
        let weight = match scheme {
            Scheme::Gptq { bits, steps, zeros } => gptq(&mut draft, *bits, *steps, *zeros)?,
            Scheme::Awq { steps } => awq(&mut draft, *steps)?,
            Scheme::CompressedTensors(schemes) => compressed(&mut draft, schemes, end)?,
            Scheme::Fp8 { steps } => fp8(&mut draft, *steps)?,
            Scheme::ModelOptFp8 => fp8(&mut draft, Steps::Tensor)?,
            Scheme::ModelOptNvfp4 => nvfp4(&mut draft, end)?,
            Scheme::Mxfp4 => gpt_oss(&mut draft)?,
        };
        let used = draft.used;
        debug_assert!(used.contains(&at));
        used.into_iter().for_each(|at| search.taken[at] = true);
        gathered.weights.push(weight);
    }
    for (named, taken) in names.iter().zip(&search.taken) {
        if OF_ACTIVATIONS.iter().any(|end| named.name.ends_with(end)) {
            gathered.ignored.push(named.name.clone());
        } else if !taken {
            gathered.plain.push(named.clone());
        }
    }
    for weight in &mut gathered.weights {
        weight.choose_format(files);
    }
    Ok(gathered)
}

/// The name of a weight without its end, if this tensor holds the codes of one.
fn primary<'a>(scheme: &Scheme, named: &'a Named, files: &impl Files) -> Option<(&'a str, &'static str)> {
    let dtype = files.info(named.file, named.index).map_or("", SafetensorsTensor::dtype);
    let ends = |end: &'static str| named.name.strip_suffix(end).map(|stem| (stem, end));
    match scheme {
        Scheme::Gptq { .. } | Scheme::Awq { .. } => ends(".qweight"),
        Scheme::CompressedTensors(_) => {
            ends(".weight_packed").or_else(|| ends(".weight").filter(|_| matches!(dtype, "F8_E4M3" | "I8")))
        }
        Scheme::Fp8 { .. } | Scheme::ModelOptFp8 => ends(".weight").filter(|_| dtype == "F8_E4M3"),
        Scheme::ModelOptNvfp4 => ends(".weight").filter(|_| dtype == "U8"),
        Scheme::Mxfp4 => ends("_blocks").filter(|_| dtype == "U8"),
    }
}

/// Groups of `steps` in a row of `cols`; features of one; 0 of them where rows are not cut.
fn groups(steps: Steps, cols: u64) -> u64 {
    match steps {
        Steps::Tensor | Steps::Channel => 1,
        Steps::Group(size) | Steps::Block(_, size) => cols.div_ceil(size),
    }
}

fn gptq<F: Files>(
    draft: &mut Draft<'_, '_, F>,
    bits: u32,
    steps: Steps,
    zeros: StoredZeros,
) -> Result<QuantizedWeight, FormatError> {
    let codes = draft.needed(".qweight")?;
    let (words, rows) = matrix_of(draft, codes.1)?;
    let cols = exact_codes(draft, codes.1, words, bits)?;
    draft.check(codes.1, &["I32"], &[&[words, rows]])?;
    let groups = groups(steps, cols);
    let scales = draft.needed(".scales")?;
    draft.check(scales.1, &FLOATS, &[&[groups, rows]])?;
    let zero_points = draft.needed(".qzeros")?;
    draft.check(zero_points.1, &["I32"], &[&[groups, rows.saturating_mul(bits.into()).div_ceil(32)]])?;
    let order = draft.order(".g_idx", cols)?;
    let parts = Parts { codes: codes.0, scales: scales.0, zeros: Some(zero_points.0), order, global: None };
    let type_name = match bits {
        2 => "GPTQ INT2",
        3 => "GPTQ INT3",
        4 => "GPTQ INT4",
        _ => "GPTQ INT8",
    };
    weight(draft, type_name, codes.1, vec![rows, cols], parts, Coding::Gptq { bits, zeros }, steps)
}

fn awq<F: Files>(draft: &mut Draft<'_, '_, F>, steps: Steps) -> Result<QuantizedWeight, FormatError> {
    let codes = draft.needed(".qweight")?;
    let (cols, words) = matrix_of(draft, codes.1)?;
    let rows = exact_codes(draft, codes.1, words, 4)?;
    draft.check(codes.1, &["I32"], &[&[cols, words]])?;
    let groups = groups(steps, cols);
    let scales = draft.needed(".scales")?;
    draft.check(scales.1, &FLOATS, &[&[groups, rows]])?;
    let zeros = draft.needed(".qzeros")?;
    draft.check(zeros.1, &["I32"], &[&[groups, words]])?;
    let parts = Parts { codes: codes.0, scales: scales.0, zeros: Some(zeros.0), order: None, global: None };
    weight(draft, "AWQ INT4", codes.1, vec![rows, cols], parts, Coding::Awq, steps)
}

/// The first of the schemes that the tensors fit; the error of the first where there is none.
fn compressed<F: Files>(
    draft: &mut Draft<'_, '_, F>,
    schemes: &[WeightScheme],
    end: &'static str,
) -> Result<QuantizedWeight, FormatError> {
    let mut error = None;
    for scheme in schemes {
        draft.used.clear();
        match compressed_as(draft, scheme, end) {
            Ok(weight) => return Ok(weight),
            Err(found) => error = error.or(Some(found)),
        }
    }
    Err(error.unwrap_or_else(|| draft.misfit("no group of config_groups quantises weights".into())))
}

fn compressed_as<F: Files>(
    draft: &mut Draft<'_, '_, F>,
    scheme: &WeightScheme,
    end: &'static str,
) -> Result<QuantizedWeight, FormatError> {
    let codes = draft.needed(end)?;
    let (rows, width) = matrix_of(draft, codes.1)?;
    let (coding, type_name, cols, dtype) = match (scheme.numbers, end) {
        (Numbers::Int(bits), ".weight_packed") => {
            let cols = packed_cols(draft, rows, width, bits)?;
            let type_name = if bits == 4 { "INT4" } else { "INT8" };
            (Coding::Packed { bits }, type_name, cols, "I32")
        }
        (Numbers::Int(_), _) => (Coding::Int8, "INT8", width, "I8"),
        (Numbers::E4m3, ".weight") => (Coding::E4m3, "FP8 E4M3", width, "F8_E4M3"),
        (Numbers::Nvfp4, ".weight_packed") => return nvfp4(draft, end),
        (Numbers::Mxfp4 | Numbers::E2m1, ".weight_packed") => {
            let cols = width.checked_mul(2).ok_or_else(|| overflow(draft.stem))?;
            let scales = draft.search.find(&format!("{}.weight_scale", draft.stem));
            let scales = scales.and_then(|at| draft.search.info(at));
            match scheme.numbers == Numbers::E2m1 || scales.is_some_and(|scales| FLOATS.contains(&scales.dtype())) {
                true => (Coding::Fp4, "FP4 E2M1", cols, "U8"),
                false => (Coding::Mxfp4, "MXFP4", cols, "U8"),
            }
        }
        _ => return Err(draft.misfit(format!("`{}{end}` holds codes of another scheme", shown(draft.stem)))),
    };
    draft.check(codes.1, &[dtype], &[&[rows, width]])?;
    let scales = draft.needed(".weight_scale")?;
    let scale_types: &[&str] = if coding == Coding::Mxfp4 { &["U8", "F8_E8M0"] } else { &FLOATS };
    check_scales(draft, scales.1, scale_types, rows, cols, scheme.steps)?;
    let zeros = if scheme.symmetric { None } else { Some(draft.needed(".weight_zero_point")?) };
    if let Some((_, zeros)) = zeros {
        let groups = groups(scheme.steps, cols);
        match coding {
            Coding::Packed { bits } => {
                draft.check(zeros, &["I32"], &[&[rows.saturating_mul(bits.into()).div_ceil(32), groups]])?;
            }
            _ => check_scales(draft, zeros, &["I8"], rows, cols, scheme.steps)?,
        }
    }
    let order = draft.order(".weight_g_idx", cols)?;
    let parts = Parts { codes: codes.0, scales: scales.0, zeros: zeros.map(|zeros| zeros.0), order, global: None };
    weight(draft, type_name, codes.1, vec![rows, cols], parts, coding, scheme.steps)
}

/// The features of a packed row: what `weight_shape` says, or what the words hold.
fn packed_cols<F: Files>(draft: &mut Draft<'_, '_, F>, rows: u64, width: u64, bits: u32) -> Result<u64, FormatError> {
    let cols = width.checked_mul(32 / u64::from(bits)).ok_or_else(|| overflow(draft.stem))?;
    let Some((part, info)) = draft.part(".weight_shape") else { return Ok(cols) };
    draft.check(info, &["I64", "I32"], &[&[2]])?;
    // Its data may not have arrived.
    let Ok(bytes) = draft.search.files.bytes(part.file, part.index) else { return Ok(cols) };
    let size = bytes.len() / 2;
    let number = |bytes: &[u8]| match *bytes {
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    };
    let (found_rows, found_cols) = (number(&bytes[..size]), number(&bytes[size..]));
    // The last word may be filled up.
    if found_rows != rows || found_cols > cols || found_cols.saturating_mul(u64::from(bits)).div_ceil(32) != width {
        let what = format!("`weight_shape` is [{found_rows}, {found_cols}], which `weight_packed` does not hold");
        return Err(draft.misfit(what));
    }
    Ok(found_cols)
}

fn fp8<F: Files>(draft: &mut Draft<'_, '_, F>, steps: Steps) -> Result<QuantizedWeight, FormatError> {
    let codes = draft.needed(".weight")?;
    let (rows, cols) = matrix_of(draft, codes.1)?;
    let inverse = draft.search.find(&format!("{}.weight_scale_inv", draft.stem)).is_some();
    let scales = draft.needed(if inverse { ".weight_scale_inv" } else { ".weight_scale" })?;
    let mut types = FLOATS.to_vec();
    types.push("F8_E8M0");
    check_scales(draft, scales.1, &types, rows, cols, steps)?;
    let parts = Parts { codes: codes.0, scales: scales.0, zeros: None, order: None, global: None };
    weight(draft, "FP8 E4M3", codes.1, vec![rows, cols], parts, Coding::E4m3, steps)
}

/// Of compressed-tensors, and of ModelOpt, where codes are called `weight`.
fn nvfp4<F: Files>(draft: &mut Draft<'_, '_, F>, end: &'static str) -> Result<QuantizedWeight, FormatError> {
    let divides = end == ".weight_packed";
    let codes = draft.needed(end)?;
    let (rows, width) = matrix_of(draft, codes.1)?;
    let cols = width.checked_mul(2).ok_or_else(|| overflow(draft.stem))?;
    draft.check(codes.1, &["U8"], &[&[rows, width]])?;
    let steps = Steps::Group(16);
    let scales = draft.needed(".weight_scale")?;
    check_scales(draft, scales.1, &["F8_E4M3"], rows, cols, steps)?;
    let global = draft.needed(if divides { ".weight_global_scale" } else { ".weight_scale_2" })?;
    draft.check(global.1, &["F32"], &[&[], &[1]])?;
    let parts = Parts { codes: codes.0, scales: scales.0, zeros: None, order: None, global: Some(global.0) };
    weight(draft, "NVFP4", codes.1, vec![rows, cols], parts, Coding::Nvfp4 { divides }, steps)
}

/// gpt-oss: (experts, rows, groups, 16) bytes and (experts, rows, groups) powers of two.
fn gpt_oss<F: Files>(draft: &mut Draft<'_, '_, F>) -> Result<QuantizedWeight, FormatError> {
    let codes = draft.needed("_blocks")?;
    let shape = codes.1.shape();
    let [outer @ .., groups, 16] = shape else {
        return Err(draft.misfit(format!("`{}` has the shape {shape:?}, not [.., 16]", shown(codes.1.name()))));
    };
    if outer.is_empty() {
        return Err(
            draft.misfit(format!("`{}` has the shape {shape:?}, not [rows, groups, 16]", shown(codes.1.name())))
        );
    }
    let scales = draft.needed("_scales")?;
    draft.check(codes.1, &["U8"], &[shape])?;
    draft.check(scales.1, &["U8"], &[&shape[..shape.len() - 1]])?;
    let mut logical = outer.to_vec();
    logical.push(groups.checked_mul(32).ok_or_else(|| overflow(draft.stem))?);
    let parts = Parts { codes: codes.0, scales: scales.0, zeros: None, order: None, global: None };
    weight(draft, "MXFP4", codes.1, logical, parts, Coding::Mxfp4, Steps::Group(32))
}

fn overflow(stem: &str) -> FormatError {
    FormatError::Overflow { what: format!("weight `{}`", shown(stem)) }
}

/// The two dimensions of a tensor.
fn matrix_of<F>(draft: &Draft<'_, '_, F>, info: &SafetensorsTensor) -> Result<(u64, u64), FormatError>
where
    F: Files,
{
    match *info.shape() {
        [a, b] => Ok((a, b)),
        ref shape => Err(draft.misfit(format!("`{}` has the shape {shape:?}, not two dimensions", shown(info.name())))),
    }
}

/// Codes of `bits` in so many words, which they must fill.
fn exact_codes<F: Files>(
    draft: &Draft<'_, '_, F>,
    info: &SafetensorsTensor,
    words: u64,
    bits: u32,
) -> Result<u64, FormatError> {
    let all = words.checked_mul(32).ok_or_else(|| overflow(draft.stem))?;
    if !all.is_multiple_of(u64::from(bits)) {
        let what = format!("the {words} words of a column of `{}` do not divide into {bits} bits", shown(info.name()));
        return Err(draft.misfit(what));
    }
    Ok(all / u64::from(bits))
}

fn check_scales<F: Files>(
    draft: &Draft<'_, '_, F>,
    info: &SafetensorsTensor,
    dtypes: &[&str],
    rows: u64,
    cols: u64,
    steps: Steps,
) -> Result<(), FormatError> {
    match steps {
        Steps::Tensor => draft.check(info, dtypes, &[&[], &[1], &[1, 1]]),
        Steps::Channel => draft.check(info, dtypes, &[&[rows, 1], &[rows]]),
        Steps::Group(_) => draft.check(info, dtypes, &[&[rows, groups(steps, cols)]]),
        Steps::Block(of_rows, _) => draft.check(info, dtypes, &[&[rows.div_ceil(of_rows), groups(steps, cols)]]),
    }
}

/// Puts a weight together; its format is chosen later.
fn weight<F: Files>(
    draft: &Draft<'_, '_, F>,
    type_name: &'static str,
    codes: &SafetensorsTensor,
    shape: Vec<u64>,
    parts: Parts,
    coding: Coding,
    steps: Steps,
) -> Result<QuantizedWeight, FormatError> {
    let too_large = || overflow(draft.stem);
    let cols = shape.last().copied().unwrap_or(0);
    let rows = shape.iter().rev().skip(1).try_fold(1u64, |rows, &dim| rows.checked_mul(dim)).ok_or_else(too_large)?;
    let (rows, cols) = usize::try_from(rows).ok().zip(usize::try_from(cols).ok()).ok_or_else(too_large)?;
    // As F32, the largest that it may become.
    rows.checked_mul(cols).and_then(|len| len.checked_mul(4)).ok_or_else(too_large)?;
    let bytes = draft.used.iter().filter_map(|&at| draft.search.info(at)).map(|info| info.range().len()).sum();
    // gpt-oss gives tensors their own names.
    let is_module = !codes.name().ends_with("_blocks");
    let name = if is_module { format!("{}.weight", draft.stem) } else { draft.stem.to_owned() };
    Ok(QuantizedWeight {
        name,
        source_name: codes.name().to_owned(),
        type_name,
        shape,
        bytes,
        file: parts.codes.file,
        format: WeightFormat::F16,
        exact: false,
        parts,
        rows,
        cols,
        coding,
        steps,
        order: None,
    })
}

impl QuantizedWeight {
    /// The weight in [`QuantizedWeight::format`].
    pub(crate) fn read(&self, files: &impl Files) -> Result<Tensor, FormatError> {
        let matrix = self.matrix(files)?;
        let too_large = || overflow(&self.name);
        let shape: Option<Vec<usize>> = self.shape.iter().map(|&dim| usize::try_from(dim).ok()).collect();
        let all = RowSet { first: 0, step: 1, count: self.rows };
        let bytes = matrix.decode(self.format, all).ok_or_else(too_large)?;
        Tensor::new(self.format, shape.ok_or_else(too_large)?, bytes).map_err(|_| too_large())
    }

    /// One expert of a weight that is a stack of matrices, in [`QuantizedWeight::format`].
    pub(crate) fn read_expert(&self, stack: &Stack, expert: u32, files: &impl Files) -> Result<Tensor, FormatError> {
        let too_large = || overflow(&self.name);
        let shape: Option<Vec<usize>> =
            stack.shape(&self.shape).into_iter().map(|dim| usize::try_from(dim).ok()).collect();
        let outputs = self.shape.get(1).and_then(|&outputs| usize::try_from(outputs).ok()).ok_or_else(too_large)?;
        let (first, step, count) = stack.take.of(outputs);
        let start = usize::try_from(expert).ok().and_then(|expert| expert.checked_mul(outputs)?.checked_add(first));
        let rows = RowSet { first: start.ok_or_else(too_large)?, step, count };
        let bytes = self.matrix(files)?.decode(self.format, rows).ok_or_else(too_large)?;
        Tensor::new(self.format, shape.ok_or_else(too_large)?, bytes).map_err(|_| too_large())
    }

    /// F16 or BF16, whichever is nearer to what it means; `true` where that is exact.
    pub(crate) fn nearest_float(&self, files: &impl Files) -> (WeightFormat, bool) {
        self.matrix(files).map_or((WeightFormat::F16, false), |matrix| matrix.nearest_float())
    }

    /// Rows from `first` on, in a format that has rows of it.
    pub(crate) fn read_rows(
        &self,
        (first, count): (usize, usize),
        format: WeightFormat,
        files: &impl Files,
    ) -> Result<Tensor, FormatError> {
        let too_large = || overflow(&self.name);
        let rows = RowSet { first, step: 1, count };
        let bytes = self.matrix(files)?.decode(format, rows).ok_or_else(too_large)?;
        Tensor::new(format, vec![count, self.cols], bytes).map_err(|_| too_large())
    }

    /// From now on F16 or BF16, where it would be FP8 or NVFP4 and `is_computed` says no to that. Returns whether its format is
    /// another than before.
    pub(crate) fn expand_unless(&mut self, files: &impl Files, is_computed: impl Fn(WeightFormat) -> bool) -> bool {
        if !matches!(self.coding, Coding::E4m3 | Coding::Nvfp4 { .. }) {
            return false;
        }
        let before = self.format;
        self.choose_format(files);
        if !is_computed(self.format) {
            (self.format, self.exact) = match self.matrix(files) {
                Ok(matrix) => matrix.nearest_float(),
                Err(_) => (WeightFormat::F16, false),
            };
        }
        self.format != before
    }

    /// From now on has its features in the order of their groups, where each has a group of its own and it can stay packed so.
    pub(crate) fn sort_features(&mut self, files: &impl Files) {
        // A table is looked up by rows, and nothing is gathered before it. Heads of latent attention share rows, as
        // experts.
        let is_apart = ["embed", "kv_b_proj"].iter().any(|part| self.name.contains(part));
        if self.order.is_some() || self.parts.order.is_none() || is_apart {
            return;
        }
        let Ok(Matrix { features: Features::Listed(of_feature), col_step, .. }) = self.matrix(files) else { return };
        self.order = sorted(&of_feature, col_step).map(Arc::from);
        self.choose_format(files);
        if !self.format.is_quantized() {
            self.order = None;
            self.choose_format(files);
        }
    }

    /// The order of its features, where it is not theirs: feature i of it is this one of what it multiplies.
    pub(crate) fn order(&self) -> Option<&[u32]> {
        self.order.as_deref()
    }

    /// Looks at the scales. Where these have not arrived, what their type suggests.
    fn choose_format(&mut self, files: &impl Files) {
        let in_blocks = match self.steps {
            Steps::Tensor | Steps::Channel => true,
            Steps::Group(size) | Steps::Block(_, size) => size.is_multiple_of(32) || size >= self.cols as u64,
        };
        (self.format, self.exact) = match self.matrix(files) {
            Ok(matrix) => matrix.format(),
            Err(_) => match (self.coding, self.cols.is_multiple_of(32)) {
                (Coding::Packed { bits: 4 }, true) if self.parts.zeros.is_none() => (WeightFormat::Q4_0, false),
                (Coding::Gptq { bits: 8, .. } | Coding::Packed { bits: 8 } | Coding::Int8, true) => {
                    (WeightFormat::Q8_0, false)
                }
                (Coding::Gptq { .. } | Coding::Packed { .. } | Coding::Awq, true) => (WeightFormat::Q5_0, false),
                (Coding::Mxfp4, true) => (WeightFormat::MXFP4, false),
                (Coding::Fp4, true) if in_blocks => (WeightFormat::Q5_0, false),
                (Coding::E4m3, true) if in_blocks => (WeightFormat::FP8, false),
                (Coding::Nvfp4 { .. }, true) if self.cols.is_multiple_of(nvfp4::BLOCK_LEN) => {
                    (WeightFormat::NVFP4, false)
                }
                _ => (WeightFormat::F16, false),
            },
        };
    }

    fn matrix(&self, files: &impl Files) -> Result<Matrix, FormatError> {
        let misfit = |what: String| FormatError::QuantizedWeight { weight: shown(&self.name), what };
        let bytes = |part: Part| files.bytes(part.file, part.index);
        let (rows, cols) = (self.rows, self.cols);
        let codes = bytes(self.parts.codes)?;
        let is_column_major = matches!(self.coding, Coding::Gptq { .. } | Coding::Awq);
        let codes = match self.coding {
            Coding::Gptq { bits, .. } => Codes::Columns { words: codes, bits },
            Coding::Awq => Codes::Awq(codes),
            Coding::Packed { bits } => {
                Codes::Rows { words: codes, bits, row_words: (cols * bits as usize).div_ceil(32) }
            }
            Coding::Int8 => Codes::Signed(codes),
            Coding::E4m3 => Codes::E4m3(codes),
            Coding::Nvfp4 { .. } | Coding::Mxfp4 | Coding::Fp4 => Codes::E2m1(codes),
        };
        let (row_step, col_step) = match self.steps {
            Steps::Tensor => (usize::MAX, usize::MAX),
            Steps::Channel => (1, usize::MAX),
            Steps::Group(size) => (1, usize::try_from(size).unwrap_or(usize::MAX)),
            Steps::Block(of_rows, size) => {
                (usize::try_from(of_rows).unwrap_or(usize::MAX), usize::try_from(size).unwrap_or(usize::MAX))
            }
        };
        let groups = cols.div_ceil(col_step).max(1);
        let info = files.info(self.parts.scales.file, self.parts.scales.index);
        let dtype = match info.map_or("", SafetensorsTensor::dtype) {
            "F16" => Dtype::F16,
            "BF16" => Dtype::BF16,
            "F32" => Dtype::F32,
            "F8_E4M3" => Dtype::E4m3,
            _ => Dtype::E8m0,
        };
        let (row_stride, group_stride) = if is_column_major { (1, rows) } else { (groups, 1) };
        let global = match (self.parts.global, self.coding) {
            (Some(part), Coding::Nvfp4 { divides }) => {
                let bytes = bytes(part)?;
                let value = f32::from_le_bytes(*bytes.first_chunk().ok_or_else(|| overflow(&self.name))?);
                Some((value, divides))
            }
            _ => None,
        };
        let scales = Grid { bytes: bytes(self.parts.scales)?, dtype, row_step, row_stride, group_stride, global };
        let zeros = match (self.parts.zeros.map(bytes).transpose()?, self.coding) {
            (None, _) => Zeros::Middle,
            (Some(words), Coding::Gptq { bits, zeros }) => {
                let row_words = (rows * bits as usize).div_ceil(32);
                Zeros::Gptq { words, bits, row_words, added: u16::from(zeros == StoredZeros::LessOne) }
            }
            (Some(words), Coding::Awq) => Zeros::Awq { words, row_words: rows / 8 },
            (Some(words), Coding::Packed { bits }) => Zeros::Packed { words, bits, groups },
            (Some(bytes), _) => Zeros::Signed { bytes, row_step, row_stride: groups },
        };
        let features = match self.parts.order {
            None => Features::InOrder,
            Some(part) => {
                let of_feature: Vec<u32> =
                    bytes(part)?.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect();
                let in_order = of_feature.iter().enumerate().all(|(col, &group)| group as usize == col / col_step);
                if let Some(group) = of_feature.iter().find(|&&group| group as usize >= groups) {
                    return Err(misfit(format!("a feature is in group {group} of {groups}")));
                }
                match &self.order {
                    Some(order) => Features::Sorted(order.clone()),
                    None if in_order => Features::InOrder,
                    None => Features::Listed(of_feature),
                }
            }
        };
        Ok(Matrix { rows, cols, codes, scales, zeros, features, col_step })
    }
}
