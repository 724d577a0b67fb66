//! A guard for changes that are to change no program: what every model is compiled to, in every weight format, for
//! every bucket of steps and for several numbers of threads, is what `tests/programs.txt` says.
//!
//! Of the instruction sets it has the two that nearly every x86-64 processor has. A change that means to change programs
//! replaces the file by the one that the test leaves in `target/programs`, and says why in its commit.

use std::fmt::Write as _;
use std::path::Path;

use backend::Tuned;
use plan::{KvFormat, KvLayout, Plan, StepShape, fuse, hidden_states, restrict_outputs};
use tensor::{Tensor, WeightFormat};
use testing::Sample;
use testing::tiny::{MODEL_TYPES, tiny_model};

use crate::Isa;
use crate::isa::IsaLevel;
use crate::kv_cache::place_layers;
use crate::pool::Team;
use crate::program::{End, Program, Source};

const EXPECTED: &str = include_str!("../tests/programs.txt");

/// All that a program says, but for the memory of its counters.
fn write_program(text: &mut String, program: &Program) {
    let Program { end, shape, instructions, result, result_width, peaks, sizes, .. } = program;
    writeln!(text, "{end:?} {shape:?} {result} {result_width} {peaks:?} {sizes:?}").expect("a text");
    for instruction in instructions {
        let work =
            format!("{:?}", instruction.work).replace(", streaming: Streaming { ahead: None, in_turns: None }", "");
        // As a struct says it.
        let work = ["Project", "RopeKvWrite", "Attend"].into_iter().fold(work, |work, name| {
            let inside = work.strip_prefix(&format!("{name}({name} ")).and_then(|rest| rest.strip_suffix(')'));
            inside.map_or_else(|| work.clone(), |rest| format!("{name} {rest}"))
        });
        writeln!(text, "{:?} {} {work}", instruction.op, instruction.barrier).expect("a text");
    }
}

/// FNV-1a, 64 bits.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn programs(plan: &Plan, weights: &[Tensor], end: End, threads: usize, isa: Isa) -> String {
    let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 64 };
    let (layers, _) = place_layers(&plan.kv_layers, kv).expect("a cache of some size");
    let team = Team::new(1, false).expect("a team of this thread");
    let source = Source {
        plan,
        weights,
        layers: &layers,
        max_positions: kv.num_blocks * kv.block_len,
        threads,
        turns: &|| team.turns(),
        isa,
        tuned: Tuned::NONE,
    };
    let mut text = String::new();
    for tokens in [1, 2, 4, 8, 64, 512] {
        for sequences in [1, 4].into_iter().filter(|&sequences| sequences <= tokens) {
            let shape = StepShape { tokens, sequences, outputs: sequences }.bucket();
            write_program(&mut text, &source.compile(end, shape));
        }
    }
    text
}

/// A line for each level, model and format of the sample: the number of instructions, and a hash of all that is said of
/// them.
fn lines(sample: Sample) -> Vec<(String, String)> {
    let (mut lines, mut index) = (vec![], 0);
    for isa in [IsaLevel::Scalar, IsaLevel::Avx2].into_iter().filter_map(Isa::new) {
        for model_type in MODEL_TYPES {
            for format in WeightFormat::ALL {
                index += 1;
                if !sample.has(index) {
                    continue;
                }
                let (textbook, weights) = tiny_model(model_type, 3, format);
                let fused = fuse(restrict_outputs((*textbook).clone()));
                let mut text = String::new();
                for threads in [1, 2, 16] {
                    text += &programs(&fused, &weights, End::Logits, threads, isa);
                    text += &programs(&textbook, &weights, End::Logits, threads, isa);
                    if let Some(hidden) = hidden_states(&fused) {
                        text += &programs(&hidden, &weights, End::Hidden, threads, isa);
                    }
                }
                let name = format!("{} {model_type} {}", isa.level(), format.name());
                let instructions =
                    text.lines().filter(|line| line.contains(" true ") || line.contains(" false ")).count();
                lines.push((format!("{name}: {instructions} instructions, {:016x}", hash(&text)), text));
            }
        }
    }
    lines
}

/// Each day compiles one program in five. Where one of those is another, it compiles all of them, because the file is
/// replaced as a whole.
#[test]
fn programs_are_as_they_were() {
    let expected: Vec<_> = EXPECTED.lines().collect();
    let is_other = |(line, _): &&(String, String)| !expected.contains(&&**line);
    let sample = Sample::of_today(5);
    if lines(sample).iter().find(is_other).is_none() {
        return;
    }
    let found = lines(Sample::ALL);
    let others: Vec<_> = found.iter().filter(is_other).collect();
    let (first, text) = others.first().expect("the one that the sample has");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/programs");
    std::fs::create_dir_all(&folder).expect("a folder for what was found");
    let all: String = found.iter().map(|(line, _)| format!("{line}\n")).collect();
    std::fs::write(folder.join("programs.txt"), all).expect("room for what was found");
    std::fs::write(folder.join("first"), text).expect("room for what was found");
    panic!("{} of {} programs are others, as {first:?}: {}", others.len(), found.len(), folder.display());
}
