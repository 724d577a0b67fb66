//! `vocab.json` with `merges.txt`, against the `tokenizer.json` that says the same.

use serde_json::{Value, json};
use tokenizer::{LoadOptions, ParseSpecial, SideFiles, Tokenizer, TokenizerError};

use crate::common::{added, byte_level_json, read_gguf_vocabulary, test_data};

const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEXT: &str =
    "<|im_start|>he said hello, we'LL see 123 it's\n\n  over  <think>\t e\u{301} é 中文 😀<|im_end|><|endoftext|> ";

/// The files of a vocabulary; each may be left out or be something else.
#[derive(Clone)]
struct Files {
    vocab: String,
    merges: String,
    config: Value,
    added: Option<Value>,
    map: Option<Value>,
}

impl Files {
    /// Those that say what `json` says.
    fn of(json: &Value, config: Value) -> Self {
        let merges = json["model"]["merges"].as_array().expect("merges");
        let lines: Vec<&str> = merges.iter().map(|merge| merge.as_str().expect("a pair")).collect();
        let merges = format!("#version: 0.2\n{}\n", lines.join("\n"));
        Self { vocab: json["model"]["vocab"].to_string(), merges, config, added: None, map: None }
    }

    fn load(&self) -> Result<Tokenizer, TokenizerError> {
        let bytes = |json: &Value| json.to_string().into_bytes();
        let (config, added, map) = (bytes(&self.config), self.added.as_ref().map(bytes), self.map.as_ref().map(bytes));
        let beside = SideFiles {
            tokenizer_config: Some(&config),
            added_tokens: added.as_deref(),
            special_tokens_map: map.as_deref(),
        };
        let options = LoadOptions::default();
        Tokenizer::from_vocab_merges(self.vocab.as_bytes(), self.merges.as_bytes(), beside, &options)
    }
}

fn words() -> Value {
    byte_level_json(&["he", "hello", " said", " we", "over", "'LL", " 1", "<|endoftext|>"], json!({}))
}

fn same(files: &Files, json: &Value, config: &Value) {
    let found = files.load().expect("good files");
    let config = config.to_string();
    let expected = Tokenizer::from_json(json.to_string().as_bytes(), Some(config.as_bytes()), &LoadOptions::default());
    let expected = expected.expect("a good tokenizer.json");
    for special in [ParseSpecial::Yes, ParseSpecial::No] {
        let ids = found.encode(TEXT, special).expect("covered");
        assert_eq!(ids, expected.encode(TEXT, special).expect("covered"), "{special:?}");
        for skip in [false, true] {
            assert_eq!(found.decode(&ids, skip), expected.decode(&ids, skip));
        }
    }
    assert_eq!(found.vocab_size(), expected.vocab_size());
    let roles = |t: &Tokenizer| (t.bos_id(), t.eos_ids().to_vec(), t.pad_id(), t.unk_id(), t.prefix_ids().to_vec());
    assert_eq!(roles(&found), roles(&expected));
}

/// Qwen's: three tokens after those of `vocab.json`, one of which is not special.
fn qwen() -> (Files, Value, Value) {
    let mut json = words();
    let size = json["model"]["vocab"].as_object().expect("a vocabulary").len() as u32;
    let texts = ["<|im_start|>", "<|im_end|>", "<think>"];
    let tokens: Vec<Value> = (size..)
        .zip(texts)
        .map(|(id, text)| added(id, text, json!({"special": text != "<think>", "rstrip": text == "<think>"})))
        .collect();
    let mut config = json!({"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "bos_token": null,
        "pad_token": {"content": "<|endoftext|>"}, "unk_token": null, "added_tokens_decoder": {}});
    for token in &tokens {
        let mut entry = token.clone();
        let id = entry.as_object_mut().expect("an object").remove("id").expect("an id");
        config["added_tokens_decoder"][id.to_string()] = entry;
    }
    let files = Files::of(&json, config.clone());
    let end = json["model"]["vocab"]["<|endoftext|>"].as_u64().expect("an id") as u32;
    json["added_tokens"] = [vec![added(end, "<|endoftext|>", json!({}))], tokens].concat().into();
    json["normalizer"] = json!({"type": "NFC"});
    json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
    ]});
    (files, json, config)
}

#[test]
fn qwens_files_give_the_tokens_of_its_tokenizer_json() {
    let (files, json, config) = qwen();
    same(&files, &json, &config);
    let windows = Files { merges: files.merges.replace('\n', "\r\n"), ..files };
    same(&windows, &json, &config);
}

#[test]
fn added_tokens_and_the_map_stand_in_for_an_old_configuration() {
    let (mut files, json, config) = qwen();
    let decoder = files.config.as_object_mut().expect("an object").remove("added_tokens_decoder").expect("tokens");
    let ids = decoder.as_object().expect("tokens");
    let by_text = ids.iter().map(|(id, token)| {
        (token["content"].as_str().expect("a text").to_owned(), json!(id.parse::<u32>().expect("an id")))
    });
    files.added = Some(Value::Object(by_text.collect()));
    files.map = Some(json!({"additional_special_tokens": ["<|im_start|>", {"content": "<|im_end|>"}]}));
    // These files say nothing of spaces after a token.
    let mut json = json;
    let last = json["added_tokens"].as_array_mut().expect("tokens").last_mut().expect("<think>");
    last["rstrip"] = false.into();
    last["normalized"] = true.into();
    same(&files, &json, &config);
}

#[test]
fn gpt2s_files_give_the_tokens_of_its_tokenizer_json() {
    let mut json = words();
    let config = json!({"tokenizer_class": "GPT2TokenizerFast", "add_bos_token": true});
    let files = Files::of(&json, config);
    let end = json["model"]["vocab"]["<|endoftext|>"].as_u64().expect("an id") as u32;
    json["added_tokens"] = json!([added(end, "<|endoftext|>", json!({}))]);
    let token = "<|endoftext|>";
    same(&files, &json, &json!({"bos_token": token, "eos_token": token, "unk_token": token, "add_bos_token": true}));
}

#[test]
fn gpt2s_real_vocabulary() {
    let Some(file) = test_data("vocab/ggml-vocab-gpt-2.gguf") else { return };
    let gguf = read_gguf_vocabulary(&file);
    let vocab: serde_json::Map<String, Value> =
        gguf.tokens.iter().map(str::to_owned).zip((0u32..).map(Value::from)).collect();
    let merges: Vec<&str> = gguf.merges.iter().collect();
    let files = Files {
        vocab: Value::from(vocab).to_string(),
        merges: format!("#version: 0.2\n{}", merges.join("\n")),
        config: json!({"tokenizer_class": "GPT2Tokenizer"}),
        added: None,
        map: None,
    };
    let found = files.load().expect("GPT-2's files");
    let expected = Tokenizer::from_gguf(gguf).expect("a good vocabulary");
    let texts = std::fs::read_to_string(format!("{}.inp", file.display())).expect("test data");
    let ids = found.encode(&texts, ParseSpecial::No).expect("covered");
    assert_eq!(ids, expected.encode(&texts, ParseSpecial::No).expect("covered"));
    assert_eq!((found.eos_ids(), found.bos_id()), (&[50256][..], Some(50256)));
}

#[test]
fn what_is_wrong_is_named() {
    let (good, ..) = qwen();
    let with = |change: &dyn Fn(&mut Files)| {
        let mut files = good.clone();
        change(&mut files);
        files
    };
    let cases = [
        (with(&|f| f.config["tokenizer_class"] = "XLMTokenizer".into()), "`tokenizer_class` is `XLMTokenizer`"),
        (with(&|f| f.config = json!({})), "`tokenizer_class` is missing"),
        (with(&|f| f.merges.push_str("a b c\n")), "`merges.txt`: field `line"),
        (with(&|f| f.merges.push_str("qqq a\n")), "`merges.txt`: field `model.merges` is not usable: token `qqq`"),
        (with(&|f| f.vocab.truncate(100)), "`vocab.json` cannot be read"),
        (with(&|f| f.vocab = r#"{"a": -1}"#.into()), "`vocab.json` cannot be read"),
        (with(&|f| f.vocab = r#"{"a": 4294967295}"#.into()), "`vocab.json`"),
        (with(&|f| f.config["eos_token"] = "<|no|>".into()), "`eos_token` names `<|no|>`"),
        (with(&|f| f.config["added_tokens_decoder"]["x"] = json!({"content": "x"})), "`added_tokens_decoder.x`"),
        (with(&|f| f.config["added_tokens_decoder"]["7"] = json!({"content": ""})), "has no text"),
        (with(&|f| f.config["added_tokens_decoder"]["7"] = json!({"content": "<think>"})), "gives `<think>` two ids"),
        (with(&|f| f.added = Some(json!({"<x>": "y"}))), "`added_tokens.json`: field `<x>` has no id"),
        (with(&|f| f.added = Some(json!([]))), "`added_tokens.json` cannot be read"),
        (with(&|f| f.map = Some(json!(3))), "`special_tokens_map.json` cannot be read"),
    ];
    for (files, expected) in cases {
        let error = files.load().expect_err(expected).to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let merges = [good.merges.as_bytes(), b"\xFF \xFE"].concat();
    let config = good.config.to_string();
    let beside = SideFiles { tokenizer_config: Some(config.as_bytes()), ..SideFiles::default() };
    let error = Tokenizer::from_vocab_merges(good.vocab.as_bytes(), &merges, beside, &LoadOptions::default());
    assert!(error.expect_err("no text").to_string().contains("is not UTF-8"));
}
