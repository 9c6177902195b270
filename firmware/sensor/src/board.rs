//! What a sensor needs of its board.

use core::ops::Range;

use fulmar_tiny::Instant;

/// A part of a line of the log. There is no `core::fmt` here: it would take 2 KB of flash and more.
#[derive(Clone, Copy, Debug)]
pub enum Word<'a> {
    /// Text as it is.
    Text(&'a str),
    /// A number, in decimal.
    Number(u32),
    /// Bytes that somebody else wrote; what is not printable ASCII becomes a dot.
    Bytes(&'a [u8]),
}

/// A board, its network included.
pub trait Board {
    /// Bytes a driver wants before a datagram, for its headers.
    const HEADROOM: usize;

    /// The time. It goes on while the board sleeps.
    fn now(&mut self) -> Instant;

    /// A clock that goes on without power, in seconds since some moment; wrong ones cost a round
    /// trip, because the server then refuses early data. Where certificates are checked (feature
    /// `x509`) that moment is the beginning of 1970.
    fn calendar_s(&mut self) -> u32;

    /// Fills `bytes` with entropy: fresh, unpredictable, never used before.
    fn entropy(&mut self, bytes: &mut [u8; 32]);

    /// Waits for the network's next datagram or a short while (some milliseconds at most).
    fn doze(&mut self);

    /// Takes a datagram from the server, if one has come: where in `buffer` it lies.
    fn receive(&mut self, buffer: &mut [u8]) -> Option<Range<usize>>;

    /// Sends the server the datagram of `len` bytes that begins at [`HEADROOM`](Self::HEADROOM).
    /// False if it could not go out; it is then as good as lost.
    fn send(&mut self, buffer: &mut [u8], len: usize) -> bool;

    /// Begins a connection: a fresh local port, so that an earlier connection's late packets go
    /// nowhere. Waits until datagrams can be sent, with `buffer` to work in; false if the network
    /// is not there.
    fn begin(&mut self, buffer: &mut [u8]) -> bool;

    /// The reading, written to `text`; returns its length.
    fn measure(&mut self, text: &mut [u8]) -> usize;

    /// Does what the broker says; false if it does not know how.
    fn obey(&mut self, command: &[u8]) -> bool;

    /// Writes a line to the log.
    fn log(&mut self, words: &[Word<'_>]);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    /// Whoever ports it counts on that.
    #[test]
    fn a_board_has_as_many_functions_as_the_texts_say() {
        let (_, after) = include_str!("board.rs").split_once("pub trait Board {").unwrap();
        let (functions, _) = after.split_once("\n}\n").unwrap();
        assert_eq!(functions.matches("\n    fn ").count(), 10);
        let guide = include_str!("../../../docs/firmware.md");
        assert!(guide.contains("`fulmar_sensor::Board`: ten small functions"));
        assert!(include_str!("lib.rs").contains("[`Board`] (ten functions)"));
    }
}
