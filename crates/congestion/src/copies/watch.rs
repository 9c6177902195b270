//! A congestion controller that also reports the outcome of packets: quinn reports it nowhere else in time, and its
//! statistics are behind a lock that is held while it sends.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

use super::{Acknowledged, Copies};

/// Copies of one connection, shared by its socket and its controller.
pub type SharedCopies = Arc<Mutex<Copies>>;

/// The connection's [`Copies`]. Nobody panics while holding them.
pub fn share(copies: &SharedCopies) -> MutexGuard<'_, Copies> {
    copies.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports to `copies` what controllers of `inner` learn. For the factory of a single connection.
pub fn watched(
    inner: Arc<dyn ControllerFactory + Send + Sync>,
    copies: SharedCopies,
) -> Arc<dyn ControllerFactory + Send + Sync> {
    Arc::new(Watch { inner, copies })
}

struct Watch {
    inner: Arc<dyn ControllerFactory + Send + Sync>,
    copies: SharedCopies,
}

impl ControllerFactory for Watch {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = Arc::clone(&self.inner).build(now, current_mtu);
        let copies = Arc::clone(&self.copies);
        Box::new(Watched { inner, copies, packet_bytes: 0.0, is_measured: false })
    }
}

struct Watched {
    inner: Box<dyn Controller>,
    copies: SharedCopies,
    /// Average size of the packets that were acknowledged lately, by which lost bytes become packets.
    packet_bytes: f64,
    /// Whether a round trip was measured; before that, quinn has the configured initial value.
    is_measured: bool,
}

/// Packets that the average is of.
const AVERAGED: f64 = 16.0;
/// Packets lost at a time, at most: one that was larger than most is not as many of those.
const MOST_AT_ONCE: f64 = 4.0;

impl Controller for Watched {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        let newest = bytes as f64;
        self.packet_bytes +=
            if self.packet_bytes > 0.0 { (newest - self.packet_bytes) / AVERAGED } else { newest };
        let mut copies = share(&self.copies);
        copies.acknowledged();
        let newest = copies.news.map_or(sent, |news| news.sent.max(sent));
        copies.news = Some(Acknowledged { sent: newest, is_all: false });
        if self.is_measured {
            copies.observe(now, rtt.get(), 1, 0);
        } else {
            copies.learn(now, 1, 0);
        }
        drop(copies);
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.is_measured = true;
        if let Some(news) = &mut share(&self.copies).news {
            news.is_all = in_flight == 0;
        }
        self.inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        // Without bytes it is a mark (ECN), which says that there is a queue.
        if lost_bytes > 0 {
            let packets = (lost_bytes as f64 / self.packet_bytes.max(1.0)).clamp(1.0, MOST_AT_ONCE);
            let packets = packets.round() as u64;
            share(&self.copies).lose(now, packets);
        }
        self.inner.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Watched {
            inner: self.inner.clone_box(),
            copies: Arc::clone(&self.copies),
            packet_bytes: self.packet_bytes,
            is_measured: self.is_measured,
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
