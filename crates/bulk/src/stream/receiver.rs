//! The receiving side of a stream: one stream of one sender, in order.

use std::net::SocketAddr;
use std::time::Duration;

use super::incoming::{Incoming, Piece};
use crate::NodeId;
use crate::receiver::{Contact, Nack, RESTART, SILENT};
use crate::wire::{
    Command, CommandKind, FeedbackKind, Message, ObjectMessage, SenderHead, Writer, flags,
};

fulmar_text::with_defaults! {
    /// A stream receiver's settings. By default, it holds 32 MiB.
    #[derive(Clone, Debug, PartialEq)]
    pub struct StreamReceiverConfig {
        /// The receiver's identity.
        pub node: NodeId = 2,
        /// Seed of its random waits.
        pub seed: u64 = 0,
        /// Whether datagrams are decrypted by a [`crate::encryption::ReceiverEncryption`]; then no data is returned
        /// before the sender has named this receiver, so that a recording is not taken for a stream.
        pub encrypted: bool = false,
        /// The most bytes held that cannot be read yet, and the most bytes of parity.
        pub buffer_bytes: usize = 32 << 20,
        /// The most bytes of requests in a NACK.
        pub nack_bytes: usize = 1300,
    }
}

/// Progress of a stream's receiver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Bytes returned to the reader.
    pub received_bytes: u64,
    /// Number of gaps.
    pub gaps: u64,
    /// Bytes lost in gaps, where the number is known.
    pub lost_bytes: u64,
    /// Datagrams received.
    pub datagrams: u64,
    /// Symbols recovered by parity.
    pub recovered: u64,
    /// The share of the sender's messages that is lost.
    pub loss: f64,
    /// Datagrams that are not valid messages, contradict earlier ones, or come from an unknown sender.
    pub strange: u64,
    /// NACKs sent.
    pub nacks: u64,
    /// It was joined after the stream's beginning.
    pub late: bool,
}

/// The sender whose stream is received.
struct Source {
    contact: Contact,
    incoming: Option<Incoming>,
    gone: bool,
}

/// A receiver of one stream.
pub struct StreamReceiver {
    config: StreamReceiverConfig,
    source: Option<Source>,
    random: fastrand::Rng,
    sequence: u16,
    progress: Progress,
    /// The stream broke off, which the reader has not been informed of yet.
    broken_off: bool,
    error: Option<String>,
}

impl StreamReceiver {
    /// A receiver that has received nothing yet.
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

    /// Progress of the transfer.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let loss = self.source.as_ref().map_or(0.0, |source| source.contact.loss());
        let incoming = self.source.as_ref().and_then(|source| source.incoming.as_ref());
        let recovered = incoming.map_or(0, |incoming| incoming.recovered);
        let late = incoming.is_some_and(Incoming::is_late);
        Progress { loss, recovered, late, ..self.progress.clone() }
    }

    /// The identity and the address of the sender, once there is one.
    #[must_use]
    pub fn sender(&self) -> Option<(NodeId, SocketAddr)> {
        self.source.as_ref().map(|source| (source.contact.head.source, source.contact.address))
    }

    /// Why a stream cannot be received.
    pub fn take_error(&mut self) -> Option<String> {
        self.error.take()
    }

    /// Whether the sender has announced the end, or was silent for too long.
    #[must_use]
    pub fn is_over(&self, now: Duration) -> bool {
        self.source
            .as_ref()
            .is_none_or(|source| source.gone || source.contact.is_silent(now, SILENT))
    }

    /// Whether the sender has announced the end.
    #[must_use]
    pub fn has_gone(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.gone)
    }

    /// The next piece, in order. Data that is not read is held up to a limit, beyond which it is lost.
    pub fn read(&mut self) -> Option<Piece> {
        if std::mem::take(&mut self.broken_off) {
            self.progress.gaps += 1;
            return Some(Piece::Lost(None));
        }
        let source = self.source.as_mut()?;
        if self.config.encrypted && !source.contact.is_present() {
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

    /// Receives a datagram.
    pub fn receive(&mut self, now: Duration, from: SocketAddr, datagram: &[u8]) {
        self.progress.datagrams += 1;
        let taken = match Message::decode(datagram) {
            Ok(Message::Object(message)) => self.object(now, from, &message, datagram.len()),
            Ok(Message::Command(command)) => self.command(now, from, &command, datagram.len()),
            // Requests of other receivers are for the sender.
            Ok(Message::Feedback(_)) => true,
            Err(_) => false,
        };
        if !taken {
            self.progress.strange += 1;
        }
    }

    /// Whether a message is from the current sender, or from a new one that becomes the current sender.
    fn listen(&mut self, now: Duration, from: SocketAddr, head: &SenderHead, bytes: usize) -> bool {
        if head.source == self.config.node {
            return false;
        }
        match &mut self.source {
            Some(Source { contact, .. }) if contact.identity() == (head.source, head.instance) => {
                let moved = contact.address != from && !self.config.encrypted;
                if moved && !contact.is_silent(now, SILENT) {
                    return false;
                }
                contact.address = from;
                contact.heard(now, head, bytes);
                return true;
            }
            Some(source) => {
                let contact = &source.contact;
                let same = contact.head.source == head.source
                    && (self.config.encrypted || contact.address.ip() == from.ip());
                let silent = contact.is_silent(now, if same { RESTART } else { SILENT });
                // A sender that has begun nothing, or whose messages are a recording, can be replaced.
                let idle = self.config.encrypted && !contact.is_present();
                let done = source.incoming.as_ref().is_some_and(Incoming::has_ended);
                if done || !(silent || idle || source.gone) {
                    return false;
                }
                self.broken_off = source.incoming.is_some();
            }
            None => {}
        }
        let mut contact = Contact::new(now, from, head);
        contact.heard(now, head, bytes);
        self.source = Some(Source { contact, incoming: None, gone: false });
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
            let (object, bytes) = (message.object, self.config.buffer_bytes);
            match Incoming::open(object, message.fec, at.block, fti, bytes) {
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
        let taken = incoming.receive(at, message.fti, message.payload);
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
                    let (fec, random) = (incoming.fec, &mut self.random);
                    source.contact.acknowledge_soon(now, object, at, fec, random);
                }
                source.consider_nack(now, &mut self.random);
            }
            CommandKind::Probe(probe) => {
                let can_be_answered = source.contact.probed(now, &probe, self.config.node);
                if can_be_answered {
                    source.contact.report_soon(now, &mut self.random);
                }
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

    /// When [`StreamReceiver::poll_transmit`] next has a datagram.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.source.as_ref()?.contact.deadline()
    }

    /// Puts the next datagram into `out` and returns its destination; call this until it returns `None`.
    pub fn poll_transmit(&mut self, now: Duration, out: &mut Vec<u8>) -> Option<SocketAddr> {
        out.clear();
        let source = self.source.as_mut()?;
        let address = source.contact.address;
        let (node, sequence) = (self.config.node, &mut self.sequence);
        if let Some(acknowledgement) = source.contact.take_acknowledgement(now) {
            source.contact.write_feedback(now, acknowledgement, node, sequence, out);
            return Some(address);
        }
        match source.contact.nack {
            Nack::Holdoff(until) if until <= now => {
                source.contact.nack = Nack::Idle;
                if !source.contact.is_silent(now, SILENT) {
                    source.consider_nack(now, &mut self.random);
                }
            }
            Nack::Backoff(at) if at <= now => {
                // Requests get lost as easily as data.
                let alone = source.contact.head.backoff == 0;
                let share = if alone { 1.0 - source.contact.loss() } else { 1.0 };
                source.contact.hold_off(now, 0.5 * share);
                let incoming = source.incoming.as_ref()?;
                let mut writer = Writer::new(self.config.nack_bytes, incoming.fec);
                incoming.write_requests(&mut writer);
                if !writer.requests().is_empty() {
                    self.progress.nacks += 1;
                    let nack = FeedbackKind::Nack(writer.requests());
                    source.contact.write_feedback(now, nack, node, sequence, out);
                    return Some(address);
                }
            }
            _ => {}
        }
        let report = source.contact.take_report(now)?;
        source.contact.write_feedback(now, report, node, sequence, out);
        Some(address)
    }
}

impl Source {
    fn consider_nack(&mut self, now: Duration, random: &mut fastrand::Rng) {
        let lacks = self.incoming.as_ref().is_some_and(Incoming::lacks);
        if self.contact.nack == Nack::Idle && lacks {
            self.contact.ask_soon(now, random);
        }
    }
}
