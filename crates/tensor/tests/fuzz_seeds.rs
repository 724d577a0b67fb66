//! The seeds and past crashes of the fuzz target, replayed through the same oracle with the stable compiler.

#[path = "../../../fuzz/oracles/quant_blocks.rs"]
mod oracle;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn seeds_of_quant_blocks() {
    replay::replay("quant_blocks", oracle::quant_blocks, 18);
}
