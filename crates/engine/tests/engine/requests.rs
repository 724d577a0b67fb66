//! The engine from outside: what a caller relies on, one thing a test.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use engine::null::{Fault, NullExecutable};
use engine::{
    CacheDomain, Engine, EngineConfig, EngineError, Failure, FinishReason, Grammar, GrammarState, Output, Pooling,
    Request, RequestId, SamplingParams, StepWatch, TokenSet,
};
use plan::{KvFormat, KvLayout, StepInput, StepShape};

use crate::watched::{Watched, alone, embedded_alone, scored_alone};

const VOCAB_SIZE: usize = 50;
const EOS: u32 = 0;

fn config() -> EngineConfig {
    let kv = KvLayout { format: KvFormat::F32, block_len: 4, num_blocks: 64 };
    EngineConfig {
        max_batch_tokens: 16,
        max_sequences: 4,
        max_waiting: 8,
        ..EngineConfig::new(kv, 128, VOCAB_SIZE, vec![EOS])
    }
}

fn engine(config: EngineConfig) -> Engine {
    Engine::new(Box::new(NullExecutable::new(config.kv, config.vocab_size)), config).unwrap()
}

fn request(prompt: &[u32], max_tokens: usize) -> Request {
    Request {
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        ..Request::new(prompt.to_vec(), SamplingParams { seed: 7, ..SamplingParams::default() })
    }
}

/// All outputs until nothing is left to do.
fn run(engine: &mut Engine) -> Vec<Output> {
    let mut outputs = Vec::new();
    while engine.has_work() {
        outputs.extend(engine.step());
    }
    outputs
}

fn text(outputs: &[Output], request: RequestId, completion: usize) -> Vec<u32> {
    let own = outputs.iter().filter(|output| output.request == request && output.completion == completion);
    own.filter_map(|output| output.token.as_ref().map(|token| token.id)).collect()
}

fn last(outputs: &[Output], request: RequestId) -> &Output {
    outputs.iter().rfind(|output| output.request == request).unwrap()
}

/// What the request's first completion gets alone, without an engine.
fn expected_text(config: &EngineConfig, request: &Request, len: usize) -> Vec<u32> {
    let mut tokens = request.prompt.clone();
    let mut mirostat_bound = None;
    for _ in 0..len {
        let next = alone(config, request, &tokens, 0, mirostat_bound);
        mirostat_bound = next.mirostat_bound;
        tokens.push(next.id);
    }
    tokens.split_off(request.prompt.len())
}

#[test]
fn a_text_ends_at_max_tokens_and_counts_are_given_with_it() {
    let mut engine = engine(config());
    let id = engine.submit(request(&[1, 2, 3], 5)).unwrap();
    let outputs = run(&mut engine);
    assert_eq!(text(&outputs, id, 0), expected_text(&config(), &request(&[1, 2, 3], 5), 5));
    let end = last(&outputs, id);
    assert_eq!(end.finish, Some(FinishReason::Length));
    assert_eq!((end.usage.prompt_tokens, end.usage.generated_tokens, end.usage.cached_tokens), (3, 5, 0));
}

#[test]
fn the_end_token_ends_a_text_unless_ignored_and_a_stop_token_does_always() {
    let free = request(&[9], 40);
    let tokens = expected_text(&config(), &free, 40);
    let stop = tokens[10];
    let ends_at = |id: u32| tokens.iter().position(|&token| token == id).unwrap() + 1;

    let with_eos = EngineConfig { eos_token_ids: vec![stop], ..config() };
    for (config, ignore_eos, stop_token_ids, expected) in [
        (with_eos.clone(), false, vec![], ends_at(stop)),
        (with_eos, true, vec![], 40),
        (config(), true, vec![stop], ends_at(stop)),
    ] {
        let mut engine = engine(config);
        let id = engine.submit(Request { ignore_eos, stop_token_ids, ..free.clone() }).unwrap();
        let outputs = run(&mut engine);
        assert_eq!(text(&outputs, id, 0), tokens[..expected]);
        let finish = if expected < 40 { FinishReason::Stop { token_id: stop } } else { FinishReason::Length };
        assert_eq!(last(&outputs, id).finish, Some(finish));
    }
}

#[test]
fn without_max_tokens_a_text_fills_the_context() {
    let mut engine = engine(config());
    let id = engine.submit(Request { max_tokens: None, ..request(&[1; 100], 1) }).unwrap();
    let outputs = run(&mut engine);
    assert_eq!(text(&outputs, id, 0).len(), 28);
    assert_eq!(last(&outputs, id).finish, Some(FinishReason::Context));
}

#[test]
fn a_long_prompt_is_computed_in_chunks_while_others_go_on() {
    let mut engine = engine(config());
    let short = engine.submit(request(&[1], 20)).unwrap();
    engine.step();
    let long = engine.submit(request(&[2; 45], 1)).unwrap();
    // 15 tokens are left beside the decode: three steps, the third with the first token.
    for step in 0..3 {
        let outputs = engine.step();
        assert!(outputs.iter().any(|output| output.request == short), "step {step}");
        assert_eq!(outputs.iter().any(|output| output.request == long), step == 2, "step {step}");
    }
}

#[test]
fn steps_run_ahead_while_prompts_are_read_and_while_requests_start() {
    let greedy = |prompt: &[u32], max_tokens| Request {
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        ..Request::new(prompt.to_vec(), SamplingParams::greedy())
    };
    let device = || NullExecutable::new(config().kv, VOCAB_SIZE).with_queue();
    let config = EngineConfig { max_mixed_tokens: 5, ..config() };
    let mut engine = Engine::new(Box::new(device()), config.clone()).unwrap();
    // The second is read in pieces beside the first, the third starts while that goes on.
    let requests = [greedy(&[1, 2], 30), greedy(&[3; 22], 20), greedy(&[4; 17], 12)];
    let mut outputs = Vec::new();
    let ids = requests.clone().map(|request| {
        let id = engine.submit(request).unwrap();
        outputs.extend(engine.step());
        outputs.extend(engine.step());
        id
    });
    outputs.extend(run(&mut engine));
    for (id, request) in ids.into_iter().zip(&requests) {
        let len = request.max_tokens.unwrap();
        assert_eq!(text(&outputs, id, 0), expected_text(&config, request, len));
    }
    let stats = engine.stats();
    assert_eq!(stats.num_ahead, stats.num_steps - 1, "only the first step follows none: {stats:?}");
}

#[test]
fn texts_that_go_on_wait_for_few_tokens_of_prompts() {
    let widths = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&widths);
    let config = EngineConfig { max_mixed_tokens: 5, ..config() };
    let device =
        NullExecutable::new(config.kv, config.vocab_size).with_faults(Box::new(move |_, input: &StepInput| {
            seen.lock().unwrap().push(input.token_ids.len());
            None
        }));
    let mut engine = Engine::new(Box::new(device), config).unwrap();
    engine.submit(request(&[1], 8)).unwrap();
    engine.step();
    for prompt in [[2; 12], [3; 12]] {
        engine.submit(request(&prompt, 2)).unwrap();
    }
    run(&mut engine);
    // Five tokens beside the decodes, of one prompt or of two, as long as there are so many.
    assert_eq!(*widths.lock().unwrap(), [1, 6, 6, 6, 7, 5, 2, 1], "{widths:?}");
    widths.lock().unwrap().clear();
    engine.submit(request(&[4; 40], 1)).unwrap();
    run(&mut engine);
    assert_eq!(*widths.lock().unwrap(), [16, 16, 8]);
}

#[test]
fn chunks_batch_and_cache_do_not_change_a_text() {
    let prompt: Vec<u32> = (0..37).map(|i| i * 7 % 50).collect();
    let expected = expected_text(&config(), &request(&prompt, 12), 12);
    for max_batch_tokens in [4, 5, 7, 64, 512] {
        let mut engine = engine(EngineConfig { max_batch_tokens, ..config() });
        let first = engine.submit(request(&prompt, 12)).unwrap();
        let outputs = run(&mut engine);
        assert_eq!(text(&outputs, first, 0), expected);
        for i in 0..3 {
            engine.submit(request(&[i, i, i], 30)).unwrap();
        }
        let again = engine.submit(request(&prompt, 12)).unwrap();
        let outputs = run(&mut engine);
        assert_eq!(text(&outputs, again, 0), expected);
        assert_eq!(last(&outputs, again).usage.cached_tokens, 36);
    }
}

#[test]
fn a_prefix_is_not_shared_across_domains() {
    let mut engine = engine(config());
    let cached = |engine: &mut Engine, domain| {
        let id = engine.submit(Request { cache_domain: CacheDomain(domain), ..request(&[5; 20], 1) }).unwrap();
        last(&run(engine), id).usage.cached_tokens
    };
    assert_eq!(cached(&mut engine, 1), 0);
    assert_eq!(cached(&mut engine, 2), 0);
    assert_eq!(cached(&mut engine, 1), 16);
}

#[test]
fn blocks_of_a_text_with_a_numeric_fault_are_not_reused() {
    let mut watched = Watched::new(config(), false);
    let mut cached_tokens = |last_fault: Option<Fault>| {
        let id = watched.submit(request(&[5; 21], 3)).unwrap();
        // Two chunks of prompt with the first token, a second token, and the third or the fault.
        let mut outputs = Vec::new();
        while watched.tokens(id, 0).is_some_and(|tokens| tokens.len() < 23) {
            outputs.extend(watched.step(None).unwrap());
        }
        outputs.extend(watched.step(last_fault).unwrap());
        last(&outputs, id).usage.cached_tokens
    };
    assert_eq!(cached_tokens(None), 0);
    assert_eq!(cached_tokens(Some(Fault::NotANumber { output: 0 })), 20);
    assert_eq!(cached_tokens(None), 0);
}

#[test]
fn completions_share_the_prompts_blocks_and_differ() {
    let mut engine = engine(config());
    let id = engine.submit(Request { num_completions: 4, ..request(&[1; 41], 10) }).unwrap();
    for _ in 0..4 {
        engine.step();
    }
    // 11 blocks for the prompt; three of the four wrote into a copy of the last one.
    let stats = engine.stats();
    assert_eq!((stats.num_running, stats.num_blocks - stats.num_free_blocks), (4, 14));
    let rest = run(&mut engine);
    let texts: std::collections::BTreeSet<_> = (0..4).map(|completion| text(&rest, id, completion)).collect();
    assert_eq!(texts.len(), 4);
}

#[test]
fn a_cancelled_request_frees_its_blocks_at_once() {
    let mut engine = engine(config());
    let running = engine.submit(Request { num_completions: 2, ..request(&[1; 30], 50) }).unwrap();
    let other = engine.submit(request(&[2; 3], 5)).unwrap();
    for _ in 0..5 {
        engine.step();
    }
    let ended = engine.cancel_completion(running, 1).unwrap();
    assert_eq!((ended.completion, ended.finish), (1, Some(FinishReason::Cancelled)));
    let ended = engine.cancel(running);
    assert_eq!(ended.len(), 1);
    assert!(engine.cancel(running).is_empty());
    engine.check_invariants().unwrap();
    let outputs = run(&mut engine);
    assert!(outputs.iter().all(|output| output.request == other));
    let stats = engine.stats();
    assert_eq!(stats.num_free_blocks, stats.num_blocks);
}

#[test]
fn a_full_queue_refuses_and_recovers() {
    let mut engine = engine(EngineConfig { max_waiting_tokens: 30, context_len: 30, ..config() });
    for _ in 0..8 {
        engine.submit(request(&[1], 1)).unwrap();
    }
    assert_eq!(
        engine.submit(request(&[1], 1)).unwrap_err().to_string(),
        "the queue is full: 9 sequences wait and at most 8 may; try again when some have finished"
    );
    run(&mut engine);
    engine.submit(request(&[1; 20], 1)).unwrap();
    assert_eq!(
        engine.submit(request(&[1; 11], 1)).unwrap_err(),
        EngineError::QueueFull { waiting: 31, limit: 30, unit: "tokens" }
    );
    engine.submit(request(&[1; 10], 1)).unwrap();
    run(&mut engine);
}

#[test]
fn higher_priority_starts_first() {
    let mut engine = engine(EngineConfig { max_sequences: 1, ..config() });
    let ids = [-5, 0, 5].map(|priority| engine.submit(Request { priority, ..request(&[1], 1) }).unwrap());
    let order: Vec<RequestId> = run(&mut engine).iter().map(|output| output.request).collect();
    assert_eq!(order, [ids[2], ids[1], ids[0]]);
}

/// Urgent requests keep coming faster than they can be served, and yet one that is not urgent is.
#[test]
fn a_request_of_low_priority_does_not_starve() {
    let aging_steps = 10;
    let mut watched = Watched::new(EngineConfig { max_sequences: 2, aging_steps, ..config() }, false);
    let patient = watched.submit(Request { priority: -1, ..request(&[1, 2], 3) }).unwrap();
    for step in 0..400 {
        // The queue is full of urgent ones at all times.
        while watched.submit(Request { priority: 3, ..request(&[3, 4, 5], 4) }).is_ok() {}
        let outputs = watched.step(None).unwrap();
        if outputs.iter().any(|output| output.request == patient && output.finish.is_some()) {
            // Only those that came within 4 levels · 10 steps go first, 4 steps each and two at a time; with those that
            // waited by then.
            assert!(step > 40 && step < 40 + 8 * 4 + 10, "after {step} steps");
            return;
        }
    }
    panic!("still waiting");
}

#[test]
fn who_stands_last_is_preempted_and_still_gets_its_text() {
    // Two texts of 40 tokens, and blocks for 60.
    let kv = KvLayout { format: KvFormat::F32, block_len: 4, num_blocks: 15 };
    let config = EngineConfig { kv, context_len: 60, ..config() };
    let mut watched = Watched::new(config, false);
    let first = watched.submit(request(&[1; 5], 35)).unwrap();
    let second = watched.submit(request(&[2; 5], 35)).unwrap();
    let mut ends = Vec::new();
    while watched.live().len() > 0 {
        let outputs = watched.step(None).unwrap();
        ends.extend(outputs.into_iter().filter(|output| output.finish.is_some()).map(|output| output.request));
    }
    assert_eq!(ends, [first, second]);
    assert!(watched.engine.stats().num_preemptions >= 1);
}

/// A device that returns the wrong number of logits.
struct Short;

impl backend::Executable for Short {
    fn compile(&mut self, _: StepShape) -> Result<(), backend::BackendError> {
        let (device, reason) = ("short".to_owned(), "no compiler".to_owned());
        Err(backend::BackendError::Device { device, reason })
    }

    fn replay(&mut self, _: &StepInput) -> Result<&[f32], backend::BackendError> {
        Ok(&[0.0; 3])
    }
}

#[test]
fn a_device_that_answers_wrongly_ends_the_requests_and_not_the_engine() {
    let mut engine = Engine::new(Box::new(Short), config()).unwrap();
    for _ in 0..2 {
        let id = engine.submit(request(&[1], 5)).unwrap();
        let outputs = engine.step();
        let reason = "the device returned 3 logits instead of 50".to_owned();
        assert_eq!(last(&outputs, id).finish, Some(FinishReason::Error(Failure::Backend(reason))));
        assert!(!engine.has_work());
    }
    assert_eq!(engine.warm_up(8).unwrap_err().to_string(), "device `short` failed: no compiler");
}

/// A device that counts the steps that are under way.
struct UnderWay(NullExecutable, Arc<Mutex<i32>>);

impl backend::Executable for UnderWay {
    fn compile(&mut self, shape: StepShape) -> Result<(), backend::BackendError> {
        self.0.compile(shape)
    }

    fn can_queue(&self) -> bool {
        true
    }

    fn enqueue(&mut self, input: &StepInput) -> Result<(), backend::BackendError> {
        *self.1.lock().unwrap() += 1;
        self.0.enqueue(input)
    }

    fn collect(&mut self) -> Result<&[backend::Choice], backend::BackendError> {
        *self.1.lock().unwrap() -= 1;
        self.0.collect()
    }

    fn replay(&mut self, input: &StepInput) -> Result<&[f32], backend::BackendError> {
        self.0.replay(input)
    }
}

#[test]
fn a_device_that_chooses_has_its_next_step_before_the_caller_has_the_tokens() {
    let greedy = |prompt_len: u32| Request {
        sampling: SamplingParams::greedy(),
        ..request(&(1..=prompt_len).collect::<Vec<_>>(), 3)
    };
    for (run_ahead, expected) in [(true, 1), (false, 0)] {
        let under_way = Arc::new(Mutex::new(0));
        let config = EngineConfig { run_ahead, ..config() };
        let device = NullExecutable::new(config.kv, config.vocab_size).with_queue();
        let mut engine = Engine::new(Box::new(UnderWay(device, under_way.clone())), config).unwrap();
        let step = |engine: &mut Engine| (engine.step().len(), *under_way.lock().unwrap());
        // A prompt of three steps, beside whose first nobody could say what comes; the rest of it is under way at once.
        engine.submit(greedy(40)).unwrap();
        assert_eq!(step(&mut engine), (0, expected));
        assert_eq!(step(&mut engine), (0, expected));
        assert_eq!(step(&mut engine), (1, expected));
        // Somebody starts.
        engine.submit(greedy(4)).unwrap();
        assert_eq!(step(&mut engine).1, expected);
        assert_eq!(step(&mut engine).1, expected);
        while engine.has_work() {
            engine.step();
        }
        assert_eq!(*under_way.lock().unwrap(), 0, "nothing is computed for nobody");
        // What the device does not choose is not submitted before who is in it is settled.
        let logprobs = SamplingParams { logprobs: Some(1), ..SamplingParams::greedy() };
        engine.submit(Request { sampling: logprobs, ..greedy(40) }).unwrap();
        assert_eq!(step(&mut engine).1, 0);
    }
}

#[test]
fn a_configuration_that_cannot_work_is_refused() {
    let refusal = |config: EngineConfig| {
        let executable = Box::new(NullExecutable::new(config.kv, config.vocab_size));
        Engine::new(executable, config).err().unwrap().to_string()
    };
    assert_eq!(
        refusal(EngineConfig { max_batch_tokens: 3, ..config() }),
        "engine configuration: max_batch_tokens is 3, but must be at least 4, the max_sequences"
    );
    assert_eq!(
        refusal(EngineConfig { context_len: 257, ..config() }),
        "engine configuration: context_len is 257, but must be at most 256, the tokens that the KV cache holds"
    );
    assert!(refusal(EngineConfig { context_len: 1, ..config() }).contains("context_len is 1"));
    assert!(refusal(EngineConfig { max_waiting_tokens: 127, ..config() }).contains("at least 128, the context_len"));
    assert!(refusal(EngineConfig { max_waiting: 3, ..config() }).contains("at least 4, the max_sequences"));
    assert!(refusal(EngineConfig { max_sequences: 0, ..config() }).contains("max_sequences is 0"));
}

#[test]
fn a_request_can_be_told_how_much_of_its_prompt_is_read() {
    let prompt: Vec<u32> = (0..23).map(|i| i * 7 % 50).collect();
    let mut engine = engine(EngineConfig { max_batch_tokens: 8, ..config() });
    let told = |engine: &mut Engine, wanted: Request| {
        engine.submit(wanted).unwrap();
        let outputs: Vec<Output> = std::iter::from_fn(|| engine.has_work().then(|| engine.step())).flatten().collect();
        assert_eq!(outputs.iter().filter(|output| output.token.is_some()).count(), 2);
        assert!(outputs.iter().all(|output| output.prompt_read.is_none() || output.token.is_none()));
        let reading = outputs.iter().filter_map(|output| Some((output.prompt_read?, output.usage.cached_tokens)));
        reading.collect::<Vec<_>>()
    };
    let wanted = Request { reports_prompt: true, ..request(&prompt, 2) };
    assert_eq!(told(&mut engine, request(&prompt, 2)), []);
    let other: Vec<u32> = prompt.iter().map(|token| (token + 1) % 50).collect();
    assert_eq!(told(&mut engine, Request { prompt: other, ..wanted.clone() }), [(8, 0), (16, 0)]);
    // Of what the cache holds, nothing is read.
    let again = told(&mut engine, Request { prompt: [&prompt[..], &[1; 12]].concat(), ..wanted });
    assert!(again.iter().all(|&(read, cached)| cached > 0 && read > cached), "{again:?}");
}

/// However small the steps, and with the whole prompt in the cache.
#[test]
fn the_prompt_is_scored_token_by_token() {
    let prompt: Vec<u32> = (0..23).map(|i| i * 7 % 50).collect();
    for (max_batch_tokens, max_batch_outputs) in [(16, 5), (4, 64), (64, 64), (7, 8)] {
        let config = EngineConfig { max_batch_tokens, max_batch_outputs, ..config() };
        let mut engine = engine(config.clone());
        engine.submit(request(&prompt, 2)).unwrap();
        run(&mut engine);
        for (max_tokens, completions) in [(0, 1), (3, 1), (2, 2)] {
            let wanted =
                Request { prompt_logprobs: Some(2), num_completions: completions, ..request(&prompt, max_tokens) };
            engine.submit(wanted.clone()).unwrap();
            let outputs = run(&mut engine);
            let found: Vec<_> = outputs.iter().flat_map(|output| output.prompt_logprobs.clone()).collect();
            let expected: Vec<_> = (1..prompt.len()).map(|index| scored_alone(&config, &wanted, index)).collect();
            assert_eq!(found, expected);
            assert_eq!(outputs.iter().filter(|output| output.token.is_some()).count(), max_tokens * completions);
            assert!(outputs.iter().all(|output| output.usage.cached_tokens == 0));
            engine.check_invariants().unwrap();
        }
    }
}

#[test]
fn a_prompt_without_anything_wanted_of_it_is_refused() {
    let error = engine(config()).submit(request(&[1, 2], 0)).unwrap_err();
    assert_eq!(error.to_string(), "max_tokens is 0, but must be at least 1");
    let error = engine(config()).submit(Request { prompt_logprobs: Some(21), ..request(&[1, 2], 0) }).unwrap_err();
    assert_eq!(error.to_string(), "prompt_logprobs is 21, but must be at most 20");
}

/// Counts up from `next` by twos, and ends behind 20. It does not know how to go on from 19.
#[derive(Clone, Debug)]
struct Counting {
    next: u32,
    /// How often it does not know yet which token is next, for each token.
    late_by: u32,
}

#[derive(Debug)]
struct Count {
    of: Counting,
    asked: AtomicU32,
}

impl Grammar for Counting {
    fn start(&self) -> Box<dyn GrammarState> {
        Box::new(Count { of: self.clone(), asked: AtomicU32::new(0) })
    }
}

impl GrammarState for Count {
    fn allow(&mut self, allowed: &mut TokenSet, until: Option<Instant>) -> Result<bool, String> {
        if until.is_some() && !self.is_ready() {
            return Ok(false);
        }
        if self.of.next == 21 {
            return Err("nineteen".to_owned());
        }
        allowed.insert(if self.of.next > 20 { EOS } else { self.of.next });
        Ok(true)
    }

    fn accept(&mut self, token_id: u32) {
        assert_eq!(token_id, self.of.next, "nothing else was allowed");
        self.of.next += 2;
        self.asked = AtomicU32::new(0);
    }

    fn is_ready(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed) >= self.of.late_by
    }
}

/// Waits for no grammar.
struct Impatient;

impl StepWatch for Impatient {
    fn given(&mut self) {}

    fn returned(&mut self) {}

    fn patience(&mut self) -> Option<Instant> {
        Some(Instant::now())
    }
}

/// Who does not wait for a late grammar gets the same tokens, and nobody else's come later.
#[test]
fn a_late_grammar_keeps_nobody_waiting_and_changes_no_text() {
    let constrained = |late_by| Request {
        grammar: Some(Arc::new(Counting { next: 10, late_by })),
        num_completions: 2,
        prompt_logprobs: Some(1),
        ..Request::new((1..30).collect(), SamplingParams::default())
    };
    let plain = request(&[4, 5, 6], 8);
    for executable in
        [NullExecutable::new(config().kv, VOCAB_SIZE), NullExecutable::new(config().kv, VOCAB_SIZE).with_queue()]
    {
        let mut engine = Engine::new(Box::new(executable), config()).unwrap();
        let free = engine.submit(plain.clone()).unwrap();
        let late = engine.submit(constrained(3)).unwrap();
        let vector = engine.submit(Request { pooling: Some(Pooling::Mean), ..request(&[7, 8, 9], 0) });
        let (mut outputs, mut all, mut steps, mut ended) = (Vec::new(), Vec::new(), 0, None);
        while engine.has_work() {
            engine.step_watched(&mut outputs, &mut Impatient);
            engine.check_invariants().unwrap();
            steps += 1;
            if outputs.iter().any(|output| output.request == free && output.finish.is_some()) {
                ended = ended.or(Some(steps));
            }
            all.append(&mut outputs);
        }
        assert_eq!(text(&all, free, 0), expected_text(&config(), &plain, 8));
        for completion in 0..2 {
            assert_eq!(text(&all, late, completion), [10, 12, 14, 16, 18, 20, EOS]);
        }
        // One step a token, and one in between for the embedding, if the device makes such.
        assert!(ended.unwrap() <= 9 && steps > 20, "{ended:?} of {steps} steps");
        let scored = |outputs: &[Output], id| {
            let own = outputs.iter().filter(|output| output.request == id);
            own.flat_map(|output| output.prompt_logprobs.clone()).collect::<Vec<_>>()
        };
        let at_once = engine.submit(constrained(0)).unwrap();
        let alone = run(&mut engine);
        assert_eq!(scored(&all, late), scored(&alone, at_once));
        assert_eq!(scored(&all, late).len(), 28);
        if let Ok(vector) = vector {
            assert!(last(&all, vector).embedding.is_some());
        }
        assert_eq!(engine.stats().num_free_blocks, engine.stats().num_blocks);
    }
}

#[test]
fn a_text_keeps_to_its_grammar_and_each_completion_has_its_own() {
    let constrained = |next, temperature| Request {
        grammar: Some(Arc::new(Counting { next, late_by: 0 })),
        sampling: SamplingParams { temperature, logprobs: Some(1), ..SamplingParams::default() },
        max_tokens: Some(40),
        num_completions: 2,
        ..Request::new(vec![1, 2, 3], SamplingParams::default())
    };
    // A device that could choose by itself is not asked to.
    for executable in
        [NullExecutable::new(config().kv, VOCAB_SIZE), NullExecutable::new(config().kv, VOCAB_SIZE).with_queue()]
    {
        let mut engine = Engine::new(Box::new(executable), config()).unwrap();
        for temperature in [0.0, 1.0] {
            let id = engine.submit(constrained(10, temperature)).unwrap();
            let outputs = run(&mut engine);
            for completion in 0..2 {
                assert_eq!(text(&outputs, id, completion), [10, 12, 14, 16, 18, 20, EOS]);
            }
            assert_eq!(last(&outputs, id).finish, Some(FinishReason::Stop { token_id: EOS }));
            let failing = engine.submit(constrained(15, temperature)).unwrap();
            let outputs = run(&mut engine);
            let reason = FinishReason::Error(Failure::Grammar("nineteen".to_owned()));
            assert_eq!(last(&outputs, failing).finish, Some(reason));
            engine.check_invariants().unwrap();
            assert_eq!(engine.stats().num_free_blocks, engine.stats().num_blocks);
        }
    }
}

/// The state goes with a sequence that loses its place.
#[test]
fn a_preempted_text_goes_on_in_its_grammar() {
    let kv = KvLayout { num_blocks: 6, ..config().kv };
    let config = EngineConfig { kv, context_len: 24, max_waiting_tokens: 64, ..config() };
    let mut engine = engine(config);
    let constrained = |next| Request {
        grammar: Some(Arc::new(Counting { next, late_by: 0 })),
        ..Request::new(vec![next; 5], SamplingParams::default())
    };
    let ids = [2, 4, 6].map(|next| (next, engine.submit(constrained(next)).unwrap()));
    let outputs = run(&mut engine);
    assert!(engine.stats().num_preemptions > 0);
    for (next, id) in ids {
        let expected: Vec<u32> = (next..=20).step_by(2).chain([EOS]).collect();
        assert_eq!(text(&outputs, id, 0), expected);
    }
}

/// Whoever fills the queue does not keep others from their turn, and gets all of it while nobody else asks.
#[test]
fn callers_take_turns() {
    let mut engine = engine(EngineConfig { max_sequences: 1, ..config() });
    let submit = |engine: &mut Engine, caller| {
        let request = Request { caller: Some(caller), ..request(&[1, 2, 3], 2) };
        engine.submit(request).unwrap()
    };
    let of_first: Vec<RequestId> = (0..4).map(|_| submit(&mut engine, 1)).collect();
    let mut ends = Vec::new();
    let ended = |outputs: Vec<Output>, ends: &mut Vec<RequestId>| {
        ends.extend(outputs.iter().filter(|output| output.finish.is_some()).map(|output| output.request));
    };
    ended(engine.step(), &mut ends);
    let of_second: Vec<RequestId> = (0..2).map(|_| submit(&mut engine, 2)).collect();
    ended(run(&mut engine), &mut ends);
    let [a, b, c, d] = of_first[..] else { panic!("four requests") };
    let [x, y] = of_second[..] else { panic!("two requests") };
    assert_eq!(ends, [a, x, b, y, c, d]);
    // What was taken while nobody else asked is not held against anyone.
    let late = [2, 2, 2, 1].map(|caller| submit(&mut engine, caller));
    let mut ends = Vec::new();
    ended(run(&mut engine), &mut ends);
    assert_eq!(ends, [late[0], late[1], late[3], late[2]]);
}

/// Places and tokens of the queue are each caller's own.
#[test]
fn a_caller_that_fills_its_queue_keeps_nobody_out() {
    let config = EngineConfig { max_sequences: 1, max_waiting: 3, max_waiting_tokens: 200, ..config() };
    let of = |caller, len: usize| Request { caller, ..request(&vec![1; len], 2) };
    for (len, count, filled) in [(1, 3, "sequences"), (90, 2, "tokens")] {
        let mut engine = engine(config.clone());
        let full: Vec<RequestId> = (0..count).map(|_| engine.submit(of(Some(1), len)).unwrap()).collect();
        let refused = engine.submit(of(Some(1), len)).unwrap_err();
        assert!(matches!(refused, EngineError::QueueFull { unit, .. } if unit == filled), "{refused}");
        // Two others, one of whom does not say who it is, get in and get their turn before the queue is through.
        let late = [Some(2), None].map(|caller| engine.submit(of(caller, len)).unwrap());
        let outputs = run(&mut engine);
        let end = |id| outputs.iter().position(|output| output.request == id && output.finish.is_some()).unwrap();
        assert!(late.iter().all(|&late| end(late) < end(full[count - 1])), "{outputs:?}");
        engine.submit(of(Some(1), len)).unwrap();
    }
}

/// A caller with priority goes first for as long as its level is worth, and no longer.
#[test]
fn nobody_waits_for_ever_for_a_turn() {
    let mut engine = engine(EngineConfig { max_sequences: 1, aging_steps: 4, ..config() });
    let of = |caller, priority| Request { caller: Some(caller), priority, ..request(&[caller as u32, 2, 3], 2) };
    let patient = engine.submit(of(1, 0)).unwrap();
    let mut outputs = Vec::new();
    for _ in 0..200 {
        // Two who always want more, with a priority.
        for caller in [2, 3] {
            if engine.stats().num_waiting < 6 {
                engine.submit(of(caller, 2)).unwrap();
            }
        }
        outputs.extend(engine.step());
        if outputs.iter().any(|output| output.request == patient && output.finish.is_some()) {
            return;
        }
    }
    panic!("never served");
}

#[test]
fn an_embedding_is_the_same_in_chunks_and_beside_texts_that_go_on() {
    let mut engine = engine(config());
    let prompt: Vec<u32> = (0..40).map(|i| 1 + i % 20).collect();
    let text = engine.submit(request(&[1, 2, 3], 20)).unwrap();
    let ids = [Pooling::Mean, Pooling::Last]
        .map(|pooling| (engine.submit(Request::embedding(prompt.clone(), pooling)).unwrap(), pooling));
    let outputs = run(&mut engine);
    for (id, pooling) in ids {
        let end = last(&outputs, id);
        assert_eq!(end.embedding, Some(embedded_alone(&prompt, pooling)), "{pooling:?}");
        assert_eq!((end.usage.prompt_tokens, end.usage.generated_tokens), (40, 0));
    }
    assert_eq!(self::text(&outputs, text, 0), expected_text(&config(), &request(&[1, 2, 3], 20), 20));
    // The text does not wait for the chunks: steps take turns.
    let place = |id| outputs.iter().position(|output| output.request == id).unwrap();
    assert!(place(text) < place(ids[0].0));
}

#[test]
fn an_embedding_takes_no_field_of_a_text() {
    let mut engine = engine(config());
    let embedding = Request::embedding(vec![1, 2], Pooling::Mean);
    for wrong in [
        Request { max_tokens: Some(1), ..embedding.clone() },
        Request { max_tokens: None, ..embedding.clone() },
        Request { num_completions: 2, ..embedding.clone() },
        Request { prompt_logprobs: Some(0), ..embedding },
    ] {
        let refused = engine.submit(wrong).unwrap_err();
        assert!(matches!(refused, EngineError::Parameter { name: "pooling", .. }), "{refused}");
    }
}
