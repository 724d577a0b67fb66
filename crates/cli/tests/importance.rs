//! `hotmetal quantize --imatrix` and `--imatrix-text` as a user meets them.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use formats::gguf::{Gguf, GgufWriter};
use formats::{Checkpoint, Imatrix};
use tensor::quant::Packing;
use tensor::{Tensor, WeightFormat};

mod process;

/// The folder of the built-in model.
const BUILTIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/builtin");
const UP: &str = "blk.3.ffn_up.weight";

fn fail(args: &[&str]) -> String {
    let output = process::output(&[&["quantize"], args].concat());
    assert!(!output.status.success(), "{args:?}");
    process::text(&output.stderr)
}

/// What the built-in model writes after some words.
fn text_after(words: &str) -> String {
    let output = process::output(&["run", words, "--temp", "0", "-n", "200"]);
    assert!(output.status.success(), "{}", process::text(&output.stderr));
    process::text(&output.stdout)
}

fn gguf(path: &str) -> Gguf {
    Gguf::read(fs::read(path).expect("it is there").into()).expect("a whole file")
}

fn json(path: &str) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).expect("it is there")).expect("JSON")
}

#[test]
fn importance_of_a_text_is_kept_used_and_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let (text, other_text, imatrix) = (at("text.txt"), at("other.txt"), at("imatrix.gguf"));
    fs::write(&text, text_after("Once upon a time, in a forest").repeat(2)).expect("room for a text");
    // Several: of a single story the difference is a draw.
    let others =
        ["There was a small boat", "One day a fox", "The queen of the bees", "Long ago, a baker", "On a cold morning"];
    fs::write(&other_text, others.map(text_after).concat()).expect("room for a text");
    let (plain, of_text, of_file, again) = (at("plain.gguf"), at("text.gguf"), at("file.gguf"), at("again.gguf"));
    let (plain_receipt, receipt) = (at("plain.json"), at("text.gguf.receipt.json"));
    let on_text = ["--eval-text", &other_text, "--eval-ctx-size", "64"];
    let command = |output: &str, more: &[&str]| {
        process::succeed(&[&["quantize", BUILTIN, "-F", "q4_k", "-o", output], more].concat())
    };
    command(&plain, &[&["--receipt", &plain_receipt], &on_text[..]].concat());
    let window = ["--imatrix-ctx-size", "64", "--imatrix-chunks", "5"];
    let keep = ["--imatrix-text", &text, "--imatrix-out", &imatrix, "--receipt", &receipt];
    command(&of_text, &[&keep[..], &window, &on_text].concat());

    // What is kept: a matrix that every token went through, for each projection; the three of attention are given the same.
    let kept = Imatrix::read(fs::read(&imatrix).expect("it is there").into()).expect("an importance matrix");
    assert_eq!((kept.chunks, kept.chunk_len, &kept.datasets[..]), (5, 64, &["text.txt".to_owned()][..]));
    assert_eq!(kept.entries.len(), 7 * 7);
    assert!(kept.entries.values().all(|entry| entry.counts == [320.0] && entry.sums.iter().any(|&sum| sum > 0.0)));
    assert_eq!(kept.entries["blk.0.attn_q.weight"], kept.entries["blk.0.attn_v.weight"]);
    assert_ne!(kept.entries["blk.0.attn_q.weight"], kept.entries["blk.1.attn_q.weight"]);

    // The search weighs with it: these are the bytes of that.
    let found = gguf(&of_text).tensor(UP).expect("every tensor is there");
    let open = |path: &Path| Ok(mapped::map(path)?);
    let source = Checkpoint::open(Path::new(BUILTIN), &open, &[]).expect("a model");
    let source = source.tensor("model.layers.3.mlp.up_proj.weight").expect("every tensor is there");
    let means = kept.entries[UP].means();
    let mean = means.iter().map(|&mean| f64::from(mean)).sum::<f64>() / means.len() as f64;
    let importance: Vec<f32> = means.iter().map(|&value| (f64::from(value) / mean) as f32).collect();
    let expected =
        Tensor::packed(found.format(), found.shape().to_vec(), &source.to_f32(), Packing::Weighted(&importance));
    assert_eq!(found.bytes(), expected.expect("it divides").bytes());
    assert_ne!(found.bytes(), gguf(&plain).tensor(UP).expect("every tensor is there").bytes());

    // It is said what from, in the receipt and in the file.
    let (written, before) = (json(&receipt), json(&plain_receipt));
    let about = &written["importance"];
    assert!(about["kind"] == "text" && about["tokens"] == 320 && about["windows"] == 5, "{about}");
    assert_eq!((&about["name"], about["sha256"].as_str().map(str::len)), (&text.clone().into(), Some(64)));
    assert!(before["importance"].is_null());
    let weighted = |receipt: &serde_json::Value| {
        receipt["tensors"].as_array().expect("a list").iter().filter(|tensor| tensor["weighted"] == true).count()
    };
    assert_eq!((weighted(&written), weighted(&before)), (49, 0));
    assert!(process::succeed(&["inspect", &of_text]).contains("importance    text.txt, 320 tokens"));
    let file = gguf(&of_text);
    assert_eq!(file.metadata().str("quantize.imatrix.dataset").unwrap(), Some("text.txt"));
    assert_eq!(file.metadata().u64("quantize.imatrix.chunks_count").unwrap(), Some(5));

    // Other texts are predicted better with it.
    let divergence = |receipt: &serde_json::Value| receipt["evaluation"]["against"]["kl_divergence"].as_f64();
    let (with, without) = (divergence(&written).expect("a number"), divergence(&before).expect("a number"));
    assert!(with < without, "{with} with importance, {without} without");

    // The same from the file, and the same again.
    command(&of_file, &["--imatrix", &imatrix]);
    command(&again, &["--imatrix", &imatrix]);
    assert!(fs::read(&of_file).unwrap() == fs::read(&again).unwrap());
    for info in file.tensors() {
        let (a, b) = (file.tensor_bytes(info).unwrap(), gguf(&of_file));
        assert_eq!(a, b.tensor_bytes(b.tensor_info(info.name()).unwrap()).unwrap(), "{}", info.name());
    }
}

#[test]
fn importance_that_is_all_one_changes_nothing_and_that_of_another_model_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let (model, plain, output, path) = (at("model.gguf"), at("plain.gguf"), at("out.gguf"), at("imatrix.dat"));
    let values: Vec<f32> = (0..24 * 512).map(|i| ((i * 7919 % 1009) as f32 - 504.0) * 0.001).collect();
    let (name, experts) = ("blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight");
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", formats::gguf::Value::String("llama".into()));
    let tensor = |shape: &[usize]| Tensor::from_f32(WeightFormat::F32, shape.to_vec(), &values).expect("any shape");
    writer.tensor(name, &tensor(&[24, 512]));
    writer.tensor(experts, &tensor(&[3, 8, 512]));
    fs::write(&model, writer.to_bytes()).expect("room for a file");
    let entry = |name: &str, values: &[f32]| {
        let integers = [name.len() as i32].map(i32::to_le_bytes).concat();
        let sizes = [1, values.len() as i32].map(i32::to_le_bytes).concat();
        let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        [&integers, name.as_bytes(), &sizes, &values].concat()
    };
    let write = |entries: &[Vec<u8>]| {
        let bytes = [&(entries.len() as i32).to_le_bytes()[..], &entries.concat()].concat();
        fs::write(&path, bytes).expect("room for a file");
    };
    process::succeed(&["quantize", &model, "-F", "q4_k", "-o", &plain]);
    write(&[entry(name, &[0.25; 512]), entry(experts, &[3.0; 512])]);
    process::succeed(&["quantize", &model, "-F", "q4_k", "-o", &output, "--imatrix", &path]);
    for name in [name, experts] {
        assert_eq!(gguf(&output).tensor(name).unwrap().bytes(), gguf(&plain).tensor(name).unwrap().bytes(), "{name}");
    }

    // Each expert has its own.
    let steps: Vec<f32> = (0..512).map(|i| if i % 64 < 8 { 100.0 } else { 1.0 }).collect();
    let mut imatrix = Imatrix::read(fs::read(&path).unwrap().into()).unwrap();
    let of_experts = imatrix.entries.get_mut(experts).unwrap();
    of_experts.counts = vec![2.0, 0.0, 1.0];
    of_experts.sums = [&[2.0; 512][..], &[9.0; 512], &steps].concat();
    fs::write(&path, imatrix.to_gguf().to_bytes()).unwrap();
    process::succeed(&["quantize", &model, "-F", "q4_k", "-o", &output, "--imatrix", &path, "--force"]);
    let (found, before) = (gguf(&output).tensor(experts).unwrap(), gguf(&plain).tensor(experts).unwrap());
    let each = found.bytes().len() / 3;
    assert_eq!(found.bytes()[..2 * each], before.bytes()[..2 * each]);
    let importance: Vec<f32> = {
        let mean = (512.0 * 2.0 + f64::from(steps.iter().sum::<f32>())) / 1536.0;
        steps.iter().map(|&step| (f64::from(step) / mean) as f32).collect()
    };
    let last = &values[16 * 512..];
    let expected = Tensor::packed(found.format(), vec![8, 512], last, Packing::Weighted(&importance)).unwrap();
    assert_eq!(found.bytes()[2 * each..], expected.bytes()[..]);
    assert_ne!(found.bytes()[2 * each..], before.bytes()[2 * each..]);

    let none = at("none.gguf");
    let refused = |more: &[&str]| fail(&[&[&model, "-F", "q4_k", "-o", &none], more].concat());
    // Another model's.
    write(&[entry(name, &[1.0; 256])]);
    let wrong = refused(&["--imatrix", &path]);
    assert!(wrong.contains("imatrix.dat") && wrong.contains(name) && wrong.contains("256 values"), "{wrong}");
    assert!(wrong.contains("512 weights") && wrong.contains("--imatrix-text"), "{wrong}");
    write(&[entry("blk.7.attn_q.weight", &[1.0; 512])]);
    assert!(refused(&["--imatrix", &path]).contains("none of its 1 entries"));
    // A file that was cut off, and one that is something else.
    write(&[entry(name, &[1.0; 512])]);
    let whole = Bytes::from(fs::read(&path).unwrap());
    fs::write(&path, &whole[..whole.len() - 100]).unwrap();
    let cut = refused(&["--imatrix", &path]);
    assert!(cut.contains("imatrix.dat") && cut.contains(name) && cut.contains("download complete"), "{cut}");
    let other = refused(&["--imatrix", &model]);
    assert!(other.contains("model.gguf") && other.contains("general.type"), "{other}");
    // What needs the other.
    assert!(refused(&["--imatrix", &path, "--plain"]).contains("--plain"));
    assert!(refused(&["--imatrix-out", &path]).contains("--imatrix-text"));
    let text = at("text.txt");
    fs::write(&text, "a few words").unwrap();
    assert!(refused(&["--imatrix-text", &text]).contains("cannot be computed") || !Path::new(&none).exists());
    let short = fail(&[BUILTIN, "-F", "q4_k", "-o", &none, "--imatrix-text", &text]);
    assert!(short.contains("text.txt") && short.contains("use a longer text"), "{short}");
    assert!(!Path::new(&none).exists());
}
