//! The time of day: nothing else in this crate asks for it.

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    use std::time::{SystemTime, UNIX_EPOCH};
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The local time, which some templates tell the model.
#[cfg(not(test))]
pub(crate) fn local_now() -> time::PrimitiveDateTime {
    let now = time::OffsetDateTime::now_local().unwrap_or_else(|_| time::OffsetDateTime::now_utc());
    time::PrimitiveDateTime::new(now.date(), now.time())
}

/// The tests of this crate always have the same day: a template that tells it would give the model another prompt, and
/// the model another answer, every day.
#[cfg(test)]
pub(crate) fn local_now() -> time::PrimitiveDateTime {
    let day = time::Date::from_calendar_date(2026, time::Month::March, 5);
    day.expect("this is a day").midnight()
}

/// The time in UTC, as RFC 3339 writes it.
pub(crate) fn utc_now() -> String {
    written(time::OffsetDateTime::now_utc())
}

/// So many seconds after 1970 began, in UTC, as RFC 3339 writes it.
pub(crate) fn utc_at(unix_time: u64) -> String {
    let at = i64::try_from(unix_time).ok().and_then(|at| time::OffsetDateTime::from_unix_timestamp(at).ok());
    written(at.unwrap_or(time::OffsetDateTime::UNIX_EPOCH))
}

/// A year from now, as RFC 3339 writes it: later than anybody waits for.
pub(crate) fn utc_in_a_year() -> String {
    utc_at(unix_time() + 365 * 24 * 60 * 60)
}

fn written(at: time::OffsetDateTime) -> String {
    at.format(&time::format_description::well_known::Rfc3339).unwrap_or_default()
}
