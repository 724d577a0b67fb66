//! From text to words: the steps of a pre-tokenizer, by their description in `tokenizer.json` or by
//! the name that a GGUF file gives.
//!
//! Whatever splits by a pattern goes through [`Splitter`]; the rest is the `tokenizers` library's.

use std::ops::Range;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::pattern::Invert;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper, SplitDelimiterBehavior,
};

use crate::error::{TokenizerError, shortened};
use crate::splitter::{DIGIT_CUTS, DIGIT_GROUPS, JAIS2, Parts, Refusal, Splitter};
use crate::vocabulary::alphabet;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(crate) const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str =
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
// Code points that normalization would change are written as numbers.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const DEEPSEEK_CJK: &str = "[一-龥ࠀ-一가-퟿]+";
const SPARK_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
const YOUTU_SCRIPTS: &str = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const MINICPM5: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
// Scripts that write no spaces; a word has one of them.
const TRINITY_SCRIPTS: &str = r"[\x{4E00}-\x{9FFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}]+|[\x{0E00}-\x{0E7F}]+|[\x{0E80}-\x{0EFF}]+|[\x{1780}-\x{17FF}]+|[\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}]+|[\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// Runs of newlines apart from lines: no token holds both.
const LINES: &str = r"[^\n]+|\n+";

/// How tokens are written whose words these splits make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Letters {
    /// Bytes, in GPT-2's alphabet.
    Bytes,
    /// Characters, with `▁` for a space, and tokens such as `<0x0A>` for the bytes of those that are no tokens.
    Marks,
}

/// A pre-tokenizer known by name: BPE after splits by these patterns, one after the other.
pub(crate) struct Named {
    /// The values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    patterns: &'static [&'static str],
    pub(crate) letters: Letters,
    /// A word that is a token is that token, whatever the merges say.
    pub(crate) ignore_merges: bool,
    /// A run of newlines that is a token is that token, whatever the merges say.
    pub(crate) whole_newlines: bool,
    /// The text starts with BOS, unless the file says otherwise.
    pub(crate) add_bos: bool,
    /// The text ends with EOS, unless the file says otherwise.
    pub(crate) add_eos: bool,
    /// The published tokenizer composes characters first (NFC).
    pub(crate) nfc: bool,
}

/// Plain splits: no flag set.
const fn named(names: &'static [&'static str], patterns: &'static [&'static str]) -> Named {
    Named {
        names,
        patterns,
        letters: Letters::Bytes,
        ignore_merges: false,
        whole_newlines: false,
        add_bos: false,
        add_eos: false,
        nfc: false,
    }
}

/// The patterns are those published with the models; the names are GGUF's.
const NAMED: &[Named] = &[
    named(&["default", ""], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    named(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        &[GPT2],
    ),
    named(
        &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[r"\p{N}", GPT2],
    ),
    Named {
        ignore_merges: true,
        add_bos: true,
        ..named(
            &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"],
            &[LLAMA3],
        )
    },
    named(&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], &[LLAMA3]),
    Named { nfc: true, ..named(&["qwen2"], &[QWEN2]) },
    named(
        &["deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "grok-2", "f2llmv2", "solar-open"],
        &[QWEN2],
    ),
    Named { nfc: true, ..named(&["qwen35"], &[QWEN35]) },
    named(&["gpt-4o", "llama4", "minimax-m2", "kanana2", "talkie"], &[GPT4O]),
    Named { ignore_merges: true, ..named(&["granite-embed-multi-97m"], &[GPT4O]) },
    Named { ignore_merges: true, add_bos: true, ..named(&["tekken"], &[TEKKEN]) },
    named(&["kimi-k2"], &[KIMI_K2]),
    named(
        &["deepseek-llm"],
        &[r"[\r\n]", DEEPSEEK_LETTERS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", DEEPSEEK_CJK, r"\p{N}+"],
    ),
    named(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"]),
    named(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3_WORDS],
    ),
    named(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    named(&["bloom", "gpt3-finnish", "poro-chat"], &[BLOOM]),
    named(&["viking"], &[BLOOM, r"\p{N}"]),
    named(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    named(&["seed-coder"], &[SEED]),
    named(&["spark2_5"], &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", SPARK_WORDS, r"\p{N}"]),
    Named { ignore_merges: true, ..named(&["youtu"], &[YOUTU_SCRIPTS, YOUTU]) },
    named(&["exaone-moe"], &[EXAONE_MOE]),
    Named { ignore_merges: true, ..named(&["minicpm5"], &[r"\p{N}{1,3}", MINICPM5]) },
    named(&["ufakzeka"], &[UFAKZEKA]),
    named(&["laguna"], &[r"[^\n]+|[\n]+", QWEN2]),
    named(&["jais-2"], &[JAIS2]),
    named(&["tiny_aya", "cohere2moe"], &[DIGIT_GROUPS, GPT4O]),
    named(&["superbpe"], &[r"\p{N}+", DIGIT_CUTS]),
    // Trinity's own file cuts its threes in three steps, of at most 510 digits, which is a multiple of three.
    named(&["afmoe"], &[r"\p{Nd}+", DIGIT_CUTS, TRINITY_SCRIPTS, DEEPSEEK3_WORDS]),
    // Of the last two, llama.cpp publishes the same words and ends; the name says nothing of a normalizer.
    Named { add_bos: true, add_eos: true, ..named(&["roberta-bpe", "jina-v1-en", "jina-v2-code"], &[GPT2]) },
    Named {
        letters: Letters::Marks,
        whole_newlines: true,
        add_bos: true,
        ..named(&["gemma4", "granite-embed-multi-311m"], &[LINES])
    },
    Named { letters: Letters::Marks, ..named(&["sarvam-moe"], &[LINES]) },
    Named {
        add_bos: true,
        ..named(
            &["chameleon"],
            &[
                "<sentinel:[0-9]+>",
                "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT2,
            ],
        )
    },
];

/// Names that GGUF files have whose published definitions contradict each other. The model that `whitespace` was made
/// for cuts before and after punctuation, and in llama.cpp the same name cuts at whitespace alone.
const WITHOUT_DEFINITION: &[&str] = &["whitespace"];

impl Named {
    /// The entry for a value of `tokenizer.ggml.pre`.
    ///
    /// # Errors
    /// [`TokenizerError::PreTokenizerWithoutDefinition`] and [`TokenizerError::UnknownPreTokenizer`], with all names:
    /// other splits are other tokens.
    pub(crate) fn find(name: &str) -> Result<&'static Self, TokenizerError> {
        if let Some(&name) = WITHOUT_DEFINITION.iter().find(|&&known| known == name) {
            return Err(TokenizerError::PreTokenizerWithoutDefinition { name });
        }
        NAMED.iter().find(|entry| entry.names.contains(&name)).ok_or_else(|| TokenizerError::UnknownPreTokenizer {
            name: shortened(name, 100),
            known: known_pre_tokenizers().join(", "),
        })
    }

    pub(crate) fn pre_tokenizer(&self) -> PreTokenizer {
        let mut steps: Vec<Step> = self.patterns.iter().map(|pattern| known(pattern)).collect();
        if self.letters == Letters::Bytes {
            steps.push(Step::ByteLevel);
        }
        PreTokenizer { steps }
    }
}

/// The names of all pre-tokenizers that GGUF vocabularies may ask for.
#[must_use]
pub fn known_pre_tokenizers() -> Vec<&'static str> {
    let names = NAMED.iter().flat_map(|entry| entry.names);
    names.copied().filter(|name| !name.is_empty()).collect()
}

fn known(pattern: &str) -> Step {
    Step::Split {
        splitter: Splitter::linear(pattern).expect("a test compiles every pattern in the table"),
        behavior: SplitDelimiterBehavior::Isolated,
        invert: false,
    }
}

/// Splits text into the words that the model sees one at a time.
#[derive(Debug, Default)]
pub(crate) struct PreTokenizer {
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Split {
        splitter: Splitter,
        behavior: SplitDelimiterBehavior,
        invert: bool,
    },
    /// A space before text that starts without one.
    PrefixSpace,
    /// `▁` for spaces, and before the text; `later` is for text that something precedes.
    Metaspace {
        first: Metaspace,
        later: Metaspace,
    },
    /// Bytes to GPT-2's alphabet.
    ByteLevel,
    Library(PreTokenizerWrapper),
}

/// `Split` in `tokenizer.json`.
#[derive(Deserialize)]
struct SplitJson {
    pattern: PatternJson,
    behavior: SplitDelimiterBehavior,
    #[serde(default)]
    invert: bool,
}

#[derive(Deserialize)]
enum PatternJson {
    String(String),
    Regex(String),
}

/// `ByteLevel` in `tokenizer.json`.
#[derive(Deserialize)]
struct ByteLevelJson {
    add_prefix_space: bool,
    #[serde(default = "default_true")]
    use_regex: bool,
}

fn default_true() -> bool {
    true
}

impl PreTokenizer {
    /// The steps of `pre_tokenizer` in `tokenizer.json`; `null` has none.
    pub(crate) fn from_json(
        file: &'static str,
        json: &Value,
        allow_unknown_patterns: bool,
    ) -> Result<Self, TokenizerError> {
        let mut pre_tokenizer = Self::default();
        if !json.is_null() {
            let mut reader = Reader { file, allow_unknown_patterns, steps: &mut pre_tokenizer.steps };
            reader.read("pre_tokenizer", json)?;
        }
        Ok(pre_tokenizer)
    }

    /// `▁` for spaces, and before the first text unless it starts with one.
    pub(crate) fn marks_first_text() -> Self {
        let first = Metaspace::new('▁', PrependScheme::First, false);
        let later = Metaspace::new('▁', PrependScheme::Never, false);
        Self { steps: vec![Step::Metaspace { first, later }] }
    }

    /// Splits by the pattern in the field `path.pattern`, then bytes to GPT-2's alphabet.
    pub(crate) fn from_pattern(
        file: &'static str,
        path: &str,
        pattern: &str,
        allow_unknown_patterns: bool,
    ) -> Result<Self, TokenizerError> {
        let splitter = if allow_unknown_patterns { Splitter::any(pattern) } else { Splitter::linear(pattern) };
        let splitter = splitter.map_err(|reason| unknown(file, path, pattern, reason))?;
        let split = Step::Split { splitter, behavior: SplitDelimiterBehavior::Isolated, invert: false };
        Ok(Self { steps: vec![split, Step::ByteLevel] })
    }

    /// Splits `text`, of which `at_start` says that nothing comes before it.
    pub(crate) fn pre_tokenize(&self, text: &mut PreTokenizedString, at_start: bool) -> tokenizers::Result<()> {
        for step in &self.steps {
            match step {
                Step::Split { splitter, behavior, invert: false } => {
                    text.split(|_, part| part.split(splitter, *behavior))?
                }
                Step::Split { splitter, behavior, .. } => {
                    text.split(|_, part| part.split(Invert(splitter), *behavior))?
                }
                Step::PrefixSpace => text.split(|_, mut part| {
                    if !part.get().starts_with(' ') {
                        part.prepend(" ");
                    }
                    Ok([part])
                })?,
                Step::Metaspace { first, .. } if at_start => first.pre_tokenize(text)?,
                Step::Metaspace { later, .. } => later.pre_tokenize(text)?,
                // Its own split, which may fail silently, stays off.
                Step::ByteLevel => ByteLevel::new(false, false, false).pre_tokenize(text)?,
                Step::Library(step) => step.pre_tokenize(text)?,
            }
        }
        Ok(())
    }

    /// Whether [`PreTokenizer::for_each_word`] splits as [`PreTokenizer::pre_tokenize`] does, after a normalizer or without.
    /// It does not know where a part of a changed text came from, which marks of the first text alone depend on.
    pub(crate) fn runs_on_slices(&self, after_normalizer: bool) -> bool {
        let is_first =
            |step: &Step| matches!(step, Step::Metaspace { first, .. } if first.prepend_scheme == PrependScheme::First);
        !self.steps.iter().any(is_first) || self.steps.len() == 1 && !after_normalizer
    }

    /// Whether all steps are ours, and so take little memory.
    pub(crate) fn is_ours(&self) -> bool {
        let is_ours = |step: &Step| match step {
            Step::Split { .. } | Step::PrefixSpace | Step::Metaspace { .. } | Step::ByteLevel => true,
            Step::Library(step) => matches!(step, PreTokenizerWrapper::Digits(_)),
        };
        self.steps.iter().all(is_ours)
    }

    /// Whether all of the text is in the words, byte by byte or longer.
    pub(crate) fn keeps_all(&self) -> bool {
        let keeps = |step: &Step| match step {
            Step::Split { behavior, .. } => *behavior != SplitDelimiterBehavior::Removed,
            Step::PrefixSpace | Step::Metaspace { .. } | Step::ByteLevel => true,
            Step::Library(step) => matches!(step, PreTokenizerWrapper::Digits(_)),
        };
        self.steps.iter().all(keeps)
    }

    /// Whether each character of a word stands for one byte of the text.
    pub(crate) fn ends_in_bytes(&self) -> bool {
        matches!(self.steps.last(), Some(Step::ByteLevel))
    }

    /// Calls `word` with each word of `text` until it fails, with the splits of [`PreTokenizer::pre_tokenize`] on slices of
    /// the text: `at_start` says that nothing comes before it, and `marks_start` that the text is the beginning of what the
    /// caller gave.
    pub(crate) fn for_each_word(
        &self,
        text: &str,
        at_start: bool,
        marks_start: bool,
        word: &mut dyn FnMut(&str) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        words(&self.steps, text, (at_start, marks_start), word)
    }
}

fn words(
    steps: &[Step],
    text: &str,
    place: (bool, bool),
    word: &mut dyn FnMut(&str) -> Result<(), TokenizerError>,
) -> Result<(), TokenizerError> {
    // The library leaves out what is empty after each step.
    if text.is_empty() {
        return Ok(());
    }
    let Some((step, steps)) = steps.split_first() else { return word(text) };
    let mut next = |text: &str| words(steps, text, place, word);
    match step {
        Step::Split { splitter, behavior, invert } => {
            splitter.split(text, *behavior, *invert, |part| next(&text[part]))
        }
        Step::PrefixSpace if text.starts_with(' ') => next(text),
        Step::PrefixSpace => next(&format!(" {text}")),
        Step::Metaspace { first, later } => {
            let (at_start, marks_start) = place;
            let metaspace = if at_start { first } else { later };
            let mark = metaspace.get_replacement();
            let is_marked = text.starts_with([mark, ' ']);
            let prepends = !is_marked
                && match metaspace.prepend_scheme {
                    PrependScheme::Always => true,
                    PrependScheme::First => marks_start,
                    PrependScheme::Never => false,
                };
            let spaces = text.bytes().filter(|&byte| byte == b' ').count();
            let mut marked = String::with_capacity(text.len() + (spaces + 1) * mark.len_utf8());
            marked.extend(prepends.then_some(mark));
            marked.extend(text.chars().map(|c| if c == ' ' { mark } else { c }));
            if !metaspace.get_split() {
                return next(&marked);
            }
            split_at(&marked, |c| c == mark, SplitDelimiterBehavior::MergedWithNext, next)
        }
        Step::ByteLevel => {
            let bytes = text.bytes().map(|byte| alphabet()[usize::from(byte)]);
            let mut mapped = String::with_capacity(bytes.clone().map(char::len_utf8).sum());
            mapped.extend(bytes);
            next(&mapped)
        }
        Step::Library(PreTokenizerWrapper::Digits(digits)) => {
            let behavior = match digits.individual_digits {
                true => SplitDelimiterBehavior::Isolated,
                false => SplitDelimiterBehavior::Contiguous,
            };
            split_at(text, char::is_numeric, behavior, next)
        }
        Step::Library(step) => {
            let failed = |error| TokenizerError::library("splitting text", error);
            let mut parts = PreTokenizedString::from(text);
            step.pre_tokenize(&mut parts).map_err(failed)?;
            let parts = parts.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
            parts.into_iter().try_for_each(|(part, ..)| next(part))
        }
    }
}

/// Splits at each character that `is_match` says.
fn split_at(
    text: &str,
    is_match: impl Fn(char) -> bool,
    behavior: SplitDelimiterBehavior,
    mut found: impl FnMut(&str) -> Result<(), TokenizerError>,
) -> Result<(), TokenizerError> {
    let mut parts = Parts::new(behavior, |part: Range<usize>| found(&text[part]));
    let mut covered = 0;
    for (start, c) in text.char_indices().filter(|&(_, c)| is_match(c)) {
        if covered < start {
            parts.push(covered..start, false)?;
        }
        covered = start + c.len_utf8();
        parts.push(start..covered, true)?;
    }
    if covered < text.len() {
        parts.push(covered..text.len(), false)?;
    }
    parts.finish()
}

struct Reader<'a> {
    file: &'static str,
    allow_unknown_patterns: bool,
    steps: &'a mut Vec<Step>,
}

impl Reader<'_> {
    /// Appends the steps of one element; the JSON reader has bounded the depth.
    fn read(&mut self, path: &str, json: &Value) -> Result<(), TokenizerError> {
        match json.get("type").and_then(Value::as_str) {
            Some("Sequence") => {
                let parts = json.get("pretokenizers").and_then(Value::as_array);
                let parts = parts
                    .ok_or_else(|| TokenizerError::field(self.file, path, "is a Sequence without `pretokenizers`"))?;
                for (index, part) in parts.iter().enumerate() {
                    self.read(&format!("{path}.pretokenizers[{index}]"), part)?;
                }
            }
            Some("Split") => {
                let split: SplitJson = self.part(path, json)?;
                let (pattern, splitter) = match split.pattern {
                    PatternJson::String(text) => {
                        let splitter = Splitter::literal(&text);
                        (text, splitter)
                    }
                    PatternJson::Regex(pattern) if self.allow_unknown_patterns => {
                        let splitter = Splitter::any(&pattern);
                        (pattern, splitter)
                    }
                    PatternJson::Regex(pattern) => {
                        let splitter = Splitter::linear(&pattern);
                        (pattern, splitter)
                    }
                };
                self.steps.push(Step::Split {
                    splitter: splitter.map_err(|reason| unknown(self.file, path, &pattern, reason))?,
                    behavior: split.behavior,
                    invert: split.invert,
                });
            }
            Some("ByteLevel") => {
                let byte_level: ByteLevelJson = self.part(path, json)?;
                if byte_level.add_prefix_space {
                    self.steps.push(Step::PrefixSpace);
                }
                if byte_level.use_regex {
                    self.steps.push(known(GPT2));
                }
                self.steps.push(Step::ByteLevel);
            }
            Some("Metaspace") => {
                let first: Metaspace = self.part(path, json)?;
                let mut later = first.clone();
                if later.prepend_scheme == PrependScheme::First {
                    later.prepend_scheme = PrependScheme::Never;
                }
                self.steps.push(Step::Metaspace { first, later });
            }
            _ => self.steps.push(Step::Library(self.part(path, json)?)),
        }
        Ok(())
    }

    fn part<T: for<'de> Deserialize<'de>>(&self, path: &str, json: &Value) -> Result<T, TokenizerError> {
        T::deserialize(json).map_err(|error| TokenizerError::field(self.file, path, format!("is not usable: {error}")))
    }
}

/// Refuses patterns in the normalizer that might fail silently: `Replace` is the one that has any.
pub(crate) fn check_normalizer(file: &'static str, path: &str, json: &Value) -> Result<(), TokenizerError> {
    if let Some(parts) = json.get("normalizers").and_then(Value::as_array) {
        for (index, part) in parts.iter().enumerate() {
            check_normalizer(file, &format!("{path}.normalizers[{index}]"), part)?;
        }
    }
    let pattern = json.get("pattern").and_then(|pattern| pattern.get("Regex"));
    if let Some(pattern) = pattern.and_then(Value::as_str) {
        match Splitter::linear(pattern) {
            Ok(Splitter::Automaton { tail: None, .. }) => {}
            Ok(_) => return Err(unknown(file, path, pattern, "needs look-around in a normalizer")),
            Err(reason) => return Err(unknown(file, path, pattern, reason)),
        }
    }
    Ok(())
}

fn unknown(file: &'static str, path: &str, pattern: &str, reason: Refusal) -> TokenizerError {
    TokenizerError::UnknownPattern { file, field: format!("{path}.pattern"), pattern: shortened(pattern, 200), reason }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tokenizers::pattern::Pattern;

    use super::*;
    use crate::cpu_time;

    /// Every pattern of the table, once.
    fn patterns() -> Vec<&'static str> {
        let mut patterns: Vec<&str> = NAMED.iter().flat_map(|entry| entry.patterns).copied().collect();
        patterns.sort_unstable();
        patterns.dedup();
        patterns
    }

    #[test]
    fn every_pattern_in_the_table_is_linear() {
        for entry in NAMED {
            entry.pre_tokenizer();
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names = known_pre_tokenizers();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = Named::find("qwen9").err().expect("no such name").to_string();
        assert!(error.contains("`qwen9`") && error.contains("llama-bpe"), "{error}");
    }

    #[test]
    fn a_name_without_a_published_definition_is_refused_with_what_to_use_instead() {
        for &name in WITHOUT_DEFINITION {
            assert!(NAMED.iter().all(|entry| !entry.names.contains(&name)), "{name}");
            let error = Named::find(name).err().expect("no definition").to_string();
            assert!(error.contains(&format!("`{name}`")) && error.contains("tokenizer.json"), "{error}");
        }
    }

    #[derive(Deserialize)]
    struct Golden {
        texts: Vec<String>,
        words: std::collections::BTreeMap<String, Vec<Vec<usize>>>,
    }

    /// `tools/goldens/pre_tokenizers.py` says what made these words.
    #[test]
    fn names_split_as_the_models_own_definitions_do() {
        let golden: Golden =
            serde_json::from_str(include_str!("../tests/golden/pre_tokenizers.json")).expect("a golden");
        assert_eq!(golden.words.len(), 5);
        for (name, expected) in &golden.words {
            let named = Named::find(name).expect("known");
            assert_eq!(golden.texts.len(), expected.len());
            for (text, expected) in golden.texts.iter().zip(expected) {
                let mut found = Vec::new();
                let mut push = |word: &str| {
                    found.push(word.chars().count());
                    Ok(())
                };
                named.pre_tokenizer().for_each_word(text, true, true, &mut push).expect("linear");
                assert_eq!(&found, expected, "{name} on {text:?}");
                let mut whole = PreTokenizedString::from(text.as_str());
                named.pre_tokenizer().pre_tokenize(&mut whole, true).expect("linear");
                let parts = whole.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
                let parts: Vec<usize> = parts.into_iter().map(|(part, ..)| part.chars().count()).collect();
                assert_eq!(&parts, expected, "{name} on {text:?}, by the library's steps");
            }
        }
    }

    /// Text in which every branch of the patterns gets its turn.
    fn text() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            4 => prop::sample::select(vec![
                " ", "  ", "     ", "\n", "\r\n", "\t", "\u{a0}", "\u{3000}", "\u{85}", "\u{200b}",
            ]),
            4 => prop::sample::select(vec![
                "a", "Z", "aB", "word", "'s", "'LL", "'ve", "'\u{17f}", "é", "e\u{301}", "ǅ", "ʰ", "ª", "ß", "я",
            ]),
            2 => prop::sample::select(vec!["中", "文字", "かな", "한", "ក", "ा", "\u{10400}", "ẞ"]),
            2 => prop::sample::select(vec!["1", "23", "4567", "½", "٣", "Ⅷ"]),
            2 => prop::sample::select(vec![
                "!", "..", "$", "/", "。", "😀", "👩\u{200d}💻", "<|x|>", "_", "\0", "~/", "`", "！",
            ]),
        ];
        prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
    }

    /// The pattern with Oniguruma's `\b`, which takes `½` for a part of a word and a joiner for none.
    fn as_oniguruma(pattern: &str) -> String {
        if pattern == DIGIT_GROUPS { pattern.replace(r"\b", r"(?![\w½&&[^\u200d]])") } else { pattern.to_owned() }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        /// The published pattern on a backtracking engine, which has look-ahead, says the same.
        #[test]
        fn automata_split_as_the_published_patterns_do(text in text()) {
            thread_local! {
                static BOTH: Vec<(fancy_regex::Regex, Splitter)> = patterns()
                    .into_iter()
                    .map(|p| (fancy_regex::Regex::new(&as_oniguruma(p)).expect(p), Splitter::linear(p).expect(p)))
                    .collect();
            }
            BOTH.with(|both| {
                for (published, splitter) in both.iter() {
                    let expected = published.find_matches(&text).expect("short text");
                    let found = splitter.find_matches(&text).expect("linear");
                    prop_assert_eq!(found, expected, "{}", published.as_str());
                }
                Ok(())
            })?;
        }
    }

    /// Runs of everything that a pattern repeats, and of what makes it look far ahead in vain.
    const FAMILIES: [&str; 12] = ["a", " ", "a ", " a", "1", "😀", "\n", " \n", "'s", "中", "A!", "\t \u{a0}"];

    fn run_of(family: &str, bytes: usize) -> String {
        let mut text = family.repeat(bytes / family.len());
        // What comes last decides on look-ahead; a word is the worst.
        text.push('x');
        text
    }

    #[test]
    fn every_pattern_takes_linear_time_on_runs_of_a_mebibyte() {
        for pattern in patterns() {
            let splitter = Splitter::linear(pattern).expect(pattern);
            for family in FAMILIES {
                let time = |bytes: usize| {
                    let text = run_of(family, bytes);
                    cpu_time::shortest(3, || {
                        let mut last = 0;
                        let found = splitter.for_each_match(&text, |_, end| {
                            last = end;
                            Ok(())
                        });
                        found.expect("linear");
                        assert!(last <= text.len());
                    })
                };
                // 2.6 for each doubling, the bound for all parsers here, is 17.6 for eight times the text.
                let (short, long) = (time(128 << 10), time(1 << 20));
                let bound = short.max(Duration::from_millis(2)).mul_f64(17.6);
                assert!(long <= bound, "{pattern} on {family:?}: {short:?}, then {long:?}");
            }
        }
    }
}
