//! A connection's socket with what is known of the other end: whether it ever said anything, and whether it reads.
//!
//! A reader that does not read holds a place and all that was written for it; after the stall time a write fails, whatever
//! is written: an event, a whole answer, a file of the page. Where all places are taken, those who have said nothing and
//! those who do not read give theirs up first.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep};

/// Who has said nothing for so long may have to go.
const SILENT_MIN: Duration = Duration::from_millis(250);
/// Who has not read for so long, too.
const UNREAD_MIN: Duration = Duration::from_secs(1);

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
}

/// The socket.
pub(crate) struct Timed {
    stream: TcpStream,
    peer: Arc<Peer>,
    stall: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Timed {
    /// One on which a write may wait for `stall`.
    pub(crate) fn new(stream: TcpStream, peer: Arc<Peer>, stall: Duration) -> Self {
        Self { stream, peer, stall, timer: None }
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

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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
