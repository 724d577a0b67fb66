//! The reference interpreter as a backend: slow, exact, and able to run whatever a plan can say.

use std::sync::Arc;

use plan::reference::{Choices, Interpreter, RowPlace, Seen};
use plan::{KvLayout, Op, Plan, StepInput, StepShape};
use tensor::{Tensor, WeightFormat};

use crate::{Backend, BackendError, Claims, DeviceInfo, Executable, Observed, Observer, check_load};

/// The device `reference`.
#[derive(Clone, Debug)]
pub struct ReferenceBackend {
    device: DeviceInfo,
}

impl ReferenceBackend {
    /// The device's name in flags and reports.
    pub const NAME: &'static str = "reference";

    /// The backend. It has no memory limit of its own.
    pub fn new() -> Self {
        let device = DeviceInfo {
            name: Self::NAME.to_owned(),
            description: "the plan interpreter, f64, one thread".to_owned(),
            memory_bytes: u64::MAX,
            driver: None,
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

    fn claims(&self) -> Claims {
        Claims { bit_exact: true, same_bits: Some(Self::NAME), ..Claims::default() }
    }

    fn load(&self, plan: Arc<Plan>, weights: Vec<Tensor>, kv: KvLayout) -> Result<Box<dyn Executable>, BackendError> {
        check_load(self, &plan, &weights)?;
        let interpreter = Interpreter::new(plan, weights, kv)
            .map_err(|error| BackendError::Device { device: self.device.name.clone(), reason: error.to_string() })?;
        Ok(Box::new(Loaded { interpreter, result: Vec::new() }))
    }
}

struct Loaded {
    interpreter: Interpreter,
    result: Vec<f32>,
}

impl Executable for Loaded {
    fn compile(&mut self, _shape: StepShape) -> Result<(), BackendError> {
        Ok(())
    }

    fn replay(&mut self, input: &StepInput) -> Result<&[f32], BackendError> {
        self.replay_observed(input, &mut |_, _, _| {})
    }

    fn hidden_size(&self) -> Option<usize> {
        plan::hidden_states(self.interpreter.plan()).map(|hidden| hidden.value(hidden.logits).width)
    }

    fn replay_hidden(&mut self, input: &StepInput) -> Result<&[f32], BackendError> {
        self.result = narrow(&self.interpreter.run_hidden(input)?.ok_or(BackendError::NoHiddenStates)?);
        Ok(&self.result)
    }

    fn choose(&mut self, choices: Option<Choices>) -> Option<Seen> {
        self.interpreter.choose(choices)
    }

    fn replay_observed(&mut self, input: &StepInput, observer: &mut Observer<'_>) -> Result<&[f32], BackendError> {
        let trace = |op, _: &Op, value, elements: &[f64]| observer(op, Observed::Value(value), &narrow(elements));
        self.result = narrow(&self.interpreter.run_traced(input, trace)?);
        let rows = RowPlace::of_step(input, self.interpreter.cache().layout());
        for (index, op) in self.interpreter.plan().ops.iter().enumerate() {
            if let Some(layer) = op.written_layer() {
                let cache = self.interpreter.cache();
                let heads =
                    || rows.iter().flat_map(|row| (0..cache.layer(layer).kv_heads()).map(|head| (row.slot(), head)));
                let keys: Vec<_> = heads().flat_map(|(slot, head)| narrow(cache.k(layer, slot, head))).collect();
                observer(index, Observed::CacheKeys, &keys);
                if cache.layer(layer).latent().is_none() {
                    let values: Vec<_> = heads().flat_map(|(slot, head)| narrow(cache.v(layer, slot, head))).collect();
                    observer(index, Observed::CacheValues, &values);
                }
            }
        }
        Ok(&self.result)
    }
}

fn narrow(elements: &[f64]) -> Vec<f32> {
    elements.iter().map(|&element| element as f32).collect()
}
