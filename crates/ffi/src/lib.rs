//! libfulmar: the MQTT client for C, and for languages that can call C. `include/fulmar.h` describes each function.
//!
//! A handle is a number, not a pointer, so a freed or invented one is an error of that call. Everything that a caller gives
//! is checked here; a panic is an error of the call, too. All clients of a process share one thread, on which no
//! code of the application runs: it takes events when it likes ([`fulmar_next`]), and learns from a file descriptor that
//! there are any.

// Pointers come from C. What each must point to, the header says.
#![allow(unsafe_code, clippy::missing_safety_doc)]

mod client;
mod event;
mod failure;
mod options;
mod table;

use std::ffi::{CStr, c_char, c_int};
use std::time::Duration;

use fulmar_client::{Message, Options, QoS};
use fulmar_mqtt::Version;
use fulmar_mqtt::packet::SubscribeOptions;
use fulmar_mqtt::topic::Subscription;

use crate::client::Handle;
use crate::event::properties;
pub use crate::event::{FulmarEvent, FulmarProperty};
use crate::failure::{Failure, call, last_text};
use crate::table::{Object, find, insert, remove};

/// The largest packet of MQTT (section 2.1.4).
const MAX_PAYLOAD_BYTES: usize = 268_435_455;

/// The longest value of an option, and of a property (section 1.5).
const MAX_VALUE_BYTES: usize = u16::MAX as usize;

/// The most properties of a message.
const MAX_PROPERTIES: usize = 1000;

/// A message to publish.
#[repr(C)]
pub struct FulmarMessage {
    topic: *const c_char,
    payload: *const u8,
    payload_size: usize,
    properties: *const FulmarProperty,
    property_count: usize,
    qos: u8,
    retain: bool,
}

/// Statistics of the connection's path.
#[repr(C)]
pub struct FulmarPath {
    rtt_us: u64,
    lost_packets: u64,
    sent_bytes: u64,
    received_bytes: u64,
    migrations: u32,
    server_moves: u32,
    transport: u8,
    early_data: bool,
}

/// A text of C: not null, and UTF-8.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{what} is null")));
    }
    // SAFETY: the header asks for a text that ends with a zero byte.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid(format!("{what} is not UTF-8")))
}

/// A list of C of at most `max` elements, which may be null if it is empty.
unsafe fn list<'a, T>(
    data: *const T,
    size: usize,
    max: usize,
    what: &str,
) -> Result<&'a [T], Failure> {
    if size == 0 {
        return Ok(&[]);
    }
    if data.is_null() || size > max {
        return Err(Failure::invalid(format!("{what} is null, or longer than {max}")));
    }
    // SAFETY: the header asks for this many.
    Ok(unsafe { std::slice::from_raw_parts(data, size) })
}

fn span(timeout_ms: i64) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

/// The version of the library, such as `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn fulmar_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Why the last call of this thread failed.
#[unsafe(no_mangle)]
pub extern "C" fn fulmar_error() -> *const c_char {
    last_text()
}

/// Options for a broker's URL; 0 if it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fulmar_options_new(url: *const c_char) -> u64 {
    call(0, || {
        // SAFETY: as the header asks.
        let url = unsafe { text(url, "the URL") }?;
        insert(Object::Options(Box::new(Options::new(url)?)))
    })
}

/// Sets an option.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fulmar_options_set(
    options: u64,
    name: *const c_char,
    value: *const u8,
    size: usize,
) -> c_int {
    call(failure::INTERNAL, || {
        // SAFETY: as the header asks.
        let (name, value) =
            unsafe { (text(name, "the name")?, list(value, size, MAX_VALUE_BYTES, "the value")?) };
        table::change_options(options, |options| options::set(options, name, value))?;
        Ok(0)
    })
}

/// Frees options or a client.
#[unsafe(no_mangle)]
pub extern "C" fn fulmar_free(handle: u64) -> c_int {
    call(failure::INTERNAL, || {
        remove(handle)?;
        Ok(0)
    })
}

/// Starts a client; 0 if it fails.
#[unsafe(no_mangle)]
pub extern "C" fn fulmar_connect(options: u64) -> u64 {
    call(0, || {
        let mut copy = None;
        table::change_options(options, |options| {
            copy = Some(options.clone());
            Ok(())
        })?;
        // Other calls do not wait for the files that it reads.
        insert(Object::Client(Handle::start(copy.ok_or_else(Failure::unknown_handle)?)?))
    })
}

/// Publishes a message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fulmar_publish(
    client: u64,
    message: *const FulmarMessage,
    token: u64,
    timeout_ms: i64,
) -> c_int {
    call(failure::INTERNAL, || {
        let client = find(client)?;
        // SAFETY: as the header asks.
        let message = unsafe { message.as_ref() };
        let given = message.ok_or_else(|| Failure::invalid("the message is null".into()))?;
        // SAFETY: as the header asks.
        let (topic, payload, given_properties) = unsafe {
            (
                text(given.topic, "the topic")?,
                list(given.payload, given.payload_size, MAX_PAYLOAD_BYTES, "the payload")?,
                list(
                    given.properties,
                    given.property_count,
                    MAX_PROPERTIES,
                    "the list of properties",
                )?,
            )
        };
        let qos = QoS::try_from(given.qos).map_err(Failure::from_error)?;
        let mut message = Message::new(topic, bytes::Bytes::copy_from_slice(payload)).qos(qos);
        message.retain = given.retain;
        // SAFETY: as the header asks.
        message.properties = unsafe { properties(given_properties) }?;
        client.publish(message, token, span(timeout_ms))?;
        Ok(0)
    })
}

/// Subscribes to a filter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fulmar_subscribe(
    client: u64,
    filter: *const c_char,
    options: u8,
    token: u64,
) -> c_int {
    call(failure::INTERNAL, || {
        let client = find(client)?;
        // SAFETY: as the header asks.
        let filter = unsafe { text(filter, "the filter") }?;
        Subscription::parse(filter)
            .map_err(|error| Failure::invalid(format!("{filter:?}: {error}")))?;
        let options = SubscribeOptions::from_byte(options, Version::V5)
            .map_err(|error| Failure::invalid(format!("options of {filter:?}: {error}")))?;
        client.subscribe(filter.to_owned(), options, token)?;
        Ok(0)
    })
}

/// Ends a subscription.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fulmar_unsubscribe(
    client: u64,
    filter: *const c_char,
    token: u64,
) -> c_int {
    call(failure::INTERNAL, || {
        let client = find(client)?;
        // SAFETY: as the header asks.
        let filter = unsafe { text(filter, "the filter") }?;
        Subscription::parse(filter)
            .map_err(|error| Failure::invalid(format!("{filter:?}: {error}")))?;
        client.unsubscribe(filter.to_owned(), token)?;
        Ok(0)
    })
}

/// Takes the next event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fulmar_next(
    client: u64,
    event: *mut FulmarEvent,
    timeout_ms: i64,
) -> c_int {
    call(failure::INTERNAL, || {
        let client = find(client)?;
        // SAFETY: as the header asks.
        let event = unsafe { event.as_mut() };
        let event = event.ok_or_else(|| Failure::invalid("the event is null".into()))?;
        client.next(event, span(timeout_ms)).map(c_int::from)
    })
}

/// A file descriptor that can be read while events wait.
#[unsafe(no_mangle)]
pub extern "C" fn fulmar_event_fd(client: u64) -> c_int {
    call(failure::INTERNAL, || Ok(find(client)?.event_fd()))
}

/// Acknowledges a message.
#[unsafe(no_mangle)]
pub extern "C" fn fulmar_acknowledge(client: u64, receipt: u64) -> c_int {
    call(failure::INTERNAL, || {
        find(client)?.acknowledge(receipt)?;
        Ok(0)
    })
}

/// Says that this machine's network has changed.
#[unsafe(no_mangle)]
pub extern "C" fn fulmar_network_changed(client: u64) -> c_int {
    call(failure::INTERNAL, || {
        find(client)?.network_changed()?;
        Ok(0)
    })
}

/// Statistics of the connection's path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fulmar_path(client: u64, path: *mut FulmarPath) -> c_int {
    call(failure::INTERNAL, || {
        let client = find(client)?;
        // SAFETY: as the header asks.
        let path = unsafe { path.as_mut() };
        let path = path.ok_or_else(|| Failure::invalid("the path is null".into()))?;
        let stats = client.path()?;
        *path = FulmarPath {
            rtt_us: stats.rtt.map_or(0, |rtt| u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX)),
            lost_packets: stats.lost_packets,
            sent_bytes: stats.sent_bytes,
            received_bytes: stats.received_bytes,
            migrations: stats.migrations,
            server_moves: stats.server_moves,
            transport: stats.transport as u8,
            early_data: stats.early_data,
        };
        Ok(0)
    })
}

/// Disconnects, after what is queued is delivered.
#[unsafe(no_mangle)]
pub extern "C" fn fulmar_disconnect(client: u64, timeout_ms: i64) -> c_int {
    call(failure::INTERNAL, || {
        find(client)?.disconnect(span(timeout_ms))?;
        Ok(0)
    })
}
