//! The receiving side (RFC 5740 section 5.3): receives several objects from each of several senders, and requests
//! missing data, preferably as parity.
//!
//! Source symbols go to the [`Storage`] as they arrive, so only parity is in memory, up to a limit. Data beyond the
//! limit is requested again.

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

/// The most senders remembered at once.
const MAX_SENDERS: usize = 16;
/// A sender that was silent for this long may be forgotten for a new one.
const FORGET: Duration = Duration::from_secs(30);
/// The most codes remembered; each sender mostly uses one.
const MAX_CODES: usize = 16;

/// Names an object of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The sender.
    pub sender: NodeId,
    /// The instance (run) of the sender.
    pub instance: u16,
    /// The sender's number for the object.
    pub object: u16,
}

/// Stores objects.
pub trait Storage {
    /// An object begins.
    ///
    /// # Errors
    /// It is not wanted, and will not be asked for.
    fn open(&mut self, object: ObjectKey, bytes: u64) -> io::Result<()>;
    /// The object's info has arrived. Returns the blocks that an earlier run left complete and unchanged; all other
    /// data received so far then counts as missing.
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
    /// A block of an identified object is complete.
    ///
    /// # Errors
    /// The object is given up.
    fn block_complete(
        &mut self,
        _object: ObjectKey,
        _parts: &Partition,
        _block: u32,
    ) -> io::Result<()> {
        Ok(())
    }
    /// Writes a part of the object, within its length.
    ///
    /// # Errors
    /// It cannot be kept; the object is given up.
    fn write(&mut self, object: ObjectKey, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Reads a part back; parts that were not written may have any content.
    ///
    /// # Errors
    /// It cannot be read; the object is given up.
    fn read(&mut self, object: ObjectKey, offset: u64, to: &mut [u8]) -> io::Result<()>;
    /// Everything before this offset is written and will not change.
    ///
    /// # Errors
    /// The object is given up.
    fn advance(&mut self, object: ObjectKey, bytes: u64) -> io::Result<()>;
    /// The object is complete. `info` is the sender's description of it. Only after this call is the object
    /// acknowledged.
    ///
    /// # Errors
    /// It is not what it should be.
    fn finish(&mut self, object: ObjectKey, info: &[u8]) -> io::Result<()>;
    /// The object will not be completed; its data may be deleted.
    fn abandon(&mut self, object: ObjectKey);
}

/// Events of a receiver.
#[derive(Debug)]
pub enum Event {
    /// A new sender, or a new instance of a known one.
    Sender(NodeId, SocketAddr),
    /// An object has begun.
    Begun(ObjectKey, u64),
    /// An object is complete and was taken by the storage.
    Complete(ObjectKey, u64),
    /// An object was refused, cannot be stored, or was withdrawn by its sender.
    Failed(ObjectKey, String),
    /// A sender has ended its transmission.
    Ended(NodeId),
}

fulmar_text::with_defaults! {
    /// A receiver's settings. By default, it accepts objects up to 64 GiB with 64 MiB of parity.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ReceiverConfig {
        /// The receiver's identity.
        pub node: NodeId = 2,
        /// Seed of its random waits.
        pub seed: u64 = 0,
        /// Whether datagrams are decrypted by a [`crate::encryption::ReceiverEncryption`]. Then a sender is identified by
        /// its key, not by its address, and an object is complete only after its sender has named this receiver:
        /// recordings of an earlier transfer name others.
        pub encrypted: bool = false,
        /// The largest object that is accepted.
        pub max_object_bytes: u64 = 64 << 30,
        /// The most bytes of parity in memory.
        pub max_parity_bytes: usize = 64 << 20,
        /// The most incomplete blocks of all objects, at about a hundred bytes each besides parity. Without a limit, a
        /// sender could fill the memory with one symbol of every possible block. Each object may have a few more.
        pub max_partial_blocks: usize = 1 << 17,
        /// The most objects of a sender that are received at once.
        pub max_open_objects: usize = 64,
        /// The number of earlier objects that a late receiver requests, before the first one that it receives. Fulmar's
        /// senders number objects from 0 and keep them; use 0 for other senders.
        pub history: u16 = 256,
        /// The most bytes of requests in a NACK.
        pub nack_bytes: usize = 1300,
    }
}

/// Progress of a receiver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Bytes of the objects begun.
    pub total_bytes: u64,
    /// Bytes of them that were received.
    pub received_bytes: u64,
    /// Bytes of those that an earlier run left.
    pub resumed_bytes: u64,
    /// Datagrams received.
    pub datagrams: u64,
    /// Symbols in them that had been received before.
    pub duplicates: u64,
    /// Symbols recovered by parity.
    pub recovered: u64,
    /// The share of a sender's messages that is lost; the greatest, if there are several senders.
    pub loss: f64,
    /// Datagrams that are not valid messages, contradict earlier ones, or come from an unknown sender.
    pub strange: u64,
    /// Symbols dropped for lack of memory.
    pub dropped: u64,
    /// NACKs sent.
    pub nacks: u64,
    /// NACKs not sent because other receivers had sent the same requests.
    pub suppressed: u64,
}

/// State that the parts of the receiver share.
struct Shared<S> {
    config: ReceiverConfig,
    storage: S,
    codes: HashMap<(u16, u16), Rc<Code>>,
    parity_bytes: usize,
    /// Incomplete blocks.
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
    /// A receiver that has received nothing yet.
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

    /// Puts the next datagram into `out` and returns its destination; call this until it returns `None`.
    pub fn poll_transmit(&mut self, now: Duration, out: &mut Vec<u8>) -> Option<SocketAddr> {
        let Receiver { shared, senders } = self;
        senders.iter_mut().find_map(|sender| {
            out.clear();
            sender.poll_transmit(now, shared, out).then_some(sender.contact.address)
        })
    }

    /// When something was last received from a sender that may not have received the acknowledgement of a complete
    /// object: it has not ended, and none of its objects has failed. `None`: no sender needs this receiver any more.
    #[must_use]
    pub fn last_awaited(&self) -> Option<Duration> {
        let awaiting = self.senders.iter().filter(|sender| sender.may_lack_acknowledgement());
        awaiting.map(|sender| sender.contact.last_heard()).max()
    }

    /// Receives a datagram.
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

    /// Another receiver's request, which may make the own one unnecessary.
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

    /// The sender of a message; a new one is added if there is room. A known identity at another address is refused
    /// while the known sender is active.
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

    /// A new instance of a sender replaces an earlier one that has ended or is silent. Returns false if an earlier
    /// one is active, because another participant uses its identity. With encryption, that one may be a recording,
    /// unless it has answered this receiver.
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
