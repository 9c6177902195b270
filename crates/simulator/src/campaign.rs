//! Plays schedules, one seed after another, and shows the first failure step by step.
//!
//! Environment: `SEED` plays that one alone; `FROM` is the first seed (0), `SECONDS` how long to play
//! (60), `SCHEDULES` how many at most, `STEPS` how many steps each (400).

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::script::{Failure, Played, Script, Setting};
use crate::shrink::shrink;

/// A campaign reports its progress after this many schedules, so that one that is interrupted can be continued.
const TELL_AFTER: u64 = 100_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Plays the schedules that the environment selects, each with `play`, and prints the results. Fails if a schedule
/// fails.
pub fn campaign<S: Setting>(play: impl Fn(&Script<S>) -> Result<Played, Failure>) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let steps = number("STEPS").map_or(400, |steps| steps as usize);
    let (first, most) = match number("SEED") {
        Some(seed) => (seed, 1),
        None => (number("FROM").unwrap_or(0), number("SCHEDULES").unwrap_or(u64::MAX)),
    };
    let start = Instant::now();
    let until = start + Duration::from_secs(number("SECONDS").unwrap_or(60));
    let (mut seed, mut sum) = (first, Played::default());
    while seed - first < most && Instant::now() < until {
        match play(&Script::draw(seed, steps)) {
            Ok(played) => sum.add(played),
            Err(failure) => {
                let seconds = start.elapsed().as_secs_f64();
                println!("found after {} schedules and {seconds:.1} s", seed - first + 1);
                print_failure(seed, steps, &failure, &play);
                return ExitCode::FAILURE;
            }
        }
        seed += 1;
        if (seed - first).is_multiple_of(TELL_AFTER) && seed - first < most {
            println!("{} schedules without a failure. Go on with FROM={seed}.", seed - first);
        }
    }
    println!(
        "{} schedules (seeds {first} to {}) of {steps} steps in {:.0} s: {} messages, {} packets read{}, 0 failures. \
         Go on with FROM={seed}.",
        seed - first,
        seed.saturating_sub(1),
        start.elapsed().as_secs_f64(),
        sum.sent,
        sum.heard,
        sum.troubles(),
    );
    ExitCode::SUCCESS
}

fn print_failure<S: Setting>(
    seed: u64,
    steps: usize,
    failure: &Failure,
    play: &dyn Fn(&Script<S>) -> Result<Played, Failure>,
) {
    println!("seed {seed} fails at step {}: {}", failure.step, failure.what);
    println!("Play it again with SEED={seed} STEPS={steps}. The least of it that fails:");
    if let Some((mut least, failure)) = shrink(&Script::draw(seed, steps), play) {
        println!("  {:?}", least.setup);
        least.aloud = true;
        let story = play(&least).err().map_or_else(Vec::new, |failure| failure.story);
        for (number, line) in story.iter().enumerate() {
            println!("  {number:4}  {line}");
        }
        println!("  {}", failure.what);
    }
}
