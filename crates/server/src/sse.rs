//! Streams: a body that is written by one task and read by the connection, as server-sent events or as lines of JSON.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::Frame;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Events between the task that writes and the connection.
const EVENTS_MAX: usize = 256;
/// Silence after which a comment is sent, so that nobody between takes the connection for dead.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// What readers skip.
pub(crate) const COMMENT: &str = ": still here\n\n";

/// How the events of a stream stand in its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Server-sent events.
    Events,
    /// One JSON value a line, as Ollama's interface sends them.
    Lines,
}

impl Framing {
    /// The media type of such a stream.
    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Self::Events => "text/event-stream",
            Self::Lines => "application/x-ndjson",
        }
    }
}

/// The writing end.
pub(crate) struct EventSender {
    framing: Framing,
    events: mpsc::Sender<Bytes>,
    stall_time_max: Duration,
}

/// The reader has gone, or does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReaderGone;

/// What is sent as it comes.
pub(crate) struct EventBody(pub(crate) mpsc::Receiver<Bytes>);

impl hyper::body::Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// A stream of events, and who writes them. A reader that does not read for `stall_time_max` counts as gone.
pub(crate) fn channel(stall_time_max: Duration) -> (EventSender, Response) {
    framed_channel(Framing::Events, stall_time_max)
}

/// As [`channel`], with events that stand in the body in this way.
pub(crate) fn framed_channel(framing: Framing, stall_time_max: Duration) -> (EventSender, Response) {
    let (events, received) = mpsc::channel(EVENTS_MAX);
    let mut response = Response::new(Body::new(EventBody(received)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(framing.media_type()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that buffer would hold back what is meant to be seen at once.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    (EventSender { framing, events, stall_time_max }, response)
}

impl EventSender {
    /// Sends an event with `data`.
    pub(crate) async fn send(&self, data: &Value) -> Result<(), ReaderGone> {
        match self.framing {
            Framing::Events => self.send_raw(format!("data: {data}\n\n")).await,
            Framing::Lines => self.send_raw(format!("{data}\n")).await,
        }
    }

    /// Sends an event with a name and `data`; a line has no name.
    pub(crate) async fn send_named(&self, name: &str, data: &Value) -> Result<(), ReaderGone> {
        if self.framing == Framing::Lines {
            return self.send(data).await;
        }
        self.send_raw(format!("event: {name}\ndata: {data}\n\n")).await
    }

    /// Sends the event that ends a stream in OpenAI's interface.
    pub(crate) async fn done(&self) -> Result<(), ReaderGone> {
        self.send_raw("data: [DONE]\n\n".to_owned()).await
    }

    /// Sends a comment, which readers skip. Lines of JSON have no comments, so nothing is sent there.
    pub(crate) async fn keep_alive(&self) -> Result<(), ReaderGone> {
        if self.framing == Framing::Lines {
            return Ok(());
        }
        self.send_raw(COMMENT.to_owned()).await
    }

    /// Returns once the reader has gone.
    pub(crate) async fn gone(&self) {
        self.events.closed().await;
    }

    async fn send_raw(&self, text: String) -> Result<(), ReaderGone> {
        let sent = timeout(self.stall_time_max, self.events.send(text.into())).await;
        sent.map_err(|_| ReaderGone)?.map_err(|_| ReaderGone)
    }
}
