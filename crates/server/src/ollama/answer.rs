//! Answers in Ollama's form: a JSON value, or a line for each new piece and one with the counts at the end.

use serde_json::{Map, Value, json};

use crate::choice::Finish;
use crate::clock::utc_now;
use crate::error::ApiError;
use crate::fields::Notes;
use crate::generation::Progress;
use crate::messages;
use crate::sse::Framing;
use crate::turn::{Block, BlockKind, Change, NamedEvent, TurnFormat};

/// Where a route's answers have their text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In `message`, as `/api/chat` has it.
    Message,
    /// In `response`, as `/api/generate` has it.
    Response,
}

/// How this interface writes a turn.
pub(super) struct Lines {
    place: Place,
    model: String,
    /// Calls that a stream has sent.
    num_calls: usize,
}

/// A part of an answer.
#[derive(Debug, Default)]
struct Piece {
    content: String,
    thinking: String,
    calls: Vec<Value>,
}

impl Lines {
    /// Of answers in the name of this model.
    pub(super) fn new(place: Place, model: String) -> Self {
        Self { place, model, num_calls: 0 }
    }

    fn line(&self, piece: Piece) -> Value {
        let mut line = json!({"model": self.model, "created_at": utc_now()});
        match self.place {
            Place::Message => {
                let mut message = json!({"role": "assistant", "content": piece.content});
                if !piece.thinking.is_empty() {
                    message["thinking"] = piece.thinking.into();
                }
                if !piece.calls.is_empty() {
                    message["tool_calls"] = piece.calls.into();
                }
                line["message"] = message;
            }
            Place::Response => {
                line["response"] = piece.content.into();
                if !piece.thinking.is_empty() {
                    line["thinking"] = piece.thinking.into();
                }
            }
        }
        line["done"] = false.into();
        line
    }

    /// The answer to a request without a prompt: the model is loaded.
    pub(super) fn loaded(&self, notes: Notes) -> Value {
        let mut line = self.line(Piece::default());
        line["done"] = true.into();
        line["done_reason"] = "load".into();
        let mut facts = Map::new();
        notes.report(&mut facts);
        line["x_hotmetal"] = facts.into();
        line
    }

    /// Makes `line` the last one.
    fn finished(mut line: Value, blocks: &[Block], finish: &Finish, progress: &Progress) -> Value {
        // Clients divide by these times.
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
        line["done"] = true.into();
        line["done_reason"] = if finish.reason == "length" { "length" } else { "stop" }.into();
        line["total_duration"] = ns(progress.total_time).into();
        // It was loaded before.
        line["load_duration"] = 0.into();
        line["prompt_eval_count"] = progress.prompt_tokens.into();
        line["prompt_eval_duration"] = ns(progress.prompt_time).into();
        line["eval_count"] = progress.generated_tokens.into();
        line["eval_duration"] = ns(progress.decode_time).into();
        line["x_hotmetal"] = progress.facts.clone();
        if let Some(Block { kind: BlockKind::Call(name), text, .. }) = blocks.last()
            && finish.reason == "length"
            && parsed(text).is_none()
        {
            // Half a call is no call: clients of this interface run what they are given.
            line["x_hotmetal"]["cut_call"] = json!({"name": name, "partial_json": text});
        }
        line
    }
}

/// The arguments of a call, if they are whole.
fn parsed(text: &str) -> Option<Map<String, Value>> {
    messages::arguments(Some(&Value::String(text.to_owned())))
}

/// A call with this number, unless it was cut.
fn call_json(block: &Block, number: usize) -> Option<Value> {
    let BlockKind::Call(name) = &block.kind else { return None };
    let function = json!({"index": number, "name": name, "arguments": parsed(&block.text)?});
    Some(json!({"id": format!("call_{}", block.id), "function": function}))
}

impl TurnFormat for Lines {
    const FRAMING: Framing = Framing::Lines;

    fn begin(&mut self) -> Vec<NamedEvent> {
        Vec::new()
    }

    fn changed(&mut self, blocks: &[Block], change: Change, _: &Progress) -> Vec<NamedEvent> {
        let piece = match change {
            Change::Added(index, text) => match blocks[index].kind {
                BlockKind::Text => Piece { content: text, ..Piece::default() },
                BlockKind::Reasoning => Piece { thinking: text, ..Piece::default() },
                // Sent when it is whole, because its arguments are an object.
                BlockKind::Call(_) => return Vec::new(),
            },
            Change::Closed(index) => match call_json(&blocks[index], self.num_calls) {
                Some(call) => {
                    self.num_calls += 1;
                    Piece { calls: vec![call], ..Piece::default() }
                }
                None => return Vec::new(),
            },
            Change::Opened(_) => return Vec::new(),
        };
        vec![unnamed(self.line(piece))]
    }

    fn end(&mut self, blocks: &[Block], finish: &Finish, progress: &Progress) -> Vec<NamedEvent> {
        vec![unnamed(Self::finished(self.line(Piece::default()), blocks, finish, progress))]
    }

    fn failed(&mut self, _: &[Block], error: &ApiError) -> Vec<NamedEvent> {
        vec![unnamed(error.to_ollama_json())]
    }

    fn whole(&mut self, blocks: &[Block], finish: &Finish, progress: &Progress) -> Value {
        let mut piece = Piece::default();
        for block in blocks {
            match block.kind {
                BlockKind::Text => piece.content.push_str(&block.text),
                BlockKind::Reasoning => piece.thinking.push_str(&block.text),
                BlockKind::Call(_) => piece.calls.extend(call_json(block, piece.calls.len())),
            }
        }
        Self::finished(self.line(piece), blocks, finish, progress)
    }
}

fn unnamed(data: Value) -> NamedEvent {
    NamedEvent { name: "", data }
}
