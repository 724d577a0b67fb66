//! Tiny random models of every architecture, in every weight format.

use std::sync::Arc;

use plan::{AnyShape, Plan};
use serde_json::{Value, json};
use tensor::quant::q4_0;
use tensor::quant::q5_0::{self, share_zero_point};
use tensor::{Tensor, WeightFormat};

use crate::Rng;

/// The architectures that [`tiny_model`] makes: all there are.
pub const MODEL_TYPES: [&str; models::SUPPORTED.len()] = models::SUPPORTED;

/// A random model of two layers or three: its plan in textbook ops, and its weights in the order of the plan.
///
/// Shapes are as odd as the format allows: head counts that are no powers of two, heads that do not add up to the hidden
/// size, vocabularies that are no multiple of anything, and where the architecture has them biases, windows, tied heads
/// and stretched rotary frequencies. Projections and embeddings are in `format`; norms and biases as files have them,
/// in `format` beside 16-bit projections and in F32 beside quantised ones.
pub fn tiny_model(model_type: &str, seed: u64, format: WeightFormat) -> (Arc<Plan>, Vec<Tensor>) {
    let (plan, mut rng) = plan_and_rest(model_type, seed, format);
    let weights = random_weights(&plan, &mut rng, format);
    (Arc::new(plan), weights)
}

/// The plan of [`tiny_model`] alone, because packing its weights takes a hundred times as long.
pub fn tiny_plan(model_type: &str, seed: u64, format: WeightFormat) -> Arc<Plan> {
    Arc::new(plan_and_rest(model_type, seed, format).0)
}

/// A plan, and the generator that its weights come from.
fn plan_and_rest(model_type: &str, seed: u64, format: WeightFormat) -> (Plan, Rng) {
    let mut rng = Rng::new(seed ^ 0x7143_0000);
    let config = tiny_config(model_type, &mut rng, format);
    (models::build_plan(&config, &AnyShape).expect("a valid configuration"), rng)
}

/// Random weights for `plan` that keep activations of the order of one: projections have a deviation of
/// 1/√in_features, norms lie around one.
pub fn random_weights(plan: &Plan, rng: &mut Rng, format: WeightFormat) -> Vec<Tensor> {
    let vector_format = if format.block_len() > 1 { WeightFormat::F32 } else { format };
    plan.weights
        .iter()
        .map(|weight| match weight.shape[..] {
            // A router that is seldom in doubt.
            [_, in_features] if weight.name.ends_with(".gate.weight") || weight.name.ends_with("router.weight") => {
                rng.tensor(format, &weight.shape, 0.0, 2.0 / (in_features as f32).sqrt())
            }
            [_] if weight.name.ends_with("bias") => rng.tensor(vector_format, &weight.shape, 0.0, 0.4),
            [_] => rng.tensor(vector_format, &weight.shape, 1.0, 0.3),
            _ if weight.name.contains("embed_tokens") => rng.tensor(format, &weight.shape, 0.0, 0.5),
            [.., in_features] => rng.tensor(format, &weight.shape, 0.0, 1.4 / (in_features as f32).sqrt()),
            [] => unreachable!("the verifier refuses weights without dimensions"),
        })
        .collect()
}

/// As [`tiny_model`], with every matrix as files of INT4 in groups of 128 are read: in Q4_0, or with zero points in Q5_0, see
/// [`in_groups`].
pub fn tiny_int4_model(model_type: &str, seed: u64, format: WeightFormat) -> (Arc<Plan>, Vec<Tensor>) {
    // The shapes of a format whose blocks are two groups.
    let (plan, weights) = tiny_model(model_type, seed, WeightFormat::Q4_K);
    let to_int4 = |tensor: &Tensor| match tensor.shape() {
        [_] => tensor.clone(),
        shape => {
            let blocks = Tensor::from_f32(format, shape.to_vec(), &tensor.to_f32());
            in_groups(&blocks.expect("whole blocks"), 128)
        }
    };
    let weights = weights.iter().map(to_int4).collect();
    (plan, weights)
}

/// A tensor as files of INT4 with one scale for `group` weights are read: the scale of the first block of each group is that
/// of all. In Q4_0 nothing else changes; in Q5_0 a group has a zero point, too, and codes of four bits. Tensors in other formats, and
/// those whose rows are not whole groups, stay as they are.
pub fn in_groups(tensor: &Tensor, group: usize) -> Tensor {
    if !tensor.row_len().is_multiple_of(group) {
        return tensor.clone();
    }
    let bytes = match tensor.format() {
        WeightFormat::Q4_0 => {
            let mut blocks = tensor.as_slice::<q4_0::Block>().to_vec();
            for blocks in blocks.chunks_mut(group / q4_0::BLOCK_LEN) {
                let scale = blocks[0].scale;
                blocks.iter_mut().for_each(|block| block.scale = scale);
            }
            bytemuck::cast_slice(&blocks).to_vec()
        }
        WeightFormat::Q5_0 => {
            let mut blocks = tensor.as_slice::<q5_0::Block>().to_vec();
            let groups = blocks.chunks_mut(group / q5_0::BLOCK_LEN);
            groups.zip([8, 7, 9, 6, 10].into_iter().cycle()).for_each(|(blocks, zero)| share_zero_point(blocks, zero));
            bytemuck::cast_slice(&blocks).to_vec()
        }
        _ => return tensor.clone(),
    };
    Tensor::new(tensor.format(), tensor.shape().to_vec(), bytes.into()).expect("as long as before")
}

fn tiny_config(model_type: &str, rng: &mut Rng, format: WeightFormat) -> Value {
    let block = format.block_len();
    let kv_heads = rng.pick(&[1, 2, 3]);
    // Large blocks are as long as all heads together, whose number divides them then.
    let (kv_heads, heads_in_a_block) = if block > 32 { (kv_heads.min(2), 4) } else { (kv_heads, 1) };
    let heads = if block > 32 { heads_in_a_block } else { kv_heads * rng.pick(&[1, 2, 3]) };
    // o_proj reads heads · head_dim features, which have to be whole blocks.
    let head_dim = match block {
        1 => rng.pick(&[6, 10, 14, 16]),
        32 => block * rng.pick(&[1, 2]),
        _ => block / heads_in_a_block,
    };
    let layers = rng.pick(&[2, 3]);
    let mut config = json!({
        "model_type": model_type,
        "vocab_size": 83 + rng.below(60),
        "hidden_size": match block {
            1 => 31 + rng.below(20),
            32 => block * (2 + rng.below(2)),
            _ => block,
        },
        "intermediate_size": match block {
            1 => 43 + rng.below(30),
            32 => block * (1 + rng.below(4)),
            _ => block * (1 + rng.below(2)),
        },
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": rng.below(2) == 0,
    });
    match model_type {
        "llama" => {
            config["attention_bias"] = json!(rng.below(2) == 0);
            config["mlp_bias"] = json!(rng.below(2) == 0);
            if rng.below(2) == 0 {
                config["rope_theta"] = json!(1000.0);
                config["rope_scaling"] = json!({
                    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                });
            }
        }
        "mistral" | "mixtral" => config["sliding_window"] = rng.pick(&[Some(5), Some(33), None]).into(),
        _ => {
            config["use_sliding_window"] = json!(true);
            config["sliding_window"] = json!(9);
            config["max_window_layers"] = json!(1);
        }
    }
    // The others' random weights are those that they had before there were mixtures: tests know their texts.
    let latent = ["deepseek_v2", "deepseek_v3", "glm4_moe_lite"];
    let mixtures = ["mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "glm4_moe"];
    if !mixtures.iter().chain(&latent).any(|&known| known == model_type) {
        return config;
    }
    if latent.contains(&model_type) {
        // Heads whose parts differ in width; each matrix of them has rows of whole blocks.
        config["num_key_value_heads"] = json!(heads);
        config["qk_nope_head_dim"] = json!(if block == 1 { rng.pick(&[5, 8, 12]) } else { block });
        config["qk_rope_head_dim"] = json!(rng.pick(&[4, 6, 10]));
        config["v_head_dim"] = json!(if block == 1 { rng.pick(&[7, 16, 18]) } else { head_dim });
        config["kv_lora_rank"] = json!(if block == 1 { 13 + rng.below(20) } else { block });
        config["q_lora_rank"] = json!(rng.pick(&[None, Some(if block == 1 { 21 } else { block })]));
    }
    let inner = match block {
        1 => 9 + rng.below(12),
        _ => block * (1 + rng.below(2)),
    };
    let experts = rng.pick(&[4, 6, 9]);
    match model_type {
        "mixtral" => {
            config["num_local_experts"] = json!(experts);
            config["num_experts_per_tok"] = json!(rng.pick(&[1, 2, 4]));
            config["intermediate_size"] = json!(inner);
        }
        "gpt_oss" => {
            config["num_local_experts"] = json!(experts);
            config["num_experts_per_tok"] = json!(rng.pick(&[1, 2, 4]));
            config["intermediate_size"] = json!(inner);
            config["rope_scaling"] = json!({
                "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 0.5, "truncate": false,
                "original_max_position_embeddings": 32,
            });
        }
        "glm4_moe" | "deepseek_v2" | "deepseek_v3" | "glm4_moe_lite" => {
            let (experts, groups) = rng.pick(&[(8, (1, 1)), (8, (4, 2)), (9, (3, 2))]);
            config["n_routed_experts"] = json!(experts);
            config["num_experts_per_tok"] = json!(rng.pick(&[1, 2, 4]));
            (config["n_group"], config["topk_group"]) = (json!(groups.0), json!(groups.1));
            config["moe_intermediate_size"] = json!(inner);
            config["n_shared_experts"] = json!(1 + rng.below(2));
            config["routed_scaling_factor"] = json!(1.8);
            config["attention_bias"] = json!(true);
            if latent.contains(&model_type) {
                config["first_k_dense_replace"] = json!(1);
                if model_type == "deepseek_v2" && groups.0 > 1 {
                    config["topk_method"] = json!("group_limited_greedy");
                }
                if rng.below(2) == 0 {
                    config["rope_scaling"] = json!({
                        "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 0.5, "mscale": 0.707,
                        "mscale_all_dim": 0.707, "original_max_position_embeddings": 32,
                    });
                }
                return config;
            }
            config["use_qk_norm"] = json!(rng.below(2) == 0);
            // At least a pair, and whole pairs.
            config["partial_rotary_factor"] = json!(head_dim.div_ceil(4) as f64 * 2.0 / head_dim as f64);
        }
        "qwen2_moe" | "qwen3_moe" => {
            config["num_experts"] = json!(experts);
            config["num_experts_per_tok"] = json!(rng.pick(&[1, 2, 4]));
            config["moe_intermediate_size"] = json!(inner);
            config["shared_expert_intermediate_size"] = json!(block.max(11));
            config["norm_topk_prob"] = json!(rng.below(2) == 0);
            config["mlp_only_layers"] = json!(vec![0; rng.below(2)]);
        }
        _ => {}
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_comes_in_every_format_and_the_seed_decides() {
        for model_type in MODEL_TYPES {
            for format in WeightFormat::ALL {
                let (plan, weights) = tiny_model(model_type, 7, format);
                assert!(plan.weights.iter().zip(&weights).all(|(info, tensor)| info.shape == tensor.shape()));
                assert!(weights.iter().any(|tensor| tensor.format() == format));
                let (again, same) = tiny_model(model_type, 7, format);
                assert_eq!(plan, again);
                assert!(weights.iter().zip(&same).all(|(a, b)| a.bytes() == b.bytes()));
            }
        }
    }
}
