//! Properties of a rule's machine: hysteresis, duration, averaging, gaps, and that only event time counts.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::time::SECOND_MS;

const MINUTE: i64 = 60 * SECOND_MS;

fn above(limit: f64, clear: f64) -> Condition {
    let side = LimitSide::Above;
    Condition { side, limit, clear, for_ms: 0, averaging_ms: 0, gap_ms: 15 * MINUTE }
}

/// Values at intervals of a minute.
fn minutes(values: &[f64]) -> Vec<(Time, f64)> {
    (0..).zip(values).map(|(minute, value)| (Time(minute * MINUTE), *value)).collect()
}

/// The minutes at which alerts are raised and cleared, and the peaks.
fn episodes(condition: &Condition, measured: &[(Time, f64)]) -> Vec<(i64, Option<i64>, f64)> {
    let (episodes, _) = replay(condition, measured);
    let minute = |at: Time| at.0 / MINUTE;
    episodes
        .iter()
        .map(|found| (minute(found.raised_at), found.cleared_at.map(minute), found.peak))
        .collect()
}

#[test]
fn it_stays_raised_until_the_value_is_well_below() {
    let found =
        episodes(&above(300.0, 250.0), &minutes(&[300.0, 301.0, 290.0, 310.0, 251.0, 250.0]));
    assert_eq!(found, [(1, Some(5), 310.0)]);
    let side = LimitSide::Below;
    let cold = Condition { side, limit: 5.0, clear: 8.0, ..above(0.0, 0.0) };
    assert_eq!(
        episodes(&cold, &minutes(&[5.0, 4.0, 7.0, 1.0, 8.0, 3.0])),
        [(1, Some(4), 1.0), (5, None, 3.0)]
    );
}

#[test]
fn it_is_raised_only_after_its_duration() {
    let lasting = Condition { for_ms: 2 * MINUTE, ..above(10.0, 10.0) };
    assert_eq!(
        episodes(&lasting, &minutes(&[11.0, 11.0, 9.0, 11.0, 12.0, 11.0])),
        [(5, None, 12.0)]
    );
}

#[test]
fn a_gap_ends_what_had_not_lasted_long_enough() {
    let lasting = Condition { for_ms: 20 * MINUTE, gap_ms: 15 * MINUTE, ..above(10.0, 10.0) };
    let at = |minute: i64| (Time(minute * MINUTE), 11.0);
    assert_eq!(episodes(&lasting, &[at(0), at(15), at(30)]), [(30, None, 11.0)]);
    assert_eq!(episodes(&lasting, &[at(0), at(16), at(30)]), [], "nobody knows of 0 to 16");
    let raised = above(10.0, 10.0);
    assert_eq!(episodes(&raised, &[at(0), at(600)]), [(0, None, 11.0)], "what is raised stays so");
}

#[test]
fn a_mean_is_of_its_window_only() {
    let mean = Condition { averaging_ms: 30 * MINUTE, ..above(100.0, 100.0) };
    let mut values = [0.0; 60];
    values[29] = 2000.0;
    assert_eq!(episodes(&mean, &minutes(&values)), [], "66 in the mean");
    values[20..40].fill(200.0);
    let found = episodes(&mean, &minutes(&values));
    // Of the 30 values until minute 35, 16 are 200; of those until minute 54, 15 are again.
    assert_eq!(found, [(35, Some(54), 20.0 * 200.0 / 30.0)]);
}

#[test]
fn a_mean_says_nothing_before_its_window_was_measured() {
    let mean = Condition { averaging_ms: 15 * MINUTE, gap_ms: 3 * MINUTE, ..above(87.0, 50.0) };
    assert_eq!(episodes(&mean, &minutes(&[500.0])), [], "one value is no mean of 15 minutes");
    assert_eq!(episodes(&mean, &minutes(&[500.0; 14])), []);
    assert_eq!(episodes(&mean, &minutes(&[500.0; 15])), [(14, None, 500.0)], "but one interval");
    // Time without measurements is not covered: the window fills anew.
    let mut cut = minutes(&[500.0; 10]);
    cut.extend((20..40).map(|minute| (Time(minute * MINUTE), 500.0)));
    assert_eq!(episodes(&mean, &cut), [(34, None, 500.0)]);
    // A single value after a silence does not clear an alert either.
    let mut back = minutes(&[500.0; 15]);
    back.extend((600..615).map(|minute| (Time(minute * MINUTE), 0.0)));
    assert_eq!(episodes(&mean, &back), [(14, Some(614), 500.0)]);
    // A sensor that measures less often than the window is long has one value per window.
    let slow = Condition { gap_ms: 90 * MINUTE, ..mean };
    let values = [0, 30, 60].map(|minute| (Time(minute * MINUTE), 500.0));
    assert_eq!(episodes(&slow, &values), [(30, None, 500.0)]);
}

#[test]
fn it_goes_on_where_it_was_stored() {
    let lasting = Condition { for_ms: 2 * MINUTE, averaging_ms: MINUTE, ..above(10.0, 10.0) };
    let mut machine = Machine::default();
    // The first value alone shows nothing about the minute before it.
    let steps: Vec<Step> = minutes(&[10.0, 11.0, 12.0, 13.0, 9.0])
        .into_iter()
        .map(|(at, value)| {
            machine = serde_json::from_str(&serde_json::to_string(&machine).unwrap()).unwrap();
            machine.receive(&lasting, at, value)
        })
        .collect();
    assert_eq!(steps[3], Step::Raised { value: 13.0, peak: 13.0 });
    assert_eq!(steps[4], Step::Cleared { value: 9.0, peak: 13.0 });
}

fn conditions() -> impl Strategy<Value = Condition> {
    let times = (0..5 * MINUTE, 0..30 * MINUTE, MINUTE..30 * MINUTE);
    (any::<bool>(), -50.0..50.0_f64, 0.0..20.0_f64, times).prop_map(
        |(upper, limit, band, (for_ms, averaging_ms, gap_ms))| {
            let (side, clear) = if upper {
                (LimitSide::Above, limit - band)
            } else {
                (LimitSide::Below, limit + band)
            };
            Condition { side, limit, clear, for_ms, averaging_ms, gap_ms }
        },
    )
}

fn series() -> impl Strategy<Value = Vec<(Time, f64)>> {
    let step = (1..20 * MINUTE, -100.0..100.0_f64);
    proptest::collection::vec(step, 0..120).prop_map(|steps| {
        let mut at = 0;
        steps
            .into_iter()
            .map(|(after, value)| {
                at += after;
                (Time(at), value)
            })
            .collect()
    })
}

proptest! {
    /// Raised and cleared alternate; each was beyond its limit when it happened.
    #[test]
    fn raised_and_cleared_alternate(condition in conditions(), measured in series()) {
        let mut machine = Machine::default();
        let mut raised = false;
        for (at, value) in measured {
            match machine.receive(&condition, at, value) {
                Step::Raised { value, .. } => {
                    prop_assert!(!raised && condition.exceeded(value));
                    raised = true;
                }
                Step::Cleared { value, peak } => {
                    prop_assert!(raised && condition.cleared(value));
                    prop_assert!(condition.exceeded(peak));
                    raised = false;
                }
                Step::Same { raised: now } => prop_assert_eq!(now.is_some(), raised),
            }
            prop_assert_eq!(machine.is_raised(), raised);
            prop_assert!(machine.window.len() <= PARTS as usize);
        }
    }

    /// Nothing depends on when measurements arrive: if the state is stored and loaded between any two measurements,
    /// and they arrive in one batch or in many, the result is the same.
    #[test]
    fn arrival_does_not_matter(
        condition in conditions(), measured in series(), cut in 0..120_usize, shift in 0..1000_i64,
    ) {
        let (whole, end) = replay(&condition, &measured);
        let mut machine = Machine::default();
        let mut raised = Vec::new();
        for (number, &(at, value)) in measured.iter().enumerate() {
            if number == cut {
                let stored = serde_json::to_string(&machine).unwrap();
                machine = serde_json::from_str(&stored).unwrap();
            }
            if let Step::Raised { .. } = machine.receive(&condition, at, value) {
                raised.push(at);
            }
        }
        prop_assert_eq!(machine.is_raised(), end.is_raised());
        prop_assert_eq!(raised, whole.iter().map(|found| found.raised_at).collect::<Vec<_>>());
        // Nor on the absolute time, as long as the parts of the window are aligned.
        let shift = shift * (condition.averaging_ms / PARTS).max(1);
        let later: Vec<_> = measured.iter().map(|(at, value)| (at.plus_ms(shift), *value)).collect();
        let (moved, _) = replay(&condition, &later);
        prop_assert_eq!(moved.len(), whole.len());
    }

    /// Without duration and averaging it is exactly hysteresis.
    #[test]
    fn alone_it_is_hysteresis(condition in conditions(), measured in series()) {
        let plain = Condition { for_ms: 0, averaging_ms: 0, ..condition };
        let mut machine = Machine::default();
        let mut expected = false;
        for (at, value) in measured {
            expected = if expected { !plain.cleared(value) } else { plain.exceeded(value) };
            machine.receive(&plain, at, value);
            prop_assert_eq!(machine.is_raised(), expected);
        }
    }

    /// A violation that is too short, by the measurements there are, raises nothing.
    #[test]
    fn nothing_short_is_raised(condition in conditions(), measured in series()) {
        let plain = Condition { averaging_ms: 0, ..condition };
        for found in replay(&plain, &measured).0 {
            let until = measured.iter().filter(|(at, _)| *at <= found.raised_at);
            let since: Vec<_> = until.rev().take_while(|(_, value)| plain.exceeded(*value)).collect();
            let begun = since.last().unwrap().0;
            prop_assert!(found.raised_at.ms_since(begun) >= plain.for_ms);
        }
    }
}
