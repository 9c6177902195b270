//! One flow of a session (section 4.3, for one stream): queued messages, messages in flight, requests, and the bytes
//! to be sent on its stream.
//!
//! Which messages and requests belong to a flow is decided in `stream_map`; packets from the server are
//! handled in `incoming`.

use std::collections::VecDeque;
use std::sync::Arc;

use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::{FilterList, Publish, Subscribe, SubscribeOptions, Unsubscribe};
use fulmar_mqtt::properties::Properties;
use fulmar_mqtt::publish::PublishHead;
use fulmar_mqtt::session::{Inbound, Outbound, Replay, TopicAliases};
use fulmar_mqtt::{PacketId, QoS, ReasonCode, Version};

use super::Outcome;
use crate::error::Error;
use crate::message::Message;

/// Bytes that may be written ahead of a stream before publications wait.
pub(crate) const MAX_OUT_BYTES: usize = 64 * 1024;

/// QoS 1 publications that may be in flight before CONNACK gives the Receive Maximum: the smallest default of
/// well-known brokers (HiveMQ's).
const MODEST_WINDOW: usize = 10;

/// Bytes written before CONNACK gives the Maximum Packet Size: about the initial window of a new connection (RFC 9002
/// section 7.2), so that more would wait for an answer anyway.
const MODEST_BYTES: usize = 12_000;

/// The largest MQTT packet (section 2.1.4), in bytes.
pub(super) const MAX_MQTT_PACKET: u32 = 268_435_460;

#[derive(Debug)]
pub(super) struct Pending<P> {
    pub(super) message: Arc<Message>,
    pub(super) token: P,
}

/// A publication in early data.
#[derive(Debug)]
pub(super) enum Early<P> {
    Unacknowledged(Pending<P>),
    InFlight(PacketId),
}

#[derive(Debug)]
pub(super) enum Ask {
    Subscribe(Vec<(String, SubscribeOptions)>),
    Unsubscribe(Vec<String>),
}

#[derive(Debug)]
pub(super) struct Request<R> {
    pub(super) ask: Ask,
    /// `None` for the machine's own, when it restores subscriptions.
    pub(super) token: Option<R>,
}

/// The server's limits from CONNACK.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerLimits {
    pub(super) max_packet_bytes: u32,
    pub(super) max_qos: QoS,
    pub(super) retain: bool,
}

pub(super) const NO_LIMITS: ServerLimits =
    ServerLimits { max_packet_bytes: MAX_MQTT_PACKET, max_qos: QoS::ExactlyOnce, retain: true };

/// State that all flows of a session share.
#[derive(Debug)]
pub(super) struct Desk<P, R> {
    pub(super) version: Version,
    pub(super) limits: ServerLimits,
    /// Whether CONNACK was received.
    pub(super) up: bool,
    /// Packets sent in early data, which the server may still refuse as a whole; in order.
    pub(super) early: Vec<Early<P>>,
    pub(super) outcomes: VecDeque<Outcome<P, R>>,
    /// Size of all unfinished publications.
    pub(super) held_bytes: usize,
}

impl<P, R> Desk<P, R> {
    /// A publication is finished.
    pub(super) fn published(&mut self, pending: Pending<P>, result: Result<ReasonCode, Error>) {
        self.held_bytes = self.held_bytes.saturating_sub(pending.message.size());
        self.outcomes.push_back(Outcome::Published(pending.token, result));
    }

    /// A request is finished.
    pub(super) fn answered(&mut self, token: Option<R>, result: Result<Vec<ReasonCode>, Error>) {
        self.outcomes.extend(token.map(|token| Outcome::Answered(token, result)));
    }

    fn fits(&self, message: &Message) -> Result<(), ReasonCode> {
        if message.qos > self.limits.max_qos {
            return Err(ReasonCode::QosNotSupported);
        }
        if message.retain && !self.limits.retain {
            return Err(ReasonCode::RetainNotSupported);
        }
        let size = head(message, Some(PacketId::FIRST), false).encoded_len(self.version);
        match size > self.limits.max_packet_bytes as usize {
            true => Err(ReasonCode::PacketTooLarge),
            false => Ok(()),
        }
    }
}

#[derive(Debug)]
pub(super) struct Flow<P, R> {
    /// Publications not sent yet.
    pub(super) queue: VecDeque<Pending<P>>,
    pub(super) outbound: Outbound<Pending<P>>,
    /// Messages in flight since an earlier stream that were not sent again on this one.
    pub(super) replay: VecDeque<PacketId>,
    pub(super) inbound: Inbound,
    pub(super) aliases: TopicAliases,
    pub(super) waiting: VecDeque<Request<R>>,
    pub(super) asked: Vec<(PacketId, Request<R>)>,
    pub(super) out: Vec<u8>,
    /// Acknowledgements that wait for room in `out`.
    acks: Vec<u8>,
}

impl<P, R> Flow<P, R> {
    pub(super) fn new() -> Flow<P, R> {
        Flow {
            queue: VecDeque::new(),
            outbound: Outbound::new(u16::MAX),
            replay: VecDeque::new(),
            inbound: Inbound::new(),
            aliases: TopicAliases::default(),
            waiting: VecDeque::new(),
            asked: Vec::new(),
            out: Vec::new(),
            acks: Vec::new(),
        }
    }

    /// Whether nothing waits for the server.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.outbound.in_flight() == 0
            && self.waiting.is_empty()
            && self.asked.is_empty()
    }

    /// Handles the end of the flow's stream. Returns the machine's own unanswered requests, which are made again from
    /// the list of subscriptions.
    pub(super) fn down(&mut self) -> Vec<Ask> {
        self.out.clear();
        self.acks.clear();
        self.replay.clear();
        self.aliases = TopicAliases::default();
        for (id, request) in std::mem::take(&mut self.asked).into_iter().rev() {
            self.outbound.unreserve(id);
            self.waiting.push_front(request);
        }
        let mut own = Vec::new();
        for request in std::mem::take(&mut self.waiting) {
            match request.token {
                Some(_) => self.waiting.push_back(request),
                None => own.push(request.ask),
            }
        }
        own
    }

    /// The server has kept the flow: messages in flight are sent again unchanged.
    pub(super) fn resume(&mut self) {
        self.replay = self.outbound.replay().map(|entry| entry.packet_id()).collect();
    }

    /// The server has lost the flow, see [`Flow::send_as_new`].
    pub(super) fn forgotten(&mut self, desk: &mut Desk<P, R>) -> usize {
        self.inbound = Inbound::new();
        self.send_as_new(desk)
    }

    /// Messages that the server has received are finished, the rest is queued as new. Returns how many QoS 2 messages
    /// may therefore arrive twice.
    pub(super) fn send_as_new(&mut self, desk: &mut Desk<P, R>) -> usize {
        let mut again = Vec::new();
        for (handed_over, pending) in self.outbound.drain() {
            if handed_over {
                desk.published(pending, Ok(ReasonCode::Success));
            } else {
                again.push(pending);
            }
        }
        let doubtful = again.iter().filter(|pending| pending.message.qos == QoS::ExactlyOnce);
        let doubtful = doubtful.count();
        for pending in again.into_iter().rev() {
            self.queue.push_front(pending);
        }
        doubtful
    }

    /// Gives up everything unfinished.
    pub(super) fn abandon(&mut self, desk: &mut Desk<P, R>, error: &Error) {
        let in_flight: Vec<_> = self.outbound.drain().map(|(_, pending)| pending).collect();
        for pending in in_flight.into_iter().chain(std::mem::take(&mut self.queue)) {
            desk.published(pending, Err(error.clone()));
        }
        for request in std::mem::take(&mut self.waiting) {
            desk.answered(request.token, Err(error.clone()));
        }
    }

    /// Writes the requests that may be written, up to a bound.
    pub(super) fn pump_requests(&mut self, desk: &mut Desk<P, R>) {
        while self.out.len() < MAX_OUT_BYTES
            && let Some(id) = (!self.waiting.is_empty()).then(|| self.outbound.reserve()).flatten()
        {
            self.put_request(desk, id);
        }
    }

    /// Writes whatever may be written, up to a bound. Publications only if `publish`.
    pub(super) fn pump(&mut self, desk: &mut Desk<P, R>, publish: bool) {
        if self.out.len() < MAX_OUT_BYTES {
            self.put_waiting_acks();
        }
        self.pump_replay(desk.version);
        self.pump_requests(desk);
        // Messages in flight come before new ones ([MQTT-4.6.0-1]).
        while publish && self.replay.is_empty() && self.out.len() < MAX_OUT_BYTES {
            let Some(pending) = self.queue.pop_front() else { break };
            if let Err(reason) = desk.fits(&pending.message) {
                desk.published(pending, Err(Error::Rejected(reason)));
            } else if pending.message.qos == QoS::AtMostOnce {
                put_publish(&mut self.out, desk.version, &pending.message, None, false);
                if desk.up {
                    desk.published(pending, Ok(ReasonCode::Success));
                } else {
                    desk.early.push(Early::Unacknowledged(pending));
                }
            } else if self.outbound.is_full() {
                self.queue.push_front(pending);
                break;
            } else {
                self.put_in_flight(desk, pending);
            }
        }
    }

    /// Before CONNACK, writes publications that no server has a reason to refuse: a few small ones with QoS 1,
    /// without RETAIN. With QoS 0, the loss of a publication would go unnoticed if the server refuses CONNECT.
    /// Publications after one that has to wait also wait.
    pub(super) fn pump_modestly(&mut self, desk: &mut Desk<P, R>) {
        while self.outbound.in_flight() < MODEST_WINDOW && !self.outbound.is_full() {
            let modest = self.queue.pop_front_if(|pending| {
                let message = &pending.message;
                let small = self.out.len() + message.size() <= MODEST_BYTES;
                small
                    && message.qos == QoS::AtLeastOnce
                    && !message.retain
                    && desk.fits(message).is_ok()
            });
            let Some(pending) = modest else { return };
            self.put_in_flight(desk, pending);
        }
    }

    fn pump_replay(&mut self, version: Version) {
        while self.out.len() < MAX_OUT_BYTES
            && let Some(id) = self.replay.front().copied()
        {
            match self.outbound.replay_of(id) {
                Some(Replay::Publish { .. })
                    if !self.outbound.has_room_beside(self.replay.len()) =>
                {
                    return;
                }
                Some(Replay::Publish { packet_id, message, .. }) => {
                    put_publish(&mut self.out, version, &message.message, Some(packet_id), true);
                }
                Some(Replay::Pubrel { packet_id }) => {
                    self.put_ack(version, AckKind::Pubrel, packet_id, ReasonCode::Success);
                }
                None => {}
            }
            self.replay.pop_front();
        }
    }

    fn put_in_flight(&mut self, desk: &mut Desk<P, R>, pending: Pending<P>) {
        let message = Arc::clone(&pending.message);
        if let Some(id) = self.outbound.push(message.qos, pending) {
            put_publish(&mut self.out, desk.version, &message, Some(id), false);
            if !desk.up {
                desk.early.push(Early::InFlight(id));
            }
        }
    }

    fn put_request(&mut self, desk: &mut Desk<P, R>, id: PacketId) {
        let Some(request) = self.waiting.pop_front() else { return };
        let before = self.out.len();
        let put = put_ask(&mut self.out, desk.version, id, &request.ask);
        let fits = self.out.len() - before <= desk.limits.max_packet_bytes as usize;
        let error = match put {
            Ok(()) if fits => {
                self.asked.push((id, request));
                return;
            }
            Ok(()) => Error::Rejected(ReasonCode::PacketTooLarge),
            Err(error) => error,
        };
        self.out.truncate(before);
        self.outbound.unreserve(id);
        match request.ask {
            // The machine makes its own requests as small as necessary, because no caller waits for them.
            Ask::Subscribe(mut filters) if request.token.is_none() && filters.len() > 1 => {
                let rest = filters.split_off(filters.len() / 2);
                for half in [rest, filters] {
                    self.waiting.push_front(Request { ask: Ask::Subscribe(half), token: None });
                }
            }
            _ => desk.answered(request.token, Err(error)),
        }
    }

    pub(super) fn put_ack(
        &mut self,
        version: Version,
        kind: AckKind,
        id: PacketId,
        reason: ReasonCode,
    ) {
        let has_room = self.acks.is_empty() && self.out.len() < MAX_OUT_BYTES;
        let out = if has_room { &mut self.out } else { &mut self.acks };
        fulmar_mqtt::ack::encode(out, version, kind, id, reason);
    }

    /// Writes the acknowledgements that wait for room.
    pub(super) fn put_waiting_acks(&mut self) {
        self.out.append(&mut self.acks);
    }

    /// Whether more may be received: the server causes acknowledgements, but does not have to read them. They are
    /// counted apart from publications: a server that does not read while it has something to write would wait for this
    /// client for ever if publications alone kept the client from reading.
    pub(super) fn may_receive(&self) -> bool {
        self.acks.len() < MAX_OUT_BYTES
    }
}

fn put_ask(out: &mut Vec<u8>, version: Version, id: PacketId, ask: &Ask) -> Result<(), Error> {
    let mut list = Vec::new();
    let with_options = match ask {
        Ask::Subscribe(wanted) => {
            for (filter, options) in wanted {
                let options = Some(for_version(*options, version));
                FilterList::encode_one(&mut list, filter, options);
            }
            true
        }
        Ask::Unsubscribe(unwanted) => {
            unwanted.iter().for_each(|filter| FilterList::encode_one(&mut list, filter, None));
            false
        }
    };
    let filters = FilterList::from_encoded(&list, with_options, version)
        .map_err(|error| Error::Options(error.to_string()))?;
    let properties = Properties::NONE;
    match with_options {
        true => Subscribe { packet_id: id, properties, filters }.encode(version, out),
        false => Unsubscribe { packet_id: id, properties, filters }.encode(version, out),
    }
    Ok(())
}

/// 3.1.1 has no option except the quality of service.
fn for_version(options: SubscribeOptions, version: Version) -> SubscribeOptions {
    match version {
        Version::V5 => options,
        Version::V311 => SubscribeOptions { qos: options.qos, ..SubscribeOptions::default() },
    }
}

fn head(message: &Message, packet_id: Option<PacketId>, dup: bool) -> PublishHead<'_> {
    PublishHead {
        dup,
        qos: message.qos,
        retain: message.retain,
        topic: &message.topic,
        packet_id,
        message_expiry: None,
        topic_alias: None,
        subscription_ids: &[],
        raw_properties: message.properties.as_properties().raw(),
        payload_len: message.payload.len(),
    }
}

pub(super) fn put_publish(
    out: &mut Vec<u8>,
    version: Version,
    message: &Message,
    packet_id: Option<PacketId>,
    dup: bool,
) {
    let publish = Publish {
        dup,
        qos: message.qos,
        retain: message.retain,
        topic: &message.topic,
        packet_id,
        properties: message.properties.as_properties(),
        payload: &message.payload,
    };
    publish.encode(version, out);
}
