//! `hotmetal bench` as a user meets it: real processes on the built-in model, each output read back, one clear message
//! for each mistake. What is measured here is never judged: the machine may be busy.

use std::process::Command;

use process::{output, succeed, text};
use serde_json::Value;

mod process;

/// A small measurement: every kind of test, at two depths, one of them beyond a block of the cache.
const SMALL: [&str; 15] =
    ["bench", "-p", "8", "-n", "4", "-pg", "8,4", "--depth", "0,40", "--batch", "1,2", "--threads", "1", "-r", "2"];

fn small(format: &str) -> String {
    succeed(&[&SMALL[..], &["-o", format]].concat())
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

/// Test, depth and batch of each row of [`SMALL`].
const ROWS: [(&str, u64, u64); 10] = [
    ("pp8", 0, 1),
    ("tg4", 0, 1),
    ("pg8+4", 0, 1),
    ("tg4", 0, 2),
    ("pg8+4", 0, 2),
    ("pp8", 40, 1),
    ("tg4", 40, 1),
    ("pg8+4", 40, 1),
    ("tg4", 40, 2),
    ("pg8+4", 40, 2),
];

fn check_row(row: &Value, (test, depth, batch): (&str, u64, u64)) {
    assert_eq!(row["test"], test);
    assert_eq!(row["depth"], depth, "{row}");
    assert_eq!(row["batch"], batch, "{row}");
    assert_eq!(row["threads"], 1);
    assert_eq!(row["device"], "cpu");
    assert!(row["model"].is_string() && row["format"] == "bf16", "{row}");
    let keys = |name: &str| row[name].as_object().expect(name).keys().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(keys("tokens_per_s"), ["median", "mean", "min", "max", "stdev"]);
    assert_eq!(keys("latency_ms"), ["p50", "p95", "p99", "max"]);
    assert_eq!(keys("variants"), ["isa", "kv_type", "kernels"]);
    let kernels = row["variants"]["kernels"].as_array().expect("a list");
    assert!(
        kernels.iter().any(|kernel| kernel.as_str().is_some_and(|kernel| kernel.starts_with("norm_glu: "))),
        "{row}"
    );
    let number = |pointer: &str| row.pointer(pointer).and_then(Value::as_f64).expect(pointer);
    assert!(number("/tokens_per_s/min") > 0.0);
    assert!(number("/tokens_per_s/min") <= number("/tokens_per_s/median"));
    assert!(number("/tokens_per_s/median") <= number("/tokens_per_s/max"));
    assert!(number("/latency_ms/p50") <= number("/latency_ms/p95"));
    assert!(number("/latency_ms/p99") <= number("/latency_ms/max"));
    assert!(number("/flops_per_s") > 0.0 && number("/load_ms") > 0.0 && number("/active_bytes") > 0.0);
    assert_eq!(row["samples"].as_array().expect("samples").len(), 2);
    // What makes no sense for a test is there, and null.
    assert_eq!(row["ttft_ms"].is_number(), !test.starts_with("tg"), "{row}");
    for key in ["bandwidth_gb_s", "read_bandwidth_gb_s"] {
        assert_eq!(row[key].is_number(), !test.starts_with("pp"), "{key}: {row}");
        assert!(row.get(key).is_some());
    }
    assert_eq!(row["peak_flops_per_s"].is_number(), test.starts_with("pp"), "{row}");
    assert_eq!(row["peak_class"].is_string(), test.starts_with("pp"), "{row}");
    assert!(number("/roofline_share") > 0.0);
}

/// Compares, and returns the comparison: other programs may have run here while results were measured, and that is said.
fn compare(args: &[&str]) -> String {
    let output = output(args);
    let warnings = text(&output.stderr);
    assert!(output.status.success(), "{args:?}: {warnings}");
    let is_of_load = |line: &str| line.starts_with("warning: other programs ran while the ");
    assert!(warnings.lines().all(is_of_load), "{args:?}: {warnings}");
    text(&output.stdout)
}

#[test]
fn json_has_every_key_and_every_test_and_compares_with_itself() {
    let printed = small("json");
    let result: Value = serde_json::from_str(&printed).expect("one JSON object");
    let rows = result["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), ROWS.len());
    rows.iter().zip(ROWS).for_each(|(row, expected)| check_row(row, expected));
    let run = &result["run"];
    assert_eq!(run["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(run["repetitions"], 2);
    assert_eq!(run["weights_seed"], Value::Null);
    assert!(run["command"].as_array().is_some_and(|command| command.len() == SMALL.len() + 3), "{run}");
    assert!(run["date"].as_str().is_some_and(|date| date.ends_with('Z')), "{run}");
    assert_eq!(result["profiled"], false);
    assert!(run["rustc"].as_str().is_some_and(|rustc| rustc.starts_with("rustc ")), "{run}");
    assert!(run["build"].is_string() && run["system"].is_string() && run["processors"].is_number(), "{run}");
    assert!(result["device"]["description"].is_string());
    // A deeper cache is more to read, and weights are read once for all sequences.
    let active = |row: usize| rows[row]["active_bytes"].as_u64().expect("a count");
    assert!(active(6) > active(1) && active(3) > active(1) && active(3) < 2 * active(1));

    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("the folder can be written");
        path.to_str().expect("a UTF-8 path").to_owned()
    };
    let a = file("a.json", &printed);
    let same = compare(&["bench", "compare", &a, &a]);
    assert_eq!(same.matches("no difference").count(), ROWS.len(), "{same}");
    // Twice as fast without any spread, and one row that only the first has.
    let mut faster = result.clone();
    faster["rows"].as_array_mut().expect("rows").pop();
    for (at, row) in faster["rows"].as_array_mut().expect("rows").iter_mut().enumerate() {
        let speed = &result["rows"][at]["tokens_per_s"];
        // Beyond any band: a band is at most two deviations of two samples.
        row["tokens_per_s"]["median"] = (speed["median"].as_f64().expect("a number") * 100.0).into();
    }
    let compared = compare(&["bench", "compare", &a, &file("b.json", &faster.to_string())]);
    assert_eq!(compared.matches("% faster").count(), ROWS.len() - 1, "{compared}");
    assert!(compared.contains("Rows only in the first result: 1\n"), "{compared}");
    let mut busy = faster.clone();
    busy["run"]["load_average"] = serde_json::json!([1e6, 1.0, 1.0]);
    let compared = compare(&["bench", "compare", &a, &file("busy.json", &busy.to_string())]);
    assert!(compared.contains("% faster, under load |"), "{compared}");

    let error = fail(&["bench", "compare", &a, &file("c.json", "{}")]);
    assert!(error.contains("is not a result of `hotmetal bench -o json`"), "{error}");
    let error = fail(&["bench", "compare", &a, "/nonexistent.json"]);
    assert!(error.contains("cannot read `/nonexistent.json`"), "{error}");
    let error = fail(&["bench", "compare", &a, &file("e.json", &printed.replacen("false", "true", 1))]);
    assert!(error.contains("e.json` was measured while a profiler looked on"), "{error}");
    let other = printed.replace("\"bf16\"", "\"q8_0\"");
    let error = fail(&["bench", "compare", &a, &file("f.json", &other)]);
    assert!(error.contains("bf16 on cpu, the second") && error.contains("q8_0 on cpu"), "{error}");
    faster["rows"] = Value::Array(vec![]);
    let error = fail(&["bench", "compare", &a, &file("d.json", &faster.to_string())]);
    assert!(error.contains("no row in common"), "{error}");
}

#[test]
fn jsonl_is_a_whole_result_on_each_line() {
    let printed = small("jsonl");
    let rows: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect();
    assert_eq!(rows.len(), ROWS.len());
    for (row, expected) in rows.iter().zip(ROWS) {
        check_row(row, expected);
        assert!(row["run"]["date"].is_string() && row["machine"]["description"].is_string());
    }
}

#[test]
fn markdown_begins_with_the_columns_of_llama_bench() {
    let printed = small("md");
    let mut lines = printed.lines();
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let header = cells(lines.next().expect("a header"));
    assert_eq!(header[1..8], ["model", "size", "params", "backend", "threads", "test", "t/s"]);
    assert!(lines.next().is_some_and(|line| cells(line).len() == header.len()));
    for (line, (test, depth, batch)) in lines.by_ref().zip(ROWS) {
        let cells = cells(line);
        assert_eq!(cells.len(), header.len(), "{line}");
        let depth = if depth > 0 { format!(" @ d{depth}") } else { String::new() };
        let batch = if batch > 1 { format!(" x{batch}") } else { String::new() };
        assert_eq!(cells[6], format!("{test}{depth}{batch}"));
        let (mean, stdev) = cells[7].split_once(" ± ").expect("a spread");
        assert!(mean.parse::<f64>().is_ok() && stdev.parse::<f64>().is_ok(), "{line}");
        let of = |name| cells[header.iter().position(|head| head == name).expect("a column")].parse::<f64>().unwrap();
        assert!(0.0 < of("min") && of("min") <= of("median") && of("median") <= of("max"), "{line}");
    }
    assert!(lines.last().is_some_and(|line| line.contains("2 repetitions")), "{printed}");
}

/// `bench` prints eight aligned columns on a terminal, and all columns with `-o md`.
#[cfg(target_os = "linux")]
#[test]
fn a_terminal_is_given_eight_columns() {
    let on_a_terminal = |more: &str| {
        let program = env!("CARGO_BIN_EXE_hotmetal");
        let line = format!("{program} bench --device cpu -p 4 -n 4 -r 2 -t 1 {more}");
        let output = Command::new("script").args(["-qec", &line, "/dev/null"]).output().expect("util-linux has it");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).replace("\r\n", "\n")
    };
    let printed = on_a_terminal("");
    // Behind the bar, which is wiped away.
    let lines: Vec<&str> = printed.rsplit("\u{1b}[2K").next().expect("text").lines().take(3).collect();
    assert!(lines[0].starts_with("model ") && lines[0].ends_with("of ceiling"), "{printed}");
    let cells = |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).count();
    assert_eq!(lines.iter().map(|line| cells(line)).collect::<Vec<_>>(), [8, 8, 8], "{printed}");
    let end = |line: &str| line.chars().count();
    assert!(end(lines[0]) == end(lines[1]) && end(lines[1]) == end(lines[2]), "{printed}");
    assert!(printed.contains("-v shows all columns"), "{printed}");
    assert!(on_a_terminal("-o md").contains("| model | size | params |"));
}

#[test]
fn csv_has_a_cell_for_each_column() {
    let printed = small("csv");
    let lines: Vec<Vec<_>> = printed.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 1 + ROWS.len());
    assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{printed}");
    assert_eq!(lines[0][..2], ["test", "model"]);
    assert!(lines[1..].iter().zip(ROWS).all(|(line, (test, ..))| line[0] == test), "{printed}");
}

#[test]
fn random_weights_have_the_shapes_of_a_model() {
    // One thread and one token: 0.5 B parameters in an unoptimised build.
    let args = ["bench", "--shape", "qwen2.5-0.5b", "--format", "Q8_0", "-p", "0", "-n", "1", "-r", "1", "-t", "1"];
    let printed = succeed(&[&args[..], &["-o", "json"]].concat());
    let result: Value = serde_json::from_str(&printed).expect("one JSON object");
    let row = &result["rows"][0];
    assert_eq!((&row["model"], &row["format"]), (&"qwen2.5-0.5b".into(), &"q8_0".into()));
    assert_eq!(row["num_parameters"], 494_032_768);
    // Matrices at 34 bytes for 32 parameters, and norms and biases in F32: the head is the table, so all are read.
    let vectors = 24 * (2 * 896 + 896 + 2 * 128) + 896;
    let matrices = 494_032_768 - vectors;
    assert_eq!(row["weight_bytes"], matrices / 32 * 34 + vectors * 4);
    // The only token is written to the cache, and read from it.
    let kv_bytes_of_a_token = 24 * 2 * 128 * 2;
    assert_eq!(row["active_bytes"], matrices / 32 * 34 + vectors * 4 + 2 * kv_bytes_of_a_token);
    assert!(result["run"]["weights_seed"].is_number());
}

#[test]
fn mistakes_are_named_with_what_there_is() {
    let cases: [(&[&str], &str); 14] = [
        (
            &["bench", "--shape", "gpt-5"],
            "there is no shape `gpt-5`; this build has: qwen2.5-0.5b, qwen3-0.6b, llama-3.2-1b, llama-3.1-8b, \
             devstral-small",
        ),
        (
            &["bench", "--shape", "qwen3-0.6b", "--format", "q9"],
            "there is no weight format `q9`; this build has: f32, f16, bf16, q8_0",
        ),
        (&["bench", "--format", "q8_0"], "--shape <NAME>"),
        (&["bench", "model", "--shape", "qwen3-0.6b"], "cannot be used with"),
        (&["bench", "/nonexistent.gguf"], "there is no model at `/nonexistent.gguf`"),
        (&["bench", "-p", "0", "-n", "0"], "nothing to measure"),
        (&["bench", "-r", "0"], "expected 1 repetition or more"),
        (&["bench", "--batch", "0"], "--batch 0: expected 1 to"),
        (&["bench", "--pg", "512"], "expected P+N, for example 512+128"),
        (
            &["bench", "--device", "cpu", "--force-variant", "logits=linear"],
            "expected --device cuda, metal or sim, found `cpu`",
        ),
        (&["bench", "--force-variant", "logits=gemv"], "it has: linear, linear_stream, linear_batch, gemm, gemm_mma"),
        (&["bench", "--device", "abacus"], "there is no device `abacus`"),
        (&["bench", "--depth", "8192"], "needs a context of"),
        (&["bench", "--clock", "cpu"], "--clock cpu times one thread"),
    ];
    for (args, expected) in cases {
        let error = fail(args);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn the_roofline_has_a_figure_for_each_size_and_thread_count() {
    let printed = succeed(&["bench", "--roofline", "--threads", "1", "-o", "json"]);
    let result: Value = serde_json::from_str(&printed).expect("one JSON object");
    let rows = result["rows"].as_array().expect("rows");
    for kind in ["read", "copy"] {
        let sizes: Vec<_> = rows.iter().filter(|row| row["kind"] == kind).map(|row| &row["buffer_bytes"]).collect();
        let expected: Vec<_> = (20..=29).map(|bits| 1_u64 << bits).collect();
        assert_eq!(sizes, expected.iter().collect::<Vec<_>>());
    }
    assert!(rows.iter().all(|row| row["threads"] == 1));
    let memory = rows.iter().filter(|row| row["kind"] != "peak");
    assert!(memory.clone().all(|row| row["bandwidth_gb_s"].as_f64() > Some(0.0)));
    let peaks: Vec<_> = rows.iter().filter(|row| row["kind"] == "peak").collect();
    assert_eq!(peaks.len(), rows.len() - memory.count());
    assert_eq!(peaks.first().map(|row| &row["class"]), Some(&"f32_fma".into()), "every processor multiplies");
    assert!(peaks.iter().all(|row| row["ops_per_s"].as_f64() > Some(0.0) && row["instruction"].is_string()));
    let error = fail(&["bench", "--roofline", "--device", "reference"]);
    assert!(error.contains("expected --device cpu, cuda or metal"), "{error}");
}

/// A page that asks for nothing from elsewhere, whose elements are closed in order. Returns its text.
fn check_page(path: &str) -> String {
    let page = std::fs::read_to_string(path).expect("the page was written");
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("prefers-color-scheme: dark"), "{page}");
    for outside in ["http", "src=", "<script", "<link", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    let mut open = Vec::new();
    for tag in page.split('<').skip(1).filter_map(|rest| rest.split('>').next()) {
        let name = tag.split(|c: char| c.is_whitespace() || c == '/').find(|word| !word.is_empty()).unwrap_or_default();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "</{name}> closes what was opened last");
        } else if !tag.ends_with('/') && !["!DOCTYPE", "meta"].contains(&name) {
            open.push(name);
        }
    }
    assert_eq!(open, [""; 0], "every element is closed");
    assert!(!page.contains("NaN") && !page.contains("inf\""), "every place is a number");
    page
}

#[test]
fn a_report_shows_every_row_and_needs_nothing_else() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a UTF-8 path").to_owned();
    let direct = path("direct.html");
    let printed = succeed(&[&SMALL[..], &["-o", "json", "--report", &direct]].concat());
    let page = check_page(&direct);
    for title in ["Tokens per second by depth", "Tokens per second by batch", "Latency distribution", "load average"] {
        assert_eq!(page.matches(&format!("<h2>{title}<")).count(), usize::from(title != "load average"), "{title}");
    }
    assert_eq!(page.matches("<tr>").count(), ROWS.len() + 1);
    // The same page from the result.
    let result = path("result.json");
    std::fs::write(&result, &printed).expect("the folder can be written");
    let again = path("again.html");
    assert_eq!(succeed(&["bench", "report", &result, "-o", &again]), "");
    assert_eq!(check_page(&again), page);

    let empty = path("empty.json");
    let mut value: Value = serde_json::from_str(&printed).expect("one JSON object");
    value["rows"] = Value::Array(vec![]);
    std::fs::write(&empty, value.to_string()).expect("the folder can be written");
    assert!(fail(&["bench", "report", &empty, "-o", &again]).contains("the results have no rows"));
    assert!(fail(&["bench", "report", &result, "-o", "/nonexistent/page.html"]).contains("cannot write"));
}

#[test]
fn the_start_is_timed_in_new_processes() {
    let output = output(&["bench", "--startup", "-t", "1", "-r", "2", "-o", "json"]);
    let (built_in, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && stderr.contains("no figure without the file in the cache"), "{stderr}");
    let result: Value = serde_json::from_str(&built_in).expect("one JSON object");
    let rows = result["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 1, "the built-in model is in no file of its own: {built_in}");
    assert_eq!((&rows[0]["file_cache"], &rows[0]["model"]), (&"warm".into(), &"built-in model".into()));
    assert_eq!(rows[0]["samples"].as_array().map(Vec::len), Some(2));
    assert!(rows[0]["first_token_ms"]["median"].as_f64() > Some(0.0));
    let error = fail(&["bench", "/nonexistent.gguf", "--startup"]);
    assert!(error.contains("there is no model at `/nonexistent.gguf`"), "{error}");
    assert!(fail(&["bench", "--startup", "-p", "5"]).contains("cannot be used with"));
}

/// The ops of the built-in model at the plainest level, with hardly any weights to rotate.
const KERNELS: [&str; 17] = [
    "bench",
    "kernels",
    "--op",
    "norm_linear,rope_kv_write,attention,logits,glu,gemv",
    "--format",
    "bf16,q8_0",
    "-m",
    "1,5",
    "--isa",
    "scalar",
    "-t",
    "1",
    "-r",
    "2",
    "--depth",
    "33",
    "--rotate=1",
];

/// Measures kernels, and returns the figures: where there is no terminal for a bar, a line says what is measured.
fn kernels(args: &[&str]) -> String {
    let output = output(args);
    let progress = text(&output.stderr);
    assert!(output.status.success(), "{args:?}: {progress}");
    // The first line may say that this is the quick set.
    let lines: Vec<_> = progress.lines().filter(|line| !line.starts_with("the quick set is measured ")).collect();
    let is_next = |(place, line): (usize, &&str)| line.starts_with(&format!("{} of {}: ", place + 1, lines.len()));
    assert!(!lines.is_empty() && lines.iter().enumerate().all(is_next), "{args:?}: {progress}");
    text(&output.stdout)
}

#[test]
fn kernels_are_measured_alone_and_compared_with_the_reference() {
    let printed = kernels(&[&KERNELS[..], &["-o", "json"]].concat());
    let result: Value = serde_json::from_str(&printed).expect("one JSON object");
    assert_eq!(result["rotation"]["bytes"], 1 << 20);
    let rows = result["rows"].as_array().expect("rows");
    let of = |op: &str, format: &str| {
        let of_op = rows.iter().filter(|row| row["op"] == op && row["format"] == format);
        of_op.map(|row| row["rows"].as_u64().expect("a count")).collect::<Vec<_>>()
    };
    // Matrices in each format, the cache in one; both numbers of rows.
    for (op, format) in
        [("norm_linear", "bf16"), ("norm_linear", "q8_0"), ("logits", "q8_0"), ("attention", "f16"), ("glu", "f32")]
    {
        assert_eq!(of(op, format), [1, 5], "{op} {format}");
    }
    assert_eq!(of("gemv", "bf16").len(), 6, "five rungs and the shipped kernel");
    assert_eq!(of("gemv", "q8_0").len(), 7, "six rungs and the shipped kernel");
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
        // Integers of eight bits are the coarsest arithmetic here.
        assert!(number("max_error") < if row["format"] == "q8_0" { 2e-2 } else { 1e-3 }, "{row}");
        assert!(number("bytes") > 0.0 && number("copies") >= 1.0, "{row}");
        assert_eq!((&row["isa"], &row["threads"]), (&"scalar".into(), &1.into()), "{row}");
        assert!(row["variants"].as_array().is_some_and(|variants| !variants.is_empty()), "{row}");
        if row["time_us"].is_object() && row["bound"].is_string() {
            assert!(number("roofline_share") > 0.0 && number("read_bandwidth_gb_s") > 0.0, "{row}");
        }
    }
    let attention = || rows.iter().filter(|row| row["op"] == "attention");
    assert!(attention().all(|row| row["peak_class"] == "f32_fma" && row["peak_flops_per_s"].is_number()), "{printed}");
    let heads = |row: &&Value| row["op"] == "logits";
    assert!(rows.iter().filter(heads).all(|row| row["evicted"] == true && row["copies"] == 1));
    // A matrix takes its time, whatever else the machine does.
    let is_timed = |row: &Value| row["time_us"]["median"].as_f64() > Some(0.0);
    assert!(rows.iter().filter(|row| row["op"] == "norm_linear" || row["op"] == "gemv").all(is_timed), "{printed}");

    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a UTF-8 path").to_owned();
    let (result_path, page_path) = (path("kernels.json"), path("kernels.html"));
    std::fs::write(&result_path, &printed).expect("the folder can be written");
    assert_eq!(succeed(&["bench", "report", &result_path, "-o", &page_path]), "");
    let page = check_page(&page_path);
    let placed = rows.iter().filter(|row| row["flops_per_s"].is_number()).count();
    assert!(page.contains("Roofline, 1 thread<") && page.contains("reading "), "{page}");
    let legend = page.matches("<li>").count();
    assert_eq!(page.matches("<circle").count(), placed + legend, "a dot for each kernel that computes");
    assert_eq!(page.matches("<tr>").count(), rows.len() + 1);
    let error = fail(&["bench", "compare", &result_path, &result_path]);
    assert!(error.contains("is not a result of `hotmetal bench -o json`"), "{error}");

    let printed = kernels(&[&KERNELS[..], &["--op", "gemv", "-o", "csv"]].concat());
    let lines: Vec<_> = printed.lines().collect();
    // Quoted cells have commas of their own.
    assert!(lines[0].starts_with("op,shape,format,") && lines.len() > 10, "{printed}");
    // As files have them: another kernel, which the row names.
    let narrow = "bench kernels --op logits --format q8_0 -m 1 --isa scalar -t 1 -r 1 --rotate 1 --no-repack -o json";
    let in_place = kernels(&narrow.split(' ').collect::<Vec<_>>());
    let in_place: Value = serde_json::from_str(&in_place).expect("one JSON object");
    let repacked = rows.iter().find(|row| row["op"] == "logits" && row["format"] == "q8_0").expect("a row");
    assert_ne!(in_place["rows"][0]["variants"], repacked["variants"], "{in_place}");
    // The quick set: what a flag does not say is one instruction set, three numbers of rows, two formats and the ops that run.
    let quick = kernels(&["bench", "kernels", "--op", "glu,rms_norm", "-r", "1", "--rotate", "1", "-o", "json"]);
    let quick: Value = serde_json::from_str(&quick).expect("one JSON object");
    let rows_of = |op: &str| -> Vec<u64> {
        let rows = quick["rows"].as_array().expect("rows").iter().filter(|row| row["op"] == op);
        rows.map(|row| row["rows"].as_u64().expect("a count")).collect()
    };
    assert_eq!(rows_of("glu"), [1, 16, 512], "{quick}");
    let error = fail(&["bench", "kernels", "--op", "abacus"]);
    assert!(error.contains("has no op `abacus`; it has: add, attention, embed, gemv, glu"), "{error}");
    for (args, expected) in [
        (&["-m", "0"][..], "--rows 0: expected 1 to"),
        (&["-r", "0"], "expected 1 repetition or more"),
        (&["--rotate", "0"], "--rotate: expected 1 to"),
        (&["--device", "reference", "--isa", "scalar"], "--isa is about the CPU kernels"),
        (&["--device", "reference", "--no-repack"], "--no-repack is about the CPU kernels"),
        (&["--format", "q9"], "there is no weight format `q9`"),
        (&["--shape", "gpt-5"], "there is no shape `gpt-5`"),
    ] {
        let error = fail(&[&["bench", "kernels"], args].concat());
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn rows_of_the_table_are_chosen_by_name_and_say_whose_marks_there_are() {
    let names = succeed(&["bench", "table", "--list"]);
    assert!(names.lines().count() >= 30 && names.contains("llama-3.1-8b q8_0 decode @8192\n"), "{names}");
    let only = ["bench", "table", "--device", "cpu", "--only", "qwen2.5-0.5b q4_0", "-n", "2", "-r", "2"];
    let table: Value = serde_json::from_str(&succeed(&[&only[..], &["-o", "json"]].concat())).expect("one JSON object");
    let [row] = &table["rows"].as_array().expect("rows")[..] else { panic!("{table}") };
    assert_eq!((&row["name"], &row["unit"]), (&"qwen2.5-0.5b q4_0 decode".into(), &"tokens/s".into()));
    let figure = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
    assert!(figure("worst") <= figure("value") && figure("value") <= figure("best"), "{row}");
    // What rows must reach was said of another device.
    assert!(["must", "goal", "of_must", "gap_percent"].iter().all(|key| row[key].is_null()), "{row}");
    assert!(row["row"]["read_bandwidth_gb_s"].as_f64() > Some(0.0), "{row}");
    let printed = succeed(&only);
    assert!(
        printed.contains("| qwen2.5-0.5b q4_0 decode | tokens/s | ")
            && !printed.contains(" must |")
            && printed.contains("of one NVIDIA H200 only, and this is another device"),
        "{printed}"
    );
    assert!(fail(&["bench", "table", "--only", "abacus"]).contains("no row has one of `abacus` in its name"));
}

#[test]
fn a_vendors_library_is_compared_with_on_its_gpus_alone() {
    let of = |device| fail(&["bench", "kernels", "--vendor", "--device", device, "--op", "linear", "-m", "8"]);
    assert!(of("cpu").contains("--vendor compares with cuBLASLt: expected --device cuda, found `cpu`"));
    assert!(of("sim").contains("cuBLASLt is for NVIDIA GPUs: expected --device cuda, found `sim`"));
}

#[test]
fn what_recording_is_worth_is_measured_beside_it() {
    let flags = ["bench", "--device", "sim", "-p", "0", "-n", "2", "-r", "1", "--without", "recording"];
    let result: Value = serde_json::from_str(&succeed(&[&flags[..], &["-o", "json"]].concat())).unwrap();
    let row = &result["rows"][0];
    let rates = [&row["tokens_per_s"]["median"], &row["default_tokens_per_s"]];
    assert!(rates.iter().all(|rate| rate.as_f64().is_some_and(|rate| rate > 0.0)), "{row}");
    assert_eq!(row["has_default_tokens"], true, "{row}");
    // The row without recording submits every kernel of a step by itself.
    let launches = row["launches_per_step"].as_f64().unwrap();
    assert!(row["host_work_per_step"]["launches_one_by_one"].as_f64().is_some_and(|count| count >= launches), "{row}");
    let table = succeed(&[&flags[..], &["-o", "md"]].concat());
    let price = table.split_once("The price of --without recording:\n- tg2: ").expect(&table).1;
    assert!(price.contains(" × the time, ") && price.contains(" t/s instead of "), "{table}");
    assert!(price.lines().next().unwrap().ends_with(", the same tokens"), "{table}");
    let refused = fail(&["bench", "--device", "cpu", "--without", "recording"]);
    assert!(
        refused.contains("--without recording: steps are not recorded on `cpu`: expected --device cuda"),
        "{refused}"
    );
}

/// What `bench impact` says on a device with models of a few thousand parameters.
fn impact(device: &str, more: &[&str]) -> Vec<String> {
    let flags = ["bench", "impact", "--device", device, "--shape", "tiny", "--moe-shape", "tiny-moe"];
    let sizes = ["-p", "16", "-n", "2", "-r", "2", "--threads", "1"];
    [&flags[..], &sizes, more].concat().into_iter().map(str::to_owned).collect()
}

/// As JSON: the names of the claims that were measured, each with consistent figures, and those that were not.
fn impact_of(device: &str) -> (Vec<String>, Vec<String>) {
    let args = impact(device, &["-o", "json"]);
    let result: Value = serde_json::from_str(&succeed(&args.iter().map(String::as_str).collect::<Vec<_>>())).unwrap();
    assert_eq!(result["device"]["name"], device);
    for row in result["rows"].as_array().unwrap() {
        let figure = |path: &str| row.pointer(path).and_then(Value::as_f64).expect(path);
        let [value, worst, best] = ["/value", "/worst", "/best"].map(figure);
        assert!(worst > 0.0 && worst <= best, "{row}");
        let medians = ["/with", "/without"].map(|side| figure(&format!("{side}/tokens_per_s/median")));
        assert!((value - medians[0] / medians[1]).abs() < 1e-9, "the factor is that of the medians: {row}");
        assert!(figure("/claimed/0") > 1.0 && figure("/claimed/0") <= figure("/claimed/1"), "{row}");
        assert_ne!(row["with"]["label"], row["without"]["label"]);
    }
    for row in result["not_measurable"].as_array().unwrap() {
        assert!(row["reason"].as_str().is_some_and(|reason| reason.len() > 10), "{row}");
    }
    let names = |list: &str| -> Vec<String> {
        result[list].as_array().unwrap().iter().map(|row| row["claim"].as_str().unwrap().to_owned()).collect()
    };
    (names("rows"), names("not_measurable"))
}

#[test]
fn claims_stand_beside_what_was_measured_or_beside_why_nothing_was() {
    let (measured, not) = impact_of("cpu");
    // A processor without vectors has nothing to compare its plain kernels with.
    assert!(["fp4", "fusion", "experts"].iter().all(|name| measured.iter().any(|found| found == name)), "{measured:?}");
    assert!(
        ["recording", "attention", "fp4-table"].iter().all(|name| not.iter().any(|found| found == name)),
        "{not:?}"
    );
    assert_eq!(measured.len() + not.len(), 8);
    let (measured, not) = impact_of("sim");
    assert_eq!(measured, ["fp4", "simd-f16", "simd-q8_0", "fusion", "recording", "attention", "experts"]);
    assert_eq!(not, ["fp4-table"]);
}

#[test]
fn the_table_of_claims_is_printed_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let record = format!("--record={}", folder.path().display());
    let args = impact("cpu", &["--only", "fusion,recording", &record, "--machine", "m"]);
    let output = output(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let (table, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("| claim | | claimed | measured |"), "{table}");
    assert!(lines[2].starts_with("| fusion | fused ops | 1.15 to 1.20 | "), "{table}");
    assert!(lines[2].contains(" | tiny decode | Q8_0 | ") && lines[2].contains("--without fusion=all"), "{table}");
    let refused = "| recording | recorded steps | 1.10 to 1.20 | not measurable here | |";
    assert!(lines[3].starts_with(refused) && lines[3].contains("`cpu`"), "{table}");
    let history = succeed(&["bench", "history", folder.path().to_str().unwrap(), "-o", "json"]);
    assert!(history.contains("fusion: tiny decode"), "{history}");
    let error = fail(&["bench", "impact", "--only", "speed"]);
    assert!(error.contains("there is no claim `speed`; there are: fp4, "), "{error}");
    assert!(fail(&["bench", "impact", "-r", "0"]).contains("nothing to measure"));
    assert!(fail(&["bench", "impact", "--device", "reference"]).contains("expected cpu, cuda, metal or sim"));
}

#[test]
fn what_a_fusion_is_worth_is_measured_beside_it() {
    let flags =
        ["bench", "-p", "8", "-n", "2", "-r", "2", "--threads", "1", "--without", "fusion=norm_glu,fusion=logits"];
    let result: Value = serde_json::from_str(&succeed(&[&flags[..], &["-o", "json"]].concat())).unwrap();
    for row in result["rows"].as_array().unwrap() {
        assert!(row["default_tokens_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
        // On the CPU a fused op has the bits of the textbook ops that it stands for.
        assert_eq!(row["has_default_tokens"], true, "{row}");
        let kernels: Vec<_> = row["variants"]["kernels"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let has = |op: &str| kernels.iter().any(|kernel| kernel.starts_with(&format!("{op}: ")));
        assert!(has("glu") && has("norm_linear") && !has("norm_glu") && !has("logits"), "{kernels:?}");
    }
    let table = succeed(&[&flags[..], &["-o", "md"]].concat());
    assert!(table.contains("The price of --without fusion=norm_glu,fusion=logits:\n- pp8: "), "{table}");
    assert!(fail(&["bench", "--without", "fusion=nosuch"]).contains("norm_glu"));
}

#[test]
fn what_another_pass_is_worth_is_measured_beside_it() {
    let flags = ["bench", "-p", "8", "-n", "0", "-r", "2", "--threads", "1", "-o", "json"];
    let row_of = |more: &[&str]| -> Value {
        let result: Value = serde_json::from_str(&succeed(&[&flags[..], more].concat())).unwrap();
        result["rows"][0].clone()
    };
    let selects = |row: &Value| row["variants"]["kernels"].to_string().contains("\"select_outputs: ");
    let (with, without) = (row_of(&[]), row_of(&["--without", "pass=restrict_outputs"]));
    // The rows that are wanted are selected by an op of their own, and without the pass by the last op.
    assert!(selects(&with) && !selects(&without), "{with} {without}");
    assert!(without["default_tokens_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{without}");
    assert_eq!(without["has_default_tokens"], true, "{without}");
    let error = fail(&["bench", "--without", "pass=rewrite"]);
    assert!(error.contains("rewrite cannot be left out: every pass replaces ops by it"), "{error}");
}
