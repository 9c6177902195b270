//! What senders of objects and of streams have in common: who they are, how fast they send, what they hear of their
//! receivers, and the messages that are about no symbol: probes, flushes, other commands.
//!
//! What is sent, and what a NACK asks for, is theirs.

use std::time::Duration;

use super::adapt::{Adaptive, Report};
use super::config::{BURST, MAX_RTT, MIN_GRTT};
use super::{ConfigError, Peer, Peers, Progress, Recent, SenderConfig};
use crate::NodeId;
use crate::quantize;
use crate::rs::Code;
use crate::wire::{
    Command, CommandKind, Fec, Feedback, Message, NodeList, Probe, SenderHead, SymbolId,
};

/// The clock on the wire begins here, because zero stands for none.
const EPOCH: Duration = Duration::from_secs(1);
/// Nodes named in a flush.
const MAX_FLUSH_NODES: usize = 200;
/// Times the end of transmission is told.
pub(crate) const EOT_TIMES: u32 = 3;
/// How sure parity shall suffice, in standard deviations: while there is other work for the link a
/// round more costs nothing, at the end it costs a round trip.
pub(crate) const MARGIN_BEFORE: f64 = -1.0;
pub(crate) const MARGIN_AT_END: f64 = 2.0;
/// The same for what one of a group asks: others ask too, and a round trip costs less than what is sent in vain.
const MARGIN_OF_GROUP_BEFORE: f64 = -2.0;
const MARGIN_OF_GROUP_AT_END: f64 = -0.5;

pub(crate) struct Base {
    pub(crate) config: SenderConfig,
    pub(crate) code: Code,
    /// The rate, unless it is fixed.
    adaptive: Option<Adaptive>,
    pub(crate) peers: Peers,
    pub(crate) recent: Recent,
    pub(crate) progress: Progress,
    grtt: u8,
    sequence: u16,
    /// When the rate allows the next datagram.
    pub(crate) next_at: Duration,
    pub(crate) probe_at: Duration,
    probe_sequence: u16,
}

/// What feedback says about timing.
pub(crate) struct FeedbackTiming {
    /// The sender's time when the receiver wrote, if it can be believed.
    pub(crate) echo: Option<Duration>,
    rtt: Option<Duration>,
    /// Whether its node is one of those that are remembered.
    pub(crate) is_known: bool,
}

impl Base {
    pub(crate) fn new(config: SenderConfig, now: Duration) -> Result<Base, ConfigError> {
        Ok(Base {
            code: config.check()?,
            adaptive: config.adaptive.then(|| Adaptive::new(config.rate_bytes_per_s)),
            peers: Peers::default(),
            recent: Recent::default(),
            progress: Progress::default(),
            grtt: quantize::quantize_rtt(config.initial_rtt),
            sequence: 0,
            next_at: now,
            probe_at: now,
            probe_sequence: 0,
            config,
        })
    }

    /// Bytes a second, IPv4 and UDP headers included.
    pub(crate) fn rate(&self) -> u64 {
        self.adaptive.as_ref().map_or(self.config.rate_bytes_per_s, Adaptive::rate).max(1)
    }

    pub(crate) fn grtt(&self) -> Duration {
        quantize::rtt(self.grtt)
    }

    /// Whether feedback may come from many at once, so that it has to be spread.
    pub(crate) fn is_group(&self) -> bool {
        self.config.backoff > 0
    }

    /// What was sent until then, who wrote this NACK can have seen.
    pub(crate) fn seen(&self, now: Duration, echo: Option<Duration>) -> Duration {
        // What was sent an eighth of a round trip before may have been overtaken. Who has never heard
        // a probe is taken to be a round trip away.
        let wrote = echo.unwrap_or(now.saturating_sub(self.grtt()));
        wrote.saturating_sub(self.grtt() / 8)
    }

    /// How sure it shall be that what is sent for a NACK suffices.
    pub(crate) fn margin(&self, near_end: bool) -> f64 {
        match (near_end, self.is_group()) {
            (false, false) => MARGIN_BEFORE,
            (true, false) => MARGIN_AT_END,
            (false, true) => MARGIN_OF_GROUP_BEFORE,
            (true, true) => MARGIN_OF_GROUP_AT_END,
        }
    }

    /// Decides which round-trip time the next datagram tells.
    pub(crate) fn measure(&mut self) {
        let rtt = self.peers.rtt().unwrap_or(self.config.initial_rtt);
        self.grtt = quantize::quantize_rtt(rtt.max(MIN_GRTT));
    }

    /// A datagram goes out.
    pub(crate) fn sent(&mut self, now: Duration, message: &[u8]) {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = self.config.datagram_bytes(message);
        self.progress.datagrams += 1;
        self.progress.sent_bytes += bytes;
        let takes = Duration::from_nanos(bytes * 1_000_000_000 / self.rate());
        // What a late caller missed is made up for, within bounds.
        self.next_at = self.next_at.max(now.saturating_sub(BURST)) + takes;
    }

    pub(crate) fn head(&self) -> SenderHead {
        SenderHead {
            source: self.config.node,
            sequence: self.sequence,
            instance: self.config.instance,
            grtt: self.grtt,
            backoff: self.config.backoff,
            group: quantize::quantize_group(self.config.group_size),
        }
    }

    pub(crate) fn put_command(&self, kind: CommandKind<'_>, out: &mut Vec<u8>) {
        let command = Command { head: self.head(), fec: Fec::default(), kind };
        Message::Command(command).encode(out);
    }

    pub(crate) fn put_probe(&mut self, now: Duration, out: &mut Vec<u8>) {
        let mut nodes = Vec::new();
        self.peers.name(&mut nodes);
        let rate = Some(quantize::quantize_rate(self.rate() as f64));
        let probe = Probe::new(self.probe_sequence, EPOCH + now, rate, &nodes);
        self.put_command(CommandKind::Probe(probe), out);
        self.probe_sequence = self.probe_sequence.wrapping_add(1);
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.look_for_silence(now);
        }
        self.probe_at = now + self.config.probe_interval(self.grtt(), self.peers.rtt().is_some());
    }

    /// Asks who lacks something to acknowledge all up to a symbol of an object.
    pub(crate) fn put_flush<'a>(
        &self,
        (object, at): (u16, SymbolId),
        lacking: impl Iterator<Item = &'a Peer>,
        out: &mut Vec<u8>,
    ) {
        let mut nodes = Vec::new();
        lacking.take(MAX_FLUSH_NODES).for_each(|peer| NodeList::push(&mut nodes, peer.node));
        self.put_command(CommandKind::Flush { object, at, nodes: NodeList::of(&nodes) }, out);
    }

    /// A datagram as feedback for this sender.
    pub(crate) fn decode<'a>(&mut self, datagram: &'a [u8]) -> Option<Feedback<'a>> {
        let own: (NodeId, u16) = (self.config.node, self.config.instance);
        match Message::decode(datagram) {
            Ok(Message::Feedback(feedback))
                if (feedback.sender, feedback.instance) == own && feedback.source != own.0 =>
            {
                Some(feedback)
            }
            _ => {
                self.progress.strange += 1;
                None
            }
        }
    }

    /// Updates the peer that sent feedback, and measures the round trip.
    pub(crate) fn receive_feedback(
        &mut self,
        now: Duration,
        feedback: &Feedback<'_>,
    ) -> FeedbackTiming {
        // An echo from the future is none of ours.
        let echo = feedback.echo.and_then(|echo| echo.checked_sub(EPOCH));
        let echo = echo.filter(|&echo| echo <= now);
        let rtt = echo.map(|echo| (now - echo).max(Duration::from_micros(1)));
        let rtt = rtt.filter(|&rtt| rtt < MAX_RTT);
        let peer = self.peers.heard(now, feedback.source, rtt, feedback.report);
        FeedbackTiming { echo, rtt, is_known: peer.is_some() }
    }

    /// Tells the rate's control what feedback reports. `busy` is whether there is more to send.
    pub(crate) fn report(
        &mut self,
        now: Duration,
        heard: &FeedbackTiming,
        feedback: &Feedback<'_>,
        busy: bool,
    ) {
        if let (Some(adaptive), Some(rtt), Some(report)) =
            (&mut self.adaptive, heard.rtt, feedback.report)
        {
            let (loss, rate) = (quantize::loss(report.loss), quantize::rate(report.rate));
            let (receiver, probe) = (feedback.source, report.sequence);
            adaptive.report(now, Report { receiver, rtt, probe, loss, rate, busy });
        }
    }
}
