//! A fixed set of schedules of each world in every ordinary test run; `make simulate` continues from there.
#![allow(clippy::unwrap_used)]

mod broker;
mod cluster;
mod gateway;
mod store;

use fulmar_simulator::{Failure, Played, Script, Setting};

/// Plays the schedules of these seeds; what they have done together.
fn play_all<S: Setting>(
    seeds: std::ops::Range<u64>,
    steps: usize,
    play: impl Fn(&Script<S>) -> Result<Played, Failure>,
) -> Played {
    let mut sum = Played::default();
    for seed in seeds {
        match play(&Script::draw(seed, steps)) {
            Ok(played) => sum.add(played),
            Err(failure) => panic!("seed {seed}: {failure:?}; see it with `make simulate`"),
        }
    }
    sum
}

/// A seed always gives the same run.
fn assert_repeats<S: Setting>(play: impl Fn(&Script<S>) -> Result<Played, Failure>) {
    for seed in [3, 1_000_003, 77] {
        let run = || play(&Script::draw(seed, 400)).unwrap();
        assert_eq!(run(), run());
    }
}
