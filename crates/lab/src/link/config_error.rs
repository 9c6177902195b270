//! What is wrong with a link's configuration.

/// A configuration that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct ConfigError {
    /// The setting it is about, as in [`SETTINGS`](super::SETTINGS).
    pub key: String,
    /// Description of the fault, and of what is allowed.
    pub reason: String,
}

impl ConfigError {
    pub(crate) fn new(key: &str, reason: impl Into<String>) -> ConfigError {
        ConfigError { key: key.to_owned(), reason: reason.into() }
    }
}
