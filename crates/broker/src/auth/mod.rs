//! Who may come in: the gate every CONNECT passes.
//!
//! In order: a verified client certificate, a JWT or a password, and for those with neither what
//! the listener says of anonymous clients. Checking a password costs tens of milliseconds on
//! purpose, so it happens on the gate's own thread and the answer comes as mail.

mod guests;
mod jwt;
mod password;

use std::fmt;
use std::sync::Arc;

use fulmar_mqtt::ReasonCode;
use fulmar_mqtt::topic::Subscription;

pub use guests::{GUEST_PREFIX, GUEST_TOPICS, Guests};
pub use jwt::{JwtError, JwtVerifier};
pub use password::{PasswordError, PasswordFile, hash_password};

use crate::access::{AccessRules, Action, Subject};
use crate::broker::Broker;
use crate::mailbox::Mail;
use crate::session::Attachment;
use crate::time::Timestamp;

/// Who was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The user's name; `None` for an anonymous client.
    pub username: Option<Box<str>>,
    /// When what it showed expires; [`Timestamp::NEVER`] if it does not.
    pub until: Timestamp,
    /// What can be taken back before, by the name its giver has for it ([`Guests::is_good`]).
    pub ticket: Option<Box<str>>,
}

impl Admitted {
    fn for_good(username: Option<&str>) -> Admitted {
        Admitted { username: username.map(Into::into), until: Timestamp::NEVER, ticket: None }
    }
}

/// The decision: who it is, or why not.
pub type AuthReply = Result<Admitted, ReasonCode>;

/// Authentication and access rules of a broker.
#[derive(Debug, Default)]
pub struct Gate {
    /// Passwords, if there is a password file.
    pub passwords: Option<PasswordFile>,
    /// Tokens, if configured. A password that looks like a token is taken as one.
    pub jwt: Option<JwtVerifier>,
    /// What the admitted may do.
    pub rules: AccessRules,
    /// A part of the program that lets in users of its own.
    pub guests: Option<Arc<dyn Guests>>,
}

/// What a client presents.
pub(crate) struct Credentials<'a> {
    pub(crate) username: Option<&'a str>,
    pub(crate) password: Option<&'a [u8]>,
    /// Name from its verified certificate.
    pub(crate) certificate: Option<&'a str>,
    pub(crate) allow_anonymous: bool,
}

impl fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the password.
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// Where a decision that takes time is sent.
pub(crate) struct ReplyTo {
    pub(crate) broker: Arc<Broker>,
    pub(crate) at: Attachment,
}

impl ReplyTo {
    fn send(self, reply: AuthReply) {
        self.broker.mail(self.at, Mail::Authenticated(self.at.token, reply));
    }
}

impl Gate {
    /// Decides at once, or `None` when the reply will come as mail.
    pub(crate) fn check(
        &self,
        credentials: &Credentials<'_>,
        now: Timestamp,
        reply_to: impl FnOnce() -> ReplyTo,
    ) -> Option<AuthReply> {
        if let Some(name) = credentials.certificate {
            return Some(Ok(Admitted::for_good(Some(name))));
        }
        if (self.jwt.is_some() || self.guests.is_some())
            && let Some(token) = credentials.password.and_then(jwt::looks_like_token)
        {
            return Some(self.verify(token, credentials.username, now));
        }
        match (&self.passwords, credentials.username, credentials.password) {
            (Some(passwords), Some(username), Some(password)) => {
                passwords.check(username, password, reply_to)
            }
            // Without a password file a user name is a label, and as good as none.
            (None, _, _) | (Some(_), None, None) if credentials.allow_anonymous => {
                Some(Ok(Admitted::for_good(None)))
            }
            _ => Some(Err(ReasonCode::BadUserNameOrPassword)),
        }
    }

    /// Decides on a token that came as the data of enhanced authentication; a user name given
    /// beside it must be the token's.
    pub(crate) fn check_token(
        &self,
        token: &[u8],
        username: Option<&str>,
        now: Timestamp,
    ) -> AuthReply {
        let text = std::str::from_utf8(token).map_err(|_| ReasonCode::BadUserNameOrPassword)?;
        self.verify(text, username, now)
    }

    fn verify(&self, token: &str, username: Option<&str>, now: Timestamp) -> AuthReply {
        let guest = self.guests.as_ref().and_then(|guests| guests.admit(token, username, now));
        match (guest, &self.jwt) {
            (Some(guest), _) => Ok(guest),
            (None, Some(jwt)) => jwt.verify(token, username, now),
            (None, None) => Err(ReasonCode::BadUserNameOrPassword),
        }
    }

    /// Whether what a guest showed has not been taken back.
    pub(crate) fn is_good(&self, ticket: &str) -> bool {
        self.guests.as_ref().is_some_and(|guests| guests.is_good(ticket))
    }

    /// Whether the client is a guest that has a subscription it might not make now.
    pub(crate) fn has_outgrown<'f>(
        &self,
        subject: Subject<'_>,
        mut filters: impl Iterator<Item = &'f str>,
    ) -> bool {
        guests::name(subject).is_some()
            && filters.any(|text| {
                let parsed = Subscription::parse(text);
                !parsed.is_ok_and(|own| self.allows(subject, Action::Subscribe, own.filter))
            })
    }

    /// Whether everybody may publish to this topic, so that nothing need be looked up.
    pub(crate) fn is_open_to(&self, topic: &str) -> bool {
        let guarded = self.guests.is_some() && topic.starts_with(GUEST_TOPICS);
        self.rules.is_open() && !guarded && !topic.starts_with('$')
    }

    /// Whether the client may publish to `topic`; see [`AccessRules`].
    pub(crate) fn may_publish(&self, subject: Subject<'_>, topic: &str) -> bool {
        if topic.starts_with('$') {
            return guests::name(subject).is_none() && self.rules.may_publish(subject, topic);
        }
        self.allows(subject, Action::Publish, topic)
    }

    /// Whether the client may publish to `topic`, or subscribe to it as a filter.
    pub(crate) fn allows(&self, subject: Subject<'_>, action: Action, topic: &str) -> bool {
        // The guest without a name is the program itself, be there other guests or not.
        if guests::name(subject).is_some_and(str::is_empty) {
            return true;
        }
        let Some(guests) = &self.guests else { return self.rules.allows(subject, action, topic) };
        if let Some(guest) = guests::name(subject) {
            return guests.allows(guest, action, topic);
        }
        if topic.starts_with(GUEST_TOPICS) {
            // Nobody else's, unless the operator says so.
            return self.rules.decides(subject, action, topic).unwrap_or(false);
        }
        self.rules.allows(subject, action, topic)
    }
}
