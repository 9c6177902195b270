//! Removes steps of a failing schedule until every step left is needed.

use crate::script::{Failure, Played, Script, Setting};

/// The shortest part of `schedule` that still fails, and its failure; `None` if it does not fail at all.
pub(crate) fn shrink<S: Setting>(
    schedule: &Script<S>,
    play: impl Fn(&Script<S>) -> Result<Played, Failure>,
) -> Option<(Script<S>, Failure)> {
    let mut failure = play(schedule).err()?;
    let mut least = schedule.clone();
    least.steps.truncate(failure.step + 1);
    let mut size = least.steps.len().div_ceil(2);
    loop {
        let mut smaller = false;
        let mut at = 0;
        while at < least.steps.len() {
            let mut fewer = least.clone();
            let end = (at + size).min(fewer.steps.len());
            fewer.steps.drain(at..end);
            match play(&fewer) {
                Err(other) if kind(&other) == kind(&failure) => {
                    fewer.steps.truncate(other.step + 1);
                    (least, failure, smaller) = (fewer, other, true);
                }
                _ => at += size,
            }
        }
        if size > 1 {
            size = size.div_ceil(2);
        } else if !smaller {
            return Some((least, failure));
        }
    }
}

/// The kind of a failure: its text without numbers.
fn kind(failure: &Failure) -> String {
    let words = failure.what.split(|c: char| !c.is_alphabetic()).filter(|word| word.len() > 2);
    words.take(6).collect::<Vec<_>>().join(" ")
}
