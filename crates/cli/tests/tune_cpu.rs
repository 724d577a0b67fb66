//! `hotmetal tune --device cpu` as a user meets it: what it tries, the table that it leaves, and who takes it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// The model of these tests, on one thread.
const MODEL: [&str; 8] = ["--device", "cpu", "--threads", "1", "--shape", "tiny", "--format", "q8_0"];

/// Runs the program with its cache in `cache`: whether it succeeded, stdout and stderr.
fn run(cache: &Path, command: &[&str], flags: &[&str]) -> (bool, String, String) {
    let args = [command, &MODEL[..], flags].concat();
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmetal"));
    let command = command.args(args).stdin(Stdio::null()).env("HF_HUB_OFFLINE", "1").env("XDG_CACHE_HOME", cache);
    let output = command.output().expect("the binary starts");
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("UTF-8"));
    (output.status.success(), stdout, stderr)
}

/// The description of the device, the kernels of a step, and what was said beside them.
fn benched(cache: &Path, flags: &[&str]) -> (String, String, String) {
    let (ok, stdout, stderr) = run(cache, &["bench", "-p", "0", "-n", "2", "-r", "1", "-o", "json"], flags);
    assert!(ok, "{stderr}");
    let json: Value = serde_json::from_str(&stdout).expect("JSON");
    let device = json["device"]["description"].as_str().expect("a description").to_owned();
    (device, json["rows"][0]["variants"]["kernels"].to_string(), stderr)
}

#[test]
fn processors_are_tuned_and_a_table_is_taken_named_and_passed_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path();
    let export = cache.join("table.json");
    let file = export.to_str().expect("UTF-8");
    let flags = ["-m", "1,4,16", "-d", "8", "-r", "3", "--budget", "60", "--dry-run", "--export", file];
    let (ok, stdout, stderr) = run(cache, &["tune"], &flags);
    assert!(ok && stderr.contains("written to"), "{stderr}");
    assert!(stdout.contains("memory: ") && stdout.contains("GB/s reading"), "{stdout}");
    assert!(!stdout.contains("wrong and left out") && !stdout.contains("nothing here can check it"), "{stdout}");
    let tried = stdout.lines().find_map(|line| line.split(" ways were tried").next()?.parse::<usize>().ok());
    assert!(tried > Some(20), "{stdout}");
    assert!(!cache.join("hotmetal/tuned").exists(), "--dry-run keeps nothing");

    // A choice whose effect shows, whatever won above.
    let mut table: Value = serde_json::from_str(&fs::read_to_string(&export).expect("a table")).expect("JSON");
    table["rows"] = json!([{
        "key": "layout q8_0", "choice": "rows", "instead_of": "panels", "measured_with": "a test",
        "step_gain_percent": 1.0,
    }]);
    fs::write(&export, table.to_string()).expect("a table");
    let (device, kernels, _) = benched(cache, &[]);
    assert!(!device.contains("tuned") && kernels.contains("packed panels"), "{device} {kernels}");
    let (device, kernels, _) = benched(cache, &["--tuned", file]);
    assert!(device.ends_with(", tuned for 1 shapes") && kernels.contains("rows of the file"), "{device} {kernels}");

    // The same from the cache, without a flag; and not where it is of something else.
    let name = table["device"].as_str().expect("a device").to_ascii_lowercase();
    let words: Vec<_> = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let kept = cache.join("hotmetal/tuned").join(format!("{}.json", words.join("-")));
    fs::create_dir_all(kept.parent().expect("a folder")).expect("a folder");
    fs::copy(&export, &kept).expect("a copy");
    let (device, kernels, stderr) = benched(cache, &[]);
    assert!(device.contains("tuned for 1") && kernels.contains("rows of the file") && stderr.is_empty(), "{stderr}");
    let (device, kernels, _) = benched(cache, &["--tuned", "off"]);
    assert!(!device.contains("tuned") && kernels.contains("packed panels"), "{device} {kernels}");
    table["kernels"] = "cpu 0.0.1".into();
    for (text, says) in [(table.to_string(), "it is of the kernels cpu 0.0.1"), ("{".to_owned(), "is passed over")] {
        fs::write(&kept, text).expect("a table");
        let (device, kernels, stderr) = benched(cache, &[]);
        assert!(stderr.contains(says), "{stderr}");
        assert!(!device.contains("tuned") && kernels.contains("packed panels"), "{device} {kernels}");
    }
    let flags = ["bench", "-p", "0", "-n", "2", "-r", "1"];
    table["device"] = "another".into();
    fs::write(&export, table.to_string()).expect("a table");
    let (ok, _, stderr) = run(cache, &flags, &["--tuned", file]);
    assert!(!ok && stderr.contains("it is of the device another"), "{stderr}");
}
