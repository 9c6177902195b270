//! The delivery of one message to all its receivers.
//!
//! It is encoded at most once per protocol version and layout (with or without packet identifier);
//! for each receiver the bytes are copied and the first byte and the identifier set. The shared
//! [`Message`] is made only when somebody must remember it: a QoS 0 message to connected
//! receivers never allocates.

use std::sync::Arc;

use fulmar_mqtt::publish::{PublishHead, encode_header};
use fulmar_mqtt::{PacketId, QoS, Version};

use crate::aliases::Naming;
use crate::broker::Broker;
use crate::message::{Message, MessageParts};
use crate::outbox::{ClientLimits, Outbox};
use crate::retained::RetainedFull;
use crate::route::Target;
use crate::session::Session;
use crate::shard::{Shard, Turn};
use crate::time::Timestamp;
use crate::tree::SharedGroup;

/// Reusable encodings of the message in hand; lives in its worker.
#[derive(Debug, Default)]
pub(crate) struct Parcel {
    templates: [Template; 4],
}

#[derive(Debug, Default)]
struct Template {
    made: bool,
    bytes: Vec<u8>,
    packet_id_at: usize,
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
}

impl<'a> Publication<'a> {
    pub(crate) fn new(parts: MessageParts<'a>, parcel: &'a mut Parcel) -> Publication<'a> {
        for template in &mut parcel.templates {
            template.made = false;
        }
        Publication { parts, message: None, parcel, found_in: u64::MAX }
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

    /// The shared form, made at the first call.
    pub(crate) fn message(&mut self, broker: &Broker) -> Arc<Message> {
        let message =
            self.message.get_or_insert_with(|| Message::new(broker.next_message_id(), &self.parts));
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
        let fits = if client.aliases == 0 {
            let encode = |out: &mut Vec<u8>| self.encode(out, version, terms, packet_id, now);
            outbox.publish(client, || turn.buffer(), encode)
        } else {
            let topic = self.parts.topic;
            outbox.publish_aliased(
                client,
                || turn.buffer(),
                topic,
                |out, naming| {
                    self.encode(out, version, Terms { naming, ..terms }, packet_id, now);
                },
            )
        };
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
        if !template.made {
            template.bytes.clear();
            let bytes = &mut template.bytes;
            encode_publish(bytes, version, &self.parts, terms, packet_id, false, now);
            let tail = self.parts.payload.len();
            template.packet_id_at = packet_id_place(bytes, self.parts.topic.len());
            debug_assert!(template.packet_id_at + tail <= template.bytes.len());
            template.made = true;
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
    let message_expiry = parts.expires_at.map(|at| {
        let left = at.since(now);
        u32::try_from(left.as_millis().div_ceil(1000)).unwrap_or(u32::MAX)
    });
    let (topic, topic_alias) = terms.naming.of(parts.topic);
    let head = PublishHead {
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
    };
    encode_header(out, version, &head);
    out.extend_from_slice(parts.payload);
}

impl Shard {
    /// Publishes: sets or clears the retained message if asked to, and delivers to everybody the
    /// topic reaches. Returns how many took it.
    pub(crate) fn publish(&mut self, parts: MessageParts<'_>) -> usize {
        self.publish_or_refuse(parts, false).unwrap_or(0)
    }

    /// Like [`Shard::publish`]. If `whole` is set, the publisher can get an error; a message that cannot be retained is
    /// then not delivered either.
    ///
    /// # Errors
    /// A bound of the retained messages was reached, and `whole` is set.
    pub(crate) fn publish_or_refuse(
        &mut self,
        parts: MessageParts<'_>,
        whole: bool,
    ) -> Result<usize, RetainedFull> {
        let broker = Arc::clone(&self.turn.broker);
        let route = self.routes.find(&broker, parts.topic, &mut self.turn.fan_out);
        let mut publication = Publication::new(parts, &mut self.parcel);
        publication.found_in = route.generation;
        if parts.retain
            && let Err(full) = self.turn.retain(&mut publication)
        {
            if let Some(times) = self.retained_full.occurred(self.turn.now) {
                tracing::warn!(
                    topic = parts.topic,
                    times,
                    "message not retained: max_retained_messages or max_retained_bytes reached"
                );
            }
            if whole {
                return Err(full);
            }
        }
        let (mut taken, mut visits) = (0, route.targets.len());
        for target in &route.targets {
            self.test_hook.run();
            taken += usize::from(self.turn.hand_over(&mut publication, target));
        }
        for group in &route.shared {
            self.test_hook.run();
            let (took, tried) = self.turn.hand_to_one(&mut publication, group, route.guarded);
            taken += usize::from(took);
            visits += tried;
        }
        self.turn.fan_out.spend(visits);
        // What the broker says of itself need not interest anybody.
        if taken == 0 && !parts.topic.starts_with("$SYS/") {
            self.turn.metrics().messages_unroutable.add(1);
        }
        Ok(taken)
    }
}

impl Turn {
    fn hand_over(&mut self, publication: &mut Publication<'_>, target: &Target) -> bool {
        let parts = publication.parts();
        if target.no_local && parts.publisher == target.session.key().0 {
            return false;
        }
        let terms = Terms {
            qos: target.qos.min(parts.qos),
            retain: parts.retain && target.retain_as_published,
            identifiers: &target.identifiers,
            naming: Naming::Topic,
        };
        deliver(self, &target.session, publication, target.flow, terms)
    }

    /// Hands the publication to one member of a group: the next one that is connected and accepts it,
    /// or else one that is not, whose session keeps it (section 4.8.2). Returns whether one took it, and
    /// how many were tried.
    fn hand_to_one(
        &mut self,
        publication: &mut Publication<'_>,
        group: &SharedGroup,
        guarded: bool,
    ) -> (bool, usize) {
        let (mut first_absent, mut tried) = (None, 0);
        for member in group.rotation() {
            tried += 1;
            if guarded && !self.broker.may_receive(&member.session, publication.parts().topic) {
                continue;
            }
            if member.session.lock().attachment.is_none() {
                first_absent = first_absent.or(Some(member));
            } else if self.hand_over(publication, &Target::of(&member)) {
                return (true, tried);
            }
        }
        let kept =
            first_absent.is_some_and(|member| self.hand_over(publication, &Target::of(&member)));
        (kept, tried)
    }

    /// Sets or clears the topic's retained message; the store's bound decides.
    fn retain(&mut self, publication: &mut Publication<'_>) -> Result<(), RetainedFull> {
        let broker = Arc::clone(&self.broker);
        let topic = publication.parts().topic;
        let stored = !topic.starts_with('$');
        if publication.parts().payload.is_empty() {
            let mut retained = broker.retained().write();
            if retained.remove(topic) && stored {
                self.store_retained(topic);
            }
            return Ok(());
        }
        let message = publication.message(&broker);
        let mut retained = broker.retained().write();
        let put = retained.put(message, broker.limits());
        match put {
            Ok(()) if stored => self.store_retained(topic),
            Ok(()) => {}
            Err(RetainedFull) => self.metrics().retained_refused.add(1),
        }
        put
    }
}

/// Delivers to one flow of one session.
pub(crate) fn deliver(
    turn: &mut Turn,
    session: &Arc<Session>,
    publication: &mut Publication<'_>,
    flow: crate::storage::FlowId,
    terms: Terms<'_>,
) -> bool {
    session.lock().deliver(session, turn, publication, flow, terms)
}
