//! A will: the message the broker publishes when its client goes without a word
//! (MQTT 5.0 section 3.1.2.5).
//!
//! The will of a durable session is stored with it. One whose client was connected when the broker
//! crashed is published after the restart, its delay counted from there: to the client it is all the
//! same whether the network or the broker let it down, and it may come back in time.

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
