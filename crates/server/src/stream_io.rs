//! A connection's socket with what is known of the other end: whether it ever said anything, and whether it reads.
//!
//! A reader that does not read holds a place and all that was written for it; after the stall time a write fails, whatever
//! is written: an event, a whole answer, a file of the page. Where all places are taken, those who have said nothing and
//! those who do not read give theirs up first.
//!
//! A client that has sent its request may close its half of the connection and wait for the answer (`nc -N`, some
//! programs in shells). A client that has left looks the same, until something is written to it: its system then resets
//! the connection. So where the answer is not there soon, a few bytes that every client skips are written: `100
//! Continue` before an answer, a comment between two events.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Version, header};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep};

use crate::sse;

/// Who has said nothing for so long may have to go.
const SILENT_MIN: Duration = Duration::from_millis(250);
/// Who has not read for so long, too.
const UNREAD_MIN: Duration = Duration::from_secs(1);
/// How long after a client has closed its half an answer may come without a question whether the client is still there.
const PROBE_AFTER: Duration = Duration::from_millis(500);
/// How often a half-closed connection is looked at.
const PROBE_TICK: Duration = Duration::from_millis(100);
/// Clients skip any number of these before an answer (RFC 9110, section 15.2), whether or not they expect one.
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What is known of a connection, shared by its socket and by those who look for a place.
#[derive(Debug)]
pub(crate) struct Peer {
    begun: Instant,
    known: Mutex<Known>,
    /// Tells the connection to end at once.
    pub(crate) evicted: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    has_spoken: bool,
    /// Since when a write has been waiting for the other end to read.
    unread_since: Option<Instant>,
    /// It was told to go, and will.
    is_leaving: bool,
    /// What the client gets next.
    owed: Owed,
    /// A comment is to be sent between two events.
    wants_comment: bool,
}

/// What a client is waiting for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Owed {
    /// It has not asked for anything.
    #[default]
    Nothing,
    /// The beginning of an answer, to a request of this version.
    Answer(Version),
    /// Further events of a stream.
    Events,
    /// The rest of an answer, which is there.
    Rest,
}

impl Peer {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { begun: Instant::now(), known: Mutex::default(), evicted: Notify::new() })
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its place is better used by somebody else, and how long that has been so.
    pub(crate) fn is_idle(&self) -> Option<Duration> {
        let known = *self.known();
        if known.is_leaving {
            return None;
        }
        let unread = known.unread_since.map(|since| since.elapsed()).filter(|time| *time >= UNREAD_MIN);
        let silent = Some(self.begun.elapsed()).filter(|time| !known.has_spoken && *time >= SILENT_MIN);
        unread.or(silent)
    }

    /// Notes that a request of this version is being worked on.
    pub(crate) fn asks(&self, version: Version) {
        self.known().owed = Owed::Answer(version);
    }

    /// Notes that an answer with these headers begins.
    pub(crate) fn is_answered(&self, headers: &HeaderMap) {
        let is_stream = headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
        self.known().owed = if is_stream { Owed::Events } else { Owed::Rest };
    }
}

/// The body of an answer: between two events it asks, where the socket wants to know, whether somebody reads.
pub(crate) struct Probed {
    body: Body,
    peer: Arc<Peer>,
}

impl Probed {
    /// The body of an answer to `peer`.
    pub(crate) fn new(body: Body, peer: Arc<Peer>) -> Self {
        Self { body, peer }
    }
}

impl hyper::body::Body for Probed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if std::mem::take(&mut self.peer.known().wants_comment) {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(sse::COMMENT.as_bytes())))));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The socket.
pub(crate) struct Timed {
    stream: TcpStream,
    peer: Arc<Peer>,
    stall: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// Since the other end will send nothing more.
    half_closed: Option<HalfClosed>,
}

struct HalfClosed {
    since: Instant,
    is_probed: bool,
    timer: Pin<Box<Sleep>>,
}

impl Timed {
    /// One on which a write may wait for `stall`.
    pub(crate) fn new(stream: TcpStream, peer: Arc<Peer>, stall: Duration) -> Self {
        Self { stream, peer, stall, timer: None, half_closed: None }
    }

    /// What became of a write: one that waits too long fails.
    fn watched<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            if self.timer.take().is_some() {
                self.peer.known().unread_since = None;
            }
            return written;
        }
        let stall = self.stall;
        let timer = self.timer.get_or_insert_with(|| {
            self.peer.known().unread_since = Some(Instant::now());
            Box::pin(sleep(stall))
        });
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the other end does not read"))),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Fails once it is known that nobody waits any more for what is owed.
    fn look_at_other_end(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let owed = self.peer.known().owed;
        if owed == Owed::Nothing {
            return Ok(());
        }
        let half_closed = match &mut self.half_closed {
            Some(half_closed) => half_closed,
            empty => match self.stream.poll_peek(cx, &mut ReadBuf::new(&mut [0])) {
                Poll::Ready(Ok(0)) => empty.insert(HalfClosed {
                    since: Instant::now(),
                    is_probed: false,
                    timer: Box::pin(sleep(PROBE_TICK)),
                }),
                Poll::Ready(Err(error)) => return Err(error),
                // More requests, say.
                Poll::Ready(Ok(_)) | Poll::Pending => return Ok(()),
            },
        };
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        while half_closed.timer.as_mut().poll(cx).is_ready() {
            half_closed.timer = Box::pin(sleep(PROBE_TICK));
        }
        // While a write waits, nothing may come between its bytes, and it is a question itself.
        if half_closed.is_probed || half_closed.since.elapsed() < PROBE_AFTER || self.timer.is_some() {
            return Ok(());
        }
        half_closed.is_probed = true;
        match owed {
            Owed::Answer(version) if version >= Version::HTTP_11 => match self.stream.try_write(INTERIM) {
                Ok(length) if length == INTERIM.len() => Ok(()),
                Ok(_) => Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                Err(error) => Err(error),
            },
            // Older clients know of nothing before the answer. Proxies that speak so close when their client leaves.
            Owed::Answer(_) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the client has left")),
            Owed::Events => {
                self.peer.known().wants_comment = true;
                cx.waker().wake_by_ref();
                Ok(())
            }
            Owed::Rest | Owed::Nothing => Ok(()),
        }
    }
}

impl AsyncRead for Timed {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_ready() && buffer.filled().len() > before {
            self.peer.known().has_spoken = true;
        }
        read
    }
}

impl AsyncWrite for Timed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watched(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.watched(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// What the server of the connection calls whenever it is woken and has nothing left to write.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.look_at_other_end(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Those that are connected.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<Vec<Arc<Peer>>>);

impl Peers {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Peer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, peer: &Arc<Peer>) {
        self.lock().push(Arc::clone(peer));
    }

    pub(crate) fn remove(&self, peer: &Arc<Peer>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, peer));
    }

    /// Ends the connection that has been idle for longest, if one is; says whether one was.
    pub(crate) fn evict_one(&self) -> bool {
        let peers = self.lock();
        let longest = peers.iter().filter_map(|peer| Some((peer.is_idle()?, peer))).max_by_key(|(time, _)| *time);
        let Some((_, peer)) = longest else { return false };
        peer.known().is_leaving = true;
        peer.evicted.notify_one();
        true
    }
}
