//! Where the next page of retained topics begins, as text that fits into an address: topics have up to 65,535 bytes, and
//! endpoints refuse addresses of that length.
//!
//! A long topic is what it begins with, U+0000, which no topic has, and how many topics behind that are on earlier pages.
//! One that is removed meanwhile hides another from a page.

use fulmar_broker::Broker;

/// Longest cursor that is a topic itself, in bytes.
const MAX_BYTES: usize = 512;

/// The cursor for what comes behind the topic `last`.
pub(crate) fn behind(broker: &Broker, last: String) -> String {
    if last.len() <= MAX_BYTES { last } else { from(broker, last + "\0") }
}

/// The cursor for what does not come before `from`.
pub(crate) fn from(broker: &Broker, from: String) -> String {
    if from.len() <= MAX_BYTES {
        return from;
    }
    let begin = &from[..from.floor_char_boundary(MAX_BYTES)];
    format!("{begin}\0{}", broker.retained_topics_between(begin, &from))
}

/// The last topic that is on an earlier page, if the cursor was shortened.
pub(crate) fn last_topic(broker: &Broker, cursor: &str) -> Option<Box<str>> {
    let (begin, count) = cursor.split_once('\0')?;
    let count = count.parse().ok()?;
    let last = (count > 0).then(|| broker.retained_topic_behind(begin, count)).flatten();
    Some(last.unwrap_or_else(|| begin.into()))
}
