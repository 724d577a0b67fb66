//! One op at a time: which ops of which shapes a model has, and plans that consist of one of them.
//!
//! A plan needs values to begin with and logits to end with, so an op comes with glue: embeddings of small tables before
//! it, and after it the selection of one row and its addition to a sum. The same plan without the op is measured beside it
//! and subtracted. Copies of the op, each with weights or cache of its own, stand in one plan one after another: that is
//! how weights rotate.

use std::ops::Range;

use backend::profile::Cost;
use plan::{
    Activation, AnyShape, BuildError, Graph, Heads, KvLayout, Linear, Op, Plan, Rope, Rows, StepInput, Value, Weights,
};

/// Rows of the tables that inputs come from, and so different inputs.
const NUM_INPUTS: usize = 64;
const EPS: f32 = 1e-6;
/// Every plan here is for as many tokens as a test may ask for.
const CONTEXT_LEN: usize = 1 << 24;

/// An op with its shape; which of a model's layers it is in does not matter.
#[derive(Clone, Debug, PartialEq)]
pub enum Case {
    /// The table is as wide as it is long: gathering rows does not depend on how many there are.
    Embed {
        /// Numbers of a row.
        width: usize,
    },
    /// RMSNorm of each slice of a row.
    RmsNorm {
        /// Slices of a row.
        slices: usize,
        /// Numbers of a slice.
        width: usize,
    },
    /// A projection alone.
    Linear(Projection),
    /// Rotation by positions.
    Rope {
        /// Heads of a row.
        heads: usize,
        /// How they turn.
        rope: Rope,
    },
    /// With the `kv_write` before it, which plans cannot have alone.
    Attention(Heads),
    /// The activation of a gate, times what it gates.
    Glu {
        /// Numbers of a row.
        width: usize,
        /// That of the gate.
        activation: Activation,
    },
    /// A sum of two rows.
    Add {
        /// Numbers of a row.
        width: usize,
    },
    /// RMSNorm and projections of its result.
    NormLinear {
        /// Numbers of a row.
        in_features: usize,
        /// Output features of each, and whether it has a bias.
        projections: Vec<(usize, bool)>,
    },
    /// RMSNorm and a gated unit.
    NormGlu {
        /// The gate; up is as large.
        gate: Projection,
        /// Whether up has a bias.
        up_bias: bool,
        /// That of the gate.
        activation: Activation,
    },
    /// A projection and what it is added to.
    LinearResidual(Projection),
    /// With the attention to a single position that its query needs a reader for.
    RopeKvWrite {
        /// Those of queries, keys and values.
        heads: Heads,
        /// How they turn.
        rope: Rope,
        /// Whether queries are normalised first.
        q_norm: bool,
        /// Whether keys are.
        k_norm: bool,
    },
    /// The norm and the projection at the end of a model.
    Logits(Projection),
}

/// The shape of a projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Projection {
    /// Numbers of a row that it reads.
    pub in_features: usize,
    /// Numbers of a row that it makes.
    pub out_features: usize,
    /// Whether a bias is added.
    pub bias: bool,
}

/// Every op of `plans` in each of its shapes once, in order. Selections of rows are left out: they are the glue.
pub fn cases_of(plans: &[&Plan]) -> Vec<Case> {
    let mut cases = Vec::new();
    for plan in plans {
        for case in plan.ops.iter().filter_map(|op| Case::of(plan, op)) {
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
    }
    cases
}

impl Case {
    /// That of an op of `plan`; `None` for those that are the glue of measured plans, and for ops that are not measured alone.
    pub fn of(plan: &Plan, op: &Op) -> Option<Self> {
        let width = |value: Value| plan.value(value).width;
        let projection = |linear: &Linear| {
            let shape = &plan.weight(linear.weight).shape;
            Projection { in_features: shape[1], out_features: shape[0], bias: linear.bias.is_some() }
        };
        let heads = |layer: usize, heads: usize, scale: f32, window: Option<usize>| {
            let kv = plan.kv_layers[layer].heads().expect("the verifier checks that attention has heads");
            Heads { heads, kv_heads: kv.kv_heads, head_dim: kv.head_dim, scale, window, sinks: None }
        };
        Some(match op {
            Op::Embed { out, .. } => Self::Embed { width: width(*out) },
            Op::RmsNorm { x, norm, .. } => {
                let norm_width = plan.weight(norm.weight).shape[0];
                Self::RmsNorm { slices: width(*x) / norm_width, width: norm_width }
            }
            // The head is measured as what passes make of it.
            Op::Linear { out, .. } if *out == plan.logits => return None,
            Op::Linear { linear, .. } => Self::Linear(projection(linear)),
            Op::Rope { x, rope, .. } => {
                let rope = plan.ropes[*rope].clone();
                Self::Rope { heads: width(*x) / rope.head_dim, rope }
            }
            // What mixtures do is measured in whole models: which experts a step reads is a matter of its tokens.
            Op::Route { .. }
            | Op::ExpertLinear { .. }
            | Op::Combine { .. }
            | Op::GateRows { .. }
            | Op::MoeRoute { .. }
            | Op::MoeGlu { .. }
            | Op::MoeDown { .. }
            | Op::KvWrite { .. }
            | Op::HeadLinear { .. }
            | Op::LatentWrite { .. }
            | Op::LatentRopeWrite { .. }
            | Op::MlaAttention { .. }
            | Op::GatherColumns { .. }
            | Op::SelectOutputs { .. } => return None,
            Op::Attention { attention: a, .. } => Self::Attention(heads(a.layer, a.heads, a.scale, a.window)),
            Op::Glu { out, activation, .. } => Self::Glu { width: width(*out), activation: *activation },
            Op::Add { out, .. } => Self::Add { width: width(*out) },
            Op::NormLinear { x, projections, .. } => Self::NormLinear {
                in_features: width(*x),
                projections: projections.iter().map(|(linear, out)| (width(*out), linear.bias.is_some())).collect(),
            },
            Op::NormGlu { gate, up, activation, .. } => {
                Self::NormGlu { gate: projection(gate), up_bias: up.bias.is_some(), activation: *activation }
            }
            Op::LinearResidual { linear, .. } => Self::LinearResidual(projection(linear)),
            Op::RopeKvWrite { q, q_norm, k_norm, rope, layer, .. } => {
                let rope = plan.ropes[*rope].clone();
                let scale = (rope.head_dim as f32).sqrt().recip();
                let heads = heads(*layer, width(*q) / rope.head_dim, scale, None);
                Self::RopeKvWrite { heads, rope, q_norm: q_norm.is_some(), k_norm: k_norm.is_some() }
            }
            Op::Logits { head, .. } => Self::Logits(projection(head)),
        })
    }

    /// The op's name, as plans have it.
    pub fn op(&self) -> &'static str {
        match self {
            Self::Embed { .. } => "embed",
            Self::RmsNorm { .. } => "rms_norm",
            Self::Linear(_) => "linear",
            Self::Rope { .. } => "rope",
            Self::Attention(_) => "attention",
            Self::Glu { .. } => "glu",
            Self::Add { .. } => "add",
            Self::NormLinear { .. } => "norm_linear",
            Self::NormGlu { .. } => "norm_glu",
            Self::LinearResidual(_) => "linear_residual",
            Self::RopeKvWrite { .. } => "rope_kv_write",
            Self::Logits(_) => "logits",
        }
    }

    /// `896 → 4864`, `14 heads of 64, 2 kv`.
    pub fn shape(&self) -> String {
        let of_heads = |heads: &Heads| format!("{} heads of {}, {} kv", heads.heads, heads.head_dim, heads.kv_heads);
        match self {
            Self::Embed { width } | Self::Glu { width, .. } | Self::Add { width } => width.to_string(),
            Self::RmsNorm { slices: 1, width } => width.to_string(),
            Self::RmsNorm { slices, width } => format!("{slices} × {width}"),
            Self::Linear(p) | Self::LinearResidual(p) | Self::Logits(p) => {
                let bias = if p.bias { ", bias" } else { "" };
                format!("{} → {}{bias}", p.in_features, p.out_features)
            }
            Self::Rope { heads, rope } => format!("{heads} heads of {}", rope.head_dim),
            Self::Attention(heads) => of_heads(heads),
            Self::NormLinear { in_features, projections } => {
                let outs: Vec<_> = projections.iter().map(|(out_features, _)| out_features.to_string()).collect();
                format!("{in_features} → {}", outs.join(" + "))
            }
            Self::NormGlu { gate, .. } => format!("{} → 2 × {}", gate.in_features, gate.out_features),
            Self::RopeKvWrite { heads, .. } => of_heads(heads),
        }
    }

    /// Whether it multiplies with matrices, so that the weights' format matters.
    pub fn has_matrices(&self) -> bool {
        match self {
            Self::Embed { .. }
            | Self::Linear(_)
            | Self::NormLinear { .. }
            | Self::NormGlu { .. }
            | Self::LinearResidual(_)
            | Self::Logits(_) => true,
            Self::RmsNorm { .. }
            | Self::Rope { .. }
            | Self::Attention(_)
            | Self::Glu { .. }
            | Self::Add { .. }
            | Self::RopeKvWrite { .. } => false,
        }
    }

    /// Whether it reads or writes the cache.
    pub fn has_cache(&self) -> bool {
        matches!(self, Self::Attention(_) | Self::RopeKvWrite { .. })
    }

    /// Whether each row is computed from its own input alone, wherever it stands.
    fn is_by_row(&self) -> bool {
        !self.has_cache()
    }

    /// Whether there is more to read than activations.
    pub fn is_bound_by_memory(&self) -> bool {
        self.has_matrices() || matches!(self, Self::Attention(_))
    }

    /// `cost`, with activations where the op reads nothing else to speak of.
    pub fn counted(&self, cost: Cost, rows: usize) -> Cost {
        if self.is_bound_by_memory() {
            return cost;
        }
        let read: usize = self.inputs().iter().map(|(_, width)| width).sum();
        let written: usize = self.output_widths().iter().sum();
        Cost { bytes: cost.bytes + (rows * (read + written) * size_of::<f32>()) as u64, ..cost }
    }

    /// Its projections, but for the head.
    pub fn projections(&self) -> Vec<Projection> {
        match self {
            Self::Linear(projection) | Self::LinearResidual(projection) => vec![*projection],
            Self::NormGlu { gate, .. } => vec![*gate],
            Self::NormLinear { in_features, projections } => projections
                .iter()
                .map(|&(out_features, bias)| Projection { in_features: *in_features, out_features, bias })
                .collect(),
            _ => vec![],
        }
    }

    /// Outputs and inputs of the one product that its projections are, but for the head's: gate and up are as large.
    pub fn product(&self) -> Option<(usize, usize)> {
        let projections = self.projections();
        let outputs: usize = projections.iter().map(|projection| projection.out_features).sum();
        let outputs = if matches!(self, Self::NormGlu { .. }) { 2 * outputs } else { outputs };
        projections.first().map(|first| (outputs, first.in_features))
    }

    /// Whether a plan can have more than one of it.
    pub fn can_be_copied(&self) -> bool {
        !matches!(self, Self::Logits(_))
    }

    /// Whether an op of a plan is what is measured, and not glue.
    pub fn is_measured(&self, plan: &Plan, op: &Op) -> bool {
        let is_it = op.name() == self.op() || matches!((self, op), (Self::Attention(_), Op::KvWrite { .. }));
        let is_by_token = |value: &Value| plan.value(*value).rows == Rows::Tokens;
        is_it
            && op.weights().into_iter().all(|weight| is_of_op(&plan.weight(weight).name))
            && (matches!(op, Op::Logits { .. }) || op.outputs().iter().all(is_by_token))
    }

    /// The plan to take the time of, with `copies` of the op; or as many times its glue, without the op: `None` where the
    /// op is the end of every plan that has it.
    pub fn timed_plan(&self, copies: Range<usize>, with_op: bool) -> Option<Plan> {
        if let Self::Logits(projection) = self {
            return with_op.then(|| logits_plan(*projection));
        }
        let plan = Graph::build("one op", CONTEXT_LEN, &AnyShape, |g, w| {
            let mut glue = Glue { g, w, num_inputs: NUM_INPUTS, sums: Vec::new() };
            let mut inputs = Vec::new();
            for (name, width) in self.inputs() {
                let value = glue.input(name, width)?;
                glue.sink(value, width);
                inputs.push(value);
            }
            // What stands for the results where there is no op.
            let mut results = Vec::new();
            for (index, width) in self.output_widths().into_iter().enumerate() {
                let value = glue.input(&format!("result_{index}"), width)?;
                glue.sink(value, width);
                results.push((value, width));
            }
            for copy in copies.clone() {
                if with_op {
                    let made = self.forward(glue.g, &w.at("copy").at(copy), &inputs, true)?;
                    made.into_iter().zip(self.output_widths()).for_each(|(value, width)| glue.sink(value, width));
                } else {
                    results.iter().for_each(|&(value, width)| glue.sink(value, width));
                }
            }
            glue.finish()
        });
        Some(self.fused(plan.expect("every weight is there")))
    }

    /// The plan to compare with the reference: all results of one copy of the op, whole.
    pub fn checked_plan(&self, copy: usize) -> Plan {
        if let Self::Logits(projection) = self {
            return logits_plan(*projection);
        }
        let widths = self.output_widths();
        let plan = Graph::build("one op", CONTEXT_LEN, &AnyShape, |g, w| {
            let mut glue = Glue { g, w, num_inputs: widths[0], sums: Vec::new() };
            let mut inputs = Vec::new();
            for (name, width) in self.inputs() {
                inputs.push(glue.input(name, width)?);
            }
            let made = self.forward(glue.g, &w.at("copy").at(copy), &inputs, false)?;
            // Results of other widths are mixed into the first, so that a fault in any of them shows.
            let mut sum = glue.g.select_outputs(made[0]);
            for (index, (&value, &width)) in made.iter().zip(&widths).enumerate().skip(1) {
                let selected = glue.g.select_outputs(value);
                let mix = w.linear(&format!("mix_{index}"), widths[0], width, false)?;
                let mixed = glue.g.linear(selected, mix, widths[0]);
                sum = glue.g.add(sum, mixed);
            }
            Ok::<_, BuildError>(sum)
        });
        self.fused(plan.expect("every weight is there"))
    }

    /// The passes, for ops that they make.
    fn fused(&self, plan: Plan) -> Plan {
        match self {
            Self::NormLinear { .. } | Self::NormGlu { .. } | Self::LinearResidual(_) | Self::RopeKvWrite { .. } => {
                plan::fuse(plan)
            }
            _ => plan,
        }
    }

    /// Names and widths of what it reads.
    fn inputs(&self) -> Vec<(&'static str, usize)> {
        let of_heads = |heads: &Heads| {
            let kv_width = heads.kv_heads * heads.head_dim;
            vec![("q", heads.heads * heads.head_dim), ("k", kv_width), ("v", kv_width)]
        };
        match self {
            Self::Embed { .. } => vec![],
            Self::RmsNorm { slices, width } => vec![("x", slices * width)],
            Self::Linear(projection) | Self::Logits(projection) => vec![("x", projection.in_features)],
            Self::LinearResidual(projection) => {
                vec![("x", projection.in_features), ("residual", projection.out_features)]
            }
            Self::Rope { heads, rope } => vec![("x", heads * rope.head_dim)],
            Self::Glu { width, .. } => vec![("gate", *width), ("up", *width)],
            Self::Add { width } => vec![("a", *width), ("b", *width)],
            Self::NormLinear { in_features, .. } => vec![("x", *in_features)],
            Self::NormGlu { gate, .. } => vec![("x", gate.in_features)],
            Self::Attention(heads) | Self::RopeKvWrite { heads, .. } => of_heads(heads),
        }
    }

    /// Widths of what it makes.
    fn output_widths(&self) -> Vec<usize> {
        match self {
            Self::Embed { width } | Self::Glu { width, .. } | Self::Add { width } => vec![*width],
            Self::RmsNorm { slices, width } => vec![slices * width],
            Self::Linear(projection) | Self::LinearResidual(projection) | Self::Logits(projection) => {
                vec![projection.out_features]
            }
            Self::Rope { heads, rope } => vec![heads * rope.head_dim],
            Self::NormLinear { projections, .. } => projections.iter().map(|&(out_features, _)| out_features).collect(),
            Self::NormGlu { gate, .. } => vec![gate.out_features],
            Self::Attention(heads) | Self::RopeKvWrite { heads, .. } => vec![heads.heads * heads.head_dim],
        }
    }

    /// Writes the op, in the textbook ops that its fused form is made of; `timed` cuts what must come with it short.
    pub fn forward(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        inputs: &[Value],
        timed: bool,
    ) -> Result<Vec<Value>, BuildError> {
        let linear = |name: &str, p: &Projection| w.linear(name, p.out_features, p.in_features, p.bias);
        Ok(match self {
            Self::Embed { width } => {
                // As long as the tables of inputs are, which is what a plan's vocabulary is.
                let len = if timed { NUM_INPUTS } else { *width };
                vec![g.embed(w.get("embed_tokens.weight", [len, *width])?, *width)]
            }
            Self::RmsNorm { width, .. } => vec![g.rms_norm(inputs[0], w.norm("norm", *width, EPS)?)],
            Self::Linear(p) => vec![g.linear(inputs[0], linear("proj", p)?, p.out_features)],
            Self::Rope { rope, .. } => vec![g.rope(inputs[0], rope)],
            Self::Attention(heads) => vec![g.attention(inputs[0], inputs[1], inputs[2], *heads)],
            Self::Glu { activation, .. } => vec![g.glu(inputs[0], inputs[1], *activation)],
            Self::Add { .. } => vec![g.add(inputs[0], inputs[1])],
            Self::NormLinear { in_features, projections } => {
                let h = g.rms_norm(inputs[0], w.norm("norm", *in_features, EPS)?);
                let mut made = Vec::new();
                for (index, &(out_features, bias)) in projections.iter().enumerate() {
                    let p = Projection { in_features: *in_features, out_features, bias };
                    made.push(g.linear(h, linear(&format!("proj_{index}"), &p)?, out_features));
                }
                made
            }
            Self::NormGlu { gate, up_bias, activation } => {
                let h = g.rms_norm(inputs[0], w.norm("norm", gate.in_features, EPS)?);
                // The gate first, as models have it: kernels read both as one tensor then.
                let gated = g.linear(h, linear("gate_proj", gate)?, gate.out_features);
                let up = linear("up_proj", &Projection { bias: *up_bias, ..*gate })?;
                let up = g.linear(h, up, gate.out_features);
                vec![g.glu(gated, up, *activation)]
            }
            Self::LinearResidual(p) => {
                let y = g.linear(inputs[0], linear("proj", p)?, p.out_features);
                vec![g.add(inputs[1], y)]
            }
            Self::RopeKvWrite { heads, rope, q_norm, k_norm } => {
                let mut turned = |x: Value, name: &str, has_norm: bool| {
                    let x = if has_norm { g.rms_norm(x, w.norm(name, heads.head_dim, EPS)?) } else { x };
                    Ok::<_, BuildError>(g.rope(x, rope))
                };
                let (q, k) = (turned(inputs[0], "q_norm", *q_norm)?, turned(inputs[1], "k_norm", *k_norm)?);
                let window = if timed { Some(1) } else { heads.window };
                vec![g.attention(q, k, inputs[2], Heads { window, ..*heads })]
            }
            Self::Logits(_) => unreachable!("its plans are written apart"),
        })
    }

    /// The step of `rows` tokens after `depth` others in one sequence, with the results of the rows at `outputs`.
    pub fn step(&self, plan: &Plan, kv: &KvLayout, rows: usize, depth: usize, outputs: &[usize]) -> StepInput {
        let mut input = StepInput::default();
        let tokens: Vec<u32> = (0..rows).map(|row| token_of(row, plan.vocab_size)).collect();
        let blocks: Vec<u32> = (0..(depth + rows).div_ceil(kv.block_len) as u32).collect();
        input.push_sequence(&tokens, depth, &blocks);
        // The op over all rows is what is measured, also where only rows with results have one.
        let all: Vec<usize> = (0..rows).collect();
        let outputs = if plan.ops.iter().any(|op| matches!(op, Op::Logits { .. })) { &all } else { outputs };
        input.output_rows.extend(outputs.iter().map(|&row| row as u32));
        input
    }

    /// As [`Case::step`], with no more rows than the results at `outputs` depend on: for the reference, which is slow.
    pub fn reference_step(
        &self,
        plan: &Plan,
        kv: &KvLayout,
        rows: usize,
        depth: usize,
        outputs: &[usize],
    ) -> StepInput {
        if !self.is_by_row() {
            return self.step(plan, kv, rows, depth, outputs);
        }
        let mut input = StepInput::default();
        for (index, &row) in outputs.iter().enumerate() {
            let blocks: Vec<u32> = (0..(depth + row + 1).div_ceil(kv.block_len) as u32).collect();
            input.push_sequence(&[token_of(row, plan.vocab_size)], depth + row, &blocks);
            input.output_rows.push(index as u32);
        }
        input
    }
}

/// A different input for each of many rows.
fn token_of(row: usize, vocab_size: usize) -> u32 {
    ((row * 7 + 3) % vocab_size.min(NUM_INPUTS)) as u32
}

/// Embedding, norm and head, with one table for both as in models with tied weights.
fn logits_plan(p: Projection) -> Plan {
    let plan: Result<Plan, BuildError> = Graph::build("one op", CONTEXT_LEN, &AnyShape, |g, w| {
        let w = w.at("copy.0");
        let head = Linear {
            weight: w.get("head.weight", [p.out_features, p.in_features])?,
            bias: if p.bias { Some(w.get("head.bias", [p.out_features])?) } else { None },
        };
        let x = g.embed(head.weight, p.in_features);
        let x = g.rms_norm(x, w.norm("norm", p.in_features, EPS)?);
        let x = g.select_outputs(x);
        Ok(g.linear(x, head, p.out_features))
    });
    plan::fuse(plan.expect("every weight is there"))
}

/// What a plan has beside the op.
struct Glue<'a, 'w> {
    g: &'a mut Graph,
    w: &'a Weights<'w>,
    /// Rows of the tables.
    num_inputs: usize,
    /// Of the selected rows, one for each width.
    sums: Vec<(usize, Value)>,
}

impl Glue<'_, '_> {
    fn input(&mut self, name: &str, width: usize) -> Result<Value, BuildError> {
        let table = self.w.get(&format!("input_{name}.weight"), [self.num_inputs, width])?;
        Ok(self.g.embed(table, width))
    }

    /// Reads `value`, as every value must be read, as cheaply as that goes: one row.
    fn sink(&mut self, value: Value, width: usize) {
        let selected = self.g.select_outputs(value);
        match self.sums.iter_mut().find(|(known, _)| *known == width) {
            Some((_, sum)) => *sum = self.g.add(*sum, selected),
            None => self.sums.push((width, selected)),
        }
    }

    /// The logits: small projections of the sums.
    fn finish(self) -> Result<Value, BuildError> {
        let mut logits = None;
        for (width, sum) in self.sums {
            let output = self.w.linear(&format!("output_{width}"), self.num_inputs, width, false)?;
            let part = self.g.linear(sum, output, self.num_inputs);
            logits = Some(logits.map_or(part, |logits| self.g.add(logits, part)));
        }
        Ok(logits.expect("every op makes something"))
    }
}

/// Whether a plan's weight belongs to the op and not to the glue.
pub fn is_of_op(name: &str) -> bool {
    name.starts_with("copy.")
}
