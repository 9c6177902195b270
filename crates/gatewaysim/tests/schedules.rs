//! A few schedules in every ordinary test run; `make simulate READINGS=1` continues from there.
#![allow(clippy::unwrap_used)]

use fulmar_gatewaysim::{Scenery, Schedule, play};

#[test]
fn every_acknowledged_reading_is_in_the_platform_once() {
    let scenery = Scenery::new();
    for seed in 0..60 {
        let outcome = play(&Schedule::draw(seed, 400), &scenery);
        assert!(
            outcome.is_ok(),
            "seed {seed}: {outcome:?}; see it with `make simulate READINGS=1 SEED={seed}`"
        );
    }
}

#[test]
fn a_seed_always_gives_the_same_run() {
    let scenery = Scenery::new();
    let (mut sent, mut heard) = (0, 0);
    for seed in [3, 1_000_003, 77] {
        let run = || play(&Schedule::draw(seed, 400), &scenery).unwrap();
        let first = run();
        assert_eq!(first, run());
        (sent, heard) = (sent + first.sent, heard + first.heard);
    }
    assert!(sent > 0 && heard > 0);
}
