//! One user's connection to the broker: MQTT 5.0 inside the process, over transport's handoff, so that
//! authentication, access rules, durability and limits are the broker's. All CoAP peers of a user in one network share it;
//! what may wait for the broker is limited per user over all of them.
//!
//! It is independent of CoAP: the caller numbers its requests, and answers have these numbers.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use fulmar_broker::Peer;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::{Publish, RetainHandling, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode};
use fulmar_transport::Handoff;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use fulmar_part::local_client::{self, LocalReceiver, LocalSender};

/// Messages that the broker may have in flight to us.
const RECEIVE_MAXIMUM: u16 = 256;
/// Publications that may wait for their acknowledgement; above this, peers are asked to try again later.
const MAX_IN_FLIGHT: usize = 1024;
/// All requests that may wait, including those that end a subscription. Identifiers have 16 bits.
const MAX_WAITING: usize = 1 << 15;

/// The caller's number of a request to the broker.
pub(super) type RequestId = u64;

/// An event of the connection.
#[derive(Debug)]
pub(super) enum BrokerEvent {
    /// The connection is open with this client identifier; up to `max_in_flight` publications may wait for answers.
    Opened { client_id: Box<str>, max_in_flight: u16 },
    /// The connection was refused or has ended, with the broker's reason if it gave one.
    Closed(Option<ReasonCode>),
    /// A publication or subscription was answered; [`BrokerConnection::take_answer`] returns which.
    Answer(PacketId, ReasonCode),
    /// A message on a subscribed topic.
    Message { topic: Box<str>, payload: Bytes, content_type: Option<Box<str>> },
}

/// A message to be published.
pub(super) struct Publication<'a> {
    pub(super) topic: &'a str,
    pub(super) payload: &'a [u8],
    pub(super) content_type: Option<&'a str>,
    pub(super) retain: bool,
}

/// Payload bytes of all users' unacknowledged publications: while the broker delays its clients, they wait here. Clones
/// share them.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    most: usize,
    bytes: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default, PartialEq)]
struct Waiting {
    all: usize,
    /// The name is empty for all without one.
    by_user: HashMap<Box<str>, usize>,
}

impl InFlight {
    /// At most this many bytes, of which a user may have half; a single publication may always be larger.
    pub(super) fn new(most: usize) -> InFlight {
        InFlight { most, bytes: Arc::default() }
    }

    fn has_room(&self, user: &str, more: usize) -> bool {
        let Waiting { all, by_user } = &*self.bytes.lock();
        let own = by_user.get(user).copied().unwrap_or(0);
        own == 0 && *all < self.most || own + more <= self.most / 2 && all + more <= self.most
    }

    fn add(&self, user: &str, more: usize) {
        if more > 0 {
            let Waiting { all, by_user } = &mut *self.bytes.lock();
            *all += more;
            *by_user.entry(user.into()).or_default() += more;
        }
    }

    fn remove(&self, user: &str, fewer: usize) {
        let Waiting { all, by_user } = &mut *self.bytes.lock();
        if let Some(own) = by_user.get_mut(user) {
            *all -= fewer;
            *own -= fewer;
            if *own == 0 {
                by_user.remove(user);
            }
        }
    }
}

/// An MQTT connection to the broker in this process. Dropping it ends the connection.
pub(super) struct BrokerConnection {
    sender: LocalSender,
    user: Box<str>,
    in_flight: InFlight,
    /// Requests that wait for an answer by packet identifier, with their bytes.
    waiting: BTreeMap<PacketId, (RequestId, usize)>,
    waiting_bytes: usize,
    last_id: u16,
    max_in_flight: usize,
}

/// Too many requests wait for the broker.
pub(super) struct Busy;

impl BrokerConnection {
    /// Opens a connection for `peer`. Its events are sent to `events`, with `owner`.
    pub(super) fn open<N: Clone + Send + 'static>(
        handoff: &Handoff,
        in_flight: &InFlight,
        peer: Peer,
        owner: N,
        events: mpsc::Sender<(N, BrokerEvent)>,
    ) -> io::Result<BrokerConnection> {
        let mut properties = PropertyBuf::new();
        properties.push(Property::ReceiveMaximum(RECEIVE_MAXIMUM));
        let connect = local_client::anonymous_session(properties.as_properties());
        let user = peer.identity.as_ref().map_or_else(Box::default, |who| who.user().text().into());
        let (sender, receiver) = local_client::open(handoff, peer, &connect)?;
        tokio::spawn(read(receiver, owner, events));
        Ok(BrokerConnection::new(sender, user, in_flight.clone()))
    }

    fn new(sender: LocalSender, user: Box<str>, in_flight: InFlight) -> BrokerConnection {
        BrokerConnection {
            sender,
            user,
            in_flight,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            last_id: 0,
            max_in_flight: MAX_IN_FLIGHT,
        }
    }

    /// Publishes at QoS 1; the answer belongs to `request_id`.
    pub(super) fn publish(
        &mut self,
        request_id: RequestId,
        what: &Publication<'_>,
    ) -> Result<(), Busy> {
        let packet_id = self.take_id(request_id, what.payload.len())?;
        let mut properties = PropertyBuf::new();
        if let Some(content_type) = what.content_type {
            properties.push(Property::ContentType(content_type));
        }
        self.sender.publish(&Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: what.retain,
            topic: what.topic,
            packet_id: Some(packet_id),
            properties: properties.as_properties(),
            payload: what.payload,
        });
        Ok(())
    }

    /// Subscribes to a topic, without its retained message; the answer belongs to `request_id`.
    pub(super) fn subscribe(&mut self, request_id: RequestId, topic: &str) -> Result<(), Busy> {
        let packet_id = self.take_id(request_id, 0)?;
        let options = SubscribeOptions {
            qos: QoS::AtLeastOnce,
            retain_handling: RetainHandling::Never,
            ..SubscribeOptions::default()
        };
        self.sender.subscribe(packet_id, [(topic, options)]);
        Ok(())
    }

    /// Ends a subscription, without waiting for the answer. This works even while the connection is full of
    /// publications, because the broker would otherwise continue to send messages that no peer observes.
    pub(super) fn unsubscribe(&mut self, topic: &str) {
        let Ok(packet_id) = self.take_id_below(MAX_WAITING, 0, 0) else { return };
        self.sender.unsubscribe(packet_id, [topic]);
    }

    /// Sets how many publications may wait for answers: the broker's receive maximum, within our own limit.
    pub(super) fn set_max_in_flight(&mut self, receive_maximum: u16) {
        self.max_in_flight = MAX_IN_FLIGHT.min(receive_maximum.into());
    }

    /// Removes the request that an answer is for; returns it if the caller waits for the answer.
    pub(super) fn take_answer(&mut self, packet_id: PacketId) -> Option<RequestId> {
        let (request_id, bytes) = self.waiting.remove(&packet_id)?;
        self.waiting_bytes -= bytes;
        self.in_flight.remove(&self.user, bytes);
        (request_id != 0).then_some(request_id)
    }

    /// Requests that still wait for an answer.
    pub(super) fn request_ids(&self) -> Vec<RequestId> {
        self.waiting
            .values()
            .map(|(request_id, _)| *request_id)
            .filter(|request_id| *request_id != 0)
            .collect()
    }

    fn take_id(&mut self, request_id: RequestId, bytes: usize) -> Result<PacketId, Busy> {
        if !self.in_flight.has_room(&self.user, bytes) {
            return Err(Busy);
        }
        self.take_id_below(self.max_in_flight, request_id, bytes)
    }

    /// Takes a free identifier if fewer than `max_waiting` requests wait.
    fn take_id_below(
        &mut self,
        max_waiting: usize,
        request_id: RequestId,
        bytes: usize,
    ) -> Result<PacketId, Busy> {
        if self.waiting.len() >= max_waiting {
            return Err(Busy);
        }
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            match PacketId::new(self.last_id) {
                Some(id) if !self.waiting.contains_key(&id) => {
                    self.waiting.insert(id, (request_id, bytes));
                    self.waiting_bytes += bytes;
                    self.in_flight.add(&self.user, bytes);
                    return Ok(id);
                }
                _ => {}
            }
        }
    }
}

impl Drop for BrokerConnection {
    fn drop(&mut self) {
        self.in_flight.remove(&self.user, self.waiting_bytes);
    }
}

async fn read<N: Clone>(
    mut receiver: LocalReceiver,
    owner: N,
    events: mpsc::Sender<(N, BrokerEvent)>,
) {
    let mut close_reason = None;
    while let Ok(true) = receiver.fill().await {
        loop {
            let (what, acknowledge) = match receiver.next_packet() {
                Ok(Some(packet)) => (event(&packet), packet_id(&packet)),
                Ok(None) => break,
                Err(_) => return ended(owner, close_reason, &events).await,
            };
            let what = match what {
                Some(BrokerEvent::Closed(reason)) => {
                    close_reason = reason;
                    continue;
                }
                Some(what) => what,
                None => continue,
            };
            if events.send((owner.clone(), what)).await.is_err() {
                return;
            }
            // Only now, so that the broker waits when peers are slow.
            if let Some(packet_id) = acknowledge {
                receiver.acknowledge(packet_id);
            }
        }
    }
    ended(owner, close_reason, &events).await;
}

async fn ended<N>(
    owner: N,
    close_reason: Option<ReasonCode>,
    events: &mpsc::Sender<(N, BrokerEvent)>,
) {
    let _ = events.send((owner, BrokerEvent::Closed(close_reason))).await;
}

/// The identifier of a message to acknowledge.
fn packet_id(packet: &Packet<'_>) -> Option<PacketId> {
    match packet {
        Packet::Publish(publish) => publish.packet_id,
        _ => None,
    }
}

/// Returns the event for CoAP in a packet from the broker.
fn event(packet: &Packet<'_>) -> Option<BrokerEvent> {
    Some(match packet {
        // The broker does not accept anonymous peers. In CoAP this is 4.01, as for wrong credentials; 4.03 means
        // that no credentials would help.
        Packet::Connack(connack) if connack.reason == ReasonCode::NotAuthorized => {
            BrokerEvent::Closed(Some(ReasonCode::BadUserNameOrPassword))
        }
        Packet::Connack(connack) if connack.reason.is_error() => {
            BrokerEvent::Closed(Some(connack.reason))
        }
        Packet::Connack(connack) => opened_event(connack.properties),
        Packet::Disconnect(disconnect) => BrokerEvent::Closed(Some(disconnect.reason)),
        Packet::Ack(AckKind::Puback, ack) => BrokerEvent::Answer(ack.packet_id, ack.reason),
        Packet::Suback(suback) => {
            let code = suback.codes.first().copied().and_then(ReasonCode::from_u8);
            let reason = code.unwrap_or(ReasonCode::UnspecifiedError);
            BrokerEvent::Answer(suback.packet_id, reason)
        }
        Packet::Unsuback(unsuback) => BrokerEvent::Answer(unsuback.packet_id, ReasonCode::Success),
        Packet::Publish(publish) => {
            let content_type =
                fulmar_mqtt::find_property!(publish.properties, ContentType).map(Box::from);
            let (topic, payload) = (publish.topic.into(), publish.payload.to_vec().into());
            BrokerEvent::Message { topic, payload, content_type }
        }
        _ => return None,
    })
}

fn opened_event(properties: Properties<'_>) -> BrokerEvent {
    let (mut client_id, mut max_in_flight) = (Box::default(), u16::MAX);
    for property in properties.iter() {
        match property {
            Property::AssignedClientIdentifier(id) => client_id = id.into(),
            Property::ReceiveMaximum(maximum) => max_in_flight = maximum,
            _ => {}
        }
    }
    BrokerEvent::Opened { client_id, max_in_flight }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use fulmar_mqtt::packet::Connack;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn a_subscription_ends_while_publications_fill_the_connection() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let connect = local_client::anonymous_session(Properties::NONE);
        let (sender, _receiver) = local_client::over(near, &connect);
        let mut connection = BrokerConnection::new(sender, Box::default(), InFlight::new(1000));
        connection.set_max_in_flight(1);
        let publication =
            Publication { topic: "a", payload: b"1", content_type: None, retain: false };
        assert!(connection.publish(1, &publication).is_ok());
        assert!(connection.publish(2, &publication).is_err());
        connection.unsubscribe("b");
        drop(connection);
        let mut sent = Vec::new();
        far.read_to_end(&mut sent).await.unwrap();
        let mut packets = Vec::new();
        while !sent.is_empty() {
            packets.push(sent[0] >> 4);
            sent.drain(..2 + usize::from(sent[1]));
        }
        assert_eq!(packets, [1, 3, 10], "CONNECT, PUBLISH, UNSUBSCRIBE");
    }

    #[tokio::test]
    async fn users_share_what_may_wait_for_the_broker() {
        let in_flight = InFlight::new(1000);
        let connection = |user: &str| {
            let (near, far) = UnixStream::pair().unwrap();
            let connect = local_client::anonymous_session(Properties::NONE);
            let (sender, receiver) = local_client::over(near, &connect);
            (BrokerConnection::new(sender, user.into(), in_flight.clone()), receiver, far)
        };
        let (mut ann, mut bob, mut eve) = (connection("ann"), connection("bob"), connection("eve"));
        let mut elsewhere = connection("ann");
        let publish = |connection: &mut BrokerConnection, bytes: usize| {
            let (topic, content_type, retain) = ("a", None, false);
            let payload = &vec![0; bytes];
            connection.publish(1, &Publication { topic, payload, content_type, retain }).is_ok()
        };
        assert!(publish(&mut ann.0, 400) && !publish(&mut ann.0, 200), "more than half");
        assert!(!publish(&mut elsewhere.0, 200), "wherever the user is");
        assert!(publish(&mut bob.0, 2000), "one may be larger");
        assert!(!publish(&mut eve.0, 1), "there is none left");
        drop(bob);
        assert!(publish(&mut eve.0, 500));
        assert!(ann.0.take_answer(PacketId::FIRST).is_some());
        drop(eve);
        drop(ann);
        assert_eq!(*in_flight.bytes.lock(), Waiting::default());
    }

    #[test]
    fn a_peer_without_a_name_is_unauthorised_and_not_forbidden() {
        let (reason, properties) = (ReasonCode::NotAuthorized, Properties::NONE);
        let connack = Packet::Connack(Connack { session_present: false, reason, properties });
        let wanted = ReasonCode::BadUserNameOrPassword;
        assert!(
            matches!(event(&connack), Some(BrokerEvent::Closed(Some(reason))) if reason == wanted)
        );
    }
}
