//! Why a datagram is not a message.

/// Why a datagram is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It ends before its end, or a length in it reaches beyond it.
    #[error("cut off")]
    Short,
    /// Not version 1.
    #[error("version {0}")]
    Version(u8),
    /// A type, a command or an FEC encoding that we don't know.
    #[error("unknown kind {0}")]
    Kind(u8),
    /// A header length that does not fit the message, or a node without identity.
    #[error("contradictory header")]
    Header,
}
