//! From outcomes to exit codes, and to the one line a person reads when something went wrong.

use std::io::Write as _;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use fulmar_text::Usage;

use crate::terminal::printable_lines;

/// The exit code of a program that was run on somebody's behalf; it has said itself what was wrong.
#[derive(Debug, thiserror::Error)]
#[error("the program ended with exit code {0}")]
pub struct Status(pub u8);

/// Lets the program end quietly and with success when the reader of its output has ended, as in `fulmar lab list |
/// head -1`. Rust ignores SIGPIPE, which sockets require, so printing to a closed pipe panics; here that panic ends
/// the program normally. Call this once, before anything is printed.
pub fn end_with_the_reader() {
    let otherwise = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let said = info.payload().downcast_ref::<String>().map_or("", String::as_str);
        if said.starts_with("failed printing to std") && said.contains("Broken pipe") {
            std::process::exit(0);
        }
        if stderr_accepts_text() {
            otherwise(info);
        }
    }));
}

/// Waits for the reader of standard error, but not for long: the program must end without it.
fn stderr_accepts_text() -> bool {
    let stderr = std::io::stderr();
    let mut look = [PollFd::new(&stderr, PollFlags::OUT)];
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut look, Some(&second)).is_ok() && look[0].revents().contains(PollFlags::OUT)
}

/// Whether the error is that nobody reads standard output any more.
fn is_unread(error: &anyhow::Error) -> bool {
    let broken = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    };
    let stdout = std::io::stdout();
    let mut look = [PollFd::new(&stdout, PollFlags::OUT)];
    error.chain().any(broken)
        && poll(&mut look, Some(&Timespec::default())).is_ok()
        && look[0].revents().contains(PollFlags::ERR)
}

/// Writes an error to standard error with all its causes and gives the exit code.
pub fn code(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    if let Some(Status(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    if is_unread(&error) {
        return ExitCode::SUCCESS;
    }
    // A reason may be a hostile peer's.
    if stderr_accepts_text() {
        // Not `eprintln`: the exit code remains if nobody reads it any more.
        let _ = writeln!(std::io::stderr(), "fulmar: {}", printable_lines(&explain(&error)));
    }
    if error.downcast_ref::<Usage>().is_some() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// An error with its causes in one line. Errors of libraries mostly say their cause themselves; it
/// is not said twice then.
pub fn explain(error: &anyhow::Error) -> String {
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
