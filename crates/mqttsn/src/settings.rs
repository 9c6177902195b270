//! What a gateway can be configured with.

use std::collections::BTreeMap;
use std::time::Duration;

fulmar_text::with_defaults! {
    /// Limits, times and names.
    #[derive(Clone, Debug)]
    pub struct Settings {
        /// This gateway's identifier, for devices that search for a gateway.
        pub gateway_id: u8 = 1,
        /// The topics of predefined identifiers; they must be valid topic names.
        pub predefined: BTreeMap<u16, Box<str>> = BTreeMap::new(),
        /// Time until an unanswered message is sent again (Tretry); doubled each time.
        pub retry: Duration = Duration::from_secs(2),
        /// Number of repetitions before the device is considered lost (Nretry).
        pub retries: u32 = 4,
        /// Longest silence of a device that states no keep alive.
        pub max_silence: Duration = Duration::from_secs(24 * 3600),
        /// Devices with a session here.
        pub max_clients: usize = 1000,
        /// New devices per second, and at once.
        pub max_new_clients_per_s: u32 = 100,
        /// Topics registered with one device.
        pub max_topics: usize = 256,
        /// Bytes of those names.
        pub max_topic_bytes: usize = 16 * 1024,
        /// Messages at QoS 0 for one device that wait here. Those at QoS 1 and 2 that the broker has in flight are not
        /// included.
        pub max_queued: usize = 64,
        /// Bytes of those messages.
        pub max_queued_bytes: usize = 64 * 1024,
        /// Bytes of topic and payload of one message.
        pub max_message_bytes: usize = 8192,
        /// Bytes of a client identifier.
        pub max_client_id_bytes: usize = 256,
    }
}
