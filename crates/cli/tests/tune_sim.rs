//! `hotmetal tune --device sim` as a user meets it on a GPU: ways that are found, a wrong one that is named and left out,
//! the table that is kept, and `run` and `bench` that take it, or pass it over where it is damaged or of something else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// The shape of these tests: a step of it takes the simulator some milliseconds.
const MODEL: [&str; 6] = ["--device", "sim", "--shape", "tiny", "--format", "q8_0"];

/// The kernel that is tuned: gate and up of one row, which have seventeen ways.
const KEY: &str = "norm_linear_glu_stream_q8_0 Q8_0 rows=1 k=64 n=128 glu";

/// The ways of it that are made wrong. Cost models take another one.
const WRONG: &str = "groups=2 ";

/// Runs the program with its cache in `cache` and with `variables`: stdout and stderr.
fn run(cache: &Path, args: &[&str], variables: &[(&str, &str)]) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmetal"));
    command.args(args).stdin(Stdio::null()).env("HF_HUB_OFFLINE", "1").env("XDG_CACHE_HOME", cache);
    let output = command.envs(variables.iter().copied()).output().expect("the binary starts");
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("UTF-8"));
    assert!(output.status.success(), "{args:?}: {stderr}");
    (stdout, stderr)
}

/// What `tune` prints of one kernel, whose table it keeps. Choosing needs a gain beyond noise, which a busy machine may
/// hide once; every seed tries the ways in another order.
fn tuned(cache: &Path, kept: &Path) -> String {
    let fault = format!("{KEY} {WRONG}");
    for seed in ["1", "2", "3", "4", "5"] {
        let flags = ["-m", "1", "-d", "8", "-r", "2", "--only", KEY, "--budget", "60", "--seed", seed];
        let args = [&["tune"], &MODEL[..], &flags].concat();
        let (stdout, stderr) = run(cache, &args, &[("HOTMETAL_PLANT_WRONG_WAY", &fault)]);
        if kept.exists() {
            assert!(stderr.contains(&format!("kept in {}", kept.display())), "{stderr}");
            return stdout;
        }
        assert!(stderr.contains("nothing is faster than what the cost models choose"), "{stderr}");
    }
    panic!("five times nothing was faster than the usual way, which the simulator takes a quarter longer for");
}

/// What `run` calls the device, and what it said of tables.
fn device_of_run(cache: &Path, flags: &[&str]) -> (String, String) {
    let args = ["run", "--device", "sim", "--raw", "--temp", "0", "-n", "1", "Once", "--output-format", "json"];
    let (stdout, stderr) = run(cache, &[&args[..], flags].concat(), &[]);
    let json: Value = serde_json::from_str(&stdout).expect("JSON");
    let warnings: String =
        stderr.lines().filter(|line| line.contains("table") || line.contains("passed over")).collect();
    (json["device"].as_str().expect("a device").to_owned(), warnings)
}

#[test]
fn a_gpu_is_tuned_and_its_table_is_taken_or_passed_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path();
    let kept: PathBuf = cache.join("hotmetal/tuned/gpu-simulator.json");
    let stdout = tuned(cache, &kept);
    assert!(stdout.contains("GB/s reading") && stdout.contains(" ways were tried in "), "{stdout}");

    // Every wrong way is named, with how far off it is; no other way is.
    let wrong: Vec<_> = stdout.lines().filter(|line| line.starts_with("wrong and left out: ")).collect();
    let named = format!("wrong and left out: {KEY} with {WRONG}");
    assert!(wrong.len() > 1, "{stdout}");
    for line in wrong {
        assert!(line.starts_with(&named) && line.ends_with(" times what it may be"), "{line}");
    }

    // The table has the way that won, which is right and not the usual one, and says what it is of.
    let mut table: Value = serde_json::from_str(&fs::read_to_string(&kept).expect("a table")).expect("JSON");
    let [row] = &table["rows"].as_array().expect("rows")[..] else { panic!("one row: {table}") };
    assert_eq!((&row["key"], &row["measured_with"]), (&KEY.into(), &"tiny q8_0, 1 rows at 8".into()));
    assert!(row["choice"] != row["instead_of"] && row["step_gain_percent"].as_f64() > Some(0.0), "{row}");
    assert!(!row["choice"].as_str().expect("a way").starts_with(WRONG), "{row}");
    let choice = row["choice"].as_str().expect("a way").to_owned();
    assert!(stdout.contains(&format!("| {KEY} | {choice} | ")), "{choice}: {stdout}");
    assert_eq!((&table["schema"], table["kernels"].as_str().map(str::len)), (&1.into(), Some(16)));

    // `run` and `bench` take it, and say so; not where they are told not to.
    let (device, warnings) = device_of_run(cache, &[]);
    assert!(device.ends_with(", tuned for 1 shapes") && warnings.is_empty(), "{device} {warnings}");
    let (device, _) = device_of_run(cache, &["--tuned", "off"]);
    assert!(!device.contains("tuned"), "{device}");
    let bench = [&["bench", "-p", "0", "-n", "2", "-r", "1", "-o", "json"], &MODEL[..]].concat();
    let (stdout, _) = run(cache, &bench, &[]);
    let json: Value = serde_json::from_str(&stdout).expect("JSON");
    let device = json["device"]["description"].as_str().expect("a description");
    assert!(device.ends_with(", tuned for 1 shapes"), "{device}");

    // One that is of other kernels, of a later form, or damaged is passed over with the reason.
    let of = |table: &mut Value, field: &str, value: Value| {
        let before = std::mem::replace(&mut table[field], value);
        let text = table.to_string();
        table[field] = before;
        text
    };
    let whole = table.to_string();
    let spoilt = [
        (of(&mut table, "kernels", "0123456789abcdef".into()), "it is of the kernels 0123456789abcdef, and this is "),
        (of(&mut table, "schema", 2.into()), "its form is version 2, and this program knows 1"),
        (whole[..whole.len() / 2].to_owned(), "it is no table of `hotmetal tune`"),
    ];
    for (text, why) in spoilt {
        fs::write(&kept, text).expect("room for a table");
        let (device, warnings) = device_of_run(cache, &[]);
        assert!(warnings.contains("passed over") && warnings.contains(why), "{why}: {warnings}");
        assert!(!device.contains("tuned"), "{device}");
    }
}
