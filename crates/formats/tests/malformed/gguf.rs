//! Malformed GGUF.

use bytes::Bytes;
use formats::gguf::{Array, Gguf, GgufWriter, Value};
use tensor::{Tensor, WeightFormat};

use crate::{Report, raw::Raw, valid};

const F32: u32 = 0;
const F16: u32 = 1;

fn refuses(report: &mut Report, what: &str, file: Bytes) {
    report.refuses(what, &[("model.gguf", file)]);
}

/// A file whose one key is the architecture, so that what follows is what is wrong.
fn llama(tensors: u64, more_keys: u64) -> Raw {
    Raw::gguf(tensors, 1 + more_keys).key_string("general.architecture", "llama")
}

#[test]
fn header() {
    let mut report = Report::new();
    let mut refuses = |what: &str, file: Bytes| refuses(&mut report, what, file);
    refuses("no bytes", Bytes::new());
    refuses("two bytes", Bytes::from_static(b"GG"));
    refuses("another magic number", Raw::default().bytes(b"ggjt").u32(3).u64(0).u64(0).done());
    refuses("a safetensors file under this name", valid::folder().remove(1).1);
    refuses("version 1", Raw::default().bytes(b"GGUF").u32(1).u32(0).u32(0).done());
    refuses("version 4", Raw::default().bytes(b"GGUF").u32(4).u64(0).u64(0).done());
    refuses("big-endian version 3", Raw::default().bytes(b"GGUF\0\0\0\x03").u64(0).u64(0).done());
    refuses("cut in the version", Raw::default().bytes(b"GGUF\x03").done());
    refuses("cut in the tensor count", Raw::default().bytes(b"GGUF").u32(3).u32(0).done());
    refuses("cut in the key count", Raw::default().bytes(b"GGUF").u32(3).u64(0).u32(0).done());
    refuses("2^64 - 1 tensors", Raw::gguf(u64::MAX, 0).done());
    refuses("2^64 - 1 keys", Raw::gguf(0, u64::MAX).done());
    refuses("more tensors than bytes", Raw::gguf(1000, 0).done());
    refuses("more keys than bytes", Raw::gguf(0, 1000).done());
    refuses("no architecture", Raw::gguf(0, 0).done());
    refuses("an architecture that is a number", Raw::gguf(0, 1).key_u32("general.architecture", 7).done());
    insta::assert_snapshot!(report.0);
}

#[test]
fn metadata() {
    let mut report = Report::new();
    let mut refuses = |what: &str, file: Bytes| refuses(&mut report, what, file);
    let pad = [0; 64];
    refuses("cut in a key", Raw::gguf(0, 1).u64(20).bytes(b"general.archi").done());
    refuses("cut in a value type", Raw::gguf(0, 1).string("general.architecture").bytes(&[8, 0]).done());
    refuses("cut in a string", llama(0, 1).key("general.name", 8).u64(100).bytes(b"short").done());
    refuses("cut in an array", llama(0, 1).key("x.array", 9).u32(4).u64(1000).bytes(&pad).done());
    refuses("cut in an array of strings", {
        llama(0, 1).key("x.array", 9).u32(8).u64(2).string("a").u64(9).bytes(b"b").done()
    });
    refuses("cut in a number", llama(0, 1).key("x.number", 10).u32(0).done());
    refuses("a key of 2^64 - 1 bytes", Raw::gguf(0, 1).u64(u64::MAX).bytes(&pad).done());
    refuses("a key of 70,000 bytes", Raw::gguf(0, 1).key_u32(&"k".repeat(70_000), 1).done());
    refuses("a string of 2^64 - 1 bytes", llama(0, 1).key("general.name", 8).u64(u64::MAX).bytes(&pad).done());
    refuses("an array of 2^62 numbers", llama(0, 1).key("x.array", 9).u32(10).u64(1 << 62).bytes(&pad).done());
    refuses("an array of 2^40 empty strings", llama(0, 1).key("x.array", 9).u32(8).u64(1 << 40).bytes(&pad).done());
    refuses("a key that is not UTF-8", Raw::gguf(0, 1).u64(2).bytes(b"\xff\xfe").u32(4).u32(0).done());
    refuses("a string that is not UTF-8", llama(0, 1).key("general.name", 8).u64(2).bytes(b"\xc3(").done());
    refuses("a token that is not UTF-8", {
        let keys = llama(0, 2).key_string("tokenizer.ggml.model", "gpt2");
        keys.key("tokenizer.ggml.tokens", 9).u32(8).u64(2).string("a").u64(1).bytes(b"\xff").done()
    });
    refuses("a key twice", llama(0, 2).key_u32("x.twice", 1).key_u32("x.twice", 2).done());
    refuses("a key with an escape sequence, twice", {
        llama(0, 2).key_u32("\u{1b}[2J\r\n", 1).key_u32("\u{1b}[2J\r\n", 2).done()
    });
    refuses("value type 13", llama(0, 1).key("x.new", 13).u64(0).done());
    refuses("element type 99", llama(0, 1).key("x.array", 9).u32(99).u64(1).u64(0).done());
    refuses("a boolean of 2", llama(0, 1).key("x.bool", 7).bytes(&[2]).done());
    refuses("arrays 65 deep", {
        let key = llama(0, 1).key("x.deep", 9);
        (0..65).fold(key, |raw, _| raw.u32(9).u64(1)).u32(4).u64(0).done()
    });
    refuses("an alignment of zero", llama(0, 1).key_u32("general.alignment", 0).done());
    refuses("an alignment of 24", llama(0, 1).key_u32("general.alignment", 24).done());
    refuses("an alignment of 2^31", llama(0, 1).key_u32("general.alignment", 1 << 31).done());
    refuses("a layer count that is a string", llama(0, 1).key_string("llama.block_count", "32").done());
    refuses("a negative head count", llama(0, 1).key("llama.attention.head_count", 5).u32(-4i32 as u32).done());
    refuses("an epsilon of NaN", {
        llama(0, 1).key("llama.attention.layer_norm_rms_epsilon", 6).bytes(&f32::NAN.to_le_bytes()).done()
    });
    refuses("heads that differ by layer", {
        let array = llama(0, 1).key("llama.attention.head_count", 9).u32(5).u64(2);
        array.u32(8).u32(4).done()
    });
    refuses("one part of a split file", {
        llama(0, 2).key("split.count", 2).bytes(&[3, 0]).key("split.no", 2).bytes(&[0, 0]).done()
    });
    insta::assert_snapshot!(report.0);
}

#[test]
fn vocabulary() {
    let mut report = Report::new();
    let mut refuses = |what: &str, changes: &[(&str, Value)]| {
        let mut writer = GgufWriter::new();
        writer.metadata("general.architecture", Value::String("llama".into()));
        writer.metadata("tokenizer.ggml.model", Value::String("llama".into()));
        changes.iter().for_each(|(key, value)| {
            writer.metadata(key, value.clone());
        });
        refuses(&mut report, what, writer.to_bytes());
    };
    let tokens = || ("tokenizer.ggml.tokens", Value::Array(Array::of_strings(["a", "b"])));
    refuses("no tokens", &[]);
    refuses("tokens that are numbers", &[("tokenizer.ggml.tokens", Value::Array(Array::of_i32(&[1])))]);
    refuses("tokens that are one string", &[("tokenizer.ggml.tokens", Value::String("ab".into()))]);
    refuses("fewer scores than tokens", &[tokens(), ("tokenizer.ggml.scores", Value::Array(Array::of_f32(&[1.0])))]);
    refuses("a score of NaN", &[tokens(), ("tokenizer.ggml.scores", Value::Array(Array::of_f32(&[1.0, f32::NAN])))]);
    let types = Value::Array(Array::of_i32(&[1, 1, 1]));
    refuses("more types than tokens", &[tokens(), ("tokenizer.ggml.token_type", types)]);
    refuses("an end token past the vocabulary", &[tokens(), ("tokenizer.ggml.eos_token_id", Value::U32(2))]);
    refuses("an end token of -1", &[tokens(), ("tokenizer.ggml.eos_token_id", Value::I32(-1))]);
    refuses("a flag that is a number", &[tokens(), ("tokenizer.ggml.add_bos_token", Value::U8(1))]);
    let list = Value::Array(Array::of_strings(["a"]));
    refuses("a template that is a list", &[tokens(), ("tokenizer.chat_template", list)]);
    insta::assert_snapshot!(report.0);
}

#[test]
fn tensors() {
    let mut report = Report::new();
    let mut refuses = |what: &str, file: Bytes| refuses(&mut report, what, file);
    refuses("cut in a tensor's name", llama(1, 0).u64(30).bytes(&[b'x'; 24]).done());
    refuses("cut in the dimensions", llama(1, 0).string("a-tensor-of-some-length").u32(2).u64(4).done());
    refuses("cut in the type", llama(1, 0).string("a-tensor-of-some-length").u32(1).u64(4).bytes(&[0]).done());
    refuses("cut in the offset", llama(1, 0).string("a-tensor-of-some-length").u32(1).u64(4).u32(F32).done());
    refuses("cut in the padding before the data", llama(1, 0).tensor("x", &[8], F32, 0).done());
    refuses("cut in the data", llama(1, 0).tensor("x", &[8], F32, 0).data(31).done());
    refuses("no dimensions", llama(1, 0).tensor("x", &[], F32, 0).data(64).done());
    refuses("five dimensions", llama(1, 0).tensor("x", &[1; 5], F32, 0).data(64).done());
    refuses("2^32 - 1 dimensions", llama(1, 0).string("x").u32(u32::MAX).bytes(&[1; 64]).done());
    refuses("a dimension of zero", llama(1, 0).tensor("x", &[8, 0], F32, 0).data(64).done());
    refuses("2^64 - 1 elements", llama(1, 0).tensor("x", &[u64::MAX], F32, 0).data(64).done());
    refuses("a product of dimensions past 2^64", llama(1, 0).tensor("x", &[1 << 40, 1 << 40], F32, 0).data(64).done());
    refuses("an offset past the end", llama(1, 0).tensor("x", &[8], F32, 1 << 40).data(64).done());
    refuses("an offset near 2^64", llama(1, 0).tensor("x", &[8], F32, u64::MAX - 31).data(64).done());
    refuses(
        "an offset that wraps with the data start",
        llama(1, 0).tensor("x", &[1], F16, u64::MAX - 63).data(64).done(),
    );
    refuses("an unaligned offset", llama(1, 0).tensor("x", &[8], F32, 4).data(64).done());
    refuses("tensors that overlap", {
        llama(2, 0).tensor("first", &[16], F32, 0).tensor("second", &[8], F32, 32).data(64).done()
    });
    refuses("a tensor inside another", {
        llama(2, 0).tensor("inner", &[8], F32, 32).tensor("outer", &[32], F32, 0).data(128).done()
    });
    refuses("two tensors at one place", {
        llama(2, 0).tensor("one", &[8], F32, 0).tensor("other", &[8], F32, 0).data(64).done()
    });
    refuses("a tensor twice", llama(2, 0).tensor("x", &[8], F32, 0).tensor("x", &[8], F32, 32).data(64).done());
    refuses("one tensor under both of its names", {
        let first = llama(2, 0).tensor("token_embd.weight", &[8], F32, 0);
        first.tensor("model.embed_tokens.weight", &[8], F32, 32).data(64).done()
    });
    refuses("a name that is not UTF-8", {
        llama(1, 0).u64(1).bytes(b"\xff").u32(1).u64(8).u32(F32).u64(0).data(64).done()
    });
    refuses("type 43", llama(1, 0).tensor("x", &[8], 43, 0).data(64).done());
    refuses("type 2^32 - 1", llama(1, 0).tensor("x", &[8], u32::MAX, 0).data(64).done());
    refuses("a removed type", llama(1, 0).tensor("x", &[32], 31, 0).data(64).done());
    refuses("a type that is not computed", llama(1, 0).tensor("blk.3.attn_q.weight", &[256], 22, 0).data(96).done());
    refuses("rows that are no whole blocks", llama(1, 0).tensor("x", &[33, 2], 8, 0).data(96).done());
    refuses("q rows that do not divide into heads", {
        let keys = llama(1, 1).key_u32("llama.attention.head_count", 3);
        keys.tensor("blk.0.attn_q.weight", &[4, 8], F32, 0).data(128).done()
    });
    refuses("no heads", {
        let keys = llama(1, 1).key_u32("llama.attention.head_count", 0);
        keys.tensor("blk.0.attn_q.weight", &[4, 8], F32, 0).data(128).done()
    });
    refuses("RoPE factors of zero", llama(1, 0).tensor("rope_freqs.weight", &[4], F32, 0).data(32).done());
    refuses("a million RoPE factors", llama(1, 0).tensor("rope_freqs.weight", &[1 << 20], F32, 0).data(4 << 20).done());
    refuses("RoPE factors in IQ2_S", llama(1, 0).tensor("rope_freqs.weight", &[256], 22, 0).data(96).done());
    for (what, bad) in [("a norm with NaN", f32::NAN), ("a norm with an infinity", f32::NEG_INFINITY)] {
        let mut writer = GgufWriter::new();
        writer.metadata("general.architecture", Value::String("llama".into()));
        let norm = Tensor::from_f32(WeightFormat::F32, vec![4], &[1.0, 1.0, bad, 1.0]).unwrap();
        writer.tensor("output_norm.weight", &norm);
        refuses(what, writer.to_bytes());
    }
    insta::assert_snapshot!(report.0);
}

#[test]
fn a_file_cut_anywhere_is_refused_and_its_header_is_still_read_once_it_is_whole() {
    let file = valid::gguf_writer("llama").to_bytes();
    let data_start = Gguf::read(file.clone()).unwrap().tensors()[0].range().start() as usize;
    // The last tensor's end; the rest is padding, which a file may leave out.
    let end = Gguf::read(file.clone()).unwrap().tensors().iter().map(|t| t.range().end()).max().unwrap() as usize;
    for len in 0..file.len() {
        assert_eq!(Gguf::read(file.slice(..len)).is_ok(), len >= end, "cut to {len} of {}", file.len());
    }
    for len in data_start..file.len() {
        assert!(Gguf::read_header(file.slice(..len)).is_ok(), "the header of a file cut to {len}");
    }
}
