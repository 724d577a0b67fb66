//! Layers of attention alone, for tests of the simulator and checks of a device.

use std::sync::Arc;

use plan::{AnyShape, Graph, Heads, Plan, StepInput};
use tensor::{Tensor, WeightFormat};
use testing::Rng;
use testing::tiny::random_weights;

pub(crate) const VOCAB: usize = 40;

/// One attention layer for up to `context` positions, nothing else; its heads have sinks, if `sinks`.
pub(crate) fn attention_plan(heads: Heads, sinks: bool, context: usize) -> Arc<Plan> {
    let (q_width, kv_width) = (heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim);
    let plan = Graph::build("attention", context, &AnyShape, |g, w| {
        let q = g.embed(w.get("embed_q", [VOCAB, q_width])?, q_width);
        let k = g.embed(w.get("embed_k", [VOCAB, kv_width])?, kv_width);
        let v = g.embed(w.get("embed_v", [VOCAB, kv_width])?, kv_width);
        let sinks = sinks.then(|| w.get("sinks", [heads.heads])).transpose()?;
        let o = g.attention(q, k, v, Heads { sinks, ..heads });
        Ok::<_, plan::BuildError>(g.select_outputs(o))
    });
    Arc::new(plan.unwrap())
}

/// Random weights, and sinks from below most scores to above nearly all that a step can have.
pub(crate) fn weights(plan: &Plan) -> Vec<Tensor> {
    let mut weights = random_weights(plan, &mut Rng::new(1), WeightFormat::F32);
    for (tensor, info) in weights.iter_mut().zip(&plan.weights).filter(|(_, info)| info.name == "sinks") {
        let sinks: Vec<f32> = [-2.0, 4.0, 1.0, 8.0].into_iter().cycle().take(info.shape[0]).collect();
        *tensor = Tensor::from_f32(WeightFormat::F32, info.shape.clone(), &sinks).unwrap();
    }
    weights
}

/// A step of (sequence, tokens, position).
pub(crate) type Step<'a> = &'a [(usize, usize, usize)];

/// Random tokens for `step`, and results of all of them; sequences lie in the blocks of `tables`.
pub(crate) fn input(rng: &mut Rng, step: Step<'_>, tables: &[Vec<u32>]) -> StepInput {
    let mut input = StepInput::default();
    for &(sequence, len, position) in step {
        input.push_sequence(&rng.tokens(len, VOCAB), position, &tables[sequence]);
    }
    input.output_rows.extend(0..input.token_ids.len() as u32);
    input
}

/// Heads of so many features, with the usual scale.
pub(crate) fn heads(heads: usize, kv_heads: usize, head_dim: usize, window: Option<usize>) -> Heads {
    Heads { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), window, sinks: None }
}
