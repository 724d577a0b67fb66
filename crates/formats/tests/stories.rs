//! Real files: a trained model, published as GGUF and as a Hugging Face folder, is the same either way; vocabularies
//! of other models are read.

mod valid;

use std::path::{Path, PathBuf};

use formats::{Checkpoint, TokenizerSource};

/// A folder of the shared test data, if it is here.
#[expect(clippy::print_stderr, reason = "a skipped test says why")]
fn data(folder: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let path = std::env::var_os("HOTMETAL_TEST_DATA").map_or_else(beside, PathBuf::from).join(folder);
    if !path.is_dir() {
        eprintln!("skipped: no test data at {} (HOTMETAL_TEST_DATA names another place)", path.display());
        return None;
    }
    Some(path)
}

fn open(path: &Path) -> Checkpoint {
    Checkpoint::open(path, &|path| Ok(mapped::map(path)?), &valid::ARCHITECTURES).unwrap()
}

#[test]
fn gguf_and_safetensors_hold_the_same_model() {
    let Some(models) = data("models") else { return };
    let gguf = open(&models.join("stories260K-f16.gguf"));
    let folder = open(&models.join("stories260K-hf"));
    for name in folder.tensor_names() {
        let (ours, expected) = (gguf.tensor(name).unwrap(), folder.tensor(name).unwrap());
        assert_eq!(ours.shape(), expected.shape(), "{name}");
        for (i, (ours, expected)) in ours.to_f32().into_iter().zip(expected.to_f32()).enumerate() {
            let f16_ulp = expected.abs().max(f32::from_bits(0x3880_0000)) * 2f32.powi(-11); // 2^-14 is the least normal
            assert!((ours - expected).abs() <= f16_ulp, "{name}[{i}]: {ours}, expected {expected}");
        }
    }
    // The file spells out the tied head; the folder ties it.
    let only_gguf: Vec<&str> = gguf.tensor_names().filter(|name| folder.tensor(name).is_err()).collect();
    assert_eq!(only_gguf, ["lm_head.weight"]);
    let embedding = gguf.tensor("model.embed_tokens.weight").unwrap();
    assert_eq!(gguf.tensor("lm_head.weight").unwrap().bytes(), embedding.bytes());
}

#[test]
fn gguf_and_config_json_say_the_same() {
    let Some(models) = data("models") else { return };
    let gguf = open(&models.join("stories260K-f16.gguf"));
    let folder = open(&models.join("stories260K-hf"));
    for (key, expected) in folder.config.as_object().unwrap() {
        match key.as_str() {
            "torch_dtype" | "tie_word_embeddings" => continue, // stored as f16, with the head spelled out
            _ => assert_eq!(gguf.config.get(key), Some(expected), "{key}"),
        }
    }
    let TokenizerSource::Gguf(vocabulary) = &gguf.tokenizer else { panic!("a vocabulary") };
    assert_eq!((vocabulary.tokens.len(), vocabulary.scores.len(), vocabulary.token_types.len()), (512, 512, 512));
    assert_eq!(vocabulary.tokens.get(3), Some("<0x00>"));
    assert!(matches!(folder.tokenizer, TokenizerSource::HuggingFace { .. }));
}

#[test]
fn real_vocabularies_are_read() {
    let Some(folder) = data("vocab") else { return };
    for (file, model, tokens, merges) in [
        ("ggml-vocab-gpt-2.gguf", "gpt2", 50257, 50000),
        ("ggml-vocab-starcoder.gguf", "gpt2", 49152, 48872),
        ("ggml-vocab-llama-spm.gguf", "llama", 32000, 0),
        ("ggml-vocab-phi-3.gguf", "llama", 32064, 0),
    ] {
        let checkpoint = open(&folder.join(file));
        let TokenizerSource::Gguf(vocabulary) = &checkpoint.tokenizer else { panic!("{file}: a vocabulary") };
        let found = (vocabulary.model.as_str(), vocabulary.tokens.len(), vocabulary.merges.len());
        assert_eq!(found, (model, tokens, merges), "{file}");
        assert_eq!(vocabulary.token_types.len(), tokens, "{file}");
    }
}
