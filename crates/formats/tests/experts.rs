//! Each expert of a layer is a tensor of its own name, however a file has them.

mod valid;

use std::path::Path;

use bytes::Bytes;
use formats::{
    Checkpoint, TensorInfo,
    gguf::{GgmlType, GgufWriter, Value, nvfp4},
    gguf_names::Names,
    safetensors::Safetensors,
};
use serde_json::{Value as Json, json};
use tensor::quant::nvfp4 as blocks;
use tensor::{Tensor, WeightFormat};
use valid::mixtures::{self, ARCHITECTURES, EXPERTS, HIDDEN, INNER, expert_name, experts_of, folder};
use valid::ramp;

fn open(files: &[(&str, Bytes)]) -> Checkpoint {
    Checkpoint::from_bytes(files, &ARCHITECTURES).unwrap()
}

fn open_gguf(writer: &GgufWriter) -> Checkpoint {
    open(&[("model.gguf", writer.to_bytes())])
}

/// Its message and those of its causes.
fn refused(files: &[(&str, Bytes)]) -> String {
    let error = Checkpoint::from_bytes(files, &ARCHITECTURES).unwrap_err();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

fn refused_gguf(writer: &GgufWriter) -> String {
    refused(&[("model.gguf", writer.to_bytes())])
}

fn assert_holds(checkpoint: &Checkpoint, expected: &[(String, Tensor)], what: &str) {
    let names: Vec<_> = checkpoint.tensor_names().collect();
    assert_eq!(names, expected.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), "{what}");
    let infos: Vec<TensorInfo> = checkpoint.tensor_infos().collect();
    for (info, (name, expected)) in infos.iter().zip(expected) {
        let found = checkpoint.tensor(name).unwrap();
        assert_eq!((found.format(), found.shape()), (expected.format(), expected.shape()), "{what}: {name}");
        assert_eq!(found.bytes(), expected.bytes(), "{what}: {name}");
        let shape: Vec<u64> = expected.shape().iter().map(|&dim| dim as u64).collect();
        assert_eq!((&info.name, &info.shape, info.format), (name, &shape, Some(expected.format())), "{what}");
        assert_eq!((info.bytes, info.exact), (expected.bytes().len() as u64, true), "{what}: {name}");
        checkpoint.check_finite(name).unwrap();
        assert_eq!(checkpoint.order(name), None);
    }
}

#[test]
fn the_experts_of_a_gguf_tensor_are_views_under_the_checkpoints_names() {
    for architecture in ["llama", "qwen2moe", "qwen3moe", "gpt-oss", "glm4moe"] {
        for format in
            [WeightFormat::F32, WeightFormat::BF16, WeightFormat::Q4_K, WeightFormat::Q6_K, WeightFormat::MXFP4]
        {
            let (writer, expected) = mixtures::gguf(architecture, format);
            let file = writer.to_bytes();
            let checkpoint = open(&[("model.gguf", file.clone())]);
            assert_holds(&checkpoint, &expected, architecture);
            for (name, _) in &expected {
                let start = checkpoint.tensor(name).unwrap().bytes().as_ptr();
                assert!(file.as_ptr_range().contains(&start), "{name} was copied");
            }
            let info = checkpoint.tensor_infos().next().unwrap();
            assert!(info.source_name.starts_with("blk.0.ffn_") && info.source_name.contains("_exps."), "{info:?}");
            let total: usize = expected.iter().map(|(_, tensor)| tensor.bytes().len()).sum();
            assert_eq!(checkpoint.total_bytes(), total as u64);
        }
    }
}

#[test]
fn names_of_experts_go_to_the_tensor_of_all_and_back() {
    for architecture in &ARCHITECTURES {
        let names = Names::of_model(architecture.model_type, &ARCHITECTURES);
        for (gguf, pattern) in architecture.expert_tensors {
            for (layer, expert, kind) in [(0, 0, "weight"), (47, 127, "weight"), (9, 10, "bias")] {
                let name = expert_name(layer, pattern, expert, kind);
                let stack = format!("blk.{layer}.{gguf}.{kind}");
                assert_eq!(names.gguf_expert(&name), Some((stack.clone(), expert as u32)), "{name}");
                assert_eq!(names.checkpoint_expert(&stack, expert as u32), Some(name.clone()));
                assert_eq!(names.gguf_name(&name), None, "{name} is a part of a tensor");
                // As each expert was a tensor.
                let alone = format!("blk.{layer}.{}.{expert}.{kind}", gguf.strip_suffix("_exps").unwrap());
                assert_eq!(names.checkpoint_name(&alone), name);
            }
            assert_eq!(names.gguf_expert(&expert_name(1, pattern, 5, "weight").replace(".5.", ".05.")), None);
            assert_eq!(names.checkpoint_name(&format!("blk.0.{gguf}.weight")), format!("blk.0.{gguf}.weight"));
        }
        for other in ["model.layers.0.mlp.gate.weight", "blk.0.ffn_up.weight", "lm_head.weight", "x"] {
            assert_eq!((names.gguf_expert(other), names.checkpoint_expert(other, 0)), (None, None));
        }
    }
    let names = |model_type| Names::of_model(model_type, &ARCHITECTURES);
    for (model_type, gguf, name) in [
        ("mixtral", "blk.3.ffn_gate_inp.weight", "model.layers.3.block_sparse_moe.gate.weight"),
        ("qwen3_moe", "blk.3.ffn_gate_inp.weight", "model.layers.3.mlp.gate.weight"),
        ("qwen3_moe", "blk.3.attn_k_norm.weight", "model.layers.3.self_attn.k_norm.weight"),
        ("qwen2_moe", "blk.3.ffn_gate_inp.weight", "model.layers.3.mlp.gate.weight"),
        ("qwen2_moe", "blk.3.ffn_gate_inp_shexp.weight", "model.layers.3.mlp.shared_expert_gate.weight"),
        ("qwen2_moe", "blk.3.ffn_up_shexp.weight", "model.layers.3.mlp.shared_expert.up_proj.weight"),
        ("glm4_moe", "blk.3.ffn_up_shexp.weight", "model.layers.3.mlp.shared_experts.up_proj.weight"),
        ("glm4_moe", "blk.3.exp_probs_b.bias", "model.layers.3.mlp.gate.e_score_correction_bias"),
        ("glm4_moe", "blk.3.post_attention_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
        ("gpt_oss", "blk.3.post_attention_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
        ("gpt_oss", "blk.3.attn_sinks.weight", "model.layers.3.self_attn.sinks"),
        ("gpt_oss", "blk.3.ffn_gate_inp.bias", "model.layers.3.mlp.router.bias"),
        ("gpt_oss", "blk.3.attn_output.bias", "model.layers.3.self_attn.o_proj.bias"),
    ] {
        let names = names(model_type);
        assert_eq!((names.checkpoint_name(gguf).as_str(), names.gguf_name(name).as_deref()), (name, Some(gguf)));
    }
    // Of a model that has no experts, the tensor keeps the name that the user finds in the file.
    let dense = names("llama");
    assert_eq!(dense.checkpoint_name("blk.0.ffn_gate_exps.weight"), "blk.0.ffn_gate_exps.weight");
    assert_eq!(dense.gguf_expert("model.layers.0.mlp.experts.0.up_proj.weight"), None);
}

/// What a writer of GGUF files asks.
#[test]
fn tensors_of_a_checkpoint_make_those_of_a_gguf_file() {
    let names = Names::of_model("qwen3_moe", &ARCHITECTURES);
    let expert = |role: &str, expert: usize| expert_name(2, &format!("mlp.experts.{{}}.{role}"), expert, "weight");
    let made = |of: &[&str]| names.gguf_tensors(of);
    let (gates, ups) = ([0, 1, 2].map(|at| expert("gate_proj", at)), [0, 1, 2].map(|at| expert("up_proj", at)));
    let norm = "model.layers.2.input_layernorm.weight";
    let all = [&gates[2], norm, &gates[0], &ups[0], &gates[1], &ups[1], &ups[2]];
    let expected = [
        ("blk.2.ffn_gate_exps.weight".to_owned(), vec![2, 4, 0]),
        ("blk.2.attn_norm.weight".to_owned(), vec![1]),
        ("blk.2.ffn_up_exps.weight".to_owned(), vec![3, 5, 6]),
    ];
    assert_eq!(made(&all).unwrap(), expected);
    // The file that it is, is read as what it was made of.
    let (writer, tensors) = mixtures::gguf("qwen3moe", WeightFormat::BF16);
    let of: Vec<&str> = tensors.iter().map(|(name, _)| name.as_str()).collect();
    let mut written = GgufWriter::new();
    written.metadata("general.architecture", Value::String("qwen3moe".into()));
    for (name, parts) in made(&of).unwrap() {
        let parts: Vec<Tensor> = parts.into_iter().map(|part| tensors[part].1.clone()).collect();
        written.tensor(&name, &mixtures::stacked(&parts));
    }
    assert_eq!(written.len(), writer.len());
    assert_holds(&open_gguf(&written), &tensors, "written");
    let error = |of: &[&str]| made(of).unwrap_err().to_string();
    assert!(error(&[&gates[0], &gates[2]]).contains("no tensor `model.layers.2.mlp.experts.1.gate_proj.weight`"));
    assert!(error(&[&gates[1], &gates[0], &gates[1]]).contains("experts.1.gate_proj.weight` occurs twice"));
    assert!(error(&["model.layers.2.mlp.experts.0.other.weight"]).contains("GGUF has no name for"));
    assert_eq!(names.gguf_tensor(&gates[1]).as_deref(), Some("blk.2.ffn_gate_exps.weight"));
    assert_eq!((names.gguf_tensor(norm).as_deref(), names.gguf_tensor("x")), (Some("blk.2.attn_norm.weight"), None));
}

#[test]
fn a_gate_of_one_row_is_a_vector_in_gguf_files() {
    let mut writer = mixtures::gguf("qwen2moe", WeightFormat::F32).0;
    let row = ramp(WeightFormat::F32, &[HIDDEN], 3);
    writer.tensor("blk.0.ffn_gate_inp_shexp.weight", &row);
    let checkpoint = open_gguf(&writer);
    let name = "model.layers.0.mlp.shared_expert_gate.weight";
    let found = checkpoint.tensor(name).unwrap();
    assert_eq!((found.shape(), found.bytes()), (&[1, HIDDEN][..], row.bytes()));
    let info = checkpoint.tensor_infos().find(|info| info.name == name).unwrap();
    assert_eq!(info.shape, [1, HIDDEN as u64]);
    let names = Names::of_model("qwen2_moe", &ARCHITECTURES);
    assert_eq!(names.shape_in_file("blk.0.ffn_gate_inp_shexp.weight", &[1, 4]), [4]);
    assert_eq!(names.shape_in_file("blk.0.ffn_gate_inp.weight", &[1, 4]), [1, 4]);
}

#[test]
fn gate_and_up_may_be_one_gguf_tensor() {
    let patterns = experts_of("qwen3moe");
    for format in [WeightFormat::BF16, WeightFormat::Q8_0] {
        let (gate, up) = (mixtures::matrices(format, &[6, 32], 0), mixtures::matrices(format, &[6, 32], 9));
        let both = gate.iter().zip(&up).map(|(gate, up)| {
            Tensor::new(format, vec![12, 32], [&gate.bytes()[..], up.bytes()].concat().into()).unwrap()
        });
        let mut writer = GgufWriter::new();
        writer.metadata("general.architecture", Value::String("qwen3moe".into()));
        writer.tensor("blk.0.ffn_gate_up_exps.weight", &mixtures::stacked(&both.collect::<Vec<_>>()));
        let named = |pattern: &'static str, tensors: Vec<Tensor>| {
            tensors.into_iter().enumerate().map(|(at, tensor)| (expert_name(0, pattern, at, "weight"), tensor))
        };
        let mut expected: Vec<_> = named(patterns[0], gate).chain(named(patterns[1], up)).collect();
        expected.sort_by(|a, b| a.0.cmp(&b.0));
        assert_holds(&open_gguf(&writer), &expected, "gate and up");
    }
}

#[test]
fn old_files_have_a_tensor_for_each_expert() {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("llama".into()));
    writer.metadata("llama.expert_count", Value::U32(2));
    let patterns = experts_of("llama");
    let mut expected = Vec::new();
    for expert in 0..2 {
        for (role, pattern) in ["gate", "up", "down"].into_iter().zip(patterns) {
            let tensor = ramp(WeightFormat::F16, &[INNER, HIDDEN], expert * 7);
            writer.tensor(&format!("blk.0.ffn_{role}.{expert}.weight"), &tensor);
            expected.push((expert_name(0, pattern, expert as usize, "weight"), tensor));
        }
    }
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_holds(&open_gguf(&writer), &expected, "old");
}

/// NVFP4 in GGUF files has a scale for each expert in a tensor of its own.
#[test]
fn each_expert_in_nvfp4_has_its_own_scale() {
    let scales = [0.5f32, 2.0, 3.0];
    let codes: [u8; 64] = std::array::from_fn(|i| (i * 5 % 16) as u8);
    let block = blocks::from_codes(1.0, [0x38, 0x40, 0x30, 0x44], &codes);
    let bytes: Vec<u8> = (0..EXPERTS * 2).flat_map(|_| nvfp4::to_file(&block)).collect();
    let nvfp4_type = GgmlType::holding(WeightFormat::NVFP4).unwrap();
    let open_with = |scale_dims: &[u64], scales: &[f32]| {
        let mut writer = GgufWriter::new();
        writer.metadata("general.architecture", Value::String("qwen3moe".into()));
        writer.raw_tensor("blk.0.ffn_up_exps.weight", nvfp4_type, &[64, 2, EXPERTS as u64], bytes.clone().into());
        let scales: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        writer.raw_tensor("blk.0.ffn_up_exps.scale", mixtures::f32_type(), scale_dims, scales.into());
        open_gguf(&writer)
    };
    let name = |expert| expert_name(0, experts_of("qwen3moe")[1], expert, "weight");
    let mut checkpoint = open_with(&[EXPERTS as u64], &scales);
    assert_eq!(checkpoint.tensor_names().len(), EXPERTS);
    let expected = |scale| nvfp4::tensor("x", vec![2, 64], scale, &bytes[..2 * nvfp4::BLOCK_BYTES]).unwrap();
    for (expert, scale) in scales.into_iter().enumerate() {
        let found = checkpoint.tensor(&name(expert)).unwrap();
        assert_eq!((found.shape(), found.to_f32()), (&[2, 64][..], expected(scale).to_f32()));
    }
    assert!(checkpoint.expand_unless(|_| false));
    for (expert, scale) in scales.into_iter().enumerate() {
        let found = checkpoint.tensor(&name(expert)).unwrap();
        assert_eq!((found.format(), found.to_f32()), (WeightFormat::F16, expected(scale).to_f32()));
    }
    let one = open_with(&[1], &[2.0]);
    assert_eq!(one.tensor(&name(2)).unwrap().to_f32(), expected(2.0).to_f32());
    let two = open_with(&[2], &[2.0, 1.0]);
    assert!(two.tensor(&name(0)).unwrap_err().to_string().contains("model.gguf"));
}

#[test]
fn keys_of_gguf_files_are_the_fields_of_each_models_config() {
    let config = |architecture: &str, keys: &[(&str, Value)], tensors: &[&str]| {
        let mut writer = GgufWriter::new();
        writer.metadata("general.architecture", Value::String(architecture.into()));
        for (key, value) in keys {
            writer.metadata(&format!("{architecture}.{key}"), value.clone());
        }
        for name in tensors {
            writer.tensor(name, &ramp(WeightFormat::F32, &[4], 0));
        }
        open_gguf(&writer).config
    };
    let assert_has = |config: &Json, expected: Json| {
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(config.get(field).unwrap_or(&Json::Null), value, "{field} of {config}");
        }
    };
    let counts = [("expert_count", Value::U32(128)), ("expert_used_count", Value::U32(8))];
    let inner = ("expert_feed_forward_length", Value::U32(768));
    let with = |more: &[(&'static str, Value)]| [&counts[..], more].concat();
    let found = config("llama", &with(&[("feed_forward_length", Value::U32(14336))]), &[]);
    assert_has(
        &found,
        json!({ "model_type": "mixtral", "num_local_experts": 128, "num_experts_per_tok": 8,
        "intermediate_size": 14336, "sliding_window": null }),
    );
    let shared = ("expert_shared_feed_forward_length", Value::U32(5632));
    let found = config("qwen2moe", &with(&[inner.clone(), shared]), &[]);
    assert_has(
        &found,
        json!({ "model_type": "qwen2_moe", "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "shared_expert_intermediate_size": 5632, "norm_topk_prob": false }),
    );
    let found = config("qwen3moe", &with(std::slice::from_ref(&inner)), &[]);
    assert_has(
        &found,
        json!({ "model_type": "qwen3_moe", "num_experts": 128, "norm_topk_prob": true,
        "mlp_only_layers": [], "decoder_sparse_step": 1, "scoring_func": null }),
    );
    let yarn = [
        ("attention.sliding_window", Value::U32(128)),
        ("rope.scaling.type", Value::String("yarn".into())),
        ("rope.scaling.factor", Value::F32(32.0)),
        ("rope.scaling.original_context_length", Value::U32(4096)),
        ("expert_feed_forward_length", Value::U32(2880)),
    ];
    let found = config("gpt-oss", &with(&yarn), &["blk.0.attn_q.bias"]);
    assert_has(
        &found,
        json!({ "model_type": "gpt_oss", "num_local_experts": 128, "num_experts_per_tok": 8,
        "intermediate_size": 2880, "sliding_window": 128, "attention_bias": true, "swiglu_limit": 7.0,
        "rope_scaling": { "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
            "truncate": false } }),
    );
    // Where a file does not scale, nothing is said of how.
    assert_has(&config("gpt-oss", &counts, &[]), json!({ "rope_scaling": null }));
    let glm = with(&[
        inner,
        ("block_count", Value::U32(47)),
        ("nextn_predict_layers", Value::U32(1)),
        ("expert_shared_count", Value::U32(1)),
        ("leading_dense_block_count", Value::U32(1)),
        ("expert_weights_scale", Value::F32(2.5)),
        ("expert_weights_norm", Value::Bool(true)),
        ("expert_gating_func", Value::U32(2)),
        ("expert_group_count", Value::U32(2)),
        ("attention.key_length", Value::U32(128)),
        ("rope.dimension_count", Value::U32(64)),
    ]);
    let further = ["blk.46.attn_norm.weight", "blk.46.nextn.enorm.weight"];
    let found = config("glm4moe", &glm, &[&further[..], &["blk.0.attn_q_norm.weight"]].concat());
    assert_has(
        &found,
        json!({ "model_type": "glm4_moe", "n_routed_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "n_shared_experts": 1, "first_k_dense_replace": 1, "num_hidden_layers": 46,
        "num_nextn_predict_layers": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": true, "scoring_func": "sigmoid",
        "n_group": 2, "topk_group": 1, "partial_rotary_factor": 0.5, "use_qk_norm": true }),
    );
    // The default of llama.cpp is 0, which scales nothing.
    let found = config("glm4moe", &with(&[("expert_weights_scale", Value::F32(0.0))]), &[]);
    assert_has(&found, json!({ "routed_scaling_factor": 1.0, "use_qk_norm": false, "num_nextn_predict_layers": null }));
    for (gating, expected) in
        [(0, json!(null)), (1, json!("softmax")), (3, json!("softmax_weight")), (9, json!("type 9"))]
    {
        let found = config("qwen3moe", &with(&[("expert_gating_func", Value::U32(gating))]), &[]);
        assert_has(&found, json!({ "scoring_func": expected }));
    }
}

/// Layers behind the model's own that predict further tokens (GLM-4.5): nothing of it reads them.
#[test]
fn layers_that_predict_further_tokens_are_ignored() {
    let norm = ramp(WeightFormat::F32, &[4], 0);
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("glm4moe".into()));
    for (key, value) in [("block_count", 3), ("nextn_predict_layers", 1)] {
        writer.metadata(&format!("glm4moe.{key}"), Value::U32(value));
    }
    let further = ["blk.2.nextn.eh_proj.weight", "blk.2.attn_norm.weight", "blk.2.ffn_up_exps.weight"];
    for name in [&further[..], &["blk.1.attn_norm.weight", "blk.3.attn_norm.weight"]].concat() {
        writer.tensor(name, &norm);
    }
    let checkpoint = open_gguf(&writer);
    assert_eq!(checkpoint.ignored(), further);
    let kept = ["model.layers.1.input_layernorm.weight", "model.layers.3.input_layernorm.weight"];
    assert_eq!(checkpoint.tensor_names().collect::<Vec<_>>(), kept);
    let tensor = |name: &str| (name.to_owned(), "F32", vec![4], norm.bytes().to_vec());
    let config = json!({ "model_type": "glm4_moe", "num_hidden_layers": 2, "num_nextn_predict_layers": 1 });
    let further = ["model.layers.2.eh_proj.weight", "model.layers.2.mlp.experts.0.up_proj.weight"];
    let tensors: Vec<_> =
        [&further[..], &["model.layers.1.input_layernorm.weight"]].concat().into_iter().map(tensor).collect();
    let checkpoint = open(&folder(&config, &tensors));
    assert_eq!(checkpoint.ignored(), further);
    assert_eq!(checkpoint.tensor_names().collect::<Vec<_>>(), ["model.layers.1.input_layernorm.weight"]);
}

#[test]
fn gpt_oss_of_transformers_is_transposed_and_alternates() {
    for format in [WeightFormat::F32, WeightFormat::F16, WeightFormat::BF16] {
        let (files, expected) = mixtures::gpt_oss(format);
        assert_holds(&open(&files), &expected, format.name());
    }
}

/// Larger than what is transposed at a time, and than what a thread does.
#[test]
fn matrices_of_many_tiles_are_transposed() {
    for (out, width) in [(70, 67), (1100, 1003)] {
        transposes(out, width);
    }
}

fn transposes(out: usize, width: usize) {
    let tensor = ramp(WeightFormat::F32, &[width, out], 1);
    let bytes = [&tensor.bytes()[..], ramp(WeightFormat::F32, &[width, out], 9).bytes()].concat();
    let name = "model.layers.0.mlp.experts.down_proj".to_owned();
    let files = folder(&json!({ "model_type": "gpt_oss" }), &[(name, "F32", vec![2, width as u64, out as u64], bytes)]);
    let found = open(&files).tensor("model.layers.0.mlp.experts.0.down_proj.weight").unwrap();
    assert_eq!(found.shape(), [out, width]);
    let (found, values) = (found.to_f32(), tensor.to_f32());
    assert!((0..out * width).all(|at| found[at] == values[at % width * out + at / width]));
}

#[test]
fn gpt_oss_of_openai_is_in_four_bits_and_alternates() {
    let (files, expected) = mixtures::gpt_oss_mxfp4();
    let checkpoint = open(&files);
    let names: Vec<_> = checkpoint.tensor_names().collect();
    assert_eq!(names, expected.iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>());
    for (info, (name, shape, values)) in checkpoint.tensor_infos().zip(&expected) {
        let found = checkpoint.tensor(name).unwrap();
        assert_eq!((found.shape(), found.to_f32()), (&shape[..], values.clone()), "{name}");
        let is_weight = name.ends_with(".weight");
        let format = if is_weight { WeightFormat::MXFP4 } else { WeightFormat::BF16 };
        assert_eq!((found.format(), info.format, info.exact), (format, Some(format), true), "{name}");
        assert_eq!(info.bytes, found.bytes().len() as u64, "17 bytes for 32 weights, and 2 for a bias");
        assert_eq!(info.shape, shape.iter().map(|&dim| dim as u64).collect::<Vec<_>>());
        checkpoint.check_finite(name).unwrap();
    }
}

#[test]
fn other_models_may_have_gate_and_up_one_after_the_other() {
    for format in [WeightFormat::F32, WeightFormat::BF16] {
        let (files, expected) = mixtures::fused(format);
        let checkpoint = open(&files);
        assert_holds(&checkpoint, &expected, format.name());
        for (name, _) in &expected {
            let start = checkpoint.tensor(name).unwrap().bytes().as_ptr();
            assert!(files[1].1.as_ptr_range().contains(&start), "{name} was copied");
        }
    }
}

/// Every published quantisation, of an expert: by its name, as of any other matrix.
#[test]
fn experts_may_be_quantised_one_by_one() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/quantized");
    let read = |case: &str, file: &str| Bytes::from(std::fs::read(golden.join(case).join(file)).unwrap());
    let cases = [
        "gptq_int4",
        "awq_int4",
        "packed_int4_group",
        "fp8_block",
        "fp8_transformers_block",
        "fp8_channel",
        "nvfp4",
        "mxfp4",
    ];
    for case in cases {
        let file = Safetensors::read(read(case, "model.safetensors")).unwrap();
        let mut config: Json = serde_json::from_slice(&read(case, "config.json")).unwrap();
        config["model_type"] = "qwen3_moe".into();
        let mut tensors = Vec::new();
        for expert in ["0", "3", "11"] {
            for info in file.tensors() {
                let name = info.name().replace("mlp.up_proj", &format!("mlp.experts.{expert}.up_proj"));
                let bytes = file.tensor_bytes(info).unwrap().to_vec();
                tensors.push((name, info.dtype(), info.shape().to_vec(), bytes));
            }
        }
        let gate = ramp(WeightFormat::BF16, &[12, 128], 0);
        let router = "model.layers.0.mlp.gate.weight";
        tensors.push((router.into(), "BF16", vec![12, 128], gate.bytes().to_vec()));
        let checkpoint = open(&folder(&config, &tensors));
        let name = |expert: &str| format!("model.layers.0.mlp.experts.{expert}.up_proj.weight");
        let names: Vec<_> = checkpoint.tensor_names().collect();
        assert_eq!(names, [&name("0"), &name("11"), &name("3"), router], "{case}");
        assert_eq!(checkpoint.tensor(router).unwrap().bytes(), gate.bytes());
        let alone =
            [("config.json", read(case, "config.json")), ("model.safetensors", read(case, "model.safetensors"))];
        let alone = open(&alone);
        let expected = alone.tensor("model.layers.0.mlp.up_proj.weight").unwrap();
        let info = alone.tensor_infos().next().unwrap();
        for (expert, found) in ["0", "11", "3"].into_iter().zip(checkpoint.tensor_infos()) {
            let tensor = checkpoint.tensor(&name(expert)).unwrap();
            assert_eq!((tensor.format(), tensor.bytes()), (expected.format(), expected.bytes()), "{case}");
            assert_eq!((found.shape, found.type_name, found.exact), (info.shape.clone(), info.type_name, info.exact));
        }
    }
}

/// 48 layers of 128 experts: as many tensors as large models have.
#[test]
fn tens_of_thousands_of_experts_are_listed_and_found() {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("qwen3moe".into()));
    writer.metadata("qwen3moe.expert_count", Value::U32(128));
    let values: Vec<f32> = (0..128).map(|expert| expert as f32).collect();
    let stack = Tensor::from_f32(WeightFormat::F32, vec![128, 1, 1], &values).unwrap();
    for layer in 0..48 {
        for role in ["gate", "up", "down"] {
            writer.tensor(&format!("blk.{layer}.ffn_{role}_exps.weight"), &stack);
        }
    }
    let checkpoint = open_gguf(&writer);
    assert_eq!(checkpoint.tensor_names().len(), 48 * 128 * 3);
    assert!(checkpoint.tensor_names().is_sorted());
    for (info, name) in checkpoint.tensor_infos().zip(checkpoint.tensor_names()) {
        let expert: f32 = name.split('.').nth(5).unwrap().parse().unwrap();
        assert_eq!((info.name.as_str(), &info.shape[..]), (name, &[1, 1][..]));
        assert_eq!(checkpoint.tensor(name).unwrap().to_f32(), [expert]);
    }
}

#[test]
fn what_is_no_stack_of_the_models_experts_is_refused_with_its_shape() {
    let gguf = |architecture: &str, name: &str, shape: &[usize], experts: u32| {
        let mut writer = GgufWriter::new();
        writer.metadata("general.architecture", Value::String(architecture.into()));
        if experts > 0 {
            writer.metadata(&format!("{architecture}.expert_count"), Value::U32(experts));
        }
        writer.tensor(name, &ramp(WeightFormat::F32, shape, 0));
        writer
    };
    for (name, shape, experts, expected) in [
        ("blk.0.ffn_up_exps.weight", &[3, 4, 4][..], 4, "has the shape [3, 4, 4], not [4, out, in]"),
        ("blk.0.ffn_up_exps.weight", &[3, 4, 4], u32::MAX, "has the shape [3, 4, 4], not [4294967295, out, in]"),
        ("blk.0.ffn_up_exps.weight", &[3, 4], 3, "has the shape [3, 4], not [3, out, in]"),
        ("blk.0.ffn_up_exps.weight", &[4], 0, "has the shape [4], not [experts, out, in]"),
        ("blk.0.ffn_up_exps.weight", &[2, 3, 4, 4], 2, "has the shape [2, 3, 4, 4], not [2, out, in]"),
        ("blk.0.ffn_up_exps.bias", &[3, 4, 4], 3, "has the shape [3, 4, 4], not [3, out]"),
        ("blk.0.ffn_gate_up_exps.weight", &[2, 3, 4], 2, "not [2, out, in] with an even `out`"),
    ] {
        let error = refused_gguf(&gguf("qwen3moe", name, shape, experts));
        assert!(error.contains(name) && error.contains(expected) && error.contains("model.gguf"), "{error}");
    }
    // In each file a tensor of its own, and in all of them one.
    let mut writer = gguf("qwen3moe", "blk.0.ffn_up_exps.weight", &[2, 4, 4], 2);
    writer.tensor("blk.0.ffn_up.1.weight", &ramp(WeightFormat::F32, &[4, 4], 0));
    let error = refused_gguf(&writer);
    assert!(error.contains("`model.layers.0.mlp.experts.1.up_proj.weight` occurs twice"), "{error}");
    let mut writer = gguf("glm4moe", "blk.0.attn_norm.weight", &[4], 0);
    writer.metadata("glm4moe.block_count", Value::U32(1)).metadata("glm4moe.nextn_predict_layers", Value::U32(1));
    let error = refused_gguf(&writer);
    assert!(error.contains("`glm4moe.nextn_predict_layers` must be less than `block_count`"), "{error}");

    let fused = |model_type: &str, end: &str, dtype: &'static str, shape: &[u64], experts: u64| {
        let field = if model_type == "gpt_oss" { "num_local_experts" } else { "num_experts" };
        let config = json!({ "model_type": model_type, field: experts });
        let len = shape.iter().product::<u64>() * if dtype == "F32" { 4 } else { 1 };
        let name = format!("model.layers.0.mlp.experts.{end}");
        folder(&config, &[(name, dtype, shape.to_vec(), vec![0; len as usize])])
    };
    for (model_type, end, shape, experts, expected) in [
        ("gpt_oss", "gate_up_proj", &[2, 4, 6][..], 3, "[2, 4, 6], not [3, in, out] with an even `out`"),
        ("gpt_oss", "gate_up_proj", &[2, 4, 5], 2, "[2, 4, 5], not [2, in, out] with an even `out`"),
        ("gpt_oss", "gate_up_proj_bias", &[2, 5], 2, "[2, 5], not [2, out] with an even `out`"),
        ("gpt_oss", "down_proj", &[2, 4], 2, "[2, 4], not [2, in, out]"),
        ("gpt_oss", "down_proj_bias", &[2, 4, 1], 2, "[2, 4, 1], not [2, out]"),
        ("qwen3_moe", "gate_up_proj", &[2, 5, 4], 2, "[2, 5, 4], not [2, out, in] with an even `out`"),
        ("qwen3_moe", "down_proj", &[2, 5, 4], 3, "[2, 5, 4], not [3, out, in]"),
    ] {
        let error = refused(&fused(model_type, end, "F32", shape, experts));
        assert!(error.contains(expected) && error.contains("model.safetensors"), "{error}");
    }
    // A type that is not computed with is refused when it is read, as of any tensor.
    for (model_type, end, shape) in [("gpt_oss", "gate_up_proj", &[2, 4, 6]), ("qwen3_moe", "gate_up_proj", &[2, 6, 4])]
    {
        let checkpoint = open(&fused(model_type, end, "U8", shape, 2));
        let name = "model.layers.0.mlp.experts.1.up_proj.weight";
        let error = checkpoint.tensor(name).unwrap_err();
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("is of type U8"), "{error:?}");
    }
    let (mut files, _) = mixtures::gpt_oss_mxfp4();
    let config: Json = serde_json::from_slice(&files[0].1).unwrap();
    let mut with = config.clone();
    with["num_local_experts"] = 4.into();
    files[0].1 = with.to_string().into();
    let error = refused(&files);
    assert!(error.contains("_proj_b") && error.contains("not [4, out"), "{error}");
}

/// Of a file that has not arrived, names and shapes are known, and what is missing is said.
#[test]
fn a_header_alone_tells_every_expert() {
    let (writer, expected) = mixtures::gguf("gpt-oss", WeightFormat::BF16);
    let whole = writer.to_bytes();
    let start = formats::gguf::Gguf::read(whole.clone()).unwrap().tensors()[0].range().start() as usize;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, &whole[..start + 3 * 40]).unwrap();
    let checkpoint = Checkpoint::open_headers(&path, &|path| Ok(mapped::map(path)?), &ARCHITECTURES).unwrap();
    assert!(checkpoint.tensor_names().eq(expected.iter().map(|(name, _)| name.as_str())));
    let error = checkpoint.tensor(&expected.last().unwrap().0).unwrap_err();
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("is the download complete"), "{error:?}");
}
