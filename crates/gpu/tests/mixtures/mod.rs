//! Layers of experts for tests on the simulator and on devices.

use plan::{Activation, AnyShape, Graph, KvFormat, KvLayout, Plan, RouteWeights, Router, Scores};

/// Tokens that rows are of: fewer than any plan here has.
pub(crate) const VOCAB: usize = 24;
/// Room for some hundred tokens.
pub(crate) const KV: KvLayout = KvLayout { format: KvFormat::F16, block_len: 8, num_blocks: 64 };

/// One layer of experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mixture {
    pub(crate) hidden: usize,
    pub(crate) inner: usize,
    pub(crate) experts: usize,
    pub(crate) router: Router,
    pub(crate) activation: Activation,
    pub(crate) bias: bool,
}

/// Softmax, and the weights of the chosen normalised.
pub(crate) const SOFTMAX: Router = Router::new(2, Scores::Softmax, RouteWeights::Normalised { eps: 0.0 });

/// Gated units by SiLU.
pub(crate) fn mixture(hidden: usize, inner: usize, experts: usize, top_k: usize) -> Mixture {
    let router = Router { top_k, ..SOFTMAX };
    Mixture { hidden, inner, experts, router, activation: Activation::Silu, bias: false }
}

/// Norm, router, experts with those that all rows share, and residual, in textbook ops.
pub(crate) fn mixture_plan(of: Mixture, correction: bool) -> Plan {
    let Mixture { hidden, inner, experts, mut router, activation, bias } = of;
    Graph::build("mixture", 512, &AnyShape, |g, w| {
        let x = g.embed(w.get("embed_tokens", [hidden, hidden])?, hidden);
        let h = g.rms_norm(x, w.norm("norm", hidden, 1e-5)?);
        let logits = g.linear(h, w.linear("gate", experts, hidden, bias)?, experts);
        router.correction = if correction { Some(w.get("correction.bias", [experts])?) } else { None };
        let (ids, weights) = g.route(logits, router);
        let all = experts + router.shared;
        let name = |what: &'static str| move |expert: usize| format!("experts.{expert}.{what}");
        let gate = g.expert_linear(h, ids, w.experts(name("gate_proj"), all, [inner, hidden], bias)?, inner);
        let up = g.expert_linear(h, ids, w.experts(name("up_proj"), all, [inner, hidden], bias)?, inner);
        let glu = g.glu(gate, up, activation);
        let down = g.expert_linear(glu, ids, w.experts(name("down_proj"), all, [hidden, inner], bias)?, hidden);
        let sum = g.combine(down, weights);
        let y = g.add(x, sum);
        Ok::<_, plan::BuildError>(g.select_outputs(y))
    })
    .unwrap()
}
