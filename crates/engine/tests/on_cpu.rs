//! The engine over the real CPU backend: whatever else is in the batch, however prompts are chunked, cached, preempted
//! or split over threads, each request gets the tokens that it gets alone.

use std::collections::HashMap;
use std::sync::Arc;

use backend::{Backend, Executable};
use cpu::{CpuBackend, CpuOptions};
use engine::{Engine, EngineConfig, FinishReason, Request, RequestId, SamplingParams};
use plan::{KvFormat, KvLayout, Plan, fuse, restrict_outputs};
use tensor::Tensor;
use testing::{MODEL_TYPES, Rng, Sample, tiny_model};

/// Traces that there are. Each day runs every third one, because each has a model of its own to load and to run alone.
const TRACES: u64 = 200;

/// A model, and how to put it behind an engine.
struct Model {
    plan: Arc<Plan>,
    weights: Vec<Tensor>,
    kv_format: KvFormat,
}

fn backend(threads: usize) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: Some(threads), isa: None, pin: false, ..CpuOptions::default() })
        .expect("a processor")
}

impl Model {
    fn random(rng: &mut Rng) -> Self {
        let format = rng.pick(&backend(1).claims().formats);
        let (textbook, weights) = tiny_model(rng.pick(&MODEL_TYPES), rng.next_u64() % 8, format);
        let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
        Self { plan, weights, kv_format: rng.pick(&[KvFormat::F32, KvFormat::F16]) }
    }

    fn engine(&self, threads: usize, kv: KvLayout, change: impl FnOnce(&mut EngineConfig)) -> Engine {
        let executable: Box<dyn Executable> =
            backend(threads).load(self.plan.clone(), self.weights.clone(), kv).expect("a tiny model loads");
        let mut config = EngineConfig::new(kv, 96, self.plan.vocab_size, vec![0]);
        change(&mut config);
        Engine::new(executable, config).expect("a sound configuration")
    }

    /// A roomy engine that computes each prompt in one piece.
    fn quiet_engine(&self) -> Engine {
        let kv = KvLayout { format: self.kv_format, block_len: 16, num_blocks: 8 };
        self.engine(1, kv, |config| config.prefix_cache = false)
    }

    /// An engine in need: few blocks, small chunks, several threads.
    fn busy_engine(&self, rng: &mut Rng) -> Engine {
        let block_len = rng.pick(&[4, 8, 16]);
        // One sequence of the whole context fits, and not much beside it.
        let kv = KvLayout { format: self.kv_format, block_len, num_blocks: 96 / block_len + rng.below(2) };
        let max_sequences = 2 + rng.below(5);
        let max_batch_tokens = max_sequences + rng.below(20);
        self.engine(1 + rng.below(3), kv, |config| {
            config.max_sequences = max_sequences;
            config.max_batch_tokens = max_batch_tokens;
        })
    }
}

fn requests(rng: &mut Rng, vocab_size: usize) -> Vec<Request> {
    let len = 8 + rng.below(32);
    let common = rng.tokens(len, vocab_size);
    (0..3 + rng.below(7))
        .map(|_| {
            let shared = if rng.below(2) == 0 { rng.below(common.len() + 1) } else { 0 };
            let own = 1 + rng.below(20);
            let prompt = [&common[..shared], &rng.tokens(own, vocab_size)].concat();
            let temperature = rng.pick(&[0.0, 1.0]);
            let sampling = SamplingParams { temperature, seed: rng.next_u64(), ..SamplingParams::default() };
            let mut request = Request::new(prompt, sampling);
            request.max_tokens = Some(1 + rng.below(24));
            request.priority = rng.below(3) as i8;
            request
        })
        .collect()
}

/// Submits the requests at random moments and runs until nothing is left. Returns the texts, and how many tokens of
/// prompts were found in the cache.
fn run(engine: &mut Engine, requests: &[Request], rng: &mut Rng) -> (Vec<Vec<u32>>, usize) {
    let mut waiting = requests.iter().enumerate();
    let mut place: HashMap<RequestId, usize> = HashMap::new();
    let mut texts = vec![Vec::new(); requests.len()];
    let mut cached = 0;
    loop {
        while place.is_empty() || rng.below(3) == 0 {
            let Some((index, request)) = waiting.next() else { break };
            place.insert(engine.submit(request.clone()).expect("it fits"), index);
        }
        if !engine.has_work() && waiting.len() == 0 {
            return (texts, cached);
        }
        for output in engine.step() {
            assert!(!matches!(output.finish, Some(FinishReason::Error(_))), "{output:?}");
            cached += if output.finish.is_some() { output.usage.cached_tokens } else { 0 };
            texts[place[&output.request]].extend(output.token.map(|token| token.id));
        }
        engine.check_invariants().expect("blocks are conserved");
    }
}

#[test]
fn every_request_gets_the_tokens_that_it_gets_alone() {
    let sample = Sample::of_today(3);
    let (mut cached, mut preempted, mut traces) = (0, 0, 0);
    for seed in (0..TRACES).filter(|&seed| sample.has(seed as usize)) {
        let mut rng = Rng::new(seed);
        let model = Model::random(&mut rng);
        let requests = requests(&mut rng, model.plan.vocab_size);
        let mut quiet = model.quiet_engine();
        let alone: Vec<_> = requests
            .iter()
            .map(|request| run(&mut quiet, std::slice::from_ref(request), &mut Rng::new(0)).0.remove(0))
            .collect();
        let mut busy = model.busy_engine(&mut rng);
        let (together, found) = run(&mut busy, &requests, &mut rng);
        assert_eq!(together, alone, "seed={seed}, {} requests; {sample}", requests.len());
        preempted += busy.stats().num_preemptions;
        cached += found;
        traces += 1;
    }
    // A test of nothing but easy cases would be no test.
    let is_hard = preempted * 10 > traces && cached as u64 * 2 > traces * 5;
    assert!(is_hard, "{preempted} preemptions, {cached} cached tokens in {traces} traces; {sample}");
}
