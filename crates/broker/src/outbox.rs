//! Packets encoded for one stream that its connection has not taken yet, and the stream's topic aliases. Packets leave
//! in the order in which they were added; if one does not leave, neither do those after it. So an alias is set once
//! its packet is added.
//!
//! The tail of a large message, which is the same for all receivers, is not copied until the connection takes it:
//! 300 receivers of a message would otherwise take 300 times its size, at once, although perhaps none of them reads.

use std::collections::VecDeque;
use std::sync::Arc;

use fulmar_mqtt::Version;

use crate::aliases::{self, Naming, SentAliases};
use crate::memory::{Account, Charge, FREE_OUTPUT, MemoryOwner};
use crate::message::Message;

/// Bytes at which no further large message is taken.
const TAKEN_BYTES: usize = 64 * 1024;

/// Whether a message's tail is shared by its receivers of this version, if messages from `large` bytes on are large. What is
/// small without its properties, which 3.1.1 does not have, is copied.
#[inline]
pub(crate) fn is_shared(message: &Message, version: Version, large: usize) -> bool {
    message.content_len() >= large && message.tail(version).len() >= large
}

/// The limits that a client sets with CONNECT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientLimits {
    pub(crate) version: Version,
    /// Maximum Packet Size, in bytes.
    pub(crate) max_packet_bytes: u32,
    /// Topic aliases on each stream.
    pub(crate) aliases: u16,
}

/// Encoded packets that the connection has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Without the tails of large messages.
    bytes: Vec<u8>,
    /// None while no large message waits.
    large: Option<Box<LargeTails>>,
    /// None before the first message that could get an alias.
    aliases: Option<Box<SentAliases>>,
    /// Memory that is counted for the owner of a slow receiver.
    counted: Option<Box<Charge>>,
}

/// The tails of large messages.
#[derive(Debug, Default)]
struct LargeTails {
    /// Each with its place in [`Outbox::bytes`], in front of this byte, and for which version it is.
    places: VecDeque<(usize, Arc<Message>, Version)>,
    /// Size of the messages together.
    bytes: usize,
}

impl Outbox {
    /// Bytes that wait, each large message as though it were its only receiver's.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.large.as_ref().map_or(0, |large| large.bytes)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether what is taken next has to be copied.
    #[inline]
    pub(crate) fn has_large(&self) -> bool {
        self.large.is_some()
    }

    /// Packets for their stream: all of them, or the first if large messages are among them.
    #[inline]
    pub(crate) fn next_packets(&mut self) -> Vec<u8> {
        if let Some(large) = self.large.take() {
            return self.take_large(large);
        }
        self.counted = None;
        std::mem::take(&mut self.bytes)
    }

    fn take_large(&mut self, mut large: Box<LargeTails>) -> Vec<u8> {
        let (mut taken, mut from) = (Vec::new(), 0);
        while taken.len() < TAKEN_BYTES {
            let Some((place, message, version)) = large.places.pop_front() else { break };
            let tail = message.tail(version);
            let rest = if large.places.is_empty() { self.bytes.len() } else { place };
            taken.reserve_exact(rest - from + tail.len());
            taken.extend_from_slice(&self.bytes[from..place]);
            taken.extend_from_slice(tail);
            from = place;
            large.bytes -= message.size();
        }
        if large.places.is_empty() {
            taken.extend_from_slice(&self.bytes[from..]);
            self.bytes = Vec::new();
            self.counted = None;
            return taken;
        }
        self.bytes.drain(..from);
        for (place, ..) in &mut large.places {
            *place -= from;
        }
        self.large = Some(large);
        let left = self.len();
        if let Some(counted) = &mut self.counted {
            counted.set(left);
        }
        taken
    }

    /// Whether so much has been added that it has to be counted.
    #[inline]
    pub(crate) fn is_uncounted(&self) -> bool {
        let len = self.len();
        if len < FREE_OUTPUT {
            return false;
        }
        let counted = self.counted.as_ref().map_or(0, |counted| counted.bytes());
        len >= counted + FREE_OUTPUT
    }

    /// Counts what waits.
    pub(crate) fn count(&mut self, owner: &Arc<MemoryOwner>) {
        let len = self.len();
        let new = || Box::new(Charge::new(Arc::clone(owner), Account::Output));
        self.counted.get_or_insert_with(new).set(len);
    }

    /// Where packets other than PUBLISH go.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a PUBLISH, unless it is larger than the client accepts ([MQTT-3.1.2-24]). `encode` may be called twice.
    /// Returns whether it fits.
    #[inline]
    pub(crate) fn publish(
        &mut self,
        client: ClientLimits,
        buffer: impl FnOnce() -> Vec<u8>,
        topic: &str,
        encode: impl FnMut(&mut Vec<u8>, Naming),
    ) -> bool {
        if self.bytes.capacity() == 0 {
            self.bytes = buffer();
        }
        self.add(0, client, topic, encode)
    }

    /// Appends a PUBLISH of a large message ([`is_shared`]); `encode` appends what is in front of its tail, and may be
    /// called twice.
    pub(crate) fn publish_large(
        &mut self,
        client: ClientLimits,
        message: &Arc<Message>,
        encode: impl FnMut(&mut Vec<u8>, Naming),
    ) -> bool {
        let tail = message.tail(client.version).len();
        let fits = self.add(tail, client, message.topic(), encode);
        if fits {
            let large = self.large.get_or_insert_default();
            large.places.push_back((self.bytes.len(), Arc::clone(message), client.version));
            large.bytes += message.size();
        }
        fits
    }

    #[inline]
    fn add(
        &mut self,
        tail: usize,
        client: ClientLimits,
        topic: &str,
        mut encode: impl FnMut(&mut Vec<u8>, Naming),
    ) -> bool {
        let start = self.bytes.len();
        let mut naming = Naming::Topic;
        if client.aliases > 0 && aliases::is_worth_one(topic) {
            naming = self.aliases.get_or_insert_default().choose(topic, client.aliases);
        }
        encode(&mut self.bytes, naming);
        let fits = self.keep_if_it_fits(start, tail, client);
        let Naming::Set(alias) = naming else { return fits };
        if fits {
            self.aliases.get_or_insert_default().set(alias, topic);
            return true;
        }
        // Perhaps it fits without the alias.
        encode(&mut self.bytes, Naming::Topic);
        self.keep_if_it_fits(start, tail, client)
    }

    /// `tail` is the length of what is not in [`Outbox::bytes`].
    #[inline]
    fn keep_if_it_fits(&mut self, start: usize, tail: usize, client: ClientLimits) -> bool {
        let fits = self.bytes.len() - start + tail <= client.max_packet_bytes as usize;
        if !fits {
            self.bytes.truncate(start);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{MessageId, MessageParts};
    use fulmar_mqtt::QoS;

    const CLIENT: ClientLimits =
        ClientLimits { version: Version::V5, max_packet_bytes: 60_000, aliases: 0 };

    fn large(byte: u8, properties: usize, payload: usize) -> Arc<Message> {
        let parts = MessageParts {
            topic: "t",
            properties: &vec![byte; properties],
            payload: &vec![byte; payload],
            qos: QoS::AtMostOnce,
            retain: false,
            expires_at: None,
            publisher: 0,
        };
        Message::new(MessageId(1), &parts)
    }

    #[test]
    fn packets_leave_in_order_and_not_all_large_ones_at_once() {
        for version in [Version::V311, Version::V5] {
            let (client, mut outbox) = (ClientLimits { version, ..CLIENT }, Outbox::default());
            let (mut expected, mut held) = (Vec::new(), 0);
            for number in 0..10_u8 {
                let message = large(b'a' + number, 50, 20_000 + usize::from(number) * 1_000);
                let fits = outbox.publish_large(client, &message, |out, _| out.push(number));
                assert!(fits);
                assert!(outbox.publish(client, Vec::new, "t", |out, _| out.push(255)));
                outbox.bytes().push(254);
                expected.push(number);
                expected.extend_from_slice(message.tail(version));
                expected.extend_from_slice(&[255, 254]);
                held += message.size() + 3;
                assert_eq!(outbox.len(), held);
            }
            let mut got = Vec::new();
            while !outbox.is_empty() {
                assert!(outbox.has_large());
                let taken = outbox.next_packets();
                let is_last = outbox.is_empty();
                assert!(taken.len() >= TAKEN_BYTES || is_last, "{}", taken.len());
                assert!(taken.len() < TAKEN_BYTES + 30_000, "{}", taken.len());
                got.extend_from_slice(&taken);
            }
            assert_eq!(got, expected);
            assert!(!outbox.has_large() && outbox.next_packets().is_empty());
        }
    }

    #[test]
    fn what_a_client_does_not_accept_leaves_no_trace() {
        let mut outbox = Outbox::default();
        assert!(!outbox.publish_large(CLIENT, &large(1, 1, 59_999), |out, _| out.push(9)));
        assert!(outbox.is_empty() && !outbox.has_large());
        // Without the alias it fits.
        let client = ClientLimits { aliases: 1, ..CLIENT };
        let message = large(1, 1, 59_998);
        for _ in 0..2 {
            let fits = outbox.publish_large(client, &message, |out, naming| {
                out.push(9);
                out.extend((naming != Naming::Topic).then_some(1));
            });
            assert!(fits);
            assert_eq!(outbox.next_packets().len(), 60_000);
        }
    }

    #[test]
    fn what_is_large_is_shared() {
        let (small, properties, payload) =
            (large(1, 10, 10_000), large(1, 40_000, 10_000), large(1, 100, 18_000));
        for (version, shared) in
            [(Version::V5, [false, true, true]), (Version::V311, [false, false, true])]
        {
            let messages = [&small, &properties, &payload];
            let found = messages.map(|message| is_shared(message, version, 16_384));
            assert_eq!(found, shared, "{version:?}");
        }
    }
}
