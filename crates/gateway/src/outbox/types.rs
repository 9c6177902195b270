//! What goes into the outbox and comes out of it, and its bounds.

use bytes::Bytes;
use fulmar_mqtt::QoS;
use serde::{Deserialize, Serialize};

use crate::mapping::Priority;

/// Largest payload that is sent in a batch.
const BATCHABLE_BYTES: usize = 1024;

/// Behaviour when the outbox is full.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Drop the oldest messages, normal ones before urgent ones: newer messages matter more.
    #[default]
    DropOldest,
    /// Drop new messages.
    DropNewest,
    /// Drop nothing: [`Outbox::store`](super::Outbox::store) fails until there is room. Meanwhile the caller keeps the
    /// messages.
    Refuse,
}

/// The operator's bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum number of bytes of messages, including the overhead of each.
    pub max_bytes: u64,
    /// Longest time that a message may wait, in milliseconds; `None` for no limit.
    pub max_age_ms: Option<u64>,
    /// Behaviour at `max_bytes`.
    pub policy: Policy,
    /// Largest size of the file in bytes; `None` for no limit. For tests of a full disk.
    pub max_file_bytes: Option<u64>,
}

/// A message to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Topic name upstream.
    pub topic: String,
    /// Payload.
    pub payload: Vec<u8>,
    /// Properties to be sent, in MQTT 5.0 encoding, without the message expiry interval.
    pub properties: Vec<u8>,
    /// Quality of service upstream.
    pub qos: QoS,
    /// RETAIN flag.
    pub retain: bool,
    /// Priority of the message.
    pub priority: Priority,
    /// Identifier of the message.
    pub id: String,
    /// When a gateway first accepted it (RFC 3339).
    pub at: String,
    /// Hash of what the device sent, and the DUP flag.
    pub origin: Option<(u64, bool)>,
    /// When it expires, in milliseconds of the program's time.
    pub expires_ms: Option<u64>,
}

/// A stored message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Number in order of arrival; unique for the life of the file.
    pub seq: u64,
    /// Topic name upstream.
    pub topic: String,
    /// Payload.
    pub payload: Bytes,
    /// Properties to be sent, in MQTT 5.0 encoding, without the message expiry interval.
    pub properties: Vec<u8>,
    /// Quality of service upstream.
    pub qos: QoS,
    /// RETAIN flag.
    pub retain: bool,
    /// Identifier of the message.
    pub id: String,
    /// When a gateway first accepted it (RFC 3339).
    pub at: String,
    /// When it was stored, in milliseconds of the program's time.
    pub entered_ms: u64,
    /// When it expires, in milliseconds of the program's time.
    pub expires_ms: Option<u64>,
}

impl Stored {
    /// Bytes that it counts when in flight.
    #[must_use]
    pub fn size(&self) -> usize {
        self.topic.len() + self.payload.len() + self.properties.len()
    }

    /// Whether its topic is one of those of which Fulmar's platform takes messages out of batches.
    pub(crate) fn is_about_sensor(&self) -> bool {
        let mut levels = self.topic.split('/');
        levels.next() == Some("fulmar") && levels.nth(1) == Some("sensor")
    }

    /// Whether it may be sent in a batch, which has neither RETAIN nor expiry.
    #[must_use]
    pub fn batchable(&self) -> bool {
        !self.retain && self.expires_ms.is_none() && self.payload.len() <= BATCHABLE_BYTES
    }
}

/// Numbers of new and of repeated messages among those put in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredCounts {
    /// New messages by lane: urgent, normal.
    pub taken: [usize; 2],
    /// Messages that were in the outbox already, or had been sent.
    pub known: usize,
}

/// Messages that were read, one page of a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The messages in order.
    pub messages: Vec<Stored>,
    /// Number of the last message; 0 if there is none.
    pub to: u64,
    /// Whether more may follow.
    pub more: bool,
}

/// Why messages were dropped, since the outbox was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Dropped because the outbox was full: an old message to make room, or the new one.
    pub full: u64,
    /// Older than allowed.
    pub age: u64,
    /// Past their own expiry interval.
    pub expired: u64,
}

/// The outbox's fill level, and what it has dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages that wait.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// When the oldest message arrived, in milliseconds of the program's time.
    pub oldest_ms: Option<u64>,
    /// Messages dropped since the outbox was opened.
    pub dropped: Dropped,
}
