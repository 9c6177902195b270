//! Loss detection and congestion control (RFC 9002) for a sender with few packets on their way: round-trip
//! times, what is lost, when to probe, NewReno. What packets contain matters to whoever calls.

use super::packet::Space;
use super::ranges::Range;
use crate::Instant;
use crate::limits::{DATAGRAM_BYTES, SENT_PACKETS};

const INITIAL_RTT_MS: u32 = 333;
const PACKET_THRESHOLD: u32 = 3;
/// Resolution of a clock of milliseconds.
const GRANULARITY_MS: u32 = 1;
const INITIAL_WINDOW: u32 = 10 * DATAGRAM_BYTES as u32;
const MINIMUM_WINDOW: u32 = 2 * DATAGRAM_BYTES as u32;
const PERSISTENT_CONGESTION_THRESHOLD: u32 = 3;
/// Beyond, the time between probes grows no more: two minutes at a second each.
const MAX_BACKOFF: u32 = 7;

/// Content of a packet that is sent again if the packet is lost.
#[derive(Clone, Copy)]
pub(super) struct Content {
    /// Source of `range`, a part of a stream of bytes; none if `range` is empty.
    pub(super) source: u8,
    pub(super) range: Range,
    /// Control frames, as bits.
    pub(super) control: u8,
    /// The sequence number of the connection ID retired, if the control bits say so.
    pub(super) retired: u32,
}

impl Content {
    pub(super) const fn nothing() -> Self {
        Self { source: 0, range: (0, 0), control: 0, retired: 0 }
    }
}

/// An ack-eliciting packet on its way.
#[derive(Clone, Copy)]
pub(super) struct SentPacket {
    pub(super) number: u32,
    pub(super) at: Instant,
    /// Length of the packet; 0 marks a free place.
    pub(super) bytes: u16,
    pub(super) space: Space,
    pub(super) content: Content,
}

impl SentPacket {
    const FREE: Self = Self {
        number: 0,
        at: Instant::from_millis(0),
        bytes: 0,
        space: Space::Initial,
        content: Content::nothing(),
    };

    fn is_of(&self, space: Space) -> bool {
        self.bytes != 0 && self.space == space
    }
}

/// The state of recovery.
// In this order for the sake of flash: what is near the beginning is reached by shorter instructions.
#[repr(C)]
pub(super) struct Recovery {
    /// 0 until there is a sample.
    smoothed_ms: u32,
    variation_ms: u32,
    latest_ms: u32,
    least_ms: u32,
    /// When the first sample was taken.
    first_sample: Instant,
    pub(super) probes: u32,
    window: u32,
    slow_start_below: u32,
    in_flight: u32,
    /// When the last reduction of the window was, if there was one.
    reduced: Option<Instant>,
    sent: [SentPacket; SENT_PACKETS],
}

impl Recovery {
    pub(super) const fn new() -> Self {
        Self {
            sent: [SentPacket::FREE; SENT_PACKETS],
            smoothed_ms: 0,
            variation_ms: 0,
            latest_ms: 0,
            least_ms: 0,
            first_sample: Instant::from_millis(0),
            probes: 0,
            window: 0,
            slow_start_below: 0,
            in_flight: 0,
            reduced: None,
        }
    }

    pub(super) fn start(&mut self) {
        for sent in &mut self.sent {
            sent.bytes = 0;
        }
        self.smoothed_ms = 0;
        self.probes = 0;
        self.window = INITIAL_WINDOW;
        self.slow_start_below = u32::MAX;
        self.in_flight = 0;
        self.reduced = None;
    }

    /// Whether another full datagram may be sent. A place is kept for a probe.
    pub(super) fn may_send(&self) -> bool {
        self.in_flight + DATAGRAM_BYTES as u32 <= self.window
            && self.sent.iter().filter(|sent| sent.bytes == 0).count() > 1
    }

    /// Remembers a packet. If there is no place, as for a second probe, gives that which has to be done
    /// again because the oldest packet was given up.
    #[inline(never)]
    pub(super) fn on_sent(&mut self, packet: SentPacket) -> Option<SentPacket> {
        let free = self.sent.iter().position(|sent| sent.bytes == 0);
        let place = free.unwrap_or_else(|| {
            let oldest =
                self.sent.iter().enumerate().max_by_key(|(_, sent)| packet.at.since(sent.at));
            oldest.map_or(0, |(place, _)| place)
        });
        let old = core::mem::replace(self.sent.get_mut(place)?, packet);
        self.in_flight += u32::from(packet.bytes);
        self.in_flight -= u32::from(old.bytes);
        (old.bytes != 0).then_some(old)
    }

    /// When the last ack-eliciting packet of `space` was sent that is on its way.
    pub(super) fn last_sent(&self, space: Space) -> Option<Instant> {
        self.outstanding(space).map(|sent| sent.at).reduce(Instant::max)
    }

    /// Packets of `space` on their way.
    pub(super) fn outstanding(&self, space: Space) -> impl Iterator<Item = &SentPacket> {
        self.sent.iter().filter(move |sent| sent.is_of(space))
    }

    fn remove(&mut self, fits: impl Fn(&SentPacket) -> bool) -> Option<SentPacket> {
        let sent = self.sent.iter_mut().find(|sent| sent.bytes != 0 && fits(sent))?;
        let removed = *sent;
        sent.bytes = 0;
        self.in_flight -= u32::from(removed.bytes);
        Some(removed)
    }

    /// Forgets a packet of `space`, as when its keys are discarded; [`None`] when there is none left.
    pub(super) fn forget_next(&mut self, space: Space) -> Option<SentPacket> {
        self.remove(|sent| sent.space == space)
    }

    /// Takes out a packet that was acknowledged as one of `low..=high`, counting it for the window;
    /// [`None`] when there is none left.
    #[inline(never)]
    pub(super) fn take_acked(&mut self, space: Space, low: u32, high: u32) -> Option<SentPacket> {
        let full = self.in_flight * 2 >= self.window;
        let sent =
            self.remove(|sent| sent.space == space && (low..=high).contains(&sent.number))?;
        let bytes = u32::from(sent.bytes);
        let in_recovery = self.reduced.is_some_and(|reduced| reduced.reached(sent.at));
        // A window that is not used says nothing about the path (section 7.8).
        if full && !in_recovery {
            self.window += if self.window < self.slow_start_below {
                bytes
            } else {
                DATAGRAM_BYTES as u32 * bytes / self.window
            };
        }
        Some(sent)
    }

    /// Takes a sample of the round-trip time: `sent` was acknowledged at `now`, after the peer had held the
    /// acknowledgement back for `delay_ms`.
    #[inline(never)]
    pub(super) fn sample(&mut self, sent: Instant, now: Instant, delay_ms: u32) {
        let latest = now.since(sent).max(GRANULARITY_MS);
        self.latest_ms = latest;
        if self.smoothed_ms == 0 {
            self.smoothed_ms = latest;
            self.variation_ms = latest / 2;
            self.least_ms = latest;
            self.first_sample = now;
            return;
        }
        self.least_ms = self.least_ms.min(latest);
        let adjusted = if latest >= self.least_ms.saturating_add(delay_ms) {
            latest - delay_ms
        } else {
            latest
        };
        self.variation_ms = (3 * self.variation_ms + self.smoothed_ms.abs_diff(adjusted)) / 4;
        self.smoothed_ms = ((7 * self.smoothed_ms + adjusted) / 8).max(GRANULARITY_MS);
    }

    /// The time after which to probe, without the peer's delay and without backoff.
    pub(super) fn probe_ms(&self) -> u32 {
        if self.smoothed_ms == 0 {
            3 * INITIAL_RTT_MS
        } else {
            self.smoothed_ms + (4 * self.variation_ms).max(GRANULARITY_MS)
        }
    }

    /// `period_ms`, doubled for every probe that has not been answered.
    pub(super) fn backed_off(&self, period_ms: u32) -> u32 {
        period_ms.saturating_mul(1 << self.probes.min(MAX_BACKOFF)).min(u32::MAX / 4)
    }

    fn loss_delay_ms(&self) -> u32 {
        let rtt = if self.smoothed_ms == 0 {
            INITIAL_RTT_MS
        } else {
            self.smoothed_ms.max(self.latest_ms)
        };
        (rtt + rtt / 8).max(GRANULARITY_MS)
    }

    fn is_lost(&self, sent: &SentPacket, largest_acked: u32, now: Instant) -> bool {
        sent.number < largest_acked
            && (largest_acked - sent.number >= PACKET_THRESHOLD
                || now.since(sent.at) >= self.loss_delay_ms())
    }

    /// Takes out a packet of `space` that counts as lost, `largest_acked` having been acknowledged;
    /// [`None`] when there is none left.
    #[inline(never)]
    pub(super) fn take_lost(
        &mut self,
        space: Space,
        largest_acked: u32,
        now: Instant,
    ) -> Option<SentPacket> {
        let lost = self
            .sent
            .iter()
            .find(|sent| sent.is_of(space) && self.is_lost(sent, largest_acked, now))?
            .number;
        self.remove(|sent| sent.space == space && sent.number == lost)
    }

    /// When a packet of `space` that is older than `largest_acked` will count as lost.
    pub(super) fn loss_deadline(&self, space: Space, largest_acked: u32) -> Option<Instant> {
        let older = self.outstanding(space).filter(|sent| sent.number < largest_acked);
        let oldest = older.map(|sent| sent.at).reduce(Instant::min)?;
        Some(oldest.after(self.loss_delay_ms()))
    }

    /// Packets have been lost, the newest sent at `newest`, and all those between `oldest` and it too:
    /// halves the window, once for a round trip, or reduces it to its minimum in persistent congestion.
    #[inline(never)]
    pub(super) fn on_loss(
        &mut self,
        oldest: Instant,
        newest: Instant,
        max_ack_delay_ms: u32,
        now: Instant,
    ) {
        if !self.reduced.is_some_and(|reduced| reduced.reached(newest)) {
            self.reduced = Some(now);
            self.slow_start_below = (self.window / 2).max(MINIMUM_WINDOW);
            self.window = self.slow_start_below;
        }
        let persistent = (self.probe_ms() + max_ack_delay_ms) * PERSISTENT_CONGESTION_THRESHOLD;
        let measured = self.smoothed_ms != 0 && oldest.reached(self.first_sample);
        if measured && newest.since(oldest) > persistent {
            self.window = MINIMUM_WINDOW;
            self.reduced = None;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(millis: u32) -> Instant {
        Instant::from_millis(millis)
    }

    fn packet(number: u32, millis: u32) -> SentPacket {
        SentPacket { number, at: at(millis), bytes: 1200, space: Space::Data, ..SentPacket::FREE }
    }

    fn started() -> Recovery {
        let mut recovery = Recovery::new();
        recovery.start();
        recovery
    }

    #[test]
    fn rfc_9002_5_3_smoothed_round_trips() {
        let mut recovery = started();
        assert_eq!(recovery.probe_ms(), 999);
        recovery.sample(at(0), at(100), 0);
        assert_eq!((recovery.smoothed_ms, recovery.variation_ms), (100, 50));
        recovery.sample(at(0), at(120), 20);
        assert_eq!((recovery.smoothed_ms, recovery.variation_ms), (100, 37));
        recovery.sample(at(0), at(110), 20);
        assert_eq!(recovery.smoothed_ms, 101, "less than the least is not believed");
    }

    #[test]
    fn rfc_9002_6_1_lost_by_number_and_by_time() {
        let mut recovery = started();
        for number in 0..5 {
            assert!(recovery.on_sent(packet(number, number)).is_none());
        }
        recovery.sample(at(4), at(104), 0);
        assert_eq!(recovery.take_acked(Space::Data, 4, 4).unwrap().number, 4);
        assert_eq!(recovery.take_lost(Space::Data, 4, at(104)).unwrap().number, 0);
        assert_eq!(recovery.take_lost(Space::Data, 4, at(104)).unwrap().number, 1);
        assert!(recovery.take_lost(Space::Data, 4, at(104)).is_none());
        assert_eq!(recovery.loss_deadline(Space::Data, 4), Some(at(2 + 112)));
        assert_eq!(recovery.take_lost(Space::Data, 4, at(114)).unwrap().number, 2);
        assert!(recovery.take_lost(Space::Initial, 4, at(999)).is_none());
    }

    #[test]
    fn rfc_9002_7_3_one_reduction_for_a_round_trip() {
        let mut recovery = started();
        recovery.on_loss(at(10), at(10), 25, at(100));
        assert_eq!(recovery.window, INITIAL_WINDOW / 2);
        recovery.on_loss(at(99), at(99), 25, at(110));
        assert_eq!(recovery.window, INITIAL_WINDOW / 2);
        recovery.on_loss(at(101), at(101), 25, at(200));
        assert_eq!(recovery.window, INITIAL_WINDOW / 4);
    }

    #[test]
    fn rfc_9002_7_6_persistent_congestion_leaves_the_least_window() {
        let mut recovery = started();
        recovery.sample(at(0), at(100), 0);
        recovery.on_loss(at(200), at(200 + 975), 25, at(2000));
        assert_eq!(recovery.window, INITIAL_WINDOW / 2);
        recovery.on_loss(at(200), at(200 + 976), 25, at(2000));
        assert_eq!(recovery.window, MINIMUM_WINDOW);
    }

    #[test]
    fn the_window_and_the_table_bound_what_is_on_its_way() {
        let mut recovery = started();
        let mut number = 0;
        while recovery.may_send() {
            assert!(recovery.on_sent(packet(number, 0)).is_none());
            number += 1;
        }
        assert_eq!(number, 10);
        assert_eq!(recovery.take_acked(Space::Data, 0, 0).unwrap().number, 0);
        assert_eq!(recovery.window, INITIAL_WINDOW + 1200, "slow start");
        while recovery.on_sent(packet(number, number)).is_none() {
            number += 1;
        }
        assert_eq!(recovery.outstanding(Space::Data).count(), SENT_PACKETS);
    }
}
