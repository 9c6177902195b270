//! DISCONNECT and AUTH (sections 3.14 and 3.15): a reason and properties, both of which may be
//! left out.

use crate::error::DecodeError;
use crate::properties::{Properties, PropertyContext};
use crate::reason::ReasonCode;
use crate::types::Version;
use crate::wire::{Reader, end, put_packet};

/// The announced end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnect<'a> {
    /// Why.
    pub reason: ReasonCode,
    /// Properties.
    pub properties: Properties<'a>,
}

impl<'a> Disconnect<'a> {
    pub(super) fn decode(body: &'a [u8], version: Version) -> Result<Disconnect<'a>, DecodeError> {
        if version == Version::V311 && !body.is_empty() {
            return Err(DecodeError::Length);
        }
        let (reason, properties) = decode_reason(body, PropertyContext::Disconnect)?;
        if !Disconnect::may_say(reason) {
            return Err(DecodeError::ReasonCode(reason.as_u8()));
        }
        Ok(Disconnect { reason, properties })
    }

    /// Whether a DISCONNECT may have this reason (table of section 3.14.2.1, [MQTT-3.14.2-1]).
    fn may_say(reason: ReasonCode) -> bool {
        matches!(
            reason.as_u8(),
            0x00 | 0x04 | 0x80..=0x83 | 0x87 | 0x89 | 0x8B | 0x8D..=0x90 | 0x93..=0xA2
        )
    }

    /// Appends the packet. The reason must be one of section 3.14.2.1.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        debug_assert!(Disconnect::may_say(self.reason), "DISCONNECT cannot give {}", self.reason);
        match version {
            Version::V311 => out.extend_from_slice(&[0xE0, 0]),
            Version::V5 => encode_reason(out, 0xE0, self.reason, self.properties),
        }
    }
}

/// A step of an enhanced authentication (section 4.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auth<'a> {
    /// Success, continue or re-authenticate.
    pub reason: ReasonCode,
    /// Properties.
    pub properties: Properties<'a>,
}

impl<'a> Auth<'a> {
    pub(super) fn decode(body: &'a [u8]) -> Result<Auth<'a>, DecodeError> {
        let (reason, properties) = decode_reason(body, PropertyContext::Auth)?;
        // [MQTT-3.15.2-1].
        if !matches!(
            reason,
            ReasonCode::Success | ReasonCode::ContinueAuthentication | ReasonCode::ReAuthenticate
        ) {
            return Err(DecodeError::ReasonCode(reason.as_u8()));
        }
        Ok(Auth { reason, properties })
    }

    /// Appends the packet.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_reason(out, 0xF0, self.reason, self.properties);
    }
}

fn decode_reason(
    body: &[u8],
    place: PropertyContext,
) -> Result<(ReasonCode, Properties<'_>), DecodeError> {
    let mut reader = Reader::new(body);
    if reader.is_empty() {
        return Ok((ReasonCode::Success, Properties::NONE));
    }
    let code = reader.u8()?;
    let reason = ReasonCode::from_u8(code).ok_or(DecodeError::ReasonCode(code))?;
    let properties =
        if reader.is_empty() { Properties::NONE } else { Properties::read(&mut reader, place)? };
    end(reader)?;
    Ok((reason, properties))
}

fn encode_reason(out: &mut Vec<u8>, first: u8, reason: ReasonCode, properties: Properties<'_>) {
    if properties.is_empty() && reason == ReasonCode::Success {
        out.extend_from_slice(&[first, 0]);
        return;
    }
    put_packet(out, first, |out| {
        out.push(reason.as_u8());
        if !properties.is_empty() {
            properties.encode(out);
        }
    });
}
