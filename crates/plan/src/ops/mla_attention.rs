//! `mla_attention`: causal attention of all heads over the one row that a latent layer keeps of each position.

use super::attention::{attention, attention_bound};
use super::{Attention, Cache, Definition, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::{Bounded, Bounds};
use crate::reference::Reference;
use crate::shapes::{Checked, Shapes};
use crate::{LatentLayer, Op, Rows, StepCost, Value};

/// Latent attention in its absorbed form: the queries were projected into the latent space before, and the results are
/// projected out of it afterwards, so that no key or value of a head is ever made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlaAttention {
    /// Whose cache, an index into [`Plan::kv_layers`](crate::Plan::kv_layers).
    pub layer: usize,
    /// `num_attention_heads`.
    pub heads: usize,
    /// Scores are q·k · scale.
    pub scale: f32,
}

impl MlaAttention {
    /// The same as attention whose only key head is the row.
    fn as_attention(self) -> Attention {
        let Self { layer, heads, scale } = self;
        Attention { layer, heads, scale, window: None, sinks: None }
    }
}

/// The fields of [`Op::MlaAttention`].
pub(crate) struct MlaAttentionOp {
    pub(crate) q_latent: Value,
    pub(crate) q_rope: Value,
    pub(crate) attention: MlaAttention,
    pub(crate) out: Value,
}

impl Meaning for MlaAttentionOp {
    fn name(&self) -> &'static str {
        "mla_attention"
    }

    fn operands(&self) -> Operands {
        let cache = Some(Cache::Reads(self.attention.layer));
        Operands { inputs: vec![self.q_latent, self.q_rope], outputs: vec![self.out], cache, ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        let (q_latent, q_rope) = (map(self.q_latent), map(self.q_rope));
        Op::MlaAttention { q_latent, q_rope, attention: self.attention, out: map(self.out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        let MlaAttention { layer, heads, .. } = self.attention;
        let LatentLayer { dim, rope } = shapes.latent_layer(layer)?;
        if heads == 0 {
            return Err("no heads".to_owned());
        }
        for (what, value, width) in [("q_latent", self.q_latent, dim), ("q_rope", self.q_rope, rope)] {
            shapes.rows(what, value, Rows::Tokens)?;
            shapes.width_is(what, value, heads * width)?;
        }
        shapes.like("out", self.out, self.q_latent)
    }

    fn is_row_by_row(&self) -> bool {
        // A row also depends on its token's position, which is not an operand.
        false
    }

    fn cost(&self, prices: &Prices<'_>) -> StepCost {
        prices.attention(self.attention.as_attention())
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Textbook(self)
    }
}

impl Textbook for MlaAttentionOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let widths = [self.q_latent, self.q_rope].map(|value| env.width(value));
        let q = self.joined(widths, env.value(self.q_latent), env.value(self.q_rope));
        let attended = attention(&q, &self.attention.as_attention(), None, env.state, env.rows);
        env.set(self.out, attended);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        let widths = [self.q_latent, self.q_rope].map(|value| env.width(value));
        let (latent, rope) = (env.value(self.q_latent), env.value(self.q_rope));
        let [value, error] = [(&latent.value, &rope.value), (&latent.error, &rope.error)]
            .map(|(latent, rope)| self.joined(widths, latent, rope));
        let q = Bounded::zip(value, error);
        let attended = attention_bound(&q, &self.attention.as_attention(), None, &env.state, env.rows);
        env.set(self.out, attended);
    }
}

impl MlaAttentionOp {
    /// The queries of all heads as the rows of the cache have it: latent numbers, then turned ones. `widths` are
    /// those of a row of each.
    fn joined(&self, widths: [usize; 2], latent: &[f64], rope: &[f64]) -> Vec<f64> {
        let heads = self.attention.heads;
        let [latent, rope] = [(latent, widths[0]), (rope, widths[1])].map(|(x, width)| x.chunks_exact(width / heads));
        latent.zip(rope).flat_map(|(latent, rope)| latent.iter().chain(rope)).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tensor::{Tensor, WeightFormat};

    use crate::reference::Interpreter;
    use crate::test_plans::plan_of;
    use crate::{
        Graph, Heads, KvFormat, KvLayout, LatentHeads, Linear, Plan, Rope, RopeScaling, StepInput, Value, Weights,
    };

    const COUNT: usize = 3;
    const NOPE: usize = 2;
    const ROPE: usize = 4;
    const VALUE: usize = 5;
    const RANK: usize = 6;
    const HIDDEN: usize = 7;
    const VOCAB: usize = 11;
    const SCALE: f32 = 0.6;
    /// Room for a head's key, and for its value.
    const WIDE: usize = NOPE + ROPE;

    /// Of each head, `width` columns from `first` on, where heads have `stride`.
    fn of_heads(stride: usize, first: usize, width: usize) -> Vec<u32> {
        (0..COUNT).flat_map(|head| (0..width).map(move |i| (head * stride + first + i) as u32)).collect()
    }

    /// The queries' two parts, the latent numbers and the turned key of each token.
    fn parts(g: &mut Graph, w: &Weights<'_>) -> [Value; 4] {
        let x = g.embed(w.get("embed_tokens.weight", [VOCAB, HIDDEN]).unwrap(), HIDDEN);
        let q_width = COUNT * (NOPE + ROPE);
        let q = g.linear(x, w.linear("q_proj", q_width, HIDDEN, false).unwrap(), q_width);
        let kv = g.linear(x, w.linear("kv_a_proj", RANK + ROPE, HIDDEN, false).unwrap(), RANK + ROPE);
        let q_nope = g.gather_columns(q, of_heads(NOPE + ROPE, 0, NOPE));
        let q_rope = g.gather_columns(q, of_heads(NOPE + ROPE, NOPE, ROPE));
        let latent = g.gather_columns(kv, (0..RANK as u32).collect());
        let k_rope = g.gather_columns(kv, (RANK as u32..(RANK + ROPE) as u32).collect());
        let scaling = RopeScaling::None;
        let rope = Rope { head_dim: ROPE, dims: ROPE, theta: 50.0, scaling, attention_factor: 1.0 };
        [q_nope, g.rope(q_rope, &rope), latent, g.rope(k_rope, &rope)]
    }

    fn finish(g: &mut Graph, w: &Weights<'_>, o: Value) -> Value {
        let o = g.select_outputs(o);
        g.linear(o, w.linear("head", VOCAB, COUNT * VALUE, false).unwrap(), VOCAB)
    }

    fn absorbed() -> Plan {
        plan_of(|g, w| {
            let [q_nope, q_rope, latent, k_rope] = parts(g, w);
            let k_b = w.experts(|head| format!("k_b.{head}"), COUNT, [RANK, NOPE], false)?;
            let v_b = w.experts(|head| format!("v_b.{head}"), COUNT, [VALUE, RANK], false)?;
            let q_latent = g.head_linear(q_nope, k_b, RANK);
            let heads = LatentHeads { heads: COUNT, scale: SCALE };
            let o = g.mla_attention([q_latent, q_rope], [latent, k_rope], heads);
            let o = g.head_linear(o, v_b, VALUE);
            Ok(finish(g, w, o))
        })
    }

    /// Keys and values of every head by `kv_b`, and ordinary attention: what checkpoints' own code does. Rows are put
    /// together by matrices of zeros and ones.
    fn expanded() -> Plan {
        plan_of(|g, w| {
            let [q_nope, q_rope, latent, k_rope] = parts(g, w);
            let kv_width = COUNT * (NOPE + VALUE);
            let kv = g.linear(latent, w.linear("kv_b", kv_width, RANK, false)?, kv_width);
            let mut spread = |x, name: &str, width: usize| {
                let weight = w.get(name, [COUNT * WIDE, width])?;
                Ok::<_, crate::BuildError>(g.linear(x, Linear { weight, bias: None }, COUNT * WIDE))
            };
            let q = [spread(q_nope, "spread.q_nope", COUNT * NOPE)?, spread(q_rope, "spread.q_rope", COUNT * ROPE)?];
            let k = [spread(kv, "spread.k_nope", kv_width)?, spread(k_rope, "spread.k_rope", ROPE)?];
            let v = spread(kv, "spread.v", kv_width)?;
            let [q, k] = [q, k].map(|[a, b]| g.add(a, b));
            let (heads, kv_heads, head_dim) = (COUNT, COUNT, WIDE);
            let o = g.attention(q, k, v, Heads { heads, kv_heads, head_dim, scale: SCALE, window: None, sinks: None });
            let o = g.gather_columns(o, of_heads(WIDE, 0, VALUE));
            Ok(finish(g, w, o))
        })
    }

    /// A number of its own for each place of each weight, of the order of one.
    fn number(name: &str, at: usize) -> f32 {
        let seed = name.bytes().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let mixed = (seed ^ (at as u32).wrapping_mul(0x9E37_79B9)).wrapping_mul(0x85EB_CA6B);
        ((mixed >> 8) % 2001) as f32 / 1000.0 - 1.0
    }

    fn weights(plan: &Plan) -> Vec<Tensor> {
        let kv_b = |head: usize, row: usize, column: usize| {
            number("kv_b.weight", (head * (NOPE + VALUE) + row) * RANK + column)
        };
        let element = |name: &str, row: usize, column: usize, width: usize| -> f32 {
            let (head, place) = (row / WIDE, row % WIDE);
            let is = |is: bool| if is { 1.0 } else { 0.0 };
            let parts: Vec<&str> = name.split('.').collect();
            match parts[..] {
                ["spread", "q_nope"] => is(place < NOPE && column == head * NOPE + place),
                ["spread", "q_rope"] => is(place >= NOPE && column + NOPE == head * ROPE + place),
                ["spread", "k_nope"] => is(place < NOPE && column == head * (NOPE + VALUE) + place),
                ["spread", "k_rope"] => is(place >= NOPE && column + NOPE == place),
                ["spread", "v"] => is(place < VALUE && column == head * (NOPE + VALUE) + NOPE + place),
                ["k_b", head, _] => kv_b(head.parse().unwrap(), column, row),
                ["v_b", head, _] => kv_b(head.parse().unwrap(), NOPE + row, column),
                _ => number(name, row * width + column),
            }
        };
        let tensor = |info: &crate::WeightInfo| {
            let [rows, width] = info.shape[..] else { unreachable!("matrices alone") };
            let numbers = (0..rows * width).map(|at| element(&info.name, at / width, at % width, width));
            Tensor::from_f32(WeightFormat::F32, info.shape.clone(), &numbers.collect::<Vec<_>>()).unwrap()
        };
        plan.weights.iter().map(tensor).collect()
    }

    #[test]
    fn the_absorbed_form_is_that_of_keys_and_values_of_every_head() {
        let mut input = StepInput::default();
        input.push_sequence(&[3, 1, 4, 1, 5, 9, 2, 6, 5, 3], 0, &[0, 1, 2]);
        input.push_sequence(&[2, 7, 1], 0, &[3]);
        input.output_rows = (0..13).collect();
        let kv = KvLayout { format: KvFormat::F32, block_len: 4, num_blocks: 4 };
        let [absorbed, expanded] = [absorbed(), expanded()].map(|plan| {
            let weights = weights(&plan);
            Interpreter::new(Arc::new(plan), weights, kv).unwrap().run(&input).unwrap()
        });
        assert!(absorbed.iter().any(|logit| logit.abs() > 0.5), "{absorbed:?}");
        for (a, b) in absorbed.iter().zip(&expanded) {
            assert!((a - b).abs() < 1e-12, "{a} and {b}");
        }
    }
}
