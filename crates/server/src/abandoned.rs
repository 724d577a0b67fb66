//! Work whose client has gone. A thread that prepares a request cannot be stopped from without; it asks here whether anybody
//! still waits, between its stages and inside its long ones.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokenizer::Bounds;

use crate::error::ApiError;

thread_local! {
    /// Whether the client has gone for whom this thread works, if it works for one.
    static GONE: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// What the client's side holds: dropped, the client has gone.
#[derive(Debug, Default)]
pub(crate) struct Waits(Arc<AtomicBool>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Waits {
    /// Makes of `work` what ends early once this is dropped, as far as it asks.
    pub(crate) fn watch<T, W: FnOnce() -> T>(&self, work: W) -> impl FnOnce() -> T + use<T, W> {
        let gone = Arc::clone(&self.0);
        move || {
            let _before = Before(GONE.replace(Some(gone)));
            work()
        }
    }
}

/// Restores the thread's former client when it is dropped, after a panic too, because the thread does other work next.
struct Before(Option<Arc<AtomicBool>>);

impl Drop for Before {
    fn drop(&mut self) {
        GONE.replace(self.0.take());
    }
}

/// Whether the client has gone for whom this thread works.
pub(crate) fn is_abandoned() -> bool {
    GONE.with_borrow(|gone| gone.as_ref().is_some_and(|gone| gone.load(Ordering::Acquire)))
}

/// An error, which nobody reads, if the client has gone for whom this thread works.
pub(crate) fn check() -> Result<(), ApiError> {
    if is_abandoned() { Err(ApiError::abandoned()) } else { Ok(()) }
}

/// The bounds of an encoding on this thread.
pub(crate) fn bounds(tokens_max: usize) -> Bounds<'static> {
    Bounds { tokens_max, is_abandoned: &is_abandoned }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_asks_whether_its_own_client_waits() {
        let (one, other) = (Waits::default(), Waits::default());
        assert!(!is_abandoned());
        let inner = other.watch(is_abandoned);
        let outer = one.watch(move || (is_abandoned(), inner(), is_abandoned(), check().is_err()));
        drop(one);
        assert_eq!(outer(), (true, false, true, true));
        assert!(!is_abandoned());
        let panics = other.watch(|| panic!("in the work"));
        drop(other);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert!(!is_abandoned());
    }
}
