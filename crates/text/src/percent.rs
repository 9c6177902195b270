//! Percent-encoding (RFC 3986 section 2.1).

/// Encodes a text as one segment of a path, or one value of a query: only unreserved characters remain.
#[must_use]
pub fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_identifier_is_one_segment() {
        assert_eq!(encode("a/b?c d%é"), "a%2Fb%3Fc%20d%25%C3%A9");
    }
}
