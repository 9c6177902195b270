//! The state, and what commands do with it. No I/O, no clock.

mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fulmar_mqtt::topic::matches;

use crate::account::Account;
use crate::acl::{Acl, AclKind, DefaultAccess, Ranked};
use crate::command::{Command, Refused};
use crate::entities::{AdministrationRole, ApiToken, Client, Group, Role};

use crate::rows::{Removal, Row, Settings};
use crate::tokens::digest_if_token;

/// Where a client changes this state over MQTT.
const CONTROL_TOPIC: &str = "$CONTROL/dynamic-security/v1";

type Table<T> = BTreeMap<Box<str>, Arc<T>>;

/// All identities.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    clients: Table<Client>,
    groups: Table<Group>,
    roles: Table<Role>,
    tokens: Table<ApiToken>,
    removed: Table<Removal>,
    /// Their numbers, each with its name.
    removals: BTreeSet<(u64, Box<str>)>,
    pub(crate) accounts: Table<Account>,
    /// Accounts by the identifiers of their sessions and device tokens.
    pub(crate) credentials: Table<Account>,
    /// Names of accounts with capital letters by the same without.
    pub(crate) folded_names: BTreeMap<Box<str>, BTreeSet<Box<str>>>,
    settings: Arc<Settings>,
}

/// Change by a command: the rows as they are now, and as they were.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// Rows after the command.
    pub rows: Vec<Row>,
    /// Rows before the command, in the same order.
    pub before: Vec<Row>,
}

/// Somebody who may use the administration API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The client's user name, or the token's name.
    pub name: Box<str>,
    /// Role, which decides what they may do.
    pub role: AdministrationRole,
    /// Whether it is a token.
    pub is_token: bool,
}

/// The ways in which a state can be administered, of which none may be lost.
struct Administered {
    by_role: bool,
    by_control: bool,
}

impl State {
    /// Clients by user name.
    pub fn clients(&self) -> &BTreeMap<Box<str>, Arc<Client>> {
        &self.clients
    }

    /// Clients that were removed and not created again, by user name.
    pub fn removed(&self) -> &BTreeMap<Box<str>, Arc<Removal>> {
        &self.removed
    }

    /// Groups by name.
    pub fn groups(&self) -> &BTreeMap<Box<str>, Arc<Group>> {
        &self.groups
    }

    /// Roles by name.
    pub fn roles(&self) -> &BTreeMap<Box<str>, Arc<Role>> {
        &self.roles
    }

    /// API tokens by name.
    pub fn tokens(&self) -> &BTreeMap<Box<str>, Arc<ApiToken>> {
        &self.tokens
    }

    /// Accounts by name.
    pub fn accounts(&self) -> &BTreeMap<Box<str>, Arc<Account>> {
        &self.accounts
    }

    /// Access where no rule matches.
    pub fn default_access(&self) -> DefaultAccess {
        self.settings.default_access
    }

    /// The group whose roles clients without a user name have.
    pub fn anonymous_group(&self) -> Option<&str> {
        self.settings.anonymous_group.as_deref()
    }

    /// Identifier by which a database recognizes this store, if it has got one.
    pub fn identifier(&self) -> Option<&str> {
        self.settings.identifier.as_deref()
    }

    /// Whether names that the store does not know are labels where anonymous clients may connect: until there is, or was, a
    /// client with a purpose other than administration.
    pub fn admits_unknown_names(&self) -> bool {
        self.settings.anonymous_group.is_none()
            && self.clients.values().all(|client| client.only_administers())
            && self.removed.values().all(|removal| removal.only_administered)
    }

    /// A group's clients with its rank among their groups, by rank.
    pub fn members(&self, group: &str) -> Vec<Ranked> {
        let member = |client: &Arc<Client>| {
            let own = client.groups.iter().find(|own| &*own.name == group)?;
            Some(Ranked::new(&client.username, own.priority))
        };
        let mut members: Vec<Ranked> = self.clients.values().filter_map(member).collect();
        crate::acl::rank(&mut members);
        members
    }

    /// The roles that apply to a client, in the order in which their rules are asked: its own, then its groups'.
    pub fn roles_of<'a>(&'a self, client: &'a Client) -> impl Iterator<Item = &'a Arc<Role>> {
        let groups = client.groups.iter().filter_map(|own| self.groups.get(&own.name));
        let of_groups = groups.flat_map(|group| &group.roles);
        let all = client.roles.iter().chain(of_groups);
        all.filter_map(|own| self.roles.get(&own.name))
    }

    /// The principal of an API token that has not expired.
    pub fn verify_token(&self, token: &str, now_ms: u64) -> Option<Principal> {
        let digest = digest_if_token(token)?;
        let token = self.tokens.values().find(|known| *known.digest == *digest)?;
        let valid = token.expires_ms.is_none_or(|end| now_ms < end);
        valid.then(|| Principal { name: token.name.clone(), role: token.role, is_token: true })
    }

    /// Applies a command.
    ///
    /// # Errors
    /// The command is refused, and nothing has changed.
    pub fn apply(&mut self, command: Command) -> Result<Change, Refused> {
        let may_lock_out = may_lock_out(&command);
        let rows = self.plan(command)?;
        let before = may_lock_out.then(|| self.administered());
        let change = self.put_all(rows);
        if let Some(before) = before
            && let Err(refused) = before.still(&self.administered())
        {
            self.undo(change);
            return Err(refused);
        }
        Ok(change)
    }

    /// Puts rows into their places.
    pub(crate) fn put_all(&mut self, rows: Vec<Row>) -> Change {
        let before = rows.iter().map(|row| self.replace_row(row.clone())).collect();
        Change { rows, before }
    }

    /// Takes a change back.
    pub(crate) fn undo(&mut self, change: Change) {
        for row in change.before.into_iter().rev() {
            self.replace_row(row);
        }
    }

    /// Puts a row into its place, and returns what was there.
    fn replace_row(&mut self, row: Row) -> Row {
        fn swap<T>(table: &mut Table<T>, name: &str, new: Option<Arc<T>>) -> Option<Arc<T>> {
            match new {
                Some(new) => table.insert(name.into(), new),
                None => table.remove(name),
            }
        }
        match row {
            Row::Client(name, new) => {
                let old = swap(&mut self.clients, &name, new);
                Row::Client(name, old)
            }
            Row::Group(name, new) => {
                let old = swap(&mut self.groups, &name, new);
                Row::Group(name, old)
            }
            Row::Role(name, new) => {
                let old = swap(&mut self.roles, &name, new);
                Row::Role(name, old)
            }
            Row::Token(name, new) => {
                let old = swap(&mut self.tokens, &name, new);
                Row::Token(name, old)
            }
            Row::Account(name, new) => {
                let old = swap(&mut self.accounts, &name, new.clone());
                self.index_account(old.as_deref(), new.as_ref());
                Row::Account(name, old)
            }
            Row::Removed(name, new) => {
                let numbered = |removal: &Arc<Removal>| (removal.number, name.clone());
                let number = new.as_ref().map(numbered);
                let old = swap(&mut self.removed, &name, new);
                if let Some(old) = &old {
                    self.removals.remove(&numbered(old));
                }
                self.removals.extend(number);
                Row::Removed(name, old)
            }
            Row::Settings(new) => Row::Settings(std::mem::replace(&mut self.settings, new)),
        }
    }

    /// The rows that lead from this state to `new`.
    pub(crate) fn difference(&self, new: &State) -> Vec<Row> {
        let mut rows = Vec::new();
        if self.settings != new.settings {
            rows.push(Row::Settings(Arc::clone(&new.settings)));
        }
        compare(&self.roles, &new.roles, Row::Role, &mut rows);
        compare(&self.groups, &new.groups, Row::Group, &mut rows);
        compare(&self.clients, &new.clients, Row::Client, &mut rows);
        compare(&self.tokens, &new.tokens, Row::Token, &mut rows);
        compare(&self.accounts, &new.accounts, Row::Account, &mut rows);
        compare(&self.removed, &new.removed, Row::Removed, &mut rows);
        rows
    }

    fn administered(&self) -> Administered {
        let can_log_in = |client: &&Arc<Client>| !client.disabled && client.password.is_some();
        let mut people = self.clients.values().filter(can_log_in);
        let by_role = people.any(|it| it.administration == Some(AdministrationRole::Administrator));
        let mut people = self.clients.values().filter(can_log_in);
        Administered { by_role, by_control: people.any(|client| self.controls(client)) }
    }

    /// Whether the client may send commands over MQTT.
    fn controls(&self, client: &Client) -> bool {
        let about = |acl: &&Acl| {
            acl.kind == AclKind::PublishClientSend && matches(&acl.topic, CONTROL_TOPIC)
        };
        let mut rules = self.roles_of(client).flat_map(|role| &role.acls).filter(about);
        rules.next().is_some_and(|acl| acl.allow)
    }
}

impl Administered {
    fn still(&self, now: &Administered) -> Result<(), Refused> {
        if self.by_role && !now.by_role {
            return Err(Refused::LastAdministrator);
        }
        if self.by_control && !now.by_control {
            return Err(Refused::LastController);
        }
        Ok(())
    }
}

/// Whether a command can take somebody's rights.
fn may_lock_out(command: &Command) -> bool {
    !matches!(
        command,
        Command::SetDefaultAccess(_)
            | Command::CreateClient(_)
            | Command::CreateGroup(_)
            | Command::CreateRole(_)
            | Command::SetAnonymousGroup(_)
            | Command::CreateToken(_)
            | Command::DeleteToken(_)
            | Command::CreateAccount(_)
            | Command::ModifyAccount(..)
            | Command::DeleteAccount(_)
            | Command::SetIdentifier(_)
            | Command::ImportAccounts(_)
    )
}

/// Adds the rows that lead from one table to the other.
fn compare<T: PartialEq>(
    old: &Table<T>,
    new: &Table<T>,
    row: fn(Box<str>, Option<Arc<T>>) -> Row,
    rows: &mut Vec<Row>,
) {
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    rows.extend(gone.map(|name| row(name.clone(), None)));
    let changed = new.iter().filter(|(name, it)| old.get(*name) != Some(it));
    rows.extend(changed.map(|(name, it)| row(name.clone(), Some(Arc::clone(it)))));
}
