//! Passwords, hashed with argon2id with the library's default parameters, as RFC 9106 recommends.
//!
//! Hashing takes tens of milliseconds and 19 MiB on purpose; the caller runs it off the runtime's thread and limits
//! concurrency.

use std::sync::LazyLock;

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher as _, PasswordVerifier as _};

use crate::problem::{Problem, internal};

/// The length of a new password in characters.
pub(crate) const PASSWORD_CHARACTERS: std::ops::RangeInclusive<usize> = 8..=200;

/// Compared with if the account does not exist, so that the time taken does not reveal which accounts exist.
static DECOY: LazyLock<String> = LazyLock::new(|| hash("no password at all").unwrap_or_default());

/// A hash that can be stored.
pub(crate) fn hash(password: &str) -> Result<String, Problem> {
    let hash = Argon2::default().hash_password(password.as_bytes());
    hash.map(|hash| hash.to_string()).map_err(|error| internal(&error))
}

/// Whether the password is right. Without a hash, it takes the same time to return false.
pub(crate) fn is_right(password: &str, hash: Option<&str>) -> bool {
    let parsed = PasswordHash::new(hash.unwrap_or(&DECOY));
    let fits = |hash| Argon2::default().verify_password(password.as_bytes(), &hash).is_ok();
    parsed.is_ok_and(fits) && hash.is_some()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_password_fits() {
        let hashed = hash("correct horse").unwrap();
        assert!(is_right("correct horse", Some(&hashed)));
        assert!(!is_right("battery staple", Some(&hashed)));
        assert!(!is_right("no password at all", None), "the decoy opens nothing");
        assert!(!is_right("x", Some("damaged")));
    }
}
