//! The plan: ops in execution order, and the tables that they index.

use std::fmt;

use crate::{CacheLayer, KvFormat, Op, Rope, Router, Value, ValueInfo, WeightId, WeightInfo};

/// What a model computes in one step: ops in execution order, and the tables that they index.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The architecture, `model_type` of the checkpoint.
    pub model_type: String,
    /// The shapes of all values.
    pub values: Vec<ValueInfo>,
    /// The weights that the ops read; a backend is given tensors in this order.
    pub weights: Vec<WeightInfo>,
    /// The rotary embeddings in use; layers usually share one.
    pub ropes: Vec<Rope>,
    /// Orders of columns: [`Op::GatherColumns`].
    pub orders: Vec<Vec<u32>>,
    /// The cache of each attention layer.
    pub kv_layers: Vec<CacheLayer>,
    /// In execution order.
    pub ops: Vec<Op>,
    /// The result: (outputs, vocab_size).
    pub logits: Value,
    /// Tokens in the vocabulary: the width of the logits.
    pub vocab_size: usize,
    /// The longest sequence that the model was made for, in tokens (`max_position_embeddings`).
    pub context_len: usize,
}

impl Plan {
    /// The shape of `value`.
    pub fn value(&self, value: Value) -> ValueInfo {
        self.values[value.index()]
    }

    /// Name and shape of `weight`.
    pub fn weight(&self, weight: WeightId) -> &WeightInfo {
        &self.weights[weight.index()]
    }

    /// The router whose choice `ids` is.
    pub(crate) fn router_of(&self, chosen: Value) -> Option<&Router> {
        self.ops.iter().find_map(|op| match op {
            Op::Route { router, ids, .. } | Op::MoeRoute { router, ids, .. } if *ids == chosen => Some(router),
            _ => None,
        })
    }

    /// Bytes that one token takes in the cache, over all layers.
    pub fn kv_bytes_per_token(&self, format: KvFormat) -> usize {
        self.kv_layers.iter().map(|layer| layer.bytes(format)).sum()
    }
}

impl fmt::Display for Plan {
    /// One line an op: `v3, v4 = norm_linear(v2; model.layers.0.input_layernorm.weight, …)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |values: Vec<Value>| values.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
        for op in &self.ops {
            let weights = op.weights().iter().map(|&w| self.weight(w).name.clone()).collect::<Vec<_>>().join(", ");
            let outputs = list(op.outputs());
            let equals = if outputs.is_empty() { "" } else { " = " };
            writeln!(f, "{outputs}{equals}{}({}; {weights})", op.name(), list(op.inputs()))?;
        }
        Ok(())
    }
}
