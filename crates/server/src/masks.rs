//! Threads that find out which tokens grammars allow next, while the device computes the step that chooses among them.
//!
//! A mask takes between ten microseconds and, where a grammar is ambiguous, seconds. `mask_watch` ends what takes too long;
//! here it costs only the text that it belongs to. One thread takes nothing but texts whose last mask was quick, so that
//! slow ones cannot take all threads.

use std::collections::VecDeque;
use std::fmt::{Debug, Formatter};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use engine::{GrammarState, TokenSet};
use llguidance::toktrie::SimpleVob;
use llguidance::{CancellationHandle, Matcher};

use crate::mask_watch;
use crate::quoting::clipped;

/// Characters of the library's message about a grammar, which may repeat the whole grammar.
pub(crate) const PROBLEM_LEN_MAX: usize = 300;

/// Of each thread; the system gives memory to what is used of it alone. Grammars go as deep as their rules nest.
const STACK_BYTES: usize = 64 << 20;
/// A text whose last mask took no longer than this is a quick one.
const QUICK: Duration = Duration::from_millis(if cfg!(debug_assertions) { 300 } else { 5 });

/// Masks that failed in a way that is a bug, since the process began.
static PANICS: AtomicUsize = AtomicUsize::new(0);

static QUEUE: LazyLock<Arc<Queue>> = LazyLock::new(|| {
    let queue: Arc<Queue> = Arc::default();
    let start = |takes_quick_alone| {
        let own = Arc::clone(&queue);
        let thread = thread::Builder::new().name("masks".to_owned()).stack_size(STACK_BYTES);
        let started = thread.spawn(move || own.serve(takes_quick_alone));
        started.inspect_err(|error| tracing::warn!(%error, "no thread for the masks of grammars")).is_ok()
    };
    let available = thread::available_parallelism().map_or(1, usize::from);
    let started = (0..(available / 4).clamp(1, 7)).filter(|_| start(false)).count();
    queue.has_threads.store(started > 0, Ordering::Relaxed);
    if started > 0 {
        start(true);
    }
    queue
});

/// Masks that failed in a way that is a bug, since the process began.
pub(crate) fn num_panics() -> usize {
    PANICS.load(Ordering::Relaxed)
}

/// A text on its way through a grammar.
pub(crate) struct MaskedText(Arc<HeldText>);

/// What the engine's thread and one of those here share of a text.
struct HeldText {
    progress: Mutex<MaskProgress>,
    /// Is told when `progress` becomes known.
    known: Condvar,
    /// Nobody asks any more.
    is_over: AtomicBool,
    /// Ends what is under way, once it has begun.
    handle: Mutex<Option<CancellationHandle>>,
    /// The last mask was a quick one. Of the first nobody knows.
    is_quick: AtomicBool,
}

enum MaskProgress {
    /// Some thread finds out, or will. The token was chosen before it had begun.
    Working {
        then: Option<u32>,
    },
    Known(Box<Matcher>, SimpleVob),
    /// Nothing can be found out any more.
    Failed(String),
}

/// What a thread is to do.
struct Job {
    text: Arc<HeldText>,
    work: Work,
}

enum Work {
    /// Make the state of a text's beginning.
    Start(Box<dyn FnOnce() -> Matcher + Send>),
    /// Take a token.
    Accept(Box<Matcher>, u32),
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<VecDeque<Job>>,
    come: Condvar,
    quick_come: Condvar,
    /// Without them, whoever asks finds out.
    has_threads: AtomicBool,
}

impl MaskedText {
    /// A text that begins where `start` says, which runs on another thread.
    pub(crate) fn new(start: impl FnOnce() -> Matcher + Send + 'static) -> Self {
        let text = Arc::new(HeldText {
            progress: Mutex::new(MaskProgress::Working { then: None }),
            known: Condvar::new(),
            is_over: AtomicBool::new(false),
            handle: Mutex::default(),
            is_quick: AtomicBool::new(false),
        });
        QUEUE.push(Job { text: Arc::clone(&text), work: Work::Start(Box::new(start)) });
        Self(text)
    }

    /// Waits until the mask is known, but not beyond `until`.
    fn wait_for(&self, until: Option<Instant>) -> MutexGuard<'_, MaskProgress> {
        let mut progress = lock(&self.0.progress);
        while matches!(*progress, MaskProgress::Working { .. }) {
            let Some(until) = until else {
                progress = self.0.known.wait(progress).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else { break };
            progress = self.0.known.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        progress
    }
}

impl Debug for MaskedText {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("MaskedText(..)")
    }
}

impl GrammarState for MaskedText {
    fn allow(&mut self, allowed: &mut TokenSet, until: Option<Instant>) -> Result<bool, String> {
        match &*self.wait_for(until) {
            MaskProgress::Working { .. } => Ok(false),
            MaskProgress::Known(_, mask) => {
                allowed.insert_words(mask.as_slice());
                Ok(true)
            }
            MaskProgress::Failed(problem) => Err(problem.clone()),
        }
    }

    fn accept(&mut self, token_id: u32) {
        let mut progress = lock(&self.0.progress);
        match std::mem::replace(&mut *progress, MaskProgress::Working { then: None }) {
            // Where the text could only end, the token that ends it is no part of it.
            MaskProgress::Known(matcher, mask) if matcher.is_stopped() => {
                *progress = MaskProgress::Known(matcher, mask)
            }
            MaskProgress::Known(matcher, _) => {
                drop(progress);
                QUEUE.push(Job { text: Arc::clone(&self.0), work: Work::Accept(matcher, token_id) });
            }
            MaskProgress::Working { .. } => *progress = MaskProgress::Working { then: Some(token_id) },
            failed @ MaskProgress::Failed(_) => *progress = failed,
        }
    }

    fn is_ready(&self) -> bool {
        !matches!(*lock(&self.0.progress), MaskProgress::Working { .. })
    }

    fn wait(&self, until: Option<Instant>) {
        drop(self.wait_for(until));
    }
}

impl Drop for MaskedText {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
        if let Some(handle) = &*lock(&self.0.handle) {
            handle.cancel();
        }
    }
}

impl Queue {
    fn push(&self, job: Job) {
        if !self.has_threads.load(Ordering::Relaxed) {
            job.run();
            return;
        }
        let is_quick = job.text.is_quick.load(Ordering::Relaxed);
        lock(&self.jobs).push_back(job);
        self.come.notify_one();
        if is_quick {
            self.quick_come.notify_one();
        }
    }

    fn serve(&self, takes_quick_alone: bool) {
        let come = if takes_quick_alone { &self.quick_come } else { &self.come };
        let mut jobs = lock(&self.jobs);
        loop {
            let is_for_me = |job: &Job| !takes_quick_alone || job.text.is_quick.load(Ordering::Relaxed);
            match jobs.iter().position(is_for_me).and_then(|place| jobs.remove(place)) {
                Some(job) => {
                    drop(jobs);
                    job.run();
                    jobs = lock(&self.jobs);
                }
                None => jobs = come.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Job {
    fn run(self) {
        let Self { text, work } = self;
        // What the library panics at it says as an error; a copy of its state is made without that.
        if catch_unwind(AssertUnwindSafe(|| text.find_out(work))).is_err() {
            let count = PANICS.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::error!(count, "the mask of a grammar failed in a way that is a bug");
            text.tell(MaskProgress::Failed("it failed in a way that is a bug".to_owned()));
        }
    }
}

impl HeldText {
    /// Goes on until the mask of the next token is known, or nobody asks for it.
    fn find_out(&self, work: Work) {
        let is_over = || self.is_over.load(Ordering::Relaxed);
        if is_over() {
            return;
        }
        let mut made = match work {
            Work::Start(start) => {
                let matcher = start().into_cancellable();
                *lock(&self.handle) = matcher.cancellation_handle();
                Ok(Box::new(matcher))
            }
            Work::Accept(matcher, token_id) => accepted(matcher, token_id),
        };
        while !is_over() {
            let begun = Instant::now();
            let known = made.and_then(|mut matcher| {
                let mask = watched(&mut matcher, Matcher::compute_mask_or_eos)?;
                Ok((matcher, mask))
            });
            self.is_quick.store(begun.elapsed() < QUICK, Ordering::Relaxed);
            let (matcher, mask) = match known {
                Ok(known) => known,
                Err(problem) => return self.tell(MaskProgress::Failed(problem)),
            };
            let mut progress = lock(&self.progress);
            let MaskProgress::Working { then: Some(token_id) } = *progress else {
                *progress = MaskProgress::Known(matcher, mask);
                self.known.notify_all();
                return;
            };
            *progress = MaskProgress::Working { then: None };
            drop(progress);
            made = accepted(matcher, token_id);
        }
    }

    fn tell(&self, found: MaskProgress) {
        *lock(&self.progress) = found;
        self.known.notify_all();
    }
}

/// Behind a token.
fn accepted(mut matcher: Box<Matcher>, token_id: u32) -> Result<Box<Matcher>, String> {
    // Where the text could only end, the token that ends it is no part of it.
    if !matcher.is_stopped() {
        watched(&mut matcher, |matcher| matcher.consume_token(token_id))?;
    }
    Ok(matcher)
}

/// Lets the matcher work, for as long as one token may take.
fn watched<T, E: ToString>(
    matcher: &mut Matcher,
    work: impl FnOnce(&mut Matcher) -> Result<T, E>,
) -> Result<T, String> {
    let watched = matcher.cancellation_handle().map(mask_watch::begin);
    let made = work(matcher);
    drop(watched);
    if matcher.is_cancelled() {
        return Err(mask_watch::too_complex());
    }
    made.map_err(|error| in_words(&error.to_string()))
}

/// Says why a text cannot go on, so that a client can use it: the library's own words are for its authors.
fn in_words(error: &str) -> String {
    let first_line = error.lines().next().unwrap_or_default();
    if first_line.starts_with("NoExtensionBias") {
        return "no text keeps to it; look for a rule that needs itself".to_owned();
    }
    clipped(first_line, PROBLEM_LEN_MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use llguidance::ParserFactory;
    use llguidance::api::TopLevelGrammar;
    use llguidance::toktrie::ApproximateTokEnv;

    use super::*;

    fn matcher(regex: &str) -> Matcher {
        let mut factory = ParserFactory::new_simple(&ApproximateTokEnv::single_byte_env()).unwrap();
        factory.quiet();
        Matcher::new(factory.create_parser(TopLevelGrammar::from_regex(regex)))
    }

    fn allowed(text: &mut MaskedText, until: Option<Instant>) -> Result<Option<String>, String> {
        let mut set = TokenSet::default();
        set.clear(256);
        let is_known = text.allow(&mut set, until)?;
        Ok(is_known.then(|| (0..128).filter(|&id| set.contains(id)).map(|id| id as u8 as char).collect()))
    }

    #[test]
    fn who_asks_too_early_is_told_so_and_who_waits_gets_it() {
        let (release, held) = mpsc::channel::<()>();
        let mut text = MaskedText::new(move || {
            held.recv().unwrap();
            matcher("[ab]x[cd]")
        });
        assert_eq!(allowed(&mut text, Some(Instant::now())), Ok(None));
        assert!(!text.is_ready());
        // A completion that branches off goes on with a token before its own state is there.
        text.accept(u32::from(b'a'));
        assert_eq!(allowed(&mut text, Some(Instant::now() + Duration::from_millis(5))), Ok(None));
        release.send(()).unwrap();
        assert_eq!(allowed(&mut text, None), Ok(Some("x".to_owned())));
        assert!(text.is_ready());
        text.accept(u32::from(b'x'));
        text.wait(None);
        assert_eq!(allowed(&mut text, Some(Instant::now())), Ok(Some("cd".to_owned())));
        text.accept(u32::from(b'e'));
        assert!(allowed(&mut text, None).unwrap_err().contains("token"));
    }

    /// Those that take all slow threads keep a quick text from nothing.
    #[test]
    fn slow_masks_keep_no_quick_text_waiting() {
        let mut quick = MaskedText::new(|| matcher("a{9}"));
        assert_eq!(allowed(&mut quick, None), Ok(Some("a".to_owned())));
        quick.accept(u32::from(b'a'));
        assert_eq!(allowed(&mut quick, None), Ok(Some("a".to_owned())));
        let (releases, mut texts): (Vec<_>, Vec<_>) = (0..32)
            .map(|_| {
                let (release, held) = mpsc::channel::<()>();
                let text = MaskedText::new(move || {
                    // Without a sender it goes on as well.
                    let _ = held.recv();
                    matcher("b")
                });
                (release, text)
            })
            .unzip();
        for _ in 0..6 {
            quick.accept(u32::from(b'a'));
            assert_eq!(allowed(&mut quick, None), Ok(Some("a".to_owned())));
        }
        // Whoever has gone is not worked for: the first few ended, and the rest never began.
        let first = texts.remove(0);
        drop(texts);
        drop(releases);
        assert_eq!(allowed(&mut { first }, None), Ok(Some("b".to_owned())));
    }

    #[test]
    fn a_panic_ends_one_text_and_is_counted() {
        let before = num_panics();
        let mut text = MaskedText::new(|| panic!("as a test"));
        assert!(allowed(&mut text, None).unwrap_err().contains("bug"));
        text.accept(1);
        assert!(allowed(&mut text, None).is_err() && text.is_ready());
        assert!(num_panics() > before);
    }
}
