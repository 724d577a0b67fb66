//! One completion on its way from tokens to text: never half a character, nothing of a stop string, and each token's
//! log-probability with the text that it is part of.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use engine::{EngineError, Failure, FinishReason, Output, SampledToken, StopStrings, StopText, Usage};
use serde_json::{Value, json};
use tokenizer::{StreamDecoder, Tokenizer};

use crate::dialect::{CONTROL, Part, push_part};
use crate::reply::ReplyReader;
use crate::schema_check;

/// New text of a completion, and what came with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delta {
    pub(crate) text: String,
    /// The text taken apart, where the route wants that.
    pub(crate) parts: Vec<Part>,
    /// Tokens whose text this is or was, with the place of each in the text (in bytes) and their log-probabilities.
    pub(crate) tokens: Vec<PlacedToken>,
    /// All new ids, those that end or hide included.
    pub(crate) token_ids: Vec<u32>,
    pub(crate) finish: Option<Finish>,
}

/// A token, and where its text begins in the completion's.
#[derive(Clone, Debug)]
pub(crate) struct PlacedToken {
    pub(crate) start: usize,
    pub(crate) token: SampledToken,
}

/// Why a completion ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finish {
    /// `stop`, `length` or `error`.
    pub(crate) reason: &'static str,
    /// The stop string, or the id of the stop token that the request named.
    pub(crate) stop: Value,
    pub(crate) failure: Option<Failure>,
}

impl Finish {
    /// The same in llama.cpp's words: `stop_type` and `stopping_word`.
    pub(crate) fn native(&self) -> (&'static str, &str) {
        match (self.reason, self.stop.as_str()) {
            ("stop", Some(word)) => ("word", word),
            ("stop", None) => ("eos", ""),
            _ => ("limit", ""),
        }
    }
}

impl Delta {
    /// An entry of `choices`: what the route calls its text, with the text, and what each route says of it.
    pub(crate) fn entry(&self, index: usize, text: (&str, Value), logprobs: Option<Value>, with_ids: bool) -> Value {
        let mut entry = json!({
            "index": index,
            text.0: text.1,
            "logprobs": logprobs,
            "finish_reason": self.finish.as_ref().map(|finish| finish.reason),
            "stop_reason": self.finish.as_ref().map(|finish| &finish.stop),
        });
        if with_ids {
            entry["token_ids"] = json!(self.token_ids);
        }
        entry
    }

    /// Appends what came after.
    pub(crate) fn append(&mut self, later: Self) {
        self.text.push_str(&later.text);
        later.parts.into_iter().for_each(|part| push_part(&mut self.parts, part));
        self.tokens.extend(later.tokens);
        self.token_ids.extend(later.token_ids);
        self.finish = later.finish.or(self.finish.take());
    }
}

/// What a request says about the text of its completions.
#[derive(Clone, Debug)]
pub(crate) struct TextOptions {
    pub(crate) stop: Vec<String>,
    /// Stop tokens that the request named: they are reported.
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) include_stop: bool,
    /// List the token that ends the text with those of the text, though nothing of it is shown.
    pub(crate) list_end: bool,
    pub(crate) skip_special: bool,
    /// How the text is taken apart, at its beginning.
    pub(crate) reply: Option<ReplyReader>,
    /// Tokens that are marked for that, with their texts.
    pub(crate) controls: Vec<(u32, String)>,
    /// End the text behind its first call.
    pub(crate) one_call: bool,
    /// End the text when so many tokens of it are reasoning.
    pub(crate) reasoning_max: Option<usize>,
    /// Look at the finished text for what of this schema no grammar holds it to.
    pub(crate) checked: Option<Arc<Value>>,
}

/// A completion that is being written.
pub(crate) struct Choice {
    decoder: Option<StreamDecoder<Arc<Tokenizer>>>,
    stop_strings: StopStrings,
    reply: Option<ReplyReader>,
    options: Arc<TextOptions>,
    /// Bytes that the tokens so far have given, and bytes shown.
    decoded: usize,
    shown: usize,
    pending: VecDeque<PlacedToken>,
    /// Where in the text control tokens begin, and how much of it was taken apart.
    marks: VecDeque<usize>,
    taken_apart: usize,
    /// The text that is to be looked at, and what is wrong with it.
    content: String,
    faults: Vec<String>,
    pub(crate) usage: Usage,
    /// Tokens generated that are reasoning.
    pub(crate) reasoning_tokens: usize,
    pub(crate) finished: bool,
}

impl Choice {
    /// What a reader of the answer should know of the calls in it.
    pub(crate) fn warnings(&self) -> &[String] {
        self.reply.as_ref().map_or(&[], ReplyReader::warnings)
    }

    pub(crate) fn new(tokenizer: Arc<Tokenizer>, options: Arc<TextOptions>) -> Result<Self, EngineError> {
        Ok(Self {
            decoder: Some(StreamDecoder::new(tokenizer, options.skip_special)),
            stop_strings: StopStrings::new(&options.stop)?,
            reply: options.reply.clone(),
            options,
            decoded: 0,
            shown: 0,
            pending: VecDeque::new(),
            marks: VecDeque::new(),
            taken_apart: 0,
            content: String::new(),
            faults: Vec::new(),
            usage: Usage::default(),
            reasoning_tokens: 0,
            finished: false,
        })
    }

    /// Takes an output of the engine. A completion that has finished by a stop string has to be ended there too.
    pub(crate) fn push(&mut self, output: Output) -> Delta {
        self.usage = output.usage;
        let mut delta = Delta::default();
        let mut end = None;
        if let Some(token) = output.token {
            delta.token_ids.push(token.id);
            let ends_text = matches!(output.finish, Some(FinishReason::Stop { .. }));
            if !ends_text || self.options.include_stop {
                self.push_token(token, &mut delta);
            } else if self.options.list_end {
                end = Some(token);
            }
        }
        if delta.finish.is_none()
            && let Some(finish) = output.finish
        {
            self.end(&mut delta);
            if delta.finish.is_none() {
                delta.finish = Some(self.describe(finish));
                delta.tokens.extend(end.map(|token| PlacedToken { start: self.decoded, token }));
            }
        }
        self.take_apart(&mut delta);
        self.check(&delta);
        self.finished = delta.finish.is_some();
        delta
    }

    /// Looks at a finished text for what no grammar has held it to. One that was cut is not whole, and a call has a schema of
    /// its own.
    fn check(&mut self, delta: &Delta) {
        let Some(schema) = &self.options.checked else { return };
        match &self.reply {
            None => self.content.push_str(&delta.text),
            Some(_) => delta.parts.iter().for_each(|part| {
                if let Part::Content(text) | Part::NoCall(text) = part {
                    self.content.push_str(text);
                }
            }),
        }
        if delta.finish.as_ref().is_some_and(|finish| finish.reason == "stop") {
            self.faults = schema_check::faults(schema, &self.content);
        }
    }

    /// What of its schema a finished text does not keep to.
    pub(crate) fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Makes parts of the text, and says that it ended by a call if it did.
    fn take_apart(&mut self, delta: &mut Delta) {
        let Some(reply) = &mut self.reply else { return };
        let reasoned = reply.is_reasoning();
        let text = match self.options.controls.is_empty() {
            true => Cow::Borrowed(&*delta.text),
            false => marked(&delta.text, self.taken_apart, &mut self.marks),
        };
        self.taken_apart += delta.text.len();
        reply.push(&text, &mut delta.parts);
        if reasoned || reply.is_reasoning() {
            self.reasoning_tokens += delta.token_ids.len();
        }
        let has_thought_enough = self.options.reasoning_max.is_some_and(|most| self.reasoning_tokens >= most);
        if has_thought_enough && reply.is_reasoning() && delta.finish.is_none() {
            delta.finish = Some(Finish { reason: "length", stop: Value::Null, failure: None });
        }
        let has_call = self.options.one_call && reply.num_calls() > 0;
        if has_call && delta.finish.is_none() {
            delta.finish = Some(Finish { reason: "stop", stop: Value::Null, failure: None });
        }
        let Some(finish) = &mut delta.finish else { return };
        if !has_call {
            reply.finish(&mut delta.parts, finish.reason == "length");
        }
        if finish.reason == "stop" && reply.num_calls() > 0 {
            finish.reason = "tool_calls";
        }
    }

    fn push_token(&mut self, token: SampledToken, delta: &mut Delta) {
        let Some(decoder) = &mut self.decoder else { return };
        let id = token.id;
        self.pending.push_back(PlacedToken { start: self.decoded, token });
        let text = decoder.push(id);
        if let Some((_, control)) = self.options.controls.iter().find(|(control, _)| *control == id)
            && let Some(at) = text.rfind(control)
        {
            self.marks.push_back(self.decoded + at);
        }
        self.decoded += text.len();
        self.push_text(&text, delta);
    }

    fn push_text(&mut self, text: &str, delta: &mut Delta) {
        let StopText { text, stopped } = self.stop_strings.push(text);
        delta.text.push_str(text);
        self.shown += text.len();
        // What of a token is shown shows the token.
        while let Some(placed) = self.pending.pop_front_if(|placed| placed.start < self.shown) {
            delta.tokens.push(placed);
        }
        if let Some(stop) = stopped.and_then(|index| self.options.stop.get(index)) {
            if self.options.include_stop {
                delta.text.push_str(stop);
            }
            delta.finish = Some(Finish { reason: "stop", stop: stop.as_str().into(), failure: None });
        }
    }

    /// The text has ended by itself: gives out what was held back.
    fn end(&mut self, delta: &mut Delta) {
        let Some(decoder) = self.decoder.take() else { return };
        let last = decoder.finish();
        self.decoded += last.len();
        self.push_text(&last, delta);
        if delta.finish.is_some() {
            return;
        }
        delta.text.push_str(self.stop_strings.finish());
        delta.tokens.extend(self.pending.drain(..));
    }

    fn describe(&self, finish: FinishReason) -> Finish {
        let with = |reason, stop, failure| Finish { reason, stop, failure };
        match finish {
            FinishReason::Stop { token_id } if self.options.stop_token_ids.contains(&token_id) => {
                with("stop", token_id.into(), None)
            }
            FinishReason::Stop { .. } => with("stop", Value::Null, None),
            FinishReason::Length | FinishReason::Context => with("length", Value::Null, None),
            FinishReason::Cancelled => {
                with("error", Value::Null, Some(Failure::Backend("the request was cancelled".to_owned())))
            }
            FinishReason::Error(failure) => with("error", Value::Null, Some(failure)),
        }
    }
}

/// `text`, which begins at byte `start` of a completion, with a mark before each token that begins at one of `marks`.
fn marked<'t>(text: &'t str, start: usize, marks: &mut VecDeque<usize>) -> Cow<'t, str> {
    let end = start + text.len();
    if !text.contains(CONTROL) && marks.front().is_none_or(|&mark| mark >= end) {
        return Cow::Borrowed(text);
    }
    let mut marked = String::with_capacity(text.len() + CONTROL.len_utf8());
    for (at, character) in text.char_indices() {
        if marks.pop_front_if(|mark| *mark <= start + at).is_some() {
            marked.push(CONTROL);
        }
        // Nobody else may mark.
        marked.push(if character == CONTROL { char::REPLACEMENT_CHARACTER } else { character });
    }
    Cow::Owned(marked)
}
