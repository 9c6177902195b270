//! The gateway's part of the publish hook: stamps publications that will be forwarded.

use std::sync::Arc;

use fulmar_broker::{Arrival, PublishHook};
use fulmar_gateway::identity::{MessageIdentity, SentPublication};
use fulmar_mqtt::Properties;

use super::shared::Shared;
use super::wall_clock::{now_ms, wall_ms};

/// Stamps publications that will be forwarded.
pub(super) struct Stamps(pub(super) Vec<Arc<Shared>>);

impl PublishHook for Stamps {
    /// The properties to add to a publication; `None` for one that is not forwarded. Forwarded to several upstream
    /// brokers, it has the same identifier everywhere.
    fn stamp(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>> {
        let Stamps(upstreams) = self;
        let shared = upstreams.iter().find(|shared| {
            shared.up.takes(arrival.topic) && arrival.client_id != shared.client_id
        })?;
        let properties = Properties::from_forwardable(arrival.properties);
        let sent = SentPublication {
            client_id: arrival.client_id,
            packet_id: arrival.packet_id.map(fulmar_mqtt::PacketId::get),
            dup: arrival.dup,
            topic: arrival.topic,
            payload: arrival.payload,
        };
        let (identity, now_ms) = (MessageIdentity::read(properties), wall_ms(now_ms()));
        let added = shared.stamper.stamp(&identity, &sent, now_ms);
        Some(added.as_properties().raw().to_vec())
    }
}
