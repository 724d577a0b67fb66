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

/// Stores each row's keys and values, (tokens, [`widths`](crate::CacheLayer::widths)), in the row's own slot, rounded
/// to the cache's format where that is narrower than f32.
fn kv_write(cache: &mut KvCache, layer: usize, k: &[f64], v: &[f64], rows: &[RowPlace]) {
    let format = cache.layout().format;
    let [k_width, v_width] = cache.layer(layer).widths();
    for (index, row) in rows.iter().enumerate() {
        let (k, v) = (&k[index * k_width..(index + 1) * k_width], &v[index * v_width..(index + 1) * v_width]);
        let (k_slot, v_slot) = cache.slot_mut(layer, row.slot());
        k_slot.iter_mut().zip(k).for_each(|(out, &x)| *out = round_to(format, x));
        v_slot.iter_mut().zip(v).for_each(|(out, &x)| *out = round_to(format, x));
    }
}

/// `x` as a cache of `format` holds it; f32 is as good as exact here.
pub(super) fn round_to(format: KvFormat, x: f64) -> f64 {
    match format {
        KvFormat::F32 => x,
        KvFormat::F16 => f16::from_f64(x).to_f64(),
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
    let format = cache.layout().format;
    kv_write(cache_error, layer, &stored_error(k, format), &stored_error(v, format), rows);
}

/// What each element of `x` may be off by once a cache of `format` holds it.
pub(super) fn stored_error(x: &Bounded, format: KvFormat) -> Vec<f64> {
    let element = |(x, e): (&f64, &f64)| match (*e, format) {
        // The same number rounds to the same number.
        (0.0, _) => 0.0,
        // Otherwise both may round by half a unit of f16: 2^-11 each, or 2^-25 where f16 is subnormal.
        (e, KvFormat::F16) => e + (x.abs() + e) / 1024.0 + 1.0 / (1u64 << 24) as f64,
        (e, KvFormat::F32) => e,
    };
    x.value.iter().zip(&x.error).map(element).collect()
}
