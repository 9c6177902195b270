//! How far a value can be trusted to be what its meter sent.

use serde::Serialize;

/// Protection of a message, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Security {
    /// None: anybody could have sent it.
    None,
    /// The manufacturer's own encryption.
    Manufacturer,
    /// Encrypted by the extended link layer.
    EllCtr,
    /// Mode 5: AES-128-CBC under the meter's key.
    Mode5,
    /// Mode 7: AES-128-CBC under a key derived for the message.
    Mode7,
}

/// Evidence that the meter sent a value.
///
/// Only an authentication code proves it. The checksum within the extended link layer's counter mode does not: who flips
/// bits of the ciphertext can correct the checksum without the key. Mode 5 has two bytes that are known, so most changes
/// are noticed where they garble a block, but its address and access number can change the first block alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    /// Nothing: anybody could have sent it.
    #[default]
    Unauthenticated,
    /// It was encrypted under the meter's key, without an authentication code: it may have been altered.
    Encrypted,
    /// An authentication code under the meter's key.
    Authenticated,
}

/// The part of a message's plain bytes that is protected, and how.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Protected {
    pub(crate) by: Protection,
    /// From the first byte on.
    pub(crate) bytes: usize,
}

impl Protected {
    /// Returns the protection of data that end at this byte.
    pub(crate) fn until(self, end: usize) -> Protection {
        if end <= self.bytes { self.by } else { Protection::Unauthenticated }
    }
}
