//! Prompts that are no conversation: texts, or token ids as they are, one or several.

use serde_json::Value;
use tokenizer::{Around, FimMarkers, FimTexts, ParseSpecial, TokenizerError};

use crate::abandoned;
use crate::app::Serving;
use crate::error::ApiError;
use crate::fields::{Fields, token_ids, wrong};

/// A gap that is to be filled: the prompt stands in front of it.
#[derive(Clone, Copy)]
pub(crate) struct Gap<'a> {
    /// The tokens that mark it.
    pub(crate) markers: &'a FimMarkers,
    /// The text behind it.
    pub(crate) suffix: &'a str,
}

/// What is done about a prompt that has too many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooLong {
    /// It is refused.
    Refused,
    /// It loses its end, so that it has so many.
    LosesEnd(usize),
    /// It loses its beginning, so that it has so many. What stands before every text stays.
    LosesBeginning(usize),
}

/// How the prompts of a request are made of its texts.
#[derive(Clone, Copy)]
pub(crate) struct Form<'a> {
    /// What stands around a text.
    pub(crate) around: Around,
    pub(crate) gap: Option<Gap<'a>>,
    pub(crate) too_long: TooLong,
}

/// One prompt of a request.
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    /// As the request has it; none of one that is given as ids.
    pub(crate) text: Option<String>,
    /// It was too long, and lost some of its tokens.
    pub(crate) is_cut: bool,
}

/// Takes whether the texts of special tokens in a raw text are those tokens. They are, if nothing is said, as for llama.cpp
/// and vLLM: a client that writes a raw prompt writes its markers too.
pub(crate) fn parse_special(fields: &mut Fields) -> Result<ParseSpecial, ApiError> {
    parse_special_or(fields, true)
}

fn parse_special_or(fields: &mut Fields, default: bool) -> Result<ParseSpecial, ApiError> {
    Ok(ParseSpecial::where_asked(fields.boolean("parse_special")?.unwrap_or(default)))
}

/// Takes the prompts in the field `name`, at most `most`: one text or several, or one list of token ids or several.
pub(crate) fn take(
    fields: &mut Fields,
    name: &'static str,
    most: usize,
    form: Form<'_>,
    serving: &Serving,
) -> Result<Vec<Prompt>, ApiError> {
    let Form { around, gap, too_long: when_too_long } = form;
    let special = fields.boolean("add_special_tokens")?;
    // The texts around a gap are those of a file, and the server writes the markers.
    let parse_special = parse_special_or(fields, gap.is_none())?;
    let adds_special = special.unwrap_or(true);
    let around = if adds_special && gap.is_none() { around } else { Around::Nothing };
    let tokenizer = &serving.tokenizer;
    let gap = match gap {
        Some(Gap { markers, suffix }) => {
            let bounds = abandoned::bounds(serving.engine.config().context_len);
            let ids = tokenizer.encode_inside(suffix, parse_special, &bounds);
            Some((markers, ids.map_err(|error| too_long(error, "suffix", "suffix", serving))?))
        }
        None => None,
    };
    let ask = |prefix: Vec<u32>| match &gap {
        Some((markers, suffix)) => {
            let before = if adds_special { tokenizer.prefix_ids() } else { &[] };
            markers.prompt(before, &FimTexts { prefix: &prefix, suffix, ..FimTexts::default() })
        }
        None => prefix,
    };
    let from_text = |at: &str, text: String| {
        let (ids, is_cut) = encode_within(serving, &text, parse_special, around, when_too_long)
            .map_err(|error| too_long(error, at, name, serving))?;
        Ok::<_, ApiError>(Prompt { ids: ask(ids), text: Some(text), is_cut })
    };
    let from_ids = |value: &Value| {
        abandoned::check()?;
        if special.is_some() {
            let message = "`add_special_tokens` is about text; token ids are taken as they are";
            return Err(ApiError::invalid("add_special_tokens", message));
        }
        let (ids, is_cut) = cut(token_ids(name, value)?, &[], &[], when_too_long);
        Ok(Prompt { ids: ask(ids), text: None, is_cut })
    };
    let prompts = match fields.required(name)? {
        Value::String(text) => vec![from_text(name, text)?],
        Value::Array(items) if items.first().is_some_and(Value::is_number) => vec![from_ids(&Value::Array(items))?],
        Value::Array(items) if items.len() <= most => {
            let prompt = |(index, item): (usize, Value)| match item {
                Value::String(text) => from_text(&format!("{name}[{index}]"), text),
                Value::Array(_) => from_ids(&item),
                other => Err(wrong(name, &other, "texts, or lists of token ids")),
            };
            items.into_iter().enumerate().map(prompt).collect::<Result<_, _>>()?
        }
        Value::Array(items) => {
            let message = format!("`{name}` is a list of {}, at most {most} are taken", items.len());
            return Err(ApiError::invalid(name, message));
        }
        other => return Err(wrong(name, &other, "a text, a list of token ids, or a list of either")),
    };
    match prompts.iter().any(|prompt| prompt.ids.is_empty()) || prompts.is_empty() {
        true => Err(ApiError::invalid(name, format!("`{name}` has no tokens, and the model needs at least one"))),
        false => Ok(prompts),
    }
}

/// The ids of a prompt, and whether it was cut. One that is not to be cut fails where it has more than the context holds.
fn encode_within(
    serving: &Serving,
    text: &str,
    special: ParseSpecial,
    around: Around,
    when_too_long: TooLong,
) -> Result<(Vec<u32>, bool), TokenizerError> {
    let tokens_max = match when_too_long {
        TooLong::Refused => serving.engine.config().context_len,
        TooLong::LosesEnd(_) | TooLong::LosesBeginning(_) => usize::MAX,
    };
    let ids = serving.tokenizer.encode_within(text, special, around, &abandoned::bounds(tokens_max))?;
    let behind = if around == Around::Both { serving.tokenizer.suffix_ids() } else { &[] };
    let before = if around == Around::Nothing { &[] } else { serving.tokenizer.prefix_ids() };
    Ok(cut(ids, before, behind, when_too_long))
}

/// The ids as far as there may be so many, of which the first are those `before` every text, and the last those `behind`
/// it; and whether they were cut.
pub(crate) fn cut(mut ids: Vec<u32>, before: &[u32], behind: &[u32], when_too_long: TooLong) -> (Vec<u32>, bool) {
    match when_too_long {
        TooLong::LosesEnd(most) if ids.len() > most => {
            ids.truncate(most.saturating_sub(behind.len()));
            ids.extend(behind);
            (ids, true)
        }
        TooLong::LosesBeginning(most) if ids.len() > most => {
            let num_before = if ids.starts_with(before) { before.len().min(most) } else { 0 };
            ids.drain(num_before..ids.len() - (most - num_before));
            (ids, true)
        }
        TooLong::Refused | TooLong::LosesEnd(_) | TooLong::LosesBeginning(_) => (ids, false),
    }
}

/// What a client is told whose text at `at`, in the field `name`, could not be encoded.
pub(crate) fn too_long(error: TokenizerError, at: &str, name: &str, serving: &Serving) -> ApiError {
    let TokenizerError::TooManyTokens { at_least, .. } = error else { return error.into() };
    let context_len = serving.engine.config().context_len;
    let message = format!(
        "`{at}` has at least {at_least} tokens, which do not fit the context of {context_len}; shorten the prompt, or use \
         a larger --ctx-size"
    );
    ApiError::context_exceeded(name, message, at_least, context_len)
}
