//! A fixed set of schedules in every ordinary test run; `make simulate` continues from there.
#![allow(clippy::unwrap_used)]

use fulmar_simulator::{Schedule, play};

const SEEDS: std::ops::Range<u64> = 0..500;

#[test]
fn every_promise_is_kept_in_schedules_drawn_from_seeds() {
    let (mut refused, mut delayed, mut denied) = (0, 0, 0);
    for seed in SEEDS {
        let outcome = play(&Schedule::draw(seed, 400));
        assert!(
            outcome.is_ok(),
            "seed {seed}: {outcome:?}; see it with `make simulate SEED={seed}`"
        );
        let played = outcome.unwrap();
        (refused, delayed) = (refused + played.refused, delayed + played.delayed);
        denied += played.denied;
    }
    assert!(refused > 0 && delayed > 0, "no stall, or no back pressure: {refused}, {delayed}");
    assert!(denied > 100, "liars were denied {denied} times");
}

#[test]
fn a_seed_always_gives_the_same_run() {
    for seed in [3, 1_000_003, 77] {
        let run = || play(&Schedule::draw(seed, 400)).unwrap();
        let first = run();
        assert_eq!(first, run());
        assert!(first.heard > 0 || first.sent == 0);
    }
}
