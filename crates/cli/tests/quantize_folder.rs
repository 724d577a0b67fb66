//! `hotmetal quantize --to safetensors` as a user meets it: folders read back, shards, interruptions, refusals.

use std::fs;
use std::path::Path;

use formats::safetensors::Safetensors;
use formats::{Checkpoint, PackedLayout};
use tensor::WeightFormat;

mod process;

/// The folder of the built-in model.
const BUILTIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/builtin");
const UP: &str = "model.layers.3.mlp.up_proj.weight";

/// A folder, or a GGUF file of which no tensor is asked for whose name or order of rows depends on its architecture.
fn open(path: &str) -> Checkpoint {
    let open = |path: &Path| Ok(mapped::map(path)?);
    Checkpoint::open(Path::new(path), &open, &[]).expect("a model")
}

fn fail(args: &[&str]) -> String {
    let output = process::output(&[&["quantize"], args].concat());
    assert!(!output.status.success(), "{args:?}");
    process::text(&output.stderr)
}

/// Name and bytes of every file in a folder, sorted.
fn files(folder: &str) -> Vec<(String, Vec<u8>)> {
    let entry = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        (path.file_name().expect("a name").to_str().expect("UTF-8").to_owned(), fs::read(&path).expect("a file"))
    };
    let mut files: Vec<_> = fs::read_dir(folder).expect("a folder").map(entry).collect();
    files.sort_unstable();
    files
}

#[test]
fn every_layout_is_read_back_and_says_what_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let source = open(BUILTIN);
    let original = source.tensor(UP).expect("every tensor is there").to_f32();
    for layout in PackedLayout::ALL {
        let (name, made, receipt) = (layout.name(), at(layout.name()), at(&format!("{}.receipt.json", layout.name())));
        let printed = process::succeed(&[
            "quantize",
            BUILTIN,
            "-F",
            name,
            "--to",
            "safetensors",
            "-o",
            &made,
            "--receipt",
            &receipt,
        ]);
        // Rows of 384 features are no groups of 256.
        let matrices = if name == "fp4_g256" { 42 } else { 49 };
        assert!(printed.contains(&format!("{name:<5} {matrices} tensors")), "{printed}");
        let written = open(&made);
        let config = written.quantization.as_ref().expect("it is quantised");
        let (method, ignored) = match name {
            "fp8_block" => ("fp8", "modules_to_not_convert"),
            "awq" => ("awq", "modules_to_not_convert"),
            _ => ("compressed-tensors", "ignore"),
        };
        let ignored = config[ignored].as_array().expect("a list");
        assert!(config["quant_method"] == method && ignored[0] == "lm_head", "{config}");
        assert_eq!(ignored.len(), 1 + 49 - matrices, "{config}");
        assert_eq!(written.config, source.config);
        assert_eq!(written.generation_config, source.generation_config);
        assert!(written.chat_templates.default == source.chat_templates.default);
        // The same as the packer makes of the rows; the rest is as it was.
        // gate_proj is given the same input, so both have one scale of a matrix.
        let gate = source.tensor(&UP.replace("up", "gate")).expect("every tensor is there").to_f32();
        let largest = original.iter().chain(&gate).fold(0f32, |largest, weight| largest.max(weight.abs()));
        let global = layout.global_scale(largest);
        let packed = layout.pack(&original, 256, global, tensor::quant::Packing::Searched).expect("it divides");
        let found = written.tensor(UP).expect("every tensor is there").to_f32();
        for (found, expected) in found.iter().zip(&packed.weights) {
            let off = if name == "fp8" { expected.abs() / 1024.0 + 1e-7 } else { 0.0 };
            assert!((found - expected).abs() <= off, "{name}: {found}, not {expected}");
        }
        for kept in ["model.embed_tokens.weight", "model.norm.weight"] {
            assert_eq!(written.tensor(kept).unwrap().bytes(), source.tensor(kept).unwrap().bytes(), "{name}");
        }
        let receipt: serde_json::Value = serde_json::from_slice(&fs::read(&receipt).unwrap()).expect("JSON");
        assert!(
            receipt["format"] == name && receipt["tensors"].as_array().map(Vec::len) == Some(matrices),
            "{receipt}"
        );
        // With a slash after it or without.
        for model in [made.clone(), format!("{made}/")] {
            let shown = process::succeed(&["inspect", &model, "--output-format", "json"]);
            let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
            assert_eq!(shown["receipt"], receipt);
        }
    }
    // In GGUF files FP8 is plain numbers.
    let mut expanded = open(&at("fp8"));
    assert_eq!(expanded.tensor(UP).unwrap().format(), WeightFormat::FP8);
    assert!(expanded.expand_unless(|_| false));
    let embeddings = "token_embd=bf16";
    process::succeed(&["quantize", &at("fp8"), "-F", "f16", "--tensor", embeddings, "-o", &at("fp8.gguf")]);
    assert!(open(&at("fp8.gguf")).tensor(UP).unwrap().bytes() == expanded.tensor(UP).unwrap().bytes());
    let text = at("text.txt");
    fs::write(&text, "Once upon a time, in a green valley in the hills, there was a cheerful little kangaroo.")
        .unwrap();
    let scores = |model: &str| {
        let args = ["eval", model, "-f", &text, "--ctx-size", "16", "--device", "cpu", "-o", "json"];
        let printed: serde_json::Value = serde_json::from_slice(&process::output(&args).stdout).expect("JSON");
        printed["perplexity"].as_f64().expect("a number")
    };
    // Off by the rounding of activations.
    let (packed, plain) = (scores(&at("fp8")), scores(&at("fp8.gguf")));
    assert!(plain > 1.0 && (packed / plain - 1.0).abs() < 0.01, "{packed}, and {plain} of plain numbers");
    // It runs, and is as near to its source as the same numbers are in GGUF.
    let ran = process::output(&["run", &at("int4_g32"), "Once upon a time", "--temp", "0", "-n", "20"]);
    assert!(ran.status.success() && process::text(&ran.stderr).contains("INT4 as Q4_0"));
}

#[test]
fn plain_numbers_and_single_matrices_stay_what_was_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let (half, mixed) = (at("half/"), at("mixed"));
    process::succeed(&["quantize", BUILTIN, "-F", "f16", "-o", &half]);
    let written = open(&half);
    assert!(written.quantization.is_none() && written.config["torch_dtype"] == "float16");
    assert!(written.tensor_infos().all(|info| info.format == Some(WeightFormat::F16)));
    process::succeed(&["quantize", BUILTIN, "-F", "int8", "-o", &mixed, "--tensor", "layers.3.mlp.up_proj=bf16"]);
    let written = open(&mixed);
    assert_eq!(written.tensor(UP).unwrap().bytes(), open(BUILTIN).tensor(UP).unwrap().bytes());
    assert_eq!(written.tensor(&UP.replace('3', "2")).unwrap().format(), WeightFormat::Q8_0);
    let ignored = &written.quantization.as_ref().expect("it is quantised")["ignore"];
    assert_eq!(*ignored, serde_json::json!(["lm_head", "model.layers.3.mlp.up_proj"]));

    // What has no layout, or is no folder, or would be lost.
    let none = at("none");
    let refused = |args: &[&str]| fail(&[args, &["-o", &none]].concat());
    let no_layout = refused(&[BUILTIN, "-F", "q4_k", "--to", "safetensors"]);
    assert!(no_layout.contains("`q4_k` has no published layout") && no_layout.contains("int4_g128"), "{no_layout}");
    let no_type = refused(&[BUILTIN, "-F", "int4", "--to", "gguf"]);
    assert!(no_type.contains("`int4_g128` is no type of GGUF") && no_type.contains("q4_0"), "{no_type}");
    let no_type = refused(&[BUILTIN, "-F", "fp8", "--to", "gguf"]);
    assert!(no_type.contains("`fp8` is no type of GGUF") && no_type.contains("--to safetensors"), "{no_type}");
    let no_type = refused(&[BUILTIN, "-F", "q8_0", "--to", "gguf", "--tensor", "ffn_up=fp8"]);
    assert!(no_type.contains("FP8 is no type of GGUF: choose q8_0"), "{no_type}");
    assert!(refused(&[BUILTIN, "-F", "int4", "--tensor", "up_proj=fp8"]).contains("f16, bf16 or f32"));
    assert!(refused(&[BUILTIN, "-F", "int9"]).contains("mxfp4"));
    assert!(refused(&[BUILTIN, "-F", "int4", "--tensor", "up_proj=q8_0"]).contains("f16, bf16 or f32"));
    assert!(refused(&[BUILTIN, "-F", "int4", "--tensor", "nothing=f16"]).contains("--tensor nothing"));
    assert!(refused(&[BUILTIN, "-F", "int4", "--max-shard-size", "5 lots"]).contains("5GB"));
    let file = at("model.gguf");
    process::succeed(&["quantize", BUILTIN, "-F", "q8_0", "-o", &file]);
    assert!(refused(&[&file, "-F", "int4"]).contains("tokenizer.json"));
    assert!(!Path::new(&none).exists());
    assert!(fail(&[BUILTIN, "-F", "int4", "-o", &mixed]).contains("--force"));
    assert!(fail(&[BUILTIN, "-F", "int4", "-o", &file, "--force"]).contains("is a file"));
    process::succeed(&["quantize", BUILTIN, "-F", "int4", "-o", &mixed, "--force"]);
    assert_eq!(open(&mixed).tensor(UP).unwrap().format(), WeightFormat::Q4_0);
    fs::write(Path::new(&mixed).join("thesis.doc"), "years of work").unwrap();
    assert!(fail(&[BUILTIN, "-F", "int8", "-o", &mixed, "--force"]).contains("thesis.doc"));
    assert!(Path::new(&mixed).join("thesis.doc").exists());
    let left = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().to_str().unwrap().starts_with('.');
    assert!(!fs::read_dir(folder.path()).unwrap().any(left));
}

/// The kernel ends a process that writes a file beyond a limit, as a full disk or a power cut would.
#[cfg(unix)]
#[test]
fn shards_are_aligned_and_listed_and_a_run_that_was_cut_leaves_nothing_in_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let (whole, output, receipt) = (at("whole"), at("out"), at("receipt.json"));
    let args = ["quantize", BUILTIN, "-F", "int4_g64", "--max-shard-size", "600000", "-o"];
    process::succeed(&[&args[..], &[&whole]].concat());
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(Path::new(&whole).join("model.safetensors.index.json")).unwrap()).unwrap();
    let (mut total, mut names) = (0, 0);
    for (name, bytes) in files(&whole).into_iter().filter(|(name, _)| name.ends_with(".safetensors")) {
        let file = Safetensors::read(bytes.into()).expect("a whole file");
        assert_eq!(file.metadata(), [("format".to_owned(), "pt".to_owned())]);
        for info in file.tensors() {
            assert_eq!(index["weight_map"][info.name()], name.as_str());
            let size = match info.dtype() {
                "I64" => 8,
                "I32" => 4,
                _ => 2,
            };
            assert!(info.range().start().is_multiple_of(size), "{info:?}");
            total += info.range().len();
            names += 1;
        }
    }
    assert_eq!(index["metadata"]["total_size"], total);
    assert_eq!(index["weight_map"].as_object().map(serde_json::Map::len), Some(names));
    let shards = files(&whole).iter().filter(|(name, _)| name.starts_with("model-")).count();
    assert!(shards > 4, "{shards}");

    // Units of 512 or 1024 bytes: the embeddings, which come first, are 4 MiB.
    let script = format!(
        "ulimit -f 1000; exec {} quantize {BUILTIN} -F int4_g64 --max-shard-size 600000 -o {output} --tensor token_embd=f32",
        env!("CARGO_BIN_EXE_hotmetal")
    );
    let cut = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
    assert!(!cut.status.success() && !Path::new(&output).exists());
    assert!(folder.path().join(".out.partial").exists());
    // Of another command: it begins anew, and leaves nothing of the first.
    process::succeed(&[&args[..], &[&output, "--receipt", &receipt]].concat());
    assert!(files(&output) == files(&whole));
    assert!(!folder.path().join(".out.partial").exists());
}

/// Cut in the middle of the second shard, as above: the first is kept as it lies there, and the second goes on.
#[cfg(unix)]
#[test]
fn a_folder_that_was_interrupted_is_continued_to_the_same_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let (whole, output, probe) = (at("whole"), at("out"), at("probe"));
    // The embeddings have a shard for themselves, which is a little smaller than the next.
    let args = ["quantize", BUILTIN, "-F", "int8", "--max-shard-size", "2150000", "-o"];
    let (whole_receipt, receipt) = (at("whole.json"), at("out.json"));
    process::succeed(&[&args[..], &[&whole, "--receipt", &whole_receipt]].concat());
    let shards: Vec<_> = files(&whole).into_iter().filter(|(name, _)| name.starts_with("model-")).collect();
    let sizes: Vec<u64> = shards.iter().map(|(_, bytes)| bytes.len() as u64).collect();
    // Shells count in units of 512 or 1024 bytes.
    let shell = |script: &str| std::process::Command::new("sh").args(["-c", script]).output().expect("a shell");
    shell(&format!("ulimit -f 4; head -c 8192 /dev/zero > {probe}"));
    let unit = fs::metadata(&probe).expect("it is written up to the limit").len() / 4;
    let limit = sizes[0].div_ceil(unit);
    assert!(limit * unit < sizes[1] && sizes.len() > 2, "units of {unit}, and shards of {sizes:?}");
    let program = env!("CARGO_BIN_EXE_hotmetal");
    let cut = shell(&format!("ulimit -f {limit}; exec {program} {} {output} --receipt {receipt}", args.join(" ")));
    assert!(!cut.status.success() && !Path::new(&output).exists());

    let partial = folder.path().join(".out.partial");
    let first = |folder: &Path| fs::metadata(folder.join(&shards[0].0)).expect("it is whole").modified().unwrap();
    let written = first(&partial);
    assert!(!partial.join(&shards[1].0).exists() && partial.join(format!(".{}.partial", shards[1].0)).exists());
    let resumed = process::output(&[&args[..], &[&output, "--receipt", &receipt]].concat());
    let note = process::text(&resumed.stderr);
    assert!(resumed.status.success() && note.contains("were written by a run that was interrupted"), "{note}");
    assert!(files(&output) == files(&whole));
    assert_eq!(first(Path::new(&output)), written, "the first shard was written anew");
    assert!(!partial.exists());
    // What tensors lost is not lost with the run that found it out, to the last bit.
    let found = fs::read_to_string(&receipt).unwrap().replace(&output, &whole);
    assert_eq!(found, fs::read_to_string(&whole_receipt).unwrap());
    let receipt: serde_json::Value = serde_json::from_slice(&fs::read(&receipt).unwrap()).expect("JSON");
    assert_eq!(receipt["tensors"].as_array().map(Vec::len), Some(49));
}
