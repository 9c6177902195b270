//! Which datagrams of a session were received: the anti-replay window of RFC 4303 (IPsec), appendix A.

/// The size of the window. A link with 100 ms of jitter reorders over 1,800 datagrams at 200 Mbit/s.
const BITS: u32 = 8192;

pub(super) struct Window {
    /// One more than the greatest count received.
    end: u64,
    seen: Box<[u64]>,
}

impl Default for Window {
    fn default() -> Self {
        Window { end: 0, seen: vec![0; BITS as usize / 64].into() }
    }
}

impl Window {
    fn place(count: u64) -> (usize, u64) {
        let bit = count % u64::from(BITS);
        (bit as usize / 64, 1 << (bit % 64))
    }

    /// Whether a count was not received yet, as far as is known.
    pub(super) fn is_fresh(&self, count: u32) -> bool {
        let count = u64::from(count);
        if count >= self.end {
            return true;
        }
        let (word, bit) = Window::place(count);
        self.end - count <= u64::from(BITS) && self.seen[word] & bit == 0
    }

    /// Records a fresh count that was authenticated.
    pub(super) fn insert(&mut self, count: u32) {
        let count = u64::from(count);
        if count >= self.end {
            // Skipped counts were not received; their bits were those of counts that left the window.
            let first = self.end.max((count + 1).saturating_sub(BITS.into()));
            for skipped in first..count {
                let (word, bit) = Window::place(skipped);
                self.seen[word] &= !bit;
            }
            self.end = count + 1;
        }
        let (word, bit) = Window::place(count);
        self.seen[word] |= bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Compares the window with a set of all received counts.
        #[test]
        fn no_count_is_fresh_twice(
            steps in prop::collection::vec((0u32..20_000, any::<bool>()), 1..400),
        ) {
            let (mut window, mut came, mut base) = (Window::default(), BTreeSet::new(), 0u32);
            for (step, jump) in steps {
                if jump {
                    base += step;
                }
                let count = (base + step % 4096).saturating_sub(2048);
                let greatest = came.last().copied().unwrap_or(0);
                let fresh = window.is_fresh(count);
                if came.contains(&count) {
                    prop_assert!(!fresh);
                } else if count + BITS > greatest {
                    prop_assert!(fresh);
                }
                if fresh {
                    window.insert(count);
                    came.insert(count);
                }
            }
        }
    }

    #[test]
    fn it_reaches_to_the_last_count_there_is() {
        let mut window = Window::default();
        for count in [0, u32::MAX, u32::MAX - BITS + 1] {
            assert!(window.is_fresh(count));
            window.insert(count);
            assert!(!window.is_fresh(count));
        }
        assert!(!window.is_fresh(u32::MAX - BITS), "too old to be known");
    }
}
