//! The largest logit of each group comes with the logits: that of the same logits, on any number of threads, in any format
//! and for any number of rows, and no number where one of the group is none.

use std::sync::Arc;

use backend::{Backend, Executable, PEAK_GROUP, num_peaks, peak};
use cpu::{CpuBackend, CpuOptions, Isa, IsaLevel};
use plan::{AnyShape, BuildError, Graph, KvFormat, KvLayout, Plan, StepInput, fuse, restrict_outputs};
use tensor::{Tensor, WeightFormat};
use testing::random::Rng;
use testing::tiny::random_weights;

const HIDDEN: usize = 256;
const TOKENS: usize = 40;

/// An embedding of a few tokens under a head of `vocab_size`.
fn head_plan(vocab_size: usize) -> Result<Plan, BuildError> {
    Graph::build("head", 64, &AnyShape, |g, w| {
        let x = g.embed(w.get("embed", [vocab_size, HIDDEN])?, HIDDEN);
        let x = g.rms_norm(x, w.norm("norm", HIDDEN, 1e-6)?);
        let x = g.select_outputs(x);
        Ok(g.linear(x, w.linear("head", vocab_size, HIDDEN, false)?, vocab_size))
    })
}

fn load(level: IsaLevel, threads: usize, plan: &Arc<Plan>, weights: &[Tensor]) -> Box<dyn Executable> {
    let options = CpuOptions { threads: Some(threads), isa: Some(level), pin: false, ..CpuOptions::default() };
    let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 8 };
    CpuBackend::new(options).unwrap().load(plan.clone(), weights.to_vec(), kv).unwrap()
}

fn step(rows: usize) -> StepInput {
    let mut input = StepInput::default();
    let tokens: Vec<u32> = (0..TOKENS as u32).collect();
    input.push_sequence(&tokens, 0, &[0, 1, 2]);
    input.output_rows.extend((TOKENS - rows) as u32..TOKENS as u32);
    input
}

#[test]
fn peaks_are_those_of_the_logits() {
    let formats = CpuBackend::new(CpuOptions::default()).unwrap().claims().formats;
    for (vocab_size, threads) in [(90, 1), (128, 1), (1000, 1), (3000, 2), (4097, 3)] {
        let plan = head_plan(vocab_size).unwrap();
        // The head chooses the rows itself, or they were chosen long before, as in whole models.
        let plans = [plan.clone(), restrict_outputs(plan)].map(|plan| Arc::new(fuse(plan)));
        for (index, &format) in formats.iter().enumerate() {
            let plan = plans[index % 2].clone();
            let weights = random_weights(&plan, &mut Rng::new(5), format);
            for isa in Isa::available() {
                let mut executable = load(isa.level(), threads, &plan, &weights);
                for rows in [1, 4, 5, 37] {
                    let input = step(rows);
                    let made = executable.replay_with_peaks(&input).unwrap();
                    let what = format!("{format} at {isa}, {vocab_size} tokens, {threads} threads, {rows} rows");
                    let peaks = made.peaks.unwrap_or_else(|| panic!("none: {what}"));
                    assert_eq!(peaks.len(), rows * num_peaks(vocab_size), "{what}");
                    let of_rows = made.values.chunks(vocab_size).flat_map(|row| row.chunks(PEAK_GROUP).map(peak));
                    assert!(peaks.iter().copied().eq(of_rows), "{what}");
                    assert_eq!(executable.replay(&input).unwrap().len(), rows * vocab_size, "{what}");
                }
            }
        }
    }
}

#[test]
fn a_logit_that_is_no_number_is_seen_in_its_group() {
    const VOCAB: usize = 1000;
    let plan = Arc::new(fuse(head_plan(VOCAB).unwrap()));
    let mut weights = random_weights(&plan, &mut Rng::new(5), WeightFormat::F32);
    let head = plan.weights.iter().position(|weight| weight.name.starts_with("head")).unwrap();
    let mut values = weights[head].to_f32();
    for (id, value) in [(0, f32::NAN), (300, f32::INFINITY), (999, f32::NAN)] {
        values[id * HIDDEN] = value;
    }
    weights[head] = Tensor::from_f32(WeightFormat::F32, vec![VOCAB, HIDDEN], &values).unwrap();
    for isa in Isa::available() {
        let mut executable = load(isa.level(), 1, &plan, &weights);
        let input = step(2);
        let peaks = executable.replay_with_peaks(&input).unwrap().peaks.unwrap().to_vec();
        for (index, peak) in peaks.iter().enumerate() {
            let group = index % num_peaks(VOCAB);
            assert_eq!(peak.is_nan(), [0, 300 / PEAK_GROUP, 999 / PEAK_GROUP].contains(&group), "{isa}, peak {index}");
        }
    }
}
