//! A fault that a test plants in the device under comparison: one bit of one weight is wrong in the device's memory, and
//! right in the file and on the other device. Builds for tests alone have it, because nothing that a user gives to the
//! program makes a device compute wrongly.

use std::sync::Arc;

use backend::{Backend, BackendError, Claims, Copied, DeviceInfo, Executable, Footprint};
use plan::{KvLayout, Op, Plan, StepShape};
use tensor::{Tensor, WeightFormat};

/// The variable that plants the fault: `NAME:BIT`, the weight and which of its bits is wrong, counted from the lowest bit
/// of its first byte.
const VARIABLE: &str = "HOTMETAL_PLANT_WRONG_BIT";

/// `backend`, with the fault that the environment names, if it names one.
pub(super) fn plant(backend: Box<dyn Backend>) -> Box<dyn Backend> {
    let Ok(fault) = std::env::var(VARIABLE) else { return backend };
    let (weight, bit) = fault.rsplit_once(':').expect("a weight and a bit: `NAME:BIT`");
    let bit = bit.parse().expect("the number of a bit");
    Box::new(WrongBit { backend, weight: weight.to_owned(), bit })
}

/// A device on which one bit of one weight is wrong.
struct WrongBit {
    backend: Box<dyn Backend>,
    weight: String,
    bit: usize,
}

impl WrongBit {
    /// What lies in the device's memory. Models without the weight are right.
    fn spoil(&self, plan: &Plan, mut weights: Vec<Tensor>) -> Vec<Tensor> {
        if let Some(place) = plan.weights.iter().position(|weight| weight.name == self.weight) {
            let tensor = &weights[place];
            let mut bytes = tensor.bytes().to_vec();
            bytes[self.bit / 8] ^= 1 << (self.bit % 8);
            let spoilt = Tensor::new(tensor.format(), tensor.shape().to_vec(), bytes.into());
            weights[place] = spoilt.expect("a tensor of the same size");
        }
        weights
    }
}

impl Backend for WrongBit {
    fn device(&self) -> &DeviceInfo {
        self.backend.device()
    }

    fn supports(&self, op: &Op, formats: &[WeightFormat]) -> bool {
        self.backend.supports(op, formats)
    }

    fn claims(&self) -> Claims {
        self.backend.claims()
    }

    fn footprint(&self, plan: &Plan, weights: &[Tensor], kv: &KvLayout, largest: StepShape) -> Option<Footprint> {
        self.backend.footprint(plan, weights, kv, largest)
    }

    fn weight_bytes(&self, weights: &[Tensor]) -> Vec<u64> {
        self.backend.weight_bytes(weights)
    }

    fn load(&self, plan: Arc<Plan>, weights: Vec<Tensor>, kv: KvLayout) -> Result<Box<dyn Executable>, BackendError> {
        let weights = self.spoil(&plan, weights);
        self.backend.load(plan, weights, kv)
    }

    fn load_watched(
        &self,
        plan: Arc<Plan>,
        weights: Vec<Tensor>,
        kv: KvLayout,
        copied: Copied<'_>,
    ) -> Result<Box<dyn Executable>, BackendError> {
        let weights = self.spoil(&plan, weights);
        self.backend.load_watched(plan, weights, kv, copied)
    }
}
