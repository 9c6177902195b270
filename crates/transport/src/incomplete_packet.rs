//! The incomplete packet at the end of the bytes that a connection has sent so far.
//!
//! Packets are decoded in the buffer into which they were read; only the start of the last one is
//! kept here, and nothing at all while a connection is idle. When more arrives, exactly the bytes
//! that the packet lacks are appended, and what follows is again decoded in place: in however many
//! pieces a packet comes, its bytes are copied once (and by the growing vector), not once per piece.

use fulmar_mqtt::codec::packet_len;

/// Capacity in bytes that may be kept beyond the bytes held.
const SPARE_BYTES: usize = 4096;

/// Number of the offered bytes that were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketIntake {
    /// Bytes taken from the front.
    pub(crate) consumed: usize,
    /// Whether more may be offered now.
    pub(crate) go_on: bool,
}

/// Bytes that were received and not yet taken.
#[derive(Debug, Default)]
pub(crate) struct IncompletePacket(Vec<u8>);

impl IncompletePacket {
    /// Memory held, in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.0 = Vec::new();
    }

    /// Keeps `piece` without offering it: the reader is blocked.
    pub(crate) fn append(&mut self, piece: &[u8]) {
        self.0.extend_from_slice(piece);
    }

    /// Offers the kept bytes and then `piece` to `offer`; returns whether more may be offered.
    pub(crate) fn feed(
        &mut self,
        mut piece: &[u8],
        mut offer: impl FnMut(&[u8]) -> PacketIntake,
    ) -> bool {
        while !self.0.is_empty() {
            let lacking = lacking(&self.0);
            let n = lacking.min(piece.len());
            self.0.extend_from_slice(&piece[..n]);
            piece = &piece[n..];
            if n < lacking {
                return true;
            }
            let go_on = self.offer_kept(&mut offer);
            if !go_on || (n == 0 && piece.is_empty()) {
                self.0.extend_from_slice(piece);
                return go_on;
            }
        }
        if piece.is_empty() {
            return true;
        }
        let taken = offer(piece);
        if let Some(rest) = piece.get(taken.consumed..)
            && !rest.is_empty()
        {
            self.0 = rest.to_vec();
        }
        taken.go_on
    }

    /// Offers the kept bytes once more, even if there are none: the reader is no longer blocked.
    pub(crate) fn offer_kept(&mut self, mut offer: impl FnMut(&[u8]) -> PacketIntake) -> bool {
        let taken = offer(&self.0);
        if taken.consumed >= self.0.len() {
            self.0 = Vec::new();
        } else if taken.consumed > 0 {
            self.0.drain(..taken.consumed);
            self.0.shrink_to(self.0.len() + SPARE_BYTES);
        }
        taken.go_on
    }
}

/// Bytes to add to `start` before it is offered: up to the end of the packet, or one while
/// the length field is incomplete. Zero for a whole packet, and for a malformed length field, which
/// the broker answers.
fn lacking(start: &[u8]) -> usize {
    match packet_len(start, usize::MAX) {
        Ok(Some(len)) => len.total.saturating_sub(start.len()),
        Ok(None) => 1,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Takes whole packets as the core does, and counts the calls and the bytes it was shown.
    #[derive(Default)]
    struct Reader {
        packets: Vec<Vec<u8>>,
        offers: usize,
    }

    impl Reader {
        fn take(&mut self, data: &[u8]) -> PacketIntake {
            self.offers += 1;
            let mut consumed = 0;
            while let Ok(Some(frame)) =
                fulmar_mqtt::codec::peek_frame(&data[consumed..], usize::MAX)
            {
                self.packets.push(data[consumed..consumed + frame.len].to_vec());
                consumed += frame.len;
            }
            PacketIntake { consumed, go_on: true }
        }
    }

    fn packet(body: usize) -> Vec<u8> {
        let mut bytes = vec![0x30];
        let mut rest = body;
        loop {
            let digit = (rest % 128) as u8;
            rest /= 128;
            bytes.push(if rest > 0 { digit | 0x80 } else { digit });
            if rest == 0 {
                break;
            }
        }
        bytes.extend((0..body).map(|i| i as u8));
        bytes
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_packets(
            bodies in proptest::collection::vec(0usize..400, 1..20),
            cuts in proptest::collection::vec(1usize..300, 1..200),
        ) {
            let packets: Vec<_> = bodies.into_iter().map(packet).collect();
            let stream = packets.concat();
            let mut incomplete = IncompletePacket::default();
            let mut reader = Reader::default();
            let mut rest = &stream[..];
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at((*cuts.next().unwrap_or(&1)).min(rest.len()));
                prop_assert!(incomplete.feed(piece, |data| reader.take(data)));
                rest = after;
            }
            prop_assert_eq!(incomplete.capacity(), 0);
            prop_assert_eq!(reader.packets, packets);
        }
    }

    #[test]
    fn a_large_packet_is_offered_once_when_complete() {
        let whole = packet(1024 * 1024);
        let mut incomplete = IncompletePacket::default();
        let mut reader = Reader::default();
        for piece in whole.chunks(1400) {
            incomplete.feed(piece, |data| reader.take(data));
        }
        assert_eq!(reader.packets.len(), 1);
        assert!(reader.offers <= 2, "offered {} times", reader.offers);
    }

    #[test]
    fn a_blocked_reader_gets_everything_in_order_later() {
        let stream = [packet(5), packet(6), packet(7)].concat();
        let mut incomplete = IncompletePacket::default();
        let first = packet(5).len();
        assert!(
            !incomplete.feed(&stream[..20], |_| PacketIntake { consumed: first, go_on: false })
        );
        incomplete.append(&stream[20..]);
        let mut reader = Reader::default();
        assert!(incomplete.offer_kept(|data| reader.take(data)));
        assert_eq!(reader.packets, [packet(6), packet(7)]);
        assert_eq!(incomplete.capacity(), 0);
    }

    #[test]
    fn a_malformed_length_is_shown_at_once() {
        let mut incomplete = IncompletePacket::default();
        let mut shown = Vec::new();
        let mut offer = |data: &[u8]| {
            shown.push(data.len());
            PacketIntake { consumed: 0, go_on: data.len() < 5 }
        };
        for byte in [0x30, 0xff, 0xff, 0xff, 0xff] {
            incomplete.feed(&[byte], &mut offer);
        }
        assert_eq!(shown, [1, 2, 3, 4, 5]);
    }
}
