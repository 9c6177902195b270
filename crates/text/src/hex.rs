//! Bytes as hexadecimal digits.

/// Two lower-case digits per byte.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of pairs of digits, of either case; `None` for anything else, signs and spaces included.
#[must_use]
pub fn decode(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_pairs_of_either_case_and_nothing_else() {
        assert_eq!(encode(&[0, 0x0f, 0xa0, 255]), "000fa0ff");
        assert_eq!(decode("000fA0ff"), Some(vec![0, 0x0f, 0xa0, 255]));
        assert_eq!(decode(""), Some(Vec::new()));
        for wrong in ["0", "000", "0g", "+f", "-1", " 1", "0x00", "é"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
