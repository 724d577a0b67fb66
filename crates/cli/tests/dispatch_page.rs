//! `docs/performance/dispatch-cpu.md` is what `hotmetal bench --explain-dispatch` says, with the reason of each way.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

mod process;

const PAGE: &str = include_str!("../../../docs/performance/dispatch-cpu.md");

const INTRODUCTION: &str = "\
# How processors compute what

A test writes this page (`crates/cli/tests/dispatch_page.rs`) from what `hotmetal bench --explain-dispatch` says of a small
model on two threads: do not edit it. Every instruction set has the same kernels, with vectors of its own; those that
multiply bfloat16 (`avx512bf16`, `avx512amx`, `neonbf16`) round rows to it for BF16 weights. `hotmetal tune` finds where
another way is faster.

Rows up to 64 are a step of so many sequences; 512 are a prompt, whose last layer computes one row from attention on.
";

/// What the page says of an op's way, and why it is taken where it is.
const WHY: [(&str, &str); 9] = [
    ("rows in f32", "weights are floats, and so are the rows that they multiply"),
    ("rows in int8", "weights are codes in blocks: products of bytes are exact, and memory gives them fastest"),
    ("made by each thread", "up to 4 rows: normalising and quantising them again takes less time than a barrier"),
    ("made once", "5 rows and more: threads share the work of preparing rows and meet at one more barrier"),
    (
        "packed panels",
        "sixteen rows of weights lie side by side, so that a vector has a code of each; `hotmetal` packs \
      them during the first steps",
    ),
    (
        "split over the cache where it is long",
        "few rows: threads share the positions of a long text, because there are \
      fewer heads and rows than threads",
    ),
    ("tile by tile", "many rows of a step: tiles of rows share the keys and values that they read"),
    ("plain", "it moves or makes few numbers, so memory and time for it do not count"),
    ("vectors", "each row or head is computed alone, with the vectors of the instruction set"),
];

/// Of each op and format of its weights: its ways, each with the rows at which it is taken.
type Ways = BTreeMap<(String, String), Vec<(String, Vec<String>)>>;

/// Adds what the program says of `shape` in `format`.
fn add(ways: &mut Ways, order: &mut Vec<(String, String)>, shape: &str, format: &str) {
    let device = ["--device", "cpu", "--isa", "scalar", "--threads", "2"];
    let model = ["bench", "--explain-dispatch", "--shape", shape, "--format", format];
    for line in process::succeed(&[&model[..], &device].concat()).lines() {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [op, format, _, rows, "cpu", way] = cells[..] else { continue };
        // How many columns a thread takes at a time follows from the widths of a model.
        let parts = way.split(", ").filter(|part| *part != "scalar" && !part.ends_with("columns a turn"));
        let way = match parts.collect::<Vec<_>>().join(", ") {
            way if way.is_empty() => "vectors".to_owned(),
            way => way,
        };
        let key = (op.to_owned(), format.to_owned());
        if !order.contains(&key) {
            order.push(key.clone());
        }
        let of_op = ways.entry(key).or_default();
        let place = of_op.iter().position(|(known, _)| *known == way).unwrap_or_else(|| {
            of_op.push((way, vec![]));
            of_op.len() - 1
        });
        for rows in rows.split(", ").map(str::to_owned) {
            if !of_op[place].1.contains(&rows) {
                of_op[place].1.push(rows);
            }
        }
    }
}

/// Fails where a part of a way has no reason.
fn check_reasons(way: &str) {
    // A part may be two: rows, and who prepares them.
    let rest = WHY.iter().fold(way.to_owned(), |rest, (part, _)| rest.replace(part, ""));
    assert_eq!(rest.trim_matches([' ', ',']), "", "a part of `{way}` has no reason");
}

#[test]
fn the_page_of_processors_is_what_the_program_says() {
    let (mut ways, mut order) = (Ways::new(), vec![]);
    for (shape, format) in [("tiny", "bf16"), ("tiny", "q8_0"), ("tiny-moe", "q8_0")] {
        add(&mut ways, &mut order, shape, format);
    }
    let mut page = format!("{INTRODUCTION}\n| op | weights | rows | way |\n| --- | --- | --- | --- |\n");
    let mut used = vec![];
    for key in order {
        for (way, rows) in &ways[&key] {
            writeln!(page, "| {} | {} | {} | {way} |", key.0, key.1, rows.join(", ")).expect("a text");
            check_reasons(way);
            used.push(way.clone());
        }
    }
    page.push_str("\n## Why\n\n| way | is taken because |\n| --- | --- |\n");
    for (part, why) in WHY {
        assert!(used.iter().any(|way| way.contains(part)), "no op of the page has `{part}`: its reason is of nothing");
        writeln!(page, "| {part} | {why} |").expect("a text");
    }
    if page != PAGE {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        fs::write(folder.join("dispatch-cpu.md"), &page).expect("room for what was found");
        panic!("`docs/performance/dispatch-cpu.md` is stale: take the new one from {}", folder.display());
    }
}
