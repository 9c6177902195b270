//! Plays schedules, one seed after another, and shows the first failure step by step.
//!
//! Environment: `SEED` plays that one alone; `FROM` is the first seed (0), `SECONDS` how long to play
//! (60), `SCHEDULES` how many at most, `STEPS` how many steps each (400), `KEEP_GOING` counts failures
//! by kind instead of stopping at the first.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::script::{Failure, Played, Script, Setting};
use crate::shrink::shrink;

/// A campaign reports its progress after this many schedules, so that one that is interrupted can be continued.
const TELL_AFTER: u64 = 100_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Plays the schedules that the environment selects, each with `play`, and prints the results. Fails if any schedule
/// failed.
pub fn campaign<S: Setting>(play: impl Fn(&Script<S>) -> Result<Played, Failure>) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let steps = number("STEPS").map_or(400, |steps| steps as usize);
    if let Some(seed) = number("SEED") {
        return match play(&Script::draw(seed, steps)) {
            Ok(played) => {
                println!("seed {seed}: clean, {} messages, {} packets", played.sent, played.heard);
                ExitCode::SUCCESS
            }
            Err(failure) => show(seed, steps, &failure, &play),
        };
    }
    let first = number("FROM").unwrap_or(0);
    let most = number("SCHEDULES").unwrap_or(u64::MAX);
    let until = Instant::now() + Duration::from_secs(number("SECONDS").unwrap_or(60));
    let keep_going = number("KEEP_GOING").is_some();
    let start = Instant::now();
    let mut kinds: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let (mut seed, mut sum) = (first, Played::default());
    while seed - first < most && Instant::now() < until {
        match play(&Script::draw(seed, steps)) {
            Ok(played) => {
                sum.add(played);
            }
            Err(failure) if keep_going => {
                let words: String =
                    failure.what.chars().filter(|c| !c.is_ascii_digit()).take(60).collect();
                kinds.entry(words).or_insert((seed, 0)).1 += 1;
            }
            Err(failure) => {
                let seconds = start.elapsed().as_secs_f64();
                println!("found after {} schedules and {seconds:.1} s", seed - first + 1);
                return show(seed, steps, &failure, &play);
            }
        }
        seed += 1;
        if (seed - first).is_multiple_of(TELL_AFTER) && seed - first < most {
            let failures: u64 = kinds.values().map(|kind| kind.1).sum();
            println!("{} schedules, {failures} failures. Go on with FROM={seed}.", seed - first);
        }
    }
    for (words, (seed, times)) in &kinds {
        println!("{times} times, first with seed {seed}: {words}");
    }
    let (schedules, seconds) = (seed - first, start.elapsed().as_secs_f64());
    println!(
        "{schedules} schedules (seeds {first} to {}) of {steps} steps in {seconds:.0} s: {} messages, \
         {} packets read{}, {} failures. Go on with FROM={seed}.",
        seed.saturating_sub(1),
        sum.sent,
        sum.heard,
        sum.troubles(),
        kinds.values().map(|kind| kind.1).sum::<u64>()
    );
    if kinds.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show<S: Setting>(
    seed: u64,
    steps: usize,
    failure: &Failure,
    play: &dyn Fn(&Script<S>) -> Result<Played, Failure>,
) -> ExitCode {
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
    ExitCode::FAILURE
}
