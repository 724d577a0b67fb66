//! What each check runs, and how its outcome is judged.

use records::{History, Point, Record, Row};
use serde::Serialize;
use serde_json::Value;

use super::args::CheckId;
use crate::program::Outcome;

/// Tokens of P1.
pub(super) const GREEDY_TOKENS: usize = 128;
/// Tokens of P3.
pub(super) const FINITE_TOKENS: usize = 512;
/// Lengths that P5 measures.
pub(super) const LENGTHS: [usize; 3] = [16, 128, 512];

/// What a check found.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    pub(super) id: &'static str,
    pub(super) question: &'static str,
    pub(super) passed: bool,
    pub(super) found: String,
    pub(super) seconds: f64,
}

impl Check {
    /// A check passes with `Ok`, whose text says what was compared, and fails with `Err`, whose text says what is wrong.
    pub(super) fn new(id: CheckId, verdict: Result<String, String>, seconds: f64) -> Self {
        let (name, question, passed) = (id.name(), id.question(), verdict.is_ok());
        let (Ok(found) | Err(found)) = verdict;
        Self { id: name, question, passed, found, seconds }
    }
}

/// The models in what `verify -o json` printed; an error if it printed none.
fn models_of(verify: &Outcome) -> Result<Vec<Value>, String> {
    // A fault ends `verify` with an error too, after the whole result.
    let result: Value = serde_json::from_str(&verify.stdout).map_err(|_| verify.why())?;
    match result["models"].as_array() {
        Some(models) if !models.is_empty() => Ok(models.clone()),
        _ => Err("`verify` compared no model".to_owned()),
    }
}

/// P1, of what `verify -n tokens -o json` printed.
pub(super) fn greedy_text(verify: &Outcome, tokens: usize) -> Result<String, String> {
    let models = models_of(verify)?;
    let texts: Vec<&Value> = models.iter().filter(|model| !model["parity"].is_null()).collect();
    let Some(against) = texts.first().map(|model| model["against"].clone()) else {
        return Err("`verify` compared no text".to_owned());
    };
    let mut ties = 0;
    for model in texts {
        let number_of = |list: &str| model["parity"][list].as_array().map_or(0, Vec::len);
        let name = text(&model["model"]);
        if let Some(fault) = fault_of_text(model) {
            return Err(format!("{name}: {fault}"));
        }
        if number_of("token_ids") < tokens {
            return Err(format!("{name}: only {} of {tokens} tokens were compared", number_of("token_ids")));
        }
        ties += number_of("ties");
    }
    let of_ties = match ties {
        0 => String::new(),
        1 => ", one of them a tie".to_owned(),
        ties => format!(", {ties} of them ties"),
    };
    Ok(format!("{tokens} greedy tokens are those of {}{of_ties}", text(&against)))
}

/// What is wrong with the greedy text of a model that `verify` compared; `None` also where it compared no text.
fn fault_of_text(model: &Value) -> Option<String> {
    let parity = &model["parity"];
    if let Some(first) = parity["first_not_finite"].as_u64() {
        return Some(format!("the logits of token {first} are not finite"));
    }
    if let Some(first) = parity["mismatches"].as_array().and_then(|mismatches| mismatches.first()) {
        let (position, found, expected) = (&first["position"], &first["found"], &first["expected"]);
        return Some(format!("token {position} is {found}, and {} has {expected}", text(&model["against"])));
    }
    let first = parity["first_beyond"].as_u64()?;
    Some(format!("the logits from token {first} on are beyond their tolerance"))
}

/// P2, of what `verify -o json` printed.
pub(super) fn each_op(verify: &Outcome) -> Result<String, String> {
    let models = models_of(verify)?;
    let mut results = 0;
    for model in &models {
        let name = text(&model["model"]);
        for (first, what) in [("first_beyond", "beyond its tolerance"), ("first_out_of_bound", "wrong in itself")] {
            let place = &model[first];
            if !place.is_null() {
                let layer = place["layer"].as_u64().map_or(String::new(), |layer| format!(" of layer {layer}"));
                let (op, step) = (text(&place["op"]), &place["step"]);
                return Err(format!("{name}: {op}{layer} in step {step} is the first that is {what}"));
            }
        }
        // A fault without a place is that of a router, unless it is of the text, which P1 judges.
        if let Some(fault) = model["faults"].as_array().and_then(|faults| faults.first())
            && fault_of_text(model).is_none()
        {
            return Err(format!("{name}: {}", text(fault)));
        }
        results += model["checkpoints"].as_array().map_or(0, Vec::len);
    }
    if results == 0 {
        return Err("`verify` compared no op".to_owned());
    }
    let plural = if models.len() == 1 { "" } else { "s" };
    Ok(format!("{results} results of ops in {} model{plural} are within their tolerances", models.len()))
}

/// P3, of what `run --output-format json` printed when it was to write `tokens` tokens.
pub(super) fn finite(run: &Outcome, tokens: usize) -> Result<String, String> {
    if !run.ok {
        return Err(run.why());
    }
    let result: Value = serde_json::from_str(run.stdout.trim()).map_err(|_| "`run` printed no result".to_owned())?;
    let written = result["token_ids"].as_array().map_or(0, Vec::len);
    if written < tokens {
        return Err(format!(
            "only {written} of {tokens} tokens were written (finish: {})",
            text(&result["finish_reason"])
        ));
    }
    Ok(format!("{written} tokens were written, and all logits were finite"))
}

/// P4: the text of the built-in model, and two texts of one seed.
pub(super) fn printed_text(golden: &Outcome, texts: [&Outcome; 2]) -> Result<String, String> {
    if let Some(failed) = [golden, texts[0], texts[1]].into_iter().find(|outcome| !outcome.ok) {
        return Err(failed.why());
    }
    if texts[0].stdout.is_empty() {
        return Err("`run` printed nothing".to_owned());
    }
    if texts[0].stdout != texts[1].stdout {
        return Err("two runs with one seed print different texts".to_owned());
    }
    Ok("the built-in model's text is that of transformers, and one seed gives one text".to_owned())
}

/// P5: `measured` is what `bench -o json` printed, as a record.
pub(super) fn speed(measured: &Record, earlier: &[Record]) -> Result<String, String> {
    // A gate that failed is no example.
    let history = History::of(earlier.iter().filter(|record| record.passed != Some(false)));
    let (mut worse, mut compared) = (Vec::new(), Vec::new());
    for row in &measured.rows {
        let Some(before) = history.newest(&measured.machine, &row.name, &row.unit) else { continue };
        let now = Point { record: measured, row };
        let Some(change) = now.since(&before) else { continue };
        compared.push(format!("{} {}", row.name, change.verdict()));
        if change.is_worse() && !is_as_the_machine(row, before.row, change.band.unwrap_or(0.0)) {
            let (day, build) = (before.record.day(), before.record.build());
            worse.push(format!("{}: {} than on {day} ({build})", row.name, change.verdict()));
        }
    }
    if !worse.is_empty() {
        return Err(worse.join("; "));
    }
    if measured.rows.is_empty() {
        return Err("`bench` measured nothing".to_owned());
    }
    if compared.is_empty() {
        return Ok(format!(
            "nothing to compare with: no record of `{}` has these figures; --wave NAME keeps them",
            measured.machine
        ));
    }
    Ok(compared.join("; "))
}

/// Whether a slower row uses as much of what the machine gave beside it as before: then the machine became slower, as
/// virtual ones do, and not the program.
fn is_as_the_machine(now: &Row, before: &Row, band: f64) -> bool {
    let shares = now.roofline_share.zip(before.roofline_share);
    shares.is_some_and(|(now, before)| now / before >= 1.0 - band)
}

/// A string as it is, and anything else as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn printed(value: &Value) -> Outcome {
        Outcome { ok: true, ended: "passed".to_owned(), stdout: value.to_string(), stderr: String::new() }
    }

    fn failed(stderr: &str) -> Outcome {
        Outcome { ended: "failed with 1".to_owned(), stderr: stderr.to_owned(), ..Outcome::default() }
    }

    /// What `verify` prints of a model that is right, with `change` made to it.
    fn verified(change: impl FnOnce(&mut Value)) -> Outcome {
        let mut model = json!({
            "model": "m", "against": "reference", "checkpoints": [{}, {}], "first_beyond": null,
            "first_out_of_bound": null, "faults": [],
            "parity": {"token_ids": vec![1; 128], "ties": [{}], "mismatches": [], "first_beyond": null,
                "first_not_finite": null},
        });
        change(&mut model);
        printed(&json!({"models": [model]}))
    }

    #[test]
    fn a_wrong_token_and_a_wrong_op_are_named() {
        let right = verified(|_| {});
        let expected = "128 greedy tokens are those of reference, one of them a tie";
        assert_eq!(greedy_text(&right, 128).as_deref(), Ok(expected));
        assert_eq!(each_op(&right).as_deref(), Ok("2 results of ops in 1 model are within their tolerances"));

        let parting = json!([{"position": 77, "found": 3, "expected": 4}]);
        let error = greedy_text(&verified(|model| model["parity"]["mismatches"] = parting), 128).unwrap_err();
        assert_eq!(error, "m: token 77 is 3, and reference has 4");
        let error = greedy_text(&verified(|model| model["parity"]["first_not_finite"] = json!(9)), 128).unwrap_err();
        assert!(error.contains("token 9 are not finite"), "{error}");
        assert!(greedy_text(&verified(|model| model["parity"]["token_ids"] = json!([1])), 128).is_err());
        assert!(greedy_text(&verified(|model| model["parity"] = json!(null)), 128).is_err());

        // A kernel that gives one wrong bit.
        let place = json!({"op": "norm_glu", "layer": 3, "step": 1});
        let error = each_op(&verified(|model| model["first_beyond"] = place)).unwrap_err();
        assert_eq!(error, "m: norm_glu of layer 3 in step 1 is the first that is beyond its tolerance");
        assert!(each_op(&verified(|model| model["checkpoints"] = json!([]))).is_err());
        // A router that chose wrongly, in a model whose text is right all the same.
        let error = each_op(&verified(|model| model["faults"] = json!(["a router: it chose 3"]))).unwrap_err();
        assert_eq!(error, "m: a router: it chose 3");
        let crashed = Outcome { ended: "killed by signal 11".to_owned(), ..failed("") };
        assert_eq!(each_op(&crashed).unwrap_err(), "killed by signal 11");
    }

    #[test]
    fn a_text_that_ends_early_is_not_finite_enough() {
        let ran = |tokens| printed(&json!({"token_ids": vec![1; tokens], "finish_reason": "length"}));
        assert!(finite(&ran(512), 512).is_ok());
        assert!(finite(&ran(299), 512).unwrap_err().contains("only 299 of 512"));
        // The engine names the token whose logits are not finite.
        let fault = failed("note\nerror: numeric fault: a logit of token 300 is NaN\n");
        assert_eq!(finite(&fault, 512).unwrap_err(), "failed with 1: numeric fault: a logit of token 300 is NaN");
    }

    #[test]
    fn one_seed_must_give_one_text() {
        let said = |text: &str| Outcome { ok: true, stdout: text.to_owned(), ..Outcome::default() };
        assert!(printed_text(&said("✓"), [&said("a"), &said("a")]).is_ok());
        assert!(printed_text(&said("✓"), [&said("a"), &said("b")]).is_err());
        assert!(printed_text(&failed("error: text differs"), [&said("a"), &said("a")]).is_err());
    }

    fn record(day: &str, rate: f64, share: f64, passed: Option<bool>) -> Record {
        let row = json!({
            "test": "tg128", "model": "m", "format": "q8_0", "device": "cuda", "batch": 1, "depth": 0,
            "tokens_per_s": {"median": rate, "min": rate, "max": rate}, "samples": [rate, rate],
            "roofline_share": share,
        });
        let gate = passed.map_or(json!(null), |passed| json!({"passed": passed}));
        let value = json!({"device": {"description": "d"}, "run": {"date": day}, "rows": [row], "gate": gate});
        Record::read("h200", &format!("{day}-abc.json"), &value.to_string()).unwrap()
    }

    #[test]
    fn a_kernel_that_became_slower_is_caught_and_a_slower_machine_is_not() {
        let before = record("2026-11-25", 100.0, 0.8, None);
        let now = |rate, share| record("2026-11-27", rate, share, None);
        let against = |now: &Record, earlier: &[Record]| speed(now, earlier);
        let error = against(&now(90.0, 0.72), std::slice::from_ref(&before)).unwrap_err();
        assert_eq!(error, "m q8_0 decode: 10.0 % slower than on 2026-11-25 (abc)");
        assert!(against(&now(99.5, 0.8), std::slice::from_ref(&before)).unwrap().contains("no difference"));
        // As much of a memory that gives less.
        assert!(against(&now(90.0, 0.8), std::slice::from_ref(&before)).is_ok());
        // What failed is compared with what passed, not with what failed before it.
        let failed = record("2026-11-26", 90.0, 0.72, Some(false));
        assert!(against(&now(90.0, 0.72), &[before, failed]).is_err());
        assert!(against(&now(90.0, 0.72), &[]).unwrap().contains("nothing to compare with"));
    }
}
