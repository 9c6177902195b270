//! A receiver's end: opens what senders of its transfer sealed, answers each by itself.

use super::keys::{Key, ReceiverKeys, hint};
use super::window::Window;
use super::{Counts, DOWN, Hint, Rejected, SealError, Sealed, Session, UP};
use crate::NodeId;
use crate::wire::Message;

/// Runs of senders remembered. Whoever has recorded more can have the oldest forgotten, and then say what it
/// said once more, which changes nothing.
const MAX_SESSIONS: usize = 32;

struct Heard {
    session: Session,
    key: Key,
    window: Window,
    /// The sender and which run of it: a session is of one.
    identity: (NodeId, u16),
    answer: Key,
}

/// Opens what a receiver gets and seals what it answers.
pub struct ReceiverGuard {
    keys: ReceiverKeys,
    hint: Hint,
    session: Session,
    /// The latest last.
    heard: Vec<Heard>,
    /// Of answers, whoever they go to: a sender that was forgotten and comes again has the same key.
    next: Option<u32>,
    counts: Counts,
}

impl ReceiverGuard {
    /// A guard for one run of a receiver, whose identity is that of the keys. `session` is random.
    #[must_use]
    pub fn new(keys: ReceiverKeys, session: [u8; super::SESSION_BYTES]) -> ReceiverGuard {
        let hint = hint(&keys.down);
        let (heard, counts) = (Vec::new(), Counts::default());
        ReceiverGuard { keys, hint, session, heard, next: Some(0), counts }
    }

    /// Opens what a sender sealed, in place.
    ///
    /// # Errors
    /// It is not to be believed; it was counted.
    pub fn open<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Rejected> {
        let opened = self.try_open(datagram);
        self.counts.count(opened)
    }

    fn try_open<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Rejected> {
        let sealed = Sealed::read(datagram, DOWN).ok_or(Rejected::Foreign)?;
        let Sealed { hint, session, count, header_bytes, .. } = sealed;
        if hint != self.hint {
            return Err(Rejected::Foreign);
        }
        if let Some(at) = self.heard.iter().position(|heard| heard.session == session) {
            let heard = &mut self.heard[at];
            if !heard.window.is_fresh(count) {
                return Err(Rejected::Replayed);
            }
            let message = heard.key.open(count, datagram, header_bytes)?;
            heard.window.insert(count);
            let same = identity(message) == Some(heard.identity);
            // The latest is last; nearly always it is there already.
            self.heard[at..].rotate_left(1);
            return same.then_some(message).ok_or(Rejected::Impostor);
        }
        let key = Key::down(&self.keys.down, session).ok_or(Rejected::Forged)?;
        let message = key.open(count, datagram, header_bytes)?;
        let identity = identity(message).ok_or(Rejected::Impostor)?;
        let answer = Key::up(&self.keys.up, session, self.session).ok_or(Rejected::Forged)?;
        let mut window = Window::default();
        window.insert(count);
        if self.heard.len() >= MAX_SESSIONS {
            self.heard.remove(0);
        }
        self.heard.push(Heard { session, key, window, identity, answer });
        Ok(message)
    }

    /// Seals an answer into `out`, for the sender that it names.
    ///
    /// # Errors
    /// There is no such sender, or there were too many answers.
    pub fn seal(&mut self, message: &[u8], out: &mut Vec<u8>) -> Result<(), SealError> {
        let Ok(Message::Feedback(feedback)) = Message::decode(message) else {
            return Err(SealError::Unknown);
        };
        let to = (feedback.sender, feedback.instance);
        let heard = self.heard.iter().rev().find(|heard| heard.identity == to);
        let heard = heard.ok_or(SealError::Unknown)?;
        let count = self.next.ok_or(SealError::Exhausted)?;
        let (hint, session, node) = (self.hint, self.session, self.keys.node);
        Sealed { hint, node, session, count, header_bytes: 0 }.write(UP, out);
        heard.answer.seal(count, message, out).ok_or(SealError::Exhausted)?;
        self.next = count.checked_add(1);
        Ok(())
    }

    /// What was not taken.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

/// Who a sender's message says it is from.
fn identity(message: &[u8]) -> Option<(NodeId, u16)> {
    let head = match Message::decode(message).ok()? {
        Message::Object(message) => message.head,
        Message::Command(command) => command.head,
        Message::Feedback(_) => return None,
    };
    Some((head.source, head.instance))
}
