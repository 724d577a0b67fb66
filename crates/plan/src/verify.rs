//! The verifier: what every pass and every backend may rely on. Run on each plan that is built and between passes.

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

/// Checks that every value is defined once and before it is used, that rows, widths and weight shapes agree in every
/// op, that each layer's cache is written once and before it is read, that every weight is used, and that the logits
/// are (outputs, vocab_size).
pub fn verify(plan: &Plan) -> Result<(), VerifyError> {
    let whole = |fault| VerifyError::Plan { model_type: plan.model_type.clone(), fault };
    check_tables(plan).map_err(whole)?;
    let mut seen = Seen {
        defined: vec![false; plan.values.len()],
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
    written: Vec<bool>,
    read: Vec<bool>,
}

fn check_tables(plan: &Plan) -> Checked {
    if let Some(index) = plan.values.iter().position(|value| value.width == 0) {
        return Err(format!("value v{index} has no width"));
    }
    for (index, weight) in plan.weights.iter().enumerate() {
        if weight.shape.is_empty() || weight.shape.contains(&0) {
            return Err(format!("weight `{}` has the empty shape {:?}", weight.name, weight.shape));
        }
        if plan.weights[..index].iter().any(|other| other.name == weight.name) {
            return Err(format!("weight `{}` is listed twice", weight.name));
        }
    }
    for (index, rope) in plan.ropes.iter().enumerate() {
        if rope.head_dim == 0 || !rope.head_dim.is_multiple_of(2) {
            return Err(format!("rope {index} has head_dim {}, expected an even number", rope.head_dim));
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
            Some(true) => {}
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
        Some(&found) if found == expected => Ok(()),
        Some(found) => Err(format!("the logits are {}, expected {}", show(*found), show(expected))),
        None => Err(format!("the logits are {}, but the plan has {} values", plan.logits, plan.values.len())),
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
