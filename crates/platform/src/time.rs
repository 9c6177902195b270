//! A moment: milliseconds since 1970, written as RFC 3339 in UTC.

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::store::sql::stored_as;
use crate::text::text_form;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

/// Milliseconds in a second, an hour and a day.
pub(crate) const SECOND_MS: i64 = 1000;
pub(crate) const HOUR_MS: i64 = 3600 * SECOND_MS;
pub(crate) const DAY_MS: i64 = 24 * HOUR_MS;

/// Time by which a device's clock may be ahead.
const MAX_AHEAD_MS: i64 = DAY_MS;

/// A moment, to the millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Time(pub(crate) i64);

impl Time {
    /// What never ends ends then: the last second that RFC 3339 can write.
    pub(crate) const NEVER: Time = Time(253_402_300_799_000);

    /// Now, by the system's clock.
    pub(crate) fn now() -> Time {
        Time::from(SystemTime::now())
    }

    /// Whether it is further ahead of `now` than a device's clock may be.
    pub(crate) fn is_ahead_of(self, now: Time) -> bool {
        self.ms_since(now) > MAX_AHEAD_MS
    }

    /// Later by this much.
    pub(crate) fn plus_ms(self, ms: i64) -> Time {
        Time(self.0.saturating_add(ms))
    }

    /// From `earlier` until this.
    pub(crate) fn ms_since(self, earlier: Time) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl From<SystemTime> for Time {
    fn from(at: SystemTime) -> Time {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        Time(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000_000);
        let at = at.map_err(|_| fmt::Error)?;
        let (date, time) = (at.date(), at.time());
        let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
        let (hour, minute, second, ms) = time.as_hms_milli();
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
    }
}

impl FromStr for Time {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Time, Self::Err> {
        let wrong = "expected a time such as 2026-11-21T12:00:00Z (RFC 3339)";
        let at = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| wrong)?;
        // Rounded towards the past on both sides of 1970.
        let ms = at.unix_timestamp_nanos().div_euclid(1_000_000);
        let ms = i64::try_from(ms).map_err(|_| wrong)?;
        let second = ms.div_euclid(SECOND_MS);
        let in_utc = OffsetDateTime::from_unix_timestamp(second).map_err(|_| wrong)?;
        // A time whose year in UTC does not have four digits could not be written again.
        if (0..=9999).contains(&in_utc.year()) { Ok(Time(ms)) } else { Err(wrong) }
    }
}

text_form!(Time);

impl PartialSchema for Time {
    fn schema() -> RefOr<Schema> {
        let format = SchemaFormat::KnownFormat(KnownFormat::DateTime);
        ObjectBuilder::new().schema_type(Type::String).format(Some(format)).into()
    }
}

impl ToSchema for Time {}

stored_as!(i64: impl<> Time);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc_with_milliseconds() {
        for (text, shown) in [
            ("2026-11-21T12:00:00Z", "2026-11-21T12:00:00.000Z"),
            ("2026-11-21T12:00:00.1239+02:00", "2026-11-21T10:00:00.123Z"),
            ("1960-01-01T00:00:00.1239Z", "1960-01-01T00:00:00.123Z"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(text.parse::<Time>().unwrap().to_string(), shown);
        }
        for wrong in ["", "2026-11-21", "2026-13-01T00:00:00Z", "0000-01-01T00:00:00+23:59"] {
            assert!(wrong.parse::<Time>().is_err(), "{wrong}");
        }
        // Less than a second before the year 0 in UTC.
        assert!("0000-01-01T00:00:59.5+00:01".parse::<Time>().is_err());
    }
}
