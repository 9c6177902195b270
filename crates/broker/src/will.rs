//! A will: the message the broker publishes when its client goes without a word
//! (MQTT 5.0 section 3.1.2.5).

use fulmar_mqtt::QoS;

/// A client's will, kept with its session.
#[derive(Clone, Debug)]
pub(crate) struct Will {
    pub(crate) topic: Box<str>,
    /// Forwardable properties in MQTT 5.0 encoding.
    pub(crate) properties: Box<[u8]>,
    pub(crate) payload: Box<[u8]>,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// Seconds between the loss of the connection and the publication.
    pub(crate) delay_s: u32,
    pub(crate) message_expiry_s: Option<u32>,
}
