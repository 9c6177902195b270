//! Recorded links in Mahimahi's format: one line of text per delivery opportunity.
//!
//! Each line is a time in milliseconds since the start at which one full-sized packet (1,500 bytes) can be sent;
//! equal times are several opportunities. After the last line, the trace starts again; its length is the last line's
//! time. Smaller packets share an opportunity, larger ones take several, and an unused opportunity is lost.
//! (`mm-link(1)`)

use crate::units::{MAX_TIME, MILLISECOND, Nanos, SECOND};

/// Bytes per opportunity. Mahimahi's 1,504 include the 4 bytes that a TUN device puts before a packet; the lab counts
/// IP packets.
const OPPORTUNITY: u64 = 1500;
/// The most opportunities a trace may have: half an hour at 100 Mbit/s.
const MAX_LINES: usize = 16_000_000;

/// A trace that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// A line is not a whole number of milliseconds, or is earlier than the line before it.
    #[error("line {0}: expected a time in whole milliseconds, not earlier than the line before")]
    Line(usize),
    /// It has no opportunity.
    #[error("a trace needs at least one delivery opportunity, and must last at least 1 ms")]
    Empty,
    /// Too long.
    #[error("a trace may have at most {MAX_LINES} lines and last at most a day")]
    TooLong,
}

/// A recorded link.
#[derive(Debug, PartialEq, Eq)]
pub struct Trace {
    /// Times of the opportunities, in ns, ascending.
    opportunities: Vec<Nanos>,
    length: Nanos,
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// It is empty, too long, or a line is not a time.
    pub fn parse(text: &str) -> Result<Trace, TraceError> {
        let mut opportunities = Vec::new();
        let mut last = 0;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let time = line.parse::<u64>().map_err(|_| TraceError::Line(number + 1))?;
            let time = time.saturating_mul(MILLISECOND);
            if time < last {
                return Err(TraceError::Line(number + 1));
            }
            if time > MAX_TIME || opportunities.len() == MAX_LINES {
                return Err(TraceError::TooLong);
            }
            last = time;
            opportunities.push(time);
        }
        if last == 0 {
            return Err(TraceError::Empty);
        }
        Ok(Trace { opportunities, length: last })
    }

    /// The mean rate in bits per second, at least 1.
    pub fn mean_rate(&self) -> u64 {
        let bits = self.opportunities.len() as u128 * u128::from(OPPORTUNITY) * 8;
        ((bits * u128::from(SECOND) / u128::from(self.length)) as u64).max(1)
    }

    /// Length in ns, after which the trace starts again.
    pub fn length(&self) -> Nanos {
        self.length
    }

    /// The time of the opportunity with this running number (over all rounds).
    fn time(&self, number: u64) -> Nanos {
        let count = self.opportunities.len() as u64;
        (number / count) * self.length + self.opportunities[(number % count) as usize]
    }

    /// The running number of the first opportunity at or after a time.
    fn first_at(&self, at: Nanos) -> u64 {
        let count = self.opportunities.len() as u64;
        // An opportunity at the end of a round (there always is one) belongs to that round.
        let round = (at / self.length).saturating_sub(u64::from(at.is_multiple_of(self.length)));
        let within = at - round * self.length;
        round * count + self.opportunities.partition_point(|time| *time < within) as u64
    }
}

/// The position in a trace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    /// Running number of the first unused opportunity.
    next: u64,
    /// Bytes left in the one before it.
    left: u64,
}

impl Cursor {
    /// When transmission of a packet that is ready at `ready` begins.
    pub(crate) fn start(&self, trace: &Trace, ready: Nanos) -> Nanos {
        trace.time(self.open(trace, ready).next - 1)
    }

    /// The cursor, at an opportunity with room left.
    fn open(&self, trace: &Trace, ready: Nanos) -> Cursor {
        if self.left > 0 && trace.time(self.next - 1) >= ready {
            return *self;
        }
        Cursor { next: trace.first_at(ready).max(self.next) + 1, left: OPPORTUNITY }
    }

    /// Sends a packet; returns the time of the opportunity that carries its end.
    pub(crate) fn send(&mut self, trace: &Trace, ready: Nanos, bytes: u64) -> Nanos {
        *self = self.open(trace, ready);
        let mut bytes = bytes;
        while bytes > self.left {
            bytes -= self.left;
            self.next += 1;
            self.left = OPPORTUNITY;
        }
        self.left -= bytes;
        trace.time(self.next - 1)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Nanos = MILLISECOND;

    #[test]
    fn each_full_packet_takes_an_opportunity_and_the_trace_repeats() {
        let trace = Trace::parse("1\n1\n5\n10\n").unwrap();
        let mut cursor = Cursor::default();
        let sent: Vec<_> = (0..9).map(|_| cursor.send(&trace, 0, 1500) / MS).collect();
        assert_eq!(sent, [1, 1, 5, 10, 11, 11, 15, 20, 21]);
        assert_eq!(trace.mean_rate(), 4 * 12_000 * 100);
    }

    #[test]
    fn small_packets_share_an_opportunity_and_large_ones_take_several() {
        let trace = Trace::parse("2\n4\n6\n").unwrap();
        let mut cursor = Cursor::default();
        let sent: Vec<_> = [700, 700, 700, 3000]
            .into_iter()
            .map(|bytes| cursor.send(&trace, 0, bytes) / MS)
            .collect();
        // 1,500 at 2 ms: two packets and 100 bytes of the third, whose 600 others go at 4 ms.
        // Then 900 + 1,500 + 600 bytes at 4, 6 and, in the next round, 8 ms.
        assert_eq!(sent, [2, 2, 4, 8]);
    }

    #[test]
    fn an_unused_opportunity_is_lost() {
        let trace = Trace::parse("1\n2\n9\n").unwrap();
        let mut cursor = Cursor::default();
        assert_eq!(cursor.send(&trace, 3 * MS, 100), 9 * MS);
        // The rest of the opportunity at 9 ms is gone at 9.5 ms; the next round's first is at 10.
        assert_eq!(cursor.send(&trace, 9 * MS + MS / 2, 100), 10 * MS);
        assert_eq!(
            cursor.send(&trace, 30 * MS, 100),
            36 * MS,
            "the round from 27 ms has one at 9 ms"
        );
    }

    #[test]
    fn mistakes_name_their_line() {
        assert_eq!(Trace::parse("1\nfast\n"), Err(TraceError::Line(2)));
        assert_eq!(Trace::parse("5\n# note\n4\n"), Err(TraceError::Line(3)));
        assert_eq!(Trace::parse("\n"), Err(TraceError::Empty));
        assert_eq!(Trace::parse("0\n"), Err(TraceError::Empty));
        assert_eq!(Trace::parse("99999999999\n"), Err(TraceError::TooLong));
        let plain = Trace::parse("4\n5\n");
        assert!(plain.is_ok() && plain == Trace::parse("4\r\n\r\n# note\r\n5"), "nor do these");
    }

    proptest! {
        #[test]
        fn packets_leave_in_order_not_before_they_are_ready_and_at_the_mean_rate(
            mut lines in proptest::collection::vec(1u64..200, 1..40),
            sizes in proptest::collection::vec(20u64..4000, 1..200),
        ) {
            lines.sort_unstable();
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let trace = Trace::parse(&text).unwrap();
            let mut cursor = Cursor::default();
            let (mut last, mut total) = (0, 0);
            for size in &sizes {
                let start = cursor.start(&trace, last);
                let end = cursor.send(&trace, last, *size);
                prop_assert!(start >= last && end >= start);
                last = end;
                total += size;
            }
            // A backlogged transmitter uses every opportunity: exactly the number that the bytes need.
            let needed = total.div_ceil(OPPORTUNITY);
            prop_assert_eq!(last, trace.time(needed - 1));
        }
    }
}
