//! The state of a sender that receivers of objects and of streams share: its address, its latest messages, when to
//! answer it, and the feedback that it gets.
//!
//! Which data is missing, and so which is requested, is for the object's or stream's receiver to know.

use std::net::SocketAddr;
use std::time::Duration;

use super::ReceptionStats;
use crate::NodeId;
use crate::quantize;
use crate::sender::DATAGRAM_OVERHEAD_BYTES;
use crate::wire::{
    AckKind, CcFeedback, Fec, Feedback, FeedbackKind, Message, Probe, SenderHead, SymbolId,
    cc_flags,
};

/// A sender that was silent for this long gets no more requests until it sends something.
pub(crate) const SILENT: Duration = Duration::from_secs(10);
/// A sender that was silent for this long may have restarted.
pub(crate) const RESTART: Duration = Duration::from_secs(1);
/// The shortest wait, because programs need time too.
const MIN_WAIT: Duration = Duration::from_millis(5);
/// A single receiver repeats its request after at most this time, because requests get lost, too.
const MAX_HOLDOFF: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Nack {
    Idle,
    /// Sends then, unless other receivers send the same request first.
    Backoff(Duration),
    /// A request was sent; the next one waits until then.
    Holdoff(Duration),
}

struct Acknowledgement {
    at: Duration,
    object: u16,
    symbol: SymbolId,
    fec: Fec,
}

pub(crate) struct Contact {
    pub(crate) address: SocketAddr,
    pub(crate) head: SenderHead,
    heard: Duration,
    /// The last probe: when it was received, the time in it, and its number.
    probe: Option<(Duration, Duration, u16)>,
    rtt: Option<u8>,
    reception: ReceptionStats,
    pub(crate) nack: Nack,
    acknowledgement: Option<Acknowledgement>,
    report_at: Option<Duration>,
}

impl Contact {
    pub(crate) fn new(now: Duration, address: SocketAddr, head: &SenderHead) -> Contact {
        Contact {
            address,
            head: *head,
            heard: now,
            probe: None,
            rtt: None,
            reception: ReceptionStats::default(),
            nack: Nack::Idle,
            acknowledgement: None,
            report_at: None,
        }
    }

    pub(crate) fn identity(&self) -> (NodeId, u16) {
        (self.head.source, self.head.instance)
    }

    pub(crate) fn last_heard(&self) -> Duration {
        self.heard
    }

    pub(crate) fn is_silent(&self, now: Duration, time: Duration) -> bool {
        now.saturating_sub(self.heard) > time
    }

    /// The sender has named this receiver, so its messages are not a recording.
    pub(crate) fn is_present(&self) -> bool {
        self.rtt.is_some()
    }

    pub(crate) fn loss(&self) -> f64 {
        self.reception.loss()
    }

    pub(crate) fn heard(&mut self, now: Duration, head: &SenderHead, bytes: usize) {
        (self.heard, self.head) = (now, *head);
        self.reception.arrived(now, head.sequence, bytes + DATAGRAM_OVERHEAD_BYTES);
    }

    fn grtt(&self) -> Duration {
        quantize::rtt(self.head.grtt).clamp(MIN_WAIT, Duration::from_secs(15))
    }

    /// The time for an answer that other receivers give too: at once if there are none.
    fn spread(&self, now: Duration, random: &mut fastrand::Rng) -> Duration {
        match self.head.backoff {
            0 => now,
            _ => now + self.grtt().mul_f64(random.f64()),
        }
    }

    /// Records a probe. Returns whether it can be answered.
    pub(crate) fn probed(&mut self, now: Duration, probe: &Probe<'_>, node: NodeId) -> bool {
        let Some(sent) = probe.sent else { return false };
        self.probe = Some((now, sent, probe.sequence));
        self.rtt = probe.rtt_of(node).or(self.rtt);
        true
    }

    /// Schedules a report, unless other feedback is sent before.
    pub(crate) fn report_soon(&mut self, now: Duration, random: &mut fastrand::Rng) {
        if self.report_at.is_none() {
            self.report_at = Some(self.spread(now, random));
        }
    }

    /// Schedules an acknowledgement of everything up to a symbol of an object.
    pub(crate) fn acknowledge_soon(
        &mut self,
        now: Duration,
        object: u16,
        symbol: SymbolId,
        fec: Fec,
        random: &mut fastrand::Rng,
    ) {
        let soon = self.spread(now, random);
        let at = self.acknowledgement.as_ref().map_or(soon, |waiting| waiting.at);
        self.acknowledgement = Some(Acknowledgement { at, object, symbol, fec });
    }

    /// Schedules a request for missing data.
    pub(crate) fn ask_soon(&mut self, now: Duration, random: &mut fastrand::Rng) {
        let wait = match self.head.backoff {
            // One or two packets may still arrive out of order.
            0 => self.grtt() / 8,
            times => backoff(self.grtt() * times.into(), self.head.group, random),
        };
        self.nack = Nack::Backoff(now + wait);
    }

    /// A request was sent: waits for its effect, `round_trips` longer than receivers spread their requests.
    pub(crate) fn hold_off(&mut self, now: Duration, round_trips: f64) {
        let times = f64::from(self.head.backoff) + round_trips;
        let wait = self.grtt().mul_f64(times).max(2 * MIN_WAIT);
        let longest = if self.head.backoff == 0 { MAX_HOLDOFF } else { Duration::MAX };
        self.nack = Nack::Holdoff(now + wait.min(longest));
    }

    /// The acknowledgement that is due, which is also a report.
    pub(crate) fn take_acknowledgement(&mut self, now: Duration) -> Option<FeedbackKind<'static>> {
        let waiting = self.acknowledgement.take_if(|waiting| waiting.at <= now)?;
        self.report_at = None;
        let Acknowledgement { object, symbol: at, fec, .. } = waiting;
        Some(FeedbackKind::Ack(AckKind::Flush { object, at, fec }, 0))
    }

    /// The report, if it is due.
    pub(crate) fn take_report(&mut self, now: Duration) -> Option<FeedbackKind<'static>> {
        self.report_at.take_if(|at| *at <= now)?;
        Some(FeedbackKind::Ack(AckKind::Probe, 0))
    }

    /// When the next feedback is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let nack = match self.nack {
            Nack::Idle => None,
            Nack::Backoff(at) | Nack::Holdoff(at) => Some(at),
        };
        let acknowledgement = self.acknowledgement.as_ref().map(|waiting| waiting.at);
        [nack, acknowledgement, self.report_at].into_iter().flatten().min()
    }

    /// Writes a node's feedback with a sequence number. A NACK is also a report.
    pub(crate) fn write_feedback(
        &mut self,
        now: Duration,
        kind: FeedbackKind<'_>,
        source: NodeId,
        sequence: &mut u16,
        out: &mut Vec<u8>,
    ) {
        if matches!(kind, FeedbackKind::Nack(_)) {
            self.report_at = None;
        }
        let echo = self.probe.map(|(came, sent, _)| sent + now.saturating_sub(came));
        let loss = quantize::quantize_loss(self.reception.loss());
        let rtt = if self.rtt.is_some() { cc_flags::RTT } else { 0 };
        let start = if loss == 0 { cc_flags::START } else { 0 };
        let report = Some(CcFeedback {
            sequence: self.probe.map_or(0, |(.., sequence)| sequence),
            flags: rtt | start,
            rtt: self.rtt.unwrap_or(self.head.grtt),
            loss,
            rate: quantize::quantize_rate(self.reception.rate()),
        });
        let (sender, instance) = self.identity();
        let feedback =
            Feedback { source, sequence: *sequence, sender, instance, echo, report, kind };
        Message::Feedback(feedback).encode(out);
        *sequence = sequence.wrapping_add(1);
    }
}

/// A random wait of at most `longest`. Long waits are the most likely, so that few of a large group answer early (RFC
/// 5401 section 5.2: truncated exponential).
fn backoff(longest: Duration, group: u8, random: &mut fastrand::Rng) -> Duration {
    let lambda = f64::from(quantize::group_size(group)).ln() + 1.0;
    let longest = longest.as_secs_f64();
    let scale = lambda.exp() - 1.0;
    let x = random.f64() * lambda / longest + lambda / (longest * scale);
    let wait = longest / lambda * (x * scale * (longest / lambda)).ln();
    Duration::from_secs_f64(wait.clamp(0.0, longest))
}
