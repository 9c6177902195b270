#![doc = include_str!("../README.md")]
//!
//! Section numbers are those of "MQTT For Sensor Networks (MQTT-SN) Protocol Specification" 1.2 of 2013.
#![forbid(unsafe_code)]

mod encode;
mod message;
mod request;
mod server;
mod session;
mod settings;
mod statistics;
mod topics;

pub use message::{DecodeError, Message, Publish, ReturnCode, TopicName, TopicRef, WillTopic};
pub use request::{Answer, BrokerEvent, Open, Publication, Request, Will};
pub use server::{End, Event, Handle, Server, Trust};
pub use settings::Settings;
pub use statistics::Statistics;
