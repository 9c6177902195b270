//! Properties of MQTT 5.0 (section 2.2.2.2).
//!
//! [`Properties`] is a checked view of encoded properties: each is allowed in its packet, none is repeated that must
//! not be, values are in range. Reading iterates over the bytes, so a packet with properties costs nothing until they
//! are read. [`PropertyBuf`] builds the same encoding.

use crate::error::DecodeError;
use crate::topic::check_name;
use crate::wire::{Reader, put_binary, put_string, put_variable};

/// One property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are the specification's, table 2-4.
pub enum Property<'a> {
    PayloadFormatIndicator(u8),
    MessageExpiryInterval(u32),
    ContentType(&'a str),
    ResponseTopic(&'a str),
    CorrelationData(&'a [u8]),
    SubscriptionIdentifier(u32),
    SessionExpiryInterval(u32),
    AssignedClientIdentifier(&'a str),
    ServerKeepAlive(u16),
    AuthenticationMethod(&'a str),
    AuthenticationData(&'a [u8]),
    RequestProblemInformation(bool),
    WillDelayInterval(u32),
    RequestResponseInformation(bool),
    ResponseInformation(&'a str),
    ServerReference(&'a str),
    ReasonString(&'a str),
    ReceiveMaximum(u16),
    TopicAliasMaximum(u16),
    TopicAlias(u16),
    MaximumQoS(u8),
    RetainAvailable(bool),
    UserProperty(&'a str, &'a str),
    MaximumPacketSize(u32),
    WildcardSubscriptionAvailable(bool),
    SubscriptionIdentifierAvailable(bool),
    SharedSubscriptionAvailable(bool),
}

const MESSAGE_EXPIRY: u8 = 0x02;
const SUBSCRIPTION_IDENTIFIER: u8 = 0x0B;
const AUTHENTICATION_METHOD: u8 = 0x15;
const AUTHENTICATION_DATA: u8 = 0x16;
const TOPIC_ALIAS: u8 = 0x23;
const USER_PROPERTY: u8 = 0x26;

/// Packets with properties, which differ in the properties that they allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PropertyContext {
    Connect,
    Will,
    Connack,
    Publish,
    Ack,
    Subscribe,
    Unsubscribe,
    Disconnect,
    Auth,
}

/// Finds the first property of a kind: `find_property!(properties, TopicAlias)` is an `Option<u16>`.
#[macro_export]
macro_rules! find_property {
    ($properties:expr, $kind:ident) => {
        $properties.iter().find_map(|property| match property {
            $crate::Property::$kind(value) => Some(value),
            _ => None,
        })
    };
}

/// A set of property identifiers as bits.
const fn set(ids: &[u8]) -> u64 {
    let mut bits = 0;
    let mut i = 0;
    while i < ids.len() {
        bits |= 1 << ids[i];
        i += 1;
    }
    bits
}

impl PropertyContext {
    fn allowed(self) -> u64 {
        match self {
            PropertyContext::Connect => {
                set(&[0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27])
            }
            PropertyContext::Will => set(&[0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26]),
            PropertyContext::Connack => set(&[
                0x11, 0x12, 0x13, 0x15, 0x16, 0x1A, 0x1C, 0x1F, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27,
                0x28, 0x29, 0x2A,
            ]),
            PropertyContext::Publish => set(&[0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26]),
            PropertyContext::Ack => set(&[0x1F, 0x26]),
            PropertyContext::Subscribe => set(&[0x0B, 0x26]),
            PropertyContext::Unsubscribe => set(&[0x26]),
            PropertyContext::Disconnect => set(&[0x11, 0x1C, 0x1F, 0x26]),
            PropertyContext::Auth => set(&[0x15, 0x16, 0x1F, 0x26]),
        }
    }

    fn may_repeat(self, id: u8) -> bool {
        id == USER_PROPERTY || (self == PropertyContext::Publish && id == SUBSCRIPTION_IDENTIFIER)
    }
}

/// Checked properties, still encoded, without their length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties<'a> {
    raw: &'a [u8],
}

impl<'a> Properties<'a> {
    /// No properties.
    pub const NONE: Properties<'static> = Properties { raw: &[] };

    /// A view of bytes stored from [`Properties::forwardable_into`] or [`Properties::raw`]. A malformed property ends
    /// the list when it is read.
    #[must_use]
    pub fn from_forwardable(raw: &'a [u8]) -> Properties<'a> {
        Properties { raw }
    }

    /// Reads length and properties from `reader`.
    #[inline]
    pub(crate) fn read(
        reader: &mut Reader<'a>,
        place: PropertyContext,
    ) -> Result<Properties<'a>, DecodeError> {
        let length = reader.variable()?;
        let raw = reader.bytes(length)?;
        if length > 0 {
            check(raw, place)?;
        }
        Ok(Properties { raw })
    }

    /// Properties of a PUBLISH from their encoding without length, as [`Properties::raw`] gives it.
    ///
    /// # Errors
    /// They are none.
    pub fn of_publish(raw: &'a [u8]) -> Result<Properties<'a>, DecodeError> {
        check(raw, PropertyContext::Publish)?;
        Ok(Properties { raw })
    }

    /// Their encoding, without length.
    #[must_use]
    pub fn raw(self) -> &'a [u8] {
        self.raw
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.raw.is_empty()
    }

    /// Every property, in order.
    pub fn iter(self) -> impl Iterator<Item = Property<'a>> {
        let mut reader = Reader::new(self.raw);
        std::iter::from_fn(move || {
            if reader.is_empty() {
                return None;
            }
            // Checked when the view was created; an error cannot happen and would end the list.
            read_property(&mut reader).ok().map(|(_, property)| property)
        })
    }

    /// Appends the properties that a server forwards with a message (section 3.3.2.3): all except topic alias,
    /// subscription identifiers and message expiry, which belong to one hop or count down.
    pub fn forwardable_into(self, out: &mut Vec<u8>) {
        let mut reader = Reader::new(self.raw);
        while !reader.is_empty() {
            let before = reader.rest();
            let Ok((id, _)) = read_property(&mut reader) else { return };
            if !matches!(id, MESSAGE_EXPIRY | SUBSCRIPTION_IDENTIFIER | TOPIC_ALIAS) {
                out.extend_from_slice(&before[..before.len() - reader.rest().len()]);
            }
        }
    }

    /// Appends length and properties.
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        put_variable(out, self.raw.len());
        out.extend_from_slice(self.raw);
    }
}

fn check(raw: &[u8], place: PropertyContext) -> Result<(), DecodeError> {
    let allowed = place.allowed();
    let mut seen = 0u64;
    let mut reader = Reader::new(raw);
    while !reader.is_empty() {
        let id = reader.rest()[0];
        if id > 0x2A || allowed & (1 << id) == 0 {
            return Err(DecodeError::PropertyNotAllowed(id));
        }
        if seen & (1 << id) != 0 && !place.may_repeat(id) {
            return Err(DecodeError::PropertyTwice(id));
        }
        seen |= 1 << id;
        let (_, property) = read_property(&mut reader)?;
        check_value(id, property)?;
    }
    // Sections 3.1.2.11.10 and 3.15.2.2.3.
    if seen & set(&[AUTHENTICATION_DATA, AUTHENTICATION_METHOD]) == set(&[AUTHENTICATION_DATA]) {
        return Err(DecodeError::Protocol("authentication data without a method"));
    }
    Ok(())
}

fn check_value(id: u8, property: Property<'_>) -> Result<(), DecodeError> {
    match property {
        Property::TopicAlias(0) => Err(DecodeError::TopicAlias),
        Property::SubscriptionIdentifier(0)
        | Property::ReceiveMaximum(0)
        | Property::MaximumPacketSize(0)
        | Property::PayloadFormatIndicator(2..)
        | Property::MaximumQoS(2..) => Err(DecodeError::PropertyValue(id)),
        // [MQTT-3.3.2-14], [MQTT-3.1.3-11]: a topic name, to which a client will publish.
        Property::ResponseTopic(topic) => {
            check_name(topic).map_err(|_| DecodeError::PropertyValue(id))
        }
        _ => Ok(()),
    }
}

fn flag(reader: &mut Reader<'_>, id: u8) -> Result<bool, DecodeError> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::PropertyValue(id)),
    }
}

fn read_property<'a>(reader: &mut Reader<'a>) -> Result<(u8, Property<'a>), DecodeError> {
    use Property as P;
    let id = reader.u8()?;
    let property = match id {
        0x01 => P::PayloadFormatIndicator(reader.u8()?),
        0x02 => P::MessageExpiryInterval(reader.u32()?),
        0x03 => P::ContentType(reader.string()?),
        0x08 => P::ResponseTopic(reader.string()?),
        0x09 => P::CorrelationData(reader.binary()?),
        // A variable byte integer is at most 268,435,455 and fits.
        0x0B => P::SubscriptionIdentifier(reader.variable()? as u32),
        0x11 => P::SessionExpiryInterval(reader.u32()?),
        0x12 => P::AssignedClientIdentifier(reader.string()?),
        0x13 => P::ServerKeepAlive(reader.u16()?),
        0x15 => P::AuthenticationMethod(reader.string()?),
        0x16 => P::AuthenticationData(reader.binary()?),
        0x17 => P::RequestProblemInformation(flag(reader, id)?),
        0x18 => P::WillDelayInterval(reader.u32()?),
        0x19 => P::RequestResponseInformation(flag(reader, id)?),
        0x1A => P::ResponseInformation(reader.string()?),
        0x1C => P::ServerReference(reader.string()?),
        0x1F => P::ReasonString(reader.string()?),
        0x21 => P::ReceiveMaximum(reader.u16()?),
        0x22 => P::TopicAliasMaximum(reader.u16()?),
        0x23 => P::TopicAlias(reader.u16()?),
        0x24 => P::MaximumQoS(reader.u8()?),
        0x25 => P::RetainAvailable(flag(reader, id)?),
        0x26 => P::UserProperty(reader.string()?, reader.string()?),
        0x27 => P::MaximumPacketSize(reader.u32()?),
        0x28 => P::WildcardSubscriptionAvailable(flag(reader, id)?),
        0x29 => P::SubscriptionIdentifierAvailable(flag(reader, id)?),
        0x2A => P::SharedSubscriptionAvailable(flag(reader, id)?),
        other => return Err(DecodeError::PropertyNotAllowed(other)),
    };
    Ok((id, property))
}

/// Properties under construction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropertyBuf {
    raw: Vec<u8>,
}

impl PropertyBuf {
    /// None yet.
    #[must_use]
    pub fn new() -> PropertyBuf {
        PropertyBuf::default()
    }

    /// Appends a property. The caller must ensure that it is allowed in its packet and not repeated; otherwise the
    /// receiver refuses the packet.
    pub fn push(&mut self, property: Property<'_>) -> &mut PropertyBuf {
        use Property as P;
        let out = &mut self.raw;
        match property {
            P::PayloadFormatIndicator(v) => put_u8(out, 0x01, v),
            P::MessageExpiryInterval(v) => put_u32(out, 0x02, v),
            P::ContentType(v) => put_text(out, 0x03, v),
            P::ResponseTopic(v) => put_text(out, 0x08, v),
            P::CorrelationData(v) => put_bytes(out, 0x09, v),
            P::SubscriptionIdentifier(v) => {
                out.push(0x0B);
                put_variable(out, v as usize);
            }
            P::SessionExpiryInterval(v) => put_u32(out, 0x11, v),
            P::AssignedClientIdentifier(v) => put_text(out, 0x12, v),
            P::ServerKeepAlive(v) => put_u16(out, 0x13, v),
            P::AuthenticationMethod(v) => put_text(out, 0x15, v),
            P::AuthenticationData(v) => put_bytes(out, 0x16, v),
            P::RequestProblemInformation(v) => put_u8(out, 0x17, u8::from(v)),
            P::WillDelayInterval(v) => put_u32(out, 0x18, v),
            P::RequestResponseInformation(v) => put_u8(out, 0x19, u8::from(v)),
            P::ResponseInformation(v) => put_text(out, 0x1A, v),
            P::ServerReference(v) => put_text(out, 0x1C, v),
            P::ReasonString(v) => put_text(out, 0x1F, v),
            P::ReceiveMaximum(v) => put_u16(out, 0x21, v),
            P::TopicAliasMaximum(v) => put_u16(out, 0x22, v),
            P::TopicAlias(v) => put_u16(out, 0x23, v),
            P::MaximumQoS(v) => put_u8(out, 0x24, v),
            P::RetainAvailable(v) => put_u8(out, 0x25, u8::from(v)),
            P::UserProperty(name, value) => {
                put_text(out, 0x26, name);
                put_string(out, value);
            }
            P::MaximumPacketSize(v) => put_u32(out, 0x27, v),
            P::WildcardSubscriptionAvailable(v) => put_u8(out, 0x28, u8::from(v)),
            P::SubscriptionIdentifierAvailable(v) => put_u8(out, 0x29, u8::from(v)),
            P::SharedSubscriptionAvailable(v) => put_u8(out, 0x2A, u8::from(v)),
        }
        self
    }

    /// The finished properties.
    #[must_use]
    pub fn as_properties(&self) -> Properties<'_> {
        Properties { raw: &self.raw }
    }
}

fn put_u8(out: &mut Vec<u8>, id: u8, value: u8) {
    out.extend_from_slice(&[id, value]);
}

fn put_u16(out: &mut Vec<u8>, id: u8, value: u16) {
    out.push(id);
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_u32(out: &mut Vec<u8>, id: u8, value: u32) {
    out.push(id);
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_text(out: &mut Vec<u8>, id: u8, value: &str) {
    out.push(id);
    put_string(out, value);
}

fn put_bytes(out: &mut Vec<u8>, id: u8, value: &[u8]) {
    out.push(id);
    put_binary(out, value);
}
