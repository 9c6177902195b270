//! The functions of RFC 5802, section 2.2, with SHA-256.

use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::{digest, hmac, pbkdf2};

use crate::error::ScramError;

/// Bytes of a hash and of a key.
pub(crate) const KEY_BYTES: usize = 32;

/// A hash or a key.
pub(crate) type Key = [u8; KEY_BYTES];

pub(crate) fn hmac(key: &[u8], text: &[u8]) -> Key {
    key_of(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text).as_ref())
}

pub(crate) fn hash(text: &[u8]) -> Key {
    key_of(digest::digest(&digest::SHA256, text).as_ref())
}

/// `Hi`: takes as long as there are iterations.
pub(crate) fn salted(password: &[u8], salt: &[u8], iterations: NonZeroU32) -> Key {
    let mut key = Key::default();
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, password, &mut key);
    key
}

pub(crate) fn xor(one: &Key, other: &Key) -> Key {
    std::array::from_fn(|at| one[at] ^ other[at])
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], ScramError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| ScramError::Random)?;
    Ok(bytes)
}

/// Part of a nonce: base64 has no comma.
pub(crate) fn nonce() -> Result<String, ScramError> {
    Ok(STANDARD.encode(random::<18>()?))
}

/// A password as RFC 5802 prepares it. One that SASLprep does not accept, or that is not text, stays as it is, as in
/// PostgreSQL.
pub(crate) fn prepared(password: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(password).ok();
    let prepared = text.and_then(|text| stringprep::saslprep(text).ok());
    prepared.map_or_else(|| password.to_vec(), |text| text.into_owned().into_bytes())
}

fn key_of(bytes: &[u8]) -> Key {
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or_default())
}
