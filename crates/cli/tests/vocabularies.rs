//! Models whose vocabulary is not in `tokenizer.json`: they run, and become GGUF files and folders that give the same text.
//! What a vocabulary says of the texts around a prompt: where they end, and which tokens mark a gap in one.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use http_server::Server;
use serde_json::{Value, json};

mod http_server;
mod process;

const BUILTIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/builtin");

fn builtin(name: &str) -> Value {
    serde_json::from_slice(&fs::read(Path::new(BUILTIN).join(name)).expect("it is there")).expect("JSON")
}

/// A folder with the weights of the built-in model and these files.
fn model(folder: &Path, files: &[(&str, Vec<u8>)]) -> String {
    fs::create_dir_all(folder).expect("room for a folder");
    for file in ["config.json", "model.safetensors"] {
        fs::copy(Path::new(BUILTIN).join(file), folder.join(file)).expect("room for a file");
    }
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes).expect("room for a file");
    }
    folder.to_str().expect("a path in UTF-8").to_owned()
}

/// What the model says after a text, without a chat template.
fn continued(model: &str) -> String {
    run(&[model, "Once upon a time", "--raw", "--temp", "0", "-n", "24"])
}

/// What a run prints that succeeds; it reports its speed beside.
fn run(args: &[&str]) -> String {
    let output = process::output(&[&["run"], args].concat());
    assert!(output.status.success(), "{args:?}: {}", process::text(&output.stderr));
    process::text(&output.stdout)
}

/// Runs the model, and makes of it a GGUF file and a folder that say the same.
fn runs_everywhere(source: &str, described: &str) -> String {
    let inspected = process::succeed(&["inspect", source]);
    assert!(inspected.contains(described), "{inspected}");
    let text = continued(source);
    for (output, more) in [("out.gguf", &[][..]), ("out", &["--to", "safetensors"])] {
        let output = format!("{source}-{output}");
        process::succeed(&[&["quantize", source, "-F", "bf16", "--plain", "-o", &output], more].concat());
        assert_eq!(continued(&output), text, "{output}");
    }
    text
}

#[test]
fn vocab_and_merges_say_what_tokenizer_json_says() {
    let json = builtin("tokenizer.json");
    let merges = json["model"]["merges"].as_array().expect("pairs");
    let word = |pair: &Value, at: usize| pair[at].as_str().expect("a token").to_owned();
    let merges: Vec<String> = merges.iter().map(|pair| format!("{} {}", word(pair, 0), word(pair, 1))).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let files = [
        ("vocab.json", json["model"]["vocab"].to_string().into_bytes()),
        ("merges.txt", format!("#version: 0.2\n{}\n", merges.join("\n")).into_bytes()),
        ("tokenizer_config.json", builtin("tokenizer_config.json").to_string().into_bytes()),
    ];
    let source = model(&folder.path().join("model"), &files);
    let text = runs_everywhere(&source, "vocab.json");
    let whole = ["tokenizer.json", "tokenizer_config.json"].map(|name| (name, builtin(name).to_string().into_bytes()));
    assert_eq!(text, continued(&model(&folder.path().join("whole"), &whole)));
}

#[test]
fn mistrals_file_runs_and_asks_for_a_chat_template() {
    let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    tokens.extend(["On", "ce", "Once", " t", "im", "ime", " time"].map(|token| token.as_bytes().to_vec()));
    let base64 = base64::engine::general_purpose::STANDARD;
    let vocab: Vec<Value> = tokens
        .iter()
        .enumerate()
        .map(|(rank, bytes)| json!({"rank": rank, "token_bytes": base64.encode(bytes), "token_str": null}))
        .collect();
    let pattern = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let config = json!({"pattern": pattern, "default_vocab_size": 1000 + vocab.len(), "default_num_special_tokens": 1000,
        "version": "v3"});
    let file = json!({"config": config, "vocab": vocab});
    let folder = tempfile::tempdir().expect("a folder");
    let source = model(&folder.path().join("model"), &[("tekken.json", file.to_string().into_bytes())]);
    runs_everywhere(&source, "tekken.json");
    let chat = process::output(&["run", &source, "Hello"]);
    assert!(!chat.status.success() && process::text(&chat.stderr).contains("--chat-template"));
    fs::write(folder.path().join("model/chat_template.jinja"), "{{ messages[0].content }}").expect("room for a file");
    run(&[&source, "Hello", "-n", "4"]);
}

#[test]
fn sentence_pieces_file_runs() {
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
    let piece = |text: &str, score: f32, kind: u8| {
        let score = [&[2 << 3 | 5][..], &score.to_le_bytes()].concat();
        field(1, &[field(1, text.as_bytes()), score, vec![3 << 3, kind]].concat())
    };
    let mut pieces = vec![piece("<unk>", 0.0, 2), piece("<s>", 0.0, 3), piece("</s>", 0.0, 3)];
    pieces.extend((0..=255u8).map(|byte| piece(&format!("<0x{byte:02X}>"), 0.0, 6)));
    let letters = "▁abcdefghijklmnopqrstuvwxyzO".chars().map(|letter| piece(&letter.to_string(), -20.0, 1));
    pieces.extend(letters);
    pieces.extend(["On", "ce", "Once", "▁t", "im", "ime", "▁time"].iter().zip(1u8..).map(|(text, rank)| {
        let score = -f32::from(rank);
        piece(text, score, 1)
    }));
    // BPE; identity, with a space before a text, and spaces kept.
    let specs = [field(2, &[3 << 3, 2]), field(3, &[3 << 3, 1, 4 << 3, 0])].concat();
    let folder = tempfile::tempdir().expect("a folder");
    let file = [pieces.concat(), specs].concat();
    let source = model(&folder.path().join("model"), &[("tokenizer.model", file)]);
    runs_everywhere(&source, "tokenizer.model");
}

/// A vector is one of the whole text: where the file says that texts end with EOS, EOS is part of it. A text that is
/// continued does not end.
#[test]
fn a_gguf_that_ends_its_texts_with_eos_embeds_them_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let source = path.to_str().expect("a path in UTF-8");
    process::succeed(&["quantize", BUILTIN, "-F", "bf16", "--plain", "-o", source]);
    let mut file = fs::read(&path).expect("it was written");
    let key = b"tokenizer.ggml.add_eos_token";
    let at = file.windows(key.len()).position(|window| window == key).expect("the key") + key.len();
    // A value of type 7, a boolean of one byte.
    assert_eq!(file[at..at + 5], [7, 0, 0, 0, 0]);
    file[at + 4] = 1;
    let ending = folder.path().join("ending.gguf");
    fs::write(&ending, file).expect("room for a file");
    let ending = ending.to_str().expect("a path in UTF-8");

    let server = Server::start(&[source, ending, "--alias", "plain", "--alias", "ending"]);
    let text = "The moon was out.";
    let ids = server.post("/tokenize", &json!({"prompt": text}))["tokens"].as_array().expect("ids").clone();
    let (status, info) = server.get("/tokenizer_info?model=ending");
    let info: Value = serde_json::from_str(&info).expect("JSON");
    assert_eq!(status, 200, "{info}");
    let with_end: Vec<Value> = ids.iter().chain([&info["eos"][0]["id"]]).cloned().collect();
    let embed = |model: &str, input: Value| {
        let body = json!({"model": model, "input": input, "pooling": "last"});
        let answer = server.post("/v1/embeddings", &body);
        (answer["data"][0]["embedding"].clone(), answer["usage"]["prompt_tokens"].as_u64().expect("a count") as usize)
    };
    let (ended, count) = embed("ending", json!(text));
    assert_eq!(count, ids.len() + 1);
    assert_eq!(ended, embed("ending", json!(with_end)).0);
    // Token ids are taken as they are.
    let (as_given, count) = embed("ending", json!(ids));
    assert_eq!(count, ids.len());
    assert_ne!(as_given, ended);
    assert_eq!(embed("plain", json!(text)), (as_given, ids.len()));
    let continued = server.post("/v1/completions", &json!({"model": "ending", "prompt": text, "max_tokens": 1}));
    assert_eq!(continued["usage"]["prompt_tokens"], ids.len());
}

#[test]
fn a_text_is_written_between_two_others_where_the_vocabulary_marks_a_gap() {
    let mut json = builtin("tokenizer.json");
    let unmarked = json.clone();
    // Three tokens that the texts below do not need become marks; the model was not trained with them, and says
    // anything.
    let names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
    let vocab = json["model"]["vocab"].as_object_mut().expect("tokens");
    vocab.retain(|_, id| id.as_u64().is_some_and(|id| id < 4093));
    let vocab = vocab.clone();
    let is_there = |pair: &Value| {
        let [left, right] = [0, 1].map(|at| pair[at].as_str().expect("a token"));
        [left, right, &format!("{left}{right}")].iter().all(|token| vocab.contains_key(*token))
    };
    json["model"]["merges"].as_array_mut().expect("pairs").retain(is_there);
    for (id, name) in (4093..).zip(names) {
        let token = json!({"id": id, "content": name, "special": false, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false});
        json["added_tokens"].as_array_mut().expect("a list").push(token);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let files = |tokenizer: &Value| {
        let config = builtin("tokenizer_config.json").to_string().into_bytes();
        [("tokenizer.json", tokenizer.to_string().into_bytes()), ("tokenizer_config.json", config)]
    };
    let coder = model(&folder.path().join("coder"), &files(&json));
    let ids = |args: &[&str]| -> Vec<u64> {
        let args = [&["--temp", "0", "-n", "2", "--output-format", "json"], args].concat();
        let answer: Value = serde_json::from_str(&run(&args)).expect("JSON");
        answer["prompt_token_ids"].as_array().expect("ids").iter().filter_map(Value::as_u64).collect()
    };
    let (before, behind) = ("The moon", " was out.");
    let [before_ids, behind_ids] = [before, behind].map(|text| ids(&[&coder, "--raw", "-p", text]));
    let expected = [&[4093][..], &before_ids, &[4094], &behind_ids, &[4095]].concat();
    assert_eq!(ids(&[&coder, "-p", before, "--suffix", behind]), expected);
    assert_eq!(ids(&[&coder, "--raw", "-p", before, "--suffix", behind]), expected);
    assert_eq!(ids(&[&coder, "--suffix", behind])[..2], [4093, 4094]);
    // The file that is made of it names the marks by id.
    let file = folder.path().join("coder.gguf");
    let path = file.to_str().expect("a path in UTF-8");
    process::succeed(&["quantize", &coder, "-F", "bf16", "--plain", "-o", path]);
    let metadata: Value =
        serde_json::from_str(&process::succeed(&["inspect", path, "--output-format", "json"])).expect("JSON");
    for (key, id) in [("pre", 4093), ("suf", 4094), ("mid", 4095)] {
        let key = format!("tokenizer.ggml.fim_{key}_token_id");
        assert_eq!(metadata["metadata"][&key], id.to_string(), "{key}: {}", metadata["metadata"]);
    }
    assert_eq!(ids(&[path, "-p", before, "--suffix", behind]), expected);
    let plain = model(&folder.path().join("plain"), &files(&unmarked));
    let refused = process::output(&["run", &plain, "-p", before, "--suffix", behind]);
    let message = process::text(&refused.stderr);
    assert!(!refused.status.success() && message.contains("--suffix") && message.contains("no tokens"), "{message}");
}
