//! Connections whose transport tells how its path does: QUIC's. For operators, who want to know of
//! one client whether its link is slow, lossy or keeps moving.
//!
//! The transport renews a connection's figures every few seconds while it is in use. Those who
//! subscribe get them under `$SYS/broker/connections/<client id>/transport`, not retained: what a
//! client that has gone had as round-trip time is nobody's news. Nothing is published that nobody
//! subscribes to, and no more than [`MAX_PUBLISHED`] connections an interval, in turn. Nor is anything
//! where nobody has decided who may read it: these topics name clients, and where they are.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use fulmar_mqtt::QoS;
use parking_lot::Mutex;

use crate::broker::Broker;
use crate::message::MessageParts;
use crate::peer::TransportStats;
use crate::session::Session;
use crate::shard::Shard;

/// Connections published an interval of `$SYS`, at most; with more they take turns.
pub(crate) const MAX_PUBLISHED: usize = 1000;

/// Above every connection's topic.
const ABOVE: &str = "$SYS/broker/connections";

/// Whether clients may read in `$SYS` how other clients' connections do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientFigures {
    /// Where there are access rules, which say who may.
    #[default]
    Rules,
    /// Without rules too: everybody.
    Everyone,
    /// Nobody.
    Nobody,
}

/// A connection and the state of its transport.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ClientTransport {
    /// Its place in the list: to ask for those after it.
    pub place: u64,
    /// The client's identifier.
    pub client: Box<str>,
    /// The state of its path.
    #[serde(flatten)]
    pub stats: TransportStats,
}

/// All such connections, by the session's number, which never changes.
#[derive(Debug, Default)]
pub(crate) struct Transports {
    listed: Mutex<BTreeMap<u64, Listed>>,
    /// The last one published.
    published: Mutex<u64>,
}

#[derive(Debug)]
struct Listed {
    session: Arc<Session>,
    stats: SharedStats,
}

/// One connection's figures, shared with it.
pub(crate) type SharedStats = Arc<Mutex<TransportStats>>;

impl Transports {
    /// Lists a session's connection, in place of an earlier one.
    pub(crate) fn list(&self, session: &Arc<Session>, stats: &SharedStats) {
        let (session, stats) = (Arc::clone(session), Arc::clone(stats));
        self.listed.lock().insert(session.key().0, Listed { session, stats });
    }

    /// Takes a connection off the list, unless its session has another.
    pub(crate) fn forget(&self, session: u64, stats: &SharedStats) {
        let mut listed = self.listed.lock();
        if listed.get(&session).is_some_and(|entry| Arc::ptr_eq(&entry.stats, stats)) {
            listed.remove(&session);
        }
    }

    /// At most `most` of them, from the one after `place` on.
    fn after(&self, place: u64, most: usize) -> Vec<ClientTransport> {
        let listed = self.listed.lock();
        let range = listed.range((Bound::Excluded(place), Bound::Unbounded));
        range.take(most).map(|(place, entry)| entry.tell(*place)).collect()
    }
}

impl Listed {
    fn tell(&self, place: u64) -> ClientTransport {
        ClientTransport {
            place,
            client: self.session.client_id().into(),
            stats: *self.stats.lock(),
        }
    }
}

impl Broker {
    /// Whether the topics of clients' connections exist.
    fn tells_of_clients(&self) -> bool {
        match self.client_figures() {
            ClientFigures::Rules => !self.gate().rules.is_open(),
            ClientFigures::Everyone => true,
            ClientFigures::Nobody => false,
        }
    }

    /// Whether a subscription could bring nothing, because it is to topics that are not told.
    pub(crate) fn keeps_back(&self, filter: &str) -> bool {
        let below = filter.strip_prefix(ABOVE).is_some_and(|rest| rest.starts_with('/'));
        below && !self.tells_of_clients()
    }

    /// The state of QUIC connections' transports, from the one after `place` on (0 for the first):
    /// at most `most`.
    #[must_use]
    pub fn transports(&self, place: u64, most: usize) -> Vec<ClientTransport> {
        self.transport_list().after(place, most)
    }

    /// The state of one client's transport; `None` for a client that is not here by QUIC.
    #[must_use]
    pub fn transport_of(&self, client_id: &str) -> Option<ClientTransport> {
        let session = self.registry().find(client_id)?;
        let place = session.key().0;
        self.transport_list().listed.lock().get(&place).map(|entry| entry.tell(place))
    }
}

/// Publishes the next connections' figures to those who subscribe to them.
pub(crate) fn publish(shard: &mut Shard, broker: &Arc<Broker>) {
    if !broker.tells_of_clients() || !broker.tree().read().reaches_below(ABOVE) {
        return;
    }
    let list = broker.transport_list();
    let last = *list.published.lock();
    let mut turn = list.after(last, MAX_PUBLISHED);
    if turn.len() < MAX_PUBLISHED {
        let from_start = list.after(0, MAX_PUBLISHED - turn.len());
        turn.extend(from_start.into_iter().take_while(|entry| entry.place <= last));
    }
    *list.published.lock() = turn.last().map_or(0, |entry| entry.place);
    for entry in turn {
        let topic = topic(&entry.client);
        // Asked of the tree itself: a thousand topics must not push publishers' routes out.
        if broker.tree().read().matches(&topic).is_empty() {
            continue;
        }
        // Numbers and booleans only: it cannot fail.
        let payload = serde_json::to_vec(&entry.stats).unwrap_or_default();
        shard.publish(MessageParts {
            topic: &topic,
            properties: &[],
            payload: &payload,
            qos: QoS::AtMostOnce,
            retain: false,
            expires_at: None,
            publisher: 0,
        });
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
