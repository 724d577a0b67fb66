//! The seeds and past crashes of the fuzz targets, replayed through the same oracles with the stable compiler.

#[path = "../../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

use crate::fuzzing;

#[test]
fn seeds_of_stream() {
    replay("stream", fuzzing::stream, 20);
}

#[test]
fn seeds_of_grammar() {
    replay("grammar", fuzzing::grammar, 10);
}
