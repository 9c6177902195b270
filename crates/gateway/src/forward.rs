//! The form in which a message leaves: from the publication that the gateway's session receives to the outbox's item,
//! and from there to the publication upstream.

use bytes::Bytes;
use fulmar_mqtt::packet::Publish;
use fulmar_mqtt::{Properties, Property, PropertyBuf, QoS};

use crate::batch::{self, CONTENT_TYPE, DEFLATE, ENCODING};
use crate::identity::{MessageIdentity, SentPublication, Stamper, VIA, onward};
use crate::mapping::Mapping;
use crate::outbox::{Item, Stored};
use crate::uplink_scheduler::Publication;

/// Why a publication is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotForwarded {
    /// No rule applies: its subscription is one of an earlier configuration.
    NoRule,
    /// It has passed this gateway before, or too many.
    Loop,
}

/// The outbox's item for a publication. One that was not stamped where it entered the broker, such as a will, is
/// stamped here. The program's time and the system's may differ.
///
/// # Errors
/// It is not forwarded.
pub fn item(
    publish: &Publish<'_>,
    up: &Mapping,
    name: &str,
    stamper: &Stamper,
    now_ms: u64,
    wall_ms: u64,
) -> Result<Item, NotForwarded> {
    let (rule, topic) = up.map(publish.topic).ok_or(NotForwarded::NoRule)?;
    let identity = MessageIdentity::read(publish.properties);
    let via = identity.via_with(name).ok_or(NotForwarded::Loop)?;
    let mut properties = onward(publish.properties, &via);
    let sent =
        SentPublication { client_id: "", packet_id: None, dup: false, topic: &topic, payload: &[] };
    let stamped = stamper.stamp(&identity, &sent, wall_ms);
    for property in stamped.as_properties().iter() {
        properties.push(property);
    }
    let stamped = MessageIdentity::read(properties.as_properties());
    let (id, at) = (stamped.id.unwrap_or_default().into(), stamped.at.unwrap_or_default().into());
    Ok(Item {
        topic,
        payload: publish.payload.to_vec(),
        properties: properties.as_properties().raw().to_vec(),
        qos: rule.qos,
        retain: publish.retain,
        priority: rule.priority,
        id,
        at,
        origin: identity.origin,
        expires_ms: identity.expiry_s.map(|seconds| now_ms + u64::from(seconds) * 1000),
    })
}

/// A publication as it is sent upstream.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Topic name.
    pub topic: String,
    /// Payload.
    pub payload: Bytes,
    /// Quality of service.
    pub qos: QoS,
    /// RETAIN flag.
    pub retain: bool,
    /// MQTT 5.0 properties.
    pub properties: PropertyBuf,
}

/// Format in which batches are sent.
#[derive(Clone, Copy, Debug)]
pub struct BatchForm<'a> {
    /// The gateway's name.
    pub name: &'a str,
    /// Their topic.
    pub topic: &'a str,
    /// Whether they are compressed.
    pub compress: bool,
}

/// Returns the packet's contents for messages of the outbox.
#[must_use]
pub fn outgoing(publication: &Publication, form: &BatchForm<'_>, now_ms: u64) -> Outgoing {
    match publication {
        Publication::One(stored) => to_outgoing(stored, now_ms),
        Publication::Batch(messages) => {
            let (payload, packed) = batch::encode(messages, form.compress);
            let mut properties = PropertyBuf::new();
            properties
                .push(Property::ContentType(CONTENT_TYPE))
                .push(Property::UserProperty(ENCODING, if packed { DEFLATE } else { "none" }))
                .push(Property::UserProperty(VIA, form.name));
            let (topic, qos) = (form.topic.to_owned(), QoS::AtLeastOnce);
            Outgoing { topic, payload: payload.into(), qos, retain: false, properties }
        }
    }
}

fn to_outgoing(stored: &Stored, now_ms: u64) -> Outgoing {
    let mut properties = PropertyBuf::new();
    for property in Properties::from_forwardable(&stored.properties).iter() {
        properties.push(property);
    }
    if let Some(at) = stored.expires_ms {
        // Never more than there was ([MQTT-3.3.2-6]), also if the clock was set back.
        let left = at.saturating_sub(now_ms.max(stored.entered_ms)).div_ceil(1000);
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        properties.push(Property::MessageExpiryInterval(left));
    }
    let (topic, payload) = (stored.topic.clone(), stored.payload.clone());
    Outgoing { topic, payload, qos: stored.qos, retain: stored.retain, properties }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mapping::{Direction, Priority, Rule};

    fn up() -> Mapping {
        let rule = Rule {
            filter: "sensor/#".into(),
            from_prefix: String::new(),
            to_prefix: "up/".into(),
            qos: QoS::AtLeastOnce,
            priority: Priority::Urgent,
        };
        Mapping::new(Direction::Up, vec![rule]).unwrap()
    }

    fn publish<'a>(topic: &'a str, properties: &'a PropertyBuf) -> Publish<'a> {
        Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic,
            packet_id: None,
            properties: properties.as_properties(),
            payload: b"85",
        }
    }

    #[test]
    fn a_stamped_message_keeps_its_identity_and_another_gets_one() {
        let stamper = Stamper::new("gw", 7);
        let mut stamp = PropertyBuf::new();
        stamp.push(Property::UserProperty("id", "gw-1-1"));
        stamp.push(Property::UserProperty("at", "2026-01-01T00:00:00.000Z"));
        stamp.push(Property::MessageExpiryInterval(5));
        let item = |with: &PropertyBuf| {
            super::item(&publish("sensor/a", with), &up(), "gw", &stamper, 9, 9)
        };
        let kept = item(&stamp).unwrap();
        assert_eq!(
            (&*kept.topic, &*kept.id, kept.expires_ms),
            ("up/sensor/a", "gw-1-1", Some(5009))
        );
        assert_eq!(kept.priority, Priority::Urgent);
        let made = item(&PropertyBuf::new()).unwrap();
        assert_eq!((&*made.id, &*made.at), ("gw-7-1", "1970-01-01T00:00:00.009Z"));
        stamp.push(Property::UserProperty("via", "gw"));
        assert_eq!(item(&stamp).unwrap_err(), NotForwarded::Loop);
        let none = PropertyBuf::new();
        let other = super::item(&publish("else", &none), &up(), "gw", &stamper, 9, 9);
        assert_eq!(other.unwrap_err(), NotForwarded::NoRule);
    }

    #[test]
    fn what_is_sent_expires_when_the_message_does() {
        let stored = Stored { expires_ms: Some(5_000), ..Stored::default() };
        let form = BatchForm { name: "gw", topic: "batch", compress: true };
        let sent = outgoing(&Publication::One(stored.clone()), &form, 1_500);
        let left: Vec<_> = sent.properties.as_properties().iter().collect();
        assert_eq!(left, [Property::MessageExpiryInterval(4)]);
        let entered = Stored { entered_ms: 1_500, ..stored.clone() };
        let sent = outgoing(&Publication::One(entered), &form, 3);
        let left: Vec<_> = sent.properties.as_properties().iter().collect();
        assert_eq!(left, [Property::MessageExpiryInterval(4)], "the clock was set back");
        let sent = outgoing(&Publication::Batch(vec![stored.clone(), stored]), &form, 0);
        assert_eq!((&*sent.topic, sent.qos), ("batch", QoS::AtLeastOnce));
    }
}
