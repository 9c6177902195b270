//! MQTT-SN 1.2, the gateway's side: devices that send datagrams become sessions of an MQTT broker.
//!
//! [`Message`] is what one datagram says. [`Server`] holds a session for each device and turns what devices send
//! into [`Request`]s to a broker, and its [`Word`]s into datagrams. Every device is a session of its own there, so
//! that access, durability, wills and queues are the broker's: nothing is acknowledged to a device that the
//! broker has not acknowledged, and of what the broker owes a device only a few messages are here.
//!
//! Nothing here reads a socket or a clock, and nothing speaks MQTT: whoever drives it does. There is no
//! client. Section numbers are those of "MQTT For Sensor Networks (MQTT-SN) Protocol Specification" 1.2 of 2013.
#![forbid(unsafe_code)]

mod encode;
mod message;
mod request;
mod server;
mod session;
mod topics;

pub use message::{DecodeError, Message, Publish, ReturnCode, TopicName, TopicRef, WillTopic};
pub use request::{Answer, Delivery, Open, Outgoing, Request, Will, Word};
pub use server::{End, Event, Figures, Handle, Server, Settings, Trust};
