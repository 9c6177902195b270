//! What a path loses, seen through the copies that hide it: of a packet with one copy, a loss shows only where both
//! were lost.

use super::MAX_COPIES;

/// Packets that the estimate is an average of, without copies and with them, which hide most losses.
const MEMORY: [f64; 2] = [64.0, 256.0];
/// Packets that are assumed to have arrived before the first.
const DOUBT: f64 = 4.0;
/// Packets' worth of trust in what an earlier connection saw.
const TRUST: f64 = 48.0;
/// The highest share that is assumed.
const MOST: f64 = 0.6;
/// Steps of the search for the share: it is exact to less than a thousandth.
const STEPS: usize = 12;

/// Number of ways to send a datagram: once, and with each number of copies.
const WAYS: usize = MAX_COPIES as usize + 1;

/// Packets sent with each number of copies, and the number lost in all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    sent: [f64; WAYS],
    lost: f64,
    /// Sent with copies since the last news.
    fresh: [u32; WAYS],
    share: f64,
}

impl Loss {
    /// Nothing but this share is known.
    pub(super) fn expecting(share: f64) -> Loss {
        let share = if share.is_finite() { share.clamp(0.0, MOST) } else { 0.0 };
        let known = if share > 0.0 { TRUST } else { DOUBT };
        let mut loss = Loss { sent: [0.0; WAYS], lost: share * known, fresh: [0; WAYS], share };
        loss.sent[0] = known;
        loss
    }

    /// A datagram was sent with this many copies.
    pub(super) fn copied(&mut self, copies: u8) {
        if copies > 0
            && let Some(fresh) = self.fresh.get_mut(usize::from(copies))
        {
            *fresh = fresh.saturating_add(1);
        }
    }

    /// Ignores what was sent lately: it says nothing about the path.
    pub(super) fn skip(&mut self) {
        self.fresh = [0; WAYS];
    }

    /// Learns that of `sent` packets, `lost` were lost together with all their copies, if there were any.
    pub(super) fn learn(&mut self, sent: u64, lost: u64, copies: bool) {
        let total: f64 = self.sent.iter().sum::<f64>() + sent as f64;
        let keep = (MEMORY[usize::from(copies)] / total.max(1.0)).min(1.0);
        let mut left = sent as f64;
        for (all, fresh) in self.sent.iter_mut().zip(&mut self.fresh).skip(1) {
            // What is still in flight counts with the next report.
            let known = f64::from(*fresh).min(left);
            *fresh -= known as u32;
            left -= known;
            *all = (*all + known) * keep;
        }
        self.sent[0] = (self.sent[0] + left) * keep;
        self.lost = ((self.lost + lost as f64) * keep).min(self.sent.iter().sum());
        self.share = self.estimate();
    }

    /// The share of copies that are lost.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// Whether two losses count still: one is no figure yet.
    pub(super) fn has_two(&self) -> bool {
        self.lost > 1.5
    }

    /// The share at which as many would have been lost as were.
    fn estimate(&self) -> f64 {
        if self.lost <= 0.0 {
            return 0.0;
        }
        let (mut low, mut high) = (0.0, MOST);
        for _ in 0..STEPS {
            let middle = (low + high) / 2.0;
            if self.expected(middle) < self.lost { low = middle } else { high = middle }
        }
        (low + high) / 2.0
    }

    fn expected(&self, share: f64) -> f64 {
        self.sent.iter().rev().fold(0.0, |sum, sent| (sum + sent) * share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_do_not_hide_what_a_path_loses() {
        for (share, copies) in [(0.1, 0), (0.1, 1), (0.2, 2), (0.4, 4)] {
            let mut loss = Loss::expecting(0.0);
            let mut owed = 0.0;
            for _ in 0..2000 {
                loss.copied(copies);
                owed += f64::powi(share, i32::from(copies) + 1);
                let lost = f64::floor(owed);
                owed -= lost;
                loss.learn(1, lost as u64, copies > 0);
            }
            assert!((loss.share() - share).abs() < 0.15 * share, "{share}: {}", loss.share());
        }
    }

    /// Waiting for a third would take half of 50 messages.
    #[test]
    fn two_losses_in_30_packets_are_enough_and_one_is_not() {
        let mut loss = Loss::expecting(0.0);
        loss.learn(1, 1, false);
        assert!(!loss.has_two());
        loss.learn(29, 1, false);
        assert!(loss.has_two() && loss.share() > super::super::BEGINS_ABOVE, "{}", loss.share());
    }

    #[test]
    fn a_path_that_loses_nothing_any_more_is_believed_after_a_while() {
        let mut loss = Loss::expecting(0.1);
        let mut packets = 0;
        while loss.share() > 0.02 {
            loss.copied(1);
            loss.learn(1, 0, true);
            packets += 1;
        }
        assert!((200..1500).contains(&packets), "{packets}");
    }

    #[test]
    fn nonsense_stays_within_its_bounds() {
        for share in [f64::NAN, f64::INFINITY, -1.0, 7.0] {
            assert!((0.0..=MOST).contains(&Loss::expecting(share).share()));
        }
        let mut loss = Loss::expecting(0.0);
        loss.learn(0, u64::MAX, false);
        assert!((0.0..=MOST).contains(&loss.share()));
        loss.learn(u64::MAX, 0, true);
        assert!(loss.share() < 0.001);
    }
}
