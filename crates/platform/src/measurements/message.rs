//! Measurements as MQTT messages: a number, an object, or an object of quantities, as that of ThingsBoard or Tasmota; or
//! a list of objects.
//!
//! A field that is no number costs only itself: it is left out and named. Switches are 0 and 1.
//!
//! What a payload does not say is taken from the message's user properties `at` and `id`, which a
//! gateway adds when it accepts a message; if there is no time at all, it is that of its arrival.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::{NewMeasurement, Quantity};
use crate::values::*;

/// Measurements of one message.
const MAX_ITEMS: usize = 1000;

/// A message with measurements, as it came from the broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SensorMessage {
    /// The topic, such as `fulmar/rural/sensor/attic/radon`.
    pub topic: String,
    /// Content of a publication.
    pub payload: Vec<u8>,
    /// User property `at`: when it was accepted, RFC 3339.
    pub at: Option<String>,
    /// User property `id`: the same whenever the same message is sent again.
    pub id: Option<String>,
}

/// One measurement of a payload.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Item<'a> {
    #[serde(borrow)]
    value: &'a RawValue,
    #[serde(borrow)]
    at: Option<&'a RawValue>,
    unit: Option<Text<0, 16>>,
    id: Option<Text<1, 160>>,
}

/// A number, or a switch.
fn amount(json: &str) -> Result<Amount, String> {
    let number = match json {
        "true" => Some(1.0),
        "false" => Some(0.0),
        number => number.parse().ok(),
    };
    number.and_then(Amount::new).ok_or_else(|| "expected a number".to_owned())
}

/// A time as text, or as seconds or milliseconds since 1970.
fn moment(json: &str) -> Result<Time, String> {
    // In seconds, that would be the year 5138, in milliseconds it is 1973.
    const FIRST_IN_MS: f64 = 1e11;
    let Ok(number) = json.parse::<f64>() else {
        return serde_json::from_str(json).map_err(|error| format!("at: {error}"));
    };
    let ms = if number < FIRST_IN_MS { number * SECOND_MS as f64 } else { number };
    let is_time = (0.0..=Time::NEVER.0 as f64).contains(&ms);
    is_time.then_some(Time(ms as i64)).ok_or_else(|| "at: expected a time since 1970".to_owned())
}

/// Properties of a message beside its payload.
#[derive(Clone)]
struct Envelope {
    device: Name,
    at: Time,
    id: Option<String>,
}

impl Envelope {
    /// A measurement of a value alone; `part` distinguishes it from others under the message's identifier.
    fn measurement(
        &self,
        quantity: &Quantity,
        json: &str,
        part: &str,
    ) -> Result<NewMeasurement, String> {
        let id = self.id.as_ref().map(|id| identifier(&format!("{id}{part}"))).transpose()?;
        let (device, quantity) = (self.device.clone(), quantity.clone());
        Ok(NewMeasurement { device, quantity, at: self.at, value: amount(json)?, unit: None, id })
    }

    /// The same of an object with a value, which may say more.
    fn item(&self, quantity: &Quantity, json: &str, part: &str) -> Result<NewMeasurement, String> {
        if !json.starts_with('{') {
            return self.measurement(quantity, json, part);
        }
        let Item { value, at, unit, id } = serde_json::from_str(json).map_err(no_measurement)?;
        let at = at.map_or(Ok(self.at), |at| moment(at.get()))?;
        let own =
            Envelope { at, id: if id.is_some() { None } else { self.id.clone() }, ..self.clone() };
        let measurement = own.measurement(quantity, value.get(), part)?;
        Ok(NewMeasurement { unit, id: id.or(measurement.id), ..measurement })
    }
}

fn no_measurement(error: serde_json::Error) -> String {
    format!("the payload is not a measurement: {error}")
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

/// Contents of a message.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Contents {
    pub(crate) measurements: Vec<NewMeasurement>,
    /// Why others cannot be used, with their names.
    pub(crate) unusable: Vec<String>,
}

impl Contents {
    fn add(&mut self, name: &str, measurement: Result<NewMeasurement, String>) {
        match measurement {
            Ok(measurement) => self.measurements.push(measurement),
            Err(reason) => {
                let name = name.chars().take(64).collect::<String>();
                self.unusable.push(format!("{name:?}: {reason}"));
            }
        }
    }
}

/// The contents of a message about `device`: measurements of one quantity or of several.
pub(crate) fn parse(
    device: &str,
    quantity: Option<&str>,
    message: &SensorMessage,
    arrived: Time,
) -> Result<Contents, String> {
    let device: Name = device.parse()?;
    let quantity = quantity.map(str::parse::<Quantity>).transpose()?;
    let at = message.at.as_deref().map(str::parse).transpose();
    let at = at.map_err(|wrong| format!("user property at: {wrong}"))?.unwrap_or(arrived);
    let envelope = Envelope { device, at, id: message.id.clone() };
    let text = std::str::from_utf8(&message.payload).map_err(|_| "the payload is not text")?.trim();
    let repaired;
    let text = if serde_json::from_str::<IgnoredAny>(text).is_ok() {
        text
    } else {
        repaired = without_nan(text);
        repaired.trim()
    };
    let mut items = vec![(String::new(), text)];
    if text.starts_with('[') {
        let list: Vec<&RawValue> = serde_json::from_str(text).map_err(no_measurement)?;
        if list.len() > MAX_ITEMS {
            return Err(too_many());
        }
        items = (0..).map(|at| format!("#{at}")).zip(list.into_iter().map(RawValue::get)).collect();
    }
    let mut contents = Contents::default();
    for (part, json) in items {
        match &quantity {
            None => {
                let read = wide(&envelope, json, &part, &mut contents);
                contents.unusable.extend(read.err());
            }
            Some(quantity) => {
                contents.add(&format!("{quantity}{part}"), envelope.item(quantity, json, &part))
            }
        }
        if contents.measurements.len() + contents.unusable.len() > MAX_ITEMS {
            return Err(too_many());
        }
    }
    if contents.measurements.is_empty() {
        let reasons = contents.unusable.iter().take(3).map(String::as_str).collect::<Vec<_>>();
        return Err(format!("the payload contains no measurement {}", reasons.join(", ")));
    }
    Ok(contents)
}

/// The text with null in place of numbers that are none, as C and Python print them.
fn without_nan(text: &str) -> String {
    let (mut out, mut word) = (String::with_capacity(text.len()), String::new());
    let (mut is_quoted, mut is_escaped) = (false, false);
    for letter in text.chars().chain(['\n']) {
        if !is_quoted && (letter.is_ascii_alphabetic() || letter == '-') {
            word.push(letter);
            continue;
        }
        let is_none = ["nan", "inf", "infinity"].contains(&&*word.to_lowercase().replace('-', ""));
        out.push_str(if is_none { "null" } else { &word });
        word.clear();
        is_quoted ^= letter == '"' && !is_escaped;
        is_escaped = is_quoted && letter == '\\' && !is_escaped;
        out.push(letter);
    }
    out
}

/// Fields of an object.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// An object of quantities, with `at` and `id` between them; ThingsBoard's `ts` with `values`; or Tasmota's, with sensors
/// in objects of their own between texts.
fn wide(
    envelope: &Envelope,
    json: &str,
    part: &str,
    contents: &mut Contents,
) -> Result<(), String> {
    let mut object: Fields<'_> = serde_json::from_str(json).map_err(no_measurement)?;
    let mut envelope = envelope.clone();
    let values = object.get("values").and_then(|values| serde_json::from_str(values.get()).ok());
    let at = object.remove(if values.is_some() { "ts" } else { "at" });
    let mut object = values.unwrap_or(object);
    if let Some(at) = at {
        envelope.at = moment(at.get())?;
    }
    if let Some(id) = object.remove("id") {
        envelope.id = serde_json::from_str(id.get()).map_err(|error| format!("id: {error}"))?;
    }
    if let Some(time) = object.remove("Time") {
        // Mostly the device's own time without a zone, which is none.
        envelope.at = moment(time.get()).unwrap_or(envelope.at);
        object = of_tasmota(object);
    }
    for (name, value) in object {
        let quantity = name.parse::<Quantity>().map_err(str::to_owned);
        let part = format!("{part}/{name}");
        contents
            .add(&name, quantity.and_then(|own| envelope.measurement(&own, value.get(), &part)));
    }
    Ok(())
}

/// Fields without texts, and those of each sensor under the sensor's name, such as `bme280_temperature`.
fn of_tasmota(object: Fields<'_>) -> Fields<'_> {
    let mut flat = Fields::new();
    let name = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    for (sensor, value) in object {
        match serde_json::from_str::<Fields<'_>>(value.get()) {
            Ok(own) => flat.extend(
                own.into_iter().map(|(key, value)| (name(&format!("{sensor}_{key}")), value)),
            ),
            Err(_) => drop(flat.insert(name(&sensor), value)),
        }
    }
    flat.retain(|_, value| !value.get().starts_with('"'));
    flat
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::strategy::Strategy as _;

    use super::*;

    fn measured(quantity: Option<&str>, payload: &str) -> Vec<NewMeasurement> {
        parse("attic", quantity, &message(payload), Time(1_000_000)).unwrap().measurements
    }

    fn message(payload: &str) -> SensorMessage {
        SensorMessage { payload: payload.into(), ..SensorMessage::default() }
    }

    #[test]
    fn every_form_of_a_payload_is_understood() {
        let now = Time(1_000_000);
        let one = |payload: &str| {
            let items = measured(Some("radon"), payload);
            (items[0].at, *items[0].value, items.len())
        };
        assert_eq!(one("21.5"), (now, 21.5, 1));
        assert_eq!(one(" -3 \n"), (now, -3.0, 1));
        assert_eq!((one("+.5"), one("true")), ((now, 0.5, 1), (now, 1.0, 1)));
        assert_eq!(one(r#"{"value":7}"#), (now, 7.0, 1));
        let with_time = r#"{"value":7,"at":"1970-01-01T00:00:02Z","unit":"Bq/m³","id":"x"}"#;
        assert_eq!(one(with_time), (Time(2000), 7.0, 1));
        assert_eq!(one(r#"[{"value":1},{"value":2}]"#), (now, 1.0, 2));
        let wide = r#"{"at":"1970-01-01T00:00:02Z","id":"g-7","temperature":21.5,"co2":640}"#;
        let items = measured(None, wide);
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
                let items = measured(Some("radon"), &payload);
                proptest::prop_assert_eq!(*items[0].value, value);
            }
            let wide = format!("{{\"co2\":{value:?}}}");
            let items = measured(None, &wide);
            proptest::prop_assert_eq!(*items[0].value, value);
        }
    }

    #[test]
    fn a_gateways_properties_say_what_the_payload_does_not() {
        let now = Time(1_000_000);
        let mut message = message("5");
        message.at = Some("1970-01-01T00:00:03Z".into());
        message.id = Some("g-1".into());
        let items = parse("attic", Some("co"), &message, now).unwrap().measurements;
        assert_eq!((items[0].at, &**items[0].id.as_ref().unwrap()), (Time(3000), "g-1"));
        message.payload = br#"[{"value":1},{"value":1,"id":"own"}]"#.to_vec();
        let items = parse("attic", Some("co"), &message, now).unwrap().measurements;
        let ids: Vec<&str> = items.iter().map(|item| &**item.id.as_ref().unwrap()).collect();
        assert_eq!(ids, ["g-1#0", "own"]);
    }

    #[test]
    fn a_field_that_is_no_number_costs_only_itself() {
        for (payload, stored, unusable) in [
            (r#"{"temperature":null,"humidity":51}"#, [51.0].as_slice(), "temperature"),
            (r#"{"temperature":nan,"humidity":50}"#, &[50.0], "temperature"),
            (r#"{"t":-Infinity,"humidity":50,"u":"nan \" nan"}"#, &[50.0], "t"),
            (r#"{"temperature":"21.5","humidity":53}"#, &[53.0], "temperature"),
            (r#"{"temperature":1e400,"humidity":56}"#, &[56.0], "temperature"),
            (r#"{"temperature":{"x":[1]},"humidity":57}"#, &[57.0], "temperature"),
            (r#"{"Temperature":1,"humidity":58}"#, &[58.0], "Temperature"),
            (r#"{"humidity":54,"motion":true,"x":false}"#, &[54.0, 1.0, 0.0], ""),
        ] {
            let read = parse("attic", None, &message(payload), Time(1)).unwrap();
            let values: Vec<f64> = read.measurements.iter().map(|item| *item.value).collect();
            assert_eq!(values, stored, "{payload}");
            let names = read.unusable.first().map(String::as_str).unwrap_or_default();
            assert!(names.contains(unusable) && read.unusable.is_empty() == unusable.is_empty());
        }
        let read = parse("attic", None, &message(r#"[5,{"co2":7},{"at":"x","co2":8}]"#), Time(1));
        let read = read.unwrap();
        assert_eq!((read.measurements.len(), read.unusable.len()), (1, 2));
        let list = r#"[{"value":1},{"value":null},{"value":true},7]"#;
        let read = parse("attic", Some("radon"), &message(list), Time(1)).unwrap();
        let values: Vec<f64> = read.measurements.iter().map(|item| *item.value).collect();
        assert_eq!((values, read.unusable.len()), (vec![1.0, 1.0, 7.0], 1));
    }

    #[test]
    fn times_since_1970_and_forms_of_others_are_read() {
        let at = Time(1_796_000_000_000);
        let seconds = r#"{"at":1796000000,"temperature":21.5}"#;
        let ms = r#"{"at":1796000000000,"temperature":21.5}"#;
        let things_board = r#"{"ts":1796000000000,"values":{"temperature":21.5}}"#;
        let list = r#"[{"ts":1796000000000,"values":{"temperature":21.5}}]"#;
        for payload in [seconds, ms, things_board, list] {
            let items = measured(None, payload);
            assert_eq!((items[0].at, *items[0].value), (at, 21.5), "{payload}");
        }
        let one = measured(Some("radon"), r#"{"value":7,"at":1796000000.5}"#);
        assert_eq!(one[0].at, Time(1_796_000_000_500));
        let tasmota = r#"{"Time":"2026-11-30T05:00:00","DHT11":{"Temperature":21.5,"Humidity":40},"TempUnit":"C"}"#;
        let read = parse("attic", None, &message(tasmota), Time(1)).unwrap();
        let names: Vec<&str> = read.measurements.iter().map(|item| &*item.quantity).collect();
        assert_eq!((names, read.unusable), (vec!["dht11_humidity", "dht11_temperature"], vec![]));
        assert_eq!(read.measurements[0].at, Time(1));
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        let now = Time(0);
        for payload in [
            "",
            "warm",
            "NaN",
            "inf",
            "1e300",
            "{}",
            r#"{"value":"7"}"#,
            r#"["1"]"#,
            "null",
            "\u{0}",
        ] {
            assert!(parse("attic", Some("radon"), &message(payload), now).is_err(), "{payload:?}");
        }
        for payload in ["5", "{}", r#"{"Radon":1}"#, r#"{"radon":"1"}"#, r#"{"at":-5,"radon":1}"#] {
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
                assert_eq!(read.map(|read| read.measurements.len()), expected, "{quantity:?}");
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
            let read = parse("attic", quantity.as_deref(), &message, Time(0)).unwrap_or_default();
            for item in read.measurements {
                proptest::prop_assert!(item.value.is_finite());
                proptest::prop_assert!(item.id.is_none_or(|id| id.chars().count() <= 160));
            }
        }
    }
}
