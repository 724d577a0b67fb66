//! Answers that are one turn of a conversation made of blocks (text, reasoning, calls of tools), whole or as named events:
//! what Anthropic's interface, OpenAI's Responses and Ollama's have in common.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::app::{App, Serving};
use crate::choice::{Delta, Finish};
use crate::dialect::Part;
use crate::error::{ApiError, json_response};
use crate::generation::{Event, Job, Plan, Progress};
use crate::ids::random_id;
use crate::sse::{self, EventSender, Framing, KEEP_ALIVE, ReaderGone};

/// An event with a name, as those interfaces send them.
pub(crate) struct NamedEvent {
    pub(crate) name: &'static str,
    pub(crate) data: Value,
}

/// The messages of the inner request, and where each comes from.
#[derive(Default)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Value>,
    pub(crate) origins: Vec<String>,
}

impl Conversation {
    pub(crate) fn push(&mut self, origin: &str, message: Value) {
        self.messages.push(message);
        self.origins.push(origin.to_owned());
    }

    /// The result of the call with this id.
    pub(crate) fn push_result(&mut self, origin: &str, id: &str, content: &str) {
        self.push(origin, json!({"role": "tool", "tool_call_id": id, "content": content}));
    }
}

/// How a route writes one turn.
pub(crate) trait TurnFormat: Send + 'static {
    /// How a stream's events stand in its body.
    const FRAMING: Framing = Framing::Events;

    /// What a stream says before anything is computed.
    fn begin(&mut self) -> Vec<NamedEvent>;

    /// What a stream says of a change of the blocks.
    fn changed(&mut self, blocks: &[Block], change: Change, progress: &Progress) -> Vec<NamedEvent>;

    /// What a stream says when all blocks are closed.
    fn end(&mut self, blocks: &[Block], finish: &Finish, progress: &Progress) -> Vec<NamedEvent>;

    /// What a stream says when it cannot go on.
    fn failed(&mut self, blocks: &[Block], error: &ApiError) -> Vec<NamedEvent>;

    /// The whole answer.
    fn whole(&mut self, blocks: &[Block], finish: &Finish, progress: &Progress) -> Value;
}

/// What a block is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    Text,
    Reasoning,
    /// A call of the function with this name; its text is the arguments.
    Call(String),
}

/// A part of a turn.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) kind: BlockKind,
    /// Random letters and digits, for ids.
    pub(crate) id: String,
    pub(crate) text: String,
    /// Nothing more is added.
    pub(crate) closed: bool,
}

/// What happened to a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Opened(usize),
    /// This was added to the last block.
    Added(usize, String),
    Closed(usize),
}

/// The blocks of a turn so far.
#[derive(Debug, Default)]
pub(crate) struct Blocks(Vec<Block>);

impl Blocks {
    /// Takes the next part in; says what that changed, with the blocks as they were at that moment.
    pub(crate) fn push(&mut self, part: Part, mut changed: impl FnMut(&[Block], Change)) {
        let (kind, text) = match part {
            Part::Content(text) | Part::NoCall(text) => (BlockKind::Text, text),
            Part::Reasoning(text) => (BlockKind::Reasoning, text),
            Part::Call { name } => (BlockKind::Call(name), String::new()),
            Part::Arguments(text) => {
                self.append(text, &mut changed);
                return;
            }
        };
        let goes_on = self.0.last().is_some_and(|last| last.kind == kind && !matches!(kind, BlockKind::Call(_)));
        if !goes_on {
            self.close(&mut changed);
            self.0.push(Block { kind, id: random_id("").split_off(1), text: String::new(), closed: false });
            changed(&self.0, Change::Opened(self.0.len() - 1));
        }
        self.append(text, &mut changed);
    }

    fn append(&mut self, text: String, changed: &mut impl FnMut(&[Block], Change)) {
        if let Some(last) = self.0.last_mut().filter(|_| !text.is_empty()) {
            last.text.push_str(&text);
            changed(&self.0, Change::Added(self.0.len() - 1, text));
        }
    }

    /// Closes the last block, if one is open.
    pub(crate) fn close(&mut self, changed: &mut impl FnMut(&[Block], Change)) {
        if let Some(last) = self.0.last_mut().filter(|last| !last.closed) {
            last.closed = true;
            changed(&self.0, Change::Closed(self.0.len() - 1));
        }
    }

    pub(crate) fn all(&self) -> &[Block] {
        &self.0
    }
}

/// Submits the prompt and answers as the request wants it.
pub(crate) async fn respond<F: TurnFormat>(
    app: &App,
    serving: Arc<Serving>,
    prompt: Vec<u32>,
    plan: Plan,
    mut format: F,
) -> Result<Response, ApiError> {
    let mut job = Job::start(app, serving, vec![prompt], plan).await?;
    if job.is_stream() {
        let (sender, response) = sse::framed_channel(F::FRAMING, app.inner.options.stall_time_max);
        tokio::spawn(async move {
            if stream(job, format, &sender).await == Err(ReaderGone) {
                tracing::info!("the reader of a stream has gone");
            }
        });
        return Ok(response);
    }
    let mut whole = Delta::default();
    while let Some(event) = job.next().await? {
        if let Event::Text(_, delta) = event {
            whole.append(delta);
        }
    }
    let mut blocks = Blocks::default();
    job.parts(&mut whole).into_iter().for_each(|part| blocks.push(part, |_, _| {}));
    blocks.close(&mut |_, _| {});
    let finish = whole.finish.ok_or_else(no_end)?;
    job.finished(std::iter::once(&finish));
    Ok(json_response(StatusCode::OK, &format.whole(blocks.all(), &finish, &job.progress())))
}

async fn stream(mut job: Job, mut format: impl TurnFormat, sender: &EventSender) -> Result<(), ReaderGone> {
    let mut blocks = Blocks::default();
    let mut events = format.begin();
    loop {
        for NamedEvent { name, data } in events.drain(..) {
            sender.send_named(name, &data).await?;
        }
        let next = tokio::select! {
            next = timeout(KEEP_ALIVE, job.next()) => next,
            () = sender.gone() => return Err(ReaderGone),
        };
        let ended = match next {
            Err(_) => {
                sender.keep_alive().await?;
                continue;
            }
            Ok(Ok(Some(Event::Text(_, mut delta)))) => {
                let progress = job.progress();
                let mut changed = |blocks: &[Block], change| events.extend(format.changed(blocks, change, &progress));
                job.parts(&mut delta).into_iter().for_each(|part| blocks.push(part, &mut changed));
                let Some(finish) = delta.finish else { continue };
                blocks.close(&mut changed);
                job.finished(std::iter::once(&finish));
                events.extend(format.end(blocks.all(), &finish, &progress));
                true
            }
            Ok(Ok(Some(Event::Scored(..) | Event::Read(_)))) => false,
            Ok(Ok(None)) => {
                events.extend(format.failed(blocks.all(), &no_end()));
                true
            }
            Ok(Err(error)) => {
                events.extend(format.failed(blocks.all(), &error));
                true
            }
        };
        if ended {
            for NamedEvent { name, data } in events.drain(..) {
                sender.send_named(name, &data).await?;
            }
            return Ok(());
        }
    }
}

fn no_end() -> ApiError {
    ApiError::internal("no_end", "the engine ended an answer without saying why, which is a bug")
}
