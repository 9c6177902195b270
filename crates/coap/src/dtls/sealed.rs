//! Decrypts records with a connection ID (RFC 9146 sections 4 and 5.3). Their additional authenticated data differs
//! from that of other records, and the content is followed by its type and zeros. dimpl passes a record's content and
//! the header that it expects; the ID follows the content ([`push`]).
//!
//! Outgoing records are encrypted by dimpl as usual.

use std::sync::LazyLock;

use ccm::aead::{AeadInOut as _, KeyInit as _};
use ccm::consts::{U8, U12};
use dimpl::crypto::{
    Aad, Buf, Cipher, Dtls12CipherSuite, HashAlgorithm, Nonce, SupportedDtls12CipherSuite, TmpBuf,
    rust_crypto,
};
use dimpl::{CryptoError, CryptoOperation};
use ring::aead;

use super::connection_id::{ConnectionId, LENGTH, WITH_ID};

const FAILED: CryptoError = CryptoError::OperationFailed(CryptoOperation::Decrypt);

/// Appends the length and the content of a record with an ID to the rest of its header.
pub(super) fn push(record: &mut Vec<u8>, sealed: &[u8], id: &ConnectionId) {
    // A longer one cannot be from a datagram; it will not be decrypted.
    let length = u16::try_from(sealed.len() + LENGTH).unwrap_or(0);
    record.extend_from_slice(&length.to_be_bytes());
    record.extend_from_slice(sealed);
    record.extend_from_slice(id);
}

/// dimpl's suites, which decrypt only records from [`push`].
pub(super) fn suites() -> &'static [&'static dyn SupportedDtls12CipherSuite] {
    static SUITES: LazyLock<Vec<Suite>> = LazyLock::new(|| {
        rust_crypto::default_provider().cipher_suites.iter().map(|suite| Suite(*suite)).collect()
    });
    static LIST: LazyLock<Vec<&'static dyn SupportedDtls12CipherSuite>> =
        LazyLock::new(|| SUITES.iter().map(|suite| suite as _).collect());
    &LIST
}

#[derive(Debug)]
struct Suite(&'static dyn SupportedDtls12CipherSuite);

impl SupportedDtls12CipherSuite for Suite {
    fn suite(&self) -> Dtls12CipherSuite {
        self.0.suite()
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        self.0.hash_algorithm()
    }

    fn key_lengths(&self) -> (usize, usize, usize) {
        self.0.key_lengths()
    }

    fn explicit_nonce_len(&self) -> usize {
        self.0.explicit_nonce_len()
    }

    fn tag_len(&self) -> usize {
        self.0.tag_len()
    }

    fn create_cipher(&self, key: &[u8]) -> Result<Box<dyn Cipher>, CryptoError> {
        let opener = Opener::new(self.suite(), key).ok_or(FAILED)?;
        Ok(Box::new(Sealed { sealer: self.0.create_cipher(key)?, opener, tag: self.tag_len() }))
    }
}

struct Sealed {
    sealer: Box<dyn Cipher>,
    opener: Opener,
    tag: usize,
}

// Never the key.
fulmar_text::opaque_debug!(Sealed {});

impl Cipher for Sealed {
    fn encrypt(&mut self, plain: &mut Buf, aad: Aad, nonce: Nonce) -> Result<(), CryptoError> {
        self.sealer.encrypt(plain, aad, nonce)
    }

    /// Fails as well if the type in the header is not that of the content.
    fn decrypt(&mut self, sealed: &mut TmpBuf, aad: Aad, nonce: Nonce) -> Result<(), CryptoError> {
        let (sealed_bytes, id) = sealed.as_mut().split_last_chunk_mut::<LENGTH>().ok_or(FAILED)?;
        let length = sealed_bytes.len().checked_sub(self.tag).ok_or(FAILED)?;
        let (number, kind, version) = (&aad[..8], aad[8], &aad[9..11]);
        let authenticated = additional_data(number, version, id, length).ok_or(FAILED)?;
        self.opener.open(sealed_bytes, &authenticated, nonce).ok_or(FAILED)?;
        let plain = &sealed_bytes[..length];
        let end = plain.iter().rposition(|byte| *byte != 0).ok_or(FAILED)?;
        if plain[end] != kind {
            return Err(FAILED);
        }
        sealed.truncate(end);
        Ok(())
    }
}

/// The additional authenticated data of a content of `length` bytes with its type and zeros (RFC 9146 section 5.3).
/// `number` is epoch and number.
fn additional_data(number: &[u8], version: &[u8], id: &[u8], length: usize) -> Option<Vec<u8>> {
    let size = u8::try_from(id.len()).ok()?;
    let length = u16::try_from(length).ok()?.to_be_bytes();
    Some([&[0xff; 8], &[WITH_ID, size, WITH_ID][..], version, number, id, &length].concat())
}

/// A cipher for additional authenticated data of any length; dimpl's accept 13 bytes.
enum Opener {
    Ccm8(Box<ccm::Ccm<aes::Aes128, U8, U12>>),
    Other(Box<aead::LessSafeKey>),
}

impl Opener {
    fn new(suite: Dtls12CipherSuite, key: &[u8]) -> Option<Opener> {
        let algorithm = match suite {
            Dtls12CipherSuite::PSK_AES128_CCM_8 => {
                return Some(Opener::Ccm8(Box::new(ccm::Ccm::new_from_slice(key).ok()?)));
            }
            Dtls12CipherSuite::ECDHE_ECDSA_AES128_GCM_SHA256 => &aead::AES_128_GCM,
            Dtls12CipherSuite::ECDHE_ECDSA_AES256_GCM_SHA384 => &aead::AES_256_GCM,
            Dtls12CipherSuite::ECDHE_ECDSA_CHACHA20_POLY1305_SHA256 => &aead::CHACHA20_POLY1305,
            _ => return None,
        };
        let key = aead::UnboundKey::new(algorithm, key).ok()?;
        Some(Opener::Other(Box::new(aead::LessSafeKey::new(key))))
    }

    /// Decrypts in place; the tag follows the content.
    fn open(&self, sealed: &mut [u8], authenticated: &[u8], nonce: Nonce) -> Option<()> {
        match self {
            Opener::Ccm8(cipher) => {
                let (sealed, tag) = sealed.split_last_chunk_mut::<8>()?;
                let (nonce, tag) = (nonce.0.into(), (*tag).into());
                cipher.decrypt_inout_detached(&nonce, authenticated, sealed.into(), &tag).ok()
            }
            Opener::Other(key) => {
                let nonce = aead::Nonce::assume_unique_for_key(nonce.0);
                key.open_in_place(nonce, aead::Aad::from(authenticated), sealed).ok().map(drop)
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const ID: ConnectionId = *b"a client";
    const NUMBER: [u8; 8] = [0, 1, 0, 0, 0, 0, 0, 5];
    const NONCE: [u8; 12] = [3; 12];

    /// A record that an AES-128 suite has encrypted with a key of sevens, with this ID.
    fn seal(suite: Dtls12CipherSuite, id: &[u8], inner: &[u8]) -> Vec<u8> {
        let mut sealed = inner.to_vec();
        let mut authenticated = vec![255, 255, 255, 255, 255, 255, 255, 255, 25, 8, 25, 0xfe, 0xfd];
        authenticated.extend([&NUMBER, id, &[0, u8::try_from(inner.len()).unwrap()]].concat());
        match suite {
            Dtls12CipherSuite::PSK_AES128_CCM_8 => {
                let cipher = ccm::Ccm::<aes::Aes128, U8, U12>::new_from_slice(&[7; 16]).unwrap();
                let tag = cipher.encrypt_inout_detached(
                    &NONCE.into(),
                    &authenticated,
                    sealed.as_mut_slice().into(),
                );
                sealed.extend(tag.unwrap());
            }
            _ => {
                let key = aead::UnboundKey::new(&aead::AES_128_GCM, &[7; 16]).unwrap();
                let nonce = aead::Nonce::assume_unique_for_key(NONCE);
                aead::LessSafeKey::new(key)
                    .seal_in_place_append_tag(nonce, aead::Aad::from(authenticated), &mut sealed)
                    .unwrap();
            }
        }
        sealed
    }

    /// Opens `sealed` as a record of `kind`.
    fn open(suite: Dtls12CipherSuite, kind: u8, sealed: &[u8]) -> Option<Vec<u8>> {
        let suite = suites().iter().find(|known| known.suite() == suite).unwrap();
        let mut cipher = suite.create_cipher(&[7; 16]).unwrap();
        // The length is not checked.
        let aad = NUMBER.into_iter().chain([kind, 0xfe, 0xfd, 0, 0]).collect();
        let mut room = Vec::new();
        push(&mut room, sealed, &ID);
        let mut content = TmpBuf::new(&mut room[2..]);
        cipher.decrypt(&mut content, Aad(aad), Nonce(NONCE)).ok()?;
        Some(content.as_ref().to_vec())
    }

    #[test]
    fn content_comes_out_as_what_it_is_and_for_whom() {
        for suite in
            [Dtls12CipherSuite::PSK_AES128_CCM_8, Dtls12CipherSuite::ECDHE_ECDSA_AES128_GCM_SHA256]
        {
            let sealed = seal(suite, &ID, b"21.5\x17\0\0\0");
            assert_eq!(open(suite, 23, &sealed).unwrap(), b"21.5");
            assert_eq!(open(suite, 22, &sealed), None, "it is not part of a handshake");
            assert_eq!(open(suite, 23, &seal(suite, b"somebody", b"21.5\x17")), None);
            assert_eq!(open(suite, 0, &seal(suite, &ID, &[0; 5])), None, "it has no type");
            for end in 0..sealed.len() {
                assert_eq!(open(suite, 23, &sealed[..end]), None, "{end} bytes");
            }
        }
    }
}
