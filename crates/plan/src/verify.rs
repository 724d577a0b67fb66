//! The verifier: what every pass and every backend may rely on. Run on each plan that is built and between passes.

use std::collections::HashSet;

use crate::{Linear, Norm, Op, Plan, RopeScaling, Rows, Value, ValueInfo, WeightId};

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

/// A fault without its place: the callers below add it.
type Checked<T = ()> = Result<T, String>;

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
        check_order(plan, op, &mut seen)
            .and_then(|()| Shapes(plan).check(op))
            .and_then(|()| check_cache(op, &mut seen))
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
        if rope.head_dim == 0 || !rope.head_dim.is_multiple_of(2) {
            return Err(format!("rope {index} has head_dim {}, expected an even number", rope.head_dim));
        }
        if !(rope.attention_factor.is_finite() && rope.attention_factor > 0.0) {
            let found = rope.attention_factor;
            return Err(format!("rope {index} has the attention factor {found}, expected a positive number"));
        }
        if let RopeScaling::Factors(factors) = &rope.scaling
            && factors.len() != rope.head_dim / 2
        {
            return Err(format!("rope {index} has {} factors for {} pairs", factors.len(), rope.head_dim / 2));
        }
    }
    match plan.kv_layers.iter().position(|layer| layer.kv_heads == 0 || layer.head_dim == 0) {
        Some(layer) => Err(format!("cache layer {layer} is empty: {:?}", plan.kv_layers[layer])),
        None => Ok(()),
    }
}

/// Inputs exist and are defined, outputs are not yet; weights and table indices are in range.
fn check_order(plan: &Plan, op: &Op, seen: &mut Seen) -> Checked {
    for value in op.inputs() {
        match seen.defined.get(value.index()) {
            None => return Err(format!("reads {value}, but the plan has {} values", plan.values.len())),
            Some(false) => return Err(format!("reads {value} before it is defined")),
            Some(true) => seen.used[value.index()] = true,
        }
    }
    for value in op.outputs() {
        match seen.defined.get_mut(value.index()) {
            None => return Err(format!("defines {value}, but the plan has {} values", plan.values.len())),
            Some(true) => return Err(format!("defines {value} a second time")),
            Some(defined) => *defined = true,
        }
    }
    for weight in op.weights() {
        let read = seen.read.get_mut(weight.index());
        *read.ok_or_else(|| format!("reads weight {}, but the plan has {}", weight.index(), plan.weights.len()))? =
            true;
    }
    let (rope, layer) = match *op {
        Op::Rope { rope, .. } => (Some(rope), None),
        Op::KvWrite { layer, .. } => (None, Some(layer)),
        Op::Attention { ref attention, .. } => (None, Some(attention.layer)),
        Op::RopeKvWrite { rope, layer, .. } => (Some(rope), Some(layer)),
        _ => (None, None),
    };
    if let Some(rope) = rope.filter(|&rope| rope >= plan.ropes.len()) {
        return Err(format!("uses rope {rope}, but the plan has {}", plan.ropes.len()));
    }
    if let Op::GatherColumns { order, .. } = *op
        && order >= plan.orders.len()
    {
        return Err(format!("uses order {order}, but the plan has {}", plan.orders.len()));
    }
    if let Some(layer) = layer.filter(|&layer| layer >= plan.kv_layers.len()) {
        return Err(format!("uses cache layer {layer}, but the plan has {}", plan.kv_layers.len()));
    }
    Ok(())
}

fn check_cache(op: &Op, seen: &mut Seen) -> Checked {
    match *op {
        Op::KvWrite { layer, .. } | Op::RopeKvWrite { layer, .. } => {
            let before = std::mem::replace(&mut seen.written[layer], true);
            if before { Err(format!("writes cache layer {layer} a second time")) } else { Ok(()) }
        }
        Op::Attention { ref attention, .. } if !seen.written[attention.layer] => {
            Err(format!("reads cache layer {} before it is written", attention.layer))
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
    let expected = ValueInfo { rows: Rows::Outputs, width: plan.vocab_size };
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

/// The shapes that each op wants. All its values and weights are in range by now.
struct Shapes<'a>(&'a Plan);

impl Shapes<'_> {
    fn check(&self, op: &Op) -> Checked {
        match *op {
            Op::Embed { table, out } => {
                self.rows("out", out, Rows::Tokens)?;
                self.weight(table, &[self.0.vocab_size, self.width(out)])
            }
            Op::RmsNorm { x, norm, out } => {
                self.norm_slices(x, norm)?;
                self.like("out", out, x)
            }
            Op::Linear { x, linear, out } => self.linear(x, linear, out),
            Op::Rope { x, rope, out } => {
                self.heads("x", x, self.0.ropes[rope].head_dim)?;
                self.like("out", out, x)
            }
            Op::KvWrite { layer, k, v } => self.cache_rows(layer, k, v),
            Op::Attention { q, ref attention, out } => {
                let layer = self.0.kv_layers[attention.layer];
                if attention.heads == 0 || !attention.heads.is_multiple_of(layer.kv_heads) {
                    let (heads, kv_heads) = (attention.heads, layer.kv_heads);
                    return Err(format!("{heads} heads do not divide over {kv_heads} key/value heads"));
                }
                if attention.window == Some(0) {
                    return Err("a window of no positions".to_owned());
                }
                self.rows("q", q, Rows::Tokens)?;
                self.width_is("q", q, attention.heads * layer.head_dim)?;
                self.like("out", out, q)
            }
            Op::Glu { gate, up, out, .. } => {
                self.like("up", up, gate)?;
                self.like("out", out, gate)
            }
            Op::Add { a, b, out } => {
                self.like("b", b, a)?;
                self.like("out", out, a)
            }
            Op::GatherColumns { x, order, out } => {
                let order = &self.0.orders[order];
                let width = self.width(x);
                if let Some(column) = order.iter().find(|&&column| column as usize >= width) {
                    return Err(format!("its order names column {column} of {width}"));
                }
                self.rows("out", out, self.0.value(x).rows)?;
                self.width_is("out", out, order.len())
            }
            Op::SelectOutputs { x, out } => {
                self.rows("x", x, Rows::Tokens)?;
                self.rows("out", out, Rows::Outputs)?;
                self.width_is("out", out, self.width(x))
            }
            Op::NormLinear { x, norm, ref projections } => {
                if projections.is_empty() {
                    return Err("no projection".to_owned());
                }
                self.norm_row(x, norm)?;
                projections.iter().try_for_each(|&(linear, out)| self.linear(x, linear, out))
            }
            Op::NormGlu { x, norm, gate, up, out, .. } => {
                self.norm_row(x, norm)?;
                self.linear(x, gate, out)?;
                self.linear(x, up, out)
            }
            Op::LinearResidual { x, linear, residual, out } => {
                self.linear(x, linear, out)?;
                self.like("residual", residual, out)
            }
            Op::RopeKvWrite { q, k, v, q_norm, k_norm, rope, layer, q_out } => {
                let head_dim = self.0.ropes[rope].head_dim;
                if head_dim != self.0.kv_layers[layer].head_dim {
                    let found = self.0.kv_layers[layer].head_dim;
                    return Err(format!("rope {rope} is for heads of {head_dim}, cache layer {layer} has {found}"));
                }
                self.heads("q", q, head_dim)?;
                self.like("q_out", q_out, q)?;
                for norm in [q_norm, k_norm].into_iter().flatten() {
                    self.norm(norm)?;
                    self.weight(norm.weight, &[head_dim])?;
                }
                self.cache_rows(layer, k, v)
            }
            Op::Logits { x, norm, head, out } => {
                self.rows("x", x, Rows::Tokens)?;
                self.rows("out", out, Rows::Outputs)?;
                self.norm_row(x, norm)?;
                self.projection(head, self.width(x), self.width(out))
            }
        }
    }

    fn width(&self, value: Value) -> usize {
        self.0.value(value).width
    }

    fn rows(&self, what: &str, value: Value, expected: Rows) -> Checked {
        let found = self.0.value(value);
        let wanted = ValueInfo { rows: expected, ..found };
        if found == wanted { Ok(()) } else { Err(mismatch(what, value, found, wanted)) }
    }

    fn width_is(&self, what: &str, value: Value, expected: usize) -> Checked {
        let found = self.0.value(value);
        let wanted = ValueInfo { width: expected, ..found };
        if found == wanted { Ok(()) } else { Err(mismatch(what, value, found, wanted)) }
    }

    fn like(&self, what: &str, value: Value, other: Value) -> Checked {
        let (found, expected) = (self.0.value(value), self.0.value(other));
        if found == expected { Ok(()) } else { Err(mismatch(what, value, found, expected)) }
    }

    /// A row for each token, of whole heads.
    fn heads(&self, what: &str, value: Value, head_dim: usize) -> Checked {
        self.rows(what, value, Rows::Tokens)?;
        if self.width(value).is_multiple_of(head_dim) {
            return Ok(());
        }
        Err(format!("`{what}` ({value}) has width {}, expected a multiple of head_dim {head_dim}", self.width(value)))
    }

    fn cache_rows(&self, layer: usize, k: Value, v: Value) -> Checked {
        let expected = self.0.kv_layers[layer].kv_heads * self.0.kv_layers[layer].head_dim;
        for (what, value) in [("k", k), ("v", v)] {
            self.rows(what, value, Rows::Tokens)?;
            self.width_is(what, value, expected)?;
        }
        Ok(())
    }

    fn linear(&self, x: Value, linear: Linear, out: Value) -> Checked {
        self.rows("out", out, self.0.value(x).rows)?;
        self.projection(linear, self.width(x), self.width(out))
    }

    fn projection(&self, linear: Linear, in_features: usize, out_features: usize) -> Checked {
        self.weight(linear.weight, &[out_features, in_features])?;
        linear.bias.map_or(Ok(()), |bias| self.weight(bias, &[out_features]))
    }

    /// A norm over slices of a row: the weight is one slice wide.
    fn norm_slices(&self, x: Value, norm: Norm) -> Checked {
        self.norm(norm)?;
        match self.0.weight(norm.weight).shape[..] {
            [slice] if self.width(x).is_multiple_of(slice) => Ok(()),
            ref shape => {
                let name = &self.0.weight(norm.weight).name;
                Err(format!("weight `{name}` has shape {shape:?}, expected a divisor of width {}", self.width(x)))
            }
        }
    }

    /// A norm over the whole row.
    fn norm_row(&self, x: Value, norm: Norm) -> Checked {
        self.norm(norm)?;
        self.weight(norm.weight, &[self.width(x)])
    }

    fn norm(&self, norm: Norm) -> Checked {
        if norm.eps.is_finite() && norm.eps >= 0.0 { Ok(()) } else { Err(format!("eps is {}", norm.eps)) }
    }

    fn weight(&self, weight: WeightId, expected: &[usize]) -> Checked {
        let found = self.0.weight(weight);
        if found.shape == expected {
            return Ok(());
        }
        Err(format!("weight `{}` has shape {:?}, expected {expected:?}", found.name, found.shape))
    }
}

fn mismatch(what: &str, value: Value, found: ValueInfo, expected: ValueInfo) -> String {
    format!("`{what}` ({value}) is {}, expected {}", show(found), show(expected))
}

fn show(info: ValueInfo) -> String {
    let rows = match info.rows {
        Rows::Tokens => "tokens",
        Rows::Outputs => "outputs",
    };
    format!("({rows}, {})", info.width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_plans::{HIDDEN, VOCAB, decoder};
    use crate::{KvLayer, RopeScaling, ValueInfo, fuse};

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
                ("rope 0 has head_dim 3, expected an even number", |p| p.ropes[0].head_dim = 3),
                ("rope 0 has the attention factor NaN, expected a positive number", |p| {
                    p.ropes[0].attention_factor = f32::NAN;
                }),
                ("rope 0 has 1 factors for 2 pairs", |p| p.ropes[0].scaling = RopeScaling::Factors(vec![1.0])),
                ("cache layer 1 is empty", |p| p.kv_layers[1].kv_heads = 0),
                ("cache layer 2 is never written", |p| p.kv_layers.push(KvLayer { kv_heads: 1, head_dim: 4 })),
                ("value v38 is never defined", |p| p.values.push(ValueInfo { rows: Rows::Tokens, width: 1 })),
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
                ("`kv_write`: `k` (v8) is (tokens, 4), expected (tokens, 8)", |p| p.kv_layers[0].kv_heads = 2),
                ("`attention`: 3 heads do not divide over 2 key/value heads", |p| {
                    p.kv_layers[0] = KvLayer { kv_heads: 2, head_dim: 2 };
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
                    p.kv_layers[0] = KvLayer { kv_heads: 2, head_dim: 2 };
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
