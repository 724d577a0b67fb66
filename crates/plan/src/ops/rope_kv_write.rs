//! `rope_kv_write`: q_out = rope(norm(q)); cache ← rope(norm(k)), v.

use super::{Cache, Definition, Fused, Meaning, Operands, WrittenOut};
use crate::cost::Prices;
use crate::shapes::{Checked, Shapes};
use crate::{Norm, Op, Plan, StepCost, Value};

/// The fields of [`Op::RopeKvWrite`].
pub(crate) struct RopeKvWriteOp {
    pub(crate) q: Value,
    pub(crate) k: Value,
    pub(crate) v: Value,
    pub(crate) q_norm: Option<Norm>,
    pub(crate) k_norm: Option<Norm>,
    pub(crate) rope: usize,
    pub(crate) layer: usize,
    pub(crate) q_out: Value,
}

impl Meaning for RopeKvWriteOp {
    fn name(&self) -> &'static str {
        "rope_kv_write"
    }

    fn operands(&self) -> Operands {
        Operands {
            inputs: vec![self.q, self.k, self.v],
            outputs: vec![self.q_out],
            weights: [self.q_norm, self.k_norm].into_iter().flatten().map(|norm| norm.weight).collect(),
            rope: Some(self.rope),
            cache: Some(Cache::Writes(self.layer)),
            ..Operands::default()
        }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        let &Self { q, k, v, q_norm, k_norm, rope, layer, q_out } = self;
        Op::RopeKvWrite { q: map(q), k: map(k), v: map(v), q_norm, k_norm, rope, layer, q_out: map(q_out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        let &Self { q, k, v, rope, layer, .. } = self;
        let head_dim = shapes.plan.ropes[rope].head_dim;
        let found = shapes.kv_layer(layer)?.head_dim;
        if head_dim != found {
            return Err(format!("rope {rope} is for heads of {head_dim}, cache layer {layer} has {found}"));
        }
        shapes.heads("q", q, head_dim)?;
        shapes.like("q_out", self.q_out, q)?;
        for norm in [self.q_norm, self.k_norm].into_iter().flatten() {
            shapes.norm(norm)?;
            shapes.weight(norm.weight, &[head_dim])?;
        }
        shapes.cache_rows(layer, k, v)
    }

    fn is_row_by_row(&self) -> bool {
        // Later tokens read what every row writes.
        false
    }

    fn cost(&self, prices: &Prices<'_>) -> StepCost {
        prices.cache_rows(self.layer)
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Fused(self)
    }
}

impl Fused for RopeKvWriteOp {
    fn write_out(&self, plan: &Plan, out: &mut WrittenOut) {
        let mut normed = |x: Value, norm: Option<Norm>| match norm {
            Some(norm) => {
                let normed = out.define(plan.value(x));
                out.ops.push(Op::RmsNorm { x, norm, out: normed });
                normed
            }
            None => x,
        };
        let (q, k) = (normed(self.q, self.q_norm), normed(self.k, self.k_norm));
        let turned_k = out.define(plan.value(self.k));
        out.ops.extend([
            Op::Rope { x: q, rope: self.rope, out: self.q_out },
            Op::Rope { x: k, rope: self.rope, out: turned_k },
            Op::KvWrite { layer: self.layer, k: turned_k, v: self.v },
        ]);
    }
}
