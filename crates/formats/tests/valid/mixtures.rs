//! Small models with experts, in every layout that files have.

use bytes::Bytes;
use formats::{
    gguf::{GgmlType, GgufWriter, Value},
    gguf_names::Architecture,
    safetensors::SafetensorsWriter,
};
use serde_json::json;
use tensor::{Tensor, WeightFormat};

use super::ramp;

/// The files of a folder.
pub(crate) type Files = Vec<(&'static str, Bytes)>;
/// Tensors by the checkpoint's names, sorted.
pub(crate) type Tensors = Vec<(String, Tensor)>;

/// A tensor by its name, its shape, and the numbers in it.
pub(crate) type Meant = (String, Vec<usize>, Vec<f32>);

/// Experts of a layer.
pub(crate) const EXPERTS: usize = 3;
pub(crate) const HIDDEN: usize = 4;
/// Outputs of the gate of an expert.
pub(crate) const INNER: usize = 6;

const MLP_EXPERTS: &[(&str, &str)] = &[
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
];

/// What the program says of models with experts.
pub(crate) static ARCHITECTURES: [Architecture; 6] = [
    Architecture {
        model_type: "mixtral",
        class: "MixtralForCausalLM",
        names: &[("llama", Some("expert_count"))],
        keys: &[("expert_count", "num_local_experts"), ("expert_used_count", "num_experts_per_tok")],
        layer_tensors: &[("ffn_gate_inp", "block_sparse_moe.gate")],
        expert_tensors: &[
            ("ffn_gate_exps", "block_sparse_moe.experts.{}.w1"),
            ("ffn_up_exps", "block_sparse_moe.experts.{}.w3"),
            ("ffn_down_exps", "block_sparse_moe.experts.{}.w2"),
        ],
        implied: || json!({ "sliding_window": null }),
        pairs_rows: true,
        ..Architecture::SHARED
    },
    Architecture {
        model_type: "llama",
        class: "LlamaForCausalLM",
        names: &[("llama", None)],
        pairs_rows: true,
        ..Architecture::SHARED
    },
    Architecture {
        model_type: "qwen2_moe",
        class: "Qwen2MoeForCausalLM",
        names: &[("qwen2moe", None)],
        keys: &[
            ("expert_count", "num_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
            ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
        ],
        layer_tensors: &[
            ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
            ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
            ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
            ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
        ],
        expert_tensors: MLP_EXPERTS,
        implied: || json!({ "norm_topk_prob": false, "decoder_sparse_step": 1, "mlp_only_layers": [] }),
        ..Architecture::SHARED
    },
    Architecture {
        model_type: "qwen3_moe",
        class: "Qwen3MoeForCausalLM",
        names: &[("qwen3moe", None)],
        keys: &[
            ("expert_count", "num_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
        ],
        layer_tensors: &[("attn_q_norm", "self_attn.q_norm"), ("attn_k_norm", "self_attn.k_norm")],
        expert_tensors: MLP_EXPERTS,
        implied: || json!({ "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [] }),
        ..Architecture::SHARED
    },
    Architecture {
        model_type: "gpt_oss",
        class: "GptOssForCausalLM",
        names: &[("gpt-oss", None)],
        keys: &[
            ("expert_count", "num_local_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "intermediate_size"),
        ],
        layer_tensors: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_gate_inp", "mlp.router"),
            ("attn_sinks.weight", "self_attn.sinks"),
        ],
        expert_tensors: MLP_EXPERTS,
        alternates_experts: true,
        implied: || json!({ "swiglu_limit": 7.0, "rope_scaling": { "truncate": false } }),
        ..Architecture::SHARED
    },
    Architecture {
        model_type: "glm4_moe",
        class: "Glm4MoeForCausalLM",
        names: &[("glm4moe", None)],
        keys: &[
            ("expert_count", "n_routed_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
            ("expert_shared_count", "n_shared_experts"),
            ("leading_dense_block_count", "first_k_dense_replace"),
            ("expert_weights_norm", "norm_topk_prob"),
            ("expert_group_count", "n_group"),
            ("expert_group_used_count", "topk_group"),
        ],
        layer_tensors: &[
            ("attn_q_norm", "self_attn.q_norm"),
            ("attn_k_norm", "self_attn.k_norm"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
            ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
            ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
            ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
        ],
        expert_tensors: MLP_EXPERTS,
        tensor_flags: &[("attn_q_norm.weight", "use_qk_norm")],
        implied: || json!({ "first_k_dense_replace": 0, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1 }),
        ..Architecture::SHARED
    },
];

/// Whose, by GGUF's name of it.
pub(crate) fn experts_of(gguf: &str) -> [&'static str; 3] {
    let own = ARCHITECTURES.iter().find(|own| own.names[0].0 == gguf && !own.expert_tensors.is_empty()).unwrap();
    ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]
        .map(|wanted| own.expert_tensors.iter().find(|(gguf, _)| *gguf == wanted).unwrap().1)
}

/// The checkpoint's name of an expert's tensor.
pub(crate) fn expert_name(layer: usize, pattern: &str, expert: usize, kind: &str) -> String {
    format!("model.layers.{layer}.{}.{kind}", pattern.replace("{}", &expert.to_string()))
}

/// The tensors of one shape and format, of each expert, with other numbers in each.
pub(crate) fn matrices(format: WeightFormat, shape: &[usize], start: i32) -> Vec<Tensor> {
    (0..EXPERTS as i32).map(|expert| ramp(format, shape, start + 13 * expert)).collect()
}

/// One tensor of all of them.
pub(crate) fn stacked(tensors: &[Tensor]) -> Tensor {
    let bytes: Vec<u8> = tensors.iter().flat_map(|tensor| tensor.bytes().to_vec()).collect();
    let shape = [&[tensors.len()][..], tensors[0].shape()].concat();
    Tensor::new(tensors[0].format(), shape, bytes.into()).unwrap()
}

/// A file of two layers with their experts, and what their tensors are by the checkpoint's names.
pub(crate) fn gguf(architecture: &str, format: WeightFormat) -> (GgufWriter, Tensors) {
    let (hidden, inner) = if format.is_quantized() { (256, 512) } else { (HIDDEN, INNER) };
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String(architecture.into()));
    writer.metadata(&format!("{architecture}.block_count"), Value::U32(2));
    writer.metadata(&format!("{architecture}.expert_count"), Value::U32(EXPERTS as u32));
    writer.metadata(&format!("{architecture}.expert_used_count"), Value::U32(2));
    let mut expected = Vec::new();
    let patterns = experts_of(architecture);
    for layer in 0..2 {
        let shapes = [(inner, hidden), (inner, hidden), (hidden, inner)];
        for (role, (gguf, (out, width))) in ["gate", "up", "down"].into_iter().zip(shapes).enumerate() {
            let start = (layer * 101 + role * 31) as i32;
            let kinds = [("weight", format, vec![out, width]), ("bias", WeightFormat::F32, vec![out])];
            for (kind, format, shape) in &kinds[..if architecture == "gpt-oss" { 2 } else { 1 }] {
                let tensors = matrices(*format, shape, start);
                writer.tensor(&format!("blk.{layer}.ffn_{gguf}_exps.{kind}"), &stacked(&tensors));
                for (expert, tensor) in tensors.into_iter().enumerate() {
                    expected.push((expert_name(layer, patterns[role], expert, kind), tensor));
                }
            }
        }
    }
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    (writer, expected)
}

/// A folder of one file of these tensors: name, type, shape, bytes.
pub(crate) fn folder(config: &serde_json::Value, tensors: &[(String, &'static str, Vec<u64>, Vec<u8>)]) -> Files {
    let mut writer = SafetensorsWriter::new();
    for (name, dtype, shape, bytes) in tensors {
        writer.tensor(name, dtype, shape, bytes.clone().into());
    }
    let mut file = Vec::new();
    writer.write_from(0, &mut file, &mut |_, _| Ok(())).unwrap();
    vec![("config.json", config.to_string().into()), ("model.safetensors", file.into())]
}

/// gpt-oss as transformers saves it in `format`: transposed, outputs of gate and up by turns. And what its tensors are.
pub(crate) fn gpt_oss(format: WeightFormat) -> (Files, Tensors) {
    let prefix = "model.layers.0.mlp.experts";
    let patterns = experts_of("gpt-oss");
    let roles = [(INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)];
    let (mut expected, mut of_role) = (Vec::new(), Vec::new());
    for (role, (out, width)) in roles.into_iter().enumerate() {
        let weights = matrices(format, &[out, width], 17 * role as i32);
        let biases = matrices(format, &[out], 5 + 17 * role as i32);
        for expert in 0..EXPERTS {
            expected.push((expert_name(0, patterns[role], expert, "weight"), weights[expert].clone()));
            expected.push((expert_name(0, patterns[role], expert, "bias"), biases[expert].clone()));
        }
        of_role.push((weights, biases));
    }
    let size = format.block_bytes();
    let element = |tensor: &Tensor, index: usize| tensor.bytes()[index * size..][..size].to_vec();
    let [gate, up, down] = &of_role[..] else { panic!() };
    let (mut gate_up_bytes, mut gate_up_biases, mut down_bytes, mut down_biases) = (vec![], vec![], vec![], vec![]);
    for expert in 0..EXPERTS {
        for col in 0..HIDDEN {
            for out in 0..INNER {
                gate_up_bytes.extend(element(&gate.0[expert], out * HIDDEN + col));
                gate_up_bytes.extend(element(&up.0[expert], out * HIDDEN + col));
            }
        }
        for out in 0..INNER {
            gate_up_biases.extend(element(&gate.1[expert], out));
            gate_up_biases.extend(element(&up.1[expert], out));
        }
        for col in 0..INNER {
            (0..HIDDEN).for_each(|out| down_bytes.extend(element(&down.0[expert], out * INNER + col)));
        }
        down_biases.extend_from_slice(down.1[expert].bytes());
    }
    let dims = |dims: &[usize]| dims.iter().map(|&dim| dim as u64).collect::<Vec<_>>();
    let tensors = [
        ("gate_up_proj", dims(&[EXPERTS, HIDDEN, 2 * INNER]), gate_up_bytes),
        ("gate_up_proj_bias", dims(&[EXPERTS, 2 * INNER]), gate_up_biases),
        ("down_proj", dims(&[EXPERTS, INNER, HIDDEN]), down_bytes),
        ("down_proj_bias", dims(&[EXPERTS, HIDDEN]), down_biases),
    ];
    let tensors = tensors.map(|(name, shape, bytes)| (format!("{prefix}.{name}"), format.name(), shape, bytes));
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    let config = json!({ "model_type": "gpt_oss", "num_local_experts": EXPERTS });
    (folder(&config, &tensors), expected)
}

/// gpt-oss as OpenAI published it: four bits, rows of gate and up by turns. And what its weights mean, by the table of the
/// published decoder.
pub(crate) fn gpt_oss_mxfp4() -> (Files, Vec<Meant>) {
    const NUMBERS: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
    let (hidden, inner) = (64, 32);
    let patterns = experts_of("gpt-oss");
    let mut state = 7u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let mut expected = Vec::new();
    let mut tensors = Vec::new();
    for (name, roles, out, width) in [("gate_up_proj", [0, 1], 2 * inner, hidden), ("down_proj", [2, 2], hidden, inner)]
    {
        let (mut blocks, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
        for expert in 0..EXPERTS {
            let mut rows = vec![Vec::new(); out];
            for row in &mut rows {
                for _ in 0..width / 32 {
                    let scale = 120 + next() % 10;
                    scales.push(scale);
                    for _ in 0..16 {
                        let byte = next();
                        blocks.push(byte);
                        // The first of two lies in the lower half.
                        for code in [byte & 15, byte >> 4] {
                            row.push(NUMBERS[usize::from(code)] * 2f32.powi(i32::from(scale) - 127));
                        }
                    }
                }
            }
            let bias = ramp(WeightFormat::BF16, &[out], expert as i32);
            biases.extend_from_slice(bias.bytes());
            let bias = bias.to_f32();
            let alternates = roles[0] != roles[1];
            for (turn, role) in roles.into_iter().enumerate().take(if alternates { 2 } else { 1 }) {
                let step = if alternates { 2 } else { 1 };
                let rows: Vec<f32> = rows.iter().skip(turn).step_by(step).flatten().copied().collect();
                let bias: Vec<f32> = bias.iter().skip(turn).step_by(step).copied().collect();
                let shape = vec![bias.len(), width];
                expected.push((expert_name(0, patterns[role], expert, "bias"), vec![bias.len()], bias));
                expected.push((expert_name(0, patterns[role], expert, "weight"), shape, rows));
            }
        }
        let (experts, out, groups) = (EXPERTS as u64, out as u64, (width / 32) as u64);
        let name = |end: &str| format!("model.layers.0.mlp.experts.{name}_{end}");
        tensors.push((name("blocks"), "U8", vec![experts, out, groups, 16], blocks));
        tensors.push((name("scales"), "U8", vec![experts, out, groups], scales));
        tensors.push((name("bias"), "BF16", vec![experts, out], biases));
    }
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    let config = json!({ "model_type": "gpt_oss", "quantization_config": { "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"] } });
    (folder(&config, &tensors), expected)
}

/// Qwen3 as transformers may save it: `gate_up_proj` has the rows of gate, then those of up. And what its tensors are.
pub(crate) fn fused(format: WeightFormat) -> (Files, Tensors) {
    let patterns = experts_of("qwen3moe");
    let (gate, up) = (matrices(format, &[INNER, HIDDEN], 0), matrices(format, &[INNER, HIDDEN], 100));
    let down = matrices(format, &[HIDDEN, INNER], 200);
    let mut expected = Vec::new();
    for (pattern, tensors) in patterns.into_iter().zip([&gate, &up, &down]) {
        let named = |(expert, tensor): (usize, &Tensor)| (expert_name(0, pattern, expert, "weight"), tensor.clone());
        expected.extend(tensors.iter().enumerate().map(named));
    }
    let both = gate.iter().zip(&up).flat_map(|(gate, up)| [gate.bytes().to_vec(), up.bytes().to_vec()].concat());
    let dims = |dims: &[usize]| dims.iter().map(|&dim| dim as u64).collect::<Vec<_>>();
    let prefix = "model.layers.0.mlp.experts";
    let tensors = [
        (format!("{prefix}.gate_up_proj"), format.name(), dims(&[EXPERTS, 2 * INNER, HIDDEN]), both.collect()),
        (
            format!("{prefix}.down_proj"),
            format.name(),
            dims(&[EXPERTS, HIDDEN, INNER]),
            stacked(&down).bytes().to_vec(),
        ),
    ];
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    (folder(&json!({ "architectures": ["Qwen3MoeForCausalLM"] }), &tensors), expected)
}

/// The type of GGUF for F32.
pub(crate) fn f32_type() -> GgmlType {
    GgmlType::of(WeightFormat::F32).unwrap()
}
