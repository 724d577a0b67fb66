//! `hotmetal verify` as a user meets it: real processes, each output read back, and a fault in a model found and named.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use process::text;
use serde_json::Value;

mod process;

fn output(args: &[&str]) -> Output {
    process::output(&[&["verify"], args].concat())
}

fn succeed(args: &[&str]) -> String {
    process::succeed(&[&["verify"], args].concat())
}

fn json(printed: &str) -> Value {
    serde_json::from_str(printed).expect("one JSON object")
}

fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("`{key}` of {value}"))
}

/// A tiny random model of three layers, in F32, without a tokenizer.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden").join(name)
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

#[test]
fn kernels_are_filtered_by_op_format_and_instruction_set() {
    let args = ["--quick", "--op", "norm_glu,attention", "--format", "q8_0,f32", "--isa", "scalar", "-t", "1"];
    let result = json(&succeed(&[&args[..], &["-o", "json"]].concat()));
    assert_eq!((&result["verdict"], &result["device"]), (&"pass".into(), &"cpu".into()));
    assert_eq!(result["variants"], serde_json::json!(["scalar, 1 thread", "scalar, 1 thread, not repacked"]));
    assert_eq!(array(&result, "models"), &[] as &[Value]);
    let kernels = array(&result, "kernels");
    for kernel in kernels {
        let has = |op: &str| array(kernel, "ops").iter().any(|found| found == op);
        assert!(has("norm_glu") || has("attention"), "{kernel}");
        assert!(["Q8_0", "F32"].contains(&kernel["format"].as_str().unwrap()), "{kernel}");
        let (error, tolerance) = (kernel["error"].as_f64().unwrap(), kernel["tolerance"].as_f64().unwrap());
        assert!(error <= tolerance && kernel["share"].as_f64().unwrap() <= 1.0, "{kernel}");
    }
    for (op, format) in [("norm_glu", "Q8_0"), ("norm_glu", "F32"), ("attention", "F32")] {
        let is_of =
            |kernel: &&Value| kernel["format"] == format && array(kernel, "ops").iter().any(|found| found == op);
        assert!(kernels.iter().any(|kernel| is_of(&kernel)), "{op} in {format}");
    }
}

#[test]
fn without_a_model_kernels_small_models_and_the_built_in_one_are_checked() {
    let printed = succeed(&["--quick", "--format", "bf16", "--isa", "scalar", "-n", "12"]);
    for expected in ["norm_linear", "rope_kv_write", "batches", "tiny qwen3", "built-in model", "12 of 12"] {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
    let last = printed.lines().last().expect("a verdict");
    assert!(last.starts_with("✓ verified: ") && last.ends_with("12 of 12 greedy tokens equal"), "{last}");
}

#[test]
fn a_model_is_compared_op_by_op_and_token_by_token() {
    let model = golden("qwen3");
    let result = json(&succeed(&[path(&model), "-o", "json"]));
    assert_eq!((&result["verdict"], array(&result, "kernels")), (&"pass".into(), &[] as &[Value]));
    let [model] = array(&result, "models") else { panic!("{result}") };
    assert_eq!((&model["against"], &model["first_beyond"]), (&"reference".into(), &Value::Null));
    let checkpoints = array(model, "checkpoints");
    let layers: std::collections::BTreeSet<_> = checkpoints.iter().map(|row| row["layer"].as_u64()).collect();
    assert!(layers.contains(&None) && layers.contains(&Some(0)) && layers.contains(&Some(1)), "{layers:?}");
    for result in ["self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj", "keys", "values"] {
        assert!(checkpoints.iter().any(|row| row["result"] == result), "{result}");
    }
    for row in checkpoints {
        assert!(row["nmse"].as_f64().unwrap() <= row["nmse_max"].as_f64().unwrap(), "{row}");
        assert!(row["cosine"].as_f64().unwrap() > 0.999_99 && row["max_abs"].is_number(), "{row}");
    }
    assert_eq!(array(model, "in_place").len(), checkpoints.len());
    let parity = &model["parity"];
    assert_eq!(array(parity, "token_ids").len(), 128);
    assert_eq!(parity["equal"].as_u64().unwrap() + array(parity, "ties").len() as u64, 128);
}

#[test]
fn instruction_sets_are_the_same_bits() {
    let model = golden("llama_gqa");
    let result = json(&succeed(&[path(&model), "--isa", "scalar", "-t", "2", "--against", "reference", "-o", "json"]));
    assert_eq!(array(&result, "models")[0]["device"], "scalar, 2 threads");
    let output = output(&[path(&model), "--against", "scalar", "-t", "1", "-o", "json"]);
    let stderr = text(&output.stderr);
    if stderr.contains("scalar, 1 thread is both") {
        return; // a processor that has nothing better
    }
    assert!(output.status.success(), "{stderr}");
    let result = json(&text(&output.stdout));
    let checkpoints = array(&array(&result, "models")[0], "checkpoints");
    assert!(checkpoints.iter().all(|row| row["nmse_max"] == 0.0 && row["max_abs"] == 0.0));
}

/// The golden model with one weight that is not a number.
fn broken(folder: &Path, tensor: &str) {
    let model = golden("qwen3");
    fs::copy(model.join("config.json"), folder.join("config.json")).expect("a copy");
    let mut bytes = fs::read(model.join("model.safetensors")).expect("the golden's weights");
    let header_len = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header_len]).expect("a header");
    let start = header[tensor]["data_offsets"][0].as_u64().unwrap_or_else(|| panic!("no `{tensor}`")) as usize;
    let at = 8 + header_len + start + 12;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(folder.join("model.safetensors"), bytes).expect("a writable folder");
}

#[test]
fn what_is_not_finite_is_named_by_layer_and_op() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    broken(folder.path(), "model.layers.1.mlp.up_proj.weight");
    let output = output(&[path(folder.path()), "-n", "4", "-o", "json"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("error: not verified: "), "{stderr}");
    assert!(stderr.contains("layer 1 norm_glu in step 0: both devices made numbers that are not finite"), "{stderr}");
    let result = json(&text(&output.stdout));
    assert_eq!(result["verdict"], "fail");
    let model = &array(&result, "models")[0];
    let first = &model["first_beyond"];
    assert_eq!((&first["layer"], &first["op"]), (&1.into(), &"norm_glu".into()));
    assert_eq!(model["parity"]["first_not_finite"], 0);
    // What came before is right.
    let before = array(model, "checkpoints").iter().filter(|row| row["layer"] == 0);
    assert!(before.clone().count() > 5 && before.clone().all(|row| row["beyond"] == false));
}

#[test]
fn mistakes_are_named_with_what_there_is() {
    let model = golden("qwen3");
    let model = path(&model);
    let cases: [(&[&str], &str); 10] = [
        (
            &["--op", "convolution"],
            "there is no op `convolution` among the cases; there are: add, attention, combine, embed",
        ),
        (&["--format", "q9"], "expected one of f32, f16, bf16, q8_0"),
        (&["--against", "abacus"], "`abacus` is neither a device nor an instruction set of this processor (scalar"),
        (&["--device", "abacus"], "there is no device `abacus`"),
        (&["--isa", "mmx"], "expected one of scalar"),
        (&["--device", "reference", "--isa", "scalar"], "--isa chooses instruction sets of the CPU"),
        (&[model, "--isa", "scalar", "--against", "scalar"], "is both the device and what it is compared with"),
        (
            &["--force-variant", "norm_glu=linear"],
            "--force-variant is about the kernels of GPUs: expected --device cuda, metal or sim",
        ),
        (&[model, "-n", "5000"], "are more than the 256 tokens"),
        (&[model, "--prompt", "Hello"], "no --prompt without a tokenizer"),
    ];
    for (args, expected) in cases {
        let output = output(args);
        let stderr = text(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}");
        assert!(stderr.contains(expected) && !stderr.contains("panicked"), "{args:?}: {stderr}");
    }
}

#[test]
fn the_simulated_gpu_is_verified_as_one() {
    let model = golden("llama_gqa");
    let result = json(&succeed(&[path(&model), "--device", "sim", "--against", "cpu", "-n", "8", "-o", "json"]));
    assert_eq!((&result["verdict"], &result["device"]), (&"pass".into(), &"sim".into()));
    let [model] = array(&result, "models") else { panic!("{result}") };
    let parity = &model["parity"];
    assert_eq!(parity["equal"].as_u64().unwrap() + array(parity, "ties").len() as u64, 8);
    assert!(array(model, "checkpoints").len() > 5);
    let result = json(&succeed(&["--device", "sim", "--quick", "--op", "rms_norm", "-o", "json"]));
    assert!(!array(&result, "kernels").is_empty(), "{result}");
}
