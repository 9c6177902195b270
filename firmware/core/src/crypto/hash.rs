//! SHA-256, HMAC and HKDF as TLS 1.3 uses them (RFC 8446, section 7.1; RFC 5869).

use sha2::{Digest, Sha256};

pub(crate) const HASH_BYTES: usize = 32;
pub(crate) type Hash = [u8; HASH_BYTES];

/// SHA-256 of nothing.
pub(crate) const EMPTY_HASH: Hash = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
    0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

/// A hash that goes on: that of all handshake messages so far.
pub(crate) struct Transcript(Option<Sha256>);

impl Transcript {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    pub(crate) fn restart(&mut self) {
        self.0 = Some(Sha256::new());
    }

    pub(crate) fn add(&mut self, message: &[u8]) {
        if let Some(hash) = &mut self.0 {
            hash.update(message);
        }
    }

    #[inline(never)]
    pub(crate) fn hash(&self) -> Hash {
        self.0.as_ref().map_or(EMPTY_HASH, |hash| hash.clone().finalize().into())
    }
}

/// SHA-256 of all `parts`, one after the other.
#[inline(never)]
pub(crate) fn sha256(parts: &[&[u8]]) -> Hash {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

/// HMAC-SHA-256 over all `parts`. No key in here is longer than a hash; what is beyond a block is not used.
#[inline(never)]
pub(crate) fn hmac(key: &[u8], parts: &[&[u8]]) -> Hash {
    let mut block = [0x36; 64];
    for (byte, key) in block.iter_mut().zip(key) {
        *byte ^= key;
    }
    let mut inner = Sha256::new();
    inner.update(block);
    for part in parts {
        inner.update(part);
    }
    for byte in &mut block {
        *byte ^= 0x36 ^ 0x5c;
    }
    sha256(&[&block, &inner.finalize()])
}

/// HKDF-Expand-Label; `out` is at most a hash long, so that one block of HKDF is enough.
#[inline(never)]
pub(crate) fn expand_label(secret: &[u8], label: &str, context: &[u8], out: &mut [u8]) {
    let label_len = (6 + label.len()) as u8;
    let head = [0, out.len() as u8, label_len];
    let block =
        hmac(secret, &[&head, b"tls13 ", label.as_bytes(), &[context.len() as u8], context, &[1]]);
    for (byte, block) in out.iter_mut().zip(block) {
        *byte = block;
    }
}

/// Derive-Secret, the messages being hashed already.
pub(crate) fn derive_secret(secret: &Hash, label: &str, transcript: &Hash) -> Hash {
    let mut out = [0; HASH_BYTES];
    expand_label(secret, label, transcript, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_4231_test_case_2() {
        let expected: Hash = [
            0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e, 0x6a, 0x04, 0x24, 0x26, 0x08, 0x95,
            0x75, 0xc7, 0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9,
            0x64, 0xec, 0x38, 0x43,
        ];
        assert_eq!(hmac(b"Jefe", &[b"what do ya want ", b"for nothing?"]), expected);
        assert_eq!(sha256(&[]), EMPTY_HASH);
    }
}
