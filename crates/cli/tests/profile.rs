//! `hotmetal profile` as a user meets it: real processes on the built-in model, whose parts must add up to the wall time.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A small profile of both phases, on two threads.
const SMALL: [&str; 9] = ["profile", "-p", "40", "-n", "12", "--threads", "2", "-r", "2"];

fn output(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmetal"));
    command.args(args).stdin(Stdio::null()).env("HF_HUB_OFFLINE", "1").output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

/// Runs, expects success, and returns stdout and stderr.
fn succeed(args: &[&str]) -> (String, String) {
    let output = output(args);
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    (text(&output.stdout), stderr)
}

/// Runs, expects a failure with nothing on stdout, and returns stderr.
fn fail(args: &[&str]) -> String {
    let output = output(args);
    let stderr = text(&output.stderr);
    assert!(!output.status.success(), "{args:?}");
    assert_eq!(text(&output.stdout), "", "{args:?} prints nothing");
    assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    stderr
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number: {value}"))
}

fn rows<'a>(phase: &'a Value, key: &str) -> &'a Vec<Value> {
    phase[key].as_array().unwrap_or_else(|| panic!("{key}: {phase}"))
}

/// The parts, added up here and from the printed figures, are the wall time within 3 %; and so is what each thread did.
fn check_sums(phase: &Value) {
    let wall_ms = number(&phase["wall_ms"]);
    let total = |key: &str| rows(phase, key).iter().map(|row| number(&row["total_ms"])).sum::<f64>();
    let parts_ms = total("ops") + total("rest");
    assert!((parts_ms / wall_ms - 1.0).abs() < 0.03, "{parts_ms} of {wall_ms} ms: {phase}");
    assert!((number(&phase["parts_share"]) - 1.0).abs() < 0.03);
    for row in rows(phase, "ops").iter().chain(rows(phase, "rest")) {
        assert!(number(&row["total_ms"]) >= 0.0, "no part is negative: {row}");
        let share = number(&row["total_ms"]) / wall_ms;
        assert!((number(&row["wall_share"]) - share).abs() < 1e-6, "{row}");
    }
    // What threads did in ops is what ops took.
    let threads = rows(phase, "threads");
    let busy = |thread: &Value| number(&thread["work_ms"]) + number(&thread["wait_ms"]);
    let mean = threads.iter().map(busy).sum::<f64>() / threads.len() as f64;
    assert!((mean - total("ops")).abs() < 1e-3 * wall_ms, "{mean} and {}", total("ops"));
    assert!(number(&phase["roofline_share"]) > 0.0 && number(&phase["bandwidth_gb_s"]) > 0.0);
    for thread in threads {
        assert!(number(&thread["idle_ms"]) >= 0.0);
        let sum = busy(thread) + number(&thread["idle_ms"]);
        assert!((sum - wall_ms).abs() < 1e-6 * wall_ms, "{thread}");
    }
}

/// Ops by name, with how often each was recorded and its bytes per op.
fn check_ops(phase: &Value, runs: u64, tokens: u64) {
    let count = |name: &str| -> u64 {
        let of_name = rows(phase, "ops").iter().filter(|row| row["op"] == name);
        of_name.map(|row| row["count"].as_u64().expect("a count")).sum()
    };
    // The built-in model has seven layers, and its last projection is another op of the same name.
    assert_eq!(count("attention"), 7 * runs);
    assert_eq!(count("norm_glu"), 7 * runs);
    assert_eq!(count("norm_linear"), 8 * runs);
    assert_eq!(count("embed"), runs);
    for row in rows(phase, "ops") {
        assert!(number(&row["mean_us"]) <= number(&row["total_ms"]) * 1e3 + 1e-9, "{row}");
        assert!(number(&row["wait_ms"]) <= number(&row["total_ms"]), "{row}");
        assert!(row["variant"].as_str().is_some_and(|variant| !variant.is_empty()), "{row}");
        let percentiles = ["p50_us", "p95_us", "p99_us"].map(|key| number(&row[key]));
        assert!(percentiles.is_sorted() && percentiles[2] * 1e-3 <= number(&row["total_ms"]) + 1e-9, "{row}");
        // What moves bytes is on one side of the roofline, as long as it has a share of it.
        assert_eq!(row["bound_by"].is_null(), row["roofline_share"].is_null(), "{row}");
        assert!(row["bound_by"].is_null() || row["bound_by"] == "memory" || row["bound_by"] == "arithmetic", "{row}");
    }
    let glu = rows(phase, "ops").iter().find(|row| row["op"] == "norm_glu").expect("there is one");
    assert_eq!(
        (glu["shape"].as_str(), glu["format"].as_str()),
        (Some(&*format!("{tokens} × 256 → 512")), Some("bf16"))
    );
    // Gate, up and norm, read once a call, whatever the clock says. The last layer of a prompt has another shape.
    let bytes = number(&glu["bandwidth_gb_s"]) * number(&glu["total_ms"]) * 1e6;
    let layers = if tokens == 1 { 7 } else { 6 };
    assert_eq!(glu["count"], layers * runs);
    let expected = (layers * runs * 2 * (2 * 256 * 512 + 256)) as f64;
    assert!((bytes / expected - 1.0).abs() < 1e-6, "{bytes}, not {expected}");
    assert!(number(&glu["roofline_share"]) > 0.0);
    let angles = rows(phase, "ops").iter().find(|row| row["op"] == "rope_angles").expect("there is one");
    assert!(angles["bandwidth_gb_s"].is_null() && angles["roofline_share"].is_null());
}

/// A trace is one JSON object, whose spans nest on their tracks and name what they are.
fn check_trace(trace: &Value) {
    let events = trace["traceEvents"].as_array().expect("events");
    let with = |key: &str, value: &str| events.iter().filter(|event| event[key] == value).collect::<Vec<_>>();
    let tracks: Vec<_> = with("name", "thread_name").iter().map(|event| event["args"]["name"].clone()).collect();
    assert_eq!(tracks, ["host", "cpu-0", "cpu-1", "gaps"]);
    // Two runs of each phase: a step for the prompt, twelve for the tokens; both threads run every op.
    assert_eq!(with("cat", "step").len(), 2 * (1 + 12));
    let attention: Vec<_> = with("name", "attention").into_iter().filter(|event| event["args"]["layer"] == 6).collect();
    // A thread leaves an op in two pieces where there is a barrier inside.
    assert!(attention.len() >= 2 * 2 * (1 + 12), "{}", attention.len());
    let op = attention[0];
    assert!(op["args"]["shape"] == "40 × 384 → 384" && op["args"]["variant"].is_string(), "{op}");
    assert!(op["args"]["bytes"].is_u64() && op["args"]["flops"].is_u64() && op["args"]["format"].is_string(), "{op}");
    assert!(!with("name", "wait").is_empty());
    for track in 1..=3 {
        let mut last_end = 0.0;
        let on_track = |event: &&Value| event["tid"] == track && event["ph"] == "X";
        for event in events.iter().filter(on_track) {
            // Microseconds with three digits: half a nanosecond of rounding.
            assert!(number(&event["ts"]) >= last_end - 1e-3, "events of a thread follow each other: {event}");
            last_end = number(&event["ts"]) + number(&event["dur"]);
        }
    }
}

/// The gaps of the trace are those that the report counts, and no lane works in them.
fn check_gaps(trace: &Value, phases: [&Value; 2]) {
    let events = trace["traceEvents"].as_array().expect("events");
    let spans = |category: &str| -> Vec<(f64, f64)> {
        let of_category = events.iter().filter(|event| event["cat"] == category);
        let times = |event: &Value| (number(&event["ts"]), number(&event["ts"]) + number(&event["dur"]));
        of_category.map(times).collect()
    };
    let (gaps, ops) = (spans("gap"), spans("op"));
    // Ahead of the first op of a step at least, while threads wake up.
    assert!(gaps.len() >= 2 * (1 + 12), "{}", gaps.len());
    for &(begin, end) in &gaps {
        let is_in = |&&(op_begin, op_end): &&(f64, f64)| op_begin + 1e-3 < end && begin + 1e-3 < op_end;
        assert_eq!(ops.iter().find(is_in), None, "an op works in the gap from {begin} to {end}");
    }
    let reported = |key: &str| phases.map(|phase| number(&phase["gaps"][key])).iter().sum::<f64>();
    assert_eq!(gaps.len() as f64, reported("count"));
    let total_ms = gaps.iter().map(|(begin, end)| (end - begin) / 1e3).sum::<f64>();
    assert!((total_ms - reported("total_ms")).abs() < 1e-3 * total_ms, "{total_ms}");
    for phase in phases {
        assert!(number(&phase["gaps"]["total_ms"]) < number(&phase["wall_ms"]), "{phase}");
    }
}

#[test]
fn parts_add_up_to_the_wall_time_and_the_trace_has_them_all() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let trace = folder.path().join("trace.json");
    let trace_path = trace.to_str().expect("a UTF-8 path");
    let (printed, stderr) = succeed(&[&SMALL[..], &["-o", "json", "--trace", trace_path]].concat());
    assert_eq!(stderr, "");
    let result: Value = serde_json::from_str(&printed).expect("one JSON object");
    assert_eq!(result["profiled"], true);
    assert_eq!((&result["threads"], &result["decodes_text"]), (&Value::from(2), &Value::from(true)));
    let [prefill, decode] = &rows(&result, "phases")[..] else { panic!("two phases: {result}") };
    assert_eq!((&prefill["test"], &decode["test"]), (&Value::from("pp40"), &Value::from("tg12")));
    for (phase, steps, tokens) in [(prefill, 1, 40), (decode, 12, 1)] {
        check_sums(phase);
        check_ops(phase, 2 * steps, tokens);
        assert_eq!((phase["steps"].as_u64(), phase["tokens"].as_u64()), (Some(2 * steps), Some(2 * steps * tokens)));
        assert!(number(&phase["tokens_per_s"]) > 0.0 && number(&phase["unrecorded_tokens_per_s"]) > 0.0);
        assert!(number(&phase["ceiling"]["read_bandwidth_gb_s"]) > 0.0);
        let recording = &phase["recording"];
        // A reading at the end of each of the 48 instructions and more, and one at each barrier.
        assert!((48.0..300.0).contains(&number(&recording["clock_readings"])), "{recording}");
        assert!((0.0..1.0).contains(&number(&recording["wall_share"])), "{recording}");
    }
    let written = std::fs::read_to_string(&trace).expect("the trace was written");
    let written = serde_json::from_str(&written).expect("one JSON object");
    check_trace(&written);
    check_gaps(&written, [prefill, decode]);

    stored_profiles_are_printed_and_compared(folder.path(), &printed);
}

/// `printed` is what `profile -o json` said.
fn stored_profiles_are_printed_and_compared(folder: &Path, printed: &str) {
    let keep = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("the folder can be written");
        path.to_str().expect("a UTF-8 path").to_owned()
    };
    let before = keep("before.json", printed);
    let (table, _) = succeed(&["bench", "report", &before]);
    for expected in ["### pp40 @ d0: ", "### tg12 @ d1: ", "| norm_glu | 1 × 256 → 512 | bf16 |", "*sample*", "**sum**"]
    {
        assert!(table.contains(expected), "{expected} in {table}");
    }
    let mut value: Value = serde_json::from_str(printed).expect("one JSON object");
    let glu = rows(&value, "phases")[1]["ops"].as_array().expect("ops").iter().position(|op| op["op"] == "norm_glu");
    let glu = &mut value["phases"][1]["ops"][glu.expect("there is one")];
    glu["total_ms"] = (2.0 * number(&glu["total_ms"])).into();
    let (table, _) = succeed(&["bench", "compare", &before, &keep("after.json", &value.to_string())]);
    let mut glu = table.lines().filter(|line| line.starts_with("| norm_glu | 1 × 256 → 512 | bf16 |"));
    assert!(glu.any(|line| line.contains(" | +100.0 % | ")), "{table}");
    assert!(table.contains("### pp40 @ d0\n") && !table.contains("only"), "{table}");

    // Where results of `bench` are read, a profile is named.
    let bench = keep("bench.json", &succeed(&["bench", "-p", "0", "-n", "1", "-r", "1", "-o", "json"]).0);
    for args in [["compare", &before, &bench], ["compare", &bench, &before], ["report", &bench, &before]] {
        let error = fail(&[&["bench"], &args[..]].concat());
        assert!(error.contains("before.json` is a profile (`hotmetal profile -o json`)"), "{args:?}: {error}");
    }
    let page = folder.join("page.html").display().to_string();
    let error = fail(&["bench", "report", &before, "-o", &page]);
    assert!(error.contains("before.json` is a profile"), "{error}");
    let error = fail(&["bench", "table", "--peers", &before]);
    assert!(error.contains("this is a profile") && error.contains("before.json"), "{error}");
}

#[test]
fn markdown_has_a_table_for_each_phase_and_says_what_it_cost() {
    let (printed, _) = succeed(&[&SMALL[..], &["--isa", "scalar"]].concat());
    assert!(printed.contains("### pp40 @ d0: ") && printed.contains("### tg12 @ d1: "), "{printed}");
    for expected in ["| norm_glu | 1 × 256 → 512 | bf16 |", "*sample*", "*decode text*", "**sum**", "clock readings"]
    {
        assert!(printed.contains(expected), "{expected} in {printed}");
    }
    for thread in ["- cpu-0: ", "- cpu-1: "] {
        assert_eq!(printed.matches(thread).count(), 2, "{printed}");
    }
}

#[test]
fn a_depth_is_in_the_cache_before_the_clock_starts() {
    let (printed, stderr) = succeed(&["profile", "-p", "8", "-n", "2", "--depth", "64", "-r", "1", "-o", "json"]);
    assert_eq!(stderr, "");
    let result: Value = serde_json::from_str(&printed).expect("one JSON object");
    for phase in rows(&result, "phases") {
        assert_eq!(phase["depth"], 64, "{phase}");
    }
    assert_eq!(result["phases"][0]["tokens"], 8);
    // Parts of blocks are not shared: it is said, and the figure is the one that was used.
    let (printed, stderr) = succeed(&["profile", "-p", "8", "-n", "0", "--depth", "40", "-r", "1", "-o", "json"]);
    assert!(stderr.contains("32 of the 40 tokens of --depth came from the cache"), "{stderr}");
    let result: Value = serde_json::from_str(&printed).expect("one JSON object");
    assert_eq!((&result["phases"][0]["depth"], &result["phases"][0]["tokens"]), (&32.into(), &16.into()));
}

#[test]
fn variants_are_listed_without_running_anything() {
    let args = ["profile", "--variants", "-p", "40", "-n", "1", "-t", "2", "--isa", "scalar"];
    let (printed, _) = succeed(&args);
    assert!(printed.contains("### pp40: 40 tokens a step") && printed.contains("### tg1: 1 token a step"), "{printed}");
    let (printed, _) = succeed(&[&args[..], &["-o", "json"]].concat());
    let result: Value = serde_json::from_str(&printed).expect("one JSON object");
    for program in rows(&result, "programs") {
        let glu = rows(program, "ops").iter().find(|row| row["op"] == "norm_glu").expect("there is one");
        // All layers, but for the last one of a prompt, which computes one row.
        assert_eq!(glu["count"], if program["tokens"] == 1 { 7 } else { 6 });
        assert!(glu["variant"].as_str().is_some_and(|variant| variant.starts_with("scalar")), "{glu}");
    }
}

#[test]
fn mistakes_are_named() {
    for (args, expected) in [
        (&["profile", "-p", "0", "-n", "0"][..], "nothing to profile"),
        (&["profile", "-r", "0"], "-r 0 records nothing"),
        (&["profile", "-n", "5000", "-r", "2"], "expected 8192 tokens in all at most"),
        (&["profile", "-p", "4000"], "but the model was made for 2048"),
        (&["profile", "--shape", "gpt-5"], "there is no shape `gpt-5`"),
        (&["profile", "--device", "reference", "-p", "2", "-n", "0"], "this device does not record its steps"),
        (&["profile", "--device", "reference", "--variants"], "does not record which kernels"),
        (&["profile", "-p", "2", "-n", "0", "-r", "1", "--trace", "/nowhere/trace.json"], "cannot write the trace"),
    ] {
        let error = fail(args);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn three_commands_show_which_kernel_computes_what() {
    for command in ["plan", "bench", "verify"] {
        let (found, _) = succeed(&[command, "--explain-dispatch", "--device", "cpu"]);
        assert!(found.contains("| op | format | features | rows | device | variant |"), "{found}");
        for op in ["embed", "norm_linear", "attention", "norm_glu", "linear_residual"] {
            assert!(found.contains(&format!("\n| {op} | ")), "{command}: no {op} in {found}");
        }
    }
    let error = fail(&["plan", "--explain-dispatch", "--device", "reference"]);
    assert!(error.contains("does not record which kernels"), "{error}");
}
