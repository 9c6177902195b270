//! The time of day, as the gateway stores and shows it.

use std::sync::LazyLock;

use fulmar_transport::Clock;

/// Shows the system's time when the gateway starts, and goes on by itself, so that nothing expires when that is set.
static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::start);

/// The gateway's time in milliseconds.
pub(super) fn now_ms() -> u64 {
    CLOCK.now().0
}

/// Time of the system's clock at a moment of the gateway's time, in milliseconds since the Unix epoch.
pub(super) fn wall_ms(at_ms: u64) -> u64 {
    let (wall, now) = (Clock::wall().0, now_ms());
    // Both are cut off to milliseconds.
    if wall.abs_diff(now) < 1000 { at_ms } else { (wall + at_ms).saturating_sub(now) }
}

/// A moment of the gateway's time as RFC 3339 in UTC.
pub(super) fn time_of(at_ms: u64) -> String {
    let nanoseconds = i128::from(wall_ms(at_ms)) * 1_000_000;
    let at = time::OffsetDateTime::from_unix_timestamp_nanos(nanoseconds).ok();
    at.and_then(|at| at.format(&time::format_description::well_known::Rfc3339).ok())
        .unwrap_or_default()
}
