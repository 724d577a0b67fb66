//! Small plans for the tests of this crate.

use crate::{
    Activation, AnyShape, BuildError, ExpertGroups, Graph, GroupScore, Heads, LatentHeads, Linear, Plan, Rope,
    RopeScaling, RouteWeights, Router, Scores, Value, WeightSource, Weights,
};

pub(crate) const HIDDEN: usize = 12;
pub(crate) const VOCAB: usize = 20;
const HEADS: Heads = Heads { heads: 2, kv_heads: 1, head_dim: 4, scale: 0.5, window: None, sinks: None };

/// The two best by their softmax, with weights that add up to 1, as Mixtral has it.
pub(crate) const PLAIN_ROUTER: Router = Router::new(2, Scores::Softmax, RouteWeights::Normalised { eps: 0.0 });

/// A plan whose forward pass is `forward`.
pub(crate) fn plan_of(forward: impl FnOnce(&mut Graph, &Weights<'_>) -> Result<Value, BuildError>) -> Plan {
    Graph::build("test", 64, &AnyShape as &dyn WeightSource, forward).expect("every weight is there")
}

/// A decoder of two layers with biases, head norms and a tied head, in textbook ops.
pub(crate) fn decoder() -> Plan {
    plan_of(|g, w| {
        let embed_tokens = w.get("embed_tokens.weight", [VOCAB, HIDDEN])?;
        let mut x = g.embed(embed_tokens, HIDDEN);
        for index in 0..2 {
            x = layer(g, &w.at(index), x)?;
        }
        let x = g.rms_norm(x, w.norm("norm", HIDDEN, 1e-6)?);
        let x = g.select_outputs(x);
        Ok(g.linear(x, Linear { weight: embed_tokens, bias: None }, VOCAB))
    })
}

/// A mixture of experts in two layers: as Mixtral has it; and with biases, groups, a correction, a shared expert that is
/// gated, and a shared expert that is not.
pub(crate) fn mixture() -> Plan {
    const EXPERTS: usize = 6;
    const INNER: usize = 5;
    let experts = |g: &mut Graph, w: &Weights<'_>, [x, h]: [Value; 2], router: Router, bias: bool| {
        let logits = g.linear(h, w.linear("gate", EXPERTS, HIDDEN, bias)?, EXPERTS);
        let (ids, weights) = g.route(logits, router);
        let names = |name: &'static str| move |expert: usize| format!("experts.{expert}.{name}");
        let gate = g.expert_linear(h, ids, w.experts(names("w1"), EXPERTS, [INNER, HIDDEN], bias)?, INNER);
        let up = g.expert_linear(h, ids, w.experts(names("w3"), EXPERTS, [INNER, HIDDEN], bias)?, INNER);
        let glu = g.glu(gate, up, Activation::Silu);
        let down = g.expert_linear(glu, ids, w.experts(names("w2"), EXPERTS, [HIDDEN, INNER], bias)?, HIDDEN);
        let sum = g.combine(down, weights);
        Ok::<_, BuildError>(g.add(x, sum))
    };
    plan_of(|g, w| {
        let embed_tokens = w.get("embed_tokens.weight", [VOCAB, HIDDEN])?;
        let x = g.embed(embed_tokens, HIDDEN);
        let h = g.rms_norm(x, w.norm("0.norm", HIDDEN, 1e-6)?);
        let x = experts(g, &w.at("0"), [x, h], PLAIN_ROUTER, false)?;
        let h = g.rms_norm(x, w.norm("1.norm", HIDDEN, 1e-6)?);
        let groups = Some(ExpertGroups { count: 3, chosen: 2, score: GroupScore::SumOfTwo });
        let correction = Some(w.get("1.correction", [EXPERTS])?);
        let scores = Scores::Sigmoid;
        let router = Router { top_k: 3, scores, correction, groups, scale: 1.8, ..PLAIN_ROUTER };
        let mut shared = x;
        for (name, is_gated) in [("1.shared", true), ("1.other", false)] {
            let w = w.at(name);
            let gate = g.linear(h, w.linear("gate_proj", 7, HIDDEN, false)?, 7);
            let up = g.linear(h, w.linear("up_proj", 7, HIDDEN, false)?, 7);
            let glu = g.glu(gate, up, Activation::Silu);
            let mut down = g.linear(glu, w.linear("down_proj", HIDDEN, 7, false)?, HIDDEN);
            if is_gated {
                let gate = g.linear(h, w.linear("gate", 1, HIDDEN, false)?, 1);
                down = g.gate_rows(down, gate);
            }
            shared = g.add(shared, down);
        }
        let x = experts(g, &w.at("1"), [shared, h], router, true)?;
        let x = g.rms_norm(x, w.norm("norm", HIDDEN, 1e-6)?);
        let x = g.select_outputs(x);
        Ok(g.linear(x, Linear { weight: embed_tokens, bias: None }, VOCAB))
    })
}

/// Latent attention in one layer: three heads, keys of 2 and 4 features, values of 5.
pub(crate) fn latent() -> Plan {
    const COUNT: usize = 3;
    const NOPE: usize = 2;
    const ROPE: usize = 4;
    const VALUE: usize = 5;
    const RANK: usize = 6;
    let names = |name: &'static str| move |head: usize| format!("{name}.{head}");
    plan_of(|g, w| {
        let embed_tokens = w.get("embed_tokens.weight", [VOCAB, HIDDEN])?;
        let x = g.embed(embed_tokens, HIDDEN);
        let h = g.rms_norm(x, w.norm("input_layernorm", HIDDEN, 1e-6)?);
        let q_width = COUNT * (NOPE + ROPE);
        let q = g.linear(h, w.linear("q_proj", q_width, HIDDEN, false)?, q_width);
        let kv = g.linear(h, w.linear("kv_a_proj", RANK + ROPE, HIDDEN, false)?, RANK + ROPE);
        let of_heads = |columns: std::ops::Range<usize>| {
            (0..COUNT).flat_map(move |head| columns.clone().map(move |column| head * (NOPE + ROPE) + column))
        };
        let mut columns =
            |x, columns: Vec<usize>| g.gather_columns(x, columns.into_iter().map(|column| column as u32).collect());
        let q_nope = columns(q, of_heads(0..NOPE).collect());
        let q_rope = columns(q, of_heads(NOPE..NOPE + ROPE).collect());
        let latent = columns(kv, (0..RANK).collect());
        let k_rope = columns(kv, (RANK..RANK + ROPE).collect());
        let scaling = RopeScaling::None;
        let rope = Rope { head_dim: ROPE, dims: ROPE, theta: 100.0, scaling, attention_factor: 1.0 };
        let latent = g.rms_norm(latent, w.norm("kv_a_layernorm", RANK, 1e-6)?);
        let (q_rope, k_rope) = (g.rope(q_rope, &rope), g.rope(k_rope, &rope));
        let q_latent = g.head_linear(q_nope, w.experts(names("k_b_proj"), COUNT, [RANK, NOPE], false)?, RANK);
        let o = g.mla_attention([q_latent, q_rope], [latent, k_rope], LatentHeads { heads: COUNT, scale: 0.5 });
        let o = g.head_linear(o, w.experts(names("v_b_proj"), COUNT, [VALUE, RANK], false)?, VALUE);
        let o = g.linear(o, w.linear("o_proj", HIDDEN, COUNT * VALUE, false)?, HIDDEN);
        let x = g.add(x, o);
        let x = g.rms_norm(x, w.norm("norm", HIDDEN, 1e-6)?);
        let x = g.select_outputs(x);
        Ok(g.linear(x, Linear { weight: embed_tokens, bias: None }, VOCAB))
    })
}

fn layer(g: &mut Graph, w: &Weights<'_>, x: Value) -> Result<Value, BuildError> {
    let (q_width, kv_width) = (HEADS.heads * HEADS.head_dim, HEADS.kv_heads * HEADS.head_dim);
    let rope = Rope {
        head_dim: HEADS.head_dim,
        dims: HEADS.head_dim,
        theta: 100.0,
        scaling: RopeScaling::Factors(vec![1.0, 2.0]),
        attention_factor: 1.0,
    };
    let h = g.rms_norm(x, w.norm("input_layernorm", HIDDEN, 1e-6)?);
    let q = g.linear(h, w.linear("q_proj", q_width, HIDDEN, true)?, q_width);
    let k = g.linear(h, w.linear("k_proj", kv_width, HIDDEN, true)?, kv_width);
    let v = g.linear(h, w.linear("v_proj", kv_width, HIDDEN, true)?, kv_width);
    let q = g.rms_norm(q, w.norm("q_norm", HEADS.head_dim, 1e-6)?);
    let k = g.rms_norm(k, w.norm("k_norm", HEADS.head_dim, 1e-6)?);
    let (q, k) = (g.rope(q, &rope), g.rope(k, &rope));
    let o = g.attention(q, k, v, HEADS);
    let o = g.linear(o, w.linear("o_proj", HIDDEN, q_width, false)?, HIDDEN);
    let x = g.add(x, o);
    let h = g.rms_norm(x, w.norm("post_attention_layernorm", HIDDEN, 1e-6)?);
    let gate = g.linear(h, w.linear("gate_proj", 7, HIDDEN, false)?, 7);
    let up = g.linear(h, w.linear("up_proj", 7, HIDDEN, false)?, 7);
    let h = g.glu(gate, up, Activation::Silu);
    let down = g.linear(h, w.linear("down_proj", HIDDEN, 7, false)?, HIDDEN);
    Ok(g.add(x, down))
}
