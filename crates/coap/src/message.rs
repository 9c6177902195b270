//! Messages: coap-lite's packets, checked, and their options by meaning (RFC 7252 sections 3 and 5.10).

use std::collections::LinkedList;

use coap_lite::{CoapOption, Packet};

pub(crate) use coap_lite::MessageType as Kind;

use crate::block::{Block, read_uint, uint};

/// A message code: class in the upper three bits, detail in the lower five (RFC 7252 section 3).
pub type Code = u8;

/// The codes that are used here.
#[allow(missing_docs)]
pub mod code {
    use super::Code;

    pub const EMPTY: Code = 0;
    pub const CREATED: Code = code_from(2, 1);
    pub const DELETED: Code = code_from(2, 2);
    pub const VALID: Code = code_from(2, 3);
    pub const CHANGED: Code = code_from(2, 4);
    pub const CONTENT: Code = code_from(2, 5);
    pub const CONTINUE: Code = code_from(2, 31);
    pub const BAD_REQUEST: Code = code_from(4, 0);
    pub const UNAUTHORIZED: Code = code_from(4, 1);
    pub const BAD_OPTION: Code = code_from(4, 2);
    pub const FORBIDDEN: Code = code_from(4, 3);
    pub const NOT_FOUND: Code = code_from(4, 4);
    pub const METHOD_NOT_ALLOWED: Code = code_from(4, 5);
    pub const NOT_ACCEPTABLE: Code = code_from(4, 6);
    pub const INCOMPLETE: Code = code_from(4, 8);
    pub const TOO_LARGE: Code = code_from(4, 13);
    pub const UNSUPPORTED_FORMAT: Code = code_from(4, 15);
    pub const TOO_MANY_REQUESTS: Code = code_from(4, 29);
    pub const INTERNAL_ERROR: Code = code_from(5, 0);
    pub const UNAVAILABLE: Code = code_from(5, 3);
    pub const GATEWAY_TIMEOUT: Code = code_from(5, 4);
    pub const NO_PROXYING: Code = code_from(5, 5);

    const fn code_from(class: u8, detail: u8) -> Code {
        class << 5 | detail
    }

    /// In the usual form, such as 2.05.
    #[must_use]
    pub fn text(code: Code) -> String {
        format!("{}.{:02}", code >> 5, code & 0x1F)
    }

    /// Whether it is of class 2.
    #[must_use]
    pub fn is_success(code: Code) -> bool {
        code >> 5 == 2
    }
}

/// The methods of RFC 7252; those of RFC 8132 are answered with 4.05.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Method {
    Get,
    Post,
    Put,
    Delete,
}

impl Method {
    pub(crate) fn from_code(code: Code) -> Option<Method> {
        match code {
            1 => Some(Method::Get),
            2 => Some(Method::Post),
            3 => Some(Method::Put),
            4 => Some(Method::Delete),
            _ => None,
        }
    }

    pub(crate) fn code(self) -> Code {
        self as u8 + 1
    }
}

/// Option numbers that coap-lite has no name for.
pub(crate) const ECHO: CoapOption = CoapOption::Unknown(252);
const REQUEST_TAG: u16 = 292;

/// Reads a datagram. `None` for those to be ignored: not CoAP, another version, or a message format error; [`refusal`]
/// answers the last.
pub(crate) fn read(datagram: &[u8]) -> Option<Packet> {
    let mut packet = Packet::from_bytes(datagram).ok()?;
    drop_unsound_electives(&mut packet);
    let header = &packet.header;
    // Section 3: a payload marker without a payload is a format error; coap-lite accepts it.
    let marker_only = packet.payload.is_empty() && ends_in_marker(datagram, &packet);
    let empty = code_of(&packet) == code::EMPTY;
    let sound_empty = !empty || datagram.len() == 4;
    (header.get_version() == 1 && !marker_only && sound_empty).then_some(packet)
}

/// Whether the last byte is a payload marker rather than the end of an option.
fn ends_in_marker(datagram: &[u8], packet: &Packet) -> bool {
    datagram.last() == Some(&0xFF)
        && packet.to_bytes_unlimited().is_ok_and(|written| written.len() < datagram.len())
}

/// The reset for a confirmable message with a format error (section 4.2).
pub(crate) fn refusal(datagram: &[u8]) -> Option<Vec<u8>> {
    match datagram {
        [0x40..0x50, _, high, low, ..] => {
            Some(bare(Kind::Reset, u16::from_be_bytes([*high, *low])))
        }
        _ => None,
    }
}

/// True if the value has a length that its option allows (section 5.10, RFC 7641, 7959 and 9175).
fn is_sound(number: u16, value: &[u8]) -> bool {
    let lengths = match CoapOption::from(number) {
        CoapOption::UriHost | CoapOption::ProxyScheme => 1..=255,
        CoapOption::ProxyUri => 1..=1034,
        CoapOption::UriPath | CoapOption::UriQuery => 0..=255,
        CoapOption::ETag => 1..=8,
        CoapOption::UriPort | CoapOption::ContentFormat | CoapOption::Accept => 0..=2,
        CoapOption::Observe | CoapOption::Block1 | CoapOption::Block2 => 0..=3,
        CoapOption::MaxAge | CoapOption::Size1 | CoapOption::Size2 => 0..=4,
        ECHO => 1..=40,
        CoapOption::Unknown(REQUEST_TAG) => 0..=8,
        _ => return true,
    };
    lengths.contains(&value.len())
}

fn is_critical(number: u16) -> bool {
    number % 2 == 1
}

/// Removes elective options of a wrong length, which count as unknown (section 5.4.3).
fn drop_unsound_electives(packet: &mut Packet) {
    let unsound = |(&number, values): (&u16, &LinkedList<Vec<u8>>)| {
        let is_unsound = values.iter().any(|value| !is_sound(number, value));
        (is_unsound && !is_critical(number)).then_some(number)
    };
    for number in packet.options().filter_map(unsound).collect::<Vec<_>>() {
        packet.clear_option(number.into());
    }
}

/// A message to be filled in.
pub(crate) fn new(kind: Kind, code: Code, id: u16, token: &[u8]) -> Packet {
    let mut packet = Packet::new();
    packet.header.set_version(1);
    packet.header.set_type(kind);
    packet.header.code = code.into();
    packet.header.message_id = id;
    packet.set_token(token.to_vec());
    packet
}

/// An empty acknowledgement or reset.
pub(crate) fn bare(kind: Kind, id: u16) -> Vec<u8> {
    write(&new(kind, code::EMPTY, id, &[]))
}

/// Writes a message. Messages of this crate have no option that is too long.
pub(crate) fn write(packet: &Packet) -> Vec<u8> {
    packet.to_bytes_unlimited().unwrap_or_default()
}

pub(crate) fn code_of(packet: &Packet) -> Code {
    packet.header.code.into()
}

pub(crate) fn kind_of(packet: &Packet) -> Kind {
    packet.header.get_type()
}

/// An option's first value as a number.
pub(crate) fn number(packet: &Packet, option: CoapOption) -> Option<u32> {
    packet.get_first_option(option).and_then(|value| read_uint(value))
}

pub(crate) fn set_number(packet: &mut Packet, option: CoapOption, value: u32) {
    packet.add_option(option, uint(value));
}

/// A block option; `Err` if it is invalid.
pub(crate) fn block(packet: &Packet, option: CoapOption) -> Result<Option<Block>, ()> {
    match packet.get_first_option(option) {
        Some(value) => Block::read(value).map(Some).ok_or(()),
        None => Ok(None),
    }
}

/// An option's values as text; `Err` if one is not UTF-8.
pub(crate) fn texts(packet: &Packet, option: CoapOption) -> Result<Vec<String>, ()> {
    let values = packet.get_option(option).into_iter().flatten();
    values.map(|value| String::from_utf8(value.clone()).map_err(drop)).collect()
}

/// Whether a request has an unknown critical option (section 5.4.1), or one of a wrong length (5.4.3) or more often than
/// allowed (5.4.5).
pub(crate) fn has_unknown_critical(packet: &Packet) -> bool {
    let (path, query) = (u16::from(CoapOption::UriPath), u16::from(CoapOption::UriQuery));
    let known = |number: u16| {
        let named = !matches!(CoapOption::from(number), CoapOption::Unknown(_));
        let unserved = [CoapOption::IfMatch, CoapOption::IfNoneMatch, CoapOption::Oscore];
        named && !unserved.map(u16::from).contains(&number)
    };
    packet.options().any(|(&number, values)| {
        let repeated = values.len() > 1 && ![path, query].contains(&number);
        let sound = values.iter().all(|value| is_sound(number, value));
        is_critical(number) && (!known(number) || repeated || !sound)
    })
}

/// Distinguishes a body's blocks from another body's (RFC 7959 section 2.1 and RFC 9175 section 3): the options of the
/// request that are part of its cache key, Request-Tag, and the method.
pub(crate) fn body_key(packet: &Packet) -> Vec<u8> {
    let parts = [CoapOption::UriPath, CoapOption::UriQuery, CoapOption::Accept].map(u16::from);
    let mut key = vec![code_of(packet)];
    for (number, values) in packet.options() {
        if !parts.contains(number) && *number != REQUEST_TAG {
            continue;
        }
        for value in values {
            key.extend_from_slice(&number.to_be_bytes());
            // No option is longer than a datagram, so two bytes are enough for its length.
            key.extend_from_slice(&(value.len() as u16).to_be_bytes());
            key.extend_from_slice(value);
        }
    }
    key
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_message_is_ignored() {
        // A CON GET with the path "a", then the same with each rule of section 3 broken.
        let good = [0x40, 0x01, 0, 7, 0xB1, b'a'];
        assert_eq!(texts(&read(&good).unwrap(), CoapOption::UriPath).unwrap(), ["a"]);
        for (bad, why) in [
            (&[0x40, 0x01, 0][..], "shorter than a header"),
            (&[0x80, 0x01, 0, 7], "version 2"),
            (&[0x49, 0x01, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8, 9], "a token of nine bytes"),
            (&[0x42, 0x01, 0, 7, 1], "a token cut off"),
            (&[0x40, 0x01, 0, 7, 0xB5, b'a'], "an option cut off"),
            (&[0x40, 0x01, 0, 7, 0xB1, b'a', 0xFF], "a marker without a payload"),
            (&[0x41, 0x00, 0, 7, 9], "an empty message with a token"),
        ] {
            assert!(read(bad).is_none(), "{why}");
        }
        // An option that ends in 0xFF has no marker.
        assert!(read(&[0x40, 0x01, 0, 7, 0xB1, 0xFF]).is_some());
    }

    #[test]
    fn critical_options_are_known_or_refused() {
        let mut packet = new(Kind::Confirmable, 1, 1, &[]);
        packet.add_option(CoapOption::UriPath, b"a".to_vec());
        packet.add_option(CoapOption::UriPath, b"b".to_vec());
        packet.add_option(CoapOption::Unknown(2048), Vec::new());
        assert!(!has_unknown_critical(&packet), "elective ones may be ignored");
        let mut unknown = packet.clone();
        unknown.add_option(CoapOption::Unknown(2049), Vec::new());
        assert!(has_unknown_critical(&unknown));
        let mut twice = packet.clone();
        twice.add_option(CoapOption::Accept, vec![0]);
        twice.add_option(CoapOption::Accept, vec![1]);
        assert!(has_unknown_critical(&twice));
    }

    #[test]
    fn codes_read_as_in_the_rfc() {
        assert_eq!(code::text(code::CONTENT), "2.05");
        assert_eq!(code::CONTENT, 69);
        assert_eq!(code::text(code::TOO_LARGE), "4.13");
    }
}
