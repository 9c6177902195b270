//! A packet's frame: its fixed header and where its body lies (section 2.1).

/// One whole packet, not yet looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Packet type and flags.
    pub first: u8,
    /// Bytes behind the fixed header.
    pub body: &'a [u8],
    /// Length of the whole packet in bytes.
    pub len: usize,
}

impl Frame<'_> {
    /// Packet type, 0 to 15.
    #[must_use]
    pub fn packet_type(&self) -> u8 {
        self.first >> 4
    }
}
