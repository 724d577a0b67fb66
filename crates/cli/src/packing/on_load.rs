//! `--quant`: weights in another format, made when a model is loaded and kept for the next time.
//!
//! Cache     `hotmetal/quantized` in the user's cache folder: a GGUF file with nothing but tensors for each model and
//!           format, named by a hash of both, written beside its name first. The hash takes in names, shapes and which
//!           files the weights are of ([`mapped::FileIdentity`]), and not every byte: reading them all would take as
//!           long as loading the model. The file that was used least recently is removed when the folder exceeds
//!           [`CACHE_BYTES_MAX`].

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use formats::Checkpoint;
use formats::gguf::{GgmlType, Gguf, GgufWriter, nvfp4};
use plan::Plan;
use sha2::{Digest, Sha256};
use tensor::{Tensor, WeightFormat};

use super::convert::{convert, damaged, matrix_scale};
use super::loss::Loss;
use super::mix::{Mix, Model};
use super::scales::Scales;
use super::source::{self, stored};
use crate::output::note;
use crate::{gguf_architectures, units};

/// Bytes that all models together may take in the cache.
const CACHE_BYTES_MAX: u64 = 64 << 30;

/// The tensors of `plan` with their matrices as `mix` says, from the cache in `folder` or made for it.
pub(crate) fn weights(checkpoint: &Checkpoint, plan: &Plan, mix: Mix, folder: Option<&Path>) -> Result<Vec<Tensor>> {
    let targets = targets(checkpoint, plan, mix)?;
    let Some(folder) = folder else {
        note("weights: no cache folder is known (set HOME or XDG_CACHE_HOME): they are quantised anew each time");
        return in_memory(checkpoint, &targets);
    };
    let path = folder.join(format!("{}.gguf", key(checkpoint, &targets)));
    if let Ok(found) = read(&path, &targets) {
        // What is in use goes last. A cache that cannot be written is as good to read.
        let _ = File::options().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        return Ok(found);
    }
    match write(checkpoint, &targets, &path) {
        Ok(bytes) => {
            let seen = path.display();
            note(&format!("weights: quantised to {} ({}), kept in `{seen}`", mix.name(), units::bytes(bytes)));
            remove_oldest(folder, &path, CACHE_BYTES_MAX);
            read(&path, &targets).with_context(|| format!("cannot read `{}` again", path.display()))
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error.into()),
        Err(error) => {
            note(&format!("weights: quantised to {}, and not kept in `{}`: {error}", mix.name(), folder.display()));
            in_memory(checkpoint, &targets)
        }
    }
}

/// A weight, and what it becomes.
struct TargetTensor {
    name: String,
    shape: Vec<usize>,
    format: WeightFormat,
}

fn targets(checkpoint: &Checkpoint, plan: &Plan, mix: Mix) -> Result<Vec<TargetTensor>> {
    let infos: Vec<_> = checkpoint.tensor_infos().collect();
    let model = Model::of_plan(plan);
    let names = gguf_architectures::names(&plan.model_type);
    let target = |weight: &plan::WeightInfo| {
        let at = infos.binary_search_by(|info| info.name.cmp(&weight.name));
        let info = at.ok().and_then(|at| infos.get(at)).with_context(|| format!("no tensor `{}`", weight.name))?;
        let Some(own) = info.format else { bail!("`{}` is of type {}, which is not read", info.name, info.type_name) };
        let shape = weight.shape.clone();
        let row_len = shape.last().copied().unwrap_or(0);
        let name = names.gguf_tensor(&weight.name).unwrap_or_else(|| weight.name.clone());
        let chosen = mix.format_of_rows(&name, model, row_len);
        let format = if shape.len() < 2 { own } else { chosen.unwrap_or(own) };
        Ok(TargetTensor { name: weight.name.clone(), shape, format })
    };
    plan.weights.iter().map(target).collect()
}

/// What the weights are, and what becomes of them, as a name.
fn key(checkpoint: &Checkpoint, targets: &[TargetTensor]) -> String {
    let mut hash = Sha256::new();
    hash.update(env!("CARGO_PKG_VERSION"));
    hash.update(source::identity(checkpoint));
    for target in targets {
        hash.update(format!("{} {:?} {}", target.name, target.shape, target.format));
    }
    units::hex(&hash.finalize())
}

/// The tensors in a file of the cache.
fn read(path: &Path, targets: &[TargetTensor]) -> Result<Vec<Tensor>> {
    let gguf = Gguf::read(mapped::map_own(path)?)?;
    let tensor = |target: &TargetTensor| {
        let tensor = gguf.tensor(&target.name)?;
        if tensor.shape() != target.shape || tensor.format() != target.format {
            bail!("`{}` holds another `{}`", path.display(), target.name);
        }
        Ok(tensor)
    };
    targets.iter().map(tensor).collect()
}

/// Writes a tensor as its target says, and as a GGUF file has it; returns what NVFP4 has beside it, and 1 of other
/// formats.
fn write_tensor(checkpoint: &Checkpoint, target: &TargetTensor, out: &mut dyn Write) -> io::Result<f32> {
    let tensor = checkpoint.tensor(&target.name).map_err(damaged)?;
    let is_nvfp4 = target.format == WeightFormat::NVFP4;
    if tensor.format() == target.format && !is_nvfp4 {
        return out.write_all(tensor.bytes()).map(|()| 1.0);
    }
    let unit = if is_nvfp4 { matrix_scale(&tensor)? } else { 1.0 };
    let mut loss = Loss::none(&target.name, "", target.format.name());
    convert(&tensor, target.format, unit, &Scales::Searched, out, &mut loss, &mut |_| ())?;
    Ok(unit)
}

impl TargetTensor {
    /// Its type in a GGUF file, and its size there.
    fn stored(&self) -> Result<(GgmlType, u64)> {
        let shape: Vec<u64> = self.shape.iter().map(|&dim| dim as u64).collect();
        stored(self.format, &self.name, &shape)
    }
}

fn in_memory(checkpoint: &Checkpoint, targets: &[TargetTensor]) -> Result<Vec<Tensor>> {
    let tensor = |target: &TargetTensor| {
        let mut bytes = Vec::with_capacity(usize::try_from(target.stored()?.1)?);
        let unit = write_tensor(checkpoint, target, &mut bytes)?;
        match target.format {
            WeightFormat::NVFP4 => Ok(nvfp4::tensor(&target.name, target.shape.clone(), unit, &bytes)?),
            format => Ok(Tensor::new(format, target.shape.clone(), Bytes::from(bytes))?),
        }
    };
    targets.iter().map(tensor).collect()
}

/// Writes a file of the cache, under its name when it is whole. Returns its size.
fn write(checkpoint: &Checkpoint, targets: &[TargetTensor], path: &Path) -> io::Result<u64> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // Of this process: another may be at the same work. What an earlier one of this number has left is removed, because
    // what is there may be a link that somebody else has made.
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    let _ = fs::remove_file(&partial);
    let written = (|| {
        let mut out = BufWriter::with_capacity(1 << 20, File::create_new(&partial)?);
        let mut header = GgufWriter::new();
        for target in targets {
            let dims: Vec<u64> = target.shape.iter().rev().map(|&dim| dim as u64).collect();
            // Written below, where the checkpoint is at hand.
            let (ggml_type, len) = target.stored().map_err(damaged)?;
            header.made_tensor(&target.name, ggml_type, &dims, len, |_| Ok(()));
        }
        let scaled = targets.iter().filter(|target| target.format == WeightFormat::NVFP4);
        for target in scaled.clone() {
            let ggml_type = source::ggml_type(WeightFormat::F32).map_err(damaged)?;
            header.made_tensor(&nvfp4::scale_name(&target.name), ggml_type, &[1], 4, |_| Ok(()));
        }
        let (start_of_file, offsets) = (header.header(), header.offsets());
        out.write_all(&start_of_file)?;
        let mut at = start_of_file.len() as u64;
        let mut units = Vec::new();
        for (target, &start) in targets.iter().zip(&offsets) {
            io::copy(&mut io::Read::take(io::repeat(0), start - at), &mut out)?;
            let unit = write_tensor(checkpoint, target, &mut out)?;
            units.extend((target.format == WeightFormat::NVFP4).then_some(unit));
            at = start + target.stored().map_err(damaged)?.1;
        }
        for (&start, unit) in offsets.iter().skip(targets.len()).zip(units) {
            io::copy(&mut io::Read::take(io::repeat(0), start - at), &mut out)?;
            out.write_all(&unit.to_le_bytes())?;
            at = start + 4;
        }
        let end = offsets[header.len()];
        io::copy(&mut io::Read::take(io::repeat(0), end - at), &mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&partial, path)?;
        Ok(end)
    })();
    if written.is_err() {
        // Best effort: the error that matters is the one above.
        let _ = fs::remove_file(&partial);
    }
    written
}

/// Removes what was not used for longest, but for `kept`, until no more than `most` bytes are left.
fn remove_oldest(folder: &Path, kept: &Path, most: u64) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let metadata = path.metadata().ok().filter(|_| path.extension().is_some_and(|ending| ending == "gguf"))?;
            Some((metadata.modified().ok()?, metadata.len(), path))
        })
        .collect();
    files.sort_unstable();
    let mut total: u64 = files.iter().map(|(_, len, _)| len).sum();
    for (_, len, path) in files.into_iter().filter(|(.., path)| path != kept) {
        if total <= most {
            break;
        }
        if fs::remove_file(&path).is_ok() {
            total -= len;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, age: u64| {
            let path = folder.path().join(name);
            fs::write(&path, [0; 100]).unwrap();
            let file = File::options().append(true).open(&path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
            path
        };
        let paths = [write("a.gguf", 30), write("b.gguf", 50), write("c.gguf", 10), write("d.txt", 90)];
        let left = || paths.iter().map(|path| path.exists()).collect::<Vec<_>>();
        remove_oldest(folder.path(), &paths[1], 300);
        assert_eq!(left(), [true, true, true, true]);
        // The one in use stays, though it is the oldest; other files are not counted.
        remove_oldest(folder.path(), &paths[1], 299);
        assert_eq!(left(), [false, true, true, true]);
        remove_oldest(folder.path(), &paths[1], 0);
        assert_eq!(left(), [false, true, false, true]);
    }

    #[test]
    fn one_changed_weight_is_another_model() {
        let (folder, models) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let builtin = Path::new(env!("CARGO_MANIFEST_DIR")).join("builtin");
        for entry in fs::read_dir(builtin).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, models.path().join(path.file_name().unwrap())).unwrap();
        }
        let weights_file = fs::read_dir(models.path()).unwrap().map(|entry| entry.unwrap().path());
        let weights_file = weights_file.into_iter().find(|path| path.extension().is_some_and(|e| e == "safetensors"));
        let weights_file = weights_file.expect("it has weights");
        let quantised = || {
            let checkpoint = Checkpoint::open(models.path(), &|path| Ok(mapped::map(path)?), &[]).unwrap();
            let plan = crate::load::plan::plan_of(&checkpoint).unwrap();
            weights(&checkpoint, &plan, "q8_0".parse().unwrap(), Some(folder.path())).unwrap()
        };
        let before = quantised();
        // In the middle of the file, where no sample of its ends is, and with the old time of modification.
        let mut bytes = fs::read(&weights_file).unwrap();
        let modified = weights_file.metadata().unwrap().modified().unwrap();
        let middle = (bytes.len() / 2) | 1;
        bytes[middle] ^= 0x3f;
        fs::write(&weights_file, bytes).unwrap();
        File::options().append(true).open(&weights_file).unwrap().set_modified(modified).unwrap();
        let after = quantised();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        assert!(before.iter().zip(&after).any(|(before, after)| before.bytes() != after.bytes()));
    }

    #[test]
    fn the_second_load_reads_what_the_first_made() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = crate::builtin::open().unwrap();
        let plan = crate::load::plan::plan_of(&checkpoint).unwrap();
        let mix = "q4_0".parse().unwrap();
        let first = weights(&checkpoint, &plan, mix, Some(folder.path())).unwrap();
        let file = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let written = file.metadata().unwrap().modified().unwrap();
        let second = weights(&checkpoint, &plan, mix, Some(folder.path())).unwrap();
        let alone = weights(&checkpoint, &plan, mix, None).unwrap();
        for ((first, second), alone) in first.iter().zip(&second).zip(&alone) {
            assert_eq!((first.format(), first.bytes()), (second.format(), second.bytes()));
            assert_eq!(first.bytes(), alone.bytes());
        }
        assert!(first.iter().any(|tensor| tensor.format() == WeightFormat::Q4_0));
        assert!(file.metadata().unwrap().modified().unwrap() >= written);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        // NVFP4 has its scales beside it there.
        let nvfp4 = || weights(&checkpoint, &plan, "nvfp4".parse().unwrap(), Some(folder.path())).unwrap();
        let alone = weights(&checkpoint, &plan, "nvfp4".parse().unwrap(), None).unwrap();
        for ((first, second), alone) in nvfp4().iter().zip(nvfp4()).zip(alone) {
            assert_eq!((first.format(), first.bytes()), (second.format(), second.bytes()));
            assert_eq!(first.bytes(), alone.bytes());
        }
        assert!(nvfp4().iter().any(|tensor| tensor.format() == WeightFormat::NVFP4));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        // A link in a file's place is not followed, and not written through.
        #[cfg(unix)]
        {
            let other = folder.path().join("other");
            fs::rename(&file, &other).unwrap();
            let seen = fs::read(&other).unwrap();
            std::os::unix::fs::symlink(&other, &file).unwrap();
            let partial = file.with_extension(format!("{}.partial", std::process::id()));
            std::os::unix::fs::symlink(&other, &partial).unwrap();
            let again = weights(&checkpoint, &plan, mix, Some(folder.path())).unwrap();
            assert!(again.iter().zip(&first).all(|(again, first)| again.bytes() == first.bytes()));
            assert!(!file.is_symlink() && !partial.exists() && fs::read(&other).unwrap() == seen);
            fs::remove_file(&other).unwrap();
        }
        // Another format is another file, and a file that is cut off is made again.
        weights(&checkpoint, &plan, "q8_0".parse().unwrap(), Some(folder.path())).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        let whole = fs::read(&file).unwrap();
        fs::write(&file, &whole[..whole.len() / 2]).unwrap();
        let again = weights(&checkpoint, &plan, mix, Some(folder.path())).unwrap();
        assert!(fs::read(&file).unwrap() == whole && again.len() == first.len());
    }
}
