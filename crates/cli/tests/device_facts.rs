//! What a device gives at most is measured once, kept, and passed over where it is of something else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// Runs the program with its cache in `cache`: stdout and stderr.
fn run(cache: &Path, args: &[&str]) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmetal"));
    let command = command.args(args).stdin(Stdio::null()).env("HF_HUB_OFFLINE", "1").env("XDG_CACHE_HOME", cache);
    let output = command.output().expect("the binary starts");
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("UTF-8"));
    assert!(output.status.success(), "{args:?}: {stderr}");
    (stdout, stderr)
}

/// The only file of facts in `cache`.
fn file(cache: &Path) -> PathBuf {
    let mut files: Vec<_> = fs::read_dir(cache.join("hotmetal/devices")).expect("a folder").flatten().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0).path()
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("a file")).expect("JSON")
}

/// The same file with another value in one field.
fn change(path: &Path, field: &str, value: Value) {
    let mut facts = read(path);
    assert!(facts.get(field).is_some(), "there is no `{field}` in {facts}");
    facts[field] = value;
    fs::write(path, facts.to_string()).expect("a file");
}

#[test]
fn a_device_is_measured_once_and_again_when_asked_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path();
    for device in ["cpu", "sim"] {
        let cache = &cache.join(device);
        let plan = ["plan", "--device", device, "--threads", "1"];
        let (text, stderr) = run(cache, &plan);
        assert!(text.contains("reading, measured just now") && stderr.is_empty(), "{text}{stderr}");
        let path = file(cache);
        // What stands in the file is what counts from then on.
        let known = serde_json::json!({"value": 123.4e9, "at": "2026-01-02T03:04:05Z"});
        change(&path, "read_bandwidth", known.clone());
        let (text, stderr) = run(cache, &plan);
        assert!(text.contains("123.4 GB/s reading, measured on 2026-01-02") && stderr.is_empty(), "{text}{stderr}");
        let (json, _) = run(cache, &[&plan[..], &["--output-format", "json"]].concat());
        let json: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["bandwidth_gb_s"], 123.4);
        assert_eq!(json["bandwidth_measured_at"], "2026-01-02T03:04:05Z");
        assert!(json["prompt"]["tokens_per_s_max"].as_f64() > Some(0.0), "{json}");
        assert_eq!(json["kernel_boundary_us"].is_null(), device == "cpu", "{json}");
        let (text, _) = run(cache, &[&plan[..], &["--measure"]].concat());
        assert!(text.contains("reading, measured just now"), "{text}");
        assert_ne!(read(&path)["read_bandwidth"], known);
    }
}

#[test]
fn facts_of_another_driver_program_or_form_are_measured_anew_with_a_warning() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path();
    let plan = ["plan", "--device", "sim"];
    run(cache, &plan);
    let path = file(cache);
    let whole = fs::read_to_string(&path).expect("a file");
    type Spoil<'a> = Box<dyn Fn() + 'a>;
    let cases: [(&str, Spoil<'_>, &str); 5] = [
        ("a driver", Box::new(|| change(&path, "driver", "driver 1".into())), "it is of the driver driver 1"),
        ("a program", Box::new(|| change(&path, "program", "0.0.1 ab".into())), "it is of the program 0.0.1 ab"),
        ("a device", Box::new(|| change(&path, "device", "another".into())), "it is of the device another"),
        ("a form", Box::new(|| change(&path, "schema", 99.into())), "its form is version 99"),
        ("a half", Box::new(|| fs::write(&path, &whole[..whole.len() / 2]).expect("a file")), "is passed over"),
    ];
    for (what, spoil, says) in cases {
        spoil();
        let (text, stderr) = run(cache, &plan);
        assert!(text.contains("measured just now"), "{what}: {text}");
        assert!(stderr.contains(says) && stderr.contains("passed over"), "{what}: {stderr}");
        let (text, stderr) = run(cache, &plan);
        assert!(text.contains("measured on ") && stderr.is_empty(), "{what}: {text}{stderr}");
    }
}

#[test]
fn a_benchmark_measures_beside_each_run_and_leaves_what_it_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path();
    let device = ["--device", "cpu", "--threads", "1"];
    run(cache, &[&["plan"], &device[..]].concat());
    let path = file(cache);
    let (before, peaks) =
        (serde_json::json!({"value": 1.0, "at": "2026-01-02T03:04:05Z"}), read(&path)["peaks"].clone());
    change(&path, "read_bandwidth", before.clone());
    let (json, _) = run(cache, &[&["bench", "-p", "0", "-n", "4", "-r", "1", "-o", "json"], &device[..]].concat());
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let beside = json["rows"][0]["read_bandwidth_gb_s"].as_f64().expect("a ceiling");
    let kept = read(&path);
    let value = kept["read_bandwidth"]["value"].as_f64().expect("a figure");
    assert!((value / 1e9 / beside - 1.0).abs() < 1e-9, "{kept}: {beside}");
    assert_eq!(kept["peaks"], peaks, "what was not measured stays");
}

#[test]
fn cost_models_of_a_gpu_reckon_with_what_it_reads() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path();
    run(cache, &["plan", "--device", "sim"]);
    let described = |flags: &[&str]| {
        let (text, _) = run(cache, &[&["plan", "--device", "sim"], flags].concat());
        text.lines().find(|line| line.starts_with("device")).expect("a line").to_owned()
    };
    let path = file(cache);
    let bandwidth = |value: f64| change(&path, "read_bandwidth", serde_json::json!({"value": value, "at": ""}));
    // Noise around what the models were fitted with is no other card.
    bandwidth(4.7e12);
    assert!(!described(&[]).contains("cost models"), "{}", described(&[]));
    bandwidth(2.2e12);
    assert!(described(&[]).contains("cost models for 2250 GB/s"), "{}", described(&[]));
    for flags in [&["--tuned", "off"][..], &["--batch-invariant"]] {
        assert!(!described(flags).contains("cost models"), "{flags:?}: {}", described(flags));
    }
    // It stays the same device: its facts are found again.
    assert!(run(cache, &["plan", "--device", "sim"]).0.contains("2200.0 GB/s reading, measured on "));
}
