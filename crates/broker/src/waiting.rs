//! Clients that wait: the causes for which nothing is read from a connection, and a worker's table of those connections.
//!
//! A connection finds the cause before each packet (`connection/waiting.rs`), and leaves the packet unread: order,
//! acknowledgements and storage are then as if it had arrived later, and TCP or QUIC slows the client down. When the cause
//! may be over, the connection gets [`BrokerEvent::Ready`](crate::BrokerEvent) and looks again: from the table for
//! storage and internal sessions, from [`crate::fan_out`] and [`crate::send_line`] in their order, and for the rest with
//! the answer or at the time that it waits for.

use std::sync::atomic::{AtomicUsize, Ordering};

use fulmar_auth::Timestamp;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::peer::Token;

/// Seconds after which a wait is logged.
pub(crate) const LONG_WAIT_S: u64 = 10;

/// A cause for which a client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitCause {
    /// Login: it is being checked, a failed one is answered late, or the QUIC handshake is not over.
    Login,
    /// It has published faster than `[limits] max_publishes_per_s` or `max_publish_bytes_per_s`.
    Rate,
    /// Window: `[limits] receive_maximum` answers wait for storage, or the client does not read them.
    Window,
    /// More operations than `[limits] max_storage_backlog` are not durable yet.
    Storage,
    /// Storage is stalled, and MQTT 3.1.1 has no refusal for its packet.
    Stall,
    /// The gateway or the platform is behind with its queue ([`crate::BrokerConfig::internal_sessions`]).
    InternalSession,
    /// Fan-out: the publication has many receivers, or SUBSCRIBE many filters, and others are first.
    FanOut,
    /// Its large message is for many receivers, and those of earlier ones have not been served.
    LargeMessages,
}

fulmar_text::names!(WaitCause:
    Login = "login", Rate = "rate", Window = "window", Storage = "storage", Stall = "stall",
    InternalSession = "internal_session", FanOut = "fan_out", LargeMessages = "large_messages",
);

impl WaitCause {
    /// Returns a sentence for an operator.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            WaitCause::Login => "its login is being checked",
            WaitCause::Rate => "it publishes faster than [limits] allows",
            WaitCause::Window => {
                "many of its packets are not answered yet, or it does not read the answers"
            }
            WaitCause::Storage => "storage is behind, by [limits] max_storage_backlog",
            WaitCause::Stall => {
                "storage is stalled, and MQTT 3.1.1 has no refusal for what it sent"
            }
            WaitCause::InternalSession => {
                "the gateway or the platform is behind with what is queued for it"
            }
            WaitCause::FanOut => "its publication has many receivers, and others are first",
            WaitCause::LargeMessages => "receivers of earlier large messages are not served yet",
        }
    }
}

/// A client's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Waiting {
    /// The cause.
    pub cause: WaitCause,
    /// The begin, in milliseconds since the Unix epoch.
    pub since_ms: u64,
}

/// A set of causes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitCauses(u8);

impl WaitCauses {
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn contains(self, cause: WaitCause) -> bool {
        self.0 & 1 << cause as u8 != 0
    }

    /// True if one of them is the broker's, so that a silence is not the client's. A client that does not read its answers
    /// is itself the cause.
    pub(crate) fn excuse_silence(self) -> bool {
        self.0 & !(1 << WaitCause::Login as u8 | 1 << WaitCause::Window as u8) != 0
    }
}

impl FromIterator<WaitCause> for WaitCauses {
    fn from_iter<I: IntoIterator<Item = WaitCause>>(causes: I) -> WaitCauses {
        WaitCauses(causes.into_iter().fold(0, |set, cause| set | 1 << cause as u8))
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    since: Timestamp,
    logged: bool,
}

/// The connections that wait for one cause.
#[derive(Debug, Default)]
struct WaitList {
    connections: Mutex<FxHashMap<Token, Entry>>,
    /// Their number, which needs no lock.
    len: AtomicUsize,
}

impl WaitList {
    fn change<T>(&self, change: impl FnOnce(&mut FxHashMap<Token, Entry>) -> T) -> T {
        let mut connections = self.connections.lock();
        let changed = change(&mut connections);
        if connections.is_empty() && connections.capacity() > 64 {
            // Frees the memory after many connections have waited.
            *connections = FxHashMap::default();
        }
        self.len.store(connections.len(), Ordering::Relaxed);
        changed
    }
}

/// The connections of one worker that wait, by cause. The worker changes it, and operators read it.
#[derive(Debug, Default)]
pub(crate) struct WaitTable([WaitList; WaitCause::ALL.len()]);

impl WaitTable {
    /// Adds a connection that begins to wait.
    pub(crate) fn insert(&self, token: Token, cause: WaitCause, now: Timestamp) {
        let entry = Entry { since: now, logged: false };
        self.0[cause as usize].change(|waiting| waiting.insert(token, entry));
    }

    /// Removes a connection that no longer waits.
    pub(crate) fn remove(&self, token: Token, cause: WaitCause) {
        self.0[cause as usize].change(|waiting| waiting.remove(&token));
    }

    /// Calls `each` with every connection that waits for this.
    pub(crate) fn for_each(&self, cause: WaitCause, each: impl FnMut(Token)) {
        self.0[cause as usize].connections.lock().keys().copied().for_each(each);
    }

    /// Number of connections that wait for this.
    pub(crate) fn len(&self, cause: WaitCause) -> usize {
        self.0[cause as usize].len.load(Ordering::Relaxed)
    }

    /// The wait of a connection that has lasted longest.
    pub(crate) fn wait_of(&self, token: Token) -> Option<Waiting> {
        let waits = WaitCause::ALL.into_iter().zip(&self.0).filter_map(|(cause, list)| {
            let since_ms = list.connections.lock().get(&token)?.since.0;
            Some(Waiting { cause, since_ms })
        });
        waits.min_by_key(|wait| wait.since_ms)
    }

    /// Calls `each` for waits that are long and were not passed to it before. Returns when the next one will be.
    pub(crate) fn take_long(
        &self,
        now: Timestamp,
        mut each: impl FnMut(Token, WaitCause),
    ) -> Timestamp {
        let mut next = Timestamp::NEVER;
        for (cause, list) in WaitCause::ALL.into_iter().zip(&self.0) {
            for (token, entry) in list.connections.lock().iter_mut().filter(|(_, e)| !e.logged) {
                let long_at = long_at(entry.since);
                if long_at <= now {
                    entry.logged = true;
                    each(*token, cause);
                } else {
                    next = next.min(long_at);
                }
            }
        }
        next
    }
}

/// The time at which a wait that has begun at `since` is long.
pub(crate) fn long_at(since: Timestamp) -> Timestamp {
    Timestamp(since.0.saturating_add(LONG_WAIT_S * 1000))
}
