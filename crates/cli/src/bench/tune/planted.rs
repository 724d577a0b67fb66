//! A fault that a test plants in the device that is tuned: one way to launch a kernel computes a quarter of each row.
//! Builds for tests alone have it, because all ways that kernels declare are right.

use std::sync::Arc;

use backend::{Backend, BackendError, Claims, DeviceInfo, Executable, Tuning};
use plan::{KvLayout, Op, Plan, StepInput, StepShape};
use tensor::{Tensor, WeightFormat};

/// The variable that plants the fault: `KEY WAY`, or a part of it that no other way has.
const VARIABLE: &str = "HOTMETAL_PLANT_WRONG_WAY";

/// `backend`, with the fault that the environment names, if it names one.
pub(super) fn plant(backend: Box<dyn Backend>, live: &'static Tuning) -> Box<dyn Backend> {
    match std::env::var(VARIABLE) {
        Ok(way) => Box::new(WrongWay { backend, live, way }),
        Err(_) => backend,
    }
}

/// A device with a wrong way, as far as checks use it.
struct WrongWay {
    backend: Box<dyn Backend>,
    live: &'static Tuning,
    way: String,
}

impl Backend for WrongWay {
    fn device(&self) -> &DeviceInfo {
        self.backend.device()
    }

    fn supports(&self, op: &Op, formats: &[WeightFormat]) -> bool {
        self.backend.supports(op, formats)
    }

    fn claims(&self) -> Claims {
        self.backend.claims()
    }

    fn load(&self, plan: Arc<Plan>, weights: Vec<Tensor>, kv: KvLayout) -> Result<Box<dyn Executable>, BackendError> {
        let inner = self.backend.load(plan, weights, kv)?;
        Ok(Box::new(WrongExecutable { inner, live: self.live, way: self.way.clone(), result: vec![] }))
    }
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
