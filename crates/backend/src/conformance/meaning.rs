//! Which values of two plans of one model are the same thing: a fused op's results are found among those of the textbook
//! ops that it stands for.
//!
//! Every value is an expression over weights and tokens; a fused op is written out, and the selection of output rows is
//! moved to where it would be without `restrict_outputs` and fusion. Equal expressions are equal values.

use std::collections::HashMap;

use plan::{Op, Plan, Value};

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

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Expression {
    /// A textbook op of other expressions.
    Result { computation: Computation, operands: Vec<Id> },
    /// The output rows of another expression.
    SelectOutputs(Id),
}

/// What a textbook op makes of its operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Computation {
    /// The op without its values, as text because its numbers have no hash.
    op: String,
    /// Which of its results.
    result: usize,
    is_row_by_row: bool,
    is_sum: bool,
}

impl Computation {
    fn new(op: &Op, result: usize) -> Self {
        let text = match op {
            // Its keys and values are those of the layer. Heads, scale and window do not count, so that a device that
            // gets one of them wrong is compared all the same.
            Op::Attention { attention, .. } => format!("attention over layer {}", attention.layer),
            op => format!("{:?}", op.without_values()),
        };
        Self { op: text, result, is_row_by_row: op.is_row_by_row(), is_sum: matches!(op, Op::Add { .. }) }
    }
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
            let written_out = op.written_out(plan);
            of_value.resize(plan.values.len() + written_out.values.len(), Id::MAX);
            for op in &written_out.ops {
                let operands: Vec<_> = op.inputs().into_iter().map(|value| of_value[value.index()]).collect();
                for (result, out) in op.outputs().into_iter().enumerate() {
                    of_value[out.index()] = match op {
                        Op::SelectOutputs { .. } => self.select(operands[0]),
                        op => self.result(Computation::new(op, result), operands.clone()),
                    };
                }
            }
        }
        of_value.truncate(plan.values.len());
        of_value
    }

    fn result(&mut self, computation: Computation, mut operands: Vec<Id>) -> Id {
        if computation.is_sum {
            // A sum has no order.
            operands.sort_unstable();
        }
        self.id(Expression::Result { computation, operands })
    }

    fn id(&mut self, expression: Expression) -> Id {
        *self.ids.entry(expression).or_insert_with_key(|expression| {
            self.all.push(expression.clone());
            self.all.len() - 1
        })
    }

    /// The output rows of `x`: of the operands, where each row is computed from theirs alone.
    fn select(&mut self, x: Id) -> Id {
        match self.all[x].clone() {
            Expression::SelectOutputs(_) => x,
            Expression::Result { computation, operands } if computation.is_row_by_row => {
                let operands = operands.into_iter().map(|operand| self.select(operand)).collect();
                self.result(computation, operands)
            }
            Expression::Result { .. } => self.id(Expression::SelectOutputs(x)),
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
