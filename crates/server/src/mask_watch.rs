//! How long a grammar may take to find out which tokens may come next. One that is ambiguous enough takes seconds, and keeps
//! a thread of `masks` from others; a thread looks on, and cancels what takes too long.

use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use llguidance::CancellationHandle;

/// Time for one token of one text. Unoptimised builds, which tests run, take a few times as long.
pub(crate) const TIME_MAX: Duration = Duration::from_millis(if cfg!(debug_assertions) { 1500 } else { 250 });
/// How often the thread looks while something is watched.
const LOOKS: Duration = Duration::from_millis(20);

/// What is under way.
struct Watched {
    number: u64,
    begun: Instant,
    handle: CancellationHandle,
}

#[derive(Default)]
struct Shared {
    next: u64,
    under_way: Vec<Watched>,
}

static SHARED: Mutex<Shared> = Mutex::new(Shared { next: 0, under_way: Vec::new() });
static WAKE: Condvar = Condvar::new();

/// Ends the watch when it is dropped.
pub(crate) struct Watch(u64);

impl Drop for Watch {
    fn drop(&mut self) {
        lock().under_way.retain(|watched| watched.number != self.0);
    }
}

/// Watches over what is about to begin.
pub(crate) fn begin(handle: CancellationHandle) -> Watch {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Without the thread nothing is cancelled, and all else works.
        let _ = std::thread::Builder::new().name("grammar watch".to_owned()).spawn(look);
    });
    let mut shared = lock();
    shared.next += 1;
    let number = shared.next;
    shared.under_way.push(Watched { number, begun: Instant::now(), handle });
    if shared.under_way.len() == 1 {
        WAKE.notify_one();
    }
    Watch(number)
}

/// What the client of a text is told whose grammar took too long.
pub(crate) fn too_complex() -> String {
    format!(
        "it takes longer than {} ms to find out which tokens may come next; ask for a less ambiguous one",
        TIME_MAX.as_millis()
    )
}

fn look() {
    let mut shared = lock();
    loop {
        while shared.under_way.is_empty() {
            shared = WAKE.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
        let late = |watched: &&Watched| watched.begun.elapsed() > TIME_MAX;
        shared.under_way.iter().filter(late).for_each(|watched| watched.handle.cancel());
        drop(shared);
        std::thread::sleep(LOOKS);
        shared = lock();
    }
}

fn lock() -> MutexGuard<'static, Shared> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}
