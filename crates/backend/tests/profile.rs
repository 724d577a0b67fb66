//! What ops cost and what they are called, on a plan small enough to count by hand.

use backend::profile::{Cost, CostModel, OpInfo, Recorder, StepRecord};
use backend::reference::ReferenceBackend;
use backend::{Backend, BackendError};
use plan::{
    AnyShape, Attention, BlockCopy, BuildError, Graph, Heads, KvFormat, KvLayout, Op, Plan, Rope, RopeScaling, Rows,
    StepInput, StepShape, WeightId, fuse, restrict_outputs,
};
use tensor::{Tensor, WeightFormat};

const HIDDEN: usize = 8;
const VOCAB: usize = 16;
const HEADS: Heads = Heads { heads: 2, kv_heads: 1, head_dim: 4, scale: 0.5, window: None, sinks: None };

/// A decoder of two layers without a feed-forward part.
fn plan() -> Plan {
    let textbook: Result<_, BuildError> = Graph::build("test", 64, &AnyShape, |g, w| {
        let rope = Rope {
            head_dim: HEADS.head_dim,
            dims: HEADS.head_dim,
            theta: 100.0,
            scaling: RopeScaling::None,
            attention_factor: 1.0,
        };
        let mut x = g.embed(w.get("embed_tokens.weight", [VOCAB, HIDDEN])?, HIDDEN);
        for layer in 0..2 {
            let w = w.at("model.layers").at(layer);
            let h = g.rms_norm(x, w.norm("input_layernorm", HIDDEN, 1e-6)?);
            let q = g.linear(h, w.linear("q_proj", 8, HIDDEN, false)?, 8);
            let k = g.linear(h, w.linear("k_proj", 4, HIDDEN, false)?, 4);
            let v = g.linear(h, w.linear("v_proj", 4, HIDDEN, false)?, 4);
            let (q, k) = (g.rope(q, &rope), g.rope(k, &rope));
            let o = g.attention(q, k, v, HEADS);
            let o = g.linear(o, w.linear("o_proj", HIDDEN, 8, false)?, HIDDEN);
            x = g.add(x, o);
        }
        let x = g.rms_norm(x, w.norm("norm", HIDDEN, 1e-6)?);
        let x = g.select_outputs(x);
        Ok(g.linear(x, w.linear("lm_head", VOCAB, HIDDEN, false)?, VOCAB))
    });
    fuse(restrict_outputs(textbook.expect("every weight is there")))
}

/// `num_tokens` after `position` others; logits for the last.
fn step(num_tokens: usize, position: usize) -> StepInput {
    let mut input = StepInput::default();
    input.push_sequence(&vec![1; num_tokens], position, &[0, 1, 2, 3]);
    input.output_rows.push(num_tokens as u32 - 1);
    input
}

fn model(plan: &Plan) -> CostModel {
    // Four bytes an element.
    let weight_bytes = |weight: WeightId| 4 * plan.weight(weight).shape.iter().product::<usize>() as u64;
    CostModel::new(plan, &weight_bytes, KvFormat::F16)
}

/// Name and cost of each op.
fn costs(plan: &Plan, input: &StepInput) -> Vec<(&'static str, Cost)> {
    let model = model(plan);
    plan.ops.iter().enumerate().map(|(index, op)| (op.name(), model.of_op(index, input))).collect()
}

#[test]
fn costs_are_those_counted_by_hand() {
    let plan = plan();
    // Three tokens after five: they see 6, 7 and 8 positions. A position is 4 features of 2 bytes, in K and in V.
    let costs = costs(&plan, &step(3, 5));
    let of = |name: &str| costs.iter().filter(|(found, _)| *found == name).map(|&(_, cost)| cost).collect::<Vec<_>>();
    assert_eq!(of("embed"), [Cost { bytes: 3 * 8 * 4, flops: 0 }]);
    let qkv = Cost { bytes: 4 * (8 + 16 * 8), flops: 2 * 3 * 16 * 8 };
    // The head last, for one row: the same bytes, as it happens.
    assert_eq!(of("norm_linear"), [qkv, qkv, Cost { flops: 2 * 16 * 8, ..qkv }]);
    assert_eq!(of("rope_kv_write"), [Cost { bytes: 3 * 16, flops: 0 }; 2]);
    assert_eq!(of("attention"), [Cost { bytes: 8 * 16, flops: 4 * 2 * 4 * (6 + 7 + 8) }; 2]);
    // Of the last layer, only the row that gives logits is computed.
    let o = |rows: u64| Cost { bytes: 4 * 8 * 8, flops: 2 * rows * 8 * 8 };
    assert_eq!(of("linear_residual"), [o(3), o(1)]);
}

#[test]
fn copies_move_every_layer_twice() {
    let mut input = step(1, 0);
    assert_eq!(model(&plan()).of_copies(4, &input), Cost::default());
    input.block_copies.push(BlockCopy { from: 0, to: 1 });
    assert_eq!(model(&plan()).of_copies(4, &input), Cost { bytes: 2 * 4 * 2 * 16, flops: 0 });
}

#[test]
fn a_window_hides_what_lies_before_it() {
    let mut plan = plan();
    for op in &mut plan.ops {
        if let Op::Attention { attention: Attention { window, .. }, .. } = op {
            *window = Some(4);
        }
    }
    let (_, cost) = costs(&plan, &step(3, 5)).into_iter().find(|(name, _)| *name == "attention").expect("there is one");
    // The first row sees positions 2 to 5, the last 4 to 7.
    assert_eq!(cost, Cost { bytes: 6 * 16, flops: 4 * 2 * 4 * 12 });
    // A window longer than the text hides nothing.
    let (_, cost) = costs(&plan, &step(2, 0)).into_iter().find(|(name, _)| *name == "attention").expect("there is one");
    assert_eq!(cost, Cost { bytes: 2 * 16, flops: 4 * 2 * 4 * 3 });
}

#[test]
fn ops_know_their_layer_shape_and_formats() {
    let plan = plan();
    let formats = |weight: WeightId| match plan.weight(weight).name.contains("k_proj") {
        true => WeightFormat::BF16,
        false => WeightFormat::Q8_0,
    };
    let ops: Vec<_> = (0..plan.ops.len()).map(|index| OpInfo::of(&plan, index, &formats, "v".to_owned())).collect();
    let layers: Vec<_> = ops.iter().map(|op| (op.name, op.layer)).collect();
    for expected in [("embed", None), ("norm_linear", Some(0)), ("attention", Some(1)), ("norm_linear", None)] {
        assert!(layers.contains(&expected), "{expected:?} in {layers:?}");
    }
    assert_eq!(ops.iter().filter(|op| op.layer.is_none()).count(), 2, "{layers:?}");
    let shape = StepShape { tokens: 7, sequences: 1, outputs: 1 };
    let qkv = ops.iter().find(|op| op.name == "norm_linear").expect("there is one");
    assert_eq!((qkv.shape(shape), qkv.format()), ("7 × 8 → 16".to_owned(), "bf16+q8_0".to_owned()));
    let head = ops.last().expect("there are ops");
    assert_eq!((head.shape(shape), head.rows), ("1 × 8 → 16".to_owned(), Rows::Outputs));
    assert_eq!(ops[0].shape(shape), "7 × 8");
    let own = OpInfo::own("copy_blocks", "plain".to_owned());
    assert_eq!((own.shape(shape), own.format()), (String::new(), String::new()));
}

#[test]
fn a_recorder_shares_its_steps_and_gives_each_once() {
    let recorder = Recorder::new();
    let shared = recorder.clone();
    assert!(!shared.is_on());
    recorder.set_on(true);
    assert!(shared.is_on());
    let begin_ns = shared.now_ns();
    let shape = StepShape { tokens: 1, sequences: 1, outputs: 1 };
    let (ops, lanes) = ([].into(), [].into());
    shared.push(StepRecord {
        shape,
        begin_ns,
        submitted_ns: begin_ns,
        end_ns: shared.now_ns(),
        measured_ns: shared.now_ns(),
        recorded_ns: 0,
        ops,
        costs: vec![],
        lanes,
        events: vec![],
        alone_ns: vec![],
    });
    let steps = recorder.take();
    assert!(steps.len() == 1 && steps[0].begin_ns <= steps[0].end_ns && steps[0].end_ns <= steps[0].recorded_ns);
    assert!(steps[0].recorded_ns <= recorder.now_ns());
    assert!(shared.take().is_empty());
}

#[test]
fn a_backend_that_records_nothing_says_so() {
    let plan = plan();
    let weights = plan.weights.iter().map(|weight| {
        let len = weight.shape.iter().product();
        Tensor::from_f32(WeightFormat::F32, weight.shape.clone(), &vec![1.0; len]).expect("the shape's length")
    });
    let kv = KvLayout { format: KvFormat::F32, block_len: 4, num_blocks: 4 };
    let mut executable =
        ReferenceBackend::new().load(plan.clone().into(), weights.collect(), kv).expect("it runs all plans");
    let error = executable.record(Recorder::new()).expect_err("it records nothing");
    assert!(matches!(error, BackendError::NotRecorded { .. }));
    assert_eq!(error.to_string(), "this device does not record its steps; `--device cpu` does");
    let shape = StepShape { tokens: 1, sequences: 1, outputs: 1 };
    assert!(executable.variants(shape).is_err());
}
