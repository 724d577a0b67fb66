//! `hotmetal quantize` as a user meets it: files read back, refusals, and nothing left behind.

use std::fs;
use std::path::Path;

use formats::gguf::{GgmlType, Gguf, GgufWriter, Value};
use tensor::{Tensor, WeightFormat};

mod process;

/// Name, and shape outermost first.
const TENSORS: [(&str, &[usize]); 5] = [
    ("token_embd.weight", &[48, 512]),
    ("blk.0.attn_norm.weight", &[512]),
    ("blk.0.attn_q.weight", &[64, 512]),
    ("blk.0.ffn_down.weight", &[8, 96]),
    ("blk.0.odd.weight", &[16, 40]),
];

fn values(name: &str, len: usize) -> Vec<f32> {
    let mut state = name.bytes().fold(7u32, |state, byte| state.wrapping_mul(31) ^ u32::from(byte));
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..len).map(|_| next() * next()).collect()
}

fn original(name: &str, shape: &[usize]) -> Tensor {
    let len = shape.iter().product();
    Tensor::from_f32(WeightFormat::F32, shape.to_vec(), &values(name, len)).expect("any shape")
}

fn write_source(folder: &Path) -> String {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("llama".into()));
    writer.metadata("general.file_type", Value::U32(0));
    for (name, shape) in TENSORS {
        writer.tensor(name, &original(name, shape));
    }
    let path = folder.join("source.gguf");
    fs::write(&path, writer.to_bytes()).expect("room for a file");
    path.to_str().expect("a path in UTF-8").to_owned()
}

fn fail(args: &[&str]) -> String {
    let output = process::output(&[&["quantize"], args].concat());
    assert!(!output.status.success(), "{args:?}");
    process::text(&output.stderr)
}

#[test]
fn matrices_are_packed_and_the_rest_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = write_source(folder.path());
    let at = |name: &str| folder.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let (first, second, receipt) = (at("first.gguf"), at("second.gguf"), at("receipt.json"));
    let printed = process::succeed(&["quantize", &source, "-F", "q4_k", "-o", &first, "--receipt", &receipt]);
    assert!(printed.contains("Q4_K  1 tensors") && printed.contains("token_embd.weight"), "{printed}");

    let gguf = Gguf::read(fs::read(&first).expect("it is there").into()).expect("a whole file");
    assert_eq!(gguf.metadata().u64("general.file_type").unwrap(), Some(14));
    assert_eq!(gguf.metadata().u64("general.quantization_version").unwrap(), Some(2));
    assert_eq!(gguf.metadata().str("general.architecture").unwrap(), Some("llama"));
    let formats = [WeightFormat::Q6_K, WeightFormat::F32, WeightFormat::Q4_K, WeightFormat::Q8_0, WeightFormat::F16];
    for ((name, shape), format) in TENSORS.into_iter().zip(formats) {
        let found = gguf.tensor(name).expect("every tensor is there");
        let expected = Tensor::from_f32(format, shape.to_vec(), &original(name, shape).to_f32()).expect("it divides");
        assert_eq!((found.format(), found.shape()), (format, shape), "{name}");
        assert_eq!(found.bytes(), expected.bytes(), "{name}");
    }
    let receipt: serde_json::Value = serde_json::from_slice(&fs::read(&receipt).unwrap()).expect("JSON");
    let error = receipt["tensors"][1]["relative_rms_error"].as_f64().expect("a number");
    assert!(receipt["tensors"][1]["to"] == "Q4_K" && error > 0.01 && error < 0.2, "{receipt}");

    // The same bytes again, under the name only when they are whole, and never over what is there.
    process::succeed(&["quantize", &source, "-F", "q4_k", "-o", &second]);
    assert!(fs::read(&first).unwrap() == fs::read(&second).unwrap());
    assert!(fail(&[&source, "-F", "q8_0", "-o", &first]).contains("--force"));
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().all(|name| !name.contains("partial")));
}

#[test]
fn tensors_can_be_chosen_by_name_and_wrong_choices_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = write_source(folder.path());
    let output = folder.path().join("out.gguf");
    let out = output.to_str().expect("a path in UTF-8");
    process::succeed(&[
        "quantize",
        &source,
        "-F",
        "q4_0",
        "-o",
        out,
        "--tensor",
        "token_embd=q8_0",
        "--tensor",
        "odd=f32",
    ]);
    let gguf = Gguf::read(fs::read(&output).unwrap().into()).unwrap();
    let type_of = |name: &str| gguf.tensor_info(name).unwrap().ggml_type();
    assert_eq!(type_of("token_embd.weight"), GgmlType::of(WeightFormat::Q8_0));
    assert_eq!(type_of("blk.0.ffn_down.weight"), GgmlType::of(WeightFormat::Q4_0));
    assert_eq!(type_of("blk.0.odd.weight"), GgmlType::of(WeightFormat::F32));

    let other = folder.path().join("other.gguf");
    let other = other.to_str().expect("a path in UTF-8");
    let wrong = fail(&[&source, "-F", "q4_0", "-o", other, "--tensor", "odd=q4_0"]);
    assert!(wrong.contains("blk.0.odd.weight") && wrong.contains("40 weights"), "{wrong}");
    assert!(fail(&[&source, "-F", "q4_0", "-o", other, "--tensor", "nothing=q4_0"]).contains("--tensor nothing"));
    assert!(fail(&["/nonexistent/model.gguf", "-F", "q4_0", "-o", other]).contains("/nonexistent/model.gguf"));
    assert!(fail(&[&source, "-F", "q4_0", "-o", &source, "--force"]).contains("another -o"));
    assert!(!Path::new(other).exists());
}
