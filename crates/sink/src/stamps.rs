//! The sinks' part of the publish hook: stamps publications that a sink will get, before anything stores them, so that a
//! message has the same identifier and time whenever it comes again.

use fulmar_broker::{Arrival, PublishHook};
use fulmar_gateway::identity::{MessageIdentity, Sent, Stamper};
use fulmar_mqtt::Properties;
use fulmar_mqtt::topic::matches;
use fulmar_transport::Clock;

/// Stamps publications.
pub(crate) struct Stamps {
    filters: Vec<String>,
    stamper: Stamper,
}

impl Stamps {
    /// For what matches one of these filters.
    pub(crate) fn new(filters: Vec<String>) -> Stamps {
        Stamps { filters, stamper: Stamper::new("fulmar", fastrand::u64(..)) }
    }
}

impl PublishHook for Stamps {
    fn stamp(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>> {
        let Arrival { client_id, dup, topic, payload, .. } = *arrival;
        if !self.filters.iter().any(|filter| matches(filter, topic)) {
            return None;
        }
        let identity = MessageIdentity::read(Properties::from_forwardable(arrival.properties));
        if identity.id.is_some() && identity.at.is_some() {
            return None;
        }
        // Without a packet identifier, no hash of what the client has sent is made: only the gateway asks for it.
        let sent = Sent { client_id, packet_id: None, dup, topic, payload };
        let added = self.stamper.stamp(&identity, &sent, Clock::wall().0);
        Some(added.as_properties().raw().to_vec())
    }
}
