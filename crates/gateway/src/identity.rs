//! The identity of a forwarded message: MQTT 5 user properties that it gets where it enters the broker and keeps from
//! then on.
//!
//! `id` is `{gateway}-{life}-{number}` and never repeats: the life is a random number of the process,
//! so that no number is used twice even if a crash made the gateway forget it. `at` is
//! when the gateway accepted the message (RFC 3339, milliseconds). `origin` is a hash of what the device sent
//! (client, packet identifier, content), so that a message that a device repeats after a crash is recognised;
//! it does not leave the gateway. `via` names the gateways that a message has passed.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

use fulmar_mqtt::{Properties, Property, PropertyBuf};
use ring::digest;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Name of the property with the identifier.
pub const ID: &str = "id";
/// Name of the property with the time.
pub const AT: &str = "at";
/// Name of the property with the names of gateways passed, separated by commas.
pub const VIA: &str = "via";
/// Name of the property with the hash of what the device sent.
pub const ORIGIN: &str = "fulmar-origin";

/// Gateways that a message may pass. A longer chain is considered a loop.
pub const MAX_HOPS: usize = 8;
/// Longest identifier in bytes that is accepted from a device; a longer one is replaced.
pub const MAX_ID_BYTES: usize = 128;

/// Milliseconds since the Unix epoch as RFC 3339 in UTC; the epoch itself beyond the year 9999.
#[must_use]
pub fn rfc3339(at_ms: u64) -> String {
    let nanoseconds = i128::from(at_ms) * 1_000_000;
    let at = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds);
    let at = at.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (hour, minute, second, ms) = at.to_hms_milli();
    let month = u8::from(at.month());
    format!(
        "{:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z",
        at.year(),
        at.day()
    )
}

/// Milliseconds since the Unix epoch from RFC 3339; `None` if `text` is not RFC 3339 or before the epoch.
#[must_use]
pub fn from_rfc3339(text: &str) -> Option<u64> {
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    u64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok()
}

/// Stamps messages with an identity that they lack.
#[derive(Debug)]
pub struct Stamper {
    prefix: String,
    next: AtomicU64,
}

/// Publication of a device, to recognise it when the device repeats it.
#[derive(Clone, Copy, Debug)]
pub struct SentPublication<'a> {
    /// Client identifier.
    pub client_id: &'a str,
    /// Packet identifier; `None` at QoS 0, where devices repeat nothing.
    pub packet_id: Option<u16>,
    /// The DUP flag: whether the device may have sent the message before.
    pub dup: bool,
    /// Topic name.
    pub topic: &'a str,
    /// Payload.
    pub payload: &'a [u8],
}

impl Stamper {
    /// A stamper for the gateway of this name; `life` differs from all its earlier ones.
    #[must_use]
    pub fn new(gateway: &str, life: u64) -> Stamper {
        Stamper { prefix: format!("{gateway}-{life:x}"), next: AtomicU64::new(1) }
    }

    /// Returns the properties to append to those of a message.
    #[must_use]
    pub fn stamp(
        &self,
        has: &MessageIdentity<'_>,
        sent: &SentPublication<'_>,
        now_ms: u64,
    ) -> PropertyBuf {
        let mut added = PropertyBuf::new();
        if has.id.is_none() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            added.push(Property::UserProperty(ID, &format!("{}-{number}", self.prefix)));
        }
        if has.at.is_none() {
            added.push(Property::UserProperty(AT, &rfc3339(now_ms)));
        }
        if let Some(packet_id) = sent.packet_id {
            let again = if sent.dup { "+" } else { "" };
            let origin = format!("{:016x}{again}", origin(sent, packet_id));
            added.push(Property::UserProperty(ORIGIN, &origin));
        }
        added
    }
}

fn origin(sent: &SentPublication<'_>, packet_id: u16) -> u64 {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in [sent.client_id.as_bytes(), &packet_id.to_be_bytes(), sent.topic.as_bytes()] {
        // The length first, so that different lists of parts never have the same bytes.
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    context.update(sent.payload);
    first_eight(&context.finish())
}

/// Hash under which an identifier is remembered.
#[must_use]
pub fn key_of_id(id: &str) -> u64 {
    first_eight(&digest::digest(&digest::SHA256, id.as_bytes()))
}

fn first_eight(digest: &digest::Digest) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest.as_ref()[..8]);
    u64::from_be_bytes(bytes)
}

/// The identity in a message's properties.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageIdentity<'a> {
    /// The identifier, if the message has a usable one.
    pub id: Option<&'a str>,
    /// When a gateway first accepted the message, as written in the property.
    pub at: Option<&'a str>,
    /// Gateways that the message has passed.
    pub via: Option<&'a str>,
    /// Hash of what the device sent, and its DUP flag.
    pub origin: Option<(u64, bool)>,
    /// Seconds until the message expires.
    pub expiry_s: Option<u32>,
}

impl<'a> MessageIdentity<'a> {
    /// Reads an identity from properties.
    #[must_use]
    pub fn read(properties: Properties<'a>) -> MessageIdentity<'a> {
        let mut identity = MessageIdentity::default();
        for property in properties.iter() {
            match property {
                Property::UserProperty(ID, id) if (1..=MAX_ID_BYTES).contains(&id.len()) => {
                    identity.id = Some(id);
                }
                Property::UserProperty(AT, at) if from_rfc3339(at).is_some() => {
                    identity.at = Some(at);
                }
                Property::UserProperty(VIA, via) => identity.via = Some(via),
                Property::UserProperty(ORIGIN, text) => {
                    let (hex, again) = match text.strip_suffix('+') {
                        Some(hex) => (hex, true),
                        None => (text, false),
                    };
                    let origin = u64::from_str_radix(hex, 16).ok();
                    identity.origin = origin.map(|origin| (origin, again));
                }
                Property::MessageExpiryInterval(seconds) => identity.expiry_s = Some(seconds),
                _ => {}
            }
        }
        identity
    }

    /// The list of gateways with `gateway` appended; `None` if it contains `gateway` already or
    /// is full: the message goes in a loop.
    #[must_use]
    pub fn via_with(&self, gateway: &str) -> Option<Cow<'a, str>> {
        let Some(via) = self.via.filter(|via| !via.is_empty()) else {
            return Some(Cow::Owned(gateway.to_owned()));
        };
        let passed = via.split(',').count();
        if passed >= MAX_HOPS || via.split(',').any(|name| name == gateway) {
            return None;
        }
        Some(Cow::Owned(format!("{via},{gateway}")))
    }
}

/// The properties with which a message leaves the gateway: those with which it arrived, without those of this hop only
/// and those private to the gateway, and with `via` as the list of gateways.
#[must_use]
pub fn onward(properties: Properties<'_>, via: &str) -> PropertyBuf {
    let mut out = PropertyBuf::new();
    for property in properties.iter() {
        match property {
            Property::UserProperty(VIA | ORIGIN, _)
            | Property::TopicAlias(_)
            | Property::SubscriptionIdentifier(_)
            | Property::MessageExpiryInterval(_) => {}
            other => {
                out.push(other);
            }
        }
    }
    out.push(Property::UserProperty(VIA, via));
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SENT: SentPublication<'_> = SentPublication {
        client_id: "probe",
        packet_id: Some(7),
        dup: false,
        topic: "sensor/a/co2",
        payload: b"640",
    };

    #[test]
    fn a_message_is_stamped_once() {
        let stamper = Stamper::new("gw", 0xab);
        let first = stamper.stamp(&MessageIdentity::default(), &SENT, 1_700_000_000_123);
        let identity = MessageIdentity::read(first.as_properties());
        assert_eq!(identity.id, Some("gw-ab-1"));
        assert_eq!(identity.at, Some("2023-11-14T22:13:20.123Z"));
        let again = stamper.stamp(&identity, &SENT, 1_800_000_000_000);
        let again = MessageIdentity::read(again.as_properties());
        assert_eq!((again.id, again.at), (None, None));
        let other = stamper.stamp(&MessageIdentity::default(), &SENT, 0);
        assert_eq!(MessageIdentity::read(other.as_properties()).id, Some("gw-ab-2"));
    }

    #[test]
    fn what_a_device_repeats_is_the_same_and_nothing_else_is() {
        let stamper = Stamper::new("gw", 1);
        let origin_of = |sent: &SentPublication<'_>| {
            let stamped = stamper.stamp(&MessageIdentity::default(), sent, 0);
            MessageIdentity::read(stamped.as_properties()).origin
        };
        let (first, dup) = origin_of(&SENT).unwrap();
        assert!(!dup);
        assert_eq!(origin_of(&SentPublication { dup: true, ..SENT }), Some((first, true)));
        for other in [
            SentPublication { packet_id: Some(8), ..SENT },
            SentPublication { client_id: "probe2", ..SENT },
            SentPublication { payload: b"641", ..SENT },
            SentPublication { topic: "sensor/a/co", ..SENT },
        ] {
            assert_ne!(origin_of(&other).unwrap().0, first, "{other:?}");
        }
        assert_eq!(origin_of(&SentPublication { packet_id: None, ..SENT }), None);
    }

    #[test]
    fn loops_end() {
        let via = |text| MessageIdentity { via: Some(text), ..MessageIdentity::default() };
        assert_eq!(MessageIdentity::default().via_with("a").as_deref(), Some("a"));
        assert_eq!(via("a").via_with("b").as_deref(), Some("a,b"));
        assert_eq!(via("a,b").via_with("a"), None);
        assert_eq!(via("ab").via_with("a").as_deref(), Some("ab,a"));
        assert_eq!(via("1,2,3,4,5,6,7,8").via_with("a"), None);
    }

    #[test]
    fn what_leaves_has_no_secrets_of_the_gateway() {
        let mut came = PropertyBuf::new();
        came.push(Property::UserProperty(ID, "gw-1-1"))
            .push(Property::UserProperty(ORIGIN, "00"))
            .push(Property::UserProperty(VIA, "a"))
            .push(Property::ContentType("text/plain"))
            .push(Property::MessageExpiryInterval(5));
        let left = onward(came.as_properties(), "a,gw");
        let left: Vec<_> = left.as_properties().iter().collect();
        assert_eq!(
            left,
            [
                Property::UserProperty(ID, "gw-1-1"),
                Property::ContentType("text/plain"),
                Property::UserProperty(VIA, "a,gw"),
            ]
        );
    }

    #[test]
    fn times_go_there_and_back() {
        for at in [0, 1, 999, 1_700_000_000_123] {
            assert_eq!(from_rfc3339(&rfc3339(at)), Some(at));
        }
        assert_eq!(from_rfc3339("2023-11-14T23:13:20.123+01:00"), Some(1_700_000_000_123));
        assert_eq!(from_rfc3339("yesterday"), None);
    }
}
