//! Which user owns a session, and which clients may open it.
//!
//! A session belongs to the user whose client created it, connected or not; all anonymous clients together are
//! one owner. A client of another owner that names its client identifier is refused, so that knowing an
//! identifier is not enough to end another user's session with everything in its queue.
//!
//! MQTT-SN clients have no credentials, and datagrams can be forged. They therefore never get the session of a client
//! that connected over MQTT, whatever user the operator gives them; a client with credentials may take over a session
//! that was created over MQTT-SN.

use fulmar_auth::User;

/// Right of a client to the session that has its client identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It is the client's own.
    Resumes,
    /// The client may have the identifier, but nothing of the session.
    Replaces,
    /// It is another's.
    Refused,
}

/// Whose a session is, or who opens it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'a> {
    pub(crate) user: Option<&'a User>,
    /// Whether it came over MQTT-SN; `None` where an earlier version stored the session.
    pub(crate) mqtt_sn: Option<bool>,
}

/// Right of a client to a session.
pub(crate) fn claim(session: Owner<'_>, client: Owner<'_>) -> Claim {
    let same_user = session.user == client.user;
    // The program itself; its identifiers are known, so strangers can get there first.
    let program = User::is_program(client.user);
    let by_datagrams = client.mqtt_sn == Some(true);
    // A session of an earlier version is its user's, however that comes.
    let forbidden_to_datagrams = by_datagrams && session.mqtt_sn == Some(false);
    if same_user && !forbidden_to_datagrams {
        return Claim::Resumes;
    }
    let has_credentials = client.user.is_some() && !by_datagrams;
    if program || (has_credentials && session.mqtt_sn == Some(true)) {
        return Claim::Replaces;
    }
    Claim::Refused
}

/// The same without owners of sessions; those of the program are its own all the same.
pub(crate) fn claim_of_anyone(session: Owner<'_>, client: Owner<'_>) -> Claim {
    match session.user == client.user {
        true => Claim::Resumes,
        false if User::is_program(session.user) => Claim::Refused,
        false => Claim::Replaces,
    }
}
