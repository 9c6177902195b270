//! The time of day, as the gateway stores and shows it.

use fulmar_transport::Clock;

/// Milliseconds since the Unix epoch.
pub(super) fn now_ms() -> u64 {
    Clock::wall().0
}

/// Milliseconds since the Unix epoch as RFC 3339 in UTC.
pub(super) fn time_of(ms: u64) -> String {
    let nanoseconds = i128::from(ms) * 1_000_000;
    let at = time::OffsetDateTime::from_unix_timestamp_nanos(nanoseconds).ok();
    at.and_then(|at| at.format(&time::format_description::well_known::Rfc3339).ok())
        .unwrap_or_default()
}
