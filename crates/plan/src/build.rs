//! The builder that model files write through: textbook ops, in forward order, with every weight asked for by name and
//! shape.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::{
    Activation, Attention, CacheLayer, Experts, Kind, KvLayer, LatentLayer, Linear, MlaAttention, Norm, Op, Plan, Rope,
    Router, Rows, Value, ValueInfo, WeightId, WeightInfo,
};

/// Where shapes come from while a plan is built: a checkpoint's headers, or nothing at all.
pub trait WeightSource {
    /// The shape of the weight called `name`, if there is one.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;

    /// The order in which the weight called `name` has its columns, where it is not that of what it multiplies: column i of it
    /// belongs to feature `order[i]`.
    fn order(&self, _name: &str) -> Option<&[u32]> {
        None
    }

    /// Whether weights that are asked for with any shape exist: true only where no checkpoint stands behind the plan.
    fn has_everything(&self) -> bool {
        false
    }
}

/// A source that has every weight in whatever shape it is asked for: for plans without a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct AnyShape;

impl WeightSource for AnyShape {
    fn shape(&self, _name: &str) -> Option<Vec<usize>> {
        None
    }

    fn has_everything(&self) -> bool {
        true
    }
}

impl WeightSource for HashMap<String, Vec<usize>> {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.get(name).cloned()
    }
}

/// Why a plan could not be built from a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The checkpoint lacks a weight.
    #[error("the checkpoint has no tensor `{name}` (expected with shape {expected:?}): is a shard missing?")]
    MissingWeight {
        /// The name asked for.
        name: String,
        /// The shape that the configuration implies.
        expected: Vec<usize>,
    },
    /// A weight's shape contradicts the configuration.
    #[error("tensor `{name}` has shape {found:?}, but the configuration implies {expected:?}")]
    WrongShape {
        /// The name asked for.
        name: String,
        /// The shape in the checkpoint.
        found: Vec<usize>,
        /// The shape that the configuration implies.
        expected: Vec<usize>,
    },
    /// An expert whose features lie in an order of their own. The experts of a layer share the rows that they multiply,
    /// so these cannot be gathered for one of them.
    #[error("tensor `{name}` lists its features in an order of its own (`desc_act`), which no expert may have here")]
    OrderedExpert {
        /// The name asked for.
        name: String,
    },
}

/// The weights of a checkpoint under a name prefix, `model.layers.3.`.
pub struct Weights<'a> {
    source: &'a dyn WeightSource,
    taken: &'a RefCell<Taken>,
    prefix: String,
}

/// The weights that were asked for, in the order in which they first were.
#[derive(Default)]
struct Taken {
    weights: Vec<WeightInfo>,
    indices: HashMap<String, usize>,
    /// Of those whose columns have an order of their own.
    orders: HashMap<WeightId, Vec<u32>>,
}

impl<'a> Weights<'a> {
    /// The weights below `prefix`, which is joined with a dot.
    pub fn at(&self, prefix: impl std::fmt::Display) -> Weights<'a> {
        Weights { source: self.source, taken: self.taken, prefix: format!("{}{prefix}.", self.prefix) }
    }

    /// The weight called `name`, which must have `shape`.
    pub fn get<const N: usize>(&self, name: &str, shape: [usize; N]) -> Result<WeightId, BuildError> {
        let name = format!("{}{name}", self.prefix);
        let expected = shape.to_vec();
        match self.source.shape(&name) {
            Some(found) if found == expected => {}
            Some(found) => return Err(BuildError::WrongShape { name, found, expected }),
            None if self.source.has_everything() => {}
            None => return Err(BuildError::MissingWeight { name, expected }),
        }
        let mut taken = self.taken.borrow_mut();
        // Tied weights are asked for twice and are one weight.
        let Taken { weights, indices, orders } = &mut *taken;
        let index = *indices.entry(name.clone()).or_insert_with(|| {
            weights.push(WeightInfo { name: name.clone(), shape: expected });
            weights.len() - 1
        });
        let weight = WeightId(u32::try_from(index).expect("a plan has fewer than 2^32 weights"));
        if let Some(order) = self.source.order(&name) {
            orders.insert(weight, order.to_vec());
        }
        Ok(weight)
    }

    /// The projection `name`: `name.weight` of (out_features, in_features), and `name.bias` where `bias` says so.
    pub fn linear(
        &self,
        name: &str,
        out_features: usize,
        in_features: usize,
        bias: bool,
    ) -> Result<Linear, BuildError> {
        let weight = self.get(&format!("{name}.weight"), [out_features, in_features])?;
        let bias = bias.then(|| self.get(&format!("{name}.bias"), [out_features])).transpose()?;
        Ok(Linear { weight, bias })
    }

    /// One projection for each of `count` experts, all of (out_features, in_features); `name` gives the name of each:
    /// `NAME.weight`, and `NAME.bias` where `bias` says so.
    ///
    /// # Panics
    /// When some of these weights were asked for before, or `count` is 0.
    pub fn experts(
        &self,
        name: impl Fn(usize) -> String,
        count: usize,
        [out_features, in_features]: [usize; 2],
        bias: bool,
    ) -> Result<Experts, BuildError> {
        let run = |what: &str, get: &dyn Fn(&str) -> Result<WeightId, BuildError>| {
            let ids: Vec<_> =
                (0..count).map(|expert| get(&format!("{}.{what}", name(expert)))).collect::<Result<_, _>>()?;
            let is_run = ids.iter().zip(ids[0].0..).all(|(id, expected)| id.0 == expected);
            assert!(is_run, "the weights of experts are asked for once, one after another");
            if let Some(&ordered) = ids.iter().find(|id| self.taken.borrow().orders.contains_key(id)) {
                let name = self.taken.borrow().weights[ordered.index()].name.clone();
                return Err(BuildError::OrderedExpert { name });
            }
            Ok(ids[0])
        };
        let first = run("weight", &|name| self.get(name, [out_features, in_features]))?;
        let bias = bias.then(|| run("bias", &|name| self.get(name, [out_features]))).transpose()?;
        Ok(Experts { first, bias, count })
    }

    /// The norm `name`: `name.weight` of (width,).
    pub fn norm(&self, name: &str, width: usize, eps: f32) -> Result<Norm, BuildError> {
        Ok(Norm { weight: self.get(&format!("{name}.weight"), [width])?, eps })
    }
}

/// A plan under construction. Shape mistakes in a model file are bugs and panic; a checkpoint that does not fit is an
/// error of [`Weights`].
pub struct Graph {
    values: Vec<ValueInfo>,
    ropes: Vec<Rope>,
    orders: Vec<Vec<u32>>,
    kv_layers: Vec<CacheLayer>,
    ops: Vec<Op>,
    taken: Rc<RefCell<Taken>>,
}

impl Graph {
    /// Builds a plan: `forward` writes the ops and returns the logits, (outputs, vocab_size).
    pub fn build<E: From<BuildError>>(
        model_type: &str,
        context_len: usize,
        source: &dyn WeightSource,
        forward: impl FnOnce(&mut Graph, &Weights<'_>) -> Result<Value, E>,
    ) -> Result<Plan, E> {
        let taken = Rc::<RefCell<Taken>>::default();
        let mut graph = Graph {
            values: vec![],
            ropes: vec![],
            orders: vec![],
            kv_layers: vec![],
            ops: vec![],
            taken: taken.clone(),
        };
        let logits = forward(&mut graph, &Weights { source, taken: &taken, prefix: String::new() })?;
        let Graph { values, ropes, orders, kv_layers, ops, .. } = graph;
        let Taken { weights, .. } = taken.take();
        Ok(Plan {
            model_type: model_type.to_owned(),
            vocab_size: values[logits.index()].width,
            values,
            weights,
            ropes,
            orders,
            kv_layers,
            ops,
            logits,
            context_len,
        })
    }

    /// Rows of the embedding table for the step's tokens: (tokens, hidden_size).
    pub fn embed(&mut self, table: WeightId, hidden_size: usize) -> Value {
        let out = self.define(Rows::Tokens, hidden_size);
        self.ops.push(Op::Embed { table, out });
        out
    }

    /// RMSNorm of each slice of `x` that is as wide as the norm's weight.
    pub fn rms_norm(&mut self, x: Value, norm: Norm) -> Value {
        let out = self.define_like(x);
        self.ops.push(Op::RmsNorm { x, norm, out });
        out
    }

    /// x · Wᵀ + b: (rows, out_features). Where the weight's columns have an order of their own, those of x are gathered first.
    pub fn linear(&mut self, x: Value, linear: Linear, out_features: usize) -> Value {
        let order = self.taken.borrow().orders.get(&linear.weight).cloned();
        let x = order.map_or(x, |order| self.gather_columns(x, order));
        let out = self.define(self.info(x).rows, out_features);
        self.ops.push(Op::Linear { x, linear, out });
        out
    }

    /// `out[t][i] = x[t][order[i]]`: (rows, numbers of the order). Asked for twice it is one value.
    pub fn gather_columns(&mut self, x: Value, order: Vec<u32>) -> Value {
        let width = order.len();
        // Matrices that multiply the same rows usually share an order, and it is one of the last.
        let order = self.orders.iter().rposition(|known| *known == order).unwrap_or_else(|| {
            self.orders.push(order);
            self.orders.len() - 1
        });
        let gathered = self.ops.iter().rev().find_map(|op| match *op {
            Op::GatherColumns { x: of, order: by, out } if (of, by) == (x, order) => Some(out),
            _ => None,
        });
        if let Some(gathered) = gathered {
            return gathered;
        }
        let out = self.define(self.info(x).rows, width);
        self.ops.push(Op::GatherColumns { x, order, out });
        out
    }

    /// Each head of `x` turned by its token's position.
    pub fn rope(&mut self, x: Value, rope: &Rope) -> Value {
        let index = self.ropes.iter().position(|known| known == rope).unwrap_or_else(|| {
            self.ropes.push(rope.clone());
            self.ropes.len() - 1
        });
        let out = self.define_like(x);
        self.ops.push(Op::Rope { x, rope: index, out });
        out
    }

    /// Causal attention of `q` over a new cache layer, to which this step's `k` and `v` are appended first.
    pub fn attention(&mut self, q: Value, k: Value, v: Value, heads: Heads) -> Value {
        let layer = self.kv_layers.len();
        let Heads { heads, kv_heads, head_dim, scale, window, sinks } = heads;
        self.kv_layers.push(KvLayer { kv_heads, head_dim }.into());
        self.ops.push(Op::KvWrite { layer, k, v });
        let out = self.define_like(q);
        self.ops.push(Op::Attention { q, attention: Attention { layer, heads, scale, window, sinks }, out });
        out
    }

    /// Each head of `x`, (rows, heads · in_features), by a matrix of its own: (rows, heads · out_features).
    pub fn head_linear(&mut self, x: Value, heads: Experts, out_features: usize) -> Value {
        let out = self.define(self.info(x).rows, heads.count * out_features);
        self.ops.push(Op::HeadLinear { x, heads, out });
        out
    }

    /// Causal attention of queries in the latent space over a new latent cache layer, to which this step's rows,
    /// `latent` beside `rope`, are appended first: (tokens, heads · dim), in the latent space.
    pub fn mla_attention(&mut self, q: [Value; 2], [latent, rope]: [Value; 2], heads: LatentHeads) -> Value {
        let layer = self.kv_layers.len();
        let [q_latent, q_rope] = q;
        let row = LatentLayer { dim: self.info(latent).width, rope: self.info(rope).width };
        self.kv_layers.push(row.into());
        self.ops.push(Op::LatentWrite { layer, latent, rope });
        let out = self.define_like(q_latent);
        let LatentHeads { heads, scale } = heads;
        self.ops.push(Op::MlaAttention { q_latent, q_rope, attention: MlaAttention { layer, heads, scale }, out });
        out
    }

    /// activation(gate) · up.
    pub fn glu(&mut self, gate: Value, up: Value, activation: Activation) -> Value {
        let out = self.define_like(gate);
        self.ops.push(Op::Glu { gate, up, activation, out });
        out
    }

    /// Chooses experts for each row by `logits`, (rows, experts): their ids and weights, each (rows, slots).
    pub fn route(&mut self, logits: Value, router: Router) -> (Value, Value) {
        let (rows, width) = (self.info(logits).rows, router.slots());
        let ids = self.define_as(ValueInfo { rows, width, kind: Kind::Index });
        let weights = self.define(rows, width);
        self.ops.push(Op::Route { logits, router, ids, weights });
        (ids, weights)
    }

    /// What the chosen experts make of `x`, which is one row for all of them, (rows, in_features), or a slice for each,
    /// (rows, top_k · in_features): (rows, top_k · out_features).
    pub fn expert_linear(&mut self, x: Value, ids: Value, experts: Experts, out_features: usize) -> Value {
        let ValueInfo { rows, width: top_k, .. } = self.info(ids);
        let out = self.define(rows, top_k * out_features);
        self.ops.push(Op::ExpertLinear { x, ids, experts, out });
        out
    }

    /// The sum of the slices of `x`, (rows, top_k · width), each times its weight, (rows, top_k): (rows, width).
    pub fn combine(&mut self, x: Value, weights: Value) -> Value {
        let ValueInfo { rows, width, .. } = self.info(x);
        let out = self.define(rows, width / self.info(weights).width);
        self.ops.push(Op::Combine { x, weights, out });
        out
    }

    /// Each row of `x` times the sigmoid of its gate, (rows, 1).
    pub fn gate_rows(&mut self, x: Value, gate: Value) -> Value {
        let out = self.define_like(x);
        self.ops.push(Op::GateRows { x, gate, out });
        out
    }

    /// a + b.
    pub fn add(&mut self, a: Value, b: Value) -> Value {
        let out = self.define_like(a);
        self.ops.push(Op::Add { a, b, out });
        out
    }

    /// The rows whose logits are wanted: (outputs, width).
    pub fn select_outputs(&mut self, x: Value) -> Value {
        let out = self.define(Rows::Outputs, self.info(x).width);
        self.ops.push(Op::SelectOutputs { x, out });
        out
    }

    fn info(&self, value: Value) -> ValueInfo {
        self.values[value.index()]
    }

    fn define_like(&mut self, x: Value) -> Value {
        self.define_as(self.info(x))
    }

    fn define(&mut self, rows: Rows, width: usize) -> Value {
        self.define_as(ValueInfo::activations(rows, width))
    }

    fn define_as(&mut self, info: ValueInfo) -> Value {
        self.values.push(info);
        Value(u32::try_from(self.values.len() - 1).expect("a plan has fewer than 2^32 values"))
    }
}

/// The heads of an attention layer, as a model file gives them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    /// `num_attention_heads`.
    pub heads: usize,
    /// `num_key_value_heads`.
    pub kv_heads: usize,
    /// Features in a head.
    pub head_dim: usize,
    /// Scores are q·k · scale.
    pub scale: f32,
    /// A token sees the last `window` positions, itself included; `None` sees all.
    pub window: Option<usize>,
    /// A logit for each query head that joins the softmax and has no value: (heads,).
    pub sinks: Option<WeightId>,
}

/// The heads of a latent attention layer, as a model file gives them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentHeads {
    /// `num_attention_heads`.
    pub heads: usize,
    /// Scores are q·k · scale.
    pub scale: f32,
}
