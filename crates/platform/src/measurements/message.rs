//! Measurements as MQTT messages: a number, an object, a list of objects, or an object of quantities.
//!
//! What a payload does not say is taken from the message's user properties `at` and `id`, which a
//! gateway adds when it accepts a message; if there is no time at all, it is that of its arrival.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{NewMeasurement, Quantity};
use crate::number::Amount;
use crate::text::{Name, Text};
use crate::time::Time;

/// Measurements of one message.
const MAX_ITEMS: usize = 1000;

/// A message with measurements, as it came from the broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SensorMessage {
    /// The topic, such as `fulmar/rural/sensor/attic/radon`.
    pub topic: String,
    /// What was published.
    pub payload: Vec<u8>,
    /// User property `at`: when it was accepted, RFC 3339.
    pub at: Option<String>,
    /// User property `id`: the same whenever the same message is sent again.
    pub id: Option<String>,
}

/// One measurement of a payload.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    value: Amount,
    at: Option<Time>,
    unit: Option<Text<0, 16>>,
    id: Option<Text<1, 160>>,
}

/// What a message says beside its payload.
struct Envelope {
    device: Name,
    at: Time,
    id: Option<String>,
}

impl Envelope {
    /// A measurement; `part` distinguishes it from others under the message's identifier.
    fn item(&self, quantity: &Quantity, item: Item, part: &str) -> Result<NewMeasurement, String> {
        let id = match (item.id, &self.id) {
            (Some(id), _) => Some(id),
            (None, Some(id)) => Some(identifier(&format!("{id}{part}"))?),
            (None, None) => None,
        };
        Ok(NewMeasurement {
            device: self.device.clone(),
            quantity: quantity.clone(),
            at: item.at.unwrap_or(self.at),
            value: item.value,
            unit: item.unit,
            id,
        })
    }
}

fn identifier(text: &str) -> Result<Text<1, 160>, String> {
    let length = text.chars().count();
    let whole = Text::cut(text).filter(|_| length <= 160);
    whole.ok_or_else(|| {
        "the identifier is empty, longer than 160 characters, or has U+0000".to_owned()
    })
}

fn too_many() -> String {
    format!("more than {MAX_ITEMS} measurements at once")
}

/// The measurements of a message about `device`, of one quantity or of several.
pub(crate) fn parse(
    device: &str,
    quantity: Option<&str>,
    message: &SensorMessage,
    arrived: Time,
) -> Result<Vec<NewMeasurement>, String> {
    let device: Name = device.parse()?;
    let quantity = quantity.map(Quantity::new).transpose()?;
    let at = message.at.as_deref().map(str::parse).transpose();
    let at = at.map_err(|wrong| format!("user property at: {wrong}"))?.unwrap_or(arrived);
    let envelope = Envelope { device, at, id: message.id.clone() };
    let text = std::str::from_utf8(&message.payload).map_err(|_| "the payload is not text")?.trim();
    let json = |error: serde_json::Error| format!("the payload is not a measurement: {error}");
    let Some(quantity) = quantity else {
        return wide(&envelope, serde_json::from_str(text).map_err(json)?);
    };
    if text.starts_with('[') {
        let items: Vec<Item> = serde_json::from_str(text).map_err(json)?;
        if items.len() > MAX_ITEMS {
            return Err(too_many());
        }
        let items = items.into_iter().enumerate();
        return items
            .map(|(number, item)| envelope.item(&quantity, item, &format!("#{number}")))
            .collect();
    }
    let item = if text.starts_with('{') {
        serde_json::from_str(text).map_err(json)?
    } else {
        let number = text.parse().ok().and_then(Amount::new);
        let value = number.ok_or("the payload is neither a number nor JSON")?;
        Item { value, at: None, unit: None, id: None }
    };
    Ok(vec![envelope.item(&quantity, item, "")?])
}

/// An object of quantities, with `at` and `id` between them.
fn wide(
    envelope: &Envelope,
    mut object: BTreeMap<String, &RawValue>,
) -> Result<Vec<NewMeasurement>, String> {
    let mut envelope =
        Envelope { device: envelope.device.clone(), at: envelope.at, id: envelope.id.clone() };
    if let Some(at) = object.remove("at") {
        envelope.at = serde_json::from_str(at.get()).map_err(|error| format!("at: {error}"))?;
    }
    if let Some(id) = object.remove("id") {
        let id: String = serde_json::from_str(id.get()).map_err(|error| format!("id: {error}"))?;
        envelope.id = Some(id);
    }
    if object.len() > MAX_ITEMS {
        return Err(too_many());
    }
    let measured = object.into_iter().map(|(name, value)| {
        let quantity = Quantity::new(&name).map_err(|wrong| format!("{name:?}: {wrong}"))?;
        let number = serde_json::from_str(value.get()).ok().and_then(Amount::new);
        let value = number.ok_or_else(|| format!("{name}: expected a number"))?;
        envelope.item(
            &quantity,
            Item { value, at: None, unit: None, id: None },
            &format!("/{name}"),
        )
    });
    let measured: Vec<NewMeasurement> = measured.collect::<Result<_, _>>()?;
    if measured.is_empty() {
        return Err("the payload contains no measurement".to_owned());
    }
    Ok(measured)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::strategy::Strategy as _;

    use super::*;

    fn message(payload: &str) -> SensorMessage {
        SensorMessage { payload: payload.into(), ..SensorMessage::default() }
    }

    #[test]
    fn every_form_of_a_payload_is_understood() {
        let now = Time(1_000_000);
        let one = |payload: &str| {
            let items = parse("attic", Some("radon"), &message(payload), now).unwrap();
            (items[0].at, *items[0].value, items.len())
        };
        assert_eq!(one("21.5"), (now, 21.5, 1));
        assert_eq!(one(" -3 \n"), (now, -3.0, 1));
        assert_eq!(one(r#"{"value":7}"#), (now, 7.0, 1));
        let with_time = r#"{"value":7,"at":"1970-01-01T00:00:02Z","unit":"Bq/m³","id":"x"}"#;
        assert_eq!(one(with_time), (Time(2000), 7.0, 1));
        assert_eq!(one(r#"[{"value":1},{"value":2}]"#), (now, 1.0, 2));
        let wide = r#"{"at":"1970-01-01T00:00:02Z","id":"g-7","temperature":21.5,"co2":640}"#;
        let items = parse("attic", None, &message(wide), now).unwrap();
        let ids: Vec<&str> = items.iter().map(|item| &**item.id.as_ref().unwrap()).collect();
        assert_eq!(ids, ["g-7/co2", "g-7/temperature"]);
        assert!(items.iter().all(|item| item.at == Time(2000)));
    }

    proptest::proptest! {
        /// To the last bit, however it is written: as a number, in an object, or beside other quantities.
        #[test]
        fn a_value_is_kept_as_it_was_sent(value in -1e12..1e12f64) {
            let forms = [format!("{value:?}"), format!("{{\"value\":{value:?}}}")];
            for payload in forms {
                let items = parse("attic", Some("radon"), &message(&payload), Time(1)).unwrap();
                proptest::prop_assert_eq!(*items[0].value, value);
            }
            let wide = format!("{{\"co2\":{value:?}}}");
            let items = parse("attic", None, &message(&wide), Time(1)).unwrap();
            proptest::prop_assert_eq!(*items[0].value, value);
        }
    }

    #[test]
    fn a_gateways_properties_say_what_the_payload_does_not() {
        let now = Time(1_000_000);
        let mut message = message("5");
        message.at = Some("1970-01-01T00:00:03Z".into());
        message.id = Some("g-1".into());
        let items = parse("attic", Some("co"), &message, now).unwrap();
        assert_eq!((items[0].at, &**items[0].id.as_ref().unwrap()), (Time(3000), "g-1"));
        message.payload = br#"[{"value":1},{"value":1,"id":"own"}]"#.to_vec();
        let items = parse("attic", Some("co"), &message, now).unwrap();
        let ids: Vec<&str> = items.iter().map(|item| &**item.id.as_ref().unwrap()).collect();
        assert_eq!(ids, ["g-1#0", "own"]);
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        let now = Time(0);
        for payload in
            ["", "warm", "NaN", "inf", "1e300", "{}", r#"{"value":"7"}"#, "[1]", "null", "\u{0}"]
        {
            assert!(parse("attic", Some("radon"), &message(payload), now).is_err(), "{payload:?}");
        }
        for payload in ["5", "{}", r#"{"Radon":1}"#, r#"{"radon":"1"}"#, r#"{"at":5,"radon":1}"#] {
            assert!(parse("attic", None, &message(payload), now).is_err(), "{payload:?}");
        }
        assert!(parse("-attic", Some("radon"), &message("5"), now).is_err());
        assert!(parse("attic", Some("Radon"), &message("5"), now).is_err());
        let bytes = SensorMessage { payload: vec![0xff], ..SensorMessage::default() };
        assert!(parse("attic", Some("radon"), &bytes, now).is_err());
        let mut timed = message("5");
        timed.at = Some("yesterday".into());
        assert!(parse("attic", Some("radon"), &timed, now).is_err());
    }

    #[test]
    fn too_many_are_refused_rather_than_some_of_them_lost() {
        let of = |items: usize, item: fn(usize) -> String| {
            (0..items).map(item).collect::<Vec<_>>().join(",")
        };
        for (items, expected) in [(MAX_ITEMS, Ok(MAX_ITEMS)), (MAX_ITEMS + 1, Err(too_many()))] {
            let list = format!("[{}]", of(items, |_| r#"{"value":1}"#.to_owned()));
            let wide = format!("{{{}}}", of(items, |number| format!(r#""q{number}":1"#)));
            for (quantity, payload) in [(Some("radon"), list), (None, wide)] {
                let read = parse("attic", quantity, &message(&payload), Time(0));
                assert_eq!(read.map(|items| items.len()), expected, "{quantity:?}");
            }
        }
    }

    proptest::proptest! {
        /// Whatever is published is either measurements within their bounds or refused.
        #[test]
        fn any_payload_is_answered(
            payload in proptest::prop_oneof![
                proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
                r#"[\[{]?("(value|at|id|unit|co2)":|[0-9eE.+-]{1,9}|"[a-z0-9:-]{0,20}"|[,{}\[\]]){0,8}"#
                    .prop_map(String::into_bytes),
            ],
            at in proptest::option::of(".{0,30}"),
            id in proptest::option::of(".{0,200}"),
            quantity in proptest::option::of("[a-zA-Z0-9_]{0,40}"),
        ) {
            let message = SensorMessage { topic: String::new(), payload, at, id };
            for item in parse("attic", quantity.as_deref(), &message, Time(0)).unwrap_or_default() {
                proptest::prop_assert!(item.value.is_finite());
                proptest::prop_assert!(item.id.is_none_or(|id| id.chars().count() <= 160));
            }
        }
    }
}
