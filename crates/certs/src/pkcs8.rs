//! Private keys as files that everything reads: PKCS#8, as PEM (RFC 5958, RFC 7468 section 10).
//!
//! Keys of Ed25519 are made in version 2, which has the public key too. Much that reads keys, OpenSSL's
//! bindings for Python among them, knows version 1 alone (RFC 8410 section 7): that is what is written.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::KeyPair;

/// Version, algorithm and the octets around the key, as both versions have them behind what says how long all is.
const ED25519_V2: &[u8] = b"\x02\x01\x01\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";
const ED25519_V1: &[u8] = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";
/// Bytes of the private key itself.
const ED25519_BYTES: usize = 32;

/// The key's file.
pub(crate) fn pem(key: &KeyPair) -> String {
    match ed25519_v1(key.serialized_der()) {
        Some(der) => {
            // 48 bytes: one line of 64 characters.
            let text = STANDARD.encode(der);
            format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")
        }
        None => key.serialize_pem(),
    }
}

/// An Ed25519 key of version 2 in version 1; `None` for any other.
fn ed25519_v1(der: &[u8]) -> Option<Vec<u8>> {
    // A tag and one byte of length come first.
    let key = der.get(2..)?.strip_prefix(ED25519_V2)?.get(..ED25519_BYTES)?;
    Some([ED25519_V1, key].concat())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use rcgen::PublicKeyData as _;

    #[test]
    fn an_ed25519_key_is_written_in_version_1_and_stays_the_same() {
        let made = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let read = KeyPair::from_pem(&pem(&made)).unwrap();
        assert_eq!(read.serialized_der().len(), ED25519_V1.len() + ED25519_BYTES);
        assert_eq!(read.der_bytes(), made.der_bytes(), "the public key");
        assert_eq!(pem(&read), read.serialize_pem().replace("\r\n", "\n"));
    }

    #[test]
    fn other_keys_are_written_as_they_are() {
        let made = KeyPair::generate().unwrap();
        assert_eq!(pem(&made), made.serialize_pem());
    }
}
