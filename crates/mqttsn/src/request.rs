//! The requests and events that sessions and the broker exchange: MQTT's packets, without the fields that are not
//! needed within one process. Packet identifiers are the device's in one direction and the broker's in the other.

use bytes::Bytes;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::{PacketId, QoS, ReasonCode};

/// The message that the broker publishes when a device is lost (section 6.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    /// Topic name; valid.
    pub topic: Box<str>,
    /// Payload.
    pub payload: Bytes,
    /// Quality of service.
    pub qos: QoS,
    /// Whether it is to be retained.
    pub retain: bool,
}

/// A connection to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Client identifier; not empty.
    pub client_id: Box<str>,
    /// Whether an existing session is to be discarded first.
    pub clean_start: bool,
    /// Whether the session ends with the connection.
    pub forget: bool,
    /// The will.
    pub will: Option<Will>,
}

/// A message from a device, or for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Topic name; valid.
    pub topic: Box<str>,
    /// Payload.
    pub payload: Bytes,
    /// Quality of service.
    pub qos: QoS,
    /// RETAIN flag.
    pub retain: bool,
    /// DUP flag: its sender may have sent it before.
    pub dup: bool,
    /// The sender's packet identifier at QoS 1 and 2.
    pub packet_id: Option<PacketId>,
}

/// A session's request to the broker. The broker handles requests in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Open a connection; [`BrokerEvent::Opened`] or [`BrokerEvent::Closed`] follows. An open one is closed first.
    Open(Open),
    /// Publish; [`BrokerEvent::Answer`] follows at QoS 1 and 2.
    Publish(Publication),
    /// The device's PUBREL; [`BrokerEvent::Answer`] follows.
    Release(PacketId),
    /// Subscribe; [`BrokerEvent::Subscribed`] follows.
    Subscribe(PacketId, Box<str>, QoS),
    /// End a subscription; [`BrokerEvent::Unsubscribed`] follows.
    Unsubscribe(PacketId, Box<str>),
    /// The device's PUBACK, PUBREC or PUBCOMP.
    Acknowledge(AckKind, PacketId, ReasonCode),
    /// PINGREQ; [`BrokerEvent::Probed`] follows when the broker has handled all earlier requests.
    Probe,
    /// End the connection. Without `will` it is not published; with `forget` the session ends too.
    Close {
        /// Publish the will.
        will: bool,
        /// End the session.
        forget: bool,
    },
}

/// The broker's answer to a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// PUBACK.
    Puback,
    /// PUBREC.
    Pubrec,
    /// PUBCOMP.
    Pubcomp,
}

/// Event from the broker for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerEvent {
    /// The connection is open.
    Opened {
        /// Publications that may wait for answers: Receive Maximum.
        in_flight: u16,
    },
    /// The connection was refused, or has ended without a request to close it.
    Closed(ReasonCode),
    /// The answer to a publication.
    Answer(Answer, PacketId, ReasonCode),
    /// SUBACK.
    Subscribed(PacketId, ReasonCode),
    /// UNSUBACK.
    Unsubscribed(PacketId),
    /// A message.
    Message(Publication),
    /// PUBREL.
    Release(PacketId),
    /// PINGRESP.
    Probed,
}
