//! The memory between a request's socket and the engine's queue: bodies, what is read from them, prompts and their ids.
//!
//! A request takes as much of it as its body says that it may need, waits in its key's turn where there is less, and is told
//! to come again if that takes too long. Bodies that are still being received have a quarter of the memory, and what is made
//! of them has the rest: were it all one, bodies alone could fill it, and each would wait for memory that the others hold.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::error::ApiError;

/// Bodies of so few bytes are received without asking: connections are bounded, and who has a short question does not wait
/// behind those who send much.
pub(crate) const SHORT_BODY_BYTES: usize = 64 << 10;
/// A request that needs no more than this waits for no others of its key that need more.
const SMALL_BYTES: usize = 4 << 20;

/// How often a text is in memory at a time before it is ids: as the body's value, as the message that is made of it, with its
/// special tokens marked, as the template is given it, and in the rendered text, which grows by doubling and which the
/// template may write twice.
const TEXT_COPIES: usize = 8;
/// What an item of a list takes: its value, twice because lists grow by doubling, and what is made of it.
const ITEM_BYTES: usize = 2 * size_of::<Value>() + 8;
/// What a member of an object takes: its value and its key, twice because objects grow by doubling, and the key's text.
const MEMBER_BYTES: usize = 2 * (size_of::<Value>() + size_of::<String>() + 16) + 32;
/// What a list or an object takes that holds little: the library makes room for four.
const CONTAINER_BYTES: usize = 4 * size_of::<Value>();

/// What a body holds, counted before it is parsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// Bytes of texts, keys included.
    pub(crate) text_bytes: usize,
    /// Commas: the items of lists and the members of objects, but for the first of each.
    pub(crate) num_items: usize,
    /// Colons.
    pub(crate) num_members: usize,
    /// Opening brackets.
    pub(crate) num_containers: usize,
}

impl Contents {
    /// The memory that a request with this body may take until it is ids, where encoding takes `encoding_bytes` for each
    /// byte of text.
    pub(crate) fn memory(&self, encoding_bytes: usize) -> usize {
        self.text_bytes
            .saturating_mul(TEXT_COPIES + encoding_bytes)
            .saturating_add(self.num_items.saturating_mul(ITEM_BYTES))
            .saturating_add(self.num_members.saturating_mul(MEMBER_BYTES))
            .saturating_add(self.num_containers.saturating_mul(CONTAINER_BYTES))
    }
}

/// The memory of a server.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Of bodies that are being received, or wait to be read.
    pub(crate) bodies: Pool,
    /// Of requests that are being prepared.
    pub(crate) work: Pool,
}

impl Memory {
    pub(crate) fn new(bytes: usize, wait_max: Duration) -> Self {
        let bodies = bytes / 4;
        Self { bodies: Pool::new(bodies, wait_max), work: Pool::new(bytes - bodies, wait_max) }
    }

    /// Bytes that requests hold now.
    pub(crate) fn held(&self) -> usize {
        self.bodies.held() + self.work.held()
    }
}

/// Bytes that are handed out in turns of keys. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    total: usize,
    wait_max: Duration,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    held: usize,
    waiting: BTreeMap<QueuePosition, Waiting>,
    /// When a key's next turn begins, in bytes handed out (start-time fair queueing, as in the engine's queue).
    next: HashMap<u64, u64>,
    /// The latest turn that was taken.
    now: u64,
    arrived: u64,
}

/// Where a request waits: by turn, the small ones first where turns are equal, and by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct QueuePosition {
    turn: u64,
    is_large: bool,
    arrival: u64,
}

#[derive(Debug)]
struct Waiting {
    bytes: usize,
    granted: oneshot::Sender<Permit>,
}

/// Bytes that its holder may use. Dropped, they are free.
#[derive(Debug)]
pub(crate) struct Permit {
    pool: Pool,
    bytes: usize,
}

impl Pool {
    fn new(total: usize, wait_max: Duration) -> Self {
        Self { total, wait_max, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> usize {
        self.state().held
    }

    /// A permit for `bytes`, as soon as they are free and it is the turn of the key with number `key`. Who needs more than
    /// there is gets all of it, alone.
    pub(crate) async fn acquire(&self, key: u64, bytes: usize) -> Result<Permit, ApiError> {
        let bytes = bytes.min(self.total);
        let (position, granted) = {
            let mut state = self.state();
            if state.waiting.is_empty() && bytes <= self.total - state.held {
                state.held += bytes;
                return Ok(Permit { pool: self.clone(), bytes });
            }
            let turn = state.turn(key, bytes);
            state.arrived += 1;
            let (sender, granted) = oneshot::channel();
            let position = QueuePosition { turn, is_large: bytes > SMALL_BYTES, arrival: state.arrived };
            state.waiting.insert(position, Waiting { bytes, granted: sender });
            (position, granted)
        };
        // The one in front may have been too large, and this one small enough.
        self.grant();
        let _leaves = Leaves { pool: self, position };
        match timeout(self.wait_max, granted).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(busy()),
        }
    }

    /// Hands out what is free to those whose turn it is.
    fn grant(&self) {
        let mut granted = Vec::new();
        {
            let mut state = self.state();
            while let Some(first) = state.waiting.first_entry() {
                let bytes = first.get().bytes;
                if bytes > self.total - state.held {
                    break;
                }
                let Some((QueuePosition { turn, .. }, waiting)) = state.waiting.pop_first() else { break };
                state.now = state.now.max(turn);
                state.held += bytes;
                granted.push((waiting.granted, Permit { pool: self.clone(), bytes }));
            }
        }
        // Without the lock: the permit of one who has gone comes back here.
        for (waiting, permit) in granted {
            let _ = waiting.send(permit);
        }
    }
}

impl State {
    fn turn(&mut self, key: u64, bytes: usize) -> u64 {
        if bytes <= SMALL_BYTES {
            return self.now;
        }
        let next = self.next.entry(key).or_default();
        let turn = self.now.max(*next);
        *next = turn.saturating_add(bytes as u64);
        turn
    }
}

/// Takes one who waits no longer out of the queue.
struct Leaves<'a> {
    pool: &'a Pool,
    position: QueuePosition,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        let left = self.pool.state().waiting.remove(&self.position);
        if left.is_some() {
            self.pool.grant();
        }
    }
}

impl Permit {
    /// Bytes more, if they are free now: a request that holds some waits for no others, because they may wait for it.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let mut state = self.pool.state();
        // Who is alone may take all there is.
        let bytes = bytes.min(self.pool.total - self.bytes);
        if bytes > self.pool.total - state.held {
            return Err(busy());
        }
        state.held += bytes;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives back all but `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let freed = self.bytes.saturating_sub(bytes);
        self.bytes -= freed;
        self.pool.state().held -= freed;
        self.pool.grant();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

fn busy() -> ApiError {
    let message =
        "the memory for requests that are being read is taken; try again, or serve with a larger --prepare-memory";
    ApiError::unavailable("busy", message)
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const MIB: usize = 1 << 20;

    /// `docs/serving.md` says these.
    #[test]
    fn weights_are_those_of_the_manual() {
        let weight = |text_bytes, num_items, num_members| {
            Contents { text_bytes, num_items, num_members, num_containers: 0 }.memory(16)
        };
        assert_eq!([weight(1, 0, 0), weight(0, 1, 0), weight(0, 0, 1)], [24, 152, 256]);
    }

    fn pool(wait: Duration) -> Pool {
        Pool::new(100 * MIB, wait)
    }

    /// One who waits, whose name is in the list once it has a permit; it holds that for a moment.
    fn waits(pool: &Pool, key: u64, mib: usize, name: &'static str, order: &Arc<Mutex<Vec<&'static str>>>) {
        let (pool, order) = (pool.clone(), Arc::clone(order));
        tokio::spawn(async move {
            let permit = pool.acquire(key, mib * MIB).await.unwrap();
            order.lock().unwrap().push(name);
            sleep(Duration::from_millis(10)).await;
            drop(permit);
        });
    }

    #[tokio::test]
    async fn keys_take_turns_and_the_small_go_first() {
        let pool = pool(Duration::from_secs(30));
        let order = Arc::default();
        let all = pool.acquire(0, 100 * MIB).await.unwrap();
        for (key, mib, name) in
            [(1, 80, "a1"), (1, 80, "a2"), (1, 80, "a3"), (2, 80, "b1"), (2, 80, "b2"), (1, 1, "small")]
        {
            waits(&pool, key, mib, name, &order);
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(pool.state().waiting.len(), 6);
        drop(all);
        while order.lock().unwrap().len() < 6 {
            sleep(Duration::from_millis(5)).await;
        }
        // The small one begins beside the first; then the first of the other key, and the second of each.
        let mut order = order.lock().unwrap().clone();
        order[..2].sort_unstable();
        assert_eq!(order, ["a1", "small", "b1", "a2", "b2", "a3"]);
    }

    #[tokio::test]
    async fn who_waits_too_long_or_leaves_holds_nothing() {
        let pool = pool(Duration::from_millis(50));
        let held = pool.acquire(0, 60 * MIB).await.unwrap();
        let busy = pool.acquire(0, 60 * MIB).await.unwrap_err();
        assert_eq!((busy.status.as_u16(), busy.code()), (503, Some("busy")));
        assert!(pool.state().waiting.is_empty());
        // One who leaves lets those behind go on.
        let mut leaving = Box::pin(pool.acquire(0, 60 * MIB));
        assert!(timeout(Duration::from_millis(5), &mut leaving).await.is_err());
        let behind = tokio::spawn({
            let pool = pool.clone();
            async move { pool.acquire(1, 40 * MIB).await.map(|permit| permit.bytes) }
        });
        sleep(Duration::from_millis(5)).await;
        drop(leaving);
        assert_eq!(behind.await.unwrap().unwrap(), 40 * MIB);
        drop(held);
        assert_eq!((pool.held(), pool.state().waiting.len()), (0, 0));
    }

    fn panic_in_work() -> ApiError {
        panic!("in the work")
    }

    #[tokio::test]
    async fn work_that_panics_or_is_left_gives_its_permit_back() {
        let pool = pool(Duration::from_secs(10));
        let permit = pool.acquire(0, 60 * MIB).await.unwrap();
        let panics = crate::blocking::blocking(move || {
            let _held = permit;
            Err::<(), _>(panic_in_work())
        });
        assert_eq!(panics.await.unwrap_err().status.as_u16(), 500);
        assert_eq!(pool.held(), 0);
        let permit = pool.acquire(0, 60 * MIB).await.unwrap();
        let mut left = Box::pin(crate::blocking::blocking(move || {
            let _held = permit;
            while !crate::abandoned::is_abandoned() {
                std::thread::sleep(Duration::from_millis(1));
            }
            crate::abandoned::check()
        }));
        assert!(timeout(Duration::from_millis(20), &mut left).await.is_err());
        // As long as the work goes on, its memory is taken.
        assert_eq!(pool.held(), 60 * MIB);
        drop(left);
        pool.acquire(0, 60 * MIB).await.unwrap_or_else(|_| panic!("{} bytes are held", pool.held()));
    }

    #[tokio::test]
    async fn a_permit_grows_while_there_is_room_and_gives_all_back() {
        let pool = pool(Duration::from_millis(20));
        let mut one = pool.acquire(0, 10 * MIB).await.unwrap();
        let other = pool.acquire(0, 50 * MIB).await.unwrap();
        one.grow(40 * MIB).unwrap();
        assert_eq!(one.grow(1).unwrap_err().code(), Some("busy"));
        one.shrink_to(20 * MIB);
        assert_eq!(pool.held(), 70 * MIB);
        drop(other);
        // More than there is: all, alone.
        one.grow(usize::MAX).unwrap();
        assert_eq!(pool.held(), 100 * MIB);
        drop(one);
        assert_eq!(pool.held(), 0);
        assert_eq!(pool.acquire(0, usize::MAX).await.unwrap().bytes, 100 * MIB);
    }
}
