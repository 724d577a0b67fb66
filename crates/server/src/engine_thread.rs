//! The thread that owns the engine: takes requests and cancellations between steps, and gives what a step has made to a
//! task that hands it out. To wake those who wait takes a thread that computes longer than one of the runtime's own, and
//! grows with them; so it wakes that task alone.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::{Engine, EngineConfig, EngineError, EngineStats, FinishReason, Output, Request, RequestId, WeightFault};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::options::Options;
use crate::step_clock::{StepClock, StepTimes};

/// What the thread is asked to do.
enum Command {
    /// Take all of these, or none. Outputs come with the place of their request in the list.
    Submit {
        requests: Vec<Request>,
        outputs: UnboundedSender<(usize, Output)>,
        started: Arc<OnceLock<Instant>>,
        reply: oneshot::Sender<Result<Vec<RequestId>, EngineError>>,
    },
    Cancel(RequestId),
    CancelCompletion(RequestId, usize),
    /// Do this between two steps.
    Do(Box<dyn FnOnce(&mut Engine) + Send>),
}

/// How the rest of the server reaches the engine. Cheap to clone; the thread ends with the last of them.
#[derive(Clone, Debug)]
pub(crate) struct EngineHandle {
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
    /// Held by each handle, and by nobody else.
    handles: Arc<()>,
}

#[derive(Debug)]
struct Shared {
    config: EngineConfig,
    /// Where the task that hands out takes things from, until there is one.
    handed: Mutex<Option<UnboundedReceiver<Handed>>>,
    stats: Mutex<EngineStats>,
    times: Mutex<StepTimes>,
    step_time_max: Duration,
    /// Time between two checks of the weights.
    weight_check_pause: Option<Duration>,
    /// When the step that is under way began.
    step_begun: Mutex<Option<Instant>>,
    /// The thread, until somebody waits for its end.
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Why the engine answers nobody any more.
    failure: watch::Sender<Option<EngineFailure>>,
}

/// What ended an engine for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EngineFailure {
    /// Its thread has panicked.
    Bug,
    /// The device fails every step, with this error.
    Lost(Arc<str>),
    /// A step took longer than this, and may never return.
    Stuck(Duration),
    /// The memory that holds the weights no longer holds what it held, as this says.
    WeightsChanged(Arc<str>),
}

impl std::fmt::Display for EngineFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bug => f.write_str("the engine failed in a way that is a bug; restart the server"),
            Self::Lost(error) => write!(
                f,
                "the device is lost, since one call after another fails: {error}; restart the server, and if it fails again, \
                 look at the system's log and the device's own tool (nvidia-smi)"
            ),
            Self::WeightsChanged(what) => {
                write!(f, "{what}; restart the server, and if this comes again, test the memory")
            }
            Self::Stuck(time) => {
                write!(
                    f,
                    "a step took longer than {} s, so the device is taken to be stuck; restart the server",
                    time.as_secs_f64()
                )
            }
        }
    }
}

/// Of the thread; the system gives memory to what is used of it alone.
const STACK_BYTES: usize = 64 << 20;

/// How long the engine must be without work until it goes on with the check of its weights.
const IDLE: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 2000 });

/// How often it is looked whether a step is stuck, in the time that it may take.
const LOOKS: u32 = 8;

/// Does a piece of work in some milliseconds, and says whether there is more.
pub type IdleWork = Box<dyn FnMut() -> bool + Send>;

/// Why the engine gave no answer.
#[derive(Debug)]
pub(crate) enum SubmitError {
    /// It refuses the request.
    Refused(EngineError),
    /// It answers nobody any more.
    Gone(EngineFailure),
}

impl EngineHandle {
    /// Starts the thread, which does `idle_work` while there is no request. A step that takes longer than
    /// [`Options::step_time_max`] ends it all.
    pub(crate) fn start(engine: Engine, idle_work: Option<IdleWork>, options: &Options) -> std::io::Result<Self> {
        let (commands, received) = mpsc::channel();
        let (hand, handed) = unbounded_channel();
        let shared = Arc::new(Shared {
            config: engine.config().clone(),
            handed: Mutex::new(Some(handed)),
            stats: Mutex::new(engine.stats()),
            times: Mutex::default(),
            step_time_max: options.step_time_max,
            weight_check_pause: options.weight_check_pause,
            step_begun: Mutex::default(),
            thread: Mutex::default(),
            failure: watch::Sender::new(None),
        });
        let next_weight_check = Instant::now();
        let thread = EngineThread { engine, hand, shared: Arc::clone(&shared), idle_work, next_weight_check };
        // Grammars go as deep as their rules nest, here too.
        let builder = std::thread::Builder::new().name("engine".to_owned()).stack_size(STACK_BYTES);
        let thread = builder.spawn(move || thread.run(&received))?;
        *shared.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(Self { commands, shared, handles: Arc::new(()) })
    }

    /// Whether there is no other handle: no request is under way.
    pub(crate) fn is_alone(&self) -> bool {
        Arc::strong_count(&self.handles) == 1
    }

    /// The thread, for whoever waits until it has ended and the engine's memory is free: once the last handle is gone.
    pub(crate) fn take_thread(&self) -> Option<JoinHandle<()>> {
        self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn config(&self) -> &EngineConfig {
        &self.shared.config
    }

    /// As of the last step.
    pub(crate) fn stats(&self) -> EngineStats {
        *self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of the steps that have ended.
    pub(crate) fn step_times(&self) -> StepTimes {
        self.shared.times.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why it answers nobody any more, if it does not.
    pub(crate) fn failure(&self) -> Option<EngineFailure> {
        self.shared.failure.borrow().clone()
    }

    /// How long the step that is under way has taken so far.
    pub(crate) fn step_age(&self) -> Duration {
        self.shared.step_begun().map_or(Duration::ZERO, |begun| begun.elapsed())
    }

    /// Has the engine's thread do something between two steps, which wait for it.
    pub(crate) async fn between_steps<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, EngineFailure> {
        let (reply, answer) = oneshot::channel();
        // `send` fails where the caller no longer waits.
        let work = move |engine: &mut Engine| drop(reply.send(work(engine)));
        let gone = || self.failure().unwrap_or(EngineFailure::Bug);
        self.commands.send(Command::Do(Box::new(work))).map_err(|_| gone())?;
        let mut failure = self.shared.failure.subscribe();
        tokio::select! {
            biased;
            answer = answer => answer.map_err(|_| gone()),
            _ = failure.wait_for(Option::is_some) => Err(gone()),
        }
    }

    /// Submits all of `requests`, or none. The thread answers between two steps; where one is stuck, that is the answer.
    pub(crate) async fn submit(&self, requests: Vec<Request>) -> Result<Running, SubmitError> {
        // The first to ask is the first who is known to be where tasks run.
        if let Some(handed) = self.shared.handed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            tokio::spawn(Subscribers::default().serve(handed, Arc::clone(&self.shared)));
        }
        let live = requests.iter().map(|request| request.num_completions).sum();
        let (outputs, received) = unbounded_channel();
        let (reply, answer) = oneshot::channel();
        let started = Arc::default();
        let submitted = Instant::now();
        let command = Command::Submit { requests, outputs, started: Arc::clone(&started), reply };
        let gone = || SubmitError::Gone(self.failure().unwrap_or(EngineFailure::Bug));
        self.commands.send(command).map_err(|_| gone())?;
        let mut failure = self.shared.failure.subscribe();
        let answer = tokio::select! {
            biased;
            answer = answer => answer.map_err(|_| gone())?,
            _ = failure.wait_for(Option::is_some) => return Err(gone()),
        };
        let ids = answer.map_err(SubmitError::Refused)?;
        Ok(Running { ids, live, outputs: received, put_back: None, submitted, started, engine: self.clone() })
    }
}

/// Requests under way. Dropped, they are cancelled: before the next step their blocks are free.
#[derive(Debug)]
pub(crate) struct Running {
    ids: Vec<RequestId>,
    /// Completions that have not ended.
    live: usize,
    outputs: UnboundedReceiver<(usize, Output)>,
    put_back: Option<(usize, Output)>,
    submitted: Instant,
    /// When the first of them left the queue.
    started: Arc<OnceLock<Instant>>,
    engine: EngineHandle,
}

impl Running {
    /// The next output, with the place of its request; nothing once all have ended, or the engine has. Safe to drop
    /// while it waits.
    pub(crate) async fn next(&mut self) -> Option<(usize, Output)> {
        if let Some(next) = self.put_back.take() {
            return Some(next);
        }
        if self.live == 0 {
            return None;
        }
        let next = self.outputs.recv().await?;
        self.live -= usize::from(next.1.finish.is_some());
        Some(next)
    }

    /// Makes this the next output, again: a part of it was dealt with.
    pub(crate) fn put_back(&mut self, place: usize, output: Output) {
        self.put_back = Some((place, output));
    }

    /// When they were submitted, and when the first of them left the queue, if one has.
    pub(crate) fn queued(&self) -> (Instant, Option<Instant>) {
        (self.submitted, self.started.get().copied())
    }

    /// Why nothing more comes, where something is still to come.
    pub(crate) fn failure(&self) -> EngineFailure {
        self.engine.failure().unwrap_or(EngineFailure::Bug)
    }

    /// Whether some completion has not ended.
    pub(crate) fn is_live(&self) -> bool {
        self.live > 0
    }

    /// Ends one completion, of which nothing more comes.
    pub(crate) fn end_completion(&mut self, place: usize, completion: usize) {
        self.live -= 1;
        // Where the engine is gone, so is the completion.
        let _ = self.engine.commands.send(Command::CancelCompletion(self.ids[place], completion));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for &id in self.ids.iter().filter(|_| self.live > 0) {
            let _ = self.engine.commands.send(Command::Cancel(id));
        }
    }
}

impl Shared {
    fn step_begun(&self) -> Option<Instant> {
        *self.step_begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_step_begun(&self, begun: Option<Instant>) {
        *self.step_begun.lock().unwrap_or_else(PoisonError::into_inner) = begun;
    }
}

/// What the engine's thread tells the task that hands out.
#[derive(Debug)]
enum Handed {
    /// Somebody waits for a request's outputs.
    Subscribed(RequestId, Subscriber),
    /// A request has left the queue.
    Started(RequestId, Instant),
    /// What a step has made.
    Outputs(Vec<Output>),
    /// One completion was ended, of which nothing more comes.
    Ended(RequestId),
    /// All were: nobody waits any more.
    Forgotten(RequestId),
}

/// Who waits for a request's outputs.
#[derive(Debug)]
struct Subscriber {
    place: usize,
    outputs: UnboundedSender<(usize, Output)>,
    /// When the first of the requests of its list left the queue.
    started: Arc<OnceLock<Instant>>,
    /// Completions that have not ended.
    live: usize,
}

/// All who wait.
#[derive(Debug, Default)]
struct Subscribers(HashMap<RequestId, Subscriber>);

impl Subscribers {
    /// Hands out until the engine's thread has ended, or is stuck in a step. Then all who wait see their stream end.
    async fn serve(mut self, mut handed: UnboundedReceiver<Handed>, shared: Arc<Shared>) {
        let mut looks = interval((shared.step_time_max / LOOKS).max(Duration::from_millis(1)));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Looks that found the same step under way. They are counted, and no clock is asked, so that a program that was
        // stopped for a while (a laptop that slept, a debugger) does not take that for the device's time.
        let (mut seen, mut count) = (None, 0);
        loop {
            tokio::select! {
                biased;
                handed = handed.recv() => match handed {
                    Some(handed) => self.take(handed),
                    None => return,
                },
                _ = looks.tick() => {
                    let begun = shared.step_begun();
                    count = if begun.is_some() && begun == seen { count + 1 } else { 0 };
                    seen = begun;
                    if count > LOOKS {
                        let failure = EngineFailure::Stuck(shared.step_time_max);
                        // Whoever ends the program, or goes on without this model, says it aloud.
                        tracing::info!(%failure, waiting = self.0.len(), "all requests end");
                        shared.failure.send_replace(Some(failure));
                        return;
                    }
                }
            }
        }
    }

    fn take(&mut self, handed: Handed) {
        match handed {
            Handed::Subscribed(id, subscriber) => {
                self.0.insert(id, subscriber);
            }
            Handed::Started(id, at) => {
                self.0.get(&id).map(|subscriber| subscriber.started.get_or_init(|| at));
            }
            Handed::Outputs(outputs) => outputs.into_iter().for_each(|output| self.hand_out(output)),
            Handed::Ended(id) => self.count_end(id),
            Handed::Forgotten(id) => {
                self.0.remove(&id);
            }
        }
    }

    fn hand_out(&mut self, output: Output) {
        let (id, ends) = (output.request, output.finish.is_some());
        if let Some(FinishReason::Error(failure)) = &output.finish {
            tracing::warn!(request = %id, %failure, "a completion failed");
        }
        let Some(subscriber) = self.0.get(&id) else { return };
        if subscriber.outputs.send((subscriber.place, output)).is_err() {
            // Whoever has gone has told the engine.
            self.0.remove(&id);
        } else if ends {
            self.count_end(id);
        }
    }

    fn count_end(&mut self, id: RequestId) {
        if let Some(subscriber) = self.0.get_mut(&id) {
            subscriber.live -= 1;
            if subscriber.live == 0 {
                self.0.remove(&id);
            }
        }
    }
}

struct EngineThread {
    engine: Engine,
    hand: UnboundedSender<Handed>,
    shared: Arc<Shared>,
    /// What is left to do once, before weights are checked.
    idle_work: Option<IdleWork>,
    /// When the next check of the weights may begin; in the past while one is under way.
    next_weight_check: Instant,
}

impl EngineThread {
    /// Runs until nobody can ask for anything any more, or a bug ends it. Then all who wait see their stream end.
    fn run(mut self, commands: &mpsc::Receiver<Command>) {
        let ended = catch_unwind(AssertUnwindSafe(|| self.serve(commands)));
        if ended.is_err() {
            tracing::info!("the engine failed in a way that is a bug; all requests end");
            self.shared.failure.send_replace(Some(EngineFailure::Bug));
        }
    }

    fn serve(&mut self, commands: &mpsc::Receiver<Command>) {
        let mut clock = StepClock::start();
        let mut room = 0;
        loop {
            if !self.engine.has_work() {
                self.publish_stats();
                match self.next_command(commands) {
                    Some(command) => self.execute(command),
                    None => return,
                }
                clock = StepClock::start();
            }
            commands.try_iter().for_each(|command| self.execute(command));
            let mut outputs = Vec::with_capacity(room);
            self.shared.set_step_begun(Some(Instant::now()));
            self.engine.step_watched(&mut outputs, &mut clock);
            self.shared.set_step_begun(None);
            // Before the outputs: whoever has the first token knows when its request began.
            clock.started.drain(..).for_each(|(id, at)| self.hand(Handed::Started(id, at)));
            room = outputs.len();
            // Before the outputs: whoever has seen an answer's end sees counts that include it.
            self.publish_stats();
            if !outputs.is_empty() {
                self.hand(Handed::Outputs(outputs));
            }
            if let Some(error) = self.engine.lost_device() {
                let failure = EngineFailure::Lost(error.into());
                tracing::info!(%failure, "all requests end");
                self.shared.failure.send_replace(Some(failure));
                return;
            }
            clock.end_step(&mut self.shared.times.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Waits for a command; checks weights meanwhile. `None` once nobody can send one, or the engine has failed.
    fn next_command(&mut self, commands: &mpsc::Receiver<Command>) -> Option<Command> {
        let Some(pause) = self.shared.weight_check_pause else { return commands.recv().ok() };
        let mut wait = IDLE.min(pause).max(self.next_weight_check.saturating_duration_since(Instant::now()));
        loop {
            match commands.recv_timeout(wait) {
                Ok(command) => return Some(command),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(work) = &mut self.idle_work {
                if !work() {
                    self.idle_work = None;
                }
                wait = Duration::ZERO;
                continue;
            }
            self.shared.set_step_begun(Some(Instant::now()));
            let checked = self.engine.check_weights();
            self.shared.set_step_begun(None);
            let failure = match checked {
                Ok(false) => {
                    wait = Duration::ZERO;
                    continue;
                }
                Ok(true) => {
                    (wait, self.next_weight_check) = (pause, Instant::now() + pause);
                    continue;
                }
                // The steps tell whether the device is lost.
                Err(WeightFault::Device(error)) => {
                    tracing::warn!(%error, "the device did not show its weights; they were not checked");
                    (wait, self.next_weight_check) = (pause, Instant::now() + pause);
                    continue;
                }
                Err(WeightFault::Changed(changed)) => EngineFailure::WeightsChanged(changed.to_string().into()),
            };
            tracing::info!(%failure, "all requests end");
            self.shared.failure.send_replace(Some(failure));
            return None;
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Submit { requests, outputs, started, reply } => self.submit(requests, &outputs, &started, reply),
            Command::Cancel(id) => self.forget(id),
            Command::CancelCompletion(id, completion) => {
                if self.engine.cancel_completion(id, completion).is_some() {
                    self.hand(Handed::Ended(id));
                }
            }
            Command::Do(work) => work(&mut self.engine),
        }
    }

    fn submit(
        &mut self,
        requests: Vec<Request>,
        outputs: &UnboundedSender<(usize, Output)>,
        started: &Arc<OnceLock<Instant>>,
        reply: oneshot::Sender<Result<Vec<RequestId>, EngineError>>,
    ) {
        let mut ids = Vec::with_capacity(requests.len());
        for (place, request) in requests.into_iter().enumerate() {
            let live = request.num_completions;
            match self.engine.submit(request) {
                Ok(id) => {
                    let (outputs, started) = (outputs.clone(), Arc::clone(started));
                    self.hand(Handed::Subscribed(id, Subscriber { place, outputs, started, live }));
                    ids.push(id);
                }
                Err(error) => {
                    ids.into_iter().for_each(|id| self.forget(id));
                    // Whoever has gone needs no reason.
                    let _ = reply.send(Err(error));
                    return;
                }
            }
        }
        if let Err(Ok(ids)) = reply.send(Ok(ids)) {
            ids.into_iter().for_each(|id| self.forget(id));
        }
    }

    fn forget(&mut self, id: RequestId) {
        self.hand(Handed::Forgotten(id));
        self.engine.cancel(id);
    }

    /// Where the runtime has ended, nobody waits.
    fn hand(&self, handed: Handed) {
        let _ = self.hand.send(handed);
    }

    fn publish_stats(&self) {
        *self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner) = self.engine.stats();
    }
}

#[cfg(test)]
mod tests {
    use engine::SamplingParams;
    use engine::null::NullExecutable;
    use plan::{KvFormat, KvLayout};

    use super::*;

    /// An engine whose requests have the ids that a subscriber needs, and what it makes of `requests` in each step.
    fn steps(requests: Vec<Request>) -> (Vec<RequestId>, Vec<Vec<Output>>) {
        let kv = KvLayout { format: KvFormat::F32, block_len: 8, num_blocks: 64 };
        let mut engine =
            Engine::new(Box::new(NullExecutable::new(kv, 100)), EngineConfig::new(kv, 64, 100, vec![])).unwrap();
        let ids = requests.into_iter().map(|request| engine.submit(request).unwrap()).collect();
        let mut steps = Vec::new();
        while engine.has_work() {
            steps.push(engine.step());
        }
        (ids, steps)
    }

    fn request(num_completions: usize, max_tokens: usize) -> Request {
        let max_tokens = Some(max_tokens);
        Request { num_completions, max_tokens, ..Request::new(vec![1, 2], SamplingParams::default()) }
    }

    #[test]
    fn nobody_is_kept_who_has_got_all_has_gone_or_has_cancelled() {
        let (ids, steps) = steps(vec![request(2, 3), request(1, 9), request(1, 9), request(2, 3)]);
        let mut subscribers = Subscribers::default();
        let mut received: Vec<_> = (0..ids.len())
            .map(|place| {
                let (outputs, received) = unbounded_channel();
                let started = Arc::default();
                let subscriber = Subscriber { place, outputs, started, live: [2, 1, 1, 2][place] };
                subscribers.take(Handed::Subscribed(ids[place], subscriber));
                Some(received)
            })
            .collect();
        let mut steps = steps.into_iter().map(Handed::Outputs);
        subscribers.take(steps.next().unwrap());
        // The second goes, the third cancels, and the last ends one of its two by itself.
        drop(received[1].take());
        subscribers.take(Handed::Forgotten(ids[2]));
        subscribers.take(Handed::Ended(ids[3]));
        assert_eq!(subscribers.0.len(), 3);
        steps.for_each(|step| subscribers.take(step));
        assert!(subscribers.0.is_empty(), "{subscribers:?}");
        let got = |received: &mut Option<UnboundedReceiver<(usize, Output)>>| {
            std::iter::from_fn(|| received.as_mut()?.try_recv().ok()).map(|(place, _)| place).collect::<Vec<_>>()
        };
        assert_eq!(got(&mut received[0]), [0; 6]);
        assert_eq!(got(&mut received[2]), [2]);
        assert_eq!(got(&mut received[3]).len(), 5);
    }
}
