//! The receiving side (RFC 5740 section 5.3): several senders, each with several objects; what is missing
//! is asked for, parity first.
//!
//! Source symbols go to the [`Storage`] as they come, so that only parity is held in memory, within a
//! bound. What does not fit is asked for again.

mod contact;
mod incoming;
mod reception_stats;
mod remote;
mod requests;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::NodeId;
use crate::partition::Partition;
use crate::rs::Code;
use crate::wire::{Command, Feedback, FeedbackKind, Message, ObjectMessage, SenderHead};
pub(crate) use contact::{Contact, Nack, RESTART, SILENT};
use reception_stats::ReceptionStats;
use remote::Remote;
pub(crate) use requests::ranges_of;

/// Senders remembered at once.
const MAX_SENDERS: usize = 16;
/// A sender that is silent for so long may be forgotten for another.
const FORGET: Duration = Duration::from_secs(30);
/// Different codes remembered; each sender mostly uses one.
const MAX_CODES: usize = 16;

/// Names an object of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The sender.
    pub sender: NodeId,
    /// Which run of it.
    pub instance: u16,
    /// Its number for the object.
    pub object: u16,
}

/// Where objects are put.
pub trait Storage {
    /// An object comes.
    ///
    /// # Errors
    /// It is not wanted, and will not be asked for.
    fn open(&mut self, object: ObjectKey, bytes: u64) -> io::Result<()>;
    /// What its sender says of it has come, and with that what it is. Told are the blocks that an earlier run
    /// left, whole and as they were; then all else that came so far counts as missing.
    ///
    /// # Errors
    /// The object is given up.
    fn identify(
        &mut self,
        _object: ObjectKey,
        _info: &[u8],
        _parts: &Partition,
    ) -> io::Result<Vec<u32>> {
        Ok(Vec::new())
    }
    /// A block of an object that was identified is whole.
    ///
    /// # Errors
    /// The object is given up.
    fn keep(&mut self, _object: ObjectKey, _parts: &Partition, _block: u32) -> io::Result<()> {
        Ok(())
    }
    /// Writes a part, which is within the object.
    ///
    /// # Errors
    /// It cannot be kept; the object is given up.
    fn write(&mut self, object: ObjectKey, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Reads back what was written; parts that were not may have any content.
    ///
    /// # Errors
    /// It cannot be read; the object is given up.
    fn read(&mut self, object: ObjectKey, offset: u64, to: &mut [u8]) -> io::Result<()>;
    /// Everything before this is written and stays as it is.
    ///
    /// # Errors
    /// The object is given up.
    fn advance(&mut self, object: ObjectKey, bytes: u64) -> io::Result<()>;
    /// All is there. `info` is what the sender said of it. Only after this is it acknowledged.
    ///
    /// # Errors
    /// It is not what it should be.
    fn finish(&mut self, object: ObjectKey, info: &[u8]) -> io::Result<()>;
    /// It will not be completed; what there is of it may go.
    fn abandon(&mut self, object: ObjectKey);
}

/// What a receiver tells its owner.
#[derive(Debug)]
pub enum Event {
    /// A sender not known before, or a new run of one.
    Sender(NodeId, SocketAddr),
    /// An object has begun.
    Begun(ObjectKey, u64),
    /// An object is complete and was taken by the storage.
    Complete(ObjectKey, u64),
    /// An object was not taken, cannot be kept, or its sender gave it up.
    Failed(ObjectKey, String),
    /// A sender has gone.
    Ended(NodeId),
}

/// A receiver's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceiverConfig {
    /// Its identity.
    pub node: NodeId,
    /// Seed of its random waits.
    pub seed: u64,
    /// Datagrams are decrypted by a [`crate::encryption::ReceiverEncryption`]. Then a sender is known by its key and not by its
    /// address, and an object is complete only when its sender has named this receiver: what was
    /// recorded of an earlier transfer names others.
    pub encrypted: bool,
    /// Longest object it takes.
    pub max_object_bytes: u64,
    /// Bytes of parity it holds.
    pub max_parity_bytes: usize,
    /// Blocks of which a part is there, in all, at about a hundred bytes besides their parity: else who sends a symbol of
    /// each block there can be would fill the memory. A few of each object are there besides.
    pub max_partial_blocks: usize,
    /// Objects it works on at once, of each sender.
    pub max_open_objects: usize,
    /// Who joins late asks for so many objects before the first it hears of. Fulmar's senders number
    /// objects from 0 and keep them; 0 is for those who do not.
    pub history: u16,
    /// Bytes of a NACK's requests at most.
    pub nack_bytes: usize,
}

impl Default for ReceiverConfig {
    /// Objects up to 64 GiB, 64 MiB of parity.
    fn default() -> Self {
        ReceiverConfig {
            node: 2,
            seed: 0,
            encrypted: false,
            max_object_bytes: 64 << 30,
            max_parity_bytes: 64 << 20,
            max_partial_blocks: 1 << 17,
            max_open_objects: 64,
            history: 256,
            nack_bytes: 1300,
        }
    }
}

/// How far a receiver is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Bytes of the objects begun.
    pub total_bytes: u64,
    /// Bytes of them that are there.
    pub received_bytes: u64,
    /// Of those, bytes that an earlier run left.
    pub resumed_bytes: u64,
    /// Datagrams received.
    pub datagrams: u64,
    /// Of those, symbols that were there already.
    pub duplicates: u64,
    /// Symbols made from parity.
    pub recovered: u64,
    /// What share of a sender's messages is missing; the greatest, if there are several.
    pub loss: f64,
    /// Datagrams that are no message, contradict what is known, or come from a stranger.
    pub strange: u64,
    /// Symbols dropped because there was no room for them.
    pub dropped: u64,
    /// NACKs sent.
    pub nacks: u64,
    /// NACKs not sent because others had asked already.
    pub suppressed: u64,
}

/// What parts of the receiver share.
struct Shared<S> {
    config: ReceiverConfig,
    storage: S,
    codes: HashMap<(u16, u16), Rc<Code>>,
    parity_bytes: usize,
    /// Blocks of which something is there.
    partial_blocks: usize,
    random: fastrand::Rng,
    sequence: u16,
    events: VecDeque<Event>,
    progress: Progress,
}

impl<S> Shared<S> {
    fn code(&mut self, k: u16, parity: u16) -> Option<Rc<Code>> {
        if let Some(code) = self.codes.get(&(k, parity)) {
            return Some(Rc::clone(code));
        }
        let code = Rc::new(Code::new(k.into(), parity.into())?);
        if self.codes.len() >= MAX_CODES {
            self.codes.clear();
        }
        self.codes.insert((k, parity), Rc::clone(&code));
        Some(code)
    }
}

/// A receiver of objects.
pub struct Receiver<S> {
    shared: Shared<S>,
    senders: Vec<Remote>,
}

impl<S: Storage> Receiver<S> {
    /// A receiver that has heard nothing yet.
    pub fn new(config: ReceiverConfig, storage: S) -> Receiver<S> {
        let shared = Shared {
            random: fastrand::Rng::with_seed(config.seed),
            config,
            storage,
            codes: HashMap::new(),
            parity_bytes: 0,
            partial_blocks: 0,
            sequence: 0,
            events: VecDeque::new(),
            progress: Progress::default(),
        };
        Receiver { shared, senders: Vec::new() }
    }

    /// The storage.
    pub fn storage(&mut self) -> &mut S {
        &mut self.shared.storage
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    /// Progress of the transfer.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let loss = self.senders.iter().map(|sender| sender.contact.loss()).fold(0.0, f64::max);
        Progress { loss, ..self.shared.progress.clone() }
    }

    /// When [`Receiver::poll_transmit`] next has a datagram.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.senders.iter().filter_map(|sender| sender.contact.deadline()).min()
    }

    /// Puts the next datagram into `out` and returns its destination; to be called until it returns `None`.
    pub fn poll_transmit(&mut self, now: Duration, out: &mut Vec<u8>) -> Option<SocketAddr> {
        let Receiver { shared, senders } = self;
        senders.iter_mut().find_map(|sender| {
            out.clear();
            sender.poll_transmit(now, shared, out).then_some(sender.contact.address)
        })
    }

    /// Takes a datagram.
    pub fn receive(&mut self, now: Duration, from: SocketAddr, datagram: &[u8]) {
        self.shared.progress.datagrams += 1;
        let taken = match Message::decode(datagram) {
            Ok(Message::Object(message)) => self.object(now, from, &message, datagram.len()),
            Ok(Message::Command(command)) => self.command(now, from, &command, datagram.len()),
            Ok(Message::Feedback(feedback)) => self.overhear(&feedback),
            Err(_) => false,
        };
        if !taken {
            self.shared.progress.strange += 1;
        }
    }

    fn object(
        &mut self,
        now: Duration,
        from: SocketAddr,
        message: &ObjectMessage<'_>,
        bytes: usize,
    ) -> bool {
        let Some(index) = self.sender(now, from, &message.head, bytes) else { return false };
        self.senders[index].object(now, message, &mut self.shared)
    }

    fn command(
        &mut self,
        now: Duration,
        from: SocketAddr,
        command: &Command<'_>,
        bytes: usize,
    ) -> bool {
        let Some(index) = self.sender(now, from, &command.head, bytes) else { return false };
        self.senders[index].command(now, command, &mut self.shared);
        true
    }

    /// Another receiver's request, which may spare ours.
    fn overhear(&mut self, feedback: &Feedback<'_>) -> bool {
        let to = (feedback.sender, feedback.instance);
        let sender = self.senders.iter_mut().find(|sender| sender.contact.identity() == to);
        let (Some(sender), FeedbackKind::Nack(requests)) = (sender, feedback.kind) else {
            return false;
        };
        if feedback.source != self.shared.config.node {
            sender.overhear(requests);
        }
        true
    }

    /// The sender of a message, if there is room for one more where it is new. A known identity from
    /// another address is a stranger as long as the known one speaks.
    fn sender(
        &mut self,
        now: Duration,
        from: SocketAddr,
        head: &SenderHead,
        bytes: usize,
    ) -> Option<usize> {
        if head.source == self.shared.config.node {
            return None;
        }
        let encrypted = self.shared.config.encrypted;
        let identity = (head.source, head.instance);
        let known = self.senders.iter().position(|sender| sender.contact.identity() == identity);
        if let Some(index) = known {
            let sender = &mut self.senders[index];
            let same = sender.contact.address == from || encrypted;
            if !same && !sender.has_ended() && !sender.contact.is_silent(now, SILENT) {
                return None;
            }
            sender.contact.address = from;
            sender.contact.heard(now, head, bytes);
            return Some(index);
        }
        if !self.make_way(now, from, head.source) {
            return None;
        }
        if self.senders.len() >= MAX_SENDERS {
            let spare = |sender: &Remote| {
                let contact = &sender.contact;
                contact.is_silent(now, FORGET) || encrypted && !contact.is_present()
            };
            let spare = self.senders.iter().position(spare)?;
            self.senders.remove(spare).abandon(&mut self.shared);
        }
        let mut sender = Remote::new(now, from, head);
        sender.contact.heard(now, head, bytes);
        self.shared.events.push_back(Event::Sender(head.source, from));
        self.senders.push(sender);
        Some(self.senders.len() - 1)
    }

    /// A new run of a sender takes the place of an earlier one that has ended or is silent. Tells whether
    /// there is none left that is in its way: one that goes on, where somebody else uses its name. For a
    /// encryption that may be a recording, unless it has answered us.
    fn make_way(&mut self, now: Duration, from: SocketAddr, node: NodeId) -> bool {
        let encrypted = self.shared.config.encrypted;
        let mut index = 0;
        while let Some(sender) = self.senders.get(index) {
            let contact = &sender.contact;
            let near = encrypted || contact.address.ip() == from.ip();
            let silent = if near { RESTART } else { SILENT };
            let replaced = !encrypted && contact.address == from;
            if contact.identity().0 != node {
                index += 1;
            } else if replaced || sender.has_ended() || contact.is_silent(now, silent) {
                self.senders.remove(index).abandon(&mut self.shared);
            } else if encrypted && !contact.is_present() {
                index += 1;
            } else {
                return false;
            }
        }
        true
    }
}
