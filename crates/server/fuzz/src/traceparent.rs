//! The trace context of a publication, beside a reader that looks at fixed positions (W3C Trace Context, section 3.2).

use fulmar_mqtt::{Property, PropertyBuf};
use fulmar_text::hex;

use crate::context::{Context, TRACEPARENT};

/// The length of version 0.
const BYTES: usize = 55;

/// The value of the user property `traceparent`.
pub fn traceparent(data: &[u8]) {
    // No string of MQTT has a zero (MQTT 5.0, section 1.5.4).
    let Some(text) = std::str::from_utf8(data).ok().filter(|text| !text.contains('\0')) else {
        return;
    };
    let context = read(text);
    assert_eq!(context.map(|found| (found.trace_id, found.span_id)), naive(text), "{text:?}");
    let Some(Context { trace_id, span_id }) = context else { return };
    let written = format!("00-{}-{}-01", hex::encode(&trace_id), hex::encode(&span_id));
    assert_eq!(read(&written), context);
}

fn read(text: &str) -> Option<Context> {
    let mut properties = PropertyBuf::new();
    properties.push(Property::UserProperty("tracestate", "00-other"));
    properties.push(Property::UserProperty(TRACEPARENT, text));
    Context::read(properties.as_properties())
}

fn naive(text: &str) -> Option<([u8; 16], [u8; 8])> {
    let bytes = text.as_bytes();
    let is_dash = |at: &usize| [2, 35, 52].contains(at);
    let is_digit = |at: usize| matches!(bytes[at], b'0'..=b'9' | b'a'..=b'f');
    let is_right = |at: usize| if is_dash(&at) { bytes[at] == b'-' } else { is_digit(at) };
    if bytes.len() < BYTES || !(0..BYTES).all(is_right) {
        return None;
    }
    let number = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits");
    let ends = match number(0) {
        0 => bytes.len() == BYTES,
        0xFF => false,
        _ => bytes.get(BYTES).is_none_or(|next| *next == b'-'),
    };
    let trace_id = std::array::from_fn(|at| number(3 + 2 * at));
    let span_id = std::array::from_fn(|at| number(36 + 2 * at));
    let is_valid = ends && trace_id != [0; 16] && span_id != [0; 8] && number(53) & 1 != 0;
    is_valid.then_some((trace_id, span_id))
}
