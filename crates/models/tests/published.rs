//! The configurations of published checkpoints, as their `config.json` has them, give plans with as many parameters as
//! the checkpoints have.

use plan::{AnyShape, KvFormat, MemoryPlan, StepShape, fuse, restrict_outputs};
use serde_json::{Value, json};

fn parameters(config: &Value) -> usize {
    let plan = models::build_plan(config, &AnyShape).unwrap();
    plan.weights.iter().map(|weight| weight.shape.iter().product::<usize>()).sum()
}

fn qwen2_5_0_5b() -> Value {
    json!({
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
        "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2",
        "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936,
    })
}

#[test]
fn parameters_are_as_many_as_published() {
    assert_eq!(parameters(&qwen2_5_0_5b()), 494_032_768);

    let qwen3_0_6b = json!({
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
        "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
        "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936,
    });
    assert_eq!(parameters(&qwen3_0_6b), 596_049_920);

    let llama_3_2_1b = json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "rope_theta": 500000.0, "tie_word_embeddings": true, "vocab_size": 128256,
    });
    assert_eq!(parameters(&llama_3_2_1b), 1_235_814_400);

    let mistral_7b_v0_1 = json!({
        "architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 32000,
    });
    assert_eq!(parameters(&mistral_7b_v0_1), 7_241_732_096);
}

/// What `hotmetal plan` says from headers alone: 12 KiB of cache for each token, and the activations of a prefill.
#[test]
fn memory_follows_from_the_plan() {
    let plan = fuse(restrict_outputs(models::build_plan(&qwen2_5_0_5b(), &AnyShape).unwrap()));
    assert_eq!(plan.kv_bytes_per_token(KvFormat::F16), 24 * 2 * 2 * 64 * 2);
    let memory = MemoryPlan::new(&plan, StepShape { tokens: 512, sequences: 1, outputs: 1 });
    memory.check(&plan).unwrap();
    // At the widest point the gated unit's 4864 features lie beside the residual stream's 896, and little else; then
    // there is the one row of logits.
    let widest = 512 * (4864 + 2 * 896);
    assert!(memory.len >= widest - 512 * 896 && memory.len <= widest + 151_936, "{}", memory.len);
}
