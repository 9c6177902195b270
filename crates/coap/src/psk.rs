//! Pre-shared keys as people write them, in files and on command lines.

use fulmar_text::hex;

/// Shortest key that the broker accepts: shorter ones can be guessed from one recorded handshake.
pub const MIN_KEY_BYTES: usize = 16;

/// A key as it is written: text, or hexadecimal digits after `0x`; none if those are wrong.
#[must_use]
pub fn parse(text: &str) -> Option<Vec<u8>> {
    match text.strip_prefix("0x") {
        Some(digits) => hex::decode(digits),
        None => Some(text.as_bytes().to_vec()),
    }
}
