//! A hook where clients' publications enter: another part of the program may mark them and hold
//! publishers back.
//!
//! The gateway marks what it will pass on before anything stores it, so that a copy that comes out
//! of storage after a crash is known as a copy. It holds publishers back while it has not taken over
//! what is queued for it, so that no queue overflows: what was acknowledged is not dropped.
//! Nothing is decided here; access rules have been asked before.

use fulmar_mqtt::PacketId;

/// A publication as it came from its client, allowed and with a valid topic.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Topic name.
    pub topic: &'a str,
    /// Application payload.
    pub payload: &'a [u8],
    /// Forwardable properties in MQTT 5.0 encoding, without their length prefix.
    pub properties: &'a [u8],
    /// The publisher's client identifier.
    pub client_id: &'a str,
    /// The publisher's name as an external user ([`crate::auth::ExternalUsers`]), if it is one.
    pub external_user: Option<&'a str>,
    /// Its packet identifier; `None` at QoS 0.
    pub packet_id: Option<PacketId>,
    /// Whether the publisher says that it may have sent it before.
    pub dup: bool,
}

/// Looks at publications where they enter. Called on the workers, so it must neither block nor be slow.
pub trait Entry: Send + Sync {
    /// Properties to append to the publication's, in MQTT 5.0 encoding; `None` leaves it as it is.
    fn mark(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>>;

    /// Whether what this client sends has to wait. Workers ask again after every commit of storage.
    fn holds(&self, client_id: &str) -> bool;
}
