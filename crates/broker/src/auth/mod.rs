//! Who may come in: the gate every CONNECT passes.
//!
//! In order: a verified client certificate, a JWT or a password, and for those with neither what
//! the listener says of anonymous clients. Checking a password costs tens of milliseconds on
//! purpose, so it happens on the gate's own thread and the answer comes as mail.

mod jwt;
mod password;

use std::fmt;
use std::sync::Arc;

use fulmar_mqtt::ReasonCode;

pub use jwt::{JwtError, JwtVerifier};
pub use password::{PasswordError, PasswordFile, hash_password};

use crate::access::AccessRules;
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
}

impl Admitted {
    fn for_good(username: Option<&str>) -> Admitted {
        Admitted { username: username.map(Into::into), until: Timestamp::NEVER }
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
        if let (Some(jwt), Some(password)) = (&self.jwt, credentials.password)
            && let Some(token) = jwt::looks_like_token(password)
        {
            return Some(jwt.verify(token, credentials.username, now));
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
        let text = std::str::from_utf8(token).ok();
        match (&self.jwt, text) {
            (Some(jwt), Some(text)) => jwt.verify(text, username, now),
            _ => Err(ReasonCode::BadUserNameOrPassword),
        }
    }
}
