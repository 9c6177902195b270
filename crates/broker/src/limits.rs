//! Every bound the core enforces, in one place, with its unit in its name.
//!
//! At each bound there is a defined answer (an MQTT reason code, a drop policy, back-pressure), a
//! metric and a log line; see the field's own words.

use std::time::Duration;

use crate::memory::MemoryLimits;

/// Largest CONNECT accepted, in bytes, whatever the limit for packets: its sender is unknown until it is complete.
/// Enough for a will of 64 KiB and a large token; larger ones get 0x95.
pub(crate) const MAX_CONNECT_BYTES: usize = 100 * 1024;

/// Behaviour when a session's queue is full and a message arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DropPolicy {
    /// The oldest message that is not in flight gives way.
    Oldest,
    /// The new message is dropped.
    #[default]
    Newest,
    /// The session's client is disconnected with 0x97 (Quota exceeded); an offline session drops
    /// the new message.
    Disconnect,
}

/// Behaviour towards a client that publishes faster than it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RatePolicy {
    /// It is not read from until its rate is kept.
    #[default]
    Wait,
    /// It is disconnected with 0x96 (Message rate too high).
    Disconnect,
}

fulmar_text::with_defaults! {
    /// Bounds of one broker.
    #[derive(Clone, Debug)]
    pub struct Limits {
        /// Largest MQTT packet accepted, fixed header included, in bytes; larger ones close the
        /// connection with 0x95 (Packet too large). At most 268,435,460.
        pub max_packet_bytes: usize = 1024 * 1024,
        /// Connections at once over all listeners; further ones are closed before any MQTT byte.
        pub max_connections: usize = 100_000,
        /// Longest client identifier in bytes; longer ones get 0x85 (Client Identifier not valid).
        pub max_client_id_bytes: usize = 256,
        /// QoS 1 and 2 publications that a client of MQTT 5.0 may have unacknowledged (section 3.1.2.11.3);
        /// clients of 3.1.1 cannot know it.
        pub receive_maximum: u16 = 1024,
        /// QoS 1 and 2 deliveries the broker keeps in flight to one flow, however many the client
        /// would take.
        pub max_in_flight: u16 = 1024,
        /// Topic aliases a client may set on one stream. The broker sets no more towards a client, nor than the
        /// client allows and 16.
        pub topic_alias_maximum: u16 = 64,
        /// Longest keep alive in seconds; a client that requests a longer one or none gets this one
        /// (Server Keep Alive). `None` leaves the client's choice.
        pub max_keep_alive_s: Option<u16> = None,
        /// Longest session expiry interval in seconds; a longer one is reduced, and CONNACK contains the actual one.
        pub max_session_expiry_s: u32 = 7 * 24 * 3600,
        /// Sessions at once, connected or not; further clients get 0x97 (Quota exceeded).
        pub max_sessions: usize = 200_000,
        /// Subscriptions of one session; further ones get 0x97 in SUBACK.
        pub max_subscriptions_per_session: usize = 10_000,
        /// Wildcard and shared subscriptions of one user, or of all clients without a user at one address
        /// (IPv6: one /64), beyond the first 16 of each session; further ones get 0x97 in SUBACK.
        pub max_wildcard_subscriptions_per_user: usize = 10_000,
        /// Flows (data streams with state) of one session; further streams are reset.
        pub max_flows_per_session: usize = 64,
        /// Retained messages; further topics get 0x97.
        pub max_retained_messages: usize = 200_000,
        /// Bytes of retained messages, topics and properties included.
        pub max_retained_bytes: usize = 512 * 1024 * 1024,
        /// Messages queued for one session beyond those in flight.
        pub max_queued_messages: usize = 10_000,
        /// Bytes queued for one session beyond those in flight.
        pub max_queued_bytes: usize = 16 * 1024 * 1024,
        /// Choice of the message that gives way when a session's queue is full.
        pub drop_policy: DropPolicy = DropPolicy::default(),
        /// Encoded bytes waiting for one stream; above it QoS 0 messages are dropped for this
        /// receiver and QoS 1 and 2 stay in the queue.
        pub max_outbox_bytes: usize = 1024 * 1024,
        /// The same over all streams of a connection, each of which may have an equal share of it: a
        /// client with many streams that reads none of them costs no more than this, and as much again
        /// in the transport's hands.
        pub max_connection_outbox_bytes: usize = 8 * 1024 * 1024,
        /// From this size in bytes on, a message is copied for a receiver only when it can be sent.
        pub large_message_bytes: usize = 16 * 1024,
        /// Bytes of such messages that all workers together copy per turn: a few milliseconds, with writing them.
        pub large_bytes_per_turn: usize = 4 * 1024 * 1024,
        /// Time a connection has from its first byte to a whole CONNECT, authentication included.
        pub connect_timeout: Duration = Duration::from_secs(10),
        /// Operations waiting for the disk above which publishers are not read from.
        pub max_storage_backlog: usize = 50_000,
        /// Longest time until a batch is durable. Then storage counts as stalled, and what would have to be stored
        /// gets 0x83 (Implementation specific error) until it is.
        pub storage_stall_timeout: Duration = Duration::from_secs(10),
        /// Messages a client may publish a second, a second's worth at once; 0 for any number.
        pub max_publishes_per_s: u32 = 0,
        /// Bytes of PUBLISH packets a client may send a second, a second's worth at once; 0 for any
        /// number.
        pub max_publish_bytes_per_s: u32 = 0,
        /// Treatment of clients above either.
        pub rate_policy: RatePolicy = RatePolicy::default(),
        /// Connections per second from one address (IPv6: one /64), with bursts of the same number; further ones are
        /// closed before any MQTT byte. 0 for no limit.
        pub max_connects_per_s_per_address: u32 = 0,
        /// Memory that clients can make the broker use, altogether.
        pub memory: MemoryLimits = MemoryLimits::NONE,
        /// Topics a worker remembers the receivers of.
        pub max_cached_routes: usize = 16_384,
        /// Size of the receivers that a worker remembers, in bytes; those of one topic may have more.
        pub max_cached_route_bytes: usize = 24 << 20,
    }
}

impl Limits {
    /// Bytes for all receivers of a large message from which on they are much: an eighth of a turn.
    pub(crate) fn much_for_all(&self) -> usize {
        self.large_bytes_per_turn / 8
    }
}
