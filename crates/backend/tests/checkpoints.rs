//! A comparison op by op finds what is wrong and says where: backends with a fault in one op of one layer, and the place
//! that has to be named.

use std::sync::Arc;

use backend::conformance::checkpoints::{Comparison, Side, Work, compare, num_ops};
use backend::conformance::parity;
use backend::reference::ReferenceBackend;
use backend::{Backend, BackendError, Claims, DeviceInfo, Executable, Observer};
use plan::{KvFormat, KvLayout, Op, Plan, StepInput, StepShape};
use tensor::{Tensor, WeightFormat};
use testing::{MODEL_TYPES, tiny_model};

const KV: KvLayout = KvLayout { format: KvFormat::F32, block_len: 5, num_blocks: 60 };

/// A fault in the one op that reads the weight of this name, or in the ops that come from it.
#[derive(Clone, Copy)]
enum Fault {
    None,
    /// A change of the first op of this name that reads a weight whose name contains the other.
    Op(&'static str, &'static str, fn(&mut Op)),
    /// A change of the n-th attention, which has no weight.
    Attention(usize, fn(&mut plan::Attention)),
    /// A change of the values of the weights whose names contain this.
    Weight(&'static str, fn(&mut [f32])),
}

/// The reference under another name, with a fault.
struct Faulty {
    reference: ReferenceBackend,
    device: DeviceInfo,
    fault: Fault,
}

impl Faulty {
    fn new(fault: Fault) -> Self {
        let reference = ReferenceBackend::new();
        let device = DeviceInfo { name: "faulty".to_owned(), ..reference.device().clone() };
        Self { reference, device, fault }
    }
}

impl Backend for Faulty {
    fn device(&self) -> &DeviceInfo {
        &self.device
    }

    fn supports(&self, op: &Op, formats: &[WeightFormat]) -> bool {
        self.reference.supports(op, formats)
    }

    fn claims(&self) -> Claims {
        Claims { same_bits: None, ..self.reference.claims() }
    }

    fn load(&self, plan: Arc<Plan>, weights: Vec<Tensor>, kv: KvLayout) -> Result<Box<dyn Executable>, BackendError> {
        let mut faulty = (*plan).clone();
        let mut weights = weights;
        match self.fault {
            Fault::None => {}
            Fault::Op(name, weight, change) => {
                let reads = |op: &&mut Op| {
                    op.name() == name && op.weights().iter().any(|&id| plan.weight(id).name.contains(weight))
                };
                change(faulty.ops.iter_mut().find(reads).expect("the op of the fault"));
            }
            Fault::Attention(wanted, change) => {
                for op in &mut faulty.ops {
                    if let Op::Attention { attention, .. } = op
                        && attention.layer == wanted
                    {
                        change(attention);
                    }
                }
            }
            Fault::Weight(name, change) => {
                for (tensor, info) in weights.iter_mut().zip(&plan.weights).filter(|(_, info)| info.name.contains(name))
                {
                    let mut values = tensor.to_f32();
                    change(&mut values);
                    *tensor = Tensor::from_f32(WeightFormat::F32, info.shape.clone(), &values).expect("the same shape");
                }
            }
        }
        let inner = self.reference.load(Arc::new(faulty), weights, kv)?;
        Ok(Box::new(FaultyExecutable { inner }))
    }
}

/// Shows what the inner one shows.
struct FaultyExecutable {
    inner: Box<dyn Executable>,
}

impl Executable for FaultyExecutable {
    fn compile(&mut self, shape: StepShape) -> Result<(), BackendError> {
        self.inner.compile(shape)
    }

    fn replay(&mut self, input: &StepInput) -> Result<&[f32], BackendError> {
        self.inner.replay(input)
    }

    fn replay_observed(&mut self, input: &StepInput, observer: &mut Observer<'_>) -> Result<&[f32], BackendError> {
        self.inner.replay_observed(input, observer)
    }
}

fn compared(model_type: &str, fault: Fault) -> Comparison {
    let (textbook, weights) = tiny_model(model_type, 31, WeightFormat::F32);
    let (faulty, reference) = (Faulty::new(fault), ReferenceBackend::new());
    let (device, other) = (Side::new(&faulty, &textbook), Side::new(&reference, &textbook));
    assert_ne!(device.plan, other.plan, "fused against textbook");
    let work = Work::mixed(&textbook, weights, KV);
    let mut ops = 0;
    let comparison = compare(&device, &other, &work, &mut || ops += 1).unwrap();
    assert_eq!(ops, num_ops(&device, &other, &work), "progress reaches its end");
    // Keys and values of each layer, or the rows of a latent one.
    let planes = device.plan.kv_layers.iter().map(|layer| if layer.latent().is_some() { 1 } else { 2 });
    let results = device.plan.values.len() + planes.sum::<usize>();
    assert_eq!((comparison.checkpoints.len(), comparison.in_place.len()), (results, results));
    comparison
}

#[test]
fn without_a_fault_there_is_nothing_to_find() {
    for model_type in MODEL_TYPES {
        let comparison = compared(model_type, Fault::None);
        assert!(comparison.first_beyond.is_none(), "{:?}", comparison.first_beyond);
        // A sum has no error but the rounding of its result, and the reference adds numbers that it does not show in full.
        let wrong = comparison.in_place.iter().find(|at| at.share > 1.0 && at.place.op != "add");
        assert!(wrong.is_none(), "{wrong:?}");
        assert!(comparison.checkpoints.iter().all(|at| at.nmse == 0.0 && at.cosine > 0.999_999));
    }
}

#[test]
fn a_planted_fault_is_found_and_named() {
    let faults: [(&str, &str, Fault); 7] = [
        ("an eps that is off", "layer 1 norm_glu", {
            Fault::Op("norm_glu", "layers.1.", |op| {
                if let Op::NormGlu { norm, .. } = op {
                    norm.eps *= 50.0;
                }
            })
        }),
        ("a scale that is off by one in a thousand", "layer 1 attention", {
            Fault::Attention(1, |attention| attention.scale *= 1.001)
        }),
        ("a window of one less", "layer 0 attention", Fault::Attention(0, |attention| attention.window = Some(3))),
        ("one weight of a projection", "layer 1 norm_linear (self_attn.k_proj)", {
            Fault::Weight("layers.1.self_attn.k_proj.weight", |weights| weights[5] += 0.01)
        }),
        ("one weight of the last projection of a layer", "layer 0 linear_residual (mlp.down_proj)", {
            Fault::Weight("layers.0.mlp.down_proj.weight", |weights| weights[7] -= 0.01)
        }),
        ("the norm of the keys", "layer 1 rope_kv_write (keys)", {
            Fault::Op("rope_kv_write", "layers.1.", |op| {
                if let Op::RopeKvWrite { k_norm: Some(norm), .. } = op {
                    norm.eps *= 50.0;
                }
            })
        }),
        ("the final norm", "norm_linear (", Fault::Weight("model.norm.weight", |weights| weights[0] *= 1.01)),
    ];
    for model_type in ["llama", "qwen3"] {
        for (what, expected, fault) in faults {
            // Llama's keys have no norm.
            if expected.contains("rope") && model_type != "qwen3" {
                continue;
            }
            let comparison = compared(model_type, fault);
            let beyond = comparison.first_beyond.unwrap_or_else(|| panic!("{model_type}: {what} is not noticed"));
            assert!(beyond.place.to_string().starts_with(expected), "{model_type}: {what}: {}", beyond.place);
            assert!(beyond.nmse > beyond.nmse_max && beyond.max_abs > 0.0);
            let in_place =
                comparison.first_out_of_bound.unwrap_or_else(|| panic!("{model_type}: {what} is not noticed in place"));
            assert_eq!(in_place.place, beyond.place, "{model_type}: {what}, in place");
            // What follows from the fault is not wrong in itself.
            let wrong: Vec<_> = comparison.in_place.iter().filter(|result| result.share > 1.0).collect();
            assert!(wrong.iter().all(|result| result.place.op == in_place.place.op), "{model_type}: {what}: {wrong:?}");
        }
    }
}

#[test]
fn what_is_not_finite_is_named() {
    let fault = Fault::Weight("layers.1.mlp.up_proj.weight", |weights| weights[3] = f32::INFINITY);
    let beyond = compared("mistral", fault).first_beyond.expect("infinity is noticed");
    assert_eq!((beyond.place.to_string().as_str(), beyond.not_finite), ("layer 1 norm_glu", Some("the device")));
}

#[test]
fn the_worst_element_is_where_the_fault_is() {
    let (textbook, _) = tiny_model("llama", 31, WeightFormat::F32);
    let k_proj = textbook.weights.iter().find(|weight| weight.name.ends_with("0.self_attn.k_proj.weight")).unwrap();
    let fault = Fault::Weight("layers.0.self_attn.k_proj.weight", |weights| weights[103] += 1.0);
    let (column, columns) = (103 / k_proj.shape[1], k_proj.shape[0]);
    assert!(0 < column && column + 1 < columns, "neither the first nor the last");
    assert_eq!(compared("llama", fault).first_beyond.unwrap().at.1, column);
}

#[test]
fn a_fault_shows_in_the_text_too() {
    let run = |fault| {
        let (textbook, weights) = tiny_model("qwen2", 31, WeightFormat::F32);
        let (faulty, reference) = (Faulty::new(fault), ReferenceBackend::new());
        let (device, other) = (Side::new(&faulty, &textbook), Side::new(&reference, &textbook));
        let work = Work { weights, kv: KV, steps: vec![] };
        let mut tokens = 0;
        let parity = parity::greedy(&device, &other, &work, &[1, 2, 3], 128, &mut || tokens += 1).unwrap();
        assert_eq!((tokens, parity.token_ids.len()), (128, 128));
        parity
    };
    let right = run(Fault::None);
    assert!(right.holds() && right.equal == 128, "{right:?}");
    let wrong = run(Fault::Attention(1, |attention| attention.scale *= 1.5));
    assert!(!wrong.holds() && wrong.first_beyond == Some(0), "{wrong:?}");
    assert!(!wrong.mismatches.is_empty());
}
