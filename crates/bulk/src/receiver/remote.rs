//! A sender as a receiver of objects sees it: its objects, their progress, and the requests for missing data.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use super::contact::{Contact, Nack, SILENT};
use super::incoming::Incoming;
use super::{Event, ObjectKey, Shared, Storage, requests};
use crate::quantize;
use crate::wire::{
    Command, CommandKind, FeedbackKind, Form, ObjectMessage, Probe, Requests, SenderHead, SymbolId,
};

/// Objects that are tracked, from the first incomplete one on; later ones are ignored.
const WINDOW: usize = 1024;
/// The most blocks remembered for which other receivers sent requests.
const MAX_OVERHEARD: usize = 1 << 14;

enum Slot {
    Unknown,
    Open(Box<Incoming>),
    Closed { complete: bool },
}

pub(super) struct Remote {
    pub(super) contact: Contact,
    /// The number of the first object in `slots`; `None` before the first message of an object.
    first: Option<u16>,
    slots: VecDeque<Slot>,
    /// Progress of the sender: the slot, counted from `first`, and the block.
    frontier: (usize, u32),
    overheard: HashMap<(u16, u32), u16>,
    /// Probes until the next unsolicited answer, and the number for the time after.
    quiet: u32,
    next_quiet: u32,
    /// An object of it is complete.
    completed: bool,
    ended: bool,
}

impl Remote {
    pub(super) fn new(now: Duration, address: SocketAddr, head: &SenderHead) -> Remote {
        Remote {
            contact: Contact::new(now, address, head),
            first: None,
            slots: VecDeque::new(),
            frontier: (0, 0),
            overheard: HashMap::new(),
            quiet: 0,
            next_quiet: 1,
            completed: false,
            ended: false,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether it may not have received the acknowledgement of what is complete. There is none to repeat after a
    /// failed object, because an acknowledgement covers all objects before.
    pub(super) fn may_lack_acknowledgement(&self) -> bool {
        let failed = |slot: &Slot| matches!(slot, Slot::Closed { complete: false });
        self.completed && !self.ended && !self.slots.iter().any(failed)
    }

    fn key(&self, object: u16) -> ObjectKey {
        let (sender, instance) = self.contact.identity();
        ObjectKey { sender, instance, object }
    }

    /// Gives up all objects.
    pub(super) fn abandon<S: Storage>(self, shared: &mut Shared<S>) {
        for slot in self.slots {
            if let Slot::Open(incoming) = slot {
                incoming.abandon(shared);
            }
        }
    }

    /// The slot of an object; `None` if the object is finished or too far ahead.
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

    /// Receives a message of an object. Returns whether it is valid.
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
            Slot::Open(incoming) => incoming.receive(message, shared),
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

    /// Finishes the object if it is complete.
    fn finish<S: Storage>(&mut self, index: usize, shared: &mut Shared<S>) {
        let key = self.key(self.number(index));
        let Slot::Open(incoming) = &self.slots[index] else { return };
        if !incoming.is_complete() || shared.config.encrypted && !self.contact.is_present() {
            return;
        }
        match shared.storage.finish(key, incoming.info()) {
            Ok(()) => {
                shared.events.push_back(Event::Complete(key, incoming.partition.bytes()));
                self.slots[index] = Slot::Closed { complete: true };
                self.completed = true;
            }
            Err(error) => self.fail(index, error.to_string(), shared),
        }
    }

    /// Forgets finished objects at the front, except the last, to which a flush may refer.
    fn advance(&mut self) {
        while self.slots.len() > 1 && matches!(self.slots[0], Slot::Closed { complete: true }) {
            self.forget_first();
        }
        // Failed objects stay in the window while there is room, because forgotten ones would be acknowledged.
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
                    let random = &mut shared.random;
                    self.contact.acknowledge_soon(now, object, at, command.fec, random);
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
                    shared.events.push_back(Event::Ended(self.contact.head.source));
                }
            }
            CommandKind::AckRequest { .. } | CommandKind::Application(_) => {}
        }
    }

    /// Whether everything up to a symbol was received.
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

    fn probe<S: Storage>(&mut self, now: Duration, probe: &Probe<'_>, shared: &mut Shared<S>) {
        let was_present = self.contact.is_present();
        if !self.contact.probed(now, probe, shared.config.node) {
            return;
        }
        if self.contact.is_present() && !was_present && shared.config.encrypted {
            (0..self.slots.len()).for_each(|index| self.finish(index, shared));
            self.advance();
        }
        // A receiver that the probe does not name answers too, so that the sender learns of it; in a large group,
        // less and less often.
        if probe.rtt_of(shared.config.node).is_none() {
            self.quiet += 1;
            if self.quiet < self.next_quiet {
                return;
            }
            let most = if quantize::group_size(self.contact.head.group) <= 50 { 1 } else { 64 };
            (self.quiet, self.next_quiet) = (0, (self.next_quiet * 2).min(most));
        }
        self.contact.report_soon(now, &mut shared.random);
    }

    /// Marks objects and blocks that the sender can no longer repair.
    fn squelch<S: Storage>(&mut self, object: u16, invalid: &[u16], shared: &mut Shared<S>) {
        let Some(first) = self.first else { return };
        for index in 0..self.slots.len() {
            let number = first.wrapping_add(index as u16);
            let before = (1..0x8000).contains(&object.wrapping_sub(number));
            if !before && !invalid.contains(&number) {
                continue;
            }
            match self.slots[index] {
                // The object had not begun.
                Slot::Unknown if before => self.slots[index] = Slot::Closed { complete: true },
                Slot::Unknown => self.slots[index] = Slot::Closed { complete: false },
                Slot::Open(_) => self.fail(index, "its sender gave up on it".into(), shared),
                Slot::Closed { .. } => {}
            }
        }
        self.advance();
    }

    /// Another receiver has requested this.
    pub(super) fn overhear(&mut self, requests: Requests<'_>) {
        if !matches!(self.contact.nack, Nack::Backoff(_)) {
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

    /// Whether data is missing before the sender's position.
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
        if self.contact.nack == Nack::Idle && self.is_due() {
            self.overheard.clear();
            self.contact.ask_soon(now, &mut shared.random);
        }
    }

    /// Puts the feedback that is due into `out`.
    pub(super) fn poll_transmit<S>(
        &mut self,
        now: Duration,
        shared: &mut Shared<S>,
        out: &mut Vec<u8>,
    ) -> bool {
        if let Some(acknowledgement) = self.contact.take_acknowledgement(now) {
            self.write_feedback(now, acknowledgement, shared, out);
            return true;
        }
        match self.contact.nack {
            Nack::Holdoff(until) if until <= now => {
                self.contact.nack = Nack::Idle;
                if !self.ended && !self.contact.is_silent(now, SILENT) {
                    self.consider_nack(now, shared);
                }
            }
            Nack::Backoff(at) if at <= now => {
                // RFC 5740 requires a hold-off of K + 2 round-trip times. Fulmar's senders handle an earlier request
                // correctly, because they know which data could not have arrived yet.
                self.contact.hold_off(now, 0.5);
                if self.put_nack(now, shared, out) {
                    return true;
                }
            }
            _ => {}
        }
        if let Some(report) = self.contact.take_report(now) {
            self.write_feedback(now, report, shared, out);
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
        self.write_feedback(now, FeedbackKind::Nack(writer.requests()), shared, out);
        true
    }

    /// Whether other receivers have requested at least as much.
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

    fn write_feedback<S>(
        &mut self,
        now: Duration,
        kind: FeedbackKind<'_>,
        shared: &mut Shared<S>,
        out: &mut Vec<u8>,
    ) {
        let source = shared.config.node;
        self.contact.write_feedback(now, kind, source, &mut shared.sequence, out);
    }
}
