//! A few schedules over the real store in every ordinary test run; `make simulate STORE=1` goes on.
#![allow(clippy::unwrap_used)]

use fulmar_baddisk::RealVolume;
use fulmar_simulator::{Schedule, play_on};

#[test]
fn every_promise_is_kept_over_the_real_store() {
    let blank = RealVolume::blank();
    for seed in 0..20 {
        let schedule = Schedule::draw(seed, 200);
        let outcome = play_on(&schedule, || RealVolume::start(schedule.seed, Some(&blank)));
        assert!(outcome.is_ok(), "seed {seed}: {outcome:?}; see it with `make simulate STORE=1`");
    }
}
