//! From file and environment to a [`Config`], with errors that say where and what instead.
//!
//! The file is read on its own first, so that its mistakes have a line; then each variable
//! `FULMAR_SECTION__KEY` is laid over it, so that its mistakes have its name. Variables without a
//! double underscore (`FULMAR_DATA`, `FULMAR_LOG`) are other things.

use std::path::Path;

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::Config;
use crate::exit::Usage;

const PREFIX: &str = "FULMAR_";
const SEPARATOR: &str = "__";

/// How alike two keys must be (Jaro-Winkler, 0 to 1) for one to be offered for the other.
const ALIKE: f64 = 0.7;

pub(super) fn read(
    path: Option<&Path>,
    environment: impl Iterator<Item = (String, String)>,
) -> anyhow::Result<Config> {
    let mut table = match path {
        Some(path) => read_file(path)?,
        None => Table::new(),
    };
    for (name, value) in environment {
        if let Some(keys) = name.strip_prefix(PREFIX).filter(|keys| keys.contains(SEPARATOR)) {
            let keys: Vec<String> = keys.split(SEPARATOR).map(str::to_lowercase).collect();
            let layer = read_variable(&name, &keys, &value)?;
            lay_over(&mut table, layer);
        }
    }
    let config = Config::deserialize_table(table);
    Ok(config.map_err(|error| Usage(explain(error.message())))?)
}

impl Config {
    fn deserialize_table(table: Table) -> Result<Config, toml::de::Error> {
        Value::Table(table).try_into()
    }
}

fn read_file(path: &Path) -> anyhow::Result<Table> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Usage(format!("configuration file {shown}: {error}")))?;
    parse::<Config>(&text).map_err(|error| Usage(format!("{shown}:{error}")))?;
    parse::<Table>(&text).map_err(|error| Usage(format!("{shown}:{error}")).into())
}

/// Parses TOML; an error begins with line and column and shows the line.
fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        let before = text.get(..at).unwrap_or_default();
        let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
        let (line, column) = (before.matches('\n').count() + 1, at - begin + 1);
        let shown = text[begin..].lines().next().unwrap_or_default().trim();
        format!("{line}:{column}: {}\n  {shown}", explain(error.message()))
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
    let candidates = as_toml.into_iter().chain([Value::String(text.to_owned())]);
    let mut first_error = None;
    for value in candidates {
        let layer = nest(value);
        match Config::deserialize_table(layer.clone()) {
            Ok(_) => return Ok(layer),
            Err(error) => first_error = first_error.or(Some(explain(error.message()))),
        }
    }
    let error = first_error.unwrap_or_default();
    Err(Usage(format!("environment variable {name}={text}: {error}")).into())
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

/// Serde's words for a person: the nearest key for one that does not exist, ranges for types.
fn explain(message: &str) -> String {
    let mut words = message.trim_end().to_owned();
    for (kind, range) in [
        ("expected u16", "expected a whole number from 0 to 65535"),
        ("expected u32", "expected a whole number from 0 to 4294967295"),
        ("expected u64", "expected a whole number from 0"),
        ("expected usize", "expected a whole number from 0"),
        ("expected socket address", "expected ADDRESS:PORT"),
        (
            "invalid socket address syntax",
            "not an ADDRESS:PORT, such as \"127.0.0.1:1883\" or \"[::1]:1883\"; names are not taken",
        ),
        ("expected a sequence", "expected a list in brackets: [\"...\"]"),
    ] {
        words = words.replace(kind, range);
    }
    let Some(unknown) = words.strip_prefix("unknown field `") else { return words };
    // The rest is "NAME`, expected one of `A`, `B`" or "…, expected `A` or `B`".
    let mut quoted = unknown.split('`').step_by(2);
    let name = quoted.next().unwrap_or_default();
    let known: Vec<&str> = unknown.split('`').skip(2).step_by(2).collect();
    let nearest = nearest(name, &known).map(|near| format!("did you mean `{near}`? "));
    format!("unknown key `{name}`; {}known here: {}", nearest.unwrap_or_default(), known.join(", "))
}

fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let scored = known.iter().map(|key| (strsim::jaro_winkler(name, key), *key));
    let (likeness, key) = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (likeness > ALIKE).then_some(key)
}
