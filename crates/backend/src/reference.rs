//! The reference interpreter as a backend: slow, exact, and able to run whatever a plan can say.

use std::sync::Arc;

use plan::reference::Interpreter;
use plan::{KvLayout, Op, Plan, StepInput, StepShape};
use tensor::{Tensor, WeightFormat};

use crate::{Backend, BackendError, DeviceInfo, Executable, check_load};

/// The device `reference`.
#[derive(Clone, Debug)]
pub struct ReferenceBackend {
    device: DeviceInfo,
}

impl ReferenceBackend {
    /// The backend. It has no memory limit of its own.
    pub fn new() -> Self {
        let device = DeviceInfo {
            name: "reference".to_owned(),
            description: "the plan interpreter, f64, one thread".to_owned(),
            memory_bytes: u64::MAX,
        };
        Self { device }
    }
}

impl Default for ReferenceBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for ReferenceBackend {
    fn device(&self) -> &DeviceInfo {
        &self.device
    }

    fn supports(&self, _op: &Op, _formats: &[WeightFormat]) -> bool {
        true
    }

    fn load(&self, plan: Arc<Plan>, weights: Vec<Tensor>, kv: KvLayout) -> Result<Box<dyn Executable>, BackendError> {
        check_load(self, &plan, &weights)?;
        let interpreter = Interpreter::new(plan, weights, kv)
            .map_err(|error| BackendError::Device { device: self.device.name.clone(), reason: error.to_string() })?;
        Ok(Box::new(Loaded { interpreter, logits: Vec::new() }))
    }
}

struct Loaded {
    interpreter: Interpreter,
    logits: Vec<f32>,
}

impl Executable for Loaded {
    fn compile(&mut self, _shape: StepShape) -> Result<(), BackendError> {
        Ok(())
    }

    fn replay(&mut self, input: &StepInput) -> Result<&[f32], BackendError> {
        self.logits.clear();
        self.logits.extend(self.interpreter.run(input)?.iter().map(|&logit| logit as f32));
        Ok(&self.logits)
    }
}
