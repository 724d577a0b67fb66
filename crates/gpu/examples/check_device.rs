//! Holds the first CUDA device to everything that the simulator is held to, all of it; then measures decoding.
//!
//! ```sh
//! cargo run --release -p gpu --example check_device -- conformance goldens parity gemm draws attention blocks
//! cargo run --release -p gpu --example check_device -- decode:llama-3.1-8b:q8_0:1:8192
//! ```
//!
//! `conformance-of:TEXT:TIMES` runs the cases of the suite whose names contain TEXT, so many times, and prints every
//! fault. It is for a fault that does not always come, and for tools that look into kernels.
//!
//! FORMAT is one of weights, `q4_k_m`, `int4` (Q4_0 as INT4 in groups of 128 is read), or `int4_asym` (with zero points).
//! These jobs use random weights in the shapes of `hotmetal bench`; BATCH and TOKENS of `decode`, `profile` and `prefill` may
//! be several numbers with commas:
//!
//! - `decode:SHAPE:FORMAT:BATCH:DEPTH`: whole steps, each submitted before the tokens of the one before are read. The times
//!   include the upload of the input and the download of the tokens.
//! - `ways:SHAPE:FORMAT:BATCH:DEPTH:TEXT`: the same steps with each way that a kernel may be launched in, for keys of
//!   the tuner's that contain TEXT. It times more than the tuner prints, and checks nothing.
//! - `sampled:SHAPE:FORMAT:BATCH:DEPTH`: the same, with tokens that are drawn.
//! - `prefill:SHAPE:FORMAT:TOKENS`: a prompt.
//! - `profile:SHAPE:FORMAT:BATCH:DEPTH`, `profile-prompt:SHAPE:FORMAT:TOKENS`: what each kind of op
//!   adds to a replay, and takes by itself.
//! - `alike:TRIALS`: so many random steps for each of eleven formats, and of a mixture for each of five, under
//!   `--batch-invariant`. Each row must have the bits that it has in a step of its own.
//! - `steady:SHAPE:FORMAT:TOKENS`: the counters of a long run must be one submission and one wait a step.
//!
//! `--batch-invariant` and `--force-variant=OP=KERNEL` before them are as in `hotmetal bench`. Kernels are those of the folder
//! `HOTMETAL_KERNEL_SRC`, where that is set. With `HOTMETAL_SHARED_APART` shared experts of these models are ops of their own,
//! and not among the routed ones.

#![expect(clippy::print_stdout, reason = "a tool that reports")]

#[path = "../tests/attentions/mod.rs"]
mod attentions;
#[path = "../tests/mixtures/mod.rs"]
mod mixtures;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::conformance::{cases, copied_blocks_give_the_same_bits};
use backend::profile::{Recorder, StepRecord};
use backend::{Backend, Counters, Executable, Observed, Tunable, Tuning};
use bytes::Bytes;
use cpu::{CpuBackend, CpuOptions};
use gpu::{ForcedVariant, ForcedVariants, GpuBackend, GpuOptions, KernelSource, Tuned};
use plan::sampling::{RowSampling, choose, share};
use plan::{AnyShape, FED, Graph, KvFormat, KvLayout, Plan, StepInput, fuse, restrict_outputs, share_slots};
use tensor::{ActivationRounding, Tensor, WeightFormat};
use testing::tiny::{in_groups, random_weights};
use testing::{ErrorAnalysis, GOLDEN_KV, MODEL_TYPES, Rng, golden_step, goldens, tiny_model};

type Checked<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Checked {
    let (flags, jobs): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|arg| arg.starts_with("--"));
    let (invariant, flags): (Vec<_>, Vec<_>) = flags.into_iter().partition(|flag| flag == "--batch-invariant");
    let batch_invariant = !invariant.is_empty();
    let forced = flags.iter().map(|flag| {
        let variant = flag.strip_prefix("--force-variant=").ok_or_else(|| format!("there is no `{flag}`"))?;
        Ok(variant.parse::<ForcedVariant>()?)
    });
    let forced = forced.collect::<Checked<_>>()?;
    let tuning: &'static Tuning = Box::leak(Box::default());
    let tuned = if jobs.iter().any(|job| job.starts_with("ways:")) { Tuned::by(tuning) } else { Tuned::NONE };
    let options = GpuOptions { batch_invariant, forced, tuned, ..GpuOptions::default() };
    let device = match std::env::var_os("HOTMETAL_KERNEL_SRC").map(PathBuf::from) {
        Some(folder) => {
            let cache = Some(folder.join("compiled"));
            let compiling = |target: &str| println!("compiling the kernels for {target}");
            GpuBackend::cuda_from_source(0, options, &KernelSource { folder, cache, compiling })?
        }
        None => GpuBackend::cuda(0, options)?,
    };
    println!("{}", device.device().description);
    for job in jobs {
        let parts: Vec<_> = job.split(':').collect();
        let begun = Instant::now();
        match parts[..] {
            ["conformance"] => conformance(&device, 0, 1)?,
            ["conformance", shard, shards] => conformance(&device, shard.parse()?, shards.parse()?)?,
            ["conformance-of", text, times] => conformance_of(&device, text, times.parse()?)?,
            ["goldens"] => golden_texts(&device)?,
            ["parity"] => parity(&device)?,
            ["gemm"] => gemm(&device)?,
            ["alike", trials] => alike(&device, trials.parse()?)?,
            ["draws"] => draws(&device)?,
            ["blocks"] => copied_blocks_give_the_same_bits(&device),
            ["attention"] => attention_layers(&device)?,
            ["mixtures"] => mixture_layers(&device, 0, 1)?,
            ["mixtures", shard, shards] => mixture_layers(&device, shard.parse()?, shards.parse()?)?,
            ["mixture-steps"] => mixture_steps(&device)?,
            ["latent-steps"] => latent_steps(&device)?,
            ["decode", shape, format, batch, depth] => {
                decode(&device, shape, format, &list(batch)?, depth.parse()?, RowSampling::default())?;
            }
            ["ways", shape, format, batch, depth, text] => {
                ways(&device, tuning, (shape, format), batch.parse()?, depth.parse()?, text)?;
            }
            ["sampled", shape, format, batch, depth] => {
                for how in [
                    RowSampling { temperature: 0.8, min_p_ln: f32::NEG_INFINITY, ..RowSampling::default() },
                    RowSampling {
                        temperature: 0.8,
                        top_k: 40,
                        top_p: share(0.95),
                        min_p_ln: 0.05f32.ln(),
                        ..RowSampling::default()
                    },
                    RowSampling {
                        temperature: 0.8,
                        top_p: share(0.95),
                        min_p_ln: f32::NEG_INFINITY,
                        ..RowSampling::default()
                    },
                ] {
                    decode(&device, shape, format, &list(batch)?, depth.parse()?, how)?;
                }
            }
            ["profile", shape, format, batch, depth] => {
                profile(&device, (shape, format), &list(batch)?, 1, depth.parse()?)?;
            }
            ["profile-prompt", shape, format, tokens] => profile(&device, (shape, format), &[1], tokens.parse()?, 0)?,
            ["steady", shape, format, tokens] => steady(&device, shape, format, tokens.parse()?)?,
            ["prefill", shape, format, tokens] => prefill(&device, shape, format, &list(tokens)?)?,
            _ => return Err(format!("what is `{job}`? See the top of this file").into()),
        }
        println!("  {job}: {:.1} s", begun.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Every case of the suite, or each `shards`-th of them, so that processes side by side get through it sooner.
fn conformance(device: &GpuBackend, shard: usize, shards: usize) -> Checked {
    let mut cases = cases(&device.claims(), false);
    let mut index = 0;
    cases.retain(|_| {
        index += 1;
        index % shards == shard
    });
    let (mut faults, mut outcomes) = (vec![], 0);
    for case in &cases {
        for outcome in case.run(&[device]).into_iter().flatten() {
            outcomes += 1;
            faults.extend(outcome.fault.map(|fault| format!("{case} as [{}]: {fault}", outcome.ops.join(" "))));
        }
    }
    println!("conformance: {} cases, {outcomes} outcomes, {} faults", cases.len(), faults.len());
    faults.iter().take(20).for_each(|fault| println!("  {fault}"));
    if faults.is_empty() { Ok(()) } else { Err("the device does not conform".into()) }
}

fn conformance_of(device: &GpuBackend, text: &str, times: usize) -> Checked {
    let mut cases = cases(&device.claims(), false);
    cases.retain(|case| case.to_string().contains(text));
    let (mut faults, mut outcomes) = (0, 0);
    for time in 0..times {
        for case in &cases {
            for outcome in case.run(&[device]).into_iter().flatten() {
                outcomes += 1;
                let Some(fault) = outcome.fault else { continue };
                faults += 1;
                println!("  time {time}: {case} as [{}]: {fault}", outcome.ops.join(" "));
            }
        }
    }
    println!("conformance of `{text}`: {} cases, {outcomes} outcomes, {faults} faults", cases.len());
    if faults == 0 && outcomes > 0 { Ok(()) } else { Err("the device does not conform, or no case ran".into()) }
}

fn to_f32(weights: &[Tensor]) -> Checked<Vec<Tensor>> {
    let to_f32 = |tensor: &Tensor| Ok(Tensor::from_f32(WeightFormat::F32, tensor.shape().to_vec(), &tensor.to_f32())?);
    weights.iter().map(to_f32).collect()
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).map_or(0, |id| id as u32)
}

/// Logits and greedy texts of transformers.
fn golden_texts(device: &GpuBackend) -> Checked {
    for golden in goldens() {
        let (textbook, weights) = golden.model();
        let shared = share_slots(restrict_outputs((*textbook).clone()), |_| true);
        let plan = Arc::new(fuse(shared));
        let context_len = plan.context_len;
        if let Some(lacking) = device.claims().lacking(&plan) {
            println!("{}: not computed, because there is no {}", golden.name, lacking.words());
            continue;
        }
        let mut executable = device.load(plan, weights, GOLDEN_KV)?;
        let mut replay =
            |step: &StepInput| executable.replay(step).map(<[f32]>::to_vec).map_err(|error| error.to_string());
        let worst = golden.check_logits(&mut replay)?;
        // As far as the model's context goes, because angles are there for so many positions.
        let greedy = &golden.expected.greedy;
        let tokens = (context_len - greedy.prompt_token_ids.len()).min(greedy.token_ids.len());
        golden.check_greedy(tokens, &mut replay)?;
        println!("{}: logits within {worst:.1e}, {tokens} tokens", golden.name);
    }
    Ok(())
}

/// 128 greedy tokens of tiny models in every format beside the CPU's, which has those that it does not compute from as F32;
/// activations for BF16 and blocks are rounded, so the CPU's own second choice counts as equal where the first is ahead by less than
/// that.
fn parity(device: &GpuBackend) -> Checked {
    let cpu = CpuBackend::new(CpuOptions { threads: Some(2), isa: None, ..CpuOptions::default() })?;
    for format in device.claims().formats {
        let margin_min = match format {
            WeightFormat::F32 | WeightFormat::F16 => 1e-3,
            // Logits with a deviation of 5, of which the CPU's are off by 0.13 in the mean.
            WeightFormat::MXFP4 => 0.5,
            _ => 0.3,
        };
        for model_type in MODEL_TYPES {
            let (textbook, weights) = tiny_model(model_type, 5, format);
            let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
            // Another choice of experts is a jump and no rounding: `hotmetal verify` follows the choices of a device, which
            // this does not. In these three formats none differs, but with latent attention, which rounds more, in BF16.
            let has_experts = plan.ops.iter().any(|op| op.name() == "moe_route");
            let is_latent = plan.kv_layers.iter().any(|layer| layer.latent().is_some());
            let is_rounded = match format {
                WeightFormat::F32 | WeightFormat::F16 => false,
                WeightFormat::BF16 => is_latent,
                _ => true,
            };
            if device.claims().lacking(&plan).is_some() || (has_experts && is_rounded) {
                continue;
            }
            let mut ours = device.load(plan.clone(), weights.clone(), GOLDEN_KV)?;
            let weights = if cpu.claims().formats.contains(&format) { weights } else { to_f32(&weights)? };
            let mut theirs = cpu.load(plan.clone(), weights, GOLDEN_KV)?;
            let mut next = Rng::new(6).tokens(9, plan.vocab_size);
            let (mut position, mut close) = (0, 0);
            for index in 0..128 {
                let input = golden_step(&next, position, std::iter::once(next.len() as u32 - 1));
                let expected = theirs.replay(&input)?;
                let token = argmax(expected);
                let best = argmax(ours.replay(&input)?);
                if best != token {
                    let margin = expected[token as usize] - expected[best as usize];
                    if margin > margin_min {
                        return Err(format!("{model_type} in {format}: token {index} is {best}, not {token}").into());
                    }
                    close += 1;
                }
                position += next.len();
                next = vec![token];
            }
            println!("{model_type} in {format}: 128 tokens as on the CPU, {close} of them near a tie");
        }
    }
    Ok(())
}

/// Every result of every op of more than one row, computed with matrix instructions, beside those of the kernels that the
/// simulator is held to: shapes that fill no tile.
fn gemm(device: &GpuBackend) -> Checked {
    /// Tokens whose projections are launched in every way in turn.
    const WAYS_OF: [usize; 4] = [7, 29, 33, 64];
    let tuning: &'static Tuning = Box::leak(Box::default());
    let tuned = device.clone().with_options(GpuOptions { tuned: Tuned::by(tuning), ..GpuOptions::default() })?;
    let forced = ForcedVariants::plain();
    let exact = device.clone().with_options(GpuOptions { batch_invariant: true, forced, ..GpuOptions::default() })?;
    let config = serde_json::json!({
        "model_type": "qwen2", "hidden_size": 512, "intermediate_size": 1280, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 1, "vocab_size": 515, "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0, "max_position_embeddings": 4096, "tie_word_embeddings": false,
    });
    let plan = Arc::new(fuse(restrict_outputs(models::build_plan(&config, &AnyShape)?)));
    let plain = device.claims().formats.into_iter().filter(|&format| format != WeightFormat::F32);
    // INT4 in groups of 128, without zero points and with them, has kernels of its own.
    let int4 = [WeightFormat::Q4_0, WeightFormat::Q5_0].map(|format| (format, Some(128)));
    for (format, group) in plain.map(|format| (format, None)).chain(int4) {
        let mut weights = random_weights(&plan, &mut Rng::new(8), format);
        let name = group.map_or(format.to_string(), |group| format!("INT4 in groups of {group}, read as {format}"));
        group.into_iter().for_each(|group| weights.iter_mut().for_each(|tensor| *tensor = in_groups(tensor, group)));
        // In deviations of a row: sums of rounded products, amplified by the ops before. Of Q4_K scales and minima are rounded,
        // which are larger than the weights.
        let most = match format {
            WeightFormat::BF16 => 0.2,
            WeightFormat::Q4_K | WeightFormat::Q6_K => 0.1,
            _ => 0.03,
        };
        // Two rows stream, with activations in bytes.
        for tokens in [3, 7, 16, 29, 33, 64, 65, 100, 300, 2047] {
            let kv = KvLayout { format: KvFormat::F32, block_len: 16, num_blocks: 128 };
            let mut input = StepInput::default();
            let table: Vec<u32> = (0..128).collect();
            input.push_sequence(&Rng::new(9).tokens(tokens, plan.vocab_size), 0, &table);
            input.output_rows = (0..tokens as u32).collect();
            let mut expected = vec![];
            let mut collect = |_: usize, _: Observed, found: &[f32]| expected.push(found.to_vec());
            exact.load(plan.clone(), weights.clone(), kv)?.replay_observed(&input, &mut collect)?;
            let mut executable = device.load(plan.clone(), weights.clone(), kv)?;
            let worst = furthest_off(&mut *executable, &input, &expected)?;
            println!("gemm {name} {tokens} tokens: {} results, off by at most {worst:.1e} deviations", expected.len());
            if worst.is_nan() || worst > most {
                return Err(format!("{name}, {tokens} tokens: off by {worst:e} deviations").into());
            }
            // Twice the same, and as when observed.
            let logits = executable.replay(&input)?.to_vec();
            if logits != executable.replay(&input)? {
                return Err(format!("{name}, {tokens} tokens: not the same bits again").into());
            }
            // Each way of a kernel of few rows, also those that no cost model takes for these shapes.
            if !WAYS_OF.contains(&tokens) {
                continue;
            }
            tuning.watch();
            tuned.load(plan.clone(), weights.clone(), kv)?.replay(&input)?;
            let (mut ways, mut worst_of_ways) = (0, 0f32);
            for Tunable { key, candidates, .. } in tuning.watched() {
                for candidate in candidates.iter().filter(|_| key.starts_with("gemm_narrow ")) {
                    tuning.set(&key, Some(candidate));
                    let mut executable = tuned.load(plan.clone(), weights.clone(), kv)?;
                    let worst = furthest_off(&mut *executable, &input, &expected)?;
                    if worst.is_nan() || worst > most {
                        return Err(format!("{name}, {key}, {candidate}: off by {worst:e} deviations").into());
                    }
                    (ways, worst_of_ways) = (ways + 1, worst_of_ways.max(worst));
                }
                tuning.set(&key, None);
            }
            println!("  {ways} ways to launch them, off by at most {worst_of_ways:.1e} deviations");
        }
    }
    Ok(())
}

/// Compares each row of random steps with the same row in a step of its own. Every bit must be the same, whatever rows a step
/// has, what of a text is in the cache already, and in which blocks. The matrices of the first model have 1, 2 and 4 parts; the
/// second has 32 experts, four for each row.
fn alike(device: &GpuBackend, trials: usize) -> Checked {
    let dense = serde_json::json!({
        "model_type": "qwen2", "hidden_size": 1024, "intermediate_size": 9216, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 11_003, "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0, "max_position_embeddings": 4096, "tie_word_embeddings": false,
    });
    let mixture = serde_json::json!({
        "model_type": "qwen3_moe", "hidden_size": 1024, "moe_intermediate_size": 512, "num_experts": 32,
        "num_experts_per_tok": 4, "norm_topk_prob": true, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 11_003, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
        "max_position_embeddings": 4096, "tie_word_embeddings": false, "intermediate_size": 2048,
    });
    let of_mixture =
        [WeightFormat::F16, WeightFormat::Q8_0, WeightFormat::Q4_0, WeightFormat::Q4_K, WeightFormat::MXFP4];
    for (format, group) in [
        (WeightFormat::F16, None),
        (WeightFormat::BF16, None),
        (WeightFormat::Q8_0, None),
        (WeightFormat::Q4_0, None),
        (WeightFormat::Q4_K, None),
        (WeightFormat::Q6_K, None),
        (WeightFormat::Q4_0, Some(128)),
        (WeightFormat::Q5_0, Some(128)),
        (WeightFormat::MXFP4, None),
        (WeightFormat::NVFP4, None),
        (WeightFormat::FP8, None),
    ] {
        let name = group.map_or(format.to_string(), |group| format!("INT4 in groups of {group}, read as {format}"));
        rows_are_alike(device, &dense, (format, group), trials, &name)?;
    }
    for format in of_mixture {
        rows_are_alike(device, &mixture, (format, None), trials, &format!("a mixture in {format}"))?;
    }
    Ok(())
}

fn rows_are_alike(
    device: &GpuBackend,
    config: &serde_json::Value,
    (format, group): (WeightFormat, Option<usize>),
    trials: usize,
    name: &str,
) -> Checked {
    const SEQUENCES: usize = 4;
    const POSITIONS: usize = 320;
    const ROWS_MAX: usize = 256;
    let exact = device.clone().with_options(GpuOptions { batch_invariant: true, ..GpuOptions::default() })?;
    let plan = Arc::new(fuse(restrict_outputs(models::build_plan(config, &AnyShape)?)));
    let mut rng = Rng::new(77);
    let mut weights = random_weights(&plan, &mut rng, format);
    group.into_iter().for_each(|group| weights.iter_mut().for_each(|tensor| *tensor = in_groups(tensor, group)));
    let blocks_of_one = POSITIONS.div_ceil(BLOCK_LEN);
    // Each sequence lies in the cache twice.
    let kv = KvLayout { format: KvFormat::F16, block_len: BLOCK_LEN, num_blocks: 2 * SEQUENCES * blocks_of_one };
    let mut executable = exact.load(plan.clone(), weights, kv)?;
    let texts: Vec<_> = (0..SEQUENCES).map(|_| rng.tokens(POSITIONS, plan.vocab_size)).collect();
    let mut expected = vec![vec![]; SEQUENCES];
    for (sequence, text) in texts.iter().enumerate() {
        for position in 0..POSITIONS {
            let mut input = StepInput::default();
            input.push_sequence(&text[position..=position], position, &table(sequence, POSITIONS));
            input.output_rows = vec![0];
            expected[sequence].push(executable.replay(&input)?.to_vec());
        }
    }
    // What is in the second place of a sequence.
    let mut seen = [0; SEQUENCES];
    let (mut rows, mut different) = (0, 0);
    for _ in 0..trials {
        let mut input = StepInput::default();
        let mut places = vec![];
        let mut below = |n: usize| rng.tokens(1, n)[0] as usize;
        for (sequence, text) in texts.iter().enumerate() {
            if below(3) == 0 && !(sequence + 1 == SEQUENCES && places.is_empty()) {
                continue;
            }
            let most = [1, 2, 9, 40, 70, ROWS_MAX][below(6)].min(ROWS_MAX - input.token_ids.len());
            let again = below(2) == 1;
            if most == 0 {
                continue;
            }
            let begin = match again {
                true if seen[sequence] == POSITIONS || below(8) == 0 => 0,
                true => seen[sequence],
                false => below(POSITIONS),
            };
            let end = (begin + 1 + below(most)).min(POSITIONS);
            if again {
                seen[sequence] = end;
            }
            let place = if again { SEQUENCES + sequence } else { sequence };
            input.push_sequence(&text[begin..end], begin, &table(place, POSITIONS));
            places.extend((begin..end).map(|position| (sequence, position)));
        }
        input.output_rows = (0..input.token_ids.len() as u32).collect();
        let found = executable.replay(&input)?;
        for (found, &(sequence, position)) in found.chunks_exact(plan.vocab_size).zip(&places) {
            let expected = &expected[sequence][position];
            different += found.iter().zip(expected).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            rows += 1;
        }
    }
    println!("alike {name}: {trials} steps, {rows} rows, {different} numbers with other bits");
    if different > 0 {
        return Err(format!("{name}: {different} numbers have other bits").into());
    }
    Ok(())
}

/// How far any result of a step is off, in deviations of its row; NaN where one is.
fn furthest_off(executable: &mut dyn Executable, input: &StepInput, expected: &[Vec<f32>]) -> Checked<f32> {
    let (mut worst, mut index) = (0f32, 0);
    let rows = input.token_ids.len();
    executable.replay_observed(input, &mut |_: usize, _: Observed, found: &[f32]| {
        let width = found.len() / rows;
        for (found, expected) in found.chunks(width).zip(expected[index].chunks(width)) {
            let square = expected.iter().map(|x| x * x).sum::<f32>() / width as f32;
            for (found, expected) in found.iter().zip(expected) {
                let off = (found - expected).abs() / square.sqrt();
                worst = if worst.is_nan() || off <= worst { worst } else { off };
            }
        }
        index += 1;
    })?;
    if index != expected.len() {
        return Err(format!("{index} results, expected {}", expected.len()).into());
    }
    Ok(worst)
}

/// Tokens drawn from random logits, each as a full sort draws it.
fn draws(device: &GpuBackend) -> Checked {
    const VOCAB_SIZE: usize = 3001;
    const ROWS: usize = 64;
    let plan = Graph::build("table", 64, &AnyShape, |g, w| {
        let x = g.embed(w.get("table", [VOCAB_SIZE, VOCAB_SIZE])?, VOCAB_SIZE);
        Ok::<_, plan::BuildError>(g.select_outputs(x))
    })?;
    let mut rng = Rng::new(21);
    let mut table = vec![0f32; VOCAB_SIZE * VOCAB_SIZE];
    for (row, logits) in table.chunks_exact_mut(VOCAB_SIZE).take(ROWS).enumerate() {
        let scale = [0.0, 0.5, 2.0, 4.0, 30.0][row % 5];
        // Some of them in steps, so that many are equal.
        let step = if row % 3 == 0 { 0.25 } else { 0.0 };
        for logit in logits {
            *logit = rng.normal() * scale;
            if step > 0.0 {
                *logit = (*logit / step).round() * step;
            }
        }
    }
    let weights = vec![Tensor::from_f32(WeightFormat::F32, vec![VOCAB_SIZE, VOCAB_SIZE], &table)?];
    let kv = KvLayout { format: KvFormat::F16, block_len: 8, num_blocks: ROWS };
    let mut executable = device.load(Arc::new(plan), weights, kv)?;
    let mut drawn = 0;
    for round in 0..100 {
        let mut input = StepInput::default();
        for row in 0..ROWS as u32 {
            let at = input.push_sequence(&[row], 0, &[row]);
            input.output_rows.push(at as u32);
            input.sampling.push(RowSampling {
                temperature: rng.pick(&[1.0, 0.8, 0.05, 3.0]),
                top_k: rng.pick(&[0, 1, 40, 1000]),
                top_p: share(rng.pick(&[1.0, 0.95, 0.3])),
                min_p_ln: rng.pick(&[0.0f32, 0.05]).ln(),
                pick: rng.next_u64(),
            });
        }
        executable.enqueue(&input)?;
        for (row, choice) in executable.collect()?.iter().enumerate() {
            let expected = choose(&table[row * VOCAB_SIZE..][..VOCAB_SIZE], &input.sampling[row]);
            if choice.token_id as usize != expected {
                let how = &input.sampling[row];
                return Err(format!("round {round}, row {row}: {}, not {expected}: {how:?}", choice.token_id).into());
            }
            drawn += 1;
        }
    }
    println!("draws: {drawn} tokens, each as a full sort draws it");
    Ok(())
}

/// Steps of whole mixtures, whose launches take in more than one op, beside the same launched op by op: as a share of the
/// deviation of a row's logits; and with the same bits again.
fn mixture_steps(device: &GpuBackend) -> Checked {
    for (head_dim, window, has_shared, experts) in [
        (128, None, false, 16),
        (64, None, false, 16),
        (128, Some(21), false, 16),
        (128, None, true, 16),
        // Whose rows choose few experts of many, as those of large models do.
        (128, None, false, 64),
        (128, None, true, 64),
    ] {
        let slots = if experts == 16 { 4 } else { 8 };
        let mut config = serde_json::json!({
            "model_type": "qwen3_moe", "vocab_size": 515, "hidden_size": 512, "intermediate_size": 1024,
            "moe_intermediate_size": 256, "num_experts": experts, "num_experts_per_tok": slots, "norm_topk_prob": true,
            "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": head_dim,
            "hidden_act": "silu", "attention_bias": false, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0, "use_sliding_window": window.is_some(), "sliding_window": window,
            "max_window_layers": 0, "tie_word_embeddings": false,
        });
        if has_shared {
            config = serde_json::json!({
                "model_type": "glm4_moe", "vocab_size": 515, "hidden_size": 512, "intermediate_size": 1024,
                "moe_intermediate_size": 256, "n_routed_experts": experts, "num_experts_per_tok": slots, "norm_topk_prob": true,
                "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
                "routed_scaling_factor": 1.8, "num_hidden_layers": 4, "num_attention_heads": 8,
                "num_key_value_heads": 2, "head_dim": head_dim, "hidden_act": "silu", "attention_bias": false,
                "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5, "use_qk_norm": false, "tie_word_embeddings": false,
            });
        }
        let textbook = restrict_outputs(models::build_plan(&config, &AnyShape)?);
        let plan = Arc::new(fuse(share_slots(textbook, |_| true)));
        let few = [WeightFormat::F16, WeightFormat::Q8_0, WeightFormat::Q4_0];
        let of_all = device.claims().formats.into_iter().filter(|&format| format != WeightFormat::F32);
        let formats = if experts == 16 { few.to_vec() } else { of_all.collect() };
        for format in formats {
            let mut weights = random_weights(&plan, &mut Rng::new(8), format);
            for (info, tensor) in plan.weights.iter().zip(&mut weights) {
                if info.name.ends_with(".gate.weight") {
                    *tensor = Tensor::from_f32(WeightFormat::F32, tensor.shape().to_vec(), &tensor.to_f32())?;
                }
            }
            // Rows of one step and of two are rounded more coarsely, and more of them jump among many experts.
            let steps = [(1, 400), (2, 20), (7, 20), (15, 20), (27, 20), (40, 20)];
            for &(rows, positions) in if experts == 16 { &steps[..] } else { &steps[2..] } {
                let what = format!(
                    "heads of {head_dim}, window {window:?}, shared expert: {has_shared}, {experts} experts, {format}"
                );
                // Activations in eight bits, as one row of codes has them, are rounded more coarsely.
                let jump = if format == WeightFormat::F16 { 0.03 } else { 0.3 };
                let (worst, jumps) = together_and_apart(device, &plan, &weights, (rows, positions), jump)
                    .map_err(|fault| format!("mixture steps, {what}, {rows} rows: {fault}"))?;
                println!("mixture steps, {what}, {rows} rows: off by {worst:.1e} deviations, {jumps} rows by a jump");
            }
        }
    }
    Ok(())
}

/// The same of steps with latent attention in the published width, each of whose layers is a few launches.
fn latent_steps(device: &GpuBackend) -> Checked {
    for (heads, nope, value) in [(20, 192, 256), (16, 128, 128), (5, 64, 40)] {
        let config = serde_json::json!({
            "model_type": "glm4_moe_lite", "vocab_size": 515, "hidden_size": 512, "intermediate_size": 1024,
            "num_hidden_layers": 3, "num_attention_heads": heads, "num_key_value_heads": heads, "q_lora_rank": 256,
            "kv_lora_rank": 512, "qk_nope_head_dim": nope, "qk_rope_head_dim": 64, "v_head_dim": value,
            "hidden_act": "silu", "attention_bias": false, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
            "n_shared_experts": 1, "first_k_dense_replace": 3, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc",
            "norm_topk_prob": true, "routed_scaling_factor": 1.8, "tie_word_embeddings": false,
        });
        let plan = Arc::new(fuse(restrict_outputs(models::build_plan(&config, &AnyShape)?)));
        // Rows of a head's matrix of keys are whole blocks.
        let fits = |format: &WeightFormat| nope % format.block_len() == 0 && value * heads % format.block_len() == 0;
        for format in device.claims().formats.into_iter().filter(|&format| format != WeightFormat::F32).filter(fits) {
            let weights = random_weights(&plan, &mut Rng::new(8), format);
            // One row and two are cut in several clusters behind 1,024 positions.
            let deep = if format == WeightFormat::Q8_0 { 1200 } else { 70 };
            for (rows, positions) in [(1, deep), (2, deep), (3, 130), (8, 70), (9, 20)] {
                let what = format!("{heads} heads of {nope} and {value}, {format}, {rows} rows");
                let jump = if format == WeightFormat::F16 { 0.03 } else { 0.3 };
                let (worst, jumps) = together_and_apart(device, &plan, &weights, (rows, positions), jump)
                    .map_err(|fault| format!("latent steps, {what}: {fault}"))?;
                println!("latent steps, {what}: off by {worst:.1e} deviations, {jumps} rows by more than {jump}");
            }
        }
    }
    Ok(())
}

/// How far logits of steps of `rows` sequences are off at most where launches take in more than one op, and how many rows are
/// off by more than `jump` deviations: one expert chosen instead of another, because of a rounding, is a jump.
fn together_and_apart(
    device: &GpuBackend,
    plan: &Arc<Plan>,
    weights: &[Tensor],
    (rows, positions): (usize, usize),
    jump: f32,
) -> Checked<(f32, usize)> {
    let blocks_each = positions.div_ceil(16);
    let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: rows * blocks_each };
    let tokens = Rng::new(9).tokens(rows * positions, plan.vocab_size);
    let (mut worst, mut jumps, mut first_bits) = (0f32, 0, vec![]);
    for round in 0..2 {
        let mut together = device.load(plan.clone(), weights.to_vec(), kv)?;
        let mut apart = device.load(plan.clone(), weights.to_vec(), kv)?;
        for position in 0..positions {
            let mut input = StepInput::default();
            for row in 0..rows {
                let table: Vec<_> =
                    (0..blocks_each as u32).rev().map(|block| (row * blocks_each) as u32 + block).collect();
                input.push_sequence(&tokens[row * positions + position..][..1], position, &table);
                input.output_rows.push(row as u32);
            }
            let found = together.replay(&input)?.to_vec();
            let bits: Vec<_> = found.iter().map(|x| x.to_bits()).collect();
            if round > 0 {
                if first_bits[position] != bits {
                    return Err(format!("position {position}: other bits").into());
                }
                continue;
            }
            first_bits.push(bits);
            let expected = apart.replay_observed(&input, &mut |_, _, _| {})?;
            for (found, expected) in found.chunks(plan.vocab_size).zip(expected.chunks(plan.vocab_size)) {
                let square = expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32;
                if !square.is_finite() || !found.iter().all(|logit| logit.is_finite()) {
                    return Err(format!("position {position}: logits that are not finite").into());
                }
                let off = found.iter().zip(expected).fold(0f32, |most, (a, b)| most.max((a - b).abs())) / square.sqrt();
                if off > jump { jumps += 1 } else { worst = worst.max(off) }
            }
        }
    }
    if jumps * 20 > rows * positions {
        return Err(format!("{jumps} of {} rows are off by more than {jump} deviations", rows * positions).into());
    }
    Ok((worst, jumps))
}

/// Layers of experts in every format, with the router in a launch with them and alone, within the bounds of the error
/// analysis, and with the same bits again.
fn mixture_layers(device: &GpuBackend, shard: usize, shards: usize) -> Checked {
    use mixtures::{KV, Mixture, mixture, mixture_plan};
    // INT4 in groups of 128, without zero points and with them, has kernels of its own.
    let int4 = [WeightFormat::Q4_0, WeightFormat::Q5_0].map(|format| (format, true));
    let formats: Vec<_> = device.claims().formats.into_iter().map(|format| (format, false)).chain(int4).collect();
    for (format, is_int4) in formats.into_iter().skip(shard).step_by(shards) {
        let mixtures = [(128, 8, 0), (8, 2, 0), (4, 4, 0), (40, 3, 0), (132, 4, 0), (64, 4, 1), (128, 6, 2)];
        for (experts, top_k, shared) in mixtures {
            let plain = mixture(512, 256, experts, top_k);
            let of = Mixture { bias: experts == 8, router: plan::Router { shared, ..plain.router }, ..plain };
            let textbook = Arc::new(mixture_plan(of, false));
            let fused = Arc::new(fuse((*textbook).clone()));
            for router in [WeightFormat::F32, WeightFormat::BF16, WeightFormat::F16] {
                let mut weights = random_weights(&textbook, &mut Rng::new(3), format);
                for (info, tensor) in textbook.weights.iter().zip(&mut weights) {
                    if info.name == "gate.weight" {
                        *tensor = Tensor::from_f32(router, tensor.shape().to_vec(), &tensor.to_f32())?;
                    } else if is_int4 {
                        *tensor = in_groups(tensor, 128);
                    }
                }
                let mut analysis = ErrorAnalysis::new(textbook.clone(), &weights, KV, device.claims().activations);
                let mut executable = device.load(fused.clone(), weights, KV)?;
                let (mut worst, mut off) = (0f64, 0f64);
                let many = if router == WeightFormat::F32 && experts % 8 == 0 { &[300, 19][..] } else { &[19] };
                for &rows in [1, 1, 5, 1, 40, 2].iter().chain(many) {
                    let mut input = StepInput::default();
                    let table: Vec<u32> = (0..KV.num_blocks as u32).rev().collect();
                    input.push_sequence(&Rng::new(rows as u64 + 7).tokens(rows, mixtures::VOCAB), 0, &table);
                    input.output_rows.extend(0..rows as u32);
                    let bound = analysis.run(&input);
                    let found = executable.replay(&input)?.to_vec();
                    let share = bound.worst(&found).map_or(0.0, |(_, share)| share);
                    if share > 1.0 {
                        let what = format!("{format}, {experts} experts, router in {router}, {rows} rows");
                        return Err(format!("{what}: {share} of the bound").into());
                    }
                    worst = worst.max(share);
                    let square = bound.value.iter().map(|x| x * x).sum::<f64>() / bound.value.len() as f64;
                    let errors = found.iter().zip(&bound.value).map(|(&x, y)| (f64::from(x) - y).powi(2));
                    off = off.max((errors.sum::<f64>() / found.len() as f64 / square).sqrt());
                    for _ in 0..10 {
                        if executable.replay(&input)? != found {
                            return Err(format!("{format}, {experts} experts, {rows} rows: other bits").into());
                        }
                    }
                }
                let int4 = if is_int4 { " as INT4 is read" } else { "" };
                println!(
                    "mixture in {format}{int4}, {top_k} of {experts} and {shared} by {router}: {worst:.3} of the bound, off by \
                     {off:.1e}"
                );
            }
        }
    }
    Ok(())
}

/// Attention of prompts, of rows that go on with them and of both together, for heads of every width that has kernels of its
/// own, within the bounds of the error analysis, and with the same bits again.
fn attention_layers(device: &GpuBackend) -> Checked {
    use attentions::{Step, attention_plan, heads, input, weights};
    const STEPS: [Step<'static>; 9] = [
        &[(0, 40, 0)],
        &[(0, 1, 40), (1, 20, 0)],
        &[(0, 260, 41)],
        &[(1, 129, 20), (0, 70, 301)],
        &[(0, 400, 371)],
        &[(0, 1, 771), (1, 1, 149)],
        &[(1, 128, 150)],
        &[(0, 64, 772), (1, 500, 278)],
        &[(0, 1, 836)],
    ];
    for head_dim in [64, 80, 96, 128, 192, 256, 112] {
        for (query_heads, kv_heads, window, sinks, block_len) in
            [(4, 1, None, false, 16), (3, 3, Some(100), true, 5), (6, 2, Some(300), false, 32), (2, 1, None, true, 24)]
        {
            let plan = attention_plan(heads(query_heads, kv_heads, head_dim, window), sinks, 900);
            let weights = weights(&plan);
            let kv = KvLayout { format: KvFormat::F16, block_len, num_blocks: 2 * 900_usize.div_ceil(block_len) + 1 };
            let mut blocks: Vec<u32> = (0..kv.num_blocks as u32).rev().collect();
            let tables = [blocks.split_off(900_usize.div_ceil(block_len)), blocks];
            let analysis = ErrorAnalysis::new(plan.clone(), &weights, kv, |_| ActivationRounding::F32);
            let mut analysis = analysis.with_attention(ActivationRounding::F16);
            let mut executable = device.load(plan, weights, kv)?;
            let (mut rng, mut worst) = (Rng::new(2), 0f64);
            for step in STEPS {
                let input = input(&mut rng, step, &tables);
                let bound = analysis.run(&input);
                let found = executable.replay(&input)?.to_vec();
                let share = bound.worst(&found).map_or(0.0, |(_, share)| share);
                if share > 1.0 {
                    return Err(
                        format!("heads of {head_dim}, window {window:?}, {step:?}: {share} of the bound").into()
                    );
                }
                worst = worst.max(share);
                for _ in 0..5 {
                    if executable.replay(&input)? != found {
                        return Err(format!("heads of {head_dim}, window {window:?}, {step:?}: other bits").into());
                    }
                }
            }
            println!("attention, heads of {head_dim}, window {window:?}: {worst:.3} of the bound");
        }
    }
    Ok(())
}

/// The format of a matrix in files that are called Q4_K_M: some of those that matter most have six bits.
fn of_q4_k_m(name: &str, layers: usize) -> WeightFormat {
    let layer = name.split('.').find_map(|part| part.parse::<usize>().ok());
    let is_better = |layer: usize| layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
    match layer {
        Some(layer) if name.contains("v_proj") || name.contains("down_proj") => {
            if is_better(layer) {
                WeightFormat::Q6_K
            } else {
                WeightFormat::Q4_K
            }
        }
        Some(_) => WeightFormat::Q4_K,
        None => WeightFormat::Q6_K,
    }
}

/// A plan in the shape of that name, with random weights. All matrices are cut from one pattern, each from a place of its own,
/// because layers that are alike add up to what is much the same in all rows, and alike rows go to the same experts.
fn model(shape: &str, format: &str) -> Checked<(Arc<Plan>, Vec<Tensor>)> {
    let shapes: serde_json::Value = serde_json::from_str(include_str!("../../cli/src/bench/shapes.json"))?;
    let config = shapes.get(shape).ok_or_else(|| format!("there is no shape `{shape}`"))?;
    let plan = restrict_outputs(models::build_plan(config, &AnyShape)?);
    let is_int4 = ["int4", "int4_asym"].contains(&format);
    let format_of = |name: &str| {
        if format == "q4_k_m" {
            return Some(of_q4_k_m(name, plan.kv_layers.len()));
        }
        let format = match format {
            "int4" => "Q4_0",
            "int4_asym" => "Q5_0",
            format => format,
        };
        let format = WeightFormat::ALL.into_iter().find(|known| known.name().eq_ignore_ascii_case(format))?;
        // The head of llama.cpp's files of that name.
        let has_better_head =
            !is_int4 && format.is_quantized() && ![WeightFormat::Q8_0, WeightFormat::FP8].contains(&format);
        Some(if has_better_head && !name.contains(".layers.") { WeightFormat::Q6_K } else { format })
    };
    /// Weights that every format has in whole blocks, and groups of INT4.
    const UNIT: usize = 256;
    // An odd number of these, so that no row of a matrix is like the next.
    const UNITS: usize = (1 << 20) / UNIT + 1;
    let mut rng = Rng::new(1);
    let values: Vec<f32> = (0..UNITS * UNIT).map(|_| rng.normal() * 0.02).collect();
    let mut patterns = BTreeMap::<&str, Bytes>::new();
    let mut weights = vec![];
    for weight in &plan.weights {
        let &[_, _] = &weight.shape[..] else {
            weights.push(Tensor::from_f32(WeightFormat::F32, weight.shape.clone(), &vec![1.0; weight.shape[0]])?);
            continue;
        };
        let format = format_of(&weight.name).ok_or("there is no such format")?;
        // Routers stay as files of mixtures have them.
        let is_router = [".gate.weight", ".router.weight"].iter().any(|name| weight.name.ends_with(name));
        let format = if is_router && format.is_quantized() { WeightFormat::F32 } else { format };
        let divides = weight.shape[1].is_multiple_of(format.block_len());
        let format = if divides { format } else { WeightFormat::Q8_0 };
        let bytes = Tensor::byte_len(format, &weight.shape)?;
        let start = rng.tokens(1, UNITS)[0] as usize * Tensor::byte_len(format, &[UNIT])?;
        let pattern = patterns.entry(format.name()).or_default();
        if pattern.len() < start + bytes {
            let mut block = Tensor::from_f32(format, vec![values.len()], &values)?;
            if is_int4 {
                block = in_groups(&block, 128);
            }
            let repeats = bytes.div_ceil(block.bytes().len()) + 1;
            *pattern = block.bytes().repeat(repeats).into();
        }
        weights.push(Tensor::new(format, weight.shape.clone(), pattern.slice(start..start + bytes))?);
    }
    let format_of = |weight: &plan::WeightId| weights[weight.index()].format();
    // Two ways of shared experts can be compared in one run.
    let is_apart = std::env::var_os("HOTMETAL_SHARED_APART").is_some();
    let is_alike = |all: &[plan::WeightId]| !is_apart && all.iter().all(|one| format_of(one) == format_of(&all[0]));
    Ok((Arc::new(fuse(share_slots(plan, is_alike))), weights))
}

const BLOCK_LEN: usize = 32;

fn load(
    device: &GpuBackend,
    shape: &str,
    format: &str,
    sequences: usize,
    positions: usize,
) -> Checked<(u64, Box<dyn Executable>)> {
    let (plan, weights) = model(shape, format)?;
    let bytes = weights.iter().map(|weight| weight.bytes().len() as u64).sum();
    let begun = Instant::now();
    let blocks = positions.div_ceil(BLOCK_LEN) * sequences;
    let kv = KvLayout { format: KvFormat::F16, block_len: BLOCK_LEN, num_blocks: blocks };
    let executable = device.load(plan, weights, kv)?;
    println!("{shape} {format}: {:.2} GB loaded in {:.2} s", bytes as f64 / 1e9, begun.elapsed().as_secs_f64());
    Ok((bytes, executable))
}

fn table(sequence: usize, positions: usize) -> Vec<u32> {
    let blocks = positions.div_ceil(BLOCK_LEN);
    (sequence * blocks..(sequence + 1) * blocks).map(|block| block as u32).collect()
}

/// Milliseconds: least, median, most.
fn spread(mut times: Vec<Duration>) -> [f64; 3] {
    times.sort();
    [times[0], times[times.len() / 2], times[times.len() - 1]].map(|time| time.as_secs_f64() * 1e3)
}

fn decode(
    device: &GpuBackend,
    shape: &str,
    format: &str,
    batches: &[usize],
    depth: usize,
    sampling: RowSampling,
) -> Checked {
    const WARM_UP: usize = 20;
    const STEPS: usize = 200;
    let positions = depth + WARM_UP + STEPS + 1;
    let (bytes, mut executable) = load(device, shape, format, batches.iter().copied().max().unwrap_or(1), positions)?;
    for &batch in batches {
        let tables: Vec<_> = (0..batch).map(|sequence| table(sequence, positions)).collect();
        let times = run_ahead(&mut *executable, &tables, depth, WARM_UP + STEPS, sampling, |_| Ok(()))?;
        let times = times[WARM_UP..].to_vec();
        let [least, median, most] = spread(times);
        println!(
            "decode {shape} {format} batch {batch} at {depth}, {}: {median:.3} ms a step ({least:.3} to {most:.3}), \
             {:.0} tokens/s, {:.0} GB/s of weights",
            if sampling.temperature == 0.0 { "likeliest".to_owned() } else { format!("{sampling:?}") },
            1e3 / median * batch as f64,
            bytes as f64 / median / 1e6,
        );
    }
    Ok(())
}

/// Steps with each way in turn that the tuner would try, beside what is taken without a table.
fn ways(
    device: &GpuBackend,
    tuning: &Tuning,
    (shape, format): (&str, &str),
    batch: usize,
    depth: usize,
    text: &str,
) -> Checked {
    const WARM_UP: usize = 5;
    const STEPS: usize = 40;
    let positions = depth + WARM_UP + STEPS + 1;
    let (_, mut executable) = load(device, shape, format, batch, positions)?;
    let tables: Vec<_> = (0..batch).map(|sequence| table(sequence, positions)).collect();
    let mut time = || -> Checked<f64> {
        executable.forget_programs();
        let steps = WARM_UP + STEPS;
        let times = run_ahead(&mut *executable, &tables, depth, steps, RowSampling::default(), |_| Ok(()))?;
        Ok(spread(times[WARM_UP..].to_vec())[1])
    };
    tuning.watch();
    let usual = time()?;
    for Tunable { key, candidates, default } in tuning.watched().into_iter().filter(|way| way.key.contains(text)) {
        println!("  {key}: usually {}, {usual:.3} ms a step", candidates[default]);
        let mut found = vec![];
        for candidate in candidates {
            tuning.set(&key, Some(&candidate));
            found.push((time()?, candidate));
        }
        tuning.set(&key, None);
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        found.iter().take(16).for_each(|(ms, candidate)| println!("    {ms:.3} {candidate}"));
    }
    Ok(())
}

/// Prints what ops of one name, shape and variant add to a replay of a step, and what they take one after another; for steps
/// of so many sequences.
fn profile(
    device: &GpuBackend,
    (shape, format): (&str, &str),
    batches: &[usize],
    tokens: usize,
    depth: usize,
) -> Checked {
    let most = batches.iter().copied().max().unwrap_or(1);
    let (_, mut executable) = load(device, shape, format, most, depth + tokens)?;
    let recorder = Recorder::new();
    executable.record(recorder.clone())?;
    for &batch in batches {
        let mut input = StepInput::default();
        let mut rng = Rng::new(2);
        for sequence in 0..batch {
            let row = input.push_sequence(&rng.tokens(tokens, 30_000), depth, &table(sequence, depth + tokens));
            input.output_rows.push((row + tokens - 1) as u32);
        }
        for is_on in [false, true] {
            recorder.set_on(is_on);
            executable.enqueue(&input)?;
            executable.collect()?;
        }
        println!("{shape} {format}, {batch} x {tokens} after {depth}: of each op, us in a replay, us alone");
        print_parts(recorder.take().first().ok_or("the step left no record")?);
    }
    Ok(())
}

/// Each kind of op of a step with its times, in the order of names.
fn print_parts(record: &StepRecord) {
    let mut times = BTreeMap::<String, (usize, u64, u64)>::new();
    for (event, &alone_ns) in record.events.iter().zip(&record.alone_ns) {
        let op = &record.ops[event.op as usize];
        let kind = format!("{} {}x{} {}", op.name, op.out_features, op.in_features, op.variant);
        let (count, ns, alone) = times.entry(kind).or_default();
        (*count, *ns, *alone) = (*count + 1, *ns + event.end_ns - event.begin_ns, *alone + alone_ns);
    }
    let us = |ns: u64, count: usize| ns as f64 / count as f64 / 1e3;
    for (kind, (count, ns, alone)) in &times {
        println!("{count:5} x {:8.2} {:8.2}  {kind}", us(*ns, *count), us(*alone, *count));
    }
    let sum = |time: fn(&(usize, u64, u64)) -> u64| us(times.values().map(time).sum(), 1);
    let step = us(record.end_ns - record.begin_ns, 1);
    println!("  sum   {:8.2} {:8.2}  of a step of {step:.2}", sum(|time| time.1), sum(|time| time.2));
}

/// Decodes `steps` tokens after `depth` as the engine does: each step is submitted before the tokens of the one before are
/// read. Returns the time from each step's tokens to the next step's.
fn run_ahead(
    executable: &mut dyn Executable,
    tables: &[Vec<u32>],
    depth: usize,
    steps: usize,
    sampling: RowSampling,
    mut after_step: impl FnMut(&dyn Executable) -> Checked,
) -> Checked<Vec<Duration>> {
    let (mut input, mut times) = (StepInput::default(), Vec::with_capacity(steps));
    let mut fill = |position: usize| {
        input.clear();
        for (output, table) in (0..).zip(tables) {
            let token = if position == depth { 1 + output } else { FED | output };
            let row = input.push_sequence(&[token], position, table);
            input.output_rows.push(row as u32);
            if sampling.temperature > 0.0 {
                // Another number each time.
                let pick = (position as u64 * 31 + u64::from(output)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                input.sampling.push(RowSampling { pick, ..sampling });
            }
        }
        input.clone()
    };
    executable.enqueue(&fill(depth))?;
    let mut last = Instant::now();
    for index in 1..=steps {
        if index < steps {
            executable.enqueue(&fill(depth + index))?;
        }
        let choices = executable.collect()?;
        if let Some(fault) = choices.iter().find_map(|choice| choice.fault) {
            return Err(format!("the logits of step {index} hold {} for token {}", fault.1, fault.0).into());
        }
        times.push(last.elapsed());
        last = Instant::now();
        after_step(executable)?;
    }
    Ok(times)
}

/// Many tokens: every step is one submission and one wait, nothing is allocated, and memory stays as it was.
fn steady(device: &GpuBackend, shape: &str, format: &str, tokens: usize) -> Checked {
    let (_, mut executable) = load(device, shape, format, 1, tokens)?;
    let free_bytes = || Ok::<_, Box<dyn Error>>(GpuBackend::cuda(0, GpuOptions::default())?.device().memory_bytes);
    let (mut first, mut free_before, mut step) = (Counters::default(), 0, 0);
    let sampling = RowSampling::default();
    let times = run_ahead(&mut *executable, &[table(0, tokens)], 0, tokens, sampling, |executable| {
        step += 1;
        match step {
            100 => (first, free_before) = (executable.counters(), free_bytes()?),
            _ if step > 100 && step < tokens => {
                let now = executable.counters();
                let steps = step as u64 - 100;
                let expected = Counters { steps: first.steps + steps, waits: first.waits + steps, ..first };
                if now != expected {
                    return Err(format!("after {step} tokens {now:?}, expected {expected:?}").into());
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    let (lost, [_, median, _]) = (free_before.saturating_sub(free_bytes()?), spread(times));
    println!(
        "steady {shape} {format}: {tokens} tokens of {median:.3} ms, one submission and one wait each, {lost} bytes lost"
    );
    if lost > 0 { Err("memory is not flat".into()) } else { Ok(()) }
}

/// Prompts of so many tokens each, other ones in each place, because equal rows would choose the same experts.
fn prefill(device: &GpuBackend, shape: &str, format: &str, lens: &[usize]) -> Checked {
    let (_, mut executable) = load(device, shape, format, 1, lens.iter().copied().max().unwrap_or(1))?;
    for &tokens in lens {
        let mut input = StepInput::default();
        input.push_sequence(&Rng::new(2).tokens(tokens, 30_000), 0, &table(0, tokens));
        input.output_rows.push(tokens as u32 - 1);
        let mut times = vec![];
        for index in 0..6 {
            let begun = Instant::now();
            executable.replay(&input)?;
            if index > 0 {
                times.push(begun.elapsed());
            }
        }
        let [least, median, most] = spread(times);
        let rate = tokens as f64 / median * 1e3;
        println!(
            "prefill {shape} {format} {tokens} tokens: {median:.2} ms ({least:.2} to {most:.2}), {rate:.0} tokens/s"
        );
    }
    Ok(())
}

/// Numbers with commas between them.
fn list(text: &str) -> Checked<Vec<usize>> {
    text.split(',').map(|number| Ok(number.parse()?)).collect()
}
