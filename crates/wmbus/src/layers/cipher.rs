//! AES-128 in the modes meters use it in. The block cipher and its modes are RustCrypto's.
//!
//! Which bytes go into an IV is the layers' business, except for the key derivation of EN 13757-7,
//! 9.6.1, which both the authentication and the transport layer use.

use aes::Aes128;
use aes::cipher::block_padding::NoPadding;
use aes::cipher::{BlockModeDecrypt, BlockModeEncrypt, KeyIvInit, StreamCipher};
use cmac::{Cmac, KeyInit as _, Mac as _};

use crate::address::MeterId;
use crate::keys::Key;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 16;

/// Decrypts whole blocks in place. A part of a block at the end is left as it is; callers take whole
/// blocks.
pub(crate) fn cbc_decrypt(key: &Key, iv: &[u8; BLOCK], data: &mut [u8]) {
    let whole = data.len() - data.len() % BLOCK;
    let cipher = cbc::Decryptor::<Aes128>::new(key.bytes().into(), iv.into());
    // Without padding only a part of a block could fail, and there is none.
    let _ = cipher.decrypt_padded::<NoPadding>(&mut data[..whole]);
}

/// Encrypts whole blocks in place; see [`cbc_decrypt`].
pub(crate) fn cbc_encrypt(key: &Key, iv: &[u8; BLOCK], data: &mut [u8]) {
    let whole = data.len() - data.len() % BLOCK;
    let cipher = cbc::Encryptor::<Aes128>::new(key.bytes().into(), iv.into());
    let _ = cipher.encrypt_padded::<NoPadding>(&mut data[..whole], whole);
}

/// Encrypts or decrypts in place; the counter is the block's last byte and carries over.
pub(crate) fn ctr(key: &Key, first: &[u8; BLOCK], data: &mut [u8]) {
    ctr::Ctr128BE::<Aes128>::new(key.bytes().into(), first.into()).apply_keystream(data);
}

/// The CMAC of all parts, one after the other.
pub(crate) fn cmac(key: &Key, parts: &[&[u8]]) -> [u8; BLOCK] {
    running(key, parts).finalize().into_bytes().into()
}

/// Whether a CMAC cut to the length of `mac` fits; takes as long whether it does or not.
pub(crate) fn mac_fits(key: &Key, parts: &[&[u8]], mac: &[u8]) -> bool {
    running(key, parts).verify_truncated_left(mac).is_ok()
}

fn running(key: &Key, parts: &[&[u8]]) -> Cmac<Aes128> {
    let mut running = Cmac::<Aes128>::new(key.bytes().into());
    parts.iter().for_each(|part| running.update(part));
    running
}

/// Purpose of a derived key; the first byte of the derivation.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// Encryption of what a meter sends.
    Encryption = 0x00,
    /// Authentication of what a meter sends.
    Authentication = 0x01,
}

/// A key for one message: the CMAC of purpose, message counter and meter, filled up with sevens.
pub(crate) fn derive(key: &Key, purpose: Purpose, counter: [u8; 4], meter: MeterId) -> Key {
    Key::new(cmac(key, &[&[purpose as u8], &counter, &meter.to_bytes(), &[7; 7]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cmac_is_that_of_rfc_4493() {
        let key = Key::new([
            0x2b, 0x7e, 0x15, 0x16, 0x28, 0xae, 0xd2, 0xa6, 0xab, 0xf7, 0x15, 0x88, 0x09, 0xcf,
            0x4f, 0x3c,
        ]);
        let empty = cmac(&key, &[]);
        assert_eq!(&empty[..4], [0xbb, 0x1d, 0x69, 0x29]);
        assert!(mac_fits(&key, &[], &empty[..8]));
        assert!(!mac_fits(&key, &[&[0]], &empty[..8]));
    }

    #[test]
    fn encryption_is_undone() {
        let (key, iv) = (Key::new([3; 16]), [5; BLOCK]);
        let plain: Vec<u8> = (0..40).collect();
        let mut data = plain.clone();
        cbc_encrypt(&key, &iv, &mut data);
        assert_ne!(data[..32], plain[..32]);
        assert_eq!(data[32..], plain[32..], "a part of a block is left");
        cbc_decrypt(&key, &iv, &mut data);
        assert_eq!(data, plain);
    }
}
