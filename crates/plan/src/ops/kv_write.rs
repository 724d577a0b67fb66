//! `kv_write`: appends each token's key and value to the cache of a layer.

use half::f16;

use super::{Cache, Definition, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::{Bounded, Bounds};
use crate::reference::{KvCache, Reference, RowPlace};
use crate::shapes::{Checked, Shapes};
use crate::{KvFormat, Op, StepCost, Value};

/// The fields of [`Op::KvWrite`].
pub(crate) struct KvWriteOp {
    pub(crate) layer: usize,
    pub(crate) k: Value,
    pub(crate) v: Value,
}

impl Meaning for KvWriteOp {
    fn name(&self) -> &'static str {
        "kv_write"
    }

    fn operands(&self) -> Operands {
        let cache = Some(Cache::Writes(self.layer));
        Operands { inputs: vec![self.k, self.v], cache, ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::KvWrite { layer: self.layer, k: map(self.k), v: map(self.v) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        shapes.cache_rows(self.layer, self.k, self.v)
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

impl Textbook for KvWriteOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let (k, v) = (&env.values[self.k.index()], &env.values[self.v.index()]);
        kv_write(env.state, self.layer, k, v, env.rows);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        let (k, v) = (&env.values[self.k.index()], &env.values[self.v.index()]);
        kv_write_bound(env.state.cache, env.state.cache_error, self.layer, k, v, env.rows);
    }
}

/// Stores each row's key and value, (tokens, kv_heads · head_dim), in the row's own slot, rounded to the cache's format
/// where that is narrower than f32.
fn kv_write(cache: &mut KvCache, layer: usize, k: &[f64], v: &[f64], rows: &[RowPlace]) {
    let format = cache.layout().format;
    let round = |x: &f64| match format {
        KvFormat::F32 => *x,
        KvFormat::F16 => f16::from_f64(*x).to_f64(),
    };
    let width = cache.layer(layer).width();
    for ((k, v), row) in k.chunks_exact(width).zip(v.chunks_exact(width)).zip(rows) {
        let (k_slot, v_slot) = cache.slot_mut(layer, row.slot());
        k_slot.iter_mut().zip(k).for_each(|(out, x)| *out = round(x));
        v_slot.iter_mut().zip(v).for_each(|(out, x)| *out = round(x));
    }
}

/// [`kv_write`], and in `cache_error` what each element may be off by.
pub(crate) fn kv_write_bound(
    cache: &mut KvCache,
    cache_error: &mut KvCache,
    layer: usize,
    k: &Bounded,
    v: &Bounded,
    rows: &[RowPlace],
) {
    kv_write(cache, layer, &k.value, &v.value, rows);
    let narrow = cache.layout().format == KvFormat::F16;
    let stored = |x: &Bounded| -> Vec<f64> {
        let element = |(x, e): (&f64, &f64)| match *e {
            // The same number rounds to the same number.
            0.0 => 0.0,
            // Otherwise both may round by half a unit of f16: 2^-11 each, or 2^-25 where f16 is subnormal.
            e if narrow => e + (x.abs() + e) / 1024.0 + 1.0 / (1u64 << 24) as f64,
            e => e,
        };
        x.value.iter().zip(&x.error).map(element).collect()
    };
    kv_write(cache_error, layer, &stored(k), &stored(v), rows);
}
