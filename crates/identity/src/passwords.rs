//! Passwords' hashes.

use fulmar_broker::auth::{self, PasswordError};

use crate::entities::PasswordHash;

/// Hashes a password with argon2. Takes tens of milliseconds on purpose.
///
/// # Errors
/// The system has no randomness to give.
pub fn hash_password(password: &[u8]) -> Result<PasswordHash, PasswordError> {
    auth::hash_password(password).map(|hash| PasswordHash(hash.into()))
}

impl PasswordHash {
    /// Whether it is this password's. Takes tens of milliseconds on purpose.
    #[must_use]
    pub fn matches(&self, password: &[u8]) -> bool {
        auth::verify_password(&self.0, password)
    }
}
