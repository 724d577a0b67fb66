//! Checkpoints whose layout differs from the published one without a change of what they compute. Such a checkpoint runs,
//! and the program says once what is odd.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

mod http_server;
mod process;

const BUILTIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/builtin");
const HEAD: &str = "lm_head.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";

/// The built-in model in a folder that a test changes.
struct Model {
    folder: tempfile::TempDir,
}

impl Model {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            fs::copy(Path::new(BUILTIN).join(file), folder.path().join(file)).expect("room for a file");
        }
        Self { folder }
    }

    fn change(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let path = self.folder.path().join(file);
        let mut value = serde_json::from_slice(&fs::read(&path).expect("it is there")).expect("JSON");
        change(&mut value);
        fs::write(path, value.to_string()).expect("room for a file");
    }

    /// Changes the tensors: their names with dtype and shape, and their bytes.
    fn change_tensors(&self, change: impl FnOnce(&mut Vec<(String, Value, Vec<u8>)>)) {
        let path = self.folder.path().join("model.safetensors");
        let file = fs::read(&path).expect("it is there");
        let (len, rest) = file.split_first_chunk().expect("a length");
        let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
        let header: Map<String, Value> = serde_json::from_slice(header).expect("JSON");
        let offset = |info: &Value, at: usize| info["data_offsets"][at].as_u64().expect("an offset") as usize;
        let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
        let mut tensors: Vec<_> = tensors
            .map(|(name, info)| {
                let bytes = data[offset(&info, 0)..offset(&info, 1)].to_vec();
                (name, info, bytes)
            })
            .collect();
        change(&mut tensors);
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (name, mut info, bytes) in tensors {
            info["data_offsets"] = json!([data.len(), data.len() + bytes.len()]);
            data.extend(bytes);
            header.insert(name, info);
        }
        let mut header = Value::Object(header).to_string();
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
        fs::write(path, file).expect("room for a file");
    }

    fn output(&self, prompt: &[&str]) -> (bool, String, String) {
        let folder = self.folder.path().to_str().expect("a path in UTF-8");
        let output = process::output(&[&["run", folder][..], prompt, &["--temp", "0", "-n", "24"]].concat());
        (output.status.success(), process::text(&output.stdout), process::text(&output.stderr))
    }

    /// What the model says after `prompt` with these flags, and what it reports beside.
    fn says_after(&self, prompt: &str, flags: &[&str]) -> (String, String) {
        let (is_ok, text, report) = self.output(&[&["--raw", prompt][..], flags].concat());
        assert!(is_ok, "{report}");
        (text, report)
    }

    /// What the model says after a text, and what it reports beside.
    fn says(&self) -> (String, String) {
        let (is_ok, text, report) = self.output(&["Once upon a time", "--raw"]);
        assert!(is_ok, "{report}");
        (text, report)
    }
}

/// As checkpoints that were saved without their head have them (Qwen3-Embedding), and as models for text have them that
/// were cut out of one for pictures.
#[test]
fn tensors_have_the_names_of_other_wrappers() {
    let (text, _) = Model::new().says();
    for prefix in ["", "language_model.model.", "model.language_model."] {
        let model = Model::new();
        model.change_tensors(|tensors| {
            for (name, ..) in tensors {
                let rest = name.strip_prefix("model.").map(|rest| format!("{prefix}{rest}"));
                *name = rest.unwrap_or_else(|| format!("{}{name}", prefix.strip_suffix("model.").unwrap_or("")));
            }
        });
        assert_eq!(model.says().0, text, "{prefix}");
        let inspected = process::succeed(&["inspect", model.folder.path().to_str().expect("a path in UTF-8")]);
        assert!(inspected.contains(EMBEDDING), "{inspected}");
    }
}

#[test]
fn a_head_of_its_own_counts_where_the_configuration_ties_it() {
    let tied = Model::new();
    // The embedding, with the rows of two tokens exchanged where `swaps` says so.
    let add_head = |swaps: bool| {
        move |tensors: &mut Vec<(String, Value, Vec<u8>)>| {
            tensors.retain(|(name, ..)| name != HEAD);
            let (_, info, bytes) = tensors.iter().find(|(name, ..)| name == EMBEDDING).expect("it is there").clone();
            let row = bytes.len() / info["shape"][0].as_u64().expect("rows") as usize;
            let mut head = bytes;
            if swaps {
                head.rotate_left(row);
            }
            tensors.push((HEAD.to_owned(), info, head));
        }
    };
    tied.change_tensors(|tensors| tensors.retain(|(name, ..)| name != HEAD));
    let set = |tie: bool| move |config: &mut Value| config["tie_word_embeddings"] = json!(tie);
    tied.change("config.json", set(true));
    let (text, _) = tied.says();
    tied.change_tensors(add_head(false));
    let (same, report) = tied.says();
    assert_eq!(same, text);
    assert!(!report.contains("ties the head"), "{report}");

    let own = Model::new();
    own.change_tensors(add_head(true));
    own.change("config.json", set(false));
    let (expected, _) = own.says();
    assert_ne!(expected, text);
    own.change("config.json", set(true));
    let (found, report) = own.says();
    assert_eq!(found, expected);
    assert_eq!(report.matches("ties the head").count(), 1, "{report}");
}

/// A model that was saved without its head is for vectors of texts.
#[test]
fn a_model_without_a_head_generates_nothing_and_is_quantised_as_one() {
    let model = Model::new();
    model.change("config.json", |config| config["tie_word_embeddings"] = json!(false));
    let refused = |folder: &Path| {
        let folder = folder.to_str().expect("UTF-8");
        for args in [&["run", folder, "--raw", "a", "-n", "2"][..], &["eval", folder, "-f", "Cargo.toml"]] {
            let output = process::output(args);
            let report = process::text(&output.stderr);
            assert!(!output.status.success() && report.contains("saved without its head"), "{report}");
            assert!(report.contains("/v1/embeddings"), "{report}");
        }
    };
    refused(model.folder.path());
    let written = model.folder.path().join("written");
    let (from, to) = (model.folder.path().to_str().expect("UTF-8"), written.to_str().expect("UTF-8"));
    process::succeed(&["quantize", from, "-F", "int4_g128", "-o", to]);
    refused(&written);
}

#[test]
fn a_weight_that_is_no_number_is_found_by_its_name() {
    let model = Model::new();
    assert!(model.output(&["a", "--raw", "--check-tensors"]).0);
    model.change_tensors(|tensors| {
        for (name, _, bytes) in tensors {
            if name.ends_with("layers.3.mlp.up_proj.weight") || name.ends_with("layers.5.mlp.up_proj.weight") {
                // bf16's NaN.
                bytes[20..22].copy_from_slice(&[0xC0, 0x7F]);
            }
        }
    });
    let (is_ok, _, report) = model.output(&["a", "--raw"]);
    assert!(!is_ok && report.contains("numeric fault") && report.contains("--check-tensors"), "{report}");
    let (is_ok, _, report) = model.output(&["a", "--raw", "--check-tensors"]);
    let expected = ["--check-tensors", "model.safetensors", "model.layers.3.mlp.up_proj.weight", "NaN"];
    assert!(!is_ok && expected.iter().all(|part| report.contains(part)), "{report}");
    // A server starts, and names each while nobody asks it for anything.
    let server = http_server::Server::start(&[model.folder.path().to_str().expect("UTF-8")]);
    for layer in [3, 5] {
        server.await_note(&format!("tensor=\"model.layers.{layer}.mlp.up_proj.weight\""));
    }
}

#[test]
fn a_token_beyond_the_logits_is_never_produced_and_refused_in_prompts() {
    let (text, _) = Model::new().says();
    let model = Model::new();
    model.change("tokenizer.json", |tokenizer| {
        let vocab = tokenizer["model"]["vocab"].as_object().expect("tokens").values().filter_map(Value::as_u64);
        let added =
            tokenizer["added_tokens"].as_array().expect("a list").iter().filter_map(|token| token["id"].as_u64());
        let next = vocab.chain(added).max().expect("tokens") + 1;
        let token = json!({"id": next, "content": "<one_more>", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false});
        tokenizer["added_tokens"].as_array_mut().expect("a list").push(token);
    });
    let (found, report) = model.says();
    assert_eq!(found, text);
    assert_eq!(report.matches("never produces").count(), 1, "{report}");
    let (is_ok, _, report) = model.output(&["a<one_more>", "--raw"]);
    assert!(!is_ok && report.contains("vocabulary"), "{report}");
    assert!(model.output(&["a<one_more>", "--raw", "--no-parse-special"]).0);
}

#[test]
fn a_template_that_does_not_parse_is_of_no_matter_to_raw_text() {
    let (text, _) = Model::new().says();
    let model = Model::new();
    fs::write(model.folder.path().join("chat_template.jinja"), "{{ broken").expect("room for a file");
    let (found, report) = model.says();
    assert_eq!(found, text);
    assert!(report.contains("--raw works without it"), "{report}");
    let (is_ok, _, report) = model.output(&["Hello"]);
    assert!(!is_ok && report.contains("cannot use the chat template"), "{report}");
}

/// The server starts with such a template, too: raw text has its answer, and chat is refused by the template's name.
#[test]
fn a_server_whose_template_does_not_parse_has_raw_routes() {
    let (text, _) = Model::new().says();
    let model = Model::new();
    fs::write(model.folder.path().join("chat_template.jinja"), "{{ broken").expect("room for a file");
    let server = http_server::Server::start(&[model.folder.path().to_str().expect("UTF-8")]);
    let body = json!({ "prompt": "Once upon a time", "temperature": 0, "max_tokens": 24 });
    let answer = server.post("/v1/completions", &body);
    let found = answer["choices"][0]["text"].as_str().expect("a text");
    assert_eq!(found.trim(), text.trim(), "{answer}");
    let chat = json!({ "messages": [{ "role": "user", "content": "Hello" }] });
    let (status, answer) = server.send("POST", "/v1/chat/completions", &chat.to_string());
    assert!((400..500).contains(&status) && answer.contains("template"), "{status}: {answer}");
}

/// A GGUF model in parts, named by any of them or by their folder, is the model in one file: in `run`, `inspect`, `eval` and
/// `serve`.
#[test]
fn a_model_in_parts_is_the_model_in_one_file_in_every_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let whole = at("whole.gguf");
    process::succeed(&["quantize", BUILTIN, "-F", "q8_0", "-o", &whole]);
    let parts = at("parts");
    fs::create_dir(&parts).expect("a folder");
    let part = |no: usize| format!("{parts}/m-{no:05}-of-00003.gguf");
    split(&whole, part);

    // What it says beside is no matter here.
    let printed = |args: &[&str]| {
        let output = process::output(args);
        assert!(output.status.success(), "{args:?}: {}", process::text(&output.stderr));
        process::text(&output.stdout)
    };
    let run = |model: &str| printed(&["run", model, "Once upon a time", "--raw", "--temp", "0", "-n", "24"]);
    let text = run(&whole);
    assert!(text.split_whitespace().count() > 10, "{text}");
    for model in [part(1), part(2), part(3), parts.clone()] {
        assert_eq!(run(&model), text, "{model}");
    }
    let weights = |model: &str| {
        let found: Value =
            serde_json::from_str(&printed(&["inspect", model, "--output-format", "json"])).expect("JSON");
        found["tensors"].as_array().map(Vec::len).unwrap_or_else(|| panic!("tensors in {found}"))
    };
    assert_eq!(weights(&part(2)), weights(&whole));
    let story = at("story.txt");
    fs::write(&story, text.repeat(8)).expect("room for a text");
    let perplexity = |model: &str| {
        let found = printed(&["eval", model, "-f", &story, "--ctx-size", "32", "-o", "json"]);
        serde_json::from_str::<Value>(&found).expect("one JSON object")["perplexity"].clone()
    };
    assert!(perplexity(&part(3)) == perplexity(&whole) && perplexity(&whole).is_f64());
    let server = http_server::Server::start(&[&part(2)]);
    let body = json!({ "prompt": "Once upon a time", "temperature": 0, "max_tokens": 24 });
    let answer = server.post("/v1/completions", &body);
    let found = answer["choices"][0]["text"].as_str().expect("a text");
    assert!(text.contains(found.trim()), "{text} {answer}");

    // Without one of them there is no model, and the message names it.
    fs::remove_file(part(2)).expect("it is there");
    for command in [&["run", &part(1), "a"][..], &["eval", &parts, "-f", &story], &["inspect", &part(3)]] {
        let output = process::output(command);
        let report = process::text(&output.stderr);
        assert!(!output.status.success() && report.contains("m-00002-of-00003.gguf"), "{command:?}: {report}");
    }
}

/// Splits a file into three parts. The first part has the metadata, and each has a third of the tensors.
fn split(whole: &str, part: impl Fn(usize) -> String) {
    use formats::gguf::{Gguf, GgufWriter, Value};
    let whole = Gguf::read(fs::read(whole).expect("it is there").into()).expect("a GGUF file");
    let third = whole.tensors().len().div_ceil(3);
    for (no, tensors) in whole.tensors().chunks(third).enumerate() {
        let mut writer = GgufWriter::new();
        for (key, value) in whole.metadata().iter().filter(|_| no == 0) {
            writer.metadata(key, value.clone());
        }
        writer.metadata("split.no", Value::U16(no as u16)).metadata("split.count", Value::U16(3));
        for info in tensors {
            let bytes = whole.tensor_bytes(info).expect("a tensor of the file");
            writer.raw_tensor(info.name(), info.ggml_type(), info.dims(), bytes);
        }
        fs::write(part(no + 1), writer.to_bytes()).expect("room for a part");
    }
}

/// What changes the mathematics and is not computed is refused.
#[test]
fn a_field_that_would_change_the_text_is_refused_by_name() {
    let model = Model::new();
    model.change("config.json", |config| config["final_logit_softcapping"] = json!(30.0));
    let (is_ok, _, report) = model.output(&["a", "--raw"]);
    assert!(!is_ok && report.contains("`final_logit_softcapping` is 30"), "{report}");
}

/// Positions that are stretched: by flags, by config.json and by the GGUF file that is made of it, the text is the same.
#[test]
fn positions_are_stretched_by_flags_and_by_files_alike() {
    let longrope = |factor: f64| {
        let factors: Vec<f64> = (0..32).map(|pair| 1.0 + factor * f64::from(pair)).collect();
        json!(factors)
    };
    let flags: [&[&str]; 3] = [
        &["--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "16"],
        &["--rope-scale", "2"],
        // Nothing stretches as LongRoPE by a flag.
        &[],
    ];
    let scalings = [
        json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16 }),
        json!({ "type": "linear", "factor": 2.0 }),
        json!({
            "type": "longrope", "factor": 2.0, "original_max_position_embeddings": 1024,
            "short_factor": longrope(0.0), "long_factor": longrope(0.1),
        }),
    ];
    let plain = Model::new();
    let prompt = "Once upon a time there was a little fox who";
    let (plain_text, _) = plain.says_after(prompt, &[]);
    for (flags, scaling) in flags.into_iter().zip(scalings) {
        let model = Model::new();
        model.change("config.json", |config| config["rope_scaling"] = scaling.clone());
        let (text, _) = model.says_after(prompt, &[]);
        assert_ne!(text, plain_text, "{scaling}");
        if !flags.is_empty() {
            assert_eq!(plain.says_after(prompt, flags).0, text, "{flags:?}");
        }
        let folder = model.folder.path();
        let file = folder.join("model.gguf");
        let (folder, file) = (folder.to_str().expect("UTF-8"), file.to_str().expect("UTF-8"));
        process::succeed(&["quantize", folder, "-F", "bf16", "--plain", "-o", file]);
        let run = |path: &str, more: &[&str]| {
            let common = ["run", path, "--raw", "--temp", "0", "-n", "24", prompt];
            let output = process::output(&[&common[..], more].concat());
            assert!(output.status.success(), "{}", process::text(&output.stderr));
            process::text(&output.stdout)
        };
        assert_eq!(run(file, &[]), text, "{scaling}");
        if scaling["type"] == "longrope" {
            // Within the trained context the short factors count, which are 1 here; scores are larger still.
            let short = run(folder, &["--ctx-size", "1024"]);
            assert_ne!(short, text);
            assert_eq!(run(file, &["--ctx-size", "1024"]), short);
        }
    }
    // Of a context that the model was not made for it gets what it was made for, and the way to have all is said, once.
    let (is_ok, text, report) = plain.output(&[prompt, "--raw", "--ctx-size", "5000"]);
    assert!(is_ok && text == plain_text, "{text}\n{plain_text}\n{report}");
    let told: Vec<_> = report.lines().filter(|line| line.contains("5000")).collect();
    assert!(
        matches!(*told, [line] if line.contains("2048") && line.contains("--rope-scaling yarn --rope-scale 3")),
        "{report}"
    );
    // Who stretches it too little has said what it is to be, and is refused.
    let stretched = ["--rope-scaling", "yarn", "--rope-scale", "2"];
    let (is_ok, _, report) = plain.output(&[&[prompt, "--raw", "--ctx-size", "5000"], &stretched[..]].concat());
    assert!(!is_ok && report.contains("--rope-scaling yarn --rope-scale 2"), "{report}");
    assert!(plain.output(&[prompt, "--raw", "--ctx-size", "5000", "--rope-scaling", "yarn", "--rope-scale", "3"]).0);
}
