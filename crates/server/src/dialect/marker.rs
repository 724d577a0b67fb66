//! Markers: texts that mean something beside the letters in them, and which of them count as tokens alone.

/// Stands before the text of a token that counts by its id. It is no character, and no text that is interchanged holds
/// it; whoever marks takes it out of the rest.
pub(crate) const CONTROL: char = '\u{fdd0}';

/// A text that means something beside the letters in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    /// Where it counts however it is spelled.
    pub(crate) text: &'static str,
    /// Where it counts only as a token, behind [`CONTROL`].
    pub(super) marked: &'static str,
}

impl Marker {
    /// One that counts however it is spelled, always.
    pub(super) const fn spelled(text: &'static str) -> Self {
        Self { text, marked: text }
    }

    /// How it stands in a text in which markers count `by_id`, or not.
    pub(crate) fn of(self, by_id: bool) -> &'static str {
        if by_id { self.marked } else { self.text }
    }
}

/// Constants of this crate that are markers: `NAME = "text";`, each.
macro_rules! markers {
    ($($(#[$attribute:meta])* $name:ident = $text:literal;)*) => {
        $(
            $(#[$attribute])*
            pub(crate) const $name: $crate::dialect::Marker =
                $crate::dialect::Marker { text: $text, marked: concat!("\u{fdd0}", $text) };
        )*
    };
}

pub(super) use markers;

/// Which tokens count by their ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ById {
    /// Those that calls are written with.
    pub(crate) calls: bool,
    /// Those that reasoning is written with, and the messages of gpt-oss.
    pub(crate) reasoning: bool,
}
