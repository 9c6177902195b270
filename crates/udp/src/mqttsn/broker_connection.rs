//! One device's connection to the broker: MQTT 5.0 inside the process, over transport's handoff, with a
//! session of its own. The broker keeps identifiers, wills, queues and durable state.
//!
//! Translates between `fulmar_mqttsn`'s requests and events and MQTT's packets; it is independent of datagrams.

use std::io;

use fulmar_broker::Peer;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::{Connect, LastWill, Publish, SubscribeOptions};
use fulmar_mqtt::{Packet, Properties, Property, PropertyBuf, QoS, ReasonCode};
use fulmar_mqttsn::{Answer, BrokerEvent, Open, Publication, Request};
use fulmar_transport::Handoff;
use tokio::sync::mpsc;

use fulmar_part::local_client::{self, LocalReceiver, LocalSender};

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

/// Event of a connection.
#[derive(Debug)]
pub(super) enum ConnectionEvent {
    Broker(BrokerEvent),
    /// The connection has ended; nothing follows.
    Ended(ReasonCode),
}

/// An MQTT connection to the broker in this process. Dropping it ends the connection.
pub(super) struct BrokerConnection(LocalSender);

impl BrokerConnection {
    /// Opens a connection for `peer`, which receives messages of at most `max_message_bytes`. Events come
    /// through `events`, with `id`.
    pub(super) fn open(
        handoff: &Handoff,
        peer: Peer,
        id: ConnectionId,
        open: &Open,
        max_message_bytes: usize,
        events: mpsc::Sender<(ConnectionId, ConnectionEvent)>,
    ) -> io::Result<BrokerConnection> {
        let (sender, receiver) = connect(handoff, peer, open, max_message_bytes)?;
        tokio::spawn(read(receiver, id, events));
        Ok(BrokerConnection(sender))
    }

    /// Whether the broker reads more slowly than devices send.
    pub(super) fn is_full(&self) -> bool {
        self.0.queued_bytes() > MAX_WAITING_BYTES
    }

    pub(super) fn publish(&self, message: &Publication) {
        self.0.publish(&Publish {
            dup: message.dup && message.packet_id.is_some(),
            qos: message.qos,
            retain: message.retain,
            topic: &message.topic,
            packet_id: message.packet_id,
            properties: Properties::NONE,
            payload: &message.payload,
        });
    }

    /// Sends a session's request, except those to open or close a connection or to publish.
    pub(super) fn send_request(&self, request: &Request) {
        match request {
            Request::Release(packet_id) => {
                self.0.acknowledge(AckKind::Pubrel, *packet_id, ReasonCode::Success);
            }
            Request::Acknowledge(kind, packet_id, reason) => {
                self.0.acknowledge(*kind, *packet_id, *reason);
            }
            Request::Subscribe(packet_id, filter, qos) => {
                let options = SubscribeOptions { qos: *qos, ..SubscribeOptions::default() };
                self.0.subscribe(*packet_id, [(&**filter, options)]);
            }
            Request::Unsubscribe(packet_id, filter) => self.0.unsubscribe(*packet_id, [&**filter]),
            Request::Probe => self.0.ping(),
            Request::Open(_) | Request::Publish(_) | Request::Close { .. } => {}
        }
    }

    /// Ends the connection in an orderly way, after all earlier requests.
    pub(super) fn close(self, will: bool, forget: bool) {
        let mut properties = PropertyBuf::new();
        if forget {
            properties.push(Property::SessionExpiryInterval(0));
        }
        let reason = if will { ReasonCode::DisconnectWithWill } else { ReasonCode::Success };
        self.0.disconnect(reason, properties.as_properties());
    }
}

fn connect(
    handoff: &Handoff,
    peer: Peer,
    open: &Open,
    max_message_bytes: usize,
) -> io::Result<(LocalSender, LocalReceiver)> {
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
        clean_start: open.clean_start,
        client_id: &open.client_id,
        will,
        ..local_client::anonymous_session(properties.as_properties())
    };
    local_client::open(handoff, peer, &connect)
}

async fn read(
    mut receiver: LocalReceiver,
    id: ConnectionId,
    events: mpsc::Sender<(ConnectionId, ConnectionEvent)>,
) {
    let mut last = ReasonCode::ServerUnavailable;
    while let Ok(true) = receiver.fill().await {
        loop {
            let parsed = match receiver.next_packet() {
                Ok(Some(packet)) => parsed(&packet),
                Ok(None) => break,
                Err(_) => return ended(id, last, &events).await,
            };
            let event = match parsed {
                Some(Parsed::Event(event)) => event,
                Some(Parsed::Closed(reason)) => {
                    last = reason;
                    continue;
                }
                None => continue,
            };
            if events.send((id, ConnectionEvent::Broker(event))).await.is_err() {
                return;
            }
        }
    }
    ended(id, last, &events).await;
}

async fn ended(
    id: ConnectionId,
    reason: ReasonCode,
    events: &mpsc::Sender<(ConnectionId, ConnectionEvent)>,
) {
    let _ = events.send((id, ConnectionEvent::Ended(reason))).await;
}

/// The meaning of a packet from the broker.
enum Parsed {
    Event(BrokerEvent),
    Closed(ReasonCode),
}

fn parsed(packet: &Packet<'_>) -> Option<Parsed> {
    Some(Parsed::Event(match packet {
        Packet::Connack(connack) if connack.reason.is_error() => {
            return Some(Parsed::Closed(connack.reason));
        }
        Packet::Disconnect(disconnect) => return Some(Parsed::Closed(disconnect.reason)),
        Packet::Connack(connack) => {
            let in_flight = fulmar_mqtt::find_property!(connack.properties, ReceiveMaximum);
            BrokerEvent::Opened { in_flight: in_flight.unwrap_or(u16::MAX) }
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
            let reason = code.unwrap_or(ReasonCode::UnspecifiedError);
            BrokerEvent::Subscribed(suback.packet_id, reason)
        }
        Packet::Unsuback(unsuback) => BrokerEvent::Unsubscribed(unsuback.packet_id),
        Packet::Publish(publish) => BrokerEvent::Message(delivery(publish)),
        Packet::Pingresp => BrokerEvent::Probed,
        _ => return None,
    }))
}

fn delivery(publish: &Publish<'_>) -> Publication {
    Publication {
        topic: publish.topic.into(),
        payload: publish.payload.to_vec().into(),
        qos: publish.qos,
        retain: publish.retain,
        dup: publish.dup,
        packet_id: publish.packet_id.filter(|_| publish.qos != QoS::AtMostOnce),
    }
}
