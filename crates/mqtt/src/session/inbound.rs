//! The receiving side of QoS 2: a repeated identifier is a duplicate until it is released ([MQTT-4.3.3-10]).

use std::collections::VecDeque;

use super::spare::give_back;
use crate::types::PacketId;

/// The state of a QoS 2 PUBLISH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboundQos2 {
    /// To be delivered.
    New,
    /// Already delivered; only to be acknowledged.
    Duplicate,
    /// More than the receive maximum are open (0x93).
    TooMany,
}

/// Identifiers received and not yet released. Owns no memory while there are none.
#[derive(Clone, Debug, Default)]
pub struct Inbound {
    /// In order of arrival: PUBREL arrives in that order too, so a search ends at the front. Plain numbers, because
    /// the standard library searches those with vector instructions, and a PUBLISH with a new identifier is compared
    /// with all of them.
    open: VecDeque<u16>,
}

impl Inbound {
    /// None open.
    #[must_use]
    pub fn new() -> Inbound {
        Inbound::default()
    }

    /// A PUBLISH with this identifier was received; at most `maximum` may be open.
    pub fn publish(&mut self, id: PacketId, maximum: u16) -> InboundQos2 {
        if self.is_open(id) {
            return InboundQos2::Duplicate;
        }
        if self.open.len() >= usize::from(maximum) {
            return InboundQos2::TooMany;
        }
        self.open.push_back(id.get());
        InboundQos2::New
    }

    /// Whether a PUBLISH with this identifier was received and not yet released.
    #[must_use]
    pub fn is_open(&self, id: PacketId) -> bool {
        let (front, back) = self.open.as_slices();
        front.contains(&id.get()) || back.contains(&id.get())
    }

    /// Handles a PUBREL. Returns whether the identifier was open.
    pub fn release(&mut self, id: PacketId) -> bool {
        let Some(at) = self.open.iter().position(|open| *open == id.get()) else { return false };
        self.open.remove(at);
        give_back(&mut self.open);
        true
    }

    /// Frees the room that is not in use, for a connection that is gone.
    pub fn shrink_to_fit(&mut self) {
        self.open.shrink_to_fit();
    }

    /// Opens an identifier that storage remembers.
    pub fn restore(&mut self, id: PacketId) {
        if !self.is_open(id) {
            self.open.push_back(id.get());
        }
    }

    /// Number of open identifiers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether none is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Every open identifier in order of arrival.
    pub fn iter(&self) -> impl Iterator<Item = PacketId> {
        self.open.iter().filter_map(|id| PacketId::new(*id))
    }
}
