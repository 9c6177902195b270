//! What an operator sets.

use std::sync::Arc;

use fulmar_auth::Logins;
use fulmar_http::AnswerSpace;
use jiff::tz::TimeZone;

use crate::alerts::webhook_allowlist::WebhookAllowlist;
use crate::store::sql::Database;
use crate::time::{DAY_MS, Time};

fulmar_text::with_defaults! {
    /// Settings of the platform.
    #[derive(Clone, Debug)]
    pub struct Settings {
        /// Lifetime of a token, in seconds.
        pub token_lifetime_s: u32 = 30 * 24 * 3600,
        /// Requests an account may make a second in the long run; four times as many at once.
        pub max_requests_per_s: u32 = 200,
        /// Bytes of photos that an account may store per day, a day's worth at once.
        pub photo_bytes_per_day: u64 = 512_000_000,
        /// Time for which measurements of sensors are kept.
        pub monitoring: Monitoring = Monitoring::default(),
        /// Whose days and months reports have; of UTC if nothing is set.
        pub time_zone: TimeZone = TimeZone::UTC,
        /// Where everything is kept.
        pub database: Database = Database::File,
        /// Addresses to which webhooks may connect besides public ones.
        pub webhook_allowlist: WebhookAllowlist = WebhookAllowlist::default(),
        /// Space that it may take of the disk.
        pub disk: DiskLimits = DiskLimits::default(),
        /// Memory for answers that clients have not taken yet.
        pub answers: AnswerSpace = AnswerSpace::new(usize::MAX),
        /// Logins by password, to which its users are added.
        pub logins: Arc<Logins> = Arc::default(),
    }
}

/// The time zone of this name in IANA's database, such as `Europe/Berlin`.
///
/// # Errors
/// There is none; the error is a sentence.
pub fn time_zone(name: &str) -> Result<TimeZone, String> {
    let found = TimeZone::get(name);
    found.map_err(|_| {
        format!("{name:?} is no name of a time zone, such as \"Europe/Berlin\" or \"UTC\"")
    })
}

fulmar_text::with_defaults! {
    /// Space that the platform may take of the disk, in bytes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DiskLimits {
        /// SQLite's file, without its write-ahead log.
        pub database: u64 = u64::MAX,
        /// Photos in it.
        pub photos: u64 = u64::MAX,
    }

    /// Time for which measurements of sensors are kept, in ever coarser forms.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Monitoring {
        /// Days single measurements are kept.
        pub raw_days: u32 = 90,
        /// Days their hourly means, least and greatest values are kept.
        pub hour_days: u32 = 730,
        /// Days the daily ones are kept.
        pub day_days: u32 = 3650,
    }
}

impl Monitoring {
    /// Since when single measurements are kept.
    pub(crate) fn raw_since(&self, now: Time) -> Time {
        since(now, self.raw_days)
    }

    /// Since when hourly sums are kept.
    pub(crate) fn hours_since(&self, now: Time) -> Time {
        since(now, self.hour_days)
    }

    /// Since when daily sums are kept.
    pub(crate) fn days_since(&self, now: Time) -> Time {
        since(now, self.day_days)
    }
}

/// The beginning of the day that was `days` days ago.
fn since(now: Time, days: u32) -> Time {
    Time((now.0.div_euclid(DAY_MS) - i64::from(days)) * DAY_MS)
}
