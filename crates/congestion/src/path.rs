//! What acknowledgements say of a path: its shortest round trip, and what came of each round.

use std::time::{Duration, Instant};

/// How long the shortest round trip is believed, once to twice: after that the path may be a longer one.
const BELIEVED: Duration = Duration::from_secs(30);
/// Packets wait when it is for this long at least, or this part of the shortest round trip: bursts of 10 datagrams and
/// delayed acknowledgements look like less.
const LEAST_QUEUE: Duration = Duration::from_millis(10);
const QUEUE_SHARE: f64 = 0.15;
/// The queue that is aimed at, to find out what the link carries.
const LEAST_AIM: Duration = Duration::from_millis(4);
const AIM_SHARE: f64 = 0.1;
/// And never more than this.
const MOST_AIM: Duration = Duration::from_millis(60);
/// A packet does not take longer, in seconds.
const MOST_PACKET_S: f64 = 0.2;
/// Rounds whose deliveries bound the window.
const ROUNDS: usize = 8;

/// The shortest round trip lately.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base {
    before: Duration,
    current: Duration,
    since: Instant,
    /// How long the link takes for a packet.
    packet: Duration,
    /// When a round trip was last nearly as short.
    near: Instant,
}

impl Base {
    pub(crate) fn new(now: Instant) -> Base {
        Base {
            before: Duration::MAX,
            current: Duration::MAX,
            since: now,
            packet: Duration::ZERO,
            near: now,
        }
    }

    pub(crate) fn see(&mut self, now: Instant, took: Duration) {
        if now.saturating_duration_since(self.since) > BELIEVED {
            (self.before, self.current, self.since) = (self.current, Duration::MAX, now);
        }
        self.current = self.current.min(took);
        if took <= self.get() + self.aim() / 4 {
            self.near = now;
        }
    }

    /// Zero before the first answer.
    pub(crate) fn get(&self) -> Duration {
        match self.before.min(self.current) {
            Duration::MAX => Duration::ZERO,
            base => base,
        }
    }

    /// The link takes so many seconds for a packet.
    pub(crate) fn packet_takes(&mut self, seconds: f64) {
        self.packet = Duration::from_secs_f64(seconds.clamp(0.0, MOST_PACKET_S));
    }

    pub(crate) fn near(&self) -> Instant {
        self.near
    }

    /// How long packets may wait before that is called a queue.
    pub(crate) fn allowed(&self) -> Duration {
        LEAST_QUEUE.max(self.get().mul_f64(QUEUE_SHARE)).max(2 * self.packet)
    }

    /// How long they are to wait.
    pub(crate) fn aim(&self) -> Duration {
        LEAST_AIM.max(self.get().mul_f64(AIM_SHARE)).min(MOST_AIM).max(self.packet)
    }
}

/// From a moment until a packet sent after it is acknowledged: a round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) began: Instant,
    /// The window when it began.
    pub(crate) window: f64,
    /// The shortest and the longest time from a packet to its acknowledgement.
    pub(crate) least: Duration,
    pub(crate) acked: f64,
    pub(crate) lost: f64,
    pub(crate) packets: u32,
    /// Packets acknowledged while there was nothing else to send.
    pub(crate) limited: u32,
}

impl Round {
    pub(crate) fn new(began: Instant, window: f64) -> Round {
        let (acked, lost) = (0.0, 0.0);
        Round { began, window, least: Duration::MAX, acked, lost, packets: 0, limited: 0 }
    }

    pub(crate) fn is_limited(&self) -> bool {
        2 * self.limited > self.packets
    }
}

/// What arrived in each of the latest rounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivered {
    bytes: [f32; ROUNDS],
    next: u8,
}

impl Delivered {
    pub(crate) fn note(&mut self, bytes: f64) {
        self.bytes[usize::from(self.next) % ROUNDS] = bytes as f32;
        self.next = (self.next + 1) % ROUNDS as u8;
    }

    pub(crate) fn most(&self) -> f64 {
        f64::from(self.bytes.iter().copied().fold(0.0, f32::max))
    }
}
