//! Limits how fast one client may publish: messages and bytes per second, each with a token bucket.
//!
//! Nothing is read from a client that is too fast until its debt is paid, so that TCP's or QUIC's flow control slows it
//! down; or it is disconnected with 0x96, if the operator has chosen that.

use super::Connection;
use crate::bucket::Bucket;
use crate::limits::{Limits, RatePolicy};
use crate::shard::Shard;
use fulmar_auth::Timestamp;
use fulmar_mqtt::ReasonCode;

#[derive(Debug)]
pub(super) struct Throttle {
    messages: Option<Bucket>,
    bytes: Option<Bucket>,
    /// Nothing is read before this.
    until: Option<Timestamp>,
}

impl Throttle {
    /// The buckets for these limits; `None` without limits, to save memory.
    pub(super) fn new(limits: &Limits, now: Timestamp) -> Option<Throttle> {
        let messages = Bucket::new(limits.max_publishes_per_s, now);
        let bytes = Bucket::new(limits.max_publish_bytes_per_s, now);
        let limited = messages.is_some() || bytes.is_some();
        limited.then_some(Throttle { messages, bytes, until: None })
    }

    fn charge(&mut self, bytes: usize, now: Timestamp) -> Option<Timestamp> {
        if let Some(bucket) = &mut self.messages {
            bucket.take(1.0, now);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.take(bytes as f64, now);
        }
        let buckets = [&self.messages, &self.bytes].into_iter().flatten();
        buckets.filter_map(|bucket| bucket.free_at(now)).max()
    }
}

impl Connection {
    fn throttle(&mut self) -> Option<&mut Throttle> {
        self.rare.as_mut()?.throttle.as_mut()
    }

    /// Accounts for a PUBLISH of `bytes`. False when the client is disconnected for it.
    pub(super) fn charge_publish(&mut self, shard: &mut Shard, bytes: usize) -> bool {
        let now = shard.now();
        let Some(until) = self.throttle().and_then(|throttle| throttle.charge(bytes, now)) else {
            return true;
        };
        shard.metrics().publishers_throttled.add(1);
        if shard.broker().limits().rate_policy == RatePolicy::Disconnect {
            tracing::info!(peer = %self.peer.address, client = self.client_id(),
                "closed: publishes faster than allowed");
            self.disconnect(shard, ReasonCode::MessageRateTooHigh, "publishes too fast");
            return false;
        }
        tracing::debug!(peer = %self.peer.address, client = self.client_id(),
            "publishes faster than allowed; reading from it is paused");
        if let Some(throttle) = self.throttle() {
            throttle.until = Some(until);
        }
        true
    }

    /// Until when the client is not read from; `None` if it is.
    pub(super) fn throttled_until(&self) -> Option<Timestamp> {
        self.rare.as_ref()?.throttle.as_ref()?.until
    }

    /// Reads from the client again when its debt is paid.
    pub(super) fn end_throttle(&mut self, shard: &mut Shard) {
        if let Some(throttle) = self.throttle() {
            throttle.until = None;
        }
        shard.turn.ready(self.at);
    }
}
