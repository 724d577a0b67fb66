//! Folders with something missing, misplaced or mistaken, and paths that lead nowhere.

use std::{fs, path::Path};

use bytes::Bytes;
use formats::{Checkpoint, ModelConfig, safetensors};

use crate::{Report, valid};

type Files = Vec<(&'static str, Bytes)>;

fn without(mut files: Files, name: &str) -> Files {
    files.retain(|(file, _)| *file != name);
    files
}

fn with(files: Files, name: &'static str, bytes: impl Into<Bytes>) -> Files {
    let mut files = without(files, name);
    files.push((name, bytes.into()));
    files
}

const INDEX: &str = "model.safetensors.index.json";
const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";

#[test]
fn shards() {
    let mut report = Report::new();
    let sharded = valid::sharded_folder;
    let index = |text: &'static str| with(sharded(), INDEX, text);
    report.refuses("a missing shard", &without(sharded(), SECOND));
    report.refuses("a shard in another folder", &index(r#"{"weight_map":{"x":"../../etc/passwd.safetensors"}}"#));
    report.refuses("a shard at an absolute path", &index(r#"{"weight_map":{"x":"/etc/model.safetensors"}}"#));
    report.refuses("a shard at a Windows path", &index(r#"{"weight_map":{"x":"C:\\model.safetensors"}}"#));
    report.refuses("a shard that is the index", &index(r#"{"weight_map":{"x":"model.safetensors.index.json"}}"#));
    report.refuses("a shard of Python pickles", &index(r#"{"weight_map":{"x":"pytorch_model.bin"}}"#));
    report.refuses("a shard without a name", &index(r#"{"weight_map":{"x":""}}"#));
    report.refuses("a shard that is a number", &index(r#"{"weight_map":{"x":1}}"#));
    report.refuses("an index without a weight map", &index("{}"));
    report.refuses("an index with two weight maps", &index(r#"{"weight_map":{},"weight_map":{}}"#));
    report.refuses("an index with a tensor twice", &{
        index(r#"{"weight_map":{"x":"a.safetensors","x":"b.safetensors"}}"#)
    });
    report.refuses("an index that is a list", &index("[]"));
    report.refuses("an index cut short", &index(r#"{"weight_map":{"#));
    report.refuses("a tensor in two shards", &with(sharded(), SECOND, sharded()[2].1.clone()));
    let (first, second) = (sharded()[2].1.clone(), sharded()[3].1.clone());
    report.refuses("shards exchanged", &with(with(sharded(), FIRST, second), SECOND, first));
    let fewer = safetensors::write(&valid::tensors()[..2], &[]).unwrap();
    report.refuses("a shard with a tensor less than the index lists", &with(sharded(), FIRST, fewer));
    insta::assert_snapshot!(report.0);
}

#[test]
fn files_beside_the_weights() {
    let mut report = Report::new();
    let config = |text: &'static str| with(valid::folder(), "config.json", text);
    report.refuses("no configuration", &without(valid::folder(), "config.json"));
    report.refuses("an empty configuration", &config(""));
    report.refuses("a configuration cut short", &config(r#"{"hidden_size": 12"#));
    report.refuses("a configuration that is a list", &config("[]"));
    report.refuses("a configuration that is null", &config("null"));
    report.refuses("a configuration that is a boolean", &config("true"));
    report.refuses("a configuration that is a number", &config("-7"));
    report.refuses("a configuration that is a string", &config(r#""llama""#));
    report.refuses("a key twice", &config(r#"{"hidden_size": 1, "hidden_size": 2}"#));
    report
        .refuses("a configuration that is not UTF-8", &with(valid::folder(), "config.json", &b"{\"a\": \"\xff\"}"[..]));
    report.refuses("lists 100 deep", &with(valid::folder(), "config.json", format!(r#"{{"a": {}"#, "[".repeat(100))));
    report.refuses(
        "70,000 values",
        &with(valid::folder(), "config.json", format!("{{\"a\": [0{}]}}", ",0".repeat(70_000))),
    );
    report.refuses("a Git LFS pointer", &{
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
        with(valid::folder(), "model.safetensors", pointer)
    });
    report.refuses("a web page", &with(valid::folder(), "model.safetensors", "\n <!DOCTYPE html><html>404</html>"));
    report.refuses("a Git LFS pointer for a tokenizer", &{
        with(valid::folder(), "tokenizer.json", "version https://git-lfs.github.com/spec/v1\n")
    });
    report.refuses(
        "a template that is a number",
        &with(valid::folder(), "tokenizer_config.json", r#"{"chat_template": 1}"#),
    );
    report.refuses("a template without a name", &{
        with(valid::folder(), "tokenizer_config.json", r#"{"chat_template": [{"template": "x"}]}"#)
    });
    report.refuses("a template that is not UTF-8", &with(valid::folder(), "chat_template.jinja", &b"\xff"[..]));
    insta::assert_snapshot!(report.0);
}

#[test]
fn folders_without_one_model() {
    let mut report = Report::new();
    let gguf = || valid::gguf_writer("llama").to_bytes();
    report.refuses("an empty folder", &[]);
    report.refuses("only a configuration", &[("config.json", "{}".into())]);
    report.refuses("only pickles", &[("config.json", "{}".into()), ("pytorch_model.bin", "x".into())]);
    report.refuses("an unfinished download", &[("model.gguf.part", gguf())]);
    report.refuses("two GGUF files", &[("a.gguf", gguf()), ("b.gguf", gguf())]);
    let weights = valid::folder().remove(1).1;
    report.refuses("two safetensors files and no index", &{
        [("a.safetensors", weights.clone()), ("b.safetensors", weights)]
    });
    insta::assert_snapshot!(report.0);
}

#[test]
fn paths() {
    let mut report = Report::new();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("model.bin"), "PK\u{3}\u{4}").unwrap();
    fs::write(at("empty.gguf"), "").unwrap();
    fs::write(at("page.gguf"), "<html>Not found</html>").unwrap();
    fs::write(at("model.safetensors"), &valid::folder()[1].1).unwrap();
    fs::create_dir(at("empty")).unwrap();
    let mut refuses = |what: &str, path: &Path| {
        let error = Checkpoint::open(path, &|path| Ok(mapped::map(path)?), &valid::ARCHITECTURES).unwrap_err();
        report.error(what, &error);
    };
    refuses("nothing there", &at("absent.gguf"));
    refuses("a path through a file", &at("model.bin/inside"));
    refuses("another kind of file", &at("model.bin"));
    refuses("an empty file", &at("empty.gguf"));
    refuses("a web page", &at("page.gguf"));
    refuses("an empty folder", &at("empty"));
    refuses("weights without a configuration", &at("model.safetensors"));
    let text = report.0.replace(&folder.path().display().to_string(), "DIR");
    insta::assert_snapshot!(text);
}

#[test]
fn values_of_the_wrong_type() {
    let mut report = Report::new();
    let config = r#"{"hidden_size": "64", "rope_theta": null, "num_attention_heads": -1, "eos_token_id": [1, "2"],
        "bos_token": {"text": "<s>"}, "tie_word_embeddings": 1, "model_type": ["llama"]}"#;
    let config = ModelConfig::read("config.json", config.as_bytes()).unwrap();
    report.error("a number as a string", &config.u64("hidden_size").unwrap_err());
    report.error("a negative count", &config.u64("num_attention_heads").unwrap_err());
    report.error("a token id as a string", &config.token_ids("eos_token_id").unwrap_err());
    report.error("a token without content", &config.token_text("bos_token").unwrap_err());
    report.error("a flag as a number", &config.bool("tie_word_embeddings").unwrap_err());
    report.error("a string as a list", &config.str("model_type").unwrap_err());
    assert_eq!(config.f64("rope_theta").unwrap(), None);
    insta::assert_snapshot!(report.0);
}

#[test]
fn a_tensor_that_is_not_there() {
    let mut report = Report::new();
    let checkpoint = Checkpoint::from_bytes(&valid::folder(), &valid::ARCHITECTURES).unwrap();
    report.error("an unknown name", &checkpoint.tensor("lm_head.weight").unwrap_err());
    insta::assert_snapshot!(report.0);
}
