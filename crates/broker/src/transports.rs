//! The list of connected clients, for operators: which clients are connected, from which address, since when, and how
//! much waits for them. QUIC connections also have path statistics, which show whether a link is slow or lossy, or
//! changes its address often.
//!
//! The transport renews a connection's statistics every few seconds while it is in use. Subscribers get them under
//! `$SYS/broker/connections/<client id>/transport`. They are not retained, because the round-trip time of a client that
//! has disconnected is of no use. Only statistics with a subscriber are published, and at most [`MAX_PUBLISHED`]
//! connections per interval, in rotation. Without a decision about who may read them nothing is published, because the
//! topics name clients and their addresses.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::Arc;

use fulmar_mqtt::QoS;
use parking_lot::Mutex;

use crate::broker::Broker;
use crate::message::MessageParts;
use crate::peer::{Peer, TransportKind, TransportStats};
use crate::session::Session;
use crate::shard::Shard;
use crate::time::Timestamp;

/// The most connections published per interval of `$SYS`; more take turns.
pub(crate) const MAX_PUBLISHED: usize = 1000;

/// Above every connection's topic.
const ABOVE: &str = "$SYS/broker/connections";

/// Whether clients may read the statistics of other clients' connections in `$SYS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientStatistics {
    /// Only if there are access rules, which decide.
    #[default]
    Rules,
    /// Everybody, also without access rules.
    Everyone,
    /// Nobody.
    Nobody,
}

/// A client's connection.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ClientConnection {
    /// Its place in the list: to ask for those after it.
    pub place: u64,
    /// The client's identifier.
    pub client: Box<str>,
    /// The user; `None` for an anonymous client.
    pub user: Option<Box<str>>,
    /// Its address, when it connected or was seen last at another.
    pub address: SocketAddr,
    /// What carries it, such as `tls`.
    pub transport: &'static str,
    /// When it connected, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// Its subscriptions.
    pub subscriptions: usize,
    /// Messages in its queue, and those in flight.
    pub queued_messages: usize,
    /// Bytes of those in its queue.
    pub queued_bytes: usize,
    /// Path statistics, if the transport has them.
    #[serde(flatten)]
    pub stats: Option<TransportStats>,
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
    here: SharedHere,
}

/// What of a connection is shared with the list.
#[derive(Debug)]
pub(crate) struct Here {
    transport: TransportKind,
    since: Timestamp,
    state: Mutex<HereNow>,
}

/// What of it changes.
#[derive(Debug)]
struct HereNow {
    address: SocketAddr,
    stats: Option<Box<TransportStats>>,
}

/// As a connection and the list hold it.
pub(crate) type SharedHere = Arc<Here>;

impl Here {
    /// A connection that begins.
    pub(crate) fn new(peer: &Peer, since: Timestamp) -> SharedHere {
        let state = Mutex::new(HereNow { address: peer.address, stats: None });
        Arc::new(Here { transport: peer.transport, since, state })
    }

    /// Takes the newest figures; gives those before, which begin with zeros.
    pub(crate) fn set_stats(&self, stats: TransportStats) -> TransportStats {
        let before = self.state.lock().stats.replace(Box::new(stats));
        before.map_or_else(TransportStats::default, |before| *before)
    }

    /// The client comes from another address now.
    pub(crate) fn moved(&self, address: SocketAddr) {
        self.state.lock().address = address;
    }
}

impl Transports {
    /// Lists a session's connection, in place of an earlier one.
    pub(crate) fn list(&self, session: &Arc<Session>, here: &SharedHere) {
        let (session, here) = (Arc::clone(session), Arc::clone(here));
        self.listed.lock().insert(session.key().0, Listed { session, here });
    }

    /// Takes a connection off the list, unless its session has another.
    pub(crate) fn forget(&self, session: u64, here: &SharedHere) {
        let mut listed = self.listed.lock();
        if listed.get(&session).is_some_and(|entry| Arc::ptr_eq(&entry.here, here)) {
            listed.remove(&session);
        }
    }

    /// At most `most` sessions and connections, from the one after `place` on.
    fn after(&self, place: u64, most: usize) -> Vec<(Arc<Session>, SharedHere)> {
        let listed = self.listed.lock();
        let range = listed.range((Bound::Excluded(place), Bound::Unbounded)).take(most);
        range.map(|(_, entry)| (Arc::clone(&entry.session), Arc::clone(&entry.here))).collect()
    }

    /// The same for connections whose transport has path statistics.
    fn figures_after(&self, place: u64, most: usize) -> Vec<(Arc<Session>, TransportStats)> {
        let listed = self.listed.lock();
        let range = listed.range((Bound::Excluded(place), Bound::Unbounded));
        let told = range.filter_map(|(_, entry)| {
            let stats = entry.here.state.lock().stats.as_deref().copied()?;
            Some((Arc::clone(&entry.session), stats))
        });
        told.take(most).collect()
    }
}

/// An entry of the list for operators. Locks the session, so the list must not be locked.
fn tell(session: &Session, here: &Here) -> ClientConnection {
    let (address, stats) = {
        let now = here.state.lock();
        (now.address, now.stats.as_deref().copied())
    };
    let state = session.lock();
    let in_flight = state.flows.iter().map(|flow| flow.outbound.in_flight()).sum::<usize>();
    ClientConnection {
        place: session.key().0,
        client: session.client_id().into(),
        user: state.username.clone(),
        address,
        transport: here.transport.name(),
        since_ms: here.since.0,
        subscriptions: state.subscriptions.len(),
        queued_messages: state.queued.messages() + in_flight,
        queued_bytes: state.queued.bytes(),
        stats,
    }
}

impl Broker {
    /// Whether the topics of clients' connections exist.
    fn publishes_clients(&self) -> bool {
        match self.client_statistics() {
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
        let found = self.transport_list().after(place, most);
        found.iter().map(|(session, here)| tell(session, here)).collect()
    }

    /// One client's connection; `None` for a client that is not here.
    #[must_use]
    pub fn connection_of(&self, client_id: &str) -> Option<ClientConnection> {
        let session = self.registry().find(client_id)?;
        let place = session.key().0;
        let here = Arc::clone(&self.transport_list().listed.lock().get(&place)?.here);
        Some(tell(&session, &here))
    }
}

/// Publishes the next connections' statistics to their subscribers.
pub(crate) fn publish(shard: &mut Shard, broker: &Arc<Broker>) {
    if !broker.publishes_clients() || !broker.tree().read().reaches_below(ABOVE) {
        return;
    }
    let list = broker.transport_list();
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
        if broker.tree().read().matches(&topic).is_empty() {
            continue;
        }
        // Numbers and booleans only: it cannot fail.
        let payload = serde_json::to_vec(&stats).unwrap_or_default();
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
