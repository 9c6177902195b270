//! Pieces of streams that wait for those before them. quinn keeps some 100 bytes for each, and accepts up to two thousand per
//! stream: a client that leaves gaps has the server keep a hundred times what it sends, and how many pieces wait is not to
//! be seen from outside. So while the process' memory is short, connections are closed whose clients have sent suspiciously
//! many.

use fulmar_broker::MemoryPressure;

/// Fewer are never suspicious.
pub(super) const FEW: u64 = 1024;
/// A packet has mostly one piece, and few clients use several streams in all of their packets.
const PER_DATAGRAM: u64 = 2;

/// Whether a connection is to be closed: its client has sent this many STREAM frames in this many datagrams, and has this
/// many streams open.
pub fn has_suspicious_pieces(
    pressure: MemoryPressure,
    frames: u64,
    datagrams: u64,
    streams: usize,
) -> bool {
    match pressure {
        MemoryPressure::None => false,
        MemoryPressure::High => frames > FEW + PER_DATAGRAM * datagrams,
        // Not only that: they may be alone in their packets. On one stream they are at most two thousand.
        MemoryPressure::Rising => frames > FEW && streams > 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_the_reason_stays() {
        use MemoryPressure::{High, None, Rising};
        // Many pieces in few packets, on several streams; and alone in their packets.
        let fragments = [(32_000, 300, 32), (32_000, 32_000, 32)];
        let closed = |pressure| fragments.map(|(f, d, s)| has_suspicious_pieces(pressure, f, d, s));
        assert_eq!([None, High, Rising].map(closed), [[false; 2], [true, false], [true; 2]]);
        // A busy client with one stream, and a new one with several.
        for (frames, datagrams, streams) in [(1_000_000, 900_000, 1), (1000, 20, 32)] {
            assert!(!has_suspicious_pieces(High, frames, datagrams, streams));
            assert!(!has_suspicious_pieces(Rising, frames, datagrams, streams));
        }
    }
}
