//! The commands that `docs/performance` tells people to type: the program takes every one of them, and those that a
//! processor does in seconds are run, with small models and few repetitions in the place of what is written.
//!
//! `today.md` is left out, because its commands are those of the version that measured a record.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A command of a page: its words behind `hotmetal`, and the file that its output goes to.
#[derive(Clone, Debug)]
struct Documented {
    page: String,
    words: Vec<String>,
    into: Option<String>,
}

impl Documented {
    fn text(&self) -> String {
        self.words.join(" ")
    }
}

/// The pages, but for the one that records make.
fn pages() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance");
    let paths = fs::read_dir(folder).expect("the folder of the pages").map(|entry| entry.expect("an entry").path());
    let is_page = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "md") && !path.ends_with("today.md");
    let mut pages: Vec<_> = paths.filter(is_page).collect();
    pages.sort();
    pages
}

/// The commands in the code blocks of a page: those of a line stand apart by `;`, and a remark follows `#`.
fn commands(page: &str, text: &str) -> Vec<Documented> {
    let mut found = vec![];
    let mut is_code = false;
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        let line = line.split(" #").next().unwrap_or_default();
        for command in line.split(';').filter(|_| is_code) {
            let Some(command) = command.trim().strip_prefix("hotmetal ") else { continue };
            let (words, into) = match command.split_once('>') {
                Some((words, into)) => (words, Some(into.trim().to_owned())),
                None => (command, None),
            };
            let words = words.split_whitespace().map(str::to_owned).collect();
            found.push(Documented { page: page.to_owned(), words, into });
        }
    }
    found
}

fn all() -> Vec<Documented> {
    let of_page = |path: &PathBuf| {
        let page = path.file_name().expect("a name").to_string_lossy().into_owned();
        commands(&page, &fs::read_to_string(path).expect("a page"))
    };
    pages().iter().flat_map(of_page).collect()
}

/// Runs the program with `words` in `folder`, where its cache is, too.
fn output(folder: &Path, words: &[String]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmetal"));
    command.args(words).current_dir(folder).stdin(Stdio::null());
    command.env("HF_HUB_OFFLINE", "1").env("XDG_CACHE_HOME", folder.join("cache")).output().expect("the binary starts")
}

/// What the program says of a command line that it does not take. Flags and their values are read before `--help` is
/// obeyed, which stands at the end.
fn complaint(words: &[String]) -> Option<String> {
    let words = [words, &["--help".to_owned()]].concat();
    let output = output(Path::new("."), &words);
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_program_takes_every_command_of_the_pages() {
    let of = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    // A test that could not fail would take these.
    for wrong in ["bench --shapes tiny", "bench -p many", "kernels dumps", "profile --trace", "gate --only p9"] {
        assert!(complaint(&of(wrong)).is_some(), "{wrong}");
    }
    let commands = all();
    assert!(commands.len() > 20, "the pages have code blocks of commands, and not {}", commands.len());
    for command in commands {
        let complaint = complaint(&command.words);
        assert_eq!(complaint, None, "docs/performance/{}: hotmetal {}", command.page, command.text());
    }
}

/// What commands begin with that are not run, and why.
const NOT_RUN: [(&str, &str); 7] = [
    ("bench serve --base-url", "it measures a server that runs already"),
    ("bench table --device cuda", "it has rows of a GPU alone"),
    ("bench impact", "tests/bench.rs runs it, and it takes a minute"),
    ("bench --roofline", "it reads memory of every size, which takes a minute on a busy machine"),
    ("kernels dump --isa", "it needs the disassembler of CUDA's toolkit"),
    ("gate", "tests/gate.rs runs it"),
    ("tune", "tests/tune_cpu.rs and tests/tune_sim.rs run it"),
];

/// What flags are given in the place of what a page gives them.
const SMALL: [(&str, &str); 11] = [
    ("--shape", "tiny"),
    ("-p", "4"),
    ("-n", "2"),
    ("-r", "1"),
    ("--depth", "0"),
    ("--batch", "1"),
    ("--threads", "1"),
    ("--clients", "1"),
    ("--input-len", "4"),
    ("--output-len", "2"),
    ("--format", "q8_0"),
];

/// The command with small values. Those of `bench` that measure a model get the ones that the page leaves to defaults.
fn small(command: &Documented) -> Vec<String> {
    let mut words = command.words.clone();
    for (flag, value) in SMALL {
        let place = words.iter().position(|word| word == flag).map(|place| place + 1);
        if let Some(given) = place.and_then(|place| words.get_mut(place)).filter(|given| !given.starts_with('-')) {
            *given = value.to_owned();
        }
    }
    let is_measurement = match words[0].as_str() {
        "bench" => words.get(1).is_none_or(|word| word.starts_with('-')),
        "profile" => true,
        _ => false,
    };
    let has_phases = is_measurement && !words.iter().any(|word| word == "--startup");
    let mut add = |flag: &str, value: &str| {
        if !words.iter().any(|word| word == flag) {
            words.extend([flag.to_owned(), value.to_owned()]);
        }
    };
    if has_phases {
        add("-p", "4");
        add("-n", "2");
    }
    if is_measurement && !command.text().contains("--variants") {
        add("-r", "1");
    }
    if has_phases && !command.text().contains("recording") {
        add("--threads", "1");
    }
    words
}

#[test]
fn what_a_processor_does_in_seconds_is_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut run = vec![];
    for command in all() {
        let text = command.text();
        if NOT_RUN.iter().any(|(begin, _)| text.starts_with(begin)) {
            continue;
        }
        let mut words = small(&command);
        // Recorded steps are those of a GPU.
        if text.contains("--without recording") {
            words.extend(["--device", "sim", "--shape", "tiny"].map(str::to_owned));
        }
        // The pages compare with a result of another day.
        for (name, of) in [("b.json", "a.json"), ("q.json", "p.json")] {
            if words.iter().any(|word| word == name) {
                fs::copy(folder.path().join(of), folder.path().join(name)).expect("a result of the command ahead");
            }
        }
        let output = output(folder.path(), &words);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let typed = words.join(" ");
        assert!(output.status.success(), "docs/performance/{}: hotmetal {text} (as {typed}): {stderr}", command.page);
        if let Some(into) = &command.into {
            fs::write(folder.path().join(into), &output.stdout).expect("room for a result");
        }
        run.push(text);
    }
    for expected in ["bench compare a.json b.json", "bench kernels", "bench report", "bench history", "profile --shape"]
    {
        assert!(run.iter().any(|text| text.starts_with(expected)), "`{expected}` was not run: {run:?}");
    }
    for written in ["report.html", "trace.json", "records"] {
        assert!(folder.path().join(written).exists(), "no command wrote `{written}`");
    }
    // Each reason belongs to a command that a page has.
    let all = all();
    for (begin, why) in NOT_RUN {
        assert!(all.iter().any(|command| command.text().starts_with(begin)), "{begin}: {why}");
    }
}
