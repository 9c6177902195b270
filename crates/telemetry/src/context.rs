//! The trace context of a publication: its user property `traceparent` (W3C Trace Context, section 3.2).

use fulmar_mqtt::{Properties, Property};
use fulmar_text::hex;

/// Name of the user property.
pub(super) const TRACEPARENT: &str = "traceparent";
/// The flag that the publisher records its trace.
const SAMPLED: u8 = 1;

/// A trace, and the span in it that is the parent of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) trace_id: [u8; 16],
    pub(super) span_id: [u8; 8],
}

impl Context {
    /// The context of a publication with these properties; `None` if it has none, or its publisher does not record the
    /// trace.
    pub(super) fn read(properties: Properties<'_>) -> Option<Context> {
        let text = properties.iter().find_map(|property| match property {
            Property::UserProperty(TRACEPARENT, text) => Some(text),
            _ => None,
        })?;
        Context::parse(text)
    }

    fn parse(text: &str) -> Option<Context> {
        let mut fields = text.split('-');
        let [version, trace_id, span_id, flags] =
            [fields.next()?, fields.next()?, fields.next()?, fields.next()?];
        let [version] = bytes::<1>(version)?;
        // Later versions may have more fields; 255 is none.
        if version == 255 || version == 0 && fields.next().is_some() {
            return None;
        }
        let context = Context { trace_id: bytes(trace_id)?, span_id: bytes(span_id)? };
        let [flags] = bytes::<1>(flags)?;
        let is_valid = context.trace_id != [0; 16] && context.span_id != [0; 8];
        (is_valid && flags & SAMPLED != 0).then_some(context)
    }
}

/// Exactly this number of bytes in lower-case hexadecimal digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    hex::decode(text)?.try_into().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use fulmar_mqtt::PropertyBuf;

    #[test]
    fn only_a_recorded_trace_is_continued() {
        let read = |text: &str| {
            let mut properties = PropertyBuf::new();
            properties.push(Property::UserProperty("id", "7"));
            properties.push(Property::UserProperty("traceparent", text));
            Context::read(properties.as_properties())
        };
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let found = read(&format!("00-{trace}-b7ad6b7169203331-01")).unwrap();
        assert_eq!(hex::encode(&found.trace_id), trace);
        assert_eq!(hex::encode(&found.span_id), "b7ad6b7169203331");
        assert!(read(&format!("cc-{trace}-b7ad6b7169203331-03-later")).is_some());
        for wrong in [
            "",
            "00",
            &format!("00-{trace}-b7ad6b7169203331-00"),
            &format!("00-{trace}-b7ad6b7169203331-01-more"),
            &format!("ff-{trace}-b7ad6b7169203331-01"),
            &format!("00-{trace}-0000000000000000-01"),
            &format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)),
            &format!("00-{}-b7ad6b7169203331-01", trace.to_uppercase()),
            &format!("00-{trace}-b7ad6b716920333é-01"),
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
