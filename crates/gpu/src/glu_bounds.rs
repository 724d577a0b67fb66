//! What a gated unit cannot exceed, from its weights alone: so that its result can be written as f16 with a scale that
//! is known before any of it is.

use std::collections::BTreeMap;

use plan::{Activation, WeightId};
#[cfg(test)]
use plan::{Op, Plan};

/// The bound of each gated unit of a plan, by the weight of its gate; of experts, of all of them, by that of the first.
#[derive(Default)]
pub(crate) struct GluBounds(pub(crate) BTreeMap<WeightId, f32>);

impl GluBounds {
    /// The same bound for all gated units.
    #[cfg(test)]
    pub(crate) fn of_all(plan: &Plan, bound: f32) -> Self {
        let gates = plan.ops.iter().filter_map(|op| match *op {
            Op::NormGlu { gate, .. } => Some((gate.weight, bound)),
            Op::MoeGlu { ref gate, .. } => Some((gate.first, bound)),
            _ => None,
        });
        Self(gates.collect())
    }

    /// The power of two by which the result of the gated unit of `gate` is multiplied so that f16 holds it, whatever
    /// the rows; `None` where weights allow no such promise.
    pub(crate) fn f16_factor(&self, gate: WeightId, activation: Activation) -> Option<f32> {
        match activation {
            Activation::ClampedSwiglu => f16_factor(CLAMPED_MOST),
            _ => f16_factor(*self.0.get(&gate)?),
        }
    }
}

/// What [`Activation::ClampedSwiglu`] cannot exceed, whatever the weights: both factors are clamped.
const CLAMPED_MOST: f32 = Activation::SWIGLU_LIMIT * (Activation::SWIGLU_LIMIT + 1.0);

/// The exponent of the largest bound with a factor. With a larger one f16 would keep too little of what is far smaller
/// than the bound: at this one, numbers that it tells apart differ by 2^-15 at least, where results are of the order of
/// one. In Qwen2.5-Coder-0.5B and SmolLM2-135M bounds lie between 2^9 and 2^17.
const EXPONENT_MAX: f32 = 24.0;

/// Brings `bound` to between 2^14 and 2^15. What is 2^-29 of it is still a normal number of f16.
fn f16_factor(bound: f32) -> Option<f32> {
    let exponent = bound.max(f32::MIN_POSITIVE).log2().ceil();
    (exponent <= EXPONENT_MAX).then(|| (15.0 - exponent).min(100.0).exp2())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_comes_close_to_what_f16_holds() {
        for bound in [1e-3, 0.75, 1.0, 3.0, 4096.0, 1.6e7] {
            let factor = f16_factor(bound).unwrap();
            assert!((16_384.0..=32_768.0).contains(&(bound * factor)), "{bound} times {factor}");
            assert_eq!(factor.log2().fract(), 0.0);
        }
        assert_eq!(f16_factor(0.0), Some(100f32.exp2()));
        assert_eq!(f16_factor(f32::INFINITY), None);
        assert_eq!(f16_factor(1.7e7), None, "what is of the order of one would lose too much");
        assert_eq!(
            f16_factor(f32::NAN),
            Some(100f32.exp2()),
            "whose products are none, whatever they are multiplied by"
        );
    }
}
