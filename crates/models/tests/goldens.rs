//! Every architecture against Hugging Face transformers: the plan of each golden checkpoint through the reference
//! interpreter, textbook and fused, in every way to cut a prompt into steps.

use std::sync::Arc;

use plan::reference::Interpreter;
use plan::{AnyShape, KvFormat, KvLayout, Op, Plan, StepInput, fuse, restrict_outputs, share_slots};
use tensor::Tensor;
use testing::tolerance::LOGITS_RELATIVE;
use testing::{BlockPool, Golden, Rng, goldens};

const KV: KvLayout = KvLayout { format: KvFormat::F32, block_len: 16, num_blocks: 16 };
/// Greedy steps that were decided by less than this may go either way.
const MARGIN_MIN: f32 = 1e-4;

/// The logits of `tokens` at every position, in steps of `chunk` tokens over shuffled blocks.
fn logits(plan: &Arc<Plan>, weights: &[Tensor], tokens: &[u32], chunk: usize) -> Vec<f64> {
    let mut interpreter = Interpreter::new(plan.clone(), weights.to_vec(), KV).unwrap();
    let mut sequence = BlockPool::new(&KV, &mut Rng::new(chunk as u64)).sequence(tokens.to_vec());
    let mut logits = Vec::new();
    while sequence.remaining() > 0 {
        let step = sequence.next_step(chunk.min(sequence.remaining()));
        logits.extend(interpreter.run(&step).unwrap());
    }
    logits
}

/// The goldens in the tree, and that of the trained story model where its checkpoint is at hand.
fn all_goldens() -> Vec<Golden> {
    let mut all = goldens();
    match testing::golden::test_data("models/stories260K-hf") {
        Ok(checkpoint) => {
            all.push(Golden::read(&testing::golden::golden_folder().join("stories260K"), &checkpoint));
        }
        Err(reason) => skipped(&reason),
    }
    all
}

#[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
fn skipped(reason: &str) {
    eprintln!("skipped: {reason}");
}

/// What the form is called whose shared experts are among the routed ones.
const SHARED_SLOT: &str = "with a slot for the shared expert";

fn forms(golden: &Golden) -> (Vec<(&'static str, Arc<Plan>)>, Vec<Tensor>) {
    let (textbook, weights) = golden.model();
    let fused = Arc::new(fuse((*textbook).clone()));
    let restricted = Arc::new(restrict_outputs((*textbook).clone()));
    let both = Arc::new(fuse((*restricted).clone()));
    // Latent attention is more ops that stay as they are.
    let is_latent = textbook.kv_layers.iter().any(|layer| layer.latent().is_some());
    let share = if is_latent { 2.0 / 3.0 } else { 0.5 };
    let did_much = (fused.ops.len() as f64) < share * textbook.ops.len() as f64;
    assert!(did_much, "{}: fusion did little:\n{fused}", golden.name);
    let mut forms =
        vec![("textbook", textbook), ("fused", fused), ("restricted", restricted), ("restricted, fused", both)];
    let slots = share_slots((*forms[0].1).clone(), |_| true);
    if slots != *forms[0].1 {
        forms.push((SHARED_SLOT, Arc::new(fuse(slots))));
    }
    (forms, weights)
}

#[test]
fn logits_are_those_of_transformers() {
    for golden in all_goldens() {
        let (forms, weights) = forms(&golden);
        let expected: Vec<f64> = golden.expected.logits.iter().flatten().map(|&x| f64::from(x)).collect();
        let largest = expected.iter().fold(0f64, |max, x| max.max(x.abs()));
        let mut first: Option<Vec<f64>> = None;
        for (form, plan) in &forms {
            let found = logits(plan, &weights, &golden.expected.prompt_token_ids, usize::MAX);
            assert_eq!(found.len(), expected.len());
            let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(worst <= LOGITS_RELATIVE * largest, "{}, {form}: off by {worst:e} of {largest}", golden.name);
            let first = first.get_or_insert(found.clone());
            if *form == SHARED_SLOT {
                // Sums are added up in another order.
                let worst = found.iter().zip(&*first).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(worst <= 1e-12 * largest, "{}, {form}: {worst:e}", golden.name);
            } else {
                // Passes change no bit.
                assert!(*first == found, "{}, {form}", golden.name);
            }
        }
    }
}

/// What embeddings are made of: through the head, which is multiplied here, the states are transformers' own logits.
#[test]
fn hidden_states_are_what_the_head_makes_the_logits_of_transformers_from() {
    for golden in all_goldens() {
        let (forms, weights) = forms(&golden);
        let expected: Vec<f64> = golden.expected.logits.iter().flatten().map(|&x| f64::from(x)).collect();
        let largest = expected.iter().fold(0f64, |max, x| max.max(x.abs()));
        for (form, plan) in &forms {
            let name = |name: &str| plan.weights.iter().position(|weight| weight.name == name);
            let head = name("lm_head.weight").or(name("model.embed_tokens.weight")).expect("a head");
            let head = weights[head].to_f32();
            let tokens = &golden.expected.prompt_token_ids;
            let mut interpreter = Interpreter::new(plan.clone(), weights.clone(), KV).unwrap();
            let table: Vec<u32> = (0..KV.num_blocks as u32).collect();
            let mut step = StepInput::default();
            step.push_sequence(tokens, 0, &table);
            step.output_rows = (0..tokens.len() as u32).collect();
            let states = interpreter.run_hidden(&step).unwrap().expect("a head over a norm");
            let hidden_size = states.len() / tokens.len();
            assert_eq!(head.len(), plan.vocab_size * hidden_size, "{}", golden.name);
            let dot = |a: &[f64], b: &[f32]| a.iter().zip(b).map(|(a, &b)| a * f64::from(b)).sum::<f64>();
            let found = states
                .chunks_exact(hidden_size)
                .flat_map(|state| head.chunks_exact(hidden_size).map(move |row| dot(state, row)));
            let worst = found.zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(worst <= LOGITS_RELATIVE * largest, "{}, {form}: off by {worst:e} of {largest}", golden.name);
        }
    }
}

#[test]
fn a_prompt_in_one_piece_in_chunks_and_token_by_token_gives_the_same_bits() {
    for golden in all_goldens() {
        let (forms, weights) = forms(&golden);
        for (form, plan) in &forms {
            let whole = logits(plan, &weights, &golden.expected.prompt_token_ids, usize::MAX);
            for chunk in [1, 7, 16] {
                let found = logits(plan, &weights, &golden.expected.prompt_token_ids, chunk);
                assert!(found == whole, "{}, {form}: chunks of {chunk}", golden.name);
            }
        }
    }
}

#[test]
fn greedy_text_is_that_of_transformers() {
    for golden in all_goldens() {
        let (forms, weights) = forms(&golden);
        let expected = &golden.expected.greedy;
        assert!(expected.token_ids.len() >= 128, "{}", golden.name);
        for (form, plan) in forms.iter().take(2) {
            let mut interpreter = Interpreter::new(plan.clone(), weights.clone(), KV).unwrap();
            let table: Vec<u32> = (0..KV.num_blocks as u32).rev().collect();
            let mut next = expected.prompt_token_ids.clone();
            let mut position = 0;
            for (index, &token) in expected.token_ids.iter().enumerate() {
                let mut step = StepInput::default();
                step.push_sequence(&next, position, &table);
                step.output_rows = vec![next.len() as u32 - 1];
                position += next.len();
                let logits = interpreter.run(&step).unwrap();
                let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
                let decided = expected.margins[index] > MARGIN_MIN;
                assert!(best == token as usize || !decided, "{}, {form}: token {index} is {best}", golden.name);
                next = vec![token];
            }
        }
    }
}

#[test]
fn routers_choose_the_experts_that_those_of_transformers_do() {
    let mut routed = 0;
    for golden in all_goldens() {
        let (forms, weights) = forms(&golden);
        let of_ops = |form: &str| ["textbook", "fused", SHARED_SLOT].contains(&form);
        for (form, plan) in forms.iter().filter(|(form, _)| of_ops(form)) {
            let mut interpreter = Interpreter::new(plan.clone(), weights.clone(), KV).unwrap();
            let tokens = &golden.expected.prompt_token_ids;
            let step = testing::golden::golden_step(tokens, 0, 0..tokens.len() as u32);
            let mut found: Vec<(Vec<f32>, Vec<f32>)> = vec![];
            // Of the experts that were chosen; the shared ones come behind them.
            let chosen = |elements: &[f64], router: &plan::Router| {
                let rows = elements.chunks_exact(router.slots());
                rows.flat_map(|row| row[..router.top_k].iter().map(|&element| element as f32)).collect::<Vec<_>>()
            };
            let trace = |_: usize, op: &plan::Op, value: plan::Value, elements: &[f64]| match *op {
                Op::Route { ids, router, .. } | Op::MoeRoute { ids, router, .. } if value == ids => {
                    found.push((chosen(elements, &router), vec![]));
                }
                Op::Route { weights, router, .. } | Op::MoeRoute { weights, router, .. } if value == weights => {
                    found.last_mut().expect("ids come first").1 = chosen(elements, &router);
                }
                _ => {}
            };
            interpreter.run_traced(&step, trace).unwrap();
            golden.check_routing(&found).unwrap_or_else(|error| panic!("{form}: {error}"));
            routed += found.len();
        }
    }
    assert!(routed > 20, "{routed} layers with experts");
}

/// What the goldens are evidence of: every architecture is there, and the folders name where they come from.
#[test]
fn every_architecture_has_a_golden_with_its_source() {
    let goldens = goldens();
    for model_type in models::SUPPORTED {
        assert!(goldens.iter().any(|golden| golden.config["model_type"] == model_type), "no golden of {model_type}");
    }
    for golden in &goldens {
        let source = testing::golden::golden_folder().join(&golden.name).join("source.toml");
        let source = std::fs::read_to_string(&source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
        for key in ["tool", "command", "date", "license", "sha256"] {
            assert!(source.contains(key), "{}: source.toml has no {key}", golden.name);
        }
    }
}

/// Frequencies, and what scores grow by, of every kind of rotary embedding: transformers' own, in f32.
#[test]
fn rotary_embeddings_are_those_of_transformers() {
    let path = testing::golden::golden_folder().join("rope.json");
    let file: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() > 15);
    for case in cases {
        let mut config = case["config"].clone();
        config[models::CTX_SIZE] = case["length"].clone();
        let plan = models::build_plan(&config, &AnyShape).unwrap_or_else(|error| panic!("{config}: {error}"));
        let [rope] = &plan.ropes[..] else { panic!("{config}: {:?}", plan.ropes) };
        let expected: Vec<f64> =
            case["frequencies"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect();
        let found = rope.frequencies();
        assert_eq!(found.len(), expected.len(), "{config}");
        for (pair, (found, expected)) in found.iter().zip(&expected).enumerate() {
            // Powers of f32 are off by some units of their last place.
            assert!((found - expected).abs() <= 2e-6 * expected, "{config}, pair {pair}: {found}, {expected}");
        }
        let (found, expected) = (f64::from(rope.attention_factor), case["attention_factor"].as_f64().unwrap());
        assert!((found - expected).abs() <= 1e-6 * expected, "{config}: {found}, {expected}");
    }
}
