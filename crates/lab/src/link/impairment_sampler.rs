//! Decides what happens to each packet: loss, corruption, duplication, reordering, jitter. The settings are
//! [`Impairments`]; the simplex link applies the [`Decision`] when the packet leaves the bottleneck.
//!
//! Each draw is a hash of (seed, flow, direction, index, purpose), so that neither timing nor other flows nor other
//! impairments change it. Bursts also depend on the flow's earlier packets, and `drop_every` only counts. The mixing function is SplitMix64's finalizer (Steele, Lea, Flood 2014), applied in
//! a chain.

use serde::Serialize;

use super::flow::Flow;
use super::splitmix::mix;
use super::{Direction, DropReason, Impairments, JitterShape};

/// The purpose of a draw. Numbers never change their meaning, so that old seeds keep giving the same draws.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Loss = 1,
    BurstState = 2,
    BurstLoss = 3,
    Corrupt = 4,
    CorruptBit = 5,
    Jitter = 6,
    JitterSecond = 7,
    Reorder = 8,
    Duplicate = 9,
}

/// The random impairments of one packet, whatever the queue does with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// The reason if it is dropped ([`DropReason::Random`], `EveryNth` or `Burst`); `lost` in the log.
    #[serde(rename = "lost")]
    pub drop_reason: Option<DropReason>,
    /// One bit is flipped: this number modulo the number of bits after the IP header.
    pub corrupt: Option<u64>,
    /// It arrives twice.
    pub duplicate: bool,
    /// It is held back, so that later packets overtake it.
    pub reorder: bool,
    /// Nanoseconds added to the delay.
    pub jitter: i64,
}

impl Decision {
    pub(super) fn is_impaired(&self) -> bool {
        self.drop_reason.is_some() || self.corrupt.is_some() || self.duplicate || self.reorder
    }
}

/// Draws the impairments in one direction of one link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImpairmentSampler {
    seed: u64,
}

impl ImpairmentSampler {
    pub(crate) fn new(seed: u64, direction: Direction) -> ImpairmentSampler {
        ImpairmentSampler { seed: mix(mix(seed) ^ direction as u64) }
    }

    fn hash(self, flow: u64, index: u64, purpose: Purpose) -> u64 {
        mix(mix(mix(self.seed ^ flow) ^ index) ^ purpose as u64)
    }

    /// A number in [0, 1) with 53 random bits.
    fn unit(self, flow: u64, index: u64, purpose: Purpose) -> f64 {
        (self.hash(flow, index, purpose) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws the impairments of a flow's packet. The burst model keeps its state in the flow: call this once
    /// per packet of a flow, in order.
    pub(crate) fn draw(
        self,
        flow: &mut Flow,
        direction: Direction,
        index: u64,
        impairments: &Impairments,
    ) -> Decision {
        let key = flow.key.hash();
        let happens = |probability: f64, purpose| {
            probability > 0.0 && self.unit(key, index, purpose) < probability
        };
        let mut drop_reason =
            happens(impairments.loss, Purpose::Loss).then_some(DropReason::Random);
        if impairments.drop_every > 0 && (index + 1).is_multiple_of(impairments.drop_every) {
            drop_reason = drop_reason.or(Some(DropReason::EveryNth));
        }
        if let Some(bursts) = impairments.bursts {
            let in_bad_state = &mut flow.in_bad_state[direction as usize];
            let transition = if *in_bad_state { bursts.to_good } else { bursts.to_bad };
            *in_bad_state ^= happens(transition, Purpose::BurstState);
            let loss = if *in_bad_state { bursts.loss_bad } else { bursts.loss_good };
            if happens(loss, Purpose::BurstLoss) {
                drop_reason = drop_reason.or(Some(DropReason::Burst));
            }
        }
        Decision {
            drop_reason,
            corrupt: happens(impairments.corrupt, Purpose::Corrupt)
                .then(|| self.hash(key, index, Purpose::CorruptBit)),
            duplicate: happens(impairments.duplicate, Purpose::Duplicate),
            reorder: happens(impairments.reorder, Purpose::Reorder),
            jitter: self.jitter(key, index, impairments),
        }
    }

    fn jitter(self, flow: u64, index: u64, impairments: &Impairments) -> i64 {
        if impairments.jitter == 0 {
            return 0;
        }
        let first = self.unit(flow, index, Purpose::Jitter);
        let factor = match impairments.jitter_shape {
            JitterShape::Uniform => 2.0 * first - 1.0,
            JitterShape::Normal => {
                // Box–Muller; 1 − u avoids the logarithm of zero.
                let second = self.unit(flow, index, Purpose::JitterSecond);
                let radius = (-2.0 * (1.0 - first).ln()).sqrt();
                (radius * (std::f64::consts::TAU * second).cos()).clamp(-3.0, 3.0)
            }
        };
        (impairments.jitter as f64 * factor) as i64
    }
}

#[cfg(test)]
#[path = "impairment_sampler_tests.rs"]
mod tests;
