//! Accounts of the store of identities, and, in memory, all twins and owners of devices: every request, and every MQTT
//! client with a token, is checked against them.
//!
//! The writer's thread changes twins and owners with every change, before the change is answered: new devices one by one,
//! because anybody can cause many, and the rest by loading all of it. Changes by another process (`fulmar user`) are
//! detected within half a second.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fulmar_auth::ExternalPassword;
use fulmar_identity::{Change, Identities, MAX_ACCOUNTS, Row};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::accounts::membership::Membership;
use crate::devices::types::{MAX_DEVICES, MAX_OWN_DEVICES, TooManyDevices};
use crate::role::Role;
use crate::store::{Db, devices, twins};
use crate::text::Name;
use crate::time::Time;
use crate::topics::Whose;
use crate::twins::types::TwinKind;

/// Before the password's tag and the name in the credential of a login by password. No identifier of a token has a colon.
const BY_PASSWORD: &str = "password:";

/// An account as needed for requests.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) name: Name,
    row: Arc<fulmar_identity::Account>,
}

impl Deref for Account {
    type Target = fulmar_identity::Account;

    fn deref(&self) -> &fulmar_identity::Account {
        &self.row
    }
}

impl Account {
    fn new(row: &Arc<fulmar_identity::Account>) -> Option<Account> {
        Some(Account { name: row.name.parse().ok()?, row: Arc::clone(row) })
    }

    /// The role as a member of the twin.
    pub(crate) fn role_in(&self, twin: &str) -> Option<Role> {
        self.row.role_in(twin)?.parse().ok()
    }

    /// Credential of a login by password, which changes with it.
    pub(crate) fn password_credential(&self) -> Box<str> {
        let tag = self.password.as_ref().map(|hash| hash.tag()).unwrap_or_default();
        format!("{BY_PASSWORD}{tag}:{}", self.name).into()
    }
}

#[derive(Debug, Default)]
struct TwinsAndDevices {
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

impl TwinsAndDevices {
    /// The devices that are another's now than before, or nobody's: twin, device, and whose it was.
    fn given_up<'a>(
        &'a self,
        before: &'a TwinsAndDevices,
    ) -> impl Iterator<Item = (&'a Name, &'a Name, Option<&'a Name>)> {
        let all = before.devices.iter();
        let all = all.flat_map(|(twin, devices)| devices.owners.iter().map(move |of| (twin, of)));
        let changed = all.filter(|(twin, (device, owner))| {
            let now = self.devices.get(*twin).and_then(|devices| devices.owners.get(*device));
            now != Some(*owner)
        });
        changed.map(|(twin, (device, owner))| (twin, device, owner.as_ref()))
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
pub(crate) struct AccountCache {
    identities: Arc<Identities>,
    known: RwLock<TwinsAndDevices>,
    /// Called when accounts lost a right.
    lost: OnceLock<LossListener>,
    /// Notified when there are accounts.
    has_accounts: Notify,
    /// Whether accounts have changed since devices' names were settled.
    names_are_due: AtomicBool,
    /// Accounts that were removed since the start.
    removed: Mutex<HashSet<Box<str>>>,
}

fulmar_text::opaque_debug!(AccountCache { known });

impl AccountCache {
    pub(crate) fn new(identities: Arc<Identities>) -> AccountCache {
        AccountCache {
            identities,
            known: RwLock::default(),
            lost: OnceLock::new(),
            has_accounts: Notify::new(),
            names_are_due: AtomicBool::new(true),
            removed: Mutex::default(),
        }
    }

    /// The store of accounts.
    pub(crate) fn identities(&self) -> &Arc<Identities> {
        &self.identities
    }

    /// Registers `lost`, which is called after each change by which accounts lose a right, with their names.
    /// The first registration counts.
    pub(crate) fn on_loss(&self, lost: LossListener) {
        let _ = self.lost.set(lost);
    }

    /// Loads twins and owners of devices from the database. Returns the devices that are not whose they were: twin and
    /// name.
    pub(crate) fn load(&self, db: &Db) -> crate::store::sql::Result<Vec<(Name, Name)>> {
        let mut known = TwinsAndDevices::default();
        let twins = twins::names(db)?.into_iter();
        known.twins = twins.map(|(id, name, kind)| (id, (name, kind))).collect();
        for (twin, device, account) in devices::owners(db)? {
            known.devices.entry(twin).or_default().set(device, account);
        }
        let before = std::mem::replace(&mut *self.known.write(), known);
        let (losers, given_up) = {
            let now = self.known.read();
            let owners = now.given_up(&before).filter_map(|(_, _, owner)| owner);
            let losers: Losers = owners.map(|name| (name.to_string(), self.loss(name))).collect();
            let names = now.given_up(&before);
            (losers, names.map(|(twin, device, _)| (twin.clone(), device.clone())).collect())
        };
        self.notify_of_loss(&losers);
        Ok(given_up)
    }

    fn loss(&self, account: &Name) -> Loss {
        if self.account(account).is_some() { Loss::Less } else { Loss::Removed }
    }

    /// Follows a change of accounts. Returns whether devices' names may have to follow it.
    pub(crate) fn follow(&self, change: &Change) -> bool {
        let (mut losers, mut due) = (Losers::new(), false);
        for pair in change.rows.iter().zip(&change.before) {
            let (Row::Account(name, now), Row::Account(_, before)) = pair else { continue };
            match (now, before) {
                (None, _) => {
                    losers.insert(name.to_string(), Loss::Removed);
                    let mut removed = self.removed.lock();
                    if removed.len() < MAX_ACCOUNTS {
                        removed.insert(name.clone());
                    }
                }
                // Removed and made again since the last look.
                (Some(now), Some(before)) if now.created_ms != before.created_ms => {
                    losers.insert(name.to_string(), Loss::Removed);
                }
                (Some(now), Some(before)) if now.has_less_than(before) => {
                    losers.insert(name.to_string(), Loss::Less);
                }
                _ => {}
            }
            let claims = |account: &Option<Arc<fulmar_identity::Account>>| {
                account.as_ref().map(|it| (it.server_admin, it.memberships.clone()))
            };
            due |= claims(now) != claims(before);
        }
        if due {
            self.names_are_due.store(true, Ordering::Release);
        }
        self.notify_of_loss(&losers);
        if !self.is_empty() {
            self.has_accounts.notify_one();
        }
        due
    }

    /// Whether accounts have changed since devices' names were settled, once.
    pub(crate) fn take_due_names(&self) -> bool {
        self.names_are_due.swap(false, Ordering::AcqRel)
    }

    /// Whether accounts have changed since devices' names were settled.
    pub(crate) fn has_due_names(&self) -> bool {
        self.names_are_due.load(Ordering::Acquire)
    }

    /// Whether an account of this name was removed since the start.
    pub(crate) fn was_removed(&self, name: &str) -> bool {
        self.removed.lock().contains(name)
    }

    /// Devices' names are not settled after all, or not yet.
    pub(crate) fn names_are_due(&self) {
        self.names_are_due.store(true, Ordering::Release);
    }

    fn notify_of_loss(&self, losers: &Losers) {
        if let Some(lost) = self.lost.get().filter(|_| !losers.is_empty()) {
            lost(losers);
        }
    }

    /// The account of a login's token, if the token is still valid.
    pub(crate) fn session(&self, id: &str, now: Time) -> Option<Account> {
        let account = self.identities.read(|state| state.account_with(id).map(Arc::clone))?;
        Account::new(&account).filter(|account| account.has_good(id, now.0))
    }

    /// The account of a device token, by its identifier and digest, and its expiry.
    pub(crate) fn credential(
        &self,
        id: &str,
        digest: &str,
        now: Time,
    ) -> Option<(Account, Option<Time>)> {
        let account = self.identities.read(|state| state.account_with(id).map(Arc::clone))?;
        let token = account.token(id).filter(|token| token.is_good(now.0))?;
        // Digests of random tokens: the time that the comparison takes reveals nothing about a token.
        let until = (*token.digest == *digest).then_some(token.expires_ms)?;
        Some((Account::new(&account)?, until.map(Time)))
    }

    /// Whether the token with this identifier, a login's or a device's, or the password with this credential, is still valid.
    pub(crate) fn is_good(&self, id: &str, now: Time) -> bool {
        if let Some((_, name)) = id.strip_prefix(BY_PASSWORD).and_then(|tag| tag.split_once(':')) {
            return self.account(name).is_some_and(|account| *account.password_credential() == *id);
        }
        let is_good = |account: &Arc<fulmar_identity::Account>| account.has_good(id, now.0);
        self.identities.read(|state| state.account_with(id).is_some_and(is_good))
    }

    /// The accounts that still have an expired token.
    pub(crate) fn with_expired_tokens(&self, now: Time) -> Vec<Box<str>> {
        self.identities.read(|state| {
            let accounts = state.accounts().values().filter(|account| account.has_expired(now.0));
            accounts.map(|account| account.name.clone()).collect()
        })
    }

    /// An account's password as it is stored.
    pub(crate) fn password(&self, name: &str) -> Option<ExternalPassword> {
        let account = self.account(name)?;
        let hash = account.password.as_ref().map(|hash| hash.as_str().to_owned());
        Some(ExternalPassword { hash, credential: account.password_credential() })
    }

    pub(crate) fn account(&self, name: &str) -> Option<Account> {
        self.identities.read(|state| state.accounts().get(name).and_then(Account::new))
    }

    /// The owner of a device, if it has registered and its owner's account was not removed.
    pub(crate) fn owner(&self, twin: &Name, device: &Name) -> Option<Name> {
        self.known.read().devices.get(twin)?.owners.get(device)?.clone()
    }

    /// The account of this name or, if there is none, one whose name differs only in case.
    pub(crate) fn namesake(&self, name: &Name) -> Option<Name> {
        self.identities.read(|state| state.namesake(name)?.name.parse().ok())
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
        self.identities.read(|state| state.accounts().is_empty())
    }

    /// Returns when there is an account; for one waiter.
    pub(crate) async fn wait_for_account(&self) {
        while self.is_empty() {
            self.has_accounts.notified().await;
        }
    }

    /// All members of a twin and their roles, by name.
    pub(crate) fn members(&self, twin: &Name) -> Vec<(Account, Role)> {
        self.identities.read(|state| {
            let members = state.accounts().values().filter(|it| it.role_in(twin).is_some());
            let members = members.filter_map(Account::new);
            members
                .filter_map(|account| account.role_in(twin).map(|role| (account, role)))
                .collect()
        })
    }

    /// The account's role in the twin; `None` if it has none, or there is no such twin.
    pub(crate) fn role(&self, account: &Account, twin: &Name) -> Option<Role> {
        let role = if account.server_admin { Some(Role::Admin) } else { account.role_in(twin) };
        // Memberships are stored elsewhere than twins, which may come from another backup.
        role.filter(|_| self.has_twin(twin))
    }

    /// Whether there is a twin of this name.
    pub(crate) fn has_twin(&self, twin: &Name) -> bool {
        self.known.read().twins.contains_key(twin)
    }

    /// The account's twins.
    pub(crate) fn twins_of(&self, account: &Account) -> Vec<Membership> {
        let known = self.known.read();
        let all = known.twins.iter().filter_map(|(id, (name, kind))| {
            let role = if account.server_admin { Some(Role::Admin) } else { account.role_in(id) };
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
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(fulmar_identity::FILE);
        let identities = Identities::open(&file, Box::new(|_, _, _| ())).unwrap();
        let cache = AccountCache::new(Arc::new(identities));
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
