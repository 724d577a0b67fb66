//! `hotmetal bench --startup`: from the start of the process to its first token, as a user waits for it: a new process of
//! this program each time, with the model's file in the system's cache and, where that can be had, without.

mod file;
mod page_cache;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use lab::patterns::SEED;
use lab::statistics::Summary;
use serde::Serialize;
use serde_json::{Value, json};

use super::args::{MeasureArgs, OutputFormat};
use super::progress::progress;
use super::report::{Device, Facts, SCHEMA, quoted};
use super::shapes::MatrixFormats;
use crate::load::device::{self, CPU};
use crate::output::{note, stdout};
pub(super) use file::ModelFile;
use page_cache::Dropped;

/// What the model is asked to continue; short, so that the start is what is measured.
const PROMPT: &str = "Once upon a time";

/// One model with its file in the system's cache, or not.
#[derive(Debug, Serialize)]
struct Row {
    /// `startup`.
    test: &'static str,
    /// `warm` or `cold`.
    file_cache: &'static str,
    model: String,
    format: Option<String>,
    device: String,
    threads: usize,
    /// From the start of the process to the first byte of text, or to its end where the first token has none.
    first_token_ms: Summary,
    samples: Vec<f64>,
}

/// Runs `hotmetal bench --startup`.
pub(super) fn startup(args: &MeasureArgs) -> Result<()> {
    if args.repetitions == 0 {
        bail!("-r 0 measures nothing: expected 1 repetition or more");
    }
    let backend = device::backend(&args.target.device_settings(None))?;
    let device: Device = backend.device().into();
    let facts = Facts::collect(args.repetitions, args.target.shape.as_ref().map(|_| SEED));
    let counts = args.thread_counts();
    let progress = progress(2 * counts.len() * args.repetitions, "writing the model");
    let made = match &args.target.shape {
        None => None,
        Some(name) => {
            let formats = MatrixFormats::named(args.target.format.as_deref().unwrap_or("q8_0"))?;
            Some((ModelFile::write(name, formats, backend.device().memory_bytes)?, name, formats))
        }
    };
    let path = made.as_ref().map(|(file, ..)| file.path().to_owned());
    let model = path.as_ref().map(|path| path.to_string_lossy().into_owned()).or(args.target.model.clone());
    let name = made.as_ref().map_or(args.target.model.clone(), |(_, name, _)| Some((*name).clone()));
    let name = name.unwrap_or_else(|| crate::builtin::NAME.to_owned());
    let format = made.as_ref().map(|(.., formats)| formats.name());
    let files = files(model.as_deref());

    let mut rows = Vec::new();
    for threads in counts {
        let run = run_args(args, model.as_deref(), threads);
        let row = |file_cache, samples: Vec<f64>| -> Result<Row> {
            Ok(Row {
                test: "startup",
                file_cache,
                model: name.clone(),
                format: format.clone(),
                device: device.name.clone(),
                threads: match device::backend(&args.target.device_settings(threads))?.device().name.as_str() {
                    CPU => device::cpu_backend(&args.target.device_settings(threads))?.threads(),
                    _ => 1,
                },
                first_token_ms: Summary::of(&samples),
                samples,
            })
        };
        progress.set_message("first token, file in the cache");
        // Brings the file into the cache, and shows a mistake before anything is counted.
        first_token_ms(&run)?;
        let mut samples = Vec::new();
        for _ in 0..args.repetitions {
            samples.push(first_token_ms(&run)?);
            progress.inc(1);
        }
        rows.push(row("warm", samples)?);
        progress.set_message("first token, file on disk");
        let mut samples = Vec::new();
        for _ in 0..args.repetitions {
            match drop_all(&files)? {
                Dropped::Yes => samples.push(first_token_ms(&run)?),
                Dropped::No(reason) => {
                    progress.suspend(|| note(&format!("no figure without the file in the cache: {reason}")));
                    break;
                }
            }
            progress.inc(1);
        }
        if samples.len() == args.repetitions {
            rows.push(row("cold", samples)?);
        }
    }
    progress.finish_and_clear();
    drop(made);
    let result = json!({"schema": SCHEMA, "profiled": false, "device": device, "run": facts, "rows": rows});
    stdout(&print(args.output(), &result, &facts.line(&device), &rows))?;
    args.record.keep(&result, &device, &facts, None)
}

/// The arguments of one run.
fn run_args(args: &MeasureArgs, model: Option<&str>, threads: Option<usize>) -> Vec<String> {
    let mut run: Vec<String> =
        ["run", "--raw", "--temp", "0", "--ignore-eos", "-n", "1", "-p", PROMPT, "--device", &args.target.device]
            .map(str::to_owned)
            .to_vec();
    let mut push = |flag: &str, value: Option<String>| run.extend(value.into_iter().flat_map(|v| [flag.to_owned(), v]));
    push("--model", model.map(str::to_owned));
    push("--threads", threads.map(|threads| threads.to_string()));
    push("--isa", args.target.isa.map(|isa| isa.name().to_owned()));
    run
}

/// Milliseconds from the start of a process with these arguments to its first text.
fn first_token_ms(args: &[String]) -> Result<f64> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let begun = Instant::now();
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start this program again")?;
    let mut out = child.stdout.take().context("the run has no output")?;
    let mut byte = [0];
    // No byte is the end of the run: a first token without text.
    let read = out.read(&mut byte).context("cannot read the run's output")?;
    let elapsed = begun.elapsed();
    std::io::copy(&mut out, &mut std::io::sink()).context("cannot read the run's output")?;
    let finished = child.wait_with_output().context("cannot wait for the run")?;
    if !finished.status.success() || (read == 0 && finished.stderr.is_empty()) {
        let message = String::from_utf8_lossy(&finished.stderr);
        bail!("`hotmetal {}` failed: {}", args.join(" "), message.trim());
    }
    Ok(elapsed.as_secs_f64() * 1e3)
}

/// The files that `model` is read from; none for the built-in model, or where only the cache of downloads knows.
fn files(model: Option<&str>) -> Vec<PathBuf> {
    let Some(path) = model.map(Path::new) else { return Vec::new() };
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_file()).collect()
}

/// Has none of `files` in the system's cache.
fn drop_all(files: &[PathBuf]) -> Result<Dropped> {
    if files.is_empty() {
        return Ok(Dropped::No("the model is not in files of its own".to_owned()));
    }
    for path in files {
        if let no @ Dropped::No(_) = page_cache::drop_file(path)? {
            return Ok(no);
        }
    }
    Ok(Dropped::Yes)
}

/// `result` and `rows` are the same; `line` is the last one of the table.
fn print(output: OutputFormat, result: &Value, line: &str, rows: &[Row]) -> String {
    match output {
        OutputFormat::Json => format!("{result:#}\n"),
        OutputFormat::Jsonl => {
            let line = |row: &Row| {
                let mut line: Value = json!(row);
                line["machine"] = result["device"].clone();
                line["run"] = result["run"].clone();
                format!("{line}\n")
            };
            rows.iter().map(line).collect()
        }
        OutputFormat::Csv => {
            let mut out = String::from(
                "test,file_cache,model,format,device,threads,first_token_ms_median,first_token_ms_mean,\
                 first_token_ms_min,first_token_ms_max,first_token_ms_stdev\n",
            );
            for row in rows {
                let ms = &row.first_token_ms;
                out.push_str(&format!(
                    "{},{},{},{},{},{},{},{},{},{},{}\n",
                    row.test,
                    row.file_cache,
                    quoted(&row.model),
                    row.format.as_deref().unwrap_or_default(),
                    row.device,
                    row.threads,
                    ms.median,
                    ms.mean,
                    ms.min,
                    ms.max,
                    ms.stdev
                ));
            }
            out
        }
        OutputFormat::Md => {
            let mut out = String::from(
                "| model | threads | file cache | ms to the first token | mean | min | max | stdev |\n\
                 | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |\n",
            );
            for row in rows {
                let ms = &row.first_token_ms;
                out.push_str(&format!(
                    "| {} {} | {} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} |\n",
                    row.model.replace('|', "\\|"),
                    row.format.as_deref().unwrap_or_default(),
                    row.threads,
                    row.file_cache,
                    ms.median,
                    ms.mean,
                    ms.min,
                    ms.max,
                    ms.stdev
                ));
            }
            out.push_str(&format!("\n{line}; a new process each time\n"));
            out
        }
    }
}
