//! Many texts in one piece of memory, and tables that find one by what it says.

use ahash::RandomState;
use hashbrown::HashTable;

use crate::vocabulary::Vocabulary;

/// Texts one after the other: a vocabulary of 150,000 is two allocations, not 150,000.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    text: String,
    /// `ends[i]` is where text `i` ends; it starts where the one before ends.
    ends: Vec<u32>,
}

impl Texts {
    /// From all texts joined and where in that each one ends. `None` where these are no such places: falling, inside
    /// a character, or with text after the last.
    #[must_use]
    pub fn from_parts(text: String, ends: Vec<u32>) -> Option<Self> {
        let mut start = 0;
        for &end in &ends {
            if end < start || !text.is_char_boundary(end as usize) {
                return None;
            }
            start = end;
        }
        (start as usize == text.len()).then_some(Self { text, ends })
    }

    /// Adds a text.
    ///
    /// # Panics
    /// When all texts together have 4 GiB: readers bound what they read.
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.ends.push(u32::try_from(self.text.len()).expect("texts have less than 4 GiB"));
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Text `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.text.get(start as usize..end as usize)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        (0..self.len()).map(|i| self.get(i).expect("ends are ends of whole texts"))
    }

    /// All texts joined, and where each one ends.
    pub(crate) fn into_parts(self) -> (String, Vec<u32>) {
        (self.text, self.ends)
    }
}

impl<T: AsRef<str>> FromIterator<T> for Texts {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Self {
        let mut all = Self::default();
        texts.into_iter().for_each(|text| all.push(text.as_ref()));
        all
    }
}

/// Ids by the text of their token. The texts stay in the [`Vocabulary`], which every call is given.
///
/// Hashed with a key of this process: no file can be made to collide.
#[derive(Debug)]
pub(crate) struct TokenTable {
    ids: HashTable<u32>,
    hasher: RandomState,
    /// The tokens of one character among the first; byte-level vocabularies have their 256 there.
    of_char: Box<[Option<u32>; CHARS]>,
    /// By id: whether the token is in the table.
    present: Vec<bool>,
}

/// Up to where characters are looked up without a hash: GPT-2's alphabet ends at U+0143.
const CHARS: usize = 0x180;

impl TokenTable {
    /// For tokens of this vocabulary.
    pub(crate) fn new(vocabulary: &Vocabulary) -> Self {
        let len = vocabulary.len();
        Self {
            ids: HashTable::with_capacity(len),
            hasher: RandomState::new(),
            of_char: Box::new([None; CHARS]),
            present: vec![false; len],
        }
    }

    /// Adds a token of the vocabulary, unless one with its text is there already: then returns that one.
    pub(crate) fn insert(&mut self, vocabulary: &Vocabulary, id: u32) -> Option<u32> {
        let text = vocabulary.raw_text(id);
        let hash = self.hasher.hash_one(text);
        let before = self.ids.find(hash, |&other| vocabulary.raw_text(other) == text).copied();
        if before.is_none() {
            self.ids.insert_unique(hash, id, |&other| self.hasher.hash_one(vocabulary.raw_text(other)));
            if let Some(at) = code(text) {
                self.of_char[at] = Some(id);
            }
            if let Some(present) = self.present.get_mut(id as usize) {
                *present = true;
            }
        }
        before
    }

    pub(crate) fn get(&self, vocabulary: &Vocabulary, text: &str) -> Option<u32> {
        if let Some(at) = code(text) {
            return self.of_char[at];
        }
        let hash = self.hasher.hash_one(text);
        self.ids.find(hash, |&id| vocabulary.raw_text(id) == text).copied()
    }

    /// Whether `id` is what [`TokenTable::get`] returns for its text.
    pub(crate) fn contains(&self, id: u32) -> bool {
        self.present.get(id as usize) == Some(&true)
    }
}

/// The place of a text in [`TokenTable::of_char`], if it is one of those characters.
fn code(text: &str) -> Option<usize> {
    match *text.as_bytes() {
        [ascii] => Some(ascii.into()),
        [0xC2..=0xC5, _] => text.chars().next().map(|c| c as usize),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let from = |text: &str, ends: &[u32]| Texts::from_parts(text.to_owned(), ends.to_vec());
        assert_eq!(from("aéb", &[1, 1, 3, 4]), Some(["a", "", "é", "b"].into_iter().collect()));
        assert_eq!(from("", &[]), Some(Texts::default()));
        for (text, ends) in [("aéb", &[2, 4][..]), ("ab", &[2, 1, 2]), ("ab", &[1]), ("ab", &[1, 3]), ("a", &[])] {
            assert_eq!(from(text, ends), None, "{text} {ends:?}");
        }
    }
}
