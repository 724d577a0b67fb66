//! Work that blocks (templates, tokenising, long bodies), on threads where it holds up no connection.

use crate::abandoned::{self, Waits};
use crate::error::ApiError;

/// Runs what blocks (templates, tokenising) where it holds up nobody. Where the client goes away meanwhile, this future
/// is dropped, and the work ends when it asks next whether anybody waits.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let waits = Waits::default();
    let work = waits.watch(move || {
        // It may have waited for a thread.
        abandoned::check()?;
        work()
    });
    let failed = |_| ApiError::internal("internal", "preparing the request failed in a way that is a bug");
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}
