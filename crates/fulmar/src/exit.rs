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

/// The exit code of a program that was run on somebody's behalf; it has said itself what was wrong.
#[derive(Debug)]
pub(crate) struct Status(pub(crate) u8);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the program ended with exit code {}", self.0)
    }
}

impl std::error::Error for Status {}

/// Writes an error to standard error with all its causes and gives the exit code.
pub(crate) fn code(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    if let Some(Status(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    eprintln!("fulmar: {}", explain(&error));
    if error.downcast_ref::<Usage>().is_some() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// An error with its causes in one line. Errors of libraries mostly say their cause themselves; it
/// is not said twice then.
pub(crate) fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    #[test]
    fn a_cause_is_said_once() {
        let path = std::path::Path::new("/nonexistent/a.pem");
        let error = fulmar_certs::files::read_chain(path).unwrap_err();
        let said = explain(&anyhow!(error).context("[tls] cert"));
        assert_eq!(said.matches("No such file").count(), 1, "{said}");
        assert!(said.starts_with("[tls] cert: /nonexistent/a.pem: No such file"), "{said}");
    }

    #[test]
    fn usage_is_told_apart_even_under_context() {
        let usage = Err::<(), _>(anyhow!(Usage("no such key".into()))).context("reading it");
        assert_eq!(code(usage), ExitCode::from(2));
        assert_eq!(code(Err(anyhow!("disk full"))), ExitCode::FAILURE);
        assert_eq!(code(Err(Status(7).into())), ExitCode::from(7));
        assert_eq!(code(Ok(())), ExitCode::SUCCESS);
    }
}
