//! The sender's end: encrypts for all receivers with one key, decrypts each receiver's datagrams with its own.

use std::collections::HashMap;

use super::keys::{Key, hint};
use super::window::Window;
use super::{Counts, DOWN, EncryptError, Header, Hint, Rejected, Secret, SessionId, UP};
use crate::NodeId;
use crate::wire::Message;

/// Receivers whose datagrams are accepted.
const MAX_RECEIVERS: usize = 1024;
/// Times a receiver may restart; its earlier sessions are remembered and refused.
const MAX_RESTARTS: usize = 32;

struct Peer {
    up: [u8; super::KEY_BYTES],
    session: SessionId,
    key: Key,
    window: Window,
    retired: Vec<SessionId>,
}

/// Encrypts what a sender sends and decrypts what it receives.
pub struct SenderEncryption {
    secret: Secret,
    hint: Hint,
    session: SessionId,
    key: Option<Key>,
    next: Option<u32>,
    peers: HashMap<NodeId, Peer>,
    counts: Counts,
}

impl SenderEncryption {
    /// Encryption for one run of a sender. `session` is random: reusing one would reveal the data.
    #[must_use]
    pub fn new(secret: &Secret, session: [u8; super::SESSION_BYTES]) -> SenderEncryption {
        let down = secret.down();
        SenderEncryption {
            secret: secret.clone(),
            hint: hint(&down),
            session,
            key: Key::down(&down, session),
            next: Some(0),
            peers: HashMap::new(),
            counts: Counts::default(),
        }
    }

    /// Encrypts a message into `out`.
    ///
    /// # Errors
    /// The session has encrypted 2^32 messages.
    pub fn encrypt(&mut self, message: &[u8], out: &mut Vec<u8>) -> Result<(), EncryptError> {
        let count = self.next.ok_or(EncryptError::Exhausted)?;
        let (hint, session) = (self.hint, self.session);
        Header { hint, node: 0, session, count, header_bytes: 0 }.write(DOWN, out);
        let key = self.key.as_ref().ok_or(EncryptError::Exhausted)?;
        key.encrypt(count, message, out).ok_or(EncryptError::Exhausted)?;
        self.next = count.checked_add(1);
        Ok(())
    }

    /// Decrypts a receiver's datagram in place.
    ///
    /// # Errors
    /// The datagram is not authentic; it was counted.
    pub fn decrypt<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Rejected> {
        let decrypted = self.try_decrypt(datagram);
        self.counts.count(decrypted)
    }

    fn try_decrypt<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Rejected> {
        let encrypted = Header::read(datagram, UP).ok_or(Rejected::Foreign)?;
        let Header { hint, node, session, count, header_bytes } = encrypted;
        if hint != self.hint {
            return Err(Rejected::Foreign);
        }
        let known = self.peers.get_mut(&node);
        if let Some(peer) = known.filter(|peer| peer.session == session) {
            if !peer.window.is_fresh(count) {
                return Err(Rejected::Replayed);
            }
            let message = peer.key.decrypt(count, datagram, header_bytes)?;
            peer.window.insert(count);
            return named(message, node);
        }
        self.begin(&encrypted)?.decrypt(datagram, header_bytes, count, node, self)
    }

    /// The state of an unknown or restarted receiver, if its datagram is authentic.
    fn begin(&self, encrypted: &Header) -> Result<Beginning, Rejected> {
        let (mut up, mut retired) = (None, Vec::new());
        match self.peers.get(&encrypted.node) {
            Some(peer) if peer.retired.contains(&encrypted.session) => {
                return Err(Rejected::Replayed);
            }
            Some(peer) if peer.retired.len() >= MAX_RESTARTS => return Err(Rejected::Full),
            Some(peer) => {
                up = Some(peer.up);
                retired.clone_from(&peer.retired);
                retired.push(peer.session);
            }
            None if self.peers.len() >= MAX_RECEIVERS => return Err(Rejected::Full),
            None => {}
        }
        let up = up.unwrap_or_else(|| self.secret.up(encrypted.node));
        let key = Key::up(&up, self.session, encrypted.session).ok_or(Rejected::Forged)?;
        let (session, window) = (encrypted.session, Window::default());
        Ok(Beginning(Peer { up, session, key, window, retired }))
    }

    /// Numbers of refused datagrams.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

/// A receiver that is added only if its first datagram is authentic.
struct Beginning(Peer);

impl Beginning {
    fn decrypt<'a>(
        mut self,
        datagram: &'a mut [u8],
        header_bytes: usize,
        count: u32,
        node: NodeId,
        encryption: &mut SenderEncryption,
    ) -> Result<&'a [u8], Rejected> {
        let message = self.0.key.decrypt(count, datagram, header_bytes)?;
        self.0.window.insert(count);
        encryption.peers.insert(node, self.0);
        named(message, node)
    }
}

/// The message, if it names `node` as its source.
fn named(message: &[u8], node: NodeId) -> Result<&[u8], Rejected> {
    match Message::decode(message) {
        Ok(Message::Feedback(feedback)) if feedback.source == node => Ok(message),
        _ => Err(Rejected::Impostor),
    }
}
