//! An application message: immutable, shared by every queue that holds it.
//!
//! Topic, properties and payload are in one allocation. The properties are kept in their MQTT 5.0
//! encoding, without those that belong to one hop only (topic alias, subscription identifier) and
//! without the message expiry interval, which is computed again at each delivery
//! (MQTT 5.0 section 3.3.2.3.3).

use std::fmt;
use std::sync::{Arc, OnceLock};

use fulmar_auth::Timestamp;
use fulmar_mqtt::{QoS, Version};
use ring::digest;
use smallvec::SmallVec;

use crate::memory::Accounts;

/// Identifies a stored message; unique for the life of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(pub u64);

/// Subscription identifiers of one delivery; nearly always none or one.
pub(crate) type Identifiers = SmallVec<[u32; 2]>;

/// Names a publisher by its client identifier, as No Local does ([MQTT-3.8.3-3]): retained messages outlive its session,
/// the process, and in a cluster the node. Nobody finds an identifier with the name of a given other one.
pub(crate) fn publisher(client_id: &str) -> u64 {
    stable_hash(client_id).max(1)
}

/// Names a shared subscription, as long as there are messages of it.
pub(crate) fn share(share: &str, filter: &str) -> u32 {
    let hash = stable_hash(&format!("{share}/{filter}")) >> 32;
    u32::try_from(hash).unwrap_or_default().max(1)
}

/// A hash that is stored.
fn stable_hash(text: &str) -> u64 {
    let digest = digest::digest(&digest::SHA256, text.as_bytes());
    digest.as_ref().first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

/// Everything a [`Message`] is made of, borrowed. By default, of the broker itself, at QoS 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct MessageParts<'a> {
    /// Topic name, at most 65,535 bytes.
    pub topic: &'a str,
    /// Forwardable properties in MQTT 5.0 encoding, without their length prefix.
    pub properties: &'a [u8],
    /// Application payload.
    pub payload: &'a [u8],
    /// Quality of service the publisher used.
    pub qos: QoS,
    /// The publisher's RETAIN flag.
    pub retain: bool,
    /// When the message stops being deliverable; `None` for never.
    pub expires_at: Option<Timestamp>,
    /// Names the client that published it; 0 for the broker itself. Decides No Local.
    pub publisher: u64,
}

/// An application message as the broker holds it.
pub struct Message {
    id: MessageId,
    data: Box<[u8]>,
    topic_len: u16,
    properties_len: u32,
    qos: QoS,
    retain: bool,
    expires_at: Option<Timestamp>,
    publisher: u64,
    /// Where its content is counted.
    counted_in: OnceLock<Arc<Accounts>>,
}

/// Without where it is counted: messages with the same content look the same.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut message = f.debug_struct("Message");
        message.field("id", &self.id).field("topic", &self.topic());
        message.field("properties", &self.properties()).field("payload", &self.payload());
        message.field("qos", &self.qos).field("retain", &self.retain);
        message.field("expires_at", &self.expires_at).field("publisher", &self.publisher).finish()
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(accounts) = self.counted_in.get() {
            accounts.remove_content(self.size());
        }
    }
}

impl Message {
    /// Copies `parts` into a shared message named `id`.
    ///
    /// A topic longer than 65,535 bytes cannot come from the codec; it would be cut here.
    #[must_use]
    pub fn new(id: MessageId, parts: &MessageParts<'_>) -> Arc<Message> {
        let topic = parts.topic.as_bytes();
        let topic_len = u16::try_from(topic.len()).unwrap_or(u16::MAX);
        let topic = &topic[..usize::from(topic_len)];
        let mut data =
            Vec::with_capacity(topic.len() + parts.properties.len() + parts.payload.len());
        data.extend_from_slice(topic);
        data.extend_from_slice(parts.properties);
        data.extend_from_slice(parts.payload);
        Arc::new(Message {
            id,
            data: data.into_boxed_slice(),
            topic_len,
            properties_len: u32::try_from(parts.properties.len()).unwrap_or(0),
            qos: parts.qos,
            retain: parts.retain,
            expires_at: parts.expires_at,
            publisher: parts.publisher,
            counted_in: OnceLock::new(),
        })
    }

    /// Counts its content until nobody keeps it any longer.
    pub(crate) fn count_in(&self, accounts: &Arc<Accounts>) {
        if self.counted_in.set(Arc::clone(accounts)).is_ok() {
            accounts.add_content(self.size());
        }
    }

    /// Storage name of this message.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.id
    }

    /// Topic name.
    #[must_use]
    pub fn topic(&self) -> &str {
        // The bytes came from a `&str`; a cut at 65,535 bytes is the only way to fail.
        std::str::from_utf8(self.topic_bytes()).unwrap_or_default()
    }

    /// The same, in UTF-8.
    pub(crate) fn topic_bytes(&self) -> &[u8] {
        &self.data[..usize::from(self.topic_len)]
    }

    /// Forwardable properties in MQTT 5.0 encoding, without length prefix.
    #[must_use]
    pub fn properties(&self) -> &[u8] {
        let start = usize::from(self.topic_len);
        &self.data[start..start + self.properties_len as usize]
    }

    /// Application payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.data[usize::from(self.topic_len) + self.properties_len as usize..]
    }

    /// What follows the topic: the payload, behind the properties if a receiver gets them.
    pub(crate) fn tail(&self, version: Version) -> &[u8] {
        match version {
            Version::V5 => &self.data[usize::from(self.topic_len)..],
            Version::V311 => self.payload(),
        }
    }

    /// Quality of service the publisher used.
    #[must_use]
    pub fn qos(&self) -> QoS {
        self.qos
    }

    /// The publisher's RETAIN flag.
    #[must_use]
    pub fn retain(&self) -> bool {
        self.retain
    }

    /// When the message stops being deliverable.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.expires_at
    }

    /// Names the client that published it; 0 for the broker itself.
    #[must_use]
    pub fn publisher(&self) -> u64 {
        self.publisher
    }

    /// Bytes of topic, properties and payload.
    pub(crate) fn content_len(&self) -> usize {
        self.data.len()
    }

    /// Bytes this message counts against queue and retained limits.
    #[must_use]
    pub fn size(&self) -> usize {
        self.data.len() + size_of::<Message>()
    }

    /// Whether the message may no longer be delivered at `now`.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// The parts it was made of.
    #[must_use]
    pub fn parts(&self) -> MessageParts<'_> {
        MessageParts {
            topic: self.topic(),
            properties: self.properties(),
            payload: self.payload(),
            qos: self.qos,
            retain: self.retain,
            expires_at: self.expires_at,
            publisher: self.publisher,
        }
    }
}
