//! `latent_rope_write`: takes queries and the row of latent attention apart, normalises the row's latent numbers, turns
//! what positions turn, and writes the row to the cache.

use super::{Cache, Definition, Fused, Meaning, Operands, WrittenOut};
use crate::cost::Prices;
use crate::shapes::{Checked, Shapes};
use crate::{LatentLayer, Norm, Op, Plan, Rows, StepCost, Value, ValueInfo};

/// Which columns are which part of what latent attention is made from: indices into [`Plan::orders`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentColumns {
    /// Of queries, what no position turns: the same number of columns for each head.
    pub q_nope: usize,
    /// Of queries, what positions turn.
    pub q_rope: usize,
    /// Of the row, its latent numbers.
    pub latent: usize,
    /// Of the row, what positions turn.
    pub rope: usize,
}

impl LatentColumns {
    fn all(self) -> [usize; 4] {
        [self.q_nope, self.q_rope, self.latent, self.rope]
    }
}

/// The fields of [`Op::LatentRopeWrite`].
pub(crate) struct LatentRopeWriteOp {
    pub(crate) q: Value,
    pub(crate) kv: Value,
    pub(crate) columns: LatentColumns,
    pub(crate) norm: Norm,
    pub(crate) rope: usize,
    pub(crate) layer: usize,
    pub(crate) q_nope: Value,
    pub(crate) q_rope: Value,
}

impl Meaning for LatentRopeWriteOp {
    fn name(&self) -> &'static str {
        "latent_rope_write"
    }

    fn operands(&self) -> Operands {
        Operands {
            inputs: vec![self.q, self.kv],
            outputs: vec![self.q_nope, self.q_rope],
            weights: vec![self.norm.weight],
            rope: Some(self.rope),
            orders: self.columns.all().to_vec(),
            cache: Some(Cache::Writes(self.layer)),
            ..Operands::default()
        }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        let &Self { q, kv, columns, norm, rope, layer, q_nope, q_rope } = self;
        let (q, kv) = (map(q), map(kv));
        Op::LatentRopeWrite { q, kv, columns, norm, rope, layer, q_nope: map(q_nope), q_rope: map(q_rope) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        let &Self { q, kv, columns, norm, rope, layer, q_nope, q_rope } = self;
        let LatentLayer { dim, rope: turned } = shapes.latent_layer(layer)?;
        let head_dim = shapes.plan.ropes[rope].head_dim;
        if head_dim != turned {
            return Err(format!("rope {rope} is for heads of {head_dim}, cache layer {layer} turns {turned}"));
        }
        for (what, value) in [("q", q), ("kv", kv)] {
            shapes.rows(what, value, Rows::Tokens)?;
        }
        for (what, value, order) in [("q_nope", q_nope, columns.q_nope), ("q_rope", q_rope, columns.q_rope)] {
            shapes.rows(what, value, Rows::Tokens)?;
            shapes.width_is(what, value, shapes.plan.orders[order].len())?;
        }
        shapes.heads("q_rope", q_rope, head_dim)?;
        shapes.norm(norm)?;
        shapes.weight(norm.weight, &[dim])?;
        for (what, order, expected) in [("latent", columns.latent, dim), ("rope", columns.rope, turned)] {
            let found = shapes.plan.orders[order].len();
            if found != expected {
                return Err(format!("order {order} has {found} columns of `{what}`, expected {expected}"));
            }
        }
        for (x, order) in [(q, columns.q_nope), (q, columns.q_rope), (kv, columns.latent), (kv, columns.rope)] {
            shapes.columns(x, order)?;
        }
        Ok(())
    }

    fn is_row_by_row(&self) -> bool {
        // Later tokens read what every row writes.
        false
    }

    fn cost(&self, prices: &Prices<'_>) -> StepCost {
        prices.cache_rows(self.layer).and_bytes((prices.weight_bytes)(self.norm.weight))
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Fused(self)
    }
}

impl Fused for LatentRopeWriteOp {
    fn write_out(&self, plan: &Plan, out: &mut WrittenOut) {
        let &Self { q, kv, columns, norm, rope, layer, q_nope, q_rope } = self;
        let mut part = |order: usize| out.define(ValueInfo { width: plan.orders[order].len(), ..plan.value(kv) });
        let (q_part, k_part, turned) = (part(columns.q_rope), part(columns.rope), part(columns.rope));
        let (latent, normed) = (part(columns.latent), part(columns.latent));
        out.ops.extend([
            Op::GatherColumns { x: q, order: columns.q_nope, out: q_nope },
            Op::GatherColumns { x: q, order: columns.q_rope, out: q_part },
            Op::GatherColumns { x: kv, order: columns.latent, out: latent },
            Op::GatherColumns { x: kv, order: columns.rope, out: k_part },
            Op::RmsNorm { x: latent, norm, out: normed },
            Op::Rope { x: q_part, rope, out: q_rope },
            Op::Rope { x: k_part, rope, out: turned },
            Op::LatentWrite { layer, latent: normed, rope: turned },
        ]);
    }
}
