//! What a backend says of its results.

use plan::{KvFormat, Op, Plan};
use tensor::{ActivationRounding, Tensor, WeightFormat};

/// What a backend says it can do and how near to the reference it comes: the conformance suite and `hotmetal verify` hold
/// it to that, and to nothing else.
#[derive(Clone, Debug)]
pub struct Claims {
    /// Weight formats that it computes from.
    pub formats: Vec<WeightFormat>,
    /// Formats that its cache comes in.
    pub kv_formats: Vec<KvFormat>,
    /// Block lengths of the cache to try it with: one that it likes, one that it does not.
    pub block_lens: Vec<usize>,
    /// What it does to the activations that meet weights of each format. All tolerances follow from it.
    pub activations: fn(WeightFormat) -> ActivationRounding,
    /// What its attention does to queries and to the weights of values, with a cache of each format.
    pub attention: fn(KvFormat) -> ActivationRounding,
    /// Whether a token's logits are the same bits however the step around it is cut: in one piece, in chunks, token by
    /// token, alone and in any batch.
    pub bit_exact: bool,
    /// A name for its arithmetic: backends that give the same name give the same bits for every op.
    pub same_bits: Option<&'static str>,
    /// A format whose products it computes in a way of its own, and the name of that: only backends that give the same here,
    /// too, give the same bits where a matrix is in that format.
    pub own_bits: Option<(WeightFormat, &'static str)>,
    /// What it does not compute yet. A plan that asks for one of these is refused when it is loaded.
    pub lacks: &'static [Feature],
}

/// Something that few models ask for, and that a backend may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A logit for each head that joins the softmax of attention: [`plan::Attention::sinks`].
    AttentionSinks,
    /// Positions that turn only the first features of each head: [`plan::Rope::dims`].
    PartialRotation,
    /// One row of the cache for all heads, and matrices of their own for each of them: [`plan::MlaAttention`].
    LatentAttention,
}

impl Feature {
    /// Whether `plan` asks for it.
    pub fn is_in(self, plan: &Plan) -> bool {
        match self {
            Self::AttentionSinks => {
                let has_sinks = |op: &Op| matches!(op, Op::Attention { attention, .. } if attention.sinks.is_some());
                plan.ops.iter().any(has_sinks)
            }
            Self::LatentAttention => plan
                .ops
                .iter()
                .any(|op| matches!(op, Op::HeadLinear { .. } | Op::LatentWrite { .. } | Op::MlaAttention { .. })),
            Self::PartialRotation => plan.ropes.iter().any(|rope| rope.dims != rope.head_dim),
        }
    }

    /// What it is to a person.
    pub fn words(self) -> &'static str {
        match self {
            Self::AttentionSinks => "attention sinks (gpt-oss)",
            Self::LatentAttention => "latent attention (GLM-4.7-Flash, DeepSeek-V2 and V3)",
            Self::PartialRotation => "rotary positions on a part of each head (GLM-4.5)",
        }
    }
}

impl Claims {
    /// What `plan` asks for and the backend lacks.
    pub fn lacking(&self, plan: &Plan) -> Option<Feature> {
        self.lacks.iter().copied().find(|feature| feature.is_in(plan))
    }

    /// The name of its arithmetic with these weights; `None` where it gives none.
    pub fn arithmetic(&self, weights: &[Tensor]) -> Option<(&'static str, Option<&'static str>)> {
        let is_matrix_in = |format, tensor: &Tensor| tensor.format() == format && tensor.shape().len() > 1;
        let own = self.own_bits.filter(|&(format, _)| weights.iter().any(|tensor| is_matrix_in(format, tensor)));
        self.same_bits.map(|name| (name, own.map(|(_, name)| name)))
    }
}

impl Default for Claims {
    /// Every format, in f32 arithmetic of an order that nobody knows.
    fn default() -> Self {
        Self {
            formats: WeightFormat::ALL.to_vec(),
            kv_formats: vec![KvFormat::F32, KvFormat::F16],
            block_lens: vec![16, 5],
            activations: |_| ActivationRounding::F32,
            attention: |_| ActivationRounding::F32,
            bit_exact: false,
            same_bits: None,
            own_bits: None,
            lacks: &[],
        }
    }
}
