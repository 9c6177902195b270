//! Copies for thin streams: whether a datagram that was just sent is to be sent again, how often and when.
//!
//! Where a path loses packets at random and a connection has little to say, a lost packet waits for a round trip or a
//! timer. The same datagram again, a few milliseconds later, costs some bytes and arrives in its place; receivers drop a
//! packet number that they have seen (RFC 9000 section 12.3), so one more copy is not executed once more.
//!
//! `loss` estimates what the path loses of each copy, `budget` bounds what is spent, `queue` holds datagrams until they
//! are due, `watch` sees what becomes of a connection's packets, `first_flights` repeats what sets a connection up. None
//! has a clock or a socket.

mod budget;
mod first_flights;
mod loss;
mod queue;
mod watch;

use std::time::{Duration, Instant};

use crate::path::BaseRtt;
use budget::{Budget, Burst};
pub use first_flights::FirstFlights;
use loss::Loss;
pub use queue::CopyQueue;
pub use watch::{SharedCopies, share, watched};

/// Copies of one datagram, at most.
pub const MAX_COPIES: u8 = 4;

/// Largest datagram in bytes that is small.
const SMALL_BYTES: usize = 300;

/// Copies begin above the first share of lost packets and end below the second.
const BEGINS_ABOVE: f64 = 0.05;
const ENDS_BELOW: f64 = 0.02;

/// Share of datagrams of which all copies may be lost: one in a hundred, and what rounding adds.
const MISSED: f64 = 0.010_001;

/// Bounds of the time between two copies, a part of the round trip. The timers of those who send are not finer than
/// the first, and losses in a row are mostly over sooner than the second.
const GAP: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(3)];
const GAP_PART: u32 = 32;

/// Packets over which the share of all lost ones is averaged.
const OVERALL_PACKETS: f32 = 128.0;
/// Round trips without an acknowledgement after which only a timer sends.
const PROBE_ROUND_TRIPS: f64 = 1.25;

/// Silence after which the path may be another: what it lost is forgotten.
const OLD: Duration = Duration::from_secs(600);

/// A datagram that was just sent.
#[derive(Clone, Copy, Debug)]
pub struct SentDatagram {
    /// Size in bytes, without the headers of UDP and IP.
    pub bytes: usize,
    /// It belongs to a handshake or carries 0-RTT: its first packet has a long header.
    pub is_handshake: bool,
    /// The address it went to is validated, or the sender chose it itself, as clients do. To others nothing is sent
    /// twice: what may be sent there is bounded (RFC 9000 section 8).
    pub is_validated: bool,
}

/// Copies of a datagram that are to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Copies, 0 to [`MAX_COPIES`].
    pub copies: u8,
    /// The time to the first one, and from each to the next.
    pub gap: Duration,
}

/// Decides for one path of a connection.
#[derive(Clone, Debug)]
pub struct Copies {
    loss: Loss,
    base: BaseRtt,
    budget: Budget,
    burst: Burst,
    is_on: bool,
    /// More than the path's own time passes until acknowledgements come.
    is_queued: bool,
    /// The share of all packets that is lost, of those in bursts as well.
    overall_loss: f32,
    /// Lost packets whose content is yet to be sent anew.
    repairs: u8,
    /// When the first datagram since the last acknowledgement was sent.
    unanswered_since: Option<Instant>,
    /// When the newest packet was sent of those acknowledged since this was last asked, and whether all are.
    news: Option<Acknowledged>,
    heard: Instant,
    copied: Copied,
}

/// News in acknowledgements about the packets sent so far.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged {
    /// When the newest acknowledged one was sent.
    pub sent: Instant,
    /// All are, or count as lost.
    pub is_all: bool,
}

/// Copies so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Their number.
    pub datagrams: u64,
    /// Their bytes, without the headers of UDP and IP.
    pub bytes: u64,
}

impl Copies {
    /// For a path of which an earlier connection found that it loses this share of packets; 0 where nothing is known.
    pub fn new(now: Instant, known_loss: f64) -> Copies {
        let loss = Loss::expecting(known_loss);
        Copies {
            is_on: loss.share() > BEGINS_ABOVE,
            loss,
            base: BaseRtt::new(now),
            budget: Budget::new(now),
            burst: Burst::new(now),
            is_queued: false,
            overall_loss: 0.0,
            repairs: 0,
            unanswered_since: None,
            news: None,
            heard: now,
            copied: Copied::default(),
        }
    }

    /// Counts packets since the last call: of `sent`, `lost` were found lost. `round_trip` is the smoothed one.
    pub fn observe(&mut self, now: Instant, round_trip: Duration, sent: u64, lost: u64) {
        if now.saturating_duration_since(self.heard) > OLD {
            self.forget(now);
        }
        self.heard = now;
        self.base.sample(now, round_trip);
        self.is_queued = round_trip > self.base.get() + self.base.queue_threshold();
        self.learn(now, sent, lost);
    }

    /// An acknowledgement was received.
    pub fn acknowledged(&mut self) {
        self.unanswered_since = None;
    }

    /// Returns the acknowledgements since the last call.
    pub fn take_acknowledged(&mut self) -> Option<Acknowledged> {
        self.news.take()
    }

    /// Packets were lost whose content is sent anew.
    fn lose(&mut self, now: Instant, packets: u64) {
        self.repairs = u8::try_from(packets).unwrap_or(u8::MAX);
        self.learn(now, packets, packets);
    }

    fn learn(&mut self, now: Instant, sent: u64, lost: u64) {
        if sent > 0 {
            let share = (lost as f32 / sent as f32).min(1.0);
            let weight = (sent as f32 / OVERALL_PACKETS).min(1.0);
            self.overall_loss += (share - self.overall_loss) * weight;
        }
        // Where much is sent or something waits, losses may be those of a full queue.
        if self.is_queued || self.burst.was_large(now, self.pause()) {
            self.loss.skip();
            return;
        }
        self.loss.learn(sent, lost, self.is_on);
        let share = self.loss.share();
        let begins = share > BEGINS_ABOVE && self.loss.has_two();
        self.is_on = begins || (self.is_on && share >= ENDS_BELOW);
    }

    /// A datagram was sent: how often it is to be sent again. The copies count as sent.
    pub fn sent(&mut self, now: Instant, sent: SentDatagram) -> Plan {
        self.budget.own(now, sent.bytes);
        let is_small = sent.bytes <= SMALL_BYTES;
        if !sent.is_handshake {
            self.burst.sent(now, sent.bytes, self.pause());
        }
        let is_thin = is_small && !self.burst.is_large();
        let is_probe = self.is_probe(now);
        let is_repair = self.repairs > 0;
        self.repairs = self.repairs.saturating_sub(1);
        let gets_copies = self.is_on && (is_thin || sent.is_handshake);
        let loss = match gets_copies {
            true => self.loss.share(),
            false if is_probe => self.loss_of_probes(),
            false => return Plan::default(),
        };
        if self.is_queued || !sent.is_validated {
            return Plan::default();
        }
        let is_urgent = is_probe || is_repair || sent.is_handshake;
        let copies = self.budget.spend(sent.bytes, copies_at(loss), is_urgent);
        self.loss.copied(copies);
        self.copied.datagrams += u64::from(copies);
        self.copied.bytes += u64::from(copies) * sent.bytes as u64;
        Plan { copies, gap: (self.base.get() / GAP_PART).clamp(GAP[0], GAP[1]) }
    }

    /// Whether nothing was acknowledged for so long that only a timer (RFC 9002 section 6.2) sends now. Such a probe
    /// gets copies whatever its size: the next one waits twice as long, which at a loss of a half can be a minute.
    fn is_probe(&mut self, now: Instant) -> bool {
        let since = *self.unanswered_since.get_or_insert(now);
        let silence = now.saturating_duration_since(since);
        self.loss_of_probes() > BEGINS_ABOVE && silence > self.base.get().mul_f64(PROBE_ROUND_TRIPS)
    }

    /// Returns the path's loss of thin streams or of all packets. One early loss is enough here: a timer sends seldom.
    fn loss_of_probes(&self) -> f64 {
        self.loss.share().max(self.overall_loss.into())
    }

    /// First flights were sent again, see [`FirstFlights`].
    pub fn repeated(&mut self, repeated: Copied) {
        self.copied.datagrams += repeated.datagrams;
        self.copied.bytes += repeated.bytes;
    }

    /// The path is another one.
    pub fn forget(&mut self, now: Instant) {
        let copied = self.copied;
        let budget = self.budget;
        *self = Copies { copied, budget, ..Copies::new(now, 0.0) };
    }

    /// The share of packets that the path loses, 0 to 1.
    pub fn loss(&self) -> f64 {
        self.loss.share()
    }

    /// Copies so far.
    pub fn copied(&self) -> Copied {
        self.copied
    }

    /// Time without much being sent before a connection counts as a thin one.
    fn pause(&self) -> Duration {
        (self.base.get() / 8).max(Duration::from_millis(5))
    }
}

/// Returns the number of copies with which 99 of 100 datagrams arrive at this loss, at most [`MAX_COPIES`].
fn copies_at(loss: f64) -> u8 {
    (1..MAX_COPIES).find(|copies| loss.powi(i32::from(*copies) + 1) <= MISSED).unwrap_or(MAX_COPIES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);
    const LARGE: SentDatagram =
        SentDatagram { bytes: 1200, is_handshake: false, is_validated: true };

    /// After a burst of which every second packet was lost, and the acknowledgement of the last one.
    fn lossy(now: Instant) -> Copies {
        let mut copies = Copies::new(now, 0.0);
        for number in 0..100 {
            let _ = copies.sent(now, LARGE);
            copies.observe(now, RTT, 1, number % 2);
        }
        copies.acknowledged();
        copies
    }

    #[test]
    fn a_timers_probe_has_copies_whatever_its_size() {
        let now = Instant::now();
        let mut copies = lossy(now);
        for ms in [0, 50, 120] {
            let plan = copies.sent(now + Duration::from_millis(ms), LARGE);
            assert_eq!(plan.copies, 0, "{ms}");
        }
        assert!(copies.sent(now + 2 * RTT, LARGE).copies > 0);
        let forged = SentDatagram { is_validated: false, ..LARGE };
        assert_eq!(copies.sent(now + 3 * RTT, forged).copies, 0);
        copies.acknowledged();
        assert_eq!(copies.sent(now + 4 * RTT, LARGE).copies, 0);
    }

    #[test]
    fn a_probe_has_no_copies_where_nothing_is_lost() {
        let now = Instant::now();
        let mut copies = Copies::new(now, 0.0);
        (0..100).for_each(|_| copies.observe(now, RTT, 1, 0));
        let _ = copies.sent(now, LARGE);
        assert_eq!(copies.sent(now + 3 * RTT, LARGE).copies, 0);
    }

    /// The second loss, after which all small datagrams have copies, would often be that of the probe.
    #[test]
    fn a_probe_has_a_copy_after_one_early_loss() {
        let now = Instant::now();
        let small = SentDatagram { bytes: 100, ..LARGE };
        let mut copies = Copies::new(now, 0.0);
        copies.observe(now, RTT, 8, 1);
        copies.acknowledged();
        assert_eq!(copies.sent(now, small).copies, 0);
        assert!(copies.sent(now + 2 * RTT, small).copies > 0);
        copies.acknowledged();
        copies.observe(now, RTT, 100, 0);
        assert_eq!(copies.sent(now + 2 * RTT, small).copies, 0);
        assert_eq!(copies.sent(now + 4 * RTT, small).copies, 0);
    }

    #[test]
    fn what_repeats_lost_content_has_a_share_of_the_budget() {
        let (mut now, small) = (Instant::now(), SentDatagram { bytes: 300, ..LARGE });
        let mut copies = Copies::new(now, 0.2);
        copies.observe(now, RTT, 0, 0);
        // All that others may spend is spent.
        for _ in 0..40 {
            now += Duration::from_millis(5);
            let _ = copies.sent(now, small);
            copies.acknowledged();
        }
        assert_eq!(copies.sent(now, small).copies, 0);
        copies.lose(now, 1);
        assert!(copies.sent(now, small).copies > 0);
        assert_eq!(copies.sent(now, small).copies, 0);
    }

    #[test]
    fn there_are_as_many_copies_as_make_99_of_100_arrive() {
        let expected = [(0.03, 1), (0.1, 1), (0.11, 2), (0.2, 2), (0.3, 3), (0.4, 4), (0.9, 4)];
        for (loss, copies) in expected {
            assert_eq!(copies_at(loss), copies, "{loss}");
        }
    }
}
