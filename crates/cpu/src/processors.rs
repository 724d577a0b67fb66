//! Whose turn it is: the teams of a process run one step at a time, in the order in which they ask.
//!
//! Each team has a thread for each processor, which spins at its barriers. Two at a time would wait for threads that do
//! not run, and take longer together than one after the other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// The processors of this process.
pub(crate) static PROCESSORS: Processors = Processors::new();

/// A lock that is given to whoever has waited longest. The standard library's goes to whoever comes first when it is free:
/// a team that runs step after step would keep it.
pub(crate) struct Processors {
    tickets: Mutex<Tickets>,
    given: Condvar,
    /// Teams that have a turn or wait for one.
    wanted: AtomicUsize,
}

struct Tickets {
    /// The number of the next who asks.
    next: u64,
    /// Whose turn it is, or is next.
    now: u64,
}

/// A team's turn, for as long as it is kept.
pub(crate) struct Turn<'a>(&'a Processors);

impl Processors {
    const fn new() -> Self {
        Self { tickets: Mutex::new(Tickets { next: 0, now: 0 }), given: Condvar::new(), wanted: AtomicUsize::new(0) }
    }

    /// Waits until all who have asked before have had their turn.
    pub(crate) fn turn(&self) -> Turn<'_> {
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = tickets.next;
        tickets.next += 1;
        while tickets.now != mine {
            tickets = self.given.wait(tickets).unwrap_or_else(PoisonError::into_inner);
        }
        Turn(self)
    }

    /// How many teams run or wait: more than one's own are a reason not to spin.
    pub(crate) fn wanted(&self) -> usize {
        self.wanted.load(Ordering::SeqCst)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.tickets.lock().unwrap_or_else(PoisonError::into_inner).now += 1;
        self.0.wanted.fetch_sub(1, Ordering::SeqCst);
        self.0.given.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn who_has_waited_longest_is_next() {
        let (processors, order) = (Processors::new(), Mutex::new(vec![]));
        thread::scope(|scope| {
            let first = processors.turn();
            for number in 1..4 {
                let (processors, order) = (&processors, &order);
                scope.spawn(move || {
                    let turn = processors.turn();
                    order.lock().unwrap().push(number);
                    drop(turn);
                });
                while processors.wanted() <= number {
                    thread::yield_now();
                }
                // Counted before its ticket is drawn, which the lock is free for.
                while processors.tickets.lock().unwrap().next <= number as u64 {
                    thread::yield_now();
                }
            }
            drop(first);
            // Asks again at once, and waits for all of them.
            let again = processors.turn();
            order.lock().unwrap().push(0);
            drop(again);
        });
        assert_eq!(order.into_inner().unwrap(), [1, 2, 3, 0]);
        assert_eq!(processors.wanted(), 0);
    }
}
