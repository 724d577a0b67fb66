//! The intermediate representation. Every value is a matrix of f32 activations: rows are the tokens of the step (or the
//! rows whose logits are wanted), columns are features.

use std::fmt;

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

/// RMSNorm over slices as wide as the weight: y = x / sqrt(mean(x²) + eps) · weight (Zhang and Sennrich, 2019).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// (width,) — the width of a slice: the whole row, or one head of it.
    pub weight: WeightId,
    /// Added to the mean square.
    pub eps: f32,
}

/// y = x · weightᵀ + bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// (out_features, in_features).
    pub weight: WeightId,
    /// (out_features,).
    pub bias: Option<WeightId>,
}

/// The gate's activation in a gated linear unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// x · sigmoid(x) (Elfwing et al., 2017).
    Silu,
    /// x · sigmoid(2 √(2 / π) · (x + 0.044715 · x³)): GELU by its approximation with a hyperbolic tangent (Hendrycks and
    /// Gimpel, 2016), which is what PyTorch calls `approximate="tanh"`.
    GeluTanh,
    /// max(x, 0).
    Relu,
}

impl Activation {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Silu, Self::GeluTanh, Self::Relu];
}

/// How rotary frequencies are stretched beyond the trained context.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Frequencies as trained.
    None,
    /// Every frequency divided by `factor` (Chen et al., 2023).
    Linear {
        /// The stretch.
        factor: f32,
    },
    /// Llama 3.1: long wavelengths are divided by `factor`, short ones kept, those between interpolated.
    Llama3 {
        /// The stretch of long wavelengths.
        factor: f32,
        /// Wavelengths over `original_max_position_embeddings / low_freq_factor` are stretched fully.
        low_freq_factor: f32,
        /// Wavelengths under `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// The trained context, in tokens.
        original_max_position_embeddings: f32,
    },
    /// YaRN (Peng et al., 2023): pairs that turn often in the trained context are kept, those that turn seldom are
    /// divided by `factor`, those between are interpolated along the pairs' indices.
    Yarn {
        /// The stretch of slow pairs.
        factor: f32,
        /// The trained context, in tokens.
        original_max_position_embeddings: f32,
        /// Pairs that turn at least so often in the trained context are kept.
        beta_fast: f32,
        /// Pairs that turn at most so often in it are stretched fully.
        beta_slow: f32,
        /// Whether the first and the last pair between are rounded outwards to whole indices.
        truncate: bool,
    },
    /// Each pair's frequency divided by its own factor (GGUF's `rope_freqs` tensor, LongRoPE's lists): `head_dim / 2`
    /// factors.
    Factors(Vec<f32>),
}

/// Rotary position embedding on halves (the `rotate_half` pairing of the checkpoints: feature i with i + head_dim / 2).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Features in a head; even.
    pub head_dim: usize,
    /// The base: pair i turns by position · theta^(-2i / head_dim).
    pub theta: f32,
    /// The stretch of the frequencies.
    pub scaling: RopeScaling,
    /// What cosines and sines are multiplied by: scores grow with its square, as YaRN and LongRoPE ask. 1 for others.
    pub attention_factor: f32,
}

impl Rope {
    /// Radians that each pair turns in one position: `head_dim / 2` frequencies, in f64 so that every backend rounds
    /// the same numbers.
    pub fn frequencies(&self) -> Vec<f64> {
        let half = self.head_dim / 2;
        let theta = f64::from(self.theta);
        let yarn = self.yarn_ramp();
        (0..half)
            .map(|pair| {
                let frequency = theta.powf(-2.0 * pair as f64 / self.head_dim as f64);
                match &self.scaling {
                    RopeScaling::None => frequency,
                    RopeScaling::Linear { factor } => frequency / f64::from(*factor),
                    &RopeScaling::Llama3 {
                        factor,
                        low_freq_factor,
                        high_freq_factor,
                        original_max_position_embeddings,
                    } => {
                        let turns = f64::from(original_max_position_embeddings) * frequency / std::f64::consts::TAU;
                        let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
                        // 0 for the slow pairs that are stretched fully, 1 for the fast ones that are kept.
                        let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                        frequency * (keep + (1.0 - keep) / f64::from(factor))
                    }
                    &RopeScaling::Yarn { factor, .. } => {
                        // 0 for the pairs that are kept, 1 for those that are stretched fully.
                        let stretch = ((pair as f64 - yarn.0) / (yarn.1 - yarn.0)).clamp(0.0, 1.0);
                        frequency * (1.0 - stretch + stretch / f64::from(factor))
                    }
                    RopeScaling::Factors(factors) => frequency / f64::from(factors[pair]),
                }
            })
            .collect()
    }

    /// Cosines and sines of the frequencies at `position`, times [`Self::attention_factor`], in f64.
    pub fn angle(&self, frequency: f64, position: usize) -> (f64, f64) {
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        let factor = f64::from(self.attention_factor);
        (cos * factor, sin * factor)
    }

    /// The pairs, as real numbers, between which YaRN goes from kept to stretched; (0, 1) for other kinds.
    fn yarn_ramp(&self) -> (f64, f64) {
        let &RopeScaling::Yarn { original_max_position_embeddings, beta_fast, beta_slow, truncate, .. } = &self.scaling
        else {
            return (0.0, 1.0);
        };
        let (dims, theta) = (self.head_dim as f64, f64::from(self.theta));
        // The pair that turns so often in the trained context.
        let pair_of = |turns: f32| {
            let wavelength = f64::from(original_max_position_embeddings) / (f64::from(turns) * std::f64::consts::TAU);
            dims * wavelength.ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (pair_of(beta_fast), pair_of(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(dims - 1.0));
        // Where both are one pair, a step between it and the next.
        (low, if low == high { high + 0.001 } else { high })
    }
}

/// The heads of one attention layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// `num_key_value_heads`.
    pub kv_heads: usize,
    /// Features of a key or value head.
    pub head_dim: usize,
}

/// Causal grouped-query attention of q over the cache of one layer: query head h reads key/value head h · kv_heads / heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Whose cache, an index into [`Plan::kv_layers`].
    pub layer: usize,
    /// `num_attention_heads`.
    pub heads: usize,
    /// Scores are q·k · scale.
    pub scale: f32,
    /// A token sees the last `window` positions, itself included; `None` sees all.
    pub window: Option<usize>,
}

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
    /// The op's one name, everywhere: files, backends' folders, bench rows.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embed { .. } => "embed",
            Self::RmsNorm { .. } => "rms_norm",
            Self::Linear { .. } => "linear",
            Self::Rope { .. } => "rope",
            Self::KvWrite { .. } => "kv_write",
            Self::Attention { .. } => "attention",
            Self::Glu { .. } => "glu",
            Self::Add { .. } => "add",
            Self::GatherColumns { .. } => "gather_columns",
            Self::SelectOutputs { .. } => "select_outputs",
            Self::NormLinear { .. } => "norm_linear",
            Self::NormGlu { .. } => "norm_glu",
            Self::LinearResidual { .. } => "linear_residual",
            Self::RopeKvWrite { .. } => "rope_kv_write",
            Self::Logits { .. } => "logits",
        }
    }

    /// The values that the op reads.
    pub fn inputs(&self) -> Vec<Value> {
        match *self {
            Self::Embed { .. } => vec![],
            Self::RmsNorm { x, .. }
            | Self::Linear { x, .. }
            | Self::Rope { x, .. }
            | Self::GatherColumns { x, .. }
            | Self::SelectOutputs { x, .. }
            | Self::NormLinear { x, .. }
            | Self::NormGlu { x, .. }
            | Self::Logits { x, .. } => vec![x],
            Self::KvWrite { k, v, .. } => vec![k, v],
            Self::Attention { q, .. } => vec![q],
            Self::Glu { gate, up, .. } => vec![gate, up],
            Self::Add { a, b, .. } => vec![a, b],
            Self::LinearResidual { x, residual, .. } => vec![x, residual],
            Self::RopeKvWrite { q, k, v, .. } => vec![q, k, v],
        }
    }

    /// The values that the op defines.
    pub fn outputs(&self) -> Vec<Value> {
        match self {
            Self::Embed { out, .. }
            | Self::RmsNorm { out, .. }
            | Self::Linear { out, .. }
            | Self::Rope { out, .. }
            | Self::Attention { out, .. }
            | Self::Glu { out, .. }
            | Self::Add { out, .. }
            | Self::GatherColumns { out, .. }
            | Self::SelectOutputs { out, .. }
            | Self::NormGlu { out, .. }
            | Self::LinearResidual { out, .. }
            | Self::Logits { out, .. } => vec![*out],
            Self::KvWrite { .. } => vec![],
            Self::RopeKvWrite { q_out, .. } => vec![*q_out],
            Self::NormLinear { projections, .. } => projections.iter().map(|&(_, out)| out).collect(),
        }
    }

    /// Visits every value that the op reads or defines, for passes that renumber.
    pub(crate) fn for_each_value_mut(&mut self, mut visit: impl FnMut(&mut Value)) {
        match self {
            Self::Embed { out, .. } => visit(out),
            Self::RmsNorm { x, out, .. }
            | Self::Linear { x, out, .. }
            | Self::Rope { x, out, .. }
            | Self::GatherColumns { x, out, .. }
            | Self::SelectOutputs { x, out }
            | Self::NormGlu { x, out, .. }
            | Self::Logits { x, out, .. } => [x, out].into_iter().for_each(visit),
            Self::Attention { q, out, .. } => [q, out].into_iter().for_each(visit),
            Self::KvWrite { k, v, .. } => [k, v].into_iter().for_each(visit),
            Self::Glu { gate, up, out, .. } => [gate, up, out].into_iter().for_each(visit),
            Self::Add { a, b, out } => [a, b, out].into_iter().for_each(visit),
            Self::LinearResidual { x, residual, out, .. } => [x, residual, out].into_iter().for_each(visit),
            Self::RopeKvWrite { q, k, v, q_out, .. } => [q, k, v, q_out].into_iter().for_each(visit),
            Self::NormLinear { x, projections, .. } => {
                visit(x);
                projections.iter_mut().for_each(|(_, out)| visit(out));
            }
        }
    }

    /// The weights that the op reads.
    pub fn weights(&self) -> Vec<WeightId> {
        fn of_linear(linear: &Linear) -> impl Iterator<Item = WeightId> {
            [Some(linear.weight), linear.bias].into_iter().flatten()
        }
        match self {
            Self::Embed { table, .. } => vec![*table],
            Self::RmsNorm { norm, .. } => vec![norm.weight],
            Self::Linear { linear, .. } | Self::LinearResidual { linear, .. } => of_linear(linear).collect(),
            Self::NormLinear { norm, projections, .. } => std::iter::once(norm.weight)
                .chain(projections.iter().flat_map(|(linear, _)| of_linear(linear)))
                .collect(),
            Self::NormGlu { norm, gate, up, .. } => {
                std::iter::once(norm.weight).chain(of_linear(gate)).chain(of_linear(up)).collect()
            }
            Self::RopeKvWrite { q_norm, k_norm, .. } => {
                [q_norm, k_norm].into_iter().flatten().map(|norm| norm.weight).collect()
            }
            Self::Logits { norm, head, .. } => std::iter::once(norm.weight).chain(of_linear(head)).collect(),
            Self::Rope { .. }
            | Self::KvWrite { .. }
            | Self::Attention { .. }
            | Self::Glu { .. }
            | Self::Add { .. }
            | Self::GatherColumns { .. }
            | Self::SelectOutputs { .. } => vec![],
        }
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
    pub fn kv_bytes_per_token(&self, format: crate::KvFormat) -> usize {
        self.kv_layers.iter().map(|layer| 2 * layer.kv_heads * layer.head_dim * format.bytes()).sum()
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
