//! The ops. What each one reads, writes, wants, costs and means stands in its file in `ops`; this file lists the ops
//! and forwards to those files.

use crate::cost::Prices;
use crate::ops::{
    AddOp, AttentionOp, Cache, CombineOp, Definition, EmbedOp, ExpertLinearOp, GateRowsOp, GatherColumnsOp, GluOp,
    HeadLinearOp, KvWriteOp, LatentRopeWriteOp, LatentWriteOp, LinearOp, LinearResidualOp, LogitsOp, Meaning,
    MlaAttentionOp, MoeDownOp, MoeGluOp, MoeRouteOp, NormGluOp, NormLinearOp, RmsNormOp, RopeKvWriteOp, RopeOp,
    RouteOp, SelectOutputsOp, WrittenOut,
};
use crate::{
    Activation, Attention, Experts, KvFormat, LatentColumns, Linear, MlaAttention, Norm, Plan, Router, StepCost, Value,
    WeightId,
};

/// One op. The first group is what model files write; the second is what passes make of it, each with the meaning of
/// the ops it replaces.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out[t] = table[token_ids[t]]`; table (vocab_size, hidden_size).
    Embed {
        /// (vocab_size, hidden_size).
        table: WeightId,
        /// (tokens, hidden_size).
        out: Value,
    },
    /// Normalises each slice of `x` that is as wide as the norm's weight.
    RmsNorm {
        /// (rows, n · width of the norm).
        x: Value,
        /// Weight and epsilon.
        norm: Norm,
        /// As `x`.
        out: Value,
    },
    /// out = x · Wᵀ + b.
    Linear {
        /// (rows, in_features).
        x: Value,
        /// Weight and bias.
        linear: Linear,
        /// (rows, out_features).
        out: Value,
    },
    /// Turns each head of `x` by its token's position.
    Rope {
        /// (tokens, heads · head_dim).
        x: Value,
        /// An index into [`Plan::ropes`].
        rope: usize,
        /// As `x`.
        out: Value,
    },
    /// Appends each token's k and v to the cache of `layer`, at the token's position.
    KvWrite {
        /// An index into [`Plan::kv_layers`].
        layer: usize,
        /// (tokens, kv_heads · head_dim).
        k: Value,
        /// (tokens, kv_heads · head_dim).
        v: Value,
    },
    /// Causal attention over the cache, which holds this step's own keys and values already.
    Attention {
        /// (tokens, heads · head_dim).
        q: Value,
        /// Layer, heads, scale and window.
        attention: Attention,
        /// (tokens, heads · head_dim).
        out: Value,
    },
    /// `out[t][h] = x[t][h] · W[h]ᵀ`: each head of a row by a matrix of its own, side by side.
    HeadLinear {
        /// (rows, heads · in_features).
        x: Value,
        /// A projection for each head.
        heads: Experts,
        /// (rows, heads · out_features).
        out: Value,
    },
    /// Appends each token's row to the cache of `layer`, a latent one, at the token's position.
    LatentWrite {
        /// An index into [`Plan::kv_layers`].
        layer: usize,
        /// (tokens, dim).
        latent: Value,
        /// (tokens, rope), turned by the token's position.
        rope: Value,
    },
    /// Causal attention over a latent cache, which holds this step's own rows already: the key of every head is a whole
    /// row, its value the latent numbers of it.
    MlaAttention {
        /// (tokens, heads · dim), in the latent space.
        q_latent: Value,
        /// (tokens, heads · rope), turned by the token's position.
        q_rope: Value,
        /// Layer, heads and scale.
        attention: MlaAttention,
        /// (tokens, heads · dim), in the latent space.
        out: Value,
    },
    /// out = activation(gate) · up, element by element.
    Glu {
        /// (rows, width).
        gate: Value,
        /// (rows, width).
        up: Value,
        /// What the gate goes through.
        activation: Activation,
        /// (rows, width).
        out: Value,
    },
    /// out = a + b.
    Add {
        /// (rows, width).
        a: Value,
        /// (rows, width).
        b: Value,
        /// (rows, width).
        out: Value,
    },
    /// `out[t][i] = x[t][order[i]]`: what a matrix multiplies whose features lie in an order of their own.
    GatherColumns {
        /// (rows, width).
        x: Value,
        /// An index into [`Plan::orders`].
        order: usize,
        /// (rows, numbers of the order).
        out: Value,
    },
    /// Chooses experts for each row, and how much each of them counts.
    Route {
        /// (rows, experts).
        logits: Value,
        /// How.
        router: Router,
        /// (rows, top_k), the ids of experts.
        ids: Value,
        /// (rows, top_k).
        weights: Value,
    },
    /// `out[t][s] = x[t][s] · W[ids[t][s]]ᵀ + b[ids[t][s]]`: the projections of a row by its experts, side by side.
    ExpertLinear {
        /// (rows, in_features), the same for all experts of a row; or (rows, top_k · in_features), a slice for each.
        x: Value,
        /// (rows, top_k).
        ids: Value,
        /// A projection for each expert.
        experts: Experts,
        /// (rows, top_k · out_features).
        out: Value,
    },
    /// `out[t] = Σ_s weights[t][s] · x[t][s]`.
    Combine {
        /// (rows, top_k · width).
        x: Value,
        /// (rows, top_k).
        weights: Value,
        /// (rows, width).
        out: Value,
    },
    /// `out[t] = sigmoid(gate[t]) · x[t]`.
    GateRows {
        /// (rows, width).
        x: Value,
        /// (rows, 1).
        gate: Value,
        /// (rows, width).
        out: Value,
    },
    /// `out[i] = x[output_rows[i]]`: only these rows go on to the logits.
    SelectOutputs {
        /// (tokens, width).
        x: Value,
        /// (outputs, width).
        out: Value,
    },

    /// RMSNorm, then one or more projections of the normalised rows: Q, K and V with their biases.
    NormLinear {
        /// (rows, in_features).
        x: Value,
        /// Norm over the whole row.
        norm: Norm,
        /// Each projection with its result, (rows, out_features).
        projections: Vec<(Linear, Value)>,
    },
    /// RMSNorm, then activation(gate projection) · (up projection).
    NormGlu {
        /// (rows, hidden_size).
        x: Value,
        /// Norm over the whole row.
        norm: Norm,
        /// (intermediate_size, hidden_size).
        gate: Linear,
        /// (intermediate_size, hidden_size).
        up: Linear,
        /// What the gate goes through.
        activation: Activation,
        /// (rows, intermediate_size).
        out: Value,
    },
    /// out = residual + (x · Wᵀ + b).
    LinearResidual {
        /// (rows, in_features).
        x: Value,
        /// Weight and bias.
        linear: Linear,
        /// (rows, out_features).
        residual: Value,
        /// (rows, out_features).
        out: Value,
    },
    /// RMSNorm, the router's projection, and the choice of experts.
    MoeRoute {
        /// (rows, hidden_size).
        x: Value,
        /// Norm over the whole row.
        norm: Norm,
        /// (experts, hidden_size).
        gate: Linear,
        /// How experts are chosen by their logits.
        router: Router,
        /// (rows, top_k), the ids of experts.
        ids: Value,
        /// (rows, top_k).
        weights: Value,
    },
    /// RMSNorm, then activation(gate projection) · (up projection) of each expert of a row.
    MoeGlu {
        /// (rows, hidden_size).
        x: Value,
        /// Norm over the whole row.
        norm: Norm,
        /// (rows, top_k).
        ids: Value,
        /// (moe_intermediate_size, hidden_size) each.
        gate: Experts,
        /// (moe_intermediate_size, hidden_size) each.
        up: Experts,
        /// What the gate goes through.
        activation: Activation,
        /// (rows, top_k · moe_intermediate_size).
        out: Value,
    },
    /// `out[t] = residual[t] + Σ_s weights[t][s] · (x[t][s] · W[ids[t][s]]ᵀ + b[ids[t][s]])`.
    MoeDown {
        /// (rows, top_k · moe_intermediate_size).
        x: Value,
        /// (rows, top_k).
        ids: Value,
        /// (rows, top_k).
        weights: Value,
        /// (hidden_size, moe_intermediate_size) each.
        down: Experts,
        /// (rows, hidden_size).
        residual: Value,
        /// (rows, hidden_size).
        out: Value,
    },
    /// q_out = rope(norm(q)); cache ← rope(norm(k)), v.
    RopeKvWrite {
        /// (tokens, heads · head_dim).
        q: Value,
        /// (tokens, kv_heads · head_dim).
        k: Value,
        /// (tokens, kv_heads · head_dim).
        v: Value,
        /// Norm of each query head, where the model has one.
        q_norm: Option<Norm>,
        /// Norm of each key head, where the model has one.
        k_norm: Option<Norm>,
        /// An index into [`Plan::ropes`].
        rope: usize,
        /// An index into [`Plan::kv_layers`].
        layer: usize,
        /// As `q`.
        q_out: Value,
    },
    /// Takes apart what latent attention is made from: q_nope and q_rope are columns of q, cache ← columns of kv, the
    /// latent ones normalised; q_rope and the last columns of the row are turned.
    LatentRopeWrite {
        /// (tokens, heads · qk_head_dim).
        q: Value,
        /// (tokens, dim + rope).
        kv: Value,
        /// Which columns are which part.
        columns: LatentColumns,
        /// Of the latent numbers.
        norm: Norm,
        /// An index into [`Plan::ropes`].
        rope: usize,
        /// An index into [`Plan::kv_layers`].
        layer: usize,
        /// (tokens, heads · nope).
        q_nope: Value,
        /// (tokens, heads · rope), turned by the token's position.
        q_rope: Value,
    },
    /// `out = norm(x[output_rows]) · headᵀ + b`.
    Logits {
        /// (tokens, hidden_size).
        x: Value,
        /// The final norm.
        norm: Norm,
        /// `lm_head`, (vocab_size, hidden_size).
        head: Linear,
        /// (outputs, vocab_size).
        out: Value,
    },
}

impl Op {
    /// Shows `visit` the meaning of the op. This is the only `match` over all ops in this crate: a new op is a new arm
    /// here, and everything else about it is in its own file.
    pub(crate) fn meaning<R>(&self, visit: impl FnOnce(&dyn Meaning) -> R) -> R {
        match *self {
            Self::Embed { table, out } => visit(&EmbedOp { table, out }),
            Self::RmsNorm { x, norm, out } => visit(&RmsNormOp { x, norm, out }),
            Self::Linear { x, linear, out } => visit(&LinearOp { x, linear, out }),
            Self::Rope { x, rope, out } => visit(&RopeOp { x, rope, out }),
            Self::KvWrite { layer, k, v } => visit(&KvWriteOp { layer, k, v }),
            Self::Attention { q, attention, out } => visit(&AttentionOp { q, attention, out }),
            Self::HeadLinear { x, heads, out } => visit(&HeadLinearOp { x, heads, out }),
            Self::LatentWrite { layer, latent, rope } => visit(&LatentWriteOp { layer, latent, rope }),
            Self::MlaAttention { q_latent, q_rope, attention, out } => {
                visit(&MlaAttentionOp { q_latent, q_rope, attention, out })
            }
            Self::Glu { gate, up, activation, out } => visit(&GluOp { gate, up, activation, out }),
            Self::Add { a, b, out } => visit(&AddOp { a, b, out }),
            Self::GatherColumns { x, order, out } => visit(&GatherColumnsOp { x, order, out }),
            Self::Route { logits, router, ids, weights } => visit(&RouteOp { logits, router, ids, weights }),
            Self::ExpertLinear { x, ids, experts, out } => visit(&ExpertLinearOp { x, ids, experts, out }),
            Self::Combine { x, weights, out } => visit(&CombineOp { x, weights, out }),
            Self::GateRows { x, gate, out } => visit(&GateRowsOp { x, gate, out }),
            Self::SelectOutputs { x, out } => visit(&SelectOutputsOp { x, out }),
            Self::NormLinear { x, norm, ref projections } => visit(&NormLinearOp { x, norm, projections }),
            Self::NormGlu { x, norm, gate, up, activation, out } => {
                visit(&NormGluOp { x, norm, gate, up, activation, out })
            }
            Self::LinearResidual { x, linear, residual, out } => visit(&LinearResidualOp { x, linear, residual, out }),
            Self::MoeRoute { x, norm, gate, router, ids, weights } => {
                visit(&MoeRouteOp { x, norm, gate, router, ids, weights })
            }
            Self::MoeGlu { x, norm, ids, gate, up, activation, out } => {
                visit(&MoeGluOp { x, norm, ids, gate, up, activation, out })
            }
            Self::MoeDown { x, ids, weights, down, residual, out } => {
                visit(&MoeDownOp { x, ids, weights, down, residual, out })
            }
            Self::RopeKvWrite { q, k, v, q_norm, k_norm, rope, layer, q_out } => {
                visit(&RopeKvWriteOp { q, k, v, q_norm, k_norm, rope, layer, q_out })
            }
            Self::LatentRopeWrite { q, kv, columns, norm, rope, layer, q_nope, q_rope } => {
                visit(&LatentRopeWriteOp { q, kv, columns, norm, rope, layer, q_nope, q_rope })
            }
            Self::Logits { x, norm, head, out } => visit(&LogitsOp { x, norm, head, out }),
        }
    }

    /// The op's one name, everywhere: files, backends' folders, bench rows.
    pub fn name(&self) -> &'static str {
        self.meaning(|op| op.name())
    }

    /// The values that the op reads.
    pub fn inputs(&self) -> Vec<Value> {
        self.meaning(|op| op.operands().inputs)
    }

    /// The values that the op defines.
    pub fn outputs(&self) -> Vec<Value> {
        self.meaning(|op| op.operands().outputs)
    }

    /// The weights that the op reads.
    pub fn weights(&self) -> Vec<WeightId> {
        self.meaning(|op| op.operands().weights)
    }

    /// The layer whose cache the op reads or writes.
    pub fn cache_layer(&self) -> Option<usize> {
        self.meaning(|op| op.operands().cache).map(Cache::layer)
    }

    /// The layer whose cache the op writes.
    pub fn written_layer(&self) -> Option<usize> {
        match self.meaning(|op| op.operands().cache)? {
            Cache::Reads(_) => None,
            Cache::Writes(layer) => Some(layer),
        }
    }

    /// Whether each row of the op's results follows from the same row of its operands alone, so that the op may run on
    /// a part of the rows.
    pub fn is_row_by_row(&self) -> bool {
        self.meaning(|op| op.is_row_by_row())
    }

    /// What the op costs in each step, with weights of `weight_bytes` and a cache in `kv_format`.
    pub fn cost(&self, plan: &Plan, weight_bytes: &dyn Fn(WeightId) -> u64, kv_format: KvFormat) -> StepCost {
        self.meaning(|op| op.cost(&Prices { plan, weight_bytes, kv_format }))
    }

    /// The op with the same value in the place of every operand and result: equal for two ops that compute the same,
    /// whatever they compute it from.
    pub fn without_values(&self) -> Self {
        self.meaning(|op| op.with_values(&mut |_| Value(0)))
    }

    /// The textbook ops that a fused op of `plan` stands for; a textbook op stands for itself.
    pub fn written_out(&self, plan: &Plan) -> WrittenOut {
        let mut written_out = WrittenOut::new(plan);
        self.meaning(|op| match op.definition() {
            Definition::Textbook(_) => written_out.ops.push(self.clone()),
            Definition::Fused(op) => op.write_out(plan, &mut written_out),
        });
        written_out
    }

    /// Puts other values in the place of those that the op reads or defines, for passes that renumber.
    pub(crate) fn map_values(&mut self, mut map: impl FnMut(Value) -> Value) {
        *self = self.meaning(|op| op.with_values(&mut map));
    }
}
