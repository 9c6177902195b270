//! The outcome of a login.

use fulmar_mqtt::ReasonCode;

use crate::time::Timestamp;
use crate::user::{User, UserNameError};

/// An authenticated client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Its user; `None` for an anonymous client.
    pub user: Option<User>,
    /// When its credential expires; [`Timestamp::NEVER`] if it does not.
    pub until: Timestamp,
    /// The credential that can be revoked before, as [`super::ExternalUsers::is_good`] knows it.
    pub credential: Option<Box<str>>,
}

impl Admitted {
    pub(crate) fn for_good(user: Option<User>) -> Admitted {
        Admitted { user, until: Timestamp::NEVER, credential: None }
    }

    /// One of the operator's users.
    pub(crate) fn named(name: &str) -> Result<Admitted, UserNameError> {
        User::named(name).map(|user| Admitted::for_good(Some(user)))
    }
}

/// The decision: which user the client is, or why it is refused.
pub type AuthReply = Result<Admitted, ReasonCode>;
