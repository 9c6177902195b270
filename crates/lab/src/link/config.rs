//! The configuration of a link: one [`Impairments`] per direction, and settings of the whole link.
//!
//! Only checked configurations ([`LinkConfig::check`]) become a [`Link`](super::Link), so the model needs no checks
//! of its own.

use std::sync::Arc;

use serde::Serialize;

use super::{ConfigError, NatConfig, Outage, Schedule, Trace};
use crate::units::{self, MAX_TIME, Nanos};

/// The smallest MTU that is accepted: IPv4's (RFC 791). IPv6 needs 1280.
const MIN_MTU: u16 = 68;
/// The default queue holds this much time's worth of the rate…
const DEFAULT_QUEUE: Nanos = 200 * units::MILLISECOND;
/// …but at least ten full packets.
const DEFAULT_QUEUE_MIN: u64 = 15_000;

/// The speed of a direction's bottleneck.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rate {
    /// Unlimited: as fast as packets arrive.
    #[default]
    Unlimited,
    /// Bits per second, IP headers included.
    Constant(u64),
    /// A recorded link.
    #[serde(skip)]
    Trace(Arc<Trace>),
}

/// Discipline of the queue before the bottleneck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueKind {
    /// First in, first out; packets that do not fit are dropped.
    #[default]
    DropTail,
    /// CoDel (RFC 8289); does not mark ECN.
    Codel,
    /// FQ-CoDel (RFC 8290): CoDel per flow, served in turn; does not mark ECN.
    FqCodel,
}

/// Capacity of the queue, not counting the packet being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueLimit {
    /// Bytes.
    Bytes(u64),
    /// Number of bytes that the rate (a trace's mean rate) sends in this time, in ns.
    Time(Nanos),
}

/// The distribution of jitter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JitterShape {
    /// Uniform within ± jitter.
    #[default]
    Uniform,
    /// Normal with jitter as its standard deviation, cut off at three of them.
    Normal,
}

/// Loss in bursts: the Gilbert–Elliott model, with one step per packet and a state per flow. A flow begins in the
/// good state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bursts {
    /// Probability per packet of turning bad.
    pub to_bad: f64,
    /// Probability per packet of turning good again; the mean length of a burst is 1/this packets.
    pub to_good: f64,
    /// Loss while good.
    pub loss_good: f64,
    /// Loss while bad.
    pub loss_bad: f64,
}

/// The impairments of one direction. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Impairments {
    /// Time from the end of sending to arrival, in ns.
    pub delay: Nanos,
    /// Spread of the delay around itself, in ns; never makes the delay negative.
    pub jitter: Nanos,
    /// Distribution of the jitter.
    pub jitter_shape: JitterShape,
    /// Whether jitter may let packets overtake each other. If not, a packet waits for the one before it, so the mean
    /// delay is longer than `delay`.
    pub jitter_reorders: bool,
    /// The bottleneck.
    pub rate: Rate,
    /// The bottleneck's queue.
    pub queue: QueueKind,
    /// The queue's limit; `None`: 200 ms of the rate, at least ten full packets.
    pub queue_limit: Option<QueueLimit>,
    /// Probability that a packet is lost, 0 to 1.
    pub loss: f64,
    /// Every nth packet of each flow is lost; 0: none.
    pub drop_every: u64,
    /// Loss in bursts.
    pub bursts: Option<Bursts>,
    /// Probability that one bit of a packet after its IP header is flipped.
    pub corrupt: f64,
    /// Share of these, 0 to 1, of which only payload of TCP or UDP is flipped and the transport's checksum made right
    /// again, as by a network adapter that damages a packet and then computes the checksum: the receiver's system accepts
    /// wrong bytes.
    pub corrupt_valid: f64,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet is held back by `reorder_by`, so that later ones overtake it.
    pub reorder: f64,
    /// Time for which reordered packets are held back, in ns.
    pub reorder_by: Nanos,
    /// The largest IP packet, in bytes.
    pub mtu: Option<u16>,
    /// Whether larger packets are dropped without an ICMP error (a "black hole").
    pub mtu_silent: bool,
    /// When the direction is down.
    pub outage: Outage,
}

/// A whole link. The default is a perfect one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LinkConfig {
    /// From the link's first host (of an access link: from the host).
    pub up: Impairments,
    /// Towards it.
    pub down: Impairments,
    /// A NAT in front of the first host.
    pub nat: Option<NatConfig>,
    /// When the first host's address changes.
    pub address_changes: Schedule,
    /// Whether it is the second host's address that changes.
    pub second_moves: bool,
}

impl LinkConfig {
    /// Checks that the settings are possible.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.up.check()?;
        self.down.check()?;
        self.address_changes.check("address-change-every")?;
        match &self.nat {
            Some(nat) => nat.rebind.check("nat-rebind-every"),
            None => Ok(()),
        }
    }
}

impl Impairments {
    fn check(&self) -> Result<(), ConfigError> {
        let probabilities = [
            ("loss", self.loss),
            ("corrupt", self.corrupt),
            ("corrupt-valid", self.corrupt_valid),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
        ];
        let bursts = self.bursts.map_or([0.0; 4], |bursts| {
            [bursts.to_bad, bursts.to_good, bursts.loss_good, bursts.loss_bad]
        });
        let bursts = bursts.map(|probability| ("bursts", probability));
        for (key, probability) in probabilities.into_iter().chain(bursts) {
            if !(0.0..=1.0).contains(&probability) {
                let problem = format!("{probability} is not a probability between 0 and 1");
                return Err(ConfigError::new(key, problem));
            }
        }
        for (key, time) in
            [("delay", self.delay), ("jitter", self.jitter), ("reorder-by", self.reorder_by)]
        {
            if time > MAX_TIME {
                return Err(ConfigError::new(key, "longer than a day"));
            }
        }
        if self.reorder > 0.0 && self.reorder_by == 0 {
            return Err(ConfigError::new("reorder", "needs `reorder-by`: how long to hold back"));
        }
        if let Rate::Constant(rate) = self.rate
            && !(1..=units::MAX_RATE).contains(&rate)
        {
            return Err(ConfigError::new("rate", "must be 1 bit/s to 100 Gbit/s"));
        }
        if self.rate == Rate::Unlimited && self.queue_limit.is_some() {
            return Err(ConfigError::new(
                "queue-limit",
                "needs `rate` or `trace`: nothing waits without",
            ));
        }
        if self.mtu.is_some_and(|mtu| mtu < MIN_MTU) {
            return Err(ConfigError::new("mtu", format!("must be at least {MIN_MTU}")));
        }
        self.outage.check()
    }

    /// The queue's limit in bytes.
    pub(crate) fn queue_bytes(&self) -> u64 {
        let rate = match &self.rate {
            Rate::Unlimited => return u64::MAX,
            Rate::Constant(rate) => *rate,
            Rate::Trace(trace) => trace.mean_rate(),
        };
        let worth = |time: Nanos| {
            (u128::from(rate) * u128::from(time) / (8 * u128::from(units::SECOND))) as u64
        };
        match self.queue_limit {
            Some(QueueLimit::Bytes(bytes)) => bytes,
            Some(QueueLimit::Time(time)) => worth(time),
            None => worth(DEFAULT_QUEUE).max(DEFAULT_QUEUE_MIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(change: impl FnOnce(&mut Impairments)) -> LinkConfig {
        let mut config = LinkConfig::default();
        change(&mut config.up);
        config
    }

    #[test]
    fn what_cannot_be_is_named() {
        let refused = |config: LinkConfig| config.check().err().map(|error| error.key);
        assert_eq!(refused(LinkConfig::default()), None);
        assert_eq!(refused(up(|up| up.loss = 1.5)).as_deref(), Some("loss"));
        assert_eq!(refused(up(|up| up.loss = f64::NAN)).as_deref(), Some("loss"));
        assert_eq!(refused(up(|up| up.rate = Rate::Constant(0))).as_deref(), Some("rate"));
        assert_eq!(refused(up(|up| up.mtu = Some(20))).as_deref(), Some("mtu"));
        assert_eq!(refused(up(|up| up.reorder = 0.1)).as_deref(), Some("reorder"));
        let queue = up(|up| up.queue_limit = Some(QueueLimit::Bytes(5)));
        assert_eq!(refused(queue).as_deref(), Some("queue-limit"));
    }

    #[test]
    fn the_queue_is_sized_by_the_rate() {
        let slow = up(|up| up.rate = Rate::Constant(64_000));
        assert_eq!(slow.up.queue_bytes(), 15_000);
        let fast = up(|up| up.rate = Rate::Constant(80_000_000));
        assert_eq!(fast.up.queue_bytes(), 2_000_000);
    }
}
