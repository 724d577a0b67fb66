//! Weights: names and shapes.

/// A weight of the plan, by its place in [`Plan::weights`](crate::Plan::weights).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub(crate) u32);

impl WeightId {
    /// Its place in [`Plan::weights`](crate::Plan::weights), which is also its place in the list of tensors that a
    /// backend loads.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The name and shape of a weight; its storage format is the loader's and the backend's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightInfo {
    /// The checkpoint's name, `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Dimensions, outermost first: (out_features, in_features) for a projection.
    pub shape: Vec<usize>,
}
