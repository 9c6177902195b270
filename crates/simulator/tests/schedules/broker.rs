use fulmar_simulator::broker::play;

#[test]
fn every_promise_is_kept_in_schedules_drawn_from_seeds() {
    let sum = crate::play_all(0..500, 400, play);
    assert!(sum.refused > 0 && sum.delayed > 0, "no stall, or no back pressure: {sum:?}");
    assert!(sum.denied > 100, "liars were denied {} times", sum.denied);
}

#[test]
fn a_seed_always_gives_the_same_run() {
    crate::assert_repeats(play);
}
