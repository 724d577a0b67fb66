//! `hotmetal bench --record`, `bench history` and `hotmetal gate` as a user meets them: records that are written, read
//! again and compared, and a regression that is planted and caught.

use std::fs;
use std::path::{Path, PathBuf};

use process::{output, succeed, text};
use serde_json::{Value, json};

mod process;

/// The records of machine `m` below `folder`.
fn records(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(folder.join("m")).expect("a machine's folder").map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn a_result_is_recorded_and_its_history_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let record = format!("--record={}", folder.path().display());
    let bench = ["bench", "-p", "8", "-n", "4", "-r", "2", "--threads", "1", "-o", "json", "--machine", "m", &record];
    let measured = output(&bench);
    let stderr = text(&measured.stderr);
    assert!(measured.status.success() && stderr.contains("recorded in `"), "{stderr}");
    let printed: Value = serde_json::from_str(&text(&measured.stdout)).unwrap();
    let [path] = &records(folder.path())[..] else { panic!("one record") };
    let kept: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(kept, printed, "a record is what is printed");
    assert_eq!(kept["schema"], 1);

    // The same a day later, 20 % slower.
    let mut later = kept;
    let date = later["run"]["date"].as_str().unwrap().replacen("20", "21", 1);
    for row in later["rows"].as_array_mut().unwrap() {
        row["samples"] = json!([80.0, 80.0]);
    }
    later["run"]["date"] = json!(date);
    later["run"]["commit"] = json!("abc");
    fs::write(folder.path().join(format!("m/{}-abc.json", &date[..10])), later.to_string()).unwrap();
    let root = folder.path().to_str().unwrap();
    let history: Value = serde_json::from_str(&succeed(&["bench", "history", root, "-o", "json"])).unwrap();
    let names: Vec<_> = history.as_array().unwrap().iter().map(|line| line["name"].as_str().unwrap()).collect();
    let (decode, prefill) = ("built-in model bf16 decode of 4, 1 thread", "built-in model bf16 prefill 8, 1 thread");
    assert_eq!(names, [decode, decode, prefill, prefill]);
    let last = &history[1];
    assert_eq!((&last["commit"], &last["value"]), (&json!("abc"), &json!(80.0)));
    assert!(last["verdict"].is_string() && history[0]["verdict"].is_null(), "{history}");
    let table = succeed(&["bench", "history", root, "--only", "prefill", "--machine", "m"]);
    assert!(table.contains("## m\n") && table.contains(prefill) && !table.contains(decode), "{table}");
    let stderr = text(&output(&["bench", "history", root, "--only", "nosuch"]).stderr);
    assert!(stderr.contains("2 records of m"), "{stderr}");

    // What cannot be kept is printed all the same.
    let blocked = folder.path().join("file");
    fs::write(&blocked, "").unwrap();
    let record = format!("--record={}", blocked.display());
    let failed = output(&["bench", "-p", "0", "-n", "1", "-r", "1", "--threads", "1", "-o", "json", &record]);
    let stderr = text(&failed.stderr);
    assert!(!failed.status.success() && stderr.contains("cannot make the folder"), "{stderr}");
    assert!(serde_json::from_str::<Value>(&text(&failed.stdout)).unwrap()["rows"].is_array());
}

#[test]
fn a_planted_regression_shuts_the_gate() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let gate = |wave: &str| {
        let flags = ["gate", "--only", "p3,p5", "-r", "2", "--records", root, "--machine", "m", "-o", "json"];
        output(&[&flags[..], &["--wave", wave]].concat())
    };
    let first = gate("first");
    assert!(first.status.success(), "{}", text(&first.stderr));
    let verdict: Value = serde_json::from_str(&text(&first.stdout)).unwrap();
    let checks = &verdict["gate"]["checks"];
    assert_eq!((&checks[0]["id"], &checks[0]["passed"]), (&json!("P3"), &json!(true)), "{checks}");
    assert!(checks[0]["found"].as_str().unwrap().contains("512 tokens"), "{checks}");
    assert!(checks[1]["found"].as_str().unwrap().contains("nothing to compare with"), "{checks}");
    let names: Vec<_> = verdict["rows"].as_array().unwrap().iter().map(|row| row["test"].clone()).collect();
    assert_eq!(names, ["tg16", "tg128", "tg512"]);

    // A record as if the program had been twenty times as fast, by its share of the memory too.
    let [path] = &records(folder.path())[..] else { panic!("one record") };
    let mut record: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    for row in record["rows"].as_array_mut().unwrap() {
        let faster = |value: &Value| json!(20.0 * value.as_f64().unwrap());
        row["samples"] = row["samples"].as_array().unwrap().iter().map(faster).collect();
        row["roofline_share"] = faster(&row["roofline_share"]);
    }
    fs::write(path, record.to_string()).unwrap();
    let second = gate("second");
    let stderr = text(&second.stderr);
    assert!(!second.status.success() && stderr.contains("the gate is shut: P5 failed"), "{stderr}");
    let verdict: Value = serde_json::from_str(&text(&second.stdout)).unwrap();
    assert_eq!(verdict["gate"]["passed"], false);
    assert!(verdict["gate"]["checks"][1]["found"].as_str().unwrap().contains("slower than on"), "{verdict}");
    let stderr = text(&output(&["gate", "--capture", "x.gputrace"]).stderr);
    assert!(stderr.contains("--capture traces one step"), "{stderr}");
    // Kept all the same: a gate that was shut is part of the history.
    assert_eq!(records(folder.path()).len(), 2);
}
