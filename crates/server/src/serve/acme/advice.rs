//! What to do about an order that has failed, for the log.

use std::path::Path;
use std::time::Duration;

use instant_acme::Error;

/// Authorities' texts are cut there.
const MAX_CHARACTERS: usize = 600;

/// The error and its causes on one line, whatever an authority has written there.
pub(super) fn printable(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(MAX_CHARACTERS).collect()
}

/// What may help.
pub(super) fn next(error: &anyhow::Error, account: &Path) -> String {
    let text = match problem(error) {
        Some("connection" | "tls" | "unauthorized" | "incorrectResponse") => {
            "see to it that port 443 of every name in [acme] domains leads to this server's https \
             listener, from the authority's network too"
        }
        Some("dns") => "give every name in [acme] domains an address record that leads here",
        Some("caa") => {
            "let this authority issue for the names in [acme] domains: a CAA record does not"
        }
        Some("rateLimited") => "wait: the authority's limit is reached",
        Some("rejectedIdentifier" | "unsupportedIdentifier" | "malformed") => {
            "take the names out of [acme] domains that this authority issues nothing for"
        }
        Some("accountDoesNotExist") => {
            return format!("remove {} to have a new account", account.display());
        }
        Some("externalAccountRequired") => {
            "choose another [acme] directory: this authority wants an account bound to one that \
             was opened with it before, which Fulmar does not do"
        }
        Some("invalidContact" | "unsupportedContact") => "correct [acme] contact",
        Some("userActionRequired") => "read the authority's new terms, at the address above",
        Some(_) => "ask the authority",
        None if error.downcast_ref::<Error>().is_some() => {
            "check [acme] directory, the network and, for a private authority, ca_file"
        }
        None => "mend what it names",
    };
    text.to_owned()
}

/// How long to leave the authority alone.
pub(super) fn least_wait(error: &anyhow::Error) -> Duration {
    let limited = problem(error) == Some("rateLimited");
    Duration::from_secs(if limited { 3600 } else { 0 })
}

/// The last part of the problem's type (RFC 8555 section 6.7).
fn problem(error: &anyhow::Error) -> Option<&str> {
    let Some(Error::Api(problem)) = error.downcast_ref::<Error>() else { return None };
    problem.r#type.as_deref()?.rsplit(':').next()
}
