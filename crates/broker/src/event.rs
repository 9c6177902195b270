//! Events from the broker for a connection; the transport passes them on and does not inspect them.

use crate::auth::AuthReply;
use crate::mailbox::{CloseOrder, WorkerEvent};
use crate::peer::Token;

/// An event for one connection; pass it to [`crate::Connection::on_event`].
#[derive(Debug)]
pub struct BrokerEvent(pub(crate) EventKind);

#[derive(Debug)]
pub(crate) enum EventKind {
    /// Its session has output, or it may read on.
    Ready,
    /// Something that it waits for is durable.
    Durable,
    /// Something that it waits for is not durable in time.
    Overdue,
    TakenOver,
    Expired,
    Overflowed,
    Close(CloseOrder),
    Recheck,
    Authenticated(AuthReply),
}

impl BrokerEvent {
    pub(crate) fn durable() -> BrokerEvent {
        BrokerEvent(EventKind::Durable)
    }

    pub(crate) fn overdue() -> BrokerEvent {
        BrokerEvent(EventKind::Overdue)
    }

    pub(crate) fn from_worker_event(event: WorkerEvent) -> (Token, BrokerEvent) {
        let (token, kind) = match event {
            WorkerEvent::Ready(token) => (token, EventKind::Ready),
            WorkerEvent::TakenOver(token) => (token, EventKind::TakenOver),
            WorkerEvent::Expired(token) => (token, EventKind::Expired),
            WorkerEvent::Overflowed(token) => (token, EventKind::Overflowed),
            WorkerEvent::Close(token, order) => (token, EventKind::Close(order)),
            WorkerEvent::Recheck(token) => (token, EventKind::Recheck),
            WorkerEvent::Authenticated(token, reply) => (token, EventKind::Authenticated(reply)),
        };
        (token, BrokerEvent(kind))
    }
}
