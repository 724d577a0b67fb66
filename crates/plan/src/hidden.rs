//! The same model without its head: what the final norm makes of the rows that are wanted, for embeddings.

use crate::passes::compact;
use crate::{Op, Plan, Rows, Value, ValueInfo};

/// The plan that ends where `plan`'s head begins: its result, at [`Plan::logits`], is the input of the head, (outputs,
/// hidden_size), which the final norm made. Works on textbook ops and on fused ones, and changes no other op, so the states
/// are those that the logits are made of.
///
/// Weights and cache layers keep their places, so that a backend runs both plans over the same tensors and the same cache;
/// the head's weight is listed and not read, and [`verify`](crate::verify()) would say so. `None` where the logits are no
/// projection of normalised rows.
pub fn hidden_states(plan: &Plan) -> Option<Plan> {
    let mut hidden = plan.clone();
    let mut selects = false;
    let mut end = plan.logits;
    loop {
        let index = hidden.ops.iter().position(|op| op.outputs().contains(&end))?;
        let mut define = |rows: Rows, width: usize| {
            hidden.values.push(ValueInfo::activations(rows, width));
            Value(hidden.values.len() as u32 - 1)
        };
        match hidden.ops[index].clone() {
            Op::SelectOutputs { x, .. } if !selects => {
                selects = true;
                end = x;
                hidden.ops.remove(index);
            }
            Op::Linear { x, .. } => {
                hidden.ops.remove(index);
                end = x;
                let is_normed = hidden.ops.iter().any(|op| match *op {
                    Op::RmsNorm { out, .. } => out == x,
                    // Rows that are selected behind the norm.
                    Op::SelectOutputs { x: inner, out } if out == x => {
                        hidden.ops.iter().any(|op| matches!(*op, Op::RmsNorm { out, .. } if out == inner))
                    }
                    _ => false,
                });
                if !is_normed {
                    return None;
                }
                break;
            }
            Op::NormLinear { x, norm, projections } if projections.len() == 1 => {
                let ValueInfo { rows, width, .. } = plan.value(x);
                end = define(rows, width);
                hidden.ops[index] = Op::RmsNorm { x, norm, out: end };
                break;
            }
            Op::Logits { x, norm, .. } => {
                let width = plan.value(x).width;
                let (selected, normed) = (define(Rows::Outputs, width), define(Rows::Outputs, width));
                end = normed;
                let select = Op::SelectOutputs { x, out: selected };
                hidden.ops.splice(index..=index, [select, Op::RmsNorm { x: selected, norm, out: normed }]);
                break;
            }
            _ => return None,
        }
    }
    if hidden.values[end.index()].rows == Rows::Tokens {
        let width = hidden.values[end.index()].width;
        hidden.values.push(ValueInfo::activations(Rows::Outputs, width));
        let out = Value(hidden.values.len() as u32 - 1);
        hidden.ops.push(Op::SelectOutputs { x: end, out });
        end = out;
    }
    hidden.logits = end;
    compact(&mut hidden);
    Some(hidden)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_plans::{HIDDEN, VOCAB, decoder, plan_of};
    use crate::{fuse, restrict_outputs, verify};

    fn names(plan: &Plan) -> Vec<&'static str> {
        plan.ops.iter().map(Op::name).collect()
    }

    #[test]
    fn only_the_head_goes() {
        for plan in [decoder(), fuse(decoder()), restrict_outputs(decoder()), fuse(restrict_outputs(decoder()))] {
            let hidden = hidden_states(&plan).expect("a head over a norm");
            let ValueInfo { rows, width, .. } = hidden.value(hidden.logits);
            assert_eq!((rows, width), (Rows::Outputs, HIDDEN), "{hidden}");
            assert_eq!((&hidden.weights, &hidden.kv_layers), (&plan.weights, &plan.kv_layers));
            assert!(names(&hidden)[hidden.ops.len() - 2..].contains(&"rms_norm"), "{hidden}");
            let textbook = |plan: &Plan| plan.ops.iter().filter(|op| op.name() == "attention").count();
            assert_eq!(textbook(&hidden), textbook(&plan));
            // All but its end is a sound plan: the tied head is the table, which is still read.
            let fault = verify(&hidden).expect_err("its result is no row of logits").to_string();
            assert!(fault.contains("the logits are"), "{fault}");
        }
    }

    #[test]
    fn a_head_without_a_norm_has_no_such_states() {
        let plan = plan_of(|g, w| {
            let x = g.embed(w.get("table", [VOCAB, HIDDEN])?, HIDDEN);
            let x = g.select_outputs(x);
            Ok(g.linear(x, w.linear("head", VOCAB, HIDDEN, false)?, VOCAB))
        });
        assert_eq!(hidden_states(&plan), None);
        let plan = plan_of(|g, w| {
            let x = g.embed(w.get("table", [VOCAB, HIDDEN])?, HIDDEN);
            Ok(g.select_outputs(x))
        });
        assert_eq!(hidden_states(&plan), None);
    }
}
