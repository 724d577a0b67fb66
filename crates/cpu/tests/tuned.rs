//! Every way that a tuner may choose on processors has the bits of the usual one: a table of choices can make steps slow,
//! and changes nothing else.

use std::sync::Arc;

use backend::{Backend, Tunable, Tuned, Tuning};
use cpu::{CpuBackend, CpuOptions};
use plan::{KvFormat, KvLayout, Plan, StepInput, fuse, restrict_outputs};
use tensor::{Tensor, WeightFormat};
use testing::tiny_model;

const KV: KvLayout = KvLayout { format: KvFormat::F16, block_len: 8, num_blocks: 64 };

fn by(table: Tuned, threads: usize) -> CpuBackend {
    let options = CpuOptions { threads: Some(threads), pin: false, tuned: table, ..CpuOptions::default() };
    CpuBackend::new(options).expect("a processor")
}

fn model(format: WeightFormat) -> (Arc<Plan>, Vec<Tensor>) {
    let (textbook, weights) = tiny_model("llama", 3, format);
    (Arc::new(fuse(restrict_outputs((*textbook).clone()))), weights)
}

/// One row of each of so many sequences, at their beginning.
fn step(rows: usize) -> StepInput {
    let mut input = StepInput::default();
    for row in 0..rows {
        let place = input.push_sequence(&[(row as u32 * 7 + 1) % 40], 0, &[row as u32]);
        input.output_rows.push(place as u32);
    }
    input
}

#[test]
fn every_candidate_has_the_bits_of_the_usual_way() {
    let mut kinds = vec![];
    for format in [WeightFormat::F16, WeightFormat::BF16, WeightFormat::Q8_0, WeightFormat::Q4_0, WeightFormat::Q4_K] {
        let (plan, weights) = model(format);
        for (rows, threads) in [(1, 1), (4, 2), (16, 2), (64, 3)] {
            let table: &'static Tuning = Box::leak(Box::new(Tuning::default()));
            let mut executable = by(Tuned::by(table), threads).load(plan.clone(), weights.clone(), KV).unwrap();
            executable.settle().unwrap();
            table.watch();
            let usual = executable.replay(&step(rows)).unwrap().to_vec();
            let seen = table.watched();
            assert!(!seen.is_empty(), "{format} {rows}: there is nothing to choose");
            for Tunable { key, candidates, default } in seen {
                assert!(key.contains(&format!("rows={rows} ")), "{key}");
                for candidate in &candidates {
                    table.set(&key, Some(candidate));
                    executable.forget_programs();
                    let found = executable.replay(&step(rows)).unwrap();
                    assert!(found == usual, "{key} with {candidate}");
                    let variants = executable.variants(step(rows).shape().bucket()).unwrap();
                    if let Some(kind) = ["bytes ahead", "in turns", "in tiles", "made once", "made by each thread"]
                        .into_iter()
                        .find(|kind| {
                            candidate != &candidates[default] && variants.iter().any(|info| info.variant.contains(kind))
                        })
                    {
                        kinds.push(kind);
                    }
                }
                table.set(&key, None);
            }
            assert!(table.unknown().is_empty());
        }
    }
    kinds.sort_unstable();
    kinds.dedup();
    assert!(kinds.contains(&"bytes ahead") && kinds.len() > 2, "{kinds:?}");
}

#[test]
fn a_table_is_named_and_one_of_other_kernels_changes_nothing() {
    let (plan, weights) = model(WeightFormat::Q8_0);
    let table: &'static Tuning = Box::leak(Box::new(Tuning::default()));
    let variants = |table: Tuned| {
        let mut executable = by(table, 2).load(plan.clone(), weights.clone(), KV).unwrap();
        executable.settle().unwrap();
        let infos = executable.variants(step(1).shape().bucket()).unwrap();
        infos.into_iter().map(|info| info.variant).collect::<Vec<_>>()
    };
    table.watch();
    let usual = variants(Tuned::by(table));
    let seen = table.watched();
    let first = seen.iter().find(|tunable| tunable.candidates.iter().any(|way| way.contains("ahead=4096"))).unwrap();
    let way = first.candidates.iter().find(|way| way.contains("ahead=4096")).unwrap();
    let of = |choice: &str| Tuned::by(Box::leak(Box::new(Tuning::new([(first.key.clone(), choice.to_owned())]))));
    assert!(by(of(way), 2).device().description.ends_with(", tuned for 1 shapes"));
    let found = variants(of(way));
    assert!(found != usual && found.iter().any(|variant| variant.contains("4096 bytes ahead")), "{found:?}");
    assert_eq!(variants(of("gone")), usual);
    // Layouts are chosen where a model is loaded.
    let layout = CpuBackend::layout_key(&weights);
    assert!(layout.starts_with("layout ") && layout.contains("q8_0"), "{layout}");
    let rows = Tuning::new([(layout, CpuBackend::IN_ROWS.to_owned())]);
    let found = variants(Tuned::by(Box::leak(Box::new(rows))));
    assert!(found.iter().any(|variant| variant.contains("rows of the file")), "{found:?}");
}
