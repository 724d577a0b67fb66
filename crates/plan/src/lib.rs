//! The plan: *what* a model computes, as a short list of typed ops over named weights.
//!
//! A model file writes textbook ops through [`Graph`]; passes fuse them; a backend compiles
//! them. The reference interpreter is the executable meaning of every op, in f64, and the oracle of every kernel. [`StepInput`] is
//! all that changes between two steps of one compiled plan.
//!
//! Knows nothing of backends, devices, file formats or weight dtypes: a weight is a name and a shape here.

#![forbid(unsafe_code)]

mod build;
mod cache;
mod cost;
pub mod error_analysis;
mod hidden;
mod memory;
mod op;
mod ops;
mod passes;
mod plan;
pub mod reference;
pub mod sampling;
mod shapes;
mod step;
mod value;
mod verify;
mod weight;

pub use build::{AnyShape, BuildError, Graph, Heads, LatentHeads, WeightSource, Weights};
pub use cache::{CacheLayer, KvFormat, KvLayer, KvLayout, LatentLayer};
pub use cost::{Cost, StepCost};
pub use hidden::hidden_states;
pub use memory::{MemoryError, MemoryPlan};
pub use op::Op;
pub use ops::{
    Activation, Attention, ExpertGroups, Experts, GroupScore, LatentColumns, Linear, MlaAttention, Norm, Rope,
    RopeScaling, RouteWeights, Router, Scores, WrittenOut,
};
pub use passes::{FUSIONS, Fusion, fuse, fuse_without, restrict_outputs, share_slots};
pub use plan::Plan;
pub use step::{BlockCopy, FED, SequenceSpan, StepError, StepInput, StepShape};
pub use value::{Kind, Rows, Value, ValueInfo};
pub use verify::{VerifyError, verify};
pub use weight::{WeightId, WeightInfo};

#[cfg(test)]
mod test_plans;
