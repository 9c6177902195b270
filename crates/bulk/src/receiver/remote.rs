//! A sender as a receiver sees it: its objects, where it is, and when to answer it.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use super::incoming::Incoming;
use super::meter::Meter;
use super::{Event, ObjectKey, Shared, Storage, requests};
use crate::NodeId;
use crate::quantize;
use crate::sender::DATAGRAM_OVERHEAD_BYTES;
use crate::wire::{
    AckKind, CcFeedback, Command, CommandKind, Fec, Feedback, FeedbackKind, Form, Message,
    ObjectMessage, Probe, Requests, SenderHead, SymbolId, cc_flags,
};

/// Objects from the first incomplete one on that are looked after; later ones are not heard.
const WINDOW: usize = 1024;
/// A sender that says nothing for so long is not asked any more until it speaks.
pub(super) const SILENT: Duration = Duration::from_secs(10);
/// Blocks remembered that others asked for.
const MAX_OVERHEARD: usize = 1 << 14;
/// Waits are no shorter, because programs need time too.
const MIN_WAIT: Duration = Duration::from_millis(5);
/// Who is alone asks again after this time at the latest: requests get lost, too.
const MAX_HOLDOFF: Duration = Duration::from_secs(1);

enum Slot {
    Unknown,
    Open(Box<Incoming>),
    Closed { complete: bool },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Nack {
    Idle,
    /// To be sent then, unless others do.
    Backoff(Duration),
    /// Sent; its effect is waited for until then.
    Holdoff(Duration),
}

struct Acknowledgement {
    at: Duration,
    object: u16,
    symbol: SymbolId,
    fec: Fec,
}

pub(super) struct Remote {
    node: NodeId,
    address: SocketAddr,
    head: SenderHead,
    heard: Duration,
    /// When the last probe came, what it said, and its number.
    probe: Option<(Duration, Duration, u16)>,
    rtt: Option<u8>,
    meter: Meter,
    /// The number of the first object in `slots`; none before anything of an object came.
    first: Option<u16>,
    slots: VecDeque<Slot>,
    /// What the sender has passed: slots, counted from object 0 of `first`'s count, and blocks.
    frontier: (usize, u32),
    nack: Nack,
    overheard: HashMap<(u16, u32), u16>,
    acknowledgement: Option<Acknowledgement>,
    report_at: Option<Duration>,
    /// Probes until an answer that was not asked for, and how many the next time.
    quiet: u32,
    next_quiet: u32,
    ended: bool,
}

impl Remote {
    pub(super) fn new(now: Duration, address: SocketAddr, head: &SenderHead) -> Remote {
        Remote {
            node: head.source,
            address,
            head: *head,
            heard: now,
            probe: None,
            rtt: None,
            meter: Meter::default(),
            first: None,
            slots: VecDeque::new(),
            frontier: (0, 0),
            nack: Nack::Idle,
            overheard: HashMap::new(),
            acknowledgement: None,
            report_at: None,
            quiet: 0,
            next_quiet: 1,
            ended: false,
        }
    }

    pub(super) fn identity(&self) -> (NodeId, u16) {
        (self.node, self.head.instance)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn moved(&mut self, address: SocketAddr) {
        self.address = address;
    }

    pub(super) fn is_silent(&self, now: Duration, time: Duration) -> bool {
        now.saturating_sub(self.heard) > time
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// It has heard us, so it is no recording.
    pub(super) fn is_present(&self) -> bool {
        self.rtt.is_some()
    }

    pub(super) fn loss(&self) -> f64 {
        self.meter.loss()
    }

    pub(super) fn heard(&mut self, now: Duration, head: &SenderHead, bytes: usize) {
        self.heard = now;
        self.head = *head;
        self.meter.arrived(now, head.sequence, bytes + DATAGRAM_OVERHEAD_BYTES);
    }

    fn grtt(&self) -> Duration {
        quantize::rtt(self.head.grtt).clamp(MIN_WAIT, Duration::from_secs(15))
    }

    fn key(&self, object: u16) -> ObjectKey {
        ObjectKey { sender: self.node, instance: self.head.instance, object }
    }

    /// Everything is given up.
    pub(super) fn abandon<S: Storage>(self, shared: &mut Shared<S>) {
        for slot in self.slots {
            if let Slot::Open(incoming) = slot {
                incoming.abandon(shared);
            }
        }
    }

    /// The place of an object; none if it is done with or too far ahead.
    fn slot<S>(&mut self, object: u16, shared: &Shared<S>) -> Option<usize> {
        let first = *self.first.get_or_insert(object - object.min(shared.config.history));
        let index = usize::from(object.wrapping_sub(first));
        if index >= WINDOW {
            return None;
        }
        while self.slots.len() <= index {
            self.slots.push_back(Slot::Unknown);
        }
        Some(index)
    }

    /// Takes a piece of an object. Tells whether it makes sense.
    pub(super) fn object<S: Storage>(
        &mut self,
        now: Duration,
        message: &ObjectMessage<'_>,
        shared: &mut Shared<S>,
    ) -> bool {
        self.ended = false;
        let Some(index) = self.slot(message.object, shared) else { return true };
        let block = message.symbol.map_or(0, |symbol| symbol.block);
        if matches!(self.slots[index], Slot::Unknown) {
            self.open(index, message, shared);
        }
        let taken = match &mut self.slots[index] {
            Slot::Open(incoming) => incoming.take(message, shared),
            _ => return true,
        };
        match taken {
            Err(error) => self.fail(index, error, shared),
            Ok(false) => return false,
            Ok(true) => {
                self.frontier = self.frontier.max((index, block));
                self.finish(index, shared);
            }
        }
        self.advance();
        self.consider_nack(now, shared);
        true
    }

    fn open<S: Storage>(
        &mut self,
        index: usize,
        message: &ObjectMessage<'_>,
        shared: &mut Shared<S>,
    ) {
        let Some(fti) = message.fti else { return };
        let open = self.slots.iter().filter(|slot| matches!(slot, Slot::Open(_))).count();
        if open >= shared.config.max_open_objects {
            return;
        }
        let key = self.key(message.object);
        match Incoming::open(key, message, fti, shared) {
            Ok(incoming) => {
                shared.events.push_back(Event::Begun(key, fti.object_bytes));
                self.slots[index] = Slot::Open(Box::new(incoming));
            }
            Err(error) => {
                shared.events.push_back(Event::Failed(key, error));
                self.slots[index] = Slot::Closed { complete: false };
            }
        }
    }

    /// The number of the object in a slot.
    fn number(&self, index: usize) -> u16 {
        self.first.unwrap_or(0).wrapping_add(index as u16)
    }

    fn fail<S: Storage>(&mut self, index: usize, error: String, shared: &mut Shared<S>) {
        let slot = Slot::Closed { complete: false };
        if let Slot::Open(incoming) = std::mem::replace(&mut self.slots[index], slot) {
            incoming.abandon(shared);
            shared.events.push_back(Event::Failed(self.key(self.number(index)), error));
        }
    }

    /// Hands the object over if it is complete.
    fn finish<S: Storage>(&mut self, index: usize, shared: &mut Shared<S>) {
        let key = self.key(self.number(index));
        let Slot::Open(incoming) = &self.slots[index] else { return };
        if !incoming.is_complete() || shared.config.guarded && !self.is_present() {
            return;
        }
        match shared.storage.finish(key, incoming.info()) {
            Ok(()) => {
                shared.events.push_back(Event::Complete(key, incoming.partition.bytes()));
                self.slots[index] = Slot::Closed { complete: true };
            }
            Err(error) => self.fail(index, error.to_string(), shared),
        }
    }

    /// Forgets what is done with at the front, but for the last, to which a flush may refer.
    fn advance(&mut self) {
        while self.slots.len() > 1 && matches!(self.slots[0], Slot::Closed { complete: true }) {
            self.forget_first();
        }
        // Failed ones stay in the window as long as there is room, lest they be acknowledged.
        while self.slots.len() > WINDOW / 2 && matches!(self.slots[0], Slot::Closed { .. }) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        self.slots.pop_front();
        self.first = self.first.map(|first| first.wrapping_add(1));
        let (index, block) = self.frontier;
        self.frontier = index.checked_sub(1).map_or((0, 0), |index| (index, block));
    }

    pub(super) fn command<S: Storage>(
        &mut self,
        now: Duration,
        command: &Command<'_>,
        shared: &mut Shared<S>,
    ) {
        match command.kind {
            CommandKind::Flush { object, at, nodes } => {
                let Some(index) = self.slot(object, shared) else { return };
                self.ended = false;
                self.frontier = self.frontier.max((index, at.block + 1));
                let asked = nodes.iter().any(|node| node == shared.config.node);
                if asked && self.has_all(index, at) {
                    let at_time = self.spread(now, shared);
                    let (symbol, fec) = (at, command.fec);
                    let waiting = self.acknowledgement.as_ref().map(|waiting| waiting.at);
                    let at = waiting.unwrap_or(at_time);
                    self.acknowledgement = Some(Acknowledgement { at, object, symbol, fec });
                }
                self.consider_nack(now, shared);
            }
            CommandKind::Probe(probe) => self.probe(now, &probe, shared),
            CommandKind::RepairAdv { requests, .. } => self.overhear(requests),
            CommandKind::Squelch { object, invalid, .. } => {
                self.squelch(object, &invalid.iter().collect::<Vec<_>>(), shared);
            }
            CommandKind::Eot => {
                if !std::mem::replace(&mut self.ended, true) {
                    shared.events.push_back(Event::Ended(self.node));
                }
            }
            CommandKind::AckRequest { .. } | CommandKind::Application(_) => {}
        }
    }

    /// Whether everything up to a symbol is here.
    fn has_all(&self, index: usize, at: SymbolId) -> bool {
        let before = self.slots.iter().take(index);
        let here = match &self.slots[index] {
            Slot::Unknown => false,
            Slot::Closed { complete } => *complete,
            Slot::Open(incoming) => {
                incoming.prefix > at.block && at.block + 1 < incoming.partition.blocks()
            }
        };
        here && before.into_iter().all(|slot| matches!(slot, Slot::Closed { complete: true }))
    }

    /// A time for an answer that others give too: at once if there are no others.
    fn spread<S>(&self, now: Duration, shared: &mut Shared<S>) -> Duration {
        if self.head.backoff == 0 {
            return now;
        }
        now + self.grtt().mul_f64(shared.random.f64())
    }

    fn probe<S: Storage>(&mut self, now: Duration, probe: &Probe<'_>, shared: &mut Shared<S>) {
        let Some(sent) = probe.sent else { return };
        self.probe = Some((now, sent, probe.sequence));
        let known = probe.rtt_of(shared.config.node);
        let first = known.is_some() && !self.is_present();
        self.rtt = known.or(self.rtt);
        if first && shared.config.guarded {
            (0..self.slots.len()).for_each(|index| self.finish(index, shared));
            self.advance();
        }
        // Who is not named speaks too, so that the sender gets to know it; in a large group ever more
        // rarely.
        if known.is_none() {
            self.quiet += 1;
            if self.quiet < self.next_quiet {
                return;
            }
            let most = if quantize::group_size(self.head.group) <= 50 { 1 } else { 64 };
            (self.quiet, self.next_quiet) = (0, (self.next_quiet * 2).min(most));
        }
        if self.report_at.is_none() {
            self.report_at = Some(self.spread(now, shared));
        }
    }

    /// What cannot be had any more.
    fn squelch<S: Storage>(&mut self, object: u16, invalid: &[u16], shared: &mut Shared<S>) {
        let Some(first) = self.first else { return };
        for index in 0..self.slots.len() {
            let number = first.wrapping_add(index as u16);
            let before = (1..0x8000).contains(&object.wrapping_sub(number));
            if !before && !invalid.contains(&number) {
                continue;
            }
            match self.slots[index] {
                // Nobody has begun it, so nobody misses it.
                Slot::Unknown if before => self.slots[index] = Slot::Closed { complete: true },
                Slot::Unknown => self.slots[index] = Slot::Closed { complete: false },
                Slot::Open(_) => self.fail(index, "its sender gave it up".into(), shared),
                Slot::Closed { .. } => {}
            }
        }
        self.advance();
    }

    /// Others asked for this.
    pub(super) fn overhear(&mut self, requests: Requests<'_>) {
        if !matches!(self.nack, Nack::Backoff(_)) {
            return;
        }
        for span in requests.spans() {
            if self.overheard.len() >= MAX_OVERHEARD {
                return;
            }
            let (first, last) = (span.first, span.last);
            if span.level.segment && (first.0, first.1.block) == (last.0, last.1.block) {
                let count = match span.form {
                    Form::Erasures => first.1.symbol,
                    _ => last.1.symbol.saturating_sub(first.1.symbol).saturating_add(1),
                };
                let entry = self.overheard.entry((first.0, first.1.block)).or_default();
                *entry = entry.saturating_add(count);
            }
        }
    }

    /// Whether something is missing before where the sender is.
    fn is_due(&self) -> bool {
        let (end, block) = self.frontier;
        self.slots.iter().take(end + 1).enumerate().any(|(index, slot)| match slot {
            Slot::Unknown => index < end || block > 0,
            Slot::Open(incoming) if index < end => !incoming.is_complete(),
            Slot::Open(incoming) => {
                incoming.prefix < block.min(incoming.partition.blocks())
                    || block > 0 && incoming.needs_info()
            }
            Slot::Closed { .. } => false,
        })
    }

    fn consider_nack<S>(&mut self, now: Duration, shared: &mut Shared<S>) {
        if self.nack != Nack::Idle || !self.is_due() {
            return;
        }
        let wait = if self.head.backoff == 0 {
            // A packet or two may still come out of order.
            self.grtt() / 8
        } else {
            backoff(self.grtt() * self.head.backoff.into(), self.head.group, &mut shared.random)
        };
        self.overheard.clear();
        self.nack = Nack::Backoff(now + wait);
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let nack = match self.nack {
            Nack::Idle => None,
            Nack::Backoff(at) | Nack::Holdoff(at) => Some(at),
        };
        let acknowledgement = self.acknowledgement.as_ref().map(|waiting| waiting.at);
        [nack, acknowledgement, self.report_at].into_iter().flatten().min()
    }

    /// Puts what is due into `out`.
    pub(super) fn send<S>(
        &mut self,
        now: Duration,
        shared: &mut Shared<S>,
        out: &mut Vec<u8>,
    ) -> bool {
        if let Some(waiting) = self.acknowledgement.take_if(|waiting| waiting.at <= now) {
            let Acknowledgement { object, symbol, fec, .. } = waiting;
            self.report_at = None;
            self.put(
                now,
                FeedbackKind::Ack(AckKind::Flush { object, at: symbol, fec }, 0),
                shared,
                out,
            );
            return true;
        }
        match self.nack {
            Nack::Holdoff(until) if until <= now => {
                self.nack = Nack::Idle;
                if !self.ended && !self.is_silent(now, SILENT) {
                    self.consider_nack(now, shared);
                }
            }
            Nack::Backoff(at) if at <= now => {
                // RFC 5740 has a hold-off of K + 2 round-trip times. Our sender is not confused by asking
                // again sooner, because it knows what could not have come yet.
                let times = f64::from(self.head.backoff) + 0.5;
                let wait = self.grtt().mul_f64(times).max(2 * MIN_WAIT);
                let longest = if self.head.backoff == 0 { MAX_HOLDOFF } else { Duration::MAX };
                self.nack = Nack::Holdoff(now + wait.min(longest));
                if self.put_nack(now, shared, out) {
                    self.report_at = None;
                    return true;
                }
            }
            _ => {}
        }
        if self.report_at.take_if(|at| *at <= now).is_some() {
            self.put(now, FeedbackKind::Ack(AckKind::Probe, 0), shared, out);
            return true;
        }
        false
    }

    fn put_nack<S>(&mut self, now: Duration, shared: &mut Shared<S>, out: &mut Vec<u8>) -> bool {
        let fec = self.slots.iter().find_map(|slot| match slot {
            Slot::Open(incoming) => Some(incoming.fec),
            _ => None,
        });
        let mut writer = requests::writer(shared.config.nack_bytes, fec.unwrap_or_default());
        let (end, block) = self.frontier;
        for (index, slot) in self.slots.iter().take(end + 1).enumerate() {
            let object = self.number(index);
            let fits = match slot {
                Slot::Unknown if index < end || block > 0 => requests::unknown(object, &mut writer),
                Slot::Open(incoming) => {
                    let end = if index < end { u32::MAX } else { block };
                    requests::missing(object, incoming, end, &mut writer)
                }
                _ => true,
            };
            if !fits {
                break;
            }
        }
        if writer.requests().is_empty() {
            return false;
        }
        if self.are_overheard(writer.requests()) {
            shared.progress.suppressed += 1;
            return false;
        }
        shared.progress.nacks += 1;
        self.put(now, FeedbackKind::Nack(writer.requests()), shared, out);
        true
    }

    /// Whether others have asked for at least as much.
    fn are_overheard(&self, requests: Requests<'_>) -> bool {
        let mut counts: HashMap<(u16, u32), u16> = HashMap::new();
        for span in requests.spans() {
            if !span.level.segment {
                return false;
            }
            let count = span.last.1.symbol - span.first.1.symbol + 1;
            *counts.entry((span.first.0, span.first.1.block)).or_default() += count;
        }
        let heard = |key| self.overheard.get(key).copied().unwrap_or(0);
        counts.iter().all(|(key, &count)| heard(key) >= count)
    }

    fn put<S>(
        &mut self,
        now: Duration,
        kind: FeedbackKind<'_>,
        shared: &mut Shared<S>,
        out: &mut Vec<u8>,
    ) {
        let echo = self.probe.map(|(came, sent, _)| sent + now.saturating_sub(came));
        let loss = quantize::quantize_loss(self.meter.loss());
        let rtt = if self.rtt.is_some() { cc_flags::RTT } else { 0 };
        let start = if loss == 0 { cc_flags::START } else { 0 };
        let report = CcFeedback {
            sequence: self.probe.map_or(0, |(.., sequence)| sequence),
            flags: rtt | start,
            rtt: self.rtt.unwrap_or(self.head.grtt),
            loss,
            rate: quantize::quantize_rate(self.meter.rate()),
        };
        let (sender, instance) = self.identity();
        let (source, sequence) = (shared.config.node, shared.sequence);
        let report = Some(report);
        Message::Feedback(Feedback { source, sequence, sender, instance, echo, report, kind })
            .encode(out);
        shared.sequence = shared.sequence.wrapping_add(1);
    }
}

/// A random wait of at most `longest`, most likely a long one, so that of a large group few are early
/// (RFC 5401 section 5.2: truncated exponential).
pub(crate) fn backoff(longest: Duration, group: u8, random: &mut fastrand::Rng) -> Duration {
    let lambda = f64::from(quantize::group_size(group)).ln() + 1.0;
    let longest = longest.as_secs_f64();
    let scale = lambda.exp() - 1.0;
    let x = random.f64() * lambda / longest + lambda / (longest * scale);
    let wait = longest / lambda * (x * scale * (longest / lambda)).ln();
    Duration::from_secs_f64(wait.clamp(0.0, longest))
}
