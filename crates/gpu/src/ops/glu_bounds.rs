//! The bounds of gated units, found on the device when a model is loaded: [`crate::glu_bounds`] says what they are for.

use plan::{Linear, Norm, Op, Plan, WeightId};
use tensor::Tensor;

use crate::driver::{Driver, DriverError};
use crate::glu_bounds::GluBounds;
use crate::kernels::sm90::gemm;
use crate::kernels::weight_norms;
use crate::launch::{GROUP_SIMDS, Region};
use crate::target::Target;
use crate::weights::{DeviceExperts, DeviceWeights};

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
    let gated: Vec<_> = plan.ops.iter().filter_map(|op| Gated::of(weights, op)).collect();
    if gated.is_empty() || target.batch_invariant || !gemm::may_be(target, 2) {
        return Ok(GluBounds::default());
    }
    let groups = target.multiprocessors * GROUPS;
    let found_len = groups * GROUP_SIMDS;
    let found_bytes = (found_len * size_of::<f32>()) as u64;
    let bytes = found_bytes * 2 * gated.len() as u64;
    let all = Region { address: driver.allocate(bytes)?, bytes };
    let parts = (0..).map(|place| all.part(place * found_bytes, found_bytes));
    let matrices = gated.iter().flat_map(|of| of.matrices.iter().map(move |matrix| (of.norm, matrix)));
    for ((norm, matrix), found) in matrices.zip(parts) {
        let gain = weights.vector(Some(norm.weight));
        let launch = match matrix {
            Matrix::One(linear) => weight_norms::launch(weights.get(linear.weight), gain, groups, found),
            Matrix::OfExperts(stack) => weight_norms::of_stack(stack, gain, groups, found),
        };
        driver.launch(&launch)?;
    }
    let mut found = vec![0f32; found_len * 2 * gated.len()];
    driver.download(all.address, bytemuck::cast_slice_mut(&mut found))?;
    driver.free(all.address);
    let most = |values: &[f32]| values.iter().fold(0f32, |most, &value| most.max(value.abs()));
    let bound = |matrix: &Matrix, squares: &[f32]| {
        let (row_len, bias) = match matrix {
            Matrix::One(linear) => (weights.get(linear.weight).row_len, linear.bias),
            Matrix::OfExperts(stack) => (stack.first.row_len, None),
        };
        let bias = bias.map_or(0.0, |bias| most(&tensors[bias.index()].to_f32()));
        (most(squares) * row_len as f32).sqrt() * ROUNDING + bias
    };
    let bounds = gated.iter().zip(found.chunks(2 * found_len)).map(|(of, found)| {
        let (of_gate, of_up) = found.split_at(found_len);
        let [gate, up] = &of.matrices;
        (of.key, bound(gate, of_gate) * bound(up, of_up))
    });
    Ok(GluBounds(bounds.collect()))
}

/// A projection of gated units, or the same of all experts.
enum Matrix {
    One(Linear),
    OfExperts(DeviceExperts),
}

/// The gate and the up projection of gated units, and by which weight they are known.
struct Gated {
    key: WeightId,
    norm: Norm,
    matrices: [Matrix; 2],
}

impl Gated {
    /// The gated units of `op`, if it has some. Experts with biases are left out, because no kernel asks for their bound.
    fn of(weights: &DeviceWeights, op: &Op) -> Option<Self> {
        match *op {
            Op::NormGlu { norm, gate, up, .. } => {
                Some(Self { key: gate.weight, norm, matrices: [gate, up].map(Matrix::One) })
            }
            Op::MoeGlu { norm, ref gate, ref up, .. } if gate.bias.is_none() && up.bias.is_none() => {
                let matrices = [gate, up].map(|experts| Matrix::OfExperts(weights.stack(experts)));
                Some(Self { key: gate.first, norm, matrices })
            }
            _ => None,
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use std::sync::Arc;

    use plan::fuse;
    use tensor::WeightFormat;
    use testing::tiny::tiny_model;

    use super::*;
    use crate::driver::sim::{SimDialect, SimDriver, SimFaults, ThreadOrder};
    use crate::target::tests::H200;

    /// The norm, and the projections of the gate and of the up projection, of all experts where there are some.
    fn gated(op: &Op) -> Option<(Norm, [Vec<Linear>; 2])> {
        match *op {
            Op::NormGlu { norm, gate, up, .. } => Some((norm, [vec![gate], vec![up]])),
            Op::MoeGlu { norm, ref gate, ref up, .. } => {
                let of = |experts: &plan::Experts| (0..experts.count).map(|expert| experts.linear(expert)).collect();
                Some((norm, [gate, up].map(of)))
            }
            _ => None,
        }
    }

    /// On the simulator: no row of RMS 1 makes more of a gated unit than its bound, and the row that makes most of a
    /// gate comes near it.
    #[test]
    fn bounds_are_those_of_the_weights_in_every_format() {
        let models = WeightFormat::ALL.map(|format| ("llama", format));
        let mixtures =
            [WeightFormat::BF16, WeightFormat::Q8_0, WeightFormat::NVFP4].map(|format| ("qwen3_moe", format));
        for (model, format) in models.into_iter().chain(mixtures) {
            let (textbook, tensors) = tiny_model(model, 7, format);
            let plan = Arc::new(fuse((*textbook).clone()));
            let target = Target { multiprocessors: 2, ..H200 };
            let mut driver = SimDriver::new(SimDialect::Cuda, ThreadOrder::Forward, 1 << 26, SimFaults::default());
            let weights = DeviceWeights::upload(&mut driver, &plan, &tensors, &mut |_, _| ()).unwrap();
            let bounds = measure(&mut driver, &target, &plan, &weights, &tensors).unwrap();
            let mut num_gated = 0;
            for (norm, matrices) in plan.ops.iter().filter_map(gated) {
                let gain = tensors[norm.weight.index()].to_f32();
                let largest = |linear: &Linear| {
                    let weight = tensors[linear.weight.index()].to_f32();
                    let squares = weight
                        .chunks(gain.len())
                        .map(|row| row.iter().zip(&gain).map(|(w, g)| f64::from(w * g).powi(2)).sum::<f64>());
                    let bias = linear.bias.map_or(vec![], |bias| tensors[bias.index()].to_f32());
                    let bias = bias.iter().fold(0.0, |most, value| value.abs().max(most));
                    (squares.fold(0.0, f64::max) * gain.len() as f64).sqrt() + f64::from(bias)
                };
                let key = matrices[0][0].weight;
                let expected: f64 = matrices.iter().map(|of| of.iter().map(largest).fold(0.0, f64::max)).product();
                let found = f64::from(bounds.0[&key]);
                assert!((1.0..1.06).contains(&(found / expected)), "{model} {format:?}: {found}, not {expected}");
                num_gated += 1;
            }
            assert!(num_gated > 0);
        }
    }
}
