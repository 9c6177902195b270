//! A sender's table of its receivers: round-trip times, losses, acknowledgements.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::NodeId;
use crate::quantize;
use crate::wire::{CcFeedback, Probe, cc_flags};

/// Receivers that are tracked; others are served but not waited for.
const MAX_PEERS: usize = 1024;
/// The number of receivers that a probe names.
const NAMED: usize = 40;
/// The factor by which a round-trip time above the latest one decreases. With a slower decrease, a link that stalled
/// for seconds would stay slow for minutes, because with much loss and long assumed round trips there is little
/// feedback.
const RTT_FADES: f64 = 0.75;
/// The highest loss that is accepted from a report, so that no receiver can request unlimited repair.
const MAX_LOSS: f64 = 0.9;

/// A receiver as its sender sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer {
    /// The receiver's identity.
    pub node: NodeId,
    /// Round-trip time; longer ones are remembered for a while.
    pub rtt: Option<Duration>,
    /// The share of messages that it loses, 0 to 1.
    pub loss: f64,
    /// Bytes per second that reach it, headers included.
    pub rate: f64,
    /// It has everything.
    pub confirmed: bool,
    /// When its last feedback was received.
    pub heard: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Peers {
    known: BTreeMap<NodeId, Peer>,
    /// Where the next probe's list begins.
    next_named: NodeId,
}

impl Peers {
    /// Records feedback. `rtt` is the measured round-trip time, if there is one.
    pub(crate) fn heard(
        &mut self,
        now: Duration,
        node: NodeId,
        rtt: Option<Duration>,
        report: Option<CcFeedback>,
    ) -> Option<&mut Peer> {
        if self.known.len() >= MAX_PEERS && !self.known.contains_key(&node) {
            return None;
        }
        let new = Peer { node, rtt: None, loss: 0.0, rate: 0.0, confirmed: false, heard: now };
        let peer = self.known.entry(node).or_insert(new);
        peer.heard = now;
        if let Some(rtt) = rtt {
            let before = peer.rtt.unwrap_or(rtt);
            peer.rtt = Some(rtt.max(before.mul_f64(RTT_FADES)));
        }
        if let Some(report) = report {
            peer.loss = quantize::loss(report.loss).min(MAX_LOSS);
            peer.rate = quantize::rate(report.rate);
        }
        Some(peer)
    }

    pub(crate) fn loss_of(&self, node: NodeId) -> f64 {
        self.known.get(&node).map_or_else(|| self.loss(), |peer| peer.loss)
    }

    /// The greatest loss of any receiver.
    pub(crate) fn loss(&self) -> f64 {
        self.known.values().map(|peer| peer.loss).fold(0.0, f64::max)
    }

    /// The longest round-trip time of any receiver.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        self.known.values().filter_map(|peer| peer.rtt).max()
    }

    pub(crate) fn get_mut(&mut self, node: NodeId) -> Option<&mut Peer> {
        self.known.get_mut(&node)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.known.values()
    }

    /// There is new data to confirm.
    pub(crate) fn unconfirm(&mut self) {
        self.known.values_mut().for_each(|peer| peer.confirmed = false);
    }

    /// Lists some of them for a probe, others each time.
    pub(crate) fn name(&mut self, out: &mut Vec<u8>) {
        let from = self.next_named;
        let named = self.known.range(from..).chain(self.known.range(..from)).take(NAMED);
        let mut last = 0;
        for (&node, peer) in named {
            let flags = if peer.rtt.is_some() { cc_flags::RTT } else { 0 };
            let rtt = quantize::quantize_rtt(peer.rtt.unwrap_or_default());
            Probe::push(out, node, flags, rtt, quantize::quantize_rate(peer.rate));
            last = node;
        }
        self.next_named = last.wrapping_add(1);
    }
}

/// The number of symbols to send so that `needed` arrive at a given loss rate: the mean and `z` standard deviations.
pub(crate) fn symbols_for(needed: u16, loss: f64, z: f64) -> u16 {
    let (p, q) = (loss, 1.0 - loss);
    let root =
        (z * (p * q).sqrt() + (z * z * p * q + 4.0 * q * f64::from(needed)).sqrt()) / (2.0 * q);
    // Subtracts a thousandth so that rounding errors do not raise a whole number.
    (root * root - 0.001).ceil().clamp(0.0, 4096.0) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_sent_the_more_is_lost_and_the_surer_it_shall_be() {
        assert_eq!(symbols_for(64, 0.0, 2.0), 64);
        assert_eq!(symbols_for(64, 0.5, 0.0), 128);
        assert!((145..=155).contains(&symbols_for(64, 0.5, 2.0)));
        assert!((112..=122).contains(&symbols_for(64, 0.5, -1.0)));
        assert_eq!(symbols_for(0, 0.5, -1.0), symbols_for(0, 0.5, 0.0));
    }

    #[test]
    fn a_link_that_was_stuck_is_not_slow_for_long() {
        let mut peers = Peers::default();
        let (stuck, usual) = (Duration::from_secs(8), Duration::from_millis(50));
        peers.heard(Duration::ZERO, 7, Some(stuck), None);
        for _ in 0..18 {
            peers.heard(Duration::ZERO, 7, Some(usual), None);
        }
        assert_eq!(peers.rtt(), Some(usual));
    }

    #[test]
    fn peers_are_bounded_and_probes_name_them_in_turn() {
        let mut peers = Peers::default();
        for node in 1..=MAX_PEERS as u32 + 5 {
            peers.heard(Duration::ZERO, node, None, None);
        }
        assert_eq!(peers.iter().count(), MAX_PEERS);
        let mut names = |node| {
            let mut out = Vec::new();
            peers.name(&mut out);
            Probe::new(0, Duration::ZERO, None, &out).rtt_of(node).is_some()
        };
        assert!(names(1));
        assert!(names(NAMED as u32 + 1));
        assert!(!names(1));
    }
}
