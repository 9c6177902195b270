//! How to reach the servers.

use std::path::PathBuf;

/// The oldest nats-server with one fsync for many replicated messages (its PR 8447), as text and number.
pub const MIN_SERVER: &str = "2.15.0";
pub(crate) const MIN_VERSION: (u64, u64) = (2, 15);

/// Settings of a connection.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Addresses, such as `nats://10.0.0.1:4222`; another one is used when one fails.
    pub servers: Vec<String>,
    /// A credentials file as `nsc` and `nats` write it: a token (JWT) and the key that signs for it.
    pub credentials: Option<PathBuf>,
    /// TLS for addresses with `tls://`, and for servers that require it.
    pub tls: Option<rustls::ClientConfig>,
    /// Name of the connection in the servers' lists.
    pub name: String,
}

/// Whether a version such as `2.15.1` or `2.16.0-RC.1` is at least [`MIN_SERVER`].
pub(crate) fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split(['.', '-']).map(|part| part.parse::<u64>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= MIN_VERSION,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::is_new_enough;

    #[test]
    fn versions_are_compared_by_number() {
        for version in ["2.15.0", "2.15.1", "2.100.3", "3.0.0-RC.1", "2.15.0-preview.1"] {
            assert!(is_new_enough(version), "{version}");
        }
        for version in ["2.14.9", "1.99.0", "2.9.25", "", "two", "2", "2.x.1"] {
            assert!(!is_new_enough(version), "{version}");
        }
    }
}
