//! What a gateway can be configured with.

use std::collections::BTreeMap;
use std::time::Duration;

/// Limits, times and names.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This gateway's identifier, for devices that search for a gateway.
    pub gateway_id: u8,
    /// The topics of predefined identifiers; they must be valid topic names.
    pub predefined: BTreeMap<u16, Box<str>>,
    /// Time until an unanswered message is sent again (Tretry); doubled each time.
    pub retry: Duration,
    /// How often it is sent again before the device is considered lost (Nretry).
    pub retries: u32,
    /// How long a device may be silent that states no keep alive.
    pub max_silence: Duration,
    /// Devices with a session here.
    pub max_clients: usize,
    /// New devices per second, and at once.
    pub max_new_clients_per_s: u32,
    /// Topics registered with one device.
    pub max_topics: usize,
    /// Bytes of those names.
    pub max_topic_bytes: usize,
    /// Messages at QoS 0 for one device that wait here. Those at QoS 1 and 2 that the broker has in flight are not
    /// included.
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
