//! The gateway's hand in the broker: marks publications that will go up.

use std::sync::Arc;

use fulmar_broker::Arrival;
use fulmar_gateway::identity::{MessageIdentity, Sent};
use fulmar_mqtt::Properties;

use super::{Shared, now_ms};

/// Marks publications that will go up.
pub(in crate::serve) struct Marks(pub(super) Arc<Shared>);

impl Marks {
    /// What to add to a publication's properties; `None` for one that stays here.
    pub(in crate::serve) fn mark(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>> {
        let Marks(shared) = self;
        if !shared.up.takes(arrival.topic) || arrival.client_id == shared.client_id {
            return None;
        }
        let properties = Properties::from_forwardable(arrival.properties);
        let sent = Sent {
            client_id: arrival.client_id,
            packet_id: arrival.packet_id.map(fulmar_mqtt::PacketId::get),
            dup: arrival.dup,
            topic: arrival.topic,
            payload: arrival.payload,
        };
        let added = shared.stamper.stamp(&MessageIdentity::read(properties), &sent, now_ms());
        Some(added.as_properties().raw().to_vec())
    }
}
