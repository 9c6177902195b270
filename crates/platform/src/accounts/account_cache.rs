//! The account cache: all accounts, twins, valid tokens and owners of devices in memory. Every request, and every MQTT
//! client with a token, is checked against it.
//!
//! The writer's thread changes it with every change, before the change is answered: logins, logouts and new devices one by
//! one, because anybody can cause many, and the rest by loading all of it. Changes by another process (`fulmar user`) are
//! detected within half a second.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use tokio::sync::Notify;

use crate::accounts::credentials::tag_of;
use crate::accounts::membership::Membership;
use crate::devices::types::{MAX_DEVICES, MAX_OWN_DEVICES, TooManyDevices};
use crate::role::Role;
use crate::store::accounts::{CredentialRow, SessionRow};
use crate::store::{Db, accounts, devices, twins};
use crate::text::Name;
use crate::time::Time;
use crate::topics::Whose;
use crate::twins::types::TwinKind;

/// An account as needed for requests.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) name: Name,
    pub(crate) display_name: String,
    /// Admin of the server: creates twins, and is admin in all of them.
    pub(crate) server_admin: bool,
    pub(crate) roles: BTreeMap<Name, Role>,
    /// A tag that changes with the password.
    pub(crate) password_tag: String,
}

#[derive(Debug, Default)]
struct CachedAccounts {
    accounts: HashMap<Name, Arc<Account>>,
    /// Accounts by their names without case.
    folded: HashMap<String, Name>,
    /// Tokens of logins by identifier: account and expiry.
    sessions: HashMap<String, (Name, Time)>,
    /// Credentials of devices and gateways by their token's identifier.
    credentials: HashMap<String, Credential>,
    twins: BTreeMap<Name, (String, TwinKind)>,
    /// By twin.
    devices: HashMap<Name, Devices>,
}

/// The devices of a twin.
#[derive(Debug, Default)]
struct Devices {
    /// By name of the device; none if the owner's account was removed.
    owners: HashMap<Name, Option<Name>>,
    /// Number of each account's.
    counts: HashMap<Name, usize>,
}

impl Devices {
    /// Sets whose a device is.
    fn set(&mut self, device: Name, account: Option<Name>) {
        let counted = account.clone();
        let before = self.owners.insert(device, account).flatten();
        if before == counted {
            return;
        }
        if let Some(count) = before.and_then(|account| self.counts.get_mut(&account)) {
            *count -= 1;
        }
        if let Some(account) = counted {
            *self.counts.entry(account).or_default() += 1;
        }
    }
}

/// A device's or gateway's credential.
#[derive(Debug)]
struct Credential {
    account: Name,
    digest: String,
    expires_at: Option<Time>,
}

impl Credential {
    fn is_good(&self, now: Time) -> bool {
        self.expires_at.is_none_or(|at| now < at)
    }
}

impl CachedAccounts {
    /// The accounts that lost a right, a device or a token, got another password, or were removed.
    fn lost(&self, before: &CachedAccounts) -> Losers {
        let less = |(name, before): &(&Name, &Arc<Account>)| {
            self.accounts.get(*name).is_none_or(|now| {
                now.roles != before.roles
                    || now.server_admin != before.server_admin
                    || now.password_tag != before.password_tag
            })
        };
        let ended = before.sessions.iter().filter(|(id, _)| !self.sessions.contains_key(*id));
        let ended = ended.map(|(_, (account, _))| account);
        let revoked = before.credentials.iter();
        let revoked = revoked.filter(|(id, _)| !self.credentials.contains_key(*id));
        let revoked = revoked.map(|(_, credential)| &credential.account);
        let less = before.accounts.iter().filter(less).map(|(name, _)| name);
        let given_up = self.given_up(before).filter_map(|(_, _, owner)| owner);
        let all = ended.chain(revoked).chain(less).chain(given_up);
        all.map(|name| (name.to_string(), self.loss(name))).collect()
    }

    fn loss(&self, account: &Name) -> Loss {
        if self.accounts.contains_key(account) { Loss::Less } else { Loss::Removed }
    }

    /// The devices that are another's now than before, or nobody's: twin, device, and whose it was.
    fn given_up<'a>(
        &'a self,
        before: &'a CachedAccounts,
    ) -> impl Iterator<Item = (&'a Name, &'a Name, Option<&'a Name>)> {
        let all = before.devices.iter();
        let all = all.flat_map(|(twin, devices)| devices.owners.iter().map(move |of| (twin, of)));
        let changed = all.filter(|(twin, (device, owner))| {
            let now = self.devices.get(*twin).and_then(|devices| devices.owners.get(*device));
            now != Some(*owner)
        });
        changed.map(|(twin, (device, owner))| (twin, device, owner.as_ref()))
    }

    /// Forgets the token with this identifier; returns whose it was.
    fn remove_token(&mut self, id: &str) -> Option<Name> {
        let session = self.sessions.remove(id).map(|(account, _)| account);
        session.or_else(|| self.credentials.remove(id).map(|credential| credential.account))
    }
}

/// Rights that an account has lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// A right, a device or a token, or its password is another.
    Less,
    /// All: the account was removed.
    Removed,
}

/// Rights that accounts have lost, by their names.
pub type Losers = HashMap<String, Loss>;

type LossListener = Box<dyn Fn(&Losers) + Send + Sync>;

/// The cache.
#[derive(Default)]
pub(crate) struct AccountCache {
    known: RwLock<CachedAccounts>,
    /// Called when accounts lost a right.
    lost: OnceLock<LossListener>,
    /// Notified when there are accounts.
    has_accounts: Notify,
}

fulmar_text::opaque_debug!(AccountCache { known });

impl AccountCache {
    /// Registers `lost`, which is called after each change by which accounts lose a right, with their names.
    /// The first registration counts.
    pub(crate) fn on_loss(&self, lost: LossListener) {
        let _ = self.lost.set(lost);
    }

    /// Loads everything from the database. Returns the devices that are not whose they were: twin and name.
    pub(crate) fn load(&self, db: &Db) -> crate::store::sql::Result<Vec<(Name, Name)>> {
        let mut roles: HashMap<Name, BTreeMap<Name, Role>> = HashMap::new();
        for (twin, account, role) in accounts::members(db)? {
            roles.entry(account).or_default().insert(twin, role);
        }
        let mut known = CachedAccounts::default();
        let mut passwords: HashMap<Name, String> = accounts::passwords(db)?.into_iter().collect();
        for row in accounts::read_all(db)? {
            let roles = roles.remove(&row.name).unwrap_or_default();
            let (display_name, server_admin) = (row.display_name, row.server_admin);
            let password_tag = tag_of(&passwords.remove(&row.name).unwrap_or_default());
            let name = row.name.clone();
            let account = Account { name, display_name, server_admin, roles, password_tag };
            known.folded.insert(row.name.folded(), row.name.clone());
            known.accounts.insert(row.name, Arc::new(account));
        }
        for row in accounts::credentials(db)? {
            let CredentialRow { id, account, digest, expires_at, .. } = row;
            known.credentials.insert(id, Credential { account, digest, expires_at });
        }
        for session in accounts::sessions(db)? {
            known.sessions.insert(session.id, (session.account, session.expires_at));
        }
        let twins = twins::names(db)?.into_iter();
        known.twins = twins.map(|(id, name, kind)| (id, (name, kind))).collect();
        for (twin, device, account) in devices::owners(db)? {
            known.devices.entry(twin).or_default().set(device, account);
        }
        let has_accounts = !known.accounts.is_empty();
        let before = std::mem::replace(&mut *self.known.write(), known);
        let (losers, given_up) = {
            let now = self.known.read();
            let given_up = now.given_up(&before);
            let names = given_up.map(|(twin, device, _)| (twin.clone(), device.clone()));
            (now.lost(&before), names.collect())
        };
        self.notify_of_loss(&losers);
        if has_accounts {
            self.has_accounts.notify_one();
        }
        Ok(given_up)
    }

    fn notify_of_loss(&self, losers: &Losers) {
        if let Some(lost) = self.lost.get().filter(|_| !losers.is_empty()) {
            lost(losers);
        }
    }

    /// A login has begun a session, and tokens with these identifiers have ended.
    pub(crate) fn begin_session(&self, session: SessionRow, ended: &[String]) {
        let SessionRow { id, account, expires_at, .. } = session;
        self.known.write().sessions.insert(id, (account, expires_at));
        self.end_tokens(ended);
    }

    /// Tokens with these identifiers have ended.
    pub(crate) fn end_tokens(&self, ended: &[String]) {
        let mut known = self.known.write();
        let losers = ended.iter().filter_map(|id| known.remove_token(id));
        let losers = losers.map(|account| (account.to_string(), Loss::Less)).collect();
        drop(known);
        self.notify_of_loss(&losers);
    }

    /// The account of a login's token, if the token is still valid.
    pub(crate) fn session(&self, id: &str, now: Time) -> Option<Arc<Account>> {
        let known = self.known.read();
        let (account, until) = known.sessions.get(id)?;
        (now < *until).then(|| known.accounts.get(account).cloned()).flatten()
    }

    /// The account of a credential, by its token's identifier and digest, and its expiry.
    pub(crate) fn credential(
        &self,
        id: &str,
        digest: &str,
        now: Time,
    ) -> Option<(Arc<Account>, Option<Time>)> {
        let known = self.known.read();
        let found = known.credentials.get(id).filter(|found| found.is_good(now))?;
        // Digests of random tokens: the time that the comparison takes reveals nothing about a token.
        let account = (found.digest == digest).then(|| known.accounts.get(&found.account))?;
        account.cloned().map(|account| (account, found.expires_at))
    }

    /// Whether the token with this identifier, a login's or a credential's, is still valid.
    pub(crate) fn is_good(&self, id: &str, now: Time) -> bool {
        let known = self.known.read();
        let lasts = known.credentials.get(id).is_some_and(|found| found.is_good(now));
        lasts || known.sessions.get(id).is_some_and(|(_, until)| now < *until)
    }

    /// Whether a credential has expired.
    pub(crate) fn has_expired_credential(&self, now: Time) -> bool {
        self.known.read().credentials.values().any(|credential| !credential.is_good(now))
    }

    pub(crate) fn account(&self, name: &str) -> Option<Arc<Account>> {
        let name: Name = name.parse().ok()?;
        self.known.read().accounts.get(&name).cloned()
    }

    /// The owner of a device, if it has registered and its owner's account was not removed.
    pub(crate) fn owner(&self, twin: &Name, device: &Name) -> Option<Name> {
        self.known.read().devices.get(twin)?.owners.get(device)?.clone()
    }

    /// The account of this name or, if there is none, one whose name differs only in case.
    pub(crate) fn namesake(&self, name: &Name) -> Option<Name> {
        let known = self.known.read();
        if known.accounts.contains_key(name) {
            return Some(name.clone());
        }
        known.folded.get(&name.folded()).cloned()
    }

    /// Whose a device is, from a user's view. A device that nobody has registered counts as another user's if it has that
    /// user's name, because its messages would look like that user's.
    pub(crate) fn whose(&self, twin: &Name, device: &str, user: &str) -> Whose {
        let Ok(device) = device.parse::<Name>() else { return Whose::Nobodys };
        match self.owner(twin, &device) {
            Some(owner) if *owner == *user => Whose::Own,
            Some(_) => Whose::Others,
            None if self.namesake(&device).is_some_and(|account| *account != *user) => {
                Whose::Others
            }
            None => Whose::Nobodys,
        }
    }

    /// Sets whose a device is; none if the owner's account was removed.
    pub(crate) fn own(&self, twin: &Name, device: &Name, account: Option<&Name>) {
        let mut known = self.known.write();
        known.devices.entry(twin.clone()).or_default().set(device.clone(), account.cloned());
    }

    /// Whether the account may register one more device.
    ///
    /// # Errors
    /// The account, or the twin, has the most that it may have.
    pub(crate) fn may_register(&self, twin: &Name, account: &Name) -> Result<(), TooManyDevices> {
        let known = self.known.read();
        let Some(devices) = known.devices.get(twin) else { return Ok(()) };
        if devices.counts.get(account).is_some_and(|count| *count >= MAX_OWN_DEVICES) {
            return Err(TooManyDevices::OfUser);
        }
        if devices.owners.len() >= MAX_DEVICES {
            return Err(TooManyDevices::OfTwin);
        }
        Ok(())
    }

    /// Whether there is no account at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.read().accounts.is_empty()
    }

    /// Returns when there is an account; for one waiter.
    pub(crate) async fn wait_for_account(&self) {
        while self.is_empty() {
            self.has_accounts.notified().await;
        }
    }

    /// All members of a twin and their roles.
    pub(crate) fn members(&self, twin: &Name) -> Vec<(Arc<Account>, Role)> {
        let known = self.known.read();
        let accounts = known.accounts.values();
        let member = |account: &Arc<Account>| {
            account.roles.get(twin).map(|role| (Arc::clone(account), *role))
        };
        let mut members: Vec<_> = accounts.filter_map(member).collect();
        members.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        members
    }

    /// The account's role in the twin; `None` if it has none, or there is no such twin.
    pub(crate) fn role(&self, account: &Account, twin: &Name) -> Option<Role> {
        if account.server_admin {
            return self.known.read().twins.contains_key(twin).then_some(Role::Admin);
        }
        account.roles.get(twin).copied()
    }

    /// Whether there is a twin of this name.
    pub(crate) fn has_twin(&self, twin: &Name) -> bool {
        self.known.read().twins.contains_key(twin)
    }

    /// The account's twins.
    pub(crate) fn twins_of(&self, account: &Account) -> Vec<Membership> {
        let known = self.known.read();
        let all = known.twins.iter().filter_map(|(id, (name, kind))| {
            let role = if account.server_admin {
                Some(Role::Admin)
            } else {
                account.roles.get(id).copied()
            };
            let (id, name, kind) = (id.clone(), name.clone(), *kind);
            role.map(|role| Membership { id, name, kind, role })
        });
        all.collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_twin_has_a_bounded_number_of_devices_and_another_twin_its_own() {
        let cache = AccountCache::default();
        let name = |text: &str| text.parse::<Name>().unwrap();
        let (north, south) = (name("north"), name("south"));
        for number in 0..MAX_DEVICES {
            let account = name(&format!("account{}", number / MAX_OWN_DEVICES));
            assert_eq!(cache.may_register(&north, &account), Ok(()));
            cache.own(&north, &name(&format!("device{number}")), Some(&account));
        }
        let newcomer = name("newcomer");
        assert_eq!(cache.may_register(&north, &newcomer), Err(TooManyDevices::OfTwin));
        assert_eq!(cache.may_register(&south, &newcomer), Ok(()));
    }
}
