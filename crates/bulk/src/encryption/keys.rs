//! Derives all keys from one secret with HKDF-SHA256 (RFC 5869); AES-128-GCM with a counter as nonce.

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
    // HKDF outputs up to 255 hashes; no key needs more than two.
    let filled = extracted.expand(purpose, Length(N)).and_then(|output| output.fill(&mut key));
    debug_assert!(filled.is_ok(), "{N} bytes are not too many");
    key
}

/// The secret of a transfer, known to its sender, from which all keys are derived.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; KEY_BYTES]);

fulmar_text::opaque_debug!(Secret);

impl Secret {
    /// A secret of random bytes.
    #[must_use]
    pub fn new(bytes: [u8; KEY_BYTES]) -> Secret {
        Secret(bytes)
    }

    /// The keys that a receiver needs to decrypt the sender's datagrams and to encrypt its own. They do not let it
    /// send as another receiver.
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
    /// Identity of the node to which `up` belongs.
    pub node: NodeId,
    /// Decrypts the sender's datagrams; all receivers have this key.
    pub down: [u8; KEY_BYTES],
    /// Encrypts this receiver's datagrams; only the sender also has this key.
    pub up: [u8; KEY_BYTES],
}

fulmar_text::opaque_debug!(ReceiverKeys { node });

/// Distinguishes transfers; reveals nothing of their keys.
pub(super) fn hint(down: &[u8]) -> Hint {
    derive(down, b"", &[b"hint"])
}

/// A session's key.
pub(super) struct Key {
    key: LessSafeKey,
    /// Combined with the counter into the nonce.
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

    /// Encrypts a message, and appends it with its tag to the header in `out`. Each count may be used once.
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
