//! SUBSCRIBE, UNSUBSCRIBE and their answers (sections 3.8 to 3.11).
//!
//! The list of filters stays encoded; it is checked once and then iterated over.

use crate::error::DecodeError;
use crate::properties::{Properties, PropertyContext};
use crate::types::{PacketId, QoS, Version};
use crate::wire::{Reader, end, put_packet, put_packet_id, put_string};

/// When retained messages are sent for a subscription (section 3.8.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetainHandling {
    /// At every SUBSCRIBE.
    #[default]
    Always = 0,
    /// Only if the subscription is new.
    IfNew = 1,
    /// Never.
    Never = 2,
}

/// Options of one subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// Highest quality of service to deliver at.
    pub qos: QoS,
    /// Not the client's own publications.
    pub no_local: bool,
    /// Keep the publisher's RETAIN flag.
    pub retain_as_published: bool,
    /// When to send retained messages.
    pub retain_handling: RetainHandling,
}

impl SubscribeOptions {
    /// The options byte.
    #[must_use]
    pub fn to_byte(self) -> u8 {
        self.qos as u8
            | u8::from(self.no_local) << 2
            | u8::from(self.retain_as_published) << 3
            | (self.retain_handling as u8) << 4
    }

    /// Decodes an options byte; 3.1.1 has only the quality of service.
    ///
    /// # Errors
    /// Reserved bits are set, or a value does not exist.
    pub fn from_byte(byte: u8, version: Version) -> Result<SubscribeOptions, DecodeError> {
        let qos = QoS::try_from(byte & 0x03)
            .map_err(|_| DecodeError::Protocol("maximum quality of service 3 does not exist"))?;
        if byte & 0xC0 != 0 || (version == Version::V311 && byte & 0xFC != 0) {
            return Err(DecodeError::Flags);
        }
        let retain_handling = match byte >> 4 & 0x03 {
            0 => RetainHandling::Always,
            1 => RetainHandling::IfNew,
            2 => RetainHandling::Never,
            _ => return Err(DecodeError::Protocol("retain handling 3 does not exist")),
        };
        Ok(SubscribeOptions {
            qos,
            no_local: byte & 0x04 != 0,
            retain_as_published: byte & 0x08 != 0,
            retain_handling,
        })
    }
}

/// Filters of a SUBSCRIBE (with options) or UNSUBSCRIBE (without), still encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterList<'a> {
    raw: &'a [u8],
    with_options: bool,
    version: Version,
}

impl<'a> FilterList<'a> {
    fn read(
        reader: Reader<'a>,
        with_options: bool,
        version: Version,
    ) -> Result<FilterList<'a>, DecodeError> {
        let list = FilterList { raw: reader.rest(), with_options, version };
        let mut reader = reader;
        if reader.is_empty() {
            return Err(DecodeError::NoFilter);
        }
        while !reader.is_empty() {
            list.read_one(&mut reader)?;
        }
        Ok(list)
    }

    fn read_one(
        &self,
        reader: &mut Reader<'a>,
    ) -> Result<(&'a str, SubscribeOptions), DecodeError> {
        let filter = reader.string()?;
        if !self.with_options {
            return Ok((filter, SubscribeOptions::default()));
        }
        let options = SubscribeOptions::from_byte(reader.u8()?, self.version)?;
        Ok((filter, options))
    }

    /// Every filter as sent, `$share/…` included, not yet checked for wildcards in the wrong place.
    pub fn iter(self) -> impl Iterator<Item = (&'a str, SubscribeOptions)> {
        let mut reader = Reader::new(self.raw);
        std::iter::from_fn(move || {
            if reader.is_empty() {
                return None;
            }
            // Checked when the list was created.
            self.read_one(&mut reader).ok()
        })
    }

    /// Encodes filters for [`FilterList::from_encoded`]; options only in SUBSCRIBE.
    pub fn encode_one(out: &mut Vec<u8>, filter: &str, options: Option<SubscribeOptions>) {
        put_string(out, filter);
        out.extend(options.map(SubscribeOptions::to_byte));
    }

    /// A list of the bytes that [`FilterList::encode_one`] wrote.
    ///
    /// # Errors
    /// It is empty or was not written that way.
    pub fn from_encoded(
        raw: &'a [u8],
        with_options: bool,
        version: Version,
    ) -> Result<FilterList<'a>, DecodeError> {
        FilterList::read(Reader::new(raw), with_options, version)
    }
}

/// Reads a packet identifier, and the properties if the version has them.
fn read_head<'a>(
    reader: &mut Reader<'a>,
    version: Version,
    place: PropertyContext,
) -> Result<(PacketId, Properties<'a>), DecodeError> {
    let packet_id = reader.packet_id()?;
    let properties = match version {
        Version::V5 => Properties::read(reader, place)?,
        Version::V311 => Properties::NONE,
    };
    Ok((packet_id, properties))
}

fn put_head(out: &mut Vec<u8>, version: Version, packet_id: PacketId, properties: Properties<'_>) {
    put_packet_id(out, packet_id);
    if version == Version::V5 {
        properties.encode(out);
    }
}

/// Whether SUBACK may have this reason ([MQTT-3.9.3-2]).
fn is_suback_code(code: u8) -> bool {
    matches!(code, 0..=2 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91 | 0x97 | 0x9E | 0xA1 | 0xA2)
}

/// Whether UNSUBACK may have this reason ([MQTT-3.11.3-2]).
fn is_unsuback_code(code: u8) -> bool {
    matches!(code, 0 | 0x11 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91)
}

/// The reason codes at the end of an answer: at least one, and only codes that are `allowed`.
fn read_codes(reader: Reader<'_>, allowed: impl Fn(u8) -> bool) -> Result<&[u8], DecodeError> {
    let codes = reader.rest();
    match codes.iter().find(|code| !allowed(**code)) {
        Some(code) => Err(DecodeError::ReasonCode(*code)),
        None if codes.is_empty() => Err(DecodeError::Length),
        None => Ok(codes),
    }
}

/// A request for subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribe<'a> {
    /// Packet identifier, which SUBACK repeats.
    pub packet_id: PacketId,
    /// Properties.
    pub properties: Properties<'a>,
    /// Filters to subscribe to; at least one.
    pub filters: FilterList<'a>,
}

impl<'a> Subscribe<'a> {
    pub(super) fn decode(body: &'a [u8], version: Version) -> Result<Subscribe<'a>, DecodeError> {
        let mut reader = Reader::new(body);
        let (packet_id, properties) = read_head(&mut reader, version, PropertyContext::Subscribe)?;
        let filters = FilterList::read(reader, true, version)?;
        Ok(Subscribe { packet_id, properties, filters })
    }

    /// Appends the packet.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        put_packet(out, 0x82, |out| {
            put_head(out, version, self.packet_id, self.properties);
            out.extend_from_slice(self.filters.raw);
        });
    }
}

/// A request to end subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsubscribe<'a> {
    /// Packet identifier, which UNSUBACK repeats.
    pub packet_id: PacketId,
    /// Properties.
    pub properties: Properties<'a>,
    /// Filters to unsubscribe from; at least one.
    pub filters: FilterList<'a>,
}

impl<'a> Unsubscribe<'a> {
    pub(super) fn decode(body: &'a [u8], version: Version) -> Result<Unsubscribe<'a>, DecodeError> {
        let mut reader = Reader::new(body);
        let (packet_id, properties) =
            read_head(&mut reader, version, PropertyContext::Unsubscribe)?;
        let filters = FilterList::read(reader, false, version)?;
        Ok(Unsubscribe { packet_id, properties, filters })
    }

    /// Appends the packet.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        put_packet(out, 0xA2, |out| {
            put_head(out, version, self.packet_id, self.properties);
            out.extend_from_slice(self.filters.raw);
        });
    }
}

/// The answer to SUBSCRIBE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suback<'a> {
    /// Identifier of the SUBSCRIBE.
    pub packet_id: PacketId,
    /// Properties.
    pub properties: Properties<'a>,
    /// One reason code per filter; 3.1.1: granted QoS or 0x80.
    pub codes: &'a [u8],
}

impl<'a> Suback<'a> {
    pub(super) fn decode(body: &'a [u8], version: Version) -> Result<Suback<'a>, DecodeError> {
        let mut reader = Reader::new(body);
        let (packet_id, properties) = read_head(&mut reader, version, PropertyContext::Ack)?;
        let codes = read_codes(reader, |code| match version {
            Version::V311 => matches!(code, 0..=2 | 0x80),
            Version::V5 => is_suback_code(code),
        })?;
        Ok(Suback { packet_id, properties, codes })
    }

    /// Appends the packet. Every failure is 0x80 to a 3.1.1 client (3.1.1 section 3.9.3).
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        put_packet(out, 0x90, |out| {
            put_head(out, version, self.packet_id, self.properties);
            match version {
                Version::V5 => out.extend_from_slice(self.codes),
                Version::V311 => out.extend(self.codes.iter().map(|code| (*code).min(0x80))),
            }
        });
    }
}

/// The answer to UNSUBSCRIBE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsuback<'a> {
    /// Identifier of the UNSUBSCRIBE.
    pub packet_id: PacketId,
    /// Properties.
    pub properties: Properties<'a>,
    /// One reason code per filter; 3.1.1 has none.
    pub codes: &'a [u8],
}

impl<'a> Unsuback<'a> {
    pub(super) fn decode(body: &'a [u8], version: Version) -> Result<Unsuback<'a>, DecodeError> {
        let mut reader = Reader::new(body);
        let (packet_id, properties) = read_head(&mut reader, version, PropertyContext::Ack)?;
        let codes = match version {
            Version::V311 => end(reader).map(|()| [].as_slice())?,
            Version::V5 => read_codes(reader, is_unsuback_code)?,
        };
        Ok(Unsuback { packet_id, properties, codes })
    }

    /// Appends the packet.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        put_packet(out, 0xB0, |out| {
            put_head(out, version, self.packet_id, self.properties);
            if version == Version::V5 {
                out.extend_from_slice(self.codes);
            }
        });
    }
}
