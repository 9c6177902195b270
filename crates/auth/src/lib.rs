//! Access control: the authentication of every CONNECT, and the access rules.
//!
//! In order: a verified client certificate, a JWT, a password or a service that is asked, and for those with neither
//! what the listener says of anonymous clients. Checking a password costs tens of milliseconds on
//! purpose, so it happens on threads of its own and the answer comes as an event.

#![forbid(unsafe_code)]

pub mod access;
mod admitted;
mod argon2_memory;
mod because;
mod checker;
mod decision;
mod external_users;
mod identities;
mod jws;
mod jwt;
mod login_hook;
mod logins;
mod open_topics;
mod password_file;
mod peer_identity;
mod queue;
mod recent_set;
mod reply_to;
mod right_logins;
mod rights;
#[cfg(test)]
mod rights_tests;
mod scram;
mod session_owner;
mod sketch;
mod stored_hash;
mod time;
mod user;

use std::net::SocketAddr;
use std::sync::Arc;

use fulmar_mqtt::ReasonCode;
use fulmar_mqtt::topic::Subscription;
use fulmar_scram::DecoyKey;

pub use admitted::{Admitted, AuthReply};
pub use because::Because;
pub use decision::{Decision, WaitingLogin};
pub use external_users::{ExternalPassword, ExternalUsers};
pub use identities::CONTROL_PREFIX;
pub use identities::{
    DefaultAccess, Identity, IdentityChanges, IdentityTable, RoleRules, TopicRule,
};
pub use jws::KeyError;
pub use jwt::{JwtError, JwtVerifier};
pub use login_hook::{HookLogin, LoginHook};
pub use logins::{Applicant, Logins, MAX_PASSWORD_BYTES};
pub use open_topics::OpenTopics;
pub use password_file::{HashReplacements, PasswordError, PasswordFile, hash_password};
pub use peer_identity::{PeerCertificate, PeerIdentity};
pub use queue::{LoginQueue, NextLogin, QueueId, Ticket};
pub use reply_to::ReplyTo;
pub use scram::ScramLogin;
pub use session_owner::SessionOwner;
pub use stored_hash::{HashError, MAX_PBKDF2_ITERATIONS, check_hash};

use self::rights::{Rights, StoredRights, Verdict, is_by_default};
pub use time::Timestamp;
pub use user::{MAX_USER_NAME_BYTES, User, UserNameError, Vouched, text_of};

pub use crate::access::EXTERNAL_TOPICS;
use crate::access::{AccessRules, Action, Subject};

/// Authentication and access rules of a broker.
#[derive(Debug, Default)]
pub struct AccessControl {
    /// Logins by password.
    pub logins: Arc<Logins>,
    /// Tokens, if configured. A password that looks like a token is taken as one.
    pub jwt: Option<JwtVerifier>,
    /// Rules for what authenticated clients may do.
    pub rules: AccessRules,
    /// Rule whether sessions belong to users.
    pub session_owner: SessionOwner,
    /// A part of the program that has users of its own.
    pub external_users: Option<Arc<dyn ExternalUsers>>,
    /// The identity store's clients. They come before those of the password file, and have only the store's rules.
    pub identities: Option<Arc<IdentityTable>>,
    /// A service that is asked about users who are nowhere else, and about rights.
    pub hook: Option<Arc<dyn LoginHook>>,
    /// SCRAM-SHA-256 for the identity store's clients, if it is offered: what unknown users are shown.
    pub scram: Option<DecoyKey>,
}

/// Credentials that a client presents.
pub struct Credentials<'a> {
    /// The user name of its CONNECT.
    pub username: Option<&'a str>,
    /// The password of its CONNECT.
    pub password: Option<&'a [u8]>,
    /// The name by which the transport has authenticated it.
    pub identity: Option<&'a PeerIdentity>,
    /// True if its listener accepts clients without credentials.
    pub allow_anonymous: bool,
    /// The client identifier.
    pub client_id: &'a str,
    /// The address from which it comes.
    pub address: SocketAddr,
}

impl<'a> Credentials<'a> {
    fn source(&self) -> TokenSource<'a> {
        TokenSource { peer: self.address, client_id: self.client_id }
    }
}

// Never the password.
fulmar_text::opaque_debug!(Credentials<'_> { username });

/// The client that presents a token, for the log.
#[derive(Clone, Copy)]
pub struct TokenSource<'a> {
    /// The client's address.
    pub peer: SocketAddr,
    /// The client identifier.
    pub client_id: &'a str,
}

impl AccessControl {
    /// Decides at once, or says that the reply will come as an event. `applicant` is asked for only then.
    pub fn check(
        &self,
        credentials: &Credentials<'_>,
        now: Timestamp,
        applicant: impl FnOnce() -> Applicant,
    ) -> Decision {
        if let Some(identity) = credentials.identity {
            return self.check_identity(identity, credentials, applicant);
        }
        if (self.jwt.is_some() || self.external_users.is_some())
            && let Some(token) = credentials.password.and_then(jwt::looks_like_token)
        {
            let reply = self.verify(token, credentials.username, credentials.source(), now);
            return Decision::Now(reply);
        }
        let applicant = match self.check_external(credentials, now, applicant) {
            Ok(decision) => return decision,
            Err(applicant) => applicant,
        };
        if let (Some(hook), Some(username), Some(password)) =
            (&self.hook, credentials.username, credentials.password)
            && !self.logins.knows(username)
        {
            let Ok(user) = User::named(username) else {
                return Decision::Now(Err(ReasonCode::BadUserNameOrPassword));
            };
            let (password, client_id) = (Some(password), credentials.client_id);
            return hook.log_in(HookLogin { user, password, client_id, applicant: applicant() });
        }
        let must_log_in =
            self.logins.requires_login(credentials.username, credentials.allow_anonymous);
        match (must_log_in, credentials.username, credentials.password) {
            (true, Some(username), Some(password)) => match User::named(username) {
                Ok(user) => self.logins.check(user, password, applicant),
                Err(_) => Decision::Now(Err(ReasonCode::BadUserNameOrPassword)),
            },
            // Without a password file a user name is a label, and as good as none.
            (false, _, _) | (true, None, None) if credentials.allow_anonymous => {
                Decision::Now(Ok(Admitted::for_good(None)))
            }
            // There is nothing that could be wrong with them.
            (_, None, None) => Decision::Now(Err(ReasonCode::NotAuthorized)),
            _ => Decision::Now(Err(ReasonCode::BadUserNameOrPassword)),
        }
    }

    /// The transport has authenticated the client. A service may still decide whether a certificate is enough.
    fn check_identity(
        &self,
        identity: &PeerIdentity,
        credentials: &Credentials<'_>,
        applicant: impl FnOnce() -> Applicant,
    ) -> Decision {
        let user = identity.user().clone();
        let hook = self.hook.as_ref().filter(|hook| {
            identity.is_certified()
                && hook.decides_about_certificates()
                && !user.operators().is_some_and(|name| self.logins.knows(name))
        });
        let Some(hook) = hook else {
            return Decision::Now(Ok(Admitted::for_good(Some(user))));
        };
        let (password, client_id) = (None, credentials.client_id);
        hook.log_in(HookLogin { user, password, client_id, applicant: applicant() })
    }

    /// Asks the part of the program that has external users. Returns `applicant` if the client is none of them.
    fn check_external<F: FnOnce() -> Applicant>(
        &self,
        credentials: &Credentials<'_>,
        now: Timestamp,
        applicant: F,
    ) -> Result<Decision, F> {
        let text = credentials.password.and_then(|password| std::str::from_utf8(password).ok());
        let (Some(external_users), Some(password)) = (&self.external_users, text) else {
            return Err(applicant);
        };
        // The operator's own store and file go first.
        let in_file = credentials.username.is_some_and(|name| self.logins.knows(name));
        if external_users.is_token(password) {
            let admitted = external_users.admit(password, credentials.username, now);
            if admitted.is_some() || !in_file {
                // One that is not valid, or not yet, does not make an anonymous client either.
                let wrong = ReasonCode::BadUserNameOrPassword;
                return Ok(Decision::Now(admitted.ok_or(wrong)));
            }
        }
        let Some(username) = credentials.username else { return Err(applicant) };
        // Without a file, and if names are not mere labels, the time until the answer must not show whether there is
        // such an external user.
        let allow_anonymous = credentials.allow_anonymous;
        let must_log_in = self.logins.requires_login(Some(username), allow_anonymous);
        let unknown = !must_log_in && self.hook.is_none() && !allow_anonymous;
        if in_file || !(external_users.knows(username) || unknown) {
            return Err(applicant);
        }
        Ok(match User::external(username) {
            Some(user) => self.logins.check(user, password.as_bytes(), applicant),
            None => Decision::Now(Err(ReasonCode::BadUserNameOrPassword)),
        })
    }

    /// Decides on a token that came as the data of enhanced authentication; a user name given
    /// beside it must be the token's.
    pub fn check_token(
        &self,
        token: &[u8],
        username: Option<&str>,
        from: TokenSource<'_>,
        now: Timestamp,
    ) -> AuthReply {
        let text = std::str::from_utf8(token).map_err(|_| ReasonCode::BadUserNameOrPassword)?;
        self.verify(text, username, from, now)
    }

    fn verify(
        &self,
        token: &str,
        username: Option<&str>,
        from: TokenSource<'_>,
        now: Timestamp,
    ) -> AuthReply {
        let external_user = self
            .external_users
            .as_ref()
            .and_then(|external_users| external_users.admit(token, username, now));
        match (external_user, &self.jwt) {
            (Some(external_user), _) => Ok(external_user),
            (None, Some(jwt)) => jwt.verify(token, username, now).map_err(|why| {
                let TokenSource { peer, client_id } = from;
                tracing::info!(%peer, client = client_id, user = username, "token refused: {why}");
                ReasonCode::BadUserNameOrPassword
            }),
            (None, None) => Err(ReasonCode::BadUserNameOrPassword),
        }
    }

    /// Whether a user name that nobody knows is a label where anonymous clients may connect.
    pub fn admits_unknown_names(&self) -> bool {
        self.hook.is_none() && !self.logins.requires_login(None, true)
    }

    /// Whether an external user has this name, and nobody else.
    pub fn only_external(&self, name: &str) -> bool {
        !self.logins.knows(name) && self.has_external(name)
    }

    fn has_external(&self, name: &str) -> bool {
        self.external_users.as_ref().is_some_and(|users| users.knows(name))
    }

    /// True if the password file, the store of identities or the platform has a user of this name.
    pub fn knows_user(&self, name: &str) -> bool {
        self.logins.knows(name) || self.has_external(name)
    }

    /// Takes over from `before`, which this one replaces, what is not configured: the external users, and the logins, which
    /// use this one's password file from now on.
    pub fn inherit(&mut self, before: &AccessControl) {
        self.external_users = self.external_users.take().or_else(|| before.external_users.clone());
        self.identities = self.identities.take().or_else(|| before.identities.clone());
        self.hook = self.hook.take().or_else(|| before.hook.clone());
        before.logins.replace_file(&self.logins);
        self.logins = Arc::clone(&before.logins);
    }

    /// Whether the credential has not been revoked.
    pub fn is_good(&self, credential: &str) -> bool {
        if let Some(good) = self.identities.as_ref().and_then(|table| table.is_good(credential)) {
            return good;
        }
        if let Some(good) = PasswordFile::is_good(self.logins.file().as_deref(), credential) {
            return good;
        }
        self.external_users
            .as_ref()
            .is_some_and(|external_users| external_users.is_good(credential))
    }

    /// Whether the client is an external user or one of the identity store, and has a subscription it might not make now.
    pub fn has_outgrown<'f>(
        &self,
        subject: Subject<'_>,
        mut filters: impl Iterator<Item = &'f str>,
    ) -> bool {
        let stored = || {
            let table = self.identities.as_ref();
            table.is_some_and(|table| table.has_rules_for(subject))
        };
        (subject.is_exempt() || stored())
            && filters.any(|text| {
                let parsed = Subscription::parse(text);
                !parsed.is_ok_and(|own| self.allows(subject, Action::Subscribe, own.filter))
            })
    }

    /// To which topics everybody may publish, so that nothing need be looked up.
    pub fn open_topics(&self, generation: u64) -> OpenTopics {
        OpenTopics {
            generation,
            open: self.rules.is_open() && self.hook.is_none(),
            apart: self.external_users.is_some(),
            identities: self.identities.clone(),
        }
    }

    /// Whether the identity store keeps this client from connecting, however it was authenticated.
    pub fn refuses(&self, subject: Subject<'_>) -> bool {
        self.identities.as_ref().is_some_and(|table| table.refuses(subject))
    }

    /// The credential, which can be revoked, of a user that the identity store has.
    pub fn stored_credential(&self, subject: Subject<'_>) -> Option<Box<str>> {
        self.identities.as_ref()?.credential(subject.name()?)
    }

    /// Whether the client may end a subscription: only the identity store has rules for this.
    pub fn may_unsubscribe(&self, subject: Subject<'_>, filter: &str) -> bool {
        let table = self.identities.as_ref();
        table.and_then(|table| table.may_unsubscribe(subject, filter)).unwrap_or(true)
    }

    /// Whether some receiver of `topic` might not be allowed to have it, so that each one's rights must
    /// be looked at.
    pub fn guards(&self, topic: &str) -> bool {
        self.hook.is_some()
            || !is_by_default(topic, self.external_users.is_some())
            || self.rules.guards(topic)
            || self.identities.as_ref().is_some_and(|table| table.guards(topic))
    }

    /// Whether the will that a client has left may be published to `topic`. `by_login`: rules allowed it that came with the
    /// client's login and are forgotten at a restart. They count until a login brings others.
    pub fn may_leave(&self, subject: Subject<'_>, topic: &str, by_login: bool) -> bool {
        let (allowed, because) = self.explain(subject, Action::Publish, topic);
        let is_operators =
            matches!(because, Because::Rule(_) | Because::Default | Because::NoRules);
        allowed
            || by_login && is_operators && self.hook.is_some() && self.of_login(subject).is_none()
    }

    /// The rules that came with the client's login, if any did.
    fn of_login(&self, subject: Subject<'_>) -> Option<Arc<AccessRules>> {
        self.hook.as_ref()?.rules(subject.user?, subject.client_id)
    }

    /// Whether the client may publish to `topic`, subscribe to it as a filter, or receive what is published there with a
    /// subscription: the rules may have changed since it subscribed, or deny only a part of what it subscribed to.
    pub fn allows(&self, subject: Subject<'_>, action: Action, topic: &str) -> bool {
        self.explain(subject, action, topic).0
    }

    /// The same, with what decides.
    pub fn explain(&self, subject: Subject<'_>, action: Action, topic: &str) -> (bool, Because) {
        match self.decide(subject, action, topic) {
            Verdict::Allowed(because) => (true, because),
            Verdict::Denied(because) => (false, because),
            Verdict::ExternalUsers => {
                let Some(Vouched::External(name)) = subject.vouched() else {
                    return (false, Because::ExternalUser);
                };
                let users = self.external_users.as_ref();
                let allowed = users.is_some_and(|users| users.allows(name, action, topic));
                (allowed, Because::ExternalUser)
            }
        }
    }

    fn decide(&self, subject: Subject<'_>, action: Action, topic: &str) -> Verdict {
        let decide = |stored: Option<StoredRights<'_>>| {
            let login = if stored.is_none() { self.of_login(subject) } else { None };
            let rights = Rights {
                subject,
                external_users: self.external_users.is_some(),
                stored,
                login: login.as_deref(),
                rules: &self.rules,
            };
            rights.decide(action, topic)
        };
        match &self.identities {
            Some(table) if !subject.is_exempt() => table.with_rights(subject, decide),
            _ => decide(None),
        }
    }
}
