//! The plan: *what* a model computes, as a short list of typed ops over named weights.
//!
//! A model file writes textbook ops through [`Graph`]; passes fuse them; a backend compiles
//! them. The reference interpreter is the executable meaning of every op, in f64, and the oracle of every kernel. [`StepInput`] is
//! all that changes between two steps of one compiled plan.
//!
//! Knows nothing of backends, devices, file formats or weight dtypes: a weight is a name and a shape here.

#![forbid(unsafe_code)]

mod build;
mod cost;
pub mod error_analysis;
mod hidden;
mod ir;
mod memory;
mod op;
mod ops;
mod passes;
pub mod reference;
pub mod sampling;
mod shapes;
mod step;
mod verify;

pub use build::{AnyShape, BuildError, Graph, Heads, WeightSource, Weights};
pub use cost::{Cost, StepCost};
pub use hidden::hidden_states;
pub use ir::{KvLayer, Plan, Rows, Value, ValueInfo, WeightId, WeightInfo};
pub use memory::{MemoryError, MemoryPlan};
pub use op::Op;
pub use ops::{Activation, Attention, Linear, Norm, Rope, RopeScaling, WrittenOut};
pub use passes::{fuse, restrict_outputs};
pub use step::{BlockCopy, FED, KvFormat, KvLayout, SequenceSpan, StepError, StepInput, StepShape};
pub use verify::{VerifyError, verify};

#[cfg(test)]
mod test_plans;
