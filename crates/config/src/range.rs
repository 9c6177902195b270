//! Ranges of values.

use std::fmt::Display;
use std::ops::RangeInclusive;

use fulmar_text::Usage;

/// Sections whose numbers have ranges.
pub(crate) trait Ranges {
    /// Checks that each number is in its range; `section` is the section's name.
    ///
    /// # Errors
    /// One is not; the error has key, value and range.
    fn check_ranges(&self, section: &str) -> Result<(), Usage>;
}

/// Checks that a value is in its range.
///
/// # Errors
/// It is not; the error has key, value and range.
pub(crate) fn within<T: PartialOrd + Display>(
    section: &str,
    key: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), Usage> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = range.into_inner();
    Err(Usage(format!("[{section}] {key} = {value}: must be from {least} to {most}")))
}
