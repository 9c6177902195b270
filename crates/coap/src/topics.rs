//! The mapping of resources to topics: `/ps/plant/temp` is the topic `plant/temp`.
//!
//! | request | effect |
//! |---|---|
//! | PUT | publishes a retained message |
//! | POST | publishes a message that is not retained |
//! | GET | returns the retained message |
//! | GET with Observe | returns the retained message and all later ones |
//! | DELETE | removes the retained message |
//!
//! This is the topic-data resource of draft-ietf-core-coap-pubsub, without its collection of topic configurations,
//! because MQTT topics need no configuration.

use fulmar_mqtt::topic::check_name;

/// The first segment of every topic's path.
pub const ROOT: &str = "ps";

/// The topic of a path below [`ROOT`], without it.
///
/// # Errors
/// Why there is no such topic, as a diagnostic message.
pub fn topic(segments: &[String]) -> Result<String, String> {
    if let Some(segment) = segments.iter().find(|segment| segment.contains('/')) {
        return Err(format!("{segment:?} contains a slash"));
    }
    let topic = segments.join("/");
    check_name(&topic).map_err(|error| error.to_string())?;
    Ok(topic)
}

/// The path of a topic, [`ROOT`] included.
#[must_use]
pub fn path(topic: &str) -> Vec<String> {
    std::iter::once(ROOT).chain(topic.split('/')).map(str::to_owned).collect()
}

/// Content-Formats and the content types MQTT has for them (RFC 7252 section 12.3 and its registry).
const FORMATS: [(u16, &str); 11] = [
    (0, "text/plain;charset=utf-8"),
    (0, "text/plain"),
    (40, "application/link-format"),
    (41, "application/xml"),
    (42, "application/octet-stream"),
    (47, "application/exi"),
    (50, "application/json"),
    (60, "application/cbor"),
    (110, "application/senml+json"),
    (112, "application/senml+cbor"),
    (11542, "application/vnd.oma.lwm2m+tlv"),
];

/// The content type of a Content-Format, if it has one here.
#[must_use]
pub fn content_type(format: u16) -> Option<&'static str> {
    FORMATS.iter().find(|(number, _)| *number == format).map(|(_, name)| *name)
}

/// The Content-Format of a content type, if it has one.
#[must_use]
pub fn content_format(name: &str) -> Option<u16> {
    let name = name.to_ascii_lowercase().replace(' ', "");
    FORMATS.iter().find(|(_, known)| *known == name).map(|(number, _)| *number)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn topic_of(segments: &[&str]) -> Result<String, String> {
        topic(&segments.iter().map(|&segment| segment.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn paths_are_topics_and_back() {
        assert_eq!(topic_of(&["plant", "temp"]).unwrap(), "plant/temp");
        assert_eq!(topic_of(&["plant", ""]).unwrap(), "plant/");
        assert_eq!(path("plant/temp"), ["ps", "plant", "temp"]);
        for bad in [&["a/b"][..], &["+"], &["a", "#"], &[], &["a\0"]] {
            assert!(topic_of(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn formats_have_types() {
        assert_eq!(content_type(50), Some("application/json"));
        assert_eq!(content_format("Text/Plain; charset=utf-8"), Some(0));
        assert_eq!(content_format("image/x-unknown"), None);
        assert_eq!(content_type(9999), None);
    }
}
