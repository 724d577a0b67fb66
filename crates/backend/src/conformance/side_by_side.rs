//! Work on a list by several threads.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// `work` of each of `items`, in their order, with up to `at_once` of them under way at a time: the calling thread and
/// others each take the next item. No item is begun after one has failed; the error is that of the first in the list,
/// because all before it were begun earlier and are done.
pub fn side_by_side<T: Sync, R: Send, E: Send>(
    items: &[T],
    at_once: usize,
    work: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let take_items = || {
        let mut done = Vec::new();
        while !has_failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { break };
            let result = work(item);
            if result.is_err() {
                has_failed.store(true, Ordering::Relaxed);
            }
            done.push((index, result));
        }
        done
    };
    let mut done = thread::scope(|scope| {
        let others: Vec<_> = (1..at_once.min(items.len())).map(|_| scope.spawn(take_items)).collect();
        let mut done = take_items();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|&(index, _)| index);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::{Barrier, Mutex};

    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items_whichever_thread_made_them() {
        let items: Vec<usize> = (0..100).collect();
        for at_once in [0, 1, 3, 200] {
            let squares = side_by_side(&items, at_once, |item| Ok::<_, ()>(item * item)).unwrap();
            assert!(squares.iter().enumerate().all(|(index, &square)| square == index * index), "{at_once}");
            assert_eq!(squares.len(), items.len());
        }
        assert_eq!(side_by_side(&[(); 0], 4, |()| Ok::<_, ()>(())), Ok(vec![]));
    }

    #[test]
    fn items_are_under_way_at_a_time_on_threads_of_their_own() {
        let (barrier, threads) = (Barrier::new(3), Mutex::new(HashSet::new()));
        let work = |_: &usize| {
            barrier.wait();
            threads.lock().unwrap().insert(thread::current().id());
            Ok::<_, ()>(())
        };
        side_by_side(&[0, 1, 2], 3, work).unwrap();
        assert_eq!(threads.lock().unwrap().len(), 3);
        assert!(threads.lock().unwrap().contains(&thread::current().id()));
    }

    #[test]
    fn the_first_error_in_the_list_is_told_and_ends_the_work() {
        let barrier = Barrier::new(2);
        let begun = AtomicUsize::new(0);
        // Both fail, the later one first.
        let work = |&item: &usize| {
            begun.fetch_add(1, Ordering::Relaxed);
            if item == 0 {
                barrier.wait();
            } else if item == 1 {
                barrier.wait();
                return Err(item);
            }
            thread::yield_now();
            if item == 0 { Err(item) } else { Ok(()) }
        };
        assert_eq!(side_by_side(&(0..1000).collect::<Vec<_>>(), 2, work), Err(0));
        assert!(begun.load(Ordering::Relaxed) < 1000);
    }

    #[test]
    #[should_panic(expected = "item 2")]
    fn a_panic_is_handed_on() {
        let work = |&item: &usize| {
            assert_ne!(item, 2, "item {item}");
            Ok::<_, ()>(())
        };
        let _ = side_by_side(&[0, 1, 2, 3], 2, work);
    }
}
