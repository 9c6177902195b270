//! Ranges of values.

use std::fmt::Display;

use fulmar_text::Usage;

/// Checks that a value is in its range; `key` is `section.key`.
///
/// # Errors
/// It is not; the error has key, value and range.
pub(crate) fn within<T: PartialOrd + Display>(
    key: &str,
    value: T,
    least: T,
    most: T,
) -> Result<(), Usage> {
    if value >= least && value <= most {
        return Ok(());
    }
    let (section, key) = key.rsplit_once('.').unwrap_or(("", key));
    Err(Usage(format!("[{section}] {key} = {value}: must be from {least} to {most}")))
}
