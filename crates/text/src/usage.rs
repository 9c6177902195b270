//! The error of a person who has to correct something.

use std::fmt;

/// A mistake of the person at the keyboard: exit code 2 instead of 1, so that a supervisor knows
/// that trying again is of no use.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
