//! What operators and `$SYS` get of the list of connected clients ([`crate::transports`]).
//!
//! Subscribers get path statistics under `$SYS/broker/connections/<client id>/transport`. They are not retained, because
//! the round-trip time of a client that has disconnected is of no use. Only statistics with a subscriber are published,
//! and at most [`MAX_PUBLISHED`] connections per interval, in rotation. Without a decision about who may read them
//! nothing is published, because the topics name clients and their addresses.

use std::sync::Arc;

use crate::broker::Broker;
use crate::message::MessageParts;
use crate::shard::Shard;
use crate::transports::{ClientConnection, ClientStatistics, describe};

/// The most connections published per interval of `$SYS`; more take turns.
pub(crate) const MAX_PUBLISHED: usize = 1000;

/// Above every connection's topic.
const ABOVE: &str = "$SYS/broker/connections";

impl Broker {
    /// Whether the topics of clients' connections exist.
    fn publishes_clients(&self) -> bool {
        match self.client_statistics {
            ClientStatistics::Rules => !self.access_control().rules.is_open(),
            ClientStatistics::Everyone => true,
            ClientStatistics::Nobody => false,
        }
    }

    /// Whether the filter is for clients' connections and they are not published.
    pub(crate) fn is_hidden(&self, filter: &str) -> bool {
        let below = filter.strip_prefix(ABOVE).is_some_and(|rest| rest.starts_with('/'));
        below && !self.publishes_clients()
    }

    /// Clients' connections, from the one after `place` on (0 for the first): at most `most`.
    #[must_use]
    pub fn connections(&self, place: u64, most: usize) -> Vec<ClientConnection> {
        let found = self.transports.after(place, most);
        found.iter().map(|(session, here)| describe(session, here, &self.waiting)).collect()
    }

    /// One client's connection; `None` for a client that is not here.
    #[must_use]
    pub fn connection_of(&self, client_id: &str) -> Option<ClientConnection> {
        let session = self.registry.find(client_id)?;
        let place = session.key().0;
        let here = self.transports.connection_of(place)?;
        Some(describe(&session, &here, &self.waiting))
    }
}

/// Publishes the next connections' statistics to their subscribers.
pub(crate) fn publish(shard: &mut Shard, broker: &Arc<Broker>) {
    if !broker.publishes_clients() || !broker.tree.read().reaches_below(ABOVE) {
        return;
    }
    let list = &broker.transports;
    let last = *list.published.lock();
    let mut turn = list.figures_after(last, MAX_PUBLISHED);
    if turn.len() < MAX_PUBLISHED {
        let from_start = list.figures_after(0, MAX_PUBLISHED - turn.len());
        turn.extend(from_start.into_iter().take_while(|(session, _)| session.key().0 <= last));
    }
    *list.published.lock() = turn.last().map_or(0, |(session, _)| session.key().0);
    for (session, stats) in turn {
        let topic = topic(session.client_id());
        // Asked of the tree itself: a thousand topics must not push publishers' routes out.
        if broker.tree.read().matches(&topic).is_empty() {
            continue;
        }
        // Numbers and booleans only: it cannot fail.
        let payload = serde_json::to_vec(&stats).unwrap_or_default();
        let (topic, payload) = (&*topic, &*payload);
        shard.publish(MessageParts { topic, payload, ..MessageParts::default() });
    }
}

/// A client's topic. What would be a level or a wildcard in its name is percent-encoded.
fn topic(client_id: &str) -> String {
    let mut topic = format!("{ABOVE}/");
    for c in client_id.chars() {
        if matches!(c, '/' | '+' | '#' | '%') || c.is_control() {
            let mut utf8 = [0; 4];
            for byte in c.encode_utf8(&mut utf8).bytes() {
                topic.push_str(&format!("%{byte:02X}"));
            }
        } else {
            topic.push(c);
        }
    }
    topic.push_str("/transport");
    topic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_id_is_one_level_of_its_topic() {
        assert_eq!(
            topic("a/b+#%\u{85}é"),
            "$SYS/broker/connections/a%2Fb%2B%23%25%C2%85é/transport"
        );
    }
}
