//! The grammar of messages (RFC 5802, section 7): attributes with a letter, separated by commas.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::MAX_MESSAGE_BYTES;
use crate::error::ScramError;

/// Bytes of a nonce that a peer may choose.
const MAX_NONCE_BYTES: usize = 256;

pub(crate) fn text(message: &[u8]) -> Result<&str, ScramError> {
    if message.len() > MAX_MESSAGE_BYTES {
        return Err(ScramError::Malformed("it is too long"));
    }
    let text = std::str::from_utf8(message);
    let text = text.map_err(|_| ScramError::Malformed("it is not UTF-8"))?;
    if text.contains('\0') {
        return Err(ScramError::Malformed("U+0000"));
    }
    Ok(text)
}

/// Reads attributes in order.
pub(crate) struct Attributes<'a>(Option<&'a str>);

impl<'a> Attributes<'a> {
    pub(crate) fn new(text: &'a str) -> Attributes<'a> {
        Attributes(Some(text))
    }

    /// The value of the next attribute, which must have this letter.
    pub(crate) fn expect(&mut self, letter: char) -> Result<&'a str, ScramError> {
        let rest = self.0.ok_or(ScramError::Malformed("an attribute is missing"))?;
        let (attribute, rest) =
            rest.split_once(',').map_or((rest, None), |(one, rest)| (one, Some(rest)));
        let value = attribute.strip_prefix(letter).and_then(|rest| rest.strip_prefix('='));
        let value = value.ok_or(ScramError::Malformed("not the attribute that is next"))?;
        self.0 = rest;
        Ok(value)
    }

    /// Ends the message. Extensions that follow are none that is known here; those that are optional have no effect.
    pub(crate) fn end(self) -> Result<(), ScramError> {
        let Some(rest) = self.0 else { return Ok(()) };
        rest.split(',').try_for_each(|attribute| {
            let (name, value) = attribute.split_once('=').unwrap_or_default();
            let letter = name.len() == 1 && name.as_bytes()[0].is_ascii_alphabetic();
            // `m` is an extension that the receiver must know.
            let known = letter && name != "m" && !value.is_empty();
            known.then_some(()).ok_or(ScramError::Malformed("an extension"))
        })
    }
}

/// Checks a nonce: printable ASCII without commas.
pub(crate) fn nonce(value: &str) -> Result<&str, ScramError> {
    let printable = value.bytes().all(|byte| matches!(byte, 0x21..=0x7E) && byte != b',');
    let sized = !value.is_empty() && value.len() <= MAX_NONCE_BYTES;
    (printable && sized).then_some(value).ok_or(ScramError::Malformed("nonce"))
}

pub(crate) fn decoded(value: &str) -> Result<Vec<u8>, ScramError> {
    STANDARD.decode(value).map_err(|_| ScramError::Malformed("base64"))
}

pub(crate) fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// A name with its commas and equals signs escaped.
pub(crate) fn escaped(name: &str) -> String {
    name.replace('=', "=3D").replace(',', "=2C")
}

/// The name of what [`escaped`] has written.
pub(crate) fn unescaped(name: &str) -> Result<String, ScramError> {
    let mut parts = name.split('=');
    let mut all = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (letter, rest) = match (part.strip_prefix("2C"), part.strip_prefix("3D")) {
            (Some(rest), _) => (',', rest),
            (_, Some(rest)) => ('=', rest),
            _ => return Err(ScramError::Malformed("the user's name")),
        };
        all.push(letter);
        all.push_str(rest);
    }
    if all.is_empty() { Err(ScramError::Malformed("the user's name")) } else { Ok(all) }
}
