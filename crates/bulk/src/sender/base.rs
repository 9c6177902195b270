//! What senders of objects and of streams have in common: their identity, rate, receivers, and the messages without
//! symbols: probes, flushes, other commands.
//!
//! Data and the handling of NACKs are in `sender` and `stream::sender`.

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

/// The clock on the wire starts here, because zero means that there is no time.
const EPOCH: Duration = Duration::from_secs(1);
/// Nodes named in a flush.
const MAX_FLUSH_NODES: usize = 200;
/// Number of times the end of transmission is sent.
pub(crate) const EOT_TIMES: u32 = 3;
/// The margin of parity, in standard deviations. While there is other data to send, a further round costs nothing; at
/// the end it costs a round trip.
pub(crate) const MARGIN_BEFORE: f64 = -1.0;
pub(crate) const MARGIN_AT_END: f64 = 2.0;
/// The same for the request of one receiver of a group: others request too, and a round trip costs less than
/// superfluous parity.
const MARGIN_OF_GROUP_BEFORE: f64 = -2.0;
const MARGIN_OF_GROUP_AT_END: f64 = -0.5;

pub(crate) struct Base {
    pub(crate) config: SenderConfig,
    pub(crate) code: Code,
    /// Adapts the rate, unless it is fixed.
    adaptive: Option<Adaptive>,
    pub(crate) peers: Peers,
    pub(crate) recent: Recent,
    pub(crate) progress: Progress,
    grtt: u8,
    sequence: u16,
    /// The earliest time of the next datagram at this rate.
    pub(crate) next_at: Duration,
    pub(crate) probe_at: Duration,
    probe_sequence: u16,
}

pub(crate) struct FeedbackTiming {
    /// The sender's time when the receiver wrote the feedback, if it is plausible.
    pub(crate) echo: Option<Duration>,
    rtt: Option<Duration>,
    /// Whether the receiver is remembered.
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

    /// Bytes per second, IPv4 and UDP headers included.
    pub(crate) fn rate(&self) -> u64 {
        self.adaptive.as_ref().map_or(self.config.rate_bytes_per_s, Adaptive::rate).max(1)
    }

    pub(crate) fn grtt(&self) -> Duration {
        quantize::rtt(self.grtt)
    }

    /// Whether many receivers may send feedback at once, so that they have to spread it.
    pub(crate) fn is_group(&self) -> bool {
        self.config.backoff > 0
    }

    /// The receiver of this NACK can have seen everything sent until then.
    pub(crate) fn seen(&self, now: Duration, echo: Option<Duration>) -> Duration {
        // Packets sent an eighth of a round trip earlier may have been overtaken. A receiver that has not received a
        // probe is assumed to be a round trip away.
        let wrote = echo.unwrap_or(now.saturating_sub(self.grtt()));
        wrote.saturating_sub(self.grtt() / 8)
    }

    /// The margin with which the repair for a NACK is to suffice.
    pub(crate) fn margin(&self, near_end: bool) -> f64 {
        match (near_end, self.is_group()) {
            (false, false) => MARGIN_BEFORE,
            (true, false) => MARGIN_AT_END,
            (false, true) => MARGIN_OF_GROUP_BEFORE,
            (true, true) => MARGIN_OF_GROUP_AT_END,
        }
    }

    /// Chooses the round-trip time that the next datagram announces.
    pub(crate) fn measure(&mut self) {
        let rtt = self.peers.rtt().unwrap_or(self.config.initial_rtt);
        self.grtt = quantize::quantize_rtt(rtt.max(MIN_GRTT));
    }

    /// Counts a sent datagram.
    pub(crate) fn sent(&mut self, now: Duration, message: &[u8]) {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = self.config.datagram_bytes(message);
        self.progress.datagrams += 1;
        self.progress.sent_bytes += bytes;
        let takes = Duration::from_nanos(bytes * 1_000_000_000 / self.rate());
        // A late caller catches up, up to a limit.
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

    /// Requests receivers that lack something to acknowledge everything up to a symbol of an object.
    pub(crate) fn put_flush<'a>(
        &self,
        object: u16,
        at: SymbolId,
        lacking: impl Iterator<Item = &'a Peer>,
        out: &mut Vec<u8>,
    ) {
        let mut nodes = Vec::new();
        lacking.take(MAX_FLUSH_NODES).for_each(|peer| NodeList::push(&mut nodes, peer.node));
        self.put_command(
            CommandKind::Flush { object, at, nodes: NodeList::from_bytes(&nodes) },
            out,
        );
    }

    /// Decodes a datagram as feedback for this sender.
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
        // An echo from the future is not one of this sender's times.
        let echo = feedback.echo.and_then(|echo| echo.checked_sub(EPOCH));
        let echo = echo.filter(|&echo| echo <= now);
        let rtt = echo.map(|echo| (now - echo).max(Duration::from_micros(1)));
        let rtt = rtt.filter(|&rtt| rtt < MAX_RTT);
        let peer = self.peers.heard(now, feedback.source, rtt, feedback.report);
        FeedbackTiming { echo, rtt, is_known: peer.is_some() }
    }

    /// Passes a receiver's report to the rate control. `busy`: there is more to send.
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
