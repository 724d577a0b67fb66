//! `hotmetal gate`: one verdict on whether this program is right and as fast as it was.
//!
//! The checks are commands of this program, each in a process of its own: what a user would run, so that what a user would
//! see is what is judged.

mod args;
mod checks;

use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use records::Record;
use serde_json::{Value, json};

pub(crate) use args::GateArgs;

use crate::bench::{self, Device, Facts, RecordArgs};
use crate::load::device::{self, CPU, DeviceSettings};
use crate::load::find;
use crate::load::plan::plan_of;
use crate::output::{note, stdout};
use crate::program::{self, Outcome};
use args::{CheckId, OutputFormat};
use checks::Check;

/// What texts begin with.
const PROMPT: &str = "Once upon a time";
/// More than the tokens of [`PROMPT`] in any vocabulary: what a context must have room for besides an answer.
const PROMPT_TOKENS_MAX: usize = 32;
/// The weights of the built-in model.
const BUILT_IN_FORMAT: &str = "bf16";

/// Runs `hotmetal gate`. Fails if a check does.
pub(crate) fn gate(args: &GateArgs) -> Result<()> {
    if args.gpu.capture.is_some() {
        bail!("--capture traces one step, and the gate makes many: give it to `hotmetal run`");
    }
    let device_name = device::resolve(&args.device);
    let settings =
        DeviceSettings { gpu: args.gpu.settings(), threads: args.threads, ..DeviceSettings::on(device_name) };
    let device: Device = device::backend(&settings)?.device().into();
    let facts = Facts::collect(args.repetitions as usize, None);
    let keep = RecordArgs { record: args.wave.as_ref().map(|_| args.records.clone()), machine: args.machine.clone() };
    let wanted = |id: CheckId| args.only.is_empty() || args.only.contains(&id);
    let room = context_len(args)?.saturating_sub(PROMPT_TOKENS_MAX);
    let commands = Commands { args, device: device_name, room };

    let mut checks = Vec::new();
    let mut report = |check: Check| -> Result<()> {
        if args.output == OutputFormat::Text {
            let Check { id, question, passed, found, seconds } = &check;
            let mark = if *passed { "✓" } else { "✗" };
            stdout(&format!("{mark} {id} {question:<14} {found} ({seconds:.1} s)\n"))?;
        }
        checks.push(check);
        Ok(())
    };
    if wanted(CheckId::P1) || wanted(CheckId::P2) {
        let (verify, seconds) = timed(|| program::run(&commands.verify()))?;
        let each = if wanted(CheckId::P1) && wanted(CheckId::P2) { seconds / 2.0 } else { seconds };
        if wanted(CheckId::P1) {
            report(Check::new(CheckId::P1, checks::greedy_text(&verify, commands.greedy_tokens()), each))?;
        }
        if wanted(CheckId::P2) {
            report(Check::new(CheckId::P2, checks::each_op(&verify), each))?;
        }
    }
    if wanted(CheckId::P3) {
        let tokens = checks::FINITE_TOKENS.min(room);
        let (run, seconds) = timed(|| program::run(&commands.long_text(tokens)))?;
        report(Check::new(CheckId::P3, checks::finite(&run, tokens), seconds))?;
    }
    if wanted(CheckId::P4) {
        let all = || -> Result<[Outcome; 3]> {
            let of_seed = commands.text_of_a_seed();
            Ok([program::run(&commands.golden_text())?, program::run(&of_seed)?, program::run(&of_seed)?])
        };
        let ([golden, first, second], seconds) = timed(all)?;
        report(Check::new(CheckId::P4, checks::printed_text(&golden, [&first, &second]), seconds))?;
    }
    let mut rows = json!([]);
    if wanted(CheckId::P5) {
        let (bench, seconds) = timed(|| program::run(&commands.bench()))?;
        let verdict = match measured(&bench, &keep.machine(&device, &facts)) {
            Ok((result, record)) => {
                rows = result;
                let earlier = if args.records.is_dir() { bench::read_records(&args.records)? } else { Vec::new() };
                checks::speed(&record, &earlier)
            }
            Err(why) => Err(why),
        };
        let under_load = |verdict: String| match facts.busy_load() {
            Some(load) => format!("{verdict} (warning: other programs ran meanwhile, load average {load:.2})"),
            None => verdict,
        };
        let verdict = verdict.map(under_load).map_err(under_load);
        report(Check::new(CheckId::P5, verdict, seconds))?;
    }
    let failed: Vec<&str> = checks.iter().filter(|check| !check.passed).map(|check| check.id).collect();
    let (passed, left_out) = (failed.is_empty(), CheckId::ALL.len() - checks.len());
    let model = args.model.as_deref().unwrap_or(crate::builtin::NAME);
    let result = json!({
        "schema": bench::SCHEMA, "device": device, "run": facts, "model": model, "rows": rows,
        "gate": {"passed": passed, "wave": args.wave, "checks": checks},
    });
    match args.output {
        OutputFormat::Json => stdout(&format!("{result:#}\n"))?,
        OutputFormat::Text if passed => {
            let without = if left_out > 0 { format!(", {left_out} left out") } else { String::new() };
            stdout(&format!("passed: {} checks{without}\n", checks.len()))?;
        }
        OutputFormat::Text => {}
    }
    keep.keep(&result, &device, &facts, args.wave.as_deref())?;
    if left_out > 0 && args.wave.is_some() {
        note("the record is of some checks only: --only left out the others");
    }
    if passed { Ok(()) } else { Err(anyhow!("the gate is shut: {} failed", failed.join(", "))) }
}

/// The rows of what `bench -o json` printed, as they are and as a record of this machine.
fn measured(bench: &Outcome, machine: &str) -> Result<(Value, Record), String> {
    if !bench.ok {
        return Err(bench.why());
    }
    let result: Value = serde_json::from_str(&bench.stdout).map_err(|_| "`bench` printed no result".to_owned())?;
    let file = records::file_name(result["run"]["date"].as_str().unwrap_or_default(), None, None);
    let record = Record::read(machine, &file, &bench.stdout).map_err(|error| error.to_string())?;
    Ok((result["rows"].clone(), record))
}

fn timed<T>(run: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let begun = Instant::now();
    let found = run()?;
    Ok((found, begun.elapsed().as_secs_f64()))
}

/// Tokens that the model was made for.
fn context_len(args: &GateArgs) -> Result<usize> {
    let (checkpoint, name) = find::open(args.model.as_deref(), false)?;
    let plan = plan_of(&checkpoint).with_context(|| format!("cannot load `{name}`"))?;
    if plan.context_len <= PROMPT_TOKENS_MAX {
        bail!("`{name}` was made for {} tokens, which is too few for a gate", plan.context_len);
    }
    Ok(plan.context_len)
}

/// What the checks run.
struct Commands<'a> {
    args: &'a GateArgs,
    device: &'a str,
    /// Tokens of an answer that the context has room for.
    room: usize,
}

impl Commands<'_> {
    fn greedy_tokens(&self) -> usize {
        checks::GREEDY_TOKENS.min(self.room)
    }

    /// `command` with the flags that every command has.
    fn of(&self, command: &[&str]) -> Vec<String> {
        let mut out: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
        let mut push = |flag: &str, value: String| out.extend([flag.to_owned(), value]);
        push("--device", self.device.to_owned());
        if let Some(threads) = self.args.threads {
            push("--threads", threads.to_string());
        }
        out.extend(self.args.gpu.words());
        out
    }

    /// As [`Commands::of`], with the element type of the cache.
    fn of_model(&self, command: &[&str]) -> Vec<String> {
        let mut out = self.of(command);
        if let Some(kv_type) = self.args.kv_type.and_then(|kv_type| kv_type.to_possible_value()) {
            out.extend(["--kv-type".to_owned(), kv_type.get_name().to_owned()]);
        }
        out
    }

    fn verify(&self) -> Vec<String> {
        // The CPU is held to the reference, all others to the CPU.
        let usual = if self.device == CPU { "reference" } else { CPU };
        let against = self.args.against.as_deref().unwrap_or(usual);
        let tokens = self.greedy_tokens().to_string();
        let model = match &self.args.model {
            Some(model) => vec!["verify", model],
            // Tiny models of each architecture, in the built-in model's format, come with it.
            None => vec!["verify", "--only-models", "--format", BUILT_IN_FORMAT],
        };
        self.of_model(&[&model[..], &["--against", against, "-n", &tokens, "-o", "json"]].concat())
    }

    fn run(&self, flags: &[&str]) -> Vec<String> {
        let model = self.args.model.iter().flat_map(|model| ["--model", model.as_str()]);
        let words: Vec<&str> = ["run", "--raw", "--ignore-eos", "-p", PROMPT].into_iter().chain(model).collect();
        self.of_model(&[&words[..], flags].concat())
    }

    fn long_text(&self, tokens: usize) -> Vec<String> {
        self.run(&["--temp", "0", "-n", &tokens.to_string(), "--output-format", "json"])
    }

    fn text_of_a_seed(&self) -> Vec<String> {
        self.run(&["--temp", "0.8", "--seed", "7", "-n", &self.room.min(64).to_string()])
    }

    fn golden_text(&self) -> Vec<String> {
        self.of(&["doctor", "--part", "text"])
    }

    fn bench(&self) -> Vec<String> {
        let lengths = checks::LENGTHS.into_iter().filter(|&length| length <= self.room);
        let lengths = lengths.map(|length| length.to_string()).collect::<Vec<_>>().join(",");
        let repetitions = self.args.repetitions.to_string();
        let flags = ["-p", "0", "-n", &lengths, "-r", &repetitions, "-o", "json"];
        let model: Vec<&str> = ["bench"].into_iter().chain(self.args.model.as_deref()).collect();
        self.of_model(&[&model[..], &flags].concat())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::load::args::GpuArgs;
    use crate::load::tuned::TunedFrom;

    #[derive(Parser)]
    struct Gate {
        #[command(flatten)]
        gate: GateArgs,
    }

    #[derive(Parser)]
    struct Gpu {
        #[command(flatten)]
        gpu: GpuArgs,
    }

    /// Those of the commands that a gate with `flags` starts, by the first word of each.
    fn started(flags: &[&str]) -> Vec<Vec<String>> {
        let Gate { gate } = Gate::parse_from([&["gate"], flags].concat());
        let commands = Commands { args: &gate, device: CPU, room: 600 };
        let all = [commands.verify(), commands.long_text(512), commands.golden_text(), commands.text_of_a_seed()];
        all.into_iter().chain([commands.bench()]).collect()
    }

    #[test]
    fn every_command_gets_the_flags_of_the_device() {
        let given = [
            "--tuned",
            "t.json",
            "--force-variant",
            "norm_glu=linear",
            "--metal-way",
            "indirect",
            "--metal-way",
            "copied",
            "--batch-invariant",
        ];
        for command in started(&given) {
            let from = command.iter().position(|word| word == "--force-variant").expect("one that was given");
            let words = [&["gpu".to_owned()], &command[from..from + given.len()]].concat();
            let Gpu { gpu } = Gpu::parse_from(words);
            let GpuArgs { batch_invariant, force_variant, tuned, metal_way, capture } = gpu;
            assert!(batch_invariant && force_variant.len() == 1 && metal_way.len() == 2, "{command:?}");
            assert_eq!((tuned, capture), (TunedFrom::File("t.json".into()), None), "{command:?}");
        }
        for command in started(&["--tuned", "off"]) {
            assert!(command.windows(2).any(|words| words == ["--tuned", "off"]), "{command:?}");
        }
        let is_of_gpus = |word: &String| ["--tuned", "--force-variant", "--metal-way"].contains(&word.as_str());
        assert!(started(&[]).iter().flatten().all(|word| !is_of_gpus(word)));
    }
}
