//! Decode and prefill speed on random weights in the shapes of Qwen2.5-0.5B, beside the read bandwidth of the same
//! threads in the same run: `cargo run --release -p cpu --example decode_bandwidth -- [FORMATS] [THREADS] [ISA]
//! [LAYERS]`, for example `q8_0,f16 1,2 avx2 4`. One line a measurement, on stdout.
//!
//! With one thread, times are of the processor, not of the wall, so that a busy machine does not falsify them much; with
//! more they are of the wall, since workers that wait also use a processor.

#![expect(clippy::print_stdout, reason = "a report is what this program is for")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use backend::{Backend, Executable};
use bytes::Bytes;
use cpu::{CpuBackend, CpuOptions, IsaLevel};
use plan::{
    Activation, AnyShape, BuildError, Graph, Heads, KvFormat, KvLayout, Plan, Rope, RopeScaling, StepInput, fuse,
    restrict_outputs,
};
use tensor::{Tensor, WeightFormat};

const LAYERS: usize = 24;
const HIDDEN: usize = 896;
const INTERMEDIATE: usize = 4864;
const HEADS: usize = 14;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const VOCAB: usize = 151_936;

const BLOCK_LEN: usize = 32;
const CONTEXT: usize = 4096;

fn main() {
    let mut args = std::env::args().skip(1);
    let list = |arg: Option<String>, default: &str| -> Vec<String> {
        arg.unwrap_or_else(|| default.to_owned()).split(',').map(str::to_owned).collect()
    };
    let formats = list(args.next(), "f16,bf16,q8_0");
    let threads = list(args.next(), "1,2");
    let isa = args.next().map(|name| {
        IsaLevel::ALL.into_iter().find(|level| level.name() == name).unwrap_or_else(|| panic!("no level `{name}`"))
    });
    // Fewer layers, for a quick look.
    let layers = args.next().map_or(LAYERS, |layers| layers.parse().expect("a number of layers"));
    let plan = Arc::new(fuse(restrict_outputs(qwen2_0_5b(layers).expect("any shape will do"))));
    for format in formats {
        let named = |format_: &&WeightFormat| format_.name().eq_ignore_ascii_case(&format);
        let format = *WeightFormat::ALL.iter().find(named).unwrap_or_else(|| panic!("no format `{format}`"));
        let weights = random_weights(&plan, format);
        let bytes: usize = weights.iter().map(|tensor| tensor.bytes().len()).sum();
        for threads in &threads {
            let threads = threads.parse().expect("a number of threads");
            measure(&plan, &weights, format, bytes, threads, isa);
        }
    }
}

fn measure(
    plan: &Arc<Plan>,
    weights: &[Tensor],
    format: WeightFormat,
    bytes: usize,
    threads: usize,
    isa: Option<IsaLevel>,
) {
    let options = CpuOptions { threads: Some(threads), isa, pin: true, repack: true };
    let backend = CpuBackend::new(options).expect("an instruction set of this machine");
    let kv = KvLayout { format: KvFormat::F16, block_len: BLOCK_LEN, num_blocks: CONTEXT / BLOCK_LEN };
    let mut executable = backend.load(plan.clone(), weights.to_vec(), kv).expect("memory for the cache");
    let blocks: Vec<u32> = (0..kv.num_blocks as u32).collect();

    let read = read_bandwidth(weights, threads);
    for depth in [0, 2048] {
        // The cache below `depth` need not be filled: zeros are read as fast.
        let ms = median_ms(threads, if depth == 0 { 40 } else { 20 }, |index| {
            step(&mut *executable, &[1], depth + index, &blocks)
        });
        let gb_s = bytes as f64 / ms / 1e6;
        println!(
            "{format} {} {threads}t decode@{depth}: {:.1} tok/s, {ms:.2} ms, {gb_s:.1} GB/s, {:.0} % of {read:.1} GB/s read",
            backend.isa(),
            1e3 / ms,
            100.0 * gb_s / read,
        );
    }
    for tokens in [8, 512] {
        let prompt: Vec<u32> = (0..tokens).collect();
        let ms = median_ms(threads, 3, |_| step(&mut *executable, &prompt, 0, &blocks));
        // Two operations a weight of the layers and token; the head runs for one row.
        let parameters =
            plan.kv_layers.len() * (HIDDEN * (2 * HEADS + 2 * KV_HEADS) * HEAD_DIM + 3 * HIDDEN * INTERMEDIATE);
        let flop = 2.0 * (parameters * tokens as usize + HIDDEN * VOCAB) as f64;
        println!(
            "{format} {} {threads}t prefill {tokens}: {:.0} tok/s, {ms:.1} ms, {:.0} GFLOP/s",
            backend.isa(),
            1e3 * f64::from(tokens) / ms,
            flop / ms / 1e6
        );
    }
}

fn step(executable: &mut dyn Executable, tokens: &[u32], position: usize, blocks: &[u32]) {
    let mut input = StepInput::default();
    input.push_sequence(tokens, position, blocks);
    input.output_rows.push(tokens.len() as u32 - 1);
    black_box(executable.replay(&input).expect("a well-formed step"));
}

/// The median time of `run`, after two runs to warm up.
fn median_ms(threads: usize, runs: usize, mut run: impl FnMut(usize)) -> f64 {
    (0..2).for_each(&mut run);
    let mut times: Vec<f64> = (0..runs)
        .map(|index| {
            let start = Clock::start(threads);
            run(index);
            start.seconds() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A running clock: of the processor for one thread, of the wall for more.
enum Clock {
    Processor(f64),
    Wall(Instant),
}

impl Clock {
    fn start(threads: usize) -> Self {
        if threads == 1 { Self::Processor(Self::processor_seconds()) } else { Self::Wall(Instant::now()) }
    }

    fn seconds(&self) -> f64 {
        match self {
            Self::Processor(start) => Self::processor_seconds() - start,
            Self::Wall(start) => start.elapsed().as_secs_f64(),
        }
    }

    fn processor_seconds() -> f64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a timespec to write to.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    }
}

/// GB/s that `threads` read the weights' own memory at, eight streams each: the best of five passes.
fn read_bandwidth(weights: &[Tensor], threads: usize) -> f64 {
    let largest = weights.iter().max_by_key(|tensor| tensor.bytes().len()).expect("a plan has weights");
    let (_, words, _) = bytemuck::pod_align_to::<u8, u64>(largest.bytes());
    let pass = || {
        let start = Clock::start(threads);
        std::thread::scope(|scope| {
            let mut parts = words.chunks(words.len().div_ceil(threads));
            let own = parts.next();
            parts.for_each(|part| drop(scope.spawn(|| black_box(sum_streams(part)))));
            black_box(own.map(sum_streams));
        });
        size_of_val(words) as f64 / start.seconds() / 1e9
    };
    (0..8).map(|_| pass()).fold(0.0, f64::max)
}

/// The sum of all words, read as eight streams.
fn sum_streams(words: &[u64]) -> u64 {
    const STREAMS: usize = 8;
    let len = words.len() / STREAMS / 8 * 8;
    let mut sums = [[0u64; 8]; STREAMS];
    for at in (0..len).step_by(8) {
        for (stream, sums) in sums.iter_mut().enumerate() {
            let line = &words[stream * len + at..][..8];
            sums.iter_mut().zip(line).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
        }
    }
    sums.as_flattened().iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Weights of about deviation 0.02 whose bits nobody chose.
fn random_weights(plan: &Plan, format: WeightFormat) -> Vec<Tensor> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    plan.weights
        .iter()
        .map(|info| {
            let len: usize = info.shape.iter().product();
            if info.shape.len() == 1 {
                let values: Vec<f32> = (0..len).map(|_| 1.0 + (random() % 100) as f32 * 1e-3).collect();
                return Tensor::from_f32(WeightFormat::F32, info.shape.clone(), &values).expect("a whole row");
            }
            // Sign and mantissa random, exponents near 2^-6.
            let word = |bits: u64| match format {
                WeightFormat::F32 => bits & 0x807f_ffff_807f_ffff | 0x3c80_0000_3c80_0000,
                WeightFormat::F16 => bits & 0x83ff_83ff_83ff_83ff | 0x2400_2400_2400_2400,
                WeightFormat::BF16 => bits & 0x807f_807f_807f_807f | 0x3c80_3c80_3c80_3c80,
                WeightFormat::Q8_0 => bits,
            };
            let num_bytes = Tensor::byte_len(format, &info.shape).expect("whole blocks");
            let mut words = vec![0u64; num_bytes.div_ceil(8)];
            words.iter_mut().for_each(|w| *w = word(random()));
            let mut bytes = bytemuck::cast_slice::<u64, u8>(&words)[..num_bytes].to_vec();
            if format == WeightFormat::Q8_0 {
                let scale = half::f16::from_f32(2e-4).to_le_bytes();
                bytes.chunks_exact_mut(34).for_each(|block| block[..2].copy_from_slice(&scale));
            }
            Tensor::new(format, info.shape.clone(), Bytes::from(bytes)).expect("as many bytes as the shape takes")
        })
        .collect()
}

/// Qwen2.5-0.5B: biases on q, k and v, the head tied to the embedding.
fn qwen2_0_5b(layers: usize) -> Result<Plan, BuildError> {
    let rope = Rope { head_dim: HEAD_DIM, theta: 1e6, scaling: RopeScaling::None };
    let scale = (HEAD_DIM as f32).sqrt().recip();
    let heads = Heads { heads: HEADS, kv_heads: KV_HEADS, head_dim: HEAD_DIM, scale, window: None };
    Graph::build("qwen2", 32_768, &AnyShape, |g, w| {
        let table = w.get("model.embed_tokens.weight", [VOCAB, HIDDEN])?;
        let mut x = g.embed(table, HIDDEN);
        for layer in 0..layers {
            let w = w.at(format!("model.layers.{layer}"));
            let h = g.rms_norm(x, w.norm("input_layernorm", HIDDEN, 1e-6)?);
            let q = g.linear(h, w.linear("self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN, true)?, HEADS * HEAD_DIM);
            let k = g.linear(h, w.linear("self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN, true)?, KV_HEADS * HEAD_DIM);
            let v = g.linear(h, w.linear("self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN, true)?, KV_HEADS * HEAD_DIM);
            let (q, k) = (g.rope(q, &rope), g.rope(k, &rope));
            let o = g.attention(q, k, v, heads);
            let o = g.linear(o, w.linear("self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM, false)?, HIDDEN);
            x = g.add(x, o);
            let h = g.rms_norm(x, w.norm("post_attention_layernorm", HIDDEN, 1e-6)?);
            let gate = g.linear(h, w.linear("mlp.gate_proj", INTERMEDIATE, HIDDEN, false)?, INTERMEDIATE);
            let up = g.linear(h, w.linear("mlp.up_proj", INTERMEDIATE, HIDDEN, false)?, INTERMEDIATE);
            let h = g.glu(gate, up, Activation::Silu);
            let down = g.linear(h, w.linear("mlp.down_proj", HIDDEN, INTERMEDIATE, false)?, HIDDEN);
            x = g.add(x, down);
        }
        let x = g.select_outputs(x);
        let x = g.rms_norm(x, w.norm("model.norm", HIDDEN, 1e-6)?);
        Ok(g.linear(x, plan::Linear { weight: table, bias: None }, VOCAB))
    })
}
