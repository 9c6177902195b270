//! The block cipher AES-128, encryption only: RustCrypto's, or with the feature `small-aes` one of our own
//! that takes 3 KB of flash less and is written from FIPS 197.
//!
//! Ours looks bytes up in a table of 256 bytes. On a processor without a data cache, which is what it is
//! for, that takes the same time for every byte; on one with a cache it tells an observer on the same
//! machine about the key, and must not be used.

pub(super) use implementation::Cipher;

#[cfg(not(feature = "small-aes"))]
mod implementation {
    use aes::Aes128Enc;
    use aes::cipher::{BlockCipherEncrypt, KeyInit};

    /// A key that is ready.
    pub(in crate::crypto) struct Cipher(Aes128Enc);

    impl Cipher {
        #[inline(never)]
        pub(in crate::crypto) fn new(key: &[u8; 16]) -> Self {
            Self(Aes128Enc::new(key.into()))
        }

        pub(in crate::crypto) fn encrypt(&self, block: &mut [u8; 16]) {
            self.0.encrypt_block(block.into());
        }
    }
}

#[cfg(feature = "small-aes")]
mod implementation {
    const ROUNDS: usize = 10;

    /// The S-box (section 5.1.1), worked out by the compiler: 3 generates the field's elements, and its
    /// inverse their inverses.
    const S_BOX: [u8; 256] = {
        let mut table = [0; 256];
        let (mut power, mut inverse) = (1u8, 1u8);
        loop {
            power ^= double(power);
            // Division by 3 is multiplication by its inverse, 0xf6.
            inverse ^= inverse << 1;
            inverse ^= inverse << 2;
            inverse ^= inverse << 4;
            if inverse & 0x80 != 0 {
                inverse ^= 0x09;
            }
            let spread = inverse
                ^ inverse.rotate_left(1)
                ^ inverse.rotate_left(2)
                ^ inverse.rotate_left(3)
                ^ inverse.rotate_left(4);
            table[power as usize] = spread ^ 0x63;
            if power == 1 {
                break;
            }
        }
        table[0] = 0x63;
        table
    };

    /// Multiplies by x in GF(2^8), without a branch.
    const fn double(value: u8) -> u8 {
        (value << 1) ^ ((value >> 7) * 0x1b)
    }

    fn substitute(value: u8) -> u8 {
        S_BOX[usize::from(value)]
    }

    /// A key. What rounds use is worked out anew for every block: less memory, and less flash.
    pub(in crate::crypto) struct Cipher([u8; 16]);

    impl Cipher {
        pub(in crate::crypto) fn new(key: &[u8; 16]) -> Self {
            Self(*key)
        }

        /// Section 5.1.
        #[inline(never)]
        pub(in crate::crypto) fn encrypt(&self, block: &mut [u8; 16]) {
            let (mut key, mut constant) = (self.0, 1);
            for round in 0..=ROUNDS {
                if round > 0 {
                    expand(&mut key, constant);
                    constant = double(constant);
                    shift_and_substitute(block);
                    if round < ROUNDS {
                        block.chunks_exact_mut(4).for_each(mix);
                    }
                }
                for (byte, key) in block.iter_mut().zip(key) {
                    *byte ^= key;
                }
            }
        }
    }

    /// From one round's key to the next's (section 5.2).
    fn expand(key: &mut [u8; 16], constant: u8) {
        for at in 0..4 {
            key[at] ^= substitute(key[12 + (at + 1) % 4]);
        }
        key[0] ^= constant;
        for at in 4..16 {
            key[at] ^= key[at - 4];
        }
    }

    /// SubBytes and ShiftRows: row r of the state is every fourth byte from r on.
    fn shift_and_substitute(block: &mut [u8; 16]) {
        let from = *block;
        for (at, byte) in block.iter_mut().enumerate() {
            *byte = substitute(from[at * 5 % 16]);
        }
    }

    fn mix(column: &mut [u8]) {
        let all = column.iter().fold(0, |all, byte| all ^ byte);
        let first = column[0];
        for at in 0..4 {
            let next = if at < 3 { column[at + 1] } else { first };
            column[at] ^= all ^ double(column[at] ^ next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 197, appendix B.
    #[test]
    fn fips_197_appendix_b() {
        let key = [
            0x2b, 0x7e, 0x15, 0x16, 0x28, 0xae, 0xd2, 0xa6, 0xab, 0xf7, 0x15, 0x88, 0x09, 0xcf,
            0x4f, 0x3c,
        ];
        let mut block = [
            0x32, 0x43, 0xf6, 0xa8, 0x88, 0x5a, 0x30, 0x8d, 0x31, 0x31, 0x98, 0xa2, 0xe0, 0x37,
            0x07, 0x34,
        ];
        Cipher::new(&key).encrypt(&mut block);
        let expected = [
            0x39, 0x25, 0x84, 0x1d, 0x02, 0xdc, 0x09, 0xfb, 0xdc, 0x11, 0x85, 0x97, 0x19, 0x6a,
            0x0b, 0x32,
        ];
        assert_eq!(block, expected);
    }

    /// FIPS 197, appendix C.1.
    #[test]
    fn fips_197_appendix_c1() {
        let mut block: [u8; 16] = core::array::from_fn(|at| at as u8 * 0x11);
        Cipher::new(&core::array::from_fn(|at| at as u8)).encrypt(&mut block);
        let expected = [
            0x69, 0xc4, 0xe0, 0xd8, 0x6a, 0x7b, 0x04, 0x30, 0xd8, 0xcd, 0xb7, 0x80, 0x70, 0xb4,
            0xc5, 0x5a,
        ];
        assert_eq!(block, expected);
    }
}
