//! The two directions of an ordered stream of bytes, whether STREAM or CRYPTO frames carry it (RFC 9000,
//! sections 2.2 and 19.6). The memory for the bytes themselves belongs to whoever calls.

use super::ranges::{Range, Ranges};

/// Receives: puts what comes in any order at its place, and says what is there without a gap.
pub(crate) struct Inbound {
    /// The offset of the first byte in memory.
    base: u32,
    received: Ranges,
    /// The stream's length, once known.
    pub(crate) end: Option<u32>,
    /// The highest offset received.
    pub(crate) highest: u32,
}

impl Inbound {
    pub(crate) const fn new() -> Self {
        Self { base: 0, received: Ranges::new(), end: None, highest: 0 }
    }

    pub(crate) fn base(&self) -> u32 {
        self.base
    }

    /// Takes `data` of offset `offset`. False: there is no room, for the bytes or for the gap before
    /// them, and the packet must count as lost.
    #[inline(never)]
    pub(crate) fn write(&mut self, memory: &mut [u8], offset: u32, data: &[u8]) -> bool {
        let Some(end) = offset.checked_add(data.len() as u32) else { return false };
        let known = self.base.saturating_sub(offset) as usize;
        let Some(data) = data.get(known..) else { return true };
        let start = offset.max(self.base);
        let at = (start - self.base) as usize;
        let Some(place) = memory.get_mut(at..).and_then(|rest| rest.get_mut(..data.len())) else {
            return false;
        };
        if !self.received.insert(start, end) {
            return false;
        }
        place.copy_from_slice(data);
        self.highest = self.highest.max(end);
        true
    }

    /// Number of bytes at the beginning of the memory without a gap.
    pub(crate) fn ready(&self) -> usize {
        match self.received.as_slice().first() {
            Some(&(start, end)) if start == self.base => (end - start) as usize,
            _ => 0,
        }
    }

    /// Takes `count` of the ready bytes out of the memory.
    #[inline(never)]
    pub(crate) fn consume(&mut self, memory: &mut [u8], count: usize) {
        let count = count.min(self.ready());
        memory.copy_within(count.., 0);
        self.base += count as u32;
        self.received.drop_below(self.base);
    }

    /// Whether nothing waits in the memory, not even behind a gap.
    pub(crate) fn is_drained(&self) -> bool {
        self.received.as_slice().is_empty()
    }

    /// Whether all bytes of a finished stream have been consumed.
    pub(crate) fn is_finished(&self) -> bool {
        self.end == Some(self.base)
    }
}

/// Sends: what is new, what is lost and must be sent again, what has been acknowledged.
pub(crate) struct Outbound {
    /// The lowest offset that is not acknowledged.
    base: u32,
    /// Where never sent bytes begin.
    next: u32,
    /// Where the written bytes end.
    end: u32,
    /// Range to send again; it covers all that was lost.
    lost: Range,
    /// Ranges that have been acknowledged beyond the base.
    acked: Ranges,
}

impl Outbound {
    pub(crate) const fn new() -> Self {
        Self { base: 0, next: 0, end: 0, lost: (0, 0), acked: Ranges::new() }
    }

    pub(crate) fn base(&self) -> u32 {
        self.base
    }

    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    /// Where bytes begin that have never been sent.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// `count` more bytes have been written.
    pub(crate) fn extend(&mut self, count: usize) {
        self.end += count as u32;
    }

    /// Whether all written bytes are acknowledged.
    pub(crate) fn is_acked(&self) -> bool {
        self.base == self.end
    }

    /// The next bytes to send: at most `room`, and no new ones at or beyond `limit`.
    #[inline(never)]
    pub(crate) fn pending(&self, room: usize, limit: u32) -> Option<Range> {
        let (start, end) =
            if self.lost.0 < self.lost.1 { self.lost } else { (self.next, self.end.min(limit)) };
        let end = end.min(start.saturating_add(room as u32));
        (start < end).then_some((start, end))
    }

    /// `range`, as [`pending`](Self::pending) gave it, is on its way.
    pub(crate) fn sent(&mut self, range: Range) {
        if range.0 == self.lost.0 && self.lost.0 < self.lost.1 {
            self.lost.0 = range.1;
        } else {
            self.next = self.next.max(range.1);
        }
    }

    /// `range` has been acknowledged. Gives by how many bytes the base moved.
    #[inline(never)]
    pub(crate) fn acknowledge(&mut self, range: Range) -> usize {
        if !self.acked.insert(range.0.max(self.base), range.1) {
            // No room to remember it: sent once more, it will fill a gap.
            self.lose(range);
            return 0;
        }
        let before = self.base;
        if let Some(&(start, end)) = self.acked.as_slice().first()
            && start <= self.base
        {
            self.base = end.max(self.base);
            self.acked.drop_below(self.base);
            self.lost.0 = self.lost.0.max(self.base);
            // After Retry, a server could answer what it was not sent again.
            self.next = self.next.max(self.base);
        }
        (self.base - before) as usize
    }

    /// `range` is to be sent again.
    pub(crate) fn lose(&mut self, range: Range) {
        let range = (range.0.max(self.base), range.1);
        if range.0 >= range.1 {
            return;
        }
        self.lost = if self.lost.0 < self.lost.1 {
            (self.lost.0.min(range.0), self.lost.1.max(range.1))
        } else {
            range
        };
    }

    /// Everything that is not acknowledged is to be sent anew, as if it had never been sent.
    pub(crate) fn rewind(&mut self) {
        self.next = self.base;
        self.lost = (0, 0);
        self.acked.clear();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn bytes_in_any_order_come_out_in_theirs() {
        let (mut stream, mut memory) = (Inbound::new(), [0; 8]);
        assert!(stream.write(&mut memory, 4, b"efgh"));
        assert_eq!(stream.ready(), 0);
        assert!(!stream.write(&mut memory, 4, b"efghi"), "beyond the memory");
        assert!(stream.write(&mut memory, 0, b"abcd"));
        assert_eq!(stream.ready(), 8);
        stream.consume(&mut memory, 3);
        assert_eq!((&memory[..5], stream.ready()), (&b"defgh"[..], 5));
        assert!(stream.write(&mut memory, 1, b"bcdefghijk"), "part of it is old");
        assert_eq!((&memory, stream.ready()), (b"defghijk", 8));
        assert!(!stream.write(&mut memory, u32::MAX, b"xy"));
    }

    #[test]
    fn what_is_lost_goes_before_what_is_new() {
        let mut stream = Outbound::new();
        stream.extend(10);
        let first = stream.pending(4, 100).unwrap();
        stream.sent(first);
        let second = stream.pending(4, 100).unwrap();
        stream.sent(second);
        assert_eq!((first, second), ((0, 4), (4, 8)));
        stream.lose(first);
        assert_eq!(stream.pending(100, 100), Some((0, 4)));
        assert_eq!(stream.acknowledge(second), 0);
        stream.sent((0, 4));
        assert_eq!(stream.pending(100, 9), Some((8, 9)), "the limit holds");
        assert_eq!(stream.acknowledge((0, 4)), 8);
        stream.lose((2, 6));
        assert_eq!(stream.pending(100, 100), Some((8, 10)), "acknowledged is not lost");
    }

    #[test]
    fn what_is_acknowledged_is_not_sent_although_it_never_was() {
        let mut stream = Outbound::new();
        stream.extend(10);
        stream.acknowledge((0, 10));
        stream.extend(5);
        assert_eq!(stream.pending(100, 100), Some((10, 15)));
    }

    #[test]
    fn with_no_room_for_gaps_nothing_is_forgotten() {
        let mut stream = Outbound::new();
        stream.extend(40);
        stream.sent((0, 40));
        for start in 0..7 {
            stream.acknowledge((start * 4 + 2, start * 4 + 4));
        }
        assert_eq!(stream.pending(100, 100), Some((26, 28)), "sent again instead");
        stream.acknowledge((0, 40));
        assert!(stream.is_acked());
        assert_eq!(stream.pending(100, 100), None);
    }
}
