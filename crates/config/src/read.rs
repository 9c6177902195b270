//! Reads a [`Config`] from file or text and environment; errors show the place and the allowed values.
//!
//! The text is read alone first, so that errors have a line number. Then each variable `FULMAR_SECTION__KEY` overrides
//! a key, so that errors have the variable's name. Variables without a double underscore (`FULMAR_DATA`, `FULMAR_LOG`)
//! are no settings.

use std::path::Path;

use fulmar_text::words::{self, TextPosition};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::document::Config;
use super::features;
use fulmar_text::Usage;

const PREFIX: &str = "FULMAR_";
const SEPARATOR: &str = "__";

/// Serde's words for a list, and for one of several words.
const SEQUENCE: &str = "expected a sequence";
const WORD: &str = "wanted string or table";

/// Further texts of serde that are replaced for users.
const HERE: [(&str, &str); 4] = [
    ("expected socket address", "expected ADDRESS:PORT"),
    (
        "invalid socket address syntax",
        "not an ADDRESS:PORT, such as \"127.0.0.1:1883\" or \"[::1]:1883\"; names are not accepted",
    ),
    (WORD, "expected one of the setting's words, in quotes; fulmar.example.toml has them"),
    (SEQUENCE, "expected a list in brackets: [\"...\"]"),
];

/// Where the text of a configuration is.
pub(crate) enum Source<'a> {
    File(&'a Path),
    Text(&'a str),
}

/// Reads the text, and lays the environment over it.
pub(crate) fn read(
    source: Source<'_>,
    environment: impl Iterator<Item = (String, String)>,
) -> anyhow::Result<Config> {
    let mut table = match source {
        Source::File(path) => read_file(path)?,
        Source::Text(text) => read_text(text).map_err(Usage)?,
    };
    for (name, value) in environment {
        if let Some(keys) = name.strip_prefix(PREFIX).filter(|keys| keys.contains(SEPARATOR)) {
            let keys: Vec<String> = keys.split(SEPARATOR).map(str::to_lowercase).collect();
            let layer = read_variable(&name, &keys, &value)?;
            features::check(&layer, "")
                .map_err(|error| Usage(format!("environment variable {name}: {error}")))?;
            lay_over(&mut table, layer);
        } else if let Some(meant) = meant(&name, &value) {
            let text = format!(
                "environment variable {name}: is {meant} meant? Section and key have two underscores between them"
            );
            return Err(Usage(text).into());
        }
    }
    let config = Config::deserialize_table(&table);
    Ok(config.map_err(|error| Usage(explain(&error)))?)
}

impl Config {
    // By way of text: a second deserializer per section would have no other use.
    fn deserialize_table(table: &Table) -> Result<Config, toml::de::Error> {
        toml::from_str(&table.to_string())
    }
}

fn read_file(path: &Path) -> anyhow::Result<Table> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Usage(format!("configuration file {shown}: {error}")))?;
    Ok(read_text(&text).map_err(|error| Usage(format!("{shown}:{error}")))?)
}

/// An error begins with line and column.
fn read_text(text: &str) -> Result<Table, String> {
    let text = &completed(text);
    parse::<Config>(text)?;
    let table = parse::<Table>(text)?;
    features::check(&table, text)?;
    Ok(table)
}

/// The text with brackets where a list is expected and one item stands alone (an empty one is none), and with quotation
/// marks where a word is expected.
fn completed(text: &str) -> String {
    let mut text = text.to_owned();
    while let Err(error) = toml::from_str::<Config>(&text) {
        let Some(span) = error.span() else { break };
        let item = &text[span.clone()];
        let better = match item {
            "\"\"" if error.message().contains(SEQUENCE) => "[]".to_owned(),
            _ if error.message().contains(SEQUENCE) && item.starts_with(['"', '\'']) => {
                format!("[{item}]")
            }
            "true" | "false" if error.message().contains(WORD) => format!("\"{item}\""),
            _ => break,
        };
        text.replace_range(span, &better);
    }
    text
}

/// Parses TOML; an error begins with line and column and shows the line.
fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| {
        let TextPosition { line, column, shown } =
            words::place(text, error.span().unwrap_or(0..0).start);
        format!("{line}:{column}: {}\n  {shown}", explain(&error))
    })
}

/// One variable as a table with one key. Its value is read as TOML, or as a string without quotes.
fn read_variable(name: &str, keys: &[String], text: &str) -> anyhow::Result<Table> {
    let nest = |value: Value| {
        let wrap = |inner, key: &String| Value::Table(Table::from_iter([(key.clone(), inner)]));
        match keys.iter().rev().fold(value, wrap) {
            Value::Table(table) => table,
            _ => Table::new(),
        }
    };
    let as_toml = toml::from_str::<Table>(&format!("value = {text}"));
    let as_toml = as_toml.ok().and_then(|mut table| table.remove("value"));
    // A list that is wrong is no single item.
    let alone = (!matches!(as_toml, Some(Value::Array(_))))
        .then(|| Value::Array(if text.is_empty() { Vec::new() } else { vec![text.into()] }));
    let candidates = as_toml.into_iter().chain([Value::String(text.to_owned())]).chain(alone);
    let mut first_error: Option<String> = None;
    for value in candidates {
        let layer = nest(value);
        match Config::deserialize_table(&layer) {
            Ok(_) => return Ok(layer),
            // Of a list, the item's error is the one that helps.
            Err(error) => {
                let before = first_error.filter(|error| !error.contains(SEQUENCE));
                first_error = before.or(Some(error.message().to_owned()));
            }
        }
    }
    let error = words::explain(&first_error.unwrap_or_default(), &HERE);
    Err(Usage(format!("environment variable {name}={text}: {error}")).into())
}

/// The variable that would be a setting if one of the underscores of this one were two.
fn meant(name: &str, value: &str) -> Option<String> {
    let keys = name.strip_prefix(PREFIX)?;
    keys.match_indices('_').find_map(|(at, _)| {
        let (section, key) = (&keys[..at], &keys[at + 1..]);
        let path = [section.to_lowercase(), key.to_lowercase()];
        read_variable(name, &path, value).ok()?;
        Some(format!("{PREFIX}{section}{SEPARATOR}{key}"))
    })
}

fn lay_over(table: &mut Table, layer: Table) {
    for (key, value) in layer {
        match (table.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => lay_over(below, above),
            (_, value) => {
                table.insert(key, value);
            }
        }
    }
}

/// The error with the texts of [`fulmar_text::words`].
fn explain(error: &toml::de::Error) -> String {
    words::explain(error.message(), &HERE)
}
