//! An honest client: it follows the protocol exactly, keeps the state that it must keep, and reports an error when
//! the broker breaks a promise.

mod receive;
mod refusals;
mod streams;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fulmar_broker::StreamKey;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::{
    Connect, Disconnect, LastWill, Publish, RetainHandling, SubscribeOptions,
};
use fulmar_mqtt::session::Outbound;
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode, Version};

use crate::broker::ledger::{Before, FormerSubscription, Lane, Ledger};
use crate::broker::schedule::{FILTERS, Nature, TOPICS, Will};
use crate::overdue::Tick;
use crate::packets::{acknowledgement, decoded, encoded, subscription};

/// Seconds after which an absent client's session and its flows may have expired.
pub(crate) const EXPIRY_S: u32 = 1000;

pub(crate) type StreamBytes = (StreamKey, Vec<u8>);

/// A publication that is being received.
#[derive(Clone, Copy, Debug)]
struct Receiving {
    message: usize,
    qos: QoS,
    /// The connection on which it was last received: those of earlier connections do not count towards the Receive
    /// Maximum (MQTT 5.0 section 4.9).
    connection: u64,
}

/// A stream other than the control stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) key: StreamKey,
    pub(crate) lane: Lane,
    keep: bool,
    /// It has another stream's flow, and has received nothing yet: the broker may know neither stream.
    is_between: bool,
    /// `None` for a stream that accepts the flow in any state.
    refusal: Option<Refusal>,
}

/// Whether the broker must refuse a stream that resumes a flow (draft section 9.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The broker cannot have the flow.
    Must,
    /// A crash or expiry may have removed the flow.
    May,
    /// The broker has the flow.
    MustNot,
}

/// A subscription that it has requested.
#[derive(Clone, Copy, Debug)]
struct Asking {
    key: StreamKey,
    filter: usize,
    qos: QoS,
    /// The least of those requested at the same time, of which the broker may have read another last.
    least: QoS,
    before: Before,
    /// No other request for it was under way.
    alone: bool,
}

/// A subscription of which it has asked to be rid.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    filter: usize,
    before: Before,
    /// No other request for it was under way.
    alone: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Client {
    pub(crate) index: usize,
    pub(crate) nature: Nature,
    pub(crate) line: Option<usize>,
    pub(crate) quic: bool,
    /// CONNACK was received on this connection.
    pub(crate) greeted: bool,
    /// The session-present flag that CONNACK must have, if known.
    expects: Option<bool>,
    pub(crate) must_clean: bool,
    /// Whether the broker has its session; `None` if unknown.
    known: Option<bool>,
    pub(crate) streams: Vec<Stream>,
    next_stream: u64,
    /// Streams of this connection that have named a flow.
    named: Vec<(StreamKey, u64)>,
    /// Flows that were ever requested in this session.
    asked_for: BTreeSet<u64>,
    /// Those of them that wait for a new stream.
    kept: BTreeSet<u64>,
    /// Flows on which the broker has answered in this connection, and which outlive their stream.
    answered: BTreeSet<u64>,
    outbound: BTreeMap<Lane, Outbound<usize>>,
    receiving: BTreeMap<Lane, BTreeMap<u16, Receiving>>,
    /// Publications received on the control stream at QoS 1, and their identifiers.
    received_as: BTreeMap<u64, PacketId>,
    /// Delayed acknowledgements.
    unacknowledged: VecDeque<(StreamKey, Lane, AckKind, u16)>,
    /// Unanswered subscriptions of this connection.
    asking: BTreeMap<u16, Asking>,
    /// Of these, those that were asked for before a flow was to be emptied, which may have been read last.
    doubted: BTreeSet<u16>,
    /// Filters it has asked to be rid of: until that is answered it does not ask for them again, since
    /// streams overtake each other.
    leaving: BTreeMap<u16, Leaving>,
    next_id: u16,
    /// When it sent its last CONNECT.
    connected_at: Tick,
    /// The broker has refused that.
    pub(crate) turned_away: bool,
    /// The number of its connections.
    connections: u64,
    /// The topics of the aliases on each stream.
    aliases: BTreeMap<(u64, u16), String>,
    /// Those for which the broker's aliases stand.
    resolved: BTreeMap<(u64, u16), String>,
    /// Newest acknowledged and newest sent message of its retained topic.
    pub(crate) retained: (Option<usize>, Option<usize>),
    pub(crate) heard: u64,
}

impl Client {
    pub(crate) fn new(index: usize, nature: Nature) -> Client {
        Client { index, nature, known: Some(false), ..Client::default() }
    }

    pub(crate) fn name(index: usize) -> String {
        format!("client-{index}")
    }

    /// Aliases that it allows on each stream, some of them fewer than there are topics.
    fn alias_maximum(&self) -> u16 {
        if self.nature.aliases { [1, 2, 1000][self.index % 3] } else { 0 }
    }

    fn version(&self) -> Version {
        if self.nature.v5 { Version::V5 } else { Version::V311 }
    }

    /// Whether everything sent and received is acknowledged.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.outbound.values().all(|outbound| outbound.in_flight() == 0)
            && self.receiving.values().all(BTreeMap::is_empty)
            && self.unacknowledged.is_empty()
    }

    pub(crate) fn owes_acknowledgements(&self) -> bool {
        !self.unacknowledged.is_empty()
    }

    pub(crate) fn at_rest_but_for(&self) -> String {
        format!("client {}: {:?} {:?}", self.index, self.outbound, self.receiving)
    }

    /// Something has come on a stream: the broker knows it.
    fn is_answered(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.key == key) else { return };
        stream.is_between = false;
        if let (Lane::Named(name), true) = (stream.lane, stream.keep) {
            self.answered.insert(name);
        }
    }

    /// The connection has ended for the client.
    pub(crate) fn disconnected(&mut self, ledger: &mut Ledger) {
        if self.line.take().is_none() {
            return;
        }
        self.greeted = false;
        self.aliases.clear();
        self.resolved.clear();
        self.answered.clear();
        self.doubt_unanswered(Lane::Control, ledger);
        self.leaving.clear();
        self.unacknowledged.clear();
        while let Some(stream) = self.streams.pop() {
            self.lose_lane(stream, ledger);
        }
        self.asking.clear();
        self.doubted.clear();
        self.drop_qos1(Lane::Control);
        if !self.nature.durable {
            self.forget(ledger);
        }
    }

    /// Requests on a stream that has ended without a response: they may or may not have taken effect.
    fn doubt_unanswered(&self, lane: Lane, ledger: &mut Ledger) {
        for Asking { filter, .. } in self.asking.values() {
            if ledger.lane_of(self.index, *filter) == Some(lane) {
                ledger.may_be_elsewhere(self.index, *filter);
            }
        }
    }

    fn drop_qos1(&mut self, lane: Lane) {
        if let Some(receiving) = self.receiving.get_mut(&lane) {
            receiving.retain(|_, got| got.qos == QoS::ExactlyOnce);
        }
    }

    /// So much time has passed that what waits for its client may have expired.
    pub(crate) fn aged(&mut self, ledger: &mut Ledger) {
        if !self.greeted && self.nature.v5 && self.nature.durable {
            // By its own clock the session has expired, so its state is void.
            self.must_clean = true;
            self.expects = self.expects.filter(|present| !present);
            ledger.void(self.index);
        }
        self.answered.clear();
        // Between two streams, a flow may also have expired.
        let known = |refusal: &&mut Refusal| **refusal == Refusal::MustNot;
        let refusals = self.streams.iter_mut().filter_map(|stream| stream.refusal.as_mut());
        refusals.filter(known).for_each(|refusal| *refusal = Refusal::May);
        self.end_waiting_lanes(ledger);
    }

    /// The session has ended.
    fn forget(&mut self, ledger: &mut Ledger) {
        self.asked_for.clear();
        self.kept.clear();
        self.outbound.clear();
        self.receiving.clear();
        self.received_as.clear();
        ledger.forget(self.index);
    }

    /// Whether its next CONNECT begins a new session; it does if `clean`, and in other cases.
    pub(crate) fn begins_anew(&self, clean: bool) -> bool {
        // In 3.1.1, a clean session is one that ends with the connection.
        self.must_clean || (clean && self.nature.v5) || !self.nature.durable
    }

    /// CONNECT on a new line.
    pub(crate) fn connect(
        &mut self,
        line: usize,
        quic: bool,
        clean: bool,
        bequest: Option<(Will, String)>,
        ledger: &mut Ledger,
    ) -> StreamBytes {
        self.disconnected(ledger);
        let clean_start = self.begins_anew(clean);
        self.must_clean |= clean && self.nature.v5;
        if clean_start {
            ledger.void(self.index);
        }
        if !quic {
            self.end_waiting_lanes(ledger);
        }
        (self.line, self.quic) = (Some(line), quic);
        self.connections += 1;
        (self.connected_at, self.turned_away) = (ledger.tick, false);
        self.expects = if clean_start { Some(false) } else { self.known };
        if self.known == Some(false) {
            self.known = None;
        }
        self.next_stream = 0;
        self.named.clear();
        let client_id = Client::name(self.index);
        let mut properties = PropertyBuf::new();
        let mut will_properties = PropertyBuf::new();
        if self.nature.v5 {
            properties.push(Property::ReceiveMaximum(self.nature.receive_maximum));
            if self.alias_maximum() > 0 {
                properties.push(Property::TopicAliasMaximum(self.alias_maximum()));
            }
            if self.nature.durable {
                properties.push(Property::SessionExpiryInterval(EXPIRY_S));
            }
            if let Some((will, _)) = &bequest {
                will_properties.push(Property::WillDelayInterval(will.delay_s));
                if let Some(seconds) = will.expiry_s {
                    will_properties.push(Property::MessageExpiryInterval(seconds));
                }
            }
        }
        let will = bequest.as_ref().map(|(will, payload)| LastWill {
            topic: TOPICS[self.index % TOPICS.len()],
            payload: payload.as_bytes(),
            qos: will.qos,
            retain: false,
            properties: will_properties.as_properties(),
        });
        let properties = properties.as_properties();
        let usual = Connect::new(self.version(), &client_id);
        let keep_alive_s = self.nature.keep_alive_s;
        let connect = Connect { clean_start, keep_alive_s, properties, will, ..usual };
        self.packet(StreamKey::CONTROL, &Packet::Connect(connect))
    }

    fn packet(&self, key: StreamKey, packet: &Packet<'_>) -> StreamBytes {
        (key, encoded(packet, self.version()))
    }

    fn ack(&self, key: StreamKey, kind: AckKind, id: PacketId) -> StreamBytes {
        (key, acknowledgement(kind, id, self.version()))
    }

    pub(crate) fn disconnect(&self) -> StreamBytes {
        let (reason, properties) = (ReasonCode::Success, Properties::NONE);
        self.packet(StreamKey::CONTROL, &Packet::Disconnect(Disconnect { reason, properties }))
    }

    /// A new message, if the window has room.
    pub(crate) fn publish(
        &mut self,
        topic: Option<usize>,
        qos: QoS,
        nth: usize,
        expiry_s: Option<u32>,
        ledger: &mut Ledger,
    ) -> Option<StreamBytes> {
        let (key, lane) = self.lane(nth);
        let (key, lane) =
            if topic.is_none() { (StreamKey::CONTROL, Lane::Control) } else { (key, lane) };
        // The state of a lane with a name is unknown after its stream has ended; and at QoS 1, a repeated message may
        // set the retained message again.
        let at_most_1 = matches!(lane, Lane::Named(_)) || topic.is_none();
        let qos = if at_most_1 { qos.min(QoS::AtLeastOnce) } else { qos };
        let message = ledger.sent.len();
        let window = self.nature.window;
        let id = if qos > QoS::AtMostOnce {
            let outbound = self.outbound.entry(lane).or_insert_with(|| Outbound::new(window));
            Some(outbound.push(qos, message)?)
        } else {
            None
        };
        let expiry_s = expiry_s.filter(|_| self.nature.v5);
        ledger.publish(self.index, lane, topic, qos, expiry_s);
        if topic.is_none() {
            self.retained.1 = Some(message);
        }
        Some(self.say_publish(key, id, message, false, ledger))
    }

    fn say_publish(
        &mut self,
        key: StreamKey,
        packet_id: Option<PacketId>,
        message: usize,
        dup: bool,
        ledger: &mut Ledger,
    ) -> StreamBytes {
        let payload = ledger.payload(message, self.line.unwrap_or(usize::MAX));
        let sent = &ledger.sent[message];
        let own = format!("r/{}", self.index);
        let topic = sent.topic.map_or(&*own, |topic| TOPICS[topic]);
        let mut properties = PropertyBuf::new();
        if let Some(seconds) = sent.expiry_s {
            properties.push(Property::MessageExpiryInterval(seconds));
        }
        let mut said_before = false;
        if self.nature.aliases && self.nature.v5 {
            // Few, so that they are reused for other topics.
            let alias = 1 + (message % 2) as u16;
            properties.push(Property::TopicAlias(alias));
            let before = self.aliases.insert((key.0, alias), topic.to_owned());
            said_before = before.is_some_and(|before| before == topic);
        }
        let publish = Publish {
            dup,
            qos: sent.qos,
            retain: sent.topic.is_none(),
            topic: if said_before { "" } else { topic },
            packet_id,
            properties: properties.as_properties(),
            payload: payload.as_bytes(),
        };
        self.packet(key, &Packet::Publish(publish))
    }

    pub(crate) fn subscribe(
        &mut self,
        filter: usize,
        qos: QoS,
        nth: usize,
        ledger: &mut Ledger,
    ) -> Option<StreamBytes> {
        if self.leaving.values().any(|other| other.filter == filter) {
            return None;
        }
        let (key, lane) = self.lane(nth);
        let before = ledger.lane_of(self.index, filter);
        let is_between = |lane| self.streams.iter().any(|own| own.lane == lane && own.is_between);
        let is_open = before.is_none_or(|lane| self.has_stream_of(lane) && !is_between(lane));
        let is_unanswered = self.asking.values().any(|other| other.filter == filter);
        let former = FormerSubscription { is_open, is_unanswered };
        let durable = self.nature.durable;
        let before = ledger.subscribing(self.index, filter, qos, lane, former, durable);
        let packet_id = self.next_id();
        let same = self.asking.values_mut().filter(|other| other.filter == filter);
        let least = same.fold(qos, |least, own| {
            (own.least, own.alone) = (qos.min(own.least), false);
            least.min(own.least)
        });
        let asking = Asking { key, filter, qos, least, before, alone: !is_unanswered };
        self.asking.insert(packet_id.get(), asking);
        // What is retained and still to be sent has its flow looked at, which hides a flow that nobody looks at.
        let retain_handling = match self.nature.v5 && packet_id.get().is_multiple_of(2) {
            true => RetainHandling::Never,
            false => RetainHandling::Always,
        };
        let no_local = self.nature.no_local && !FILTERS[filter].starts_with("$share");
        let usual = SubscribeOptions::default();
        let options = SubscribeOptions { qos, retain_handling, no_local, ..usual };
        Some((key, subscription(packet_id, [FILTERS[filter]], Some(options), self.version())))
    }

    pub(crate) fn unsubscribe(&mut self, filter: usize, ledger: &mut Ledger) -> StreamBytes {
        let before = ledger.unsubscribing(self.index, filter);
        let same = self.leaving.values_mut().filter(|other| other.filter == filter);
        let others = same.map(|other| other.alone = false).count() + self.asking.len();
        self.asking.retain(|_, asked| asked.filter != filter);
        let alone = others == self.asking.len();
        let packet_id = self.next_id();
        self.leaving.insert(packet_id.get(), Leaving { filter, before, alone });
        (StreamKey::CONTROL, subscription(packet_id, [FILTERS[filter]], None, self.version()))
    }

    /// Identifiers of SUBSCRIBE are from a range that publications never use.
    fn next_id(&mut self) -> PacketId {
        self.next_id = (self.next_id + 1) % 10_000;
        PacketId::new(50_000 + self.next_id).unwrap_or(PacketId::FIRST)
    }

    /// Sends one of the acknowledgements it was slow with.
    pub(crate) fn acknowledge(&mut self, pick: usize) -> Option<StreamBytes> {
        if self.unacknowledged.is_empty() {
            return None;
        }
        let at = pick % self.unacknowledged.len();
        let (key, lane, kind, id) = self.unacknowledged.remove(at)?;
        Some(self.finish(key, lane, kind, PacketId::new(id)?))
    }

    /// Acknowledges; forgets a message after its final acknowledgement.
    fn finish(&mut self, key: StreamKey, lane: Lane, kind: AckKind, id: PacketId) -> StreamBytes {
        if kind == AckKind::Puback
            && let Some(receiving) = self.receiving.get_mut(&lane)
        {
            receiving.remove(&id.get());
        }
        self.ack(key, kind, id)
    }

    /// A packet as text, for people.
    pub(crate) fn words(&self, bytes: &[u8]) -> String {
        match decoded(bytes, self.version()) {
            Ok(Packet::Publish(publish)) => format!(
                "PUBLISH {:?} of {} at {:?}{}{}",
                String::from_utf8_lossy(publish.payload),
                publish.topic,
                publish.qos,
                publish.packet_id.map_or_else(String::new, |id| format!(" as {id}")),
                if publish.dup { ", again" } else { "" },
            ),
            packet => format!("{packet:?}"),
        }
    }
}
