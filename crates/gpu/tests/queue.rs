//! Tokens that the device chooses: they are those that the logits give, whatever the logits are, and an engine that runs
//! ahead with them gives the texts that it gives without. In steady state a step is one submission and one wait.

use std::sync::Arc;

use backend::{Backend, BackendError, Choice, Counters, Executable};
use engine::{Engine, EngineConfig, FinishReason, Request, SamplingParams};
use gpu::{GpuBackend, GpuOptions, SimDialect, ThreadOrder};
use plan::sampling::{RowSampling, choose, share};
use plan::{AnyShape, FED, Graph, KvFormat, KvLayout, Plan, StepInput, StepShape, fuse, restrict_outputs};
use tensor::{Tensor, WeightFormat};
use testing::{Rng, tiny_model};

const KV: KvLayout = KvLayout { format: KvFormat::F16, block_len: 8, num_blocks: 64 };

/// The kernel text as CUDA sees it, and as Metal does.
const BOTH: [SimDialect; 2] = [SimDialect::Cuda, SimDialect::Metal];
/// The one in both thread orders, the other in one: there each order finds the races of a group.
const ALL: [(SimDialect, ThreadOrder); 3] = [
    (SimDialect::Cuda, ThreadOrder::Forward),
    (SimDialect::Cuda, ThreadOrder::Reverse),
    (SimDialect::Metal, ThreadOrder::Reverse),
];

fn simulator((dialect, order): (SimDialect, ThreadOrder)) -> GpuBackend {
    GpuBackend::simulator_of(dialect, order, 1 << 30, GpuOptions::default())
}

/// The logits after a token are its row of this table.
fn table_plan(vocab_size: usize) -> Arc<Plan> {
    let plan = Graph::build("table", 64, &AnyShape, |g, w| {
        let x = g.embed(w.get("table", [vocab_size, vocab_size])?, vocab_size);
        Ok::<_, plan::BuildError>(g.select_outputs(x))
    });
    Arc::new(plan.unwrap())
}

/// Steps of one token for each of `tokens`, as many sequences.
fn rows(tokens: &[u32]) -> StepInput {
    let mut input = StepInput::default();
    for (block, &token) in (0..).zip(tokens) {
        let row = input.push_sequence(&[token], 0, &[block]);
        input.output_rows.push(row as u32);
    }
    input
}

#[test]
fn the_choice_is_what_the_logits_say_ties_and_faults_included() {
    // Several groups a row, the last of them with less to do.
    const VOCAB_SIZE: usize = 2501;
    let mut rng = Rng::new(7);
    let mut table: Vec<f32> = (0..VOCAB_SIZE * VOCAB_SIZE).map(|_| rng.normal()).collect();
    let mut set = |row: usize, values: &[(usize, f32)]| {
        values.iter().for_each(|&(id, value)| table[row * VOCAB_SIZE + id] = value);
    };
    // The first of equals, in other threads, groups and places of a vector; zeros of both signs are equal.
    set(0, &[(2500, 9.0), (2049, 9.0), (700, 9.0)]);
    set(1, &[(0, 9.0), (1, 9.0)]);
    set(3, &[(5, f32::NAN), (2499, f32::INFINITY)]);
    set(4, &[(2500, f32::NEG_INFINITY)]);
    set(5, &[(3, f32::INFINITY)]);
    let all = |value: f32| (0..VOCAB_SIZE).map(|id| (id, value)).collect::<Vec<_>>();
    set(6, &all(-0.0));
    set(6, &[(1234, 0.0)]);
    set(7, &all(f32::NAN));
    set(8, &all(f32::MIN));
    let weights = vec![Tensor::from_f32(WeightFormat::F32, vec![VOCAB_SIZE, VOCAB_SIZE], &table).unwrap()];
    let of = |row: usize| {
        let logits = &table[row * VOCAB_SIZE..][..VOCAB_SIZE];
        let mut best = 0;
        for (id, logit) in logits.iter().enumerate() {
            if *logit > logits[best] {
                best = id;
            }
        }
        let faulty = logits.iter().position(|logit| !logit.is_finite());
        (best as u32, faulty.map(|id| (id as u32, logits[id].to_bits())))
    };
    for order in ALL {
        let mut executable = simulator(order).load(table_plan(VOCAB_SIZE), weights.clone(), KV).unwrap();
        let tokens: Vec<u32> = (0..13).collect();
        executable.enqueue(&rows(&tokens)).unwrap();
        for (row, choice) in executable.collect().unwrap().iter().enumerate() {
            let (best, fault) = of(row);
            assert_eq!(choice.fault.map(|(id, logit)| (id, logit.to_bits())), fault, "row {row}, {order:?}");
            assert!((choice.token_id as usize) < VOCAB_SIZE, "row {row}, {order:?}");
            if fault.is_none() {
                assert_eq!(choice.token_id, best, "row {row}, {order:?}");
            }
        }
    }
}

#[test]
fn a_step_is_fed_by_the_one_before_while_that_is_under_way() {
    let (textbook, weights) = tiny_model("qwen2", 3, WeightFormat::F16);
    let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
    BOTH.into_iter().for_each(|dialect| {
        feeds_steps(&|| simulator((dialect, ThreadOrder::Forward)).load(plan.clone(), weights.clone(), KV).unwrap());
    });
}

fn feeds_steps(load: &dyn Fn() -> Box<dyn Executable>) {
    let step = |ids: [u32; 2], position: usize| {
        let mut input = StepInput::default();
        for (id, table) in ids.into_iter().zip([[3, 1], [0, 2]]) {
            let row = input.push_sequence(&[id], position, &table);
            input.output_rows.push(row as u32);
        }
        input
    };
    let mut waits = load();
    let mut expected = vec![[5, 9]];
    for position in 0..12 {
        waits.enqueue(&step(expected[position], position)).unwrap();
        let choices = waits.collect().unwrap();
        expected.push([choices[0].token_id, choices[1].token_id]);
    }
    // The rows change places, so that each is fed by the other's output.
    let mut ahead = load();
    ahead.enqueue(&step(expected[0], 0)).unwrap();
    for position in 0..11 {
        ahead.enqueue(&step([FED, FED | 1], position + 1)).unwrap();
        let found: Vec<_> = ahead.collect().unwrap().iter().map(|choice| choice.token_id).collect();
        assert_eq!(found, expected[position + 1], "position {position}");
    }
    assert!(matches!(ahead.enqueue(&step([FED | 2, 0], 12)), Err(BackendError::Step(_))), "there were two outputs");
    ahead.enqueue(&step([FED, FED | 1], 12)).unwrap();
    assert!(ahead.enqueue(&step([FED, FED | 1], 13)).is_err(), "two are under way");
    // Whatever nobody collects is gone when logits are asked for.
    ahead.replay(&step([1, 2], 0)).unwrap();
    assert!(matches!(ahead.collect(), Err(BackendError::NotQueued)));
}

/// The same executable, but for its queue.
struct NoQueue(Box<dyn Executable>);

impl Executable for NoQueue {
    fn compile(&mut self, shape: StepShape) -> Result<(), BackendError> {
        self.0.compile(shape)
    }

    fn replay(&mut self, input: &StepInput) -> Result<&[f32], BackendError> {
        self.0.replay(input)
    }
}

#[test]
fn an_engine_gives_the_same_texts_with_and_without_the_queue() {
    let (textbook, weights) = tiny_model("llama", 4, WeightFormat::Q8_0);
    let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
    let texts = |dialect, queues: bool, run_ahead: bool| {
        let executable = simulator((dialect, ThreadOrder::Forward)).load(plan.clone(), weights.clone(), KV).unwrap();
        let executable = if queues { executable } else { Box::new(NoQueue(executable)) };
        let config =
            EngineConfig { run_ahead, draws_on_device: true, ..EngineConfig::new(KV, 64, plan.vocab_size, vec![2]) };
        let mut engine = Engine::new(executable, config).unwrap();
        let mut texts = vec![vec![]; 5];
        for index in 0..5 {
            // One of them wants what the device does not know, so that steps of logits come between; they end at different
            // times.
            let logprobs = SamplingParams { logprobs: Some(1), ..SamplingParams::default() };
            let sampling = if index == 3 { logprobs } else { SamplingParams::greedy() };
            let prompt = Rng::new(index as u64).tokens(3 + index, plan.vocab_size);
            let mut request = Request::new(prompt, sampling);
            request.max_tokens = Some(6 + 5 * index);
            request.stop_token_ids = vec![7, 11];
            engine.submit(request).unwrap();
        }
        let mut ends = 0;
        while engine.has_work() {
            for output in engine.step() {
                assert!(!matches!(output.finish, Some(FinishReason::Error(_))), "{output:?}");
                // Requests are numbered from 0.
                let index: usize = output.request.to_string().parse().unwrap();
                texts[index].extend(output.token.map(|token| token.id));
                ends += usize::from(output.finish.is_some());
            }
        }
        assert_eq!(ends, 5);
        let ahead = engine.stats().num_ahead;
        assert_eq!(ahead > 0, queues && run_ahead, "{ahead} steps ahead");
        texts
    };
    for dialect in BOTH {
        let expected = texts(dialect, false, false);
        assert_eq!(texts(dialect, true, false), expected);
        assert_eq!(texts(dialect, true, true), expected);
    }
}

/// Rows that are fed stand beside pieces of prompts here, and requests start while a step is under way.
#[test]
fn prompts_in_pieces_and_requests_that_start_change_no_text_ahead_of_the_tokens() {
    let (textbook, weights) = tiny_model("llama", 4, WeightFormat::Q8_0);
    let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
    let texts = |dialect, run_ahead: bool| {
        let options = GpuOptions { batch_invariant: true, ..GpuOptions::default() };
        let backend = GpuBackend::simulator_of(dialect, ThreadOrder::Forward, 1 << 30, options);
        let executable = backend.load(plan.clone(), weights.clone(), KV).unwrap();
        let config = EngineConfig {
            run_ahead,
            max_sequences: 3,
            max_batch_tokens: 16,
            max_mixed_tokens: 5,
            ..EngineConfig::new(KV, 64, plan.vocab_size, vec![])
        };
        let mut engine = Engine::new(executable, config).unwrap();
        let mut texts = vec![vec![]; 4];
        let mut num_submitted = 0;
        while num_submitted < 4 || engine.has_work() {
            if num_submitted < 4 {
                let prompt = Rng::new(num_submitted).tokens(3 + 6 * num_submitted as usize, plan.vocab_size);
                let seed = num_submitted;
                let drawn = SamplingParams { seed, temperature: 0.8, ..SamplingParams::default() };
                let sampling = if seed == 2 { drawn } else { SamplingParams::greedy() };
                engine.submit(Request { max_tokens: Some(8), ..Request::new(prompt, sampling) }).unwrap();
                num_submitted += 1;
            }
            for output in engine.step() {
                assert!(!matches!(output.finish, Some(FinishReason::Error(_))), "{output:?}");
                let index: usize = output.request.to_string().parse().unwrap();
                texts[index].extend(output.token.map(|token| token.id));
            }
        }
        let stats = engine.stats();
        assert!(!run_ahead || stats.num_ahead + 1 == stats.num_steps, "{stats:?}");
        texts
    };
    // The other dialect computes the same, and takes as long again.
    let ahead = texts(SimDialect::Cuda, true);
    assert!(ahead.iter().all(|text| text.len() == 8), "{ahead:?}");
    assert_eq!(ahead, texts(SimDialect::Cuda, false));
}

#[test]
fn in_steady_state_a_step_is_one_submission_and_one_wait() {
    let (textbook, weights) = tiny_model("llama", 4, WeightFormat::F16);
    let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
    let mut executable = simulator(ALL[0]).load(plan, weights, KV).unwrap();
    let mut input = StepInput::default();
    let table: Vec<u32> = (0..4).collect();
    let mut step = |executable: &mut dyn Executable, position: usize, id: u32| {
        input.clear();
        input.push_sequence(&[id], position, &table);
        input.output_rows.push(0);
        executable.enqueue(&input).unwrap();
    };
    step(&mut *executable, 0, 1);
    step(&mut *executable, 1, FED);
    let before = executable.counters();
    for position in 2..30 {
        assert_eq!(executable.collect().unwrap().len(), 1);
        step(&mut *executable, position, FED);
    }
    let after = executable.counters();
    let expected = Counters { steps: before.steps + 28, waits: before.waits + 28, ..before };
    assert_eq!(after, expected, "no allocation, no look-up, no launch beside the recorded step");
    let choices: &[Choice] = executable.collect().unwrap();
    assert!(choices[0].fault.is_none());
}

#[test]
fn an_eager_step_submits_each_launch_by_itself_and_chooses_the_same_tokens() {
    let (textbook, weights) = tiny_model("llama", 4, WeightFormat::Q8_0);
    let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
    let table: Vec<u32> = (0..4).collect();
    let mut texts = vec![];
    for eager in [false, true] {
        let options = GpuOptions { eager, ..GpuOptions::default() };
        let backend = GpuBackend::simulator(ThreadOrder::Forward, 1 << 30, options);
        assert_eq!(backend.device().description.contains("eager"), eager, "{}", backend.device().description);
        let mut executable = backend.load(plan.clone(), weights.clone(), KV).unwrap();
        let of_one = StepShape { tokens: 1, sequences: 1, outputs: 1 };
        let infos = executable.variants(of_one.bucket()).unwrap();
        let launches: usize = infos.iter().filter_map(|info| info.launches).sum();
        let mut text = vec![];
        let mut logits = vec![];
        for position in 0..6 {
            let before = executable.counters();
            let mut input = StepInput::default();
            input.push_sequence(&[text.last().copied().unwrap_or(1)], position, &table);
            input.output_rows.push(0);
            executable.enqueue(&input).unwrap();
            text.push(executable.collect().unwrap()[0].token_id);
            let one_by_one = (executable.counters().launches - before.launches) as usize;
            // Beside those of the ops there are the ones that choose.
            assert!(if eager { one_by_one > launches } else { one_by_one == 0 }, "{one_by_one} of {launches}");
            let rows = executable.replay(&input).unwrap();
            logits.push(rows.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>());
        }
        texts.push((text, logits));
    }
    assert_eq!(texts[0], texts[1], "the same launches in the same order give the same bits");
}

/// Rows of logits that are hard to rank, and ways to draw from them.
#[test]
fn what_is_drawn_is_what_a_full_sort_draws_ties_and_faults_included() {
    const VOCAB_SIZE: usize = 1501;
    let mut rng = Rng::new(11);
    let normal = |rng: &mut Rng, scale: f32| (0..VOCAB_SIZE).map(|_| rng.normal() * scale).collect::<Vec<_>>();
    let mut rows = vec![normal(&mut rng, 1.0), normal(&mut rng, 3.0), normal(&mut rng, 40.0)];
    // A few values, many times; one value; far apart; a spike; the ends of f32; zeros of both signs.
    rows.push((0..VOCAB_SIZE).map(|id| ((id * 7919) % 5) as f32 * 0.25).collect());
    rows.push(vec![-3.5; VOCAB_SIZE]);
    rows.push((0..VOCAB_SIZE).map(|id| -(id as f32)).collect());
    rows.push((0..VOCAB_SIZE).map(|id| if id == 1500 { 30.0 } else { 0.0 }).collect());
    rows.push((0..VOCAB_SIZE).map(|id| [f32::MAX, f32::MIN, 1e30, 1e-40][id % 4]).collect());
    rows.push((0..VOCAB_SIZE).map(|id| if id % 3 == 0 { -0.0 } else { 0.0 }).collect());
    let mut faulty = normal(&mut rng, 1.0);
    faulty[77] = f32::NAN;
    rows.push(faulty);
    let mut table = vec![0f32; VOCAB_SIZE * VOCAB_SIZE];
    for (row, logits) in rows.iter().enumerate() {
        table[row * VOCAB_SIZE..][..VOCAB_SIZE].copy_from_slice(logits);
    }
    let weights = vec![Tensor::from_f32(WeightFormat::F32, vec![VOCAB_SIZE, VOCAB_SIZE], &table).unwrap()];
    let ways = |rng: &mut Rng, round: usize| RowSampling {
        temperature: [1.0, 0.7, 0.01, 2.5, 0.0][(rng.next_u64() % 5) as usize],
        top_k: [0, 1, 40, 700, 5000][(round + rng.next_u64() as usize % 2) % 5],
        top_p: share([1.0, 0.95, 0.5, 1e-6][(rng.next_u64() % 4) as usize]),
        min_p_ln: [0.0f32, 0.05, 1.0][(rng.next_u64() % 3) as usize].ln(),
        pick: rng.next_u64(),
    };
    for order in ALL {
        let mut executable = simulator(order).load(table_plan(VOCAB_SIZE), weights.clone(), KV).unwrap();
        for round in 0..5 {
            let tokens: Vec<u32> = (0..rows.len() as u32).collect();
            let mut input = self::rows(&tokens);
            input.sampling = tokens.iter().map(|_| ways(&mut rng, round)).collect();
            executable.enqueue(&input).unwrap();
            for (row, choice) in executable.collect().unwrap().iter().enumerate() {
                let how = &input.sampling[row];
                match rows[row].iter().position(|logit| !logit.is_finite()) {
                    Some(id) => assert_eq!(choice.fault.map(|(id, _)| id), Some(id as u32)),
                    None => {
                        assert_eq!(choice.token_id as usize, choose(&rows[row], how), "row {row}, {how:?}, {order:?}")
                    }
                }
            }
        }
    }
}

#[test]
fn an_engine_draws_the_same_texts_on_the_device_and_on_the_host() {
    let (textbook, weights) = tiny_model("qwen2", 4, WeightFormat::F16);
    let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
    let texts = |dialect, queues: bool| {
        let executable = simulator((dialect, ThreadOrder::Forward)).load(plan.clone(), weights.clone(), KV).unwrap();
        let executable = if queues { executable } else { Box::new(NoQueue(executable)) };
        let config = EngineConfig { draws_on_device: true, ..EngineConfig::new(KV, 64, plan.vocab_size, vec![]) };
        let mut engine = Engine::new(executable, config).unwrap();
        let mut texts = vec![vec![]; 5];
        for seed in 0..5 {
            let all = SamplingParams { seed, ..SamplingParams::default() };
            let sampling = match seed {
                0 => all,
                1 => SamplingParams { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..all },
                2 => SamplingParams { temperature: 1.5, top_p: 0.7, ..all },
                3 => SamplingParams { top_k: 3, ..all },
                _ => SamplingParams::greedy(),
            };
            let mut request = Request::new(Rng::new(seed).tokens(4, plan.vocab_size), sampling);
            request.max_tokens = Some(12 + seed as usize);
            engine.submit(request).unwrap();
        }
        while engine.has_work() {
            for output in engine.step() {
                let index: usize = output.request.to_string().parse().unwrap();
                texts[index].extend(output.token.map(|token| token.id));
            }
        }
        assert_eq!(engine.stats().num_ahead > 10, queues, "{:?}", engine.stats());
        texts
    };
    for dialect in BOTH {
        assert_eq!(texts(dialect, true), texts(dialect, false));
    }
}
