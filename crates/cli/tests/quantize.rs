//! `hotmetal quantize` as a user meets it: files read back, refusals, and nothing left behind.

use std::fs;
use std::path::Path;

use formats::gguf::{GgmlType, Gguf, GgufWriter, Value};
use formats::{Checkpoint, SafetensorsWriter, safetensors};
use tensor::quant::Packing;
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
    let formats = [WeightFormat::Q6_K, WeightFormat::F32, WeightFormat::Q4_K, WeightFormat::Q5_0, WeightFormat::F16];
    for ((name, shape), format) in TENSORS.into_iter().zip(formats) {
        let found = gguf.tensor(name).expect("every tensor is there");
        let values = original(name, shape).to_f32();
        let expected = Tensor::packed(format, shape.to_vec(), &values, Packing::Searched).expect("it divides");
        assert_eq!((found.format(), found.shape()), (format, shape), "{name}");
        assert_eq!(found.bytes(), expected.bytes(), "{name}");
    }
    let receipt: serde_json::Value = serde_json::from_slice(&fs::read(&receipt).unwrap()).expect("JSON");
    let error = receipt["tensors"][1]["relative_rms_error"].as_f64().expect("a number");
    assert!(receipt["tensors"][1]["to"] == "Q4_K" && error > 0.01 && error < 0.2, "{receipt}");

    assert_eq!(receipt["scales"], "searched");
    // Plain scales lose more.
    let (plain, plain_receipt) = (at("plain.gguf"), at("plain.json"));
    process::succeed(&["quantize", &source, "-F", "q4_k", "-o", &plain, "--plain", "--receipt", &plain_receipt]);
    let plain: serde_json::Value = serde_json::from_slice(&fs::read(&plain_receipt).unwrap()).expect("JSON");
    let plain_error = plain["tensors"][1]["relative_rms_error"].as_f64().expect("a number");
    assert!(plain["scales"] == "plain" && plain_error > 1.05 * error, "{plain_error}, {error}");

    // The same bytes again, under the name only when they are whole, and never over what is there.
    process::succeed(&["quantize", &source, "-F", "q4_k", "-o", &second]);
    assert!(fs::read(&first).unwrap() == fs::read(&second).unwrap());
    assert!(fail(&[&source, "-F", "q8_0", "-o", &first]).contains("--force"));
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().all(|name| !name.contains("partial")));
}

/// A model in parts becomes one file, the same as from the model in one: never a part of it.
#[test]
fn a_model_in_parts_is_packed_whole() {
    let folder = tempfile::tempdir().unwrap();
    let source = write_source(folder.path());
    let whole = Gguf::read(fs::read(&source).unwrap().into()).unwrap();
    let parts = folder.path().join("parts");
    fs::create_dir(&parts).unwrap();
    let path = |no: usize| parts.join(format!("m-{:05}-of-00002.gguf", no + 1)).to_str().unwrap().to_owned();
    let half = whole.tensors().len() / 2;
    for (no, tensors) in [&whole.tensors()[..half], &whole.tensors()[half..]].into_iter().enumerate() {
        let mut writer = GgufWriter::new();
        for (key, value) in whole.metadata().iter().filter(|_| no == 0) {
            writer.metadata(key, value.clone());
        }
        writer.metadata("split.no", Value::U16(no as u16)).metadata("split.count", Value::U16(2));
        for info in tensors {
            writer.raw_tensor(info.name(), info.ggml_type(), info.dims(), whole.tensor_bytes(info).unwrap());
        }
        fs::write(path(no), writer.to_bytes()).unwrap();
    }
    let packed = |source: &str| {
        let output = folder.path().join("out.gguf");
        process::succeed(&["quantize", source, "-F", "q8_0", "-o", output.to_str().unwrap(), "--force"]);
        fs::read(output).unwrap()
    };
    let expected = packed(&source);
    assert!(packed(&path(0)) == expected && packed(&path(1)) == expected);
    fs::remove_file(path(0)).unwrap();
    let output = folder.path().join("none.gguf");
    let error = fail(&[&path(1), "-F", "q8_0", "-o", output.to_str().unwrap()]);
    assert!(error.contains("m-00001-of-00002.gguf") && !output.exists(), "{error}");
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
    assert_eq!(Some(type_of("token_embd.weight")), GgmlType::of(WeightFormat::Q8_0));
    assert_eq!(Some(type_of("blk.0.ffn_down.weight")), GgmlType::of(WeightFormat::Q4_0));
    assert_eq!(Some(type_of("blk.0.odd.weight")), GgmlType::of(WeightFormat::F32));

    // By the checkpoint's names, too; what has no head of its own has it in the embeddings.
    let by_names = ["--tensor", "lm_head=q8_0", "--tensor", "layers.0.self_attn.q_proj=q5_0", "--tensor", "mlp=q5_1"];
    process::succeed(&[&["quantize", &source, "-F", "q4_0", "-o", out, "--force"], &by_names[..]].concat());
    let gguf = Gguf::read(fs::read(&output).unwrap().into()).unwrap();
    let type_of = |name: &str| gguf.tensor_info(name).unwrap().ggml_type();
    assert_eq!(Some(type_of("token_embd.weight")), GgmlType::of(WeightFormat::Q8_0));
    assert_eq!(Some(type_of("blk.0.attn_q.weight")), GgmlType::of(WeightFormat::Q5_0));
    assert_eq!(Some(type_of("blk.0.ffn_down.weight")), GgmlType::of(WeightFormat::Q5_1));

    let other = folder.path().join("other.gguf");
    let other = other.to_str().expect("a path in UTF-8");
    let wrong = fail(&[&source, "-F", "q4_0", "-o", other, "--tensor", "odd=q4_0"]);
    assert!(wrong.contains("blk.0.odd.weight") && wrong.contains("40 weights"), "{wrong}");
    assert!(fail(&[&source, "-F", "q4_0", "-o", other, "--tensor", "nothing=q4_0"]).contains("--tensor nothing"));
    assert!(fail(&["/nonexistent/model.gguf", "-F", "q4_0", "-o", other]).contains("/nonexistent/model.gguf"));
    assert!(fail(&[&source, "-F", "q4_0", "-o", &source, "--force"]).contains("another -o"));
    assert!(!Path::new(other).exists());
}

/// The folder of the built-in model.
const BUILTIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/builtin");

/// What a model writes after a few words; timings go to stderr.
fn continuation(args: &[&str]) -> String {
    let output = process::output(&[&["run"], args, &["Once upon a time", "--temp", "0", "-n", "160"]].concat());
    assert!(output.status.success(), "{}", process::text(&output.stderr));
    process::text(&output.stdout)
}

fn perplexity(model: &str, text: &str) -> f64 {
    let printed = process::succeed(&["eval", model, "-f", text, "--ctx-size", "64", "-o", "json"]);
    let value: serde_json::Value = serde_json::from_str(&printed).expect("one JSON object");
    value["perplexity"].as_f64().expect("a number")
}

#[test]
fn a_folder_of_safetensors_becomes_a_file_that_says_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let (exact, four, text) = (at("bf16.gguf"), at("q4.gguf"), at("text.txt"));
    fs::write(&text, continuation(&[]).repeat(3)).expect("room for a text");
    process::succeed(&["quantize", BUILTIN, "-F", "bf16", "-o", &exact]);
    let gguf = Gguf::read(fs::read(&exact).unwrap().into()).unwrap();
    assert_eq!(gguf.metadata().str("tokenizer.ggml.pre").unwrap(), Some("qwen2"));
    assert_eq!(gguf.metadata().u64("qwen3.block_count").unwrap(), Some(7));
    assert_eq!(gguf.tensor("blk.0.attn_q_norm.weight").unwrap().format(), WeightFormat::F32);
    // The same tokens and, from the same weights, the same figure to the last bit.
    assert_eq!(perplexity(&exact, &text), perplexity(BUILTIN, &text));
    assert_eq!(continuation(&[&exact]), continuation(&[]));
    // Four bits cost little.
    process::succeed(&["quantize", BUILTIN, "-F", "q4_k_m", "-o", &four]);
    let (before, after) = (perplexity(BUILTIN, &text), perplexity(&four, &text));
    assert!(after < 1.1 * before, "{after} from {before}");
    assert!(fs::metadata(&four).unwrap().len() * 2 < fs::metadata(&exact).unwrap().len());
}

/// `config.json` may name the model's class alone. Rows of q and k have another order in GGUF files of Llama, and a file
/// without that order is read as another model.
#[test]
fn a_folder_that_names_only_its_class_becomes_the_same_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = builtin_weights();
    // The built-in model without its norms of heads is a Llama.
    let mut writer = SafetensorsWriter::new();
    let is_of_llama = |name: &str| !name.contains("q_norm") && !name.contains("k_norm");
    for info in file.tensors().iter().filter(|info| is_of_llama(info.name())) {
        writer.tensor(info.name(), info.dtype(), info.shape(), file.tensor_bytes(info).unwrap());
    }
    let mut config = builtin_config();
    config["model_type"] = "llama".into();
    config["architectures"] = serde_json::json!(["LlamaForCausalLM"]);
    let written = ["named", "class"].map(|name| {
        let source = folder.path().join(name);
        if name == "class" {
            config.as_object_mut().expect("an object").remove("model_type");
        }
        write_folder(&source, &config, &writer);
        let output = folder.path().join(format!("{name}.gguf"));
        let [source, out] = [&source, &output].map(|path| path.to_str().expect("a path in UTF-8"));
        process::succeed(&["quantize", source, "-F", "bf16", "-o", out]);
        Gguf::read(fs::read(&output).unwrap().into()).unwrap()
    });
    for name in ["attn_q", "attn_k", "attn_v"] {
        let [named, class] = [0, 1].map(|index| written[index].tensor(&format!("blk.0.{name}.weight")).unwrap());
        assert!(named.bytes() == class.bytes(), "{name}");
        let source = format!("model.layers.0.self_attn.{}_proj.weight", &name[5..]);
        let source = file.tensors().iter().find(|info| info.name() == source).expect("it is there");
        let is_as_in_the_source = file.tensor_bytes(source).unwrap() == *named.bytes();
        assert_eq!(is_as_in_the_source, name == "attn_v", "{name}");
    }
}

#[test]
fn a_receipt_says_what_a_text_shows_and_inspect_finds_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let (model, receipt, text) = (at("q3.gguf"), at("q3.gguf.receipt.json"), at("text.txt"));
    fs::write(&text, continuation(&[]).repeat(3)).expect("room for a text");
    let on_text = ["--eval-text", &text, "--eval-ctx-size", "64", "--eval-chunks", "2"];
    let args = ["quantize", BUILTIN, "-F", "q3_k", "-o", &model, "--receipt", &receipt];
    let printed = process::succeed(&[&args[..], &on_text].concat());
    assert!(printed.contains("divergence") && printed.contains("agreement"), "{printed}");
    let written: serde_json::Value = serde_json::from_slice(&fs::read(&receipt).unwrap()).expect("JSON");
    let of = &written["evaluation"];
    // What `eval` says of the two.
    let limits = ["--ctx-size", "64", "--chunks", "2", "-o", "json", "--device", "cpu"];
    let again = process::succeed(&[&["eval", &model, "-f", &text, "--against", BUILTIN], &limits[..]].concat());
    assert_eq!(&serde_json::from_str::<serde_json::Value>(&again).expect("one JSON object"), of);
    let source = process::succeed(&[&["eval", BUILTIN, "-f", &text], &limits[..]].concat());
    let source: serde_json::Value = serde_json::from_str(&source).expect("one JSON object");
    assert_eq!(of["against"]["perplexity"], source["perplexity"]);
    assert!(of["against"]["kl_divergence"].as_f64().unwrap() > 0.0 && of["windows"] == 2, "{of}");

    let shown = process::succeed(&["inspect", &model]);
    let same = format!("{:.2} % of likeliest", 100.0 * of["against"]["same_likeliest"].as_f64().unwrap());
    assert!(shown.contains("── receipt") && shown.contains(&same) && shown.contains("% of blk."), "{shown}");
    let shown = process::succeed(&["inspect", &model, "--output-format", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("one JSON object");
    assert_eq!(shown["receipt"], written);
    // Not of another file of that name.
    process::succeed(&["quantize", BUILTIN, "-F", "q8_0", "-o", &model, "--force"]);
    let other = process::output(&["inspect", &model]);
    assert!(!process::text(&other.stdout).contains("── receipt"));
    assert!(process::text(&other.stderr).contains("of another model"));
    // A text that is not there, or a source that cannot predict one, is refused before anything is written.
    let none = at("none.gguf");
    assert!(fail(&[BUILTIN, "-F", "q8_0", "-o", &none, "--eval-text", "/nonexistent"]).contains("/nonexistent"));
    let half = write_source(folder.path());
    assert!(fail(&[&half, "-F", "q8_0", "-o", &none, "--eval-text", &text]).contains("--eval-text"));
    assert!(!Path::new(&none).exists());
}

#[test]
fn a_model_that_gguf_has_no_words_for_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("model");
    fs::create_dir(&source).expect("room for a folder");
    for file in ["config.json", "model.safetensors", "tokenizer_config.json"] {
        fs::copy(Path::new(BUILTIN).join(file), source.join(file)).expect("room for a file");
    }
    let output = folder.path().join("out.gguf");
    let (from, to) = (source.to_str().expect("a path in UTF-8"), output.to_str().expect("a path in UTF-8"));
    assert!(fail(&[from, "-F", "q8_0", "-o", to]).contains("tokenizer.json"));
    assert!(fail(&[from, "-F", "q9_9", "-o", to]).contains("q4_k_m"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn nvfp4_has_its_scale_beside_it_and_goes_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let read = |name: &str| Gguf::read(fs::read(at(name)).unwrap().into()).unwrap();
    let (four, again, other, published) = (at("four.gguf"), at("again.gguf"), at("f16.gguf"), at("published"));
    process::succeed(&["quantize", BUILTIN, "-F", "nvfp4", "-o", &four]);
    let gguf = read("four.gguf");
    assert_eq!(gguf.metadata().u64("general.file_type").unwrap(), Some(39));
    let (name, scale) = ("blk.3.ffn_up.weight", "blk.3.ffn_up.scale");
    assert_eq!(Some(gguf.tensor_info(name).unwrap().ggml_type()), GgmlType::holding(WeightFormat::NVFP4));
    assert_eq!(gguf.tensor(name).unwrap().format(), WeightFormat::NVFP4);
    assert_eq!(gguf.tensor("token_embd.weight").unwrap().format(), WeightFormat::Q6_K);
    let scales = gguf.tensors().iter().filter(|info| info.name().ends_with(".scale"));
    let scales: Vec<f32> = scales.map(|info| gguf.read_tensor(info).unwrap().to_f32()[0]).collect();
    assert!(scales.len() == 49 && scales.iter().all(|scale| scale.to_bits() & 0x7f_ffff == 0), "{scales:?}");
    // What is packed is what the packer makes with that scale.
    let open = |path: &str| Checkpoint::open(Path::new(path), &|path| Ok(mapped::map(path)?), &[]).unwrap();
    let original = open(BUILTIN).tensor("model.layers.3.mlp.up_proj.weight").unwrap().to_f32();
    let unit = gguf.tensor(scale).unwrap().to_f32()[0];
    let found = gguf.tensor(name).unwrap();
    for (block, weights) in found.as_slice::<tensor::quant::nvfp4::Block>().iter().zip(original.as_chunks::<64>().0) {
        assert_eq!(*block, tensor::quant::nvfp4::pack(weights, unit, Packing::Searched));
    }
    // It runs, and costs little.
    let text = at("text.txt");
    fs::write(&text, continuation(&[]).repeat(3)).expect("room for a text");
    let (before, after) = (perplexity(BUILTIN, &text), perplexity(&four, &text));
    assert!(after < 1.15 * before, "{after} from {before}");
    // Kept, the scale stays with it; where it becomes something else, nothing is left that would be multiplied with.
    process::succeed(&["quantize", &four, "-F", "nvfp4", "-o", &again]);
    let kept = read("again.gguf");
    for info in gguf.tensors() {
        assert_eq!(
            kept.tensor_bytes(kept.tensor_info(info.name()).unwrap()).unwrap(),
            gguf.tensor_bytes(info).unwrap()
        );
    }
    process::succeed(&["quantize", &four, "-F", "f32", "-o", &other]);
    let plain = read("f16.gguf");
    assert!(plain.tensor_info(scale).is_none() && plain.tensor(name).unwrap().to_f32() == found.to_f32());
    // From safetensors that have it already, it is the same.
    process::succeed(&["quantize", BUILTIN, "-F", "nvfp4", "--to", "safetensors", "-o", &published]);
    let weights = open(&published).tensor("model.layers.3.mlp.up_proj.weight").unwrap();
    process::succeed(&["quantize", &published, "-F", "nvfp4", "-o", &four, "--force"]);
    assert_eq!(read("four.gguf").tensor(name).unwrap().bytes(), weights.bytes());
    let refused = fail(&[BUILTIN, "-F", "q8_0", "-o", &at("none.gguf"), "--tensor", "token_embd=nvfp4"]);
    assert!(refused.contains("no scale of `token_embd.weight`") && refused.contains("mxfp4"), "{refused}");
}

/// A source of many tensors, and the bytes of it in Q8_0.
fn write_large_source(folder: &Path) -> String {
    let tensors: Vec<(String, Tensor)> = (0..12)
        .map(|layer| (format!("blk.{layer}.ffn_up.weight"), original(&format!("{layer}"), &[256, 1024])))
        .collect();
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("llama".into()));
    for (name, tensor) in &tensors {
        writer.tensor(name, tensor);
    }
    let path = folder.join("source.gguf");
    fs::write(&path, writer.to_bytes()).expect("room for a file");
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// The kernel ends a process that writes beyond a limit, as a full disk or a power cut would in the middle of a tensor.
#[cfg(unix)]
#[test]
fn a_run_that_was_interrupted_is_continued_to_the_same_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = write_large_source(folder.path());
    let at = |name: &str| folder.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let (whole, output) = (at("whole.gguf"), at("out.gguf"));
    let (whole_receipt, receipt) = (at("whole.json"), at("out.json"));
    process::succeed(&["quantize", &source, "-F", "q8_0", "-o", &whole, "--receipt", &whole_receipt]);
    // Units of 512 or 1024 bytes: between 1 and 2 of the 3.3 MB.
    let script =
        format!("ulimit -f 2000; exec {} quantize {source} -F q8_0 -o {output}", env!("CARGO_BIN_EXE_hotmetal"));
    let cut = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
    assert!(!cut.status.success());
    assert!(!Path::new(&output).exists() && folder.path().join(".out.gguf.partial").exists());
    let resumed = process::output(&["quantize", &source, "-F", "q8_0", "-o", &output, "--receipt", &receipt]);
    let note = process::text(&resumed.stderr);
    assert!(resumed.status.success() && note.contains("by a run that was interrupted"), "{note}");
    assert!(fs::read(&output).unwrap() == fs::read(&whole).unwrap());
    // What tensors lost is not lost with the run that found it out, to the last bit.
    let found = fs::read_to_string(&receipt).unwrap().replace(&output, &whole);
    assert_eq!(found, fs::read_to_string(&whole_receipt).unwrap());
    let receipt: serde_json::Value = serde_json::from_slice(&fs::read(&receipt).unwrap()).expect("JSON");
    assert_eq!(receipt["tensors"].as_array().map(Vec::len), Some(12));
    let left = |folder: &Path| {
        fs::read_dir(folder)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with('.'))
            .count()
    };
    assert_eq!(left(folder.path()), 0);
    // What was begun for another format is thrown away.
    let other = at("other.gguf");
    let script =
        format!("ulimit -f 2000; exec {} quantize {source} -F q8_0 -o {other}", env!("CARGO_BIN_EXE_hotmetal"));
    std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
    process::succeed(&["quantize", &source, "-F", "q5_0", "-o", &other]);
    let gguf = Gguf::read(fs::read(&other).unwrap().into()).unwrap();
    assert!(gguf.tensors().iter().all(|info| Some(info.ggml_type()) == GgmlType::of(WeightFormat::Q5_0)));
}

/// A file of so many bytes that begins with these; the others are zeros that take no room.
#[cfg(target_os = "linux")]
fn write_holes(path: &Path, start: &[u8], len: u64) {
    fs::write(path, start).expect("room for a header");
    let file = fs::OpenOptions::new().write(true).open(path).expect("it is there");
    file.set_len(len).expect("a file with holes");
}

/// The system gives the process an eighth of what its source has, and less than what it writes: neither is ever held.
#[cfg(target_os = "linux")]
#[test]
fn memory_does_not_grow_with_the_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let (source, output) = (at("large.gguf"), at("out.gguf"));
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("llama".into()));
    for layer in 0..3 {
        let name = format!("blk.{layer}.ffn_up.weight");
        writer.made_tensor(&name, GgmlType::of(WeightFormat::F32).unwrap(), &[8192, 8192], 256 << 20, |_| Ok(()));
    }
    write_holes(Path::new(&source), &writer.header(), writer.bytes_before(3));
    let quantize = |limit: &str| {
        let script = format!(
            "{limit} exec {} quantize {source} -F q8_0 --plain --force -o {output}",
            env!("CARGO_BIN_EXE_hotmetal")
        );
        std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell")
    };
    // KiB of memory that is not of a file.
    let done = quantize("ulimit -d 98304;");
    assert!(done.status.success(), "{}", process::text(&done.stderr));
    assert!(fs::metadata(&output).unwrap().len() > 200 << 20);
    // The limit is one.
    assert!(!quantize("ulimit -d 16384;").status.success());
}

/// Of a folder's mapped files, too, only what is being read is held: matrices whose rows are reordered for GGUF (Q and K of
/// Llama) leave nothing behind.
#[cfg(target_os = "linux")]
#[test]
fn mapped_pages_of_a_folder_are_given_back() {
    const LAYERS: usize = 6;
    const HIDDEN: usize = 4096;
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::copy(Path::new(BUILTIN).join("tokenizer.json"), at("tokenizer.json")).expect("a tokenizer");
    let mut config = builtin_config();
    let vocab = config["vocab_size"].as_u64().expect("a number") as usize;
    for (name, value) in [
        ("hidden_size", HIDDEN),
        ("num_hidden_layers", LAYERS),
        ("num_attention_heads", HIDDEN / 128),
        ("num_key_value_heads", 1),
        ("head_dim", 128),
        ("intermediate_size", 256),
    ] {
        config[name] = value.into();
    }
    config["tie_word_embeddings"] = true.into();
    config["model_type"] = "llama".into();
    fs::write(at("config.json"), config.to_string()).expect("room for a file");
    let mut tensors = vec![("model.embed_tokens".to_owned(), vec![vocab, HIDDEN]), ("model.norm".into(), vec![HIDDEN])];
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.k_proj", vec![128, HIDDEN]),
            ("self_attn.v_proj", vec![128, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.gate_proj", vec![256, HIDDEN]),
            ("mlp.up_proj", vec![256, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, 256]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}"), shape));
        }
    }
    let mut writer = SafetensorsWriter::new();
    for (name, shape) in &tensors {
        let shape: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
        let len = 2 * shape.iter().product::<u64>();
        writer.made_tensor(&format!("{name}.weight"), "BF16", &shape, len, |_| Ok(()));
    }
    write_holes(&at("model.safetensors"), &writer.header(), writer.bytes_before(tensors.len()));

    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_hotmetal"));
    command.args(["quantize", "-F", "q8_0", "--plain", "-o"]).arg(at("out.gguf")).arg(folder.path());
    let errors = fs::File::create(at("errors")).expect("room for a file");
    let mut child = command.stderr(errors).spawn().expect("the binary starts");
    let mut peak = 0;
    while child.try_wait().expect("a child").is_none() {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let pages =
            status.lines().find_map(|line| line.strip_prefix("RssFile:")?.trim().strip_suffix(" kB")?.parse().ok());
        peak = peak.max(pages.unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(child.wait().expect("a child").success(), "{}", fs::read_to_string(at("errors")).unwrap());
    // The program itself is some of it. The source has 430 MiB, and Q alone 32 in each layer.
    assert!(peak > 0 && peak < 128 << 10, "{} MiB", peak >> 10);
}

/// The weights of the built-in model.
fn builtin_weights() -> safetensors::Safetensors {
    let file = fs::read(Path::new(BUILTIN).join("model.safetensors")).expect("it is there");
    safetensors::Safetensors::read(file.into()).expect("it is whole")
}

/// Its configuration.
fn builtin_config() -> serde_json::Value {
    let file = fs::read(Path::new(BUILTIN).join("config.json")).expect("it is there");
    serde_json::from_slice(&file).expect("JSON")
}

/// How compressed-tensors says that matrices are integers of four bits with a scale for 32 features.
fn groups_of_32() -> serde_json::Value {
    serde_json::json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": true, "dynamic": false,
        }}},
    })
}

/// Code `j` of a block: the words of compressed-tensors have the codes in order, the blocks of Q4_0 have j and j + 16 in a byte.
fn code(block: &tensor::quant::q4_0::Block, j: usize) -> u8 {
    if j < 16 { block.codes[j] & 15 } else { block.codes[j - 16] >> 4 }
}

/// A folder with the tokenizer of the built-in model, this configuration and these weights.
fn write_folder(folder: &Path, config: &serde_json::Value, weights: &SafetensorsWriter) {
    fs::create_dir(folder).expect("room for a folder");
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs::copy(Path::new(BUILTIN).join(file), folder.join(file)).expect("room for a file");
    }
    fs::write(folder.join("config.json"), config.to_string()).expect("room for a file");
    fs::write(folder.join("model.safetensors"), weights.to_bytes()).expect("room for a file");
}

#[test]
fn quantised_safetensors_run_and_become_gguf() {
    // The built-in model with one projection in INT4, as compressed-tensors packs it.
    let folder = tempfile::tempdir().expect("a folder");
    let file = builtin_weights();
    let packed = "model.layers.0.mlp.up_proj.weight";
    let mut writer = SafetensorsWriter::new();
    let mut expected = Vec::new();
    for info in file.tensors() {
        if info.name() != packed {
            writer.tensor(info.name(), info.dtype(), info.shape(), file.tensor_bytes(info).unwrap());
            continue;
        }
        let (rows, cols) = (info.shape()[0] as usize, info.shape()[1] as usize);
        let values = file.read_tensor(info).unwrap().to_f32();
        let four = Tensor::packed(WeightFormat::Q4_0, vec![rows, cols], &values, Packing::Searched).unwrap();
        let blocks: &[tensor::quant::q4_0::Block] = four.as_slice();
        let scales: Vec<u8> = blocks.iter().flat_map(|block| block.scale.to_le_bytes()).collect();
        let words: Vec<u8> =
            blocks.iter().flat_map(|b| (0..16).map(|i| code(b, 2 * i) | code(b, 2 * i + 1) << 4)).collect();
        let stem = packed.trim_end_matches(".weight");
        writer.tensor(&format!("{stem}.weight_packed"), "I32", &[rows as u64, cols as u64 / 8], words.into());
        writer.tensor(&format!("{stem}.weight_scale"), "F16", &[rows as u64, cols as u64 / 32], scales.into());
        expected = four.bytes().to_vec();
    }
    let mut config = builtin_config();
    config["quantization_config"] = groups_of_32();
    let source = folder.path().join("model");
    write_folder(&source, &config, &writer);
    let source = source.to_str().expect("a path in UTF-8");

    let open = |path: &Path| Ok(mapped::map(path)?);
    let tensor = Checkpoint::open(Path::new(source), &open, &[]).unwrap().tensor(packed).unwrap();
    assert_eq!((tensor.format(), &tensor.bytes()[..]), (WeightFormat::Q4_0, &expected[..]));
    let inspected = process::succeed(&["inspect", source]);
    assert!(
        inspected.contains("read as Q4_0, which holds it exactly") && inspected.contains("quant_method"),
        "{inspected}"
    );
    let ran = process::output(&["run", source, "Once upon a time", "--temp", "0", "-n", "20"]);
    let note = process::text(&ran.stderr);
    assert!(ran.status.success() && note.contains("INT4 as Q4_0"), "{note}");
    // What is in four bits already stays what it is.
    let output = folder.path().join("out.gguf");
    process::succeed(&["quantize", source, "-F", "q4_0", "-o", output.to_str().expect("a path in UTF-8"), "--plain"]);
    let gguf = Gguf::read(fs::read(&output).unwrap().into()).unwrap();
    assert_eq!(gguf.tensor("blk.0.ffn_up.weight").unwrap().bytes()[..], expected[..]);
}

/// The matrices of a layer of the built-in model, quantised "by activation order": each feature lists its group of scales.
#[test]
fn features_that_list_their_groups_stay_in_four_bits() {
    let bytes_of = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let file = builtin_weights();
    // The second has the same weights as plain numbers, and their features as they are.
    let (mut packed, mut plain) = (SafetensorsWriter::new(), SafetensorsWriter::new());
    for info in file.tensors() {
        let values = file.read_tensor(info).unwrap().to_f32();
        let stem = info.name().strip_suffix("_proj.weight").filter(|stem| stem.starts_with("model.layers.0."));
        let Some(stem) = stem else {
            for writer in [&mut packed, &mut plain] {
                writer.tensor(info.name(), "F32", info.shape(), bytes_of(&values).into());
            }
            continue;
        };
        let (rows, cols) = (info.shape()[0] as usize, info.shape()[1] as usize);
        // What multiplies the same rows has one order, as GPTQ makes it.
        let step = match stem.rsplit('.').next() {
            Some("q" | "k" | "v") => 5,
            Some("gate" | "up") => 7,
            _ => 11,
        };
        let order: Vec<usize> = (0..cols).map(|i| (i * step + 3) % cols).collect();
        let sorted: Vec<f32> = values.chunks(cols).flat_map(|row| order.iter().map(|&feature| row[feature])).collect();
        let four = Tensor::packed(WeightFormat::Q4_0, vec![rows, cols], &sorted, Packing::Searched).unwrap();
        let blocks: &[tensor::quant::q4_0::Block] = four.as_slice();
        let (mut words, mut groups, mut numbers) = (vec![0u8; rows * cols / 2], vec![0; cols], vec![0.0; rows * cols]);
        let sorted = four.to_f32();
        for (place, &feature) in order.iter().enumerate() {
            groups[feature] = (place / 32) as u32;
            for row in 0..rows {
                let code = code(&blocks[row * cols / 32 + place / 32], place % 32);
                words[row * cols / 2 + feature / 2] |= code << (feature % 2 * 4);
                numbers[row * cols + feature] = sorted[row * cols + place];
            }
        }
        let scales: Vec<u8> = blocks.iter().flat_map(|block| block.scale.to_le_bytes()).collect();
        let groups: Vec<u8> = groups.into_iter().flat_map(u32::to_le_bytes).collect();
        let (rows, cols) = (rows as u64, cols as u64);
        packed.tensor(&format!("{stem}_proj.weight_packed"), "I32", &[rows, cols / 8], words.into());
        packed.tensor(&format!("{stem}_proj.weight_scale"), "F16", &[rows, cols / 32], scales.into());
        packed.tensor(&format!("{stem}_proj.weight_g_idx"), "I32", &[cols], groups.into());
        plain.tensor(info.name(), "F32", info.shape(), bytes_of(&numbers).into());
    }
    let mut config = builtin_config();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    write_folder(&folder.path().join("plain"), &config, &plain);
    config["quantization_config"] = groups_of_32();
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["actorder"] = "group".into();
    write_folder(&folder.path().join("packed"), &config, &packed);

    assert!(process::succeed(&["inspect", &path("packed")]).contains("read as Q4_0, which holds it exactly"));
    assert_eq!(process::succeed(&["inspect", &path("packed"), "--ops"]).matches("gather_columns").count(), 4);
    let ran = process::output(&["run", &path("packed"), "Once upon a time", "--temp", "0", "-n", "20"]);
    let note = process::text(&ran.stderr);
    assert!(ran.status.success() && note.contains("INT4 as Q4_0"), "{note}");
    fs::write(path("text"), "Once upon a time there was a little girl who had a red ball.").expect("room for a file");
    let nll = |model: &str, device: &str| {
        let args = ["eval", &path(model), "-f", &path("text"), "--ctx-size", "12", "--device", device];
        let output = process::output(&[&args[..], &["--kv-type", "f32", "-o", "json"]].concat());
        assert!(output.status.success(), "{}", process::text(&output.stderr));
        let result: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        result["nll"].as_f64().expect("a number")
    };
    // A sum in another order, in f64; then what processors and GPUs round.
    let expected = nll("plain", "reference");
    for (device, off) in [("reference", 1e-9), ("cpu", 0.02), ("sim", 0.02)] {
        let found = nll("packed", device);
        assert!((found / expected - 1.0).abs() < off, "{device}: {found} for {expected}");
    }
    let args = ["verify", &path("packed"), "--device", "sim", "--against", "cpu", "-n", "4", "-o", "json"];
    let verified = process::output(&args);
    let text = process::text(&verified.stdout);
    assert!(verified.status.success() && text.contains("gather_columns"), "{text}");
    // What is written anew has its features where they were.
    process::succeed(&["quantize", &path("packed"), "-F", "f32", "--to", "safetensors", "-o", &path("anew")]);
    let found = nll("anew", "reference");
    assert!((found / expected - 1.0).abs() < 1e-3, "{found} for {expected}");
}

#[test]
fn weights_are_quantised_on_load_and_kept_for_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |format: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_hotmetal"));
        command.args([
            "run",
            BUILTIN,
            "Once upon a time",
            "--temp",
            "0",
            "-n",
            "40",
            "--device",
            "cpu",
            "--quant",
            format,
        ]);
        let output = command.env("XDG_CACHE_HOME", folder.path()).output().expect("the binary starts");
        let note = process::text(&output.stderr);
        assert!(output.status.success(), "{note}");
        (process::text(&output.stdout), note)
    };
    let cache = folder.path().join("hotmetal/quantized");
    let ((first, made), (second, found)) = (run("q4_0"), run("q4_0"));
    assert!(made.contains("quantised to q4_0") && !found.contains("quantised"), "{made}{found}");
    assert_eq!(first, second);
    assert_eq!(fs::read_dir(&cache).expect("a cache").count(), 1);
    // As from a file that was written before.
    let file = folder.path().join("q4.gguf");
    let file = file.to_str().expect("a path in UTF-8");
    process::succeed(&["quantize", BUILTIN, "-F", "q4_0", "-o", file]);
    let output = process::output(&["run", file, "Once upon a time", "--temp", "0", "-n", "40", "--device", "cpu"]);
    assert_eq!(process::text(&output.stdout), first);
    let refused = process::output(&["plan", BUILTIN, "--quant", "q4_0"]);
    assert!(!refused.status.success() && process::text(&refused.stderr).contains("--quant"));
}
