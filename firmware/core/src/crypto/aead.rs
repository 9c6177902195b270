//! AES-128-GCM (NIST SP 800-38D) over AES as `aes` has it.
//!
//! Counter mode and GHASH are ours because they are a few hundred bytes of flash, where the crate's are
//! several thousand. GHASH works bit by bit with masks: slow, but with neither tables nor branches on
//! secrets. Nothing in here is done twice for speed's sake.

use super::aes::Cipher;

/// The length of an authentication tag.
pub(crate) const TAG_BYTES: usize = 16;

type Block = [u8; 16];

/// One block of AES, for header protection.
#[inline(never)]
pub(super) fn encrypt_block(key: &Block, block: &mut Block) {
    Cipher::new(key).encrypt(block);
}

/// Encrypts `data` in place and gives the tag.
pub(crate) fn seal(key: &Block, nonce: &[u8; 12], aad: &[u8], data: &mut [u8]) -> Block {
    let cipher = Cipher::new(key);
    counter_mode(&cipher, nonce, data);
    tag(&cipher, nonce, aad, data)
}

/// Decrypts `data` in place if its tag is right. If not, `data` stays as it was, so that another key can be
/// tried.
pub(crate) fn open(
    key: &Block,
    nonce: &[u8; 12],
    aad: &[u8],
    data: &mut [u8],
    expected: &[u8],
) -> bool {
    let cipher = Cipher::new(key);
    let good = super::equal(&tag(&cipher, nonce, aad, data), expected);
    if good {
        counter_mode(&cipher, nonce, data);
    }
    good
}

fn counter_block(nonce: &[u8; 12], counter: u32) -> Block {
    let mut block = [0; 16];
    block[..12].copy_from_slice(nonce);
    block[12..].copy_from_slice(&counter.to_be_bytes());
    block
}

#[inline(never)]
fn counter_mode(cipher: &Cipher, nonce: &[u8; 12], data: &mut [u8]) {
    for (counter, chunk) in (2..).zip(data.chunks_mut(16)) {
        let mut block = counter_block(nonce, counter);
        cipher.encrypt(&mut block);
        for (byte, mask) in chunk.iter_mut().zip(block) {
            *byte ^= mask;
        }
    }
}

#[inline(never)]
fn tag(cipher: &Cipher, nonce: &[u8; 12], aad: &[u8], data: &[u8]) -> Block {
    let mut key = [0; 16];
    cipher.encrypt(&mut key);
    let mut hash = Ghash { key: words(&key), state: [0; 4] };
    hash.add(aad);
    hash.add(data);
    let mut lengths = [0; 16];
    lengths[4..8].copy_from_slice(&(aad.len() as u32 * 8).to_be_bytes());
    lengths[12..].copy_from_slice(&(data.len() as u32 * 8).to_be_bytes());
    hash.add(&lengths);
    let mut tag = counter_block(nonce, 1);
    cipher.encrypt(&mut tag);
    for (byte, hash) in tag.iter_mut().zip(hash.state.iter().flat_map(|word| word.to_be_bytes())) {
        *byte ^= hash;
    }
    tag
}

fn words(block: &Block) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(block.chunks(4)) {
        *word = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    words
}

/// The hash of GCM. In words of 32 bits, the first bit of a block being the highest of the first word.
struct Ghash {
    key: [u32; 4],
    state: [u32; 4],
}

impl Ghash {
    /// Hashes `data`, padded with zeros to whole blocks.
    #[inline(never)]
    fn add(&mut self, data: &[u8]) {
        for chunk in data.chunks(16) {
            let mut block = [0; 16];
            for (to, from) in block.iter_mut().zip(chunk) {
                *to = *from;
            }
            for (state, word) in self.state.iter_mut().zip(words(&block)) {
                *state ^= word;
            }
            self.multiply();
        }
    }

    /// Multiplies the state with the key in GF(2^128): algorithm 1 of the standard.
    #[inline(never)]
    fn multiply(&mut self) {
        let mut product = [0; 4];
        let [mut v0, mut v1, mut v2, mut v3] = self.key;
        for word in self.state {
            for bit in (0..32).rev() {
                let mask = 0u32.wrapping_sub(word >> bit & 1);
                product[0] ^= v0 & mask;
                product[1] ^= v1 & mask;
                product[2] ^= v2 & mask;
                product[3] ^= v3 & mask;
                let carry = 0u32.wrapping_sub(v3 & 1);
                v3 = v3 >> 1 | v2 << 31;
                v2 = v2 >> 1 | v1 << 31;
                v1 = v1 >> 1 | v0 << 31;
                v0 = v0 >> 1 ^ carry & 0xe100_0000;
            }
        }
        self.state = product;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test case 4 of "The Galois/Counter Mode of Operation" (McGrew, Viega): unequal lengths, with AAD.
    #[test]
    fn gcm_specification_test_case_4() {
        let key = [
            0xfe, 0xff, 0xe9, 0x92, 0x86, 0x65, 0x73, 0x1c, 0x6d, 0x6a, 0x8f, 0x94, 0x67, 0x30,
            0x83, 0x08,
        ];
        let nonce = [0xca, 0xfe, 0xba, 0xbe, 0xfa, 0xce, 0xdb, 0xad, 0xde, 0xca, 0xf8, 0x88];
        let aad = [
            0xfe, 0xed, 0xfa, 0xce, 0xde, 0xad, 0xbe, 0xef, 0xfe, 0xed, 0xfa, 0xce, 0xde, 0xad,
            0xbe, 0xef, 0xab, 0xad, 0xda, 0xd2,
        ];
        let plain = [
            0xd9, 0x31, 0x32, 0x25, 0xf8, 0x84, 0x06, 0xe5, 0xa5, 0x59, 0x09, 0xc5, 0xaf, 0xf5,
            0x26, 0x9a, 0x86, 0xa7, 0xa9, 0x53, 0x15, 0x34, 0xf7, 0xda, 0x2e, 0x4c, 0x30, 0x3d,
            0x8a, 0x31, 0x8a, 0x72, 0x1c, 0x3c, 0x0c, 0x95, 0x95, 0x68, 0x09, 0x53, 0x2f, 0xcf,
            0x0e, 0x24, 0x49, 0xa6, 0xb5, 0x25, 0xb1, 0x6a, 0xed, 0xf5, 0xaa, 0x0d, 0xe6, 0x57,
            0xba, 0x63, 0x7b, 0x39,
        ];
        let expected_tag = [
            0x5b, 0xc9, 0x4f, 0xbc, 0x32, 0x21, 0xa5, 0xdb, 0x94, 0xfa, 0xe9, 0x5a, 0xe7, 0x12,
            0x1a, 0x47,
        ];
        let mut data = plain;
        assert_eq!(seal(&key, &nonce, &aad, &mut data), expected_tag);
        assert_eq!(data[..4], [0x42, 0x83, 0x1e, 0xc2]);
        assert_eq!(data[56..], [0x3d, 0x58, 0xe0, 0x91]);

        let sealed = data;
        assert!(!open(&key, &nonce, &aad[1..], &mut data, &expected_tag));
        assert_eq!(data, sealed, "what is not authentic stays encrypted");
        assert!(open(&key, &nonce, &aad, &mut data, &expected_tag));
        assert_eq!(data, plain);
    }
}
