//! The cases of [`lab`] in the shapes of published models.

use lab::cases::{Case, cases_of, is_of_op};
use plan::Plan;

use super::super::shapes;

fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for name in ["qwen2.5-0.5b", "qwen3-0.6b", "llama-3.1-8b"] {
        let textbook = shapes::plan_of(name).unwrap();
        let fused = plan::fuse(textbook.clone());
        cases.extend(cases_of(&[&textbook, &fused]));
    }
    cases
}

#[test]
fn every_op_of_a_model_is_found_in_each_shape_once() {
    let textbook = shapes::plan_of("qwen2.5-0.5b").unwrap();
    let fused = plan::fuse(textbook.clone());
    let names: Vec<_> = cases_of(&[&fused]).iter().map(|case| format!("{} {}", case.op(), case.shape())).collect();
    assert_eq!(
        names,
        [
            "embed 896",
            "norm_linear 896 → 896 + 128 + 128",
            "rope_kv_write 14 heads of 64, 2 kv",
            "attention 14 heads of 64, 2 kv",
            "linear_residual 896 → 896",
            "norm_glu 896 → 2 × 4864",
            "linear_residual 4864 → 896",
            "logits 896 → 151936",
        ]
    );
    let textbook: Vec<_> = cases_of(&[&textbook]).iter().map(Case::op).collect();
    assert_eq!(textbook.iter().filter(|op| **op == "linear").count(), 5, "q, k and v, o, gate and up, down");
}

#[test]
fn plans_have_the_op_as_often_as_asked_and_nothing_else_to_measure() {
    for case in all() {
        for copies in [0..1, 2..5] {
            let copies = if case.can_be_copied() { copies } else { 0..1 };
            let count = |plan: &Plan| plan.ops.iter().filter(|op| case.is_measured(plan, op)).count();
            let plan = case.timed_plan(copies.clone(), true).unwrap();
            plan::verify(&plan).unwrap();
            let expected = copies.len() * if matches!(case, Case::Attention(_)) { 2 } else { 1 };
            assert_eq!(count(&plan), expected, "{case:?}:\n{plan}");
            let of_op = plan.weights.iter().filter(|weight| is_of_op(&weight.name)).count();
            assert!(of_op.is_multiple_of(copies.len()), "{case:?}:\n{plan}");
            let Some(glue) = case.timed_plan(copies, false) else { continue };
            plan::verify(&glue).unwrap();
            assert_eq!(count(&glue), 0, "{case:?}:\n{glue}");
            // Nothing but the op is missing.
            let ops_of_a_copy = (plan.ops.len() - glue.ops.len()) / expected;
            assert!(ops_of_a_copy <= 2, "{case:?}:\n{plan}\n{glue}");
        }
        plan::verify(&case.checked_plan(3)).unwrap();
    }
}
