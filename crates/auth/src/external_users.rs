//! External users: users that another part of the program knows and the broker's own files do not. A client with
//! one of that part's tokens is an external user, and the part decides what its users may do.

use std::fmt;

use fulmar_mqtt::ReasonCode;

use crate::access::Action;
use crate::admitted::Admitted;
use crate::decision::Decision;
use crate::password::Applicant;
use crate::time::Timestamp;

/// A login of an external user by password.
pub struct Login<'a> {
    /// The name.
    pub username: &'a str,
    /// The password.
    pub password: &'a str,
    /// Address of the client, and the way of the answer to it.
    pub applicant: Applicant,
}

// Never the password.
fulmar_text::opaque_debug!(Login<'_> { username });

/// Authenticates external users and decides what they may do. Called on the workers, so answers come from memory.
pub trait ExternalUsers: Send + Sync + fmt::Debug {
    /// The user of a token, which is a [`User::external`](crate::User::external), and its expiry; `None` if the token is
    /// not an external user's or no longer valid, or `username` is another user's.
    fn admit(&self, token: &str, username: Option<&str>, now: Timestamp) -> Option<Admitted>;

    /// Whether a password has the form of a token.
    fn is_token(&self, _password: &str) -> bool {
        false
    }

    /// Whether an external user of this name may log in with a password.
    fn knows(&self, _username: &str) -> bool {
        false
    }

    /// Decides at once, or checks an external user's password on another thread and answers then. What waits is
    /// bounded in number and bytes. Also called for names that do not exist, so that timing does not distinguish them.
    fn log_in(&self, _login: Login<'_>) -> Decision {
        Decision::Now(Err(ReasonCode::BadUserNameOrPassword))
    }

    /// Whether a credential from [`ExternalUsers::admit`] is still valid: asked again for each connection when
    /// the broker's `recheck_external_users` is called.
    fn is_good(&self, credential: &str) -> bool;

    /// Whether the external user, by its name, may publish to the topic or subscribe to the filter.
    fn allows(&self, external_user: &str, action: Action, topic: &str) -> bool;
}
