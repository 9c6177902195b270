//! What QUIC and TLS need of cryptography, bound to the one cipher suite TLS_AES_128_GCM_SHA256. The
//! primitives are RustCrypto's and dalek's; here are GCM (for its size), key derivation and packet keys.

mod aead;
mod aes;
#[cfg(feature = "ed25519")]
mod ed25519;
mod hash;
mod keys;
mod signature;

pub(crate) use aead::TAG_BYTES;
pub(crate) use hash::{
    EMPTY_HASH, HASH_BYTES, Hash, Transcript, derive_secret, expand_label, hmac, sha256,
};
pub(crate) use keys::{PacketKeys, initial_keys, retry_tag};
#[cfg(feature = "x509")]
pub(crate) use signature::verify_p256;
pub(crate) use signature::{SCHEMES, ServerKey};

/// Whether two slices are equal, without telling by its time where they differ.
#[inline(never)]
pub(crate) fn equal(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len()
        && left.iter().zip(right).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}
