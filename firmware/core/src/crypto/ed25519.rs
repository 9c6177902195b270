//! Verification of Ed25519 signatures (RFC 8032, section 5.1.7) on curve25519-dalek's points. No signing.
//!
//! The crate `ed25519-dalek` takes 5 KB of flash more: it reduces scalars modulo the group's order and
//! keeps tables of multiples, to be fast. Here the equation is worked out bit by bit, which takes some
//! three times as long and is needed once for a server that is not known yet. All that is looked at is
//! public, so its time may depend on it. As strict as `verify_strict`, which the tests compare it with.

use curve25519_dalek::constants::ED25519_BASEPOINT_POINT;
use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint};
use curve25519_dalek::traits::Identity;
use sha2::{Digest, Sha512};

/// The order of the base point (section 5.1), lowest byte first.
const ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

/// Whether `signature` over `message` was made with the private key of `key`. Keys and signatures whose
/// points are of small order are refused: they would suit any message.
pub(super) fn verify(key: &[u8; 32], message: &[u8], signature: &[u8]) -> bool {
    let Some((r, s)) = signature.split_first_chunk::<32>() else { return false };
    let Some(s) = s.as_array::<32>().filter(|s| is_below_order(s)) else { return false };
    let Some(point) = CompressedEdwardsY(*key).decompress() else { return false };
    if is_small_order(&point) {
        return false;
    }
    let mut hash = Sha512::new();
    for part in [r, key, message] {
        hash.update(part);
    }
    let expected = combine(s, &hash.finalize().into(), &-point);
    // Equal to what a point is written as, so canonical too.
    expected.compress().0 == *r && !is_small_order(&expected)
}

/// Whether eight times the point is the neutral one.
fn is_small_order(point: &EdwardsPoint) -> bool {
    let mut sum = *point;
    for _ in 0..3 {
        sum = sum + sum;
    }
    let [first, rest @ ..] = sum.compress().0;
    first == 1 && rest == [0; 31]
}

/// Whether a number, lowest byte first, is below the order: a larger one would be a second signature.
fn is_below_order(s: &[u8; 32]) -> bool {
    s.iter().rev().lt(ORDER.iter().rev())
}

/// `s` times the base point plus `k` times `point`. That `k` is not reduced makes no difference to the sum.
fn combine(s: &[u8; 32], k: &[u8; 64], point: &EdwardsPoint) -> EdwardsPoint {
    let bit =
        |bytes: &[u8], at: usize| bytes.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 != 0);
    let mut sum = EdwardsPoint::identity();
    for at in (0..512).rev() {
        sum = sum + sum;
        for (number, point) in [(&s[..], &ED25519_BASEPOINT_POINT), (&k[..], point)] {
            if bit(number, at) {
                sum += point;
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::sha256;
    use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};

    fn reference(key: &[u8; 32], message: &[u8], signature: &[u8]) -> bool {
        let (Ok(key), Ok(signature)) =
            (VerifyingKey::from_bytes(key), Signature::from_slice(signature))
        else {
            return false;
        };
        key.verify_strict(message, &signature).is_ok()
    }

    fn signed(seed: u8) -> ([u8; 32], [u8; 32], [u8; 64]) {
        let key = SigningKey::from_bytes(&sha256(&[&[seed]]));
        let message = sha256(&[b"message", &[seed]]);
        (key.verifying_key().to_bytes(), message, key.sign(&message).to_bytes())
    }

    /// RFC 8032, section 7.1, test 1: the empty message.
    #[test]
    fn rfc_8032_test_1() {
        let key = [
            0xd7, 0x5a, 0x98, 0x01, 0x82, 0xb1, 0x0a, 0xb7, 0xd5, 0x4b, 0xfe, 0xd3, 0xc9, 0x64,
            0x07, 0x3a, 0x0e, 0xe1, 0x72, 0xf3, 0xda, 0xa6, 0x23, 0x25, 0xaf, 0x02, 0x1a, 0x68,
            0xf7, 0x07, 0x51, 0x1a,
        ];
        let signature = [
            0xe5, 0x56, 0x43, 0x00, 0xc3, 0x60, 0xac, 0x72, 0x90, 0x86, 0xe2, 0xcc, 0x80, 0x6e,
            0x82, 0x8a, 0x84, 0x87, 0x7f, 0x1e, 0xb8, 0xe5, 0xd9, 0x74, 0xd8, 0x73, 0xe0, 0x65,
            0x22, 0x49, 0x01, 0x55, 0x5f, 0xb8, 0x82, 0x15, 0x90, 0xa3, 0x3b, 0xac, 0xc6, 0x1e,
            0x39, 0x70, 0x1c, 0xf9, 0xb4, 0x6b, 0xd2, 0x5b, 0xf5, 0xf0, 0x59, 0x5b, 0xbe, 0x24,
            0x65, 0x51, 0x41, 0x43, 0x8e, 0x7a, 0x10, 0x0b,
        ];
        assert!(verify(&key, &[], &signature));
        assert!(!verify(&key, &[0], &signature));
        assert!(!verify(&key, &[], &signature[..63]));
    }

    #[test]
    fn it_judges_as_ed25519_dalek_does() {
        for seed in 0..20 {
            let (key, message, signature) = signed(seed);
            assert!(verify(&key, &message, &signature), "{seed}");
            for bit in (usize::from(seed)..512).step_by(97) {
                let (mut bad_key, mut bad) = (key, signature);
                bad[bit / 8] ^= 1 << (bit % 8);
                bad_key[bit / 16] ^= 1 << (bit % 8);
                assert!(!verify(&key, &message, &bad) && !reference(&key, &message, &bad));
                assert!(!verify(&bad_key, &message, &signature));
            }
        }
    }

    /// The same number modulo the order, written a second way.
    #[test]
    fn a_signature_has_one_form() {
        let (key, message, mut signature) = signed(1);
        let mut carry = 0;
        for (byte, order) in signature[32..].iter_mut().zip(ORDER) {
            let sum = u16::from(*byte) + u16::from(order) + carry;
            (*byte, carry) = (sum as u8, sum >> 8);
        }
        assert!(!verify(&key, &message, &signature));
        assert!(!is_below_order(&ORDER));
        let mut below = ORDER;
        below[0] -= 1;
        assert!(is_below_order(&below) && is_below_order(&[0; 32]));
    }

    /// With such a key, a signature of nothing but zeros and such a point suits many messages.
    #[test]
    fn points_of_small_order_are_refused() {
        let identity = EdwardsPoint::identity().compress().0;
        let mut signature = [0; 64];
        signature[..32].copy_from_slice(&identity);
        for torsion in curve25519_dalek::constants::EIGHT_TORSION {
            let key = torsion.compress().0;
            for seed in 0..16 {
                assert!(!verify(&key, &[seed], &signature));
            }
        }
        let (key, message, _) = signed(2);
        assert!(!verify(&key, &message, &signature));
    }
}
