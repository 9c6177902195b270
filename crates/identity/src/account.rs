//! Accounts: people and devices of the platform, with passwords, tokens, sessions and memberships.
//!
//! No client has the name of a new account. Earlier versions allowed that: these are two users. Names of twins and roles are
//! the platform's, opaque here. Sessions are tokens that a login has begun, device tokens last until they are revoked.

use std::sync::Arc;

use fulmar_broker::auth::PasswordError;
use serde::{Deserialize, Serialize};

use crate::checks;
use crate::command::Refused;
use crate::entities::PasswordHash;
use crate::limits::{
    MAX_ACCOUNTS, MAX_DEVICE_TOKENS, MAX_NAME_BYTES, MAX_SESSIONS, MAX_TEXT_BYTES,
};
use crate::passwords::hash_password;
use crate::rows::Row;
use crate::state::State;

/// A person or a device with rights in twins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Name for the login.
    pub name: Box<str>,
    /// Name that people see.
    pub display_name: Box<str>,
    /// Without one, no password is right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<PasswordHash>,
    /// Whether it is an admin of the server.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub server_admin: bool,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_ms: i64,
    /// Roles in the twins of which it is a member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memberships: Vec<Membership>,
    /// Device tokens, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<DeviceToken>,
    /// Sessions, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sessions: Vec<Session>,
}

/// A role in a twin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The twin.
    pub twin: Box<str>,
    /// The role.
    pub role: Box<str>,
}

/// A token that is valid until it is revoked, or expires because another one replaces it. The token itself is nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceToken {
    /// Identifier, which is in the token, too.
    pub id: Box<str>,
    /// SHA-256 of the token, in hexadecimal digits.
    pub digest: Box<str>,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_ms: i64,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<i64>,
}

/// A session that a login has begun: the identifier of a signed token that is valid while this exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Identifier, which is in the token.
    pub id: Box<str>,
    /// When it began, in milliseconds since the Unix epoch.
    pub issued_ms: i64,
    /// When it ends.
    pub expires_ms: i64,
}

/// A change of one account.
#[derive(Clone, Debug, PartialEq)]
pub enum AccountChange {
    /// Sets the password, and ends all sessions.
    Password(PasswordHash),
    /// Gives it a role in a twin, or ends its membership.
    Membership {
        /// The twin.
        twin: Box<str>,
        /// The role; `None` ends the membership.
        role: Option<Box<str>>,
        /// A role that somebody in the twin must have afterwards.
        keep: Option<Box<str>>,
    },
    /// Adds a device token, and forgets expired ones.
    AddToken {
        /// The token.
        token: DeviceToken,
        /// Latest expiry of its other device tokens.
        others_end_ms: Option<i64>,
    },
    /// Revokes the device token with this identifier.
    RevokeToken(Box<str>),
    /// Revokes all device tokens.
    RevokeTokens,
    /// Begins a session, and ends expired ones and the oldest beyond the maximum.
    BeginSession(Session),
    /// Ends the session, or revokes the device token, with this identifier, if there is one.
    End(Box<str>),
    /// Forgets sessions and device tokens that have expired by then.
    ForgetExpired(i64),
}

impl PasswordHash {
    /// Hashes a password with argon2. Takes tens of milliseconds on purpose.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn from_password(password: &str) -> Result<PasswordHash, PasswordError> {
        hash_password(password.as_bytes())
    }

    /// A tag that changes with the hash and reveals nothing of it.
    pub fn tag(&self) -> String {
        self.digest().chars().take(16).collect()
    }
}

impl DeviceToken {
    /// Whether it has not expired by then.
    pub fn is_good(&self, now_ms: i64) -> bool {
        self.expires_ms.is_none_or(|at| now_ms < at)
    }
}

impl Account {
    /// Whether the session or device token with this identifier exists and has not expired.
    pub fn has_good(&self, id: &str, now_ms: i64) -> bool {
        self.session(id).is_some_and(|session| now_ms < session.expires_ms)
            || self.token(id).is_some_and(|token| token.is_good(now_ms))
    }

    /// The role in a twin.
    pub fn role_in(&self, twin: &str) -> Option<&str> {
        let membership = self.memberships.iter().find(|own| &*own.twin == twin);
        membership.map(|own| &*own.role)
    }

    /// The device token with this identifier.
    pub fn token(&self, id: &str) -> Option<&DeviceToken> {
        self.tokens.iter().find(|token| &*token.id == id)
    }

    fn session(&self, id: &str) -> Option<&Session> {
        self.sessions.iter().find(|session| &*session.id == id)
    }

    /// Whether something of it has expired by then and is still stored.
    pub fn has_expired(&self, now_ms: i64) -> bool {
        self.sessions.iter().any(|session| session.expires_ms <= now_ms)
            || self.tokens.iter().any(|token| !token.is_good(now_ms))
    }

    /// Identifiers of its sessions and device tokens.
    pub(crate) fn credentials(&self) -> impl Iterator<Item = &Box<str>> {
        let tokens = self.tokens.iter().map(|token| &token.id);
        tokens.chain(self.sessions.iter().map(|session| &session.id))
    }

    /// Whether it has lost a right, a session or a device token since `before`, or has another password.
    pub fn has_less_than(&self, before: &Account) -> bool {
        self.memberships != before.memberships
            || self.server_admin != before.server_admin
            || self.password != before.password
            || before.sessions.iter().any(|old| self.session(&old.id).is_none())
            || before.tokens.iter().any(|old| self.token(&old.id).is_none())
    }

    fn forget_expired(&mut self, now_ms: i64) {
        self.sessions.retain(|session| now_ms < session.expires_ms);
        self.tokens.retain(|token| token.is_good(now_ms));
    }

    fn add_token(&mut self, token: DeviceToken, others_end_ms: Option<i64>) -> Result<(), Refused> {
        if let Some(end) = others_end_ms {
            for other in &mut self.tokens {
                other.expires_ms = Some(other.expires_ms.map_or(end, |at| at.min(end)));
            }
        }
        self.tokens.retain(|other| other.is_good(token.created_ms));
        if self.tokens.len() >= MAX_DEVICE_TOKENS {
            return Err(Refused::TooManyDeviceTokens(self.tokens.len()));
        }
        self.tokens.push(token);
        Ok(())
    }

    fn begin(&mut self, session: Session) {
        self.sessions.retain(|other| session.issued_ms <= other.expires_ms);
        self.sessions.push(session);
        let beyond = self.sessions.len().saturating_sub(MAX_SESSIONS);
        self.sessions.drain(..beyond);
    }

    fn end(&mut self, id: &str) -> bool {
        let before = self.sessions.len() + self.tokens.len();
        self.sessions.retain(|session| &*session.id != id);
        self.tokens.retain(|token| &*token.id != id);
        self.sessions.len() + self.tokens.len() < before
    }

    fn change(&mut self, change: AccountChange) -> Result<(), Refused> {
        match change {
            AccountChange::Password(hash) => {
                self.password = Some(hash);
                self.sessions.clear();
            }
            AccountChange::Membership { twin, role: Some(role), .. } => {
                checks::name("the twin's name", &twin)?;
                checks::name("the role", &role)?;
                self.memberships.retain(|own| own.twin != twin);
                self.memberships.push(Membership { twin, role });
            }
            AccountChange::Membership { twin, role: None, .. } => {
                self.role_in(&twin).ok_or(Refused::AccountNotFound)?;
                self.memberships.retain(|own| own.twin != twin);
            }
            AccountChange::AddToken { token, others_end_ms } => {
                self.add_token(token, others_end_ms)?;
            }
            AccountChange::RevokeToken(id) => {
                self.token(&id).ok_or(Refused::DeviceTokenNotFound)?;
                self.end(&id);
            }
            AccountChange::RevokeTokens => self.tokens.clear(),
            AccountChange::BeginSession(session) => self.begin(session),
            AccountChange::End(id) => drop(self.end(&id)),
            AccountChange::ForgetExpired(now_ms) => self.forget_expired(now_ms),
        }
        Ok(())
    }
}

/// A name without case: names of accounts that differ only in case would be mistaken for each other.
pub(crate) fn folded(name: &str) -> Box<str> {
    name.to_ascii_lowercase().into()
}

impl State {
    /// The account of this name or, if there is none, one whose name differs only in case.
    pub fn namesake(&self, name: &str) -> Option<&Arc<Account>> {
        let lower = folded(name);
        let same = || self.accounts.get(self.folded_names.get(&lower)?.first()?);
        self.accounts.get(name).or_else(|| self.accounts.get(&lower)).or_else(same)
    }

    /// Names that a client and an account have, each with its own password and rights: in stores of earlier versions.
    pub fn shared_names(&self) -> impl Iterator<Item = &str> {
        let names = self.accounts.keys().filter(|name| self.clients().contains_key(*name));
        names.map(|name| &**name)
    }

    /// The account that has the session or device token with this identifier.
    pub fn account_with(&self, credential: &str) -> Option<&Arc<Account>> {
        self.credentials.get(credential)
    }

    /// Notes where an account's credentials and its name without case are found.
    pub(crate) fn index_account(&mut self, before: Option<&Account>, now: Option<&Arc<Account>>) {
        for id in before.into_iter().flat_map(Account::credentials) {
            self.credentials.remove(id);
        }
        if let Some(account) = now {
            let ids = account.credentials().map(|id| (id.clone(), Arc::clone(account)));
            self.credentials.extend(ids);
        }
        let Some(name) = now.map(|now| &now.name).or(before.map(|before| &before.name)) else {
            return;
        };
        let lower = folded(name);
        if lower == *name {
            return;
        }
        // Earlier builds had accounts whose names differ only in case.
        let names = self.folded_names.entry(lower).or_default();
        if now.is_some() {
            names.insert(name.clone());
        } else {
            names.remove(name);
        }
        if names.is_empty() {
            self.folded_names.remove(&folded(name));
        }
    }

    pub(crate) fn create_account(&self, account: Account) -> Result<Vec<Row>, Refused> {
        checks::name("the account's name", &account.name)?;
        if account.display_name.len() > MAX_TEXT_BYTES {
            return Err(Refused::TooLong { what: "the name to display", max: MAX_TEXT_BYTES });
        }
        if self.namesake(&account.name).is_some() {
            return Err(Refused::AccountExists);
        }
        if self.clients().contains_key(&account.name) {
            return Err(Refused::NameOfClient);
        }
        if self.accounts.len() >= MAX_ACCOUNTS {
            return Err(Refused::TooMany { what: "accounts", max: MAX_ACCOUNTS });
        }
        debug_assert!(account.name.len() <= MAX_NAME_BYTES);
        Ok(vec![Row::Account(account.name.clone(), Some(Arc::new(account)))])
    }

    /// Adds accounts of an earlier version's database, except those that exist: an import that was interrupted goes on.
    pub(crate) fn import_accounts(&self, accounts: Vec<Account>) -> Vec<Row> {
        let new = accounts.into_iter().filter(|it| !self.accounts.contains_key(&it.name));
        new.map(|account| Row::Account(account.name.clone(), Some(Arc::new(account)))).collect()
    }

    pub(crate) fn modify_account(
        &self,
        name: Box<str>,
        change: AccountChange,
    ) -> Result<Vec<Row>, Refused> {
        let before = self.accounts.get(&name).ok_or(Refused::AccountNotFound)?;
        let mut account = Account::clone(before);
        let kept = match &change {
            AccountChange::Membership { twin, keep: Some(role), .. } => {
                Some((twin.clone(), role.clone()))
            }
            _ => None,
        };
        if let AccountChange::AddToken { token, .. } = &change
            && self.credentials.contains_key(&token.id)
        {
            return Err(Refused::TokenExists);
        }
        account.change(change)?;
        if let Some((twin, role)) = kept {
            let has = |account: &Account| account.role_in(&twin) == Some(&role);
            let mut others = self.accounts.values().filter(|other| other.name != name);
            if !has(&account) && !others.any(|other| has(other)) {
                return Err(Refused::LastMember);
            }
        }
        let same = account == **before;
        Ok(if same { Vec::new() } else { vec![Row::Account(name, Some(Arc::new(account)))] })
    }

    pub(crate) fn delete_account(&self, name: Box<str>) -> Result<Vec<Row>, Refused> {
        let account = self.accounts.get(&name).ok_or(Refused::AccountNotFound)?;
        let mut others = self.accounts.values().filter(|other| other.name != name);
        if account.server_admin && !others.any(|other| other.server_admin) {
            return Err(Refused::LastServerAdmin(name));
        }
        Ok(vec![Row::Account(name, None)])
    }
}
