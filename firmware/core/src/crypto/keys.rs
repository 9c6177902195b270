//! Packet protection (RFC 9001, section 5): keys of one direction at one encryption level, header masks,
//! key update, Initial secrets, and the integrity tag of Retry packets. No state of connections.

use super::{Hash, TAG_BYTES, aead, expand_label, hmac};

/// Keys that protect packets of one direction and level; all zero until derived.
#[derive(Clone)]
pub(crate) struct PacketKeys {
    secret: Hash,
    key: [u8; 16],
    iv: [u8; 12],
    header: [u8; 16],
}

impl PacketKeys {
    pub(crate) const fn none() -> Self {
        Self { secret: [0; 32], key: [0; 16], iv: [0; 12], header: [0; 16] }
    }

    #[inline(never)]
    pub(crate) fn derive(&mut self, secret: &Hash) {
        expand_label(secret, "quic hp", &[], &mut self.header);
        self.set(secret);
    }

    /// The keys of the next phase; header protection stays (RFC 9001, section 6.1).
    pub(crate) fn update(&mut self) {
        let mut next = [0; 32];
        expand_label(&self.secret, "quic ku", &[], &mut next);
        self.set(&next);
    }

    fn set(&mut self, secret: &Hash) {
        self.secret = *secret;
        expand_label(secret, "quic key", &[], &mut self.key);
        expand_label(secret, "quic iv", &[], &mut self.iv);
    }

    fn nonce(&self, number: u32) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, number) in nonce[8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }

    /// Key, IV and header protection key.
    #[cfg(test)]
    pub(crate) fn parts(&self) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        (self.key.into(), self.iv.into(), self.header.into())
    }

    /// The mask of header protection; `sample` is 16 bytes long, a shorter one counts as zeros.
    pub(crate) fn mask(&self, sample: &[u8]) -> [u8; 16] {
        let mut block = sample.try_into().unwrap_or_default();
        aead::encrypt_block(&self.header, &mut block);
        block
    }

    pub(crate) fn seal(&self, number: u32, header: &[u8], payload: &mut [u8]) -> [u8; TAG_BYTES] {
        aead::seal(&self.key, &self.nonce(number), header, payload)
    }

    /// Decrypts in place; untouched if it is not authentic.
    pub(crate) fn open(&self, number: u32, header: &[u8], payload: &mut [u8], tag: &[u8]) -> bool {
        aead::open(&self.key, &self.nonce(number), header, payload, tag)
    }
}

/// Derives the keys of Initial packets, the client's and the server's, from the connection ID the client
/// chose first (RFC 9001, section 5.2).
#[inline(never)]
pub(crate) fn initial_keys(id: &[u8], client: &mut PacketKeys, server: &mut PacketKeys) {
    const SALT: [u8; 20] = [
        0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c,
        0xad, 0xcc, 0xbb, 0x7f, 0x0a,
    ];
    let initial = hmac(&SALT, &[id]);
    let mut secret = [0; 32];
    expand_label(&initial, "client in", &[], &mut secret);
    client.derive(&secret);
    expand_label(&initial, "server in", &[], &mut secret);
    server.derive(&secret);
}

/// The integrity tag of a Retry packet (RFC 9001, section 5.8); `pseudo` is the connection ID the client
/// chose, with its length in front, and the packet without its tag.
pub(crate) fn retry_tag(pseudo: &[u8]) -> [u8; TAG_BYTES] {
    const KEY: [u8; 16] = [
        0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8,
        0x4e,
    ];
    const NONCE: [u8; 12] =
        [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];
    aead::seal(&KEY, &NONCE, pseudo, &mut [])
}
