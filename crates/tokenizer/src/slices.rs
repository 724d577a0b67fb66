//! The way of a text to its ids on slices of it.
//!
//! The library's own way keeps for each byte of a text where it came from, and for each token its text and its place:
//! 100 to 150 bytes for each byte of text, for ids alone. Here added tokens are searched for, text is normalized and split,
//! and each word is encoded as soon as it is known. What is held besides the ids is the normalized text, at most three
//! bytes for a space that becomes a mark, and one word's symbols (`merging.rs`). The ids are the library's, which the
//! tests hold it to. What is rare among normalizers goes the library's way.

use std::borrow::Cow;
use std::ops::Range;

use daachorse::{DoubleArrayAhoCorasick, DoubleArrayAhoCorasickBuilder, MatchKind};
use serde_json::Value;
use tokenizers::{AddedVocabulary, NormalizedString, Normalizer as _, NormalizerWrapper};

use crate::bounds::Bounds;
use crate::error::TokenizerError;

/// Bytes of text that the library composes at a time.
const RUN_BYTES: usize = 8 << 10;

/// What the vocabulary, the added tokens and the normalizer say about the way, found out once.
#[derive(Debug)]
pub(crate) struct Slices {
    normalizers: Vec<Normalizer>,
    /// For tokens that are found in the text as it is.
    outer: Search,
    /// For tokens that are found in the text after the normalizers.
    inner: Search,
}

/// A step of a normalizer.
#[derive(Debug)]
enum Normalizer {
    /// Puts a text before a text.
    Prepend(String),
    Replace {
        from: String,
        to: String,
    },
    /// NFC, NFD, NFKC or NFKD.
    Unicode(NormalizerWrapper),
}

impl Slices {
    /// The way of these; nothing where a normalizer is only the library's.
    pub(crate) fn new(added: &AddedVocabulary, normalizer: Option<&NormalizerWrapper>) -> Option<Self> {
        let mut normalizers = Vec::new();
        if let Some(normalizer) = normalizer {
            read(&serde_json::to_value(normalizer).ok()?, &mut normalizers)?;
        }
        let patterns = |normalized| {
            let tokens = added.get_added_tokens_decoder().iter().filter(|(_, token)| token.normalized == normalized);
            let pattern = |(&id, token): (&u32, &tokenizers::AddedToken)| match normalized {
                true => Some((added.simple_id_to_token(id)?, id)),
                false => Some((token.content.clone(), id)),
            };
            tokens.filter_map(pattern).collect::<Vec<_>>()
        };
        Some(Self { normalizers, outer: Search::new(patterns(false)).ok()?, inner: Search::new(patterns(true)).ok()? })
    }

    /// How many bytes of a text at most become one byte of the normalized text; nothing where no number is enough.
    pub(crate) fn shrinks_by(&self) -> Option<usize> {
        let shrinks_by = |normalizer: &Normalizer| match normalizer {
            Normalizer::Prepend(_) => Some(1),
            Normalizer::Replace { to, .. } if to.is_empty() => None,
            Normalizer::Replace { from, to } => Some(from.len().div_ceil(to.len())),
            // A character of four bytes may be decomposed to one byte, and what is decomposed may be composed to a third:
            // UTF-8 grows by at most three in a canonical decomposition.
            Normalizer::Unicode(_) => Some(12),
        };
        self.normalizers.iter().map(shrinks_by).product()
    }

    /// Calls `found` with each added token in the text, and with each normalized part between them and whether it is the
    /// beginning of the text. Of special tokens only if `honours_special`.
    pub(crate) fn for_each_part(
        &self,
        added: &AddedVocabulary,
        text: &str,
        honours_special: bool,
        bounds: &Bounds<'_>,
        mut found: impl FnMut(Part<'_>) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        let honours = honours_special;
        for_each_token(&self.outer, added, text, honours, bounds, |range, token| match token {
            Some(id) => found(Part::Token(id)),
            None => {
                let is_start = range.start == 0;
                let normalized = self.normalize(&text[range], bounds)?;
                for_each_token(&self.inner, added, &normalized, honours, bounds, |range, token| match token {
                    Some(id) => found(Part::Token(id)),
                    None => found(Part::Text { is_start: is_start && range.start == 0, text: &normalized[range] }),
                })
            }
        })
    }

    fn normalize<'t>(&self, text: &'t str, bounds: &Bounds<'_>) -> Result<Cow<'t, str>, TokenizerError> {
        let mut text = Cow::Borrowed(text);
        for normalizer in &self.normalizers {
            match normalizer {
                Normalizer::Prepend(_) if text.is_empty() => {}
                Normalizer::Prepend(before) => text = [before, &*text].concat().into(),
                Normalizer::Replace { from, to } => {
                    let count = text.matches(from.as_str()).count();
                    if count > 0 {
                        // `str::replace` may take twice the memory, because it does not count first.
                        let mut replaced = String::with_capacity(text.len() + count * to.len() - count * from.len());
                        for (at, part) in text.split(from.as_str()).enumerate() {
                            replaced.push_str(if at == 0 { "" } else { to });
                            replaced.push_str(part);
                        }
                        text = replaced.into();
                    }
                }
                Normalizer::Unicode(_) if text.is_ascii() => {}
                Normalizer::Unicode(form) => text = in_form(form, &text, RUN_BYTES, bounds)?.into(),
            }
        }
        Ok(text)
    }
}

/// A part of a text.
pub(crate) enum Part<'a> {
    /// An added token.
    Token(u32),
    /// Normalized text; `is_start` says that it is the beginning of all.
    Text { is_start: bool, text: &'a str },
}

/// Appends the steps of a normalizer; nothing if one of them is only the library's.
fn read(json: &Value, normalizers: &mut Vec<Normalizer>) -> Option<()> {
    let text = |json: &Value| json.as_str().map(str::to_owned);
    normalizers.push(match json["type"].as_str()? {
        "Sequence" => return json["normalizers"].as_array()?.iter().try_for_each(|json| read(json, normalizers)),
        "Prepend" => Normalizer::Prepend(text(&json["prepend"])?),
        "Replace" => {
            let from = text(&json["pattern"]["String"]).filter(|from| !from.is_empty())?;
            Normalizer::Replace { from, to: text(&json["content"])? }
        }
        "NFC" | "NFD" | "NFKC" | "NFKD" => Normalizer::Unicode(serde_json::from_value(json.clone()).ok()?),
        _ => return None,
    });
    Some(())
}

/// A search for the texts of added tokens; of several that begin at one place, the longest is found.
pub(crate) struct Search(Option<DoubleArrayAhoCorasick<u32>>);

impl std::fmt::Debug for Search {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Search").field(&self.0.as_ref().map(DoubleArrayAhoCorasick::num_states)).finish()
    }
}

impl Search {
    /// A search for texts, each with its id and each once.
    pub(crate) fn new(patterns: Vec<(String, u32)>) -> tokenizers::Result<Self> {
        if patterns.is_empty() {
            return Ok(Self(None));
        }
        let builder = DoubleArrayAhoCorasickBuilder::new().match_kind(MatchKind::LeftmostLongest);
        Ok(Self(Some(builder.build_with_values(patterns).map_err(|error| error.to_string())?)))
    }

    /// Where the texts stand in `text`, from left to right: bytes.
    pub(crate) fn places(&self, text: &str) -> impl Iterator<Item = Range<usize>> {
        self.0.iter().flat_map(move |search| search.leftmost_find_iter(text)).map(|hit| hit.start()..hit.end())
    }
}

/// Calls `found` with the added tokens in `text` and the ranges between them: the library's `find_matches`, without lists.
pub(crate) fn for_each_token(
    search: &Search,
    added: &AddedVocabulary,
    text: &str,
    honours_special: bool,
    bounds: &Bounds<'_>,
    mut found: impl FnMut(Range<usize>, Option<u32>) -> Result<(), TokenizerError>,
) -> Result<(), TokenizerError> {
    let mut from = 0;
    let hits = search.0.iter().flat_map(|search| search.leftmost_find_iter(text));
    for hit in hits {
        bounds.check_wanted()?;
        let (mut start, mut end, id) = (hit.start(), hit.end(), hit.value());
        let Some(token) = added.get_added_tokens_decoder().get(&id) else { continue };
        if !honours_special && added.is_special_token(&token.content) {
            continue;
        }
        if token.single_word {
            let in_word = |c: Option<char>| c.is_some_and(regex_syntax::is_word_character);
            if in_word(text[..start].chars().next_back()) || in_word(text[end..].chars().next()) {
                continue;
            }
        }
        if token.lstrip {
            // The token before may have taken these spaces.
            start = text[..start].trim_end().len().max(from);
        }
        if token.rstrip {
            end = text.len() - text[end..].trim_start().len();
        }
        if from < start {
            found(from..start, None)?;
        }
        found(start..end, Some(id))?;
        from = end;
    }
    if from < text.len() { found(from..text.len(), None) } else { Ok(()) }
}

/// The text in a normal form, run by run: the library keeps some 50 bytes for each byte of a run.
fn in_form(
    form: &NormalizerWrapper,
    text: &str,
    run_bytes: usize,
    bounds: &Bounds<'_>,
) -> Result<String, TokenizerError> {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        bounds.check_wanted()?;
        let mut cuts = rest.char_indices().filter(|&(at, c)| at >= run_bytes.max(1) && begins_anew(c));
        let (run, after) = rest.split_at(cuts.next().map_or(rest.len(), |(at, _)| at));
        if run.is_ascii() {
            whole.push_str(run);
        } else {
            let mut run = NormalizedString::from(run);
            form.normalize(&mut run).map_err(|error| TokenizerError::library("normalizing text", error))?;
            whole.push_str(run.get());
        }
        rest = after;
    }
    Ok(whole)
}

/// Whether the text before `c` and the text from `c` on have the normal forms that they have together. True of characters
/// whose decomposition begins with one that is no combining mark and is never composed with what stands before it; of
/// those, the ones that texts in the larger scripts have many of.
fn begins_anew(c: char) -> bool {
    matches!(c,
        '\0'..='\x7F'
        | 'À'..='ɏ'
        | 'Α'..='Ρ' | 'α'..='ω'
        | 'А'..='я'
        | 'א'..='ת'
        | 'ء'..='غ'
        | 'अ'..='ह'
        | 'ก'..='ะ'
        | '\u{2010}'..='\u{20CF}' | '\u{2100}'..='\u{2BFF}' | '\u{1F000}'..='\u{1FAFF}'
        | '\u{3000}'..='\u{3002}' | 'ぁ'..='ゖ' | 'ァ'..='ヺ'
        | '㐀'..='䶿' | '一'..='鿿'
        | '가'..='힣')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::normalizers::{NFC, NFD, NFKC, NFKD};

    use super::*;

    fn forms() -> [NormalizerWrapper; 4] {
        [NFC.into(), NFD.into(), NFKC.into(), NFKD.into()]
    }

    fn whole(form: &NormalizerWrapper, text: &str) -> String {
        let mut normalized = NormalizedString::from(text);
        form.normalize(&mut normalized).expect("any text");
        normalized.get().to_owned()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn runs_have_the_normal_form_of_the_whole(
            parts in prop::collection::vec(prop_oneof![
                3 => prop::sample::select(vec![
                    "a", "e", "\u{301}", "\u{323}", "é", "Å", "\u{212B}", "\u{1100}", "\u{1161}", "\u{11A8}", "각", "가", "か",
                    "\u{3099}", "が", "ﬁ", "①", "\u{9BE}", "\u{9C7}", "नी", "\u{93C}", "\u{1D160}", "กำ", "中", "א", "\u{5B7}",
                ]).prop_map(str::to_owned),
                1 => any::<char>().prop_map(String::from),
            ], 0..24),
            run_bytes in 0usize..8,
        ) {
            let text = parts.concat();
            for form in forms() {
                let found = in_form(&form, &text, run_bytes, &Bounds::NONE).expect("no bounds");
                prop_assert_eq!(found, whole(&form, &text));
            }
        }
    }

    /// Each of the characters after everything that might take it in, in all of Unicode.
    #[test]
    fn what_begins_anew_is_composed_with_nothing_before_it() {
        let befores: Vec<char> =
            ('\0'..=char::MAX).filter(|c| !c.is_ascii() && c.is_alphabetic()).step_by(97).collect();
        for form in forms() {
            for c in ('\0'..='\u{1FFFF}').filter(|&c| begins_anew(c)).step_by(5) {
                for before in ["a\u{301}", "\u{1100}", "가", "か", "\u{9C7}"].into_iter() {
                    let together = whole(&form, &format!("{before}{c}"));
                    let apart = whole(&form, before) + &whole(&form, &c.to_string());
                    assert_eq!(together, apart, "{before} {c} {form:?}");
                }
            }
            for before in &befores {
                for c in ['a', 'é', 'я', 'अ', 'か', '中', '가', '▁', '😀'] {
                    let together = whole(&form, &format!("{before}{c}"));
                    assert_eq!(
                        together,
                        whole(&form, &before.to_string()) + &whole(&form, &c.to_string()),
                        "{before} {c}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_normal_form_shrinks_text_by_less_than_is_said() {
        for form in forms() {
            for c in '\0'..=char::MAX {
                let text = c.to_string();
                assert!(text.len() <= 4 * whole(&form, &text).len(), "{c:?}");
            }
        }
    }
}
