//! The outcome of a login.

use fulmar_mqtt::ReasonCode;

use crate::time::Timestamp;

/// An authenticated client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The user's name; `None` for an anonymous client.
    pub username: Option<Box<str>>,
    /// When its credential expires; [`Timestamp::NEVER`] if it does not.
    pub until: Timestamp,
    /// The credential that can be revoked before, as [`super::ExternalUsers::is_good`] knows it.
    pub credential: Option<Box<str>>,
}

impl Admitted {
    pub(super) fn for_good(username: Option<&str>) -> Admitted {
        Admitted { username: username.map(Into::into), until: Timestamp::NEVER, credential: None }
    }
}

/// The decision: which user the client is, or why it is refused.
pub type AuthReply = Result<Admitted, ReasonCode>;
