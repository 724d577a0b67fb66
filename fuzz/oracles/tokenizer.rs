//! The oracle of `tokenizer`.

use std::collections::HashSet;
use std::sync::Once;

use tokenizer::{
    Around, Bounds, GgufVocabulary, LoadOptions, ParseSpecial, Segment, SideFiles, StreamDecoder, Texts, Tokenizer,
    TokenizerError,
};

/// Stands between files, and before the text; UTF-8 never has it.
const NEXT: u8 = 0xff;
/// Stands where a slice of the text ends.
const CUT: char = '\u{1}';

/// Files of a tokenizer, and a text to encode. It is refused or loaded; every id is a token's, plain text becomes no
/// special token, slices give what the whole gives, bounds count what there is, and the ids and their text are those of
/// Hugging Face's library, or the text itself where a vocabulary has all bytes.
///
/// The input is a letter, the files with a byte 255 behind each, and the text, in which U+0001 ends a slice. The letter
/// is `j` (`tokenizer.json`, then `tokenizer_config.json` if it is not empty), `t` (`tekken.json`), `v` (`vocab.json`,
/// `merges.txt`, `tokenizer_config.json`), `s` (`tokenizer.model`), or `g` (a GGUF vocabulary: the name of its
/// pre-tokenizer, a token a line, a merge a line).
pub(crate) fn tokenizer(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let Some(end) = rest.iter().rposition(|byte| *byte == NEXT) else { return };
    let (files, text) = (&rest[..end], String::from_utf8_lossy(&rest[end + 1..]));
    expect_panics_of_the_library();
    let options = LoadOptions::default();
    let mut parts = files.split(|byte| *byte == NEXT);
    let mut next = || parts.next().unwrap_or_default();
    let loaded = match kind {
        b'j' => {
            let (json, config) = (next(), next());
            let loaded = Tokenizer::from_json(json, (!config.is_empty()).then_some(config), &options);
            if let Ok(tokenizer) = &loaded {
                agrees_with_the_library(tokenizer, json, &text.replace(CUT, ""));
            }
            loaded
        }
        b't' => Tokenizer::from_tekken(files, &options),
        b'v' => {
            let (vocab, merges, config) = (next(), next(), next());
            let beside = SideFiles { tokenizer_config: (!config.is_empty()).then_some(config), ..SideFiles::default() };
            Tokenizer::from_vocab_merges(vocab, merges, beside, &options)
        }
        b's' => Tokenizer::from_sentence_piece(files, SideFiles::default()),
        b'g' => {
            let mut lines = || texts(next());
            let (names, tokens, merges) = (lines(), lines(), lines());
            let pre = names.iter().next().unwrap_or_default().to_owned();
            let has_all_bytes = has_all_bytes(&tokens);
            let vocabulary =
                GgufVocabulary { model: "gpt2".to_owned(), pre, tokens, merges, ..GgufVocabulary::default() };
            let loaded = Tokenizer::from_gguf(vocabulary);
            if let (Ok(tokenizer), true) = (&loaded, has_all_bytes) {
                let text = text.replace(CUT, "");
                let ids = tokenizer.encode(&text, ParseSpecial::No).expect("there is a token for each byte");
                let decoded = tokenizer.decode(&ids, false);
                if text.is_ascii() {
                    assert_eq!(decoded, text);
                }
                // Some vocabularies compose characters (NFC). What is composed stays so.
                let ids = tokenizer.encode(&decoded, ParseSpecial::No).expect("there is a token for each byte");
                assert_eq!(tokenizer.decode(&ids, false), decoded);
            }
            loaded
        }
        _ => return,
    };
    let Ok(tokenizer) = loaded else { return };
    check_ids(&tokenizer, &text);
    check_slices(&tokenizer, &text);
}

/// The library's panics are caught and become errors; the fuzzer's hook would end the process.
fn expect_panics_of_the_library() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !panic.location().is_some_and(|location| location.file().contains("/tokenizers-")) {
                hook(panic);
            }
        }));
    });
}

fn texts(lines: &[u8]) -> Texts {
    let mut texts = Texts::default();
    String::from_utf8_lossy(lines).lines().for_each(|line| texts.push(line));
    texts
}

/// Whether each byte has a token, as GPT-2 writes bytes.
fn has_all_bytes(tokens: &Texts) -> bool {
    let plain = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let shown = (0..=255u8).filter(plain).map(char::from);
    let mut moved = (0x100..).filter_map(char::from_u32);
    let others = (0..=255u8).filter(|byte| !plain(byte)).filter_map(|_| moved.next()).collect::<Vec<_>>();
    shown.chain(others).all(|c| tokens.iter().any(|token| token.chars().eq([c])))
}

fn check_ids(tokenizer: &Tokenizer, text: &str) {
    for special in [ParseSpecial::Yes, ParseSpecial::No] {
        let Ok(ids) = tokenizer.encode(text, special) else { continue };
        for &id in &ids {
            assert!((id as usize) < tokenizer.vocab_size(), "{id} of {}", tokenizer.vocab_size());
            assert!(tokenizer.id_to_token(id).is_some(), "{id} is of no token");
            // What the vocabulary does not cover is the unknown token, which may be special.
            let may_be_special = special == ParseSpecial::Yes || tokenizer.unk_id() == Some(id);
            assert!(may_be_special || !tokenizer.is_special(id), "plain text became {id}");
        }
        let least = tokenizer.tokens_at_least(text);
        assert!(least <= ids.len(), "{least} tokens were certain, and there are {}", ids.len());
        let within = |tokens_max: usize| {
            tokenizer.encode_within(text, special, Around::Nothing, &Bounds { tokens_max, ..Bounds::NONE })
        };
        assert_eq!(within(ids.len()).ok().as_ref(), Some(&ids), "within just as many");
        if let Some(fewer) = ids.len().checked_sub(1) {
            match within(fewer) {
                Err(TokenizerError::TooManyTokens { at_least, limit }) => {
                    assert!(limit == fewer && at_least > fewer && at_least <= ids.len(), "{at_least} of {}", ids.len());
                }
                other => panic!("{other:?} within {fewer} of {} tokens", ids.len()),
            }
        }
        // Whatever they are cut into, ids are text.
        let whole = tokenizer.decode(&ids, false);
        let mut decoder = StreamDecoder::new(tokenizer, false);
        let pieces: String = ids.iter().map(|&id| decoder.push(id)).collect();
        assert_eq!(pieces + &decoder.finish(), whole);
    }
}

fn check_slices(tokenizer: &Tokenizer, text: &str) {
    let whole = text.replace(CUT, "");
    for special in [ParseSpecial::Yes, ParseSpecial::No] {
        let segments: Vec<Segment<'_>> = text.split(CUT).map(|text| Segment { text, special }).collect();
        let of_slices = tokenizer.encode_segments(&segments).ok();
        let of_whole = tokenizer.encode_segments(&[Segment { text: &whole, special }]).ok();
        assert_eq!(of_slices, of_whole, "{special:?}: in slices, and whole");
        if special == ParseSpecial::No {
            let encoded = if whole.is_empty() { Some(Vec::new()) } else { tokenizer.encode(&whole, special).ok() };
            assert_eq!(of_whole, encoded, "as a segment, and as a text");
        }
    }
}

/// The library's own ids and text, where it loads the file and encodes the text.
fn agrees_with_the_library(ours: &Tokenizer, json: &[u8], text: &str) {
    let caught = std::panic::catch_unwind(|| {
        let mut theirs = tokenizers::Tokenizer::from_bytes(json).ok()?;
        // Those are of no concern here.
        theirs.with_truncation(None).ok()?;
        theirs.with_padding(None);
        // It numbers added tokens itself where the file's ids are not those behind the model's.
        let added = theirs.get_added_tokens_decoder();
        if !added.iter().all(|(id, token)| ours.token_to_id(&token.content) == Some(*id)) {
            return None;
        }
        let mut encoded = |special: ParseSpecial| {
            theirs.set_encode_special_tokens(special == ParseSpecial::No);
            Some(theirs.encode(text, false).ok()?.get_ids().to_vec())
        };
        let ids = (encoded(ParseSpecial::Yes), encoded(ParseSpecial::No));
        // Of two tokens with one id, the library's hash table chooses which one the id is.
        let vocabulary = theirs.get_vocab(true);
        let has_one_each = vocabulary.values().collect::<HashSet<_>>().len() == vocabulary.len();
        let decoded = ids.0.as_deref().filter(|_| has_one_each).and_then(|ids| theirs.decode(ids, false).ok());
        Some((ids, decoded))
    });
    let Ok(Some(((with_special, plain), decoded))) = caught else { return };
    for (special, expected) in [(ParseSpecial::Yes, &with_special), (ParseSpecial::No, &plain)] {
        if let (Ok(ids), Some(expected)) = (ours.encode(text, special), expected) {
            assert_eq!(&ids, expected, "{special:?}: not the library's ids of {text:?}");
        }
    }
    // Bytes that are no text are replaced in another way, which is stated.
    if let (Some(ids), Some(decoded)) = (with_special, decoded) {
        let text = ours.decode(&ids, false);
        if !text.contains('\u{fffd}') && !decoded.contains('\u{fffd}') {
            assert_eq!(text, decoded, "not the library's text of {ids:?}");
        }
    }
}
