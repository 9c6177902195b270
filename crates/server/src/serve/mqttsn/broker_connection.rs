//! One device's connection to the broker: MQTT 5.0 inside the process, over transport's handoff, with a
//! session of its own. The broker keeps identifiers, wills, queues and durable state.
//!
//! Translates between `fulmar_mqttsn`'s requests and events and MQTT's packets; it is independent of datagrams.

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
use fulmar_mqttsn::{Answer, BrokerEvent, Delivery, Open, Publication, Request};
use fulmar_transport::{Framing, Handoff};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

const VERSION: Version = Version::V5;
/// QoS 1 and 2 messages that the broker may have in flight to a device, which receives one at a time.
const RECEIVE_MAXIMUM: u16 = 8;
/// Bytes that the broker has not read yet; above this, devices are asked to try again later.
const MAX_WAITING_BYTES: usize = 256 * 1024;
/// Bytes of a packet besides topic and payload: header, lengths and properties.
const PACKET_OVERHEAD: usize = 1024;
/// Seconds by which a session that ends with its connection outlives it, so that a connection with a new will can
/// take it over. Ordinarily the session is ended explicitly.
const TAKE_OVER_S: u32 = 60;

/// Identifies a connection; never used twice.
pub(super) type ConnectionId = u64;

/// What happened on a connection.
#[derive(Debug)]
pub(super) enum ConnectionEvent {
    Broker(BrokerEvent),
    /// The connection has ended; nothing follows.
    Ended(ReasonCode),
}

/// A message to the writing task.
enum Out {
    Packet(Vec<u8>),
    /// The broker requires a packet this often.
    KeepAlive(Duration),
}

/// An MQTT connection to the broker in this process. Dropping it ends the connection.
pub(super) struct BrokerConnection {
    writer: mpsc::UnboundedSender<Out>,
    waiting: Arc<AtomicUsize>,
}

impl BrokerConnection {
    /// Opens a connection for `peer`, which receives messages of at most `max_message_bytes`. Events come
    /// through `events`, with `id`.
    ///
    /// # Errors
    /// There are no file descriptors left, or the broker is ending.
    pub(super) fn open(
        handoff: &Handoff,
        peer: Peer,
        id: ConnectionId,
        open: &Open,
        max_message_bytes: usize,
        events: mpsc::Sender<(ConnectionId, ConnectionEvent)>,
    ) -> io::Result<BrokerConnection> {
        let stream = UnixStream::from_std(handoff.open(peer, Framing::Bytes)?)?;
        let (reader, writer) = stream.into_split();
        let (sender, receiver) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        tokio::spawn(write(writer, receiver, Arc::clone(&waiting)));
        tokio::spawn(read(reader, sender.downgrade(), id, events));
        let connection = BrokerConnection { writer: sender, waiting };
        connection.send(connect(open, max_message_bytes));
        Ok(connection)
    }

    /// Whether the broker reads more slowly than devices send.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > MAX_WAITING_BYTES
    }

    pub(super) fn publish(&self, message: &Publication) {
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

    /// Sends a session's request, except those to open or close a connection or to publish.
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

    /// Ends the connection in an orderly way, after all earlier requests.
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
        // If the writer has ended, the reader ends too, and reports it.
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
            // The broker has a longest keep alive; it does not limit how long devices may be silent.
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
    id: ConnectionId,
    events: mpsc::Sender<(ConnectionId, ConnectionEvent)>,
) {
    let mut input = Vec::new();
    let mut last = ReasonCode::ServerUnavailable;
    while matches!(reader.read_buf(&mut input).await, Ok(1..)) {
        let Ok((packets, done)) = parse(&input) else { break };
        input.drain(..done);
        for packet in packets {
            match packet {
                Parsed::Event(event) => {
                    if events.send((id, ConnectionEvent::Broker(event))).await.is_err() {
                        return;
                    }
                }
                Parsed::KeepAlive(every) => {
                    if let Some(writer) = writer.upgrade() {
                        let _ = writer.send(Out::KeepAlive(every));
                    }
                }
                Parsed::Closed(reason) => last = reason,
            }
        }
    }
    let _ = events.send((id, ConnectionEvent::Ended(last))).await;
}

/// The meaning of a packet from the broker.
enum Parsed {
    Event(BrokerEvent),
    KeepAlive(Duration),
    Closed(ReasonCode),
}

/// Parses the complete packets of `input`; returns how many bytes they had, too.
fn parse(input: &[u8]) -> Result<(Vec<Parsed>, usize), DecodeError> {
    let (mut parsed, mut done) = (Vec::new(), 0);
    while let Some(frame) = peek_frame(&input[done..], MAX_PACKET_BYTES)? {
        done += frame.len;
        let event = match decode(&frame, VERSION)? {
            Packet::Connack(connack) => {
                welcome(&connack, &mut parsed);
                continue;
            }
            Packet::Disconnect(disconnect) => {
                parsed.push(Parsed::Closed(disconnect.reason));
                continue;
            }
            Packet::Ack(AckKind::Pubrel, ack) => BrokerEvent::Release(ack.packet_id),
            Packet::Ack(AckKind::Puback, ack) => {
                BrokerEvent::Answer(Answer::Puback, ack.packet_id, ack.reason)
            }
            Packet::Ack(AckKind::Pubrec, ack) => {
                BrokerEvent::Answer(Answer::Pubrec, ack.packet_id, ack.reason)
            }
            Packet::Ack(AckKind::Pubcomp, ack) => {
                BrokerEvent::Answer(Answer::Pubcomp, ack.packet_id, ack.reason)
            }
            Packet::Suback(suback) => {
                let code = suback.codes.first().copied().and_then(ReasonCode::from_u8);
                BrokerEvent::Subscribed(
                    suback.packet_id,
                    code.unwrap_or(ReasonCode::UnspecifiedError),
                )
            }
            Packet::Unsuback(unsuback) => BrokerEvent::Unsubscribed(unsuback.packet_id),
            Packet::Publish(publish) => BrokerEvent::Message(delivery(&publish)),
            Packet::Pingresp => BrokerEvent::Probed,
            _ => continue,
        };
        parsed.push(Parsed::Event(event));
    }
    Ok((parsed, done))
}

fn welcome(connack: &Connack<'_>, parsed: &mut Vec<Parsed>) {
    if connack.reason.is_error() {
        parsed.push(Parsed::Closed(connack.reason));
        return;
    }
    let mut in_flight = u16::MAX;
    for property in connack.properties.iter() {
        match property {
            Property::ReceiveMaximum(most) => in_flight = most,
            Property::ServerKeepAlive(seconds) if seconds > 0 => {
                parsed.push(Parsed::KeepAlive(Duration::from_millis(u64::from(seconds) * 500)));
            }
            _ => {}
        }
    }
    parsed.push(Parsed::Event(BrokerEvent::Opened { in_flight }));
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
