//! One direction of a link: queue, bottleneck, then loss, delay, corruption and duplication.
//!
//! Time advances in two ways: by packets that arrive and by [`Lane::poll_event`]. Everything that happens has
//! its exact virtual time, however late the caller is.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use serde::Serialize;

use super::queue::{Job, Queue, QueueDrop};
use super::transmitter::Transmitter;
use super::{Decision, DropReason, Impairments};
use crate::units::Nanos;
use crate::wire::PacketView;

/// Bytes that may be under way behind the bottleneck. A link without a rate would otherwise let a
/// fast sender and a long delay take all memory; no real link holds so much.
const MAX_UNDER_WAY: u64 = 512 << 20;

/// What one direction has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LaneStats {
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
    /// Packets that were doubled.
    pub duplicated: u64,
    /// Packets held back.
    pub reordered: u64,
    /// The fullest the queue has been, in bytes.
    pub max_queue_bytes: u64,
}

fn by_reason<S: serde::Serializer>(
    dropped: &[u64; DropReason::ALL.len()],
    to: S,
) -> Result<S::Ok, S::Error> {
    let named = DropReason::ALL.iter().zip(dropped).filter(|(_, count)| **count > 0);
    to.collect_map(named.map(|(reason, count)| (reason.name(), count)))
}

impl LaneStats {
    /// Packets dropped for a reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    /// Packets dropped for any reason.
    #[must_use]
    pub fn dropped_packets(&self) -> u64 {
        self.dropped.iter().sum()
    }
}

/// A packet on its way through a lane.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) packet: Vec<u8>,
    /// The caller's note, which travels along.
    pub(crate) tag: u64,
    pub(crate) flow: u64,
    pub(crate) decision: Decision,
    queued_at: Nanos,
}

impl Parcel {
    pub(crate) fn new(packet: Vec<u8>, tag: u64, flow: u64, decision: Decision) -> Parcel {
        Parcel { packet, tag, flow, decision, queued_at: 0 }
    }
}

impl Job for Parcel {
    fn bytes(&self) -> u64 {
        self.packet.len() as u64
    }
    fn flow(&self) -> u64 {
        self.flow
    }
    fn queued_at(&self) -> Nanos {
        self.queued_at
    }
}

/// A packet's end: arrival or drop.
#[derive(Debug)]
pub(crate) struct Fate {
    pub(crate) at: Nanos,
    pub(crate) packet: Vec<u8>,
    pub(crate) tag: u64,
    /// `None`: it arrives.
    pub(crate) dropped: Option<DropReason>,
    /// Order among those at the same time.
    number: u64,
}

impl PartialEq for Fate {
    fn eq(&self, other: &Fate) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Fate {}
impl PartialOrd for Fate {
    fn partial_cmp(&self, other: &Fate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Fate {
    fn cmp(&self, other: &Fate) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// One direction.
#[derive(Debug)]
pub(crate) struct Lane {
    impairments: Impairments,
    queue: Queue<Parcel>,
    transmitter: Transmitter,
    /// When the queue last became non-empty.
    waiting_since: Nanos,
    fates: BinaryHeap<Reverse<Fate>>,
    /// Bytes in them.
    under_way: u64,
    fate_count: u64,
    /// When the last packet that may not be overtaken arrives.
    last_arrival: Nanos,
    /// The latest time that was offered or polled.
    now: Nanos,
    stats: LaneStats,
    /// Reused: what the queue handed back.
    rejected: Vec<(Parcel, QueueDrop)>,
}

impl Lane {
    pub(crate) fn new(impairments: Impairments) -> Lane {
        let transmitter = Transmitter::new(&impairments);
        let packet_time = match &transmitter {
            Transmitter::Unlimited => 0,
            Transmitter::Constant { rate, .. } => 12_000 * crate::units::SECOND / rate,
            Transmitter::Trace { trace, .. } => 12_000 * crate::units::SECOND / trace.mean_rate(),
        };
        Lane {
            queue: Queue::new(impairments.queue, impairments.queue_bytes(), packet_time),
            transmitter,
            impairments,
            waiting_since: 0,
            fates: BinaryHeap::new(),
            under_way: 0,
            fate_count: 0,
            last_arrival: 0,
            now: 0,
            stats: LaneStats::default(),
            rejected: Vec::new(),
        }
    }

    pub(crate) fn impairments(&self) -> &Impairments {
        &self.impairments
    }

    pub(crate) fn stats(&self) -> &LaneStats {
        &self.stats
    }

    /// Counts a packet that was offered, and lets time advance; gives the time it counts for. A
    /// caller that is late may bring packets out of order: none goes back in time.
    pub(crate) fn arrive(&mut self, at: Nanos, bytes: usize) -> Nanos {
        self.now = self.now.max(at);
        self.serve();
        self.stats.offered_packets += 1;
        self.stats.offered_bytes += bytes as u64;
        self.now
    }

    /// Drops a packet before it meets the queue.
    pub(crate) fn refuse(&mut self, packet: Vec<u8>, tag: u64, reason: DropReason) {
        self.end(self.now, packet, tag, Some(reason));
    }

    /// Sends a packet whose decision has been made. Call [`Lane::arrive`] first. [`Lane::arrive`] comes first.
    pub(crate) fn send(&mut self, mut parcel: Parcel) {
        if self.under_way > MAX_UNDER_WAY {
            // Its bytes go now: keeping them until they are told of would defeat the bound.
            self.refuse(Vec::new(), parcel.tag, DropReason::QueueFull);
            return;
        }
        if self.transmitter.is_unlimited() {
            self.leave(self.now, parcel);
            return;
        }
        if self.queue.is_empty() {
            self.waiting_since = self.now;
        }
        parcel.queued_at = self.now;
        self.queue.push(parcel, &mut self.rejected);
        self.stats.max_queue_bytes = self.stats.max_queue_bytes.max(self.queue.bytes());
        self.hand_back(self.now);
        self.serve();
    }

    /// Serves every packet whose transmission can start by `now`.
    fn serve(&mut self) {
        while let Some(start) = self.next_start()
            && start <= self.now
        {
            let parcel = self.queue.pop(start, &mut self.rejected);
            self.hand_back(start);
            let Some(parcel) = parcel else { continue };
            let sent = self.transmitter.send(start, parcel.packet.len());
            self.leave(sent, parcel);
        }
    }

    fn next_start(&self) -> Option<Nanos> {
        (!self.queue.is_empty()).then(|| self.transmitter.start(self.waiting_since))
    }

    fn hand_back(&mut self, at: Nanos) {
        while let Some((parcel, why)) = self.rejected.pop() {
            let reason = match why {
                QueueDrop::Full => DropReason::QueueFull,
                QueueDrop::Aqm => DropReason::Aqm,
            };
            self.end(at, parcel.packet, parcel.tag, Some(reason));
        }
    }

    /// A packet's last bit has left the bottleneck.
    fn leave(&mut self, at: Nanos, parcel: Parcel) {
        let Parcel { mut packet, tag, decision, .. } = parcel;
        if let Some(reason) = decision.lost {
            self.end(at, packet, tag, Some(reason));
            return;
        }
        if let Some(draw) = decision.corrupt
            && flip_bit(&mut packet, draw)
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
            self.end(arrival, packet.clone(), tag, None);
        }
        self.end(arrival, packet, tag, None);
    }

    fn end(&mut self, at: Nanos, packet: Vec<u8>, tag: u64, dropped: Option<DropReason>) {
        self.fate_count += 1;
        self.under_way += packet.len() as u64;
        self.fates.push(Reverse(Fate { at, packet, tag, dropped, number: self.fate_count }));
    }

    /// The next packet whose fate is settled by `now`, in order of time.
    pub(crate) fn poll_event(&mut self, now: Nanos) -> Option<Fate> {
        self.now = self.now.max(now);
        self.serve();
        if self.fates.peek()?.0.at > now {
            return None;
        }
        let Reverse(fate) = self.fates.pop()?;
        self.under_way -= fate.packet.len() as u64;
        match fate.dropped {
            Some(reason) => self.stats.dropped[reason as usize] += 1,
            None => {
                self.stats.delivered_packets += 1;
                self.stats.delivered_bytes += fate.packet.len() as u64;
            }
        }
        Some(fate)
    }

    /// When [`Lane::poll_event`] next has something.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let fate = self.fates.peek().map(|fate| fate.0.at);
        fate.into_iter().chain(self.next_start()).min()
    }
}

/// Flips a bit behind the IP header, which stays whole: what is tested are the checksums of the
/// transport, not the routing of nonsense. False if there is nothing behind it.
fn flip_bit(packet: &mut [u8], draw: u64) -> bool {
    let Some(range) = PacketView::parse(packet).map(|view| view.transport_range()) else {
        return false;
    };
    if range.is_empty() {
        return false;
    }
    let bit = draw % (range.len() as u64 * 8);
    packet[range.start + (bit / 8) as usize] ^= 1 << (bit % 8);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_bounded() {
        let impairments = Impairments { delay: crate::units::SECOND, ..Impairments::default() };
        let mut lane = Lane::new(impairments);
        let send = |lane: &mut Lane| {
            let packet = crate::testing::udp([1; 4], 1, [2; 4], 2, &[0; 60_000]);
            lane.arrive(0, packet.len());
            lane.send(Parcel::new(packet, 0, 0, Decision::default()));
        };
        // As if nearly all of it were there already.
        lane.under_way = MAX_UNDER_WAY - 60_000;
        send(&mut lane);
        assert!(lane.poll_event(0).is_none(), "it is under way");
        send(&mut lane);
        let refused = lane.poll_event(0).and_then(|fate| fate.dropped);
        assert_eq!(refused, Some(DropReason::QueueFull));
    }
}
