//! Adapts [`DelayBased`] to quinn-proto's `Controller`.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory};

use crate::DelayBased;
use crate::choice::INITIAL_WINDOW_BYTES;

/// Creates a controller per path.
#[derive(Debug)]
pub(crate) struct DelayBasedFactory;

impl ControllerFactory for DelayBasedFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Adapter(DelayBased::new(now, u64::from(current_mtu))))
    }
}

#[derive(Clone, Debug)]
struct Adapter(DelayBased);

impl Controller for Adapter {
    fn on_sent(&mut self, now: Instant, _bytes: u64, _last_packet_number: u64) {
        self.0.on_sent(now);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        _rtt: &RttEstimator,
    ) {
        self.0.on_ack(now, sent, bytes, app_limited);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        if lost_bytes == 0 {
            self.0.on_ecn_mark(now, sent);
        } else {
            self.0.on_loss(now, sent, lost_bytes, is_persistent_congestion);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.0.set_datagram_bytes(u64::from(new_mtu));
    }

    fn window(&self) -> u64 {
        self.0.window()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL_WINDOW_BYTES
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
