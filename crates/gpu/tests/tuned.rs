//! Every way in which a kernel may be launched computes the same thing: a table of choices can make steps slow, and not
//! wrong.

use std::sync::Arc;

use backend::{Backend, Tunable, Tuning};
use gpu::{GpuBackend, GpuOptions, SimDialect, ThreadOrder, Tuned};
use plan::{AnyShape, BuildError, Graph, KvFormat, KvLayout, LatentHeads, Plan, StepInput, fuse, restrict_outputs};
use tensor::{Tensor, WeightFormat};
use testing::random::Rng;
use testing::tiny::random_weights;
use testing::{ErrorAnalysis, Sample, tiny_model};

const KV: KvLayout = KvLayout { format: KvFormat::F16, block_len: 8, num_blocks: 64 };

fn tuning() -> &'static Tuning {
    Box::leak(Box::new(Tuning::default()))
}

fn by(tuning: &'static Tuning) -> GpuBackend {
    let options = GpuOptions { tuned: Tuned::by(tuning), ..GpuOptions::default() };
    let simulated = GpuBackend::simulator_of(SimDialect::Cuda, ThreadOrder::Forward, 1 << 30, GpuOptions::default());
    simulated.with_options(options).unwrap()
}

/// Rows of sequences of their own, behind one token each or, where there is one, behind many.
fn step(rows: usize) -> [StepInput; 2] {
    let (mut first, mut second) = (StepInput::default(), StepInput::default());
    let behind = if rows == 1 { 120 } else { 1 };
    let each = KV.num_blocks / rows;
    for row in 0..rows {
        let blocks: Vec<u32> = (row * each..(row + 1) * each).map(|block| block as u32).collect();
        let tokens: Vec<u32> = (0..behind).map(|at| ((at * 5 + row * 3) % 40) as u32).collect();
        first.push_sequence(&tokens, 0, &blocks);
        let place = second.push_sequence(&[(row as u32 * 7 + 1) % 40], behind, &blocks);
        second.output_rows.push(place as u32);
    }
    first.output_rows.push(0);
    [first, second]
}

struct Model {
    plan: Arc<Plan>,
    weights: Vec<Tensor>,
}

fn model(format: WeightFormat) -> Model {
    let (textbook, weights) = tiny_model("llama", 3, format);
    Model { plan: Arc::new(fuse(restrict_outputs((*textbook).clone()))), weights }
}

/// Latent attention over rows as published models have them, with all else as small as can be.
fn latent_model() -> Model {
    let (heads, dim, rope, out) = (20, 512, 64, 48);
    let plan = Graph::build("latent", KV.num_blocks * KV.block_len, &AnyShape, |g, w| {
        let widths = [("q_latent", heads * dim), ("q_rope", heads * rope), ("latent", dim), ("rope", rope)];
        let mut inputs = vec![];
        for (name, width) in widths {
            inputs.push(g.embed(w.get(&format!("{name}.weight"), [out, width])?, width));
        }
        let of = LatentHeads { heads, scale: 1.0 / ((dim + rope) as f32).sqrt() };
        let made = g.mla_attention([inputs[0], inputs[1]], [inputs[2], inputs[3]], of);
        let made = g.select_outputs(made);
        Ok::<_, BuildError>(g.linear(made, w.linear("out", out, heads * dim, false)?, out))
    });
    let plan = Arc::new(plan.unwrap());
    let weights = random_weights(&plan, &mut Rng::new(5), WeightFormat::F32);
    Model { plan, weights }
}

#[test]
fn every_candidate_is_within_the_bound_of_the_op() {
    let cases = [(WeightFormat::F16, &[1, 2, 4][..]), (WeightFormat::Q8_0, &[1, 2, 32]), (WeightFormat::Q4_0, &[2, 4])];
    // One format a day.
    let sample = Sample::of_today(3);
    for (_, (format, steps)) in cases.into_iter().enumerate().filter(|&(index, _)| sample.has(index)) {
        check_candidates(&model(format), format, steps, "");
    }
}

#[test]
fn every_way_to_cut_latent_attention_is_within_its_bound() {
    check_candidates(&latent_model(), WeightFormat::F32, &[1, 2], "mla_attention_f16 rows=");
}

/// Holds every candidate of steps of so many rows to exact arithmetic; one of the keys must begin with `begins`.
fn check_candidates(model: &Model, format: WeightFormat, steps: &[usize], begins: &str) {
    let Model { plan, weights } = model;
    for &rows in steps {
        let tuning = tuning();
        let backend = by(tuning);
        let claims = backend.claims();
        let mut exact = ErrorAnalysis::new(plan.clone(), weights, KV, claims.activations)
            .with_attention((claims.attention)(KV.format));
        let [first, second] = step(rows);
        exact.run(&first);
        let exact = exact.run(&second);
        let mut executable = backend.load(plan.clone(), weights.clone(), KV).unwrap();
        // What is behind the rows is the same for all.
        executable.replay(&first).unwrap();
        let mut share = || {
            executable.forget_programs();
            tuning.watch();
            let found = executable.replay(&second).unwrap().to_vec();
            (exact.worst(&found).unwrap().1, tuning.watched())
        };
        let (share_of_default, seen) = share();
        assert!(share_of_default <= 1.0, "{format} {rows}: {share_of_default}");
        let is_it = |tunable: &Tunable| tunable.key.starts_with(begins);
        assert!(seen.iter().any(is_it), "{format} {rows}: there is nothing to choose");
        for Tunable { key, candidates, default } in seen {
            assert!(candidates.len() > 1, "{key}");
            for candidate in &candidates {
                tuning.set(&key, Some(candidate));
                let (share, _) = share();
                assert!(share <= 1.0, "{key} with {candidate}: {share} of its bound");
            }
            tuning.set(&key, Some(&candidates[default]));
        }
    }
}

#[test]
fn a_table_says_what_is_launched_and_one_of_other_kernels_says_nothing() {
    let Model { plan, weights } = model(WeightFormat::F16);
    let variants = |tuning: &'static Tuning| {
        let backend = by(tuning);
        let mut executable = backend.load(plan.clone(), weights.clone(), KV).unwrap();
        tuning.watch();
        let infos = executable.variants(step(4)[1].shape().bucket()).unwrap();
        (infos.into_iter().map(|info| info.variant).collect::<Vec<_>>(), tuning.watched())
    };
    let (usual, seen) = variants(tuning());
    let kernel = seen.iter().find(|tunable| tunable.key.starts_with("projection ")).expect("there are two kernels");
    let other = kernel.candidates.iter().find(|&candidate| *candidate != kernel.candidates[kernel.default]).unwrap();
    let of = |choice: &str| Box::leak(Box::new(Tuning::new([(kernel.key.clone(), choice.to_owned())])));
    let table = of(other);
    assert!(by(table).device().description.ends_with(", tuned for 1 shapes"));
    let (found, _) = variants(table);
    assert_ne!(found, usual);
    assert!(found.iter().any(|variant| variant.contains(other.as_str())), "{found:?}");
    assert_eq!((table.num_taken(), table.unknown()), (1, vec![]));
    let stale = of("gone");
    let (found, _) = variants(stale);
    assert_eq!(found, usual);
    assert_eq!(stale.unknown(), [kernel.key.as_str()]);
    // Where rows must not depend on each other there is one way alone.
    let options = GpuOptions { batch_invariant: true, tuned: Tuned::by(table), ..GpuOptions::default() };
    let alike = GpuBackend::simulator(ThreadOrder::Forward, 1 << 30, GpuOptions::default()).with_options(options);
    assert!(!alike.unwrap().device().description.contains("tuned"));
}
