//! The seeds and past crashes of the fuzz target, replayed through the same oracle with the stable compiler.

#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn seeds_of_traces() {
    replay::replay("traces", crate::traces_oracle::traces, 10);
}
