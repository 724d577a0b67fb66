//! Small plans for the tests of this crate.

use crate::{
    Activation, AnyShape, BuildError, Graph, Heads, Linear, Plan, Rope, RopeScaling, Value, WeightSource, Weights,
};

pub(crate) const HIDDEN: usize = 12;
pub(crate) const VOCAB: usize = 20;
const HEADS: Heads = Heads { heads: 2, kv_heads: 1, head_dim: 4, scale: 0.5, window: None };

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

fn layer(g: &mut Graph, w: &Weights<'_>, x: Value) -> Result<Value, BuildError> {
    let (q_width, kv_width) = (HEADS.heads * HEADS.head_dim, HEADS.kv_heads * HEADS.head_dim);
    let rope = Rope {
        head_dim: HEADS.head_dim,
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
