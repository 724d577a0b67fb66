//! A row's logits are the same bits at every instruction set, on any number of threads, however its sequence is cut into
//! steps, and whatever lies in the cache's blocks; NaN stays where it arose.

use std::collections::BTreeSet;
use std::sync::Arc;

use backend::{Backend, Executable, WeightCheck};
use cpu::{CpuBackend, CpuOptions, Isa, IsaLevel};
use plan::reference::Interpreter;
use plan::{
    AnyShape, BuildError, Graph, Heads, KvFormat, KvLayout, Plan, Rope, RopeScaling, StepInput, fuse, restrict_outputs,
};
use tensor::{Tensor, WeightFormat};
use testing::random::Rng;
use testing::tiny::{random_weights, tiny_model};
use testing::tolerance::nmse;

fn load(isa: IsaLevel, threads: usize, plan: &Arc<Plan>, weights: &[Tensor], kv: KvLayout) -> Box<dyn Executable> {
    let backend =
        CpuBackend::new(CpuOptions { threads: Some(threads), isa: Some(isa), pin: false, ..CpuOptions::default() })
            .unwrap();
    backend.load(plan.clone(), weights.to_vec(), kv).unwrap()
}

/// Those that there are kernels for.
fn formats() -> Vec<WeightFormat> {
    CpuBackend::new(CpuOptions::default()).unwrap().claims().formats
}

/// The logits at every position of `tokens`, in steps of `chunk`.
fn logits(executable: &mut dyn Executable, tokens: &[u32], chunk: usize, table: &[u32]) -> Vec<f32> {
    let mut logits = Vec::new();
    for (index, chunk_tokens) in tokens.chunks(chunk).enumerate() {
        let mut input = StepInput::default();
        input.push_sequence(chunk_tokens, index * chunk, table);
        input.output_rows.extend(0..chunk_tokens.len() as u32);
        logits.extend_from_slice(executable.replay(&input).unwrap());
    }
    logits
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn levels_and_threads_give_the_same_bits() {
    for format in formats() {
        let (plan, weights) = tiny_model("qwen3", 1, format);
        let plan = Arc::new(fuse((*plan).clone()));
        let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 8 };
        let table: Vec<u32> = (0..8).rev().collect();
        let tokens = Rng::new(3).tokens(50, plan.vocab_size);
        let on_one_thread = |isa: IsaLevel| logits(&mut *load(isa, 1, &plan, &weights, kv), &tokens, 50, &table);
        let plain = on_one_thread(IsaLevel::Scalar);
        assert!(plain.iter().all(|x| x.is_finite()));
        for isa in Isa::available() {
            // A level that rounds activations is compared with itself.
            let rounds = isa.rounds_to_bf16() && format == WeightFormat::BF16;
            let expected = if rounds { on_one_thread(isa.level()) } else { plain.clone() };
            for threads in [1, 2, 3] {
                let mut executable = load(isa.level(), threads, &plan, &weights, kv);
                for chunk in [50, 7] {
                    let found = logits(&mut *executable, &tokens, chunk, &table);
                    assert!(bits(&found) == bits(&expected), "{format} at {isa}, {threads} threads, by {chunk}");
                }
            }
        }
    }
}

#[test]
fn fused_ops_give_the_bits_of_the_textbook_ops_that_they_replace() {
    for model_type in testing::MODEL_TYPES {
        for format in formats() {
            let (textbook, weights) = tiny_model(model_type, 1, format);
            let plans = [
                ("fused", fuse((*textbook).clone())),
                ("restricted", restrict_outputs((*textbook).clone())),
                ("restricted and fused", fuse(restrict_outputs((*textbook).clone()))),
            ];
            let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 4 };
            let tokens = Rng::new(3).tokens(30, textbook.vocab_size);
            let run = |plan: &Arc<Plan>, chunk| {
                logits(&mut *load(Isa::best().level(), 2, plan, &weights, kv), &tokens, chunk, &[2, 0, 1])
            };
            let expected = run(&textbook, 30);
            for (what, plan) in plans {
                let found = run(&Arc::new(plan), 4);
                assert_eq!(bits(&found), bits(&expected), "{model_type} in {format}, {what}");
            }
        }
    }
}

/// One attention layer between an embedding and a head: six heads on two kv heads of an odd size.
fn attention_plan(window: Option<usize>) -> Result<Plan, BuildError> {
    let (heads, kv_heads, head_dim, hidden, vocab) = (6, 2, 10, 24, 40);
    let rope = Rope { head_dim, dims: head_dim, theta: 1e4, scaling: RopeScaling::None, attention_factor: 1.0 };
    let heads = Heads { heads, kv_heads, head_dim, scale: 0.5, window, sinks: None };
    Graph::build("attention", 2048, &AnyShape, |g, w| {
        let x = g.embed(w.get("embed", [vocab, hidden])?, hidden);
        let q = g.linear(x, w.linear("q", heads.heads * head_dim, hidden, true)?, heads.heads * head_dim);
        let k = g.linear(x, w.linear("k", kv_heads * head_dim, hidden, false)?, kv_heads * head_dim);
        let v = g.linear(x, w.linear("v", kv_heads * head_dim, hidden, false)?, kv_heads * head_dim);
        let (q, k) = (g.rope(q, &rope), g.rope(k, &rope));
        let o = g.attention(q, k, v, heads);
        let o = g.select_outputs(o);
        Ok(g.linear(o, w.linear("head", vocab, heads.heads * head_dim, false)?, vocab))
    })
}

#[test]
fn long_sequences_cross_splits_and_windows_in_every_cut() {
    const LEN: usize = 600;
    for window in [None, Some(1), Some(100), Some(300)] {
        let plan = Arc::new(fuse(attention_plan(window).unwrap()));
        let weights = random_weights(&plan, &mut Rng::new(1), WeightFormat::F32);
        let tokens = Rng::new(2).tokens(LEN, plan.vocab_size);
        let mut first: Option<Vec<f32>> = None;
        for (block_len, threads, chunk) in
            [(16, 1, LEN), (16, 3, 1), (48, 1, 1), (48, 2, 64), (5, 3, 7), (7, 1, 64), (256, 2, 300), (600, 3, 1)]
        {
            let kv = KvLayout { format: KvFormat::F32, block_len, num_blocks: LEN.div_ceil(block_len) };
            let mut table: Vec<u32> = (0..kv.num_blocks as u32).collect();
            Rng::new(4).shuffle(&mut table);
            let mut executable = load(Isa::best().level(), threads, &plan, &weights, kv);
            let found = logits(&mut *executable, &tokens, chunk, &table);
            if let Some(first) = &first {
                assert!(
                    bits(&found) == bits(first),
                    "window {window:?}, blocks of {block_len}, {threads} threads, by {chunk}"
                );
                continue;
            }
            let mut input = StepInput::default();
            input.push_sequence(&tokens, 0, &table);
            input.output_rows.extend(0..LEN as u32);
            let expected = Interpreter::new(plan.clone(), weights.clone(), kv).unwrap().run(&input).unwrap();
            let error = nmse(found.iter().map(|&x| f64::from(x)), &expected);
            assert!(error < 1e-11, "window {window:?}: NMSE {error:e}");
            first = Some(found);
        }
    }
}

#[test]
fn nan_stays_in_its_sequence_and_does_not_reach_back() {
    let plan = Arc::new(fuse(attention_plan(None).unwrap()));
    let mut rng = Rng::new(1);
    let mut weights = random_weights(&plan, &mut rng, WeightFormat::F32);
    let table_index = plan.weights.iter().position(|weight| weight.name == "embed").unwrap();
    let shape = weights[table_index].shape().to_vec();
    let mut values = weights[table_index].to_f32();
    values[..shape[1]].fill(f32::NAN);
    weights[table_index] = Tensor::from_f32(WeightFormat::F32, shape, &values).unwrap();

    let kv = KvLayout { format: KvFormat::F32, block_len: 4, num_blocks: 24 };
    let (clean, poisoned): (Vec<u32>, Vec<u32>) =
        ((1..38).collect(), (1..38).map(|id| if id == 20 { 0 } else { id }).collect());
    let tables: [Vec<u32>; 2] = [(0..10).collect(), (10..20).collect()];
    for threads in [1, 2] {
        let mut executable = load(Isa::best().level(), threads, &plan, &weights, kv);
        let mut input = StepInput::default();
        input.push_sequence(&poisoned, 0, &tables[0]);
        input.push_sequence(&clean, 0, &tables[1]);
        input.output_rows.extend(0..74);
        let found = executable.replay(&input).unwrap().to_vec();
        let alone = logits(&mut *load(Isa::best().level(), 1, &plan, &weights, kv), &clean, 37, &tables[1]);
        let vocab = plan.vocab_size;
        assert_eq!(bits(&found[37 * vocab..]), bits(&alone), "the other sequence");
        assert_eq!(bits(&found[..19 * vocab]), bits(&alone[..19 * vocab]), "positions before the NaN");
        assert!(found[19 * vocab..37 * vocab].iter().all(|x| x.is_nan()), "positions that attend to it");
        // Its blocks are used again: what it left there is never read.
        let found = logits(&mut *executable, &clean, 5, &tables[0]);
        assert_eq!(bits(&found), bits(&alone), "blocks used again");
    }
}

/// Small enough for Miri: `cargo +nightly miri test -p cpu --test determinism -- small_batch` with
/// `MIRIFLAGS=-Zmiri-disable-isolation` checks the sharing of memory between workers.
#[test]
fn a_small_batch_on_a_team_gives_the_bits_of_its_parts() {
    let plan = Arc::new(fuse(attention_plan(Some(3)).unwrap()));
    let weights = random_weights(&plan, &mut Rng::new(1), WeightFormat::F32);
    let kv = KvLayout { format: KvFormat::F32, block_len: 4, num_blocks: 4 };
    let mut input = StepInput::default();
    input.push_sequence(&[1, 2, 3, 4, 5], 0, &[3, 0]);
    input.push_sequence(&[6], 0, &[1]);
    input.output_rows.extend([4, 5]);
    let found = load(IsaLevel::Scalar, 2, &plan, &weights, kv).replay(&input).unwrap().to_vec();
    let mut alone = load(IsaLevel::Scalar, 1, &plan, &weights, kv);
    let first = logits(&mut *alone, &[1, 2, 3, 4, 5], 2, &[0, 1]);
    let second = logits(&mut *alone, &[6], 1, &[2]);
    assert_eq!(bits(&found), bits(&[&first[4 * plan.vocab_size..], &second].concat()));
}

/// Neither steps nor packing change weights in memory, and a check of that memory reads every weight.
#[test]
fn weights_in_memory_stay_as_they_are() {
    for format in formats() {
        let (plan, weights) = tiny_model("qwen2", 1, format);
        let plan = Arc::new(fuse(restrict_outputs((*plan).clone())));
        let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 8 };
        let table: Vec<u32> = (0..8).collect();
        let mut executable = load(Isa::best().level(), 2, &plan, &weights, kv);
        let mut check = WeightCheck::default();
        for round in 0..4 {
            while !check.read_piece(&mut *executable).unwrap() {}
            let read: BTreeSet<_> = executable.resident_weights().into_iter().map(|resident| resident.weight).collect();
            assert_eq!(read, (0..weights.len()).collect(), "{format:?}");
            logits(&mut *executable, &Rng::new(2).tokens(9, plan.vocab_size), 3, &table);
            if round == 2 {
                executable.settle().unwrap();
            }
        }
    }
}

#[test]
fn blocks_that_are_copied_out_and_in_give_the_same_bits() {
    let options = CpuOptions { threads: Some(1), isa: Some(IsaLevel::Scalar), pin: false, ..CpuOptions::default() };
    backend::conformance::copied_blocks_give_the_same_bits(&CpuBackend::new(options).unwrap());
}
