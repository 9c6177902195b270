//! Users that another part of the program knows and the broker's own files do not: who shows one of its
//! tokens is a guest, and the part says what guests may do.

use std::fmt;
use std::net::IpAddr;

use fulmar_mqtt::ReasonCode;

use super::{Admitted, AuthReply, ReplyTo};
use crate::access::{Action, Subject};
use crate::time::Timestamp;

/// What guests' user names begin with: no name in a password file has a colon.
pub const GUEST_PREFIX: &str = "platform:";

/// Topics that are for guests, and for whom an access rule names. As those with `$`, they are not reached by
/// filters that begin with a wildcard.
pub const GUEST_TOPICS: &str = "fulmar/";

/// A guest that comes with a password.
#[derive(Debug)]
pub struct Login<'a> {
    /// The name, without the prefix.
    pub username: &'a str,
    /// The password.
    pub password: &'a str,
    /// Where from.
    pub address: IpAddr,
    /// Whom to answer.
    pub reply_to: ReplyTo,
}

/// Lets in guests and says what they may do. Asked on the workers, so answers come from memory.
pub trait Guests: Send + Sync + fmt::Debug {
    /// Who shows this token: a name that begins with [`GUEST_PREFIX`], and until when; `None` if the
    /// token is no guest's or no longer good, or the user name beside it is another's.
    fn admit(&self, token: &str, username: Option<&str>, now: Timestamp) -> Option<Admitted>;

    /// Whether a password of this form may be one of its tokens.
    fn is_token(&self, _password: &str) -> bool {
        false
    }

    /// Whether a guest of this name may log in by password.
    fn knows(&self, _username: &str) -> bool {
        false
    }

    /// Checks a guest's password on another thread and answers then, in bounded number: `None` if the
    /// answer comes later. Is asked for names that nobody has too, so that time does not tell them apart.
    fn log_in(&self, _login: Login<'_>) -> Option<AuthReply> {
        Some(Err(ReasonCode::BadUserNameOrPassword))
    }

    /// Whether a credential from [`Guests::admit`] is still valid: asked again for each connection when
    /// [`crate::Broker::recheck_guests`] is called.
    fn is_good(&self, credential: &str) -> bool;

    /// Whether the guest, named without the prefix, may publish to the topic or subscribe to the filter.
    fn allows(&self, guest: &str, action: Action, topic: &str) -> bool;
}

/// The guest's name without the prefix, if the client is one.
pub(super) fn name<'a>(subject: Subject<'a>) -> Option<&'a str> {
    subject.username?.strip_prefix(GUEST_PREFIX)
}
