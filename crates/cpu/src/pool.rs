//! The thread team: persistent workers that run one function together, with a barrier between its phases.
//!
//! A step is one wake-up: every worker runs the whole program and meets the others at a barrier after each op (single
//! program, multiple data), so an op costs one barrier and not a task per row. The caller is worker 0. Workers spin for
//! the next step for [`SPIN_BEFORE_PARK`], then sleep, so that an idle server burns no CPU. Several teams take turns, step
//! by step, and whose turn it is not sleeps at once; teams of one thread run side by side.

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use backend::profile::Part;

use crate::numa::{self, Seat};
use crate::processors::PROCESSORS;
use crate::profile::Lane;

/// How long a worker without work keeps its core. Longer than sampling takes between two decode steps, so that a
/// running generation never pays for a wake-up (tens of microseconds); guessed, not tuned.
const SPIN_BEFORE_PARK: Duration = Duration::from_millis(2);

/// Spins before a waiting thread offers its core to others: on a shared or virtual machine the one that is waited for
/// may not be running. About 50 µs; guessed.
const SPINS_BEFORE_YIELD: u32 = if cfg!(miri) { 4 } else { 1000 };

/// One member of the team, while it runs the function.
pub(crate) struct Worker<'a> {
    /// Its place: 0 is the caller.
    pub(crate) index: usize,
    /// Members of the team.
    pub(crate) count: usize,
    /// The place of its node of memory among those of the team.
    node: usize,
    barrier: &'a Barrier,
    /// Where it notes the time, while steps are recorded.
    lane: Option<&'a Lane>,
}

impl Worker<'_> {
    /// Waits until every worker is here. All writes made before are seen by all after.
    pub(crate) fn barrier(&self) {
        match self.lane {
            None => self.barrier.wait(self.count),
            Some(lane) => {
                lane.end_of(Part::Work);
                self.barrier.wait(self.count);
                lane.end_of(Part::Wait);
            }
        }
    }

    /// The same worker, noting the time in `lane`.
    pub(crate) fn recorded_in<'b>(&'b self, lane: &'b Lane) -> Worker<'b> {
        Worker { lane: Some(lane), ..*self }
    }

    /// Says which instruction begins.
    pub(crate) fn begin(&self, instruction: usize) {
        if let Some(lane) = self.lane {
            lane.begin(instruction);
        }
    }

    /// Says that an instruction has ended without a barrier, which would say so.
    pub(crate) fn end(&self) {
        if let Some(lane) = self.lane {
            lane.end_of(Part::Work);
        }
    }

    /// This worker's contiguous share of `total` equal items.
    pub(crate) fn share(&self, total: usize) -> std::ops::Range<usize> {
        total * self.index / self.count..total * (self.index + 1) / self.count
    }

    /// Items of `0..total` in no fixed order, each to one worker only: whoever is free takes the next, first of the range of
    /// its own node, then of the others'. `turns` has begun anew before the phase and is used by this phase alone.
    pub(crate) fn take_turns<'a>(&self, turns: &'a Turns, total: usize) -> impl Iterator<Item = usize> + 'a {
        let nodes = turns.next.len();
        let first = self.node;
        (0..nodes).flat_map(move |step| {
            let node = (first + step) % nodes;
            let range = turns.range(node, total);
            // The items' results are handed over by the barrier that ends the phase, so the counter itself orders nothing.
            std::iter::from_fn(move || Some(range.start + turns.next[node].0.fetch_add(1, Ordering::Relaxed)))
                .take_while(move |&item| item < range.end)
        })
    }

    /// As [`Worker::take_turns`] with no end, in ascending order, and whatever the node.
    pub(crate) fn take_turns_in_order<'a>(&self, turns: &'a Turns) -> impl Iterator<Item = usize> + 'a {
        std::iter::from_fn(|| Some(turns.next[0].0.fetch_add(1, Ordering::Relaxed)))
    }
}

/// Which items of a phase are next: a counter for each node of memory, and a range of the items for each, so that a node's
/// threads read what lies on their node, as long as there is some.
pub(crate) struct Turns {
    /// How many items of each node's range have been taken, or more where there are no more.
    next: Box<[Padded<AtomicUsize>]>,
    /// Workers of the nodes before each, and of all.
    workers: Arc<[usize]>,
}

impl Turns {
    /// Begins anew.
    pub(crate) fn reset(&self) {
        self.next.iter().for_each(|next| next.0.store(0, Ordering::Relaxed));
    }

    /// The items of a node: as many as are its workers' part.
    fn range(&self, node: usize, total: usize) -> Range<usize> {
        let at = |node: usize| total * self.workers[node] / self.workers[self.next.len()];
        at(node)..at(node + 1)
    }
}

/// The function that the team runs, with its lifetime erased.
type Job = *const (dyn Fn(&Worker<'_>) + Sync);

struct Shared {
    /// Counts steps: a new value is the call to work.
    epoch: Padded<AtomicUsize>,
    /// Workers (without the caller) that have not finished the step.
    running: Padded<AtomicUsize>,
    barrier: Barrier,
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    /// Whether the team has a turn, or waits for one.
    wants: AtomicBool,
    asleep: Vec<AtomicBool>,
    /// The node of each worker.
    nodes: Vec<usize>,
    panic: Mutex<Option<String>>,
}

// SAFETY: `job` is written by the caller alone while no worker runs (`running` is 0) and read by workers only after the
// epoch that announces it; what it points to is `Sync` and outlives the step, because `Team::run` waits for all.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// A persistent team of threads.
pub(crate) struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Workers of the nodes of memory before each, and of all.
    node_workers: Arc<[usize]>,
}

/// A worker panicked; the message is the first panic's.
#[derive(Debug)]
pub(crate) struct WorkerPanic(pub(crate) String);

impl Team {
    /// A team of `count` (the caller and `count - 1` threads), each thread pinned to a processor where `pin` says so, on all
    /// nodes of memory by turns. The calling thread is never pinned: threads that it starts later would inherit that.
    pub(crate) fn new(count: usize, pin: bool) -> std::io::Result<Self> {
        Self::seated(&seats(count, pin))
    }

    /// A team whose members sit so.
    fn seated(seats: &[Seat]) -> std::io::Result<Self> {
        let count = seats.len();
        assert!(count > 0, "a team has at least its caller");
        let nodes = seats.iter().map(|seat| seat.node + 1).max().unwrap_or(1);
        let before = |node| seats.iter().filter(|seat| seat.node < node).count();
        let shared = Arc::new(Shared {
            epoch: Padded(AtomicUsize::new(0)),
            running: Padded(AtomicUsize::new(0)),
            barrier: Barrier::default(),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            wants: AtomicBool::new(false),
            asleep: (1..count).map(|_| AtomicBool::new(false)).collect(),
            nodes: seats.iter().map(|seat| seat.node).collect(),
            panic: Mutex::new(None),
        });
        let mut team =
            Self { shared, threads: Vec::with_capacity(count - 1), node_workers: (0..=nodes).map(before).collect() };
        for (index, &Seat { processor, .. }) in seats.iter().enumerate().skip(1) {
            let shared = Arc::clone(&team.shared);
            let thread = thread::Builder::new().name(format!("cpu-{index}")).spawn(move || {
                if let Some(processor) = processor {
                    pin_to(processor);
                }
                shared.work(index);
            })?;
            team.threads.push(thread);
        }
        Ok(team)
    }

    /// Workers, the caller included.
    pub(crate) fn count(&self) -> usize {
        self.threads.len() + 1
    }

    /// Nodes of memory that it sits on, as far as that is known.
    pub(crate) fn nodes(&self) -> usize {
        self.node_workers.len() - 1
    }

    /// What a phase takes its items from.
    pub(crate) fn turns(&self) -> Turns {
        let next = (0..self.nodes()).map(|_| Padded::default()).collect();
        Turns { next, workers: Arc::clone(&self.node_workers) }
    }

    /// Runs `job` on every worker at once and returns when all have finished. A panic in one releases the others from
    /// their barriers and is returned.
    pub(crate) fn run(&mut self, job: &(dyn Fn(&Worker<'_>) + Sync)) -> Result<(), WorkerPanic> {
        let shared = &*self.shared;
        // Before it is counted among those who want the processors, and until it is no longer: workers that see the count alone
        // would take their own team for another.
        shared.wants.store(true, Ordering::SeqCst);
        let turn = PROCESSORS.turn(self.count());
        let erased: *const (dyn Fn(&Worker<'_>) + Sync + '_) = job;
        // SAFETY: only the lifetime changes, and no worker uses the pointer after `running` is 0, for which we wait.
        let erased: Job = unsafe { std::mem::transmute(erased) };
        // SAFETY: no worker runs between steps, so nobody else touches the cell.
        unsafe { *shared.job.get() = Some(erased) };
        shared.running.0.store(self.threads.len(), Ordering::Relaxed);
        shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        for (asleep, thread) in shared.asleep.iter().zip(&self.threads) {
            // Set before the worker looks at the epoch a last time, so one of the two sees the other.
            if asleep.swap(false, Ordering::SeqCst) {
                thread.thread().unpark();
            }
        }
        shared.run_job(job, 0, self.count());
        let mut wait = Backoff::default();
        while shared.running.0.load(Ordering::Acquire) > 0 {
            wait.pause();
        }
        // SAFETY: all workers have finished.
        unsafe { *shared.job.get() = None };
        drop(turn);
        shared.wants.store(false, Ordering::SeqCst);
        match shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take() {
            None => Ok(()),
            Some(message) => {
                shared.barrier.reset();
                Err(WorkerPanic(message))
            }
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A worker catches every panic of a job, so joining it cannot fail; if it did, there is nobody to tell.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// A thread's life: wait for a step, run it, say so.
    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            self.wait_for_epoch_after(seen, index);
            seen += 1;
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            // SAFETY: the epoch announced it, and it stays until `running` is 0.
            if let Some(job) = unsafe { *self.job.get() } {
                // SAFETY: `Team::run` keeps what it points to alive until `running` is 0.
                self.run_job(unsafe { &*job }, index, self.asleep.len() + 1);
            }
            self.running.0.fetch_sub(1, Ordering::Release);
        }
    }

    fn wait_for_epoch_after(&self, seen: usize, index: usize) {
        let called = || self.epoch.0.load(Ordering::SeqCst) != seen;
        let start = Instant::now();
        loop {
            for _ in 0..SPINS_BEFORE_YIELD {
                if called() {
                    return;
                }
                spin_loop();
            }
            if start.elapsed() > SPIN_BEFORE_PARK || self.others_want() {
                break;
            }
            thread::yield_now();
        }
        let asleep = &self.asleep[index - 1];
        // Said anew each time: a call may come late, for a step that this worker saw by itself and has long done, and who calls
        // takes the word back.
        loop {
            asleep.store(true, Ordering::SeqCst);
            if called() {
                break;
            }
            thread::park();
        }
        asleep.store(false, Ordering::SeqCst);
    }

    /// Whether another team runs, or waits to.
    fn others_want(&self) -> bool {
        PROCESSORS.wanted() > usize::from(self.wants.load(Ordering::SeqCst))
    }

    fn run_job(&self, job: &(dyn Fn(&Worker<'_>) + Sync), index: usize, count: usize) {
        let worker = Worker { index, count, node: self.nodes[index], barrier: &self.barrier, lane: None };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(&worker))) {
            if !panic.is::<Released>() {
                let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(message_of(panic.as_ref()));
            }
            self.barrier.broken.store(true, Ordering::SeqCst);
        }
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a kernel panicked".to_owned())
}

/// What a worker unwinds with when another one panicked.
struct Released;

/// A generation barrier: the last to arrive opens it for all.
#[derive(Default)]
struct Barrier {
    arrived: Padded<AtomicUsize>,
    generation: Padded<AtomicUsize>,
    broken: AtomicBool,
}

impl Barrier {
    fn wait(&self, count: usize) {
        if count == 1 {
            return;
        }
        let generation = self.generation.0.load(Ordering::Relaxed);
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == count {
            self.arrived.0.store(0, Ordering::Relaxed);
            self.generation.0.store(generation.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut wait = Backoff::default();
        while self.generation.0.load(Ordering::Acquire) == generation {
            if self.broken.load(Ordering::Relaxed) {
                // `resume_unwind` prints nothing: the panic was reported where it happened.
                resume_unwind(Box::new(Released));
            }
            wait.pause();
        }
    }

    fn reset(&self) {
        self.arrived.0.store(0, Ordering::SeqCst);
        self.broken.store(false, Ordering::SeqCst);
    }
}

/// Spins, and yields the core now and then.
#[derive(Default)]
struct Backoff(u32);

impl Backoff {
    fn pause(&mut self) {
        self.0 += 1;
        if self.0 < SPINS_BEFORE_YIELD {
            spin_loop();
        } else {
            self.0 = 0;
            thread::yield_now();
        }
    }
}

/// Alone on its cache lines, so that threads spinning on one counter do not slow writers of another.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// Where the members of a team of `count` sit on this machine.
fn seats(count: usize, pin: bool) -> Vec<Seat> {
    if pin { numa::seats(count, &allowed_processors(), &numa::nodes()) } else { vec![Seat::default(); count] }
}

/// Nodes of memory that a team of `count` sits on.
pub(crate) fn nodes_of(count: usize, pin: bool) -> usize {
    seats(count, pin).iter().map(|seat| seat.node + 1).max().unwrap_or(1)
}

/// The processors that this process may run on.
#[cfg(all(target_os = "linux", not(miri)))]
fn allowed_processors() -> Vec<usize> {
    // SAFETY: a `cpu_set_t` is plain bits, for which zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is as large as we say.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return vec![];
    }
    let bits = 8 * size_of::<libc::cpu_set_t>();
    // SAFETY: `processor` is below the bits of the set.
    (0..bits).filter(|&processor| unsafe { libc::CPU_ISSET(processor, &set) }).collect()
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn allowed_processors() -> Vec<usize> {
    vec![]
}

/// Keeps the calling thread on `processor`. Failing to is harmless: the scheduler then moves it as it likes.
#[cfg(all(target_os = "linux", not(miri)))]
fn pin_to(processor: usize) {
    // SAFETY: zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `processor` came from a set of this size.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: the set is as large as we say; 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn pin_to(_processor: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    fn add_one(count: &AtomicUsize) {
        count.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn every_worker_sees_what_the_others_wrote_before_the_barrier() {
        for count in [1, 2, 3, 5] {
            let mut team = Team::new(count, true).unwrap();
            for step in 0..20 {
                let phases = [const { AtomicUsize::new(0) }; 4];
                team.run(&|worker| {
                    for phase in &phases {
                        phase.fetch_add(step + worker.index, Ordering::Relaxed);
                        worker.barrier();
                        let expected = count * step + count * (count - 1) / 2;
                        assert_eq!(phase.load(Ordering::Relaxed), expected);
                    }
                })
                .unwrap();
            }
        }
    }

    #[test]
    fn items_are_handed_out_once_each_way() {
        // On one node, and on nodes of two workers and one.
        for nodes in [[0, 0, 0], [0, 1, 0]] {
            let mut team = Team::seated(&nodes.map(|node| Seat { processor: None, node })).unwrap();
            assert_eq!(team.nodes(), nodes.iter().max().unwrap() + 1);
            let (turns, ordered) = (team.turns(), team.turns());
            let counts: [[AtomicUsize; 10]; 3] = Default::default();
            for _ in 0..2 {
                turns.reset();
                ordered.reset();
                team.run(&|worker| {
                    worker.take_turns(&turns, 10).for_each(|item| add_one(&counts[0][item]));
                    worker.share(10).for_each(|item| add_one(&counts[1][item]));
                    let in_order = worker.take_turns_in_order(&ordered).take_while(|&item| item < 10);
                    in_order.for_each(|item| add_one(&counts[2][item]));
                })
                .unwrap();
            }
            assert!(counts.as_flattened().iter().all(|count| count.load(Ordering::Relaxed) == 2));
        }
    }

    #[test]
    fn a_worker_that_was_woken_for_nothing_hears_the_next_call() {
        let mut team = Team::new(2, false).unwrap();
        team.run(&|_| ()).unwrap();
        let falls_asleep = |team: &Team| {
            let begun = Instant::now();
            while !team.shared.asleep[0].load(Ordering::SeqCst) {
                assert!(begun.elapsed() < Duration::from_secs(30), "it is awake, or nobody would know");
                thread::yield_now();
            }
        };
        falls_asleep(&team);
        // As `run` calls it, when that was kept from its processor until the worker had done the step and slept again.
        assert!(team.shared.asleep[0].swap(false, Ordering::SeqCst));
        team.threads[0].thread().unpark();
        falls_asleep(&team);
        team.run(&|_| ()).unwrap();
    }

    #[test]
    fn a_node_begins_with_its_own_range() {
        let mut team = Team::seated(&[0, 1, 0].map(|node| Seat { processor: None, node })).unwrap();
        let turns = team.turns();
        assert_eq!([0, 1].map(|node| turns.range(node, 9)), [0..6, 6..9]);
        assert_eq!([0, 1].map(|node| turns.range(node, 1)), [0..0, 0..1]);
        let first = [const { AtomicUsize::new(usize::MAX) }; 3];
        team.run(&|worker| {
            let mut mine = worker.take_turns(&turns, 9);
            first[worker.index].store(mine.next().unwrap(), Ordering::Relaxed);
            worker.barrier();
            // What is left goes to whoever asks.
            mine.for_each(drop);
        })
        .unwrap();
        let first = first.map(AtomicUsize::into_inner);
        assert!(first[0] < 2 && first[2] < 2 && first[1] == 6, "{first:?}");
    }

    #[test]
    fn a_panic_in_any_worker_is_reported_and_the_team_works_on() {
        for guilty in 0..3 {
            let mut team = Team::new(3, false).unwrap();
            let error = team
                .run(&|worker| {
                    worker.barrier();
                    assert!(worker.index != guilty, "worker {guilty} fell");
                    worker.barrier();
                })
                .unwrap_err();
            assert!(error.0.contains(&format!("worker {guilty} fell")), "{}", error.0);
            let next = AtomicUsize::new(0);
            team.run(&|worker| {
                worker.barrier();
                next.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
            assert_eq!(next.load(Ordering::Relaxed), 3);
        }
    }

    #[test]
    fn teams_take_turns_and_none_waits_for_the_other_to_be_idle() {
        let inside = AtomicUsize::new(0);
        let run = |worker: &Worker<'_>| {
            if worker.index == 0 {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two teams at a time");
            }
            for _ in 0..4 {
                worker.barrier();
            }
            if worker.index == 0 {
                inside.fetch_sub(1, Ordering::SeqCst);
            }
        };
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut team = Team::new(2, true).unwrap();
                    (0..if cfg!(miri) { 3 } else { 100 }).for_each(|_| team.run(&run).unwrap());
                });
            }
        });
        assert_eq!(inside.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn sleeping_workers_wake_for_the_next_step() {
        let mut team = Team::new(2, false).unwrap();
        for _ in 0..3 {
            thread::sleep(SPIN_BEFORE_PARK * 3);
            let ran = AtomicUsize::new(0);
            team.run(&|_| add_one(&ran)).unwrap();
            assert_eq!(ran.load(Ordering::Relaxed), 2);
        }
    }
}
