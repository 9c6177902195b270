use fulmar_simulator::gateway::{Scenery, play};

#[test]
fn every_acknowledged_reading_is_in_the_platform_once() {
    let scenery = Scenery::default();
    let sum = crate::play_all(0..60, 400, |schedule| play(schedule, &scenery));
    assert!(sum.sent > 500 && sum.heard > 500, "{sum:?}");
}

#[test]
fn a_seed_always_gives_the_same_run() {
    let scenery = Scenery::default();
    crate::assert_repeats(|schedule| play(schedule, &scenery));
}
