//! What happens when a mapped file is truncated by somebody else: one line and an exit code.
//!
//! The handler only speaks for addresses inside a mapping of ours; any other SIGBUS goes to whoever handled it before
//! (the Rust runtime's stack-overflow report, or the system's default).

use std::{
    ffi::{c_int, c_void},
    io,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use memmap2::Mmap;

/// The exit code after a mapped file was truncated: 72 is EX_OSFILE in sysexits.h.
pub const TRUNCATED_EXIT_CODE: i32 = 72;

const MESSAGE: &str = "error: a model file was truncated or became unreadable while in use\n\n\
    hint: do not overwrite a model in place while it runs; write a new file and rename it. Check the file, then start again\n";

/// From now on, reading a part of a mapped file that no longer exists writes one message to stderr and ends the
/// process with [`TRUNCATED_EXIT_CODE`]. Without this, the process dies of the signal. Call it once, at start-up.
pub fn install_sigbus_message() -> io::Result<()> {
    if PREVIOUS.get().is_some() {
        return Ok(());
    }
    // SAFETY: all-zero bytes are a valid `sigaction` (default handler, empty mask), of which every field that matters
    // is set below.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_sigbus as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: as above; this one only receives what was installed before.
    let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null new action only asks for the current one, which is written to a valid `sigaction`.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Known before the handler can run: the handler reads it.
    if PREVIOUS.set(previous).is_err() {
        return Ok(());
    }
    // SAFETY: `on_sigbus` has the signature that SA_SIGINFO asks for and only does what is allowed in a handler.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Async-signal-safe: atomic loads, `write`, `_exit`, `sigaction` and `raise` only.
extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo, and SIGBUS fills its address.
    let address = unsafe { (*info).si_addr() } as usize;
    if RANGES.iter().any(|range| range.contains(address)) {
        // SAFETY: the pointer and length are those of a static string.
        unsafe { libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len()) };
        // SAFETY: ends the process at once, running nothing that could touch the lost pages again.
        unsafe { libc::_exit(TRUNCATED_EXIT_CODE) };
    }
    if let Some(previous) = PREVIOUS.get() {
        // SAFETY: `previous` is what `sigaction` itself gave us.
        unsafe { libc::sigaction(signal, previous, std::ptr::null_mut()) };
    }
    // SAFETY: no preconditions. The signal is blocked while this handler runs: it arrives when we return.
    unsafe { libc::raise(signal) };
}

/// A mapping whose addresses the handler knows.
pub(crate) struct Watched {
    map: Mmap,
    range: Option<&'static Range>,
}

impl Watched {
    pub(crate) fn new(map: Mmap) -> Self {
        let start = map.as_ptr() as usize;
        // With all slots taken the mapping works as well; only the message is lost.
        let range = RANGES.iter().find(|range| range.claim(start, start + map.len()));
        Self { map, range }
    }
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(range) = self.range {
            range.free();
        }
    }
}

/// Gives pages back that lie wholly inside `bytes`, where these are of one of our mappings.
pub(crate) fn release(bytes: &[u8]) {
    // SAFETY: no preconditions; it only reads a constant of the system.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0);
    let start = bytes.as_ptr() as usize;
    let Some(last) = (start + bytes.len()).checked_sub(1) else { return };
    let is_ours = RANGES.iter().any(|range| range.contains(start) && range.contains(last));
    if page == 0 || bytes.is_empty() || !is_ours {
        return;
    }
    let (first, end) = (start.next_multiple_of(page), (last + 1) / page * page);
    if first < end {
        // SAFETY: the borrow of `bytes` keeps its mapping, which is one of ours: shared, read only and of a file, so that a page
        // that is dropped is read again with what the file has. Whole pages inside it are all that is named.
        unsafe { libc::madvise(first as *mut c_void, end - first, libc::MADV_DONTNEED) };
    }
}

/// More files than the largest sharded checkpoint has.
static RANGES: [Range; 1024] = [const { Range { start: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; 1024];

/// The addresses of one mapping; a free slot has `start == 0`, and one being filled has `end == 0`.
struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Range {
    fn claim(&self, start: usize, end: usize) -> bool {
        let claimed = self.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if claimed {
            self.end.store(end, Ordering::Release);
        }
        claimed
    }

    fn free(&self) {
        self.end.store(0, Ordering::Release);
        self.start.store(0, Ordering::Release);
    }

    fn contains(&self, address: usize) -> bool {
        let end = self.end.load(Ordering::Acquire);
        (self.start.load(Ordering::Acquire)..end).contains(&address)
    }
}
