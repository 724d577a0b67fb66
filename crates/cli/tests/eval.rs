//! `hotmetal eval` as a user meets it.

use std::fs;

use serde_json::Value;

mod process;

/// Words that the built-in model never met.
const NOISE: &str = "Qx zj vvk 77 wq plg; oort mnb hh zzt, ii kk ww 91 uu yq xx. Trz wvw bq 3 3 3 fj jj kq. ";

/// A story as the built-in model tells it.
fn story() -> String {
    let output = process::output(&["run", "Once upon a time", "--temp", "0", "-n", "160"]);
    process::text(&output.stdout)
}

fn eval(text: &str, args: &[&str]) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("text.txt");
    fs::write(&file, text.repeat(3)).expect("room for a text");
    let file = file.to_str().expect("a path in UTF-8");
    let printed = process::succeed(&[&["eval", "-f", file, "--ctx-size", "64", "-o", "json"], args].concat());
    serde_json::from_str(&printed).expect("one JSON object")
}

#[test]
fn a_story_surprises_less_than_noise_and_a_model_agrees_with_itself() {
    let text = story();
    let story = eval(&text, &[]);
    let perplexity = |value: &Value| value["perplexity"].as_f64().expect("a number");
    let (windows, scored) = (story["windows"].as_u64().unwrap(), story["tokens_scored"].as_u64().unwrap());
    // Of 64 tokens the second half, each but the last by the one before it.
    assert!(windows >= 3 && scored == windows * 31, "{story}");
    assert!(perplexity(&story) > 1.0 && perplexity(&story) < 6.0, "{story}");
    assert!(perplexity(&eval(NOISE, &[])) > 10.0 * perplexity(&story));
    // In other threads and chunks the same bits, and no divergence.
    let builtin = concat!(env!("CARGO_MANIFEST_DIR"), "/builtin");
    let itself = eval(&text, &["--against", builtin, "-t", "2"]);
    assert_eq!(itself["perplexity"], story["perplexity"]);
    assert_eq!(itself["against"]["same_likeliest"], 1.0);
    assert!(itself["against"]["kl_divergence"].as_f64().unwrap().abs() < 1e-9, "{itself}");
}

#[test]
fn a_text_that_is_too_short_is_refused_with_the_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("short.txt");
    fs::write(&file, "Once upon").expect("room for a text");
    let output = process::output(&["eval", "-f", file.to_str().unwrap()]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && message.contains("a smaller --ctx-size"), "{message}");
    let output = process::output(&["eval", "-f", "/nonexistent/text.txt"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && message.contains("/nonexistent/text.txt"), "{message}");
}
