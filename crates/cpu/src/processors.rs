//! Whose turn it is: the teams of a process run one step at a time, in the order in which they ask. Only teams of one
//! thread run side by side.
//!
//! A larger team has a thread for each processor, which spins at its barriers. Two at a time would wait for threads
//! that do not run, and take longer together than one after the other. A team of one thread waits for no other.

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
    /// Who is the next to get a turn.
    now: u64,
    /// Teams that have a turn.
    running: usize,
    /// Whether they are of one thread each.
    are_single: bool,
}

impl Tickets {
    /// Whether a team can have a turn beside those that have one.
    fn have_room(&self, is_single: bool) -> bool {
        self.running == 0 || (self.are_single && is_single)
    }
}

/// A team's turn, for as long as it is kept.
pub(crate) struct Turn<'a>(&'a Processors);

impl Processors {
    const fn new() -> Self {
        let tickets = Tickets { next: 0, now: 0, running: 0, are_single: false };
        Self { tickets: Mutex::new(tickets), given: Condvar::new(), wanted: AtomicUsize::new(0) }
    }

    /// A turn for a team of `threads`. Waits until all who have asked before have begun theirs, and until those that
    /// still run leave room.
    pub(crate) fn turn(&self, threads: usize) -> Turn<'_> {
        let is_single = threads == 1;
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = tickets.next;
        tickets.next += 1;
        while tickets.now != mine || !tickets.have_room(is_single) {
            tickets = self.given.wait(tickets).unwrap_or_else(PoisonError::into_inner);
        }
        tickets.now += 1;
        tickets.running += 1;
        tickets.are_single = is_single;
        if is_single {
            // The next may have room beside it.
            self.given.notify_all();
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
        self.0.tickets.lock().unwrap_or_else(PoisonError::into_inner).running -= 1;
        self.0.wanted.fetch_sub(1, Ordering::SeqCst);
        self.0.given.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Waits until so many have asked for a turn since the beginning.
    fn wait_until_asked(processors: &Processors, count: u64) {
        while processors.tickets.lock().unwrap().next < count {
            thread::yield_now();
        }
    }

    #[test]
    fn who_has_waited_longest_is_next() {
        let (processors, order) = (Processors::new(), Mutex::new(vec![]));
        thread::scope(|scope| {
            let first = processors.turn(2);
            for number in 1..4 {
                let (processors, order) = (&processors, &order);
                scope.spawn(move || {
                    let turn = processors.turn(2);
                    order.lock().unwrap().push(number);
                    drop(turn);
                });
                wait_until_asked(processors, number + 1);
            }
            drop(first);
            // Asks again at once, and waits for all of them.
            let again = processors.turn(2);
            order.lock().unwrap().push(0);
            drop(again);
        });
        assert_eq!(order.into_inner().unwrap(), [1, 2, 3, 0]);
        assert_eq!(processors.wanted(), 0);
    }

    #[test]
    fn teams_of_one_thread_run_side_by_side_and_keep_no_larger_team_waiting() {
        let (processors, order) = (Processors::new(), Mutex::new(vec![]));
        thread::scope(|scope| {
            let singles = [processors.turn(1), processors.turn(1)];
            for (asked, (name, threads)) in [(3, ("large", 2)), (4, ("single", 1))] {
                let (processors, order) = (&processors, &order);
                scope.spawn(move || {
                    let turn = processors.turn(threads);
                    order.lock().unwrap().push(name);
                    drop(turn);
                });
                wait_until_asked(processors, asked);
            }
            let [first, second] = singles;
            drop(first);
            assert!(order.lock().unwrap().is_empty(), "one of them still runs");
            drop(second);
        });
        assert_eq!(order.into_inner().unwrap(), ["large", "single"]);
    }
}
