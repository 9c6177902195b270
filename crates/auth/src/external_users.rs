//! External users: users that another part of the program knows and the broker's own files do not. A client with
//! one of that part's tokens is an external user, and the part decides what its users may do.

use std::fmt;

use crate::access::Action;
use crate::admitted::Admitted;
use crate::time::Timestamp;

/// An external user's password as it is stored.
pub struct ExternalPassword {
    /// The hash; without one, no password is right.
    pub hash: Option<String>,
    /// Credential of a login with it, as [`ExternalUsers::is_good`] knows it: another one when the password changes.
    pub credential: Box<str>,
}

// Never the hash.
fulmar_text::opaque_debug!(ExternalPassword);

/// Passwords of external users, by name. Called on the workers, so answers come from memory.
pub(crate) type ExternalPasswords = Box<dyn Fn(&str) -> Option<ExternalPassword> + Send + Sync>;

/// Authenticates external users and decides what they may do. Called on the workers, so answers come from memory.
pub trait ExternalUsers: Send + Sync + fmt::Debug {
    /// The user of a token, which is a [`User::external`](crate::User::external), and its expiry; `None` if the token is
    /// not an external user's or no longer valid, or `username` is another user's.
    fn admit(&self, token: &str, username: Option<&str>, now: Timestamp) -> Option<Admitted>;

    /// Whether a password has the form of a token.
    fn is_token(&self, _password: &str) -> bool {
        false
    }

    /// Whether an external user has this name. [`crate::Logins::add_external_users`] has the passwords.
    fn knows(&self, _username: &str) -> bool {
        false
    }

    /// Whether an external user of this name may administer the server.
    fn is_server_admin(&self, _username: &str) -> bool {
        false
    }

    /// Whether a credential of a token or a password is still valid: asked again for each connection when
    /// the broker's `recheck_external_users` is called.
    fn is_good(&self, credential: &str) -> bool;

    /// Whether the external user, by its name, may publish to the topic or subscribe to the filter.
    fn allows(&self, external_user: &str, action: Action, topic: &str) -> bool;
}
