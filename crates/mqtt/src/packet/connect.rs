//! CONNECT and CONNACK (sections 3.1 and 3.2).

use crate::error::DecodeError;
use crate::properties::{Properties, PropertyContext};
use crate::reason::ReasonCode;
use crate::types::{QoS, Version};
use crate::wire::{Reader, end, put_binary, put_packet, put_string};

/// The level byte of a bridge with 3.1.1. It is not in any standard: mosquitto introduced it (`try_private`), and
/// other brokers support it.
const BRIDGE_LEVEL: u8 = 0x84;

/// A client's request for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect<'a> {
    /// The client's protocol version.
    pub version: Version,
    /// Whether the client is another broker's bridge, which mosquitto's show by the top bit of 3.1.1's level byte;
    /// never with 5.0, where bridges use subscription options.
    pub bridge: bool,
    /// Clean Start (3.1.1: Clean Session).
    pub clean_start: bool,
    /// Keep alive in seconds, 0 for none.
    pub keep_alive_s: u16,
    /// Client identifier; empty asks for one.
    pub client_id: &'a str,
    /// Properties.
    pub properties: Properties<'a>,
    /// Will, if any.
    pub will: Option<LastWill<'a>>,
    /// User name.
    pub username: Option<&'a str>,
    /// Password.
    pub password: Option<&'a [u8]>,
}

/// A will as CONNECT carries it (section 3.1.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastWill<'a> {
    /// Topic name.
    pub topic: &'a str,
    /// Payload.
    pub payload: &'a [u8],
    /// Quality of service.
    pub qos: QoS,
    /// RETAIN flag.
    pub retain: bool,
    /// Properties.
    pub properties: Properties<'a>,
}

impl<'a> Connect<'a> {
    /// A CONNECT with a clean start and nothing that is optional.
    #[must_use]
    pub fn new(version: Version, client_id: &'a str) -> Connect<'a> {
        Connect {
            version,
            bridge: false,
            clean_start: true,
            keep_alive_s: 0,
            client_id,
            properties: Properties::NONE,
            will: None,
            username: None,
            password: None,
        }
    }

    /// The version that the body of a CONNECT claims, whatever else is wrong with it: it decides the form of the
    /// answer, and whether there is one ([MQTT-3.1.4-1] of 3.1.1 forbids it).
    ///
    /// # Errors
    /// It is too short for a version, or names another protocol or an unsupported version.
    pub fn claimed_version(body: &[u8]) -> Result<Version, DecodeError> {
        read_version(&mut Reader::new(body)).map(|(version, _)| version)
    }

    pub(super) fn decode(body: &'a [u8]) -> Result<Connect<'a>, DecodeError> {
        let mut reader = Reader::new(body);
        let (version, bridge) = read_version(&mut reader)?;
        let flags = reader.u8()?;
        if flags & 0x01 != 0 {
            return Err(DecodeError::Flags);
        }
        let keep_alive_s = reader.u16()?;
        let properties = match version {
            Version::V5 => Properties::read(&mut reader, PropertyContext::Connect)?,
            Version::V311 => Properties::NONE,
        };
        let client_id = reader.string()?;
        let will = LastWill::read(&mut reader, flags, version)?;
        let username = if flags & 0x80 != 0 { Some(reader.string()?) } else { None };
        let password = if flags & 0x40 != 0 { Some(reader.binary()?) } else { None };
        // 3.1.1 [MQTT-3.1.2-22]: no password without a user name.
        if version == Version::V311 && password.is_some() && username.is_none() {
            return Err(DecodeError::Flags);
        }
        end(reader)?;
        let clean_start = flags & 0x02 != 0;
        Ok(Connect {
            version,
            bridge,
            clean_start,
            keep_alive_s,
            client_id,
            properties,
            will,
            username,
            password,
        })
    }

    /// Appends the packet.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_packet(out, 0x10, |out| {
            put_binary(out, b"MQTT");
            out.push(match self.version {
                Version::V5 => 5,
                Version::V311 if self.bridge => BRIDGE_LEVEL,
                Version::V311 => 4,
            });
            out.push(self.flags());
            out.extend_from_slice(&self.keep_alive_s.to_be_bytes());
            if self.version == Version::V5 {
                self.properties.encode(out);
            }
            put_string(out, self.client_id);
            if let Some(will) = &self.will {
                if self.version == Version::V5 {
                    will.properties.encode(out);
                }
                put_string(out, will.topic);
                put_binary(out, will.payload);
            }
            if let Some(username) = self.username {
                put_string(out, username);
            }
            if let Some(password) = self.password {
                put_binary(out, password);
            }
        });
    }

    fn flags(&self) -> u8 {
        let will = self
            .will
            .as_ref()
            .map_or(0, |will| 0x04 | (will.qos as u8) << 3 | u8::from(will.retain) << 5);
        u8::from(self.clean_start) << 1
            | will
            | u8::from(self.username.is_some()) << 7
            | u8::from(self.password.is_some()) << 6
    }
}

/// The version, and whether the client is a bridge.
fn read_version(reader: &mut Reader<'_>) -> Result<(Version, bool), DecodeError> {
    let name = reader.binary()?;
    let level = reader.u8()?;
    match (name, level) {
        (b"MQTT", 4) => Ok((Version::V311, false)),
        (b"MQTT", BRIDGE_LEVEL) => Ok((Version::V311, true)),
        (b"MQTT", 5) => Ok((Version::V5, false)),
        (b"MQTT" | b"MQIsdp", other) => Err(DecodeError::ProtocolVersion(other)),
        _ => Err(DecodeError::ProtocolName),
    }
}

impl<'a> LastWill<'a> {
    fn read(
        reader: &mut Reader<'a>,
        flags: u8,
        version: Version,
    ) -> Result<Option<LastWill<'a>>, DecodeError> {
        let qos = flags >> 3 & 0x03;
        let retain = flags & 0x20 != 0;
        if flags & 0x04 == 0 {
            // [MQTT-3.1.2-11], [MQTT-3.1.2-13]: without a will its flags are 0.
            return if qos == 0 && !retain { Ok(None) } else { Err(DecodeError::Flags) };
        }
        let qos = QoS::try_from(qos).map_err(|_| DecodeError::QoS)?;
        let properties = match version {
            Version::V5 => Properties::read(reader, PropertyContext::Will)?,
            Version::V311 => Properties::NONE,
        };
        let topic = reader.string()?;
        let payload = reader.binary()?;
        Ok(Some(LastWill { topic, payload, qos, retain, properties }))
    }
}

/// The server's answer to CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connack<'a> {
    /// Whether the server had a session for the client.
    pub session_present: bool,
    /// Success, or why not.
    pub reason: ReasonCode,
    /// Properties.
    pub properties: Properties<'a>,
}

impl<'a> Connack<'a> {
    pub(super) fn decode(body: &'a [u8], version: Version) -> Result<Connack<'a>, DecodeError> {
        let mut reader = Reader::new(body);
        let flags = reader.u8()?;
        if flags > 1 {
            return Err(DecodeError::Flags);
        }
        let code = reader.u8()?;
        // A server that does not support version 5 refuses in the form of 3.1.1, without properties.
        let (reason, properties) = if version == Version::V311 || (reader.is_empty() && code != 0) {
            (ReasonCode::from_v311_return_code(code), Properties::NONE)
        } else {
            (ReasonCode::from_u8(code), Properties::read(&mut reader, PropertyContext::Connack)?)
        };
        end(reader)?;
        let reason = reason
            .filter(|reason| *reason == ReasonCode::Success || reason.is_error())
            .ok_or(DecodeError::ReasonCode(code))?;
        let session_present = flags == 1;
        if session_present && reason.is_error() {
            // [MQTT-3.2.2-6], 3.1.1 [MQTT-3.2.2-4].
            return Err(DecodeError::Protocol("a refused client cannot have a session present"));
        }
        Ok(Connack { session_present, reason, properties })
    }

    /// Appends the packet.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        put_packet(out, 0x20, |out| {
            out.push(u8::from(self.session_present));
            match version {
                Version::V311 => out.push(self.reason.to_v311_return_code()),
                Version::V5 => {
                    out.push(self.reason.as_u8());
                    self.properties.encode(out);
                }
            }
        });
    }
}
