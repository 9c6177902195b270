//! The receiving side of a stream: one stream of one sender, in order.

use std::net::SocketAddr;
use std::time::Duration;

use super::incoming::{Incoming, Piece};
use crate::NodeId;
use crate::quantize;
use crate::receiver::{Meter, backoff};
use crate::sender::DATAGRAM_OVERHEAD_BYTES;
use crate::wire::{
    AckKind, CcFeedback, Command, CommandKind, Feedback, FeedbackKind, Message, ObjectMessage,
    Probe, SenderHead, SymbolId, Writer, cc_flags, flags,
};

/// A sender that is silent for so long is not asked any more, and another may take its place.
const SILENT: Duration = Duration::from_secs(10);
/// A new run of the same sender need not wait so long.
const RESTART: Duration = Duration::from_secs(1);
/// Waits are no shorter, because programs need time too.
const MIN_WAIT: Duration = Duration::from_millis(5);
/// Who is alone asks again after this time at the latest: requests get lost, too.
const MAX_HOLDOFF: Duration = Duration::from_secs(1);

/// A stream receiver's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamReceiverConfig {
    /// Its identity.
    pub node: NodeId,
    /// Seed of its random waits.
    pub seed: u64,
    /// Datagrams come through a [`crate::guard::ReceiverGuard`]; then nothing is given before the sender has named
    /// this receiver, so that a recording is not taken for a stream.
    pub guarded: bool,
    /// Bytes held at most of what cannot be read yet, and as many of parity.
    pub buffer_bytes: usize,
    /// Bytes of a NACK's requests at most.
    pub nack_bytes: usize,
}

impl Default for StreamReceiverConfig {
    /// 32 MiB.
    fn default() -> Self {
        StreamReceiverConfig {
            node: 2,
            seed: 0,
            guarded: false,
            buffer_bytes: 32 << 20,
            nack_bytes: 1300,
        }
    }
}

/// How far a stream's receiver is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Bytes given.
    pub received_bytes: u64,
    /// Times that something was lost for good.
    pub gaps: u64,
    /// Bytes of that, where it is known.
    pub lost_bytes: u64,
    /// Datagrams received.
    pub datagrams: u64,
    /// Symbols made from parity.
    pub recovered: u64,
    /// What share of the sender's messages is missing.
    pub loss: f64,
    /// Datagrams that are no message, contradict what is known, or come from a stranger.
    pub strange: u64,
    /// NACKs sent.
    pub nacks: u64,
    /// It began after the stream's beginning.
    pub late: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Nack {
    Idle,
    Backoff(Duration),
    Holdoff(Duration),
}

/// The sender that is listened to.
struct Source {
    address: SocketAddr,
    head: SenderHead,
    heard: Duration,
    probe: Option<(Duration, Duration, u16)>,
    rtt: Option<u8>,
    meter: Meter,
    incoming: Option<Incoming>,
    nack: Nack,
    /// What to acknowledge, and when.
    acknowledge: Option<(Duration, u16, SymbolId)>,
    report_at: Option<Duration>,
    gone: bool,
}

/// A receiver of one stream.
pub struct StreamReceiver {
    config: StreamReceiverConfig,
    source: Option<Source>,
    random: fastrand::Rng,
    sequence: u16,
    progress: Progress,
    /// The stream broke off; that is to be told.
    broken_off: bool,
    error: Option<String>,
}

impl StreamReceiver {
    /// A receiver that has heard nothing yet.
    #[must_use]
    pub fn new(config: StreamReceiverConfig) -> StreamReceiver {
        let random = fastrand::Rng::with_seed(config.seed);
        let (source, progress) = (None, Progress::default());
        StreamReceiver {
            config,
            source,
            random,
            sequence: 0,
            progress,
            broken_off: false,
            error: None,
        }
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let loss = self.source.as_ref().map_or(0.0, |source| source.meter.loss());
        let incoming = self.source.as_ref().and_then(|source| source.incoming.as_ref());
        let recovered = incoming.map_or(0, |incoming| incoming.recovered);
        let late = incoming.is_some_and(Incoming::is_late);
        Progress { loss, recovered, late, ..self.progress.clone() }
    }

    /// The identity and the address of the sender, once there is one.
    #[must_use]
    pub fn sender(&self) -> Option<(NodeId, SocketAddr)> {
        self.source.as_ref().map(|source| (source.head.source, source.address))
    }

    /// Why a stream that was heard is not taken.
    pub fn take_error(&mut self) -> Option<String> {
        self.error.take()
    }

    /// Whether the sender has said that it ends, or nothing for long.
    #[must_use]
    pub fn is_over(&self, now: Duration) -> bool {
        self.source.as_ref().is_none_or(|source| source.gone || source.is_silent(now, SILENT))
    }

    /// Whether the sender has said that it ends.
    #[must_use]
    pub fn has_gone(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.gone)
    }

    /// The next piece, in order. What is not read is held, within bounds; what is beyond them is lost.
    pub fn read(&mut self) -> Option<Piece> {
        if std::mem::take(&mut self.broken_off) {
            self.progress.gaps += 1;
            return Some(Piece::Lost(None));
        }
        let source = self.source.as_mut()?;
        if self.config.guarded && source.rtt.is_none() {
            return None;
        }
        let piece = source.incoming.as_mut()?.read()?;
        match &piece {
            Piece::Data(bytes) => self.progress.received_bytes += bytes.len() as u64,
            Piece::Lost(bytes) => {
                self.progress.gaps += 1;
                self.progress.lost_bytes += u64::from(bytes.unwrap_or(0));
            }
            Piece::End => {}
        }
        Some(piece)
    }

    /// Takes a datagram.
    pub fn receive(&mut self, now: Duration, from: SocketAddr, datagram: &[u8]) {
        self.progress.datagrams += 1;
        let taken = match Message::decode(datagram) {
            Ok(Message::Object(message)) => self.object(now, from, &message, datagram.len()),
            Ok(Message::Command(command)) => self.command(now, from, &command, datagram.len()),
            // Others' requests are for the sender.
            Ok(Message::Feedback(_)) => true,
            Err(_) => false,
        };
        if !taken {
            self.progress.strange += 1;
        }
    }

    /// Whether a message comes from the sender that is listened to, who may be new.
    fn listen(&mut self, now: Duration, from: SocketAddr, head: &SenderHead, bytes: usize) -> bool {
        if head.source == self.config.node {
            return false;
        }
        let identity = |head: &SenderHead| (head.source, head.instance);
        match &mut self.source {
            Some(source) if identity(&source.head) == identity(head) => {
                let moved = source.address != from && !self.config.guarded;
                if moved && !source.is_silent(now, SILENT) {
                    return false;
                }
                source.address = from;
                source.heard(now, head, bytes);
                return true;
            }
            Some(source) => {
                let same = source.head.source == head.source
                    && (self.config.guarded || source.address.ip() == from.ip());
                let silent = source.is_silent(now, if same { RESTART } else { SILENT });
                // Who has begun nothing, or was a recording, is in nobody's way.
                let idle = self.config.guarded && source.rtt.is_none();
                let done = source.incoming.as_ref().is_some_and(Incoming::has_ended);
                if done || !(silent || idle || source.gone) {
                    return false;
                }
                self.broken_off = source.incoming.is_some();
            }
            None => {}
        }
        let mut source = Source::new(now, from, head);
        source.heard(now, head, bytes);
        self.source = Some(source);
        true
    }

    fn object(
        &mut self,
        now: Duration,
        from: SocketAddr,
        message: &ObjectMessage<'_>,
        bytes: usize,
    ) -> bool {
        let Some(at) = message.symbol else { return true };
        if message.flags & flags::STREAM == 0 || !self.listen(now, from, &message.head, bytes) {
            return false;
        }
        let Some(source) = &mut self.source else { return false };
        if source.incoming.is_none() {
            let Some(fti) = message.fti else { return true };
            let first = (message.object, message.fec, at.block);
            match Incoming::open(first, fti, self.config.buffer_bytes) {
                Ok(incoming) => source.incoming = Some(incoming),
                Err(error) => {
                    self.error = Some(error);
                    return false;
                }
            }
        }
        let Some(incoming) = &mut source.incoming else { return false };
        if (incoming.object, incoming.fec) != (message.object, message.fec) {
            return false;
        }
        let taken = incoming.take(at, message.fti, message.payload);
        source.gone = false;
        source.consider_nack(now, &mut self.random);
        taken
    }

    fn command(
        &mut self,
        now: Duration,
        from: SocketAddr,
        command: &Command<'_>,
        bytes: usize,
    ) -> bool {
        if !self.listen(now, from, &command.head, bytes) {
            return false;
        }
        let Some(source) = &mut self.source else { return false };
        match command.kind {
            CommandKind::Flush { object, at, nodes } => {
                let Some(incoming) = &mut source.incoming else { return true };
                if object != incoming.object || command.fec != incoming.fec {
                    return false;
                }
                let place = incoming.place(at) + 1;
                incoming.sent(place);
                let asked = nodes.iter().any(|node| node == self.config.node);
                if asked && incoming.has_read(place) {
                    let due = source.spread(now, &mut self.random);
                    let due = source.acknowledge.map_or(due, |(due, ..)| due);
                    source.acknowledge = Some((due, object, at));
                }
                source.consider_nack(now, &mut self.random);
            }
            CommandKind::Probe(probe) => {
                source.probe(now, &probe, self.config.node, &mut self.random);
            }
            CommandKind::Squelch { object, at, .. } => {
                let incoming = source.incoming.as_mut().filter(|known| known.object == object);
                if let Some(incoming) = incoming {
                    incoming.squelched(at.block);
                }
            }
            CommandKind::Eot => source.gone = true,
            _ => {}
        }
        true
    }

    /// When [`StreamReceiver::send`] has something to send.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let source = self.source.as_ref()?;
        let nack = match source.nack {
            Nack::Idle => None,
            Nack::Backoff(at) | Nack::Holdoff(at) => Some(at),
        };
        let acknowledge = source.acknowledge.map(|(at, ..)| at);
        [nack, acknowledge, source.report_at].into_iter().flatten().min()
    }

    /// Puts the next datagram into `out` and says where to send it. Call it until it says no.
    pub fn send(&mut self, now: Duration, out: &mut Vec<u8>) -> Option<SocketAddr> {
        out.clear();
        let nack_bytes = self.config.nack_bytes;
        let source = self.source.as_mut()?;
        let address = source.address;
        if let Some((_, object, at)) = source.acknowledge.take_if(|(due, ..)| *due <= now) {
            source.report_at = None;
            let fec = source.incoming.as_ref()?.fec;
            self.put(now, FeedbackKind::Ack(AckKind::Flush { object, at, fec }, 0), out);
            return Some(address);
        }
        match source.nack {
            Nack::Holdoff(until) if until <= now => {
                source.nack = Nack::Idle;
                if !source.is_silent(now, SILENT) {
                    source.consider_nack(now, &mut self.random);
                }
            }
            Nack::Backoff(at) if at <= now => {
                // Requests get lost as easily as what they ask for.
                let single = 0.5 * (1.0 - source.meter.loss());
                let times = if source.head.backoff == 0 { single } else { 0.5 };
                let times = f64::from(source.head.backoff) + times;
                let wait = source.grtt().mul_f64(times).max(2 * MIN_WAIT);
                let longest = if source.head.backoff == 0 { MAX_HOLDOFF } else { Duration::MAX };
                source.nack = Nack::Holdoff(now + wait.min(longest));
                let incoming = source.incoming.as_ref()?;
                let mut writer = Writer::new(nack_bytes, incoming.fec);
                incoming.ask(&mut writer);
                if !writer.requests().is_empty() {
                    source.report_at = None;
                    self.progress.nacks += 1;
                    self.put(now, FeedbackKind::Nack(writer.requests()), out);
                    return Some(address);
                }
            }
            _ => {}
        }
        if source.report_at.take_if(|at| *at <= now).is_some() {
            self.put(now, FeedbackKind::Ack(AckKind::Probe, 0), out);
            return Some(address);
        }
        None
    }

    fn put(&mut self, now: Duration, kind: FeedbackKind<'_>, out: &mut Vec<u8>) {
        let Some(source) = &self.source else { return };
        let echo = source.probe.map(|(came, sent, _)| sent + now.saturating_sub(came));
        let loss = quantize::quantize_loss(source.meter.loss());
        let rtt = if source.rtt.is_some() { cc_flags::RTT } else { 0 };
        let start = if loss == 0 { cc_flags::START } else { 0 };
        let report = Some(CcFeedback {
            sequence: source.probe.map_or(0, |(.., sequence)| sequence),
            flags: rtt | start,
            rtt: source.rtt.unwrap_or(source.head.grtt),
            loss,
            rate: quantize::quantize_rate(source.meter.rate()),
        });
        let (sender, instance) = (source.head.source, source.head.instance);
        let (source, sequence) = (self.config.node, self.sequence);
        Message::Feedback(Feedback { source, sequence, sender, instance, echo, report, kind })
            .encode(out);
        self.sequence = self.sequence.wrapping_add(1);
    }
}

impl Source {
    fn new(now: Duration, address: SocketAddr, head: &SenderHead) -> Source {
        Source {
            address,
            head: *head,
            heard: now,
            probe: None,
            rtt: None,
            meter: Meter::default(),
            incoming: None,
            nack: Nack::Idle,
            acknowledge: None,
            report_at: None,
            gone: false,
        }
    }

    fn heard(&mut self, now: Duration, head: &SenderHead, bytes: usize) {
        (self.heard, self.head) = (now, *head);
        self.meter.arrived(now, head.sequence, bytes + DATAGRAM_OVERHEAD_BYTES);
    }

    fn is_silent(&self, now: Duration, time: Duration) -> bool {
        now.saturating_sub(self.heard) > time
    }

    fn grtt(&self) -> Duration {
        quantize::rtt(self.head.grtt).clamp(MIN_WAIT, Duration::from_secs(15))
    }

    /// A time for an answer that others give too: at once if there are no others.
    fn spread(&self, now: Duration, random: &mut fastrand::Rng) -> Duration {
        match self.head.backoff {
            0 => now,
            _ => now + self.grtt().mul_f64(random.f64()),
        }
    }

    fn probe(
        &mut self,
        now: Duration,
        probe: &Probe<'_>,
        node: NodeId,
        random: &mut fastrand::Rng,
    ) {
        let Some(sent) = probe.sent else { return };
        self.probe = Some((now, sent, probe.sequence));
        self.rtt = probe.rtt_of(node).or(self.rtt);
        if self.report_at.is_none() {
            self.report_at = Some(self.spread(now, random));
        }
    }

    fn consider_nack(&mut self, now: Duration, random: &mut fastrand::Rng) {
        let lacks = self.incoming.as_ref().is_some_and(Incoming::lacks);
        if self.nack != Nack::Idle || !lacks {
            return;
        }
        let wait = match self.head.backoff {
            // A packet or two may still come out of order.
            0 => self.grtt() / 8,
            times => backoff(self.grtt() * times.into(), self.head.group, random),
        };
        self.nack = Nack::Backoff(now + wait);
    }
}
