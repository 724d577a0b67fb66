//! The same bits, where a token's results must not depend on those beside it: in either thread order, through CUDA's header
//! and Metal's, with attention split over groups or not, with ops fused or not (but for norms of single heads, which
//! `rope_kv_write` sums in an order of its own), observed or not.

use std::sync::Arc;

use backend::{Backend, Executable};
use gpu::SimDialect::{Cuda, Metal};
use gpu::{ForcedVariants, GpuBackend, GpuOptions, SimDialect, ThreadOrder};
use plan::{AnyShape, Graph, Heads, KvFormat, KvLayout, Plan, StepInput, StepShape, fuse};
use tensor::quant::nvfp4;
use tensor::{ActivationRounding, Tensor, WeightFormat};
use testing::tiny::{random_weights, tiny_int4_model, tiny_model};
use testing::{Rng, Sample};

fn load(order: ThreadOrder, plan: &Arc<Plan>, weights: &[Tensor], kv: KvLayout) -> Box<dyn Executable> {
    load_in(Cuda, order, plan, weights, kv)
}

/// Kernels without matrix instructions: they round nothing, and a matrix has the same bits alone as beside others in a launch.
fn plain() -> GpuOptions {
    GpuOptions { batch_invariant: true, forced: ForcedVariants::plain(), ..GpuOptions::default() }
}

fn load_in(
    dialect: SimDialect,
    order: ThreadOrder,
    plan: &Arc<Plan>,
    weights: &[Tensor],
    kv: KvLayout,
) -> Box<dyn Executable> {
    GpuBackend::simulator_of(dialect, order, 1 << 30, plain()).load(plan.clone(), weights.to_vec(), kv).unwrap()
}

fn load_with(
    options: GpuOptions,
    order: ThreadOrder,
    plan: &Arc<Plan>,
    weights: &[Tensor],
    kv: KvLayout,
) -> Box<dyn Executable> {
    GpuBackend::simulator(order, 1 << 30, options).load(plan.clone(), weights.to_vec(), kv).unwrap()
}

/// The bits of the logits at every position of `tokens`, in steps of `chunk`.
fn bits(executable: &mut dyn Executable, tokens: &[u32], chunk: usize, table: &[u32]) -> Vec<u32> {
    let mut bits = Vec::new();
    for (index, chunk_tokens) in tokens.chunks(chunk).enumerate() {
        let mut input = StepInput::default();
        input.push_sequence(chunk_tokens, index * chunk, table);
        input.output_rows.extend(0..chunk_tokens.len() as u32);
        bits.extend(executable.replay(&input).unwrap().iter().map(|x| x.to_bits()));
    }
    bits
}

#[test]
fn both_thread_orders_and_both_forms_of_the_plan_give_the_same_bits() {
    for (model_type, format) in [("qwen2", WeightFormat::Q8_0), ("llama", WeightFormat::BF16)] {
        let (textbook, weights) = tiny_model(model_type, 1, format);
        let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 2 };
        let tokens = Rng::new(3).tokens(20, textbook.vocab_size);
        let expected = bits(&mut *load(ThreadOrder::Forward, &textbook, &weights, kv), &tokens, 20, &[1, 0]);
        let fused = Arc::new(fuse((*textbook).clone()));
        for dialect in [Cuda, Metal] {
            for order in [ThreadOrder::Forward, ThreadOrder::Reverse] {
                let found = bits(&mut *load_in(dialect, order, &fused, &weights, kv), &tokens, 7, &[1, 0]);
                assert!(found == expected, "{model_type} in {format}, {dialect:?}, {order:?}");
            }
        }
    }
}

/// Block formats without kernels of their own are computed as the Q8_0 that they become.
#[test]
fn weights_of_five_bits_give_the_bits_of_their_q8_0() {
    let (textbook, weights) = tiny_model("llama", 1, WeightFormat::Q5_K);
    let expanded: Vec<_> = weights.iter().map(Tensor::to_q8_0).collect();
    assert!(expanded.iter().any(|tensor| tensor.format() == WeightFormat::Q8_0));
    let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 2 };
    let tokens = Rng::new(3).tokens(20, textbook.vocab_size);
    let found = bits(&mut *load(ThreadOrder::Forward, &textbook, &weights, kv), &tokens, 20, &[1, 0]);
    let expected = bits(&mut *load(ThreadOrder::Forward, &textbook, &expanded, kv), &tokens, 20, &[1, 0]);
    assert!(found == expected);
}

/// INT4 in groups of 128 is read as Q4_0, and has kernels that know that four blocks share a scale: they compute what those of Q4_0
/// do, which a block of zeros with a scale of its own asks for.
#[test]
fn int4_in_groups_of_128_gives_the_bits_of_its_q4_0() {
    let (textbook, mut grouped) = tiny_int4_model("llama", 1, WeightFormat::Q4_0);
    let place = grouped.iter().position(|tensor| tensor.shape().len() == 2).unwrap();
    let with = |scale: Option<u16>| {
        let tensor = &grouped[place];
        let mut bytes = tensor.bytes().to_vec();
        // The second block: codes of zero.
        bytes[20..36].fill(0x88);
        scale.into_iter().for_each(|scale| bytes[18..20].copy_from_slice(&scale.to_le_bytes()));
        Tensor::new(tensor.format(), tensor.shape().to_vec(), bytes.into()).unwrap()
    };
    let (of_its_group, of_its_own) = (with(None), with(Some(0x3c00)));
    let mut blocks = grouped.clone();
    (grouped[place], blocks[place]) = (of_its_group, of_its_own);
    let fused = Arc::new(fuse((*textbook).clone()));
    let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 2 };
    let tokens = Rng::new(3).tokens(20, textbook.vocab_size);
    // One number of rows a day.
    let sample = Sample::of_today(3);
    for (_, chunk) in [20, 3, 1].into_iter().enumerate().filter(|&(index, _)| sample.has(index)) {
        for dialect in [Cuda, Metal] {
            for batch_invariant in [false, true] {
                let of = |weights: &[Tensor]| {
                    let options = GpuOptions { batch_invariant, ..GpuOptions::default() };
                    let device = GpuBackend::simulator_of(dialect, ThreadOrder::Forward, 1 << 30, options);
                    let mut executable = device.load(fused.clone(), weights.to_vec(), kv).unwrap();
                    let bits = bits(&mut *executable, &tokens, chunk, &[1, 0]);
                    let infos = executable.variants(StepShape { tokens: chunk, sequences: 1, outputs: chunk }).unwrap();
                    (infos.iter().any(|info| info.variant.contains("q4_g128")), bits)
                };
                let (found, expected) = (of(&grouped), of(&blocks));
                assert!(found.0 && !expected.0, "kernels of their own");
                assert!(found.1 == expected.1, "{chunk} at a time, {dialect:?}, batch_invariant {batch_invariant}");
            }
        }
    }
}

/// Matrices in NVFP4 each have a scale of their own, any number, beside those of 16 weights: gate and up differ in it, and so do Q, K
/// and V, in kernels that read them together. Where blocks of one matrix differ in it, which no file has, all are Q8_0.
#[test]
fn each_matrix_in_nvfp4_has_a_scale_of_its_own() {
    const BLOCK_BYTES: usize = size_of::<nvfp4::Block>();
    let (textbook, packed) = tiny_model("qwen2", 1, WeightFormat::NVFP4);
    let times = |tensor: &Tensor, blocks: usize, factor: f32| {
        let mut bytes = tensor.bytes().to_vec();
        let blocks = bytes.as_chunks_mut::<BLOCK_BYTES>().0.iter_mut().take(blocks);
        let scale = tensor.as_slice::<nvfp4::Block>()[0].scale * factor;
        blocks.for_each(|block| block[..4].copy_from_slice(&scale.to_le_bytes()));
        Tensor::new(tensor.format(), tensor.shape().to_vec(), bytes.into()).unwrap()
    };
    let is_matrix = |tensor: &Tensor| tensor.shape().len() > 1;
    let of_each = |(index, tensor): (usize, &Tensor)| match is_matrix(tensor) {
        true => times(tensor, usize::MAX, 0.7 + 0.09 * (index % 7) as f32),
        false => tensor.clone(),
    };
    let weights: Vec<_> = packed.iter().enumerate().map(of_each).collect();
    let mut of_some = weights.clone();
    let place = weights.iter().position(is_matrix).unwrap();
    of_some[place] = times(&weights[place], 1, 0.8);
    are_close(&textbook, &weights, "nvfp4");
    are_close(&textbook, &of_some, "q8_0");
}

/// INT4 with zero points in groups of 128 is read as Q5_0, and has kernels that know a scale and a zero point for four blocks. Where
/// the codes of one group are further apart than four bits, all matrices are Q8_0.
#[test]
fn int4_with_zero_points_is_near_its_numbers() {
    let (textbook, weights) = tiny_int4_model("llama", 1, WeightFormat::Q5_0);
    let mut of_some = weights.clone();
    let place = weights.iter().position(|tensor| tensor.shape().len() > 1).unwrap();
    let mut bytes = weights[place].bytes().to_vec();
    // Codes 0 and 31: all five bits of a byte's lower weight without any and with all.
    bytes[2..6].fill(0b10);
    bytes[6..22].fill(0);
    bytes[7] = 0xf;
    of_some[place] = Tensor::new(WeightFormat::Q5_0, weights[place].shape().to_vec(), bytes.into()).unwrap();
    are_close(&textbook, &weights, "q4_z128");
    are_close(&textbook, &of_some, "q8_0");
}

/// Whether kernels whose names have `format` compute what f32 of the same numbers gives, with roundings of f16 and bytes.
fn are_close(textbook: &Arc<Plan>, weights: &[Tensor], format: &str) {
    let to_f32 =
        |tensor: &Tensor| Tensor::from_f32(WeightFormat::F32, tensor.shape().to_vec(), &tensor.to_f32()).unwrap();
    let fused = Arc::new(fuse((**textbook).clone()));
    let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 2 };
    let tokens = Rng::new(3).tokens(20, textbook.vocab_size);
    let numbers: Vec<_> = weights.iter().map(to_f32).collect();
    let expected = bits(&mut *load(ThreadOrder::Forward, textbook, &numbers, kv), &tokens, 20, &[1, 0]);
    let of = |bits: &[u32]| bits.iter().map(|&bits| f64::from(f32::from_bits(bits))).collect::<Vec<_>>();
    for (dialect, batch_invariant) in [(Cuda, true), (Cuda, false), (Metal, false)] {
        for chunk in [20, 3, 1] {
            let options = GpuOptions { batch_invariant, ..GpuOptions::default() };
            let device = GpuBackend::simulator_of(dialect, ThreadOrder::Reverse, 1 << 30, options);
            let mut executable = device.load(fused.clone(), weights.to_vec(), kv).unwrap();
            let found = bits(&mut *executable, &tokens, chunk, &[1, 0]);
            let infos = executable.variants(StepShape { tokens: chunk, sequences: 1, outputs: chunk }).unwrap();
            assert!(infos.iter().any(|info| info.variant.contains(format)), "{format}: {infos:?}");
            let others = ["nvfp4", "q8_0", "q4_z128"].into_iter().filter(|&other| other != format);
            for other in others {
                assert!(!infos.iter().any(|info| info.variant.contains(other)), "{format}: {infos:?}");
            }
            let off = testing::tolerance::nmse(of(&found), &of(&expected));
            // Attention rounds to f16, one row of activations to bytes, and Q8_0 the numbers of NVFP4.
            let rounding = match (format, batch_invariant) {
                ("q8_0", _) => ActivationRounding::Q8Blocks,
                (_, true) => ActivationRounding::F16,
                (_, false) if chunk > 1 || dialect == Metal => ActivationRounding::F16,
                _ => ActivationRounding::Q8Blocks,
            };
            let most = testing::tolerance::model_nmse_max(rounding, kv.format);
            assert!(off < most, "{format}, {dialect:?}, {chunk} at a time: off by {off:e} of the mean square");
        }
    }
}

/// Under `--batch-invariant` one row takes the kernels of many, on matrix instructions: a row has the bits that it has alone in
/// steps of all sizes, beside other sequences, and in other blocks of the cache.
#[test]
fn a_row_has_the_same_bits_whatever_rows_are_beside_it() {
    let config = serde_json::json!({
        "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": 67, "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0, "max_position_embeddings": 4096, "tie_word_embeddings": false,
    });
    let plan = Arc::new(fuse(models::build_plan(&config, &AnyShape).unwrap()));
    let options = GpuOptions { batch_invariant: true, ..GpuOptions::default() };
    let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 24 };
    let tables = [[0, 1, 2, 3, 4, 5], [11, 10, 9, 8, 7, 6], [12, 13, 14, 15, 16, 17], [18, 19, 20, 21, 22, 23]];
    let mut rng = Rng::new(12);
    let texts = [(); 2].map(|()| rng.tokens(60, plan.vocab_size));
    // One of them a day.
    let sample = Sample::of_today(3);
    let formats = [WeightFormat::F16, WeightFormat::Q8_0, WeightFormat::Q4_K].into_iter().enumerate();
    for (_, format) in formats.filter(|&(index, _)| sample.has(index)) {
        let weights = random_weights(&plan, &mut Rng::new(5), format);
        let device = |order| GpuBackend::simulator(order, 1 << 30, options);
        let mut executable = device(ThreadOrder::Forward).load(plan.clone(), weights.clone(), kv).unwrap();
        for tokens in [1, 60] {
            let infos = executable.variants(StepShape { tokens, sequences: 1, outputs: tokens }).unwrap();
            for kernel in ["gemm_mma_", "attention_tiles_d64"] {
                assert!(infos.iter().any(|info| info.variant.contains(kernel)), "{tokens} rows, {kernel}: {infos:?}");
            }
        }
        let expected = [0, 1].map(|text| bits(&mut *executable, &texts[text], 1, &tables[text]));
        for (chunk, order) in [(60, ThreadOrder::Reverse), (37, ThreadOrder::Forward), (17, ThreadOrder::Reverse)] {
            let mut executable = device(order).load(plan.clone(), weights.clone(), kv).unwrap();
            assert!(bits(&mut *executable, &texts[0], chunk, &tables[2]) == expected[0], "{format}, {chunk} at a time");
        }
        // Both texts in each step, the second 5 positions behind; their first positions are in the cache.
        for first in [8, 19] {
            let mut input = StepInput::default();
            input.push_sequence(&texts[0][first..first + 40], first, &tables[0]);
            input.push_sequence(&texts[1][first - 5..first - 4], first - 5, &tables[1]);
            input.output_rows = (0..41).collect();
            let found: Vec<_> = executable.replay(&input).unwrap().iter().map(|x| x.to_bits()).collect();
            let row = |text: usize, position: usize| &expected[text][position * plan.vocab_size..][..plan.vocab_size];
            let alone: Vec<_> = (first..first + 40).flat_map(|position| row(0, position)).copied().collect();
            assert!(found[..alone.len()] == alone, "{format}, from {first}");
            assert!(found[alone.len()..] == *row(1, first - 5), "{format}, from {first}: one row beside 40");
        }
    }
}

/// Files of mixed formats have Q, K and V in two of them, which few kernels read at once.
#[test]
fn projections_of_the_same_rows_may_differ_in_format() {
    for (format, of_values) in [
        (WeightFormat::Q4_0, WeightFormat::Q8_0),
        (WeightFormat::Q4_K, WeightFormat::Q8_0),
        (WeightFormat::Q4_K, WeightFormat::Q6_K),
        (WeightFormat::Q8_0, WeightFormat::Q6_K),
    ] {
        // One with rows of whole blocks, whatever becomes of them.
        let (textbook, mut weights) = tiny_model("llama", 1, WeightFormat::Q4_K);
        for (info, tensor) in textbook.weights.iter().zip(&mut weights) {
            let to = if info.name.contains("v_proj") { of_values } else { format };
            if tensor.shape().len() > 1 && tensor.format() != to {
                *tensor = Tensor::from_f32(to, tensor.shape().to_vec(), &tensor.to_f32()).unwrap();
            }
        }
        let fused = Arc::new(fuse((*textbook).clone()));
        let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 2 };
        let tokens = Rng::new(3).tokens(20, textbook.vocab_size);
        let expected = bits(&mut *load(ThreadOrder::Forward, &textbook, &weights, kv), &tokens, 20, &[1, 0]);
        for chunk in [20, 7, 1] {
            let found = bits(&mut *load(ThreadOrder::Reverse, &fused, &weights, kv), &tokens, chunk, &[1, 0]);
            assert!(found == expected, "{format} and {of_values}, {chunk} at a time");
        }
        // One row at a time: of Q4_0 each format's kernel has its own part, of the others one kernel has both.
        let alone = [ThreadOrder::Forward, ThreadOrder::Reverse].map(|order| {
            let mut executable = load_with(GpuOptions::default(), order, &fused, &weights, kv);
            bits(&mut *executable, &tokens, 1, &[1, 0])
        });
        assert!(alone[0] != expected, "other kernels computed it");
        assert!(alone[0] == alone[1], "{format} and {of_values}: in both orders of threads");
        let of = |bits: &[u32]| bits.iter().map(|&bits| f64::from(f32::from_bits(bits))).collect::<Vec<_>>();
        let off = testing::tolerance::nmse(of(&alone[0]), &of(&expected));
        let most = testing::tolerance::model_nmse_max(ActivationRounding::Q8Blocks, kv.format);
        assert!(off < most, "{format} and {of_values}: off by {off:e} of the mean square");
    }
}

/// Weights of two rows stream as those of one do, and each row is added up as if it were alone.
#[test]
fn a_row_beside_one_other_has_the_bits_that_it_has_alone() {
    for (model_type, format) in [
        ("llama", WeightFormat::F16),
        ("qwen2", WeightFormat::Q8_0),
        ("llama", WeightFormat::Q4_0),
        ("llama", WeightFormat::MXFP4),
        ("llama", WeightFormat::Q4_K),
    ] {
        let (textbook, weights) = tiny_model(model_type, 1, format);
        let plan = Arc::new(fuse((*textbook).clone()));
        let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 2 };
        let tokens = Rng::new(3).tokens(16, textbook.vocab_size);
        let texts = [(&tokens[..5], &[0][..]), (&tokens[5..14], &[1])];
        let next = [tokens[14], tokens[15]];
        let found = |order, together: bool| {
            let mut executable = load_with(GpuOptions::default(), order, &plan, &weights, kv);
            for (tokens, table) in texts {
                bits(&mut *executable, tokens, tokens.len(), table);
            }
            let mut steps = vec![StepInput::default()];
            for (row, (tokens, table)) in texts.into_iter().enumerate() {
                if !together && row > 0 {
                    steps.push(StepInput::default());
                }
                let step = steps.last_mut().unwrap();
                step.push_sequence(&next[row..=row], tokens.len(), table);
                step.output_rows.push(step.token_ids.len() as u32 - 1);
            }
            let replay = |step: StepInput| executable.replay(&step).unwrap().to_vec();
            let all: Vec<f32> = steps.into_iter().flat_map(replay).collect();
            all.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let alone = found(ThreadOrder::Forward, false);
        for order in [ThreadOrder::Forward, ThreadOrder::Reverse] {
            assert!(found(order, true) == alone, "{model_type} in {format}, {order:?}");
        }
    }
}

/// The kernels for few rows round, but alike for any number of them. They are forced, because two rows would stream.
#[test]
fn two_rows_to_thirty_two_give_the_same_bits_on_matrix_instructions() {
    for (model_type, format) in
        [("qwen2", WeightFormat::Q8_0), ("llama", WeightFormat::BF16), ("llama", WeightFormat::F16)]
    {
        let (textbook, weights) = tiny_model(model_type, 1, format);
        let plan = Arc::new(fuse((*textbook).clone()));
        let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 2 };
        let tokens = Rng::new(3).tokens(24, textbook.vocab_size);
        let found = |order, chunk| {
            let ops = ["norm_linear", "linear_residual", "norm_glu", "linear", "logits"];
            let forced = ops.iter().map(|op| format!("{op}=linear_batch").parse().unwrap()).collect();
            let options = GpuOptions { forced, ..GpuOptions::default() };
            let mut executable = load_with(options, order, &plan, &weights, kv);
            bits(&mut *executable, &tokens, chunk, &[1, 0])
        };
        let expected = found(ThreadOrder::Forward, 24);
        for chunk in [2, 3, 12] {
            assert!(found(ThreadOrder::Reverse, chunk) == expected, "{model_type} in {format}, {chunk} at a time");
        }
        let exact = bits(&mut *load(ThreadOrder::Forward, &plan, &weights, kv), &tokens, 24, &[1, 0]);
        assert!(exact != expected, "{model_type} in {format}: other kernels computed it");
    }
}

/// One attention layer, nothing else, over up to 700 positions.
fn attention_plan(window: Option<usize>) -> Plan {
    let heads = Heads { heads: 3, kv_heads: 1, head_dim: 6, scale: 0.5, window, sinks: None };
    Graph::build("attention", 700, &AnyShape, |g, w| {
        let q = g.embed(w.get("embed_q", [18, 18])?, 18);
        let k = g.embed(w.get("embed_k", [18, 6])?, 6);
        let v = g.embed(w.get("embed_v", [18, 6])?, 6);
        let o = g.attention(q, k, v, heads);
        Ok::<_, plan::BuildError>(g.select_outputs(o))
    })
    .unwrap()
}

#[test]
fn attention_gives_the_same_bits_however_its_splits_are_shared() {
    const LEN: usize = 530;
    for window in [None, Some(300)] {
        let plan = Arc::new(attention_plan(window));
        let weights = random_weights(&plan, &mut Rng::new(1), WeightFormat::F32);
        let tokens = Rng::new(2).tokens(LEN, plan.vocab_size);
        let kv = KvLayout { format: KvFormat::F32, block_len: 100, num_blocks: 7 };
        let table: Vec<u32> = vec![6, 0, 3, 1, 5, 2, 4];
        let mut executable = load(ThreadOrder::Forward, &plan, &weights, kv);
        // Many rows: one group takes all splits.
        let whole = bits(&mut *executable, &tokens, LEN, &table);
        // One row: each split has a group, and another kernel folds them.
        for position in [0, 255, 256, 511, 512, LEN - 1] {
            let mut input = StepInput::default();
            input.push_sequence(&tokens[position..=position], position, &table);
            input.output_rows.push(0);
            let found = executable.replay(&input).unwrap().iter().map(|x| x.to_bits());
            let width = plan.vocab_size;
            assert!(found.eq(whole[position * width..][..width].iter().copied()), "{window:?}, position {position}");
        }
    }
}

#[test]
fn an_observed_step_gives_the_same_bits_and_shows_every_result() {
    let (textbook, weights) = tiny_model("llama", 1, WeightFormat::F16);
    let plan = Arc::new(fuse((*textbook).clone()));
    let kv = KvLayout { format: KvFormat::F16, block_len: 5, num_blocks: 4 };
    let mut input = StepInput::default();
    input.push_sequence(&[3, 1, 4, 1, 5, 9, 2], 0, &[2, 0]);
    input.output_rows.extend([2, 6]);
    let expected = load(ThreadOrder::Forward, &plan, &weights, kv).replay(&input).unwrap().to_vec();
    let mut observed = load(ThreadOrder::Forward, &plan, &weights, kv);
    let mut shown = vec![0; plan.ops.len()];
    let mut observer = |op: usize, _, elements: &[f32]| {
        assert!(elements.iter().all(|x| x.is_finite()), "op {op}");
        shown[op] += 1;
    };
    let found = observed.replay_observed(&input, &mut observer).unwrap();
    assert_eq!(found, expected);
    for (op, shown) in plan.ops.iter().zip(shown) {
        let cache = if op.name().contains("kv_write") { 2 } else { 0 };
        assert_eq!(shown, op.outputs().len() + cache, "{}", op.name());
    }
}

#[test]
fn blocks_that_are_copied_out_and_in_give_the_same_bits() {
    backend::conformance::copied_blocks_give_the_same_bits(&GpuBackend::simulator(
        ThreadOrder::Forward,
        1 << 30,
        GpuOptions { batch_invariant: true, ..GpuOptions::default() },
    ));
}
