//! Use over time, from readings that were taken whenever somebody or the radio came by.
//!
//! Time is cut at full hours of UTC, and at the days and months of the platform's time zone. The register at a cut is that of the reading at this moment
//! or, by linear interpolation, of the readings before and after, if these are not further apart than
//! [`Step::reach_ms`] and the register did not fall between them (a mistake, or another meter of which nobody has entered
//! the exchange). Consumption is the difference of two cuts, in the count that goes on across exchanges, each of which is a
//! reading of both registers. Where it cannot be computed there is a gap, never a guess: there is no extrapolation
//! beyond the last reading. Nothing here depends on the database or the clock.

use jiff::ToSpan as _;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Sample;
use crate::time::{DAY_MS, HOUR_MS, Time};

/// Points of one answer at most: two months of hours, four years of days.
pub(crate) const MAX_POINTS: usize = 1500;

/// Steps into which time is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Step {
    /// Hours.
    Hour,
    /// Days of the platform's time zone.
    Day,
    /// Months of it.
    Month,
}

/// Use in one step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Point {
    /// When the step begins.
    pub(crate) at: Time,
    /// Value of the register then; null where no reading is near enough.
    pub(crate) value: Option<f64>,
    /// The consumption in the step; null where it is unknown.
    pub(crate) consumption: Option<f64>,
}

impl Step {
    /// Greatest distance of two readings for a line between them: three steps, so that one or two that were
    /// missed leave no gap, while a month's readings do not pretend to know its days.
    pub(crate) fn reach_ms(self) -> i64 {
        3 * match self {
            Step::Hour => HOUR_MS,
            Step::Day => DAY_MS,
            Step::Month => 31 * DAY_MS,
        }
    }

    /// Default length of the period that is examined.
    pub(crate) fn usual_ms(self) -> i64 {
        match self {
            Step::Hour => 3 * DAY_MS,
            Step::Day => 60 * DAY_MS,
            Step::Month => 730 * DAY_MS,
        }
    }

    /// When the step that `at` is in begins, and when the next one does.
    fn around(self, at: Time, zone: &TimeZone) -> (Time, Time) {
        let even = |ms: i64| {
            let start = at.0.div_euclid(ms) * ms;
            (Time(start), Time(start + ms))
        };
        match self {
            Step::Hour => even(HOUR_MS),
            // Calendars count years that a `Time` from outside has.
            Step::Day => self.in_calendar(at, zone).unwrap_or_else(|| even(DAY_MS)),
            Step::Month => self.in_calendar(at, zone).unwrap_or_else(|| even(30 * DAY_MS)),
        }
    }

    /// The day or month with `at`; where clocks change, a day has 23 or 25 hours.
    fn in_calendar(self, at: Time, zone: &TimeZone) -> Option<(Time, Time)> {
        let at = jiff::Timestamp::from_millisecond(at.0).ok()?.to_zoned(zone.clone());
        let (first, span) = match self {
            Step::Month => (at.first_of_month().ok()?, 1.month()),
            _ => (at, 1.day()),
        };
        let next = first.date().checked_add(span).ok()?.to_zoned(zone.clone()).ok()?;
        let begin =
            |day: jiff::Zoned| Some(Time(day.start_of_day().ok()?.timestamp().as_millisecond()));
        Some((begin(first)?, begin(next)?))
    }
}

/// The cuts of the steps that `from` to `to` touches, the end of the last one included; `None` for more
/// than [`MAX_POINTS`] steps.
pub(crate) fn cuts(step: Step, from: Time, to: Time, zone: &TimeZone) -> Option<Vec<Time>> {
    let mut cuts = vec![step.around(from, zone).0];
    while let Some(&last) = cuts.last().filter(|last| **last < to) {
        if cuts.len() > MAX_POINTS {
            return None;
        }
        cuts.push(step.around(last, zone).1);
    }
    Some(cuts)
}

/// The count at `at`, from the newest one until then and the oldest from then on.
pub(crate) fn count(
    step: Step,
    at: Time,
    before: Option<Sample>,
    after: Option<Sample>,
) -> Option<f64> {
    let (before, after) = (before?, after?);
    if before.at == at {
        return Some(before.value);
    }
    let apart_ms = after.at.ms_since(before.at);
    if apart_ms <= 0 || apart_ms > step.reach_ms() || after.value < before.value {
        return None;
    }
    let part = at.ms_since(before.at) as f64 / apart_ms as f64;
    Some(tidy(before.value + (after.value - before.value) * part))
}

/// Consumption from cut to cut; empty if there is none at all.
pub(crate) fn points(cuts: &[(Time, Option<f64>)]) -> Vec<Point> {
    let used = |from: Option<f64>, to: Option<f64>| {
        let used = to? - from?;
        (used >= 0.0).then(|| tidy(used))
    };
    let known = cuts.iter().any(|(_, value)| value.is_some());
    let pairs = cuts.windows(2).filter(|_| known);
    let point = |pair: &[(Time, Option<f64>)]| match *pair {
        [(at, value), (_, next)] => Some(Point { at, value, consumption: used(value, next) }),
        _ => None,
    };
    pairs.filter_map(point).collect()
}

/// Without what binary fractions add: no register shows millionths.
pub(super) fn tidy(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Time {
        text.parse().unwrap()
    }

    fn curve(step: Step, from: Time, to: Time, samples: &[Sample]) -> Vec<Point> {
        let cuts = cuts(step, from, to, &TimeZone::UTC).unwrap();
        let shown = cuts.into_iter().map(|cut| {
            let before = samples.iter().rev().find(|sample| sample.at <= cut).copied();
            let after = samples.iter().find(|sample| sample.at >= cut).copied();
            (cut, count(step, cut, before, after))
        });
        points(&shown.collect::<Vec<_>>())
    }

    fn sample(text: &str, value: f64) -> Sample {
        Sample { at: at(text), value }
    }

    #[test]
    fn a_day_is_one_of_the_time_zone_also_where_clocks_change() {
        let zone = crate::time_zone("Europe/Berlin").unwrap();
        let cuts = |step, from, to| super::cuts(step, at(from), at(to), &zone).unwrap();
        let days = cuts(Step::Day, "2026-10-24T23:30:00Z", "2026-10-26T12:00:00Z");
        let expected = ["2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-26T23:00:00Z"];
        assert_eq!(days, expected.map(at));
        assert_eq!(days[1].ms_since(days[0]), 25 * HOUR_MS);
        let months = cuts(Step::Month, "2026-02-28T23:30:00Z", "2026-04-01T00:00:00Z");
        let expected = ["2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z", "2026-04-30T22:00:00Z"];
        assert_eq!(months, expected.map(at));
        assert!(crate::time_zone("Berlin").unwrap_err().contains("Europe/Berlin"));
    }

    #[test]
    fn use_is_counted_between_full_days() {
        let samples = [
            sample("2026-11-01T00:00:00Z", 100.0),
            sample("2026-11-02T12:00:00Z", 103.0),
            sample("2026-11-03T12:00:00Z", 105.0),
        ];
        let points =
            curve(Step::Day, at("2026-11-01T08:00:00Z"), at("2026-11-04T00:00:00Z"), &samples);
        let shown: Vec<_> = points.iter().map(|point| (point.value, point.consumption)).collect();
        assert_eq!(points[0].at, at("2026-11-01T00:00:00Z"));
        assert_eq!(
            shown,
            [(Some(100.0), Some(2.0)), (Some(102.0), Some(2.0)), (Some(104.0), None)],
            "what follows the last reading is not known"
        );
    }

    #[test]
    fn a_gap_stays_a_gap_and_another_meter_uses_nothing_backwards() {
        let samples = [
            sample("2026-11-01T00:00:00Z", 100.0),
            sample("2026-11-02T00:00:00Z", 101.0),
            sample("2026-11-06T00:00:00Z", 109.0),
            sample("2026-11-07T00:00:00Z", 110.0),
            sample("2026-11-08T00:00:00Z", 2.0),
        ];
        let points =
            curve(Step::Day, at("2026-11-01T00:00:00Z"), at("2026-11-08T00:00:00Z"), &samples);
        let used: Vec<_> = points.iter().map(|point| point.consumption).collect();
        assert_eq!(used, [Some(1.0), None, None, None, None, Some(1.0), None]);
        assert_eq!(points[2].value, None);
        assert_eq!(
            curve(Step::Day, at("2020-01-01T00:00:00Z"), at("2020-02-01T00:00:00Z"), &samples),
            [],
            "nothing is known of that time"
        );
    }

    #[test]
    fn months_have_their_own_lengths() {
        let cuts = cuts(
            Step::Month,
            at("2028-01-31T00:00:00Z"),
            at("2028-03-01T00:00:00Z"),
            &TimeZone::UTC,
        )
        .unwrap();
        let wanted = ["2028-01-01T00:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"];
        assert_eq!(cuts, wanted.map(at));
        let (from, to) = (at("9999-12-31T23:00:00Z"), at("9999-12-31T23:59:59Z"));
        for step in [Step::Hour, Step::Day, Step::Month] {
            assert_eq!(
                super::cuts(step, from, to, &TimeZone::UTC).unwrap().len(),
                2,
                "at the end of time"
            );
        }
        let all = super::cuts(
            Step::Month,
            at("0001-01-01T00:00:00Z"),
            at("9999-12-31T00:00:00Z"),
            &TimeZone::UTC,
        );
        assert_eq!(all, None, "more than can be asked for");
    }

    proptest! {
        /// What all steps together used is what the register rose by, and none used less than nothing.
        #[test]
        fn nothing_is_lost_between_steps(
            gaps in prop::collection::vec((1_i64..3 * DAY_MS, 0.0_f64..50.0), 2..60),
        ) {
            let (mut now, mut value) = (at("2026-01-01T00:00:00Z"), 10.0);
            let mut samples = vec![Sample { at: now, value }];
            for (gap, used) in gaps {
                (now, value) = (now.plus_ms(gap), value + used);
                samples.push(Sample { at: now, value });
            }
            let points = curve(Step::Day, samples[0].at, now, &samples);
            prop_assert!(points.iter().filter_map(|point| point.consumption).all(|used| used >= 0.0));
            let sum: f64 = points.iter().filter_map(|point| point.consumption).sum();
            let known: Vec<f64> = points.iter().filter_map(|point| point.value).collect();
            // The last point's step is not over, unless a reading fell on its end.
            let end = if points.last().unwrap().consumption.is_some() { value } else { *known.last().unwrap() };
            prop_assert!((sum - (end - known[0])).abs() < 1e-3, "{sum} {known:?}");
        }
    }
}
