//! Packets encoded for one stream that its connection has not taken yet, and the stream's topic aliases. Packets leave
//! in the order in which they were added; if one does not leave, neither do those after it. So an alias is set once
//! its packet is added.
//!
//! The payload of a large message is not copied until the connection takes it: 300 receivers of a message would
//! otherwise take 300 times its size, at once, although most of them perhaps do not read.

use std::collections::VecDeque;
use std::sync::Arc;

use fulmar_mqtt::Version;

use crate::aliases::{self, Naming, SentAliases};
use crate::memory::{Account, Charge, FREE_OUTPUT, MemoryOwner};
use crate::message::Message;

/// Payload from which on a message is large.
pub(crate) const LARGE: usize = 16 * 1024;

/// Bytes up to which several large messages are taken at once.
const TAKEN_BYTES: usize = 64 * 1024;

/// Whether a message's payload is shared by those that it is sent to.
#[inline]
pub(crate) fn is_large(message: &Message) -> bool {
    message.payload().len() >= LARGE
}

/// The limits that a client sets with CONNECT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientLimits {
    pub(crate) version: Version,
    /// Its Maximum Packet Size, in bytes.
    pub(crate) max_packet_bytes: u32,
    /// Topic aliases on each stream.
    pub(crate) aliases: u16,
}

/// Encoded packets that the connection has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Without the payloads of large messages.
    bytes: Vec<u8>,
    /// None while no large message waits.
    large: Option<Box<LargePayloads>>,
    /// None before the first message that could get an alias.
    aliases: Option<Box<SentAliases>>,
    /// Of a receiver that is slow: what is counted for its owner.
    counted: Option<Box<Charge>>,
}

/// The payloads of large messages.
#[derive(Debug, Default)]
struct LargePayloads {
    /// Each with its place in [`Outbox::bytes`]: in front of this byte.
    places: VecDeque<(usize, Arc<Message>)>,
    /// Their length together.
    len: usize,
}

impl Outbox {
    /// Bytes that wait, with all payloads.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.large.as_ref().map_or(0, |large| large.len)
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
    pub(crate) fn take(&mut self) -> Vec<u8> {
        if let Some(large) = self.large.take() {
            return self.take_large(large);
        }
        self.counted = None;
        std::mem::take(&mut self.bytes)
    }

    fn take_large(&mut self, mut large: Box<LargePayloads>) -> Vec<u8> {
        let (mut taken, mut from) = (Vec::new(), 0);
        while let Some((place, message)) = large.places.front() {
            let payload = message.payload();
            let more = place - from + payload.len();
            if from > 0 && taken.len() + more > TAKEN_BYTES {
                break;
            }
            taken.reserve_exact(more);
            taken.extend_from_slice(&self.bytes[from..*place]);
            taken.extend_from_slice(payload);
            from = *place;
            large.len -= payload.len();
            large.places.pop_front();
        }
        if large.places.is_empty() {
            taken.extend_from_slice(&self.bytes[from..]);
            self.bytes = Vec::new();
            self.counted = None;
            return taken;
        }
        self.bytes.drain(..from);
        for (place, _) in &mut large.places {
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

    /// Counts what waits, each payload as though it were copied: it will be.
    pub(crate) fn count(&mut self, owner: &Arc<MemoryOwner>) {
        let len = self.len();
        let new = || Box::new(Charge::new(Arc::clone(owner), Account::Output));
        self.counted.get_or_insert_with(new).set(len);
    }

    /// Where packets other than PUBLISH go.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a PUBLISH to a client that allows no aliases, unless it is larger than the client accepts
    /// ([MQTT-3.1.2-24]). Returns whether it fits.
    #[inline]
    pub(crate) fn publish(
        &mut self,
        client: ClientLimits,
        buffer: impl FnOnce() -> Vec<u8>,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let start = self.start(buffer);
        encode(&mut self.bytes);
        self.keep_if_it_fits(start, 0, client)
    }

    /// The same to a client that allows aliases. `encode` may be called twice.
    pub(crate) fn publish_aliased(
        &mut self,
        client: ClientLimits,
        buffer: impl FnOnce() -> Vec<u8>,
        topic: &str,
        encode: impl FnMut(&mut Vec<u8>, Naming),
    ) -> bool {
        let start = self.start(buffer);
        self.add_aliased(start, 0, client, topic, encode)
    }

    /// Appends a PUBLISH of a large message; `encode` appends what is in front of its payload, and may be called twice.
    pub(crate) fn publish_large(
        &mut self,
        client: ClientLimits,
        message: &Arc<Message>,
        mut encode: impl FnMut(&mut Vec<u8>, Naming),
    ) -> bool {
        let (start, payload_len) = (self.bytes.len(), message.payload().len());
        let fits = if client.aliases == 0 {
            encode(&mut self.bytes, Naming::Topic);
            self.keep_if_it_fits(start, payload_len, client)
        } else {
            self.add_aliased(start, payload_len, client, message.topic(), encode)
        };
        if fits {
            let large = self.large.get_or_insert_default();
            large.places.push_back((self.bytes.len(), Arc::clone(message)));
            large.len += payload_len;
        }
        fits
    }

    fn add_aliased(
        &mut self,
        start: usize,
        payload_len: usize,
        client: ClientLimits,
        topic: &str,
        mut encode: impl FnMut(&mut Vec<u8>, Naming),
    ) -> bool {
        let mut naming = Naming::Topic;
        if aliases::is_worth_one(topic) {
            naming = self.aliases.get_or_insert_default().choose(topic, client.aliases);
        }
        encode(&mut self.bytes, naming);
        let fits = self.keep_if_it_fits(start, payload_len, client);
        let Naming::Set(alias) = naming else { return fits };
        if fits {
            self.aliases.get_or_insert_default().set(alias, topic);
            return true;
        }
        // Perhaps it fits without the alias.
        encode(&mut self.bytes, Naming::Topic);
        self.keep_if_it_fits(start, payload_len, client)
    }

    #[inline]
    fn start(&mut self, buffer: impl FnOnce() -> Vec<u8>) -> usize {
        if self.bytes.capacity() == 0 {
            self.bytes = buffer();
        }
        self.bytes.len()
    }

    /// `payload_len` is the length of the payload if it is not in [`Outbox::bytes`].
    #[inline]
    fn keep_if_it_fits(&mut self, start: usize, payload_len: usize, client: ClientLimits) -> bool {
        let fits = self.bytes.len() - start + payload_len <= client.max_packet_bytes as usize;
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

    fn large(byte: u8, len: usize) -> Arc<Message> {
        let parts = MessageParts {
            topic: "t",
            properties: &[],
            payload: &vec![byte; len],
            qos: QoS::AtMostOnce,
            retain: false,
            expires_at: None,
            publisher: 0,
        };
        Message::new(MessageId(1), &parts)
    }

    #[test]
    fn packets_leave_in_order_and_not_all_large_ones_at_once() {
        let mut outbox = Outbox::default();
        let mut expected = Vec::new();
        for number in 0..10_u8 {
            let len = 20_000 + usize::from(number) * 1_000;
            let message = large(b'a' + number, len);
            assert!(outbox.publish_large(CLIENT, &message, |out, _| out.push(number)));
            assert!(outbox.publish(CLIENT, Vec::new, |out| out.extend_from_slice(&[number, 255])));
            outbox.bytes().push(254);
            expected.push(number);
            expected.extend_from_slice(message.payload());
            expected.extend_from_slice(&[number, 255, 254]);
            assert_eq!(outbox.len(), expected.len());
        }
        let mut got = Vec::new();
        while !outbox.is_empty() {
            assert!(outbox.has_large());
            let taken = outbox.take();
            assert!(taken.len() > LARGE && taken.len() <= TAKEN_BYTES, "{}", taken.len());
            got.extend_from_slice(&taken);
            assert_eq!(outbox.len(), expected.len() - got.len());
        }
        assert_eq!(got, expected);
        assert!(!outbox.has_large() && outbox.take().is_empty());
    }

    #[test]
    fn what_a_client_does_not_accept_leaves_no_trace() {
        let mut outbox = Outbox::default();
        assert!(!outbox.publish_large(CLIENT, &large(1, 60_000), |out, _| out.push(9)));
        assert!(outbox.is_empty() && !outbox.has_large());
        // Without the alias it fits.
        let client = ClientLimits { aliases: 1, ..CLIENT };
        let message = large(1, 59_999);
        for _ in 0..2 {
            let fits = outbox.publish_large(client, &message, |out, naming| {
                out.push(9);
                out.extend((naming != Naming::Topic).then_some(1));
            });
            assert!(fits);
            assert_eq!(outbox.take().len(), 60_000);
        }
    }
}
