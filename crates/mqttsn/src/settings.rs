//! What a gateway can be configured with.

use std::collections::BTreeMap;
use std::time::Duration;

/// Bounds, times and names.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This gateway's identifier, for devices that look for one.
    pub gateway_id: u8,
    /// What predefined topic identifiers stand for. Names have to be valid topic names.
    pub predefined: BTreeMap<u16, Box<str>>,
    /// Time until what a device does not answer is sent again (Tretry); each further one is twice as long.
    pub retry: Duration,
    /// How often that is done before the device is given up (Nretry).
    pub retries: u32,
    /// How long a device may be silent that does not say how long it will be.
    pub max_silence: Duration,
    /// Devices with a session here.
    pub max_clients: usize,
    /// New ones a second, and with a second's worth at once.
    pub max_new_clients_per_s: u32,
    /// Topics registered with one device, and bytes of their names.
    pub max_topics: usize,
    /// Bytes of those names.
    pub max_topic_bytes: usize,
    /// Messages for one device that wait here, and bytes of them. Those at QoS 1 and 2 that the broker has on
    /// their way come on top.
    pub max_queued: usize,
    /// Bytes of those messages.
    pub max_queued_bytes: usize,
    /// Bytes of topic and payload of one message.
    pub max_message_bytes: usize,
    /// Bytes of a client identifier.
    pub max_client_id_bytes: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            gateway_id: 1,
            predefined: BTreeMap::new(),
            retry: Duration::from_secs(2),
            retries: 4,
            max_silence: Duration::from_secs(24 * 3600),
            max_clients: 1000,
            max_new_clients_per_s: 100,
            max_topics: 256,
            max_topic_bytes: 16 * 1024,
            max_queued: 64,
            max_queued_bytes: 64 * 1024,
            max_message_bytes: 8192,
            max_client_id_bytes: 256,
        }
    }
}
