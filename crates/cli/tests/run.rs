//! `hotmetal run` as a user meets it: real processes, exact output, one clear message for each mistake.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn hotmetal(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmetal"));
    command.args(args).stdin(Stdio::null()).env("HF_HUB_OFFLINE", "1");
    command
}

fn output(args: &[&str]) -> Output {
    hotmetal(args).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

/// Runs, expects success, and returns stdout.
fn succeed(args: &[&str]) -> String {
    let output = output(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn json(args: &[&str]) -> Value {
    let args: Vec<_> = args.iter().copied().chain(["--output-format", "json"]).collect();
    serde_json::from_str(&succeed(&args)).expect("one JSON object")
}

/// Runs, expects exit code `code` and nothing on stdout, and returns stderr.
fn fail(code: i32, args: &[&str]) -> String {
    let output = output(args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    assert_eq!(text(&output.stdout), "", "{args:?} prints nothing");
    assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    stderr
}

fn with_stdin(args: &[&str], input: &str) -> Output {
    let mut child = hotmetal(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("the child reads");
    child.wait_with_output().expect("the child ends")
}

#[expect(clippy::print_stderr, reason = "a skipped test says why")]
fn shared_model(name: &str) -> Option<PathBuf> {
    let found = testing::golden::test_data(&format!("models/{name}"));
    found.map_err(|reason| eprintln!("skipped: {reason}")).ok()
}

fn golden_folder(name: &str) -> String {
    format!("{}/../models/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn greedy_text_from_the_built_in_model_is_fluent_and_the_same_every_time() {
    let first = succeed(&["run", "Once upon a time", "--temp", "0", "-n", "60"]);
    assert!(first.split_whitespace().count() > 30, "{first}");
    assert_eq!(first, succeed(&["run", "Once upon a time", "--temp", "0", "-n", "60"]));
    assert_eq!(first, succeed(&["run", "-p", "Once upon a time", "--temp", "0", "-n", "60", "--threads", "1"]));
}

#[test]
fn json_holds_what_others_rely_on() {
    let object = json(&["run", "Hello", "-n", "12", "--seed", "7"]);
    assert_eq!(object["seed"], 7);
    assert!(object["text"].is_string());
    let ids = object["token_ids"].as_array().expect("ids");
    assert!(!ids.is_empty() && ids.len() <= 12);
    assert!(!object["prompt_token_ids"].as_array().expect("ids").is_empty());
    assert!(["stop", "length"].contains(&object["finish_reason"].as_str().expect("a word")));
    for key in ["load_ms", "prompt_ms", "decode_ms", "ttft_ms", "total_ms"] {
        assert!(object["timings"][key].as_f64().expect(key) >= 0.0);
    }
}

#[test]
fn the_same_seed_gives_the_same_text_and_another_seed_another() {
    let run = |seed: &str| json(&["run", "Tell me a story", "-n", "40", "--temp", "1", "--seed", seed])["text"].clone();
    assert_eq!(run("1"), run("1"));
    let distinct: std::collections::HashSet<_> = ["1", "2", "3", "4"].map(|seed| run(seed).to_string()).into();
    assert!(distinct.len() > 1);
}

#[test]
fn a_prompt_comes_from_an_argument_a_flag_a_file_or_standard_input() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("prompt.txt");
    std::fs::write(&file, "Once upon a time\n").expect("a file");
    let flags = ["--temp", "0", "-n", "8"];
    let expected = succeed(&[&["run", "Once upon a time"][..], &flags].concat());
    assert_eq!(succeed(&[&["run", "-p", "Once upon a time"][..], &flags].concat()), expected);
    assert_eq!(succeed(&[&["run", "-f", file.to_str().expect("UTF-8")][..], &flags].concat()), expected);
    let piped = with_stdin(&[&["run"][..], &flags].concat(), "Once upon a time\n");
    assert_eq!(text(&piped.stdout), expected);
}

/// Escapes, a system message in a file and an order of samplers, as llama-cli takes them.
#[test]
fn flags_of_llama_cli_do_what_they_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("system.txt");
    std::fs::write(&file, "Be\nbrief.\n").expect("a file");
    let of = |args: &[&str]| json(&[&["run", "-n", "4", "--temp", "0"][..], args].concat());
    let ids = |args: &[&str]| of(args)["prompt_token_ids"].clone();
    let escaped = ids(&["--raw", "-e", "-p", "Once\\x20upon\\na time"]);
    assert_eq!(escaped, ids(&["--raw", "-p", "Once upon\na time"]));
    assert_ne!(escaped, ids(&["--raw", "-p", "Once\\x20upon\\na time"]), "without the flag a prompt stays as it is");
    let from_file = ids(&["-sysf", file.to_str().expect("UTF-8"), "-p", "Hello"]);
    assert_eq!(from_file, ids(&["--system", "Be\nbrief.", "-p", "Hello"]));
    assert_eq!(from_file, ids(&["-e", "--system", "Be\\nbrief.", "-p", "Hello"]));
    let sampling =
        json(&["run", "-p", "Hello", "-n", "4", "--sampling-seq", "pk", "--top-p", "0.5", "-s", "1"])["sampling"]
            .clone();
    assert_eq!(sampling["samplers"], serde_json::json!(["top_p", "top_k"]), "{sampling}");
    // A step that is left out does nothing.
    assert_eq!((&sampling["temperature"], &sampling["min_p"]), (&1.0.into(), &0.0.into()), "{sampling}");
    let looked_back = json(&["run", "-p", "Hello", "-n", "2", "--dry-multiplier", "0.8", "--dry-penalty-last-n", "9"]);
    assert_eq!(looked_back["sampling"]["dry_penalty_last_n"], 9);
    assert!(fail(2, &["run", "-p", "Hello", "--samplers", "top_k;tfs_z"]).contains("`tfs_z`"));
    assert!(fail(2, &["run", "-npx", "Hello"]).contains("`-npx`"));
    assert!(fail(2, &["ps"]).contains("/api/ps"));
}

#[test]
fn output_format_none_prints_only_the_figures() {
    let output = output(&["run", "Hello", "-n", "4", "--output-format", "none"]);
    assert!(output.status.success());
    assert_eq!(text(&output.stdout), "");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("tok/s") && stderr.contains("load"), "{stderr}");
}

#[test]
fn raw_continues_and_chat_answers() {
    let raw = json(&["run", "--raw", "Once upon a time", "--temp", "0", "-n", "8"]);
    let chat = json(&["run", "Once upon a time", "--temp", "0", "-n", "8"]);
    let len = |object: &Value| object["prompt_token_ids"].as_array().expect("ids").len();
    assert!(len(&chat) > len(&raw), "the template adds its control tokens");
}

#[test]
fn a_stop_string_is_not_printed_and_ends_the_text() {
    let whole =
        json(&["run", "Once upon a time", "--temp", "0", "-n", "60"])["text"].as_str().expect("text").to_owned();
    let stop = whole.split_whitespace().nth(9).expect("ten words");
    let object = json(&["run", "Once upon a time", "--temp", "0", "-n", "60", "--stop", stop]);
    let cut = object["text"].as_str().expect("text");
    assert_eq!(object["finish_reason"], "stop");
    assert!(whole.starts_with(cut) && !cut.contains(stop), "{cut}");
    assert_eq!(&whole[cut.len()..cut.len() + stop.len()], stop);
}

#[test]
fn a_bias_of_minus_infinity_bans_a_token() {
    let free = json(&["run", "Once upon a time", "--temp", "0", "-n", "4"]);
    let first = free["token_ids"][0].as_u64().expect("an id");
    let bias = format!("{first}=-inf");
    let banned = json(&["run", "Once upon a time", "--temp", "0", "-n", "4", "--logit-bias", &bias]);
    assert!(banned["token_ids"].as_array().expect("ids").iter().all(|id| id.as_u64() != Some(first)));
}

#[test]
fn mistakes_get_one_clear_message() {
    let cases: [(i32, &[&str], &[&str]); 18] = [
        (1, &["run", "/no/such/model.gguf", "hi"], &["/no/such/model.gguf"]),
        (1, &["run", "no-such-org/no-such-repo", "hi"], &["no-such-org/no-such-repo", "pull"]),
        (1, &["run", "no-such-model", "hi"], &["`no-such-model`", "ORG/REPO", "hotmetal pull"]),
        (1, &["run", "llama3.2:1b"], &["`llama3.2:1b`", "ORG/REPO"]),
        (1, &["run", "nosuch.gguf", "hi"], &["`nosuch.gguf`", "no such file"]),
        (2, &["run", "--lora", "a.gguf", "hi"], &["`--lora`", "merge"]),
        (2, &["run", "--adaptive-target", "0.5", "hi"], &["`--adaptive-target 0.5`"]),
        (1, &["run", "-f", "/no/such/prompt.txt"], &["/no/such/prompt.txt"]),
        (1, &["run"], &["no prompt"]),
        (1, &["run", "-m", "some/model", "hi", "-p", "there"], &["twice"]),
        (1, &["run", "hi", "--ctx-size", "4", "-n", "9"], &["4"]),
        (1, &["run", "hi", "--temp=-1"], &["temperature"]),
        (1, &["run", "hi", "--top-p", "2"], &["top_p"]),
        (1, &["run", "hi", "--device", "abacus"], &["abacus", "cpu"]),
        (1, &["run", "hi", "--raw", "--system", "x"], &["--raw"]),
        (2, &["run", "--no-such-flag"], &["--no-such-flag"]),
        (2, &["run", "-i", "-f", "x"], &["cannot be used with"]),
        (2, &["run", "hi", "-n", "many"], &["many"]),
    ];
    for (code, args, expected) in cases {
        let stderr = fail(code, args);
        for word in expected {
            assert!(stderr.contains(word), "{args:?} should mention `{word}`: {stderr}");
        }
    }
}

/// Names without an organisation are answered with what is in the cache, and are no prompts of the built-in model.
#[test]
fn a_name_without_an_organisation_is_answered_with_those_that_are_here() {
    let home = tempfile::tempdir().expect("a folder");
    for repo in ["models--Qwen--Qwen2.5-0.5B-Instruct", "models--Qwen--Qwen2.5-7B", "models--google--gemma-3-1b-it"] {
        std::fs::create_dir_all(home.path().join("hub").join(repo).join("blobs")).expect("a folder");
    }
    for (args, first, other) in [
        (&["run", "qwen2.5", "hi"][..], "Qwen/Qwen2.5-7B", Some("Qwen/Qwen2.5-0.5B-Instruct")),
        (&["run", "qwen2.5:0.5b"], "Qwen/Qwen2.5-0.5B-Instruct", Some("Qwen/Qwen2.5-7B")),
        (&["run", "Gemma3"], "google/gemma-3-1b-it", None),
        (&["inspect", "gemma-3"], "google/gemma-3-1b-it", None),
    ] {
        let output = hotmetal(args).env("HF_HOME", home.path()).output().expect("the binary starts");
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        let at = stderr.find(first).unwrap_or_else(|| panic!("{args:?}: {stderr}"));
        assert!(other.is_none_or(|other| stderr.find(other).is_some_and(|later| later > at)), "{args:?}: {stderr}");
        assert!(!stderr.contains("hotmetal pull"), "{stderr}");
    }
    // One word that is like none of them is a prompt.
    let output = hotmetal(&["run", "Once", "-n", "2"]).env("HF_HOME", home.path()).output().expect("the binary starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_with_both_numbers() {
    let long = "word ".repeat(300);
    let stderr = fail(1, &["run", &long, "--ctx-size", "128"]);
    assert!(stderr.contains("128") && stderr.contains("tokens") && stderr.contains("--ctx-size"), "{stderr}");
}

#[test]
fn an_unknown_architecture_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(Path::new(&golden_folder("qwen2")).join(name), folder.path().join(name)).expect("a copy");
    }
    let config = std::fs::read_to_string(folder.path().join("config.json")).expect("JSON");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    config["model_type"] = "zeppelin".into();
    config["architectures"] = serde_json::json!(["ZeppelinForCausalLM"]);
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("a file");
    let stderr = fail(1, &["run", folder.path().to_str().expect("UTF-8"), "hi"]);
    assert!(stderr.contains("zeppelin") && stderr.contains("qwen2"), "{stderr}");
}

#[test]
fn nothing_is_written_and_no_network_is_needed_in_an_empty_directory() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = hotmetal(&["run", "Hello", "-n", "4"])
        .current_dir(folder.path())
        .env_clear()
        .env("HOME", folder.path())
        .output()
        .expect("the binary starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

#[test]
fn a_reader_that_goes_away_ends_the_program_quietly() {
    let mut child = hotmetal(&["run", "Once upon a time", "-n", "400", "--ignore-eos"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the child ends");
    assert!(!text(&output.stderr).contains("panicked"), "{}", text(&output.stderr));
    assert!(output.status.code().is_some(), "ended by itself, not by a signal");
}

#[cfg(unix)]
#[test]
fn the_first_ctrl_c_stops_the_generation_and_not_the_program() {
    let mut child = hotmetal(&["run", "Once upon a time", "--ignore-eos", "--output-format", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    std::thread::sleep(Duration::from_millis(400));
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(interrupted.success());
    let begun = Instant::now();
    let running = child.try_wait().expect("a child").is_none();
    let output = child.wait_with_output().expect("the child ends");
    assert!(begun.elapsed() < Duration::from_secs(10));
    let object: Value = serde_json::from_str(&text(&output.stdout)).expect("what was generated is still reported");
    // A fast machine can fill the context before the signal arrives; then there was nothing to stop.
    assert!(!running || object["finish_reason"] == "cancelled" || object["finish_reason"] == "context", "{object}");
}

#[test]
fn a_conversation_remembers_obeys_its_commands_and_saves() {
    let folder = tempfile::tempdir().expect("a folder");
    let saved = folder.path().join("chat.json");
    let script = format!(
        "/help\nTell me a story about a fox and a lantern.\nAnd then?\n/regen\n/stats\n/system You are brief.\n/system\n/nope\nHello again\n/save {}\n/bye\n",
        saved.display()
    );
    let output = with_stdin(&["run", "-i", "-n", "40", "--seed", "1"], &script);
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    for word in ["/regen", "tok/s", "cached", "You are brief.", "unknown command /nope"] {
        assert!(stderr.contains(word), "`{word}` in {stderr}");
    }
    let object: Value = serde_json::from_str(&std::fs::read_to_string(saved).expect("saved")).expect("JSON");
    let roles: Vec<_> = object["messages"].as_array().expect("messages").iter().map(|m| m["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
}

/// A message of several lines, parameters, and a conversation that goes on in another process.
#[test]
fn a_conversation_has_long_messages_and_settings_and_goes_on_elsewhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let saved = folder.path().join("chat.json");
    let saved = saved.display();
    let script = format!(
        "/set temperature 0\n/set num_predict 8\n/set parameter top_p 2\n/set colour red\n/set num_ctx 9\n\"\"\"Tell me\na \
         story.\"\"\"\n/save {saved}\n"
    );
    let output = with_stdin(&["run", "-i"], &script);
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    for words in ["temperature is 0", "num_predict is 8", "top_p", "`colour`", "--ctx-size 9", "saved to"] {
        assert!(stderr.contains(words), "`{words}` in {stderr}");
    }
    let object: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("chat.json")).expect("saved")).expect("JSON");
    assert_eq!(object["messages"][0]["content"], "Tell me\na story.");
    let answer = object["messages"][1]["content"].as_str().expect("an answer").to_owned();
    let output =
        with_stdin(&["run", "-i", "--temp", "0", "-n", "8"], &format!("/load {saved}\n/regen\n/load nowhere\n"));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("2 messages of") && stderr.contains("`nowhere`"), "{stderr}");
    assert_eq!(text(&output.stdout).trim_end(), answer.trim_end(), "the same prompt, without chance");
}

#[test]
fn gguf_and_safetensors_of_one_model_tell_the_same_story() {
    let (Some(gguf), Some(folder)) = (shared_model("stories260K-f16.gguf"), shared_model("stories260K-hf")) else {
        return;
    };
    let story = |path: &Path| {
        let path = path.to_str().expect("UTF-8");
        json(&["run", path, "Once upon a time", "--raw", "--temp", "0", "-n", "100"])
    };
    let (from_gguf, from_folder) = (story(&gguf), story(&folder));
    assert_eq!(from_gguf["prompt_token_ids"], from_folder["prompt_token_ids"]);
    let told = from_gguf["text"].as_str().expect("text");
    assert!(told.contains("Lily") || told.contains("little"), "{told}");
    // The GGUF holds the weights rounded to F16, so that a late token may differ; the beginning must not.
    let ids = |object: &Value| object["token_ids"].as_array().expect("ids")[..40].to_vec();
    assert_eq!(ids(&from_gguf), ids(&from_folder));
}

#[test]
fn inspect_shows_what_is_in_a_model() {
    let text = succeed(&["inspect"]);
    for word in ["qwen3", "BF16", "runs here     yes", "model.layers.6.mlp.down_proj.weight", "chat template"] {
        assert!(text.contains(word), "`{word}` in {text}");
    }
    let object: Value = serde_json::from_str(&succeed(&["inspect", "--output-format", "json"])).expect("JSON");
    assert_eq!(object["model_type"], "qwen3");
    assert_eq!(object["runs_here"], true);
    assert!(object["parameters"].as_u64().expect("a count") > 5_000_000);
    let ops = succeed(&["inspect", "--ops"]);
    assert!(ops.contains("norm_linear") && ops.contains("rope_kv_write"), "{ops}");
}

#[test]
fn plan_needs_headers_only() {
    let whole = std::fs::read(Path::new(&golden_folder("qwen2")).join("model.safetensors")).expect("a golden");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::copy(Path::new(&golden_folder("qwen2")).join("config.json"), folder.path().join("config.json"))
        .expect("a copy");
    let header_len = 8 + u64::from_le_bytes(whole[..8].try_into().expect("eight bytes")) as usize;
    std::fs::write(folder.path().join("model.safetensors"), &whole[..header_len]).expect("a file");
    let path = folder.path().to_str().expect("UTF-8");
    let object: Value = serde_json::from_str(&succeed(&["plan", path, "--output-format", "json"])).expect("JSON");
    assert_eq!(object["weight_bytes"].as_u64().expect("bytes") as usize, whole.len() - header_len);
    assert!(object["bandwidth_gb_s"].as_f64().expect("a figure") > 0.1);
    let stderr = fail(1, &["run", path, "hi"]);
    assert!(stderr.contains("model.safetensors") && stderr.contains("download"), "{stderr}");
}

#[test]
fn doctor_proves_the_text_right_on_this_machine() {
    let report = succeed(&["doctor"]);
    assert!(report.contains("equal those of transformers") && !report.contains('✗'), "{report}");
}

#[test]
fn doctor_tries_a_device_from_its_copies_to_its_speed() {
    let report = succeed(&["doctor", "--full", "--device", "cpu", "--threads", "1"]);
    let sections =
        ["1/", "the device", "copies", "the kernels of embed", "the kernels of linear", "one step", "128 greedy"];
    let mut rest = report.as_str();
    for section in
        sections.into_iter().chain(["through the engine", "how fast the built-in model is", "sections passed"])
    {
        let (_, behind) = rest.split_once(section).unwrap_or_else(|| panic!("`{section}` in its place: {report}"));
        rest = behind;
    }
    // A processor that rounds to bfloat16 may choose otherwise where two tokens tie within the noise.
    let texts = ["128 of 128 greedy tokens equal", "127 of 128 greedy tokens equal, 1 tied within the noise"];
    assert!(texts.iter().any(|text| report.contains(text)) && !report.contains('✗'), "{report}");
    let stderr = fail(1, &["doctor", "--full", "--kv-type", "f32"]);
    assert!(stderr.contains("takes no --kv-type"), "{stderr}");
    // What fails is shown with its reason, and nothing is tried on a device that is not there.
    let output = output(&["doctor", "--full", "--device", "abacus"]);
    let report = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert!(report.contains("there is no device `abacus`") && report.contains("✗ failed with 1"), "{report}");
    assert!(report.contains("\n0 of ") && report.ends_with("✗ the device\n") && !report.contains("2/"), "{report}");
}

#[test]
fn apple_gpus_are_on_macos_alone() {
    if cfg!(target_os = "macos") {
        return;
    }
    for device in ["metal", "metal:1"] {
        assert!(fail(1, &["run", "hi", "--device", device]).contains("metal: only on macOS"), "{device}");
    }
    assert!(text(&output(&["doctor", "--metal"]).stdout).contains("metal: only on macOS"));
    for flags in [["--metal-way", "indirect"], ["--capture", "step.gputrace"]] {
        for device in ["cpu", "auto"] {
            let stderr = fail(1, &[&["run", "hi", "--device", device][..], &flags].concat());
            assert!(stderr.contains("are about Apple GPUs: expected --device metal, found"), "{stderr}");
        }
    }
}

#[test]
fn every_instruction_set_and_thread_count_gives_the_same_text() {
    let run = |extra: &[&str]| {
        succeed(&[&["run", "Tell me a story about a fox", "--seed", "3", "-n", "40"][..], extra].concat())
    };
    let expected = run(&[]);
    assert_eq!(run(&["--isa", "scalar"]), expected);
    assert_eq!(run(&["--threads", "1"]), expected);
    assert_eq!(run(&["--threads", "3"]), expected);
}

#[test]
fn the_simulated_gpu_tells_the_same_story_and_is_never_chosen() {
    let story = |device| json(&["run", "Once upon a time", "--device", device, "--temp", "0", "-n", "6"]);
    let [simulated, processors] = ["sim", "cpu"].map(story);
    assert_eq!(simulated["text"], processors["text"]);
    assert!(processors["text"].as_str().is_some_and(|text| text.len() > 6), "{processors}");
    assert!(simulated["device"].as_str().is_some_and(|device| device.starts_with("GPU simulator")), "{simulated}");
    assert!(!story("auto")["device"].as_str().unwrap().contains("simulator"));
}
