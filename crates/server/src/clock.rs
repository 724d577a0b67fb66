//! The time of day: nothing else in this crate asks for it.

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    use std::time::{SystemTime, UNIX_EPOCH};
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The local time, which some templates tell the model.
pub(crate) fn local_now() -> time::PrimitiveDateTime {
    let now = time::OffsetDateTime::now_local().unwrap_or_else(|_| time::OffsetDateTime::now_utc());
    time::PrimitiveDateTime::new(now.date(), now.time())
}
