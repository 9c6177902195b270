//! The load itself, without sockets: what each lane says next and what its answers mean.
//!
//! Drivers feed received bytes in with [`Load::receive`] and take bytes to send with [`Load::outgoing`]. Nothing is
//! allocated per message. Flows at full speed wait for their own deliveries, so that the broker's queues stay short
//! and the counted messages have arrived; paced flows send when a message is due, and latency counts from that time
//! even if the generator itself was late.

use std::mem;
use std::time::Instant;

use anyhow::{Context, bail};
use fulmar_mqtt::QoS;
use fulmar_mqtt::codec::{Frame, peek_frame};
use hdrhistogram::Histogram;

use super::plan::{Plan, Role};
use super::wire::{self, Template, kind};

/// Larger than any packet the generator asks for.
const MAX_PACKET_BYTES: usize = 2 * 1024 * 1024;

/// Unacknowledged messages a paced flow may have; below the number of packet identifiers.
const MAX_UNACKNOWLEDGED: u64 = 60_000;

/// The highest latency that the histogram resolves, in microseconds.
const MAX_LATENCY_US: u64 = 60_000_000;

/// Counts since the start of traffic, or since a snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) published: u64,
    pub(super) delivered: u64,
    /// Messages given up: nothing of their flow arrived for a second.
    pub(super) lost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    New,
    Connecting,
    Subscribing,
    Ready,
}

struct Lane {
    role: Role,
    stage: Stage,
    /// Start of a packet whose end has not arrived.
    tail: Vec<u8>,
    /// Bytes to write.
    out: Vec<u8>,
    dirty: bool,
}

struct Flow {
    lane: usize,
    template: Template,
    next_id: u16,
    sent: u64,
    acknowledged: u64,
    delivered: u64,
    delivered_at_check: u64,
}

/// All lanes of a run.
pub(super) struct Load {
    plan: Plan,
    prefix: String,
    login: Option<(String, String)>,
    lanes: Vec<Lane>,
    flows: Vec<Flow>,
    dirty: Vec<usize>,
    clock: Instant,
    /// Paced messages sent so far, and when the first was due.
    paced: u64,
    pace_start_ns: u64,
    publishing: bool,
    ready: usize,
    pub(super) totals: Totals,
    /// Microseconds from the intended send time to arrival.
    pub(super) latency: Histogram<u64>,
}

impl Load {
    /// `prefix` starts every topic and client identifier of the run.
    pub(super) fn new(
        plan: Plan,
        prefix: String,
        login: Option<(String, String)>,
    ) -> anyhow::Result<Load> {
        let mut flows = Vec::with_capacity(plan.flows());
        let mut lanes = Vec::with_capacity(plan.lanes());
        for lane in 0..plan.lanes() {
            let role = plan.role(lane, &prefix);
            if let Role::Publish { topic, .. } = &role {
                flows.push(Flow {
                    lane,
                    template: Template::new(topic, plan.qos, plan.payload_bytes),
                    next_id: 1,
                    sent: 0,
                    acknowledged: 0,
                    delivered: 0,
                    delivered_at_check: 0,
                });
            }
            let (tail, out) = (Vec::new(), Vec::new());
            lanes.push(Lane { role, stage: Stage::New, tail, out, dirty: false });
        }
        Ok(Load {
            plan,
            prefix,
            login,
            lanes,
            flows,
            dirty: Vec::new(),
            clock: Instant::now(),
            paced: 0,
            pace_start_ns: 0,
            publishing: false,
            ready: 0,
            totals: Totals::default(),
            latency: Histogram::new_with_bounds(1, MAX_LATENCY_US, 3)?,
        })
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Lanes that have been answered all they waited for.
    pub(super) fn ready_lanes(&self) -> usize {
        self.ready
    }

    fn now_ns(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// Puts CONNECT on the control lane of a connection.
    pub(super) fn begin(&mut self, connection: usize) {
        let lane = connection * self.plan.streams;
        let client_id = format!("{}-{connection}", self.prefix.replace('/', "-"));
        let login = self.login.as_ref().map(|(name, secret)| (name.as_str(), secret.as_str()));
        self.lanes[lane].out = wire::connect(&client_id, !self.plan.persistent, login);
        self.lanes[lane].stage = Stage::Connecting;
        self.mark(lane);
    }

    /// Puts DISCONNECT on the control lane of a connection.
    pub(super) fn end(&mut self, connection: usize) {
        let lane = connection * self.plan.streams;
        self.lanes[lane].out.extend_from_slice(&wire::DISCONNECT);
        self.mark(lane);
    }

    /// Lets messages flow, or stops making new ones.
    pub(super) fn set_publishing(&mut self, on: bool) {
        self.publishing = on;
        self.paced = 0;
        self.pace_start_ns = self.now_ns();
        for flow in 0..self.flows.len() {
            self.mark(self.flows[flow].lane);
        }
    }

    /// Marks a lane as having something to write, or room to.
    pub(super) fn mark(&mut self, lane: usize) {
        if !mem::replace(&mut self.lanes[lane].dirty, true) {
            self.dirty.push(lane);
        }
    }

    /// A lane to ask for its [`Load::outgoing`] bytes.
    pub(super) fn next_dirty(&mut self) -> Option<usize> {
        let lane = self.dirty.pop()?;
        self.lanes[lane].dirty = false;
        Some(lane)
    }

    /// Bytes the lane wants to write; the driver takes from the front what it could. Empty: nothing
    /// to say for now. A flat-out publisher gets its next burst here.
    #[inline]
    pub(super) fn outgoing(&mut self, lane: usize) -> &mut Vec<u8> {
        if self.publishing && self.lanes[lane].out.is_empty() {
            self.fill(lane);
        }
        &mut self.lanes[lane].out
    }

    fn fill(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        let Role::Publish { flow, .. } = lane.role else { return };
        if self.plan.rate().is_some() || lane.stage != Stage::Ready {
            return;
        }
        let receivers = self.plan.receivers();
        let burst = self.plan.burst as u64;
        let flow = &mut self.flows[flow];
        if flow.under_way(self.plan.qos, receivers) + burst > self.plan.window {
            return;
        }
        let stamp = self.clock.elapsed().as_nanos() as u64;
        for _ in 0..burst {
            flow.append(&mut lane.out, stamp);
        }
        self.totals.published += burst;
    }

    /// Queues paced messages that are due; nanoseconds until the next one.
    pub(super) fn pace(&mut self) -> Option<u64> {
        let rate = self.plan.rate().filter(|_| self.publishing)?;
        let now = self.now_ns();
        loop {
            let due = self.pace_start_ns + (self.paced as f64 * 1e9 / rate) as u64;
            if due > now {
                return Some(due - now);
            }
            let index = (self.paced % self.flows.len() as u64) as usize;
            self.paced += 1;
            let flow = &mut self.flows[index];
            if self.plan.qos != QoS::AtMostOnce
                && flow.sent - flow.acknowledged >= MAX_UNACKNOWLEDGED
            {
                self.totals.lost += 1;
                continue;
            }
            let lane = flow.lane;
            flow.append(&mut self.lanes[lane].out, due);
            self.totals.published += 1;
            self.mark(lane);
        }
    }

    /// Once a second: gives up on what flows without progress still wait for, or a broker that drops
    /// messages (as it may with QoS 0) would stop them for good.
    pub(super) fn check_progress(&mut self) {
        let receivers = self.plan.receivers();
        for index in 0..self.flows.len() {
            let flow = &mut self.flows[index];
            let progress = mem::replace(&mut flow.delivered_at_check, flow.delivered);
            let missing = (flow.sent * receivers).saturating_sub(flow.delivered);
            if missing == 0 || progress != flow.delivered || self.plan.rate().is_some() {
                continue;
            }
            flow.delivered = flow.sent * receivers;
            flow.acknowledged = flow.sent;
            self.totals.lost += missing;
            let lane = flow.lane;
            self.mark(lane);
        }
    }

    /// Takes what a lane received.
    #[inline]
    pub(super) fn receive(&mut self, lane: usize, data: &[u8]) -> anyhow::Result<()> {
        if self.lanes[lane].tail.is_empty() {
            let used = self.scan(lane, data)?;
            self.lanes[lane].tail.extend_from_slice(&data[used..]);
            return Ok(());
        }
        let mut joined = mem::take(&mut self.lanes[lane].tail);
        joined.extend_from_slice(data);
        let used = self.scan(lane, &joined)?;
        joined.drain(..used);
        self.lanes[lane].tail = joined;
        Ok(())
    }

    /// Handles the whole packets in `data`; how many bytes they were.
    fn scan(&mut self, lane: usize, data: &[u8]) -> anyhow::Result<usize> {
        let now = self.now_ns();
        let before = self.lanes[lane].out.len();
        let mut used = 0;
        while let Some(frame) = peek_frame(&data[used..], MAX_PACKET_BYTES)? {
            self.handle(lane, &frame, now).with_context(|| {
                let connection = lane / self.plan.streams + 1;
                format!("connection {connection} of {}", self.plan.connections())
            })?;
            used += frame.len;
        }
        if self.lanes[lane].out.len() != before {
            self.mark(lane);
        }
        Ok(used)
    }

    fn handle(&mut self, lane: usize, frame: &Frame<'_>, now: u64) -> anyhow::Result<()> {
        match frame.packet_type() {
            kind::PUBLISH => return self.arrived(lane, frame, now),
            kind::PUBACK | kind::PUBCOMP => {
                if let Role::Publish { flow, .. } = self.lanes[lane].role {
                    self.flows[flow].acknowledged += 1;
                    self.mark(lane);
                }
            }
            kind::PUBREC => self.answer(lane, kind::PUBREL, frame.body)?,
            kind::PUBREL => self.answer(lane, kind::PUBCOMP, frame.body)?,
            kind::CONNACK => match frame.body {
                [_, 0] => self.connected(lane)?,
                [_, code] => bail!("the broker refused CONNECT with code {code}"),
                _ => bail!("the broker sent a CONNACK of {} bytes", frame.body.len()),
            },
            kind::SUBACK => match frame.body {
                [_, _, 0..=2] => self.set_ready(lane),
                _ => bail!("the broker refused a subscription: {:?}", frame.body),
            },
            other => bail!("the broker sent a packet of type {other}"),
        }
        Ok(())
    }

    #[inline]
    fn arrived(&mut self, lane: usize, frame: &Frame<'_>, now: u64) -> anyhow::Result<()> {
        let Some((id, stamp)) = wire::publish_parts(frame.first, frame.body) else {
            bail!("the broker delivered a message that is not the generator's");
        };
        self.totals.delivered += 1;
        self.latency.saturating_record(now.saturating_sub(stamp) / 1_000);
        if let Some(id) = id {
            let answer = if frame.first & 0x06 == 0x02 { kind::PUBACK } else { kind::PUBREC };
            self.lanes[lane].out.extend_from_slice(&wire::ack(answer, id));
        }
        if let Role::Subscribe { flow, .. } = self.lanes[lane].role
            && self.plan.rate().is_none()
        {
            self.flows[flow].delivered += 1;
            self.mark(self.flows[flow].lane);
        }
        Ok(())
    }

    fn answer(&mut self, lane: usize, packet_kind: u8, body: &[u8]) -> anyhow::Result<()> {
        let id = body.first_chunk::<2>().context("an acknowledgement without identifier")?;
        self.lanes[lane].out.extend_from_slice(&wire::ack(packet_kind, *id));
        Ok(())
    }

    fn connected(&mut self, control: usize) -> anyhow::Result<()> {
        for lane in control..control + self.plan.streams {
            if let Role::Subscribe { filter, .. } = &self.lanes[lane].role {
                self.lanes[lane].out = wire::subscribe(filter, self.plan.qos)?;
                self.lanes[lane].stage = Stage::Subscribing;
                self.mark(lane);
            } else {
                self.set_ready(lane);
            }
        }
        Ok(())
    }

    fn set_ready(&mut self, lane: usize) {
        if self.lanes[lane].stage != Stage::Ready {
            self.lanes[lane].stage = Stage::Ready;
            self.ready += 1;
        }
    }
}

impl Flow {
    /// Messages not yet delivered to all, or not yet acknowledged, whichever is more.
    fn under_way(&self, qos: QoS, receivers: u64) -> u64 {
        let undelivered =
            (self.sent * receivers).saturating_sub(self.delivered).div_ceil(receivers);
        match qos {
            QoS::AtMostOnce => undelivered,
            _ => undelivered.max(self.sent.saturating_sub(self.acknowledged)),
        }
    }

    #[inline]
    fn append(&mut self, out: &mut Vec<u8>, stamp: u64) {
        self.template.append(out, self.next_id, stamp);
        self.next_id = self.next_id.checked_add(1).unwrap_or(1);
        self.sent += 1;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::plan::Scenario;

    const CONNACK: [u8; 4] = [0x20, 2, 0, 0];
    const SUBACK: [u8; 5] = [0x90, 3, 0, 1, 0];
    /// Lanes of one pair.
    const SUBSCRIBER: usize = 0;
    const PUBLISHER: usize = 1;

    /// One pair with a window of two bursts of four.
    fn pair(qos: QoS) -> Load {
        let scenario = Scenario::Pairs { count: 1 };
        let plan = Plan {
            scenario,
            qos,
            payload_bytes: 16,
            burst: 4,
            window: 8,
            streams: 1,
            persistent: false,
        };
        let mut load = Load::new(plan, "b/1".to_owned(), None).unwrap();
        for lane in [SUBSCRIBER, PUBLISHER] {
            load.begin(lane);
            assert_eq!(drain_lane(&mut load, lane)[0] >> 4, 1);
            load.receive(lane, &CONNACK).unwrap();
        }
        assert_eq!(drain_lane(&mut load, SUBSCRIBER)[0] >> 4, 8);
        load.receive(SUBSCRIBER, &SUBACK).unwrap();
        assert_eq!(load.ready_lanes(), 2);
        load
    }

    /// Drains the lane's output, as a driver with a bottomless socket would.
    fn drain_lane(load: &mut Load, lane: usize) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let out = load.outgoing(lane);
            if out.is_empty() {
                return all;
            }
            all.append(out);
        }
    }

    fn packets(bytes: &[u8]) -> Vec<&[u8]> {
        let mut rest = bytes;
        let mut packets = Vec::new();
        while let Some(frame) = peek_frame(rest, MAX_PACKET_BYTES).unwrap() {
            packets.push(&rest[..frame.len]);
            rest = &rest[frame.len..];
        }
        assert!(rest.is_empty());
        packets
    }

    #[test]
    fn deliveries_make_room_for_the_next_burst() {
        let mut load = pair(QoS::AtMostOnce);
        assert!(drain_lane(&mut load, PUBLISHER).is_empty(), "nothing before traffic starts");
        load.set_publishing(true);
        let first = drain_lane(&mut load, PUBLISHER);
        assert_eq!(packets(&first).len(), 8);
        let sent = packets(&first);
        load.receive(SUBSCRIBER, &sent[..3].concat()).unwrap();
        assert!(drain_lane(&mut load, PUBLISHER).is_empty(), "room for three, a burst is four");
        load.receive(SUBSCRIBER, sent[3]).unwrap();
        assert_eq!(packets(&drain_lane(&mut load, PUBLISHER)).len(), 4);
        assert_eq!((load.totals.published, load.totals.delivered), (12, 4));
        assert_eq!(load.latency.len(), 4);
    }

    #[test]
    fn packets_cut_anywhere_count_the_same() {
        for size in 1..40 {
            let mut load = pair(QoS::AtMostOnce);
            load.set_publishing(true);
            let sent = drain_lane(&mut load, PUBLISHER);
            sent.chunks(size).for_each(|part| load.receive(SUBSCRIBER, part).unwrap());
            assert_eq!(load.totals.delivered, 8, "pieces of {size}");
        }
    }

    #[test]
    fn qos_1_waits_for_acknowledgements_too_and_acknowledges() {
        let mut load = pair(QoS::AtLeastOnce);
        load.set_publishing(true);
        let sent = drain_lane(&mut load, PUBLISHER);
        load.receive(SUBSCRIBER, &sent).unwrap();
        let answers = drain_lane(&mut load, SUBSCRIBER);
        assert_eq!(packets(&answers)[7], [0x40, 2, 0, 8]);
        assert!(drain_lane(&mut load, PUBLISHER).is_empty(), "delivered but not acknowledged");
        load.receive(PUBLISHER, &answers).unwrap();
        assert_eq!(packets(&drain_lane(&mut load, PUBLISHER)).len(), 8);
    }

    #[test]
    fn qos_2_takes_all_four_steps() {
        let mut load = pair(QoS::ExactlyOnce);
        load.set_publishing(true);
        let sent = drain_lane(&mut load, PUBLISHER);
        load.receive(SUBSCRIBER, packets(&sent)[0]).unwrap();
        assert_eq!(drain_lane(&mut load, SUBSCRIBER), [0x50, 2, 0, 1]);
        load.receive(PUBLISHER, &[0x50, 2, 0, 1]).unwrap();
        assert_eq!(drain_lane(&mut load, PUBLISHER), [0x62, 2, 0, 1]);
        load.receive(SUBSCRIBER, &[0x62, 2, 0, 1]).unwrap();
        assert_eq!(drain_lane(&mut load, SUBSCRIBER), [0x70, 2, 0, 1]);
    }

    #[test]
    fn a_flow_whose_messages_were_dropped_goes_on_after_two_checks() {
        let mut load = pair(QoS::AtMostOnce);
        load.set_publishing(true);
        let sent = drain_lane(&mut load, PUBLISHER);
        load.receive(SUBSCRIBER, packets(&sent)[0]).unwrap();
        load.check_progress();
        assert_eq!(load.totals.lost, 0, "there was progress");
        load.check_progress();
        assert_eq!(load.totals.lost, 7);
        assert_eq!(packets(&drain_lane(&mut load, PUBLISHER)).len(), 8);
    }

    #[test]
    fn paced_messages_bear_the_time_they_were_due() {
        let scenario = Scenario::FanIn { publishers: 2, subscribers: 1, rate: 1e9 };
        let plan = Plan {
            scenario,
            qos: QoS::AtLeastOnce,
            payload_bytes: 8,
            burst: 1,
            window: 1,
            streams: 1,
            persistent: false,
        };
        let mut load = Load::new(plan, "b/1".to_owned(), None).unwrap();
        load.publishing = true;
        // One nanosecond apart and two thousand late: all are due at once.
        load.clock -= std::time::Duration::from_nanos(2_000);
        assert!(load.pace().is_some());
        assert!(load.totals.published >= 2_000);
        let first = drain_lane(&mut load, 2);
        let frame = peek_frame(&first, MAX_PACKET_BYTES).unwrap().unwrap();
        assert_eq!(wire::publish_parts(frame.first, frame.body), Some((Some([0, 1]), 1)));
    }

    #[test]
    fn refusals_and_strangers_are_errors() {
        let mut load = pair(QoS::AtMostOnce);
        assert!(load.receive(PUBLISHER, &[0x20, 2, 0, 5]).is_err());
        assert!(load.receive(SUBSCRIBER, &[0x90, 3, 0, 1, 0x80]).is_err());
        assert!(load.receive(SUBSCRIBER, &[0x30, 4, 0, 1, b'x', 1]).is_err());
        assert!(load.receive(SUBSCRIBER, &[0xF0, 0]).is_err());
    }
}
