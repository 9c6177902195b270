//! An honest client: it follows the protocol to the letter, remembers what it must, and complains when
//! the broker does not.

use std::collections::{BTreeMap, VecDeque};

use fulmar_broker::StreamKey;
use fulmar_mqtt::ack::{self, AckKind};
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::flow::{self, DataFlow, FlowFlags, FlowHeader};
use fulmar_mqtt::packet::{
    Connect, Disconnect, FilterList, LastWill, Publish, Subscribe, SubscribeOptions, Unsubscribe,
};
use fulmar_mqtt::session::{Outbound, Replay};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode, Version};

use crate::ledger::{Delivery, Lane, Ledger};
use crate::schedule::{FILTERS, Nature, TOPICS};

/// Seconds after which an absent client's session may be gone; its flows as well.
pub(crate) const EXPIRY_S: u32 = 1000;

/// Bytes for a stream.
pub(crate) type Said = (StreamKey, Vec<u8>);

/// A publication under way to the client.
#[derive(Clone, Copy, Debug)]
struct Receiving {
    message: usize,
    qos: QoS,
    /// On which connection it came last: what an earlier one brought does not count against the receive
    /// maximum (MQTT 5.0 section 4.9).
    connection: u64,
}

/// A further stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) key: StreamKey,
    pub(crate) lane: Lane,
    keep: bool,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) index: usize,
    pub(crate) nature: Nature,
    pub(crate) line: Option<usize>,
    pub(crate) quic: bool,
    /// CONNACK has come on this line.
    pub(crate) greeted: bool,
    /// What CONNACK must say of the session, if it can know.
    expects: Option<bool>,
    pub(crate) must_clean: bool,
    /// Whether the broker has its session; `None` when it cannot know.
    known: Option<bool>,
    pub(crate) streams: Vec<Stream>,
    next_stream: u64,
    /// Streams of this connection that have named a flow.
    named: Vec<(StreamKey, u64)>,
    outbound: BTreeMap<Lane, Outbound<usize>>,
    receiving: BTreeMap<Lane, BTreeMap<u16, Receiving>>,
    /// Publications received on the control stream at QoS 1, and under which identifier.
    received_as: BTreeMap<u64, PacketId>,
    /// Acknowledgements it is slow to send.
    unacknowledged: VecDeque<(StreamKey, Lane, AckKind, u16)>,
    /// Subscriptions asked for on this line.
    asking: BTreeMap<u16, (usize, QoS)>,
    /// Filters it has asked to be rid of: until that is answered it does not ask for them again, since
    /// streams overtake each other.
    leaving: BTreeMap<u16, usize>,
    next_id: u16,
    /// Connections it has made.
    connections: u64,
    /// Newest acknowledged and newest sent message of its retained topic.
    pub(crate) retained: (Option<usize>, Option<usize>),
    pub(crate) heard: u64,
}

impl Client {
    pub(crate) fn new(index: usize, nature: Nature) -> Client {
        Client {
            index,
            nature,
            line: None,
            quic: false,
            greeted: false,
            expects: None,
            must_clean: false,
            known: Some(false),
            streams: Vec::new(),
            next_stream: 0,
            named: Vec::new(),
            outbound: BTreeMap::new(),
            receiving: BTreeMap::new(),
            received_as: BTreeMap::new(),
            unacknowledged: VecDeque::new(),
            asking: BTreeMap::new(),
            leaving: BTreeMap::new(),
            next_id: 0,
            connections: 0,
            retained: (None, None),
            heard: 0,
        }
    }

    pub(crate) fn name(index: usize) -> String {
        format!("client-{index}")
    }

    fn version(&self) -> Version {
        if self.nature.v5 { Version::V5 } else { Version::V311 }
    }

    /// Whether all it has sent and received is acknowledged.
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

    /// The lane of the client's nth stream, the control stream being the first.
    pub(crate) fn lane(&self, nth: usize) -> (StreamKey, Lane) {
        match self.streams.get(nth % (self.streams.len() + 1)) {
            Some(stream) => (stream.key, stream.lane),
            None => (StreamKey::CONTROL, Lane::Control),
        }
    }

    pub(crate) fn has_stream_of(&self, lane: Lane) -> bool {
        lane == Lane::Control || self.streams.iter().any(|stream| stream.lane == lane)
    }

    fn lane_of(&self, key: StreamKey) -> Option<Lane> {
        if key == StreamKey::CONTROL {
            return Some(Lane::Control);
        }
        self.streams.iter().find(|stream| stream.key == key).map(|stream| stream.lane)
    }

    /// Its connection is gone, as far as it is concerned.
    pub(crate) fn disconnected(&mut self, ledger: &mut Ledger) {
        if self.line.take().is_none() {
            return;
        }
        self.greeted = false;
        self.doubt_unanswered(Lane::Control, ledger);
        self.leaving.clear();
        self.unacknowledged.clear();
        while let Some(stream) = self.streams.pop() {
            self.lose_lane(stream, ledger);
        }
        self.asking.clear();
        self.drop_qos1(Lane::Control);
        if !self.nature.durable {
            self.forget(ledger);
        }
    }

    /// What it has asked for on a stream that is gone and was not told: it may have got that or not.
    fn doubt_unanswered(&self, lane: Lane, ledger: &mut Ledger) {
        for (filter, _) in self.asking.values() {
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

    /// A stream is gone; its lane goes with it or waits.
    fn lose_lane(&mut self, stream: Stream, ledger: &mut Ledger) {
        self.unacknowledged.retain(|(key, ..)| *key != stream.key);
        self.doubt_unanswered(stream.lane, ledger);
        // What it has not heard of is given up.
        self.outbound.remove(&stream.lane);
        // A flow outlives its stream also where the session ends with the connection.
        if stream.keep {
            self.drop_qos1(stream.lane);
            ledger.lane_waits(self.index, stream.lane);
        } else {
            self.end_lane(stream.lane, ledger);
        }
    }

    /// A lane is no more: what it brought and was not finished may come again elsewhere.
    fn end_lane(&mut self, lane: Lane, ledger: &mut Ledger) {
        for got in self.receiving.remove(&lane).unwrap_or_default().into_values() {
            ledger.may_come_again(self.index, got.message);
        }
        ledger.lane_ends(self.index, lane);
    }

    /// Lanes without a stream may be over.
    fn end_waiting_lanes(&mut self, ledger: &mut Ledger) {
        let lanes = self.receiving.keys().copied();
        let waiting: Vec<Lane> = lanes.filter(|lane| !self.has_stream_of(*lane)).collect();
        for lane in waiting {
            self.end_lane(lane, ledger);
            ledger.lane_waits(self.index, lane);
        }
        for lane in ledger.lanes(self.index).into_iter().filter(|lane| !self.has_stream_of(*lane)) {
            ledger.lane_ends(self.index, lane);
        }
    }

    /// So much time has passed that what waits for its client may have expired.
    pub(crate) fn aged(&mut self, ledger: &mut Ledger) {
        if !self.greeted && self.nature.v5 && self.nature.durable {
            // By its own clock the session is over, and what it knew of it is worth nothing.
            self.must_clean = true;
            self.expects = self.expects.filter(|present| !present);
            ledger.void(self.index);
        }
        self.end_waiting_lanes(ledger);
    }

    /// Its session is over.
    fn forget(&mut self, ledger: &mut Ledger) {
        self.outbound.clear();
        self.receiving.clear();
        self.received_as.clear();
        ledger.forget(self.index);
    }

    /// CONNECT on a new line.
    pub(crate) fn connect(
        &mut self,
        line: usize,
        quic: bool,
        clean: bool,
        ledger: &mut Ledger,
    ) -> Said {
        self.disconnected(ledger);
        // In 3.1.1 a clean session is one that does not last.
        self.must_clean |= clean && self.nature.v5;
        let clean_start = self.must_clean || !self.nature.durable;
        if clean_start {
            ledger.void(self.index);
        }
        if !quic {
            self.end_waiting_lanes(ledger);
        }
        (self.line, self.quic) = (Some(line), quic);
        self.connections += 1;
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
            if self.nature.durable {
                properties.push(Property::SessionExpiryInterval(EXPIRY_S));
            }
            if let Some(delay) = self.nature.will_delay_s {
                will_properties.push(Property::WillDelayInterval(delay));
            }
        }
        let will = self.nature.will_delay_s.map(|_| LastWill {
            topic: "will",
            payload: b"will",
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: will_properties.as_properties(),
        });
        let connect = Connect {
            version: self.version(),
            bridge: false,
            clean_start,
            keep_alive_s: 0,
            client_id: &client_id,
            properties: properties.as_properties(),
            will,
            username: None,
            password: None,
        };
        self.packet(StreamKey::CONTROL, &Packet::Connect(connect))
    }

    fn packet(&self, key: StreamKey, packet: &Packet<'_>) -> Said {
        let mut bytes = Vec::new();
        packet.encode(self.version(), &mut bytes);
        (key, bytes)
    }

    fn ack(&self, key: StreamKey, kind: AckKind, id: PacketId) -> Said {
        let mut bytes = Vec::new();
        ack::encode(&mut bytes, self.version(), kind, id, ReasonCode::Success);
        (key, bytes)
    }

    pub(crate) fn disconnect(&self) -> Said {
        let (reason, properties) = (ReasonCode::Success, Properties::NONE);
        self.packet(StreamKey::CONTROL, &Packet::Disconnect(Disconnect { reason, properties }))
    }

    /// A new message, if the window has room.
    pub(crate) fn publish(
        &mut self,
        topic: Option<usize>,
        qos: QoS,
        nth: usize,
        ledger: &mut Ledger,
    ) -> Option<Said> {
        let (key, lane) = self.lane(nth);
        let (key, lane) =
            if topic.is_none() { (StreamKey::CONTROL, Lane::Control) } else { (key, lane) };
        // What was open on a lane of a name is not known after its stream is gone; and at QoS 1 what was
        // sent before may set the retained message again when it is sent again.
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
        ledger.publish((self.index, lane), topic, qos);
        if topic.is_none() {
            self.retained.1 = Some(message);
        }
        Some(self.say_publish(key, id, message, false, ledger))
    }

    fn say_publish(
        &self,
        key: StreamKey,
        packet_id: Option<PacketId>,
        message: usize,
        dup: bool,
        ledger: &mut Ledger,
    ) -> Said {
        let payload = format!("{message} {}", ledger.publications.len());
        ledger.publications.push(self.line.unwrap_or(usize::MAX));
        let sent = &ledger.sent[message];
        let own = format!("r/{}", self.index);
        let topic = sent.topic.map_or(&*own, |topic| TOPICS[topic]);
        let publish = Publish {
            dup,
            qos: sent.qos,
            retain: sent.topic.is_none(),
            topic,
            packet_id,
            properties: Properties::NONE,
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
    ) -> Option<Said> {
        if self.leaving.values().any(|other| *other == filter) {
            return None;
        }
        let (key, lane) = self.lane(nth);
        let before = ledger.lane_of(self.index, filter);
        let open = before.is_none_or(|lane| self.has_stream_of(lane));
        let unanswered = self.asking.values().any(|(other, _)| *other == filter);
        ledger.subscribing(self.index, filter, qos, lane, (open, unanswered));
        let packet_id = self.next_id();
        self.asking.insert(packet_id.get(), (filter, qos));
        let mut list = Vec::new();
        let options = SubscribeOptions { qos, ..SubscribeOptions::default() };
        FilterList::encode_one(&mut list, FILTERS[filter], Some(options));
        let filters = FilterList::from_encoded(&list, true, self.version()).ok()?;
        let subscribe = Subscribe { packet_id, properties: Properties::NONE, filters };
        Some(self.packet(key, &Packet::Subscribe(subscribe)))
    }

    pub(crate) fn unsubscribe(&mut self, filter: usize, ledger: &mut Ledger) -> Option<Said> {
        ledger.unsubscribing(self.index, filter);
        self.asking.retain(|_, (asked, _)| *asked != filter);
        let packet_id = self.next_id();
        self.leaving.insert(packet_id.get(), filter);
        let mut list = Vec::new();
        FilterList::encode_one(&mut list, FILTERS[filter], None);
        let filters = FilterList::from_encoded(&list, false, self.version()).ok()?;
        let unsubscribe = Unsubscribe { packet_id, properties: Properties::NONE, filters };
        Some(self.packet(StreamKey::CONTROL, &Packet::Unsubscribe(unsubscribe)))
    }

    /// Identifiers of SUBSCRIBE lie where publications' never come.
    fn next_id(&mut self) -> PacketId {
        self.next_id = (self.next_id + 1) % 10_000;
        PacketId::new(50_000 + self.next_id).unwrap_or(PacketId::FIRST)
    }

    /// Opens a stream; what it says there first.
    pub(crate) fn open_stream(
        &mut self,
        name: Option<u64>,
        keep: bool,
        ledger: &mut Ledger,
    ) -> Option<Said> {
        self.next_stream += 4;
        let key = StreamKey(self.next_stream);
        let Some(id) = name else {
            let lane = Lane::Unnamed(key.0);
            self.streams.push(Stream { key, lane, keep: false });
            return None;
        };
        let lane = Lane::Named(id);
        self.named.push((key, id));
        if let Some(at) = self.streams.iter().position(|stream| stream.lane == lane) {
            let old = self.streams.remove(at);
            self.lose_lane(old, ledger);
        }
        self.streams.push(Stream { key, lane, keep });
        let keeps = FlowFlags::PERSISTENT_QOS | FlowFlags::PERSISTENT_SUBSCRIPTIONS;
        let expiry_s = if keep { u64::from(EXPIRY_S) } else { 0 };
        let mut header = Vec::new();
        let flow = DataFlow { id, expiry_s, flags: FlowFlags(keeps) };
        flow::encode(&FlowHeader::ClientData(flow), &mut header);
        Some((key, header))
    }

    /// Earlier streams of this connection that have named this flow.
    pub(crate) fn streams_of(&self, name: u64) -> Vec<StreamKey> {
        self.named.iter().filter(|(_, id)| *id == name).map(|(key, _)| *key).collect()
    }

    /// Ends its nth further stream. Which that was.
    pub(crate) fn end_stream(&mut self, nth: usize, ledger: &mut Ledger) -> Option<StreamKey> {
        if self.streams.is_empty() {
            return None;
        }
        let stream = self.streams.remove(nth % self.streams.len());
        self.lose_lane(stream, ledger);
        Some(stream.key)
    }

    /// Sends one of the acknowledgements it was slow with.
    pub(crate) fn acknowledge(&mut self, pick: usize) -> Option<Said> {
        if self.unacknowledged.is_empty() {
            return None;
        }
        let at = pick % self.unacknowledged.len();
        let (key, lane, kind, id) = self.unacknowledged.remove(at)?;
        self.finish(key, lane, kind, PacketId::new(id)?)
    }

    /// Acknowledges; what it has acknowledged for good it forgets.
    fn finish(&mut self, key: StreamKey, lane: Lane, kind: AckKind, id: PacketId) -> Option<Said> {
        if kind == AckKind::Puback
            && let Some(receiving) = self.receiving.get_mut(&lane)
        {
            receiving.remove(&id.get());
        }
        Some(self.ack(key, kind, id))
    }

    /// Reads a packet. What it says to that.
    pub(crate) fn hear(
        &mut self,
        key: StreamKey,
        bytes: &[u8],
        ledger: &mut Ledger,
    ) -> Result<Vec<Said>, String> {
        self.heard += 1;
        let Some(lane) = self.lane_of(key) else { return Ok(Vec::new()) };
        let who = self.index;
        let frame = peek_frame(bytes, usize::MAX).ok().flatten().ok_or("half a packet")?;
        let packet = decode(&frame, self.version())
            .map_err(|error| format!("client {who} cannot read {frame:?}: {error}"))?;
        if !self.greeted && !matches!(packet, Packet::Connack(_)) {
            return Err(format!("client {who} was sent {} before CONNACK", packet.name()));
        }
        match packet {
            Packet::Connack(connack) => {
                if connack.reason != ReasonCode::Success {
                    return Err(format!("client {who} was refused: {}", connack.reason));
                }
                self.greet(connack.session_present, ledger)
            }
            Packet::Publish(publish) => self.take(key, lane, &publish, ledger),
            Packet::Ack(kind, ack) => {
                if ack.reason.is_error() && kind != AckKind::Pubcomp && kind != AckKind::Pubrel {
                    return Err(format!("client {who} got {kind:?}: {}", ack.reason));
                }
                self.settle(key, lane, kind, ack.packet_id, ledger)
            }
            Packet::Suback(suback) => {
                if let Some((filter, qos)) = self.asking.remove(&suback.packet_id.get()) {
                    if suback.codes != [qos as u8] {
                        return Err(format!("client {who} got SUBACK {:?}", suback.codes));
                    }
                    // It may have been changed again meanwhile.
                    let asked = self.asking.values().filter(|(other, _)| *other == filter);
                    let least = asked.map(|(_, qos)| *qos).fold(qos, QoS::min);
                    ledger.subscribed(who, filter, least);
                }
                Ok(Vec::new())
            }
            Packet::Unsuback(unsuback) => {
                self.leaving.remove(&unsuback.packet_id.get());
                Ok(Vec::new())
            }
            other => Err(format!("client {who} was sent {other:?}")),
        }
    }

    fn greet(&mut self, present: bool, ledger: &mut Ledger) -> Result<Vec<Said>, String> {
        let who = self.index;
        if self.expects.is_some_and(|expected| expected != present) {
            return Err(format!("client {who} was told session present = {present}"));
        }
        self.greeted = true;
        self.must_clean = false;
        self.known = self.nature.durable.then_some(true).or(Some(false));
        if !present {
            self.forget(ledger);
        }
        let Some(outbound) = self.outbound.get(&Lane::Control) else { return Ok(Vec::new()) };
        let replay: Vec<_> = outbound
            .replay()
            .map(|replay| match replay {
                Replay::Publish { packet_id, message, .. } => (packet_id, Some(*message)),
                Replay::Pubrel { packet_id } => (packet_id, None),
            })
            .collect();
        let key = StreamKey::CONTROL;
        let again = replay.into_iter().map(|(id, message)| match message {
            Some(message) => self.say_publish(key, Some(id), message, true, ledger),
            None => self.ack(key, AckKind::Pubrel, id),
        });
        Ok(again.collect())
    }

    fn take(
        &mut self,
        key: StreamKey,
        lane: Lane,
        publish: &Publish<'_>,
        ledger: &mut Ledger,
    ) -> Result<Vec<Said>, String> {
        let who = self.index;
        let text = std::str::from_utf8(publish.payload).unwrap_or_default();
        let (message, publication) = text.split_once(' ').unwrap_or_default();
        let (message, publication) = (message.parse::<usize>(), publication.parse::<u64>());
        let topic = TOPICS.iter().position(|topic| *topic == publish.topic);
        let (Ok(message), Ok(publication), Some(topic)) = (message, publication, topic) else {
            return Err(format!("client {who} got {text:?} on {}", publish.topic));
        };
        let qos = publish.qos;
        let got = Delivery { message, publication, qos, topic };
        let Some(id) = publish.packet_id else {
            ledger.arrive(who, got)?;
            return Ok(Vec::new());
        };
        // [MQTT-4.4.0-1].
        if qos == QoS::AtLeastOnce && lane == Lane::Control && ledger.has_one_copy(who, topic) {
            let before = *self.received_as.entry(publication).or_insert(id);
            if publish.dup && before != id {
                return Err(format!(
                    "client {who} got message {message} again as {id}, not {before}"
                ));
            }
        }
        let receiving = self.receiving.entry(lane).or_default();
        let new = match receiving
            .insert(id.get(), Receiving { message, qos, connection: self.connections })
        {
            None => true,
            Some(before) if before.message != message => {
                let before = before.message;
                return Err(format!(
                    "client {who} got message {message} as {id}, which is still message {before}"
                ));
            }
            // The same again: at QoS 2 it is known.
            Some(_) => qos == QoS::AtLeastOnce,
        };
        let room = usize::from(self.nature.receive_maximum);
        let open = receiving.values().filter(|got| got.connection == self.connections).count();
        if self.nature.v5 && open > room {
            return Err(format!("client {who} got {open} messages at once and takes {room}"));
        }
        if new {
            ledger.arrive(who, got)?;
        }
        let kind = if qos == QoS::ExactlyOnce { AckKind::Pubrec } else { AckKind::Puback };
        if self.nature.slow_acks {
            self.unacknowledged.push_back((key, lane, kind, id.get()));
            return Ok(Vec::new());
        }
        Ok(self.finish(key, lane, kind, id).into_iter().collect())
    }

    /// An acknowledgement of what it published, or PUBREL.
    fn settle(
        &mut self,
        key: StreamKey,
        lane: Lane,
        kind: AckKind,
        id: PacketId,
        ledger: &mut Ledger,
    ) -> Result<Vec<Said>, String> {
        let who = self.index;
        let window = self.nature.window;
        let outbound = self.outbound.entry(lane).or_insert_with(|| Outbound::new(window));
        let unknown = |error| format!("client {who} got {kind:?} of {id}: {error}");
        let mut said = Vec::new();
        match kind {
            AckKind::Puback => {
                let message = outbound.puback(id).map_err(unknown)?;
                self.told(message, ledger);
            }
            AckKind::Pubrec => {
                let message = *outbound.pubrec(id).map_err(unknown)?;
                self.told(message, ledger);
                said.push(self.ack(key, AckKind::Pubrel, id));
            }
            AckKind::Pubcomp => {
                outbound.pubcomp(id).map_err(unknown)?;
            }
            AckKind::Pubrel => {
                if let Some(receiving) = self.receiving.get_mut(&lane) {
                    receiving.remove(&id.get());
                }
                said.push(self.ack(key, AckKind::Pubcomp, id));
            }
        }
        Ok(said)
    }

    fn told(&mut self, message: usize, ledger: &mut Ledger) {
        ledger.acknowledged(message);
        if ledger.sent[message].topic.is_none() {
            self.retained.0 = self.retained.0.max(Some(message));
        }
    }
}
