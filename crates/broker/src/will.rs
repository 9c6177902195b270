//! A will: the message that the broker publishes when its client's connection ends without DISCONNECT
//! (MQTT 5.0 section 3.1.2.5).
//!
//! The will of a durable session is stored with it. If the client was connected when the broker crashed, its will is
//! published after the restart, and its delay begins then: for the client a failure of the broker is like one of the
//! network, and it may reconnect in time.

use fulmar_mqtt::QoS;

/// A client's will, kept with its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    /// Topic name.
    pub topic: Box<str>,
    /// Forwardable properties in MQTT 5.0 encoding.
    pub properties: Box<[u8]>,
    /// Application payload.
    pub payload: Box<[u8]>,
    /// Quality of service it is published with.
    pub qos: QoS,
    /// Whether it is retained.
    pub retain: bool,
    /// Seconds between the loss of the connection and the publication.
    pub delay_s: u32,
    /// Seconds after its publication for which it can be delivered; `None` for ever.
    pub message_expiry_s: Option<u32>,
}

impl Will {
    /// What it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Will>() + self.topic.len() + self.properties.len() + self.payload.len()
    }
}
