//! Pre-shared keys as people write them, in files and on command lines.

/// Shortest key that the broker accepts: shorter ones can be guessed from one recorded handshake.
pub const MIN_KEY_BYTES: usize = 16;

/// A key as it is written: text, or hexadecimal digits after `0x`; none if those are wrong.
#[must_use]
pub fn parse(text: &str) -> Option<Vec<u8>> {
    let Some(digits) = text.strip_prefix("0x") else { return Some(text.as_bytes().to_vec()) };
    let digits: Option<Vec<u8>> =
        digits.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
