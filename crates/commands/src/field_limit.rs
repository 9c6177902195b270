//! Limits the size of log lines: what clients choose, such as user names, topics and reasons, has up to 64 KiB and is cut.
//! Control characters are escaped, so that no client can write a line of its own or move a terminal's cursor.
//!
//! Here and not where lines are logged, so that it holds for each line, also for those of libraries.

use std::fmt::{self, Write as _};

use tracing::field::{DisplayValue, Field, Value, Visit, display};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Written bytes of a field.
const MAX_FIELD_BYTES: usize = 512;
/// Written bytes of the message: some of the server's own list settings.
const MAX_MESSAGE_BYTES: usize = 2048;
/// Fields of a line; the rest is not written. tracing's macros accept as many.
const MAX_FIELDS: usize = 32;

/// Formats events whose fields are cut.
pub(crate) struct FieldLimit<F>(pub(crate) F);

impl<S, N, F> FormatEvent<S, N> for FieldLimit<F>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields(Vec::new());
        event.record(&mut fields);
        let Some((first, _)) = fields.0.first() else {
            return self.0.format_event(context, writer, event);
        };
        // An array, because only those make a set of values; its rest has none.
        let mut values: [(&Field, Option<&dyn Value>); MAX_FIELDS] = [(first, None); MAX_FIELDS];
        for (value, (field, known)) in values.iter_mut().zip(&fields.0) {
            *value = (field, Some(known.as_value()));
        }
        let metadata = event.metadata();
        let values = metadata.fields().value_set(&values);
        let event = match event.is_contextual() {
            true => Event::new(metadata, &values),
            false => Event::new_child_of(event.parent().cloned(), metadata, &values),
        };
        self.0.format_event(context, writer, &event)
    }
}

/// An event's fields, cut.
struct Fields(Vec<(Field, FieldValue)>);

enum FieldValue {
    Bool(bool),
    Float(f64),
    Signed(i64),
    Unsigned(u64),
    Long(i128),
    LongUnsigned(u128),
    /// Quoted and escaped by the format.
    Quoted(String),
    /// Written as it is.
    Displayed(DisplayValue<String>),
}

impl FieldValue {
    fn as_value(&self) -> &dyn Value {
        match self {
            FieldValue::Bool(value) => value,
            FieldValue::Float(value) => value,
            FieldValue::Signed(value) => value,
            FieldValue::Unsigned(value) => value,
            FieldValue::Long(value) => value,
            FieldValue::LongUnsigned(value) => value,
            FieldValue::Quoted(value) => value,
            FieldValue::Displayed(value) => value,
        }
    }
}

impl Visit for Fields {
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.push((field.clone(), FieldValue::Bool(value)));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.push((field.clone(), FieldValue::Float(value)));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.push((field.clone(), FieldValue::Signed(value)));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.push((field.clone(), FieldValue::Unsigned(value)));
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.0.push((field.clone(), FieldValue::Long(value)));
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.0.push((field.clone(), FieldValue::LongUnsigned(value)));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let mut room = most(field);
        let beyond = |(_, char): &(usize, char)| {
            let bytes = char.escape_debug().map(char::len_utf8).sum();
            let fits = room.checked_sub(bytes);
            room = fits.unwrap_or(room);
            fits.is_none()
        };
        let text = match value.char_indices().find(beyond) {
            Some((end, _)) => format!("{}…", &value[..end]),
            None => value.to_owned(),
        };
        self.0.push((field.clone(), FieldValue::Quoted(text)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut shown = LimitedText { text: String::new(), most: most(field), is_cut: false };
        // An error only says that it was cut.
        let _ = write!(shown, "{value:?}");
        self.0.push((field.clone(), FieldValue::Displayed(display(shown.text))));
    }
}

fn most(field: &Field) -> usize {
    match field.name() {
        "message" => MAX_MESSAGE_BYTES,
        _ => MAX_FIELD_BYTES,
    }
}

/// Collects text until it is too long, so that its rest is never formatted.
struct LimitedText {
    text: String,
    most: usize,
    is_cut: bool,
}

impl fmt::Write for LimitedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for char in text.chars() {
            let before = self.text.len();
            match char.is_control() {
                true => self.text.extend(char.escape_default()),
                false => self.text.push(char),
            }
            if self.is_cut || self.text.len() > self.most {
                self.text.truncate(before);
                self.text.push_str(if self.is_cut { "" } else { "…" });
                self.is_cut = true;
                return Err(fmt::Error);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt as _;

    use crate::logging::{Format, lines};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the line that the log writes about one event.
    fn written(format: Format, log: impl FnOnce()) -> String {
        let written = Written::default();
        let writer = written.clone();
        let lines = lines(format, false, move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), log);
        let bytes = std::mem::take(&mut *written.0.lock().unwrap());
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_line_stays_short_whatever_a_client_sends() {
        let long = "\u{1}".repeat(65_535);
        for format in [Format::Text, Format::Json] {
            let line = written(format, || {
                tracing::info!(user = &*long, topic = %long, filter = ?long, "refused: {long}");
            });
            assert!(line.len() < 8 * 1024, "{} bytes in {format:?}", line.len());
            for name in ["refused: ", "user", "topic", "filter"] {
                assert!(line.contains(name), "{name} is missing: {line}");
            }
            assert_eq!(line.matches('…').count(), 4, "{line}");
        }
    }

    #[test]
    fn text_from_a_client_stays_within_its_line() {
        let forged = "a\n2026-11-28T00:00:00Z ERROR fulmar_server: forged\u{1b}[2K";
        for format in [Format::Text, Format::Json] {
            let line = written(format, || {
                tracing::info!(user = forged, client = %forged, "refused: {forged}");
            });
            assert!(!line.trim_end().contains(['\n', '\u{1b}']), "{line}");
        }
    }

    #[test]
    fn an_ordinary_line_is_written_as_it_is() {
        let log = || {
            let (address, reason) = ("192.0.2.1:1883", Some("Zähler \"7\""));
            tracing::info!(peer = %address, user = "grüße", reason = ?reason, times = 3_u64, refused = true,
                delay_s = 0.5, balance = -1_i64, none = None::<u64>, "login refused: {address}");
        };
        let text = written(Format::Text, log);
        let end = "field_limit::tests: login refused: 192.0.2.1:1883 peer=192.0.2.1:1883 user=\"grüße\" \
                   reason=Some(\"Zähler \\\"7\\\"\") times=3 refused=true delay_s=0.5 balance=-1\n";
        assert!(text.ends_with(end), "{text}");
        let json = written(Format::Json, log);
        let fields = "\"message\":\"login refused: 192.0.2.1:1883\",\"peer\":\"192.0.2.1:1883\",\"user\":\"grüße\",\
                      \"reason\":\"Some(\\\"Zähler \\\\\\\"7\\\\\\\"\\\")\",\"times\":3,\"refused\":true,\
                      \"delay_s\":0.5,\"balance\":-1,";
        assert!(json.contains(fields), "{json}");
    }
}
