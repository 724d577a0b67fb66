//! Holds every way to launch a kernel to exact arithmetic before it is timed: one op of the model at a time, with the
//! model's own weights, under the bound that [`ErrorAnalysis`] derives for it.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use backend::{Backend, Executable, Tunable, Tuning};
use plan::error_analysis::{Bounded, ErrorAnalysis};
use plan::{AnyShape, BuildError, Graph, KvFormat, KvLayout, LatentHeads, Op, Plan, StepInput, WeightId};
use tensor::Tensor;

use crate::KV_BLOCK_LEN;
use crate::cases::{Case, is_of_op};
use crate::measure::Weights;

/// Rows whose results are compared, at most: the first, one in the middle, the last.
const CHECK_ROWS: usize = 3;
/// Blocks of the cache ahead of rows that read it: with projections, which are slow in exact arithmetic, and of attention
/// alone, which is cut from about a hundred positions on.
const BLOCKS_BEHIND_HEADS: usize = 1;
const BLOCKS_BEHIND_ATTENTION: usize = 16;
/// Tokens of rows: exact arithmetic is slow, and is done once for each.
const TOKENS: usize = 5;
/// Results that latent attention is mixed into.
const LATENT_RESULTS: usize = 64;
/// Sequences that have a block of their own.
const SEQUENCES: usize = 128;

/// What a check found of one way to launch a kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// All within the bound.
    Right,
    /// This many times as far off as it may be.
    Wrong(f64),
    /// The device refused it, or failed.
    Failed(String),
}

/// The ops of a model, to compute one by one.
pub struct Checks {
    backend: Box<dyn Backend>,
    live: &'static Tuning,
    kv_format: KvFormat,
    checks: Vec<Check>,
    /// Which of them launches what has this key.
    launched_by: HashMap<String, usize>,
}

/// One op or a few in a plan of their own.
struct Check {
    plan: Arc<Plan>,
    weights: Vec<Tensor>,
    /// Blocks of the cache that all rows read, which are then sequences of their own; none where they are one sequence.
    shared: usize,
    /// Whether all rows are outputs, as those of a head.
    all_rows: bool,
    /// On the device, once it is wanted.
    loaded: Option<Loaded>,
}

struct Loaded {
    executable: Box<dyn Executable>,
    exact: ErrorAnalysis,
    /// What is right, by the token of a row: what stands before it is the same for all.
    by_token: HashMap<u32, Bounded>,
    kv: KvLayout,
    /// Whether the tokens that rows share are in the cache.
    is_filled: bool,
}

impl Checks {
    /// Of each op of `plan`, fused, that there is a check for, with weights in the order of the plan.
    pub fn new(
        backend: Box<dyn Backend>,
        live: &'static Tuning,
        plan: &Plan,
        weights: &[Tensor],
        kv_format: KvFormat,
    ) -> Result<Self> {
        let mut seen: Vec<String> = vec![];
        let mut checks = vec![];
        for (index, op) in plan.ops.iter().enumerate() {
            let heads = HeadsOf::at(plan, index);
            // Embeddings are looked up in one way.
            let case = Case::of(plan, op).filter(|case| case.is_bound_by_memory() && case.op() != "embed");
            let formats: Vec<_> = op.weights().into_iter().map(|id| weights[id.index()].format()).collect();
            let latent = latent_shape(plan, op);
            let of_heads = heads.as_ref().map(|heads| &heads.attention);
            let experts = ExpertsOf::at(plan, index);
            let of_experts = experts.as_ref().map(ExpertsOf::shape);
            let name = format!("{of_heads:?} {latent:?} {of_experts:?} {case:?} {formats:?}");
            if seen.contains(&name) {
                continue;
            }
            seen.push(name);
            if let Some(heads) = heads {
                checks.push(heads.check(weights)?);
            }
            checks.extend(Check::of_latent(plan, op)?);
            if let Some(experts) = experts {
                checks.push(experts.check(weights)?);
            }
            if let Some(case) = case {
                checks.push(Check::of_case(&case, op, weights)?);
            }
        }
        Ok(Self { backend, live, kv_format, checks, launched_by: HashMap::new() })
    }

    /// What each candidate of `tunable` computes in steps of `rows` rows, in their order; `None` where no check launches
    /// it.
    pub fn prove(&mut self, rows: usize, tunable: &Tunable) -> Result<Option<Vec<Verdict>>> {
        if !self.launched_by.contains_key(&tunable.key) {
            self.look(rows)?;
        }
        let Some(&place) = self.launched_by.get(&tunable.key) else { return Ok(None) };
        let choices = self.live.choices();
        let before = choices.iter().find(|(key, _)| *key == tunable.key).map(|(_, choice)| choice.as_str());
        let mut verdicts = vec![];
        for candidate in &tunable.candidates {
            self.live.set(&tunable.key, Some(candidate));
            verdicts.push(match self.checks[place].worst(&*self.backend, self.kv_format, rows) {
                Ok(share) if share <= 1.0 => Verdict::Right,
                Ok(share) => Verdict::Wrong(share),
                Err(error) => Verdict::Failed(format!("{error:#}")),
            });
        }
        self.live.set(&tunable.key, before);
        Ok(Some(verdicts))
    }

    /// Learns what each check chooses among in steps of `rows` rows.
    fn look(&mut self, rows: usize) -> Result<()> {
        for (place, check) in self.checks.iter_mut().enumerate() {
            // Logits of many rows are many numbers, and no step asks for them.
            if check.all_rows && rows > 256 || check.shared > 0 && rows > SEQUENCES {
                continue;
            }
            self.live.watch();
            let done = check.worst(&*self.backend, self.kv_format, rows);
            let seen = self.live.watched();
            done.with_context(|| format!("cannot check steps of {rows} rows"))?;
            for Tunable { key, .. } in seen {
                self.launched_by.entry(key).or_insert(place);
            }
        }
        Ok(())
    }
}

impl Check {
    /// One op, with the weights that `op` has in the model.
    fn of_case(case: &Case, op: &Op, weights: &[Tensor]) -> Result<Self> {
        let plan = case.checked_plan(0);
        // One projection of normalised rows is what a head is.
        let is_it = |candidate: &&Op| {
            let is_named = candidate.name() == op.name() || matches!(candidate, Op::Logits { .. });
            is_named && candidate.weights().into_iter().all(|weight| is_of_op(&plan.weight(weight).name))
        };
        let own = plan.ops.iter().find(is_it);
        let own = own.with_context(|| format!("the check of `{}` lacks it: this is a bug:\n{plan}", op.name()))?;
        let all_rows = matches!(own, Op::Logits { .. });
        let weights = of_model(&plan, &[(own.weights(), op.weights())], weights)?;
        let shared = if case.has_cache() { BLOCKS_BEHIND_ATTENTION } else { 0 };
        Ok(Self { plan: Arc::new(plan), weights, shared, all_rows, loaded: None })
    }

    /// Latent attention, if `op` is that: of rows of small tables, and mixed into a few results.
    fn of_latent(plan: &Plan, op: &Op) -> Result<Option<Self>> {
        let Some((heads, dim, rope, scale)) = latent_shape(plan, op) else { return Ok(None) };
        let own = Graph::build("latent attention", 1 << 24, &AnyShape, |g, w| {
            let widths = [("q_latent", heads * dim), ("q_rope", heads * rope), ("latent", dim), ("rope", rope)];
            let mut inputs = vec![];
            for (name, width) in widths {
                inputs.push(g.embed(w.get(&format!("input_{name}.weight"), [LATENT_RESULTS, width])?, width));
            }
            let of = LatentHeads { heads, scale };
            let made = g.mla_attention([inputs[0], inputs[1]], [inputs[2], inputs[3]], of);
            let made = g.select_outputs(made);
            let mix = w.linear("output_mix", LATENT_RESULTS, heads * dim, false)?;
            Ok::<_, BuildError>(g.linear(made, mix, LATENT_RESULTS))
        });
        let own = own.context("latent attention is a plan")?;
        let weights = of_model(&own, &[], &[])?;
        let shared = BLOCKS_BEHIND_ATTENTION;
        Ok(Some(Self { plan: Arc::new(own), weights, shared, all_rows: false, loaded: None }))
    }

    /// How far the results of a step of `rows` rows are from what is exact, in bounds: over 1 is wrong.
    fn worst(&mut self, backend: &dyn Backend, kv_format: KvFormat, rows: usize) -> Result<f64> {
        let (shared, reads_cache) = (self.shared, self.shared > 0);
        if self.loaded.is_none() {
            // A cache for the largest step, so that attention is cut as in a model whose cache is not small.
            let num_blocks = if reads_cache { shared + SEQUENCES } else { 1 };
            let kv = KvLayout { format: kv_format, block_len: KV_BLOCK_LEN, num_blocks };
            let claims = backend.claims();
            let exact = ErrorAnalysis::new(self.plan.clone(), &self.weights, kv, claims.activations);
            let exact = exact.with_attention((claims.attention)(kv_format));
            let mut executable = backend.load(self.plan.clone(), self.weights.clone(), kv)?;
            // Weights lie as in the steady state, which is timed.
            executable.settle()?;
            self.loaded = Some(Loaded { executable, exact, by_token: HashMap::new(), kv, is_filled: false });
        }
        let loaded = self.loaded.as_mut().context("it was loaded a moment ago")?;
        loaded.executable.forget_programs();
        if reads_cache && !loaded.is_filled {
            let input = prompt(shared * KV_BLOCK_LEN, self.plan.vocab_size);
            loaded.exact.run(&input);
            loaded.is_filled = true;
        }
        if reads_cache {
            // Computed by what is tried, as the cache of a model is.
            loaded.executable.replay(&prompt(shared * KV_BLOCK_LEN, self.plan.vocab_size))?;
        }
        let mut picked: Vec<usize> = (0..CHECK_ROWS).map(|part| part * (rows - 1) / (CHECK_ROWS - 1)).collect();
        picked.dedup();
        // Rows that are swapped show, as they are apart by less than a period or by powers of two.
        let token = |row: usize| (row % TOKENS.min(self.plan.vocab_size)) as u32;
        let outputs: Vec<usize> = if self.all_rows { (0..rows).collect() } else { picked.clone() };
        let all: Vec<usize> = (0..rows).collect();
        let found = loaded.executable.replay(&sequences(&all, &outputs, shared, token, &loaded.kv))?;
        let width = self.plan.vocab_size;
        let mut worst = 0.0f64;
        for (place, &row) in picked.iter().enumerate() {
            let place = if self.all_rows { row } else { place };
            let found = &found[place * width..(place + 1) * width];
            let exact = match loaded.by_token.get(&token(row)) {
                Some(known) => known,
                None => {
                    let input = sequences(&[row], &[0], shared, token, &loaded.kv);
                    let exact = loaded.exact.run(&input);
                    loaded.by_token.entry(token(row)).or_insert(exact)
                }
            };
            let share = exact.worst(found).map_or(0.0, |(_, share)| share);
            worst = if share <= worst { worst } else { share };
        }
        Ok(worst)
    }
}

/// Heads, latent numbers, turned ones and scale, where `op` is latent attention.
fn latent_shape(plan: &Plan, op: &Op) -> Option<(usize, usize, usize, f32)> {
    let Op::MlaAttention { attention, .. } = op else { return None };
    let row = plan.kv_layers[attention.layer].latent()?;
    Some((attention.heads, row.dim, row.rope, attention.scale))
}

/// The tokens that all rows of a step share, in the first blocks of the cache.
fn prompt(len: usize, vocab_size: usize) -> StepInput {
    let tokens: Vec<u32> = (0..len).map(|row| ((row * 5 + 1) % vocab_size.min(64)) as u32).collect();
    let blocks: Vec<u32> = (0..len.div_ceil(KV_BLOCK_LEN) as u32).collect();
    let mut input = StepInput::default();
    input.push_sequence(&tokens, 0, &blocks);
    input.output_rows.push((len - 1) as u32);
    input
}

/// One row of each of these sequences, which share their first blocks, if there are any; the results of the rows at
/// `outputs`.
fn sequences(
    rows: &[usize],
    outputs: &[usize],
    shared: usize,
    token: impl Fn(usize) -> u32,
    kv: &KvLayout,
) -> StepInput {
    let mut input = StepInput::default();
    for &row in rows {
        // Where nothing reads the cache, none needs a block of its own.
        let own = shared + row % (kv.num_blocks - shared);
        let blocks: Vec<u32> = (0..shared as u32).chain([own as u32]).collect();
        input.push_sequence(&[token(row)], shared * KV_BLOCK_LEN, &blocks);
    }
    input.output_rows.extend(outputs.iter().map(|&row| row as u32));
    input
}

/// Projections, rotation and attention of a layer, which a device may compute in fewer kernels than there are ops.
struct HeadsOf<'a> {
    projections: Case,
    /// Rotation, and the attention of the model behind it.
    attention: Case,
    /// The model's projections and its rotation.
    ops: [&'a Op; 2],
}

impl<'a> HeadsOf<'a> {
    /// Those that begin at `index` of the ops.
    fn at(plan: &'a Plan, index: usize) -> Option<Self> {
        let [first, second, third] = plan.ops.get(index..index + 3)? else { return None };
        let projections = Case::of(plan, first)?;
        let Case::RopeKvWrite { rope, q_norm, k_norm, .. } = Case::of(plan, second)? else { return None };
        let Op::Attention { attention, .. } = third else { return None };
        let Case::Attention(heads) = Case::of(plan, third)? else { return None };
        let are_three = matches!(&projections, Case::NormLinear { projections, .. } if projections.len() == 3);
        let attention_case = Case::RopeKvWrite { heads, rope, q_norm, k_norm };
        (are_three && attention.sinks.is_none()).then_some(Self {
            projections,
            attention: attention_case,
            ops: [first, second],
        })
    }

    fn check(&self, weights: &[Tensor]) -> Result<Check> {
        let (Case::NormLinear { in_features, .. }, Case::RopeKvWrite { heads, .. }) =
            (&self.projections, &self.attention)
        else {
            unreachable!("`at` looks for these")
        };
        let (width, out_width) = (*in_features, heads.heads * heads.head_dim);
        let own = Graph::build("heads", 1 << 24, &AnyShape, |g, w| {
            let x = g.embed(w.get("input_x.weight", [out_width, width])?, width);
            let of_op = w.at("copy.0");
            let made = self.projections.forward(g, &of_op, &[x], false)?;
            let made = self.attention.forward(g, &of_op, &made, false)?;
            // As in a model, the rows outlive attention; else its queries could lie where they do.
            let (out, x) = (g.select_outputs(made[0]), g.select_outputs(x));
            let mixed = g.linear(x, w.linear("output_mix", out_width, width, false)?, out_width);
            Ok::<_, BuildError>(g.add(out, mixed))
        });
        let own = plan::fuse(own.context("projections and attention are a plan")?);
        let of = |op: &&Op| own.ops.iter().find(|own| own.name() == op.name()).map(Op::weights).context("it was fused");
        let pairs = self.ops.iter().map(|op| Ok((of(op)?, op.weights()))).collect::<Result<Vec<_>>>()?;
        let weights = of_model(&own, &pairs, weights)?;
        Ok(Check { plan: Arc::new(own), weights, shared: BLOCKS_BEHIND_HEADS, all_rows: false, loaded: None })
    }
}

/// The router, the gated units and the down projections of a layer of experts, whose ways are chosen for each other.
struct ExpertsOf<'a> {
    plan: &'a Plan,
    ops: [&'a Op; 3],
}

impl<'a> ExpertsOf<'a> {
    /// Those that begin at `index` of the ops.
    fn at(plan: &'a Plan, index: usize) -> Option<Self> {
        let [route, glu, down] = plan.ops.get(index..index + 3)? else { return None };
        let are_three = (route.name(), glu.name(), down.name()) == ("moe_route", "moe_glu", "moe_down");
        are_three.then_some(Self { plan, ops: [route, glu, down] })
    }

    /// Shapes of the router and of an expert's gate, and experts of a row: what layers of a model may differ by.
    fn shape(&self) -> (Vec<usize>, Vec<usize>, usize) {
        let (Op::MoeRoute { gate, router, .. }, Op::MoeGlu { gate: gates, .. }) = (self.ops[0], self.ops[1]) else {
            unreachable!("`at` looks for these")
        };
        let shape = |weight| self.plan.weight(weight).shape.clone();
        (shape(gate.weight), shape(gates.first), router.slots())
    }

    fn check(&self, weights: &[Tensor]) -> Result<Check> {
        let [
            Op::MoeRoute { norm, gate: router_gate, router, .. },
            Op::MoeGlu { gate: gates, activation, .. },
            Op::MoeDown { down: downs, .. },
        ] = self.ops
        else {
            unreachable!("`at` looks for these")
        };
        let ([experts, hidden], inner) = match (&*self.shape().0, &*self.shape().1) {
            (&[experts, hidden], &[inner, _]) => ([experts, hidden], inner),
            shapes => anyhow::bail!("the shapes {shapes:?} are not those of matrices: this is a bug"),
        };
        let own = Graph::build("experts", 1 << 24, &AnyShape, |g, w| {
            let x = g.embed(w.get("input_x.weight", [hidden, hidden])?, hidden);
            let w = w.at("copy.0");
            let h = g.rms_norm(x, w.norm("norm", hidden, norm.eps)?);
            let logits = g.linear(h, w.linear("router", experts, hidden, router_gate.bias.is_some())?, experts);
            let correction = router.correction.map(|_| w.get("correction.bias", [experts])).transpose()?;
            let (ids, weights) = g.route(logits, plan::Router { correction, ..*router });
            let name = |what: &'static str| move |expert: usize| format!("experts.{expert}.{what}");
            let stack = |what, shape, of: &plan::Experts| w.experts(name(what), of.count, shape, of.bias.is_some());
            let gate = g.expert_linear(h, ids, stack("gate", [inner, hidden], gates)?, inner);
            let up = g.expert_linear(h, ids, stack("up", [inner, hidden], gates)?, inner);
            let glu = g.glu(gate, up, *activation);
            let down = g.expert_linear(glu, ids, stack("down", [hidden, inner], downs)?, hidden);
            let sum = g.combine(down, weights);
            let y = g.add(x, sum);
            Ok::<_, BuildError>(g.select_outputs(y))
        });
        let own = plan::fuse(own.context("a layer of experts is a plan")?);
        let of = |op: &&Op| own.ops.iter().find(|own| own.name() == op.name()).map(Op::weights).context("it was fused");
        let pairs = self.ops.iter().map(|op| Ok((of(op)?, op.weights()))).collect::<Result<Vec<_>>>()?;
        let weights = of_model(&own, &pairs, weights)?;
        Ok(Check { plan: Arc::new(own), weights, shared: 0, all_rows: false, loaded: None })
    }
}

/// Weights for `plan`: of each pair the second's, and random ones for the glue.
fn of_model(plan: &Plan, pairs: &[(Vec<WeightId>, Vec<WeightId>)], model: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut found: HashMap<usize, Tensor> = HashMap::new();
    for (own, theirs) in pairs {
        found.extend(own.iter().zip(theirs).map(|(own, theirs)| (own.index(), model[theirs.index()].clone())));
    }
    let mut glue = Weights::new(tensor::WeightFormat::F32);
    let weight = |(index, info): (usize, &plan::WeightInfo)| match found.remove(&index) {
        Some(tensor) if tensor.shape() == info.shape => Ok(tensor),
        None if !is_of_op(&info.name) => glue.tensor(info),
        _ => anyhow::bail!("the weight `{}` of a check has no counterpart in the model: this is a bug", info.name),
    };
    plan.weights.iter().enumerate().map(weight).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use backend::reference::ReferenceBackend;
    use backend::{BackendError, DeviceInfo};
    use plan::{StepShape, fuse, restrict_outputs};
    use tensor::WeightFormat;

    use super::*;

    const KEY: &str = "a kernel";
    const WAYS: [&str; 3] = ["whole", "quarter", "stops"];

    /// The reference, with three ways to compute: all of it, a quarter of each row, and none.
    struct Faulty(&'static Tuning);

    struct FaultyExecutable {
        live: &'static Tuning,
        inner: Box<dyn Executable>,
        result: Vec<f32>,
    }

    impl Backend for Faulty {
        fn device(&self) -> &DeviceInfo {
            static DEVICE: Mutex<Option<&'static DeviceInfo>> = Mutex::new(None);
            DEVICE.lock().unwrap().get_or_insert_with(|| {
                let name = "faulty".to_owned();
                Box::leak(Box::new(DeviceInfo { name, description: String::new(), memory_bytes: 0, driver: None }))
            })
        }

        fn supports(&self, _: &Op, _: &[WeightFormat]) -> bool {
            true
        }

        fn load(
            &self,
            plan: Arc<Plan>,
            weights: Vec<Tensor>,
            kv: KvLayout,
        ) -> Result<Box<dyn Executable>, BackendError> {
            let inner = ReferenceBackend::new().load(plan, weights, kv)?;
            Ok(Box::new(FaultyExecutable { live: self.0, inner, result: vec![] }))
        }
    }

    impl Executable for FaultyExecutable {
        fn compile(&mut self, shape: StepShape) -> Result<(), BackendError> {
            self.inner.compile(shape)
        }

        fn replay(&mut self, input: &StepInput) -> Result<&[f32], BackendError> {
            let ways = || WAYS.map(str::to_owned).to_vec();
            let way = self.live.choose(KEY, &ways, 0, true);
            self.result = self.inner.replay(input)?.to_vec();
            let rows = input.output_rows.len();
            let width = self.result.len() / rows;
            match WAYS[way] {
                "quarter" => self.result.chunks_exact_mut(width).for_each(|row| row[width / 4..].fill(0.0)),
                "stops" => return Err(BackendError::NotQueued),
                _ => {}
            }
            Ok(&self.result)
        }
    }

    fn checks_of(model: &str, kv: KvFormat) -> (Checks, &'static Tuning) {
        let (textbook, weights) = testing::tiny_model(model, 3, WeightFormat::Q8_0);
        let plan = fuse(restrict_outputs((*textbook).clone()));
        let live: &'static Tuning = Box::leak(Box::new(Tuning::default()));
        (Checks::new(Box::new(Faulty(live)), live, &plan, &weights, kv).unwrap(), live)
    }

    fn checks(kv: KvFormat) -> (Checks, &'static Tuning) {
        checks_of("llama", kv)
    }

    /// Of a model whose layers are alike, one check computes `op`, and it tells a quarter of a result from all of it.
    fn is_checked(model: &str, op: &str, rows: usize) {
        let (mut checks, live) = checks_of(model, KvFormat::F32);
        let computes = |check: &Check| check.plan.ops.iter().any(|own| own.name() == op);
        let found: Vec<_> = (0..checks.checks.len()).filter(|&place| computes(&checks.checks[place])).collect();
        assert_eq!(found.len(), 1, "{model}: layers are alike");
        let check = &mut checks.checks[found[0]];
        let worst = |check: &mut Check| check.worst(&Faulty(live), KvFormat::F32, rows).unwrap();
        assert!(worst(check) <= 1.0, "{model}");
        live.set(KEY, Some("quarter"));
        assert!(worst(check) > 1.0, "{model}");
    }

    #[test]
    fn every_projection_and_attention_of_a_model_is_checked() {
        let (checks, _) = checks(KvFormat::F32);
        let names: Vec<Vec<&str>> =
            checks.checks.iter().map(|check| check.plan.ops.iter().map(Op::name).collect()).collect();
        let has = |ops: &[&str]| names.iter().any(|names| ops.iter().all(|op| names.contains(op)));
        assert!(has(&["norm_linear", "rope_kv_write", "attention"]), "{names:?}");
        for op in ["linear_residual", "norm_glu", "logits"] {
            assert!(has(&[op]), "{names:?}");
        }
    }

    #[test]
    fn latent_attention_is_checked() {
        is_checked("deepseek_v3", "mla_attention", 2);
    }

    #[test]
    fn experts_are_checked_with_their_router() {
        ["qwen3_moe", "glm4_moe", "gpt_oss"].iter().for_each(|model| is_checked(model, "moe_down", 7));
    }

    #[test]
    fn a_way_that_computes_a_quarter_is_wrong_and_one_that_fails_says_why() {
        for rows in [1, 4] {
            let (mut checks, live) = checks(KvFormat::F32);
            let candidates = WAYS.map(str::to_owned).to_vec();
            let tunable = Tunable { key: KEY.to_owned(), candidates, default: 0 };
            let unseen = Tunable { key: "another".to_owned(), ..tunable.clone() };
            assert_eq!(checks.prove(rows, &unseen).unwrap(), None);
            let proven = checks.prove(rows, &tunable).unwrap().expect("every op asks for it");
            let [whole, quarter, stops] = &proven[..] else { panic!("{proven:?}") };
            assert_eq!(*whole, Verdict::Right);
            assert!(matches!(quarter, Verdict::Wrong(times) if *times > 10.0), "{quarter:?}");
            assert!(matches!(stops, Verdict::Failed(why) if why.contains("no step is under way")), "{stops:?}");
            assert!(live.choices().is_empty(), "the table is as it was");
        }
    }
}
