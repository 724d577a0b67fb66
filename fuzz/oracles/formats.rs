//! What every input must satisfy, one function per fuzz target. The tests of `formats` replay the seeds through the
//! same functions.

use bytes::Bytes;
use formats::{
    Checkpoint,
    gguf::{Gguf, GgufWriter, vocabulary::GgufVocabulary},
    gguf_names::Architecture,
    safetensors::{Safetensors, rewrite},
};

/// Any bytes as a GGUF file. What is accepted can be written again, is accepted again, and then stays the same.
pub(crate) fn gguf_header(data: &[u8]) {
    let file = Bytes::copy_from_slice(data);
    let header = Gguf::read_header(file.clone());
    let Ok(gguf) = Gguf::read(file) else { return };
    assert!(header.is_ok(), "a whole file has a header");
    let _ = GgufVocabulary::read(gguf.metadata());
    for info in gguf.tensors() {
        let bytes = gguf.tensor_bytes(info).expect("a whole file has all of its tensors");
        assert_eq!(bytes.len() as u64, info.range().len());
        if info.ggml_type().weight_format().is_some() {
            gguf.tensor(info.name()).expect("a tensor of a covered type is read");
        }
    }
    for (key, value) in gguf.metadata().iter() {
        assert_eq!(gguf.metadata().get(key).map(|found| found.summary()), Some(value.summary()));
    }
    let written = GgufWriter::from_gguf(&gguf).expect("all tensors are there").to_bytes();
    let again = Gguf::read(written.clone()).expect("what is written is read");
    let infos = |gguf: &Gguf| {
        let tensors = gguf.tensors().iter();
        tensors.map(|t| (t.name().to_string(), t.ggml_type(), t.shape(), gguf.tensor_bytes(t).ok())).collect::<Vec<_>>()
    };
    assert_eq!(infos(&gguf), infos(&again));
    let twice = GgufWriter::from_gguf(&again).expect("all tensors are there").to_bytes();
    assert_eq!(written, twice);
}

/// Any bytes as a safetensors file. What is accepted can be written again and stays the same.
pub(crate) fn safetensors_header(data: &[u8]) {
    let file = Bytes::copy_from_slice(data);
    let header = Safetensors::read_header(file.clone());
    let Ok(safetensors) = Safetensors::read(file) else { return };
    assert!(header.is_ok(), "a whole file has a header");
    let mut covered = 0;
    for info in safetensors.tensors() {
        let bytes = safetensors.tensor_bytes(info).expect("a whole file has all of its tensors");
        covered += bytes.len();
        if info.weight_format().is_some() {
            safetensors.tensor(info.name()).expect("a tensor of a covered type is read");
        }
    }
    let header_len = u64::from_le_bytes(data[..8].try_into().expect("eight bytes")) as usize;
    assert_eq!(8 + header_len + covered, data.len(), "tensors cover the data");
    let written = rewrite(&safetensors).expect("all tensors are there");
    let again = Safetensors::read(written.clone()).expect("what is written is read");
    assert_eq!(safetensors.metadata(), again.metadata());
    for (a, b) in safetensors.tensors().iter().zip(again.tensors()) {
        assert_eq!((a.name(), a.dtype(), a.shape()), (b.name(), b.dtype(), b.shape()));
        assert_eq!(safetensors.tensor_bytes(a).ok(), again.tensor_bytes(b).ok());
    }
    assert_eq!(written, rewrite(&again).expect("all tensors are there"));
}

/// One whose rows have to be put back in order and whose experts lie together, and one whose experts alternate.
static ARCHITECTURES: [Architecture; 2] = [
    Architecture {
        model_type: "llama",
        class: "LlamaForCausalLM",
        names: &[("llama", None)],
        keys: &[("expert_count", "num_local_experts")],
        layer_tensors: &[("attn_q_norm", "self_attn.q_norm"), ("attn_sinks.weight", "self_attn.sinks")],
        expert_tensors: EXPERTS,
        tensor_flags: &[("attn_q_norm.weight", "use_qk_norm")],
        implied: || serde_json::json!({ "sliding_window": null, "rope_scaling": { "truncate": false } }),
        pairs_rows: true,
        ..Architecture::SHARED
    },
    Architecture {
        model_type: "gpt_oss",
        class: "GptOssForCausalLM",
        names: &[("gpt-oss", None)],
        expert_tensors: EXPERTS,
        alternates_experts: true,
        ..Architecture::SHARED
    },
];

const EXPERTS: &[(&str, &str)] = &[
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
];

/// The files of a folder for [`model_open`].
pub(crate) const NAMES: [&str; 10] = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-00001-of-00001.safetensors",
    "model.gguf",
];

/// A whole folder from bytes: configuration, index, shards, templates, GGUF. Every tensor that is listed is read or
/// refused with an error.
///
/// The input is a sequence of files: an index into `NAMES`, a length (u16, little-endian), that many bytes.
pub(crate) fn model_open(data: &[u8]) {
    let mut files = Vec::new();
    let mut rest = data;
    while let [name, low, high, tail @ ..] = rest {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(tail.len());
        let (file, tail) = tail.split_at(len);
        files.push((NAMES[usize::from(*name) % NAMES.len()], Bytes::copy_from_slice(file)));
        rest = tail;
    }
    let Ok(checkpoint) = Checkpoint::from_bytes(&files, &ARCHITECTURES) else { return };
    assert!(checkpoint.config.is_object() && checkpoint.generation_config.is_object());
    let _ = checkpoint.eos_token_ids();
    let mut total = 0;
    for info in checkpoint.tensor_infos() {
        total += info.bytes;
        let finite = checkpoint.check_finite(&info.name);
        match checkpoint.tensor(&info.name) {
            Ok(tensor) => {
                assert_eq!(Some(tensor.format()), info.format);
                assert_eq!(tensor.bytes().len() as u64, info.bytes);
                assert!(tensor.shape().iter().map(|&d| d as u64).eq(info.shape.iter().copied()));
            }
            Err(_) => assert!(finite.is_err(), "refused for its type, its heads or its numbers"),
        }
    }
    assert_eq!(total, checkpoint.total_bytes());
}
