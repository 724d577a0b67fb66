//! The bounds of gated units, found on the device when a model is loaded: [`crate::glu_bounds`] says what they are for.

use plan::{Linear, Op, Plan};
use tensor::Tensor;

use crate::driver::{Driver, DriverError};
use crate::glu_bounds::GluBounds;
use crate::kernels::sm90::gemm;
use crate::kernels::weight_norms;
use crate::launch::{GROUP_SIMDS, Region};
use crate::target::Target;
use crate::weights::DeviceWeights;

/// Groups of `kernels/weight_norms.h` for each multiprocessor.
const GROUPS: usize = 8;
/// Weights and activations of a gemm are rounded to f16 first.
const ROUNDING: f32 = 1.01;

/// Reads the weights of all gated units once, where `target` has kernels that want to know.
///
/// A row of RMS 1 has the norm √k, so a product with row j of a matrix is √k · ‖w_j ∘ gain‖ at most, by Cauchy and
/// Schwarz; and no activation makes anything larger.
pub(crate) fn measure(
    driver: &mut dyn Driver,
    target: &Target,
    plan: &Plan,
    weights: &DeviceWeights,
    tensors: &[Tensor],
) -> Result<GluBounds, DriverError> {
    let gated = plan.ops.iter().filter_map(|op| match *op {
        Op::NormGlu { norm, gate, up, .. } => Some((norm, gate, up)),
        _ => None,
    });
    let gated: Vec<_> = gated.collect();
    if gated.is_empty() || target.batch_invariant || !gemm::may_be(target, 2) {
        return Ok(GluBounds::default());
    }
    let groups = target.multiprocessors * GROUPS;
    let found_len = groups * GROUP_SIMDS;
    let found_bytes = (found_len * size_of::<f32>()) as u64;
    let bytes = found_bytes * 2 * gated.len() as u64;
    let all = Region { address: driver.allocate(bytes)?, bytes };
    let parts = (0..).map(|place| all.part(place * found_bytes, found_bytes));
    let linears = gated.iter().flat_map(|&(norm, gate, up)| [(norm, gate), (norm, up)]);
    for ((norm, linear), found) in linears.zip(parts) {
        let (weight, gain) = (weights.get(linear.weight), weights.vector(Some(norm.weight)));
        driver.launch(&weight_norms::launch(weight, gain, groups, found))?;
    }
    let mut found = vec![0f32; found_len * 2 * gated.len()];
    driver.download(all.address, bytemuck::cast_slice_mut(&mut found))?;
    driver.free(all.address);
    let most = |values: &[f32]| values.iter().fold(0f32, |most, &value| most.max(value.abs()));
    let bound = |linear: Linear, squares: &[f32]| {
        let bias = linear.bias.map_or(0.0, |bias| most(&tensors[bias.index()].to_f32()));
        (most(squares) * weights.get(linear.weight).row_len as f32).sqrt() * ROUNDING + bias
    };
    let bounds = gated.iter().zip(found.chunks(2 * found_len)).map(|(&(_, gate, up), found)| {
        let (of_gate, of_up) = found.split_at(found_len);
        (gate.weight, bound(gate, of_gate) * bound(up, of_up))
    });
    Ok(GluBounds(bounds.collect()))
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;

    /// On the simulator: no row of RMS 1 makes more of a gated unit than its bound, and the row that makes most of a
    /// gate comes near it.
    #[test]
    fn bounds_are_those_of_the_weights_in_every_format() {
        use std::sync::Arc;

        use plan::fuse;
        use tensor::WeightFormat;
        use testing::tiny::tiny_model;

        use crate::driver::sim::{SimDialect, SimDriver, SimFaults, ThreadOrder};
        use crate::target::tests::H200;

        for format in WeightFormat::ALL {
            let (textbook, tensors) = tiny_model("llama", 7, format);
            let plan = Arc::new(fuse((*textbook).clone()));
            let target = Target { multiprocessors: 2, ..H200 };
            let mut driver = SimDriver::new(SimDialect::Cuda, ThreadOrder::Forward, 1 << 26, SimFaults::default());
            let weights = DeviceWeights::upload(&mut driver, &plan, &tensors, &mut |_, _| ()).unwrap();
            let bounds = measure(&mut driver, &target, &plan, &weights, &tensors).unwrap();
            let gated = plan.ops.iter().filter_map(|op| match *op {
                Op::NormGlu { norm, gate, up, .. } => Some((norm, gate, up)),
                _ => None,
            });
            let mut num_gated = 0;
            for (norm, gate, up) in gated {
                let gain = tensors[norm.weight.index()].to_f32();
                let largest = |linear: Linear| {
                    let weight = tensors[linear.weight.index()].to_f32();
                    let squares = weight
                        .chunks(gain.len())
                        .map(|row| row.iter().zip(&gain).map(|(w, g)| f64::from(w * g).powi(2)).sum::<f64>());
                    let bias = linear.bias.map_or(vec![], |bias| tensors[bias.index()].to_f32());
                    let bias = bias.iter().fold(0.0, |most, value| value.abs().max(most));
                    (squares.fold(0.0, f64::max) * gain.len() as f64).sqrt() + f64::from(bias)
                };
                let (found, expected) = (f64::from(bounds.0[&gate.weight]), largest(gate) * largest(up));
                assert!((1.0..1.06).contains(&(found / expected)), "{format:?}: {found}, not {expected}");
                num_gated += 1;
            }
            assert!(num_gated > 0);
        }
    }
}
