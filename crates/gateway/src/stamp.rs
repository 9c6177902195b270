//! By what a message is known for ever: MQTT 5 user properties that it gets where it enters and
//! keeps on its way.
//!
//! `id` is `{gateway}-{life}-{number}`, unique for ever: the life is a random number of the process,
//! so that no number is used twice even where a crash made the gateway forget that it was. `at` is
//! when the gateway accepted the message (RFC 3339, milliseconds). `origin` says what the device sent
//! (client, packet identifier, content), so that what a device repeats after a crash is known as
//! repeated; it does not leave the gateway. `via` names the gateways a message has passed.

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
/// Name of the property that says what the device sent.
pub const ORIGIN: &str = "fulmar-origin";

/// Gateways a message may pass. A chain of more is taken for a circle.
pub const MAX_HOPS: usize = 8;
/// Longest identifier that is believed from a device; a longer one is replaced.
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

/// Milliseconds since the Unix epoch out of RFC 3339; `None` if it is none or lies before it.
#[must_use]
pub fn from_rfc3339(text: &str) -> Option<u64> {
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    u64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok()
}

/// Gives identifiers.
#[derive(Debug)]
pub struct Stamper {
    prefix: String,
    next: AtomicU64,
}

/// What a device sent, for knowing it again.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    /// Client identifier.
    pub client_id: &'a str,
    /// Packet identifier; `None` at QoS 0, where nothing is repeated.
    pub packet_id: Option<u16>,
    /// Whether the device says that it may have sent it before.
    pub dup: bool,
    /// Topic name.
    pub topic: &'a str,
    /// Payload.
    pub payload: &'a [u8],
}

impl Stamper {
    /// For the gateway of this name; `life` differs from every earlier one of it.
    #[must_use]
    pub fn new(gateway: &str, life: u64) -> Stamper {
        Stamper { prefix: format!("{gateway}-{life:x}"), next: AtomicU64::new(1) }
    }

    /// What to append to a message's properties.
    #[must_use]
    pub fn mark(&self, has: &Passport<'_>, sent: &Sent<'_>, now_ms: u64) -> PropertyBuf {
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

fn origin(sent: &Sent<'_>, packet_id: u16) -> u64 {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in [sent.client_id.as_bytes(), &packet_id.to_be_bytes(), sent.topic.as_bytes()] {
        // The length first: no two lists of parts read the same.
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    context.update(sent.payload);
    first_eight(&context.finish())
}

/// The key under which an identifier is remembered.
#[must_use]
pub fn key_of_id(id: &str) -> u64 {
    first_eight(&digest::digest(&digest::SHA256, id.as_bytes()))
}

fn first_eight(digest: &digest::Digest) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest.as_ref()[..8]);
    u64::from_be_bytes(bytes)
}

/// What a message's properties say of its way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passport<'a> {
    /// Its identifier, if it has a usable one.
    pub id: Option<&'a str>,
    /// When it was accepted first, as it stands there.
    pub at: Option<&'a str>,
    /// Gateways it has passed.
    pub via: Option<&'a str>,
    /// What the device sent, and whether it says that it may have sent it before.
    pub origin: Option<(u64, bool)>,
    /// Seconds until it is of no use any more.
    pub expiry_s: Option<u32>,
}

impl<'a> Passport<'a> {
    /// Reads properties.
    #[must_use]
    pub fn read(properties: Properties<'a>) -> Passport<'a> {
        let mut passport = Passport::default();
        for property in properties.iter() {
            match property {
                Property::UserProperty(ID, id) if (1..=MAX_ID_BYTES).contains(&id.len()) => {
                    passport.id = Some(id);
                }
                Property::UserProperty(AT, at) if from_rfc3339(at).is_some() => {
                    passport.at = Some(at);
                }
                Property::UserProperty(VIA, via) => passport.via = Some(via),
                Property::UserProperty(ORIGIN, text) => {
                    let (hex, again) = match text.strip_suffix('+') {
                        Some(hex) => (hex, true),
                        None => (text, false),
                    };
                    let origin = u64::from_str_radix(hex, 16).ok();
                    passport.origin = origin.map(|origin| (origin, again));
                }
                Property::MessageExpiryInterval(seconds) => passport.expiry_s = Some(seconds),
                _ => {}
            }
        }
        passport
    }

    /// The list of gateways with `gateway` at its end; `None` if that is in it already or the list
    /// is full: the message goes in a circle.
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

/// The properties with which a message leaves: those it came with, less what is of this hop only or
/// not for others, and with the list of gateways given.
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

    const SENT: Sent<'_> = Sent {
        client_id: "probe",
        packet_id: Some(7),
        dup: false,
        topic: "sensor/a/co2",
        payload: b"640",
    };

    #[test]
    fn a_message_is_marked_once() {
        let stamper = Stamper::new("gw", 0xab);
        let first = stamper.mark(&Passport::default(), &SENT, 1_700_000_000_123);
        let passport = Passport::read(first.as_properties());
        assert_eq!(passport.id, Some("gw-ab-1"));
        assert_eq!(passport.at, Some("2023-11-14T22:13:20.123Z"));
        let again = stamper.mark(&passport, &SENT, 1_800_000_000_000);
        let again = Passport::read(again.as_properties());
        assert_eq!((again.id, again.at), (None, None));
        let other = stamper.mark(&Passport::default(), &SENT, 0);
        assert_eq!(Passport::read(other.as_properties()).id, Some("gw-ab-2"));
    }

    #[test]
    fn what_a_device_repeats_is_the_same_and_nothing_else_is() {
        let stamper = Stamper::new("gw", 1);
        let origin_of = |sent: &Sent<'_>| {
            let marked = stamper.mark(&Passport::default(), sent, 0);
            Passport::read(marked.as_properties()).origin
        };
        let (first, dup) = origin_of(&SENT).unwrap();
        assert!(!dup);
        assert_eq!(origin_of(&Sent { dup: true, ..SENT }), Some((first, true)));
        for other in [
            Sent { packet_id: Some(8), ..SENT },
            Sent { client_id: "probe2", ..SENT },
            Sent { payload: b"641", ..SENT },
            Sent { topic: "sensor/a/co", ..SENT },
        ] {
            assert_ne!(origin_of(&other).unwrap().0, first, "{other:?}");
        }
        assert_eq!(origin_of(&Sent { packet_id: None, ..SENT }), None);
    }

    #[test]
    fn circles_end() {
        let via = |text| Passport { via: Some(text), ..Passport::default() };
        assert_eq!(Passport::default().via_with("a").as_deref(), Some("a"));
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
