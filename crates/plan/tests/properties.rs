//! Properties of passes and memory plans over random models and random steps.

use std::sync::Arc;

use plan::reference::Interpreter;
use plan::{KvFormat, KvLayout, MemoryPlan, Op, Plan, Rows, StepInput, StepShape, fuse, restrict_outputs, verify};
use tensor::{Tensor, WeightFormat};
use testing::{BlockPool, MODEL_TYPES, Rng, Sequence, tiny_model};

const SEEDS: std::ops::Range<u64> = 0..12;

/// Steps of three sequences that advance by random amounts, sometimes not at all, with random rows wanted.
fn steps(rng: &mut Rng, vocab_size: usize, kv: &KvLayout) -> Vec<StepInput> {
    let mut pool = BlockPool::new(kv, rng);
    let mut sequences: Vec<Sequence> = [3, 11, 24].map(|len| pool.sequence(rng.tokens(len, vocab_size))).into();
    let mut steps = Vec::new();
    while sequences.iter().any(|sequence| sequence.remaining() > 0) {
        let mut input = StepInput::default();
        for sequence in &mut sequences {
            let count = rng.below(10).min(sequence.remaining());
            if count > 0 {
                sequence.push_next(&mut input, count);
            }
        }
        input.output_rows.retain(|_| rng.below(3) > 0);
        steps.push(input);
    }
    steps
}

/// The logits of all steps, as bits.
fn bits(plan: Plan, weights: &[Tensor], kv: KvLayout, steps: &[StepInput]) -> Vec<u64> {
    let mut interpreter = Interpreter::new(Arc::new(plan), weights.to_vec(), kv).unwrap();
    let logits = steps.iter().flat_map(|step| interpreter.run(step).unwrap());
    logits.inspect(|logit| assert!(logit.is_finite())).map(f64::to_bits).collect()
}

#[test]
fn passes_change_no_bit_of_the_reference() {
    for model_type in MODEL_TYPES {
        for seed in SEEDS {
            let format = WeightFormat::ALL[seed as usize % WeightFormat::ALL.len()];
            let kv_format = if seed % 2 == 0 { KvFormat::F32 } else { KvFormat::F16 };
            let kv = KvLayout { format: kv_format, block_len: 1 + seed as usize, num_blocks: 60 };
            let (textbook, weights) = tiny_model(model_type, seed, format);
            let textbook = (*textbook).clone();
            let steps = steps(&mut Rng::new(seed), textbook.vocab_size, &kv);
            let expected = bits(textbook.clone(), &weights, kv, &steps);
            for plan in
                [fuse(textbook.clone()), restrict_outputs(textbook.clone()), fuse(restrict_outputs(textbook.clone()))]
            {
                assert!(bits(plan.clone(), &weights, kv, &steps) == expected, "{model_type}, seed {seed}:\n{plan}");
            }
        }
    }
}

#[test]
fn tracing_shows_every_value_in_its_shape() {
    let (textbook, weights) = tiny_model("qwen3", 1, WeightFormat::F32);
    let kv = KvLayout { format: KvFormat::F32, block_len: 16, num_blocks: 8 };
    for plan in [(*textbook).clone(), fuse((*textbook).clone())] {
        let plan = Arc::new(plan);
        let mut interpreter = Interpreter::new(plan.clone(), weights.clone(), kv).unwrap();
        let mut input = BlockPool::new(&kv, &mut Rng::new(1)).sequence(vec![1, 2, 3, 4, 5]).next_step(5);
        input.output_rows = vec![1, 4];
        let mut seen = vec![false; plan.values.len()];
        let logits = interpreter.run_traced(&input, |index, op, value, elements| {
            assert!(&plan.ops[index] == op && op.outputs().contains(&value));
            let rows = if plan.value(value).rows == Rows::Tokens { 5 } else { 2 };
            assert_eq!(elements.len(), rows * plan.value(value).width);
            seen[value.index()] = true;
        });
        assert_eq!(logits.unwrap().len(), 2 * plan.vocab_size);
        assert!(seen.iter().all(|&seen| seen));
    }
}

/// The most elements that are alive at one op, operands and results together: no layout is smaller.
fn live_max(plan: &Plan, shape: StepShape) -> usize {
    let size = |index: usize| {
        let rows = if plan.values[index].rows == Rows::Tokens { shape.tokens } else { shape.outputs };
        (rows * plan.values[index].width).next_multiple_of(16)
    };
    let place = |uses: &dyn Fn(&Op) -> bool| plan.ops.iter().position(uses);
    let lives: Vec<(usize, usize)> = (0..plan.values.len())
        .map(|index| {
            let born = place(&|op| op.outputs().iter().any(|v| v.index() == index)).unwrap();
            let last = plan.ops.iter().rposition(|op| op.inputs().iter().any(|v| v.index() == index));
            (born, if plan.logits.index() == index { plan.ops.len() } else { last.unwrap_or(born) })
        })
        .collect();
    let live = |at: usize| (0..lives.len()).filter(|&v| lives[v].0 <= at && at <= lives[v].1).map(size).sum();
    (0..plan.ops.len()).map(live).max().unwrap()
}

#[test]
fn memory_plans_hold_every_live_value_and_little_more() {
    let mut rng = Rng::new(11);
    let (mut worst, mut beyond) = (1f64, 0);
    for model_type in MODEL_TYPES {
        for seed in SEEDS {
            let (textbook, _) = tiny_model(model_type, seed, WeightFormat::F32);
            for plan in [(*textbook).clone(), fuse((*textbook).clone()), fuse(restrict_outputs((*textbook).clone()))] {
                verify(&plan).unwrap();
                let tokens = 1 + rng.below(70);
                let shape = StepShape { tokens, sequences: 1 + rng.below(4), outputs: rng.below(tokens + 1) };
                let memory = MemoryPlan::new(&plan, shape);
                memory.check(&plan).unwrap();
                let live = live_max(&plan, shape);
                assert!(memory.len >= live, "{} elements for {live} alive", memory.len);
                let share = memory.len as f64 / live as f64;
                worst = worst.max(share);
                beyond += usize::from(share > 1.3);
            }
        }
    }
    // What is lost to fragmentation: 1.51 of the least there can be in one `qwen2_moe`, of 62 tokens and 43 outputs, and at
    // most 1.3 in all other plans, those with latent attention among them.
    assert_eq!(beyond, 1);
    assert!(worst <= 1.55, "{worst}");
}
