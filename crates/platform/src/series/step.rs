//! Which step a series is shown in.
//!
//! A step that nothing was measured in is shown as a gap, so that the automatic choice is never finer
//! than the sensor measures; and what is no longer kept as measured is shown by the hour or the day.

use crate::settings::Monitoring;
use crate::time::{DAY_MS, HOUR_MS, SECOND_MS, Time};

/// Points of an answer.
pub(crate) const MAX_POINTS: usize = 2000;
/// Points at which the automatic choice aims: about what a chart has room for.
const GOOD_POINTS: i64 = 500;
/// Longest step, in seconds: a year.
pub(crate) const MAX_STEP_S: u32 = 366 * 24 * 3600;

/// Steps people can name, in seconds: up to half an hour; 1, 2, 3, 6 and 12 hours; 1, 2, 5, 7, 14, 28, 56, 182 and 364 days.
const STEPS_S: [i64; 26] = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
    172_800, 432_000, 604_800, 1_209_600, 2_419_200, 4_838_400, 15_724_800, 31_449_600,
];

/// Since when what is kept, in ever coarser forms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetentionStart {
    pub(crate) raw_since: Time,
    pub(crate) hours_since: Time,
}

impl RetentionStart {
    /// By these settings, now.
    pub(crate) fn new(settings: &Monitoring, now: Time) -> RetentionStart {
        RetentionStart {
            raw_since: settings.raw_since(now),
            hours_since: settings.hours_since(now),
        }
    }
}

impl RetentionStart {
    /// The step made coarse enough for what is kept since `from`.
    pub(crate) fn coarsen(self, step_ms: i64, from: Time) -> i64 {
        let least = if from < self.hours_since {
            DAY_MS
        } else if from < self.raw_since {
            HOUR_MS
        } else {
            return step_ms;
        };
        (step_ms + least - 1) / least * least
    }
}

/// The step for that range, in milliseconds, of a sensor that usually measures every `interval_ms`.
pub(crate) fn automatic(
    from: Time,
    until: Time,
    interval_ms: Option<i64>,
    kept: RetentionStart,
) -> i64 {
    let range = until.ms_since(from);
    // Twice the interval, because sensors are not punctual.
    let least = interval_ms.unwrap_or(0).saturating_mul(2).max(range / GOOD_POINTS);
    let steps = STEPS_S.iter().map(|seconds| seconds * SECOND_MS);
    let chosen = steps.clone().find(|step| *step >= least);
    let longest = STEPS_S.iter().max().map_or(DAY_MS, |seconds| seconds * SECOND_MS);
    kept.coarsen(chosen.unwrap_or_else(|| (least + longest - 1) / longest * longest), from)
}

/// The middle one of the intervals between moments, the last of which comes first.
pub(crate) fn usual_interval(times: &[Time]) -> Option<i64> {
    let mut intervals: Vec<i64> =
        times.windows(2).map(|pair| pair[0].ms_since(pair[1])).filter(|ms| *ms > 0).collect();
    intervals.sort_unstable();
    intervals.get(intervals.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: RetentionStart = RetentionStart { raw_since: Time(0), hours_since: Time(0) };

    #[test]
    fn the_automatic_step_fits_range_and_sensor() {
        let hour = |interval_s: i64| {
            automatic(Time(0), Time(HOUR_MS), Some(interval_s * SECOND_MS), ALL) / SECOND_MS
        };
        assert_eq!([hour(1), hour(10), hour(60), hour(600)], [10, 30, 120, 1800]);
        assert_eq!(automatic(Time(0), Time(365 * DAY_MS), Some(10_000), ALL), 86_400_000);
        let young = RetentionStart { raw_since: Time(DAY_MS), hours_since: Time(0) };
        assert_eq!(automatic(Time(0), Time(HOUR_MS), Some(10_000), young), HOUR_MS);
        let old = RetentionStart { raw_since: Time(DAY_MS), hours_since: Time(HOUR_MS) };
        assert_eq!(automatic(Time(0), Time(HOUR_MS), Some(10_000), old), DAY_MS);
    }

    #[test]
    fn the_usual_interval_is_not_misled_by_an_outage() {
        let times = [50, 40, 30, 20, -90_000, -90_010].map(Time);
        assert_eq!(usual_interval(&times), Some(10));
        assert_eq!(usual_interval(&times[..1]), None);
        assert_eq!(usual_interval(&[Time(5), Time(5)]), None);
    }

    proptest! {
        #[test]
        fn automatic_steps_never_give_too_many_points(
            range in 1_i64..100 * 366 * DAY_MS,
            interval in proptest::option::of(1_i64..30 * DAY_MS),
        ) {
            let step = automatic(Time(0), Time(range), interval, ALL);
            prop_assert!(step >= interval.unwrap_or(0));
            prop_assert!(range / step < MAX_POINTS as i64 - 1);
            prop_assert!(step % HOUR_MS == 0 || step < HOUR_MS);
            prop_assert!(step % DAY_MS == 0 || step < DAY_MS);
        }
    }
}
