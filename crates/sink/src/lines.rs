//! InfluxDB's line protocol, with the escapes that all its servers understand. What would begin a line of its own, or
//! spoil one, is refused.

use std::fmt::Write as _;

use crate::mapping::{Mapping, Record, Value};

/// Characters that have a meaning in a measurement, and in tags and names of fields.
const OF_MEASUREMENT: &[char] = &[',', ' '];
const OF_NAME: &[char] = &[',', ' ', '='];

/// One line, with its end.
///
/// # Errors
/// The record cannot be written as one; the text says why.
pub(crate) fn line(mapping: &Mapping, record: &Record) -> Result<String, String> {
    let mut line = String::new();
    escape(&mut line, &record.measurement, OF_MEASUREMENT)?;
    for (name, value) in record.tags.iter().filter(|(_, value)| !value.is_empty()) {
        line.push(',');
        escape(&mut line, name, OF_NAME)?;
        line.push('=');
        escape(&mut line, value, OF_NAME)?;
    }
    let fields = mapping.columns.iter().zip(&record.values);
    let mut separator = ' ';
    for ((name, _), value) in fields.filter_map(|(column, value)| Some((column, value.as_ref()?))) {
        line.push(separator);
        separator = ',';
        escape(&mut line, name, OF_NAME)?;
        line.push('=');
        line.push_str(&field(value)?);
    }
    if separator == ' ' {
        return Err("it has no field".to_owned());
    }
    // Writing to text cannot fail.
    let _ = writeln!(line, " {}", record.at.unix_timestamp_nanos());
    Ok(line)
}

fn field(value: &Value) -> Result<String, String> {
    Ok(match value {
        Value::Number(_) | Value::Boolean(_) => value.text(),
        Value::Integer(number) => format!("{number}i"),
        other => {
            let text = other.text();
            refuse_control(&text)?;
            format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
        }
    })
}

fn escape(line: &mut String, text: &str, special: &[char]) -> Result<(), String> {
    refuse_control(text)?;
    if text.is_empty() || text.ends_with('\\') {
        let text = "an empty name, or one that ends with a backslash, cannot be written";
        return Err(text.to_owned());
    }
    if line.is_empty() && text.starts_with('#') {
        return Err("a measurement that begins with # would be a comment".to_owned());
    }
    for character in text.chars() {
        if special.contains(&character) {
            line.push('\\');
        }
        line.push(character);
    }
    Ok(())
}

fn refuse_control(text: &str) -> Result<(), String> {
    match text.contains(char::is_control) {
        true => Err("text with a line break or another control character".to_owned()),
        false => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mapping::tests::{letter, sink};
    use proptest::prelude::*;

    /// Reads up to an unescaped stop character, as servers do: a backslash before anything else stands for itself.
    fn read(text: &str, special: &str, stop: &str) -> (String, usize) {
        let (mut out, mut chars) = (String::new(), text.char_indices().peekable());
        while let Some((at, character)) = chars.next() {
            match (character, chars.peek()) {
                ('\\', Some((_, next))) if special.contains(*next) => {
                    out.push(*next);
                    chars.next();
                }
                _ if stop.contains(character) => return (out, at),
                _ => out.push(character),
            }
        }
        (out, text.len())
    }

    fn mapping() -> Mapping {
        Mapping::new(&sink("[sinks.a.columns]\nv = { from = \"payload\", type = \"text\" }"))
    }

    fn record(measurement: &str, tag: &str, value: &str) -> Record {
        Record {
            measurement: measurement.to_owned(),
            tags: vec![("t".to_owned(), tag.to_owned())],
            values: vec![Some(Value::Text(value.to_owned()))],
            ..mapping().record(&letter("a", "\"x\"")).unwrap()
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_is_one_line(
            measurement in "[ -~é\n]{0,8}|[a ,=\\\\\"]{1,6}",
            tag in "[ -~é\n]{1,8}|[a ,=\\\\\"]{1,6}",
            value in "[ -~é\n\r]{0,9}|[a ,=\\\\\"]{0,6}",
        ) {
            let Ok(written) = line(&mapping(), &record(&measurement, &tag, &value)) else {
                let wrong = |text: &str| text.is_empty() || text.ends_with('\\');
                prop_assert!(wrong(&measurement) || wrong(&tag) || measurement.starts_with('#')
                    || [&measurement, &tag, &value].iter().any(|text| text.contains(char::is_control)));
                return Ok(());
            };
            prop_assert_eq!(written.matches('\n').count(), 1);
            let (name, at) = read(&written, ", ", ", ");
            prop_assert_eq!(name, measurement);
            let rest = written[at..].strip_prefix(",t=").unwrap();
            let (found, at) = read(rest, ", =", ", =");
            prop_assert_eq!(found, tag);
            let rest = rest[at..].strip_prefix(" v=\"").unwrap();
            let (found, at) = read(rest, "\"\\", "\"");
            prop_assert_eq!(found, value);
            prop_assert_eq!(&rest[at..], "\" 1777629600250000000\n");
        }
    }

    #[test]
    fn numbers_have_their_types() {
        let sink = sink(
            "[sinks.a.columns]\na = { from = \"/a\", type = \"number\" }\n\
             b = { from = \"/b\", type = \"integer\" }\nc = { from = \"/c\", type = \"boolean\" }",
        );
        let mapping = Mapping::new(&sink);
        let record = mapping.record(&letter("a", r#"{"a":21.5,"b":-7,"c":true}"#)).unwrap();
        let written = line(&mapping, &Record { measurement: "m".into(), ..record }).unwrap();
        assert_eq!(written, "m a=21.5,b=-7i,c=true 1777629600250000000\n");
    }
}
