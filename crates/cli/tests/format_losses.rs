//! What the built-in model loses in a few formats: the part of `tools/format_losses.py` that every run of the tests can afford.

use std::path::Path;
use std::process::Command;

/// The folder of the built-in model.
const BUILTIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/builtin");
/// The text of `tools/format_losses.py`, by its `stories(held_out=True)`: forty that the model was not trained on.
const STORIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/texts/held_out_stories.txt");

/// Format, how much perplexity may grow, and the most that distributions may diverge: about three times what they do, since
/// that is a draw of roundings, which processors take differently.
const FORMATS: [(&str, f64, f64); 6] = [
    ("q8_0", 0.001, 0.0001),
    ("q6_k", 0.005, 0.0004),
    ("q4_k_m", 0.05, 0.0015),
    ("nvfp4", 0.05, 0.003),
    ("awq", 0.05, 0.005),
    ("int4_g128", 0.05, 0.01),
];

#[test]
fn the_built_in_model_loses_no_more_than_its_format_may() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let mut divergences = Vec::new();
    for (name, growth_limit, divergence_limit) in FORMATS {
        // `awq` and `int4_g128` are folders, whatever they are called.
        let (made, receipt) = (at(name), at(&format!("{name}.json")));
        let args = ["quantize", BUILTIN, "-F", name, "-o", &made, "--receipt", &receipt];
        let on_text = ["--eval-text", STORIES, "--eval-ctx-size", "256", "--eval-chunks", "24"];
        let output = Command::new(env!("CARGO_BIN_EXE_hotmetal")).args(args).args(on_text).output().expect("it starts");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let written = std::fs::read(Path::new(&receipt)).expect("a receipt");
        let written: serde_json::Value = serde_json::from_slice(&written).expect("JSON");
        let found = &written["evaluation"];
        let number = |value: &serde_json::Value| value.as_f64().expect("a number");
        // What fewer windows give is more a matter of luck than of the format.
        assert_eq!(found["windows"], 24, "{name}: {found}");
        let against = &found["against"];
        let growth = number(&found["perplexity"]) / number(&against["perplexity"]) - 1.0;
        let divergence = number(&against["kl_divergence"]);
        assert!(growth <= growth_limit, "{name}: perplexity grows by {growth}: {found}");
        assert!(divergence > 0.0 && divergence <= divergence_limit, "{name}: {found}");
        divergences.push(divergence);
    }
    // Eight bits tell more than six, and those more than four; in whole multiples, which no draw makes up for.
    assert!(divergences[0] * 2.0 < divergences[1], "{divergences:?}");
    assert!(divergences[2..].iter().all(|four| divergences[1] * 2.0 < *four), "{divergences:?}");
}
