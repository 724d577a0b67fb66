//! Malformed safetensors.

use bytes::Bytes;
use formats::safetensors::Safetensors;

use crate::{Report, valid};

/// A file with this header and `data` bytes of zeros.
fn file(header: &str, data: usize) -> Bytes {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes.into()
}

/// The header's entry of one tensor.
fn entry(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

fn folder_with(weights: Bytes) -> Vec<(&'static str, Bytes)> {
    let mut folder = valid::folder();
    folder[1].1 = weights;
    folder
}

#[test]
fn header() {
    let mut report = Report::new();
    let mut refuses = |what: &str, weights: Bytes| report.refuses(what, &folder_with(weights));
    refuses("no bytes", Bytes::new());
    refuses("cut in the header length", Bytes::from_static(&[1, 0, 0, 0]));
    refuses("cut in the header", Bytes::from_static(b"\x10\0\0\0\0\0\0\0{\"a\":"));
    refuses("a header of 2^64 - 1 bytes", Bytes::from(vec![0xff; 64]));
    refuses("a header of 100,000,001 bytes", Bytes::copy_from_slice(&100_000_001u64.to_le_bytes()));
    refuses("a header without bytes", file("", 0));
    refuses("a list", file("[]", 0));
    refuses("a number", file("7", 0));
    refuses("not UTF-8", Bytes::from_static(b"\x09\0\0\0\0\0\0\0{\"\xff\xfe\": 1}"));
    refuses("JSON that ends early", file(r#"{"x":{"dtype":"F32""#, 0));
    refuses("text after the JSON", file("{} {}", 0));
    refuses("brackets 1,000 deep", file(&format!(r#"{{"x":{}"#, "[".repeat(1000)), 0));
    refuses("a tensor that is a number", file(r#"{"x":1}"#, 0));
    refuses("an unknown field", file(r#"{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1]}}"#, 1));
    refuses("a missing field", file(r#"{"x":{"dtype":"U8","shape":[1]}}"#, 1));
    refuses("a field twice", file(r#"{"x":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}"#, 1));
    refuses("metadata that is a number", file(r#"{"__metadata__":{"a":1}}"#, 0));
    refuses("metadata twice", file(r#"{"__metadata__":{},"__metadata__":{}}"#, 0));
    refuses("a metadata key twice", file(r#"{"__metadata__":{"a":"1","a":"2"}}"#, 0));
    insta::assert_snapshot!(report.0);
}

#[test]
fn tensors() {
    let mut report = Report::new();
    let mut refuses = |what: &str, entries: &[String], data: usize| {
        report.refuses(what, &folder_with(file(&format!("{{{}}}", entries.join(",")), data)));
    };
    refuses("cut in the data", &[entry("x", "F32", "[4]", 0, 16)], 15);
    refuses("bytes after the data", &[entry("x", "F32", "[4]", 0, 16)], 17);
    refuses("an offset past the end", &[entry("x", "F32", "[4]", 1 << 40, (1 << 40) + 16)], 16);
    refuses("offsets near 2^64", &[entry("x", "F32", "[4]", 0, u64::MAX)], 16);
    refuses("offsets the wrong way round", &[entry("x", "F32", "[4]", 16, 0)], 16);
    refuses("a negative offset", &[r#""x":{"dtype":"F32","shape":[4],"data_offsets":[-16,0]}"#.into()], 16);
    refuses("three offsets", &[r#""x":{"dtype":"F32","shape":[4],"data_offsets":[0,16,32]}"#.into()], 16);
    refuses("fewer bytes than the shape", &[entry("x", "F32", "[4,2]", 0, 16)], 16);
    refuses("a shape past 2^64", &[entry("x", "F32", "[4294967296,4294967296,4]", 0, 16)], 16);
    refuses("a dimension of -1", &[entry("x", "F32", "[-1]", 0, 16)], 16);
    refuses("a dimension of 1.5", &[entry("x", "F32", "[1.5]", 0, 16)], 16);
    refuses("seventeen dimensions", &[entry("x", "U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", 0, 1)], 1);
    refuses("a dimension of zero", &[entry("x", "F32", "[0,4]", 0, 0)], 0);
    refuses("half a byte", &[entry("x", "F4", "[3]", 0, 2)], 2);
    refuses("tensors that overlap", &[entry("a", "F32", "[4]", 0, 16), entry("b", "F32", "[4]", 8, 24)], 24);
    refuses("two tensors at one place", &[entry("a", "F32", "[4]", 0, 16), entry("b", "F32", "[4]", 0, 16)], 16);
    refuses("a hole", &[entry("a", "F32", "[4]", 0, 16), entry("b", "F32", "[4]", 20, 36)], 36);
    refuses("a tensor twice", &[entry("a", "F32", "[4]", 0, 16), entry("a", "F32", "[4]", 16, 32)], 32);
    refuses("an unknown type", &[entry("x", "F33", "[4]", 0, 16)], 16);
    refuses("a type that is not computed", &[entry("model.norm.weight", "F8_E4M3", "[16]", 0, 16)], 16);
    refuses("a scalar that is not computed", &[entry("step", "I64", "[]", 0, 8)], 8);
    let mut weights = file(&format!("{{{}}}", entry("norm", "BF16", "[4]", 0, 8)), 8).to_vec();
    let len = weights.len();
    weights[len - 4..len - 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    report.refuses("a norm with NaN", &folder_with(weights.into()));
    insta::assert_snapshot!(report.0);
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let file = valid::folder().remove(1).1;
    for len in 0..file.len() {
        assert!(Safetensors::read(file.slice(..len)).is_err(), "cut to {len} of {}", file.len());
    }
}
