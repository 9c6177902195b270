//! The mapping from a message to what a target gets: typed values out of topic and payload. Whatever a client has sent,
//! the result is a record or a reason.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fulmar_config::{FieldType, Origin, Payload, Sink, SinkField, SinkKind};
use fulmar_gateway::identity::{self, MAX_ID_BYTES, from_rfc3339, rfc3339};
use fulmar_part::consumer::Message;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Characters of a wrong value that its error shows.
const MAX_SHOWN: usize = 60;

/// A message with its identity.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Letter {
    /// Identifier, the same whenever the message comes again.
    pub id: String,
    /// When a gateway or this server accepted it (RFC 3339).
    pub at: String,
    /// Topic name.
    pub topic: String,
    /// Application payload.
    #[serde(with = "base64_text")]
    pub payload: Vec<u8>,
}

impl Letter {
    /// The message with the identity that it was stamped with. One that no client has published, such as a will, has
    /// none: it gets one now.
    pub fn new(message: Message, now_ms: u64) -> Letter {
        // As the stamp was made: what is unusable is as if it were not there.
        let last = |name: &str, is_usable: fn(&str) -> bool| {
            let mut found = message.properties.iter().rev();
            found
                .find(|(known, value)| known == name && is_usable(value))
                .map(|(_, value)| value.clone())
        };
        let id = last(identity::ID, |id| (1..=MAX_ID_BYTES).contains(&id.len()));
        let id = id.unwrap_or_else(|| format!("fulmar-{:016x}", fastrand::u64(..)));
        let at = last(identity::AT, |at| from_rfc3339(at).is_some());
        let at = at.unwrap_or_else(|| rfc3339(now_ms));
        Letter { id, at, topic: message.topic, payload: message.payload }
    }
}

mod base64_text {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A value for a target.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Number(f64),
    Integer(i64),
    Boolean(bool),
    Text(String),
    Time(OffsetDateTime),
    Json(Json),
    Bytes(Vec<u8>),
}

impl Value {
    /// The value as text; bytes in base64.
    pub(crate) fn text(&self) -> String {
        match self {
            Value::Number(number) => number.to_string(),
            Value::Integer(number) => number.to_string(),
            Value::Boolean(value) => value.to_string(),
            Value::Text(text) => text.clone(),
            // Every time that was parsed can be written.
            Value::Time(at) => at.format(&Rfc3339).unwrap_or_default(),
            Value::Json(value) => value.to_string(),
            Value::Bytes(bytes) => STANDARD.encode(bytes),
        }
    }
}

/// A message as a target gets it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) id: String,
    pub(crate) at: OffsetDateTime,
    pub(crate) topic: String,
    /// In the order of [`Mapping::columns`].
    pub(crate) values: Vec<Option<Value>>,
    pub(crate) measurement: String,
    pub(crate) tags: Vec<(String, String)>,
}

/// The settings of a sink's mapping.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    sink: Sink,
    pub(crate) columns: Vec<(String, SinkField)>,
}

/// A letter with its payload parsed.
struct Source<'a> {
    letter: &'a Letter,
    payload: Json,
}

impl Mapping {
    /// The mapping of a sink; without columns, the payload is the only one.
    pub(crate) fn new(sink: &Sink) -> Mapping {
        let mut columns: Vec<_> = sink.columns.clone().into_iter().collect();
        if columns.is_empty() {
            let name = if sink.kind == Some(SinkKind::Influx) { "value" } else { "payload" };
            let r#type = match sink.payload {
                Payload::Json => FieldType::Json,
                Payload::Number => FieldType::Number,
                Payload::Text => FieldType::Text,
                Payload::Bytes => FieldType::Bytes,
            };
            let field = SinkField { from: Origin::Payload, r#type, required: false };
            columns.push((name.to_owned(), field));
        }
        Mapping { sink: sink.clone(), columns }
    }

    /// Maps a message.
    ///
    /// # Errors
    /// It does not fit; the text says why.
    pub(crate) fn record(&self, letter: &Letter) -> Result<Record, String> {
        let source = Source { letter, payload: self.parse(&letter.payload)? };
        let mut values = Vec::with_capacity(self.columns.len());
        let (mut from_payload, mut found) = (false, false);
        for (name, SinkField { from, r#type, required }) in &self.columns {
            let value = source.value(from, *r#type).map_err(|error| format!("{name}: {error}"))?;
            if *required && value.is_none() {
                return Err(format!("{name} is required, and not in the message"));
            }
            if matches!(from, Origin::Payload | Origin::Pointer(_)) {
                from_payload = true;
                found |= value.is_some();
            }
            values.push(value);
        }
        if from_payload && !found {
            return Err("the payload has none of the mapped values".to_owned());
        }
        let text = |origin: &Origin| -> Result<Option<String>, String> {
            Ok(source.value(origin, FieldType::Text)?.map(|value| value.text()))
        };
        let measurement = self.sink.measurement.as_ref().map(text).transpose()?;
        let measurement =
            measurement.map(|text| text.ok_or("there is no measurement")).transpose()?;
        let mut tags = Vec::with_capacity(self.sink.tags.len());
        for (name, origin) in &self.sink.tags {
            // A tag without a value is left out.
            tags.extend(text(origin)?.map(|text| (name.clone(), text)));
        }
        let time =
            self.sink.time.as_ref().map(|time| source.value(time, FieldType::Time)).transpose();
        let at = match time.map_err(|error| format!("time: {error}"))?.flatten() {
            Some(Value::Time(at)) => at,
            _ => OffsetDateTime::parse(&letter.at, &Rfc3339).map_err(|_| "at is no time")?,
        };
        let (id, topic) = (letter.id.clone(), letter.topic.clone());
        Ok(Record { id, at, topic, values, measurement: measurement.unwrap_or_default(), tags })
    }

    fn parse(&self, payload: &[u8]) -> Result<Json, String> {
        let text = || std::str::from_utf8(payload).map_err(|_| "the payload is not UTF-8 text");
        match self.sink.payload {
            Payload::Json => serde_json::from_slice(payload)
                .map_err(|error| format!("the payload is not JSON: {error}")),
            Payload::Number => match convert(&Json::from(text()?), FieldType::Number) {
                Ok(Some(Value::Number(number))) => Ok(number.into()),
                _ => Err(format!("the payload is not a number: {}", shown(text()?))),
            },
            Payload::Text => Ok(text()?.into()),
            Payload::Bytes => Ok(Json::Null),
        }
    }
}

impl Source<'_> {
    fn value(&self, origin: &Origin, to: FieldType) -> Result<Option<Value>, String> {
        let letter = self.letter;
        let text = match origin {
            Origin::Payload if to == FieldType::Bytes => {
                return Ok(Some(Value::Bytes(letter.payload.clone())));
            }
            Origin::Payload => return convert(&self.payload, to),
            Origin::Pointer(path) => {
                return self.payload.pointer(path).map_or(Ok(None), |value| convert(value, to));
            }
            Origin::Id => Some(&*letter.id),
            Origin::At => Some(&*letter.at),
            Origin::Topic => Some(&*letter.topic),
            Origin::Level(number) => letter.topic.split('/').nth(number - 1),
            Origin::Constant(text) => Some(&**text),
        };
        text.map_or(Ok(None), |text| convert(&Json::from(text), to))
    }
}

/// The value in this type; `None` for null.
fn convert(value: &Json, to: FieldType) -> Result<Option<Value>, String> {
    let finite = |number: f64| number.is_finite().then_some(Value::Number(number));
    let converted = match (to, value) {
        (_, Json::Null) => return Ok(None),
        (FieldType::Json, value) => Some(Value::Json(value.clone())),
        (FieldType::Number, Json::Number(number)) => number.as_f64().and_then(finite),
        (FieldType::Number, Json::String(text)) => text.trim().parse().ok().and_then(finite),
        (FieldType::Integer, Json::Number(number)) => {
            // 7.0 is a whole number; beyond 53 bits, a double does not know.
            let whole = |number: &f64| number.fract() == 0.0 && number.abs() < 9e15;
            let float = || number.as_f64().filter(whole).map(|number| number as i64);
            number.as_i64().or_else(float).map(Value::Integer)
        }
        (FieldType::Integer, Json::String(text)) => text.trim().parse().ok().map(Value::Integer),
        (FieldType::Boolean, Json::Bool(value)) => Some(Value::Boolean(*value)),
        (FieldType::Boolean, Json::String(text)) => text.parse().ok().map(Value::Boolean),
        (FieldType::Text, Json::String(text)) => Some(Value::Text(text.clone())),
        (FieldType::Text, value) => Some(Value::Text(value.to_string())),
        (FieldType::Time, Json::String(text)) => {
            OffsetDateTime::parse(text.trim(), &Rfc3339).ok().map(Value::Time)
        }
        (FieldType::Time, Json::Number(number)) => {
            number.as_f64().and_then(|number| since_1970(number, number.abs())).map(Value::Time)
        }
        (FieldType::Bytes, Json::String(text)) => Some(Value::Bytes(text.clone().into_bytes())),
        _ => None,
    };
    let wrong = || {
        let name = format!("{to:?}").to_lowercase();
        format!("{} is not of type {name}", shown(&value.to_string()))
    };
    converted.map(Some).ok_or_else(wrong)
}

/// The time that a number means: seconds, milliseconds, microseconds or nanoseconds since 1970, by its size.
fn since_1970(number: f64, size: f64) -> Option<OffsetDateTime> {
    let nanoseconds = match size {
        _ if size < 1e11 => 1e9,
        _ if size < 1e14 => 1e6,
        _ if size < 1e17 => 1e3,
        _ => 1.0,
    };
    // In microseconds, as a double is not exact beyond.
    let microseconds = (number * (nanoseconds / 1e3)).round() as i128;
    let time = OffsetDateTime::from_unix_timestamp_nanos(microseconds.checked_mul(1000)?).ok()?;
    // RFC 3339 has no others.
    (0..=9999).contains(&time.year()).then_some(time)
}

fn shown(text: &str) -> String {
    let start: String = text.chars().take(MAX_SHOWN).collect();
    let more = if start.len() < text.len() { "…" } else { "" };
    format!("{start:?}{more}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "mapping_tests.rs"]
pub(crate) mod tests;
