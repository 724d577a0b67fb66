//! Writing a GGUF file with its matrices in another format.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use formats::gguf::{Value, nvfp4};
use formats::gguf_names::Names;
use tensor::{Tensor, WeightFormat};

use super::convert::{convert, damaged, matrix_scale};
use super::importance::Importances;
use super::job::{FormatOverride, PackedModel, PackingJob};
use super::loss::Loss;
use super::mix::{Mix, Model};
use super::scales::Scales;
use super::source::{self, CompanionTensor, EMBEDDINGS, Matrix, Source, stored};
use super::work::{Work, progress_bar};

/// The version of block layouts that ggml has had since 2023.
const QUANTIZATION_VERSION: u32 = 2;

/// Writes a GGUF file.
pub(crate) fn write(job: &PackingJob, mix: Mix, importance: &mut Importances) -> Result<PackedModel> {
    let source = Source::open(&job.source, mix.base)?;
    let matrices = source.matrices()?;
    let bytes_in: u64 = matrices.iter().map(|matrix| matrix.bytes).sum();
    let progress = progress_bar(bytes_in);
    let mut writer = source.metadata(&job.source)?;
    writer.set_metadata("general.quantization_version", Value::U32(QUANTIZATION_VERSION));
    writer.set_metadata("general.file_type", Value::U32(mix.file_type));
    importance.write_metadata(&job.importance, &mut writer);
    let losses = Rc::new(RefCell::new(Vec::new()));
    let mut used = vec![false; job.overrides.len()];
    let rows = |matrix: &Matrix| (matrix.name.clone(), matrix.shape.first().copied().unwrap_or(0));
    let model = Model::of(matrices.iter().map(rows), importance.is_given());
    let names = source.names()?;
    for matrix in matrices {
        let is_vector = matrix.is_vector();
        let to = match is_vector {
            true => source.vector_format(),
            false => target(&matrix, names, mix, model, &job.overrides, &mut used)?,
        };
        let dims: Vec<u64> = matrix.shape.iter().rev().copied().collect();
        let (progress, source, losses) = (progress.clone(), source.clone(), losses.clone());
        let name = matrix.name.clone();
        let Some(to) = to.filter(|&format| !source.has(&matrix, format)) else {
            // As it is.
            let (ggml_type, len) = matrix.kept()?;
            let beside = source.beside(&matrix)?;
            let make = move |out: &mut dyn Write| {
                source.write_kept(&matrix, out)?;
                progress.inc(matrix.bytes);
                Ok(())
            };
            writer.made_tensor(&name, ggml_type, &dims, len, make);
            for CompanionTensor { name, ggml_type, dims, bytes } in beside {
                writer.raw_tensor(&name, ggml_type, &dims, bytes);
            }
            continue;
        };
        // Refused now, and not when half of the file is written.
        let (ggml_type, len) = stored(to, &matrix.name, &matrix.shape)?;
        let num_parts = matrix.num_parts();
        if matrix.format.is_none() {
            (0..num_parts).try_for_each(|part| source.tensor(&matrix, part).map(drop))?;
        }
        // Q8_0 has nothing to choose.
        let chooses = to.is_quantized() && to != WeightFormat::Q8_0;
        let weighted = if is_vector { None } else { importance.scales(&(&matrix).into(), chooses)? };
        let scales = weighted.unwrap_or(if job.plain { Scales::Plain } else { Scales::Searched });
        // Read when its turn comes: some are decoded then, and one tensor at a time is enough.
        let units = Rc::new(MatrixScales::default());
        if to == WeightFormat::NVFP4 {
            // Before the matrix: they are needed there, and are a number for each expert.
            let (source, matrix, units) = (source.clone(), matrix.clone(), units.clone());
            let make = move |out: &mut dyn Write| {
                (0..num_parts).try_for_each(|part| {
                    let found = units.of(part, || source.tensor(&matrix, part).map_err(damaged))?;
                    out.write_all(&found.to_le_bytes())
                })
            };
            let (f32, count) = (source::ggml_type(WeightFormat::F32)?, num_parts as u64);
            writer.made_tensor(&nvfp4::scale_name(&name), f32, &[count], 4 * count, make);
        }
        let make = move |out: &mut dyn Write| {
            progress.set_message(matrix.name.clone());
            let mut loss = Loss::none(&matrix.name, matrix.type_name, to.name());
            loss.weighted = matches!(scales, Scales::Weighted { .. }) && to.is_quantized();
            for part in 0..num_parts {
                let tensor = source.tensor(&matrix, part).map_err(damaged)?;
                let num_rows = (num_parts * tensor.num_rows()).max(1) as u64;
                let unit = if to == WeightFormat::NVFP4 { units.of(part, || Ok(tensor.clone()))? } else { 1.0 };
                let scales = scales.of_part(part, num_parts);
                convert(&tensor, to, unit, &scales, out, &mut loss, &mut |rows| {
                    progress.inc(matrix.bytes * rows as u64 / num_rows);
                })?;
            }
            if !is_vector {
                losses.borrow_mut().push(loss);
            }
            Ok(())
        };
        writer.made_tensor(&name, ggml_type, &dims, len, make);
    }
    if let Some(unused) = job.overrides.iter().zip(&used).find(|(_, used)| !**used) {
        bail!("--tensor {}: no matrix of `{}` has that in its name", unused.0.name, job.source);
    }
    importance.check(&job.source)?;
    source.check_header(writer.header())?;
    let identity = source.identity(&importance.identity(job.plain))?;
    let work = Work { path: &job.output, writer: &writer, losses: &losses, identity, is_part: false };
    let checked = |path: &Path| source.check(path);
    work.write(&progress, checked).with_context(|| format!("cannot write `{}`", job.output.display()))?;
    progress.finish_and_clear();
    let bytes_out = fs::metadata(&job.output)?.len();
    let losses = losses.borrow().clone();
    Ok(PackedModel { bytes_in, bytes_out, losses })
}

/// What a matrix becomes.
fn target(
    matrix: &Matrix,
    names: Names,
    mix: Mix,
    model: Model,
    overrides: &[FormatOverride],
    used: &mut [bool],
) -> Result<Option<WeightFormat>> {
    let row_len = matrix.shape.last().copied().unwrap_or(0);
    let divides = |format: WeightFormat| row_len.is_multiple_of(format.block_len() as u64);
    let chosen = overrides.iter().zip(used).filter(|(chosen, _)| chosen.is_of(&matrix.name, names, model.is_tied()));
    let chosen = chosen.map(|(chosen, used)| {
        *used = true;
        chosen.format
    });
    if let Some(chosen) = chosen.last() {
        source::ggml_type(chosen).context("--tensor")?;
        if chosen == WeightFormat::NVFP4 && !may_be_nvfp4(matrix, names) {
            bail!(
                "--tensor: llama.cpp knows no scale of `{}`, which NVFP4 has beside a matrix: choose mxfp4 or q4_k",
                matrix.name
            );
        }
        if !divides(chosen) {
            bail!("--tensor: rows of `{}` have {row_len} weights, which do not divide into {chosen}", matrix.name);
        }
        return Ok(Some(chosen));
    }
    let format = mix.format_of_rows(&matrix.name, model, usize::try_from(row_len)?);
    Ok(format.map(|format| match format {
        WeightFormat::NVFP4 if !may_be_nvfp4(matrix, names) => WeightFormat::Q8_0,
        other => other,
    }))
}

/// Whether llama.cpp looks for a scale beside this matrix: one of a projection, or the experts of a layer, which have
/// one each; embeddings are looked up without.
fn may_be_nvfp4(matrix: &Matrix, names: Names) -> bool {
    match matrix.shape.len() {
        2 => names.checkpoint_name(&matrix.name) != matrix.name && matrix.name != EMBEDDINGS,
        3 => names.checkpoint_expert(&matrix.name, 0).is_some(),
        _ => false,
    }
}

/// The scales of the matrices of a tensor in NVFP4, which two tensors need.
#[derive(Default)]
struct MatrixScales(RefCell<BTreeMap<usize, f32>>);

impl MatrixScales {
    /// That of matrix `part`, found by reading it once more where it is not known.
    fn of(&self, part: usize, tensor: impl FnOnce() -> io::Result<Tensor>) -> io::Result<f32> {
        if let Some(&found) = self.0.borrow().get(&part) {
            return Ok(found);
        }
        let found = matrix_scale(&tensor()?)?;
        self.0.borrow_mut().insert(part, found);
        Ok(found)
    }
}
