//! [`SimplexLink`], one direction of a link: queue, bottleneck, then loss, corruption, delay and duplication, in this
//! order.
//!
//! Offered packets and [`SimplexLink::poll_event`] advance the time. Every event has its exact virtual time,
//! however late the caller is.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;

use super::queue::{Queue, QueueDrop, QueueItem};
use super::transmitter::Transmitter;
use super::{Decision, DropReason, Impairments};
use crate::units::Nanos;
use crate::wire::{PacketView, checksum};

/// Maximum number of bytes in flight after the bottleneck. Without a limit, a fast sender on a link with a long delay
/// and no rate could use up memory; no real link holds as much.
const MAX_IN_FLIGHT_BYTES: u64 = 512 << 20;

/// Statistics of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DirectionStats {
    /// Packets offered.
    pub offered_packets: u64,
    /// Bytes offered, IP headers included.
    pub offered_bytes: u64,
    /// Packets delivered, second copies included.
    pub delivered_packets: u64,
    /// Bytes delivered.
    pub delivered_bytes: u64,
    /// Packets dropped, by reason (in the order of [`DropReason::ALL`]).
    #[serde(serialize_with = "by_reason")]
    pub dropped: [u64; DropReason::ALL.len()],
    /// Packets with a flipped bit.
    pub corrupted: u64,
    /// Packets that were duplicated.
    pub duplicated: u64,
    /// Packets held back.
    pub reordered: u64,
    /// The largest queue so far, in bytes.
    pub max_queue_bytes: u64,
}

fn by_reason<S: serde::Serializer>(
    dropped: &[u64; DropReason::ALL.len()],
    to: S,
) -> Result<S::Ok, S::Error> {
    let named = DropReason::ALL.iter().zip(dropped).filter(|(_, count)| **count > 0);
    to.collect_map(named.map(|(reason, count)| (reason.name(), count)))
}

impl DirectionStats {
    /// Packets dropped for a reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    /// Packets dropped for any reason.
    pub fn dropped_packets(&self) -> u64 {
        self.dropped.iter().sum()
    }
}

/// A packet in the link.
#[derive(Debug)]
pub(crate) struct LinkPacket {
    pub(crate) data: Vec<u8>,
    /// The caller's tag, which stays with the packet.
    pub(crate) tag: u64,
    pub(crate) flow: u64,
    pub(crate) decision: Decision,
    queued_at: Nanos,
}

impl LinkPacket {
    pub(crate) fn new(data: Vec<u8>, tag: u64, flow: u64, decision: Decision) -> LinkPacket {
        LinkPacket { data, tag, flow, decision, queued_at: 0 }
    }
}

impl QueueItem for LinkPacket {
    fn bytes(&self) -> u64 {
        self.data.len() as u64
    }
    fn flow(&self) -> u64 {
        self.flow
    }
    fn queued_at(&self) -> Nanos {
        self.queued_at
    }
}

/// Final event of a packet: arrival or drop. In the order of time, and of their numbers at the same time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PacketOutcome {
    pub(crate) at: Nanos,
    number: u64,
    pub(crate) packet: Vec<u8>,
    pub(crate) tag: u64,
    /// The reason of a drop; `None` if it arrives.
    pub(crate) drop_reason: Option<DropReason>,
}

/// One direction of a link.
#[derive(Debug)]
pub(crate) struct SimplexLink {
    impairments: Impairments,
    queue: Queue<LinkPacket>,
    transmitter: Transmitter,
    /// When the queue last became non-empty.
    waiting_since: Nanos,
    outcomes: BinaryHeap<Reverse<PacketOutcome>>,
    /// Bytes in `outcomes`.
    in_flight: u64,
    outcome_count: u64,
    /// When the last packet arrives that must not be overtaken.
    last_arrival: Nanos,
    /// The latest time that was offered or polled.
    now: Nanos,
    stats: DirectionStats,
    /// Packets that the queue has dropped; a field so that its memory is reused.
    dropped_by_queue: Vec<(LinkPacket, QueueDrop)>,
}

impl SimplexLink {
    pub(crate) fn new(impairments: Impairments) -> SimplexLink {
        let transmitter = Transmitter::new(&impairments);
        let packet_time = match &transmitter {
            Transmitter::Unlimited => 0,
            Transmitter::Constant { rate, .. } => 12_000 * crate::units::SECOND / rate,
            Transmitter::Trace { trace, .. } => 12_000 * crate::units::SECOND / trace.mean_rate(),
        };
        SimplexLink {
            queue: Queue::new(impairments.queue, impairments.queue_bytes(), packet_time),
            transmitter,
            impairments,
            waiting_since: 0,
            outcomes: BinaryHeap::new(),
            in_flight: 0,
            outcome_count: 0,
            last_arrival: 0,
            now: 0,
            stats: DirectionStats::default(),
            dropped_by_queue: Vec::new(),
        }
    }

    pub(crate) fn impairments(&self) -> &Impairments {
        &self.impairments
    }

    pub(crate) fn stats(&self) -> &DirectionStats {
        &self.stats
    }

    /// Counts an offered packet and advances the time; returns the packet's time. A late caller may bring packets out
    /// of order: time never goes back.
    pub(crate) fn offer(&mut self, at: Nanos, bytes: usize) -> Nanos {
        self.now = self.now.max(at);
        self.transmit_due();
        self.stats.offered_packets += 1;
        self.stats.offered_bytes += bytes as u64;
        self.now
    }

    /// Drops a packet that never reaches the queue (NAT, too big, link down, malformed) or finds the link full.
    pub(crate) fn discard(&mut self, packet: Vec<u8>, tag: u64, reason: DropReason) {
        self.schedule_outcome(self.now, packet, tag, Some(reason));
    }

    /// Sends a packet whose impairments are drawn. Call [`SimplexLink::offer`] first.
    pub(crate) fn send(&mut self, mut packet: LinkPacket) {
        if self.in_flight > MAX_IN_FLIGHT_BYTES {
            // Free its bytes now: keeping them until the drop is reported would defeat the limit.
            self.discard(Vec::new(), packet.tag, DropReason::QueueFull);
            return;
        }
        if self.transmitter.is_unlimited() {
            self.propagate(self.now, packet);
            return;
        }
        if self.queue.is_empty() {
            self.waiting_since = self.now;
        }
        packet.queued_at = self.now;
        self.queue.push(packet, &mut self.dropped_by_queue);
        self.stats.max_queue_bytes = self.stats.max_queue_bytes.max(self.queue.bytes());
        self.report_queue_drops(self.now);
        self.transmit_due();
    }

    /// Transmits every packet whose transmission can start by `now`.
    fn transmit_due(&mut self) {
        while let Some(start) = self.next_start()
            && start <= self.now
        {
            let packet = self.queue.pop(start, &mut self.dropped_by_queue);
            self.report_queue_drops(start);
            let Some(packet) = packet else { continue };
            let sent = self.transmitter.send(start, packet.data.len());
            self.propagate(sent, packet);
        }
    }

    fn next_start(&self) -> Option<Nanos> {
        (!self.queue.is_empty()).then(|| self.transmitter.start(self.waiting_since))
    }

    fn report_queue_drops(&mut self, at: Nanos) {
        while let Some((packet, why)) = self.dropped_by_queue.pop() {
            let reason = match why {
                QueueDrop::Full => DropReason::QueueFull,
                QueueDrop::Aqm => DropReason::Aqm,
            };
            self.schedule_outcome(at, packet.data, packet.tag, Some(reason));
        }
    }

    /// Applies loss, corruption, delay and duplication to a packet whose last bit has left the bottleneck.
    fn propagate(&mut self, at: Nanos, packet: LinkPacket) {
        let LinkPacket { data: mut packet, tag, decision, .. } = packet;
        if let Some(reason) = decision.drop_reason {
            self.schedule_outcome(at, packet, tag, Some(reason));
            return;
        }
        if let Some(draw) = decision.corrupt
            && flip_bit(&mut packet, draw, self.impairments.corrupt_valid)
        {
            self.stats.corrupted += 1;
        }
        let delay = self.impairments.delay.saturating_add_signed(decision.jitter);
        let mut arrival = at + delay;
        if decision.reorder {
            self.stats.reordered += 1;
            arrival += self.impairments.reorder_by;
        } else if !self.impairments.jitter_reorders {
            arrival = arrival.max(self.last_arrival);
            self.last_arrival = arrival;
        }
        if decision.duplicate {
            self.stats.duplicated += 1;
            self.schedule_outcome(arrival, packet.clone(), tag, None);
        }
        self.schedule_outcome(arrival, packet, tag, None);
    }

    fn schedule_outcome(
        &mut self,
        at: Nanos,
        packet: Vec<u8>,
        tag: u64,
        drop_reason: Option<DropReason>,
    ) {
        self.outcome_count += 1;
        self.in_flight += packet.len() as u64;
        self.outcomes.push(Reverse(PacketOutcome {
            at,
            packet,
            tag,
            drop_reason,
            number: self.outcome_count,
        }));
    }

    /// The next packet that arrives or is dropped by `now`, in order of time.
    pub(crate) fn poll_event(&mut self, now: Nanos) -> Option<PacketOutcome> {
        self.now = self.now.max(now);
        self.transmit_due();
        if self.outcomes.peek()?.0.at > now {
            return None;
        }
        let Reverse(outcome) = self.outcomes.pop()?;
        self.in_flight -= outcome.packet.len() as u64;
        match outcome.drop_reason {
            Some(reason) => self.stats.dropped[reason as usize] += 1,
            None => {
                self.stats.delivered_packets += 1;
                self.stats.delivered_bytes += outcome.packet.len() as u64;
            }
        }
        Some(outcome)
    }

    /// When [`SimplexLink::poll_event`] next has an event.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let outcome = self.outcomes.peek().map(|outcome| outcome.0.at);
        outcome.into_iter().chain(self.next_start()).min()
    }
}

/// Flips a bit after the IP header, which stays intact, because this tests the transport's checksums and not
/// routing. In a share of packets, flips a bit of the payload and makes the checksum right again. Returns false if there is
/// no such bit.
fn flip_bit(packet: &mut [u8], draw: u64, valid_share: f64) -> bool {
    let Some(view) = PacketView::parse(packet) else { return false };
    // The upper bits choose what the lower ones have not.
    let valid = ((draw >> 40) as f64) < valid_share * f64::from(1 << 24);
    let range = view.transport_range();
    let first = if valid { range.end - view.payload().len() } else { range.start };
    let sum_at = checksum::position(&view).filter(|_| valid);
    if first == range.end {
        return false;
    }
    let bit = draw % ((range.end - first) as u64 * 8);
    let at = first + (bit / 8) as usize;
    // The checksum covers words from the transport header on; a last byte alone is filled up with a zero.
    let word = range.start + (at - range.start) / 2 * 2;
    let words = |packet: &[u8]| [packet[word], packet.get(word + 1).copied().unwrap_or(0)];
    let old = words(packet);
    packet[at] ^= 1 << (bit % 8);
    if let Some(sum_at) = sum_at {
        let new = words(packet);
        checksum::update_at(packet, sum_at, &old, &new);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_flight_are_bounded() {
        let impairments = Impairments { delay: crate::units::SECOND, ..Impairments::default() };
        let mut link = SimplexLink::new(impairments);
        let send = |link: &mut SimplexLink| {
            let packet = crate::testing::udp([1; 4], 1, [2; 4], 2, &[0; 60_000]);
            link.offer(0, packet.len());
            link.send(LinkPacket::new(packet, 0, 0, Decision::default()));
        };
        // As if the limit were nearly reached already.
        link.in_flight = MAX_IN_FLIGHT_BYTES - 60_000;
        send(&mut link);
        assert!(link.poll_event(0).is_none(), "it is in flight");
        send(&mut link);
        let dropped = link.poll_event(0).and_then(|outcome| outcome.drop_reason);
        assert_eq!(dropped, Some(DropReason::QueueFull));
    }
}
