//! The sender's end: seals for all, opens what each receiver sealed by itself.

use std::collections::HashMap;

use super::keys::{Key, hint};
use super::window::Window;
use super::{Counts, DOWN, Hint, Rejected, SealError, Sealed, Secret, Session, UP};
use crate::NodeId;
use crate::wire::Message;

/// Receivers listened to.
const MAX_RECEIVERS: usize = 1024;
/// Times one of them may begin anew; what it had used before must not be taken again.
const MAX_RESTARTS: usize = 32;

struct Peer {
    up: [u8; super::KEY_BYTES],
    session: Session,
    key: Key,
    window: Window,
    retired: Vec<Session>,
}

/// Seals what a sender sends and opens what it gets.
pub struct SenderGuard {
    secret: Secret,
    hint: Hint,
    session: Session,
    key: Option<Key>,
    next: Option<u32>,
    peers: HashMap<NodeId, Peer>,
    counts: Counts,
}

impl SenderGuard {
    /// A guard for one run of a sender. `session` is random: one that was used before would
    /// reveal what is sent.
    #[must_use]
    pub fn new(secret: &Secret, session: [u8; super::SESSION_BYTES]) -> SenderGuard {
        let down = secret.down();
        SenderGuard {
            secret: secret.clone(),
            hint: hint(&down),
            session,
            key: Key::down(&down, session),
            next: Some(0),
            peers: HashMap::new(),
            counts: Counts::default(),
        }
    }

    /// Seals a message into `out`.
    ///
    /// # Errors
    /// There were too many.
    pub fn seal(&mut self, message: &[u8], out: &mut Vec<u8>) -> Result<(), SealError> {
        let count = self.next.ok_or(SealError::Exhausted)?;
        let (hint, session) = (self.hint, self.session);
        Sealed { hint, node: 0, session, count, header_bytes: 0 }.write(DOWN, out);
        let key = self.key.as_ref().ok_or(SealError::Exhausted)?;
        key.seal(count, message, out).ok_or(SealError::Exhausted)?;
        self.next = count.checked_add(1);
        Ok(())
    }

    /// Opens what a receiver sealed, in place.
    ///
    /// # Errors
    /// It is not to be believed; it was counted.
    pub fn open<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Rejected> {
        let opened = self.try_open(datagram);
        self.counts.count(opened)
    }

    fn try_open<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Rejected> {
        let sealed = Sealed::read(datagram, UP).ok_or(Rejected::Foreign)?;
        let Sealed { hint, node, session, count, header_bytes } = sealed;
        if hint != self.hint {
            return Err(Rejected::Foreign);
        }
        let known = self.peers.get_mut(&node);
        if let Some(peer) = known.filter(|peer| peer.session == session) {
            if !peer.window.is_fresh(count) {
                return Err(Rejected::Replayed);
            }
            let message = peer.key.open(count, datagram, header_bytes)?;
            peer.window.insert(count);
            return named(message, node);
        }
        self.begin(&sealed)?.open(datagram, header_bytes, count, node, self)
    }

    /// What a receiver not known, or begun anew, would have to use.
    fn begin(&self, sealed: &Sealed) -> Result<Beginning, Rejected> {
        let (mut up, mut retired) = (None, Vec::new());
        match self.peers.get(&sealed.node) {
            Some(peer) if peer.retired.contains(&sealed.session) => return Err(Rejected::Replayed),
            Some(peer) if peer.retired.len() >= MAX_RESTARTS => return Err(Rejected::Full),
            Some(peer) => {
                up = Some(peer.up);
                retired.clone_from(&peer.retired);
                retired.push(peer.session);
            }
            None if self.peers.len() >= MAX_RECEIVERS => return Err(Rejected::Full),
            None => {}
        }
        let up = up.unwrap_or_else(|| self.secret.up(sealed.node));
        let key = Key::up(&up, self.session, sealed.session).ok_or(Rejected::Forged)?;
        let (session, window) = (sealed.session, Window::default());
        Ok(Beginning(Peer { up, session, key, window, retired }))
    }

    /// What was not taken.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

/// A receiver that is one only if its first datagram is genuine.
struct Beginning(Peer);

impl Beginning {
    fn open<'a>(
        mut self,
        datagram: &'a mut [u8],
        header_bytes: usize,
        count: u32,
        node: NodeId,
        guard: &mut SenderGuard,
    ) -> Result<&'a [u8], Rejected> {
        let message = self.0.key.open(count, datagram, header_bytes)?;
        self.0.window.insert(count);
        guard.peers.insert(node, self.0);
        named(message, node)
    }
}

/// The message, if it is of whom it says.
fn named(message: &[u8], node: NodeId) -> Result<&[u8], Rejected> {
    match Message::decode(message) {
        Ok(Message::Feedback(feedback)) if feedback.source == node => Ok(message),
        _ => Err(Rejected::Impostor),
    }
}
