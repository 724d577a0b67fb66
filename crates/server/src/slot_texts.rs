//! The last text of each slot, in llama.cpp's words: what `llama_cpp/slots.rs` saves. Any place in the batch serves any text here,
//! so a slot is a number that requests give, and that of those who give none is 0.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use engine::CacheDomain;

/// The last text of each slot.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<HashMap<usize, SlotText>>);

/// A text that ran in a slot.
#[derive(Clone, Debug)]
pub(crate) struct SlotText {
    pub(crate) slot: usize,
    pub(crate) domain: CacheDomain,
    /// The tokens of the prompt, then the generated ones.
    pub(crate) tokens: Vec<u32>,
}

impl Slots {
    /// Makes this the last text of its slot.
    pub(crate) fn note(&self, text: SlotText) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(text.slot, text);
    }

    /// The last text of a slot, if it is of this domain.
    pub(crate) fn text(&self, slot: usize, domain: CacheDomain) -> Option<SlotText> {
        let texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        texts.get(&slot).filter(|text| text.domain == domain).cloned()
    }

    /// The slot has no text any more.
    pub(crate) fn forget(&self, slot: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&slot);
    }
}
