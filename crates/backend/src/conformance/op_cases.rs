//! Every op in the smallest plan that shows its result, at widths around lanes, tiles and blocks.

use std::sync::Arc;

use plan::{
    Activation, AnyShape, BuildError, ExpertGroups, Graph, GroupScore, Heads, KvLayout, LatentHeads, Plan, Rope,
    RopeScaling, RouteWeights, Router, Scores, StepInput, Value, Weights, fuse, verify,
};
use tensor::{ActivationRounding, Tensor, WeightFormat};
use testing::tolerance::Bounded;
use testing::{ErrorAnalysis, Rng};

use super::model_cases::random_steps;
use super::trial::{Trial, Twins, replay};
use super::{CACHE_TOKENS, Outcome, distinct};
use crate::{Backend, Claims};

/// An op in the smallest plan that shows its result as logits.
#[derive(Clone)]
pub(super) struct OpCase {
    pub(super) name: String,
    pub(super) seed: u64,
    /// Tokens of the sequences that it is run on.
    pub(super) lens: [usize; 4],
    forward: Forward,
}

type Forward = Arc<dyn Fn(&mut Graph, &Weights<'_>) -> Result<Value, BuildError> + Send + Sync>;

impl OpCase {
    /// The plan in textbook ops, and fused where that is another.
    pub(super) fn forms(&self) -> Vec<Arc<Plan>> {
        let textbook = self.plan();
        let fused = fuse(textbook.clone());
        if fused == textbook { vec![textbook.into()] } else { vec![textbook.into(), fused.into()] }
    }

    /// Every form on random steps, within the bound of its error analysis.
    pub(super) fn run(&self, format: WeightFormat, kv: KvLayout, backends: &[&dyn Backend]) -> Vec<Vec<Outcome>> {
        let forms = self.forms();
        let mut rng = Rng::new(self.seed);
        let weights = self.weights(&forms[0], &mut rng, format);
        let steps = random_steps(&mut rng, forms[0].vocab_size, &kv, &self.lens);
        // Backends that round alike have their bounds in common.
        let mut known: Vec<([ActivationRounding; WeightFormat::ALL.len() + 1], Vec<Bounded>)> = Vec::new();
        let mut outcomes = Vec::new();
        let mut twins = Twins::default();
        for &backend in backends {
            let Claims { activations, attention, .. } = backend.claims();
            let attention = attention(kv.format);
            let mut rounding = [attention; WeightFormat::ALL.len() + 1];
            rounding.iter_mut().zip(WeightFormat::ALL).for_each(|(rounding, format)| *rounding = activations(format));
            if known.last().is_none_or(|(of, _)| *of != rounding) {
                let analysis = ErrorAnalysis::new(forms[0].clone(), &weights, kv, activations);
                let mut analysis = analysis.with_attention(attention);
                known.push((rounding, steps.iter().map(|input| analysis.run(input)).collect()));
            }
            let expected = known.last().map_or(&[][..], |(_, expected)| expected);
            let outcome = |(form, plan): (usize, &Arc<Plan>)| {
                let mut trial = Trial::new(backend, kv);
                let found = trial.op(plan, &weights, &steps, expected);
                let fault = found.and_then(|found| twins.check(backend, form, &weights, found)).err();
                Outcome { ops: distinct(plan.ops.iter()), worst: trial.worst, fault }
            };
            outcomes.push(forms.iter().enumerate().map(outcome).collect());
        }
        outcomes
    }

    /// Whether it treats each row alone, so that the cache does not matter.
    pub(super) fn is_row_by_row(&self) -> bool {
        [SHORT, TALL].contains(&self.lens)
    }

    /// In textbook ops.
    fn plan(&self) -> Plan {
        let plan =
            Graph::build("op", CACHE_TOKENS, &AnyShape, |g, w| (self.forward)(g, w)).expect("every weight is there");
        verify(&plan).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        plan
    }

    /// Inputs are tables in F32, so that they set no block size and no rounding; the rest is in `format`, but vectors
    /// beside quantised matrices in F32, as checkpoints have them.
    fn weights(&self, plan: &Plan, rng: &mut Rng, format: WeightFormat) -> Vec<Tensor> {
        let mut weights = testing::tiny::random_weights(plan, rng, WeightFormat::F32);
        for (tensor, info) in weights.iter_mut().zip(&plan.weights) {
            let vector_beside_blocks = info.shape.len() == 1 && format.block_len() > 1;
            if !info.name.starts_with("input") && !vector_beside_blocks {
                *tensor = Tensor::from_f32(format, info.shape.clone(), &tensor.to_f32()).expect("rows of whole blocks");
            }
        }
        weights
    }
}

impl Trial<'_> {
    fn op(
        &mut self,
        plan: &Arc<Plan>,
        weights: &[Tensor],
        steps: &[StepInput],
        expected: &[Bounded],
    ) -> Result<Vec<Vec<f32>>, String> {
        let mut executable = self.load(plan, weights)?;
        let mut all = Vec::with_capacity(steps.len());
        for (input, expected) in steps.iter().zip(expected) {
            let found = replay(&mut *executable, input)?;
            self.within(input, &found, expected)?;
            all.push(found);
        }
        Ok(all)
    }
}

/// A random value of (tokens, width) in a plan whose logits are `vocab_size` wide.
fn input(g: &mut Graph, w: &Weights<'_>, name: &str, vocab_size: usize, width: usize) -> Result<Value, BuildError> {
    Ok(g.embed(w.get(&format!("input_{name}.embed_tokens.weight"), [vocab_size, width])?, width))
}

const EPS: f32 = 1e-5;
/// Widths of results, which have no blocks to keep to.
const OUT_WIDTHS: [usize; 5] = [1, 3, 16, 33, 130];

/// Sequences for ops that treat each row alone.
const SHORT: [usize; 4] = [1, 2, 5, 17];
/// A prompt long enough for kernels that go over many rows in tiles of tiles.
const TALL: [usize; 4] = [1, 2, 30, 200];
/// Sequences over several blocks of the cache.
const CACHED: [usize; 4] = [1, 2, 33, 70];
/// A sequence over two tiles of a latent cache.
const TWO_TILES: [usize; 4] = [1, 2, 3, 66];
/// Prompts of a latent cache in tiles, also beside rows that are not.
const MANY_LATENT: [usize; 4] = [1, 3, 5, 140];
/// A sequence over more positions than a kernel takes at once.
const LONG: [usize; 4] = [1, 2, 20, 330];

/// The cases of every op that reads weights, textbook and fused, with rows of whole blocks of `format`.
pub(super) fn weighted_op_cases(format: WeightFormat) -> Vec<OpCase> {
    let mut cases = Vec::new();
    let mut push = |name: String, lens, forward: Forward| {
        let seed = cases.len() as u64;
        cases.push(OpCase { name, seed, lens, forward });
    };
    // Widths around lanes, unrolled loops and blocks.
    let in_widths: &[usize] = match format.block_len() {
        1 => &[1, 7, 31, 32, 33, 64, 100, 257],
        32 => &[32, 64, 96, 288],
        64 => &[64, 192, 320, 832],
        _ => &[256, 768],
    };

    for &k in in_widths {
        push(
            format!("embed of {k}"),
            SHORT,
            Arc::new(move |g, w| {
                let x = g.embed(w.get("embed_tokens.weight", [k, k])?, k);
                Ok(g.select_outputs(x))
            }),
        );
        for (index, n) in OUT_WIDTHS.into_iter().enumerate() {
            let bias = index % 2 == 0;
            push(
                format!("linear {k} to {n}, bias {bias}"),
                SHORT,
                Arc::new(move |g, w| {
                    let x = input(g, w, "x", n, k)?;
                    let y = g.linear(x, w.linear("proj", n, k, bias)?, n);
                    Ok(g.select_outputs(y))
                }),
            );
            push(
                format!("linear {k} to {n} plus residual, bias {bias}"),
                SHORT,
                Arc::new(move |g, w| {
                    let (x, residual) = (input(g, w, "x", n, k)?, input(g, w, "residual", n, n)?);
                    let y = g.linear(x, w.linear("proj", n, k, bias)?, n);
                    let sum = g.add(residual, y);
                    Ok(g.select_outputs(sum))
                }),
            );
            push(
                format!("norm of {k}, then {} projections to {n}, bias {bias}", 1 + index % 3),
                SHORT,
                Arc::new(move |g, w| {
                    let x = input(g, w, "x", n, k)?;
                    let h = g.rms_norm(x, w.norm("norm", k, EPS)?);
                    let mut sum = g.linear(h, w.linear("proj_0", n, k, bias)?, n);
                    for projection in 1..=index % 3 {
                        let y = g.linear(h, w.linear(&format!("proj_{projection}"), n, k, !bias)?, n);
                        sum = g.add(sum, y);
                    }
                    Ok(g.select_outputs(sum))
                }),
            );
            let activation = Activation::ALL[(index + k) % Activation::ALL.len()];
            push(
                format!("norm of {k}, then gated unit of {n}, {activation:?}, bias {bias}"),
                SHORT,
                Arc::new(move |g, w| {
                    let x = input(g, w, "x", n, k)?;
                    let h = g.rms_norm(x, w.norm("norm", k, EPS)?);
                    let gate = g.linear(h, w.linear("gate_proj", n, k, bias)?, n);
                    let up = g.linear(h, w.linear("up_proj", n, k, bias)?, n);
                    let y = g.glu(gate, up, activation);
                    Ok(g.select_outputs(y))
                }),
            );
            push(
                format!("norm of {k}, then head of {n}, bias {bias}"),
                SHORT,
                Arc::new(move |g, w| {
                    let x = input(g, w, "x", n, k)?;
                    let x = g.rms_norm(x, w.norm("norm", k, EPS)?);
                    let x = g.select_outputs(x);
                    Ok(g.linear(x, w.linear("lm_head", n, k, bias)?, n))
                }),
            );
        }
    }
    // The f64 meaning of many wide experts takes minutes: large blocks have one width, and each format other mixtures.
    let mixture_widths = if format.block_len() > 64 { &in_widths[..1] } else { in_widths };
    for (index, &k) in mixture_widths.iter().enumerate() {
        let turn = index + format.block_bytes();
        for (n, mixture) in [(3, MIXTURES[turn % MIXTURES.len()]), (33, MIXTURES[(turn + 1) % MIXTURES.len()])] {
            let (Mixture { experts, router, bias }, inner) =
                (mixture, in_widths[0].max(7).next_multiple_of(format.block_len()));
            push(
                format!("{} of {experts} experts {k} to {n}, bias {bias}, {router:?}", router.slots()),
                SHORT,
                Arc::new(move |g, w| {
                    let logits = input(g, w, "logits", n, experts)?;
                    let x = input(g, w, "x", n, k)?;
                    let (ids, weights) = g.route(logits, mixture.router(w, experts)?);
                    let stack =
                        w.experts(|expert| format!("experts.{expert}"), experts + router.shared, [n, k], bias)?;
                    let y = g.expert_linear(x, ids, stack, n);
                    let y = g.combine(y, weights);
                    Ok(g.select_outputs(y))
                }),
            );
            push(
                format!(
                    "mixture of {} of {experts} experts of {k} by {inner} by {n}, bias {bias}, {router:?}",
                    router.slots()
                ),
                if index == 0 && k <= 64 { TALL } else { SHORT },
                Arc::new(move |g, w| {
                    // Decided by exact logits: a choice within the noise of others has no bound.
                    let logits = input(g, w, "logits", n, experts)?;
                    let (ids, weights) = g.route(logits, mixture.router(w, experts)?);
                    let x = input(g, w, "x", n, k)?;
                    let residual = input(g, w, "residual", n, n)?;
                    let h = g.rms_norm(x, w.norm("norm", k, EPS)?);
                    let stack = |name: &'static str, shape| {
                        let name = move |expert| format!("experts.{expert}.{name}");
                        w.experts(name, experts + router.shared, shape, bias)
                    };
                    let gate = g.expert_linear(h, ids, stack("gate_proj", [inner, k])?, inner);
                    let up = g.expert_linear(h, ids, stack("up_proj", [inner, k])?, inner);
                    let y = g.glu(gate, up, Activation::ALL[(index + n) % Activation::ALL.len()]);
                    let y = g.expert_linear(y, ids, stack("down_proj", [n, inner])?, n);
                    let y = g.combine(y, weights);
                    let y = g.add(residual, y);
                    Ok(g.select_outputs(y))
                }),
            );
            push(
                format!("norm of {k}, then router of {experts} experts, bias {bias}, {router:?}"),
                SHORT,
                Arc::new(move |g, w| {
                    let x = input(g, w, "x", router.slots(), k)?;
                    let h = g.rms_norm(x, w.norm("norm", k, EPS)?);
                    let logits = g.linear(h, w.linear("gate", experts, k, bias)?, experts);
                    let (ids, weights) = g.route(logits, mixture.router(w, experts)?);
                    // Ids are read as well: the expert's bias tells them.
                    let stack =
                        w.experts(|expert| format!("input_experts.{expert}"), experts + router.shared, [1, 1], true)?;
                    let one = input(g, w, "one", router.slots(), 1)?;
                    let named = g.expert_linear(one, ids, stack, 1);
                    let y = g.add(named, weights);
                    Ok(g.select_outputs(y))
                }),
            );
        }
    }
    // Wider than the tiles of any kernel, and one more.
    let block = format.block_len();
    let (k, n) = ((1025usize).next_multiple_of(block), 71);
    push(
        format!("linear {k} to {n}"),
        SHORT,
        Arc::new(move |g, w| {
            let x = input(g, w, "x", n, k)?;
            let y = g.linear(x, w.linear("proj", n, k, true)?, n);
            Ok(g.select_outputs(y))
        }),
    );
    // And with more rows than any kernel takes at once.
    let (k, n) = ((2049usize).next_multiple_of(block), 39);
    push(
        format!("norm of {k}, then gated unit of {n}, many rows"),
        TALL,
        Arc::new(move |g, w| {
            let x = input(g, w, "x", n, k)?;
            let h = g.rms_norm(x, w.norm("norm", k, EPS)?);
            let gate = g.linear(h, w.linear("gate_proj", n, k, false)?, n);
            let up = g.linear(h, w.linear("up_proj", n, k, false)?, n);
            let y = g.glu(gate, up, Activation::Silu);
            Ok(g.select_outputs(y))
        }),
    );
    for n in OUT_WIDTHS {
        for heads in [1, 3] {
            push(
                format!("norm of {heads} slices of {n}"),
                SHORT,
                Arc::new(move |g, w| {
                    let x = input(g, w, "x", heads * n, heads * n)?;
                    let y = g.rms_norm(x, w.norm("norm", n, EPS)?);
                    Ok(g.select_outputs(y))
                }),
            );
        }
    }
    for (index, (heads, kv_heads, head_dim)) in HEADS.into_iter().enumerate() {
        let rope = rope_of(head_dim, index);
        let shape =
            Heads { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), window: None, sinks: None };
        for norms in [false, true] {
            let rope = rope.clone();
            push(
                format!("rope, cache write and attention of {shape:?}, norms {norms}, {:?}", rope.scaling),
                CACHED,
                Arc::new(move |g, w| attention_case(g, w, shape, Some(&rope), norms.then_some(["q_norm", "k_norm"]))),
            );
        }
        let window = [None, Some(6)][index % 2];
        push(
            format!("attention of {shape:?} with sinks, window {window:?}"),
            if index == 2 { LONG } else { CACHED },
            Arc::new(move |g, w| {
                let sinks = Some(w.get("sinks", [heads])?);
                attention_case(g, w, Heads { window, sinks, ..shape }, None, None)
            }),
        );
    }
    for (index, (heads, n)) in [(1, 1), (3, 16), (5, 33), (20, 3)].into_iter().enumerate() {
        let k = in_widths[index % in_widths.len()];
        push(
            format!("{heads} heads with matrices of their own, {k} by {n}"),
            if index == 1 && k <= 64 { TALL } else { SHORT },
            Arc::new(move |g, w| {
                let x = input(g, w, "x", heads * n, heads * k)?;
                let y = g.head_linear(x, w.experts(|head| format!("heads.{head}"), heads, [n, k], false)?, n);
                Ok(g.select_outputs(y))
            }),
        );
    }
    let nope = in_widths[0];
    push(
        format!("latent attention of 3 heads of {nope} over rows of {LATENT} and {TURNED}, with their matrices"),
        TWO_TILES,
        Arc::new(move |g, w| published_latent_case(g, w, [3, nope, 5])),
    );
    // Those of DeepSeek's models and of GLM-4.7-Flash, and rows that may attend to keys and values of every head.
    for [heads, nope, values] in [[2usize, 128, 128], [1, 192, 256]] {
        if nope.is_multiple_of(format.block_len()) {
            push(
                format!("latent attention of {heads} heads of {nope} and {values}, many rows of them"),
                MANY_LATENT,
                Arc::new(move |g, w| published_latent_case(g, w, [heads, nope, values])),
            );
        }
    }
    cases
}

/// Latent numbers of a row in published models, and turned ones.
const LATENT: usize = 512;
const TURNED: usize = 64;

/// Latent attention in the widths of published models, from the results of projections to what the output projection
/// reads. The columns that positions turn are pairs that lie beside each other, as in the models' checkpoints.
/// `heads` of them have `nope` features that no position turns, and `of_value` of values.
fn published_latent_case(
    g: &mut Graph,
    w: &Weights<'_>,
    [heads, nope, of_value]: [usize; 3],
) -> Result<Value, BuildError> {
    let (wide, row) = (nope + TURNED, LATENT + TURNED);
    let q = input(g, w, "q", heads * of_value, heads * wide)?;
    let kv = input(g, w, "kv", heads * of_value, row)?;
    let pairs = |first: usize| (0..2).flat_map(move |half| (0..TURNED / 2).map(move |pair| first + 2 * pair + half));
    let mut columns = |x, columns: Vec<usize>| g.gather_columns(x, columns.into_iter().map(|at| at as u32).collect());
    let q_nope = columns(q, (0..heads).flat_map(|head| head * wide..head * wide + nope).collect());
    let q_rope = columns(q, (0..heads).flat_map(|head| pairs(head * wide + nope)).collect());
    let latent = columns(kv, (0..LATENT).collect());
    let turned = columns(kv, pairs(LATENT).collect());
    let rope = Rope { head_dim: TURNED, dims: TURNED, theta: 1e4, scaling: RopeScaling::None, attention_factor: 1.0 };
    let latent = g.rms_norm(latent, w.norm("kv_a_layernorm", LATENT, EPS)?);
    let (q_rope, turned) = (g.rope(q_rope, &rope), g.rope(turned, &rope));
    let keys = w.experts(|head| format!("k_b.{head}"), heads, [LATENT, nope], false)?;
    let values = w.experts(|head| format!("v_b.{head}"), heads, [of_value, LATENT], false)?;
    let q_latent = g.head_linear(q_nope, keys, LATENT);
    let scale = 1.0 / (wide as f32).sqrt();
    let o = g.mla_attention([q_latent, q_rope], [latent, turned], LatentHeads { heads, scale });
    let o = g.head_linear(o, values, of_value);
    Ok(g.select_outputs(o))
}

/// The cases of ops without weights.
pub(super) fn weightless_op_cases() -> Vec<OpCase> {
    let mut cases = Vec::new();
    let mut push = |name: String, lens, forward: Forward| {
        let seed = cases.len() as u64;
        cases.push(OpCase { name, seed, lens, forward });
    };
    for n in OUT_WIDTHS {
        push(
            format!("add of {n}"),
            SHORT,
            Arc::new(move |g, w| {
                let (a, b) = (input(g, w, "a", n, n)?, input(g, w, "b", n, n)?);
                let y = g.add(a, b);
                Ok(g.select_outputs(y))
            }),
        );
        push(
            format!("columns of {n} in another order"),
            SHORT,
            Arc::new(move |g, w| {
                let x = input(g, w, "x", n, n)?;
                // Backwards, and some columns twice: an order need not name each once.
                let order = (0..n as u32).rev().map(|column| column / 2 * 2).collect();
                let y = g.gather_columns(x, order);
                Ok(g.select_outputs(y))
            }),
        );
        push(
            format!("rows of {n} times the sigmoid of a gate"),
            SHORT,
            Arc::new(move |g, w| {
                let (x, gate) = (input(g, w, "x", n, n)?, input(g, w, "gate", n, 1)?);
                let y = g.gate_rows(x, gate);
                Ok(g.select_outputs(y))
            }),
        );
        for activation in Activation::ALL {
            push(
                format!("gated unit of {n}, {activation:?}"),
                SHORT,
                Arc::new(move |g, w| {
                    let (gate, up) = (input(g, w, "gate", n, n)?, input(g, w, "up", n, n)?);
                    let y = g.glu(gate, up, activation);
                    Ok(g.select_outputs(y))
                }),
            );
        }
    }
    for (index, (heads, kv_heads, head_dim)) in HEADS.into_iter().enumerate() {
        let rope = rope_of(head_dim, index);
        let turned = rope.clone();
        push(
            format!("rope of {heads} heads of {head_dim}, {:?}", rope.scaling),
            SHORT,
            Arc::new(move |g, w| {
                let x = input(g, w, "x", heads * head_dim, heads * head_dim)?;
                let y = g.rope(x, &turned);
                Ok(g.select_outputs(y))
            }),
        );
        let lens = if index == 2 { LONG } else { CACHED };
        for window in [None, Some(1), Some(6), Some(50)] {
            let shape = Heads { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), window, sinks: None };
            push(
                format!("attention of {shape:?}"),
                lens,
                Arc::new(move |g, w| attention_case(g, w, shape, None, None)),
            );
        }
    }
    // Gains are tables in F32 here.
    let gains = Some(["input_q_norm", "input_k_norm"]);
    for (index, norms) in [(1, None), (3, gains), (4, gains)] {
        let (heads, kv_heads, head_dim) = HEADS[index];
        let rope = Rope { dims: head_dim.div_ceil(4) * 2, scaling: RopeScaling::None, ..rope_of(head_dim, index) };
        let shape =
            Heads { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), window: None, sinks: None };
        let turned = rope.clone();
        push(
            format!("rope of the first {} features of {heads} heads of {head_dim}", rope.dims),
            SHORT,
            Arc::new(move |g, w| {
                let x = input(g, w, "x", heads * head_dim, heads * head_dim)?;
                let y = g.rope(x, &turned);
                Ok(g.select_outputs(y))
            }),
        );
        push(
            format!("rope of the first {} features, cache write and attention of {shape:?}, {norms:?}", rope.dims),
            CACHED,
            Arc::new(move |g, w| attention_case(g, w, shape, Some(&rope), norms)),
        );
    }
    for (index, (heads, dim, rope)) in LATENT_HEADS.into_iter().enumerate() {
        push(
            format!("latent attention of {heads} heads over rows of {dim} and {rope}"),
            if index == 1 { LONG } else { CACHED },
            Arc::new(move |g, w| {
                let wide = heads * dim;
                // Tables of inputs have as many rows as results have columns: one column of ten is enough of many.
                let apart = if wide > 4096 { 10 } else { 1 };
                let out = wide.div_ceil(apart);
                let q = [input(g, w, "q_latent", out, wide)?, input(g, w, "q_rope", out, heads * rope)?];
                let row = [input(g, w, "latent", out, dim)?, input(g, w, "rope", out, rope)?];
                let scale = 1.0 / ((dim + rope) as f32).sqrt();
                let mut y = g.mla_attention(q, row, LatentHeads { heads, scale });
                if apart > 1 {
                    y = g.gather_columns(y, (0..wide as u32).step_by(apart).collect());
                }
                Ok(g.select_outputs(y))
            }),
        );
    }
    cases
}

/// Heads, latent numbers, and turned ones.
///
/// Rows of 64 and 80 numbers are as wide as heads of other models: what is there for many rows of such heads must not take
/// them. The last two are those of published models, which have kernels of their own.
const LATENT_HEADS: [(usize, usize, usize); 8] =
    [(1, 1, 2), (3, 18, 6), (20, 64, 16), (5, 33, 10), (33, 16, 4), (6, 48, 16), (3, 512, 64), (20, 512, 64)];

/// A router and what it chooses among.
#[derive(Clone, Copy)]
struct Mixture {
    experts: usize,
    router: Router,
    bias: bool,
}

impl Mixture {
    /// With a correction of its own where it has groups.
    fn router(&self, w: &Weights<'_>, experts: usize) -> Result<Router, BuildError> {
        let correction = self.router.groups.map(|_| w.get("input_correction", [experts])).transpose()?;
        Ok(Router { correction, ..self.router })
    }
}

/// One expert of one; all of them; few of many; scores of each kind, and groups of each kind; with shared ones and without.
const MIXTURES: [Mixture; 6] = {
    const PLAIN: Router = Router::new(1, Scores::Softmax, RouteWeights::Scores);
    const NORMALISED: RouteWeights = RouteWeights::Normalised { eps: 1e-20 };
    const fn groups(count: usize, chosen: usize, score: GroupScore) -> Option<ExpertGroups> {
        Some(ExpertGroups { count, chosen, score })
    }
    const fn of(experts: usize, router: Router, bias: bool) -> Mixture {
        Mixture { experts, router, bias }
    }
    const LARGEST: Option<ExpertGroups> = groups(4, 2, GroupScore::Largest);
    const SUMS: Option<ExpertGroups> = groups(5, 2, GroupScore::SumOfTwo);
    [
        of(1, PLAIN, false),
        of(4, Router { top_k: 4, weights: NORMALISED, ..PLAIN }, false),
        of(9, Router { top_k: 2, scores: Scores::Logits, weights: RouteWeights::Softmax, ..PLAIN }, true),
        of(
            20,
            Router {
                top_k: 3,
                scores: Scores::Sigmoid,
                weights: NORMALISED,
                groups: SUMS,
                scale: 1.8,
                shared: 1,
                ..PLAIN
            },
            false,
        ),
        of(8, Router { top_k: 3, groups: LARGEST, scale: 2.5, shared: 2, ..PLAIN }, true),
        of(40, Router { top_k: 8, weights: NORMALISED, ..PLAIN }, false),
    ]
};

/// Heads, key/value heads and head_dim: one, many and odd ratios; head sizes of small and of real models.
const HEADS: [(usize, usize, usize); 6] = [(1, 1, 2), (2, 2, 6), (3, 1, 10), (6, 2, 16), (4, 2, 64), (7, 1, 32)];

/// Rotary embeddings of every kind, in turn.
fn rope_of(head_dim: usize, index: usize) -> Rope {
    let scaling = match index % 5 {
        0 => RopeScaling::None,
        1 => RopeScaling::Linear { factor: 4.0 },
        2 => RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 64.0,
        },
        3 => RopeScaling::Yarn {
            factor: 4.0,
            original_max_position_embeddings: 32.0,
            beta_fast: 4.0,
            beta_slow: 0.5,
            truncate: false,
        },
        _ => RopeScaling::Factors((0..head_dim / 2).map(|pair| 1.0 + 0.5 * pair as f32).collect()),
    };
    Rope { head_dim, dims: head_dim, theta: 1000.0, scaling, attention_factor: if index % 5 < 3 { 1.0 } else { 1.25 } }
}

fn attention_case(
    g: &mut Graph,
    w: &Weights<'_>,
    shape: Heads,
    rope: Option<&Rope>,
    norms: Option<[&str; 2]>,
) -> Result<Value, BuildError> {
    let Heads { heads, kv_heads, head_dim, .. } = shape;
    let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
    let mut q = input(g, w, "q", q_width, q_width)?;
    let mut k = input(g, w, "k", q_width, kv_width)?;
    let v = input(g, w, "v", q_width, kv_width)?;
    if let Some([q_norm, k_norm]) = norms {
        q = g.rms_norm(q, w.norm(q_norm, head_dim, EPS)?);
        k = g.rms_norm(k, w.norm(k_norm, head_dim, EPS)?);
    }
    if let Some(rope) = rope {
        (q, k) = (g.rope(q, rope), g.rope(k, rope));
    }
    let o = g.attention(q, k, v, shape);
    Ok(g.select_outputs(o))
}
