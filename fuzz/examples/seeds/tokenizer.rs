//! Small vocabularies of each kind of file, with texts.

use serde_json::{Map, Value, json};

use crate::save;

const TEXT: &str = "Hello the\u{1} hello  w\u{1}orld's é\u{1}😀<|end|>\n\n12345 \u{1}<|e\u{1}nd|>x";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The bytes as GPT-2 writes them.
fn alphabet() -> Vec<char> {
    let plain = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let moved = (0x100..0x100 + 68).filter_map(char::from_u32);
    (0..=255u8).filter(plain).map(char::from).chain(moved).collect()
}

const MERGES: [&str; 8] = ["h e", "l l", "he ll", "hell o", "t he", "Ġ the", "i n", "Ġ w"];

fn vocabulary() -> Vec<String> {
    let merged = MERGES.iter().map(|merge| merge.replace(' ', ""));
    alphabet().into_iter().map(String::from).chain(merged).collect()
}

fn ids(tokens: &[String]) -> Map<String, Value> {
    tokens.iter().cloned().zip((0..).map(Value::from)).collect()
}

fn seed(name: &str, kind: u8, files: &[&[u8]], text: &str) {
    let mut seed = vec![kind];
    for file in files {
        seed.extend_from_slice(file);
        seed.push(0xff);
    }
    seed.extend_from_slice(text.as_bytes());
    save("tokenizer", name, &seed);
}

fn added(id: usize, content: &str, special: bool, strips: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": strips, "rstrip": strips,
        "normalized": !special, "special": special})
}

/// A field of SentencePiece's file that is a number, and one that is bytes.
fn number(field: u8, value: u8) -> Vec<u8> {
    vec![field << 3, value]
}

fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    [&[field << 3 | 2, value.len() as u8][..], value].concat()
}

fn sentence_piece() -> Vec<u8> {
    let piece = |text: &str, score: f32, kind: u8| {
        let score = [&[2 << 3 | 5][..], &score.to_le_bytes()].concat();
        bytes(1, &[bytes(1, text.as_bytes()), score, number(3, kind)].concat())
    };
    let mut file = [piece("<unk>", 0.0, 2), piece("<s>", 0.0, 3), piece("</s>", 0.0, 3)].concat();
    for byte in 0..=255u8 {
        file.extend(piece(&format!("<0x{byte:02X}>"), 0.0, 6));
    }
    for (rank, text) in ["▁", "e", "l", "o", "h", "he", "ll", "▁he", "▁hell", "▁hello", "<|end|>"].iter().enumerate()
    {
        file.extend(piece(text, -(rank as f32), if text.starts_with('<') { 4 } else { 1 }));
    }
    let trainer = [number(3, 2), vec![35 << 3 & 0xff | 0x80, 2, 1]].concat();
    let normalizer = [bytes(1, b"identity"), number(3, 1), number(4, 0), number(5, 1)].concat();
    [file, bytes(2, &trainer), bytes(3, &normalizer)].concat()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |group: &[u8]| {
        let bits = group.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - group.len()));
        let digit = |at: usize| if at > group.len() { '=' } else { DIGITS[bits >> (18 - 6 * at) & 63] as char };
        (0..4).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}

fn tekken() -> Value {
    let one: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    let more = [&b"he"[..], b"ll", b"hell", b"hello", b" the", b"\xc3\xa9", b"th"].map(<[u8]>::to_vec);
    let vocab: Vec<Value> = (one.into_iter().chain(more).enumerate())
        .map(|(rank, bytes)| json!({"rank": rank, "token_bytes": base64(&bytes), "token_str": null}))
        .collect();
    json!({"config": {"pattern": GPT2, "num_vocab_tokens": vocab.len(), "default_vocab_size": 4 + vocab.len(),
        "default_num_special_tokens": 4, "version": "v3"}, "vocab": vocab})
}

pub(crate) fn save_all() {
    let tokens = vocabulary();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let model = json!({"type": "BPE", "vocab": ids(&tokens), "merges": MERGES});
    let json = json!({"version": "1.0", "pre_tokenizer": byte_level, "decoder": byte_level, "model": model,
        "added_tokens": [added(tokens.len(), "<|end|>", true, false), added(tokens.len() + 1, "12", false, true)]});
    let config = br#"{"eos_token":"<|end|>","add_bos_token":false}"#;
    seed("byte_level", b'j', &[json.to_string().as_bytes(), config], TEXT);
    let split = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": GPT2}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]});
    let mut normalized = json.clone();
    normalized["normalizer"] = json!({"type": "NFC"});
    normalized["pre_tokenizer"] = split;
    seed("normalized", b'j', &[normalized.to_string().as_bytes(), b""], "e\u{301}\u{1}hello");
    let pieces = ["<unk>", "<s>", "▁", "h", "e", "l", "o", "he", "ll", "▁he", "▁hell", "▁hello"];
    let pieces: Vec<String> =
        pieces.into_iter().map(str::to_owned).chain((0..=255).map(|b| format!("<0x{b:02X}>"))).collect();
    let spaces = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]});
    let back = json!({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    let fallback = json!({"version": "1.0", "normalizer": spaces, "decoder": back, "pre_tokenizer": null,
        "added_tokens": [added(0, "<unk>", true, false), added(1, "<s>", true, false)],
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": ids(&pieces),
            "merges": ["h e", "l l", "▁ he", "▁he ll", "▁hell o"]}});
    seed("byte_fallback", b'j', &[fallback.to_string().as_bytes(), b""], TEXT);
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let scored = json!([["<unk>", 0.0], ["▁", -1.0], ["he", -2.0], ["h", -4.0], ["l", -3.0]]);
    let unigram = json!({"version": "1.0", "normalizer": null, "added_tokens": [], "pre_tokenizer": metaspace,
        "decoder": metaspace, "model": {"type": "Unigram", "unk_id": 0, "vocab": scored}});
    seed("unigram", b'j', &[unigram.to_string().as_bytes(), b""], "he\u{1} hell");
    seed("tekken", b't', &[tekken().to_string().as_bytes()], TEXT);
    let vocab = Value::from(ids(&tokens)).to_string();
    let merges = format!("#version: 0.2\n{}\n", MERGES.join("\n"));
    seed("vocab_merges", b'v', &[vocab.as_bytes(), merges.as_bytes(), br#"{"tokenizer_class":"GPT2Tokenizer"}"#], TEXT);
    seed("sentence_piece", b's', &[&sentence_piece()], "hello\u{1} é hell<|end|>");
    for pre in ["gpt-2", "llama-bpe", "qwen2", "deepseek-v3", "tekken", "gpt-4o"] {
        seed(
            &format!("gguf_{pre}"),
            b'g',
            &[pre.as_bytes(), tokens.join("\n").as_bytes(), MERGES.join("\n").as_bytes()],
            TEXT,
        );
    }
}
