//! MQTT 5.0 properties on the command line and in JSON, by mosquitto's names for them
//! (MQTT 5.0 section 2.2.2.2).

use fulmar_client::{Property, PropertyBuf};
use fulmar_text::hex;
use serde_json::{Map, Value, json};

/// Properties of packets to which `-D COMMAND NAME VALUE [VALUE]` adds.
#[derive(Debug, Default)]
pub(super) struct PacketProperties {
    pub(super) connect: PropertyBuf,
    pub(super) publish: PropertyBuf,
    pub(super) will: PropertyBuf,
}

impl PacketProperties {
    /// Reads every occurrence of the option.
    pub(super) fn read(occurrences: &[Vec<String>]) -> Result<PacketProperties, String> {
        let mut given = PacketProperties::default();
        for words in occurrences {
            let (command, name, values) = match &words[..] {
                [command, name, values @ ..] if !values.is_empty() => (command, name, values),
                _ => return Err("-D takes COMMAND NAME VALUE".to_owned()),
            };
            let (into, allowed) = match command.as_str() {
                "connect" => (&mut given.connect, CONNECT.to_vec()),
                "publish" => (&mut given.publish, PUBLISH.to_vec()),
                "will" => (&mut given.will, [PUBLISH, &["will-delay-interval"]].concat()),
                other => {
                    return Err(format!("-D {other}: the command is connect, publish or will"));
                }
            };
            let name = name.to_ascii_lowercase();
            if !allowed.contains(&name.as_str()) {
                let allowed = allowed.join(", ");
                return Err(format!("-D {command} {name}: {command} takes {allowed}"));
            }
            add(into, &name, values).map_err(|wrong| format!("-D {command} {name}: {wrong}"))?;
        }
        Ok(given)
    }
}

const CONNECT: &[&str] = &[
    "user-property",
    "request-problem-information",
    "request-response-information",
    "authentication-method",
    "authentication-data",
];
const PUBLISH: &[&str] = &[
    "payload-format-indicator",
    "message-expiry-interval",
    "content-type",
    "response-topic",
    "correlation-data",
    "user-property",
];

fn add(into: &mut PropertyBuf, name: &str, values: &[String]) -> Result<(), String> {
    if name == "user-property" {
        let [key, value] = values else {
            return Err("requires two values, a name and a content".to_owned());
        };
        into.push(Property::UserProperty(key, value));
        return Ok(());
    }
    let [value] = values else {
        return Err(format!("requires one value; is {:?} out of place?", values[1]));
    };
    let number =
        || value.parse::<u32>().map_err(|_| format!("{value:?} is not a number of seconds"));
    let flag = || match value.as_str() {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(format!("{value:?} is not 0 or 1")),
    };
    into.push(match name {
        "payload-format-indicator" => Property::PayloadFormatIndicator(u8::from(flag()?)),
        "message-expiry-interval" => Property::MessageExpiryInterval(number()?),
        "content-type" => Property::ContentType(value),
        "response-topic" => Property::ResponseTopic(value),
        "correlation-data" => Property::CorrelationData(value.as_bytes()),
        "will-delay-interval" => Property::WillDelayInterval(number()?),
        "request-problem-information" => Property::RequestProblemInformation(flag()?),
        "request-response-information" => Property::RequestResponseInformation(flag()?),
        "authentication-method" => Property::AuthenticationMethod(value),
        _ => Property::AuthenticationData(value.as_bytes()),
    });
    Ok(())
}

/// A received message's properties; `None` where there are none.
pub(super) fn as_json(properties: &PropertyBuf) -> Option<Value> {
    let mut object = Map::new();
    let mut user = Vec::new();
    let mut subscriptions = Vec::new();
    for property in properties.as_properties().iter() {
        let (name, value) = match property {
            Property::PayloadFormatIndicator(format) => ("payload-format-indicator", json!(format)),
            Property::MessageExpiryInterval(s) => ("message-expiry-interval", json!(s)),
            Property::ContentType(text) => ("content-type", json!(text)),
            Property::ResponseTopic(text) => ("response-topic", json!(text)),
            Property::CorrelationData(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => ("correlation-data", json!(text)),
                Err(_) => ("correlation-data-hex", json!(hex::encode(bytes))),
            },
            Property::UserProperty(key, value) => {
                user.push(json!([key, value]));
                continue;
            }
            Property::SubscriptionIdentifier(id) => {
                subscriptions.push(json!(id));
                continue;
            }
            // No other is allowed in PUBLISH.
            _ => continue,
        };
        object.insert(name.to_owned(), value);
    }
    // A list of pairs: a name may come more than once, and their order counts.
    for (name, list) in [("user-properties", user), ("subscription-identifiers", subscriptions)] {
        if !list.is_empty() {
            object.insert(name.to_owned(), list.into());
        }
    }
    (!object.is_empty()).then_some(Value::Object(object))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn given(lines: &[&str]) -> Result<PacketProperties, String> {
        let words = |line: &&str| line.split(' ').map(str::to_owned).collect();
        PacketProperties::read(&lines.iter().map(words).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_given_is_what_json_shows() {
        let given = given(&[
            "publish content-type text/plain",
            "publish message-expiry-interval 60",
            "publish user-property room attic",
            "publish user-property room cellar",
        ]);
        let shown = as_json(&given.unwrap().publish).unwrap();
        assert_eq!(shown["content-type"], "text/plain");
        assert_eq!(shown["message-expiry-interval"], 60);
        assert_eq!(shown["user-properties"], json!([["room", "attic"], ["room", "cellar"]]));
        assert_eq!(as_json(&PropertyBuf::new()), None);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, word) in [
            ("publish colour red", "message-expiry-interval"),
            ("publish message-expiry-interval soon", "soon"),
            ("publish content-type a b", "out of place"),
            ("publish user-property a", "two values"),
            ("puback reason-string a", "connect, publish or will"),
            ("connect content-type a", "user-property"),
        ] {
            let error = given(&[line]).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
