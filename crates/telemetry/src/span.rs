//! A span, and a request with spans in OTLP's JSON encoding (opentelemetry-proto 1.x, `trace.proto`; in JSON,
//! identifiers are hexadecimal and 64-bit integers are text).

use std::time::{SystemTime, UNIX_EPOCH};

use fulmar_text::hex;
use serde_json::{Value, json};

use super::context::Context;

/// The kind of a span, with its number in OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Producer = 4,
    Consumer = 5,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Attribute {
    Text(String),
    Number(u64),
}

/// Something that took time on the way of a publication.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// Trace of the span, and its parent in it.
    pub(super) parent: Context,
    pub(super) span_id: [u8; 8],
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) began_ns: u64,
    pub(super) ended_ns: u64,
    pub(super) attributes: Vec<(&'static str, Attribute)>,
}

impl Span {
    fn json(&self) -> Value {
        json!({
            "traceId": hex::encode(&self.parent.trace_id),
            "spanId": hex::encode(&self.span_id),
            "parentSpanId": hex::encode(&self.parent.span_id),
            "name": self.name,
            "kind": self.kind as u8,
            "startTimeUnixNano": self.began_ns.to_string(),
            "endTimeUnixNano": self.ended_ns.max(self.began_ns).to_string(),
            "attributes": self.attributes.iter().map(|(key, value)| pair(key, value)).collect::<Vec<_>>(),
        })
    }
}

/// An attribute as OTLP writes it.
pub(super) fn pair(key: &str, value: &Attribute) -> Value {
    let value = match value {
        Attribute::Text(text) => json!({ "stringValue": text }),
        Attribute::Number(number) => json!({ "intValue": number.to_string() }),
    };
    json!({ "key": key, "value": value })
}

/// The instrumentation scope: this program.
pub(super) fn scope() -> Value {
    json!({ "name": "fulmar", "version": env!("CARGO_PKG_VERSION") })
}

/// The body of a request to `/v1/traces`.
pub(super) fn request(resource: &Value, spans: &[Span]) -> Value {
    let spans: Vec<Value> = spans.iter().map(Span::json).collect();
    json!({ "resourceSpans": [{
        "resource": resource,
        "scopeSpans": [{ "scope": scope(), "spans": spans }],
    }] })
}

/// A random identifier, never 0.
pub(super) fn new_id() -> [u8; 8] {
    fastrand::u64(1..).to_be_bytes()
}

/// Nanoseconds since 1970.
pub(super) fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
