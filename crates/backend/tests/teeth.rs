//! The suite can fail: backends that are wrong in one small way each, and the part of the suite that must notice.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use backend::conformance::{Part, Sample, finds_fault, run_part};
use backend::reference::ReferenceBackend;
use backend::{Backend, BackendError, Claims, DeviceInfo, Executable, Observer};
use plan::{KvFormat, KvLayout, Norm, Op, Plan, RopeScaling, StepInput, StepShape};
use tensor::{Tensor, WeightFormat};

/// One way to be wrong.
#[derive(Clone, Copy)]
enum Fault {
    None,
    Plan(fn(&mut Plan)),
    Weights(fn(&mut Vec<f32>)),
    Input(fn(&mut StepInput)),
    Logits(fn(&StepInput, &mut Vec<f32>)),
}

/// The reference with a fault.
struct Faulty {
    reference: ReferenceBackend,
    fault: Fault,
}

impl Backend for Faulty {
    fn device(&self) -> &DeviceInfo {
        self.reference.device()
    }

    fn supports(&self, op: &Op, formats: &[WeightFormat]) -> bool {
        self.reference.supports(op, formats)
    }

    fn claims(&self) -> Claims {
        Claims {
            formats: vec![WeightFormat::F32],
            kv_formats: vec![KvFormat::F32],
            block_lens: vec![5],
            ..self.reference.claims()
        }
    }

    fn load(&self, plan: Arc<Plan>, weights: Vec<Tensor>, kv: KvLayout) -> Result<Box<dyn Executable>, BackendError> {
        let mut faulty = (*plan).clone();
        if let Fault::Plan(change) = self.fault {
            change(&mut faulty);
        }
        let change = |tensor: Tensor| match self.fault {
            Fault::Weights(change) => {
                let mut values = tensor.to_f32();
                change(&mut values);
                Tensor::from_f32(WeightFormat::F32, tensor.shape().to_vec(), &values).expect("the same shape")
            }
            _ => tensor,
        };
        let weights = weights.into_iter().map(change).collect();
        let inner = self.reference.load(Arc::new(faulty), weights, kv)?;
        Ok(Box::new(FaultyExecutable { inner, fault: self.fault, logits: Vec::new() }))
    }
}

struct FaultyExecutable {
    inner: Box<dyn Executable>,
    fault: Fault,
    logits: Vec<f32>,
}

impl Executable for FaultyExecutable {
    fn compile(&mut self, shape: StepShape) -> Result<(), BackendError> {
        self.inner.compile(shape)
    }

    fn replay_observed(&mut self, input: &StepInput, observer: &mut Observer<'_>) -> Result<&[f32], BackendError> {
        self.run(input, |inner, input| inner.replay_observed(input, observer).map(<[f32]>::to_vec))
    }

    fn replay(&mut self, input: &StepInput) -> Result<&[f32], BackendError> {
        self.run(input, |inner, input| inner.replay(input).map(<[f32]>::to_vec))
    }
}

impl FaultyExecutable {
    fn run(
        &mut self,
        input: &StepInput,
        replay: impl FnOnce(&mut dyn Executable, &StepInput) -> Result<Vec<f32>, BackendError>,
    ) -> Result<&[f32], BackendError> {
        let mut changed = input.clone();
        if let Fault::Input(change) = self.fault {
            change(&mut changed);
        }
        self.logits = replay(&mut *self.inner, &changed)?;
        if let Fault::Logits(change) = self.fault {
            change(input, &mut self.logits);
        }
        Ok(&self.logits)
    }
}

fn each_op(plan: &mut Plan, change: impl Fn(&mut Op)) {
    plan.ops.iter_mut().for_each(change);
}

fn each_norm(plan: &mut Plan, change: impl Fn(&mut Norm)) {
    each_op(plan, |op| match op {
        Op::RmsNorm { norm, .. } | Op::NormLinear { norm, .. } | Op::NormGlu { norm, .. } | Op::Logits { norm, .. } => {
            change(norm);
        }
        _ => {}
    });
}

fn check(part: Part, faults: &[(&str, Fault)]) {
    // A panic is noticed too.
    let run = |fault| {
        let backend = Faulty { reference: ReferenceBackend::new(), fault };
        catch_unwind(AssertUnwindSafe(|| finds_fault(&[&backend], part))).unwrap_or(true)
    };
    assert!(!run(Fault::None), "the suite fails without a fault");
    for (what, fault) in faults {
        assert!(run(*fault), "the suite does not notice {what}");
    }
}

#[test]
fn ops_notice_wrong_arithmetic() {
    check(
        Part::Ops,
        &[
            ("an eps that is off", Fault::Plan(|plan| each_norm(plan, |norm| norm.eps *= 1.1))),
            ("a score scale that is off by 1e-4", {
                Fault::Plan(|plan| {
                    each_op(plan, |op| {
                        if let Op::Attention { attention, .. } = op {
                            attention.scale *= 1.0001;
                        }
                    });
                })
            }),
            ("a window of one more", {
                Fault::Plan(|plan| {
                    each_op(plan, |op| {
                        if let Op::Attention { attention, .. } = op {
                            attention.window = attention.window.map(|window| window + 1);
                        }
                    });
                })
            }),
            (
                "a rotary base that is off",
                Fault::Plan(|plan| plan.ropes.iter_mut().for_each(|rope| rope.theta *= 1.001)),
            ),
            ("a stretch of the frequencies left out", {
                Fault::Plan(|plan| plan.ropes.iter_mut().for_each(|rope| rope.scaling = RopeScaling::None))
            }),
            ("the last column of a ragged row left out", {
                Fault::Weights(|weights| {
                    if let Some(last) = weights.last_mut() {
                        *last = 0.0;
                    }
                })
            }),
            ("weights in bf16", {
                Fault::Weights(|weights| {
                    weights.iter_mut().for_each(|weight| *weight = f32::from_bits(weight.to_bits() & 0xFFFF_0000));
                })
            }),
            ("NaN", Fault::Logits(|_, logits| logits.iter_mut().for_each(|logit| *logit = f32::NAN))),
            (
                "a row too few",
                Fault::Logits(|input, logits| logits.truncate(logits.len() - logits.len() / input.output_rows.len())),
            ),
        ],
    );
}

#[test]
fn caches_notice_wrong_blocks() {
    check(
        Part::Caches,
        &[
            ("copies that are not made", Fault::Input(|input| input.block_copies.clear())),
            ("a block table in another order", Fault::Input(|input| input.block_tables.reverse())),
            ("positions that are off by one", {
                Fault::Input(|input| {
                    for sequence in &mut input.sequences {
                        sequence.first_position = sequence.first_position.saturating_sub(1);
                    }
                })
            }),
        ],
    );
}

#[test]
fn models_notice_other_rows() {
    check(
        Part::Models,
        &[
            ("the logits of another row", {
                Fault::Input(|input| input.output_rows.iter_mut().for_each(|row| *row = row.saturating_sub(1)))
            }),
            ("an error of 1e-3", {
                Fault::Logits(|_, logits| logits.iter_mut().step_by(2).for_each(|logit| *logit *= 1.001))
            }),
        ],
    );
}

#[test]
fn batches_notice_one_bit() {
    check(
        Part::Batches,
        &[
            ("a last bit that depends on the size of the step", {
                Fault::Logits(|input, logits| {
                    if input.token_ids.len() >= 64 {
                        logits[3] = logits[3].next_up();
                    }
                })
            }),
            ("a last bit that depends on the other sequences", {
                Fault::Logits(|input, logits| {
                    if input.sequences.len() > 2 {
                        logits.iter_mut().for_each(|logit| *logit = logit.next_up());
                    }
                })
            }),
        ],
    );
}

#[test]
fn refusals_notice_what_is_run_anyway() {
    check(
        Part::Refusals,
        &[
            (
                "ids that are clamped",
                Fault::Input(|input| input.token_ids.iter_mut().for_each(|id| *id = (*id).min(1))),
            ),
            (
                "rows that are clamped",
                Fault::Input(|input| input.output_rows.iter_mut().for_each(|row| *row = (*row).min(2))),
            ),
        ],
    );
}

/// Both are within their bounds, but not the same to the bit as they claim.
#[test]
fn twins_that_differ_by_a_bit_are_noticed() {
    let with = |fault| Faulty { reference: ReferenceBackend::new(), fault };
    let right = with(Fault::None);
    let off = with(Fault::Logits(|_, logits| {
        if let Some(last) = logits.last_mut() {
            *last = last.next_up();
        }
    }));
    for part in [Part::Ops, Part::Models] {
        run_part(&[&right, &right], part, Sample::ALL);
        run_part(&[&off, &off], part, Sample::ALL);
        assert!(finds_fault(&[&right, &off], part), "{part}: the difference is not noticed");
    }
}
