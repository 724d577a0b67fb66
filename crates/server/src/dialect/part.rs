//! What a reply is made of.

/// A part of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Content(String),
    Reasoning(String),
    /// A call of this function begins.
    Call {
        name: String,
    },
    /// The next piece of the last call's arguments.
    Arguments(String),
    /// The last call was none: this is the text that it was made of.
    NoCall(String),
}

/// Appends a part, to the last one if both are of a kind.
pub(crate) fn push_part(parts: &mut Vec<Part>, part: Part) {
    match (parts.last_mut(), part) {
        (_, Part::Content(text) | Part::Reasoning(text) | Part::Arguments(text)) if text.is_empty() => {}
        (Some(Part::Arguments(_) | Part::Call { .. }), Part::NoCall(text)) => {
            // Arguments follow their call at once.
            while parts.pop_if(|last| matches!(last, Part::Arguments(_))).is_some() {}
            let is_here = parts.pop_if(|last| matches!(last, Part::Call { .. })).is_some();
            push_part(parts, if is_here { Part::Content(text) } else { Part::NoCall(text) });
        }
        (Some(Part::Content(before)), Part::Content(text))
        | (Some(Part::Reasoning(before)), Part::Reasoning(text))
        | (Some(Part::Arguments(before)), Part::Arguments(text)) => before.push_str(&text),
        (_, part) => parts.push(part),
    }
}
