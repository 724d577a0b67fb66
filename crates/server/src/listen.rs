//! The router on a socket: connections are counted and timed, and a shutdown waits for requests under way.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::app::{App, ModelPhase};
use crate::security;
use crate::stream_io::{Peer, Peers, Probed, Timed};

/// What is kept of a request that is not whole: twice what its head may have, so that most of those whose head is too
/// long are told its length. Beyond that the answer is a bare 431.
const READ_BYTES_MAX: usize = 2 * security::HEAD_BYTES_MAX;
const HEADERS_MAX: usize = 64;
/// How long a connection waits for a free place before somebody idle has to give one up.
const PLACE_INTERVAL: Duration = Duration::from_millis(10);
/// How many of the idle give up their places at a time.
const EVICTED_AT_A_TIME: usize = 64;
/// How often it is looked whether the engine still lives.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);
/// Time for streams that were told to end to say so, and for a server that has failed to say that.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Asks a server to shut down. Cheap to clone, and may be used from any thread.
#[derive(Clone, Debug)]
pub struct Shutdown(Arc<watch::Sender<bool>>);

impl Default for Shutdown {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Shutdown {
    /// No new request is taken; those under way may end.
    pub fn ask(&self) {
        self.0.send_replace(true);
    }

    async fn asked(&self) {
        turns_true(&mut self.0.subscribe()).await;
    }
}

/// Returns once `flag` is true; never, if whoever would say so has gone.
pub(crate) async fn turns_true(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|flag| *flag).await.is_err() {
        std::future::pending().await
    }
}

/// Why a server has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to, and all requests have ended.
    Drained,
    /// It was asked to, and some requests took too long: they were told so.
    Stopped,
    /// The model cannot be served, or no longer.
    Failed,
}

/// Answers on `listener` until `shutdown` is asked for or nothing can be served any more.
pub async fn serve(app: App, listener: TcpListener, shutdown: Shutdown) -> Ended {
    let router = app.router();
    let places = Arc::new(Semaphore::new(app.inner.options.connections_max));
    let closing = watch::Sender::new(false);
    let mut connections = JoinSet::new();
    let peers = Arc::new(Peers::default());
    let mut told = HashSet::new();
    let failed = loop {
        tokio::select! {
            () = shutdown.asked() => break false,
            () = all_fail(&app, &mut told) => break true,
            Some(_) = connections.join_next() => {}
            Some((stream, place)) = accept(&listener, &places, &peers) => {
                let served = connection(app.clone(), router.clone(), stream, Arc::clone(&peers), closing.subscribe());
                connections.spawn(with_place(served, place));
            }
        }
    };
    if failed && app.has_served() {
        // Probes are told why, and balancers send nobody here any more.
        let farewell = async {
            while let Some((stream, place)) = accept(&listener, &places, &peers).await {
                let served = connection(app.clone(), router.clone(), stream, Arc::clone(&peers), closing.subscribe());
                connections.spawn(with_place(served, place));
            }
        };
        let _ = timeout(LAST_WORDS, farewell).await;
    }
    // In this order: who is refused a connection knows that nothing new is answered on any other.
    app.drain();
    drop(listener);
    closing.send_replace(true);
    let all_end = async { while connections.join_next().await.is_some() {} };
    if failed {
        // All who wait have been told: their streams ended with the engine.
        let _ = timeout(LAST_WORDS, all_end).await;
        return Ended::Failed;
    }
    tokio::pin!(all_end);
    if timeout(app.inner.options.drain_time_max, &mut all_end).await.is_ok() {
        return Ended::Drained;
    }
    app.stop_requests();
    let _ = timeout(LAST_WORDS, all_end).await;
    Ended::Stopped
}

/// Returns once no model answers any more. Of one that has failed while others go on, says so.
async fn all_fail(app: &App, told: &mut HashSet<String>) {
    while app.failure().is_none() {
        for (name, phase) in app.models() {
            if let ModelPhase::Failed(failure) = phase
                && told.insert(name.to_owned())
            {
                tracing::error!("`{name}` answers nobody any more, the others go on: {failure}");
            }
        }
        sleep(WATCH_INTERVAL).await;
    }
}

/// Serves a connection in its place.
async fn with_place(served: impl Future<Output = ()>, place: OwnedSemaphorePermit) {
    served.await;
    drop(place);
}

/// The next connection, once there is a place for it: a free one, or that of somebody who says nothing or does not read.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    peers: &Peers,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let place = loop {
        match timeout(PLACE_INTERVAL, Arc::clone(places).acquire_owned()).await {
            Ok(place) => break place.ok()?,
            // Whoever waits is not seen before it is accepted: so a place is made whether or not somebody does.
            // Several at a time: thousands who say nothing may have come before one who does.
            Err(_) => drop((0..EVICTED_AT_A_TIME).take_while(|_| peers.evict_one()).count()),
        }
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Some((stream, place)),
            Err(error) => {
                // Out of file descriptors, say: others may close some.
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(
    app: App,
    router: Router,
    stream: TcpStream,
    peers: Arc<Peers>,
    mut closing: watch::Receiver<bool>,
) {
    // A token is a few bytes, and should not wait for more of them.
    let _ = stream.set_nodelay(true);
    app.inner.metrics.connected();
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(app.inner.options.header_time_max)
        .max_buf_size(READ_BYTES_MAX)
        // `Timed` tells those who wait with their half closed from those who have left.
        .half_close(true)
        .max_headers(HEADERS_MAX)
        // As other servers write them: some clients look for a name with its capitals, against the standard.
        .title_case_headers(true);
    let peer = Peer::new();
    peers.add(&peer);
    let stream = Timed::new(stream, Arc::clone(&peer), app.inner.options.stall_time_max);
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request: Request<Incoming>| {
        peer.asks(request.version());
        let (answer, peer) = (router.call(request), Arc::clone(&peer));
        async move {
            let answer = answer.await?;
            peer.is_answered(answer.headers());
            Ok::<_, Infallible>(answer.map(|body| Probed::new(body, peer)))
        }
    });
    let served = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = peer.evicted.notified() => Ok(()),
        () = turns_true(&mut closing) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
    peers.remove(&peer);
    app.inner.metrics.disconnected();
}
