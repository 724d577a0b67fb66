//! The verifier: what every pass and every backend may rely on. Run on each plan that is built and between passes.

use std::collections::HashSet;

use crate::ops::{Cache, Operands};
use crate::shapes::{Checked, Shapes, show};
use crate::{CacheLayer, Kind, KvLayer, LatentLayer, Plan, Rope, RopeScaling, Rows, ValueInfo};

/// What is wrong with a plan: always a bug of a model file or a pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// An op contradicts what comes before it, or a table of the plan.
    #[error("op {index} `{op}`: {fault}")]
    Op {
        /// Its place in [`Plan::ops`].
        index: usize,
        /// Its name.
        op: &'static str,
        /// What was found and what was expected.
        fault: String,
    },
    /// A table of the plan, or the plan as a whole.
    #[error("plan `{model_type}`: {fault}")]
    Plan {
        /// The plan's architecture.
        model_type: String,
        /// What was found and what was expected.
        fault: String,
    },
}

/// Checks that every value is defined once, before it is used, and used at all, that rows, widths and weight shapes agree in every
/// op, that each layer's cache is written once and before it is read, that every weight is used, and that the logits
/// are (outputs, vocab_size).
pub fn verify(plan: &Plan) -> Result<(), VerifyError> {
    let whole = |fault| VerifyError::Plan { model_type: plan.model_type.clone(), fault };
    check_tables(plan).map_err(whole)?;
    let mut seen = Seen {
        defined: vec![false; plan.values.len()],
        used: vec![false; plan.values.len()],
        written: vec![false; plan.kv_layers.len()],
        read: vec![false; plan.weights.len()],
    };
    for (index, op) in plan.ops.iter().enumerate() {
        op.meaning(|op| {
            let operands = op.operands();
            check_order(plan, &operands, &mut seen)?;
            check_kinds(plan, &operands)?;
            op.check(&Shapes { plan })?;
            check_cache(operands.cache, &mut seen)
        })
        .map_err(|fault| VerifyError::Op { index, op: op.name(), fault })?;
    }
    check_ends(plan, &seen).map_err(whole)
}

/// What the ops so far have done.
struct Seen {
    defined: Vec<bool>,
    used: Vec<bool>,
    written: Vec<bool>,
    read: Vec<bool>,
}

fn check_tables(plan: &Plan) -> Checked {
    if let Some(index) = plan.values.iter().position(|value| value.width == 0) {
        return Err(format!("value v{index} has no width"));
    }
    let mut names = HashSet::new();
    for weight in &plan.weights {
        if weight.shape.is_empty() || weight.shape.contains(&0) {
            return Err(format!("weight `{}` has the empty shape {:?}", weight.name, weight.shape));
        }
        if !names.insert(&weight.name) {
            return Err(format!("weight `{}` is listed twice", weight.name));
        }
    }
    for (index, rope) in plan.ropes.iter().enumerate() {
        if rope.dims == 0 || !rope.dims.is_multiple_of(2) || rope.dims > rope.head_dim {
            let Rope { head_dim, dims, .. } = rope;
            return Err(format!("rope {index} turns {dims} features of {head_dim}, expected an even number of them"));
        }
        if !(rope.attention_factor.is_finite() && rope.attention_factor > 0.0) {
            let found = rope.attention_factor;
            return Err(format!("rope {index} has the attention factor {found}, expected a positive number"));
        }
        if let RopeScaling::Factors(factors) = &rope.scaling
            && factors.len() != rope.dims / 2
        {
            return Err(format!("rope {index} has {} factors for {} pairs", factors.len(), rope.dims / 2));
        }
    }
    match plan.kv_layers.iter().position(|layer| is_empty(*layer)) {
        Some(layer) => Err(format!("cache layer {layer} is empty: {:?}", plan.kv_layers[layer])),
        None => Ok(()),
    }
}

fn is_empty(layer: CacheLayer) -> bool {
    match layer {
        CacheLayer::Heads(KvLayer { kv_heads, head_dim }) => kv_heads == 0 || head_dim == 0,
        CacheLayer::Latent(LatentLayer { dim, rope }) => dim == 0 || rope == 0,
    }
}

/// Inputs exist and are defined, outputs are not yet; weights and table indices are in range.
fn check_order(plan: &Plan, operands: &Operands, seen: &mut Seen) -> Checked {
    for &value in &operands.inputs {
        match seen.defined.get(value.index()) {
            None => return Err(format!("reads {value}, but the plan has {} values", plan.values.len())),
            Some(false) => return Err(format!("reads {value} before it is defined")),
            Some(true) => seen.used[value.index()] = true,
        }
    }
    for &value in &operands.outputs {
        match seen.defined.get_mut(value.index()) {
            None => return Err(format!("defines {value}, but the plan has {} values", plan.values.len())),
            Some(true) => return Err(format!("defines {value} a second time")),
            Some(defined) => *defined = true,
        }
    }
    for &weight in &operands.weights {
        let read = seen.read.get_mut(weight.index());
        *read.ok_or_else(|| format!("reads weight {}, but the plan has {}", weight.index(), plan.weights.len()))? =
            true;
    }
    let layer = operands.cache.map(Cache::layer);
    let tables = [("rope", operands.rope, plan.ropes.len()), ("cache layer", layer, plan.kv_layers.len())];
    let tables = tables.into_iter().filter_map(|(what, index, len)| Some((what, index?, len)));
    let orders = operands.orders.iter().map(|&order| ("order", order, plan.orders.len()));
    for (what, index, len) in tables.chain(orders) {
        if index >= len {
            return Err(format!("uses {what} {index}, but the plan has {len}"));
        }
    }
    Ok(())
}

/// Ids of experts stand where an op wants them, and nowhere else.
fn check_kinds(plan: &Plan, operands: &Operands) -> Checked {
    if operands.any_kind {
        return Ok(());
    }
    for &value in operands.inputs.iter().chain(&operands.outputs) {
        let (found, is_wanted) = (plan.value(value).kind, operands.indices.contains(&value));
        match found {
            Kind::Activation if is_wanted => return Err(format!("{value} is activations, expected ids of experts")),
            Kind::Index if !is_wanted => return Err(format!("{value} is ids of experts, expected activations")),
            _ => {}
        }
    }
    Ok(())
}

/// The cache of a layer is written once, and before it is read.
fn check_cache(cache: Option<Cache>, seen: &mut Seen) -> Checked {
    match cache {
        Some(Cache::Writes(layer)) if std::mem::replace(&mut seen.written[layer], true) => {
            Err(format!("writes cache layer {layer} a second time"))
        }
        Some(Cache::Reads(layer)) if !seen.written[layer] => {
            Err(format!("reads cache layer {layer} before it is written"))
        }
        _ => Ok(()),
    }
}

fn check_ends(plan: &Plan, seen: &Seen) -> Checked {
    if let Some(value) = seen.defined.iter().position(|&defined| !defined) {
        return Err(format!("value v{value} is never defined"));
    }
    if let Some(weight) = seen.read.iter().position(|&read| !read) {
        return Err(format!("weight `{}` is never used", plan.weights[weight].name));
    }
    if let Some(layer) = seen.written.iter().position(|&written| !written) {
        return Err(format!("cache layer {layer} is never written"));
    }
    let expected = ValueInfo::activations(Rows::Outputs, plan.vocab_size);
    match plan.values.get(plan.logits.index()) {
        Some(&found) if found == expected => {}
        Some(&found) => return Err(format!("the logits are {}, expected {}", show(found), show(expected))),
        None => return Err(format!("the logits are {}, but the plan has {} values", plan.logits, plan.values.len())),
    }
    match (0..plan.values.len()).find(|&value| !seen.used[value] && value != plan.logits.index()) {
        Some(value) => Err(format!("value v{value} is never used")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_plans::{HIDDEN, VOCAB, decoder, latent};
    use crate::{Op, RopeScaling, Value, ValueInfo, WeightId, fuse};

    type Fault = fn(&mut Plan);

    /// The first op with this name.
    fn op<'a>(plan: &'a mut Plan, name: &str) -> &'a mut Op {
        plan.ops.iter_mut().find(|op| op.name() == name).unwrap()
    }

    fn check(plan: &Plan, faults: &[(&str, Fault)]) {
        verify(plan).unwrap();
        for (expected, fault) in faults {
            let mut faulty = plan.clone();
            fault(&mut faulty);
            let error = verify(&faulty).expect_err(expected).to_string();
            assert!(error.contains(expected), "expected `{expected}`, found `{error}`");
        }
    }

    /// Sets a field of an op whose variant is known.
    macro_rules! set {
        ($plan:expr, $name:literal, $variant:ident . $field:ident = $value:expr) => {
            match op($plan, $name) {
                Op::$variant { $field, .. } => *$field = $value,
                _ => unreachable!(),
            }
        };
    }

    #[test]
    fn each_fault_in_the_tables_is_named() {
        check(
            &decoder(),
            &[
                ("plan `test`: value v3 has no width", |p| p.values[3].width = 0),
                ("weight `norm.weight` has the empty shape [0]", |p| p.weights.last_mut().unwrap().shape = vec![0]),
                ("weight `embed_tokens.weight` is listed twice", |p| p.weights.push(p.weights[0].clone())),
                ("weight `extra` is never used", |p| {
                    p.weights.push(crate::WeightInfo { name: "extra".to_owned(), shape: vec![1] });
                }),
                ("rope 0 turns 3 features of 4, expected an even number of them", |p| p.ropes[0].dims = 3),
                ("rope 0 turns 6 features of 4, expected an even number of them", |p| p.ropes[0].dims = 6),
                ("rope 0 has the attention factor NaN, expected a positive number", |p| {
                    p.ropes[0].attention_factor = f32::NAN;
                }),
                ("rope 0 has 1 factors for 2 pairs", |p| p.ropes[0].scaling = RopeScaling::Factors(vec![1.0])),
                ("cache layer 1 is empty", |p| {
                    p.kv_layers[1] = KvLayer { kv_heads: 0, head_dim: 4 }.into();
                }),
                ("cache layer 2 is never written", |p| {
                    p.kv_layers.push(KvLayer { kv_heads: 1, head_dim: 4 }.into());
                }),
                ("value v38 is never defined", |p| p.values.push(ValueInfo::activations(Rows::Tokens, 1))),
                ("value v38 is never used", |p| {
                    let out = Value(p.values.len() as u32);
                    p.values.push(p.value(p.logits));
                    p.ops.push(Op::Add { a: Value(37), b: Value(37), out });
                }),
                ("the logits are (tokens, 12), expected (outputs, 20)", |p| p.logits = Value(0)),
                ("the logits are v99, but the plan has 38 values", |p| p.logits = Value(99)),
                ("weight `embed_tokens.weight` has shape [20, 12], expected [21, 12]", |p| p.vocab_size = VOCAB + 1),
            ],
        );
    }

    #[test]
    fn each_fault_in_the_order_of_ops_is_named() {
        check(
            &decoder(),
            &[
                ("op 0 `rms_norm`: reads v0 before it is defined", |p| p.ops.swap(0, 1)),
                ("op 0 `rms_norm`: reads v0 before it is defined", |p| drop(p.ops.remove(0))),
                ("op 2 `embed`: defines v0 a second time", |p| p.ops.insert(2, p.ops[0].clone())),
                ("op 1 `rms_norm`: reads v77, but the plan has 38 values", |p| {
                    set!(p, "rms_norm", RmsNorm.x = Value(77))
                }),
                ("defines v77, but the plan has 38 values", |p| set!(p, "glu", Glu.out = Value(77))),
                ("op 0 `embed`: reads weight 99, but the plan has 30", |p| {
                    set!(p, "embed", Embed.table = WeightId(99))
                }),
                ("`rope`: uses rope 1, but the plan has 1", |p| set!(p, "rope", Rope.rope = 1)),
                ("`kv_write`: uses cache layer 2, but the plan has 2", |p| set!(p, "kv_write", KvWrite.layer = 2)),
                ("`kv_write`: writes cache layer 0 a second time", |p| {
                    let write = op(p, "kv_write").clone();
                    p.ops.insert(11, write);
                }),
                ("`attention`: reads cache layer 1 before it is written", |p| match op(p, "attention") {
                    Op::Attention { attention, .. } => attention.layer = 1,
                    _ => unreachable!(),
                }),
            ],
        );
    }

    #[test]
    fn each_fault_in_the_shapes_of_textbook_ops_is_named() {
        check(
            &decoder(),
            &[
                ("`rms_norm`: `out` (v1) is (outputs, 12), expected (tokens, 12)", |p| {
                    p.values[1].rows = Rows::Outputs
                }),
                ("`rms_norm`: eps is NaN", |p| match op(p, "rms_norm") {
                    Op::RmsNorm { norm, .. } => norm.eps = f32::NAN,
                    _ => unreachable!(),
                }),
                ("weight `0.input_layernorm.weight` has shape [5], expected a divisor of width 12", |p| {
                    p.weights[1].shape = vec![5];
                }),
                ("`linear`: weight `0.q_proj.weight` has shape [8, 13], expected [8, 12]", |p| {
                    p.weights[2].shape = vec![8, HIDDEN + 1];
                }),
                ("`linear`: weight `0.q_proj.bias` has shape [7], expected [8]", |p| p.weights[3].shape = vec![7]),
                ("`linear`: `out` (v2) is (outputs, 8), expected (tokens, 8)", |p| p.values[2].rows = Rows::Outputs),
                ("`rope`: `x` (v5) has width 8, expected a multiple of head_dim 6", |p| {
                    p.ropes[0].head_dim = 6;
                    p.ropes[0].scaling = RopeScaling::None;
                }),
                ("`kv_write`: `k` (v8) is (tokens, 4), expected (tokens, 8)", |p| {
                    p.kv_layers[0] = KvLayer { kv_heads: 2, head_dim: 4 }.into();
                }),
                ("`attention`: 3 heads do not divide over 2 key/value heads", |p| {
                    p.kv_layers[0] = KvLayer { kv_heads: 2, head_dim: 2 }.into();
                    match op(p, "attention") {
                        Op::Attention { attention, .. } => attention.heads = 3,
                        _ => unreachable!(),
                    }
                }),
                ("`attention`: `q` (v7) is (tokens, 8), expected (tokens, 12)", |p| match op(p, "attention") {
                    Op::Attention { attention, .. } => attention.heads = 3,
                    _ => unreachable!(),
                }),
                ("`attention`: a window of no positions", |p| match op(p, "attention") {
                    Op::Attention { attention, .. } => attention.window = Some(0),
                    _ => unreachable!(),
                }),
                ("`glu`: `up` (v12) is (tokens, 12), expected (tokens, 7)", |p| set!(p, "glu", Glu.up = Value(12))),
                ("`add`: `b` (v1) is (tokens, 12), expected (tokens, 8)", |p| {
                    set!(p, "add", Add.a = Value(2));
                    set!(p, "add", Add.b = Value(1));
                }),
                ("`select_outputs`: `out` (v36) is (tokens, 12), expected (outputs, 12)", |p| {
                    p.values[36].rows = Rows::Tokens;
                }),
            ],
        );
    }

    #[test]
    fn each_fault_in_the_shapes_of_latent_attention_is_named() {
        check(
            &latent(),
            &[
                ("cache layer 0 is empty", |p| p.kv_layers[0] = LatentLayer { dim: 6, rope: 0 }.into()),
                ("`latent_write`: `latent` (v8) is (tokens, 6), expected (tokens, 5)", |p| {
                    p.kv_layers[0] = LatentLayer { dim: 5, rope: 4 }.into();
                }),
                ("`latent_write`: `rope` (v10) is (tokens, 4), expected (tokens, 3)", |p| {
                    p.kv_layers[0] = LatentLayer { dim: 6, rope: 3 }.into();
                }),
                ("`latent_write`: cache layer 0 has heads, expected latent rows", |p| {
                    p.kv_layers[0] = KvLayer { kv_heads: 1, head_dim: 10 }.into();
                }),
                ("`mla_attention`: `q_latent` (v11) is (tokens, 18), expected (tokens, 12)", |p| {
                    match op(p, "mla_attention") {
                        Op::MlaAttention { attention, .. } => attention.heads = 2,
                        _ => unreachable!(),
                    }
                }),
                ("`head_linear`: `x` (v4) has width 6, expected a multiple of 4 heads", |p| {
                    match op(p, "head_linear") {
                        Op::HeadLinear { heads, .. } => heads.count = 4,
                        _ => unreachable!(),
                    }
                }),
                ("`head_linear`: weight `k_b_proj.1.weight` has shape [6, 3], expected [6, 2]", |p| {
                    p.weights.iter_mut().find(|w| w.name == "k_b_proj.1.weight").unwrap().shape = vec![6, 3];
                }),
            ],
        );
        check(
            &decoder(),
            &[("`kv_write`: cache layer 0 has latent rows, expected heads", |p| {
                p.kv_layers[0] = LatentLayer { dim: 2, rope: 2 }.into();
            })],
        );
    }

    #[test]
    fn each_fault_in_the_shapes_of_what_stands_between_the_projections_of_latent_attention_is_named() {
        check(
            &fuse(latent()),
            &[
                ("`latent_rope_write`: rope 0 is for heads of 4, cache layer 0 turns 3", |p| {
                    p.kv_layers[0] = LatentLayer { dim: 6, rope: 3 }.into();
                }),
                ("`latent_rope_write`: weight `kv_a_layernorm.weight` has shape [5], expected [6]", |p| {
                    p.weights.iter_mut().find(|w| w.name == "kv_a_layernorm.weight").unwrap().shape = vec![5];
                }),
                ("`latent_rope_write`: order 2 has 5 columns of `latent`, expected 6", |p| {
                    p.orders[2].pop();
                }),
                ("`latent_rope_write`: its order names column 10 of 10", |p| p.orders[3][1] = 10),
                ("`latent_rope_write`: `q_nope` (v3) is (tokens, 6), expected (tokens, 5)", |p| {
                    p.orders[0].pop();
                }),
            ],
        );
    }

    #[test]
    fn each_fault_in_the_shapes_of_fused_ops_is_named() {
        check(
            &fuse(decoder()),
            &[
                ("`norm_linear`: no projection", |p| {
                    let Op::NormLinear { projections, .. } = op(p, "norm_linear") else { unreachable!() };
                    projections.clear();
                }),
                ("`norm_linear`: weight `0.input_layernorm.weight` has shape [6], expected [12]", |p| {
                    p.weights[1].shape = vec![6];
                }),
                ("`norm_linear`: weight `0.k_proj.weight` has shape [5, 12], expected [4, 12]", |p| {
                    p.weights[4].shape = vec![5, HIDDEN];
                }),
                ("`rope_kv_write`: rope 0 is for heads of 4, cache layer 0 has 2", |p| {
                    p.kv_layers[0] = KvLayer { kv_heads: 2, head_dim: 2 }.into();
                }),
                ("`rope_kv_write`: weight `0.k_norm.weight` has shape [8], expected [4]", |p| {
                    p.weights.iter_mut().find(|w| w.name == "0.k_norm.weight").unwrap().shape = vec![8];
                }),
                ("`rope_kv_write`: `v` (v1) is (tokens, 8), expected (tokens, 4)", |p| {
                    set!(p, "rope_kv_write", RopeKvWrite.v = Value(1));
                }),
                ("`linear_residual`: `residual` (v1) is (tokens, 8), expected (tokens, 12)", |p| {
                    set!(p, "linear_residual", LinearResidual.residual = Value(1));
                }),
                ("`norm_glu`: weight `0.up_proj.weight` has shape [8, 12], expected [7, 12]", |p| {
                    p.weights.iter_mut().find(|w| w.name == "0.up_proj.weight").unwrap().shape = vec![8, HIDDEN];
                }),
                ("`logits`: weight `norm.weight` has shape [3], expected [12]", |p| {
                    p.weights.last_mut().unwrap().shape = vec![3];
                }),
                ("`logits`: `out` (v17) is (tokens, 20), expected (outputs, 20)", |p| p.values[17].rows = Rows::Tokens),
            ],
        );
    }
}
