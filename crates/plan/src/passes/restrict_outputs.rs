//! Moves `select_outputs` up through the ops that treat each row alone, to where other rows are first needed.

use std::collections::HashMap;

use crate::{Op, Plan, Rows, Value, ValueInfo};

pub(super) fn run(plan: &mut Plan) {
    let restricted = restricted_ops(plan);
    let mut ops = Vec::with_capacity(plan.ops.len());
    // From a value of all tokens to the value of its output rows.
    let mut selected: HashMap<Value, Value> = HashMap::new();
    // From the result of a selection that is gone to what stands for it.
    let mut replaced: HashMap<Value, Value> = HashMap::new();
    for (mut op, restrict) in std::mem::take(&mut plan.ops).into_iter().zip(restricted) {
        op.map_values(|value| *replaced.get(&value).unwrap_or(&value));
        if let Op::SelectOutputs { x, out } = op {
            let already = if plan.value(x).rows == Rows::Outputs { Some(x) } else { selected.get(&x).copied() };
            if let Some(already) = already {
                replaced.insert(out, already);
                continue;
            }
            selected.insert(x, out);
        }
        if restrict {
            for x in op.inputs() {
                if plan.value(x).rows == Rows::Tokens && !selected.contains_key(&x) {
                    let out = Value(plan.values.len() as u32);
                    plan.values.push(ValueInfo { rows: Rows::Outputs, ..plan.value(x) });
                    ops.push(Op::SelectOutputs { x, out });
                    selected.insert(x, out);
                }
            }
            op.map_values(|value| *selected.get(&value).unwrap_or(&value));
            op.outputs().iter().for_each(|out| plan.values[out.index()].rows = Rows::Outputs);
        }
        ops.push(op);
    }
    plan.logits = *replaced.get(&plan.logits).unwrap_or(&plan.logits);
    plan.ops = ops;
}

/// Which ops may run on the output rows alone: those that treat each row alone and whose results only go to selections
/// and to other such ops.
fn restricted_ops(plan: &Plan) -> Vec<bool> {
    let mut only_outputs = vec![true; plan.values.len()];
    let mut restricted: Vec<_> = plan
        .ops
        .iter()
        .rev()
        .map(|op| {
            let restrict = op.is_row_by_row() && op.outputs().iter().all(|out| only_outputs[out.index()]);
            if !restrict && !matches!(op, Op::SelectOutputs { .. }) {
                op.inputs().iter().for_each(|x| only_outputs[x.index()] = false);
            }
            restrict
        })
        .collect();
    restricted.reverse();
    restricted
}
