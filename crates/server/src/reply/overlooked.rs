//! What a shown text has in it that the model may have meant otherwise: the end of a thought whose beginning is
//! missing, and a call without the marker that begins calls. The text stays as it is; a warning says what it looks like.

use serde_json::Value;

use super::{Reading, ThoughtTags};

/// The most bytes of a text that are kept to look at. A call that is longer is not noticed.
const KEPT_BYTES_MAX: usize = 1 << 16;

/// The content that was given out, from its beginning.
#[derive(Clone, Debug, Default)]
pub(super) struct ShownText {
    text: String,
    is_longer: bool,
}

impl ShownText {
    pub(super) fn push(&mut self, text: &str) {
        self.is_longer |= self.text.len() + text.len() > KEPT_BYTES_MAX;
        if !self.is_longer {
            self.text.push_str(text);
        }
    }

    /// Warns of the end of a thought that has words before it and no beginning.
    pub(super) fn check_thought(&self, tags: &ThoughtTags, reading: &mut Reading) {
        let [open, close] = [tags.open(), tags.close()];
        if let Some((before, _)) = self.text.split_once(reading.in_reasoning(close))
            && !before.trim().is_empty()
            && !before.contains(open.text)
        {
            reading.warn(format!(
                "the text holds `{}` without a `{}` before it: it may be a thought, and is shown as text",
                close.text, open.text
            ));
        }
    }

    /// Warns of JSON that calls a function which is offered, alone or between fences, in a text whose calls begin with
    /// `marker`.
    pub(super) fn check_call(&self, marker: &str, reading: &mut Reading) {
        if self.is_longer {
            return;
        }
        let text = self.text.trim();
        // Every second piece stands between two fences, behind the name of a language.
        let fenced = text.split("```").skip(1).step_by(2).map(|piece| piece.trim_start_matches(char::is_alphabetic));
        let called = [text].into_iter().chain(fenced).find_map(|text| called(text.trim(), reading));
        if let Some(name) = called {
            reading.warn(format!(
                "the text looks like a call of `{name}` without the `{marker}` that begins a call, and is shown as text"
            ));
        }
    }
}

/// The function that is offered and that this text calls: an object with its name and arguments, or a list of such.
fn called(text: &str, reading: &Reading) -> Option<String> {
    if !text.starts_with(['{', '[']) {
        return None;
    }
    let value: Value = serde_json::from_str(text).ok()?;
    let call = value.get(0).unwrap_or(&value);
    let call = call.get("function").filter(|function| function.is_object()).unwrap_or(call);
    let has_arguments = ["arguments", "parameters"].iter().any(|name| call.get(*name).is_some());
    let name = call.get("name")?.as_str().filter(|name| has_arguments && reading.is_offered(name))?;
    Some(name.to_owned())
}
