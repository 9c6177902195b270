//! One device's way into the broker: an MQTT 5.0 connection inside the process, over transport's handoff, with a
//! session of its own. Identifiers, wills, what waits and what is durable are the broker's.
//!
//! Translates between `fulmar_mqttsn`'s requests and words and MQTT's packets; knows nothing of datagrams.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fulmar_broker::Peer;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::codec::{MAX_PACKET_BYTES, decode, peek_frame};
use fulmar_mqtt::packet::{
    Ack, Connack, Connect, Disconnect, FilterList, LastWill, Publish, Subscribe, SubscribeOptions,
    Unsubscribe,
};
use fulmar_mqtt::{
    DecodeError, Packet, Properties, Property, PropertyBuf, QoS, ReasonCode, Version,
};
use fulmar_mqttsn::{Answer, Delivery, Open, Outgoing, Request, Word};
use fulmar_transport::{Framing, Handoff};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

const VERSION: Version = Version::V5;
/// QoS 1 and 2 messages the broker has on their way to a device before it waits; the device takes one at a time.
const RECEIVE_MAXIMUM: u16 = 8;
/// Bytes for the broker that it has not read; beyond, devices are told to come back later.
const MAX_WAITING_BYTES: usize = 256 * 1024;
/// What a packet may have beside topic and payload: header, lengths and properties.
const PACKET_OVERHEAD: usize = 1024;
/// A session that ends with its connection outlives it by so much, so that another one with a new will can take
/// it over. Ordinarily it is told to end.
const TAKE_OVER_S: u32 = 60;

/// Names a link; never used twice.
pub(super) type LinkId = u64;

/// What came over a link.
#[derive(Debug)]
pub(super) enum Heard {
    Word(Word),
    /// It has ended; nothing follows.
    Gone(ReasonCode),
}

/// What goes to the writing task.
enum Out {
    Packet(Vec<u8>),
    /// The broker wants to hear something so often.
    KeepAlive(Duration),
}

/// A link. Dropping it ends the connection.
pub(super) struct Link {
    writer: mpsc::UnboundedSender<Out>,
    waiting: Arc<AtomicUsize>,
}

impl Link {
    /// Opens a connection of `peer`, with packets of so many bytes at most. What the broker says comes through
    /// `heard`.
    ///
    /// # Errors
    /// There are no file descriptors left, or the broker is ending.
    pub(super) fn open(
        handoff: &Handoff,
        peer: Peer,
        id: LinkId,
        open: &Open,
        max_message_bytes: usize,
        heard: mpsc::Sender<(LinkId, Heard)>,
    ) -> io::Result<Link> {
        let stream = UnixStream::from_std(handoff.open(peer, Framing::Bytes)?)?;
        let (reader, writer) = stream.into_split();
        let (sender, receiver) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        tokio::spawn(write(writer, receiver, Arc::clone(&waiting)));
        tokio::spawn(read(reader, sender.downgrade(), id, heard));
        let link = Link { writer: sender, waiting };
        link.send(connect(open, max_message_bytes));
        Ok(link)
    }

    /// Whether the broker reads more slowly than devices send.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > MAX_WAITING_BYTES
    }

    pub(super) fn publish(&self, message: &Outgoing) {
        let publish = Publish {
            dup: message.dup && message.packet_id.is_some(),
            qos: message.qos,
            retain: message.retain,
            topic: &message.topic,
            packet_id: message.packet_id,
            properties: Properties::NONE,
            payload: &message.payload,
        };
        let mut packet = Vec::with_capacity(message.payload.len() + message.topic.len() + 16);
        publish.encode(VERSION, &mut packet);
        self.send(packet);
    }

    /// Asks what a session asks; not for a connection, nor for a publication.
    pub(super) fn ask(&self, request: &Request) {
        let mut out = Vec::new();
        match request {
            Request::Release(packet_id) => {
                let (reason, properties) = (ReasonCode::Success, Properties::NONE);
                let ack = Ack { packet_id: *packet_id, reason, properties };
                ack.encode(AckKind::Pubrel, VERSION, &mut out);
            }
            Request::Acknowledge(kind, packet_id, reason) => {
                let properties = Properties::NONE;
                let ack = Ack { packet_id: *packet_id, reason: *reason, properties };
                ack.encode(*kind, VERSION, &mut out);
            }
            Request::Subscribe(packet_id, filter, qos) => {
                let options = SubscribeOptions { qos: *qos, ..SubscribeOptions::default() };
                let mut list = Vec::new();
                FilterList::encode_one(&mut list, filter, Some(options));
                if let Ok(filters) = FilterList::from_encoded(&list, true, VERSION) {
                    Subscribe { packet_id: *packet_id, properties: Properties::NONE, filters }
                        .encode(VERSION, &mut out);
                }
            }
            Request::Unsubscribe(packet_id, filter) => {
                let mut list = Vec::new();
                FilterList::encode_one(&mut list, filter, None);
                if let Ok(filters) = FilterList::from_encoded(&list, false, VERSION) {
                    Unsubscribe { packet_id: *packet_id, properties: Properties::NONE, filters }
                        .encode(VERSION, &mut out);
                }
            }
            Request::Probe => Packet::Pingreq.encode(VERSION, &mut out),
            Request::Open(_) | Request::Publish(_) | Request::Close { .. } => return,
        }
        self.send(out);
    }

    /// Ends the connection in an orderly way; what was asked before is done before.
    pub(super) fn close(self, will: bool, forget: bool) {
        let mut properties = PropertyBuf::new();
        if forget {
            properties.push(Property::SessionExpiryInterval(0));
        }
        let reason = if will { ReasonCode::DisconnectWithWill } else { ReasonCode::Success };
        let mut packet = Vec::new();
        Disconnect { reason, properties: properties.as_properties() }.encode(VERSION, &mut packet);
        self.send(packet);
    }

    fn send(&self, packet: Vec<u8>) {
        self.waiting.fetch_add(packet.len(), Ordering::Relaxed);
        // A writer that is gone is followed by the reader, which tells.
        let _ = self.writer.send(Out::Packet(packet));
    }
}

fn connect(open: &Open, max_message_bytes: usize) -> Vec<u8> {
    let mut properties = PropertyBuf::new();
    let expiry = if open.forget { TAKE_OVER_S } else { u32::MAX };
    properties.push(Property::SessionExpiryInterval(expiry));
    properties.push(Property::ReceiveMaximum(RECEIVE_MAXIMUM));
    let most = u32::try_from(max_message_bytes + PACKET_OVERHEAD).unwrap_or(u32::MAX);
    properties.push(Property::MaximumPacketSize(most));
    let will = open.will.as_ref().map(|will| LastWill {
        topic: &will.topic,
        payload: &will.payload,
        qos: will.qos,
        retain: will.retain,
        properties: Properties::NONE,
    });
    let connect = Connect {
        version: VERSION,
        bridge: false,
        clean_start: open.clean_start,
        keep_alive_s: 0,
        client_id: &open.client_id,
        properties: properties.as_properties(),
        will,
        username: None,
        password: None,
    };
    let mut packet = Vec::new();
    connect.encode(&mut packet);
    packet
}

async fn write(
    mut writer: OwnedWriteHalf,
    mut packets: mpsc::UnboundedReceiver<Out>,
    waiting: Arc<AtomicUsize>,
) {
    let mut keep_alive = None;
    loop {
        let packet = match keep_alive {
            None => packets.recv().await,
            // The broker has a longest keep alive; how long devices may be silent is not its business.
            Some(every) => match tokio::time::timeout(every, packets.recv()).await {
                Ok(packet) => packet,
                Err(_) => Some(Out::Packet(vec![0xC0, 0])),
            },
        };
        match packet {
            None => return,
            Some(Out::KeepAlive(every)) => keep_alive = Some(every),
            Some(Out::Packet(packet)) => {
                if writer.write_all(&packet).await.is_err() {
                    return;
                }
                let _ = waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bytes| {
                    Some(bytes.saturating_sub(packet.len()))
                });
            }
        }
    }
}

async fn read(
    mut reader: OwnedReadHalf,
    writer: mpsc::WeakUnboundedSender<Out>,
    id: LinkId,
    heard: mpsc::Sender<(LinkId, Heard)>,
) {
    let mut input = Vec::new();
    let mut last = ReasonCode::ServerUnavailable;
    while matches!(reader.read_buf(&mut input).await, Ok(1..)) {
        let Ok((packets, done)) = understand(&input) else { break };
        input.drain(..done);
        for packet in packets {
            match packet {
                Said::Word(word) => {
                    if heard.send((id, Heard::Word(word))).await.is_err() {
                        return;
                    }
                }
                Said::KeepAlive(every) => {
                    if let Some(writer) = writer.upgrade() {
                        let _ = writer.send(Out::KeepAlive(every));
                    }
                }
                Said::Over(reason) => last = reason,
            }
        }
    }
    let _ = heard.send((id, Heard::Gone(last))).await;
}

/// What a packet of the broker's says.
enum Said {
    Word(Word),
    KeepAlive(Duration),
    Over(ReasonCode),
}

/// What the whole packets of `input` say; how many bytes those were.
fn understand(input: &[u8]) -> Result<(Vec<Said>, usize), DecodeError> {
    let (mut said, mut done) = (Vec::new(), 0);
    while let Some(frame) = peek_frame(&input[done..], MAX_PACKET_BYTES)? {
        done += frame.len;
        let word = match decode(&frame, VERSION)? {
            Packet::Connack(connack) => {
                welcome(&connack, &mut said);
                continue;
            }
            Packet::Disconnect(disconnect) => {
                said.push(Said::Over(disconnect.reason));
                continue;
            }
            Packet::Ack(AckKind::Pubrel, ack) => Word::Release(ack.packet_id),
            Packet::Ack(AckKind::Puback, ack) => {
                Word::Answer(Answer::Puback, ack.packet_id, ack.reason)
            }
            Packet::Ack(AckKind::Pubrec, ack) => {
                Word::Answer(Answer::Pubrec, ack.packet_id, ack.reason)
            }
            Packet::Ack(AckKind::Pubcomp, ack) => {
                Word::Answer(Answer::Pubcomp, ack.packet_id, ack.reason)
            }
            Packet::Suback(suback) => {
                let code = suback.codes.first().copied().and_then(ReasonCode::from_u8);
                Word::Subscribed(suback.packet_id, code.unwrap_or(ReasonCode::UnspecifiedError))
            }
            Packet::Unsuback(unsuback) => Word::Unsubscribed(unsuback.packet_id),
            Packet::Publish(publish) => Word::Message(delivery(&publish)),
            Packet::Pingresp => Word::Probed,
            _ => continue,
        };
        said.push(Said::Word(word));
    }
    Ok((said, done))
}

fn welcome(connack: &Connack<'_>, said: &mut Vec<Said>) {
    if connack.reason.is_error() {
        said.push(Said::Over(connack.reason));
        return;
    }
    let mut in_flight = u16::MAX;
    for property in connack.properties.iter() {
        match property {
            Property::ReceiveMaximum(most) => in_flight = most,
            Property::ServerKeepAlive(seconds) if seconds > 0 => {
                said.push(Said::KeepAlive(Duration::from_millis(u64::from(seconds) * 500)));
            }
            _ => {}
        }
    }
    said.push(Said::Word(Word::Welcome { in_flight }));
}

fn delivery(publish: &Publish<'_>) -> Delivery {
    Delivery {
        topic: publish.topic.into(),
        payload: publish.payload.to_vec().into(),
        qos: publish.qos,
        retain: publish.retain,
        dup: publish.dup,
        packet_id: publish.packet_id.filter(|_| publish.qos != QoS::AtMostOnce),
    }
}
