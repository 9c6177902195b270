//! Sections that only some builds have a use for: in the others they are mistakes, which are said by the name of
//! the Cargo feature that is missing.

use fulmar_text::words;
use toml::{Table, Value};

/// Each section is named like its feature.
const SECTIONS: [(&str, bool); 2] =
    [("acme", cfg!(feature = "acme")), ("platform", cfg!(feature = "platform"))];

/// The sections this build has no use for.
pub(super) fn missing() -> impl Iterator<Item = &'static str> {
    SECTIONS.iter().filter(|(_, there)| !there).map(|(section, _)| *section)
}

/// What is wrong with a file's text, or a variable's (`text` is empty then).
///
/// # Errors
/// A section needs a feature. One that says `enabled = false` has what it wants.
pub(super) fn check(table: &Table, text: &str) -> Result<(), String> {
    let off = |section: &Value| section.get("enabled") == Some(&Value::Boolean(false));
    let wrong = |section: &&str| table.get(*section).is_some_and(|found| !off(found));
    let Some(section) = missing().find(wrong) else { return Ok(()) };
    let said = format!(
        "[{section}]: this program was built without the feature `{section}`: leave the section out, or use \
         a build with it"
    );
    let place = text.find(&format!("[{section}]")).map(|at| words::place(text, at));
    Err(place.map_or(said.clone(), |place| format!("{}:{}: {said}", place.line, place.column)))
}
