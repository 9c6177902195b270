//! All accounts, twins, good tokens and whose devices are, in memory: what every request and every MQTT
//! client that shows a token is checked against.
//!
//! Loaded anew on the writer's thread with every change, before the change is answered; changes by
//! another process (`fulmar user`) are seen within half a second.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use tokio::sync::Notify;

use crate::accounts::sessions::Membership;
use crate::role::Role;
use crate::store::{Db, accounts, devices, twins};
use crate::text::Name;
use crate::time::Time;
use crate::twins::TwinKind;

/// An account as requests see it.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) name: Name,
    pub(crate) display_name: String,
    /// Admin of the server: makes twins, and is admin in all.
    pub(crate) server_admin: bool,
    pub(crate) roles: BTreeMap<Name, Role>,
}

#[derive(Debug, Default)]
struct Known {
    accounts: HashMap<Name, Arc<Account>>,
    /// By identifier of the token: whose, and until when.
    sessions: HashMap<String, (Name, Time)>,
    twins: BTreeMap<Name, (String, TwinKind)>,
    /// By twin and name of the device: whose it is.
    devices: HashMap<Name, HashMap<Name, Name>>,
}

impl Known {
    /// Whether somebody may do less than before, or has a token less.
    fn lost(&self, before: &Known) -> bool {
        let gone = |id: &String| !self.sessions.contains_key(id);
        let less = |(name, before): (&Name, &Arc<Account>)| {
            let now = self.accounts.get(name).map(|now| (&now.roles, now.server_admin));
            now != Some((&before.roles, before.server_admin))
        };
        before.sessions.keys().any(gone) || before.accounts.iter().any(less)
    }
}

type Lost = Box<dyn Fn() + Send + Sync>;

/// What is known of all.
#[derive(Default)]
pub(crate) struct Roster {
    known: RwLock<Known>,
    /// Told when somebody may do less than before.
    lost: OnceLock<Lost>,
    /// Told when there are accounts.
    peopled: Notify,
}

impl fmt::Debug for Roster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roster").field("known", &self.known).finish_non_exhaustive()
    }
}

impl Roster {
    /// Calls `lost` after each change that takes something from somebody; the first call counts.
    pub(crate) fn on_loss(&self, lost: Lost) {
        let _ = self.lost.set(lost);
    }

    /// Takes what the database says.
    pub(crate) fn load(&self, db: &Db) -> crate::store::sql::Result<()> {
        let mut roles: HashMap<Name, BTreeMap<Name, Role>> = HashMap::new();
        for (twin, account, role) in accounts::members(db)? {
            roles.entry(account).or_default().insert(twin, role);
        }
        let mut known = Known::default();
        for row in accounts::all(db)? {
            let roles = roles.remove(&row.name).unwrap_or_default();
            let (display_name, server_admin) = (row.display_name, row.server_admin);
            let account = Account { name: row.name.clone(), display_name, server_admin, roles };
            known.accounts.insert(row.name, Arc::new(account));
        }
        for session in accounts::sessions(db)? {
            known.sessions.insert(session.id, (session.account, session.expires_at));
        }
        let twins = twins::names(db)?.into_iter();
        known.twins = twins.map(|(id, name, kind)| (id, (name, kind))).collect();
        for (twin, device, account) in devices::owners(db)? {
            known.devices.entry(twin).or_default().insert(device, account);
        }
        let peopled = !known.accounts.is_empty();
        let before = std::mem::replace(&mut *self.known.write(), known);
        if self.known.read().lost(&before)
            && let Some(lost) = self.lost.get()
        {
            lost();
        }
        if peopled {
            self.peopled.notify_one();
        }
        Ok(())
    }

    /// Whose token this is, if it is still good.
    pub(crate) fn session(&self, id: &str, now: Time) -> Option<Arc<Account>> {
        let known = self.known.read();
        let (account, until) = known.sessions.get(id)?;
        (now < *until).then(|| known.accounts.get(account).cloned()).flatten()
    }

    /// The account of this name.
    pub(crate) fn account(&self, name: &str) -> Option<Arc<Account>> {
        let name: Name = name.parse().ok()?;
        self.known.read().accounts.get(&name).cloned()
    }

    /// Whose a device is, if somebody has told of it.
    pub(crate) fn owner(&self, twin: &Name, device: &str) -> Option<Name> {
        let device: Name = device.parse().ok()?;
        self.known.read().devices.get(twin)?.get(&device).cloned()
    }

    /// A device has told of itself.
    pub(crate) fn own(&self, twin: &Name, device: &Name, account: &Name) {
        let mut known = self.known.write();
        let devices = known.devices.entry(twin.clone()).or_default();
        devices.entry(device.clone()).or_insert_with(|| account.clone());
    }

    /// Whether there is no account at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.read().accounts.is_empty()
    }

    /// Returns when there is an account; for one waiter.
    pub(crate) async fn people(&self) {
        while self.is_empty() {
            self.peopled.notified().await;
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

    /// What the account is in the twin; `None` if nothing, or there is no such twin.
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
