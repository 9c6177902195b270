//! The list of connected clients, for operators: which clients are connected, from which address, since when, and how
//! much waits for them. QUIC connections also have path statistics, which show whether a link is slow or lossy, or
//! changes its address often; the transport renews them every few seconds while the connection is in use.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::Arc;

use fulmar_auth::Timestamp;
use parking_lot::Mutex;

use crate::peer::{Peer, TransportKind, TransportStats};
use crate::session::Session;
use crate::waiting::{WaitTable, Waiting};

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
    /// The wait, if nothing is read from it now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// Path statistics, if the transport has them.
    #[serde(flatten)]
    pub stats: Option<TransportStats>,
}

/// All such connections, by the session's number, which never changes.
#[derive(Debug, Default)]
pub(crate) struct Transports {
    listed: Mutex<BTreeMap<u64, Listed>>,
    /// The last one published.
    pub(crate) published: Mutex<u64>,
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
    pub(crate) fn after(&self, place: u64, most: usize) -> Vec<(Arc<Session>, SharedHere)> {
        let listed = self.listed.lock();
        let range = listed.range((Bound::Excluded(place), Bound::Unbounded)).take(most);
        range.map(|(_, entry)| (Arc::clone(&entry.session), Arc::clone(&entry.here))).collect()
    }

    /// The same for connections whose transport has path statistics.
    pub(crate) fn figures_after(
        &self,
        place: u64,
        most: usize,
    ) -> Vec<(Arc<Session>, TransportStats)> {
        let listed = self.listed.lock();
        let range = listed.range((Bound::Excluded(place), Bound::Unbounded));
        let told = range.filter_map(|(_, entry)| {
            let stats = entry.here.state.lock().stats.as_deref().copied()?;
            Some((Arc::clone(&entry.session), stats))
        });
        told.take(most).collect()
    }

    /// The connection of this session.
    pub(crate) fn of(&self, session: u64) -> Option<SharedHere> {
        self.listed.lock().get(&session).map(|entry| Arc::clone(&entry.here))
    }
}

/// An entry of the list for operators. Locks the session, so the list must not be locked.
pub(crate) fn describe(session: &Session, here: &Here, waiting: &[WaitTable]) -> ClientConnection {
    let (address, stats) = {
        let now = here.state.lock();
        (now.address, now.stats.as_deref().copied())
    };
    let state = session.lock();
    let in_flight = state.flows.iter().map(|flow| flow.outbound.in_flight()).sum::<usize>();
    ClientConnection {
        place: session.key().0,
        client: session.client_id().into(),
        user: state.user.as_ref().map(|user| user.text().into()),
        address,
        transport: here.transport.name(),
        since_ms: here.since.0,
        subscriptions: state.subscriptions.len(),
        queued_messages: state.queued.messages() + in_flight,
        queued_bytes: state.queued.bytes(),
        waiting: state.attachment.and_then(|at| waiting[usize::from(at.shard)].wait_of(at.token)),
        stats,
    }
}
