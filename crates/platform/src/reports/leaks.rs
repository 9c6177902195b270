//! Whether a meter counts without a pause, which a tap, a cistern or a pipe that is open looks like.
//!
//! Examines the [`WINDOW_MS`] before the newest reading, backwards, in stretches from one reading to the newest one
//! that is at least [`STRETCH_MS`] older. Flow is continuous if the register rose in every stretch. Where readings
//! are further apart than [`MAX_STRETCH_MS`], a pause would be missed, so no leak is suspected; the same goes for a
//! register too coarse to move within a stretch. Nothing here depends on the database or the clock.

use super::Sample;
use crate::time::{DAY_MS, HOUR_MS, Time};

/// Time for which a meter must count without a pause. A day has a night, in which homes use nothing for an
/// hour.
pub(crate) const WINDOW_MS: i64 = DAY_MS;
/// The shortest stretch that is looked at: a slow leak does not move the register every minute.
pub(crate) const STRETCH_MS: i64 = HOUR_MS;
/// The longest: readings less dense say nothing of pauses.
pub(crate) const MAX_STRETCH_MS: i64 = 3 * HOUR_MS;

/// Flow without a pause.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Flow {
    /// It has not paused since then, or longer: no more than the window is looked at.
    pub(crate) since: Time,
    /// The least flow of any stretch, in the meter's unit an hour; above zero.
    pub(crate) least_per_hour: f64,
}

/// The flow up to the reading at `last`, if it does not pause. `newest_until` gives the newest reading at
/// or before a moment; it is asked at most once a stretch, and once for the newest.
pub(crate) fn continuous_flow<E>(
    last: Time,
    mut newest_until: impl FnMut(Time) -> Result<Option<Sample>, E>,
) -> Result<Option<Flow>, E> {
    let Some(newest) = newest_until(last)? else { return Ok(None) };
    let (mut later, mut least_per_hour) = (newest, f64::INFINITY);
    while newest.at.ms_since(later.at) < WINDOW_MS {
        let Some(earlier) = newest_until(later.at.plus_ms(-STRETCH_MS))? else { return Ok(None) };
        let stretch_ms = later.at.ms_since(earlier.at);
        let used = later.value - earlier.value;
        if stretch_ms > MAX_STRETCH_MS || used <= 0.0 {
            return Ok(None);
        }
        least_per_hour = least_per_hour.min(used * HOUR_MS as f64 / stretch_ms as f64);
        later = earlier;
    }
    Ok(Some(Flow { since: later.at, least_per_hour }))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    const MINUTE_MS: i64 = 60_000;

    fn judge(samples: &[Sample]) -> Option<Flow> {
        let newest_until = |at: Time| -> Result<Option<Sample>, Infallible> {
            Ok(samples.iter().rev().find(|sample| sample.at <= at).copied())
        };
        let last = samples.last().map_or(Time(0), |sample| sample.at);
        let Ok(flow) = continuous_flow(last, newest_until);
        flow
    }

    /// Readings `gap` minutes apart whose register rises by each of `used`.
    fn rising(gap: i64, used: impl IntoIterator<Item = f64>) -> Vec<Sample> {
        let mut register = 100.0;
        let readings = used.into_iter().enumerate();
        readings
            .map(|(n, used)| {
                register += used;
                Sample { at: Time(n as i64 * gap * MINUTE_MS), value: register }
            })
            .collect()
    }

    #[test]
    fn a_day_without_a_pause_is_suspected_and_any_less_is_not() {
        let day = rising(60, [0.25; 25]);
        assert_eq!(judge(&day), Some(Flow { since: Time(0), least_per_hour: 0.25 }));
        assert_eq!(judge(&day[1..]), None, "less than the window");
        assert_eq!(judge(&[]), None);
        let mut paused = day.clone();
        paused[10].value = paused[9].value;
        assert_eq!(judge(&paused), None, "an hour without use");
        let mut exchanged = day;
        exchanged[20..].iter_mut().for_each(|sample| sample.value -= 100.0);
        assert_eq!(judge(&exchanged), None, "another meter's register");
    }

    #[test]
    fn readings_too_far_apart_say_nothing() {
        assert!(judge(&rising(180, [1.0; 9])).is_some(), "every three hours is enough");
        assert_eq!(judge(&rising(181, [1.0; 40])), None);
        assert_eq!(judge(&rising(24 * 60, [1.0; 40])), None, "once a day is not");
    }

    #[test]
    fn a_slow_leak_need_not_move_the_register_every_minute() {
        let used = (0..25 * 60).map(|minute| if minute % 45 == 0 { 0.001 } else { 0.0 });
        assert!(judge(&rising(1, used)).is_some());
    }

    proptest! {
        /// What rises within every hour for a day and a stretch is found, however readings are spread.
        #[test]
        fn what_never_pauses_is_found(
            gaps in prop::collection::vec(1_i64..=60, 1600),
            used in 0.001_f64..10.0,
        ) {
            let mut at = 0;
            let samples: Vec<Sample> = gaps.iter().enumerate().map(|(n, gap)| {
                at += gap * MINUTE_MS;
                Sample { at: Time(at), value: n as f64 * used }
            }).collect();
            prop_assert!(judge(&samples).is_some());
        }

        /// Rest as long as two of the longest stretches cannot hide between readings.
        #[test]
        fn what_rests_is_not_suspected(
            gap in 1_i64..=180,
            begin in 0_i64..18 * 60,
            used in prop::collection::vec(0.0_f64..10.0, 1500),
        ) {
            let window = 24 * 60;
            let count = usize::try_from(window / gap + 1).unwrap_or(1);
            let rests = |n: usize| (begin..begin + 6 * 60 + gap).contains(&(n as i64 * gap));
            let used = used.into_iter().take(count).enumerate();
            let samples = rising(gap, used.map(|(n, used)| if rests(n) { 0.0 } else { used }));
            prop_assert_eq!(judge(&samples), None);
        }
    }
}
