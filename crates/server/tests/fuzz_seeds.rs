//! The seeds and past crashes of the fuzz target `http`, replayed through the same oracle with the stable compiler.
//! Those of the private readers are replayed in `src/tests`.

#[path = "../../../fuzz/oracles/http.rs"]
mod oracle;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn seeds_of_http() {
    replay::replay("http", oracle::http, 20);
}
