//! Events from the broker for a connection, from any worker; the transport passes them on and does not inspect them.

use fulmar_auth::AuthReply;

use crate::waiting::WaitCause;

/// An event for one connection; pass it to [`crate::Connection::on_event`].
#[derive(Debug)]
#[non_exhaustive]
pub enum BrokerEvent {
    /// Its session has output, or it may read on.
    Ready,
    /// Its session has a large message for it ([`crate::Limits::large_message_bytes`]).
    ReadyLarge,
    /// Nothing was read from it for long, for this cause.
    WaitsLong(WaitCause),
    /// Something that it waits for is durable.
    Durable,
    /// Something that it waits for is not durable in time.
    Overdue,
    /// Its client connected again elsewhere.
    TakenOver,
    /// Flows of its session may have expired.
    Expired,
    /// Its session's queue overflowed and the policy is to disconnect.
    Overflowed,
    /// An operator or the broker wants it closed with this reason.
    Close(CloseOrder),
    /// Credentials or rights of external users have changed.
    Recheck,
    /// The answer to a request that it has published to [`crate::control::CONTROL_TOPIC`].
    ControlResponse(Box<[u8]>),
    /// A slow authentication has been decided.
    Authenticated(AuthReply),
}

impl BrokerEvent {
    pub(crate) fn is_large(&self) -> bool {
        matches!(self, BrokerEvent::ReadyLarge)
    }
}

/// Why the broker closes a connection of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseOrder {
    /// The server is shutting down (0x8B).
    ShuttingDown,
    /// An operator's decision (0x98).
    Administrative,
    /// The same, and its session ends with it.
    SessionDeleted,
}
