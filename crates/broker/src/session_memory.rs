//! What a session takes of its owner's memory ([`crate::memory`]).

use std::net::IpAddr;
use std::sync::Arc;

use crate::broker::Broker;
use crate::memory::{Account, Charge, CopyShare, MemoryOwner};
use crate::message::Message;
use crate::session::{Flow, Outgoing, Session, SessionState};
use crate::will::Will;

/// A session without anything: itself, its place in the registry, and what the allocator adds.
const SESSION_BYTES: usize = size_of::<Session>() + 192;

/// A subscription beside its filter, which the session and the tree have: their entries for it.
const SUBSCRIPTION_BYTES: usize = 256;

/// A level of a filter in the tree; counted for each subscription as though it shared no level with others.
const LEVEL_BYTES: usize = 128;

/// A flow beyond the control flow, with the state that only such flows have.
pub(crate) const FLOW_BYTES: usize = size_of::<Flow>() + 512;

/// QoS 2 identifiers of a publisher that count together, once there are this many; fewer are worth no step.
const IDENTIFIER_STEP: usize = 16;

/// One of them, in memory and on disk.
const IDENTIFIER_BYTES: usize = 32;

/// A place in a queue.
const PLACE_BYTES: usize = size_of::<Outgoing>() + 32;

/// Bytes of a subscription.
pub(crate) fn of_subscription(filter: &str) -> usize {
    let levels = 1 + filter.bytes().filter(|byte| *byte == b'/').count();
    SUBSCRIPTION_BYTES + levels * LEVEL_BYTES + 2 * filter.len()
}

/// Bytes of the identifiers that a flow's publisher has not released.
fn of_identifiers(open: usize) -> usize {
    open / IDENTIFIER_STEP * IDENTIFIER_STEP * IDENTIFIER_BYTES
}

/// Bytes of a new session.
pub(crate) fn of_session(client_id: &str, will: Option<&Will>) -> usize {
    SESSION_BYTES + 2 * client_id.len() + will.map_or(0, Will::bytes)
}

impl SessionState {
    /// The session's user and address are known: what it takes counts for them from now on.
    pub(crate) fn set_memory_owner(&mut self, broker: &Broker, session: &Session, site: IpAddr) {
        let owner = broker.memory.owner(self.user.as_ref(), site);
        self.memory = Some(Charge::new(owner, Account::Sessions));
        self.count_memory(session);
    }

    /// Whose memory the session uses.
    pub(crate) fn memory_owner(&self) -> Option<Arc<MemoryOwner>> {
        self.memory.as_ref().map(|memory| Arc::clone(memory.owner()))
    }

    /// Counts what the session takes now.
    pub(crate) fn count_memory(&mut self, session: &Session) {
        let flows = self.flows.len().saturating_sub(1) * FLOW_BYTES;
        let bytes = of_session(session.client_id(), self.will.as_deref());
        let open: usize = self.flows.iter().map(|flow| of_identifiers(flow.inbound.len())).sum();
        let bytes = bytes + self.subscription_bytes + flows + open;
        if let Some(memory) = &mut self.memory {
            memory.set(bytes);
        }
    }

    /// Whether the session may take this many bytes more.
    pub(crate) fn may_grow(&self, bytes: usize) -> bool {
        self.memory.as_ref().is_none_or(|memory| memory.has_room(bytes))
    }

    /// Whether the publisher may have one more QoS 2 identifier open, in this flow.
    pub(crate) fn may_open_identifier(&self, index: usize) -> bool {
        let open = self.flows[index].inbound.len();
        let more = of_identifiers(open + 1) - of_identifiers(open);
        more == 0 || self.may_grow(more)
    }

    /// An identifier has been opened or released, and now there are `open`.
    pub(crate) fn identifiers_changed(&mut self, session: &Session, before: usize, open: usize) {
        if of_identifiers(before) != of_identifiers(open) {
            self.count_memory(session);
        }
    }

    /// Whether a message may wait for the session.
    pub(crate) fn has_memory_for(&self, message: &Message) -> bool {
        let bytes = message.size() + PLACE_BYTES;
        let has_room = |memory: &Charge| memory.owner().has_room(Account::Messages, bytes);
        self.memory.as_ref().is_none_or(has_room)
    }

    /// A message waits for the session.
    pub(crate) fn reserve_copy(&self, message: &Message) -> Option<CopyShare> {
        let memory = self.memory.as_ref()?;
        Some(CopyShare::new(memory.owner(), message.size(), PLACE_BYTES))
    }

    /// Counts the encoded packets that wait for one flow's stream.
    #[inline(always)]
    pub(crate) fn count_output(&mut self, index: usize) {
        if self.flows[index].outbox.is_uncounted() {
            self.count_long_output(index);
        }
    }

    #[cold]
    fn count_long_output(&mut self, index: usize) {
        if let Some(memory) = &self.memory {
            self.flows[index].outbox.count(memory.owner());
        }
    }
}
