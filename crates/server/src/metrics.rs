//! What the server counts: answers and connections, and of each model how its requests fared.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;

use crate::histogram::Histogram;

/// Upper bounds in seconds.
const TTFT_S: &[f64] = &[0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 40.0, 160.0];
const ITL_S: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0];
const E2E_S: &[f64] = &[0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0];
const TOKENS: &[f64] = &[1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0];

/// What has happened to connections and requests, whatever model they were for.
#[derive(Debug, Default)]
pub(crate) struct HttpMetrics(Mutex<HttpCounts>);

/// The counts of [`HttpMetrics`].
#[derive(Debug, Default)]
pub(crate) struct HttpCounts {
    /// Answers by route and status.
    pub(crate) answers: BTreeMap<(String, u16), u64>,
    /// Those that are open.
    pub(crate) connections: u64,
}

/// What has happened to the requests of one model since it was there.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<Counts>);

/// The counts of [`Metrics`].
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) prompt_tokens: u64,
    pub(crate) generated_tokens: u64,
    pub(crate) finished: BTreeMap<&'static str, u64>,
    pub(crate) refused: u64,
    pub(crate) ttft: Histogram,
    pub(crate) itl: Histogram,
    pub(crate) e2e: Histogram,
    /// Parts of that: in the queue, then until the first token, then until the last.
    pub(crate) queue: Histogram,
    pub(crate) prefill: Histogram,
    pub(crate) decode: Histogram,
    pub(crate) request_prompt_tokens: Histogram,
    pub(crate) request_generated_tokens: Histogram,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            prompt_tokens: 0,
            generated_tokens: 0,
            finished: BTreeMap::new(),
            refused: 0,
            ttft: Histogram::new(TTFT_S),
            itl: Histogram::new(ITL_S),
            e2e: Histogram::new(E2E_S),
            queue: Histogram::new(E2E_S),
            prefill: Histogram::new(E2E_S),
            decode: Histogram::new(E2E_S),
            request_prompt_tokens: Histogram::new(TOKENS),
            request_generated_tokens: Histogram::new(TOKENS),
        }
    }
}

impl HttpMetrics {
    /// The counts, which nobody changes as long as they are held.
    pub(crate) fn counts(&self) -> MutexGuard<'_, HttpCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn answered(&self, route: &str, status: StatusCode) {
        *self.counts().answers.entry((route.to_owned(), status.as_u16())).or_default() += 1;
    }

    /// Those that are open.
    #[cfg(test)]
    pub(crate) fn connections(&self) -> u64 {
        self.counts().connections
    }

    pub(crate) fn connected(&self) {
        self.counts().connections += 1;
    }

    pub(crate) fn disconnected(&self) {
        self.counts().connections -= 1;
    }
}

impl Metrics {
    /// The counts, which nobody changes as long as they are held.
    pub(crate) fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine refused a request: its queue is full, or it does not fit.
    pub(crate) fn refused(&self) {
        self.counts().refused += 1;
    }

    pub(crate) fn started(&self, prompt_tokens: usize) {
        let mut counts = self.counts();
        counts.prompt_tokens += prompt_tokens as u64;
        counts.request_prompt_tokens.observe(prompt_tokens as f64);
    }

    pub(crate) fn first_token(&self, time: Duration) {
        let mut counts = self.counts();
        counts.generated_tokens += 1;
        counts.ttft.observe(time.as_secs_f64());
    }

    pub(crate) fn next_token(&self, time: Duration) {
        let mut counts = self.counts();
        counts.generated_tokens += 1;
        counts.itl.observe(time.as_secs_f64());
    }

    pub(crate) fn finished(&self, reasons: impl Iterator<Item = &'static str>, tokens: usize, time: Duration) {
        let mut counts = self.counts();
        reasons.for_each(|reason| *counts.finished.entry(reason).or_default() += 1);
        counts.request_generated_tokens.observe(tokens as f64);
        counts.e2e.observe(time.as_secs_f64());
    }

    /// What a request took in the queue, until its first token, and from there until its last.
    pub(crate) fn phases(&self, queue: Duration, prefill: Duration, decode: Duration) {
        let mut counts = self.counts();
        counts.queue.observe(queue.as_secs_f64());
        counts.prefill.observe(prefill.as_secs_f64());
        counts.decode.observe(decode.as_secs_f64());
    }
}
