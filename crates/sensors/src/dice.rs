//! Random numbers that depend on nothing but what they are for: the same question has the same answer in whatever
//! order questions are asked, so that a simulation may begin at any time.

/// A source of such numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(mix(seed ^ 0x6875_6d69_6469_7479))
    }

    /// Another source, for a part of the whole.
    pub(crate) fn derive(self, part: u64) -> Dice {
        Dice(mix(self.0 ^ mix(part.wrapping_add(1))))
    }

    /// 0 to 1, 1 excluded.
    pub(crate) fn share(self, what: u64) -> f64 {
        // 53 bits are what a double holds.
        (mix(self.0 ^ mix(what)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Evenly between two numbers.
    pub(crate) fn between(self, what: u64, low: f64, high: f64) -> f64 {
        low + (high - low) * self.share(what)
    }

    /// About normally distributed, mean 0 and standard deviation 1, never beyond 3.5: the sum of four even numbers.
    pub(crate) fn bell(self, what: u64) -> f64 {
        let parts = self.derive(what);
        let sum: f64 = (0..4).map(|part| parts.share(part)).sum();
        (sum - 2.0) * 3f64.sqrt()
    }

    /// A curve through random points a `period` apart, mean 0 and standard deviation about 1.
    pub(crate) fn curve(self, at: f64, period: f64) -> f64 {
        let position = at / period;
        let (before, share) = (position.floor(), position.fract());
        let (from, to) = (self.bell(before as u64), self.bell(before as u64 + 1));
        // A cosine between the points has no corners.
        let weight = (1.0 - (share * std::f64::consts::PI).cos()) / 2.0;
        from + (to - from) * weight
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_and_depend_on_the_question() {
        let dice = Dice::new(1);
        let count = 20_000u64;
        let mean = (0..count).map(|what| dice.share(what)).sum::<f64>() / count as f64;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        let spread = (0..count).map(|what| dice.bell(what).powi(2)).sum::<f64>() / count as f64;
        assert!((spread - 1.0).abs() < 0.05, "{spread}");
        assert_eq!(dice.share(7).to_bits(), Dice::new(1).share(7).to_bits());
        assert_ne!(dice.share(7).to_bits(), Dice::new(2).share(7).to_bits());
        assert_ne!(dice.derive(1).share(7).to_bits(), dice.derive(2).share(7).to_bits());
    }
}
