//! The Internet checksum (RFC 1071).

/// A sum under way.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum(u32);

impl Sum {
    /// Adds bytes that begin at an even place. At most 64 KiB in all: the sum cannot overflow.
    pub(crate) fn add(mut self, bytes: &[u8]) -> Sum {
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            self.0 += u32::from(u16::from_be_bytes([pair[0], low]));
        }
        self
    }

    /// The complement of the folded sum: 0 over data that holds its own checksum.
    pub(crate) fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}
