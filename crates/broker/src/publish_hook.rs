//! The publish hook: another part of the program sees clients' publications where they enter the broker, and may
//! stamp them.
//!
//! The gateway stamps the messages that it will forward before anything stores them, so that a copy restored from
//! storage after a crash is recognised as a copy. Access rules were applied before.

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
    /// The publisher's name as an external user ([`fulmar_auth::ExternalUsers`]), if it is one.
    pub external_user: Option<&'a str>,
    /// The packet identifier; `None` at QoS 0.
    pub packet_id: Option<PacketId>,
    /// The DUP flag: whether the publisher may have sent it before.
    pub dup: bool,
}

/// Sees publications where they enter. Called on the workers, so it must neither block nor be slow.
pub trait PublishHook: Send + Sync {
    /// Properties to append to the publication's, in MQTT 5.0 encoding; `None` leaves it as it is.
    fn stamp(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>>;
}

impl PublishHook for Vec<Box<dyn PublishHook>> {
    /// The properties of all hooks, in their order, behind those that the client has sent; a hook sees those of the ones
    /// before it.
    fn stamp(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>> {
        self.iter().fold(None, |stamps: Option<Vec<u8>>, hook| {
            let Some(before) = &stamps else { return hook.stamp(arrival) };
            let properties = &*[arrival.properties, before].concat();
            match hook.stamp(&Arrival { properties, ..*arrival }) {
                Some(more) => Some([before, &*more].concat()),
                None => stamps,
            }
        })
    }
}
