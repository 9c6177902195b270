//! Sections that require a Cargo feature. In builds without it they are errors, which name the missing feature.

use fulmar_text::words;
use toml::{Table, Value};

/// Each section is named like its feature.
const SECTIONS: [(&str, bool); 4] = [
    ("acme", cfg!(feature = "acme")),
    ("cluster", cfg!(feature = "cluster")),
    ("platform", cfg!(feature = "platform")),
    ("sinks", cfg!(feature = "sinks")),
];

/// The sections whose feature this build does not have.
pub(crate) fn missing() -> impl Iterator<Item = &'static str> {
    SECTIONS.iter().filter(|(_, there)| !there).map(|(section, _)| *section)
}

/// Checks a file's text, or a variable (`text` is empty then).
///
/// # Errors
/// A section needs a missing feature, and is neither `enabled = false` nor without `servers`.
pub(crate) fn check(table: &Table, text: &str) -> Result<(), String> {
    let no_servers = |section: &Value| {
        section.get("servers").and_then(Value::as_array)?.is_empty().then_some(())
    };
    let off = |section: &Value| {
        section.get("enabled") == Some(&Value::Boolean(false)) || no_servers(section).is_some()
    };
    let wrong = |section: &&str| table.get(*section).is_some_and(|found| !off(found));
    let Some(section) = missing().find(wrong) else { return Ok(()) };
    let said = format!(
        "[{section}]: this program was built without the feature `{section}`: leave the section out, or use \
         a build with it"
    );
    let place = text.find(&format!("[{section}")).map(|at| words::place(text, at));
    Err(place.map_or(said.clone(), |place| format!("{}:{}: {said}", place.line, place.column)))
}
