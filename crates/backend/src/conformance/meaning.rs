//! Which values of two plans of one model are the same thing: a fused op's results are found among those of the textbook
//! ops that it stands for.
//!
//! Every value is an expression over weights and tokens; a fused op is written out, and the selection of output rows is
//! moved to where it would be without `restrict_outputs` and fusion. Equal expressions are equal values.

use std::collections::HashMap;

use plan::{Activation, Linear, Norm, Op, Plan, Value, WeightId};

/// Where a value is found in another plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counterpart {
    /// It is this one.
    Same(Value),
    /// It is this one's output rows.
    OutputRowsOf(Value),
}

/// For each value of `plan`, where it is in `other`: a plan of the same model, with the same weights in the same order.
pub(super) fn counterparts(plan: &Plan, other: &Plan) -> Vec<Option<Counterpart>> {
    let mut known = Expressions::default();
    let of_plan = known.of(plan);
    let of_other = known.of(other);
    let defined = || other.ops.iter().flat_map(Op::outputs);
    let mut found = HashMap::new();
    for value in defined() {
        found.entry(of_other[value.index()]).or_insert(Counterpart::Same(value));
    }
    for value in defined() {
        found.entry(known.select(of_other[value.index()])).or_insert(Counterpart::OutputRowsOf(value));
    }
    of_plan.iter().map(|expression| found.get(expression).copied()).collect()
}

/// An expression that is known, by its place.
type Id = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Expression {
    Embed(WeightId),
    RmsNorm {
        x: Id,
        weight: WeightId,
        eps_bits: u32,
    },
    Linear {
        x: Id,
        weight: WeightId,
        bias: Option<WeightId>,
    },
    Rope {
        x: Id,
        rope: usize,
    },
    /// Its keys and values are those of the layer.
    Attention {
        q: Id,
        layer: usize,
    },
    Glu {
        gate: Id,
        up: Id,
        activation: Activation,
    },
    /// The smaller place first: a sum has no order.
    Add(Id, Id),
    GatherColumns {
        x: Id,
        order: usize,
    },
    SelectOutputs(Id),
}

#[derive(Default)]
struct Expressions {
    ids: HashMap<Expression, Id>,
    all: Vec<Expression>,
}

impl Expressions {
    /// The expression of each value of `plan`.
    fn of(&mut self, plan: &Plan) -> Vec<Id> {
        let mut of_value = vec![Id::MAX; plan.values.len()];
        for op in &plan.ops {
            let x = |value: Value| of_value[value.index()];
            let results = match *op {
                Op::Embed { table, .. } => vec![self.id(Expression::Embed(table))],
                Op::RmsNorm { x: v, norm, .. } => vec![self.rms_norm(x(v), norm)],
                Op::Linear { x: v, linear, .. } => vec![self.linear(x(v), linear)],
                Op::Rope { x: v, rope, .. } => vec![self.id(Expression::Rope { x: x(v), rope })],
                Op::KvWrite { .. } => vec![],
                Op::Attention { q, attention, .. } => {
                    vec![self.id(Expression::Attention { q: x(q), layer: attention.layer })]
                }
                Op::Glu { gate, up, activation, .. } => vec![self.glu(x(gate), x(up), activation)],
                Op::Add { a, b, .. } => vec![self.add(x(a), x(b))],
                Op::GatherColumns { x: v, order, .. } => vec![self.id(Expression::GatherColumns { x: x(v), order })],
                Op::SelectOutputs { x: v, .. } => vec![self.select(x(v))],
                Op::NormLinear { x: v, norm, ref projections } => {
                    let normed = self.rms_norm(x(v), norm);
                    projections.iter().map(|&(linear, _)| self.linear(normed, linear)).collect()
                }
                Op::NormGlu { x: v, norm, gate, up, activation, .. } => {
                    let normed = self.rms_norm(x(v), norm);
                    let (gate, up) = (self.linear(normed, gate), self.linear(normed, up));
                    vec![self.glu(gate, up, activation)]
                }
                Op::LinearResidual { x: v, linear, residual, .. } => {
                    let product = self.linear(x(v), linear);
                    vec![self.add(x(residual), product)]
                }
                Op::RopeKvWrite { q, q_norm, rope, .. } => {
                    let q = q_norm.map_or(x(q), |norm| self.rms_norm(x(q), norm));
                    vec![self.id(Expression::Rope { x: q, rope })]
                }
                Op::Logits { x: v, norm, head, .. } => {
                    let selected = self.select(x(v));
                    let normed = self.rms_norm(selected, norm);
                    vec![self.linear(normed, head)]
                }
            };
            for (value, result) in op.outputs().into_iter().zip(results) {
                of_value[value.index()] = result;
            }
        }
        of_value
    }

    fn id(&mut self, expression: Expression) -> Id {
        *self.ids.entry(expression).or_insert_with(|| {
            self.all.push(expression);
            self.all.len() - 1
        })
    }

    fn rms_norm(&mut self, x: Id, norm: Norm) -> Id {
        self.id(Expression::RmsNorm { x, weight: norm.weight, eps_bits: norm.eps.to_bits() })
    }

    fn linear(&mut self, x: Id, linear: Linear) -> Id {
        self.id(Expression::Linear { x, weight: linear.weight, bias: linear.bias })
    }

    fn glu(&mut self, gate: Id, up: Id, activation: Activation) -> Id {
        self.id(Expression::Glu { gate, up, activation })
    }

    fn add(&mut self, a: Id, b: Id) -> Id {
        self.id(Expression::Add(a.min(b), a.max(b)))
    }

    /// The output rows of `x`: of the operands, where each row is computed from theirs alone.
    fn select(&mut self, x: Id) -> Id {
        match self.all[x] {
            Expression::RmsNorm { x, weight, eps_bits } => {
                let x = self.select(x);
                self.id(Expression::RmsNorm { x, weight, eps_bits })
            }
            Expression::Linear { x, weight, bias } => {
                let x = self.select(x);
                self.id(Expression::Linear { x, weight, bias })
            }
            Expression::GatherColumns { x, order } => {
                let x = self.select(x);
                self.id(Expression::GatherColumns { x, order })
            }
            Expression::Glu { gate, up, activation } => {
                let (gate, up) = (self.select(gate), self.select(up));
                self.id(Expression::Glu { gate, up, activation })
            }
            Expression::Add(a, b) => {
                let (a, b) = (self.select(a), self.select(b));
                self.add(a, b)
            }
            Expression::SelectOutputs(_) => x,
            Expression::Embed(_) | Expression::Rope { .. } | Expression::Attention { .. } => {
                self.id(Expression::SelectOutputs(x))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use plan::{fuse, restrict_outputs};
    use tensor::WeightFormat;
    use testing::{MODEL_TYPES, tiny_model};

    use super::*;

    #[test]
    fn every_value_of_a_fused_plan_is_found_among_the_textbook_s() {
        for model_type in MODEL_TYPES {
            let (textbook, _) = tiny_model(model_type, 5, WeightFormat::F32);
            let plans = [fuse((*textbook).clone()), fuse(restrict_outputs((*textbook).clone()))];
            for plan in plans {
                let found = counterparts(&plan, &textbook);
                assert!(found.iter().all(Option::is_some), "{model_type}: {found:?}\n{plan}");
                let logits = found[plan.logits.index()];
                assert_eq!(logits, Some(Counterpart::Same(textbook.logits)), "{model_type}");
                assert!(counterparts(&plan, &plan).iter().enumerate().all(|(index, found)| {
                    matches!(found, Some(Counterpart::Same(value)) if value.index() == index)
                }));
            }
        }
    }

    #[test]
    fn another_computation_is_not_found() {
        let (textbook, _) = tiny_model("llama", 5, WeightFormat::F32);
        let mut other = (*textbook).clone();
        for op in &mut other.ops {
            if let Op::RmsNorm { norm, .. } = op {
                norm.eps *= 2.0;
            }
        }
        let found = counterparts(&fuse(other), &textbook);
        assert_eq!(found.iter().flatten().count(), 1, "only the embedding: {found:?}");
    }
}
