//! Messages as applications see them (section 3.3).

use bytes::Bytes;
use fulmar_mqtt::packet::Publish;
use fulmar_mqtt::{PacketId, Property, PropertyBuf, QoS};

/// A message to publish, or one received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Topic name.
    pub topic: String,
    /// Payload.
    pub payload: Bytes,
    /// Quality of service.
    pub qos: QoS,
    /// The RETAIN flag.
    pub retain: bool,
    /// The DUP flag: the message may have been received before. Ignored when publishing.
    pub dup: bool,
    /// MQTT 5.0 properties; left out for 3.1.1.
    pub properties: PropertyBuf,
    /// The receipt of a received message that waits for [`Client::acknowledge`](crate::Client::acknowledge).
    pub receipt: Option<Receipt>,
}

/// Acknowledges a received message, while the connection on which it was received lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The number of the connection.
    pub(crate) connection: u64,
    pub(crate) flow: usize,
    pub(crate) id: PacketId,
}

impl Message {
    /// A message at QoS 0.
    #[must_use]
    pub fn new(topic: impl Into<String>, payload: impl Into<Bytes>) -> Message {
        Message {
            topic: topic.into(),
            payload: payload.into(),
            qos: QoS::AtMostOnce,
            retain: false,
            dup: false,
            properties: PropertyBuf::new(),
            receipt: None,
        }
    }

    /// Sets the QoS.
    #[must_use]
    pub fn qos(mut self, qos: QoS) -> Message {
        self.qos = qos;
        self
    }

    /// Sets QoS 1.
    #[must_use]
    pub fn qos1(self) -> Message {
        self.qos(QoS::AtLeastOnce)
    }

    /// Sets QoS 2.
    #[must_use]
    pub fn qos2(self) -> Message {
        self.qos(QoS::ExactlyOnce)
    }

    /// Sets RETAIN: the server stores the message for later subscribers.
    #[must_use]
    pub fn retain(mut self) -> Message {
        self.retain = true;
        self
    }

    /// The approximate memory that it uses, in bytes.
    pub(crate) fn size(&self) -> usize {
        let properties = self.properties.as_properties().raw().len();
        self.topic.len() + self.payload.len() + properties + std::mem::size_of::<Message>()
    }

    pub(crate) fn received(topic: &str, publish: &Publish<'_>) -> Message {
        let mut properties = PropertyBuf::new();
        for property in publish.properties.iter() {
            if !matches!(property, Property::TopicAlias(_)) {
                properties.push(property);
            }
        }
        Message {
            topic: topic.to_owned(),
            payload: Bytes::copy_from_slice(publish.payload),
            qos: publish.qos,
            retain: publish.retain,
            dup: publish.dup,
            properties,
            receipt: None,
        }
    }
}
