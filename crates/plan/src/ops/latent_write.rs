//! `latent_write`: appends each token's row to the cache of a latent layer.

use super::kv_write::{round_to, stored_error};
use super::{Cache, Definition, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::{Bounded, Bounds};
use crate::reference::{KvCache, Reference, RowPlace};
use crate::shapes::{Checked, Shapes};
use crate::{LatentLayer, Op, Rows, StepCost, Value};

/// The fields of [`Op::LatentWrite`].
pub(crate) struct LatentWriteOp {
    pub(crate) layer: usize,
    pub(crate) latent: Value,
    pub(crate) rope: Value,
}

impl Meaning for LatentWriteOp {
    fn name(&self) -> &'static str {
        "latent_write"
    }

    fn operands(&self) -> Operands {
        let cache = Some(Cache::Writes(self.layer));
        Operands { inputs: vec![self.latent, self.rope], cache, ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::LatentWrite { layer: self.layer, latent: map(self.latent), rope: map(self.rope) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        let LatentLayer { dim, rope } = shapes.latent_layer(self.layer)?;
        for (what, value, width) in [("latent", self.latent, dim), ("rope", self.rope, rope)] {
            shapes.rows(what, value, Rows::Tokens)?;
            shapes.width_is(what, value, width)?;
        }
        Ok(())
    }

    fn is_row_by_row(&self) -> bool {
        // Later tokens read what every row writes.
        false
    }

    fn cost(&self, prices: &Prices<'_>) -> StepCost {
        prices.cache_rows(self.layer)
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Textbook(self)
    }
}

impl Textbook for LatentWriteOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let (latent, rope) = (&env.values[self.latent.index()], &env.values[self.rope.index()]);
        latent_write(env.state, self.layer, latent, rope, env.rows);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        let (latent, rope) = (&env.values[self.latent.index()], &env.values[self.rope.index()]);
        let format = env.state.cache.layout().format;
        latent_write(env.state.cache, self.layer, &latent.value, &rope.value, env.rows);
        let stored = |x: &Bounded| stored_error(x, format);
        latent_write(env.state.cache_error, self.layer, &stored(latent), &stored(rope), env.rows);
    }
}

/// Stores each row's latent numbers, (tokens, dim), and its turned ones, (tokens, rope), side by side in the row's own
/// slot, rounded to the cache's format where that is narrower than f32.
fn latent_write(cache: &mut KvCache, layer: usize, latent: &[f64], rope: &[f64], rows: &[RowPlace]) {
    let format = cache.layout().format;
    let dim = cache.layer(layer).value_dim();
    let rope_dim = cache.layer(layer).key_dim() - dim;
    for ((latent, rope), row) in latent.chunks_exact(dim).zip(rope.chunks_exact(rope_dim)).zip(rows) {
        let (slot, _) = cache.slot_mut(layer, row.slot());
        slot.iter_mut().zip(latent.iter().chain(rope)).for_each(|(out, &x)| *out = round_to(format, x));
    }
}
