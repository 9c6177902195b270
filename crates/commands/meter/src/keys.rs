//! The keys file: TOML, its owner's alone. No key is ever part of an error.

use std::path::Path;

use fulmar_certs::files;
use fulmar_wmbus::InMemoryKeys;
use toml::{Table, Value};

use crate::exit::Usage;

/// Reads the file.
pub(super) fn read(path: &Path) -> anyhow::Result<InMemoryKeys> {
    let bytes = files::read_secret(path)?;
    let usage = |problem: String| Usage(format!("{}: {problem}", path.display()));
    let text = String::from_utf8(bytes).map_err(|_| usage("not UTF-8 text".into()))?;
    Ok(parse(&text).map_err(usage)?)
}

/// The parser's own errors show what they are about, which may be a key: only the place is taken.
fn parse(text: &str) -> Result<InMemoryKeys, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("line {line} is not TOML, or names a meter twice; write: 78152801 = \"32 digits\"")
    })?;
    let mut keys = InMemoryKeys::new();
    for (name, value) in &table {
        match value {
            Value::Table(section) if name == "keys" => {
                section.iter().try_for_each(|(meter, key)| insert(&mut keys, meter, key))?;
            }
            _ => return Err(format!("{name:?}: keys belong in the section [keys]")),
        }
    }
    Ok(keys)
}

fn insert(keys: &mut InMemoryKeys, meter: &str, key: &Value) -> Result<(), String> {
    let Value::String(digits) = key else {
        return Err(format!("the key of {meter}: write its 32 digits between quotation marks"));
    };
    let key = digits.parse().map_err(|error| format!("the key of {meter}: {error}"))?;
    keys.insert(meter, key).map_err(|error| format!("{meter:?}: {error}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const KEY: &str = "DEADBEEF0405060708090A0B0C0D0E0F";

    #[test]
    fn keys_are_read() {
        let text = format!("[keys]\n78152801 = \"{KEY}\"\nKAM-79806477 = \"{KEY}\"\n");
        assert_eq!(parse(&text).unwrap().len(), 2);
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn no_error_shows_a_key() {
        for text in [
            format!("[keys]\n78152801 = {KEY}\n"),
            format!("[keys]\n78152801 = \"{KEY}00\"\n"),
            format!("[keys]\n78152801 = \"{KEY}\n"),
            format!("[keys]\n78152801 = [\"{KEY}\"]\n"),
            format!("[keys]\n7815280 = \"{KEY}\"\n"),
            format!("[keys]\n78152801 = \"{KEY}\"\n78152801 = \"{KEY}\"\n"),
            format!("78152801 = \"{KEY}\"\n"),
            format!("[other]\n78152801 = \"{KEY}\"\n"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(!error.contains("DEAD") && !error.contains("0E0F"), "{error}");
        }
        let error = parse(&format!("[keys]\n78152801 = {KEY}\n")).unwrap_err();
        assert!(error.starts_with("line 2 "), "{error}");
    }
}
