//! What a path loses when nothing waits: that is chance, and no reason to send less.

/// Packets that the usual loss is an average of.
const MEMORY: f64 = 600.0;
/// Highest share of packets that can be attributed to random loss.
const MOST: f64 = 0.6;
/// Differences of at most this many standard deviations are not significant.
const CHANCE: f64 = 3.0;
/// Packets that are assumed to have arrived before there is any figure.
const DOUBT: f64 = 2.0;

/// The usual loss of a path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usual {
    packets: f64,
    lost: f64,
}

impl Usual {
    /// Adds a sample taken while no queue was seen: of `packets` sent, `lost` did not arrive.
    pub(crate) fn learn(&mut self, packets: f64, lost: f64) {
        let keep = (MEMORY / (self.packets + packets).max(1.0)).min(1.0);
        self.packets = (self.packets + packets) * keep;
        self.lost = (self.lost + lost) * keep;
    }

    /// Replaces the estimate with the result of a trial.
    pub(crate) fn relearn(&mut self, packets: f64, lost: f64) {
        *self = Usual { packets, lost };
    }

    pub(crate) fn packets(&self) -> f64 {
        self.packets
    }

    /// Usual share of packets that are lost, 0 to 0.6.
    pub(crate) fn share(&self) -> f64 {
        (self.lost / (self.packets + DOUBT)).min(MOST)
    }

    /// Usual share of packets that arrive.
    pub(crate) fn arrives(&self) -> f64 {
        1.0 - self.share()
    }

    /// Whether `lost` of `packets` exceeds the usual share by a significant difference and by more than `part`.
    pub(crate) fn is_exceeded(&self, packets: f64, lost: f64, part: f64) -> bool {
        let usual = self.share();
        // Of the packets here, and of those from which the usual loss is known.
        let sure = |of: f64| usual.max(1.0 / (of + DOUBT)) * (1.0 - usual) / of.max(1.0);
        let deviation = (sure(packets) + sure(self.packets)).sqrt();
        lost > packets * (usual + part + CHANCE * deviation)
    }
}
