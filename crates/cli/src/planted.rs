//! Faults that tests plant in a device, so that checks are seen to catch them. Builds for tests alone have them, because
//! nothing that a user gives to the program makes a device compute wrongly, and all ways that kernels declare are right.

use std::sync::Arc;

use backend::{Backend, BackendError, Claims, DeviceInfo, Executable, Footprint, Tuning};
use plan::{KvLayout, Op, Plan, StepInput, StepShape};
use tensor::{Tensor, WeightFormat};

/// `backend`. If `HOTMETAL_PLANT_WRONG_BIT` is `NAME:BIT`, one bit of this weight is wrong in the device's memory, counted
/// from the lowest bit of its first byte. It is right in the file and on other devices.
pub(crate) fn wrong_bit(backend: Box<dyn Backend>) -> Box<dyn Backend> {
    let Ok(fault) = std::env::var("HOTMETAL_PLANT_WRONG_BIT") else { return backend };
    let (weight, bit) = fault.rsplit_once(':').expect("a weight and a bit: `NAME:BIT`");
    let bit = bit.parse().expect("the number of a bit");
    Box::new(Planted { backend, fault: Fault::Bit { weight: weight.to_owned(), bit } })
}

/// `backend`. If `HOTMETAL_PLANT_WRONG_WAY` is `KEY WAY`, or a part of it that no other way has, the device computes a
/// quarter of each row while `live` has this way to launch a kernel.
pub(crate) fn wrong_way(backend: Box<dyn Backend>, live: &'static Tuning) -> Box<dyn Backend> {
    match std::env::var("HOTMETAL_PLANT_WRONG_WAY") {
        Ok(way) => Box::new(Planted { backend, fault: Fault::Way { live, way } }),
        Err(_) => backend,
    }
}

/// What is wrong.
enum Fault {
    Bit { weight: String, bit: usize },
    Way { live: &'static Tuning, way: String },
}

/// A device with a fault.
struct Planted {
    backend: Box<dyn Backend>,
    fault: Fault,
}

impl Backend for Planted {
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

    fn load(
        &self,
        plan: Arc<Plan>,
        mut weights: Vec<Tensor>,
        kv: KvLayout,
    ) -> Result<Box<dyn Executable>, BackendError> {
        match &self.fault {
            Fault::Bit { weight, bit } => {
                // Models without the weight are right.
                if let Some(place) = plan.weights.iter().position(|info| info.name == *weight) {
                    weights[place] = with_wrong_bit(&weights[place], *bit);
                }
                self.backend.load(plan, weights, kv)
            }
            Fault::Way { live, way } => {
                let inner = self.backend.load(plan, weights, kv)?;
                Ok(Box::new(WrongExecutable { inner, live, way: way.clone(), result: vec![] }))
            }
        }
    }
}

fn with_wrong_bit(tensor: &Tensor, bit: usize) -> Tensor {
    let mut bytes = tensor.bytes().to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    Tensor::new(tensor.format(), tensor.shape().to_vec(), bytes.into()).expect("a tensor of the same size")
}

struct WrongExecutable {
    inner: Box<dyn Executable>,
    live: &'static Tuning,
    way: String,
    result: Vec<f32>,
}

impl Executable for WrongExecutable {
    fn compile(&mut self, shape: StepShape) -> Result<(), BackendError> {
        self.inner.compile(shape)
    }

    fn replay(&mut self, input: &StepInput) -> Result<&[f32], BackendError> {
        self.result = self.inner.replay(input)?.to_vec();
        let is_wrong = |(key, way): &(String, String)| format!("{key} {way}").contains(&self.way);
        if self.live.choices().iter().any(is_wrong) {
            let width = self.result.len() / input.output_rows.len().max(1);
            self.result.chunks_exact_mut(width).for_each(|row| row[width / 4..].fill(0.0));
        }
        Ok(&self.result)
    }

    fn forget_programs(&mut self) {
        self.inner.forget_programs();
    }

    fn settle(&mut self) -> Result<(), BackendError> {
        self.inner.settle()
    }
}
