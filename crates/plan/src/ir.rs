//! The intermediate representation. Every value is a matrix of f32 activations: rows are the tokens of the step (or the
//! rows whose logits are wanted), columns are features.

use std::fmt;

use crate::{KvFormat, Op, Rope, StepShape};

/// A value of the plan: the result of exactly one op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub(crate) u32);

/// A weight of the plan, by its place in [`Plan::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub(crate) u32);

impl Value {
    /// Its place in [`Plan::values`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl WeightId {
    /// Its place in [`Plan::weights`], which is also its place in the list of tensors that a backend loads.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What the rows of a value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One row for each token of the step.
    Tokens,
    /// One row for each entry of [`StepInput::output_rows`](crate::StepInput::output_rows).
    Outputs,
}

impl Rows {
    /// How many there are in a step of `shape`.
    pub fn count(self, shape: StepShape) -> usize {
        match self {
            Self::Tokens => shape.tokens,
            Self::Outputs => shape.outputs,
        }
    }
}

/// The shape of a value: (rows, width), f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueInfo {
    /// What the rows are.
    pub rows: Rows,
    /// Features in a row.
    pub width: usize,
}

/// The name and shape of a weight; its storage format is the loader's and the backend's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightInfo {
    /// The checkpoint's name, `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Dimensions, outermost first: (out_features, in_features) for a projection.
    pub shape: Vec<usize>,
}

/// The heads of one attention layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// `num_key_value_heads`.
    pub kv_heads: usize,
    /// Features of a key or value head.
    pub head_dim: usize,
}

impl KvLayer {
    /// Elements of a token's key, and of its value: kv_heads · head_dim.
    pub fn width(self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Bytes that a token takes in it, key and value together.
    pub fn bytes(self, format: KvFormat) -> usize {
        2 * self.width() * format.bytes()
    }
}

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
    pub kv_layers: Vec<KvLayer>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_cache_bytes_are_counted_in_one_place() {
        let shape = StepShape { tokens: 7, sequences: 2, outputs: 3 };
        assert_eq!([Rows::Tokens, Rows::Outputs].map(|rows| rows.count(shape)), [7, 3]);
        let layer = KvLayer { kv_heads: 3, head_dim: 4 };
        assert_eq!(layer.width(), 12);
        assert_eq!([KvFormat::F32, KvFormat::F16].map(|format| layer.bytes(format)), [96, 48]);
    }
}
