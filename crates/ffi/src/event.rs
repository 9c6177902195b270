//! Events and properties in the form that C has.

use std::ffi::{CString, c_char};
use std::ptr;

use bytes::Bytes;
use fulmar_client::{Error, Event, Message, Property, PropertyBuf, ReasonCode};
use fulmar_mqtt::Properties;

use crate::MAX_VALUE_BYTES;
use crate::failure::Failure;

const CONNECTED: u32 = 1;
const DISCONNECTED: u32 = 2;
const MESSAGE: u32 = 3;
/// A publication's result.
pub(crate) const PUBLISHED: u32 = 4;
/// A SUBSCRIBE's result.
pub(crate) const SUBSCRIBED: u32 = 5;
/// An UNSUBSCRIBE's result.
pub(crate) const UNSUBSCRIBED: u32 = 6;
const MIGRATED: u32 = 7;
const MAY_REPEAT: u32 = 8;

/// A property of a message (MQTT 5.0, section 2.2.2.2).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FulmarProperty {
    name: *const u8,
    name_size: usize,
    value: *const u8,
    value_size: usize,
    number: u32,
    id: u8,
}

/// An event for the application.
#[repr(C)]
pub struct FulmarEvent {
    token: u64,
    receipt: u64,
    retry_in_ms: i64,
    topic: *const c_char,
    payload: *const u8,
    payload_size: usize,
    properties: *const FulmarProperty,
    property_count: usize,
    text: *const c_char,
    kind: u32,
    reason: i32,
    qos: u8,
    transport: u8,
    retain: bool,
    dup: bool,
    session_present: bool,
    early_data: bool,
}

/// A client's event, or the result of a request.
pub(crate) enum Item {
    Event(Event),
    Result { kind: u32, token: u64, result: Result<ReasonCode, Error> },
}

/// Memory that an event points to, until the next is taken.
#[derive(Default)]
pub(crate) struct Pointees {
    topic: CString,
    text: CString,
    payload: Bytes,
    values: PropertyBuf,
    properties: Vec<FulmarProperty>,
}

// SAFETY: the pointers lead into `values`, which nobody changes.
unsafe impl Send for Pointees {}

impl FulmarEvent {
    fn new(kind: u32) -> FulmarEvent {
        FulmarEvent {
            token: 0,
            receipt: 0,
            retry_in_ms: -1,
            topic: c"".as_ptr(),
            payload: ptr::null(),
            payload_size: 0,
            properties: ptr::null(),
            property_count: 0,
            text: c"".as_ptr(),
            kind,
            reason: -1,
            qos: 0,
            transport: 0,
            retain: false,
            dup: false,
            session_present: false,
            early_data: false,
        }
    }
}

fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{FFFD}")).unwrap_or_default()
}

/// The reason code that the server has given, if that is why.
fn code(error: &Error) -> i32 {
    match error {
        Error::Refused { reason, .. } | Error::Disconnected(reason) | Error::Rejected(reason) => {
            i32::from(reason.as_u8())
        }
        Error::NoAddress { last, .. } => code(last),
        _ => -1,
    }
}

impl Pointees {
    /// The form of an item for C, which points here; `receipt` is the number of a message's receipt.
    pub(crate) fn event_for_c(&mut self, item: Item, receipt: u64) -> FulmarEvent {
        *self = Pointees::default();
        match item {
            Item::Event(Event::Message(message)) => self.message(message, receipt),
            Item::Event(Event::Connected { session_present, transport, early_data, url }) => {
                let (transport, text) = (transport as u8, self.text(&url.to_string()));
                let event = FulmarEvent::new(CONNECTED);
                FulmarEvent { session_present, early_data, transport, text, reason: 0, ..event }
            }
            Item::Event(Event::Disconnected { reason, retry_in }) => {
                let retry =
                    retry_in.map(|wait| i64::try_from(wait.as_millis()).unwrap_or(i64::MAX));
                let (text, reason) = (self.text(&reason.to_string()), code(&reason));
                let event = FulmarEvent::new(DISCONNECTED);
                FulmarEvent { retry_in_ms: retry.unwrap_or(-1), text, reason, ..event }
            }
            Item::Event(Event::Migrated { local }) => {
                let text = self.text(&local.to_string());
                FulmarEvent { text, ..FulmarEvent::new(MIGRATED) }
            }
            Item::Event(Event::MayRepeat { messages }) => {
                FulmarEvent { token: messages as u64, ..FulmarEvent::new(MAY_REPEAT) }
            }
            // Of a later client, which this library does not show.
            Item::Event(_) => FulmarEvent::new(0),
            Item::Result { kind, token, result } => {
                let (reason, text) = match result {
                    Ok(reason) if reason.is_error() => {
                        (i32::from(reason.as_u8()), reason.text().to_owned())
                    }
                    Ok(reason) => (i32::from(reason.as_u8()), String::new()),
                    Err(error) => (code(&error), error.to_string()),
                };
                FulmarEvent { token, reason, text: self.text(&text), ..FulmarEvent::new(kind) }
            }
        }
    }

    fn text(&mut self, text: &str) -> *const c_char {
        self.text = c_text(text);
        self.text.as_ptr()
    }

    fn message(&mut self, message: Message, receipt: u64) -> FulmarEvent {
        self.topic = c_text(&message.topic);
        self.payload = message.payload;
        self.values = message.properties;
        self.properties = self.values.as_properties().iter().filter_map(property_for_c).collect();
        FulmarEvent {
            topic: self.topic.as_ptr(),
            payload: self.payload.as_ptr(),
            payload_size: self.payload.len(),
            properties: self.properties.as_ptr(),
            property_count: self.properties.len(),
            receipt,
            qos: message.qos as u8,
            retain: message.retain,
            dup: message.dup,
            ..FulmarEvent::new(MESSAGE)
        }
    }
}

fn property_for_c(property: Property<'_>) -> Option<FulmarProperty> {
    let number = |id, number| FulmarProperty { id, number, ..named(&[], &[]) };
    let value = |id, value: &[u8]| FulmarProperty { id, ..named(&[], value) };
    Some(match property {
        Property::PayloadFormatIndicator(format) => number(0x01, format.into()),
        Property::MessageExpiryInterval(seconds) => number(0x02, seconds),
        Property::ContentType(text) => value(0x03, text.as_bytes()),
        Property::ResponseTopic(text) => value(0x08, text.as_bytes()),
        Property::CorrelationData(data) => value(0x09, data),
        Property::SubscriptionIdentifier(identifier) => number(0x0B, identifier),
        Property::UserProperty(name, value) => {
            FulmarProperty { id: 0x26, ..named(name.as_bytes(), value.as_bytes()) }
        }
        _ => return None,
    })
}

fn named(name: &[u8], value: &[u8]) -> FulmarProperty {
    FulmarProperty {
        name: name.as_ptr(),
        name_size: name.len(),
        value: value.as_ptr(),
        value_size: value.len(),
        number: 0,
        id: 0,
    }
}

/// The properties of a message to publish.
///
/// # Safety
/// Names and values are as long as the list says.
pub(crate) unsafe fn properties(list: &[FulmarProperty]) -> Result<PropertyBuf, Failure> {
    let mut properties = PropertyBuf::new();
    for given in list {
        // SAFETY: as the caller ensures.
        let (name, value) = unsafe {
            (value_bytes(given.name, given.name_size)?, value_bytes(given.value, given.value_size)?)
        };
        let text = |bytes| {
            std::str::from_utf8(bytes)
                .map_err(|_| Failure::invalid("a property is not UTF-8".into()))
        };
        properties.push(match given.id {
            0x01 => Property::PayloadFormatIndicator(u8::try_from(given.number).unwrap_or(u8::MAX)),
            0x02 => Property::MessageExpiryInterval(given.number),
            0x03 => Property::ContentType(text(value)?),
            0x08 => Property::ResponseTopic(text(value)?),
            0x09 => Property::CorrelationData(value),
            0x26 => Property::UserProperty(text(name)?, text(value)?),
            id => {
                return Err(Failure::invalid(format!(
                    "a publication has no property {id:#04x} (MQTT 5.0, section 3.3.2.3)"
                )));
            }
        });
    }
    let checked = Properties::of_publish(properties.as_properties().raw());
    checked.map_err(|error| Failure::invalid(format!("properties: {error}")))?;
    Ok(properties)
}

unsafe fn value_bytes<'a>(data: *const u8, size: usize) -> Result<&'a [u8], Failure> {
    // SAFETY: as the caller ensures.
    unsafe { crate::list(data, size, MAX_VALUE_BYTES, "a property") }
}
