//! `embed`: the rows of the embedding table for the step's tokens.

use super::{Definition, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::{Bounded, Bounds};
use crate::reference::Reference;
use crate::shapes::{Checked, Shapes};
use crate::{Op, Rows, StepCost, Value, WeightId};

/// The fields of [`Op::Embed`].
pub(crate) struct EmbedOp {
    pub(crate) table: WeightId,
    pub(crate) out: Value,
}

impl Meaning for EmbedOp {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn operands(&self) -> Operands {
        Operands { outputs: vec![self.out], weights: vec![self.table], ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::Embed { table: self.table, out: map(self.out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        shapes.rows("out", self.out, Rows::Tokens)?;
        shapes.weight(self.table, &[shapes.plan.vocab_size, shapes.width(self.out)])
    }

    fn is_row_by_row(&self) -> bool {
        // A row depends on its token, which is not an operand.
        false
    }

    fn cost(&self, prices: &Prices<'_>) -> StepCost {
        let vocab_size = prices.plan.weight(self.table).shape.first().map_or(1, |&rows| rows.max(1)) as u64;
        prices.per_token((prices.weight_bytes)(self.table) / vocab_size)
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Textbook(self)
    }
}

impl Textbook for EmbedOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let rows = embed(&env.weight(self.table), env.width(self.out), &env.input.token_ids);
        env.set(self.out, rows);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        // A lookup rounds nothing.
        let rows = embed(&env.weight(self.table), env.width(self.out), &env.input.token_ids);
        env.set(self.out, Bounded::exact(rows));
    }
}

/// Row `token_ids[t]` of `table`, which is (vocab_size, width), for each token: (tokens, width).
fn embed(table: &[f32], width: usize, token_ids: &[u32]) -> Vec<f64> {
    let row = |&id: &u32| &table[id as usize * width..(id as usize + 1) * width];
    token_ids.iter().flat_map(row).map(|&x| f64::from(x)).collect()
}
