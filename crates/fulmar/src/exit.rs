//! From outcomes to exit codes, and to the one line a person reads when something went wrong.

use std::fmt;
use std::process::ExitCode;

/// A mistake of the person at the keyboard: exit code 2 instead of 1, so that a supervisor knows
/// that trying again is of no use.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Writes an error to standard error with all its causes and gives the exit code.
pub(crate) fn code(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    eprintln!("fulmar: {error:#}");
    if error.downcast_ref::<Usage>().is_some() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    #[test]
    fn usage_is_told_apart_even_under_context() {
        let usage = Err::<(), _>(anyhow!(Usage("no such key".into()))).context("reading it");
        assert_eq!(code(usage), ExitCode::from(2));
        assert_eq!(code(Err(anyhow!("disk full"))), ExitCode::FAILURE);
        assert_eq!(code(Ok(())), ExitCode::SUCCESS);
    }
}
