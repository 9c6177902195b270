//! Arithmetic in GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1, the field of RFC 5510 section 8.1.
//!
//! Addition is exclusive or. Only what the code in `rs` needs.

/// The reduction of x^8.
const REDUCTION: u8 = 0x1d;

/// Powers of the generator α = 2, twice over so that sums of logarithms need no reduction.
const EXP: [u8; 510] = exponents();
const LOG: [u8; 256] = logarithms();

const fn double(value: u8) -> u8 {
    (value << 1) ^ (if value & 0x80 == 0 { 0 } else { REDUCTION })
}

const fn exponents() -> [u8; 510] {
    let mut table = [0; 510];
    let mut value = 1;
    let mut i = 0;
    while i < 510 {
        table[i] = value;
        value = double(value);
        i += 1;
    }
    table
}

const fn logarithms() -> [u8; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 255 {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
}

/// α to the power of `exponent`, which is less than 510.
pub(crate) fn power(exponent: usize) -> u8 {
    EXP[exponent]
}

pub(crate) fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[usize::from(LOG[usize::from(a)]) + usize::from(LOG[usize::from(b)])]
}

/// The inverse of a number; 0 has none and gives 1.
pub(crate) fn inverse(a: u8) -> u8 {
    EXP[255 - usize::from(LOG[usize::from(a)])]
}

/// `to[i] += factor · from[i]` for the length of the shorter.
///
/// Multiplication by a constant is linear over the bits, so each bit of `from` contributes a constant or nothing. The
/// compiler turns this loop into compare-and-mask on vectors, which safe Rust has no other way to express; a table
/// look-up per byte takes three times as long.
pub(crate) fn add_product(to: &mut [u8], from: &[u8], factor: u8) {
    match factor {
        0 => {}
        1 => to.iter_mut().zip(from).for_each(|(to, from)| *to ^= from),
        _ => {
            let mut bits = [factor; 8];
            for i in 1..8 {
                bits[i] = double(bits[i - 1]);
            }
            for (to, &from) in to.iter_mut().zip(from) {
                let mut sum = *to;
                for (i, &bit) in bits.iter().enumerate() {
                    sum ^= if from & (1 << i) == 0 { 0 } else { bit };
                }
                *to = sum;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication by the definition, bit by bit.
    fn slow(mut a: u8, mut b: u8) -> u8 {
        let mut product = 0;
        while b != 0 {
            if b & 1 != 0 {
                product ^= a;
            }
            a = double(a);
            b >>= 1;
        }
        product
    }

    #[test]
    fn tables_agree_with_the_definition() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), slow(a, b), "{a} · {b}");
            }
            if a != 0 {
                assert_eq!(mul(a, inverse(a)), 1);
            }
        }
    }

    #[test]
    fn slices_are_multiplied_as_single_numbers_are() {
        let from: Vec<u8> = (0..=255).collect();
        for factor in 0..=255 {
            let mut to = vec![7; 256];
            add_product(&mut to, &from, factor);
            for (i, &to) in to.iter().enumerate() {
                assert_eq!(to, 7 ^ mul(factor, from[i]));
            }
        }
    }
}
