//! The C library's functions that compare memory, for programs linked with zig (`make dist`).
//!
//! Zig's compare a byte at a time, and every message compares its topic several times. These take eight bytes at a time,
//! and the linker prefers them. Other C libraries have better ones.

#![allow(unsafe_code)]

/// Bytes that are compared at once.
const WORD: usize = size_of::<u64>();

/// Reads the bytes at `at` behind `start` as a number that is the larger, the larger its first different byte.
///
/// # Safety
/// Eight bytes from there on can be read.
unsafe fn word(start: *const u8, at: usize) -> u64 {
    // SAFETY: as above; nothing is assumed of the address.
    u64::from_be(unsafe { start.add(at).cast::<u64>().read_unaligned() })
}

/// The order of the first `len` bytes of both.
///
/// # Safety
/// `len` bytes of both can be read.
#[inline(always)]
unsafe fn order(a: *const u8, b: *const u8, len: usize) -> i32 {
    if len < WORD {
        for at in 0..len {
            // SAFETY: `at` is less than `len`.
            let (a, b) = unsafe { (*a.add(at), *b.add(at)) };
            if a != b {
                return i32::from(a) - i32::from(b);
            }
        }
        return 0;
    }
    // The last word overlaps the one before it unless `len` is a multiple: what was equal is compared again.
    let last = len - WORD;
    let mut at = 0;
    loop {
        // SAFETY: `at` is at most `last`, from where on eight bytes belong to the `len`.
        let (x, y) = unsafe { (word(a, at), word(b, at)) };
        if x != y {
            return if x < y { -1 } else { 1 };
        }
        if at == last {
            return 0;
        }
        at = (at + WORD).min(last);
    }
}

/// C's `memcmp`.
///
/// # Safety
/// `len` bytes of both can be read.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { order(a, b, len) }
}

/// `memcmp` for callers that only ask whether the two are equal: compilers insert calls of it.
///
/// # Safety
/// `len` bytes of both can be read.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { order(a, b, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At every length up to a few words and at every difference in it.
    #[test]
    fn the_first_difference_decides() {
        // From an odd address on.
        let start = 1;
        for len in 0..=4 * WORD {
            let a: Vec<u8> = (0..start + len).map(|n| n as u8 ^ 0x5a).collect();
            let compare = |a: &[u8], b: &[u8]| {
                let (a, b) = (&a[start..], &b[start..]);
                // SAFETY: both have `len` bytes.
                let (order, equal) = unsafe {
                    (memcmp(a.as_ptr(), b.as_ptr(), len), bcmp(a.as_ptr(), b.as_ptr(), len))
                };
                assert_eq!(order == 0, equal == 0, "{a:?} {b:?}");
                order.cmp(&0)
            };
            assert_eq!(compare(&a, &a.clone()), std::cmp::Ordering::Equal, "{len} bytes");
            for at in start..start + len {
                for change in [1, 0x80, 0xff] {
                    let mut b = a.clone();
                    b[at] ^= change;
                    // What comes later differs the other way round, and does not count.
                    if at + 1 < start + len {
                        b[at + 1] = if b[at] > a[at] { 0 } else { 0xff };
                    }
                    assert_eq!(
                        compare(&a, &b),
                        a[start..].cmp(&b[start..]),
                        "{len} bytes, at {at}"
                    );
                    assert_eq!(
                        compare(&b, &a),
                        b[start..].cmp(&a[start..]),
                        "{len} bytes, at {at}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_behind_the_end_does_not_count() {
        // SAFETY: three bytes of both.
        assert_eq!(unsafe { memcmp(b"abcd".as_ptr(), b"abce".as_ptr(), 3) }, 0);
    }
}
