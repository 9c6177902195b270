//! Why one frame gave no readings, and what to do about it.
//!
//! Every error is that of a frame; none of them ends a stream, and none holds a key.

use crate::address::Address;
use crate::frame::FrameError;

/// Why a frame could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The link layer is damaged or cut.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A layer promises more bytes than there are.
    #[error("truncated: the frame ends within its {0}")]
    Short(&'static str),
    /// A layer's field has a value that cannot be.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// Encrypted, and there is no key.
    #[error("encrypted, and there is no key for {0}: add it to the keys file")]
    NoKey(Address),
    /// Decrypted to nonsense.
    #[error("wrong key for {0}, or a damaged frame: compare the key with the meter's papers")]
    WrongKey(Address),
    /// The authentication code does not fit.
    #[error("authentication code of {0} does not match: forged, damaged, or the wrong key")]
    Forged(Address),
    /// Was here before, or is older than what was.
    #[error("replayed: {0} sent this before; ignored")]
    Replayed(Address),
    /// Only the data of records whose headers have not been seen.
    #[error("compact frame of unknown format {0:04X}: wait for a full frame of this model")]
    UnknownFormat(u16),
    /// A compact frame that does not give the full frame its sender meant.
    #[error("compact frame: the restored full frame does not match its checksum")]
    CompactMismatch,
    /// A security mode that is not implemented.
    #[error("security mode {0} is not supported")]
    Mode(u8),
    /// Something else than readings.
    #[error("CI field {0:02X} ({1}) holds no readings")]
    Ci(u8, &'static str),
    /// One part of a message in several frames.
    #[error("fragment {0} of a message in several frames, which are not put together")]
    Fragment(u8),
}

impl Error {
    /// A word for scripts, which stays the same when the text changes.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Frame(FrameError::Checksum { .. }) => "checksum",
            Self::Frame(FrameError::Truncated { .. }) | Self::Short(_) => "truncated",
            Self::Frame(_) | Self::Malformed(_) => "malformed",
            Self::NoKey(_) => "no-key",
            Self::WrongKey(_) => "wrong-key",
            Self::Forged(_) => "forged",
            Self::Replayed(_) => "replayed",
            Self::UnknownFormat(_) => "unknown-format",
            Self::CompactMismatch => "compact-mismatch",
            Self::Mode(_) | Self::Ci(..) | Self::Fragment(_) => "unsupported",
        }
    }
}
