//! From one secret to all keys: HKDF-SHA256 (RFC 5869), and AES-128-GCM with a nonce that is counted.

use std::fmt;

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};

use super::{Hint, Rejected, SessionId};
use crate::NodeId;

/// Length of a secret, and of each key that is handed out.
pub const KEY_BYTES: usize = 32;

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

fn derive<const N: usize>(secret: &[u8], salt: &[u8], purpose: &[&[u8]]) -> [u8; N] {
    let mut key = [0; N];
    let extracted = Salt::new(HKDF_SHA256, salt).extract(secret);
    // HKDF gives up to 255 hashes of output; nobody asks for more than two.
    let filled = extracted.expand(purpose, Length(N)).and_then(|output| output.fill(&mut key));
    debug_assert!(filled.is_ok(), "{N} bytes are not too many");
    key
}

/// What a transfer's sender knows and all its keys come from.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; KEY_BYTES]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// A secret of random bytes.
    #[must_use]
    pub fn new(bytes: [u8; KEY_BYTES]) -> Secret {
        Secret(bytes)
    }

    /// What a receiver has to be given: enough to hear the sender and to speak for itself, and for no other
    /// receiver.
    #[must_use]
    pub fn receiver(&self, node: NodeId) -> ReceiverKeys {
        ReceiverKeys { node, down: self.down(), up: self.up(node) }
    }

    pub(super) fn down(&self) -> [u8; KEY_BYTES] {
        derive(&self.0, b"fulmar bulk", &[b"down"])
    }

    pub(super) fn up(&self, node: NodeId) -> [u8; KEY_BYTES] {
        derive(&self.0, b"fulmar bulk", &[b"up", &node.to_be_bytes()])
    }
}

/// A receiver's keys for one transfer.
#[derive(Clone, PartialEq, Eq)]
pub struct ReceiverKeys {
    /// Its identity, which the second key belongs to.
    pub node: NodeId,
    /// By which it hears the sender, as all receivers do.
    pub down: [u8; KEY_BYTES],
    /// By which it alone speaks to the sender.
    pub up: [u8; KEY_BYTES],
}

impl fmt::Debug for ReceiverKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceiverKeys({}, ..)", self.node)
    }
}

/// Tells transfers apart; says nothing of their keys.
pub(super) fn hint(down: &[u8]) -> Hint {
    derive(down, b"", &[b"hint"])
}

/// A session's key.
pub(super) struct Key {
    key: LessSafeKey,
    /// What the count is combined with.
    iv: [u8; NONCE_LEN],
}

impl Key {
    pub(super) fn down(down: &[u8], sender: SessionId) -> Option<Key> {
        Key::new(derive(down, &sender, &[b"session"]))
    }

    pub(super) fn up(up: &[u8], sender: SessionId, receiver: SessionId) -> Option<Key> {
        Key::new(derive(up, &[sender, receiver].concat(), &[b"session"]))
    }

    fn new(material: [u8; 16 + NONCE_LEN]) -> Option<Key> {
        let (key, iv) = material.split_first_chunk::<16>()?;
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key).ok()?);
        Some(Key { key, iv: iv.try_into().ok()? })
    }

    fn nonce(&self, count: u32) -> Nonce {
        let mut nonce = self.iv;
        for (byte, count) in nonce[NONCE_LEN - 4..].iter_mut().zip(count.to_be_bytes()) {
            *byte ^= count;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    /// Appends a message to the header that is in `out`, encrypted, and the tag. Each count may be used once.
    pub(super) fn encrypt(&self, count: u32, message: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let header_bytes = out.len();
        out.extend_from_slice(message);
        let (header, body) = out.split_at_mut(header_bytes);
        let nonce = self.nonce(count);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(&*header), body).ok()?;
        out.extend_from_slice(tag.as_ref());
        Some(())
    }

    /// Decrypts in place what follows the header.
    pub(super) fn decrypt<'a>(
        &self,
        count: u32,
        datagram: &'a mut [u8],
        header_bytes: usize,
    ) -> Result<&'a [u8], Rejected> {
        let (header, body) = datagram.split_at_mut(header_bytes);
        let decrypted = self.key.open_in_place(self.nonce(count), Aad::from(&*header), body);
        decrypted.map(|message| &*message).map_err(|_| Rejected::Forged)
    }
}
