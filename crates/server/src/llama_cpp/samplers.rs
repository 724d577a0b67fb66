//! What `samplers` means to llama.cpp: a step that is not listed does nothing.

use engine::SamplerStep;
use serde_json::{Map, Value, json};

use crate::fields::ignore;

/// llama.cpp's samplers that are not here. Its clients list them with every request; the fields that would make them do
/// something are refused.
pub(crate) const ABSENT: [&str; 3] = ["infill", "tfs_z", "adaptive_p"];

/// llama.cpp's other names of samplers.
const RENAMED: [(&str, &str); 2] = [("typ_p", "typical_p"), ("temp", "temperature")];

/// Makes of `samplers` what they mean to llama.cpp: a step that is not listed does nothing, whatever the model's
/// defaults are. With mirostat llama.cpp does not look at the list.
pub(crate) fn leave_out(body: &mut Map<String, Value>) {
    let has_mirostat = body.get("mirostat").and_then(Value::as_f64).is_some_and(|version| version != 0.0);
    if has_mirostat && body.shift_remove("samplers").is_some_and(|names| !names.is_null()) {
        ignore("samplers");
    }
    let Some(Value::Array(names)) = body.get_mut("samplers") else { return };
    for name in names.iter_mut() {
        if let Some((_, own)) = RENAMED.iter().find(|(theirs, _)| name == theirs) {
            *name = json!(own);
        }
    }
    let mut seen: Vec<String> = Vec::new();
    names.retain(|name| {
        let Some(text) = name.as_str() else { return true };
        if ABSENT.contains(&text) {
            ignore(format!("samplers.{text}"));
            return false;
        }
        // Some clients list a sampler by both of its names.
        let is_new = !RENAMED.iter().any(|(_, own)| *own == text) || !seen.iter().any(|seen| seen == text);
        seen.push(text.to_owned());
        is_new
    });
    let is_listed = |step: SamplerStep| names.iter().any(|name| name == step.name());
    let left_out: Vec<SamplerStep> = SamplerStep::ALL.into_iter().filter(|&step| !is_listed(step)).collect();
    for step in left_out {
        let neutral: &[(&str, f64)] = match step {
            SamplerStep::Penalties => &[("repeat_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0)],
            SamplerStep::Dry => &[("dry_multiplier", 0.0)],
            SamplerStep::TopNSigma => &[("top_n_sigma", 0.0)],
            // The one whole number of them.
            SamplerStep::TopK => &[],
            SamplerStep::Typical => &[("typical_p", 1.0)],
            SamplerStep::TopP => &[("top_p", 1.0)],
            SamplerStep::MinP => &[("min_p", 0.0)],
            SamplerStep::Xtc => &[("xtc_probability", 0.0)],
            SamplerStep::Temperature => &[("temperature", 1.0), ("dynatemp_range", 0.0)],
        };
        let top_k = (step == SamplerStep::TopK).then(|| ("top_k", json!(0)));
        for (name, value) in neutral.iter().map(|&(name, value)| (name, json!(value))).chain(top_k) {
            // What the request itself says of a step that it does not list has no effect.
            let said = body.insert(name.to_owned(), value.clone()).filter(|said| !said.is_null());
            let is_off = |said: &Value| name == "top_n_sigma" && said.as_f64().is_some_and(|limit| limit <= 0.0);
            if said.is_some_and(|said| said.as_f64() != value.as_f64() && !is_off(&said)) {
                ignore(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields;

    #[test]
    fn samplers_that_are_not_listed_do_nothing() {
        let mut body = json!({"samplers": ["top_k", "infill", "min_p"], "top_k": 4, "temperature": 1.0});
        leave_out(body.as_object_mut().unwrap());
        let expected = json!({
            "samplers": ["top_k", "min_p"], "top_k": 4, "temperature": 1.0, "repeat_penalty": 1.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0, "dry_multiplier": 0.0, "top_n_sigma": 0.0, "typical_p": 1.0, "top_p": 1.0,
            "xtc_probability": 0.0, "dynatemp_range": 0.0,
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn what_is_said_of_a_sampler_that_is_not_listed_is_reported() {
        let mut body = json!({"samplers": [], "top_k": 4, "temperature": 0, "top_p": 1, "top_n_sigma": -1});
        let (_, notes) = fields::reading(false, || leave_out(body.as_object_mut().unwrap()));
        assert_eq!((&body["top_k"], &body["temperature"]), (&json!(0), &json!(1.0)));
        assert_eq!(notes.ignored, ["top_k", "temperature"]);
    }

    #[test]
    fn the_list_says_nothing_with_mirostat() {
        let mut body = json!({"samplers": ["top_k"], "mirostat": 2, "temperature": 0.5});
        let (_, notes) = fields::reading(false, || leave_out(body.as_object_mut().unwrap()));
        assert_eq!((body, notes.ignored), (json!({"mirostat": 2, "temperature": 0.5}), vec!["samplers".to_owned()]));
    }

    #[test]
    fn samplers_have_their_own_names_and_llama_cpps() {
        let mut body = json!({"samplers": ["typ_p", "tfs_z", "typical_p", "temp", "top_k", "top_k"]});
        leave_out(body.as_object_mut().unwrap());
        // One that stands twice by one name is left to whoever refuses it.
        assert_eq!(body["samplers"], json!(["typical_p", "temperature", "top_k", "top_k"]));
    }
}
