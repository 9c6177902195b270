//! Measures a path from acknowledgements: its base RTT, and the packets of each round trip.

use std::time::{Duration, Instant};

/// The base RTT is kept for one to two times this long; after that, the path may be a longer one.
const BASE_RTT_AGE: Duration = Duration::from_secs(30);
/// A delay above the base RTT counts as a queue from this long on, or from this share of the base RTT: bursts of 10
/// datagrams and delayed acknowledgements cause less.
const MIN_QUEUE: Duration = Duration::from_millis(10);
const QUEUE_SHARE: f64 = 0.15;
/// The target queue, as a time and as a share of the base RTT. It shows what the link carries.
const MIN_TARGET: Duration = Duration::from_millis(4);
const TARGET_SHARE: f64 = 0.1;
/// The largest target queue.
const MAX_TARGET: Duration = Duration::from_millis(60);
/// The longest transmission time of a packet, in seconds.
const MAX_PACKET_S: f64 = 0.2;
/// Rounds whose delivered bytes limit the window.
const ROUNDS: usize = 8;

/// The base RTT: the shortest round trip of the last 30 to 60 s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BaseRtt {
    previous: Duration,
    current: Duration,
    since: Instant,
    /// The transmission time of a packet on the link.
    packet_time: Duration,
    /// When an RTT was last close to the base RTT.
    last_near: Instant,
}

impl BaseRtt {
    pub(crate) fn new(now: Instant) -> BaseRtt {
        BaseRtt {
            previous: Duration::MAX,
            current: Duration::MAX,
            since: now,
            packet_time: Duration::ZERO,
            last_near: now,
        }
    }

    pub(crate) fn sample(&mut self, now: Instant, took: Duration) {
        if now.saturating_duration_since(self.since) > BASE_RTT_AGE {
            (self.previous, self.current, self.since) = (self.current, Duration::MAX, now);
        }
        self.current = self.current.min(took);
        if took <= self.get() + self.target_queue() / 4 {
            self.last_near = now;
        }
    }

    /// Zero before the first acknowledgement.
    pub(crate) fn get(&self) -> Duration {
        match self.previous.min(self.current) {
            Duration::MAX => Duration::ZERO,
            base => base,
        }
    }

    /// Sets the transmission time of a packet.
    pub(crate) fn set_packet_time(&mut self, seconds: f64) {
        self.packet_time = Duration::from_secs_f64(seconds.clamp(0.0, MAX_PACKET_S));
    }

    pub(crate) fn last_near(&self) -> Instant {
        self.last_near
    }

    /// The delay from which on there is a queue.
    pub(crate) fn queue_threshold(&self) -> Duration {
        MIN_QUEUE.max(self.get().mul_f64(QUEUE_SHARE)).max(2 * self.packet_time)
    }

    /// The delay of the target queue.
    pub(crate) fn target_queue(&self) -> Duration {
        MIN_TARGET.max(self.get().mul_f64(TARGET_SHARE)).min(MAX_TARGET).max(self.packet_time)
    }
}

/// A round trip: from a moment until a packet sent after it is acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) began: Instant,
    /// The window when it began.
    pub(crate) window: f64,
    /// The shortest RTT.
    pub(crate) min_rtt: Duration,
    pub(crate) acked: f64,
    pub(crate) lost: f64,
    pub(crate) packets: u32,
    /// Packets acknowledged while there was nothing else to send.
    pub(crate) app_limited: u32,
}

impl Round {
    pub(crate) fn new(began: Instant, window: f64) -> Round {
        let (acked, lost) = (0.0, 0.0);
        Round { began, window, min_rtt: Duration::MAX, acked, lost, packets: 0, app_limited: 0 }
    }

    pub(crate) fn is_app_limited(&self) -> bool {
        2 * self.app_limited > self.packets
    }
}

/// The bytes delivered in each of the latest rounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivered {
    bytes: [f32; ROUNDS],
    next: u8,
}

impl Delivered {
    pub(crate) fn record(&mut self, bytes: f64) {
        self.bytes[usize::from(self.next) % ROUNDS] = bytes as f32;
        self.next = (self.next + 1) % ROUNDS as u8;
    }

    pub(crate) fn max(&self) -> f64 {
        f64::from(self.bytes.iter().copied().fold(0.0, f32::max))
    }
}
