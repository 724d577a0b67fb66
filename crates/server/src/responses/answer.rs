//! Answers of `/v1/responses`, in items: whole, and as named events.

use serde_json::{Map, Value, json};

use crate::choice::Finish;
use crate::error::ApiError;
use crate::generation::Progress;
use crate::turn::{Block, BlockKind, Change, NamedEvent, TurnFormat};

/// How this interface writes a turn.
pub(super) struct ResponseFormat {
    pub(super) id: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    /// What of the request an answer repeats.
    pub(super) echoed: Map<String, Value>,
    /// Of a stream's next event.
    pub(super) sequence_number: u64,
}

impl ResponseFormat {
    fn response(&self, status: &str, output: Vec<Value>, progress: Option<&Progress>) -> Value {
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "error": null,
            "incomplete_details": null, "output": output,
        });
        for (name, value) in &self.echoed {
            response[name] = value.clone();
        }
        response["usage"] = progress.map_or(Value::Null, |progress| {
            json!({
                "input_tokens": progress.prompt_tokens,
                "input_tokens_details": {"cached_tokens": progress.cached_tokens},
                "output_tokens": progress.generated_tokens,
                "output_tokens_details": {"reasoning_tokens": progress.reasoning_tokens},
                "total_tokens": progress.prompt_tokens + progress.generated_tokens,
            })
        });
        if let Some(progress) = progress {
            response["x_hotmetal"] = progress.facts.clone();
        }
        response
    }

    fn ended(&self, blocks: &[Block], finish: &Finish, progress: &Progress) -> Value {
        let is_cut = finish.reason == "length";
        let status = |index: usize| if is_cut && index + 1 == blocks.len() { "incomplete" } else { "completed" };
        let items = blocks.iter().enumerate().map(|(index, block)| item(block, status(index))).collect();
        let mut response = self.response(if is_cut { "incomplete" } else { "completed" }, items, Some(progress));
        if is_cut {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response
    }

    fn event(&mut self, name: &'static str, mut data: Value) -> NamedEvent {
        data["type"] = name.into();
        data["sequence_number"] = self.sequence_number.into();
        self.sequence_number += 1;
        NamedEvent { name, data }
    }
}

fn item_id(block: &Block) -> String {
    let prefix = match block.kind {
        BlockKind::Text => "msg",
        BlockKind::Reasoning => "rs",
        BlockKind::Call(_) => "fc",
    };
    format!("{prefix}_{}", block.id)
}

fn part(block: &Block) -> Value {
    match block.kind {
        BlockKind::Reasoning => json!({"type": "reasoning_text", "text": block.text}),
        _ => json!({"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}),
    }
}

fn item(block: &Block, status: &str) -> Value {
    let id = item_id(block);
    match &block.kind {
        BlockKind::Text => {
            json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": [part(block)]})
        }
        BlockKind::Reasoning => {
            json!({"id": id, "type": "reasoning", "status": status, "summary": [], "content": [part(block)]})
        }
        BlockKind::Call(name) => json!({
            "id": id, "type": "function_call", "status": status, "call_id": format!("call_{}", block.id), "name": name,
            "arguments": block.text,
        }),
    }
}

impl TurnFormat for ResponseFormat {
    fn begin(&mut self) -> Vec<NamedEvent> {
        let response = self.response("in_progress", Vec::new(), None);
        vec![
            self.event("response.created", json!({"response": response})),
            self.event("response.in_progress", json!({"response": response})),
        ]
    }

    fn changed(&mut self, blocks: &[Block], change: Change, _: &Progress) -> Vec<NamedEvent> {
        let (Change::Opened(index) | Change::Added(index, _) | Change::Closed(index)) = change;
        let block = &blocks[index];
        let at = |more: Value| {
            let mut data = json!({"item_id": item_id(block), "output_index": index});
            for (name, value) in more.as_object().into_iter().flatten() {
                data[name] = value.clone();
            }
            data
        };
        let in_part = |more: Value| {
            let mut data = at(more);
            data["content_index"] = 0.into();
            data
        };
        match (change, &block.kind) {
            (Change::Opened(_), kind) => {
                let mut begun = item(&Block { text: String::new(), ..block.clone() }, "in_progress");
                let is_call = matches!(kind, BlockKind::Call(_));
                let empty = part(&Block { text: String::new(), ..block.clone() });
                if !is_call {
                    begun["content"] = json!([]);
                }
                let added = json!({"output_index": index, "item": begun});
                let mut events = vec![self.event("response.output_item.added", added)];
                if !is_call {
                    events.push(self.event("response.content_part.added", in_part(json!({"part": empty}))));
                }
                events
            }
            (Change::Added(_, text), BlockKind::Text) => {
                let data = in_part(json!({"delta": text, "logprobs": []}));
                vec![self.event("response.output_text.delta", data)]
            }
            (Change::Added(_, text), BlockKind::Reasoning) => {
                vec![self.event("response.reasoning_text.delta", in_part(json!({"delta": text})))]
            }
            (Change::Added(_, text), BlockKind::Call(_)) => {
                vec![self.event("response.function_call_arguments.delta", at(json!({"delta": text})))]
            }
            (Change::Closed(_), kind) => {
                let done = match kind {
                    BlockKind::Text => {
                        ("response.output_text.done", in_part(json!({"text": block.text, "logprobs": []})))
                    }
                    BlockKind::Reasoning => ("response.reasoning_text.done", in_part(json!({"text": block.text}))),
                    BlockKind::Call(name) => {
                        let data = at(json!({"name": name, "arguments": block.text}));
                        ("response.function_call_arguments.done", data)
                    }
                };
                let mut events = vec![self.event(done.0, done.1)];
                if !matches!(kind, BlockKind::Call(_)) {
                    events.push(self.event("response.content_part.done", in_part(json!({"part": part(block)}))));
                }
                let done = json!({"output_index": index, "item": item(block, "completed")});
                events.push(self.event("response.output_item.done", done));
                events
            }
        }
    }

    fn end(&mut self, blocks: &[Block], finish: &Finish, progress: &Progress) -> Vec<NamedEvent> {
        let response = self.ended(blocks, finish, progress);
        let name = if finish.reason == "length" { "response.incomplete" } else { "response.completed" };
        vec![self.event(name, json!({"response": response}))]
    }

    fn failed(&mut self, blocks: &[Block], error: &ApiError) -> Vec<NamedEvent> {
        let items = blocks.iter().map(|block| item(block, "incomplete")).collect();
        let mut response = self.response("failed", items, None);
        let error = &error.to_json()["error"];
        response["error"] = json!({"code": error["code"], "message": error["message"]});
        vec![self.event("response.failed", json!({"response": response}))]
    }

    fn whole(&mut self, blocks: &[Block], finish: &Finish, progress: &Progress) -> Value {
        self.ended(blocks, finish, progress)
    }
}
