//! One user's way into the broker: an MQTT 5.0 connection inside the process, over transport's handoff, so that
//! authentication, access rules, durability and limits are the broker's. All CoAP peers of a user share it.
//!
//! Knows nothing of CoAP: what is sent is named by a number, and its fate is told by that number.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;
use fulmar_broker::Peer;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::codec::{MAX_PACKET_BYTES, decode, peek_frame};
use fulmar_mqtt::packet::{
    Ack, Connect, FilterList, Publish, RetainHandling, Subscribe, SubscribeOptions, Unsubscribe,
};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode, Version};
use fulmar_transport::{Framing, Handoff};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

const VERSION: Version = Version::V5;
/// Messages the broker may have on their way to us before it waits for our acknowledgements.
const RECEIVE_MAXIMUM: u16 = 256;
/// Publications that wait for their acknowledgement; beyond, peers are told to come back later.
const MAX_IN_FLIGHT: usize = 1024;
/// Bytes of such publications.
const MAX_IN_FLIGHT_BYTES: usize = 16 << 20;

/// Names what was asked of the broker.
pub(super) type Ticket = u64;

/// What the broker said.
#[derive(Debug)]
pub(super) enum Heard {
    /// The connection is there, under this client identifier, and so many publications may be in flight.
    Welcome { client_id: Box<str>, in_flight: u16 },
    /// It is not, with the broker's reason, or no longer.
    Over(Option<ReasonCode>),
    /// A publication, or a subscription, was answered; [`Link::settle`] knows which.
    Answer(PacketId, ReasonCode),
    /// A message to a topic that is subscribed to.
    Message { topic: Box<str>, payload: Bytes, content_type: Option<Box<str>> },
}

/// A message to be published.
pub(super) struct Outgoing<'a> {
    pub(super) topic: &'a str,
    pub(super) payload: &'a [u8],
    pub(super) content_type: Option<&'a str>,
    pub(super) retain: bool,
}

/// A link. Dropping it ends the connection.
pub(super) struct Link {
    writer: mpsc::UnboundedSender<Vec<u8>>,
    /// What waits for an answer, by packet identifier, and its bytes.
    waiting: BTreeMap<PacketId, (Ticket, usize)>,
    waiting_bytes: usize,
    last_id: u16,
    most_in_flight: usize,
}

/// The broker has more to do than it may have.
pub(super) struct Busy;

impl Link {
    /// Opens a connection of `peer`. What the broker says comes through `heard`, with `name`.
    ///
    /// # Errors
    /// There are no file descriptors left, or the broker is ending.
    pub(super) fn open<N: Clone + Send + 'static>(
        handoff: &Handoff,
        peer: Peer,
        name: N,
        heard: mpsc::Sender<(N, Heard)>,
    ) -> io::Result<Link> {
        let stream = UnixStream::from_std(handoff.open(peer, Framing::Bytes)?)?;
        let (reader, writer) = stream.into_split();
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(write(writer, receiver));
        tokio::spawn(read(reader, sender.downgrade(), name, heard));
        let _ = sender.send(greeting());
        Ok(Link {
            writer: sender,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            last_id: 0,
            most_in_flight: MAX_IN_FLIGHT,
        })
    }

    /// Publishes at QoS 1; the answer comes with `ticket`.
    pub(super) fn publish(&mut self, ticket: Ticket, what: &Outgoing<'_>) -> Result<(), Busy> {
        let packet_id = self.take_id(ticket, what.payload.len())?;
        let mut properties = PropertyBuf::new();
        if let Some(content_type) = what.content_type {
            properties.push(Property::ContentType(content_type));
        }
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: what.retain,
            topic: what.topic,
            packet_id: Some(packet_id),
            properties: properties.as_properties(),
            payload: what.payload,
        };
        let mut packet = Vec::with_capacity(what.payload.len() + what.topic.len() + 16);
        publish.encode(VERSION, &mut packet);
        self.send(packet);
        Ok(())
    }

    /// Subscribes to a topic, without its retained message; the answer comes with `ticket`.
    pub(super) fn subscribe(&mut self, ticket: Ticket, topic: &str) -> Result<(), Busy> {
        let packet_id = self.take_id(ticket, 0)?;
        let options = SubscribeOptions {
            qos: QoS::AtLeastOnce,
            retain_handling: RetainHandling::Never,
            ..SubscribeOptions::default()
        };
        let mut filter = Vec::new();
        FilterList::encode_one(&mut filter, topic, Some(options));
        if let Ok(filters) = FilterList::from_encoded(&filter, true, VERSION) {
            let mut packet = Vec::new();
            Subscribe { packet_id, properties: Properties::NONE, filters }
                .encode(VERSION, &mut packet);
            self.send(packet);
        }
        Ok(())
    }

    /// Ends a subscription; nobody waits for the answer.
    pub(super) fn unsubscribe(&mut self, topic: &str) {
        let Ok(packet_id) = self.take_id(0, 0) else { return };
        let mut filter = Vec::new();
        FilterList::encode_one(&mut filter, topic, None);
        if let Ok(filters) = FilterList::from_encoded(&filter, false, VERSION) {
            let mut packet = Vec::new();
            Unsubscribe { packet_id, properties: Properties::NONE, filters }
                .encode(VERSION, &mut packet);
            self.send(packet);
        }
    }

    /// The broker has let it in, and takes so many publications before it answers one.
    pub(super) fn welcomed(&mut self, in_flight: u16) {
        self.most_in_flight = MAX_IN_FLIGHT.min(in_flight.into());
    }

    /// Takes an answer; the ticket it is for, if anybody waits.
    pub(super) fn settle(&mut self, packet_id: PacketId) -> Option<Ticket> {
        let (ticket, bytes) = self.waiting.remove(&packet_id)?;
        self.waiting_bytes -= bytes;
        (ticket != 0).then_some(ticket)
    }

    /// What still waits for an answer.
    pub(super) fn tickets(&self) -> Vec<Ticket> {
        self.waiting.values().map(|(ticket, _)| *ticket).filter(|ticket| *ticket != 0).collect()
    }

    fn take_id(&mut self, ticket: Ticket, bytes: usize) -> Result<PacketId, Busy> {
        let full = self.waiting_bytes > 0 && self.waiting_bytes + bytes > MAX_IN_FLIGHT_BYTES;
        if full || self.waiting.len() >= self.most_in_flight {
            return Err(Busy);
        }
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            match PacketId::new(self.last_id) {
                Some(id) if !self.waiting.contains_key(&id) => {
                    self.waiting.insert(id, (ticket, bytes));
                    self.waiting_bytes += bytes;
                    return Ok(id);
                }
                _ => {}
            }
        }
    }

    fn send(&self, packet: Vec<u8>) {
        // A writer that is gone is followed by the reader, which tells.
        let _ = self.writer.send(packet);
    }
}

/// CONNECT: a session without a name that ends with the connection.
fn greeting() -> Vec<u8> {
    let mut properties = PropertyBuf::new();
    properties.push(Property::ReceiveMaximum(RECEIVE_MAXIMUM));
    let connect = Connect {
        version: VERSION,
        bridge: false,
        clean_start: true,
        keep_alive_s: 0,
        client_id: "",
        properties: properties.as_properties(),
        will: None,
        username: None,
        password: None,
    };
    let mut packet = Vec::new();
    connect.encode(&mut packet);
    packet
}

async fn write(mut writer: OwnedWriteHalf, mut packets: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(packet) = packets.recv().await {
        if writer.write_all(&packet).await.is_err() {
            return;
        }
    }
}

async fn read<N: Clone>(
    mut reader: OwnedReadHalf,
    writer: mpsc::WeakUnboundedSender<Vec<u8>>,
    name: N,
    heard: mpsc::Sender<(N, Heard)>,
) {
    let mut input = Vec::new();
    let mut last = None;
    while matches!(reader.read_buf(&mut input).await, Ok(1..)) {
        let Ok((packets, done)) = understand(&input) else { break };
        input.drain(..done);
        for (what, acknowledge) in packets {
            if let Heard::Over(reason) = what {
                last = reason;
                continue;
            }
            if heard.send((name.clone(), what)).await.is_err() {
                return;
            }
            // Only now, so that the broker waits when peers are slow.
            if let (Some(packet_id), Some(writer)) = (acknowledge, writer.upgrade()) {
                let mut packet = Vec::new();
                let (reason, properties) = (ReasonCode::Success, Properties::NONE);
                Ack { packet_id, reason, properties }.encode(AckKind::Puback, VERSION, &mut packet);
                let _ = writer.send(packet);
            }
        }
    }
    let _ = heard.send((name, Heard::Over(last))).await;
}

type Understood = Vec<(Heard, Option<PacketId>)>;

/// What the whole packets of `input` say, each with what is to be acknowledged; how many bytes those were.
fn understand(input: &[u8]) -> Result<(Understood, usize), fulmar_mqtt::DecodeError> {
    let (mut packets, mut done) = (Vec::new(), 0);
    while let Some(frame) = peek_frame(&input[done..], MAX_PACKET_BYTES)? {
        done += frame.len;
        let heard = match decode(&frame, VERSION)? {
            // The broker does not let in a peer without a name. In CoAP's words that is 4.01, as a wrong
            // name is: 4.03 is for what no name helps with.
            Packet::Connack(connack) if connack.reason == ReasonCode::NotAuthorized => {
                (Heard::Over(Some(ReasonCode::BadUserNameOrPassword)), None)
            }
            Packet::Connack(connack) if connack.reason.is_error() => {
                (Heard::Over(Some(connack.reason)), None)
            }
            Packet::Connack(connack) => (welcome(connack.properties), None),
            Packet::Disconnect(disconnect) => (Heard::Over(Some(disconnect.reason)), None),
            Packet::Ack(AckKind::Puback, ack) => (Heard::Answer(ack.packet_id, ack.reason), None),
            Packet::Suback(suback) => {
                let code = suback.codes.first().copied().and_then(ReasonCode::from_u8);
                (
                    Heard::Answer(suback.packet_id, code.unwrap_or(ReasonCode::UnspecifiedError)),
                    None,
                )
            }
            Packet::Unsuback(unsuback) => {
                (Heard::Answer(unsuback.packet_id, ReasonCode::Success), None)
            }
            Packet::Publish(publish) => {
                let content_type = publish.properties.iter().find_map(|property| match property {
                    Property::ContentType(name) => Some(Box::from(name)),
                    _ => None,
                });
                let (topic, payload) = (publish.topic.into(), publish.payload.to_vec().into());
                (Heard::Message { topic, payload, content_type }, publish.packet_id)
            }
            _ => continue,
        };
        packets.push(heard);
    }
    Ok((packets, done))
}

fn welcome(properties: Properties<'_>) -> Heard {
    let (mut client_id, mut in_flight) = (Box::default(), u16::MAX);
    for property in properties.iter() {
        match property {
            Property::AssignedClientIdentifier(id) => client_id = id.into(),
            Property::ReceiveMaximum(most) => in_flight = most,
            _ => {}
        }
    }
    Heard::Welcome { client_id, in_flight }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use fulmar_mqtt::packet::Connack;

    use super::*;

    #[test]
    fn a_peer_without_a_name_is_unauthorised_and_not_forbidden() {
        let (reason, properties) = (ReasonCode::NotAuthorized, Properties::NONE);
        let mut connack = Vec::new();
        Connack { session_present: false, reason, properties }.encode(VERSION, &mut connack);
        let (heard, _) = understand(&connack).unwrap();
        let wanted = ReasonCode::BadUserNameOrPassword;
        assert!(matches!(heard[..], [(Heard::Over(Some(reason)), None)] if reason == wanted));
    }
}
