//! A device that fails while requests run: each of them is answered, with one clear error or with its whole text, nothing
//! hangs, and where the device can go on, so do later requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use backend::Backend;
use engine::{Engine, EngineConfig, FinishReason, Request, SamplingParams};
use gpu::SimDialect::{Cuda, Metal};
use gpu::{GpuBackend, GpuOptions, SimDialect, SimFault, SimFaults, ThreadOrder};
use plan::{AnyShape, BuildError, Graph, KvFormat, KvLayout, Norm, StepInput, fuse, restrict_outputs};
use tensor::{Tensor, WeightFormat};
use testing::{Rng, tiny_model};

const KV: KvLayout = KvLayout { format: KvFormat::F16, block_len: 8, num_blocks: 32 };
/// Far more than any request takes.
const STEPS_MAX: usize = 100;

/// What a request got, and how it ended.
type Ends = BTreeMap<String, (Vec<u32>, Option<FinishReason>)>;

fn engine(dialect: SimDialect, faults: &SimFaults) -> Engine {
    let (textbook, weights) = tiny_model("llama", 4, WeightFormat::Q8_0);
    let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
    let device = GpuBackend::simulator_of(dialect, ThreadOrder::Forward, 1 << 30, GpuOptions::default());
    let device = device.with_faults(faults.clone());
    let config = EngineConfig::new(KV, 64, plan.vocab_size, vec![]);
    Engine::new(device.load(plan, weights, KV).unwrap(), config).unwrap()
}

/// Three texts of six tokens; one of them sampled, if `sampled`.
fn submit(engine: &mut Engine, sampled: bool) {
    for index in 0..3 {
        let sampling = if sampled && index == 1 { SamplingParams::default() } else { SamplingParams::greedy() };
        let mut request = Request::new(Rng::new(index).tokens(4, 32), sampling);
        request.max_tokens = Some(6);
        engine.submit(request).unwrap();
    }
}

/// Runs to the end, with `before` called before each step.
fn run(engine: &mut Engine, mut before: impl FnMut(usize)) -> Ends {
    let mut ends = Ends::new();
    for step in 0.. {
        if !engine.has_work() {
            break;
        }
        assert!(step < STEPS_MAX, "the engine hangs");
        before(step);
        for output in engine.step() {
            let (tokens, end) = ends.entry(output.request.to_string()).or_default();
            assert!(end.is_none(), "an output after the end");
            tokens.extend(output.token.map(|token| token.id));
            *end = output.finish;
        }
        engine.check_invariants().unwrap();
    }
    ends
}

/// Each request has its whole text, or the beginning of it and this error. Returns how many failed.
fn check(found: &Ends, expected: &Ends, message: &str) -> usize {
    assert_eq!(found.len(), expected.len());
    let mut failed = 0;
    for (found, expected) in found.values().zip(expected.values()) {
        match &found.1 {
            Some(FinishReason::Error(failure)) => {
                let failure = failure.to_string();
                assert!(failure.starts_with("the step failed: ") && failure.contains(message), "{failure}");
                assert!(expected.0.starts_with(&found.0));
                failed += 1;
            }
            _ => assert_eq!(found, expected),
        }
    }
    failed
}

#[test]
fn whatever_call_of_the_driver_fails_the_requests_are_answered() {
    for (dialect, sampled) in [(Cuda, false), (Cuda, true), (Metal, false)] {
        let faults = SimFaults::default();
        let mut sound = engine(dialect, &faults);
        submit(&mut sound, sampled);
        let expected = run(&mut sound, |_| ());
        let mut failures = 0;
        for &step in if dialect == Cuda { &[0, 1, 3, 5][..] } else { &[0, 1, 3] } {
            for calls in [0, 1] {
                let mut engine = engine(dialect, &faults);
                submit(&mut engine, sampled);
                let found = run(&mut engine, |at| {
                    if at == step {
                        faults.set(Some(SimFault::OneCall { after: calls }));
                    }
                });
                failures += check(&found, &expected, "sim` failed: planted");
                faults.set(None);
                submit(&mut engine, sampled);
                assert_eq!(check(&run(&mut engine, |_| ()), &expected, ""), 0, "the device goes on");
            }
        }
        assert!(failures >= 3, "only {failures} requests failed");
    }
}

#[test]
fn a_lost_device_answers_every_request_with_the_error() {
    let faults = SimFaults::default();
    for step in [0, 1, 4] {
        let mut engine = engine(Cuda, &faults);
        submit(&mut engine, false);
        let found = run(&mut engine, |at| {
            if at == step {
                faults.set(Some(SimFault::Lost));
            }
        });
        assert_eq!(found.len(), 3);
        for _ in 0..2 {
            submit(&mut engine, false);
            let found = run(&mut engine, |_| ());
            assert_eq!(found.len(), 3);
            for (tokens, end) in found.values() {
                let Some(FinishReason::Error(failure)) = end else { panic!("{end:?}") };
                assert!(tokens.is_empty() && failure.to_string().ends_with("planted: the device is lost"), "{failure}");
            }
        }
        // Dropping it is no more of a problem.
        drop(engine);
        faults.set(None);
    }
}

#[test]
fn a_step_that_has_no_room_fails_alone() {
    let faults = SimFaults::default();
    let mut engine = engine(Cuda, &faults);
    submit(&mut engine, false);
    let expected = run(&mut engine, |_| ());
    faults.set(Some(SimFault::OutOfMemory));
    // What was run before still runs; a longer prompt wants more activations.
    submit(&mut engine, false);
    assert_eq!(check(&run(&mut engine, |_| ()), &expected, ""), 0);
    let long = || Request { max_tokens: Some(3), ..Request::new(Rng::new(9).tokens(40, 32), SamplingParams::greedy()) };
    engine.submit(long()).unwrap();
    let found = run(&mut engine, |_| ());
    let [(_, Some(FinishReason::Error(failure)))] = &found.into_values().collect::<Vec<_>>()[..] else { panic!() };
    let failure = failure.to_string();
    assert!(failure.contains("device `sim` cannot hold activations of "), "{failure}");
    assert!(failure.contains(": 0 bytes of its memory are free; use a smaller --ctx-size or model"), "{failure}");
    faults.set(None);
    engine.submit(long()).unwrap();
    submit(&mut engine, false);
    let found = run(&mut engine, |_| ());
    assert!(found.len() == 4 && found.values().all(|(_, end)| matches!(end, Some(FinishReason::Length))), "{found:?}");
}

/// Activations that become codes in blocks could lose it, and the step would be answered with other numbers.
#[test]
fn what_is_no_number_stays_none_in_every_format() {
    const K: usize = 512;
    const N: usize = 32;
    let formats = [
        WeightFormat::F32,
        WeightFormat::F16,
        WeightFormat::Q8_0,
        WeightFormat::FP8,
        WeightFormat::MXFP4,
        WeightFormat::NVFP4,
        WeightFormat::Q4_0,
        WeightFormat::Q4_K,
        WeightFormat::Q6_K,
    ];
    let mut rng = Rng::new(7);
    let mut rows = (0..N * K).map(|_| rng.normal()).collect::<Vec<_>>();
    rows[K + 77] = f32::NAN;
    let projection = (0..N * K).map(|_| rng.normal()).collect::<Vec<_>>();
    let device = GpuBackend::simulator_of(Cuda, ThreadOrder::Forward, 1 << 28, GpuOptions::default());
    for (format, is_normed) in formats.into_iter().flat_map(|format| [(format, false), (format, true)]) {
        let plan = Graph::build("projection", 64, &AnyShape, |g, w| {
            let mut x = g.embed(w.get("rows", [N, K])?, K);
            if is_normed {
                x = g.rms_norm(x, Norm { weight: w.get("gain", [K])?, eps: 1e-6 });
            }
            let y = g.linear(x, w.linear("projection", N, K, false)?, N);
            Ok::<_, BuildError>(g.select_outputs(y))
        });
        let tensor =
            |format, shape: &[usize], values: &[f32]| Tensor::from_f32(format, shape.to_vec(), values).unwrap();
        let mut weights = vec![tensor(WeightFormat::F32, &[N, K], &rows)];
        if is_normed {
            weights.push(tensor(WeightFormat::F32, &[K], &[1.0; K]));
        }
        weights.push(tensor(format, &[N, K], &projection));
        let mut executable = device.load(Arc::new(fuse(plan.unwrap())), weights, KV).unwrap();
        for (token, is_number) in [(0, true), (1, false)] {
            let mut input = StepInput::default();
            let row = input.push_sequence(&[token], 0, &[0]);
            input.output_rows.push(row as u32);
            let found = executable.replay(&input).unwrap();
            assert!(found.iter().all(|x| x.is_finite() == is_number), "{format}, normalised: {is_normed}: {found:?}");
        }
    }
}
