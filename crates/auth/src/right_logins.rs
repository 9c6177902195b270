//! Logins by password that were right, as keyed digests: the same login needs no hash again, nor does any other password
//! of that user, which must be wrong as long as the user's is the same.
//!
//! The keys are random and never leave the process, so this is of no use to anyone who could read it. Only right logins are
//! remembered, so strangers cannot evict them.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

use parking_lot::Mutex;

/// Users that are remembered; all are forgotten above that.
const MAX_USERS: usize = 100_000;

/// The last right login of each user.
#[derive(Default)]
pub(crate) struct RightLogins(Mutex<Users>);

#[derive(Default)]
struct Users {
    keys: [RandomState; 2],
    digests: HashMap<Box<str>, Digests>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Digests {
    /// Digest of what the server has of the password.
    stored: u64,
    login: [u64; 2],
}

impl RightLogins {
    /// Whether this password is right, if that is known. `stored` is what the server has of the user's password, or
    /// something that changes with it.
    pub(crate) fn compare(&self, user: &str, password: &[u8], stored: &str) -> Option<bool> {
        let users = self.0.lock();
        let digests = users.digests(user, password, stored);
        let right = users.digests.get(user).filter(|right| right.stored == digests.stored)?;
        Some(right.login == digests.login)
    }

    /// Remembers a login that was right.
    pub(crate) fn add(&self, user: &str, password: &[u8], stored: &str) {
        let mut users = self.0.lock();
        let digests = users.digests(user, password, stored);
        if users.digests.len() >= MAX_USERS && !users.digests.contains_key(user) {
            users.digests.clear();
        }
        users.digests.insert(user.into(), digests);
    }
}

impl Users {
    fn digests(&self, user: &str, password: &[u8], stored: &str) -> Digests {
        let [first, second] = &self.keys;
        Digests {
            stored: first.hash_one((user, stored)),
            login: [first, second].map(|key| key.hash_one((password, user, stored))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_right_or_wrong_until_another_is_stored() {
        let right = RightLogins::default();
        assert_eq!(right.compare("ann", b"secret", "1"), None);
        right.add("ann", b"secret", "1");
        assert_eq!(right.compare("ann", b"secret", "1"), Some(true));
        assert_eq!(right.compare("ann", b"guess", "1"), Some(false));
        assert_eq!(right.compare("bob", b"secret", "1"), None);
        assert_eq!(right.compare("ann", b"secret", "2"), None, "perhaps changed");
        right.add("ann", b"other", "2");
        assert_eq!(right.compare("ann", b"secret", "2"), Some(false));
    }
}
