//! The baseline loss rate of a path: the share of packets lost while there is no queue. It is random, and no sign of
//! congestion.

/// The number of packets over which the baseline is averaged.
const MEMORY_PACKETS: f64 = 600.0;
/// Highest share of packets that can be attributed to random loss.
const MAX_SHARE: f64 = 0.6;
/// Differences of at most this many standard deviations are not significant.
const SIGNIFICANT: f64 = 3.0;
/// Packets assumed to have arrived before the first sample.
const ASSUMED_DELIVERED: f64 = 2.0;

/// The baseline loss rate of a path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BaselineLoss {
    packets: f64,
    lost: f64,
}

impl BaselineLoss {
    /// Adds a sample taken while no queue was seen: of `packets` sent, `lost` did not arrive.
    pub(crate) fn update(&mut self, packets: f64, lost: f64) {
        let keep = (MEMORY_PACKETS / (self.packets + packets).max(1.0)).min(1.0);
        self.packets = (self.packets + packets) * keep;
        self.lost = (self.lost + lost) * keep;
    }

    /// Replaces the estimate with the result of a trial.
    pub(crate) fn reset(&mut self, packets: f64, lost: f64) {
        *self = BaselineLoss { packets, lost };
    }

    pub(crate) fn packets(&self) -> f64 {
        self.packets
    }

    /// The share of packets that is lost, 0 to 0.6.
    pub(crate) fn share(&self) -> f64 {
        (self.lost / (self.packets + ASSUMED_DELIVERED)).min(MAX_SHARE)
    }

    /// The share of packets that arrives.
    pub(crate) fn delivered_share(&self) -> f64 {
        1.0 - self.share()
    }

    /// Whether `lost` of `packets` exceeds the baseline by a significant difference and by more than `part`.
    pub(crate) fn is_exceeded(&self, packets: f64, lost: f64, part: f64) -> bool {
        let baseline = self.share();
        // The variance of this sample, and that of the baseline.
        let variance =
            |of: f64| baseline.max(1.0 / (of + ASSUMED_DELIVERED)) * (1.0 - baseline) / of.max(1.0);
        let deviation = (variance(packets) + variance(self.packets)).sqrt();
        lost > packets * (baseline + part + SIGNIFICANT * deviation)
    }
}
