//! What each op means, once, for every backend: one file for each op, with its name.
//!
//! A file has a view of the op's fields that implements [`Meaning`], and a plain f64 function that computes the op
//! where it is a textbook op. `op.rs` makes the view.

mod add;
mod attention;
mod combine;
mod embed;
mod expert_linear;
mod gate_rows;
mod gather_columns;
mod glu;
mod head_linear;
mod kv_write;
mod latent_rope_write;
mod latent_write;
mod linear;
mod linear_residual;
mod logits;
mod mla_attention;
mod moe_down;
mod moe_glu;
mod moe_route;
mod norm_glu;
mod norm_linear;
mod rms_norm;
mod rope;
mod rope_kv_write;
mod route;
mod select_outputs;

use crate::cost::Prices;
use crate::error_analysis::Bounds;
use crate::reference::Reference;
use crate::shapes::{Checked, Shapes};
use crate::{Op, Plan, StepCost, Value, ValueInfo, WeightId};

pub use attention::Attention;
pub use expert_linear::Experts;
pub use glu::Activation;
pub use latent_rope_write::LatentColumns;
pub use linear::Linear;
pub use mla_attention::MlaAttention;
pub use rms_norm::Norm;
pub use rope::{Rope, RopeScaling};
pub use route::{ExpertGroups, GroupScore, RouteWeights, Router, Scores};

pub(crate) use add::AddOp;
pub(crate) use attention::AttentionOp;
pub(crate) use combine::CombineOp;
pub(crate) use embed::EmbedOp;
pub(crate) use expert_linear::ExpertLinearOp;
pub(crate) use gate_rows::GateRowsOp;
pub(crate) use gather_columns::GatherColumnsOp;
pub(crate) use glu::GluOp;
pub(crate) use head_linear::HeadLinearOp;
pub(crate) use kv_write::{KvWriteOp, kv_write_bound};
pub(crate) use latent_rope_write::LatentRopeWriteOp;
pub(crate) use latent_write::LatentWriteOp;
pub(crate) use linear::{LinearOp, LinearWeights};
pub(crate) use linear_residual::LinearResidualOp;
pub(crate) use logits::LogitsOp;
pub(crate) use mla_attention::MlaAttentionOp;
pub(crate) use moe_down::MoeDownOp;
pub(crate) use moe_glu::MoeGluOp;
pub(crate) use moe_route::MoeRouteOp;
pub(crate) use norm_glu::NormGluOp;
pub(crate) use norm_linear::NormLinearOp;
pub(crate) use rms_norm::{NormWeights, RmsNormOp};
pub(crate) use rope::RopeOp;
pub(crate) use rope_kv_write::RopeKvWriteOp;
pub(crate) use route::RouteOp;
pub(crate) use select_outputs::SelectOutputsOp;

/// What an op means.
pub(crate) trait Meaning {
    /// The op's one name, everywhere: files, backends' folders, bench rows.
    fn name(&self) -> &'static str;

    /// What it reads and writes.
    fn operands(&self) -> Operands;

    /// The same op on other values: `map` gives the value that stands for each of its own.
    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op;

    /// Checks the shapes of its values and weights, which are all in range.
    fn check(&self, shapes: &Shapes<'_>) -> Checked;

    /// Whether each row of its results follows from the same row of its operands alone.
    fn is_row_by_row(&self) -> bool;

    /// What it costs.
    fn cost(&self, prices: &Prices<'_>) -> StepCost;

    /// What it computes.
    fn definition(&self) -> Definition<'_>;
}

/// What an op reads and writes.
#[derive(Default)]
pub(crate) struct Operands {
    /// The values that it reads.
    pub(crate) inputs: Vec<Value>,
    /// The values that it defines.
    pub(crate) outputs: Vec<Value>,
    /// The weights that it reads.
    pub(crate) weights: Vec<WeightId>,
    /// An index into [`Plan::ropes`].
    pub(crate) rope: Option<usize>,
    /// Indices into [`Plan::orders`].
    pub(crate) orders: Vec<usize>,
    /// What it does to the cache.
    pub(crate) cache: Option<Cache>,
    /// Those of its inputs and outputs that are ids of experts.
    pub(crate) indices: Vec<Value>,
    /// Whether it takes values of any kind.
    pub(crate) any_kind: bool,
}

/// What an op does to the cache of a layer, an index into [`Plan::kv_layers`].
#[derive(Clone, Copy)]
pub(crate) enum Cache {
    /// Reads what this step and earlier ones wrote.
    Reads(usize),
    /// Writes the rows of this step.
    Writes(usize),
}

impl Cache {
    /// The layer.
    pub(crate) fn layer(self) -> usize {
        let (Self::Reads(layer) | Self::Writes(layer)) = self;
        layer
    }
}

/// How it is said what an op computes.
pub(crate) enum Definition<'a> {
    /// An op that model files write: by arithmetic.
    Textbook(&'a dyn Textbook),
    /// An op that a pass makes: by the textbook ops that it stands for.
    Fused(&'a dyn Fused),
}

/// The arithmetic of a textbook op.
pub(crate) trait Textbook {
    /// Computes the op in f64, plainly.
    fn reference(&self, env: &mut Reference<'_>);

    /// Computes the op in f64 again, and how far a correct f32 kernel may be from each element.
    fn bound(&self, env: &mut Bounds<'_>);
}

/// The textbook ops that a fused op stands for. Its reference and its error bound follow from theirs.
pub(crate) trait Fused {
    /// Writes these ops to `out`.
    fn write_out(&self, plan: &Plan, out: &mut WrittenOut);
}

/// An op as textbook ops.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenOut {
    /// In execution order.
    pub ops: Vec<Op>,
    /// The shapes of the values that these ops hand to each other. They are numbered after the plan's own values.
    pub values: Vec<ValueInfo>,
    num_plan_values: usize,
}

impl WrittenOut {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self { ops: vec![], values: vec![], num_plan_values: plan.values.len() }
    }

    /// A value that the plan does not have.
    fn define(&mut self, info: ValueInfo) -> Value {
        self.values.push(info);
        let index = self.num_plan_values + self.values.len() - 1;
        Value(u32::try_from(index).expect("a plan has fewer than 2^32 values"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::compact;
    use crate::test_plans::{decoder, latent, mixture};
    use crate::{fuse, verify};

    #[test]
    fn what_is_written_out_is_textbook_and_fuses_back() {
        assert_eq!(check_written_out(decoder()).ops.len(), decoder().ops.len());
        assert_eq!(check_written_out(latent()).ops.len(), latent().ops.len());
        // The fused ops of a mixture normalise each for itself.
        assert!(check_written_out(mixture()).ops.len() > mixture().ops.len());
    }

    /// `plan` fused, and written out again.
    fn check_written_out(plan: Plan) -> Plan {
        let fused = fuse(plan);
        let num_values = fused.values.len();
        let mut textbook = Plan { ops: vec![], ..fused.clone() };
        for op in &fused.ops {
            let WrittenOut { ops, values, .. } = op.written_out(&fused);
            assert_eq!(op.is_row_by_row(), ops.iter().all(Op::is_row_by_row), "{}", op.name());
            // Each op numbers its own values from the same place on.
            let before = u32::try_from(textbook.values.len() - num_values).expect("a small plan");
            textbook.values.extend(values);
            for mut op in ops {
                assert!(op.meaning(|op| matches!(op.definition(), Definition::Textbook(_))), "{}", op.name());
                op.map_values(|value| if value.index() < num_values { value } else { Value(value.0 + before) });
                textbook.ops.push(op);
            }
        }
        compact(&mut textbook);
        verify(&textbook).unwrap();
        assert_eq!(fuse(textbook.clone()), fused);
        textbook
    }
}
