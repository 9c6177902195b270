//! The receiver's end: decrypts the datagrams of its transfer's senders, and encrypts answers to each of them.

use super::keys::{Key, ReceiverKeys, hint};
use super::window::Window;
use super::{Counts, DOWN, EncryptError, Header, Hint, Rejected, SessionId, UP};
use crate::NodeId;
use crate::wire::Message;

/// Sessions of senders that are remembered. Replaying more recorded sessions evicts the oldest, whose datagrams could
/// then be replayed once, which changes nothing.
const MAX_SESSIONS: usize = 32;

/// A sender from which an authentic datagram was received.
struct KnownSender {
    session: SessionId,
    key: Key,
    window: Window,
    /// The sender and its instance: a session belongs to one instance.
    identity: (NodeId, u16),
    answer: Key,
}

/// Decrypts what a receiver receives and encrypts its answers.
pub struct ReceiverEncryption {
    keys: ReceiverKeys,
    hint: Hint,
    session: SessionId,
    /// In order of use, the latest last.
    heard: Vec<KnownSender>,
    /// Counts answers to all senders: a sender that was forgotten and returns has the same key.
    next: Option<u32>,
    counts: Counts,
}

impl ReceiverEncryption {
    /// Encryption for one run of a receiver, whose identity is that of the keys. `session` is random.
    #[must_use]
    pub fn new(keys: ReceiverKeys, session: [u8; super::SESSION_BYTES]) -> ReceiverEncryption {
        let hint = hint(&keys.down);
        let (heard, counts) = (Vec::new(), Counts::default());
        ReceiverEncryption { keys, hint, session, heard, next: Some(0), counts }
    }

    /// Decrypts a sender's datagram in place.
    ///
    /// # Errors
    /// The datagram is not authentic; it was counted.
    pub fn decrypt<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Rejected> {
        let decrypted = self.try_decrypt(datagram);
        self.counts.count(decrypted)
    }

    fn try_decrypt<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Rejected> {
        let encrypted = Header::read(datagram, DOWN).ok_or(Rejected::Foreign)?;
        let Header { hint, session, count, header_bytes, .. } = encrypted;
        if hint != self.hint {
            return Err(Rejected::Foreign);
        }
        if let Some(at) = self.heard.iter().position(|heard| heard.session == session) {
            let heard = &mut self.heard[at];
            if !heard.window.is_fresh(count) {
                return Err(Rejected::Replayed);
            }
            let message = heard.key.decrypt(count, datagram, header_bytes)?;
            heard.window.insert(count);
            let same = identity(message) == Some(heard.identity);
            // Nearly always it is already the last.
            self.heard[at..].rotate_left(1);
            return same.then_some(message).ok_or(Rejected::Impostor);
        }
        let key = Key::down(&self.keys.down, session).ok_or(Rejected::Forged)?;
        let message = key.decrypt(count, datagram, header_bytes)?;
        let identity = identity(message).ok_or(Rejected::Impostor)?;
        let answer = Key::up(&self.keys.up, session, self.session).ok_or(Rejected::Forged)?;
        let mut window = Window::default();
        window.insert(count);
        if self.heard.len() >= MAX_SESSIONS {
            self.heard.remove(0);
        }
        self.heard.push(KnownSender { session, key, window, identity, answer });
        Ok(message)
    }

    /// Encrypts an answer into `out`, for the sender that it names.
    ///
    /// # Errors
    /// There is no such sender, or there were too many answers.
    pub fn encrypt(&mut self, message: &[u8], out: &mut Vec<u8>) -> Result<(), EncryptError> {
        let Ok(Message::Feedback(feedback)) = Message::decode(message) else {
            return Err(EncryptError::Unknown);
        };
        let to = (feedback.sender, feedback.instance);
        let heard = self.heard.iter().rev().find(|heard| heard.identity == to);
        let heard = heard.ok_or(EncryptError::Unknown)?;
        let count = self.next.ok_or(EncryptError::Exhausted)?;
        let (hint, session, node) = (self.hint, self.session, self.keys.node);
        Header { hint, node, session, count, header_bytes: 0 }.write(UP, out);
        heard.answer.encrypt(count, message, out).ok_or(EncryptError::Exhausted)?;
        self.next = count.checked_add(1);
        Ok(())
    }

    /// Numbers of refused datagrams.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

/// The sender and instance that a message names.
fn identity(message: &[u8]) -> Option<(NodeId, u16)> {
    let head = match Message::decode(message).ok()? {
        Message::Object(message) => message.head,
        Message::Command(command) => command.head,
        Message::Feedback(_) => return None,
    };
    Some((head.source, head.instance))
}
