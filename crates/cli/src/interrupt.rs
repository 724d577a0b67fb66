//! Ctrl-C: the first stops the generation, the second the program.

use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// The exit code of a program that SIGINT ended.
const EXIT_INTERRUPTED: i32 = 130;

/// Installs the handler. Call once, before the first generation.
pub(crate) fn install() {
    on_first(|| {});
}

/// Calls `act` at the first Ctrl-C (or SIGTERM, or SIGHUP); the second ends the program.
pub(crate) fn on_first(act: impl Fn() + Send + 'static) {
    // Where no handler can be installed the default stays: Ctrl-C ends the program, which is an acceptable answer.
    let installed = ctrlc::set_handler(move || {
        if REQUESTED.swap(true, Ordering::SeqCst) {
            std::process::exit(EXIT_INTERRUPTED);
        }
        act();
    });
    if let Err(error) = installed {
        tracing::warn!("no Ctrl-C handler: {error}");
    }
}

/// Whether a stop was asked for since [`reset`].
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

/// Forgets an earlier Ctrl-C: the next one stops what starts now.
pub(crate) fn reset() {
    REQUESTED.store(false, Ordering::SeqCst);
}
