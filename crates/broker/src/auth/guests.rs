//! Users that another part of the program knows and the broker's own files do not: who shows one of its
//! tokens is a guest, and the part says what guests may do.

use std::fmt;

use super::Admitted;
use crate::access::{Action, Subject};
use crate::time::Timestamp;

/// What guests' user names begin with: no name in a password file has a colon.
pub const GUEST_PREFIX: &str = "platform:";

/// Topics that are for guests, and for whom an access rule names. As those with `$`, they are not reached by
/// filters that begin with a wildcard.
pub const GUEST_TOPICS: &str = "fulmar/";

/// Lets in guests and says what they may do. Asked on the workers, so answers come from memory.
pub trait Guests: Send + Sync + fmt::Debug {
    /// Who shows this token: a name that begins with [`GUEST_PREFIX`], and until when; `None` if the
    /// token is no guest's or no longer good, or the user name beside it is another's.
    fn admit(&self, token: &str, username: Option<&str>, now: Timestamp) -> Option<Admitted>;

    /// Whether a ticket that [`Guests::admit`] gave is still good: asked again for each connection when
    /// [`crate::Broker::recheck_guests`] is called.
    fn is_good(&self, ticket: &str) -> bool;

    /// Whether the guest, named without the prefix, may publish to the topic or subscribe to the filter.
    fn allows(&self, guest: &str, action: Action, topic: &str) -> bool;
}

/// The guest's name without the prefix, if the client is one.
pub(super) fn name<'a>(subject: Subject<'a>) -> Option<&'a str> {
    subject.username?.strip_prefix(GUEST_PREFIX)
}
