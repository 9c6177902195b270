//! Prints responses for people: lists as tables, single objects as lines.

use clap::ValueEnum;
pub(crate) use fulmar_command::terminal::printable;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A column: its heading, and the text of an item.
pub(crate) type Column = (&'static str, fn(&Value) -> String);

/// Prints a list.
pub(crate) fn rows(items: &Value, columns: &[Column]) {
    let items = items.as_array().map_or(&[][..], Vec::as_slice);
    let mut lines = vec![columns.iter().map(|(heading, _)| (*heading).to_owned()).collect()];
    lines.extend(items.iter().map(|item| {
        columns.iter().map(|(_, text)| printable(&text(item))).collect::<Vec<String>>()
    }));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns.len()).map(|column| width(column).unwrap_or(0)).collect();
    for line in &lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// Prints an object, a line per value; values within values have the names of both.
pub(crate) fn fields(value: &Value) {
    let mut lines = Vec::new();
    flatten("", value, &mut lines);
    let width = lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, text) in lines {
        println!("{name:<width$}  {}", printable(&text));
    }
}

fn flatten(above: &str, value: &Value, lines: &mut Vec<(String, String)>) {
    let at = |name: &str| match above {
        "" => name.to_owned(),
        above => format!("{above}.{name}"),
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.strip_suffix("_ms"), value.as_u64()) {
                    (Some(name), Some(ms)) if ms > 1 << 40 => lines.push((at(name), time(ms))),
                    _ => flatten(&at(name), value, lines),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                flatten(&at(&index.to_string()), item, lines);
            }
        }
        other => lines.push((above.to_owned(), plain(other))),
    }
}

/// A word of the command line, as the API has it.
pub(crate) fn name_of(word: &impl ValueEnum) -> String {
    let value = word.to_possible_value();
    value.map(|value| value.get_name().replace('-', "_")).unwrap_or_default()
}

/// A value without quotes; empty for null.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A time of day, from milliseconds since the Unix epoch.
pub(crate) fn time(ms: u64) -> String {
    let at = OffsetDateTime::from_unix_timestamp((ms / 1000).cast_signed());
    at.ok().and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_else(|| ms.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_a_calendar() {
        assert_eq!(time(1_700_000_000_000), "2023-11-14T22:13:20Z");
    }
}
