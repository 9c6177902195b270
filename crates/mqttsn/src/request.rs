//! What a session and the broker say to each other: MQTT's packets, less what the two sides of one process know
//! anyway. Identifiers are the device's own in one direction and the broker's in the other.

use bytes::Bytes;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::{PacketId, QoS, ReasonCode};

/// What the broker publishes when a device is lost (section 6.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    /// Topic name; valid.
    pub topic: Box<str>,
    /// What it says.
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
    /// Whether a session that is there is to be forgotten first.
    pub clean_start: bool,
    /// Whether the session ends with the connection.
    pub forget: bool,
    /// The will.
    pub will: Option<Will>,
}

/// A message from a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Topic name; valid.
    pub topic: Box<str>,
    /// What it says.
    pub payload: Bytes,
    /// Quality of service.
    pub qos: QoS,
    /// Whether it is to be retained.
    pub retain: bool,
    /// The device says that it may have sent it before.
    pub dup: bool,
    /// The device's identifier; there at QoS 1 and 2.
    pub packet_id: Option<PacketId>,
}

/// What a session asks of the broker. What is asked is done in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A connection; [`Word::Welcome`] or [`Word::Over`] follows. One that is open is closed before.
    Open(Open),
    /// Publish; [`Word::Answer`] follows at QoS 1 and 2.
    Publish(Outgoing),
    /// PUBREL of the device's; [`Word::Answer`] follows.
    Release(PacketId),
    /// Subscribe; [`Word::Subscribed`] follows.
    Subscribe(PacketId, Box<str>, QoS),
    /// End a subscription; [`Word::Unsubscribed`] follows.
    Unsubscribe(PacketId, Box<str>),
    /// PUBACK, PUBREC or PUBCOMP of the device's.
    Acknowledge(AckKind, PacketId, ReasonCode),
    /// PINGREQ: [`Word::Probed`] comes when the broker has done all that was asked before.
    Probe,
    /// End the connection. Without `will` it is not published; with `forget` the session ends too.
    Close {
        /// Publish the will.
        will: bool,
        /// End the session.
        forget: bool,
    },
}

/// Which answer of the broker's to a publication it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// PUBACK.
    Puback,
    /// PUBREC.
    Pubrec,
    /// PUBCOMP.
    Pubcomp,
}

/// A message for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Topic name.
    pub topic: Box<str>,
    /// What it says.
    pub payload: Bytes,
    /// Quality of service.
    pub qos: QoS,
    /// RETAIN flag.
    pub retain: bool,
    /// It may have been sent before.
    pub dup: bool,
    /// The broker's identifier; there at QoS 1 and 2.
    pub packet_id: Option<PacketId>,
}

/// What the broker says to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// The connection is open; so many publications may wait for answers.
    Welcome {
        /// Receive Maximum.
        in_flight: u16,
    },
    /// The connection was refused, or has ended, and not because it was asked to.
    Over(ReasonCode),
    /// A publication's answer.
    Answer(Answer, PacketId, ReasonCode),
    /// SUBACK.
    Subscribed(PacketId, ReasonCode),
    /// UNSUBACK.
    Unsubscribed(PacketId),
    /// A message.
    Message(Delivery),
    /// PUBREL.
    Release(PacketId),
    /// PINGRESP.
    Probed,
}
