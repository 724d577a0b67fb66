//! The seeds and past crashes of the fuzz targets, replayed through the same oracles with the stable compiler.

#[path = "../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../fuzz/oracles/template.rs"]
mod template_oracle;
#[path = "../../../fuzz/oracles/tokenizer.rs"]
mod tokenizer_oracle;

use replay::replay;

#[test]
fn seeds_of_tokenizer() {
    replay("tokenizer", tokenizer_oracle::tokenizer, 6);
}

#[test]
fn seeds_of_template() {
    replay("template", template_oracle::template, 10);
}
