//! Where a text has to keep to a grammar: who knows it says, before each choice, which tokens may come next.

use std::fmt::Debug;
use std::time::Instant;

/// A grammar. The engine knows nothing of it but which tokens it allows.
pub trait Grammar: Debug + Send + Sync {
    /// The grammar at the beginning of a text; each completion has a state of its own.
    fn start(&self) -> Box<dyn GrammarState>;
}

/// How far a text has come in its grammar. To find out which tokens may come next can take longer than a step, so it may
/// be found out on another thread, while the device computes; [`GrammarState::allow`] then says that it is not known yet.
pub trait GrammarState: Debug + Send {
    /// Adds all tokens that may come next to an empty `allowed`, end-of-text tokens included where the text may end, and
    /// returns true. Returns false, and adds none, where they are not known by `until`; with `None` it waits until they
    /// are. An error ends the text.
    fn allow(&mut self, allowed: &mut TokenSet, until: Option<Instant>) -> Result<bool, String>;

    /// Takes the token that was chosen among them. What goes wrong with it, the next [`GrammarState::allow`] says.
    fn accept(&mut self, token_id: u32);

    /// Whether [`GrammarState::allow`] would answer at once.
    fn is_ready(&self) -> bool {
        true
    }

    /// Waits until [`GrammarState::is_ready`], but not beyond `until`.
    fn wait(&self, _until: Option<Instant>) {}
}

/// A set of token ids below the size of a vocabulary.
#[derive(Clone, Debug, Default)]
pub struct TokenSet {
    /// Bit i % 32 of word i / 32 is token i.
    words: Vec<u32>,
    vocab_size: usize,
}

impl TokenSet {
    /// Empties the set and makes it one for ids below `vocab_size`.
    pub fn clear(&mut self, vocab_size: usize) {
        self.words.clear();
        self.words.resize(vocab_size.div_ceil(32), 0);
        self.vocab_size = vocab_size;
    }

    /// Adds a token; one outside the vocabulary is none.
    pub fn insert(&mut self, id: u32) {
        if (id as usize) < self.vocab_size {
            self.words[id as usize / 32] |= 1 << (id % 32);
        }
    }

    /// Adds all tokens whose bit is set in `words`, 32 a word, the lowest bit first.
    pub fn insert_words(&mut self, words: &[u32]) {
        for (word, more) in self.words.iter_mut().zip(words) {
            *word |= more;
        }
    }

    /// Takes a token out.
    pub fn remove(&mut self, id: u32) {
        if let Some(word) = self.words.get_mut(id as usize / 32) {
            *word &= !(1 << (id % 32));
        }
    }

    /// Keeps those tokens alone whose bit is set in `words`, 32 a word, the lowest bit first.
    pub fn keep_words(&mut self, words: &[u32]) {
        for (index, word) in self.words.iter_mut().enumerate() {
            *word &= words.get(index).copied().unwrap_or(0);
        }
    }

    /// Whether no token is in the set.
    pub fn is_empty(&self) -> bool {
        self.ids().next().is_none()
    }

    /// The tokens of the set, ascending.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        let of_word = |(word, first): (&u32, u32)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 32).then_some(first + bit)
            })
        };
        let words = self.words.iter().zip((0..).step_by(32));
        words.flat_map(of_word).take_while(|&id| (id as usize) < self.vocab_size)
    }

    /// Whether a token is in the set.
    pub fn contains(&self, id: u32) -> bool {
        let word = self.words.get(id as usize / 32);
        (id as usize) < self.vocab_size && word.is_some_and(|word| word >> (id % 32) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in_and_nothing_beyond_the_vocabulary() {
        let mut set = TokenSet::default();
        set.clear(70);
        set.insert_words(&[1 << 31, 0, u32::MAX]);
        set.insert(33);
        set.insert(70);
        let found: Vec<u32> = (0..200).filter(|&id| set.contains(id)).collect();
        assert_eq!(found, [31, 33, 64, 65, 66, 67, 68, 69]);
        assert!(set.ids().eq(found));
        set.remove(64);
        set.remove(300);
        set.keep_words(&[u32::MAX, 0, 0b111]);
        assert!(set.ids().eq([31, 65, 66]) && !set.is_empty());
        set.keep_words(&[]);
        assert!(set.is_empty());
        // Bits beyond the vocabulary are no tokens.
        set.insert_words(&[0, 0, 1 << 31]);
        assert!(set.is_empty());
        set.clear(70);
        assert!((0..200).all(|id| !set.contains(id)));
        assert_eq!(set.ids().next(), None);
    }
}
