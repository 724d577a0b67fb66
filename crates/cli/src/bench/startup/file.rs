//! A GGUF file in the exact shapes of a published model, with random weights and a vocabulary of the same size that nobody
//! trained, for as long as it is needed.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use formats::gguf::{Array, GgmlType, GgufWriter, Value};
use plan::Plan;
use tensor::Tensor;

use crate::gguf_architectures;
use crate::packing::gguf_metadata;

use super::super::shapes::{self, MatrixFormats};

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// The file, in a folder of its own; both go when this does.
pub(in crate::bench) struct ModelFile {
    folder: PathBuf,
    path: PathBuf,
}

impl ModelFile {
    /// Writes the model `name` with matrices in `formats`.
    pub(in crate::bench) fn write(name: &str, formats: MatrixFormats, memory_bytes: u64) -> Result<Self> {
        let format = formats.base();
        if GgmlType::of(format).is_none() {
            bail!("a GGUF file has no weights in {format}: choose another --format");
        }
        let config = shapes::config_of(name)?;
        let plan = shapes::plan_of(name)?;
        let weights = shapes::random_weights(&plan, formats, memory_bytes)?;
        let folder = std::env::temp_dir().join(format!("hotmetal-bench-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make the folder `{}`", folder.display()))?;
        let file = Self { path: folder.join("model.gguf"), folder };
        let written = || format!("cannot write `{}`", file.path.display());
        let mut out = BufWriter::new(File::create(&file.path).with_context(written)?);
        gguf(name, &config, &plan, &weights)?.write_to(&mut out).with_context(written)?;
        out.flush().with_context(written)?;
        // Without this, pages wait in memory for the disk, and reading them is never cold.
        out.get_ref().sync_all().with_context(written)?;
        Ok(file)
    }

    pub(in crate::bench) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ModelFile {
    fn drop(&mut self) {
        // Nothing can be done about a folder that stays; it is in the place for such.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn gguf(name: &str, config: &serde_json::Value, plan: &Plan, weights: &[Tensor]) -> Result<GgufWriter> {
    let names = gguf_architectures::names(&plan.model_type);
    let mut out = GgufWriter::new();
    gguf_metadata::model(&mut out, plan, config, name)?;
    vocabulary(&mut out, plan.vocab_size)?;
    let weight_names: Vec<&str> = plan.weights.iter().map(|weight| weight.name.as_str()).collect();
    for (name, parts) in names.gguf_tensors(&weight_names)? {
        let is_stack = parts.first().is_some_and(|&first| names.gguf_expert(weight_names[first]).is_some());
        let parts: Vec<Tensor> = parts.into_iter().map(|index| weights[index].clone()).collect();
        let first = parts.first().with_context(|| format!("`{name}` has no part"))?;
        let part: Vec<u64> = first.shape().iter().map(|&dim| dim as u64).collect();
        let shape =
            if is_stack { [&[parts.len() as u64], &part[..]].concat() } else { names.shape_in_file(&name, &part) };
        let ggml_type = GgmlType::of(first.format());
        let ggml_type = ggml_type.with_context(|| format!("`{name}` is in {}, no type of GGUF", first.format()))?;
        let dims: Vec<u64> = shape.into_iter().rev().collect();
        let len = parts.iter().map(|part| part.bytes().len() as u64).sum();
        let write = move |out: &mut dyn Write| parts.iter().try_for_each(|part| out.write_all(part.bytes()));
        out.made_tensor(&name, ggml_type, &dims, len, write);
    }
    Ok(out)
}

/// Byte-level BPE of `vocab_size` tokens: the bytes, then all words of two letters, of three and so on, each merged from a
/// shorter one and a letter, as published vocabularies are built; the end of a text last.
fn vocabulary(out: &mut GgufWriter, vocab_size: usize) -> Result<()> {
    let mut tokens: Vec<String> = (0..=255).map(|byte| printable(byte).to_string()).collect();
    let mut merges = Vec::new();
    let letters: Vec<String> = ('a'..='z').map(String::from).collect();
    let mut shorter = letters.clone();
    while tokens.len() + 1 < vocab_size {
        let mut longer = Vec::with_capacity(shorter.len() * letters.len());
        for (word, letter) in shorter.iter().flat_map(|word| letters.iter().map(move |letter| (word, letter))) {
            if tokens.len() + 1 == vocab_size {
                break;
            }
            merges.push(format!("{word} {letter}"));
            longer.push(format!("{word}{letter}"));
            tokens.push(format!("{word}{letter}"));
        }
        shorter = longer;
    }
    let mut types = vec![NORMAL; tokens.len()];
    tokens.push("<|endoftext|>".to_owned());
    types.push(CONTROL);
    let eos = u32::try_from(tokens.len() - 1)?;
    out.metadata("tokenizer.ggml.model", Value::String("gpt2".to_owned()));
    out.metadata("tokenizer.ggml.pre", Value::String("qwen2".to_owned()));
    out.metadata("tokenizer.ggml.tokens", Value::Array(Array::of_strings(tokens.iter().map(String::as_str))));
    out.metadata("tokenizer.ggml.token_type", Value::Array(Array::of_i32(&types)));
    out.metadata("tokenizer.ggml.merges", Value::Array(Array::of_strings(merges.iter().map(String::as_str))));
    out.metadata("tokenizer.ggml.eos_token_id", Value::U32(eos));
    out.metadata("tokenizer.ggml.add_bos_token", Value::Bool(false));
    Ok(())
}

/// The character that stands for a byte in GPT-2's vocabularies: itself where it can be seen, or one from U+0100 on, in
/// order.
fn printable(byte: u8) -> char {
    let is_seen = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_seen(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !is_seen(other)).count() as u32;
    char::from_u32(0x100 + before).expect("there are 68 of these, all letters")
}

#[cfg(test)]
mod tests {
    use tensor::WeightFormat;

    use super::*;

    #[test]
    fn bytes_have_the_characters_of_gpt_2() {
        assert_eq!([b'A', b' ', b'\n', 0, 0xad, 0xff].map(printable), ['A', 'Ġ', 'Ċ', 'Ā', 'Ń', 'ÿ']);
    }

    #[test]
    fn every_shape_has_a_name_for_each_weight_and_a_vocabulary_of_its_size() {
        for name in [
            "qwen2.5-0.5b",
            "qwen3-0.6b",
            "llama-3.2-1b",
            "devstral-small",
            "mixtral-8x7b",
            "gpt-oss-20b",
            "glm-4.5-air",
            "glm-4.7-flash",
            "deepseek-v2-lite",
        ] {
            let plan = shapes::plan_of(name).unwrap();
            // Names and shapes only: an empty tensor stands for each.
            let empty = Tensor::from_f32(WeightFormat::F32, vec![1], &[0.0]).unwrap();
            let weights = vec![empty; plan.weights.len()];
            let file = gguf(name, &shapes::config_of(name).unwrap(), &plan, &weights).unwrap();
            let gguf = formats::gguf::Gguf::read_header(file.to_bytes()).unwrap();
            let tokens = gguf.metadata().strings("tokenizer.ggml.tokens").unwrap().unwrap();
            assert_eq!(tokens.len(), plan.vocab_size, "{name}");
            let distinct: std::collections::HashSet<_> = tokens.iter().collect();
            assert_eq!(distinct.len(), plan.vocab_size, "{name}");
            assert!(gguf.tensors().len() < 1000, "{name}: {} tensors", gguf.tensors().len());
        }
    }
}
