//! The sending side of QoS 1 and 2 (sections 4.3 and 4.4).
//!
//! Entries are in the order in which they were sent, which is the order of retransmission ([MQTT-4.6.0-1]).
//! Acknowledgements nearly always arrive in that order too, so a search nearly always ends at the front; if not, the
//! identifier gives the position.

use std::collections::VecDeque;

use super::spare::give_back;
use crate::types::{PacketId, QoS};

/// An acknowledgement that does not match any message in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AckError {
    /// No message in flight has this identifier.
    #[error("packet identifier {0} is not in flight")]
    Unknown(PacketId),
    /// The message is at another step of its exchange.
    #[error("packet identifier {0} is at another step of its exchange")]
    WrongStep(PacketId),
    /// The message has another quality of service: PUBACK for QoS 2, or PUBREC or PUBCOMP for QoS 1.
    #[error("packet identifier {0} is of a message with another quality of service")]
    WrongQoS(PacketId),
}

/// Packet that an entry waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Puback,
    Pubrec,
    Pubcomp,
}

impl Step {
    /// Why an acknowledgement for `wanted` does not fit a message at this step.
    fn mismatch(self, wanted: Step, id: PacketId) -> AckError {
        if (self == Step::Puback) == (wanted == Step::Puback) {
            AckError::WrongStep(id)
        } else {
            AckError::WrongQoS(id)
        }
    }
}

#[derive(Clone, Debug)]
struct Entry<M> {
    id: PacketId,
    step: Step,
    message: M,
}

/// Packet to send again for one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay<'a, M> {
    /// PUBLISH with DUP.
    Publish {
        /// Packet identifier of the message.
        packet_id: PacketId,
        /// Quality of service of the message.
        qos: QoS,
        /// Message to publish again.
        message: &'a M,
    },
    /// PUBREL.
    Pubrel {
        /// Packet identifier of the message.
        packet_id: PacketId,
    },
}

impl<M> Replay<'_, M> {
    /// The identifier of the packet to send.
    #[must_use]
    pub fn packet_id(&self) -> PacketId {
        match self {
            Replay::Publish { packet_id, .. } | Replay::Pubrel { packet_id } => *packet_id,
        }
    }
}

/// Messages in flight in one direction. `M` is the owner's handle of a message. Owns no memory
/// while nothing is in flight.
#[derive(Clone, Debug)]
pub struct Outbound<M> {
    entries: VecDeque<Entry<M>>,
    /// Identifiers in use for SUBSCRIBE and UNSUBSCRIBE; a client's, never more than a few.
    reserved: Vec<PacketId>,
    next_id: PacketId,
    /// Number of identifiers from `next_id` on that are known to be free.
    free_run: u16,
    window: u16,
}

impl<M> Outbound<M> {
    /// Nothing in flight; at most `window` messages may be (the receiver's receive maximum).
    #[must_use]
    pub fn new(window: u16) -> Outbound<M> {
        Outbound {
            entries: VecDeque::new(),
            reserved: Vec::new(),
            next_id: PacketId::FIRST,
            free_run: u16::MAX,
            window,
        }
    }

    /// Whether the window is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.entries.len() >= usize::from(self.window)
    }

    /// Whether one more may be sent to the receiver if `unsent` of the messages in flight, left over
    /// from an earlier connection, have not been sent on this one: it may take fewer at once than it
    /// took before, and the limit holds for what is sent again too ([MQTT-3.3.4-7], [MQTT-3.3.4-9]).
    #[must_use]
    pub fn has_room_beside(&self, unsent: usize) -> bool {
        self.entries.len().saturating_sub(unsent) < usize::from(self.window)
    }

    /// Messages in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.entries.len()
    }

    /// Frees the room that is not in use, for a connection that is gone.
    pub fn shrink_to_fit(&mut self) {
        self.entries.shrink_to_fit();
        self.reserved.shrink_to_fit();
    }

    /// Changes the window, as a new connection may.
    pub fn set_window(&mut self, window: u16) {
        self.window = window;
    }

    /// Puts a message in flight at QoS 1 or 2 and names it; `None` when the window is full.
    pub fn push(&mut self, qos: QoS, message: M) -> Option<PacketId> {
        self.push_as(self.next_id, qos, message)
    }

    /// The same under the identifier `wanted`, or the next one that is free.
    pub fn push_as(&mut self, wanted: PacketId, qos: QoS, message: M) -> Option<PacketId> {
        debug_assert_ne!(qos, QoS::AtMostOnce, "QoS 0 is never in flight");
        if self.is_full() {
            return None;
        }
        let id = self.allocate(wanted)?;
        let step = if qos == QoS::ExactlyOnce { Step::Pubrec } else { Step::Puback };
        self.entries.push_back(Entry { id, step, message });
        Some(id)
    }

    /// Puts a message back in flight that storage remembers; `released` when its PUBREC had come.
    pub fn restore(&mut self, id: PacketId, qos: QoS, released: bool, message: M) {
        let step = match (qos, released) {
            (_, true) => Step::Pubcomp,
            (QoS::ExactlyOnce, false) => Step::Pubrec,
            _ => Step::Puback,
        };
        self.entries.push_back(Entry { id, step, message });
        self.next_id = id.next();
        self.free_run = 0;
    }

    /// Like [`Outbound::push_as`], but ahead of the first that is `later`, whether the window is full or not:
    /// one that may have been sent already without a record in storage.
    ///
    /// # Errors
    /// All identifiers are in use; the message comes back.
    pub fn push_ahead(
        &mut self,
        wanted: PacketId,
        qos: QoS,
        message: M,
        later: impl Fn(&M) -> bool,
    ) -> Result<PacketId, M> {
        let Some(id) = self.allocate(wanted) else { return Err(message) };
        let step = if qos == QoS::ExactlyOnce { Step::Pubrec } else { Step::Puback };
        let at = self.entries.iter().position(|entry| later(&entry.message));
        self.entries.insert(at.unwrap_or(self.entries.len()), Entry { id, step, message });
        Ok(id)
    }

    /// The messages in flight, in order.
    pub fn messages_mut(&mut self) -> impl Iterator<Item = (PacketId, &mut M)> {
        self.entries.iter_mut().map(|entry| (entry.id, &mut entry.message))
    }

    /// Takes an identifier for SUBSCRIBE or UNSUBSCRIBE; `None` when all are in use.
    pub fn reserve(&mut self) -> Option<PacketId> {
        let id = self.allocate(self.next_id)?;
        self.reserved.push(id);
        Some(id)
    }

    /// Gives a reserved identifier back; whether it was reserved.
    pub fn unreserve(&mut self, id: PacketId) -> bool {
        let Some(at) = self.reserved.iter().position(|used| *used == id) else { return false };
        self.reserved.swap_remove(at);
        true
    }

    fn allocate(&mut self, wanted: PacketId) -> Option<PacketId> {
        match wanted.get().checked_sub(self.next_id.get()) {
            Some(ahead) if ahead < self.free_run => self.free_run -= ahead,
            _ => self.free_run = 0,
        }
        self.next_id = wanted;
        if self.free_run == 0 {
            self.find_free_run()?;
        }
        let id = self.next_id;
        self.next_id = id.next();
        self.free_run -= 1;
        Some(id)
    }

    /// Moves `next_id` to a free identifier and counts how many are free from there on. Walks over
    /// what is in flight once in up to 65,535 messages.
    fn find_free_run(&mut self) -> Option<()> {
        let mut used: Vec<u16> = self.entries.iter().map(|entry| entry.id.get()).collect();
        used.extend(self.reserved.iter().map(|id| id.get()));
        used.sort_unstable();
        for _ in 0..=used.len() {
            let next = self.next_id.get();
            let at = used.partition_point(|id| *id < next);
            match used.get(at) {
                Some(id) if *id == next => self.next_id = self.next_id.next(),
                Some(id) => {
                    self.free_run = id - next;
                    return Some(());
                }
                // Free up to the end of the range; what lies below is looked at when it is reached.
                None => {
                    self.free_run = (u16::MAX - next).saturating_add(1);
                    return Some(());
                }
            }
        }
        None
    }

    /// Where `id` is. Identifiers are given out in order, so without gaps an entry is as far from
    /// the front as its identifier is from the first one's, and gaps only bring it closer: the
    /// search goes from there to the front, and to the back only for what [`Outbound::restore`]
    /// put there out of order. This keeps acknowledgements in any order cheap in a large window.
    fn find(&self, id: PacketId) -> Result<usize, AckError> {
        let first = self.entries.front().ok_or(AckError::Unknown(id))?.id;
        let distance = usize::from(id.get().wrapping_sub(first.get()));
        let guess = distance.min(self.entries.len() - 1);
        let is_it = |at: &usize| self.entries[*at].id == id;
        let found = (0..=guess).rev().find(is_it);
        found.or_else(|| (guess + 1..self.entries.len()).find(is_it)).ok_or(AckError::Unknown(id))
    }

    fn find_at(&self, id: PacketId, step: Step) -> Result<usize, AckError> {
        let at = self.find(id)?;
        let is_at = self.entries[at].step;
        if is_at == step { Ok(at) } else { Err(is_at.mismatch(step, id)) }
    }

    fn remove(&mut self, at: usize) -> Option<M> {
        let entry = self.entries.remove(at);
        give_back(&mut self.entries);
        entry.map(|entry| entry.message)
    }

    /// The message in flight under `id`.
    pub fn get_mut(&mut self, id: PacketId) -> Option<&mut M> {
        let at = self.find(id).ok()?;
        Some(&mut self.entries[at].message)
    }

    /// PUBACK: the message is delivered.
    ///
    /// # Errors
    /// Nothing waits for this.
    pub fn puback(&mut self, id: PacketId) -> Result<M, AckError> {
        let at = self.find_at(id, Step::Puback)?;
        self.remove(at).ok_or(AckError::Unknown(id))
    }

    /// PUBREC: the receiver has the message; PUBREL is due. A repeated PUBREC is answered again.
    ///
    /// # Errors
    /// Nothing waits for this.
    pub fn pubrec(&mut self, id: PacketId) -> Result<&M, AckError> {
        let at = self.find(id)?;
        let entry = &mut self.entries[at];
        if entry.step == Step::Puback {
            return Err(AckError::WrongQoS(id));
        }
        entry.step = Step::Pubcomp;
        Ok(&entry.message)
    }

    /// PUBREC with an error: the receiver refuses, the exchange is over and no PUBREL is due
    /// ([MQTT-4.3.3-4]). So it is if an earlier PUBREC was none. Says whether there was one.
    ///
    /// # Errors
    /// Nothing waits for this.
    pub fn pubrec_refused(&mut self, id: PacketId) -> Result<(bool, M), AckError> {
        let at = self.find(id)?;
        let released = match self.entries[at].step {
            Step::Puback => return Err(AckError::WrongQoS(id)),
            Step::Pubrec => false,
            Step::Pubcomp => true,
        };
        self.remove(at).map(|message| (released, message)).ok_or(AckError::Unknown(id))
    }

    /// PUBCOMP: the exchange is over.
    ///
    /// # Errors
    /// Nothing waits for this.
    pub fn pubcomp(&mut self, id: PacketId) -> Result<M, AckError> {
        let at = self.find_at(id, Step::Pubcomp)?;
        self.remove(at).ok_or(AckError::Unknown(id))
    }

    /// Takes a message out that will not be sent after all.
    pub fn abandon(&mut self, id: PacketId) -> Option<M> {
        let at = self.find(id).ok()?;
        self.remove(at)
    }

    /// Everything in flight, as it has to be sent again on a new connection, in order.
    pub fn replay(&self) -> impl Iterator<Item = Replay<'_, M>> {
        self.entries.iter().map(Entry::replay)
    }

    /// Returns the packet that has to be sent again for `id`.
    #[must_use]
    pub fn replay_of(&self, id: PacketId) -> Option<Replay<'_, M>> {
        self.find(id).ok().map(|at| self.entries[at].replay())
    }

    /// Takes everything out, in order: identifier not needed, whether PUBREC had come, message.
    pub fn drain(&mut self) -> impl Iterator<Item = (bool, M)> {
        let entries = std::mem::take(&mut self.entries);
        self.free_run = 0;
        entries.into_iter().map(|entry| (entry.step == Step::Pubcomp, entry.message))
    }
}

impl<M> Entry<M> {
    fn replay(&self) -> Replay<'_, M> {
        let (packet_id, message) = (self.id, &self.message);
        match self.step {
            Step::Puback => Replay::Publish { packet_id, qos: QoS::AtLeastOnce, message },
            Step::Pubrec => Replay::Publish { packet_id, qos: QoS::ExactlyOnce, message },
            Step::Pubcomp => Replay::Pubrel { packet_id },
        }
    }
}
