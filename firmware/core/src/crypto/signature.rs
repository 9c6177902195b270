//! Signatures of servers: Ed25519 (RFC 8032) and ECDSA with P-256 and SHA-256, as features ask for.

/// The signature schemes offered, as RFC 8446, section 4.2.3, numbers them.
pub(crate) const SCHEMES: &[u8] = &[
    #[cfg(feature = "ed25519")]
    0x08,
    #[cfg(feature = "ed25519")]
    0x07,
    #[cfg(feature = "p256")]
    0x04,
    #[cfg(feature = "p256")]
    0x03,
];

#[cfg(feature = "ed25519")]
const ED25519: u16 = 0x0807;
#[cfg(feature = "p256")]
const ECDSA_P256_SHA256: u16 = 0x0403;

/// A public key that a server must prove to hold.
#[derive(Clone, Copy)]
pub(crate) enum ServerKey {
    /// None known yet: nothing verifies.
    None,
    #[cfg(feature = "ed25519")]
    Ed25519([u8; 32]),
    #[cfg(feature = "p256")]
    P256([u8; 65]),
}

impl ServerKey {
    /// Whether `signature` by scheme `scheme` over `message` was made with this key.
    #[inline(never)]
    pub(crate) fn verify(&self, scheme: u16, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::None => false,
            #[cfg(feature = "ed25519")]
            Self::Ed25519(key) => {
                scheme == ED25519 && super::ed25519::verify(key, message, signature)
            }
            #[cfg(feature = "p256")]
            Self::P256(key) => {
                scheme == ECDSA_P256_SHA256 && verify_p256(key, &[message], signature)
            }
        }
    }
}

/// Whether the DER-encoded ECDSA `signature` over the `parts` of a message was made with `key`.
#[cfg(feature = "p256")]
pub(crate) fn verify_p256(key: &[u8], parts: &[&[u8]], signature: &[u8]) -> bool {
    use p256::ecdsa::{Signature, VerifyingKey, signature::hazmat::PrehashVerifier};
    let Some(raw) = raw_signature(signature) else { return false };
    let (Ok(key), Ok(signature)) =
        (VerifyingKey::from_sec1_bytes(key), Signature::from_slice(&raw))
    else {
        return false;
    };
    key.verify_prehash(&super::sha256(parts), &signature).is_ok()
}

/// The two numbers of an ECDSA signature out of their DER SEQUENCE (RFC 3279, section 2.2.3), strictly:
/// nothing left over, no needless zeros, no negative numbers.
#[cfg(feature = "p256")]
fn raw_signature(der: &[u8]) -> Option<[u8; 64]> {
    let mut outer = crate::bytes::Reader::new(der);
    if outer.u8()? != 0x30 {
        return None;
    }
    let mut inner = outer.block8()?;
    let mut raw = [0; 64];
    for half in raw.chunks_mut(32) {
        if inner.u8()? != 0x02 {
            return None;
        }
        let number = match inner.block8()?.rest() {
            [0, rest @ ..] if rest.first()? & 0x80 != 0 => rest,
            number @ [1..=0x7f, ..] => number,
            _ => return None,
        };
        half.get_mut(32usize.checked_sub(number.len())?..)?.copy_from_slice(number);
    }
    (outer.is_empty() && inner.is_empty()).then_some(raw)
}
