//! The mixtures of experts that several architectures share: the fields of `config.json`, and the ops.

use plan::{Activation, BuildError, ExpertGroups, Graph, GroupScore, RouteWeights, Router, Scores, Value, Weights};

use crate::config::{Decoder, Fields, Mlp, Neutral, WIDTH_MAX, hidden_act, invalid, show};
use crate::{ConfigError, blocks};

/// The most experts of a layer: above every published model.
pub(crate) const EXPERTS_MAX: usize = 1 << 12;

/// The routed experts of a layer.
pub(crate) struct Experts {
    /// How many there are.
    pub(crate) count: usize,
    /// How many a token takes: `num_experts_per_tok`.
    pub(crate) top_k: usize,
    /// Features inside each of them.
    pub(crate) intermediate_size: usize,
    /// What their gates go through.
    pub(crate) activation: Activation,
    /// Whether their projections have biases.
    pub(crate) bias: bool,
}

impl Experts {
    /// `count` and `intermediate_size` are the names of these fields, which differ. `num_local_experts` is what
    /// transformers 5 calls `count` in every architecture.
    pub(crate) fn read(fields: &Fields<'_>, count: &str, intermediate_size: &str) -> Result<Self, ConfigError> {
        const NEW_NAME: &str = "num_local_experts";
        let has = |field| fields.config.get(field).is_some();
        let count = if has(NEW_NAME) && !has(count) { NEW_NAME } else { count };
        let num_experts = fields.required(count, 1..=EXPERTS_MAX)?;
        let top_k = fields.required("num_experts_per_tok", 1..=EXPERTS_MAX)?;
        if top_k > num_experts {
            let expected = format!("at most `{count}`, {num_experts}");
            return Err(invalid("num_experts_per_tok", top_k, expected));
        }
        let intermediate_size = fields.required(intermediate_size, 1..=WIDTH_MAX)?;
        Ok(Self { count: num_experts, top_k, intermediate_size, activation: hidden_act(fields)?, bias: false })
    }

    /// A router by the softmax over all experts; with `normalised`, the weights of those that are chosen add up to one.
    pub(crate) fn softmax_router(&self, normalised: bool) -> Router {
        let weights = if normalised { RouteWeights::Normalised { eps: 0.0 } } else { RouteWeights::Scores };
        Router::new(self.top_k, Scores::Softmax, weights)
    }

    /// x + what the experts make of h, both (tokens, hidden). `gate` is the router's projection, and `names` are those
    /// of the experts' gate, up and down projections behind `experts.N.`.
    pub(crate) fn add_to(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        (gate, router): (plan::Linear, Router),
        names: [&str; 3],
        hidden: usize,
        [x, h]: [Value; 2],
    ) -> Result<Value, BuildError> {
        let [gate_name, up_name, down_name] = names;
        let stacks = [
            self.stack(w, gate_name, [self.intermediate_size, hidden])?,
            self.stack(w, up_name, [self.intermediate_size, hidden])?,
            self.stack(w, down_name, [hidden, self.intermediate_size])?,
        ];
        Ok(self.add_stacks(g, (gate, router), stacks, hidden, [x, h]))
    }

    /// The projections `name` of all experts, each (out_features, in_features).
    fn stack(&self, w: &Weights<'_>, name: &str, shape: [usize; 2]) -> Result<plan::Experts, BuildError> {
        w.experts(|expert| format!("experts.{expert}.{name}"), self.count, shape, self.bias)
    }

    /// x + what the experts with these gates, ups and downs make of h.
    fn add_stacks(
        &self,
        g: &mut Graph,
        (gate, router): (plan::Linear, Router),
        [gates, ups, downs]: [plan::Experts; 3],
        hidden: usize,
        [x, h]: [Value; 2],
    ) -> Value {
        let logits = g.linear(h, gate, self.count);
        let (ids, weights) = g.route(logits, router);
        let gate = g.expert_linear(h, ids, gates, self.intermediate_size);
        let up = g.expert_linear(h, ids, ups, self.intermediate_size);
        let glu = g.glu(gate, up, self.activation);
        let down = g.expert_linear(glu, ids, downs, hidden);
        let sum = g.combine(down, weights);
        g.add(x, sum)
    }
}

/// The feed-forward blocks of DeepSeek's models, and of GLM's after them. The first layers are dense. The others choose
/// experts for each token, and have shared experts that every token takes.
pub(crate) struct SharedExperts {
    /// Of the dense layers.
    mlp: Mlp,
    /// Whether each layer is dense; those beyond the list are not.
    dense: Vec<bool>,
    experts: Experts,
    /// The experts that every token takes, as one.
    shared: Mlp,
    router: Router,
    /// Whether the router's choice is corrected by `gate.e_score_correction_bias`.
    is_corrected: bool,
}

impl SharedExperts {
    /// Chosen by the sigmoids of their logits plus a correction, among the groups whose two best are best (`noaux_tc`).
    pub(crate) fn by_sigmoid(fields: &Fields<'_>) -> Result<Self, ConfigError> {
        fields.one_of("topk_method", &["noaux_tc"], "noaux_tc")?;
        check_router(fields, "sigmoid", true)?;
        let normalised = fields.flag("norm_topk_prob")?;
        let experts = Experts::read(fields, "n_routed_experts", "moe_intermediate_size")?;
        let weights = if normalised { RouteWeights::Normalised { eps: 1e-20 } } else { RouteWeights::Scores };
        let router = Router {
            groups: groups(fields, &experts, GroupScore::SumOfTwo)?,
            scale: fields.positive("routed_scaling_factor")?,
            ..Router::new(experts.top_k, Scores::Sigmoid, weights)
        };
        Self::read(fields, experts, router, true)
    }

    /// Chosen by the softmax over all of them: `greedy`, or among the groups whose best is best
    /// (`group_limited_greedy`). transformers never normalises their weights.
    pub(crate) fn by_softmax(fields: &Fields<'_>) -> Result<Self, ConfigError> {
        let method = fields.one_of("topk_method", &["greedy", "group_limited_greedy"], "greedy")?;
        check_router(fields, "softmax", true)?;
        fields.refuse_unless_neutral(&[("norm_topk_prob", Neutral::Flag(false))])?;
        let experts = Experts::read(fields, "n_routed_experts", "moe_intermediate_size")?;
        let groups = match method {
            "greedy" => None,
            _ => groups(fields, &experts, GroupScore::Largest)?,
        };
        let scale = fields.positive("routed_scaling_factor")?;
        let router = Router { groups, scale, ..experts.softmax_router(false) };
        Self::read(fields, experts, router, false)
    }

    fn read(fields: &Fields<'_>, experts: Experts, router: Router, is_corrected: bool) -> Result<Self, ConfigError> {
        fields.refuse_unless_neutral(&[("moe_layer_freq", Neutral::Number(1.0))])?;
        let mlp = Mlp::read(fields, false)?;
        let shared = fields.required("n_shared_experts", 1..=EXPERTS_MAX)?;
        let dense = match fields.get("mlp_layer_types") {
            None => vec![true; fields.required("first_k_dense_replace", 0..=WIDTH_MAX)?],
            Some(types) => layer_types(types)?,
        };
        let shared = Mlp { intermediate_size: shared * experts.intermediate_size, ..mlp };
        Ok(Self { mlp, dense, experts, shared, router, is_corrected })
    }

    /// A pre-norm layer: x + attention(norm(x)), then what this is, (tokens, hidden_size).
    pub(crate) fn layer<E: From<BuildError>>(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        decoder: &Decoder,
        index: usize,
        x: Value,
        attention: impl FnOnce(&mut Graph, &Weights<'_>, Value) -> Result<Value, E>,
    ) -> Result<Value, E> {
        if self.dense.get(index).copied().unwrap_or(false) {
            return blocks::pre_norm_layer(g, w, decoder, &self.mlp, x, attention);
        }
        let mixture = |g: &mut Graph, x, h| Ok(self.add_to(g, &w.at("mlp"), decoder.hidden_size, [x, h])?);
        blocks::layer(g, w, decoder, x, attention, mixture)
    }

    /// x + what the experts make of h, both (tokens, hidden). Each projection of the shared expert is asked for right behind
    /// those of the routed ones, so that [`plan::share_slots`] may make it one of them.
    fn add_to(&self, g: &mut Graph, w: &Weights<'_>, hidden: usize, [x, h]: [Value; 2]) -> Result<Value, BuildError> {
        let (experts, shared) = (&self.experts, &self.shared);
        let names = w.at("shared_experts");
        let stack = |name: &str, of_expert, [out_features, in_features]: [usize; 2]| {
            let routed = experts.stack(w, name, of_expert)?;
            Ok((routed, names.linear(name, out_features, in_features, shared.bias)?))
        };
        let (inner, width) = (experts.intermediate_size, shared.intermediate_size);
        let (gates, gate) = stack("gate_proj", [inner, hidden], [width, hidden])?;
        let (ups, up) = stack("up_proj", [inner, hidden], [width, hidden])?;
        let (downs, down) = stack("down_proj", [hidden, inner], [hidden, width])?;
        let of_shared = blocks::gated_mlp_of(g, shared, hidden, [gate, up, down], h);
        let x = g.add(x, of_shared);
        let count = experts.count;
        let correction = self.is_corrected.then(|| w.get("gate.e_score_correction_bias", [count])).transpose()?;
        let gate = w.linear("gate", count, hidden, false)?;
        let router = Router { correction, ..self.router };
        Ok(experts.add_stacks(g, (gate, router), [gates, ups, downs], hidden, [x, h]))
    }
}

/// The groups that experts are chosen from, where there is more than one.
fn groups(fields: &Fields<'_>, experts: &Experts, score: GroupScore) -> Result<Option<ExpertGroups>, ConfigError> {
    let count = fields.required("n_group", 1..=EXPERTS_MAX)?;
    let chosen = fields.required("topk_group", 1..=EXPERTS_MAX)?;
    if count == 1 {
        return Ok(None);
    }
    if !experts.count.is_multiple_of(count) || experts.count < 2 * count {
        let expected = format!("a divisor of `n_routed_experts`, {}, of groups of two experts or more", experts.count);
        return Err(invalid("n_group", count, expected));
    }
    if chosen > count || experts.top_k > chosen * (experts.count / count) {
        let expected = format!("at most `n_group`, {count}, and groups enough for {} experts", experts.top_k);
        return Err(invalid("topk_group", chosen, expected));
    }
    Ok(Some(ExpertGroups { count, chosen, score }))
}

/// Whether each layer is dense, by `mlp_layer_types`.
fn layer_types(types: &serde_json::Value) -> Result<Vec<bool>, ConfigError> {
    let field = "mlp_layer_types";
    let list = types.as_array().ok_or_else(|| invalid(field, show(types), "a list, one for each layer"))?;
    let is_dense = |(layer, value): (usize, &serde_json::Value)| match value.as_str() {
        Some("dense") => Ok(true),
        Some("sparse") => Ok(false),
        _ => Err(invalid(format!("{field}[{layer}]"), show(value), "dense or sparse")),
    };
    list.iter().enumerate().map(is_dense).collect()
}

/// Refuses a file that says of its router what the architecture does not compute: GGUF files say it in keys that all
/// mixtures share. `scoring_func` is what the architecture's scores are called there.
pub(crate) fn check_router(fields: &Fields<'_>, scoring_func: &str, scales: bool) -> Result<(), ConfigError> {
    fields.one_of("scoring_func", &[scoring_func], scoring_func)?;
    if !scales {
        fields.refuse_unless_neutral(&[("routed_scaling_factor", Neutral::Number(1.0))])?;
    }
    Ok(())
}

/// Which layers of Qwen's mixtures have experts: every `decoder_sparse_step`-th, but those of `mlp_only_layers`.
pub(crate) struct SparseLayers {
    step: usize,
    dense: Vec<usize>,
}

impl SparseLayers {
    pub(crate) fn read(fields: &Fields<'_>) -> Result<Self, ConfigError> {
        let step = fields.optional("decoder_sparse_step", 1..=WIDTH_MAX)?.unwrap_or(1);
        let field = "mlp_only_layers";
        let dense = match fields.get(field) {
            None => vec![],
            Some(value) => {
                let layers = value.as_array().map(|list| list.iter().map(|layer| layer.as_u64()).collect());
                let Some(Some(layers)) = layers else {
                    return Err(invalid(field, crate::config::show(value), "a list of layers"));
                };
                let layers: Vec<u64> = layers;
                layers.into_iter().filter_map(|layer| usize::try_from(layer).ok()).collect()
            }
        };
        Ok(Self { step, dense })
    }

    /// Whether `layer` has experts.
    pub(crate) fn is_sparse(&self, layer: usize) -> bool {
        !self.dense.contains(&layer) && (layer + 1).is_multiple_of(self.step)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dense_layers_are_those_of_the_list_and_those_between_steps() {
        let none = json!({});
        let sparse = |config: serde_json::Value| {
            let layers = SparseLayers::read(&Fields { config: &config, defaults: &none, path: "" })?;
            Ok::<_, ConfigError>((0..4).map(|layer| layers.is_sparse(layer)).collect::<Vec<_>>())
        };
        assert_eq!(sparse(json!({})), Ok(vec![true; 4]));
        let both = json!({ "decoder_sparse_step": 2, "mlp_only_layers": [3] });
        assert_eq!(sparse(both), Ok(vec![false, true, false, false]));
        for wrong in
            [json!({ "mlp_only_layers": 3 }), json!({ "mlp_only_layers": [-1] }), json!({ "decoder_sparse_step": 0 })]
        {
            assert!(sparse(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
