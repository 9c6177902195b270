//! A message that is being sent to its receivers.
//!
//! For the first receiver of a protocol version and layout (with or without packet identifier) it is encoded where it is
//! to be sent from. From the second one on there is a template: its bytes are copied, and the first byte and the
//! identifier set. The shared [`Message`] is made only when somebody must remember it: a QoS 0 message to connected
//! receivers never allocates.

use std::sync::Arc;

use fulmar_auth::Timestamp;
use fulmar_mqtt::publish::{PublishHead, encode_header, encode_header_start};
use fulmar_mqtt::{PacketId, QoS, Version};

use crate::aliases::Naming;
use crate::broker::Broker;
use crate::deferred_ops::TurnStamp;
use crate::message::{Message, MessageParts};
use crate::outbox::{ClientLimits, Outbox, is_shared};
use crate::turn::Turn;

/// Reusable encodings of the message in hand; lives in its worker.
#[derive(Debug, Default)]
pub(crate) struct Parcel {
    templates: [Template; 4],
}

#[derive(Debug, Default)]
struct Template {
    receivers: Receivers,
    bytes: Vec<u8>,
    packet_id_at: usize,
}

/// How many receivers of a template's version and layout there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Receivers {
    #[default]
    None,
    One,
    /// The template is made.
    More,
}

/// How one receiver gets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) identifiers: &'a [u32],
    pub(crate) naming: Naming,
}

/// A message being published.
#[derive(Debug)]
pub(crate) struct Publication<'a> {
    parts: MessageParts<'a>,
    message: Option<Arc<Message>>,
    parcel: &'a mut Parcel,
    /// The tree's generation as of which its receivers were found.
    pub(crate) found_in: u64,
    /// Bytes for its receivers so far, copied or still to be.
    pub(crate) bytes: usize,
    /// The shared subscription whose members are its receivers; 0 for others.
    pub(crate) share: u32,
    /// In which turn it was stored for another receiver, whose place is taken.
    pub(crate) stored_in: Option<TurnStamp>,
}

impl<'a> Publication<'a> {
    pub(crate) fn new(parts: MessageParts<'a>, parcel: &'a mut Parcel) -> Publication<'a> {
        for template in &mut parcel.templates {
            template.receivers = Receivers::None;
        }
        let (message, found_in, stored_in) = (None, u64::MAX, None);
        Publication { parts, message, parcel, found_in, bytes: 0, share: 0, stored_in }
    }

    /// One that already has its shared form.
    pub(crate) fn of(message: &'a Arc<Message>, parcel: &'a mut Parcel) -> Publication<'a> {
        let mut publication = Publication::new(message.parts(), parcel);
        publication.message = Some(Arc::clone(message));
        publication
    }

    pub(crate) fn parts(&self) -> &MessageParts<'a> {
        &self.parts
    }

    /// The shared form, if somebody keeps the message.
    pub(crate) fn kept(&self) -> Option<&Arc<Message>> {
        self.message.as_ref()
    }

    /// Bytes of topic, properties and payload.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.parts.topic.len() + self.parts.properties.len() + self.parts.payload.len()
    }

    /// The shared form, made at the first call.
    pub(crate) fn message(&mut self, broker: &Broker) -> Arc<Message> {
        let message = self.message.get_or_insert_with(|| {
            let message = Message::new(broker.next_message_id(), &self.parts);
            message.count_in(broker.memory.accounts());
            message
        });
        Arc::clone(message)
    }

    /// Puts it into one receiver's outbox, unless it is larger than the client accepts.
    pub(crate) fn send(
        &mut self,
        outbox: &mut Outbox,
        turn: &mut Turn,
        client: ClientLimits,
        terms: Terms<'_>,
        packet_id: Option<PacketId>,
    ) -> bool {
        let (version, now) = (client.version, turn.now);
        self.bytes = self.bytes.saturating_add(self.size());
        if let Some(message) = &self.message
            && is_shared(message, version, turn.limits().large_message_bytes)
        {
            let fits = outbox.publish_large(client, message, |out, naming| {
                let terms = Terms { naming, ..terms };
                encode_start(out, version, &message.parts(), terms, packet_id, false, now);
            });
            return count(turn, fits);
        }
        let topic = self.parts.topic;
        let encode = |out: &mut Vec<u8>, naming| {
            self.encode(out, version, Terms { naming, ..terms }, packet_id, now);
        };
        let fits = outbox.publish(client, || turn.buffer(), topic, encode);
        count(turn, fits)
    }

    /// Appends the PUBLISH packet for one receiver.
    fn encode(
        &mut self,
        out: &mut Vec<u8>,
        version: Version,
        terms: Terms<'_>,
        packet_id: Option<PacketId>,
        now: Timestamp,
    ) {
        let own = !terms.identifiers.is_empty() || terms.naming != Naming::Topic;
        if own && version == Version::V5 {
            encode_publish(out, version, &self.parts, terms, packet_id, false, now);
            return;
        }
        let layout = usize::from(version == Version::V5) * 2 + usize::from(packet_id.is_some());
        let template = &mut self.parcel.templates[layout];
        if template.receivers == Receivers::None {
            template.receivers = Receivers::One;
            encode_publish(out, version, &self.parts, terms, packet_id, false, now);
            return;
        }
        if template.receivers == Receivers::One {
            template.bytes.clear();
            let bytes = &mut template.bytes;
            encode_publish(bytes, version, &self.parts, terms, packet_id, false, now);
            let tail = self.parts.payload.len();
            template.packet_id_at = packet_id_place(bytes, self.parts.topic.len());
            debug_assert!(template.packet_id_at + tail <= template.bytes.len());
            template.receivers = Receivers::More;
        }
        let start = out.len();
        out.extend_from_slice(&template.bytes);
        out[start] = first_byte(terms.qos, terms.retain);
        if let Some(packet_id) = packet_id {
            let at = start + template.packet_id_at;
            out[at..at + 2].copy_from_slice(&packet_id.get().to_be_bytes());
        }
    }
}

/// Counts a message that was sent, or dropped because it is larger than the client accepts.
pub(crate) fn count(turn: &Turn, fits: bool) -> bool {
    let metrics = turn.metrics();
    if fits {
        metrics.messages_sent.add(1)
    } else {
        metrics.messages_dropped_size.add(1)
    }
    fits
}

fn first_byte(qos: QoS, retain: bool) -> u8 {
    0x30 | (qos as u8) << 1 | u8::from(retain)
}

/// Where the packet identifier lies: behind the fixed header and the topic name.
fn packet_id_place(packet: &[u8], topic_len: usize) -> usize {
    let length_bytes = packet[1..].iter().take_while(|byte| **byte & 0x80 != 0).count() + 1;
    1 + length_bytes + 2 + topic_len
}

/// Appends a PUBLISH packet with everything written anew.
pub(crate) fn encode_publish(
    out: &mut Vec<u8>,
    version: Version,
    parts: &MessageParts<'_>,
    terms: Terms<'_>,
    packet_id: Option<PacketId>,
    dup: bool,
    now: Timestamp,
) {
    encode_header(out, version, &head(parts, terms, packet_id, dup, now));
    out.extend_from_slice(parts.payload);
}

/// Appends what is in front of [`Message::tail`] in such a packet.
pub(crate) fn encode_start(
    out: &mut Vec<u8>,
    version: Version,
    parts: &MessageParts<'_>,
    terms: Terms<'_>,
    packet_id: Option<PacketId>,
    dup: bool,
    now: Timestamp,
) {
    encode_header_start(out, version, &head(parts, terms, packet_id, dup, now));
}

#[inline]
fn head<'a>(
    parts: &MessageParts<'a>,
    terms: Terms<'a>,
    packet_id: Option<PacketId>,
    dup: bool,
    now: Timestamp,
) -> PublishHead<'a> {
    let message_expiry = parts.expires_at.map(|at| {
        let left = at.since(now);
        u32::try_from(left.as_millis().div_ceil(1000)).unwrap_or(u32::MAX)
    });
    let (topic, topic_alias) = terms.naming.of(parts.topic);
    PublishHead {
        dup,
        qos: terms.qos,
        retain: terms.retain,
        topic,
        packet_id,
        message_expiry,
        topic_alias,
        subscription_ids: terms.identifiers,
        raw_properties: parts.properties,
        payload_len: parts.payload.len(),
    }
}
