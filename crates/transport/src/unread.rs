//! What clients that do not read make a transport hold. A message that a connection has begun to write stays in memory until
//! it is written, however long that takes, and no account counts it. So while the process' memory is short, connections are
//! closed that hold much and of which nothing was written since the last look; what their sessions keep is not touched.

use fulmar_broker::MemoryPressure;

/// Bytes that are much while memory is short, and while more is taken.
const MUCH: usize = 64 * 1024;
const MUCH_WHILE_RISING: usize = 8 * 1024;

/// State of one connection at the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unread {
    left: u32,
}

impl Unread {
    /// Whether to close the connection, which holds this many bytes.
    pub(crate) fn gives_way(&mut self, pressure: MemoryPressure, bytes: usize) -> bool {
        let much = match pressure {
            MemoryPressure::None => return false,
            MemoryPressure::High => MUCH,
            MemoryPressure::Rising => MUCH_WHILE_RISING,
        };
        let left = u32::try_from(bytes).unwrap_or(u32::MAX);
        let before = std::mem::replace(&mut self.left, left);
        bytes >= much && before == left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemoryPressure::{High, None, Rising};

    #[test]
    fn who_reads_nothing_of_much_gives_way_and_nobody_else() {
        let mut deaf = Unread::default();
        assert!(!deaf.gives_way(High, MUCH), "the first look");
        assert!(!deaf.gives_way(None, MUCH));
        assert!(deaf.gives_way(High, MUCH));
        let mut slow = Unread::default();
        assert!([3 * MUCH, 2 * MUCH, MUCH].iter().all(|left| !slow.gives_way(Rising, *left)));
        let mut small = Unread::default();
        let looks = [High, High, Rising, Rising].map(|look| small.gives_way(look, 10_000));
        assert_eq!(looks, [false, false, true, true]);
        assert!(!(0..9).any(|_| small.gives_way(Rising, 100)));
    }
}
