//! Advice for the log about a failed order.

use std::path::Path;
use std::time::Duration;

use instant_acme::Error;

/// Longest text of a CA, in characters.
const MAX_CHARACTERS: usize = 600;

/// The error and its causes on one line, also if a CA's text has several.
pub(super) fn printable(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(MAX_CHARACTERS).collect()
}

/// The advice.
pub(super) fn next(error: &anyhow::Error, account: &Path) -> String {
    let text = match problem(error) {
        Some("connection" | "tls" | "unauthorized" | "incorrectResponse") => {
            "make port 443 of every name in [acme] domains reach this server's https listener, \
             also from the CA's network"
        }
        Some("dns") => {
            "give every name in [acme] domains an address record that points to this server"
        }
        Some("caa") => {
            "change the CAA record that forbids this CA to issue for the names in [acme] domains"
        }
        Some("rateLimited") => "wait: the CA's rate limit is reached",
        Some("rejectedIdentifier" | "unsupportedIdentifier" | "malformed") => {
            "remove the names from [acme] domains for which this CA issues no certificates"
        }
        Some("accountDoesNotExist") => {
            return format!("remove {} to create a new account", account.display());
        }
        Some("externalAccountRequired") => {
            "choose another [acme] directory: this CA requires external account binding, which \
             Fulmar does not support"
        }
        Some("invalidContact" | "unsupportedContact") => "correct [acme] contact",
        Some("userActionRequired") => "read the CA's new terms at the address above",
        Some(_) => "ask the CA",
        None if error.downcast_ref::<Error>().is_some() => {
            "check [acme] directory, the network and, for a private CA, ca_file"
        }
        None => "fix the problem named above",
    };
    text.to_owned()
}

/// Shortest wait before the next order after this error.
pub(super) fn least_wait(error: &anyhow::Error) -> Duration {
    let limited = problem(error) == Some("rateLimited");
    Duration::from_secs(if limited { 3600 } else { 0 })
}

/// The last part of the problem's type (RFC 8555 section 6.7).
fn problem(error: &anyhow::Error) -> Option<&str> {
    let Some(Error::Api(problem)) = error.downcast_ref::<Error>() else { return None };
    problem.r#type.as_deref()?.rsplit(':').next()
}
