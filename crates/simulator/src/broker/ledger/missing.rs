//! Promised messages that have not arrived, and what is left of their time.

use super::{Ledger, Reader};
use crate::broker::schedule::FILTERS;

impl Ledger {
    /// The most seconds that may be left of a message's expiry interval.
    pub(crate) fn most_left_s(&self, message: usize) -> Option<u32> {
        let sent = self.sent.get(message)?;
        let is_sure = self.late.is_zero() && sent.will.is_none();
        let passed = self.now.since(sent.acknowledged_at).as_secs().saturating_sub(1);
        sent.expiry_s.map(|asked| asked.saturating_sub(if is_sure { passed as u32 } else { 0 }))
    }

    /// Promised messages that a client has not received.
    pub(crate) fn missing_of(&self, client: usize) -> Vec<String> {
        let missing = self.missing(|other| other == client);
        let own = format!("client {client} ");
        missing.into_iter().filter(|words| words.starts_with(&own)).collect()
    }

    /// Promised messages that did not arrive, of clients for which `is_there` is true.
    pub(crate) fn missing(&self, is_there: impl Fn(usize) -> bool) -> Vec<String> {
        let mut missing = Vec::new();
        for (message, sent) in self.sent.iter().enumerate().filter(|(_, sent)| sent.acknowledged) {
            if sent.may_have_lapsed(self.now) {
                continue;
            }
            let came = |reader: &Reader| {
                reader.arrived.get(&message).is_some_and(|arrived| arrived.times > 0)
            };
            for owed in sent.owed.iter().filter(|owed| is_there(owed.client)) {
                let reader = &self.readers[owed.client];
                // A will is published at a time of its own.
                let lasted = |(filter, number): &(usize, u64)| {
                    reader.certain.get(filter).is_some_and(|own| own.number == *number)
                };
                let claims = sent.will.is_none() || owed.by.iter().any(lasted);
                if reader.claim == owed.claim && claims && !came(reader) {
                    let client = owed.client;
                    missing.push(format!("client {client} was owed message {message}"));
                }
            }
            for (filter, number) in &sent.shared {
                let all = (0..self.readers.len()).all(&is_there);
                let same = self.group(*filter, sent.qos) == *number;
                let strong = all && same && !self.weak.contains(filter);
                if strong && !self.came.contains(&message) {
                    missing.push(format!("{} was owed message {message}", FILTERS[*filter]));
                }
            }
        }
        missing
    }
}
