//! A conversation as ids, in which the text of a message never becomes a special token.
//!
//! A template writes special tokens as text, and so can whoever writes a message: `x<|im_end|>\n<|im_start|>system\n…` in
//! one would end it and begin another with a role of its choice. Hence such a place in a message is marked before the
//! template sees it, the mark is found again in what the template wrote, and the place is encoded as plain text. All
//! other ids are those of the whole prompt.
//!
//! Marks of thoughts in the assistant's own messages are left alone: templates look for them there, to take thoughts out.
//!
//! A mark is a character of Unicode's private use that no message has, in place of the character that the special token
//! begins with: so the length stays, and a template that trims, splits or joins texts carries it along.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use serde_json::{Map, Value};

use crate::chat_template::{ChatTemplate, RenderInput, TemplateError};
use crate::{Around, Bounds, ParseSpecial, Segment, Tokenizer, TokenizerError};

/// The planes of private use that marks are taken from.
const PRIVATE_USE: [std::ops::RangeInclusive<u32>; 2] = [0xF_0000..=0xF_FFFD, 0x10_0000..=0x10_FFFD];

/// What thoughts stand between. They begin and end nobody's message.
const THOUGHT: [&str; 2] = ["<think>", "</think>"];

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// What the model sees.
    text: String,
    /// Where in it a special token begins that a message wrote: bytes, from left to right.
    plain: Vec<Range<usize>>,
    /// Whether those count, too.
    special_in_messages: ParseSpecial,
}

impl Prompt {
    /// Renders a conversation. With [`ParseSpecial::Yes`] special tokens in messages count as such, as in transformers.
    /// Nothing in `input` but `bos_token` and `eos_token` is trusted.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render(
        template: &ChatTemplate,
        input: &RenderInput<'_>,
        tokenizer: &Tokenizer,
        special_in_messages: ParseSpecial,
    ) -> Result<Self, TemplateError> {
        let text = template.render(input)?;
        let marks = match special_in_messages {
            ParseSpecial::Yes => None,
            ParseSpecial::No => Marks::needed(input, tokenizer)?,
        };
        let Some(marks) = marks else { return Ok(Self { text, plain: Vec::new(), special_in_messages }) };
        let messages: Vec<Value> =
            input.messages.iter().map(|message| marks.marked(message, Writer::of(message))).collect();
        let lists =
            |list: &[Value]| -> Vec<Value> { list.iter().map(|value| marks.marked(value, Writer::Anyone)).collect() };
        let (tools, documents) = (input.tools.map(lists), input.documents.map(lists));
        let extra = marks.marked_map(&input.extra, Writer::Anyone);
        let input = RenderInput {
            messages: &messages,
            tools: tools.as_deref(),
            documents: documents.as_deref(),
            extra,
            ..input.clone()
        };
        // A template that looks for a special token in messages writes another text here than above. Then this one counts,
        // because it is the one of which is known who wrote what.
        Ok(marks.unmarked(&template.render(&input)?))
    }

    /// What the model sees.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What the model sees, without its ids.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    /// Leaves out what follows the first `bytes` of the text.
    ///
    /// # Panics
    /// Where that is within a character.
    pub fn truncate(&mut self, bytes: usize) {
        self.text.truncate(bytes);
        self.plain.retain(|place| place.end <= bytes);
    }

    /// The ids that the model sees.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>, TokenizerError> {
        self.encode_within(tokenizer, &Bounds::NONE)
    }

    /// The ids that the model sees, unless they go beyond the bounds.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_within`].
    pub fn encode_within(&self, tokenizer: &Tokenizer, bounds: &Bounds<'_>) -> Result<Vec<u32>, TokenizerError> {
        if self.special_in_messages == ParseSpecial::Yes {
            return tokenizer.encode_within(&self.text, ParseSpecial::Yes, Around::Nothing, bounds);
        }
        // In segments even where nothing is marked: special tokens are then found as they are written, and not as a
        // normalizer might read a message.
        let mut segments = Vec::with_capacity(2 * self.plain.len() + 1);
        let mut done = 0;
        for place in &self.plain {
            segments.push(Segment { text: &self.text[done..place.start], special: ParseSpecial::Yes });
            segments.push(Segment { text: &self.text[place.clone()], special: ParseSpecial::No });
            done = place.end;
        }
        segments.push(Segment { text: &self.text[done..], special: ParseSpecial::Yes });
        tokenizer.encode_segments_within(&segments, bounds)
    }
}

/// Who wrote a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// The assistant, or so says the conversation.
    Assistant,
    Anyone,
}

impl Writer {
    fn of(message: &Value) -> Self {
        if message.get("role").is_some_and(|role| role == "assistant") { Self::Assistant } else { Self::Anyone }
    }
}

/// What stands for what.
struct Marks<'a> {
    tokenizer: &'a Tokenizer,
    /// A character that a special token begins with, and the one that stands for it.
    pairs: Vec<(char, char)>,
}

impl<'a> Marks<'a> {
    /// Marks for a conversation, where some text in it has a special token or ends with the beginning of one.
    fn needed(input: &RenderInput<'_>, tokenizer: &'a Tokenizer) -> Result<Option<Self>, TemplateError> {
        let mut is_needed = false;
        each_text_of(input, &mut |text, writer| is_needed = is_needed || !places(text, writer, tokenizer).is_empty());
        if !is_needed {
            return Ok(None);
        }
        let mut private = HashSet::new();
        each_text_of(input, &mut |text, _| private.extend(text.chars().filter(|&c| is_private(c))));
        let begins: BTreeSet<char> = tokenizer.special_begins().collect();
        let unused = PRIVATE_USE.into_iter().flatten().filter_map(char::from_u32).filter(|c| !private.contains(c));
        let count = begins.len();
        let pairs: Vec<_> = begins.into_iter().zip(unused).collect();
        if pairs.len() < count {
            let problem = "the conversation has special tokens, and all characters that could mark them".to_owned();
            return Err(TemplateError::Message { index: 0, problem });
        }
        Ok(Some(Self { tokenizer, pairs }))
    }

    /// A value with its texts and names marked.
    fn marked(&self, value: &Value, writer: Writer) -> Value {
        match value {
            Value::String(text) => Value::String(self.marked_text(text, writer).into_owned()),
            Value::Array(list) => list.iter().map(|value| self.marked(value, writer)).collect(),
            Value::Object(map) => Value::Object(self.marked_map(map, writer)),
            plain => plain.clone(),
        }
    }

    fn marked_map(&self, map: &Map<String, Value>, writer: Writer) -> Map<String, Value> {
        let entry = |(name, value): (&String, &Value)| {
            (self.marked_text(name, writer).into_owned(), self.marked(value, writer))
        };
        map.iter().map(entry).collect()
    }

    fn marked_text<'t>(&self, text: &'t str, writer: Writer) -> Cow<'t, str> {
        let places = places(text, writer, self.tokenizer);
        if places.is_empty() {
            return Cow::Borrowed(text);
        }
        let mark_of = |c: char| self.pairs.iter().find(|(first, _)| *first == c).map_or(c, |&(_, mark)| mark);
        let mut out = String::with_capacity(text.len() + 4 * places.len());
        let mut done = 0;
        for place in places {
            out.push_str(&text[done..place.start]);
            // Every character in it that a special token may begin with: within one, another may lie.
            out.extend(text[place.clone()].chars().map(mark_of));
            done = place.end;
        }
        out.push_str(&text[done..]);
        Cow::Owned(out)
    }

    /// What a template wrote, with the marks taken out and remembered.
    fn unmarked(&self, marked: &str) -> Prompt {
        let text = String::with_capacity(marked.len());
        let mut prompt = Prompt { text, plain: Vec::new(), special_in_messages: ParseSpecial::No };
        for c in marked.chars() {
            match self.pairs.iter().find(|(_, mark)| *mark == c) {
                None => prompt.text.push(c),
                Some(&(first, _)) => {
                    let start = prompt.text.len();
                    prompt.text.push(first);
                    prompt.plain.push(start..prompt.text.len());
                }
            }
        }
        prompt
    }
}

/// Where `text` has the text of a special token, and where its end may be the beginning of one, which the next text would
/// end.
fn places(text: &str, writer: Writer, tokenizer: &Tokenizer) -> Vec<Range<usize>> {
    let mut places: Vec<Range<usize>> = tokenizer.special_in(text).collect();
    let end = places.last().map_or(0, |place| place.end);
    if writer == Writer::Assistant {
        places.retain(|place| !THOUGHT.contains(&&text[place.clone()]));
    }
    if let Some(start) = tokenizer.special_begun_in(&text[end..]) {
        places.push(end + start..text.len());
    }
    places
}

fn is_private(c: char) -> bool {
    PRIVATE_USE.iter().any(|plane| plane.contains(&u32::from(c)))
}

/// Calls `look` with each text and name in a conversation, and who wrote it.
fn each_text_of(input: &RenderInput<'_>, look: &mut dyn FnMut(&str, Writer)) {
    input.messages.iter().for_each(|message| each_text(message, Writer::of(message), look));
    let others = [input.tools, input.documents].into_iter().flatten().flatten().chain(input.extra.values());
    others.for_each(|root| each_text(root, Writer::Anyone, look));
    input.extra.keys().for_each(|name| look(name, Writer::Anyone));
}

/// Calls `look` with each text and name in a value. The template has refused values that nest too deeply.
fn each_text(value: &Value, writer: Writer, look: &mut dyn FnMut(&str, Writer)) {
    match value {
        Value::String(text) => look(text, writer),
        Value::Array(list) => list.iter().for_each(|value| each_text(value, writer, look)),
        Value::Object(map) => map.iter().for_each(|(name, value)| {
            look(name, writer);
            each_text(value, writer, look);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
