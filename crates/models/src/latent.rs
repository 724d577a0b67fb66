//! Latent attention (MLA; DeepSeek-AI, 2024) as DeepSeek's models and GLM-4.7-Flash have it.
//!
//! A layer keeps one row of each token: `kv_lora_rank` latent numbers after their norm, and `qk_rope_head_dim` turned
//! ones. What checkpoints do with it is to make keys and values of every head from the latent numbers by `kv_b_proj`,
//! and to attend to those. This is the absorbed form, which gives the same numbers: the rows of `kv_b_proj` that make
//! keys bring the queries into the latent space (`k_b_proj`, transposed), and those that make values bring the results
//! out of it (`v_b_proj`), so that no key or value of a head is ever made. Readers of checkpoints give the rows so,
//! head by head.

use plan::{Graph, LatentHeads, Plan, Value, WeightSource, Weights};

use crate::architecture::GgufNames;
use crate::config::{Decoder, Fields, WIDTH_MAX, invalid};
use crate::experts::SharedExperts;
use crate::rope::{self, Rotary};
use crate::{ConfigError, ModelError, blocks};

/// What GGUF files call the parts of these models: one architecture there, `deepseek2`, whatever checkpoints call it.
pub(crate) const GGUF: GgufNames = GgufNames {
    keys: &[
        ("attention.q_lora_rank", "q_lora_rank"),
        ("attention.kv_lora_rank", "kv_lora_rank"),
        ("attention.key_length_mla", "qk_head_dim"),
        ("attention.value_length_mla", "v_head_dim"),
        ("rope.dimension_count", "qk_rope_head_dim"),
        ("rope.scaling.yarn_log_multiplier", "yarn_log_multiplier"),
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
        ("attn_q_a", "self_attn.q_a_proj"),
        ("attn_q_a_norm", "self_attn.q_a_layernorm"),
        ("attn_q_b", "self_attn.q_b_proj"),
        ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
        ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
        ("attn_kv_b", "self_attn.kv_b_proj"),
        ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
        ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
        ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ],
    expert_tensors: &[
        ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
        ("ffn_up_exps", "mlp.experts.{}.up_proj"),
        ("ffn_down_exps", "mlp.experts.{}.down_proj"),
        ("attn_k_b", "self_attn.k_b_proj.{}"),
        ("attn_v_b", "self_attn.v_b_proj.{}"),
    ],
    tensor_flags: &[("attn_kv_a_mqa.bias", "attention_bias")],
    ..GgufNames::SHARED
};

/// A model whose layers are latent attention, and then a dense feed-forward block or experts.
pub(crate) struct LatentModel {
    decoder: Decoder,
    attention: LatentAttention,
    feed_forward: SharedExperts,
}

impl LatentModel {
    /// `feed_forward`: how the fields of the feed-forward blocks are read.
    pub(crate) fn read(
        fields: &Fields<'_>,
        feed_forward: fn(&Fields<'_>) -> Result<SharedExperts, ConfigError>,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            decoder: Decoder::read(fields)?,
            attention: LatentAttention::read(fields)?,
            feed_forward: feed_forward(fields)?,
        })
    }

    pub(crate) fn plan(&self, model_type: &str, source: &dyn WeightSource) -> Result<Plan, ModelError> {
        let Self { decoder, attention, feed_forward } = self;
        Graph::build(model_type, attention.rotary.context_len, source, |g, w| {
            blocks::decoder(g, w, decoder, |g, w, index, x| {
                feed_forward.layer(g, w, decoder, index, x, |g, w, h| attention.of(g, w, decoder.hidden_size, h))
            })
        })
    }
}

/// What the norms of latent spaces add: transformers does not give them `rms_norm_eps`.
const LATENT_EPS: f32 = 1e-6;

/// The attention of a layer.
struct LatentAttention {
    heads: LatentHeads,
    /// Features of a head's query and key that no position turns, and those that it does.
    nope: usize,
    rope: usize,
    /// Features of a head's value.
    value: usize,
    /// Latent numbers of a token.
    rank: usize,
    /// Latent numbers that queries are made from, where they are.
    q_rank: Option<usize>,
    rotary: Rotary,
    /// Whether the pairs that turn lie beside each other, and not half a head apart.
    is_interleaved: bool,
    /// Whether the projections into latent spaces and out of attention have biases.
    bias: bool,
}

impl LatentAttention {
    fn read(fields: &Fields<'_>) -> Result<Self, ConfigError> {
        let width = 1..=WIDTH_MAX;
        let heads = fields.required("num_attention_heads", width.clone())?;
        // GGUF files say 1, because all heads share the row.
        if let Some(kv_heads) = fields.optional("num_key_value_heads", width.clone())?
            && ![1, heads].contains(&kv_heads)
        {
            let expected = format!("`num_attention_heads`, {heads}: latent attention has no groups of heads");
            return Err(invalid("num_key_value_heads", kv_heads, expected));
        }
        let rope = fields.required("qk_rope_head_dim", width.clone())?;
        if !rope.is_multiple_of(2) {
            return Err(invalid("qk_rope_head_dim", rope, "an even number, which the rotary embedding pairs up"));
        }
        let said = |field: &str| fields.config.get(field).is_some_and(|value| !value.is_null());
        // GGUF files have the whole head: `key_length_mla`, or `key_length` in those from before it. Checkpoints call the
        // part that turns `head_dim`, and say what does not beside it.
        let whole = ["qk_head_dim", "head_dim"].into_iter().find(|field| said(field) && !said("qk_nope_head_dim"));
        let nope = match whole {
            None => fields.required("qk_nope_head_dim", width.clone())?,
            Some(field) => {
                let whole = fields.required(field, width.clone())?;
                let expected = || invalid(field, whole, format!("more than `qk_rope_head_dim`, {rope}"));
                whole.checked_sub(rope).filter(|&nope| nope > 0).ok_or_else(expected)?
            }
        };
        let value = fields.required("v_head_dim", width.clone())?;
        let rank = fields.required("kv_lora_rank", width.clone())?;
        for (field, features) in [("qk_nope_head_dim", nope + rope), ("v_head_dim", value), ("kv_lora_rank", rank)] {
            if heads.checked_mul(features).is_none_or(|all| all > WIDTH_MAX) {
                let expected = format!("at most {WIDTH_MAX} features over {heads} heads");
                return Err(invalid(field, features, expected));
            }
        }
        let scale = ((nope + rope) as f64).sqrt().recip() * rope::score_factor(fields)?;
        Ok(Self {
            heads: LatentHeads { heads, scale: scale as f32 },
            nope,
            rope,
            value,
            rank,
            q_rank: fields.optional("q_lora_rank", width)?,
            rotary: Rotary::read(fields, rope)?,
            is_interleaved: fields.get("rope_interleave").is_none() || fields.flag("rope_interleave")?,
            bias: fields.flag("attention_bias")?,
        })
    }

    /// `self_attn` of x, (tokens, hidden).
    pub(crate) fn of(&self, g: &mut Graph, w: &Weights<'_>, hidden: usize, x: Value) -> Result<Value, ModelError> {
        let &Self { heads, nope, rope, value, rank, bias, .. } = self;
        let count = heads.heads;
        let q_width = count * (nope + rope);
        let q = match self.q_rank {
            None => g.linear(x, w.linear("q_proj", q_width, hidden, false)?, q_width),
            Some(q_rank) => {
                let q = g.linear(x, w.linear("q_a_proj", q_rank, hidden, bias)?, q_rank);
                let q = g.rms_norm(q, w.norm("q_a_layernorm", q_rank, LATENT_EPS)?);
                g.linear(q, w.linear("q_b_proj", q_width, q_rank, false)?, q_width)
            }
        };
        let kv = g.linear(x, w.linear("kv_a_proj_with_mqa", rank + rope, hidden, bias)?, rank + rope);

        let of_heads =
            |columns: &dyn Fn(usize) -> Vec<usize>| (0..count).flat_map(|h| columns(h * (nope + rope))).collect();
        let q_nope = columns(g, q, of_heads(&|head| (head..head + nope).collect()));
        let q_rope = columns(g, q, of_heads(&|head| self.turned(head + nope)));
        let latent = columns(g, kv, (0..rank).collect());
        let k_rope = columns(g, kv, self.turned(rank));
        let latent = g.rms_norm(latent, w.norm("kv_a_layernorm", rank, LATENT_EPS)?);
        let (q_rope, k_rope) = (g.rope(q_rope, &self.rotary.rope), g.rope(k_rope, &self.rotary.rope));

        let k_b = w.experts(|head| format!("k_b_proj.{head}"), count, [rank, nope], false)?;
        let v_b = w.experts(|head| format!("v_b_proj.{head}"), count, [value, rank], false)?;
        let q_latent = g.head_linear(q_nope, k_b, rank);
        let o = g.mla_attention([q_latent, q_rope], [latent, k_rope], heads);
        let o = g.head_linear(o, v_b, value);
        Ok(g.linear(o, w.linear("o_proj", hidden, count * value, bias)?, hidden))
    }

    /// The columns of features that turn, from `first` on, with the first of all pairs before the second of them:
    /// queries and keys in the same order have the same products.
    fn turned(&self, first: usize) -> Vec<usize> {
        let rope = self.rope;
        match self.is_interleaved {
            true => (0..2).flat_map(|half| (0..rope / 2).map(move |pair| first + 2 * pair + half)).collect(),
            false => (first..first + rope).collect(),
        }
    }
}

fn columns(g: &mut Graph, x: Value, columns: Vec<usize>) -> Value {
    g.gather_columns(x, columns.into_iter().map(|column| column as u32).collect())
}
