//! Which dropped messages the log names. A client causes one with each publication, with a topic of up to 64 KiB: within
//! a period, the first are named and the rest is counted. No clock.

use std::time::{Duration, Instant};

/// Messages that the log names within a period.
const NAMED: u32 = 10;
const PERIOD: Duration = Duration::from_secs(60);
/// Characters of a topic that the log contains.
const MAX_TOPIC_CHARS: usize = 256;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct DropLog {
    named: u32,
    more: usize,
    /// The end of the period, which begins with the first message.
    until: Option<Instant>,
}

impl DropLog {
    /// A message is dropped. Returns whether the log names it.
    pub(super) fn names(&mut self, now: Instant) -> bool {
        self.until.get_or_insert_with(|| now + PERIOD);
        if self.named < NAMED {
            self.named += 1;
            return true;
        }
        self.more += 1;
        false
    }

    /// At the end of a period, the number of messages that were not named, if there are any.
    pub(super) fn rest(&mut self, now: Instant) -> Option<usize> {
        self.until.filter(|until| *until <= now)?;
        let more = std::mem::take(self).more;
        (more > 0).then_some(more)
    }
}

/// The topic as the log contains it.
pub(super) fn shortened(topic: &str) -> &str {
    topic.char_indices().nth(MAX_TOPIC_CHARS).map_or(topic, |(end, _)| &topic[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_period_are_named_and_the_rest_is_counted() {
        let (mut log, now) = (DropLog::default(), Instant::now());
        let named = (0..100).filter(|_| log.names(now)).count();
        assert_eq!((named, log.rest(now)), (10, None));
        assert_eq!(log.rest(now + PERIOD), Some(90));
        assert!(log.names(now + PERIOD), "a new period");
        assert_eq!(log.rest(now + 2 * PERIOD), None, "all were named");
        assert_eq!(log.rest(now + 3 * PERIOD), None);
    }

    #[test]
    fn a_long_topic_is_cut_between_characters() {
        let long = "ü".repeat(1000);
        assert_eq!(shortened(&long).chars().count(), 256);
        assert_eq!(shortened("a/b"), "a/b");
    }
}
