//! Fill in the middle: the tokens that mark the text before a gap, the text behind it, and where the missing text
//! begins.
//!
//! A GGUF file may name them by id. Everywhere else they are found by their texts, which differ from family to family:
//! the three marks are always of one family, so that a vocabulary which has parts of two is never asked in a mixed
//! form.

use crate::bounds::Bounds;
use crate::error::TokenizerError;
use crate::stream_decode::Leading;
use crate::tokenizer::{Around, ParseSpecial, Tokenizer};
use crate::vocabulary::Kind;

/// Ids of these tokens as a file's metadata names them; each may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FimIds {
    /// Before the text in front of the gap.
    pub prefix: Option<u32>,
    /// Before the text behind the gap.
    pub suffix: Option<u32>,
    /// Before the missing text.
    pub middle: Option<u32>,
    /// Padding between examples in training.
    pub pad: Option<u32>,
    /// Before the name of a repository.
    pub repo: Option<u32>,
    /// Between the files of a repository.
    pub file_sep: Option<u32>,
}

/// The tokens with which a model is asked for the text of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FimMarkers {
    /// Before the text in front of the gap.
    pub prefix: u32,
    /// Before the text behind the gap.
    pub suffix: u32,
    /// Before the missing text. Mistral's models have none: there, the missing text follows the text in front of the
    /// gap.
    pub middle: Option<u32>,
    /// Padding between examples in training.
    pub pad: Option<u32>,
    /// Before the name of a repository.
    pub repo: Option<u32>,
    /// Between the files of a repository.
    pub file_sep: Option<u32>,
    /// Ends the missing text, in CodeLlama.
    pub end: Option<u32>,
    /// Whether the text behind the gap is shown first.
    pub suffix_first: bool,
}

/// The texts around a gap, as token ids without any markers.
#[derive(Clone, Copy, Debug, Default)]
pub struct FimTexts<'a> {
    /// What stands before everything else: other files.
    pub context: &'a [u32],
    /// The text in front of the gap.
    pub prefix: &'a [u32],
    /// The text behind the gap.
    pub suffix: &'a [u32],
    /// The beginning of the missing text, where that is known already.
    pub begun: &'a [u32],
}

/// How a family of models writes its marks.
struct Family {
    prefix: &'static str,
    suffix: &'static str,
    middle: Option<&'static str>,
    suffix_first: bool,
}

const fn family(prefix: &'static str, suffix: &'static str, middle: &'static str) -> Family {
    Family { prefix, suffix, middle: Some(middle), suffix_first: false }
}

/// The families whose marks are known, tried in this order.
const FAMILIES: &[Family] = &[
    // Qwen's coders, CodeGemma, Granite 4.
    family("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    // StarCoder, StarCoder2, Granite Code.
    family("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    // SantaCoder.
    family("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    // DeepSeek, whose marks stand where the texts begin, where the gap is, and at the end.
    family("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    // CodeLlama.
    family("▁<PRE>", "▁<SUF>", "▁<MID>"),
    family("<PRE>", "<SUF>", "<MID>"),
    // GLM.
    family("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    family("<|prefix|>", "<|suffix|>", "<|middle|>"),
    // Seed-Coder.
    Family { suffix_first: true, ..family("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>") },
    // Mistral's, Codestral first of all. Its vocabulary has `[MIDDLE]` too, which its models were not trained with.
    Family { prefix: "[PREFIX]", suffix: "[SUFFIX]", middle: None, suffix_first: true },
];

const PADS: &[&str] = &["<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<PAD>", "[PAD]"];
const REPOS: &[&str] = &["<|repo_name|>", "<|fim_repo|>", "<fim-repo>", "<repo_name>", "<reponame>", "<REPO>"];
const FILE_SEPS: &[&str] = &["<|file_sep|>", "<file_sep>", "<|file_separator|>", "<filename>"];
const ENDS: &[&str] = &["▁<EOT>", "<EOT>"];

impl FimIds {
    /// Without those that are no ids of a vocabulary of this size. Gaps are a part of few requests: such an id is no
    /// reason to refuse the file.
    pub(crate) fn below(self, vocab_size: usize) -> Self {
        let checked = |id: Option<u32>| id.filter(|&id| (id as usize) < vocab_size);
        Self {
            prefix: checked(self.prefix),
            suffix: checked(self.suffix),
            middle: checked(self.middle),
            pad: checked(self.pad),
            repo: checked(self.repo),
            file_sep: checked(self.file_sep),
        }
    }
}

impl FimMarkers {
    /// The markers of a vocabulary in which `id_of` finds tokens by their texts; `named` are ids that count before
    /// those. None where the vocabulary does not mark both sides of a gap.
    pub(crate) fn find(named: &FimIds, id_of: impl Fn(&str) -> Option<u32>) -> Option<Self> {
        let first = |texts: &[&str]| texts.iter().find_map(|text| id_of(text));
        let by_family = FAMILIES.iter().find_map(|family| {
            let (prefix, suffix) = (id_of(family.prefix)?, id_of(family.suffix)?);
            let middle = family.middle.map(&id_of);
            // A family that has a mark for the middle is not asked without it.
            (middle != Some(None)).then_some((prefix, suffix, middle.flatten(), family.suffix_first))
        });
        let (prefix, suffix, middle, suffix_first) = match (named, by_family) {
            (FimIds { prefix: Some(prefix), suffix: Some(suffix), middle: Some(middle), .. }, by_family) => {
                // Ids alone do not tell the order: it is that of the family with the same marks.
                let is_same = |found: &(u32, u32, _, bool)| found.0 == *prefix && found.1 == *suffix;
                let suffix_first = by_family.filter(is_same).is_some_and(|(.., suffix_first)| suffix_first);
                (*prefix, *suffix, Some(*middle), suffix_first)
            }
            (_, by_family) => by_family?,
        };
        Some(Self {
            prefix,
            suffix,
            middle,
            pad: named.pad.or_else(|| first(PADS)),
            repo: named.repo.or_else(|| first(REPOS)),
            file_sep: named.file_sep.or_else(|| first(FILE_SEPS)),
            end: first(ENDS),
            suffix_first,
        })
    }

    /// All of these tokens. None of them is part of a missing text: each one ends it.
    pub fn ids(&self) -> impl Iterator<Item = u32> + use<> {
        let Self { prefix, suffix, middle, .. } = *self;
        [prefix, suffix].into_iter().chain(middle).chain(self.ends())
    }

    /// Those that end every text of the model, as in llama.cpp: behind them something else begins.
    pub fn ends(&self) -> impl Iterator<Item = u32> + use<> {
        let Self { pad, repo, file_sep, end, .. } = *self;
        pad.into_iter().chain(repo).chain(file_sep).chain(end)
    }

    /// The prompt that asks for the text of a gap, behind the tokens that the model expects before every text (BOS).
    #[must_use]
    pub fn prompt(&self, before: &[u32], texts: &FimTexts<'_>) -> Vec<u32> {
        let FimTexts { context, prefix, suffix, begun } = *texts;
        let mut sides = [(self.prefix, prefix), (self.suffix, suffix)];
        if self.suffix_first {
            sides.reverse();
        }
        let mut ids = [before, context].concat();
        for (marker, text) in sides {
            ids.push(marker);
            ids.extend_from_slice(text);
        }
        ids.extend(self.middle);
        ids.extend_from_slice(begun);
        ids
    }

    /// How many tokens of the prompt are marks of a side or of the middle.
    #[must_use]
    pub fn num_marks(&self) -> usize {
        2 + usize::from(self.middle.is_some())
    }
}

impl Tokenizer {
    /// The tokens that mark a gap, in a vocabulary that has them.
    ///
    /// They are special tokens whatever the files say: Qwen's files list them as ordinary ones, and then source code
    /// that mentions `<|fim_middle|>` would become the mark itself.
    #[must_use]
    pub fn fim(&self) -> Option<&FimMarkers> {
        self.fim.as_ref()
    }

    /// The ids of a text that goes on in the middle of another: without the space that SentencePiece puts before each
    /// text, and that a model for gaps was not trained to see behind one.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_within`].
    pub fn encode_inside(
        &self,
        text: &str,
        special: ParseSpecial,
        bounds: &Bounds<'_>,
    ) -> Result<Vec<u32>, TokenizerError> {
        /// Merges with nothing: what comes behind it is the text's own. CodeLlama's and Codestral's makers use it, too.
        const GUARD: &str = "☺";
        let encode = |text: &str| self.encode_within(text, special, Around::Nothing, bounds);
        if matches!(self.decode_rule.leading, Leading::Strip { count: 0, .. }) {
            return encode(text);
        }
        let guarded = encode(&format!("{GUARD}{text}"))?;
        match guarded.strip_prefix(&*self.encode(GUARD, ParseSpecial::No)?) {
            Some(inside) => Ok(inside.to_vec()),
            None => encode(text),
        }
    }

    /// Takes the markers, and lets those end a text that do.
    pub(crate) fn set_fim(&mut self, fim: Option<FimMarkers>) {
        let is_token = |id: &u32| self.vocabulary.kind(*id) != Kind::Absent;
        let ends: Vec<u32> = fim.iter().flat_map(FimMarkers::ends).filter(is_token).collect();
        for id in ends {
            if !self.roles.eos.contains(&id) {
                self.roles.eos.push(id);
            }
        }
        self.fim = fim;
    }
}
